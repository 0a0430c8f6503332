"""Several runs in one program: each in a thread of its own, one at a time, in turn.

A run that hands its turn on between two steps need not be written as one of many. Only one thread acts at any time, and the
random generators, which are a program's and not a thread's, are put away and brought back with the turn: each run draws what it
would draw alone. On a GPU each has a stream of its own: what a run has asked of the device goes on while the others act, and
kernels of several runs share the device.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from capsella.train.signals import StopWish, listen_through

# seconds of a turn, at least: to hand it on takes a hundredth of that.
_LEAST = 1e-3

_here = threading.local()


def hand_on() -> None:
    """Let the other runs of this program have their turn; between two steps, and nothing where a run is alone."""
    turn: _Turn | None = getattr(_here, "turn", None)
    if turn is not None:
        turn.hand_on()


def is_shared() -> bool:
    """Whether other runs are, or were, in this program: what is counted for a program is not this run's alone."""
    return getattr(_here, "turn", None) is not None


def in_turns(acts: Sequence[Callable[[], object]], *, on_gpu: bool) -> None:
    """Let each act in a thread of its own, all in turn, until the last is over.

    A signal that asks this program to stop asks each of them.

    Args:
        acts: what to do; none may raise.
        on_gpu: give each a stream of its own.
    """
    queue: deque[_Turn] = deque()
    turns = [_Turn(queue) for _ in acts]
    with StopWish() as wish:
        threads = [
            threading.Thread(target=_act, args=(act, turn, wish, on_gpu), name=f"run {number}")
            for number, (act, turn) in enumerate(zip(acts, turns, strict=True))
        ]
        for thread in threads:
            thread.start()
        queue.extend(turns)
        if queue:
            queue.popleft().begin()
        for thread in threads:
            thread.join()


def _act(act: Callable[[], object], turn: _Turn, wish: StopWish, on_gpu: bool) -> None:
    _here.turn = turn
    listen_through(wish)
    turn.wait()
    try:
        if on_gpu:
            torch.cuda.set_stream(torch.cuda.Stream())  # type: ignore[no-untyped-call]
        act()
    finally:
        turn.end()


class _Turn:
    """A thread's place in the round; who has the turn is alone with the queue of those who wait for it.

    Args:
        queue: of all.
    """

    def __init__(self, queue: deque[_Turn]) -> None:
        self._queue = queue
        self._ready = threading.Semaphore(0)
        self._since = 0.0

    def begin(self) -> None:
        """Give it the turn."""
        self._ready.release()

    def wait(self) -> None:
        """Wait for the turn."""
        self._ready.acquire()
        self._since = time.monotonic()

    def hand_on(self) -> None:
        """Give the turn to the next and wait until it comes round."""
        if not self._queue or time.monotonic() - self._since < _LEAST:
            return
        kept = _random_state()
        following = self._queue.popleft()
        self._queue.append(self)
        following.begin()
        self.wait()
        _put_random_state(kept)

    def end(self) -> None:
        """Give the turn away for good."""
        if self._queue:
            self._queue.popleft().begin()


def _random_state() -> list[Tensor]:
    # to ask for a GPU's would reach for the GPU, where a run on a CPU has no business.
    used = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return [torch.get_rng_state(), *(torch.cuda.get_rng_state_all() if used else [])]


def _put_random_state(kept: list[Tensor]) -> None:
    cpu, *gpus = kept
    torch.set_rng_state(cpu)
    for number, state in enumerate(gpus):
        torch.cuda.set_rng_state(state, number)
