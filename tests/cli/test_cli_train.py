"""``capsella train``, ``evaluate`` and ``predict``: what they print, what they leave behind, and how they end."""

from __future__ import annotations

import builtins
import io
import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from running import in_process

from capsella.nn import init
from capsella.train import Interrupted, NonFiniteLoss, OutOfMemory, Run, plan, progress
from capsella.train.progress import Progress

# class folders of these names: rich would take the second for a style.
NAMES = ("dark", "[bold]", "light")
SMALL = (
    "--set",
    "data.image_size=20",
    "--set",
    "model.channels=4",
    "--set",
    "model.types=2",
    "--set",
    "model.decoder_hidden=[8]",
)


def picture(path: Path, level: int, *, colour: bool = False, size: tuple[int, int] = (24, 22), seed: int = 0) -> Path:
    grey = np.random.default_rng(seed).integers(0, 40, size) + level
    values = np.stack([grey, grey // 2, grey // 3], axis=-1) if colour else grey
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(values.astype(np.uint8)).save(path)
    return path


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make grey pictures of three classes, ten of each."""
    root = tmp_path_factory.mktemp("pictures")
    for k, name in enumerate(NAMES):
        for number in range(10):
            picture(root / name / f"{number}.png", 80 * k, seed=number)
    return root


def train(pictures: Path, out: Path, *more: str) -> tuple[int, str, str]:
    sizes = ("--steps", "5", "--batch-size", "8", "--device", "cpu")
    return in_process(
        "train", "capsnet_small", "--data", "folder", "--root", str(pictures), "--out", str(out), *SMALL, *sizes, *more
    )


@pytest.fixture(scope="module")
def trained(pictures: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, str]:
    """Train once for all tests that only look; return folder, stdout and stderr."""
    out = tmp_path_factory.mktemp("runs") / "run"
    code, stdout, stderr = train(pictures, out)
    assert code == 0, stderr
    return out, stdout, stderr


def only_line(err: str) -> str:
    lines = err.splitlines()
    assert len(lines) == 1, err
    assert lines[0].startswith("capsella: "), err
    return lines[0].removeprefix("capsella: ")


def test_training_prints_two_lines_on_stdout(trained: tuple[Path, str, str], pictures: Path) -> None:
    out, stdout, _ = trained
    first, second = stdout.splitlines()
    assert re.fullmatch(r"finished after 1.67 epochs, 5 steps, \d+ s; \d+\.\d\d% right on 6 test images", first), first
    assert second == f"the run is in {out}; look at it with: capsella evaluate {out} --root {pictures}"


def test_what_training_says_to_type_next_can_be_typed(trained: tuple[Path, str, str]) -> None:
    command = trained[1].splitlines()[1].partition("look at it with: capsella ")[2]
    code, stdout, stderr = in_process(*command.split())
    assert (code, stderr) == (0, "")
    assert "right" in stdout


def test_without_a_terminal_progress_is_plain_lines_on_stderr(trained: tuple[Path, str, str]) -> None:
    lines = trained[2].splitlines()
    parameters = sum(parameter.numel() for parameter in Run.load(trained[0]).model.parameters())
    assert lines[0] == f"capsnet_small ({parameters:,} parameters) on folder/fit (18 images)"
    assert re.fullmatch(r".*CPU, \d+ threads?; about \d+ [KM]iB of memory a step, .* free", lines[1]), lines[1]
    reading = r"loss \d\.\d{4}, accuracy \d+\.\d\d%, validation \d+\.\d\d%, \d+ s"
    assert re.fullmatch(rf"epoch 1/10: {reading}", lines[2]), lines[2]
    assert re.fullmatch(rf"epoch 1\.667/10: {reading}", lines[3]), lines[3]
    assert len(lines) == 4
    assert "\x1b" not in trained[2]


def test_the_folder_holds_config_metrics_record_and_checkpoints(trained: tuple[Path, str, str]) -> None:
    out = trained[0]
    assert {path.name for path in out.iterdir()} == {"config.json", "metrics.jsonl", "record.json", "checkpoints", ".lock"}
    config = json.loads((out / "config.json").read_text())
    assert config["plan"]["model"] == "capsnet_small"
    assert config["train"]["steps"] == 5
    assert config["model"]["channels"] == 4
    assert config["data"]["train"]["class_names"] == sorted(NAMES)
    record = json.loads((out / "record.json").read_text())
    assert (record["status"], record["steps"], record["test"]["images"]) == ("finished", 5, 6)
    events = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [event["event"] for event in events] == ["epoch", "epoch"]
    assert not [path for path in out.rglob("*") if path.suffix in (".pt", ".pth", ".pkl", ".bin")]


def test_runs_get_the_next_free_folder(pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    given = ("train", "capsnet_small", "--data", "folder", "--root", str(pictures), "--steps", "1", *SMALL)
    for number in (1, 2):
        code, stdout, _ = in_process(*given)
        assert code == 0
        assert f"the run is in runs/capsnet_small-folder-{number};" in stdout
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["capsnet_small-folder-1", "capsnet_small-folder-2"]


def test_options_reach_the_run(pictures: Path, tmp_path: Path) -> None:
    given = {
        "--split": "train",
        "--validate": "test",
        "--init": "sabour",
        "--epochs": "1",
        "--batch-size": "6",
        "--optimiser": "sgd",
        "--lr": "0.02",
        "--schedule": "inverse",
        "--loss": "spread",
        "--target-accuracy": "0.99",
        "--seed": "5",
        "--precision": "bf16",
        "--device": "cpu",
        "--devices": "1",
    }
    more = ("--set", "betas=[0.8, 0.9]", "--set", "model.num_iters=2", "--set", "data.augment=shift", "-s", "train.clip=null")
    code, stdout, err = train(pictures, tmp_path / "run", *(part for pair in given.items() for part in pair), *more)
    assert code == 0, err
    run = Run.load(tmp_path / "run")
    for key, value in given.items():
        name = key.removeprefix("--").replace("-", "_")
        if name in run.config["train"]:
            assert run.config["train"][name] == (json.loads(value) if value[0].isdigit() else value), name
    assert run.config["plan"]["split"] == "train"
    assert run.config["plan"]["validate"] == "test"
    assert run.config["model"]["init"] == "sabour"
    assert run.config["model"]["num_iters"] == 2
    assert run.config["train"]["betas"] == [0.8, 0.9]
    assert run.config["train"]["clip"] is None
    assert run.config["data"]["train"]["options"]["augment"] == "shift"
    assert run.status in ("reached", "not reached")
    assert stdout.startswith(run.status)


def test_every_initialisation_can_be_named(pictures: Path, tmp_path: Path) -> None:
    names = [*init.names(), "length_preserving"]
    starts = {}
    for name in names:
        code, _, err = train(pictures, tmp_path / name, "--init", name, "--steps", "1", "--lr", "1e-9")
        assert code == 0, err
        assert json.loads((tmp_path / name / "config.json").read_text())["plan"]["model_options"]["init"] == name
        starts[name] = Run.load(tmp_path / name)
    rescaled, plain = (starts[name].model.layers[0].weight.detach() for name in ("length_preserving", "gu2021"))
    assert not torch.allclose(rescaled, plain)
    ratio = (rescaled / plain).flatten()
    assert float(ratio.max() / ratio.min()) == pytest.approx(1, rel=1e-2)  # the model's own start, rescaled as a whole


def test_length_preserving_starts_with_capsules_of_length_one_half(pictures: Path, tmp_path: Path) -> None:
    from capsella.data import load_data

    for name, low, high in (("length_preserving", 0.45, 0.55), ("gu2021", 0.0, 0.4)):
        assert train(pictures, tmp_path / name, "--init", name, "--steps", "1", "--lr", "1e-9")[0] == 0
        images = load_data("folder", split="fit", root=pictures, image_size=20).batch(range(18)).images
        assert low < float(Run.load(tmp_path / name).predict(images).scores.mean()) < high


def test_a_net_without_capsules_cannot_start_length_preserving(pictures: Path, tmp_path: Path) -> None:
    given = ("train", "convnet_small", "--data", "folder", "--root", str(pictures), "--out", str(tmp_path / "run"))
    code, _, err = in_process(*given, "--set", "data.image_size=20", "--init", "length_preserving")
    assert code == 2
    assert "no capsule layer" in only_line(err)
    assert not (tmp_path / "run").exists()


def test_a_run_goes_on_where_it_stopped(pictures: Path, tmp_path: Path) -> None:
    assert train(pictures, tmp_path / "whole", "--steps", "7")[0] == 0
    assert train(pictures, tmp_path / "parts", "--steps", "3")[0] == 0
    code, stdout, err = in_process("train", "--resume", str(tmp_path / "parts"), "--root", str(pictures), "--steps", "7")
    assert code == 0, err
    assert "going on after step 3" in err.splitlines()
    assert "7 steps" in stdout
    one, other = (Run.load(tmp_path / name).model.state_dict() for name in ("whole", "parts"))
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["capsnet_small"], "--resume takes model, data and folder from the run; leave out MODEL"),
        (["--data", "mnist", "--out", "x"], "leave out --data, --out"),
        (["--split", "train"], "leave out --split"),
        (["--validate", "none"], "leave out --validate"),
        (["--lr", "0.5"], "holds another run: train.lr: 0.001 -> 0.5"),
        (["--set", "model.num_iters=1"], "holds another run: model.num_iters: None -> 1"),
        (["--set", "data.augment=shift"], "holds another run: data.train"),
    ],
)
def test_a_run_cannot_go_on_as_another(more: list[str], message: str, trained: tuple[Path, str, str], pictures: Path) -> None:
    before = {path: path.read_bytes() for path in trained[0].rglob("*") if path.is_file()}
    code, stdout, err = in_process("train", "--resume", str(trained[0]), "--root", str(pictures), *more)
    assert (code, stdout) == (2, "")
    assert message in only_line(err)
    assert {path: path.read_bytes() for path in trained[0].rglob("*") if path.is_file()} == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "MODEL is missing; for example: capsella train capsnet_small --data mnist"),
        (["capsnet_small"], "--data is missing; for example: --data mnist"),
        (["capsnt", "--data", "mnist"], "name='capsnt' is unknown; did you mean 'capsnet'"),
        (["capsnet_small", "--data", "mist"], "name='mist' is unknown; did you mean 'mnist'"),
        (["capsnet_small", "--data", "mnist", "--set", "lrr=1"], "set='lrr' is unknown; did you mean 'lr'"),
        (
            ["capsnet_small", "--data", "mnist", "--set", "model.num_iter=1"],
            "set='model.num_iter' is unknown; did you mean 'model.num_iters'",
        ),
        (
            ["capsnet_small", "--data", "mnist", "--set", "data.augmant=shift"],
            "set='data.augmant' is unknown; did you mean 'data.augment'",
        ),
        (["capsnet_small", "--data", "mnist", "--set", "lr"], "'lr' has no value; expected KEY=VALUE"),
        (["capsnet_small", "--data", "mnist", "--lr", "-1"], "lr=-1.0 is too small; expected a number above 0"),
        (["capsnet_small", "--data", "mnist", "--lr", "quick"], "--lr"),
        (["capsnet_small", "--data", "mnist", "--epochs", "0"], "epochs=0 is too small"),
        (["capsnet_small", "--data", "mnist", "--init", "sabor"], "init='sabor' is unknown; did you mean 'sabour'"),
        (["capsnet_small", "--data", "mnist", "--split", "tain"], "split='tain' is unknown; did you mean 'train'"),
        (["capsnet_small", "--data", "mnist", "--validate", "vall"], "validate='vall' is unknown; did you mean 'val'"),
        (["capsnet_small", "--data", "mnist", "--optimiser", "adamw"], "optimiser='adamw' is unknown; did you mean 'adam'"),
        (["capsnet_small", "--data", "mnist", "--precision", "fp16"], "precision='fp16' is unknown"),
        (["capsnet_small", "--data", "mnist", "--epoch", "2"], "--epoch"),
        (["sign_capsnet", "--data", "sign", "--loss", "cross_entropy"], "loss='cross_entropy' needs logits"),
        (["capsnet_small", "--data", "sign"], "image_size=(1, 1) is too small for the trunk"),
        (
            ["sign_capsnet", "--data", "sign", "--target-accuracy", "0.9", "--validate", "none"],
            "target_accuracy=0.9 needs validation",
        ),
        (["sign_capsnet", "--data", "sign", "--target-accuracy", "99"], "target_accuracy=99.0 is above 1"),
        (["--resume", "nowhere"], "run='nowhere' holds no run"),
    ],
)
def test_a_mistake_is_one_line_exit_code_2_and_no_folder(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, stdout, err = in_process("train", *arguments)
    assert (code, stdout) == (2, "")
    assert message in only_line(err)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_holds_a_run_is_not_written_over(trained: tuple[Path, str, str], pictures: Path) -> None:
    before = (trained[0] / "metrics.jsonl").read_bytes()
    code, _, err = train(pictures, trained[0])
    assert code == 2
    assert "holds a run already; go on with it (--resume), or choose another folder" in only_line(err)
    assert (trained[0] / "metrics.jsonl").read_bytes() == before


def test_data_that_are_missing_are_a_failure(tmp_path: Path) -> None:
    code, stdout, err = train(tmp_path / "nowhere", tmp_path / "run")
    assert (code, stdout) == (1, "")
    assert "is no folder" in only_line(err)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (OutOfMemory("batch_size=8 does not fit; batch_size=4 fits"), 1),
        (NonFiniteLoss("the loss of step 3 is nan; the first non-finite values are the images themselves"), 1),
        (Interrupted("stopped after step 5: go on from runs/a with --resume", 15), 143),
        (Interrupted("stopped after step 5: go on from runs/a with --resume", 2), 130),
    ],
)
def test_a_run_that_cannot_go_on_is_one_line_and_a_failure(
    error: Exception, code: int, pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(plan, "fit", fail)
    found, stdout, err = train(pictures, tmp_path / "run")
    assert (found, stdout) == (code, "")
    assert only_line(err) == str(error)


def test_evaluate_shows_accuracy_confusion_and_calibration(trained: tuple[Path, str, str], pictures: Path) -> None:
    code, stdout, err = in_process("evaluate", str(trained[0]), "--root", str(pictures))
    assert (code, err) == (0, "")
    record = Run.load(trained[0]).record["test"]
    assert stdout.splitlines()[0] == f"folder/test: {record['accuracy']:.2%} of 6 images right"
    assert "Confusion matrix" in stdout
    header = next(line for line in stdout.splitlines() if "true \\ predicted" in line)
    assert [cell.strip() for cell in header.strip("┃ ").split("┃")] == ["true \\ predicted", *sorted(NAMES)]
    for name, row in zip(sorted(NAMES), record["confusion"], strict=True):
        line = next(line for line in stdout.splitlines() if line.startswith(f"│ {name} "))
        assert [cell.strip() for cell in line.strip("│ ").split("│")] == [name, *(str(n) if n else "·" for n in row)]
    assert stdout.splitlines()[-1] == f"expected calibration error {record['calibration_error']:.4f}"


def test_evaluate_prints_json_that_is_the_record(trained: tuple[Path, str, str], pictures: Path) -> None:
    code, stdout, err = in_process("evaluate", str(trained[0]), "--root", str(pictures), "--json", "--batch-size", "2")
    assert (code, err) == (0, "")
    found = json.loads(stdout)
    record = Run.load(trained[0]).record["test"]
    assert {key: found[key] for key in ("run", "data", "split")} == {"run": str(trained[0]), "data": "folder", "split": "test"}
    assert {key: found[key] for key in ("accuracy", "images", "confusion")} == {
        key: record[key] for key in ("accuracy", "images", "confusion")
    }
    assert found["calibration_error"] == pytest.approx(record["calibration_error"], rel=1e-5)


def test_evaluate_takes_another_split_and_other_options(trained: tuple[Path, str, str], pictures: Path) -> None:
    code, stdout, _ = in_process("evaluate", str(trained[0]), "--root", str(pictures), "--split", "train", "-o", "grey=true")
    assert code == 0
    assert stdout.startswith("folder/train: ")
    assert "of 24 images right" in stdout.splitlines()[0]


def test_evaluate_shows_classes_that_the_data_have_not(pictures: Path, tmp_path: Path) -> None:
    assert train(pictures, tmp_path / "run", "--set", "model.num_classes=5")[0] == 0
    code, stdout, err = in_process("evaluate", str(tmp_path / "run"), "--root", str(pictures))
    assert (code, err) == (0, "")
    header = next(line for line in stdout.splitlines() if "true \\ predicted" in line)
    assert [cell.strip() for cell in header.strip("┃ ").split("┃")][1:] == [*sorted(NAMES), "3", "4"]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["nowhere"], 2, "run='nowhere' holds no run (it has no config.json)"),
        (["RUN"], 2, "--root is missing; expected the folder that holds the images of 'folder', one folder per class"),
        (["RUN", "--root", "PICTURES", "--data", "mnst"], 2, "name='mnst' is unknown; did you mean"),
        (["RUN", "--root", "PICTURES", "--split", "tets"], 2, "split='tets' is unknown; did you mean 'test'"),
        (["RUN", "--root", "PICTURES", "-o", "image_size=24"], 2, "images has shape [6, 1, 24, 24]"),
        (["RUN", "--root", "PICTURES", "-o", "image_sise=24"], 2, "'image_sise' is unknown; did you mean 'image_size'"),
        (["RUN", "--root", "PICTURES", "--batch-size", "0"], 2, "batch_size=0 is too small"),
        (["RUN", "--root", "PICTURES", "--device", "tpu"], 2, "device='tpu' cannot be used"),
        (["RUN", "--root", "nowhere"], 1, "is no folder"),
        ([], 2, "run"),
    ],
)
def test_a_mistake_of_evaluate_is_one_line(
    arguments: list[str], code: int, message: str, trained: tuple[Path, str, str], pictures: Path
) -> None:
    places = {"RUN": str(trained[0]), "PICTURES": str(pictures)}
    found, stdout, err = in_process("evaluate", *(places.get(argument, argument) for argument in arguments))
    assert (found, stdout) == (code, "")
    assert message.lower() in only_line(err).lower()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_gpu_that_is_not_there_is_one_line(trained: tuple[Path, str, str], pictures: Path, tmp_path: Path) -> None:
    for arguments in (
        ("evaluate", str(trained[0])),
        ("train", "capsnet_small", "--data", "folder", "--out", str(tmp_path / "run")),
    ):
        code, stdout, err = in_process(*arguments, "--root", str(pictures), "--device", "cuda")
        assert (code, stdout) == (2, "")
        assert "device='cuda'" in only_line(err)


def rows(stdout: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("│ ").split("│")] for line in stdout.splitlines() if line.startswith("│")]


def test_predict_names_the_class_of_every_file(trained: tuple[Path, str, str], pictures: Path, tmp_path: Path) -> None:
    files = [pictures / "dark" / "0.png", picture(tmp_path / "[red] light.png", 160, size=(9, 50))]
    code, stdout, err = in_process("predict", str(trained[0]), *map(str, files))
    assert (code, err) == (0, "")
    code, as_json, _ = in_process("predict", str(trained[0]), *map(str, files), "--json")
    assert code == 0
    found = json.loads(as_json)
    assert [entry["image"] for entry in found] == [str(path) for path in files]
    for row, entry in zip(rows(stdout), found, strict=True):
        ranked = sorted(entry["scores"].items(), key=lambda pair: -pair[1])
        then = ", ".join(f"{name} {score:.3f}" for name, score in ranked[1:])
        assert row == [entry["image"], ranked[0][0], f"{ranked[0][1]:.3f}", then]
        assert set(entry["scores"]) == set(NAMES)


def scores(run: Path, *arguments: str) -> list[float]:
    code, stdout, err = in_process("predict", str(run), *arguments, "--json")
    assert code == 0, err
    return [value for entry in json.loads(stdout) for value in entry["scores"].values()]


def test_predict_sees_what_the_network_was_trained_on(trained: tuple[Path, str, str], pictures: Path) -> None:
    """A file of the data set gets the scores that its image has as data."""
    from capsella.data import load_data

    data = load_data("folder", split="test", root=pictures, image_size=20)
    expected = Run.load(trained[0]).predict(data.batch(range(6)).images).scores
    every = [scores(trained[0], str(path)) for path in sorted(pictures.rglob("*.png"))]
    for row in expected.tolist():
        assert any(one == pytest.approx(row, rel=1e-5, abs=1e-6) for one in every)


def test_predict_reads_a_colour_picture_for_a_grey_net(trained: tuple[Path, str, str], tmp_path: Path) -> None:
    coloured = picture(tmp_path / "colour.png", 120, colour=True)
    with Image.open(coloured) as image:
        image.convert("L").save(tmp_path / "grey.png")
    found, expected = scores(trained[0], str(coloured)), scores(trained[0], str(tmp_path / "grey.png"))
    assert found == pytest.approx(expected, rel=0.02)


def test_predict_reads_a_grey_picture_for_a_colour_net(pictures: Path, tmp_path: Path) -> None:
    assert train(pictures, tmp_path / "run", "--set", "data.grey=false")[0] == 0
    assert json.loads((tmp_path / "run" / "config.json").read_text())["model"]["in_channels"] == 3
    assert len(scores(tmp_path / "run", str(pictures / "dark" / "0.png"))) == 3


def test_predict_can_turn_dark_into_light(trained: tuple[Path, str, str], tmp_path: Path) -> None:
    path = picture(tmp_path / "a.png", 30)
    with Image.open(path) as image:
        Image.fromarray(255 - np.asarray(image)).save(tmp_path / "b.png")
    assert scores(trained[0], str(path), "--invert") == pytest.approx(scores(trained[0], str(tmp_path / "b.png")), rel=0.02)
    assert scores(trained[0], str(path), "--invert") != pytest.approx(scores(trained[0], str(path)), rel=0.02)


def test_a_mistake_of_predict_is_one_line(trained: tuple[Path, str, str], pictures: Path, tmp_path: Path) -> None:
    (tmp_path / "broken.png").write_bytes(b"no picture")
    good = str(pictures / "dark" / "0.png")
    for arguments, code, message in (
        ([str(trained[0]), good, str(tmp_path / "none.png")], 2, f"image='{tmp_path / 'none.png'}' is no file"),
        ([str(trained[0]), str(pictures)], 2, "is no file"),
        ([str(trained[0]), str(tmp_path / "broken.png")], 1, "is no image that can be read"),
        ([str(tmp_path), good], 2, "holds no run"),
        ([str(trained[0])], 2, "images"),
    ):
        found, stdout, err = in_process("predict", *arguments)
        assert (found, stdout) == (code, ""), arguments
        assert message.lower() in only_line(err).lower()


def test_predict_refuses_a_net_of_numbers(tmp_path: Path) -> None:
    given = ("train", "sign_capsnet", "--data", "sign", "--steps", "1", "--validate", "none", "--out", str(tmp_path / "run"))
    assert in_process(*given)[0] == 0
    code, _, err = in_process("predict", str(tmp_path / "run"), str(picture(tmp_path / "a.png", 0)))
    assert code == 2
    assert "whose values are no grey levels" in only_line(err)


@pytest.mark.parametrize("verb", ["train", "evaluate", "predict"])
def test_help_shows_every_option_and_swallows_nothing(verb: str) -> None:
    code, stdout, err = in_process(verb, "--help")
    assert (code, err) == (0, "")
    assert "Usage: capsella" in stdout
    assert " ." not in stdout  # rich takes [adam] for a style and leaves a gap before the stop
    if verb == "train":
        shown = ["(10)", "(128)", "(0.001)", "(adam)", "(constant)", "(float32)", "(auto)", "(fit)", "runs/MODEL-DATA-1"]
        assert [word for word in shown if word not in stdout] == []
        for option in ("--set", "--resume", "--init", "--tensorboard", "--fast", "--devices", "--watch", "torchrun"):
            assert option in stdout


class Terminal(io.StringIO):
    """Takes text as a terminal does."""

    def isatty(self) -> bool:
        return True


START = {
    "event": "start",
    "config": {
        "model": {"name": "capsnet"},
        "parameters": 1234,
        "train": {"epochs": 4},
        "data": {"train": {"name": "mnist", "split": "fit", "images": 55_000}},
        "environment": {"device": "a CPU"},
    },
    "steps": 100,
    "from_step": 0,
    "memory": 2**20,
    "available": None,
}
LOG = {"event": "log", "step": 30, "epoch": 1.2, "loss": 0.25, "accuracy": 0.5, "images_per_second": 1234.5}
EPOCH = {"event": "epoch", "step": 50, "epoch": 2, "loss": 0.125, "accuracy": 0.75, "validation": None, "seconds": 61.7}


def test_in_a_terminal_a_bar_shows_loss_accuracy_speed_and_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Terminal()
    for key, value in (("TERM", "xterm"), ("COLUMNS", "120")):
        monkeypatch.setenv(key, value)
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr(sys, "stderr", screen)
    shown = Progress()
    shown(START)
    shown(LOG)
    shown._bar.refresh()
    live = screen.getvalue()
    assert "━" in live
    assert "epoch 2/4" in live
    assert " 30%" in live
    assert "loss 0.2500, accuracy 50.00%, 1,234 images/s" in live
    assert re.search(r"-:--:--|\d:\d\d:\d\d", live)
    shown(EPOCH)
    shown.close()
    assert "epoch 2/4: loss 0.1250, accuracy 75.00%, 62 s" in screen.getvalue()
    assert screen.getvalue().count("\x1b[?25l") == screen.getvalue().count("\x1b[?25h") == 1  # the cursor is given back


def test_without_a_terminal_a_long_epoch_says_a_word_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    screen, clock = io.StringIO(), [100.0]
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock[0])
    shown = Progress()
    shown(START)
    for seconds in (10, 10, 15, 10):
        clock[0] += seconds
        shown(LOG)
    assert screen.getvalue().splitlines()[2:] == ["step 30/100: loss 0.2500, accuracy 50.00%, 1,234 images/s"]


def test_a_terminal_gets_a_bar_from_the_command_line_too(
    pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(io, "StringIO", Terminal)  # what the program is given to write to
    monkeypatch.setenv("TERM", "xterm")
    code, _, err = train(pictures, tmp_path / "run", "--set", "log_every=1")
    assert code == 0
    assert "━" in err
    assert "images/s" in err
    assert err.count("\x1b[?25l") == err.count("\x1b[?25h")


def test_tensorboard_that_is_not_installed_is_one_line(pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name.startswith(("torch.utils.tensorboard", "tensorboard")):
            raise ModuleNotFoundError(name)
        return load(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    code, stdout, err = train(pictures, tmp_path / "run", "--tensorboard")
    assert (code, stdout) == (2, "")
    assert only_line(err) == "tensorboard=True needs the extra: pip install 'capsella[tensorboard]'"
    assert not (tmp_path / "run").exists()


def test_tensorboard_gets_the_numbers_of_the_run(pictures: Path, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    assert train(pictures, tmp_path / "run", "--tensorboard", "--set", "log_every=1", "--steps", "2")[0] == 0
    resumed = ("train", "--resume", str(tmp_path / "run"), "--root", str(pictures), "--steps", "4", "--tensorboard")
    assert in_process(*resumed)[0] == 0
    board = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    board.Reload()
    logs = [event for event in Run.load(tmp_path / "run").events if event["event"] == "log"]
    assert [(point.step, pytest.approx(point.value, rel=1e-6)) for point in board.Scalars("log/loss")] == [
        (event["step"], event["loss"]) for event in logs
    ]
    assert [event["step"] for event in logs] == [1, 2, 3, 4]
    assert {"log/accuracy", "log/lr", "log/images_per_second", "epoch/loss", "epoch/validation"} <= set(board.Tags()["scalars"])


def test_a_watched_run_shows_its_layers_in_metrics_and_tensorboard(pictures: Path, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    assert train(pictures, tmp_path / "run", "--tensorboard", "--watch", "2", "--steps", "3")[0] == 0
    resumed = ("train", "--resume", str(tmp_path / "run"), "--root", str(pictures), "--steps", "6", "--tensorboard")
    assert in_process(*resumed)[0] == 0
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    seen = [event for event in map(json.loads, lines) if event["event"] == "watch"]
    assert [event["step"] for event in seen] == [2, 4, 6]
    board = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    board.Reload()
    for name in ("layer1/dead", "layer1/dyr", "layer1/entropy", "layer2/dead", "layer2/length", "layer2/active"):
        shown = [(point.step, pytest.approx(point.value, rel=1e-6)) for point in board.Scalars(f"watch/{name}")]
        assert shown == [(event["step"], event[name]) for event in seen]


def test_a_net_without_capsules_cannot_be_watched(pictures: Path, tmp_path: Path) -> None:
    given = ("train", "convnet_small", "--data", "folder", "--root", str(pictures), "--out", str(tmp_path / "run"))
    code, stdout, err = in_process(*given, "--set", "data.image_size=28", "--watch", "50")
    assert (code, stdout) == (2, "")
    assert only_line(err).startswith("watch=50 finds no capsule layer in this ConvNet; expected watch=0")
    assert not (tmp_path / "run").exists()


def test_a_run_that_cannot_begin_leaves_no_events_behind(pictures: Path, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    code, _, err = train(pictures, tmp_path / "run", "--tensorboard", "--loss", "cross_entropy")
    assert code == 2
    assert "needs logits" in only_line(err)
    assert not (tmp_path / "run").exists()
