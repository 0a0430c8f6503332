"""chen2019's experiments, row by row: what is trained, measured, read and shortened, and how it departs from the paper."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from capsella.papers.chen2019.claims import ITERATIONS, RATES, iterated
from capsella.papers.chen2019.coupled import timed
from capsella.papers.chen2019.nets import ADAM, LOOKS, MODELS, PRINTED, SETS, WITHOUT, cell, em_plan, plan_of, row
from capsella.papers.chen2019.robustness import NETS, ROUTED
from capsella.papers.recipe import Recipe

COUPLINGS, _BLACK, _WHITE = "chen2019.couplings", "chen2019.blackbox", "chen2019.whitebox"
_GENERATED, _TIMING = "chen2019.generated", "yang2021.timing"
_FC, _CONV = "fc-gcapsnet", "conv-gcapsnet"

_PRECISION = "on a GPU in bf16 with sums in float32; each result says which"
_MEASURED = "couplings, attacks and generated images are measured in float32, on a GPU with convolutions in TF32"
_TEST = "the test images are measured on the way; verdicts are on the end, the best stands beside it"
_COMMON = (_PRECISION, _TEST, "grey levels are divided by 255, in the released nets by 256")
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
_SEEDS = "three seeds: of how many runs the printed spread is, the paper does not say"
_NO_DROPOUT = "ten logits without dropout; the released baseline takes 192 units for the classes, with a dropout of 0.5"
_CNN_SIZE = "13.3M parameters on images of 28×28; the printed 35.4M are those of Sabour's baseline"
_NO_CONV_BIAS = "convolutions without a bias, as the printed sizes count them"
_DRAWN = (
    "Table 3: the right answer is the digit that the AC-GAN was asked for; the paper does not say which it takes",
    "Table 3: the AC-GAN is that of Keras' example, its class loss a mean over the batch; the paper gives sizes and rates",
)
_ATTACKED = "black box: LeNet of 2,000 steps; white box: sizes, bound and rate of the generator are ours"

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
        own += [_NO_DROPOUT, _CNN_SIZE] if data == "mnist" else []
    else:
        if bare == "capsnet":
            own += [_RATE, _ROUTED] if has_own_rate else [_ROUTED]
        elif data == "cifar10" and bare != "multi-gcapsnet":
            own.append(_UNDIVIDED)
        own += [_NO_BIAS, _MAPS]
        own += [_NO_CONV_BIAS] if bare == "multi-gcapsnet" else []
        own += [_CENTRED] if data == "cifar10" else _DECODED if bare == name else []
    return (*_COMMON, *own, *more)


def _measured_otherwise(data: str, name: str) -> tuple[str, ...]:
    """Return how what is measured on a cell of Table 2 departs from the paper."""
    measures = _measures(data, name)
    found: tuple[str, ...] = (_MEASURED,) if measures else ()
    found += (_ATTACKED,) if _WHITE in measures else ()
    return (*found, *_DRAWN) if _GENERATED in measures else found


def _measures(data: str, name: str) -> tuple[str, ...]:
    key = cell(data, name)
    found: tuple[str, ...] = () if name == "cnn" else (COUPLINGS,)
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


BASIS = {"mnist": f"{_FC}{WITHOUT}", "cifar10": _FC}
"""The FC G-CapsNet without a decoder, by data set."""


def _looks(data: str, name: str) -> dict[str, int]:
    # those of the plots; the CapsNet on photographs takes so many steps that its epochs are near enough to each other.
    is_read = name in (BASIS[data], "cnn") or (data, name) == ("mnist", "capsnet")
    return {"validate_every": LOOKS[data]} if is_read else {}


def _table2() -> list[Recipe]:
    return [
        Recipe(
            cell(data, name),
            f"{SETS[data]}, {MODELS[name]}",
            plan_of(data, name, train=_looks(data, name)),
            reads=_reads(data, name),
            measures=_measures(data, name),
            departures=_departures(data, name, _SEEDS, *_measured_otherwise(data, name)),
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
    seeds: tuple[int, ...] = (0, 1, 2),
) -> Recipe:
    """Return a net of Table 2 with something changed."""
    return Recipe(
        key,
        f"{SETS[data]}, {label}",
        plan_of(data, name, options=options, train=train, images=images),
        seeds=seeds,
        departures=_departures(data, name, departure, has_own_rate="lr" not in (train or {})),
        quick=_quick(data, name),
    )


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
        for data, names in (("mnist", (BASIS["mnist"], f"{_CONV}{WITHOUT}", "capsnet")), ("cifar10", (_FC,)))
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
            train={"validate_every": LOOKS[data]},
        )
        for data, name in BASIS.items()
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
            # what it tells apart is whether a net learns at all.
            seeds=(0,),
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
        for data, name in BASIS.items()
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
            seeds=(0,),
        )
        for name in ("cnn", "capsnet")
    ]
    em = Recipe(
        ROUTED["em"],
        "MNIST, EM CapsNet",
        em_plan(),
        measures=(_BLACK, _WHITE),
        departures=(
            *_COMMON,
            "the paper speaks of EM and trains none: sizes are ours, the loss is Hinton's spread",
            _MEASURED,
            _ATTACKED,
        ),
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
            # of one solver, so that the routing alone differs; nothing is measured on the way, which would be in the time.
            replace(
                plan_of(data, name, options={"reconstruction": "none"}, train={**plan_of(data, _FC).train.as_dict(), **short}),
                validate=None,
            ),
            # a time is of a device, not of a seed.
            seeds=(0,),
            measures=(_TIMING,),
            departures=(_PRECISION, "nets without a decoder, both by the FC G-CapsNet's solver; the paper prints no times"),
            quick=_QUICK_TIME if data == "mnist" else None,
            alone=True,
        )
        for data in SETS
        for name in (_FC, "capsnet")
    ]


TABLE2, MARGINS, SQUASHES, ITERATED = _table2(), _margins(), _squashes(), _iterations()
RATED, CONTROLS, TIMES = _rates(), _controls(), _times()
