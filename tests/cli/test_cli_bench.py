"""``capsella bench`` on the CPU with small sizes and a few made digits: what it prints and writes, and what it refuses."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
from running import in_process

from capsella.bench.timing import WrongValues
from capsella.errors import DataError

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "data"))
from made_files import use_as_mnist, write_mnist

pytestmark = pytest.mark.usefixtures("own_litter")


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


def test_batches_are_a_kind_of_all_and_a_section_of_the_page(root: Path, tmp_path: Path) -> None:
    records, docs = tmp_path / "records", tmp_path / "docs"
    arguments = ("all", "--kind", "data", "--quick", "--device", "cpu", "--root", str(root), "--out", str(records))
    code, shown, err = run(*arguments)
    assert code == 0
    assert "data, mnist40, batches(): timed\n" in err
    assert "floor of mnist40: 7,200 bytes an image" in shown
    assert run("page", "--results", str(records), "--out", str(docs))[0] == 0
    page = (docs / "speed.md").read_text()
    assert "### Drawing batches" in page
    assert re.search(
        r"\| mnist40, batches\(\), images/s \| [\d,]+ \([\d,]+ to [\d,]+\) \| [\d,]+ \| [\d.,]+ \| 7,200 bytes", page
    )


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (WrongValues("3% of images differ"), 1, "wrong: 3% of images differ; it was not timed"),
        (DataError("nothing was fetched"), 0, "no data: nothing was fetched"),
    ],
)
def test_batches_that_cannot_be_timed_do_not_end_all(
    error: Exception, code: int, said: str, root: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fails(*_: object) -> None:
        raise error

    monkeypatch.setattr("capsella.bench.data.check", fails)
    records = tmp_path / "records"
    arguments = ("all", "--kind", "data", "--quick", "--device", "cpu", "--root", str(root), "--out", str(records))
    found, shown, err = run(*arguments)
    assert found == code
    assert said in err
    assert "drawing batches" in shown
    assert run("page", "--results", str(records), "--out", str(tmp_path))[0] == 0
    assert "Traceback" not in err


def test_without_a_verb_the_help_is_shown() -> None:
    code, out, err = run()
    assert (code, err) == (0, "")
    assert "Time drawing batches and loading MNIST" in out
    for verb in ("data", "routing", "step", "growth", "attention", "bars", "all", "page"):
        code, out, err = run(verb, "--help")
        assert (code, err) == (0, ""), verb
        assert "--out" in out


def test_an_interruption_is_said(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("capsella.bench.data.measure", stopped)
    code, _out, err = run("data", "--device", "cpu", "--root", str(root))
    assert (code, err) == (130, "capsella: interrupted; nothing was left half-written\n")


def routing_run(*arguments: str) -> tuple[int, str, str]:
    return run("routing", "--device", "cpu", "--quick", "--case", "plain", "--algorithm", "uniform", *arguments)


def test_routing_prints_and_writes_both_passes(tmp_path: Path) -> None:
    out = tmp_path / "routing.json"
    code, shown, err = routing_run("--out", str(out))
    assert code == 0
    assert err.startswith("uniform, plain, float32: gate green, ")
    found = json.loads(out.read_text())
    assert found["kind"] == "routing"
    timed = [reading for reading in found["readings"] if not reading["problem"]]
    assert {reading["mode"] for reading in timed} == {"forward", "forward + backward"}
    assert {reading["case"] for reading in timed} == {"plain"}
    assert "reference" in {reading["implementation"] for reading in timed}
    assert "plain: B3 I6 J4 D5 P7" in shown


def test_a_red_gate_prints_no_time_and_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("capsella.bench.routing.red", lambda problem, runs, device: dict.fromkeys(runs, "wrong: poses: off"))
    monkeypatch.setattr("capsella.bench.routing._EAGER", None)
    monkeypatch.setattr("capsella.bench.routing._timed", lambda *_: {})
    code, shown, err = routing_run("--out", str(tmp_path / "routing.json"))
    assert code == 1
    assert "capsella: uniform, plain, float32, reference: wrong: poses: off; it was not timed\n" in err
    assert "wrong: poses: off" in shown
    assert {reading["median"] for reading in json.loads((tmp_path / "routing.json").read_text())["readings"]} == {0.0}


def test_an_interrupted_run_keeps_what_it_has_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from capsella.bench import routing

    real = routing.measure

    def stopped(*arguments: object, **options: object) -> object:
        readings = real(*arguments, **options)  # type: ignore[arg-type]
        yield next(readings)
        raise KeyboardInterrupt

    monkeypatch.setattr(routing, "measure", stopped)
    out = tmp_path / "routing.json"
    code, _, err = routing_run("--out", str(out))
    assert code == 130
    assert err.endswith("capsella: interrupted; nothing was left half-written\n")
    assert len(json.loads(out.read_text())["readings"]) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("step", "--quick", "--size", "5"), "image_size=(5, 5) is too small for the trunk"),
        (("routing", "--case", "capsnet-29"), "case='capsnet-29' is unknown; did you mean 'capsnet-28'"),
        (("routing", "--algorithm", "agrement"), "routing='agrement' is unknown; did you mean 'agreement'"),
        (("routing", "--precision", "float64"), "precision='float64' is unknown"),
        (("routing", "--budget", "0"), "--budget=0"),
        (("routing", "--out", "/dev/null/x.json"), "--out=/dev/null/x.json cannot be written to"),
        (("step", "--model", "capsnett"), "model='capsnett' is unknown; did you mean 'capsnet'"),
        (("step", "--precision", "tf32"), "precision='tf32' is unknown"),
        (("step", "--batch-size", "0"), "--batch-size=0 is too small"),
        (("step", "--size", "0"), "--size=0 is too small"),
        (("growth", "--algorithm", "ems"), "routing='ems' is unknown; did you mean 'em'"),
        (("growth", "--budget", "-1"), "--budget=-1"),
        (("attention", "--budget", "0"), "--budget=0"),
        (("bars", "--part", "half"), "--part='half' is unknown"),
        (("all", "--out", "/dev/null/x"), "--out=/dev/null/x cannot be written to; expected a folder of yours"),
        (("all", "--out", "x", "--kind", "dat"), "kind='dat' is unknown"),
        (("all", "--out", "x", "--minutes", "0"), "--minutes=0"),
    ],
)
def test_mistakes_of_all_verbs_are_one_line(arguments: tuple[str, ...], message: str) -> None:
    code, out, err = run(*arguments, "--device", "cpu")
    assert (code, out) == (2, "")
    assert err.startswith(f"capsella: {message}")
    assert err.count("\n") == 1


def test_missed_bars_are_said_and_are_no_failure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from capsella.bench.bars import BarReading

    made = [BarReading("a step", "ms", must=2, aim=1, measured=3, says="by hand"), BarReading("b", "×", 2, 0, None, says="no")]
    monkeypatch.setattr("capsella.bench.bars.measure", lambda device, **_: made)
    out = tmp_path / "bars.json"
    code, shown, err = run("bars", "--device", "cpu", "--out", str(out))
    assert (code, err) == (0, "")
    assert "MISSED by 1.5×" in shown
    assert "1 of 2 bars missed, 1 not measured" in shown
    assert json.loads(out.read_text())["verdicts"] == ["MISSED by 1.5×", "not measured"]


def test_all_writes_a_file_for_every_kind_and_a_page_can_be_made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import torch

    from capsella.bench import growth
    from capsella.bench.routing import Speeds

    monkeypatch.setattr(torch, "compile", lambda run, **_: run)
    # the profiler and the device's own speeds take longer than everything else.
    monkeypatch.setattr("capsella.bench.clock._peak_on_cpu", lambda run: 64)
    monkeypatch.setattr("capsella.bench.routing.Speeds.of", lambda device, precisions: Speeds(1e9, {"float32": 1e9}))
    case = growth.QUICK.base
    monkeypatch.setattr(growth, "QUICK", growth.Grid(case, {axis: (getattr(case, axis),) for axis in growth.AXES}))
    monkeypatch.setattr("capsella.bench.routing.SMALL", (case,))
    records, docs = tmp_path / "records", tmp_path / "docs"
    code, shown, _ = run("all", "--device", "cpu", "--quick", "--out", str(records))
    assert code == 0
    names = sorted(path.name.split("-")[0] for path in records.glob("*.json"))
    assert names == ["attention", "growth", "routing", "step"]
    assert "self-attention (MHSA)" in shown
    code, shown, err = run("page", "--results", str(records), "--out", str(docs))
    assert (code, err) == (0, "")
    assert "### Routing by agreement and self-attention" in (docs / "speed.md").read_text()
    assert len(list((docs / "speed").glob("*.svg"))) == 3


def test_the_time_is_over_after_the_reading_that_passes_it(tmp_path: Path) -> None:
    code, _, err = run("all", "--device", "cpu", "--quick", "--kind", "routing", "--minutes", "1e-9", "--out", str(tmp_path))
    assert code == 0
    assert "routing: stopped after 1 readings, the time is over\n" in err
    (path,) = tmp_path.glob("*.json")
    assert len(json.loads(path.read_text())["readings"]) == 1


def test_a_page_without_records_is_a_failure_in_one_line(tmp_path: Path) -> None:
    code, out, err = run("page", "--results", str(tmp_path), "--out", str(tmp_path))
    assert (code, out) == (1, "")
    assert err.startswith(f"capsella: {tmp_path} has no records of capsella bench")
