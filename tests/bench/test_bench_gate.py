"""The gate: what is wrong or fails is named, whatever is right is not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from capsella import routing
from capsella.bench.gate import red, sized
from capsella.bench.problems import PRECISIONS, Problem
from capsella.testing import PAPERS, SMALL

CPU = torch.device("cpu")


def wrong_value(poses: Tensor, activations: Tensor) -> tuple[Tensor, Tensor]:
    return poses + 0.1, activations


def wrong_gradient(poses: Tensor, activations: Tensor) -> tuple[Tensor, Tensor]:
    return poses, 2 * activations - activations.detach()


def wrong_shape(poses: Tensor, activations: Tensor) -> tuple[Tensor, Tensor]:
    return poses[:1], activations[:1]


def no_number(poses: Tensor, activations: Tensor) -> tuple[Tensor, Tensor]:
    return poses * float("nan"), activations


def failing(poses: Tensor, activations: Tensor) -> tuple[Tensor, Tensor]:
    raise IndexError("out of range\nand more")


def as_it_is(poses: Tensor, activations: Tensor) -> tuple[Tensor, Tensor]:
    return poses, activations


@pytest.mark.parametrize("algorithm", routing.names())
@pytest.mark.parametrize("precision", PRECISIONS)
def test_only_what_is_wrong_is_red(algorithm: str, precision: str) -> None:
    problem = Problem(algorithm, SMALL[0], precision)
    reference = problem.run_with("reference")

    def changed(how: Any) -> Any:
        return lambda **inputs: how(*reference(**inputs))

    ways = (as_it_is, wrong_value, wrong_gradient, wrong_shape, no_number, failing)
    found = red(problem, {how.__name__: changed(how) for how in ways}, CPU)
    assert found.keys() == {how.__name__ for how in ways[1:]}
    assert found["wrong_value"].startswith("wrong: poses: ")
    assert found["wrong_gradient"].startswith("wrong: gradient of ")
    assert found["failing"] == "fails: IndexError: out of range"


def test_large_problems_are_judged_on_fewer_samples_where_there_is_only_a_cpu() -> None:
    wide = Problem("agreement", PAPERS[-1], "float32")
    assert sized(wide, CPU).case.B == 16  # fewer are refused by some
    assert sized(wide, torch.device("cuda")) == wide
    large = Problem("agreement", PAPERS[0], "float32")
    assert 16 < sized(large, CPU).case.B < large.case.B
    small = Problem("agreement", SMALL[0], "float32")
    assert sized(small, CPU) == small
