"""Pictures of yang2021's results."""

from __future__ import annotations

import functools
import statistics
from collections.abc import Mapping, Sequence

from capsella.papers.paper import Gallery, Line, Panel, Plot
from capsella.papers.readings import dig
from capsella.papers.results import Result
from capsella.papers.verdicts import Evidence
from capsella.papers.yang2021.nets import METHODS, SETS, cell, pairs

# what the paper's Figure 3d shows of MultiMNIST.
_SHOWN = 20_000
_WHOSE = {
    "seen": "Test images of Fashion-MNIST",
    "own": "drawn by a DR net from its own capsules",
    "beside": "drawn from the capsules of an L2 net without a decoder",
    "other": "drawn from the capsules of a second DR net",
}


def _mean_line(label: str, curves: Sequence[tuple[Sequence[float], Sequence[float]]]) -> list[Line]:
    """Return the mean over runs at the places that all of them have, with its spread."""
    common = sorted(set.intersection(*(set(x) for x, _ in curves))) if curves else []
    if not common:
        return []
    values = [[dict(zip(x, y, strict=True))[place] for x, y in curves] for place in common]
    spread = tuple(statistics.stdev(each) if len(each) > 1 else 0.0 for each in values)
    return [Line(label, tuple(common), tuple(map(statistics.fmean, values)), spread)]


def _errors(result: Result, last: float) -> tuple[list[float], list[float]]:
    points = [
        (float(step), 100 * (1 - accuracy))
        for step, accuracy in zip(result.history["step"], result.history["validation"], strict=True)
        if accuracy is not None and step <= last
    ]
    return [step for step, _ in points], [error for _, error in points]


def _convergence(evidence: Evidence, *, rows: Mapping[str, str], last: float = float("inf")) -> list[Line]:
    lines: list[Line] = []
    for label, row in rows.items():
        if evidence.has(row):
            lines += _mean_line(label, [_errors(result, last) for result in evidence.results(row)])
    return lines


def _of_table2(data: str) -> dict[str, str]:
    found = {}
    for decoder in (True, False) if data != "cifar10" else (False,):
        for method, name in METHODS.items():
            found[name if decoder or data == "cifar10" else f"{name}, no decoder"] = cell(data, method, decoder=decoder)
    return found


def _spread_of_couplings(evidence: Evidence, *, rows: Mapping[str, str]) -> list[Line]:
    """Return how the couplings of one seed are spread, in equal parts from the lowest to the highest."""
    lines = []
    for label, row in rows.items():
        found = dig(evidence.results(row)[0].measured, "yang2021.couplings") if evidence.has(row) else None
        if found and len(found["shares"]) > 1:
            width = (found["highest"] - found["lowest"]) / len(found["shares"])
            places = tuple(found["lowest"] + (k + 0.5) * width for k in range(len(found["shares"])))
            lines.append(Line(label, places, tuple(found["shares"])))
    return lines


_LOOKED = {
    ("all", "first"): "wrong after the first iteration",
    ("all", "last"): "wrong after the last iteration",
    ("one", "last"): "wrong, trained with one iteration",
}


def _early(evidence: Evidence, *, data: str) -> list[Line]:
    row = cell(data, "dr")
    lines: list[Line] = []
    if not evidence.has(row):
        return lines
    for (which, part), label in _LOOKED.items():
        found = [dig(result.measured, "yang2021.early", which) for result in evidence.results(row)]
        curves = [([look["step"] for look in seen], [look[part] for look in seen]) for seen in found if seen]
        lines += _mean_line(label, curves)
    return lines


def _drawings(evidence: Evidence) -> list[Panel]:
    row = cell("fashion", "l2", decoder=False)
    sheets = dig(evidence.results(row)[0].measured, "yang2021.drawn", "sheets") if evidence.has(row) else None
    return [Panel(label, sheets[name]) for name, label in _WHOSE.items()] if sheets else []


PLOTS: tuple[Plot | Gallery, ...] = (
    Gallery("figure2", "What the decoder of a DR net draws from three nets' capsules (Figure 2)", _drawings),
    *(
        Plot(
            f"figure3-{data}",
            f"Error on the test images of {name} while training (Figure 3{letter})",
            "step",
            "error, %",
            functools.partial(_convergence, rows=_of_table2(data)),
            is_log=True,
        )
        for letter, (data, name) in zip("abc", SETS.items(), strict=True)
    ),
    Plot(
        "figure3-multimnist",
        "Error on the test images of MultiMNIST in the first 20,000 steps (Figure 3d)",
        "step",
        "error, %",
        functools.partial(_convergence, rows={name: pairs(method) for method, name in METHODS.items()}, last=_SHOWN),
        is_log=True,
    ),
    *(
        Plot(
            f"negative-{key}",
            f"How the couplings of nets on {name} are spread in the end; all start at 1",
            "coupling",
            "share",
            functools.partial(_spread_of_couplings, rows=rows),
            is_share=True,
        )
        for key, name, rows in (
            ("fashion", SETS["fashion"], {METHODS[method]: cell("fashion", method) for method in ("l2", "l1")}),
            ("cifar10", SETS["cifar10"], {METHODS[m]: cell("cifar10", m, decoder=False) for m in ("l2", "l1")}),
            ("multimnist", "MultiMNIST", {METHODS[method]: pairs(method) for method in ("l2", "l1")}),
        )
    ),
    *(
        Plot(
            f"assumption2-{data}",
            f"How often the longest capsule is wrong in the first epochs on {name}",
            "step",
            "share of the images",
            functools.partial(_early, data=data),
            is_share=True,
        )
        for data, name in SETS.items()
    ),
)
