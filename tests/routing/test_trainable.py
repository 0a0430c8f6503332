"""Trainable couplings: any sign, no normalisation, shared or not."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from routing_oracles import assert_agrees, oracle

from capsella import routing
from capsella.functional.squash import KINDS
from capsella.routing import trainable
from capsella.testing import SMALL, Case, make_options, make_votes_input


def test_two_votes_by_hand() -> None:
    # 2·3 − ½·4 = 4 and 0·1 + 1·(−2) = −2, squashed by 1 − e^−n.
    votes = torch.tensor([[[[3.0], [1.0]], [[4.0], [-2.0]]]], dtype=torch.float64)
    couplings = torch.tensor([[2.0, 0.0], [-0.5, 1.0]], dtype=torch.float64)
    assert trainable(votes, couplings=couplings, squash="none").poses.flatten().tolist() == [4.0, -2.0]
    result = trainable(votes, couplings=couplings)
    assert result.poses.flatten().tolist() == pytest.approx([1 - math.exp(-4), math.exp(-2) - 1], rel=1e-14)
    assert result.activations.flatten().tolist() == pytest.approx([1 - math.exp(-4), 1 - math.exp(-2)], rel=1e-14)
    assert torch.equal(result.couplings, couplings[None])


@pytest.mark.parametrize("case", SMALL, ids=lambda case: case.name)
def test_every_option_agrees_with_the_independent_computation(case: Case) -> None:
    votes = make_votes_input(case)
    for optional, squash in itertools.product((False, True), KINDS):
        options = {"squash": squash, **make_options("trainable", case, optional=optional)}
        assert_agrees(trainable(votes, trace=True, **options), oracle("trainable", votes, options))


@pytest.mark.parametrize("shape", [(6, 4), (1, 6, 4), (3, 6, 4), (3, 1, 4), (3, 6, 1), (6, 1), (1, 1, 1), (4,), ()])
def test_couplings_broadcast_to_the_batch(shape: tuple[int, ...]) -> None:
    case = SMALL[0]
    votes, couplings = make_votes_input(case), torch.randn(shape, dtype=torch.float64)
    result, full = trainable(votes, couplings=couplings), couplings.broadcast_to(case.B, case.I, case.J)
    assert torch.equal(result.couplings, full)
    for b in range(case.B):
        alone = trainable(votes[b : b + 1], couplings=full[b])
        torch.testing.assert_close(result.poses[b : b + 1], alone.poses, rtol=1e-13, atol=1e-14)


def test_couplings_start_in_the_released_code_s_range() -> None:
    bound = math.sqrt(3 / 300)
    start = routing.get("trainable").init(300, 20, 4)["couplings"]
    assert start.shape == (300, 20)
    assert start.abs().max() <= bound
    # 6000 uniform draws: their standard deviation is bound/√3 to within 5 %.
    assert start.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.05)
