"""Plain PyTorch for GPUs on a GPU: the reference's numbers at the papers' sizes, in less memory, with couplings too."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from kernel_cases import AGREEMENT, COLD, EM, MATRICES, Problem
from torch import Tensor

from capsella import routing
from capsella.bench.clock import peak_memory
from capsella.kernels import chunks
from capsella.routing.dispatch import choices
from capsella.testing import PAPERS, Case, check_parity

pytestmark = pytest.mark.gpu

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
OPTIONS: dict[str, dict[str, Any]] = {"agreement": {}, "em": dict(COLD)}
# with as few lower as upper capsules a Gaussian closes in on single votes, where rounding decides.
SIZES = [(name, replace(case, B=min(16, case.B))) for name in OPTIONS for case in PAPERS if name != "em" or case.I > 100]


def route(problem: Problem, impl: str, **extra: Any) -> Callable[..., list[Tensor]]:
    def run(poses: Tensor, weight: Tensor, **tensors: Tensor) -> list[Tensor]:
        options = {**problem.options, "need_couplings": False, **extra, **tensors}
        found = routing.vote_and_route(problem.algorithm, poses, weight, rows=problem.rows, impl=impl, **options)
        return [found.poses, found.activations, *(found.trace or ())]

    return run


def compare(problem: Problem, **extra: Any) -> None:
    tested, reference = route(problem, "chunked", **extra), route(problem, "reference", **extra)
    check_parity(tested, reference, problem.inputs(), dtype=problem.dtype, device="cuda")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("name", "case"), SIZES, ids=lambda value: getattr(value, "name", value))
def test_the_papers_sizes_give_the_reference_s_values_and_gradients(name: str, case: Case, dtype: torch.dtype) -> None:
    for shared in (False, True):
        compare(Problem(name, case, OPTIONS[name], shared=shared, dtype=dtype))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", OPTIONS)
def test_chunks_matrix_poses_and_couplings(name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "CHUNK", 1 << 16)
    many = replace(MATRICES, B=130, I=300)
    compare(Problem(name, many, OPTIONS[name], rows=4, dtype=dtype), trace=True)
    compare(Problem(name, many, OPTIONS[name], rows=4, dtype=dtype, shared=True), trace=True)


EDGES = [problem for problem in (*AGREEMENT, *EM) if problem.algorithm in OPTIONS and not (problem.mixed or problem.only)]


@pytest.mark.parametrize("problem", EDGES, ids=str)
def test_every_option_and_edge_gives_the_reference_s_values_and_gradients(problem: Problem) -> None:
    compare(problem)


@pytest.mark.parametrize("name", OPTIONS)
def test_it_takes_a_fraction_of_the_reference_s_memory(name: str) -> None:
    problem = Problem(name, PAPERS[1], OPTIONS[name], dtype=torch.bfloat16)
    given = {key: value.to("cuda", problem.dtype).requires_grad_() for key, value in problem.inputs().items()}

    def act(impl: str) -> object:
        return torch.autograd.grad(sum(each.sum() for each in route(problem, impl)(**given)), list(given.values()))

    ours, theirs = (peak_memory(lambda impl=impl: act(impl), torch.device("cuda")) for impl in ("chunked", "reference"))
    assert 2 * ours <= theirs


def test_where_couplings_are_asked_for_it_is_what_the_dispatcher_takes() -> None:
    poses, weight = torch.randn(512, 1152, 8, device="cuda"), torch.randn(1152, 10, 8, 16, device="cuda")
    with choices() as made:
        found = routing.vote_and_route("agreement", poses, weight)
    assert [chosen.name for _, chosen in made] == ["chunked"]
    assert found.couplings is not None
    torch.testing.assert_close(found.couplings.sum(dim=-1), torch.ones(512, 1152, device="cuda"))
