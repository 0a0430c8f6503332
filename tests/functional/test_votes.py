"""Votes against explicit loops, for vector and matrix poses, per-pair and shared weights."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck

from capsella.functional import make_votes

RTOL = 1e-14


def draw(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def test_two_values_by_hand() -> None:
    poses = torch.tensor([[[1.0, 2.0]]])
    weight = torch.tensor([[[[1.0, 0.0, -1.0], [10.0, 1.0, 0.5]], [[0.0, 0.0, 2.0], [0.0, 1.0, 0.0]]]])
    assert make_votes(poses, weight).tolist() == [[[[21.0, 2.0, 0.0], [0.0, 2.0, 2.0]]]]


@pytest.mark.parametrize("shared", [False, True], ids=["per-pair", "shared"])
def test_vector_votes_equal_explicit_loops(shared: bool) -> None:
    B, I, J, P, D = 2, 4, 3, 5, 6
    poses, weight = draw(B, I, P), draw(1 if shared else I, J, P, D)
    expected = torch.zeros(B, I, J, D, dtype=torch.float64)
    for b in range(B):
        for i in range(I):
            for j in range(J):
                for d in range(D):
                    for p in range(P):
                        expected[b, i, j, d] += poses[b, i, p] * weight[0 if shared else i, j, p, d]
    torch.testing.assert_close(make_votes(poses, weight), expected, rtol=RTOL, atol=RTOL)


@pytest.mark.parametrize("shared", [False, True], ids=["per-pair", "shared"])
@pytest.mark.parametrize(("R", "P", "D"), [(4, 4, 4), (2, 3, 5), (3, 1, 2)])
def test_matrix_votes_equal_matrix_products_from_the_right(R: int, P: int, D: int, shared: bool) -> None:
    B, I, J = 2, 3, 4
    poses, weight = draw(B, I, R * P), draw(1 if shared else I, J, P, D)
    votes = make_votes(poses, weight, rows=R)
    assert votes.shape == (B, I, J, R * D)
    for b in range(B):
        for i in range(I):
            for j in range(J):
                product = poses[b, i].reshape(R, P) @ weight[0 if shared else i, j]
                torch.testing.assert_close(votes[b, i, j].reshape(R, D), product, rtol=RTOL, atol=RTOL)


def test_a_shared_weight_equals_the_same_weight_for_every_lower_capsule() -> None:
    poses, weight = draw(2, 4, 6), draw(1, 3, 3, 5)
    for rows in (1, 2):
        w = weight if rows == 2 else draw(1, 3, 6, 5)
        torch.testing.assert_close(
            make_votes(poses, w, rows=rows), make_votes(poses, w.repeat(4, 1, 1, 1), rows=rows), rtol=RTOL, atol=RTOL
        )


@pytest.mark.parametrize(("sources", "rows"), [(3, 1), (1, 1), (3, 2), (1, 2)])
def test_votes_pass_gradcheck(sources: int, rows: int) -> None:
    poses, weight = draw(2, 3, 4).requires_grad_(), draw(sources, 2, 4 // rows, 2).requires_grad_()
    assert gradcheck(lambda u, w: make_votes(u, w, rows=rows), (poses, weight))


def test_votes_keep_the_dtype() -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        assert make_votes(torch.ones(1, 2, 3, dtype=dtype), torch.ones(2, 1, 3, 4, dtype=dtype)).dtype == dtype


def test_autocast_makes_votes_in_bfloat16() -> None:
    with torch.autocast("cpu", torch.bfloat16):
        votes = make_votes(torch.ones(1, 2, 3), torch.ones(2, 1, 3, 4))
    assert votes.dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("poses", "weight", "rows", "error", "message"),
    [
        (torch.ones(2, 3), torch.ones(3, 2, 3, 4), 1, ValueError, r"^poses has shape \[2, 3\]; expected \[B, I, P\]$"),
        (torch.ones(1, 3, 4), torch.ones(3, 4, 5), 1, ValueError, r"^weight has shape \[3, 4, 5\]; expected \[I, J, P, D\]$"),
        (torch.ones(1, 3, 4), torch.ones(2, 5, 4, 6), 1, ValueError, r"^weight has 2 lower capsules; expected I=3 .* 1 .*$"),
        (torch.ones(1, 3, 4), torch.ones(3, 5, 6, 6), 1, ValueError, r"^poses has pose size 4; expected 6 \(.*P=6.*\)$"),
        (torch.ones(1, 3, 4), torch.ones(3, 5, 4, 6), 2, ValueError, r"^poses has pose size 4; expected 8 \(rows=2.*\)$"),
        (torch.ones(1, 3, 4), torch.ones(3, 5, 4, 6), 0, ValueError, r"^rows=0 is too small; expected .* at least 1$"),
        (torch.ones(1, 3, 4), torch.ones(3, 5, 4, 6), 1.0, TypeError, r"^rows=1.0 has type float; expected an int .*$"),
        (torch.ones(1, 3, 4).long(), torch.ones(3, 5, 4, 6), 1, TypeError, r"^poses has dtype torch.int64; expected .*$"),
        (torch.ones(1, 3, 4), torch.ones(3, 5, 4, 6).int(), 1, TypeError, r"^weight has dtype torch.int32; expected .*$"),
        (torch.ones(1, 3, 4).double(), torch.ones(3, 5, 4, 6), 1, TypeError, r"^weight has .*32; expected .*64 as poses$"),
    ],
)
def test_wrong_arguments_are_named_in_one_line(
    poses: Tensor, weight: Tensor, rows: int, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        make_votes(poses, weight, rows=rows)
