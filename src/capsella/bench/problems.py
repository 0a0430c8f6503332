"""Routing problems to time: an algorithm, sizes and a precision; seeded inputs and the least that they cost."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import capsella.kernels  # noqa: F401 - adds its implementations to the registry
from capsella import routing
from capsella.testing import Case, make_options

PRECISIONS = ("float32", "bfloat16", "mixed")
"""Of poses and weight: both float32, both bfloat16, or bfloat16 poses with a float32 weight under autocast, as in a step."""

OP = "vote_and_route"
REFERENCE = "reference"

Inputs = dict[str, Tensor]
Run = Callable[..., tuple[Tensor, Tensor]]

_NUMBERS = itertools.count()


@dataclass(frozen=True)
class Problem:
    """What is routed.

    Attributes:
        algorithm: registry name.
        case: sizes.
        precision: one of ``PRECISIONS``.
    """

    algorithm: str
    case: Case
    precision: str

    @property
    def name(self) -> str:
        """Algorithm, sizes and precision in words."""
        return f"{self.algorithm}, {self.case.name}, {self.precision}"

    @property
    def dtype(self) -> torch.dtype:
        """Of the poses."""
        return torch.float32 if self.precision == "float32" else torch.bfloat16

    def draw(self, device: torch.device, seed: int = 0) -> Inputs:
        """Return float64 inputs: poses of length about one, weights that keep votes short, and what the algorithm needs."""
        case, rng = self.case, torch.Generator(device).manual_seed(seed)
        draw = functools.partial(torch.randn, generator=rng, dtype=torch.float64, device=device)
        poses = draw(case.B, case.I, case.P) / case.P**0.5
        weight = draw(case.I, case.J, case.P, case.D) / 10
        others = make_options(self.algorithm, case, seed=seed + 1)
        return {"poses": poses, "weight": weight, **{name: value.to(device) for name, value in others.items()}}

    def cast(self, inputs: Inputs) -> Inputs:
        """Return leaves in the problem's precision; what a layer learns beside the weight stays float32.

        Gradients are wanted of all but couplings that move by a rule of their own.
        """
        low = {"poses", "activations"} | ({"weight"} if self.precision == "bfloat16" else set())
        dtypes = {name: self.dtype if name in low else torch.float32 for name in inputs}
        entry = routing.get(self.algorithm)
        own = {*entry.required, *entry.optional} if entry.own_step else set()
        return {
            name: value.detach().to(dtypes[name], copy=True).requires_grad_(name not in own) for name, value in inputs.items()
        }

    def run_with(self, implementation: str, *, compiled: bool = False) -> Run:
        """Return a function from inputs to poses and activations that does not ask for couplings."""
        algorithm, mixed = self.algorithm, self.precision == "mixed"

        def run(poses: Tensor, weight: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
            context: Any = contextlib.nullcontext()
            if mixed and poses.dtype != torch.float64:
                context = torch.autocast(poses.device.type, torch.bfloat16)
            with context:
                found = routing.vote_and_route(algorithm, poses, weight, impl=implementation, need_couplings=False, **options)
            return found.poses, found.activations

        if not compiled:
            return run
        # the compiler counts what it made of one piece of code and gives up at eight: every run has a piece of its own.
        run.__code__ = run.__code__.replace(co_name=f"routing_{next(_NUMBERS)}")
        return torch.compile(run, dynamic=False)


@dataclass(frozen=True)
class Least:
    """The least that a problem costs, however it is computed.

    Attributes:
        read: bytes of inputs, and of the results' gradients with a backward pass.
        written: bytes of results, and of the inputs' gradients with a backward pass.
        operations: multiplications and additions of the reference; the votes of algorithms without iterations need not be
            added up again, since their couplings can be multiplied into the weight.
    """

    read: int
    written: int
    operations: int

    @property
    def moved(self) -> int:
        """Bytes read and written."""
        return self.read + self.written


def least(problem: Problem, inputs: Inputs, outputs: tuple[Tensor, ...], *, backward: bool) -> Least:
    """Count what must be read, written and computed.

    Args:
        problem: what is routed.
        inputs: in their precision, gradients wanted where ``requires_grad`` says so.
        outputs: of one run.
        backward: whether gradients are computed.
    """
    case = problem.case
    given, results = _bytes(inputs.values()), _bytes(outputs)
    wanted = _bytes(tensor for tensor in inputs.values() if tensor.requires_grad)
    votes = case.B * case.I * case.J * case.D
    iterations = routing.get(problem.algorithm).default("num_iters") if routing.get(problem.algorithm).is_iterative else 0
    # docs/routing.md, "Cost of the reference".
    sums = {"agreement": 2 * iterations - 1, "em": 4 * iterations - 1}.get(problem.algorithm, 0)
    forward = 2 * votes * (case.P + sums)
    if not backward:
        return Least(given, results, forward)
    return Least(given + results, results + wanted, 3 * forward)


def _bytes(tensors: Any) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
