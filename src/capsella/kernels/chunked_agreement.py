"""Routing by agreement in plain PyTorch for GPUs: the votes of a chunk of samples at a time (``chunks``).

The equations are those of ``plain_agreement``. A chunk's votes are made once for all iterations and once more for the way
back, and every pass over them is one product. Kept are the inputs, s^t, and the couplings of the iterations after the first.
Factors of products have the poses' dtype, so that matrix units can multiply them; sums are wide.

Departures from the reference: the order of sums; of half-precision poses, couplings, upper poses and their gradients are
rounded where they are factors of products.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from einops import rearrange
from torch import Tensor

from capsella.functional import squash as apply_squash
from capsella.functional.precision import wide_dtype
from capsella.kernels.chunks import Terms, along, backward, chunks, make, weigh
from capsella.kernels.plain_agreement import without_votes
from capsella.kernels.plain_tiles import of_one_row, refuse_twice, squash_gradient


def _per_pair(
    poses: Tensor, weight: Tensor, prior: Tensor | None, bias: Tensor | None, num_iters: int, squash: str, rows: int
) -> tuple[Tensor, list[Tensor]]:
    """Route by a weight [I, J, P/R, D/R]; return the poses above and the couplings of iterations 2…T."""
    J = weight.shape[1]
    u = rearrange(poses, "b i p -> i b p").contiguous()
    w = rearrange(of_one_row(weight.to(poses.dtype), rows), "i j p d -> i p (j d)").contiguous()
    above, history, _ = chunked_agreement(u, w, prior, bias, J, num_iters, squash)
    return above, [rearrange(entry, "b j i -> b i j") for entry in history]


agreement = partial(without_votes, per_pair=_per_pair)


@torch.library.custom_op(
    "capsella::chunked_agreement",
    mutates_args=(),
    schema="(Tensor u, Tensor w, Tensor? prior, Tensor? bias, int uppers, int num_iters, str squash)"
    " -> (Tensor, Tensor, Tensor)",
)
def chunked_agreement(
    u: Tensor, w: Tensor, prior: Tensor | None, bias: Tensor | None, uppers: int, num_iters: int, squash: str
) -> tuple[Tensor, Tensor, Tensor]:
    """Run T ≥ 2 iterations on poses u [I, B, P] and weight w [I, P, J·D] of one dtype; prior and bias are wide.

    An operator, so that a compiler leaves the loop over chunks alone.

    Returns:
        Poses above [B, J, D], couplings of iterations 2…T as [T − 1, B, J, I], and s of all iterations as [T, B, J, D], wide.
    """
    (I, B, _), J = u.shape, uppers
    above, history, sums = _room(u, w, J, num_iters)
    for part in chunks(B, I * w.shape[2]):
        votes = make(u[:, part], w)
        running = torch.zeros_like(above[part])
        for t in range(num_iters):
            if t == 0:
                total = _first_sum(votes, prior, J)
            else:
                logits = along(votes, running)  # [b, J, I]
                couplings = history[t - 1, part]
                torch.softmax(logits if prior is None else logits.add_(prior.mT), dim=1, out=couplings)
                total = weigh(couplings, votes)
            sums[t, part] = total if bias is None else total + bias
            poses = apply_squash(sums[t, part], kind=squash)
            running += poses
        above[part] = poses
    return above, history, sums


@torch.library.custom_op(
    "capsella::chunked_agreement_backward",
    mutates_args=(),
    schema="(Tensor above, Tensor? wanted, Tensor u, Tensor w, Tensor? prior, Tensor history, Tensor sums, str squash)"
    " -> (Tensor, Tensor, Tensor, Tensor)",
)
def chunked_agreement_backward(
    above: Tensor,
    wanted: Tensor | None,
    u: Tensor,
    w: Tensor,
    prior: Tensor | None,
    history: Tensor,
    sums: Tensor,
    squash: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of u, w, prior (empty without one) and bias, given those of poses above and couplings."""
    (T, B, J, D), I = sums.shape, len(u)
    d_u, d_w, d_bias = torch.empty_like(u), torch.zeros_like(w, dtype=sums.dtype), sums.new_zeros(J, D)
    d_prior = sums.new_zeros(0 if prior is None else J, I)
    first = sums.new_full((J, I), 1 / J) if prior is None else prior.softmax(dim=-1).mT
    for part in chunks(B, I * J * D):
        votes = make(u[:, part], w)
        s, couplings = sums[:, part], [first.expand(part.stop - part.start, J, I), *history[:, part]]
        running = apply_squash(s[:-1], kind=squash).cumsum(dim=0)
        # c with G of all iterations, db with S of those after the first.
        terms = Terms(2 * T - 1, J, votes)
        back = above[part]
        for t in range(T - 1, -1, -1):
            pull = squash_gradient(s[t], back, squash)
            d_bias += pull.sum(dim=0)
            terms.put(t, couplings[t], pull)
            if t == 0 and prior is None:
                continue
            dc = along(votes, pull)
            if t > 0 and wanted is not None:
                dc += wanted[t - 1, part]
            step = torch.ops.aten._softmax_backward_data(dc, couplings[t], 1, dc.dtype)
            if prior is not None:
                d_prior += step.sum(dim=0)
            if t > 0:
                terms.put(T - 1 + t, step, running[t - 1])
                asked = weigh(step, votes)
                back = asked if t == T - 1 else back + asked
        # the gradient of the votes takes their place.
        backward(terms.combine(votes), u[:, part], w, d_u[:, part], d_w)
    return d_u, d_w.to(w.dtype), d_prior.mT.contiguous(), d_bias


