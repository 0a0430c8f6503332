"""``capsella bench``: how fast it is on this machine, beside what memory allows."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from capsella.cli import bench_tables
from capsella.cli.bench_explore import explore
from capsella.cli.bench_records import (
    Device,
    Out,
    Quick,
    Root,
    Stop,
    check_folder,
    check_out,
    chosen_device,
    collect,
    console,
    fail_if_red,
    say,
    say_red,
    write_record,
)
from capsella.cli.bench_together import together
from capsella.cli.mistakes import users_mistakes

bench = typer.Typer(name="bench")


@bench.callback(invoke_without_command=True)
def verbs(context: typer.Context) -> None:
    """Measure speed on this machine; nothing is timed that does not give the right values first."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@bench.command("data")
def data(
    device: Device = None,
    batch_size: Annotated[int, typer.Option(help="Images of a batch.")] = 128,
    images: Annotated[int | None, typer.Option(help="Images drawn in each repeat, if not about a second's worth.")] = None,
    root: Root = None,
    out: Annotated[Path | None, typer.Option(help="Write the record to this JSON file.")] = None,
) -> None:
    """Time drawing batches and loading MNIST."""
    from capsella.bench.data import measure
    from capsella.bench.timing import WrongValues
    from capsella.errors import check_count

    with users_mistakes():
        check_count("--batch-size", batch_size)
        if images is not None:
            check_count("--images", images)
        check_out(out)
        chosen = chosen_device(device)
        try:
            found = measure(chosen, root=root, batch_size=batch_size, images=images)
        except WrongValues as error:
            typer.echo(f"capsella: {error}", err=True)
            raise typer.Exit(1) from error
    bench_tables.print_data(console(), found)
    write_record(out, found)


@bench.command("routing")
def routing(
    device: Device = None,
    case: Annotated[
        list[str] | None, typer.Option(help="Sizes by name: capsnet-28, with --quick plain; all if left out.")
    ] = None,
    algorithm: Annotated[list[str] | None, typer.Option(help="Algorithms by name; all if left out.")] = None,
    precision: Annotated[list[str] | None, typer.Option(help="float32, bfloat16 or mixed; by the device if left out.")] = None,
    budget: Annotated[float, typer.Option(help="Seconds of each timing.")] = 0.3,
    compiled: Annotated[bool, typer.Option("--compiled/--no-compiled", help="With torch.compile where a bar asks.")] = True,
    quick: Quick = False,
    out: Out = None,
) -> None:
    """Time every implementation of every algorithm, forward and backward, after a check of its values."""
    with users_mistakes():
        check_out(out)
        chosen = chosen_device(device)
        from capsella.bench import routing as bench_routing
        from capsella.bench.problems import PRECISIONS
        from capsella.errors import check_choice, check_number

        check_number("--budget", budget, above=0)
        for name in precision or ():
            check_choice("precision", name, PRECISIONS)
        todo = bench_routing.problems(
            chosen, quick=quick, only=case or (), algorithms=algorithm or (), precisions=precision or ()
        )
    speeds = bench_routing.Speeds.of(chosen, list(dict.fromkeys(problem.precision for problem in todo)))
    with_compiler = bench_routing.COMPILED if compiled and not quick else ()
    readings = bench_routing.measure(
        todo, chosen, budget=min(budget, 0.02) if quick else budget, compiled=with_compiler, speeds=speeds, say=say
    )
    found = collect("routing", chosen, readings, out, lambda _: bench_routing.facts(chosen, speeds))
    bench_tables.print_routing(console(), found)
    fail_if_red(found)


