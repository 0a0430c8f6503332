"""What a net that was to be cured came to: whether it lives, and whether anything in it is a parse tree."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from capsella.papers.mitterreiter2023.cures import CURE_DEPTHS, CURES, DEEPEST, cure
from capsella.papers.mitterreiter2023.deciding import ALIVE, LUCK, STATIC, has_learned, mean_known
from capsella.papers.readings import dig
from capsella.papers.results import Result
from capsella.papers.verdicts import Evidence, Missing

KEPT = 0.5
"""Of what could be invariant beyond chance: where more is left under small changes of view, a capsule follows its part."""

SMALL = {"rotation": 20, "translation": 2, "shear": 20}
DEPTHS = (*CURE_DEPTHS, DEEPEST)
"""Of all that is drawn: verdicts rest on ``CURE_DEPTHS`` alone, since the deepest nets are only tried for some cures."""

DYNAMIC = ("agreement", "em")
"""Routings whose couplings depend on the image."""


@dataclass(frozen=True)
class Net:
    """A net of a cure, as its record has it; figures are means over its runs, of one that came to no number NaN or None.

    Attributes:
        name: of ``CURES``.
        depth: capsule layers.
        accuracy: on affine digits.
        learned: whether every run learned.
        dead: share of the hidden capsules.
        still: share of the hidden capsules whose length hardly depends on the image; None where nobody knows.
        targets: live targets of the routing of hidden layers, mean; None where none is alive.
        kept: of what could be invariant beyond chance in hidden layers, what is left under small changes of view.
        lost: accuracy that is lost with the couplings of other images.
    """

    name: str
    depth: int
    accuracy: float
    learned: bool
    dead: float
    still: float | None
    targets: float | None
    kept: float | None
    lost: float | None

    @property
    def lives(self) -> bool:
        """Whether it learned, and hardly a hidden capsule is dead."""
        return self.learned and self.dead <= ALIVE

    @property
    def label(self) -> str:
        """Its cure, in words."""
        return CURES[self.name].label

    @property
    def routes(self) -> bool:
        """Whether its couplings depend on the image."""
        return self.name in ROUTED

    @property
    def signs(self) -> dict[str, bool | None]:
        """Return what a parse tree would have: routing that is dynamic, capsules that are invariant, couplings that matter."""
        return {
            "dynamic": None if self.targets is None else self.targets >= STATIC,
            "invariant": None if self.kept is None else self.kept > KEPT,
            "matters": None if self.lost is None else self.lost > LUCK,
        }


def routing_of(name: str) -> str:
    """Return the routing of a cure."""
    return str(CURES[name].changes.get("model.routing", "agreement"))


ROUTED = tuple(name for name in CURES if routing_of(name) in DYNAMIC)
"""Cures whose couplings depend on the image."""


def nets_of(evidence: Evidence, name: str, depths: Sequence[int] = CURE_DEPTHS) -> dict[int, Net]:
    """Return the nets of a cure that have run, by depth."""
    return {depth: _net(evidence, name, depth) for depth in depths if evidence.has(cure(name, depth))}


def _net(evidence: Evidence, name: str, depth: int) -> Net:
    key = cure(name, depth)
    results = evidence.results(key)
    if any(dig(result.measured, "mitterreiter2023.cured", "non_finite") for result in results):
        return Net(name, depth, math.nan, False, math.nan, None, None, None, None)
    layers = [_layers(result, key) for result in results]
    return Net(
        name,
        depth,
        evidence.mean(key, "affine"),
        has_learned(evidence, key),
        evidence.mean(key, "dead_hidden"),
        mean_known([_still(each) for each in layers]),
        mean_known([mean_known([layer["dys"] for layer in each[1:-1]]) for each in layers]),
        mean_known([mean_known([share for layer in each[1:-1] for share in beyond_chance(layer)]) for each in layers]),
        mean_known([_lost(result) for result in results]),
    )


def _layers(result: Result, key: str) -> list[Mapping[str, Any]]:
    found = dig(result.measured, "mitterreiter2023.cured", "layers")
    if not found:
        raise Missing(key)
    return list(found)


def _still(layers: Sequence[Mapping[str, Any]]) -> float | None:
    hidden = layers[1:-1]
    if any(layer["still"] is None for layer in hidden):
        return None
    return float(sum(layer["still"] for layer in hidden) / sum(layer["capsules"] for layer in hidden))


def beyond_chance(layer: Mapping[str, Any]) -> list[float]:
    """Return how much of what could be invariant beyond chance is left under each small change of view."""
    found = []
    for view, amount in SMALL.items():
        rows = layer["viewpoint"][view]
        seen, chance = (rows[what][rows["amount"].index(amount)] for what in ("correlation", "chance"))
        # lengths that hardly vary leave nothing between chance and one.
        if seen is not None and chance is not None and chance < 1 - _ROOM:
            found.append((seen - chance) / (1 - chance))
    return found


_ROOM = 1e-3


def _lost(result: Result) -> float | None:
    found = dig(result.measured, "mitterreiter2023.cured", "routing_matters")
    return None if not found else float(found["own"]) - float(found["other"])


def share_of(value: float) -> str:
    """Write a share as a percentage, and what is no number as that.

    Example:
        >>> share_of(0.256), share_of(float("nan"))
        ('26%', 'no number')
    """
    return "no number" if math.isnan(value) else f"{value:.0%}"


def weakest_gradient(evidence: Evidence, net: Net) -> float | None:
    """Return the gradient of the layer that has least at the start, mean over the runs of a net; None where nobody knows."""
    found = []
    for result in evidence.results(cure(net.name, net.depth)):
        gradients = dig(result.measured, "mitterreiter2023.cured", "start", "gradients")
        if not gradients or None in gradients:
            return None
        found.append(min(gradients))
    return statistics.fmean(found)


def deepest_alive(evidence: Evidence, name: str, depths: Sequence[int] = CURE_DEPTHS) -> Net | None:
    """Return the deepest net of a cure that lives, None where none does."""
    return next((net for _, net in sorted(nets_of(evidence, name, depths).items(), reverse=True) if net.lives), None)


def shown_tree(evidence: Evidence) -> tuple[Net, Mapping[str, Any]] | None:
    """Return the deepest living net whose routing depends on the image and of which a parse tree is kept, and the tree.

    Of nets of one depth it is the one that is right most often.
    """
    nets = [net for name in CURES for net in nets_of(evidence, name, DEPTHS).values() if net.lives and net.routes]
    for net in sorted(nets, key=lambda each: (each.depth, each.accuracy), reverse=True):
        tree = dig(evidence.results(cure(net.name, net.depth))[0].measured, "mitterreiter2023.cured", "tree")
        if tree:
            return net, tree
    return None
