"""Libraries that are built at first use: where they go, what is said when none can be built, and that routing goes on."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest

from capsella.data.places import cache_folder
from capsella.kernels import compiler
from capsella.kernels.compiler import BuildError, find_compiler, load

needs_compiler = pytest.mark.skipif(not find_compiler(), reason="there is no C++ compiler")

# routes once in a process of its own and says which implementation ran.
ROUTE = """
import warnings, torch
from capsella import routing
from capsella.routing.dispatch import choices
torch.manual_seed(0)
poses, weight = torch.randn(16, 240, 8), torch.randn(240, 10, 8, 16)
with warnings.catch_warnings(record=True) as said, choices() as made:
    warnings.simplefilter("always")
    for _ in range(2):
        result = routing.vote_and_route("agreement", poses, weight, need_couplings=False)
print(made[-1][1].name)
print([str(one.message) for one in said if "kernel" in str(one.message)])
print(routing.explain("agreement", poses, weight, need_couplings=False))
"""


def route(cache: Path, **environment: str) -> tuple[str, list[str], str]:
    command = [sys.executable, "-c", ROUTE]
    env = {**os.environ, "XDG_CACHE_HOME": str(cache), "OMP_NUM_THREADS": "1", **environment}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    name, said, *rest = done.stdout.splitlines()
    return name, eval(said), "\n".join(rest)


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = tmp_path / "twice.cpp"
    path.write_text('#include "twice.h"\nextern "C" int twice(int x) { return FACTOR * x; }\n')
    (tmp_path / "twice.h").write_text("#define FACTOR 2\n")
    return path


def made(tmp_path: Path) -> list[str]:
    return sorted(path.name for path in (tmp_path / "cache" / "capsella" / "libraries").iterdir())


def test_libraries_lie_in_the_cache_folder_of_data(monkeypatch: pytest.MonkeyPatch) -> None:
    assert compiler._folder().parent == cache_folder()
    monkeypatch.setenv("XDG_CACHE_HOME", "/elsewhere")
    assert compiler._folder().parent == cache_folder() == Path("/elsewhere/capsella")


@needs_compiler
def test_a_library_is_built_once_and_again_when_its_source_changes(source: Path, tmp_path: Path) -> None:
    header = source.with_name("twice.h")
    assert load(source, [header], find_compiler()).twice(21) == 42
    first = made(tmp_path)
    assert len(first) == 1
    assert first[0].startswith("twice-")
    before = (tmp_path / "cache" / "capsella" / "libraries" / first[0]).stat().st_mtime_ns
    load(source, [header], find_compiler())
    assert (tmp_path / "cache" / "capsella" / "libraries" / first[0]).stat().st_mtime_ns == before
    header.write_text("#define FACTOR 3\n")
    assert load(source, [header], find_compiler()).twice(21) == 63
    assert len(made(tmp_path)) == 2


@needs_compiler
def test_a_mistake_in_the_source_is_one_line_and_leaves_nothing_behind(source: Path, tmp_path: Path) -> None:
    source.write_text("int twice() { return nonsense; }\nint more() { return rubbish; }\n")
    with pytest.raises(BuildError, match=r"says: .*error.*nonsense") as caught:
        load(source, [], find_compiler())
    assert "\n" not in str(caught.value)
    assert made(tmp_path) == []


@needs_compiler
def test_a_file_that_is_no_library_is_an_error_of_one_line(source: Path) -> None:
    path = compiler._folder() / f"twice-{compiler._digest(source.read_bytes(), find_compiler())}.so"
    path.parent.mkdir(parents=True)
    path.write_text("not a library")
    with pytest.raises(BuildError, match=r"invalid|too short|not a"):
        load(source, [], find_compiler())


@needs_compiler
def test_processes_may_build_at_the_same_time(source: Path, tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from capsella.kernels.compiler import *\n"
        "print(load(Path(sys.argv[1]), [], find_compiler()).twice(4))"
    )
    running = [subprocess.Popen([sys.executable, "-c", code, str(source)], stdout=subprocess.PIPE, text=True) for _ in range(3)]
    assert [process.communicate()[0].strip() for process in running] == ["8"] * 3
    assert len(made(tmp_path)) == 1


def test_the_compiler_is_the_one_that_the_environment_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", f"{sys.executable} -O3")
    assert find_compiler() == [sys.executable, "-O3"]
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert find_compiler() == []
    monkeypatch.delenv("CXX")
    monkeypatch.setenv("PATH", "")
    assert find_compiler() == []


def test_without_a_compiler_plain_pytorch_routes_and_says_nothing(tmp_path: Path) -> None:
    name, said, verdicts = route(tmp_path, CXX="no-such-compiler")
    assert (name, said) == ("tiled", [])
    assert "refuses: no C++ compiler was found; expected $CXX, c++, g++ or clang++" in verdicts


def test_a_broken_compiler_is_one_warning_and_plain_pytorch_routes(tmp_path: Path) -> None:
    name, said, verdicts = route(tmp_path, CXX="false")
    assert name == "tiled"
    assert len(said) == 1
    assert "could not be built: false says: exit code 1" in said[0]
    assert "refuses: the build failed: false says: exit code 1" in verdicts


def test_a_cache_that_cannot_be_written_is_one_warning_and_plain_pytorch_routes(tmp_path: Path) -> None:
    if not find_compiler():
        pytest.skip("there is no C++ compiler")
    (tmp_path / "cache").write_text("a file, not a folder")
    name, said, _ = route(tmp_path / "cache")
    assert name == "tiled"
    assert len(said) == 1
    assert "Not a directory" in said[0]


def test_the_package_s_own_source_is_a_library_that_ctypes_can_call() -> None:
    if not find_compiler():
        pytest.skip("there is no C++ compiler")
    from capsella.kernels.compiled_agreement import HEADER, SOURCE

    library = load(SOURCE, [HEADER], find_compiler())
    assert isinstance(library, ctypes.CDLL)
    assert library.capsella_agreement_room