@bench.command("step")
def step(
    device: Device = None,
    model: Annotated[list[str] | None, typer.Option(help="Models by name; on a CPU small ones if left out.")] = None,
    size: Annotated[list[int] | None, typer.Option(help="Pixels a side; 28 and on a GPU 40 if left out.")] = None,
    precision: Annotated[list[str] | None, typer.Option(help="bf16 or float32; both on a GPU if left out.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Images of a step; 128, on a CPU 32 if left out.")] = None,
    budget: Annotated[float, typer.Option(help="Seconds of each timing.")] = 0.5,
    plain: Annotated[bool, typer.Option("--plain", help="Time the step without --fast too.")] = False,
    large: Annotated[bool | None, typer.Option("--large/--no-large", help="224×224 images; on a GPU if left out.")] = None,
    epoch: Annotated[bool | None, typer.Option("--epoch/--no-epoch", help="An epoch of MNIST; on a GPU if left out.")] = None,
    root: Root = None,
    quick: Quick = False,
    out: Out = None,
) -> None:
    """Time a whole training step as `capsella train --fast` takes it, after a check of its first losses."""
    with users_mistakes():
        check_out(out)
        chosen = chosen_device(device)
        from capsella.bench import step as bench_step
        from capsella.bench.epoch import everything
        from capsella.errors import check_choice, check_count, check_number
        from capsella.models.registry import list_models

        check_number("--budget", budget, above=0)
        for name in precision or ():
            check_choice("precision", name, tuple(bench_step.BOUND))
        for name in model or ():
            check_choice("model", name, list_models())
        for count in size or ():
            check_count("--size", count)
        if batch_size is not None:
            check_count("--batch-size", batch_size)
        gpu = chosen.type == "cuda" and not quick
        todo = bench_step.jobs(
            chosen,
            models=model or (("capsnet_small",) if quick else ()),
            sizes=size or ((28,) if quick else ()),
            precisions=precision or (),
            batch_size=batch_size or (8 if quick else None),
        )
        # a network that cannot be made for such images says so now, and not in the middle.
        for job in todo:
            bench_step.least(job)
    todo = bench_step.with_plain(todo) if plain else todo
    todo += bench_step.large_jobs() if (gpu if large is None else large) else []
    readings = everything(
        todo, chosen, budget=min(budget, 0.05) if quick else budget, epoch=gpu if epoch is None else epoch, root=root, say=say
    )
    found = collect("step", chosen, readings, out, lambda done: bench_step.facts(chosen, done))
    bench_tables.print_step(console(), found)
    fail_if_red(found)


@bench.command("bars")
def bars(
    device: Device = None,
    part: Annotated[str, typer.Option(help="routing, step or all.")] = "all",
    root: Root = None,
    out: Annotated[Path | None, typer.Option(help="Write the record to this JSON file.")] = None,
) -> None:
    """Measure what the speed must be and say plainly which bars are missed."""
    with users_mistakes():
        check_out(out)
        chosen = chosen_device(device)
        from capsella.bench import bars as bench_bars
        from capsella.bench.timing import record
        from capsella.errors import check_choice

        check_choice("--part", part, ("routing", "step", "all"))
    readings = bench_bars.measure(chosen, part=part, root=root, say=say)
    found = record("bars", chosen, readings, verdicts=[reading.verdict for reading in readings])
    bench_tables.print_bars(console(), found)
    write_record(out, found)


@bench.command("growth")
def growth(
    device: Device = None,
    algorithm: Annotated[list[str] | None, typer.Option(help="Algorithms by name; agreement and em if left out.")] = None,
    precision: Annotated[str, typer.Option(help="float32, bfloat16 or mixed.")] = "float32",
    budget: Annotated[float, typer.Option(help="Seconds of each timing.")] = 0.1,
    quick: Quick = False,
    out: Out = None,
) -> None:
    """Time routing along each of its sizes, and fit the powers that time and memory grow with."""
    with users_mistakes():
        check_out(out)
        chosen = chosen_device(device)
        from capsella.bench import growth as bench_growth
        from capsella.bench.problems import PRECISIONS
        from capsella.errors import check_choice, check_number
        from capsella.routing import get

        check_number("--budget", budget, above=0)
        check_choice("precision", precision, PRECISIONS)
        for name in algorithm or ():
            get(name)
    readings = bench_growth.measure(
        chosen, algorithms=algorithm or ("agreement", "em"), precision=precision, quick=quick, budget=budget, say=say
    )
    found = collect("growth", chosen, readings, out, bench_growth.facts)
    bench_tables.print_growth(console(), found)
    fail_if_red(found)


