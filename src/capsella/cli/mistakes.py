"""Users' mistakes and failures that a user can mend: one line on stderr, no traceback."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import typer

from capsella.errors import DataError


@contextmanager
def users_mistakes() -> Iterator[None]:
    """Turn a ``ValueError`` or ``TypeError`` of the library into exit code 2; wrap only what reads users' arguments.

    Data that is missing or broken is a failure and no mistake: exit code 1, one line as well.
    """
    try:
        yield
    except DataError as error:
        typer.echo(f"capsella: {error}", err=True)
        raise typer.Exit(1) from error
    except (ValueError, TypeError) as error:
        typer.echo(f"capsella: {error}", err=True)
        raise typer.Exit(2) from error
