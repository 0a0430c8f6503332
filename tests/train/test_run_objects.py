"""A run as an object: in memory and read from its folder, with a model of capsella's or of one's own."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_runs import CLASSES, SIDE, capsnet, differing, made_data, one_line, plain_net, short_run, told, weights
from torch import Tensor, nn

from capsella.data import from_tensors
from capsella.errors import DataError
from capsella.models import create_model
from capsella.train import CheckpointError, Run, fit
from capsella.train.run import build_model


def test_a_run_that_was_read_is_the_run_that_was_written(tmp_path: Path) -> None:
    written = short_run(
        capsnet(), folder=tmp_path / "run", validation=made_data(9, split="val"), test=made_data(9, split="test")
    )
    read = Run.load(tmp_path / "run")
    assert read.config == written.config
    assert read.record == written.record
    assert read.events == written.events
    assert read.status == written.status == "finished"
    assert not differing(weights(read), weights(written))
    assert not read.model.training
    assert read.model.config == written.model.config


def test_a_run_in_memory_has_what_one_on_disk_has(tmp_path: Path) -> None:
    here, there = short_run(capsnet()), short_run(capsnet(), folder=tmp_path / "run")
    assert told(here) == told(there)
    assert [event["event"] for event in here.events] == ["log"] * 3 + ["epoch"] + ["log"] * 2 + ["epoch"]
    assert all("step" in event for event in here.events)
    assert here.folder is None
    assert there.folder == tmp_path / "run"


def test_a_run_says_what_it_is(tmp_path: Path) -> None:
    run = short_run(capsnet(), folder=tmp_path / "run")
    assert repr(run) == f"Run(capsnet_small on tensors, finished, folder='{tmp_path / 'run'}')"
    assert repr(Run.load(str(tmp_path / "run"))) == repr(run)
    assert repr(short_run(capsnet())) == "Run(capsnet_small on tensors, finished, in memory)"
    assert repr(short_run(plain_net())) == "Run(torch.nn.modules.container.Sequential on tensors, finished, in memory)"


def test_a_prediction_is_the_models_in_evaluation_mode(tmp_path: Path) -> None:
    short_run(capsnet(), folder=tmp_path / "run")
    run = Run.load(tmp_path / "run")
    images = made_data(5).batch(range(5)).images
    prediction = run.predict(images)
    assert prediction.scores.shape == (5, CLASSES)
    assert prediction.reconstruction is not None
    assert prediction.reconstruction.shape == (5, 1, SIDE, SIDE)
    assert not prediction.scores.requires_grad
    torch.testing.assert_close(prediction.scores, run.model(images).scores.detach())


def test_a_net_of_ones_own_predicts_logits_without_dropout() -> None:
    run = short_run(plain_net(dropout=0.5))
    run.model.train()
    images = made_data(5).batch(range(5)).images
    assert torch.equal(run.predict(images).scores, run.predict(images).scores)
    assert run.model.training


def test_a_net_of_ones_own_is_read_with_its_module(tmp_path: Path) -> None:
    written = short_run(plain_net(), folder=tmp_path / "run")
    other = nn.Sequential(*(type(layer)(*_sizes(layer)) for layer in plain_net()))
    read = Run.load(tmp_path / "run", model=other)
    assert read.model is other
    assert not read.model.training
    assert not differing(weights(read), weights(written))
    assert read.config["model"] == {"class": "torch.nn.modules.container.Sequential"}


def _sizes(layer: nn.Module) -> tuple[int, ...]:
    return (layer.in_features, layer.out_features) if isinstance(layer, nn.Linear) else ()


def test_a_net_of_ones_own_cannot_be_built_from_its_folder(tmp_path: Path) -> None:
    short_run(plain_net(), folder=tmp_path / "run")
    read = Run.load(tmp_path / "run")
    assert read.events
    with pytest.raises(
        ValueError, match=r"Sequential, which capsella cannot build; give it: Run.load\(path, model=…\)$"
    ) as caught:
        _ = read.model
    one_line(caught.value)


def test_a_module_of_another_shape_is_refused(tmp_path: Path) -> None:
    short_run(plain_net(), folder=tmp_path / "run")
    wrong = nn.Sequential(nn.Flatten(), nn.Linear(SIDE * SIDE, 7), nn.ReLU(), nn.Dropout(), nn.Linear(7, CLASSES))
    with pytest.raises(
        CheckpointError, match=r"is of another model than this Sequential: its '1.weight' has shape \[6, 144\]"
    ) as caught:
        Run.load(tmp_path / "run", model=wrong)
    one_line(caught.value)


def test_a_folder_without_a_run_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"holds no run \(it has no config.json\); expected a folder that capsella train wrote$"
    ):
        Run.load(tmp_path / "nothing")


@pytest.mark.parametrize("name", ["config.json", "record.json"])
def test_a_file_that_is_no_json_is_one_line(name: str, tmp_path: Path) -> None:
    short_run(capsnet(), folder=tmp_path / "run")
    (tmp_path / "run" / name).write_text('{"model": ')
    with pytest.raises(DataError, match=f"{name} cannot be read .*the run's weights are in .*checkpoints$") as caught:
        Run.load(tmp_path / "run")
    one_line(caught.value)


def test_a_run_that_has_not_ended_says_so(tmp_path: Path) -> None:
    short_run(capsnet(), folder=tmp_path / "run")
    (tmp_path / "run" / "record.json").unlink()
    run = Run.load(tmp_path / "run")
    assert run.record is None
    assert run.status == "unfinished"
    assert "unfinished" in repr(run)
    assert len(run.events) == 7


def test_a_run_with_neither_model_nor_folder_has_none_to_give() -> None:
    run = Run({"model": {"name": "capsnet_small"}, "data": {"train": {"name": "x"}}})
    assert run.events == []
    with pytest.raises(ValueError, match=r"^this run has neither a model nor a folder"):
        _ = run.model


def test_the_folder_holds_what_the_documents_say(tmp_path: Path) -> None:
    short_run(capsnet(), folder=tmp_path / "run", test=made_data(9, split="test"))
    names = {path.relative_to(tmp_path / "run").as_posix() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    state = {"model.safetensors", "state.safetensors", "state.json"}
    expected = {"config.json", "metrics.jsonl", "record.json", ".lock"}
    assert names == expected | {f"checkpoints/step-{step:09d}/{name}" for step in (0, 5) for name in state}
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert set(config) == {"model", "data", "train", "environment", "implementations", "parameters"}
    assert config["implementations"] == ["agreement (vote_and_route): reference"]
    assert config["parameters"] == sum(p.numel() for p in capsnet().parameters())
    assert config["data"]["train"]["digest"] == made_data().digest
    assert {"capsella", "torch", "python", "commit", "device"} <= set(config["environment"])


def test_a_run_notes_the_commit_of_its_code(monkeypatch: pytest.MonkeyPatch) -> None:
    def noted() -> str | None:
        return short_run(plain_net(), steps=1).config["environment"]["commit"]

    monkeypatch.delenv("CAPSELLA_COMMIT", raising=False)
    if (Path(__file__).parents[2] / ".git").exists():
        assert re.fullmatch(r"[0-9a-f]{40}\+?", noted() or "")
    else:
        assert noted() is None
    monkeypatch.setenv("CAPSELLA_COMMIT", "as it was copied")
    assert noted() == "as it was copied"


def test_early_stopping_is_recorded_as_reached_or_not() -> None:
    val = made_data(9, split="val")
    common = {"steps": None, "epochs": 2, "validation": val}
    assert short_run(capsnet(), target_accuracy=0.01, **common).record["epochs"] == 1
    assert short_run(capsnet(), target_accuracy=0.01, **common).status == "reached"
    missed = short_run(capsnet(), target_accuracy=1.0, lr=1e-9, **common)
    assert missed.status == "not reached"
    assert missed.record["epochs"] == 2
    with pytest.raises(ValueError, match=r"^target_accuracy=0.5 needs validation data"):
        short_run(capsnet(), target_accuracy=0.5)
    with pytest.raises(ValueError, match=r"^validate_every=5 needs validation data"):
        short_run(capsnet(), validate_every=5)


class Tied(nn.Module):
    """Two layers with one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(SIDE * SIDE, CLASSES, bias=False)
        self.second = nn.Linear(SIDE * SIDE, CLASSES, bias=False)
        self.second.weight = self.first.weight

    def forward(self, images: Tensor) -> Tensor:
        return self.first(images.flatten(1)) + self.second(images.flatten(1))


