"""Routing by agreement (Sabour, Frosst & Hinton 2017, Procedure 1), with peer2022's bias and mitterreiter2023's prior.

    b_ij = prior_ij;  T times:  c_i = softmax_j(b_i)   s_j = Σ_i c_ij û_ij + bias_j   v_j = squash(s_j)   b_ij += û_ij · v_j

With ``normalise="sources"`` the softmax goes over the lower capsules, as attention's does (mitterreiter2023, section 5):

    c_ij = exp(b_ij) / Σ_k exp(b_kj)    s_j is a weighted mean of the votes for j, whatever the votes for others are

Departures: b is not updated after the last iteration, where nothing reads it any more. Activations of the lower capsules
are not read: a pose's length is its activation.
"""

from __future__ import annotations

import torch
from torch import Tensor

from capsella.errors import check_choice, check_count
from capsella.functional import length, widen
from capsella.routing.base import NORMALISATIONS, Routed, check_bias, routed, weighted_sum
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
    normalise: str = "targets",
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
        normalise: ``"targets"``: over J, a lower capsule divides itself among the upper ones; ``"sources"``: over I, an upper
            one takes a weighted mean of the votes.
        bias: [J, D], added before the squash in every iteration.
        prior: logits [I, J] to start from; what is added to a row of them changes nothing, for ``"sources"`` to a column.
        squash: kind of squash.
        trace: keep the couplings of every iteration.
        need_couplings: return the last couplings.

    One iteration without a prior is uniform routing with the same ``normalise``.

    Example:
        >>> result = agreement(torch.randn(2, 6, 3, 4))
        >>> result.couplings.sum(dim=-1).allclose(torch.ones(2, 6))
        True
        >>> result = agreement(torch.randn(2, 6, 3, 4), normalise="sources")
        >>> result.couplings.sum(dim=-2).allclose(torch.ones(2, 3))
        True
    """
    B, I, J, D = dims(votes, "B I J D", name="votes")
    check_count("num_iters", num_iters)
    check_choice("normalise", normalise, NORMALISATIONS)
    among = 2 if normalise == "targets" else 1
    bias = check_bias(bias, J, D)
    if prior is not None:
        dims(prior, "I J", name="prior", I=I, J=J)
    wide = widen(votes)
    logits = wide.new_zeros(B, I, J) if prior is None else prior.to(wide.dtype).expand(B, I, J)  # [B, I, J]
    history = []
    for t in range(num_iters):
        couplings = logits.softmax(dim=among)  # [B, I, J], sums to 1 over J or over I
        history.append(couplings)
        poses = weighted_sum(wide, couplings, bias, squash)  # [B, J, D]
        if t + 1 < num_iters:
            logits = logits + torch.einsum("bijd,bjd->bij", wide, poses)
    return routed(poses, length(poses), history, dtype=votes.dtype, trace=trace, need_couplings=need_couplings)
