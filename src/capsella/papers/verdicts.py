"""Printed beside found: a verdict for each number, and one for each claim, with what decides it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from capsella.papers.readings import READINGS
from capsella.papers.results import Result
from capsella.papers.targets import Target

WITHIN, ABOVE, BELOW, NOT_RUN, CITED = "within", "above", "below", "not run", "cited only"
VERDICTS = (WITHIN, ABOVE, BELOW, NOT_RUN, CITED)
HOLDS, FAILS, UNDECIDED = "holds", "does not hold", "undecided"

ENOUGH = 3
"""Runs from which on their own spread tells whether a printed number is within it."""


@dataclass(frozen=True)
class Verdict:
    """A printed number and ours.

    Attributes:
        target: the printed number.
        says: one of ``VERDICTS``.
        values: ours, one for each seed, in the target's unit.
        bound: how far off is still within; None where nothing was compared.
        failed: runs that came to no number.
    """

    target: Target
    says: str
    values: tuple[float, ...] = ()
    bound: float | None = None
    failed: int = 0

    @property
    def mean(self) -> float | None:
        """Mean of ours."""
        return statistics.fmean(self.values) if self.values else None

    @property
    def spread(self) -> float | None:
        """Sample standard deviation of ours; None of fewer than two, or where one is infinite."""
        return statistics.stdev(self.values) if len(self.values) > 1 and all(map(math.isfinite, self.values)) else None


def judge(target: Target, values: Sequence[float | None]) -> Verdict:
    """Compare ours with a printed number.

    Within is what lies within the paper's spread, or, of three runs or more, within two standard errors of ours; where there is
    neither, what is the same when rounded as printed. The printed number's rounding is added to every bound.

    Args:
        target: the printed number.
        values: ours, in the target's unit; None of a run that came to no number.
    """
    found = tuple(value for value in values if value is not None)
    if target.cited:
        return Verdict(target, CITED)
    if not found or target.value is None:
        return Verdict(target, NOT_RUN, found, failed=len(values) - len(found))
    verdict = Verdict(target, WITHIN, found, failed=len(values) - len(found))
    bounds = [target.std or 0.0]
    if len(found) >= ENOUGH and verdict.spread is not None:
        bounds.append(2 * verdict.spread / math.sqrt(len(found)))
    bound = max(bounds) + (target.rounding or 0.0)
    off = statistics.fmean(found) - target.value
    # a mean of the very same numbers may be off by the last bit.
    says = WITHIN if abs(off) <= bound * (1 + 1e-9) + 1e-12 else ABOVE if off > 0 else BELOW
    return replace(verdict, says=says, bound=bound)


class Missing(LookupError):
    """A result that a claim needs is not there."""


class Evidence:
    """The results of a paper, by recipe.

    Args:
        results: all of them, of one version of each recipe.

    Attributes:
        is_quick: whether they are the short versions.
    """

    def __init__(self, results: Sequence[Result]) -> None:
        self.is_quick = any(result.quick for result in results)
        self._by_recipe: dict[str, list[Result]] = {}
        for result in sorted(results, key=lambda each: (each.recipe, each.seed)):
            self._by_recipe.setdefault(result.recipe, []).append(result)

    def results(self, recipe: str) -> list[Result]:
        """Return the results of a recipe, by seed; raise ``Missing`` where there is none."""
        found = self._by_recipe.get(recipe)
        if not found:
            raise Missing(recipe)
        return found

    def has(self, recipe: str) -> bool:
        """Tell whether there is a result of a recipe."""
        return recipe in self._by_recipe

    def values(self, recipe: str, reading: str = "final") -> list[float]:
        """Return a figure of each result of a recipe; raise ``Missing`` where one has no such figure, or there is none."""
        found = [READINGS[reading](result) for result in self.results(recipe)]
        if any(value is None for value in found):
            raise Missing(recipe)
        return [value for value in found if value is not None]

    def mean(self, recipe: str, reading: str = "final") -> float:
        """Return the mean of a figure over the seeds."""
        return statistics.fmean(self.values(recipe, reading))


@dataclass(frozen=True)
class Finding:
    """What came of a claim.

    Attributes:
        verdict: ``"holds"``, ``"does not hold"`` or ``"undecided"``.
        statistic: what decides it, in words and numbers.
        seeds: fewest runs of anything that it rests on.
    """

    verdict: str
    statistic: str
    seeds: int = 0


@dataclass(frozen=True)
class Claim:
    """Something that a paper says, or that we ask, and how results decide it.

    Attributes:
        key: ``<paper>/<name>``.
        text: what is claimed, in our words.
        source: where in the paper; ``"ours"`` for a question of our own.
        recipes: that it rests on.
        decide: from the evidence to verdict and statistic; called where there is a result of every recipe, or, if
            ``is_partial``, of one of them.
        is_long: whether it is of whole nets or whole trainings, which short versions are not.
        is_partial: whether it is decided by those of its recipes that have run, one at the least, and says itself when they
            are too few.
    """

    key: str
    text: str
    source: str
    recipes: tuple[str, ...]
    decide: Callable[[Evidence], tuple[bool | None, str]]
    is_long: bool = False
    is_partial: bool = False

    def find(self, evidence: Evidence) -> Finding:
        """Decide it; undecided where a result is missing, or where the statistic says neither."""
        ran = [recipe for recipe in self.recipes if evidence.has(recipe)]
        missing = [recipe for recipe in self.recipes if not evidence.has(recipe)]
        if not ran or (missing and not self.is_partial):
            return Finding(UNDECIDED, f"not run: {_listed(missing)}")
        seeds = min(len(evidence.results(recipe)) for recipe in ran)
        if self.is_long and evidence.is_quick:
            return Finding(UNDECIDED, "short versions, of small nets and few steps, cannot show it", seeds)
        try:
            holds, statistic = self.decide(evidence)
        except Missing as error:
            return Finding(UNDECIDED, f"no figure of {error}", seeds)
        if missing:
            statistic += f"; {len(ran)} of {len(self.recipes)} nets have run"
        return Finding(UNDECIDED if holds is None else HOLDS if holds else FAILS, statistic, seeds)


def _listed(names: Sequence[str], most: int = 3) -> str:
    """Name some of many.

    Example:
        >>> _listed(["a/b/c", "a/b/d"], most=1)
        'b/c and 1 more'
    """
    shown = [name.partition("/")[2] for name in names[:most]]
    more = len(names) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")


Fact = Callable[[Evidence], float | Sequence[float] | None]
"""Works a number out that is not a figure of one recipe: a setting, a size, a figure of several runs, perhaps one a seed."""


def judge_all(
    targets: Mapping[str, Target], reads: Mapping[str, tuple[str, str]], facts: Mapping[str, Fact], evidence: Evidence
) -> list[Verdict]:
    """Return a verdict for every printed number of a paper, in its order.

    Args:
        targets: by key.
        reads: recipe and reading by the target's key.
        facts: by the target's key.
        evidence: the results.
    """
    found = []
    for key, target in targets.items():
        scale = 100.0 if target.unit == "%" else 1.0
        values: list[float | None] = []
        if key in reads and evidence.has(reads[key][0]):
            recipe, reading = reads[key]
            values = [READINGS[reading](result) for result in evidence.results(recipe)]
        elif key in facts:
            try:
                fact = facts[key](evidence)
                values = [] if fact is None else list(fact) if isinstance(fact, Sequence) else [fact]
            except Missing:
                values = []
        found.append(judge(target, [None if value is None else scale * value for value in values]))
    return found
