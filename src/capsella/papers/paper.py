"""A paper as a whole: its recipes, the tables and figures that show them, its claims; and what is picked of it by name."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from capsella.errors import check_choice, unknown_name
from capsella.papers.recipe import Job, Recipe, with_seeds
from capsella.papers.results import Result
from capsella.papers.store import Store
from capsella.papers.targets import PAPERS, Target, read_targets
from capsella.papers.verdicts import Claim, Evidence, Fact, Finding, Verdict, judge_all

TITLES = {
    "peer2022": "Limitation of Capsule Networks",
    "mitterreiter2023": "Why Capsule Neural Networks Do Not Scale",
    "gu2021": "Capsule Network is Not More Robust than Convolutional Network",
    "chen2019": "Generalized Capsule Networks with Trainable Routing Procedure",
    "yang2021": "Routing Towards Discriminative Power of Class Capsules",
}


@dataclass(frozen=True)
class Table:
    """A table or figure, of the paper or of our own.

    Attributes:
        key: its part in the keys of recipes, such as ``table2``; a figure may show another table's runs.
        name: as the paper calls it, such as ``Table 2``; empty for one of our own.
        title: what it shows.
        recipes: keys, row by row.
        reading: the figure that it shows, of ``readings.READINGS``.
        rows: names of the rows, where it is a grid of rows and columns; else every recipe is a row.
        columns: names of the columns.
        note: what to know when reading it.
    """

    key: str
    name: str
    title: str
    recipes: tuple[str, ...]
    reading: str = "final"
    rows: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    note: str = ""


@dataclass(frozen=True)
class Summary:
    """A table of our own that is worked out of several recipes at once.

    Attributes:
        key: as of a ``Table``; no recipe has it.
        title: what it shows.
        caption: what its numbers are.
        head: names of the columns.
        rows: from the evidence, a text for each column, the first of which names the row; none of what has not run.
        right: columns of numbers.
    """

    key: str
    title: str
    caption: str
    head: tuple[str, ...]
    rows: Callable[[Evidence], Sequence[tuple[str, ...]]]
    right: tuple[int, ...] = ()


@dataclass(frozen=True)
class Line:
    """A line of a plot.

    Attributes:
        label: in the legend.
        x: places.
        y: values; what is no number between two others is a gap.
        spread: drawn on both sides of each value, or None.
        is_printed: the paper's own numbers, drawn fainter beside ours of the same label.
        style: which of the colours and dashes; the next one if None. What stands in several pictures has one of its own.
    """

    label: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    spread: tuple[float, ...] | None = None
    is_printed: bool = False
    style: int | None = None


@dataclass(frozen=True)
class Plot:
    """A picture that results give.

    Attributes:
        key: file name without ending; also the ``Table`` that it belongs to, or a name of its own.
        title: what it shows, in a sentence.
        x_label: under it.
        y_label: beside it.
        lines: from the evidence; no line is drawn of what has not run.
        is_share: values from 0 to 1, written as percentages.
        is_log: a logarithmic axis of values.
        is_counted: places are whole numbers; each is marked.
    """

    key: str
    title: str
    x_label: str
    y_label: str
    lines: Callable[[Evidence], Sequence[Line]]
    is_share: bool = False
    is_log: bool = False
    is_counted: bool = False


@dataclass(frozen=True)
class Panel:
    """Images side by side, one of a gallery's.

    Attributes:
        label: what they are.
        sheet: what ``images.pack`` made of them.
    """

    label: str
    sheet: Mapping[str, Any]


@dataclass(frozen=True)
class Gallery:
    """Images that results give, panel by panel.

    Attributes:
        key: as of a ``Plot``.
        title: what it shows, in a sentence.
        panels: from the evidence; none is shown of what has not run.
    """

    key: str
    title: str
    panels: Callable[[Evidence], Sequence[Panel]]


@dataclass(frozen=True)
class Trees:
    """Parse trees that results give.

    Attributes:
        key: as of a ``Plot``.
        title: what it shows, in a sentence.
        part: ``"image"``: the tree of one image; ``"pair"``: those of one image as it is and turned; ``"mean"`` or ``"std"``:
            over many images.
        record: from the evidence, what ``analysis.pictures.pictures_of`` made, its images packed; None of what has not run.
    """

    key: str
    title: str
    part: str
    record: Callable[[Evidence], Mapping[str, Any] | None]

    def __post_init__(self) -> None:
        check_choice("part", self.part, ("image", "pair", "mean", "std"))


@dataclass(frozen=True)
class Paper:
    """Everything that is run and said of one paper.

    Attributes:
        name: such as ``peer2022``.
        title: of the paper.
        recipes: all of them, in the order in which they are run.
        tables: that show them.
        summaries: that several of them give, before the tables.
        plots: pictures of them.
        claims: that they decide.
        facts: printed numbers that are no figure of one recipe, by the target's key.
        remarks: what to know of a printed number that we do not meet or do not run, by the target's key.
        says: what a reader of its page should know first, a paragraph each.
        beyond: heading of the claims that are questions of our own.
        answer: what these come to, in a sentence or two, from the evidence; empty where that does not say.
    """

    name: str
    title: str
    recipes: tuple[Recipe, ...] = ()
    tables: tuple[Table, ...] = ()
    summaries: tuple[Summary, ...] = ()
    plots: tuple[Plot | Gallery | Trees, ...] = ()
    claims: tuple[Claim, ...] = ()
    facts: Mapping[str, Fact] = field(default_factory=dict)
    remarks: Mapping[str, str] = field(default_factory=dict)
    says: tuple[str, ...] = ()
    beyond: str = "Beyond the paper"
    answer: Callable[[Evidence], str] = lambda evidence: ""

    @property
    def targets(self) -> dict[str, Target]:
        """The printed numbers, by key."""
        return read_targets(self.name)

    def recipe(self, key: str) -> Recipe:
        """Return a recipe by its whole key."""
        found = {recipe.key: recipe for recipe in self.recipes}
        check_choice("recipe", key, found)
        return found[key]

    def verdicts(self, evidence: Evidence) -> list[Verdict]:
        """Return a verdict for every printed number."""
        reads = {target: (recipe.key, reading) for recipe in self.recipes for target, reading in recipe.reads.items()}
        return judge_all(self.targets, reads, self.facts, evidence)

    def findings(self, evidence: Evidence) -> list[tuple[Claim, Finding]]:
        """Return what came of every claim."""
        return [(claim, claim.find(evidence)) for claim in self.claims]


def get_paper(name: str) -> Paper:
    """Return a paper by name."""
    check_choice("paper", name, PAPERS)
    found: Paper = importlib.import_module(f"capsella.papers.{name}.recipes").PAPER
    return found


@dataclass(frozen=True)
class Selection:
    """What somebody asked for.

    Attributes:
        paper: of which.
        recipes: that were picked, in the order in which they are run.
    """

    paper: Paper
    recipes: tuple[Recipe, ...]


def select(what: str) -> Selection:
    """Return what ``PAPER[/TABLE[/ROW]]`` names.

    Example:
        >>> [recipe.key for recipe in select("peer2022/table1/em-bias").recipes]
        ['peer2022/table1/em-bias']
    """
    name, _, rest = what.strip("/").partition("/")
    paper = get_paper(name)
    table, _, row = rest.partition("/")
    tables = {each.key for each in paper.tables} | {_table_of(recipe) for recipe in paper.recipes}
    if table and table not in tables:
        raise ValueError(unknown_name(f"table of {name}", table, tables))
    shown = {key for each in paper.tables if each.key == table for key in each.recipes}
    found = tuple(each for each in paper.recipes if not table or each.key in shown or _table_of(each) == table)
    chosen = tuple(each for each in found if not row or _row_of(each) == row)
    if row and not chosen:
        raise ValueError(unknown_name(f"row of {name}/{table}", row, map(_row_of, found)))
    return Selection(paper, chosen)


def _table_of(recipe: Recipe) -> str:
    return recipe.key.split("/")[1]


def _row_of(recipe: Recipe) -> str:
    return recipe.key.split("/")[2]


def select_all(names: Iterable[str]) -> list[Selection]:
    """Return what several names name: papers in the order in which they come up, of each what was asked for, and nothing twice.

    Example:
        >>> (found,) = select_all(["peer2022/table1/em-bias", "peer2022/table1/rba-bias", "peer2022/table1/em-bias"])
        >>> [recipe.key for recipe in found.recipes]
        ['peer2022/table1/em-bias', 'peer2022/table1/rba-bias']
    """
    found: dict[str, Selection] = {}
    for chosen in map(select, names):
        before = found.get(chosen.paper.name, Selection(chosen.paper, ()))
        new = tuple(recipe for recipe in chosen.recipes if recipe not in before.recipes)
        found[chosen.paper.name] = Selection(chosen.paper, before.recipes + new)
    return list(found.values())


def jobs_of(
    recipes: Iterable[Recipe],
    *,
    seeds: int | None = None,
    quick: bool = False,
    settings: Mapping[str, object] | None = None,
) -> list[Job]:
    """List the runs of recipes: every row once, then every row's next seed, so that tables are whole as early as can be.

    Args:
        recipes: in the order of their rows.
        seeds: runs of each; as many as the recipe names if None, one for quick versions.
        quick: the short versions, of those that have one.
        settings: device, precision and the like, as ``Plan.changed`` takes them.
    """
    count = 1 if quick and seeds is None else seeds
    chosen = [
        recipe if count is None else with_seeds(recipe, count) for recipe in recipes if recipe.quick is not None or not quick
    ]
    rounds = max((len(recipe.seeds) for recipe in chosen), default=0)
    return [
        recipe.job(recipe.seeds[turn], quick=quick, settings=settings)
        for turn in range(rounds)
        for recipe in chosen
        if turn < len(recipe.seeds)
    ]


def current(paper: Paper, store: Store, *, quick: bool = False) -> list[Result]:
    """Return the results of the recipes as they are, of any seed; those of older versions are left out."""
    return [result for result in store.all(f"{paper.name}/") if result.quick == quick and is_current(result)]


def recipe_of(result: Result) -> Recipe | None:
    """Return the recipe of a result as it is now; None of a row, or of a paper, that nobody knows."""
    name = result.recipe.split("/")[0]
    recipes = get_paper(name).recipes if name in PAPERS else ()
    return next((recipe for recipe in recipes if recipe.key == result.recipe), None)


def is_current(result: Result) -> bool:
    """Tell whether a result is of its recipe as it is now, with the arithmetic as it is now."""
    recipe = recipe_of(result)
    if recipe is None or (result.quick and recipe.quick is None):
        return False
    return result.fingerprint == recipe.job(0, quick=result.quick).fingerprint


def recorded(jobs: Sequence[Job], store: Store) -> dict[str, Result]:
    """Return the results that are there already, by the job's name."""
    found = {job.name: store.of(job) for job in jobs}
    return {name: result for name, result in found.items() if result is not None}
