"""mitterreiter2023's sweep: its order, its nets, and the claims that it decides at its half and at its end."""

from __future__ import annotations

import itertools
import math
import random
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from capsella.data import from_tensors
from capsella.papers.mitterreiter2023 import measures
from capsella.papers.mitterreiter2023.nets import placed_plan
from capsella.papers.mitterreiter2023.ranks import EARLY, is_share, sign_test, trend
from capsella.papers.mitterreiter2023.sweep import SWEEP, SWEEP_DEPTHS, SWEEP_DIMS, SWEEP_WIDTHS, Cell, balanced_order, is_quick
from capsella.papers.mitterreiter2023.sweep_claims import figure_of
from capsella.papers.paper import get_paper, jobs_of, select
from capsella.papers.readings import READINGS
from capsella.papers.results import Result
from capsella.papers.verdicts import Evidence
from capsella.train.plan import run_plan

sys.path.insert(0, str(Path(__file__).resolve().parent))
from paper_harness import result

PAPER = get_paper("mitterreiter2023")
CLAIMS = {
    name.removeprefix("sweep-"): claim
    for claim in PAPER.claims
    if (name := claim.key.removeprefix("mitterreiter2023/")).startswith("sweep-")
}
PAIRS = SWEEP[::2]


# ---- order


def spread(cells: tuple[Cell, ...], levels: list[Any], level: Callable[[Cell], Any]) -> int:
    """Return by how much the numbers of nets of each level differ."""
    counts = Counter(map(level, cells))
    return max(counts[each] for each in levels) - min(counts[each] for each in levels)


FACTORS: dict[str, tuple[list[Any], Callable[[Cell], Any]]] = {
    "depth": (list(SWEEP_DEPTHS), lambda cell: cell.depth),
    "width": (list(SWEEP_WIDTHS), lambda cell: cell.width),
    "dimension": (list(SWEEP_DIMS), lambda cell: cell.dim),
    "width and dimension": (list(itertools.product(SWEEP_WIDTHS, SWEEP_DIMS)), lambda cell: (cell.width, cell.dim)),
    "depth and width": (list(itertools.product(SWEEP_DEPTHS, SWEEP_WIDTHS)), lambda cell: (cell.depth, cell.width)),
}


@pytest.mark.parametrize("name", FACTORS)
def test_any_first_pairs_are_balanced(name: str) -> None:
    levels, level = FACTORS[name]
    for count in range(1, len(PAIRS) + 1):
        assert spread(PAIRS[:count], levels, level) <= 1, count
        # a run more or less, of a pair that is half done.
        assert spread(SWEEP[: 2 * count - 1], levels, level) <= 2, count
    assert spread(PAIRS, levels, level) == 0


def test_any_first_runs_are_as_many_of_agreement_as_of_uniform_couplings() -> None:
    for count in range(1, len(SWEEP) + 1):
        assert spread(SWEEP[:count], ["agreement", "uniform"], lambda cell: cell.routing) <= 1


def test_every_net_is_there_once_beside_its_like() -> None:
    assert balanced_order() == SWEEP
    assert len(set(SWEEP)) == len(SWEEP) == 2 * 7 * 3 * 3
    for one, other in zip(SWEEP[::2], SWEEP[1::2], strict=True):
        assert replace(one, routing="uniform") == other


def test_the_runner_keeps_the_order() -> None:
    jobs = jobs_of(select("mitterreiter2023/sweep").recipes)
    assert [job.recipe.key for job in jobs] == [cell.key for cell in SWEEP]
    # the paper's own tables come first, nets that are asked for by row last.
    tables = list(dict.fromkeys(recipe.key.split("/")[1] for recipe in PAPER.recipes))
    assert tables[-3:] == ["cures", "sweep", "cures50"]


def test_the_nets_are_those_of_the_specification() -> None:
    plan = Cell("uniform", 4, 32, 16).plan
    assert plan.model_options == {"routing": "uniform", "capsules": (32, 32, 32, 10), "dim": 16}
    assert (plan.train.batch_size, plan.train.epochs, plan.train.target_accuracy, plan.train.watch) == (512, 60, 0.992, 0)
    # everything else is as in the paper's net, its decoder too.
    assert Cell("agreement", 5, 16, 8).plan == placed_plan("agreement", 5).changed({"batch_size": 512, "watch": 0})


# ---- statistics


