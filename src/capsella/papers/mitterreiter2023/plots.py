"""Pictures of mitterreiter2023's results."""

from __future__ import annotations

import functools
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from capsella.papers.mitterreiter2023.cure_plots import CURE_PLOTS
from capsella.papers.mitterreiter2023.deciding import all_layers, lives
from capsella.papers.mitterreiter2023.nets import GROWTH, VARIANTS, net, variant
from capsella.papers.mitterreiter2023.sweep_plots import SWEEP_PLOTS
from capsella.papers.paper import Gallery, Line, Plot, Trees
from capsella.papers.readings import dig
from capsella.papers.targets import read_targets
from capsella.papers.verdicts import Evidence, Missing

_NET = net()
_VIEWS = {
    "rotation": ("turned images", "degrees"),
    "translation": ("moved images", "pixels"),
    "shear": ("sheared images", "degrees"),
    "scale": ("enlarged images", "factor"),
}
_OVER_TRAINING = {
    "dead": ("Dead capsules of each layer while the net learns, share", "share of the capsules", False),
    "gradient": ("Gradient that reaches a capsule of each layer while the net learns", "norm, mean over capsules", True),
    "weight_gradient": ("Gradient of a pair's weights while the net learns", "norm, mean over pairs", True),
}


_TREES = (
    ("figure2", "Parse tree of an affine digit (Figure 2)", "image"),
    ("figure3-mean", "Parse trees of affine digits, mean (Figure 3a and c)", "mean"),
    ("figure3-std", "Parse trees of affine digits, standard deviation (Figure 3b and d)", "std"),
    ("figure5", "Parse trees of an affine digit, as it is and turned by 20° (Figure 5)", "pair"),
)


def _views(evidence: Evidence, *, view: str) -> list[Line]:
    if not evidence.has(_NET):
        return []
    runs = all_layers(evidence, _NET)
    lines = []
    for number in range(len(runs[0])):
        rows = [layers[number]["viewpoint"][view] for layers in runs]
        # nothing is known of a layer whose capsules are all zero.
        known = [row["correlation"] for row in rows if None not in row["correlation"]]
        if not known:
            continue
        columns = list(zip(*known, strict=True))
        places = tuple(map(float, rows[0]["amount"]))
        lines.append(Line(f"layer {number + 1}", places, tuple(map(statistics.fmean, columns)), _spread(columns)))
    return lines


def _spread(columns: Sequence[Sequence[float]]) -> tuple[float, ...]:
    return tuple(statistics.stdev(values) if len(values) > 1 else 0.0 for values in columns)


def _by_layer(evidence: Evidence, *, figures: Mapping[str, str], table: str) -> list[Line]:
    """Return figures of every layer, ours and, of the first one, the printed ones."""
    if not evidence.has(_NET):
        return []
    lines = [line for label, figure in figures.items() for line in _layers(evidence, _NET, label, figure)]
    first, figure = next(iter(figures.items()))
    return [*lines, *_printed(first, table, figure)]


def _layers(evidence: Evidence, row: str, label: str, figure: str) -> list[Line]:
    """Return a figure of every layer of a row's nets that has it; nothing where none has."""
    runs = all_layers(evidence, row)
    columns = {float(k + 1): [layers[k][figure] for layers in runs] for k in range(len(runs[0]))}
    known = {k: values for k, values in columns.items() if None not in values}
    if not known:
        return []
    return [Line(label, tuple(known), tuple(map(statistics.fmean, known.values())), _spread(list(known.values())))]


def _printed(label: str, table: str, figure: str) -> list[Line]:
    targets = read_targets("mitterreiter2023")
    found = {float(k): targets.get(f"{table}/layer{k}-{figure}") for k in (1, 2, 3, 4, 5)}
    points = [(k, target.value, target.std or 0.0) for k, target in found.items() if target and target.value is not None]
    places, values, spread = zip(*points, strict=True)
    return [Line(label, places, values, spread, is_printed=True)]


