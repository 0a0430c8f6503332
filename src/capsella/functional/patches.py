"""Receptive fields of convolutional capsules, gathered so that routing never sees space."""

from __future__ import annotations

from typing import Any

from einops import rearrange
from torch import Tensor, stack
from torch.nn.functional import pad

from capsella.errors import check_count
from capsella.shapes import dims


def as_pair(name: str, value: int | tuple[int, int]) -> tuple[int, int]:
    """Return (rows, columns) from one side or both, each a count.

    Example:
        >>> as_pair("kernel_size", 3)
        (3, 3)
    """
    pair = value if isinstance(value, tuple | list) else (value, value)
    if len(pair) != 2:
        raise ValueError(f"{name}={value!r} has {len(pair)} values; expected an int or (rows, columns)")
    for side in pair:
        check_count(name, side)
    return pair[0], pair[1]


def conv_size(size: int, kernel: int, stride: int = 1, padding: int = 0) -> int:
    """Return the output side of a convolution; less than 1 means that the kernel does not fit.

    Example:
        >>> conv_size(28, 9), conv_size(20, 9, stride=2)
        (20, 6)
    """
    return (size + 2 * padding - kernel) // stride + 1


def gather_patches(grid: Tensor, *, kernel_size: int | tuple[int, int], stride: int = 1, padding: int = 0) -> Tensor:
    """Collect the capsules under each position of a sliding window.

    Args:
        grid: [B, H, W, N, P], N capsule types at each position.
        kernel_size: K, or (rows, columns).
        stride: step between windows.
        padding: rings of zero capsules around the grid.

    Returns:
        [B, H', W', I, P] with I = K·K·N, ordered by row, column and type within the window.

    Example:
        >>> import torch
        >>> gather_patches(torch.zeros(2, 6, 6, 32, 8), kernel_size=3, stride=2).shape
        torch.Size([2, 2, 2, 288, 8])
    """
    _, H, W, _, _ = dims(grid, "B H W N P", name="grid")
    rows, columns = as_pair("kernel_size", kernel_size)
    check_count("stride", stride)
    check_count("padding", padding, least=0)
    if min(conv_size(H, rows, stride, padding), conv_size(W, columns, stride, padding)) < 1:
        raise ValueError(f"grid has {H}×{W} positions; expected at least kernel_size={rows}×{columns} less the padding")
    if padding:
        grid = pad(grid, (0, 0, 0, 0, padding, padding, padding, padding))
    windows = _slide(_slide(grid, -4, rows, stride), -3, columns, stride)  # [K, K, B, H', W', N, P]
    return rearrange(windows, "l k b h w n p -> b h w (k l n) p")


def _slide(x: Tensor, axis: int, kernel: int, stride: int) -> Tensor:
    """Stack what each place of a window sees that slides along an axis, counted from the last: [K, ...].

    Slices, and not ``unfold``: their gradients are sums of shifted copies. Those of ``unfold`` are scattered additions, which
    depend on the order of a GPU's threads and which torch 2.13's compiler puts in wrong places on a CPU with several threads.
    """
    length = (conv_size(x.shape[axis], kernel, stride) - 1) * stride + 1

    def seen_from(place: int) -> Any:
        return (..., slice(place, place + length, stride), *[slice(None)] * (-axis - 1))

    return stack([x[seen_from(place)] for place in range(kernel)])
