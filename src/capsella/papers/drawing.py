"""Lines that pictures of several papers have."""

from __future__ import annotations

import math
from collections.abc import Sequence

from capsella.papers.paper import Line


def line_by_layer(label: str, values: Sequence[float | None] | None, *, style: int | None = None) -> list[Line]:
    """Return the line of a figure of each layer, counted from 1, on a logarithmic axis; none where there is nothing to draw.

    Such an axis has no zero, which is what lengths and gradients vanish to: there the line is broken, and the label counts
    them.

    Example:
        >>> line_by_layer("start", [0.0, 0.5, 0.0, 0.25])
        [Line(label='start (0 in 2 of 4)', x=(2.0, 3.0, 4.0), y=(0.5, nan, 0.25), spread=None, is_printed=False, style=None)]
        >>> line_by_layer("start", [0.5, None])[0].label, line_by_layer("start", [0.0]), line_by_layer("start", None)
        ('start', [], [])
    """
    values = values or []
    alive = [number for number, value in enumerate(values, 1) if value]
    if not alive:
        return []
    zeros = sum(value == 0 for value in values)
    places = range(alive[0], alive[-1] + 1)
    drawn = tuple(values[number - 1] or math.nan for number in places)
    says = f"{label} (0 in {zeros} of {len(values)})" if zeros else label
    return [Line(says, tuple(map(float, places)), drawn, style=style)]
