"""The gate before the clock: what is timed must give the right values and gradients first, by the rule of the tests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TypeVar

import torch
from torch import Tensor

from capsella.bench.problems import REFERENCE, Inputs, Problem, Run
from capsella.testing import GRADIENT_FACTOR, VALUE_FACTOR, ParityError, assert_parity

K = TypeVar("K")

# elements of float64 votes that a CPU can route in a second or so; a GPU takes the whole problem.
_ON_A_CPU = 1 << 23
# samples that are taken all the same, where there are as many: some implementations refuse fewer.
_LEAST = 16


def sized(problem: Problem, device: torch.device) -> Problem:
    """Return the problem with so many samples that its truth can be computed on the device."""
    case = problem.case
    if device.type == "cuda":
        return problem
    samples = min(case.B, max(_LEAST, _ON_A_CPU // (case.I * case.J * case.D)))
    return replace(problem, case=replace(case, B=samples))


def red(problem: Problem, contenders: Mapping[K, Run], device: torch.device) -> dict[K, str]:
    """Compare contenders with the reference in float64, forward and every gradient.

    A contender's error may be twice (values) or three times (gradients) what the reference makes in the same precision.

    Args:
        problem: what is routed.
        contenders: functions of the inputs by name.
        device: where everything runs, the truth too.

    Returns:
        What is wrong, by name; those that are right are not in it. One that fails to run is wrong.
    """
    inputs = problem.draw(device)
    reference = problem.run_with(REFERENCE)
    exact = {name: value.clone().requires_grad_() for name, value in inputs.items()}
    truth = _values(reference, exact)
    yardstick = _values(reference, problem.cast(inputs))
    found = {}
    for name, run in contenders.items():
        try:
            _compare(_values(run, problem.cast(inputs)), truth, yardstick)
        except ParityError as error:
            found[name] = f"wrong: {error}"
        # whatever a kernel or a compiler raises is a reason not to time it, and no reason not to time the others.
        except Exception as error:
            found[name] = failure(error)
    return found


def failure(error: BaseException) -> str:
    """Say in one line what failed.

    Example:
        >>> failure(RuntimeError("no kernel image"))
        'fails: RuntimeError: no kernel image'
    """
    return f"fails: {type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"


def _compare(tested: Mapping[str, Tensor], truth: Mapping[str, Tensor], yardstick: Mapping[str, Tensor]) -> None:
    for name, value in tested.items():
        factor = GRADIENT_FACTOR if name.startswith("gradient") else VALUE_FACTOR
        assert_parity(value, truth[name], yardstick[name], factor=factor, name=name)


def _values(run: Run, leaves: Inputs) -> dict[str, Tensor]:
    poses, activations = run(**leaves)
    wanted = {name: leaf for name, leaf in leaves.items() if leaf.requires_grad}
    gradients = torch.autograd.grad(
        (poses, activations), list(wanted.values()), (_uneven(poses), _uneven(activations)), allow_unused=True
    )
    found = {"poses": poses.detach(), "activations": activations.detach()}
    for (name, leaf), gradient in zip(wanted.items(), gradients, strict=True):
        found[f"gradient of {name}"] = torch.zeros_like(leaf) if gradient is None else gradient
    return found


def _uneven(output: Tensor) -> Tensor:
    """Return a gradient in which errors of different elements cannot cancel."""
    weights = torch.linspace(0.5, 1.5, output.numel(), dtype=torch.float64, device=output.device)
    return weights.reshape_as(output).to(output.dtype)
