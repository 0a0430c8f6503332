"""Routing by agreement without votes, in plain PyTorch.

    S^t = v^1 + … + v^{t−1}    b^t_ij = prior_ij + ⟨û_ij, S^t_j⟩    c^t = softmax_j(b^t)    s^t_j = Σ_i c^t_ij û_ij + bias_j

Backward, with G^t = ∂L/∂s^t, from the last iteration to the first:

    dc^t_ij = ⟨û_ij, G^t_j⟩      db^t = c^t (dc^t − Σ_k c^t_k dc^t_k)      Q^t_j = Σ_i db^t_ij û_ij      ∂L/∂v^τ = Σ_{t>τ} Q^t
    dû_ij = Σ_t c^t_ij G^t_j + db^t_ij S^t_j      du_i = Σ_j dû_ij W_ijᵀ      dW_ij = Σ_b u_iᵀ dû_ij

Everything runs over tiles of lower capsules (``plain_tiles``). Kept for the backward pass: the inputs, s^t, and the
couplings of the iterations after the first. docs/routing.md derives it.

Departures from the reference: the order of sums.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from einops import rearrange
from torch import Tensor

from capsella.errors import check_choice, check_count
from capsella.functional import length, widen
from capsella.functional import squash as apply_squash
from capsella.functional.squash import KINDS
from capsella.kernels.plain_products import weighted_sum
from capsella.kernels.plain_tiles import (
    ENOUGH,
    Scratch,
    Tile,
    add_weighted,
    few_samples,
    few_votes,
    inner,
    is_open,
    lay_out,
    over_sources,
    refuse_twice,
    samples,
    squash_gradient,
)
from capsella.routing.base import Call, Routed, check_bias, routed
from capsella.shapes import Poses, dims

# samples from which on its products keep the digits that the reference's sums keep.
_EXACT = 4


PerPair = Callable[..., tuple[Tensor, list[Tensor]]]


def without_votes(
    poses: Poses,
    weight: Tensor,
    *,
    per_pair: PerPair,
    rows: int = 1,
    num_iters: int = 3,
    normalise: str = "targets",
    bias: Tensor | None = None,
    prior: Tensor | None = None,
    squash: str = "sabour",
    trace: bool = False,
    need_couplings: bool = True,
) -> Routed:
    """Run ``vote_and_route("agreement", ...)`` on poses [B, I, P] and weight [I or 1, J, P/R, D/R].

    One iteration is one product, and one shared weight needs nothing as large as the votes; for the rest ``per_pair`` returns
    the poses above and the couplings [B, I, J] of iterations 2…T. What ``refuse`` lets through has ``normalise="targets"``.
    """
    (B, I, _), J, D = poses.shape, weight.shape[1], rows * weight.shape[3]
    check_count("num_iters", num_iters)
    check_choice("squash", squash, KINDS)
    bias = check_bias(bias, J, D)
    wide = widen(poses)
    if prior is not None:
        dims(prior, "I J", name="prior", I=I, J=J)
        prior = prior.to(wide.dtype)
    first = wide.new_full((I, J), 1 / J) if prior is None else prior.softmax(dim=-1)
    later: list[Tensor] = []
    if num_iters == 1:
        total = weighted_sum(wide, weight.to(wide.dtype), 1 / J if prior is None else first, rows)
        above = apply_squash(total if bias is None else total + bias, kind=squash)
    elif len(weight) == 1 != I:
        above, later = _shared(wide, weight[0].to(wide.dtype), prior, bias, num_iters, squash, rows)
    else:
        above, later = per_pair(poses, weight, prior, bias, num_iters, squash, rows)
    couplings = [first.expand(B, I, J), *later]
    return routed(above, length(above), couplings, dtype=poses.dtype, trace=trace, need_couplings=need_couplings)


def _per_pair(
    poses: Tensor, weight: Tensor, prior: Tensor | None, bias: Tensor | None, num_iters: int, squash: str, rows: int
) -> tuple[Tensor, list[Tensor]]:
    """Route by a weight [I, J, P/R, D/R], so many samples at a time that tiles do not get thin."""
    B, _, P = poses.shape
    poses = widen(poses)
    weight = weight.to(poses.dtype)
    together = samples(B, weight.shape[1] * max(P, rows * weight.shape[3]), poses.device.type)
    if together == B:
        above, history, _ = tiled_agreement(poses, weight, prior, bias, num_iters, squash, rows)
    else:
        split = torch.split(poses, together)
        parts = [tiled_agreement(part, weight, prior, bias, num_iters, squash, rows)[:2] for part in split]
        above, history = torch.cat([above for above, _ in parts]), torch.cat([history for _, history in parts], dim=2)
    return above, [rearrange(entry, "j b i -> b i j") for entry in history]


agreement = partial(without_votes, per_pair=_per_pair)


def _shared(
    poses: Tensor, weight: Tensor, prior: Tensor | None, bias: Tensor | None, num_iters: int, squash: str, rows: int
) -> tuple[Tensor, list[Tensor]]:
    """Route by one weight [J, P/R, D/R]: ⟨u_i W_j, S_j⟩ = u_i·(S_j W_jᵀ) and Σ_i c_ij u_i W_j = (Σ_i c_ij u_i) W_j.

    Returns the poses above and the couplings of iterations 2…T, [B, I, J]; nothing larger exists, so gradients are autograd's.
    """
    B, I, _ = poses.shape
    J = len(weight)
    logits = poses.new_zeros(1, J, I) if prior is None else prior.mT[None]  # [1, J, I]
    start, running, later = logits, None, []
    for t in range(num_iters):
        couplings = logits.softmax(dim=1)  # [B or 1, J, I]
        mixed = rearrange(couplings.expand(B, J, I) @ poses, "b j (r p) -> b j r p", r=rows)
        total = rearrange(torch.einsum("bjrp,jpd->bjrd", mixed, weight), "b j r d -> b j (r d)")
        above = apply_squash(total if bias is None else total + bias, kind=squash)
        running = above if running is None else running + above
        if t > 0:
            later.append(rearrange(couplings, "b j i -> b i j"))
        if t + 1 < num_iters:
            toward = torch.einsum("bjrd,jpd->bjrp", rearrange(running, "b j (r d) -> b j r d", r=rows), weight)
            logits = start + rearrange(toward, "b j r p -> b j (r p)") @ poses.mT  # [B, J, I]
    return above, later


@torch.library.custom_op(
    "capsella::tiled_agreement",
    mutates_args=(),
    schema="(Tensor poses, Tensor weight, Tensor? prior, Tensor? bias, int num_iters, str squash, int rows)"
    " -> (Tensor, Tensor, Tensor)",
)
def tiled_agreement(
    poses: Tensor, weight: Tensor, prior: Tensor | None, bias: Tensor | None, num_iters: int, squash: str, rows: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Run T ≥ 2 iterations, one pass over the tiles each, on poses [B, I, P] and weight [I, J, P/R, D/R] of one wide dtype.

    An operator, so that a compiler leaves the loop over tiles alone: unrolled it would take minutes to compile and would hold
    the intermediates of several tiles at once.

    Returns:
        Poses above [B, J, D], couplings of iterations 2…T as [T − 1, J, B, I], and s of all iterations as [T, J, B, D].
    """
    (B, I, _), J, D = poses.shape, weight.shape[1], rows * weight.shape[3]
    tiles, scratch = lay_out(poses, weight, rows), Scratch(poses)
    history = poses.new_empty(num_iters - 1, J, B, I)
    sums, running = poses.new_empty(num_iters, J, B, D), poses.new_zeros(J, B, D)
    for t in range(num_iters):
        total = sums[t].zero_() if bias is None else sums[t].copy_(bias[:, None])
        for tile in tiles:
            if t == 0:
                couplings = _first_couplings(prior, tile)
            else:
                logits = inner(tile, running, rows, scratch)
                if prior is not None:
                    logits += prior[tile.span.start : tile.span.stop].mT[:, None]
                couplings = logits.softmax(dim=0)  # [J, B, n]
                history[t - 1, :, :, tile.span.start : tile.span.stop] = couplings
            add_weighted(total, tile, couplings, rows, scratch)
        above = apply_squash(total, kind=squash)  # [J, B, D]
        running += above
    # a copy: an operator may not return one memory twice, and without a squash this is the last sum.
    return above.transpose(0, 1).clone(memory_format=torch.contiguous_format), history, sums


