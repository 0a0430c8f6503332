"""The short version of a whole paper, as a user runs it; minutes on two cores."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "cli"))
from running import capsella

# what three hundred steps of small nets show.
SHOWN = [
    "Without a bias, agreement does not learn the sign of a number; with one it does.",
    "EM as Hinton et al. define it, whose poses are means and not only directions, learns the sign with a bias alone.",
    "Without a bias, agreement nets of 4 or 5 capsule layers do not train; with one, nets of all depths do.",
    "Agreement trains up to 3 capsule layers, with a bias and without.",
    "A ReLU before the capsules protects a net without a bias: an input and its negative no longer look the same.",
    "Training converges faster with a bias, in shallow nets too.",
    "Deep nets train without a bias, blind for signs as they are, if their capsules' lengths are kept at the start.",
]


@pytest.mark.paper
@pytest.mark.timeout(1800)
def test_the_short_version_of_peer2022_shows_its_directions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if "CAPSELLA_DATA" not in os.environ:
        pytest.skip("needs MNIST and Fashion-MNIST; CAPSELLA_DATA names their folder")
    done = capsella("reproduce", "peer2022", "--quick", "--out", str(tmp_path / "out"), seconds=1500)
    assert done.returncode == 0, done.stderr
    records = list((tmp_path / "out" / "peer2022").glob("*/*/quick-seed-0.json"))
    assert len(records) == 66
    assert all(json.loads(path.read_text())["quick"] for path in records)
    page = (tmp_path / "out" / "peer2022" / "README.md").read_text()
    for text in SHOWN:
        assert f"| holds | {text} |" in page
    again = capsella("reproduce", "peer2022", "--quick", "--out", str(tmp_path / "out"))
    assert "all 66 runs are recorded" in again.stdout
