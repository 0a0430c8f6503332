"""Do capsules help here? A capsule net and honest ConvNets, trained alike, measured on the same images.

Every network sees the same images in the same order, once per seed, with the same settings; nothing is selected. The test
images are then measured as they are and under affine maps that no network was trained on.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from capsella.data import ImageData
from capsella.data.augment import Affine
from capsella.models import CapsuleNet
from capsella.train.folder import RunFolder
from capsella.train.health import NonFiniteLoss
from capsella.train.plan import Plan, run_plan
from capsella.train.record import write_json
from capsella.train.run import Run

SMALL = ("capsnet_small", "convnet_small", "lenet")
FULL = ("capsnet", "aff_capsnet", "convnet_fc", "convnet_avg")
RESULT = "comparison.json"


@dataclass(frozen=True)
class Contestant:
    """One network and all its runs.

    Attributes:
        model: registry name.
        has_capsules: whether it is a capsule net.
        runs: one per seed.
        accuracies: on the test images, one per seed.
        affine: accuracy on transformed test images, one per seed; empty where images cannot be transformed.
    """

    model: str
    has_capsules: bool
    runs: tuple[Run, ...]
    accuracies: tuple[float, ...]
    affine: tuple[float, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return what JSON can hold: figures of the run records only."""
        records = [run.record or {} for run in self.runs]
        first = records[0]
        return {
            "model": self.model,
            "has_capsules": self.has_capsules,
            "parameters": first["config"]["parameters"],
            "seeds": [record["config"]["train"]["seed"] for record in records],
            "status": [record["status"] for record in records],
            "accuracies": list(self.accuracies),
            "affine_accuracies": list(self.affine),
            "images_per_second": [record["images_per_second"] for record in records],
            # a GPU counts what is used; for a CPU there is the estimate of a step.
            "memory": first["peak_memory"] or first["memory_estimate"],
            "images": first["images"],
            "epochs": first["epochs"],
        }


def under_affine_maps(data: ImageData) -> ImageData | None:
    """Return the same images, each turned (±20°), sheared (±0.2), scaled (0.8 to 1.2) and moved (by up to a fourteenth).

    Every image has one draw that is always the same. None where images cannot be transformed: single numbers, and images
    whose parts would stay behind.
    """
    _, height, width = data.image_shape
    composed = data.batch([0]).parts is not None
    if composed or min(height, width) < 8 or data.options.get("normalise") == "none":
        return None
    maps = Affine(rotation=20, shear=0.2, scale=(0.8, 1.2), position="shift", shift=min(height, width) / 14)
    # drawn once for every image, as training images of epoch 0 and seed 0 are.
    return dataclasses.replace(data, augment=maps, training=True, digest=f"{data.digest}, affine")


def compare(
    plan: Plan,
    models: Sequence[str],
    seeds: Sequence[int],
    folder: Path,
    *,
    root: str | os.PathLike[str] | None = None,
    progress: bool = True,
    begin: Callable[[str, int], None] = lambda model, seed: None,
) -> list[Contestant]:
    """Train every model once per seed and measure it; runs that are in the folder already are not trained again.

    Args:
        plan: data and settings, the same for all; its model is replaced.
        models: registry names.
        seeds: of the runs.
        folder: where all runs and ``comparison.json`` go.
        root: the data directory.
        progress: show how far each run has come.
        begin: called before each run.
    """
    splits = plan.load(root)
    test = splits["test"]
    if test is None:
        raise ValueError("plan has test=False; expected True: a comparison is made on the test set")
    moved = under_affine_maps(test)
    found = []
    for model in models:
        runs, accuracies, affine = [], [], []
        for seed in seeds:
            begin(model, seed)
            own = dataclasses.replace(plan, model=model, train=dataclasses.replace(plan.train, seed=seed))
            run = finished_run(folder / f"{model}-seed{seed}", own, splits, progress)
            runs.append(run)
            measured = (run.record or {}).get("test")
            accuracies.append(measured["accuracy"] if measured else run.evaluate(test).accuracy)
            if moved is not None:
                affine.append(run.evaluate(moved).accuracy)
        found.append(Contestant(model, isinstance(runs[0].model, CapsuleNet), tuple(runs), tuple(accuracies), tuple(affine)))
        write_json(folder / RESULT, {"data": plan.data, "networks": [each.as_dict() for each in found]})
    return found


def finished_run(folder: Path, plan: Plan, splits: dict[str, ImageData | None], progress: bool = True) -> Run:
    """Train, go on with what was interrupted, or read what is there.

    Args:
        folder: of the run.
        plan: what it should be; a run of another plan, or on other data, is a ``ValueError``.
        splits: what ``plan.load`` gave.
        progress: show how far it has come.
    """
    place = RunFolder(folder)
    if place.holds_a_run and place.read_record() is not None:
        old = Plan.of(place.read_config()["plan"])
        digests = {part: None if split is None else split.digest for part, split in splits.items()}
        known = {part: None if split is None else split["digest"] for part, split in place.read_config()["data"].items()}
        if old != plan or digests != known:
            what = "other settings" if old != plan else "other data"
            raise ValueError(f"folder={str(folder)!r} holds a run with {what}; choose another folder")
        return Run.load(folder)
    with contextlib.suppress(NonFiniteLoss):
        return run_plan(plan, folder, splits=splits, resume=place.holds_a_run, progress=progress)
    # its record says so, and its last good checkpoint is measured like any other.
    return Run.load(folder)
