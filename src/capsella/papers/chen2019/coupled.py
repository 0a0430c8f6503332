"""What chen2019 says of couplings that are trained, decided by what was measured on them; and what they are worth."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from capsella.papers.chen2019.deciding import claim, listed, lower_claim, seen
from capsella.papers.chen2019.nets import PRINTED, SETS, WITHOUT, cell, row
from capsella.papers.deciding import span_of
from capsella.papers.verdicts import Claim, Evidence

_COUPLINGS = "chen2019.couplings"
# of the sum of a capsule's couplings: from where on it is another than 1.
_OFF = 0.01
# of a coupling's change between images: rounding of means.
_NONE = 1e-9
# of scores: more than rounding.
_ROUNDING = 1e-4
# of a step's time: what is faster, not noise.
_FASTER = 0.05

_FC = "fc-gcapsnet"
_TRAINED = {
    "mnist": tuple(cell("mnist", name) for name in PRINTED["mnist"] if "gcapsnet" in name),
    # the couplings of the multi-layer net are of positions, its weights are not.
    "cifar10": tuple(cell("cifar10", name) for name in (_FC, "conv-gcapsnet")),
}


def _ends(evidence: Evidence, rows: Sequence[str], over: str) -> list[float]:
    """Return the lowest and the highest sum of every run's couplings."""
    return [value for each in rows for end in ("lowest", "highest") for value in seen(evidence, each, _COUPLINGS, over, end)]


def _sums(evidence: Evidence, data: str) -> tuple[bool | None, str]:
    agreeing, trained = (_ends(evidence, rows, "over_classes") for rows in ((cell(data, "capsnet"),), _TRAINED[data]))
    says = (
        f"sums over the classes: CapsNet {span_of(agreeing, '.3f')}, G-CapsNets {span_of(trained, '.3f')}; sums of G-CapsNets "
        f"over the lower capsules {span_of(_ends(evidence, _TRAINED[data], 'over_capsules'), '.1f')}"
    )
    return max(abs(value - 1) for value in agreeing) < _OFF < max(abs(value - 1) for value in trained), says


def _one_pass(evidence: Evidence, data: str) -> tuple[bool | None, str]:
    agreeing = seen(evidence, cell(data, "capsnet"), _COUPLINGS, "varies")
    trained = [value for each in _TRAINED[data] for value in seen(evidence, each, _COUPLINGS, "varies")]
    says = f"mean change of a coupling between images: CapsNet {span_of(agreeing, '.2g')}, G-CapsNets {span_of(trained, '.2g')}"
    return max(trained) < _NONE < min(agreeing), says


def _moved(evidence: Evidence, data: str) -> tuple[bool | None, str]:
    changes = [value for each in _TRAINED[data] for value in seen(evidence, each, _COUPLINGS, "moved")]
    says = f"scores change by at most {max(changes):.1g} where weights take the couplings over, and those left add up to 1"
    return max(changes) < _ROUNDING, says


def _saved(evidence: Evidence, data: str, reading: str) -> float:
    own, other = (evidence.mean(timed(data, net), reading) for net in (_FC, "capsnet"))
    return 1 - own / other


def _time(evidence: Evidence, data: str) -> tuple[bool | None, str]:
    ours, plain = (_saved(evidence, data, reading) for reading in ("seconds", "reference_seconds"))
    saved = listed({"as trained": ours, "by the reference": plain}, ".0%")
    return ours > _FASTER, f"of a CapsNet's time an FC G-CapsNet saves: {saved}"


def timed(data: str, name: str) -> str:
    """Return the key of a timing."""
    return row("time", f"{data}-{name}")


def _of(
    data: str,
    key: str,
    text: str,
    source: str,
    rows: tuple[str, ...],
    decide: Callable[[Evidence, str], tuple[bool | None, str]],
) -> Claim:
    """Return a claim of one data set."""
    return claim(f"{key}-{data}", f"On {SETS[data]} {text}", source, rows, lambda evidence: decide(evidence, data))


COUPLED = (
    *(
        _of(data, key, text, source, rows, decide)
        for data in SETS
        for key, text, source, rows, decide in (
            (
                "sums",
                "a capsule's couplings add up to 1 in a CapsNet, and to anything in a G-CapsNet.",
                "Table 1, section 3.1",
                (cell(data, "capsnet"), *_TRAINED[data]),
                _sums,
            ),
            (
                "one-pass",
                "a G-CapsNet's couplings are found once and the same for every image; a CapsNet finds them for each.",
                "Table 1",
                (cell(data, "capsnet"), *_TRAINED[data]),
                _one_pass,
            ),
            (
                "time",
                f"trained couplings save the time of routing (here: over {_FASTER:.0%} of a step).",
                "abstract, section 1",
                (timed(data, _FC), timed(data, "capsnet")),
                _time,
            ),
        )
    ),
)
"""What the paper says."""

MOVED = (
    *(
        _of(
            data,
            "moved",
            "couplings that add up to 1 limit nothing: weights can take over what trained ones have beyond it.",
            "ours",
            _TRAINED[data],
            _moved,
        )
        for data in SETS
    ),
    *(
        lower_claim(
            f"trained-{data}",
            f"On {name} FC G-CapsNets have lower errors than the same nets with couplings that stay at 1/10.",
            "ours",
            [("trained:", cell(data, net), row("controls", f"{data}-fixed"))],
            data,
        )
        for data, name, net in (("mnist", "MNIST", _FC + WITHOUT), ("cifar10", "CIFAR-10", _FC))
    ),
)
"""What we ask."""
