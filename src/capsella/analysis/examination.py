"""One look at a network: every metric streamed over the images, then what is changed on purpose and what comes of it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from capsella.analysis.activity import SWEEP, Activity, ActivityResult, ActivitySweep
from capsella.analysis.cost import routing_cost
from capsella.analysis.couplings import CouplingChange, CouplingEntropy, RoutingDynamics
from capsella.analysis.gradients import Loss, gradient_norms
from capsella.analysis.layers import Adapter, Route, Seen, observe, routing_layers, tapped
from capsella.analysis.negation import negated
from capsella.analysis.parse_tree import ParseTree, TreeStatistics, TreeStatisticsOf, trees_of
from capsella.analysis.swaps import RoutingSwaps
from capsella.analysis.viewpoint import ViewpointCorrelation, seen_from
from capsella.models import as_prediction
from capsella.nn import RoutingLayer
from capsella.routing import Routed

Sample = list[tuple[Tensor, Tensor | None]]
"""Batches of images that are looked at several times, with their classes where these are known."""

# views so small that a person would not mind; beyond them a lost correlation is no symptom.
_MILD = {"rotation": 20.0, "translation": 2.0, "shear": 20.0, "scale": 0.25}
_IN_WORDS = {
    "rotation": "rotation by {:g}°",
    "translation": "shift by {:g} pixels",
    "shear": "shear by {:g}°",
    "scale": "scale of {:g}",
}
# less than this share of what the layer's capsules get on average.
_STARVED = 0.01
_TREES = 2


class _Layer:
    """What is gathered of one capsule layer, and of the routing above it."""

    def __init__(self, sweep: bool) -> None:
        self.activity = Activity()
        self.sweep = ActivitySweep(SWEEP) if sweep else None
        self.dynamics, self.entropy, self.change = RoutingDynamics(), CouplingEntropy(), CouplingChange()
        self.dim = 0
        self.routes = self.traced = False
        self.routing: str | None = None
        self.windows = 1

    def see(self, activations: Tensor, poses: Tensor) -> None:
        self.dim = poses.shape[-1]
        for each in (self.activity, self.sweep):
            if each is not None:
                each.update(activations[..., None])

    def route(self, seen: Seen) -> None:
        self.windows = seen.windows
        if seen.couplings is not None:
            self.routes = True
            self.dynamics.update(seen.couplings)
            self.entropy.update(seen.couplings)
        if seen.trace is not None and len(seen.trace) > 1:
            self.traced = True
            self.change.update(seen.trace)


class Examination:
    """One pass over the images."""

    def __init__(self, model: nn.Module, adapter: Adapter | None, sweep: bool) -> None:
        self.model, self.adapter, self.sweep = model, adapter, sweep
        self.images = self.right = self.labelled = self.broken = 0
        self.classes: Counter[int] = Counter()
        self.names: list[str] = []
        self.layers: list[_Layer] = []
        self.trees: TreeStatisticsOf | None = TreeStatisticsOf()

    def update(self, images: Tensor, targets: Tensor | None) -> None:
        """Add a batch."""
        output, seen = observe(self.model, images, adapter=self.adapter, trace=True)
        if not self.layers:
            self.names = ["primary capsules", *(each.name for each in seen)]
            self.layers = [_Layer(self.sweep) for _ in range(len(seen) + 1)]
        own = {} if self.adapter is not None else routing_layers(self.model)
        self.layers[0].see(seen[0].lower_activations, seen[0].lower)
        for below, layer, each in zip(self.layers, self.layers[1:], seen, strict=False):
            below.route(each)
            below.routing = own[each.name].routing if each.name in own else None
            layer.see(each.activations, each.poses)
        if self.trees is not None:
            try:
                self.trees.update(seen)
            except ValueError:
                # a convolution on top, or couplings that nobody knows: there is no tree.
                self.trees = None
        self.images += len(images)
        layers = [seen[0].lower_activations, *(each.activations for each in seen)]
        self.broken += int(torch.stack([~each.isfinite().all(dim=1) for each in layers]).any(dim=0).sum())
        if targets is not None and targets.ndim == 1:
            self.right += int((as_prediction(output).scores.argmax(dim=1) == targets).sum())
            self.labelled += len(images)
            self.classes.update(targets.tolist())

    def statistics(self) -> TreeStatistics | None:
        """Return the parse trees' statistics, or None where there are no trees."""
        return None if self.trees is None else self.trees.compute()

    def record(self) -> dict[str, Any]:
        """Return what was measured so far, with room for the rest."""
        found = [layer.activity.compute() for layer in self.layers]
        layers = [
            _layer_record(name, layer, found[k], found[k + 1] if k + 1 < len(found) else None)
            for k, (name, layer) in enumerate(zip(self.names, self.layers, strict=True))
        ]
        return {
            "images": self.images,
            "non_finite": self.broken / self.images,
            "accuracy": self.right / self.labelled if self.labelled else None,
            # what always naming the most frequent class would give.
            "guess": max(self.classes.values()) / self.labelled if self.labelled else None,
            "bias": None if self.adapter is not None else self._has_bias(),
            "layers": layers,
            "negation_gap": None,
            "negation_share": None,
            "routing_matters": None,
        }

    def _has_bias(self) -> bool:
        return all(layer.bias is not None for layer in routing_layers(self.model).values())


