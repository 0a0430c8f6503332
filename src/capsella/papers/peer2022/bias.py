"""What is a bias good for? Our own claims on peer2022's controls, and what they come to."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from capsella.papers.peer2022.controls import CONTROL_DEPTHS, CONTROLS, control
from capsella.papers.peer2022.deciding import TRAINS, bound, measured, trained
from capsella.papers.readings import final
from capsella.papers.verdicts import FAILS, HOLDS, Claim, Evidence

# of accuracies on MNIST: what two runs of one net may differ by.
_LUCK = 0.003
_DEPTHS = "4, 5 and 10"


def _control_rows(*names: str) -> tuple[str, ...]:
    return tuple(control(name, depth) for name in names for depth in CONTROL_DEPTHS)


def _trains(evidence: Evidence, name: str, depth: int) -> bool:
    """Tell whether all runs of a control train at a depth."""
    good, of = trained(evidence, (control(name, depth),))
    return good == of


def _symmetry(evidence: Evidence) -> tuple[bool | None, str]:
    """Without a bias every net is blind for signs; where one trains all the same, blindness is not the obstacle."""
    good, of = trained(evidence, _control_rows("lengths"))
    bad, of_bad = trained(evidence, _control_rows("no-bias"))
    gaps = [measured(r, "negation_gap") for row in _control_rows("lengths") for r in evidence.results(row)]
    known = [gap for gap in gaps if gap is not None]
    blind = f"; their scores of x and −x differ by at most {max(known):.1g}" if known else ""
    says = (
        f"no bias, depths {_DEPTHS}: {good} of {of} runs train from a length-preserving start "
        f"({_accuracies(evidence, 'lengths')}), {bad} of {of_bad} as published{blind}"
    )
    return good == of and bad < of_bad, says


def _published_bias(evidence: Evidence) -> tuple[bool | None, str]:
    good, of = trained(evidence, _control_rows("bias"))
    return good == of, f"{good} of {of} runs train at depths {_DEPTHS} ({_accuracies(evidence, 'bias')})"


def _as_the_published(evidence: Evidence, name: str) -> tuple[bool | None, str]:
    """Compare a control with the bias as published, at the depths at which that one trains."""
    depths = [depth for depth in CONTROL_DEPTHS if _trains(evidence, "bias", depth)]
    if not depths:
        return None, "the published bias trains no net"
    good, of = trained(evidence, [control(name, depth) for depth in depths])
    at = " and ".join(map(str, depths))
    says = (
        f"{good} of {of} runs train at depths {at}, where nets with a bias of 0.1 do; at {_DEPTHS}: "
        f"{_accuracies(evidence, name)}, with 0.1 {_accuracies(evidence, 'bias')}"
    )
    return good == of, says


def _still_helps(evidence: Evidence) -> tuple[bool | None, str]:
    gains = [
        statistics.fmean(evidence.values(control("lengths-bias", depth)))
        - statistics.fmean(evidence.values(control("lengths", depth)))
        for depth in CONTROL_DEPTHS
    ]
    says = f"points of accuracy that it adds at depths {_DEPTHS}: " + ", ".join(f"{100 * gain:+.2f}" for gain in gains)
    answers = [None if abs(gain) <= _LUCK else gain > 0 for gain in gains]
    return (False if False in answers else None if None in answers else True), says.replace("-", "−")


def _vanish(evidence: Evidence) -> tuple[bool | None, str]:
    """Compare the length of the last hidden layer's capsules at the start with whether a net trains, among nets of a depth."""
    told, parts, is_open = True, [], True
    for depth in CONTROL_DEPTHS:
        good, bad = _lengths_by_end(evidence, depth)
        if not good or not bad:
            parts.append(f"{depth} layers: {len(good)} train and {len(bad)} do not")
            continue
        is_open = False
        told &= min(good) > max(bad)
        # how often a run that trains has the longer capsules: the area under the curve.
        wins = sum((a > b) + 0.5 * (a == b) for a in good for b in bad) / (len(good) * len(bad))
        parts.append(
            f"{depth} layers: from {min(good):.1e} in runs that train, up to {max(bad):.1e} in those that do not; "
            f"the longer ones train in {wins:.0%} of the pairs"
        )
    return None if is_open else told, "mean length in the last hidden layer at the start, " + "; ".join(parts)


