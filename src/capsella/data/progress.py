"""A progress bar on stderr in a terminal, silence otherwise."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Advance = Callable[[int], None]


@contextmanager
def progress_bar(what: str, total: float | None, *, unit: str = "") -> Iterator[Advance]:
    """Show how far ``what`` has come; call the value with each further amount.

    Args:
        what: a few words.
        total: the full amount, None where it is not known.
        unit: ``"bytes"`` shows amounts as file sizes and the speed.
    """
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        ProgressColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    # the terminal itself is asked: rich also takes an environment variable for one.
    if not sys.stderr.isatty():
        yield lambda amount: None
        return
    console = Console(stderr=True)
    columns: list[ProgressColumn] = [TextColumn("{task.description}"), BarColumn()]
    if unit == "bytes":
        columns += [DownloadColumn(), TransferSpeedColumn()]
    elif total is not None:
        columns += [TextColumn("{task.percentage:3.0f}%")]
    columns += [TimeElapsedColumn() if total is None else TimeRemainingColumn()]
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(what, total=total)
        yield lambda amount: progress.advance(task, amount)
