r"""Figure 2: what the decoder of a net with dynamic routing draws from the capsules of a net that was trained without one.

Beside the run of seed 0, a net with couplings that climb and without a decoder, two nets with dynamic routing and a decoder are
trained, with the run's settings and with two seeds; beside runs of other seeds nothing is. On the test images that all three
tell right, the decoder of the first draws from

- *own*: its own capsules;
- *beside*: the run's, as in the paper;
- *other*: those of the second, which had a decoder and the same routing, and differ in nothing but the seed. Two nets that were
  trained apart need not agree on what a value of a capsule means; this shows what that alone does.

*misread* is the share of drawings that the first net takes for another class, *error* the mean sum of squared errors.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from capsella import routing
from capsella.data import ImageData
from capsella.models import CapsuleNet, evaluating
from capsella.papers.images import pack
from capsella.train.compare import finished_run
from capsella.train.plan import Plan, run_plan
from capsella.train.run import Run, moved_to

SEED = 0
"""Of the runs beside which nets are trained: two for every run would cost twice what all of them do."""
OTHER_SEED = 1000
"""How far the seed of the second net is from the first's: no recipe has so many."""
ROWS = 3
BATCH = 500


def drawn(run: Run, splits: Mapping[str, ImageData | None], device: torch.device) -> dict[str, Any]:
    """Train both nets, or go on with what was interrupted, and let the first draw; nothing is said of runs of other seeds."""
    plan = _with_decoder(Plan.of(run.config["plan"]))
    if plan.train.seed != SEED:
        return {}
    train, test = splits["train"], splits["validation"]
    if train is None or test is None:
        raise ValueError("the run has no data to train on, or was measured on no test images")
    alone: dict[str, ImageData | None] = {"train": train, "validation": None, "test": None}
    with contextlib.ExitStack() as stack:
        nets = []
        for name, seed in (("own", plan.train.seed), ("other", plan.train.seed + OTHER_SEED)):
            with routing.prefer("auto"):
                beside = _trained(plan.changed({"seed": seed}), run.folder and run.folder / "beside" / name, alone)
            stack.enter_context(moved_to(beside.model, device))
            nets.append(_capsules_of(beside))
        seen = [_seen(nets[0], _capsules_of(run), nets[1], batch) for batch in test.batches(BATCH, device=device)]
    images, labels, *drawings = (torch.cat(parts) for parts in zip(*seen, strict=True))
    return _summed(images, labels, dict(zip(("own", "beside", "other"), drawings, strict=True)), nets[0])


def _with_decoder(plan: Plan) -> Plan:
    """Return the training of a net with dynamic routing and a decoder, and all else as it is."""
    options = {key: value for key, value in plan.model_options.items() if key != "norm"}
    changed = {**options, "routing": "agreement", "reconstruction": "conditional"}
    return replace(plan, model_options=changed, validate=None, test=False).changed({"validate_every": 0})


def _trained(plan: Plan, folder: Path | None, splits: dict[str, ImageData | None]) -> Run:
    return run_plan(plan, splits=splits, progress=False) if folder is None else finished_run(folder, plan, splits, False)


def _capsules_of(run: Run) -> CapsuleNet:
    if not isinstance(run.model, CapsuleNet):
        raise TypeError(f"the run's network is {type(run.model).__name__}; expected one with capsules")
    return run.model


def _seen(own: CapsuleNet, beside: CapsuleNet, other: CapsuleNet, batch: Any) -> tuple[Tensor, ...]:
    """Return images that all nets tell right, their classes, and what ``own`` draws from each one's capsules."""
    images, labels = batch
    capsules, right = [], torch.ones_like(labels, dtype=torch.bool)
    for net in (own, beside, other):
        with evaluating(net):
            scores, poses = net.classify(images)
        if poses is None:
            raise ValueError("the run's network has no class capsules to draw from")
        capsules.append(poses)
        right &= scores.argmax(dim=1) == labels
    with evaluating(own):
        drawings = [own.reconstruct(poses[right], labels[right]) for poses in capsules]
    return images[right], labels[right], *drawings


def _summed(images: Tensor, labels: Tensor, drawings: Mapping[str, Tensor], reader: CapsuleNet) -> dict[str, Any]:
    found: dict[str, Any] = {"images": len(images)}
    if not len(images):
        return found
    for name, drawing in drawings.items():
        with evaluating(reader):
            read = torch.cat([reader.classify(part)[0].argmax(dim=1) for part in torch.split(drawing, BATCH)])
        error = (drawing - images).square().flatten(1).sum(dim=1)
        found[name] = {"misread": float((read != labels).double().mean()), "error": float(error.double().mean())}
    # the first few of every class, a column each.
    places = [(labels == label).nonzero()[:ROWS, 0] for label in range(reader.num_classes)]
    if all(len(some) == ROWS for some in places):
        chosen = torch.stack(places, dim=1).flatten()
        sheets = {"seen": images, **drawings}
        found["sheets"] = {name: pack(each[chosen].mean(dim=1), columns=len(places)) for name, each in sheets.items()}
    return found
