"""mitterreiter2023's cures: their nets, what is measured of them, the questions that they decide and the answer in words."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from capsella.data import ImageData, from_tensors
from capsella.functional import length
from capsella.models import evaluating
from capsella.papers.mitterreiter2023 import measures
from capsella.papers.mitterreiter2023.cures import (
    CURE_DEPTHS,
    CURE_EPOCHS,
    CURES,
    DEEPEST,
    QUICK_CURES,
    QUICK_DEPTHS,
    WITHOUT_DEEPEST,
    cure,
    cure_plan,
)
from capsella.papers.mitterreiter2023.curing import look_inside, settled
from capsella.papers.mitterreiter2023.living import beyond_chance, deepest_alive, nets_of, routing_of, shown_tree
from capsella.papers.mitterreiter2023.nets import placed_plan
from capsella.papers.paper import get_paper, select
from capsella.papers.readings import READINGS
from capsella.papers.results import Result
from capsella.papers.verdicts import Evidence
from capsella.report.papers import paper_report
from capsella.train.plan import run_plan
from capsella.train.run import Run

sys.path.insert(0, str(Path(__file__).resolve().parent))
from paper_harness import result

PAPER = get_paper("mitterreiter2023")
CPU = torch.device("cpu")
CLAIMS = {
    name.removeprefix("cure-"): claim
    for claim in PAPER.claims
    if (name := claim.key.removeprefix("mitterreiter2023/")).startswith("cure-")
}


# ---- settings


def test_every_cure_has_a_net_of_every_depth() -> None:
    keys = [recipe.key for recipe in select("mitterreiter2023/cures").recipes]
    assert keys == [cure(name, depth) for depth in CURE_DEPTHS for name in CURES]
    deepest = [recipe.key for recipe in select(f"mitterreiter2023/cures{DEEPEST}").recipes]
    assert deepest == [cure(name, DEEPEST) for name in CURES if name not in WITHOUT_DEEPEST]
    # what is asked for by row is one run.
    assert len(select(f"mitterreiter2023/cures{DEEPEST}/lengths-depth50").recipes) == 1


def test_cures_differ_from_the_published_net_in_what_they_say_alone() -> None:
    for depth in CURE_DEPTHS:
        published = cure_plan("published", depth)
        # fewer epochs, and no looks while it learns.
        assert published == placed_plan("agreement", depth).changed({"epochs": CURE_EPOCHS, "watch": 0})
        for name, each in CURES.items():
            assert cure_plan(name, depth) == published.changed(each.changes)
    assert len({json.dumps(dict(each.changes), sort_keys=True) for each in CURES.values()}) == len(CURES)
    assert len({each.label for each in CURES.values()}) == len(CURES)


def test_short_versions_have_the_cures_and_depths_that_decide() -> None:
    quick = {recipe.key for recipe in PAPER.recipes if recipe.quick is not None and "/cures" in recipe.key}
    assert quick == {cure(name, depth) for name in QUICK_CURES for depth in QUICK_DEPTHS}


# ---- made results


def views(kept: float) -> dict[str, Any]:
    amounts = {"rotation": [20, 90], "translation": [2, 8], "shear": [20, 60]}
    chance = 0.6
    return {
        view: {"amount": each, "correlation": [chance + kept * (1 - chance), chance], "chance": [chance, chance]}
        for view, each in amounts.items()
    }


TREE = {"trees": [], "view": {}, "statistics": None, "class_names": None, "images": []}


def made(
    name: str,
    depth: int,
    *,
    placed: float = 0.99,
    accuracy: float = 0.8,
    dead: float = 0.0,
    still: float | None = None,
    dys: float = 3.0,
    kept: float = 0.7,
    lost: float = 0.2,
    gradient: float = 1e-3,
    tree: bool = False,
) -> Result:
    """Return a result of a net of a cure."""
    hidden = {"capsules": 100, "cds": round(100 * dead), "cdr": dead, "dyr": dys / 16, "dys": dys, "viewpoint": views(kept)}
    hidden["still"] = round(100 * (dead if still is None else still))
    first, last = {**hidden, "cds": 0, "cdr": 0.0}, {**hidden, "capsules": 10, "cds": 0, "cdr": 0.0, "dyr": None, "dys": None}
    ends = {"lengths": [0.5] * depth, "gradients": [gradient, *[1e-3] * (depth - 2)]}
    cured = {
        **{"images": 10_000, "accuracy": accuracy, "layers": [first, *[hidden] * (depth - 2), last]},
        **{"routing_matters": {"own": accuracy, "uniform": accuracy, "other": accuracy - lost, "images": 512}},
        **{"start": ends, "end": ends, "tree": TREE if tree else None},
    }
    plan = PAPER.recipe(cure(name, depth)).plan.as_dict()
    return result(cure(name, depth), validation=(placed,), measured={"mitterreiter2023.cured": cured}, plan=plan)


DEAD: Mapping[str, Any] = {"placed": 0.1, "accuracy": 0.1, "dead": 1.0, "still": 1.0, "gradient": 1e-12}
STILL: Mapping[str, Any] = {"placed": 0.1, "accuracy": 0.1, "dead": 0.2, "still": 1.0, "gradient": 1e-9}

Change = Callable[[str, int], Mapping[str, Any]]


def nothing(name: str, depth: int) -> Mapping[str, Any]:
    return {}


def all_results(change: Change = nothing, *, depths: tuple[int, ...] = CURE_DEPTHS, quick: bool = False) -> list[Result]:
    """Return results as they would be if a start were all that is needed, depth helped, and parse trees appeared."""
    found = []
    for name in CURES:
        for depth in depths:
            usual: dict[str, Any] = {"accuracy": 0.7 + depth / 200 + 0.05 * (name == "uniform-lengths")}
            if depth >= 8 and name in ("published", "trainable", "uniform"):
                usual |= DEAD
            if depth >= 8 and name == "bias":
                usual |= STILL
            found.append(replace(made(name, depth, **{**usual, **change(name, depth)}), quick=quick))
    return found


def verdict(name: str, change: Change = nothing, **options: Any) -> str:
    return CLAIMS[name].find(Evidence(all_results(change, **options))).verdict


NOT_HERE = ("bias",)
"""Of these the made results say the opposite."""


@pytest.mark.parametrize("name", CLAIMS)
def test_a_question_is_answered_where_everything_is_as_it_says(name: str) -> None:
    assert verdict(name) == ("does not hold" if name in NOT_HERE else "holds")


def of(which: Callable[[str, int], bool], **changes: Any) -> Change:
    """Return what changes some nets."""
    return lambda name, depth: changes if which(name, depth) else {}


def routed(name: str, depth: int) -> bool:
    return routing_of(name) in ("agreement", "em")


def everything(name: str, depth: int) -> bool:
    return True


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("needed", of(lambda name, depth: name == "published" and depth == 20, placed=0.99, dead=0.0)),
        ("exists", of(lambda name, depth: depth == 20, **DEAD)),
        ("start", of(lambda name, depth: name == "lengths" and depth == 12, dead=0.2)),
        ("start", of(lambda name, depth: name == "lengths" and depth == 20, placed=0.5)),
        ("squash", of(lambda name, depth: name == "lengths-sabour" and depth == 20, **DEAD)),
        ("still", of(lambda name, depth: name == "bias" and depth == 12, still=0.5)),
        ("gradients", of(lambda name, depth: name == "lengths" and depth == 20, gradient=1e-15)),
        ("gradients", of(lambda name, depth: name == "published" and depth == 12, gradient=1e-3)),
        ("uniform", of(lambda name, depth: name == "uniform-lengths" and depth == 8, accuracy=0.5)),
        ("dynamic", of(routed, dys=1.0)),
        ("invariant", of(routed, kept=0.2)),
        ("matters", of(routed, lost=0.0)),
        ("tree", of(routed, kept=0.2)),
        ("tree", of(lambda name, depth: depth >= 8, lost=0.0)),
    ],
)
def test_a_question_is_denied_where_the_nets_say_so(name: str, change: Change) -> None:
    assert verdict(name, change) == "does not hold"


def test_a_bias_may_be_a_cure() -> None:
    alive = of(lambda name, depth: name == "bias", placed=0.99, dead=0.0, still=0.0)
    assert verdict("bias", alive) == "holds"
    assert verdict("still", alive) == "undecided"


def test_nets_that_are_reached_and_do_not_learn_are_named() -> None:
    stuck = of(lambda name, depth: name == "lengths-sabour" and depth == 20, **{**DEAD, "gradient": 1e9})
    finding = CLAIMS["gradients"].find(Evidence(all_results(stuck)))
    assert finding.verdict == "does not hold"
    assert finding.statistic.endswith("not length-preserving start, Sabour's squash (20 layers)")
    gone = of(lambda name, depth: name == "lengths-sabour" and depth == 20, **{**DEAD, "gradient": 0.0})
    assert verdict("gradients", gone) == "holds"
    # where every net is reached, nothing can be compared.
    assert verdict("gradients", depths=(3, 5)) == "undecided"


def test_depth_may_cost() -> None:
    def costs(name: str, depth: int) -> Mapping[str, Any]:
        return {"accuracy": 0.9 - depth / 100} if name in ("lengths", "residual", "em") else DEAD

    finding = CLAIMS["depth-helps"].find(Evidence(all_results(costs)))
    assert finding.verdict == "does not hold"
    assert "loses as much in 3" in finding.statistic


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("depth-helps", of(everything, accuracy=0.8)),
        ("dynamic", of(lambda name, depth: name == "em", dys=1.0)),
        ("invariant", of(lambda name, depth: name == "residual", kept=0.1)),
        ("tree", of(routed, **DEAD)),
        ("dynamic", of(routed, **DEAD)),
        ("uniform", of(lambda name, depth: name == "uniform-lengths", **DEAD)),
    ],
)
def test_what_nets_disagree_on_or_cannot_be_asked_is_undecided(name: str, change: Change) -> None:
    assert verdict(name, change) == "undecided"


@pytest.mark.parametrize("name", CLAIMS)
def test_what_has_not_run_or_was_not_measured_is_undecided(name: str) -> None:
    assert CLAIMS[name].find(Evidence([])).verdict == "undecided"
    bare = [replace(each, measured={}) for each in all_results()]
    assert CLAIMS[name].find(Evidence(bare)).verdict == "undecided"


def some(*rows: str, change: Change = nothing) -> list[Result]:
    """Return the results of these rows alone."""
    return [each for each in all_results(change) if each.recipe in rows]


BY_A_FEW = ("exists", "tree", "bias")
"""What one cure, or one net, shows or refutes."""


@pytest.mark.parametrize("name", [name for name in CLAIMS if name not in BY_A_FEW])
@pytest.mark.parametrize("count", [1, 14, 28, 42, 56, 69])
def test_too_few_nets_leave_it_open(name: str, count: int) -> None:
    claim, results = CLAIMS[name], {each.recipe: each for each in all_results()}
    # as they run, shallow ones first; one of its own is always missing.
    order = [cure(each, depth) for depth in CURE_DEPTHS for each in CURES]
    last = [row for row in order if row in claim.recipes][-1]
    ran = [row for row in order[:count] if row != last]
    finding = claim.find(Evidence([results[row] for row in ran]))
    assert finding.verdict == "undecided"


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        ("needed", [cure("published", 8)]),
        *((name, [cure("lengths", 8)]) for name in ("dynamic", "invariant", "matters", "gradients", "depth-helps", "exists")),
        ("gradients", [cure("lengths", 8), cure("published", 8)]),
        ("still", [cure("bias", 8)]),
        ("uniform", [cure("lengths", 8), cure("uniform-lengths", 8)]),
        ("depth-helps", [cure(name, depth) for name in CURES for depth in (3, 5)]),
        ("start", [cure("lengths", depth) for depth in (3, 5, 8, 12)]),
    ],
)
def test_single_nets_show_nothing_of_all(name: str, rows: list[str]) -> None:
    finding = CLAIMS[name].find(Evidence(some(*rows)))
    assert finding.verdict == "undecided"
    assert finding.statistic.endswith(f"; {len(rows)} of {len(CLAIMS[name].recipes)} nets have run")


@pytest.mark.parametrize("changes", [{"dys": 1.0}, {"kept": 0.1}, {"lost": 0.0}])
def test_one_net_without_a_tree_does_not_deny_that_there_is_one(changes: Mapping[str, Any]) -> None:
    one = Evidence([made("lengths", 8, **changes)])
    assert {CLAIMS[name].find(one).verdict for name in ("dynamic", "invariant", "matters", "tree")} == {"undecided"}
    rest = [each for each in all_results(of(routed, **changes)) if each.recipe != cure("em", 20)]
    assert CLAIMS["tree"].find(Evidence(rest)).verdict == "undecided"
    # "exists" is known by then, the tree is not.
    assert "Whether a parse tree appears is open." in PAPER.answer(Evidence(rest))


@pytest.mark.parametrize(
    ("name", "result", "says"),
    [
        ("needed", made("published", 8), "does not hold"),
        ("still", made("bias", 8, **{**DEAD, "still": 0.5}), "does not hold"),
        ("squash", made("lengths-sabour", 3, **DEAD), "does not hold"),
        ("tree", made("em", 8), "holds"),
    ],
)
def test_one_net_is_enough_where_it_is_a_counterexample_or_what_is_looked_for(name: str, result: Result, says: str) -> None:
    assert CLAIMS[name].find(Evidence([result])).verdict == says


def test_nets_of_fifty_layers_decide_nothing() -> None:
    other: Mapping[str, Any] = {"dys": 1.0, "kept": 0.1, "lost": 0.0, "accuracy": 0.2, "gradient": 1e-15}
    deepest = [made(name, DEEPEST, **other) for name in CURES if name not in WITHOUT_DEEPEST]
    for claim in CLAIMS.values():
        assert claim.find(Evidence([*all_results(), *deepest])) == claim.find(Evidence(all_results()))
        assert not {each.recipe for each in deepest} & set(claim.recipes)


def test_a_cure_that_is_known_to_fail_needs_no_deeper_nets() -> None:
    few = [each for each in all_results() if each.recipe != cure("lengths-sabour", 20)]
    assert CLAIMS["squash"].find(Evidence(few)).verdict == "undecided"
    early = of(lambda name, depth: name == "lengths-sabour" and depth == 5, **DEAD)
    few = [each for each in all_results(early) if each.recipe != cure("lengths-sabour", 20)]
    assert CLAIMS["squash"].find(Evidence(few)).verdict == "does not hold"


@pytest.mark.parametrize("name", ["needed", "exists", "start", "gradients", "still"])
def test_short_versions_show_what_they_have_time_for(name: str) -> None:
    short = {cure(name, depth) for name in QUICK_CURES for depth in QUICK_DEPTHS}
    kept = [each for each in all_results(depths=QUICK_DEPTHS, quick=True) if each.recipe in short]
    assert CLAIMS[name].find(Evidence(kept)).verdict == "holds"


def test_a_net_that_came_to_no_number_does_not_live() -> None:
    results = [each for each in all_results() if each.recipe != cure("lengths", 12)]
    lost = made("lengths", 12)
    broken = {"mitterreiter2023.cured": {**lost.measured["mitterreiter2023.cured"], "non_finite": 1.0}}
    failed = replace(lost, status="non-finite", measured=broken)
    finding = CLAIMS["start"].find(Evidence([*results, failed]))
    assert finding.verdict == "does not hold"
    assert "12 layers no number right, no number dead" in finding.statistic
    assert all(READINGS[name](failed) is None for name in ("affine", "dead_hidden", "dynamics", "final"))
    (plot,) = [each for each in PAPER.plots if each.key == "cures-dead-starts"]
    (line,) = [each for each in plot.lines(Evidence([*results, failed])) if each.label == "length-preserving start"]
    assert line.x == (3.0, 5.0, 8.0, 20.0)


# ---- the answer


def answered(change: Change = nothing, **options: Any) -> str:
    return PAPER.answer(Evidence(all_results(change, **options)))


def test_the_answer_says_what_the_nets_do() -> None:
    says = answered()
    assert "Nets of 3 to 20 capsule layers live with: length-preserving start; length-preserving start and bias;" in says
    assert "Nets live no deeper than with 5 layers with: as published; bias; trainable couplings; uniform." in says
    assert "nothing but its start has to be changed" in says
    assert "A bias alone makes capsules long and not alive" in says
    assert "Depth then helps: " in says
    assert "A parse tree appears" in says
    assert "uniform couplings are better than agreement" in says
    assert "with one run of each net" in says


def test_the_answer_changes_with_the_verdicts() -> None:
    assert "No cure keeps capsules alive at every depth." in answered(of(lambda name, depth: depth == 20, **DEAD))
    assert "Not even 3 layers live with: EM." in answered(of(lambda name, depth: name == "em", **DEAD))
    assert "That depth then helps is not seen: +0.0 points" in answered(of(everything, accuracy=0.8))
    says = answered(of(everything, kept=0.1, dys=1.0))
    assert "No parse tree appears: routing is almost static, images need their own couplings, " in says
    assert "capsules do not follow small changes of view." in says
    assert "Whether a parse tree appears is open." in answered(of(routed, **DEAD))
    names = list(CURES)

    def mixed(name: str, depth: int) -> Mapping[str, Any]:
        return {} if name == "lengths" else {"accuracy": 0.8 + (-1) ** names.index(name) * depth / 1000}

    assert "Most is gained with length-preserving start, 8.5 points" in answered(mixed)


def test_capsules_that_are_mostly_dead_are_not_called_long() -> None:
    assert "A bias alone makes capsules long" in answered()
    says = answered(of(lambda name, depth: name == "bias" and depth >= 8, **{**STILL, "dead": 0.9}))
    assert "A bias alone makes capsules long" not in says
    assert "A bias alone does not make capsules live: they are dead, or as long in every image." in says


@pytest.mark.parametrize(("sign", "says"), [(1, "mostly better, but"), (-1, "mostly worse, but")])
def test_a_number_that_contradicts_its_verdict_is_not_given(sign: int, says: str) -> None:
    def change(name: str, depth: int) -> Mapping[str, Any]:
        # one cure goes far the other way at its end.
        return {"accuracy": 0.5 - sign * 0.45 if (name, depth) == ("lengths", 20) else 0.5 + sign * depth / 1000}

    assert verdict("depth-helps", change) == ("holds" if sign > 0 else "does not hold")
    answer = answered(change)
    assert says in answer
    assert "Depth then" not in answer
    assert "points of accuracy" not in answer


def test_what_depth_does_is_open_until_all_have_run() -> None:
    rest = [each for each in all_results() if each.recipe != cure("em", 20)]
    assert "Whether depth then helps is open." in PAPER.answer(Evidence(rest))


def test_nothing_is_answered_of_short_versions_or_before_it_is_known() -> None:
    assert answered(depths=QUICK_DEPTHS, quick=True) == ""
    assert PAPER.answer(Evidence([])) == ""
    assert PAPER.answer(Evidence(all_results(depths=(3, 5)))) == ""


def test_the_deepest_nets_are_told_of_where_they_have_run() -> None:
    deepest = [made("lengths", DEEPEST), made("residual", DEEPEST, **DEAD)]
    says = PAPER.answer(Evidence([*all_results(), *deepest]))
    assert "Of 2 that were tried with 50 layers, these live: length-preserving start." in says


# ---- what is read of a net


def test_shares_beyond_chance_leave_out_what_has_no_room() -> None:
    layer = {"viewpoint": views(0.7)}
    assert beyond_chance(layer) == pytest.approx([0.7] * 3)
    layer["viewpoint"]["shear"] = {"amount": [20, 60], "correlation": [1.0, 1.0], "chance": [0.9999, 0.9999]}
    layer["viewpoint"]["rotation"] = {"amount": [20, 90], "correlation": [None, None], "chance": [None, None]}
    assert beyond_chance(layer) == pytest.approx([0.7])


def test_the_deepest_living_net_and_the_tree_that_is_drawn() -> None:
    evidence = Evidence(
        [
            made("lengths", 3, tree=True),
            made("lengths", 12, tree=True, accuracy=0.7),
            made("lengths", 20, dead=0.5, tree=True),
            made("residual", 12, tree=True, accuracy=0.9),
            made("uniform-lengths", 20, tree=True),
        ]
    )
    alive = deepest_alive(evidence, "lengths")
    assert alive is not None
    assert alive.depth == 12
    assert deepest_alive(evidence, "bias") is None
    shown = shown_tree(evidence)
    assert shown is not None
    assert (shown[0].name, shown[0].depth) == ("residual", 12)
    (living,) = PAPER.summaries
    rows = living.rows(evidence)
    assert [row[0] for row in rows] == [
        "length-preserving start",
        "length-preserving start and residuals (drawn)",
        "uniform, length-preserving start",
    ]
    assert all(len(row) == len(living.head) for row in rows)
    assert rows[2][5] == rows[2][7] == "none"
    assert list(living.rows(Evidence([]))) == []


PLOTS = [plot for plot in PAPER.plots if plot.key.startswith("cures")]


@pytest.mark.parametrize("plot", PLOTS, ids=lambda plot: plot.key)
def test_pictures_show_what_ran(plot: Any) -> None:
    assert list(plot.lines(Evidence([]))) == []
    lines = plot.lines(Evidence(all_results()))
    assert len(lines) > 5
    assert all(math.isfinite(value) for line in lines for value in line.y)


def test_gradients_that_vanish_leave_a_gap_and_are_counted() -> None:
    (plot,) = [each for each in PLOTS if each.key == "cures-gradients-start-starts"]
    some = made("lengths", 5)
    gradients = some.measured["mitterreiter2023.cured"]["start"]["gradients"]
    gradients[0] = gradients[2] = 0.0
    (line,) = plot.lines(Evidence([some]))
    assert line.label == "length-preserving start (0 in 2 of 4)"
    assert line.x == (2.0, 3.0, 4.0)
    assert math.isnan(line.y[1])


# ---- measures


def noise(count: int, seed: int) -> ImageData:
    images = torch.rand(count, 1, 40, 40, generator=torch.Generator().manual_seed(seed))
    return from_tensors(images, torch.arange(count) % 10, name="noise")


def trained(name: str, depth: int, steps: int = 3) -> tuple[Run, dict[str, ImageData | None]]:
    """Train a small net of a cure for a few steps on noise."""
    small = {"model.backbone": "small", "model.reconstruction": "none", "target_accuracy": None}
    plan = cure_plan(name, depth).changed({**small, "steps": steps, "batch_size": 16, "device": "cpu"})
    splits: dict[str, ImageData | None] = {"train": noise(64, 0), "validation": noise(32, 1), "test": None}
    return run_plan(plan, splits=splits, progress=False), {**splits, measures.AFFINE: noise(24, 2)}


@pytest.mark.parametrize("name", CURES)
def test_a_net_of_twelve_layers_learns_without_a_number_that_is_none(name: str) -> None:
    run, splits = trained(name, 12)
    assert run.record is not None
    assert run.record["status"] == "finished"
    assert all(parameter.isfinite().all() for parameter in run.model.parameters())
    found = measures.cured(run, splits, CPU)
    assert found["non_finite"] == 0
    assert found["images"] == 12
    assert [layer["capsules"] for layer in found["layers"]] == [16] * 11 + [10]
    for when in ("start", "end"):
        assert len(found[when]["lengths"]) == 12
        assert len(found[when]["gradients"]) == 11
        assert all(map(math.isfinite, found[when]["lengths"] + found[when]["gradients"]))
    # noise is not learned in three steps, and nothing is drawn of what was not.
    assert found["tree"] is None
    assert len(json.dumps(found)) < 16_000
    net = nets_of(Evidence([result(cure(name, 12), measured={"mitterreiter2023.cured": json.loads(json.dumps(found))})]), name)[
        12
    ]
    assert 0 <= net.dead <= 1
    assert net.still is not None


def test_the_start_is_measured_as_the_first_step_finds_it() -> None:
    run, splits = trained("lengths", 5)
    found = measures.cured(run, splits, CPU)["start"]
    # kept by the start on one batch, in training mode: elsewhere nearly so.
    assert found["lengths"][1:] == pytest.approx([0.5] * 4, abs=0.05)


def test_batch_normalisation_takes_the_statistics_of_what_it_is_shown() -> None:
    model = cure_plan("published", 3).changed({"model.backbone": "small", "model.reconstruction": "none"}).build(noise(16, 0))
    images = noise(16, 3).batch(torch.arange(16)).images
    with torch.no_grad():
        wanted = model.train()(images).scores
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    assert settled(model.eval(), images) is model
    assert not model.training
    assert [norm.momentum for norm in norms] == [0.1] * len(norms)
    with evaluating(model):
        # variances of a batch are divided by one less where they are kept.
        torch.testing.assert_close(model(images).scores, wanted, rtol=0.02, atol=1e-4)


def test_lengths_and_gradients_are_those_of_the_layers() -> None:
    model = (
        cure_plan("uniform-lengths", 3)
        .changed({"model.backbone": "small", "model.reconstruction": "none"})
        .build(noise(128, 0))
    )
    batch = noise(16, 3).batch(torch.arange(16))
    found = look_inside(model, batch.images, batch.labels)
    with evaluating(model):
        assert found["lengths"] == pytest.approx([float(length(layer).mean()) for layer in model.capsules(batch.images)])
    assert len(found["gradients"]) == 2
    assert all(gradient > 0 for gradient in found["gradients"])


def test_a_living_net_of_twelve_layers_keeps_a_tree_that_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("capsella.papers.mitterreiter2023.curing.LEARNS", 0.0)
    run, splits = trained("lengths", 12, steps=1)
    found = json.loads(json.dumps(measures.cured(run, splits, CPU)))
    assert len(json.dumps(found)) < 60_000
    key = cure("lengths", 12)
    shown = result(key, validation=(0.99,), measured={"mitterreiter2023.cured": found}, plan=PAPER.recipe(key).plan.as_dict())
    drawn = paper_report(PAPER, [shown])
    assert drawn["plots/living-tree.svg"].count("<image") == 2
    assert "length-preserving start (drawn)" in drawn["README.md"]
