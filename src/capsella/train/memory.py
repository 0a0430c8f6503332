"""How much memory a step takes, and which batch would fit where one did not."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from capsella.errors import RunError

# what an optimiser keeps for each weight, beside the weight and its gradient.
_KEPT = {"adam": 2, "sgd": 1}
# temporaries of the backward pass and the allocator's rounding, beside what autograd keeps.
_MARGIN = 1.25


class OutOfMemory(RunError):
    """A step did not fit into memory; the message says which batch size would."""


@dataclass(frozen=True)
class MemoryEstimate:
    """What a training step needs.

    Attributes:
        fixed: bytes of weights, gradients and optimiser.
        per_image: bytes that grow with the batch.
    """

    fixed: int
    per_image: int

    def total(self, batch_size: int) -> int:
        """Return the bytes of a step."""
        return self.fixed + self.per_image * batch_size


def estimate(model: nn.Module, loss_of: Callable[[int], Tensor], optimiser: str, batch_size: int) -> MemoryEstimate:
    """Estimate a step's memory from two smaller batches.

    On a GPU both go forward and backward, and the most that is in use at a time is taken: convolutions may ask for more room
    to work in than for their results. Elsewhere what autograd keeps is counted, which is exact in what grows with the batch.

    Args:
        model: whose buffers and random state are left as they were.
        loss_of: runs the network on a batch of this size and returns the loss.
        optimiser: name.
        batch_size: of the steps to come.
    """
    weights = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    trained = sum(p.numel() * p.element_size() for p in model.parameters() if p.requires_grad)
    device = next(model.parameters()).device
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    sizes = (2, 4)
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        if device.type == "cuda":
            # near the batch of the steps, whose kernels are then often compiled already.
            sizes = (max(1, batch_size // 4), max(2, batch_size // 2))
            small, large = (_peak(model, functools.partial(loss_of, size), device) for size in sizes)
        else:
            small, large = (int(_MARGIN * _kept(functools.partial(loss_of, size), own)) for size in sizes)
    for name, buffer in model.named_buffers():
        buffer.copy_(buffers[name])
    if device.type == "cuda":
        besides, per_image = _line(sizes, (small, large), least=trained)
    else:
        besides, per_image = trained, max(0, large - small) // (sizes[1] - sizes[0])
    return MemoryEstimate(weights + trained * _KEPT[optimiser] + besides, per_image)


def _line(sizes: tuple[int, int], peaks: tuple[int, int], *, least: int) -> tuple[int, int]:
    """Return bytes that do not grow with the batch, and those that each image adds, from the peaks of two batches.

    Gradients are there whatever the batch, so the line begins at ``least`` or above it: where a convolution takes more room to
    work in for the larger batch alone, a line through both peaks would begin below, and promise too much for larger ones.

    Example:
        >>> _line((2, 4), (110, 120), least=50)
        (100, 5)
        >>> _line((2, 4), (60, 210), least=50)
        (50, 40)
    """
    slope = max(0, peaks[1] - peaks[0]) // (sizes[1] - sizes[0])
    begin = max(least, peaks[0] - slope * sizes[0])
    return begin, max(0, peaks[1] - begin) // sizes[1]


def _peak(model: nn.Module, run: Callable[[], Tensor], device: torch.device) -> int:
    """Return the most bytes in use while going forward and backward, beside what was there before."""
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    torch.autograd.backward(run())
    model.zero_grad(set_to_none=True)
    return torch.cuda.max_memory_allocated(device) - before


def _kept(run: Callable[[], Tensor], own: set[int]) -> int:
    """Return the bytes that autograd keeps for the backward pass, weights left out."""
    # the storages are held: one that was freed could come back under the same address and be taken for another.
    storages: dict[int, torch.UntypedStorage] = {}

    def pack(tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        storages.setdefault(storage.data_ptr(), storage)
        # nothing is kept for a backward pass that never comes: a result that held itself would never be freed.

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda nothing: nothing):
        run()
    return sum(storage.nbytes() for address, storage in storages.items() if address not in own)


def available(device: torch.device) -> int | None:
    """Return the free bytes of a device, None where that is not known."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(free + cached)
    try:
        with open("/proc/meminfo") as file:  # noqa: PTH123 - no file of ours
            lines = dict(line.split(":") for line in file)
        return int(lines["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return None


def optimiser_bytes(optimiser: torch.optim.Optimizer, name: str) -> int:
    """Return the bytes that an optimiser will take once it has made its first step; 0 once it has."""
    if optimiser.state:
        return 0
    weights: list[Tensor] = [parameter for group in optimiser.param_groups for parameter in group["params"]]
    return _KEPT[name] * sum(weight.numel() * weight.element_size() for weight in weights)


def is_out_of_memory(error: BaseException) -> bool:
    """Tell whether an exception says that memory ran out, on a GPU or on a CPU."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or (
        isinstance(error, RuntimeError) and "can't allocate memory" in str(error)
    )


def largest_that_fits(attempt: Callable[[int], object], below: int, *, spare: int = 1) -> int:
    """Return a batch size below ``below`` that was seen to fit, 0 if not even one image does.

    Args:
        attempt: runs a step with this batch size, or fails.
        below: known not to fit.
        spare: how many times as many images must have fitted, where there are that many to try.
    """
    size = below // 2
    while size >= 1:
        if _works(attempt, size):
            return max(1, size // spare)
        size //= 2
    return 0


def _works(attempt: Callable[[int], object], size: int) -> bool:
    try:
        attempt(size)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        return False
    return True


def out_of_memory(batch_size: int, device: torch.device, attempt: Callable[[int], object] | None) -> OutOfMemory:
    """Return the error for a batch that did not fit, with one that does.

    Args:
        batch_size: that did not fit.
        device: where.
        attempt: runs a step with a batch size, or fails; None where that cannot be tried.
    """
    fits = "a smaller one may fit"
    if attempt is not None:
        # what a C library's allocator holds back and can use again differs from process to process: on a CPU a size counts
        # only if twice as many images fit here. A GPU's memory is given back before the first attempt.
        found = largest_that_fits(attempt, batch_size, spare=1 if device.type == "cuda" else 2)
        fits = f"batch_size={found} fits" if found else "not even one image fits"
    free = available(device)
    room = f"; {in_words(free)} are free" if free is not None else ""
    return OutOfMemory(f"batch_size={batch_size} does not fit into the memory of {device}{room}; {fits}")


def in_words(count: int) -> str:
    """Return bytes as a person reads them.

    Example:
        >>> in_words(3 * 2**30)
        '3.0 GiB'
    """
    value = float(count)
    for unit in ("bytes", "KiB", "MiB"):
        if value < 1024:
            return f"{value:.0f} {unit}"
        value /= 1024
    return f"{value:.1f} GiB"
