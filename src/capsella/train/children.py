"""The processes of many runs: started, looked at, asked to stop, waited for; each carries out one plan, or several in turn."""

from __future__ import annotations

import contextlib
import functools
import json
import math
import multiprocessing
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing import connection, resource_tracker
from pathlib import Path
from typing import Any, Self

import torch

from capsella.errors import DataError, RunError
from capsella.train import turns
from capsella.train.folder import RunFolder
from capsella.train.health import NonFiniteLoss
from capsella.train.plan import Plan, run_plan
from capsella.train.processes import accelerator, products_in
from capsella.train.record import Event
from capsella.train.run import Run
from capsella.train.signals import Interrupted, StopWish

LOOK = 0.2
"""Seconds between two looks at the processes."""

# a run that is asked to stop has so many seconds for its step and its checkpoint; a first step is also compiled.
_GRACE = 90.0


@dataclass(frozen=True)
class Outcome:
    """How one of many runs ended.

    Attributes:
        plan: what it was.
        folder: where it lies.
        run: the run; None where it failed.
        problem: why it failed, in one line; empty for a run that did not.
        details: the traceback of its process.
        was_there: whether it was finished before.
    """

    plan: Plan
    folder: Path
    run: Run | None = None
    problem: str = ""
    details: str = ""
    was_there: bool = False


@dataclass(frozen=True)
class Standing:
    """How far a run has come.

    Attributes:
        plan: what it is.
        folder: where it lies.
        step: that its metrics say last; 0 while they say nothing.
        steps: at which it ends at the latest; 0 while that is not known.
        event: the last line of its metrics that is no look at its layers, None while there is none.
    """

    plan: Plan
    folder: Path
    step: int
    steps: int
    event: Event | None


@dataclass
class Program:
    """A process.

    Attributes:
        process: of the operating system.
        life: a pipe whose end here is open as long as this process is there.
        runs: that have not ended.
    """

    process: Any
    life: Any
    runs: int

    def leave(self) -> None:
        """Count one run less; after the last, wait for the process."""
        self.runs -= 1
        if self.runs:
            return
        self.process.join(_GRACE)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        # not before: a process that is about to end would be asked to stop.
        self.life.close()


@dataclass
class Child:
    """A run and the process that carries it out."""

    plan: Plan
    folder: Path
    program: Program
    pipe: Any
    steps: int = 0

    def standing(self) -> Standing:
        """Return how far it has come."""
        found = standing(self.plan, self.folder, self.steps)
        self.steps = found.steps
        return found

    def outcome(self) -> Outcome:
        """Return what came of it; it has spoken or ended."""
        try:
            problem, details = self.pipe.recv()
        except (EOFError, OSError):
            # it has ended, and all its runs with it.
            self.program.process.join(_GRACE)
            code = self.program.process.exitcode or 0
            ended = f"was killed by {_name(-code)}" if code < 0 else f"ended with exit code {code}"
            again = f"; {self.folder} can be gone on with" if RunFolder(self.folder).holds_a_run else ""
            problem, details = f"its process {ended}{again}", ""
        self.pipe.close()
        self.program.leave()
        if problem:
            return Outcome(self.plan, self.folder, problem=problem, details=details)
        return Outcome(self.plan, self.folder, Run.load(self.folder))


def _name(number: int) -> str:
    return signal.Signals(number).name if number in list(signal.Signals) else f"signal {number}"


def standing(plan: Plan, folder: Path, steps: int = 0) -> Standing:
    """Return how far a run has come, as its folder says.

    Args:
        plan: what it is.
        folder: where it lies.
        steps: at which it ends, where that is known already.
    """
    place = RunFolder(folder)
    if not steps and place.holds_a_run:
        with contextlib.suppress(DataError, ValueError):
            steps = _last_step(place.read_config())
    event = _last_event(place.metrics)
    return Standing(plan, folder, event["step"] if event else 0, steps, event)


def _last_step(config: dict[str, Any]) -> int:
    train = config["train"]
    all_epochs = train["epochs"] * math.ceil(config["data"]["train"]["images"] / train["batch_size"])
    return int(min(all_epochs, train["steps"] or all_epochs))


def _last_event(metrics: Path) -> Event | None:
    """Return the last whole line of a file that another process is writing to, but for what it says of single layers."""
    try:
        with metrics.open("rb") as file:
            # a deep net's layers take some thousand characters.
            file.seek(max(0, metrics.stat().st_size - 65536))
            lines = [line for line in file.read().split(b"\n")[:-1] if b'"event": "watch"' not in line]
        event = json.loads(lines[-1])
    except (OSError, ValueError, IndexError):
        return None
    return event if isinstance(event, dict) and "step" in event else None