def test_weights_that_two_layers_share_are_kept_and_come_back(tmp_path: Path) -> None:
    torch.manual_seed(0)
    run = fit(Tied(), made_data(20), folder=tmp_path / "run", epochs=1, batch_size=8, progress=False)
    again = Run.load(tmp_path / "run", model=Tied())
    assert torch.equal(again.model.second.weight, run.model.first.weight)


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"model": nn.Identity()}, ValueError, "model Identity has no parameters"),
        (
            {"model": nn.Sequential(nn.Flatten(), nn.Linear(SIDE * SIDE, 1))},
            ValueError,
            r"model gives scores of shape \[1, 1\]",
        ),
        ({"validation": "val"}, TypeError, "validation has type str"),
        ({"test": from_tensors(torch.zeros(4, 1, 5, 5), torch.arange(4))}, ValueError, r"test has images of shape \[1, 5, 5\]"),
    ],
)
def test_what_does_not_go_together_is_one_line_before_anything_is_written(
    change: dict[str, Any], error: type[Exception], says: str, tmp_path: Path
) -> None:
    given: dict[str, Any] = {"model": Tied(), "folder": tmp_path / "run", "progress": False, **change}
    with pytest.raises(error, match=says) as caught:
        fit(given.pop("model"), made_data(20), **given)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_a_target_is_reached_at_the_end_of_an_epoch_only() -> None:
    run = fit(
        Tied(), made_data(40), validation=made_data(10), epochs=3, steps=2, batch_size=8, target_accuracy=0.01, progress=False
    )
    assert run.status == "not reached"


