"""The folder of a run: who may write to it, and what lies where."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from capsella.errors import DataError
from capsella.train.record import CHECKPOINTS, CONFIG, METRICS, RECORD


class RunFolder:
    """Paths of a run.

    Args:
        path: the folder.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.config, self.metrics, self.record = self.path / CONFIG, self.path / METRICS, self.path / RECORD
        self.checkpoints = self.path / CHECKPOINTS

    @property
    def holds_a_run(self) -> bool:
        """Whether a run was begun here."""
        return self.config.is_file()

    def read_config(self) -> dict[str, Any]:
        """Return ``config.json``, or raise ``ValueError`` in one line."""
        if not self.holds_a_run:
            raise ValueError(
                f"run={str(self.path)!r} holds no run (it has no {CONFIG}); expected a folder that capsella train wrote"
            )
        found = self._read(self.config)
        if not all(isinstance(found.get(part), dict) for part in ("model", "data", "train")):
            raise DataError(f"{self.config} is no config of a run; the run's weights are in {self.checkpoints}")
        return found

    def read_record(self) -> dict[str, Any] | None:
        """Return ``record.json``, None for a run that has not ended."""
        return self._read(self.record) if self.record.is_file() else None

    def _read(self, path: Path) -> dict[str, Any]:
        try:
            content = json.loads(path.read_bytes())
        except (OSError, ValueError) as error:
            raise DataError(f"{path} cannot be read ({error}); the run's weights are in {self.checkpoints}") from error
        if not isinstance(content, dict):
            raise DataError(f"{path} holds no record; the run's weights are in {self.checkpoints}")
        return content

    def check_new(self) -> None:
        """Raise ``ValueError`` if there is something here already."""
        if self.holds_a_run:
            raise ValueError(
                f"folder={str(self.path)!r} holds a run already; go on with it (--resume), or choose another folder"
            )
        if any(self.checkpoints.glob("step-*")):
            raise ValueError(
                f"folder={str(self.path)!r} holds checkpoints of a run without its {CONFIG}; choose another folder"
            )
        if self.path.exists() and not self.path.is_dir():
            raise ValueError(f"folder={str(self.path)!r} is a file; expected a folder")

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Keep other processes from writing here; the system lets go of it when this one ends, however it does."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            handle = os.open(self.path / ".lock", os.O_CREAT | os.O_RDWR)
        except OSError as error:
            raise ValueError(f"folder={str(self.path)!r} cannot be written to ({error.strerror})") from error
        try:
            _lock(handle, self.path)
            yield
        finally:
            os.close(handle)


def _lock(handle: int, path: Path) -> None:
    try:
        import fcntl
    except ImportError:  # a system without such locks
        return
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        raise ValueError(f"folder={str(path)!r} is being written by another process; wait for it, or choose another") from error


def next_free(parent: Path, stem: str) -> Path:
    """Return the first of ``stem-1``, ``stem-2`` … that does not exist."""
    number = 1
    while (parent / f"{stem}-{number}").exists():
        number += 1
    return parent / f"{stem}-{number}"
