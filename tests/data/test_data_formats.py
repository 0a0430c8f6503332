"""Parsers of published layouts: every value in its place, and one clear line for what does not fit."""

from __future__ import annotations

import hashlib
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from made_files import checked, complaint, drawn, idx_bytes, norb_bytes

import capsella
from capsella.data import cifar, smallnorb
from capsella.data.formats import as_tensors, parse_idx, parse_norb, parse_records
from capsella.data.sources import Files
from capsella.errors import DataError


@pytest.mark.parametrize("shape", [(7,), (1,), (0,), (3, 4), (5, 28, 28), (2, 3, 4, 5), (1, 2, 1, 2, 1, 2, 1, 2)])
def test_idx_values_come_back(shape: tuple[int, ...]) -> None:
    values = drawn(*shape)
    found = parse_idx(idx_bytes(values), "file")
    assert found.dtype == np.uint8
    assert found.shape == shape
    assert np.array_equal(found, values)


def test_idx_sizes_are_big_endian_and_rows_come_first() -> None:
    content = bytes.fromhex("00000802 00000002 00000003") + bytes([1, 2, 3, 4, 5, 6])
    assert parse_idx(content, "file").tolist() == [[1, 2, 3], [4, 5, 6]]
    assert parse_idx(bytes.fromhex("00000801 00000102") + bytes(258), "file").shape == (258,)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "file has 0 bytes; expected an IDX file"),
        (b"\0\0\x08", "file has 3 bytes; expected an IDX file"),
        (b"\0\1\x08\1\0\0\0\0", "file begins with 00 01 08 01; expected 00 00 08 and the number of axes, as IDX files do"),
        (b"\1\0\x08\1\0\0\0\0", "file begins with 01 00 08 01; expected 00 00 08"),
        (b"\0\0\x09\1\0\0\0\0", "file begins with 00 00 09 01; expected 00 00 08"),
        (b"\0\0\x0d\1\0\0\0\0", "file begins with 00 00 0d 01; expected 00 00 08"),
        (b"\0\0\x08\0\0\0\0\0", "file begins with 00 00 08 00; expected 00 00 08"),
        (b"\0\0\x08\x09" + bytes(36), "file begins with 00 00 08 09; expected 00 00 08"),
        (b"\x1f\x8b\x08\0\0\0\0\0", "file begins with 1f 8b 08 00; expected 00 00 08"),
        (b"\0\0\x08\3\0\0\0\1\0\0\0\1\0\0\0", "file ends within its header"),
        (b"\0\0\x08\1\0\0\0\2\7", "file has 9 bytes; its header says 2, which takes 10"),
        (b"\0\0\x08\1\0\0\0\2\7\7\7", "file has 11 bytes; its header says 2, which takes 10"),
        (
            b"\0\0\x08\2" + b"\xff" * 8 + b"\7",
            "file has 13 bytes; its header says 4294967295 × 4294967295, which takes 18,446,744,065,119,617,037",
        ),
        (b"\0\0\x08\2\0\0\0\2\x80\0\0\0", "file has 12 bytes; its header says 2 × 2147483648, which takes 4,294,967,308"),
    ],
)
def test_what_is_no_idx_file_is_one_line(content: bytes, says: str) -> None:
    with pytest.raises(DataError) as caught:
        parse_idx(content, "file")
    assert complaint(caught).startswith(says)


@pytest.mark.parametrize("dtype", ["u1", "i4"])
@pytest.mark.parametrize("shape", [(6,), (2, 3), (2, 3, 4), (3, 2, 4, 4)])
def test_norb_values_come_back(shape: tuple[int, ...], dtype: str) -> None:
    values = (drawn(*shape).astype(np.int64) * (1 if dtype == "u1" else -70_001)).astype(dtype)
    found = parse_norb(norb_bytes(values), "file")
    assert found.dtype == np.dtype(dtype)
    assert found.shape == shape
    assert np.array_equal(found, values)


def test_norb_is_little_endian_with_three_sizes_at_least() -> None:
    header = bytes.fromhex("544c3d1e 01000000 02000000 01000000 01000000")
    assert parse_norb(header + bytes.fromhex("05000000 ffffffff"), "file").tolist() == [5, -1]
    header = bytes.fromhex("554c3d1e 04000000 01000000 01000000 02000000 02000000")
    assert parse_norb(header + bytes([1, 2, 3, 4]), "file").tolist() == [[[[1, 2], [3, 4]]]]


def test_the_published_label_files_have_this_layout() -> None:
    content = norb_bytes(np.arange(24_300, dtype="i4") % 5)
    assert hashlib.md5(content, usedforsecurity=False).hexdigest() == "fd5120d3f770ad57ebe620eb61a0b633"
    labels = [file for file in smallnorb.SMALLNORB.files if "-cat" in file.name]
    assert len(labels) == 2
    for file in labels:
        assert file.checksum == f"sha256:{hashlib.sha256(content).hexdigest()}"
        assert file.size == len(content)
    assert np.array_equal(parse_norb(content, "labels"), np.arange(24_300) % 5)


