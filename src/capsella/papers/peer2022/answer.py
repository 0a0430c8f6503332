"""What the controls come to, in sentences, each by claims: does a bias break a symmetry, or does it prop lengths up?"""

from __future__ import annotations

from capsella.papers.peer2022.bias import BIAS_CLAIMS, compared_depths, control_rows
from capsella.papers.peer2022.controls import CONTROL_DEPTHS, control
from capsella.papers.peer2022.deciding import measured, trained
from capsella.papers.verdicts import FAILS, HOLDS, UNDECIDED, Evidence

_ADAM = 1e-8
"""Adam's epsilon: a gradient far below it moves nothing."""


def answer(evidence: Evidence) -> str:
    """Say what the controls come to; nothing where what it hangs on is open, and nothing of short versions."""
    if evidence.is_quick:
        return ""
    found = {claim.key.removeprefix("peer2022/"): claim.find(evidence).verdict for claim in BIAS_CLAIMS}
    if found["lengths"] == UNDECIDED:
        return ""
    parts = (_symmetry, _standstill, _start_beside_bias, _zero, _last, _gain, _length, _em)
    sentences = [sentence for part in parts if (sentence := part(evidence, found))]
    return " ".join([*sentences, _scope(evidence)])


def _symmetry(evidence: Evidence, found: dict[str, str]) -> str:
    if found["lengths"] == FAILS:
        return "Lengths that are kept at the start are not enough for nets that cannot tell x from −x."
    wide = ", and one with weights twice as large trains as well" if found["blind-wide"] == HOLDS else ""
    return (
        "To agreement the symmetry by itself is no obstacle: nets without any bias, which cannot tell x from −x, train once "
        f"their capsules' lengths are kept at the start{wide}."
    )


def _standstill(evidence: Evidence, found: dict[str, str]) -> str:
    """Say where gradients are too small for the optimiser, whatever the reason."""
    slopes = [
        slope
        for depth in CONTROL_DEPTHS
        for result in evidence.results(control("no-bias", depth))
        for layer in range(depth - 1)
        if (slope := measured(result, "gradients", layer, when="start")) is not None
    ]
    if not slopes or max(slopes) >= _ADAM:
        return ""
    return (
        f"As published, without a bias, no layer's gradient is above {max(slopes):.0e} at the start, beside an epsilon of 1e-8 "
        "in Adam: such nets stand still by arithmetic, and the authors' additive epsilons may move theirs."
    )


def _start_beside_bias(evidence: Evidence, found: dict[str, str]) -> str:
    if found["published-bias"] != FAILS or found["lengths"] != HOLDS:
        return ""
    return "At a depth where the published bias no longer trains a net, the start does."


def _zero(evidence: Evidence, found: dict[str, str]) -> str:
    if found["zero-bias"] == FAILS:
        return "The bias has to prop lengths up from the beginning: one that starts at 0 is not enough."
    if found["zero-bias"] != HOLDS:
        return ""
    depths = compared_depths(evidence)
    later = all(evidence.mean(control("zero-bias", d), "starts") > evidence.mean(control("bias", d), "starts") for d in depths)
    return f"A bias that starts at 0, which props nothing up there, comes to the same end{', later' if later else ''}."


def _last(evidence: Evidence, found: dict[str, str]) -> str:
    if found["last-bias"] == HOLDS:
        return "A bias on the last layer alone is as good as one on all layers."
    if found["last-bias"] != FAILS:
        return ""
    if found["seeing"] == HOLDS:
        return (
            "One on the last layer alone is not, but where it fails the net stays blind, since nothing of an image comes "
            "through to that layer: so the controls do not tell whether breaking the symmetry would be enough."
        )
    return (
        "One on the last layer alone is not."
        if found["seeing"] == UNDECIDED
        else ("One on the last layer alone is not: breaking the symmetry is not enough.")
    )


def _gain(evidence: Evidence, found: dict[str, str]) -> str:
    return {
        HOLDS: "Where lengths are kept, a bias still adds accuracy.",
        FAILS: "Where lengths are kept, a bias does not add accuracy at every depth.",
        UNDECIDED: "Whether a bias still adds accuracy where lengths are kept is open.",
    }[found["still-helps"]]


def _length(evidence: Evidence, found: dict[str, str]) -> str:
    if found["vanishing"] == HOLDS:
        return "Nets that train are those whose capsules are long at the start."
    if found["vanishing"] != FAILS:
        return ""
    good, _ = trained(evidence, control_rows("wider"))
    wider = "" if good else ": weights drawn twenty times as large make them long as well, and train no net"
    return f"How long capsules are at the start does not tell by itself which nets train{wider}."


def _em(evidence: Evidence, found: dict[str, str]) -> str:
    return {
        HOLDS: "In deep EM nets lengths vanish as well.",
        FAILS: "Of EM the question is open: its deep nets that do not train without a bias begin with capsules about as long "
        "as those that train with one, so that it is not vanishing lengths that keep them.",
        UNDECIDED: "",
    }[found["em-vanishing"]]


def _scope(evidence: Evidence) -> str:
    """Say what it rests on."""
    counts = [len(evidence.results(row)) for claim in BIAS_CLAIMS for row in claim.recipes if evidence.has(row)]
    few = min(counts)
    runs = "one run" if few == 1 else f"at least {few} runs"
    depths = ", ".join(map(str, CONTROL_DEPTHS[:-1]))
    return f"The controls are agreement on MNIST, with {depths} and {CONTROL_DEPTHS[-1]} layers; {runs} of each net."