def test_a_trend_has_the_variance_that_chance_gives() -> None:
    draw = random.Random(0)
    groups = [[0.1, 0.2, 0.2, 0.5], [1.0, 2.0, 3.0], [0.0, 0.0]]
    scores = []
    for _ in range(20_000):
        score = 0
        for group in groups:
            values = draw.sample(group, len(group))
            score += sum((b > a) - (b < a) for a, b in itertools.combinations(values, 2))
        scores.append(score)
    rising = trend([list(enumerate(group)) for group in groups])
    most = sum((b > a) for group in groups for a, b in itertools.combinations(group, 2))
    # the normal curve beside drawn ones.
    assert rising.p == pytest.approx(sum(abs(score) >= most for score in scores) / len(scores), abs=0.02)
    assert rising.tau == pytest.approx(most / (6 + 3 + 1))
    assert rising.nets == 9


def test_trends_of_few_nets_or_of_equal_figures_may_be_chance() -> None:
    assert trend([]).rises is None
    assert trend([[(3, 0.5), (5, 0.5), (8, 0.5)]] * 9).rises is None
    assert trend([[(3, 0.1), (5, 0.2)]]).rises is None
    assert trend([[(5, 0.2), (3, 0.3), (8, 0.1)]] * 4).rises is False


def test_pairs_are_compared_as_coins_are() -> None:
    found = sign_test([(1, 0)] * 7 + [(0, 1)] + [(1, 1)])
    assert (found.more, found.less) == (7, 1)
    assert found.p == pytest.approx(2 * (1 + 8) / 2**8)
    assert found.gain == pytest.approx(6 / 9)
    assert found.is_more is None
    assert sign_test([(0, 1)] * 9).is_more is False
    assert sign_test([(1, 1)]).p == 1
    with pytest.raises(ValueError, match="pairs is empty"):
        sign_test([])


# ---- claims


def layers(cell: Cell, dead: float, dys: float, last: float) -> list[dict[str, Any]]:
    usual = {"capsules": 100, "cds": 0, "cdr": 0.0, "dyr": 0.2, "dys": dys}
    hidden = [{**usual, "cds": round(100 * dead), "cdr": dead} for _ in range(cell.depth - 2)]
    found = [dict(usual), *hidden]
    found[-1]["dyr"] = last
    if cell.routing == "uniform":
        found = [{**each, "dyr": 0.0, "dys": 0.0} for each in found]
    return [*found, {**usual, "dyr": None, "dys": None}]


def swept(
    *,
    dead: Callable[[Cell], float] = lambda cell: cell.depth / 10,
    accuracy: Callable[[Cell], float] = lambda cell: 0.8 - cell.depth / 100 + 0.05 * (cell.routing == "uniform"),
    placed: Callable[[Cell], float] = lambda cell: 0.99,
    dys: float = 1.5,
    last: float = 0.4,
    count: int = len(SWEEP),
) -> list[Result]:
    """Return results of the first so many nets, as the paper would have them."""
    found = []
    for cell in SWEEP[:count]:
        share = 0.0 if cell.routing == "uniform" else dead(cell)
        look = {"images": 10_000, "accuracy": accuracy(cell), "layers": layers(cell, share, dys, last)}
        found.append(result(cell.key, validation=(placed(cell),), measured={"mitterreiter2023.look": look}))
    return found


def verdict(name: str, results: list[Result]) -> str:
    return CLAIMS[name].find(Evidence(results)).verdict


@pytest.mark.parametrize("name", CLAIMS)
def test_a_claim_holds_where_everything_is_as_it_says(name: str) -> None:
    assert verdict(name, swept()) == "holds"
    # half of the sweep will do, but not for so high a share, which so few that learn do not show.
    assert verdict(name, swept(count=63)) == ("undecided" if name == "static" else "holds")


@pytest.mark.parametrize("name", CLAIMS)
def test_too_few_nets_leave_it_open(name: str) -> None:
    assert verdict(name, swept(count=4)) == "undecided"
    assert verdict(name, swept(count=60)) == "undecided"
    assert verdict(name, []) == "undecided"


def one_way(cell: Cell) -> float:
    """Return accuracies of which neither routing has more in the first half, and uniform couplings always have afterwards."""
    place = SWEEP.index(cell) // 2
    return 0.8 + 0.1 * (cell.routing == ("agreement" if place < HALF and place % 2 else "uniform"))


HALF = 31


@pytest.mark.parametrize("name", ["uniform", "uniform-learned"])
def test_a_claim_is_tested_at_the_half_and_at_the_end_alone(name: str) -> None:
    findings = {count: CLAIMS[name].find(Evidence(swept(accuracy=one_way, count=count))) for count in range(62, 127)}
    assert {each.verdict for count, each in findings.items() if count < 126} == {"undecided"}
    assert findings[126].verdict == "holds"
    # what has run since the half is not looked at.
    assert "more in 16 of 31 pairs" in findings[120].statistic
    assert findings[120].statistic.endswith(
        "; of the first 62 nets; tested at the half and at the end; 120 of 126 nets have run"
    )
    assert "tested" not in findings[126].statistic


