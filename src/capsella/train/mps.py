"""NVIDIA's multi-process service (MPS), which lets kernels of several processes run on a GPU at the same time.

Its daemon is started for a block of code, in a folder of its own, and ends with it. A shell beside it waits for the end of a
pipe, so that neither daemon nor folder outlives this process however it ends.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from capsella.errors import RunError

CONTROL = "nvidia-cuda-mps-control"
PIPE, LOG = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"

# seconds that the daemon has to start, to answer a question and to end.
_START, _ANSWER, _END = 10.0, 10.0, 15.0
# seconds that the daemon waits for its clients: they have ended before it is told to end, but where this process was killed,
# and they are writing their last checkpoints.
_CLIENTS, _LEFT_ALONE = 5, 100
_KEEPER = f"""
read seconds || seconds={_LEFT_ALONE}
echo "quit -t $seconds" | "$0"
while [ -e "/proc/$1/exe" ]; do sleep 0.1; done
rm -rf "$2"
"""


class NoMps(RunError):
    """NVIDIA's MPS cannot be used here; one line that says why."""


def is_installed() -> bool:
    """Tell whether the program that starts the service is on the PATH."""
    return shutil.which(CONTROL) is not None


@contextlib.contextmanager
def mps() -> Iterator[dict[str, str]]:
    """Give the variables that clients of the service need; it runs as long as the block.

    Where ``CUDA_MPS_PIPE_DIRECTORY`` names the folder of a daemon that answers, that one is used, and left running.

    Raises:
        NoMps: there is no such program, or it does not start.
    """
    program = shutil.which(CONTROL)
    if program is None:
        raise NoMps(f"{CONTROL} is not on the PATH")
    if PIPE in os.environ and _answers(program):
        # clients have the variables of this process anyway.
        yield {}
        return
    with contextlib.ExitStack() as stack:
        try:
            own = _started(program, stack)
        except OSError as error:
            raise NoMps(f"{CONTROL} did not start ({error})") from error
        yield own


def _started(program: str, stack: contextlib.ExitStack) -> dict[str, str]:
    """Start the daemon and its keeper, and return the variables of its clients; what is to be undone goes on the stack."""
    # the path of a socket is short.
    folder = Path(tempfile.mkdtemp(prefix="mps-", dir="/tmp"))
    stack.callback(shutil.rmtree, folder, ignore_errors=True)
    own = {PIPE: f"{folder}/pipe", LOG: f"{folder}/log"}
    for path in own.values():
        Path(path).mkdir()
    silent: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    # in sessions of their own: Ctrl-C in a terminal is for the runs, which need the service until they have stopped.
    silent |= {"env": _environment(own), "start_new_session": True}
    daemon = subprocess.Popen([program, "-f"], stdin=subprocess.DEVNULL, **silent)
    stack.callback(_end, daemon)
    keeper = subprocess.Popen(["sh", "-c", _KEEPER, program, str(daemon.pid), folder], stdin=subprocess.PIPE, **silent)
    stack.callback(_end, keeper)
    stack.callback(_quit, daemon, keeper)
    _wait_for(daemon, folder)
    return own


def _answers(program: str) -> bool:
    try:
        asked = subprocess.run(
            [program], input="get_server_list\n", text=True, capture_output=True, timeout=_ANSWER, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return False
    return asked.returncode == 0 and "Cannot find" not in asked.stdout + asked.stderr


def _environment(own: dict[str, str]) -> dict[str, str]:
    """Return the daemon's variables.

    It numbers the GPUs that it sees anew, and its clients' ``CUDA_VISIBLE_DEVICES`` would be read as those numbers; where that
    is a list of numbers, the daemon sees all.
    """
    environment = {**os.environ, **own}
    if re.fullmatch(r"[\d, ]*", environment.get("CUDA_VISIBLE_DEVICES", "")):
        environment.pop("CUDA_VISIBLE_DEVICES", None)
    return environment


def _wait_for(daemon: subprocess.Popen[bytes], folder: Path) -> None:
    end = time.monotonic() + _START
    while not (folder / "pipe" / "control").exists():
        if daemon.poll() is not None or time.monotonic() > end:
            raise NoMps(f"{CONTROL} did not start{_last_line(folder / 'log' / 'control.log')}")
        time.sleep(0.02)


def _quit(daemon: subprocess.Popen[bytes], keeper: subprocess.Popen[bytes]) -> None:
    """Let the keeper end the daemon."""
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        if keeper.stdin is not None:
            keeper.stdin.write(f"{_CLIENTS}\n".encode())
            keeper.stdin.close()
        daemon.wait(_END)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process that does not end by itself."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(1)
    if process.poll() is None:
        # with what it has started, a server among that.
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _last_line(log: Path) -> str:
    try:
        lines = log.read_text(errors="replace").strip().splitlines()
    except OSError:
        return ""
    return f" ({lines[-1].strip()})" if lines else ""
