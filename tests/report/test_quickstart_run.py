"""What ``make run`` does, from training to a page in a browser, on a few made digits."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path

import pytest
import torch
from in_a_browser import check_page

import capsella
from capsella.cli.main import main
from capsella.report import inside
from capsella.train.plan import Plan


def made_digits(count: int, split: str) -> capsella.ImageData:
    """Ten classes of bars: the class is the row at which a bar lies."""
    draw = torch.Generator().manual_seed(len(split))
    labels = torch.arange(count) % 10
    images = torch.randint(0, 30, (count, 1, 28, 28), generator=draw, dtype=torch.uint8)
    for k in range(count):
        row = 4 + 2 * int(labels[k])
        images[k, 0, row : row + 2, 5:23] = 220
    augment = "shift" if split == "train" else None
    return capsella.data.from_tensors(images, labels, split=split, name="mnist", augment=augment)


def quickstart(out: Path) -> str:
    """Run it on made digits; return what it prints."""
    splits = {"train": made_digits(640, "train"), "validation": None, "test": made_digits(100, "test")}
    printed = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(printed):
        patch.setattr(Plan, "load", lambda self, root=None: splits)
        patch.setenv("COLUMNS", "160")
        with pytest.raises(SystemExit) as stop:
            main(["quickstart", "--out", str(out), "--epochs", "2"])
    assert not stop.value.code
    return printed.getvalue()


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder of a quickstart, and what it printed."""
    out = tmp_path_factory.mktemp("quick") / "start"
    return out, quickstart(out)


def test_both_networks_leave_a_run_and_the_table_shows_their_records(finished: tuple[Path, str]) -> None:
    out, printed = finished
    for name in ("capsnet_small", "convnet_small"):
        run = capsella.Run.load(out / name)
        assert run.status == "finished"
        assert run.record is not None
        assert f"{run.record['test']['accuracy']:.2%}" in printed
        assert f"{run.config['parameters']:,}" in printed
    assert (out / "report.html").resolve().as_uri() in printed


def test_the_page_renders_without_errors(finished: tuple[Path, str]) -> None:
    check_page(finished[0] / "report.html")


def test_a_second_quickstart_uses_what_the_first_trained_and_deletes_nothing(finished: tuple[Path, str]) -> None:
    out, first = finished
    (out / "capsnet_small" / "notes.txt").write_text("mine")
    before = {path: path.stat().st_mtime_ns for path in out.glob("*/record.json")}
    assert quickstart(out) == first
    assert {path: path.stat().st_mtime_ns for path in out.glob("*/record.json")} == before
    assert (out / "capsnet_small" / "notes.txt").read_text() == "mine"


@pytest.fixture(scope="module")
def net() -> capsella.CapsuleNet:
    torch.manual_seed(0)
    model = capsella.create_model("capsnet_small")
    assert isinstance(model, capsella.CapsuleNet)
    return model


def test_a_dimension_at_rest_draws_what_the_network_draws(net: capsella.CapsuleNet) -> None:
    data = made_digits(20, "test")
    found = inside.dimensions(net, data, 3)
    with torch.no_grad():
        drawn = net(data.batch([3]).images, torch.tensor([found.label])).reconstruction
    assert drawn is not None
    rest = found.offsets.index(0.0)
    frames = torch.as_tensor(found.frames)
    for dim in range(frames.shape[0]):
        torch.testing.assert_close(frames[dim, rest], drawn[0].clamp(0, 1))
    # moving one value changes the drawing, and each value in its own way.
    moved = frames[:, 0]
    assert all(not torch.allclose(moved[dim], drawn[0]) for dim in range(len(moved)))
    assert not torch.allclose(moved[0], moved[1])


def test_couplings_are_those_of_the_image(net: capsella.CapsuleNet) -> None:
    data = made_digits(20, "test")
    found = inside.couplings(net, data, 7)
    with torch.no_grad():
        routed = net.routed(data.batch([7]).images)[-1]
    assert routed.couplings is not None
    assert torch.equal(torch.as_tensor(found.couplings), routed.couplings[0])
    assert found.grid == (3, 3, 8)
    assert found.label == 7


def test_mistakes_are_images_the_network_gets_wrong(net: capsella.CapsuleNet) -> None:
    data = made_digits(60, "test")
    found = inside.mistakes(net, data, most=5)
    assert len(torch.as_tensor(found.labels)) == 5
    assert bool((torch.as_tensor(found.labels) != torch.as_tensor(found.predictions)).all())
    with torch.no_grad():
        wrong = (net(data.batch(slice(None)).images).scores.argmax(1) != data.batch(slice(None)).labels).nonzero().flatten()
    assert torch.equal(torch.as_tensor(found.images), data.batch(wrong[:5]).images)


def test_one_of_each_class_in_order() -> None:
    data = made_digits(30, "test")
    assert data.batch(inside.one_of_each(data)).labels.tolist() == list(range(10))