def test_the_half_asks_for_more_than_the_end() -> None:
    def accuracy(cell: Cell) -> float:
        return 0.8 + 0.1 * (cell.routing == ("uniform" if SWEEP.index(cell) // 2 % 7 < 5 else "agreement"))

    finding = CLAIMS["uniform"].find(Evidence(swept(accuracy=accuracy, count=62)))
    assert "more in 23 of 31 pairs, sign test p 0.011" in finding.statistic
    assert finding.verdict == "undecided"
    assert verdict("uniform", swept(accuracy=accuracy)) == "holds"


def test_two_looks_find_hardly_more_by_chance_than_one() -> None:
    draw = random.Random(0)
    found = 0
    for _ in range(4000):
        pairs = [(float(draw.random() < 0.5), 0.5) for _ in range(63)]
        found += sign_test(pairs[:HALF], EARLY).is_more is not None or sign_test(pairs).is_more is not None
    assert found / 4000 < 0.06


def test_a_share_is_decided_where_a_bound_excludes_the_opposite() -> None:
    # seven of ten and more are too few to show nine tenths, and too many to deny them.
    assert [is_share(count, 10, 0.9) for count in range(11)] == [False] * 7 + [None] * 4
    assert is_share(0, 0, 0.9) is None
    wide = [is_share(count, 200, 0.9) for count in range(201)]
    assert wide.index(None) < 180 < wide.index(True) < 190
    assert is_share(29, 29, 0.9, sure=0.0) is None


def test_a_share_of_few_nets_is_open_at_the_end_and_denied_at_the_half() -> None:
    # nets of one size alone learn.
    few = swept(placed=lambda cell: 0.99 if cell.dim == 8 and cell.width == 8 else 0.1)
    assert verdict("static", few) == "undecided"
    assert verdict("static", swept(dys=3.0, count=63)) == "does not hold"


def test_short_versions_are_all_there_are_of_their_sweep() -> None:
    short = [replace(each, quick=True) for each, cell in zip(swept(), SWEEP, strict=True) if is_quick(cell)]
    finding = CLAIMS["deader"].find(Evidence(short))
    assert finding.verdict == "holds"
    assert "tested" not in finding.statistic


def diverged(cell: Cell) -> Result:
    """Return a result of a net that ended with no number."""
    return result(cell.key, validation=(None,), status="non-finite", measured={"mitterreiter2023.look": {"non_finite": 3}})


def test_nets_that_come_to_no_number_are_right_on_no_image() -> None:
    def broken(cell: Cell) -> bool:
        return cell.depth >= 6 and cell.routing == "agreement"

    # deeper nets are better, those aside that came to no number.
    usual = swept(accuracy=lambda cell: 0.5 + cell.depth / 100 + 0.05 * (cell.routing == "uniform"))
    results = [diverged(cell) if broken(cell) else each for cell, each in zip(SWEEP, usual, strict=True)]
    finding = CLAIMS["limited"].find(Evidence(results))
    assert "; came to no number, and counted as right on no image: 27" in finding.statistic
    assert "over 63 nets" in finding.statistic
    assert finding.verdict == "holds"
    finding = CLAIMS["deader"].find(Evidence(results))
    # those of two layers have no hidden capsules.
    assert "over 27 nets" in finding.statistic
    assert finding.statistic.endswith("; came to no number, and left out: 27")
    finding = CLAIMS["uniform"].find(Evidence(results))
    assert "more in 63 of 63 pairs" in finding.statistic
    assert finding.statistic.endswith("; came to no number, and counted as right on no image: 27")
    assert "more in 36 of 36 pairs" in CLAIMS["uniform-learned"].find(Evidence(results)).statistic


@pytest.mark.parametrize("name", ["static", "last-most"])
def test_one_net_of_which_nothing_is_known_does_not_leave_all_open(name: str) -> None:
    results = swept()
    # it learned the placed digits, and answers affine ones with no number.
    odd = {**results[0].measured["mitterreiter2023.look"], "non_finite": 1}
    results[0] = replace(results[0], measured={"mitterreiter2023.look": odd})
    assert SWEEP[0].routing == "agreement"
    finding = CLAIMS[name].find(Evidence(results))
    assert finding.verdict == "holds"
    assert finding.statistic.endswith("; without a figure: 1")


def test_figures_are_means_over_all_runs() -> None:
    cell = SWEEP[0]
    looks = [{"accuracy": accuracy, "layers": layers(cell, 0.0, dys, 0.4)} for accuracy, dys in ((0.5, 1.0), (0.7, 4.0))]
    runs = [
        result(cell.key, seed, validation=(0.99,), measured={"mitterreiter2023.look": look}) for seed, look in enumerate(looks)
    ]
    assert figure_of(Evidence(runs), cell, "affine") == pytest.approx(0.6)
    assert figure_of(Evidence([*runs, replace(diverged(cell), seed=2)]), cell, "affine") == pytest.approx(0.4)
    assert figure_of(Evidence([diverged(cell)]), cell, "dead_hidden") is None
    # a second run with livelier routing counts as much as the first.
    livelier = [
        replace(each, seed=1, measured=again.measured) for each, again in zip(swept(dys=1.5), swept(dys=4.0), strict=True)
    ]
    assert verdict("static", [*swept(dys=1.5), *livelier]) == "does not hold"


@pytest.mark.parametrize(
    ("name", "results"),
    [
        ("deader", swept(dead=lambda cell: 1 - cell.depth / 10)),
        ("limited", swept(accuracy=lambda cell: cell.depth / 10)),
        ("static", swept(dys=3.0)),
        ("last-most", swept(last=0.1)),
        ("uniform", swept(accuracy=lambda cell: 0.8 + 0.1 * (cell.routing == "agreement"))),
        ("uniform-learned", swept(accuracy=lambda cell: 0.8 + 0.1 * (cell.routing == "agreement"))),
    ],
)
def test_a_claim_fails_where_it_is_the_other_way(name: str, results: list[Result]) -> None:
    assert verdict(name, results) == "does not hold"


@pytest.mark.parametrize(
    ("name", "results"),
    [
        ("deader", swept(dead=lambda cell: 0.5)),
        ("limited", swept(accuracy=lambda cell: 0.8)),
        ("uniform", swept(accuracy=lambda cell: 0.8 + 0.1 * ((cell.routing == "uniform") == (cell.depth % 2 == 0)))),
        ("static", swept(placed=lambda cell: 0.1)),
        ("last-most", swept(placed=lambda cell: 0.1)),
        ("uniform-learned", swept(placed=lambda cell: 0.99 if cell.routing == "agreement" else 0.1)),
    ],
)
def test_what_may_be_chance_or_cannot_be_asked_is_undecided(name: str, results: list[Result]) -> None:
    assert verdict(name, results) == "undecided"


def test_pairs_of_which_one_does_not_learn_count_for_the_paper_alone() -> None:
    def stuck(cell: Cell) -> bool:
        return cell.routing == "uniform" and cell.depth > 3

    results = swept(
        accuracy=lambda cell: 0.1 if stuck(cell) else 0.8 + 0.1 * (cell.routing == "uniform"),
        placed=lambda cell: 0.1 if stuck(cell) else 0.99,
    )
    assert verdict("uniform", results) == "does not hold"
    assert verdict("uniform-learned", results) == "holds"


def test_trends_are_told_with_the_figures_at_both_ends() -> None:
    finding = CLAIMS["deader"].find(Evidence(swept()))
    assert "54 nets" in finding.statistic
    assert "30.0% with 3 layers, 80.0% with 8 layers" in finding.statistic
    assert finding.seeds == 1


@pytest.mark.parametrize("plot", [each for each in PAPER.plots if each.key.startswith("sweep")], ids=lambda plot: plot.key)
def test_pictures_show_what_ran(plot: Any) -> None:
    assert list(plot.lines(Evidence([]))) == []
    lines = plot.lines(Evidence(swept()))
    # uniform couplings have no dynamics.
    assert [line.label for line in lines] == ["Agreement", "Uniform"][: 1 if "dynamics" in plot.key else 2]
    whole, half = lines[0], plot.lines(Evidence(swept(count=64)))[0]
    assert whole.x == half.x
    assert all(math.isfinite(value) for value in whole.y)


# ---- measure


def test_a_look_is_one_pass_and_has_what_the_tables_read() -> None:
    images = torch.rand(64, 1, 40, 40, generator=torch.Generator().manual_seed(0))
    data = from_tensors(images, torch.arange(64) % 10, name="affnist_mitterreiter")
    plan = Cell("agreement", 3, 8, 4).plan.changed({"model.backbone": "small", "steps": 4, "batch_size": 8, "device": "cpu"})
    run = run_plan(plan, splits={"train": data, "validation": data, "test": None}, progress=False)
    found = measures.look(run, {measures.AFFINE: data, "validation": None}, torch.device("cpu"))
    # eight for each of four steps.
    assert (found["images"], found["data"]["name"]) == (16, "affnist_mitterreiter")
    made = result(SWEEP[0].key, measured={"mitterreiter2023.look": found})
    for name in ("affine", "dead_hidden", "dynamics", "dyr1"):
        assert READINGS[name](made) is not None, name
    # as the whole diagnosis has it.
    whole = measures.dynamics(run, {measures.AFFINE: data, "validation": None}, torch.device("cpu"))
    for one, other in zip(found["layers"], whole["layers"], strict=True):
        assert one == {key: other[key] for key in one}
