"""Signed couplings: the forward pass, the objective against brute force, the step against autograd."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from routing_oracles import assert_agrees, oracle, squash
from torch import Tensor

from capsella import routing
from capsella.functional.squash import KINDS
from capsella.routing import quadratic, quadratic_objective, quadratic_step
from capsella.testing import SMALL, Case, make_options, make_votes_input

CASE = Case("classes", B=5, I=6, J=4, D=3, P=1)
INDICES = torch.tensor([0, 3, 3, 1, 2])
ROWS = torch.tensor([[1, 0, 0, 1], [0, 0, 0, 0], [1, 1, 1, 1], [0, 1, 0, 0], [0, 1, 1, 0]])
TARGETS = {"indices": INDICES, "multi-hot": ROWS}


def problem() -> tuple[Tensor, Tensor]:
    votes, couplings = make_votes_input(CASE), make_options("quadratic", CASE)["couplings"]
    couplings[1, 2] = couplings[4, 0] = 0.0
    return votes, couplings


def brute_force(votes: Tensor, b: Tensor, rows: Tensor, *, penalty: float, norm: str, on: str = "raw") -> list[float]:
    """Compute F_j sample by sample, value by value."""
    result = []
    for j in range(CASE.J):
        power = 0.0
        for k in range(CASE.B):
            v = [sum(float(b[i, j]) * float(votes[k, i, j, d]) for i in range(CASE.I)) for d in range(CASE.D)]
            v = squash(v, "sabour") if on == "squashed" else v
            power += (1 if rows[k, j] else -1) * sum(x * x for x in v)
        column = [float(b[i, j]) for i in range(CASE.I)]
        result.append(power - penalty * sum(abs(x) if norm == "l1" else x * x for x in column))
    return result


def test_forward_by_hand() -> None:
    # 2·3 − 1·4 = 2, squashed to 4/5.
    votes = torch.tensor([[[[3.0]], [[4.0]]]], dtype=torch.float64)
    result = quadratic(votes, couplings=torch.tensor([[2.0], [-1.0]], dtype=torch.float64))
    assert result.poses.item() == pytest.approx(0.8, rel=1e-14)


def test_objective_and_step_by_hand() -> None:
    # one pair of capsules, votes 3 (target) and 1 (not): F = 9b² − b² − λ b², so F' = 16b − 2λb.
    votes, b, rows = torch.tensor([[[[3.0]]], [[[1.0]]]]), torch.full((1, 1), 2.0), torch.tensor([[1], [0]])
    assert quadratic_objective(votes, b, rows, penalty=0.5).tolist() == [30.0]
    assert quadratic_step(votes, b, rows, rate=0.25, penalty=0.5).tolist() == [[2.0 + 0.25 * (32.0 - 2.0)]]
    assert quadratic_step(votes, b, rows, rate=0.25, penalty=0.5, norm="l1").tolist() == [[2.0 + 0.25 * (32.0 - 0.5)]]
    printed = quadratic_step(votes, b, rows, rate=0.25, penalty=0.5, norm="l1", l1_factor=2)
    assert printed.tolist() == [[2.0 + 2 * 0.25 * (16.0 - 0.5)]]


@pytest.mark.parametrize("case", SMALL, ids=lambda case: case.name)
def test_every_option_agrees_with_the_independent_computation(case: Case) -> None:
    votes = make_votes_input(case)
    for optional, kind in itertools.product((False, True), KINDS):
        options = {"squash": kind, **make_options("quadratic", case, optional=optional)}
        assert_agrees(quadratic(votes, trace=True, **options), oracle("quadratic", votes, options))


@pytest.mark.parametrize("targets", TARGETS)
@pytest.mark.parametrize("norm", ["l1", "l2"])
@pytest.mark.parametrize("on", ["raw", "squashed"])
def test_the_objective_equals_brute_force(targets: str, norm: str, on: str) -> None:
    votes, b = problem()
    rows = torch.eye(CASE.J)[INDICES] if targets == "indices" else ROWS
    result = quadratic_objective(votes, b, TARGETS[targets], penalty=0.3, norm=norm, on=on)
    assert result.tolist() == pytest.approx(brute_force(votes, b, rows, penalty=0.3, norm=norm, on=on), rel=1e-9)


@pytest.mark.parametrize("targets", TARGETS)
@pytest.mark.parametrize("norm", ["l1", "l2"])
def test_the_step_is_the_gradient_of_the_summed_objective(targets: str, norm: str) -> None:
    # two couplings are exactly zero: there the L1 penalty pulls neither way.
    votes, b = problem()
    leaf = b.clone().requires_grad_()
    objective = quadratic_objective(votes, leaf, TARGETS[targets], penalty=0.3, norm=norm).sum()
    (gradient,) = torch.autograd.grad(objective, leaf)
    step = quadratic_step(votes, b, TARGETS[targets], rate=0.01, penalty=0.3, norm=norm)
    torch.testing.assert_close(step, b + 0.01 * gradient, rtol=1e-12, atol=1e-13)


def test_sign_of_zero_is_zero_in_the_l1_step() -> None:
    votes, b = problem()
    for factor in (1, 2):
        options: dict[str, Any] = {"rate": 0.01, "norm": "l1", "l1_factor": factor}
        free, held = (quadratic_step(votes, b, INDICES, penalty=penalty, **options) for penalty in (0.0, 0.3))
        torch.testing.assert_close(held - free, -0.01 * 0.3 * factor * b.sign(), rtol=1e-12, atol=1e-15)
        assert held[1, 2] == free[1, 2]


def test_the_printed_l1_step() -> None:
    # b_j + 2γ(Σ_k δ_jk U_k U_kᵀ b_j − λ sign b_j), with U_k the I×D votes of sample k for class j.
    votes, b = problem()
    rows = torch.eye(CASE.J, dtype=torch.float64)[INDICES]
    expected = b.clone()
    for j in range(CASE.J):
        pull = sum((2 * rows[k, j] - 1) * votes[k, :, j] @ votes[k, :, j].T @ b[:, j] for k in range(CASE.B))
        expected[:, j] += 2 * 0.01 * (pull - 0.3 * b[:, j].sign())
    step = quadratic_step(votes, b, INDICES, rate=0.01, penalty=0.3, norm="l1", l1_factor=2)
    torch.testing.assert_close(step, expected, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("norm", ["l1", "l2"])
def test_a_small_step_climbs(norm: str) -> None:
    votes, b = problem()
    after = quadratic_step(votes, b, INDICES, rate=1e-4, penalty=0.3, norm=norm)
    before, then = (quadratic_objective(votes, x, INDICES, penalty=0.3, norm=norm) for x in (b, after))
    assert (then > before).all()


def test_the_step_records_nothing_and_changes_nothing() -> None:
    votes, b = problem()
    leaves = [votes.requires_grad_(), torch.nn.Parameter(b)]
    copies = [leaf.detach().clone() for leaf in leaves]
    step = quadratic_step(*leaves, INDICES, rate=0.1, penalty=0.1)
    assert not step.requires_grad
    assert step.grad_fn is None
    assert torch.is_grad_enabled()
    for leaf, copy in zip(leaves, copies, strict=True):
        assert torch.equal(leaf, copy)
        assert leaf.grad is None


def test_the_objective_is_a_sum_over_the_batch() -> None:
    votes, b = problem()
    once = quadratic_objective(votes, b, INDICES, penalty=0.0)
    twice = quadratic_objective(votes.repeat(2, 1, 1, 1), b, INDICES.repeat(2), penalty=0.0)
    torch.testing.assert_close(twice, 2 * once, rtol=1e-13, atol=0)


def test_couplings_start_at_one() -> None:
    assert torch.equal(routing.get("quadratic").init(3, 2, 4)["couplings"], torch.ones(3, 2))


@pytest.mark.parametrize("function", [quadratic_objective, quadratic_step])
@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"norm": "l3"}, ValueError, r"^norm='l3' is unknown.*'l1', 'l2'$"),
        ({"couplings": torch.ones(5, 6, 4)}, ValueError, r"^couplings has shape \[5, 6, 4\]; expected \[I=6, J=4\]$"),
        ({"couplings": torch.ones(6, 4).long()}, TypeError, r"^couplings has dtype torch.int64; expected .*$"),
        ({"votes": torch.ones(6, 4, 3)}, ValueError, r"^votes has shape \[6, 4, 3\]; expected \[B, I, J, D\]$"),
        ({"targets": torch.tensor([0, 1])}, ValueError, r"^targets has shape \[2\]; expected .*B=5.*$"),
        ({"targets": INDICES + 1}, ValueError, r"^targets has class 4; expected classes from 0 to 3$"),
        ({"targets": ROWS[:, :3]}, ValueError, r"^targets has shape \[5, 3\]; expected .*J=4.*$"),
    ],
)
def test_mistakes_are_named_in_one_line(
    function: Callable[..., Tensor], changes: dict[str, Any], error: type[Exception], message: str
) -> None:
    votes, couplings = problem()
    options = {"votes": votes, "couplings": couplings, "targets": INDICES, "penalty": 0.1}
    if function is quadratic_step:
        options["rate"] = 0.1
    with pytest.raises(error, match=message):
        function(**(options | changes))


def test_an_unknown_kind_of_capsule_is_named() -> None:
    with pytest.raises(ValueError, match=r"^on='squash' is unknown; did you mean 'squashed'\?.*$"):
        quadratic_objective(*problem(), INDICES, penalty=0.1, on="squash")
