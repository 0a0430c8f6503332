"""The tables of a paper's pages: ours beside what is printed, as texts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from capsella.papers.paper import Paper, Summary, Table
from capsella.papers.readings import READINGS
from capsella.papers.recipe import Recipe
from capsella.papers.results import Result
from capsella.papers.targets import Target
from capsella.papers.verdicts import ABOVE, BELOW, NOT_RUN, WITHIN, Evidence, Verdict
from capsella.report.values import mean_and_spread

Cell: TypeAlias = tuple[str, ...]
"""The lines of one place of a table."""

NO_NUMBER = "no number"
"""The verdict on a word, a formula or a dash."""

BEST = "The best epoch is chosen by the test images themselves. It flatters, and nothing is judged by it."

# words beside the signs: both can be read in black and white.
_SIGNS = {WITHIN: "✓ within", ABOVE: "▲ above", BELOW: "▼ below"}
# units that are no words to stand after "in".
_PLAIN = ("", "steps", "count", "ratio")


@dataclass(frozen=True)
class Sheet:
    """A table of texts.

    Attributes:
        label: what it has, for those who do not see it.
        head: names of the columns.
        rows: a cell for each column; the first names the row.
        right: columns of numbers.
    """

    label: str
    head: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    right: tuple[int, ...] = ()


@dataclass(frozen=True)
class Part:
    """What is said of a table or figure.

    Attributes:
        key: of the ``Table``.
        title: its heading.
        caption: what the numbers are.
        sheet: the numbers.
        details: one recipe a row, where ``sheet`` is a grid.
        notes: what to know when reading it.
        details_note: what to know when reading ``details``; may be empty.
    """

    key: str
    title: str
    caption: str
    sheet: Sheet
    details: Sheet | None
    notes: tuple[str, ...]
    details_note: str = ""


@dataclass(frozen=True)
class Known:
    """What pages are made of.

    Attributes:
        paper: whose.
        results: in the order of its recipes, by seed.
        evidence: the same, by recipe.
        verdicts: on the printed numbers, by key.
        quick: whether the results are of short versions.
    """

    paper: Paper
    results: tuple[Result, ...]
    evidence: Evidence
    verdicts: dict[str, Verdict]
    quick: bool

    def of(self, recipe: str) -> list[Result]:
        """Return the results of a recipe, by seed."""
        return self.evidence.results(recipe) if self.evidence.has(recipe) else []


def says_of(verdict: Verdict) -> str:
    """Return a verdict, or that what is printed is no number."""
    return NO_NUMBER if verdict.target.value is None and verdict.says == NOT_RUN else verdict.says


def _signed(verdict: Verdict) -> str:
    return _SIGNS.get(says_of(verdict), says_of(verdict))


def table_part(known: Known, table: Table) -> Part:
    """Return what is said of a table or figure."""
    recipes = [known.paper.recipe(key) for key in table.recipes]
    results = [result for key in dict.fromkeys(table.recipes) for result in known.of(key)]
    details = _details(known, table, recipes)
    sheet = _grid(known, table, recipes) if table.rows else details
    has_printed = any(_beside(known, table, recipe) for recipe in recipes)
    unit = _unit(known, table, recipes)
    shows = READINGS[table.reading].says + ("" if unit in _PLAIN else f", in {unit}")
    where = " Below each stands what is printed." if has_printed and table.rows else ""
    minutes = f" {_minutes(results)} device minutes." if results else ""
    notes = [table.note] if table.note else []
    ended: dict[str, list[str]] = {}
    for recipe in recipes:
        for result in known.of(recipe.key):
            if result.status != "finished":
                ended.setdefault(result.status, []).append(f"{recipe.label}, seed {result.seed}")
    notes += [f"Runs that ended as “{status}”: {'; '.join(dict.fromkeys(runs))}." for status, runs in ended.items()]
    best = BEST if READINGS[table.reading].best and results else ""
    notes += [best] if best and not table.rows else []
    return Part(
        table.key,
        f"{table.name}: {table.title}" if table.name else table.title,
        f"{shows}. Ours are means ± sample standard deviations (runs).{where}{minutes}",
        sheet,
        details if table.rows else None,
        tuple(notes),
        best if table.rows else "",
    )


def summary_part(known: Known, summary: Summary) -> Part:
    """Return a table that is worked out of several recipes; it has no rows where none of these has run."""
    rows = tuple(tuple((text,) for text in row) for row in summary.rows(known.evidence))
    sheet = Sheet(summary.title, summary.head, rows, summary.right)
    return Part(summary.key, summary.title, summary.caption, sheet, None, ())


def _unit(known: Known, table: Table, recipes: Sequence[Recipe]) -> str:
    units = {verdict.target.unit for recipe in recipes for verdict in _beside(known, table, recipe)}
    return units.pop() if len(units) == 1 else READINGS[table.reading].unit


def _beside(known: Known, table: Table, recipe: Recipe) -> list[Verdict]:
    """Return the printed numbers that the table's figure of a recipe stands beside."""
    return [known.verdicts[target] for target, reading in recipe.reads.items() if reading == table.reading]


