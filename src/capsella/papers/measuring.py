"""What is measured on a trained network beside its accuracy: functions by name, their results beside the run."""

from __future__ import annotations

import contextlib
import importlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from capsella import routing
from capsella.data import ImageData, load_data
from capsella.errors import DataError
from capsella.train.plan import Plan
from capsella.train.processes import accelerator
from capsella.train.record import as_json, write_json
from capsella.train.run import Run, moved_to

MEASURED = "measured.json"

Measure = Callable[[Run, Mapping[str, ImageData | None], torch.device], Mapping[str, Any]]
"""Takes a run, its data by their part in it, and the device that the network is on; returns what JSON can hold."""


def needing(wanted: Callable[[Plan], tuple[str, ...]]) -> Callable[[Measure], Measure]:
    """Say which data a measure needs beside the run's own; their test images are among ``splits``, by name.

    Args:
        wanted: names of data sets for a plan.
    """

    def mark(measure: Measure) -> Measure:
        vars(measure)["wanted"] = wanted
        return measure

    return mark


def measure_by_name(name: str) -> Measure:
    """Return a measure: ``peer2022.opposites`` is ``opposites`` of ``papers/peer2022/measures.py``."""
    paper, _, function = name.partition(".")
    found: Measure = getattr(importlib.import_module(f"capsella.papers.{paper}.measures"), function)
    return found


def measure(folder: Path, names: tuple[str, ...], root: str | None) -> dict[str, Any]:
    """Return what was measured on a run, and measure what was not yet; each measure is on disk once it is done.

    Args:
        folder: of a run that has ended.
        names: of the measures.
        root: the data directory.
    """
    path = folder / MEASURED
    found = _read(path)
    missing = {name: measure_by_name(name) for name in names if name not in found}
    if missing:
        run = Run.load(folder)
        plan = Plan.of(run.config["plan"])
        splits = plan.load(root)
        further = {each for function in missing.values() for each in vars(function).get("wanted", _nothing)(plan)}
        splits |= {each: load_data(each, split="test", root=root) for each in sorted(further)}
        device = torch.device(accelerator(plan.train.device))
        # a network that is built draws weights, and other runs may go on in this process; on a GPU kernels of another precision
        # than the training's would have to be compiled for a few batches.
        plainly = routing.prefer("reference") if device.type == "cuda" else contextlib.nullcontext()
        with torch.random.fork_rng(), plainly, moved_to(run.model, device):
            for name, function in missing.items():
                found[name] = as_json(dict(function(run, splits, device)))
                # after each one: a measure that fails, or is cut off, loses none before it.
                write_json(path, found)
    return found


def _nothing(plan: Plan) -> tuple[str, ...]:
    return ()


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_bytes())
    except ValueError as error:
        raise DataError(f"{path} is no JSON ({error}); take it away, and it is measured again") from error
    return dict(content)


@dataclass(frozen=True)
class Afterwards:
    """Measures a run in its own process; can be pickled.

    Attributes:
        names: of the measures, by the run's folder.
        root: the data directory.
    """

    names: Mapping[Path, tuple[str, ...]]
    root: str | None

    def __call__(self, folder: Path) -> None:
        """Measure what the run in ``folder`` is to be measured for."""
        if self.names[folder]:
            measure(folder, self.names[folder], self.root)
