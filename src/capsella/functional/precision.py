"""Where sums are taken: half-precision inputs are widened to float32, and results return in the input's dtype."""

from __future__ import annotations

import torch
from torch import Tensor

_HALF = (torch.bfloat16, torch.float16)


def wide_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype that sums over tensors of ``dtype`` are taken in."""
    return torch.float32 if dtype in _HALF else dtype


def widen(tensor: Tensor) -> Tensor:
    """Return ``tensor`` in the dtype its sums are taken in: float32 for half precision, else unchanged."""
    return tensor.to(wide_dtype(tensor.dtype))
