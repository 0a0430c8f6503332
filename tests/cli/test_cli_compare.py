"""``capsella compare`` and ``capsella quickstart``: small runs from start to page."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from running import in_process

import capsella
from capsella.data.augment import Affine
from capsella.train.compare import under_affine_maps


@pytest.fixture(scope="module")
def bars(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images of upright and of lying bars, one folder each."""
    root = tmp_path_factory.mktemp("bars")
    draw = np.random.default_rng(0)
    for name in ("lying", "upright"):
        (root / name).mkdir()
        for k in range(30):
            pixels = draw.integers(0, 40, (28, 28), dtype=np.uint8)
            place = int(draw.integers(8, 18))
            if name == "lying":
                pixels[place : place + 3, 4:24] = 230
            else:
                pixels[4:24, place : place + 3] = 230
            Image.fromarray(pixels).save(root / name / f"{k}.png")
    return root


def compare(bars: Path, out: Path, *more: str) -> tuple[int, str, str]:
    settings = ["--seeds", "2", "--epochs", "4", "--set", "data.image_size=28", "--set", "batch_size=8", "--set", "log_every=4"]
    return in_process("compare", str(bars), "--models", "capsnet_small,convnet_small", *settings, "--out", str(out), *more)


@pytest.fixture(scope="module")
def compared(bars: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    out = tmp_path_factory.mktemp("compared") / "runs"
    code, stdout, stderr = compare(bars, out)
    assert code == 0, stderr
    return out, stdout


def test_a_folder_of_ones_own_is_compared_in_one_command(compared: tuple[Path, str]) -> None:
    out, stdout = compared
    found = json.loads((out / "comparison.json").read_text())
    assert [network["model"] for network in found["networks"]] == ["capsnet_small", "convnet_small"]
    for network in found["networks"]:
        assert network["seeds"] == [0, 1]
        assert len(network["accuracies"]) == len(network["affine_accuracies"]) == 2
        assert network["model"] in stdout
    # bars are easy: a comparison that trained nothing would stay at one half.
    assert max(found["networks"][1]["accuracies"]) > 0.8
    assert "not distinguishable" in stdout
    assert (out / "report.html").as_uri() in stdout


def test_every_figure_comes_from_a_run_record(compared: tuple[Path, str]) -> None:
    out, _ = compared
    for network in json.loads((out / "comparison.json").read_text())["networks"]:
        for seed, accuracy, speed in zip(network["seeds"], network["accuracies"], network["images_per_second"], strict=True):
            run = capsella.Run.load(out / f"{network['model']}-seed{seed}")
            assert run.record is not None
            assert run.record["test"]["accuracy"] == accuracy
            assert run.record["images_per_second"] == speed
            assert run.config["parameters"] == network["parameters"]


def test_all_networks_see_the_same_number_of_images_in_the_same_order(compared: tuple[Path, str]) -> None:
    out, _ = compared
    runs = [capsella.Run.load(out / f"{model}-seed1") for model in ("capsnet_small", "convnet_small")]
    assert runs[0].record is not None
    assert runs[1].record is not None
    assert runs[0].record["images"] == runs[1].record["images"]
    assert runs[0].config["data"] == runs[1].config["data"]
    settings = [{**run.config["train"], "loss": None} for run in runs]
    assert settings[0] == settings[1]


def test_what_is_there_is_not_trained_again(bars: Path, compared: tuple[Path, str]) -> None:
    out, _ = compared
    before = {path: path.stat().st_mtime_ns for path in out.glob("*/record.json")}
    assert len(before) == 4
    code, _, stderr = compare(bars, out)
    assert code == 0, stderr
    assert {path: path.stat().st_mtime_ns for path in out.glob("*/record.json")} == before


def test_other_settings_are_not_mixed_with_runs_that_are_there(bars: Path, compared: tuple[Path, str]) -> None:
    code, _, stderr = compare(bars, compared[0], "--set", "lr=0.01")
    assert code == 2
    assert "other settings" in stderr
    assert len(stderr.strip().splitlines()) == 1


def test_other_images_are_not_mixed_with_runs_that_are_there(bars: Path, compared: tuple[Path, str], tmp_path: Path) -> None:

    others = shutil.copytree(bars, tmp_path / "others")
    shutil.copytree(others / "lying", others / "sitting")
    code, _, stderr = compare(others, compared[0])
    assert code == 2
    assert "holds a run with other data" in stderr


def test_a_net_that_diverges_is_measured_where_it_was_last_sound(bars: Path, tmp_path: Path) -> None:
    for _ in range(2):  # trained, and then read
        code, stdout, stderr = compare(bars, tmp_path / "runs", "--set", "reconstruction=1e38", "--seeds", "1")
        assert code == 0, stderr
        assert "measured at its last good checkpoint" in stdout
    found = json.loads((tmp_path / "runs" / "comparison.json").read_text())["networks"]
    assert [network["status"] for network in found] == [["non-finite"], ["finished"]]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nothing-here"], "name='nothing-here' is unknown"),
        (["mnist", "--seeds", "0"], "seeds=0 is too small"),
        (["mnist", "--models", "capsnet_smal"], "did you mean 'capsnet_small'"),
        (["mnist", "--set", "lrr=1"], "did you mean 'lr'"),
        (["mnist", "--set", "seed=5"], "--seeds N"),
    ],
)
def test_a_mistake_is_one_line(arguments: list[str], says: str, tmp_path: Path) -> None:
    code, _, stderr = in_process("compare", *arguments, "--out", str(tmp_path / "out"))
    assert code == 2
    assert says in stderr
    assert len(stderr.strip().splitlines()) == 1
    assert not (tmp_path / "out").exists()


def some_images(**options: Any) -> capsella.ImageData:
    images = torch.zeros(4, 1, 28, 28, dtype=torch.uint8)
    images[:, :, 8:20, 12:16] = 255
    return capsella.data.from_tensors(images, torch.arange(4), split="test", **options)


def test_affine_maps_are_one_fixed_draw_for_each_image() -> None:
    moved = under_affine_maps(some_images())
    assert moved is not None
    first, again, part = moved.batch([0, 1, 2, 3]), moved.batch([0, 1, 2, 3]), moved.batch([2])
    assert torch.equal(first.images, again.images)
    assert torch.equal(first.images[2:3], part.images)
    assert not torch.equal(first.images[0], first.images[1])  # the same picture, another map
    assert isinstance(moved.augment, Affine)
    assert moved.digest != some_images().digest


def test_numbers_and_composed_images_have_no_affine_versions() -> None:
    assert under_affine_maps(capsella.load_data("sign", split="test")) is None
