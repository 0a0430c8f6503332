"""squash, length and direction: exact values, limits at zero, nothing infinite."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import pytest
import torch
from mpmath import mp, mpf
from torch import Tensor
from torch.autograd import gradcheck
from torch.fx.experimental.proxy_tensor import make_fx

from capsella.functional import direction, length, squash
from capsella.functional.squash import KINDS
from capsella.testing import generator

SIZES = (1e-20, 1e-12, 1e-8, 1e-4, 1e-2, 0.3, 1.0, 2.5, 10.0, 1e2, 1e4)
EPS64 = torch.finfo(torch.float64).eps


def unit(*shape: int, seed: int = 0) -> Tensor:
    x = torch.randn(*shape, generator=generator(seed), dtype=torch.float64)
    return x / x.norm(dim=-1, keepdim=True)


def exact(x: list[float], kind: str) -> list[float]:
    """Squash one vector with 60 digits, from the formula as printed."""
    with mp.workdps(60):
        values = [mpf(value) for value in x]
        n = mp.sqrt(mp.fsum(value * value for value in values))
        scale = {"sabour": n * n / (1 + n * n) / n, "exp": (1 - mp.exp(-n)) / n, "none": mpf(1)}[kind]
        return [float(value * scale) for value in values]


@pytest.mark.parametrize(("kind", "expected_length"), [("sabour", 25 / 26), ("exp", 1 - math.exp(-5)), ("none", 5.0)])
def test_a_vector_of_length_five_by_hand(kind: str, expected_length: float) -> None:
    result = squash(torch.tensor([3.0, -4.0], dtype=torch.float64), kind=kind)
    expected = torch.tensor([0.6, -0.8], dtype=torch.float64) * expected_length
    torch.testing.assert_close(result, expected, rtol=4 * EPS64, atol=0)


@pytest.mark.parametrize(("dim", "counted"), [(-1, 2), (2, 2), (-2, 1), (0, 0)])
def test_a_compiler_sees_the_axis_of_a_length_counted_from_the_front(dim: int, counted: int) -> None:
    x = unit(2, 3, 1)
    (norm,) = [node for node in make_fx(partial(length, dim=dim))(x).graph.nodes if "vector_norm" in str(node.target)]
    # torch 2.11's compiler keeps an axis of one value that is counted from the back.
    assert norm.args[2] == [counted]
    # the two round alike on some processors only.
    torch.testing.assert_close(length(x, dim=dim), x.square().sum(dim=dim).sqrt(), rtol=2 * EPS64, atol=0)


def test_sabour_is_the_default() -> None:
    x = unit(3, 4)
    assert torch.equal(squash(x), squash(x, kind="sabour"))
    assert not torch.allclose(squash(x), squash(x, kind="exp"))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", SIZES)
def test_squash_is_exact_in_float64(kind: str, size: float) -> None:
    x = unit(7, 6) * size
    expected = torch.tensor([exact(row, kind) for row in x.tolist()], dtype=torch.float64)
    torch.testing.assert_close(squash(x, kind=kind), expected, rtol=1e-15, atol=0)


@pytest.mark.parametrize("size", SIZES)
def test_the_jacobian_is_exact_in_float64(size: float) -> None:
    # J = g I + g'(n) n û ûᵀ, with g(n) = n/(1+n²) and (1−e^−n)/n.
    with mp.workdps(60):
        n = mpf(size)
        g = {"sabour": n / (1 + n * n), "exp": (1 - mp.exp(-n)) / n}
        bent = {"sabour": n * (1 - n * n) / (1 + n * n) ** 2, "exp": mp.exp(-n) - (1 - mp.exp(-n)) / n}
    u = unit(4)
    for kind in ("sabour", "exp"):
        jacobian = torch.autograd.functional.jacobian(lambda x, kind=kind: squash(x, kind=kind), u * size)
        expected = float(g[kind]) * torch.eye(4, dtype=torch.float64) + float(bent[kind]) * torch.outer(u, u)
        torch.testing.assert_close(jacobian, expected, rtol=0, atol=8 * EPS64 * float(g[kind]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize(("kind", "limit"), [("sabour", 0.0), ("exp", 1.0), ("none", 1.0)])
def test_the_gradient_at_zero_is_its_limit(kind: str, limit: float, dtype: torch.dtype) -> None:
    zero = torch.zeros(3, dtype=dtype)
    assert torch.equal(squash(zero, kind=kind), zero)
    jacobian = torch.autograd.functional.jacobian(lambda x: squash(x, kind=kind), zero)
    assert torch.equal(jacobian, limit * torch.eye(3, dtype=dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", [0.0, 1e-20, 1e4])
@pytest.mark.parametrize("name", [*KINDS, "length", "direction"])
def test_values_and_gradients_are_finite_in_every_dtype(name: str, size: float, dtype: torch.dtype) -> None:
    x = (unit(5, 8) * size).to(dtype).requires_grad_()
    function = {"length": length, "direction": direction}.get(name)
    y = function(x) if function else squash(x, kind=name)
    (gradient,) = torch.autograd.grad(y.sum(), x)
    assert y.dtype == gradient.dtype == dtype
    assert y.isfinite().all()
    assert gradient.isfinite().all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [1e-3, 1.0, 30.0])
def test_squash_passes_gradcheck(kind: str, size: float) -> None:
    # finite steps must be small against the length.
    x = (unit(3, 4) * size).requires_grad_()
    assert gradcheck(lambda x: squash(x, kind=kind), x, eps=1e-6 * size, atol=1e-8, rtol=1e-5)


def test_length_and_direction_pass_gradcheck() -> None:
    x = (unit(3, 4) * 2).requires_grad_()
    assert gradcheck(length, x, atol=1e-8)
    assert gradcheck(direction, x, atol=1e-8)


def test_length_and_direction_by_hand() -> None:
    x = torch.tensor([[3.0, 4.0], [0.0, 0.0], [0.0, -2.0]])
    assert length(x).tolist() == [5.0, 0.0, 2.0]
    assert torch.equal(direction(x), torch.tensor([[3.0 / 5.0, 4.0 / 5.0], [0.0, 0.0], [0.0, -1.0]]))


def test_length_has_gradient_zero_at_zero() -> None:
    zero = torch.zeros(2, 3, requires_grad=True)
    (gradient,) = torch.autograd.grad(length(zero).sum(), zero)
    assert torch.equal(gradient, torch.zeros(2, 3))


@pytest.mark.parametrize("size", [1e-20, 1e-8, 1.0, 1e4])
@pytest.mark.parametrize(("dtype", "rtol"), [(torch.float32, 1e-5), (torch.bfloat16, 2**-8), (torch.float64, 4 * EPS64)])
def test_a_direction_has_length_one_whatever_the_vector(size: float, dtype: torch.dtype, rtol: float) -> None:
    d = direction((unit(5, 8) * size).to(dtype)).double()
    torch.testing.assert_close(d.norm(dim=-1), torch.ones(5, dtype=torch.float64), rtol=rtol, atol=0)


@pytest.mark.parametrize("function", [squash, length, direction])
def test_dim_names_the_axis_of_a_capsule(function: Callable[..., Tensor]) -> None:
    x = torch.randn(2, 3, 4, dtype=torch.float64)
    moved = function(x.movedim(-1, 1), dim=1)
    expected = function(x)
    assert torch.equal(moved, expected if function is length else expected.movedim(-1, 1))


@pytest.mark.parametrize("kind", ["sabour", "exp"])
def test_squashed_vectors_keep_their_direction_and_stay_below_one(kind: str) -> None:
    u = unit(20, 5)
    v = squash(u * torch.logspace(-3, 1, 20, dtype=torch.float64)[:, None], kind=kind)
    torch.testing.assert_close(direction(v), u, rtol=0, atol=4 * EPS64)
    assert (length(v) < 1).all()
    assert (length(v).diff() > 0).all()


def test_half_precision_is_squashed_in_float32() -> None:
    x = (unit(50, 16) * 3).bfloat16()
    assert torch.equal(squash(x), squash(x.float()).bfloat16())
    assert torch.equal(length(x), length(x.float()).bfloat16())


def test_an_unknown_kind_names_the_near_match() -> None:
    with pytest.raises(ValueError, match=r"^kind='sabuor' is unknown; did you mean 'sabour'\?.*'exp', 'none', 'sabour'$"):
        squash(torch.ones(2), kind="sabuor")


@pytest.mark.parametrize("function", [squash, length, direction])
def test_integer_tensors_are_refused_in_one_line(function: Callable[..., Tensor]) -> None:
    with pytest.raises(TypeError, match=r"^x has dtype torch.int64; expected a floating-point tensor$"):
        function(torch.tensor([3, 4]))
