"""``capsella data``: which data sets there are, fetching them, checking what lies on disk."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from capsella.cli.mistakes import users_mistakes
from capsella.cli.options import key_values

if TYPE_CHECKING:
    from capsella.data import Places
    from capsella.data.sources import Files

data = typer.Typer(name="data")

Root = Annotated[
    Path | None,
    # unreadable is for the library to say, as it does for $CAPSELLA_DATA.
    typer.Option(readable=False, help="The data directory, if not $CAPSELLA_DATA or the cache folder."),
]


@data.callback(invoke_without_command=True)
def verbs(context: typer.Context) -> None:
    """List data sets, fetch them, check what lies on disk."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@data.command("list")
def list_sets(root: Root = None) -> None:
    """List the data sets and say which are here."""
    from capsella.data import Places, data_entry, list_data

    console = Console(highlight=False)
    with users_mistakes():
        places = Places.find(root)
    table = Table("name", "what", "here", title="Data sets", title_justify="left")
    for name in list_data():
        entry = data_entry(name)
        options = ", ".join(f"{key}={value!r}" for key, value in entry.options.items())
        what = f"{entry.summary}\n[dim]{options}[/dim]" if options else entry.summary
        table.add_row(name, what, _presence(entry.files, places))
    console.print(table)
    console.print(escape(f"data directory: {places.root}\ncache folder:   {places.cache}"), soft_wrap=True)


def _presence(files: Files | None, places: Places) -> str:
    from capsella.data.sources import locate

    if files is None:
        return "nothing to fetch"
    found = sum(locate(file, places.folders(files.name)) is not None for file in files.files)
    if found == len(files.files):
        return "yes"
    return f"{found} of {len(files.files)} files" if found else "no"


@data.command("get")
def get(
    name: Annotated[str, typer.Argument(help="One of the names that `capsella data list` shows.")],
    split: Annotated[str | None, typer.Option(help="train, fit, val or test; train and test if none is named.")] = None,
    option: Annotated[list[str] | None, typer.Option("--option", "-o", help="KEY=VALUE, an option of the set.")] = None,
    root: Root = None,
) -> None:
    """Fetch a data set, or make it, and check it."""
    from capsella.data import load_data
    from capsella.data.splits import SPLITS
    from capsella.errors import check_choice

    console = Console(highlight=False)
    with users_mistakes():
        options = key_values(option or [])
        for key in {"name", "split", "root"} & options.keys():
            raise ValueError(
                f"-o {key}=… has a place of its own; expected {'the argument NAME' if key == 'name' else f'--{key}'}"
            )
        if split is not None:
            check_choice("split", split, SPLITS)
        table = Table("split", "images", "shape", "classes", "digest", title=name, title_justify="left")
        for part in ("train", "test") if split is None else (split,):
            loaded = load_data(name, split=part, root=root, **options)
            shape = " × ".join(map(str, loaded.image_shape))
            table.add_row(part, f"{len(loaded):,}", shape, str(loaded.num_classes), loaded.digest[:16])
    console.print(table)


@data.command("verify")
def verify(
    name: Annotated[str | None, typer.Argument(help="A data set; all that are here if none is named.")] = None,
    root: Root = None,
) -> None:
    """Check every file on disk against its checksum; exit code 1 if one is not what it should be."""
    from capsella.data import Places, data_entry, list_data
    from capsella.data.affnist import cached_sets

    console = Console(highlight=False)
    with users_mistakes():
        places = Places.find(root)
        chosen = [data_entry(name)] if name is not None else [data_entry(each) for each in list_data()]
    sets = {entry.files.name: entry.files for entry in chosen if entry.files is not None}
    table = Table("file", "state", title="Files", title_justify="left")
    states = [state for files in sets.values() for state in _check(files, places, quiet=name is None)]
    if name is None or name.startswith("affnist"):
        states += [(str(path), "sound" if sound else WRONG) for path, sound in cached_sets(places)]
    for path, state in states:
        table.add_row(escape(path), escape(state))
    if states:
        console.print(table)
    else:
        console.print(escape(f"no files of data sets in {places.root} or {places.cache}"), soft_wrap=True)
    wrong = [path for path, state in states if state.startswith((WRONG, ABSENT))]
    if wrong:
        typer.echo(f"capsella: {len(wrong)} of {len(states)} files are not as they should be: {', '.join(wrong)}", err=True)
        raise typer.Exit(1)


WRONG, ABSENT = "wrong", "not here"


def _check(files: Files, places: Places, *, quiet: bool) -> list[tuple[str, str]]:
    """Return each file and its state; of a set that nobody asked for, only files that are there."""
    from capsella.data.sources import locate, read_checked
    from capsella.errors import DataError

    rows = []
    for file in files.files:
        path = locate(file, places.folders(files.name))
        if path is None:
            rows += [] if quiet else [(f"{files.name}/{file.name}", ABSENT)]
            continue
        try:
            read_checked(path, file)
            rows.append((str(path), "sound" if file.checksum else "here; no checksum is published"))
        except DataError as error:
            rows.append((str(path), f"{WRONG}: {str(error).removeprefix(f'{path} ')}"))
    return rows
