"""Pages: a template and its values become one HTML file that asks for nothing else."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from capsella import __version__
from capsella.errors import check_choice

if TYPE_CHECKING:
    from jinja2 import Environment


@functools.cache
def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    # strict: a misspelt value is an error, not an empty place on a page.
    return Environment(
        loader=PackageLoader("capsella.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def render(template: str, **context: Any) -> str:
    """Fill a template of this package; values are escaped unless the template says that they are markup.

    Args:
        template: file name, such as ``"quickstart.html"``.
        **context: what the template asks for; a value that is missing is an error.
    """
    environment = _environment()
    check_choice("template", template, environment.list_templates())
    return environment.get_template(template).render(version=__version__, **context)


def write_page(path: Path, html: str) -> None:
    """Write a page whole or not at all; folders are made where they are missing."""
    write_pages({Path(path): html})


def write_pages(files: Mapping[Path, str]) -> None:
    """Write all files or none; nothing takes its place before all are written, and the first of them comes last."""
    # here, because data loads torch and a page may be made of records alone.
    from capsella.data.places import whole_or_nothing

    with contextlib.ExitStack() as stack:
        for path, text in files.items():
            stack.enter_context(whole_or_nothing(path)).write(text.encode())
