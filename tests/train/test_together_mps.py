"""How many runs go at once and with how many threads; when a GPU is shared under NVIDIA's MPS, and for how long."""

from __future__ import annotations

import errno
import multiprocessing
import os
import signal
import sys
import warnings
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from capsella.train import Interrupted, Outcome, Plan, Run, children, run_together, together
from capsella.train import mps as service
from capsella.train.mps import NoMps

sys.path.insert(0, str(Path(__file__).resolve().parent))
from run_harness import until
from together_harness import (
    LONG,
    PLAN,
    Pretended,
    control_program,
    forking,
    held_by_nobody,
    instead,
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


def plans(number: int, device: str = "auto") -> list[Plan]:
    return [PLAN.changed({"device": device})] * number


def test_the_number_at_once_follows_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(together, "cores", lambda: 6)
    assert together.default_at_once(plans(9, "cpu")) == 3
    assert together.default_at_once(plans(2, "cpu")) == 2
    monkeypatch.setattr(together, "cores", lambda: 1)
    assert together.default_at_once(plans(9, "cpu")) == 1
    on_a_gpu(monkeypatch)
    assert together.default_at_once(plans(9, "cpu")) == 8
    assert together.default_at_once([*plans(8, "cpu"), *plans(1)]) == together.AT_ONCE
    assert together.default_at_once(plans(20)) == together.AT_ONCE
    assert together.default_at_once(plans(3)) == 3
    on_a_gpu(monkeypatch, cores=6)
    assert together.default_at_once(plans(20)) == 6


def test_the_cores_are_shared_out(pretended: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pretended.setattr(together, "cores", lambda: 16)
    for at_once in (1, 4, 32):
        list(run_together(seeded(tmp_path, *range(8)), at_once=at_once))
    assert [(each.threads, each.most) for each in Pretended.made] == [(16, 1), (4, 4), (2, 8)]


def pretend(folder: Path, number: int, **options: Any) -> Pretended:
    jobs = seeded(folder, *range(number), device="auto")
    assert len(list(run_together(jobs, **options))) == number
    return Pretended.made[-1]


def test_several_runs_on_a_gpu_share_it_under_mps(pretended: pytest.MonkeyPatch, tmp_path: Path) -> None:
    control_program(tmp_path, pretended)
    on_a_gpu(pretended)
    before = dict(os.environ)
    outcomes = run_together(seeded(tmp_path, *range(9), device="auto"))
    assert not (tmp_path / "runs").exists()
    next(outcomes)
    assert (tmp_path / "runs").exists()
    (made,) = Pretended.made
    assert set(made.environment) == {"CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"}
    assert (made.most, made.threads) == (8, 2)
    assert dict(os.environ) == before
    list(outcomes)
    assert not (tmp_path / "runs").exists()


def test_what_would_not_gain_by_mps_does_not_start_it(pretended: pytest.MonkeyPatch, tmp_path: Path) -> None:
    control_program(tmp_path, pretended)
    assert pretend(tmp_path, 2).environment == {}
    on_a_gpu(pretended)
    assert pretend(tmp_path, 1).environment == {}
    assert pretend(tmp_path, 2, at_once=1).environment == {}
    unwanted = pretend(tmp_path, 9, mps=False)
    assert (set(unwanted.environment), unwanted.most) == ({"CUDA_MPS_PIPE_DIRECTORY"}, together.AT_ONCE)
    assert not (tmp_path / "devices").exists()


@pytest.mark.parametrize("named", [False, True])
def test_runs_that_are_to_go_without_are_kept_away_from_a_daemon_of_the_users(
    named: bool, pretended: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # clients look for one at NVIDIA's default place where the variable is not set.
    pretended.delenv("CUDA_MPS_PIPE_DIRECTORY", raising=False)
    if named:
        pretended.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))
    assert pretend(tmp_path, 2, mps=False).environment == {}
    on_a_gpu(pretended)
    assert pretend(tmp_path, 2, mps=False).environment == {"CUDA_MPS_PIPE_DIRECTORY": os.devnull}


def test_a_daemon_of_the_users_serves_them_and_is_left_running(pretended: pytest.MonkeyPatch, tmp_path: Path) -> None:
    control_program(tmp_path, pretended)
    on_a_gpu(pretended)
    pretended.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))
    (tmp_path / "control").touch()
    found = pretend(tmp_path, 8)
    assert (found.environment, found.most) == ({}, 8)
    assert (tmp_path / "told").read_text() == "get_server_list\n"


