"""The package as a whole: version, names, typing marker, README and the first example."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import capsella

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "capsella"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def test_the_version_is_stated_once() -> None:
    assert "version" in PROJECT["project"]["dynamic"]
    assert "version" not in PROJECT["project"]
    assert PROJECT["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "capsella.__version__"}
    # what the build backend reads: the literal, without importing the package.
    module = ast.parse((SOURCE / "__init__.py").read_text(encoding="utf-8"))
    stated = [
        ast.literal_eval(node.value)
        for node in module.body
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "__version__" for t in node.targets)
    ]
    assert stated == [capsella.__version__]
    assert re.fullmatch(r"\d+\.\d+\.\d+(\.?(a|b|rc|dev)\d+)?", capsella.__version__)


def test_this_checkout_is_what_is_tested() -> None:
    assert Path(capsella.__file__).resolve().parent == SOURCE


def test_every_public_name_resolves() -> None:
    for name in capsella.__all__:
        assert getattr(capsella, name) is not None, name
    assert set(capsella.__all__) <= set(dir(capsella))


def test_an_unknown_name_lists_near_matches() -> None:
    with pytest.raises(AttributeError, match=r"'create_modle' is unknown; did you mean 'create_model'") as caught:
        capsella.create_modle  # noqa: B018
    assert "\n" not in str(caught.value)
    assert not hasattr(capsella, "nothing_like_it")
    with pytest.raises(ImportError):
        from capsella import nothing_like_it  # noqa: F401


def test_type_annotations_are_shipped() -> None:
    assert (SOURCE / "py.typed").is_file()
    assert "py.typed" in PROJECT["tool"]["setuptools"]["package-data"]["capsella"]
    assert "Typing :: Typed" in PROJECT["project"]["classifiers"]


def python_blocks(page: str) -> list[str]:
    text = (ROOT / page).read_text(encoding="utf-8")
    return re.findall(r"^```python[^\n]*\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)


def test_the_code_in_the_readme_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    blocks = python_blocks("README.md")
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "readme"}  # blocks may go on from those above
    needs_data = [block for block in blocks if "load_data" in block]
    assert 0 < len(needs_data) < len(blocks)
    for number, block in enumerate([block for block in blocks if block not in needs_data], start=1):
        exec(compile(block, f"README.md, block {number}", "exec"), names)
    monkeypatch.setenv("CAPSELLA_DATA", str(request.getfixturevalue("real_mnist")))
    for block in needs_data:
        exec(compile(block, "README.md, block with data", "exec"), names)


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="without triton there is no fused implementation")
def test_what_the_readme_says_explain_prints_is_what_it_prints() -> None:
    from capsella.routing.dispatch import candidates

    (block,) = [block for block in python_blocks("README.md") if "routing.explain" in block]
    said = [line.removeprefix("#   ").split()[:2] for line in block.splitlines() if line.startswith("#   ")]
    assert said == [[entry.name, entry.op] for entry in candidates("agreement", "vote_and_route")]


def test_the_data_set_in_the_docs_works(capsys: pytest.CaptureFixture[str]) -> None:
    from capsella.data.registry import _SETS

    (block,) = [block for block in python_blocks("docs/data.md") if "register_data" in block]
    try:
        exec(compile(block, "docs/data.md", "exec"), {"__name__": "docs"})
    finally:
        _SETS.pop("stripes", None)
    assert capsys.readouterr().out == "torch.Size([2, 1, 8, 8])\n"


def test_the_accuracies_in_the_readme_are_those_of_the_record() -> None:
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    found = json.loads((ROOT / "results" / "quickstart.json").read_text(encoding="utf-8"))["networks"]
    assert [network["name"] for network in found] == ["capsnet_small", "convnet_small"]
    for network in found:
        (line,) = [line for line in page.splitlines() if line.startswith(f"│ {network['name']} ")]
        shares = f"{network['accuracy']:.2%}", f"{network['accuracy_affine']:.2%}"
        expected = [network["name"], f"{network['parameters']:,}", *shares, f"{network['seconds']:.0f} s"]
        assert [cell.strip() for cell in line.strip("│").split("│")] == expected


EXAMPLE = str(ROOT / "examples" / "learn_the_sign.py")


def test_the_first_example_shows_what_both_networks_learned(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [EXAMPLE, "--epochs", "1"])
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setenv("NO_COLOR", "1")
    runpy.run_path(EXAMPLE, run_name="__main__")
    shown = capsys.readouterr().out
    rows = {name: re.search(rf"│ {name} +│ +(\d+\.\d)%((?: +│ +\d\.\d+)+) +│", shown) for name in ("without bias", "with bias")}
    assert all(rows.values()), shown
    # without a bias −x and x cannot be told apart: at most half are right, and probes mirror each other.
    share, probes = rows["without bias"].groups()
    values = re.findall(r"\d\.\d+", probes)
    assert float(share) <= 50.0
    assert values == values[::-1]
    assert float(rows["with bias"][1]) > float(share)
    gaps = dict(re.findall(r"^(with(?:out)? bias): .* differ by at most (\S+)$", shown, flags=re.MULTILINE))
    assert float(gaps["without bias"]) == 0
    assert float(gaps["with bias"]) > 0


def test_the_first_example_refuses_zero_epochs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", [EXAMPLE, "--epochs", "0"])
    with pytest.raises(SystemExit) as stop:
        runpy.run_path(EXAMPLE, run_name="__main__")
    assert stop.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "--epochs=0 is too small; expected at least 1" in err


FIVE = str(ROOT / "examples" / "examine_five_layers.py")


def test_the_example_of_five_layers_trains_the_paper_s_net_in_five_ways() -> None:
    plans = runpy.run_path(FIVE)["plans"](60, "cpu", 0)
    assert {plan.model for plan in plans.values()} == {"parse_capsnet"}
    assert [plan.model_options for plan in plans.values()] == [
        {},
        {"routing": "uniform"},
        {"bias": True},
        {"init": "length_preserving"},
        {"routing": "uniform", "init": "length_preserving"},
    ]


def test_the_page_of_five_layers_is_what_its_records_say() -> None:
    page = ROOT / "docs" / "five_layers.md"
    text = page.read_text(encoding="utf-8")
    assert text == runpy.run_path(FIVE)["story"](ROOT / "results" / "five_layers", page)
    links = re.findall(r"\]\((.*?)\)", text)
    assert len(links) == 16
    assert all((page.parent / link.partition("#")[0]).is_file() for link in links)


def test_the_page_of_five_layers_has_the_paper_s_figures_beside_its_own() -> None:
    text = (ROOT / "docs" / "five_layers.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([1-5]) \| (\S+) \| (.*?) \| (\d+%) \| (\d+%) \|$", text, flags=re.MULTILINE)
    assert [row[2] for row in rows] == ["4.50 ± 0.17", "1.72 ± 0.11", "1.79 ± 0.16", "3.78 ± 0.38", "–"]
    assert [row[4] for row in rows] == ["0%", "7%", "56%", "63%", "0%"]
    layers = json.loads((ROOT / "results" / "five_layers" / "agreement.json").read_text(encoding="utf-8"))["layers"]
    assert [row[1] for row in rows] == [*(f"{layer['dys']:.2f}" for layer in layers[:-1]), "–"]
    assert [row[3] for row in rows] == [f"{layer['cdr']:.0%}" for layer in layers]


def test_the_page_of_five_layers_does_not_advise_what_was_done() -> None:
    text = (ROOT / "docs" / "five_layers.md").read_text(encoding="utf-8")
    parts = dict(re.findall(r"^## (.*?)\n\n```\n(.*?)```", text, flags=re.MULTILINE | re.DOTALL))
    assert len(parts) == 5
    for title, says in parts.items():
        assert "length-preserving start" not in says or "length-preserving" not in title


def test_the_page_of_five_layers_can_be_made_of_records_of_before(tmp_path: Path) -> None:
    later = ("pictures", "training", "compactness", "views_skipped", "negation_by")
    for path in (ROOT / "results" / "five_layers").rglob("*.json"):
        found = json.loads(path.read_text(encoding="utf-8"))
        place = tmp_path / path.relative_to(ROOT / "results" / "five_layers")
        place.parent.mkdir(exist_ok=True)
        place.write_text(json.dumps({key: value for key, value in found.items() if key not in later}), encoding="utf-8")
    text = runpy.run_path(FIVE)["story"](tmp_path, tmp_path / "page.md")
    assert text.count("capsules, 10,000 images") == 5


@pytest.mark.slow
def test_the_wheel_works_in_a_clean_environment(tmp_path: Path) -> None:
    def call(*command: str | Path) -> str:
        return subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True, timeout=600).stdout

    source = tmp_path / "source"
    shutil.copytree(ROOT, source, ignore=shutil.ignore_patterns(".*", "build", "*.egg-info", "__pycache__"))
    call(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", tmp_path / "wheels", source)
    (wheel,) = (tmp_path / "wheels").glob("capsella-*.whl")
    call(sys.executable, "-m", "venv", tmp_path / "venv")
    python = tmp_path / "venv" / "bin" / "python"
    call(python, "-m", "pip", "install", "--quiet", "-c", ROOT / "constraints.txt", wheel)
    assert call(tmp_path / "venv" / "bin" / "capsella", "--version") == f"capsella {capsella.__version__}\n"
    program = "import capsella, torch; print(capsella.create_model('capsnet_small')(torch.rand(2, 1, 28, 28)).scores.shape)"
    assert call(python, "-c", program) == "torch.Size([2, 10])\n"


def test_any_import_of_routing_has_all_implementations_and_moves_no_random_numbers() -> None:
    # first the lowest module: whatever else is imported goes through the package as well.
    program = """
import torch
torch.manual_seed(0)
before = torch.get_rng_state()
from capsella.routing.base import IMPLEMENTATIONS
print(*{entry.name for entry in IMPLEMENTATIONS})
import capsella, capsella.models, capsella.testing
assert torch.equal(before, torch.get_rng_state())
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run([sys.executable, "-c", program], timeout=120, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert {"matmul", "reference", "tiled"} <= set(done.stdout.split())
