"""What yang2021 says of its tables and figures, decided by records; its assumptions are in ``assumptions``."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from capsella.papers.deciding import all_of, span_of
from capsella.papers.readings import measured
from capsella.papers.verdicts import Claim, Evidence, Missing
from capsella.papers.yang2021.assumptions import ASSUMPTIONS
from capsella.papers.yang2021.deciding import falls_further, lower
from capsella.papers.yang2021.nets import METHODS, SETS, cell, deep, pairs, timed, undivided

# of errors: what "similar" is, in whole runs and in short ones; the printed ones lie 0.12 and 0.07 points apart.
_SIMILAR = {"mnist": 0.0015, "multimnist": 0.005}
_SHORT_SIMILAR = 0.03
_UNDER = 0.004
_SAVED = 0.2
# of drawings: from where on "a fraction" of them, more than of a net's own, is not of the image.
_FRACTION = 0.05
# of the test images: from where on a net trains, in whole runs and in short ones.
_TRAINS, _BEGINS = 0.5, 0.25
_CLIMBS = ("l2", "l1")
# whose trainings are short enough to be repeated in another way.
_SHORT = ("mnist", "fashion")
_DRAWN = cell("fashion", "l2", decoder=False)


def _name(data: str) -> str:
    return "MultiMNIST" if data == "multimnist" else SETS[data]


def _similar(evidence: Evidence, data: str, rows: dict[str, str], reading: str) -> tuple[bool | None, str]:
    errors = {method: evidence.mean(row, reading) for method, row in rows.items()}
    off = max(abs(errors[method] - errors["dr"]) for method in _CLIMBS)
    bound = _SHORT_SIMILAR if evidence.is_quick else _SIMILAR[data]
    says = ", ".join(f"{METHODS[method]} {error:.2%}" for method, error in errors.items())
    return off <= bound, f"errors: {says}; at most {100 * off:.2f} points apart from DR"


def _under(evidence: Evidence) -> tuple[bool | None, str]:
    errors = [value for row in _printed_mnist() for value in evidence.values(row, "error")]
    best = [value for row in _printed_mnist() for value in evidence.values(row, "best_error")]
    return max(errors) < _UNDER, f"errors at the end {span_of(errors, '.2%')}, in the best epochs {span_of(best, '.2%')}"


def _printed_mnist() -> tuple[str, ...]:
    with_decoder = tuple(cell("mnist", method) for method in METHODS)
    return (*with_decoder, *(cell("mnist", method, decoder=False) for method in _CLIMBS))


def _lower_claim(
    key: str, text: str, source: str, pairs_of_rows: Sequence[tuple[str, str, str]], *, data: str, reading: str = "error"
) -> Claim:
    """One figure is lower than another's: ``pairs_of_rows`` has a name, the row that should be lower, and the other."""

    def decide(evidence: Evidence) -> tuple[bool | None, str]:
        found = {name: lower(evidence, one, other, reading, data) for name, one, other in pairs_of_rows}
        says = ", ".join(f"{name} {difference}" for name, difference in found.items())
        return all_of([each.is_lower for each in found.values()]), f"points of error beside the other: {says}"

    rows = tuple(dict.fromkeys(row for _, *two in pairs_of_rows for row in two))
    return Claim(f"yang2021/{key}", text, source, rows, decide)


def _faster_claim(key: str, text: str, source: str, data: str, rows: dict[str, str], dr: str) -> Claim:
    beside = [(name, row, dr) for name, row in rows.items()]
    return _lower_claim(key, text, source, beside, data=data, reading="early_error")


def savings(evidence: Evidence, data: Sequence[tuple[str, bool]], reading: str) -> list[float]:
    """Return which part of dynamic routing's time L1 and L2 save, net by net; of those that were timed."""
    found = []
    for name, decoder in data:
        rows = {method: timed(name, method, decoder=decoder) for method in METHODS}
        if all(map(evidence.has, rows.values())):
            dr = evidence.mean(rows["dr"], reading)
            found += [1 - evidence.mean(rows[method], reading) / dr for method in _CLIMBS]
    if not found:
        raise Missing(timed("mnist", "dr"))
    return found


def _time_claim(key: str, text: str, data: Sequence[tuple[str, bool]]) -> Claim:
    def decide(evidence: Evidence) -> tuple[bool | None, str]:
        ours, plain = (savings(evidence, data, reading) for reading in ("seconds", "reference_seconds"))
        says = f"saved of DR's time: {span_of(ours, '.0%')} as trained, {span_of(plain, '.0%')} by the reference"
        return min(ours) >= _SAVED, says

    rows = tuple(timed(name, method, decoder=decoder) for name, decoder in data for method in METHODS)
    return Claim(f"yang2021/{key}", text, "section IV-C, Figure 4", rows, decide)


