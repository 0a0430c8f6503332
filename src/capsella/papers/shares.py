"""What each of several runs takes of a device that they share; kept beside the run, for as long as it is gone on with."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from pathlib import Path

from capsella.train.record import write_json

SHARE = "device_seconds.json"
# seconds between two notes on disk; what a kill loses.
_KEEP = 5.0


class Shares:
    """Divides the device's time among the runs that go on at once: of a second in which n did, each has an nth."""

    def __init__(self) -> None:
        self._seconds: dict[Path, float] = {}
        self._last: float | None = None
        self._kept = 0.0

    def __call__(self, folders: Sequence[Path], now: float) -> None:
        """Note which runs are under way, and have been since the last call.

        Args:
            folders: of the runs.
            now: by any clock.
        """
        if self._last is not None:
            for folder in folders:
                self.add(folder, (now - self._last) / len(folders))
        self._last = now
        if now - self._kept >= _KEEP:
            self._kept = now
            for folder in folders:
                self.keep(folder)

    def add(self, folder: Path, seconds: float) -> None:
        """Count some seconds for a run."""
        self._seconds[folder] = self.of(folder) + seconds

    def of(self, folder: Path) -> float:
        """Return all that a run has taken, in earlier calls too."""
        if folder not in self._seconds:
            self._seconds[folder] = 0.0
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
                self._seconds[folder] = float(json.loads((folder / SHARE).read_bytes())["seconds"])
        return self._seconds[folder]

    def keep(self, folder: Path) -> None:
        """Write down what a run has taken, where it has a folder."""
        if folder.is_dir():
            write_json(folder / SHARE, {"seconds": self.of(folder)})
