"""``capsella doctor``: what is wrong with a trained capsule network."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from capsella.cli.bench_records import console
from capsella.cli.evaluate import load_for
from capsella.cli.mistakes import users_mistakes
from capsella.cli.options import key_values


def doctor(
    run: Annotated[Path, typer.Argument(help="Folder of a run.")],
    data: Annotated[str | None, typer.Option(help="A data set; the run's own if none is named.")] = None,
    split: Annotated[str, typer.Option(help="train, fit, val or test.")] = "test",
    option: Annotated[list[str] | None, typer.Option("--option", "-o", help="KEY=VALUE, an option of the set.")] = None,
    sample: Annotated[int, typer.Option(help="Images that are also turned, negated, and routed otherwise.")] = 512,
    sweep: Annotated[bool, typer.Option("--sweep", help="Count active capsules at several thresholds.")] = False,
    html: Annotated[Path | None, typer.Option(help="Write a page with trees and plots to this file.")] = None,
    as_json: Annotated[Path | None, typer.Option("--json", help="Write the record to this file; - prints it.")] = None,
    fail_on: Annotated[
        list[str] | None, typer.Option("--fail-on", help="Exit with 1 where this holds, such as 'dead>0.2'; may be repeated.")
    ] = None,
    batch_size: Annotated[int, typer.Option(help="Images at once.")] = 256,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    root: Annotated[Path | None, typer.Option(help="The data directory.")] = None,
) -> None:
    """Say what is wrong with a run's capsules: dead ones, static routing, blindness for signs and views; and what to try."""
    with users_mistakes():
        from capsella.analysis.doctor import FIGURES
        from capsella.analysis.symptoms import condition
        from capsella.data.places import is_writable
        from capsella.train import Run

        conditions = [condition(text, FIGURES) for text in fail_on or []]
        for name, path in (("--html", html), ("--json", as_json)):
            if path is not None and str(path) != "-" and (path.is_dir() or not is_writable(path.parent)):
                raise ValueError(f"{name}={path} cannot be written to; expected a file in a folder of yours")
        loaded = Run.load(run)
        examined = load_for(loaded.config, data, split, key_values(option or []), root)
        found = _diagnose(loaded, examined, sample=sample, sweep=sweep, batch_size=batch_size, device=device)
    record = {"run": str(run), "data": examined.name, "split": split, "model": loaded.config["model"], **found.as_dict()}
    if as_json is not None and str(as_json) == "-":
        typer.echo(json.dumps(record, indent=1))
    else:
        _show(console(), found)
        if as_json is not None:
            _write(as_json, json.dumps(record, indent=1) + "\n")
    if html is not None:
        from capsella.report.doctor import doctor_page

        title = f"{loaded.config['model'].get('name', 'network')} on {examined.name}/{split}"
        _write(html, doctor_page(record, **_pictures(found, examined), title=title))
        typer.echo(f"{html} has the trees and plots", err=True)
    _fail(found.summary(), conditions)


def _diagnose(loaded: Any, examined: Any, *, device: str, **options: Any) -> Any:
    from capsella.analysis import diagnose
    from capsella.train.run import loss_of, moved_to

    with moved_to(loaded.model, device):
        return diagnose(loaded.model, examined, loss=loss_of(loaded), **options)


def _pictures(found: Any, examined: Any) -> dict[str, Any]:
    """Return the trees, and the images that they are of as they are shown."""
    from capsella.report.inside import shown

    images = [] if found.images is None else [shown(image) for image in found.images]
    return {
        "trees": [tree.as_dict() for tree in found.trees],
        "view": None if found.view is None else found.view.as_dict(),
        "statistics": None if found.statistics is None else found.statistics.as_dict(),
        "images": images,
        "class_names": [str(name) for name in examined.class_names],
    }


def _fail(summary: dict[str, float], conditions: list[Any]) -> None:
    """Leave with 1 where a condition holds, or where its figure is not there."""
    failed = False
    for each in conditions:
        value = summary.get(each.key)
        if value is None:
            typer.echo(f"capsella: {each}: {each.key} was not measured here", err=True)
            failed = True
        elif each.holds(value):
            typer.echo(f"capsella: {each}: {each.key} is {value:.4g}", err=True)
            failed = True
    if failed:
        raise typer.Exit(1)


def _show(terminal: Console, found: Any) -> None:
    columns = ("layer", "capsules", "dead", "active", "length", "dyr", "dys", "entropy", "gradient")
    table = Table(title="Layers", title_justify="left")
    for number, heading in enumerate(columns):
        table.add_column(heading, justify="left" if number == 0 else "right")
    for number, layer in enumerate(found.record["layers"], 1):
        dys = "" if layer["dys"] is None else f"{layer['dys']:.2f} of {layer['live_targets']}"
        table.add_row(
            str(number),
            f"{layer['capsules']:,} × {layer['dim']}",
            f"{layer['cds']:,} ({layer['cdr']:.0%})",
            f"{layer['car']:.0%}",
            f"{layer['cnm']:.3f}",
            _figure(layer["dyr"]),
            dys,
            _figure(layer["entropy"]),
            "" if layer["gradient"] is None else f"{layer['gradient']:.1e}",
        )
    terminal.print(table)
    typer.echo(found.text(), nl=False)


def _figure(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def _write(path: Path, text: str) -> None:
    from capsella.data.places import whole_or_nothing

    with whole_or_nothing(path) as file:
        file.write(text.encode())
