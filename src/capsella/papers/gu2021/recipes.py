"""gu2021: what of a CapsNet makes it robust, component by component, and ConvNets beside it.

README.md has settings, their sources, and departures.
"""

from __future__ import annotations

from typing import Any

from capsella.papers.gu2021.facts import FACTS, REMARKS
from capsella.papers.gu2021.nets import (
    CHANNELS,
    EPOCHS,
    GROUPS,
    KERNEL_NETS,
    KERNELS,
    SEEDS,
    TABLE1,
    TABLE2,
    Net,
    ablated,
    averaged,
    grouped,
    kernel,
    placed,
    robust,
)
from capsella.papers.gu2021.tables import TABLES
from capsella.papers.paper import TITLES, Paper
from capsella.papers.recipe import Recipe
from capsella.papers.targets import read_targets

_AFFINE, _SEEN = "gu2021.affine", "gu2021.seen"
_TARGETS = read_targets("gu2021")

_PRECISION = "on a GPU in bf16 with sums in float32; each result says which"
_CAPSULES = (
    "the weight of the reconstruction is 0.0005 on the sum of squares over pixels: the paper does not say sum or mean",
    "capsules' weights start uniformly within ±1/√M as in the authors' later code: the paper does not say",
)
_AFFNIST = (
    "AffNIST is made from MNIST's 10,000 test images with a shear factor of up to 0.2, 32 versions of each, wherever the digit "
    "fits: the paper's words say 45° and shifts of 8 pixels, which do not give its ranking",
    "MNIST's test images lie at random places too, one fixed draw of these",
)
_STOPPED = (
    "stops at the end of the first epoch with 99.22% of the test images right, which chooses by the test set, as the paper "
    f"does, or after {EPOCHS} epochs; the rate stays at 1e-3",
)
_WHOLE = (
    f"{EPOCHS} epochs with a rate that falls by 0.96 in 2,000 steps: the paper says that it does not stop early and no more",
)
_MATRIX = (
    "matrix capsules at sizes of our own with the spread loss; the printed numbers are of other sizes and are cited only",
)
_GROUPED = ("the number of groups is in a supplement that is not to be had: types of 256/n values share the 256 channels",)
_AVERAGED = ("what is meant by no routing is not said: 1/10 for every vote, or the mean of the votes",)

# for minutes on a CPU: small nets and few steps, the same for all rows of a table.
_SHORT = {"batch_size": 64, "lr": 2e-3, "steps": 200, "log_every": 20}
_SMALL: dict[str, dict[str, Any]] = {
    "capsnet": {
        **{"model.kernel_size": 5, "model.trunk_stride": 2, "model.channels": 32, "model.types": 8},
        "model.decoder_hidden": (64, 128),
    },
    "convnet_fc": {"model.channels": (8, 16, 8), "model.hidden": (64, 32)},
    "convnet_fc_lk": {"model.channels": (8, 16, 8), "model.hidden": (64, 32)},
    "convnet_avg": {"model.channels": 32},
    "em_capsnet": {"model.channels": 8, "model.types": (2, 2, 2), "model.num_iters": 2},
    "convnet_r": {"model.channels": 16, "model.types": 4},
    "convnet_cr": {"model.channels": 16, "model.types": 4},
    "convnet_cr_sf": {"model.channels": 16, "model.types": 4},
}


def _quick(net: Net, *kept: str) -> dict[str, Any]:
    """Return the settings of a short version, all but those that a row is about."""
    small = {key: value for key, value in _SMALL[net.model].items() if key.removeprefix("model.") not in kept}
    return {**small, **_SHORT, **({"steps": 60} if net.model == "em_capsnet" else {})}


def _departures(net: Net, *own: tuple[str, ...]) -> tuple[str, ...]:
    """Return what is done otherwise than in the paper: of a row, of a kind of net, of all."""
    kind = {"capsnet": _CAPSULES, "em_capsnet": _MATRIX}.get(net.model, ())
    return (*(sentence for sentences in own for sentence in sentences), *kind, _PRECISION)


def _reads(*rows: str) -> dict[str, str]:
    """Return which printed numbers of rows of Tables 1 to 3 stand beside which reading."""
    wanted = {f"{row}-{part}": reading for row in rows for part, reading in _PARTS.items()}
    return {target: reading for target, reading in wanted.items() if target in _TARGETS}


_PARTS = {"mnist": "final", "affnist": "affnist", "mnist-train": "training"}


def _table1() -> list[Recipe]:
    recipes = []
    for row, net in TABLE1.items():
        is_ours = row == "em-capsnet"
        printed = [f"table1/{row}"]
        if row in KERNEL_NETS:
            printed.append(f"table3/{row}-k{KERNEL_NETS[row][1]}")
        recipes.append(
            Recipe(
                robust(row),
                net.label,
                placed(net, "stopped"),
                reads={} if is_ours else _reads(*printed),
                seeds=SEEDS,
                measures=(_AFFINE, *((_SEEN,) if row == "capsnet" else ())),
                departures=_departures(net, _STOPPED, _AFFNIST),
                quick=_quick(net),
            )
        )
    return recipes


def _table2() -> list[Recipe]:
    return [
        Recipe(
            ablated(row),
            net.label,
            placed(net, "whole"),
            reads=_reads(f"table2/{row}"),
            seeds=SEEDS,
            measures=(_AFFINE,),
            departures=_departures(net, _WHOLE, _AFFNIST),
            quick=_quick(net),
        )
        for row, net in TABLE2.items()
    ]


def _table3() -> list[Recipe]:
    return [
        Recipe(
            kernel(name, size),
            f"{net.label}, kernels of {size}",
            placed(net, "stopped", kernel_size=size),
            reads=_reads(f"table3/{name}-k{size}"),
            seeds=SEEDS,
            measures=(_AFFINE,),
            departures=_departures(net, _STOPPED, _AFFNIST),
            quick=_quick(net, "kernel_size"),
        )
        for name, (net, usual) in KERNEL_NETS.items()
        for size in KERNELS
        if size != usual
    ]


def _groups() -> list[Recipe]:
    net = TABLE2["baseline"]
    return [
        Recipe(
            grouped(count),
            f"Aff-CapsNet, {count} group{'' if count == 1 else 's'}",
            placed(net, "whole", types=count, dim=CHANNELS // count),
            seeds=SEEDS[:3],
            measures=(_AFFINE,),
            departures=_departures(net, _GROUPED, _WHOLE, _AFFNIST),
            quick={**_quick(net, "types"), "model.types": count, "model.dim": 64 // count},
        )
        for count in GROUPS
        if count != 32
    ]


def _averages() -> list[Recipe]:
    """Return Table 2's nets without routing, each with the other's meaning of it."""
    chosen = {"shared-tenth": (TABLE2["baseline"], "targets"), "not-shared-mean": (TABLE2["not-shared"], "sources")}
    return [
        Recipe(
            averaged(row),
            f"{net.label}, {'a tenth of every vote' if normalise == 'targets' else 'mean of the votes'}",
            placed(net, "whole", normalise=normalise),
            seeds=SEEDS[:3],
            measures=(_AFFINE,),
            departures=_departures(net, _AVERAGED, _WHOLE, _AFFNIST),
            quick=_quick(net),
        )
        for row, (net, normalise) in chosen.items()
    ]


PAPER = Paper(
    "gu2021",
    TITLES["gu2021"],
    recipes=(*_table1(), *_table2(), *_table3(), *_groups(), *_averages()),
    tables=TABLES,
    facts=FACTS,
    remarks=REMARKS,
)
