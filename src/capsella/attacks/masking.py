"""Gradients that are zero: where a loss is flat an attack that follows it stands still, which is no robustness."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from capsella.attacks.base import UNIT, Bounds, Loss, check_attack, gradient


@dataclass(frozen=True)
class ZeroGradients:
    """How much of a batch an attack by gradients cannot see.

    Attributes:
        images: share of the images whose gradient is zero everywhere.
        pixels: share of all values whose derivative is zero.
    """

    images: float
    pixels: float


def zero_gradients(
    model: nn.Module, images: Tensor, targets: Tensor, *, loss: Loss | None = None, bounds: Bounds = UNIT
) -> ZeroGradients:
    """Count gradients that are exactly zero, as saturation leaves them; arguments as for ``fgsm``.

    Example:
        >>> import torch
        >>> flat = nn.Sequential(nn.Flatten(), nn.Linear(4, 2), nn.Threshold(1e9, 0.0))
        >>> zero_gradients(flat, torch.rand(3, 1, 2, 2), torch.tensor([0, 1, 0]))
        ZeroGradients(images=1.0, pixels=1.0)
    """
    check_attack(images, targets, 0.0, bounds)
    if not len(images):
        raise ValueError("images is empty; expected at least one image")
    zero = gradient(model, images, targets, loss) == 0
    return ZeroGradients(float(zero.flatten(1).all(dim=1).double().mean()), float(zero.double().mean()))
