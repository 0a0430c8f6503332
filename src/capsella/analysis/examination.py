"""One pass over the images: every metric that needs each of them once, streamed."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch import Tensor, nn

from capsella.analysis.activity import SWEEP, Activity, ActivityResult, ActivitySweep
from capsella.analysis.couplings import CouplingChange, CouplingEntropy, RoutingDynamics, live_dynamics
from capsella.analysis.layers import Adapter, Seen, observe, routing_layers
from capsella.analysis.parse_tree import TreeStatistics, TreeStatisticsOf
from capsella.models import Prediction, as_prediction


class _Layer:
    """What is gathered of one capsule layer, and of the routing above it."""

    def __init__(self, sweep: bool) -> None:
        self.activity = Activity()
        # below a convolution a capsule counts once for every window, as its couplings do.
        self.sources = Activity()
        self.sweep = ActivitySweep(SWEEP) if sweep else None
        self.dynamics, self.entropy, self.change = RoutingDynamics(), CouplingEntropy(), CouplingChange()
        self.dim = 0
        self.routes = self.traced = False
        self.routing: str | None = None
        self.windows = 1
        self.normalise: str | None = None

    def see(self, activations: Tensor, poses: Tensor) -> None:
        self.dim = poses.shape[-1]
        for each in (self.activity, self.sweep):
            if each is not None:
                each.update(activations[..., None])

    def route(self, seen: Seen) -> None:
        self.windows, self.normalise = seen.windows, seen.normalise
        if seen.couplings is not None:
            self.routes = True
            self.sources.update(seen.lower_activations[..., None])
            self.dynamics.update(seen.by_chooser(seen.couplings))
            self.entropy.update(seen.by_chooser(seen.couplings))
        if seen.trace is not None and len(seen.trace) > 1:
            self.traced = True
            self.change.update([seen.by_chooser(couplings) for couplings in seen.trace])


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
            self.right += int((scores_of(output, len(images)).argmax(dim=1) == targets).sum())
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
            **dict.fromkeys(("negation_gap", "negation_share", "negation_by", "routing_matters")),
            **dict.fromkeys(("views_skipped", "compactness", "training")),
        }

    def _has_bias(self) -> bool:
        return all(layer.bias is not None for layer in routing_layers(self.model).values())


def _layer_record(name: str, layer: _Layer, active: ActivityResult, above: ActivityResult | None) -> dict[str, Any]:
    found: dict[str, Any] = {
        "name": name,
        "routing": layer.routing,
        "normalise": layer.normalise,
        "capsules": len(active.dead),
        "dim": layer.dim,
        **{key: getattr(active, key) for key in ("cns", "cnm", "cas", "car", "cds", "cdr")},
        "dead": active.dead.tolist(),
        "sweep": None if layer.sweep is None else [_at_threshold(each) for each in layer.sweep.compute()],
        **dict.fromkeys(("dyr", "dys", "dyr_literal", "dys_literal", "targets", "live_targets", "entropy")),
        "change": None,
        "viewpoint": {},
        **dict.fromkeys(
            (
                "negation_gap",
                "gradient",
                "gradients",
                "weight_gradient",
                "weight_gradients",
                "outgoing_gradients",
                "starved",
                "cost",
            )
        ),
    }
    if above is None or not layer.routes:
        return found
    literal = layer.dynamics.compute()
    live = live_dynamics(
        layer.dynamics,
        layer.sources.compute().dead,
        above.dead,
        windows=layer.windows,
        normalise=layer.normalise or "targets",
    )
    return found | {
        "dyr": live.dyr_mean,
        "dys": live.dys_mean,
        "dyr_literal": literal.dyr_mean,
        "dys_literal": literal.dys_mean,
        "targets": literal.targets,
        "live_targets": live.targets,
        "entropy": layer.entropy.compute().mean,
        "change": [float(value) for value in layer.change.compute()] if layer.traced else None,
    }


def _at_threshold(found: ActivityResult) -> dict[str, float]:
    return {"active": found.active, "cas": found.cas, "car": found.car}


def scores_of(output: Any, images: int) -> Tensor:
    """Return the scores [B, J] of what a network returned for B images; anything else is one line."""
    works = "wrap it in a module that does, or leave targets out"
    if not isinstance(output, Tensor | Prediction):
        kind = type(output).__name__
        raise TypeError(f"model returned a {kind}; with targets expected a Prediction or a tensor of scores [B, J]: {works}")
    scores = as_prediction(output).scores
    if scores.ndim != 2 or len(scores) != images:
        raise ValueError(f"model returned scores {list(scores.shape)}; with targets expected [B={images}, J]: {works}")
    return scores
