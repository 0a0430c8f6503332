"""Routing by agreement without votes on a CPU, by a library that the system's C++ compiler builds at its first use.

The algebra of ``plain_agreement``; ``agreement.cpp`` does it in the processor's registers and first cache. Two operators call
it. Kept for the backward pass: the inputs, s^t, and the couplings of the iterations after the first, in blocks of ``LANES``
samples.

Departures from the reference: the order of sums.
"""

from __future__ import annotations

import ctypes
import functools
import warnings
from pathlib import Path
from typing import Any

import torch
from einops import rearrange
from torch import Tensor

from capsella.errors import check_choice, check_count
from capsella.functional import length
from capsella.functional.squash import KINDS
from capsella.kernels.compiler import BuildError, find_compiler, load
from capsella.kernels.plain_tiles import few_votes, is_open, over_sources, refuse_twice
from capsella.routing.base import Call, Routed, check_bias, routed
from capsella.shapes import Poses, dims

SOURCE, HEADER = (Path(__file__).with_name(name) for name in ("agreement.cpp", "agreement.h"))
LANES = 16
# values of a weight for each sample: with more of them the reference, which has no idle lanes, is faster.
_PER_SAMPLE = 32
# the library numbers them in this order.
SQUASHES = ("sabour", "exp", "none")
# chunks of lower capsules, each of which has sums of its own; at least so many in one.
_MOST_CHUNKS, _LEAST_CAPSULES = 32, 8
# multiply-adds of one pass that are worth a thread, lanes without a sample included; votes that are worth seconds of building.
_WORTH_A_THREAD, _WORTH_A_BUILD = 1 << 23, 1 << 14


def agreement(
    poses: Poses,
    weight: Tensor,
    *,
    rows: int = 1,
    num_iters: int = 3,
    normalise: str = "targets",
    bias: Tensor | None = None,
    prior: Tensor | None = None,
    squash: str = "sabour",
    trace: bool = False,
    need_couplings: bool = True,
) -> Routed:
    """Run ``vote_and_route("agreement", ...)`` on poses [B, I, P] and weight [I, J, P, D] where ``refuse`` says nothing."""
    (B, I, _), J, D = poses.shape, weight.shape[1], weight.shape[3]
    check_count("num_iters", num_iters)
    check_choice("squash", squash, KINDS)
    bias = check_bias(bias, J, D)
    if prior is not None:
        dims(prior, "I J", name="prior", I=I, J=J)
        prior = prior.to(poses.dtype)
    learned = any(tensor is not None and tensor.requires_grad for tensor in (poses, weight, bias, prior))
    asked = need_couplings or trace
    keep = asked or (learned and torch.is_grad_enabled())
    above, history, _ = agreement_cpu(poses, weight, prior, bias, num_iters, squash, keep)
    couplings: list[Tensor] = []
    if asked:
        first = poses.new_full((I, J), 1 / J) if prior is None else prior.softmax(dim=-1)
        couplings = [first.expand(B, I, J), *rearrange(history, "t n i j l -> t (n l) i j")[:, :B]]
    return routed(above, length(above), couplings, dtype=poses.dtype, trace=trace, need_couplings=need_couplings)


@functools.cache
def _library() -> tuple[ctypes.CDLL | None, str]:
    """Return the library, or why there is none; builds it if need be."""
    compiler = find_compiler()
    if not compiler:
        return None, "no C++ compiler was found; expected $CXX, c++, g++ or clang++"
    try:
        library = load(SOURCE, [HEADER], compiler)
    except BuildError as error:
        warnings.warn(f"routing runs without its compiled kernel, which could not be built: {error}", stacklevel=2)
        return None, f"the build failed: {error}"
    library.capsella_agreement_room.restype = ctypes.c_int64
    for name in ("capsella_agreement", "capsella_agreement_backward"):
        getattr(library, name).restype = None
    return library, ""


def _trouble() -> str:
    return _library()[1]


# a compiler that traces a call takes the answer as it is and does not look inside. This is all that
# torch.compiler.assume_constant_result does, which would import the whole compiler to do it.
_trouble._dynamo_marked_constant = True  # type: ignore[attr-defined]


