"""EM routing without votes, in plain PyTorch: the votes of one tile of lower capsules at a time.

What the reference does to [B, I, J] and smaller tensors is done here in the same way, and differentiated by autograd. Two
functions take the place of the sums over votes; they make the votes of a tile, use them and make them again for the gradient:

    moments   μ_j = Σ_i w_ij û_ij      σ²_j = Σ_i w_ij (û_ij − μ_j)²         for w that sum to one over i
              dw_ij = g·û_ij + h·(û_ij − μ_j)²      dû_ij = w_ij (g + 2h (û_ij − μ_j))          g = ∂L/∂μ_j, h = ∂L/∂σ²_j
    distance  q_ij = Σ_h (û_ijh − μ_jh)² π_jh
              dû_ij = 2 g_ij π_j (û_ij − μ_j)       dμ_j = −Σ_i dû_ij       dπ_j = Σ_i g_ij (û_ij − μ_j)²       g = ∂L/∂q

σ² has no gradient through μ: Σ_i w_ij (û_ij − μ_j) is zero. A bias moves all votes for j and their mean alike, so that it is
added to the mean alone.

Departures from the reference: the order of sums.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from einops import rearrange
from torch import Tensor
from torch.nn.functional import logsigmoid

from capsella.functional import direction, widen
from capsella.kernels.plain_tiles import (
    ENOUGH,
    Scratch,
    Span,
    few_samples,
    few_votes,
    of_one_row,
    refuse_twice,
    spans,
)
from capsella.routing.base import Call, Routed, routed
from capsella.routing.em import check_arguments
from capsella.shapes import Activations, Poses

Fit = Callable[..., tuple[Tensor, Tensor, list[Tensor]]]


def without_votes(
    poses: Poses,
    weight: Tensor,
    *,
    fit: Fit,
    activations: Activations,
    beta_a: Tensor,
    beta_u: Tensor,
    rows: int = 1,
    num_iters: int = 3,
    inverse_temperature: float | Sequence[float] = 1e-3,
    eps: float = 1e-8,
    bias: Tensor | None = None,
    cost_log: str = "std",
    normaliser: str = "gaussian",
    output: str = "mean",
    trace: bool = False,
    need_couplings: bool = True,
) -> Routed:
    """Run ``vote_and_route("em", ...)`` on poses [B, I, P] and weight [I or 1, J, P/R, D/R].

    ``fit`` takes poses [I, B, P], the weight [I or 1, P, J·D], log activations [B, I] and the rest, all of one wide dtype; it
    returns means [B, J, D], log odds [B, J] and the logarithms of the couplings of iterations 2…T, [B, J, I].
    """
    (B, I, _), J, D = poses.shape, weight.shape[1], rows * weight.shape[3]
    temperatures, bias = check_arguments(
        (B, I, J, D),
        activations,
        beta_a,
        beta_u,
        num_iters=num_iters,
        inverse_temperature=inverse_temperature,
        eps=eps,
        bias=bias,
        cost_log=cost_log,
        normaliser=normaliser,
        output=output,
    )
    wide = widen(poses)
    u = rearrange(wide, "b i p -> i b p").contiguous()
    w = rearrange(of_one_row(weight.to(wide.dtype), rows), "i j p d -> i p (j d)").contiguous()
    beta_a, beta_u, below = (tensor.to(wide.dtype) for tensor in (beta_a, beta_u, activations))
    log_below = below.clamp(min=torch.finfo(below.dtype).tiny).log()  # [B, I]
    share, gaussian = 0.5 if cost_log == "std" else 1.0, normaliser == "gaussian"
    mean, log_odds, later = fit(u, w, log_below, beta_a, beta_u, temperatures, eps, share, gaussian)
    above = log_odds.sigmoid()
    mean = mean if bias is None else mean + bias
    result = mean if output == "mean" else above[..., None] * direction(mean)
    history = [wide.new_full((B, J, I), -math.log(J)), *later]
    kept = (history if trace else history[-1:]) if trace or need_couplings else []
    couplings = [rearrange(entry.exp(), "b j i -> b i j") for entry in kept]
    return routed(result, above, couplings, dtype=poses.dtype, trace=trace, need_couplings=need_couplings)


def _fit(
    u: Tensor,
    w: Tensor,
    log_below: Tensor,
    beta_a: Tensor,
    beta_u: Tensor,
    temperatures: Sequence[float],
    eps: float,
    share: float,
    gaussian: bool,
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Fit Gaussians to the votes of one tile after another; gradients of all but the sums over votes are autograd's."""
    (B, I), J = log_below.shape, len(beta_a)
    log_couplings = u.new_full((B, J, I), -math.log(J))
    later = []
    for t, temperature in enumerate(temperatures):
        log_r = log_couplings + log_below[:, None]  # [B, J, I]
        mean, variance = moments(u, w, log_r.softmax(dim=-1))  # [B, J, D]
        variance = variance + eps
        cost = (beta_u[:, None] + share * variance.log()) * log_r.exp().sum(dim=-1, keepdim=True)
        log_odds = temperature * (beta_a - cost.sum(dim=-1))  # [B, J]
        if t + 1 < len(temperatures):
            density = -0.5 * distance(u, w, mean, variance.reciprocal())  # [B, J, I]
            if gaussian:
                density = density - 0.5 * (2 * math.pi * variance).log().sum(dim=-1, keepdim=True)
            log_couplings = (logsigmoid(log_odds)[..., None] + density).log_softmax(dim=1)
            later.append(log_couplings)
    return mean, log_odds, later


