"""Several runs at once on the bench: counted while all are running, compared first, and no process left behind."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from capsella.bench import cohort, runner, together
from capsella.bench.cohort import Cohort, NoAnswer
from capsella.bench.runner import Task, Track
from capsella.bench.timing import record
from capsella.bench.together import MPS, PROCESSES, PROGRAM, TogetherReading
from capsella.report.speed import speed_page

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "train"))
from together_harness import NEW_INTERPRETERS, forking, new_interpreters

CPU = torch.device("cpu")
TINY = Task("sign_capsnet", 4, "float32", fast=False, device="cpu", batches=2)


@pytest.fixture
def forked(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    with forking(monkeypatch, together) as patch:
        yield patch


def test_processes_and_one_program_are_timed_at_every_number(forked: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    options: dict[str, Any] = {"at_once": (2,), "ways": together.ways(CPU), "steps": 100, "seconds": 0.05, "say": said.append}
    found = list(together.measure([TINY], CPU, **options))
    assert [(each.way, each.at_once) for each in found] == [(PROCESSES, 1), (PROCESSES, 2), (PROGRAM, 1), (PROGRAM, 2)]
    for each in found:
        assert each.problem == ""
        assert 0 < each.low <= each.median <= each.high
        assert each.ratio == pytest.approx(each.median / found[0].median)
        # the same run at every place: on one thread the losses are the same too.
        assert each.difference == 0
        assert each.start_up > 0
        assert each.memory > 0
        wall = each.start_up + 100 * each.at_once / each.median
        assert each.runs_per_minute == pytest.approx(60 * each.at_once / wall)
    # two programs hold more than one of two nets of 82 weights.
    assert found[1].memory > 1.5 * found[3].memory
    # runs of one program are made ready one after the other.
    assert found[3].start_up > found[2].start_up
    assert said[0].startswith("processes: 2 ready in ")
    assert said[1].startswith("sign_capsnet: first start ")
    assert "one program, sign_capsnet, 2 at once: " in said[-1]
    assert not multiprocessing.active_children()


@NEW_INTERPRETERS
def test_a_cohort_of_new_interpreters_answers(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with new_interpreters(kind, monkeypatch), Cohort(1, CPU, cores=1) as members:
        (seconds,) = members.ask([("build", {"task": TINY, "count": 2})])
        call = {"task": TINY, "count": 2, "begin": 0.0, "seconds": 0.01, "chunk": 3, "threads": 1}
        (track,) = members.ask([("run", call)])
    assert len(seconds) == 2
    assert members.starts[0] > 0
    assert track.steps[:3] == (0, 6, 12)
    assert list(track.stamps) == sorted(track.stamps)
    assert track.losses[0] == track.losses[1]
    assert not multiprocessing.active_children()


def test_steps_count_only_while_all_are_running() -> None:
    # two runs of ten steps a second, the second of which starts two seconds late and goes on for longer.
    one = Track(tuple(map(float, range(7))), tuple(range(0, 70, 10)), (), 0)
    two = Track(tuple(map(float, range(2, 12))), tuple(range(0, 100, 10)), (), 0)
    assert together.rates([one, two], slices=3) == pytest.approx([20, 20, 20])
    # one that slows down to a tenth half-way.
    slow = Track((0.0, 1.0, 3.0, 5.0), (0, 10, 30, 32), (), 0)
    assert together.rates([slow], slices=2) == pytest.approx([10, 1])


def test_runs_that_do_not_overlap_have_no_rate(forked: pytest.MonkeyPatch) -> None:
    early, late = (Track((at, at + 1, at + 2), (0, 1, 2), (0.5,), 1) for at in (0.0, 5.0))
    assert together.rates([early, late]) == []
    forked.setattr(together._Measurement, "_chunk", lambda *_: 1)
    forked.setattr(together._Measurement, "_tracks", lambda *_: [early, late])
    found = list(together.measure([TINY], CPU, at_once=(1,), ways=(PROCESSES,)))
    assert [each.problem for each in found] == [together.APART]


def test_a_window_that_a_process_missed_is_measured_again_twice_as_long(forked: pytest.MonkeyPatch) -> None:
    real = together._Measurement._tracks
    windows: list[float] = []

    def late(self: Any, members: Cohort, task: Task, count: int, chunk: int, seconds: float) -> list[Track]:
        tracks = real(self, members, task, count, chunk, seconds)
        if count == 1:
            return tracks
        windows.append(seconds)
        shift = 1e6 if len(windows) < 3 else 0.0
        return [replace(tracks[0], stamps=tuple(stamp + shift for stamp in tracks[0].stamps)), *tracks[1:]]

    forked.setattr(together._Measurement, "_tracks", late)
    *_, two = together.measure([TINY], CPU, at_once=(2,), ways=(PROCESSES,), seconds=0.01)
    # the third may be missed as well, where this machine is busy.
    assert windows[:3] == [0.01, 0.02, 0.04]
    assert two.problem == ""
    assert two.median > 0


def test_runs_whose_losses_differ_are_not_timed(forked: pytest.MonkeyPatch) -> None:
    real = together._Measurement._tracks
    losses = {2: 0.7, 3: float("nan")}

    def spoilt(self: Any, members: Cohort, task: Task, count: int, chunk: int, seconds: float) -> list[Track]:
        tracks = real(self, members, task, count, chunk, seconds)
        return [*tracks[:-1], replace(tracks[-1], losses=(losses[count],))] if count in losses else tracks

    forked.setattr(together._Measurement, "_tracks", spoilt)
    alone, *several = together.measure([TINY], CPU, at_once=(2, 3), ways=(PROCESSES,), seconds=0.01)
    assert alone.problem == ""
    for reading, loss in zip(several, losses.values(), strict=True):
        assert reading.problem.startswith("wrong: first losses [")
        assert f"{loss}] differ from " in reading.problem
        assert reading.median == reading.runs_per_minute == 0


def fail(self: Any, task: Task, count: int) -> list[float]:
    raise RuntimeError("no kernel image\nfor this device")


def run_out(self: Any, task: Task, count: int) -> list[float]:
    raise torch.OutOfMemoryError("CUDA out of memory")


def end(self: Any, task: Task, count: int) -> list[float]:
    os._exit(7)


@pytest.mark.parametrize(
    ("build", "problem"),
    [
        (fail, "fails: RuntimeError: no kernel image"),
        (run_out, "out of memory"),
        (end, "fails: a process ended with exit code 7"),
    ],
)
def test_what_does_not_run_is_said_and_the_next_way_is_tried(forked: pytest.MonkeyPatch, build: Any, problem: str) -> None:
    forked.setattr(runner.Worker, "build", build)
    found = list(together.measure([TINY], CPU, at_once=(1,), ways=together.ways(CPU)))
    assert [(each.way, each.problem) for each in found] == [(PROCESSES, problem), (PROGRAM, problem)]
    assert not multiprocessing.active_children()


def test_a_net_that_fails_leaves_the_others_their_readings(forked: pytest.MonkeyPatch) -> None:
    real = runner.Worker.build

    def only_one(self: Any, task: Task, count: int) -> list[float]:
        return fail(self, task, count) if task.model == "lenet" else real(self, task, count)

    forked.setattr(runner.Worker, "build", only_one)
    todo = [replace(TINY, model="lenet"), TINY]
    found = list(together.measure(todo, CPU, at_once=(1,), ways=(PROCESSES,), seconds=0.01))
    assert [(each.model, bool(each.problem)) for each in found] == [("lenet", True), ("sign_capsnet", False)]


def test_a_process_that_does_not_answer_is_given_up(forked: pytest.MonkeyPatch) -> None:
    with Cohort(1, CPU, cores=1) as members:
        forked.setattr(cohort, "_END", 0.1)
        call = {"task": TINY, "count": 0, "begin": time.monotonic() + 1e6, "seconds": 0.0, "chunk": 1, "threads": 1}
        with pytest.raises(NoAnswer, match=r"did not answer within 0 s") as error:
            members.ask([("run", call)], patience=0.2)
        assert error.value.lost
    assert not multiprocessing.active_children()


def test_a_cohort_that_is_given_up_ends_its_processes_in_an_orderly_way(forked: pytest.MonkeyPatch) -> None:
    call = {"task": TINY, "count": 0, "begin": time.monotonic() + 1e6, "seconds": 0.0, "chunk": 1, "threads": 1}
    members = Cohort(2, CPU, cores=1).__enter__()
    processes = [process for process, _ in members._members]
    # what a terminal or timeout sends to the whole group does not reach them.
    assert {os.getsid(process.pid) for process in processes} == {process.pid for process in processes}
    members._members[0][1].send(("run", call))
    members.__exit__(KeyboardInterrupt)
    # by their own way out and not killed: 143 is what a shell says of SIGTERM.
    assert all(process.exitcode in (0, 128 + signal.SIGTERM) for process in processes)
    assert not multiprocessing.active_children()


def test_who_stops_listening_leaves_no_process_behind(forked: pytest.MonkeyPatch) -> None:
    readings = together.measure([TINY], CPU, at_once=(2,), ways=(PROCESSES,), seconds=0.01)
    next(readings)
    assert len(multiprocessing.active_children()) == 2
    readings.close()
    assert not multiprocessing.active_children()


def test_a_way_that_is_not_here_is_one_line_and_no_failure() -> None:
    (found,) = together.measure([TINY], CPU, at_once=(4,), ways=(MPS,))
    assert found.problem == "not here: MPS is for GPUs"
    assert (found.way, found.at_once) == (MPS, 4)


def test_small_and_large_nets_of_the_papers_are_timed_on_a_gpu() -> None:
    gpu = torch.device("cuda")
    todo = together.tasks(gpu)
    assert [task.model for task in todo] == ["sign_capsnet", "parse_capsnet", "capsnet"]
    assert {(task.batch_size, task.precision, task.fast) for task in todo} == {(128, "bf16", True)}
    assert together.counts(gpu) == (1, 4, 8)
    assert together.ways(gpu) == (PROCESSES, MPS, PROGRAM)


def test_the_winner_is_the_way_with_the_most_runs_a_minute() -> None:
    def reading(way: str, at_once: int, runs: float, model: str = "lenet", **more: Any) -> TogetherReading:
        return TogetherReading(way, model, at_once, 8, "float32", False, 100, runs_per_minute=runs, **more)

    slow, fast = reading(PROCESSES, 1, 2.0), reading(PROCESSES, 4, 5.0)
    wrong = reading(PROGRAM, 8, 9.0, problem="wrong: losses")
    other = reading(PROGRAM, 4, 3.0, "capsnet")
    base = {"steps": 100, "at_once": 4}
    assert together.winners([slow, fast, wrong, other]) == [
        {"model": "lenet", "way": PROCESSES, "runs_per_minute": 5.0, "gain": 2.5, **base},
        {"model": "capsnet", "way": PROGRAM, "runs_per_minute": 3.0, "gain": 0.0, **base},
    ]


def test_the_page_says_what_was_measured_and_what_won() -> None:
    single = TogetherReading(PROCESSES, "lenet", 1, 8, "float32", False, 100, 50.0, 40.0, 60.0, 5, 1.0, 9.5, 9.5, 5.0, 3 << 20)
    several = replace(single, at_once=4, median=150.0, ratio=3.0, runs_per_minute=12.5)
    missing = TogetherReading(MPS, "lenet", 4, 8, "float32", False, 100, problem="not here: MPS is for GPUs")
    readings = [single, several, missing]
    content = record("together", CPU, readings, **together.facts(readings))
    page = speed_page({"chip": {"together": json.loads(json.dumps(content))}})["speed.md"]
    assert "### Several runs at once" in page
    assert "runs of 100 steps, batches of 8." in page
    assert "| lenet | processes | 4 | float32 | 150 (40 to 60) | 3 | 9.5 | 12.5 * | 3.0 |" in page
    assert page.count(" * |") == 1
    assert "lenet, processes under MPS, 4 at once: not here: MPS is for GPUs." in page
    assert "- lenet: 4 at once, processes, 12.5 a minute, 2.5 times those of one process after the other.\n" in page
    assert "Not measured" not in page


def test_the_page_of_a_measurement_that_was_stopped_says_what_is_missing() -> None:
    single = TogetherReading(PROCESSES, "lenet", 1, 8, "float32", False, 100, runs_per_minute=5.0)
    readings = [single, replace(single, at_once=4), replace(single, way=PROGRAM), replace(single, model="capsnet")]
    page = speed_page({"chip": {"together": record("together", CPU, readings, **together.facts(readings))}})["speed.md"]
    missing = "lenet, one program, 4 at once; capsnet, processes, 4 at once; capsnet, one program"
    assert f"Not measured: {missing}.\n" in page


def test_a_page_without_such_a_record_does_not_speak_of_it() -> None:
    growth = record("growth", CPU, [], exponents=[])
    assert "Several runs at once" not in speed_page({"chip": {"growth": growth}})["speed.md"]
