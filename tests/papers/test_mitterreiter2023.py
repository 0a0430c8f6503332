"""mitterreiter2023's settings, its claims on made evidence, and its measures on nets of which the answer is known."""

from __future__ import annotations

import copy
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from capsella.data import ImageData, from_tensors
from capsella.models import create_model
from capsella.papers import measuring
from capsella.papers.measuring import measure_by_name, needing
from capsella.papers.mitterreiter2023 import growth, measures
from capsella.papers.mitterreiter2023.facts import reads
from capsella.papers.mitterreiter2023.nets import DEPTHS, GROWTH, net, photographs, variant
from capsella.papers.paper import Trees, get_paper, select
from capsella.papers.readings import READINGS
from capsella.papers.results import Result
from capsella.papers.verdicts import Evidence
from capsella.report.papers import paper_report
from capsella.train.plan import Plan, run_plan
from capsella.train.run import Run

sys.path.insert(0, str(Path(__file__).resolve().parent))
from paper_harness import result

PAPER = get_paper("mitterreiter2023")
BEYOND = ("sweep", "cure")
"""What the sweep and the cures are called by; they have tests of their own."""
CPU = torch.device("cpu")
NET = net()


# ---- settings


def size(row: str) -> int:
    """Return the parameters of a row's net on its images."""
    plan = select(f"mitterreiter2023/{row}").recipes[0].plan
    side, channels = (40, 1) if plan.data == "mnist40" else (32, 3)
    with torch.device("meta"):
        model = create_model(plan.model, image_size=side, num_classes=10, in_channels=channels, **plan.model_options)
    return sum(parameter.numel() for parameter in model.parameters())


def test_the_nets_have_the_sizes_that_the_specification_works_out() -> None:
    assert size("table1/agreement") == 2_537_504
    assert size("depth/agreement-depth3") == 2_504_224
    # uniform couplings start from no prior: 3 × 16 × 16 + 16 × 10 numbers fewer.
    assert size("depth/uniform-depth5") == 2_537_504 - 928


def test_the_settings_are_those_of_the_notebook() -> None:
    plans = {recipe.key.removeprefix("mitterreiter2023/"): recipe.plan for recipe in PAPER.recipes}
    for row, plan in plans.items():
        train = plan.train
        lr = 3e-3 if "residual-fast" in row else 1e-3
        assert (train.optimiser, train.lr, train.schedule, train.weight_decay) == ("adam", lr, "constant", 1e-5), row
        by = "sum" if "reconstruction-sum" in row else "mean"
        assert (train.reconstruction, train.reconstruction_reduction) == (0.005, by), row
        assert (train.margins, train.down_weight, train.loss) == ((0.9, 0.1), 0.5, "auto"), row
        assert (plan.split, plan.validate, plan.test) == ("train", "test", False)
        assert (train.watch > 0) == (row != "table3/growth" and not row.startswith(BEYOND)), row
    five = plans["table1/agreement"]
    assert five.model_options["capsules"] == (16, 16, 16, 16, 10)
    assert (five.model_options["dim"], five.data_options) == (8, {})
    assert (five.train.target_accuracy, five.train.batch_size, five.train.epochs) == (0.992, 128, 60)
    photos = plans["cifar10/uniform"]
    assert photos.model_options["capsules"] == (32, 32, 32, 10)
    assert photos.model_options["dim"] == (8, 16, 16, 16)
    assert (photos.train.target_accuracy, photos.train.batch_size, photos.train.epochs) == (None, 512, 51)
    assert {recipe.job(0, settings={"device": "cuda"}).plan.train.precision for recipe in PAPER.recipes} == {"tf32"}
    assert len(PAPER.recipe(NET).seeds) == 10


def test_nets_of_one_depth_differ_in_their_routing_alone() -> None:
    for depth in DEPTHS:
        # how often one looks at them changes nothing.
        one, other = (PAPER.recipe(net(routing, depth)).plan.changed({"watch": 0}) for routing in ("agreement", "uniform"))
        assert one.changed({"model.routing": "uniform"}) == other


