"""What is made of figures: what comes first, what is advised, and what nothing can be said of."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import capsella
from capsella.analysis import ForeignLayers, diagnose, seen_layer
from capsella.analysis.gradients import starved_share
from capsella.analysis.symptoms import FEW, find_symptoms
from capsella.analysis.words import costs, in_words, left_out
from capsella.nn import CapsuleLinear

UNIFORM = "uniform routing, trained anew"


def small(images: int = 16, **options: Any) -> dict[str, Any]:
    """Return the record of an untrained small net."""
    torch.manual_seed(0)
    model = capsella.create_model("capsnet_small")
    return diagnose(model, torch.rand(images, 1, 28, 28), torch.arange(images) % 10, views={}, **options).record


@pytest.fixture(scope="module")
def record() -> dict[str, Any]:
    return small()


def with_gradients(record: dict[str, Any], *gradients: list[float | None] | None) -> dict[str, Any]:
    layers = [{**record["layers"][0], "gradients": each} for each in gradients]
    return {**record, "layers": layers}


@pytest.mark.parametrize(
    ("gradients", "share"),
    [
        (([0.0, 0.0], [0.0]), 0.0),
        (([0.003, 0.004], [1.0, 0.0]), 0.005),  # a length of 0.005 beside one of 1
        (([0.3, 0.4], [0.0, 0.003], [1.0]), 0.003),
        (([0.01], [1.0]), None),  # a hundredth is not less than it
        (([0.001], [0.0]), None),  # classes that are as they should be
        (([0.001], None), None),
        (([0.001], [None]), None),
        (([0.001],), None),
    ],
)
def test_gradients_that_fade_are_found_whatever_the_layers_sizes(
    record: dict[str, Any], gradients: tuple[list[float | None] | None, ...], share: float | None
) -> None:
    found = [each for each in find_symptoms(with_gradients(record, *gradients)) if each.key == "fading"]
    assert [each.figure for each in found] == ([] if share is None else [pytest.approx(share)])
    if share == 0.003:
        assert found[0].says == "the gradient fades on its way down: 3.0e-03 in layer 2, 1.0e+00 in layer 3"


@pytest.mark.parametrize(("depth", "says"), [(4, "the gradient fades on its way down"), (5, "no gradient reaches any layer")])
def test_a_deep_net_of_short_capsules_fades_and_one_of_kept_lengths_does_not(depth: int, says: str) -> None:
    images, targets = torch.rand(12, 1, 28, 28), torch.arange(12) % 10
    torch.manual_seed(0)
    deep = capsella.create_model("deep_capsnet", depth=depth, bias=False, channels=16, types=2, reconstruction="none")
    (before,) = [each for each in diagnose(deep, images, targets, views={}).symptoms if each.key == "fading"]
    capsella.nn.init.length_preserving_(deep, images)
    after = {symptom.key for symptom in diagnose(deep, images, targets, views={}).symptoms}
    assert before.says.startswith(says)
    assert "fading" not in after


def test_that_nothing_was_learned_is_said_before_all_else(record: dict[str, Any]) -> None:
    dead = {**record["layers"][-1], "cdr": 0.5, "cds": 5}
    sick = {**record, "accuracy": 0.1, "guess": 0.1, "layers": [*record["layers"][:-1], dead]}
    assert next(symptom.key for symptom in find_symptoms(sick)) == "guessing"
    assert in_words(sick, find_symptoms(sick)).splitlines()[2].startswith("it has learned nothing")


@pytest.mark.parametrize(("uniform", "rests"), [(0.3, True), (0.895, False)])
def test_uniform_routing_is_advised_last_where_the_answers_rest_on_couplings(
    record: dict[str, Any], uniform: float, rests: bool
) -> None:
    static = {**record["layers"][0], "dyr": 0.1, "dys": 1.0, "live_targets": 10, "entropy": 0.9, "routing": "agreement"}
    swaps = {"own": 0.9, "uniform": uniform, "other": 0.3, "images": 16}
    judged = {**record, "accuracy": 0.9, "guess": 0.2, "layers": [static, record["layers"][1]], "routing_matters": swaps}
    symptoms = find_symptoms(judged)
    (one,) = [symptom for symptom in symptoms if symptom.key == "static"]
    assert [each.startswith(UNIFORM) for each in one.tries].index(True) == (len(one.tries) - 1 if rests else 0)
    assert ("yet the answers rest on them" in in_words(judged, symptoms)) == rests
    assert ("idle" in {symptom.key for symptom in symptoms}) == (not rests)


def test_what_few_images_cannot_tell_is_said() -> None:
    few = small(FEW - 1)
    assert f"too few images to judge couplings, views and accuracy by: {FEW - 1}, where {FEW} are enough" in left_out(few)
    assert not [says for says in left_out(small(FEW)) if "too few" in says]
    assert in_words(small(1), []).startswith("72/10 capsules, 1 image, ")


def test_what_was_not_measured_is_said(record: dict[str, Any]) -> None:
    assert left_out(record) == ["not measured: views"]
    torch.manual_seed(0)
    unlabelled = diagnose(capsella.create_model("capsnet_small"), torch.rand(16, 1, 28, 28), views={"rotation": (10,)})
    assert left_out(unlabelled.record) == ["not measured: gradients, other couplings"]


class Foreign(nn.Module):
    """Somebody else's: the mean of six capsules, three times."""

    def forward(self, u: torch.Tensor) -> torch.Tensor:
        return u.mean(dim=1, keepdim=True).expand(-1, 3, -1)


