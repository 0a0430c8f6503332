"""What the controls come to, in sentences, each by claims: does a bias break a symmetry, or does it prop lengths up?"""

from __future__ import annotations

import contextlib
import statistics

from capsella.papers.deciding import fewest_runs, span_of, written
from capsella.papers.peer2022.bias import BIAS_CLAIMS, compared_depths, control_rows
from capsella.papers.peer2022.controls import CONTROL_DEPTHS, control
from capsella.papers.peer2022.deciding import EM_DEPTHS, has_trained, key_of, measured, trained
from capsella.papers.verdicts import FAILS, HOLDS, UNDECIDED, Evidence, Missing

_ADAM = 1e-8
"""Adam's epsilon: a gradient far below it moves nothing."""

_PROPPED = 0.05
"""Mean length from which on capsules are not vanishing: half of what the published bias alone is long."""


def answer(evidence: Evidence) -> str:
    """Say what the controls come to; nothing where what it hangs on is open, and nothing of short versions."""
    if evidence.is_quick:
        return ""
    found = {claim.key.removeprefix("peer2022/"): claim.find(evidence).verdict for claim in BIAS_CLAIMS}
    if found["lengths"] == UNDECIDED:
        return ""
    parts = (_symmetry, _standstill, _start_beside_bias, _propped, _zero, _last, _gain, _length, _either, _em)
    sentences = []
    for part in parts:
        # a sentence for which a row is missing is left out; the others stand without it.
        with contextlib.suppress(Missing):
            sentences.append(part(evidence, found))
    return " ".join(filter(None, [*sentences, _scope(evidence)]))


def _symmetry(evidence: Evidence, found: dict[str, str]) -> str:
    if found["lengths"] == FAILS:
        return "On MNIST lengths that are kept at the start are not enough for agreement nets that cannot tell u from −u."
    wide = ", and one with weights twice as large trains as well" if found["blind-wide"] == HOLDS else ""
    return (
        "On MNIST the symmetry by itself does not keep agreement from training: nets without a bias in any capsule layer, "
        "whose scores are the same for primary capsules u and −u, train once their capsules' lengths are kept at the "
        f"start{wide}."
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
        f"As published, without a bias, no capsule layer's gradient is above {written(max(slopes), 1)} at the start, beside an "
        "epsilon of 1e-8 in Adam: such nets stand still by arithmetic, and the authors' additive epsilons may move theirs."
    )


def _start_beside_bias(evidence: Evidence, found: dict[str, str]) -> str:
    if found["published-bias"] != FAILS or found["lengths"] != HOLDS:
        return ""
    return "At a depth where the published bias no longer trains a net, the start does."


def _propped(evidence: Evidence, found: dict[str, str]) -> str:
    """Say where the published bias keeps lengths and trains no net all the same."""
    for depth in CONTROL_DEPTHS:
        for result in evidence.results(control("bias", depth)):
            lengths = [measured(result, "lengths", layer, when="start") for layer in range(1, depth)]
            known = [length for length in lengths if length is not None]
            last, first = (measured(result, "gradients", layer, when="start") for layer in (-1, 0))
            if has_trained(evidence, result) or len(known) < len(lengths) or last is None or first is None:
                continue
            shortest = min(known)
            if shortest >= _PROPPED and first < _ADAM:
                return (
                    f"Nor are lengths that a bias props up enough: with {depth} layers the published one keeps capsules at "
                    f"{written(shortest)} and more, and the net does not train; its gradients fade from {written(last, 1)} in "
                    f"the last layer to {written(first, 1)} in the first."
                )
    return ""


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
    says = "A bias on the last layer alone does not train every net that one on all layers trains"
    if found["seeing"] == HOLDS:
        return (
            f"{says}, but where it fails the net stays blind, since nothing of an image comes through to that layer: so the "
            "controls do not tell whether breaking the symmetry would be enough."
        )
    return f"{says}." if found["seeing"] == UNDECIDED else f"{says}: breaking the symmetry is not enough."


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


def _either(evidence: Evidence, found: dict[str, str]) -> str:
    """Say which of the two a bias is good for, as far as it is known."""
    if found["lengths"] != HOLDS:
        return ""
    return (
        "So, of the two, breaking the symmetry is not needed, and a start that keeps lengths is enough; which of them a bias "
        "does where it trains a net, the controls do not tell."
    )


def _em(evidence: Evidence, found: dict[str, str]) -> str:
    """Say why lengths tell nothing of EM, and what goes with the step at which its nets begin."""
    lengths, slopes, starts = [], {}, {}
    for depth in EM_DEPTHS:
        for bias in (False, True):
            results = evidence.results(key_of("table3", "mnist", bias, depth))
            # the first routed layer aside, which reads the trunk.
            lengths += [measured(each, "lengths", k, when="start") for each in results for k in range(2, depth)]
            found_slopes = [measured(each, "gradients", 0, when="start") for each in results]
            known = [slope for slope in found_slopes if slope is not None]
            if known:
                slopes[bias, depth] = statistics.fmean(known)
        starts[depth] = evidence.mean(key_of("table3", "mnist", False, depth), "starts")
    known_lengths = [length for length in lengths if length is not None]
    if len(slopes) < 2 * len(EM_DEPTHS) or not known_lengths:
        return ""
    says = (
        "Of EM lengths tell nothing: what its capsules pass on is as long as their activation, which begins at "
        f"{span_of(known_lengths, '.2f')} in hidden layers whatever reaches them."
    )
    without, with_one = ([slopes[bias, depth] for depth in EM_DEPTHS] for bias in (False, True))
    if without == sorted(without) and list(starts.values()) == sorted(starts.values()):
        grows = ", ".join(written(slope, 1) for slope in without)
        says += (
            " What grows with depth there, as the step at which learning begins does, is the gradient of the first layer: "
            f"{grows} for {EM_DEPTHS[0]} to {EM_DEPTHS[-1]} layers without a bias, at most {written(max(with_one), 1)} with "
            "one; that is seen, and no cause is shown."
        )
    return says


def _scope(evidence: Evidence) -> str:
    """Say what it rests on."""
    runs = fewest_runs(evidence, BIAS_CLAIMS)
    depths = ", ".join(map(str, CONTROL_DEPTHS[:-1]))
    return f"The controls are agreement on MNIST, with {depths} and {CONTROL_DEPTHS[-1]} layers; {runs} of each net."
