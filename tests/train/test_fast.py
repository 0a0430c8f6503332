"""The compiled step as a CPU takes it, and the switches of libraries that a run sets: everything is put back."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
import torch
from tiny_runs import capsnet, losses, short_run

from capsella.errors import RunError
from capsella.models import list_models


def test_fast_compiles_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[Any] = []
    monkeypatch.setattr(torch, "compile", lambda run, **_: compiled.append(run) or run)
    short_run(capsnet())
    assert not compiled
    run = short_run(capsnet(), fast=True)
    assert len(compiled) == 1
    assert run.config["train"]["fast"] is True
    short_run(capsnet(), fast=True)
    # the compiler gives up after eight versions of one piece of code.
    assert len({each.__code__ for each in compiled}) == 2


def test_a_compiler_that_fails_is_named_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> Any:
        raise OSError("no C++ compiler\nwas found")

    real = torch.compile
    monkeypatch.setattr(torch, "compile", lambda run, **_: real(run, backend=fails))
    with pytest.raises(
        RunError, match=r"^fast=True: this network could not be compiled here \(no C\+\+ compiler\); leave it out$"
    ):
        short_run(capsnet(), fast=True)


class Flat(torch.nn.Module):
    """Counts on the layout that convolutions give by default."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(1, 4, 3)
        self.scores = torch.nn.Linear(400, 3)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return logits."""
        return self.scores(self.conv(images).view(len(images), -1))  # type: ignore[no-any-return]


def test_a_network_is_left_as_it_came(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", lambda run, **_: run)
    for model in (capsnet(channels=4), Flat()):
        short_run(model, fast=True)
        assert [name for name, parameter in model.named_parameters() if parameter.grad is not None] == []
        assert [name for name, parameter in model.named_parameters() if not parameter.is_contiguous()] == []


@pytest.mark.slow
def test_the_compiled_step_takes_the_steps_of_the_plain_one() -> None:
    plain, fast = (losses(short_run(capsnet(), steps=8, fast=fast)) for fast in (False, True))
    assert fast == pytest.approx(plain, rel=1e-5)


@pytest.mark.slow
# one takes no images, and one drops values at random, which a compiler draws otherwise.
@pytest.mark.parametrize("model", sorted(set(list_models()) - {"sign_capsnet", "convnet_fc512"}))
def test_every_model_compiles_to_steps_that_several_threads_take_as_the_plain_one(model: str) -> None:
    # in a process of its own: what a compiler writes to wrong places ends it.
    options = ("--model", model, "--size", "28", "--budget", "0.01", "--no-large", "--no-epoch")
    command = [sys.executable, "-m", "capsella", "bench", "step", "--device", "cpu", *options]
    environment = {**os.environ, "OMP_NUM_THREADS": "2"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert (done.returncode, "losses agree" in done.stderr) == (0, True), done.stderr


@pytest.mark.parametrize("switch", ["matmul", "all"])
def test_torchs_newer_switches_for_tf32_are_left_as_they_were(switch: str) -> None:
    everything: Any = torch.backends
    switches = [everything, everything.cuda.matmul, everything.cudnn.conv]
    before = [each.fp32_precision for each in switches]
    switches[0 if switch == "all" else 1].fp32_precision = "tf32"
    wanted = [each.fp32_precision for each in switches]
    assert wanted != before
    try:
        for precision in ("float32", "tf32"):
            assert short_run(capsnet(), precision=precision).status == "finished"
            assert [each.fp32_precision for each in switches] == wanted
    finally:
        for each, value in zip(switches, before, strict=True):
            each.fp32_precision = value
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
