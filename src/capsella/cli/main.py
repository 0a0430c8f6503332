"""The command line: one verb per file, torch loaded only by a verb that needs it."""

from __future__ import annotations

import os
import sys

import typer

from capsella import __version__
from capsella.cli.attack import attack
from capsella.cli.bench import bench
from capsella.cli.compare import compare
from capsella.cli.data import data
from capsella.cli.doctor import doctor
from capsella.cli.evaluate import evaluate
from capsella.cli.explore import explore
from capsella.cli.export import export
from capsella.cli.info import info
from capsella.cli.predict import predict
from capsella.cli.quickstart import quickstart
from capsella.cli.reproduce import reproduce
from capsella.cli.train import train

# what the parser makes of Ctrl-C, without a word of its own.
_INTERRUPTED = 130

app = typer.Typer(name="capsella", pretty_exceptions_enable=False)


def _version(value: bool) -> None:
    if value:
        typer.echo(f"capsella {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Show the version and exit."),
) -> None:
    """Capsule networks in PyTorch: train them, measure them, and every model of five papers by name."""


for verb in (quickstart, train, evaluate, doctor, attack, predict, compare, reproduce, explore, export, info):
    app.command()(verb)
app.add_typer(data)
app.add_typer(bench)


def main(arguments: list[str] | None = None) -> None:
    """Run the program: exit code 0 on success, 2 for a user's mistake (one line on stderr), 1 for a failure.

    Args:
        arguments: what follows the program's name; the process's own if None.
    """
    try:
        _main(arguments)
    except SystemExit as stop:
        _leave_processes(stop.code)
        raise


def _leave_processes(code: object) -> None:
    """End at once if this is one of several processes: threads that wait for the others may abort a slower end."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.distributed.is_available() and torch.distributed.is_initialized():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else 0)


def _main(arguments: list[str] | None) -> None:
    try:
        code = app(
            args=(sys.argv[1:] if arguments is None else arguments) or ["--help"], prog_name="capsella", standalone_mode=False
        )
    except Exception as error:
        # the parser's own errors have no public base class across typer's releases; they know how to say themselves.
        if not hasattr(error, "format_message"):
            raise
        message = " ".join(str(error.format_message()).split())
        typer.echo(f"capsella: {message} (capsella --help lists what there is)", err=True)
        sys.exit(2)
    if code == _INTERRUPTED:
        typer.echo("capsella: interrupted; nothing was left half-written", err=True)
    sys.exit(code if isinstance(code, int) else 0)
