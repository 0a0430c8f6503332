"""Shape letters, checked once at the top of every public function.

B batch (or batch·position) · I lower capsules · J upper capsules · P lower pose size · D upper pose size ·
C, H, W image · K kernel side · R rows of a matrix pose · T iterations.
"""

from __future__ import annotations

from typing import TypeAlias

from torch import Tensor

Votes: TypeAlias = Tensor  # [B, I, J, D]
Couplings: TypeAlias = Tensor  # [B, I, J]
Poses: TypeAlias = Tensor  # [B, I, P] below, [B, J, D] above
Activations: TypeAlias = Tensor  # [B, I] below, [B, J] above


def check_floating(tensor: Tensor, *, name: str) -> None:
    """Raise ``TypeError`` unless ``tensor`` is a floating-point tensor."""
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{name} has type {type(tensor).__name__}; expected a tensor")
    if not tensor.is_floating_point():
        raise TypeError(f"{name} has dtype {tensor.dtype}; expected a floating-point tensor")


def dims(tensor: Tensor, axes: str, *, name: str, **sizes: int) -> tuple[int, ...]:
    """Unpack the shape of a floating-point tensor, checking its rank and the axes whose size is given.

    Args:
        tensor: the tensor to unpack.
        axes: one letter per axis, separated by blanks, such as ``"B I J D"``.
        name: what the caller's user calls this tensor.
        **sizes: the expected size of any of the letters.

    Example:
        >>> import torch
        >>> B, I, J, D = dims(torch.zeros(2, 3, 4, 5), "B I J D", name="votes", J=4)
        >>> B, D
        (2, 5)
        >>> dims(torch.zeros(2, 3), "J D", name="bias", J=2, D=4)
        Traceback (most recent call last):
        ...
        ValueError: bias has shape [2, 3]; expected [J=2, D=4]
    """
    check_floating(tensor, name=name)
    letters = axes.split()
    wrong_rank = tensor.ndim != len(letters)
    if wrong_rank or any(tensor.shape[k] != sizes[a] for k, a in enumerate(letters) if a in sizes):
        wanted = ", ".join(f"{a}={sizes[a]}" if a in sizes else a for a in letters)
        raise ValueError(f"{name} has shape {list(tensor.shape)}; expected [{wanted}]")
    if any(tensor.shape[k] == 0 for k, a in enumerate(letters) if a != "B"):
        raise ValueError(f"{name} has shape {list(tensor.shape)}; expected no empty axis in [{axes.replace(' ', ', ')}] but B")
    return tuple(tensor.shape)
