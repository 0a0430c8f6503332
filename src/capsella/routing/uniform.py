"""Uniform routing: equal couplings, the baseline that every claim about routing is measured against.

    v_j = squash(Σ_i c û_ij + bias_j)   with c = 1/J ("targets") or 1/I ("sources")

1/J is one iteration of agreement (mitterreiter2023; gu2021's CapsNet-NoR); 1/I is the mean of the votes (Aff-CapsNet).

Departures: none.
"""

from __future__ import annotations

from torch import Tensor

from capsella.errors import check_choice
from capsella.functional import widen
from capsella.routing.base import NORMALISATIONS, Routed, route_fixed
from capsella.routing.dispatch import register
from capsella.shapes import Votes, dims


@register("uniform", paper="gu2021, mitterreiter2023", normalised=True)
def uniform(
    votes: Votes,
    *,
    normalise: str = "targets",
    bias: Tensor | None = None,
    squash: str = "sabour",
    trace: bool = False,
    need_couplings: bool = True,
) -> Routed:
    """Add up the votes with equal weights.

    Args:
        votes: [B, I, J, D].
        normalise: ``"targets"``: 1/J, couplings of a lower capsule sum to one; ``"sources"``: 1/I, the mean vote.
        bias: [J, D], added before the squash.
        squash: kind of squash.
        trace: keep the couplings of the only iteration.
        need_couplings: return the couplings.

    Example:
        >>> import torch
        >>> uniform(torch.ones(1, 4, 2, 1), normalise="sources", squash="none").poses.flatten()
        tensor([1., 1.])
    """
    _, I, J, _ = dims(votes, "B I J D", name="votes")
    check_choice("normalise", normalise, NORMALISATIONS)
    couplings = widen(votes).new_full((1, 1, 1), 1 / (J if normalise == "targets" else I))
    return route_fixed(votes, couplings, bias=bias, squash=squash, trace=trace, need_couplings=need_couplings)
