"""When two results count as equal: no tolerance is guessed, the reference's own rounding is the yardstick.

Truth is the reference in float64; the yardstick is the reference in the tested dtype. A candidate passes when its error is
at most ``factor`` times the yardstick's error plus a floor, both for the largest element and for the root mean square
relative to the truth. Factors: 2 for values, 3 for gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

VALUE_FACTOR = 2.0
GRADIENT_FACTOR = 3.0

FLOOR = {torch.float64: 1e-12, torch.float32: 1e-6, torch.bfloat16: 4e-3, torch.float16: 5e-4}
"""About the dtype's own rounding, relative to the truth's root mean square; only matters where the yardstick is exact."""


class ParityError(AssertionError):
    """A candidate is further from the truth than the yardstick allows."""


def assert_parity(
    candidate: Tensor, truth: Tensor, yardstick: Tensor, *, factor: float = VALUE_FACTOR, name: str = "result"
) -> None:
    """Raise ``ParityError`` unless ``candidate`` is as close to ``truth`` as ``yardstick`` is, up to ``factor``.

    Args:
        candidate: what is tested.
        truth: the reference in float64.
        yardstick: the reference in the candidate's dtype.
        factor: how many times the yardstick's error is allowed.
        name: what to call it in the message.

    Example:
        >>> truth = torch.tensor([1.0, 2.0], dtype=torch.float64)
        >>> assert_parity(truth.float(), truth, truth.float())
    """
    if candidate.shape != truth.shape or candidate.dtype != yardstick.dtype:
        found = f"{list(candidate.shape)}, {candidate.dtype}"
        raise ParityError(f"{name}: shape and dtype are {found}; expected {list(truth.shape)}, {yardstick.dtype}")
    if truth.dtype != torch.float64:
        raise TypeError(f"truth has dtype {truth.dtype}; expected torch.float64")
    wide = candidate.detach().double().cpu()
    if not wide.isfinite().all():
        raise ParityError(f"{name}: {int((~wide.isfinite()).sum())} of {wide.numel()} elements are not finite")
    if wide.numel() == 0:
        return
    exact = truth.detach().cpu()
    error, allowed = (wide - exact).abs(), (yardstick.detach().double().cpu() - exact).abs()
    size = _rms(exact) or 1.0
    floor = FLOOR[candidate.dtype]
    for kind, got, bound in (
        ("largest error", float(error.max()), factor * float(allowed.max()) + floor * max(size, float(exact.abs().max()))),
        ("RMS error ratio", _rms(error) / size, factor * _rms(allowed) / size + floor),
    ):
        if not got <= bound:
            worst = tuple(int(k) for k in torch.unravel_index(error.argmax(), error.shape))
            raise ParityError(f"{name}: {kind} {got:.3g} exceeds {bound:.3g}; worst element at {worst}")


def check_parity(
    candidate: Callable[..., Tensor | Sequence[Tensor]],
    reference: Callable[..., Tensor | Sequence[Tensor]],
    inputs: dict[str, Tensor],
    *,
    dtype: torch.dtype,
    device: str = "cpu",
) -> None:
    """Compare a candidate with a reference, forward and every gradient.

    Args:
        candidate: takes ``inputs`` by name, returns a tensor or several.
        reference: the truth, of the same signature.
        inputs: float64 tensors.
        dtype: to test in.
        device: to run the candidate and the yardstick on.
    """
    truth = _run(reference, inputs, torch.float64, "cpu")
    yardstick = _run(reference, inputs, dtype, device)
    tested = _run(candidate, inputs, dtype, device)
    if tested.keys() != truth.keys():
        raise ParityError(f"candidate returns {sorted(tested)}; expected {sorted(truth)}")
    for name in truth:
        factor = GRADIENT_FACTOR if name.startswith("gradient") else VALUE_FACTOR
        assert_parity(tested[name], truth[name], yardstick[name], factor=factor, name=name)


def _run(
    fn: Callable[..., Tensor | Sequence[Tensor]], inputs: dict[str, Tensor], dtype: torch.dtype, device: str
) -> dict[str, Tensor]:
    leaves = {name: tensor.detach().to(device, dtype, copy=True).requires_grad_() for name, tensor in inputs.items()}
    result = fn(**leaves)
    outputs = [result] if isinstance(result, Tensor) else list(result)
    # fixed, uneven weights, so that errors in different elements cannot cancel in the gradient.
    total = sum(
        (
            output.double() * torch.linspace(0.5, 1.5, output.numel(), dtype=torch.float64, device=device).reshape_as(output)
        ).sum()
        for output in outputs
    )
    gradients = torch.autograd.grad(torch.as_tensor(total), list(leaves.values()), allow_unused=True)
    results = {f"output {k}": output for k, output in enumerate(outputs)}
    for (name, leaf), gradient in zip(leaves.items(), gradients, strict=True):
        results[f"gradient of {name}"] = torch.zeros_like(leaf) if gradient is None else gradient
    return results


def _rms(tensor: Tensor) -> float:
    return float(tensor.square().mean().sqrt())
