"""Timing: warm up, repeat, report the median and the spread; and the memory bandwidth that sets the floor."""

from __future__ import annotations

import functools
import os
import platform
import re
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from capsella import __numerics__, __version__
from capsella.train.record import commit

_LOOK = 0.25  # seconds


class WrongValues(RuntimeError):
    """What was to be timed does not give the right values; nothing is timed."""


@dataclass(frozen=True)
class Reading:
    """Repeated measurements of one thing.

    Attributes:
        name: what was measured.
        unit: of the values.
        median: middle value.
        low: smallest value.
        high: largest value.
        repeats: how many.
        floor: the best value that memory allows; 0 where none is stated.
        floor_says: how the floor comes about.
        problem: why there are no values.
    """

    name: str
    unit: str
    median: float
    low: float
    high: float
    repeats: int
    floor: float = 0.0
    floor_says: str = ""
    problem: str = ""


@functools.cache
def load_before() -> float | None:
    """Return how many processors other programs keep busy; None where nobody counts. The first call is what counts."""
    if (first := _ticks()) is None:
        return None
    time.sleep(_LOOK)
    busy, all_of_them = (late - early for late, early in zip(_ticks() or first, first, strict=True))
    return round(busy / max(all_of_them, 1) * (os.cpu_count() or 1), 2)


def _ticks() -> tuple[int, int] | None:
    """Return the ticks of all processors since the machine started: busy ones, and all."""
    try:
        line = Path("/proc/stat").read_text().partition("\n")[0]
    except OSError:
        return None
    ticks = [int(each) for each in line.split()[1:9]]
    _, _, _, idle, waiting, *_ = ticks
    return sum(ticks) - idle - waiting, sum(ticks)


def seconds(run: Callable[[], object], device: torch.device, *, repeats: int = 7, warm_up: int = 2) -> list[float]:
    """Return how long ``run`` takes, waiting for the device before each look at the clock."""
    for _ in range(warm_up):
        run()
    times = []
    for _ in range(repeats):
        _wait(device)
        start = time.perf_counter()
        run()
        _wait(device)
        times.append(time.perf_counter() - start)
    return times


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def rate(name: str, unit: str, amount: float, times: list[float], *, floor: float = 0.0, floor_says: str = "") -> Reading:
    """Return ``amount`` per second as a reading."""
    values = [amount / each for each in times]
    return Reading(name, unit, statistics.median(values), min(values), max(values), len(values), floor, floor_says)


def bandwidth(device: torch.device) -> float:
    """Return bytes per second of a large copy within the device's memory, read and written bytes both counted."""
    size = 1 << (30 if device.type == "cuda" else 27)
    source = torch.ones(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * size / statistics.median(seconds(lambda: target.copy_(source), device))


def product_rate(device: torch.device, dtype: torch.dtype) -> float:
    """Return operations per second of a large matrix product, a multiplication and an addition counted as two."""
    size = 8192 if device.type == "cuda" else 1024
    left, right = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    product = torch.empty_like(left)
    return 2 * size**3 / statistics.median(seconds(lambda: torch.mm(left, right, out=product), device))


def device_name(device: torch.device) -> str:
    """Return the name of the chip."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{platform.processor() or platform.machine()}, {torch.get_num_threads()} threads"


def file_name(kind: str, device: torch.device) -> str:
    """Return what a record is called under ``results/bench``: kind, device and torch's version.

    Example:
        >>> file_name("routing", torch.device("cpu")).startswith("routing-cpu-")
        True
    """
    chip = f"cpu-{torch.get_num_threads()}-cores" if device.type == "cpu" else device_name(device).lower()
    slug = re.sub(r"[^a-z0-9]+", "-", chip).strip("-")
    return f"{kind}-{slug}-torch{torch.__version__.partition('+')[0]}.json"


@functools.cache
def _commit() -> str | None:
    """Return the commit of the code that is measured; a record is written after every reading."""
    return commit()


def record(kind: str, device: torch.device, readings: Sequence[Any], *, complete: bool = True, **facts: Any) -> dict[str, Any]:
    """Return a record of readings, dataclasses all, that JSON can hold; ``complete`` says whether none is to come."""
    return {
        "kind": kind,
        "device": device_name(device),
        "torch": torch.__version__,
        "python": platform.python_version(),
        # of a GPU's machine too: steps are launched from there.
        "load_before": load_before(),
        "capsella": __version__,
        "numerics": __numerics__,
        "commit": _commit(),
        "complete": complete,
        **facts,
        "readings": [asdict(reading) for reading in readings],
    }