def _values(results: Sequence[Result], reading: str, unit: str) -> list[float | None]:
    found = [READINGS[reading](result) for result in results]
    return [None if value is None else value * (100 if unit == "%" else 1) for value in found]


def _grid(known: Known, table: Table, recipes: Sequence[Recipe]) -> Sheet:
    width, unit = len(table.columns), _unit(known, table, recipes)
    if len(recipes) != len(table.rows) * width:
        raise ValueError(f"table {table.key!r} has {len(recipes)} recipes; expected {len(table.rows)} rows of {width}")
    rows = []
    for k, name in enumerate(table.rows):
        cells: list[Cell] = [(name,)]
        for recipe in recipes[k * width : (k + 1) * width]:
            beside = _beside(known, table, recipe)
            lines = [_figures(_values(known.of(recipe.key), table.reading, unit), unit, _decimals(beside))]
            for verdict in beside:
                lines.append(f"printed {_as_printed(verdict.target)}")
                # a cell that has not run says so once.
                lines += [] if known.quick or says_of(verdict) == NOT_RUN else [_signed(verdict)]
            cells.append(tuple(lines))
        rows.append(tuple(cells))
    return Sheet(table.title, ("", *table.columns), tuple(rows), tuple(range(1, width + 1)))


def _details(known: Known, table: Table, recipes: Sequence[Recipe]) -> Sheet:
    """Return one recipe a row, with every run's own figure."""
    unit, with_best = _unit(known, table, recipes), READINGS[table.reading].best
    with_printed = any(_beside(known, table, recipe) for recipe in recipes)
    head = ["recipe", "ours", *(["best epoch"] if with_best else []), "each run"]
    head += (["printed"] if known.quick else ["printed", "verdict"]) if with_printed else []
    head += ["seeds", "parameters", "device minutes"]
    rows = []
    for recipe in recipes:
        results, beside = known.of(recipe.key), _beside(known, table, recipe)
        values, decimals = _values(results, table.reading, unit), _decimals(beside)
        cells = [recipe.label, _figures(values, unit, decimals)]
        if with_best:
            cells.append(_figures(_values(results, with_best, unit), unit, decimals) if results else "")
        cells.append(", ".join(_one(value, unit, decimals) for value in values))
        if with_printed:
            cells.append(", ".join(_as_printed(verdict.target) for verdict in beside))
            cells += [] if known.quick else [", ".join(_signed(verdict) for verdict in beside)]
        cells.append(_spanned([result.seed for result in results]))
        cells.append(", ".join(f"{count:,}" for count in dict.fromkeys(result.parameters for result in results)))
        cells.append(_minutes(results) if results else "")
        rows.append(tuple((cell,) for cell in cells))
    words = {"recipe", "verdict", "each run"}
    right = tuple(k for k, name in enumerate(head) if name not in words)
    return Sheet(f"{table.title}: each recipe", tuple(head), tuple(rows), right)


def _spanned(seeds: Sequence[int]) -> str:
    """Write which seeds, those in a row by the first and the last.

    Example:
        >>> _spanned([0, 1, 2]), _spanned([0, 1, 5]), _spanned([])
        ('0 to 2', '0, 1, 5', '')
    """
    if len(seeds) > 2 and list(seeds) == list(range(seeds[0], seeds[0] + len(seeds))):
        return f"{seeds[0]} to {seeds[-1]}"
    return ", ".join(map(str, seeds))


def _minutes(results: Sequence[Result]) -> str:
    return f"{math.fsum(result.device_seconds for result in results) / 60:,.1f}"


def _decimals(beside: Sequence[Verdict]) -> int | None:
    return max((verdict.target.places for verdict in beside if verdict.target.places is not None), default=None)


def _as_printed(target: Target) -> str:
    """Return the paper's string, a spread in TeX in plain letters, and one that is printed elsewhere beside it."""
    if r"_{\pm " in target.printed:
        return target.printed.replace(r"_{\pm ", " ± ").removesuffix("}")
    has_own = target.std is None or "±" in target.printed
    return target.printed if has_own else f"{target.printed} ± {target.std:g}"


def _figures(values: Sequence[float | None], unit: str, decimals: int | None) -> str:
    """Write the mean of some runs with its spread, how many they are, and how many came to nothing.

    Example:
        >>> _figures([99.0, 99.2], "%", 1), _figures([None, 300.0, float("inf")], "steps", None), _figures([], "%", 1)
        ('99.10 ± 0.14 (2)', '300 (1 of 3), never (1 of 3)', 'not run')
    """
    if not values:
        return NOT_RUN
    finite = [value for value in values if value is not None and math.isfinite(value)]
    endless = sum(value is not None and math.isinf(value) for value in values)
    found = []
    for count, text in ((len(finite), _mean(finite, unit, decimals)), (endless, "never")):
        if count:
            found.append(f"{text} ({count}{'' if count == len(values) else f' of {len(values)}'})")
    return ", ".join(found) or f"no figure ({len(values)})"


