"""What the measurements of ``capsella bench`` share: options, records on disk, how they end."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterable
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, Self

import typer
from rich.console import Console

if TYPE_CHECKING:
    import torch

Device = Annotated[str | None, typer.Option(help="cpu or cuda; a GPU if there is one.")]
Out = Annotated[Path | None, typer.Option(help="Write the record to this JSON file, after every reading.")]
Root = Annotated[Path | None, typer.Option(readable=False, help="The data directory.")]
Quick = Annotated[bool, typer.Option("--quick", help="Small sizes and short timings, to see that it works.")]


_WIDE = 160


class _Stopped(BaseException):
    """A signal came; no ``Exception``, which a measurement may take for a reading that failed."""


class Stop:
    """Ends a block at SIGINT or SIGTERM, once, and notes which it was; what follows the block is done all the same.

    A second signal is not held back. Outside the main thread, where Python lets nobody listen, it hears nothing.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._end)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        self._restore()
        return kind is _Stopped

    def _end(self, number: int, frame: FrameType | None) -> None:
        self.received = number
        self._restore()
        raise _Stopped

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}

    def leave(self) -> None:
        """Leave the program as a shell expects of the signal, if one came."""
        if self.received is not None:
            # not by way of the parser, which has a word of its own for 130.
            sys.exit(128 + self.received)


def collect(
    kind: str,
    device: torch.device,
    readings: Iterable[Any],
    out: Path | None,
    facts: Callable[[list[Any]], dict[str, Any]],
    *,
    end: float | None = None,
    done: list[Any] | None = None,
    stop: Stop | None = None,
) -> dict[str, Any]:
    """Gather readings into a record that is on disk, whole, after every one of them.

    Args:
        kind: of the record.
        device: that is measured.
        readings: are measured as they are drawn.
        out: the file.
        facts: what the record says beside them.
        end: on the clock, after which no further reading is taken.
        done: where they are gathered.
        stop: lets a signal end the measurement and not the program.
    """
    from capsella.bench.timing import record

    done = [] if done is None else done
    complete = False
    with stop if stop is not None else contextlib.nullcontext():
        for reading in readings:
            done.append(reading)
            write_record(out, record(kind, device, done, complete=False, **facts(done)))
            if end is not None and time.monotonic() > end:
                say(f"{kind}: stopped after {len(done)} readings, the time is over")
                break
        else:
            complete = True
    # what it has started ends here, not when its last reference is gone.
    if isinstance(readings, Generator):
        readings.close()
    found = record(kind, device, done, complete=complete, **facts(done))
    if stop is not None and stop.received is not None:
        say(f"{kind}: stopped after {len(done)} readings by {signal.Signals(stop.received).name}")
    # a signal may have come while it was being written; without readings there may be an earlier record.
    write_record(out if done else None, found)
    return found


def say_red(found: dict[str, Any]) -> bool:
    """Say what did not pass the gate, and tell whether there is any."""
    keys = ("name", "way", "algorithm", "model", "at_once", "case", "axis", "n", "size", "precision", "implementation")
    wrong = [reading for reading in found["readings"] if reading["problem"].startswith(("wrong", "fails"))]
    lines = [f"{', '.join(str(each[key]) for key in keys if key in each)}: {each['problem']}" for each in wrong]
    # one that is wrong is so in both passes.
    for line in dict.fromkeys(lines):
        typer.echo(f"capsella: {line}; it was not timed", err=True)
    return bool(wrong)


def fail_if_red(found: dict[str, Any]) -> None:
    """Leave with exit code 1 if something did not pass the gate."""
    if say_red(found):
        raise typer.Exit(1)


def check_folder(out: Path) -> None:
    """Raise ``ValueError`` for a folder that cannot be written to."""
    from capsella.data.places import is_writable

    if out.is_file() or not is_writable(out):
        raise ValueError(f"--out={out} cannot be written to; expected a folder of yours")


def check_out(out: Path | None) -> None:
    """Raise ``ValueError`` for a file that cannot be written."""
    from capsella.data.places import is_writable

    if out is not None and (out.is_dir() or not is_writable(out.parent)):
        raise ValueError(f"--out={out} cannot be written to; expected a file in a folder of yours")


def write_record(out: Path | None, found: dict[str, Any]) -> None:
    """Write a record, whole or not at all; None writes nothing."""
    from capsella.data.places import whole_or_nothing

    if out is not None:
        with whole_or_nothing(out) as file:
            file.write((json.dumps(found, indent=1) + "\n").encode())


def console() -> Console:
    """Return where tables are printed; a pipe or a file, which has no width of its own, gets enough for every column."""
    has_width = sys.stdout.isatty() or "COLUMNS" in os.environ
    return Console(highlight=False, width=None if has_width else _WIDE)


def say(line: str) -> None:
    """Tell what goes on, on stderr."""
    typer.echo(line, err=True)


def chosen_device(name: str | None) -> torch.device:
    """Return a device that is there, and look what else the machine does before anything of ours runs."""
    import torch

    from capsella.bench.timing import load_before

    load_before()
    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if not re.fullmatch(r"cpu|cuda(:\d+)?", name):
        raise ValueError(f"--device={name} is unknown; expected cpu, cuda or cuda:0")
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise ValueError(f"--device={name} is not here: torch {torch.__version__} sees no GPU; use --device cpu")
    return torch.device(name)
