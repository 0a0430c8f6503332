"""Several runs in one program: one at a time, in turn, each as it would be alone."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from capsella.train import Interrupted, children, run_plan, run_together, together, turns
from capsella.train.processes import trying_algorithms
from capsella.train.signals import StopWish
from capsella.train.step import Stepper

sys.path.insert(0, str(Path(__file__).resolve().parent))
from run_harness import assert_same_run, until
from together_harness import LONG, NEW_INTERPRETERS, Pretended, forking, instead, new_interpreters, pretending, seeded


@pytest.fixture
def forked(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    with forking(monkeypatch, together) as patch:
        # every step is a turn.
        patch.setattr(turns, "_LEAST", 0.0)
        yield patch


def test_only_one_acts_at_a_time_and_all_come_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "_LEAST", 0.0)
    acting: list[str] = []
    seen: list[str] = []

    def act(name: str, steps: int) -> None:
        for _ in range(steps):
            acting.append(name)
            assert acting == [name]
            seen.append(name)
            acting.remove(name)
            turns.hand_on()

    turns.in_turns([lambda: act("a", 3), lambda: act("b", 1), lambda: act("c", 4)])
    assert "".join(seen) == "abcacacc"


def test_a_turn_is_not_handed_on_before_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "_LEAST", 60.0)
    seen: list[str] = []

    def act(name: str) -> None:
        for _ in range(3):
            seen.append(name)
            turns.hand_on()

    turns.in_turns([lambda: act("a"), lambda: act("b")])
    assert "".join(seen) == "aaabbb"


def test_random_numbers_are_those_of_a_run_that_is_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "_LEAST", 0.0)

    def draw(seed: int, into: list[float]) -> None:
        torch.manual_seed(seed)
        for _ in range(4):
            into.append(float(torch.rand(())))
            turns.hand_on()

    alone: list[list[float]] = [[], []]
    for seed, into in enumerate(alone):
        draw(seed, into)
    together_: list[list[float]] = [[], []]
    turns.in_turns([lambda seed=seed, into=into: draw(seed, into) for seed, into in enumerate(together_)])
    assert together_ == alone


def test_a_run_that_lets_cudnn_try_algorithms_does_not_decide_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "_LEAST", 0.0)
    seen: dict[str, list[bool]] = {"a": [], "b": []}

    def act(name: str, wanted: bool) -> None:
        seen[name].append(torch.backends.cudnn.benchmark)
        with trying_algorithms(wanted):
            for _ in range(3 if name == "b" else 1):
                turns.hand_on()
                seen[name].append(torch.backends.cudnn.benchmark)
        seen[name].append(torch.backends.cudnn.benchmark)

    turns.in_turns([lambda: act("a", True), lambda: act("b", True)])
    assert seen == {"a": [False, True, False], "b": [False, True, True, True, False]}


def test_what_ends_with_an_error_hands_its_turn_on(monkeypatch: pytest.MonkeyPatch) -> None:
    raised: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", raised.append)

    def fail() -> None:
        raise RuntimeError("no")

    seen: list[int] = []
    turns.in_turns([fail, lambda: seen.append(1), fail, lambda: seen.append(2)])
    assert seen == [1, 2]
    assert len(raised) == 2


def test_a_signal_reaches_every_thread() -> None:
    heard: list[int | None] = []

    def listen() -> None:
        with StopWish() as wish:
            while wish.received is None:
                turns.hand_on()
            heard.append(wish.received)

    def ask() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        listen()

    turns.in_turns([ask, listen])
    assert heard == [signal.SIGTERM, signal.SIGTERM]
    # nobody listens any more, here or in this thread.
    assert StopWish().received is None


def test_nothing_is_handed_on_by_a_run_that_is_alone() -> None:
    turns.hand_on()
    assert not turns.is_shared()


def test_runs_in_one_program_are_the_same_bit_for_bit(tmp_path: Path, forked: pytest.MonkeyPatch) -> None:
    jobs = seeded(tmp_path / "turns", 0, 1, 2, steps=9)
    outcomes = list(run_together(jobs, at_once=3, program=True))
    assert not [outcome.problem for outcome in outcomes if outcome.problem]
    assert {outcome.folder for outcome in outcomes} == {folder for _, folder in jobs}
    for plan, folder in jobs:
        run_plan(plan, tmp_path / "alone" / folder.name, progress=False)
        assert_same_run(tmp_path / "alone" / folder.name, folder)


def test_their_steps_alternate(tmp_path: Path, forked: pytest.MonkeyPatch) -> None:
    take, log = Stepper.__call__, tmp_path / "log"

    def noted(self: Stepper, *args: Any, **kwargs: Any) -> None:
        with log.open("a") as file:
            file.write(f"{self.config.seed}@{os.getpid()} ")
        take(self, *args, **kwargs)

    forked.setattr(Stepper, "__call__", noted)
    assert len(list(run_together(seeded(tmp_path, 0, 1, 2, 3, steps=3), at_once=2, program=True))) == 4
    steps = [each.split("@") for each in log.read_text().split()]
    assert "".join(seed for seed, _ in steps) == "010101" + "232323"
    # two at a time, so two programs.
    assert len({process for _, process in steps}) == 2


def test_one_that_fails_does_not_stop_the_others(tmp_path: Path, forked: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise RuntimeError("out of luck\nand more")

    instead(forked, {1: fail})
    outcomes = {each.plan.train.seed: each for each in run_together(seeded(tmp_path, 0, 1, 2), at_once=3, program=True)}
    assert outcomes[1].problem == "RuntimeError: out of luck"
    assert "and more" in outcomes[1].details
    for seed in (0, 2):
        run = outcomes[seed].run
        assert run is not None
        assert run.record is not None
        assert run.record["steps"] == 6


def test_what_ends_a_thread_is_said_for_its_run_alone(tmp_path: Path, forked: pytest.MonkeyPatch) -> None:
    instead(forked, {1: lambda: sys.exit(3)})
    outcomes = {each.plan.train.seed: each for each in run_together(seeded(tmp_path, 0, 1), at_once=2, program=True)}
    assert outcomes[1].problem == "SystemExit: 3"
    assert outcomes[0].run is not None


def test_a_device_that_is_not_there_is_one_line_for_each(tmp_path: Path, forked: pytest.MonkeyPatch) -> None:
    jobs = [(plan.changed({"device": "cuda"}), folder) for plan, folder in seeded(tmp_path, 0, 1)]
    problems = [outcome.problem for outcome in run_together(jobs, at_once=2, program=True)]
    assert problems == ["device='cuda' was asked for, and torch sees no GPU; expected 'cpu' or 'auto'"] * 2


def test_a_run_that_was_over_before_its_process_was_killed_is_over(tmp_path: Path, forked: pytest.MonkeyPatch) -> None:
    # the one of two runs that goes on ends the process once the other's record is there.
    take = Stepper.__call__

    def last_one_kills(self: Stepper, *args: Any, **kwargs: Any) -> None:
        if self.config.seed == 1 and (tmp_path / "seed-0" / "record.json").exists():
            time.sleep(0.2)
            os.kill(os.getpid(), signal.SIGKILL)
        take(self, *args, **kwargs)

    forked.setattr(Stepper, "__call__", last_one_kills)
    (first, first_folder), (second, second_folder) = seeded(tmp_path, 0, 1, **LONG)
    jobs = [(first.changed({"steps": 2}), first_folder), (second, second_folder)]
    outcomes = {each.plan.train.seed: each for each in run_together(jobs, at_once=2, program=True)}
    assert outcomes[0].run is not None
    assert outcomes[1].problem.startswith("its process was killed by SIGKILL")


def test_what_is_asked_to_stop_begins_no_further_run(tmp_path: Path, forked: pytest.MonkeyPatch) -> None:
    take = Stepper.__call__

    def asked_in_its_first_step(self: Stepper, *args: Any, **kwargs: Any) -> None:
        if StopWish().received is None:
            for process in (os.getppid(), os.getpid()):
                os.kill(process, signal.SIGTERM)
            # the main thread, which hears it, has to come to it.
            until(lambda: StopWish().received is not None)
        take(self, *args, **kwargs)

    forked.setattr(Stepper, "__call__", asked_in_its_first_step)
    with pytest.raises(Interrupted, match="0 of 3 runs have ended"):
        list(run_together(seeded(tmp_path, 0, 1, 2, **LONG), at_once=3, program=True))
    assert [folder.name for folder in sorted(tmp_path.iterdir())] == ["seed-0"]


def test_a_process_that_is_killed_is_said_for_each_of_its_runs(tmp_path: Path, forked: pytest.MonkeyPatch) -> None:
    instead(forked, {1: lambda: os.kill(os.getpid(), signal.SIGKILL)})
    outcomes = {each.plan.train.seed: each for each in run_together(seeded(tmp_path, 0, 1, steps=50), at_once=2, program=True)}
    assert len(outcomes) == 2
    assert outcomes[0].problem == f"its process was killed by SIGKILL; {tmp_path / 'seed-0'} can be gone on with"
    assert outcomes[1].problem == "its process was killed by SIGKILL"
    # and it goes on.
    forked.setattr(children, "run_plan", run_plan)
    again = list(run_together(seeded(tmp_path, 0, 1, steps=50), at_once=2, program=True))
    assert [outcome.problem for outcome in again] == ["", ""]


@NEW_INTERPRETERS
def test_a_signal_stops_all_with_a_checkpoint(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    long = seeded(tmp_path, 0, 1, **LONG)
    with new_interpreters(kind, monkeypatch):

        def stop_when_both_run(standings: Any) -> None:
            if len(standings) == 2 and all(each.step > 0 for each in standings):
                signal.raise_signal(signal.SIGTERM)

        with pytest.raises(Interrupted, match="0 of 2 runs have ended; the same again goes on from there"):
            list(run_together(long, at_once=2, program=True, watch=stop_when_both_run))
        for _, folder in long:
            assert list((folder / "checkpoints").glob("step-*"))
            assert not (folder / "record.json").exists()


@pytest.mark.parametrize(("program", "programs"), [(False, [1, 1, 1, 1, 1]), (True, [3, 1, 1])])
def test_one_program_has_runs_of_one_precision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: bool, programs: list[int]
) -> None:
    pretending(monkeypatch)
    jobs = [*seeded(tmp_path / "a", 0, 1), *seeded(tmp_path / "b", 0, precision="tf32"), *seeded(tmp_path / "c", 0, 1)]
    assert len(list(run_together(jobs, at_once=3, program=program))) == 5
    (made,) = Pretended.made
    assert made.programs == programs


def test_it_does_not_go_with_mps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    jobs = [(plan.changed({"device": "cuda"}), folder) for plan, folder in seeded(tmp_path, 0)]
    with pytest.raises(ValueError, match="mps=True is for processes, and program=True puts the runs into one; leave one"):
        run_together(jobs, mps=True, program=True)