def _mean(values: Sequence[float], unit: str, decimals: int | None) -> str:
    if not values:
        return ""
    mean, spread = mean_and_spread(values)
    return _number(mean, unit, decimals) + ("" if spread is None else f" ± {_number(spread, unit, decimals)}")


def _one(value: float | None, unit: str, decimals: int | None) -> str:
    if value is None or math.isnan(value):
        return "no figure"
    return "never" if math.isinf(value) else _number(value, unit, decimals)


def _number(value: float, unit: str, decimals: int | None) -> str:
    """Write a number as its unit asks; percentages with two decimals or as many as are printed.

    Example:
        >>> _number(99.123, "%", 1), _number(1025.0, "steps", None), _number(0.0312, "ratio", 2), _number(256.0, "count", None)
        ('99.12', '1,025', '0.03', '256')
    """
    if unit == "%":
        return f"{value:.{max(2, decimals or 0)}f}"
    if decimals is not None and unit != "steps":
        return f"{value:,.{decimals}f}"
    return f"{value:,.0f}" if value == round(value) or abs(value) >= 100 else f"{value:.3g}"


@dataclass(frozen=True)
class NumberRow:
    """A printed number and ours, as texts.

    Attributes:
        key: of the target.
        where: in the paper.
        role: what it is there.
        metric: what was measured, and in which unit.
        printed: the paper's string.
        ours: the mean of ours.
        spread: of ours; may be empty.
        whole: mean and spread.
        runs: how many; empty where it was worked out and is of no run in particular.
        verdict: with its sign.
        remark: may be empty.
    """

    key: str
    where: str
    role: str
    metric: str
    printed: str
    ours: str
    spread: str
    whole: str
    runs: str
    verdict: str
    remark: str


def number_rows(known: Known, verdicts: Sequence[Verdict]) -> list[NumberRow]:
    """Return printed numbers beside ours, as texts."""
    read = {target for recipe in known.paper.recipes if known.of(recipe.key) for target in recipe.reads}
    rows = []
    for verdict in verdicts:
        target = verdict.target
        finite = [value for value in verdict.values if math.isfinite(value)]
        whole = _mean(finite, target.unit, target.places)
        ours, _, spread = whole.partition(" ± ")
        never = len(verdict.values) - len(finite)
        endless = f"never ({never} of {len(verdict.values)})" if never else ""
        remarks = [known.paper.remarks.get(target.key, ""), target.note]
        remarks += [f"{many(verdict.failed, 'run')} came to no number"] if verdict.failed else []
        rows.append(
            NumberRow(
                key=target.key,
                where=target.table,
                role=target.role,
                metric=f"{target.metric}, {target.unit}" if target.unit else target.metric,
                printed=_as_printed(target),
                ours=", ".join(filter(None, (ours, endless))),
                spread=spread,
                whole=", ".join(filter(None, (whole, endless))),
                runs=str(len(verdict.values)) if verdict.values and target.key in read else "",
                verdict=_signed(verdict),
                remark="; ".join(filter(None, remarks)),
            )
        )
    return rows


def printed_sheet(known: Known, verdicts: Sequence[Verdict], label: str, *, with_role: bool = False) -> Sheet:
    """List printed numbers beside ours.

    Args:
        known: the paper and its results.
        verdicts: on these numbers.
        label: what they are.
        with_role: say of each what it is in the paper.
    """
    head = ["what", "table", *(["role"] if with_role else []), "metric", "printed", "ours", "spread", "runs"]
    head += [*([] if known.quick else ["verdict"]), "remark"]
    rows = []
    for each in number_rows(known, verdicts):
        cells = [each.key, each.where, *([each.role] if with_role else []), each.metric, each.printed, each.ours]
        cells += [each.spread, each.runs, *([] if known.quick else [each.verdict]), each.remark]
        rows.append(tuple((cell,) for cell in cells))
    # what no number has is left out.
    kept = [k for k, name in enumerate(head) if name not in ("spread", "runs", "remark") or any(row[k][0] for row in rows)]
    head, rows = [head[k] for k in kept], [tuple(row[k] for k in kept) for row in rows]
    right = tuple(k for k, name in enumerate(head) if name in ("printed", "ours", "spread", "runs"))
    return Sheet(label, tuple(head), tuple(rows), right)


def many(count: int, what: str) -> str:
    """Write how many.

    Example:
        >>> many(1, "run"), many(1200, "claim of the paper")
        ('1 run', '1,200 claims of the paper')
    """
    first, _, rest = what.partition(" of ")
    return f"{count:,} {first}{'' if count == 1 else 's'}{' of ' if rest else ''}{rest}"
