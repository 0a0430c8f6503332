"""The whole diagnosis of a network: every metric, streamed over the images, and the symptoms that they show."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from capsella.analysis.examination import Examination
from capsella.analysis.gradients import Loss, margin
from capsella.analysis.layers import Adapter
from capsella.analysis.otherwise import (
    Sample,
    add_compactness,
    add_costs,
    add_gradients,
    add_negatives,
    add_swaps,
    add_views,
    some_trees,
)
from capsella.analysis.parse_tree import ParseTree, TreeStatistics
from capsella.analysis.pictures import pictures_of
from capsella.analysis.records import completed, finite
from capsella.analysis.symptoms import Symptom, find_symptoms
from capsella.analysis.training import over_training
from capsella.analysis.viewpoint import VIEWS
from capsella.analysis.words import in_words
from capsella.data import ImageData
from capsella.errors import check_count
from capsella.models import evaluating

SAMPLE = 512
"""Images that are looked at several times: for views, gradients, negatives, swapped couplings."""

Say = Callable[[str], None]


@dataclass(frozen=True, eq=False)
class Diagnosis:
    """What ``diagnose`` found.

    Attributes:
        record: every figure, as JSON can hold it.
        symptoms: what is wrong, by layer and then for the whole network.
        trees: parse trees of a few images; empty for a network whose last layer is a convolution.
        statistics: parse trees of all images, or None.
        view: the first tree's image seen otherwise: its parse tree, or None.
        images: the images of ``trees``, then that of ``view``.
        class_names: of the last layer's capsules, where the data have them.
    """

    record: dict[str, Any]
    symptoms: tuple[Symptom, ...]
    trees: tuple[ParseTree, ...]
    statistics: TreeStatistics | None
    view: ParseTree | None
    images: Tensor | None
    class_names: tuple[str, ...] | None = None

    @property
    def is_healthy(self) -> bool:
        """Whether there is no symptom, notes aside."""
        return all(symptom.is_note for symptom in self.symptoms)

    def as_dict(self) -> dict[str, Any]:
        """Return the record with its symptoms and with what a page draws: everything that ``report.doctor_page`` needs."""
        pictures = None
        if not self.record["non_finite"]:
            pictures = pictures_of(self.trees, self.view, self.statistics, self.images, self.class_names)
        return {**self.record, "symptoms": [symptom.as_dict() for symptom in self.symptoms], "pictures": pictures}

    def summary(self) -> dict[str, float]:
        """Return one figure for each question, that of the worst layer; what was not measured is left out.

        ``dead``, ``starved`` and ``entropy`` are largest values, ``dyr``, ``dys`` and ``viewpoint`` smallest ones.
        """
        return summary(self.record)

    def text(self) -> str:
        """Return the diagnosis in words."""
        return in_words(self.record, self.symptoms)


def diagnose(
    model: nn.Module,
    images: Tensor | ImageData | Iterable[Any],
    targets: Tensor | None = None,
    *,
    adapter: Adapter | None = None,
    views: Mapping[str, Iterable[float]] | None = None,
    loss: Loss = margin,
    sample: int = SAMPLE,
    batch_size: int = 256,
    sweep: bool = False,
    compactness: bool = False,
    events: Iterable[Mapping[str, Any]] = (),
    facts: Mapping[str, Any] | None = None,
    say: Say = lambda line: None,
) -> Diagnosis:
    """Examine a network.

    Args:
        model: any ``nn.Module`` with capsella's routing layers, or one that ``adapter`` knows.
        images: [N, C, H, W] as the model takes them, a split, or batches: tensors, or pairs of images and classes. Inputs of
            another shape are examined too, but cannot be seen from elsewhere.
        targets: classes [N] of a tensor of images; without them accuracy, gradients and swapped couplings are not measured.
        adapter: for capsule layers that are not capsella's (``ForeignLayers``); what needs to change the routing is then left
            out: negatives, swapped couplings, gradients, cost.
        views: changes of view and their amounts, as ``VIEWS``, which are taken if None; an empty mapping leaves them out.
        loss: whose gradients are followed.
        sample: images that are looked at several times: from all over a tensor or a split, the first of batches.
        batch_size: images at once.
        sweep: count active capsules at several thresholds, too.
        compactness: measure gu2021's score for each of its factors, too: 66 further passes over the sample.
        events: of the run (``Run.events``), whose ``watch`` lines tell what became of the capsules while they learned.
        facts: what else is known, for the head of the record; where ``facts["model"]["init"]`` is ``"length_preserving"``, such
            a start is not advised.
        say: is told what goes on.

    Example:
        >>> import torch, capsella
        >>> model = capsella.create_model("capsnet_small", bias=False)
        >>> found = diagnose(model, torch.rand(8, 1, 28, 28), views={})
        >>> [symptom.key for symptom in found.symptoms if symptom.layer is None]
        ['blind']
    """
    check_count("sample", sample, least=2)
    check_count("batch_size", batch_size, least=2)
    place = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    examined = Examination(model, adapter, sweep)
    kept: Sample = []
    with evaluating(model):
        for batch, classes in _batches(images, targets, batch_size, place):
            examined.update(batch, classes)
            room = sample - sum(len(each) for each, _ in kept)
            if room > 0:
                kept.append((batch[:room], None if classes is None else classes[:room]))
            say(f"{examined.images:,} images seen")
        if not examined.images:
            raise ValueError("images is empty; expected at least one image")
        record = dict(facts or {}) | examined.record()
        if isinstance(images, Tensor | ImageData):
            # from all over the set, which may be sorted by class.
            chosen = torch.linspace(0, examined.images - 1, min(sample, examined.images)).round().long()
            kept = list(_batches(*_chosen(images, targets, chosen), batch_size, place))
        say(f"{sum(len(each) for each, _ in kept):,} of them seen otherwise")
        wanted, record["views_skipped"] = _views(views, kept[0][0])
        add_views(record, model, adapter, kept, wanted)
        if adapter is None:
            add_negatives(record, model, kept)
            add_swaps(record, model, kept)
            add_gradients(record, model, kept, loss)
            add_costs(record, model, kept[0][0])
        if compactness:
            add_compactness(record, model, kept)
        trees, view, shown = some_trees(model, adapter, kept[0][0], wanted)
    record["training"] = over_training(events)
    record = finite(record)
    names = tuple(map(str, images.class_names)) if isinstance(images, ImageData) else None
    return Diagnosis(record, tuple(find_symptoms(record)), trees, examined.statistics(), view, shown, names)


def summary(record: Mapping[str, Any]) -> dict[str, float]:
    """Return one figure for each question, see ``Diagnosis.summary``."""
    record = completed(record)
    layers = record["layers"]
    if record["non_finite"]:
        # figures of what is no number would pass for healthy ones.
        return {"non_finite": record["non_finite"]}
    rows = [row for layer in layers[1:-1] or layers for rows in layer["viewpoint"].values() for row in rows]
    swaps = record["routing_matters"]
    found = {
        "non_finite": 0.0,
        "accuracy": record["accuracy"],
        "dead": max(layer["cdr"] for layer in layers),
        "starved": max((layer["starved"] for layer in layers if layer["starved"] is not None), default=None),
        "dyr": min((layer["dyr"] for layer in layers if layer["dyr"] is not None), default=None),
        "dys": min((layer["dys"] for layer in layers if layer["dys"] is not None), default=None),
        "entropy": max((layer["entropy"] for layer in layers if layer["entropy"] is not None), default=None),
        "viewpoint": min((row["correlation"] for row in rows if row["correlation"] is not None), default=None),
        "negation_gap": record["negation_gap"],
        "routing_gain": None if swaps is None else swaps["own"] - swaps["uniform"],
    }
    return {key: value for key, value in found.items() if value is not None}


FIGURES = ("non_finite", "accuracy", "dead", "starved", "dyr", "dys", "entropy", "viewpoint", "negation_gap", "routing_gain")
"""What a summary may have."""


def _views(views: Mapping[str, Iterable[float]] | None, inputs: Tensor) -> tuple[Mapping[str, Iterable[float]], str | None]:
    """Return what to look at, and why nothing is where nobody chose and inputs are no images."""
    if views is not None or inputs.ndim == 4:
        return VIEWS if views is None else views, None
    shape = ", ".join(map(str, ("B", *inputs.shape[1:])))
    return {}, f"inputs [{shape}] are no images [B, C, H, W]"


def _chosen(images: Tensor | ImageData, targets: Tensor | None, indices: Tensor) -> tuple[Tensor, Tensor | None]:
    if isinstance(images, ImageData):
        batch = images.batch(indices)
        return batch.images, batch.labels
    return images[indices], None if targets is None else targets[indices]


def _batches(
    images: Tensor | ImageData | Iterable[Any], targets: Tensor | None, batch_size: int, device: torch.device
) -> Iterator[tuple[Tensor, Tensor | None]]:
    if targets is not None and not isinstance(targets, Tensor):
        raise TypeError(f"targets has type {type(targets).__name__}; expected a tensor of classes")
    if targets is not None and not isinstance(images, Tensor):
        raise ValueError("targets is given beside a split or batches; expected them in there, and targets=None")
    if isinstance(images, Tensor):
        if targets is not None and len(targets) != len(images):
            raise ValueError(f"targets has {len(targets)} classes; expected {len(images)}, one for each image")
        for start in range(0, len(images), batch_size):
            chosen = slice(start, start + batch_size)
            yield images[chosen].to(device), None if targets is None else targets[chosen].to(device)
    elif isinstance(images, ImageData):
        for batch in images.batches(batch_size, shuffle=False, device=device):
            yield batch.images, batch.labels
    else:
        for each in images:
            pair = (each, None) if isinstance(each, Tensor) else tuple(each)
            if len(pair) != 2 or not isinstance(pair[0], Tensor):
                raise TypeError(f"images gives a {type(each).__name__}; expected tensors, or pairs of images and classes")
            yield pair[0].to(device), None if pair[1] is None else pair[1].to(device)
