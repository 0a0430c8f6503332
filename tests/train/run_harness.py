"""What tests of runs share: tiny data, a signal at a step, processes that can be killed, what makes two runs the same."""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import capsella
from capsella.data import ImageData, from_tensors
from capsella.models import Model, create_model
from capsella.train import Interrupted, Run
from capsella.train.checkpoint import Checkpoint, read_newest
from capsella.train.processes import fabric_package
from capsella.train.step import Stepper

SIDE = 21
TIMES = ("seconds", "watch_seconds", "images_per_second")


def tiny_data(count: int = 10, *, side: int = SIDE, seed: int = 1, split: str = "train", **options: Any) -> ImageData:
    """Return noise of two classes, which differ in brightness enough to be told apart."""
    images = torch.rand(count, 1, side, side, generator=torch.Generator().manual_seed(seed))
    labels = torch.arange(count) % 2
    return from_tensors(images * 0.8 + 0.2 * labels[:, None, None, None], labels, split=split, **options)


def tiny_model(name: str = "capsnet_small", *, side: int = SIDE, **options: Any) -> Model:
    """Return a model with the same weights every time."""
    torch.manual_seed(7)
    return create_model(name, image_size=side, num_classes=2, **options)


def train(
    folder: Path | None = None,
    *,
    make: Callable[[], torch.nn.Module] = tiny_model,
    data: ImageData | None = None,
    **settings: Any,
) -> Run:
    """Train quietly on the CPU; three steps an epoch unless told otherwise."""
    # whatever a caller's generator has been through, a run must not depend on it.
    torch.manual_seed(int.from_bytes(os.urandom(4), "little"))
    chosen = {"epochs": 2, "batch_size": 4, "log_every": 2, "device": "cpu", "progress": False, "folder": folder, **settings}
    # sums are taken in another order by two threads than by the one of a forked process.
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return capsella.fit(make(), tiny_data() if data is None else data, **chosen)
    finally:
        torch.set_num_threads(threads)


def interrupted(patch: pytest.MonkeyPatch, step: int, *arguments: Any, number: int = signal.SIGTERM, **options: Any) -> str:
    """Train until a signal comes in the middle of a step, counted from 1; return what the run said."""
    # elsewhere the signal would end the tests.
    assert threading.current_thread() is threading.main_thread()
    take, taken = Stepper.__call__, []

    def signalled(self: Stepper, *args: Any, **kwargs: Any) -> None:
        taken.append(1)
        if len(taken) == step:
            signal.raise_signal(number)
        take(self, *args, **kwargs)

    with patch.context() as inner:
        inner.setattr(Stepper, "__call__", signalled)
        with pytest.raises(Interrupted) as stop:
            train(*arguments, **options)
    assert stop.value.signal == number
    return str(stop.value)


def newest(folder: Path) -> Checkpoint:
    return read_newest(folder / "checkpoints")


def metrics(folder: Path) -> list[dict[str, Any]]:
    """Return the lines of metrics.jsonl; every one must be whole."""
    content = (folder / "metrics.jsonl").read_text()
    assert content.endswith("\n") or not content
    return [json.loads(line) for line in content.splitlines()]


def timeless(value: Any) -> Any:
    """Return JSON content without what a clock decided."""
    if isinstance(value, dict):
        return {key: timeless(each) for key, each in value.items() if key not in TIMES}
    return [timeless(each) for each in value] if isinstance(value, list) else value


def assert_same_tensors(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert sorted(found) == sorted(expected)
    for name, tensor in expected.items():
        assert tensor.dtype == found[name].dtype, name
        assert torch.equal(tensor, found[name]), f"{name} differs by up to {(tensor - found[name]).abs().max()}"


def assert_same_run(found: Path, expected: Path) -> None:
    """Compare two runs on disk: weights, optimisers, random state, position, metrics and record, bit for bit."""
    one, other = newest(found), newest(expected)
    assert_same_tensors(one.weights, other.weights)
    assert_same_tensors(one.tensors, other.tensors)
    assert timeless(one.facts["position"]) == timeless(other.facts["position"])
    assert timeless(metrics(found)) == timeless(metrics(expected))
    records = [json.loads((folder / "record.json").read_text()) for folder in (found, expected)]
    for key in ("status", "steps", "epochs", "images", "history", "test"):
        assert timeless(records[0][key]) == timeless(records[1][key]), key
    assert other.weights, "nothing was compared"


def load() -> None:
    """Load what the first step of a run loads, so that processes that are forked from this one need not, each anew."""
    importlib.import_module("torch._dynamo")
    fabric_package()


class Child:
    """A function in a forked process, which costs no new interpreter.

    Args:
        act: what it does; an exception is exit code 1, and its traceback is what the process says.
    """

    def __init__(self, act: Callable[[], object]) -> None:
        self.code: int | None = None
        self._text = ""
        load()
        sys.stdout.flush()
        sys.stderr.flush()
        # a pipe, which is no file: what a process says does not depend on what it may write.
        self._ear, mouth = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            self._act(act, mouth)
        os.close(mouth)

    def _act(self, act: Callable[[], object], mouth: int) -> None:
        code = 1
        try:
            os.dup2(mouth, 2)
            sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
            # whatever becomes of the test, this process does not outlive it for long.
            signal.alarm(120)
            # a thread pool does not survive a fork.
            torch.set_num_threads(1)
            act()
            code = 0
        except SystemExit as stop:
            code = int(stop.code or 0)
        except BaseException:
            traceback.print_exc()
        finally:
            try:
                sys.stderr.flush()
            finally:
                # without pytest's own clearing up.
                os._exit(code)

    def wait(self, seconds: float = 60) -> int:
        """Return the exit code, negative for a signal."""
        end = time.monotonic() + seconds
        while not self.ended:
            if time.monotonic() > end:
                os.kill(self.pid, signal.SIGKILL)
                os.waitpid(self.pid, 0)
                raise TimeoutError(f"still running after {seconds} s")
            time.sleep(0.002)
        return self.code or 0

    @property
    def ended(self) -> bool:
        if self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.code = os.waitstatus_to_exitcode(status) if pid else None
        return self.code is not None

    def kill(self, number: int = signal.SIGKILL) -> None:
        if not self.ended:
            os.kill(self.pid, number)

    @property
    def said(self) -> str:
        """What it wrote to stderr, once it has ended."""
        if self._ear >= 0:
            with os.fdopen(self._ear, "rb") as ear:
                self._text = ear.read().decode()
            self._ear = -1
        return self._text


def until(true: Callable[[], object], seconds: float = 30) -> None:
    """Wait for something that another process does."""
    end = time.monotonic() + seconds
    while not true():
        if time.monotonic() > end:
            raise TimeoutError(f"did not come to pass within {seconds} s")
        time.sleep(0.002)
