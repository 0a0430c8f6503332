"""What gu2021 says of representations, decided by records: compactness, responses to single values, the decoder's map."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from capsella.papers.deciding import all_of
from capsella.papers.gu2021.compact import CONVENTIONS, Convention, score
from capsella.papers.gu2021.deciding import Difference, compared, values_of
from capsella.papers.gu2021.nets import FACTORS, SETS, TABLE5, compact
from capsella.papers.readings import dig, measured
from capsella.papers.results import Result
from capsella.papers.targets import read_targets
from capsella.papers.verdicts import Claim, Evidence

# of six factors: in how many a net must be the more compact one.
_MOST = 5
# of CapsNet's response to ±0.2: what is "almost unchanged".
_STAYS = 1 / 3
# of scores and responses: what single runs may differ by.
_LUCK = 0.1
# of cosines between what the decoder sees of two classes: from where on these are entangled, and what is rounding.
_ENTANGLED, _APART = 0.1, 1e-6


def scores(evidence: Evidence, data: str, convention: Convention) -> dict[str, dict[str, float]]:
    """Return the scores of Table 5's nets by factor and net, means over runs; raise ``Missing`` where no run has one."""
    return {
        factor: {row: statistics.fmean(_scores_of(evidence, compact(data, row), factor, convention)) for row in TABLE5}
        for factor in FACTORS
    }


def _scores_of(evidence: Evidence, key: str, factor: str, convention: Convention) -> list[float]:
    def read(result: Result) -> float | None:
        part = dig(result.measured, "gu2021.compactness", factor)
        return None if part is None else score(part, convention)

    return values_of(evidence, key, read)


def more(one: Sequence[float], other: Sequence[float], *, times: float = 1.0) -> Difference:
    """Compare figures of runs that have no unit: single runs may differ by a tenth of the higher."""
    highest = max(statistics.fmean(one), times * statistics.fmean(other))
    return compared(one, other, luck=_LUCK * highest, times=times)


def printed_scores() -> dict[str, dict[str, float]]:
    """Return the printed scores by factor and net."""
    targets = read_targets("gu2021")
    return {
        factor: {row: float(targets[f"table5/{row}-{printed}"].value or 0.0) for row in TABLE5}
        for factor, printed in FACTORS.items()
    }


def order(values: dict[str, float]) -> tuple[str, ...]:
    """Return the names from the highest value to the lowest.

    Example:
        >>> order({"a": 1.0, "b": 2.0})
        ('b', 'a')
    """
    return tuple(sorted(values, key=lambda name: -values[name]))


def agreeing(one: dict[str, float], other: dict[str, float]) -> float:
    """Return the share of pairs of names that two sets of values put in the same order.

    Example:
        >>> agreeing({"a": 1, "b": 2, "c": 3}, {"a": 1, "b": 3, "c": 2})
        0.6666666666666666
    """
    names = list(one)
    pairs = [(a, b) for k, a in enumerate(names) for b in names[k + 1 :]]
    return statistics.fmean((one[a] > one[b]) == (other[a] > other[b]) for a, b in pairs)


def _more_claim(
    key: str, text: str, high: str, low: str, data: str, source: str, convention: Convention | None = None
) -> Claim:
    """One net is more compact than another in most factors."""
    chosen = convention or Convention()

    def decide(evidence: Evidence) -> tuple[bool | None, str]:
        found = scores(evidence, data, chosen)
        answers = [
            more(*(_scores_of(evidence, compact(data, row), factor, chosen) for row in (high, low))).is_higher
            for factor in FACTORS
        ]
        surely, perhaps = answers.count(True), answers.count(None)
        holds = True if surely >= _MOST else None if surely + perhaps >= _MOST else False
        listed = ", ".join(f"{FACTORS[factor]} {values[high]:.3g} and {values[low]:.3g}" for factor, values in found.items())
        open_too = f", in {perhaps} within noise" if perhaps else ""
        names = f"{TABLE5[high].label} and {TABLE5[low].label}"
        return holds, f"in {surely} of {len(found)} factors{open_too}; {names}: {listed}"

    where = f" on {SETS[data][0]}" if data != "mnist" else ""
    if chosen.reduction == "mean":
        key, where = f"{key}-by-mean", f"{where}, by the mean over the values of a vector in place of the sum"
    if chosen.vector == "sixteens":
        key, where = f"{key}-by-sixteens", f"{where}, ConvNet-R's values being scored by sixteens like the other's"
    on_top = f" (here: in {_MOST} of six factors at least)."
    rows = (compact(data, high), compact(data, low))
    return Claim(f"gu2021/{key}{'' if data == 'mnist' else '-fashion'}", text + where + on_top, source, rows, decide)


