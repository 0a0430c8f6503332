"""What yang2021 assumes of dynamic routing and of its own couplings, decided by what was measured on the nets."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from capsella.papers.deciding import all_of, span_of
from capsella.papers.readings import dig, measured
from capsella.papers.verdicts import Claim, Evidence, Missing
from capsella.papers.yang2021.early import early_error
from capsella.papers.yang2021.nets import SETS, cell, pairs

# of the couplings: from where on some are negative; how many are gone where they are sparse, and how many more than under L2.
_SOME, _SPARSE, _SPARSER = 0.01, 0.1, 0.05
# of the accuracy: what clamping must cost for negative couplings to matter.
_COSTS = 0.001
# of the images, in the mean over the first epoch: from where on the longest capsule is often wrong.
_OFTEN = 0.05
# of early errors: what two trainings of one net may differ by.
_LUCK = 0.01
# of scores: more than rounding.
_SAME = 1e-4

_FASHION = tuple(cell("fashion", method, decoder=decoder) for decoder in (True, False) for method in ("l2", "l1"))
_CIFAR = tuple(cell("cifar10", method, decoder=False) for method in ("l2", "l1"))
_PAIRS = (pairs("l2"), pairs("l1"))
_CLIMBING: dict[str, dict[str, tuple[str, ...]]] = {
    "": {SETS["fashion"]: _FASHION, "MultiMNIST": _PAIRS},
    "-cifar": {SETS["cifar10"]: _CIFAR},
}
_MOVED = (*_FASHION, *_PAIRS)
_MNIST = tuple(cell("mnist", method, decoder=decoder) for decoder in (True, False) for method in ("l2", "l1"))
_AGREEING = {"": ("mnist", "fashion"), "-cifar": ("cifar10",)}


def _figures(evidence: Evidence, rows: Sequence[str], part: str) -> list[float]:
    """Return a figure of the couplings of all runs; raise ``Missing`` where one has none."""
    found = []
    for row in rows:
        for result in evidence.results(row):
            value = measured("yang2021.couplings", part)(result)
            if value is None:
                raise Missing(row)
            found.append(value)
    return found


def _has_use(evidence: Evidence, rows: Sequence[str]) -> tuple[bool, str]:
    negative = _figures(evidence, rows, "negative")
    before, after = _figures(evidence, rows, "accuracy"), _figures(evidence, rows, "clamped")
    costs = [own - clamped for own, clamped in zip(before, after, strict=True)]
    says = (
        f"{span_of(negative)} of the couplings are negative, {statistics.fmean(negative):.1%} in the mean; without them "
        f"{span_of([100 * cost for cost in costs], '.2f')} points of accuracy are lost, "
        f"{100 * statistics.fmean(costs):.2f} in the mean".replace("-", "−")
    )
    return statistics.fmean(negative) >= _SOME and statistics.fmean(costs) > _COSTS, says


def _negative_claim(suffix: str) -> Claim:
    sets = _CLIMBING[suffix]

    def decide(evidence: Evidence) -> tuple[bool | None, str]:
        found = {name: _has_use(evidence, rows) for name, rows in sets.items()}
        return all_of([each for each, _ in found.values()]), ". ".join(f"{name}: {says}" for name, (_, says) in found.items())

    return Claim(
        f"yang2021/assumption1{suffix}",
        f"On {' and on '.join(sets)} capsules have use for negative couplings, which DR has not: "
        f"{_SOME:.0%} are negative, and without them over {100 * _COSTS:.1f} points are lost.",
        "section III-A, assumption 1",
        tuple(row for rows in sets.values() for row in rows),
        decide,
        # couplings start at 1 and move at a fifth of the weights' rate.
        is_long=True,
    )


def _reach(evidence: Evidence) -> tuple[bool | None, str]:
    reach, negative = _figures(evidence, _MNIST, "reach"), _figures(evidence, _MNIST, "negative")
    lowest = _figures(evidence, _MNIST, "lowest")
    says = (
        f"rates of a training add up to {span_of(reach, '.2f')}, from a start at 1; the lowest coupling is "
        f"{min(lowest):.2f}, and {span_of(negative)} are negative".replace("-", "−")
    )
    return max(negative) == 0, says


def _signs(evidence: Evidence) -> tuple[bool | None, str]:
    moved, negative = (_figures(evidence, _MOVED, part) for part in ("moved_signs", "negative"))
    if not max(negative):
        return None, "no coupling is negative: there is no sign to move"
    return max(moved) < _SAME, f"scores change by at most {max(moved):.1g} where the weights take the couplings' signs"


def _near_zero(evidence: Evidence, rows: Sequence[str]) -> dict[str, list[float]]:
    """Return the shares of couplings next to nothing, of all runs by penalty."""
    of = {norm: [row for row in rows if f"-{norm}" in row or row.endswith(f"/{norm}")] for norm in ("l2", "l1")}
    return {norm: _figures(evidence, some, "near_zero") for norm, some in of.items()}


def _sparse(evidence: Evidence) -> tuple[bool | None, str]:
    near = _near_zero(evidence, _PAIRS)
    means = {norm: statistics.fmean(values) for norm, values in near.items()}
    parts = []
    for name, rows in (("MultiMNIST", _PAIRS), (SETS["fashion"], _FASHION), (SETS["cifar10"], _CIFAR)):
        if all(map(evidence.has, rows)):
            of = _near_zero(evidence, rows)
            parts.append(f"{name} {span_of(of['l1'])} of the couplings under L1, {span_of(of['l2'])} under L2")
    return means["l1"] >= _SPARSE and means["l1"] - means["l2"] >= _SPARSER, f"next to nothing: {'; '.join(parts)}"


def _looks(evidence: Evidence, data: str, which: str = "all") -> list[list[Mapping[str, Any]]]:
    """Return the looks of every run at a net in its first epochs; raise ``Missing`` where there is none."""
    row = cell(data, "dr")
    found = [dig(result.measured, "yang2021.early", which) for result in evidence.results(row)]
    if not all(found):
        raise Missing(row)
    return found


def _epoch(evidence: Evidence, data: str) -> int:
    row = cell(data, "dr")
    found = dig(evidence.results(row)[0].measured, "yang2021.early", "steps_an_epoch")
    if found is None:
        raise Missing(row)
    return int(found)


def _first_epoch(evidence: Evidence, data: str, part: str) -> float:
    """Return the mean of a figure over the looks of the first epoch, and over runs."""
    epoch = _epoch(evidence, data)
    values = [
        look[part] for seen in _looks(evidence, data) for look in seen if 0 < look["step"] <= epoch and look[part] is not None
    ]
    if not values:
        raise Missing(cell(data, "dr"))
    return statistics.fmean(values)


def _early_claim(suffix: str, key: str, text: str, source: str, decide: Any) -> Claim:
    sets = _AGREEING[suffix]
    name = " and ".join(SETS[data] for data in sets)
    rows = tuple(cell(data, "dr") for data in sets)
    return Claim(f"yang2021/{key}{suffix}", f"On {name} {text}", source, rows, lambda evidence: decide(evidence, sets))


def _wrong(evidence: Evidence, sets: Sequence[str]) -> tuple[bool | None, str]:
    parts, answers = [], []
    for data in sets:
        early = _first_epoch(evidence, data, "last")
        late = statistics.fmean(seen[-1]["last"] for seen in _looks(evidence, data))
        last = _looks(evidence, data)[0][-1]["step"]
        answers.append(early >= _OFTEN and early > late)
        parts.append(f"{SETS[data]} {early:.1%} of the images in the first epoch, {late:.1%} after step {last:,}")
    return all_of(answers), f"longest capsule wrong: {'; '.join(parts)}"


def _agreement(evidence: Evidence, sets: Sequence[str]) -> tuple[bool | None, str]:
    parts, answers = [], []
    for data in sets:
        widened, mended, spoilt = (_first_epoch(evidence, data, part) for part in ("widened", "mended", "spoilt"))
        to_wrong, to_right = (_first_epoch(evidence, data, part) for part in ("to_wrong", "to_right"))
        answers.append(widened > 0.5)
        parts.append(
            f"{SETS[data]} its lead grows in {widened:.0%} of the images (mean coupling to it {to_wrong:.3f}, to the right "
            f"one {to_right:.3f}), {mended:.1%} are mended; of those right at first {spoilt:.1%} are spoilt"
        )
    return all_of(answers), f"first epoch, longest capsule wrong after one iteration: {'; '.join(parts)}"


def _holds_back(evidence: Evidence, sets: Sequence[str]) -> tuple[bool | None, str]:
    parts, answers = [], []
    for data in sets:
        epoch = _epoch(evidence, data)
        means = {
            which: statistics.fmean(early_error(seen, epoch) for seen in _looks(evidence, data, which))
            for which in ("all", "one")
        }
        off = means["all"] - means["one"]
        answers.append(None if abs(off) <= _LUCK else off > 0)
        parts.append(f"{SETS[data]} {means['all']:.1%} with all iterations, {means['one']:.1%} with one")
    return all_of(answers), f"mean error over the first epoch: {'; '.join(parts)}"


ASSUMPTIONS = (
    *(_negative_claim(suffix) for suffix in _CLIMBING),
    Claim(
        "yang2021/sparse",
        f"On MultiMNIST, where λ is 1e-3, the L1 penalty makes couplings sparse (here: {_SPARSE:.0%}, {_SPARSER:.0%} more than "
        "under L2). Elsewhere λ is 1e-5, at the start about a thousandth of the objective's slope: too little to decide it.",
        "section III-B2",
        _PAIRS,
        _sparse,
        # couplings start at 1 and move at a fifth of the weights' rate.
        is_long=True,
    ),
    *(
        claim
        for suffix in _AGREEING
        for claim in (
            _early_claim(
                suffix,
                "assumption2",
                f"the longest capsule is often wrong early on (here: {_OFTEN:.0%} in the first epoch, more than later).",
                "section III-A, assumption 2",
                _wrong,
            ),
            _early_claim(
                suffix,
                "amplified",
                "agreement couples to a capsule that is wrongly the longest, whose lead grows in most images.",
                "section III-A, assumption 2",
                _agreement,
            ),
            _early_claim(
                suffix,
                "held-back",
                "that holds back training: with one iteration, which agrees with nothing, the error falls faster.",
                "section III-A, assumption 2",
                _holds_back,
            ),
        )
    ),
    Claim(
        "yang2021/reach",
        "A check of the implementation: on MNIST no coupling becomes negative, which the sum of the rates all but rules out.",
        "ours",
        _MNIST,
        _reach,
        is_long=True,
    ),
    Claim(
        "yang2021/signs",
        "A check of the implementation, of an identity: with the signs of learned couplings moved into the weights the scores "
        "stay as they are, so that couplings of one sign limit nothing.",
        "ours",
        _MOVED,
        _signs,
    ),
)
