"""The short version of a whole paper, as a user runs it; minutes on two cores."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "cli"))
from running import capsella

# what a few hundred steps of small nets show.
SHOWN = [
    "Without a bias, agreement does not learn the sign of a number; with one it does.",
    "EM as Hinton et al. define it, whose poses are means and not only directions, learns the sign with a bias alone.",
    "Without a bias, agreement nets of 4 or 5 capsule layers do not train; with one, nets of all depths do.",
    "Agreement trains up to 3 capsule layers, with a bias and without.",
    "A ReLU before the capsules protects a net without a bias: an input and its negative no longer look the same.",
    "Training converges faster with a bias, in shallow nets too.",
    "Deep nets train without a bias, blind for signs as they are, if their capsules' lengths are kept at the start.",
]


SHOWN_OF_GU2021 = [
    "CapsNet is better on overlapping digits than ConvNet-Avg.",
    "The squash makes representations more compact (here: in 5 of six factors at least).",
    "With a mask the drawing changes more with a single value.",
    "Without a mask the representations of classes are entangled, with one they are apart "
    "(here: a mean cosine over 0.1 between two classes).",
    "The squash keeps representations within a bounded set (here: no vector is longer than 1, as some of the others are).",
]


SHOWN_OF_YANG2021 = [
    "On MNIST L1 and L2 classify about as well as DR (here: within 0.15 points of error).",
    "Couplings that climb go with more than two capsule layers.",
    "On MNIST and Fashion-MNIST the longest capsule is often wrong early on (here: 5% in the first epoch, more than later).",
    "On MNIST and Fashion-MNIST agreement couples to a capsule that is wrongly the longest, whose lead grows in most images.",
]


SHOWN_OF_CHEN2019 = [
    "Reconstruction makes no difference on MNIST (here: at most 0.1 points of error).",
    "On MNIST training converges faster with the squash of Xi et al. than with Sabour's.",
    "On MNIST a capsule's couplings add up to 1 in a CapsNet, and to anything in a G-CapsNet.",
    "On MNIST a G-CapsNet's couplings are found once and the same for every image; a CapsNet finds them for each.",
    "On MNIST couplings that add up to 1 limit nothing: weights can take over what trained ones have beyond it.",
]


@pytest.mark.paper
@pytest.mark.timeout(1800)
def test_the_short_version_of_chen2019_shows_its_directions(tmp_path: Path) -> None:
    if "CAPSELLA_DATA" not in os.environ:
        pytest.skip("needs MNIST; CAPSELLA_DATA names its folder")
    done = capsella("reproduce", "chen2019", "--quick", "--out", str(tmp_path / "out"), seconds=1500)
    assert done.returncode == 0, done.stderr
    records = {path.parent.name: json.loads(path.read_text()) for path in (tmp_path / "out").rglob("quick-seed-0.json")}
    assert len(records) == 22
    assert not [row for row in records if row.startswith("cifar10")]
    page = (tmp_path / "out" / "chen2019" / "README.md").read_text()
    for text in SHOWN_OF_CHEN2019:
        assert f"| holds | {text} |" in page
    assert "](plots/figure2.svg)" in page
    measured = [record["measured"] for record in records.values()]
    # one substitute for all, one AC-GAN for all.
    assert len({each["chen2019.blackbox"]["substitute"]["digest"] for each in measured if "chen2019.blackbox" in each}) == 1
    assert len({each["chen2019.generated"]["digest"] for each in measured if "chen2019.generated" in each}) == 1


@pytest.mark.paper
@pytest.mark.timeout(1800)
def test_the_short_version_of_yang2021_shows_its_directions(tmp_path: Path) -> None:
    if "CAPSELLA_DATA" not in os.environ:
        pytest.skip("needs MNIST and Fashion-MNIST; CAPSELLA_DATA names their folder")
    done = capsella("reproduce", "yang2021", "--quick", "--out", str(tmp_path / "out"), seconds=1500)
    assert done.returncode == 0, done.stderr
    records = {path.parent.name: json.loads(path.read_text()) for path in (tmp_path / "out").rglob("quick-seed-0.json")}
    assert len(list((tmp_path / "out" / "yang2021").glob("*/*/quick-seed-0.json"))) == 28
    assert not [row for row in records if row.startswith("cifar10")]
    page = (tmp_path / "out" / "yang2021" / "README.md").read_text()
    for text in SHOWN_OF_YANG2021:
        assert f"| holds | {text} |" in page
    assert "](plots/figure2.svg)" in page
    # whatever they draw, they draw their own images better than from another net's capsules.
    drawn = records["fashion-l2-no-fc"]["measured"]["yang2021.drawn"]
    assert drawn["own"]["misread"] < drawn["beside"]["misread"]


@pytest.mark.paper
@pytest.mark.timeout(1800)
def test_the_short_version_of_gu2021_shows_its_directions(tmp_path: Path) -> None:
    if "CAPSELLA_DATA" not in os.environ:
        pytest.skip("needs MNIST and Fashion-MNIST; CAPSELLA_DATA names their folder")
    done = capsella("reproduce", "gu2021", "--quick", "--out", str(tmp_path / "out"), seconds=1500)
    assert done.returncode == 0, done.stderr
    # all but the matrix capsules.
    assert len(list((tmp_path / "out" / "gu2021").glob("*/*/quick-seed-0.json"))) == 64
    page = (tmp_path / "out" / "gu2021" / "README.md").read_text()
    for text in SHOWN_OF_GU2021:
        assert f"| holds | {text} |" in page
    for name in ("figure2", "figure2-overlapping", "figure4", "figure5"):
        assert f"](plots/{name}.svg)" in page
    assert "## Which component helps which kind of robustness" in page


@pytest.mark.paper
@pytest.mark.timeout(1800)
def test_the_short_version_of_peer2022_shows_its_directions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if "CAPSELLA_DATA" not in os.environ:
        pytest.skip("needs MNIST and Fashion-MNIST; CAPSELLA_DATA names their folder")
    done = capsella("reproduce", "peer2022", "--quick", "--out", str(tmp_path / "out"), seconds=1500)
    assert done.returncode == 0, done.stderr
    records = list((tmp_path / "out" / "peer2022").glob("*/*/quick-seed-0.json"))
    assert len(records) == 66
    assert all(json.loads(path.read_text())["quick"] for path in records)
    page = (tmp_path / "out" / "peer2022" / "README.md").read_text()
    for text in SHOWN:
        assert f"| holds | {text} |" in page
    again = capsella("reproduce", "peer2022", "--quick", "--out", str(tmp_path / "out"))
    assert "all 66 runs are recorded" in again.stdout


SHOWN_OF_MITTERREITER2023 = [
    "Deeper nets have more dead capsules (here: the share of hidden ones, 3 to 8 layers).",
    "In all hidden layers the correlation of activations falls with every kind of growing change of view.",
    "Routing out of layers 2 and 3 is almost static (here: fewer than 2 live targets).",
    "Nets with uniform couplings classify affine digits better at the depths where nets of both routings learn at all.",
]


@pytest.mark.paper
@pytest.mark.timeout(1800)
def test_the_short_version_of_mitterreiter2023_shows_its_directions(tmp_path: Path) -> None:
    if "CAPSELLA_DATA" not in os.environ:
        pytest.skip("needs MNIST; CAPSELLA_DATA names its folder")
    done = capsella("reproduce", "mitterreiter2023", "--quick", "--out", str(tmp_path / "out"), seconds=1500)
    assert done.returncode == 0, done.stderr
    assert len(list((tmp_path / "out" / "mitterreiter2023").glob("*/*/quick-seed-0.json"))) == 10
    page = (tmp_path / "out" / "mitterreiter2023" / "README.md").read_text()
    for text in SHOWN_OF_MITTERREITER2023:
        assert f"| holds | {text} |" in page
    for name in ("figure2-trees", "figure3-mean-trees", "figure4-rotation", "training-dead", "table3-parameters-n"):
        assert f"](plots/{name}.svg)" in page
