"""What chen2019 says of errors, sizes, speed and couplings, decided by records; attacks are in ``robustness``."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from capsella.papers.chen2019.deciding import (
    Decide,
    Pair,
    all_lower,
    both,
    listed,
    lower_claim,
    paired,
    rows_of,
    seen,
)
from capsella.papers.chen2019.nets import MODELS, PRINTED, SETS, WITHOUT, cell, row
from capsella.papers.chen2019.robustness import NETS, ROBUSTNESS
from capsella.papers.verdicts import Claim, Evidence
from capsella.papers.yang2021.deciding import all_of, lower, span_of

_COUPLINGS = "chen2019.couplings"

ITERATIONS = (1, 2, 3, 4, 5)
"""Of dynamic routing on MNIST; those of the released net, four, are in Table 2."""

RATES = {"printed": 0.01, "undivided": 1.0}
"""Of dynamic routing, beside the one of Table 2's row: as released, and what that amounts to."""

# of errors: what "no difference" is, in whole runs and in short ones; the printed ones lie 0.01 and 0.02 points apart.
_SAME, _SHORT_SAME = 0.001, 0.03
# of the sum of a capsule's couplings: from where on it is another than 1.
_OFF = 0.01
# of a coupling's change between images: rounding of means.
_NONE = 1e-9
# of scores: more than rounding.
_ROUNDING = 1e-4
# of a step's time: what is faster, not noise.
_FASTER = 0.05
# of the error on generated images: what "no significant difference" is.
_CONVERGED = 0.005

_MNIST_G = tuple(name for name in PRINTED["mnist"] if "gcapsnet" in name)
_CIFAR_G = tuple(name for name in PRINTED["cifar10"] if "gcapsnet" in name)
_FC, _CONV = "fc-gcapsnet", "conv-gcapsnet"
_DRAWN = tuple(NETS.values())
_TRAINED = {
    "mnist": tuple(cell("mnist", name) for name in _MNIST_G),
    # the couplings of the multi-layer net are of positions, its weights are not.
    "cifar10": tuple(cell("cifar10", name) for name in (_FC, _CONV)),
}


def iterated(number: int) -> str:
    """Return the key of a CapsNet by its iterations."""
    return cell("mnist", "capsnet") if number == 4 else row("iterations", f"mnist-{number}")


def _pairs(data: str, names: tuple[str, ...], other: str) -> list[Pair]:
    return [(MODELS[name], cell(data, name), cell(data, other)) for name in names]


def _fewer(data: str, names: tuple[str, ...], other: str) -> Decide:
    """Return what holds where nets have fewer parameters than another."""

    def decide(evidence: Evidence) -> tuple[bool | None, str]:
        sizes = {name: evidence.results(cell(data, name))[0].parameters for name in (*names, other)}
        says = ", ".join(f"{MODELS[name]} {size:,}" for name, size in sizes.items())
        return max(sizes[name] for name in names) < sizes[other], f"parameters: {says}"

    return decide


def _reconstruction(evidence: Evidence) -> tuple[bool | None, str]:
    bound = _SHORT_SAME if evidence.is_quick else _SAME
    found = {
        MODELS[name]: evidence.mean(cell("mnist", name), "error") - evidence.mean(cell("mnist", name + WITHOUT), "error")
        for name in (_FC, _CONV)
    }
    says = listed({name: 100 * off for name, off in found.items()}, "+.2f")
    return max(map(abs, found.values())) <= bound, f"points of error that a decoder adds: {says}"


def _iterations(evidence: Evidence) -> tuple[bool | None, str]:
    found = {number: lower(evidence, iterated(3), iterated(number), "error", "mnist") for number in ITERATIONS if number != 3}
    errors = listed({f"{number}:": evidence.mean(iterated(number), "error") for number in ITERATIONS})
    return all_of([each.is_lower for each in found.values()]), f"errors by iterations: {errors}"


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


def _generated(evidence: Evidence) -> tuple[bool | None, str]:
    found = {name: paired(evidence, each, _DRAWN[0], "generated_early") for name, each in list(NETS.items())[1:]}
    means = listed({MODELS[name]: evidence.mean(each, "generated_early") for name, each in NETS.items()})
    says = ", ".join(f"{MODELS[name]} {difference}" for name, difference in found.items())
    answer = all_of([each.is_lower for each in found.values()])
    return answer, f"mean error on images of epochs 1 to 3: {means}; points beside the CNN on the same images: {says}"


