"""Users' mistakes and failures that a user can mend: one line on stderr, no traceback."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from capsella.errors import DataError, RunError


@contextmanager
def users_mistakes() -> Iterator[None]:
    """Turn a ``ValueError`` or ``TypeError`` of the library into exit code 2; wrap only what reads users' arguments.

    Data that is missing or broken and a run that cannot go on are failures and no mistakes: exit code 1, one line as well. A
    run that was asked to stop exits as a shell expects of the signal.
    """
    try:
        yield
    except (DataError, RunError) as error:
        typer.echo(f"capsella: {error}", err=True)
        number = getattr(error, "signal", None)
        if number is not None:
            # not by way of the parser, which has a word of its own for 130.
            sys.exit(128 + number)
        raise typer.Exit(1) from error
    except (ValueError, TypeError) as error:
        typer.echo(f"capsella: {error}", err=True)
        raise typer.Exit(2) from error
