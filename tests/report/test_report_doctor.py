"""The doctor's page: all of a record is on it, and a record is enough."""

from __future__ import annotations

import json
import re
from html import unescape
from pathlib import Path
from typing import Any

import pytest
import torch

import capsella
from capsella.analysis import SYMPTOMS
from capsella.analysis.records import as_json
from capsella.report.doctor import doctor_page

ROOT = Path(__file__).resolve().parents[2]
NAMES = tuple(f"class {letter}" for letter in "ABCDEFGHIJ")
LOOKS = [
    {
        "event": "watch",
        "step": 100 * k,
        "layer1/capsules": 72,
        "layer1/dead": 0.0,
        "layer1/gradient": 1 / k,
        "layer1/revivals": 0,
    }
    | {"layer2/capsules": 10, "layer2/dead": 0.1 * (k > 3), "layer2/gradient": 0.1 / k, "layer2/revivals": 0}
    for k in range(1, 7)
]
FACTS = {"data": "made", "split": "test", "model": {"name": "capsnet_small", "init": "gu2021"}}


@pytest.fixture(scope="module")
def record() -> dict[str, Any]:
    """A net with a dead class capsule, measured in every way."""
    torch.manual_seed(0)
    model = capsella.create_model("capsnet_small")
    with torch.no_grad():
        model.layers[-1].weight[:, 3] = 0
        if model.layers[-1].bias is not None:
            model.layers[-1].bias[3] = 0
    pixels = torch.randint(0, 256, (12, 1, 28, 28), dtype=torch.uint8)
    data = capsella.data.from_tensors(pixels, torch.arange(12) % 10, class_names=NAMES)
    views = {"rotation": (10, 20), "scale": (0.9, 1.1)}
    found = capsella.diagnose(model, data, views=views, sweep=True, compactness=True, events=LOOKS, facts=FACTS)
    return found.as_dict()


def changed(record: dict[str, Any], **changes: Any) -> str:
    return doctor_page({**record, **changes})


def svgs(page: str) -> dict[str, str]:
    """Return the pictures of a page by what they show."""
    found = re.findall(r"<svg[^>]*aria-label=\"([^\"]*)\".*?</svg>", page, flags=re.DOTALL)
    parts = re.findall(r"<svg[^>]*aria-label=\"[^\"]*\".*?</svg>", page, flags=re.DOTALL)
    return {unescape(label): part for label, part in zip(found, parts, strict=True)}


