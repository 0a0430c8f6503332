"""The training step on the bench: compared with the plain one first, then timed."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from capsella.bench import epoch, step
from capsella.data.tensors import from_tensors
from capsella.errors import DataError, RunError

pytestmark = pytest.mark.usefixtures("own_litter")

CPU = torch.device("cpu")
TINY = step.Job("capsnet_small", 28, 2, "float32", {"reconstruction": "none"})


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", lambda run, **_: run)


@pytest.mark.usefixtures("no_compiler")
def test_a_step_is_timed_after_its_losses_agree() -> None:
    said: list[str] = []
    fast, plain = step.measure(step.with_plain([TINY]), CPU, budget=0.0, say=said.append)
    for reading in (fast, plain):
        assert 0 < reading.low <= reading.median <= reading.high
        assert reading.problem == ""
        assert reading.memory > 0
        assert reading.parameters > 1000
        # one capsule layer, noted once.
        assert reading.routed_by
        assert "," not in reading.routed_by
        assert reading.floor > 0
        assert reading.over_floor == reading.median / reading.floor
    assert (fast.fast, plain.fast) == (True, False)
    assert 0 <= fast.difference < step.BOUND["float32"]
    assert said[0].startswith("capsnet_small, 28 px, float32: losses agree to ")


def test_the_least_of_a_step_is_what_its_products_and_its_weights_cost() -> None:
    cost = step.least(step.Job("convnet_avg", 28, 2, "bf16"))
    assert cost is not None
    # nobody asks for the gradient of an image.
    first, second, last = 2 * 400 * 81 * 256, 3 * 36 * 81 * 256 * 256, 3 * 256 * 10
    assert cost.operations == 2 * 2 * (first + second + last)
    weights = 4 * 5_332_234
    assert (cost.read, cost.written) == (4 * weights + 2 * 28 * 28, 4 * weights)


def test_a_network_that_looks_at_values_has_no_floor(monkeypatch: pytest.MonkeyPatch) -> None:
    class Looks(torch.nn.Module):
        def forward(self, images: torch.Tensor, targets: torch.Tensor) -> float:
            return images.sum().item()

    monkeypatch.setattr(step, "_model", lambda job: Looks())
    assert step.least(TINY) is None


@pytest.mark.usefixtures("no_compiler")
@pytest.mark.parametrize("loss", [0.5, math.nan])
def test_a_fast_step_with_other_losses_is_not_timed(monkeypatch: pytest.MonkeyPatch, loss: float) -> None:
    real = step._losses

    def other(stepper: Any, act: Any) -> list[float]:
        found = real(stepper, act)
        return [loss, *found[1:]] if stepper.config.fast else found

    monkeypatch.setattr(step, "_losses", other)
    (reading,) = step.measure([TINY], CPU, budget=0.0)
    assert reading.is_red
    assert reading.problem.startswith("wrong: losses [")
    assert reading.median == 0


@pytest.mark.parametrize(
    ("error", "problem"),
    [
        (torch.OutOfMemoryError("CUDA out of memory"), "out of memory"),
        (
            RunError("fast=True: this network could not be compiled here"),
            "fails: fast=True: this network could not be compiled here",
        ),
    ],
)
def test_what_does_not_run_is_said_and_the_next_one_runs(
    monkeypatch: pytest.MonkeyPatch, error: Exception, problem: str
) -> None:
    def fails(*_: object) -> None:
        raise error

    monkeypatch.setattr(step, "_time", fails)
    assert [reading.problem for reading in step.measure([TINY, TINY], CPU)] == [problem] * 2


def test_the_reference_runs_where_it_is_asked_for() -> None:
    job = step.Job("capsnet_small", 28, 2, "float32", {"reconstruction": "none"}, implementation="reference", fast=False)
    (reading,) = step.measure([job], CPU, budget=0.0)
    assert reading.routed_by == "reference"
    assert reading.problem == ""


def test_the_steps_of_a_gpu_are_those_of_the_papers() -> None:
    jobs = step.jobs(torch.device("cuda"))
    assert len(jobs) == 20
    assert {(job.batch_size, job.size) for job in jobs} == {(128, 28), (128, 40)}
    assert {job.model for job in jobs} == {"capsnet", "aff_capsnet", "em_capsnet", "gcapsnet_fc", "convnet_avg"}
    fast, reference = step.large_jobs()
    assert (fast.size, fast.batch_size, fast.options) == (224, 64, {"reconstruction": "none"})
    assert (reference.implementation, reference.fast) == ("reference", False)


@pytest.mark.usefixtures("no_compiler")
def test_an_epoch_is_timed_without_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    def made(name: str, *, split: str, root: object) -> Any:
        images = torch.randint(256, (24, 1, 28, 28), dtype=torch.uint8)
        return from_tensors(images, torch.arange(24) % 10, name=name, split=split)

    monkeypatch.setattr(epoch, "load_data", made)
    found = epoch.measure_epoch(CPU, model="capsnet_small", batch_size=8, precision="float32", epochs=3)
    assert (found.what, found.repeats, found.batch_size) == (step.EPOCH, 2, 8)
    assert 0 < found.low <= found.median <= found.high
    assert 0 <= found.accuracy <= 1


def test_missing_data_leaves_the_steps_their_readings(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object, **__: object) -> Any:
        raise DataError("mnist is not here")

    monkeypatch.setattr(epoch, "load_data", missing)
    (reading,) = epoch.everything([], CPU, budget=0.0, epoch=True)
    assert reading.problem == "no data: mnist is not here"
    assert not reading.is_red


def test_steps_are_set_against_those_with_the_same_convolutions() -> None:
    def reading(model: str, seconds: float, **more: Any) -> step.StepReading:
        return step.StepReading(step.STEP, model, 28, 128, "bf16", **{"fast": True, "median": seconds, **more})

    found = step.differences(
        [
            reading("capsnet", 5.0),
            reading("convnet_avg", 3.0),
            reading("em_capsnet", 4.0),
            reading("aff_capsnet", 9.0, problem="wrong: losses"),
            reading("gcapsnet_fc", 9.0, fast=False),
        ]
    )
    assert found == [{"model": "capsnet", "trunk": "convnet_avg", "size": 28, "precision": "bf16", "seconds": 2.0}]
