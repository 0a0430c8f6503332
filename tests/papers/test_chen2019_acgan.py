"""chen2019's AC-GAN: its sizes and losses worked out by hand, its images made once, and what a classifier makes of them."""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from capsella.data import ImageData, from_tensors
from capsella.papers.chen2019 import acgan, generated
from capsella.papers.chen2019.acgan import FIGURES, AcGan, Discriminator, Generator, Settings
from capsella.papers.chen2019.generated import SHORT, WHOLE, Made, kept
from capsella.papers.images import unpack
from capsella.train.plan import Plan
from capsella.train.record import as_json
from capsella.train.run import Run

CPU = torch.device("cpu")
TINY = Settings(epochs=2, steps=2, batch_size=4, narrowed=16, per_class=3)
# so that a test that waits for a lock in vain does not wait for long.
SECONDS = 60


def seen_by(net: nn.Module, *inputs: Tensor) -> dict[str, list[int]]:
    """Return the shapes [C, H, W] or [n] that each layer is given, and that of the result."""
    found: dict[str, list[int]] = {}
    for name, part in net.named_modules():
        if isinstance(part, nn.Linear | nn.Conv2d | nn.ConvTranspose2d):
            part.register_forward_pre_hook(lambda _, given, name=name: found.update({name: list(given[0].shape[1:])}))
    net(*inputs)
    return found


def counts(net: nn.Module) -> dict[str, int]:
    return {name: sum(weight.numel() for weight in part.parameters()) for name, part in net.named_children()}


def test_the_generator_has_the_layers_of_the_paper() -> None:
    net = Generator()
    noise, labels = torch.zeros(2, 100), torch.tensor([0, 9])
    # the paper: a tensor (3, 3, 384), then (7, 7, 192), (14, 14, 96) and (28, 28, 1).
    expected = {"dense": [100], "to_7": [384, 3, 3], "to_14": [192, 7, 7], "to_28": [96, 14, 14]}
    assert seen_by(net, noise, labels) == expected
    assert net(noise, labels).shape == (2, 1, 28, 28)
    assert net.classes.shape == (10, 100)
    assert counts(net) == {
        "dense": 100 * 3456 + 3456,
        "to_7": 25 * 384 * 192 + 192,
        "to_14": 25 * 192 * 96 + 96,
        "to_28": 25 * 96 + 1,
    }


def test_the_discriminator_has_the_layers_of_the_paper() -> None:
    net = Discriminator()
    seen = seen_by(net, torch.zeros(2, 1, 28, 28))
    # a row and a column of zeros are there already where the stride is 2.
    assert [seen[f"convs.{k}"] for k in range(4)] == [[1, 29, 29], [32, 14, 14], [64, 15, 15], [128, 7, 7]]
    assert seen["source"] == seen["classes"] == [7 * 7 * 256]
    assert counts(net) == {
        "convs": 9 * (32 + 32 * 64 + 64 * 128 + 128 * 256) + 32 + 64 + 128 + 256,
        "source": 7 * 7 * 256 + 1,
        "classes": 10 * 7 * 7 * 256 + 10,
    }
    assert [tuple(each.shape) for each in net(torch.zeros(2, 1, 28, 28))] == [(2,), (2, 10)]


def test_the_settings_are_those_of_the_specification() -> None:
    assert Settings(epochs=5, steps=None, batch_size=100, lr=2e-4, narrowed=1, per_class=400) == WHOLE
    assert WHOLE.steps_of(60_000) == 600
    assert (acgan.LATENT, acgan.SLOPE, acgan.DROPOUT, acgan.BETAS[0]) == (100, 0.2, 0.3, 0.5)
    gan = AcGan(TINY, 0, CPU)
    assert all(adam.param_groups[0]["lr"] == 2e-4 and adam.param_groups[0]["betas"] == (0.5, 0.999) for adam in gan._adams)


def test_pictures_grow_as_tensorflow_lets_them() -> None:
    layer = Generator(narrowed=96).to_28
    weights = torch.arange(1.0, 6.0)
    grid = torch.zeros(1, 1, 14, 14)
    grid[0, 0, 0, 3] = grid[0, 0, 13, 13] = 1.0
    with torch.no_grad():
        layer.weight.zero_()
        layer.bias.zero_()
        layer.weight[0, 0, 2] = weights
        drawn = acgan.doubled(grid, layer)[0, 0]
    # of a one in column i weight k falls on column 2i + k − 1, and the middle row on row 2i + 1.
    expected = torch.zeros(28, 28)
    expected[1, 5:10] = weights
    expected[27, 25:28] = weights[:3]
    assert torch.equal(drawn, expected)


