"""Routing by agreement against multi-head self-attention at equal n and d (mitterreiter2023, Table 3), measured.

              space       time
    MHSA      d²          n²·d + n·d²
    RBA       n²·d²       n²·d²

n vectors of d values go in and come out. Space is parameters, time is multiplications of one sample, both up to a constant
factor; what is measured stands beside the formulas' values.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from capsella.analysis.cost import HEAD
from capsella.bench.clock import MEMORY_SAYS, peak_memory, time_all
from capsella.bench.growth import power
from capsella.bench.problems import Problem
from capsella.bench.routing import BOTH, Speeds
from capsella.bench.routing import measure as measure_routing
from capsella.testing import Case

MHSA, RBA = "MHSA", "RBA"


@dataclass(frozen=True)
class AttentionReading:
    """One mechanism at one n and d.

    Attributes:
        mechanism: ``MHSA`` or ``RBA``.
        implementation: of routing, or torch's module.
        chosen: whether the dispatcher takes it by itself; attention has no choice.
        along: the size that moves, ``"n"`` or ``"d"``.
        n: vectors.
        d: values of a vector.
        batch_size: samples.
        parameters: counted.
        space: the paper's formula.
        operations: the paper's formula for time.
        median: seconds, forward and backward, of the batch.
        low: smallest reading.
        high: largest reading.
        repeats: how many readings.
        how: what the clock was.
        memory: bytes, the most that it asks for beside inputs and parameters.
        problem: why there is no time.
    """

    mechanism: str
    implementation: str
    chosen: bool
    along: str
    n: int
    d: int
    batch_size: int
    parameters: int
    space: int
    operations: int
    median: float = 0.0
    low: float = 0.0
    high: float = 0.0
    repeats: int = 0
    how: str = ""
    memory: int = 0
    problem: str = ""


def space(mechanism: str, n: int, d: int) -> int:
    """Return Table 3's space, without its constant.

    Example:
        >>> space("RBA", 10, 4), space("MHSA", 10, 4)
        (1600, 16)
    """
    return n**2 * d**2 if mechanism == RBA else d**2


def operations(mechanism: str, n: int, d: int) -> int:
    """Return Table 3's time, without its constant.

    Example:
        >>> operations("RBA", 10, 4), operations("MHSA", 10, 4)
        (1600, 560)
    """
    return n**2 * d**2 if mechanism == RBA else n**2 * d + n * d**2


def grid(device: torch.device, *, quick: bool = False) -> tuple[int, list[tuple[str, int, int]]]:
    """Return the batch size and what to try: which size moves, n, d."""
    if quick:
        return 2, [("n", 4, 4), ("n", 8, 4), ("d", 4, 4), ("d", 4, 8)]
    gpu = device.type == "cuda"
    along_n = [("n", n, 16) for n in ((32, 64, 128, 256, 512) if gpu else (16, 32, 64, 128))]
    along_d = [("d", 64 if gpu else 32, d) for d in ((8, 16, 32, 64) if gpu else (8, 16, 32))]
    return 32 if gpu else 4, along_n + along_d


def measure(
    device: torch.device, *, quick: bool = False, budget: float = 0.2, say: Callable[[str], None] = lambda line: None
) -> Iterator[AttentionReading]:
    """Time both mechanisms in float32, forward and backward; routing passes the gate first."""
    batch_size, points = grid(device, quick=quick)
    speeds = Speeds.of(device, ["float32"])
    for along, n, d in points:
        yield _attention(device, along, n, d, batch_size, budget)
        problem = Problem("agreement", Case(f"n = {n}, d = {d}", B=batch_size, I=n, J=n, D=d, P=d), "float32")
        run = measure_routing([problem], device, budget=budget, compiled=(), modes=(BOTH,), speeds=speeds, say=say)
        for found in run:
            fields = {name: getattr(found, name) for name in ("median", "low", "high", "repeats", "how", "memory", "problem")}
            yield AttentionReading(
                RBA,
                found.implementation,
                found.chosen,
                along,
                n,
                d,
                batch_size,
                n * n * d * d,
                space(RBA, n, d),
                operations(RBA, n, d),
                **fields,
            )


def _attention(device: torch.device, along: str, n: int, d: int, batch_size: int, budget: float) -> AttentionReading:
    torch.manual_seed(0)
    module = nn.MultiheadAttention(d, max(1, d // HEAD), batch_first=True, device=device)
    parameters = list(module.parameters())
    vectors = torch.randn(batch_size, n, d, device=device, requires_grad=True)
    pull = torch.randn_like(vectors)

    def act(_: int) -> tuple[Tensor, ...]:
        result, _weights = module(vectors, vectors, vectors, need_weights=False)
        return torch.autograd.grad(result, [vectors, *parameters], pull)

    memory = peak_memory(functools.partial(act, 0), device)
    found = time_all({MHSA: act}, device, budget=budget)[MHSA]
    return AttentionReading(
        MHSA,
        "torch.nn.MultiheadAttention",
        True,
        along,
        n,
        d,
        batch_size,
        sum(parameter.numel() for parameter in parameters),
        space(MHSA, n, d),
        operations(MHSA, n, d),
        found.median,
        min(found.seconds),
        max(found.seconds),
        len(found.seconds),
        found.how,
        memory,
    )


def exponents(readings: Sequence[AttentionReading]) -> list[dict[str, Any]]:
    """Return the powers of n and d that time, memory and parameters grow with, beside those of the formula's operations."""
    groups: dict[tuple[str, str, str], list[AttentionReading]] = {}
    for reading in readings:
        if not reading.problem:
            groups.setdefault((reading.mechanism, reading.implementation, reading.along), []).append(reading)
    found = []
    for (mechanism, implementation, along), points in groups.items():
        sizes = [getattr(point, along) for point in points]
        if len(set(sizes)) > 1:
            powers = {
                name: power(sizes, [getattr(point, key) for point in points])
                for name, key in (
                    ("time", "median"),
                    ("memory", "memory"),
                    ("parameters", "parameters"),
                    ("formula", "operations"),
                )
            }
            found.append({"mechanism": mechanism, "implementation": implementation, "along": along, **powers})
    return found


def facts(device: torch.device, readings: Sequence[AttentionReading]) -> dict[str, Any]:
    """Return what a record says beside its readings."""
    return {"memory_says": MEMORY_SAYS[device.type], "exponents": exponents(readings)}
