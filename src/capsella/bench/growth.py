"""How time and memory of routing grow with its sizes, one at a time, as exponents of a power law."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from capsella.bench.problems import Problem
from capsella.bench.routing import BOTH, RoutingReading, Speeds
from capsella.bench.routing import measure as measure_routing
from capsella.testing import Case

AXES = ("B", "I", "J", "D")


@dataclass(frozen=True)
class Grid:
    """Sizes to try: one axis moves along its values, the others stay at the base."""

    base: Case
    values: dict[str, tuple[int, ...]]


GPU = Grid(
    Case("growth", B=128, I=1152, J=10, D=16, P=8),
    {"B": (32, 64, 128, 256, 512), "I": (288, 1152, 2304, 4608, 9216), "J": (5, 10, 20, 40), "D": (8, 16, 32, 64)},
)
CPU = Grid(
    Case("growth", B=8, I=288, J=10, D=16, P=8),
    {"B": (2, 4, 8, 16, 32), "I": (72, 144, 288, 576, 1152), "J": (5, 10, 20, 40), "D": (8, 16, 32, 64)},
)
QUICK = Grid(Case("growth", B=2, I=8, J=4, D=4, P=4), {"B": (2, 4), "I": (8, 16), "J": (4, 8), "D": (4, 8)})


@dataclass(frozen=True)
class GrowthReading:
    """Routing at one point of the grid.

    Attributes:
        axis: the letter that moves.
        size: its value.
        algorithm: registry name.
        implementation: registered name.
        chosen: whether the dispatcher takes it by itself.
        precision: of poses and weight.
        sizes: by letter.
        median: seconds, forward and backward.
        low: smallest reading.
        high: largest reading.
        repeats: how many readings.
        how: what the clock was.
        memory: bytes, the most that it asks for beside its inputs.
        problem: why there is no time.
    """

    axis: str
    size: int
    algorithm: str
    implementation: str
    chosen: bool
    precision: str
    sizes: dict[str, int]
    median: float
    low: float
    high: float
    repeats: int
    how: str
    memory: int
    problem: str

    @classmethod
    def of(cls, axis: str, found: RoutingReading) -> GrowthReading:
        """Take what belongs here from a reading of routing."""
        fields = {name: getattr(found, name) for name in cls.__dataclass_fields__ if name not in ("axis", "size")}
        return cls(axis=axis, size=found.sizes[axis], **fields)


@dataclass(frozen=True)
class Exponents:
    """The powers of one size that time and memory grow with, by least squares on logarithms over all points."""

    algorithm: str
    implementation: str
    precision: str
    axis: str
    time: float
    memory: float


def measure(
    device: torch.device,
    *,
    algorithms: Sequence[str] = ("agreement", "em"),
    precision: str = "float32",
    quick: bool = False,
    budget: float = 0.1,
    say: Callable[[str], None] = lambda line: None,
) -> Iterator[GrowthReading]:
    """Time every implementation along every axis, after the gate; a point that two axes share is timed once.

    Args:
        device: where.
        algorithms: registry names.
        precision: of poses and weight.
        quick: two tiny sizes for every axis.
        budget: seconds of each timing.
        say: is told what goes on.
    """
    grid = QUICK if quick else GPU if device.type == "cuda" else CPU
    speeds = Speeds.of(device, [precision])
    done: dict[Problem, list[RoutingReading]] = {}
    for algorithm in algorithms:
        for axis in AXES:
            for size in grid.values[axis]:
                sizes = {**_sizes(grid.base), axis: size}
                case = Case(" ".join(f"{letter}{value}" for letter, value in sizes.items()), **sizes)
                problem = Problem(algorithm, case, precision)
                if problem not in done:
                    run = measure_routing([problem], device, budget=budget, compiled=(), modes=(BOTH,), speeds=speeds, say=say)
                    done[problem] = list(run)
                yield from (GrowthReading.of(axis, reading) for reading in done[problem])


def exponents(readings: Sequence[GrowthReading]) -> list[Exponents]:
    """Fit a power of the size to time and to memory, for everything that was timed at two sizes or more."""
    groups: dict[tuple[str, str, str, str], list[GrowthReading]] = {}
    for reading in readings:
        if not reading.problem:
            key = (reading.algorithm, reading.implementation, reading.precision, reading.axis)
            groups.setdefault(key, []).append(reading)
    found = []
    for key, points in groups.items():
        sizes = [point.size for point in points]
        if len(set(sizes)) > 1:
            powers = (power(sizes, [getattr(point, name) for point in points]) for name in ("median", "memory"))
            found.append(Exponents(*key, *powers))
    return found


def power(sizes: Sequence[float], values: Sequence[float]) -> float:
    """Return the slope of a straight line through logarithms.

    Example:
        >>> round(power([1, 2, 4], [3.0, 12.0, 48.0]), 6)
        2.0
    """
    xs, ys = [math.log(size) for size in sizes], [math.log(max(value, 1e-12)) for value in values]
    middle_x, middle_y = sum(xs) / len(xs), sum(ys) / len(ys)
    spread = sum((x - middle_x) ** 2 for x in xs)
    return sum((x - middle_x) * (y - middle_y) for x, y in zip(xs, ys, strict=True)) / spread


def facts(readings: Sequence[GrowthReading]) -> dict[str, Any]:
    """Return what a record says beside its readings."""
    return {"exponents": [asdict(each) for each in exponents(readings)]}


def _sizes(case: Case) -> dict[str, int]:
    sizes = asdict(case)
    del sizes["name"]
    return sizes
