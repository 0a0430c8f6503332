"""Pictures as text: curves and bars as SVG, images and heat maps as PNG data URIs.

All are pure functions: the same input gives the same text. Ink is ``currentColor`` and the ground is transparent, so a
picture takes the colours of the page around it, light or dark. matplotlib is used by its objects, never through pyplot.
"""

from __future__ import annotations

import base64
import html
import io
import math
import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from einops import rearrange

from capsella.errors import check_number
from capsella.report.values import Values, array, unit_array

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PALETTE = ("#11877b", "#d9610f", "#7a6bd8", "#c2408a", "#3f7fd0", "#7f8a1c")
"""Colours of series in their order, each of a contrast of 3 or more to a white ground and to a black one."""

FILE_INK = "#7d7d7d"
"""The ink of a picture in a file, readable on a light and on a dark page."""

HOT, COLD = (255, 178, 36), (74, 158, 255)
"""Colours of a heat map above and below zero, for a dark ground."""

# an ink that no series has; the text of the SVG says currentColor in its place.
_INK = "#010203"
# a label that begins so is in no legend.
_FAINT: dict[str, Any] = {
    "linewidth": 1.1,
    "linestyle": (0, (1, 1.8)),
    # a ring around the mark of a line that goes through the same point.
    "markersize": 9.5,
    "markerfacecolor": "none",
    "clip_on": False,
    "label": "_",
}
_MARKS = "osD"
_DASHES = ("-", (0, (5, 1.6)), (0, (1.2, 1.4)), (0, (7, 1.6, 1.2, 1.6)))
_STYLE: dict[str, Any] = {
    **dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color", "grid.color"), _INK),
    **dict.fromkeys(("axes.spines.top", "axes.spines.right", "legend.frameon", "text.parse_math"), False),
    **dict.fromkeys(("font.size", "axes.labelsize", "legend.fontsize", "xtick.labelsize", "ytick.labelsize"), 10.5),
    # text stays text: it can be read aloud, found and copied, and takes the page's font.
    "svg.fonttype": "none",
    "axes.linewidth": 0.8,
    "grid.alpha": 0.16,
    "grid.linewidth": 0.8,
    "lines.linewidth": 1.8,
    "lines.solid_capstyle": "round",
}


@dataclass(frozen=True)
class Series:
    """One line of a plot, or one colour of its bars.

    Attributes:
        label: in the legend.
        x: places; of bars, nothing.
        y: values; NaN is a gap in a line.
        spread: drawn on both sides of each value, or None.
        is_faint: a line to compare the one before it with, such as the printed one: in its colour, thin and dotted, with hollow
            marks. Lines of one label have one entry in the legend, after all others.
        style: which of the colours and dashes a line has; the next one if None.
    """

    label: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    spread: tuple[float, ...] | None = None
    is_faint: bool = False
    style: int | None = None