def test_every_printed_number_is_read_worked_out_or_has_a_reason() -> None:
    read = {target for recipe in PAPER.recipes for target in recipe.reads}
    for key, target in PAPER.targets.items():
        assert key in read or key in PAPER.facts or key in PAPER.remarks, key
        assert (target.role == "result") == (key in read), key
    assert reads()["table1/layer3-dys"] == "dys3"
    assert reads()["table1/output-alive"] == "alive5"


# ---- claims


def views(first: float = 0.99, last: float = 0.7, chance: float = 0.6) -> dict[str, Any]:
    amounts = {"rotation": (5, 90, 180), "translation": (1, 4, 8), "shear": (5, 30, 60), "scale": (0.75, 1.5)}
    return {
        view: {"amount": list(each), "correlation": [first, *[last] * (len(each) - 1)], "chance": [chance] * len(each)}
        for view, each in amounts.items()
    }


def layer(capsules: int = 16, cds: int = 0, **changes: Any) -> dict[str, Any]:
    usual: dict[str, Any] = {"car": 0.5, "dys_literal": None}
    usual |= {"capsules": capsules, "cds": cds, "cdr": cds / capsules, "dead": [True] * cds + [False] * (capsules - cds)}
    gradients = [1e-5] * cds + [0.1] * (capsules - cds)
    reached = dict.fromkeys(("gradients", "weight_gradients", "outgoing_gradients"), gradients)
    return {**usual, "dyr": None, "dys": None, "viewpoint": views(), **reached, **changes}


PRINTED_LAYERS = [
    layer(cnm=0.95, cns=15.25, car=1.0, cas=16.0, dyr=0.30, dys=4.5, viewpoint=views(0.99, 0.9, 0.89), weight_gradients=None),
    layer(cds=1, cnm=0.32, cns=5.12, car=0.7, cas=11.17, dyr=0.25, dys=1.72),
    layer(cds=9, cnm=0.18, cns=2.83, car=0.35, cas=5.57, dyr=0.30, dys=1.79),
    layer(cds=10, cnm=0.12, cns=1.9, car=0.22, cas=3.51, dyr=0.38, dys=3.78),
    layer(10, cnm=0.15, cns=1.48, car=0.3, cas=3.05),
]
STATIC = [{**each, "dyr": each["dyr"] and each["dyr"] / 3} for each in PRINTED_LAYERS]
LIVES = [
    {
        **{
            "capsules": 16,
            "first_dead": 0,
            "last_dead": 5,
            "deaths": 5,
            "between": [1, 9],
            "revivals": 0,
            "reactivated": 0,
            "dead": [0, 0.3],
        },
        **{"gradient": [0.1, 0.05], "weight_gradient": [0.1, None]},
    }
    for _ in PRINTED_LAYERS
]
SAME = {"own": 0.8, "uniform": 0.8, "other": 0.799, "images": 512}


def measured(layers: list[dict[str, Any]] = PRINTED_LAYERS, **changes: Any) -> dict[str, Any]:
    dynamics = {"images": 10_000, "accuracy": 0.8, "routing_matters": SAME, "layers": layers, **changes}
    return {
        "mitterreiter2023.dynamics": dynamics,
        "mitterreiter2023.lives": {"looks": 2, "steps": [1, 9], "layers": LIVES},
    }


def dying(share: float) -> list[dict[str, Any]]:
    return [PRINTED_LAYERS[0], layer(100, round(100 * share)), PRINTED_LAYERS[4]]


def grown(size: float = 2.0, times: float = 10.0) -> dict[str, Any]:
    exponents = {"rba_parameters": size, "mhsa_parameters": 0.0, "rba_seconds": 1.9, "mhsa_seconds": 1.0}
    figures = {f"{who}_{what}": [1.0, 1.0] for who in ("rba", "mhsa") for what in ("parameters", "seconds", "memory")}
    at = {"sizes": [32, 64], **figures, "rba_seconds": [1.0, times], "exponents": exponents}
    return {"mitterreiter2023.growth": {"n": at, "d": {**at, "exponents": {**exponents, "mhsa_parameters": 2.0}}}}


