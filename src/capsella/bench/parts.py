"""Where a training step's time goes: what each kernel takes, put together by what it does."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import torch

from capsella.bench.clock import silent

PARTS = (
    # a compiler names its kernels after what it fused in them.
    ("compiled operations", r"^triton_"),
    ("convolutions", r"conv|fprop|dgrad|wgrad|cudnn"),
    # kernels in C++ have their arguments in their name; ours are Triton's and have not.
    ("routing", r"^[a-z_]+_kernel$|^capsella::"),
    ("optimiser", r"adam|multi_tensor_apply|_foreach_"),
    ("matrix products", r"gemm|nvjet|cutlass|splitk|cublas|aten::(add)?(b?mm|bmm)\b|baddbmm"),
    ("copies", r"memcpy|memset|copy_"),
)
"""Names of parts, and patterns of the kernels that are theirs, ignoring case; the first that fits has it."""

OTHER, WAITING = "other operations", "waiting"


def part_of(kernel: str) -> str:
    """Return the part of a step that a kernel belongs to.

    Example:
        >>> part_of("sums_kernel"), part_of("conv_forward_kernel"), part_of("triton_poi_fused_relu_0")
        ('routing', 'convolutions', 'compiled operations')
    """
    return next((name for name, pattern in PARTS if re.search(pattern, kernel, re.IGNORECASE)), OTHER)


def by_part(kernels: Mapping[str, float], whole: float) -> dict[str, float]:
    """Add up seconds of kernels by part; what is left of the whole is waiting, for launches or for each other.

    Example:
        >>> by_part({"finish_kernel": 1.0, "sums_kernel": 2.0, "Memset": 0.5}, 4.0)
        {'routing': 3.0, 'copies': 0.5, 'waiting': 0.5}
    """
    found: dict[str, float] = {}
    for kernel, seconds in kernels.items():
        found[part_of(kernel)] = found.get(part_of(kernel), 0.0) + seconds
    order = [*(name for name, _ in PARTS), OTHER]
    # kernels of two streams may overlap.
    return {name: found[name] for name in order if name in found} | {WAITING: max(0.0, whole - sum(found.values()))}


def kernel_seconds(act: Callable[[], object], device: torch.device, *, repeats: int = 5) -> dict[str, float]:
    """Return the seconds that each kernel takes of one ``act``, on a CPU each operation without those it calls."""
    activity, gpu = torch.profiler.ProfilerActivity, device.type == "cuda"
    act()
    with silent(), torch.profiler.profile(activities=[activity.CPU, *([activity.CUDA] if gpu else [])]) as profiler:
        for _ in range(repeats):
            act()
        if gpu:
            torch.cuda.synchronize(device)
    found: dict[str, float] = {}
    for event in profiler.key_averages():
        # what a person wrote around kernels is no kernel.
        if event.device_type.name == ("CUDA" if gpu else "CPU") and not getattr(event, "is_user_annotation", False):
            found[event.key] = _microseconds(event, gpu) * 1e-6 / repeats
    return found


def _microseconds(event: Any, gpu: bool) -> float:
    return float(event.self_device_time_total if gpu else event.self_cpu_time_total)
