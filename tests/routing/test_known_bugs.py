"""Bugs that public capsule code has had, each with a check that passes here and fails on the bug itself."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from capsella import routing
from capsella.routing import Routed
from capsella.testing import Case, make_options, make_votes_input

CASE = Case("bugs", B=10, I=6, J=4, D=5, P=1)
Route = Callable[[Tensor], Routed]


def buggy(bug: str) -> Route:
    """Return three iterations of agreement with one classic mistake."""
    logits = torch.zeros(4, CASE.I, CASE.J, dtype=torch.float64)

    def route(votes: Tensor) -> Routed:
        b = logits if bug == "fixed batch size" else torch.zeros(votes.shape[:3], dtype=votes.dtype)
        for _ in range(3):
            c = b.softmax(dim=1 if bug == "softmax axis" else 2)
            s = torch.einsum("bij,bijd->bjd", c, votes)
            n = s.norm(dim=-1, keepdim=True)
            v = s / n * n**2 / (1 + n**2) if bug == "zero vectors" else s * n / (1 + n**2)
            step = torch.einsum("bijd,bjd->bij", votes, v)
            b = b + (step.mean(dim=0, keepdim=True) if bug == "shared couplings" else step)
        return Routed(v, v.norm(dim=-1), c)

    return route


def check_softmax_axis(route: Route) -> None:
    # a lower capsule shares itself out among the upper ones, not the other way round.
    couplings = route(make_votes_input(CASE)).couplings
    assert couplings is not None
    torch.testing.assert_close(couplings.sum(dim=2), torch.ones(CASE.B, CASE.I, dtype=torch.float64), rtol=1e-14, atol=0)


def check_couplings_per_sample(route: Route) -> None:
    votes = make_votes_input(CASE)
    together = route(votes).couplings
    assert together is not None
    for k in range(CASE.B):
        torch.testing.assert_close(together[k : k + 1], route(votes[k : k + 1]).couplings, rtol=1e-12, atol=1e-12)


def check_zero_vectors(route: Route) -> None:
    votes = make_votes_input(CASE)
    votes[0] = 0.0
    votes[1, :, 2] = 0.0
    votes.requires_grad_()
    result = route(votes)
    (gradient,) = torch.autograd.grad(result.poses.sum() + result.activations.sum(), votes)
    assert result.poses.isfinite().all()
    assert gradient.isfinite().all()


def check_partial_batch(route: Route) -> None:
    votes = make_votes_input(CASE)
    pieces = torch.cat([route(batch).poses for batch in votes.split(4)])  # 4, 4 and 2
    assert len(pieces) == CASE.B
    singles = torch.cat([route(batch).poses for batch in votes.split(1)])
    torch.testing.assert_close(pieces, singles, rtol=1e-12, atol=1e-12)


CHECKS = {
    "softmax axis": check_softmax_axis,
    "shared couplings": check_couplings_per_sample,
    "zero vectors": check_zero_vectors,
    "fixed batch size": check_partial_batch,
}


@pytest.mark.parametrize("bug", CHECKS)
def test_the_check_catches_the_bug(bug: str) -> None:
    CHECKS[bug](buggy("none"))
    with pytest.raises((AssertionError, RuntimeError)):
        CHECKS[bug](buggy(bug))


@pytest.mark.parametrize("bug", CHECKS)
def test_agreement_does_not_have_it(bug: str) -> None:
    CHECKS[bug](routing.agreement)


@pytest.mark.parametrize("name", routing.names())
def test_no_algorithm_yields_nan_at_zero_vectors(name: str) -> None:
    options = make_options(name, CASE)
    check_zero_vectors(lambda votes: getattr(routing, name)(votes, **options))
