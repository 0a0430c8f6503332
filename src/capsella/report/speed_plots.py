"""Growth of time and memory as pictures: logarithms on both axes, one panel for each size that moves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from capsella.report import plots

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MARKERS = "osD^v"


@dataclass(frozen=True)
class Panel:
    """One panel: lines by label, each a list of points, over an axis of sizes.

    Attributes:
        x_label: the size that moves.
        y_label: what grows.
        lines: points (size, value) by label.
    """

    x_label: str
    y_label: str
    lines: Mapping[str, Sequence[tuple[float, float]]]


def log_log(rows: Sequence[Sequence[Panel]], *, label: str) -> str:
    """Draw panels in rows, all with the same lines in the same colours.

    Args:
        rows: panels from left to right, from top to bottom.
        label: what the picture shows, for those who do not see it.

    Returns:
        The text of an SVG file.
    """
    from matplotlib.figure import Figure

    names = list(dict.fromkeys(name for row in rows for panel in row for name in panel.lines))
    if not names:
        raise ValueError("rows=() has nothing to draw; expected at least one line")
    with plots._styled(label):
        columns = max(len(row) for row in rows)
        figure = Figure(figsize=(2.7 * columns, 2.4 * len(rows)), layout="constrained")
        grid: Any = figure.subplots(len(rows), columns, squeeze=False, sharey="row")
        for row, line in zip(grid, rows, strict=True):
            for axes, panel in zip(row, line, strict=False):
                _draw(axes, panel, names)
            _decades(row[0], [value for panel in line for points in panel.lines.values() for _, value in points])
        for k, name in enumerate(names):
            grid[0, 0].plot([], [], **_look(k), label=name)
        figure.legend(loc="outside upper left", ncols=min(len(names), 4), handlelength=2.4)
        return plots.as_file(plots._svg(figure, label))


def _draw(axes: Axes, panel: Panel, names: Sequence[str]) -> None:
    from matplotlib.ticker import NullLocator

    sizes = sorted({size for points in panel.lines.values() for size, _ in points})
    for name, points in panel.lines.items():
        xs, ys = zip(*sorted(points), strict=True)
        axes.plot(xs, ys, **_look(names.index(name)))
    axes.set(xlabel=panel.x_label, ylabel=panel.y_label, xscale="log", yscale="log")
    axes.set_xticks(sizes, [f"{size:g}" for size in sizes], rotation=45 if len(sizes) > 4 else 0)
    axes.xaxis.set_minor_locator(NullLocator())
    axes.grid(True)


def _decades(axes: Axes, values: Sequence[float]) -> None:
    """Write a number at every decade, or also between them where there are few."""
    from matplotlib.ticker import LogLocator, NullFormatter

    low, high = min(values) / 1.5, max(values) * 1.5
    axes.set_ylim(low, high)
    axes.yaxis.set_major_locator(LogLocator(subs=(1,) if high / low > 1000 else (1, 2, 5)))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.yaxis.set_minor_formatter(NullFormatter())


def _look(k: int) -> dict[str, Any]:
    return {
        "color": plots.PALETTE[k % len(plots.PALETTE)],
        "linestyle": plots._DASHES[k % len(plots._DASHES)],
        "marker": _MARKERS[k % len(_MARKERS)],
        "markersize": 4,
    }