@torch.library.custom_op(
    "capsella::tiled_agreement_backward",
    mutates_args=(),
    schema="(Tensor above, Tensor? wanted, Tensor poses, Tensor weight, Tensor? prior, Tensor history, Tensor sums,"
    " str squash, int rows) -> (Tensor, Tensor, Tensor, Tensor)",
)
def tiled_agreement_backward(
    above: Tensor,
    wanted: Tensor | None,
    poses: Tensor,
    weight: Tensor,
    prior: Tensor | None,
    history: Tensor,
    sums: Tensor,
    squash: str,
    rows: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of poses, weight, prior (empty without one) and bias, given those of poses above and couplings."""
    T, tiles, scratch = len(sums), lay_out(poses, weight, rows), Scratch(poses)
    running = apply_squash(sums[:-1], kind=squash).cumsum(dim=0)  # S of iterations 2…T
    steps, gradients = torch.empty_like(history), torch.empty_like(sums)  # db of iterations 2…T, G of all
    back, later = above.transpose(0, 1), torch.zeros_like(sums[0])
    for t in range(T - 1, 0, -1):
        gradients[t] = squash_gradient(sums[t], back, squash)
        for tile in tiles:
            cut = (t - 1, slice(None), slice(None), slice(*tile.span))
            dc = inner(tile, gradients[t], rows, scratch)  # [J, B, n]
            steps[cut] = step = _softmax_gradient(history[cut], dc if wanted is None else dc + wanted[cut])
            add_weighted(later, tile, step, rows, scratch)
        back = later
    gradients[0] = squash_gradient(sums[0], back, squash)

    vectors, d_poses, d_weight = torch.cat([gradients, running]), torch.empty_like(poses), torch.empty_like(weight)
    for tile in tiles:
        start, stop = tile.span
        factors = [_first_couplings(prior, tile), *history[..., start:stop], *steps[..., start:stop]]
        d_votes = _votes_gradient(factors, vectors, rows, scratch)
        _from_votes(d_votes, tile, rows, (d_poses[:, start:stop], d_weight[start:stop]), scratch)
    d_prior = poses.new_empty(0)
    if prior is not None:
        d_prior = _first_prior_gradient(prior, gradients[0], tiles, rows, scratch) + steps.sum(dim=(0, 2)).mT
    return d_poses, d_weight, d_prior, gradients.sum(dim=(0, 2))


@tiled_agreement.register_fake
def _(
    poses: Tensor, weight: Tensor, prior: Tensor | None, bias: Tensor | None, num_iters: int, squash: str, rows: int
) -> tuple[Tensor, Tensor, Tensor]:
    (B, I, _), J, D = poses.shape, weight.shape[1], rows * weight.shape[3]
    return poses.new_empty(B, J, D), poses.new_empty(num_iters - 1, J, B, I), poses.new_empty(num_iters, J, B, D)


@tiled_agreement_backward.register_fake
def _(
    above: Tensor,
    wanted: Tensor | None,
    poses: Tensor,
    weight: Tensor,
    prior: Tensor | None,
    history: Tensor,
    sums: Tensor,
    squash: str,
    rows: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    d_prior = poses.new_empty(0) if prior is None else torch.empty_like(prior)
    return torch.empty_like(poses), torch.empty_like(weight), d_prior, sums.new_empty(sums.shape[1], sums.shape[3])


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    poses, weight, prior, bias, _, ctx.squash, ctx.rows = inputs
    ctx.save_for_backward(poses, weight, prior, *output[1:])
    ctx.has_bias = bias is not None
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, above: Tensor | None, wanted: Tensor | None, _: Tensor | None) -> tuple[Tensor | None, ...]:
    poses, weight, prior, history, sums = ctx.saved_tensors
    if above is None:
        above = torch.zeros_like(sums[0]).transpose(0, 1)
    d_poses, d_weight, d_prior, d_bias = tiled_agreement_backward(
        above, wanted, poses, weight, prior, history, sums, ctx.squash, ctx.rows
    )
    return d_poses, d_weight, None if prior is None else d_prior, d_bias if ctx.has_bias else None, None, None, None


tiled_agreement.register_autograd(_backward, setup_context=_setup)
tiled_agreement_backward.register_autograd(refuse_twice)


def _first_couplings(prior: Tensor | None, tile: Tile) -> Tensor:
    """Return the couplings [J, 1, n] of the first iteration, which no sample changes."""
    if prior is None:
        J = len(tile.weight)
        return tile.weight.new_full((J, 1, tile.span.size), 1 / J)
    return prior[tile.span.start : tile.span.stop].softmax(dim=-1).mT[:, None]


def _softmax_gradient(couplings: Tensor, gradient: Tensor) -> Tensor:
    """Return c (dc − Σ_k c_k dc_k), the sum over the leading axis."""
    weighted = couplings * gradient
    return weighted - couplings * weighted.sum(dim=0)


def _first_prior_gradient(prior: Tensor, G: Tensor, tiles: list[Tile], rows: int, scratch: Scratch) -> Tensor:
    """Return what the first iteration gives the prior; later ones add their db."""
    parts = []
    for tile in tiles:
        dc = inner(tile, G, rows, scratch).sum(dim=1)  # [J, n]
        parts.append(_softmax_gradient(_first_couplings(prior, tile)[:, 0], dc).mT)
    return torch.cat(parts)


def _votes_gradient(factors: list[Tensor], vectors: Tensor, rows: int, scratch: Scratch) -> Tensor:
    """Compute dû = Σ_k f_k x_k of a tile as [n, B·R, J·D/R], for K factors [J, B or 1, n] and vectors [K, J, B, D]."""
    (_, J, B, _), n = vectors.shape, factors[0].shape[2]
    taken = scratch.take("factors", len(factors), B, J, n)
    stacked = torch.stack([f.expand(J, B, n).transpose(0, 1) for f in factors], out=taken).flatten(1, 2)  # [K, B·J, n]
    basis = vectors.permute(2, 1, 0, 3).flatten(0, 1)  # [B·J, K, D]
    mixed = torch.bmm(stacked.permute(1, 2, 0), basis, out=scratch.take("product", B * J, n, vectors.shape[3]))
    return scratch.copy("votes", mixed.view(B, J, n, rows, -1).permute(2, 0, 3, 1, 4)).view(n, B * rows, -1)


def _from_votes(d_votes: Tensor, tile: Tile, rows: int, into: tuple[Tensor, Tensor], scratch: Scratch) -> None:
    """Write a tile's du and dW, given its dû as [n, B·R, J·D/R]: one small product per lower capsule."""
    (B, P, n), (J, _, D) = tile.poses.shape, tile.weight.shape
    w = scratch.copy("weight", tile.weight.view(J, P // rows, n, D).permute(2, 1, 0, 3)).view(n, P // rows, J * D)
    u = scratch.copy("poses", tile.poses.view(B, rows, P // rows, n).permute(3, 2, 0, 1)).view(n, P // rows, B * rows)
    # the wide operand last: twice as fast as its transpose on a CPU.
    d_u = torch.bmm(w, d_votes.mT, out=scratch.take("product", *u.shape))
    into[0].copy_(d_u.view(n, P // rows, B, rows).permute(2, 0, 3, 1).flatten(2))
    d_w = torch.bmm(u, d_votes, out=scratch.take("product", *w.shape))
    into[1].copy_(d_w.view(n, P // rows, J, D).permute(0, 2, 1, 3))


def refuse(call: Call) -> list[str]:
    """Refuse a softmax over the lower capsules, and what the reference does more exactly."""
    if reasons := over_sources(call):
        return reasons
    if call.device == "cuda" and call.dtype == torch.float32 and not (call.shared or call.options.get("num_iters") == 1):
        # seen on an H200: up to three times the reference's error, in products over all lower capsules.
        return ["on cuda its float32 sums lose more digits than the reference's"]
    B = call.sizes["B"]
    if not (is_open(B) or call.shared or call.options.get("num_iters") == 1) and 0 < B < _EXACT and call.dtype == torch.float32:
        # products of so few rows are added up in another order: up to twice what the parity rule allows.
        return [f"B is {B}; with fewer than {_EXACT} samples its float32 sums lose more digits than the reference's"]
    return []


def slower(call: Call) -> list[str]:
    """Leave to others few votes, fewer samples than a lower pose has values, and GPUs."""
    if call.options.get("num_iters") == 1:
        return few_samples(call) if call.options.get("prior") is not None else []
    if call.device == "cuda":
        return ["on cuda chunks are faster, and for few votes the reference"]
    return few_votes(call, least=1 << 16, least_shared=1 << 15) + few_samples(call, ENOUGH)
