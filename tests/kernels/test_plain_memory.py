"""What plain PyTorch without votes allocates and keeps: nothing of B·I·J·D elements, forward or backward."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from kernel_cases import IN_PLAIN_PYTORCH as PLAIN
from kernel_cases import id_of
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from capsella import routing
from capsella.kernels import chunks, plain_tiles
from capsella.routing.base import Implementation
from capsella.testing import Case, generator, make_options

CASE = Case("many", B=16, I=96, J=6, D=16, P=4)
VOTES = CASE.B * CASE.I * CASE.J * CASE.D

everything = pytest.mark.parametrize("entry", PLAIN, ids=id_of)


class Largest(TorchDispatchMode):
    """Remember the most elements that any operation returned memory for."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for value in tree_iter(result):
            if isinstance(value, Tensor):
                # what is expanded has many elements and little memory.
                self.elements = max(self.elements, value.untyped_storage().nbytes() // value.element_size())
        return result


def tensors(name: str, *, shared: bool = False) -> dict[str, Tensor]:
    rng = generator(0)
    poses = torch.randn(CASE.B, CASE.I, CASE.P, generator=rng)
    weight = torch.randn(1 if shared else CASE.I, CASE.J, CASE.P, CASE.D, generator=rng)
    given = {"poses": poses, "weight": weight, **make_options(name, CASE, dtype=torch.float32, optional=True)}
    return {key: value.requires_grad_() for key, value in given.items()}


def reference(poses: Tensor, weight: Tensor, *, name: str, **options: Any) -> routing.Routed:
    return routing.vote_and_route(name, poses, weight, impl="reference", **options)


def largest(run: Any, given: dict[str, Tensor], **options: Any) -> int:
    with Largest() as seen:
        result = run(**given, **options)
        torch.autograd.grad(result.poses.sum() + result.activations.sum(), list(given.values()), allow_unused=True)
    return seen.elements


def kept_bytes(run: Any, given: dict[str, Tensor], **options: Any) -> int:
    """Count what the backward pass keeps beside the inputs; memory that is kept twice counts once."""
    inputs = {value.untyped_storage().data_ptr() for value in given.values()}
    kept: dict[int, Tensor] = {}

    def pack(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor  # held, so that no address is used twice
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        run(**given, **options)
    return sum(tensor.untyped_storage().nbytes() for address, tensor in kept.items() if address not in inputs)


@pytest.fixture(autouse=True)
def _tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain_tiles, "CPU_TILE", VOTES // 6)
    monkeypatch.setattr(chunks, "CHUNK", VOTES // 4)


@pytest.mark.parametrize("shared", [False, True])
@everything
def test_no_operation_returns_as_much_as_the_votes(entry: Implementation, shared: bool) -> None:
    given = tensors(entry.algorithm, shared=shared)
    inputs = max(value.numel() for value in given.values())
    assert largest(entry.run, given, need_couplings=False) <= max(VOTES // 2, 2 * inputs)
    assert largest(reference, given, name=entry.algorithm) >= VOTES  # so the check can fail


# uniform's reference keeps no votes either: its couplings have no gradient.
@pytest.mark.parametrize("entry", [entry for entry in PLAIN if entry.algorithm != "uniform"], ids=id_of)
def test_what_the_backward_pass_keeps_is_a_fraction_of_the_reference_s(entry: Implementation) -> None:
    given = tensors(entry.algorithm)
    mine, theirs = (kept_bytes(entry.run, given, need_couplings=False), kept_bytes(reference, given, name=entry.algorithm))
    assert theirs >= 4 * VOTES
    assert 3 * mine <= theirs


@pytest.mark.parametrize("entry", [entry for entry in PLAIN if entry.algorithm == "agreement"], ids=id_of)
def test_agreement_keeps_one_set_of_couplings_for_each_iteration_after_the_first(entry: Implementation) -> None:
    given = tensors("agreement")
    couplings, sums = 4 * CASE.B * CASE.I * CASE.J, 4 * CASE.B * CASE.J * CASE.D
    # chunks have poses and weight in an order of their own.
    inputs = given["poses"].nbytes + given["weight"].nbytes if entry.name == "chunked" else 0
    for T in (2, 3, 5):
        # beside them s of every iteration, the result and its length.
        kept = kept_bytes(entry.run, given, num_iters=T, need_couplings=False)
        assert (T - 1) * couplings <= kept <= (T - 1) * couplings + (T + 2) * sums + inputs
