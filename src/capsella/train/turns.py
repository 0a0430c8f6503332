"""Several runs in one program: each in a thread of its own, one at a time, in turn.

A run that hands its turn on between two steps need not be written as one of many. Only one thread acts at any time, and what
torch keeps for a program and not for a thread, random generators above all, is put away and brought back with the turn: each
run draws what it would draw alone. On a GPU each has a stream of its own: what a run has asked of the device goes on while the
others act, and kernels of several runs share the device.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from capsella.train.signals import StopWish, listen_through

# seconds of a turn, at least: to hand it on took 18 to 26 µs on two cores, with eight runs and with two.
_LEAST = 1e-3
# seconds after which a signal is heard, at most.
_LOOK = 0.2

_here = threading.local()


def hand_on() -> None:
    """Let the other runs of this program have their turn; between two steps, and nothing where a run is alone."""
    turn: _Turn | None = getattr(_here, "turn", None)
    if turn is not None:
        turn.hand_on()


def is_shared() -> bool:
    """Whether other runs are, or were, in this program: what is counted for a program is not this run's alone."""
    return getattr(_here, "turn", None) is not None


def in_turns(acts: Sequence[Callable[[], object]]) -> None:
    """Let each act in a thread of its own, all in turn, until the last is over.

    A signal that asks this program to stop asks each of them.

    Args:
        acts: what to do; none may raise.
    """
    queue: deque[_Turn] = deque()
    turns = [_Turn(queue, _switches()) for _ in acts]
    with StopWish() as wish:
        # none of them keeps a program from ending that could not start them all.
        threads = [
            threading.Thread(target=_act, args=(act, turn, wish), name=f"run {number}", daemon=True)
            for number, (act, turn) in enumerate(zip(acts, turns, strict=True))
        ]
        for thread in threads:
            thread.start()
        queue.extend(turns)
        if queue:
            queue.popleft().begin()
        for thread in threads:
            # now and then this thread looks up: a signal that comes just before it waits would not wake it.
            while thread.is_alive():
                thread.join(_LOOK)


def take_a_stream(device: torch.device | str) -> None:
    """Give this thread a stream of its own, on which everything it asks of a GPU goes on beside that of other threads."""
    torch.cuda.set_stream(torch.cuda.Stream(device))  # type: ignore[no-untyped-call]


def _act(act: Callable[[], object], turn: _Turn, wish: StopWish) -> None:
    _here.turn = turn
    listen_through(wish)
    turn.wait()
    try:
        act()
    finally:
        turn.end()


class _Turn:
    """A thread's place in the round; who has the turn is alone with the queue of those who wait for it.

    Args:
        queue: of all.
        switches: how it finds the program when its first turn begins.
    """

    def __init__(self, queue: deque[_Turn], switches: _Switches) -> None:
        self._queue, self._kept = queue, switches
        self._ready = threading.Semaphore(0)
        self._since = 0.0

    def begin(self) -> None:
        """Give it the turn."""
        self._ready.release()

    def wait(self) -> None:
        """Wait for the turn, and find the program as it was left."""
        self._ready.acquire()
        _put_back(self._kept)
        self._since = time.monotonic()

    def hand_on(self) -> None:
        """Give the turn to the next and wait until it comes round."""
        if not self._queue or time.monotonic() - self._since < _LEAST:
            return
        self._kept = _switches()
        following = self._queue.popleft()
        self._queue.append(self)
        following.begin()
        self.wait()

    def end(self) -> None:
        """Give the turn away for good."""
        if self._queue:
            self._queue.popleft().begin()


class _Switches(NamedTuple):
    """What torch keeps for a whole program and a run changes: its random generators, and whether cuDNN tries algorithms."""

    cpu: Tensor
    gpus: list[Tensor]
    tries: bool


def _switches() -> _Switches:
    # to ask for a GPU's generator would reach for the GPU, where a run on a CPU has no business.
    used = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return _Switches(torch.get_rng_state(), torch.cuda.get_rng_state_all() if used else [], torch.backends.cudnn.benchmark)


def _put_back(kept: _Switches) -> None:
    torch.set_rng_state(kept.cpu)
    for number, state in enumerate(kept.gpus):
        torch.cuda.set_rng_state(state, number)
    torch.backends.cudnn.benchmark = kept.tries
