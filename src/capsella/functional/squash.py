"""Squashing functions: keep a capsule's direction, map its length into [0, 1).

    sabour  v = ‖x‖²/(1+‖x‖²) · x/‖x‖      (Sabour, Frosst & Hinton 2017, eq. 1)
    exp     v = (1 − e^−‖x‖) · x/‖x‖       (Xi et al. 2017; mitterreiter2023, eq. 1; chen2019)
    none    v = x

Departures: no additive epsilon anywhere. Both are written as x·g(‖x‖) with g(n) = n/(1+n²) and (1−e^−n)/n, whose limits
at zero, 0 and 1, give the value and the gradient there.
"""

from __future__ import annotations

import torch
from torch import Tensor

from capsella.errors import check_choice
from capsella.functional.precision import widen
from capsella.shapes import check_floating

KINDS = ("sabour", "exp", "none")


def length(x: Tensor, *, dim: int = -1) -> Tensor:
    """Return the Euclidean length along ``dim``; its gradient at a zero vector is zero.

    Example:
        >>> length(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
        tensor([5., 0.])
    """
    check_floating(x, name="x")
    # counted from the front: compiled by torch 2.11, the norm of single values keeps an axis that is counted from the back.
    n: Tensor = torch.linalg.vector_norm(widen(x), dim=dim % x.ndim)
    return n.to(x.dtype)


def direction(x: Tensor, *, dim: int = -1) -> Tensor:
    """Return x/‖x‖ along ``dim``, and zero for a zero vector.

    Example:
        >>> direction(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
        tensor([[0.6000, 0.8000],
                [0.0000, 0.0000]])
    """
    check_floating(x, name="x")
    wide = widen(x)
    n: Tensor = torch.linalg.vector_norm(wide, dim=dim, keepdim=True)
    return (wide / torch.where(n > 0, n, 1)).to(x.dtype)


def squash(x: Tensor, *, kind: str = "sabour", dim: int = -1) -> Tensor:
    """Squash the vectors along ``dim``.

    Args:
        x: any floating-point tensor.
        kind: ``"sabour"``, ``"exp"`` or ``"none"``.
        dim: the axis that holds a capsule's values.

    Returns:
        A tensor of the same shape and dtype.

    Example:
        >>> squash(torch.tensor([3.0, 4.0]))  # length 5 becomes 25/26
        tensor([0.5769, 0.7692])
    """
    check_choice("kind", kind, KINDS)
    check_floating(x, name="x")
    if kind == "none":
        return x
    wide = widen(x)
    n: Tensor = torch.linalg.vector_norm(wide, dim=dim, keepdim=True)
    if kind == "sabour":
        # of the equal forms, the one that is zero at zero with a finite gradient and no guard.
        scale = n / (1 + n * n)
    else:
        # the unused branch of a `where` must be finite too, or its gradient is NaN.
        safe = torch.where(n > 0, n, 1)
        scale = torch.where(n > 0, -torch.expm1(-safe) / safe, 1)
    return (wide * scale).to(x.dtype)
