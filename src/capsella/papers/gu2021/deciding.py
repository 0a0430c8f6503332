"""What gu2021's claims are decided with: differences beside their noise, and several of them as one."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from capsella.papers.readings import READINGS, dig
from capsella.papers.results import Result
from capsella.papers.verdicts import ENOUGH, Evidence, Missing

Read = Callable[[Result], float | None]
"""Takes a figure from a result."""

# of single runs: what two of one net may differ by, by reading, in whole runs and in short ones.
LUCK = {"affnist": 0.02, "final": 0.003, "training": 0.001, "training_late": 0.001, "pairs": 0.005}
SHORT_LUCK = 0.05

# of Student's t with so many degrees of freedom, on both sides of which one in forty lies; the last of 30 and more.
_T = (
    *(12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13),
    *(2.12, 2.11, 2.10, 2.09, 2.09, 2.08, 2.07, 2.07, 2.06, 2.06, 2.06, 2.05, 2.05, 2.05, 2.04),
)


@dataclass(frozen=True)
class Difference:
    """How much higher a figure of one recipe is than of another.

    Attributes:
        gain: of the means; above 0 where the first is higher.
        noise: what is no difference yet.
        failed: runs of both that came to no figure.
        is_level: whether all runs that stop at an accuracy came to it; where one did not, nothing is decided.
    """

    gain: float
    noise: float
    failed: int = 0
    is_level: bool = True

    @property
    def is_higher(self) -> bool | None:
        """Whether the first is higher; None where the difference may be luck."""
        return None if not self.is_level or abs(self.gain) <= self.noise else self.gain > 0

    def within(self, bound: float) -> bool | None:
        """Whether the two are no further apart than ``bound``; None where noise may have brought them to either side of it.

        Example:
            >>> [Difference(gain, 0.01).within(0.02) for gain in (0.01, -0.015, -0.04)]
            [True, None, False]
        """
        off = abs(self.gain)
        if not self.is_level or bound - self.noise < off <= bound + self.noise:
            return None
        return off <= bound

    def less(self, other: Difference, times: float) -> Difference:
        """Return how much more this is than a part of another difference."""
        return Difference(
            self.gain - times * other.gain,
            math.hypot(self.noise, times * other.noise),
            self.failed + other.failed,
            self.is_level and other.is_level,
        )

    def __str__(self) -> str:
        number = f"{100 * self.gain:+.2f} ± {100 * self.noise:.2f}".replace("-", "−")
        notes = [f"{self.failed} run{'' if self.failed == 1 else 's'} failed"] if self.failed else []
        notes += [] if self.is_level else ["not all came to the accuracy they stop at"]
        return f"{number} ({'; '.join(notes)})" if notes else number


def values_of(evidence: Evidence, key: str, read: Read) -> list[float]:
    """Return a figure of every run of a recipe that came to one; raise ``Missing`` where none did."""
    found = [read(result) for result in evidence.results(key)]
    known = [value for value in found if value is not None and math.isfinite(value)]
    if not known:
        raise Missing(key)
    return known


def failures(evidence: Evidence, read: Read, *keys: str) -> int:
    """Count the runs of recipes that came to no figure."""
    return sum(len(evidence.results(key)) - len(values_of(evidence, key, read)) for key in keys)


def came_to_it(evidence: Evidence, *keys: str) -> bool:
    """Tell whether all runs of recipes that stop at an accuracy came to it; of what does not stop there is nothing to ask."""
    runs = [result for key in keys for result in evidence.results(key)]
    return all(run.status == "reached" for run in runs if dig(run.plan, "train", "target_accuracy") is not None)


def compared(one: Sequence[float], other: Sequence[float], *, luck: float, times: float = 1.0) -> Difference:
    """Compare figures of runs with those of others.

    Args:
        one: figures that should be higher.
        other: the others.
        luck: what single runs may differ by.
        times: a part of the others that is meant.

    Example:
        >>> compared([0.9], [0.8], luck=0.05).is_higher, compared([0.9], [0.8], luck=0.2).is_higher
        (True, None)
    """
    gain = statistics.fmean(one) - times * statistics.fmean(other)
    if min(len(one), len(other)) < ENOUGH:
        return Difference(gain, luck)
    errors = [statistics.stdev(each) / math.sqrt(len(each)) for each in (one, other)]
    return Difference(gain, 2 * math.hypot(errors[0], times * errors[1]))


def higher(evidence: Evidence, one: str, other: str, reading: str, luck: str = "") -> Difference:
    """Compare a figure of two recipes, over the runs that came to one.

    The noise is two standard errors of the difference where both have three runs, else what single runs may differ by.

    Args:
        evidence: the results.
        one: key of the recipe that should be higher.
        other: key of the other.
        reading: of ``READINGS``.
        luck: of ``LUCK``; named as the reading if empty.
    """
    read = READINGS[reading]
    values = [values_of(evidence, key, read) for key in (one, other)]
    found = compared(*values, luck=SHORT_LUCK if evidence.is_quick else LUCK[luck or reading])
    return replace(found, failed=failures(evidence, read, one, other), is_level=came_to_it(evidence, one, other))


def interval(one: Sequence[float], other: Sequence[float]) -> tuple[float, float | None]:
    """Return the difference of two means and half its 95% interval (Welch); None for the latter where one has a single run.

    Args:
        one: figures of runs.
        other: figures of as many runs or others.

    Example:
        >>> gain, half = interval([0.9, 0.9, 0.9], [0.8, 0.8, 0.8])
        >>> round(gain, 2), half
        (0.1, 0.0)
        >>> interval([0.9], [0.8, 0.7])[1] is None
        True
    """
    gain = statistics.fmean(one) - statistics.fmean(other)
    if min(len(one), len(other)) < 2:
        return gain, None
    parts = [statistics.variance(each) / len(each) for each in (one, other)]
    total = sum(parts)
    if not total:
        return gain, 0.0
    freedom = total**2 / sum(part**2 / (len(each) - 1) for part, each in zip(parts, (one, other), strict=True))
    return gain, _T[min(max(math.floor(freedom), 1), len(_T)) - 1] * math.sqrt(total)
