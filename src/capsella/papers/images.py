"""Small images in a record: sixteen levels of grey, packed into text."""

from __future__ import annotations

import base64
import binascii
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from einops import rearrange
from torch import Tensor

from capsella.errors import DataError
from capsella.shapes import dims

LEVELS = 16


def pack(images: Tensor, *, columns: int) -> dict[str, Any]:
    """Lay images out in rows of so many and pack them, each value as one of sixteen levels.

    Args:
        images: [N, H, W] with values from 0 to 1; N is a multiple of ``columns``.
        columns: of the sheet.

    Example:
        >>> import torch
        >>> sheet = pack(torch.tensor([[[0.0]], [[1.0]]]), columns=2)
        >>> unpack(sheet).tolist()
        [[0.0, 1.0]]
    """
    dims(images, "N H W", name="images")
    if len(images) % columns:
        raise ValueError(f"images has {len(images)} of them; expected rows of {columns}")
    laid = rearrange(images.detach().cpu(), "(r c) h w -> (r h) (c w)", c=columns)
    grey = np.rint(laid.clamp(0, 1).numpy() * (LEVELS - 1)).astype(np.uint8)
    data = base64.b64encode(zlib.compress(grey.tobytes(), 9)).decode()
    return {"height": grey.shape[0], "width": grey.shape[1], "grey": data}


def unpack(sheet: Mapping[str, Any]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return what ``pack`` packed: [H, W] with values from 0 to 1; anything else is a ``DataError``."""
    try:
        size = (int(sheet["height"]), int(sheet["width"]))
        grey = np.frombuffer(zlib.decompress(base64.b64decode(sheet["grey"], validate=True)), np.uint8).reshape(size)
    except (KeyError, TypeError, ValueError, binascii.Error, zlib.error) as error:
        raise DataError(f"a sheet of images cannot be read ({error}); expected what papers.images.pack made") from error
    return grey.astype(np.float64) / (LEVELS - 1)