def test_mps_that_does_not_start_is_one_warning_unless_it_was_asked_for(pretended: pytest.MonkeyPatch, tmp_path: Path) -> None:
    control_program(tmp_path, pretended, 'echo "no permission" > "$CUDA_MPS_LOG_DIRECTORY/control.log"; exit 1')
    on_a_gpu(pretended)
    why = r"nvidia-cuda-mps-control did not start \(no permission\)"
    with pytest.warns(RuntimeWarning, match=rf"^the runs go side by side without MPS: {why}$") as said:
        found = pretend(tmp_path, 9)
    assert len(said) == 1
    assert said[0].filename == __file__
    assert (found.environment, found.most) == ({}, together.AT_ONCE)
    with pytest.raises(NoMps, match=rf"^mps=True cannot be had: {why}; leave it out to go on without$"):
        pretend(tmp_path, 9, mps=True)
    assert len(Pretended.made) == 1


def test_mps_without_a_place_for_its_folder_is_one_warning(pretended: pytest.MonkeyPatch, tmp_path: Path) -> None:
    control_program(tmp_path, pretended)
    on_a_gpu(pretended)

    def full(**_: object) -> str:
        raise OSError(errno.ENOSPC, "No space left on device", "/tmp/mps-x")

    pretended.setattr(service.tempfile, "mkdtemp", full)
    with pytest.warns(
        RuntimeWarning, match=r"without MPS: .* did not start \(.*No space left on device: '/tmp/mps-x'\)$"
    ) as said:
        assert pretend(tmp_path, 9).environment == {}
    assert len(said) == 1


def test_mps_that_is_not_installed_is_no_word_unless_it_was_asked_for(pretended: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pretended.setenv("PATH", str(tmp_path))
    on_a_gpu(pretended)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert pretend(tmp_path, 9).most == together.AT_ONCE
    with pytest.raises(NoMps, match=r"^mps=True cannot be had: nvidia-cuda-mps-control is not on the PATH; leave it out"):
        pretend(tmp_path, 2, mps=True)


def test_mps_on_a_cpu_is_refused_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^mps=True is for runs on a GPU, and none of these goes on one; leave it out$"):
        run_together(seeded(tmp_path, 0, 1), mps=True)


def ended_by_closing(outcomes: Generator[Outcome, None, None]) -> None:
    outcomes.close()


def ended_by_a_signal(outcomes: Generator[Outcome, None, None]) -> None:
    signal.raise_signal(signal.SIGTERM)
    with pytest.raises(Interrupted, match=r"^stopped: 1 of 2 runs have ended; ") as stopped:
        list(outcomes)
    assert stopped.value.signal == signal.SIGTERM


def ended_by_an_exception(outcomes: Generator[Outcome, None, None]) -> None:
    with pytest.raises(ZeroDivisionError):
        outcomes.throw(ZeroDivisionError())


@pytest.mark.parametrize("end", [ended_by_closing, ended_by_a_signal, ended_by_an_exception])
def test_mps_stops_after_the_last_process_however_the_runs_end(
    end: Callable[[Generator[Outcome, None, None]], None], tmp_path: Path, forked: pytest.MonkeyPatch
) -> None:
    control_program(tmp_path, forked)
    jobs = [*seeded(tmp_path, 0), *seeded(tmp_path, 1, **LONG)]
    seen = tmp_path / "seen"

    def note() -> None:
        seen.write_text(os.environ["CUDA_MPS_PIPE_DIRECTORY"])

    instead(forked, {1: note})
    # the runs themselves stay on the CPU.
    forked.setattr(together, "_on_gpu", lambda plans: True)
    outcomes = run_together(jobs, at_once=2)
    assert next(outcomes).plan.train.seed == 0
    until(seen.exists)
    until(lambda: any((tmp_path / "seed-1" / "checkpoints").glob("step-*")))
    stopped = children.Children.stopped

    def served(self: children.Children) -> Iterator[Outcome]:
        yield from stopped(self)
        assert (tmp_path / "runs").exists()

    forked.setattr(children.Children, "stopped", served)
    end(outcomes)
    assert not multiprocessing.active_children()
    assert held_by_nobody(tmp_path / "seed-1")
    assert Run.load(tmp_path / "seed-1").status == "unfinished"
    assert not (tmp_path / "runs").exists()
    assert not Path(seen.read_text()).parent.exists()
    assert "CUDA_MPS_PIPE_DIRECTORY" not in os.environ