def test_the_published_image_files_have_the_size_of_this_layout() -> None:
    header = len(norb_bytes(np.zeros((0, 2, 96, 96), np.uint8)))
    images = [file for file in smallnorb.SMALLNORB.files if "-dat" in file.name]
    assert [file.size for file in images] == [header + 24_300 * 2 * 96 * 96] * 2


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "file has 0 bytes; expected a NORB matrix"),
        (norb_bytes(drawn(2, 2))[:7], "file has 7 bytes; expected a NORB matrix"),
        (b"\x1e\x3d\x4c\x55" + norb_bytes(drawn(2))[4:], "file begins with 1e 3d 4c 55; expected 55 4c 3d 1e or 54 4c 3d 1e"),
        (b"\x53\x4c\x3d\x1e" + norb_bytes(drawn(2))[4:], "file begins with 53 4c 3d 1e; expected"),
        (struct.pack("<Ii3i", 0x1E3D4C55, 0, 1, 1, 1), "file begins with 55 4c 3d 1e; expected"),
        (struct.pack("<Ii3i", 0x1E3D4C55, -1, 1, 1, 1), "file begins with 55 4c 3d 1e; expected"),
        (struct.pack("<Ii9i", 0x1E3D4C55, 9, *[1] * 9) + b"\1", "file begins with 55 4c 3d 1e; expected"),
        (norb_bytes(drawn(2))[:16], "file ends within its header"),
        (norb_bytes(drawn(2, 5))[:-1], "file has 29 bytes; its header says 2 × 5, which takes 30"),
        (norb_bytes(np.zeros(3, np.int32)) + b"\0", "file has 33 bytes; its header says 3, which takes 32"),
        (struct.pack("<Ii3i", 0x1E3D4C54, 1, -1, 1, 1), "file has 20 bytes; its header says 4294967295, which takes"),
    ],
)
def test_what_is_no_norb_matrix_is_one_line(content: bytes, says: str) -> None:
    with pytest.raises(DataError) as caught:
        parse_norb(content, "file")
    assert complaint(caught).startswith(says)


def norb_files(root: Path, contents: dict[str, bytes]) -> Files:
    """Write smallNORB's files below ``root`` and return their entries."""
    (root / "smallnorb").mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        (root / "smallnorb" / name).write_bytes(content)
    return Files("smallnorb", tuple(checked(name, content) for name, content in contents.items()))


def made_norb() -> tuple[dict[str, bytes], dict[str, np.ndarray]]:
    names = [file.name for file in smallnorb.SMALLNORB.files]
    images = {"train": drawn(10, 2, 96, 96, seed=1), "test": drawn(5, 2, 96, 96, seed=2)}
    labels = {"train": np.arange(10, dtype=np.int32) % 5, "test": np.arange(5, dtype=np.int32)[::-1]}
    values = [images["train"], labels["train"], images["test"], labels["test"]]
    return {name: norb_bytes(value) for name, value in zip(names, values, strict=True)}, images


def test_smallnorb_has_the_two_cameras_as_channels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    contents, images = made_norb()
    monkeypatch.setattr(smallnorb, "SMALLNORB", norb_files(tmp_path, contents))
    train = capsella.load_data("smallnorb", root=tmp_path)
    assert train.images[:].tolist() == images["train"].tolist()
    assert train.labels.tolist() == [0, 1, 2, 3, 4, 0, 1, 2, 3, 4]
    assert train.class_names == ("animal", "human", "airplane", "truck", "car")
    test = capsella.load_data("smallnorb", root=tmp_path, split="test")
    assert test.images[:].tolist() == images["test"].tolist()
    assert test.labels.tolist() == [4, 3, 2, 1, 0]


def test_a_smallnorb_label_of_a_sixth_class_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    contents, _ = made_norb()
    name = smallnorb.SMALLNORB.files[1].name
    contents[name] = norb_bytes(np.arange(10, dtype=np.int32) % 6)
    monkeypatch.setattr(smallnorb, "SMALLNORB", norb_files(tmp_path, contents))
    with pytest.raises(DataError) as caught:
        capsella.load_data("smallnorb", root=tmp_path)
    assert complaint(caught) == "smallnorb train has labels from 0 to 5; expected 0 to 4"


def records(labels: np.ndarray, images: np.ndarray) -> bytes:
    """Write labels and images as CIFAR-10's binary batches have them, byte by byte."""
    return b"".join(bytes([label]) + image.tobytes() for label, image in zip(labels.tolist(), images, strict=True))


def test_records_are_a_label_and_three_planes() -> None:
    images, labels = drawn(3, 3, 32, 32), np.array([9, 0, 4])
    content = records(labels, images)
    assert len(content) == 3 * 3073
    found_labels, found_images = parse_records(content, "file")
    assert found_labels.tolist() == [9, 0, 4]
    assert np.array_equal(found_images, images)
    # red first, rows first.
    assert found_images[1, 0, 0, 1] == content[3073 + 1 + 1]
    assert found_images[1, 1, 2, 3] == content[3073 + 1 + 1024 + 2 * 32 + 3]


