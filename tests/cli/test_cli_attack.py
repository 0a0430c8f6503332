"""``capsella attack`` on tiny runs: what is printed, drawn and written, and users' mistakes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from PIL import Image
from running import in_process

from capsella import Run, attacks, create_model, load_data
from capsella.data import from_tensors
from capsella.train import fit
from capsella.train.run import loss_of


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A capsule net and a ConvNet on bright halves, saved as a folder of images that the command line can load."""
    folder = tmp_path_factory.mktemp("runs")
    labels = torch.arange(40) % 2
    images = torch.randint(0, 60, (40, 1, 28, 28), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    images[labels == 0, ..., :14] += 150
    images[labels == 1, ..., 14:] += 150
    for number, (image, label) in enumerate(zip(images, labels, strict=True)):
        place = folder / "pictures" / ("left" if label == 0 else "right")
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image[0].numpy()).save(place / f"{number}.png")
    data = load_data("folder", root=folder / "pictures", image_size=28, grey=True, split="train")
    for name in ("capsnet_small", "convnet_small"):
        torch.manual_seed(0)
        model = create_model(name, num_classes=2)
        fit(model, data, epochs=4, batch_size=8, folder=folder / name, progress=False, device="cpu")
    return {"caps": folder / "capsnet_small", "conv": folder / "convnet_small", "root": folder / "pictures"}


def attack(runs: dict[str, Path], *arguments: str, run: str = "caps") -> tuple[int, str, str]:
    return in_process("attack", str(runs[run]), "--root", str(runs["root"]), "--split", "train", *arguments)


def test_a_table_is_printed_and_pictures_are_drawn(runs: dict[str, Path], tmp_path: Path) -> None:
    pictures = tmp_path / "drawn"
    code, stdout, err = attack(runs, "--eps", "8/255", "--eps", "0.5", "--steps", "3", "--pictures", str(pictures))
    assert (code, err) == (0, f"{pictures} has 4 pictures\n")
    assert re.search(r"\d+ images, \d+\.\d\d% right as they are", stdout)
    assert len(re.findall(r"│ (?:fgsm|pgd) ", stdout)) == 4
    drawn = sorted(path.name for path in pictures.iterdir())
    assert drawn == ["fgsm-0.0314.png", "fgsm-0.5000.png", "pgd-0.0314.png", "pgd-0.5000.png"]
    assert Image.open(pictures / drawn[0]).size[0] > 500


def test_the_figures_are_those_of_the_library(runs: dict[str, Path], tmp_path: Path) -> None:
    record = tmp_path / "record.json"
    code, _, _ = attack(runs, "--eps", "0.3", "--attack", "fgsm", "--json", str(record), "--pictures", str(tmp_path / "p"))
    assert code == 0
    (found,) = json.loads(record.read_text())["attacks"]
    run = Run.load(runs["caps"])
    data = load_data("folder", root=runs["root"], image_size=28, grey=True, split="train")
    batch = data.batch(range(len(data)))
    after = attacks.fgsm(run.model, batch.images, batch.labels, eps=0.3, loss=loss_of(run))
    with torch.no_grad():
        right = (run.model.eval()(after).scores.argmax(dim=1) == batch.labels).double().mean()
    assert found["accuracy"] == pytest.approx(float(right))
    assert found["eps"] == 0.3
    assert 0.25 < found["largest"] <= 0.3
    zero = attacks.zero_gradients(run.model, batch.images, batch.labels, loss=loss_of(run))
    assert (found["zero_images"], found["zero_pixels"]) == pytest.approx((zero.images, zero.pixels))


def test_a_substitute_is_followed_and_universal_perturbations_are_found(runs: dict[str, Path], tmp_path: Path) -> None:
    place = ("--pictures", str(tmp_path / "p"), "--json", "-")
    code, stdout, _ = attack(runs, "--substitute", str(runs["conv"]), "--steps", "2", *place)
    assert code == 0
    found = {each["attack"]: each for each in json.loads(stdout)["attacks"]}
    assert list(found) == ["fgsm", "pgd", "transfer"]
    assert found["transfer"]["zero_images"] is None
    code, stdout, _ = attack(runs, "--attack", "universal", "--iterations", "2", "--loss", "difference", *place)
    assert code == 0
    assert json.loads(stdout)["attacks"][0]["largest"] <= 8 / 255


def test_flat_gradients_are_told(tmp_path: Path, runs: dict[str, Path]) -> None:
    # trained until lengths keep their margins.
    data = load_data("folder", root=runs["root"], image_size=28, grey=True, split="train")
    torch.manual_seed(0)
    fit(create_model("capsnet_small", num_classes=2), data, epochs=40, batch_size=8, folder=tmp_path / "run", progress=False)
    _, stdout, _ = in_process("attack", str(tmp_path / "run"), "--root", str(runs["root"]), "--split", "train", "--steps", "2")
    assert "of the images is zero: attacks that follow it stand still there" in stdout
    assert (tmp_path / "run" / "attacks" / "fgsm-0.0314.png").is_file()
    arguments = ("--root", str(runs["root"]), "--split", "train", "--steps", "2", "--loss", "difference")
    _, stdout, _ = in_process("attack", str(tmp_path / "run"), *arguments)
    assert "stand still" not in stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--eps", "x"], "--eps='x' is no number; expected one such as 8/255 or 0.1"),
        (["--eps", "1/0"], "--eps='1/0' is no number"),
        (["--eps", "8"], "--eps='8' is no share; expected 0 to 1, of the range from black to white"),
        (["--attack", "fsgm"], "--attack='fsgm' is unknown; did you mean 'fgsm'?"),
        (["--loss", "ours"], "--loss='ours' is unknown"),
        (["--attack", "transfer"], "--attack=transfer follows another network's gradients; expected --substitute RUN with it"),
        (["--images", "0"], "images=0 is too small"),
        (["--attack", "pgd", "--steps", "0"], "steps=0 is too small"),
    ],
)
def test_mistakes_are_one_line(runs: dict[str, Path], arguments: list[str], message: str, tmp_path: Path) -> None:
    code, stdout, err = attack(runs, *arguments, "--pictures", str(tmp_path / "p"))
    assert (code, stdout) == (2, "")
    assert err.count("\n") == 1
    assert message in err
    assert not (tmp_path / "p").exists()


def test_a_substitute_alone_or_of_other_classes_is_refused(runs: dict[str, Path], tmp_path: Path) -> None:
    code, _, err = attack(runs, "--attack", "fgsm", "--substitute", str(runs["conv"]))
    assert code == 2
    assert "--substitute is for --attack=transfer; expected both" in err
    data = from_tensors(torch.zeros(6, 1, 28, 28, dtype=torch.uint8), torch.arange(6) % 3)
    fit(create_model("convnet_small", num_classes=3), data, steps=1, batch_size=3, folder=tmp_path / "three", progress=False)
    code, _, err = attack(runs, "--attack", "transfer", "--substitute", str(tmp_path / "three"))
    assert code == 2
    assert "substitute knows 3 classes; expected 2" in err
