"""Pictures of the sweep: accuracy, dynamics and dead capsules against depth, width and dimension."""

from __future__ import annotations

import functools
import statistics

from capsella.papers.mitterreiter2023.nets import ROUTINGS
from capsella.papers.mitterreiter2023.sweep_claims import cells_of, figure_of
from capsella.papers.paper import Line, Plot
from capsella.papers.verdicts import Evidence

_ALONG = {"depth": "capsule layers", "width": "capsules of a layer", "dim": "values of a capsule"}
_FIGURES = {
    "sweep": ("affine", "Accuracy on affine digits", "accuracy", True),
    "sweep-dead": ("dead_hidden", "Dead capsules of all hidden layers", "share of the hidden capsules", True),
    "sweep-dynamics": ("dynamics", "Rate of routing dynamics, mean over the layers", "dyr", False),
}


def _along(evidence: Evidence, *, axis: str, reading: str) -> list[Line]:
    """Return means and spreads over the nets that have run, which any part of the sweep has as many of at each place."""
    lines = []
    for routing, label in ROUTINGS.items():
        # uniform couplings are the same for every image.
        if reading == "dynamics" and routing == "uniform":
            continue
        found: dict[int, list[float]] = {}
        for cell in cells_of(evidence, routing):
            value = figure_of(evidence, cell, reading)
            if value is not None:
                found.setdefault(getattr(cell, axis), []).append(value)
        if found:
            places = sorted(found)
            spread = tuple(statistics.stdev(found[each]) if len(found[each]) > 1 else 0.0 for each in places)
            means = tuple(statistics.fmean(found[each]) for each in places)
            lines.append(Line(label, tuple(map(float, places)), means, spread))
    return lines


SWEEP_PLOTS = tuple(
    Plot(
        f"{key}-{axis}",
        f"{title}, nets of the sweep, by {says}",
        says,
        unit,
        functools.partial(_along, axis=axis, reading=reading),
        is_share=is_share,
        is_counted=True,
    )
    for key, (reading, title, unit, is_share) in _FIGURES.items()
    for axis, says in _ALONG.items()
)