def test_weights_start_as_in_keras() -> None:
    net = Generator()
    acgan.draw_weights_(net, torch.Generator().manual_seed(0))
    for weight, ends in ((net.to_7.weight, 25 * (384 + 192)), (net.to_14.weight, 25 * (192 + 96)), (net.classes, 110)):
        deviation = math.sqrt(2 / ends)
        assert float(weight.detach().std()) == pytest.approx(deviation, rel=0.05)
        # cut off at two deviations of what was cut.
        assert float(weight.detach().abs().max()) <= 2 * deviation / 0.87962 + 1e-6
    assert float(net.dense.weight.detach().abs().max()) == pytest.approx(math.sqrt(6 / 3556), rel=1e-3)
    assert not net.dense.bias.any()


# a source of which the net is as sure as a soft label is, and BCE then: −0.9 ln 0.9 − 0.1 ln 0.1.
LOGIT, SURE = math.log(9), 0.325083


def test_the_discriminators_losses_are_those_worked_out_by_hand() -> None:
    source = torch.tensor([LOGIT, 0.0])
    classes = torch.tensor([[math.log(3), 0.0], [5.0, -5.0]])
    by_source, by_class = acgan.discriminator_losses(source, classes, torch.tensor([0, 1]))
    # of the generated one, ln 2 whatever its label; the other way round it would be 2.08 for the real one.
    assert float(by_source) == pytest.approx((SURE + math.log(2)) / 2, abs=1e-5)
    certain = acgan.discriminator_losses(torch.tensor([LOGIT, -LOGIT]), classes, torch.tensor([0, 1]))
    assert float(certain[0]) == pytest.approx(SURE, abs=1e-5)
    # (2 · −ln ¾ + 0 · anything) / 2.
    assert float(by_class) == pytest.approx(-math.log(0.75), abs=1e-5)


def test_the_generators_losses_are_those_worked_out_by_hand() -> None:
    classes = torch.tensor([[math.log(3), 0.0], [0.0, 0.0]])
    by_source, by_class = acgan.generator_losses(torch.tensor([LOGIT, LOGIT]), classes, torch.tensor([0, 1]))
    assert float(by_source) == pytest.approx(SURE, abs=1e-5)
    assert float(by_class) == pytest.approx((-math.log(0.75) + math.log(2)) / 2, abs=1e-5)


def test_dropout_leaves_seven_of_ten_and_the_sum() -> None:
    values = torch.ones(100_000)
    assert acgan.dropped(values, None) is values
    found = acgan.dropped(values, torch.Generator().manual_seed(0))
    assert float((found == 0).double().mean()) == pytest.approx(0.3, abs=0.01)
    assert float(found.mean()) == pytest.approx(1.0, abs=0.02)
    assert set(found.tolist()) == {0.0, found.max().item()}


