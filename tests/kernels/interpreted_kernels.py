"""Solve a group of problems in Triton's interpreter and print one line of JSON for each; run with TRITON_INTERPRET=1.

The interpreter is chosen when a kernel is defined, so it needs a process of its own.
"""

from __future__ import annotations

import json
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from convolution_cases import CONVOLUTIONS, Convolution
from kernel_cases import COLD_TWICE, FINITE, GROUPS, PLAIN, TWICE, Problem
from torch import Tensor
from triton.runtime import interpreter

from capsella.kernels import fused_agreement, fused_convolution
from capsella.kernels.fused_agreement import agreement_backward_op, agreement_op
from capsella.kernels.fused_convolution import convolution_op, gradient_op
from capsella.kernels.fused_em import em_backward_op, em_op
from capsella.testing import ParityError, check_parity

Check = Callable[[], None]


def compare(problem: Problem | Convolution) -> None:
    check_parity(problem.tested(), problem.reference(), problem.inputs(), dtype=problem.dtype)


def compare_to_other_iterations() -> None:
    """Make sure that the comparison can fail."""
    problem = Problem("agreement", PLAIN, {"num_iters": 2})
    other = replace(problem, options={"num_iters": 3})
    try:
        check_parity(problem.tested(), other.reference(), problem.inputs(), dtype=torch.float32)
    except ParityError:
        return
    raise AssertionError("two iterations passed for three")


def leaves(problem: Problem, *, transposed: bool = False) -> dict[str, Tensor]:
    given = problem.inputs()
    if transposed:
        # the same sizes on other strides.
        given["poses"], given["weight"] = given["poses"].mT.contiguous().mT, given["weight"].mT.contiguous().mT
    return {key: value.to(problem.dtype).requires_grad_() for key, value in given.items()}


def gradients(
    problem: Problem, given: dict[str, Tensor], run: Callable[..., list[Tensor]] | None = None, *, steep: float = 1.0
) -> list[Tensor]:
    results = (run or problem.tested())(**given)
    total = steep * sum(result.double().square().sum() for result in results)
    wanted = [value for value in given.values() if value.requires_grad]
    found = torch.autograd.grad(total, wanted, allow_unused=True)
    return [*results, *(torch.zeros_like(w) if g is None else g for w, g in zip(wanted, found, strict=True))]


def same_on_other_strides(problem: Problem) -> None:
    one, other = gradients(problem, leaves(problem)), gradients(problem, leaves(problem, transposed=True))
    for a, b in zip(one, other, strict=True):
        if not torch.equal(a, b):
            raise AssertionError(f"tensors on other strides give other numbers, by up to {(a - b).abs().max()}")


def same_where_less_needs_a_gradient(problem: Problem) -> None:
    every = leaves(problem)
    full = dict(zip(every, gradients(problem, every)[2:], strict=True))
    for name in every:
        given = {key: value.detach().requires_grad_(key == name) for key, value in every.items()}
        *_, found = gradients(problem, given)
        if not torch.equal(found, full[name]):
            raise AssertionError(f"the gradient of {name} alone is not that among others")


