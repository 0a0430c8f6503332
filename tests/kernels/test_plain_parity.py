"""Plain PyTorch without votes: the reference's values and gradients, at every option, in tiles of any size."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from kernel_cases import IN_PLAIN_PYTORCH as PLAIN
from kernel_cases import id_of
from torch import Tensor

from capsella import routing
from capsella.kernels import chunks, plain_tiles
from capsella.kernels.chunked_agreement import chunked_agreement, chunked_agreement_backward
from capsella.kernels.chunked_em import chunked_em, chunked_em_backward
from capsella.kernels.plain_agreement import tiled_agreement, tiled_agreement_backward
from capsella.kernels.plain_em import distance, distance_backward, moments, moments_backward
from capsella.kernels.plain_tiles import spans, squash_gradient
from capsella.routing import Implementation, Routed
from capsella.testing import SMALL, Case, check_parity, generator, make_options

ITERATED = [entry for entry in PLAIN if entry.name != "matmul"]

everything = pytest.mark.parametrize("entry", PLAIN, ids=id_of)
iterated = pytest.mark.parametrize("entry", ITERATED, ids=id_of)
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
    """Cut the small cases into tiles and chunks, too; and their samples into groups."""
    if request.param == "many tiles":
        monkeypatch.setattr(plain_tiles, "CPU_TILE", 100)
        monkeypatch.setattr(plain_tiles, "LEAST", 2)
        monkeypatch.setattr(chunks, "CHUNK", 100)
        monkeypatch.setattr(chunks, "_LONG", 6)
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


def compare(entry: Implementation, given: dict[str, Tensor], dtype: torch.dtype = torch.float64, **extra: Any) -> None:
    name = entry.algorithm
    check_parity(run_all(entry, name, **extra), run_all(None, name, **extra), given, dtype=dtype)


def test_every_algorithm_has_one() -> None:
    assert {entry.algorithm for entry in PLAIN} == set(routing.names())
    assert all(entry.op == "vote_and_route" for entry in PLAIN)


@pytest.mark.parametrize("case", SMALL, ids=lambda case: case.name)
@pytest.mark.parametrize(
    ("entry", "options"),
    [pytest.param(e, options, id=f"{id_of(e)} {options}") for e in PLAIN for name, options in OPTIONS if name == e.algorithm],
)
@pytest.mark.usefixtures("tiles")
def test_values_and_all_gradients_are_the_reference_s(entry: Implementation, options: dict[str, Any], case: Case) -> None:
    # of a pose of one value, a·μ/‖μ‖ keeps the sign alone: its bias has no gradient but rounding.
    optional = case.D > 1 or options.get("output") != "scaled"
    compare(entry, tensors(entry.algorithm, case, optional=optional), **options)


@pytest.mark.parametrize("J", [1, 16, 34, 37])
@pytest.mark.parametrize("entry", [entry for entry in PLAIN if entry.name == "chunked"], ids=id_of)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_upper_capsules_are_grouped_in_any_number(entry: Implementation, J: int, dtype: torch.dtype) -> None:
    # many lower capsules for each upper one: where a Gaussian is fitted to few votes, rounding decides.
    compare(entry, tensors(entry.algorithm, Case("uppers", B=3, I=8 * J + 20, J=J, D=3, P=4)), dtype)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("rows", [1, 2])
@everything
@pytest.mark.usefixtures("tiles")
def test_shared_weights_and_matrix_poses(entry: Implementation, rows: int, shared: bool) -> None:
    for case in (SMALL[0], SMALL[2]):
        compare(entry, tensors(entry.algorithm, case, shared=shared, rows=rows), rows=rows)
        compare(entry, tensors(entry.algorithm, case, shared=shared, rows=rows, optional=False), rows=rows)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shared", [False, True])
@everything
def test_narrow_dtypes_are_as_close_to_the_truth_as_the_reference(
    entry: Implementation, shared: bool, dtype: torch.dtype
) -> None:
    # many lower capsules, so that no single rounding decides.
    compare(entry, tensors(entry.algorithm, Case("many", B=4, I=150, J=5, D=8, P=6), shared=shared), dtype=dtype)


@everything
def test_half_precision_is_summed_in_float32(entry: Implementation) -> None:
    name = entry.algorithm
    given = tensors(name, Case("many", B=2, I=3000, J=2, D=3, P=2))
    if id_of(entry) == "agreement-chunked":
        # it rounds the votes, as the reference does, whose sums are wide.
        compare(entry, given, torch.bfloat16)
        return
    half = {key: value.bfloat16() for key, value in given.items()}
    wide = {key: value.float() for key, value in half.items()}
    narrow, exact = (run_all(entry, name)(**inputs) for inputs in (half, wide))
    for got, expected in zip(narrow, exact, strict=True):
        assert got.dtype == torch.bfloat16
        assert torch.equal(got, expected.bfloat16())


@iterated
def test_votes_of_any_size_stay_finite(entry: Implementation) -> None:
    given = tensors(entry.algorithm, SMALL[1])
    for scale in (0.0, 1e-20, 1e4):
        inputs = {**given, "poses": given["poses"] * scale}
        leaves = {key: value.float().requires_grad_() for key, value in inputs.items()}
        result = entry.run(**leaves)
        gradients = torch.autograd.grad(result.poses.sum(), list(leaves.values()), allow_unused=True)
        for tensor in (result.poses, result.activations, *(g for g in gradients if g is not None)):
            assert tensor.isfinite().all()


@everything
def test_only_what_is_asked_for_is_returned(entry: Implementation) -> None:
    given = {key: value.float() for key, value in tensors(entry.algorithm, SMALL[0]).items()}
    bare = entry.run(**given, need_couplings=False)
    assert (bare.couplings, bare.trace) == (None, None)
    full = entry.run(**given, trace=True)
    assert torch.equal(bare.poses, full.poses)
    assert full.trace is not None
    assert torch.equal(full.trace[-1], full.couplings)


@everything
def test_mistakes_are_the_reference_s(entry: Implementation) -> None:
    name = entry.algorithm
    given = tensors(name, SMALL[0])
    wrong: list[dict[str, Any]] = [{"bias": torch.zeros(2, 3, dtype=torch.float64)}]
    wrong += [{"squash": "sabor"}] if name != "em" else [{"eps": -1.0}, {"output": "men"}, {"inverse_temperature": (1.0,)}]
    poses, weight = given.pop("poses"), given.pop("weight")
    for options in wrong:
        messages = []
        for run in (entry.run, partial(routing.vote_and_route, name, impl="reference")):
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
    yield from chunked_operators()


def chunked_operators() -> Iterator[tuple[Any, tuple[Any, ...]]]:
    u, w = torch.randn(6, 3, 4, requires_grad=True), torch.randn(6, 4, 10, requires_grad=True)
    prior, bias = torch.randn(6, 2, requires_grad=True), torch.randn(2, 5, requires_grad=True)
    yield chunked_agreement, (u, w, prior, bias, 2, 3, "sabour")
    yield chunked_agreement, (u, w, None, None, 2, 2, "none")
    _, history, sums = (tensor.detach() for tensor in chunked_agreement(u, w, prior, bias, 2, 3, "exp"))
    plain = u.detach(), w.detach(), prior.detach()
    yield chunked_agreement_backward, (torch.randn(3, 2, 5), torch.randn_like(history), *plain, history, sums, "exp")
    yield chunked_agreement_backward, (torch.randn(3, 2, 5), None, *plain[:2], None, history, sums, "exp")
    for sources in (6, 1):
        weight = torch.randn(sources, 4, 10, requires_grad=True)
        below, betas = torch.rand(3, 6).log().requires_grad_(), [torch.randn(2, requires_grad=True) for _ in range(2)]
        temperatures, options = [0.01, 0.02], (1e-4, 0.5, True)
        yield chunked_em, (u, weight, below, *betas, temperatures, *options)
        found = [tensor.detach() for tensor in chunked_em(u, weight, below, *betas, temperatures, *options)]
        still = [tensor.detach() for tensor in (u, weight, below, betas[1])]
        pulls = (torch.randn_like(found[0]), torch.randn_like(found[2]), torch.randn_like(found[3]))
        yield chunked_em_backward, (*pulls, *still, *found, temperatures, *options[1:])
        yield chunked_em_backward, (None, pulls[1], None, *still, *found, temperatures, *options[1:])


def test_operators_keep_torch_s_rules() -> None:
    checked = set()
    for operator, arguments in operators():
        torch.library.opcheck(operator, arguments)
        checked.add(operator._qualname)
    assert len(checked) == 10


@iterated
def test_differentiating_twice_is_refused_in_one_line(entry: Implementation) -> None:
    given = {key: value.requires_grad_() for key, value in tensors(entry.algorithm, SMALL[0]).items()}
    result: Routed = entry.run(**given)
    (gradient,) = torch.autograd.grad(result.poses.sum(), given["poses"], create_graph=True)
    with pytest.raises(RuntimeError, match=r"^this implementation cannot be differentiated twice; expected impl=.*$"):
        torch.autograd.grad(gradient.sum(), given["poses"])


def test_chunks_cover_every_sample_once_and_are_no_larger_than_they_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "CHUNK", 1000)
    for B in (0, 1, 7, 100, 999):
        for votes in (1, 9, 499, 501, 990, 1000, 5000):
            parts = list(chunks.chunks(B, votes))
            assert [b for part in parts for b in range(part.start, part.stop)] == list(range(B))
            assert all((part.stop - part.start) * votes <= max(1000, votes) for part in parts)


def test_tiles_cover_every_lower_capsule_once() -> None:
    for I in (1, 7, 1000, 1152):
        for B in (0, 1, 33, 100_000):
            covered = [i for start, stop in spans(B, I, 160, "cpu") for i in range(start, stop)]
            assert covered == list(range(I))