def _layer_record(name: str, layer: _Layer, active: ActivityResult, above: ActivityResult | None) -> dict[str, Any]:
    found: dict[str, Any] = {
        "name": name,
        "routing": layer.routing,
        "capsules": len(active.dead),
        "dim": layer.dim,
        **{key: getattr(active, key) for key in ("cns", "cnm", "cas", "car", "cds", "cdr")},
        "dead": active.dead.tolist(),
        "sweep": None if layer.sweep is None else [_at_threshold(each) for each in layer.sweep.compute()],
        **dict.fromkeys(("dyr", "dys", "dyr_literal", "dys_literal", "targets", "live_targets", "entropy")),
        "change": None,
        "viewpoint": {},
        **dict.fromkeys(("negation_gap", "gradient", "gradients", "weight_gradient", "weight_gradients", "starved", "cost")),
    }
    if above is None or not layer.routes:
        return found
    dead = above.dead
    if layer.windows > 1:
        # a target of a window is alive if it is so anywhere.
        dead = dead.reshape(layer.windows, -1).all(dim=0)
    literal = layer.dynamics.compute()
    sources = ~active.dead if len(active.dead) == len(literal.dyr) else None
    live = layer.dynamics.compute(alive=~dead, alive_sources=sources)
    return found | {
        "dyr": _number(live.dyr_mean),
        "dys": _number(live.dys_mean),
        "dyr_literal": _number(literal.dyr_mean),
        "dys_literal": _number(literal.dys_mean),
        "targets": literal.targets,
        "live_targets": live.targets,
        "entropy": _number(layer.entropy.compute().mean),
        "change": [float(value) for value in layer.change.compute()] if layer.traced else None,
    }


def _at_threshold(found: ActivityResult) -> dict[str, float]:
    return {"active": found.active, "cas": found.cas, "car": found.car}


def add_views(
    record: dict[str, Any],
    model: nn.Module,
    adapter: Adapter | None,
    kept: Sample,
    views: Mapping[str, Iterable[float]],
) -> None:
    """Add how the activations of each layer correlate with those of the same images seen otherwise."""
    if not views:
        return
    first = [_lengths(model, adapter, images) for images, _ in kept]
    for view, amounts in views.items():
        for amount in amounts:
            found = [ViewpointCorrelation() for _ in record["layers"]]
            for (images, _), before in zip(kept, first, strict=True):
                after = _lengths(model, adapter, seen_from(images, view, amount))
                for each, a, b in zip(found, before, after, strict=True):
                    each.update(a, b)
            mild = abs(amount - 1 if view == "scale" else amount) <= _MILD[view]
            for layer, each in zip(record["layers"], found, strict=True):
                # a capsule that is always zero says nothing.
                row = {"correlation": _number(each.compute().nanmean()), "chance": _number(each.chance().nanmean())}
                says = _IN_WORDS[view].format(amount)
                layer["viewpoint"].setdefault(view, []).append({"amount": amount, **row, "is_mild": mild, "says": says})


def _lengths(model: nn.Module, adapter: Adapter | None, images: Tensor) -> list[Tensor]:
    _, seen = observe(model, images, adapter=adapter)
    return [seen[0].lower_activations, *(each.activations for each in seen)]


