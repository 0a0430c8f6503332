"""``capsella doctor``: what is wrong with a trained capsule network."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from capsella.cli.bench_records import console
from capsella.cli.doctor_tables import show
from capsella.cli.evaluate import load_for
from capsella.cli.mistakes import users_mistakes
from capsella.cli.options import key_values

# what a record is made again with; everything else is measured, or says on what.
_OF_RECORDS = ("run", "html", "as_json", "fail_on")


def doctor(
    context: typer.Context,
    run: Annotated[Path, typer.Argument(help="Folder of a run, or a record that --json wrote: of that nothing is measured.")],
    data: Annotated[str | None, typer.Option(help="A data set; the run's own if none is named.")] = None,
    split: Annotated[str, typer.Option(help="train, fit, val or test.")] = "test",
    option: Annotated[list[str] | None, typer.Option("--option", "-o", help="KEY=VALUE, an option of the set.")] = None,
    sample: Annotated[int, typer.Option(help="Images that are also turned, negated, and routed otherwise.")] = 512,
    sweep: Annotated[bool, typer.Option("--sweep", help="Count active capsules at several thresholds.")] = False,
    compactness: Annotated[
        bool, typer.Option("--compactness", help="Measure gu2021's score for each factor of variation; 66 passes more.")
    ] = False,
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
        from capsella.analysis.doctor import FIGURES, summary
        from capsella.analysis.records import as_json as as_text
        from capsella.analysis.records import completed
        from capsella.analysis.symptoms import condition
        from capsella.data.places import is_writable

        conditions = [condition(text, FIGURES) for text in fail_on or []]
        for name, path in (("--html", html), ("--json", as_json)):
            if path is not None and str(path) != "-" and (path.is_dir() or not is_writable(path.parent)):
                raise ValueError(f"{name}={path} cannot be written to; expected a file in a folder of yours")
        if run.is_file():
            _check_options(context, run)
            record = _again(run)
        else:
            options = {"sample": sample, "sweep": sweep, "compactness": compactness, "batch_size": batch_size}
            record = _examined(run, data, split, key_values(option or []), root, device, options)
    if as_json is not None and str(as_json) == "-":
        typer.echo(as_text(record), nl=False)
    else:
        show(console(), completed(record))
        if as_json is not None:
            _write(as_json, as_text(record))
    if html is not None:
        from capsella.report.doctor import doctor_page

        _write(html, doctor_page(record))
        typer.echo(f"{html} has the trees and plots", err=True)
    _fail(summary(record), conditions)


def _check_options(context: typer.Context, path: Path) -> None:
    """Raise ``ValueError`` for an option that a record has no use for."""
    for parameter in context.command.params:
        source = context.get_parameter_source(str(parameter.name))
        if parameter.name not in _OF_RECORDS and source is not None and source.name == "COMMANDLINE":
            raise ValueError(f"{parameter.opts[0]} is for a run; {path} is a record, of which nothing is measured")


def _again(path: Path) -> dict[str, Any]:
    """Return a record with the symptoms that its figures show now."""
    from capsella.analysis.records import read_record
    from capsella.analysis.symptoms import find_symptoms
    from capsella.analysis.words import in_words

    record = read_record(path)
    try:
        symptoms = find_symptoms(record)
        in_words(record, symptoms)
    except (TypeError, KeyError, AttributeError, IndexError) as error:
        raise ValueError(f"{path} is a damaged record ({error}); expected what capsella doctor --json wrote") from error
    return {**record, "symptoms": [symptom.as_dict() for symptom in symptoms]}


def _examined(
    run: Path,
    data: str | None,
    split: str,
    data_options: dict[str, Any],
    root: Path | None,
    device: str,
    options: dict[str, Any],
) -> dict[str, Any]:
    from capsella.analysis import diagnose
    from capsella.train import Run
    from capsella.train.plan import start_of
    from capsella.train.run import loss_of, moved_to

    loaded = Run.load(run)
    examined = load_for(loaded.config, data, split, data_options, root)
    model = dict(loaded.config["model"])
    start = start_of(loaded.config)
    if start is not None:
        model["init"] = start
    facts = {"run": str(run), "data": examined.name, "split": split, "model": model}
    with moved_to(loaded.model, device):
        found = diagnose(loaded.model, examined, loss=loss_of(loaded), events=loaded.events, facts=facts, **options)
    return found.as_dict()


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


def _write(path: Path, text: str) -> None:
    from capsella.data.places import whole_or_nothing

    with whole_or_nothing(path) as file:
        file.write(text.encode())
