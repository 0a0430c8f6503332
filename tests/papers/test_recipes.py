"""Every recipe of every paper: it builds, it says which printed numbers it is for, and every field of it matters."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from capsella.models import create_model
from capsella.papers.measuring import measure_by_name
from capsella.papers.paper import get_paper, jobs_of, select
from capsella.papers.readings import READINGS
from capsella.papers.recipe import Recipe, fingerprint, with_seeds
from capsella.papers.targets import PAPERS
from capsella.train.config import TrainConfig
from capsella.train.plan import LENGTH_PRESERVING, Plan

sys.path.insert(0, str(Path(__file__).resolve().parent))
from paper_harness import PLAN, recipe

RECIPES = [each for name in PAPERS for each in get_paper(name).recipes]
SIZES = {
    **{"sign": (1, 2, 1), "mnist": (28, 10, 1), "fashion_mnist": (28, 10, 1)},
    **{"cifar10": (24, 10, 3), "multimnist": (36, 10, 1), "mnist40": (40, 10, 1)},
}


def build(plan: Plan) -> torch.nn.Module:
    size, classes, channels = SIZES[plan.data]
    options = {key: value for key, value in plan.model_options.items() if (key, value) != ("init", LENGTH_PRESERVING)}
    with torch.device("meta"):
        return create_model(plan.model, image_size=size, num_classes=classes, in_channels=channels, **options)


@pytest.mark.parametrize("each", RECIPES, ids=lambda each: each.key)
def test_a_recipe_builds_and_stands_beside_printed_numbers(each: Recipe) -> None:
    paper = get_paper(each.paper)
    build(each.plan)
    if each.quick is not None:
        small = each.job(0, quick=True).plan
        assert sum(p.numel() for p in build(small).parameters()) <= sum(p.numel() for p in build(each.plan).parameters())
        assert small.train.steps is not None or small.train.epochs < each.plan.train.epochs
    for target, reading in each.reads.items():
        assert target in paper.targets
        assert reading in READINGS
    for name in each.measures:
        assert callable(measure_by_name(name))
    assert each.departures
    assert len(set(each.seeds)) == len(each.seeds) > 0


@pytest.mark.parametrize("name", PAPERS)
def test_the_parts_of_a_paper_fit_together(name: str) -> None:
    paper = get_paper(name)
    keys = [each.key for each in paper.recipes]
    assert len(set(keys)) == len(keys)
    assert all(key.startswith(f"{name}/") and key.count("/") == 2 for key in keys)
    read = [target for each in paper.recipes for target in each.reads]
    assert len(set(read)) == len(read)
    assert not set(read) & set(paper.facts)
    assert set(paper.facts) | set(paper.remarks) <= set(paper.targets)
    shown = {key for table in paper.tables for key in table.recipes}
    assert shown == set(keys)
    for table in paper.tables:
        if table.rows:
            assert len(table.rows) * len(table.columns) == len(table.recipes)
        assert table.reading in READINGS
    for claim in paper.claims:
        assert set(claim.recipes) <= set(keys)
    assert len({claim.key for claim in paper.claims}) == len(paper.claims)
    assert len({plot.key for plot in paper.plots}) == len(paper.plots)


def test_every_printed_result_of_peer2022_has_a_recipe() -> None:
    paper = get_paper("peer2022")
    read = {target for each in paper.recipes for target in each.reads}
    assert {key for key, target in paper.targets.items() if target.role == "result"} == read


# SPEC 0.1; 352 fewer and so on without a bias.
COUNTS = {
    **{
        ("table2", "bias", depth): count
        for depth, count in zip((2, 3, 4, 5), (8215728, 8541552, 8578608, 8615664), strict=True)
    },
    **{
        ("table2", "no-bias", depth): count
        for depth, count in zip((2, 3, 4, 5), (8215568, 8541200, 8578064, 8614928), strict=True)
    },
    **{
        ("table3", "bias", depth): count
        for depth, count in zip((5, 6, 7, 8, 9), (8293124, 8318916, 8344708, 8370500, 8396292), strict=True)
    },
}


@pytest.mark.parametrize(("table", "bias", "depth"), COUNTS)
def test_the_deep_nets_have_the_authors_sizes(table: str, bias: str, depth: int) -> None:
    (each,) = select(f"peer2022/{table}/fashion-{bias}-depth{depth}").recipes
    assert sum(p.numel() for p in build(each.plan).parameters()) == COUNTS[table, bias, depth]


def test_peer2022_s_settings_are_the_authors() -> None:
    sign, deep = (select(f"peer2022/{row}").recipes[0].plan for row in ("table1/em-bias", "table3/mnist-bias-depth9"))
    assert (sign.train.lr, sign.train.batch_size, sign.train.epochs, sign.train.down_weight) == (5e-3, 256, 50, 1.0)
    assert (deep.train.lr, deep.train.batch_size, deep.train.epochs, deep.train.down_weight) == (1e-4, 256, 50, 0.5)
    assert (deep.train.reconstruction, deep.train.reconstruction_reduction) == (0.0005, "sum")
    assert deep.data_options == {"normalise": "peer2022"}
    assert (deep.split, deep.validate) == ("train", "test")
    controls = {each.key.split("/")[2] for each in select("peer2022/controls").recipes}
    assert {
        f"{name}-depth10" for name in ("no-bias", "bias", "zero-bias", "last-bias", "wide", "wider", "lengths", "lengths-bias")
    } <= controls
    # as published, depths 4 and 5 are rows of Table 2.
    assert "mnist-bias-depth4" in controls
    assert len(controls) == 24


@pytest.mark.parametrize(("row", "usual"), [("table1/em-bias", "float32"), ("table3/mnist-bias-depth9", "bf16")])
def test_half_precision_is_for_a_gpu_and_for_what_does_not_show_it(row: str, usual: str) -> None:
    (each,) = select(f"peer2022/{row}").recipes

    def precision(**settings: str) -> str:
        return each.job(0, settings=settings).plan.train.precision

    assert precision(device="cuda") == usual
    assert precision(device="cpu") == precision() == "float32"
    # whoever asks for one has it.
    assert precision(device="cuda", precision="tf32") == precision(device="cpu", precision="tf32") == "tf32"


OTHER: dict[str, Any] = {
    "epochs": 3,
    "steps": 7,
    "batch_size": 5,
    "optimiser": "sgd",
    "betas": (0.5, 0.9),
    "schedule": "exponential",
    "milestones": (3,),
    "loss": "spread",
    "margins": (0.8, 0.2),
    "spread": (0.1, 0.9),
    "reconstruction_reduction": "mean",
    "coupling_optimiser": "ascent",
    "coupling_objective": "raw",
    "clip": 1.0,
    "coupling_lr": 0.5,
    "target_accuracy": 0.5,
}
FREE = {
    **{"seed": 5, "device": "cpu", "devices": 2, "nodes": 2, "precision": "bf16", "fast": True},
    **{"log_every": 3, "watch": 4, "checkpoint_seconds": 1.0},
}


@pytest.mark.parametrize("field", TrainConfig().as_dict())
def test_every_setting_makes_another_experiment_or_is_free(field: str) -> None:
    usual = TrainConfig().as_dict()[field]
    other = FREE.get(field, OTHER.get(field, usual * 2 + 1 if isinstance(usual, int | float) else None))
    changed = PLAN.changed({field: other})
    assert changed.train != PLAN.train
    assert (fingerprint(changed) == fingerprint(PLAN)) == (field in FREE)


@pytest.mark.parametrize(
    "change",
    [
        lambda plan: replace(plan, model="lenet"),
        lambda plan: replace(plan, data="mnist", model="capsnet"),
        lambda plan: plan.changed({"model.bias": False}),
        lambda plan: plan.changed({"data.augment": None}),
        lambda plan: replace(plan, split="train"),
        lambda plan: replace(plan, validate="test"),
        lambda plan: replace(plan, test=True),
    ],
)
def test_every_part_of_a_plan_makes_another_experiment(change: Callable[[Plan], Plan]) -> None:
    assert fingerprint(change(PLAN)) != fingerprint(PLAN)


def test_measures_and_numerics_make_another_experiment() -> None:
    assert fingerprint(PLAN, ("peer2022.inside",)) != fingerprint(PLAN)
    assert fingerprint(PLAN, numerics=99) != fingerprint(PLAN)
    # by way of JSON, as a result has it.
    assert fingerprint(Plan.of(PLAN.as_dict())) == fingerprint(PLAN)


def test_a_new_setting_does_not_make_old_results_void() -> None:
    # what is left at its default is not part of it; this is that of a plan that changes one thing.
    assert fingerprint(Plan("sign_capsnet", "sign").changed({"lr": 0.1}), numerics=2) == "e7f1f0bc768d5130"


def test_every_row_once_before_any_twice() -> None:
    names = [each.name for each in jobs_of([recipe("a", seeds=(0, 1, 2)), recipe("b", seeds=(5,)), recipe("c", seeds=(0, 1))])]
    assert [name.removeprefix("peer2022/table1/") for name in names] == [
        *("a/seed-0", "b/seed-5", "c/seed-0"),
        *("a/seed-1", "c/seed-1"),
        "a/seed-2",
    ]
    assert [each.seed for each in jobs_of([recipe(seeds=(0, 1, 2))], seeds=2)] == [0, 1]
    assert [each.seed for each in jobs_of([recipe(seeds=(0, 1))], seeds=4)] == [0, 1, 2, 3]
    assert with_seeds(recipe(seeds=(3,)), 2).seeds == (3, 4)


def test_quick_versions_are_of_those_that_have_one() -> None:
    quick = recipe("quick", quick={"steps": 2})
    jobs = jobs_of([recipe("none"), quick], quick=True)
    assert [(each.recipe.key, each.seed, each.plan.train.steps) for each in jobs] == [("peer2022/table1/quick", 0, 2)]
    assert len(jobs_of([quick], quick=True, seeds=2)) == 2
    with pytest.raises(ValueError, match="has no quick version"):
        recipe().job(0, quick=True)


def test_what_is_picked_by_name() -> None:
    assert {each.key for each in select("peer2022/table1").recipes} == {
        f"peer2022/table1/{routing}-{bias}" for routing in ("rba", "em") for bias in ("bias", "no-bias")
    }
    # a figure shows another table's runs.
    assert {each.key.split("/")[1] for each in select("peer2022/figure2").recipes} == {"table3"}
    assert select("peer2022/").recipes == get_paper("peer2022").recipes


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("peer2021", "paper='peer2021' is unknown; did you mean 'peer2022'"),
        ("peer2022/table9", "table of peer2022='table9' is unknown; did you mean"),
        ("peer2022/table1/em-biass", "row of peer2022/table1='em-biass' is unknown; did you mean 'em-bias'"),
    ],
)
def test_what_is_unknown_is_said_with_its_neighbours(what: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        select(what)
