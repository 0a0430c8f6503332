"""``capsella explore``: trained runs on a page in the browser."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from capsella.cli.evaluate import NotNamed, load_for
from capsella.cli.mistakes import users_mistakes
from capsella.cli.options import key_values


def explore(
    runs: Annotated[list[Path], typer.Argument(help="Folders of runs; the page compares any two of them.")],
    data: Annotated[str | None, typer.Option(help="A data set to pick images from; each run's own if none is named.")] = None,
    split: Annotated[str, typer.Option(help="train, fit, val or test.")] = "test",
    option: Annotated[list[str] | None, typer.Option("--option", "-o", help="KEY=VALUE, an option of the set.")] = None,
    images: Annotated[int, typer.Option(help="Images of the set that can be picked, the first ones.")] = 10_000,
    host: Annotated[
        str | None, typer.Option(help="An address that other machines reach; whoever asks there needs a token.")
    ] = None,
    port: Annotated[int | None, typer.Option(help="0 for any; if left out 8474, or any if that is taken.")] = None,
    open_browser: Annotated[bool, typer.Option("--open/--no-open", help="Open the page in the browser.")] = True,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    root: Annotated[Path | None, typer.Option(help="The data directory.")] = None,
) -> None:
    """Show on a local web page what trained networks make of images: parse trees, capsules, drawings (extra `explore`)."""
    with users_mistakes():
        from capsella.errors import check_count
        from capsella.train.export import need_extra

        need_extra("explore", "fastapi", "uvicorn", "pydantic", what="capsella explore")
        from capsella.web.server import HOST, place, serve

        check_count("--images", images)
        explorer = explorer_of(runs, data, split, key_values(option or []), images=images, device=device, root=root)
        try:
            where = place(HOST if host is None else host, port)
        except ValueError:
            explorer.close()
            raise
    for net in explorer.nets.values():
        if net.away is not None:
            typer.echo(f"{net.key}: no images to pick from: {net.away}", err=True)
    typer.echo(f"{', '.join(explorer.nets)}: {' or '.join(where.urls)}")
    if where.token is not None:
        typer.echo("other machines reach it: whoever has this address may ask, nobody else; what is sent is not encrypted")
    typer.echo("Ctrl-C ends it")
    serve(explorer, where, open_browser=open_browser)
    typer.echo("\nended")
    if explorer.is_examining:
        # a thread in the middle of a network cannot be ended, and would abort a slower end.
        sys.stdout.flush()
        os._exit(0)


def explorer_of(
    runs: Sequence[Path],
    data: str | None,
    split: str,
    options: dict[str, Any],
    *,
    images: int,
    device: str,
    root: Path | None,
) -> Any:
    """Return an explorer of runs, with their test images."""
    from capsella.data.splits import SPLITS
    from capsella.errors import check_choice
    from capsella.train import Run
    from capsella.train.run import put_on
    from capsella.web.explorer import Explorer, keys_of
    from capsella.web.net import Net

    check_choice("split", split, SPLITS)
    nets = []
    for key, folder in zip(keys_of(runs), runs, strict=True):
        run = Run.load(folder)
        with _said_of(folder):
            shown, away = _images(run.config, data, split, options, root)
        put_on(run.model, device)
        nets.append(Net.of(key, run, shown, title=folder.resolve().name, images=images, away=away))
    return Explorer(nets)


def _images(
    config: dict[str, Any], data: str | None, split: str, options: dict[str, Any], root: Path | None
) -> tuple[Any, str | None]:
    """Return the images that a run is shown; none, and why, where nobody asked for any and its own are not at hand."""
    from capsella.errors import DataError
    from capsella.web.away import without_images

    try:
        return load_for(config, data, split, options, root), None
    except (NotNamed, DataError) as error:
        none = None if data or options or root else without_images(config, split)
        if none is None:
            raise
        return none, str(error)


@contextmanager
def _said_of(folder: Path) -> Iterator[None]:
    """Put the folder of a run before what is wrong with its images: it may be one of several."""
    from capsella.errors import DataError

    try:
        yield
    except (ValueError, TypeError) as error:
        kind = next(each for each in (DataError, ValueError, TypeError) if isinstance(error, each))
        raise kind(f"{folder}: {error}") from error
