"""chen2019: couplings that are trained like weights, beside dynamic routing and CNNs; attacks, and images of an AC-GAN.

README.md has settings, their sources, and departures.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from capsella.papers.chen2019.claims import CLAIMS, ITERATIONS, RATES, iterated, timed
from capsella.papers.chen2019.facts import FACTS, REMARKS
from capsella.papers.chen2019.nets import ADAM, MODELS, PRINTED, SETS, WITHOUT, cell, em_plan, plan_of, row
from capsella.papers.chen2019.plots import PLOTS
from capsella.papers.chen2019.robustness import NETS, ROUTED
from capsella.papers.paper import TITLES, Paper, Table
from capsella.papers.recipe import Recipe

_COUPLINGS, _BLACK, _WHITE = "chen2019.couplings", "chen2019.blackbox", "chen2019.whitebox"
_GENERATED, _TIMING = "chen2019.generated", "yang2021.timing"
_FC, _CONV = "fc-gcapsnet", "conv-gcapsnet"

_PRECISION = "on a GPU in bf16 with sums in float32; each result says which"
_TEST = "the test images are measured on the way; verdicts are on the end, the best stands beside it"
_COMMON = (_PRECISION, _TEST)
_NO_BIAS = "no bias of the votes, which the released code has by default and the printed sizes have not"
_MAPS = "the faults of the released code are not copied: half a Jacobian of the squash, layouts that mix the votes of classes"
_DECODED = (
    "the decoder sees the capsule of the image's class; the released code's mask keeps the last class, whatever the image",
    "the squared error weighs 0.00025 beside the mean of the margin losses; in the released code, whose margin gradient is not "
    "divided by the batch, a hundredth of that",
)
_RATE = (
    "a rate of 0.1, between the released 0.01 and the 1 that it amounts to, because the gradient of the released margin loss "
    "is not divided by the batch of 100"
)
_ROUTED = "gradients go through all iterations, with Sabour's squash"
_UNDIVIDED = "a rate of 0.1: the released 0.001 is on a gradient that is not divided by the batch of 100"
_CENTRED = "0.5 is taken from photographs; the released nets take the mean image from them"
_SEEDS = "five seeds: of how many runs the printed spread is, the paper does not say"
_NO_DROPOUT = "ten logits without dropout; the released baseline takes 192 units for the classes, with a dropout of 0.5"
_ATTACKED = "black box: LeNet of 2,000 steps; white box: sizes, bound and rate of the generator are ours"
_ASKED = "three seeds"

# for minutes on a CPU: small nets and few steps.
_SHORT = {"batch_size": 50, "steps": 300, "log_every": 20, "validate_every": 50}
_SMALL = {"model.kernel_size": 5, "model.trunk_stride": 2, "model.channels": 32, "model.types": 8}
_QUICK: dict[str, dict[str, Any]] = {
    "cnn": {"model.channels": (16, 16, 8), "model.hidden": (64, 32), **_SHORT},
    "capsnet": {**_SMALL, "model.decoder_hidden": (64, 128), **_SHORT},
    _FC: {**_SMALL, "model.decoder_hidden": (64, 128), **_SHORT},
    _CONV: {"model.channels": 16, "model.types": 4, **_SHORT},
}
_QUICK_TIME = {**_SMALL, "model.types": 32, "batch_size": 50, "steps": 50, "log_every": 5, "validate_every": 0}


def _quick(data: str, name: str) -> dict[str, Any] | None:
    # on photographs a few hundred steps of a small net show nothing.
    return _QUICK[name.removesuffix(WITHOUT)] if data == "mnist" else None


def _departures(data: str, name: str, *more: str, has_own_rate: bool = True) -> tuple[str, ...]:
    bare = name.removesuffix(WITHOUT)
    own: list[str] = []
    if bare == "cnn":
        own += [_NO_DROPOUT] if data == "mnist" else []
    else:
        if bare == "capsnet":
            own += [_RATE, _ROUTED] if has_own_rate else [_ROUTED]
        elif data == "cifar10" and bare != "multi-gcapsnet":
            own.append(_UNDIVIDED)
        own += [_NO_BIAS, _MAPS]
        own += [_CENTRED] if data == "cifar10" else _DECODED if bare == name else []
    return (*_COMMON, *own, *more)


def _measures(data: str, name: str) -> tuple[str, ...]:
    key = cell(data, name)
    found: tuple[str, ...] = () if name == "cnn" else (_COUPLINGS,)
    if key in (*NETS.values(), *ROUTED.values()):
        found += (_BLACK, _WHITE)
    return (*found, _GENERATED) if key in NETS.values() else found


_TARGETS = dict(zip(NETS, ("baseline", _FC, _CONV), strict=True))
"""How the paper calls the nets of Table 3 and of section 4.3."""


def _reads(data: str, name: str) -> dict[str, str]:
    reads = {f"table2/{data}-{name}-error": "error"}
    if cell(data, name) in NETS.values():
        reads |= {f"table3/{_TARGETS[name]}-epoch{epoch}": f"generated{epoch}" for epoch in (1, 2, 3, 4, 5)}
        reads[f"text/fgsm-{_TARGETS[name]}"] = "blackbox"
    return reads


def _table2() -> list[Recipe]:
    return [
        Recipe(
            cell(data, name),
            f"{SETS[data]}, {MODELS[name]}",
            plan_of(data, name),
            reads=_reads(data, name),
            seeds=(0, 1, 2, 3, 4),
            measures=_measures(data, name),
            departures=_departures(data, name, _SEEDS, *((_ATTACKED,) if _WHITE in _measures(data, name) else ())),
            quick=_quick(data, name),
        )
        for data, names in PRINTED.items()
        for name in names
    ]


def _variant(
    key: str,
    label: str,
    data: str,
    name: str,
    departure: str,
    *,
    options: Mapping[str, Any] | None = None,
    train: Mapping[str, Any] | None = None,
    images: Mapping[str, Any] | None = None,
) -> Recipe:
    """Return a net of Table 2 with something changed."""
    return Recipe(
        key,
        f"{SETS[data]}, {label}",
        plan_of(data, name, options=options, train=train, images=images),
        departures=_departures(data, name, departure, has_own_rate="lr" not in (train or {})),
        quick=_quick(data, name),
    )


_BASIS = {"mnist": f"{_FC}{WITHOUT}", "cifar10": _FC}
"""The FC G-CapsNet without a decoder, by data set."""


def _margins() -> list[Recipe]:
    return [
        _variant(
            row("margin", f"{data}-{name}-0.9"),
            f"{MODELS[name]}, m⁺ = 0.9",
            data,
            name,
            "Sabour's margin of 0.9, which the paper's text has; the released nets have 0.7 and 0.6",
            train={"margins": (0.9, 0.1)},
        )
        for data, names in (("mnist", (_BASIS["mnist"], f"{_CONV}{WITHOUT}", "capsnet")), ("cifar10", (_FC, "capsnet")))
        for name in names
    ]


def _squashes() -> list[Recipe]:
    return [
        _variant(
            row("squash", f"{data}-sabour"),
            f"{MODELS[name]}, Sabour's squash",
            data,
            name,
            "the other squash, of primary and class capsules; the paper shows no run of it",
            options={"squash": "sabour"},
        )
        for data, name in _BASIS.items()
    ]


def _iterations() -> list[Recipe]:
    return [
        _variant(
            iterated(number),
            f"CapsNet, {number} iteration{'s' if number > 1 else ''}",
            "mnist",
            "capsnet",
            "the paper has no run of another number of iterations",
            options={"num_iters": number},
        )
        for number in ITERATIONS
        if iterated(number) != cell("mnist", "capsnet")
    ]


def _rates() -> list[Recipe]:
    return [
        _variant(
            row("rate", f"mnist-{name}"),
            f"CapsNet, a rate of {rate:g}",
            "mnist",
            "capsnet",
            "the released rate, on a gradient that is divided by the batch"
            if rate < 1
            else "what the released rate amounts to",
            train={"lr": rate},
        )
        for name, rate in RATES.items()
    ]


def _controls() -> list[Recipe]:
    fixed = [
        _variant(
            row("controls", f"{data}-fixed"),
            "FC G-CapsNet, couplings stay at 1/10",
            data,
            name,
            "couplings that are not trained; our question",
            options={"routing": "uniform"},
        )
        for data, name in _BASIS.items()
    ]
    # the solver of the set's FC G-CapsNet, for as many steps.
    same = [
        _variant(
            row("controls", f"{data}-capsnet-same"),
            "CapsNet, the solver of the FC G-CapsNet",
            data,
            "capsnet",
            "the FC G-CapsNet's solver and steps; our question",
            train={**ADAM, "lr": 1e-3} if data == "mnist" else plan_of(data, _FC).train.as_dict(),
        )
        for data in SETS
    ]
    shifted = [
        _variant(
            row("controls", f"mnist-{name}-shifted"),
            f"{MODELS[name]}, images shifted by up to 2 pixels",
            "mnist",
            name,
            "the shifts of Sabour et al., which the paper leaves out",
            images={"augment": "shift"},
        )
        for name in ("cnn", "capsnet")
    ]
    em = Recipe(
        ROUTED["em"],
        "MNIST, EM CapsNet",
        em_plan(),
        measures=(_BLACK, _WHITE),
        departures=(*_COMMON, "the paper speaks of EM and trains none: sizes are ours, the loss is Hinton's spread", _ATTACKED),
        # its iterations and the attacks through them take a CPU longer than all other rows together.
        quick=None,
    )
    return [*fixed, *same, *shifted, em]


def _times() -> list[Recipe]:
    short = {"steps": 1000, "log_every": 100, "validate_every": 0}
    return [
        Recipe(
            timed(data, name),
            f"{SETS[data]}, {MODELS[name]}",
            # nothing is measured on the way, which would be in the time.
            replace(plan_of(data, name, options={"reconstruction": "none"}, train=short), validate=None),
            # a time is of a device, not of a seed.
            seeds=(0,),
            measures=(_TIMING,),
            departures=(_PRECISION, "nets without a decoder; the paper prints no times"),
            quick=_QUICK_TIME if data == "mnist" else None,
            alone=True,
        )
        for data in SETS
        for name in (_FC, "capsnet")
    ]


_TABLE2, _MARGINS, _SQUASHES, _ITERATIONS = _table2(), _margins(), _squashes(), _iterations()
_RATES, _CONTROLS, _TIMES = _rates(), _controls(), _times()


def _keys(recipes: Sequence[Recipe]) -> tuple[str, ...]:
    return tuple(recipe.key for recipe in recipes)


_THREE, _FIVE = tuple(NETS.values()), (*NETS.values(), *ROUTED.values())
_COUPLED = tuple(recipe.key for recipe in _TABLE2 if _COUPLINGS in recipe.measures)


def _attack(key: str, name: str, title: str, reading: str, rows: tuple[str, ...] = _FIVE, note: str = "") -> Table:
    return Table(key, name, title, rows, reading=reading, note=note)


_SHARES = "The printed accuracies are the test images' shares of the digits 1 and 5."
_MARGIN_NOTE = "Rows of Table 2, whose margins are 0.7 on MNIST and 0.6 on CIFAR-10, stand first."

PAPER = Paper(
    "chen2019",
    TITLES["chen2019"],
    recipes=(*_TABLE2, *_SQUASHES, *_CONTROLS, *_ITERATIONS, *_MARGINS, *_RATES, *_TIMES),
    tables=(
        Table("table2", "Table 2", "Error on MNIST and CIFAR-10", _keys(_TABLE2), reading="error"),
        Table(
            "table3",
            "Table 3",
            "Mean error on what AC-GAN draws after its epochs 1 to 3",
            _THREE,
            reading="generated_early",
            note="The plot and the list of printed numbers have each epoch.",
        ),
        _attack(
            "blackbox",
            "Section 4.3",
            "Accuracy on MNIST under FGSM from LeNet, 8 of 255",
            "blackbox",
            note="The CapsNet and the EM CapsNet are ours.",
        ),
        _attack(
            "blackbox-unscaled",
            "Section 4.3",
            "The same, with ±8 added to images of values from 0 to 1",
            "unscaled",
            note=_SHARES,
        ),
        _attack(
            "blackbox-twice",
            "Section 4.3",
            "The same with 8 of 255, and images that are divided by 255 once more before the nets see them",
            "twice",
            note=_SHARES,
        ),
        _attack(
            "whitebox",
            "Section 4.4",
            "Accuracy on MNIST under one perturbation for all images, 8 of 255, 100 iterations",
            "universal",
            note="The paper has a curve and no numbers, nor a bound.",
        ),
        _attack("whitebox-0.3", "Section 4.4", "The same with a bound of 0.3", "universal3"),
        _attack("fgsm", "", "Accuracy on MNIST under FGSM with the net's own gradient, 8 of 255", "fgsm"),
        _attack("zero-images", "", "Images whose gradient is zero everywhere", "zero_images"),
        _attack("zero-pixels", "", "Values of the gradient by the image that are zero", "zero_pixels"),
        Table(
            "couplings",
            "Table 1",
            "What the couplings of a capsule add up to over the classes",
            _COUPLED,
            reading="coupling_sum",
            note="Means over the capsules below the classes; claims have the lowest and the highest.",
        ),
        Table(
            "squash",
            "Section 3.2",
            "Mean error over the first third of the steps, by the squash",
            tuple(key for pair in zip((cell(*each) for each in _BASIS.items()), _keys(_SQUASHES), strict=True) for key in pair),
            reading="early_error",
        ),
        Table(
            "iterations",
            "Section 1",
            "Error of a CapsNet on MNIST by its iterations of routing",
            tuple(map(iterated, ITERATIONS)),
            reading="error",
            note="The released net has four.",
        ),
        Table(
            "margin",
            "",
            "Error with Sabour's margin of 0.9",
            (*(key.replace("/margin/", "/table2/").removesuffix("-0.9") for key in _keys(_MARGINS)), *_keys(_MARGINS)),
            reading="error",
            note=_MARGIN_NOTE,
        ),
        Table(
            "rate", "", "Error of a CapsNet on MNIST by its rate", (cell("mnist", "capsnet"), *_keys(_RATES)), reading="error"
        ),
        Table(
            "controls",
            "",
            "What is gained by training couplings, by the solver, and by shifted images",
            _keys(_CONTROLS),
            reading="error",
        ),
        Table("time", "", "Seconds of 100 steps, as they are trained", _keys(_TIMES), reading="seconds"),
        Table(
            "time-reference",
            "",
            "Seconds of 100 steps, plain and routed by the reference",
            _keys(_TIMES),
            reading="reference_seconds",
        ),
    ),
    plots=PLOTS,
    claims=CLAIMS,
    facts=FACTS,
    remarks=REMARKS,
    beyond="What couplings are worth, and what the attacks say",
)
