"""Uniform routing: both normalisations."""

from __future__ import annotations

import itertools

import pytest
import torch
from routing_oracles import assert_agrees, oracle

from capsella.functional.squash import KINDS
from capsella.routing import uniform
from capsella.testing import SMALL, Case, make_options, make_votes_input


@pytest.mark.parametrize(("normalise", "sums"), [("targets", [3.0, 6.0]), ("sources", [2.0, 4.0])])
def test_three_votes_for_two_capsules_by_hand(normalise: str, sums: list[float]) -> None:
    # the votes add up to 6 and 12; halves (two targets) or thirds (three sources) of that.
    votes = torch.tensor([[[[1.0], [2.0]], [[2.0], [4.0]], [[3.0], [6.0]]]], dtype=torch.float64)
    result = uniform(votes, normalise=normalise, squash="none")
    torch.testing.assert_close(result.poses, torch.tensor([[[s] for s in sums]], dtype=torch.float64))
    squashed = uniform(votes, normalise=normalise, bias=torch.ones(2, 1, dtype=torch.float64))
    expected = torch.tensor([[(s + 1) ** 2 / (1 + (s + 1) ** 2) for s in sums]], dtype=torch.float64)
    torch.testing.assert_close(squashed.activations, expected)


def test_sources_take_the_mean_of_the_votes() -> None:
    votes = make_votes_input(SMALL[1])
    result = uniform(votes, normalise="sources", squash="none")
    torch.testing.assert_close(result.poses, votes.mean(dim=1), rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize(("normalise", "axis"), [("targets", 2), ("sources", 1)])
def test_couplings_are_equal_and_sum_to_one_over_what_is_named(normalise: str, axis: int) -> None:
    couplings = uniform(make_votes_input(SMALL[1]), normalise=normalise).couplings
    assert couplings is not None
    assert couplings.unique().numel() == 1
    torch.testing.assert_close(couplings.sum(dim=axis), torch.ones_like(couplings.sum(dim=axis)), rtol=1e-14, atol=0)


@pytest.mark.parametrize("case", SMALL, ids=lambda case: case.name)
@pytest.mark.parametrize("normalise", ["targets", "sources"])
def test_every_option_agrees_with_the_independent_computation(case: Case, normalise: str) -> None:
    votes = make_votes_input(case)
    for optional, squash in itertools.product((False, True), KINDS):
        options = {"normalise": normalise, "squash": squash, **make_options("uniform", case, optional=optional)}
        assert_agrees(uniform(votes, trace=True, **options), oracle("uniform", votes, options))