def as_printed(key: str) -> Result:
    """Return a result as the paper would have it."""
    plan = PAPER.recipe(key).plan.as_dict()
    if key == GROWTH:
        return result(key, measured=grown(), plan=plan)
    if key.startswith("mitterreiter2023/cifar10"):
        accuracy = 0.75 if "uniform" in key else 0.7
        return result(key, validation=(accuracy,), measured=measured(STATIC, accuracy=accuracy), plan=plan)
    if "uniform" in key:
        return result(key, validation=(0.992,), measured=measured(dying(0.0), accuracy=0.9), plan=plan)
    depth = {"depth3": 0.1, "depth8": 0.8}.get(key.split("-")[-1])
    layers = PRINTED_LAYERS if depth is None else dying(depth)
    return result(key, validation=(0.992,), measured=measured(layers), plan=plan)


PRINTED = {each.key: as_printed(each.key) for each in PAPER.recipes if not each.key.split("/")[1].startswith(BEYOND)}
CLAIMS = {name: claim for claim in PAPER.claims if not (name := claim.key.removeprefix("mitterreiter2023/")).startswith(BEYOND)}
PLOTS = [plot for plot in PAPER.plots if not plot.key.startswith((*BEYOND, "living"))]


def found(name: str, changed: dict[str, dict[str, Any]] | None = None, *, quick: bool = False) -> str:
    """Return the verdict on a claim where some rows measured something else."""
    other = {key: replace(PRINTED[key], measured=each) for key, each in (changed or {}).items()}
    results = {**PRINTED, **other}.values()
    return CLAIMS[name].find(Evidence([replace(each, quick=quick) for each in results])).verdict


def with_layer(number: int, **changes: Any) -> dict[str, dict[str, Any]]:
    layers = copy.deepcopy(PRINTED_LAYERS)
    layers[number - 1] |= changes
    return {NET: measured(layers)}


def lived(**changes: Any) -> dict[str, dict[str, Any]]:
    return {NET: {**measured(), "mitterreiter2023.lives": {"steps": [1, 9], "layers": [{**each, **changes} for each in LIVES]}}}


@pytest.mark.parametrize("name", [name for name in CLAIMS if name != "deader-nets"])
def test_a_claim_holds_where_everything_is_as_it_says(name: str) -> None:
    assert found(name) == "holds"


def test_deeper_nets_are_deader_where_the_share_rises_from_depth_to_depth() -> None:
    def verdict(*shares: float) -> str:
        return found("deader-nets", {net("agreement", d): measured(dying(s)) for d, s in zip(DEPTHS, shares, strict=True)})

    assert verdict(0.1, 0.4, 0.8) == "holds"
    assert verdict(0.8, 0.4, 0.1) == "does not hold"
    assert verdict(0.1, 0.9, 0.8) == "does not hold"
    assert verdict(0.4, 0.41, 0.42) == "undecided"


LIVELY = {net("uniform", 8): measured(accuracy=0.7)}


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("never-back", lived(revivals=1, reactivated=1)),
        ("starves", with_layer(3, weight_gradients=[0.1] * 16)),
        ("starves", with_layer(3, gradients=[0.1] * 16)),
        ("starves", with_layer(3, outgoing_gradients=[0.1] * 16)),
        ("always-active", with_layer(1, car=0.98)),
        ("primary-views", with_layer(1, viewpoint=views(1.0, 0.999))),
        ("views", with_layer(3, viewpoint=views(0.7, 0.9))),
        ("fewer-active", with_layer(4, cas=6.0)),
        ("deader", with_layer(4, cdr=0.5)),
        ("classes-live", with_layer(5, cds=1)),
        ("classes-live", {net("agreement", 8): measured([layer(), layer(), layer(10, 10)])}),
        ("too-few", with_layer(4, cds=6)),
        ("static", with_layer(3, dys=2.2)),
        ("last-most", with_layer(4, dyr=0.29)),
        ("photographs-worse", {photographs(): measured([{**each, "dyr": 0.6} for each in PRINTED_LAYERS])}),
        ("uniform-better", LIVELY),
        ("uniform-learned", LIVELY),
        ("costs", {GROWTH: grown(times=0.5)}),
        ("costs", {GROWTH: grown(size=1.0)}),
        ("matters", {NET: measured(routing_matters={**SAME, "other": 0.4})}),
        ("beyond-chance", with_layer(1, viewpoint=views(1.0, 0.99, 0.9))),
    ],
)
def test_one_counterexample_is_enough(name: str, changed: dict[str, dict[str, Any]]) -> None:
    assert found(name, changed) == "does not hold"


