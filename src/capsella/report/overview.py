"""All papers on one page: every printed number beside ours and every claim, made from records and printed numbers alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from capsella.papers.paper import Paper
from capsella.papers.results import Result
from capsella.papers.verdicts import ABOVE, BELOW, FAILS, HOLDS, UNDECIDED, VERDICTS, WITHIN, Claim, Finding
from capsella.report.markdown import inline, paragraph, pipes
from capsella.report.page import render
from capsella.report.paper_story import MINUTES, RULE, answer_of, device_minutes, is_ours, know, lead_of
from capsella.report.paper_tables import NO_NUMBER, Known, NumberRow, Sheet, number_rows, says_of

MARKDOWN, PAGE = "README.md", "index.html"
COMMAND = "capsella reproduce --page"
MARK = f"<!-- made by {COMMAND} -->"
"""The first line of the page in Markdown."""

ONE_RUN = "one run"
SINGLE = (
    f"A verdict with “{ONE_RUN}” beside it stands on one, whose spread nobody knows. Where no number of runs stands, ours is "
    "worked out: a size, a setting, or a figure of several runs."
)
ALL = "all"
"""The name of the row that adds up the papers."""


@dataclass(frozen=True)
class Tally:
    """How many of what a paper has.

    Attributes:
        numbers: printed numbers by verdict.
        single: verdicts on a printed number that stand on one run.
        claims: of the paper, by verdict.
        own: questions of our own, by verdict.
        rows: recipes that have run, and all of them.
        runs: that are recorded, and those that the recipes name.
        minutes: by device.
    """

    numbers: Counter[str]
    single: int
    claims: Counter[str]
    own: Counter[str]
    rows: tuple[int, int]
    runs: tuple[int, int]
    minutes: Mapping[str, float]

    def __add__(self, other: Tally) -> Tally:
        """Count both together."""
        devices = dict.fromkeys((*self.minutes, *other.minutes))
        return Tally(
            self.numbers + other.numbers,
            self.single + other.single,
            self.claims + other.claims,
            self.own + other.own,
            (self.rows[0] + other.rows[0], self.rows[1] + other.rows[1]),
            (self.runs[0] + other.runs[0], self.runs[1] + other.runs[1]),
            {device: self.minutes.get(device, 0.0) + other.minutes.get(device, 0.0) for device in devices},
        )


@dataclass(frozen=True)
class Chapter:
    """What the page says of a paper.

    Attributes:
        name: of the paper.
        title: of the paper.
        lead: what came of it, in a paragraph.
        tally: the same, counted.
        claims: of the paper and then our own, with their verdicts.
        numbers: every printed number beside ours.
    """

    name: str
    title: str
    lead: str
    tally: Tally
    claims: Sheet
    numbers: Sheet

    @property
    def heading(self) -> str:
        """Name and title."""
        return f"{self.name}: {self.title}"

    @property
    def has_run(self) -> bool:
        """Whether anything of it has."""
        return self.tally.runs[0] > 0


def chapter(paper: Paper, results: Sequence[Result]) -> Chapter:
    """Return what the page says of a paper.

    Args:
        paper: whose.
        results: of its recipes as they are, of any seeds; no short versions.
    """
    known = know(paper, results)
    findings = paper.findings(known.evidence)
    rows = number_rows(known, list(known.verdicts.values()))
    return Chapter(
        paper.name, paper.title, lead_of(known, findings), _tally(known, findings, rows), _claims(findings), _numbers(rows)
    )


def _tally(known: Known, findings: Sequence[tuple[Claim, Finding]], rows: Sequence[NumberRow]) -> Tally:
    claims, own = (Counter(found.verdict for claim, found in findings if is_ours(claim) is wanted) for wanted in (False, True))
    recipes = known.paper.recipes
    return Tally(
        Counter(map(says_of, known.verdicts.values())),
        sum(_is_single(row, known.verdicts[row.key].says) for row in rows),
        claims,
        own,
        (len({result.recipe for result in known.results}), len(recipes)),
        (len(known.results), sum(len(recipe.seeds) for recipe in recipes)),
        device_minutes(known.results),
    )


def _is_single(row: NumberRow, says: str) -> bool:
    return row.runs == "1" and says in (WITHIN, ABOVE, BELOW)


def _claims(findings: Sequence[tuple[Claim, Finding]]) -> Sheet:
    """List the paper's claims, then our own questions."""
    rows = []
    for claim, found in sorted(findings, key=lambda each: is_ours(each[0])):
        answer = answer_of(claim, found)
        rows.append(((answer.text,), (claim.source,), (answer.verdict,), (answer.seeds,)))
    return Sheet("Claims", ("claim", "where", "verdict", "seeds"), tuple(rows), (3,))