def _best_agreement(evidence: Evidence) -> tuple[bool | None, str]:
    printed = printed_scores()
    shares = {}
    for convention in CONVENTIONS:
        found = scores(evidence, "mnist", convention)
        shares[convention] = statistics.fmean(agreeing(found[factor], printed[factor]) for factor in FACTORS)
    best, worst = max(shares, key=lambda each: shares[each]), min(shares, key=lambda each: shares[each])
    says = (
        f"pairs of nets in the printed order: {shares[best]:.0%} by the convention that agrees best ({best}), "
        f"{shares[worst]:.0%} by the worst ({worst})"
    )
    return shares[best] == 1, says


def _same_order(evidence: Evidence) -> tuple[bool | None, str]:
    found = {convention: scores(evidence, "mnist", convention) for convention in CONVENTIONS}
    alike = [len({order(values[factor]) for values in found.values()}) == 1 for factor in FACTORS]
    first = found[Convention()]
    listed = ", ".join(
        f"{FACTORS[factor]} {' > '.join(TABLE5[row].label for row in order(first[factor]))}" for factor in FACTORS
    )
    says = f"the same in all {len(CONVENTIONS)} conventions for {sum(alike)} of {len(alike)} factors; forward, summed: {listed}"
    return all(alike), says


def response(evidence: Evidence, row: str, size: str) -> list[float]:
    """Return how much the drawing changes with a single value, mean over values, of every run."""

    def read(result: Result) -> float | None:
        found = dig(result.measured, "gu2021.perturbed", "response", size)
        return statistics.fmean(found) if found else None

    return values_of(evidence, compact("mnist", row), read)


def _unchanged(evidence: Evidence) -> tuple[bool | None, str]:
    found = {row: response(evidence, row, "0.2") for row in ("convnet-r", "convnet-cr", "capsnet")}
    listed = ", ".join(f"{TABLE5[row].label} {statistics.fmean(values):.4f}" for row, values in found.items())
    too_much = [more(found[row], found["capsnet"], times=_STAYS).is_higher for row in ("convnet-r", "convnet-cr")]
    return all_of(
        [None if each is None else not each for each in too_much]
    ), f"mean change of a pixel, values moved by 0.2: {listed}"


def _response_claim(key: str, text: str, high: str, low: str, size: str, source: str) -> Claim:
    def decide(evidence: Evidence) -> tuple[bool | None, str]:
        found = [response(evidence, row, size) for row in (high, low)]
        one, other = map(statistics.fmean, found)
        by = "twice their deviation" if size == "own" else size
        says = f"mean change of a pixel, values moved by {by}: {TABLE5[high].label} {one:.4f}, {TABLE5[low].label} {other:.4f}"
        return more(*found).is_higher, says

    return Claim(f"gu2021/{key}", text, source, (compact("mnist", high), compact("mnist", low)), decide)


def _angles(evidence: Evidence, row: str, part: str) -> list[float]:
    return values_of(evidence, compact("mnist", row), measured("gu2021.mapped", part))


