"""MATLAB files: the reader against SciPy, damage of every kind, and the sets that come in them (SVHN, affNIST's own)."""

from __future__ import annotations

import hashlib
import io
import struct
import tracemalloc
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.io
import scipy.sparse
from hypothesis import given
from hypothesis import strategies as st
from made_files import checked, complaint, drawn, flipped, tree

import capsella
from capsella.data import affnist, svhn
from capsella.data.affnist import official, parse_affnist
from capsella.data.matfile import read_mat
from capsella.data.places import Places
from capsella.data.sources import Files
from capsella.data.splits import members
from capsella.data.svhn import parse_svhn
from capsella.errors import DataError


def saved(variables: dict[str, Any], **options: Any) -> bytes:
    file = io.BytesIO()
    scipy.io.savemat(file, variables, **options)
    return file.getvalue()


def element(kind: int, data: bytes, order: str = "<") -> bytes:
    """Return a tag and data, filled up to eight bytes; what fits into four shares the tag's words."""
    if 0 < len(data) <= 4:
        return struct.pack(f"{order}I", len(data) << 16 | kind) + data.ljust(4, b"\0")
    return struct.pack(f"{order}II", kind, len(data)) + data + bytes(-len(data) % 8)


def matrix(
    name: str, family: int, shape: tuple[int, ...], stored: int, values: bytes, order: str = "<", *, flags: int = 0
) -> bytes:
    parts = [
        element(6, struct.pack(f"{order}II", flags << 8 | family, 0), order),
        element(5, struct.pack(f"{order}{len(shape)}i", *shape), order),
        element(1, name.encode(), order),
        element(stored, values, order),
    ]
    return element(14, b"".join(parts), order)


def mat_file(*elements: bytes, order: str = "<") -> bytes:
    mark = b"\0\1IM" if order == "<" else b"\1\0MI"
    return b"MATLAB 5.0 MAT-file, made".ljust(124) + mark + b"".join(elements)


KINDS = ["u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f4", "f8"]


@given(
    st.sampled_from(KINDS),
    st.lists(st.integers(1, 5), min_size=1, max_size=4),
    st.booleans(),
    st.sampled_from(["row", "column"]),
    st.integers(0, 2**32 - 1),
)
def test_arrays_come_back_as_scipy_wrote_them(dtype: str, shape: list[int], packed: bool, oned: str, seed: int) -> None:
    values = np.frombuffer(np.random.default_rng(seed).bytes(int(np.prod(shape)) * int(dtype[1])), dtype).reshape(shape)
    content = saved({"name": values, "other": np.uint8([[1, 2]])}, do_compression=packed, oned_as=oned)
    found = read_mat(content, "file")
    assert list(found) == ["name", "other"]
    two_axes = values if len(shape) > 1 else values.reshape(1, -1) if oned == "row" else values.reshape(-1, 1)
    assert found["name"].dtype == np.dtype(dtype)
    assert found["name"].shape == two_axes.shape
    assert found["name"].tobytes() == two_axes.tobytes()
    assert found["other"].tolist() == [[1, 2]]


def test_scipy_reads_the_same() -> None:
    variables = {"X": drawn(3, 4, 2, 5), "y": np.arange(5.0)[:, None], "z": np.float32(np.pi), "long_name" * 5: np.arange(9)}
    content = saved(variables)
    found, expected = read_mat(content, "file"), scipy.io.loadmat(io.BytesIO(content))
    assert set(found) == set(variables)
    for key, value in found.items():
        assert value.dtype == expected[key].dtype
        assert np.array_equal(value, expected[key])


def test_the_first_axis_counts_first() -> None:
    content = mat_file(matrix("a", 9, (2, 3), 2, bytes([1, 2, 3, 4, 5, 6])))
    assert read_mat(content, "file")["a"].tolist() == [[1, 3, 5], [2, 4, 6]]