def _numbers(rows: Sequence[NumberRow]) -> Sheet:
    head = ("what", "where", "metric", "printed", "ours", "runs", "verdict", "remark")
    cells = []
    for row in rows:
        # what is no result says what it is.
        metric = (row.metric,) if row.role == "result" else (row.metric, row.role)
        verdict = (row.verdict, ONE_RUN) if row.runs == "1" else (row.verdict,)
        cells.append(((row.key,), (row.where,), metric, (row.printed,), (row.whole,), (row.runs,), verdict, (row.remark,)))
    return Sheet("Printed numbers", head, tuple(cells), (3, 4, 5))


def overview(chapters: Sequence[Chapter], pages: Mapping[str, str]) -> dict[str, str]:
    """Return the page of all papers as texts, in Markdown and HTML, by file name.

    Args:
        chapters: one for each paper.
        pages: where each paper's own folder of results lies, seen from the page's, by the paper's name; of those that have one.
    """
    summaries = (numbers_summary(chapters), claims_summary(chapters), runs_summary(chapters))
    rules = (SINGLE, RULE, MINUTES)
    return {
        MARKDOWN: _markdown(chapters, pages, summaries, rules),
        PAGE: render("overview.html", chapters=chapters, pages=pages, summaries=summaries, rules=rules, command=COMMAND),
    }


def _markdown(chapters: Sequence[Chapter], pages: Mapping[str, str], summaries: Sequence[Sheet], rules: Sequence[str]) -> str:
    parts = [MARK, "# What the papers print, and what we find"]
    parts.append(f"Made by `{COMMAND}` from records and printed numbers alone; [{PAGE}]({PAGE}) shows the same.")
    for sheet in summaries:
        parts += [f"**{inline(sheet.label)}**", pipes(sheet)]
    parts += map(paragraph, rules)
    for each in chapters:
        parts += [f"## {inline(each.heading)}", paragraph(each.lead)]
        if each.name in pages:
            parts.append(f"[Its own page]({pages[each.name]}/README.md) has tables, pictures, and what decides each claim.")
        for sheet in (each.claims, each.numbers):
            parts += [f"### {inline(f'{sheet.label} of {each.name}')}", pipes(sheet)] if sheet.rows else []
    return "\n\n".join(part.rstrip("\n") for part in parts) + "\n"


def numbers_summary(chapters: Sequence[Chapter]) -> Sheet:
    """Count the printed numbers by verdict."""
    verdicts = (*VERDICTS, NO_NUMBER)
    return _summary(
        "Printed numbers",
        ("printed", *verdicts, "on one run"),
        chapters,
        lambda tally: (str(tally.numbers.total()), *(str(tally.numbers[each]) for each in verdicts), str(tally.single)),
    )


def claims_summary(chapters: Sequence[Chapter]) -> Sheet:
    """Count the papers' claims and our own questions by verdict."""
    verdicts = (HOLDS, FAILS, UNDECIDED)
    return _summary(
        "Claims of the papers, and questions of our own",
        ("claims", *verdicts, "questions", *verdicts),
        chapters,
        lambda tally: tuple(
            str(count)
            for each in (tally.claims, tally.own)
            for count in (each.total(), *(each[verdict] for verdict in verdicts))
        ),
    )


def runs_summary(chapters: Sequence[Chapter]) -> Sheet:
    """Count what has run, and what it took."""
    sheet = _summary(
        "Runs",
        ("rows run", "rows", "runs", "named", "device minutes", "device"),
        chapters,
        lambda tally: (
            *map(str, (*tally.rows, *tally.runs)),
            f"{sum(tally.minutes.values()):,.1f}",
            "; ".join(tally.minutes),
        ),
    )
    # devices are words.
    return Sheet(sheet.label, sheet.head, sheet.rows, sheet.right[:-1])


def _summary(
    label: str, head: tuple[str, ...], chapters: Sequence[Chapter], cells: Callable[[Tally], tuple[str, ...]]
) -> Sheet:
    """Return a row for each paper and, of several, one for all."""
    tallies = [(each.name, each.tally) for each in chapters]
    if len(tallies) > 1:
        total = tallies[0][1]
        for _, tally in tallies[1:]:
            total = total + tally
        tallies.append((ALL, total))
    rows = tuple(((name,), *((cell,) for cell in cells(tally))) for name, tally in tallies)
    return Sheet(label, ("paper", *head), rows, tuple(range(1, len(head) + 1)))
