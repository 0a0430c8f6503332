"""Where data lies: the data directory, the user's cache folder, and how a file comes to lie there whole or not at all."""

from __future__ import annotations

import contextlib
import os
import stat
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO


def cache_folder() -> Path:
    """Return the folder for what capsella can fetch or make again, after the habits of the system."""
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or str(Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":
        base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / "Library" / "Caches")
    else:
        base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "capsella"


@dataclass(frozen=True)
class Places:
    """The folders of one call.

    Attributes:
        root: the data directory: files of a set lie in ``<root>/<name>/``, with ``-`` for ``_`` accepted.
        cache: what is fetched goes here where ``root`` may not be written to; what is generated always does.
        given: whether the call named ``root``.
    """

    root: Path
    cache: Path
    given: bool = False

    @classmethod
    def find(cls, root: str | os.PathLike[str] | None = None) -> Places:
        """Return ``root``, else ``$CAPSELLA_DATA``, else the cache folder, beside the cache folder itself."""
        if root is not None and not isinstance(root, str | os.PathLike):
            raise TypeError(f"root={root!r} has type {type(root).__name__}; expected a path")
        named = root if root is not None else os.environ.get("CAPSELLA_DATA") or None
        cache = cache_folder()
        if named is None:
            return cls(cache / "data", cache)
        try:
            folder = Path(named).expanduser()
            is_file = folder.exists() and not folder.is_dir()
        except (OSError, RuntimeError) as error:
            reason = getattr(error, "strerror", None) or error
            raise ValueError(f"root={str(named)!r} cannot be looked at ({reason}); expected a folder") from error
        if is_file:
            raise ValueError(f"root={str(named)!r} is a file; expected the folder that holds the data sets' folders")
        return cls(folder, cache, given=root is not None)

    def folders(self, name: str) -> list[Path]:
        """List the folders in which files of the set ``name`` may lie, in the order of the search."""
        found = [base / spelt for base in (self.root, self.cache / "data") for spelt in (name, name.replace("_", "-"))]
        return list(dict.fromkeys(found))

    def home(self, name: str) -> Path:
        """Return the folder to which fetched files of the set ``name`` are written."""
        spellings = [self.root / name, self.root / name.replace("_", "-")]
        existing = next((folder for folder in spellings if folder.is_dir()), spellings[0])
        return existing if is_writable(existing) else self.cache / "data" / name

    @property
    def generated(self) -> Path:
        """The folder of generated sets."""
        return self.cache / "generated"


def is_writable(folder: Path) -> bool:
    """Tell whether files may be made in ``folder``, or in the nearest folder above it that exists.

    Permission bits count for the superuser too: a folder that is marked read-only is meant to stay as it is.
    """
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    marked = folder.stat().st_mode & (stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH)
    return folder.is_dir() and os.access(folder, os.W_OK) and bool(marked)


@contextlib.contextmanager
def whole_or_nothing(path: Path) -> Iterator[BinaryIO]:
    """Open a temporary file beside ``path`` that becomes ``path`` at the end; on any exception nothing is left behind."""
    made: list[Path] = []
    temporary = None
    try:
        for folder in reversed([path.parent, *path.parent.parents]):
            if not folder.exists():
                made.insert(0, folder)
                folder.mkdir(exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
        temporary = Path(name)
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        # mkstemp lets only the owner read; a data directory may be shared.
        mask = os.umask(0)
        os.umask(mask)
        temporary.chmod(0o666 & ~mask)
        temporary.replace(path)
    except BaseException:
        if temporary is not None:
            temporary.unlink(missing_ok=True)
        for folder in made:
            with contextlib.suppress(OSError):
                folder.rmdir()
        raise
