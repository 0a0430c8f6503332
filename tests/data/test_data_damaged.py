"""Damage of every kind that was met: one clear line, and nothing changed on disk."""

from __future__ import annotations

import io
import struct
import tempfile
import zipfile
import zlib
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import numpy as np
import pytest
from made_files import complaint, tree
from test_data_formats import affnist_file, drawn, element, load_official, mat_file, matrix, saved, write_official
from test_data_sources import (
    CONTENTS,
    INSIDE,
    Web,
    _plain_surroundings,  # noqa: F401
    flipped,
    places,  # noqa: F401
    put,
    scratch,  # noqa: F401
    taken,
    tar_of,
    toys,
    web,  # noqa: F401
    zip_of,
)

from capsella.data.affnist import cached_sets, parse_affnist
from capsella.data.formats import as_tensors, parse_idx, parse_norb
from capsella.data.matfile import read_mat
from capsella.data.places import Places, whole_or_nothing
from capsella.data.sources import Archive, Unavailable, Wheel, members, obtain
from capsella.errors import DataError


# A. one line


def test_a_web_page_in_place_of_an_archive_is_one_line(web: Web, places: Places) -> None:
    web.pages["/all.tar.gz"] = b"<html>Sign in</html>" * 50
    with pytest.raises(DataError) as caught:
        obtain(toys(Archive(f"{web.url}/all.tar.gz")), places)
    complaint(caught)


def test_an_answer_that_is_not_http_is_one_line(web: Web, places: Places) -> None:
    def nonsense(handler: BaseHTTPRequestHandler) -> None:
        handler.wfile.write(b"no HTTP at all\r\n\r\n")

    web.pages["/a/first.bin.gz"] = nonsense
    with pytest.raises(DataError) as caught:
        obtain(toys(web.mirror("a")), places)
    complaint(caught)


# B. archives


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA])
def test_a_zip_with_a_flipped_byte_is_refused_or_the_byte_did_not_matter(method: int) -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", method) as archive:
        for name, content in INSIDE:
            archive.writestr(name, content)
    content = packed.getvalue()
    # the directory at the end is where most of the kinds of error come from.
    for at in (*range(0, len(content) - 300, 7), *range(len(content) - 300, len(content))):
        for bit in (0, 1, 6):
            broken = bytearray(content)
            broken[at] ^= 1 << bit
            try:
                found = taken(bytes(broken))
            except Unavailable:
                continue
            assert set(found) == set(CONTENTS)


def test_an_encrypted_zip_is_refused() -> None:
    content = bytearray(zip_of(*INSIDE))
    at = content.index(b"PK\1\2")
    content[at + 8] |= 1
    with pytest.raises(Unavailable):
        taken(bytes(content))


def test_a_folder_in_an_archive_that_is_named_like_a_file_is_not_the_file() -> None:
    packed = zip_of(*[(f"{name}/{name}", content) for name, content in CONTENTS.items()], ("first.bin/", b""), ("x/first.bin/", b""))
    assert taken(packed) == CONTENTS


# L. damaged files beside missing ones


@pytest.mark.parametrize("source", ["mirror", "archive"])
def test_a_damaged_file_changes_nothing_even_where_another_is_missing(web: Web, places: Places, source: str) -> None:
    put(places.root / "toy_set")
    (places.root / "toy_set" / "first.bin").write_bytes(b"the user's own")
    (places.root / "toy_set" / "second.bin").unlink()
    web.pages["/all"] = tar_of(*INSIDE)
    before = tree(places.root)
    with pytest.raises(DataError):
        obtain(toys(web.serve_toys("a") if source == "mirror" else Archive(f"{web.url}/all")), places)
    assert tree(places.root) == before


def test_an_archive_does_not_replace_files_that_nobody_asked_for(web: Web, places: Places) -> None:
    put(places.root / "toy_set")
    (places.root / "toy_set" / "first.bin").write_bytes(b"the user's own")
    (places.root / "toy_set" / "second.bin").unlink()
    web.pages["/all"] = tar_of(*INSIDE)
    obtain(toys(Archive(f"{web.url}/all")), places, ["second.bin"])
    assert (places.root / "toy_set" / "first.bin").read_bytes() == b"the user's own"


# G. new folders


@pytest.mark.parametrize("fails", ["file", "folder"])
def test_new_folders_go_where_the_file_cannot_be_begun(tmp_path: Path, fails: str) -> None:
    long = "x" * 300
    with pytest.raises(OSError, match="too long"), whole_or_nothing(tmp_path / "a" / "b" / ("x" * 250 if fails == "file" else f"{long}/c")):
        pass
    assert tree(tmp_path) == {}


# I, S. folders that may not be looked into


def test_a_folder_that_may_not_be_searched_is_one_line(places: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    put(places.root / "toy_set")
    real = Path.stat

    def refuse(path: Path, **options: bool) -> object:
        if path.parent.name == "toy_set":
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, **options)

    monkeypatch.setattr(Path, "stat", refuse)
    with pytest.raises(DataError, match="Permission denied"):
        obtain(toys(), places)


@pytest.mark.parametrize("root", ["~nosuchuser_at_all/data", "x" * 5000])
def test_a_root_that_cannot_be_is_a_value_error(root: str) -> None:
    with pytest.raises(ValueError, match="root="):
        Places.find(root)


# K. pip


def test_pip_is_not_taken_from_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pip.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(Unavailable):
        Wheel("no-such-package==1").fetch([], [])
    assert not (tmp_path / "ran").exists()


def test_what_pip_says_of_a_wrong_setting_is_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_TIMEOUT", "abc")
    with pytest.raises(Unavailable, match="abc"):
        Wheel("no-such-package==1").fetch([], [])


def test_a_python_that_cannot_be_started_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/nowhere/python")
    with pytest.raises(Unavailable):
        Wheel("no-such-package==1").fetch([], [])


# C. MATLAB files


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


# D. affNIST


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


# E, F. arrays


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


# later finds


def test_pips_reason_is_found_where_colours_are_forced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("FORCE_COLOR", "1")
    with pytest.raises(Unavailable, match="No matching distribution"):
        Wheel("no-such-package==1").fetch([], [])


@pytest.mark.parametrize("note", ["{", "{}", "[]", ""])
def test_a_broken_note_of_a_generated_set_is_not_sound(tmp_path: Path, note: str) -> None:
    places = Places(tmp_path, tmp_path)
    places.generated.mkdir()
    (places.generated / "a.json").write_text(note)
    assert cached_sets(places) == [(places.generated / "a.u8", False)]
