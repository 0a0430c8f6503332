"""What mitterreiter2023 says of all its architectures, decided by nets of the sweep: one run of each.

What is tested anew after every net is found by chance sooner or later: there are two looks, at the first half and at the end.
"""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from capsella.papers.mitterreiter2023.deciding import STATIC, has_learned, mean_known
from capsella.papers.mitterreiter2023.ranks import EARLY, SURE, is_share, sign_test, trend
from capsella.papers.mitterreiter2023.sweep import SWEEP, Cell, is_quick
from capsella.papers.readings import READINGS, dig, examined
from capsella.papers.results import Result
from capsella.papers.verdicts import Claim, Evidence

_MOST = 0.9
# so many nets that learn are what the sweep has to say of a share; fewer are a sample.
_ENOUGH = 20

Points = list[tuple[float, float]]


@dataclass(frozen=True)
class Look:
    """What claims on the sweep are tested on.

    Attributes:
        cells: the nets, in the order of the sweep.
        sure: below which p it is no chance; 0 where too few have run.
        is_last: whether they are all that are to run.
    """

    cells: tuple[Cell, ...]
    sure: float
    is_last: bool = False

    def __str__(self) -> str:
        if self.is_last:
            return ""
        return f"{f'; of the first {len(self.cells)} nets' if self.sure else ''}; tested at the half and at the end"


def look_at(evidence: Evidence, *routings: str) -> Look:
    """Return all nets of some routings once they have run, before that the first half of their pairs once these have.

    Before that it is those that have run, which decide nothing.
    """
    cells = [cell for cell in SWEEP if cell.routing in routings and (is_quick(cell) or not evidence.is_quick)]
    half = len(cells) // len(routings) // 2 * len(routings)
    ran = tuple(cell for cell in cells if evidence.has(cell.key))
    if len(ran) == len(cells):
        return Look(ran, SURE, is_last=True)
    return Look(ran[:half], EARLY) if ran[:half] == tuple(cells[:half]) else Look(ran, 0.0)


def cells_of(evidence: Evidence, routing: str) -> list[Cell]:
    """Return the nets of a routing that have run, in the order of the sweep."""
    return [cell for cell in SWEEP if cell.routing == routing and evidence.has(cell.key)]


def figure_of(evidence: Evidence, cell: Cell, reading: str) -> float | None:
    """Return a figure of a net that has run, mean over its runs, None where it has no such figure.

    A run that came to no number is right on no image; other figures it has none.
    """
    return mean_known([_figure(result, reading) for result in evidence.results(cell.key)])


def _figure(result: Result, reading: str) -> float | None:
    if has_diverged(result):
        return 0.0 if reading == "affine" else None
    return READINGS[reading](result)


def has_diverged(result: Result) -> bool:
    """Tell whether a run of the sweep came to no number, while it learned or where it was examined."""
    return result.status == "non-finite" or bool(dig(result.measured, "mitterreiter2023.look", "non_finite"))


def _diverged(evidence: Evidence, cells: Iterable[Cell], but: str) -> str:
    """Say of how many nets a run came to no number, and what becomes of them."""
    count = sum(any(map(has_diverged, evidence.results(cell.key))) for cell in cells)
    return f"; came to no number, and {but}: {count}" if count else ""


def _learned(evidence: Evidence, cell: Cell) -> bool:
    return has_learned(evidence, cell.key) and not any(map(has_diverged, evidence.results(cell.key)))


def of_sizes(evidence: Evidence, cells: Iterable[Cell], reading: str) -> Mapping[tuple[int, int], Points]:
    """Return depth and figure of the nets that have one, by width and dimension."""
    found: dict[tuple[int, int], Points] = {}
    for cell in cells:
        value = figure_of(evidence, cell, reading)
        if value is not None:
            found.setdefault((cell.width, cell.dim), []).append((float(cell.depth), value))
    return found


def _with_depth(evidence: Evidence, look: Look, reading: str) -> tuple[bool | None, str]:
    """Tell whether a figure rises with depth in nets of one width and dimension."""
    groups = of_sizes(evidence, look.cells, reading).values()
    found = trend(list(groups), look.sure)
    means = [f"{statistics.fmean(values):.1%} with {depth:.0f} layers" for depth, values in _ends(groups)]
    return found.rises, f"{found}; in the mean {', '.join(means) or 'nothing'}"


def _ends(groups: Iterable[Points]) -> list[tuple[float, list[float]]]:
    """Return the figures at the least and at the greatest depth."""
    by_depth: dict[float, list[float]] = {}
    for depth, value in (point for group in groups for point in group):
        by_depth.setdefault(depth, []).append(value)
    return [(depth, by_depth[depth]) for depth in sorted({*[min(by_depth)], *[max(by_depth)]})] if by_depth else []


def _deader(evidence: Evidence, look: Look) -> tuple[bool | None, str]:
    rises, says = _with_depth(evidence, look, "dead_hidden")
    return rises, f"share of dead hidden capsules against depth: {says}{_diverged(evidence, look.cells, 'left out')}"


def _limited(evidence: Evidence, look: Look) -> tuple[bool | None, str]:
    rises, says = _with_depth(evidence, look, "affine")
    says = f"accuracy on affine digits against depth: {says}{_diverged(evidence, look.cells, _COUNTED)}"
    return None if rises is None else not rises, says