def _entangled(evidence: Evidence) -> tuple[bool | None, str]:
    found = {row: _angles(evidence, row, "across") for row in TABLE5}
    across = {row: statistics.fmean(values) for row, values in found.items()}
    unmasked = more(found["convnet-r"], [_ENTANGLED] * len(found["convnet-r"])).is_higher
    listed = ", ".join(f"{TABLE5[row].label} {value:.3f}" for row, value in across.items())
    masked = max(value for row, value in across.items() if row != "convnet-r")
    # a mask leaves nothing of the other classes, whatever the run.
    return all_of([unmasked, masked <= _APART]), f"mean cosine between two classes: {listed}"


def _inside(evidence: Evidence) -> tuple[bool | None, str]:
    longest = {row: max(_angles(evidence, row, "longest")) for row in TABLE5}
    listed = ", ".join(f"{TABLE5[row].label} {value:.2f}" for row, value in longest.items())
    squashed = max(longest["convnet-cr-sf"], longest["capsnet"])
    return squashed <= 1 < min(longest["convnet-r"], longest["convnet-cr"]), f"longest vector that the decoder sees: {listed}"


_ALL = tuple(compact("mnist", row) for row in TABLE5)
_ORDERS = (
    ("mask-compact", "A mask of the reconstruction makes representations more compact", "convnet-cr", "convnet-r"),
    ("squash-compact", "The squash makes representations more compact", "convnet-cr-sf", "convnet-cr"),
    ("routing-compact", "Dynamic routing makes representations less compact", "convnet-cr-sf", "capsnet"),
)

COMPACT_CLAIMS = (
    *(_more_claim(*each, "mnist", "section 3.3, Table 5") for each in _ORDERS),
    Claim(
        "gu2021/unchanged",
        f"Moved by 0.2, a single value of a ConvNet changes next to nothing of the drawing (here: {_STAYS:.0%} of CapsNet's).",
        "section 3.3, Figure 4",
        (compact("mnist", "convnet-r"), compact("mnist", "convnet-cr"), compact("mnist", "capsnet")),
        _unchanged,
    ),
    _response_claim(
        "mask-responds",
        "With a mask the drawing changes more with a single value.",
        "convnet-cr",
        "convnet-r",
        "8",
        "section 3.3, Figure 4",
    ),
    _response_claim(
        "squash-responds",
        "With a squash the drawing changes more with a single value.",
        "convnet-cr-sf",
        "convnet-cr",
        "0.2",
        "section 3.3, Figure 4",
    ),
    Claim(
        "gu2021/entangled",
        "Without a mask the representations of classes are entangled, with one they are apart "
        f"(here: a mean cosine over {_ENTANGLED} between two classes).",
        "section 3.3, Figure 5",
        _ALL,
        _entangled,
    ),
    Claim(
        "gu2021/manifold",
        "The squash keeps representations within a bounded set (here: no vector is longer than 1, as some of the others are).",
        "section 3.3, Figure 5",
        _ALL,
        _inside,
    ),
)

OWN_COMPACT_CLAIMS = (
    *(_more_claim(*each, "fashion", "ours") for each in _ORDERS),
    # the only one of the three that compares vectors of different lengths.
    *(
        _more_claim(*_ORDERS[0], "mnist", "ours", convention)
        for convention in (Convention(reduction="mean"), Convention(vector="sixteens"))
    ),
    Claim(
        "gu2021/printed-order",
        "There is a convention by which the nets stand in the printed order in every factor.",
        "ours",
        _ALL,
        _best_agreement,
    ),
    Claim(
        "gu2021/conventions",
        "The order of the nets does not hang on the convention.",
        "ours",
        _ALL,
        _same_order,
    ),
    _response_claim(
        "mask-responds-alike",
        "Moved by twice their own deviation, values respond more with a mask, too.",
        "convnet-cr",
        "convnet-r",
        "own",
        "ours",
    ),
    _response_claim(
        "squash-responds-alike",
        "Moved by twice their own deviation, values respond more with a squash, too.",
        "convnet-cr-sf",
        "convnet-cr",
        "own",
        "ours",
    ),
)