def digits(count: int = 60) -> tuple[Tensor, Tensor]:
    """Return images whose digit is the place of a bar, and their digits."""
    labels = torch.arange(count) % 10
    images = torch.randint(0, 40, (count, 1, 28, 28), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    for image, label in zip(images, labels.tolist(), strict=True):
        image[0, 4:24, 2 + 2 * label : 5 + 2 * label] = 250
    return images, labels


def test_a_few_steps_teach_the_discriminator_classes_and_sources() -> None:
    images, labels = digits(640)
    gan = AcGan(Settings(batch_size=16, lr=2e-3, narrowed=8), 0, CPU)
    values = acgan.as_inputs(images)
    found = torch.stack([gan.step(values[k : k + 16], labels[k : k + 16]) for k in range(0, 640, 16)])
    first, last = (dict(zip(FIGURES, part.mean(dim=0).tolist(), strict=True)) for part in (found[:5], found[-5:]))
    assert last["discriminator_class_loss"] < 0.5 * first["discriminator_class_loss"]
    assert last["real_class_right"] > 0.8
    # soft labels leave 0.325 where nothing is left to learn.
    assert last["discriminator_source_loss"] < 0.95 * first["discriminator_source_loss"]
    assert last["real_taken_for_real"] + last["generated_taken_for_generated"] > 1.5


def test_the_generator_learns_from_a_discriminator_that_stands_still(monkeypatch: pytest.MonkeyPatch) -> None:
    images, labels = digits()
    gan = AcGan(Settings(batch_size=16, lr=2e-3, narrowed=8), 0, CPU)
    gan.step(acgan.as_inputs(images[:16]), labels[:16])
    before = [weight.clone() for weight in gan.discriminator.parameters()]
    monkeypatch.setattr(gan._adams[1], "step", lambda: None)
    found = torch.stack([gan.step(acgan.as_inputs(images[:16]), labels[:16]) for _ in range(30)])
    place = FIGURES.index("generator_source_loss")
    assert float(found[-3:, place].mean()) < float(found[:3, place].mean())
    assert all(torch.equal(now, then) for now, then in zip(gan.discriminator.parameters(), before, strict=True))


def test_the_seed_decides_everything_and_nothing_else_does() -> None:
    images, labels = digits()
    torch.manual_seed(3)
    state = torch.get_rng_state()
    first = generated.make(images, labels, TINY, 7, CPU)
    assert torch.equal(torch.get_rng_state(), state)
    torch.rand(5)
    again, other = generated.make(images, labels, TINY, 7, CPU), generated.make(images, labels, TINY, 8, CPU)
    assert torch.equal(first[0], again[0])
    assert first[1] == again[1]
    assert not torch.equal(first[0], other[0])
    assert first[0].shape == (2, 30, 1, 28, 28)
    assert first[0].dtype == torch.uint8
    assert set(first[1][0]) == {*FIGURES, "own_error", "variety"}


def test_too_few_images_are_said() -> None:
    with pytest.raises(ValueError, match=r"^images has 3 of them; expected at least a batch of 4$"):
        AcGan(TINY, 0, CPU).epoch(*(part[:3] for part in digits()))


def test_spread_is_the_variance_within_a_class() -> None:
    images = torch.zeros(4, 1, 28, 28, dtype=torch.uint8)
    images[1], images[3] = 2, 200
    # 0 and 2 vary by 1 about their mean; of the other class one alone is asked for, then both.
    assert generated.spread(images, torch.tensor([0, 0, 1, 1]), 2) == (1 + 100**2) / 2
    assert generated.spread(images[:3], torch.tensor([0, 0, 1]), 2) == 1
    assert generated.spread(images, torch.tensor([0, 1, 2, 3]), 2) == 0


def made(value: int = 7) -> tuple[Tensor, list[dict[str, float]]]:
    return torch.full((1, 10, 1, 28, 28), value, dtype=torch.uint8), [{"own_error": 0.5}]


SHAPE = (1, 10, 1, 28, 28)


def never() -> tuple[Tensor, list[dict[str, float]]]:
    raise AssertionError("it was there")


def test_what_was_made_is_kept(tmp_path: Path) -> None:
    first = kept(tmp_path / "new" / "a.u8", SHAPE, made)
    again = kept(tmp_path / "new" / "a.u8", SHAPE, never)
    assert torch.equal(first.images, again.images)
    assert (first.gan, first.digest) == (again.gan, again.digest)


@pytest.mark.parametrize("damage", ["cut", "changed", "no note", "half a note", "strange note", "other shape"])
def test_what_is_damaged_is_made_again(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "a.u8"
    kept(path, SHAPE, made)
    note = path.with_suffix(".json")
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:-1])
    elif damage == "changed":
        path.write_bytes(b"\1" + path.read_bytes()[1:])
    elif damage == "no note":
        note.unlink()
    elif damage == "half a note":
        note.write_text(note.read_text()[:20])
    elif damage == "strange note":
        note.write_text("[1]")
    shape = (2, 5, 1, 28, 27) if damage == "other shape" else SHAPE
    assert int(kept(path, shape, lambda: made(9)).images[0, 0, 0, 0, 0]) == 9


def test_where_nothing_can_be_kept_it_is_made_and_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    assert int(kept(tmp_path / "file" / "a.u8", SHAPE, made).images.max()) == 7
    assert "cannot be kept" in caplog.text


def test_one_that_fails_leaves_nothing_and_lets_the_next_in(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="it was there"):
        kept(tmp_path / "a.u8", SHAPE, never)
    assert [path.name for path in tmp_path.iterdir()] == [".a.u8.lock"]
    assert int(kept(tmp_path / "a.u8", SHAPE, made).images.max()) == 7


