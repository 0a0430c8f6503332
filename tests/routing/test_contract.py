"""What every registered algorithm must do; registering one enrols it here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from routing_oracles import ORACLES, assert_agrees, oracle
from torch import Tensor
from torch.autograd import gradcheck

from capsella import routing
from capsella.functional import make_votes
from capsella.functional.squash import KINDS
from capsella.routing import Routed
from capsella.testing import SMALL, Case, make_options, make_votes_input

# the axes of every tensor that any algorithm takes beside the votes, and every other option; what is missing is untested.
AXES = {"bias": "JD", "prior": "IJ", "couplings": "IJ", "beta_a": "J", "beta_u": "J", "activations": "BI"}
OTHERS = {"num_iters", "squash", "trace", "need_couplings", "normalise"}
OTHERS |= {"inverse_temperature", "eps", "cost_log", "normaliser", "output"}

PLAIN = SMALL[0]
TINY = Case("tiny", B=2, I=4, J=3, D=2, P=2)
HALF_AND_SINGLE = [torch.float32, torch.bfloat16]
# every algorithm, and once more over the other axis where it has both.
WAYS: list[tuple[str, dict[str, Any]]] = [(name, {}) for name in routing.names()]
WAYS += [(name, {"normalise": "sources"}) for name in routing.names() if "normalise" in routing.get(name).options]
everything = pytest.mark.parametrize(("name", "way"), WAYS, ids=["-".join([name, *way.values()]) for name, way in WAYS])


def route(name: str, votes: Tensor, **options: Any) -> Routed:
    result = getattr(routing, name)(votes, **options)
    assert isinstance(result, Routed)
    return result


def parts(result: Routed) -> list[Tensor]:
    """List everything a result holds, ready for comparison or for a gradient."""
    assert result.couplings is not None
    return [result.poses, result.activations, result.couplings, *(result.trace or ())]


def close(result: Routed, expected: Routed, rounding: float = 1e-12) -> None:
    for a, b in zip(parts(result), parts(expected), strict=True):
        torch.testing.assert_close(a, b, rtol=rounding, atol=rounding)


def take(tensors: dict[str, Any], axis: str, index: Tensor) -> dict[str, Any]:
    """Select from every tensor that has ``axis``."""
    return {
        key: value.index_select(AXES[key].index(axis), index) if axis in AXES.get(key, "") else value
        for key, value in tensors.items()
    }


def uncovered(names: list[str]) -> list[str]:
    """List the algorithms that lack a public function, a test file, an independent computation or a known option."""
    here = Path(__file__).parent
    return [
        name
        for name in names
        if not hasattr(routing, name)
        or name not in ORACLES
        or not (here / f"test_{name}.py").exists()
        or set(routing.get(name).options) - set(AXES) - OTHERS
    ]


def test_every_registered_algorithm_is_covered() -> None:
    assert {"agreement", "em", "quadratic", "trainable", "uniform"} <= set(routing.names())
    assert uncovered(routing.names()) == []


@pytest.mark.usefixtures("registry")
def test_an_algorithm_without_tests_of_its_own_is_noticed() -> None:
    routing.register("newcomer", paper="none")(lambda votes, *, sharpness=1.0: Routed(votes[:, 0], votes[:, 0, :, 0]))
    assert uncovered(routing.names()) == ["newcomer"]


@everything
@pytest.mark.parametrize("optional", [False, True], ids=["bare", "all-tensors"])
@pytest.mark.parametrize("case", SMALL, ids=lambda case: case.name)
def test_it_agrees_with_an_independent_computation(name: str, way: dict[str, Any], case: Case, optional: bool) -> None:
    votes, options = make_votes_input(case), make_options(name, case, optional=optional) | way
    assert_agrees(route(name, votes, trace=True, **options), oracle(name, votes, options))


@everything
@pytest.mark.parametrize("dtype", [*HALF_AND_SINGLE, torch.float64])
def test_shapes_follow_the_letters_and_the_dtype_is_kept(name: str, way: dict[str, Any], dtype: torch.dtype) -> None:
    for case in SMALL:
        options = make_options(name, case, dtype=dtype, optional=True) | way
        result = route(name, make_votes_input(case, dtype=dtype), trace=True, **options)
        assert result.poses.shape == (case.B, case.J, case.D)
        assert result.activations.shape == (case.B, case.J)
        assert {part.shape for part in parts(result)[2:]} == {(case.B, case.I, case.J)}
        assert {part.dtype for part in parts(result)} == {dtype}


@everything
@pytest.mark.parametrize("optional", [False, True], ids=["bare", "all-tensors"])
@pytest.mark.parametrize("dtype", HALF_AND_SINGLE)
@pytest.mark.parametrize("scale", [0.0, 1e-20, 1e4])
def test_values_and_gradients_are_finite(
    name: str, way: dict[str, Any], scale: float, dtype: torch.dtype, optional: bool
) -> None:
    entry = routing.get(name)
    variants: list[dict[str, Any]] = [{"squash": kind} for kind in KINDS] if "squash" in entry.options else [{}]
    if "output" in entry.options:
        variants.append(dict(routing.peer2022_options()))
    for variant in variants:
        for strength in (1.0, 0.0, 1e-20, 1e4) if entry.needs_activations else (1.0,):
            tensors = {"votes": make_votes_input(PLAIN, dtype=dtype, scale=scale)}
            tensors |= make_options(name, PLAIN, dtype=dtype, optional=optional)
            if entry.needs_activations:
                tensors["activations"] = (tensors["activations"].double() * strength).to(dtype)
            tensors = {key: value.requires_grad_() for key, value in tensors.items()}
            outputs = parts(route(name, **tensors, **variant, **way, trace=True))
            total = torch.stack([part.float().sum() for part in outputs]).sum()
            gradients = torch.autograd.grad(total, list(tensors.values()), allow_unused=True)
            assert all(part.isfinite().all() for part in outputs), (variant, strength)
            for key, gradient in zip(tensors, gradients, strict=True):
                assert gradient is not None, key
                assert gradient.isfinite().all(), (key, variant, strength)


@everything
@pytest.mark.parametrize("dtype", [*HALF_AND_SINGLE, torch.float64])
@pytest.mark.parametrize("scale", [0.0, 1.0, 1e4])
def test_couplings_sum_to_one_over_what_they_say(name: str, way: dict[str, Any], dtype: torch.dtype, scale: float) -> None:
    over = "I" if way.get("normalise") == "sources" else "J"
    for case in SMALL:
        votes = make_votes_input(case, dtype=dtype, scale=scale)
        result = route(name, votes, trace=True, **make_options(name, case, dtype=dtype, optional=True), **way)
        sums = torch.stack(parts(result)[2:]).double().sum(dim="BIJ".index(over) - 3)
        if routing.get(name).normalised:
            # each entry is rounded once to its dtype; the sums behind them are float32 at least.
            assert (sums - 1).abs().max() <= 4 * torch.finfo(dtype).eps
        else:
            assert (sums - 1).abs().max() > 0.01


@everything
@pytest.mark.parametrize("axis", ["I", "J"])
def test_it_is_equivariant_under_permutations(name: str, way: dict[str, Any], axis: str) -> None:
    case = SMALL[1]
    order = torch.randperm(getattr(case, axis))
    votes, options = make_votes_input(case), make_options(name, case, optional=True) | way
    result = route(name, votes, trace=True, **options)
    moved = route(name, votes.index_select("BIJD".index(axis), order), trace=True, **take(options, axis, order))
    layouts = ["BJD", "BJ", *["BIJ"] * (1 + len(result.trace or ()))]
    for layout, before, after in zip(layouts, parts(result), parts(moved), strict=True):
        expected = before.index_select(layout.index(axis), order) if axis in layout else before
        torch.testing.assert_close(after, expected, rtol=1e-12, atol=1e-12)


@everything
@pytest.mark.parametrize("size", [1, 4, 10])
def test_ten_samples_in_batches_give_what_they_give_at_once(name: str, way: dict[str, Any], size: int) -> None:
    # 4 leaves a last, partial batch of 2: nothing may depend on it being full, and nothing may be lost.
    case = Case("ten", B=10, I=6, J=4, D=5, P=1)
    votes, options = make_votes_input(case), make_options(name, case, optional=True) | way
    pieces = [
        parts(route(name, votes[chunk], trace=True, **take(options, "B", chunk))) for chunk in torch.arange(10).split(size)
    ]
    whole = parts(route(name, votes, trace=True, **options))
    for k, expected in enumerate(whole):
        torch.testing.assert_close(torch.cat([piece[k] for piece in pieces]), expected, rtol=1e-12, atol=1e-12)


@everything
def test_a_sample_does_not_see_its_neighbours(name: str, way: dict[str, Any]) -> None:
    votes, options = make_votes_input(PLAIN), make_options(name, PLAIN, optional=True) | way
    other = votes.clone()
    other[1:] = 7 * other[1:] + 1
    before, after = route(name, votes, trace=True, **options), route(name, other, trace=True, **options)
    for a, b in zip(parts(before), parts(after), strict=True):
        torch.testing.assert_close(a[0], b[0], rtol=1e-12, atol=1e-12)
    assert not torch.allclose(before.poses[1:], after.poses[1:])


@everything
@pytest.mark.parametrize("optional", [False, True], ids=["bare", "all-tensors"])
def test_gradients_of_votes_and_every_tensor_option_pass_gradcheck(name: str, way: dict[str, Any], optional: bool) -> None:
    tensors = {"votes": make_votes_input(TINY), **make_options(name, TINY, optional=optional)}
    entry = routing.get(name)
    assert set(tensors) == {"votes", *(k for k in AXES if k in entry.options and (optional or k not in ("bias", "prior")))}
    # a temperature at which EM's activations move by more than a finite difference can resolve.
    extra = {"inverse_temperature": 0.3, "eps": 0.1} if "inverse_temperature" in entry.options else {}

    def outputs(*values: Tensor) -> tuple[Tensor, ...]:
        return tuple(parts(route(name, **dict(zip(tensors, values, strict=True)), **extra, **way)))

    leaves = [value.requires_grad_() for value in tensors.values()]
    assert gradcheck(outputs, leaves, atol=1e-8, rtol=1e-5)


@everything
def test_the_trace_has_one_entry_per_iteration_and_ends_with_the_couplings(name: str, way: dict[str, Any]) -> None:
    votes, options = make_votes_input(PLAIN), make_options(name, PLAIN) | way
    assert route(name, votes, **options).trace is None
    for iterations in (1, 2, 4) if routing.get(name).is_iterative else (1,):
        count = {"num_iters": iterations} if routing.get(name).is_iterative else {}
        result = route(name, votes, trace=True, **options, **count)
        assert result.trace is not None
        assert len(result.trace) == iterations
        assert torch.equal(result.trace[-1], parts(result)[2])


@everything
def test_couplings_that_are_not_needed_are_not_returned(name: str, way: dict[str, Any]) -> None:
    votes, options = make_votes_input(PLAIN), make_options(name, PLAIN, optional=True) | way
    bare, full = route(name, votes, need_couplings=False, **options), route(name, votes, **options)
    assert bare.couplings is None
    assert bare.trace is None
    assert torch.equal(bare.poses, full.poses)
    assert torch.equal(bare.activations, full.activations)


@everything
def test_half_precision_votes_are_summed_in_float32(name: str, way: dict[str, Any]) -> None:
    case = Case("many", B=2, I=300, J=5, D=4, P=1)
    votes = make_votes_input(case, dtype=torch.bfloat16)
    options = make_options(name, case, dtype=torch.float32, optional=True) | way
    half, single = route(name, votes, **options), route(name, votes.float(), **options)
    for a, b in zip(parts(half), parts(single), strict=True):
        assert torch.equal(a, b.bfloat16())


@everything
@pytest.mark.parametrize(("sources", "rows"), [(6, 1), (1, 1), (6, 2), (1, 2)])
def test_vote_and_route_equals_votes_then_routing(name: str, way: dict[str, Any], sources: int, rows: int) -> None:
    case = Case("matrix", B=3, I=6, J=4, D=6, P=4)
    poses = torch.randn(case.B, case.I, case.P, dtype=torch.float64)
    weight = torch.randn(sources, case.J, case.P // rows, case.D // rows, dtype=torch.float64)
    options = make_options(name, case, optional=True) | way
    expected = route(name, make_votes(poses, weight, rows=rows), trace=True, **options)
    # whoever runs by default may add up in another order.
    for impl, rounding in (("reference", 0.0), ("auto", 1e-12)):
        result = routing.vote_and_route(name, poses, weight, rows=rows, trace=True, impl=impl, **options)
        close(result, expected, rounding=rounding)


@pytest.mark.parametrize("normalise", ["targets", "sources"])
def test_one_iteration_of_agreement_without_a_prior_equals_uniform(normalise: str) -> None:
    for case in SMALL:
        for bias in (None, torch.randn(case.J, case.D, dtype=torch.float64)):
            for squash in KINDS:
                votes, options = make_votes_input(case), {"normalise": normalise, "bias": bias, "squash": squash}
                close(route("agreement", votes, num_iters=1, **options), route("uniform", votes, **options), rounding=1e-15)
