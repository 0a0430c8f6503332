"""A convolution between feature maps: in tiles of one position of many images, where a GPU's library is slow.

With a stride and in half precision cuDNN's kernels leave much of a Hopper GPU idle, forward and back to the maps, and CapsNet's
second convolution, 9×9 at a stride of 2 with 256 channels in and out, is most of the operations of its training step.
``kernels/triton_convolution.py`` says how tiles are cut; where there are none, it is ``conv2d``.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

from torch import Tensor, nn

from capsella.errors import check_flag
from capsella.nn.stem import multiplied_in

# Triton comes with torch for CUDA; without it there are no tiles.
_fused: Any = None
if importlib.util.find_spec("triton") is not None:
    _fused = importlib.import_module("capsella.kernels.fused_convolution")


class FeatureConv2d(nn.Conv2d):
    """``nn.Conv2d`` for feature maps, in tiles over images where that is faster: the same weights and, rounded, results.

    Args:
        *args: of ``nn.Conv2d``.
        tiled: True or False forces one way; None lets device, dtype and sizes decide.
        **options: of ``nn.Conv2d``. There are no tiles with groups, dilation or padding.

    Shapes:
        maps [B, C, H, W] -> [B, O, H', W'].

    Example:
        >>> import torch
        >>> FeatureConv2d(64, 64, 9, 2)(torch.zeros(2, 64, 20, 20)).shape
        torch.Size([2, 64, 6, 6])
    """

    def __init__(self, *args: Any, tiled: bool | None = None, **options: Any) -> None:
        super().__init__(*args, **options)
        if tiled is not None:
            check_flag("tiled", tiled)
        self.tiled = tiled
        if tiled and not self._plain:
            raise ValueError(
                f"tiled=True does not go with padding={self.padding!r}, dilation={self.dilation}, groups={self.groups}; "
                "expected 0, 1 and 1"
            )

    @property
    def _plain(self) -> bool:
        return self.groups == 1 and self.padding == (0, 0) and self.dilation == (1, 1)

    def forward(self, maps: Tensor) -> Tensor:
        """Return the convolution of a batch of maps."""
        dtype = multiplied_in(maps, self.weight)
        if self.tiled is False or dtype is None or not self._plain or maps.ndim != 4 or maps.shape[1] != self.in_channels:
            # what is no batch of maps is left to conv2d and its errors.
            return super().forward(maps)
        sizes = (maps.shape[0], maps.shape[1], self.out_channels, self.kernel_size, maps.shape[2:], self.stride)
        reasons = ["there is no Triton"] if _fused is None else _fused.refuse(maps.device.type, dtype, *sizes)
        if reasons:
            if self.tiled:
                raise ValueError(f"tiled=True does not go here: {'; '.join(reasons)}; expected None, which takes what there is")
            return super().forward(maps)
        found: Tensor = _fused.convolution_op(maps.to(dtype), self.weight.to(dtype), self.bias, list(self.stride))
        return found
