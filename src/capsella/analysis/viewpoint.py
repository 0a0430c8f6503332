"""Do capsules stay active when the view changes (mitterreiter2023, section 4.2)?"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from capsella.analysis.moments import Moments
from capsella.data.transforms import affine_matrix, warp
from capsella.errors import check_choice, check_number
from capsella.functional import widen
from capsella.shapes import dims

VIEWS: dict[str, tuple[float, ...]] = {
    "rotation": (5, 10, 20, 30, 45, 60, 90, 180),
    "translation": (1, 2, 3, 4, 6, 8),
    "shear": (5, 10, 20, 30, 45, 60),
    "scale": (0.75, 0.9, 1.1, 1.25, 1.5),
}
"""Growing changes of view: degrees, pixels to the right, degrees, factor."""


class ViewpointCorrelation:
    """Streams ``viewpoint_correlation`` and ``chance_correlation``: ``update(norms_a, norms_b)`` with each batch."""

    def __init__(self) -> None:
        self._a, self._b, self._both = Moments(), Moments(), Moments()
        self._dtype = torch.float64

    def update(self, norms_a: Tensor, norms_b: Tensor) -> None:
        """Add the capsules' lengths [N, M] for N images and for their changed views."""
        N, M = dims(norms_a, "N M", name="norms_a")
        dims(norms_b, "N M", name="norms_b", N=N, M=M)
        self._dtype = norms_a.dtype
        a, b = norms_a.detach().to(torch.float64), norms_b.detach().to(torch.float64)
        self._a.update(a)
        self._b.update(b)
        self._both.update(a * b)

    def compute(self) -> Tensor:
        """Return what ``viewpoint_correlation`` gives for all batches at once."""
        return (self._both.mean / self._scale()).to(self._dtype)

    def chance(self) -> Tensor:
        """Return what ``chance_correlation`` gives for all batches at once."""
        return (self._a.mean * self._b.mean / self._scale()).to(self._dtype)

    def _scale(self) -> Tensor:
        return (self._a.mean_square * self._b.mean_square).sqrt()


def viewpoint_correlation(norms_a: Tensor, norms_b: Tensor) -> Tensor:
    """Return the uncentred cosine over images, one for each capsule (mitterreiter2023, section 4.2).

    For one capsule and N images, v¹ holds its lengths for the images and v² those for the same images seen otherwise::

        correlation = v¹·v² / (‖v¹‖ ‖v²‖)

    The paper's formula, per capsule and over images (a notebook of its authors standardises each image over capsules
    instead). Nothing is centred, so lengths that have nothing to do with each other correlate too: see
    ``chance_correlation``. NaN for a capsule that is always zero.

    Args:
        norms_a: [N, M], lengths of M capsules for N images.
        norms_b: [N, M], lengths for the same images seen otherwise.

    Example:
        >>> round(viewpoint_correlation(torch.tensor([[1.0], [0.0]]), torch.tensor([[1.0], [1.0]])).item(), 4)
        0.7071
    """
    found = ViewpointCorrelation()
    found.update(norms_a, norms_b)
    return found.compute()


def chance_correlation(norms_a: Tensor, norms_b: Tensor) -> Tensor:
    """Return the mean of ``viewpoint_correlation`` over all ways to pair the images: what it is without any invariance.

    In closed form, since a pairing chosen at random makes the product of two lengths that of their means::

        chance = mean(v¹) mean(v²) / √(mean(v¹²) mean(v²²))

    A capsule is invariant as far as its correlation lies above this. The paper prints no such figure.

    Args:
        norms_a: [N, M], lengths of M capsules for N images.
        norms_b: [N, M], lengths for the same images seen otherwise.

    Example:
        >>> round(chance_correlation(torch.tensor([[1.0], [0.0]]), torch.tensor([[1.0], [1.0]])).item(), 4)
        0.7071
    """
    found = ViewpointCorrelation()
    found.update(norms_a, norms_b)
    return found.chance()


def seen_from(images: Tensor, view: str, amount: float) -> Tensor:
    """Return images [B, C, H, W] rotated, moved, sheared or scaled about their middle, bilinear, with zeros from outside.

    Args:
        images: floating point.
        view: ``"rotation"`` (degrees, clockwise), ``"translation"`` (pixels to the right), ``"shear"`` (degrees), ``"scale"``.
        amount: how much.
    """
    dims(images, "B C H W", name="images")
    check_choice("view", view, tuple(VIEWS))
    check_number("amount", amount, above=0 if view == "scale" else None)
    if not math.isfinite(amount):
        raise ValueError(f"amount={amount} is not finite; expected a number")
    B, _, H, W = images.shape
    # where pixels come from takes more digits than half precision has.
    images, dtype = widen(images), images.dtype
    zero, one = images.new_zeros(B), images.new_ones(B)
    turn = one * amount if view == "rotation" else zero
    lean = (one * amount).deg2rad().tan() if view == "shear" else zero
    scale = one * amount if view == "scale" else one
    middle = images.new_tensor([(W - 1) / 2, (H - 1) / 2])
    moved = images.new_tensor([amount, 0.0]) if view == "translation" else 0.0
    target = (middle + moved).expand(B, 2)
    return warp(images, affine_matrix(turn, lean, scale, scale), size=(H, W), target=target).to(dtype)
