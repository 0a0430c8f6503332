"""``capsella export``: a trained network as one file for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from capsella.cli.mistakes import users_mistakes


def export(
    run: Annotated[Path, typer.Argument(help="The folder of a run, as `capsella train` writes it.")],
    format: Annotated[str, typer.Option(help="onnx (extra `export`) or pt2.")] = "onnx",
    out: Annotated[Path | None, typer.Option(help="The file, if not model.onnx or model.pt2 in the run's folder.")] = None,
    opset: Annotated[int | None, typer.Option(help="Of ONNX, 18 or more, if not the exporter's choice.")] = None,
) -> None:
    """Export a run's network to one file and check the file against the network; exit code 1 if they differ."""
    from capsella.errors import check_choice
    from capsella.train import Run
    from capsella.train.export import FORMATS, export_model

    with users_mistakes():
        check_choice("--format", format, FORMATS)
        found = export_model(Run.load(run).model, out or run / f"model.{format}", format=format, opset=opset)  # type: ignore[arg-type]
    console = Console(highlight=False)
    table = Table("output", "largest difference from the model", title=f"batches of {_sizes(found.batch_sizes)}")
    for name in found.outputs:
        table.add_row(name, f"{found.largest_difference[name]:.1e}")
    kind = found.format if found.opset is None else f"{found.format}, opset {found.opset}"
    console.print(escape(f"{found.path} ({kind}, {found.path.stat().st_size:,} bytes)"), soft_wrap=True)
    console.print(table)


def _sizes(sizes: tuple[int, ...]) -> str:
    return f"{', '.join(map(str, sizes[:-1]))} and {sizes[-1]}"
