"""Pictures of peer2022's results."""

from __future__ import annotations

import contextlib
import functools
import math
import statistics
from collections.abc import Sequence
from dataclasses import replace

from capsella.papers.drawing import line_by_layer
from capsella.papers.paper import Line, Plot
from capsella.papers.peer2022.controls import CONTROL_DEPTHS, CONTROLS, control
from capsella.papers.peer2022.deciding import EM_DEPTHS
from capsella.papers.readings import dig
from capsella.papers.targets import read_targets
from capsella.papers.verdicts import Evidence, Missing


def _spread(values: Sequence[float]) -> float:
    return statistics.stdev(values) if len(values) > 1 else 0.0


def _by_depth(evidence: Evidence, label: str, rows: dict[int, str]) -> list[Line]:
    found = {}
    for depth, row in rows.items():
        # a run that came to no number leaves a gap, not an empty plot.
        with contextlib.suppress(Missing):
            found[depth] = evidence.values(row)
    if not found:
        return []
    means = tuple(statistics.fmean(values) for values in found.values())
    return [Line(label, tuple(map(float, found)), means, tuple(_spread(values) for values in found.values()))]


def _accuracies(evidence: Evidence, *, table: str, depths: Sequence[int]) -> list[Line]:
    targets = read_targets("peer2022")
    lines: list[Line] = []
    for data, name in (("mnist", "MNIST"), ("fashion", "Fashion-MNIST")):
        for bias in ("no-bias", "bias"):
            rows = {depth: f"{table}/{data}-{bias}-depth{depth}" for depth in depths}
            label = f"{name}, {bias.replace('-', ' ')}"
            ours = _by_depth(evidence, label, {depth: f"peer2022/{row}" for depth, row in rows.items()})
            printed = tuple((targets[row].value or 0) / 100 for row in rows.values())
            lines += [*ours, Line(label, tuple(map(float, depths)), printed, is_printed=True)] if ours else []
    return lines


def _curves(evidence: Evidence, *, depths: Sequence[int]) -> list[Line]:
    lines = []
    for depth in depths:
        for bias in ("no-bias", "bias"):
            row = f"peer2022/table3/mnist-{bias}-depth{depth}"
            if evidence.has(row):
                # one seed, as in the paper's figure.
                curve = evidence.results(row)[0].curve
                lines.append(Line(f"{depth} layers, {bias.replace('-', ' ')}", tuple(curve["step"]), tuple(curve["accuracy"])))
    return lines


def _starts(evidence: Evidence) -> list[Line]:
    """Draw the step at which learning starts, of the nets of which it does."""
    lines = []
    for bias in ("no-bias", "bias"):
        found = {}
        for depth in EM_DEPTHS:
            with contextlib.suppress(Missing):
                found[depth] = evidence.values(f"peer2022/table3/mnist-{bias}-depth{depth}", "starts")
        began = {depth: steps for depth, steps in found.items() if all(map(math.isfinite, steps))}
        never = [str(depth) for depth in found if depth not in began]
        if began:
            label = bias.replace("-", " ") + (f" (never with {' and '.join(never)} layers)" if never else "")
            means, spreads = (tuple(map(of, began.values())) for of in (statistics.fmean, _spread))
            lines.append(Line(label, tuple(map(float, began)), means, spreads))
    return lines


def _controls(evidence: Evidence) -> list[Line]:
    lines: list[Line] = []
    for style, (name, (label, _)) in enumerate(CONTROLS.items()):
        found = _by_depth(evidence, label, {depth: control(name, depth) for depth in CONTROL_DEPTHS})
        lines += [replace(line, style=style) for line in found]
    return lines


def _lengths(evidence: Evidence, *, part: str) -> list[Line]:
    lines: list[Line] = []
    for style, (name, (label, _)) in enumerate(CONTROLS.items()):
        row = control(name, max(CONTROL_DEPTHS))
        if evidence.has(row):
            found = dig(evidence.results(row)[0].measured, "peer2022.inside", "start", part)
            lines += line_by_layer(label, found, style=style)
    return lines


PLOTS = (
    Plot(
        "table2",
        "Test accuracy by depth, routing by agreement",
        "capsule layers",
        "test accuracy",
        functools.partial(_accuracies, table="table2", depths=(2, 3, 4, 5)),
        is_share=True,
        is_counted=True,
    ),
    Plot(
        "table3",
        "Test accuracy by depth, EM routing",
        "capsule layers",
        "test accuracy",
        functools.partial(_accuracies, table="table3", depths=EM_DEPTHS),
        is_share=True,
        is_counted=True,
    ),
    *(
        Plot(
            f"figure2-depth{depth}",
            f"Training accuracy of EM on MNIST, {depth} capsule layers (Figure 2{letter})",
            "step",
            "training accuracy",
            functools.partial(_curves, depths=(depth,)),
            is_share=True,
        )
        for letter, depth in zip("abcde", EM_DEPTHS, strict=True)
    ),
    Plot(
        "figure2-starts",
        "Step at which EM nets begin to learn MNIST, by capsule layers",
        "capsule layers",
        "step",
        _starts,
        is_log=True,
        is_counted=True,
    ),
    Plot(
        "controls",
        "Test accuracy on MNIST by depth, each control",
        "capsule layers",
        "test accuracy",
        _controls,
        is_share=True,
        is_counted=True,
    ),
    Plot(
        "controls-lengths",
        "Mean length of the capsules of nets with 10 layers before training, where it is not 0",
        "layer",
        "mean length",
        functools.partial(_lengths, part="lengths"),
        is_log=True,
        is_counted=True,
    ),
    Plot(
        "controls-gradients",
        "Gradient of the weights between layers of nets with 10 layers before training, where it is not 0; some have none",
        "routing layer",
        "gradient",
        functools.partial(_lengths, part="gradients"),
        is_log=True,
        is_counted=True,
    ),
)
