"""The results on disk: ``<folder>/<paper>/<table>/<row>/seed-<n>.json``, each whole or not there; archives of them."""

from __future__ import annotations

import contextlib
import errno
import gzip
import io
import os
import tarfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from capsella.data.places import whole_or_nothing
from capsella.errors import DataError, RunError
from capsella.papers.recipe import Job
from capsella.papers.results import Result, from_json, to_json

RESULTS = Path("results/papers")
# of an archive, in bytes: a result has some ten thousand.
_LARGEST = 2**30


@dataclass(frozen=True)
class Imported:
    """What came of the results of an archive.

    Attributes:
        new: were not here.
        replaced: took the place of ones of another version of the recipe, or of the arithmetic.
        kept: are here already.
    """

    new: tuple[str, ...]
    replaced: tuple[str, ...]
    kept: tuple[str, ...]


class Store:
    """A folder of results.

    Args:
        folder: need not exist.
    """

    def __init__(self, folder: str | os.PathLike[str] = RESULTS) -> None:
        self.folder = Path(folder)

    def path(self, name: str) -> Path:
        """Return where the result of a recipe and seed lies."""
        return self.folder / f"{name}.json"

    def read(self, name: str) -> Result | None:
        """Return a result by recipe and seed; None where there is none."""
        path = self.path(name)
        if not path.is_file():
            return None
        try:
            result = from_json(path.read_bytes(), where=str(path))
        except (OSError, DataError) as error:
            why = f"{path} cannot be read ({error.strerror or error})" if isinstance(error, OSError) else error
            raise DataError(f"{why}; take it away, and the run is made again") from error
        if result.name != name:
            raise DataError(f"{path} holds the result of {result.name}; take it away or put it where it belongs")
        return result

    def of(self, job: Job) -> Result | None:
        """Return the result of a run, if there is one of the same resolved recipe and numerics version."""
        found = self.read(job.name)
        return found if found is not None and found.fingerprint == job.fingerprint and found.quick == job.quick else None

    def all(self, prefix: str = "") -> Iterator[Result]:
        """Yield all results, or those whose name begins with ``prefix``, in the order of their names."""
        for path in sorted(self.folder.glob("*/*/*/*seed-*.json")):
            name = path.relative_to(self.folder).with_suffix("").as_posix()
            if name.startswith(prefix):
                found = self.read(name)
                if found is not None:
                    yield found

    def write(self, result: Result) -> Path:
        """Write a result, whole or not at all."""
        path = self.path(result.name)
        with said(path), whole_or_nothing(path) as file:
            file.write(to_json(result).encode())
        return path

    def export(self, file: str | os.PathLike[str], *, prefix: str = "") -> int:
        """Write all results, or those whose name begins with ``prefix``, to one archive; return how many.

        The archive is whole at any moment, and the same results give the same bytes. Of no results none is written, and it is
        only looked whether one could be.
        """
        results = list(self.all(prefix))
        try:
            if Path(file).is_dir():
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
            with contextlib.suppress(_Nothing), whole_or_nothing(Path(file)) as target:
                _pack(results, target)
        except OSError as error:
            reason = error.strerror or error
            raise ValueError(
                f"export={str(file)!r} cannot be written ({reason}); expected a file in a folder of yours"
            ) from error
        return len(results)

    def take(self, file: str | os.PathLike[str], is_current: Callable[[Result], bool]) -> Imported:
        """Take in the results of an archive; nothing is written unless all of it can be read.

        Args:
            file: what ``export`` wrote.
            is_current: whether a result is of its recipe as it is; one that is takes the place of one that is not, and of no
                other.
        """
        lists: dict[str, list[str]] = {"new": [], "replaced": [], "kept": []}
        writing = []
        for result in unpack(Path(file)):
            here = self.read(result.name)
            if here is None:
                kind = "new"
            elif is_current(result) and not is_current(here):
                kind = "replaced"
            else:
                kind = "kept"
            lists[kind].append(result.name)
            writing += [result] if kind != "kept" else []
        for result in writing:
            self.write(result)
        return Imported(**{kind: tuple(names) for kind, names in lists.items()})


class _Nothing(Exception):
    """There is nothing to be packed."""


@contextlib.contextmanager
def said(place: Path) -> Iterator[None]:
    """Say in one line what the system has against writing to a place, such as a disc that is full."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or error
        raise RunError(f"{place} cannot be written ({reason}); the same command goes on once it can be") from error


def _pack(results: Sequence[Result], target: BinaryIO) -> None:
    if not results:
        raise _Nothing
    # no time of day in it.
    with (
        gzip.GzipFile(fileobj=target, mode="wb", mtime=0, filename="") as squeezed,
        tarfile.open(fileobj=squeezed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for result in results:
            content = to_json(result).encode()
            entry = tarfile.TarInfo(f"{result.name}.json")
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))


def unpack(path: Path) -> list[Result]:
    """Return the results of an archive; its file names are not used for anything but errors."""
    found = []
    try:
        # to its end, where gzip says whether it is whole; a tar file alone would not be missed a part.
        with gzip.open(path) as squeezed:
            content = squeezed.read(_LARGEST + 1)
        if len(content) > _LARGEST:
            raise DataError(f"{path} unpacks to more than {_LARGEST // 2**20} MiB; expected what --export wrote")
        with tarfile.open(fileobj=io.BytesIO(content), mode="r:") as archive:
            for entry in archive:
                file = archive.extractfile(entry) if entry.isfile() else None
                if file is None:
                    raise DataError(f"{path} has {entry.name!r}, which is no result; expected what --export wrote")
                found.append(from_json(file.read(), where=f"{path}, {entry.name!r}"))
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError) as error:
        raise ValueError(f"import={str(path)!r} cannot be read ({error.strerror}); expected what --export wrote") from error
    except (OSError, EOFError, zlib.error, tarfile.TarError) as error:
        why = getattr(error, "strerror", None) or error
        raise DataError(f"{path} cannot be read ({why}); expected what --export wrote") from error
    names = [result.name for result in found]
    if len(set(names)) < len(names):
        raise DataError(f"{path} has two results of one run; expected what --export wrote")
    return found
