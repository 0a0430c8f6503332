"""``capsella evaluate``: how good a trained network is on a data set."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from capsella.cli.mistakes import users_mistakes
from capsella.cli.options import key_values


def evaluate(
    run: Annotated[Path, typer.Argument(help="Folder of a run.")],
    data: Annotated[str | None, typer.Option(help="A data set; the run's own if none is named.")] = None,
    split: Annotated[str, typer.Option(help="train, fit, val or test.")] = "test",
    option: Annotated[list[str] | None, typer.Option("--option", "-o", help="KEY=VALUE, an option of the set.")] = None,
    batch_size: Annotated[int, typer.Option(help="Images at once.")] = 256,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    root: Annotated[Path | None, typer.Option(help="The data directory.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Show accuracy, confusion matrix and calibration of a run's network."""
    with users_mistakes():
        from capsella.errors import check_count
        from capsella.train import Run

        check_count("batch_size", batch_size)
        loaded = Run.load(run)
        split_data = load_for(loaded.config, data, split, key_values(option or []), root)
        found = loaded.evaluate(split_data, batch_size=batch_size, device=device)
    if as_json:
        typer.echo(json.dumps({"run": str(run), "data": split_data.name, "split": split, **found.as_dict()}, indent=1))
        return
    _show(Console(highlight=False), found, split_data)


class NotNamed(ValueError):
    """A run's own data, which a command cannot find without an option that names it."""


# a set that is what a folder holds, wherever that lies.
_OF_A_ROOT = "folder"


def load_for(config: dict[str, Any], name: str | None, split: str, options: dict[str, Any], root: Path | None) -> Any:
    """Load what to evaluate on, by default what the run's own options say of its own set."""
    from capsella.data import list_data, load_data

    trained = config["data"]["train"]
    own = name is None or name == trained["name"]
    if own and trained["name"] not in list_data():
        raise NotNamed(
            f"--data is missing; the run was trained on {trained['name']!r}, which has no name in capsella data list"
        )
    if root is None and (name or trained["name"]) == _OF_A_ROOT:
        raise NotNamed(f"--root is missing; expected the folder that holds the images of {_OF_A_ROOT!r}, one folder per class")
    kept = {key: value for key, value in trained["options"].items() if own or key == "normalise"}
    # what is evaluated on is not changed at random, and an augmentation of one's own has no name.
    kept.pop("augment", None)
    return load_data(str(name or trained["name"]), split=split, root=root, **{**kept, **options})


def _show(console: Console, found: Any, data: Any) -> None:
    console.print(f"{data.name}/{data.split}: {found.accuracy:.2%} of {found.images:,} images right")
    if found.confusion is None:
        return
    # a network that knows more classes than the data has no names for them.
    known = [escape(str(name)) for name in data.class_names]
    names = [*known, *map(str, range(len(known), len(found.confusion)))]
    if len(names) <= 20:
        table = Table("true \\ predicted", title="Confusion matrix", title_justify="left")
        for name in names:
            table.add_column(name, justify="right")
        for name, row in zip(names, found.confusion.tolist(), strict=True):
            table.add_row(name, *(str(count) if count else "·" for count in row))
        console.print(table)
    bins = Table(title="Calibration", title_justify="left")
    for heading in ("confidence", "right", "images"):
        bins.add_column(heading, justify="right")
    for confidence, right, count in found.calibration:
        bins.add_row(f"{confidence:.3f}", f"{right:.3f}", f"{count:,}")
    console.print(bins)
    console.print(f"expected calibration error {found.calibration_error:.4f}")
