"""What mitterreiter2023 measures on its nets.

- *Dynamics* (Tables 1 and 2, Figure 4): one diagnosis over the whole test set, affine digits for nets that learned placed ones.
- *Lives*: what became of the capsules while they learned, from the run's looks.
- *Look*: of the many nets of the sweep, what one pass over the test images tells.
- *Growth* (Table 3), *trees* (Figures 2, 3 and 5) and what became of nets that are to be *cured* are in files of their own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from capsella.analysis import diagnose, over_training
from capsella.analysis.examination import Examination
from capsella.analysis.records import finite
from capsella.data import ImageData
from capsella.models import evaluating
from capsella.papers.measuring import needing
from capsella.papers.mitterreiter2023.curing import cured_of_run
from capsella.papers.mitterreiter2023.growth import growth
from capsella.papers.mitterreiter2023.trees import trees_of_run
from capsella.train.plan import Plan
from capsella.train.run import Run

__all__ = ["cured", "dynamics", "growth", "lives", "look", "trees"]

AFFINE = "affnist_mitterreiter"
IMAGES_A_STEP = 4
"""A run of so many steps, as short versions are, is measured on fewer images, lest that takes longer than its training."""

_OF_LAYER = (
    *("capsules", "cns", "cnm", "cas", "car", "cds", "cdr", "dead"),
    *("dyr", "dys", "dyr_literal", "dys_literal", "live_targets", "entropy"),
    *("gradient", "gradients", "weight_gradient", "weight_gradients", "outgoing_gradients", "starved"),
)
_OF_LOOK = ("capsules", "cns", "cnm", "cas", "car", "cds", "cdr", "dyr", "dys", "live_targets", "entropy")
_DIGITS = 5


def images_of(plan: Plan) -> tuple[str, ...]:
    """Return which test images are needed beside a run's own."""
    return (AFFINE,) if plan.data == "mnist40" else ()


trees = needing(images_of)(trees_of_run)


@needing(images_of)
def dynamics(run: Run, splits: Mapping[str, ImageData | None], device: torch.device) -> dict[str, Any]:
    """Diagnose a net on the test images."""
    data, images = _test_images(run, splits)
    record = diagnose(run.model, images, sweep=True).record
    return {
        "data": {"name": data.name, "digest": data.digest},
        **{name: record[name] for name in ("images", "non_finite", "accuracy", "negation_gap", "routing_matters")},
        "layers": [layer_of(layer) for layer in record["layers"]],
    }


@needing(images_of)
def look(run: Run, splits: Mapping[str, ImageData | None], device: torch.device) -> dict[str, Any]:
    """Examine a net in one pass over the test images: accuracy, dynamics and activity."""
    data, images = _test_images(run, splits)
    examined = Examination(run.model, None, sweep=False)
    with evaluating(run.model):
        for inputs, labels in images.batches(256, shuffle=False) if isinstance(images, ImageData) else images:
            examined.update(inputs.to(device), labels.to(device))
    record = finite(examined.record())
    return {
        "data": {"name": data.name, "digest": data.digest},
        **{name: record[name] for name in ("images", "non_finite", "accuracy")},
        "layers": [_short({name: layer[name] for name in _OF_LOOK}) for layer in record["layers"]],
    }


@needing(images_of)
def cured(run: Run, splits: Mapping[str, ImageData | None], device: torch.device) -> dict[str, Any]:
    """Examine a net that is to be kept alive, see ``curing``."""
    data, images = _test_images(run, splits)
    found = cured_of_run(run, splits, device, images)
    tree = found.pop("tree")
    return {"data": {"name": data.name, "digest": data.digest}, **_short(finite(found)), "tree": tree}


def _test_images(
    run: Run, splits: Mapping[str, ImageData | None]
) -> tuple[ImageData, ImageData | list[tuple[torch.Tensor, torch.Tensor]]]:
    """Return the test images that nets are examined on, and as many of them as a run of its length is worth."""
    data = splits[AFFINE] if AFFINE in splits else splits["validation"]
    if data is None:
        raise ValueError("the run was measured on no test images; expected some to diagnose it on")
    steps = run.config["train"]["steps"]
    return data, data if steps is None else few(data, IMAGES_A_STEP * int(steps))


def few(data: ImageData, most: int) -> ImageData | list[tuple[torch.Tensor, torch.Tensor]]:
    """Return all images, or at most so many from all over the set, as batches."""
    if len(data) <= most:
        return data
    parts = torch.split(torch.linspace(0, len(data) - 1, max(2, most)).round().long(), 256)
    # a batch of one image would tell nothing of swapped couplings.
    return [(batch.images, batch.labels) for batch in (data.batch(part) for part in parts if len(part) > 1)]


def layer_of(layer: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is kept of a layer's diagnosis, with as many digits as anybody reads."""
    kept = {name: layer[name] for name in _OF_LAYER}
    # thresholds of activity: the paper does not say which it took.
    kept["cas_at"] = {f"{each['active']:g}": each["cas"] for each in layer["sweep"] or ()}
    kept["viewpoint"] = {view: _columns(rows) for view, rows in layer["viewpoint"].items()}
    found: dict[str, Any] = _short(kept)
    return found


def _columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[float]]:
    return {name: [row[name] for row in rows] for name in ("amount", "correlation", "chance")}


def _short(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _short(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_short(each) for each in value]
    return float(f"{value:.{_DIGITS}g}") if isinstance(value, float) else value


def lives(run: Run, splits: Mapping[str, ImageData | None], device: torch.device) -> dict[str, Any]:
    """Sum up the looks of a run: deaths and revivals over all of them, figures of some."""
    found = over_training(run.events)
    if found is None:
        raise ValueError("the run has no looks at its capsules; expected one that was trained with watch")
    return found
