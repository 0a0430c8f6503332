"""What yang2021's claims are decided with: differences beside their noise, and several of them as one."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from capsella.papers.verdicts import ENOUGH, Evidence

# of the errors of single runs: what two of one net may differ by, in whole runs by data set and in short ones.
LUCK = {"mnist": 0.0005, "fashion": 0.002, "cifar10": 0.005, "multimnist": 0.002}
SHORT_LUCK = 0.01


@dataclass(frozen=True)
class Difference:
    """How much lower a figure of one recipe is than of another.

    Attributes:
        gain: of the means; above 0 where the first is lower.
        noise: what is no difference yet.
    """

    gain: float
    noise: float

    @property
    def is_lower(self) -> bool | None:
        """Whether the first is lower; None where the difference may be luck."""
        return None if abs(self.gain) <= self.noise else self.gain > 0

    def __str__(self) -> str:
        return f"{-100 * self.gain:+.2f} ± {100 * self.noise:.2f}".replace("-", "−")


def lower(evidence: Evidence, one: str, other: str, reading: str, data: str) -> Difference:
    """Compare a figure of two recipes."""
    return _difference([evidence.values(key, reading) for key in (other, one)], (1, -1), evidence, data)


def falls_further(evidence: Evidence, one: tuple[str, str], other: tuple[str, str], reading: str, data: str) -> Difference:
    """Compare how far a figure falls between two recipes with how far it falls between two others.

    Args:
        evidence: the results.
        one: the recipe before and the recipe after.
        other: the same, of what should fall less.
        reading: the figure.
        data: of what the recipes are, for the luck of single runs.
    """
    return _difference([evidence.values(key, reading) for key in (*one, *other)], (1, -1, -1, 1), evidence, data)


def _difference(values: Sequence[Sequence[float]], signs: Sequence[int], evidence: Evidence, data: str) -> Difference:
    """Add means up with their signs.

    The noise is two standard errors of the sum where all have three runs, else what single runs may differ by, two at a time.
    """
    gain = math.fsum(sign * statistics.fmean(each) for sign, each in zip(signs, values, strict=True))
    if min(map(len, values)) >= ENOUGH:
        return Difference(gain, 2 * math.hypot(*(statistics.stdev(each) / math.sqrt(len(each)) for each in values)))
    luck = SHORT_LUCK if evidence.is_quick else LUCK[data]
    return Difference(gain, luck * math.sqrt(len(values) / 2))