_COUNTED = "counted as right on no image"


def pairs_of(evidence: Evidence, cells: Sequence[Cell], *, learned: bool = False) -> Points:
    """Return the accuracies of uniform couplings and of agreement, of nets that are alike otherwise.

    Args:
        evidence: the results.
        cells: that have run.
        learned: only pairs of which both have learned.
    """
    found, ran = [], set(cells)
    for pair in zip(SWEEP[::2], SWEEP[1::2], strict=True):
        if all(cell in ran and (_learned(evidence, cell) or not learned) for cell in pair):
            values = {cell.routing: figure_of(evidence, cell, "affine") for cell in pair}
            one, other = values["uniform"], values["agreement"]
            found += [(one, other)] if one is not None and other is not None else []
    return found


def _uniform(evidence: Evidence, look: Look, *, learned: bool = False) -> tuple[bool | None, str]:
    pairs = pairs_of(evidence, look.cells, learned=learned)
    if not pairs:
        return None, "there is no such pair"
    found = sign_test(pairs, look.sure)
    says = f"accuracy on affine digits: {found}, {100 * found.gain:+.1f} points in the mean".replace("-", "−")
    return found.is_more, says + ("" if learned else _diverged(evidence, look.cells, _COUNTED))


def _routed(evidence: Evidence, look: Look, figure: str) -> tuple[list[list[float | None]], str]:
    """Return a figure of every layer of the nets that have learned, mean over their runs, and how many have none in words."""
    chosen = [cell.key for cell in look.cells if has_learned(evidence, cell.key)]
    runs = [[layers for result in evidence.results(key) if (layers := _layers(result))] for key in chosen]
    found = [[mean_known([layer[figure] for layer in place]) for place in zip(*each, strict=True)] for each in runs if each]
    lost = len(runs) - len(found)
    return found, f"; without a figure: {lost}" if lost else ""


def _layers(result: Result) -> list[dict[str, Any]] | None:
    found: list[dict[str, Any]] | None = dig(examined(result), "layers")
    return found


def _static(evidence: Evidence, look: Look) -> tuple[bool | None, str]:
    """Look at the routing between hidden layers: out of the second one up to the last but two.

    At the end it is said of the nets that there are; before, or of few, a bound has to exclude the opposite.
    """
    layers, lost = _routed(evidence, look, "dys")
    means = [mean for each in layers if (mean := mean_known(each[1:-2])) is not None]
    below = sum(mean < STATIC for mean in means)
    says = f"{below} of {len(means)} nets that learn have fewer than {STATIC:.0f} live targets between hidden layers{lost}"
    if not look.is_last or len(means) < _ENOUGH:
        return is_share(below, len(means), _MOST, look.sure), says
    return below >= _MOST * len(means), says


def _last(evidence: Evidence, look: Look) -> tuple[bool | None, str]:
    layers, lost = _routed(evidence, look, "dyr")
    pairs: Points = []
    for *lower, last, _ in layers:
        known = [rate for rate in lower if rate is not None]
        pairs += [(last, max(known))] if known and last is not None else []
    if not pairs:
        return None, f"there is no such net{lost}"
    found = sign_test(pairs, look.sure)
    return found.is_more, f"rate of dynamics of the last routing layer beside the highest below it: {found}{lost}"


def _keys(*routings: str) -> tuple[str, ...]:
    return tuple(cell.key for cell in SWEEP if cell.routing in routings)


def _claim(
    name: str,
    text: str,
    source: str,
    decide: Callable[[Evidence, Look], tuple[bool | None, str]],
    *routings: str,
    is_long: bool = False,
) -> Claim:
    def decided(evidence: Evidence) -> tuple[bool | None, str]:
        look = look_at(evidence, *routings)
        holds, says = decide(evidence, look)
        return holds, f"{says}{look}"

    keys = _keys(*routings)
    return Claim(f"mitterreiter2023/sweep-{name}", text, source, keys, decided, is_long=is_long, is_partial=True)


SWEEP_CLAIMS = (
    _claim(
        "deader",
        "Over the sweep, deeper nets have a larger share of dead hidden capsules.",
        "section 4.3",
        _deader,
        "agreement",
    ),
    _claim(
        "limited",
        "Over the sweep, the depth of a net is limited: deeper ones are less accurate.",
        "section 4.3",
        _limited,
        "agreement",
    ),
    _claim(
        "static",
        f"In nets of every size routing between hidden layers is almost static (here: in {_MOST:.0%} of those that learn).",
        "section 4.1",
        _static,
        "agreement",
        is_long=True,
    ),
    _claim(
        "last-most",
        "Over the sweep, the last routing layer is the most dynamic one.",
        "section 4.1",
        _last,
        "agreement",
        is_long=True,
    ),
    _claim(
        "uniform",
        "Over the sweep, nets with uniform couplings classify affine digits better than those with agreement.",
        "section 4.3",
        _uniform,
        "agreement",
        "uniform",
    ),
)
SWEEP_QUESTIONS = (
    _claim(
        "uniform-learned",
        "Over the sweep, nets with uniform couplings classify affine digits better where nets of both routings learn at all.",
        "ours",
        functools.partial(_uniform, learned=True),
        "agreement",
        "uniform",
    ),
)