FORK = multiprocessing.get_context("fork") if "fork" in multiprocessing.get_all_start_methods() else None


def _ask(folder: Path, number: int) -> None:
    def make() -> tuple[Tensor, list[dict[str, float]]]:
        with (folder / "log").open("a") as file:
            file.write(f"{number}\n")
        time.sleep(0.3)
        return made(number)

    (folder / f"answer-{number}").write_text(kept(folder / "a.u8", SHAPE, make).digest)


@pytest.mark.skipif(FORK is None, reason="needs processes that are forked")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_eight_processes_at_once_make_it_once(tmp_path: Path) -> None:
    assert FORK is not None
    asking = [FORK.Process(target=_ask, args=(tmp_path, number)) for number in range(8)]
    for process in asking:
        process.start()
    for process in asking:
        process.join(SECONDS)
    assert [process.exitcode for process in asking] == [0] * 8
    assert len((tmp_path / "log").read_text().splitlines()) == 1
    assert len({(tmp_path / f"answer-{number}").read_text() for number in range(8)}) == 1


def _die(folder: Path) -> None:
    def make() -> tuple[Tensor, list[dict[str, float]]]:
        (folder / "a.u8").write_bytes(b"half")
        os._exit(9)

    kept(folder / "a.u8", SHAPE, make)


@pytest.mark.skipif(FORK is None, reason="needs processes that are forked")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_process_that_dies_while_it_makes_them_holds_nobody_up(tmp_path: Path) -> None:
    assert FORK is not None
    process = FORK.Process(target=_die, args=(tmp_path,))
    process.start()
    process.join(SECONDS)
    assert process.exitcode == 9
    assert int(kept(tmp_path / "a.u8", SHAPE, made).images.max()) == 7


def test_the_place_depends_on_everything_that_decides_the_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    places: list[Path] = []
    monkeypatch.setattr(generated, "kept", lambda path, shape, make: places.append(path))
    images, labels = digits()
    other = images.clone()
    other[0, 0, 0, 0] += 1

    def ask(images: Tensor, labels: Tensor, settings: Settings, seed: int) -> None:
        generated.images_of(images, labels, settings, seed, CPU, tmp_path)

    ask(images, labels, TINY, 0)
    ask(images.clone(), labels.clone(), TINY, 0)
    assert places[0] == places[1]
    ask(other, labels, TINY, 0)
    ask(images, labels.flip(0), TINY, 0)
    ask(images, labels, replace(TINY, lr=1e-3), 0)
    ask(images, labels, TINY, 1)
    monkeypatch.setattr(generated, "MAKER", generated.MAKER + 1)
    ask(images, labels, TINY, 0)
    monkeypatch.undo()
    assert len(set(places)) == 6


class Reader(nn.Module):
    """Tells the digit that an image's first value says: digit j is 20 j of 255 grey levels, seen as ``data`` normalises it."""

    num_classes = 10

    def __init__(self, shift: float) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.tensor(shift))

    def forward(self, images: Tensor) -> Tensor:
        level = (images[:, 0, 0, 0] + self.shift) * 255 / 20
        return -(level[:, None] - torch.arange(10)).abs()


def saying(digit: Tensor) -> Tensor:
    return (20 * digit.to(torch.uint8))[:, None, None, None].expand(-1, 1, 28, 28).contiguous()


def run_of(model: nn.Module, *, steps: int = 10, seed: int = 0) -> Run:
    plan = Plan("convnet_small", "mnist").changed({"steps": steps, "seed": seed})
    return Run({"plan": plan.as_dict()}, model=model.eval())


def splits_of(normalise: str | None = None) -> dict[str, ImageData | None]:
    images, labels = digits()
    train, test = (from_tensors(images, labels, split=split, normalise=normalise) for split in ("train", "test"))
    return {"train": train, "validation": test, "test": None}


