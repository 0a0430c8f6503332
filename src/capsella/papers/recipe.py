"""An experiment of a paper, as typed values: what to train, with which seeds, and what its record is read for."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from capsella import __numerics__
from capsella.train.config import TrainConfig
from capsella.train.plan import Plan

# where and how fast a run is computed, and how closely it is looked at: none of it makes it another experiment.
_FREE = ("seed", "device", "devices", "nodes", "precision", "fast", "log_every", "watch", "checkpoint_seconds")


@dataclass(frozen=True)
class Recipe:
    """One row of a paper's table.

    Attributes:
        key: ``<paper>/<table>/<row>``.
        label: the row in words, for tables.
        plan: what is trained; its seed is replaced.
        reads: which figure of a result stands beside which printed number: keys of targets to names of readings.
        seeds: of the runs, in the order in which they are made.
        measures: what is measured on the trained network beside its accuracy, by name.
        departures: what is done otherwise than in the paper, a sentence each.
        quick: settings of the short version on a CPU; None where there is none.
        exact: train in float32 on a GPU too: what is read of it would show half precision.
        alone: run it when no other run goes on: what is read of it is time.
    """

    key: str
    label: str
    plan: Plan
    reads: Mapping[str, str] = field(default_factory=dict)
    seeds: tuple[int, ...] = (0, 1, 2)
    measures: tuple[str, ...] = ()
    departures: tuple[str, ...] = ()
    quick: Mapping[str, Any] | None = None
    exact: bool = False
    alone: bool = False

    @property
    def paper(self) -> str:
        """The paper's name."""
        return self.key.split("/")[0]

    def job(self, seed: int, *, quick: bool = False, settings: Mapping[str, Any] | None = None) -> Job:
        """Return one run of it.

        Args:
            seed: of weights and samples.
            quick: the short version.
            settings: device, precision and the like, as ``Plan.changed`` takes them; where no precision is said, it is bf16 on
                a GPU, unless the recipe is exact.

        Example:
            >>> recipe = Recipe("a/b/c", "", Plan("sign_capsnet", "sign"))
            >>> [recipe.job(0, settings={"device": device}).plan.train.precision for device in ("cpu", "cuda")]
            ['float32', 'bf16']
        """
        if quick and self.quick is None:
            raise ValueError(f"recipe={self.key!r} has no quick version")
        where = dict(settings or {})
        if where.get("device") == "cuda" and not self.exact:
            where.setdefault("precision", "bf16")
        changed = {**(self.quick or {} if quick else {}), **where, "seed": seed}
        return Job(self, seed, self.plan.changed(changed), quick)


@dataclass(frozen=True)
class Job:
    """One run of a recipe.

    Attributes:
        recipe: of what.
        seed: which.
        plan: what is carried out.
        quick: whether it is the short version.
    """

    recipe: Recipe
    seed: int
    plan: Plan
    quick: bool = False

    @property
    def name(self) -> str:
        """Recipe and seed, as a path."""
        return run_name(self.recipe.key, self.seed, quick=self.quick)

    @property
    def fingerprint(self) -> str:
        """What tells whether a result is one of this run; see ``fingerprint``."""
        return fingerprint(self.plan, self.recipe.measures)


def run_name(recipe: str, seed: int, *, quick: bool) -> str:
    """Return the name of a run; the short version of one has another, so that neither takes the other's place.

    Example:
        >>> run_name("a/b/c", 3, quick=False), run_name("a/b/c", 3, quick=True)
        ('a/b/c/seed-3', 'a/b/c/quick-seed-3')
    """
    return f"{recipe}/{'quick-' if quick else ''}seed-{seed}"


def fingerprint(plan: Plan, measures: tuple[str, ...] = (), *, numerics: int = __numerics__) -> str:
    """Return 16 letters that change where the experiment or the arithmetic does.

    Only what differs from a default goes in, so that a new setting does not make all results old; a default that changes
    values raises the numerics version, which goes in too. Device, precision and speed do not: a result says them.

    Example:
        >>> plan = Plan("sign_capsnet", "sign")
        >>> fingerprint(plan) == fingerprint(plan.changed({"device": "cpu", "seed": 3}))
        True
        >>> fingerprint(plan) == fingerprint(plan.changed({"lr": 0.1}))
        False
    """
    usual = TrainConfig().as_dict()
    train = {key: value for key, value in plan.train.as_dict().items() if value != usual[key] and key not in _FREE}
    parts = {name: value for name, value in plan.as_dict().items() if name != "train"}
    content = {**parts, "train": train, "measures": sorted(measures), "numerics": numerics}
    text = json.dumps(content, sort_keys=True, default=list)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def with_seeds(recipe: Recipe, count: int) -> Recipe:
    """Return a recipe with the first so many of its seeds, or with more, counted up from its last."""
    more = range(recipe.seeds[-1] + 1, recipe.seeds[-1] + 1 + max(0, count - len(recipe.seeds)))
    return dataclasses.replace(recipe, seeds=(*recipe.seeds[:count], *more))
