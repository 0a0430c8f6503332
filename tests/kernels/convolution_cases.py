"""Convolutions of feature maps for the tiled kernels, as data: what the interpreter and a GPU are both asked to solve."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as tnf

from capsella.testing import generator


@dataclass(frozen=True)
class Convolution:
    """One convolution to compare with ``conv2d``.

    Attributes:
        name: what is special about it.
        B: images.
        C: channels in.
        O: channels out.
        size: of the maps.
        kernel: rows and columns.
        stride: rows and columns between windows.
        bias: whether there is one.
        dtype: to test in.
        apart: whether values of the bias lie apart in memory.
    """

    name: str
    B: int = 3
    C: int = 64
    O: int = 64
    size: tuple[int, int] = (6, 5)
    kernel: tuple[int, int] = (3, 3)
    stride: tuple[int, int] = (2, 2)
    bias: bool = True
    dtype: torch.dtype = torch.float32
    apart: bool = False

    def __str__(self) -> str:
        return f"convolution, {self.name}"

    def inputs(self) -> dict[str, Tensor]:
        """Draw everything in float64."""
        rng = generator(0)
        found = {
            "maps": torch.randn(self.B, self.C, *self.size, generator=rng, dtype=torch.float64),
            "weight": torch.randn(self.O, self.C, *self.kernel, generator=rng, dtype=torch.float64) / 16,
        }
        return found | ({"bias": torch.randn(self.O, generator=rng, dtype=torch.float64)} if self.bias else {})

    def reference(self) -> Callable[..., Tensor]:
        """Return the convolution by ``conv2d``."""

        def run(maps: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
            return tnf.conv2d(maps, weight, bias, stride=self.stride)

        return run

    def tested(self) -> Callable[..., Tensor]:
        """Return the convolution by the operator."""
        # importing it needs Triton.
        from capsella.kernels.fused_convolution import convolution_op

        def run(maps: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
            if self.apart and bias is not None:
                bias = torch.stack([bias, bias + 100]).T.flatten()[::2]
            found: Tensor = convolution_op(maps, weight, bias, list(self.stride))
            return found

        return run


CONVOLUTIONS = [
    Convolution("plain"),
    Convolution("rows and columns that no window reaches", size=(6, 8), kernel=(3, 2), stride=(2, 3), bias=False),
    Convolution("strides beyond the kernel", size=(5, 7), kernel=(1, 2), stride=(3, 4)),
    Convolution("one window", B=1, size=(3, 4), kernel=(3, 4), stride=(2, 1)),
    Convolution("channels of several tiles' sizes", C=128, O=192, size=(3, 4), kernel=(2, 2)),
    Convolution("more images than a tile has", B=130, size=(3, 3), kernel=(2, 2)),
    Convolution("half precision", dtype=torch.float16),
    Convolution("a bias whose values lie apart", size=(3, 3), apart=True),
]