def _lengths_by_end(evidence: Evidence, depth: int) -> tuple[list[float], list[float]]:
    """Return the lengths of runs that train, and of those that do not."""
    good: list[float] = []
    bad: list[float] = []
    for name in CONTROLS:
        for result in evidence.results(control(name, depth)):
            accuracy, length = final(result), measured(result, "lengths", -2, when="start")
            if length is not None:
                (good if accuracy is not None and accuracy >= bound(evidence) else bad).append(length)
    return good, bad


def _accuracies(evidence: Evidence, name: str) -> str:
    return ", ".join(f"{evidence.mean(control(name, depth)):.1%}" for depth in CONTROL_DEPTHS)


BIAS_CLAIMS = (
    Claim(
        "peer2022/lengths",
        "Deep nets train without a bias, blind for signs as they are, if their capsules' lengths are kept at the start "
        f"(here: {TRAINS:.0%} of the test images right).",
        "ours",
        _control_rows("lengths", "no-bias"),
        _symmetry,
    ),
    Claim(
        "peer2022/published-bias",
        "The bias of 0.1 trains nets at all of these depths.",
        "ours",
        _control_rows("bias"),
        _published_bias,
    ),
    Claim(
        "peer2022/zero-bias",
        "Where that bias trains a net, one that starts at 0, which props nothing up there, does as well.",
        "ours",
        _control_rows("bias", "zero-bias"),
        lambda evidence: _as_the_published(evidence, "zero-bias"),
    ),
    Claim(
        "peer2022/last-bias",
        "Where it trains a net, one on the last layer alone, with which a net tells x from −x, does as well.",
        "ours",
        _control_rows("bias", "last-bias"),
        lambda evidence: _as_the_published(evidence, "last-bias"),
    ),
    Claim(
        "peer2022/still-helps",
        f"Where lengths are kept at the start, a bias still adds accuracy (here: {100 * _LUCK:.1f} points at each depth).",
        "ours",
        _control_rows("lengths", "lengths-bias"),
        _still_helps,
    ),
    Claim(
        "peer2022/vanishing",
        "Among nets of one depth, those that train are the ones whose capsules are longer at the start.",
        "ours",
        _control_rows(*CONTROLS),
        _vanish,
    ),
)

_SCOPE = "All of it is of agreement on MNIST, at 4, 5 and 10 layers."


def answer(evidence: Evidence) -> str:
    """Say what the controls come to, each sentence by a claim: is it the symmetry that a bias breaks, or what it props up?"""
    found = {claim.key.removeprefix("peer2022/"): claim.find(evidence).verdict for claim in BIAS_CLAIMS}
    symmetry = {HOLDS: _NOT_THE_SYMMETRY, FAILS: _LENGTHS_ARE_NOT_ENOUGH}.get(found["lengths"])
    if symmetry is None:
        return ""
    return " ".join([symmetry, *_further(found), _SCOPE])


_NOT_THE_SYMMETRY = (
    "It is not the symmetry. Nets without any bias, which cannot tell x from −x, train once their capsules' lengths are kept "
    "at the start."
)
_LENGTHS_ARE_NOT_ENOUGH = "Lengths that are kept at the start are not enough for nets that cannot tell x from −x."


def _further(found: dict[str, str]) -> Sequence[str]:
    """Return a sentence for each claim that says something beside."""
    sentences = {
        ("last-bias", FAILS): "Nor is it enough to break it: a bias on the last layer alone does so, and not every net trains "
        "with it that one on all layers trains.",
        ("last-bias", HOLDS): "A bias on the last layer alone, which breaks it, is as good as one on all layers.",
        ("zero-bias", HOLDS): "The bias need not prop lengths up from the beginning: one that starts at 0 does as well.",
        ("zero-bias", FAILS): "The bias has to prop lengths up from the beginning: one that starts at 0 is not enough.",
        ("published-bias", FAILS): "At some depth a bias alone no longer trains a net, and the start does.",
        ("vanishing", FAILS): "How long capsules are at the start does not tell by itself which nets train: weights drawn "
        "twenty times as large make them long as well.",
        ("vanishing", HOLDS): "Nets that train are those whose capsules are long at the start.",
    }
    return [text for (claim, verdict), text in sentences.items() if found[claim] == verdict]
