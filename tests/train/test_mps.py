"""NVIDIA's MPS as a block of code: started in a folder of its own, stopped however the block ends."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from capsella.train import mps as service
from capsella.train.mps import NoMps, mps

sys.path.insert(0, str(Path(__file__).resolve().parent))
from run_harness import Child, until
from together_harness import control_program


class Hasty(subprocess.Popen[bytes]):
    """A process that is waited for a moment where a daemon would get seconds."""

    def wait(self, timeout: float | None = None) -> int:
        return super().wait(None if timeout is None else min(timeout, 0.1))


def test_without_its_program_it_is_said_to_be_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert not service.is_installed()
    with pytest.raises(NoMps, match=r"^nvidia-cuda-mps-control is not on the PATH$"), mps():
        pass


def test_the_daemon_lives_as_long_as_the_block_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    control_program(tmp_path, monkeypatch)
    before = dict(os.environ)
    with mps() as own:
        assert set(own) == {"CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"}
        assert Path(own["CUDA_MPS_PIPE_DIRECTORY"], "control").exists()
        assert (tmp_path / "runs").exists()
        assert dict(os.environ) == before
    assert (tmp_path / "told").read_text() == "quit -t 5\n"
    assert not (tmp_path / "runs").exists()
    assert not Path(own["CUDA_MPS_PIPE_DIRECTORY"]).parent.exists()


def test_an_exception_stops_it_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    control_program(tmp_path, monkeypatch)
    with pytest.raises(KeyboardInterrupt), mps():
        raise KeyboardInterrupt
    assert not (tmp_path / "runs").exists()


def test_one_that_ignores_being_told_is_ended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    serve = f'touch "$CUDA_MPS_PIPE_DIRECTORY/control"; sleep 1000 & echo $! > {tmp_path}/server; wait'
    control_program(tmp_path, monkeypatch, f'if [ "$1" = -f ]; then {serve}; else sleep 1000; fi')
    monkeypatch.setattr(service.subprocess, "Popen", Hasty)
    with mps():
        until(lambda: (tmp_path / "server").exists() and (tmp_path / "server").read_text())
    server = (tmp_path / "server").read_text().strip()
    # a process that nobody waits for may stay in the list for a moment.
    until(lambda: subprocess.run(["ps", "-o", "stat=", "-p", server], capture_output=True, text=True).stdout[:1] in ("", "Z"))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_it_does_not_outlive_a_process_that_is_killed(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    control_program(tmp_path, monkeypatch)

    def hold() -> None:
        with mps() as own:
            (tmp_path / "folder").write_text(own["CUDA_MPS_PIPE_DIRECTORY"])
            signal.pause()

    parent = Child(hold)
    until(lambda: parent.ended or (tmp_path / "folder").exists())
    assert not parent.ended, parent.said
    folder = Path((tmp_path / "folder").read_text()).parent
    parent.kill(number)
    assert parent.wait() == -number
    until(lambda: not folder.exists())
    assert not (tmp_path / "runs").exists()
    # its clients may still be writing their checkpoints.
    assert (tmp_path / "told").read_text() == "quit -t 100\n"


def test_a_daemon_of_the_users_is_used_and_left_running(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    control_program(tmp_path, monkeypatch)
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path / "theirs"))
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "control").touch()
    with mps() as own:
        assert own == {}
        assert not (tmp_path / "runs").exists()
    assert (tmp_path / "told").read_text() == "get_server_list\n"


def test_a_folder_where_no_daemon_answers_is_not_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    control_program(tmp_path, monkeypatch)
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path / "nothing"))
    with mps() as own:
        assert own["CUDA_MPS_PIPE_DIRECTORY"] != str(tmp_path / "nothing")
        assert (tmp_path / "runs").exists()
    assert (tmp_path / "told").read_text() == "get_server_list\nquit -t 5\n"


@pytest.mark.parametrize(("given", "seen"), [("1,2", ""), ("", ""), ("GPU-8932f937", "GPU-8932f937"), ("MIG-1", "MIG-1")])
def test_numbers_of_gpus_are_for_its_clients_alone(
    given: str, seen: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    control_program(tmp_path, monkeypatch)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", given)
    with mps():
        pass
    assert (tmp_path / "devices").read_text() == f"{seen}\n"


def test_one_that_does_not_start_says_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    control_program(tmp_path, monkeypatch, 'echo "no permission" > "$CUDA_MPS_LOG_DIRECTORY/control.log"; exit 1')
    with pytest.raises(NoMps, match=r"^nvidia-cuda-mps-control did not start \(no permission\)$"), mps():
        pass


@pytest.mark.parametrize("works", [0, 1])
def test_processes_that_cannot_be_started_are_said_and_nothing_is_left(
    works: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    control_program(tmp_path, monkeypatch)
    started: list[subprocess.Popen[bytes]] = []
    folders: list[Path] = []

    class Scarce(Hasty):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            folders.append(Path(options["env"]["CUDA_MPS_PIPE_DIRECTORY"]).parent)
            if len(started) == works:
                raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
            super().__init__(*arguments, **options)
            started.append(self)

    monkeypatch.setattr(service.subprocess, "Popen", Scarce)
    why = r"^nvidia-cuda-mps-control did not start \(\[Errno 11\] Resource temporarily unavailable\)$"
    with pytest.raises(NoMps, match=why), mps():
        pass
    assert len(started) == works
    assert all(process.poll() is not None for process in started)
    assert not folders[0].exists()


def test_what_fails_in_the_block_is_not_laid_to_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    control_program(tmp_path, monkeypatch)
    with pytest.raises(FileNotFoundError, match=r"^mine$"), mps():
        raise FileNotFoundError("mine")


def test_one_that_takes_too_long_is_given_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    control_program(tmp_path, monkeypatch, '[ "$1" = -f ] && exec sleep 1000')
    started: list[subprocess.Popen[bytes]] = []

    class Noted(Hasty):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            started.append(self)

    monkeypatch.setattr(service.subprocess, "Popen", Noted)
    monkeypatch.setattr(service, "_START", 0.1)
    with pytest.raises(NoMps, match=r"^nvidia-cuda-mps-control did not start$"), mps():
        pass
    assert len(started) == 2
    assert all(process.poll() is not None for process in started)
