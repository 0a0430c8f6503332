"""How far the runs of a paper have come: a table in a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import typer
from rich.console import Console
from rich.table import Table as Grid

from capsella.cli.train_seeds import describe

if TYPE_CHECKING:
    from capsella.papers.executors import Done
    from capsella.train.together import Standing

# without a terminal, a word so often, in seconds.
_WORD_EVERY = 30


class Table:
    """Shows on stderr which runs are under way and how many are over; what a run found is a line of its own.

    Args:
        count: of the runs.
        seconds: that they should take in all.
        work: folder of the runs' folders.
    """

    def __init__(self, count: int, seconds: float, work: Path) -> None:
        self.count, self.seconds, self.work = count, seconds, work
        self.done = 0
        self._start = self._said_at = time.monotonic()
        self._live: Any = None

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            from rich.live import Live

            self._live = Live(console=Console(stderr=True), transient=True, refresh_per_second=2)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def __call__(self, standings: Sequence[Standing]) -> None:
        """Show the runs that are under way."""
        now = time.monotonic()
        if self._live is not None:
            self._live.update(self._grid(standings, now))
        elif now - self._said_at >= _WORD_EVERY:
            self._said_at = now
            typer.echo(f"{self._clock(now)}: {describe(self.done, self.count, standings)}", err=True)

    def ended(self, each: Done) -> None:
        """Say what came of a run."""
        self.done += 1
        line = f"{each.job.name.partition('/')[2]}: {each.problem or _found(each.result)}"
        if self._live is not None:
            self._live.console.print(line, markup=False, highlight=False, soft_wrap=True)
        else:
            self._said_at = time.monotonic()
            typer.echo(f"{self.done} of {self.count}  {line}", err=True)

    def _clock(self, now: float) -> str:
        return f"{(now - self._start) / 60:.1f} of about {self.seconds / 60:.1f} min"

    def _grid(self, standings: Sequence[Standing], now: float) -> Grid:
        grid = Grid(title=f"{self.done} of {self.count} runs done, {self._clock(now)}", title_justify="left")
        grid.add_column("run")
        for name in ("step", "of", "accuracy", "loss"):
            grid.add_column(name, justify="right")
        for each in standings:
            event = each.event or {}
            name = each.folder.relative_to(self.work).as_posix().partition("/")[2]
            accuracy = f"{event['accuracy']:.2%}" if event.get("accuracy") is not None else ""
            loss = f"{event['loss']:.4f}" if event.get("loss") is not None else ""
            grid.add_row(name, f"{each.step:,}" if each.step else "", f"{each.steps:,}" if each.steps else "", accuracy, loss)
        return grid


def _found(result: Any) -> str:
    """Say what came of a run in a few words."""
    from capsella.papers.readings import final, training

    parts = [result.status] if result.status != "finished" else []
    for value, what in ((final(result), "of the test images right"), (training(result), "of the training batches")):
        if value is not None:
            parts.append(f"{value:.2%} {what}")
    return ", ".join([*parts, f"{result.seconds:.0f} s"])