def test_records_of_another_side_are_read() -> None:
    labels, images = parse_records(bytes([7, *range(12)]), "file", side=2)
    assert labels.tolist() == [7]
    assert images.tolist() == [[[[0, 1], [2, 3]], [[4, 5], [6, 7]], [[8, 9], [10, 11]]]]


@pytest.mark.parametrize("length", [0, 1, 3072, 3074, 3 * 3073 - 1])
def test_what_is_not_whole_records_is_one_line(length: int) -> None:
    with pytest.raises(DataError) as caught:
        parse_records(bytes(length), "file")
    assert complaint(caught) == f"file has {length:,} bytes; expected a multiple of 3,073, one label and one image each"


@pytest.mark.parametrize("folder", ["cifar10", "cifar10/cifar-10-batches-bin"])
def test_cifar10_joins_its_five_batches_in_their_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str) -> None:
    home = tmp_path / folder
    home.mkdir(parents=True)
    entries, parts = [], {}
    for k, file in enumerate(cifar.CIFAR10.files):
        parts[file.name] = (np.array([k, 9, k]), drawn(3, 3, 32, 32, seed=k))
        content = records(*parts[file.name])
        (home / file.name).write_bytes(content)
        entries.append(replace(checked(file.name, content), aliases=file.aliases))
    monkeypatch.setattr(cifar, "CIFAR10", Files("cifar10", tuple(entries)))
    train = capsella.load_data("cifar10", root=tmp_path)
    assert train.labels.tolist() == [0, 9, 0, 1, 9, 1, 2, 9, 2, 3, 9, 3, 4, 9, 4]
    expected = np.concatenate([parts[f"data_batch_{k}.bin"][1] for k in (1, 2, 3, 4, 5)])
    assert np.array_equal(train.images[:].numpy(), expected)
    assert train.class_names[0] == "airplane"
    test = capsella.load_data("cifar10", root=tmp_path, split="test")
    assert test.labels.tolist() == [5, 9, 5]
    assert np.array_equal(test.images[:].numpy(), parts["test_batch.bin"][1])


def test_tensors_own_their_memory_and_have_fixed_types() -> None:
    content = bytearray(idx_bytes(drawn(4, 1, 2, 2)))
    images = parse_idx(bytes(content), "file")
    labels = np.arange(4, dtype=np.uint8)
    pixels, classes = as_tensors(images, labels, classes=10, name="set")
    assert pixels.dtype == torch.uint8
    assert classes.dtype == torch.int64
    assert np.array_equal(pixels.numpy(), images)
    labels[:] = 9
    pixels += 1
    assert classes.tolist() == [0, 1, 2, 3]
    assert np.array_equal(images, drawn(4, 1, 2, 2))
    assert as_tensors(images.transpose(0, 1, 3, 2), labels, classes=10, name="set")[0].is_contiguous()


@pytest.mark.parametrize(
    ("images", "labels", "says"),
    [
        (drawn(3, 2, 2), np.zeros(3), "set has images of shape [3, 2, 2]; expected [N, C, H, W]"),
        (drawn(3, 1, 2, 2), np.zeros(2), "set has 3 images and labels of shape [2]; expected one label each"),
        (drawn(3, 1, 2, 2), np.zeros(4), "set has 3 images and labels of shape [4]; expected one label each"),
        (drawn(3, 1, 2, 2), np.zeros((3, 1)), "set has 3 images and labels of shape [3, 1]; expected one label each"),
        (drawn(0, 1, 2, 2), np.zeros(0), "set has no images"),
        (drawn(2, 1, 2, 2), np.array([0, 7]), "set has labels from 0 to 7; expected 0 to 6"),
        (drawn(2, 1, 2, 2), np.array([-1, 6]), "set has labels from -1 to 6; expected 0 to 6"),
    ],
)
def test_images_and_labels_that_do_not_belong_together_are_one_line(images: np.ndarray, labels: np.ndarray, says: str) -> None:
    with pytest.raises(DataError) as caught:
        as_tensors(images, labels, classes=7, name="set")
    assert complaint(caught) == says


@pytest.mark.parametrize("axes", [3, 8])
def test_no_images_of_an_absurd_size_are_one_line(axes: int) -> None:
    sizes = [0, *[2**32 - 1] * (axes - 1)]
    with pytest.raises(DataError):
        parse_idx(struct.pack(f">HBB{axes}I", 0, 8, axes, *sizes), "file")
    with pytest.raises(DataError):
        parse_norb(struct.pack(f"<Ii{axes}I", 0x1E3D4C55, axes, *sizes), "file")


@pytest.mark.parametrize("label", [np.nan, np.inf, 1.5])
def test_labels_that_are_no_whole_numbers_are_refused(label: float) -> None:
    with pytest.raises(DataError):
        as_tensors(drawn(2, 1, 2, 2), np.array([1.0, label]), classes=10, name="set")


@pytest.mark.parametrize("values", [np.full((1, 1, 1, 1), 0.9), np.full((1, 1, 1, 1), 300), np.full((1, 1, 1, 1), -1.0)])
def test_images_that_are_no_bytes_are_refused(values: np.ndarray) -> None:
    with pytest.raises(DataError):
        as_tensors(values, np.array([1]), classes=10, name="set")
