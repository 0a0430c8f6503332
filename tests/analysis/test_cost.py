"""What routing costs beside attention: what can be counted is counted by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from analysis_nets import draw
from torch import Tensor

from capsella.analysis import routing_cost
from capsella.analysis.cost import HEAD
from capsella.nn import CapsuleLinear


def attention_parameters(d: int) -> int:
    # queries, keys and values, each d × d with a bias, and the projection of what comes out.
    return 3 * (d * d + d) + d * d + d


@pytest.mark.parametrize(
    ("options", "parameters"),
    [
        ({"bias": False}, 6 * 3 * 4 * 5),
        ({"bias": True}, 6 * 3 * 4 * 5 + 3 * 5),
        ({"bias": False, "prior": True}, 6 * 3 * 4 * 5 + 6 * 3),
        ({"bias": False, "shared": True}, 3 * 4 * 5),
        ({"bias": False, "routing": "trainable"}, 6 * 3 * 4 * 5 + 6 * 3),
        # beta_a and beta_u, one of each for an upper capsule.
        ({"bias": False, "routing": "em"}, 6 * 3 * 4 * 5 + 2 * 3),
    ],
    ids=str,
)
def test_parameters_by_hand(options: dict[str, Any], parameters: int) -> None:
    found = routing_cost(CapsuleLinear(6, 4, 3, 5, **options), torch.rand(2, 6, 4), repeats=1)
    assert found.parameters == parameters
    assert found.attention_parameters == attention_parameters(4) == 80


@pytest.mark.parametrize("width", [8, HEAD, 2 * HEAD])
def test_heads_take_no_parameters(width: int) -> None:
    found = routing_cost(CapsuleLinear(3, width, 2, 4), torch.rand(2, 3, width), repeats=1)
    assert found.attention_parameters == attention_parameters(width)


def test_the_paper_s_growth() -> None:
    # routing has n²·d² weights, attention d²: for twice as many capsules four times as many, and as many.
    few, many = (routing_cost(CapsuleLinear(n, 8, n, 8, bias=False), torch.rand(2, n, 8), repeats=1) for n in (4, 8))
    assert many.parameters == 4 * few.parameters == 8 * 8 * 8 * 8
    assert many.attention_parameters == few.attention_parameters


def test_times_and_memory_are_taken_and_nothing_is_changed() -> None:
    layer, poses = CapsuleLinear(6, 4, 3, 5).double(), draw(2, 6, 4)
    before = {name: value.clone() for name, value in layer.state_dict().items()}
    kept = torch.rand_like(layer.weight)
    layer.weight.grad = kept.clone()
    drawn = torch.get_rng_state()
    found = routing_cost(layer, poses, repeats=2)
    assert min(found.seconds, found.attention_seconds) > 0
    assert min(found.memory, found.attention_memory) > 0
    assert torch.equal(torch.get_rng_state(), drawn)
    assert isinstance(layer.weight.grad, Tensor)
    assert torch.equal(layer.weight.grad, kept)
    assert layer.bias is None or layer.bias.grad is None
    assert all(torch.equal(value, before[name]) for name, value in layer.state_dict().items())
    assert not poses.requires_grad


def test_more_images_keep_more() -> None:
    layer = CapsuleLinear(6, 4, 3, 5, routing="uniform")
    few, many = (routing_cost(layer, torch.rand(B, 6, 4), repeats=1) for B in (2, 64))
    assert many.attention_memory > 8 * few.attention_memory
    assert many.memory > few.memory
