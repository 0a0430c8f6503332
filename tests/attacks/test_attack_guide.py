"""The guide's example runs, and it names every attack."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from capsella import attacks

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "attacks.md").read_text(encoding="utf-8")


def test_its_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)[0], "attacks.md", "exec"), {})
    first, second = capsys.readouterr().out.splitlines()
    assert first == "True"
    assert second.startswith("ZeroGradients(images=0.0, pixels=")


def test_every_attack_is_named() -> None:
    assert [name for name in attacks.ATTACKS if f"`{name}(" not in TEXT] == []