def test_uniform_couplings_may_do_worse_on_photographs() -> None:
    key = photographs("uniform")
    evidence = Evidence([*(each for row, each in PRINTED.items() if row != key), result(key, validation=(0.6,))])
    assert CLAIMS["uniform-photographs"].find(evidence).verdict == "does not hold"


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("never-back", lived(deaths=0, first_dead=0)),
        # one that flickers about the threshold of the dead is not active again, and one that begins dead has not died.
        ("starves", {NET: measured([layer(cds=8, weight_gradients=[0.0] * 16)] * 5)}),
        # where chance comes to as much, the formula cannot tell.
        ("primary-views", with_layer(1, viewpoint=views(1.0, 0.999, 0.9985))),
        ("starves", {NET: measured([layer(weight_gradients=[0.1] * 16)] * 5)}),
        ("photographs-worse", {photographs(): measured()}),
        ("uniform-better", {net("uniform", depth): measured(accuracy=0.805) for depth in DEPTHS}),
    ],
)
def test_what_may_be_luck_or_cannot_be_asked_is_undecided(name: str, changed: dict[str, dict[str, Any]]) -> None:
    assert found(name, changed) == "undecided"


def test_depths_at_which_a_routing_does_not_learn_are_left_out_of_the_question_of_ours() -> None:
    stuck = replace(result(net("uniform", 8), validation=(0.1,), measured=measured(accuracy=0.1)))
    rest = [each for key, each in PRINTED.items() if key != stuck.recipe]
    finding = CLAIMS["uniform-learned"].find(Evidence([*rest, stuck]))
    assert finding.verdict == "holds"
    assert "8 layers" not in finding.statistic
    assert CLAIMS["uniform-better"].find(Evidence([*rest, stuck])).verdict == "does not hold"
    nobody = [replace(each, history={**each.history, "validation": [0.1]}) for each in PRINTED.values()]
    assert CLAIMS["uniform-learned"].find(Evidence(nobody)).verdict == "undecided"


@pytest.mark.parametrize("name", ["never-back", "starves", "deader", "too-few", "last-most"])
def test_short_versions_do_not_decide_what_takes_long(name: str) -> None:
    assert found(name, quick=True) == "undecided"


def test_layers_of_which_nothing_is_known_are_left_out() -> None:
    nothing = {view: {**rows, "correlation": [None] * len(rows["amount"])} for view, rows in views().items()}
    assert found("views", with_layer(3, viewpoint=nothing)) == "holds"
    assert found("views", {NET: measured([layer(viewpoint=nothing)] * 5)}) == "undecided"
    (plot,) = [each for each in PAPER.plots if each.key == "figure4-shear"]
    made = replace(PRINTED[NET], measured=with_layer(3, viewpoint=nothing)[NET])
    assert [line.label for line in plot.lines(Evidence([made]))] == [f"layer {number}" for number in (1, 2, 4, 5)]


@pytest.mark.parametrize("name", [name for name in CLAIMS if name != "uniform-photographs"])
def test_what_was_not_measured_is_undecided(name: str) -> None:
    assert found(name, {key: {} for key in PRINTED}) == "undecided"


def test_results_of_before_leave_open_what_they_do_not_have() -> None:
    old = [{key: value for key, value in each.items() if key not in ("reactivated", "revivals")} for each in LIVES]
    assert found("never-back", {NET: {**measured(), "mitterreiter2023.lives": {"steps": [1, 9], "layers": old}}}) == "undecided"
    old = [{key: value for key, value in each.items() if key != "outgoing_gradients"} for each in PRINTED_LAYERS]
    assert found("starves", {NET: measured(old)}) == "undecided"


def test_every_printed_number_of_a_result_as_printed_is_within() -> None:
    verdicts = {each.target.key: each for each in PAPER.verdicts(Evidence(list(PRINTED.values())))}
    for key in reads():
        assert verdicts[key].says == "within", key
    assert verdicts["text/target-accuracy"].says == "within"
    assert verdicts["text/dead-capsules-layer4"].values == (pytest.approx(62.5),)
    assert verdicts["text/dead-capsules-largest"].values == (pytest.approx(80.0),)