def test_a_resumed_run_has_all_its_events(tmp_path: Path) -> None:
    settings = {"folder": tmp_path / "run", "batch_size": 8, "log_every": 1, "progress": False}
    fit(Tied(), made_data(24), epochs=1, **settings)
    run = fit(Tied(), made_data(24), epochs=2, resume=True, **settings)
    assert [event["step"] for event in run.events if event["event"] == "log"] == [1, 2, 3, 4, 5, 6]
    with pytest.raises(ValueError, match="steps=2 are fewer than the 6"):
        fit(Tied(), made_data(24), epochs=2, steps=2, resume=True, **settings)


def test_a_config_that_is_none_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(DataError, match="is no config of a run"):
        Run.load(tmp_path)


def test_checkpoints_without_a_config_are_not_written_over(tmp_path: Path) -> None:
    fit(Tied(), made_data(24), folder=tmp_path / "run", epochs=1, batch_size=8, progress=False)
    (tmp_path / "run" / "config.json").unlink()
    with pytest.raises(ValueError, match="holds checkpoints of a run"):
        fit(Tied(), made_data(24), folder=tmp_path / "run", epochs=1, progress=False)


def test_a_net_of_before_an_option_is_built_as_it_was() -> None:
    config = create_model("quadratic_capsnet", channels=4, types=2, reconstruction="none").config
    assert build_model(dict(config)).primary.divided is True
    older = {key: value for key, value in config.items() if key != "primary_divided"}
    assert build_model(older).primary.divided is False
    # of a net that has no such option nothing is said.
    assert build_model(dict(create_model("convnet_small").config)).config == create_model("convnet_small").config
