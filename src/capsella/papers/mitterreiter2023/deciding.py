"""What mitterreiter2023's claims are decided with."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

from capsella.papers.readings import dig, examined, final
from capsella.papers.verdicts import ENOUGH, Evidence, Missing

LUCK, SHORT_LUCK = 0.01, 0.03
"""Of single runs: what accuracies of two of one net may differ by, in whole runs and in short ones."""

LEARNED = 0.8
"""Of the placed test images: from where on a net has learned."""

ALIVE = 0.1
"""Of the hidden capsules: a net of which at most so many are dead lives."""

STATIC = 2.0
"""Live targets: below, the paper calls routing almost static."""


def all_layers(evidence: Evidence, row: str) -> list[list[dict[str, Any]]]:
    """Return what was measured of the layers of each run; raise ``Missing`` where a run was not measured."""
    return [_found(examined(result), row, "layers") for result in evidence.results(row)]


def lives(evidence: Evidence, row: str) -> list[list[dict[str, Any]]]:
    """Return what became of the layers of each run; raise ``Missing`` where nobody looked."""
    return [_found(result.measured, row, "mitterreiter2023.lives", "layers") for result in evidence.results(row)]


def _found(measured: Any, row: str, *keys: str) -> list[dict[str, Any]]:
    found = dig(measured, *keys)
    if not found:
        raise Missing(row)
    return list(found)


def mean_of_layer(evidence: Evidence, row: str, number: int, figure: str) -> float:
    """Return the mean over the runs of a figure of a layer, counted from 1."""
    values = [layers[number - 1][figure] for layers in all_layers(evidence, row)]
    known = [value for value in values if value is not None]
    if not known:
        raise Missing(row)
    return statistics.fmean(known)


def mean_dynamics(evidence: Evidence, row: str) -> list[float]:
    """Return the mean rate of routing dynamics over the layers that route, of each run."""
    found = [[layer["dyr"] for layer in layers if layer["dyr"] is not None] for layers in all_layers(evidence, row)]
    if not all(found):
        raise Missing(row)
    return [statistics.fmean(rates) for rates in found]


def has_learned(evidence: Evidence, row: str) -> bool:
    """Tell whether every run of a row has learned; one that came to no number has not."""
    return all((final(result) or 0.0) >= LEARNED for result in evidence.results(row))


def mean_known(values: Sequence[float | None]) -> float | None:
    """Return the mean of those that are known, None where none is.

    Example:
        >>> mean_known([1.0, None, 2.0]), mean_known([None])
        (1.5, None)
    """
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def noise_of(one: Sequence[float], other: Sequence[float], luck: float) -> float:
    """Return what is no difference yet: two standard errors of it where both have three runs, else ``luck``."""
    if min(len(one), len(other)) < ENOUGH:
        return luck
    return 2 * math.hypot(*(statistics.stdev(each) / math.sqrt(len(each)) for each in (one, other)))


def is_more(one: Sequence[float], other: Sequence[float], luck: float) -> bool | None:
    """Tell whether the first are larger in the mean; None where the difference may be luck.

    Example:
        >>> is_more([0.9], [0.5], 0.1), is_more([0.5], [0.9], 0.1), is_more([0.5], [0.55], 0.1)
        (True, False, None)
    """
    gain = statistics.fmean(one) - statistics.fmean(other)
    return None if abs(gain) <= noise_of(one, other, luck) else gain > 0