def test_the_readings_of_this_paper() -> None:
    made = result(measured=measured())
    assert READINGS["alive3"](made) == 7
    assert READINGS["dys1"](made) == 4.5
    assert READINGS["dead_hidden"](made) == pytest.approx(20 / 48)
    assert READINGS["affine"](made) == 0.8
    assert all(READINGS[name](result()) is None for name in ("alive3", "dys5", "dead_hidden", "affine", "growth_n"))


@pytest.mark.parametrize("plot", PLOTS, ids=lambda plot: plot.key)
def test_every_plot_shows_what_ran_and_nothing_of_what_did_not(plot: Any) -> None:
    if isinstance(plot, Trees):
        assert plot.record(Evidence([])) is None
        return
    assert list(plot.lines(Evidence([]))) == []
    assert len(plot.lines(Evidence(list(PRINTED.values())))) > 1


def test_layers_are_drawn_beside_what_is_printed_of_them() -> None:
    (plot,) = [each for each in PAPER.plots if each.key == "table1-dynamics"]
    made = [{**each, "dys_literal": None if each["dys"] is None else 2.0} for each in PRINTED_LAYERS]
    ours, literal, printed = plot.lines(Evidence([result(NET, measured=measured(made))]))
    assert (ours.x, ours.y) == (printed.x, printed.y) == ((1.0, 2.0, 3.0, 4.0), (4.5, 1.72, 1.79, 3.78))
    assert literal.y == (2.0,) * 4
    assert (printed.label, printed.is_printed) == (ours.label, True)


def test_variants_are_drawn_beside_the_net_as_described() -> None:
    (plot,) = [each for each in PAPER.plots if each.key == "variants-dynamics"]
    lines = plot.lines(Evidence([PRINTED[NET], PRINTED[variant("iterations4")]]))
    assert [(line.label, line.is_printed) for line in lines] == [
        ("as described", False),
        ("iterations4", False),
        ("as described", True),
    ]


def test_a_plot_of_views_has_a_line_for_each_layer() -> None:
    (plot,) = [each for each in PAPER.plots if each.key == "figure4-shear"]
    lines = plot.lines(Evidence([PRINTED[NET]]))
    assert [line.label for line in lines] == [f"layer {number}" for number in range(1, 6)]
    assert (lines[1].x, lines[1].y) == ((5.0, 30.0, 60.0), (0.99, 0.7, 0.7))


# ---- measures


@pytest.fixture(scope="module")
def run() -> Run:
    """A small net after a few steps on noise."""
    images = torch.rand(64, 1, 40, 40, generator=torch.Generator().manual_seed(0))
    data = from_tensors(images, torch.arange(64) % 10)
    plan = Plan("parse_capsnet", "mnist40", {"backbone": "small", "capsules": (4, 4, 10)}).changed(
        {"steps": 4, "batch_size": 16, "watch": 2, "device": "cpu"}
    )
    return run_plan(plan, splits={"train": data, "validation": None, "test": None}, progress=False)


IMAGES = from_tensors(torch.rand(40, 1, 40, 40, generator=torch.Generator().manual_seed(1)), torch.arange(40) % 10)


def test_a_diagnosis_is_kept_in_a_few_thousand_letters(run: Run) -> None:
    found = measures.dynamics(run, {"validation": None, measures.AFFINE: IMAGES}, CPU)
    # eight for each of four steps, of the forty that there are.
    assert found["images"] == 16
    assert [each["capsules"] for each in found["layers"]] == [4, 4, 10]
    first, _, last = found["layers"]
    assert first["dyr"] is not None
    assert last["dyr"] is None
    assert set(first["cas_at"]) == {"0.01", "0.05", "0.1", "0.2"}
    assert first["cas_at"]["0.1"] == first["cas"]
    assert first["viewpoint"]["shear"]["amount"] == [5, 10, 20, 30, 45, 60]
    assert len(json.dumps(found)) < 12_000
    with pytest.raises(ValueError, match="measured on no test images"):
        measures.dynamics(run, {"validation": None}, CPU)


