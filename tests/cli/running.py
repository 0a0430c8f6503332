"""The program as users run it, and the same within the process, which need not load torch again."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from capsella.cli.main import main

SOURCE = Path(__file__).resolve().parents[2] / "src"
# wide, so that no path is cut.
COLUMNS = "400"


def python(*arguments: str, seconds: float = 120) -> subprocess.CompletedProcess[str]:
    """Run Python on a checkout that is not installed."""
    plain = {"PYTHONPATH": str(SOURCE), "COLUMNS": COLUMNS, "NO_COLOR": "1", "PYTHONIOENCODING": "utf-8"}
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        encoding="utf-8",
        env={**os.environ, **plain},
        timeout=seconds,
        check=False,
    )


def capsella(*arguments: str, seconds: float = 120) -> subprocess.CompletedProcess[str]:
    """Run the program in a process of its own."""
    return python("-m", "capsella", *arguments, seconds=seconds)


def in_process(*arguments: str) -> tuple[int, str, str]:
    """Run the program here: exit code, stdout, stderr."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err), pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", COLUMNS)
        with pytest.raises(SystemExit) as stop:
            main(list(arguments))
    return int(stop.value.code or 0), out.getvalue(), err.getvalue()