em = partial(without_votes, fit=_fit)


@torch.library.custom_op(
    "capsella::vote_moments", mutates_args=(), schema="(Tensor u, Tensor w, Tensor weights) -> (Tensor, Tensor)"
)
def moments(u: Tensor, w: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and variance [B, J, D] of the votes u w under weights [B, J, I] that sum to one over I.

    Poses u are [I, B, P], the weight w is [I or 1, P, J·D]. Both moments are taken for each tile, and tiles merged as Chan,
    Golub & LeVeque do: one pass, and no difference of large sums. An operator, so that a compiler does not unroll the tiles.
    """
    B, J, _ = weights.shape
    shape, tiny, scratch = (B, J, w.shape[2] // J), torch.finfo(u.dtype).tiny, Scratch(u)
    mean, variance, share = u.new_zeros(shape), u.new_zeros(shape), u.new_zeros(B, J, 1)
    for start, stop in _spans(u, shape):
        votes = _votes(u, w, start, stop, shape, scratch)
        part = weights[:, :, start:stop]
        more = part.sum(dim=-1, keepdim=True)  # [B, J, 1]
        here = _sum_sources(part, votes) / more.clamp(min=tiny)
        moved = here - mean
        total = share + more
        fraction = more / total.clamp(min=tiny)
        variance += _sum_sources(part, votes.sub_(here).square_()) + moved.square() * (share * fraction)
        mean += moved * fraction
        share = total
    return mean, variance


@torch.library.custom_op(
    "capsella::vote_moments_backward",
    mutates_args=(),
    schema="(Tensor g, Tensor h, Tensor u, Tensor w, Tensor weights, Tensor mean) -> (Tensor, Tensor, Tensor)",
)
def moments_backward(
    g: Tensor, h: Tensor, u: Tensor, w: Tensor, weights: Tensor, mean: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of u, w and weights, given g = ∂L/∂μ and h = ∂L/∂σ²; the votes are made again."""
    d_u, d_w, d_weights = torch.empty_like(u), _room_for(w), torch.empty_like(weights)
    scratch, half, constant = Scratch(u), g / 2, (g * mean).sum(dim=-1)
    for start, stop in _spans(u, mean.shape):
        apart = _votes(u, w, start, stop, mean.shape, scratch).sub_(mean)
        # dw = g·û + h·δ² = (g + hδ)·δ + g·μ and dû = w (g + 2hδ) = 2w ((g + hδ) − g/2), with δ = û − μ
        slope = torch.mul(apart, h, out=scratch.take("slope", *apart.shape)).add_(g)
        d_weights[:, :, start:stop] = _sum_values(apart.mul_(slope)).add_(constant).permute(1, 2, 0)
        doubled = scratch.copy("part", weights[:, :, start:stop].permute(2, 0, 1)).mul_(2)
        _from_votes(slope.sub_(half).mul_(doubled[..., None]), u, w, start, stop, (d_u, d_w))
    return d_u, d_w, d_weights


@torch.library.custom_op(
    "capsella::vote_distance", mutates_args=(), schema="(Tensor u, Tensor w, Tensor mean, Tensor precision) -> Tensor"
)
def distance(u: Tensor, w: Tensor, mean: Tensor, precision: Tensor) -> Tensor:
    """Return the squared distance [B, J, I] of the votes from a mean, each value weighted by a precision [B, J, D]."""
    (B, J, D), scratch = mean.shape, Scratch(u)
    result = u.new_empty(B, J, len(u))
    for start, stop in _spans(u, mean.shape):
        squared = _votes(u, w, start, stop, mean.shape, scratch).sub_(mean).square_()
        by_pair = squared.flatten(1, 2).permute(1, 2, 0)  # [B·J, D, n]
        result[:, :, start:stop] = torch.bmm(precision.reshape(B * J, 1, D), by_pair).view(B, J, -1)
    return result


@torch.library.custom_op(
    "capsella::vote_distance_backward",
    mutates_args=(),
    schema="(Tensor g, Tensor u, Tensor w, Tensor mean, Tensor precision) -> (Tensor, Tensor, Tensor, Tensor)",
)
def distance_backward(
    g: Tensor, u: Tensor, w: Tensor, mean: Tensor, precision: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of u, w, mean and precision, given that of the distance; the votes are made again."""
    d_u, d_w = torch.empty_like(u), _room_for(w)
    d_mean, d_precision, scratch, twice = torch.zeros_like(mean), torch.zeros_like(mean), Scratch(u), 2 * precision
    for start, stop in _spans(u, mean.shape):
        apart = _votes(u, w, start, stop, mean.shape, scratch).sub_(mean)
        part = scratch.copy("part", g[:, :, start:stop].permute(2, 0, 1))[..., None]
        weighted = torch.mul(apart, part, out=scratch.take("slope", *apart.shape))
        d_precision += apart.mul_(weighted).sum(dim=0)
        d_votes = weighted.mul_(twice)
        d_mean -= d_votes.sum(dim=0)
        _from_votes(d_votes, u, w, start, stop, (d_u, d_w))
    return d_u, d_w, d_mean, d_precision


@moments.register_fake
def _(u: Tensor, w: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    B, J, _ = weights.shape
    return u.new_empty(B, J, w.shape[2] // J), u.new_empty(B, J, w.shape[2] // J)


@moments_backward.register_fake
def _(g: Tensor, h: Tensor, u: Tensor, w: Tensor, weights: Tensor, mean: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(u), torch.empty_like(w), torch.empty_like(weights)


@distance.register_fake
def _(u: Tensor, w: Tensor, mean: Tensor, precision: Tensor) -> Tensor:
    B, J, _ = mean.shape
    return u.new_empty(B, J, len(u))


@distance_backward.register_fake
def _(g: Tensor, u: Tensor, w: Tensor, mean: Tensor, precision: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return torch.empty_like(u), torch.empty_like(w), torch.empty_like(mean), torch.empty_like(mean)


def _setup_moments(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs, output[0])


def _setup_distance(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


moments.register_autograd(lambda ctx, g, h: moments_backward(g, h, *ctx.saved_tensors), setup_context=_setup_moments)
moments_backward.register_autograd(refuse_twice)
distance_backward.register_autograd(refuse_twice)
distance.register_autograd(lambda ctx, g: distance_backward(g, *ctx.saved_tensors), setup_context=_setup_distance)


def _spans(u: Tensor, shape: tuple[int, ...]) -> Iterator[Span]:
    B, J, D = shape
    return spans(B, len(u), J * D, u.device.type)


def _votes(u: Tensor, w: Tensor, start: int, stop: int, shape: tuple[int, ...], scratch: Scratch) -> Tensor:
    """Make the votes [n, B, J, D] of a tile, in memory that the next tile uses again."""
    n, (B, J, D) = stop - start, shape
    if len(w) == 1:
        return torch.mm(u[start:stop].flatten(0, 1), w[0], out=scratch.take("votes", n * B, J * D)).view(n, B, J, D)
    return torch.bmm(u[start:stop], w[start:stop], out=scratch.take("votes", n, B, J * D)).view(n, B, J, D)


def _sum_sources(weights: Tensor, votes: Tensor) -> Tensor:
    """Compute Σ_i w_ij x_ij as [B, J, D] for weights [B, J, n] and x [n, B, J, D]."""
    B, J, _ = weights.shape
    return torch.bmm(weights.flatten(0, 1)[:, None], votes.flatten(1, 2).transpose(0, 1)).view(B, J, -1)


def _sum_values(votes: Tensor) -> Tensor:
    """Sum [n, B, J, D] over D, as a product with ones, which a CPU does faster than a sum over few values."""
    return (votes.flatten(0, 2) @ votes.new_ones(votes.shape[-1])).view(votes.shape[:3])


def _room_for(w: Tensor) -> Tensor:
    """Return memory for dW: zeros where tiles add to it, else nothing that would have to be written twice."""
    return torch.zeros_like(w) if len(w) == 1 else torch.empty_like(w)


def _from_votes(d_votes: Tensor, u: Tensor, w: Tensor, start: int, stop: int, into: tuple[Tensor, Tensor]) -> None:
    """Write a tile's du and add its dW."""
    d_u, d_w = into
    d_votes = d_votes.flatten(2)  # [n, B, J·D]
    if len(w) == 1:
        d_u[start:stop] = d_votes @ w[0].mT
        d_w[0] += u[start:stop].flatten(0, 1).mT @ d_votes.flatten(0, 1)
    else:
        # the wide operand last: twice as fast as its transpose on a CPU.
        d_u[start:stop] = torch.bmm(w[start:stop], d_votes.mT).mT
        d_w[start:stop] = torch.bmm(u[start:stop].mT, d_votes)


def slower(call: Call) -> list[str]:
    """Leave to others few votes, fewer samples than a lower pose has values, and GPUs."""
    if call.device == "cuda":
        return ["on cuda chunks are faster, and for few votes the reference"]
    # poses of R rows go through a weight that is R² as large.
    least = call.rows**2 << 19
    return few_votes(call, least=least, least_shared=least) + few_samples(call, ENOUGH)
