"""The rows of mitterreiter2023: what is trained, what is read of it, and what is done otherwise than in the paper."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from capsella.papers.mitterreiter2023.cures import (
    CURE_DEPTHS,
    CURE_EPOCHS,
    CURES,
    DEEPEST,
    QUICK_CURES,
    QUICK_DEPTHS,
    WITHOUT_DEEPEST,
    cure,
    cure_plan,
)
from capsella.papers.mitterreiter2023.facts import reads
from capsella.papers.mitterreiter2023.nets import (
    DEPTHS,
    GROWTH,
    ROUTINGS,
    SELDOM,
    VARIANTS,
    net,
    photographs,
    photographs_plan,
    placed_plan,
    variant,
    variant_plan,
)
from capsella.papers.mitterreiter2023.sweep import SWEEP, SWEEP_BATCH, is_quick
from capsella.papers.recipe import Recipe

_LOOK, _CURED = "mitterreiter2023.look", "mitterreiter2023.cured"
_DYNAMICS, _LIVES, _TREES = "mitterreiter2023.dynamics", "mitterreiter2023.lives", "mitterreiter2023.trees"

_PRECISION = "on a GPU products and convolutions in TF32, everything else in float32"
_PLACED = (
    "no augmentation beside the random place, which is drawn anew in every epoch; the authors' notebook places each digit once",
    "reconstructions by the mean of squares, as in the authors' notebook; the paper's text sums them",
    "stopped at 99.2 % of the placed test images, or after 60 epochs; measured on the affine test images",
    "a capsule is active from a length of 0.1, dead where mean and spread of it are at most 0.01; only the latter is known",
    "dynamics are among live capsules, which alone gives the paper's ratio of dys to dyr",
    _PRECISION,
)
_LOOKS = "deaths over the training are of 64 placed test images, twice an epoch"
_DEPTH = "nets of other depths are ours: the paper's 121 architectures are not published"
_SWEEP = (
    "the sweep is ours and stands for the paper's architectures; one run of each net",
    f"batches of {SWEEP_BATCH}, as in the authors' notebooks that train many nets",
)
_CURED_NETS = (
    "what is changed in the cures is ours, and so are their depths; one run of each net",
    f"at most {CURE_EPOCHS} epochs, where the net of Table 1 has 60: one that would learn later counts as one that does not",
)
_CIFAR = (
    "the net and its training are those of a notebook of the authors, which routes by attention: the paper does not say",
    _PRECISION,
)

# for a minute on a CPU: small convolutions and few steps; every net must come out of the start, where capsules are short.
_QUICK: dict[str, Any] = {
    **{"model.backbone": "small", "model.reconstruction": "none", "batch_size": 64, "lr": 1e-2, "steps": 1200},
    **{"target_accuracy": None, "watch": 25, "log_every": 25},
}
# of many nets, each has less.
_SHORTER = {**_QUICK, "steps": 600, "watch": 0}


def _table1() -> Recipe:
    return Recipe(
        net(),
        "Agreement, 5 layers",
        placed_plan("agreement", 5),
        reads=reads(),
        seeds=tuple(range(10)),
        measures=(_DYNAMICS, _LIVES, _TREES),
        departures=(*_PLACED, _LOOKS),
        quick=_QUICK,
        exact=True,
    )


def _depths() -> list[Recipe]:
    return [
        Recipe(
            net(routing, depth),
            f"{ROUTINGS[routing]}, {depth} layers",
            placed_plan(routing, depth).changed({"watch": SELDOM}),
            measures=(_DYNAMICS, _LIVES),
            departures=(*_PLACED, _DEPTH),
            quick=_QUICK,
            exact=True,
        )
        for routing in ROUTINGS
        for depth in DEPTHS
        if (routing, depth) != ("agreement", 5)
    ]


def _photographs() -> list[Recipe]:
    return [
        Recipe(
            photographs(routing),
            f"CIFAR-10, {name}",
            photographs_plan(routing),
            measures=(_DYNAMICS, _LIVES),
            departures=_CIFAR,
            # a few hundred steps of a small net show nothing on photographs.
            quick=None,
            exact=True,
        )
        for routing, name in ROUTINGS.items()
    ]


def _variants() -> list[Recipe]:
    return [
        Recipe(
            variant(name),
            f"Agreement, 5 layers: {says}",
            variant_plan(name).changed({"watch": SELDOM}),
            measures=(_DYNAMICS, _LIVES),
            departures=(*[each for each in _PLACED if not (name == "reconstruction-sum" and "mean of squares" in each)], says),
            quick=_QUICK,
            exact=True,
        )
        for name, (says, _) in VARIANTS.items()
    ]


def _growth() -> Recipe:
    # a time is of a device, not of a net: what is trained is of no account.
    few = {"steps": 20, "target_accuracy": None, "watch": 0, "model.backbone": "small"}
    return Recipe(
        GROWTH,
        "Agreement beside self-attention",
        placed_plan("agreement", 3).changed(few),
        seeds=(0,),
        measures=("mitterreiter2023.growth",),
        departures=(
            "our implementation as the dispatcher chooses it, and PyTorch's attention; the paper prints formulas alone",
        ),
        quick={"steps": 5},
        exact=True,
        alone=True,
    )


def _cures(*depths: int, without: Collection[str] = ()) -> list[Recipe]:
    """Return the nets of all cures, shallow ones first: their records tell how long deep ones will take."""
    return [
        Recipe(
            cure(name, depth),
            f"{each.label}, {depth} layers",
            cure_plan(name, depth),
            seeds=(0,),
            measures=(_CURED,),
            departures=(*_PLACED, *_CURED_NETS, *([each.note] if each.note else [])),
            quick=_SHORTER if name in QUICK_CURES and depth in QUICK_DEPTHS else None,
            exact=True,
        )
        for depth in depths
        for name, each in CURES.items()
        if name not in without
    ]


def _sweep() -> list[Recipe]:
    return [
        Recipe(
            cell.key,
            f"{ROUTINGS[cell.routing]}, {cell.depth} layers of {cell.width} capsules of {cell.dim} values",
            cell.plan,
            seeds=(0,),
            measures=(_LOOK,),
            departures=(*_PLACED, *_SWEEP),
            quick=_SHORTER if is_quick(cell) else None,
            exact=True,
        )
        for cell in SWEEP
    ]


# the paper's own tables first; then the cures, of which every one is wanted, and the sweep, of which half will do. nets of
# 50 layers come last: they are asked for by row, once it is known what lives at 20.
RECIPES = (
    *(_table1(), *_depths(), *_photographs(), *_variants(), _growth()),
    *_cures(*CURE_DEPTHS),
    *_sweep(),
    *_cures(DEEPEST, without=WITHOUT_DEEPEST),
)