def test_a_classifier_is_wrong_on_as_many_images_as_were_made_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    asked_for = torch.arange(10).repeat_interleave(SHORT.per_class)
    drawn = asked_for.repeat(5, 1)
    # after the first epoch every tenth image shows a 0, whatever it was to be; after the second all 3s show an 8.
    drawn[0, ::10] = 0
    drawn[1, asked_for == 3] = 8
    images = torch.stack([saying(each) for each in drawn])
    monkeypatch.setattr(generated, "images_of", lambda *given: Made(images, [{"own_error": 0.0}] * 5, "abc"))
    for normalise, shift in (("unit", 0.0), ("centred", 0.5)):
        found = as_json(generated.generated(run_of(Reader(shift)), splits_of(normalise), CPU))
        # those that were to be a 0 are right.
        assert found["error_epoch1"] == pytest.approx(0.1 * 0.9)
        assert found["error_epoch2"] == pytest.approx(0.1)
        assert [found[f"error_epoch{epoch}"] for epoch in (3, 4, 5)] == [0.0, 0.0, 0.0]
        assert found["confusion"][1][3] == [0] * 8 + [40, 0]
        assert found["confusion"][2] == [[40 * (j == k) for k in range(10)] for j in range(10)]
        assert (found["images"], found["digest"], found["whole"]) == (400, "abc", False)
        # a digit's column shows its grey level.
        sheet = unpack(found["sheets"]["epoch3"])
        assert sheet.shape == (3 * 28, 10 * 28)
        assert [round(sheet[0, 28 * j] * 255 / 20) for j in range(10)] == list(range(10))


def test_images_become_inputs_as_the_test_images_do() -> None:
    images, labels = digits(20)
    for normalise in ("unit", "centred", "standardise"):
        like = from_tensors(images, labels, split="test", normalise=normalise)
        # copies that are there already are of other images.
        like._at("meta")
        assert len(like.images) == 20
        found = generated.as_test_images(images, labels, like=like)
        assert torch.equal(found.batch(range(20)).images, like.batch(range(20)).images)
        assert found.digest != like.digest
        assert found._elsewhere == found._made == {}
    other = generated.as_test_images(images.flip(0), labels.flip(0), like=like)
    assert torch.equal(other.batch(range(20)).images, like.batch(range(20)).images.flip(0))


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(generated, "SHORT", TINY)
    return tmp_path / "capsella" / "generated"


def test_networks_of_one_seed_see_the_same_images(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    splits = splits_of()
    first = generated.generated(run_of(Reader(0.0)), splits, CPU)
    assert len(list(tiny.glob("acgan-*.u8"))) == 1
    with monkeypatch.context() as patch:
        patch.setattr(generated, "make", never)
        again = generated.generated(run_of(Reader(0.2)), splits, CPU)
    other = generated.generated(run_of(Reader(0.0), seed=1), splits, CPU)
    assert first["digest"] == again["digest"] != other["digest"]
    assert "sheets" in first
    assert "sheets" not in other
    assert {key: first[key] for key in ("epochs", "steps", "batch_size", "narrowed", "images", "seed")} == {
        **{"epochs": 2, "steps": 2, "batch_size": 4},
        **{"narrowed": 16, "images": 30, "seed": 0},
    }
    assert [panel.label for panel in generated.panels(first)] == ["after epoch 1", "after epoch 2"]
    assert generated.panels(other) == []
    assert generated.panels({}) == []


def test_a_record_stays_small() -> None:
    # noise is what packs worst.
    images = torch.randint(0, 256, (4000, 1, 28, 28), dtype=torch.uint8)
    assert len(json.dumps(generated.sheet(images))) < 20_000


def test_short_runs_get_a_short_gan() -> None:
    plan = Plan("convnet_small", "mnist")
    assert generated.settings_of(plan.changed({"steps": 10_000}), 60_000) == WHOLE
    assert generated.settings_of(plan.changed({"steps": 2999}), 60_000) == SHORT
    assert generated.settings_of(plan.changed({"epochs": 5, "batch_size": 100}), 60_000) == WHOLE
    assert generated.settings_of(plan.changed({"epochs": 1}), 60_000) == SHORT


def test_other_images_than_digits_are_refused() -> None:
    labels = torch.arange(20) % 10
    data: dict[str, Any] = {"train": from_tensors(torch.zeros(20, 3, 32, 32, dtype=torch.uint8), labels, name="photographs")}
    with pytest.raises(ValueError, match=r"^the run learned from photographs; expected ten classes of images of 28×28"):
        generated.generated(run_of(Reader(0.0)), {**data, "validation": data["train"], "test": None}, CPU)
    with pytest.raises(ValueError, match=r"^the run has no data to train on, or was measured on no images$"):
        generated.generated(run_of(Reader(0.0)), {**data, "validation": None, "test": None}, CPU)
