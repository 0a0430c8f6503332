"""``capsella train --seeds`` and ``capsella bench together``: what they print, write and refuse, and how they end."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import signal
import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from running import in_process

from capsella.bench import together as bench_together
from capsella.cli import train_seeds
from capsella.errors import RunError
from capsella.train import Outcome, Plan, Run, Standing, children, run_plan, together

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "train"))
from together_harness import forking

GIVEN = ("train", "sign_capsnet", "--data", "sign", "--batch-size", "64", "--device", "cpu", "--validate", "none")


@pytest.fixture
def forked(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    with forking(monkeypatch, together, bench_together) as patch:
        yield patch


def only_line(err: str) -> str:
    lines = err.splitlines()
    assert len(lines) == 1, err
    assert lines[0].startswith("capsella: "), err
    return lines[0].removeprefix("capsella: ")


def test_every_seed_has_a_line_and_a_folder_and_the_spread_is_told(
    tmp_path: Path, forked: pytest.MonkeyPatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    given = (*GIVEN, "--steps", "3", "--seed", "5", "--at-once", "2")
    code, stdout, stderr = in_process(*given, "--seeds", "2")
    assert (code, stderr) == (0, "")
    # the next free folder where nobody says.
    out = Path("runs", "sign_capsnet-sign-1")
    lines = stdout.splitlines()
    pattern = r"seed {}: finished after 0\.\d+ epochs, 3 steps, \d+ s; \d+\.\d\d% right on 20,000 test images"
    assert {line.partition(":")[0] for line in lines[:2]} == {"seed 5", "seed 6"}
    for line in lines[:2]:
        assert re.fullmatch(pattern.format(r"[56]"), line), line
    shares = [(Run.load(out / f"seed-{seed}").record or {})["test"]["accuracy"] for seed in (5, 6)]
    assert f"test accuracy: {train_seeds.spread(shares)}" in lines
    assert lines[-1] == f"the runs are in {out}"
    assert [Run.load(out / f"seed-{seed}").config["train"]["seed"] for seed in (5, 6)] == [5, 6]
    # one more seed: what is there is not run again.
    code, stdout, stderr = in_process(*given, "--seeds", "3", "--out", str(out))
    assert (code, stderr) == (0, "")
    assert [line.partition(":")[0] for line in stdout.splitlines()[:3]] == [
        *("seed 5 (was there)", "seed 6 (was there)", "seed 7"),
    ]


def test_the_seeds_of_one_program_have_their_lines_and_folders(tmp_path: Path, forked: pytest.MonkeyPatch) -> None:
    processes = tmp_path / "processes"

    def noted(plan: Plan, *arguments: Any, **options: Any) -> Run:
        with processes.open("a") as file:
            file.write(f"{os.getpid()} ")
        return run_plan(plan, *arguments, **options)

    forked.setattr(children, "run_plan", noted)
    out = tmp_path / "runs"
    code, stdout, stderr = in_process(
        *GIVEN, "--steps", "3", "--seeds", "3", "--at-once", "3", "--one-program", "--out", str(out)
    )
    assert (code, stderr) == (0, "")
    assert {line.partition(":")[0] for line in stdout.splitlines()[:3]} == {"seed 0", "seed 1", "seed 2"}
    assert [(Run.load(out / f"seed-{seed}").record or {})["steps"] for seed in range(3)] == [3, 3, 3]
    assert len(processes.read_text().split()) == 3
    assert len(set(processes.read_text().split())) == 1


def test_runs_that_never_began_are_nowhere(tmp_path: Path, forked: pytest.MonkeyPatch) -> None:
    given = [argument for argument in GIVEN if argument not in ("--device", "cpu")]
    out = tmp_path / "runs"
    code, stdout, stderr = in_process(
        *given, "--device", "cuda", "--steps", "1", "--seeds", "2", "--one-program", "--out", str(out)
    )
    assert code == 1
    assert "the runs are in" not in stdout
    assert not out.exists()
    assert stderr.count("device='cuda' was asked for, and torch sees no GPU; expected 'cpu' or 'auto'") == 2


def test_a_seed_that_fails_is_one_line_and_the_others_are_told(tmp_path: Path, forked: pytest.MonkeyPatch) -> None:
    def other(plan: Plan, *arguments: Any, **options: Any) -> Run:
        if plan.train.seed == 0:
            raise RunError("the disk is full")
        return run_plan(plan, *arguments, **options)

    forked.setattr(children, "run_plan", other)
    code, stdout, stderr = in_process(*GIVEN, "--steps", "1", "--seeds", "2", "--out", str(tmp_path / "runs"))
    assert code == 1
    assert only_line(stderr) == "seed 0: the disk is full"
    assert stdout.startswith("seed 1: finished")
    assert re.search(r"0 +│ failed", stdout)


def test_a_loss_that_is_not_finite_is_one_line_and_a_failure_and_no_part_of_the_mean(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    why = "the loss of step 2 is nan; the first non-finite values are the images themselves"
    both = {"history": [], "steps": 2, "seconds": 1.0, "images_per_second": 9.0}
    good = {**both, "status": "finished", "test": {"accuracy": 0.5, "images": 8}}
    records = [good, {**both, "status": "non-finite", "test": None, "reason": why}, good]

    def pretended(jobs: Sequence[tuple[Plan, Path]], **_: object) -> Iterator[Outcome]:
        for (plan, folder), record in zip(jobs, records, strict=True):
            yield Outcome(plan, folder, Run({}, record=record))

    monkeypatch.setattr(together, "run_together", pretended)
    code, stdout, stderr = in_process(*GIVEN, "--seeds", "3", "--out", str(tmp_path / "runs"))
    assert code == 1
    assert only_line(stderr) == f"seed 1: {why}"
    assert re.search(r"1 +│ non-finite", stdout)
    assert f"test accuracy of 2 of 3 runs: {train_seeds.spread([0.5, 0.5])}" in stdout.splitlines()


def test_a_signal_ends_all_runs_and_says_how_to_go_on(tmp_path: Path, forked: pytest.MonkeyPatch) -> None:
    def stop(self: object, standings: Sequence[Standing]) -> None:
        if standings and all(each.step for each in standings):
            signal.raise_signal(signal.SIGTERM)

    forked.setattr(train_seeds.Together, "__call__", stop)
    forked.setattr(together, "LOOK", 0.02)
    long = ("--epochs", "10000", "--set", "log_every=1")
    code, _, stderr = in_process(*GIVEN, *long, "--seeds", "2", "--at-once", "2", "--out", str(tmp_path / "runs"))
    assert code == 128 + signal.SIGTERM
    assert only_line(stderr) == "stopped: 0 of 2 runs have ended; the same again goes on from there"
    assert not multiprocessing.active_children()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--seeds", "0"), "--seeds=0 is too small"),
        (("--seeds", "2", "--at-once", "0"), "--at-once=0 is too small"),
        (("--at-once", "2"), "--at-once=2 is for several runs; expected --seeds N with it"),
        (("--mps",), "--mps is for several runs; expected --seeds N with it"),
        (("--no-mps",), "--no-mps is for several runs; expected --seeds N with it"),
        (("--one-program",), "--one-program is for several runs; expected --seeds N with it"),
        (("--seeds", "2", "--mps"), "mps=True is for runs on a GPU, and none of these goes on one; leave it out"),
        (("--seeds", "2", "--tensorboard"), "--tensorboard is for one run; leave it out with --seeds"),
        (("--seeds", "2", "--resume", "x"), "--resume is for one run; leave it out with --seeds"),
        (("--seeds", "2", "--devices", "2"), "--devices=2 does not go with --seeds"),
        (("--seeds", "2", "--set", "model.depth=2"), "set='model.depth' is unknown"),
    ],
)
def test_mistakes_are_one_line_and_start_nothing(arguments: tuple[str, ...], message: str, tmp_path: Path) -> None:
    code, stdout, stderr = in_process(*GIVEN, "--out", str(tmp_path / "runs"), *arguments)
    assert (code, stdout) == (2, "")
    assert only_line(stderr).startswith(message)
    assert not (tmp_path / "runs").exists()


def test_the_folder_of_a_single_run_is_refused(tmp_path: Path) -> None:
    run_plan(Plan("sign_capsnet", "sign", test=False, validate=None).changed({"steps": 1}), tmp_path, progress=False)
    code, _, stderr = in_process(*GIVEN, "--seeds", "2", "--out", str(tmp_path))
    assert code == 2
    assert only_line(stderr) == f"folder={str(tmp_path)!r} holds a single run; choose another for the runs of several seeds"


def test_mps_goes_to_the_runs_and_what_it_warns_of_is_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool | None] = []

    def pretended(jobs: object, *, mps: bool | None, **_: object) -> Iterator[Outcome]:
        asked.append(mps)
        warnings.warn("the runs go side by side without MPS: it did not start", RuntimeWarning, stacklevel=2)
        yield from ()

    monkeypatch.setattr(together, "run_together", pretended)
    for options in ((), ("--mps",), ("--no-mps",)):
        code, _, stderr = in_process(*GIVEN, "--seeds", "2", "--out", str(tmp_path), *options)
        assert code == 0
        assert only_line(stderr) == "the runs go side by side without MPS: it did not start"
    assert asked == [None, True, False]


def standing(step: int, steps: int, **event: Any) -> Standing:
    return Standing(Plan("lenet", "mnist"), Path("x"), step, steps, {"step": step, **event} if event else None)


def test_progress_is_one_line_for_all_runs() -> None:
    assert train_seeds.describe(0, 3, []) == "0 of 3 runs done"
    assert train_seeds.describe(1, 3, [standing(0, 0)]) == "1 of 3 runs done, 1 under way at step 0"
    both = [standing(1200, 4300, loss=0.02, accuracy=0.99), standing(900, 4300, loss=0.03, accuracy=0.98)]
    expected = "2 under way at step 900 to 1,200 of 4,300, loss 0.0200 to 0.0300, accuracy 98.00% to 99.00%"
    assert train_seeds.describe(0, 3, both) == f"0 of 3 runs done, {expected}"


def test_without_a_terminal_progress_is_said_now_and_then(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = [0.0]
    monkeypatch.setattr(train_seeds.time, "monotonic", lambda: now[0])
    progress = train_seeds.Together(2)
    for at in (1.0, 29.0, 31.0, 45.0, 62.0):
        now[0] = at
        progress([standing(int(at), 100)])
    lines = capsys.readouterr().err.splitlines()
    assert lines == [f"0 of 2 runs done, 1 under way at step {at} of 100" for at in (31, 62)]


def test_a_quick_measurement_is_printed_and_written_with_its_winner(tmp_path: Path, forked: pytest.MonkeyPatch) -> None:
    out = tmp_path / "together.json"
    code, stdout, stderr = in_process("bench", "together", "--device", "cpu", "--quick", "--steps", "50", "--out", str(out))
    assert code == 0, stderr
    found = json.loads(out.read_text())
    assert found["kind"] == "together"
    assert [(each["way"], each["at_once"]) for each in found["readings"]] == [
        *(("processes", 1), ("processes", 2), ("program", 1), ("program", 2)),
    ]
    # on a busy machine two runs of a fraction of a second may miss each other; one alone cannot.
    assert {each["problem"] for each in found["readings"] if each["at_once"] == 1} == {""}
    assert {each["problem"] for each in found["readings"] if each["at_once"] == 2} <= {"", bench_together.APART}
    (best,) = found["winners"]
    assert best["runs_per_minute"] == max(each["runs_per_minute"] for each in found["readings"] if not each["problem"])
    way = found["ways"][best["way"]]
    assert f"* most runs of sign_capsnet, 50 steps each: {best['at_once']} at once, {way}: " in stdout
    assert "several runs at once on " in stdout


ONE = bench_together.TogetherReading("processes", "lenet", 1, 8, "float32", False, 50, 9.0, 8.0, 10.0, 5, 1.0, 2.0, 2.0, 7.25)


def test_the_time_is_over_after_the_reading_that_passes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[str] = []

    def measured(*_: object, **__: object) -> Iterator[bench_together.TogetherReading]:
        try:
            yield ONE
            yield ONE
        finally:
            ended.append("processes")

    monkeypatch.setattr(bench_together, "measure", measured)
    out = tmp_path / "together.json"
    code, stdout, stderr = in_process("bench", "together", "--device", "cpu", "--minutes", "1e-9", "--out", str(out))
    assert code == 0
    assert stderr == "together: stopped after 1 readings, the time is over\n"
    found = json.loads(out.read_text())
    assert (len(found["readings"]), found["complete"]) == (1, False)
    assert "* most runs of lenet" in stdout
    assert ended == ["processes"]
    monkeypatch.setattr(bench_together, "measure", lambda *_, **__: iter([ONE]))
    assert in_process("bench", "together", "--device", "cpu", "--out", str(out))[0] == 0
    assert json.loads(out.read_text())["complete"] is True


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("command", ["together", "all"])
def test_a_signal_ends_the_measurement_and_what_there_is_is_shown(
    command: str, number: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = signal.getsignal(number)
    ended: list[str] = []

    def measured(*_: object, **__: object) -> Iterator[bench_together.TogetherReading]:
        try:
            yield ONE
            signal.raise_signal(number)
            yield ONE
        finally:
            ended.append("processes")

    monkeypatch.setattr(bench_together, "measure", measured)
    out = tmp_path / "together.json" if command == "together" else tmp_path
    options = () if command == "together" else ("--kind", "together")
    code, stdout, stderr = in_process("bench", command, *options, "--device", "cpu", "--quick", "--out", str(out))
    assert code == 128 + number
    assert ended == ["processes"]
    assert stderr == f"together: stopped after 1 readings by {number.name}\n"
    (path,) = tmp_path.glob("together*.json")
    assert [each["runs_per_minute"] for each in json.loads(path.read_text())["readings"]] == [7.25]
    assert "7.25 *" in stdout
    assert "* most runs of lenet, 50 steps each: 1 at once, processes: 7.25 a minute" in stdout
    assert "not measured" not in stdout
    assert signal.getsignal(number) == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--at-once", "1,x"), "--at-once='1,x' is no list of whole numbers; expected for example 0,1,2"),
        (("--at-once", "0,2"), "--at-once='0,2' has 0; expected whole numbers of at least 1"),
        (("--at-once", "2,2"), "--at-once='2,2' has a number twice; expected each once"),
        (("--models", "capsnett"), "model='capsnett' is unknown; did you mean 'capsnet'"),
        (("--ways", "threads"), "way='threads' is unknown"),
        (("--precision", "tf32"), "precision='tf32' is unknown"),
        (("--steps", "0"), "--steps=0 is too small"),
        (("--batch-size", "0"), "--batch-size=0 is too small"),
        (("--seconds", "0"), "--seconds=0"),
        (("--minutes", "0"), "--minutes=0"),
        (("--out", "/dev/null/x.json"), "--out=/dev/null/x.json cannot be written to"),
    ],
)
def test_mistakes_of_the_measurement_are_one_line(arguments: tuple[str, ...], message: str) -> None:
    code, stdout, stderr = in_process("bench", "together", "--device", "cpu", *arguments)
    assert (code, stdout) == (2, "")
    assert only_line(stderr).startswith(message)