@pytest.mark.parametrize("order", ["<", ">"])
def test_either_order_of_bytes_is_read(order: str) -> None:
    values = np.array([[1.5, -2.0, 1e100]])
    parts = [
        matrix("a", 6, (1, 3), 9, values.astype(f"{order}f8").tobytes(), order),
        # doubles that are whole numbers are stored as narrow as they fit.
        matrix("b", 6, (2, 1), 4, np.array([258, 3], f"{order}u2").tobytes(), order),
        matrix("c", 6, (1, 2), 2, bytes([7, 200]), order),
        matrix("d", 12, (1, 1), 3, np.array([-5], f"{order}i2").tobytes(), order),
    ]
    content = mat_file(*parts, order=order)
    found = read_mat(content, "file")
    assert {key: value.tolist() for key, value in found.items()} == {
        "a": [[1.5, -2.0, 1e100]],
        "b": [[258.0], [3.0]],
        "c": [[7.0, 200.0]],
        "d": [[-5]],
    }
    assert [value.dtype for value in found.values()] == [np.float64, np.float64, np.float64, np.int32]
    assert all(value.dtype.isnative for value in found.values())
    expected = scipy.io.loadmat(io.BytesIO(content))
    assert all(np.array_equal(value, expected[key]) for key, value in found.items())
    squeezed = [struct.pack(f"{order}II", 15, len(zlib.compress(part))) + zlib.compress(part) for part in parts]
    again = read_mat(mat_file(*squeezed, order=order), "file")
    assert {key: value.tolist() for key, value in again.items()} == {key: value.tolist() for key, value in found.items()}


def affnist_file(images: np.ndarray, labels: np.ndarray, **options: Any) -> bytes:
    """Write images [N, 40, 40] and labels [N] in the layout of the published files."""
    data = {
        "affine_trans_params": np.arange(6.0 * len(labels)).reshape(6, -1),
        "human_readable_label": "digits",
        "image": images.reshape(len(images), 1600).T,
        "label_one_of_n": np.eye(10, dtype=np.uint8)[:, labels],
        "label_int": labels[None].astype(np.uint8),
    }
    return saved({"affNISTdata": data}, **options)


@pytest.mark.parametrize("packed", [False, True])
def test_a_structure_is_a_dict_of_its_fields(packed: bool) -> None:
    images, labels = drawn(3, 40, 40), np.array([2, 9, 2])
    found = read_mat(affnist_file(images, labels, do_compression=packed), "file")
    assert list(found) == ["affNISTdata"]
    data = found["affNISTdata"]
    assert set(data) == {"affine_trans_params", "human_readable_label", "image", "label_one_of_n", "label_int"}
    assert data["human_readable_label"] is None
    assert np.array_equal(data["image"], images.reshape(3, -1).T)
    assert data["label_int"].tolist() == [[2, 9, 2]]
    assert data["label_one_of_n"].argmax(axis=0).tolist() == [2, 9, 2]
    assert data["affine_trans_params"].tolist() == np.arange(18.0).reshape(6, 3).tolist()


def test_structures_within_structures_are_read() -> None:
    found = read_mat(saved({"a": {"b": {"c": np.arange(3)}, "d": 5.0}}), "file")
    assert found["a"]["b"]["c"].tolist() == [[0, 1, 2]]
    assert found["a"]["d"].tolist() == [[5.0]]


