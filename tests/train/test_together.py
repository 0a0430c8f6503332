"""Many runs, several at a time: each is what it would be alone, and none is lost or left behind."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from capsella.errors import RunError
from capsella.train import Interrupted, NonFiniteLoss, Plan, Run, Standing, children, run_plan, run_together, together
from capsella.train.step import Stepper

sys.path.insert(0, str(Path(__file__).resolve().parent))
from run_harness import Child, assert_same_run, until
from together_harness import (
    LONG,
    NEW_INTERPRETERS,
    Pretended,
    control_program,
    forking,
    held_by_nobody,
    instead,
    new_interpreters,
    on_a_gpu,
    pretending,
    seeded,
)


@pytest.fixture
def forked(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    with forking(monkeypatch, together) as patch:
        yield patch


@pytest.fixture
def pretended(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    return pretending(monkeypatch)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Plan, Path]]:
    """Return runs that are over, to be looked at alone."""
    jobs = seeded(tmp_path_factory.mktemp("finished"), 0, 1)
    for plan, folder in jobs:
        run_plan(plan, folder, progress=False)
    return jobs


def interrupted_after(steps: int, plan: Plan, folder: Path) -> None:
    """Leave a folder as a run that was stopped in the middle leaves it."""
    take, taken = Stepper.__call__, []

    def signalled(self: Stepper, *args: Any, **kwargs: Any) -> None:
        taken.append(1)
        if len(taken) == steps:
            signal.raise_signal(signal.SIGTERM)
        take(self, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Stepper, "__call__", signalled)
        with pytest.raises(Interrupted):
            run_plan(plan, folder, progress=False)


def test_a_plan_that_cannot_be_carried_out_is_given_back_with_one_line(tmp_path: Path, forked: pytest.MonkeyPatch) -> None:
    bad = (Plan("capsnet_small", "sign"), tmp_path / "bad")
    outcomes = {each.folder: each for each in run_together([bad, *seeded(tmp_path, 0)], at_once=2)}
    failed = outcomes[bad[1]]
    assert failed.run is None
    assert failed.plan is bad[0]
    assert "image_size=(1, 1)" in failed.problem
    assert "\n" not in failed.problem
    assert "Traceback" in failed.details
    assert outcomes[tmp_path / "seed-0"].run is not None


def test_what_is_finished_is_given_back_and_nothing_is_started(
    finished: list[tuple[Plan, Path]], pretended: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    control_program(tmp_path, pretended)
    on_a_gpu(pretended)
    files = [path for _, folder in finished for path in folder.rglob("*") if path.is_file()]
    before = {path: path.stat().st_mtime_ns for path in files}
    again = list(run_together(finished, at_once=2))
    assert [each.was_there for each in again] == [True, True]
    assert [each.run.record for each in again if each.run] == [Run.load(folder).record for _, folder in finished]
    assert {path: path.stat().st_mtime_ns for path in files} == before
    assert not Pretended.made
    assert not (tmp_path / "devices").exists()


def test_the_finished_run_of_another_plan_is_a_problem_of_that_run_alone(
    finished: list[tuple[Plan, Path]], tmp_path: Path, forked: pytest.MonkeyPatch
) -> None:
    plan, folder = finished[0]
    wrong, right = run_together([(plan.changed({"lr": 0.1}), folder), *seeded(tmp_path, 1)])
    assert "holds a run with other settings; choose another folder" in wrong.problem
    assert wrong.run is None
    assert right.run is not None
    assert Run.load(folder).config["train"]["lr"] == 5e-3


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def divide() -> None:
    raise ZeroDivisionError("one\ntwo")


def run_into() -> None:
    raise RunError("the disk is full")


def leave() -> None:
    os._exit(3)


FAILURES: dict[Callable[[], object], str] = {
    die: "its process was killed by SIGKILL",
    divide: "ZeroDivisionError: one",
    run_into: "the disk is full",
    leave: "its process ended with exit code 3",
}


def test_runs_that_fail_do_not_lose_the_others(tmp_path: Path, forked: pytest.MonkeyPatch) -> None:
    instead(forked, dict(enumerate(FAILURES)))
    outcomes = {each.plan.train.seed: each for each in run_together(seeded(tmp_path, *range(5)), at_once=1)}
    for seed, problem in enumerate(FAILURES.values()):
        assert outcomes[seed].problem == problem
        assert outcomes[seed].run is None
    assert outcomes[4].problem == ""
    assert Run.load(tmp_path / "seed-4").status == "finished"


def test_a_killed_run_that_has_begun_says_that_it_can_be_gone_on_with(tmp_path: Path, forked: pytest.MonkeyPatch) -> None:
    (job,) = seeded(tmp_path, 0)
    interrupted_after(2, *job)
    instead(forked, {0: die})
    (outcome,) = run_together([job])
    assert outcome.problem == f"its process was killed by SIGKILL; {job[1]} can be gone on with"


def test_a_loss_that_is_not_finite_is_a_result(
    finished: list[tuple[Plan, Path]], tmp_path: Path, forked: pytest.MonkeyPatch
) -> None:
    plan, folder = finished[0][0], tmp_path / "run"
    shutil.copytree(finished[0][1], folder)
    record = json.loads((folder / "record.json").read_text())

    def bad(plan: Plan, folder: Path, **_: object) -> Run:
        (folder / "record.json").write_text(json.dumps({**record, "status": "non-finite"}))
        raise NonFiniteLoss("the loss of step 2 is nan")

    (folder / "record.json").unlink()
    forked.setattr(children, "run_plan", bad)
    (outcome,) = run_together([(plan, folder)])
    assert outcome.problem == ""
    assert outcome.run is not None
    assert outcome.run.status == "non-finite"


def test_no_more_run_at_a_time_than_asked_for_and_their_standing_is_told(tmp_path: Path, forked: pytest.MonkeyPatch) -> None:
    seen: list[Sequence[Standing]] = []
    forked.setattr(together, "LOOK", 0.02)
    outcomes = list(run_together(seeded(tmp_path, 0, 1, 2, steps=40), at_once=2, watch=seen.append))
    assert sorted(each.plan.train.seed for each in outcomes) == [0, 1, 2]
    assert max(map(len, seen)) == 2
    told = [each for standings in seen for each in standings if each.event is not None]
    assert all(0 < each.step <= each.steps == 40 for each in told)
    assert {each.event["step"] == each.step for each in told if each.event} == {True}


def test_a_signal_stops_all_with_a_checkpoint_and_the_same_call_goes_on(tmp_path: Path, forked: pytest.MonkeyPatch) -> None:
    jobs = seeded(tmp_path / "together", 0, 1, 2, steps=400)
    sent: list[int] = []

    def stop(standings: Sequence[Standing]) -> None:
        if len(standings) == 2 and all(each.step for each in standings) and not sent:
            sent.append(1)
            signal.raise_signal(signal.SIGINT)

    forked.setattr(together, "LOOK", 0.02)
    # a run long enough to be stopped in the middle.
    long = [(plan.changed(LONG), folder) for plan, folder in jobs]
    with pytest.raises(Interrupted, match=r"^stopped: 0 of 3 runs have ended; the same again goes on from there$") as stopped:
        list(run_together(long, at_once=2, watch=stop))
    assert stopped.value.signal == signal.SIGINT
    assert not multiprocessing.active_children()
    reached = [max(int(path.name[5:]) for path in (folder / "checkpoints").iterdir()) for _, folder in jobs[:2]]
    assert all(step > 0 for step in reached)
    assert not jobs[2][1].exists()
    # as many steps as the further of them has taken, and some more.
    rest = {"steps": max(reached) + 5, "epochs": 10_000}
    outcomes = list(run_together([(plan.changed(rest), folder) for plan, folder in jobs], at_once=3))
    assert [each.problem for each in outcomes] == [""] * 3
    run_plan(jobs[0][0].changed(rest), tmp_path / "alone", progress=False)
    assert_same_run(jobs[0][1], tmp_path / "alone")


@NEW_INTERPRETERS
def test_processes_end_with_the_one_that_started_them_and_runs_are_bit_for_bit_what_they_are_alone(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # one run comes to its end, and the next is under way when the program is killed.
    (short,), (long,) = seeded(tmp_path, 0), seeded(tmp_path, 1, **LONG)
    told = tmp_path / "told.json"

    def start() -> None:
        for outcome in run_together([short, long], at_once=1, threads=1):
            facts = [outcome.plan == short[0], outcome.problem, outcome.was_there, outcome.run and outcome.run.status]
            told.write_text(json.dumps(facts))

    with new_interpreters(kind, monkeypatch):
        parent = Child(start)
    metrics = long[1] / "metrics.jsonl"
    until(lambda: parent.ended or (metrics.exists() and metrics.stat().st_size > 0), seconds=60)
    assert not parent.ended, parent.said
    assert json.loads(told.read_text()) == [True, "", False, "finished"]
    assert not held_by_nobody(long[1])
    parent.kill()
    until(lambda: held_by_nobody(long[1]))
    (reached,) = [int(path.name[5:]) for path in (long[1] / "checkpoints").iterdir() if int(path.name[5:])]
    rest = (long[0].changed({"steps": reached + 5}), long[1])
    run_plan(*rest, progress=False, resume=True)
    assert torch.get_num_threads() == 1
    for plan, folder in (short, rest):
        found = Run.load(folder)
        assert found.status == "finished"
        assert "1 threads" in found.config["environment"]["device"]
        run_plan(plan, tmp_path / "alone" / folder.name, progress=False)
        assert_same_run(folder, tmp_path / "alone" / folder.name)


def test_a_run_that_was_interrupted_goes_on_to_what_it_would_be_alone(tmp_path: Path, forked: pytest.MonkeyPatch) -> None:
    (job,) = seeded(tmp_path, 0)
    interrupted_after(3, *job)
    (outcome,) = run_together([job])
    assert (outcome.problem, outcome.was_there) == ("", False)
    assert outcome.plan == job[0]
    run_plan(job[0], tmp_path / "alone", progress=False)
    assert_same_run(job[1], tmp_path / "alone")


def test_data_that_are_missing_fail_their_runs_alone_and_start_nothing(tmp_path: Path, forked: pytest.MonkeyPatch) -> None:
    missing = Plan("capsnet_small", "folder").changed({"device": "cpu"})
    wrong, right = run_together([(missing, tmp_path / "a"), *seeded(tmp_path, 0)], root=tmp_path / "nothing")
    assert str(tmp_path / "nothing") in wrong.problem
    assert not (tmp_path / "a").exists()
    assert right.run is not None


def test_every_set_of_data_is_loaded_once_before_the_first_process(tmp_path: Path, pretended: pytest.MonkeyPatch) -> None:
    loaded: list[str] = []
    load = Plan.load

    def noted(self: Plan, root: Any = None) -> Any:
        loaded.append(self.data)
        assert not Pretended.made
        return load(self, root)

    pretended.setattr(Plan, "load", noted)
    list(run_together(seeded(tmp_path, 0, 1, 2), at_once=3))
    assert loaded == ["sign"]
    assert len(Pretended.made) == 1


def test_runs_begin_in_the_order_in_which_they_were_given_whatever_their_data(
    tmp_path: Path, pretended: pytest.MonkeyPatch
) -> None:
    first, second, third = seeded(tmp_path, 0, 1, 2)
    other = (second[0].changed({"data.augment": None}), second[1])
    jobs = [first, other, third]
    assert [each.folder for each in run_together(jobs, at_once=1)] == [folder for _, folder in jobs]


def test_runs_of_several_devices_are_refused_one_by_one(tmp_path: Path) -> None:
    (outcome,) = run_together(seeded(tmp_path, 0, devices=2))
    assert outcome.problem == "devices=2 cannot run side by side with others; expected 1"


def test_two_runs_in_one_folder_are_refused_before_anything_starts(tmp_path: Path) -> None:
    first, second = seeded(tmp_path, 0, 1)
    same = tmp_path / "x" / ".." / "seed-0"
    with pytest.raises(ValueError, match=r"seed-0' is that of two runs; expected a folder for each$"):
        run_together([first, (second[0], same)])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("options", [{"at_once": 0}, {"threads": 0}, {"at_once": -1}])
def test_counts_below_one_are_refused_before_anything_starts(options: dict[str, int], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^(at_once|threads)=-?\d is too small; expected an int of at least 1$"):
        run_together(seeded(tmp_path, 0), **options)  # type: ignore[arg-type]
