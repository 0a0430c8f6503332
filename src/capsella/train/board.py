"""Metrics for TensorBoard, with the extra ``tensorboard``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from capsella.train.record import Event


class Board:
    """Listens to a run and writes its numbers as TensorBoard's events.

    Args:
        folder: of the run; the events go to ``tensorboard`` inside it.
    """

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ValueError("tensorboard=True needs the extra: pip install 'capsella[tensorboard]'") from error
        self._open, self._folder = SummaryWriter, folder / "tensorboard"
        self._writer: Any = None

    def __call__(self, event: Event) -> None:
        """Write the numbers of an event."""
        if event["event"] == "start":
            # not before: a run that cannot begin leaves no folder. What a run that goes on will write again is taken back.
            self._writer = self._open(str(self._folder), purge_step=event["from_step"] + 1 if event["from_step"] else None)
        elif event["event"] in ("log", "epoch", "watch"):
            for name, value in event.items():
                if isinstance(value, int | float) and name not in ("step", "event"):
                    self._writer.add_scalar(f"{event['event']}/{name}", value, event["step"])
        elif event["event"] == "end":
            self.close()

    def close(self) -> None:
        """Write what is still to be written."""
        if self._writer is not None:
            self._writer.close()
