"""One thread that runs every network: what waits for the same thing is done together, and when nothing waits it tidies up."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

P = TypeVar("P")
R = TypeVar("R")

_log = logging.getLogger(__name__)

PAUSE = 0.2
"""Seconds without a question after which it tidies up: whoever draws is asking the next one soon."""

MOST_TOGETHER = 32
MOST_WAITING = 512

Task = Callable[[Sequence[P]], Sequence[R | Exception]]
"""Takes what was asked for together; an answer that is an exception is raised where its question came from."""

# what answers it, the question, and where the answer goes.
_Asked = tuple[Task[Any, Any], Any, Future[Any]]


class BusyError(RuntimeError):
    """So much waits that one more question would not be answered in time."""


class Worker:
    """Answers questions in one thread of its own, in the order in which they came.

    Questions of the same task that wait at the same time are answered by one call of it.

    Args:
        spare: does a little work that nobody waits for; returns whether there is more of it.

    Example:
        >>> worker = Worker()
        >>> worker.submit(lambda numbers: [2 * number for number in numbers], 21).result()
        42
        >>> worker.close()
    """

    def __init__(self, spare: Callable[[], bool] = lambda: False) -> None:
        self._spare, self._has_spare = spare, True
        self._waiting: deque[_Asked] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self.batches = 0
        self._thread = threading.Thread(target=self._run, name="capsella-explore", daemon=True)
        self._thread.start()

    def submit(self, task: Task[P, R], question: P) -> Future[R]:
        """Ask; the answer comes in a future.

        Args:
            task: answers several questions at once; questions of equal tasks are put together.
            question: what is asked.
        """
        future: Future[R] = Future()
        with self._changed:
            if self._closed or len(self._waiting) >= MOST_WAITING:
                raise BusyError("too many questions wait; ask again in a moment")
            self._waiting.append((task, question, future))
            self._changed.notify()
        return future

    def close(self) -> None:
        """End the thread; what still waits is cancelled."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        quiet_from = 0.0
        while True:
            with self._changed:
                self._rest(quiet_from)
                if self._closed:
                    for _, _, future in self._waiting:
                        future.cancel()
                    return
                taken = self._take()
            if taken:
                self._answer(taken)
                quiet_from = time.monotonic() + PAUSE
            else:
                self._tidy()

    def _rest(self, quiet_from: float) -> None:
        """Wait for something to do; what nobody waits for is begun no sooner than at ``quiet_from``."""
        while not (self._waiting or self._closed):
            left = quiet_from - time.monotonic()
            if self._has_spare and left <= 0:
                return
            self._changed.wait(left if self._has_spare else None)

    def _take(self) -> list[_Asked]:
        """Return the first question and those that can be answered with it."""
        if not self._waiting:
            return []
        task = self._waiting[0][0]
        taken: list[_Asked] = []
        left: deque[_Asked] = deque()
        for each in self._waiting:
            (taken if each[0] == task and len(taken) < MOST_TOGETHER else left).append(each)
        self._waiting = left
        return [each for each in taken if each[2].set_running_or_notify_cancel()]

    def _answer(self, taken: list[_Asked]) -> None:
        self.batches += 1
        futures = [future for _, _, future in taken]
        try:
            answers = taken[0][0]([question for _, question, _ in taken])
        except Exception as error:
            for future in futures:
                future.set_exception(error)
            return
        for future, answer in zip(futures, answers, strict=True):
            if isinstance(answer, Exception):
                future.set_exception(answer)
            else:
                future.set_result(answer)

    def _tidy(self) -> None:
        try:
            self._has_spare = self._spare()
        except Exception:
            # nobody waits for it, and questions go on being answered.
            self._has_spare = False
            _log.exception("the test images can be looked at no further")
