"""Libraries that are built at first use: where they go, what is said when none can be built, and that routing goes on."""

from __future__ import annotations

import ctypes
import json
import os
import sys
import warnings
from pathlib import Path

import pytest
import torch

from capsella import routing
from capsella.data.places import cache_folder
from capsella.kernels import compiled_agreement, compiler
from capsella.kernels.compiler import BuildError, find_compiler, load
from capsella.routing.dispatch import choices

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "train"))
from run_harness import Child

needs_compiler = pytest.mark.skipif(not find_compiler(), reason="there is no C++ compiler")

Answer = tuple[str, list[str], str]


def route() -> Answer:
    """Route twice; return which implementation ran, what was said of kernels, and the verdicts on all."""
    poses, weight = torch.randn(16, 240, 8), torch.randn(240, 10, 8, 16)
    with warnings.catch_warnings(record=True) as said, choices() as made:
        warnings.simplefilter("always")
        for _ in range(2):
            routing.vote_and_route("agreement", poses, weight, need_couplings=False)
    kernels = [str(one.message) for one in said if "kernel" in str(one.message)]
    return made[-1][1].name, kernels, routing.explain("agreement", poses, weight, need_couplings=False)


@pytest.fixture(scope="module")
def routed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Answer]:
    """Return the answers of processes that look for a compiler where there is none, a broken one, and no cache."""
    folder = tmp_path_factory.mktemp("routed")
    (folder / "file").write_text("a file, not a folder")
    environments = {
        "no compiler": {"XDG_CACHE_HOME": str(folder / "one"), "CXX": "no-such-compiler"},
        "a broken compiler": {"XDG_CACHE_HOME": str(folder / "two"), "CXX": "false"},
        "no cache": {"XDG_CACHE_HOME": str(folder / "file")},
    }

    def answer(name: str) -> None:
        os.environ.update(environments[name])
        # as in a process that has not looked for a compiler yet.
        compiled_agreement._library.cache_clear()
        (folder / name).write_text(json.dumps(route()))

    for name in environments:
        child = Child(lambda name=name: answer(name))
        assert child.wait() == 0, child.said
    return {name: tuple(json.loads((folder / name).read_text())) for name in environments}


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
    def build() -> None:
        raise SystemExit(load(source, [], find_compiler()).twice(4))

    # forked from one that has imported everything: they begin at the same moment.
    children = [Child(build) for _ in range(3)]
    assert [child.wait() for child in children] == [8] * 3, [child.said for child in children]
    assert len(made(tmp_path)) == 1


def test_the_compiler_is_the_one_that_the_environment_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", f"{sys.executable} -O3")
    assert find_compiler() == [sys.executable, "-O3"]
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert find_compiler() == []
    monkeypatch.delenv("CXX")
    monkeypatch.setenv("PATH", "")
    assert find_compiler() == []


def test_without_a_compiler_plain_pytorch_routes_and_says_nothing(routed: dict[str, Answer]) -> None:
    name, said, verdicts = routed["no compiler"]
    assert (name, said) == ("tiled", [])
    assert "refuses: no C++ compiler was found; expected $CXX, c++, g++ or clang++" in verdicts


def test_a_broken_compiler_is_one_warning_and_plain_pytorch_routes(routed: dict[str, Answer]) -> None:
    name, said, verdicts = routed["a broken compiler"]
    assert name == "tiled"
    assert len(said) == 1
    assert "could not be built: false says: exit code 1" in said[0]
    assert "refuses: the build failed: false says: exit code 1" in verdicts


@needs_compiler
def test_a_cache_that_cannot_be_written_is_one_warning_and_plain_pytorch_routes(routed: dict[str, Answer]) -> None:
    name, said, _ = routed["no cache"]
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