def test_what_no_set_needs_is_read_over() -> None:
    several = np.zeros((2, 2), [("x", object)])
    for k in range(4):
        several[k // 2, k % 2]["x"] = k
    variables = {
        "cells": np.array([1, "text"], object),
        "text": "a text",
        "sparse": scipy.sparse.csc_array(np.eye(3)),
        "several": several,
        "wanted": np.arange(4, dtype=np.int16),
    }
    found = read_mat(saved(variables), "file")
    assert found.pop("wanted").tolist() == [[0, 1, 2, 3]]
    assert found == dict.fromkeys(["cells", "text", "sparse", "several"])


def test_truth_values_empty_arrays_and_real_parts_are_read() -> None:
    variables = {"truth": np.array([True, False]), "empty": np.zeros((0, 3)), "complex": np.array([1 + 2j, 3 - 1j])}
    found = read_mat(saved(variables), "file")
    assert found["truth"].tolist() == [[1, 0]]
    assert found["empty"].shape == (0, 3)
    assert found["complex"].tolist() == [[1.0, 3.0]]


def test_a_file_without_variables_has_none() -> None:
    assert read_mat(mat_file(), "file") == {}
    assert read_mat(mat_file(element(2, b"just bytes")), "file") == {}


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "file is no MATLAB 5 file: its header lacks the endian mark"),
        (mat_file()[:127], "file is no MATLAB 5 file: its header lacks the endian mark"),
        (b"<html>" * 100, "file is no MATLAB 5 file: its header lacks the endian mark"),
        (mat_file()[:126] + b"XX", "file is no MATLAB 5 file: its header lacks the endian mark"),
        (b"\x89HDF\r\n\x1a\n" + bytes(600), "file is a MATLAB 7.3 file; expected a MATLAB 5 file (save it with -v7)"),
        (
            mat_file().ljust(512, b"\0") + b"\x89HDF\r\n\x1a\n" + bytes(90),
            "file is a MATLAB 7.3 file; expected a MATLAB 5 file",
        ),
        (mat_file(b"\x0e\0\0\0"), "file is a broken MATLAB file ("),
        (mat_file(struct.pack("<II", 14, 1 << 30)), "file is a broken MATLAB file (it ends too early)"),
        (mat_file(struct.pack("<II", 15, 1 << 31)), "file is a broken MATLAB file (it ends too early)"),
        (mat_file(struct.pack("<II", 15, 4) + b"junk"), "file is a broken MATLAB file ("),
        (mat_file(matrix("a", 9, (2, 3), 2, bytes(5))), "file is a broken MATLAB file ("),
        (mat_file(matrix("a", 9, (1 << 30, 1 << 30, 1 << 30), 2, bytes(8))), "file is a broken MATLAB file ("),
        (mat_file(matrix("a", 6, (1, 1), 9, bytes(7))), "file is a broken MATLAB file ("),
        (mat_file(element(14, element(6, bytes(8)))), "file is a broken MATLAB file ("),
    ],
)
def test_what_is_no_sound_matlab_file_is_one_line(content: bytes, says: str) -> None:
    with pytest.raises(DataError) as caught:
        read_mat(content, "file")
    assert complaint(caught).startswith(says)


