r"""What chen2019 says of trained nets beside their errors.

- *Couplings* (Table 1, section 3.1): what they add up to, over the classes as Sabour et al. normalise them and over the lower
  capsules as the paper writes the sum; how many are negative; how much they differ between images; and what changes where they
  are moved into the weights, c W = (1/J) (J c W), so that those that are left add up to 1.
- *Attacks* (sections 4.3 and 4.4) and *generated* images (Table 3) are in files of their own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from capsella.data import ImageData
from capsella.models import CapsuleNet, as_prediction, evaluating
from capsella.nn import RoutingLayer
from capsella.papers.chen2019.attacking import blackbox, parts, whitebox
from capsella.papers.chen2019.generated import generated
from capsella.train.run import Run

__all__ = ["blackbox", "couplings", "generated", "whitebox"]

IMAGES = 100


def couplings(run: Run, splits: Mapping[str, ImageData | None], device: torch.device) -> dict[str, Any]:
    """Measure the couplings of the class capsules, and the net with them moved into its weights."""
    model = run.model
    if not isinstance(model, CapsuleNet):
        raise TypeError(f"the run's network is {type(model).__name__}; expected one with capsules")
    _, test = parts(splits)
    images = test.batch(torch.linspace(0, len(test) - 1, min(IMAGES, len(test))).round().long(), device=device).images
    with evaluating(model):
        values = model.routed(images)[-1].couplings
    if values is None:
        raise ValueError("the run's class capsules have no couplings; expected a routing that returns some")
    return {**figures(values), "moved": _moved(model, images)}


def figures(values: Tensor) -> dict[str, Any]:
    """Return what is said of couplings [B, I, J] of some images."""
    wide = values.detach().double()
    mean = wide.mean(dim=0)
    return {
        "over_classes": _span(mean.sum(dim=1)),
        "over_capsules": _span(mean.sum(dim=0)),
        "negative": float((mean < 0).double().mean()),
        "mean_size": float(mean.abs().mean()),
        "varies": float((wide - mean).abs().mean()),
    }


def _span(sums: Tensor) -> dict[str, float]:
    return {"lowest": float(sums.min()), "mean": float(sums.mean()), "highest": float(sums.max())}


def _moved(model: CapsuleNet, images: Tensor) -> float | None:
    """Return the largest change of a score where weights take over the couplings; None where they cannot."""
    layer = model.layers[-1]
    if not isinstance(layer, RoutingLayer) or layer.routing != "trainable" or (layer.positions or (1, 1)) != (1, 1):
        return None
    before = _scores(model, images)
    with moved_into_weights(layer):
        return float((_scores(model, images) - before).abs().max())


def _scores(model: CapsuleNet, images: Tensor) -> Tensor:
    with evaluating(model):
        return as_prediction(model(images)).scores


@contextlib.contextmanager
def moved_into_weights(layer: RoutingLayer) -> Iterator[None]:
    """Let the weights of a layer have its couplings for a while; those that are left are 1/J, and add up to 1."""
    parameter, weight = layer.get_parameter("couplings"), layer.weight
    old = parameter.detach().clone(), weight.detach().clone()
    try:
        with torch.no_grad():
            weight.mul_(layer.out_capsules * parameter.reshape(layer.in_capsules, layer.out_capsules)[..., None, None])
            parameter.fill_(1 / layer.out_capsules)
        yield
    finally:
        with torch.no_grad():
            parameter.copy_(old[0])
            weight.copy_(old[1])
