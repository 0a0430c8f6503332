"""Users' mistakes on the command line: one line on stderr, exit code 2, no traceback."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import typer


@contextmanager
def users_mistakes() -> Iterator[None]:
    """Turn a ``ValueError`` or ``TypeError`` of the library into exit code 2; wrap only what reads users' arguments."""
    try:
        yield
    except (ValueError, TypeError) as error:
        typer.echo(f"capsella: {error}", err=True)
        raise typer.Exit(2) from error
