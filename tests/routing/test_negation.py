"""peer2022: without a bias, agreement and EM cannot tell a capsule from its negative, whatever else is learned.

Negation is exact in floating point, so where the theorems say "equal" these tests ask for equal bits.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from capsella import routing
from capsella.functional.squash import KINDS
from capsella.nn import CapsuleLinear
from capsella.routing import Routed, agreement, em
from capsella.routing.base import NORMALISATIONS
from capsella.testing import generator

sizes = st.tuples(*[st.integers(1, 6)] * 4)
seeds = st.integers(0, 2**32 - 1)
scales = st.sampled_from([1e-6, 0.1, 1.0, 30.0])
betas = st.floats(-1e6, 1e6)


def draw(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=generator(seed), dtype=torch.float64)


def assert_negated(result: Routed, negated: Routed) -> None:
    assert result.trace is not None
    assert negated.trace is not None
    for before, after in zip(result.trace, negated.trace, strict=True):
        assert torch.equal(before, after)
    assert torch.equal(result.activations, negated.activations)
    assert torch.equal(result.poses, -negated.poses)


@given(
    size=sizes,
    seed=seeds,
    scale=scales,
    num_iters=st.integers(1, 4),
    normalise=st.sampled_from(NORMALISATIONS),
    squash=st.sampled_from(KINDS),
    prior=st.booleans(),
)
def test_agreement_couples_a_vote_and_its_negative_alike_in_every_iteration(
    size: tuple[int, ...], seed: int, scale: float, num_iters: int, normalise: str, squash: str, prior: bool
) -> None:
    votes = draw(seed, *size) * scale
    options: dict[str, Any] = {"num_iters": num_iters, "normalise": normalise, "squash": squash, "trace": True}
    options["prior"] = draw(seed + 1, *size[1:3]) if prior else None
    assert_negated(agreement(votes, **options), agreement(-votes, **options))


@given(
    size=sizes,
    seed=seeds,
    scale=scales,
    num_iters=st.integers(1, 4),
    beta=st.lists(betas, min_size=12, max_size=12),
    as_coded=st.booleans(),
)
def test_em_couples_a_vote_and_its_negative_alike_whatever_its_betas(
    size: tuple[int, ...], seed: int, scale: float, num_iters: int, beta: list[float], as_coded: bool
) -> None:
    B, I, J, _ = size
    options: dict[str, Any] = routing.peer2022_options(num_iters) if as_coded else {"num_iters": num_iters}
    options["activations"] = draw(seed + 1, B, I).sigmoid()
    options["beta_a"], options["beta_u"] = torch.tensor(beta[:J]).double(), torch.tensor(beta[6 : 6 + J]).double()
    votes = draw(seed, *size) * scale
    assert_negated(em(votes, trace=True, **options), em(-votes, trace=True, **options))


STACKS: dict[str, dict[str, Any]] = {
    "agreement": {"routing": "agreement"},
    "agreement with a prior": {"routing": "agreement", "prior": True, "squash": "exp"},
    "em": {"routing": "em", "inverse_temperature": 0.5, "eps": 1e-2},
    "em as coded": {"routing": "em", **routing.peer2022_options(), "inverse_temperature": 0.5},
}


def scores(stack: nn.ModuleList, x: Tensor) -> Tensor:
    below: Tensor | Routed = x
    for layer in stack:
        below = layer(below)
    assert isinstance(below, Routed)
    return below.activations


def build(seed: int, kind: str, *, bias: bool, capsules: tuple[int, ...] = (6, 5, 4, 3)) -> nn.ModuleList:
    """Stack capsule layers with everything learned drawn at random; biases are near 0.5."""
    stack = nn.ModuleList(
        CapsuleLinear(lower, 4, upper, 4, bias=bias, **STACKS[kind]) for lower, upper in itertools.pairwise(capsules)
    ).double()
    with torch.no_grad():
        for k, (name, parameter) in enumerate(stack.named_parameters()):
            parameter.copy_(draw(seed + k, *parameter.shape) * 0.3 + (0.5 if name.endswith("bias") else 0.0))
    return stack


@pytest.mark.parametrize("kind", STACKS)
@given(seed=seeds)
def test_scores_of_a_stack_without_bias_are_equal_under_negation(kind: str, seed: int) -> None:
    stack, x = build(seed, kind, bias=False), draw(seed, 5, 6, 4)
    assert torch.equal(scores(stack, x), scores(stack, -x))
    # equal because of the symmetry, not because nothing depends on x.
    assert not torch.allclose(scores(stack, x), scores(stack, x.roll(1, dims=0)), rtol=1e-6)


@pytest.mark.parametrize("kind", STACKS)
@given(seed=seeds)
def test_scores_of_a_stack_with_bias_differ_under_negation(kind: str, seed: int) -> None:
    stack, x = build(seed, kind, bias=True), draw(seed, 5, 6, 4)
    assert (scores(stack, x) - scores(stack, -x)).abs().max() > 1e-6


@given(seed=seeds)
def test_one_biased_em_layer_breaks_the_symmetry_of_poses_but_not_of_scores(seed: int) -> None:
    # a bias shifts all votes for a capsule alike: spread and scores stay, the means move; the next layer sees that.
    (layer,) = build(seed, "em", bias=True, capsules=(6, 3))
    x = draw(seed, 5, 6, 4)
    result, negated = layer(x), layer(-x)
    torch.testing.assert_close(result.activations, negated.activations, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(result.poses + negated.poses, (2 * layer.bias).expand(5, 3, 4), rtol=1e-9, atol=1e-9)
    assert (result.poses + negated.poses).abs().max() > 1e-2
