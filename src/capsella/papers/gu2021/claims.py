"""All that gu2021 says, and what it comes to; the claims of its three tasks are in files of their own."""

from __future__ import annotations

import statistics

from capsella.papers.deciding import all_of
from capsella.papers.gu2021.affine_claims import AFFINE_CLAIMS, OWN_AFFINE_CLAIMS
from capsella.papers.gu2021.compact_claims import COMPACT_CLAIMS, OWN_COMPACT_CLAIMS, more
from capsella.papers.gu2021.deciding import higher, values_of
from capsella.papers.gu2021.effects import mean_compactness
from capsella.papers.gu2021.nets import compact, convnet, kernel, overlapping, robust
from capsella.papers.gu2021.pairs_claims import OWN_PAIRS_CLAIMS, PAIRS_CLAIMS
from capsella.papers.verdicts import Claim, Evidence

_CAPS = overlapping("baseline")
_LK = convnet("convnet-fc-lk")


def _conclusion(evidence: Evidence) -> tuple[bool | None, str]:
    average = higher(evidence, robust("convnet-avg"), robust("capsnet"), "affnist")
    large = higher(evidence, _LK, _CAPS, "final", "pairs")
    found = [values_of(evidence, compact("mnist", row), mean_compactness) for row in ("convnet-cr-sf", "capsnet")]
    squashed, capsnet = map(statistics.fmean, found)
    says = (
        f"beside CapsNet: ConvNet-Avg {average} points on AffNIST, ConvNet-FC(LK) {large} on overlapping digits; "
        f"compactness {squashed:.3f} of ConvNet-CR-SF, {capsnet:.3f} of CapsNet"
    )
    return all_of([average.is_higher, large.is_higher, more(*found).is_higher]), says


def _no_convnet(evidence: Evidence) -> tuple[bool | None, str]:
    average = higher(evidence, _CAPS, convnet("convnet-avg"), "final", "pairs")
    dense = higher(evidence, robust("capsnet"), kernel("convnet-fc", 9), "affnist")
    says = f"CapsNet beside ConvNet-Avg {average} on overlapping digits, beside ConvNet-FC with kernels of 9 {dense} on AffNIST"
    return all_of([average.is_higher, dense.is_higher]), says


CLAIMS = (
    *AFFINE_CLAIMS,
    *PAIRS_CLAIMS,
    *COMPACT_CLAIMS,
    Claim(
        "gu2021/conclusion",
        "In each of the three tasks a simple ConvNet does better than CapsNet.",
        "section 4",
        (robust("convnet-avg"), robust("capsnet"), _LK, _CAPS, compact("mnist", "convnet-cr-sf"), compact("mnist", "capsnet")),
        _conclusion,
        is_long=True,
    ),
    Claim(
        "gu2021/no-convnet",
        "No single ConvNet does better than CapsNet in all of them.",
        "section 4",
        (_CAPS, convnet("convnet-avg"), robust("capsnet"), kernel("convnet-fc", 9)),
        _no_convnet,
        is_long=True,
    ),
    *OWN_AFFINE_CLAIMS,
    *OWN_PAIRS_CLAIMS,
    *OWN_COMPACT_CLAIMS,
)
