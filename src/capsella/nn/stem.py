"""A network's first convolution, on images: where their few channels leave a GPU's matrix units idle, one matrix product.

Convolutions of half precision on GPUs are made for many input channels and waste most of their time on one or three. The
same sum is a product of patches and weights,

    patches [B·H'·W', C·K·K + 1] · weight [C·K·K + 1, O] -> maps [B·H'·W', O],

whose result is the map with channels last, as the next convolution wants it. The patches' last column is one and the weight's
the bias, so that one product gives both their gradients too. Ones and zeros fill the columns up to a multiple of eight: rows
that begin at multiples of 16 bytes are what matrix units are fed from.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from einops import rearrange
from torch import Tensor, nn
from torch.nn import functional as tnf

from capsella.errors import check_flag
from capsella.functional import conv_size, widen

_HALF = (torch.bfloat16, torch.float16)
# with more of them a convolution has enough to sum over, and patches take much memory.
_MOST_TAPS = 256
_COLUMNS = 8


def product_pays(device_type: str, dtype: torch.dtype, taps: int, out_channels: int) -> bool:
    """Tell whether a convolution on images is faster as one product of patches.

    Args:
        device_type: where it runs.
        dtype: that it is computed in.
        taps: C·K·K, values under a window.
        out_channels: O.

    Example:
        >>> product_pays("cuda", torch.bfloat16, taps=81, out_channels=256)
        True
        >>> product_pays("cpu", torch.bfloat16, taps=81, out_channels=256)
        False
    """
    return device_type == "cuda" and dtype in _HALF and taps <= _MOST_TAPS and out_channels % _COLUMNS == 0


def conv_as_product(
    images: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    *,
    stride: Sequence[int] = (1, 1),
    padding: Sequence[int] = (0, 0),
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Convolve images by one product of patches; equal to ``conv2d`` up to rounding.

    Args:
        images: [B, C, H, W].
        weight: [O, C, K, L].
        bias: [O] or None.
        stride: rows and columns between windows.
        padding: rows and columns of zeros on each side.
        dtype: to multiply in; that of the images if None.

    Returns:
        [B, O, H', W'], channels last in memory.

    Example:
        >>> conv_as_product(torch.ones(2, 1, 28, 28), torch.ones(4, 1, 9, 9), None)[0, 0, 0, 0].item()
        81.0
    """
    dtype = images.dtype if dtype is None else dtype
    _, C, K, L = weight.shape
    taps = C * K * L
    columns = taps + (bias is not None)
    columns += -columns % _COLUMNS
    # images are small, so they are kept wide: the gradient of a pixel is a sum over the patches that it is in.
    padded = tnf.pad(widen(images), (padding[1], padding[1], padding[0], padding[0])) if any(padding) else widen(images)
    windows = padded.unfold(2, K, stride[0]).unfold(3, L, stride[1])  # [B, C, H', W', K, L]
    height, width = windows.shape[2:4]
    # gathered and cast in one pass over memory.
    cast = rearrange(windows, "b c h w k l -> b h w c k l").to(dtype, memory_format=torch.contiguous_format)
    patches = tnf.pad(rearrange(cast, "b h w c k l -> (b h w) (c k l)"), (0, columns - taps), value=1.0)
    rows = tnf.pad(rearrange(weight.to(dtype), "o c k l -> o (c k l)"), (0, columns - taps))
    if bias is not None:
        # a sum, because compilers make one loop of it, and two of a concatenation.
        rows = rows + tnf.pad(rearrange(bias.to(dtype), "o -> o 1"), (taps, columns - taps - 1))
    return rearrange(tnf.linear(patches, rows), "(b h w) o -> b o h w", h=height, w=width)


class ImageConv2d(nn.Conv2d):
    """``nn.Conv2d`` for images, computed as one matrix product where that is faster: the same weights and, rounded, results.

    Args:
        *args: of ``nn.Conv2d``.
        as_product: True or False forces one way; None lets device, dtype and sizes decide.
        **options: of ``nn.Conv2d``. There is no product with groups, dilation, or padding by other than numbers of zeros.

    Shapes:
        images [B, C, H, W] -> [B, O, H', W'].

    Example:
        >>> ImageConv2d(1, 256, 9)(torch.zeros(2, 1, 28, 28)).shape
        torch.Size([2, 256, 20, 20])
    """

    def __init__(self, *args: Any, as_product: bool | None = None, **options: Any) -> None:
        super().__init__(*args, **options)
        if as_product is not None:
            check_flag("as_product", as_product)
        self.as_product = as_product
        if as_product and self._zeros is None:
            raise ValueError(
                f"as_product=True does not go with padding={self.padding!r}, padding_mode={self.padding_mode!r}, "
                f"dilation={self.dilation}, groups={self.groups}; expected numbers, 'zeros', 1 and 1"
            )

    @property
    def _zeros(self) -> tuple[int, ...] | None:
        """The rows and columns of zeros around an image, None where there is no product."""
        if isinstance(self.padding, str) or self.padding_mode != "zeros":
            return None
        return self.padding if self.groups == 1 and all(step == 1 for step in self.dilation) else None

    def forward(self, images: Tensor) -> Tensor:
        """Return the feature maps of a batch of images."""
        dtype, padding = multiplied_in(images, self.weight), self._zeros
        if dtype is None or padding is None or not self._takes_product(images, dtype, padding):
            return super().forward(images)
        return conv_as_product(images, self.weight, self.bias, stride=self.stride, padding=padding, dtype=dtype)

    def _takes_product(self, images: Tensor, dtype: torch.dtype, padding: Sequence[int]) -> bool:
        wanted = self.as_product
        if wanted is None:
            taps = self.in_channels * math.prod(self.kernel_size)
            wanted = product_pays(images.device.type, dtype, taps, self.out_channels)
        # what is no batch of images, or smaller than the kernel, is left to conv2d and its errors.
        if not wanted or images.ndim != 4 or images.shape[1] != self.in_channels:
            return False
        sides = zip(images.shape[2:], self.kernel_size, self.stride, padding, strict=True)
        return all(conv_size(*side) >= 1 for side in sides)


def multiplied_in(images: Tensor, weight: Tensor) -> torch.dtype | None:
    """Return the dtype that ``conv2d`` would compute in, None where it would refuse."""
    kind, (first, second) = images.device.type, (images.dtype, weight.dtype)
    # autocast knows no meta device, and casts neither integers nor float64.
    if kind != "meta" and torch.is_autocast_enabled(kind):
        first, second = (torch.get_autocast_dtype(kind) if d in (torch.float32, *_HALF) else d for d in (first, second))
    return first if first == second and first.is_floating_point else None