def _converged(evidence: Evidence) -> tuple[bool | None, str]:
    parts, apart = [], []
    for epoch in (4, 5):
        errors = [evidence.mean(each, f"generated{epoch}") for each in _DRAWN]
        apart.append(max(errors) - min(errors))
        parts.append(f"epoch {epoch} {span_of(errors, '.2%')}")
    return max(apart) <= _CONVERGED, f"errors on generated images: {', '.join(parts)}"


def _same_images(evidence: Evidence) -> tuple[bool | None, str]:
    found, apart = [], []
    for name, each in NETS.items():
        own = evidence.mean(each, "error")
        generated = [evidence.mean(each, f"generated{epoch}") for epoch in (4, 5)]
        apart += [abs(error - own) for error in generated]
        found.append(f"{MODELS[name]} {span_of(generated, '.2%')} ({own:.2%} on test images)")
    return max(apart) <= _CONVERGED, f"errors on images of epochs 4 and 5: {', '.join(found)}"


def _same_net(evidence: Evidence) -> tuple[bool | None, str]:
    conv, fc = cell("cifar10", _CONV), cell("cifar10", _FC)
    sizes = {evidence.results(each)[0].parameters for each in (conv, fc)}
    off = lower(evidence, conv, fc, "error", "cifar10")
    says = f"{', '.join(f'{size:,}' for size in sorted(sizes))} parameters; Conv beside FC {off} points of error"
    return len(sizes) == 1 and off.is_lower is None, says


def _margins(data: str) -> list[Pair]:
    return [
        (MODELS[name], cell(data, name), row("margin", f"{data}-{name}-0.9"))
        for name in ((_FC + WITHOUT, "capsnet") if data == "mnist" else (_FC, "capsnet"))
    ]


def _claim(key: str, text: str, source: str, rows: tuple[str, ...], decide: Decide, *, is_long: bool = False) -> Claim:
    return Claim(f"chen2019/{key}", text, source, rows, decide, is_long)


def _of(
    data: str,
    key: str,
    text: str,
    source: str,
    rows: tuple[str, ...],
    decide: Callable[[Evidence, str], tuple[bool | None, str]],
) -> Claim:
    """Return a claim of one data set."""
    return _claim(f"{key}-{data}", f"On {SETS[data]} {text}", source, rows, lambda evidence: decide(evidence, data))


_BEST = {data: _pairs(data, names, "cnn") for data, names in (("mnist", (_FC, _FC + WITHOUT)), ("cifar10", (_FC, _CONV)))}
_CONV_CNN = _pairs("mnist", (_CONV, _CONV + WITHOUT), "cnn")
_MULTI = [pair for other in ("cnn", "capsnet") for pair in _pairs("cifar10", ("multi-gcapsnet",), other)]

