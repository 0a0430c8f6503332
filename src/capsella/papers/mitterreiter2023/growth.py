"""Table 3, measured: how a layer's size, time and memory grow with n and d, for agreement and for self-attention."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from capsella import routing
from capsella.analysis import routing_cost
from capsella.data import ImageData
from capsella.nn import CapsuleLinear
from capsella.train.run import Run

SIZES = {"n": (32, 64, 128, 256), "d": (8, 16, 32, 64)}
FEWER = {"n": (16, 32, 64), "d": (8, 16, 32)}
"""On a CPU."""

MIDDLE = {"n": 64, "d": 16}
"""Where the other one stays."""

BATCH = 32
_WHAT = ("parameters", "seconds", "memory")


def growth(run: Run, splits: Mapping[str, ImageData | None], device: torch.device) -> dict[str, Any]:
    """Measure layers of n capsules of d values in and out; of the run, only its device is taken."""
    sizes = SIZES if device.type == "cuda" else FEWER
    return {axis: _along(axis, values, device) for axis, values in sizes.items()}


def _along(axis: str, values: Sequence[int], device: torch.device) -> dict[str, Any]:
    found: dict[str, list[float]] = {}
    for value in values:
        at = {**MIDDLE, axis: value}
        layer = CapsuleLinear(at["n"], at["d"], at["n"], at["d"], routing="agreement", bias=False).to(device)
        # measures run with the reference on a GPU; here it is what the dispatcher would take.
        with routing.prefer("auto"):
            cost = vars(routing_cost(layer, torch.randn(BATCH, at["n"], at["d"], device=device), repeats=5))
        for name in _WHAT:
            found.setdefault(f"rba_{name}", []).append(cost[name])
            found.setdefault(f"mhsa_{name}", []).append(cost[f"attention_{name}"])
    return {"sizes": list(values), **found, "exponents": {name: exponent(values, each) for name, each in found.items()}}


def exponent(sizes: Sequence[float], values: Sequence[float]) -> float:
    """Return the slope of a straight line through logarithms: p where values grow as sizes to the power p.

    Example:
        >>> round(exponent([1, 2, 4], [3, 12, 48]), 6)
        2.0
    """
    x, y = ([math.log(each) for each in many] for many in (sizes, values))
    middle, height = sum(x) / len(x), sum(y) / len(y)
    return sum((a - middle) * (b - height) for a, b in zip(x, y, strict=True)) / sum((a - middle) ** 2 for a in x)
