"""How many affine test images a net tells right that has seen moved digits alone: three readings of AffNIST, streamed.

The originals are MNIST's test images. They are transformed on the device that the net is on, by the generator of the data sets
of the same names, and none is kept.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from capsella import routing
from capsella.data import ImageData
from capsella.data.affnist import transformed
from capsella.data.augment import AFFNIST, AFFNIST_LITERAL, AFFNIST_MITTERREITER, Affine
from capsella.data.samples import Stored
from capsella.data.splits import published
from capsella.models import as_prediction, evaluating
from capsella.papers.images import pack
from capsella.train.run import Run

SETS: dict[str, tuple[Affine, int]] = {
    "affnist": (AFFNIST, 32),
    "affnist_mitterreiter": (AFFNIST_MITTERREITER, 8),
    "affnist_literal": (AFFNIST_LITERAL, 8),
}
"""Each reading and how many versions there are of every original: of the first 320,000 images, of the others 80,000."""
FEW: dict[str, tuple[Affine, int]] = {"affnist": (AFFNIST, 8)}
"""The same of nets that are not in Tables 1 and 2."""

SHORT = 2000
"""Originals, one version each, that a short version is measured on: one whose steps are counted, not its epochs."""
BATCH = 500
SHOWN = COLUMNS = 10


def affine(run: Run, splits: Mapping[str, ImageData | None], device: torch.device) -> dict[str, Any]:
    """Measure a net on each reading of AffNIST, in the precision that it was trained in."""
    return _counted(run, splits, device, SETS)


def affine_few(run: Run, splits: Mapping[str, ImageData | None], device: torch.device) -> dict[str, Any]:
    """Measure a net on a quarter of the images of the first reading: its first versions."""
    return _counted(run, splits, device, FEW)


def _counted(
    run: Run, splits: Mapping[str, ImageData | None], device: torch.device, sets: Mapping[str, tuple[Affine, int]]
) -> dict[str, Any]:
    data = tested_on(splits)
    is_short = run.config["train"]["steps"] is not None
    found = {}
    for name, (reading, versions) in sets.items():
        right = total = 0
        for images, labels in moved_images(data, reading, 1 if is_short else versions, SHORT if is_short else None, device):
            right += right_answers(run, images, labels, device)
            total += len(labels)
        found[name] = {"accuracy": right / total, "images": total}
    return found


def tested_on(splits: Mapping[str, ImageData | None]) -> ImageData:
    """Return what a run was measured on."""
    data = splits["validation"]
    if data is None:
        raise ValueError("the run was measured on no test images")
    return data


def moved_images(
    data: ImageData, reading: Affine, versions: int, most: int | None, device: torch.device
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield transformed images [b, 1, 40, 40] as a net takes them, and their classes [b].

    Args:
        data: MNIST placed on a canvas; its originals are transformed.
        reading: of AffNIST.
        versions: of every original.
        most: originals, evenly taken; all if None.
        device: where they are made.
    """
    samples = data.samples.to(device)
    if not isinstance(samples, Stored):
        raise TypeError(f"the run was measured on {data.name}; expected MNIST on a canvas, which has originals")
    count = len(samples) if most is None else min(most, len(samples))
    chosen = torch.linspace(0, len(samples) - 1, count, device=device, dtype=torch.float64).round().long()
    # in float64, as the data sets of these names are made.
    exact = replace(reading, double=True)
    for version in range(versions):
        at = 0
        for images in transformed(exact, samples.originals, chosen, published(data.split), version):
            yield data.normalise(images), samples.labels(chosen[at : at + len(images)])
            at += len(images)


def right_answers(run: Run, images: Tensor, labels: Tensor, device: torch.device) -> int:
    """Count the images that a run's net tells right."""
    # what the training ran with, which on a GPU is compiled already.
    half = device.type == "cuda" and run.config["train"]["precision"] == "bf16"
    context = torch.autocast("cuda", torch.bfloat16) if half else contextlib.nullcontext()
    with routing.prefer("auto"), evaluating(run.model), context:
        answers = [as_prediction(run.model(part)).scores.argmax(dim=1) for part in torch.split(images, BATCH)]
    return int((torch.cat(answers) == labels).sum())


def seen(run: Run, splits: Mapping[str, ImageData | None], device: torch.device) -> dict[str, Any]:
    """Show what nets are trained and tested on (Figure 2): placed digits, and the first test images in each reading."""
    data = tested_on(splits)
    cpu = torch.device("cpu")
    sheets = {"mnist40": pack(data.batch(torch.arange(SHOWN)).images[:, 0], columns=COLUMNS)}
    first = replace(data, samples=data.samples.to(cpu), _elsewhere={}, _made={})
    for name, (reading, _) in SETS.items():
        images, _ = next(moved_images(first, reading, 1, None, cpu))
        sheets[name] = pack(images[:SHOWN, 0], columns=COLUMNS)
    return {"sheets": sheets}
