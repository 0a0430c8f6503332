"""What peer2022's claims are decided with: rows by name, which runs trained, spans in words."""

from __future__ import annotations

import math
from collections.abc import Sequence

from capsella.papers.readings import dig, final
from capsella.papers.results import Result
from capsella.papers.verdicts import Evidence

TRAINS, BEGINS = 0.5, 0.25
"""A net of ten classes trains if it is right on half of the test images: the printed numbers lie above 74 or below 16 %. Short
versions have trained if they are right on a quarter: there is no time for more."""

DATA = ("mnist", "fashion")

EM_DEPTHS = (5, 6, 7, 8, 9)
"""Capsule layers of Table 3."""

OPPOSITE = -0.9
"""Cosine below which two inputs are opposite to each other."""


def key_of(table: str, data: str, bias: bool, depth: int) -> str:
    """Return the key of a row of Table 2 or 3."""
    return f"peer2022/{table}/{data}-{'bias' if bias else 'no-bias'}-depth{depth}"


def keys_of(table: str, bias: bool, depths: Sequence[int], data: Sequence[str] = DATA) -> tuple[str, ...]:
    """Return the keys of some rows."""
    return tuple(key_of(table, each, bias, depth) for each in data for depth in depths)


def trained(evidence: Evidence, recipes: Sequence[str]) -> tuple[int, int]:
    """Return how many runs trained, of how many."""
    results = [result for recipe in recipes for result in evidence.results(recipe)]
    return sum(has_trained(evidence, result) for result in results), len(results)


def has_trained(evidence: Evidence, result: Result) -> bool:
    """Tell whether a run trained; one whose loss was not finite in the end has not, whatever it knew before."""
    value = final(result)
    return value is not None and value >= bound(evidence)


def training(evidence: Evidence) -> str:
    """Say what it means to train."""
    return f"at least {bound(evidence):.0%} of the test images right"


def bound(evidence: Evidence) -> float:
    """Return the accuracy from which on a net has trained."""
    return BEGINS if evidence.is_quick else TRAINS


def measured(result: Result, *keys: str | int, when: str = "end") -> float | None:
    """Return a figure of what was seen inside a net, at the start or at the end; None where it was not measured."""
    found = dig(result.measured, "peer2022.inside", when, *keys)
    return None if found is None else float(found)


def step_of(value: float) -> str:
    """Write a step at which learning starts.

    Example:
        >>> step_of(1725), step_of(float("inf"))
        ('step 1,725', 'never')
    """
    return "never" if math.isinf(value) else f"step {value:,.0f}"
