"""What one process of a measurement does: runs that take steps in turn, each on a stream of its own.

Several runs in one process are what the seeds of a recipe stacked in one program would be.
"""

from __future__ import annotations

import contextlib
import math
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from capsella.bench.step import clear
from capsella.data import Batch, ImageData
from capsella.data.tensors import from_tensors
from capsella.models import create_model
from capsella.models.registry import entry
from capsella.train.config import TrainConfig
from capsella.train.objectives import choose_loss
from capsella.train.processes import fabric_package, make_fabric, products_in, trying_algorithms
from capsella.train.step import Stepper

# steps of a run before it is timed: warm-up, capture and a replay are all among them.
_FIRST = 5
# looks at the clock of one reading, at least: the second is where the window begins.
_LOOKS = 4
# timed steps whose mean loss is compared with that of other runs.
_CHECKED = 8
# readings of the rate within one window.
_SLICES = 5


@dataclass(frozen=True)
class Task:
    """A run to take steps of.

    Attributes:
        model: registry name; images have its default size.
        batch_size: images of a step.
        precision: of the training.
        fast: as ``--fast``.
        device: ``"cpu"`` or ``"cuda"``.
        batches: of one pass over the made images.
    """

    model: str
    batch_size: int
    precision: str
    fast: bool
    device: str
    batches: int = 64


@dataclass(frozen=True)
class Track:
    """What one process did while it was timed.

    Attributes:
        stamps: when it looked at the clock, which all processes of a machine share.
        steps: that it had taken by then, those of all its runs together.
        losses: of each run, the mean of its first timed steps.
        memory: most bytes that it held.
    """

    stamps: tuple[float, ...]
    steps: tuple[int, ...]
    losses: tuple[float, ...]
    memory: int


def rates(tracks: Sequence[Track], slices: int = _SLICES) -> list[float]:
    """Return the steps per second of all processes together, in equal parts of the time in which all were running.

    Each one's first look at the clock is left out, up to which it was getting going; between two looks steps count evenly.

    Example:
        >>> one = Track((0.0, 1.0, 2.0, 3.0), (0, 1, 2, 3), (), 0)
        >>> two = Track((0.5, 1.5, 2.0, 4.0), (0, 2, 4, 8), (), 0)
        >>> [round(rate, 3) for rate in rates([one, two], slices=3)]
        [5.0, 3.0, 3.0]
    """
    begin = max(track.stamps[1] for track in tracks)
    end = min(track.stamps[-1] for track in tracks)
    if end <= begin:
        return []
    edges = np.linspace(begin, end, slices + 1)
    taken = sum(np.interp(edges, track.stamps, track.steps) for track in tracks)
    return [float(each) for each in np.diff(taken) / ((end - begin) / slices)]


def runs_per_minute(count: int, start_up: float, steps: int, rate: float) -> float:
    """Return how many runs a minute so many at once make, each of so many steps.

    Example:
        >>> runs_per_minute(4, 20.0, 1000, 100.0)
        4.0
    """
    return 60 * count / (start_up + steps * count / rate)


class _Runner:
    """One run inside a process: a network, its stepper and batches without end."""

    def __init__(self, task: Task, device: torch.device) -> None:
        sizes = entry(task.model).sizes
        config = TrainConfig(batch_size=task.batch_size, precision=task.precision, fast=task.fast, device=task.device)
        torch.manual_seed(0)
        model = create_model(task.model, **dict[str, Any](sizes)).train()
        self.device, self.rate, self.batch_size = device, config.lr, task.batch_size
        self.stepper = Stepper(make_fabric(config), model, config, choose_loss(config, model, several=False))
        self._taken = 0
        self._first: Tensor | None = None
        self._stream: Any = None
        if device.type == "cuda":
            # of its own, also for the capture: graphs that were captured on one stream share a workspace of the libraries, and
            # two of them at a time would write over each other's.
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            if self.stepper.replayed is not None:
                self.stepper.replayed.stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._batches = _endless(_made(task, sizes).to(device), task.batch_size)
        # what was put on the device so far, and later the cleared sums, came by another stream.
        _wait(device)
        for _ in range(_FIRST):
            self.step()
        _wait(device)
        self.stepper.sums.zero_()
        _wait(device)

    def step(self) -> None:
        with torch.cuda.stream(self._stream) if self._stream is not None else contextlib.nullcontext():
            self.stepper(next(self._batches), rate=self.rate, progress=0.0, of=self.batch_size)
            self._taken += 1
            if self._taken == _FIRST + _CHECKED:
                self._first = self.stepper.sums.clone()

    @property
    def loss(self) -> float:
        """The mean of the first timed steps; NaN before they are over."""
        return math.nan if self._first is None else float(self._first[0] / self._first[2])


def _made(task: Task, sizes: Mapping[str, int]) -> ImageData:
    count, side = task.batch_size * task.batches, sizes["image_size"]
    rng = torch.Generator().manual_seed(0)
    images = torch.randint(256, (count, sizes["in_channels"], side, side), generator=rng, dtype=torch.uint8)
    return from_tensors(images, torch.arange(count) % sizes["num_classes"])


def _endless(data: ImageData, batch_size: int) -> Iterator[Batch]:
    epoch = 0
    while True:
        yield from data.batches(batch_size, epoch=epoch)
        epoch += 1


class Worker:
    """What a process of a cohort can be told to do."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.runners: list[_Runner] = []

    def begin(self) -> float:
        """Load the rest and reach the device; return when that was done."""
        fabric_package()
        torch.zeros(1, device=self.device)
        return time.monotonic()

    def build(self, task: Task, count: int) -> list[float]:
        """Have so many runs ready to be timed; return the seconds that each new one took."""
        seconds = []
        with products_in(task.precision), trying_algorithms(task.fast):
            while len(self.runners) < count:
                start = time.monotonic()
                self.runners.append(_Runner(task, self.device))
                seconds.append(time.monotonic() - start)
        return seconds

    def run(self, task: Task, count: int, begin: float, seconds: float, chunk: int, threads: int) -> Track:
        """Take steps of the first ``count`` runs in turn, from ``begin`` on the clock and for so long."""
        if self.device.type == "cpu":
            torch.set_num_threads(threads)
        active = self.runners[:count]
        with products_in(task.precision):
            time.sleep(max(0.0, begin - time.monotonic()))
            stamps, steps = [time.monotonic()], [0]
            while len(stamps) < _LOOKS or stamps[-1] < begin + seconds or steps[-1] < _CHECKED * count:
                for _ in range(chunk):
                    for runner in active:
                        runner.step()
                _wait(self.device)
                stamps.append(time.monotonic())
                steps.append(steps[-1] + chunk * len(active))
        return Track(tuple(stamps), tuple(steps), tuple(runner.loss for runner in active), _memory(self.device))

    def drop(self) -> None:
        """Let go of all runs."""
        for runner in self.runners:
            runner.stepper.leave()
        self.runners = []
        clear(self.device)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _memory(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.max_memory_reserved(device)
    try:
        import resource
    except ImportError:  # a system that does not count
        return 0
    # kilobytes, but on macOS bytes.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