def refuse(call: Call) -> list[str]:
    """Refuse what the library was not written for, and all where there is no library."""
    if call.device != "cpu":
        return [f"device is {call.device}; it needs cpu"]
    reasons = []
    if call.dtype != torch.float32:
        reasons.append(f"dtype is {str(call.dtype).removeprefix('torch.')}; it needs float32")
    if call.rows > 1:
        reasons.append(f"rows={call.rows}; it needs vector poses")
    if call.shared:
        reasons.append("one weight serves all lower capsules, which needs no votes at all")
    if call.options.get("num_iters") == 1:
        reasons.append("num_iters=1 is one matrix product")
    reasons += over_sources(call)
    if not reasons and (trouble := _trouble()):
        reasons.append(trouble)
    return reasons


def slower(call: Call) -> list[str]:
    """Leave to others few samples, and so few votes that nobody should wait for the compiler."""
    B, least = call.sizes["B"], min(LANES, max(2, call.sizes["P"] * call.sizes["D"] // _PER_SAMPLE))
    reasons = few_votes(call, least=_WORTH_A_BUILD, least_shared=_WORTH_A_BUILD)
    if is_open(B):
        reasons.append(f"B is not fixed; expected a number of at least {least}")
    elif least > B:
        reasons.append(f"B is {B}; expected at least {least}, below which most lanes are idle")
    return reasons


def _sizes(poses: Tensor, weight: Tensor, num_iters: int) -> tuple[Any, int]:
    """Return the sizes as the library takes them, and how many threads to use."""
    (B, I, P), (_, J, _, D) = poses.shape, weight.shape
    chunk = max(_LEAST_CAPSULES, -(-I // _MOST_CHUNKS))
    chunks = -(-I // chunk)
    work = -(-B // LANES) * LANES * I * J * P * D
    threads = min(torch.get_num_threads(), chunks, max(1, work // _WORTH_A_THREAD))
    return ctypes.byref((ctypes.c_int64 * 7)(B, I, J, P, D, num_iters, chunks)), threads


def _at(tensor: Tensor | None) -> ctypes.c_void_p:
    return ctypes.c_void_p(None if tensor is None or tensor.numel() == 0 else tensor.data_ptr())


def _loaded() -> ctypes.CDLL:
    library, trouble = _library()
    if library is None:
        raise RuntimeError(f'impl="compiled" cannot run: {trouble}')
    return library


def _blocks(poses: Tensor, weight: Tensor, num_iters: int, keep: bool) -> tuple[Tensor, Tensor]:
    """Return memory for the couplings [T − 1, N, I, J, L], none if they are not kept, and for the sums [T, N, J, D, L]."""
    (B, I, _), (_, J, _, D) = poses.shape, weight.shape
    N = (B + LANES - 1) // LANES
    return poses.new_empty(num_iters - 1 if keep else 0, N, I, J, LANES), poses.new_empty(num_iters, N, J, D, LANES)


@torch.library.custom_op(
    "capsella::agreement_cpu",
    mutates_args=(),
    device_types="cpu",
    schema="(Tensor poses, Tensor weight, Tensor? prior, Tensor? bias, int num_iters, str squash, bool keep)"
    " -> (Tensor, Tensor, Tensor)",
)
def agreement_cpu(
    poses: Tensor, weight: Tensor, prior: Tensor | None, bias: Tensor | None, num_iters: int, squash: str, keep: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Run T ≥ 2 iterations on float32 poses [B, I, P] and weight [I, J, P, D].

    Returns:
        Poses above [B, J, D]; what the backward pass needs, if ``keep`` says that there will be one.
    """
    library = _loaded()
    sizes, threads = _sizes(poses, weight, num_iters)
    # `contiguous` may make a copy, which must live as long as the call.
    poses, weight = poses.contiguous(), weight.contiguous()
    prior, bias = (None if tensor is None else tensor.contiguous() for tensor in (prior, bias))
    first = None if prior is None else prior.softmax(dim=-1)
    above = poses.new_empty(poses.shape[0], weight.shape[1], weight.shape[3])
    history, sums = _blocks(poses, weight, num_iters, keep)
    room = poses.new_empty(library.capsella_agreement_room(sizes, ctypes.c_int64(threads), ctypes.c_int64(0)))
    library.capsella_agreement(
        sizes,
        ctypes.c_int64(threads),
        ctypes.c_int64(SQUASHES.index(squash)),
        *(_at(tensor) for tensor in (poses, weight, first, prior, bias, above, history, sums, room)),
    )
    return above, history, sums


@torch.library.custom_op(
    "capsella::agreement_cpu_backward",
    mutates_args=(),
    device_types="cpu",
    schema="(Tensor above, Tensor? wanted, Tensor poses, Tensor weight, Tensor? prior, Tensor history, Tensor sums, str squash)"
    " -> (Tensor, Tensor, Tensor, Tensor)",
)
def agreement_cpu_backward(
    above: Tensor,
    wanted: Tensor | None,
    poses: Tensor,
    weight: Tensor,
    prior: Tensor | None,
    history: Tensor,
    sums: Tensor,
    squash: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of poses, weight, prior (empty without one) and bias, given those of poses above and couplings."""
    library = _loaded()
    sizes, threads = _sizes(poses, weight, len(sums))
    above, poses, weight, history, sums = (tensor.contiguous() for tensor in (above, poses, weight, history, sums))
    wanted = None if wanted is None else wanted.contiguous()
    first = None if prior is None else prior.softmax(dim=-1).contiguous()
    d_poses, d_weight = torch.empty_like(poses), torch.empty_like(weight)
    d_prior = poses.new_empty(0 if first is None else first.shape)
    d_bias = sums.new_empty(sums.shape[1:4])
    room = poses.new_empty(library.capsella_agreement_room(sizes, ctypes.c_int64(threads), ctypes.c_int64(1)))
    library.capsella_agreement_backward(
        sizes,
        ctypes.c_int64(threads),
        ctypes.c_int64(SQUASHES.index(squash)),
        *(_at(tensor) for tensor in (above, wanted, poses, weight, first, history, sums)),
        ctypes.c_int64(prior is not None),
        *(_at(tensor) for tensor in (d_poses, d_weight, d_prior, d_bias, room)),
    )
    return d_poses, d_weight, d_prior, d_bias.sum(dim=0)


@agreement_cpu.register_fake
def _(
    poses: Tensor, weight: Tensor, prior: Tensor | None, bias: Tensor | None, num_iters: int, squash: str, keep: bool
) -> tuple[Tensor, Tensor, Tensor]:
    return poses.new_empty(poses.shape[0], weight.shape[1], weight.shape[3]), *_blocks(poses, weight, num_iters, keep)


@agreement_cpu_backward.register_fake
def _(
    above: Tensor,
    wanted: Tensor | None,
    poses: Tensor,
    weight: Tensor,
    prior: Tensor | None,
    history: Tensor,
    sums: Tensor,
    squash: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    d_prior = poses.new_empty(0 if prior is None else prior.shape)
    return poses.new_empty(poses.shape), weight.new_empty(weight.shape), d_prior, sums.new_empty(sums.shape[2:4])


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    poses, weight, prior, bias, _, ctx.squash, ctx.keep = inputs
    ctx.save_for_backward(poses, weight, prior, *output[1:])
    ctx.has_bias = bias is not None
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, above: Tensor | None, wanted: Tensor | None, _: Tensor | None) -> tuple[Tensor | None, ...]:
    poses, weight, prior, history, sums = ctx.saved_tensors
    if not ctx.keep:
        raise RuntimeError("agreement_cpu has kept nothing to differentiate by; expected keep=True")
    if above is None:
        above = poses.new_zeros(poses.shape[0], weight.shape[1], weight.shape[3])
    d_poses, d_weight, d_prior, d_bias = agreement_cpu_backward(above, wanted, poses, weight, prior, history, sums, ctx.squash)
    return d_poses, d_weight, None if prior is None else d_prior, d_bias if ctx.has_bias else None, None, None, None


agreement_cpu.register_autograd(_backward, setup_context=_setup)
agreement_cpu_backward.register_autograd(refuse_twice)
