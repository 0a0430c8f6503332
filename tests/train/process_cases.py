"""Trainings for one process or several, run by ``torchrun`` with a folder: what two processes do beside what one does."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from capsella.data import ImageData, from_tensors
from capsella.data.multimnist import Pairs
from capsella.data.registry import Content, assemble
from capsella.train import Interrupted, NonFiniteLoss, Run
from capsella.train.step import Stepper

sys.path.insert(0, str(Path(__file__).resolve().parent))
from run_harness import tiny_data, tiny_model, train


def composed(count: int = 10) -> ImageData:
    """Return two shapes over each other, as MultiMNIST has digits."""
    random = np.random.default_rng(0)
    shapes = torch.from_numpy((random.random((count, 1, 28, 28)) * 255).astype(np.uint8))
    content = Content(Pairs(shapes, torch.arange(count) % 10, partners=1, shift=4, seed="made"), tuple("0123456789"))
    return assemble(content, "made", "train", {}, None, "unit")


def for_composed() -> nn.Module:
    torch.manual_seed(7)
    from capsella.models import create_model

    return create_model("capsnet_small", image_size=36)


def spoilt() -> ImageData:
    """Return images of which one is no number: it falls to one process, and the other must not wait for it."""
    images = torch.rand(10, 1, 21, 21, generator=torch.Generator().manual_seed(1))
    images[3] = torch.nan
    return from_tensors(images, torch.arange(10) % 2)


QUADRATIC = partial(tiny_model, routing="quadratic")
CASES: dict[str, dict[str, Any]] = {
    # 4 and 4 and 2 images
    "even": {"validation": tiny_data(7, seed=2, split="val"), "test": tiny_data(1, seed=3, split="test")},
    # 4 and 4 and 3: one process has two images of the last batch, the other one
    "uneven": {"data": tiny_data(11)},
    # 5 and 5 and 1: a process has no image of the last batch
    "fewer images than processes": {"data": tiny_data(11), "batch_size": 5, "epochs": 3},
    "one image a step": {"data": tiny_data(3), "batch_size": 1},
    "sgd": {"data": tiny_data(11), "optimiser": "sgd", "lr": 0.01, "weight_decay": 1e-3, "clip": 0.1},
    "composed": {"make": for_composed, "data": composed(), "epochs": 1},
    # a penalty that counts: each process has its share of it.
    "quadratic adam": {"make": QUADRATIC, "data": tiny_data(9), "coupling_steps": 2, "coupling_penalty": 0.5},
    "quadratic ascent": {"make": QUADRATIC, "data": tiny_data(9), "coupling_optimiser": "ascent", "coupling_penalty": 0.5},
    "own net": {"make": partial(tiny_model, "convnet_small"), "data": tiny_data(9)},
}
# 15 steps, long enough for the processes to ask each other whether to stop; without BatchNorm, with dropout.
LONG: dict[str, Any] = {"make": partial(tiny_model, "convnet_fc512", side=17), "data": tiny_data(9, side=17), "epochs": 5}


def run_case(name: str, folder: Path) -> Run:
    return train(folder / name, **{"epochs": 2, "log_every": 1, **CASES[name]})


def stopped_in(rank: int, folder: Path) -> None:
    """Train until one process alone gets a signal; the first says it, the others end without a word."""
    take, steps = Stepper.__call__, []

    def signalled(self: Stepper, *args: Any, **kwargs: Any) -> None:
        steps.append(1)
        if len(steps) == 4 and self.fabric.global_rank == rank:
            signal.raise_signal(signal.SIGTERM)
        take(self, *args, **kwargs)

    Stepper.__call__ = signalled  # type: ignore[method-assign]
    try:
        said(folder, lambda: train(folder / "stopped", **LONG))
    finally:
        Stepper.__call__ = take  # type: ignore[method-assign]


def said(folder: Path, act: Callable[[], object]) -> None:
    """Note what a process raised."""
    rank = os.environ.get("RANK", "0")
    try:
        act()
        words = "nothing"
    except (Interrupted, NonFiniteLoss, SystemExit, ValueError) as error:
        words = f"{type(error).__name__}: {error}"
    with (folder / f"said by {rank}").open("a") as file:
        file.write(f"{words}\n")


def watch(folder: Path) -> None:
    """Note every file of a run that this process opens to write, makes, renames or removes."""
    log = (folder / f"written by {os.environ.get('RANK', '0')}").open("a", buffering=1)

    def heard(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            writes = isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        else:
            writes = event in ("os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.truncate")
        if writes and isinstance(arguments[0], str | os.PathLike):
            path = Path(arguments[0])
            # libraries may keep a cache, each process its own.
            if path.is_relative_to(folder) and path.parent != folder and not path.is_relative_to(folder / "cache"):
                log.write(f"{event} {path}\n")

    sys.addaudithook(heard)


def main(folder: Path) -> None:
    watch(folder)
    for name in CASES:
        run_case(name, folder)
    train(folder / "whole", **LONG)
    stopped_in(1, folder)
    said(folder, lambda: train(folder / "stopped", resume=True, **LONG))
    said(folder, lambda: train(folder / "stopped", resume=True, **{**LONG, "lr": 0.5}))
    said(folder, lambda: train(folder / "spoilt", data=spoilt(), batch_size=4))


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):
        main(Path(sys.argv[1]))
