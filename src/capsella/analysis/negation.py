r"""Can a network tell x from −x (peer2022)?

Without a bias, routing by agreement and EM are odd or even in their input: poses of −x are the negative of those of x, and
activations are the same. A net whose scores are activations then gives one answer for both, whatever is learned. The trunk,
with its biases and ReLUs, is not odd, so what is negated are the primary capsules.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from capsella.analysis.layers import Route, tapped
from capsella.models import as_prediction, evaluating
from capsella.nn import RoutingLayer
from capsella.routing import Routed
from capsella.shapes import check_floating


class NegationGap:
    """Streams ``negation_gap``: ``update(x)`` with each batch."""

    def __init__(self, fn: Callable[[Tensor], Any]) -> None:
        self._fn, self._gaps = fn, [0.0]

    def update(self, x: Tensor) -> None:
        """Compare a batch with its negative."""
        self._gaps.append(negation_gap(self._fn, x))

    def compute(self) -> float:
        """Return what ``negation_gap`` gives for all batches at once."""
        # torch's maximum, unlike Python's, does not lose what is no number.
        return float(torch.tensor(self._gaps, dtype=torch.float64).max())


def negation_gap(fn: Callable[[Tensor], Any], x: Tensor) -> float:
    """Return max |score(x) − score(−x)| over the batch; 0 for what cannot tell x from −x.

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


def negated(model: nn.Module, images: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """Return the activations [B, J] of every routing layer, for the primary capsules as they are and for their negative.

    Convolutions have their windows folded into B.

    Args:
        model: any network with capsella's routing layers; its lowest one is where the poses are negated.
        images: that it takes.
    """

    def run(sign: float) -> list[Tensor]:
        found: list[Tensor] = []

        def tap(name: str, layer: RoutingLayer, poses: Tensor, activations: Tensor | None, route: Route) -> Routed:
            result = route(poses if found else sign * poses, activations)
            found.append(result.activations.detach())
            return result

        with evaluating(model), tapped(model, tap):
            model(images)
        return found

    return run(1.0), run(-1.0)