def add_changes(record: dict[str, Any], model: nn.Module, kept: Sample, loss: Loss) -> None:
    """Add what changes with negative primary capsules and with other couplings, and what the loss reaches."""
    gaps, largest = [0.0] * (len(record["layers"]) - 1), 0.0
    swaps = RoutingSwaps(model)
    swapped = False
    reached = [(_Mean(), _Mean(), _Mean()) for _ in gaps]
    graded = False
    for images, targets in kept:
        there, back = negated(model, images)
        gaps = [max(gap, float((a - b).abs().max())) for gap, a, b in zip(gaps, there, back, strict=True)]
        largest = max(largest, float(there[-1].abs().max()))
        if targets is None:
            continue
        if targets.ndim == 1 and len(images) > 1:
            swapped = True
            swaps.update(images, targets)
        graded = True
        for moments, each in zip(reached, gradient_norms(model, images, targets, loss=loss), strict=True):
            for moment, value in zip(moments, (each.lower, each.upper, each.weights), strict=True):
                moment.update(value, len(images))
    record["negation_gap"] = gaps[-1]
    record["negation_share"] = gaps[-1] / largest if largest > 0 else None
    for layer, gap in zip(record["layers"][1:], gaps, strict=True):
        layer["negation_gap"] = gap
    if swapped:
        record["routing_matters"] = {key: value for key, value in vars(swaps.compute()).items() if key != "images"}
    if graded:
        for k, layer in enumerate(record["layers"]):
            is_last = k == len(reached)
            gradient = reached[-1][1].value if is_last else reached[k][0].value
            if len(gradient) != layer["capsules"]:
                # a convolution above sees a capsule in several windows.
                gradient = reached[k - 1][1].value
            layer["gradient"], layer["gradients"] = float(gradient.mean()), _digits(gradient)
            # classes that are as they should be have no gradient, and in a layer that nothing reaches nothing is starved.
            if not is_last:
                layer["starved"] = float((gradient < _STARVED * gradient.mean()).double().mean())
            if k:
                blocks = reached[k - 1][2].value  # [I, J]
                layer["weight_gradient"], layer["weight_gradients"] = float(blocks.mean()), _digits(blocks.mean(dim=0))


class _Mean:
    """A mean over images, of means of batches."""

    def __init__(self) -> None:
        self._sum, self._images = torch.zeros(()), 0

    def update(self, mean: Tensor, images: int) -> None:
        self._sum = self._sum.to(mean.device) + images * mean
        self._images += images

    @property
    def value(self) -> Tensor:
        return self._sum / self._images


def add_costs(record: dict[str, Any], model: nn.Module, images: Tensor) -> None:
    """Add what each routing takes beside attention, for the lower capsules of one batch."""
    given: list[tuple[RoutingLayer, Tensor, Tensor | None]] = []

    def tap(name: str, layer: RoutingLayer, poses: Tensor, activations: Tensor | None, route: Route) -> Routed:
        given.append((layer, poses, activations))
        return route(poses, activations)

    with tapped(model, tap):
        model(images[:64])
    for layer_record, (layer, poses, activations) in zip(record["layers"], given, strict=False):
        # couplings that are learned for each position belong to the layer's own call alone.
        if layer.positions is None:
            layer_record["cost"] = vars(routing_cost(layer, poses, activations))


def some_trees(
    model: nn.Module, adapter: Adapter | None, images: Tensor, views: Mapping[str, Iterable[float]]
) -> tuple[tuple[ParseTree, ...], ParseTree | None, Tensor | None]:
    """Return the trees of a few images, and that of the first one turned."""
    some = images[:_TREES]
    if views and images.ndim == 4:
        some = torch.cat([some, seen_from(images[:1], "rotation", _MILD["rotation"])])
    try:
        trees = trees_of(*observe(model, some, adapter=adapter))
    except ValueError:
        return (), None, None
    turned = len(some) > len(images[:_TREES])
    return tuple(trees[:-1] if turned else trees), trees[-1] if turned else None, some


def _digits(values: Tensor) -> list[float]:
    """Return numbers with as many digits as anybody reads."""
    return [float(f"{value:.3g}") for value in values.tolist()]


def _number(value: float | Tensor) -> float | None:
    """Return a number for JSON, which knows no NaN."""
    return float(value) if math.isfinite(float(value)) else None
