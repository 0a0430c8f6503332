"""The fused Triton kernels as implementations of the routing algorithms: what they refuse or leave, and how they are called."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from capsella.errors import check_choice, check_count
from capsella.functional import direction
from capsella.functional.squash import KINDS
from capsella.kernels.fused_agreement import agreement_op
from capsella.kernels.fused_em import em_op, too_large
from capsella.kernels.plain_tiles import is_open, over_sources
from capsella.routing.base import NORMALISATIONS, Call, Implementation, Routed, as_couplings, check_bias, get
from capsella.routing.dispatch import register_implementation
from capsella.routing.em import check_arguments
from capsella.shapes import dims

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_MOST_ITERATIONS = 5
_LARGEST_POSE = 64
# values of a float32 pose for which EM kept to the parity rule; for 64 it did not.
_LARGEST_EXACT = 32
# float32 votes of routing in one step for which a matrix product was faster on an H200, if there are so many samples or if one
# weight serves all lower capsules. Half precision has no such size.
_VOTES, _SAMPLES = 1 << 25, 256


def refuse(call: Call) -> list[str]:
    """Say why the fused kernels cannot run a call; an empty list if they can."""
    if call.device != "cuda":
        return [f"device is {call.device}; it needs cuda"]
    reasons = [] if _able() else ["the GPU is older than compute capability 8.0"]
    if call.dtype not in _DTYPES:
        reasons.append(f"dtype is {str(call.dtype).removeprefix('torch.')}; it needs float32, bfloat16 or float16")
    if call.need_couplings or call.trace:
        reasons.append("couplings are asked for, which it never stores")
    reasons += over_sources(call)
    if call.options.get("num_iters", 1) > _MOST_ITERATIONS:
        reasons.append(f"num_iters={call.options['num_iters']} is above {_MOST_ITERATIONS}")
    for letter, most in (("P", _LARGEST_POSE), ("D", _LARGEST_POSE)):
        if call.sizes[letter] > most:
            reasons.append(f"{letter}={call.sizes[letter]} is above {most}")
    for letter, size in call.sizes.items():
        if size == 0:
            reasons.append(f"{letter} is zero")
    sizes = call.sizes
    # places within a tile are 32-bit numbers.
    limits = [("IP", 1 << 24), ("BJD", (1 << 31) - 1), ("J", (1 << 16) - 1)]
    if call.dtype == torch.float32:
        # tiles of larger ones do not fit into a multiprocessor's shared memory.
        limits.append(("PD", 1 << 9))
    for letters, most in limits:
        count = 1
        for letter in letters:  # a compiler reads this too, and torch 2.11's stops at math.prod of a generator.
            count *= sizes[letter]
        if count > most:
            reasons.append(f"{'·'.join(letters)} is {count}, above {most}")
    if call.algorithm == "em":
        reasons += too_large(sizes, call.options.get("num_iters", 3))
        if call.dtype == torch.float32 and _LARGEST_EXACT < sizes["D"] <= _LARGEST_POSE:
            reasons.append(f"D is {sizes['D']}, above {_LARGEST_EXACT}, where float32 is less exact than the reference")
    couplings = call.options.get("couplings")
    if isinstance(couplings, Tensor) and (couplings.ndim != 2 or tuple(couplings.shape) != (call.sizes["I"], call.sizes["J"])):
        reasons.append(f"couplings have shape {list(couplings.shape)}; it needs [I, J]")
    return reasons


def slower(call: Call) -> list[str]:
    """Leave float32 routing in one step to matrix products where those are faster."""
    sizes, votes = call.sizes, 1
    for letter in "BIJD":
        votes *= sizes[letter]
    # nothing else takes sizes that a compiler leaves open.
    if call.dtype != torch.float32 or get(call.algorithm).is_iterative or is_open(votes) or votes < _VOTES:
        return []
    if not call.shared and sizes["B"] < _SAMPLES:
        return []
    which = "one weight serves all" if call.shared else f"B is {sizes['B']}, {_SAMPLES} or more,"
    return [f"{which} and B·I·J·D is {votes}, {_VOTES} or more, where a float32 matrix product is faster"]


def _able() -> bool:
    return torch.cuda.get_device_capability()[0] >= 8


def agreement(
    poses: Tensor,
    weight: Tensor,
    *,
    rows: int,
    num_iters: int = 3,
    bias: Tensor | None = None,
    prior: Tensor | None = None,
    squash: str = "sabour",
    **unused: Any,
) -> Routed:
    """Route by agreement; options as for ``routing.agreement``, where ``refuse`` says nothing."""
    I, J = poses.shape[1], weight.shape[1]
    check_count("num_iters", num_iters)
    if prior is not None:
        dims(prior, "I J", name="prior", I=I, J=J)
    first = None if prior is None else prior.float().softmax(dim=-1)
    return _route(poses, weight, first, prior, bias, num_iters, rows, 1 / J, squash)


def uniform(
    poses: Tensor,
    weight: Tensor,
    *,
    rows: int,
    normalise: str = "targets",
    bias: Tensor | None = None,
    squash: str = "sabour",
    **unused: Any,
) -> Routed:
    """Add up the votes with equal weights; options as for ``routing.uniform``."""
    check_choice("normalise", normalise, NORMALISATIONS)
    share = 1 / (weight.shape[1] if normalise == "targets" else poses.shape[1])
    return _route(poses, weight, None, None, bias, 1, rows, share, squash)


def given(
    poses: Tensor,
    weight: Tensor,
    *,
    rows: int,
    couplings: Tensor,
    squash: str,
    bias: Tensor | None = None,
    **unused: Any,
) -> Routed:
    """Add up the votes with given couplings [I, J]: trainable and quadratic routing."""
    as_couplings(couplings, poses.shape[0], poses.shape[1], weight.shape[1], torch.float32)
    return _route(poses, weight, couplings, None, bias, 1, rows, 1.0, squash)


def em(
    poses: Tensor,
    weight: Tensor,
    *,
    rows: int,
    activations: Tensor,
    beta_a: Tensor,
    beta_u: Tensor,
    num_iters: int = 3,
    inverse_temperature: float | Sequence[float] = 1e-3,
    eps: float = 1e-8,
    bias: Tensor | None = None,
    cost_log: str = "std",
    normaliser: str = "gaussian",
    output: str = "mean",
    **unused: Any,
) -> Routed:
    """Fit one Gaussian per upper capsule to the votes; options as for ``routing.em``."""
    B, I, _ = poses.shape
    J = weight.shape[1]
    temperatures, bias = check_arguments(
        (B, I, J, weight.shape[3] * rows),
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
    half, gaussian = cost_log == "std", normaliser == "gaussian"
    mean, odds, *_ = em_op(poses, weight, activations, beta_a, beta_u, temperatures, eps, half, gaussian, rows)
    # a bias moves all votes of an upper capsule alike, so only its mean.
    mean = mean if bias is None else mean + bias
    above = odds.sigmoid()
    result = mean if output == "mean" else above[..., None] * direction(mean)
    return Routed(result.to(poses.dtype), above.to(poses.dtype))


def _route(
    poses: Tensor,
    weight: Tensor,
    first: Tensor | None,
    prior: Tensor | None,
    bias: Tensor | None,
    num_iters: int,
    rows: int,
    share: float,
    squash: str,
) -> Routed:
    check_choice("squash", squash, KINDS)
    bias = check_bias(bias, weight.shape[1], weight.shape[3] * rows)
    above, lengths, *_ = agreement_op(poses, weight, first, prior, bias, num_iters, rows, share, squash)
    return Routed(above, lengths)


def register(rank: int) -> None:
    """Add the fused kernels to the registry."""
    for algorithm, run in (
        ("agreement", agreement),
        ("em", em),
        ("uniform", uniform),
        ("trainable", functools.partial(given, squash="exp")),
        ("quadratic", functools.partial(given, squash="sabour")),
    ):
        register_implementation(Implementation(algorithm, "vote_and_route", "fused", run, refuse, rank, slower))
