"""Pictures of chen2019's results."""

from __future__ import annotations

import functools
import statistics
from collections.abc import Mapping, Sequence

from capsella.papers.chen2019.claims import ITERATIONS, iterated
from capsella.papers.chen2019.generated import panels
from capsella.papers.chen2019.nets import MODELS, SETS, WITHOUT, cell, row
from capsella.papers.chen2019.robustness import NAMES, NETS, ROUTED, WHITE
from capsella.papers.paper import Gallery, Line, Panel, Plot
from capsella.papers.readings import READINGS, dig
from capsella.papers.targets import read_targets
from capsella.papers.verdicts import Evidence

_EPOCHS = (1, 2, 3, 4, 5)
# how Table 3's targets call the three nets.
_PRINTED = {"cnn": "baseline", f"fc-gcapsnet{WITHOUT}": "fc-gcapsnet", f"conv-gcapsnet{WITHOUT}": "conv-gcapsnet"}


def mean_line(label: str, curves: Sequence[Mapping[float, float]]) -> list[Line]:
    """Return the mean over runs at the places that all of them have, with its spread."""
    places = sorted(set.intersection(*(set(curve) for curve in curves))) if curves else []
    if not places:
        return []
    values = [[curve[place] for curve in curves] for place in places]
    spread = tuple(statistics.stdev(each) if len(each) > 1 else 0.0 for each in values)
    return [Line(label, tuple(places), tuple(map(statistics.fmean, values)), spread)]


def _convergence(evidence: Evidence, *, rows: Mapping[str, str]) -> list[Line]:
    lines: list[Line] = []
    for label, each in rows.items():
        curves = [
            {
                float(step): 100 * (1 - accuracy)
                for step, accuracy in zip(result.history["step"], result.history["validation"], strict=True)
                if accuracy is not None
            }
            for result in (evidence.results(each) if evidence.has(each) else [])
        ]
        lines += mean_line(label, curves)
    return lines


def _iterations(evidence: Evidence) -> list[Line]:
    rows = {number: iterated(number) for number in ITERATIONS if evidence.has(iterated(number))}
    found = {number: [READINGS["error"](result) for result in evidence.results(each)] for number, each in rows.items()}
    known = {number: [100 * value for value in values if value is not None] for number, values in found.items()}
    some = {number: values for number, values in known.items() if values}
    if not some:
        return []
    spread = tuple(statistics.stdev(values) if len(values) > 1 else 0.0 for values in some.values())
    return [Line("CapsNet", tuple(map(float, some)), tuple(map(statistics.fmean, some.values())), spread)]


def _generated(evidence: Evidence) -> list[Line]:
    targets = read_targets("chen2019")
    lines: list[Line] = []
    for name, each in NETS.items():
        curves = []
        for result in evidence.results(each) if evidence.has(each) else []:
            found = {epoch: READINGS[f"generated{epoch}"](result) for epoch in _EPOCHS}
            curves.append({float(epoch): 100 * value for epoch, value in found.items() if value is not None})
        ours = mean_line(NAMES[name], curves)
        printed = tuple(float(targets[f"table3/{_PRINTED[name]}-epoch{epoch}"].value or 0) for epoch in _EPOCHS)
        lines += [*ours, Line(NAMES[name], tuple(map(float, _EPOCHS)), printed, is_printed=True)] if ours else []
    return lines


def _images(evidence: Evidence) -> list[Panel]:
    for each in NETS.values():
        for result in evidence.results(each) if evidence.has(each) else []:
            found = panels(dig(result.measured, "chen2019.generated") or {})
            if found:
                return found
    return []


def _under_attack(evidence: Evidence, *, part: str) -> list[Line]:
    lines: list[Line] = []
    for name, each in {**NETS, **ROUTED}.items():
        curves = []
        for result in evidence.results(each) if evidence.has(each) else []:
            found = dig(result.measured, WHITE, part)
            if found:
                curves.append(dict(zip(map(float, found["iterations"]), found["accuracies"], strict=True)))
        lines += mean_line(NAMES[name], curves)
    return lines


_SQUASHED = {"mnist": f"fc-gcapsnet{WITHOUT}", "cifar10": "fc-gcapsnet"}

PLOTS: tuple[Plot | Gallery, ...] = (
    Gallery("figure2", "What AC-GAN draws after each of its first epochs (Figure 2)", _images),
    Plot(
        "table3",
        "Error on what AC-GAN draws, by its epochs (Table 3); the paper's numbers fainter",
        "epoch of AC-GAN",
        "error, %",
        _generated,
        is_counted=True,
    ),
    *(
        Plot(
            f"supplement-figure1{suffix}",
            f"Accuracy under one perturbation of up to {bound}, by the generator's iterations (supplement, Figure 1)",
            "iteration",
            "accuracy",
            functools.partial(_under_attack, part=part),
            is_share=True,
        )
        for suffix, bound, part in (
            ("", "8 of 255", "universal-main"),
            ("-0.1", "0.1", "universal-0.1"),
            ("-0.3", "0.3", "universal-0.3"),
        )
    ),
    *(
        Plot(
            f"convergence-{data}",
            f"Error on the test images of {name} while training",
            "step",
            "error, %",
            functools.partial(
                _convergence,
                rows={
                    MODELS[_SQUASHED[data]]: cell(data, _SQUASHED[data]),
                    "the same, Sabour's squash": row("squash", f"{data}-sabour"),
                    MODELS["capsnet"]: cell(data, "capsnet"),
                    MODELS["cnn"]: cell(data, "cnn"),
                },
            ),
            is_log=True,
        )
        for data, name in SETS.items()
    ),
    Plot(
        "iterations",
        "Error of a CapsNet on MNIST by its iterations of routing",
        "iterations",
        "error, %",
        _iterations,
        is_counted=True,
    ),
)
