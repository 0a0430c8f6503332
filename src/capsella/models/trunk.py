"""Convolutional trunks: sizes worked out in advance, so that an image too small is a clear error."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from capsella.errors import check_choice
from capsella.functional import conv_size

Size = tuple[int, int]


@dataclass(frozen=True)
class Window:
    """Kernel and stride of one valid convolution or pooling."""

    kernel: int
    stride: int = 1


def output_size(size: Size, windows: Sequence[Window]) -> Size:
    """Return what a chain of valid windows leaves of an image, or raise ``ValueError`` with the least size that fits.

    Example:
        >>> output_size((28, 28), [Window(9), Window(9, 2)])
        (6, 6)
        >>> output_size((12, 28), [Window(9), Window(9, 2)])
        Traceback (most recent call last):
        ...
        ValueError: image_size=(12, 28) is too small for the trunk; expected at least 17 pixels a side
    """
    height, width = size
    for window in windows:
        height, width = (conv_size(side, window.kernel, window.stride) for side in (height, width))
        if min(height, width) < 1:
            least = 1
            for w in reversed(windows):
                least = (least - 1) * w.stride + w.kernel
            raise ValueError(f"image_size={size} is too small for the trunk; expected at least {least} pixels a side")
    return height, width


def activation(name: str) -> nn.Module:
    """Return ``"relu"`` or ``"leaky_relu"`` (slope 0.2, TensorFlow's default)."""
    check_choice("activation_fn", name, ("relu", "leaky_relu"))
    return nn.ReLU() if name == "relu" else nn.LeakyReLU(0.2)


def same_padding(size: Size, window: Window) -> nn.ZeroPad2d:
    """Return the zeros that TensorFlow's SAME puts around an image, the odd one at the bottom right.

    Example:
        >>> same_padding((24, 24), Window(9, 2)).padding  # left, right, top, bottom
        (3, 4, 3, 4)
    """
    total = [max((-(-side // window.stride) - 1) * window.stride + window.kernel - side, 0) for side in size]
    top, left = (pad // 2 for pad in total)
    return nn.ZeroPad2d((left, total[1] - left, top, total[0] - top))
