"""Tests for many single runs: does a figure rise along something, and is one of two nets better more often than luck allows."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

SURE = 0.05
"""Where chance alone gives so much or more seldom than this, it is no chance."""

EARLY = 0.01
"""The same at the half of what is to come: both looks together then hardly find more by chance than the last one alone."""


@dataclass(frozen=True)
class Trend:
    """Whether a figure rises within groups of nets that are alike otherwise.

    Attributes:
        tau: Kendall's, over all pairs of one group: 1 where it always rises, −1 where it always falls.
        p: how often chance alone gives at least so much, either way.
        nets: how many.
        sure: below which p it is no chance.
    """

    tau: float
    p: float
    nets: int
    sure: float = SURE

    @property
    def rises(self) -> bool | None:
        """Whether it rises or falls; None where that may be chance."""
        return None if self.p >= self.sure else self.tau > 0

    def __str__(self) -> str:
        return f"Kendall's τ {self.tau:+.2f} over {self.nets} nets, p {_p(self.p)}".replace("-", "−")


def trend(groups: Sequence[Sequence[tuple[float, float]]], sure: float = SURE) -> Trend:
    """Return how figures go with places within groups: Kendall's S, added up over groups, beside its variance under chance.

    It is the Mann-Kendall test over seasons, with its correction for equal figures and for continuity.

    Args:
        groups: of each net its place, which no other of its group has, and its figure.
        sure: below which p it is no chance.

    Example:
        >>> found = trend([[(3, 0.1), (5, 0.4), (8, 0.7)]] * 3)
        >>> found.tau, round(found.p, 3), found.rises
        (1.0, 0.016, True)
        >>> trend([[(3, 0.1), (5, 0.4), (8, 0.7)]]).rises is None
        True
    """
    score, pairs, variance = 0, 0, 0.0
    for group in groups:
        values = [figure for _, figure in sorted(group)]
        score += sum((b > a) - (b < a) for a, b in itertools.combinations(values, 2))
        pairs += math.comb(len(values), 2)
        sizes = [len(values)], [count for count in Counter(values).values() if count > 1]
        whole, ties = (sum(n * (n - 1) * (2 * n + 5) for n in each) for each in sizes)
        variance += (whole - ties) / 18
    nets = sum(map(len, groups))
    if variance == 0:
        return Trend(0.0, 1.0, nets, sure)
    z = max(0, abs(score) - 1) / math.sqrt(variance)
    return Trend(score / pairs, math.erfc(z / math.sqrt(2)), nets, sure)


@dataclass(frozen=True)
class Pairs:
    """How often one of two nets that are alike otherwise has more.

    Attributes:
        more: pairs of which the first has more.
        less: pairs of which it has less; equal ones are left out.
        gain: of the first, mean over all pairs.
        p: how often a fair coin is at least so one-sided, either way.
        sure: below which p it is no chance.
    """

    more: int
    less: int
    gain: float
    p: float
    sure: float = SURE

    @property
    def is_more(self) -> bool | None:
        """Whether the first has more; None where that may be chance."""
        return None if self.p >= self.sure else self.more > self.less

    def __str__(self) -> str:
        return f"more in {self.more} of {self.more + self.less} pairs, sign test p {_p(self.p)}"


def sign_test(pairs: Sequence[tuple[float, float]], sure: float = SURE) -> Pairs:
    """Compare the first with the second of every pair; raise ``ValueError`` where there is none.

    Args:
        pairs: of figures.
        sure: below which p it is no chance.

    Example:
        >>> found = sign_test([(0.9, 0.8)] * 6)
        >>> found.more, round(found.p, 3), found.is_more
        (6, 0.031, True)
    """
    if not pairs:
        raise ValueError("pairs is empty; expected at least one pair")
    more, less = sum(a > b for a, b in pairs), sum(a < b for a, b in pairs)
    gain = sum(a - b for a, b in pairs) / len(pairs)
    return Pairs(more, less, gain, min(1.0, 2 * _tail(max(more, less), more + less, 0.5)), sure)


def is_share(count: int, of: int, share: float, sure: float = SURE) -> bool | None:
    """Tell whether what is drawn has a share at the least; None where a binomial bound excludes neither that nor the opposite.

    Args:
        count: how many of those that were drawn have it.
        of: how many were drawn.
        share: that all of them may have.
        sure: what was drawn must come more seldom than this from the opposite.

    Example:
        >>> is_share(29, 29, 0.9), is_share(28, 28, 0.9), is_share(3, 6, 0.9)
        (True, None, False)
    """
    if _tail(count, of, share) < sure:
        return True
    return False if _tail(of - count, of, 1 - share) < sure else None


def _tail(least: int, n: int, share: float) -> float:
    """Return how often at least so many of n come out, each with the same chance."""
    return sum(math.comb(n, k) * share**k * (1 - share) ** (n - k) for k in range(least, n + 1))


def _p(value: float) -> str:
    return "< 0.001" if value < 0.001 else f"{value:.3f}"
