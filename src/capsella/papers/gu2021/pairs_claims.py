"""What gu2021 says of overlapping digits, decided by records."""

from __future__ import annotations

from collections.abc import Sequence

from capsella.papers.deciding import all_of
from capsella.papers.gu2021.claiming import Row, higher_claim, only_whole, same_claim, squash_claim
from capsella.papers.gu2021.deciding import higher
from capsella.papers.gu2021.nets import KERNELS, PARTNERS, TABLE4, convnet, overlapping, pairs_kernel, partnered
from capsella.papers.verdicts import Claim, Evidence

# of accuracies on overlapping digits: what makes no difference.
_NO_PAIRS = 0.005

_CAPS = overlapping("baseline")
_LK = convnet("convnet-fc-lk")


def _largest(evidence: Evidence) -> tuple[bool | None, str]:
    drops = {row: -higher(evidence, overlapping(row), _CAPS, "final", "pairs").gain for row in TABLE4 if row != "baseline"}
    listed = ", ".join(f"{TABLE4[row].label} {100 * drop:.2f}" for row, drop in drops.items())
    others = [higher(evidence, overlapping(row), overlapping("shared"), "final", "pairs") for row in drops if row != "shared"]
    return all_of([other.is_higher for other in others]), f"points lost on overlapping digits: {listed}"


def _pairs_claim(key: str, text: str, source: str, pairs: Sequence[Row]) -> Claim:
    return higher_claim(key, text, source, pairs, reading="final", luck="pairs")


# what short versions end before.
_LATE = only_whole(
    [
        Claim(
            "gu2021/pairs-largest",
            "Of all components of CapsNet the matrices of its capsules do most for overlapping digits.",
            "section 3.2, Table 4",
            tuple(map(overlapping, TABLE4)),
            _largest,
        ),
        squash_claim(
            "pairs-squash",
            _CAPS,
            overlapping("no-squash"),
            "on overlapping digits",
            "section 3.2, Table 4",
            training="training_late",
            luck="pairs",
        ),
        _pairs_claim(
            "pairs-large-kernels",
            "ConvNet-FC(LK) is better on overlapping digits than CapsNet.",
            "section 3.2, conclusion 3",
            [("ConvNet-FC(LK)", _LK, _CAPS)],
        ),
        _pairs_claim(
            "pairs-partners",
            "ConvNet-FC(LK) is better than CapsNet with any number of partners (here: of 1, 10 and 100).",
            "section 3.2, Figure 3",
            [(f"{count:,}", partnered("convnet-fc-lk", count), partnered("capsnet", count)) for count in PARTNERS],
        ),
        _pairs_claim(
            "pairs-kernels",
            "ConvNet-FC(LK) is better on overlapping digits than CapsNet with kernels of any size.",
            "section 3.2, supplement B",
            [(f"{size}×{size}", pairs_kernel("convnet-fc-lk", size), pairs_kernel("capsnet", size)) for size in KERNELS],
        ),
        _pairs_claim(
            "pairs-convnet",
            "Margin loss and reconstruction make a ConvNet better on overlapping digits, each of them.",
            "section 3.2",
            [
                ("margin loss", convnet("margin"), convnet("bce")),
                ("reconstruction", convnet("bce-reconstruction"), convnet("bce")),
            ],
        ),
    ]
)

PAIRS_CLAIMS = (
    *(
        _pairs_claim(
            f"pairs-{key}",
            f"{what} helps with overlapping digits.",
            "section 3.2, Table 4",
            [(TABLE4[row].label, _CAPS, overlapping(row))],
        )
        for key, what, row in (
            ("routing", "Dynamic routing", "nor"),
            ("matrix", "A transformation matrix for every capsule", "shared"),
            ("reconstruction", "Reconstruction", "no-reconstruction"),
            ("margin", "The margin loss", "binary-cross-entropy"),
        )
    ),
    same_claim(
        "pairs-unmasked",
        f"For overlapping digits reconstruction needs no mask (here: {100 * _NO_PAIRS:.1f} points of difference at the most).",
        "section 3.2, Table 4",
        _CAPS,
        overlapping("normal-reconstruction"),
        _NO_PAIRS,
        "final",
    ),
    _pairs_claim(
        "pairs-average",
        "CapsNet is better on overlapping digits than ConvNet-Avg.",
        "section 3.2",
        [("CapsNet", _CAPS, convnet("convnet-avg"))],
    ),
    *_LATE,
)


OWN_PAIRS_CLAIMS = only_whole(
    [
        _pairs_claim(
            "both",
            "Margin loss and reconstruction together do more for a ConvNet on overlapping digits than either.",
            "ours",
            [
                ("beside the margin loss", convnet("margin-reconstruction"), convnet("margin")),
                ("beside reconstruction", convnet("margin-reconstruction"), convnet("bce-reconstruction")),
            ],
        ),
    ]
)
