"""What ``capsella reproduce`` prints: papers, what is covered, verdicts."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table as Grid

if TYPE_CHECKING:
    from capsella.papers.paper import Selection
    from capsella.papers.results import Result
    from capsella.papers.store import Imported, Store
    from capsella.papers.verdicts import Verdict


def _grid(title: str, columns: Iterable[str], *, left: int = 1) -> Grid:
    grid = Grid(title=title, title_justify="left")
    for number, name in enumerate(columns):
        grid.add_column(name, justify="left" if number < left else "right")
    return grid


def show_import(terminal: Console, file: Path, found: Imported, store: Store) -> None:
    """Say what came of an archive, and how many of its results, as they are here now, no table counts."""
    text = f"{file}: {len(found.new)} new results, {len(found.replaced)} replaced, {len(found.kept)} here already"
    terminal.print(text, markup=False, soft_wrap=True)
    there = (store.read(name) for name in (*found.new, *found.kept))
    show_uncounted(terminal, (result for result in there if result is not None))


def show_uncounted(terminal: Console, results: Iterable[Result]) -> None:
    """Say how many results are of no recipe as it is now, if there are any: tables and verdicts leave them out."""
    from capsella.papers.paper import is_current, recipe_of

    aside = [result for result in results if not is_current(result)]
    unknown = sum(recipe_of(result) is None for result in aside)
    counts = {
        "of another version of the recipe or of the arithmetic": len(aside) - unknown,
        "of a row that nobody knows": unknown,
    }
    text = ", ".join(f"{count} {says}" for says, count in counts.items() if count)
    if text:
        terminal.print(f"results that do not count: {text}", markup=False, soft_wrap=True)


def show_papers(terminal: Console, store: Store, *, quick: bool) -> None:
    """List the papers, and how much of each is recorded."""
    from capsella.papers.paper import current, get_paper
    from capsella.papers.targets import PAPERS

    grid = _grid("Papers", ("paper", "title", "printed numbers", "rows", "rows run", "runs", "device minutes"), left=2)
    for name in PAPERS:
        paper = get_paper(name)
        results = current(paper, store, quick=quick)
        grid.add_row(
            name,
            paper.title,
            f"{len(paper.targets)}",
            f"{len(paper.recipes)}",
            f"{len({result.recipe for result in results})}",
            f"{len(results)}",
            _minutes(results),
        )
    terminal.print(grid)
    show_uncounted(terminal, (result for result in store.all() if result.quick == quick))
    terminal.print("capsella reproduce PAPER runs one; --quick its short version", markup=False)


def _minutes(results: Iterable[Result]) -> str:
    return f"{sum(result.device_seconds for result in results) / 60:.1f}"


def show_status(terminal: Console, chosen: Selection, store: Store, *, quick: bool, seeds: int | None) -> None:
    """Show table by table what is recorded and what is left, of the rows that were picked."""
    from capsella.papers.paper import current, jobs_of, recipe_of, recorded

    paper = chosen.paper
    results = current(paper, store, quick=quick)
    grid = _grid(f"{paper.name}: {paper.title}", ("table", "what", "rows", "rows run", "runs", "of", "device minutes"), left=2)
    picked = {recipe.key for recipe in chosen.recipes}
    for table in paper.tables:
        recipes = [paper.recipe(key) for key in table.recipes if key in picked]
        if not recipes:
            continue
        jobs = jobs_of(recipes, seeds=seeds, quick=quick)
        there = recorded(jobs, store)
        keys = {recipe.key for recipe in recipes}
        own = [result for result in results if result.recipe in keys]
        grid.add_row(
            f"{paper.name}/{table.key}",
            table.title,
            f"{len(recipes)}",
            f"{len({result.recipe for result in own})}",
            f"{len(there)}",
            f"{len(jobs)}",
            _minutes(own),
        )
    terminal.print(grid)
    here = (result for result in store.all(f"{paper.name}/") if result.quick == quick)
    # of the paper's other rows nothing was asked; a row that nobody knows cannot be asked for.
    show_uncounted(terminal, (result for result in here if result.recipe in picked or recipe_of(result) is None))
    show_verdicts(terminal, chosen, store, quick=quick)


def show_verdicts(terminal: Console, chosen: Selection, store: Store, *, quick: bool) -> None:
    """Show the printed numbers beside ours, and what came of the claims."""
    from capsella.papers.paper import current
    from capsella.papers.verdicts import Evidence

    paper = chosen.paper
    evidence = Evidence(current(paper, store, quick=quick))
    picked = {target for recipe in chosen.recipes for target in recipe.reads}
    verdicts = [each for each in paper.verdicts(evidence) if each.target.key in picked]
    if verdicts:
        title = "Printed numbers and ours" + (" (short versions, which are no reproduction)" if quick else "")
        grid = _grid(title, ("row", "metric", "printed", "ours", "runs", "verdict"), left=2)
        for each in verdicts:
            verdict = "" if quick else each.says
            grid.add_row(each.target.key, each.target.metric, each.target.printed, ours(each), str(len(each.values)), verdict)
        terminal.print(grid)
        if not quick:
            counts = Counter(each.says for each in verdicts)
            terminal.print(", ".join(f"{count} {says}" for says, count in counts.items()), markup=False)
    recipes = {recipe.key for recipe in chosen.recipes}
    grid = _grid("Claims", ("claim", "verdict", "by", "runs"), left=3)
    for claim, finding in paper.findings(evidence):
        if recipes & set(claim.recipes):
            grid.add_row(claim.text, finding.verdict, finding.statistic, str(finding.seeds))
    if grid.row_count:
        terminal.print(grid)


def ours(verdict: Verdict) -> str:
    """Write mean and spread as precisely as the printed number, and one place more."""
    if verdict.mean is None:
        return ""
    if math.isinf(verdict.mean):
        return "never"
    places = (verdict.target.places or 0) + 1
    text = f"{verdict.mean:,.{places}f}"
    return text if verdict.spread is None else f"{text} ± {verdict.spread:.{places}f}"
