"""What tests of the papers share: tiny recipes, results made by hand."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from capsella import __numerics__
from capsella.papers.recipe import Job, Recipe
from capsella.papers.results import Result, from_json, to_json
from capsella.train.plan import Plan

PLAN = Plan("sign_capsnet", "sign", validate=None, test=False).changed(
    {"steps": 6, "batch_size": 64, "log_every": 1, "lr": 5e-3, "checkpoint_seconds": 0}
)
CPU = {"device": "cpu"}


def recipe(row: str = "row", *, table: str = "table1", **changes: Any) -> Recipe:
    """Return a recipe that is run in a moment."""
    return dataclasses.replace(Recipe(f"peer2022/{table}/{row}", row, PLAN, seeds=(0, 1)), **changes)


def job(row: str = "row", seed: int = 0, **changes: Any) -> Job:
    return recipe(row, **changes).job(seed, settings=CPU)


def result(
    key: str = "peer2022/table1/row",
    seed: int = 0,
    *,
    validation: Sequence[float | None] = (0.5,),
    training: Sequence[float] = (0.5,),
    curve: Mapping[str, Sequence[float]] | None = None,
    measured: Mapping[str, Any] | None = None,
    numerics: int = __numerics__,
    **changes: Any,
) -> Result:
    """Return a result; everything that is not asked for is usual."""
    count = max(len(validation), len(training))
    history = {
        "epoch": list(range(1, count + 1)),
        "step": [10 * k for k in range(1, count + 1)],
        "loss": [0.1] * count,
        "accuracy": [*training, *[training[-1]] * (count - len(training))] if training else [],
        "validation": [*validation, *[validation[-1]] * (count - len(validation))] if validation else [],
        "seconds": [1.0] * count,
    }
    made = Result(
        recipe=key,
        seed=seed,
        fingerprint="0123456789abcdef",
        quick=False,
        status="finished",
        steps=10 * count,
        seconds=20.0,
        device_seconds=10.0,
        parameters=82,
        history=history,
        curve=curve or {"step": [1, 2], "loss": [0.5, 0.4], "accuracy": [0.1, 0.5]},
        plan={**PLAN.as_dict(), "model_options": {}},
        data={"train": {"name": "sign", "split": "train", "options": {}, "images": 20_002, "digest": "d" * 64}},
        environment={"numerics": numerics, "device": "a CPU", "commit": "c" * 40, "torch": "2.13.0", "capsella": "0.1.0"},
        measured=measured or {},
    )
    # as it comes back from a file.
    return from_json(to_json(dataclasses.replace(made, **changes)), where="here")
