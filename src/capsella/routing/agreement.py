"""Routing by agreement (Sabour, Frosst & Hinton 2017, Procedure 1), with peer2022's bias and mitterreiter2023's prior.

    b_ij = prior_ij;  T times:  c_i = softmax_j(b_i)   s_j = Σ_i c_ij û_ij + bias_j   v_j = squash(s_j)   b_ij += û_ij · v_j

Departures: b is not updated after the last iteration, where nothing reads it any more. Activations of the lower capsules
are not read: a pose's length is its activation.
"""

from __future__ import annotations

import torch
from torch import Tensor

from capsella.errors import check_count
from capsella.functional import length, widen
from capsella.routing.base import Routed, check_bias, routed, weighted_sum
from capsella.routing.dispatch import register
from capsella.shapes import Votes, dims


def init(in_capsules: int, out_capsules: int, out_dim: int) -> dict[str, Tensor]:
    """Start the prior at zero, where it changes nothing."""
    return {"prior": torch.zeros(in_capsules, out_capsules)}


@register("agreement", paper="Sabour, Frosst & Hinton 2017", init=init, normalised=True)
def agreement(
    votes: Votes,
    *,
    num_iters: int = 3,
    bias: Tensor | None = None,
    prior: Tensor | None = None,
    squash: str = "sabour",
    trace: bool = False,
    need_couplings: bool = True,
) -> Routed:
    """Couple lower to upper capsules by iterated agreement; gradients flow through all iterations.

    Args:
        votes: [B, I, J, D].
        num_iters: T, the number of softmaxes.
        bias: [J, D], added before the squash in every iteration.
        prior: logits [I, J] to start from.
        squash: kind of squash.
        trace: keep the couplings of every iteration.
        need_couplings: return the last couplings.

    Example:
        >>> result = agreement(torch.randn(2, 6, 3, 4))
        >>> result.couplings.sum(dim=-1).allclose(torch.ones(2, 6))
        True
    """
    B, I, J, D = dims(votes, "B I J D", name="votes")
    check_count("num_iters", num_iters)
    bias = check_bias(bias, J, D)
    if prior is not None:
        dims(prior, "I J", name="prior", I=I, J=J)
    wide = widen(votes)
    logits = wide.new_zeros(B, I, J) if prior is None else prior.to(wide.dtype).expand(B, I, J)  # [B, I, J]
    history = []
    for t in range(num_iters):
        couplings = logits.softmax(dim=-1)  # [B, I, J], sums to 1 over J
        history.append(couplings)
        poses = weighted_sum(wide, couplings, bias, squash)  # [B, J, D]
        if t + 1 < num_iters:
            logits = logits + torch.einsum("bijd,bjd->bij", wide, poses)
    return routed(poses, length(poses), history, dtype=votes.dtype, trace=trace, need_couplings=need_couplings)