def test_a_foreign_layer_without_couplings_is_not_called_free_of_symptoms() -> None:
    adapter = ForeignLayers({"0": lambda layer, inputs, output: seen_layer(inputs[0], output)})
    found = diagnose(nn.Sequential(Foreign()), torch.randn(16, 6, 4), adapter=adapter, views={})
    assert left_out(found.record) == ["not measured: couplings, negatives, gradients, other couplings, views"]
    assert found.is_healthy
    assert "no symptom was found in what was measured" in found.text()


def test_a_reader_that_tells_nothing_is_one_line() -> None:
    adapter = ForeignLayers({"0": lambda layer, inputs, output: None})  # type: ignore[arg-type,return-value]
    with pytest.raises(TypeError, match=r"readers\['0'\] returned a NoneType; expected what seen_layer returns"):
        diagnose(nn.Sequential(Foreign()), torch.randn(16, 6, 4), adapter=adapter)


def test_one_target_is_nothing_to_choose_among() -> None:
    class One(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = CapsuleLinear(6, 4, 1, 4)

        def forward(self, poses: torch.Tensor) -> torch.Tensor:
            return self.layer(poses).activations

    found = diagnose(One(), torch.randn(16, 6, 4))
    assert "layer 1: one target, among which there is nothing to choose" in found.text()


def test_what_routing_takes_is_said_as_a_span_over_the_layers(record: dict[str, Any]) -> None:
    def timed(seconds: float, memory: int) -> dict[str, Any]:
        cost = {"seconds": seconds, "attention_seconds": 2.0, "memory": memory, "attention_memory": 10}
        return {**record["layers"][0], "cost": cost}

    assert costs({**record, "layers": [timed(1.0, 5), timed(3.0, 5)]}) == [
        "cost of routing beside attention's: 0.5 to 1.5× of the time, 0.5× of the memory"
    ]
    assert costs({**record, "layers": [{**record["layers"][0], "cost": None}]}) == []


@pytest.mark.parametrize(("broken", "says"), [(1 / 400, "1 of 400 images"), (1.0, "400 of 400 images")])
def test_images_whose_activations_are_no_numbers_are_counted(record: dict[str, Any], broken: float, says: str) -> None:
    (one,) = find_symptoms({**record, "images": 400, "non_finite": broken})
    assert one.says == f"activations are no numbers in {says}; no other figure means anything"


def test_a_shift_by_one_pixel_is_one_pixel() -> None:
    net = capsella.create_model("capsnet_small")
    found = diagnose(net, torch.rand(12, 1, 28, 28), views={"translation": (1, 2)}).record["layers"][0]["viewpoint"]
    assert [row["says"] for row in found["translation"]] == ["shift by 1 pixel", "shift by 2 pixels"]


def test_starved_capsules_get_less_than_a_hundredth_of_the_mean() -> None:
    gradients = torch.tensor([4.0, 0.0, 0.01, 0.011])  # the mean is a little above 1
    assert starved_share(gradients) == 0.5
    # where nothing is reached, nobody is worse off than others.
    assert starved_share(torch.zeros(3)) == 0.0
