"""yang2021: couplings that climb a class objective beside dynamic routing; and what is assumed of dynamic routing.

README.md has settings, their sources, and departures.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from capsella.papers.paper import TITLES, Paper, Table
from capsella.papers.recipe import Recipe
from capsella.papers.yang2021.claims import CLAIMS
from capsella.papers.yang2021.facts import FACTS, REMARKS
from capsella.papers.yang2021.nets import (
    METHODS,
    SETS,
    cell,
    deep,
    deep_plan,
    pairs,
    plan_of,
    timed,
    undivided,
    undivided_plan,
)
from capsella.papers.yang2021.plots import PLOTS
from capsella.train.plan import Plan

_COUPLINGS, _EARLY, _DRAWN = "yang2021.couplings", "yang2021.early", "yang2021.drawn"
_PAIRS, _TIMING = "yang2021.pairs", "yang2021.timing"

_PRECISION = "on a GPU in bf16 with sums in float32; the couplings' steps in float32; each result says which"
# whose runs take longest: one each, as in the paper.
_LONG = ("cifar10", "multimnist")
_STEPS = "30,000 steps (60,000 on CIFAR-10): the paper does not say how many; their code measured checkpoints up to 399,000"
_TEST = "the test images are measured after every epoch; verdicts are on the last, the best stands beside it"
_COMMON = (
    "the weight of the reconstruction is 0.0005 beside the sum of margin losses, which the authors' base code divides by 20",
    _PRECISION,
)
_CLIMBS = (
    "the couplings climb by Adam at a fifth of the rate from 1, as in the authors' code; the paper's γ is not said",
    "the objective is on squashed capsules, and its penalty a sum with λ = 1e-5 (1e-3 on MultiMNIST)",
    "the objective leaves the capsules' bias out, as the paper defines it; the authors' layer has one",
)
_MNIST = ("shifts of up to 2 pixels on MNIST, as in the authors' base code: the paper does not say",)
_MNIST_BATCH = "batches of 128 with a decoder on MNIST, as on Fashion-MNIST: the paper has 32 without one, the authors' code 32"
_FASHION = "shifts of up to 2 pixels on Fashion-MNIST, as on MNIST: the paper does not say"
_CIFAR = (
    "batches of 128 and a decay of 0.96 in 2,000 steps, as in the authors' base code: the paper says neither",
    "24×24 crops with Sabour's distortions and a slope of 0.2 for LeakyReLU, neither of which the paper states",
    "no further target beside the classes in the softmax of dynamic routing, which Sabour's code has for CIFAR-10",
)
_MULTI = (
    "batches of 128 and a decoder for each digit, as in the authors' base code: the paper says neither",
    "errors are on 100,000 test pairs, of 10 million; those on the way on 10,000",
)

# for minutes on a CPU: a small net and few steps, the same for all rows of a table; a rate at which dynamic routing learns.
_SMALL = {"model.kernel_size": 5, "model.trunk_stride": 2, "model.channels": 32, "model.types": 8}
_SHORT = {"batch_size": 64, "lr": 2e-3, "steps": 600, "log_every": 20, "validate_every": 200}
_QUICK = {**_SMALL, "model.decoder_hidden": (64, 128), **_SHORT}
_QUICK_PAIRS = {**_QUICK, "model.types": 4}
_QUICK_DEEP: dict[str, Any] = {
    **{"model.channels": 16, "model.types": 2, "model.reconstruction": "none"},
    **{"batch_size": 64, "lr": 5e-3, "steps": 400, "log_every": 20},
}
_QUICK_TIME = {**_SMALL, "model.types": 32, "batch_size": 64, "steps": 50, "log_every": 5}


def _departures(data: str, method: str, *, decoder: bool) -> tuple[str, ...]:
    mnist = (*_MNIST, *((_MNIST_BATCH,) if decoder else ()))
    own = {"mnist": mnist, "fashion": (_FASHION,), "cifar10": _CIFAR, "multimnist": _MULTI}[data]
    steps = () if data == "multimnist" else (_STEPS,)
    return (*steps, _TEST, *_COMMON, *(() if method == "dr" else _CLIMBS), *own)


def _seeds(data: str) -> tuple[int, ...]:
    return (0,) if data in _LONG else (0, 1, 2)


def _named(method: str, *, decoder: bool) -> str:
    return METHODS[method] + ("" if decoder else ", no decoder")


def _table2() -> list[Recipe]:
    recipes = []
    for data, name in SETS.items():
        for decoder in (True, False) if data != "cifar10" else (False,):
            for method in METHODS:
                key = cell(data, method, decoder=decoder)
                target = key.removeprefix("yang2021/")
                has_printed = data == "cifar10" or method != "dr" or decoder
                measures = [_EARLY] if key == cell(data, "dr") else [] if method == "dr" else [_COUPLINGS]
                measures += [_DRAWN] if key == cell("fashion", "l2", decoder=False) else []
                recipes.append(
                    Recipe(
                        key,
                        f"{name}, {_named(method, decoder=decoder)}",
                        plan_of(data, method, decoder=decoder),
                        reads={target: "error"} if has_printed else {},
                        seeds=_seeds(data),
                        measures=tuple(measures),
                        departures=_departures(data, method, decoder=decoder),
                        # on photographs a few hundred steps of a small net show nothing.
                        quick=None if data == "cifar10" else _QUICK,
                    )
                )
    return recipes


def _multimnist() -> list[Recipe]:
    return [
        Recipe(
            pairs(method),
            f"MultiMNIST, {name}",
            plan_of("multimnist", method, decoder=True),
            reads={"text/multimnist-dr": "pairs_error"} if method == "dr" else {},
            seeds=_seeds("multimnist"),
            measures=(_PAIRS, *(() if method == "dr" else (_COUPLINGS,))),
            departures=_departures("multimnist", method, decoder=True),
            quick=_QUICK_PAIRS,
        )
        for method, name in METHODS.items()
    ]


def _depth() -> list[Recipe]:
    return [
        Recipe(
            deep(method, depth),
            f"MNIST, {METHODS[method]}, {depth} layers",
            deep_plan(method, depth),
            measures=() if method == "dr" else (_COUPLINGS,),
            departures=(
                *_departures("mnist", method, decoder=True),
                "hidden layers of 16 capsules of 12 values, as peer2022's: the paper trains no net of more than two layers",
            ),
            quick=_QUICK_DEEP,
        )
        for method in ("dr", "l2")
        for depth in (3, 4)
    ]


_UNDIVIDED = tuple((data, method) for data in ("mnist", "fashion") for method in METHODS)


def _divided() -> list[Recipe]:
    return [
        Recipe(
            undivided(data, method),
            f"{SETS[data]}, {METHODS[method]}",
            undivided_plan(data, method),
            measures=() if method == "dr" else (_COUPLINGS,),
            departures=(
                *_departures(data, method, decoder=True),
                "the primary capsules' sums are not divided among their types, as they are in the authors' base code",
            ),
            quick=_QUICK,
        )
        for data, method in _UNDIVIDED
    ]


_TIMED = (("mnist", True), ("mnist", False), ("cifar10", False), ("multimnist", True))


def _figure4() -> list[Recipe]:
    return [
        Recipe(
            timed(data, method, decoder=decoder),
            f"{'MultiMNIST' if data == 'multimnist' else SETS[data]}, {_named(method, decoder=decoder)}",
            _to_time(plan_of(data, method, decoder=decoder)),
            # a time is of a device, not of a seed.
            seeds=(0,),
            measures=(_TIMING,),
            departures=(
                "the printed 20% is of the authors' steps, of which no time is printed; these are ours, with batches of 128 "
                "(on MNIST without a decoder too) and images drawn on the device",
                _PRECISION,
            ),
            quick=None if data == "cifar10" else _QUICK_TIME,
            alone=True,
        )
        for data, decoder in _TIMED
        for method in METHODS
    ]


def _to_time(plan: Plan) -> Plan:
    short = {"steps": 400, "log_every": 50, "batch_size": 128, "validate_every": 0}
    return replace(plan.changed(short), validate=None)


_TABLE2, _MULTIMNIST, _DEPTH, _DIVIDED, _FIGURE4 = _table2(), _multimnist(), _depth(), _divided(), _figure4()


def _keys(recipes: Sequence[Recipe]) -> tuple[str, ...]:
    return tuple(recipe.key for recipe in recipes)


_ROWS = ("MNIST", "MNIST, no decoder", "Fashion-MNIST", "Fashion-MNIST, no decoder", "CIFAR-10, no decoder")
_CLIMBING = (*(key for key in _keys(_TABLE2) if "-dr" not in key), pairs("l2"), pairs("l1"))
_AGREEING = tuple(cell(data, "dr") for data in SETS)


def _of_couplings(key: str, title: str, reading: str, note: str = "") -> Table:
    return Table(key, "", title, _CLIMBING, reading=reading, rows=(*_ROWS, "MultiMNIST"), columns=("L2", "L1"), note=note)


PAPER = Paper(
    "yang2021",
    TITLES["yang2021"],
    recipes=(*_TABLE2, *_MULTIMNIST, *_DEPTH, *_DIVIDED, *_FIGURE4),
    tables=(
        Table(
            "table2",
            "Table II",
            "Error on three benchmarks",
            _keys(_TABLE2),
            reading="error",
            rows=_ROWS,
            columns=tuple(METHODS.values()),
            note="Dynamic routing without a decoder on the first two is ours: it tells the routing's part from the decoder's.",
        ),
        Table(
            "multimnist",
            "Section IV-B2",
            "Error on overlapping digits after 200,000 steps",
            _keys(_MULTIMNIST),
            reading="pairs_error",
            note="An image is right if both digits are found. The paper prints one number for L1 or L2 and does not say which.",
        ),
        Table(
            "figure2",
            "Figure 2",
            "What the decoder of a DR net draws from the capsules of an L2 net without one, on Fashion-MNIST",
            (cell("fashion", "l2", decoder=False),),
            reading="misread",
            note=(
                "Of seed 0 alone, and of test images that all nets tell right. The last panel is a control: capsules of a "
                "second DR net, of another seed."
            ),
        ),
        Table(
            "figure3",
            "Figure 3",
            "Mean error over the first third of the steps (of the first 20,000 on MultiMNIST)",
            (*_keys(_TABLE2), *_keys(_MULTIMNIST)),
            reading="early_error",
            note="MNIST without a decoder has batches of 32: its steps see a quarter of the images.",
        ),
        Table(
            "figure4",
            "Figure 4",
            "Seconds of 100 steps, as they are trained",
            _keys(_FIGURE4),
            reading="seconds",
            rows=("MNIST", "MNIST, no decoder", "CIFAR-10, no decoder", "MultiMNIST"),
            columns=tuple(METHODS.values()),
        ),
        Table(
            "figure4-reference",
            "Figure 4",
            "Seconds of 100 steps, plain and routed by the reference",
            _keys(_FIGURE4),
            reading="reference_seconds",
            rows=("MNIST", "MNIST, no decoder", "CIFAR-10, no decoder", "MultiMNIST"),
            columns=tuple(METHODS.values()),
        ),
        _of_couplings("negative", "Assumption 1: couplings that are negative in the end", "negative"),
        _of_couplings(
            "clamped",
            "Assumption 1: what is lost where negative couplings are set to zero",
            "clamping_costs",
            "Points of accuracy on the test images, without training again.",
        ),
        _of_couplings(
            "sparsity",
            "Couplings next to nothing in the end",
            "near_zero",
            "Smaller than 0.01, where all start at 1.",
        ),
        Table(
            "assumption2",
            "",
            "Assumption 2: how often the longest capsule is wrong in the first epoch, dynamic routing",
            _AGREEING,
            reading="wrong_early",
            note="Mean over the looks of the first epoch at 2,000 test images, after all iterations.",
        ),
        Table(
            "depth",
            "",
            "More than two capsule layers: error on MNIST, by capsule layers",
            tuple(deep(method, depth) for method in ("dr", "l2") for depth in (2, 3, 4)),
            reading="error",
            rows=("DR", "L2"),
            columns=("2", "3", "4"),
        ),
        Table(
            "divided",
            "",
            "Primary capsules whose sums are divided among their types, and such as are not: error",
            tuple(key for data, method in _UNDIVIDED for key in (cell(data, method), undivided(data, method))),
            reading="error",
            rows=tuple(f"{SETS[data]}, {METHODS[method]}" for data, method in _UNDIVIDED),
            columns=("divided, as in the base code", "not divided"),
            note="No text mentions the division. Without it class capsules are long at the start, for every image.",
        ),
    ),
    plots=PLOTS,
    claims=CLAIMS,
    facts=FACTS,
    remarks=REMARKS,
    beyond="What its assumptions are worth",
)
