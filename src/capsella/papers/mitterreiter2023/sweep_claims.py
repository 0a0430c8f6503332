"""What mitterreiter2023 says of all its architectures, decided by the nets of the sweep that have run: one run of each."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping

from capsella.papers.mitterreiter2023.deciding import STATIC, all_layers, has_learned
from capsella.papers.mitterreiter2023.ranks import sign_test, trend
from capsella.papers.mitterreiter2023.sweep import SWEEP, Cell
from capsella.papers.readings import READINGS
from capsella.papers.verdicts import Claim, Evidence

_MOST = 0.9
# from so many nets on, a share of them says something.
_FEW = 6

Points = list[tuple[float, float]]


def cells_of(evidence: Evidence, routing: str) -> list[Cell]:
    """Return the nets of a routing that have run, in the order of the sweep."""
    return [cell for cell in SWEEP if cell.routing == routing and evidence.has(cell.key)]


def figure_of(evidence: Evidence, cell: Cell, reading: str) -> float | None:
    """Return a figure of a net that has run, None where it has no such figure."""
    return READINGS[reading](evidence.results(cell.key)[0])


def of_sizes(evidence: Evidence, routing: str, reading: str) -> Mapping[tuple[int, int], Points]:
    """Return depth and figure of the nets of a routing that have one, by width and dimension."""
    found: dict[tuple[int, int], Points] = {}
    for cell in cells_of(evidence, routing):
        value = figure_of(evidence, cell, reading)
        if value is not None:
            found.setdefault((cell.width, cell.dim), []).append((float(cell.depth), value))
    return found


def _with_depth(evidence: Evidence, reading: str) -> tuple[bool | None, str]:
    """Tell whether a figure rises with depth in nets with agreement of one width and dimension."""
    groups = of_sizes(evidence, "agreement", reading).values()
    found = trend(list(groups))
    means = [f"{statistics.fmean(values):.1%} with {depth:.0f} layers" for depth, values in _ends(groups)]
    return found.rises, f"{found}; in the mean {', '.join(means) or 'nothing'}"


def _ends(groups: Iterable[Points]) -> list[tuple[float, list[float]]]:
    """Return the figures at the least and at the greatest depth."""
    by_depth: dict[float, list[float]] = {}
    for depth, value in (point for group in groups for point in group):
        by_depth.setdefault(depth, []).append(value)
    return [(depth, by_depth[depth]) for depth in sorted({*[min(by_depth)], *[max(by_depth)]})] if by_depth else []


def _deader(evidence: Evidence) -> tuple[bool | None, str]:
    rises, says = _with_depth(evidence, "dead_hidden")
    return rises, f"share of dead hidden capsules against depth: {says}"


def _limited(evidence: Evidence) -> tuple[bool | None, str]:
    rises, says = _with_depth(evidence, "affine")
    return None if rises is None else not rises, f"accuracy on affine digits against depth: {says}"


def pairs_of(evidence: Evidence, *, learned: bool = False) -> Points:
    """Return the accuracies of uniform couplings and of agreement, of nets that are alike otherwise.

    Args:
        evidence: the results.
        learned: only pairs of which both have learned.
    """
    found = []
    for pair in zip(SWEEP[::2], SWEEP[1::2], strict=True):
        if all(evidence.has(cell.key) and (has_learned(evidence, cell.key) or not learned) for cell in pair):
            values = {cell.routing: figure_of(evidence, cell, "affine") for cell in pair}
            one, other = values["uniform"], values["agreement"]
            found += [(one, other)] if one is not None and other is not None else []
    return found


def _uniform(evidence: Evidence, *, learned: bool = False) -> tuple[bool | None, str]:
    pairs = pairs_of(evidence, learned=learned)
    if not pairs:
        return None, "there is no such pair"
    found = sign_test(pairs)
    return found.is_more, f"accuracy on affine digits: {found}, {100 * found.gain:+.1f} points in the mean".replace("-", "−")


def _routed(evidence: Evidence) -> list[list[dict[str, float | None]]]:
    """Return the layers of the nets with agreement that have learned."""
    chosen = [cell.key for cell in cells_of(evidence, "agreement") if has_learned(evidence, cell.key)]
    return [all_layers(evidence, key)[0] for key in chosen]


def _static(evidence: Evidence) -> tuple[bool | None, str]:
    """Look at the routing between hidden layers: out of the second one up to the last but two."""
    means = []
    for layers in _routed(evidence):
        inner = [layer["dys"] for layer in layers[1:-2] if layer["dys"] is not None]
        means += [statistics.fmean(inner)] if inner else []
    below = sum(mean < STATIC for mean in means)
    says = f"{below} of {len(means)} nets that learn have fewer than {STATIC:.0f} live targets between hidden layers"
    return (None if len(means) < _FEW else below >= _MOST * len(means)), says


def _last(evidence: Evidence) -> tuple[bool | None, str]:
    pairs: Points = []
    for layers in _routed(evidence):
        *lower, last = [layer["dyr"] for layer in layers[:-1]]
        known = [rate for rate in lower if rate is not None]
        pairs += [(last, max(known))] if known and last is not None else []
    if not pairs:
        return None, "there is no such net"
    found = sign_test(pairs)
    return found.is_more, f"rate of dynamics of the last routing layer beside the highest below it: {found}"


def _keys(*routings: str) -> tuple[str, ...]:
    return tuple(cell.key for cell in SWEEP if cell.routing in routings)


def _claim(
    name: str,
    text: str,
    source: str,
    decide: Callable[[Evidence], tuple[bool | None, str]],
    *routings: str,
    is_long: bool = False,
) -> Claim:
    keys = _keys(*routings)
    return Claim(f"mitterreiter2023/sweep-{name}", text, source, keys, decide, is_long=is_long, is_partial=True)


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
        lambda evidence: _uniform(evidence, learned=True),
        "agreement",
        "uniform",
    ),
)
