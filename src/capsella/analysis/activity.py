"""Which capsules are active, and which are dead (mitterreiter2023, section 4.3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from capsella.analysis.moments import Moments
from capsella.errors import check_number
from capsella.functional import length
from capsella.shapes import dims

ACTIVE, DEAD_MEAN, DEAD_STD = 0.1, 0.01, 0.01
SWEEP = (0.01, 0.05, 0.1, 0.2)
"""Thresholds of activity that a sweep looks at."""


@dataclass(frozen=True)
class ActivityResult:
    """How active a layer is; names as in the paper.

    Attributes:
        cns: sum of the capsules' lengths, mean over images.
        cnm: the same for one capsule.
        cas: active capsules, mean over images.
        car: as a share.
        cds: dead capsules.
        cdr: as a share.
        dead: boolean [M].
        mean: length of each capsule, mean over images [M].
        std: its population standard deviation [M].
        active: ε, from which on a capsule counts as active.
    """

    cns: float
    cnm: float
    cas: float
    car: float
    cds: int
    cdr: float
    dead: Tensor
    mean: Tensor
    std: Tensor
    active: float


class ActivitySweep:
    """Streams ``activity_sweep``: ``update(capsules)`` with each batch [N, M, D]."""

    def __init__(self, active: Sequence[float] = SWEEP, *, dead_mean: float = DEAD_MEAN, dead_std: float = DEAD_STD) -> None:
        for name, value in (*(("active", each) for each in active), ("dead_mean", dead_mean), ("dead_std", dead_std)):
            check_number(name, value, least=0)
        self.active, self.dead_mean, self.dead_std = tuple(active), dead_mean, dead_std
        self._lengths, self._counts = Moments(), [Moments() for _ in self.active]

    def update(self, capsules: Tensor) -> None:
        """Add the poses [N, M, D] of N images; activations that are no lengths come as [N, M, 1]."""
        dims(capsules, "N M D", name="capsules")
        lengths = length(capsules.detach())
        self._lengths.update(lengths)
        for threshold, counts in zip(self.active, self._counts, strict=True):
            counts.update((lengths >= threshold).to(torch.float64))

    def compute(self) -> tuple[ActivityResult, ...]:
        """Return one result for each threshold."""
        mean, std = self._lengths.mean, self._lengths.std
        kept = mean.to(self._lengths.dtype), std.to(self._lengths.dtype)
        dead = (mean <= self.dead_mean) & (std <= self.dead_std)
        n, cns, cds = len(mean), float(mean.sum()), int(dead.sum())
        found = []
        for threshold, counts in zip(self.active, self._counts, strict=True):
            cas = float(counts.mean.sum())
            found.append(ActivityResult(cns, cns / n, cas, cas / n, cds, cds / n, dead, *kept, threshold))
        return tuple(found)


class Activity:
    """Streams ``activity``: ``update(capsules)`` with each batch [N, M, D]."""

    def __init__(self, *, active: float = ACTIVE, dead_mean: float = DEAD_MEAN, dead_std: float = DEAD_STD) -> None:
        self._sweep = ActivitySweep((active,), dead_mean=dead_mean, dead_std=dead_std)

    def update(self, capsules: Tensor) -> None:
        """Add the poses [N, M, D] of N images; activations that are no lengths come as [N, M, 1]."""
        self._sweep.update(capsules)

    def compute(self) -> ActivityResult:
        """Return what ``activity`` gives for all batches at once."""
        return self._sweep.compute()[0]


def activity(
    capsules: Tensor, *, active: float = ACTIVE, dead_mean: float = DEAD_MEAN, dead_std: float = DEAD_STD
) -> ActivityResult:
    """Count active and dead capsules (mitterreiter2023, section 4.3).

    For k images and n capsules u::

        cns = (1/k) Σ_images Σ_j ‖u_j‖                    cnm = cns / n
        cas = (1/k) Σ_images #{j: ‖u_j‖ ≥ ε}              car = cas / n
        cds = #{j: mean‖u_j‖ ≤ ε₁ and std‖u_j‖ ≤ ε₂}      cdr = cds / n

    The paper leaves ε open; 0.1 fits its Table 2 best (with a smaller one nearly every live capsule would be active).
    ε₁ = ε₂ = 0.01 are those of its code, with the population's standard deviation. Its text calls the number of dead capsules
    cns as well; its table calls it cds, and so do we.

    Args:
        capsules: [N, M, D], the poses of a layer for N images.
        active: ε; from this length on a capsule is active.
        dead_mean: ε₁; a dead capsule's mean length is at most this.
        dead_std: ε₂; the standard deviation of its length is at most this.

    Example:
        >>> found = activity(torch.tensor([[[3.0, 4.0], [0.0, 0.0]]]))
        >>> found.cns, found.car, found.cdr
        (5.0, 0.5, 0.5)
    """
    found = Activity(active=active, dead_mean=dead_mean, dead_std=dead_std)
    found.update(capsules)
    return found.compute()


def activity_sweep(
    capsules: Tensor, *, active: Sequence[float] = SWEEP, dead_mean: float = DEAD_MEAN, dead_std: float = DEAD_STD
) -> tuple[ActivityResult, ...]:
    """Count active and dead capsules at several thresholds of activity, one result for each.

    As ``activity``, for ε of 0.01, 0.05, 0.1 and 0.2 unless others are given: the paper does not say which it took.

    Args:
        capsules: [N, M, D], the poses of a layer for N images.
        active: values of ε.
        dead_mean: ε₁.
        dead_std: ε₂.
    """
    found = ActivitySweep(active, dead_mean=dead_mean, dead_std=dead_std)
    found.update(capsules)
    return found.compute()
