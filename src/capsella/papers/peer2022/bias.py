"""What is a bias good for? Our own claims on peer2022's controls, and what they come to."""

from __future__ import annotations

from collections.abc import Sequence

from capsella.papers.peer2022.controls import CONTROL_DEPTHS, CONTROLS, control
from capsella.papers.peer2022.deciding import bound, measured, trained
from capsella.papers.readings import final
from capsella.papers.verdicts import FAILS, HOLDS, UNDECIDED, Claim, Evidence


def _means(evidence: Evidence, name: str) -> list[float]:
    return [evidence.mean(control(name, depth)) for depth in CONTROL_DEPTHS]


def _control_rows(*names: str) -> tuple[str, ...]:
    return tuple(control(name, depth) for name in names for depth in CONTROL_DEPTHS)


def _lengths_do(evidence: Evidence) -> tuple[bool | None, str]:
    """Without a bias every net is blind for signs; where one trains all the same, blindness was not the obstacle."""
    good, of = trained(evidence, _control_rows("lengths"))
    bad, of_bad = trained(evidence, _control_rows("no-bias"))
    gaps = [measured(r, "negation_gap") for row in _control_rows("lengths") for r in evidence.results(row)]
    known = [gap for gap in gaps if gap is not None]
    blind = f"; they cannot tell x from −x (scores differ by at most {max(known):.1g})" if known else ""
    says = (
        f"no bias, depths 4, 5 and 10: {good} of {of} runs train from a length-preserving start, "
        f"{bad} of {of_bad} as published{blind}"
    )
    return good == of and bad < of_bad, says


def _zero_bias(evidence: Evidence) -> tuple[bool | None, str]:
    good, of = trained(evidence, _control_rows("zero-bias"))
    return good == of, f"{good} of {of} runs train at depths 4, 5 and 10 ({_shares(_means(evidence, 'zero-bias'))})"


def _last_bias(evidence: Evidence) -> tuple[bool | None, str]:
    good, of = trained(evidence, _control_rows("last-bias"))
    return good == of, f"{good} of {of} runs train at depths 4, 5 and 10 ({_shares(_means(evidence, 'last-bias'))})"


def _vanish(evidence: Evidence) -> tuple[bool | None, str]:
    """Compare the length of the last hidden layer's capsules at the start with whether a net trains, over all controls."""
    pairs = []
    for row in _control_rows(*CONTROLS):
        for result in evidence.results(row):
            accuracy, length = final(result), measured(result, "lengths", -2, when="start")
            if length is not None:
                pairs.append((length, accuracy is not None and accuracy >= bound(evidence)))
    good, bad = [length for length, trained in pairs if trained], [length for length, trained in pairs if not trained]
    if not good or not bad:
        return None, f"{len(good)} runs trained and {len(bad)} did not: there is nothing to compare"
    # how often a run that trains has the longer capsules: the area under the curve.
    wins = sum((a > b) + 0.5 * (a == b) for a in good for b in bad) / (len(good) * len(bad))
    says = (
        f"last hidden layer at the start: mean length {min(good):.1e} or more in runs that train, {max(bad):.1e} or less in "
        f"those that do not; of pairs of one each, {wins:.0%} have the longer capsules in the run that trains"
    )
    return (wins > 0.9) if wins > 0.9 or wins < 0.6 else None, says


def _shares(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.1%}" for value in values)


BIAS_CLAIMS = (
    Claim(
        "peer2022/lengths",
        "Deep nets train without a bias, blind for signs as they are, if their capsules' lengths are kept at the start.",
        "ours",
        _control_rows("lengths", "no-bias"),
        _lengths_do,
    ),
    Claim(
        "peer2022/zero-bias",
        "A bias that starts at 0, which can break the symmetry and props nothing up at the start, is enough.",
        "ours",
        _control_rows("zero-bias"),
        _zero_bias,
    ),
    Claim(
        "peer2022/last-bias",
        "A bias on the last layer alone, which lets the net tell x from −x, is enough.",
        "ours",
        _control_rows("last-bias"),
        _last_bias,
    ),
    Claim(
        "peer2022/vanishing",
        "Whether a deep net trains is told by the length of its capsules at the start.",
        "ours",
        _control_rows(*CONTROLS),
        _vanish,
    ),
)


def answer(evidence: Evidence) -> str:
    """Say what the controls come to: is it the symmetry that a bias breaks, or the vanishing length that it props up?"""
    found = {claim.key.removeprefix("peer2022/"): claim.find(evidence).verdict for claim in BIAS_CLAIMS}
    # which is asked beside, and does not tell the two apart.
    del found["vanishing"]
    if found["lengths"] == HOLDS and FAILS in (found["zero-bias"], found["last-bias"]):
        return (
            "It is the vanishing length that a bias props up. Nets without any bias, which cannot tell x from −x, train once "
            "their lengths are kept at the start; and a bias that can break the symmetry but props nothing up there is not "
            "enough."
        )
    if found["lengths"] == FAILS and found["zero-bias"] == found["last-bias"] == HOLDS:
        return (
            "It is the symmetry that a bias breaks. A bias that props nothing up at the start is enough, and lengths that are "
            "kept at the start are not."
        )
    if UNDECIDED in found.values():
        return ""
    return "Both play a part, or neither does alone: the controls below do not separate them."
