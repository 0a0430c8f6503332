"""The short version of a whole paper, as a user runs it; minutes on two cores."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "cli"))
from running import capsella

from capsella.papers.paper import get_paper

# claims that a few hundred steps of small nets show, by their keys: words may change.
SHOWN = {
    "peer2022": ("sign-agreement", "sign-em-defined", "depth-agreement", "shallow-agreement", "relu", "faster", "lengths"),
    "gu2021": ("pairs-average", "squash-compact", "mask-responds", "entangled", "manifold"),
    "yang2021": ("mnist-similar", "depth", "assumption2", "amplified"),
    "chen2019": ("reconstruction", "exp-faster-mnist", "sums-mnist", "one-pass-mnist", "moved-mnist"),
    "mitterreiter2023": (
        *("deader-nets", "views", "sweep-deader"),
        *("cure-needed", "cure-exists", "cure-start", "cure-gradients"),
    ),
}


def shown(paper: str) -> list[str]:
    """Return the rows of the paper's page that say that these claims hold."""
    texts = {claim.key: claim.text for claim in get_paper(paper).claims}
    return [f"| holds | {texts[f'{paper}/{key}']} |" for key in SHOWN[paper]]


@pytest.mark.parametrize("paper", SHOWN)
def test_what_a_short_version_shows_is_a_claim_that_it_can_decide(paper: str) -> None:
    claims = {claim.key: claim for claim in get_paper(paper).claims}
    quick = {recipe.key for recipe in get_paper(paper).recipes if recipe.quick is not None}
    for key in SHOWN[paper]:
        claim = claims[f"{paper}/{key}"]
        assert not claim.is_long
        assert set(claim.recipes) & quick if claim.is_partial else set(claim.recipes) <= quick


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
    for row in shown("chen2019"):
        assert row in page
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
    assert len(list((tmp_path / "out" / "yang2021").glob("*/*/quick-seed-0.json"))) == 34
    assert not [row for row in records if row.startswith("cifar10")]
    page = (tmp_path / "out" / "yang2021" / "README.md").read_text()
    for row in shown("yang2021"):
        assert row in page
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
    for row in shown("gu2021"):
        assert row in page
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
    for row in shown("peer2022"):
        assert row in page
    again = capsella("reproduce", "peer2022", "--quick", "--out", str(tmp_path / "out"))
    assert "all 66 runs are recorded" in again.stdout


@pytest.mark.paper
@pytest.mark.timeout(1800)
def test_the_short_version_of_mitterreiter2023_shows_its_directions(tmp_path: Path) -> None:
    if "CAPSELLA_DATA" not in os.environ:
        pytest.skip("needs MNIST; CAPSELLA_DATA names its folder")
    done = capsella("reproduce", "mitterreiter2023", "--quick", "--out", str(tmp_path / "out"), seconds=1500)
    assert done.returncode == 0, done.stderr
    # twelve of the paper's tables, ten of the cures, and every net of the sweep that has one beside its like.
    assert len(list((tmp_path / "out" / "mitterreiter2023").glob("*/*/quick-seed-0.json"))) == 46
    page = (tmp_path / "out" / "mitterreiter2023" / "README.md").read_text()
    for row in shown("mitterreiter2023"):
        assert row in page
    for name in ("figure2-trees", "figure3-mean-trees", "figure4-rotation", "training-dead", "table3-parameters-n"):
        assert f"](plots/{name}.svg)" in page
    for name in ("cures-starts", "cures-gradients-start-couplings", "living-tree", "sweep-dead-depth"):
        assert f"](plots/{name}.svg)" in page
