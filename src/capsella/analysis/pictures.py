"""What a page shows beside figures, small enough for a record: parse trees, their statistics, and images that they are of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from capsella.analysis.parse_tree import ParseTree, TreeStatistics

MOST = 32
"""Capsules of a layer that a picture shows, those of the largest activations; a record has no more of them."""

SIDE = 64
"""Pixels of a side; larger images are made smaller."""

_OF_LAYERS, _OF_GAPS = ("layers", "layer_stds"), ("edges", "edge_stds")


def pictures_of(
    trees: Sequence[ParseTree],
    view: ParseTree | None,
    statistics: TreeStatistics | None,
    images: Tensor | None,
    class_names: Sequence[str] | None = None,
) -> dict[str, Any] | None:
    """Return everything that is drawn of a diagnosis, as JSON can hold it; None where there is no tree.

    Trees that are compared show the same capsules of a large layer: those that are most active in any of them.

    Args:
        trees: of some images.
        view: of the first one, turned.
        statistics: of all images.
        images: of ``trees`` and then of ``view``, [n, C, H, W]; inputs of another shape are no pictures.
        class_names: of the last layer's capsules.
    """
    all_trees = [*trees, *([] if view is None else [view])]
    if not all_trees:
        return None
    kept = _kept([tree.activations for tree in all_trees], [tree.answer for tree in all_trees])
    plain = [trimmed(tree.as_dict(), kept) for tree in all_trees]
    classes = len(trees[0].activations[-1])
    fits = class_names is not None and len(class_names) == classes
    return {
        "trees": plain[: len(trees)],
        "view": None if view is None else plain[-1],
        "statistics": None if statistics is None else trimmed(statistics.as_dict(), _kept([statistics.activations])),
        "images": [levels(image) for image in images] if images is not None and images.ndim == 4 else None,
        "class_names": [str(name) for name in class_names] if class_names is not None and fits else None,
    }


def _kept(trees: Sequence[Sequence[Tensor]], answers: Sequence[int] = ()) -> list[list[int]]:
    """Choose the capsules of each layer that are most active in any of the trees, and those that are an answer."""
    found = []
    for k, same in enumerate(zip(*trees, strict=True)):
        importance = torch.stack([layer.detach().double().cpu() for layer in same]).amax(dim=0)
        if k == len(trees[0]) - 1:
            importance[list(answers)] = torch.inf
        found.append(sorted(importance.argsort(descending=True, stable=True)[:MOST].tolist()))
    return found


def trimmed(tree: Mapping[str, Any], kept: Sequence[Sequence[int]]) -> dict[str, Any]:
    """Return a tree, or statistics of trees, with some capsules of its layers: ``numbers`` says which, ``sizes`` of how many.

    Which capsules are dead is said of all. A tree of which nothing is left out is returned as it is.

    Args:
        tree: ``ParseTree.as_dict()`` or ``TreeStatistics.as_dict()``.
        kept: numbers of the capsules of each layer, ascending.

    Example:
        >>> tree = {"layers": [[0.1, 0.9], [1.0]], "edges": [[[0.3], [0.7]]], "answer": 0}
        >>> found = trimmed(tree, [[1], [0]])
        >>> found["layers"], found["edges"], found["numbers"], found["sizes"]
        ([[0.9], [1.0]], [[[0.7]]], [[1], [0]], [2, 1])
    """
    sizes = [len(layer) for layer in tree["layers"]]
    if sizes == [len(numbers) for numbers in kept]:
        return dict(tree)
    found = {**tree, "numbers": [list(numbers) for numbers in kept], "sizes": sizes}
    for key in _OF_LAYERS:
        if key in tree:
            found[key] = [[layer[i] for i in numbers] for layer, numbers in zip(tree[key], kept, strict=True)]
    for key in _OF_GAPS:
        if key in tree:
            gaps = zip(tree[key], kept, kept[1:], strict=False)
            found[key] = [[[edges[i][j] for j in above] for i in below] for edges, below, above in gaps]
    return found


def levels(image: Tensor) -> list[list[list[int]]]:
    """Return an image [C, H, W] in whole grey levels from 0 to 255: as it is, or stretched from its least to its largest value.

    Example:
        >>> levels(torch.tensor([[[-1.0, 0.0, 1.0]]]))
        [[[0, 128, 255]]]
    """
    image = image.detach().float().cpu()
    low, high = float(image.min()), float(image.max())
    if low < 0 or high > 1:
        image = (image - low) / (high - low) if high > low else image.new_zeros(image.shape)
    larger = max(image.shape[1:]) / SIDE
    if larger > 1:
        size = [max(1, round(side / larger)) for side in image.shape[1:]]
        image = F.interpolate(image[None], size=size, mode="area")[0]
    found: list[list[list[int]]] = (255 * image).round().int().tolist()
    return found
