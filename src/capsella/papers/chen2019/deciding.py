"""What chen2019's claims are decided with; differences beside their noise are yang2021's."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence

from capsella.papers.deciding import all_of
from capsella.papers.readings import READINGS, dig, measured
from capsella.papers.results import Result
from capsella.papers.verdicts import ENOUGH, Claim, Evidence, Missing
from capsella.papers.yang2021.deciding import LUCK, SHORT_LUCK, Difference

Decide = Callable[[Evidence], tuple[bool | None, str]]
Pair = tuple[str, str, str]
"""A name, the row whose figure should be lower, and the other."""

GENERATED = "chen2019.generated"
# of errors on the images of one AC-GAN: what two nets may differ by, 20 of its 4,000 images.
ONE_PAIR = 0.005

GUESSED = 0.9
"""The error of a net that guesses one of ten classes."""


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


def apart(values: Sequence[float], others: Sequence[float], alone: float) -> Difference:
    """Compare the means of two rows.

    The noise is two standard errors of the difference where both have three runs; where one has, its runs' spread is taken for
    that of both; else it is ``alone``.
    """
    gain = statistics.fmean(others) - statistics.fmean(values)
    known = [each for each in (values, others) if len(each) >= ENOUGH]
    if not known:
        return Difference(gain, alone)
    spreads = [statistics.stdev(each if len(each) >= ENOUGH else known[0]) for each in (values, others)]
    errors = (spread / math.sqrt(len(each)) for spread, each in zip(spreads, (values, others), strict=True))
    return Difference(gain, 2 * math.hypot(*errors))


def beyond(difference: Difference, bound: float) -> bool | None:
    """Return whether a gain is larger than a bound; None where that may be luck.

    Example:
        >>> beyond(Difference(0.3, 0.1), 0.1), beyond(Difference(0.3, 0.1), 0.25), beyond(Difference(0.3, 0.1), 0.5)
        (True, None, False)
    """
    return Difference(difference.gain - bound, difference.noise).is_lower


def within(difference: Difference, bound: float) -> bool | None:
    """Return whether two figures lie no further apart than a bound; None where that may be luck.

    Example:
        >>> within(Difference(-0.3, 0.1), 0.1), within(Difference(-0.3, 0.1), 0.25), within(Difference(-0.3, 0.1), 0.5)
        (False, None, True)
    """
    return negated(beyond(Difference(abs(difference.gain), difference.noise), bound))


def negated(answer: bool | None) -> bool | None:
    """Return the opposite of an answer, and None of none."""
    return None if answer is None else not answer


def lower(evidence: Evidence, one: str, other: str, reading: str, data: str, *, guesses: bool = False) -> Difference:
    """Compare a figure of two recipes; what single runs may differ by is yang2021's.

    Args:
        evidence: the results.
        one: whose figure should be lower.
        other: the other.
        reading: which figure.
        data: of ``SETS``.
        guesses: count a run that diverged as one that guesses; else there is no figure where one did.
    """
    values, others = (_counted(evidence, key, reading) if guesses else evidence.values(key, reading) for key in (one, other))
    return apart(values, others, SHORT_LUCK if evidence.is_quick else LUCK[data])


def _counted(evidence: Evidence, row: str, reading: str) -> list[float]:
    found = [GUESSED if _diverged(result) else READINGS[reading](result) for result in evidence.results(row)]
    known = [value for value in found if value is not None]
    if len(known) < len(found):
        raise Missing(row)
    return known


def _diverged(result: Result) -> bool:
    return result.status == "non-finite"


def all_lower(pairs: Sequence[Pair], data: str, *, reading: str = "error", guesses: bool = False) -> Decide:
    """Return what holds where each figure is lower than the other of its pair."""

    def decide(evidence: Evidence) -> tuple[bool | None, str]:
        found = {name: lower(evidence, one, other, reading, data, guesses=guesses) for name, one, other in pairs}
        says = ", ".join(f"{name} {difference}" for name, difference in found.items())
        lost = [row for row in rows_of(pairs) if any(map(_diverged, evidence.results(row)))]
        more = f"; diverged, and counted as guessing: {', '.join(row.partition('/')[2] for row in lost)}" if lost else ""
        return all_of([each.is_lower for each in found.values()]), f"points of error beside the other: {says}{more}"

    return decide


def paired(evidence: Evidence, one: str, other: str, reading: str, alone: float = ONE_PAIR) -> Difference:
    """Compare a figure of two recipes seed by seed, where runs of one seed saw the same images; raise ``Missing`` where not.

    The noise is two standard errors of the mean difference where both have three runs of the same seeds, else ``alone``.
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
    return mean_of(gains, alone)


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
    key: str,
    text: str,
    source: str,
    pairs: Sequence[Pair],
    data: str,
    *,
    reading: str = "error",
    guesses: bool = False,
    is_long: bool = False,
) -> Claim:
    """Return the claim that each figure is lower than the other of its pair."""
    decide = all_lower(pairs, data, reading=reading, guesses=guesses)
    return claim(key, text, source, rows_of(pairs), decide, is_long=is_long)


def rows_of(pairs: Sequence[Pair]) -> tuple[str, ...]:
    """Return the rows of some pairs, each once."""
    return tuple(dict.fromkeys(row for _, *two in pairs for row in two))