def test_nets_on_photographs_are_diagnosed_on_their_own_test_images() -> None:
    def photos(count: int) -> ImageData:
        images = torch.rand(count, 3, 32, 32, generator=torch.Generator().manual_seed(count))
        return from_tensors(images, torch.arange(count) % 10, name="cifar10")

    plan = PAPER.recipe(photographs()).job(0, settings={"device": "cpu"}).plan
    short = plan.changed({"steps": 2, "batch_size": 8, "watch": 1, "model.capsules": (4, 4, 4, 10)})
    splits: dict[str, ImageData | None] = {"train": photos(16), "validation": photos(20), "test": None}
    trained = run_plan(short, splits=splits, progress=False)
    found = measures.dynamics(trained, splits, CPU)
    assert (found["data"]["name"], found["images"]) == ("cifar10", 8)
    assert [each["capsules"] for each in found["layers"]] == [4, 4, 4, 10]
    assert measures.lives(trained, splits, CPU)["looks"] == 2
    assert measures.trees(trained, splits, CPU) == {}


def test_lives_are_those_of_the_looks(run: Run) -> None:
    found = measures.lives(run, {}, CPU)
    assert (found["looks"], found["steps"], len(found["layers"])) == (2, [2, 4], 3)


def test_trees_are_of_the_first_seed_alone(run: Run) -> None:
    found = measures.trees(run, {measures.AFFINE: IMAGES}, CPU)
    assert len(found["trees"]) == 2
    assert len(found["images"]) == 3
    assert found["statistics"]["images"] == 40
    made = Evidence([replace(PRINTED[NET], measured={"mitterreiter2023.trees": json.loads(json.dumps(found))})])
    drawn = paper_report(PAPER, made.results(NET))
    for name in ("figure2", "figure3-mean", "figure3-std", "figure5"):
        assert drawn[f"plots/{name}-trees.svg"].startswith("<svg"), name
    assert drawn["plots/figure5-trees.svg"].count("<image") == 2
    assert len(json.dumps(found)) < 60_000
    later = copy.copy(run)
    later.config = {**run.config, "train": {**run.config["train"], "seed": 1}}
    assert measures.trees(later, {measures.AFFINE: IMAGES}, CPU) == {}


def test_further_data_are_loaded_for_measures_that_need_them(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, ...]] = []

    @needing(lambda plan: ("other",))
    def wanting(run: Run, splits: Any, device: torch.device) -> dict[str, Any]:
        seen.append(tuple(splits))
        return {"images": len(splits["other"])}

    class Loaded:
        config, model = {"plan": Plan("parse_capsnet", "mnist40").as_dict()}, torch.nn.Linear(1, 1)

    monkeypatch.setattr(measuring, "measure_by_name", lambda name: wanting)
    monkeypatch.setattr(measuring, "load_data", lambda name, **options: IMAGES)
    monkeypatch.setattr(measuring.Run, "load", lambda folder: Loaded())
    monkeypatch.setattr(Plan, "load", lambda plan, root: {"train": None})
    assert measuring.measure(tmp_path, ("a.wanting",), None) == {"a.wanting": {"images": 40}}
    assert seen == [("train", "other")]


def test_data_beside_a_run_s_own_are_those_of_placed_digits() -> None:
    wanted = vars(measure_by_name("mitterreiter2023.dynamics"))["wanted"]
    assert wanted(PAPER.recipe(NET).plan) == ("affnist_mitterreiter",)
    assert wanted(PAPER.recipe(photographs()).plan) == ()


def test_growth_finds_the_powers_of_what_is_counted(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growth, "FEWER", {"n": (4, 8), "d": (4, 8)})
    monkeypatch.setattr(growth, "MIDDLE", {"n": 4, "d": 4})
    found = measures.growth(run, {}, CPU)
    assert found["n"]["exponents"]["rba_parameters"] == pytest.approx(2)
    assert found["d"]["exponents"]["rba_parameters"] == pytest.approx(2)
    assert found["n"]["exponents"]["mhsa_parameters"] == pytest.approx(0)
    assert found["n"]["rba_parameters"] == [4**4, 8 * 8 * 4 * 4]


def test_the_small_backbone_covers_its_map() -> None:
    model = create_model("parse_capsnet", image_size=40, in_channels=1, backbone="small")
    model.eval()
    with torch.no_grad():
        assert model(torch.rand(2, 1, 40, 40)).scores.shape == (2, 10)
    assert sum(p.numel() for p in model.trunk.parameters()) < 45_000
