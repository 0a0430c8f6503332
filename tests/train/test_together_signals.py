"""Ctrl-C and SIGTERM among many runs: no process hears of them before it is told, and none that they end is a failed run."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterator
from multiprocessing import resource_tracker
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from capsella.bench.cohort import Cohort
from capsella.train import Interrupted, Outcome, children, run_together, together

sys.path.insert(0, str(Path(__file__).resolve().parent))
from together_harness import Pretended, forking, pretending, seeded


@pytest.fixture
def pretended(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    return pretending(monkeypatch)


def held_back() -> set[int]:
    return {int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, ())}


def started_by_runs(folder: Path) -> None:
    children.Children(1, None, {}).start(seeded(folder, 0))


def started_by_a_cohort(folder: Path) -> None:
    Cohort(1, torch.device("cpu"), cores=1).__enter__()


@pytest.mark.parametrize("start", [started_by_runs, started_by_a_cohort])
def test_a_process_starts_with_interrupts_held_back_also_the_first(
    start: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # as long as no process was started, a helper of multiprocessing starts with the first, and lets interrupts through.
    helper = resource_tracker.ResourceTracker()
    monkeypatch.setattr(resource_tracker, "ensure_running", helper.ensure_running)
    seen: list[set[int]] = []

    class Process:
        def __init__(self, **_: object) -> None:
            pass

        def start(self) -> None:
            helper.getfd()
            seen.append(held_back())
            raise ChildProcessError

    context = SimpleNamespace(Pipe=multiprocessing.Pipe, Process=Process)
    monkeypatch.setattr(multiprocessing, "get_context", lambda kind: context)
    before = held_back()
    assert signal.SIGINT not in before
    try:
        with pytest.raises(ChildProcessError):
            start(tmp_path)
    finally:
        helper._stop()
    assert seen == [{*before, signal.SIGINT}]
    assert held_back() == before


def carried_out_by_runs(folder: Path) -> None:
    (outcome,) = run_together(seeded(folder, 0))
    assert outcome.problem == ""


def carried_out_by_a_cohort(folder: Path) -> None:
    with Cohort(1, torch.device("cpu"), cores=1):
        pass


@pytest.mark.parametrize("carry_out", [carried_out_by_runs, carried_out_by_a_cohort])
def test_an_interrupt_while_a_process_starts_does_not_reach_it(
    carry_out: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    setsid, set_threads, noted = os.setsid, torch.set_num_threads, tmp_path / "noted"

    def interrupted() -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.raise_signal(signal.SIGINT)
        setsid()

    def note(number: int) -> None:
        noted.write_text(f"{signal.SIGINT in held_back()} {signal.SIGINT in signal.sigpending()}")
        set_threads(number)

    with forking(monkeypatch, together) as patch:
        patch.setattr(os, "setsid", interrupted)
        patch.setattr(torch, "set_num_threads", note)
        carry_out(tmp_path)
    assert noted.read_text() == "False False"


def test_a_process_that_dies_of_the_signal_that_stops_all_is_no_failed_run(
    pretended: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def died(self: Pretended, seconds: float) -> Iterator[Outcome]:
        signal.raise_signal(signal.SIGTERM)
        while self.running:
            yield self.running.pop()

    pretended.setattr(Pretended, "ended", died)
    pretended.setattr(Pretended, "stopped", lambda self: iter(()))
    given: list[Outcome] = []
    with pytest.raises(Interrupted, match=r"^stopped: 0 of 2 runs have ended; "):
        given.extend(run_together(seeded(tmp_path, 0, 1), at_once=2))
    assert not given


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_after_the_last_run_has_ended_stops_nothing(
    number: signal.Signals, pretended: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def handled() -> Iterator[Any]:
        for count, outcome in enumerate(run_together(seeded(tmp_path, 0, 1), at_once=1), start=1):
            if count == 2:
                signal.raise_signal(number)
            yield outcome

    assert len(list(handled())) == 2
