"""Pictures of the cures: what they do for accuracy and dead capsules by depth, and for gradients by layer; a table of trees."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

from capsella.papers.drawing import line_by_layer
from capsella.papers.mitterreiter2023.cures import COUPLINGS, CURE_DEPTHS, CURES, STARTS, cure
from capsella.papers.mitterreiter2023.curing import LEAST
from capsella.papers.mitterreiter2023.living import DEPTHS, Net, deepest_alive, nets_of, shown_tree
from capsella.papers.paper import Line, Plot, Summary, Trees
from capsella.papers.readings import dig
from capsella.papers.verdicts import Evidence

_KINDS = {STARTS: "by start", COUPLINGS: "by couplings"}
_BESIDE = {STARTS: (), COUPLINGS: ("published", "lengths")}
"""Cures of another kind that are drawn beside those of a kind."""

_ENDS = {"start": "at the start", "end": "at the end"}


def _names(kind: str) -> list[str]:
    return [name for name, each in CURES.items() if each.kind == kind or name in _BESIDE[kind]]


def _by_depth(evidence: Evidence, *, kind: str, figure: Callable[[Net], float | None]) -> list[Line]:
    lines = []
    for name in _names(kind):
        found = {depth: figure(net) for depth, net in nets_of(evidence, name, DEPTHS).items()}
        known = {float(depth): value for depth, value in found.items() if value is not None and math.isfinite(value)}
        lines += [Line(CURES[name].label, tuple(known), tuple(known.values()))] if known else []
    return lines


def _by_layer(evidence: Evidence, *, kind: str, when: str) -> list[Line]:
    """Return the gradient of each layer's weights in the deepest nets that all cures have."""
    lines: list[Line] = []
    deepest = max((depth for name in CURES for depth in CURE_DEPTHS if evidence.has(cure(name, depth))), default=0)
    for name in _names(kind):
        row = cure(name, deepest)
        if evidence.has(row):
            found = dig(evidence.results(row)[0].measured, "mitterreiter2023.cured", when, "gradients")
            lines += line_by_layer(CURES[name].label, found)
    return lines


def _tree(evidence: Evidence) -> Mapping[str, Any] | None:
    shown = shown_tree(evidence)
    return None if shown is None else shown[1]


_BY_DEPTH: Mapping[str, tuple[str, str, Callable[[Net], float | None], bool]] = {
    "cures": ("Accuracy on affine digits", "accuracy", lambda net: net.accuracy, True),
    "cures-dead": ("Dead capsules of all hidden layers", "share of the hidden capsules", lambda net: net.dead, True),
    "cures-dynamics": ("Live targets of a hidden capsule", "targets, mean over hidden layers", lambda net: net.targets, False),
}

CURE_PLOTS: tuple[Plot | Trees, ...] = (
    *(
        Plot(
            f"{key}-{kind}",
            f"{title}, by capsule layers, {says}",
            "capsule layers",
            unit,
            functools.partial(_by_depth, kind=kind, figure=figure),
            is_share=is_share,
            is_counted=True,
        )
        for key, (title, unit, figure, is_share) in _BY_DEPTH.items()
        for kind, says in _KINDS.items()
    ),
    *(
        Plot(
            f"cures-gradients-{when}-{kind}",
            f"Gradient of each routing layer's weights {at}, the deepest nets, {says}",
            "routing layer",
            "norm, mean over pairs",
            functools.partial(_by_layer, kind=kind, when=when),
            is_log=True,
            is_counted=True,
        )
        for when, at in _ENDS.items()
        for kind, says in _KINDS.items()
    ),
    Trees(
        "living-tree",
        f"Parse trees of an affine digit, as it is and turned by 20°, in the net marked as drawn; couplings from {LEAST} on",
        "pair",
        _tree,
    ),
)


def _rows(evidence: Evidence) -> list[tuple[str, ...]]:
    shown = shown_tree(evidence)
    nets = [net for name in CURES if (net := deepest_alive(evidence, name, DEPTHS))]
    return [_row(net, shown is not None and net == shown[0]) for net in nets]


def _row(net: Net, is_drawn: bool) -> tuple[str, ...]:
    lost = "" if net.lost is None else f"{100 * net.lost:.1f}".replace("-", "−")
    cells = (
        f"{net.accuracy:.1%}",
        f"{net.dead:.0%}",
        "" if net.still is None else f"{net.still:.0%}",
        "" if net.targets is None else f"{net.targets:.2f}",
        "" if net.kept is None else f"{net.kept:.0%}".replace("-", "−"),
        lost,
    )
    # couplings that are the same in every image route nothing.
    routed = cells if net.routes else (*cells[:3], "none", cells[4], "none")
    return (net.label + (" (drawn)" if is_drawn else ""), str(net.depth), *routed)


LIVING = Summary(
    "living",
    "What lives: the deepest net of each cure that learns with nearly all of its hidden capsules",
    "Accuracy on affine digits; shares of the hidden capsules that are dead, and that are as long in every image, dead ones "
    "among them; live targets of a hidden capsule; of what lies between chance and invariance, what small changes of view "
    "leave; points of accuracy that another image's couplings cost.",
    ("cure", "layers", "accuracy", "dead", "still", "live targets", "invariant beyond chance", "points by couplings"),
    _rows,
    (1, 2, 3, 4, 5, 6, 7),
)
