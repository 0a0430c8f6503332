r"""What yang2021 assumes and does not measure, each on a trained net.

- *Couplings* (assumption 1, sparsity): how many are negative or next to nothing, what the net loses on the test images where
  negative ones are set to zero, and what changes where their signs are moved into the weights, b û = |b| (sign(b) û).
- *Early* (assumption 2) and *drawn* (Figure 2) are in files of their own.
- *Pairs*: MultiMNIST's error on many more test images than are measured on the way.
- *Timing*: seconds of 100 steps as the run was trained, and with the reference in the place of everything faster.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from capsella import routing
from capsella.data import ImageData
from capsella.data.multimnist import Pairs
from capsella.models import as_prediction, evaluating
from capsella.nn import RoutingLayer
from capsella.papers.yang2021.drawing import drawn
from capsella.papers.yang2021.early import early
from capsella.train.config import TrainConfig
from capsella.train.evaluation import evaluate
from capsella.train.optim import learning_rate
from capsella.train.plan import Plan, run_plan
from capsella.train.run import Run

__all__ = ["couplings", "drawn", "early", "pairs", "timing"]

NEAR = 0.01
"""A coupling that is smaller, of which all start at 1, counts as next to nothing."""
BINS = 40
IMAGES = 256

MOST_PARTNERS, STEPS_A_PARTNER = 10, 20_000
"""100,000 test images after 200,000 steps; fewer where a short run would be measured for longer than it was trained."""

# of the readings of a timed run, those that are left out: a step is compiled and captured first.
_WARM_UP = 0.3


def couplings(run: Run, splits: Mapping[str, ImageData | None], device: torch.device) -> dict[str, Any]:
    """Measure the couplings of a net, and the net with some of them changed."""
    data = _test_images(splits)
    layers = learned_layers(run.model)
    if not layers:
        raise ValueError("the run's network has no quadratic layer; expected one whose couplings can be measured")
    values = torch.cat([layer.get_parameter("couplings").detach().double().flatten() for layer in layers])
    images = data.batch(torch.linspace(0, len(data) - 1, min(IMAGES, len(data))).round().long(), device=device).images
    before = scores(run.model, images)
    with clamped(layers):
        without = evaluate(run.model, data, batch_size=512, device=device).accuracy
    with signs_in_weights(layers):
        moved = float((scores(run.model, images) - before).abs().max())
    return {
        **figures(values),
        "reach": reach(TrainConfig.of(run.config["train"]), int((run.record or {})["steps"])),
        "accuracy": evaluate(run.model, data, batch_size=512, device=device).accuracy,
        "clamped": without,
        "moved_signs": moved,
    }


def learned_layers(model: nn.Module) -> list[RoutingLayer]:
    """Return the layers whose couplings have steps of their own."""
    return [layer for layer in model.modules() if isinstance(layer, RoutingLayer) and layer.algorithm.own_step]


def figures(values: Tensor) -> dict[str, Any]:
    """Return what is said of couplings [n]: shares, ends, and how they are spread over ``BINS`` equal parts between these."""
    low, high = float(values.min()), float(values.max())
    counts = torch.histc(values.cpu(), BINS, min=low, max=high) if high > low else torch.tensor([float(len(values))])
    return {
        "count": len(values),
        "negative": float((values < 0).double().mean()),
        "near_zero": float((values.abs() < NEAR).double().mean()),
        "mean": float(values.mean()),
        "mean_size": float(values.abs().mean()),
        "lowest": low,
        "highest": high,
        "shares": [float(count) / len(values) for count in counts],
    }


def reach(config: TrainConfig, steps: int) -> float:
    """Return the sum of the couplings' rates over a training: about how far Adam can have taken one."""
    scale = 0.2 if config.coupling_lr is None else config.coupling_lr / config.lr
    floor = min(config.lr_floor, config.lr * scale) if config.schedule == "exponential" else 0.0
    turns = range(config.weight_steps - 1, steps, config.weight_steps)
    return config.coupling_steps * math.fsum(max(scale * learning_rate(config, step), floor) for step in turns)


