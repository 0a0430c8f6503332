"""The command line as users run it: `python -m capsella` from a checkout that is not installed."""

from __future__ import annotations

import re

import pytest
from running import capsella, in_process, python

from capsella import __version__
from capsella.models import list_models
from capsella.routing import names


def test_help_lists_the_verbs() -> None:
    result = capsella("--help")
    assert result.returncode == 0
    assert result.stderr == ""
    assert "Usage: capsella" in result.stdout
    assert re.search(r"\binfo\b", result.stdout)


def test_the_version_is_printed() -> None:
    assert in_process("--version") == (0, f"capsella {__version__}\n", "")


def test_info_lists_routing_algorithms_and_models() -> None:
    # as users run it: test_get_as_users_run_it.
    code, out, err = in_process("info")
    assert (code, err) == (0, "")
    for name in (*names(), *list_models()):
        assert re.search(rf"\b{name}\b", out), name
    row = next(line for line in out.splitlines() if "│ capsnet " in line)
    assert "1×28×28" in row
    assert "8,215,568" in row
    assert "reference" in out


def test_info_describes_one_model_at_a_given_size() -> None:
    code, out, err = in_process("info", "capsnet", "--image-size", "40")
    assert (code, err) == (0, "")
    assert "(40, 40)" in out
    assert "agreement" in out
    assert "4608 × 10 × 8 × 16" in out
    assert "13,475,648" in out


def test_info_takes_channels_and_classes() -> None:
    code, out, _ = in_process("info", "lenet", "--in-channels", "3", "--num-classes", "7")
    assert code == 0
    assert "20 × 3 × 5 × 5" in out
    assert "7 × 500" in out


def test_an_unknown_model_is_one_line_on_stderr_and_exit_code_2() -> None:
    # as users run it: test_a_failure_as_users_run_it, and code 2 at the end of a stopped program with two devices.
    code, out, err = in_process("info", "capsnt")
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1
    assert err.startswith("capsella: name='capsnt' is unknown; did you mean 'capsnet'")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["info", "capsnet", "--image-size", "5"], "image_size=(5, 5) is too small"),
        (["info", "capsnet", "--num-classes", "0"], "num_classes=0 is too small"),
        (["info", "--image-size", "40"], "--image-size goes with a model"),
        (["inof"], "inof"),
        (["info", "capsnet", "--image-sise", "40"], "--image-sise"),
        (["info", "capsnet", "--image-size", "big"], "--image-size"),
    ],
)
def test_a_users_mistake_is_one_line_on_stderr_and_exit_code_2(arguments: list[str], message: str) -> None:
    code, out, err = in_process(*arguments)
    assert code == 2
    assert out == ""
    assert message in err
    assert "Traceback" not in err
    assert len(err.splitlines()) == 1, err


NO_TORCH = "import sys; loaded = [m for m in ('torch', 'numpy', 'einops') if m in sys.modules]; assert not loaded, loaded"


def test_importing_capsella_loads_no_torch() -> None:
    result = python("-c", f"import capsella; capsella.__version__; dir(capsella); {NO_TORCH}")
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("arguments", [["--help"], ["info", "--help"], ["--version"]])
def test_help_loads_no_torch(arguments: list[str]) -> None:
    program = f"""
import sys
sys.argv = ["capsella", *{arguments!r}]
from capsella.cli.main import main
try:
    main()
except SystemExit as stop:
    assert not stop.code, stop.code
{NO_TORCH}
print("checked")
"""
    result = python("-c", program)
    assert result.returncode == 0, result.stderr
    assert result.stdout.endswith("checked\n")


def test_the_check_for_torch_can_fail() -> None:
    result = python("-c", f"import einops; {NO_TORCH}")
    assert result.returncode == 1
    assert "AssertionError" in result.stderr
