"""Pictures of gu2021's results."""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Callable, Mapping

from capsella.papers.gu2021.deciding import values_of
from capsella.papers.gu2021.nets import (
    KERNEL_NETS,
    KERNELS,
    PAIRS_NETS,
    PARTNERS,
    TABLE1,
    TABLE5,
    compact,
    kernel,
    overlapping,
    pairs_kernel,
    partnered,
    robust,
)
from capsella.papers.paper import Gallery, Line, Panel, Plot
from capsella.papers.readings import READINGS, dig
from capsella.papers.targets import read_targets
from capsella.papers.verdicts import Evidence

_READ = {
    "mnist40": "Placed test images of MNIST",
    "affnist": "AffNIST as it is used here: shear factor of 0.2, wherever the digit fits",
    "affnist_mitterreiter": "AffNIST as mitterreiter2023's code makes it",
    "affnist_literal": "AffNIST by the paper's words: shear of 45°, shifts of 8 pixels",
}


def _line(evidence: Evidence, label: str, rows: Mapping[float, str], reading: str) -> list[Line]:
    """Return means over runs in percent, with their spread, of what has run."""
    found = {place: values_of(evidence, row, READINGS[reading]) for place, row in rows.items() if evidence.has(row)}
    if not found:
        return []
    values = [[100 * value for value in each] for each in found.values()]
    spread = tuple(statistics.stdev(each) if len(each) > 1 else 0.0 for each in values)
    return [Line(label, tuple(found), tuple(map(statistics.fmean, values)), spread)]


def _printed(label: str, name: str) -> Line:
    """Return what Table 3 prints of a net on AffNIST."""
    targets = read_targets("gu2021")
    found = {size: targets.get(f"table3/{name}-k{size}-affnist") for size in KERNELS}
    known = {float(size): float(target.value or 0.0) for size, target in found.items() if target is not None}
    return Line(label, tuple(known), tuple(known.values()), is_printed=True)


def _kernels(evidence: Evidence) -> list[Line]:
    lines = []
    for name, (net, _) in KERNEL_NETS.items():
        ours = _line(evidence, net.label, {float(size): kernel(name, size) for size in KERNELS}, "affnist")
        lines += [*ours, *([_printed(net.label, name)] if ours else [])]
    return lines


def _pairs(evidence: Evidence, *, key: Callable[[str, int], str], places: Mapping[int, float]) -> list[Line]:
    lines: list[Line] = []
    for name, net in PAIRS_NETS.items():
        lines += _line(evidence, net.label, {place: key(name, value) for value, place in places.items()}, "final")
    return lines


def _training(evidence: Evidence) -> list[Line]:
    """Return the accuracy after every epoch of one run of each of Table 1's nets."""
    lines = []
    for row, net in TABLE1.items():
        if evidence.has(robust(row)):
            history = evidence.results(robust(row))[0].history
            pairs = zip(history["step"], history["validation"], strict=True)
            points = [(float(step), 100 * (1 - value)) for step, value in pairs if value is not None and value < 1]
            lines.append(Line(net.label, tuple(step for step, _ in points), tuple(error for _, error in points)))
    return [line for line in lines if line.x]


def _data(evidence: Evidence) -> list[Panel]:
    key = robust("capsnet")
    sheets = dig(evidence.results(key)[0].measured, "gu2021.seen", "sheets") if evidence.has(key) else None
    return [Panel(label, sheets[name]) for name, label in _READ.items()] if sheets else []


def _overlaps(evidence: Evidence) -> list[Panel]:
    key = overlapping("baseline")
    sheet = dig(evidence.results(key)[0].measured, "gu2021.overlapping", "sheet") if evidence.has(key) else None
    return [Panel("Test images of MultiMNIST, and the two digits of each", sheet)] if sheet else []


def _perturbed(evidence: Evidence) -> list[Panel]:
    panels = []
    for row, net in TABLE5.items():
        key = compact("mnist", row)
        found = dig(evidence.results(key)[0].measured, "gu2021.perturbed") if evidence.has(key) else None
        if found:
            panels.append(Panel(f"{net.label}, values moved from −{found['range']} to {found['range']}", found["sheet"]))
    return panels


def _mapped(evidence: Evidence) -> list[Panel]:
    panels = []
    for row, net in TABLE5.items():
        key = compact("mnist", row)
        sheets = dig(evidence.results(key)[0].measured, "gu2021.mapped", "sheets") if evidence.has(key) else None
        if sheets:
            panels.append(Panel(f"{net.label}, between two images of a class", sheets["within"]))
            panels.append(Panel(f"{net.label}, between two classes", sheets["across"]))
    return panels


PLOTS: tuple[Plot | Gallery, ...] = (
    Gallery("figure2", "What nets are trained and tested on (Figure 2)", _data),
    Gallery("figure2-overlapping", "Overlapping digits (Figure 2c)", _overlaps),
    Plot(
        "table1-training",
        "Error on the placed test images while training, one run of each net of Table 1",
        "step",
        "error, %",
        _training,
        is_log=True,
    ),
    Plot("table3", "Accuracy on AffNIST by kernel", "kernel", "accuracy, %", _kernels, is_counted=True),
    Plot(
        "figure3",
        "Accuracy on overlapping digits by partners of an original (Figure 3)",
        "partners, as a power of ten",
        "accuracy, %",
        functools.partial(_pairs, key=partnered, places={count: math.log10(count) for count in PARTNERS}),
        is_counted=True,
    ),
    Plot(
        "kernels",
        "Accuracy on overlapping digits by kernel",
        "kernel",
        "accuracy, %",
        functools.partial(_pairs, key=pairs_kernel, places={size: float(size) for size in KERNELS}),
        is_counted=True,
    ),
    Gallery("figure4", "Drawings while a single value of a representation is moved, a value a row (Figure 4)", _perturbed),
    Gallery("figure5", "Drawings on straight lines between representations (Figure 5)", _mapped),
)