def scores(model: nn.Module, images: Tensor) -> Tensor:
    """Return a net's scores [B, J]."""
    with evaluating(model):
        return as_prediction(model(images)).scores


@contextlib.contextmanager
def clamped(layers: Sequence[RoutingLayer]) -> Iterator[None]:
    """Set negative couplings to zero for a while."""
    with _kept([layer.get_parameter("couplings") for layer in layers]) as parameters, torch.no_grad():
        for parameter in parameters:
            parameter.clamp_(min=0)
        yield


@contextlib.contextmanager
def signs_in_weights(layers: Sequence[RoutingLayer]) -> Iterator[None]:
    """Let the weights have the signs of the couplings for a while, which then are all positive."""
    both = [tensor for layer in layers for tensor in (layer.get_parameter("couplings"), layer.weight)]
    with _kept(both), torch.no_grad():
        for layer in layers:
            parameter = layer.get_parameter("couplings")
            layer.weight.mul_(torch.where(parameter < 0, -1.0, 1.0)[..., None, None])
            parameter.abs_()
        yield


@contextlib.contextmanager
def _kept(tensors: Sequence[Tensor]) -> Iterator[Sequence[Tensor]]:
    before = [tensor.detach().clone() for tensor in tensors]
    try:
        yield tensors
    finally:
        with torch.no_grad():
            for tensor, old in zip(tensors, before, strict=True):
                tensor.copy_(old)


def pairs(run: Run, splits: Mapping[str, ImageData | None], device: torch.device) -> dict[str, Any]:
    """Measure a net on more pairs of test digits."""
    data = _test_images(splits)
    if not isinstance(data.samples, Pairs):
        raise ValueError(f"the run was measured on {data.name}; expected MultiMNIST's pairs")
    count = min(MOST_PARTNERS, max(1, int((run.record or {})["steps"]) // STEPS_A_PARTNER))
    # the copies on other devices are of the pairs as they were.
    more = replace(data, samples=data.samples.with_partners(count), _elsewhere={}, _made={})
    # what the training ran with, which on a GPU is compiled already.
    half = device.type == "cuda" and run.config["train"]["precision"] == "bf16"
    context = functools.partial(torch.autocast, "cuda", torch.bfloat16) if half else contextlib.nullcontext
    with routing.prefer("auto"):
        found = evaluate(run.model, more, batch_size=1024, device=device, context=context)
    return {"accuracy": found.accuracy, "images": found.images}


def timing(run: Run, splits: Mapping[str, ImageData | None], device: torch.device) -> dict[str, Any]:
    """Time 100 steps: those of the run itself, and as many plain ones in which the reference routes."""
    plan = Plan.of(run.config["plan"]).changed({"fast": False})
    alone: dict[str, ImageData | None] = {"train": splits["train"], "validation": None, "test": None}
    with routing.prefer("reference"):
        plain = run_plan(replace(plan, validate=None, test=False), splits=alone, progress=False)
    every = plan.train.log_every
    return {name: {"seconds": per_hundred(each.events, every)} for name, each in (("ours", run), ("reference", plain))}


def per_hundred(events: Sequence[Mapping[str, Any]], every: int) -> float | None:
    """Return the median seconds of 100 steps, from the times of readings so many steps apart; the first third is left out."""
    times = [float(event["seconds"]) for event in events if event["event"] == "log"]
    parts = [after - before for before, after in itertools.pairwise(times)]
    kept = parts[math.ceil(_WARM_UP * len(parts)) :]
    return statistics.median(kept) * 100 / every if kept else None


def _test_images(splits: Mapping[str, ImageData | None]) -> ImageData:
    data = splits["validation"]
    if data is None:
        raise ValueError("the run was measured on no test images")
    return data
