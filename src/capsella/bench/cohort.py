"""Processes that train side by side for a measurement: started, told what to do, asked what they found, and ended.

A process answers one message with one reply.
"""

from __future__ import annotations

import contextlib
import functools
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, Self

import torch

from capsella.bench.gate import failure
from capsella.bench.runner import Worker
from capsella.train.children import interrupts_held_back, leave_the_terminal
from capsella.train.memory import is_out_of_memory

# a process has so many seconds to answer, beside what it was asked to take: the first compilation of a net may take minutes.
_PATIENCE = 300.0
# to load torch and to reach the device.
_START = 120.0
# to end by itself once nobody asks any more.
_END = 10.0


class NoAnswer(RuntimeError):
    """A process of a cohort failed or has ended; one line.

    Attributes:
        lost: whether a process is gone, and the cohort with it.
    """

    def __init__(self, message: str, *, lost: bool = False) -> None:
        super().__init__(message)
        self.lost = lost


def _serve(pipe: Any, device: str, environment: dict[str, str], threads: int) -> None:
    """Be a process of a cohort: answer until nobody asks any more."""
    # signals of a terminal and of timeout reach a whole group of processes; the one that asks ends this one.
    leave_the_terminal()
    # not at once: a compiler's locks are given back on the way out.
    signal.signal(signal.SIGTERM, _leave)
    os.environ.update(environment)
    torch.set_num_threads(threads)

    def answer(act: Callable[[], object]) -> bool:
        try:
            pipe.send(("done", act()))
        # whatever a compiler or a driver raises is said, and no reason not to measure the rest.
        except Exception as error:
            pipe.send(("failed", "out of memory" if is_out_of_memory(error) else failure(error)))
            return False
        return True

    with contextlib.suppress(EOFError, BrokenPipeError):
        worker = Worker(torch.device(device))
        if answer(worker.begin):
            while (call := pipe.recv()) is not None:
                answer(functools.partial(getattr(worker, call[0]), **call[1]))


def _leave(number: int, frame: object) -> NoReturn:
    sys.exit(128 + number)


class Cohort:
    """So many processes, from their start to their end.

    Args:
        count: how many.
        device: where they train.
        cores: of the processor, which they share.
        environment: variables that they have beside those of this process.
    """

    def __init__(self, count: int, device: torch.device, *, cores: int, environment: Mapping[str, str] | None = None) -> None:
        self.count, self.device, self.cores = count, device, cores
        self.environment = dict(environment or {})
        self.starts: tuple[float, ...] = ()
        self.context_bytes = 0
        self._members: list[tuple[Any, Any]] = []

    def __enter__(self) -> Self:
        free = _free(self.device)
        threads = max(1, self.cores // self.count)
        # a net is compiled by few of them at a time; the others find it in the cache.
        compilers = max(1, self.cores // min(self.count, 4))
        own = {"TORCHINDUCTOR_COMPILE_THREADS": str(compilers), **self.environment}
        spawn = multiprocessing.get_context("spawn")
        began = time.monotonic()
        try:
            for _ in range(self.count):
                mine, theirs = spawn.Pipe()
                process = spawn.Process(target=_serve, args=(theirs, str(self.device), own, threads), daemon=True)
                with interrupts_held_back():
                    process.start()
                    theirs.close()
                    self._members.append((process, mine))
            self.starts = tuple(at - began for at in self._answers(range(self.count), _START))
            self.context_bytes = max(0, free - _free(self.device)) // self.count
        except BaseException as error:
            self.__exit__(type(error))
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None = None, *_: object) -> None:
        for process, pipe in self._members:
            with contextlib.suppress(OSError):
                pipe.send(None)
            pipe.close()
            # nobody waits for what it is at.
            if kind is not None and kind is not GeneratorExit:
                process.terminate()
        end = time.monotonic() + _END
        for process, _ in self._members:
            process.join(max(0.0, end - time.monotonic()))
            if process.is_alive():
                process.kill()
                process.join()
        self._members = []

    def ask(self, calls: Sequence[tuple[str, dict[str, Any]]], *, patience: float = _PATIENCE) -> list[Any]:
        """Tell the first processes what to do, all at once, and return their answers.

        Raises:
            NoAnswer: with the first failure, after all have answered.
        """
        for (_, pipe), call in zip(self._members, calls, strict=False):
            pipe.send(call)
        return self._answers(range(len(calls)), patience)

    def _answers(self, members: Sequence[int], patience: float) -> list[Any]:
        end = time.monotonic() + patience
        found, problem = [], ""
        for number in members:
            process, pipe = self._members[number]
            try:
                if not pipe.poll(max(0.0, end - time.monotonic())):
                    raise NoAnswer(f"fails: a process did not answer within {patience:.0f} s", lost=True)
                kind, value = pipe.recv()
            except (EOFError, OSError) as error:
                process.join(5)
                raise NoAnswer(f"fails: a process ended with exit code {process.exitcode}", lost=True) from error
            found.append(value)
            problem = problem or (value if kind == "failed" else "")
        if problem:
            raise NoAnswer(problem)
        return found


def _free(device: torch.device) -> int:
    return int(torch.cuda.mem_get_info(device)[0]) if device.type == "cuda" else 0
