"""``capsella reproduce``: the tables of the papers, run again and laid beside the printed numbers."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from capsella.cli.bench_records import console
from capsella.cli.mistakes import users_mistakes

if TYPE_CHECKING:
    from capsella.papers.cost import Estimate
    from capsella.papers.paper import Selection
    from capsella.papers.recipe import Job
    from capsella.papers.runner import Deadline
    from capsella.papers.store import Store

_WHAT, _HOW, _WHERE = "What", "How", "Where"
_QUICK = Path("runs/reproduce-quick")
_WORK = Path("runs/reproduce")
# of a row: more are a slip of the pen, and are counted one by one.
_MOST_SEEDS = 1000


def reproduce(
    what: Annotated[
        list[str] | None,
        typer.Argument(metavar="PAPER[/TABLE[/ROW]]…", help="Such as peer2022, or peer2022/table2 chen2019; none lists all."),
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(help="Runs of every row (as many as its recipe names; 1 with --quick).", rich_help_panel=_WHAT)
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Minutes on a CPU: small nets, few steps; shows directions.", rich_help_panel=_WHAT)
    ] = False,
    status: Annotated[
        bool, typer.Option("--status", help="Show what is covered, and run nothing.", rich_help_panel=_WHAT)
    ] = False,
    max_minutes: Annotated[
        float | None,
        typer.Option(
            help="Begin nothing that would not be over by then, and stop; what takes longer than that begins last, and goes on "
            "with the next call.",
            rich_help_panel=_HOW,
        ),
    ] = None,
    jobs: Annotated[
        int | None, typer.Option(help="Runs at a time (8 on a GPU, one for two cores on a CPU).", rich_help_panel=_HOW)
    ] = None,
    executor: Annotated[
        str | None,
        typer.Option(help="here, workers, processes or ray (processes; workers with --quick).", rich_help_panel=_HOW),
    ] = None,
    one_program: Annotated[
        bool, typer.Option("--one-program", help="Runs on a GPU take turns in one process.", rich_help_panel=_HOW)
    ] = False,
    mps: Annotated[
        bool | None, typer.Option("--mps/--no-mps", help="Share a GPU under NVIDIA's MPS (where it is).", rich_help_panel=_HOW)
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="auto, cpu or cuda (auto; cpu with --quick).", rich_help_panel=_HOW)
    ] = None,
    precision: Annotated[
        str | None, typer.Option(help="float32, tf32 or bf16 (as a recipe says; mostly bf16 on a GPU).", rich_help_panel=_HOW)
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder of the results (results/papers; runs/reproduce-quick with --quick).", rich_help_panel=_WHERE),
    ] = None,
    work: Annotated[
        Path | None,
        typer.Option(
            help="Folder of runs under way (runs/reproduce; OUT/.work with --out or --quick).", rich_help_panel=_WHERE
        ),
    ] = None,
    keep_weights: Annotated[
        bool, typer.Option("--keep-weights", help="Leave finished runs, weights and all, in --work.", rich_help_panel=_WHERE)
    ] = False,
    export: Annotated[
        Path | None,
        typer.Option(help="Write all results to one archive; while running, anew after every run.", rich_help_panel=_WHERE),
    ] = None,
    import_: Annotated[
        Path | None, typer.Option("--import", help="Take in the results of an archive first.", rich_help_panel=_WHERE)
    ] = None,
    page: Annotated[
        Path | None,
        typer.Option(
            help="Write all papers on one page, README.md and index.html of this folder: every printed number beside ours.",
            rich_help_panel=_WHERE,
        ),
    ] = None,
    claims: Annotated[
        Path | None,
        typer.Option(help="Write the table of claims into this file, between its marks.", rich_help_panel=_WHERE),
    ] = None,
    root: Annotated[Path | None, typer.Option(help="The data directory.", rich_help_panel=_WHERE)] = None,
) -> None:
    """Run the experiments of papers again, and lay them beside their printed numbers.

    Results are small JSON files, one for each row and seed. What is recorded is not run again, what was interrupted goes on,
    and a page is made of what there is. Every row is run once before any is run a second time.
    """
    with users_mistakes():
        from capsella.cli import reproduce_outputs as outputs
        from capsella.cli import reproduce_tables as tables
        from capsella.papers.paper import is_current, select_all
        from capsella.papers.store import RESULTS, Store

        _check(seeds, jobs, max_minutes, executor)
        outputs.check_pages(page, claims, quick=quick)
        chosen = select_all(what or [])
        store = Store(out or (_QUICK if quick else RESULTS))
        outputs.check_out(store.folder, is_written=import_ is not None or (bool(chosen) and not status))
        if import_ is not None:
            tables.show_import(console(), import_, store.take(import_, is_current), store)
            # what came in may be of any paper.
            outputs.report_all(store, quick=quick)
        if not chosen:
            outputs.bring_out(store, export, page, claims)
            if all(each is None for each in (import_, export, page, claims)):
                tables.show_papers(console(), store, quick=quick)
            return
        if status:
            for each in chosen:
                tables.show_status(console(), each, store, quick=quick, seeds=seeds)
            outputs.bring_out(store, export, page, claims)
            return
        where = _settings(device, precision, quick)
        todo, known = _todo(chosen, store, seeds=seeds, quick=quick, settings=where)
        if not todo:
            typer.echo(f"all {known} runs are recorded in {store.folder}")
        else:
            failed = _run(
                todo,
                store,
                known,
                max_minutes=max_minutes,
                at_once=jobs,
                executor=executor,
                program=one_program,
                mps=mps,
                quick=quick,
                work=work or (store.folder / ".work" if quick or out is not None else _WORK),
                keep=keep_weights,
                export=export,
                root=root,
            )
        if export is not None and not outputs.write_archive(store, export):
            typer.echo(outputs.nothing_to_write(store, export), err=True)
        for each in chosen:
            own = outputs.report(each.paper, store, quick=quick)
            tables.show_verdicts(console(), each, store, quick=quick)
            typer.echo(f"{own} has all of it")
        # after the papers' own pages, which it points to.
        outputs.bring_out(store, None, page, claims)
        if todo and failed:
            raise typer.Exit(1)


def _check(seeds: int | None, jobs: int | None, max_minutes: float | None, executor: str | None) -> None:
    """Raise ``ValueError`` for what makes no sense, whether or not anything is left to be run."""
    from capsella.errors import check_choice, check_count, check_number
    from capsella.papers.executors import EXECUTORS

    for name, count in (("--seeds", seeds), ("--jobs", jobs)):
        if count is not None:
            check_count(name, count)
    if seeds is not None and seeds > _MOST_SEEDS:
        raise ValueError(f"--seeds={seeds} is too large; expected an int of at most {_MOST_SEEDS}")
    if max_minutes is not None:
        check_number("--max-minutes", max_minutes, above=0)
    if executor is not None:
        check_choice("--executor", executor, EXECUTORS)


def _settings(device: str | None, precision: str | None, quick: bool) -> dict[str, Any]:
    """Return where runs are computed, and how: compiled on a GPU, elsewhere plainly; recipes know their precision."""
    from capsella.train.processes import accelerator

    asked = device if device is not None else "cpu" if quick else "auto"
    # checked by the plan, which says what it may be.
    kind = accelerator(asked) if asked in ("auto", "cpu", "cuda") else asked
    return {"device": kind, "fast": kind == "cuda"} | ({} if precision is None else {"precision": precision})


def _todo(
    chosen: list[Selection], store: Store, *, seeds: int | None, quick: bool, settings: dict[str, Any]
) -> tuple[list[Job], int]:
    """Return what is to be run, and how many runs are recorded already."""
    from capsella.papers.paper import jobs_of, recorded

    recipes = [recipe for each in chosen for recipe in each.recipes]
    jobs = jobs_of(recipes, seeds=seeds, quick=quick, settings=settings)
    done = recorded(jobs, store)
    return [job for job in jobs if job.name not in done], len(done)


def _run(
    jobs: list[Job],
    store: Store,
    known: int,
    *,
    max_minutes: float | None,
    at_once: int | None,
    executor: str | None,
    program: bool,
    mps: bool | None,
    quick: bool,
    work: Path,
    keep: bool,
    export: Path | None,
    root: Path | None,
) -> bool:
    """Carry jobs out, and say so; return whether one failed."""
    from capsella.cli.reproduce_progress import Table
    from capsella.papers.executors import PROCESSES, WORKERS, Place, default_executor, executor_by_name
    from capsella.papers.runner import Deadline
    from capsella.papers.runner import reproduce as carry_out
    from capsella.train.processes import without_subnormals
    from capsella.train.together import cores, default_at_once

    on_gpu = jobs[0].plan.train.device == "cuda"
    name = executor or default_executor(quick=quick, on_gpu=on_gpu)
    if name == WORKERS and not quick:
        raise ValueError(
            "--executor=workers lets what is under way come to its end, which is for short runs; expected --quick with it"
        )
    if export is not None:
        # before anything is run that could not be brought away.
        store.export(export)
    data = None if root is None else str(root)
    expected = _estimate(jobs, store, data)
    typer.echo(f"{expected.describe()}; {known} more are recorded" if known else expected.describe(), err=True)
    side_by_side = at_once or {PROCESSES: default_at_once([job.plan for job in jobs]), WORKERS: cores()}.get(name, 1)
    left = {job.name: _left(job, work) * expected.seconds[job.name] for job in jobs}
    # other executors have no checkpoint to stop with, or let what is under way come to its end.
    deadline = Deadline(max_minutes, left, side_by_side, goes_on=name == PROCESSES)
    failed = 0
    with without_subnormals(), Table(len(jobs), expected.total, work) as table:
        place = Place(work, data, at_once, program, mps, watch=table)
        runs = carry_out(jobs, store, executor_by_name(name), place, deadline=deadline, export=export, keep=keep)
        with contextlib.closing(runs) as outcomes:  # type: ignore[type-var]
            for each in outcomes:
                table.ended(each)
                failed += each.result is None
        ended = table.done
    if ended < len(jobs):
        typer.echo(_unfinished(jobs, ended, deadline, max_minutes), err=True)
    return bool(failed)


def _left(job: Job, work: Path) -> float:
    """Return which part of a run is still to be done."""
    from capsella.train.children import standing

    found = standing(job.plan, work / job.name)
    return 1 - found.step / found.steps if found.steps else 1.0


def _unfinished(jobs: list[Job], ended: int, deadline: Deadline, minutes: float | None) -> str:
    """Say what is left, and, where nothing could even be begun, how long it would take."""
    if len(deadline.left_out) == len(jobs):
        shortest = deadline.at_once * min(deadline.seconds.values()) / 60
        return f"none of {len(jobs)} runs fits into --max-minutes={minutes:g}; the shortest should take about {shortest:.1f}"
    return f"time is up: {len(jobs) - ended} of {len(jobs)} runs are left; the same command goes on with them"


def _estimate(jobs: list[Job], store: Store, root: str | None) -> Estimate:
    import torch

    from capsella.papers.cost import estimate
    from capsella.train.record import environment

    device = environment(torch.device(jobs[0].plan.train.device), 1)["device"]
    papers = {job.recipe.paper for job in jobs}
    return estimate(jobs, (result for paper in papers for result in store.all(f"{paper}/")), device, root=root)
