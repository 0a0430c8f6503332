"""EM routing: worked examples, every option against the independent computation, peer2022's code as written."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from routing_oracles import assert_agrees, norm, oracle
from torch import Tensor

from capsella.routing import em, peer2022_options
from capsella.testing import SMALL, Case, make_options, make_votes_input

VARIANTS: list[dict[str, Any]] = [
    {},
    {"cost_log": "variance", "inverse_temperature": 0.2},
    {"inverse_temperature": 0.3},
    {"inverse_temperature": (0.1, 0.2, 0.4, 0.8)},
    {"eps": 1e-2},
    {"normaliser": "constant"},
    {"output": "scaled", "inverse_temperature": 0.2},
]


def double(*values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def logistic(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def test_one_gaussian_by_hand() -> None:
    # weights 1 : 3 on votes 0 and 4: μ = 3, σ² = ¼·9 + ¾·1 = 3, Σr = 4, cost = 4(½ + ½ log 3).
    result = em(
        double([[[0.0]], [[4.0]]]), double([1.0, 3.0]), beta_a=double(5.0), beta_u=double(0.5), inverse_temperature=0.5, eps=0.0
    )
    assert result.poses.item() == pytest.approx(3.0, rel=1e-14)
    assert result.activations.item() == pytest.approx(logistic(0.5 * (5 - 4 * (0.5 + 0.5 * math.log(3)))), rel=1e-14)
    assert torch.equal(result.couplings, torch.ones(1, 2, 1, dtype=torch.float64))


@pytest.mark.parametrize(("normaliser", "share"), [("gaussian", 2 / 3), ("constant", 1 / 2)])
def test_two_gaussians_by_hand(normaliser: str, share: float) -> None:
    # (0, 2) -> μ 1, σ² 1 and (0, 4) -> μ 2, σ² 4: all votes are one σ away, so densities differ by 1/σ alone; at λ = 0
    # both activations are ½ and R = (2/3, 1/3). A second M-step changes nothing, since both lower capsules agree on R.
    votes = double([[[0.0], [0.0]], [[2.0], [4.0]]])
    result = em(
        votes,
        double([1.0, 1.0]),
        beta_a=double(0.0, 0.0),
        beta_u=double(0.0, 0.0),
        num_iters=2,
        inverse_temperature=0.0,
        eps=0.0,
        normaliser=normaliser,
        trace=True,
    )
    assert result.trace is not None
    torch.testing.assert_close(result.trace[0], torch.full((1, 2, 2), 0.5, dtype=torch.float64))
    torch.testing.assert_close(result.trace[1], double([[share, 1 - share]] * 2))
    torch.testing.assert_close(result.poses, double([[1.0], [2.0]]))
    torch.testing.assert_close(result.activations, double([0.5, 0.5]))


def test_the_bias_moves_the_votes_and_so_the_means() -> None:
    case = SMALL[0]
    votes, options = make_votes_input(case), make_options("em", case, optional=True)
    bias = options.pop("bias")
    plain, moved = em(votes, **options, trace=True), em(votes, bias=bias, **options, trace=True)
    torch.testing.assert_close(moved.poses, plain.poses + bias, rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(em(votes + bias, **options, trace=True).trace, moved.trace, rtol=0, atol=0)


@pytest.mark.parametrize("case", SMALL, ids=lambda case: case.name)
@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: ",".join(variant) or "plain")
def test_every_option_agrees_with_the_independent_computation(case: Case, variant: dict[str, Any]) -> None:
    votes = make_votes_input(case)
    for optional, num_iters in itertools.product((False, True), (1, 2, 3, 4)):
        options = {"num_iters": num_iters, **variant, **make_options("em", case, optional=optional)}
        if isinstance(options.get("inverse_temperature"), tuple):
            options["inverse_temperature"] = options["inverse_temperature"][:num_iters]
        assert_agrees(em(votes, trace=True, **options), oracle("em", votes, options))


@pytest.mark.parametrize("case", SMALL, ids=lambda case: case.name)
@pytest.mark.parametrize("num_iters", [1, 3])
def test_the_peer2022_options_together_agree_too(case: Case, num_iters: int) -> None:
    votes = make_votes_input(case)
    for optional in (False, True):
        options = {**peer2022_options(num_iters), **make_options("em", case, optional=optional)}
        assert_agrees(em(votes, trace=True, **options), oracle("em", votes, options))


@pytest.mark.parametrize("variant", VARIANTS[1:], ids=lambda variant: ",".join(variant))
def test_every_option_makes_a_difference(variant: dict[str, Any]) -> None:
    votes, options = make_votes_input(SMALL[0]), make_options("em", SMALL[0])
    base: dict[str, Any] = {"inverse_temperature": 0.2, "num_iters": 4}
    one, two = em(votes, **options, **base), em(votes, **options, **(base | variant))
    same_poses = torch.allclose(one.poses, two.poses, rtol=1e-6)
    same_activations = torch.allclose(one.activations, two.activations, rtol=1e-6)
    assert not (same_poses and same_activations)


def test_peer2022_options_are_the_published_code_s() -> None:
    options = peer2022_options()
    assert options.pop("inverse_temperature") == pytest.approx((5.0e-4, 9.75e-4, 1.42625e-3), rel=1e-12)
    assert options == {"num_iters": 3, "eps": 1e-4, "cost_log": "variance", "normaliser": "constant", "output": "scaled"}


def peer2022_code(V: Any, a: list[float], beta_a: list[float], beta_u: list[float]) -> tuple[Any, list[float]]:
    """One sample as the published code computes it, additive epsilons included."""
    e, I, J, D = 1e-8, len(V), len(V[0]), len(V[0][0])
    V = [[[x + e for x in vote] for vote in row] for row in V]
    R = [[1 / J] * J for _ in range(I)]
    for t in (1, 2, 3):
        mu, var, above = [], [], []
        for j in range(J):
            r = [R[i][j] * a[i] for i in range(I)]
            S = sum(r)
            mu.append([sum(r[i] * V[i][j][h] for i in range(I)) / (S + e) for h in range(D)])
            var.append([sum(r[i] * (V[i][j][h] - mu[j][h]) ** 2 for i in range(I)) / (S + e) + 1e-4 for h in range(D)])
            cost = sum((beta_u[j] + math.log(x)) * S for x in var[j])
            above.append(logistic(0.01 * (1 - 0.95**t) * (beta_a[j] - cost)))
        p = [
            [
                above[j]
                * math.exp(-sum((V[i][j][h] - mu[j][h]) ** 2 / (2 * var[j][h] + e) for h in range(D)))
                / (math.sqrt(2 * math.pi * math.prod(var[j]) + e) + e)
                for j in range(J)
            ]
            for i in range(I)
        ]
        R = [[x / (sum(row) + e) for x in row] for row in p]
    return [[above[j] * x / (norm([y + e for y in mu[j]]) + e) for x in mu[j]] for j in range(J)], above


def test_peer2022_options_reproduce_the_published_code_up_to_its_epsilons() -> None:
    # variances near 0.01 in 10 values: their product is 1e-20, so the code's normaliser is the constant 1e-4, and its
    # additive 1e-8 moves results by 1e-8/0.01 times the few units that an exponent has.
    case = Case("peer2022", B=2, I=6, J=4, D=10, P=1)
    votes, options = make_votes_input(case, scale=0.1), make_options("em", case)
    result = em(votes, **options, **peer2022_options())
    below = options.pop("activations").tolist()
    for b in range(case.B):
        poses, above = peer2022_code(votes[b].tolist(), below[b], **{key: value.tolist() for key, value in options.items()})
        torch.testing.assert_close(result.poses[b], double(*poses), rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(result.activations[b], double(*above), rtol=1e-5, atol=0)


def test_an_inactive_lower_capsule_has_no_vote() -> None:
    case = SMALL[0]
    votes, options = make_votes_input(case), make_options("em", case)
    for inactive in (0.0, -1.0):
        options["activations"][:, 2] = inactive
        changed = votes.clone()
        changed[:, 2] = 5.0
        before, after = em(votes, **options), em(changed, **options)
        torch.testing.assert_close(after.poses, before.poses, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(after.activations, before.activations, rtol=1e-12, atol=1e-12)


def test_without_any_active_lower_capsule_all_count_alike_and_cost_nothing() -> None:
    case = SMALL[0]
    votes, options = make_votes_input(case), make_options("em", case)
    options["activations"].zero_()
    result = em(votes, **options, num_iters=1, inverse_temperature=0.7)
    torch.testing.assert_close(result.poses, votes.mean(dim=1), rtol=1e-12, atol=1e-13)
    expected = (0.7 * options["beta_a"]).sigmoid().expand(case.B, case.J)
    torch.testing.assert_close(result.activations, expected, rtol=1e-14, atol=0)


def test_activations_can_be_given_by_position_or_by_name() -> None:
    votes, options = make_votes_input(SMALL[0]), make_options("em", SMALL[0])
    by_name = em(votes, **options)
    activations = options.pop("activations")
    assert torch.equal(em(votes, activations, **options).poses, by_name.poses)
