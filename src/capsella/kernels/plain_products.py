"""Routing in one step as one matrix product: s = u (c∘W), for couplings that no sample changes.

    s_j = Σ_i c_ij û_ij = Σ_ip u_ip (c_ij W_ij)_p            [B, I·P] times [I·P, J·D]
    s_j = (Σ_i c_ij u_i) W_j                                 where one weight serves all lower capsules

Gradients are autograd's, which are products again. Departures from the reference: the order of sums.
"""

from __future__ import annotations

from functools import partial

import torch
from einops import rearrange
from torch import Tensor

from capsella.errors import check_choice
from capsella.functional import length, widen
from capsella.functional import squash as apply_squash
from capsella.functional.squash import KINDS
from capsella.kernels.plain_tiles import few_samples, is_open
from capsella.routing.base import NORMALISATIONS, Call, Routed, as_couplings, check_bias, routed
from capsella.shapes import Poses

# products in one float32 sum; more lose digits that the reference keeps. A library adds up the few rows of few samples one
# product after another: there shorter sums are needed to be as exact, by a sweep of 1 to 16 rows at four sizes.
LONGEST, LONGEST_OF_FEW = 3 << 12, 1 << 11
FEW = 8


def route_by_product(
    poses: Poses,
    weight: Tensor,
    couplings: Tensor | float,
    *,
    rows: int,
    bias: Tensor | None,
    squash: str,
    trace: bool,
    need_couplings: bool,
) -> Routed:
    """Route poses [B, I, P] by a weight [I or 1, J, P/R, D/R] with one number, or couplings without a batch axis."""
    (B, I, _), J, D = poses.shape, weight.shape[1], rows * weight.shape[3]
    check_choice("squash", squash, KINDS)
    bias = check_bias(bias, J, D)
    wide = widen(poses)
    spread = as_couplings(
        wide.new_full((1, 1, 1), couplings) if isinstance(couplings, float) else couplings, B, I, J, wide.dtype
    )
    factors = couplings if isinstance(couplings, float) else spread[0]  # [I, J]
    total = weighted_sum(wide, weight.to(wide.dtype), factors, rows)
    above = apply_squash(total if bias is None else total + bias, kind=squash)
    return routed(above, length(above), [spread], dtype=poses.dtype, trace=trace, need_couplings=need_couplings)


def weighted_sum(poses: Poses, weight: Tensor, couplings: Tensor | float, rows: int) -> Poses:
    """Compute Σ_i c_ij û_ij as [B, J, D] for couplings [I, J] or one number."""
    matrices = rearrange(poses, "b i (r p) -> b i r p", r=rows)
    shared = len(weight) == 1 != poses.shape[1]
    if isinstance(couplings, float):
        if shared:
            total = torch.einsum("brp,jpd->bjrd", matrices.sum(dim=1), weight[0])
        else:
            total = _sum_of_votes(matrices, weight, None)
        return rearrange(total, "b j r d -> b j (r d)") * couplings
    if shared:
        total = torch.einsum("bjrp,jpd->bjrd", torch.einsum("ij,birp->bjrp", couplings, matrices), weight[0])
    else:
        total = _sum_of_votes(matrices, weight, couplings)
    return rearrange(total, "b j r d -> b j (r d)")


def _sum_of_votes(matrices: Tensor, weight: Tensor, couplings: Tensor | None) -> Tensor:
    """Compute Σ_i (c_ij) u_i W_ij as [B, J, R, D], in sums of ``LONGEST`` products at most."""
    (B, I, R, _), P = matrices.shape, weight.shape[2]
    longest = LONGEST if is_open(B) or B * R >= FEW else LONGEST_OF_FEW
    factors = weight if couplings is None else couplings[..., None, None] * weight
    if is_open(I) or longest >= I * P:
        return torch.einsum("birp,ijpd->bjrd", matrices, factors)
    step = max(1, longest // P)
    # `split`, not slices: their gradients are put together once, those of slices one after another at full size.
    pieces = zip(torch.split(matrices, step, dim=1), torch.split(factors, step), strict=True)
    parts = [torch.einsum("birp,ijpd->bjrd", u, w) for u, w in pieces]
    return torch.stack(parts).sum(dim=0)


def uniform(
    poses: Poses,
    weight: Tensor,
    *,
    rows: int = 1,
    normalise: str = "targets",
    bias: Tensor | None = None,
    squash: str = "sabour",
    trace: bool = False,
    need_couplings: bool = True,
) -> Routed:
    """Run ``vote_and_route("uniform", ...)``."""
    check_choice("normalise", normalise, NORMALISATIONS)
    couplings = 1 / (weight.shape[1] if normalise == "targets" else poses.shape[1])
    return route_by_product(
        poses, weight, couplings, rows=rows, bias=bias, squash=squash, trace=trace, need_couplings=need_couplings
    )


def given(
    poses: Poses,
    weight: Tensor,
    *,
    couplings: Tensor,
    squash: str,
    rows: int = 1,
    bias: Tensor | None = None,
    trace: bool = False,
    need_couplings: bool = True,
) -> Routed:
    """Run ``vote_and_route`` with couplings that are given."""
    return route_by_product(
        poses, weight, couplings, rows=rows, bias=bias, squash=squash, trace=trace, need_couplings=need_couplings
    )


trainable = partial(given, squash="exp")
quadratic = partial(given, squash="sabour")


def refuse(call: Call) -> list[str]:
    """Refuse couplings that differ from sample to sample, and with couplings so few samples that the reference is better.

    It is faster there, since they take more work to put into the weight than to use, and more exact: sums of few rows lost more
    digits than the parity rule allows.
    """
    couplings = call.options.get("couplings")
    samples = couplings.shape[0] if isinstance(couplings, Tensor) and couplings.ndim == 3 else 1
    if is_open(samples) or samples > 1:
        return ["couplings has a batch axis; expected [I, J], the same for all samples"]
    return [] if couplings is None else few_samples(call)