def _room(u: Tensor, w: Tensor, J: int, T: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return memory for the results."""
    (I, B, _), D, dtype = u.shape, w.shape[2] // J, wide_dtype(u.dtype)
    sizes = (B, J, D), (T - 1, B, J, I), (T, B, J, D)
    above, history, sums = (u.new_empty(size, dtype=dtype) for size in sizes)
    return above, history, sums


@chunked_agreement.register_fake
def _(
    u: Tensor, w: Tensor, prior: Tensor | None, bias: Tensor | None, uppers: int, num_iters: int, squash: str
) -> tuple[Tensor, Tensor, Tensor]:
    return _room(u, w, uppers, num_iters)


@chunked_agreement_backward.register_fake
def _(
    above: Tensor, wanted: Tensor | None, u: Tensor, w: Tensor, prior: Tensor | None, history: Tensor, sums: Tensor, *_: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    J, D = sums.shape[2:]
    d_prior = sums.new_empty(len(u), 0 if prior is None else J)
    return torch.empty_like(u), torch.empty_like(w), d_prior, sums.new_empty(J, D)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    u, w, prior, bias, _, _, ctx.squash = inputs
    ctx.save_for_backward(u, w, prior, *output[1:])
    ctx.has_bias = bias is not None
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, above: Tensor | None, wanted: Tensor | None, _: Tensor | None) -> tuple[Tensor | None, ...]:
    u, w, prior, history, sums = ctx.saved_tensors
    if above is None:
        above = torch.zeros_like(sums[0])
    d_u, d_w, d_prior, d_bias = chunked_agreement_backward(above, wanted, u, w, prior, history, sums, ctx.squash)
    return d_u, d_w, None if prior is None else d_prior, d_bias if ctx.has_bias else None, None, None, None


chunked_agreement.register_autograd(_backward, setup_context=_setup)
chunked_agreement_backward.register_autograd(refuse_twice)


def _first_sum(votes: Tensor, prior: Tensor | None, J: int) -> Tensor:
    """Sum a chunk's votes with the couplings of the first iteration, which no sample changes: [b, J, D]."""
    I, b, _ = votes.shape
    if prior is None:
        return votes.sum(dim=0, dtype=wide_dtype(votes.dtype)).view(b, J, -1) / J
    return weigh(prior.softmax(dim=-1).mT.expand(b, J, I), votes)
