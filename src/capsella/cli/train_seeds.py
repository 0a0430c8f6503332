"""``capsella train --seeds N``: one plan with several seeds, side by side, and what they have in common."""

from __future__ import annotations

import contextlib
import statistics
import sys
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from capsella.train.together import Outcome, Standing

RUNS = Path("runs")
# without a terminal, a word so often, in seconds.
_WORD_EVERY = 30


def refuse_with_seeds(given: Mapping[str, object]) -> None:
    """Raise ``ValueError`` for the first option that does not go with --seeds."""
    for name, value in given.items():
        if value is not None:
            raise ValueError(f"{name} is for one run; leave it out with --seeds (the same --out goes on with what is there)")


def in_one_line(record: Mapping[str, Any]) -> str:
    """Say what came of a run."""
    # the last entry also counts a part of an epoch, where the steps ended the run.
    epochs = record["history"][-1]["epoch"] if record["history"] else 0
    plural = "" if epochs == 1 else "s"
    line = f"{record['status']} after {epochs:.3g} epoch{plural}, {record['steps']:,} steps, {record['seconds']:.0f} s"
    if record["test"] is not None:
        line += f"; {record['test']['accuracy']:.2%} right on {record['test']['images']:,} test images"
    return line


def run_seeds(
    plan: Any,
    seeds: int,
    *,
    at_once: int | None,
    mps: bool | None,
    program: bool,
    out: Path | None,
    root: Path | None,
) -> None:
    """Train once per seed and print a line for each run and a table of all.

    Args:
        plan: what to train, with the first seed.
        seeds: how many.
        at_once: runs at a time.
        mps: share a GPU under NVIDIA's MPS.
        program: let the runs take turns in one process.
        out: folder of all runs.
        root: the data directory.
    """
    from capsella.errors import check_count
    from capsella.train.folder import RunFolder, next_free
    from capsella.train.together import run_together

    check_count("--seeds", seeds)
    if at_once is not None:
        check_count("--at-once", at_once)
    if plan.train.devices > 1:
        raise ValueError(
            f"--devices={plan.train.devices} does not go with --seeds, whose runs have one device each; leave it out"
        )
    folder = out if out is not None else next_free(RUNS, f"{plan.model}-{plan.data}")
    if RunFolder(folder).holds_a_run:
        raise ValueError(f"folder={str(folder)!r} holds a single run; choose another for the runs of several seeds")
    numbers = range(plan.train.seed, plan.train.seed + seeds)
    jobs = [(plan.changed({"seed": seed}), folder / f"seed-{seed}") for seed in numbers]
    console = Console(highlight=False)
    progress = Together(len(jobs))
    outcomes: list[Outcome] = []
    try:
        with _warnings_in_a_line(progress):
            for outcome in run_together(jobs, at_once=at_once, mps=mps, program=program, root=root, watch=progress):
                outcomes.append(outcome)
                progress.ended(outcome)
                if outcome.run is not None:
                    there = " (was there)" if outcome.was_there else ""
                    line = f"seed {outcome.plan.train.seed}{there}: {in_one_line(outcome.run.record or {})}"
                    with progress.aside():
                        console.print(line, markup=False, soft_wrap=True)
    finally:
        progress.close()
    _table(console, outcomes)
    # none is where all failed before they began.
    if folder.exists():
        console.print(f"the runs are in {folder}", markup=False, soft_wrap=True)
    problems = {outcome.plan.train.seed: _problem(outcome) for outcome in outcomes}
    for seed, problem in problems.items():
        if problem:
            typer.echo(f"capsella: seed {seed}: {problem}", err=True)
    if any(problems.values()):
        raise typer.Exit(1)


def _problem(outcome: Outcome) -> str:
    """Say why a run failed; a loss that is not finite is a failure here, as it is of a single run."""
    record: Mapping[str, Any] = (outcome.run.record if outcome.run is not None else None) or {}
    return record.get("reason", "its loss is not finite") if record.get("status") == "non-finite" else outcome.problem


@contextlib.contextmanager
def _warnings_in_a_line(progress: Together) -> Iterator[None]:
    """Say what is worth a warning as everything else is said, without a line of code."""

    def say(message: Warning | str, *_: object, **__: object) -> None:
        with progress.aside():
            typer.echo(f"capsella: {message}", err=True)

    with warnings.catch_warnings():
        warnings.showwarning = say
        yield


