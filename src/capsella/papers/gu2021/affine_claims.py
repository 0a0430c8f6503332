"""What gu2021 says of robustness to affine maps, decided by records."""

from __future__ import annotations

import statistics
from itertools import combinations

from capsella.papers.deciding import all_of
from capsella.papers.gu2021.claiming import higher_claim, only_whole, same_claim, squash_claim
from capsella.papers.gu2021.deciding import higher, values_of
from capsella.papers.gu2021.nets import GROUPS, KERNEL_NETS, KERNELS, TABLE1, ablated, averaged, grouped, kernel, robust
from capsella.papers.readings import READINGS
from capsella.papers.verdicts import Claim, Evidence

# of accuracies on AffNIST: what makes no difference, in a pair and between the highest and the lowest of several.
_NONE, _ALL_ALIKE = 0.01, 0.02
# of the gap between CapsNet and ConvNet-FC: what may be left at equal kernels if these are its cause.
_LEFT = 0.5

_AFF = ablated("baseline")


def _mean(evidence: Evidence, key: str, reading: str = "affnist") -> float:
    return statistics.fmean(values_of(evidence, key, READINGS[reading]))


def _groups(evidence: Evidence) -> tuple[bool | None, str]:
    means = {count: _mean(evidence, grouped(count)) for count in GROUPS}
    pairs = [higher(evidence, grouped(one), grouped(other), "affnist") for one, other in combinations(GROUPS, 2)]
    off = max(pairs, key=lambda pair: abs(pair.gain))
    listed = ", ".join(f"{count}: {mean:.2%}" for count, mean in means.items())
    says = f"on AffNIST by groups {listed}; the two that are furthest apart: {off} points"
    return all_of([pair.within(_ALL_ALIKE) for pair in pairs]), says


def _kernels_help(evidence: Evidence) -> tuple[bool | None, str]:
    found = {net.label: higher(evidence, kernel(name, 7), kernel(name, 3), "affnist") for name, (net, _) in KERNEL_NETS.items()}
    listed = ", ".join(f"{name} {difference}" for name, difference in found.items())
    return all_of([each.is_higher for each in found.values()]), f"points on AffNIST, kernels of 7 beside kernels of 3: {listed}"


def _kernel_gap(evidence: Evidence) -> tuple[bool | None, str]:
    usual = higher(evidence, robust("capsnet"), robust("convnet-fc"), "affnist")
    equal = higher(evidence, kernel("capsnet", 9), kernel("convnet-fc", 9), "affnist")
    says = f"CapsNet beside ConvNet-FC: {usual} points with their own kernels, {equal} where both have kernels of 9"
    # no gap, or none beyond noise: nothing to explain.
    too_much = equal.less(usual, _LEFT).is_higher if usual.is_higher else None
    return None if too_much is None else not too_much, says


_READINGS = ("affnist", "affnist_mitterreiter", "affnist_literal")


def _readings(evidence: Evidence) -> tuple[bool | None, str]:
    """Decide by the pairs of nets that are further apart than noise; open where these are not even half of all."""
    orders = []
    for reading in _READINGS:
        means = {row: _mean(evidence, robust(row), reading) for row in TABLE1}
        order = sorted(means, key=lambda row: -means[row])
        orders.append(f"{reading}: {' > '.join(TABLE1[row].label for row in order)}")
    pairs = [
        {higher(evidence, robust(one), robust(other), reading, "affnist").is_higher for reading in _READINGS}
        for one, other in combinations(TABLE1, 2)
    ]
    alike, turned = sum(len(pair - {None}) == len(pair) == 1 for pair in pairs), sum({True, False} <= pair for pair in pairs)
    says = (
        f"of {len(pairs)} pairs {alike} stand alike in all readings and {turned} turn round, beyond noise; {'; '.join(orders)}"
    )
    return False if turned else True if alike > len(pairs) / 2 else None, says


def _fewest(evidence: Evidence) -> tuple[bool | None, str]:
    sizes = {row: evidence.results(robust(row))[0].parameters for row in TABLE1 if row != "em-capsnet"}
    listed = ", ".join(f"{TABLE1[row].label} {size:,}" for row, size in sizes.items())
    best = higher(evidence, robust("convnet-avg"), robust("aff-capsnet"), "affnist")
    is_smallest = min(sizes, key=lambda row: sizes[row]) == "convnet-avg"
    return (best.is_higher if is_smallest else False), f"ConvNet-Avg beside Aff-CapsNet {best} points; parameters: {listed}"


