"""A reader of MATLAB 5 files (level 5 MAT-files, also those written as v6 and v7): numbers and structures of them.

A file is 128 bytes of header and then elements: a type, a size, data, filled up to a multiple of 8 bytes. An element may be
zlib-compressed; a matrix is an element that holds its flags, sizes, name and values as elements of their own.

Departures: cells, sparse matrices, objects, characters and imaginary parts are read over, since no set here needs them.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from capsella.errors import DataError

_NUMBERS = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
_MATRIX, _COMPRESSED = 14, 15
_STRUCTURE = 2
# class of a matrix to the type that its values have, in whatever narrower type they are stored.
_CLASSES = {6: "f8", 7: "f4", 8: "i1", 9: "u1", 10: "i2", 11: "u2", 12: "i4", 13: "u4", 14: "i8", 15: "u8"}


def read_mat(content: bytes, name: str) -> dict[str, Any]:
    """Return the variables of a MAT-file: arrays, and dicts for 1×1 structures; anything else is None."""
    if content[:8] == b"\x89HDF\r\n\x1a\n" or content[512:520] == b"\x89HDF\r\n\x1a\n":
        raise DataError(f"{name} is a MATLAB 7.3 file; expected a MATLAB 5 file (save it with -v7)")
    marker = content[126:128]
    if len(content) < 128 or marker not in (b"IM", b"MI"):
        raise DataError(f"{name} is no MATLAB 5 file: its header lacks the endian mark")
    order = "<" if marker == b"IM" else ">"
    variables: dict[str, Any] = {}
    try:
        for kind, data in _elements(memoryview(content)[128:], order):
            if kind == _MATRIX:
                key, value = _matrix(data, order)
                variables[key] = value
    except (struct.error, zlib.error, ValueError, LookupError, StopIteration, RecursionError) as error:
        raise DataError(f"{name} is a broken MATLAB file ({str(error) or 'it ends too early'})") from error
    return variables


def _elements(data: memoryview, order: str) -> Iterator[tuple[int, memoryview]]:
    at = 0
    while at < len(data):
        kind, size = struct.unpack_from(f"{order}II", data, at)
        if kind >> 16:
            # a small element: size and type share the first word, the data is in the second.
            kind, size, start, step = kind & 0xFFFF, kind >> 16, at + 4, 8
            if size > 4:
                raise ValueError(f"a small element claims {size} bytes")
        else:
            # only compressed elements are not filled up to 8 bytes.
            start, step = at + 8, 8 + (size if kind == _COMPRESSED else -(-size // 8) * 8)
        if start + size > len(data):
            raise ValueError("it ends too early")
        if kind == _COMPRESSED:
            yield from _elements(memoryview(zlib.decompress(data[start : start + size])), order)
        else:
            yield kind, data[start : start + size]
        at += step


def _matrix(data: memoryview, order: str) -> tuple[str, Any]:
    if not len(data):
        return "", None  # how an empty field of a structure is stored
    parts = _elements(data, order)
    flags = struct.unpack_from(f"{order}I", next(parts)[1])[0]
    shape = np.frombuffer(next(parts)[1], f"{order}i4")
    if len(shape) < 2 or (shape < 0).any():
        raise ValueError(f"a matrix has the sizes {shape.tolist()}")
    name = bytes(next(parts)[1]).decode("latin-1")
    family = flags & 0xFF
    if family == _STRUCTURE:
        width = struct.unpack_from(f"{order}i", next(parts)[1])[0]
        names = bytes(next(parts)[1])
        fields = [names[k : k + width].split(b"\0")[0].decode("latin-1") for k in range(0, len(names), width)]
        if int(np.prod(shape)) != 1:
            return name, None
        return name, {key: _matrix(next(parts)[1], order)[1] for key in fields}
    if family not in _CLASSES:
        return name, None
    kind, values = next(parts)
    # MATLAB counts along the first axis first.
    array = np.frombuffer(values, f"{order}{_NUMBERS[kind]}").reshape(tuple(shape), order="F")
    return name, array.astype(_CLASSES[family], copy=False)
