"""The fused kernels on a GPU: the reference's numbers, the same every time, in little memory, under torch's compilers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="triton is not installed")

from kernel_cases import (
    AGREEMENT,
    ALGORITHMS,
    COLD,
    EM,
    FINITE,
    LARGE_POSES,
    MANY_LOWER,
    MATRICES,
    PLAIN,
    Problem,
)

from capsella import create_model, routing
from capsella.kernels.fused_agreement import agreement_op
from capsella.kernels.fused_em import em_op
from capsella.nn import CapsuleLinear
from capsella.routing.dispatch import choices
from capsella.testing import PAPERS, Case, assert_parity, check_parity

pytestmark = pytest.mark.gpu

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
SMALLER = [replace(case, B=min(16, case.B)) for case in PAPERS]


def options_of(algorithm: str) -> dict[str, Any]:
    return dict(COLD) if algorithm == "em" else {}


def route(problem: Problem, impl: str, autocast: torch.dtype | None = None) -> Callable[..., list[Tensor]]:
    """Return a problem as a function of its inputs, through the dispatcher."""

    def run(poses: Tensor, weight: Tensor, **tensors: Tensor) -> list[Tensor]:
        with torch.autocast("cuda", dtype=autocast or torch.bfloat16, enabled=autocast is not None):
            result = routing.vote_and_route(
                problem.algorithm,
                poses,
                weight,
                rows=problem.rows,
                impl=impl,
                need_couplings=False,
                **tensors,
                **problem.options,
            )
        return [result.poses, result.activations] if problem.only is None else [getattr(result, problem.only)]

    return run


def compare(problem: Problem, autocast: torch.dtype | None = None) -> None:
    tested, reference = route(problem, "fused", autocast), route(problem, "reference", autocast)
    check_parity(tested, reference, problem.inputs(), dtype=problem.dtype, device="cuda")


def on_gpu(problem: Problem) -> dict[str, Tensor]:
    return {key: value.to("cuda", problem.dtype).requires_grad_() for key, value in problem.inputs().items()}


def gradients(run: Callable[..., list[Tensor]], given: dict[str, Tensor]) -> list[Tensor]:
    results = run(**given)
    total = torch.stack([result.float().square().sum() for result in results]).sum()
    wanted = [value for value in given.values() if value.requires_grad]
    found = torch.autograd.grad(total, wanted, allow_unused=True)
    return [*results, *(gradient for gradient in found if gradient is not None)]


def papers() -> Iterator[Problem]:
    for dtype in DTYPES:
        for algorithm in ALGORITHMS:
            for case in SMALLER:
                # with as few lower as upper capsules a Gaussian closes in on single votes, where rounding decides.
                if algorithm != "em" or case.I > 100:
                    yield Problem(algorithm, case, options_of(algorithm), dtype=dtype)


def others() -> Iterator[Problem]:
    yield from (problem for problem in EM if not problem.mixed)
    for dtype in DTYPES:
        yield from (replace(problem, dtype=dtype) for problem in AGREEMENT if not problem.mixed)
        for algorithm in ALGORITHMS:
            many = replace(MANY_LOWER, I=1001, B=130)
            yield Problem(algorithm, many, options_of(algorithm), dtype=dtype)
            yield Problem(algorithm, many, options_of(algorithm), dtype=dtype, shared=True)
            yield Problem(algorithm, replace(MATRICES, I=300), options_of(algorithm), dtype=dtype, rows=4, shared=True)
            # one upper capsule and few samples: the lower ones are split over as many programs as there may be. In bfloat16
            # the rounding of 5000 poses, which nobody's sum can mend, decides about the six values.
            if dtype == torch.float32:
                yield Problem(algorithm, Case("chunks", B=2, I=5000, J=1, D=3, P=2), options_of(algorithm), dtype=dtype)
        # float32 poses of that size are refused.
        yield Problem("agreement", replace(LARGE_POSES, D=25, P=20) if dtype == torch.float32 else LARGE_POSES, dtype=dtype)


@pytest.mark.parametrize("problem", list(papers()), ids=str)
def test_the_papers_sizes_give_the_reference_s_values_and_gradients(problem: Problem) -> None:
    compare(problem)


@pytest.mark.parametrize("problem", list(others()), ids=str)
def test_every_option_and_edge_gives_the_reference_s_values_and_gradients(problem: Problem) -> None:
    compare(problem)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("case", SMALLER[:2], ids=lambda case: case.name)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_autocast_gives_the_reference_s_values_and_gradients(algorithm: str, case: Case, dtype: torch.dtype) -> None:
    compare(Problem(algorithm, case, options_of(algorithm)), dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_two_runs_give_the_same_bits(algorithm: str, shared: bool, dtype: torch.dtype) -> None:
    problem = Problem(algorithm, replace(PAPERS[0], B=100), options_of(algorithm), shared=shared, dtype=dtype)
    given, run = on_gpu(problem), route(problem, "fused")
    first = gradients(run, given)
    for _ in range(5):
        for one, other in zip(first, gradients(run, given), strict=True):
            assert torch.equal(one, other)


@pytest.mark.parametrize("problem", FINITE, ids=str)
def test_singular_problems_stay_finite(problem: Problem) -> None:
    assert all(value.isfinite().all() for value in gradients(route(problem, "fused"), on_gpu(problem)))


def test_what_is_not_a_number_is_not_hidden() -> None:
    # the maximum of a number and of what is none is the number on a GPU, and not in the interpreter.
    problem = Problem("em", PLAIN, options_of("em"))
    given = on_gpu(problem)
    with torch.no_grad():
        given["activations"][1, 0] = float("nan")
    poses, activations = route(problem, "fused")(**given)
    assert poses[1].isnan().all()
    assert activations[1].isnan().all()
    assert poses[0].isfinite().all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_zero_poses_give_finite_gradients(algorithm: str, dtype: torch.dtype) -> None:
    problem = Problem(algorithm, PLAIN, options_of(algorithm), scale=0.0, dtype=dtype, optional=False)
    assert all(value.isfinite().all() for value in gradients(route(problem, "fused"), on_gpu(problem)))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_memory_that_is_never_written_is_never_read(algorithm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # torch fills new memory with NaN in this mode.
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        for shared in (False, True):
            problem = Problem(algorithm, replace(PLAIN, B=70, I=70), options_of(algorithm), shared=shared)
            assert all(value.isfinite().all() for value in gradients(route(problem, "fused"), on_gpu(problem)))
    finally:
        torch.use_deterministic_algorithms(before)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_strides_make_no_difference(algorithm: str) -> None:
    problem = Problem(algorithm, replace(PLAIN, I=50), options_of(algorithm))
    given, run = on_gpu(problem), route(problem, "fused")
    strided = {
        key: value.detach().mT.contiguous().mT.requires_grad_() if value.ndim > 1 else value for key, value in given.items()
    }
    assert not strided["weight"].is_contiguous()
    for one, other in zip(gradients(run, given), gradients(run, strided), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_each_gradient_alone_is_the_one_among_others(algorithm: str) -> None:
    problem = Problem(algorithm, replace(PLAIN, I=50), options_of(algorithm))
    given, run = on_gpu(problem), route(problem, "fused")
    every = dict(zip(given, gradients(run, given)[2:], strict=True))
    for name in given:
        alone = {key: value.detach().requires_grad_(key == name) for key, value in given.items()}
        *_, found = gradients(run, alone)
        assert torch.equal(found, every[name]), name


@pytest.mark.parametrize("algorithm", ["agreement", "em"])
def test_operators_keep_torch_s_rules(algorithm: str) -> None:
    given = on_gpu(Problem(algorithm, replace(PLAIN, I=40), options_of(algorithm)))
    poses, weight = given["poses"], given["weight"]
    if algorithm == "agreement":
        torch.library.opcheck(agreement_op, (poses, weight, None, given["prior"], given["bias"], 2, 1, 0.25, "sabour"))
    else:
        options = ([0.01, 0.02], 1e-8, True, True, 1)
        torch.library.opcheck(em_op, (poses, weight, given["activations"], given["beta_a"], given["beta_u"], *options))


# no tensor of as many elements as votes or couplings fits under the bar.
@pytest.mark.parametrize("case", PAPERS[:2], ids=lambda case: case.name)
@pytest.mark.parametrize("algorithm", ["agreement", "em"])
def test_forward_and_backward_take_little_memory(algorithm: str, case: Case) -> None:
    problem = Problem(algorithm, case, options_of(algorithm), dtype=torch.bfloat16, optional=False)
    given = on_gpu(problem)
    run = route(problem, "fused")
    gradients(run, given)  # compiled and warm
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    results = run(**given)
    found = torch.autograd.grad(results, list(given.values()), [torch.ones_like(result) for result in results])
    torch.cuda.synchronize()
    extra = torch.cuda.max_memory_allocated() - before
    sizes = sum(tensor.nbytes for tensor in (*given.values(), *results, *results, *found))
    assert extra <= 2 * sizes, f"{extra / sizes:.2f} times inputs, outputs and their gradients"


def test_more_than_2_to_the_31_elements() -> None:
    # poses of 2.3 · 10⁹ elements, so that places do not fit 32 bits; the last sample is judged.
    B, I, P, J, D = 1100, 131_072, 16, 2, 4
    if torch.cuda.get_device_properties(0).total_memory < 40 * 2**30:
        pytest.skip("needs 40 GiB of GPU memory")
    poses = torch.randn(B, I, P, dtype=torch.bfloat16, device="cuda")
    assert poses.numel() > 2**31
    weight = torch.randn(1, J, P, D, dtype=torch.bfloat16, device="cuda") * 0.1

    def last(poses: Tensor, weight: Tensor, impl: str) -> list[Tensor]:
        poses = poses.detach().requires_grad_()
        result = routing.vote_and_route("agreement", poses, weight, num_iters=2, impl=impl, need_couplings=False)
        (gradient,) = torch.autograd.grad(result.poses[-1].sum(), poses)
        return [result.poses[-1], gradient[-1]]

    tested = last(poses, weight, "fused")
    poses = poses[-1:].clone()
    yardstick, truth = last(poses, weight, "reference"), last(poses.double(), weight.double(), "reference")
    for name, factor, *three in zip(("poses", "gradient"), (2.0, 3.0), tested, truth, yardstick, strict=True):
        assert_parity(*three, factor=factor, name=name)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_layer_compiles_to_one_graph(algorithm: str) -> None:
    torch.manual_seed(0)
    extra = {"activations": torch.rand(8, 96, device="cuda")} if algorithm == "em" else {}
    layer = CapsuleLinear(96, 8, 10, 16, routing=algorithm).cuda()
    poses = torch.randn(8, 96, 8, device="cuda")

    def step(poses: Tensor) -> Tensor:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            return layer(poses, need_couplings=False, **extra).poses

    with choices() as made:
        plain = step(poses)
    assert [chosen.name for _, chosen in made] == ["fused"]
    found = []
    for run in (step, torch.compile(step, fullgraph=True)):
        layer.zero_grad()
        result = run(poses)
        torch.testing.assert_close(result, plain)
        result.float().square().sum().backward()
        assert layer.weight.grad is not None
        found.append(layer.weight.grad.clone())
    # what a compiler makes of the few operations around the kernels may round differently.
    assert (found[1] - found[0]).norm() <= 0.01 * found[0].norm()


def test_capsnet_classifies_with_the_fused_kernels_and_compiles_to_one_graph() -> None:
    torch.manual_seed(0)
    model = create_model("capsnet").cuda()
    images, targets = torch.rand(8, 1, 28, 28, device="cuda"), torch.arange(8, device="cuda")

    def step() -> Tensor:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            return model(images, targets).scores

    with choices() as made:
        step()
    assert {chosen.name for _, chosen in made} == {"fused"}
    torch.compile(step, fullgraph=True)().float().square().sum().backward()
    for key, parameter in model.named_parameters():
        if key.startswith(("trunk", "primary", "layers")):
            assert parameter.grad is not None, key
            assert parameter.grad.isfinite().all(), key


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_cuda_graph_replays_forward_and_backward(algorithm: str) -> None:
    problem = Problem(algorithm, replace(PLAIN, B=20, I=70), options_of(algorithm))
    given, run = on_gpu(problem), route(problem, "fused")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        gradients(run, given)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        static = gradients(run, given)
    with torch.no_grad():
        given["poses"].mul_(0.5)  # a replay must read it again
    graph.replay()
    torch.cuda.synchronize()
    for one, other in zip(static, gradients(run, given), strict=True):
        assert torch.equal(one, other)
