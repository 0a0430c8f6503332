"""How fast batches are drawn and a set is loaded, each beside the least time that its bytes need."""

from __future__ import annotations

import collections
import functools
import gzip
import itertools
import os
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from capsella.bench.timing import Reading, WrongValues, bandwidth, rate, record, seconds
from capsella.data import ImageData, Places, load_data
from capsella.data.digits import MNIST
from capsella.data.sources import locate, obtain
from capsella.errors import DataError

BATCH_SIZE = 128

# labels and indices of a sample.
_SMALL = 16


@dataclass(frozen=True)
class Pipeline:
    """A way to draw batches.

    Attributes:
        name: what is drawn.
        set_name: registry name of the data.
        options: of ``load_data``.
        read: bytes of originals behind one image.
        exact: whether every device gives the same values; maps with fractions may round to the next grey level.
    """

    name: str
    set_name: str
    options: dict[str, Any]
    read: int
    exact: bool = True


PIPELINES = (
    Pipeline("mnist40", "mnist40", {}, 784),
    Pipeline("mnist, ±2 shift", "mnist", {"augment": "shift"}, 784),
    Pipeline("mnist, affnist-style", "mnist", {"augment": "affnist"}, 784, exact=False),
    Pipeline("multimnist, both digits", "multimnist", {"partners": 100}, 2 * 784),
)


def measure(
    device: torch.device, *, root: str | os.PathLike[str] | None = None, batch_size: int = BATCH_SIZE, images: int | None = None
) -> dict[str, Any]:
    """Check every pipeline against the CPU, then time it; return a record.

    Args:
        device: where batches are drawn.
        root: the data directory.
        batch_size: images of a batch.
        images: how many are drawn in each repeat; about a second's worth if None.

    Raises:
        WrongValues: a pipeline does not give the CPU's values; nothing was timed.
    """
    speed = bandwidth(device)
    done = list(readings(device, speed, root=root, batch_size=batch_size, images=images))
    return record("data", device, done, **facts(speed, batch_size))


def facts(speed: float, batch_size: int = BATCH_SIZE) -> dict[str, Any]:
    """Return what a record says beside its readings."""
    return {"batch_size": batch_size, "bandwidth": speed}


def guarded(
    device: torch.device,
    speed: float,
    *,
    root: str | os.PathLike[str] | None = None,
    images: int | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> Iterator[Reading]:
    """Give the readings one by one; wrong values, and data that are not there, are the last one's problem."""
    try:
        for reading in readings(device, speed, root=root, images=images):
            say(f"data, {reading.name}: timed")
            yield reading
    except (WrongValues, DataError) as error:
        problem = f"wrong: {error}" if isinstance(error, WrongValues) else f"no data: {error}"
        say(f"data: {problem}")
        yield Reading("drawing batches", "images/s", 0.0, 0.0, 0.0, 0, problem=problem)


def readings(
    device: torch.device,
    speed: float,
    *,
    root: str | os.PathLike[str] | None = None,
    batch_size: int = BATCH_SIZE,
    images: int | None = None,
) -> Iterator[Reading]:
    """Check every pipeline, then time one after the other; ``speed`` is the device's bandwidth, the rest as for ``measure``."""
    loaded = [(pipeline, load_data(pipeline.set_name, root=root, **pipeline.options)) for pipeline in PIPELINES]
    for pipeline, data in loaded:
        if batch_size > len(data):
            raise ValueError(f"batch_size={batch_size} is too large; expected at most {len(data)}, the images of {data.name}")
        check(pipeline, data, device)
    for pipeline, data in loaded:
        yield from _time(pipeline, data, device, batch_size, images, speed)
    yield _loading(device, root)


def check(pipeline: Pipeline, data: ImageData, device: torch.device) -> None:
    """Raise ``WrongValues`` unless the device draws what the CPU draws: no speed is reported for wrong images."""
    chosen = torch.arange(0, len(data), max(1, len(data) // 512))
    truth, other = data.batch(chosen, epoch=3, seed=5), data.batch(chosen, epoch=3, seed=5, device=device)
    for name in ("images", "labels", "parts", "part_labels"):
        expected, found = getattr(truth, name), getattr(other, name)
        if expected is None:
            continue
        wrong = (expected != found.cpu()).double().mean()
        # a grey level that lies at one half in float32 may round either way, about one pixel in a hundred thousand.
        if wrong > (0 if pipeline.exact else 1e-4):
            raise WrongValues(f"{pipeline.name}: {wrong:.2%} of {name} differ between {device} and the CPU; nothing is timed")


def _time(
    pipeline: Pipeline, data: ImageData, device: torch.device, batch_size: int, images: int | None, speed: float
) -> Iterator[Reading]:
    channels, height, width = data.image_shape
    parts = data.batch([0]).parts
    written = 1 if parts is None else 1 + parts.shape[1]
    moved = pipeline.read + written * 4 * channels * height * width + _SMALL
    says = f"{moved:,} bytes an image at {speed / 1e9:,.0f} GB/s"
    many, few = (1_000_000, 50_000) if device.type == "cuda" else (30_000, 20_000)

    def through(batches: int) -> None:
        epochs = (data.batches(batch_size, epoch=epoch, device=device, drop_last=True) for epoch in itertools.count())
        collections.deque(itertools.islice(itertools.chain.from_iterable(epochs), batches), maxlen=1)

    def singly(batches: int) -> None:
        for k in range(batches):
            data.batch(order[k * batch_size % 32_768 :][:batch_size], epoch=k, device=device)

    order = torch.randperm(len(data), device=device)[: 32_768 + batch_size]
    for name, run, amount in (("batches()", through, many), ("batch()", singly, few)):
        batches = -(-(images or amount) // batch_size)
        times = seconds(functools.partial(run, batches), device)
        yield rate(f"{pipeline.name}, {name}", "images/s", batches * batch_size, times, floor=speed / moved, floor_says=says)


def _loading(device: torch.device, root: str | os.PathLike[str] | None) -> Reading:
    """Time the way from local files to the device; the floor is decompressing the same bytes and nothing else."""
    obtain(MNIST, Places.find(root))
    times = seconds(lambda: load_data("mnist", root=root).to(device), device, repeats=5, warm_up=1)
    places = Places.find(root)
    files = [(file, locate(file, places.folders("mnist"))) for file in MNIST.files if file.name.startswith("train")]
    paths = [path for _, path in files if path is not None]
    floor = statistics.median(seconds(functools.partial(_read, paths), device, repeats=5, warm_up=1))
    packed, content = sum(path.stat().st_size for path in paths), sum(file.size for file, _ in files)
    says = f"reading {packed:,} bytes and decompressing them to {content:,}"
    return Reading("load mnist train", "s", statistics.median(times), min(times), max(times), len(times), floor, says)


def _read(paths: list[Path]) -> None:
    for path in paths:
        content = path.read_bytes()
        if path.suffix == ".gz":
            gzip.decompress(content)