_CLAIMS = (
    higher_claim(
        "capsnet-beats-fc",
        "CapsNet is more robust to affine maps than ConvNet-FC.",
        "section 3.1, Table 1",
        [("CapsNet", robust("capsnet"), robust("convnet-fc"))],
    ),
    Claim(
        "gu2021/kernel-gap",
        f"What CapsNet has before ConvNet-FC is due to its kernels (here: at equal ones at most {_LEFT:.0%} of it is left).",
        "section 3.1, conclusion 1",
        (robust("capsnet"), robust("convnet-fc"), kernel("capsnet", 9), kernel("convnet-fc", 9)),
        _kernel_gap,
    ),
    higher_claim(
        "aff-beats-capsnet",
        "Aff-CapsNet is more robust to affine maps than CapsNet.",
        "section 3.1, Table 1",
        [("Aff-CapsNet", robust("aff-capsnet"), robust("capsnet"))],
    ),
    higher_claim(
        "routing-harms",
        "Dynamic routing harms robustness to affine maps.",
        "section 3.1, Tables 1 and 2",
        [
            ("no routing in CapsNet", robust("capsnet-nor"), robust("capsnet")),
            ("in Aff-CapsNet", robust("aff-capsnet"), robust("aff-capsnet-dr")),
            ("in Aff-CapsNet that does not stop early", _AFF, ablated("dr")),
        ],
    ),
    higher_claim(
        "sharing-helps",
        "A shared transformation matrix helps against affine maps.",
        "section 3.1, Table 2",
        [("shared", _AFF, ablated("not-shared"))],
    ),
    higher_claim(
        "squash-helps",
        "The squash helps against affine maps.",
        "section 3.1, Table 2",
        [("squash", _AFF, ablated("no-squash"))],
    ),
    squash_claim("squash-hard", _AFF, ablated("no-squash"), "on digits that are only moved", "section 3.1, Table 2"),
    higher_claim(
        "margin-harms",
        "The margin loss weakens robustness to affine maps slightly.",
        "section 3.1, Table 2",
        [("cross entropy", ablated("cross-entropy"), _AFF)],
    ),
    same_claim(
        "reconstruction-same",
        f"Reconstruction makes no difference to robustness to affine maps (here: {100 * _NONE:.0f} point at the most).",
        "section 3.1, Table 2",
        _AFF,
        ablated("no-reconstruction"),
        _NONE,
        "affnist",
    ),
    higher_claim(
        "unmasked-helps",
        "Reconstruction without a mask helps slightly against affine maps.",
        "section 3.1, Table 2",
        [("no mask", ablated("normal-reconstruction"), _AFF)],
    ),
    Claim(
        "gu2021/groups",
        f"The number of groups has no effect on robustness to affine maps (here: {100 * _ALL_ALIKE:.0f} points at the most).",
        "section 3.1, supplement A",
        tuple(map(grouped, GROUPS)),
        _groups,
    ),
    Claim(
        "gu2021/kernels-help",
        "Larger kernels help against affine maps (here: of 7 beside 3, which is printed of all three nets).",
        "section 3.1, Table 3",
        tuple(kernel(name, size) for name in KERNEL_NETS for size in (3, 7)),
        _kernels_help,
    ),
    higher_claim(
        "same-kernel",
        "With the same kernels ConvNet-Avg is more robust to affine maps than ConvNet-FC and CapsNet.",
        "section 3.1, Table 3",
        [
            (f"{size}×{size} beside {KERNEL_NETS[name][0].label}", kernel("convnet-avg", size), kernel(name, size))
            for size in KERNELS
            for name in ("capsnet", "convnet-fc")
        ],
    ),
    higher_claim(
        "average-beats-capsnet",
        "ConvNet-Avg is more robust to affine maps than CapsNet.",
        "section 3.1, conclusion 3",
        [("ConvNet-Avg", robust("convnet-avg"), robust("capsnet"))],
    ),
    Claim(
        "gu2021/fewer",
        "ConvNet-Avg is slightly more robust to affine maps than Aff-CapsNet, with fewer parameters than any other.",
        "section 3.1, Table 1",
        tuple(robust(row) for row in TABLE1 if row != "em-capsnet"),
        _fewest,
    ),
)

_OWN = (
    Claim(
        "gu2021/readings",
        "The order of Table 1's nets is the same in all three readings of AffNIST (here: of nets further apart than noise).",
        "ours",
        tuple(map(robust, TABLE1)),
        _readings,
    ),
    same_claim(
        "averages-shared",
        f"Without routing, a mean of votes does what a tenth of each does, matrix shared (here: {100 * _NONE:.0f} point).",
        "ours",
        _AFF,
        averaged("shared-tenth"),
        _NONE,
        "affnist",
    ),
    same_claim(
        "averages-not-shared",
        f"Without routing, a mean of votes does what a tenth of each does, matrix not shared (here: {100 * _NONE:.0f} point).",
        "ours",
        ablated("not-shared"),
        averaged("not-shared-mean"),
        _NONE,
        "affnist",
    ),
    higher_claim(
        "matrix-capsules",
        "Matrix capsules with EM routing, at sizes of ours, are more robust to affine maps than CapsNet.",
        "ours",
        [("EM-CapsNet", robust("em-capsnet"), robust("capsnet"))],
    ),
)

# short versions end far from the accuracy at which nets are compared; those that average over the map have hardly begun.
AFFINE_CLAIMS, OWN_AFFINE_CLAIMS = only_whole(_CLAIMS), only_whole(_OWN)
