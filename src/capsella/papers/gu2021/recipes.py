"""gu2021: what of a CapsNet makes it robust, component by component, and ConvNets beside it.

README.md has settings, their sources, and departures.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from capsella.papers.gu2021.claims import CLAIMS
from capsella.papers.gu2021.effects import KINDS, answer, rows
from capsella.papers.gu2021.facts import FACTS, REMARKS
from capsella.papers.gu2021.nets import (
    CHANNELS,
    CONVNETS,
    EPOCHS,
    FACTORS,
    FEWER,
    GROUPS,
    KERNEL_NETS,
    KERNELS,
    PAIRS_NETS,
    PAIRS_STEPS,
    PARTNERS,
    SEEDS,
    SETS,
    SHOWN_EPOCHS,
    TABLE1,
    TABLE2,
    TABLE4,
    TABLE5,
    Net,
    ablated,
    averaged,
    compact,
    convnet,
    grouped,
    kernel,
    overlapping,
    paired,
    pairs_kernel,
    partnered,
    placed,
    robust,
    shown,
)
from capsella.papers.gu2021.plots import PLOTS
from capsella.papers.gu2021.short import quick
from capsella.papers.gu2021.tables import TABLES
from capsella.papers.paper import TITLES, Paper, Summary
from capsella.papers.recipe import Recipe
from capsella.papers.targets import read_targets

_AFFINE, _AFFINE_FEW, _SEEN = "gu2021.affine", "gu2021.affine_few", "gu2021.seen"
_OVERLAPPING = "gu2021.overlapping"
_COMPACT, _PERTURBED, _MAPPED = "gu2021.compactness", "gu2021.perturbed", "gu2021.mapped"
_TARGETS = read_targets("gu2021")
_DECODING = ("capsnet", "convnet_r", "convnet_cr", "convnet_cr_sf")

_PRECISION = "on a GPU in bf16 with sums in float32; each result says which"
_DRAWS = ("the weight of the reconstruction is 0.0005 on the sum of squares over pixels: the paper does not say sum or mean",)
_BY_COUNT = (
    "capsules' weights start uniformly within ±1/√M, M being the capsules below, as in the authors' later code: the paper does "
    "not say",
)
_RAW = ("without a squash the margin loss, or what stands for it, is of raw lengths: the paper does not say",)
_LENGTHS = ("cross entropy is of lengths divided by their sum: the paper does not say how lengths become what it is of",)
_BINARY = ("binary cross entropy is of lengths, summed over classes: the paper does not say sum or mean",)
_OTHER_START = (
    "the start differs with the component: ±1/√M where votes are summed, ±1/√8 in Aff-CapsNet, which takes their mean; "
    "from ±1/√M a mean of thousands would vanish, from ±1/√8 their sum diverges",
)
_MADE = (
    "AffNIST is made from MNIST's 10,000 test images with a shear factor of up to 0.2, wherever the digit fits: the paper's "
    "words say 45° and shifts of 8 pixels, which do not give its ranking",
    "MNIST's test images lie at random places too, one fixed draw of these",
)
_AFFNIST = (*_MADE, "of each test image there are 32 versions")
_AFFNIST_FEW = (*_MADE, "of each test image there are 8 versions, the first of Tables 1 and 2's 32")
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
_PAIRS = (
    f"{PAIRS_STEPS:,} steps, which are one pass over six million images, with a rate that falls by 0.96 in 2,000 steps: the "
    "paper does not say how long it trains",
    "errors are on 100,000 test images, ten of each digit (20,000 with one partner); shifts of up to 4 pixels of both digits",
)
_DIGITS = ("the same decoder draws both digits, each from its own capsule; what is drawn without a mask is the whole image",)
_LARGE = ("dense layers of 160 and 96 units, just below CapsNet's size: the paper does not say",)
_GROUPS_OF_16 = (
    "what the margin loss and the decoder do to a ConvNet is said and not shown: ours is ConvNet-CR, whose probabilities are "
    "sigmoids of sums of 16",
)
_ONE_SEED = ("one run",)
_THREE = ("the mean of three runs, not of five",)
_UNSEEN = ("the kernels on overlapping digits are in a supplement that is not to be had",)
_COMPACTNESS = (
    f"{SHOWN_EPOCHS} epochs with a rate that falls by 0.96 in 2,000 steps, on unmoved images of 28×28: the paper does not say",
    "rotation and shear of ±10°, shifts of ±5 pixels, scales of 0.75 to 1.25, on all test images: the paper says none of these",
    "ConvNet-R has cross entropy on logits, ConvNet-CR a binary one on sums of 16, ConvNet-CR-SF and CapsNet the margin loss: "
    "the paper does not say",
    "the score is KL(variances ‖ uniform), summed, in nats, on all 160 values of ConvNet-R; other conventions stand beside it",
)
_GROUPED = ("the number of groups is in a supplement that is not to be had: types of 256/n values share the 256 channels",)
_AVERAGED = ("what is meant by no routing is not said: 1/10 for every vote, or the mean of the votes",)


def _departures(net: Net, *own: tuple[str, ...], **options: Any) -> tuple[str, ...]:
    """Return what is done otherwise than in the paper: of a row, of a kind of net, of all; ``options`` as a plan has them."""
    chosen = {**net.options, **options}
    kinds = [
        _MATRIX if net.model == "em_capsnet" else (),
        _start(chosen) if net.model == "capsnet" else (),
        _DRAWS if decodes(net) else (),
        _RAW if chosen.get("squash") == "none" else (),
        {"length_cross_entropy": _LENGTHS, "length_binary_cross_entropy": _BINARY}.get(net.train.get("loss", ""), ()),
    ]
    return (*(sentence for sentences in (*own, *kinds) for sentence in sentences), _PRECISION)


def decodes(net: Net) -> bool:
    """Tell whether a net has a decoder."""
    return net.model in _DECODING and net.options.get("reconstruction") != "none"


def takes_mean(options: Mapping[str, Any]) -> bool:
    """Tell whether a CapsNet averages its votes: without routing, where its matrix is shared or where it is told to."""
    usual = "sources" if options.get("shared") else "targets"
    return options.get("routing") == "uniform" and options.get("normalise", usual) == "sources"


def _start(options: Mapping[str, Any]) -> tuple[str, ...]:
    if not takes_mean(options):
        return _BY_COUNT
    dim = options.get("dim", 8)
    return (f"capsules' weights start uniformly within ±1/√{dim}, since the votes are averaged: the paper does not say",)


def _reads(*rows: str) -> dict[str, str]:
    """Return which printed numbers of rows of Tables 1 to 3 stand beside which reading."""
    wanted = {f"{row}-{part}": reading for row in rows for part, reading in _PARTS.items()}
    return {target: reading for target, reading in wanted.items() if target in _TARGETS}


# without the part of its name that says so, the accuracy on the training images or on the test images.
# of overlapping digits, the whole training is one epoch.
_PAIRS_PARTS = {"multimnist-train": "training_late", "multimnist": "final"}
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
                seeds=FEWER if is_ours else SEEDS,
                measures=(_AFFINE, *((_SEEN,) if row == "capsnet" else ())),
                departures=_departures(net, _STOPPED, _AFFNIST),
                quick=quick(net),
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
            departures=_departures(net, *((_OTHER_START,) if row in ("dr", "not-shared") else ()), _WHOLE, _AFFNIST),
            quick=quick(net),
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
            seeds=_kernel_seeds(name, size),
            measures=(_AFFINE_FEW,),
            departures=_departures(
                net, _STOPPED, _AFFNIST_FEW, _ONE_SEED if _kernel_seeds(name, size) == SEEDS[:1] else _THREE
            ),
            quick=quick(net),
        )
        for name, (net, usual) in KERNEL_NETS.items()
        for size in KERNELS
        if size != usual
    ]


def _kernel_seeds(name: str, size: int) -> tuple[int, ...]:
    # among the slowest, and the paper prints no accuracy of it.
    return SEEDS[:1] if (name, size) == ("convnet-fc", 11) else FEWER


def _groups() -> list[Recipe]:
    net = TABLE2["baseline"]
    return [
        Recipe(
            grouped(count),
            f"Aff-CapsNet, {count} group{'' if count == 1 else 's'}",
            placed(net, "whole", types=count, dim=CHANNELS // count),
            seeds=FEWER,
            measures=(_AFFINE_FEW,),
            departures=_departures(net, _GROUPED, _WHOLE, _AFFNIST_FEW, dim=CHANNELS // count),
            quick=quick(net, "types", **{"model.types": count, "model.dim": 64 // count}),
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
            seeds=FEWER,
            measures=(_AFFINE_FEW,),
            departures=_departures(net, _AVERAGED, _OTHER_START, _WHOLE, _AFFNIST_FEW, normalise=normalise),
            quick=quick(net),
        )
        for row, (net, normalise) in chosen.items()
    ]


def _paired(
    key: str,
    label: str,
    net: Net,
    *own: tuple[str, ...],
    partners: int = 100,
    size: int | None = None,
    seeds: tuple[int, ...] = FEWER,
    measures: tuple[str, ...] = (),
) -> Recipe:
    """Return a row on overlapping digits; ``size`` of its kernels where a row is about them."""
    options = {} if size is None else {"kernel_size": size}
    row = key.split("/")[2]
    is_table4 = key.split("/")[1] == "table4"
    return Recipe(
        key,
        label,
        paired(net, partners, **options),
        reads={f"table4/{row}-{part}": reading for part, reading in _PAIRS_PARTS.items()} if is_table4 else {},
        seeds=seeds,
        measures=measures,
        departures=_departures(
            net, *own, _PAIRS, *((_THREE,) if seeds == FEWER else ()), *((_DIGITS,) if decodes(net) else ())
        ),
        quick=quick(net, **{"data.test_partners": 1, "validate_every": 0, "steps": 300}),
    )


def _table4() -> list[Recipe]:
    return [
        _paired(overlapping(row), net.label, net, measures=(_OVERLAPPING,) if row == "baseline" else ())
        for row, net in TABLE4.items()
    ]


def _convnets() -> list[Recipe]:
    own = {"convnet_fc_lk": (_LARGE,), "convnet_cr": (_GROUPS_OF_16,)}
    return [_paired(convnet(row), net.label, net, *own.get(net.model, ())) for row, net in CONVNETS.items()]


def _figure3() -> list[Recipe]:
    return [
        _paired(
            partnered(name, count),
            f"{net.label}, {count:,} partner{'' if count == 1 else 's'}",
            net,
            *((_LARGE,) if name == "convnet-fc-lk" else ()),
            _ONE_SEED,
            partners=count,
            seeds=SEEDS[:1],
        )
        for count in PARTNERS
        for name, net in PAIRS_NETS.items()
        if count != 100
    ]


def _kernels() -> list[Recipe]:
    return [
        _paired(
            pairs_kernel(name, size),
            f"{net.label}, kernels of {size}",
            net,
            *((_LARGE,) if name == "convnet-fc-lk" else ()),
            _UNSEEN,
            _ONE_SEED,
            size=size,
            seeds=SEEDS[:1],
        )
        for size in KERNELS
        for name, net in PAIRS_NETS.items()
        if size != 9
    ]


def _table5() -> list[Recipe]:
    return [
        Recipe(
            compact(data, row),
            f"{name}, {net.label}",
            shown(net, data),
            reads={f"table5/{row}-{printed}": f"compact_{factor}" for factor, printed in FACTORS.items()}
            if data == "mnist"
            else {},
            seeds=FEWER,
            measures=(_COMPACT, _PERTURBED, _MAPPED),
            departures=_departures(net, _COMPACTNESS, _THREE),
            # kernels of 9 would leave a map of one place.
            quick=quick(net, **({"model.kernel_size": 5} if net.model == "capsnet" else {})),
        )
        for data, (name, _) in SETS.items()
        for row, net in TABLE5.items()
    ]


_UNITS = "; ".join(f"{kind}: {unit}" for kind, unit in KINDS.items())

PAPER = Paper(
    "gu2021",
    TITLES["gu2021"],
    recipes=(
        *_table1(),
        *_table2(),
        *_table4(),
        *_convnets(),
        *_table5(),
        *_table3(),
        *_groups(),
        *_averages(),
        *_figure3(),
        *_kernels(),
    ),
    tables=TABLES,
    summaries=(
        Summary(
            "effects",
            "Which component helps which kind of robustness",
            "What a net has more with the component than without it, with the 95% interval over runs (Welch). It helps or "
            f"harms where that interval has no zero in it. {_UNITS}.",
            ("component", "kind", "where", "gain", "says", "runs"),
            rows,
            (3, 5),
        ),
    ),
    plots=PLOTS,
    claims=CLAIMS,
    facts=FACTS,
    remarks=REMARKS,
    says=(
        "Table 1's nets stop by the test images, as in the paper: their accuracy on MNIST is chosen, and the one on AffNIST is "
        "what is measured. Everywhere else the last epoch counts.",
    ),
    beyond="What else there is to ask",
    answer=answer,
)
