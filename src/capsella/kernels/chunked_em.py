"""EM routing in plain PyTorch for GPUs: the votes of a chunk of samples at a time (``chunks``).

A chunk's votes are made once for all iterations and once more for the way back. There they are taken relative to the last
mean, which keeps the digits of votes that lie close together, and their gradient comes as two sums of few products each:

    dû_ij = Σ_t w^t_ij (g^t_j + 2 h^t_j δ^t_ij) + 2 e^t_ij π^t_j δ^t_ij                 δ^t_ij = û_ij − μ^t_j
          = û_ij ∘ 2Σ_t (w^t_ij h^t_j + e^t_ij π^t_j)  +  Σ_t w^t_ij (g^t_j − 2 h^t_j μ^t_j) − 2 e^t_ij π^t_j μ^t_j

with g = ∂L/∂μ, h = ∂L/∂σ², e = ∂L/∂q for the squared distance q_ij = Σ_h δ²_ijh π_jh, and π = 1/σ².

Departures from the reference: the order of sums; votes are not rounded to half precision, since EM multiplies what they are off
by.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from capsella.kernels.chunks import Terms, along, backward, chunks, make, weigh
from capsella.kernels.plain_em import without_votes
from capsella.kernels.plain_tiles import refuse_twice


def _fit(u: Tensor, w: Tensor, *options: Any) -> tuple[Tensor, Tensor, list[Tensor]]:
    means, _, log_odds, history = chunked_em(u, w, *options)
    return means[-1], log_odds[-1], list(history)


em = partial(without_votes, fit=_fit)


class Fitted(NamedTuple):
    """What a fit leaves, of every iteration.

    Attributes:
        means: [T, B, J, D].
        variances: [T, B, J, D], eps added.
        log_odds: [T, B, J].
        log_couplings: of iterations 2…T, [T − 1, B, J, I].
    """

    means: Tensor
    variances: Tensor
    log_odds: Tensor
    log_couplings: Tensor

    @classmethod
    def of(cls, u: Tensor, w: Tensor, J: int, T: int) -> Fitted:
        """Return memory for it."""
        I, B, _ = u.shape
        D = w.shape[2] // J
        sizes = ((T, B, J, D), (T, B, J, D), (T, B, J), (T - 1, B, J, I))
        return cls(*(u.new_empty(size) for size in sizes))


@torch.library.custom_op(
    "capsella::chunked_em",
    mutates_args=(),
    schema="(Tensor u, Tensor w, Tensor log_below, Tensor beta_a, Tensor beta_u, float[] temperatures, float eps, float share,"
    " bool gaussian) -> (Tensor, Tensor, Tensor, Tensor)",
)
def chunked_em(
    u: Tensor,
    w: Tensor,
    log_below: Tensor,
    beta_a: Tensor,
    beta_u: Tensor,
    temperatures: Sequence[float],
    eps: float,
    share: float,
    gaussian: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Fit Gaussians to the votes of poses u [I, B, P] by the weight w [I or 1, P, J·D]; see ``Fitted`` for what returns.

    An operator, so that a compiler leaves the loop over chunks alone. ``share`` is the factor of log σ² in the cost.
    """
    (I, B, _), J, T = u.shape, len(beta_a), len(temperatures)
    fitted = Fitted.of(u, w, J, T)
    for part in chunks(B, I * w.shape[2]):
        votes = make(u[:, part], w)
        squares = torch.empty_like(votes)
        for t, temperature in enumerate(temperatures):
            log_r = _log_r(fitted.log_couplings, log_below, part, t, J)  # [b, J, I]
            weights = log_r.softmax(dim=-1)
            mean = weigh(weights, votes)  # [b, J, D]
            variance = weigh(weights, _squared_difference(votes, mean, squares)) + eps
            cost = (beta_u[:, None] + share * variance.log()).sum(dim=-1) * log_r.exp().sum(dim=-1)
            log_odds = temperature * (beta_a - cost)  # [b, J]
            fitted.means[t, part], fitted.variances[t, part], fitted.log_odds[t, part] = mean, variance, log_odds
            if t + 1 < T:
                # log a − ½ Σ log 2πσ² − ½ q
                level = logsigmoid(log_odds)
                if gaussian:
                    level = level - 0.5 * (2 * math.pi * variance).log().sum(dim=-1)
                logits = torch.add(level[..., None], along(squares, variance.reciprocal()), alpha=-0.5)
                torch.log_softmax(logits, dim=1, out=fitted.log_couplings[t, part])
    return fitted.means, fitted.variances, fitted.log_odds, fitted.log_couplings