class Children:
    """The processes; none of them outlives the ``with`` block.

    Args:
        threads: of each.
        root: the data directory.
        environment: variables that they have beside those of this process.
        after: called there with the folder of a run that has ended.
    """

    def __init__(
        self, threads: int, root: str | None, environment: Mapping[str, str], after: Callable[[Path], None] | None = None
    ) -> None:
        self.threads, self.root, self.environment, self.after = threads, root, dict(environment), after
        self.running: list[Child] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None and issubclass(kind, KeyboardInterrupt):
            # asked for a second time: what is on disk is sound at any moment.
            for program in self._programs():
                program.process.kill()
        for _outcome in self.stopped():
            pass

    def start(self, jobs: Sequence[tuple[Plan, Path]]) -> None:
        """Start a process for one run, or for several that take turns in it."""
        spawn = multiprocessing.get_context("spawn")
        life, theirs = spawn.Pipe()
        pipes = [spawn.Pipe() for _ in jobs]
        todo = [(plan, folder, end) for (plan, folder), (_, end) in zip(jobs, pipes, strict=True)]
        given = (theirs, todo, self.root, self.threads, self.environment, self.after)
        process = spawn.Process(target=_be, args=given, daemon=True)
        with interrupts_held_back():
            process.start()
            program = Program(process, life, len(jobs))
            for end in (theirs, *(end for _, _, end in todo)):
                end.close()
            for (plan, folder), (mine, _) in zip(jobs, pipes, strict=True):
                self.running.append(Child(plan, folder, program, mine))

    def _programs(self) -> list[Program]:
        return list({id(child.program): child.program for child in self.running}.values())

    def ended(self, seconds: float) -> Iterator[Outcome]:
        """Wait so long for the end of any of them."""
        by_pipe = {child.pipe: child for child in self.running}
        for pipe in connection.wait(list(by_pipe), seconds):
            child = by_pipe[pipe]
            self.running.remove(child)
            yield child.outcome()

    def stopped(self) -> Iterator[Outcome]:
        """Ask all to stop, wait for them, and end those that do not."""
        for program in self._programs():
            # once: a second signal would not be held back.
            program.process.terminate()
        end = time.monotonic() + _GRACE
        while self.running:
            yield from self.ended(LOOK)
            if time.monotonic() > end:
                for program in self._programs():
                    program.process.kill()


@contextlib.contextmanager
def interrupts_held_back() -> Iterator[None]:
    """Start processes that Ctrl-C does not reach, from their first moment; ``leave_the_terminal`` is for them to call.

    A new process is of its parent's group, and loads torch before it can say otherwise; what is held back here is held back
    there as well.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    # which lets interrupts through again once it has started, and would do so before the first process is there.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def leave_the_terminal() -> None:
    """Hear no Ctrl-C in a process of its own: it reaches all of a terminal's, and the one that started this one tells it."""
    with contextlib.suppress(AttributeError, OSError):
        os.setsid()
    # one that came before is dropped, not only held back.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(AttributeError):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def _be(
    life: Any,
    todo: Sequence[tuple[Plan, Path, Any]],
    root: str | None,
    threads: int,
    environment: Mapping[str, str],
    after: Callable[[Path], None] | None,
) -> None:
    """Be the process of some runs, each with a pipe of its own."""
    leave_the_terminal()
    threading.Thread(target=_stop_with, args=(life,), daemon=True).start()
    # before torch has any thread but this one.
    torch.set_flush_denormal(True)
    # before the device is reached, and the compiler is loaded, which starts so many helpers.
    os.environ.update({**environment, "TORCHINDUCTOR_COMPILE_THREADS": str(threads)})
    torch.set_num_threads(threads)
    if len(todo) == 1:
        _carry_out(*todo[0], root, after)
        return
    # the same for all: what a run finds when it begins is what it puts back when it ends, while others go on.
    with products_in(todo[0][0].train.precision):
        turns.in_turns([functools.partial(_carry_out, *each, root, after) for each in todo])


def _carry_out(plan: Plan, folder: Path, pipe: Any, root: str | None, after: Callable[[Path], None] | None) -> None:
    """Carry one run out; say at the end what went wrong, or nothing."""
    problem, details = "", ""
    try:
        if turns.is_shared():
            if number := StopWish().received:
                raise Interrupted("stopped before its first step: the same again begins it", number)
            if accelerator(plan.train.device) == "cuda":
                turns.take_a_stream("cuda")
        # its record says so, and its last good checkpoint is there.
        with contextlib.suppress(NonFiniteLoss):
            run_plan(plan, folder, root=root, resume=RunFolder(folder).holds_a_run, progress=False)
        if after is not None:
            after(folder)
    # whatever it is, the runs beside this one go on.
    except (Exception, SystemExit) as error:
        known = isinstance(error, RunError | ValueError | TypeError) and str(error)
        problem = ("" if known else f"{type(error).__name__}: ") + str(error).strip().partition("\n")[0]
        details = traceback.format_exc()
    # where nobody is left to hear it, the folder says it.
    with contextlib.suppress(OSError):
        pipe.send((problem, details))


def _stop_with(life: Any) -> None:
    """Ask this process to stop, in the orderly way, once the one that started it is gone."""
    try:
        life.recv()
    except (EOFError, OSError):
        os.kill(os.getpid(), signal.SIGTERM)
