"""``capsella bench data`` on the CPU with a few made digits: what it prints and writes, and what it refuses."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from running import in_process

from capsella.bench.timing import WrongValues

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "data"))
from made_files import use_as_mnist, write_mnist


def run(*arguments: str) -> tuple[int, str, str]:
    return in_process("bench", *arguments)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("capsella.bench.data.MNIST", write_mnist(tmp_path))
    use_as_mnist(monkeypatch, write_mnist(tmp_path))
    return tmp_path


def test_a_small_run_prints_and_writes_every_reading(root: Path, tmp_path: Path) -> None:
    out = tmp_path / "new" / "record.json"
    code, shown, err = run(
        "data", "--device", "cpu", "--root", str(root), "--images", "32", "--batch-size", "8", "--out", str(out)
    )
    assert (code, err) == (0, "")
    found = json.loads(out.read_text())
    assert found["kind"] == "data"
    assert found["batch_size"] == 8
    names = [reading["name"] for reading in found["readings"]]
    assert names == [
        *("mnist40, batches()", "mnist40, batch()", "mnist, ±2 shift, batches()", "mnist, ±2 shift, batch()"),
        *("mnist, affnist-style, batches()", "mnist, affnist-style, batch()"),
        *("multimnist, both digits, batches()", "multimnist, both digits, batch()", "load mnist train"),
    ]
    for reading in found["readings"]:
        assert 0 < reading["low"] <= reading["median"] <= reading["high"]
        assert reading["floor"] > 0
    # each pixel written once as float32, each original read once, label and index.
    assert "floor of mnist40: 7,200 bytes an image" in shown
    assert "floor of multimnist, both digits: 17,136 bytes an image" in shown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--batch-size", "0"), "--batch-size=0 is too small"),
        (("--images", "0"), "--images=0 is too small"),
        (("--device", "tpu"), "--device=tpu is unknown; expected cpu, cuda or cuda:0"),
        (("--device", "cpu:x"), "--device=cpu:x is unknown"),
        (("--out", "/dev/null/x.json"), "--out=/dev/null/x.json cannot be written to"),
        (("--batch-size", "201"), "batch_size=201 is too large; expected at most 200, the images of mnist40"),
    ],
)
def test_mistakes_are_one_line(root: Path, arguments: tuple[str, ...], message: str) -> None:
    code, out, err = run("data", "--device", "cpu", "--root", str(root), *arguments)
    assert (code, out) == (2, "")
    assert err.startswith(f"capsella: {message}")
    assert err.count("\n") == 1


def test_nothing_is_timed_where_values_are_wrong(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(*arguments: object) -> None:
        raise WrongValues("mnist40: 3.00% of images differ between cuda and the CPU; nothing is timed")

    monkeypatch.setattr("capsella.bench.data.check", wrong)
    code, out, err = run("data", "--device", "cpu", "--root", str(root))
    assert (code, out) == (1, "")
    assert err == "capsella: mnist40: 3.00% of images differ between cuda and the CPU; nothing is timed\n"


def test_without_a_verb_the_help_is_shown() -> None:
    code, out, err = run()
    assert (code, err) == (0, "")
    assert "Time drawing batches and loading MNIST" in out


def test_an_interruption_is_said(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("capsella.bench.data.measure", stopped)
    code, _out, err = run("data", "--device", "cpu", "--root", str(root))
    assert (code, err) == (130, "capsella: interrupted; nothing was left half-written\n")
