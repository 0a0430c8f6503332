"""Numbers below the smallest normal one take a CPU many times as long: a training takes them for zero, nothing else does."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from capsella.train import together
from capsella.train.processes import without_subnormals
from capsella.train.step import Stepper

sys.path.insert(0, str(Path(__file__).resolve().parent))
from run_harness import train
from together_harness import forking, seeded


def are_kept() -> bool:
    return bool(torch.tensor([1e-30]).mul(1e-10).item() != 0)


def test_they_are_zero_within_and_what_they_were_after() -> None:
    assert are_kept()
    with without_subnormals():
        assert not are_kept()
        with without_subnormals():
            assert not are_kept()
        assert not are_kept()
    assert are_kept()


def test_a_training_has_none_and_leaves_the_switch_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    step = Stepper.__call__

    def looking(self: Stepper, *arguments: object, **options: object) -> None:
        seen.append(are_kept())
        step(self, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Stepper, "__call__", looking)
    train(steps=2)
    assert seen == [False, False]
    assert are_kept()


def test_a_process_of_a_run_has_none_from_its_start(tmp_path: Path) -> None:
    def look(folder: Path) -> None:
        (folder / ("kept" if are_kept() else "flushed")).touch()

    with pytest.MonkeyPatch.context() as patch, forking(patch, together):
        (outcome,) = together.run_together(seeded(tmp_path, 0), after=look)
    assert outcome.run is not None
    assert (outcome.folder / "flushed").exists()