def curves(
    series: Sequence[Series],
    *,
    label: str,
    x_label: str,
    y_label: str,
    is_share: bool = False,
    is_log: bool = False,
    is_counted: bool = False,
    width: float = 4.8,
    is_roomy: bool = False,
) -> str:
    """Draw lines with their spreads.

    Args:
        series: at least one line.
        label: what the picture shows, for those who do not see it.
        x_label: under the picture.
        y_label: beside it.
        is_share: values from 0 to 1, which are written as percentages.
        is_log: a logarithmic axis, where all values are above zero.
        is_counted: places are whole numbers; each is marked.
        width: in inches; the height is 0.62 of it.
        is_roomy: make the picture as much higher as a legend of more than three rows needs.

    Returns:
        An ``<svg>`` element.
    """
    _check(series, "series")
    faint = list(dict.fromkeys(one.label for one in series if one.is_faint))
    labels = [*(one.label for one in series if not one.is_faint), *faint]
    rows = -(-len(labels) // _columns(labels))
    with _styled(label):
        figure, axes = _axes(width, 0.62 * width + (0.2 * max(0, rows - 3) if is_roomy else 0))
        k = -1
        for one in series:
            k = one.style if one.style is not None else k + (not one.is_faint)
            colour = PALETTE[max(0, k) % len(PALETTE)]
            x, y = array(one.x, "n", name="x"), _broken(one.y, len(one.x))
            # where colours come round, the marks tell lines apart.
            marker = _MARKS[k // len(PALETTE) % len(_MARKS)] if len(x) == 1 or is_counted else ""
            if one.is_faint:
                axes.plot(x, y, color=colour, marker=marker, **_FAINT)
            else:
                axes.plot(x, y, color=colour, linestyle=_DASHES[k % len(_DASHES)], marker=marker, label=" ")
            if one.spread is not None:
                spread = array(one.spread, "n", name="spread", n=len(one.x))
                axes.fill_between(x, y - spread, y + spread, color=colour, alpha=0.18, linewidth=0)
        axes.set(xlabel=x_label, ylabel=y_label)
        axes.grid(True)
        axes.locator_params(nbins=6)
        axes.xaxis.set_major_formatter(lambda value, _: _short(value))
        if is_counted:
            axes.set_xticks(sorted({place for one in series for place in one.x}))
        if is_share:
            low, high = axes.get_ylim()
            axes.set_ylim(max(low, -0.02), min(high, 1.02))
            axes.yaxis.set_major_formatter(_share)
        values = [value for one in series for value in one.y if not math.isnan(value)]
        if is_log and all(value > 0 for value in values):
            _as_decades(axes, values)
        for _ in faint:
            axes.plot([], [], color=_INK, marker="o", **{**_FAINT, "label": " "})
        _legend(figure, labels)
        return _svg(figure, label)


def panels(images: Sequence[tuple[str, Values]], *, label: str, width: float = 4.8) -> str:
    """Draw grey images below each other, each with a line of text above it.

    Args:
        images: text and image [H, W] with values from 0 to 1, at least one.
        label: what the picture shows, for those who do not see it.
        width: in inches; the height follows the images.

    Returns:
        An ``<svg>`` element.
    """
    _check(images, "images")
    pixels = [unit_array(image, "H W", name="images") for _, image in images]
    heights = [width * rows / columns for rows, columns in (each.shape for each in pixels)]
    titles = [textwrap.wrap(text, 56) for text, _ in images]
    with _styled(label):
        from matplotlib.figure import Figure

        room = sum(0.15 + 0.17 * len(lines) for lines in titles)
        figure = Figure(figsize=(width, sum(heights) + room), layout="constrained")
        places = figure.subplots(len(pixels), 1, squeeze=False, gridspec_kw={"height_ratios": heights})[:, 0]
        for axes, lines, image in zip(places, titles, pixels, strict=True):
            # "none": as many pixels as there are; the page enlarges them.
            axes.imshow(image, cmap="gray", vmin=0, vmax=1, interpolation="none", aspect="equal")
            axes.set_title("\n".join(lines), fontsize=10.5, loc="left", pad=3)
            axes.set_axis_off()
        return _svg(figure, label)


def as_file(svg: str) -> str:
    """Return the text of a file for an ``<svg>`` element: in a file it cannot take a page's ink, so it has its own."""
    return svg.replace("currentColor", FILE_INK) + "\n"


def bars(categories: Sequence[str], series: Sequence[Series], *, label: str, x_label: str, width: float = 4.8) -> str:
    """Draw shares as horizontal bars from zero, one group per category, with their spreads.

    Args:
        categories: names of the groups, from the top.
        series: one value per category each.
        label: what the picture shows, for those who do not see it.
        x_label: under the picture.
        width: in inches; the height follows the number of bars.

    Returns:
        An ``<svg>`` element.
    """
    _check(series, "series")
    _check(categories, "categories")
    thickness = 0.76 / len(series)
    with _styled(label):
        figure, axes = _axes(width, 0.85 + len(categories) * (0.16 + 0.26 * len(series)))
        for k, one in enumerate(series):
            y = array(one.y, "n", name="y", n=len(categories))
            places = np.arange(len(categories)) + (k - (len(series) - 1) / 2) * thickness
            axes.barh(places, y, height=0.9 * thickness, color=PALETTE[k % len(PALETTE)], label=" ")
            spread = np.zeros_like(y) if one.spread is None else array(one.spread, "n", name="spread", n=len(categories))
            if one.spread is not None:
                axes.errorbar(y, places, xerr=spread, fmt="none", ecolor=_INK, elinewidth=1, capsize=2.5)
            for place, value, margin in zip(places, y, spread, strict=True):
                axes.text(value + margin + 0.015, place, f"{100 * value:.1f} %", va="center", fontsize=9.5)
        axes.set(xlabel=x_label, xlim=(0, 1.2))
        axes.set_yticks(range(len(categories)), ["\n".join(textwrap.wrap(name, 18)) for name in categories])
        axes.set_xticks([0, 0.25, 0.5, 0.75, 1])
        axes.invert_yaxis()
        axes.tick_params(axis="y", length=0)
        axes.grid(True, axis="x")
        axes.set_axisbelow(True)
        axes.xaxis.set_major_formatter(_share)
        _legend(figure, [one.label for one in series])
        return _svg(figure, label)


def image_uri(image: Values) -> str:
    """Return an image with values from 0 to 1 as a PNG data URI of its own size; enlarging it is the page's work.

    Args:
        image: [H, W] or [C, H, W]; three channels are colours, any other number becomes grey images side by side.
    """
    if len(getattr(image, "shape", ())) == 2:
        pixels = unit_array(image, "H W", name="image")
    else:
        channels = unit_array(image, "C H W", name="image")
        pixels = rearrange(channels, "c h w -> h w c" if len(channels) == 3 else "c h w -> h (c w)")
    return _png(np.rint(255 * pixels).astype(np.uint8))


def heat_uri(values: Values, *, top: float) -> str:
    """Return a heat map as a PNG data URI: one pixel per value, amber above zero, blue below, the more opaque the farther.

    Args:
        values: [H, W].
        top: the size of a value that covers fully, the same for maps that are compared.
    """
    check_number("top", top, least=0)
    found = array(values, "H W", name="values")
    pixels = np.empty((*found.shape, 4), np.uint8)
    pixels[..., :3] = np.where(found[..., None] < 0, COLD, HOT)
    pixels[..., 3] = np.rint(255 * (np.abs(found) / top).clip(0, 1)) if top > 0 else 0
    return _png(pixels)


def _broken(values: Values, count: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return the values of a line; where one is no number, the line is broken."""
    given = list(values)
    gaps = [math.isnan(value) for value in given]
    found = array([0.0 if gap else value for value, gap in zip(given, gaps, strict=True)], "n", name="y", n=count)
    found[gaps] = math.nan
    return found


def _check(entries: Sequence[object], name: str) -> None:
    if not entries:
        raise ValueError(f"{name}=() has nothing to draw; expected at least one entry")


def _png(pixels: np.ndarray[Any, np.dtype[np.uint8]]) -> str:
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(pixels)).save(buffer, "PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"


def _styled(salt: str) -> Any:
    import matplotlib

    # from matplotlib's own defaults: a matplotlibrc in the user's folder changes nothing. Ids are digests of the salt and of
    # what they name, so that pictures of one page share none by accident.
    defaults = {key: value for key, value in matplotlib.rcParamsDefault.items() if not key.startswith("backend")}
    settings: Any = defaults | _STYLE | {"svg.hashsalt": f"capsella {salt}"}
    return matplotlib.rc_context(settings)


def _axes(width: float, height: float) -> tuple[Figure, Axes]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.add_subplot()


def _share(value: float, _: float) -> str:
    return f"{100 * value:g} %"


def _as_decades(axes: Axes, values: Sequence[float]) -> None:
    from matplotlib.ticker import LogLocator, NullFormatter

    # a spread may reach below zero, where a logarithm ends; the values alone set the limits.
    axes.set_yscale("log", nonpositive="clip")
    axes.set_ylim(min(values) / 1.25, max(values) * 1.25)
    # over many decades numbers between them would find no place, and then there would be none at all.
    axes.yaxis.set_major_locator(LogLocator(subs=(1,) if max(values) > 1e5 * min(values) else (1, 2, 5)))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.yaxis.set_minor_formatter(NullFormatter())


def _columns(labels: Sequence[str]) -> int:
    """Return how many labels stand side by side: about 56 characters fit, a line and its gap taking six."""
    return max(1, min(len(labels), 56 // (6 + max(map(len, labels)))))


def _legend(figure: Figure, labels: Sequence[str]) -> None:
    legend = figure.legend(loc="outside upper left", ncols=_columns(labels), handlelength=2.4, borderpad=0.1, columnspacing=1.4)
    # set afterwards: matplotlib would leave out a label that begins with an underscore.
    for text, label in zip(legend.get_texts(), labels, strict=True):
        text.set_text(label)


def _short(value: float) -> str:
    if abs(value) >= 1e6:
        return f"{value / 1e6:g} M"
    return f"{value / 1e3:g} k" if abs(value) >= 1e3 else f"{value:g}"


def _svg(figure: Figure, label: str) -> str:
    buffer = io.StringIO()
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    figure.savefig(buffer, format="svg", transparent=True, metadata=nothing)
    text = buffer.getvalue()
    text = text[text.index("<svg") :].strip()
    # groups are numbered alike in every picture, and a page may not have one id twice.
    text = re.sub(r'<g id="[^"]*"', "<g", text)
    # a style element would hold for the whole page, and the page knows its fonts.
    text = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>\s*", "", text, flags=re.DOTALL)
    text = re.sub(
        r"font: ([\d.]+px) [^;\"]*|font-family: [^;\"]*; ?", lambda found: f"font-size: {found[1]}" if found[1] else "", text
    )
    text = text.replace(_INK, "currentColor")
    style = "font-family: system-ui, sans-serif; stroke-linejoin: round"
    head = f'<svg role="img" aria-label="{html.escape(label)}" style="{style}"'
    return text.replace("<svg", head, 1)
