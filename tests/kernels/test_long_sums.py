"""One matrix product for a whole layer is a long sum: it is taken in pieces, and no digits are lost."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from capsella import routing
from capsella.kernels import plain_products
from capsella.testing import SMALL, Case, check_parity, generator, make_options


@pytest.mark.parametrize("name", ["quadratic", "trainable", "uniform"])
@pytest.mark.parametrize("longest", [1, 7, 20])
def test_a_sum_in_pieces_has_the_reference_s_values_and_gradients(
    name: str, longest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plain_products, "LONGEST", longest)
    monkeypatch.setattr(plain_products, "LONGEST_OF_FEW", longest)
    run = getattr(plain_products, name)

    def reference(poses: Tensor, weight: Tensor, **options: Any) -> Tensor:
        return routing.vote_and_route(name, poses, weight, impl="reference", **options).poses

    for case in SMALL:
        rng = generator(2)
        poses = torch.randn(case.B, case.I, case.P, generator=rng, dtype=torch.float64)
        weight = torch.randn(case.I, case.J, case.P, case.D, generator=rng, dtype=torch.float64)
        given = {"poses": poses, "weight": weight, **make_options(name, case)}
        check_parity(lambda **tensors: run(**tensors).poses, reference, given, dtype=torch.float32)


@pytest.mark.parametrize("B", [1, 2, 6])
def test_sums_of_few_samples_are_as_exact_as_the_reference_s(B: int) -> None:
    rng = generator(1)
    poses = torch.randn(B, 1024, 16, generator=rng, dtype=torch.float64)
    weight = torch.randn(1024, 32, 16, 16, generator=rng, dtype=torch.float64) / 16
    run, reference = (
        lambda poses, weight, impl=impl: routing.vote_and_route("uniform", poses, weight, impl=impl).poses
        for impl in ("matmul", "reference")
    )
    check_parity(run, reference, {"poses": poses, "weight": weight}, dtype=torch.float32)


@pytest.mark.parametrize(("B", "pieces"), [(7, [48, 48, 48, 48, 48, 48, 48, 48, 16]), (8, [128, 128, 128, 16])])
def test_pieces_are_no_longer_than_they_may_be(B: int, pieces: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    case, lengths = Case("long", B=B, I=100, J=2, D=3, P=4), []
    product = torch.einsum

    def noting(equation: str, *operands: Tensor) -> Tensor:
        lengths.append(operands[0].shape[1] * operands[0].shape[-1])
        return product(equation, *operands)

    monkeypatch.setattr(plain_products, "LONGEST", 130)
    monkeypatch.setattr(plain_products, "LONGEST_OF_FEW", 50)
    monkeypatch.setattr(torch, "einsum", noting)
    plain_products.uniform(torch.randn(case.B, case.I, case.P), torch.randn(case.I, case.J, case.P, case.D))
    assert lengths == pieces
