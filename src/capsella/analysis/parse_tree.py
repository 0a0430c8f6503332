"""Fuzzy parse trees (mitterreiter2023, section 4): capsules are nodes with their activations, couplings are edges.

A crisp tree would have couplings of 0 and 1. Where they are shares of the upper capsules (``normalise="sources"``), edges are
what each upper capsule reads: a lower one may have several of 1, or none. What a network makes of one image is a ``ParseTree``;
the mean and the standard deviation over a set of images, and which capsules are dead, are its ``TreeStatistics``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from capsella.analysis.activity import Activity
from capsella.analysis.layers import Adapter, Seen, observe
from capsella.analysis.moments import Moments
from capsella.models import Prediction, as_prediction


@dataclass(frozen=True, eq=False)
class ParseTree:
    """What a network made of one image.

    Attributes:
        activations: [M] of each layer, primary capsules first.
        couplings: [I, J] between each layer and the next.
        answer: the class with the highest score.
        names: of the routing layers.
    """

    activations: tuple[Tensor, ...]
    couplings: tuple[Tensor, ...]
    answer: int
    names: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return everything, as JSON can hold it: ``layers`` of activations, and ``edges`` as matrices between them."""
        return {
            "answer": self.answer,
            "names": list(self.names),
            "layers": [_rounded(layer) for layer in self.activations],
            "edges": [_rounded(edges) for edges in self.couplings],
        }


@dataclass(frozen=True, eq=False)
class TreeStatistics:
    """Parse trees of many images.

    Attributes:
        activations: mean [M] of each layer, primary capsules first.
        activation_stds: population standard deviation of the same.
        couplings: mean [I, J] between each layer and the next.
        coupling_stds: population standard deviation of the same.
        dead: boolean [M] of each layer.
        images: how many.
        names: of the routing layers.
    """

    activations: tuple[Tensor, ...]
    activation_stds: tuple[Tensor, ...]
    couplings: tuple[Tensor, ...]
    coupling_stds: tuple[Tensor, ...]
    dead: tuple[Tensor, ...]
    images: int
    names: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return everything, as JSON can hold it."""
        return {
            "images": self.images,
            "names": list(self.names),
            "layers": [_rounded(layer) for layer in self.activations],
            "layer_stds": [_rounded(layer) for layer in self.activation_stds],
            "edges": [_rounded(edges) for edges in self.couplings],
            "edge_stds": [_rounded(edges) for edges in self.coupling_stds],
            "dead": [layer.tolist() for layer in self.dead],
        }


class TreeStatisticsOf:
    """Streams ``TreeStatistics``: ``update(seen)`` with what ``observe`` saw of each batch."""

    def __init__(self) -> None:
        self._names: tuple[str, ...] = ()
        self._layers: list[tuple[Moments, Activity]] = []
        self._edges: list[Moments] = []

    def update(self, seen: Sequence[Seen]) -> None:
        """Add a batch."""
        chain = chained(seen)
        if not self._layers:
            self._names = tuple(each.name for each in chain)
            self._layers = [(Moments(), Activity()) for _ in range(len(chain) + 1)]
            self._edges = [Moments() for _ in chain]
        for (moments, alive), activations in zip(self._layers, _activations(chain), strict=True):
            moments.update(activations)
            alive.update(activations[..., None])
        for moments, each in zip(self._edges, chain, strict=True):
            moments.update(_couplings(each))

    def compute(self) -> TreeStatistics:
        """Return the statistics of all batches."""
        if not self._layers:
            raise ValueError("nothing has been seen yet; call update() with at least one batch first")
        return TreeStatistics(
            tuple(moments.mean for moments, _ in self._layers),
            tuple(moments.std for moments, _ in self._layers),
            tuple(moments.mean for moments in self._edges),
            tuple(moments.std for moments in self._edges),
            tuple(alive.compute().dead for _, alive in self._layers),
            self._layers[0][0].count,
            self._names,
        )


def parse_trees(model: nn.Module, images: Tensor, *, adapter: Adapter | None = None) -> list[ParseTree]:
    """Return the parse tree of each image.

    Args:
        model: a network whose routing layers are fully connected, each on top of the one before.
        images: [B, …].
        adapter: for layers that are not capsella's.

    Example:
        >>> import capsella
        >>> (tree,) = parse_trees(capsella.create_model("parse_capsnet", image_size=40), torch.rand(1, 1, 40, 40))
        >>> [len(layer) for layer in tree.activations]
        [16, 16, 16, 16, 10]
    """
    output, seen = observe(model, images, adapter=adapter)
    return trees_of(output, seen)


def trees_of(output: Any, seen: Sequence[Seen]) -> list[ParseTree]:
    """Return the parse tree of each image from what ``observe`` returned."""
    chain = chained(seen)
    # a network may return what is no score; its last capsules then answer.
    known = isinstance(output, Tensor | Prediction)
    answers = (as_prediction(output).scores if known else chain[-1].activations).argmax(dim=1)
    layers, edges = _activations(chain), [_couplings(each) for each in chain]
    names = tuple(each.name for each in chain)

    def of(k: int, parts: Sequence[Tensor]) -> tuple[Tensor, ...]:
        return tuple(part[k].detach().cpu() for part in parts)

    return [ParseTree(of(k, layers), of(k, edges), int(answer), names) for k, answer in enumerate(answers)]


def chained(seen: Sequence[Seen]) -> list[Seen]:
    """Return the longest row of layers at the top that stand on each other and have couplings between all their capsules.

    Convolutions are left out: a lower capsule of theirs is coupled within its windows alone, and its tree is no picture.
    """
    chain: list[Seen] = []
    for each in reversed(seen):
        stands = not chain or each.poses.shape[1] == chain[-1].lower.shape[1]
        if each.windows > 1 or each.couplings is None or not stands:
            break
        chain.append(each)
    if not chain:
        raise ValueError("the last capsule layer has no couplings between all its capsules; a parse tree needs one that has")
    return chain[::-1]


def _activations(chain: Sequence[Seen]) -> list[Tensor]:
    return [chain[0].lower_activations, *(each.activations for each in chain)]


def _couplings(seen: Seen) -> Tensor:
    if seen.couplings is None:
        raise ValueError(f"layer {seen.name} has no couplings")
    return seen.couplings


def _rounded(tensor: Tensor) -> Any:
    # four digits are more than a picture shows, and a file of 1152 by 10 edges stays small.
    return torch.round(tensor.double(), decimals=4).tolist()
