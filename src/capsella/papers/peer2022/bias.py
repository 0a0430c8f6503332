"""What is a bias good for? Our own claims on peer2022's controls, each decided by records."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from capsella.papers.deciding import span_of, written
from capsella.papers.peer2022.controls import CONTROL_DEPTHS, CONTROLS, control
from capsella.papers.peer2022.deciding import has_trained, measured, step_of, trained, training
from capsella.papers.readings import final
from capsella.papers.results import Result
from capsella.papers.verdicts import Claim, Evidence

# of accuracies on MNIST: what two runs of one net may differ by.
_LUCK = 0.003
# of scores, which are lengths below 1: what x and −x have to differ by to be told apart.
_SEES = 1e-4
_DEPTHS = "4, 5 and 10"
_WITH_A_BIAS = ("bias", "zero-bias", "last-bias", "lengths-bias")


def control_rows(*names: str) -> tuple[str, ...]:
    """Return the keys of some controls at all depths."""
    return tuple(control(name, depth) for name in names for depth in CONTROL_DEPTHS)


def _trains(evidence: Evidence, name: str, depth: int) -> bool:
    """Tell whether all runs of a control train at a depth."""
    good, of = trained(evidence, (control(name, depth),))
    return good == of


def gaps_of(results: Sequence[Result]) -> list[float]:
    """Return by how much the scores of x and −x differ at the end, where it was measured."""
    found = [measured(result, "negation_gap") for result in results]
    return [gap for gap in found if gap is not None]


def _gaps(evidence: Evidence, rows: Sequence[str]) -> list[float]:
    return gaps_of([result for row in rows for result in evidence.results(row)])


def _symmetry(evidence: Evidence) -> tuple[bool | None, str]:
    """Without a bias every net is blind for signs; where one trains all the same, blindness is not the obstacle."""
    good, of = trained(evidence, control_rows("lengths"))
    bad, of_bad = trained(evidence, control_rows("no-bias"))
    known = _gaps(evidence, control_rows("lengths"))
    blind = f"; their scores of x and −x differ by at most {written(max(known), 1)}" if known else ""
    says = (
        f"no bias, depths {_DEPTHS}: {good} of {of} runs train ({training(evidence)}) from a length-preserving start "
        f"({_accuracies(evidence, 'lengths')}), {bad} of {of_bad} as published{blind}"
    )
    return good == of and bad < of_bad, says


def _blind_and_wide(evidence: Evidence) -> tuple[bool | None, str]:
    """Look for a depth at which weights twice as large are all that a blind net needs."""
    depths = [depth for depth in CONTROL_DEPTHS if _trains(evidence, "wide", depth) and not _trains(evidence, "no-bias", depth)]
    rows = [control("wide", depth) for depth in depths or CONTROL_DEPTHS]
    known = _gaps(evidence, rows)
    says = (
        f"no bias, depths {_DEPTHS}: {_accuracies(evidence, 'wide')} right with weights twice as large, "
        f"{_accuracies(evidence, 'no-bias')} as published"
    )
    if not known:
        return None, says
    says += f"; scores of x and −x differ by at most {written(max(known), 1)}"
    return bool(depths) and max(known) < _SEES, says


def _published_bias(evidence: Evidence) -> tuple[bool | None, str]:
    good, of = trained(evidence, control_rows("bias"))
    return good == of, f"{good} of {of} runs train at depths {_DEPTHS} ({_accuracies(evidence, 'bias')})"


def compared_depths(evidence: Evidence) -> list[int]:
    """Return the depths at which the published bias trains, where others are compared with it."""
    return [depth for depth in CONTROL_DEPTHS if _trains(evidence, "bias", depth)]


def _as_the_published(evidence: Evidence, name: str) -> tuple[bool | None, str]:
    """Compare a control with the bias as published, at the depths at which that one trains."""
    depths = compared_depths(evidence)
    if not depths:
        return None, "the published bias trains no net"
    good, of = trained(evidence, [control(name, depth) for depth in depths])
    at = " and ".join(map(str, depths))
    says = (
        f"{good} of {of} runs train at depths {at}, where nets with a bias of 0.1 do; at {_DEPTHS}: "
        f"{_accuracies(evidence, name)}, with 0.1 {_accuracies(evidence, 'bias')}; learning starts at depths {at}: "
        f"{_starts(evidence, name, depths)}, with 0.1 {_starts(evidence, 'bias', depths)}"
    )
    return good == of, says


def _seeing(evidence: Evidence) -> tuple[bool | None, str]:
    """Among nets with a bias, compare whether they tell x from −x at the end with whether they trained."""
    results = [result for row in control_rows(*_WITH_A_BIAS) for result in evidence.results(row)]
    good = [result for result in results if has_trained(evidence, result)]
    bad = [result for result in results if not has_trained(evidence, result)]
    gaps, blind = gaps_of(good), gaps_of(bad)
    if not gaps or not blind:
        return None, f"{len(good)} of {len(results)} runs train"
    says = (
        f"scores of x and −x differ by {span_of(gaps, '.2g')} in the {len(good)} runs that train, and by "
        f"{span_of(blind, '.1g')} in the {len(bad)} that do not"
    )
    return min(gaps) >= _SEES and max(blind) < _SEES, says


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
            f"{depth} layers: from {written(min(good))} in runs that train, up to {written(max(bad))} in those that do not; "
            f"the longer ones train in {wins:.0%} of the pairs"
        )
    return None if is_open else told, "mean length in the last hidden layer at the start, " + "; ".join(parts)


def _lengths_by_end(evidence: Evidence, depth: int) -> tuple[list[float], list[float]]:
    """Return the lengths of runs that train, and of those that do not."""
    good: list[float] = []
    bad: list[float] = []
    for name in CONTROLS:
        for result in evidence.results(control(name, depth)):
            length = measured(result, "lengths", -2, when="start")
            if length is not None:
                (good if has_trained(evidence, result) else bad).append(length)
    return good, bad


def _accuracies(evidence: Evidence, name: str) -> str:
    return ", ".join(_accuracy(evidence.results(control(name, depth))) for depth in CONTROL_DEPTHS)


def _accuracy(results: Sequence[Result]) -> str:
    """Write the mean of the runs that came to a number."""
    known = [value for value in map(final, results) if value is not None]
    return f"{statistics.fmean(known):.1%}" if known else "no number"


def _starts(evidence: Evidence, name: str, depths: Sequence[int]) -> str:
    return ", ".join(step_of(evidence.mean(control(name, depth), "starts")) for depth in depths)


BIAS_CLAIMS = (
    Claim(
        "peer2022/lengths",
        "Deep nets train without a bias, blind for signs as they are, if their capsules' lengths are kept at the start.",
        "ours",
        control_rows("lengths", "no-bias"),
        _symmetry,
    ),
    Claim(
        "peer2022/blind-wide",
        "There is a depth at which weights twice as large are enough for a net without a bias to train, blind as it is.",
        "ours",
        control_rows("wide", "no-bias"),
        _blind_and_wide,
        is_long=True,
    ),
    Claim(
        "peer2022/published-bias",
        "The bias of 0.1 trains nets at all of these depths.",
        "ours",
        control_rows("bias"),
        _published_bias,
    ),
    Claim(
        "peer2022/zero-bias",
        "Where that bias trains a net, one that starts at 0, which props nothing up there, does as well.",
        "ours",
        control_rows("bias", "zero-bias"),
        lambda evidence: _as_the_published(evidence, "zero-bias"),
        is_long=True,
    ),
    Claim(
        "peer2022/last-bias",
        "Where it trains a net, one on the last layer alone does as well.",
        "ours",
        control_rows("bias", "last-bias"),
        lambda evidence: _as_the_published(evidence, "last-bias"),
        is_long=True,
    ),
    Claim(
        "peer2022/seeing",
        "Nets with a bias, of whichever kind, train where they come to tell x from −x, and stay blind where they do not train.",
        "ours",
        control_rows(*_WITH_A_BIAS),
        _seeing,
        is_long=True,
    ),
    Claim(
        "peer2022/still-helps",
        f"Where lengths are kept at the start, a bias still adds accuracy (here: {100 * _LUCK:.1f} points at each depth).",
        "ours",
        control_rows("lengths", "lengths-bias"),
        _still_helps,
        is_long=True,
    ),
    Claim(
        "peer2022/vanishing",
        "Among nets of one depth, those that train are the ones whose capsules are longer at the start.",
        "ours",
        control_rows(*CONTROLS),
        _vanish,
        is_long=True,
    ),
)
