"""What peer2022 says, and what we ask beside it, each decided by records."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence

from capsella.papers.deciding import span_of
from capsella.papers.peer2022.bias import BIAS_CLAIMS
from capsella.papers.peer2022.controls import CONTROL_DEPTHS, control
from capsella.papers.peer2022.deciding import (
    DATA,
    OPPOSITE,
    bound,
    key_of,
    keys_of,
    measured,
    step_of,
    trained,
    training,
)
from capsella.papers.readings import dig
from capsella.papers.verdicts import Claim, Evidence, Fact

# of the sign: far from guessing, which nothing without a bias can leave but by rounding.
_GUESSES, _KNOWS = 0.55, 0.95
_SIGNS = f"here: at most {_GUESSES:.0%} and at least {_KNOWS:.0%} right"
# steps within which learning "starts immediately": a fifth of the thousand that the paper gives nets without a bias.
_AT_ONCE = 200
_LATE = 1000
# of accuracies; what two runs of one net may differ by.
_LUCK = 0.05
# of accuracies; what the fault in the authors' pipeline costs at the least where it is said to cost something.
_COSTS = 0.01
# of the gradients of an input and its negative; left of them where they cancel.
_CANCELLED = 0.1
# of the pairs of images, from where on inputs and their negatives can be said to occur.
_OCCUR = 0.01


def _depth_claim(table: str, fails: Sequence[int], trains: Sequence[int]) -> Claim:
    """Without a bias, nets of some depths do not train, and with one they do."""
    without, bias = keys_of(table, False, fails), keys_of(table, True, trains)
    name = "agreement" if table == "table2" else "EM"

    def decide(evidence: Evidence) -> tuple[bool | None, str]:
        (bad, of_bad), (good, of_good) = trained(evidence, without), trained(evidence, bias)
        says = (
            f"trained ({training(evidence)}): {bad} of {of_bad} runs without a bias of {layers} layers, {good} of {of_good} "
            f"with one of {all_layers}"
        )
        return (bad == 0 and good == of_good), says

    layers, all_layers = " or ".join(map(str, fails)), f"{trains[0]} to {trains[-1]}"
    return Claim(
        f"peer2022/depth-{'agreement' if table == 'table2' else 'em'}",
        f"Without a bias, {name} nets of {layers} capsule layers do not train; with one, those of {all_layers} do.",
        "section 5.3, Tables 2 and 3",
        (*without, *bias),
        decide,
        # no EM net trains without a bias in a few hundred steps, of whatever depth.
        is_long=table == "table3",
    )


def _shallow_claim(table: str, depths: Sequence[int]) -> Claim:
    rows = (*keys_of(table, False, depths), *keys_of(table, True, depths))
    name, last = "Agreement" if table == "table2" else "EM", depths[-1]

    def decide(evidence: Evidence) -> tuple[bool | None, str]:
        good, of = trained(evidence, rows)
        return good == of, f"{good} of {of} runs trained ({training(evidence)})"

    return Claim(
        f"peer2022/shallow-{'agreement' if table == 'table2' else 'em'}",
        f"{name} trains up to {last} capsule layers, with a bias and without.",
        "section 5.3",
        rows,
        decide,
        # which takes EM a thousand steps without a bias, as the paper says.
        is_long=table == "table3",
    )


def _sign_claim(key: str, text: str, source: str, rows: str) -> Claim:
    """Without a bias the sign is not learned, and with one it is; ``rows`` is what the two keys begin with."""

    def decide(evidence: Evidence) -> tuple[bool | None, str]:
        without, bias = (evidence.values(f"peer2022/{rows}-{each}", "training") for each in ("no-bias", "bias"))
        says = f"signs right: {span_of(without, '.2%')} without a bias, {span_of(bias, '.2%')} with one"
        return max(without) < _GUESSES and min(bias) > _KNOWS, says

    return Claim(key, text, source, (f"peer2022/{rows}-no-bias", f"peer2022/{rows}-bias"), decide)


def _starts(evidence: Evidence, bias: bool) -> dict[int, list[float]]:
    return {depth: evidence.values(key_of("table3", "mnist", bias, depth), "starts") for depth in (5, 6, 7, 8, 9)}


def _at_once(evidence: Evidence) -> tuple[bool | None, str]:
    steps = [value for values in _starts(evidence, True).values() for value in values]
    return max(
        steps
    ) <= _AT_ONCE, f"with a bias, depths 5 to 9: earliest start {step_of(min(steps))}, latest {step_of(max(steps))}"


def _late(evidence: Evidence) -> tuple[bool | None, str]:
    steps = [value for values in _starts(evidence, False).values() for value in values]
    says = f"without a bias, depths 5 to 9: earliest start {step_of(min(steps))}"
    # where none learns at all, none learns late.
    return None if math.isinf(min(steps)) else min(steps) >= _LATE, says


def _later_with_depth(evidence: Evidence) -> tuple[bool | None, str]:
    means = {depth: statistics.fmean(values) for depth, values in _starts(evidence, False).items()}
    steps = list(means.values())
    says = ", ".join(f"{depth} layers: {step_of(step)}" for depth, step in means.items())
    rising = all(a <= b for a, b in itertools.pairwise(steps)) and steps[0] < steps[-1]
    return rising, f"without a bias, mean start of {says}"


def _never(evidence: Evidence) -> tuple[bool | None, str]:
    deep = [value for depth in (8, 9) for value in evidence.values(key_of("table3", "mnist", False, depth), "starts")]
    return all(map(math.isinf, deep)), f"{sum(map(math.isinf, deep))} of {len(deep)} runs of 8 and 9 layers never start"


def _faster(evidence: Evidence) -> tuple[bool | None, str]:
    """Compare the mean training accuracy of the first 2,000 steps at the shallowest depth."""
    early = {}
    for bias in (False, True):
        found = []
        for result in evidence.results(key_of("table3", "mnist", bias, 5)):
            pairs = zip(result.curve["step"], result.curve["accuracy"], strict=True)
            found.append(statistics.fmean([accuracy for step, accuracy in pairs if step <= 2000] or [0.0]))
        early[bias] = found
    means = {bias: statistics.fmean(values) for bias, values in early.items()}
    says = (
        f"mean training accuracy of the first 2,000 steps at depth 5: {means[True]:.2%} with a bias, {means[False]:.2%} without"
    )
    # of single runs a few points may be luck.
    luck = max(_LUCK, sum(statistics.stdev(values) for values in early.values() if len(values) > 1))
    off = means[True] - means[False]
    return (None if abs(off) <= luck else off > 0), says


def _relu(evidence: Evidence) -> tuple[bool | None, str]:
    linear = [v for r in ("rba", "em") for v in evidence.values(f"peer2022/relu/linear-{r}", "training")]
    relu = [v for r in ("rba", "em") for v in evidence.values(f"peer2022/relu/relu-{r}", "training")]
    says = f"signs right, no bias: {span_of(relu, '.2%')} with a ReLU before the capsules, {span_of(linear, '.2%')} without"
    return min(relu) > _KNOWS and max(linear) < _GUESSES, says


def _no_negatives(evidence: Evidence) -> tuple[bool | None, str]:
    rows = [key_of("table2", data, False, 2) for data in DATA]
    shares = [measured(result, "negative_share") for row in rows for result in evidence.results(row)]
    known = [share for share in shares if share is not None]
    if not known:
        return None, "nothing was measured"
    return max(known) == 0, f"up to {max(known):.0%} of the values of the trained nets' primary capsules are negative"


def _cancel_claim(key: str, what: str, source: str, without: Sequence[str], bias: Sequence[str]) -> Claim:
    """The gradients of x and −x cancel where learning has to begin; where it has ended, blind nets are at rest anyway.

    What the loss alone leaves of two gradients of different classes, whatever the net, is in those of nets with a bias too.
    """

    def left(evidence: Evidence, rows: Sequence[str], when: str) -> list[float]:
        found = [measured(result, "cancelling", "left", when=when) for row in rows for result in evidence.results(row)]
        return [value for value in found if value is not None]

    def decide(evidence: Evidence) -> tuple[bool | None, str]:
        start, beside = left(evidence, without, "start"), left(evidence, bias, "start")
        if not start or not beside:
            return None, "no gradients were left to compare"
        runs = sum(len(evidence.results(row)) for row in without)
        which = "" if len(start) == runs else f" (of {len(start)} of {runs} runs, the others have no gradient)"
        says = (
            f"left of the gradients of x and −x at the start: {span_of(start, '.1%')} without a bias{which}, "
            f"{span_of(beside, '.1%')} with one"
        )
        ends = left(evidence, without, "end"), left(evidence, bias, "end")
        if all(ends):
            says += "; at the end {} and {}".format(*(span_of(each, ".1%") for each in ends))
        cancelled = max(start) < _CANCELLED and max(start) < min(beside)
        kept = min(start) > _CANCELLED and statistics.fmean(start) >= statistics.fmean(beside)
        return (True if cancelled else False if kept else None), says

    return Claim(
        f"peer2022/{key}",
        f"{what} at the start the gradients of an input and of its negative, of another class, cancel each other (here: less "
        f"than {_CANCELLED:.0%} is left, and less than with a bias).",
        source,
        (*without, *bias),
        decide,
    )


# deep nets on MNIST, those that train among them, without a bias and with one.
_BLIND = (
    *keys_of("table2", False, (4, 5), ("mnist",)),
    *keys_of("table3", False, (5, 6, 7, 8, 9), ("mnist",)),
    *(control("lengths", depth) for depth in CONTROL_DEPTHS),
)
_SEEING = (
    *keys_of("table2", True, (4, 5), ("mnist",)),
    *keys_of("table3", True, (5, 6, 7, 8, 9), ("mnist",)),
    *(control("zero-bias", depth) for depth in (4, 5)),
)


def _opposites(evidence: Evidence) -> tuple[bool | None, str]:
    """Do inputs and their negatives meet in deep nets, before any training and after?"""
    shares, lowest = _pairs(evidence, _BLIND)
    if not shares:
        return None, "nothing was measured"
    says = f"{_at_most(shares)} of the pairs in any layer, the lowest cosine is {min(lowest):.2f}"
    beside, lowest_beside = _pairs(evidence, _SEEING)
    if beside:
        says += f"; of nets with a bias {_at_most(beside)}, the lowest {min(lowest_beside):.2f}"
    return max(shares) >= _OCCUR, says.replace("-", "−")


def _at_most(shares: Sequence[float]) -> str:
    return f"at most {max(shares):.2%}" if max(shares) >= 5e-5 else "under 0.01%" if max(shares) else "none"


def _pairs(evidence: Evidence, rows: Sequence[str]) -> tuple[list[float], list[float]]:
    """Return shares of opposite pairs and lowest cosines, of all layers at the start and at the end."""
    layers = [
        layer
        for row in rows
        for result in evidence.results(row)
        for when in ("start", "end")
        for layer in dig(result.measured, "peer2022.inside", when, "opposites") or []
    ]
    shares, lowest = ([layer[key] for layer in layers if layer[key] is not None] for key in ("share", "lowest"))
    return shares, lowest


def _fault(evidence: Evidence) -> tuple[bool | None, str]:
    """Compare each net that trains with itself, on Fashion-MNIST."""
    gains = []
    for table, depths in (("table2", (2, 3, 4, 5)), ("table3", (5, 6, 7, 8, 9))):
        for row in keys_of(table, True, depths, ("fashion",)):
            pairs = zip(evidence.values(row), evidence.values(row, "clean"), strict=True)
            gains += [clean - faulty for faulty, clean in pairs if faulty >= bound(evidence)]
    if not gains:
        return None, "no net trains"
    mean, span = statistics.fmean(gains), span_of([100 * gain for gain in gains], "+.1f")
    return (
        mean > _COSTS,
        f"points gained without it by nets that train: {100 * mean:.1f} in the mean, {span} in {len(gains)} runs",
    )


CLAIMS = (
    _sign_claim(
        "peer2022/sign-agreement",
        f"Without a bias, agreement does not learn the sign of a number; with one it does ({_SIGNS}).",
        "section 5.2, Table 1",
        "table1/rba",
    ),
    _sign_claim(
        "peer2022/sign-em",
        f"Without a bias, EM does not learn the sign of a number; with one it does ({_SIGNS}).",
        "section 5.2, Table 1",
        "table1/em",
    ),
    _sign_claim(
        "peer2022/sign-em-defined",
        "EM as Hinton et al. define it, whose poses are means and not only directions, learns the sign with a bias alone "
        f"({_SIGNS}).",
        "ours, beside Table 1",
        "sign/em-defined",
    ),
    _depth_claim("table2", (4, 5), (2, 3, 4, 5)),
    _depth_claim("table3", (8, 9), (5, 6, 7, 8, 9)),
    _shallow_claim("table2", (2, 3)),
    _shallow_claim("table3", (5, 6)),
    Claim(
        "peer2022/at-once",
        f"With a bias, EM nets begin to learn MNIST at once whatever their depth (here: within {_AT_ONCE} steps).",
        "section 5.3, Figure 2",
        keys_of("table3", True, (5, 6, 7, 8, 9), ("mnist",)),
        _at_once,
    ),
    Claim(
        "peer2022/late",
        "Without a bias, EM nets need at least 1,000 steps before they begin to learn MNIST.",
        "section 5.3, Figure 2a",
        keys_of("table3", False, (5, 6, 7, 8, 9), ("mnist",)),
        _late,
        is_long=True,
    ),
    Claim(
        "peer2022/later-with-depth",
        "Without a bias, learning MNIST begins the later the deeper the net is.",
        "section 5.3, Figure 2b and 2c",
        keys_of("table3", False, (5, 6, 7, 8, 9), ("mnist",)),
        _later_with_depth,
        is_long=True,
    ),
    Claim(
        "peer2022/never",
        "Without a bias, EM nets of 8 and 9 layers do not begin to learn MNIST within 50 epochs.",
        "section 5.3, Figure 2d and 2e",
        keys_of("table3", False, (8, 9), ("mnist",)),
        _never,
        is_long=True,
    ),
    Claim(
        "peer2022/faster",
        "Training on MNIST converges faster with a bias in a shallow net too (EM of 5 layers).",
        "section 5.3, Figure 2a",
        (*keys_of("table3", False, (5,), ("mnist",)), *keys_of("table3", True, (5,), ("mnist",))),
        _faster,
    ),
    Claim(
        "peer2022/relu",
        "A ReLU before the capsules protects a net without a bias: an input and its negative no longer look the same "
        f"(here: at least {_KNOWS:.0%} of the signs right, and at most {_GUESSES:.0%} without it).",
        "section 1",
        tuple(f"peer2022/relu/{trunk}-{routing}" for trunk in ("linear", "relu") for routing in ("rba", "em")),
        _relu,
    ),
    Claim(
        "peer2022/no-negatives",
        "In shallow nets no component of the inputs to the first capsule layer is negative.",
        "section 1",
        tuple(key_of("table2", data, False, 2) for data in DATA),
        _no_negatives,
    ),
    _cancel_claim(
        "cancel-agreement",
        "Agreement nets that learn signs:",
        "section 6, a hypothesis",
        ("peer2022/table1/rba-no-bias",),
        ("peer2022/table1/rba-bias",),
    ),
    _cancel_claim(
        "cancel-em",
        "EM nets that learn signs:",
        "section 6, a hypothesis",
        ("peer2022/table1/em-no-bias",),
        ("peer2022/table1/em-bias",),
    ),
    _cancel_claim(
        "cancel-deep",
        "Deep nets that learn MNIST, which do not train without a bias (agreement of 4 and 5 layers, EM of 8 and 9):",
        "section 6, a hypothesis",
        (*keys_of("table2", False, (4, 5), ("mnist",)), *keys_of("table3", False, (8, 9), ("mnist",))),
        (*keys_of("table2", True, (4, 5), ("mnist",)), *keys_of("table3", True, (8, 9), ("mnist",))),
    ),
    Claim(
        "peer2022/opposites",
        "In deep nets without a bias inputs and their negatives occur, of different classes (here: a cosine below "
        f"{OPPOSITE:.1f} in {_OCCUR:.0%} of the pairs, in some layer).".replace("-", "−"),
        "section 1, an assumption",
        (*_BLIND, *_SEEING),
        _opposites,
    ),
    Claim(
        "peer2022/fault",
        f"The fault in the authors' pipeline costs Fashion-MNIST accuracy (here: more than {_COSTS:.0%} in the mean).",
        "ours, beside Tables 2 and 3",
        (*keys_of("table2", True, (2, 3, 4, 5), ("fashion",)), *keys_of("table3", True, (5, 6, 7, 8, 9), ("fashion",))),
        _fault,
    ),
    *BIAS_CLAIMS,
)


def _first_start(evidence: Evidence) -> float | None:
    return evidence.mean(key_of("table3", "mnist", False, 5), "starts")


def _examples(evidence: Evidence) -> float | None:
    found = dig(evidence.results("peer2022/table1/rba-no-bias")[0].data, "train", "images")
    return None if found is None else float(found)


def _batch_size(evidence: Evidence) -> float | None:
    rows = ("peer2022/table1/rba-no-bias", key_of("table2", "mnist", False, 2))
    sizes = {dig(result.plan, "train", "batch_size") for row in rows for result in evidence.results(row)}
    return float(sizes.pop()) if len(sizes) == 1 and None not in sizes else None


FACTS: dict[str, Fact] = {
    "text/sign-examples": _examples,
    "text/batch-size": _batch_size,
    "text/steps-before-learning": _first_start,
}

REMARKS = {
    "table1/em-bias": (
        "the authors' EM gives on a·μ/‖μ‖: of a pose of one value its sign, whose derivative is 0, so that the hidden layer's "
        "thresholds stay where they started: the likely reason; where the drawn ones happen to suit, a net "
        "learns it all the same. The table of EM as defined has the poses μ themselves"
    ),
    "text/implementations-without-bias": "a survey of other people's code, which is nothing to run",
    "text/sign-examples": "20,002: 0, 1e-4, …, 1 and their negatives, zero in both classes, as the authors' code makes them",
    "text/steps-before-learning": "printed as a lower bound; ours is the mean start of the shallowest net, of 5 layers",
}