CLAIMS = (
    lower_claim(
        "capsnet-mnist",
        "On MNIST all G-CapsNets have lower errors than the CapsNet.",
        "abstract, Table 2",
        _pairs("mnist", _MNIST_G, "capsnet"),
        "mnist",
    ),
    lower_claim(
        "capsnet-cifar",
        "On CIFAR-10 all G-CapsNets have lower errors than the CapsNet.",
        "abstract, Table 2",
        _pairs("cifar10", _CIFAR_G, "capsnet"),
        "cifar10",
    ),
    lower_claim(
        "fc-cnn-mnist",
        "On MNIST FC G-CapsNets have lower errors than the CNN, with a decoder and without.",
        "section 4.1.1",
        _BEST["mnist"],
        "mnist",
    ),
    _claim(
        "conv-cnn-mnist",
        "On MNIST Conv G-CapsNets have lower errors than the CNN with fewer parameters.",
        "section 4.1.2",
        rows_of(_CONV_CNN),
        both(all_lower(_CONV_CNN, "mnist"), _fewer("mnist", (_CONV, _CONV + WITHOUT), "cnn")),
        is_long=True,
    ),
    lower_claim(
        "cnn-cifar",
        "On CIFAR-10 FC and Conv G-CapsNets have lower errors than the CNN.",
        "section 4.1.3",
        _BEST["cifar10"],
        "cifar10",
    ),
    lower_claim(
        "multi-cifar",
        "On CIFAR-10 the multi-layer G-CapsNet has a lower error than the CNN and the CapsNet.",
        "section 4.1.3",
        [(f"than {MODELS[other]}:", *pair[1:]) for other, pair in zip(("cnn", "capsnet"), _MULTI, strict=True)],
        "cifar10",
    ),
    _claim(
        "fewer",
        "G-CapsNets need fewer parameters than the CNN, the multi-layer one fewest.",
        "sections 1 and 4.1, Table 2",
        tuple(cell(data, name) for data in SETS for name in PRINTED[data] if name != "capsnet"),
        both(
            _fewer("mnist", _MNIST_G, "cnn"),
            _fewer("cifar10", (_FC, _CONV), "cnn"),
            _fewer("cifar10", ("multi-gcapsnet",), _FC),
        ),
        is_long=True,
    ),
    _claim(
        "reconstruction",
        f"Reconstruction makes no difference on MNIST (here: at most {100 * _SAME:.1f} points of error).",
        "section 4.1.1, Table 2",
        tuple(cell("mnist", name) for name in _MNIST_G),
        _reconstruction,
    ),
    *(
        lower_claim(
            f"exp-faster-{data}",
            f"On {name} training converges faster with the squash of Xi et al. than with Sabour's.",
            "section 3.2",
            [("early:", cell(data, net), row("squash", f"{data}-sabour"))],
            data,
            reading="early_error",
        )
        for data, name, net in (("mnist", "MNIST", _FC + WITHOUT), ("cifar10", "CIFAR-10", _FC))
    ),
    _claim(
        "iterations",
        "Three iterations of dynamic routing are best; fewer or more do worse.",
        "section 1",
        tuple(map(iterated, ITERATIONS)),
        _iterations,
        is_long=True,
    ),
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
    _claim(
        "generated",
        "On images that AC-GAN draws early on both G-CapsNets have lower errors than the CNN.",
        "section 4.2, Table 3",
        _DRAWN,
        _generated,
        is_long=True,
    ),
    _claim(
        "converged",
        f"After more than three epochs the nets do not differ on AC-GAN's images (here: by {100 * _CONVERGED:.1f} points).",
        "section 4.2, Table 3",
        _DRAWN,
        _converged,
        is_long=True,
    ),
    _claim(
        "as-test-images",
        f"By then they are as MNIST's images: errors are as on the test images (here: within {100 * _CONVERGED:.1f} points).",
        "section 4.2",
        _DRAWN,
        _same_images,
        is_long=True,
    ),
    lower_claim(
        "shifts",
        "What the CNN and the CapsNet lack beside Sabour's are shifted images: with them errors are lower.",
        "section 4.1.1",
        [(MODELS[name], row("controls", f"mnist-{name}-shifted"), cell("mnist", name)) for name in ("cnn", "capsnet")],
        "mnist",
        is_long=True,
    ),
    *ROBUSTNESS,
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
    *(
        lower_claim(
            f"same-solver-{data}",
            f"On {name} FC G-CapsNets have lower errors than CapsNets that are trained by the same solver.",
            "ours",
            [("FC G-CapsNet:", cell(data, _FC), row("controls", f"{data}-capsnet-same"))],
            data,
        )
        for data, name in SETS.items()
    ),
    *(
        lower_claim(
            f"margin-{data}",
            f"On {name} the margins of the released nets give lower errors than Sabour's.",
            "ours",
            _margins(data),
            data,
        )
        for data, name in SETS.items()
    ),
    lower_claim(
        "rate",
        "On MNIST the CapsNet has its best rate here: at the released one, and at what that amounts to, errors are higher.",
        "ours",
        [(f"beside {rate}:", cell("mnist", "capsnet"), row("rate", f"mnist-{name}")) for name, rate in RATES.items()],
        "mnist",
        is_long=True,
    ),
    _claim(
        "same-net",
        "On CIFAR-10 the FC and the Conv G-CapsNet are one net under two names.",
        "ours",
        tuple(cell("cifar10", name) for name in (_FC, _CONV)),
        _same_net,
    ),
)