@torch.library.custom_op(
    "capsella::chunked_em_backward",
    mutates_args=(),
    schema="(Tensor? d_mean, Tensor? d_odds, Tensor? wanted, Tensor u, Tensor w, Tensor log_below, Tensor beta_u, Tensor means,"
    " Tensor variances, Tensor log_odds, Tensor log_couplings, float[] temperatures, float share, bool gaussian)"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
)
def chunked_em_backward(
    d_mean: Tensor | None,
    d_odds: Tensor | None,
    wanted: Tensor | None,
    u: Tensor,
    w: Tensor,
    log_below: Tensor,
    beta_u: Tensor,
    means: Tensor,
    variances: Tensor,
    log_odds: Tensor,
    log_couplings: Tensor,
    temperatures: Sequence[float],
    share: float,
    gaussian: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of u, w, log_below, beta_a and beta_u, given those of means, log odds and log couplings."""
    (T, B, J, D), I = means.shape, len(u)
    d_u, d_w, d_below = torch.empty_like(u), torch.zeros_like(w), torch.empty_like(log_below)
    d_beta_a, d_beta_u = u.new_zeros(J), u.new_zeros(J)
    for part in chunks(B, I * J * D):
        # relative to the last mean: differences of numbers that are no larger than the spread of the votes.
        votes = make(u[:, part], w).sub_(means[-1, part].flatten(1))
        centres = means[:, part] - means[-1, part]  # [T, b, J, D]
        squares = torch.empty_like(votes)
        # factors: w of all iterations and e of all but the last; sums: what the votes are multiplied by, and the rest.
        terms = Terms(2 * T - 1, J, votes, sums=2)
        d_log = None  # gradient of the log couplings that this iteration made
        d_source = u.new_zeros(len(centres[0]), I)
        for t in range(T - 1, -1, -1):
            variance, centre = variances[t, part], centres[t]
            precision = variance.reciprocal()
            _squared_difference(votes, centre, squares)
            g = torch.zeros_like(centre) if d_mean is None else d_mean[t, part]
            pull = torch.zeros_like(log_odds[t, part]) if d_odds is None else d_odds[t, part]
            h = torch.zeros_like(centre)
            if d_log is not None:
                # through log R = log_softmax_j(log a + log N).
                d_density = torch.ops.aten._log_softmax_backward_data(d_log, log_couplings[t, part], 1, d_log.dtype)
                total = d_density.sum(dim=-1)  # [b, J]
                pull = pull + total * (-log_odds[t, part]).sigmoid()
                e = -0.5 * d_density
                # ∂L/∂π = Σ_i e δ², ∂L/∂μ = −2π Σ_i e δ.
                h = h - weigh(e, squares) * precision.square()
                if gaussian:
                    h = h - 0.5 * total[..., None] * precision
                g = g - 2 * precision * (weigh(e, votes) + 0.5 * total[..., None] * centre)
                terms.put(T + t, e, 2 * precision, -2 * precision * centre)
            # through the cost of an activation.
            d_cost = -temperatures[t] * pull  # [b, J]
            log_r = _log_r(log_couplings, log_below, part, t, J)
            r = log_r.exp()
            mass, price = r.sum(dim=-1), (beta_u[:, None] + share * variance.log()).sum(dim=-1)
            d_beta_a -= d_cost.sum(dim=0)
            d_beta_u += D * (d_cost * mass).sum(dim=0)
            h = h + (share * d_cost * mass)[..., None] * precision
            # through mean and variance.
            weights = log_r.softmax(dim=-1)
            terms.put(t, weights, 2 * h, g - 2 * h * centre)
            dw = along(votes, g).add_(along(squares, h))
            step = torch.ops.aten._softmax_backward_data(dw, weights, -1, dw.dtype)
            step += r * (d_cost * price)[..., None]
            d_source += step.sum(dim=1)
            d_log = step if wanted is None or t == 0 else step + wanted[t - 1, part]
        d_below[part] = d_source
        votes *= terms.combine(squares)
        backward(terms.combine(votes, which=1, add=True), u[:, part], w, d_u[:, part], d_w)
    return d_u, d_w, d_below, d_beta_a, d_beta_u


def _log_r(log_couplings: Tensor, log_below: Tensor, part: slice, t: int, J: int) -> Tensor:
    """Return log R + log a [b, J, I] of an iteration of a chunk."""
    if t == 0:
        b, I = log_below[part].shape
        return (log_below[part, None] - math.log(J)).expand(b, J, I)
    return log_couplings[t - 1, part] + log_below[part, None]


def _squared_difference(votes: Tensor, centre: Tensor, into: Tensor) -> Tensor:
    """Write (V − x)² for x [b, J, D] in one pass over the votes: an operation of torch's, of which the loss is one use."""
    torch.ops.aten.mse_loss.out(votes, centre.flatten(1), 0, out=into)
    return into


@chunked_em.register_fake
def _(
    u: Tensor, w: Tensor, log_below: Tensor, beta_a: Tensor, beta_u: Tensor, temperatures: Sequence[float], *_: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    fitted = Fitted.of(u, w, len(beta_a), len(temperatures))
    return fitted.means, fitted.variances, fitted.log_odds, fitted.log_couplings


@chunked_em_backward.register_fake
def _(
    d_mean: Any, d_odds: Any, wanted: Any, u: Tensor, w: Tensor, log_below: Tensor, beta_u: Tensor, *_: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    d_u, d_w, d_below = (torch.empty_like(each) for each in (u, w, log_below))
    return d_u, d_w, d_below, torch.empty_like(beta_u), torch.empty_like(beta_u)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    u, w, log_below, _, beta_u, ctx.temperatures, _, ctx.share, ctx.gaussian = inputs
    ctx.save_for_backward(u, w, log_below, beta_u, *output)
    ctx.set_materialize_grads(False)


def _backward(
    ctx: Any, d_mean: Tensor | None, _: Tensor | None, d_odds: Tensor | None, wanted: Tensor | None
) -> tuple[Tensor | None, ...]:
    found = chunked_em_backward(d_mean, d_odds, wanted, *ctx.saved_tensors, ctx.temperatures, ctx.share, ctx.gaussian)
    return *found, None, None, None, None


chunked_em.register_autograd(_backward, setup_context=_setup)
chunked_em_backward.register_autograd(refuse_twice)
