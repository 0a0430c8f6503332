"""``capsella bench explore``: how long the page waits after a stroke, for one who draws and for many."""

from __future__ import annotations

from typing import Annotated

import typer

from capsella.cli import bench_tables
from capsella.cli.bench_records import Device, Out, Quick, check_out, chosen_device, collect, console, fail_if_red, say
from capsella.cli.mistakes import users_mistakes


def explore(
    device: Device = None,
    model: Annotated[str, typer.Option(help="By name.")] = "capsnet_small",
    strokes: Annotated[int | None, typer.Option(help="Of each view; 200 if left out.")] = None,
    clients: Annotated[int | None, typer.Option(help="Instead of every view, one that so many draw in at once.")] = None,
    seconds: Annotated[float | None, typer.Option(help="How long these draw; 60 if left out.")] = None,
    quick: Quick = False,
    out: Out = None,
) -> None:
    """Time what the explorer's page waits for after a stroke, over a socket, after a check of its values."""
    with users_mistakes():
        check_out(out)
        chosen = chosen_device(device)
        from capsella.errors import check_choice, check_count, check_number
        from capsella.models.registry import list_models
        from capsella.train.export import need_extra

        need_extra("explore", "fastapi", "uvicorn", "pydantic", what="capsella bench explore")
        from capsella.web import load
        from capsella.web import strokes as bench_strokes

        check_choice("model", model, list_models())
        if model == "sign_capsnet":
            raise ValueError(f"model={model!r} sees numbers and no images; expected a model of images")
        if strokes is not None:
            check_count("--strokes", strokes)
        if seconds is not None:
            check_number("--seconds", seconds, above=0)
        if clients is None and seconds is not None:
            raise ValueError(f"--seconds={seconds:g} is for --clients, which is missing; expected both, or --strokes")
        if clients is not None:
            check_count("--clients", clients)
            if strokes is not None:
                raise ValueError(f"--strokes={strokes} is for one who draws; expected --seconds beside --clients={clients}")
    if clients is not None:
        long = load.SECONDS if seconds is None else seconds
        drawn = load.readings(model, chosen, clients=clients, seconds=min(long, 1) if quick else long, say=say)
        found = collect("load", chosen, drawn, out, lambda _: {"model": model})
        bench_tables.print_load(console(), found)
    else:
        many = bench_strokes.STROKES if strokes is None else strokes
        taken = bench_strokes.readings(
            model, chosen, strokes=min(many, 5) if quick else many, images=200 if quick else 10_000, say=say
        )
        found = collect("explore", chosen, taken, out, lambda _: {"model": model})
        bench_tables.print_strokes(console(), found)
    fail_if_red(found)
