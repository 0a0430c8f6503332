"""How long runs will take: as long as they took, or as long as others of their size did on the same device."""

from __future__ import annotations

import functools
import json
import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from capsella import routing
from capsella.data.registry import load_data
from capsella.models import create_model, evaluating
from capsella.papers.recipe import Job
from capsella.papers.results import Result
from capsella.train.plan import Plan
from capsella.train.processes import accelerator

# of a large product's rate, what the training of such nets reaches where nothing is known; a run also has to start.
_EFFICIENCY, _START = 0.15, 3.0
# an image costs a step so many times what it costs to be looked at.
_FORWARD_AND_BACK = 3


@dataclass(frozen=True)
class Estimate:
    """Device seconds of some jobs.

    Attributes:
        seconds: by the job's name.
        known: jobs whose recipe has run on this device.
        scaled: jobs that are compared with others that have.
        rough: jobs for which there is nothing but the device's rate.
    """

    seconds: Mapping[str, float]
    known: int
    scaled: int
    rough: int

    @property
    def total(self) -> float:
        """Seconds of all of them."""
        return sum(self.seconds.values())

    def describe(self) -> str:
        """Say in one line how long it will take, and how well that is known."""
        parts = [
            text
            for count, text in (
                (self.known, f"{self.known} by their own records"),
                (self.scaled, f"{self.scaled} by others' on this device"),
                (self.rough, f"{self.rough} roughly, by the device's rate alone"),
            )
            if count
        ]
        runs = f"{len(self.seconds)} run{'' if len(self.seconds) == 1 else 's'}"
        return f"about {self.total / 60:.1f} device minutes for {runs} ({', '.join(parts)})"


def estimate(jobs: Sequence[Job], results: Iterable[Result], device: str, *, root: str | None = None) -> Estimate:
    """Return how long jobs will take on a device.

    Args:
        jobs: to be run.
        results: of earlier runs, on any device.
        device: as results name it.
        root: the data directory.
    """
    there = [
        result for result in results if _place(result.environment["device"]) == _place(device) and result.device_seconds > 0
    ]
    own: dict[str, list[float]] = {}
    rates: dict[str, list[float]] = {}
    wanted = {_kind(job.plan) for job in jobs}
    for result in there:
        own.setdefault(result.fingerprint, []).append(result.device_seconds)
        plan = _plan_of(result)
        # only where it is needed: a network is built for every kind of run.
        if plan is not None and _kind(plan) in wanted:
            rates.setdefault(_kind(plan), []).append(_work(plan, root) / result.device_seconds)
    seconds, counts = {}, {"known": 0, "scaled": 0, "rough": 0}
    for job in jobs:
        kind = _kind(job.plan)
        if job.fingerprint in own:
            counts["known"] += 1
            seconds[job.name] = statistics.fmean(own[job.fingerprint])
        elif kind in rates:
            counts["scaled"] += 1
            seconds[job.name] = _work(job.plan, root) / statistics.median(rates[kind])
        else:
            counts["rough"] += 1
            seconds[job.name] = _START + _work(job.plan, root) / (_EFFICIENCY * _peak(job.plan.train.device))
    return Estimate(seconds, **counts)


def _plan_of(result: Result) -> Plan | None:
    """Return how a run went; None where a setting of then is no longer there, which says nothing of what is now."""
    try:
        return Plan.of(result.plan)
    except (TypeError, ValueError):
        return None


def _kind(plan: Plan) -> str:
    """Tell which runs reach about the same rate: a tiny net's says nothing of a large one's, nor EM's of agreement's."""
    told = ("routing", "channels", "backbone")
    return ", ".join([plan.model, *(f"{name}={plan.model_options.get(name)}" for name in told)])


def _place(device: str) -> str:
    """Return a device without the number of threads, which is what is left to a run and not what there is."""
    return device.partition(",")[0]


def _work(plan: Plan, root: str | None) -> float:
    """Return the operations of a training, counted in one forward pass of the reference."""
    images, shape, classes = _size(plan.data, json.dumps(plan.data_options, sort_keys=True), plan.split, root)
    options = {"num_classes": classes, **plan.model_options}
    seen = plan.train.epochs * images
    if plan.train.steps is not None:
        seen = min(seen, plan.train.steps * plan.train.batch_size)
    return float(_FORWARD_AND_BACK * _operations(plan.model, json.dumps(options, sort_keys=True), shape) * seen)


@functools.cache
def _operations(name: str, options: str, shape: tuple[int, int, int]) -> int:
    from torch.utils.flop_counter import FlopCounterMode

    given: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in json.loads(options).items()
    }
    # how it starts changes nothing, and one start needs data.
    given.pop("init", None)
    model = create_model(name, image_size=shape[1:], in_channels=shape[0], **given)
    with evaluating(model), routing.prefer("reference"), FlopCounterMode(display=False) as count:
        model(torch.zeros(1, *shape))
    return int(count.get_total_flops())


@functools.cache
def _size(data: str, options: str, split: str, root: str | None) -> tuple[int, tuple[int, int, int], int]:
    loaded = load_data(data, split=split, root=root, **json.loads(options))
    channels, height, width = loaded.image_shape
    return len(loaded), (channels, height, width), loaded.num_classes


@functools.cache
def _peak(where: str) -> float:
    """Return the operations a second of a large matrix product, on a GPU in half precision."""
    device = torch.device(accelerator(where))
    n, dtype = (8192, torch.bfloat16) if device.type == "cuda" else (1024, torch.float32)
    a = torch.ones(n, n, device=device, dtype=dtype)
    best = float("inf")
    for _ in range(4):
        start = time.perf_counter()
        # reading a value waits for the device.
        float((a @ a)[0, 0])
        best = min(best, time.perf_counter() - start)
    del a
    if device.type == "cuda":
        # the runs are in other processes.
        torch.cuda.empty_cache()
    return 2 * n**3 / best
