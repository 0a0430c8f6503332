"""What is changed on purpose, and what comes of it: views, negatives, couplings; what the loss reaches; what routing takes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from capsella.analysis.cost import routing_cost
from capsella.analysis.factors import FACTORS, FactorCompactness
from capsella.analysis.gradients import GradientNorms, LayerGradients, Loss, starved_share
from capsella.analysis.layers import Adapter, Route, observe, tapped
from capsella.analysis.negation import answers, larger
from capsella.analysis.parse_tree import ParseTree, trees_of
from capsella.analysis.swaps import RoutingSwaps
from capsella.analysis.viewpoint import ViewpointCorrelation, seen_from
from capsella.nn import RoutingLayer
from capsella.routing import Routed

Sample = list[tuple[Tensor, Tensor | None]]
"""Batches of images that are looked at several times, with their classes where these are known."""

# views so small that a person would not mind; beyond them a lost correlation is no symptom.
_MILD = {"rotation": 20.0, "translation": 2.0, "shear": 20.0, "scale": 0.25}
_IN_WORDS = {
    "rotation": "rotation by {:g}°",
    "translation": "shift by {:g} pixel{}",
    "shear": "shear by {:g}°",
    "scale": "scale of {:g}",
}
_TREES = 2


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
                row = {"correlation": float(each.compute().nanmean()), "chance": float(each.chance().nanmean())}
                says = _IN_WORDS[view].format(amount, "" if amount == 1 else "s")
                layer["viewpoint"].setdefault(view, []).append({"amount": amount, **row, "is_mild": mild, "says": says})


def _lengths(model: nn.Module, adapter: Adapter | None, images: Tensor) -> list[Tensor]:
    _, seen = observe(model, images, adapter=adapter)
    return [seen[0].lower_activations, *(each.activations for each in seen)]


def add_negatives(record: dict[str, Any], model: nn.Module, kept: Sample) -> None:
    """Add what changes with negative primary capsules: of the scores, and of the activations of every layer."""
    gaps, gap, largest, by = [0.0] * (len(record["layers"]) - 1), 0.0, 0.0, "scores"
    for images, _ in kept:
        there, back = answers(model, images)
        pairs = zip(gaps, there.activations, back.activations, strict=True)
        gaps = [larger(most, float((a - b).abs().max())) for most, a, b in pairs]
        one, other = there.scores, back.scores
        if one is None or other is None:
            # a network that returns something else is asked for the activations of its last layer.
            one, other, by = there.activations[-1], back.activations[-1], "activations"
        gap, largest = larger(gap, float((one - other).abs().max())), larger(largest, float(one.abs().max()))
    record["negation_gap"], record["negation_by"] = gap, by
    record["negation_share"] = gap / largest if largest > 0 else None
    for layer, own in zip(record["layers"][1:], gaps, strict=True):
        layer["negation_gap"] = own


def add_swaps(record: dict[str, Any], model: nn.Module, kept: Sample) -> None:
    """Add the accuracy with other couplings, of images that have one class each."""
    swaps, is_any = RoutingSwaps(model), False
    for images, targets in kept:
        if targets is not None and targets.ndim == 1 and len(images) > 1:
            swaps.update(images, targets)
            is_any = True
    if is_any:
        record["routing_matters"] = dict(vars(swaps.compute()))


def add_gradients(record: dict[str, Any], model: nn.Module, kept: Sample, loss: Loss) -> None:
    """Add what the loss reaches."""
    norms, is_any = GradientNorms(model, loss=loss), False
    for images, targets in kept:
        if targets is not None:
            norms.update(images, targets)
            is_any = True
    if not is_any:
        return
    reached = norms.compute()
    for k, layer in enumerate(record["layers"]):
        gradient = _gradient_of(k, layer["capsules"], reached)
        layer["gradient"], layer["gradients"] = float(gradient.mean()), _digits(gradient)
        # classes that are as they should be have no gradient, and in a layer that nothing reaches nothing is starved.
        if k < len(reached):
            layer["starved"] = starved_share(gradient)
            leaving = reached[k].weights.mean(dim=1)
            # a convolution above sees a capsule in several windows.
            layer["outgoing_gradients"] = _digits(leaving) if len(leaving) == layer["capsules"] else None
        if k:
            blocks = reached[k - 1].weights  # [I, J]
            layer["weight_gradient"], layer["weight_gradients"] = float(blocks.mean()), _digits(blocks.mean(dim=0))


def _gradient_of(k: int, capsules: int, reached: list[LayerGradients]) -> Tensor:
    """Return what reaches each capsule of layer k, from the routing above it or, where it is the last one, below."""
    if k < len(reached) and len(reached[k].lower) == capsules:
        return reached[k].lower
    # the last layer; or a convolution above sees a capsule in several windows.
    return reached[k - 1].upper


def add_compactness(record: dict[str, Any], model: nn.Module, kept: Sample) -> None:
    """Add gu2021's score of the class capsules for each factor of variation."""
    scores, is_any = FactorCompactness(model), False
    for images, targets in kept:
        if images.ndim == 4 and targets is not None and targets.ndim == 1:
            scores.update(images, targets)
            is_any = True
    if not is_any:
        raise ValueError("compactness=True needs images [B, C, H, W] with one class each; expected these, or compactness=False")
    found = scores.compute()
    some = next(iter(found.values()))
    record["compactness"] = {
        **{"direction": "forward", "reduction": "sum", "log_base": "e", "images": some.images, "values": some.values},
        "factors": {
            factor: {"mean": score.mean, "std": score.std, "from": FACTORS[factor][0], "to": FACTORS[factor][-1]}
            for factor, score in found.items()
        },
    }


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