def same(one: Any, other: Any) -> bool:
    """Compare variables of MATLAB files, value by value."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    return type(one) is type(other) and np.array_equal(one, other)


MAT_FILES = {
    "plain": lambda: affnist_file(drawn(2, 40, 40), np.array([3, 4])),
    # many grey levels: with two, the sum that zlib checks is easily the same again.
    "packed": lambda: affnist_file(drawn(2, 40, 40) // 8, np.array([3, 4]), do_compression=True),
    "arrays": lambda: saved({"X": drawn(4, 4, 3, 2), "y": np.array([[1.0], [10.0]])}),
}


@pytest.mark.parametrize("kind", MAT_FILES)
def test_a_matlab_file_that_is_cut_anywhere_never_gives_half_a_variable(kind: str) -> None:
    content = MAT_FILES[kind]()
    whole = read_mat(content, "file")
    refused = 0
    cuts = sorted({*range(0, len(content), 29), *range(min(700, len(content))), *range(len(content) - 50, len(content))})
    for cut in cuts:
        try:
            found = read_mat(content[:cut], "file")
        except DataError:
            refused += 1
            continue
        # a cut between variables loses those after it.
        assert all(same(found[key], whole[key]) for key in found)
    assert len(cuts) - 12 <= refused < len(cuts)


@pytest.mark.parametrize("bit", [0, 5, 7])
def test_flipped_bits_of_a_packed_file_are_refused_or_lie_outside_of_it(bit: int) -> None:
    content = MAT_FILES["packed"]()
    whole = read_mat(content, "file")
    refused = 0
    for at in range(128, len(content)):
        try:
            found = read_mat(flipped(content, at, bit), "file")
        except DataError:
            refused += 1
            continue
        assert all(same(found[key], whole[key]) for key in found)
    assert refused >= len(content) - 128 - 8


def test_a_header_that_promises_much_takes_no_memory() -> None:
    promises = [
        struct.pack("<II", 14, 0xFFFF_FFF0),
        matrix("a", 9, (1 << 30, 1 << 30), 2, bytes(64)),
        matrix("a", 6, (2**31 - 1, 1), 2, bytes(64)),
        # a structure with very many fields of no name.
        element(
            14,
            element(6, struct.pack("<II", 2, 0))
            + element(5, struct.pack("<ii", 1, 1))
            + element(1, b"a")
            + element(5, struct.pack("<i", 1))
            + element(1, bytes(5_000)),
        ),
    ]
    tracemalloc.start()
    try:
        for promise in promises:
            with pytest.raises(DataError):
                read_mat(mat_file(promise), "file")
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("labels", ["u1", "f8"])
def test_svhn_has_ten_for_zero_and_images_last(labels: str) -> None:
    images = drawn(5, 3, 32, 32)
    classes = np.array([[1], [10], [9], [2], [10]], labels)
    found_images, found_labels = parse_svhn(saved({"X": images.transpose(2, 3, 1, 0), "y": classes}), "file")
    assert np.array_equal(found_images, images)
    assert found_labels.tolist() == [1, 0, 9, 2, 0]


@pytest.mark.parametrize(
    ("variables", "has"),
    [
        ({}, "none"),
        ({"X": drawn(32, 32, 3, 2)}, "X"),
        ({"y": drawn(2, 1)}, "y"),
        ({"X": drawn(32, 32, 3), "y": drawn(2, 1)}, "X, y"),
        ({"X": drawn(2, 3, 32, 32), "y": drawn(2, 1)}, "X, y"),
        ({"X": "text", "y": drawn(2, 1)}, "X, y"),
        ({"X": drawn(32, 32, 3, 2), "y": {"a": 1}}, "X, y"),
        ({"x": drawn(32, 32, 3, 2), "Y": drawn(2, 1)}, "x, Y"),
    ],
)
def test_a_matlab_file_that_is_not_svhn_is_one_line(variables: dict[str, Any], has: str) -> None:
    with pytest.raises(DataError) as caught:
        parse_svhn(saved(variables), "file.mat")
    assert complaint(caught) == f"file.mat has the variables {has}; expected X [32, 32, 3, N] and y [N, 1]"


def svhn_files(root: Path, contents: dict[str, bytes]) -> Files:
    (root / "svhn").mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        (root / "svhn" / name).write_bytes(content)
    return Files("svhn", tuple(checked(name, content) for name, content in contents.items()))


def test_svhn_is_loaded_from_its_two_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = {"train": drawn(6, 3, 32, 32, seed=1), "test": drawn(2, 3, 32, 32, seed=2)}
    labels = {"train": np.arange(1, 7, dtype=np.uint8)[:, None], "test": np.uint8([[10], [3]])}
    contents = {
        f"{part}_32x32.mat": saved({"X": images[part].transpose(2, 3, 1, 0), "y": labels[part]}, do_compression=True)
        for part in images
    }
    monkeypatch.setattr(svhn, "SVHN", svhn_files(tmp_path, contents))
    train, test = (capsella.load_data("svhn", root=tmp_path, split=part) for part in ("train", "test"))
    assert np.array_equal(train.images[:].numpy(), images["train"])
    assert train.labels.tolist() == [1, 2, 3, 4, 5, 6]
    assert np.array_equal(test.images[:].numpy(), images["test"])
    assert test.labels.tolist() == [0, 3]
    assert train.class_names == tuple("0123456789")


def test_svhn_with_labels_of_another_length_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = saved({"X": drawn(32, 32, 3, 4), "y": np.ones((3, 1))})
    monkeypatch.setattr(svhn, "SVHN", svhn_files(tmp_path, {"train_32x32.mat": content}))
    with pytest.raises(DataError) as caught:
        capsella.load_data("svhn", root=tmp_path)
    assert complaint(caught) == "svhn train has 4 images and labels of shape [3]; expected one label each"


def test_affnist_images_are_rows_one_after_the_other() -> None:
    images, labels = drawn(3, 40, 40), np.array([7, 0, 3])
    found_images, found_labels = parse_affnist(affnist_file(images, labels, do_compression=True), "file")
    assert found_images.shape == (3, 1, 40, 40)
    assert np.array_equal(found_images[:, 0], images)
    assert found_labels.tolist() == [7, 0, 3]


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"image": drawn(1600, 2), "label_int": drawn(1, 2)},
        {"affNISTdata": drawn(1600, 2)},
        {"affNISTdata": "text"},
        {"affNISTdata": {"image": drawn(1600, 2)}},
        {"affNISTdata": {"label_int": drawn(1, 2)}},
        {"affNISTdata": {"image": drawn(784, 2), "label_int": drawn(1, 2)}},
        {"affNISTdata": {"image": drawn(2, 1600), "label_int": drawn(1, 2)}},
        {"affNISTdata": {"image": drawn(40, 40, 2), "label_int": drawn(1, 2)}},
        {"affNISTdata": {"image": drawn(1600, 2), "label_int": "12"}},
        {"affNISTdata": {"image": {"a": 1}, "label_int": drawn(1, 2)}},
    ],
)
def test_a_matlab_file_that_is_not_affnist_is_one_line(variables: dict[str, Any]) -> None:
    with pytest.raises(DataError) as caught:
        parse_affnist(saved(variables), "1.mat")
    assert complaint(caught) == (
        "1.mat is not in affNIST's layout; expected affNISTdata with image [1600, N] and label_int [1, N]"
    )


LABELS = np.array([7, 2, 1, 0, 4, 1, 4, 9, 5, 9, 0, 6])


def write_official(root: Path, versions: int, *, part: str = "test", folder: str = "affnist") -> np.ndarray:
    """Write versions of twelve digits and return them, [version, digit, 40, 40]."""
    images = drawn(versions, len(LABELS), 40, 40)
    home = root / folder / {"test": "test_batches", "train": "training_and_validation_batches"}[part]
    home.mkdir(parents=True, exist_ok=True)
    for version in range(versions):
        (home / f"{version + 1}.mat").write_bytes(affnist_file(images[version], LABELS, do_compression=version % 2 == 0))
    return images


def load_official(root: Path, split: str = "test", versions: int = 2) -> capsella.data.ImageData:
    return capsella.load_data("affnist", root=root, split=split, source="official", versions=versions)


def test_the_official_files_give_one_version_after_the_other(tmp_path: Path) -> None:
    images = write_official(tmp_path, 3)
    before = tree(tmp_path)
    data = load_official(tmp_path)
    assert np.array_equal(data.images[:].numpy(), images[:2].reshape(24, 1, 40, 40))
    assert data.labels.tolist() == [*LABELS, *LABELS]
    assert data.class_names == tuple("0123456789")
    assert len(load_official(tmp_path, versions=1)) == 12
    assert len(load_official(tmp_path, versions=3)) == 36
    assert tree(tmp_path) == before


@pytest.mark.parametrize("where", ["data", "cache"])
def test_the_official_files_are_found_in_the_data_directory_and_in_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    images = write_official({"data": tmp_path / "data", "cache": tmp_path / "cache" / "capsella" / "data"}[where], 1)
    data = load_official(tmp_path / "data", versions=1)
    assert np.array_equal(data.images[:, 0].numpy(), images[0])


def test_the_official_training_files_have_a_folder_of_their_own(tmp_path: Path) -> None:
    write_official(tmp_path, 1)
    images = write_official(tmp_path, 2, part="train")
    assert np.array_equal(load_official(tmp_path, "train").images[:, 0].numpy(), images.reshape(24, 40, 40))
    # the same originals are held out in every version.
    for split, count in (("fit", 9), ("val", 3)):
        chosen = members(split, 12).numpy()
        data = load_official(tmp_path, split)
        assert len(data) == 2 * count
        assert np.array_equal(data.images[:, 0].numpy(), images[:, chosen].reshape(2 * count, 40, 40))
        assert data.labels.tolist() == [*LABELS[chosen], *LABELS[chosen]]


def test_the_digest_knows_the_bytes_of_the_official_files(tmp_path: Path) -> None:
    images = write_official(tmp_path / "one", 2)
    home = tmp_path / "one" / "affnist" / "test_batches"
    content = {path.name: path.read_bytes() for path in home.iterdir()}
    assert official("test", Places.find(tmp_path / "one"), 2).facts == {
        f"test_batches/{name}": hashlib.sha256(content[name]).hexdigest() for name in ("1.mat", "2.mat")
    }
    (tmp_path / "one").rename(tmp_path / "moved")
    write_official(tmp_path / "one", 1)
    images[1, 3, 20, 20] ^= 1
    (home / "1.mat").write_bytes(content["1.mat"])
    (home / "2.mat").write_bytes(affnist_file(images[1], LABELS))
    moved, changed = load_official(tmp_path / "moved"), load_official(tmp_path / "one")
    assert moved.digest != changed.digest
    (home / "2.mat").write_bytes(content["2.mat"])
    assert moved.digest == load_official(tmp_path / "one").digest


@pytest.mark.parametrize(
    ("split", "there", "folder", "missing"),
    [
        ("test", 0, "test_batches", 1),
        ("test", 2, "test_batches", 3),
        ("train", 2, "training_and_validation_batches", 1),
        ("val", 0, "training_and_validation_batches", 1),
    ],
)
def test_official_files_that_are_not_there_are_named_with_what_to_do(
    tmp_path: Path, split: str, there: int, folder: str, missing: int
) -> None:
    write_official(tmp_path, there)
    before = tree(tmp_path)
    with pytest.raises(DataError) as caught:
        load_official(tmp_path, split, versions=3)
    assert complaint(caught) == (
        f"source='official' needs {folder}/{missing}.mat in {tmp_path / 'affnist'}; "
        f"unpack {folder}.zip of the affNIST page (32x, transformed) there, or use source='synthetic'"
    )
    assert tree(tmp_path) == before


@pytest.mark.parametrize("labels", [LABELS[::-1], LABELS[:-1], np.append(LABELS, 1)], ids=["turned", "less", "more"])
def test_versions_with_other_labels_are_refused(tmp_path: Path, labels: np.ndarray) -> None:
    write_official(tmp_path, 2)
    path = tmp_path / "affnist" / "test_batches" / "2.mat"
    path.write_bytes(affnist_file(drawn(len(labels), 40, 40), labels))
    assert len(load_official(tmp_path, versions=1)) == 12
    with pytest.raises(DataError) as caught:
        load_official(tmp_path)
    assert complaint(caught) == (
        "the files of affnist test do not have the same labels; expected one version of every digit in each"
    )


def test_an_official_file_with_less_images_than_labels_is_refused(tmp_path: Path) -> None:
    write_official(tmp_path, 1)
    data = {"image": drawn(1600, 11), "label_int": LABELS[None].astype(np.uint8)}
    (tmp_path / "affnist" / "test_batches" / "1.mat").write_bytes(saved({"affNISTdata": data}))
    with pytest.raises(DataError) as caught:
        load_official(tmp_path, versions=1)
    assert complaint(caught) == "affnist test has 11 images and labels of shape [12]; expected one label each"


@pytest.mark.parametrize(
    ("do", "says"),
    [
        (lambda content: content[: len(content) // 2], " is a broken MATLAB file (it ends too early)"),
        (lambda content: flipped(content, len(content) // 2), " is a broken MATLAB file (Error -3 while decompressing data"),
        (lambda content: b"PK\3\4" + bytes(500), " is no MATLAB 5 file: its header lacks the endian mark"),
        (lambda content: b"", " is no MATLAB 5 file: its header lacks the endian mark"),
        (lambda content: content[:128], " is not in affNIST's layout; expected affNISTdata with image [1600, N]"),
    ],
    ids=["cut", "flipped", "zip", "empty", "no variables"],
)
def test_a_damaged_official_file_is_named_and_nothing_changes(tmp_path: Path, do: Callable[[bytes], bytes], says: str) -> None:
    write_official(tmp_path, 2)
    path = tmp_path / "affnist" / "test_batches" / "1.mat"
    path.write_bytes(do(path.read_bytes()))
    before = tree(tmp_path)
    with pytest.raises(DataError) as caught:
        load_official(tmp_path)
    assert complaint(caught).startswith(f"{path}{says}")
    assert tree(tmp_path) == before


def test_there_are_no_more_than_32_official_versions(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^versions=33 is too large; the official set has 32$"):
        load_official(tmp_path, versions=33)
    with pytest.raises(DataError, match=r"needs test_batches/1\.mat"):
        load_official(tmp_path, versions=32)
    with pytest.raises(ValueError, match=r"^versions=0 is too small; expected an int of at least 1$"):
        load_official(tmp_path, versions=0)
    with pytest.raises(ValueError, match=r"^source='oficial' is unknown; did you mean 'official'\?"):
        capsella.load_data("affnist", root=tmp_path, source="oficial")


def test_official_affnist_has_no_public_source_to_fetch_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(affnist, "load_idx", lambda *arguments: pytest.fail("MNIST was asked for"))
    write_official(tmp_path, 1)
    assert len(load_official(tmp_path, versions=1)) == 12


@pytest.mark.parametrize("bit", range(8))
def test_flipped_bits_of_a_plain_matlab_file_never_raise_anything_else(bit: int) -> None:
    content = saved({"affNISTdata": {"image": drawn(8, 2), "label_int": drawn(1, 2), "text": "abc"}, "y": np.arange(3.0)})
    for at in range(len(content)):
        broken = bytearray(content)
        broken[at] ^= 1 << bit
        try:
            read_mat(bytes(broken), "file")
        except DataError as error:
            message = str(error)
            assert "()" not in message


@pytest.mark.parametrize("kind", [0, 8, 10, 16, 17, 999])
def test_values_of_an_unknown_type_are_one_line(kind: int) -> None:
    with pytest.raises(DataError) as caught:
        read_mat(mat_file(matrix("a", 9, (1, 8), kind, bytes(8))), "file")
    complaint(caught)


def test_a_matrix_that_is_empty_where_its_parts_should_be_says_so() -> None:
    with pytest.raises(DataError, match=r"ends too early"):
        read_mat(mat_file(element(14, element(6, bytes(8)))), "file")


def structure(name: str, field: str, inner: bytes) -> bytes:
    parts = element(6, struct.pack("<II", 2, 0)) + element(5, struct.pack("<ii", 1, 1)) + element(1, name.encode())
    return element(14, parts + element(5, struct.pack("<i", 8)) + element(1, field.encode().ljust(8, b"\0")) + inner)


def test_a_field_without_a_value_is_nothing() -> None:
    assert read_mat(mat_file(structure("s", "a", element(14, b""))), "file")["s"]["a"] is None


def test_matlab_files_that_nest_without_end_are_refused() -> None:
    nested, packed = matrix("", 9, (1, 1), 2, b"\1"), b""
    for _ in range(2_000):
        nested = structure("s", "a", nested)
        squeezed = zlib.compress(packed, 0)
        packed = struct.pack("<II", 15, len(squeezed)) + squeezed
    for content in (nested, packed):
        with pytest.raises(DataError):
            read_mat(mat_file(content), "file")


def test_a_small_element_holds_four_bytes_at_most() -> None:
    parts = element(6, struct.pack("<II", 9, 0)) + element(5, struct.pack("<ii", 1, 6)) + element(1, b"a")
    with pytest.raises(DataError):
        read_mat(mat_file(element(14, parts + struct.pack("<I", 6 << 16 | 2) + bytes(12))), "file")


def test_negative_sizes_are_refused() -> None:
    with pytest.raises(DataError):
        read_mat(mat_file(matrix("a", 9, (2, -1), 2, bytes(8))), "file")


def test_affnist_images_of_three_axes_are_one_line() -> None:
    content = saved({"affNISTdata": {"image": drawn(1600, 2, 3), "label_int": drawn(1, 2)}})
    with pytest.raises(DataError) as caught:
        parse_affnist(content, "1.mat")
    complaint(caught)


def test_affnist_images_of_no_axes_are_one_line() -> None:
    parts = element(6, struct.pack("<II", 2, 0)) + element(5, struct.pack("<ii", 1, 1)) + element(1, b"affNISTdata")
    names = b"image".ljust(16, b"\0") + b"label_int".ljust(16, b"\0")
    fields = matrix("", 9, (), 2, b"\1") + matrix("", 9, (1, 1), 2, b"\1")
    content = mat_file(element(14, parts + element(5, struct.pack("<i", 16)) + element(1, names) + fields))
    with pytest.raises(DataError):
        parse_affnist(content, "1.mat")


def test_an_official_file_that_may_not_be_read_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_official(tmp_path, 1)

    def refuse(path: Path) -> bytes:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(DataError) as caught:
        load_official(tmp_path, versions=1)
    assert "1.mat cannot be read: Permission denied" in complaint(caught)
