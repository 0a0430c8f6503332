"""``capsella bench``: how fast it is on this machine, beside what memory allows."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from capsella.cli.mistakes import users_mistakes

bench = typer.Typer(name="bench")


@bench.callback(invoke_without_command=True)
def verbs(context: typer.Context) -> None:
    """Measure speed on this machine; nothing is timed that does not give the right values first."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@bench.command("data")
def data(
    device: Annotated[str | None, typer.Option(help="cpu or cuda; a GPU if there is one.")] = None,
    batch_size: Annotated[int, typer.Option(help="Images of a batch.")] = 128,
    images: Annotated[int | None, typer.Option(help="Images drawn in each repeat, if not about a second's worth.")] = None,
    root: Annotated[Path | None, typer.Option(readable=False, help="The data directory.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write the record to this JSON file.")] = None,
) -> None:
    """Time drawing batches and loading MNIST."""
    import torch

    from capsella.bench.data import measure
    from capsella.bench.timing import WrongValues
    from capsella.data.places import is_writable, whole_or_nothing
    from capsella.errors import check_count

    with users_mistakes():
        check_count("--batch-size", batch_size)
        if images is not None:
            check_count("--images", images)
        if out is not None and (out.is_dir() or not is_writable(out.parent)):
            raise ValueError(f"--out={out} cannot be written to; expected a file in a folder of yours")
        chosen = torch.device(_device(device))
        try:
            found = measure(chosen, root=root, batch_size=batch_size, images=images)
        except WrongValues as error:
            typer.echo(f"capsella: {error}", err=True)
            raise typer.Exit(1) from error
    _print(Console(highlight=False), found)
    if out is not None:
        with whole_or_nothing(out) as file:
            file.write((json.dumps(found, indent=1) + "\n").encode())


def _device(name: str | None) -> str:
    """Return a device that is there."""
    import torch

    if name is None:
        return "cuda" if torch.cuda.is_available() else "cpu"
    if not re.fullmatch(r"cpu|cuda(:\d+)?", name):
        raise ValueError(f"--device={name} is unknown; expected cpu, cuda or cuda:0")
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise ValueError(f"--device={name} is not here: torch {torch.__version__} sees no GPU; use --device cpu")
    return name


def _print(console: Console, found: dict[str, Any]) -> None:
    title = f"{found['kind']} on {found['device']}, torch {found['torch']}, batches of {found['batch_size']}"
    table = Table("what", title=title, title_justify="left")
    for name in ("median", "lowest", "highest", "floor"):
        table.add_column(name, justify="right")
    floors = {}
    for reading in found["readings"]:
        values = (reading["median"], reading["low"], reading["high"], reading["floor"])
        shown = [f"{value:,.0f}" if value >= 1000 else f"{value:.3g}" for value in values]
        table.add_row(f"{reading['name']}, {reading['unit']}", *shown)
        floors[reading["name"].rsplit(", ", 1)[0]] = reading["floor_says"]
    console.print(table)
    for name, says in floors.items():
        console.print(f"floor of {name}: {says}")
