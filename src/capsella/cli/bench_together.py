"""``capsella bench together``: which way to run several trainings at once makes the most of a device."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from capsella.cli import bench_tables
from capsella.cli.bench_records import Device, Out, Quick, Stop, check_out, chosen_device, collect, console, fail_if_red, say
from capsella.cli.lists import by_commas, whole_numbers
from capsella.cli.mistakes import users_mistakes


def together(
    device: Device = None,
    at_once: Annotated[str, typer.Option(help="Runs at a time, by commas; one alone is always among them.")] = "",
    models: Annotated[str, typer.Option(help="Models by commas; small and large ones if left out.")] = "",
    ways: Annotated[str, typer.Option(help="processes, mps, program, by commas; all that fit the device if left out.")] = "",
    steps: Annotated[int, typer.Option(help="Steps of a run, for which runs a minute are worked out.")] = 5000,
    batch_size: Annotated[int | None, typer.Option(help="Images of a step; 128, on a CPU 32 if left out.")] = None,
    precision: Annotated[str | None, typer.Option(help="bf16 or float32; bf16 on a GPU if left out.")] = None,
    seconds: Annotated[float, typer.Option(help="Of each window in which steps are counted.")] = 1.0,
    minutes: Annotated[float | None, typer.Option(help="Take no further reading after so long.")] = None,
    quick: Quick = False,
    out: Out = None,
) -> None:
    """Find out how to run several small trainings at once: processes side by side, under MPS, or stacked in one program."""
    with users_mistakes():
        check_out(out)
        chosen = chosen_device(device)
        from capsella.bench import together as bench_together
        from capsella.bench.step import BOUND
        from capsella.errors import check_choice, check_count, check_number
        from capsella.models.registry import list_models

        check_number("--seconds", seconds, above=0)
        if minutes is not None:
            check_number("--minutes", minutes, above=0)
        check_count("--steps", steps)
        if batch_size is not None:
            check_count("--batch-size", batch_size)
        if precision is not None:
            check_choice("precision", precision, tuple(BOUND))
        for argument, names, known in (("model", models, list_models()), ("way", ways, tuple(bench_together.WAYS))):
            for name in by_commas(names):
                check_choice(argument, name, known)
        counts = whole_numbers("--at-once", at_once, least=1) or bench_together.counts(chosen, quick=quick)
        todo = bench_together.tasks(chosen, models=by_commas(models), precision=precision, batch_size=batch_size, quick=quick)
    end = None if minutes is None else time.monotonic() + 60 * minutes
    readings = bench_together.measure(
        todo,
        chosen,
        at_once=counts,
        ways=by_commas(ways) or bench_together.ways(chosen),
        steps=steps,
        seconds=min(seconds, 0.1) if quick else seconds,
        say=say,
    )
    stop = Stop()
    found = collect("together", chosen, readings, out, bench_together.facts, end=end, stop=stop)
    bench_tables.print_together(console(), found)
    stop.leave()
    fail_if_red(found)
