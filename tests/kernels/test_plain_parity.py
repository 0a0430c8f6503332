"""Plain PyTorch without votes: the reference's values and gradients, at every option, in tiles of any size."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from capsella import routing
from capsella.kernels import plain_tiles
from capsella.kernels.plain_agreement import tiled_agreement, tiled_agreement_backward
from capsella.kernels.plain_em import distance, distance_backward, moments, moments_backward
from capsella.kernels.plain_tiles import spans, squash_gradient
from capsella.routing import Implementation, Routed
from capsella.routing.base import IMPLEMENTATIONS
from capsella.testing import SMALL, Case, check_parity, generator, make_options

PLAIN = {entry.algorithm: entry for entry in IMPLEMENTATIONS if entry.name in ("tiled", "matmul")}
everything = pytest.mark.parametrize("name", sorted(PLAIN))
OPTIONS: list[tuple[str, dict[str, Any]]] = [
    *(("agreement", {"num_iters": T}) for T in (1, 2, 3, 5)),
    *(("agreement", {"squash": kind}) for kind in ("exp", "none")),
    ("em", {}),
    ("em", {"num_iters": 1, "normaliser": "constant"}),
    ("em", routing.peer2022_options(2)),
    ("uniform", {"squash": "exp"}),
    ("uniform", {"normalise": "sources"}),
    ("trainable", {}),
    ("quadratic", {"squash": "none"}),
]


@pytest.fixture(params=["one tile", "many tiles"])
def tiles(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Cut the small cases into tiles, too; and their samples into groups."""
    if request.param == "many tiles":
        monkeypatch.setattr(plain_tiles, "CPU_TILE", 100)
        monkeypatch.setattr(plain_tiles, "LEAST", 2)
    return str(request.param)


def tensors(name: str, case: Case, *, shared: bool = False, rows: int = 1, optional: bool = True) -> dict[str, Tensor]:
    """Draw poses of R·P values, a weight that makes votes about as long as in a net, and what the algorithm takes."""
    rng = generator(3)
    poses = torch.randn(case.B, case.I, rows * case.P, generator=rng, dtype=torch.float64)
    weight = torch.randn(1 if shared else case.I, case.J, case.P, case.D, generator=rng, dtype=torch.float64)
    options = make_options(name, replace(case, D=rows * case.D), optional=optional)
    return {"poses": poses, "weight": weight * (case.P * case.D) ** -0.5, **options}


def run_all(entry: Implementation | None, name: str, **extra: Any) -> Callable[..., list[Tensor]]:
    """Return a function of named tensors that gives everything a result holds; the reference without an entry."""

    def run(poses: Tensor, weight: Tensor, rows: int = 1, **options: Tensor) -> list[Tensor]:
        options |= {"trace": True} | extra
        if entry is None:
            result = routing.vote_and_route(name, poses, weight, impl="reference", **options)
        else:
            result = entry.run(poses, weight, **options)
        assert result.couplings is not None
        assert result.trace is not None
        return [result.poses, result.activations, result.couplings, *result.trace]

    return run


def compare(name: str, given: dict[str, Tensor], dtype: torch.dtype = torch.float64, **extra: Any) -> None:
    check_parity(run_all(PLAIN[name], name, **extra), run_all(None, name, **extra), given, dtype=dtype)


def test_every_algorithm_has_one() -> None:
    assert sorted(PLAIN) == routing.names()
    assert all(entry.op == "vote_and_route" for entry in PLAIN.values())


@pytest.mark.parametrize("case", SMALL, ids=lambda case: case.name)
@pytest.mark.parametrize(("name", "options"), OPTIONS, ids=str)
@pytest.mark.usefixtures("tiles")
def test_values_and_all_gradients_are_the_reference_s(name: str, options: dict[str, Any], case: Case) -> None:
    # of a pose of one value, a·μ/‖μ‖ keeps the sign alone: its bias has no gradient but rounding.
    optional = case.D > 1 or options.get("output") != "scaled"
    compare(name, tensors(name, case, optional=optional), **options)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("rows", [1, 2])
@everything
@pytest.mark.usefixtures("tiles")
def test_shared_weights_and_matrix_poses(name: str, rows: int, shared: bool) -> None:
    for case in (SMALL[0], SMALL[2]):
        compare(name, tensors(name, case, shared=shared, rows=rows), rows=rows)
        compare(name, tensors(name, case, shared=shared, rows=rows, optional=False), rows=rows)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shared", [False, True])
@everything
def test_narrow_dtypes_are_as_close_to_the_truth_as_the_reference(name: str, shared: bool, dtype: torch.dtype) -> None:
    # many lower capsules, so that no single rounding decides.
    compare(name, tensors(name, Case("many", B=4, I=150, J=5, D=8, P=6), shared=shared), dtype=dtype)


@everything
def test_half_precision_is_summed_in_float32(name: str) -> None:
    given = tensors(name, Case("many", B=2, I=3000, J=2, D=3, P=2))
    half = {key: value.bfloat16() for key, value in given.items()}
    wide = {key: value.float() for key, value in half.items()}
    narrow, exact = (run_all(PLAIN[name], name)(**inputs) for inputs in (half, wide))
    for got, expected in zip(narrow, exact, strict=True):
        assert got.dtype == torch.bfloat16
        assert torch.equal(got, expected.bfloat16())