def _table(console: Console, outcomes: Sequence[Outcome]) -> None:
    table = Table("seed", "status")
    for name in ("steps", "test", "seconds", "images/s"):
        table.add_column(name, justify="right")
    accuracies = []
    for outcome in sorted(outcomes, key=lambda each: each.plan.train.seed):
        record = outcome.run.record if outcome.run is not None else None
        if record is None:
            table.add_row(str(outcome.plan.train.seed), "failed")
            continue
        accuracy = record["test"]["accuracy"] if record["test"] is not None else None
        accuracies += [] if accuracy is None else [accuracy]
        right = "" if accuracy is None else f"{accuracy:.2%}"
        numbers = (f"{record['steps']:,}", right, f"{record['seconds']:.1f}", f"{record['images_per_second']:,.0f}")
        table.add_row(str(outcome.plan.train.seed), record["status"], *numbers)
    console.print(table)
    if accuracies:
        # of the others there is none, and the mean does not say so.
        over = "" if len(accuracies) == len(outcomes) else f" of {len(accuracies)} of {len(outcomes)} runs"
        console.print(f"test accuracy{over}: {spread(accuracies)}", markup=False, soft_wrap=True)


def spread(shares: Sequence[float]) -> str:
    """Say mean, standard deviation and range of several shares.

    Example:
        >>> spread([0.98, 0.99, 1.0])
        'mean 99.00% ± 1.00% (standard deviation of 3 runs), from 98.00% to 100.00%'
        >>> spread([0.98])
        '98.00% (1 run)'
    """
    if len(shares) == 1:
        return f"{shares[0]:.2%} (1 run)"
    deviation = f"± {statistics.stdev(shares):.2%} (standard deviation of {len(shares)} runs)"
    return f"mean {statistics.mean(shares):.2%} {deviation}, from {min(shares):.2%} to {max(shares):.2%}"


class Together:
    """Shows on stderr how far all runs have come: one bar in a terminal, a line now and then elsewhere.

    Args:
        count: of the runs.
    """

    def __init__(self, count: int) -> None:
        self.count, self.done, self.steps = count, 0, 0
        self._said_at = time.monotonic()
        self._bar: Any = None
        self._task: Any = None
        if sys.stderr.isatty():
            self._open()

    def _open(self) -> None:
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        columns = [
            BarColumn(),
            TextColumn("{task.percentage:3.0f}%"),
            TextColumn("{task.fields[reading]}"),
            TimeRemainingColumn(),
        ]
        self._bar = Progress(*columns, console=Console(stderr=True), transient=True)
        self._task = self._bar.add_task("", total=None, reading=f"0 of {self.count} runs done")
        self._bar.start()

    def __call__(self, standings: Sequence[Standing]) -> None:
        """Show the runs that are under way."""
        if self._bar is None and time.monotonic() - self._said_at < _WORD_EVERY:
            return
        self._said_at = time.monotonic()
        self.steps = max([self.steps, *(each.steps for each in standings)])
        reading = describe(self.done, self.count, standings)
        if self._bar is not None:
            taken = self.done * self.steps + sum(each.step for each in standings)
            self._bar.update(self._task, total=self.count * self.steps or None, completed=taken, reading=reading)
        else:
            typer.echo(reading, err=True)

    def ended(self, outcome: Outcome) -> None:
        """Count a run that is over."""
        self.done += 1
        if outcome.run is not None:
            self.steps = max(self.steps, int((outcome.run.record or {}).get("steps", 0)))

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """Take the bar away while something else is written to the same terminal."""
        if self._bar is not None:
            self._bar.stop()
        yield
        if self._bar is not None:
            self._bar.start()

    def close(self) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


def describe(done: int, count: int, standings: Sequence[Standing]) -> str:
    """Say in one line how far all runs have come."""
    parts = [f"{done} of {count} runs done"]
    if standings:
        last = max(each.steps for each in standings)
        steps = _range([each.step for each in standings], ",")
        parts.append(f"{len(standings)} under way at step {steps}" + (f" of {last:,}" if last else ""))
    for key, form in (("loss", ".4f"), ("accuracy", ".2%")):
        values = [each.event[key] for each in standings if each.event is not None and key in each.event]
        if values:
            parts.append(f"{key} {_range(values, form)}")
    return ", ".join(parts)


def _range(values: Sequence[float], form: str) -> str:
    low, high = format(min(values), form), format(max(values), form)
    return low if low == high else f"{low} to {high}"
