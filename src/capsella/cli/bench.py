"""``capsella bench``: how fast it is on this machine, beside what memory allows."""

from __future__ import annotations

import json
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
    root: Annotated[Path | None, typer.Option(help="The data directory.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write the record to this JSON file.")] = None,
) -> None:
    """Time drawing batches and loading MNIST."""
    import torch

    from capsella.bench.data import measure
    from capsella.data.places import whole_or_nothing
    from capsella.errors import check_count

    with users_mistakes():
        check_count("--batch-size", batch_size)
        chosen = _device(device)
        found = measure(torch.device(chosen), root=root, batch_size=batch_size)
    _print(Console(highlight=False), found)
    if out is not None:
        with whole_or_nothing(out) as file:
            file.write((json.dumps(found, indent=1) + "\n").encode())


def _device(name: str | None) -> str:
    """Return a device that is there."""
    import torch

    if name is None:
        return "cuda" if torch.cuda.is_available() else "cpu"
    if name.split(":")[0] not in ("cpu", "cuda"):
        raise ValueError(f"--device={name} is unknown; expected cpu or cuda")
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise ValueError(f"--device={name} is not here: torch {torch.__version__} sees no GPU; use --device cpu")
    return name


def _print(console: Console, found: dict[str, Any]) -> None:
    title = f"{found['kind']} on {found['device']}, torch {found['torch']}, batches of {found['batch_size']}"
    table = Table("what", "unit", title=title, title_justify="left")
    for name in ("median", "lowest", "highest", "floor"):
        table.add_column(name, justify="right")
    table.add_column("where the floor comes from")
    for reading in found["readings"]:
        values = (reading["median"], reading["low"], reading["high"], reading["floor"])
        shown = [f"{value:,.0f}" if value >= 1000 else f"{value:.3g}" for value in values]
        table.add_row(reading["name"], reading["unit"], *shown, reading["floor_says"])
    console.print(table)