def misread(evidence: Evidence, whose: str) -> float:
    """Return the mean share of drawings from some net's capsules that are taken for another class."""
    found = [measured("yang2021.drawn", whose, "misread")(result) for result in evidence.results(_DRAWN)]
    known = [value for value in found if value is not None]
    if not known:
        raise Missing(_DRAWN)
    return statistics.fmean(known)


def _drawn(evidence: Evidence) -> tuple[bool | None, str]:
    own, beside = misread(evidence, "own"), misread(evidence, "beside")
    says = (
        f"drawings of seed 0 taken for another class: {beside:.1%} from the L2 net's capsules, {own:.1%} from the DR net's own"
    )
    return beside - own > _FRACTION, says


def _apart(evidence: Evidence) -> tuple[bool | None, str]:
    own, beside, other = (misread(evidence, whose) for whose in ("own", "beside", "other"))
    says = (
        f"drawings taken for another class: {other:.1%} from the capsules of a second DR net with a decoder, {beside:.1%} from "
        f"those of the L2 net without one, {own:.1%} from the DR net's own"
    )
    if beside - own <= _FRACTION:
        return None, f"{says}: there is nothing to explain"
    return (other - own) / (beside - own) > 0.5, says


_DEEP = tuple(deep("l2", depth) for depth in (3, 4))


def _depth(evidence: Evidence) -> tuple[bool | None, str]:
    values = [value for row in _DEEP for value in evidence.values(row)]
    bound = _BEGINS if evidence.is_quick else _TRAINS
    good = sum(value >= bound for value in values)
    return good == len(values), f"{good} of {len(values)} runs of 3 and 4 layers train; accuracies {span_of(values, '.2%')}"


def _rows(data: str, *, decoder: bool) -> dict[str, str]:
    return {METHODS[method]: cell(data, method, decoder=decoder) for method in _CLIMBS}


def _no_decoder(evidence: Evidence) -> tuple[bool | None, str]:
    drops = {method: lower(evidence, after, before, "error", "fashion") for method, (before, after) in _WITHOUT.items()}
    more = falls_further(evidence, _WITHOUT["l2"], _WITHOUT["l1"], "error", "fashion")
    says = ", ".join(f"{METHODS[method]} {drop}" for method, drop in drops.items())
    answer = all_of([drops["l2"].is_lower, more.is_lower])
    return answer, f"points of error beside those with a decoder: {says}; L2's beside L1's {more}"


_WITHOUT = {method: (cell("fashion", method), cell("fashion", method, decoder=False)) for method in _CLIMBS}
_PAIRED = {method: pairs(method) for method in METHODS}
_MNIST = {method: cell("mnist", method) for method in METHODS}

_DIVIDED = {data: {METHODS[method]: (cell(data, method), undivided(data, method)) for method in METHODS} for data in _SHORT}


def _late(evidence: Evidence, reading: str) -> tuple[bool | None, str]:
    """Compare nets whose primary capsules' sums are divided with those where they are not."""
    found = {
        f"{SETS[data]} {name}": lower(evidence, *two, reading, data)
        for data, rows in _DIVIDED.items()
        for name, two in rows.items()
    }
    says = ", ".join(f"{name} {difference}" for name, difference in found.items())
    return all_of([each.is_lower for each in found.values()]), f"points of error beside nets without the division: {says}"


def _late_rows() -> tuple[str, ...]:
    return tuple(key for rows in _DIVIDED.values() for two in rows.values() for key in two)


