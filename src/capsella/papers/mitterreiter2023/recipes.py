"""mitterreiter2023: capsules that die, routing that stands still, and primary capsules that are always there.

README.md has settings, their sources, and departures.
"""

from __future__ import annotations

from capsella.papers.mitterreiter2023.claims import CLAIMS
from capsella.papers.mitterreiter2023.facts import FACTS, REMARKS
from capsella.papers.mitterreiter2023.nets import DEPTHS, GROWTH, ROUTINGS, VARIANTS, net, photographs, variant
from capsella.papers.mitterreiter2023.plots import PLOTS
from capsella.papers.mitterreiter2023.rows import RECIPES
from capsella.papers.paper import TITLES, Paper, Table

_BY_DEPTH = tuple(net(routing, depth) for routing in ROUTINGS for depth in DEPTHS)
_PHOTOGRAPHS = tuple(photographs(routing) for routing in ROUTINGS)
_VARIANTS = (net(), *map(variant, VARIANTS))


def _by_depth(key: str, title: str, reading: str, note: str = "") -> Table:
    columns = tuple(map(str, DEPTHS))
    return Table(key, "", title, _BY_DEPTH, reading=reading, rows=tuple(ROUTINGS.values()), columns=columns, note=note)


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
    ),
    plots=PLOTS,
    claims=CLAIMS,
    facts=FACTS,
    remarks=REMARKS,
    beyond="What its assumptions are worth",
)
