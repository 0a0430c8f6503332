"""A net as it began and as it ended: what lives in it, what its routing does, and how far gradients come down."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from capsella.analysis import diagnose, gradient_norms
from capsella.analysis.activity import DEAD_STD
from capsella.analysis.doctor import Diagnosis
from capsella.analysis.layers import observe
from capsella.data import ImageData
from capsella.models import Model, evaluating
from capsella.papers.images import pack
from capsella.papers.mitterreiter2023.deciding import ALIVE
from capsella.papers.readings import LEARNS
from capsella.train.plan import Plan
from capsella.train.run import Run

VIEWS: Mapping[str, tuple[float, ...]] = {"rotation": (20, 90), "translation": (2, 8), "shear": (20, 60)}
"""A change that a person would not mind, and a large one."""

PROBE = 256
"""Images that gradients and lengths are taken of."""

TREE_DEPTHS = (12, 20)
"""Capsule layers of nets of which a parse tree is kept: of deeper ones it would make records large."""

LEAST = 0.1
"""From here on a coupling is drawn; one of 16 equal ones is not."""

_OF_LAYER = ("capsules", "cnm", "car", "cds", "cdr", "dyr", "dys", "live_targets", "entropy")


def cured_of_run(run: Run, splits: Mapping[str, ImageData | None], device: torch.device, images: Any) -> dict[str, Any]:
    """Examine the net on ``images``, and look at both its ends on placed ones."""
    found = diagnose(run.model, images, views=VIEWS)
    record, statistics = found.record, found.statistics
    layers = [{name: layer[name] for name in _OF_LAYER} for layer in record["layers"]]
    for k, (layer, whole) in enumerate(zip(layers, record["layers"], strict=True)):
        # a capsule may be long and the same in every image.
        layer["still"] = None if statistics is None else int((statistics.activation_stds[k] <= DEAD_STD).sum())
        layer["viewpoint"] = {
            view: {name: [row[name] for row in rows] for name in ("amount", "correlation", "chance")}
            for view, rows in whole["viewpoint"].items()
        }
    return {
        **{name: record[name] for name in ("images", "non_finite", "accuracy", "routing_matters")},
        "layers": layers,
        **_ends(run, splits, device),
        "tree": _tree(found) if len(layers) in TREE_DEPTHS and _is_worth_it(record) else None,
    }


def _is_worth_it(record: Mapping[str, Any]) -> bool:
    """Tell whether a net has begun to learn, lives, and routes one image otherwise than another."""
    hidden = record["layers"][1:-1]
    dead = sum(layer["cds"] for layer in hidden) / sum(layer["capsules"] for layer in hidden)
    routes = any(layer["dyr"] for layer in record["layers"])
    return bool(routes and dead <= ALIVE and record["accuracy"] >= LEARNS * record["guess"])


def _ends(run: Run, splits: Mapping[str, ImageData | None], device: torch.device) -> dict[str, Any]:
    """Return lengths and gradients of every layer at the start and at the end, on placed test images."""
    data, train = splits["validation"], splits["train"]
    if data is None or train is None:
        raise ValueError("the run has no data to measure it on; expected what it learned from, and test images")
    probe = data.batch(torch.linspace(0, len(data) - 1, min(PROBE, len(data))).round().long(), device=device)
    started = settled(Plan.of(run.config["plan"]).build(train).to(device), probe.images)
    return {when: look_inside(model, probe.images, probe.labels) for when, model in (("start", started), ("end", run.model))}


@torch.no_grad()
def settled(model: Model, images: Tensor) -> Model:
    """Give the batch normalisation of a net that has learned nothing the statistics of images, as its first step has them.

    Args:
        model: changed in place.
        images: [B, C, H, W].
    """
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    usual = [norm.momentum for norm in norms]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # a plain mean over what is seen
    was = model.training
    model.train()(images)
    for norm, momentum in zip(norms, usual, strict=True):
        norm.momentum = momentum
    return model.train(was)


def look_inside(model: nn.Module, images: Tensor, labels: Tensor) -> dict[str, list[float]]:
    """Return the mean activation of each capsule layer, and the mean gradient of each routing layer's weights.

    Args:
        model: in whatever mode; it is looked at as it is evaluated.
        images: [B, C, H, W].
        labels: [B].
    """
    with evaluating(model):
        _, seen = observe(model, images)
    activations = [seen[0].lower_activations, *(each.activations for each in seen)]
    return {
        "lengths": [float(layer.mean()) for layer in activations],
        "gradients": [float(layer.weights.mean()) for layer in gradient_norms(model, images, labels)],
    }


def _tree(found: Diagnosis) -> dict[str, Any] | None:
    """Return the parse tree of the first image as it is and turned, as a picture of a pair wants them."""
    pictures = found.as_dict()["pictures"]
    if pictures is None or pictures["view"] is None:
        return None
    images = torch.tensor(pictures["images"])[:, 0] / 255
    return {
        "trees": [_strong(pictures["trees"][0])],
        "view": _strong(pictures["view"]),
        "statistics": None,
        "class_names": pictures["class_names"],
        # the turned image is the last one.
        "images": [pack(image[None], columns=1) for image in (images[0], images[-1])],
    }


def _strong(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out the couplings that would make a picture of many layers a hairball."""
    found: dict[str, Any] = _hundredths(dict(tree))
    edges = [[[each if each >= LEAST else 0 for each in row] for row in gap] for gap in found["edges"]]
    return {**found, "edges": edges}


def _hundredths(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _hundredths(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_hundredths(each) for each in value]
    return round(value, 2) if isinstance(value, float) else value
