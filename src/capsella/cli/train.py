"""``capsella train``: a model, a data set, a run folder."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from capsella.cli.mistakes import users_mistakes
from capsella.cli.options import key_values
from capsella.cli.train_seeds import RUNS, in_one_line, refuse_with_seeds, run_seeds

_WHAT = "What to train"
_HOW = "How"
_WHERE = "Where"


def train(
    model: Annotated[str | None, typer.Argument(help="A model; `capsella info` lists them. Not with --resume.")] = None,
    data: Annotated[
        str | None, typer.Option(help="A data set; `capsella data list` shows them.", rich_help_panel=_WHAT)
    ] = None,
    split: Annotated[
        str | None, typer.Option(help="What to learn from: fit, or train for all of it (fit).", rich_help_panel=_WHAT)
    ] = None,
    validate: Annotated[
        str | None,
        typer.Option(help="Measured after every epoch: val, test or none; val if the split is fit.", rich_help_panel=_WHAT),
    ] = None,
    init: Annotated[
        str | None, typer.Option(help="Initialisation by name, length_preserving among them.", rich_help_panel=_WHAT)
    ] = None,
    epochs: Annotated[int | None, typer.Option(help="Passes over the data (10).", rich_help_panel=_HOW)] = None,
    steps: Annotated[int | None, typer.Option(help="Steps, where these end the run first.", rich_help_panel=_HOW)] = None,
    batch_size: Annotated[int | None, typer.Option(help="Images a step, over all devices (128).", rich_help_panel=_HOW)] = None,
    optimiser: Annotated[str | None, typer.Option(help="adam or sgd (adam).", rich_help_panel=_HOW)] = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate (0.001).", rich_help_panel=_HOW)] = None,
    schedule: Annotated[
        str | None, typer.Option(help="constant, exponential, inverse or multistep (constant).", rich_help_panel=_HOW)
    ] = None,
    loss: Annotated[
        str | None, typer.Option(help="By name; what fits the model if none is given.", rich_help_panel=_HOW)
    ] = None,
    target_accuracy: Annotated[
        float | None, typer.Option(help="Stop after the first epoch that reaches it.", rich_help_panel=_HOW)
    ] = None,
    watch: Annotated[
        int | None,
        typer.Option(help="Steps between looks at the health of the capsule layers; 0 never (0).", rich_help_panel=_HOW),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Of weights and samples (0).", rich_help_panel=_HOW)] = None,
    seeds: Annotated[
        int | None,
        typer.Option(help="So many runs, their seeds counted up from --seed, several at once.", rich_help_panel=_HOW),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", "-s", help="KEY=VALUE: a training field, model.OPTION or data.OPTION.", rich_help_panel=_HOW),
    ] = None,
    precision: Annotated[str | None, typer.Option(help="float32, tf32 or bf16 (float32).", rich_help_panel=_WHERE)] = None,
    fast: Annotated[
        bool | None, typer.Option("--fast", help="Compile the step; on a GPU one CUDA graph a step.", rich_help_panel=_WHERE)
    ] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu or cuda (auto).", rich_help_panel=_WHERE)] = None,
    devices: Annotated[int | None, typer.Option(help="Processes, one device each (1).", rich_help_panel=_WHERE)] = None,
    at_once: Annotated[
        int | None,
        typer.Option(
            help="With --seeds: runs at a time (8 on a GPU, one for two cores on a CPU).",
            rich_help_panel=_WHERE,
        ),
    ] = None,
    mps: Annotated[
        bool | None,
        typer.Option(
            "--mps/--no-mps",
            help="With --seeds: share the GPU under NVIDIA's MPS (where it is installed and several runs go at once).",
            rich_help_panel=_WHERE,
        ),
    ] = None,
    one_program: Annotated[
        bool,
        typer.Option(
            "--one-program",
            help="With --seeds: the runs that go at once take turns in one process, instead of one process each.",
            rich_help_panel=_WHERE,
        ),
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(help="The run's folder (runs/MODEL-DATA-1); with --seeds that of all runs.", rich_help_panel=_WHERE),
    ] = None,
    resume: Annotated[Path | None, typer.Option(help="Go on with the run in this folder.", rich_help_panel=_WHERE)] = None,
    root: Annotated[Path | None, typer.Option(help="The data directory.", rich_help_panel=_WHERE)] = None,
    tensorboard: Annotated[
        bool, typer.Option("--tensorboard", help="Write TensorBoard's events too.", rich_help_panel=_WHERE)
    ] = False,
) -> None:
    """Train a model and write the run to a folder: config, metrics, checkpoints, record.

    With --seeds N, N runs go side by side, each in its own folder; the same command with --out goes on with them.

    On several machines: torchrun --nnodes N --nproc-per-node M … -m capsella train MODEL --data NAME …
    """
    given: dict[str, Any] = {
        "epochs": epochs,
        "steps": steps,
        "batch_size": batch_size,
        "optimiser": optimiser,
        "lr": lr,
        "schedule": schedule,
        "loss": loss,
        "target_accuracy": target_accuracy,
        "watch": watch,
        "seed": seed,
        "precision": precision,
        "fast": fast,
        "device": device,
        "devices": devices,
        "model.init": init,
    }
    with users_mistakes():
        settings = {key: value for key, value in given.items() if value is not None} | key_values(set_ or [])
        if seeds is not None:
            _check_new(model, data)
            refuse_with_seeds({"--resume": resume, "--tensorboard": tensorboard or None})
            plan = _plan(str(model), str(data), split or "fit", validate, settings)
            run_seeds(plan, seeds, at_once=at_once, mps=mps, program=one_program, out=out, root=root)
            return
        if at_once is not None:
            raise ValueError(f"--at-once={at_once} is for several runs; expected --seeds N with it")
        if mps is not None:
            raise ValueError(f"{'--mps' if mps else '--no-mps'} is for several runs; expected --seeds N with it")
        if one_program:
            raise ValueError("--one-program is for several runs; expected --seeds N with it")
        if resume is None:
            _check_new(model, data)
            plan, folder = _new(str(model), str(data), split or "fit", validate, settings, out)
        else:
            own = {"MODEL": model, "--data": data, "--split": split, "--validate": validate, "--out": out}
            given_too = [name for name, value in own.items() if value is not None]
            if given_too:
                raise ValueError(f"--resume takes model, data and folder from the run; leave out {', '.join(given_too)}")
            plan, folder = _old(resume, settings)
        _run(plan, folder, resume=resume is not None, root=root, tensorboard=tensorboard)


def _check_new(model: str | None, data: str | None) -> None:
    for value, what, example in (
        (model, "MODEL", "capsella train capsnet_small --data mnist"),
        (data, "--data", "--data mnist"),
    ):
        if value is None:
            raise ValueError(f"{what} is missing; for example: {example} (or --resume RUN)")


def _new(
    model: str, data: str, split: str, validate: str | None, settings: dict[str, Any], out: Path | None
) -> tuple[Any, Path]:
    from capsella.train.folder import RunFolder, next_free

    plan = _plan(model, data, split, validate, settings)
    folder = out if out is not None else next_free(RUNS, f"{model}-{data}")
    RunFolder(folder).check_new()
    return plan, folder


def _plan(model: str, data: str, split: str, validate: str | None, settings: dict[str, Any]) -> Any:
    from capsella.train.plan import Plan

    chosen = validate if validate is not None else "val" if split == "fit" else "none"
    return Plan(model, data, split=split, validate=None if chosen == "none" else chosen).changed(settings)


def _old(folder: Path, settings: dict[str, Any]) -> tuple[Any, Path]:
    from capsella.train.folder import RunFolder
    from capsella.train.plan import Plan

    config = RunFolder(folder).read_config()
    if "plan" not in config:
        raise ValueError(f"run={str(folder)!r} was not made by capsella train; go on with capsella.fit(…, resume=True)")
    return Plan.of(config["plan"]).changed(settings), folder


def _run(plan: Any, folder: Path, *, resume: bool, root: Path | None, tensorboard: bool) -> None:
    import os

    from capsella.train.board import Board
    from capsella.train.plan import run_plan
    from capsella.train.processes import without_subnormals

    # processes beside the first one work in silence.
    first = os.environ.get("RANK", "0") == "0" and os.environ.get("LOCAL_RANK", "0") == "0"
    board = Board(folder) if tensorboard and first else None
    try:
        with without_subnormals():
            run = run_plan(plan, folder, root=root, resume=resume, progress=first, listeners=[board] if board else [])
    finally:
        if board:
            board.close()
    if first:
        _tell(run, folder, root)


def _tell(run: Any, folder: Path, root: Path | None) -> None:
    console = Console(highlight=False)
    console.print(in_one_line(run.record), markup=False, soft_wrap=True)
    again = shlex.join(["capsella", "evaluate", str(folder), *(["--root", str(root)] if root is not None else [])])
    console.print(f"the run is in {folder}; look at it with: {again}", markup=False, soft_wrap=True)