@bench.command("attention")
def attention(
    device: Device = None,
    budget: Annotated[float, typer.Option(help="Seconds of each timing.")] = 0.2,
    quick: Quick = False,
    out: Out = None,
) -> None:
    """Time routing by agreement and multi-head attention at equal sizes, beside mitterreiter2023's formulas."""
    with users_mistakes():
        check_out(out)
        chosen = chosen_device(device)
        from capsella.bench import attention as bench_attention
        from capsella.errors import check_number

        check_number("--budget", budget, above=0)
    readings = bench_attention.measure(chosen, quick=quick, budget=budget, say=say)
    found = collect("attention", chosen, readings, out, lambda done: bench_attention.facts(chosen, done))
    bench_tables.print_attention(console(), found)
    fail_if_red(found)


bench.command("explore")(explore)
bench.command("together")(together)


@bench.command("all")
def everything(
    out: Annotated[Path, typer.Option(help="Write one JSON file for each kind into this folder.")],
    device: Device = None,
    kind: Annotated[
        list[str] | None, typer.Option(help="routing, step, growth, attention (all four if left out), together, data.")
    ] = None,
    minutes: Annotated[float | None, typer.Option(help="Take no further reading after so long.")] = None,
    root: Root = None,
    quick: Quick = False,
) -> None:
    """Measure everything: routing, training, growth, attention, and the bars that follow from them."""
    with users_mistakes():
        check_folder(out)
        chosen = chosen_device(device)
        from capsella.bench import bars as bench_bars
        from capsella.bench import suite
        from capsella.bench.timing import file_name, record
        from capsella.errors import check_choice, check_number
        from capsella.report.speed import read_records

        for name in kind or ():
            check_choice("kind", name, (*suite.KINDS, *suite.ASKED_FOR))
        if minutes is not None:
            check_number("--minutes", minutes, above=0)
    end = None if minutes is None else time.monotonic() + 60 * minutes
    taken: dict[str, list[Any]] = {}
    red = False
    for each in suite.kinds(chosen, only=kind or suite.KINDS, quick=quick, root=root, say=say):
        taken[each.name], stop = [], Stop()
        path = out / file_name(each.name, chosen)
        found = collect(each.name, chosen, each.readings, path, each.facts, end=end, done=taken[each.name], stop=stop)
        bench_tables.PRINTERS[each.name](console(), found)
        red = say_red(found) or red
        stop.leave()
    judged = []
    if {"routing", "step"} & taken.keys() and not quick:
        # kinds may be measured one after the other: the folder's records of this device and torch are judged together.
        this = file_name("routing", chosen).removeprefix("routing-").removesuffix(".json")
        with users_mistakes():
            judged = bench_bars.judge_records(read_records(out).get(this, {}), gpu=chosen.type == "cuda")
    if judged:
        found = record("bars", chosen, judged, verdicts=[reading.verdict for reading in judged])
        bench_tables.print_bars(console(), found)
    if red:
        raise typer.Exit(1)


@bench.command("page")
def page(
    results: Annotated[Path, typer.Option(help="The folder of the records.")] = Path("results/bench"),
    out: Annotated[Path, typer.Option(help="The folder of the page.")] = Path("docs"),
) -> None:
    """Write speed.md and its pictures from records."""
    from capsella.data.places import whole_or_nothing
    from capsella.report.speed import read_records, speed_page

    with users_mistakes():
        check_folder(out)
        files = speed_page(read_records(results))
    for name, text in files.items():
        with whole_or_nothing(out / name) as file:
            file.write(text.encode())
    console().print(f"{out / 'speed.md'} and {len(files) - 1} pictures", markup=False)