CLAIMS = (
    Claim(
        "yang2021/mnist-similar",
        f"On MNIST L1 and L2 classify about as well as DR (here: within {100 * _SIMILAR['mnist']:.2f} points of error).",
        "section IV-B, Table II",
        tuple(_MNIST.values()),
        lambda evidence: _similar(evidence, "mnist", _MNIST, "error"),
    ),
    Claim(
        "yang2021/mnist-under",
        f"On MNIST all models come to an error under {_UNDER:.1%} (Table II itself prints 0.44% for L1 without a decoder).",
        "section IV-C, Figure 3a",
        _printed_mnist(),
        _under,
        is_long=True,
    ),
    _lower_claim(
        "fashion-better",
        "On Fashion-MNIST L2 and L1 have lower errors than DR.",
        "section IV-B, Table II",
        [(name, row, cell("fashion", "dr")) for name, row in _rows("fashion", decoder=True).items()],
        data="fashion",
    ),
    Claim(
        "yang2021/no-decoder",
        "On Fashion-MNIST the error falls further without the decoder, with L2 above all (here: more than with L1).",
        "section IV-B, Table II",
        tuple(row for rows in _WITHOUT.values() for row in rows),
        _no_decoder,
    ),
    _lower_claim(
        "cifar-better",
        "On CIFAR-10 L2 and L1 have lower errors than DR.",
        "section IV-B, Table II",
        [(name, row, cell("cifar10", "dr")) for name, row in _rows("cifar10", decoder=False).items()],
        data="cifar10",
    ),
    _faster_claim(
        "fashion-faster",
        "On Fashion-MNIST L1 and L2, with a decoder and without, converge faster than DR.",
        "section IV-C, Figure 3b",
        "fashion",
        {
            f"{name}{'' if decoder else ', no decoder'}": row
            for decoder in (True, False)
            for name, row in _rows("fashion", decoder=decoder).items()
        },
        cell("fashion", "dr"),
    ),
    _faster_claim(
        "cifar-faster",
        "On CIFAR-10 L1 and L2 converge faster than DR.",
        "section IV-C, Figure 3c",
        "cifar10",
        _rows("cifar10", decoder=False),
        cell("cifar10", "dr"),
    ),
    Claim(
        "yang2021/multimnist-similar",
        "On MultiMNIST the errors are similar after 200,000 steps "
        f"(here: within {100 * _SIMILAR['multimnist']:.1f} points of DR's).",
        "section IV-B2",
        tuple(_PAIRED.values()),
        lambda evidence: _similar(evidence, "multimnist", _PAIRED, "pairs_error"),
        is_long=True,
    ),
    _faster_claim(
        "multimnist-faster",
        "On MultiMNIST the error of L1 and L2 drops much faster than DR's in early steps.",
        "section IV-C, Figure 3d",
        "multimnist",
        {METHODS[method]: pairs(method) for method in _CLIMBS},
        pairs("dr"),
    ),
    _time_claim(
        "time",
        f"On grey images a step of L1 or L2 saves at least {_SAVED:.0%} of DR's time.",
        (("mnist", True), ("mnist", False), ("multimnist", True)),
    ),
    _time_claim(
        "time-cifar", f"On CIFAR-10 a step of L1 or L2 saves at least {_SAVED:.0%} of DR's time.", (("cifar10", False),)
    ),
    Claim(
        "yang2021/drawn",
        "A fraction of the images that the L2 net without a decoder tells right are not drawn again by the DR net's decoder "
        f"(here: over {_FRACTION:.0%} more than from its own capsules).",
        "section IV-B1, Figure 2",
        (_DRAWN,),
        _drawn,
    ),
    Claim(
        "yang2021/depth",
        "Couplings that climb go with more than two capsule layers.",
        "section III-C",
        _DEEP,
        _depth,
    ),
    *ASSUMPTIONS,
    _lower_claim(
        "routing-alone",
        "On Fashion-MNIST L2 and L1 have lower errors than DR where none of them has a decoder.",
        "ours",
        [(name, row, cell("fashion", "dr", decoder=False)) for name, row in _rows("fashion", decoder=False).items()],
        data="fashion",
    ),
    Claim(
        "yang2021/apart",
        "What fails in Figure 2 is that nets trained apart share no code: capsules of a second DR net are drawn wrong as well.",
        "ours",
        (_DRAWN,),
        _apart,
    ),
    _lower_claim(
        "depth-better",
        "With 3 and 4 capsule layers L2 has lower errors than DR on MNIST.",
        "ours",
        [(f"{depth} layers", deep("l2", depth), deep("dr", depth)) for depth in (3, 4)],
        data="mnist",
    ),
    Claim(
        "yang2021/late",
        "Without the base code's division of the primary capsules' sums all class capsules are long at the start, and nets "
        "begin late: with it the mean error over the first third of the steps is lower, of DR, L2 and L1.",
        "ours",
        _late_rows(),
        lambda evidence: _late(evidence, "early_error"),
        is_long=True,
    ),
    Claim(
        "yang2021/late-costs",
        "That costs accuracy in the end as well: with the division errors are lower, of DR, L2 and L1.",
        "ours",
        _late_rows(),
        lambda evidence: _late(evidence, "error"),
        is_long=True,
    ),
)
