"""The command line: one verb per file, torch loaded only by a verb that needs it."""

from __future__ import annotations

import typer

from capsella import __version__
from capsella.cli.info import info

app = typer.Typer(
    name="capsella",
    help="Capsule networks in PyTorch: routing algorithms, layers and every model of five papers.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _version(value: bool) -> None:
    if value:
        typer.echo(f"capsella {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Show the version and exit."),
) -> None:
    """Capsule networks in PyTorch: routing algorithms, layers and every model of five papers."""


app.command()(info)


def main() -> None:
    """Run the program: exit code 0 on success, 2 for a user's mistake (one line on stderr), 1 for a failure."""
    app(prog_name="capsella")
