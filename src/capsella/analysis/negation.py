"""Can a network tell x from −x (peer2022)?"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from capsella.analysis.layers import Route, tapped
from capsella.models import Prediction, as_prediction, evaluating
from capsella.nn import RoutingLayer
from capsella.routing import Routed
from capsella.shapes import check_floating


class NegationGap:
    """Streams ``negation_gap``: ``update(x)`` with each batch."""

    def __init__(self, fn: Callable[[Tensor], Any]) -> None:
        self._fn, self._gap = fn, 0.0

    def update(self, x: Tensor) -> None:
        """Compare a batch with its negative."""
        self._gap = larger(self._gap, negation_gap(self._fn, x))

    def compute(self) -> float:
        """Return what ``negation_gap`` gives for all batches at once."""
        return self._gap


def negation_gap(fn: Callable[[Tensor], Any], x: Tensor) -> float:
    """Return how far the scores of x and of −x are apart at most; 0 for what cannot tell x from −x (peer2022).

    Over the images b of a batch and the classes j::

        gap = max_bj |score_j(x_b) − score_j(−x_b)|

    Without a bias, routing by agreement and EM are odd or even in their input: poses of −x are the negative of those of x, and
    activations are the same. A net whose scores are activations then gives one answer for both, whatever is learned. A trunk
    with biases and ReLUs is not odd, so what is negated are the primary capsules.

    Args:
        fn: gives scores, as a tensor or as a ``Prediction``; for a net, ``model.from_primary``.
        x: what is negated; for a net, its primary capsules.

    Example:
        >>> import torch
        >>> negation_gap(torch.abs, torch.tensor([1.0, -2.0]))
        0.0
    """
    check_floating(x, name="x")
    there, back = (_scores(fn(each)).detach() for each in (x, -x))
    return float((there - back).abs().max()) if there.numel() else 0.0


def _scores(output: Any) -> Tensor:
    """Return scores in the type that they have; ``as_prediction`` would round them to float32."""
    as_prediction(output)
    scores: Tensor = output if isinstance(output, Tensor) else output.scores
    return scores


@dataclass(frozen=True)
class Answer:
    """What a network said of a batch, in the type that it has.

    Attributes:
        scores: [B, J], or None where it returned neither a ``Prediction`` nor a tensor.
        activations: [B, M] of every routing layer; convolutions have their windows folded into B.
    """

    scores: Tensor | None
    activations: list[Tensor]


def answers(model: nn.Module, images: Tensor) -> tuple[Answer, Answer]:
    """Return what a network says with its primary capsules as they are and with their negative.

    Args:
        model: any network with capsella's routing layers; its lowest one is where the poses are negated.
        images: that it takes.
    """

    def run(sign: float) -> Answer:
        found: list[Tensor] = []

        def tap(name: str, layer: RoutingLayer, poses: Tensor, activations: Tensor | None, route: Route) -> Routed:
            result = route(poses if found else sign * poses, activations)
            found.append(result.activations.detach())
            return result

        with evaluating(model), tapped(model, tap):
            output = model(images)
        return Answer(_scores(output).detach() if isinstance(output, Tensor | Prediction) else None, found)

    return run(1.0), run(-1.0)


def negated(model: nn.Module, images: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """Return the activations [B, J] of every routing layer, for the primary capsules as they are and for their negative.

    Convolutions have their windows folded into B.

    Args:
        model: any network with capsella's routing layers; its lowest one is where the poses are negated.
        images: that it takes.
    """
    there, back = answers(model, images)
    return there.activations, back.activations


def larger(a: float, b: float) -> float:
    """Return the larger of two numbers; unlike Python's ``max``, it does not lose what is no number."""
    return math.nan if math.isnan(a) or math.isnan(b) else max(a, b)
