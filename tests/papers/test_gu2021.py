"""gu2021's settings and sizes, and its measures on nets and images of which the answer is known."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from capsella.data import ImageData
from capsella.data.affnist import transformed
from capsella.data.augment import AFFNIST, Place
from capsella.data.multimnist import Pairs
from capsella.data.registry import Content, assemble
from capsella.data.samples import Stored
from capsella.models import Model
from capsella.papers.gu2021 import affine as affine_file
from capsella.papers.gu2021.affine import affine, moved_images, seen
from capsella.papers.gu2021.nets import TABLE1, build, parameters, placed
from capsella.papers.images import unpack
from capsella.papers.paper import get_paper, select
from capsella.papers.readings import READINGS
from capsella.papers.verdicts import Evidence
from capsella.train.config import TrainConfig
from capsella.train.run import Run

sys.path.insert(0, str(Path(__file__).resolve().parent))
from paper_harness import result

PAPER = get_paper("gu2021")
CPU = torch.device("cpu")


# SPEC 2.1.
@pytest.mark.parametrize(
    ("rows", "count"),
    [
        (("table1/convnet-fc",), 35_445_522),
        (("table1/capsnet", "table1/capsnet-nor", "table2/not-shared", "averages/not-shared-mean"), 13_475_648),
        (("table1/aff-capsnet-dr", "table1/aff-capsnet", "table2/baseline", "table2/no-squash"), 7_578_688),
        (("table2/dr", "table2/normal-reconstruction", "table2/cross-entropy", "averages/shared-tenth"), 7_578_688),
        (("table1/convnet-avg",), 5_332_234),
        (("table3/convnet-avg-k5",), 1_647_882),
        (("table3/convnet-avg-k3",), 595_210),
        # without 160·512 + 512 + 512·1024 + 1024 + 1024·1600 + 1600 of the decoder.
        (("table2/no-reconstruction",), 5_330_944),
    ],
)
def test_the_nets_have_the_sizes_that_the_specification_works_out(rows: tuple[str, ...], count: int) -> None:
    for row in rows:
        (recipe,) = select(f"gu2021/{row}").recipes
        assert parameters(recipe.plan) == count


def plans() -> dict[str, Any]:
    return {recipe.key.removeprefix("gu2021/"): recipe.plan for recipe in PAPER.recipes}


def test_the_settings_are_those_of_the_paper() -> None:
    for row, plan in plans().items():
        train = plan.train
        assert (train.optimiser, train.lr, train.batch_size) == ("adam", 1e-3, 128), row
        assert (train.reconstruction, train.reconstruction_reduction) == (0.0005, "sum"), row
        assert (train.margins, train.down_weight) == ((0.9, 0.1), 0.5), row
        assert (plan.split, plan.validate, plan.test) == ("train", "test", False), row
        assert plan.data_options.get("augment") is None


def test_tables_1_and_3_stop_and_table_2_does_not() -> None:
    for row, plan in plans().items():
        table = row.split("/")[0]
        if table in ("table1", "table3"):
            assert (plan.train.target_accuracy, plan.train.epochs, plan.train.schedule) == (0.9922, 100, "constant"), row
        if table in ("table2", "groups", "averages"):
            assert (plan.train.target_accuracy, plan.train.epochs) == (None, 100), row
            assert (plan.train.schedule, plan.train.decay, plan.train.decay_steps) == ("exponential", 0.96, 2000), row


def test_table_2_changes_one_component_at_a_time() -> None:
    usual = {"shared": True, "routing": "uniform", "squash": "sabour", "reconstruction": "conditional", "loss": "auto"}
    changed = {}
    for row, plan in plans().items():
        if row.startswith("table2/"):
            # what a plan does not name is as the model has it.
            given = {"shared": False, "routing": "agreement", "squash": "sabour", "reconstruction": "conditional"}
            given |= plan.model_options | {"loss": plan.train.loss}
            changed[row.removeprefix("table2/")] = {key: value for key, value in given.items() if value != usual[key]}
    assert changed == {
        "baseline": {},
        "dr": {"routing": "agreement"},
        "not-shared": {"shared": False},
        "no-squash": {"squash": "none"},
        "normal-reconstruction": {"reconstruction": "normal"},
        "no-reconstruction": {"reconstruction": "none"},
        "cross-entropy": {"loss": "length_cross_entropy"},
    }


def test_groups_share_the_channels_and_one_matrix() -> None:
    for count in (1, 4, 16, 64):
        net: Any = build(plans()[f"groups/{count}"])
        assert (net.primary.types, net.primary.dim) == (count, 256 // count)
        assert net.layers[0].weight.shape == (1, 10, 256 // count, 16)


def test_what_no_routing_means_is_turned_round() -> None:
    normalise = {
        row: build(plans()[row]).layers[0].options["normalise"] for row in ("table2/baseline", "averages/shared-tenth")
    }
    assert normalise == {"table2/baseline": "sources", "averages/shared-tenth": "targets"}
    normalise = {
        row: build(plans()[row]).layers[0].options["normalise"] for row in ("table2/not-shared", "averages/not-shared-mean")
    }
    assert normalise == {"table2/not-shared": "targets", "averages/not-shared-mean": "sources"}


def test_every_printed_number_of_tables_1_to_3_is_read_worked_out_or_has_a_reason() -> None:
    read = {target for recipe in PAPER.recipes for target in recipe.reads}
    for key, target in PAPER.targets.items():
        if key.split("/")[0] in ("table1", "table2", "table3"):
            assert target.cited or key in read or key in PAPER.facts or target.value is None, key


def test_sizes_are_those_of_nets_that_ran() -> None:
    evidence = Evidence([result("gu2021/table1/convnet-avg", parameters=5_332_234)])
    verdicts = {each.target.key: each for each in PAPER.verdicts(evidence)}
    assert verdicts["table1/convnet-avg-parameters"].says == "within"
    assert verdicts["table3/convnet-avg-k9-parameters"].values == (5.332234,)
    assert verdicts["table1/capsnet-parameters"].says == "not run"
    assert verdicts["table1/capsnet-affnist"].says == "cited only"


class ByInk(Model):
    """Knows a digit by how much ink it has: images of class k are k + 1 full pixels in a square that nothing can tear."""

    scores_are = "logits"

    def __init__(self, shape: tuple[int, int, int], inks: Tensor) -> None:
        super().__init__(shape, len(inks))
        self.inks = nn.Parameter(inks)

    def classify(self, images: Tensor) -> tuple[Tensor, Tensor | None]:
        ink = images.sum(dim=(1, 2, 3))
        return -(ink[:, None] - self.inks).abs(), None


def digits(count: int) -> ImageData:
    """Return squares of 4 and of 12 pixels, classes 0 and 1, in the middle of 28×28, placed on 40×40."""
    images = torch.zeros(count, 1, 28, 28, dtype=torch.uint8)
    labels = torch.arange(count) % 2
    images[labels == 0, :, 12:16, 12:16] = 255
    images[labels == 1, :, 8:20, 8:20] = 255
    content = Content(Stored(images, labels, place=Place(40, purpose="place")), ("small", "large"))
    return assemble(content, "squares", "test", {}, None, "unit")


def a_run(model: nn.Module, **train: Any) -> Run:
    return Run({"train": TrainConfig.of(train).as_dict(), "data": {}}, model=model)


def test_moved_images_are_those_of_the_data_set_of_that_name() -> None:
    data = digits(6)
    # as load_data("affnist") makes them.
    whole = torch.cat(list(transformed(replace(AFFNIST, double=True), data.samples.originals, torch.arange(6), "test", 1)))
    found = list(moved_images(data, AFFNIST, 2, None, CPU))
    assert len(found) == 2
    torch.testing.assert_close(found[1][0], whole.float() / 255)
    assert torch.equal(found[1][1], torch.arange(6) % 2)
    # every other of five.
    (some,) = moved_images(digits(5), AFFNIST, 1, 3, CPU)
    assert torch.equal(some[1], torch.tensor([0, 0, 0]))


def test_affine_images_are_counted_in_all_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(affine_file, "BATCH", 4)
    data = digits(10)
    # scales of 0.8 to 1.2 leave 16 pixels and 144 far apart.
    knows, guesses = ByInk((1, 40, 40), torch.tensor([16.0, 144.0])), ByInk((1, 40, 40), torch.tensor([0.0, 1e6]))
    found = affine(a_run(knows), {"validation": data}, CPU)
    assert found == {
        "affnist": {"accuracy": 1.0, "images": 320},
        "affnist_mitterreiter": {"accuracy": 1.0, "images": 80},
        "affnist_literal": {"accuracy": 1.0, "images": 80},
    }
    # a net whose steps are counted is a short version.
    assert affine(a_run(guesses, steps=5), {"validation": data}, CPU)["affnist"] == {"accuracy": 0.5, "images": 10}


def test_what_is_not_placed_has_no_originals() -> None:
    with pytest.raises(ValueError, match="no test images"):
        affine(a_run(ByInk((1, 4, 4), torch.ones(2))), {"validation": None}, CPU)
    originals, labels = torch.zeros(2, 1, 28, 28, dtype=torch.uint8), torch.arange(2)
    pairs = Pairs(originals, labels, partners=1, shift=0, seed="test")
    data = assemble(Content(pairs, tuple("01")), "multimnist", "test", {}, None, "unit")
    with pytest.raises(TypeError, match="which has originals"):
        affine(a_run(ByInk((1, 36, 36), torch.ones(2))), {"validation": data}, CPU)


def test_pictures_of_the_data_show_ink() -> None:
    sheets = seen(a_run(nn.Identity()), {"validation": digits(20)}, CPU)["sheets"]
    for sheet in sheets.values():
        drawn = unpack(sheet)
        assert drawn.shape == (40, 400)
        assert 0 < drawn.mean() < 0.2


def test_readings_of_affine_images_and_of_the_end_of_a_training() -> None:
    measured = {"gu2021.affine": {"affnist": {"accuracy": 0.8, "images": 10}}}
    plan = placed(TABLE1["capsnet"], "stopped").as_dict()
    reached = result("gu2021/table1/capsnet", validation=(0.98, 0.993), measured=measured, status="reached", plan=plan)
    assert READINGS["affnist"](reached) == 0.8
    assert READINGS["affnist_literal"](reached) is None
    assert READINGS["stopped"](reached) == 2.0
    assert READINGS["stopped"](result(status="not reached", plan=plan)) == float("inf")
    assert READINGS["stopped"](result()) is None
    assert READINGS["affnist"](result(measured=measured, status="non-finite")) is None
