"""Table 5: how compactly the vector of the true class represents what changes in an image, by every convention.

The paper leaves open in which direction the divergence is taken, whether it is summed or averaged over the D values of the
vector, the base of its logarithm, and how far images are changed. Sum or mean and the base are factors: ``score`` applies them
to what is recorded, which is the sum in nats in both directions.

ConvNet-R has no classes: its vector is all 160 values. A score may be as high as log D, so that these values are also scored as
ten vectors of sixteen, like those of the other nets, and their scores averaged.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from einops import rearrange
from torch import Tensor

from capsella.analysis.compactness import compactness as score_of
from capsella.analysis.factors import factor_vectors
from capsella.data import ImageData
from capsella.papers.gu2021.affine import tested_on
from capsella.train.processes import products_in
from capsella.train.run import Run

WIDE = {"rotation_wide": ("rotation", tuple(5.0 * k for k in range(-5, 6)))}
"""Ranges beside those of ``FACTORS``, by name: the factor and its amounts. mitterreiter2023's authors had ±25° once."""

SHORT, BATCH = 200, 250
GROUP = 16


def compactness(run: Run, splits: Mapping[str, ImageData | None], device: torch.device) -> dict[str, Any]:
    """Score a net on its test images, in float32: a variance next to nothing is lost in half precision."""
    data = tested_on(splits)
    is_short = run.config["train"]["steps"] is not None
    chosen = torch.linspace(0, len(data) - 1, min(SHORT, len(data)) if is_short else len(data)).round().long()
    kept: dict[str, list[Tensor]] = {}
    for some in torch.split(chosen, BATCH):
        batch = data.batch(some, device=device)
        with products_in("float32"):
            vectors = factor_vectors(run.model, batch.images, batch.labels)
            for name, (factor, amounts) in WIDE.items():
                vectors[name] = factor_vectors(run.model, batch.images, batch.labels, factors={factor: amounts})[factor]
        for name, each in vectors.items():
            kept.setdefault(name, []).append(each.cpu())
    return {name: figures(torch.cat(parts)) for name, parts in kept.items()}


def figures(vectors: Tensor) -> dict[str, Any]:
    """Return what is recorded of a factor, of vectors of more than sixteen values also by groups of so many.

    Args:
        vectors: [N, T, D].
    """
    found = _figures(vectors[:, None])
    if vectors.shape[-1] > GROUP:
        found["sixteens"] = _figures(rearrange(vectors, "n t (g d) -> n g t d", d=GROUP))
    return found


def _figures(vectors: Tensor) -> dict[str, Any]:
    """Return mean and median over images of the scores of [N, G, T, D], means over G, in both directions, sums in nats.

    Backward a score is infinite where a value never varies; the mean is of those that are not.
    """
    both = (score_of(vectors.double(), direction=direction) for direction in ("forward", "reverse"))
    forward, reverse = (scores.mean(dim=1) for scores in both)
    finite = reverse[reverse.isfinite()]
    return {
        "values": vectors.shape[-1],
        "images": len(vectors),
        "forward": float(forward.mean()),
        "forward_median": float(forward.median()),
        "reverse": float(finite.mean()) if len(finite) else None,
        "reverse_median": float(finite.median()) if len(finite) else None,
        "infinite": 1 - len(finite) / len(vectors),
    }


@dataclass(frozen=True)
class Convention:
    """A reading of what a score is.

    Attributes:
        direction: ``forward``, KL(variances ‖ uniform), or ``reverse``.
        reduction: ``sum`` or ``mean`` over the values of a vector.
        base: of the logarithm.
        average: ``mean`` or ``median`` over the images.
        vector: ``all`` values as one, or ``sixteens``.
    """

    direction: str = "forward"
    reduction: str = "sum"
    base: float = math.e
    average: str = "mean"
    vector: str = "all"

    def __str__(self) -> str:
        base = "e" if self.base == math.e else f"{self.base:g}"
        of = "" if self.vector == "all" else " of sixteen values"
        return f"{self.direction}, {self.reduction}{of}, base {base}, {self.average} over images"


CONVENTIONS = tuple(
    Convention(*each)
    for each in itertools.product(
        ("forward", "reverse"), ("sum", "mean"), (math.e, 2.0, 10.0), ("mean", "median"), ("all", "sixteens")
    )
)


def score(recorded: Mapping[str, Any], convention: Convention) -> float | None:
    """Return a recorded factor's score by a convention; None where it was not recorded, or is infinite for all images.

    Example:
        >>> recorded = {"values": 16, "forward": 1.6}
        >>> score(recorded, Convention()), score(recorded, Convention(reduction="mean"))
        (1.6, 0.1)
    """
    if convention.vector == "sixteens":
        # vectors of sixteen values are recorded once.
        recorded = recorded.get("sixteens", recorded)
    name = convention.direction + ("_median" if convention.average == "median" else "")
    found = recorded.get(name)
    if found is None:
        return None
    share = 1 / recorded["values"] if convention.reduction == "mean" else 1.0
    return float(found) * share / math.log(convention.base)
