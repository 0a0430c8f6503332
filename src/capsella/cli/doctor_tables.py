"""What ``capsella doctor`` prints: figures of every layer as tables, and the diagnosis in words."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import typer
from rich.console import Console
from rich.table import Table

_COLUMNS = ("layer", "capsules", "dead", "active", "length", "dyr", "dys", "entropy", "change", "gradient")


def show(terminal: Console, record: Mapping[str, Any]) -> None:
    """Print a record, every field of which is there."""
    from capsella.analysis.symptoms import find_symptoms
    from capsella.analysis.words import in_words

    terminal.print(_table("Layers", _COLUMNS, map(_layer, range(1, len(record["layers"]) + 1), record["layers"])))
    sweeps = [layer["sweep"] for layer in record["layers"]]
    if all(sweeps):
        columns = ["layer", *(f"from {row['active']:g}" for row in sweeps[0])]
        rows = [[str(number), *(f"{row['car']:.1%}" for row in sweep)] for number, sweep in enumerate(sweeps, 1)]
        terminal.print(_table("Active capsules, by length", columns, rows))
    if record["compactness"] is not None:
        terminal.print(_compactness(record["compactness"]))
    typer.echo(in_words(record, find_symptoms(record)), nl=False)


def _table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    table = Table(title=title, title_justify="left")
    for number, heading in enumerate(columns):
        table.add_column(heading, justify="left" if number == 0 else "right")
    for row in rows:
        table.add_row(*row)
    return table


def _layer(number: int, layer: Mapping[str, Any]) -> list[str]:
    from capsella.report.doctor import choices

    return [
        str(number),
        f"{layer['capsules']:,} × {layer['dim']}",
        f"{layer['cds']:,} ({layer['cdr']:.0%})",
        f"{layer['car']:.0%}",
        _figure(layer["cnm"]),
        _figure(layer["dyr"]),
        choices(layer),
        _figure(layer["entropy"]),
        ", ".join(_figure(value) for value in layer["change"] or []),
        _figure(layer["gradient"], ".1e"),
    ]


def _compactness(found: Mapping[str, Any]) -> Table:
    rows = [
        [factor, f"{row['from']:g} to {row['to']:g}".replace("-", "−"), _figure(row["mean"]), _figure(row["std"])]
        for factor, row in found["factors"].items()
    ]
    title = f"Compactness in nats, {math.log(found['values']):.2f} at most"
    return _table(title, ("factor", "from, to", "score", "spread"), rows)


def _figure(value: float | None, form: str = ".3f") -> str:
    return "" if value is None else f"{value:{form}}"
