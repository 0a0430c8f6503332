"""peer2022's claims on made evidence, and its measures on nets of which the answer is known."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from capsella import functional as F
from capsella.data import from_tensors
from capsella.models import CapsuleNet, Prediction, create_model
from capsella.papers.measuring import measure
from capsella.papers.paper import get_paper
from capsella.papers.peer2022.measures import cancelling, clean, look, opposites
from capsella.papers.results import Result
from capsella.papers.verdicts import Evidence
from capsella.train.config import TrainConfig
from capsella.train.evaluation import evaluate
from capsella.train.plan import Plan, run_plan
from capsella.train.run import Run

sys.path.insert(0, str(Path(__file__).resolve().parent))
from paper_harness import result

PAPER = get_paper("peer2022")


def curve(start: float) -> dict[str, list[float]]:
    steps = [25 * k for k in range(1, 200)]
    return {"step": steps, "loss": [0.5] * len(steps), "accuracy": [0.9 if step >= start else 0.1 for step in steps]}


def inside(**changes: Any) -> dict[str, Any]:
    net = {
        "lengths": changes.get("lengths", [0.5, 0.5, 0.5]),
        "negative_share": changes.get("negative_share", 0.0),
        "negation_gap": changes.get("gap", 0.0),
        "gradients": changes.get("gradients", [1e-12, 1e-12]),
        "opposites": [{"lowest": -0.95, "share": changes.get("share", 0.01), "zero": 0.0}],
        "cancelling": {"left": changes.get("left", 0.01), "same": 0.0},
    }
    return {"peer2022.inside": {"start": net, "end": net}, "peer2022.clean": {"accuracy": changes.get("clean", 0.999)}}


def as_printed(key: str) -> Result:
    """Return a result as the paper would have it."""
    _, table, row = key.split("/")
    bias = "no-bias" not in row
    if table in ("table1", "sign", "relu"):
        knows = row.startswith("relu") if table == "relu" else bias
        return result(key, training=(0.99 if knows else 0.5,), measured=inside(left=0.9 if knows else 0.01))
    depth = int(row.split("depth")[1])
    if table == "controls":
        trains = row.startswith(("bias", "lengths", "zero", "last", "wider", "wide-depth4"))
        lengths = [0.5, 0.1 if trains else 1e-9, 0.5]
        # a bias adds a point where lengths are kept.
        accuracy = (0.98 if row.startswith("lengths-depth") else 0.99) if trains else 0.1
        sees = trains and "bias" in row and "no-bias" not in row
        start = 25 if row.startswith("bias") else 50
        gap = 0.9 if sees else 0.0
        return result(key, validation=(accuracy,), curve=curve(start), measured=inside(lengths=lengths, gap=gap))
    trains = bias or depth < (4 if table == "table2" else 8)
    start = 25 if bias else 1000 + 100 * depth if trains else math.inf
    lengths = [0.5, 0.1 if trains else 1e-9, 0.5]
    left, gap = 0.9 if bias else 0.01, 0.9 if bias else 0.0
    seen = inside(lengths=lengths, left=left, gap=gap)
    return result(key, validation=(0.98 if trains else 0.1,), curve=curve(start), measured=seen)


PRINTED = {each.key: as_printed(each.key) for each in PAPER.recipes}
CLAIMS = {claim.key.removeprefix("peer2022/"): claim for claim in PAPER.claims}


def found(name: str, **changed: Result) -> str:
    evidence = Evidence([*{**PRINTED, **{f"peer2022/{key}": each for key, each in changed.items()}}.values()])
    return CLAIMS[name].find(evidence).verdict


# where every net with a bias trains, nobody knows whether one that stays blind would.
@pytest.mark.parametrize("name", [name for name in CLAIMS if name != "seeing"])
def test_a_claim_holds_where_everything_is_as_it_says(name: str) -> None:
    assert found(name) == "holds"


def other(key: str, **changes: Any) -> dict[str, Result]:
    return {key: result(f"peer2022/{key}", **changes)}


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("sign-em", other("table1/em-no-bias", training=(0.6,))),
        ("sign-agreement", other("table1/rba-bias", training=(0.9,))),
        ("sign-em-defined", other("sign/em-defined-bias", training=(0.9,))),
        ("depth-agreement", other("table2/fashion-no-bias-depth4", validation=(0.6,))),
        ("depth-agreement", other("table2/mnist-bias-depth5", validation=(0.4,))),
        ("depth-em", other("table3/mnist-no-bias-depth8", validation=(0.6,))),
        ("depth-em", other("table3/fashion-bias-depth6", validation=(0.1,))),
        ("shallow-agreement", other("table2/mnist-no-bias-depth3", validation=(0.1,))),
        ("shallow-em", other("table3/fashion-bias-depth5", validation=(0.1,))),
        ("at-once", other("table3/mnist-bias-depth9", curve=curve(225))),
        ("late", other("table3/mnist-no-bias-depth5", curve=curve(975))),
        ("later-with-depth", other("table3/mnist-no-bias-depth6", curve=curve(1025))),
        ("never", other("table3/mnist-no-bias-depth9", curve=curve(4000))),
        ("faster", other("table3/mnist-bias-depth5", curve=curve(1900))),
        ("relu", other("relu/relu-em", training=(0.6,))),
        ("relu", other("relu/linear-rba", training=(0.6,))),
        ("no-negatives", other("table2/mnist-no-bias-depth2", measured=inside(negative_share=0.4))),
        ("cancel-agreement", other("table1/rba-no-bias", measured=inside(left=3.0))),
        ("cancel-em", other("table1/em-no-bias", measured=inside(left=0.95))),
        (
            "cancel-deep",
            {
                key.removeprefix("peer2022/"): result(key, measured=inside(left=0.92))
                for key in CLAIMS["cancel-deep"].recipes
                if "no-bias" in key
            },
        ),
        (
            "fault",
            {
                f"table2/fashion-bias-depth{k}": result(
                    f"peer2022/table2/fashion-bias-depth{k}", validation=(0.98,), measured=inside(clean=0.8)
                )
                for k in (2, 3, 4, 5)
            },
        ),
        ("lengths", other("controls/lengths-depth10", validation=(0.1,), measured=inside())),
        ("zero-bias", other("controls/zero-bias-depth4", validation=(0.1,))),
        ("last-bias", other("controls/last-bias-depth10", validation=(0.1,))),
        ("published-bias", other("controls/bias-depth10", validation=(0.1,))),
        ("blind-wide", other("controls/wide-depth4", validation=(0.1,), measured=inside())),
        # one that tells them apart shows nothing of blind ones.
        ("blind-wide", other("controls/wide-depth4", validation=(0.99,), measured=inside(gap=0.5))),
        ("still-helps", other("controls/lengths-bias-depth4", validation=(0.97,))),
        # as short as at the start of nets that train, and at its end as good as any.
        ("vanishing", other("controls/wide-depth5", validation=(0.99,), measured=inside(lengths=[0.5, 1e-9, 0.5]))),
    ],
)
def test_one_counterexample_is_enough(name: str, changed: dict[str, Result]) -> None:
    assert found(name, **changed) == "does not hold"


def short(**changed: Result) -> dict[str, Result]:
    """Return everything as printed, and what is changed, as short versions."""
    every = {**PRINTED, **{f"peer2022/{key}": each for key, each in changed.items()}}
    return {key.removeprefix("peer2022/"): replace(each, quick=True) for key, each in every.items()}


@pytest.mark.parametrize("name", ["depth-em", "shallow-em", "late", "later-with-depth", "never", "zero-bias", "still-helps"])
def test_short_versions_do_not_decide_what_takes_long(name: str) -> None:
    assert found(name, **short()) == "undecided"


def test_short_versions_have_trained_where_they_have_begun() -> None:
    begun = other("table2/mnist-bias-depth5", validation=(0.3,))
    evidence = Evidence([*short(**begun).values()])
    finding = CLAIMS["depth-agreement"].find(evidence)
    assert finding.verdict == "holds"
    # the bar that was applied is the one that is said.
    assert "at least 25% of the test images right" in finding.statistic
    assert found("depth-agreement", **begun) == "does not hold"


def test_short_versions_do_not_answer_what_a_bias_is_good_for() -> None:
    assert PAPER.answer(Evidence([*short().values()])) == ""


def test_nets_that_see_train_and_those_that_do_not_train_are_blind() -> None:
    blind = other("controls/last-bias-depth10", validation=(0.1,), measured=inside(gap=0.0))
    assert found("seeing", **blind) == "holds"
    seeing = other("controls/last-bias-depth10", validation=(0.1,), measured=inside(gap=0.5))
    assert found("seeing", **seeing) == "does not hold"
    unseeing = other("controls/zero-bias-depth4", validation=(0.99,), measured=inside(gap=0.0))
    assert found("seeing", **blind, **unseeing) == "does not hold"
    assert found("seeing") == "undecided"


def test_opposites_that_never_occur_are_no_obstacle() -> None:
    rows = CLAIMS["opposites"].recipes
    assert found("opposites", **{key.removeprefix("peer2022/"): result(key, measured=inside(share=0.0)) for key in rows}) == (
        "does not hold"
    )


def test_lengths_that_tell_nothing_leave_it_undecided_or_refuted() -> None:
    rows = CLAIMS["vanishing"].recipes
    alike = {key.removeprefix("peer2022/"): result(key, validation=(0.99,), measured=inside()) for key in rows}
    assert found("vanishing", **alike) == "undecided"
    # half of them train, whatever their lengths.
    mixed = {
        key.removeprefix("peer2022/"): result(key, validation=(0.99 if k % 2 else 0.1,), measured=inside())
        for k, key in enumerate(rows)
    }
    assert found("vanishing", **mixed) == "does not hold"


def test_nets_that_never_learn_do_not_learn_late() -> None:
    rows = CLAIMS["late"].recipes
    assert found("late", **{key.removeprefix("peer2022/"): result(key, curve=curve(math.inf)) for key in rows}) == "undecided"


def test_a_little_faster_may_be_luck() -> None:
    assert found("faster", **other("table3/mnist-no-bias-depth5", curve=curve(100))) == "undecided"


def test_a_run_that_broke_has_not_trained() -> None:
    broken = other("table2/mnist-bias-depth5", validation=(0.99,), status="non-finite")
    assert found("depth-agreement", **broken) == "does not hold"


def answered(**changed: Result) -> str:
    return PAPER.answer(Evidence([*{**PRINTED, **{f"peer2022/{key}": each for key, each in changed.items()}}.values()]))


def test_a_control_is_compared_where_the_published_bias_trains() -> None:
    fails = other("controls/zero-bias-depth10", validation=(0.1,))
    assert found("zero-bias", **fails) == "does not hold"
    assert found("zero-bias", **fails, **other("controls/bias-depth10", validation=(0.1,))) == "holds"
    none = {f"table2/mnist-bias-depth{k}": result(f"peer2022/table2/mnist-bias-depth{k}", validation=(0.1,)) for k in (4, 5)}
    assert found("zero-bias", **none, **other("controls/bias-depth10", validation=(0.1,))) == "undecided"


def test_a_gain_that_may_be_luck_is_undecided() -> None:
    assert found("still-helps", **other("controls/lengths-bias-depth4", validation=(0.982,))) == "undecided"
    # opposite answers are not averaged.
    assert found("cancel-em", **other("table1/em-no-bias", measured=inside(left=0.3))) == "undecided"


def test_the_controls_come_to_sentences_each_by_claims() -> None:
    full = answered()
    assert full.startswith("On MNIST the symmetry by itself does not keep agreement from training")
    assert "weights twice as large trains as well" in full
    assert "no capsule layer's gradient is above 1e−12 at the start" in full
    assert "as good as one on all layers" in full
    assert "comes to the same end, later." in full
    assert "a bias still adds accuracy" in full
    assert "Nets that train are those whose capsules are long" in full
    assert "breaking the symmetry is not needed" in full
    assert "which begins at 1e-09 to 0.54" not in full
    assert "lengths that a bias props up" not in full
    assert full.endswith("agreement on MNIST, with 4, 5 and 10 layers; one run of each net.")
    assert PAPER.answer(Evidence([])) == ""


@pytest.mark.parametrize("missing", sorted(PRINTED))
def test_a_row_that_has_not_run_costs_its_sentences_alone(missing: str) -> None:
    assert isinstance(PAPER.answer(Evidence([each for key, each in PRINTED.items() if key != missing])), str)


def test_the_controls_are_told_without_the_nets_of_em() -> None:
    some = Evidence([each for key, each in PRINTED.items() if "/table3/" not in key])
    assert "breaking the symmetry is not needed" in PAPER.answer(some)
    assert "Of EM" not in PAPER.answer(some)


def test_what_a_control_does_not_show_is_not_said() -> None:
    # a net that fails because nothing reaches its bias tells nothing of the symmetry; one that sees and fails does.
    blind = other("controls/last-bias-depth10", validation=(0.1,), measured=inside(gap=0.0))
    assert "do not tell whether breaking the symmetry would be enough" in answered(**blind)
    seeing = other("controls/last-bias-depth10", validation=(0.1,), measured=inside(gap=0.5))
    assert "breaking the symmetry is not enough" in answered(**seeing)
    # lengths that were kept and did not help are no help where a bias fails.
    fails = {**other("controls/bias-depth10", validation=(0.1,)), **other("controls/lengths-depth10", validation=(0.1,))}
    assert "the start does" not in answered(**fails)
    assert "are not enough" in answered(**fails)
    assert "the start does" in answered(**other("controls/bias-depth10", validation=(0.1,)))
    # weights twenty times as large are named where they train no net.
    long = {
        key.removeprefix("peer2022/"): result(key, validation=(0.1,), measured=inside(lengths=[0.5, 0.4, 0.5]))
        for key in CLAIMS["vanishing"].recipes
        if "/wider-" in key
    }
    assert "twenty times as large" in answered(**long)
    (one, *_) = long
    assert "twenty times" not in answered(**{**long, one: result(f"peer2022/{one}", validation=(0.99,), measured=inside())})
    moving = {
        key.removeprefix("peer2022/"): result(key, validation=(0.1,), measured=inside(gradients=[1e-3] * 9))
        for key in CLAIMS["lengths"].recipes
        if "no-bias" in key
    }
    assert "stand still" not in answered(**moving)


def test_a_control_that_broke_has_no_number_and_is_counted_all_the_same() -> None:
    broken = other("controls/wide-depth10", status="non-finite", validation=(None,))
    assert found("blind-wide", **broken) == "holds"


@pytest.mark.parametrize("name", ["cancel-deep", "no-negatives", "opposites", "vanishing", "fault"])
def test_what_was_not_measured_is_undecided(name: str) -> None:
    bare = {
        key.removeprefix("peer2022/"): result(key, validation=PRINTED[key].history["validation"])
        for key in CLAIMS[name].recipes
    }
    assert found(name, **bare) == "undecided"


def test_the_facts_of_the_text_come_from_results() -> None:
    verdicts = {each.target.key: each for each in PAPER.verdicts(Evidence(list(PRINTED.values())))}
    assert verdicts["text/sign-examples"].values == (20_002.0,)
    assert verdicts["text/steps-before-learning"].values == (1500.0,)
    assert verdicts["text/batch-size"].values == (64.0,)
    assert verdicts["text/batch-size"].says == "below"
    assert verdicts["text/implementations-without-bias"].says == "not run"
    assert verdicts["table2/mnist-bias-depth3"].values == (98.0,)


@pytest.mark.parametrize("plot", PAPER.plots, ids=lambda plot: plot.key)
def test_every_plot_has_lines_of_what_ran_and_none_of_what_did_not(plot: Any) -> None:
    full = dict(PRINTED)
    if plot.key == "controls-gradients":
        for key in full:
            if "depth10" in key:
                net = {"gradients": [0.1, 0.2]}
                full[key] = result(key, measured={"peer2022.inside": {"start": net, "end": net}}, validation=(0.5,))
    lines = plot.lines(Evidence(list(full.values())))
    assert lines
    for line in lines:
        assert len(line.x) == len(line.y) > 0
    assert list(plot.lines(Evidence([]))) == []


def test_opposites_by_hand() -> None:
    given = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [-1.0, 0.1], [0.0, 1.0]])
    labels = torch.tensor([0, 0, 1, 1])
    # pairs of different classes: (0, 2), (0, 3), (1, 2), (1, 3); the negative of the first has its own class.
    found = opposites(given, labels)
    assert found["lowest"] == pytest.approx(-1 / math.sqrt(1.01))
    assert found["share"] == 0.25
    assert opposites(given, torch.zeros(4, dtype=torch.long)) == {"lowest": None, "share": None, "zero": 0.0}
    # however small they are; what is zero has no direction.
    tiny = opposites(given * torch.tensor([1e-30, 1.0, 1e-35, 0.0])[:, None], labels)
    assert tiny["lowest"] == pytest.approx(-1 / math.sqrt(1.01), rel=1e-6)
    assert tiny["share"] == 0.5
    assert tiny["zero"] == 0.25


def margin(prediction: Prediction, targets: torch.Tensor) -> torch.Tensor:
    return F.margin_loss(prediction.scores, targets, down_weight=1.0)


def sign_net(**options: Any) -> CapsuleNet:
    net = create_model("sign_capsnet", **options)
    assert isinstance(net, CapsuleNet)
    return net.double()


@pytest.mark.parametrize("routing", ["agreement", "em"])
def test_without_a_bias_the_negative_of_an_input_is_the_input(routing: str) -> None:
    x = torch.linspace(0.1, 1, 8, dtype=torch.float64)[:, None, None]
    labels = torch.arange(8) % 2
    blind = cancelling(sign_net(routing=routing, bias=False), x, labels, margin)
    seeing = cancelling(sign_net(routing=routing, bias=True), x, labels, margin)
    assert blind["same"] == 0
    assert seeing["same"] is not None
    assert seeing["same"] > 1e-6


def test_gradients_cancel_where_the_lengths_are_a_half() -> None:
    # of two classes, x in one and −x in the other: the margin loss pulls a score s by 4s − 2, to nothing at a half.
    class Half(torch.nn.Module):
        num_classes = 2

        def __init__(self, value: float) -> None:
            super().__init__()
            self.layers = torch.nn.ParameterList([torch.full((2,), value, dtype=torch.float64)])

        def from_primary(self, poses: torch.Tensor) -> Prediction:
            return Prediction(self.layers[0].expand(len(poses), 2))

    x, labels = torch.ones(4, 1, 1, dtype=torch.float64), torch.zeros(4, dtype=torch.long)
    assert cancelling(Half(0.5), x, labels, margin)["left"] == pytest.approx(0, abs=1e-12)  # type: ignore[arg-type]
    # s = 0.8: (−0.2, 1.4) and (1.4, −0.2), of which (1.2, 1.2) is left.
    left = cancelling(Half(0.8), x, labels, margin)["left"]  # type: ignore[arg-type]
    assert left == pytest.approx(1.2 * math.sqrt(2) / (2 * math.sqrt(0.2**2 + 1.4**2)))


def test_a_net_is_looked_into_layer_by_layer() -> None:
    net = sign_net(bias=False)
    x = torch.linspace(-1, 1, 16, dtype=torch.float64)[:, None, None, None]
    labels = (x.flatten() > 0).long()
    seen = look(net, x, labels, TrainConfig())
    assert len(seen["lengths"]) == 3
    assert len(seen["gradients"]) == 2
    assert len(seen["opposites"]) == 2
    assert seen["negation_gap"] == 0
    assert seen["negative_share"] == 0.5
    assert seen["opposites"][0] == {"lowest": -1.0, "share": 1.0, "zero": 0.0}
    assert seen["lengths"][0] == pytest.approx(float(x.abs().mean()))


def test_a_run_is_measured_as_it_started_and_as_it_ended(tmp_path: Path) -> None:
    plan = Plan("sign_capsnet", "sign", model_options={"bias": False}, validate=None, test=False).changed(
        {"steps": 3, "batch_size": 64, "device": "cpu", "lr": 0.05}
    )
    run_plan(plan, tmp_path / "run", progress=False)
    found = measure(tmp_path / "run", ("peer2022.inside",), None)
    seen = found["peer2022.inside"]
    assert seen["start"]["lengths"] != seen["end"]["lengths"]
    assert seen["start"]["negation_gap"] == seen["end"]["negation_gap"] == 0
    # what was measured is kept beside the run, and not measured again.
    (tmp_path / "run/measured.json").write_text('{"peer2022.inside": 7}')
    assert measure(tmp_path / "run", ("peer2022.inside",), None) == {"peer2022.inside": 7}


def test_the_fault_is_in_the_test_images_alone(tmp_path: Path) -> None:
    """A net is measured again on images that are standardised as it learned them."""
    torch.manual_seed(0)
    images = (torch.rand(60, 1, 28, 28) * 200).to(torch.uint8)
    data = from_tensors(images, torch.arange(60) % 10, split="test", normalise="peer2022")
    model = create_model("deep_capsnet", depth=2, channels=8, types=1, reconstruction="none")
    fair = from_tensors(images, torch.arange(60) % 10, split="test", normalise="standardise")
    run = Run({}, model=model)
    found = clean(run, {"validation": data, "train": None, "test": None}, torch.device("cpu"))
    assert found == {"accuracy": evaluate(model, fair).accuracy, "images": 60}
    with pytest.raises(ValueError, match="no test images"):
        clean(run, {"validation": None, "train": data, "test": None}, torch.device("cpu"))


def test_measuring_leaves_no_trace_in_the_random_numbers(tmp_path: Path) -> None:
    plan = Plan("sign_capsnet", "sign", validate=None, test=False).changed({"steps": 1, "batch_size": 64, "device": "cpu"})
    run_plan(plan, tmp_path / "run", progress=False)
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    measure(tmp_path / "run", ("peer2022.inside",), None)
    assert torch.equal(torch.rand(4), expected)


def test_a_net_whose_lengths_vanish_is_drawn_as_far_as_they_go() -> None:
    (plot,) = [plot for plot in PAPER.plots if plot.key == "controls-lengths"]
    key = "peer2022/controls/no-bias-depth10"
    (line,) = plot.lines(Evidence([result(key, measured=inside(lengths=[0.5, 1e-9, 0.0, 0.0]))]))
    assert (line.x, line.y) == ((1.0, 2.0), (0.5, 1e-9))
    (broken,) = plot.lines(Evidence([result(key, measured=inside(lengths=[0.5, 0.0, 0.25]))]))
    assert broken.x == (1.0, 2.0, 3.0)
    assert math.isnan(broken.y[1])
    assert line.label.endswith(" (0 in 2 of 4)")
    assert plot.lines(Evidence([result(key, measured=inside(lengths=[0.0]))])) == []
