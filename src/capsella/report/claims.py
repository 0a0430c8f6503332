"""The table of claims that stands in another page, such as a README, between two marks."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence

from capsella.papers.verdicts import ABOVE, BELOW, FAILS, HOLDS, UNDECIDED, WITHIN
from capsella.report.markdown import pipes
from capsella.report.overview import MARKDOWN, Chapter
from capsella.report.paper_tables import Sheet

BEGIN, END = "<!-- claims:begin -->", "<!-- claims:end -->"
COMMAND = "capsella reproduce --claims"


def claims_block(chapters: Sequence[Chapter], pages: Mapping[str, str], whole: str = "") -> str:
    """Return the table: what came of each paper, and claim by claim of those of which something has run.

    Args:
        chapters: one for each paper.
        pages: where each paper's own folder of results lies, by the paper's name; of those that have one.
        whole: where the page of all papers lies; empty where there is none.
    """
    parts = [pipes(_summary(chapters))]
    every = f"[Every printed number stands beside ours]({whole}/{MARKDOWN}). " if whole else ""
    parts.append(
        "Seeds are the fewest runs of any net that a claim rests on; one run alone has no spread. "
        f"{every}Made by `{COMMAND}` from records alone."
    )
    for each in chapters:
        if each.has_run and each.claims.rows:
            # Markdown means nothing in a summary.
            title = html.escape(f"{each.heading}, claim by claim", quote=False)
            parts.append(f"<details>\n<summary>{title}</summary>")
            if each.name in pages:
                parts.append(f"What decides each of them stands on [its own page]({pages[each.name]}/{MARKDOWN}).")
            parts += [pipes(each.claims), "</details>"]
    return "\n\n".join(part.rstrip("\n") for part in parts)


def _summary(chapters: Sequence[Chapter]) -> Sheet:
    rows = []
    for each in chapters:
        tally = each.tally
        judged = sum(tally.numbers[verdict] for verdict in (WITHIN, ABOVE, BELOW))
        cells = [each.heading, f"{tally.rows[0]} of {tally.rows[1]}"]
        cells += [str(tally.claims[verdict]) for verdict in (HOLDS, FAILS, UNDECIDED)]
        cells.append(f"{tally.numbers[WITHIN]} of {judged}" if judged else "none run")
        rows.append(tuple((cell,) for cell in cells))
    head = ("paper", "rows run", "claims that hold", "that do not", "undecided", "printed numbers within, of those judged")
    return Sheet("Claims", head, tuple(rows), tuple(range(1, len(head))))


def put_between(text: str, block: str, *, where: str) -> str:
    """Return a text with the block between its marks.

    Args:
        text: with both marks, each once.
        block: to stand between them.
        where: what the text is, for errors.

    Example:
        >>> print(put_between(f"before {BEGIN} old {END} after", "new", where="x"))
        before <!-- claims:begin -->
        <BLANKLINE>
        new
        <BLANKLINE>
        <!-- claims:end --> after
    """
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end or BEGIN in rest or END in before + after:
        raise ValueError(f"{where} has not the marks {BEGIN} and {END}; expected each of them once, in this order")
    return f"{before}{BEGIN}\n\n{block}\n\n{END}{after}"
