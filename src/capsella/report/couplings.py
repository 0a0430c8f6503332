"""One image on its way from primary to class capsules: which class each place of the image is coupled to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from einops import rearrange

from capsella.report.plots import heat_uri, image_uri
from capsella.report.values import Array, Values, class_indices, unit_array


@dataclass(frozen=True, eq=False)
class CouplingView:
    """How one image was routed from primary to class capsules.

    Attributes:
        image: [C, H, W] from 0 to 1.
        label: its class.
        scores: [J], lengths of the class capsules.
        couplings: [I, J], normalised: those of a primary capsule sum to 1.
        lengths: [I], of the primary capsules.
        grid: height, width and types of the primary capsules, I = height · width · types in this order.
        extent: top, left, bottom and right edge of the grid on the image in pixels, as ``grid_extent`` gives; the whole image
            if None.
    """

    image: Values
    label: int
    scores: Values
    couplings: Values
    lengths: Values
    grid: tuple[int, int, int]
    extent: tuple[float, float, float, float] | None = None


def coupling_context(found: CouplingView, class_names: Sequence[str]) -> dict[str, Any]:
    """Return what the template shows of a routed image."""
    J, (height, width, types) = len(class_names), found.grid
    (label,) = class_indices([found.label], name="couplings.label", classes=J)
    image = unit_array(found.image, "C H W", name="couplings.image")
    scores = unit_array(found.scores, "J", name="scores", J=J)
    couplings = unit_array(found.couplings, "I J", name="couplings", I=height * width * types, J=J)
    lengths = unit_array(found.lengths, "I", name="lengths", I=height * width * types)
    if not np.allclose(couplings.sum(axis=1), 1, atol=1e-2):
        raise ValueError("couplings does not sum to 1 over the classes; expected normalised couplings [I, J]")
    maps, shares = coupling_maps(couplings, lengths, found.grid)
    present = maps.sum(axis=0)  # [height, width]: what all classes get together
    # couplings often stay near 1/J; what differs between classes shows only beside what indifference would give.
    leaning = maps - present / J
    answer, top = int(scores.argmax()), float(np.abs(leaning).max())
    rows = [
        {
            "name": class_names[j],
            "score": f"{scores[j]:.2f}",
            "width": f"{100 * scores[j]:.1f}",
            "map": heat_uri(leaning[j], top=top),
            "share": f"{shares[j]:.3f}",
            "is_answer": j == answer,
        }
        for j in range(J)
    ]
    return {
        "image": image_uri(image),
        "label": class_names[label],
        "answer": class_names[answer],
        "rows": rows,
        "present": heat_uri(present, top=float(present.max())),
        "capsules": height * width * types,
        "grid": (height, width, types),
        "place": _place(found.extent, image.shape[1:]),
        "is_stretched": found.extent is None,
        "indifferent": f"{1 / J:.2g}",
    }


def coupling_maps(couplings: Array, lengths: Array, grid: tuple[int, int, int]) -> tuple[Array, Array]:
    """Return where the capsules coupled to each class sit, and the share that each class gets.

    Args:
        couplings: [I, J].
        lengths: [I].
        grid: height, width, types; I is ordered by row, column, type.

    Returns:
        Σ_types coupling · length as maps [J, height, width], and Σ_i coupling · length / Σ_i length as shares [J].
    """
    height, width, types = grid
    weighted = couplings * lengths[:, None]  # [I, J]
    maps = rearrange(weighted, "(h w t) j -> j h w t", h=height, w=width, t=types).sum(axis=-1)
    total = lengths.sum()
    # capsules without any length have couplings too, and none of them counts more than another.
    return maps, weighted.sum(axis=0) / total if total > 0 else couplings.mean(axis=0)


def grid_extent(windows: Sequence[tuple[int, int]], grid: tuple[int, int]) -> tuple[float, float, float, float]:
    """Return the top, left, bottom and right edge of a grid of capsules in pixels of the image.

    Each cell is centred on the patch of the image that its capsules see, and is as large as the step to the next patch.

    Args:
        windows: kernel size and stride of the convolutions from the image to the capsules, without padding.
        grid: height and width.

    Example:
        >>> grid_extent([(5, 2), (5, 2)], (4, 4))
        (4.5, 4.5, 20.5, 20.5)
    """
    patch = step = 1
    for kernel, stride in windows:
        patch, step = patch + (kernel - 1) * step, step * stride
    edge = (patch - step) / 2
    return (edge, edge, edge + step * grid[0], edge + step * grid[1])


def _place(extent: tuple[float, float, float, float] | None, size: tuple[int, ...]) -> str:
    """Return the CSS that lays a grid over an image of this height and width."""
    height, width = size
    top, left, bottom, right = extent or (0, 0, height, width)
    shares = {"top": top / height, "left": left / width, "height": (bottom - top) / height, "width": (right - left) / width}
    return "; ".join(f"{key}: {100 * value:.2f}%" for key, value in shares.items())
