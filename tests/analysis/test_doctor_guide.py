"""The guide has a section for every symptom, and its examples run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from capsella.analysis import SYMPTOMS, symptoms
from capsella.analysis.doctor import FIGURES, summary
from capsella.analysis.symptoms import GUIDE

TEXT = (Path(__file__).resolve().parents[2] / GUIDE).read_text(encoding="utf-8")


@pytest.mark.parametrize("key", SYMPTOMS)
def test_every_symptom_has_a_section(key: str) -> None:
    headings = {line.removeprefix("## ").lower().replace(" ", "-") for line in TEXT.splitlines() if line.startswith("## ")}
    assert SYMPTOMS[key].section in headings


def test_every_figure_of_a_condition_is_named() -> None:
    assert [figure for figure in FIGURES if f"`{figure}`" not in TEXT] == []


def section(name: str) -> str:
    return " ".join(TEXT.split(f"## {name}\n")[1].split("\n## ")[0].split())


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("Starvation", "if it is more than the share of dead capsules there"),
        ("Viewpoint", f"where chance alone gives more than {symptoms._SAME}, nothing is said"),
        ("Negation", "the network's scores"),
        ("Static routing", "as the mean over live sources"),
    ],
)
def test_every_rule_is_written_down(name: str, rule: str) -> None:
    assert rule in section(name)


def test_what_a_condition_on_views_looks_at_is_what_is_measured() -> None:
    def row(correlation: float) -> dict[str, float | bool]:
        return {"amount": 180, "correlation": correlation, "chance": 0.9, "is_mild": False}

    plain = {"name": "", "capsules": 1, "dim": 1, "cnm": 1.0, "car": 1.0, "cds": 0, "cdr": 0.0, "dead": [False]}
    layers = [{**plain, "viewpoint": {"rotation": [row(value)]}} for value in (0.1, 0.7, 0.2)]
    # of a hidden layer, however large the change is, and without taking chance away.
    assert "hidden layer" in TEXT
    assert summary({"images": 10, "layers": layers})["viewpoint"] == 0.7
    assert summary({"images": 10, "layers": layers[:2]})["viewpoint"] == 0.1


@pytest.mark.parametrize("number", range(3))
def test_its_examples_run(number: int, capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)[number], GUIDE, "exec"), {})
    assert "capsules, " in capsys.readouterr().out
