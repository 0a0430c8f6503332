"""The negation gap: zero for what cannot tell x from −x, and only for that; per layer too."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from analysis_nets import Stack, draw, randomised, uneven
from torch import Tensor

from capsella import create_model
from capsella.analysis import NegationGap, negated, negation_gap
from capsella.models import CapsuleNet, Prediction
from capsella.nn import CapsuleLinear

KINDS: dict[str, dict[str, Any]] = {
    "agreement": {"routing": "agreement"},
    "agreement with a prior": {"routing": "agreement", "prior": True, "squash": "exp"},
    "em": {"routing": "em", "inverse_temperature": 0.5, "eps": 1e-2},
}


def stack(kind: str, *bias: bool) -> Stack:
    sizes = (6, 5, 3)
    return randomised(Stack(*(CapsuleLinear(sizes[k], 4, sizes[k + 1], 4, bias=b, **KINDS[kind]) for k, b in enumerate(bias))))


def test_three_numbers_by_hand() -> None:
    # relu(x) − relu(−x) = x, and |x| is even.
    x = torch.tensor([[1.0, -2.5, 0.0]])
    assert negation_gap(torch.relu, x) == 2.5
    assert negation_gap(torch.abs, x) == 0
    assert negation_gap(lambda x: 3 * x, x) == 15


def test_the_gap_agrees_with_numpy() -> None:
    x = draw(7, 4)

    def scores(x: Any) -> Any:
        return x**3 + x**2 - 0.1 * x

    there, back = scores(x.numpy()), scores(-x.numpy())
    assert negation_gap(scores, x) == pytest.approx(np.abs(there - back).max(), rel=1e-6)


def test_a_prediction_s_scores_are_compared() -> None:
    assert negation_gap(lambda x: Prediction(x, capsules=x[..., None]), torch.tensor([[1.0, -2.0]])) == 4


@pytest.mark.parametrize("kind", KINDS)
def test_without_bias_there_is_no_gap(kind: str) -> None:
    assert negation_gap(stack(kind, False, False), draw(9, 6, 4)) == 0


@pytest.mark.parametrize("kind", KINDS)
def test_with_bias_there_is_a_gap(kind: str) -> None:
    assert negation_gap(stack(kind, True, True), draw(9, 6, 4)) > 1e-3


@pytest.mark.parametrize("bias", [False, True])
def test_the_sign_net_tells_signs_apart_only_with_a_bias(bias: bool) -> None:
    model = create_model("sign_capsnet", bias=bias)
    assert isinstance(model, CapsuleNet)
    gap = negation_gap(model.from_primary, torch.linspace(0.1, 1, 5)[:, None, None])
    assert gap > 1e-3 if bias else gap == 0


def test_a_net_is_asked_through_its_primary_capsules() -> None:
    model = create_model("capsnet_small", bias=False).eval()
    assert isinstance(model, CapsuleNet)
    images = torch.rand(3, 1, 28, 28)
    assert negation_gap(model.from_primary, model.capsules(images)[0]) == pytest.approx(0, abs=1e-6)
    # the trunk is not odd, so that the images themselves say nothing.
    assert negation_gap(model, images) > 1e-4


def test_the_streamed_gap_is_that_of_all_samples_at_once() -> None:
    model, x = stack("agreement", True, True), draw(11, 6, 4)
    streamed = NegationGap(model)
    gaps = []
    for batch in uneven(x):
        streamed.update(batch)
        gaps.append(negation_gap(model, batch))
    assert streamed.compute() == pytest.approx(negation_gap(model, x), rel=1e-6)
    assert streamed.compute() == max(gaps) > min(gaps)


def test_an_empty_batch_has_no_gap() -> None:
    assert negation_gap(torch.relu, torch.rand(0, 3)) == 0
    assert NegationGap(torch.relu).compute() == 0


def test_bfloat16_capsules_have_the_gap_of_their_scores() -> None:
    assert negation_gap(torch.relu, torch.tensor([1.0, -2.5]).bfloat16()) == 2.5


def test_one_sample_has_a_gap() -> None:
    assert negation_gap(stack("agreement", True, True), draw(1, 6, 4)) > 1e-3


def test_a_gap_that_is_not_a_number_is_not_hidden() -> None:
    assert math.isnan(negation_gap(lambda x: x * math.nan, torch.ones(2)))


def test_a_streamed_gap_that_is_not_a_number_is_not_hidden() -> None:
    streamed = NegationGap(lambda x: x * math.nan)
    streamed.update(torch.ones(2))
    assert math.isnan(streamed.compute())


def test_a_small_gap_of_float64_scores_is_not_rounded_away() -> None:
    assert negation_gap(lambda x: 1 + 1e-9 * x, torch.ones(2).double()) == pytest.approx(2e-9, rel=1e-6)


@pytest.mark.parametrize("x", [torch.ones(2, dtype=torch.long), [1.0], None])
def test_what_cannot_be_negated_is_named(x: Any) -> None:
    with pytest.raises(TypeError, match=r"^x has"):
        negation_gap(torch.relu, x)


def test_scores_of_a_wrong_type_are_refused() -> None:
    with pytest.raises(TypeError, match="expected a Prediction or a tensor"):
        negation_gap(lambda x: [x], torch.ones(2))


@pytest.mark.parametrize("kind", KINDS)
def test_layers_without_bias_answer_alike(kind: str) -> None:
    there, back = negated(stack(kind, False, False), draw(9, 6, 4))
    assert [tuple(layer.shape) for layer in there] == [(9, 5), (9, 3)]
    for before, after in zip(there, back, strict=True):
        assert torch.equal(before, after)


def test_the_first_layer_with_a_bias_is_the_first_that_tells_signs_apart() -> None:
    there, back = negated(stack("agreement", False, True), draw(9, 6, 4))
    assert torch.equal(there[0], back[0])
    assert (there[1] - back[1]).abs().max() > 1e-3


def test_only_the_lowest_layer_s_capsules_are_negated() -> None:
    model, x = stack("agreement", True, True), draw(9, 6, 4)
    there, back = negated(model, x)
    for found, primary in ((there, x), (back, -x)):
        below: Any = primary
        for layer, activations in zip(model.layers, found, strict=True):
            below = layer(below)
            torch.testing.assert_close(activations, below.activations.detach(), rtol=1e-12, atol=0)
            assert not activations.requires_grad


@pytest.mark.parametrize("name", ["capsnet_small", "em_capsnet"])
def test_layers_of_a_net_are_those_that_it_routes(name: str) -> None:
    model = create_model(name).eval()
    images = torch.rand(2, 1, 28, 28)
    there, _ = negated(model, images)
    for activations, result in zip(there, model.routed(images), strict=True):
        torch.testing.assert_close(activations, result.activations.detach(), rtol=1e-5, atol=1e-6)
    assert all("_route" not in layer.__dict__ for layer in model.modules())


def test_convolutions_without_bias_answer_alike() -> None:
    there, back = negated(create_model("em_capsnet", bias=False).eval(), torch.rand(2, 1, 28, 28))
    for before, after in zip(there, back, strict=True):
        torch.testing.assert_close(before, after, rtol=1e-5, atol=1e-6)


def test_input_is_left_as_it_was() -> None:
    x = draw(9, 6, 4)
    before: Tensor = x.clone()
    negated(stack("agreement", True), x)
    negation_gap(stack("agreement", True), x)
    assert torch.equal(x, before)
