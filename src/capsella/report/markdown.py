"""Texts and tables as Markdown that shows them as they are."""

from __future__ import annotations

import re
from collections.abc import Sequence

from capsella.report.paper_tables import Sheet

# what Markdown, or GitHub's with formulas, would take for its own.
_SPECIAL = re.compile(r"([\\`*_\[\]|$~])")
_BEGINS = re.compile(r"^(\d*)([#+=>-]|(?<=\d)[.)](?=\s))")


def pipes(sheet: Sheet) -> str:
    """Return a table, columns of numbers to the right."""
    lines = [
        [inline(name) for name in sheet.head],
        ["--:" if k in sheet.right else "---" for k in range(len(sheet.head))],
        *([_in_cell(cell) for cell in row] for row in sheet.rows),
    ]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _in_cell(cell: Sequence[str]) -> str:
    return "<br>".join(inline(line) for line in cell)


def inline(text: str) -> str:
    r"""Return text that Markdown shows as it is, in a cell or anywhere else in a line.

    Example:
        >>> print(inline("a|b_c <i> $x$"))
        a\|b\_c &lt;i> \$x\$
    """
    plain = " ".join(re.split(r"[\r\n\t]+", text)).replace("&", "&amp;").replace("<", "&lt;")
    return _SPECIAL.sub(r"\\\1", plain)


def paragraph(text: str) -> str:
    r"""Return a paragraph that is no heading, list or quotation, however it begins.

    Example:
        >>> print(paragraph("# one"), paragraph("1. two"), paragraph("99.5"))
        \# one 1\. two 99.5
    """
    return _BEGINS.sub(r"\1\\\2", inline(text))
