"""The shape of the source: which way imports go, what is public, what is not written at all."""

from __future__ import annotations

import ast
import functools
import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest

import capsella
from capsella import routing

SOURCE = Path(capsella.__file__).parent
FILES = sorted(SOURCE.rglob("*.py"))

# a part may import from itself and from those before it.
ORDER = [
    *("errors", "shapes", "functional", "routing", "kernels", "nn", "models", "data", "analysis"),
    *("train", "attacks", "papers", "testing", "bench", "report", "web", "cli", "__main__"),
]
# what anyone may take from the lazy top level.
ANYONES = {"__version__", "__numerics__"}
PUBLIC = ["capsella", "capsella.data", "capsella.functional", "capsella.routing", "capsella.nn", "capsella.models"]


def part_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def package_of(path: Path) -> str:
    return ".".join(("capsella", *path.relative_to(SOURCE).parts[:-1]))


# several checks in a row look at the same file.
parsed = functools.lru_cache(maxsize=1)(ast.parse)


def imported(tree: ast.AST, package: str) -> Iterator[str]:
    """Yield the full name of everything that is imported, at any depth of the file."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            yield from (f"{module}.{alias.name}" for alias in node.names)


def import_violations(source: str, part: str, package: str = "capsella.x") -> list[str]:
    """List what a file of ``part`` imports although it may not."""
    if part not in ORDER:
        return [f"{part} has no place in ORDER"]
    found = []
    for name in imported(parsed(source), package):
        top, *rest = name.split(".")
        if top != "capsella" or (rest and rest[0] in ANYONES):
            continue
        if not rest or rest[0] not in ORDER:
            found.append(f"{name}: import it from the folder that defines it")
        elif ORDER.index(rest[0]) > ORDER.index(part):
            found.append(f"{name}: comes after {part}")
    return found


def method_calls(source: str, names: set[str]) -> list[str]:
    return [
        f"line {node.lineno}: .{node.func.attr}("
        for node in ast.walk(parsed(source))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in names
    ]


def asserts(source: str) -> list[str]:
    return [f"line {node.lineno}" for node in ast.walk(parsed(source)) if isinstance(node, ast.Assert)]


def public_names(source: str) -> set[str]:
    """Collect what an ``__init__`` defines or imports from this package, without leading underscores."""
    names: set[str] = set()
    todo: list[ast.stmt] = list(parsed(source).body)
    while todo:
        node = todo.pop()
        if isinstance(node, ast.If):
            todo += node.body
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "capsella":
            names |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return {name for name in names if not name.startswith("_")}


each_file = pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))


def test_the_source_is_found() -> None:
    assert {"errors", "functional", "routing", "nn", "models", "testing", "cli"} <= {part_of(path) for path in FILES}


@each_file
def test_imports_go_one_way(path: Path) -> None:
    if path == SOURCE / "__init__.py":
        return  # lazy: it names every part and loads none.
    assert import_violations(path.read_text(), part_of(path), package_of(path)) == []


@pytest.mark.parametrize(
    ("part", "source", "wrong"),
    [
        ("routing", "from capsella.nn import CapsuleLinear", True),
        ("routing", "import capsella.nn", True),
        ("routing", "from capsella import nn", True),
        ("routing", "from capsella import create_model", True),
        ("routing", "import capsella", True),
        ("routing", "def late():\n    from capsella.models.base import Model", True),
        ("routing", "from ..nn import base", True),
        ("errors", "from capsella.shapes import dims", True),
        ("somewhere", "import math", True),
        ("nn", "from capsella.routing.base import Routed", False),
        ("nn", "from capsella.nn.base import RoutingLayer", False),
        ("nn", "from . import base", False),
        ("cli", "from capsella import __version__", False),
        ("routing", "import math\nfrom torch import nn", False),
    ],
)
def test_the_import_checker_sees_what_it_should(part: str, source: str, wrong: bool) -> None:
    assert bool(import_violations(source, part, f"capsella.{part}")) == wrong


@each_file
def test_no_file_calls_what_is_not_written_here(path: Path) -> None:
    source = path.read_text()
    assert method_calls(source, {"cuda"}) == []
    if part_of(path) != "kernels":
        assert method_calls(source, {"view", "permute", "transpose"}) == []
    assert asserts(source) == []
    assert not [name for name in imported(parsed(source), package_of(path)) if name.split(".")[0] == "torchvision"]


def test_the_other_checkers_see_what_they_should() -> None:
    assert method_calls("x = y.mean().cuda()", {"cuda"}) == ["line 1: .cuda("]
    assert method_calls("a = 1\nx.view(2).permute(0, 1)", {"view", "permute"}) == ["line 2: .permute(", "line 2: .view("]
    assert method_calls("torch.cuda.is_available(); view = 3", {"cuda", "view"}) == []
    assert asserts("def f(x):\n    assert x > 0, 'x'") == ["line 2"]
    source = "from torch import nn\nfrom capsella.a import b as c\nif X:\n    from capsella import d\nE = 1\n_f = 2"
    assert public_names(source) == {"c", "d", "E"}


@pytest.mark.parametrize("name", PUBLIC)
def test_public_names_are_listed_once_and_resolve(name: str) -> None:
    module = importlib.import_module(name)
    listed = list(module.__all__)
    assert len(set(listed)) == len(listed)
    source = Path(str(module.__file__)).read_text()
    assert set(listed) - ANYONES == public_names(source)
    for entry in listed:
        assert getattr(module, entry) is not None
    assert set(listed) <= set(dir(module))


def test_an_unknown_public_name_lists_the_near_matches() -> None:
    with pytest.raises(AttributeError, match=r"^capsella has no such name: .*'creat_model'.*did you mean 'create_model'.*$"):
        _ = capsella.creat_model  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", routing.names())
def test_every_algorithm_names_its_paper_and_its_departures(name: str) -> None:
    entry = routing.get(name)
    module = importlib.import_module(entry.reference.__module__)
    assert entry.paper.strip()
    assert "Departures:" in (module.__doc__ or "")


@pytest.mark.parametrize("path", sorted((SOURCE / "routing").glob("*.py")), ids=lambda path: path.name)
def test_every_routing_file_holds_one_algorithm_or_none(path: Path) -> None:
    here = [name for name in routing.names() if routing.get(name).reference.__module__ == f"capsella.routing.{path.stem}"]
    assert here == ([] if path.stem in ("__init__", "base", "dispatch") else [path.stem])
    if here:
        assert "Departures:" in (ast.get_docstring(parsed(path.read_text())) or "")
