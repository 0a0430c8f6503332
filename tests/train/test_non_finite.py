"""A loss that is infinite or no number stops the run with the step, the layer and a checkpoint that is still good."""

from __future__ import annotations

import json
import logging
import re
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from capsella.data import ImageData, from_tensors
from capsella.train import NonFiniteLoss, Run
from capsella.train.step import Stepper

sys.path.insert(0, str(Path(__file__).resolve().parent))
from run_harness import assert_same_run, metrics, newest, timeless, tiny_data, tiny_model, train

LOOKS = ["before every step", "at readings"]


@pytest.fixture(params=LOOKS)
def look(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Look at every loss before the weights move, as on a CPU, or only where metrics are read, as on a GPU."""
    look_at(monkeypatch, request.param)
    return str(request.param)


def look_at(patch: pytest.MonkeyPatch, when: str) -> None:
    begin = Stepper.__init__

    def chosen(self: Stepper, *args: Any, **kwargs: Any) -> None:
        begin(self, *args, **kwargs)
        self.careful = when == "before every step"

    patch.setattr(Stepper, "__init__", chosen)


class Overflow(nn.Module):
    """A network that goes wrong on bright images: above 1000 between its layers, above 100 in its gradient alone."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first = nn.Linear(4, 3)
        self.second = nn.Linear(3, 2)

    def forward(self, images: Tensor) -> Tensor:
        flat = images.flatten(1)
        brightest = float(flat.max())
        hidden = self.first(flat.clamp(max=1))
        if brightest > 1000:
            return self.second(hidden * torch.inf)
        if brightest > 100:
            # a root has an infinite slope at zero, and infinity times nought is no number.
            return self.second(hidden) + (hidden * 0).abs().sqrt().sum()
        return self.second(hidden)


def bright(step: int, value: float, *, steps: int = 12) -> ImageData:
    """Return one image a step, in an order that is known: the image of one step, counted from 1, has this brightness."""
    data = from_tensors(torch.full((steps, 1, 2, 2), 0.5), torch.arange(steps) % 2)
    order = [int(index) for index in _order(steps)]
    images = torch.full((steps, 1, 2, 2), 0.5)
    images[order[step - 1]] = value
    return from_tensors(images, data.labels)  # type: ignore[arg-type]


def _order(count: int) -> Tensor:
    """Return the samples of epoch 0 and seed 0 in their order, which does not depend on what they show."""
    numbered = from_tensors(torch.arange(float(count))[:, None, None, None], torch.arange(count) % 2)
    return torch.cat([batch.images.flatten() for batch in numbered.batches(1)])


def failed(folder: Path | None, **options: Any) -> str:
    with pytest.raises(NonFiniteLoss) as failure:
        train(folder, batch_size=1, epochs=1, **options)
    assert "\n" not in str(failure.value)
    return str(failure.value)


def assert_kept(folder: Path, said: str, step: int) -> None:
    """The message names a checkpoint that is finite; the record says how it ended; no line is there twice."""
    kept = newest(folder)
    assert said.endswith(f"; the last good checkpoint is {kept.path}")
    assert kept.facts["position"]["step"] == step
    for name, tensor in (kept.weights | kept.tensors).items():
        assert bool(tensor.isfinite().all()), name
    record = json.loads((folder / "record.json").read_text())
    assert (record["status"], record["reason"]) == ("non-finite", said)
    assert Run.load(folder).status == "non-finite"
    lines = [(line["event"], line["step"]) for line in metrics(folder)]
    assert len(set(lines)) == len(lines)
    assert all(torch.tensor([line["loss"], line["accuracy"]]).isfinite().all() for line in metrics(folder))


def readings(folder: Path) -> list[int]:
    return [line["step"] for line in metrics(folder) if line["event"] == "log"]


@pytest.mark.parametrize("seconds", [0, 60])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")], ids=str)
def test_images_that_are_no_numbers_are_named(look: str, value: float, seconds: float, tmp_path: Path) -> None:
    said = failed(tmp_path / "run", make=Overflow, data=bright(7, value), log_every=2, checkpoint_seconds=seconds)
    assert re.match(r"the loss of step 7 is (nan|inf); the first non-finite values are the images themselves; ", said)
    assert_kept(tmp_path / "run", said, 0 if seconds else 6)
    assert readings(tmp_path / "run") == [2, 4, 6]


@pytest.mark.parametrize("every", [1, 2, 5, 50])
@pytest.mark.parametrize("step", [1, 4, 12])
def test_the_first_layer_and_its_step_are_found(look: str, step: int, every: int, tmp_path: Path) -> None:
    said = failed(tmp_path / "run", make=Overflow, data=bright(step, 1e6), log_every=every)
    assert said.startswith(
        f"the loss of step {step} is nan; the first non-finite values are the activations of layer 'second';"
    )
    assert_kept(tmp_path / "run", said, 0)
    assert readings(tmp_path / "run") == list(range(every, step, every))


@pytest.mark.parametrize("seconds", [0, 60])
def test_a_gradient_that_is_no_number_is_found_in_the_weights(look: str, seconds: float, tmp_path: Path) -> None:
    said = failed(tmp_path / "run", make=Overflow, data=bright(5, 500.0), log_every=4, checkpoint_seconds=seconds)
    if seconds:
        assert said.startswith(
            "the loss of step 6 is nan; the first non-finite values are the activations of layer 'first' "
            "(first.weight was non-finite already: a gradient of the step before was); "
        )
    else:
        assert said.startswith("'first.weight' is not finite after step 5, its gradient was not; ")
    assert_kept(tmp_path / "run", said, 0 if seconds else 4)


def test_a_gradient_that_is_no_number_in_the_last_step_is_found(look: str, tmp_path: Path) -> None:
    said = failed(tmp_path / "run", make=Overflow, data=bright(12, 500.0))
    assert said.startswith("'first.weight' is not finite after step 12, its gradient was not; ")
    assert_kept(tmp_path / "run", said, 0)
    assert failed(None, make=Overflow, data=bright(12, 500.0)) == (
        "'first.weight' is not finite after step 12, its gradient was not; no checkpoint was kept: give a folder to have them"
    )


def test_a_run_that_failed_goes_on_from_its_checkpoint_to_fail_there_again(look: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {"make": Overflow, "data": bright(7, 1e6), "log_every": 2, "checkpoint_seconds": 0}
    said = failed(tmp_path / "run", **options)
    assert failed(tmp_path / "run", resume=True, **options) == said
    assert_kept(tmp_path / "run", said, 6)
    assert readings(tmp_path / "run") == [2, 4, 6]


def test_a_run_that_failed_goes_on_where_the_step_is_left_out(look: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {"make": Overflow, "data": bright(7, 1e6), "log_every": 2, "checkpoint_seconds": 0}
    failed(tmp_path / "run", **options)
    # up to the step before the bad one there is nothing wrong with it.
    assert train(tmp_path / "run", batch_size=1, resume=True, **{**options, "epochs": 1, "steps": 6}).status == "finished"
    train(tmp_path / "whole", batch_size=1, **{**options, "epochs": 1, "steps": 6})
    assert_same_run(tmp_path / "run", tmp_path / "whole")


def test_a_weight_that_became_infinite_is_named_with_its_layer(tmp_path: Path) -> None:
    model = tiny_model()
    spoilt = next(name for name, _ in model.named_parameters() if name.endswith("0.weight"))

    def spoil(event: dict[str, Any]) -> None:
        if event["event"] == "log" and event["step"] == 4:
            with torch.no_grad():
                model.get_parameter(spoilt)[0] = torch.inf

    with pytest.raises(NonFiniteLoss) as failure:
        train(tmp_path / "run", make=lambda: model, listeners=[spoil])
    layer = spoilt.rpartition(".")[0]
    assert str(failure.value).startswith(
        f"the loss of step 5 is nan; the first non-finite values are the activations of layer {layer!r} "
        f"({spoilt} was non-finite already: a gradient of the step before was); "
    )
    assert_kept(tmp_path / "run", str(failure.value), 0)


@pytest.mark.parametrize("in_folder", [True, False])
def test_a_weight_that_is_infinite_from_the_start_is_named(look: str, in_folder: bool, tmp_path: Path) -> None:
    model = Overflow()
    with torch.no_grad():
        model.second.bias[0] = torch.inf
    folder = tmp_path / "run" if in_folder else None
    said = failed(folder, make=lambda: model, data=bright(1, 0.5))
    last = "there is no checkpoint yet" if in_folder else "no checkpoint was kept: give a folder to have them"
    assert said == f"'second.bias' is not finite before the first step; {last}"
    if folder is not None:
        assert json.loads((folder / "record.json").read_text())["status"] == "non-finite"


def test_a_learning_rate_that_overflows_is_said_with_step_and_layer(look: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {"make": partial(tiny_model, "lenet", side=20), "data": tiny_data(side=20), "log_every": 3}
    with pytest.raises(NonFiniteLoss) as failure:
        train(tmp_path / "run", optimiser="sgd", lr=1e25, epochs=9, **options)
    found = re.match(r"the loss of step (\d+) is (nan|inf); the first non-finite values are (.*); the last", str(failure.value))
    assert found, str(failure.value)
    assert 2 <= int(found[1]) <= 6
    names = [name for name, _ in tiny_model("lenet", side=20).named_modules() if name]
    layer = re.match(r"the activations of layer '(.*?)'", found[3])
    assert layer
    assert layer[1] in names
    assert_kept(tmp_path / "run", str(failure.value), 0)


def test_both_ways_of_looking_find_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = []
    for when in LOOKS:
        look_at(monkeypatch, when)
        folder = tmp_path / when
        with pytest.raises(NonFiniteLoss) as failure:
            train(folder, make=partial(tiny_model, routing="uniform"), optimiser="sgd", lr=1e20, epochs=9, log_every=1)
        said.append(str(failure.value).replace(str(folder), "RUN"))
    assert said[0] == said[1]
    assert timeless(metrics(tmp_path / LOOKS[0])) == timeless(metrics(tmp_path / LOOKS[1])) != []


def test_going_back_to_look_is_said_and_leaves_no_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    look_at(monkeypatch, "at readings")
    events: list[dict[str, Any]] = []
    with caplog.at_level(logging.WARNING):
        failed(tmp_path / "run", make=Overflow, data=bright(7, 1e6), log_every=5, listeners=[events.append])
    assert "the loss of step 7 is not finite; going back to step-000000000 to see where it begins" in caplog.text
    kinds = [(event["event"], event.get("step")) for event in events]
    assert kinds == [("start", None), ("log", 5), ("rewind", 0), ("log", 5), ("end", None)]
    assert readings(tmp_path / "run") == [5]


def test_steps_are_counted_from_the_start_of_the_run_after_a_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    look_at(monkeypatch, "at readings")
    options: dict[str, Any] = {"make": Overflow, "data": bright(7, 1e6), "log_every": 5}
    train(tmp_path / "run", batch_size=1, epochs=1, steps=4, **options)
    said = failed(tmp_path / "run", resume=True, **options)
    assert "the loss of step 7 is not finite; going back to step-000000004 to see where it begins" in caplog.text
    assert_kept(tmp_path / "run", said, 4)


def test_a_loss_that_is_bad_while_weights_stay_finite_is_never_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Deaf(nn.Module):
        """Infinite for one image, without a gradient that says so."""

        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.layer = nn.Linear(4, 2)

        def forward(self, images: Tensor) -> Tensor:
            brightest = images.flatten(1).amax(dim=1, keepdim=True)
            quiet = self.layer(images.flatten(1).clamp(max=1))
            return torch.where(brightest > 1000, torch.full_like(quiet, torch.nan), quiet)

    look_at(monkeypatch, "at readings")
    said = failed(tmp_path / "run", make=Deaf, data=bright(3, 1e6), log_every=50, checkpoint_seconds=0)
    assert said.startswith("the loss of step 3 is nan; the first non-finite values are the loss itself")
    assert_kept(tmp_path / "run", said, 2)
