"""What routing costs beside attention (mitterreiter2023, Table 3): one layer, timed against multi-head self-attention."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from capsella.nn import RoutingLayer

HEAD = 64
"""Values of one head, as in the transformers that the paper compares with; all of a vector that has no multiple of them."""


@dataclass(frozen=True)
class Cost:
    """A routing layer beside attention over the same lower capsules.

    Attributes:
        parameters: of the layer.
        attention_parameters: of the attention.
        seconds: forward and backward pass of the layer, the shortest of several.
        attention_seconds: of the attention.
        memory: bytes that the layer keeps for its backward pass.
        attention_memory: that the attention keeps.
    """

    parameters: int
    attention_parameters: int
    seconds: float
    attention_seconds: float
    memory: int
    attention_memory: int


def routing_cost(layer: RoutingLayer, poses: Tensor, activations: Tensor | None = None, *, repeats: int = 10) -> Cost:
    """Time one routing layer, and self-attention over its lower capsules, on the device that they are on.

    mitterreiter2023's Table 3, up to constant factors, for n vectors of d values in and out::

                  parameters   operations of a sample
        MHSA      d²           n²·d + n·d²
        RBA       n²·d²        n²·d²

    ``capsella bench attention`` follows both over n and d; here stand the sizes that a network has.

    Args:
        layer: whose routing is timed.
        poses: of the lower capsules [B, I, P].
        activations: their activations, for EM; lengths if None.
        repeats: readings; the shortest is taken, since what else a machine does only adds.
    """
    poses = poses.detach()
    width = poses.shape[2]
    heads = width // HEAD if width % HEAD == 0 else 1
    with torch.random.fork_rng(devices=[poses.device] if poses.device.type == "cuda" else []):
        attention = nn.MultiheadAttention(width, heads, batch_first=True, device=poses.device, dtype=poses.dtype)

    def route() -> Tensor:
        result = layer._route(poses.requires_grad_(), activations, trace=False, need_couplings=False)
        return result.poses.sum() + result.activations.sum()

    def attend() -> Tensor:
        given = poses.requires_grad_()
        answer: Tensor = attention(given, given, given, need_weights=False)[0]
        return answer.sum()

    # neither the layer's gradients nor anybody's random numbers are touched: nothing is accumulated into parameters.
    own = [parameter for parameter in layer.parameters() if parameter.requires_grad]
    others = list(attention.parameters())
    with torch.enable_grad():
        times, kept = zip(*(_measured(act, [poses, *of], repeats) for act, of in ((route, own), (attend, others))), strict=True)
    counts = [sum(parameter.numel() for parameter in each.parameters()) for each in (layer, attention)]
    return Cost(counts[0], counts[1], times[0], times[1], kept[0], kept[1])


def _measured(act: Callable[[], Tensor], wanted: list[Tensor], repeats: int) -> tuple[float, int]:
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        torch.autograd.grad(act(), wanted, allow_unused=True)
    given = {tensor.untyped_storage().data_ptr() for tensor in wanted}
    readings = []
    for _ in range(repeats):
        _wait(wanted[0])
        begin = time.perf_counter()
        torch.autograd.grad(act(), wanted, allow_unused=True)
        _wait(wanted[0])
        readings.append(time.perf_counter() - begin)
    return min(readings), sum(size for place, size in kept.items() if place not in given)


def _wait(tensor: Tensor) -> None:
    if tensor.device.type == "cuda":
        torch.cuda.synchronize(tensor.device)