@pytest.mark.parametrize("name", ["agreement", "em"])
def test_votes_of_any_size_stay_finite(name: str) -> None:
    given = tensors(name, SMALL[1])
    for scale in (0.0, 1e-20, 1e4):
        inputs = {**given, "poses": given["poses"] * scale}
        leaves = {key: value.float().requires_grad_() for key, value in inputs.items()}
        result = PLAIN[name].run(**leaves)
        gradients = torch.autograd.grad(result.poses.sum(), list(leaves.values()), allow_unused=True)
        for tensor in (result.poses, result.activations, *(g for g in gradients if g is not None)):
            assert tensor.isfinite().all()


@everything
def test_only_what_is_asked_for_is_returned(name: str) -> None:
    given = {key: value.float() for key, value in tensors(name, SMALL[0]).items()}
    bare = PLAIN[name].run(**given, need_couplings=False)
    assert (bare.couplings, bare.trace) == (None, None)
    full = PLAIN[name].run(**given, trace=True)
    assert torch.equal(bare.poses, full.poses)
    assert full.trace is not None
    assert torch.equal(full.trace[-1], full.couplings)


@everything
def test_mistakes_are_the_reference_s(name: str) -> None:
    given = tensors(name, SMALL[0])
    wrong: list[dict[str, Any]] = [{"bias": torch.zeros(2, 3, dtype=torch.float64)}]
    wrong += [{"squash": "sabor"}] if name != "em" else [{"eps": -1.0}, {"output": "men"}, {"inverse_temperature": (1.0,)}]
    poses, weight = given.pop("poses"), given.pop("weight")
    for options in wrong:
        messages = []
        for run in (PLAIN[name].run, partial(routing.vote_and_route, name, impl="reference")):
            with pytest.raises(ValueError, match=next(iter(options))) as error:
                run(poses, weight, **{**given, **options})
            messages.append(str(error.value))
        assert messages[0] == messages[1]


@pytest.mark.parametrize("kind", ["sabour", "exp", "none"])
def test_the_squash_s_gradient_is_autograd_s(kind: str) -> None:
    from capsella.functional import squash

    x = torch.randn(7, 4, generator=generator(0), dtype=torch.float64)
    x[0], x[1], x[2] = 0, 1e-9, 1e3
    x.requires_grad_()
    back = torch.randn(7, 4, generator=generator(1), dtype=torch.float64)
    (expected,) = torch.autograd.grad(squash(x, kind=kind), x, back)
    torch.testing.assert_close(squash_gradient(x.detach(), back, kind), expected, rtol=1e-6, atol=1e-12)


def operators() -> Iterator[tuple[Any, tuple[Any, ...]]]:
    """Yield every operator with arguments to check it on."""
    u, w = torch.randn(3, 6, 4, requires_grad=True), torch.randn(6, 2, 4, 5, requires_grad=True)
    prior, bias = torch.randn(6, 2, requires_grad=True), torch.randn(2, 5, requires_grad=True)
    yield tiled_agreement, (u, w, prior, bias, 3, "sabour", 1)
    yield tiled_agreement, (u, w, None, None, 2, "none", 1)
    _, history, sums = (tensor.detach() for tensor in tiled_agreement(u, w, prior, bias, 3, "exp", 1))
    plain = u.detach(), w.detach(), prior.detach()
    yield tiled_agreement_backward, (torch.randn(3, 2, 5), torch.randn_like(history), *plain, history, sums, "exp", 1)
    yield tiled_agreement_backward, (torch.randn(3, 2, 5), None, *plain[:2], None, history, sums, "exp", 1)
    for sources in (6, 1):
        poses, weight = torch.randn(6, 3, 4, requires_grad=True), torch.randn(sources, 4, 10, requires_grad=True)
        weights = torch.rand(3, 2, 6).softmax(dim=-1).requires_grad_()
        mean, precision = torch.randn(3, 2, 5, requires_grad=True), torch.rand(3, 2, 5, requires_grad=True)
        yield moments, (poses, weight, weights)
        yield distance, (poses, weight, mean, precision)
        still = [tensor.detach() for tensor in (poses, weight, weights, mean, precision)]
        yield moments_backward, (mean.detach(), precision.detach(), *still[:4])
        yield distance_backward, (torch.randn(3, 2, 6), *still[:2], *still[3:])


def test_operators_keep_torch_s_rules() -> None:
    checked = set()
    for operator, arguments in operators():
        torch.library.opcheck(operator, arguments)
        checked.add(operator._qualname)
    assert len(checked) == 6


@pytest.mark.parametrize("name", ["agreement", "em"])
def test_differentiating_twice_is_refused_in_one_line(name: str) -> None:
    given = {key: value.requires_grad_() for key, value in tensors(name, SMALL[0]).items()}
    result: Routed = PLAIN[name].run(**given)
    (gradient,) = torch.autograd.grad(result.poses.sum(), given["poses"], create_graph=True)
    with pytest.raises(RuntimeError, match=r"^this implementation cannot be differentiated twice; expected impl=.*$"):
        torch.autograd.grad(gradient.sum(), given["poses"])


def test_tiles_cover_every_lower_capsule_once() -> None:
    for I in (1, 7, 1000, 1152):
        for B in (0, 1, 33, 100_000):
            covered = [i for start, stop in spans(B, I, 160, "cpu") for i in range(start, stop)]
            assert covered == list(range(I))
