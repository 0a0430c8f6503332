"""What ``capsella reproduce`` writes beside results: archives, papers' pages, the page of all papers; and where it may."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from capsella.errors import DataError

if TYPE_CHECKING:
    from capsella.papers.store import Store


def check_out(folder: Path, *, is_written: bool) -> None:
    """Raise ``ValueError`` unless results may lie in a folder; a file would look like a folder without any.

    Args:
        folder: need not exist.
        is_written: whether results will be.
    """
    from capsella.data.places import is_writable

    try:
        there = next((each for each in (folder, *folder.parents) if each.exists()), folder)
        if not there.is_dir():
            why = "is no folder" if there == folder else f"is in {there}, which is no folder"
        elif not os.access(there, os.R_OK | os.X_OK):
            why = "cannot be read"
        elif is_written and not is_writable(there):
            why = "cannot be written to"
        else:
            return
    except OSError as error:
        why = f"cannot be looked at ({error.strerror})"
    raise ValueError(f"--out={str(folder)!r} {why}; expected a folder of yours for results")


def check_pages(page: Path | None, claims: Path | None, *, quick: bool) -> None:
    """Raise ``ValueError`` where the page of all papers or the table of claims cannot be written."""
    if page is None and claims is None:
        return
    from capsella.cli.reproduce_overview import check_overview

    if quick:
        raise ValueError("--page and --claims are of whole runs; expected them without --quick")
    check_overview(page, claims)


def bring_out(store: Store, export: Path | None, page: Path | None, claims: Path | None) -> None:
    """Write what was asked for beside the results: an archive of them, the page of all papers, the table of claims."""
    if export is not None and not write_archive(store, export):
        raise DataError(nothing_to_write(store, export))
    if page is not None or claims is not None:
        from capsella.cli.reproduce_overview import write_overview

        write_overview(store, page, claims)
        typer.echo(" and ".join(str(each) for each in (page and page / "index.html", claims) if each) + " written", err=True)


def write_archive(store: Store, file: Path) -> int:
    """Write an archive of all results, if there are any, and say so; return how many."""
    count = store.export(file)
    if count:
        typer.echo(f"{file} has {count} results", err=True)
    return count


def nothing_to_write(store: Store, file: Path) -> str:
    """Say why there is no archive."""
    return f"{store.folder} has no results; {file} is not written"


def report(paper: Any, store: Store, *, quick: bool) -> Path:
    """Write a paper's own page, and return where it is."""
    from capsella.papers.paper import current
    from capsella.papers.store import said
    from capsella.report.papers import paper_report, write_report

    folder: Path = store.folder / paper.name
    files = paper_report(paper, current(paper, store, quick=quick), quick=quick)
    with said(folder):
        write_report(folder, files)
    return folder / "page.html"


def report_all(store: Store, *, quick: bool) -> None:
    """Write the pages of all papers that have results."""
    for paper in _with_results(store):
        report(paper, store, quick=quick)


def _with_results(store: Store) -> Iterator[Any]:
    from capsella.papers.paper import get_paper
    from capsella.papers.targets import PAPERS

    for name in PAPERS:
        if (store.folder / name).is_dir() and get_paper(name).recipes:
            yield get_paper(name)
