"""A run that was stopped and goes on is the run that was not: weights, optimisers, metrics and record, bit for bit."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import capsella
from capsella.train import CheckpointError, Run, TrainConfig
from capsella.train.config import END, FREE_ON_RESUME

sys.path.insert(0, str(Path(__file__).resolve().parent))
from run_harness import assert_same_run, interrupted, metrics, newest, tiny_data, tiny_model, train


class Normalised(nn.Module):
    """A network that is not capsella's, with dropout and running statistics."""

    def __init__(self, hidden: int = 6) -> None:
        super().__init__()
        seen = [nn.Conv2d(1, hidden, 3, stride=4), nn.BatchNorm2d(hidden), nn.ReLU(), nn.Flatten()]
        self.layers = nn.Sequential(*seen, nn.Dropout(0.5), nn.Linear(25 * hidden, 2))

    def forward(self, images: Tensor) -> Tensor:
        return self.layers(images)


def normalised(**options: Any) -> nn.Module:
    torch.manual_seed(7)
    return Normalised(**options)


@pytest.fixture(autouse=True)
def _no_wait_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare what is written without waiting until a disk has it; tests of checkpoints and of killed runs do wait."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)


@pytest.fixture(scope="module")
def unstopped(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Return a function that trains without a stop, once for all tests that ask for the same name."""
    folder = tmp_path_factory.mktemp("unstopped")

    def find(name: str, **options: Any) -> Path:
        if not (folder / name).exists():
            train(folder / name, **options)
        return folder / name

    return find


def assert_resumes(
    patch: pytest.MonkeyPatch, folder: Path, stops: tuple[int, ...], *, whole: Path | None = None, **options: Any
) -> None:
    """Train without a stop, if not done yet, and with a stop in the course of each of these steps; compare."""
    if whole is None:
        whole = folder / "whole"
        train(whole, **options)
    done = 0
    for stop in stops:
        said = interrupted(patch, stop - done, folder / "parts", resume=done > 0, **options)
        assert said == f"stopped after step {stop}: go on from {folder / 'parts'} with --resume"
        assert newest(folder / "parts").facts["position"]["step"] == stop
        assert not (folder / "parts" / "record.json").exists()
        done = stop
    train(folder / "parts", resume=True, **options)
    assert_same_run(folder / "parts", whole)


ROUTINGS: dict[str, dict[str, Any]] = {
    "agreement": {},
    "em": {},
    "uniform": {},
    "trainable": {},
    "quadratic, adam": {"coupling_optimiser": "adam", "weight_steps": 2, "coupling_steps": 2},
    "quadratic, ascent": {"coupling_optimiser": "ascent", "coupling_lr": 0.1, "coupling_steps": 3},
}


@pytest.mark.parametrize("case", ROUTINGS)
def test_every_routing_resumes_bit_for_bit(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make = partial(tiny_model, routing=case.split(",")[0])
    assert_resumes(monkeypatch, tmp_path, (2, 4), make=make, **ROUTINGS[case])
    if case.startswith("quadratic"):
        moved = newest(tmp_path / "whole").weights["layers.0.couplings"] - make().state_dict()["layers.0.couplings"]
        assert moved.abs().max() > 1e-6


MODELS: dict[str, Callable[[], nn.Module]] = {
    "dropout": partial(tiny_model, "convnet_fc512", side=17),
    "BatchNorm and dropout": normalised,
    "BatchNorm of a capsule net": partial(
        tiny_model, "parse_capsnet", side=25, backbone="affnist", capsules=(4, 4, 2), reconstruction="none"
    ),
}


@pytest.mark.parametrize("case", MODELS)
def test_random_layers_and_running_statistics_resume_bit_for_bit(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = MODELS[case]
    side = 21 if case == "BatchNorm and dropout" else make().image_shape[-1]
    assert any(isinstance(module, nn.Dropout | nn.BatchNorm2d) for module in make().modules())
    assert_resumes(monkeypatch, tmp_path, (4,), make=make, data=tiny_data(side=side))


SETTINGS: dict[str, dict[str, Any]] = {
    "sgd": {"optimiser": "sgd", "lr": 0.01, "momentum": 0.9, "weight_decay": 1e-3},
    "biases at another rate": {"bias_rate": 2.0, "clip": 0.5},
    "constant": {"schedule": "constant"},
    "exponential": {"schedule": "exponential", "decay": 0.5, "decay_steps": 2},
    "inverse": {"schedule": "inverse", "inverse_gamma": 0.5},
    "multistep": {"schedule": "multistep", "milestones": (3, 5), "decay": 0.1},
    "spread": {"loss": "spread"},
    "bf16": {"precision": "bf16"},
    "another seed": {"seed": 3},
}


@pytest.mark.parametrize("case", SETTINGS)
def test_every_optimiser_and_schedule_resumes_bit_for_bit(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert_resumes(monkeypatch, tmp_path, (4,), **SETTINGS[case])
    if case in ("exponential", "inverse", "multistep"):
        rates = [line["lr"] for line in metrics(tmp_path / "parts") if line["event"] == "log"]
        assert len(rates) == 3
        assert rates == sorted(rates, reverse=True)
        assert rates[0] > rates[-1]


@pytest.mark.parametrize("stops", [(1,), (3,), (6,), (3, 6), (5,), (1, 2, 3, 4, 5, 6)], ids=str)
@pytest.mark.parametrize("seconds", [0, 60], ids=["every step is kept", "only stops are kept"])
def test_a_run_resumes_from_any_step_of_an_epoch(
    stops: tuple[int, ...],
    seconds: float,
    unstopped: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    held_out = tiny_data(6, seed=2, split="val")
    options: dict[str, Any] = {"checkpoint_seconds": seconds, "validation": held_out, "test": held_out}
    assert_resumes(monkeypatch, tmp_path, stops, whole=unstopped(f"epochs, {seconds} s", **options), **options)
    epochs = [line for line in metrics(tmp_path / "parts") if line["event"] == "epoch"]
    assert [(line["step"], line["epoch"]) for line in epochs] == [(3, 1), (6, 2)]


@pytest.mark.parametrize("stop", [2, 3, 4, 5])
@pytest.mark.parametrize("seconds", [0, 60], ids=["every step is kept", "only stops are kept"])
def test_a_run_of_so_many_steps_resumes_bit_for_bit(
    stop: int, seconds: float, unstopped: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: dict[str, Any] = {"steps": 5, "epochs": 10, "checkpoint_seconds": seconds}
    assert_resumes(monkeypatch, tmp_path, (stop,), whole=unstopped(f"steps, {seconds} s", **options), **options)
    epochs = [line for line in metrics(tmp_path / "parts") if line["event"] == "epoch"]
    assert [(line["step"], line["epoch"]) for line in epochs] == [(3, 1), (5, 1 + 2 / 3)]


@pytest.mark.parametrize("stop", [2, 3, 4, 5])
def test_a_run_that_is_measured_on_its_way_resumes_bit_for_bit(
    stop: int, unstopped: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held_out = tiny_data(6, seed=2, split="val")
    options: dict[str, Any] = {"steps": 8, "epochs": 10, "validate_every": 2, "validation": held_out, "checkpoint_seconds": 0}
    assert_resumes(monkeypatch, tmp_path, (stop,), whole=unstopped("on its way", **options), **options)
    epochs = [line for line in metrics(tmp_path / "parts") if line["event"] == "epoch"]
    # once where it falls together with the end of an epoch, or of the run.
    assert [line["step"] for line in epochs] == [2, 3, 4, 6, 8]
    assert [line["epoch"] for line in epochs] == [pytest.approx(step / 3) for step in (2, 3, 4, 6, 8)]
    assert all(line["validation"] is not None for line in epochs)


def test_augmented_images_resume_bit_for_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bright = torch.randint(0, 256, (10, 1, 21, 21), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    data = capsella.data.from_tensors(bright, torch.arange(10) % 2, augment="shift")
    assert_resumes(monkeypatch, tmp_path, (2, 5), data=data)


@pytest.mark.parametrize("stop", [3, 4, 6])
def test_early_stopping_is_the_same_after_a_resume(stop: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # what is validated on is learned from, so that the target is reached, but not at once.
    options = {"data": tiny_data(12), "validation": tiny_data(12, split="val"), "epochs": 40, "lr": 1e-4}
    assert_resumes(monkeypatch, tmp_path, (stop,), target_accuracy=1.0, **options)
    record = json.loads((tmp_path / "parts" / "record.json").read_text())
    assert record["status"] == "reached"
    assert 2 < record["epochs"] < 40
    accuracies = [line["validation"] for line in record["history"]]
    assert accuracies[-1] == 1
    assert max(accuracies[:-1]) < 1


def test_a_run_that_does_not_come_to_its_target_says_so_after_a_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"validation": tiny_data(6, seed=2, split="val"), "target_accuracy": 1.0, "lr": 1e-9}
    assert_resumes(monkeypatch, tmp_path, (4,), **options)
    assert json.loads((tmp_path / "parts" / "record.json").read_text())["status"] == "not reached"


@pytest.mark.parametrize("steps", [None, 5])
@pytest.mark.parametrize("seconds", [0, 60], ids=["every step is kept", "only the end is kept"])
def test_a_finished_run_that_is_resumed_stays_as_it_is(seconds: float, steps: int | None, tmp_path: Path) -> None:
    settings = {"steps": steps, "checkpoint_seconds": seconds}
    first = train(tmp_path / "run", **settings)
    shutil.copytree(tmp_path / "run", tmp_path / "before")
    again = train(tmp_path / "run", resume=True, **settings)
    assert again.status == first.status == "finished"
    assert_same_run(tmp_path / "run", tmp_path / "before")


@pytest.mark.parametrize("seconds", [0, 60], ids=["every step is kept", "only the end is kept"])
@pytest.mark.parametrize(
    ("short", "long"),
    [
        ({"epochs": 1}, {"epochs": 3}),
        ({"steps": 2}, {"steps": 5}),
        ({"steps": 4}, {"steps": None}),
        ({"steps": 3}, {"steps": 4}),
    ],
    ids=str,
)
def test_a_run_that_is_made_longer_equals_the_longer_run(
    short: dict[str, Any], long: dict[str, Any], seconds: float, tmp_path: Path
) -> None:
    held_out = tiny_data(6, seed=2, split="val")
    options: dict[str, Any] = {"checkpoint_seconds": seconds, "validation": held_out}
    assert train(tmp_path / "grown", **options, **short).status == "finished"
    train(tmp_path / "grown", resume=True, **options, **long)
    train(tmp_path / "long", **options, **long)
    assert_same_run(tmp_path / "grown", tmp_path / "long")


# a value other than the default for every field that a resumed run may not change.
CHANGED: dict[str, Any] = {
    "batch_size": 5,
    "seed": 1,
    "optimiser": "sgd",
    "lr": 0.5,
    "betas": (0.8, 0.999),
    "momentum": 0.5,
    "weight_decay": 0.1,
    "bias_rate": 2.0,
    "clip": 1.0,
    "schedule": "inverse",
    "decay": 0.5,
    "decay_steps": 7.0,
    "lr_floor": 1e-3,
    "inverse_gamma": 0.1,
    "inverse_power": 0.5,
    "milestones": (3,),
    "loss": "spread",
    "margins": (0.8, 0.2),
    "down_weight": 0.1,
    "spread": (0.1, 0.5),
    "reconstruction": 0.1,
    "reconstruction_reduction": "mean",
    "weight_steps": 2,
    "coupling_steps": 2,
    "coupling_optimiser": "ascent",
    "coupling_lr": 0.5,
    "coupling_penalty": 0.1,
    "coupling_objective": "raw",
    "coupling_l1_factor": 2.0,
    "coupling_bound": 3.0,
    "precision": "bf16",
    "fast": True,
}


def test_the_fields_that_may_change_are_named() -> None:
    assert set(CHANGED) | set(FREE_ON_RESUME) | set(END) == set(TrainConfig().as_dict())


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished") / "run"
    train(folder)
    return folder


def assert_refused(folder: Path, error: type[Exception], **options: Any) -> str:
    """Try to resume; the folder must be as it was, but for the lock."""
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with pytest.raises(error) as refusal:
        train(folder, resume=True, **options)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    assert "\n" not in str(refusal.value)
    return str(refusal.value)


@pytest.mark.parametrize("field", [field for field in CHANGED if field != "fast"])
def test_a_changed_setting_is_refused_by_its_name(field: str, finished: Path) -> None:
    said = assert_refused(finished, ValueError, **{field: CHANGED[field]})
    old = {"batch_size": 4, "loss": "margin"}.get(field, TrainConfig().as_dict()[field])
    new = list(CHANGED[field]) if isinstance(CHANGED[field], tuple) else CHANGED[field]
    assert said == f"folder={str(finished)!r} holds another run: train.{field}: {old!r} -> {new!r}"


def test_another_model_is_refused_by_what_differs(finished: Path) -> None:
    assert "model.name: 'capsnet_small' -> 'convnet_small'" in assert_refused(
        finished, ValueError, make=partial(tiny_model, "convnet_small")
    )
    assert "model.num_iters: None -> 2" in assert_refused(finished, ValueError, make=partial(tiny_model, num_iters=2))
    assert "model.name" in assert_refused(finished, ValueError, make=normalised)


def test_another_data_set_is_refused_by_its_part(finished: Path) -> None:
    assert "data.train: tensors -> tensors (other content)" in assert_refused(finished, ValueError, data=tiny_data(seed=5))
    assert "data.train: tensors -> tensors (other content)" in assert_refused(finished, ValueError, data=tiny_data(11))
    other = tiny_data(6, seed=2, split="val")
    assert "data.validation: None -> tensors (other content)" in assert_refused(finished, ValueError, validation=other)


def test_another_augmentation_or_normalisation_is_refused(tmp_path: Path) -> None:
    images = torch.randint(0, 256, (10, 1, 21, 21), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    make = partial(capsella.data.from_tensors, images, torch.arange(10) % 2)
    train(tmp_path / "run", data=make())
    assert "data.train.augment: None -> 'shift'" in assert_refused(tmp_path / "run", ValueError, data=make(augment="shift"))
    said = assert_refused(tmp_path / "run", ValueError, data=make(normalise="standardise"))
    assert "data.train.normalise: 'unit' -> 'standardise'" in said


def test_the_checkpoint_of_another_network_of_the_same_class_is_refused(tmp_path: Path) -> None:
    train(tmp_path / "run", make=normalised)
    said = assert_refused(tmp_path / "run", CheckpointError, make=partial(normalised, hidden=7))
    assert (
        "is of another model than this Normalised: its 'layers.0.weight' has shape [6, 1, 3, 3], the model's [7, 1, 3," in said
    )


def test_a_checkpoint_that_lacks_weights_of_the_model_is_refused(finished: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"another model than this convnet_small: its 'layers.0.weight' has shape \[8, 2"):
        Run.load(finished, model=tiny_model("convnet_small"))
    train(tmp_path / "plain", make=partial(tiny_model, reconstruction="none"))
    with pytest.raises(CheckpointError, match=r"the checkpoint has no 'decoder\."):
        Run.load(tmp_path / "plain", model=tiny_model())
    with pytest.raises(CheckpointError, match=r"the model has no 'decoder\."):
        Run.load(finished, model=tiny_model(reconstruction="none"))


def test_a_folder_without_a_run_cannot_be_resumed(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^resume=True needs folder=…, the run to go on with$"):
        train(resume=True)
    for folder in (tmp_path / "none", tmp_path):
        with pytest.raises(
            ValueError, match=r"holds no run \(it has no config.json\); expected a folder that capsella train w"
        ):
            train(folder, resume=True)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_with_a_run_takes_no_second_one(finished: Path) -> None:
    with pytest.raises(ValueError, match=r"holds a run already; go on with it \(--resume\), or choose another folder$"):
        train(finished)


def test_a_run_without_a_folder_says_what_an_interruption_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    assert interrupted(monkeypatch, 2) == "stopped after step 2: no folder was given, so it is lost"


def test_the_random_state_of_the_caller_does_not_matter(tmp_path: Path) -> None:
    # train() stirs the generator with the system's own random numbers.
    make = MODELS["dropout"]
    for name in ("one", "other"):
        train(tmp_path / name, make=make, data=tiny_data(side=17), epochs=1)
    assert_same_run(tmp_path / "one", tmp_path / "other")


def test_a_run_killed_before_its_first_checkpoint_begins_anew(tmp_path: Path) -> None:
    train(tmp_path / "whole")
    train(tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    (tmp_path / "run" / "metrics.jsonl").unlink()
    train(tmp_path / "run", resume=True)
    assert_same_run(tmp_path / "run", tmp_path / "whole")


def test_a_margin_that_grows_towards_the_end_does_not_take_another_end(tmp_path: Path) -> None:
    train(tmp_path / "run", loss="spread", steps=4)
    with pytest.raises(ValueError, match=r"holds another run: train.steps: 4 -> 8$"):
        train(tmp_path / "run", loss="spread", steps=8, resume=True)
