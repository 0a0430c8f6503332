"""mitterreiter2023: capsules that die, routing that stands still, and primary capsules that are always there.

README.md has settings, their sources, and departures.
"""

from __future__ import annotations

from capsella.papers.mitterreiter2023.answer import answer
from capsella.papers.mitterreiter2023.claims import CLAIMS
from capsella.papers.mitterreiter2023.cure_plots import LIVING
from capsella.papers.mitterreiter2023.cures import CURE_DEPTHS, CURE_EPOCHS, CURES, DEEPEST, WITHOUT_DEEPEST, cure
from capsella.papers.mitterreiter2023.facts import FACTS, REMARKS
from capsella.papers.mitterreiter2023.nets import DEPTHS, GROWTH, ROUTINGS, VARIANTS, net, photographs, variant
from capsella.papers.mitterreiter2023.plots import PLOTS
from capsella.papers.mitterreiter2023.rows import RECIPES
from capsella.papers.mitterreiter2023.sweep import SWEEP_DEPTHS, SWEEP_DIMS, SWEEP_WIDTHS, Cell
from capsella.papers.paper import TITLES, Paper, Table

_BY_DEPTH = tuple(net(routing, depth) for routing in ROUTINGS for depth in DEPTHS)
_PHOTOGRAPHS = tuple(photographs(routing) for routing in ROUTINGS)
_VARIANTS = (net(), *map(variant, VARIANTS))


def _by_depth(key: str, title: str, reading: str, note: str = "") -> Table:
    columns = tuple(map(str, DEPTHS))
    return Table(key, "", title, _BY_DEPTH, reading=reading, rows=tuple(ROUTINGS.values()), columns=columns, note=note)


def _cures(key: str, title: str, reading: str, note: str = "") -> Table:
    cells = tuple(cure(name, depth) for name in CURES for depth in CURE_DEPTHS)
    rows, columns = tuple(each.label for each in CURES.values()), tuple(map(str, CURE_DEPTHS))
    return Table(key, "", f"{title}, by capsule layers", cells, reading=reading, rows=rows, columns=columns, note=note)


def _sweep(key: str, title: str, reading: str, note: str = "") -> Table:
    sizes = [(routing, width, dim) for routing in ROUTINGS for width in SWEEP_WIDTHS for dim in SWEEP_DIMS]
    cells = tuple(Cell(routing, depth, width, dim).key for routing, width, dim in sizes for depth in SWEEP_DEPTHS)
    rows = tuple(f"{ROUTINGS[routing]}, {width} capsules of {dim}" for routing, width, dim in sizes)
    return Table(
        key,
        "",
        f"{title}, by capsule layers",
        cells,
        reading=reading,
        rows=rows,
        columns=tuple(map(str, SWEEP_DEPTHS)),
        note=note,
    )


PAPER = Paper(
    "mitterreiter2023",
    TITLES["mitterreiter2023"],
    recipes=RECIPES,
    tables=(
        Table(
            "table1",
            "Tables 1 and 2",
            "Accuracy on affine digits of the net of 16, 16, 16, 16 and 10 capsules",
            (net(),),
            reading="affine",
            note="Its routing dynamics and activity, layer by layer, are among the printed numbers below.",
        ),
        _by_depth(
            "depth",
            "Accuracy on affine digits, by capsule layers",
            "affine",
            "All stop as soon as 99.2 % of the placed test images are right, or after 60 epochs.",
        ),
        _by_depth("deaths", "Dead capsules of all hidden layers, by capsule layers", "dead_hidden"),
        _by_depth("reached", "Accuracy on placed digits at the end, by capsule layers", "final"),
        Table("cifar10", "", "Accuracy on CIFAR-10", _PHOTOGRAPHS, reading="final"),
        Table(
            "variants",
            "",
            "What the paper leaves open: dynamics of the first layer in live targets",
            _VARIANTS,
            reading="dys1",
            note="The paper prints 4.50. Its authors' code, of some months before, does each of these otherwise than its text.",
        ),
        Table(
            "table3",
            "Table 3",
            "By which power of n the time of agreement grows",
            (GROWTH,),
            reading="growth_n",
            note="Layers of n capsules of d values in and out, one step forward and backward; attention is in the picture.",
        ),
        _cures(
            "cures",
            "Cures side by side: accuracy on affine digits",
            "affine",
            f"All stop as soon as 99.2 % of the placed test images are right, or after {CURE_EPOCHS} epochs.",
        ),
        _cures("cures-dead", "Cures: dead capsules of all hidden layers", "dead_hidden"),
        _cures("cures-dynamics", "Cures: routing dynamics", "dynamics"),
        _cures("cures-reached", "Cures: accuracy on placed digits at the end", "final"),
        Table(
            f"cures{DEEPEST}",
            "",
            f"Cures that keep nets of 20 layers alive, with {DEEPEST}: accuracy on affine digits",
            tuple(cure(name, DEEPEST) for name in CURES if name not in WITHOUT_DEEPEST),
            reading="affine",
            note="Only what lives with 20 layers is worth it.",
        ),
        _sweep(
            "sweep",
            "The sweep: accuracy on affine digits",
            "affine",
            "Class capsules have as many values as the others. Which of them have run is balanced at any time; claims on them "
            "are tested at the half and at the end. A run that came to no number counts there as right on no image.",
        ),
        _sweep("sweep-dead", "The sweep: dead capsules of all hidden layers", "dead_hidden"),
        _sweep("sweep-dynamics", "The sweep: routing dynamics", "dynamics"),
    ),
    summaries=(LIVING,),
    plots=PLOTS,
    claims=CLAIMS,
    facts=FACTS,
    remarks=REMARKS,
    beyond="Which cure keeps deep capsules alive, does depth then help, and does a parse tree appear?",
    answer=answer,
)
