r"""Projected gradient descent (Madry et al. 2018): many small steps uphill, each brought back to within ε.

    x ← Π(x + α · sign ∂L/∂x)          L∞
    x ← Π(x + α · g/‖g‖₂)              L2

Departures: α is 2.5 ε/steps where nobody says, with which the far side of the ball can be reached from anywhere in it.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from capsella.attacks.base import UNIT, Bounds, Loss, check_attack, gradient, within, within_ball
from capsella.errors import check_choice, check_count, check_number

NORMS = ("linf", "l2")


def pgd(
    model: nn.Module,
    images: Tensor,
    targets: Tensor,
    *,
    eps: float,
    steps: int = 40,
    step_size: float | None = None,
    norm: str = "linf",
    random_start: bool = True,
    seed: int = 0,
    bounds: Bounds = UNIT,
    loss: Loss | None = None,
    targeted: bool = False,
) -> Tensor:
    """Return images on which the network errs more, each within ``eps`` of its own.

    Args:
        model: any network; it is left as it was.
        images: [B, C, H, W], as the network takes them.
        targets: their classes [B] or multi-hot [B, J]; with ``targeted`` those that are to be seen.
        eps: ε; 0 gives the images back.
        steps: how many.
        step_size: α; 2.5 ε/steps if None.
        norm: ``"linf"``: ε bounds each value; ``"l2"``: it bounds the length of an image's change.
        random_start: begin anywhere within ε.
        seed: of the beginning, which is the same on every device.
        bounds: that values are kept within; None does not.
        loss: that is climbed; the network's usual one if None.
        targeted: descend the loss instead.
    """
    check_attack(images, targets, eps, bounds)
    check_choice("norm", norm, NORMS)
    check_count("steps", steps)
    if step_size is not None:
        check_number("step_size", step_size, above=0)
    size = (2.5 * eps / steps if step_size is None else step_size) * (-1 if targeted else 1)
    back = within if norm == "linf" else within_ball
    found = back(images + _start(images, eps, norm, seed), images, eps, bounds) if random_start else images
    for _ in range(steps):
        slope = gradient(model, found, targets, loss)
        found = back(found + size * (slope.sign() if norm == "linf" else _direction(slope)), images, eps, bounds)
    return found


def _start(images: Tensor, eps: float, norm: str, seed: int) -> Tensor:
    """Draw a place evenly from all within ε, on the CPU."""
    draw = torch.Generator().manual_seed(seed)
    if norm == "linf":
        return ((2 * torch.rand(images.shape, generator=draw) - 1) * eps).to(images)
    normal = torch.randn(images.shape, generator=draw)
    # in n dimensions the share of the ball within r is rⁿ.
    radius = torch.rand(len(images), 1, 1, 1, generator=draw) ** (1 / images[0].numel()) if len(images) else 1.0
    return (_direction(normal) * radius * eps).to(images)


def _direction(slope: Tensor) -> Tensor:
    length = slope.flatten(1).norm(dim=1)[:, None, None, None]
    return slope / torch.where(length > 0, length, 1)
