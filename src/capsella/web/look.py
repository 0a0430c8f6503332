"""One pass of a network over several images, taken apart image by image: everything that a view may show of each."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from einops import rearrange, repeat
from torch import Tensor, nn

from capsella.analysis.layers import Route, Seen, observe_in, tapped
from capsella.analysis.parse_tree import chained
from capsella.models import Model, as_prediction, evaluating
from capsella.nn import RoutingLayer
from capsella.routing import Routed


@dataclass(frozen=True, eq=False)
class Look:
    """What a network made of one image.

    Attributes:
        scores: [J].
        capsules: class capsules [J, D], or None.
        drawing: of the likeliest class [C, H, W], or None.
        names: of the routing layers of its tree, lowest first.
        activations: [M] of each layer of its tree, lowest first; none where it has no tree.
        poses: [M, D] of the same.
        couplings: of each gap, [I, J] for every iteration.
    """

    scores: Tensor
    capsules: Tensor | None
    drawing: Tensor | None
    names: tuple[str, ...] = ()
    activations: tuple[Tensor, ...] = ()
    poses: tuple[Tensor, ...] = ()
    couplings: tuple[tuple[Tensor, ...], ...] = ()


def look(model: nn.Module, images: Tensor, *, has_tree: bool = True, negate: Sequence[bool] | None = None) -> list[Look]:
    """Run a network once.

    Args:
        model: any.
        images: [B, C, H, W], as the network takes them.
        has_tree: whether its capsule layers are watched, which they can be where they stand on each other.
        negate: for each image, whether the poses that enter the lowest routing layer are negated; none are if None.

    Example:
        >>> import capsella
        >>> (found,) = look(capsella.create_model("capsnet_small"), torch.rand(1, 1, 28, 28))
        >>> [len(layer) for layer in found.activations], [len(gap) for gap in found.couplings]
        ([72, 10], [3])
    """

    def run() -> object:
        with negating(model, negate) if negate and any(negate) else contextlib.nullcontext():
            return model(images)

    chain: list[Seen] = []
    if has_tree:
        # negated within what watches: what is seen is what the layer was given.
        output, seen = observe_in(run, model, len(images), trace=True)
        chain = chained(seen)
    else:
        with evaluating(model):
            output = run()
    prediction = as_prediction(output)
    layers = [(chain[0].lower_activations, chain[0].lower)] if chain else []
    layers += [(each.activations, each.poses) for each in chain]
    capsules, drawings = prediction.capsules, prediction.reconstruction
    return [
        Look(
            prediction.scores[k],
            None if capsules is None else capsules[k],
            None if drawings is None else drawings[k],
            tuple(each.name for each in chain),
            tuple(activations[k] for activations, _ in layers),
            tuple(poses[k] for _, poses in layers),
            tuple(tuple(step[k] for step in _trace(each)) for each in chain),
        )
        for k in range(len(images))
    ]


@contextlib.contextmanager
def negating(model: nn.Module, negate: Sequence[bool]) -> Iterator[None]:
    """Negate the poses that enter the lowest routing layer, for those images of the next pass of which ``negate`` says so."""
    is_first = True

    def tap(name: str, layer: RoutingLayer, poses: Tensor, activations: Tensor | None, route: Route) -> Routed:
        nonlocal is_first
        if is_first:
            is_first = False
            signs = poses.new_tensor([-1.0 if each else 1.0 for each in negate])
            # a convolution has its windows folded into the batch.
            poses = poses * rearrange(repeat(signs, "b -> b l", l=len(poses) // len(signs)), "b l -> (b l) 1 1")
        return route(poses, activations)

    with tapped(model, tap):
        yield


def draw(model: nn.Module, capsules: Tensor, classes: Sequence[int]) -> list[Tensor]:
    """Return what the decoder of a network draws for each of several classes [C, H, W].

    Args:
        model: with a decoder.
        capsules: of one image [J, D].
        classes: which are drawn, each alone.
    """
    if not isinstance(model, Model):
        raise ValueError(f"the network is a {type(model).__name__}, which draws nothing")
    with evaluating(model):
        rows = capsules.expand(len(classes), -1, -1)
        return list(model.reconstruct(rows, torch.tensor(list(classes), device=capsules.device)))


def _trace(seen: Seen) -> tuple[Tensor, ...]:
    if seen.trace:
        return seen.trace
    return () if seen.couplings is None else (seen.couplings,)
