"""What the tests of the analysis share: small nets of capsule layers alone, draws, batches of unlike sizes."""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import Tensor, nn

from capsella.nn import RoutingLayer
from capsella.routing import Routed
from capsella.testing import generator

SIZES = (1, 5, 2, 3)
"""Of the batches in which eleven samples come."""

M = TypeVar("M", bound=nn.Module)


class Stack(nn.Module):
    """Capsule layers alone: primary capsules go in, scores [B, J] come out."""

    def __init__(self, *layers: RoutingLayer) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, primary: Tensor) -> Tensor:
        below: Tensor | Routed = primary
        for layer in self.layers:
            below = layer(below)
        assert isinstance(below, Routed)
        return below.activations.flatten(1)


def draw(*size: int, seed: int = 1) -> Tensor:
    """Draw a float64 tensor."""
    return torch.randn(*size, generator=generator(seed), dtype=torch.float64)


def randomised(module: M, seed: int = 0) -> M:
    """Return the module in float64 with every parameter drawn at random."""
    module.double()
    with torch.no_grad():
        for k, parameter in enumerate(module.parameters()):
            parameter.copy_(0.5 * draw(*parameter.shape, seed=seed + k))
    return module


def uneven(samples: Tensor) -> tuple[Tensor, ...]:
    """Cut eleven samples into batches of unlike sizes."""
    return samples.split(SIZES)
