"""Timing: warm up, repeat, report the median and the spread; and the memory bandwidth that sets the floor."""

from __future__ import annotations

import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch

from capsella import __numerics__, __version__


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
    """

    name: str
    unit: str
    median: float
    low: float
    high: float
    repeats: int
    floor: float = 0.0
    floor_says: str = ""


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


def device_name(device: torch.device) -> str:
    """Return the name of the chip."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{platform.processor() or platform.machine()}, {torch.get_num_threads()} threads"


def record(kind: str, device: torch.device, readings: list[Reading], **facts: Any) -> dict[str, Any]:
    """Return a record of readings that JSON can hold."""
    return {
        "kind": kind,
        "device": device_name(device),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "capsella": __version__,
        "numerics": __numerics__,
        **facts,
        "readings": [asdict(reading) for reading in readings],
    }
