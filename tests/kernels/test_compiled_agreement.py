"""Agreement by a library that the system's compiler builds: the reference's values and gradients, on any number of threads."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from capsella import routing
from capsella.kernels import compiled_agreement
from capsella.kernels.compiled_agreement import agreement_cpu, agreement_cpu_backward
from capsella.kernels.compiler import find_compiler
from capsella.routing import Routed, UnsupportedCall
from capsella.routing.dispatch import choices
from capsella.testing import SMALL, Case, check_parity, generator, make_options

# by themselves: sizes that fill no block, no tile of pose values and no chunk of lower capsules, and several of each.
ODD = (
    Case("full-blocks", B=32, I=70, J=3, D=16, P=8),
    Case("many-tiles", B=17, I=41, J=5, D=27, P=13),
    Case("many-chunks", B=3, I=600, J=4, D=8, P=4),
    Case("wide-poses", B=16, I=9, J=10, D=12, P=17),
)
LARGE = Case("large", B=20, I=240, J=10, D=16, P=8)

pytestmark = pytest.mark.skipif(not find_compiler(), reason="there is no C++ compiler")


@pytest.fixture
def threads() -> Iterator[Callable[[int], None]]:
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def tensors(case: Case, *, optional: bool = True, dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
    """Draw poses, a weight that makes votes about as long as in a net, and with ``optional`` a bias and a prior."""
    rng = generator(3)
    poses = torch.randn(case.B, case.I, case.P, generator=rng, dtype=torch.float64)
    weight = torch.randn(case.I, case.J, case.P, case.D, generator=rng, dtype=torch.float64) * (case.P * case.D) ** -0.5
    return {"poses": poses.to(dtype), "weight": weight.to(dtype)} | make_options(
        "agreement", case, optional=optional, dtype=dtype
    )


def everything(result: Routed) -> list[Tensor]:
    assert result.couplings is not None
    assert result.trace is not None
    return [result.poses, result.activations, result.couplings, *result.trace]


def compare(given: dict[str, Tensor], **extra: Any) -> None:
    def candidate(poses: Tensor, weight: Tensor, **options: Tensor) -> list[Tensor]:
        return everything(compiled_agreement.agreement(poses, weight, **options, trace=True, **extra))

    def reference(poses: Tensor, weight: Tensor, **options: Tensor) -> list[Tensor]:
        return everything(routing.vote_and_route("agreement", poses, weight, impl="reference", trace=True, **options, **extra))

    check_parity(candidate, reference, given, dtype=torch.float32)


def results(given: dict[str, Tensor]) -> list[Tensor]:
    leaves = {name: tensor.float().requires_grad_() for name, tensor in given.items()}
    poses = compiled_agreement.agreement(**leaves).poses
    pull = torch.linspace(0.5, 1.5, poses.numel()).reshape(poses.shape)
    return [poses, *torch.autograd.grad(poses, list(leaves.values()), pull)]


@pytest.mark.parametrize("case", [*SMALL, *ODD], ids=lambda case: case.name)
@pytest.mark.parametrize("optional", [False, True])
def test_values_and_gradients_are_the_reference_s_at_every_size(case: Case, optional: bool) -> None:
    compare(tensors(case, optional=optional))


@pytest.mark.parametrize("num_iters", [2, 4])
@pytest.mark.parametrize("squash", ["sabour", "exp", "none"])
def test_values_and_gradients_are_the_reference_s_at_every_option(num_iters: int, squash: str) -> None:
    for case in SMALL:
        compare(tensors(case), num_iters=num_iters, squash=squash)


def test_results_depend_neither_on_the_number_of_threads_nor_on_the_run(threads: Callable[[int], None]) -> None:
    given, found = tensors(LARGE), []
    for count in (1, 2, 3, 3):
        threads(count)
        found.append(results(given))
    for other in found[1:]:
        assert all(torch.equal(mine, theirs) for mine, theirs in zip(found[0], other, strict=True))


def test_a_zero_capsule_and_a_zero_weight_have_finite_gradients() -> None:
    for squash in ("sabour", "exp", "none"):
        poses, weight = torch.zeros(2, 8, 4, requires_grad=True), torch.zeros(8, 3, 4, 5, requires_grad=True)
        result = compiled_agreement.agreement(poses, weight, squash=squash).poses
        assert not result.any()
        assert all(gradient.isfinite().all() for gradient in torch.autograd.grad(result.sum(), (poses, weight)))


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_not_finite_comes_out_where_the_reference_has_it(bad: float) -> None:
    given = tensors(ODD[0], optional=False, dtype=torch.float32)
    given["poses"][5, 7, 2] = bad
    mine = compiled_agreement.agreement(**given).poses
    exact = routing.vote_and_route("agreement", **given, impl="reference").poses
    assert not exact[5].isfinite().any()
    assert torch.equal(mine.isnan(), exact.isnan())


def test_a_prior_of_minus_infinity_cuts_a_capsule_off() -> None:
    given = tensors(ODD[0], dtype=torch.float32)
    given["prior"][:, 1] = -torch.inf
    given["prior"].requires_grad_()
    del given["bias"]
    result = compiled_agreement.agreement(**given).poses
    assert not result[:, 1].any()
    (gradient,) = torch.autograd.grad(result.sum(), given["prior"])
    assert not gradient[:, 1].any()
    assert gradient[:, 0].isfinite().all()


def test_logits_whose_exponentials_overflow_give_finite_poses_and_gradients() -> None:
    given = {name: tensor.float().requires_grad_() for name, tensor in tensors(SMALL[0], optional=False).items()}
    result = compiled_agreement.agreement(given["poses"], given["weight"] * 1e6, squash="exp")
    # a capsule that none chooses has length 0, every other as good as 1.
    assert (result.activations.amax(dim=-1) > 0.999).all()
    assert (result.activations <= 1.001).all()
    gradients = torch.autograd.grad(result.poses.sum(), list(given.values()))
    assert all(gradient.isfinite().all() for gradient in gradients)


def test_inputs_need_not_be_contiguous() -> None:
    given = tensors(LARGE)
    spread = {name: tensor.mT.contiguous().mT for name, tensor in given.items()}
    assert not spread["weight"].is_contiguous()
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(results(spread), results(given), strict=True))


def test_it_is_taken_with_and_without_couplings_and_gives_the_same_bits() -> None:
    given = tensors(LARGE, dtype=torch.float32)
    with choices() as made:
        without = routing.vote_and_route("agreement", **given, need_couplings=False)
        result = routing.vote_and_route("agreement", **given)
        routing.vote_and_route("em", given["poses"], given["weight"], **make_options("em", LARGE, dtype=torch.float32))
    assert [entry.name for _, entry in made] == ["compiled", "compiled", "tiled"]
    assert without.couplings is None
    assert torch.equal(without.poses, result.poses)
    assert result.couplings is not None
    assert result.couplings.sum(dim=-1).allclose(torch.ones(()))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"num_iters": 1}, "num_iters=1 is one matrix product"),
        ({"dtype": torch.float64}, "dtype is float64; it needs float32"),
        ({"shared": True}, "one weight serves all lower capsules"),
        ({"rows": 2}, "rows=2; it needs vector poses"),
        ({"normalise": "sources"}, "normalise='sources'; it needs 'targets'"),
    ],
)
def test_what_it_cannot_do_is_refused_with_a_reason(change: dict[str, Any], reason: str) -> None:
    B, I, dtype = change.get("B", LARGE.B), change.get("I", LARGE.I), change.get("dtype", torch.float32)
    rows = change.get("rows", 1)
    poses = torch.randn(B, I, LARGE.P, dtype=dtype)
    weight = torch.randn(1 if "shared" in change else I, LARGE.J, LARGE.P // rows, LARGE.D // rows, dtype=dtype)
    options = {key: change[key] for key in ("num_iters", "rows", "normalise") if key in change}
    with pytest.raises(UnsupportedCall, match=f"compiled: .*{reason}"):
        routing.vote_and_route("agreement", poses, weight, impl="compiled", **options)


@pytest.mark.parametrize(
    ("change", "reason"), [({"B": 3}, "B is 3; expected at least 4"), ({"I": 4}, r"B·I·J·D is 12800; expected at least 16384")]
)
def test_what_others_do_faster_is_left_to_them_unless_it_is_named(change: dict[str, int], reason: str) -> None:
    given = {name: tensor.float() for name, tensor in tensors(replace(LARGE, **change)).items()}
    with choices() as made:
        expected = routing.vote_and_route("agreement", **given)
        result = routing.vote_and_route("agreement", **given, impl="compiled")
    assert made[0][1].name != "compiled" == made[1][1].name
    torch.testing.assert_close(result.poses, expected.poses)
    assert re.search(f"compiled +vote_and_route +slower: {reason}", routing.explain("agreement", **given))


def test_it_compiles_to_one_graph_forward_and_backward() -> None:
    given = {name: tensor.float().requires_grad_() for name, tensor in tensors(LARGE).items()}

    def run(**given: Tensor) -> Tensor:
        return routing.vote_and_route("agreement", **given, need_couplings=False, impl="compiled").poses

    torch._dynamo.reset()
    outputs = [function(**given) for function in (torch.compile(run, fullgraph=True, backend="aot_eager"), run)]
    assert torch.equal(*outputs)
    mine, theirs = (torch.autograd.grad(output.square().sum(), list(given.values())) for output in outputs)
    assert all(torch.equal(one, other) for one, other in zip(mine, theirs, strict=True))


@pytest.mark.parametrize("optional", [False, True])
def test_the_operators_keep_torch_library_s_contract(optional: bool) -> None:
    given = {name: tensor.float().requires_grad_() for name, tensor in tensors(SMALL[0], optional=optional).items()}
    inputs = (given["poses"], given["weight"], given.get("prior"), given.get("bias"), 3, "sabour", True)
    torch.library.opcheck(agreement_cpu, inputs)
    above, history, sums = (tensor.detach() for tensor in agreement_cpu(*inputs))
    plain = [None if tensor is None else tensor.detach() for tensor in inputs[:3]]
    for wanted in (None, torch.ones_like(history)):
        torch.library.opcheck(agreement_cpu_backward, (above, wanted, *plain, history, sums, "sabour"))


def test_without_gradients_no_couplings_are_kept() -> None:
    given = tensors(LARGE, optional=False, dtype=torch.float32)
    _, history, _ = agreement_cpu(given["poses"], given["weight"], None, None, 3, "sabour", False)
    assert history.numel() == 0
    leaf = given["poses"].requires_grad_()
    with pytest.raises(RuntimeError, match="expected keep=True"):
        agreement_cpu(leaf, given["weight"], None, None, 3, "sabour", False)[0].sum().backward()


def test_differentiating_twice_is_refused() -> None:
    given = {name: tensor.float().requires_grad_() for name, tensor in tensors(SMALL[0]).items()}
    poses = compiled_agreement.agreement(**given).poses
    (first,) = torch.autograd.grad(poses.square().sum(), given["poses"], create_graph=True)
    with pytest.raises(RuntimeError, match="cannot be differentiated twice"):
        first.sum().backward()
