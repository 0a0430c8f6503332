"""How long a call takes and how much memory it asks for, within a bounded time.

On a GPU small operations are shorter than their launches, so a CUDA graph of several calls is replayed where one can be
captured: the time of the device alone. Each call of the graph has inputs of its own, so that not all of them lie in the cache.
On a CPU the contenders take turns, so that what else happens on the machine meets them alike.
"""

from __future__ import annotations

import functools
import gc
import json
import math
import os
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch

K = TypeVar("K")

# readings of one thing, whatever the time: below, a median says little; above, it moves no more.
_LEAST, _MOST = 5, 200
_WARM_UP = 3
# one look at the clock covers at least so many seconds on a GPU, or the launch of a graph would count.
_WINDOW = 2e-3

GRAPH, EVENTS, CLOCK = "CUDA graph", "CUDA events", "clock"

MEMORY_SAYS = {
    "cuda": "most bytes allocated while it runs without a graph, less those before (torch.cuda.max_memory_allocated)",
    "cpu": "most bytes allocated while it runs, less those before, from the allocations that torch.profiler notes",
}


@dataclass(frozen=True)
class Times:
    """Seconds of one call, measured repeatedly.

    Attributes:
        seconds: one for every reading.
        how: ``GRAPH``, ``EVENTS`` or ``CLOCK``.
    """

    seconds: tuple[float, ...]
    how: str

    @property
    def median(self) -> float:
        """Middle reading."""
        return statistics.median(self.seconds)


def time_all(
    runs: Mapping[K, Callable[[int], object]], device: torch.device, *, sets: int = 1, budget: float = 0.3
) -> dict[K, Times]:
    """Time each of several calls.

    Args:
        runs: by name; each takes the number of the input set to run on.
        device: where they run.
        sets: of inputs, to rotate among on a GPU.
        budget: seconds for each, warming up left out.
    """
    if device.type == "cuda":
        return {name: _on_gpu(run, device, sets, budget) for name, run in runs.items()}
    return _in_turns(runs, budget)


def _in_turns(runs: Mapping[K, Callable[[int], object]], budget: float) -> dict[K, Times]:
    for run in runs.values():
        run(0)
    found: dict[K, list[float]] = {name: [] for name in runs}
    end = time.perf_counter() + budget * len(runs)
    for turn in range(_MOST):
        if turn >= _LEAST and time.perf_counter() > end:
            break
        for name, run in runs.items():
            start = time.perf_counter()
            run(0)
            found[name].append(time.perf_counter() - start)
    return {name: Times(tuple(seconds), CLOCK) for name, seconds in found.items()}


def _on_gpu(run: Callable[[int], object], device: torch.device, sets: int, budget: float) -> Times:
    def act() -> None:
        for k in range(sets):
            run(k)

    stream = _side_stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        for _ in range(_WARM_UP):
            act()
    torch.cuda.synchronize(device)
    graph = _captured(act, stream)
    replay = act if graph is None else graph.replay
    seconds = _by_events(replay, device, budget)
    return Times(tuple(each / sets for each in seconds), EVENTS if graph is None else GRAPH)


@functools.cache
def _side_stream(device: torch.device) -> Any:
    """Return the one stream of a device that graphs are captured on: libraries keep a workspace for every stream they see."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def _captured(act: Callable[[], None], stream: Any) -> torch.cuda.CUDAGraph | None:
    """Return a graph of a call, None if it waits for the device: such a capture would fail and leave a mess."""
    try:
        with torch.cuda.stream(stream), _no_waits():
            act()
    except RuntimeError as error:
        if "synchronizing" not in str(error):
            raise
        return None
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph, stream=stream):
            act()
    except torch.OutOfMemoryError:
        raise
    except RuntimeError:
        torch.cuda.synchronize()
        return None
    return graph


@contextmanager
def _no_waits() -> Iterator[None]:
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        # torch says that it is a prototype.
        warnings.simplefilter("ignore")
        torch.cuda.set_sync_debug_mode("error")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode(before)


def time_as_it_runs(act: Callable[[], object], device: torch.device, *, budget: float = 0.3, window: float = 2e-2) -> Times:
    """Time something that has warmed up and has its own way with graphs, such as a training step.

    Args:
        act: runs once.
        device: where.
        budget: seconds in all.
        window: seconds between two looks at a GPU's clock, at least.
    """
    if device.type == "cuda":
        return Times(tuple(_by_events(act, device, budget, window)), EVENTS)
    return _in_turns({"": lambda _: act()}, budget)[""]


def _by_events(act: Callable[[], object], device: torch.device, budget: float, window: float = _WINDOW) -> list[float]:
    first = _window(act, 1, device)
    calls = max(1, math.ceil(window / max(first, 1e-6)))
    found: list[float] = []
    end = time.perf_counter() + budget
    while len(found) < _LEAST or (len(found) < _MOST and time.perf_counter() < end):
        found.append(_window(act, calls, device) / calls)
    return found


def _window(act: Callable[[], object], calls: int, device: torch.device) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    torch.cuda.synchronize(device)
    start.record()
    for _ in range(calls):
        act()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / 1e3


def peak_memory(run: Callable[[], object], device: torch.device) -> int:
    """Return the most bytes that a call asks for at one time, beside what was there before; see ``MEMORY_SAYS``."""
    run()
    gc.collect()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        run()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    return _peak_on_cpu(run)


def _peak_on_cpu(run: Callable[[], object]) -> int:
    profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True, acc_events=True)
    with silent(), profiler:
        run()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    changes = sorted((event["ts"], event["args"]["Bytes"]) for event in events if event.get("name") == "[memory]")
    return _highest([change for _, change in changes])


@contextmanager
def silent() -> Iterator[None]:
    """Keep from a person's screen what the profiler's library writes there by itself."""
    sys.stderr.flush()
    kept = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def _highest(changes: list[int]) -> int:
    """Return the highest level that a sequence of changes reaches from zero.

    Example:
        >>> _highest([5, 3, -6, 4])
        8
    """
    level = highest = 0
    for change in changes:
        level += change
        highest = max(highest, level)
    return highest