def words(page: str) -> str:
    return unescape(re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", page)))


def test_the_page_of_a_record_that_was_on_disk_is_the_same(record: dict[str, Any]) -> None:
    assert doctor_page(json.loads(as_json(record))) == doctor_page(record)


def test_its_title_is_what_was_examined(record: dict[str, Any]) -> None:
    assert "<h1>capsnet_small on made/test</h1>" in doctor_page(record)
    assert "<h1>mine &amp; yours</h1>" in doctor_page(record, title="mine & yours")
    bare = {key: value for key, value in record.items() if key not in FACTS}
    assert "<h1>network</h1>" in doctor_page(bare)


def test_symptoms_are_found_anew_from_the_figures(record: dict[str, Any]) -> None:
    layers = [{**record["layers"][0], "cds": 36, "cdr": 0.5}, record["layers"][1]]
    assert "layer 1: 36 of 72 capsules are dead" not in words(doctor_page(record))
    assert "layer 1: 36 of 72 capsules are dead" in words(changed(record, layers=layers, symptoms=[]))


def test_a_symptom_is_explained_on_the_page_and_links_nowhere(record: dict[str, Any]) -> None:
    page = doctor_page(record)
    assert "layer 2: 1 of 10 capsules is dead" in words(page)
    assert SYMPTOMS["dead"].means in words(page)
    assert "<code>docs/doctor.md#dead-capsules</code>" in page
    # the project has no address: a link would lead nowhere.
    assert "<a " not in page
    for file in ("pyproject.toml", "CITATION.cff"):
        assert not re.search(r"repository|urls\]|^url:", (ROOT / file).read_text(encoding="utf-8"), flags=re.MULTILINE)


def test_dead_capsules_are_crossed_out_in_every_tree(record: dict[str, Any]) -> None:
    found = svgs(doctor_page(record))
    trees = {label: svg for label, svg in found.items() if "data-part" in svg}
    assert len(trees) == 5
    for label, svg in trees.items():
        tree = svg.split('data-part="key"')[0]
        crosses = tree.count('data-part="cross"')
        assert crosses == (2 if "turned" in label else 1), label
        assert "class class D" in svg
        assert ", dead</title>" in svg


def test_every_tree_names_its_classes(record: dict[str, Any]) -> None:
    for label, svg in svgs(doctor_page(record)).items():
        if "data-part" in svg:
            assert all(name in svg for name in NAMES), label


def test_chance_is_drawn_for_every_layer(record: dict[str, Any]) -> None:
    found = svgs(doctor_page(record))["Correlation of the capsules' activations under rotation"]
    assert "layer 1" in found
    assert "layer 2" in found
    assert found.count("the same by chance") == 1
    # two lines in colours of their own, and a dotted one for each of them.
    assert len(re.findall(r"stroke-dasharray: 1\.1,1\.98", found)) >= 2
    one = json.loads(json.dumps(record))
    for layer in one["layers"]:
        layer["viewpoint"] = {"rotation": layer["viewpoint"]["rotation"]}
    one["layers"][0]["viewpoint"]["rotation"][0]["chance"] += 0.05
    assert svgs(doctor_page(one))["Correlation of the capsules' activations under rotation"] != found


def test_what_is_measured_on_request_is_a_table(record: dict[str, Any]) -> None:
    page = words(doctor_page(record))
    assert "Active capsules at several thresholds" in page
    assert "from 0.01 from 0.05 from 0.1 from 0.2" in page
    shares = " ".join(f"{row['car']:.1%}" for row in record["layers"][0]["sweep"])
    assert shares in page
    for factor, row in record["compactness"]["factors"].items():
        assert f"{factor.replace('_', ' along ')} " in page
        assert f"{row['mean']:.3f} {row['std']:.3f}" in page
    assert "2.08 where one varies alone" in page
    plain = words(changed(record, compactness=None, layers=[{**layer, "sweep": None} for layer in record["layers"]]))
    assert "Compactness" not in plain
    assert "thresholds" not in plain


def test_what_each_iteration_changes_is_drawn(record: dict[str, Any]) -> None:
    label = "Share of a capsule's couplings that each iteration moves elsewhere, above each layer"
    found = svgs(doctor_page(record))
    assert "iteration 2" in found[label]
    assert "iteration 3" in found[label]
    without = changed(record, layers=[{**layer, "change": None} for layer in record["layers"]])
    assert label not in svgs(without)


def test_what_other_couplings_do_is_said(record: dict[str, Any]) -> None:
    swaps = record["routing_matters"]
    says = f"own couplings: {swaps['own']:.2%}; with uniform ones: {swaps['uniform']:.2%}; with those of other images"
    assert says in words(doctor_page(record))


def test_the_training_is_told_and_drawn(record: dict[str, Any]) -> None:
    page = doctor_page(record)
    assert "layer 2: 1 capsule died between step 300 and 400, none came back" in words(page).replace("Layer 2", "layer 2")
    assert "Share of dead capsules in each layer over the training" in svgs(page)
    assert "Mean length of the gradient that reaches a capsule of each layer over the training" in svgs(page)
    assert "Over the training" not in words(changed(record, training=None))
    healthy = json.loads(json.dumps(record["training"]))
    for layer in healthy["layers"]:
        layer.update(dead=[0.0] * 6, deaths=0, first_dead=0, last_dead=0, between=None)
    page = changed(record, training=healthy)
    assert "no capsule was dead" in words(page)
    assert "Share of dead capsules in each layer over the training" not in svgs(page)


def test_views_that_were_not_looked_at_are_said(record: dict[str, Any]) -> None:
    layers = [{**layer, "viewpoint": {}} for layer in record["layers"]]
    page = changed(record, layers=layers, views_skipped="inputs [B, 6, 4] are no images [B, C, H, W]")
    assert "Views: not looked at, inputs [B, 6, 4] are no images [B, C, H, W]." in words(page)


def test_inputs_that_are_no_images_have_trees_without_them(record: dict[str, Any]) -> None:
    page = changed(record, pictures={**record["pictures"], "images": None})
    assert "Parse tree of image 1" in svgs(page)
    assert "<image" in doctor_page(record)
    assert "<image" not in page


def test_a_large_layer_is_shown_in_part(record: dict[str, Any]) -> None:
    found = svgs(doctor_page(record))["Parse tree of image 1"]
    assert "32 of 72" in found
    numbers = record["pictures"]["trees"][0]["numbers"][0]
    assert f"layer 1, capsule {numbers[-1]}: activation" in found


def test_a_record_without_pictures_makes_a_page_without_trees(record: dict[str, Any]) -> None:
    page = doctor_page({key: value for key, value in record.items() if key not in ("pictures", "training", "compactness")})
    assert "Parse trees" not in words(page)
    assert "With depth" in words(page)


@pytest.mark.parametrize("path", sorted((ROOT / "results" / "five_layers").glob("*.json")), ids=lambda path: path.stem)
def test_records_that_are_committed_make_pages(path: Path) -> None:
    page = doctor_page(json.loads(path.read_text(encoding="utf-8")))
    assert "16/16/16/16/10 capsules" in page


def test_a_net_that_is_no_number_has_a_page_too() -> None:
    model = capsella.create_model("capsnet_small")
    with torch.no_grad():
        model.layers[-1].weight.fill_(float("nan"))
    found = capsella.diagnose(model, torch.rand(4, 1, 28, 28), torch.arange(4))
    assert "activations are no numbers in 4 of 4 images" in words(doctor_page(found.as_dict()))