def _variants(evidence: Evidence) -> list[Line]:
    """Return the dynamics of the net as described and with one thing done otherwise."""
    rows = {"as described": _NET, **{name: variant(name) for name in VARIANTS}}
    lines = [line for name, row in rows.items() if evidence.has(row) for line in _layers(evidence, row, name, "dys")]
    return [*lines, *_printed("as described", "table1", "dys")] if lines else []


def _over_training(evidence: Evidence, *, figure: str, row: str = _NET) -> list[Line]:
    """Return a figure of each layer of one run: those of several end at different steps."""
    if not evidence.has(row):
        return []
    steps = dig(evidence.results(row)[0].measured, "mitterreiter2023.lives", "steps")
    if steps is None:
        raise Missing(row)
    lines = []
    for number, layer in enumerate(lives(evidence, row)[0], 1):
        pairs = zip(steps, layer.get(figure) or (), strict=False)
        points = [(float(step), float(value)) for step, value in pairs if value is not None and (figure == "dead" or value > 0)]
        if points:
            places, values = zip(*points, strict=True)
            lines.append(Line(f"layer {number}", places, values))
    return lines


def _growth(evidence: Evidence, *, axis: str, what: str) -> list[Line]:
    found = dig(evidence.results(GROWTH)[0].measured, "mitterreiter2023.growth", axis) if evidence.has(GROWTH) else None
    if not found:
        return []
    names = {"rba": "agreement", "mhsa": "self-attention"}
    places = tuple(map(float, found["sizes"]))
    return [Line(name, places, tuple(map(float, found[f"{key}_{what}"]))) for key, name in names.items()]


def _trees(evidence: Evidence) -> Mapping[str, Any] | None:
    for result in evidence.results(_NET) if evidence.has(_NET) else ():
        found: Mapping[str, Any] | None = result.measured.get("mitterreiter2023.trees")
        if found:
            return found
    return None


_BY_LAYER = (
    (
        "table1-dynamics",
        "table1",
        "Routing dynamics by layer (Table 1)",
        {"among live targets": "dys", "among all": "dys_literal"},
    ),
    ("table1-dead", "table2", "Dead capsules by layer (Table 2)", {"share of dead capsules": "cdr"}),
    ("table1-active", "table2", "Active capsules by layer (Table 2)", {"share of active capsules": "car"}),
)
_UNITS = {"dys": "targets", "cdr": "share of the capsules", "car": "share of the capsules"}

PLOTS: tuple[Plot | Gallery | Trees, ...] = (
    *(
        Plot(
            key,
            title,
            "layer",
            _UNITS[next(iter(figures.values()))],
            functools.partial(_by_layer, figures=figures, table=table),
            is_counted=True,
        )
        for key, table, title, figures in _BY_LAYER
    ),
    Plot(
        "variants-dynamics",
        "Routing dynamics by layer, with one thing done otherwise",
        "layer",
        "live targets",
        _variants,
        is_counted=True,
    ),
    *(Trees(f"{key}-trees", title, part, _trees) for key, title, part in _TREES),
    *(
        Plot(
            f"figure4-{view}",
            f"Correlation of capsule lengths with those of {says} (Figure 4)",
            unit,
            "correlation, mean over capsules",
            functools.partial(_views, view=view),
        )
        for view, (says, unit) in _VIEWS.items()
    ),
    *(
        Plot(
            f"training-{figure}",
            f"{title}, first run",
            "step",
            y_label,
            functools.partial(_over_training, figure=figure),
            is_log=is_log,
        )
        for figure, (title, y_label, is_log) in _OVER_TRAINING.items()
    ),
    *(
        Plot(
            f"table3-{what}-{axis}",
            f"{says} of agreement from n capsules of d values to as many, beside self-attention, along {axis}",
            axis,
            unit,
            functools.partial(_growth, axis=axis, what=what),
            is_log=True,
        )
        for what, says, unit in (
            ("parameters", "Size", "parameters"),
            ("seconds", "Time", "seconds"),
            ("memory", "Memory", "bytes"),
        )
        for axis in ("n", "d")
    ),
    *CURE_PLOTS,
    *SWEEP_PLOTS,
)
