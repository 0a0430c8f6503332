"""An epoch of MNIST with its evaluation, by the trainer itself; and everything about training in one go."""

from __future__ import annotations

import itertools
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence

import torch

from capsella.bench.clock import CLOCK
from capsella.bench.step import EPOCH, Job, StepReading, clear, measure
from capsella.data import load_data
from capsella.errors import DataError
from capsella.models import create_model
from capsella.train import fit


def everything(
    todo: Sequence[Job],
    device: torch.device,
    *,
    budget: float,
    epoch: bool,
    root: str | os.PathLike[str] | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> Iterator[StepReading]:
    """Time steps, and an epoch of MNIST if that is wanted and the data are there."""
    yield from measure(todo, device, budget=budget, say=say)
    if not epoch:
        return
    model, batch_size, precision = ("capsnet", 128, "bf16") if device.type == "cuda" else ("capsnet_small", 128, "float32")
    try:
        yield measure_epoch(device, model=model, batch_size=batch_size, precision=precision, root=root, say=say)
    except DataError as error:
        say(f"{model}, MNIST epoch: {error}")
        yield StepReading(EPOCH, model, 28, batch_size, precision, fast=True, problem=f"no data: {error}")


def measure_epoch(
    device: torch.device,
    *,
    model: str = "capsnet",
    batch_size: int = 128,
    precision: str = "bf16",
    root: str | os.PathLike[str] | None = None,
    epochs: int = 4,
    say: Callable[[str], None] = lambda line: None,
) -> StepReading:
    """Time epochs of the trainer over MNIST's 60,000 images, each with an evaluation on the 10,000 of the test set.

    The first epoch, in which the step is compiled and captured, is left out.

    Args:
        device: where.
        model: registry name.
        batch_size: images of a step.
        precision: of the training.
        root: the data directory.
        epochs: to train, at least two.
        say: is told what goes on.
    """
    start = time.perf_counter()
    data, test = (load_data("mnist", split=split, root=root).to(device) for split in ("train", "test"))
    torch.manual_seed(0)
    net = create_model(model)
    run = fit(
        net,
        data,
        validation=test,
        progress=False,
        epochs=epochs,
        batch_size=batch_size,
        precision=precision,
        fast=True,
        device=device.type,
    )
    record = run.record or {}
    ends = [entry["seconds"] for entry in record["history"]]
    seconds = [after - before for before, after in itertools.pairwise(ends)]
    accuracy = record["history"][-1]["validation"]
    clear(device)
    say(f"{model}, MNIST epoch, {precision}: {accuracy:.2%} right after {epochs}, in {time.perf_counter() - start:.1f} s")
    return StepReading(
        EPOCH,
        model,
        28,
        batch_size,
        precision,
        fast=True,
        routed_by=", ".join(text.rpartition(": ")[2] for text in run.config["implementations"]),
        parameters=run.config["parameters"],
        median=statistics.median(seconds),
        low=min(seconds),
        high=max(seconds),
        repeats=len(seconds),
        how=CLOCK,
        memory=record["peak_memory"] or 0,
        accuracy=accuracy,
    )
