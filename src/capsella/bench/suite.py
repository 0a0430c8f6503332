"""Everything that is measured, one kind after the other, with sizes and times that fit one sitting."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from capsella.bench import attention, data, growth, routing, step, together
from capsella.bench.epoch import everything
from capsella.bench.timing import bandwidth

KINDS = ("routing", "step", "growth", "attention")
"""What is measured where nobody says."""

ASKED_FOR = ("together", "data")
"""What is measured only by name: one starts processes and wants the device for itself for minutes, one needs MNIST."""


@dataclass(frozen=True)
class Kind:
    """One kind of readings, not yet taken.

    Attributes:
        name: of the record.
        readings: are measured as they are drawn.
        facts: what the record says beside them, of those that were taken.
    """

    name: str
    readings: Iterator[Any]
    facts: Callable[[list[Any]], dict[str, Any]]


def kinds(
    device: torch.device,
    *,
    only: Sequence[str] = KINDS,
    quick: bool = False,
    root: str | os.PathLike[str] | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> Iterator[Kind]:
    """Give the kinds in order; each is measured when its readings are drawn.

    Args:
        device: where.
        only: names of ``KINDS`` and ``ASKED_FOR``.
        quick: small sizes and short timings.
        root: the data directory.
        say: is told what goes on.
    """
    if "routing" in only:
        yield _routing(device, quick, say)
    if "step" in only:
        whole = device.type == "cuda" and not quick
        todo = step_jobs(device, quick=quick) + (step.large_jobs() if whole else [])
        steps = everything(todo, device, budget=0.05 if quick else 0.3, epoch=whole, root=root, say=say)
        yield Kind("step", steps, lambda done: step.facts(device, done))
    if "growth" in only:
        yield Kind("growth", growth.measure(device, quick=quick, budget=0.02 if quick else 0.05, say=say), growth.facts)
    if "attention" in only:
        found = attention.measure(device, quick=quick, budget=0.02 if quick else 0.1, say=say)
        yield Kind("attention", found, lambda done: attention.facts(device, done))
    if "together" in only:
        yield _together(device, quick, say)
    if "data" in only:
        speed = bandwidth(device)
        drawn = data.guarded(device, speed, root=root, images=256 if quick else None, say=say)
        yield Kind("data", drawn, lambda _: data.facts(speed))


def step_jobs(device: torch.device, *, quick: bool = False) -> list[step.Job]:
    """List the training steps: on a GPU all nets in bf16, and in float32 CapsNet and ConvNet-Avg on small images alone."""
    if quick:
        return step.jobs(device, models=("capsnet_small",), sizes=(28,), batch_size=8)
    if device.type != "cuda":
        return step.jobs(device, models=(*step.SMALL_NETS, *step.NETS))
    exact = step.jobs(device, models=("capsnet", "convnet_avg"), sizes=(28,), precisions=("float32",))
    return step.jobs(device, precisions=("bf16",)) + exact


def _routing(device: torch.device, quick: bool, say: Callable[[str], None]) -> Kind:
    todo = routing.problems(device, quick=quick)
    speeds = routing.Speeds.of(device, list(dict.fromkeys(problem.precision for problem in todo)))
    compiled = () if quick else routing.COMPILED
    readings = routing.measure(todo, device, budget=0.02 if quick else 0.1, compiled=compiled, speeds=speeds, say=say)
    return Kind("routing", readings, lambda _: routing.facts(device, speeds))


def _together(device: torch.device, quick: bool, say: Callable[[str], None]) -> Kind:
    todo, counts, ways = together.tasks(device, quick=quick), together.counts(device, quick=quick), together.ways(device)
    readings = together.measure(todo, device, at_once=counts, ways=ways, seconds=0.1 if quick else 1.0, say=say)
    return Kind("together", readings, together.facts)
