"""What the tests of the layers share: votes and windows by explicit loops, parameters drawn at random."""

from __future__ import annotations

from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from capsella import routing as R
from capsella.nn import RoutingLayer
from capsella.routing import Routed

OPTIONS: dict[str, dict[str, Any]] = {
    "agreement": {"num_iters": 2, "normalise": "sources"},
    "uniform": {"normalise": "sources"},
    # a temperature at which activations differ visibly.
    "em": {"inverse_temperature": 0.3},
    "trainable": {},
    "quadratic": {},
}
"""Options that are not the default, so that a layer that drops them is found out."""

M = TypeVar("M", bound=nn.Module)


def randomised(module: M, seed: int = 0) -> M:
    """Return the module in float64 with every parameter drawn at random."""
    rng = torch.Generator().manual_seed(seed)
    module.double()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(0.5 * torch.randn(parameter.shape, generator=rng, dtype=torch.float64))
    return module


def draw(*size: int, seed: int = 1) -> Tensor:
    """Draw a float64 tensor."""
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def votes_by_hand(poses: Tensor, weight: Tensor, rows: int) -> Tensor:
    """Multiply pose by pose, weight by weight."""
    B, I, _ = poses.shape
    sources, J, P, D = weight.shape
    votes = torch.empty(B, I, J, rows * D, dtype=poses.dtype)
    for b in range(B):
        for i in range(I):
            for j in range(J):
                w = weight[i if sources > 1 else 0, j]
                for r in range(rows):
                    votes[b, i, j, r * D : (r + 1) * D] = poses[b, i, r * P : (r + 1) * P] @ w
    return votes


def route_by_hand(
    layer: RoutingLayer, poses: Tensor, activations: Tensor | None = None, *, squash: str | None = None, **learned: Tensor
) -> Routed:
    """Route with the algorithm's function, given the layer's tensors one by one."""
    name = layer.algorithm.name
    options: dict[str, Any] = {key: getattr(layer, key) for key in layer.learned} | learned | OPTIONS[name]
    if squash is not None:
        options["squash"] = squash
    if name == "em":
        options["activations"] = poses.square().sum(dim=-1).sqrt() if activations is None else activations
    return getattr(R, name)(votes_by_hand(poses, layer.weight, layer.rows), bias=layer.bias, **options)


def assert_same(result: Routed, expected: Routed) -> None:
    """Compare poses, activations and couplings to float64's rounding."""
    for part in ("poses", "activations", "couplings"):
        torch.testing.assert_close(getattr(result, part), getattr(expected, part), rtol=1e-11, atol=1e-12, msg=part)
