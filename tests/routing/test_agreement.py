"""Routing by agreement: worked examples, and every option against the independent computation."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from routing_oracles import assert_agrees, oracle

from capsella.functional.squash import KINDS
from capsella.routing import agreement
from capsella.testing import SMALL, Case, make_options, make_votes_input

# two lower capsules that both vote 1 for the first upper capsule and 0 for the second.
UNANIMOUS = torch.tensor([[[[1.0], [0.0]], [[1.0], [0.0]]]], dtype=torch.float64)


def logistic(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def test_two_iterations_by_hand() -> None:
    # s = ½·1 + ½·1 = 1, v = ½; b = (½, 0), c = logistic(½) = 0.6225; s = 1.2449, v = s²/(1+s²) = 0.6078.
    result = agreement(UNANIMOUS, num_iters=2, trace=True)
    c = logistic(0.5)
    s = 2 * c
    assert result.trace is not None
    torch.testing.assert_close(result.trace[0], torch.full((1, 2, 2), 0.5, dtype=torch.float64))
    torch.testing.assert_close(result.trace[1], torch.tensor([[[c, 1 - c]] * 2], dtype=torch.float64))
    torch.testing.assert_close(result.poses, torch.tensor([[[s**2 / (1 + s**2)], [0.0]]], dtype=torch.float64))
    torch.testing.assert_close(result.activations, result.poses.squeeze(-1))
    assert result.poses[0, 0].item() == pytest.approx(0.6078, abs=5e-5)


def test_three_iterations_without_a_squash_by_hand() -> None:
    # b = 0, 1, 1 + 2·logistic(1): the logits add up.
    second = 2 * logistic(1.0)
    result = agreement(UNANIMOUS, num_iters=3, squash="none")
    assert result.poses[0, 0].item() == pytest.approx(2 * logistic(1.0 + second), rel=1e-14)


def test_prior_and_bias_by_hand() -> None:
    # the prior splits 3 : 1; the bias is added to the sum, not to the votes.
    prior = torch.tensor([[math.log(3.0), 0.0]] * 2, dtype=torch.float64)
    bias = torch.tensor([[0.5], [-1.0]], dtype=torch.float64)
    result = agreement(UNANIMOUS, num_iters=1, prior=prior, bias=bias, squash="none")
    torch.testing.assert_close(result.couplings, torch.tensor([[[0.75, 0.25]] * 2], dtype=torch.float64))
    assert result.poses.flatten().tolist() == pytest.approx([2.0, -1.0], rel=1e-14)
    assert result.activations.flatten().tolist() == pytest.approx([2.0, 1.0], rel=1e-14)


def test_the_prior_is_where_the_logits_start_not_a_term_of_every_iteration() -> None:
    prior = torch.tensor([[1.0, 0.0]] * 2, dtype=torch.float64)
    result = agreement(UNANIMOUS, num_iters=2, prior=prior, squash="none")
    assert result.couplings is not None
    assert result.couplings[0, 0, 0].item() == pytest.approx(logistic(1.0 + 2 * logistic(1.0)), rel=1e-14)


def test_over_the_sources_by_hand() -> None:
    # votes 1 and 0 for the first, 2 and 0 for the second, no squash. Means: ½ and 1; logits ½, 0 and 2, 0.
    votes = torch.tensor([[[[1.0], [2.0]], [[0.0], [0.0]]]], dtype=torch.float64)
    first, second = logistic(0.5), logistic(2.0)
    result = agreement(votes, num_iters=2, normalise="sources", squash="none", trace=True)
    assert result.trace is not None
    torch.testing.assert_close(result.trace[0], torch.full((1, 2, 2), 0.5, dtype=torch.float64))
    expected = torch.tensor([[[first, second], [1 - first, 1 - second]]], dtype=torch.float64)
    torch.testing.assert_close(result.trace[1], expected)
    torch.testing.assert_close(result.poses, torch.tensor([[[first], [2 * second]]], dtype=torch.float64))


def test_a_prior_over_the_sources_by_hand() -> None:
    # the first capsule reads its lower ones 3 : 1, and the second 1 : 1 wherever its logits start.
    votes = torch.tensor([[[[4.0], [4.0]], [[0.0], [0.0]]]], dtype=torch.float64)
    prior = torch.tensor([[math.log(3.0), 7.0], [0.0, 7.0]], dtype=torch.float64)
    result = agreement(votes, num_iters=1, normalise="sources", prior=prior, squash="none")
    torch.testing.assert_close(result.couplings, torch.tensor([[[0.75, 0.5], [0.25, 0.5]]], dtype=torch.float64))
    assert result.poses.flatten().tolist() == pytest.approx([3.0, 2.0], rel=1e-14)


@pytest.mark.parametrize("normalise", ["targets", "sources"])
def test_what_is_added_to_all_logits_of_a_softmax_changes_nothing(normalise: str) -> None:
    case = SMALL[1]
    votes, prior = make_votes_input(case), make_options("agreement", case, optional=True)["prior"]
    shift = torch.randn(case.I, case.J, dtype=torch.float64)
    shift = shift[:, :1] if normalise == "targets" else shift[:1]
    plain, moved = (agreement(votes, normalise=normalise, prior=each) for each in (prior, prior + shift))
    torch.testing.assert_close(moved.poses, plain.poses, rtol=1e-12, atol=1e-13)
    other = agreement(votes, normalise="sources" if normalise == "targets" else "targets", prior=prior + shift)
    assert not torch.allclose(other.poses, plain.poses)


def test_over_the_sources_a_capsule_does_not_see_the_votes_for_others() -> None:
    votes = make_votes_input(SMALL[0])
    changed = votes.clone()
    changed[:, :, 1:] = 3 * changed[:, :, 1:] + 1
    mean, changed_mean = (agreement(each, normalise="sources").poses for each in (votes, changed))
    assert torch.equal(mean[:, 0], changed_mean[:, 0])
    shares, changed_shares = (agreement(each).poses for each in (votes, changed))
    assert not torch.allclose(shares[:, 0], changed_shares[:, 0])


@pytest.mark.parametrize("scale", [0.1, 1.0, 100.0])
def test_over_the_sources_no_capsule_is_longer_than_the_longest_vote_for_it(scale: float) -> None:
    case = SMALL[1]
    votes = make_votes_input(case, scale=scale)
    longest = votes.norm(dim=-1).amax(dim=1)
    assert (agreement(votes, normalise="sources", squash="none").activations <= longest * (1 + 1e-12)).all()
    # of shares the sum may be longer: 13 lower capsules divide themselves among 7.
    alike = torch.ones_like(votes) * scale
    assert (agreement(alike, squash="none").activations > alike.norm(dim=-1).amax(dim=1)).all()


def test_three_iterations_are_the_default() -> None:
    votes = make_votes_input(SMALL[0])
    assert torch.equal(agreement(votes).poses, agreement(votes, num_iters=3).poses)
    assert not torch.allclose(agreement(votes).poses, agreement(votes, num_iters=2).poses)


@pytest.mark.parametrize("case", SMALL, ids=lambda case: case.name)
@pytest.mark.parametrize("num_iters", [1, 2, 3, 4])
@pytest.mark.parametrize("normalise", ["targets", "sources"])
def test_every_option_agrees_with_the_independent_computation(case: Case, normalise: str, num_iters: int) -> None:
    votes, tensors = make_votes_input(case), make_options("agreement", case, optional=True)
    kept: list[tuple[str, ...]] = [(), ("bias",), ("prior",), ("bias", "prior")]
    for keys, squash in itertools.product(kept, KINDS):
        options: dict[str, Any] = {"num_iters": num_iters, "normalise": normalise, "squash": squash}
        options |= {key: tensors[key] for key in keys}
        assert_agrees(agreement(votes, trace=True, **options), oracle("agreement", votes, options))


@pytest.mark.parametrize("normalise", ["targets", "sources"])
def test_gradients_flow_through_the_couplings_of_all_iterations(normalise: str) -> None:
    votes = make_votes_input(SMALL[0]).requires_grad_()
    result = agreement(votes, normalise=normalise, trace=True)
    assert result.trace is not None
    assert not result.trace[0].requires_grad
    for couplings in result.trace[1:]:
        (gradient,) = torch.autograd.grad(couplings[:, 0, 0].sum(), votes, retain_graph=True)
        assert gradient.abs().max() > 1e-3