def same_in_any_split(problem: Problem, *, each: Callable[[int], int]) -> None:
    """Compare with work that is cut otherwise: ``each`` says how many of so many units a program takes."""
    tiles = fused_agreement.Tiles
    split, slices = tiles.split, tiles.slices
    try:
        tiles.split = lambda self, units, others, device, **_: (-(-units // each(units)), each(units))  # type: ignore[method-assign]
        tiles.slices = lambda self, units, others, device, most: self.split(units, others, device)  # type: ignore[method-assign]
        compare(problem)
    finally:
        tiles.split, tiles.slices = split, slices  # type: ignore[method-assign]


def one(units: int) -> int:
    """Each program takes one unit."""
    return 1


def most(units: int) -> int:
    """Of two programs the first takes the larger half."""
    return -(-units // 2)


def everything(units: int) -> int:
    """One program takes all."""
    return units


def stays_finite(problem: Problem) -> None:
    """Look for NaN and infinity where the reference has none."""
    named = ["poses", "activations", *(f"gradient of {name}" for name in leaves(problem))]
    # as steep as a loss that is scaled up for float16.
    expected = gradients(problem, leaves(problem), problem.reference(), steep=2.0**16)
    for name, got, reference in zip(named, gradients(problem, leaves(problem), steep=2.0**16), expected, strict=True):
        if reference.isfinite().all() and not got.isfinite().all():
            raise AssertionError(f"{name}: {int((~got.isfinite()).sum())} of {got.numel()} are not finite; the reference's are")


def check_operators(problem: Problem, tests: tuple[str, ...], *, transposed: bool = False) -> None:
    """Check each operator with the arguments it is called with, forward and backward."""
    operators = {"em": em_op, "em_backward": em_backward_op}
    if problem.algorithm == "agreement":
        operators = {"agreement": agreement_op, "agreement_backward": agreement_backward_op}
    calls: list[tuple[str, tuple[Any, ...]]] = []

    class Listener(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func.namespace == "capsella":
                calls.append((func._opname, args))
            return func(*args, **(kwargs or {}))

    given = leaves(problem, transposed=transposed)
    with Listener():
        gradients(problem, given)
    if sorted({name for name, _ in calls}) != sorted(operators):
        raise AssertionError(f"{[name for name, _ in calls]} were called; expected {sorted(operators)}")
    for name, arguments in calls:
        forward = not name.endswith("backward")
        # what autograd hands over is detached; the inputs of a net are not.
        fresh = torch.utils._pytree.tree_map_only(Tensor, lambda x, f=forward: x.detach().requires_grad_(f), arguments)
        torch.library.opcheck(operators[name], fresh, test_utils=tests)


def compare_in_parts(problem: Convolution, *, parts: int) -> None:
    """Compare where windows are divided into so many parts, the last of which has fewer steps than the others."""
    choose, fused_convolution.choose_parts = fused_convolution.choose_parts, lambda *_: parts
    try:
        compare(problem)
    finally:
        fused_convolution.choose_parts = choose


def compare_to_another_stride() -> None:
    """Make sure that the comparison of convolutions can fail."""
    problem = replace(CONVOLUTIONS[0], size=(4, 4), kernel=(3, 3), stride=(2, 1))
    other = replace(problem, stride=(1, 2))
    try:
        # the results are of one shape up to the order of their axes.
        check_parity(problem.tested(), lambda **given: other.reference()(**given).mT, problem.inputs(), dtype=torch.float32)
    except ParityError:
        return
    raise AssertionError("one stride passed for another")


def check_convolution_operators(problem: Convolution) -> None:
    """Check both operators, with maps that have channels last and with maps that have not."""
    tests = ("test_schema", "test_autograd_registration", "test_faketensor")
    given = {name: value.float() for name, value in problem.inputs().items()}
    for layout in (torch.contiguous_format, torch.channels_last):
        maps, weight = (given[name].contiguous(memory_format=layout).requires_grad_() for name in ("maps", "weight"))
        torch.library.opcheck(convolution_op, (maps, weight, given.get("bias"), list(problem.stride)), test_utils=tests)
        result = problem.reference()(maps, weight).detach().contiguous(memory_format=layout)
        of_maps = (result, weight.detach(), list(problem.size), list(problem.stride))
        torch.library.opcheck(gradient_op, of_maps, test_utils=tests)


def of_convolutions() -> Iterator[tuple[str, Check]]:
    """List what is checked of convolutions, by name."""
    for problem in CONVOLUTIONS:
        yield str(problem), partial(compare, problem)
    plain, unbiased, *_ = CONVOLUTIONS
    yield "two parts", partial(compare_in_parts, plain, parts=2)
    yield "four parts without a bias", partial(compare_in_parts, unbiased, parts=4)
    yield "a stride is not another", compare_to_another_stride
    yield "operators", partial(check_convolution_operators, plain)


def checks(group: str) -> Iterator[tuple[str, Check]]:
    """List what a group checks, by name."""
    if group == "convolution":
        yield from of_convolutions()
        return
    for problem in GROUPS[group]:
        yield str(problem), partial(compare, problem)
    algorithm = group.removesuffix("-slow")
    if algorithm == "agreement":
        small = Problem("agreement", replace(PLAIN, I=4, J=2, D=3, P=3), TWICE)
        # two tiles of samples, three of lower capsules, and upper ones that cannot be halved.
        many = replace(PLAIN, B=33, I=17, J=3)
    else:
        small = Problem("em", replace(PLAIN, I=4, J=1, D=3, P=3), COLD_TWICE)
        many = replace(PLAIN, B=66, I=6, J=1, D=2)
    mixed = replace(small, mixed=True)
    finely, shared = replace(small, sizes=many), replace(small, sizes=many, shared=True)
    if group.endswith("-slow"):
        yield f"opcheck, compiled {small}", partial(check_operators, small, ("test_aot_dispatch_dynamic",))
        yield f"opcheck, compiled {mixed}", partial(check_operators, mixed, ("test_aot_dispatch_dynamic",))
        for problem in (finely, shared):
            yield f"coarse {problem}", partial(same_in_any_split, problem, each=everything)
        yield f"other strides {mixed}", partial(same_on_other_strides, mixed)
        yield f"fewer gradients {small}", partial(same_where_less_needs_a_gradient, small)
        yield f"fine {shared}", partial(same_in_any_split, shared, each=one)
        yield f"uneven {shared}", partial(same_in_any_split, shared, each=most)
        yield f"fine {finely}", partial(same_in_any_split, finely, each=one)
        return
    if group == "agreement":
        yield "two iterations are not three", compare_to_other_iterations
        # all that one program has of the upper capsules is ruled out.
        ruled_out = Problem("agreement", PLAIN, TWICE, prior=float("-inf"))
        yield f"fine {ruled_out}", partial(same_in_any_split, ruled_out, each=one)
    else:
        for problem in FINITE:
            yield f"finite {problem}", partial(stays_finite, problem)
    tests = ("test_schema", "test_autograd_registration", "test_faketensor")
    yield f"opcheck {small}", partial(check_operators, small, tests)
    yield f"opcheck, other strides {mixed}", partial(check_operators, mixed, tests[2:], transposed=True)
    yield f"other strides {small}", partial(same_on_other_strides, small)
    yield f"uneven {finely}", partial(same_in_any_split, finely, each=most)


def patch_the_language_once() -> None:
    """Spare a third of the time, at no change of a number.

    The interpreter puts its own functions into Triton's language at a launch and again at every call of a device function.
    A module whose functions have been called since the launch has them already.
    """
    patch, done = getattr(interpreter, "_patch_lang", None), set()
    if patch is None:
        return

    def once(fn: Callable[..., Any]) -> Any:
        place = id(fn.__globals__)
        if place in done:
            return None
        done.add(place)
        scope = patch(fn)
        restore = scope.restore

        def forget() -> None:
            done.clear()
            restore()

        # only a launch restores, at its end.
        scope.restore = forget
        return scope

    interpreter._patch_lang = once


def multiply_in_one_order() -> None:
    """Add up products one after another, whatever the shapes.

    A library for products may choose another order for every shape and processor. On a GPU it is the layout that decides, which
    the compiled kernels' tests look at; here a difference of two kernels' tiles would round what has to cancel exactly.
    """

    def create_dot(self: object, a: Any, b: Any, d: Any, *_: object) -> Any:
        left, right = (each.data.astype(d.data.dtype) for each in (a, b))
        total = d.data
        for k in range(left.shape[-1]):
            total = total + left[..., :, k : k + 1] * right[..., k : k + 1, :]
        return interpreter.TensorHandle(total, d.dtype.scalar)

    interpreter.InterpreterBuilder.create_dot = create_dot


def main(group: str) -> None:
    """Run a group's checks."""
    patch_the_language_once()
    multiply_in_one_order()
    torch.set_num_threads(1)
    # memory that a kernel forgets to write is NaN.
    torch.use_deterministic_algorithms(True)
    # the interpreter computes what masks then leave out.
    warnings.filterwarnings("ignore", category=RuntimeWarning)
    for name, check in checks(group):
        problem, begin = "", time.process_time()
        try:
            check()
        except Exception as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            problem = f"{type(error).__name__}: {error} ({place.filename}:{place.lineno})"
        sys.stdout.write(
            json.dumps({"check": name, "problem": problem, "seconds": round(time.process_time() - begin, 1)}) + "\n"
        )
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1])
