"""What ``capsella reproduce --page`` and ``--claims`` write: all papers on one page, and the table of claims in another."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

if TYPE_CHECKING:
    from capsella.papers.store import Store


def write_overview(store: Store, page: Path | None, claims: Path | None) -> None:
    """Write both, of the papers' whole runs, or neither.

    Args:
        store: of the results.
        page: the folder of the page; none is written if None.
        claims: the file in which the table stands between its marks; none if None.
    """
    from capsella.papers.paper import current, get_paper
    from capsella.papers.targets import PAPERS
    from capsella.report.claims import claims_block, put_between
    from capsella.report.overview import chapter, overview
    from capsella.report.page import write_pages

    check_overview(page, claims)
    chapters = [chapter(paper, current(paper, store)) for paper in map(get_paper, PAPERS)]
    own = [name for name in PAPERS if (store.folder / name / "README.md").is_file()]
    files: dict[Path, str] = {}
    if page is not None:
        pages = {name: _link(page, store.folder / name) for name in own}
        files |= {page / name: text for name, text in overview(chapters, pages).items()}
    if claims is not None:
        pages = {name: _link(claims.parent, store.folder / name) for name in own}
        block = claims_block(chapters, pages, "" if page is None else _link(claims.parent, page))
        files[claims] = put_between(_read(claims), block, where=f"claims={str(claims)!r}")
    try:
        write_pages(files)
    except OSError as error:
        names = " and ".join(str(each) for each in (page, claims) if each is not None)
        raise ValueError(f"{names} cannot be written ({error.strerror or error}); expected places of yours") from error


def check_overview(page: Path | None, claims: Path | None) -> None:
    """Raise ``ValueError`` where the page would take the place of another, or the table has none; before anything is run."""
    from capsella.report.claims import put_between
    from capsella.report.overview import MARK, MARKDOWN

    if page is not None and page.exists() and not page.is_dir():
        raise ValueError(f"page={str(page)!r} is a file; expected a folder for {MARKDOWN} and index.html")
    if page is not None and (page / MARKDOWN).exists() and not _read(page / MARKDOWN).startswith(MARK):
        raise ValueError(f"page={str(page)!r} has a {MARKDOWN} that --page did not write; expected a folder of its own")
    if claims is not None:
        put_between(_read(claims), "", where=f"claims={str(claims)!r}")


def _read(path: Path) -> str:
    try:
        # bytes, so that ends of lines stay as they are.
        return path.read_bytes().decode()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise ValueError(f"{path} cannot be read ({why}); expected a text file") from error


def _link(start: Path, end: Path) -> str:
    return quote(Path(os.path.relpath(end, start)).as_posix())
