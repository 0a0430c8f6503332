"""Does routing matter? Accuracy with couplings that are swapped for uniform ones, or for those of another image."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from capsella import routing as R
from capsella.analysis.layers import Route, tapped
from capsella.functional import length, make_votes
from capsella.functional import squash as apply_squash
from capsella.models import as_prediction, evaluating
from capsella.nn import RoutingLayer
from capsella.routing import Routed
from capsella.routing.em import em_given

WAYS = ("own", "uniform", "other")
"""Couplings as they are; the same for all; those of the image half a batch away."""


@dataclass(frozen=True)
class RoutingMatters:
    """Accuracy with the couplings that a network has, and with others in every routing layer at once.

    Attributes:
        own: share of images that are right with the network's own couplings.
        uniform: with the same coupling for all pairs of a layer: their mean.
        other: with the couplings of another image.
        images: how many.
    """

    own: float
    uniform: float
    other: float
    images: int


class RoutingSwaps:
    """Streams ``routing_matters``: ``update(images, targets)`` with each batch."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._right = dict.fromkeys(WAYS, 0)
        self._images = 0

    def update(self, images: Tensor, targets: Tensor) -> None:
        """Add a batch of at least two images; ``targets`` are classes [B]."""
        if len(images) < 2:
            raise ValueError(f"images has {len(images)}; expected at least 2, since couplings of another image are swapped in")
        if targets.ndim != 1 or len(targets) != len(images):
            raise ValueError(f"targets has shape {list(targets.shape)}; expected classes [B={len(images)}]")
        with evaluating(self._model):
            for way in WAYS:
                with tapped(self._model, _Swap(way, len(images))):
                    scores = as_prediction(self._model(images)).scores
                self._right[way] += int((scores.argmax(dim=1) == targets).sum())
        self._images += len(images)

    def compute(self) -> RoutingMatters:
        """Return what ``routing_matters`` gives for all batches at once."""
        if not self._images:
            raise ValueError("nothing has been seen yet; call update() with at least two images first")
        shares = {way: self._right[way] / self._images for way in WAYS}
        return RoutingMatters(**shares, images=self._images)


def routing_matters(model: nn.Module, images: Tensor, targets: Tensor) -> RoutingMatters:
    """Measure the accuracy with the network's couplings, with uniform ones and with those of another image (after gu2021).

    In every routing layer at once, without training again, c_ij of the last iteration is replaced::

        own      c_ij
        uniform  (1/IJ) Σ_ij c_ij       1/J for shares of a lower capsule, 1/I for those of an upper one
        other    c_ij of the image half a batch away

    and s_j = Σ_i c_ij û_ij goes on through bias and squash, for EM through one M-step. gu2021 and mitterreiter2023 train
    nets with uniform couplings from the start, which is another question: here the weights have learned with their own.

    Args:
        model: any network with capsella's routing layers.
        images: [B, …], at least two.
        targets: classes [B].
    """
    found = RoutingSwaps(model)
    found.update(images, targets)
    return found.compute()


class _Swap:
    """Routes with other couplings than the layer's own."""

    def __init__(self, way: str, images: int) -> None:
        self.way, self.images = way, images

    def __call__(self, name: str, layer: RoutingLayer, poses: Tensor, activations: Tensor | None, route: Route) -> Routed:
        result = route(poses, activations)
        if self.way == "own" or result.couplings is None:
            return result
        own = result.couplings
        if self.way == "uniform":
            # 1/J or 1/I for normalised couplings; learned ones of any sign keep their scale.
            couplings = own.mean(dim=(1, 2), keepdim=True).expand_as(own)
        else:
            # windows of an image stay together; neighbours may be of one class, in sets that are sorted.
            couplings = own.roll(len(own) // self.images * (self.images // 2), dims=0)
        return route_with(layer, poses, activations, couplings)


def route_with(layer: RoutingLayer, poses: Tensor, activations: Tensor | None, couplings: Tensor) -> Routed:
    """Route as a layer does, with couplings [B, I, J] that are given.

    Args:
        layer: whose weights, bias and squash are used.
        poses: [B, I, P].
        activations: of the lower capsules [B, I], for EM; their lengths if None.
        couplings: for EM, those that the last M-step takes.
    """
    votes = make_votes(poses, layer.weight, rows=layer.rows)
    if layer.algorithm.needs_activations:
        below = length(poses) if activations is None else activations
        learned: dict[str, Any] = {name: layer.get_parameter(name) for name in layer.learned}
        return em_given(votes, below, couplings=couplings, bias=layer.bias, **learned, **layer.options)
    kind = layer.squash or "none"
    result = R.trainable(votes, couplings=couplings, bias=layer.bias, squash="none" if layer.relu == "before" else kind)
    if layer.residual:
        return layer.with_residual(poses, result)
    if layer.relu == "none":
        return result
    above = result.poses.relu()
    above = apply_squash(above, kind=kind) if layer.relu == "before" else above
    return Routed(above, length(above), result.couplings)
