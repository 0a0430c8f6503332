"""Records on disk: everything that a page needs, small, and read by later versions."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from analysis_nets import Stack, draw, randomised

from capsella import create_model
from capsella.analysis import TreeStatisticsOf, diagnose, observe, parse_trees, read_record
from capsella.analysis.doctor import summary
from capsella.analysis.pictures import MOST, SIDE, levels, pictures_of, trimmed
from capsella.analysis.records import as_json, completed, finite
from capsella.analysis.symptoms import find_symptoms
from capsella.analysis.words import in_words
from capsella.errors import DataError
from capsella.nn import CapsuleLinear

# what the first records had, and nothing else.
OLD = ("images", "non_finite", "accuracy", "guess", "bias", "layers", "negation_gap", "negation_share", "routing_matters")


def some_record(**options: Any) -> dict[str, Any]:
    found = diagnose(create_model("capsnet_small"), torch.rand(12, 1, 28, 28), torch.arange(12) % 10, **options)
    return found.as_dict()


def old(record: dict[str, Any]) -> dict[str, Any]:
    swaps = {key: value for key, value in record["routing_matters"].items() if key != "images"}
    return {**{key: record[key] for key in OLD}, "routing_matters": swaps}


def test_a_record_comes_back_from_its_file_as_it_was(tmp_path: Path) -> None:
    record = some_record(views={"rotation": (10,)}, sweep=True, facts={"model": {"name": "capsnet_small"}})
    (tmp_path / "record.json").write_text(as_json(record))
    assert read_record(tmp_path / "record.json") == record == completed(record)


def test_words_and_figures_are_made_again_from_a_record(tmp_path: Path) -> None:
    found = diagnose(create_model("capsnet_small"), torch.rand(12, 1, 28, 28), torch.arange(12) % 10, views={})
    (tmp_path / "record.json").write_text(as_json(found.as_dict()))
    record = read_record(tmp_path / "record.json")
    assert tuple(find_symptoms(record)) == found.symptoms
    assert in_words(record, find_symptoms(record)) == found.text()
    assert summary(record) == found.summary()


def test_rows_of_numbers_are_on_one_line_and_nothing_is_lost() -> None:
    record = {
        "a": [1, -2.5, 1e-7, 1.5e30],
        "b": [[True, None], [False]],
        "c": ["[\n 1,\n 2\n]", "[", 3],
        "d": [],
        "e": [{"f": [1]}],
    }
    text = as_json(record)
    assert json.loads(text) == record
    assert ' "a": [1, -2.5, 1e-07, 1.5e+30],\n' in text
    assert "[true, null],\n" in text
    assert text.count("\n") < 20
    with pytest.raises(ValueError, match="not JSON compliant"):
        as_json({"a": math.nan})


def test_what_is_no_number_is_none() -> None:
    assert finite({"a": [1.0, math.nan], "b": (math.inf, True, "x", 3)}) == {"a": [1.0, None], "b": [None, True, "x", 3]}


def test_a_record_of_before_is_read(tmp_path: Path) -> None:
    record = some_record(views={"rotation": (10,)})
    (tmp_path / "old.json").write_text(json.dumps(old(record)))
    found = read_record(tmp_path / "old.json")
    assert [found[key] for key in ("training", "compactness", "pictures", "views_skipped", "model")] == [None] * 5
    # what was compared then were activations.
    assert found["negation_by"] == "activations"
    assert [symptom.key for symptom in find_symptoms(found)] == [symptom["key"] for symptom in record["symptoms"]]
    assert "couplings: " in in_words(found, find_symptoms(found))
    assert summary(found) == summary(record)


@pytest.mark.parametrize("text", ["", "[1, 2]", "{}", '{"layers": [], "images": 3}', '{"layers": [{}], "images": 3}'])
def test_what_is_no_record_is_one_line(text: str, tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text(text)
    with pytest.raises(ValueError, match="expected what capsella doctor --json wrote") as caught:
        read_record(tmp_path / "other.json")
    assert isinstance(caught.value, DataError) == (text == "")
    assert len(str(caught.value).splitlines()) == 1


# pictures


def test_a_small_net_s_trees_are_whole() -> None:
    model = randomised(Stack(CapsuleLinear(6, 4, 5, 4), CapsuleLinear(5, 4, 3, 4)))
    trees = parse_trees(model, draw(3, 6, 4))
    streamed = TreeStatisticsOf()
    streamed.update(observe(model, draw(3, 6, 4))[1])
    statistics = streamed.compute()
    found = pictures_of(trees[:2], trees[2], statistics, torch.rand(3, 1, 4, 4), ("a", "b", "c"))
    assert found is not None
    assert found["trees"] == [tree.as_dict() for tree in trees[:2]]
    assert found["view"] == trees[2].as_dict()
    assert found["statistics"] == statistics.as_dict()
    assert found["class_names"] == ["a", "b", "c"]
    assert len(found["images"]) == 3
    assert pictures_of([], None, statistics, None) is None
    other = pictures_of(trees[:1], None, None, None, ("a", "b"))
    assert other is not None
    assert [other[key] for key in ("view", "statistics", "images", "class_names")] == [None] * 4


def test_of_a_large_layer_the_most_active_capsules_are_kept() -> None:
    model = create_model("capsnet_small")
    trees = parse_trees(model, torch.rand(3, 1, 28, 28))
    found = pictures_of(trees[:2], trees[2], None, None)
    assert found is not None
    shown = [*found["trees"], found["view"]]
    numbers = shown[0]["numbers"]
    # the same of all trees, so that they can be compared.
    assert all(tree["numbers"] == numbers for tree in shown)
    assert shown[0]["sizes"] == [72, 10]
    most = torch.stack([tree.activations[0] for tree in trees]).amax(dim=0)
    assert set(numbers[0]) == set(most.topk(MOST).indices.tolist())
    assert numbers[1] == list(range(10))
    for tree, whole in zip(shown, (tree.as_dict() for tree in trees), strict=True):
        assert tree["layers"][0] == [whole["layers"][0][i] for i in numbers[0]]
        assert tree["edges"][0] == [whole["edges"][0][i] for i in numbers[0]]
        assert tree["answer"] == whole["answer"]


def test_an_answer_is_kept_whatever_its_length() -> None:
    trees = parse_trees(randomised(Stack(CapsuleLinear(2, 4, 40, 4))), draw(1, 2, 4))
    last = trees[0].activations[-1]
    weakest = int(last.argmin())
    tree = type(trees[0])(trees[0].activations, trees[0].couplings, weakest, trees[0].names)
    found = pictures_of([tree], None, None, None)
    assert found is not None
    numbers = found["trees"][0]["numbers"][1]
    assert weakest in numbers
    assert len(numbers) == MOST


def test_statistics_are_trimmed_with_their_spreads_but_not_with_their_dead() -> None:
    statistics = {
        **{"images": 2, "names": ["a"], "layers": [[0.1, 0.2, 0.3], [1.0, 0.5]], "layer_stds": [[1, 2, 3], [4, 5]]},
        **{"edges": [[[1, 2], [3, 4], [5, 6]]], "edge_stds": [[[7, 8], [9, 0], [1, 2]]]},
        "dead": [[True, False, False], [False, False]],
    }
    found = trimmed(statistics, [[0, 2], [1]])
    assert (found["layers"], found["layer_stds"]) == ([[0.1, 0.3], [0.5]], [[1, 3], [5]])
    assert (found["edges"], found["edge_stds"]) == ([[[2], [6]]], [[[8], [2]]])
    assert (found["dead"], found["sizes"], found["numbers"]) == (statistics["dead"], [3, 2], [[0, 2], [1]])


def test_images_are_grey_levels() -> None:
    image = torch.tensor([[[0.0, 0.5], [1.0, 0.2]]])
    assert levels(image) == [[[0, 128], [255, 51]]]
    # what was normalised for a network is stretched.
    assert levels(4 * image - 2) == [[[0, 128], [255, 51]]]
    assert levels(torch.full((1, 2, 2), 7.0)) == [[[0, 0], [0, 0]]]
    assert levels(image.bfloat16())[0][0][0] == 0


def test_large_images_are_made_smaller() -> None:
    found = levels(torch.ones(3, 4 * SIDE, 2 * SIDE))
    assert (len(found), len(found[0]), len(found[0][0])) == (3, SIDE, SIDE // 2)
    assert {value for channel in found for row in channel for value in row} == {255}


def test_a_record_of_a_large_net_is_small() -> None:
    model = create_model("capsnet", reconstruction="none")
    found = diagnose(model, torch.rand(4, 1, 28, 28), torch.arange(4), views={"rotation": (10,)}, sweep=True)
    record = found.as_dict()
    assert record["layers"][0]["capsules"] == 1152
    assert record["pictures"]["trees"][0]["sizes"] == [1152, 10]
    assert len(as_json(record)) < 100_000
