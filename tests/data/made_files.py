"""What tests of data share: small files in published layouts, digits to fill them with, snapshots of folders, a terminal."""

from __future__ import annotations

import gzip
import hashlib
import io
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from capsella.data import affnist, digits, multimnist
from capsella.data.sources import File, Files

STEMS = {"train": "train", "test": "t10k"}


def made_digits(count: int, *, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return uint8 [N, 28, 28] with ink in a box of at most 20×20 anywhere, as MNIST has it, and labels [N], all classes."""
    random = np.random.default_rng(seed)
    images = np.zeros((count, 28, 28), np.uint8)
    for image in images:
        height, width = random.integers(2, 21, 2)
        top, left = random.integers(0, 29 - height), random.integers(0, 29 - width)
        ink = random.integers(1, 256, (height, width)) * (random.random((height, width)) < 0.7)
        # corners of ink, so that the box is as large as it was drawn.
        ink[0, 0] = ink[-1, -1] = 255
        image[top : top + height, left : left + width] = ink
    return images, np.arange(count) % 10


def idx_bytes(values: np.ndarray) -> bytes:
    """Return an IDX file of bytes."""
    return (
        struct.pack(">HBB", 0, 8, values.ndim) + struct.pack(f">{values.ndim}I", *values.shape) + values.astype("u1").tobytes()
    )


def norb_bytes(values: np.ndarray) -> bytes:
    """Return a matrix in NORB's layout."""
    kind = 0x1E3D4C55 if values.dtype == np.uint8 else 0x1E3D4C54
    sizes = [*values.shape, 1, 1, 1][: max(3, values.ndim)]
    stored = values if values.dtype == np.uint8 else values.astype("<i4")
    return struct.pack("<Ii", kind, values.ndim) + struct.pack(f"<{len(sizes)}i", *sizes) + stored.tobytes()


def checked(name: str, content: bytes) -> File:
    """Return a file's entry with the right checksum and size."""
    return File(name, f"sha256:{hashlib.sha256(content).hexdigest()}", len(content))


def write_mnist(root: Path, *, train: int = 200, test: int = 50, packed: bool = True, folder: str = "mnist") -> Files:
    """Write made digits as MNIST's four files below ``root``; return their entries, without any source to fetch from."""
    home = root / folder
    home.mkdir(parents=True, exist_ok=True)
    files = []
    for split, count in (("train", train), ("test", test)):
        images, labels = made_digits(count, seed=len(split))
        for kind, values in (("images-idx3", images), ("labels-idx1", labels)):
            content = idx_bytes(values)
            name = f"{STEMS[split]}-{kind}-ubyte"
            (home / (f"{name}.gz" if packed else name)).write_bytes(gzip.compress(content, 1) if packed else content)
            files.append(checked(name, content))
    return Files("mnist", tuple(files))


def use_as_mnist(patch: pytest.MonkeyPatch, files: Files) -> None:
    """Let every set that is made from MNIST take these files for the published ones."""
    for module in (digits, affnist, multimnist):
        patch.setattr(module, "MNIST", files)


def without_checksums(files: Files) -> Files:
    """Return the same entries, accepting any content."""
    return replace(files, files=tuple(replace(file, checksum="", size=0) for file in files.files))


def tree(*folders: Path) -> dict[Path, bytes | None]:
    """Return all that lies in folders, hidden names included: the bytes of files, None for folders."""
    found = [path for folder in folders for path in sorted(folder.rglob("*"))]
    return {path: None if path.is_dir() else path.read_bytes() for path in found}


def complaint(caught: pytest.ExceptionInfo[BaseException]) -> str:
    """Return the message of an error about data, which is one line without a stop at its end."""
    message = str(caught.value)
    assert isinstance(caught.value, ValueError)
    assert message == " ".join(message.split())
    assert not message.endswith(".")
    return message


def drawn(*shape: int, seed: int = 0) -> np.ndarray:
    """Return bytes without a pattern."""
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)


def flipped(content: bytes, at: int, bit: int = 4) -> bytes:
    return content[:at] + bytes([content[at] ^ 1 << bit]) + content[at + 1 :]


def read_only(folder: Path) -> None:
    folder.chmod(0o555)


class Terminal(io.StringIO):
    """Takes text as a terminal does."""

    def isatty(self) -> bool:
        return True


@contextmanager
def a_terminal() -> Iterator[Terminal]:
    """Let stderr be a terminal; within the test, since pytest puts its own there before it."""
    screen = Terminal()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stderr", screen)
        patch.setenv("TERM", "xterm")
        patch.setenv("COLUMNS", "120")
        yield screen
