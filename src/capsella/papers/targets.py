"""What the papers print: every number of their tables and texts, as ``targets.toml`` beside each paper's recipes has it."""

from __future__ import annotations

import dataclasses
import functools
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from importlib import resources
from typing import Any

from capsella.errors import DataError, check_choice, unknown_name

PAPERS = ("peer2022", "mitterreiter2023", "gu2021", "chen2019", "yang2021")
ROLES = ("result", "setting", "size", "claim", "qualitative", "analytic")

# a cell of a table: a number, perhaps with a unit, perhaps with a spread; a number in the middle of a sentence is not one,
# because nobody can tell how far it is rounded.
_CELL = re.compile(r"(?P<number>\d+(?:\.(?P<decimals>\d+))?)(?P<suffix>[%kKM]?)(?:\s*(?:\(±|±|_\{\\pm)\s*[\d.]+[)}]?)?")
_POWERS = {"%": -2, "k": 3, "K": 3, "M": 6}


@dataclass(frozen=True)
class Target:
    r"""One printed number, or one word where a table has words.

    Attributes:
        paper: its name.
        key: ``<table>/<row>``, unique in the paper.
        table: as the paper calls it; "text" is running text.
        metric: what was measured.
        printed: the string of the paper, slips included.
        unit: of ``value`` and ``std``.
        role: one of ``ROLES``; a setting is an input of an experiment, a claim a sentence of the text.
        value: the number; None where the paper prints a dash, a word or a formula.
        std: the spread that is printed with it.
        config: which row it is.
        cited: whether the paper only quotes it from others.
        note: what there is to know about it.

    Example:
        >>> target = Target("chen2019", "table2/a", "Table 2", "error rate", r"0.91_{\pm 0.09}", "%", "result", 0.91, 0.09)
        >>> target.name, target.decimals, target.places, target.rounding
        ('chen2019/table2/a', 2, 2, 0.005)
    """

    paper: str
    key: str
    table: str
    metric: str
    printed: str
    unit: str
    role: str
    value: float | int | None = None
    std: float | None = None
    config: Mapping[str, Any] = field(default_factory=dict, hash=False)
    cited: bool = False
    note: str = ""

    def __post_init__(self) -> None:
        check_choice("role", self.role, ROLES)

    @property
    def name(self) -> str:
        """Paper and key."""
        return f"{self.paper}/{self.key}"

    @property
    def decimals(self) -> int | None:
        """How many decimals are printed; None where that cannot be told, as of a word, or of "1k steps"."""
        cell = self._cell()
        return None if cell is None else cell[0]

    @property
    def places(self) -> int | None:
        """How many decimals the printed number has in ``unit``: 3 of "716K" in millions; None where that cannot be told."""
        cell = self._cell()
        return None if cell is None else max(0, cell[0] - cell[1])

    @property
    def rounding(self) -> float | None:
        """Half a unit of the last printed place, in the unit of ``value``: 0.05 of "99.0"; None where that cannot be told."""
        cell = self._cell()
        return None if cell is None else float(Decimal(5).scaleb(cell[1] - cell[0] - 1))

    def _cell(self) -> tuple[int, int] | None:
        """Return the decimals of the printed number, and by which power of ten it becomes one in ``unit``."""
        found = _CELL.fullmatch(self.printed)
        if found is None or self.value is None:
            return None
        suffix = found["suffix"]
        power = _POWERS[suffix] - _POWERS.get(self.unit, 0) if suffix else 0
        # a slip, such as a point that was lost: the places of the string are not those of the number.
        if float(Decimal(found["number"]).scaleb(power)) != self.value:
            return None
        return len(found["decimals"] or ""), power


def read_targets(paper: str) -> dict[str, Target]:
    """Return what a paper prints, by key, in the order of the paper.

    Args:
        paper: one of ``PAPERS``.

    Example:
        >>> target = read_targets("peer2022")["table2/mnist-no-bias-depth4"]
        >>> target.value, target.unit, target.rounding, target.config["capsule_layers"]
        (15.8, '%', 0.05, 4)
    """
    check_choice("paper", paper, PAPERS)
    return dict(_read(paper))


@functools.cache
def _read(paper: str) -> dict[str, Target]:
    text = resources.files("capsella.papers").joinpath(paper, "targets.toml").read_text(encoding="utf-8")
    return parse_targets(paper, text)


def parse_targets(paper: str, text: str) -> dict[str, Target]:
    """Read the text of a ``targets.toml``; anything that does not fit is a ``DataError`` that names the entry.

    Args:
        paper: whose it is.
        text: ``[[target]]`` tables with the fields of ``Target``.
    """
    where = f"{paper}/targets.toml"
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise DataError(f"{where} is no TOML ({error})") from error
    if list(content) != ["target"]:
        raise DataError(f"{where} has {', '.join(content) or 'nothing'}; expected [[target]] tables and nothing else")
    known = {each.name: each for each in dataclasses.fields(Target) if each.name != "paper"}
    needed = [name for name, each in known.items() if each.default is each.default_factory is dataclasses.MISSING]
    targets: dict[str, Target] = {}
    for number, fields in enumerate(content["target"], start=1):
        entry = f"{where}, {fields.get('key', f'entry {number}')}"
        for name in fields:
            if name not in known:
                raise DataError(f"{entry}: {unknown_name('field', name, known)}")
        missing = [name for name in needed if name not in fields]
        if missing:
            raise DataError(f"{entry} lacks {', '.join(missing)}")
        if fields["key"] in targets:
            raise DataError(f"{entry} is there twice; expected a key of its own")
        try:
            targets[fields["key"]] = Target(paper, **fields)
        except ValueError as error:
            raise DataError(f"{entry}: {error}") from error
    return targets
