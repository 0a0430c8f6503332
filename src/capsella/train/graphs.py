"""What is done again and again with the same shapes on a GPU: first as it comes, then captured as a CUDA graph, then played."""

from __future__ import annotations

import contextlib
import functools
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from capsella.errors import RunError
from capsella.train.config import TrainConfig
from capsella.train.memory import is_out_of_memory

# times before it is captured: libraries choose their algorithms and optimisers make their state.
_WARM_UP = 3


def gpu_for_graphs(fabric: Any, config: TrainConfig) -> torch.device | None:
    """Return the GPU on which steps are played as graphs; None where they are taken as they come: plain, or with others."""
    device: torch.device = fabric.device
    return device if config.fast and device.type == "cuda" and fabric.world_size == 1 else None


class Replayed:
    """Does one thing with tensors, always of the same shapes and from the same memory.

    Args:
        device: the GPU.

    Attributes:
        stream: on which it is captured, which is that of the times before: gradients are added up where they were first.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._graph: torch.cuda.CUDAGraph | None = None
        self._static: list[Tensor | None] | None = None
        self._taken = 0
        self.stream: Any = _side_stream(device, threading.get_ident())

    def __call__(
        self, act: Callable[..., None], tensors: Sequence[Tensor | None], before: Callable[[], None] = lambda: None
    ) -> None:
        """Do it.

        Args:
            act: what to do, the same every time: it may not wait for the device, and what changes is in tensors.
            tensors: that it is given, or copies of them; None stays None.
            before: lets go of memory that the graph is to have in its own, just before it is captured.
        """
        if self._static is None:
            self._static = [None if tensor is None else tensor.clone() for tensor in tensors]
        for place, new in zip(self._static, tensors, strict=True):
            if place is not None and new is not None:
                place.copy_(new)
        if self._graph is not None:
            self._graph.replay()
        elif self._taken < _WARM_UP:
            self._taken += 1
            self.stream.wait_stream(torch.cuda.current_stream(self._device))
            with torch.cuda.stream(self.stream), _no_waits() if self._taken == _WARM_UP else contextlib.nullcontext():
                act(*self._static)
            torch.cuda.current_stream(self._device).wait_stream(self.stream)
        else:
            before()
            graph = torch.cuda.CUDAGraph()
            with _capturing(), torch.cuda.graph(graph, stream=self.stream):
                act(*self._static)
            self._graph = graph
            graph.replay()

    def release(self) -> None:
        """Let go of the graph and of its memory; the next time begins anew."""
        self._graph, self._static, self._taken = None, None, 0


@functools.cache
def _side_stream(device: torch.device, thread: int) -> Any:
    """Return the one stream of a device that a thread captures graphs on.

    Libraries keep a workspace for every stream they see, and graphs of one stream share it: two threads have two, since their
    graphs may play at the same time.
    """
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


@contextlib.contextmanager
def _no_waits() -> Iterator[None]:
    """Refuse what waits for the device, before its capture fails and leaves the allocator in disorder."""
    before = torch.cuda.get_sync_debug_mode()
    try:
        _on_waits("error")
        yield
    except RuntimeError as error:
        if "synchronizing" not in str(error):
            raise
        raise RunError("fast=True does not go with this network: its step waits for the GPU; leave it out") from error
    finally:
        _on_waits(before)


@contextlib.contextmanager
def _capturing() -> Iterator[None]:
    """Say in one line that a step cannot be captured."""
    try:
        yield
    except RuntimeError as error:
        if is_out_of_memory(error) or isinstance(error, RunError):
            raise
        why = str(error).strip().partition("\n")[0]
        raise RunError(f"fast=True: a step of this network cannot be captured as a CUDA graph ({why}); leave it out") from error


def _on_waits(mode: int | str) -> None:
    with warnings.catch_warnings():
        # torch says that it is a prototype.
        warnings.simplefilter("ignore")
        torch.cuda.set_sync_debug_mode(mode)
