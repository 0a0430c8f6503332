"""How compactly one factor of variation is represented (gu2021, section 3.3); ``factors`` makes the vectors of a network."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from capsella.errors import check_choice, check_number
from capsella.shapes import check_floating


class Compactness:
    """Streams ``compactness``: ``update(vectors)`` with each batch [N, …, steps, D]; one score an image is kept."""

    def __init__(self, *, direction: str = "forward", reduction: str = "sum", log_base: float = math.e) -> None:
        self._options = {"direction": direction, "reduction": reduction, "log_base": log_base}
        # options are looked at now, not with the first batch.
        compactness(torch.zeros(1, 1), **self._options)  # type: ignore[arg-type]
        self._scores: list[Tensor] = []

    def update(self, vectors: Tensor) -> None:
        """Add the vectors [N, …, steps, D] of N images."""
        scores = compactness(vectors, **self._options)  # type: ignore[arg-type]
        if not scores.ndim:
            raise ValueError(f"vectors has shape {list(vectors.shape)}; expected [N, ..., steps, D]")
        self._scores.append(scores)

    def compute(self) -> Tensor:
        """Return what ``compactness`` gives for all batches at once."""
        if not self._scores:
            raise ValueError("nothing has been seen yet; call update() with at least one sample first")
        return torch.cat(self._scores)


def compactness(vectors: Tensor, *, direction: str = "forward", reduction: str = "sum", log_base: float = math.e) -> Tensor:
    """Return the score of gu2021's Table 5, one for each leading index.

    An image is transformed in steps along one factor (turned, say, by −10° to 10°), and the D values of the capsule that
    stands for it are watched. With Var_d the population's variance of value d over the steps and p_d = Var_d / Σ Var::

        forward:  KL(p ‖ uniform) = Σ_d p_d log(p_d · D)          reverse:  KL(uniform ‖ p) = −(1/D) Σ_d log(p_d · D)

    Forward it is 0 if all values vary alike and log D if one value alone varies. The paper leaves the base, the direction and
    the reduction open; Table 5's magnitudes fit a mean over values better than the sum, and one of them exceeds what such a
    mean can be forward. Only rankings under one convention can be compared.

    Args:
        vectors: [..., steps, D], values of a capsule along the steps of one factor.
        direction: ``"forward"``, KL(p ‖ uniform), or ``"reverse"``, KL(uniform ‖ p), infinite where a value never varies.
        reduction: ``"sum"`` over the D values, or ``"mean"``, which divides by D.
        log_base: of the logarithm.

    Returns:
        [...]; 0 where nothing varies at all.

    Example:
        >>> compactness(torch.tensor([[0.0, 0.0], [1.0, 0.0]]), log_base=2).item()
        1.0
    """
    check_floating(vectors, name="vectors")
    if vectors.ndim < 2 or 0 in vectors.shape[-2:]:
        raise ValueError(f"vectors has shape {list(vectors.shape)}; expected [..., steps, D]")
    check_choice("direction", direction, ("forward", "reverse"))
    check_choice("reduction", reduction, ("sum", "mean"))
    check_number("log_base", log_base, above=1)
    D = vectors.shape[-1]
    variance = vectors.detach().to(torch.float64).var(dim=-2, correction=0)
    total = variance.sum(dim=-1, keepdim=True)
    share = variance / total
    terms = torch.special.xlogy(share, share * D) if direction == "forward" else -(share * D).log() / D
    score = terms.sum(dim=-1) if reduction == "sum" else terms.mean(dim=-1)
    return torch.where(total[..., 0] > 0, score / math.log(log_base), 0.0).to(vectors.dtype)
