"""A small made paper with results of every kind, for the tests of its pages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from capsella.papers.paper import Line, Paper, Plot, Table
from capsella.papers.recipe import Recipe
from capsella.papers.results import Result
from capsella.papers.targets import Target
from capsella.papers.verdicts import Claim, Evidence
from capsella.train.config import TrainConfig
from capsella.train.plan import Plan

WITH, WITHOUT = "made2024/table1/with", "made2024/table1/without"
PLAN = Plan("sign_capsnet", "sign", train=TrainConfig(epochs=2, precision="float32"))


def target(key: str, printed: str, value: float | None, *, role: str = "result", unit: str = "%", **more: Any) -> Target:
    table = "Table 1" if key.startswith("table1/") else "text"
    return Target("made2024", key, table, more.pop("metric", "test accuracy"), printed, unit, role, value, **more)


class MadePaper(Paper):
    """A paper whose printed numbers are these."""

    @property
    def targets(self) -> dict[str, Target]:
        found = [
            target("table1/with", "99.0", 99.0),
            target("table1/without", "15.8", 15.8),
            target("table1/cited", "97.1", 97.1, cited=True, note="quoted from others"),
            target("text/batch-size", "256", 256.0, role="setting", unit="count", metric="batch size"),
            target("text/size", "8.2M", 8.2, role="size", unit="M", metric="parameters"),
            target("text/order", "$O(n^2)$", None, role="analytic", unit="", metric="time"),
        ]
        return {each.key: each for each in found}


def recipe(key: str, label: str, **more: Any) -> Recipe:
    reads = {"/".join(key.split("/")[1:]): "final"}
    departures = ("our own departure",) if key == WITH else ()
    return Recipe(
        key, label, PLAN, **{"reads": reads, "departures": ("Adam, not SGD", *departures), "quick": {"epochs": 1}, **more}
    )


def lines(evidence: Evidence) -> Sequence[Line]:
    found = []
    for key, label in ((WITHOUT, "without"), (WITH, "with")):
        if evidence.has(key):
            found.append(Line(label, (1.0, 2.0), (0.1, evidence.mean(key))))
        found.append(Line(label, (1.0, 2.0), (0.2, 0.9), is_printed=True))
    return found


def claim(name: str, holds: bool | None, *, source: str = "section 3", recipes: tuple[str, ...] = (WITH,)) -> Claim:
    return Claim(f"made2024/{name}", f"Claim {name}.", source, recipes, lambda evidence: (holds, f"figure of {name}"))


PAPER = MadePaper(
    "made2024",
    "A Made Paper",
    recipes=(recipe(WITHOUT, "no bias"), recipe(WITH, "bias")),
    tables=(
        Table("table1", "Table 1", "Test accuracy", (WITHOUT, WITH), rows=("one net",), columns=("no bias", "bias")),
        Table("starts", "", "Where learning starts", (WITHOUT, WITH), reading="starts", note="A note of the table."),
    ),
    plots=(
        Plot("table1", "Accuracy by layer", "layer", "accuracy", lines, is_share=True, is_counted=True),
        Plot("table1-more", "The same again", "layer", "accuracy", lines, is_share=True),
        Plot("starts", "Nothing to draw", "layer", "accuracy", lambda evidence: []),
        Plot("alone", "Of no table", "layer", "accuracy", lines),
    ),
    claims=(
        claim("true", True),
        claim("false", False),
        claim("open", None, recipes=(WITH, WITHOUT)),
        claim("mine", True, source="ours"),
    ),
    facts={"text/batch-size": lambda evidence: 128.0},
    remarks={"text/batch-size": "half of it fits"},
    says=("What to know first.",),
    beyond="What else we asked",
)


def result(key: str = WITH, seed: int = 0, accuracy: float | None = 0.99, *, starts: int = 50, **changes: Any) -> Result:
    """Make a result whose accuracy is this at the end and a point more in the epoch before."""
    steps = list(range(50, 401, 50))
    first = None if accuracy is None else round(accuracy + 0.01, 6)
    made = Result(
        recipe=key,
        seed=seed,
        fingerprint="0123456789abcdef",
        quick=False,
        status="finished",
        steps=200,
        seconds=100.0,
        device_seconds=90.0,
        parameters=12345,
        history={
            "epoch": [1, 2],
            "step": [100, 200],
            "loss": [0.5, 0.4],
            "accuracy": [0.5, 0.6],
            "validation": [first, accuracy],
            "seconds": [1.0, 1.0],
        },
        curve={"step": steps, "loss": [0.5] * len(steps), "accuracy": [0.9 if step >= starts else 0.1 for step in steps]},
        plan={"train": {"precision": "bf16", "fast": True, "batch_size": 256}},
        data={
            "train": {"name": "mnist", "split": "train", "options": {}, "images": 60000, "digest": "abcdef0123456789" * 4},
            "validation": None,
            "test": None,
        },
        environment={
            "capsella": "0.1.0",
            "numerics": 2,
            "commit": "67d73df1e33c4798ee5692dfdf8011049f7f3e87+",
            "torch": "2.11.0",
            "device": "NVIDIA H200",
        },
        implementations=["agreement (vote_and_route): fused"],
    )
    return replace(made, **changes)


def three_each() -> list[Result]:
    """Three runs of both recipes: one within, one below what is printed; the net without a bias never starts to learn."""
    found = [result(WITH, seed, accuracy, starts=100 + 50 * (seed == 2)) for seed, accuracy in enumerate((0.989, 0.990, 0.991))]
    return found + [result(WITHOUT, seed, accuracy, starts=999) for seed, accuracy in enumerate((0.10, 0.10, 0.11))]
