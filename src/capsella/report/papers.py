"""The pages of a paper: its results as Markdown, as one HTML file and as pictures, made from records alone."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from capsella.papers.images import unpack
from capsella.papers.paper import Gallery, Line, Paper, Plot, Trees
from capsella.papers.results import Result
from capsella.papers.verdicts import Evidence, Missing
from capsella.report.markdown import inline, paragraph, pipes
from capsella.report.page import render, write_pages
from capsella.report.paper_story import Answer, Story, tell
from capsella.report.paper_tables import Sheet
from capsella.report.paper_trees import trees_svg
from capsella.report.plots import Series, as_file, curves, panels

MARKDOWN, PAGE, PLOTS = "README.md", "page.html", "plots"
PRINTED = "printed"
"""What the legend calls all lines of printed numbers."""


@dataclass(frozen=True)
class Picture:
    """A plot or gallery that is drawn.

    Attributes:
        key: of the ``Plot`` or ``Gallery``.
        title: what it shows.
        svg: in the page's ink; empty where a figure was missing.
        problem: which one.
    """

    key: str
    title: str
    svg: str
    problem: str = ""


def paper_report(paper: Paper, results: Sequence[Result], *, quick: bool = False) -> dict[str, str]:
    """Return the pages of a paper and their pictures as texts, by their path below the paper's folder of results.

    Args:
        paper: whose.
        results: of its recipes as they are, of any seeds.
        quick: whether they are the short versions, which are judged against nothing that is printed.
    """
    story = tell(paper, results, quick=quick)
    pictures = _pictures(paper.plots, Evidence(results))
    keys = [part.key for part in story.parts]
    by_part: dict[str, list[Picture]] = {key: [] for key in keys}
    further: list[Picture] = []
    for picture in pictures:
        # a key may begin with those of two tables; the longer one is meant.
        owners = [key for key in keys if picture.key == key or picture.key.startswith(f"{key}-")]
        (by_part[max(owners, key=len)] if owners else further).append(picture)
    return {
        MARKDOWN: _markdown(story, by_part, further),
        PAGE: render("paper.html", story=story, pictures=by_part, further=further),
        **{_path(picture): as_file(picture.svg) for picture in pictures if picture.svg},
    }


def write_report(folder: Path, files: Mapping[str, str]) -> None:
    """Write all files of a report or none, and take pictures away that it no longer has.

    Args:
        folder: of the paper's results; made where it is missing.
        files: what ``paper_report`` returned.
    """
    folder = Path(folder)
    # the pages come last, after what they show.
    write_pages({folder / name: text for name, text in files.items()})
    for path in sorted((folder / PLOTS).glob("*.svg")):
        if f"{PLOTS}/{path.name}" not in files:
            path.unlink()


def _path(picture: Picture) -> str:
    return f"{PLOTS}/{picture.key}.svg"


def _pictures(plots: Sequence[Plot | Gallery | Trees], evidence: Evidence) -> list[Picture]:
    """Draw the plots that have lines, the galleries that have images, and the trees."""
    titles = Counter(plot.title for plot in plots)
    found = []
    for plot in plots:
        # pictures of one page must differ in their labels, since their ids are made of them.
        label = plot.title if titles[plot.title] == 1 else f"{plot.title} ({plot.key})"
        try:
            svg = _drawn(plot, evidence, label)
        except Missing as error:
            found.append(Picture(plot.key, label, "", f"Not drawn, for want of a figure of {error}: {label}."))
            continue
        if svg:
            found.append(Picture(plot.key, label, svg))
    return found


def _drawn(plot: Plot | Gallery | Trees, evidence: Evidence, label: str) -> str:
    if isinstance(plot, Trees):
        record = plot.record(evidence)
        return trees_svg(record, plot.part, label=label) if record else ""
    return _gallery(plot, evidence, label) if isinstance(plot, Gallery) else _curves(plot, evidence, label)


def _curves(plot: Plot, evidence: Evidence, label: str) -> str:
    series = _series(plot.lines(evidence))
    if not series:
        return ""
    return curves(
        series,
        label=label,
        x_label=plot.x_label,
        y_label=plot.y_label,
        is_share=plot.is_share,
        is_log=plot.is_log,
        is_counted=plot.is_counted,
        is_roomy=True,
    )


def _gallery(gallery: Gallery, evidence: Evidence, label: str) -> str:
    found = [(panel.label, unpack(panel.sheet)) for panel in gallery.panels(evidence)]
    return panels(found, label=label) if found else ""


def _series(lines: Sequence[Line]) -> list[Series]:
    """Return ours, each followed by what is printed beside it; points that are not finite cannot be drawn."""
    ours = [line for line in lines if not line.is_printed]
    printed = {line.label: line for line in lines if line.is_printed}
    found = []
    for line in ours:
        beside = printed.get(line.label)
        drawn = _finite(line)
        if drawn is not None:
            found.append(drawn)
            faint = None if beside is None else _finite(beside)
            found += [] if faint is None else [Series(PRINTED, faint.x, faint.y, faint.spread, is_faint=True)]
    return found


def _finite(line: Line) -> Series | None:
    places = [k for k, point in enumerate(zip(line.x, line.y, strict=True)) if all(map(math.isfinite, point))]
    if not places:
        return None
    # what is no number, between two that are, is a gap: there the line is broken.
    gaps = [k for k, value in enumerate(line.y) if places[0] < k < places[-1] and math.isnan(value)]
    places = sorted(places + gaps)
    spread = None if line.spread is None else tuple(line.spread[k] for k in places)
    if spread is not None and not all(map(math.isfinite, spread)):
        spread = None
    return Series(line.label, tuple(line.x[k] for k in places), tuple(line.y[k] for k in places), spread, style=line.style)


def _markdown(story: Story, by_part: Mapping[str, Sequence[Picture]], further: Sequence[Picture]) -> str:
    parts = [f"# {inline(story.name)}: {inline(story.title)}"]
    if story.warning:
        parts.append(f"> **{inline(story.warning)}**")
    parts += [paragraph(story.lead), *map(paragraph, story.says)]
    parts.append(f"Made by `{story.command}` from the records in this folder; [{PAGE}]({PAGE}) shows the same.")
    if story.claims:
        parts += ["## What the paper claims", _claims(story.claims, with_source=True)]
    if story.own:
        parts += [f"## {inline(story.beyond)}", *([paragraph(story.answer)] if story.answer else []), _claims(story.own)]
    for part in story.parts:
        parts += [f"## {inline(part.title)}", paragraph(part.caption), pipes(part.sheet)]
        parts += [paragraph(note) for note in part.notes]
        parts += _shown(by_part[part.key])
        if part.details is not None:
            note = [paragraph(part.details_note)] if part.details_note else []
            parts += ["<details>\n<summary>Each recipe</summary>", *note, pipes(part.details), "</details>"]
    if further:
        parts += ["## Further pictures", *_shown(further)]
    if story.numbers.rows or story.others.rows:
        parts.append("## All printed numbers")
        parts += [pipes(story.numbers)] if story.numbers.rows else []
        parts += ["Settings, sizes and what stands in the text:", pipes(story.others)] if story.others.rows else []
    parts += ["## How it was done", *map(paragraph, story.rules)]
    for title, sentences in story.lists.items():
        parts += [paragraph(title), "\n".join(f"- {paragraph(sentence)}" for sentence in sentences)]
    facts = tuple(((key,), (value,)) for key, value in {**story.facts, "to do it again": story.command}.items())
    parts.append(pipes(Sheet("facts", ("", "of the runs"), facts)))
    return "\n\n".join(part.rstrip("\n") for part in parts) + "\n"


def _claims(answers: Sequence[Answer], *, with_source: bool = False) -> str:
    head = ("verdict", "claim", *(("where",) if with_source else ()), "what decides it", "seeds")
    rows = []
    for each in answers:
        cells = (each.verdict, each.text, *((each.source,) if with_source else ()), each.statistic, each.seeds)
        rows.append(tuple((cell,) for cell in cells))
    return pipes(Sheet("claims", head, tuple(rows), (len(head) - 1,)))


def _shown(pictures: Sequence[Picture]) -> list[str]:
    return [f"![{inline(each.title)}]({_path(each)})" if each.svg else paragraph(each.problem) for each in pictures]
