"""Ctrl-C and SIGTERM as a wish that the loop grants at the next step."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any, Self

from capsella.errors import RunError


class Interrupted(RunError):
    """The run was asked to stop and did, with a checkpoint to go on from.

    Attributes:
        signal: its number.
    """

    def __init__(self, message: str, number: int) -> None:
        super().__init__(message)
        self.signal = number


_here = threading.local()


class StopWish:
    """Notes SIGINT and SIGTERM while it is entered; a second one is not held back.

    Outside the main thread, where Python lets nobody listen, it hears what the wish of ``listen_through`` hears, or nothing.
    """

    def __init__(self) -> None:
        self._received: int | None = None
        self._instead: StopWish | None = getattr(_here, "wish", None)
        self._before: dict[int, Any] = {}

    @property
    def received(self) -> int | None:
        """The number of the signal that came; None while there was none."""
        return self._received if self._instead is None else self._instead.received

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        self._restore()

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._received = number
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}


def listen_through(wish: StopWish) -> None:
    """Let the wishes of this thread hear what another thread's hears."""
    _here.wish = wish
