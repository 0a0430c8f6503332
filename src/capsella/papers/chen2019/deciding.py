"""What chen2019's claims are decided with; differences beside their noise are yang2021's."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence

from capsella.papers.readings import READINGS, dig, measured
from capsella.papers.verdicts import ENOUGH, Claim, Evidence, Missing
from capsella.papers.yang2021.deciding import Difference, all_of, lower

Decide = Callable[[Evidence], tuple[bool | None, str]]
Pair = tuple[str, str, str]
"""A name, the row whose figure should be lower, and the other."""

GENERATED = "chen2019.generated"
# of errors on the images of one AC-GAN: what two nets may differ by, 20 of its 4,000 images.
ONE_PAIR = 0.005


def seen(evidence: Evidence, row: str, *keys: str | int) -> list[float]:
    """Return a figure of a measure from every run of a row; raise ``Missing`` where one has none."""
    read = measured(*keys)
    found = [read(result) for result in evidence.results(row)]
    known = [value for value in found if value is not None]
    if len(known) < len(found):
        raise Missing(row)
    return known


def mean_seen(evidence: Evidence, row: str, *keys: str | int) -> float:
    """Return the mean of ``seen``."""
    return statistics.fmean(seen(evidence, row, *keys))


def listed(values: Mapping[str, float], form: str = ".2%") -> str:
    """Write figures with their names.

    Example:
        >>> listed({"CNN": 0.1, "CapsNet": 0.25}, ".0%")
        'CNN 10%, CapsNet 25%'
    """
    return ", ".join(f"{name} {format(value, form).replace('-', '−')}" for name, value in values.items())


def all_lower(pairs: Sequence[Pair], data: str, *, reading: str = "error") -> Decide:
    """Return what holds where each figure is lower than the other of its pair."""

    def decide(evidence: Evidence) -> tuple[bool | None, str]:
        found = {name: lower(evidence, one, other, reading, data) for name, one, other in pairs}
        says = ", ".join(f"{name} {difference}" for name, difference in found.items())
        return all_of([each.is_lower for each in found.values()]), f"points of error beside the other: {says}"

    return decide


def paired(evidence: Evidence, one: str, other: str, reading: str) -> Difference:
    """Compare a figure of two recipes seed by seed, where runs of one seed saw the same images; raise ``Missing`` where not.

    The noise is two standard errors of the mean difference where both have three runs of the same seeds.
    """
    by_seed = [{result.seed: result for result in evidence.results(row)} for row in (one, other)]
    pairs = [tuple(results[seed] for results in by_seed) for seed in sorted(by_seed[0].keys() & by_seed[1].keys())]
    for pair in pairs:
        digests = {dig(result.measured, GENERATED, "digest") for result in pair}
        if len(digests) > 1 or None in digests:
            raise Missing(f"{one} on the images of {other}, seed {pair[0].seed}")
    read = [tuple(READINGS[reading](result) for result in pair) for pair in pairs]
    gains = [second - first for first, second in read if first is not None and second is not None]
    if len(gains) < len(pairs) or not gains:
        raise Missing(one)
    return mean_of(gains, ONE_PAIR)


def mean_of(gains: Sequence[float], alone: float) -> Difference:
    """Return a mean with two standard errors of it, or with ``alone`` where there are fewer than three."""
    enough = len(gains) >= ENOUGH
    return Difference(statistics.fmean(gains), 2 * statistics.stdev(gains) / math.sqrt(len(gains)) if enough else alone)


def any_of(answers: Sequence[bool | None]) -> bool | None:
    """Return whether one holds and none does not; nobody knows where all are open.

    Example:
        >>> any_of([True, None]), any_of([True, False]), any_of([None, None])
        (True, False, None)
    """
    return False if False in answers else True if True in answers else None


def both(*decides: Decide) -> Decide:
    """Return what holds where all of some do."""

    def decide(evidence: Evidence) -> tuple[bool | None, str]:
        found = [each(evidence) for each in decides]
        return all_of([answer for answer, _ in found]), "; ".join(says for _, says in found)

    return decide


def claim(key: str, text: str, source: str, rows: tuple[str, ...], decide: Decide, *, is_long: bool = False) -> Claim:
    """Return a claim of this paper."""
    return Claim(f"chen2019/{key}", text, source, rows, decide, is_long)


def lower_claim(
    key: str, text: str, source: str, pairs: Sequence[Pair], data: str, *, reading: str = "error", is_long: bool = False
) -> Claim:
    """Return the claim that each figure is lower than the other of its pair."""
    return claim(key, text, source, rows_of(pairs), all_lower(pairs, data, reading=reading), is_long=is_long)


def rows_of(pairs: Sequence[Pair]) -> tuple[str, ...]:
    """Return the rows of some pairs, each once."""
    return tuple(dict.fromkeys(row for _, *two in pairs for row in two))
