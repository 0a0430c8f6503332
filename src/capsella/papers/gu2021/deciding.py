"""What gu2021's claims are decided with: differences beside their noise, and several of them as one."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from capsella.papers.readings import READINGS
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
    """

    gain: float
    noise: float

    @property
    def is_higher(self) -> bool | None:
        """Whether the first is higher; None where the difference may be luck."""
        return None if abs(self.gain) <= self.noise else self.gain > 0

    def __str__(self) -> str:
        return f"{100 * self.gain:+.2f} ± {100 * self.noise:.2f}".replace("-", "−")


def values_of(evidence: Evidence, key: str, read: Read) -> list[float]:
    """Return a figure of every run of a recipe; raise ``Missing`` where one has none."""
    found = [read(result) for result in evidence.results(key)]
    if any(value is None for value in found):
        raise Missing(key)
    return [value for value in found if value is not None]


def higher(evidence: Evidence, one: str, other: str, reading: str, luck: str = "") -> Difference:
    """Compare a figure of two recipes.

    The noise is two standard errors of the difference where both have three runs, else what single runs may differ by.

    Args:
        evidence: the results.
        one: key of the recipe that should be higher.
        other: key of the other.
        reading: of ``READINGS``.
        luck: of ``LUCK``; named as the reading if empty.
    """
    values = [values_of(evidence, key, READINGS[reading]) for key in (one, other)]
    gain = statistics.fmean(values[0]) - statistics.fmean(values[1])
    if min(map(len, values)) >= ENOUGH:
        return Difference(gain, 2 * math.hypot(*(statistics.stdev(each) / math.sqrt(len(each)) for each in values)))
    return Difference(gain, SHORT_LUCK if evidence.is_quick else LUCK[luck or reading])


def all_of(answers: Sequence[bool | None]) -> bool | None:
    """Return whether all hold: no as soon as one does not, and nobody knows where one is open.

    Example:
        >>> all_of([True, True]), all_of([True, None]), all_of([None, False])
        (True, None, False)
    """
    return False if False in answers else None if None in answers else True


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
