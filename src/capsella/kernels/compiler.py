"""Libraries that the system's C++ compiler builds from the package's own sources, once for each machine.

A library lies in the user's cache folder under a name made of everything it depends on: source, flags, compiler, processor. It
appears there whole or not at all, so that processes may build at the same time.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

# no finite-math or reassociation: NaN and infinity must come out as they would in PyTorch, sums in the order that is written.
FLAGS = (
    "-std=c++17",
    "-O3",
    "-march=native",
    "-ffp-contract=fast",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fPIC",
    "-shared",
)
_THREADS = ("-pthread",)
_USUAL = ("c++", "g++", "clang++")
_PATIENCE = 300


class BuildError(Exception):
    """A library could not be built or loaded; one line that says why."""


def find_compiler() -> list[str]:
    """Return the command of the C++ compiler: ``$CXX``, else the first of the usual names that is there; empty if none is."""
    if sys.platform == "win32":  # its compilers take other flags
        return []
    named = shlex.split(os.environ.get("CXX", ""))
    if named:
        return named if shutil.which(named[0]) else []
    return next(([name] for name in _USUAL if shutil.which(name)), [])


def load(source: Path, headers: Sequence[Path], compiler: list[str]) -> ctypes.CDLL:
    """Return the library of a source and the headers beside it that it includes; raise ``BuildError`` if that fails.

    It is built now if this machine has none of it yet.
    """
    try:
        text = b"".join(path.read_bytes() for path in (source, *headers))
        path = _folder() / f"{source.stem}-{_digest(text, compiler)}.so"
        if not path.exists():
            _build(source, compiler, path)
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise BuildError(f"{error.strerror or error}: {error.filename or source.name}") from error


def _build(source: Path, compiler: list[str], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{path.stem}.", dir=path.parent) as folder:
        made = Path(folder) / path.name
        _run([*compiler, *FLAGS, *_THREADS, str(source), "-o", str(made)])
        made.replace(path)


def _run(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=_PATIENCE, check=False)
    except subprocess.TimeoutExpired as error:
        raise BuildError(f"{command[0]} took more than {_PATIENCE} s") from error
    if done.returncode:
        said = done.stderr.splitlines()
        first = next((line for line in said if "error" in line), said[0] if said else f"exit code {done.returncode}")
        raise BuildError(f"{command[0]} says: {first.strip()}")
    return done.stdout


def _digest(source: bytes, compiler: list[str]) -> str:
    version = _run([*compiler, "--version"])
    parts = (*compiler, version, *FLAGS, *_THREADS, platform.machine(), _processor())
    return hashlib.sha256(source + "\n".join(parts).encode()).hexdigest()[:20]


def _processor() -> str:
    """Return what tells processors apart that need different code: a home folder may be shared between them."""
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        return platform.processor()
    wanted = ("model name", "flags", "Features", "CPU part")
    return "\n".join(dict.fromkeys(line for line in lines if line.startswith(wanted)))


def _folder() -> Path:
    """Return the place for libraries in the user's cache folder, which is found as for data."""
    home = Path.home() / ("Library/Caches" if sys.platform == "darwin" else ".cache")
    return Path(os.environ.get("XDG_CACHE_HOME") or home) / "capsella" / "libraries"
