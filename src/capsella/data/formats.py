"""Parsers of published binary layouts: bytes in, arrays out; ``DataError`` says what does not fit.

IDX        big-endian: 00 00, type, number of axes; one uint32 per axis; values          (MNIST, Fashion-MNIST)
NORB       little-endian: type, number of axes; one int32 per axis, at least three; values  (smallNORB)
records    one byte of label and 3 × 32 × 32 bytes of image, one after the other         (CIFAR-10)
"""

from __future__ import annotations

import struct

import numpy as np
import torch
from einops import rearrange
from torch import Tensor

from capsella.errors import DataError

_IDX_BYTES = 0x08
_NORB: dict[int, np.dtype] = {0x1E3D4C55: np.dtype("u1"), 0x1E3D4C54: np.dtype("<i4")}
_MOST_AXES = 8


def parse_idx(content: bytes, name: str) -> np.ndarray:
    """Read an IDX file of bytes."""
    if len(content) < 4:
        raise DataError(f"{name} has {len(content)} bytes; expected an IDX file")
    zero, kind, axes = struct.unpack(">HBB", content[:4])
    if zero != 0 or kind != _IDX_BYTES or not 1 <= axes <= _MOST_AXES:
        raise DataError(f"{name} begins with {content[:4].hex(' ')}; expected 00 00 08 and the number of axes, as IDX files do")
    return _values(content, name, ">", 4, axes, axes, np.dtype("u1"))


def parse_norb(content: bytes, name: str) -> np.ndarray:
    """Read a matrix in the layout of NORB, bytes or int32."""
    if len(content) < 8:
        raise DataError(f"{name} has {len(content)} bytes; expected a NORB matrix")
    kind, axes = struct.unpack("<Ii", content[:8])
    if kind not in _NORB or not 1 <= axes <= _MOST_AXES:
        raise DataError(f"{name} begins with {content[:4].hex(' ')}; expected 55 4c 3d 1e or 54 4c 3d 1e, as NORB matrices do")
    # sizes of matrices with fewer than three axes are filled up with ones.
    return _values(content, name, "<", 8, axes, max(axes, 3), _NORB[kind])


def _values(content: bytes, name: str, order: str, at: int, axes: int, stored: int, dtype: np.dtype) -> np.ndarray:
    start = at + 4 * stored
    if len(content) < start:
        raise DataError(f"{name} ends within its header")
    shape = struct.unpack(f"{order}{axes}I", content[at : at + 4 * axes])
    expected = start + int(np.prod(shape, dtype=object)) * dtype.itemsize
    if len(content) != expected:
        sizes = " × ".join(map(str, shape))
        raise DataError(f"{name} has {len(content):,} bytes; its header says {sizes}, which takes {expected:,}")
    try:
        return np.frombuffer(content, dtype, offset=start).reshape(shape)
    except ValueError as error:  # no values, but sizes that no array can have
        raise DataError(f"{name} has a header that makes no sense: {error}") from error


def parse_records(content: bytes, name: str, *, side: int = 32) -> tuple[np.ndarray, np.ndarray]:
    """Read CIFAR-10's binary records: labels [N] and images [N, 3, side, side]."""
    record = 1 + 3 * side * side
    if not content or len(content) % record:
        raise DataError(f"{name} has {len(content):,} bytes; expected a multiple of {record:,}, one label and one image each")
    rows = np.frombuffer(content, np.uint8).reshape(-1, record)
    return rows[:, 0], rearrange(rows[:, 1:], "n (c h w) -> n c h w", c=3, h=side)


def as_tensors(images: np.ndarray, labels: np.ndarray, *, classes: int, name: str) -> tuple[Tensor, Tensor]:
    """Return uint8 images [N, C, H, W] and int64 labels [N] that own their memory, after checking that they belong together."""
    if images.ndim != 4:
        raise DataError(f"{name} has images of shape {list(images.shape)}; expected [N, C, H, W]")
    if images.dtype != np.uint8:
        raise DataError(f"{name} has images of type {images.dtype}; expected bytes")
    if labels.ndim != 1 or len(labels) != len(images):
        raise DataError(f"{name} has {len(images):,} images and labels of shape {list(labels.shape)}; expected one label each")
    if len(labels) == 0:
        raise DataError(f"{name} has no images")
    # NaN is neither: the test is for what labels are, not for what they are not.
    if not (labels.min() >= 0 and labels.max() < classes and (labels == np.floor(labels)).all()):
        raise DataError(f"{name} has labels from {labels.min()} to {labels.max()}; expected 0 to {classes - 1}")
    return torch.from_numpy(np.array(images, order="C")), torch.from_numpy(labels.astype(np.int64))
