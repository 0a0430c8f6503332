"""The guide has a section for every symptom, and its examples run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from capsella.analysis import SYMPTOMS
from capsella.analysis.doctor import FIGURES
from capsella.analysis.symptoms import GUIDE

TEXT = (Path(__file__).resolve().parents[2] / GUIDE).read_text(encoding="utf-8")


@pytest.mark.parametrize("key", SYMPTOMS)
def test_every_symptom_has_a_section(key: str) -> None:
    headings = {line.removeprefix("## ").lower().replace(" ", "-") for line in TEXT.splitlines() if line.startswith("## ")}
    assert SYMPTOMS[key].section in headings


def test_every_figure_of_a_condition_is_named() -> None:
    assert [figure for figure in FIGURES if f"`{figure}`" not in TEXT] == []


@pytest.mark.parametrize("number", range(2))
def test_its_examples_run(number: int, capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)[number], GUIDE, "exec"), {})
    assert "capsules, " in capsys.readouterr().out
