"""The fused kernels give the reference's numbers: run on the CPU by Triton's interpreter, in a process of its own."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
RUNNER = Path(__file__).with_name("interpreted_kernels.py")


def interpreted(group: str, timeout: float) -> dict[str, str]:
    """Run a group of checks; what went wrong with each, by name."""
    environment = {**os.environ, "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run([sys.executable, RUNNER, group], env=environment, capture_output=True, text=True, timeout=timeout)
    assert done.returncode == 0, done.stderr[-2000:]
    results = [json.loads(line) for line in done.stdout.splitlines()]
    return {result["check"]: result["problem"] for result in results}


@needs_triton
@pytest.mark.parametrize(
    "group",
    [
        "agreement",
        "em",
        "convolution",
        pytest.param("agreement-slow", marks=pytest.mark.slow),
        pytest.param("em-slow", marks=pytest.mark.slow),
    ],
)
def test_interpreted_kernels_give_the_reference_s_values_and_gradients(group: str) -> None:
    from kernel_cases import GROUPS

    results = interpreted(group, timeout=1000 if group.endswith("slow") else 250)
    assert {str(problem) for problem in GROUPS[group]} <= results.keys()
    wrong = [f"{check}: {problem}" for check, problem in results.items() if problem]
    assert not wrong, f"{len(wrong)} of {len(results)} checks failed:\n" + "\n".join(wrong)
