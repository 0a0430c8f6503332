"""Trainable couplings (chen2019, G-CapsNets): input-independent parameters of any sign, with no normalisation.

    v_j = squash(Σ_i c_ij û_ij + bias_j)

Departures: none here; the ReLU that the released code puts before or after the squash is an option of the layers.
"""

from __future__ import annotations

import torch
from torch import Tensor

from capsella.routing.base import Routed, route_fixed
from capsella.routing.dispatch import register
from capsella.shapes import Votes


def init(in_capsules: int, out_capsules: int, out_dim: int) -> dict[str, Tensor]:
    """Start uniformly in ±√(3/I), as the released code does."""
    bound = (3 / in_capsules) ** 0.5
    return {"couplings": torch.empty(in_capsules, out_capsules).uniform_(-bound, bound)}


@register("trainable", paper="chen2019", init=init)
def trainable(
    votes: Votes,
    *,
    couplings: Tensor,
    bias: Tensor | None = None,
    squash: str = "exp",
    trace: bool = False,
    need_couplings: bool = True,
) -> Routed:
    """Add up the votes with given couplings.

    Args:
        votes: [B, I, J, D].
        couplings: [I, J], or broadcastable to [B, I, J].
        bias: [J, D], added before the squash.
        squash: kind of squash.
        trace: keep the couplings of the only iteration.
        need_couplings: return the couplings, expanded over the batch.

    Example:
        >>> trainable(torch.ones(1, 2, 1, 1), couplings=torch.tensor([[2.0], [-0.5]]), squash="none").poses.item()
        1.5
    """
    return route_fixed(votes, couplings, bias=bias, squash=squash, trace=trace, need_couplings=need_couplings)
