"""The sets that are made from MNIST: what they draw covers its range evenly, loses no ink and never changes."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from made_files import made_digits, use_as_mnist, write_mnist
from scipy import ndimage, stats
from torch import Tensor

from capsella.data import ImageData, affnist, load_data
from capsella.data.affnist import transformed
from capsella.data.augment import (
    AFFNIST,
    AFFNIST_LITERAL,
    AFFNIST_MITTERREITER,
    AUGMENTATIONS,
    Affine,
    MirrorShift,
    Place,
    SabourCifar,
    Shift,
    augmentation,
)
from capsella.data.draws import Draws
from capsella.data.multimnist import PADDING, Pairs
from capsella.data.sources import Files
from capsella.data.splits import members
from capsella.data.transforms import affine_matrix, ink_box

MANY = 20_000
SOME = 5_000
TRAIN, TEST = 400, 60
READINGS = {"affnist": AFFNIST, "affnist_mitterreiter": AFFNIST_MITTERREITER, "affnist_literal": AFFNIST_LITERAL}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Files]:
    root = tmp_path_factory.mktemp("made")
    return root, write_mnist(root, train=TRAIN, test=TEST)


@pytest.fixture
def made(written: tuple[Path, Files], monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a data directory whose MNIST has made digits."""
    root, files = written
    use_as_mnist(monkeypatch, files)
    return root


def many(count: int = MANY, seed: int | str = 0, epoch: int = 0) -> Draws:
    return Draws(torch.arange(count), seed=seed, epoch=epoch)


def where(height: int, width: int, *, count: int = SOME) -> Tensor:
    """Return images whose first channel says in which row a pixel lies and whose second in which column, from 1."""
    rows = torch.arange(1, height + 1, dtype=torch.uint8)[:, None].expand(height, width)
    columns = torch.arange(1, width + 1, dtype=torch.uint8).expand(height, width)
    return torch.stack([rows, columns]).expand(count, 2, height, width)


def origin(images: Tensor, at: int) -> tuple[Tensor, Tensor]:
    """Return which row and column of ``where`` lies at (at, at)."""
    return images[:, 0, at, at].long() - 1, images[:, 1, at, at].long() - 1


def digits(count: int, *, seed: int = 0) -> Tensor:
    return torch.from_numpy(made_digits(count, seed=seed)[0])[:, None]


def assert_even(values: Tensor, low: int, high: int) -> None:
    """Chi-square over all whole numbers from ``low`` to ``high``, both of which occur."""
    assert (int(values.min()), int(values.max())) == (low, high)
    counts = torch.bincount(values - low, minlength=high - low + 1)
    assert low == high or 1e-4 < stats.chisquare(counts.numpy()).pvalue < 1 - 1e-4


def assert_unrelated(*values: Tensor) -> None:
    table = np.corrcoef(torch.stack([value.double() for value in values]))
    assert abs(table - np.eye(len(values))).max() < 4.5 / len(values[0]) ** 0.5


def assert_uniform(values: Tensor, low: float, high: float) -> None:
    """Never outside, near both ends, and evenly distributed."""
    margin = (high - low) / 200
    assert low <= float(values.min()) < low + margin
    assert high - margin < float(values.max()) <= high
    assert float(values.mean()) == pytest.approx((low + high) / 2, abs=5 * (high - low) / (12 * len(values)) ** 0.5)
    assert stats.kstest(values, "uniform", (low, high - low)).pvalue > 1e-4


def as_bytes(images: Tensor) -> Tensor:
    """Undo the scaling of a batch."""
    return (images * 255).round().to(torch.uint8)


def digest(images: Tensor) -> str:
    return hashlib.sha256(images.contiguous().numpy().tobytes()).hexdigest()


# augmentations


@pytest.mark.parametrize("pixels", [0, 1, 2, 4])
def test_shifts_cover_their_square_evenly(pixels: int) -> None:
    row, column = origin(Shift(pixels)(where(12, 16), many(SOME)), 6)
    assert_even(row - 6, -pixels, pixels)
    assert_even(column - 6, -pixels, pixels)
    side = 2 * pixels + 1
    assert_even((row - 6 + pixels) * side + column - 6 + pixels, 0, side**2 - 1)


def test_a_shift_brings_zeros_in() -> None:
    images = where(6, 6, count=200)
    row, column = origin(Shift(2)(images, many(200)), 3)
    moved = Shift(2)(images, many(200))
    for image, top, left in zip(moved, (row - 3).tolist(), (column - 3).tolist(), strict=True):
        expected = np.zeros((10, 10), int)
        expected[2:8, 2:8] = np.arange(1, 7)[:, None]
        np.testing.assert_array_equal(image[0], expected[2 + top : 8 + top, 2 + left : 8 + left])


def test_a_place_is_drawn_from_all_where_the_image_fits() -> None:
    placed = Place(20)(where(13, 9), many(SOME))
    box = ink_box(placed)
    assert torch.equal(box.bottom - box.top, torch.full((SOME,), 12))
    assert torch.equal(box.right - box.left, torch.full((SOME,), 8))
    assert_even(box.top, 0, 7)
    assert_even(box.left, 0, 11)
    assert_even(box.top * 12 + box.left, 0, 95)


def test_a_crop_is_drawn_from_all_and_every_second_is_mirrored() -> None:
    # an even grey, so that brightness and contrast can be told from the place.
    images = where(30, 32)
    row_and_more = SabourCifar(24)(images, many(SOME))
    # a channel's differences between neighbours are the contrast, its sign the mirror.
    down = row_and_more[:, 0, 1, 0] - row_and_more[:, 0, 0, 0]
    across = row_and_more[:, 1, 0, 1] - row_and_more[:, 1, 0, 0]
    torch.testing.assert_close(down, across.abs(), rtol=0, atol=1e-4)
    mirrored = (across < 0).long()
    assert_even(mirrored, 0, 1)
    assert_uniform(down.double(), 0.2 - 1e-5, 1.8 + 1e-5)
    # the means of both channels are those of the crop, and the brightness.
    middle = row_and_more.double().mean(dim=(2, 3)) - 12.5
    # the crop's corner: rows 0 to 6 and columns 0 to 8, and their difference knows nothing of the brightness.
    difference = (middle[:, 0] - middle[:, 1]).round().long()
    expected = np.convolve(np.ones(7) / 7, np.ones(9) / 9)
    counts = torch.bincount(difference + 8, minlength=15)
    assert len(counts) == 15
    assert stats.chisquare(counts.numpy(), expected * SOME).pvalue > 1e-4
    assert_unrelated(mirrored, down, difference, middle[:, 0])


def test_sabours_brightness_covers_63_either_way() -> None:
    # a grey image has no contrast and looks the same from everywhere.
    grey = torch.full((SOME, 2, 25, 25), 100, dtype=torch.uint8)
    light = SabourCifar(24)(grey, many(SOME)).double() - 100
    torch.testing.assert_close(light, light[:, :1, :1, :1].expand_as(light), rtol=0, atol=1e-4)
    assert_uniform(light[:, 0, 0, 0], -63 - 1e-4, 63 + 1e-4)


def test_a_crop_by_hand() -> None:
    image = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (6, 3, 32, 32), dtype=np.uint8))
    draws = many(6, seed=5, epoch=2)
    top, left, mirrored = draws.integers("crop", 9, 9, 2)
    light, stretch = draws.uniform("light", 2)
    found = SabourCifar(24)(image, draws)
    for b in range(6):
        cut = image[b].numpy().astype(float)[:, top[b] : top[b] + 24, left[b] : left[b] + 24]
        cut = cut[:, :, ::-1] if mirrored[b] else cut
        cut = cut + float(2 * light[b] - 1) * 63
        mean = cut.mean(axis=(1, 2), keepdims=True)
        np.testing.assert_allclose(found[b], (cut - mean) * float(0.2 + 1.6 * stretch[b]) + mean, rtol=0, atol=1e-3)


def test_half_of_the_images_are_mirrored_and_all_are_moved_evenly() -> None:
    images = torch.zeros(SOME, 1, 15, 15, dtype=torch.uint8)
    # a mark in the middle says where an image went, its neighbour which way it looks.
    images[:, 0, 7, 7], images[:, 0, 7, 8] = 2, 1
    moved = MirrorShift(4)(images, many(SOME))
    assert moved.shape == images.shape
    row, column = (moved[:, 0] == 2).nonzero()[:, 1:].T
    assert sorted(set(row.tolist())) == sorted(set(column.tolist())) == list(range(3, 12))
    looks_left = moved[torch.arange(SOME), 0, row, column - 1] == 1
    looks_right = moved[torch.arange(SOME), 0, row, column + 1] == 1
    assert bool((looks_left ^ looks_right).all())
    assert abs(float(looks_left.float().mean()) - 0.5) < 5 * 0.5 / SOME**0.5
    assert MirrorShift(4)(images, None) is images


@pytest.mark.parametrize("value", [None, Shift(3), "none"])
def test_augmentations_come_by_name_or_as_objects(value: Any) -> None:
    assert augmentation(value) is (None if value == "none" else value)
    assert {name: augmentation(name) for name in AUGMENTATIONS} == AUGMENTATIONS
    with pytest.raises(ValueError, match="augment='shfit' is unknown; did you mean 'shift'"):
        augmentation("shfit")
    with pytest.raises(TypeError, match="augment=3 has type int"):
        augmentation(3)


# affine maps


def test_the_three_readings_are_those_of_the_papers() -> None:
    table = {
        name: (r.rotation, r.shear, r.shear_degrees, r.scale, r.one_scale, r.canvas, r.position, r.about, r.mode)
        for name, r in READINGS.items()
    }
    assert table == {
        "affnist": (20, 0.2, False, (0.8, 1.2), False, 40, "fit", "ink", "bilinear"),
        "affnist_mitterreiter": (20, 40, True, (0.8, 1.2), True, 40, "fit", "centre", "nearest"),
        "affnist_literal": (20, 45, True, (0.8, 1.2), False, 40, "shift", "centre", "bilinear"),
    }
    assert AFFNIST_LITERAL.shift == 8


@pytest.mark.parametrize("seed", [0, "affnist test"])
@pytest.mark.parametrize("name", READINGS)
def test_parameters_cover_their_ranges_evenly(name: str, seed: int | str) -> None:
    reading = READINGS[name]
    rotation, shear, wide, high = reading.parameters(many(seed=seed))
    assert_uniform(rotation, -20, 20)
    if name == "affnist":
        assert_uniform(shear, -0.2, 0.2)
    else:
        # an angle is drawn, and its tangent is the factor.
        assert_uniform(torch.rad2deg(torch.atan(shear)), -reading.shear, reading.shear)
        assert float(shear.max()) == pytest.approx({40: 0.8391, 45: 1.0}[reading.shear], abs=0.01)
    assert_uniform(wide, 0.8, 1.2)
    assert_uniform(high, 0.8, 1.2)
    if reading.one_scale:
        assert torch.equal(wide, high)
        assert_unrelated(rotation, shear, wide)
    else:
        assert_unrelated(rotation, shear, wide, high)


def test_the_augmentation_affine_covers_8_and_15_degrees() -> None:
    rotation, shear, wide, high = AUGMENTATIONS["affine"].parameters(many())
    assert_uniform(rotation, -8, 8)
    assert_uniform(torch.rad2deg(torch.atan(shear)), -15, 15)
    assert_uniform(wide, 0.9, 1.1)
    assert_uniform(high, 0.9, 1.1)


def affine_by_scipy(reading: Affine, image: np.ndarray, draws: Draws) -> np.ndarray:
    """Map one digit with SciPy, in the middle of a canvas that nothing can leave."""
    rotation, shear, wide, high = reading.parameters(draws)
    matrix = affine_matrix(rotation, shear, wide, high)[0].numpy()
    places = np.argwhere(image)
    middle = (places.min(0) + places.max(0)) / 2 if reading.about == "ink" else np.array([13.5, 13.5])
    side = 40 if reading.position == "shift" else 80
    target = np.array([(side - 1) / 2] * 2)
    if reading.position == "shift":
        x, y = (2 * draws.uniform("affine shift", 2)[:, 0] - 1) * reading.shift
        target += np.array([float(y), float(x)])
    inverse = np.linalg.inv(matrix)[::-1, ::-1]
    found = ndimage.affine_transform(
        image.astype(float),
        inverse,
        middle - inverse @ target,
        output_shape=(side, side),
        order=0 if reading.mode == "nearest" else 1,
        mode="grid-constant",
    )
    return np.rint(found).clip(0, 255).astype(np.uint8)


def ink(image: np.ndarray) -> np.ndarray:
    places = np.argwhere(image)
    (top, left), (bottom, right) = places.min(0), places.max(0)
    return image[top : bottom + 1, left : right + 1]


@pytest.mark.parametrize("name", READINGS)
def test_affine_digits_are_what_scipy_makes_of_them(name: str) -> None:
    reading = replace(READINGS[name], double=True)
    images = digits(60)
    # in the middle, so that the canvas cuts nothing off where the map is about the image's middle.
    box = ink_box(images)
    middle = torch.stack(
        [image.roll((4 - int(top), 4 - int(left)), (1, 2)) for image, top, left in zip(images, box.top, box.left, strict=True)]
    )
    chosen = middle if reading.about == "centre" else images
    found = reading(chosen, many(60, seed="s", epoch=3))
    for b in range(60):
        expected = affine_by_scipy(reading, chosen[b, 0].numpy(), Draws(torch.tensor([b]), seed="s", epoch=3))
        if reading.position == "fit":
            np.testing.assert_array_equal(ink(found[b, 0].numpy()), ink(expected))
        else:
            np.testing.assert_array_equal(found[b, 0].numpy(), expected)


@pytest.mark.parametrize(("height", "width"), [(8, 12), (20, 2), (1, 20)])
def test_ink_goes_to_every_place_where_it_fits(height: int, width: int) -> None:
    image = torch.zeros(1, 1, 28, 28, dtype=torch.uint8)
    image[..., 3 : 3 + height, 8 : 8 + width] = 200
    still = Affine(rotation=0, shear=0, scale=(1, 1), canvas=40, position="fit", about="ink", mode="nearest")
    box = ink_box(still(image.expand(SOME, 1, 28, 28), many(SOME)))
    assert torch.equal(box.bottom - box.top + 1, torch.full((SOME,), height))
    assert torch.equal(box.right - box.left + 1, torch.full((SOME,), width))
    assert_even(box.top, 0, 40 - height)
    assert_even(box.left, 0, 40 - width)
    assert_unrelated(box.top, box.left)


@pytest.mark.parametrize("name", ["affnist", "affnist_mitterreiter"])
def test_transformed_digits_reach_every_border(name: str) -> None:
    box = ink_box(READINGS[name](digits(3_000), many(3_000)))
    rows, columns = 40 - (box.bottom - box.top), 40 - (box.right - box.left)
    # the place as a share of the places there are, and a random part of a step so that it is uniform whatever their number.
    random = torch.Generator().manual_seed(0)
    for at, places in ((box.top, rows), (box.left, columns)):
        assert int(at.min()) == 0
        assert bool((at == places - 1).any())
        assert bool((at < places).all())
        share = (at + torch.rand(len(at), generator=random)) / places
        # whether there is much room or little.
        for some in (places <= places.median(), places > places.median()):
            assert stats.kstest(share[some], "uniform").pvalue > 1e-4
    assert_unrelated(box.top / rows, box.left / columns)


def assert_no_ink_is_lost(images: Tensor) -> None:
    draws = many(len(images), seed="affnist test")
    exact = replace(AFFNIST, double=True)
    placed = exact(images, draws)
    # the same map where there is room for everything; 80 as 40 is even, so that pixels fall in the same way.
    roomy = replace(exact, canvas=80, position="keep")(images, draws)
    sums = [found.long().sum(dim=(1, 2, 3)) for found in (placed, roomy)]
    assert torch.equal(*sums)
    assert int(sums[0].min()) > 0
    values = [found.flatten(1).sort(dim=1, descending=True).values[:, :1600] for found in (placed, roomy)]
    assert torch.equal(*values)
    for small, large in zip(placed[:200], roomy[:200], strict=True):
        np.testing.assert_array_equal(ink(small[0].numpy()), ink(large[0].numpy()))


def test_affnist_loses_no_ink_of_made_digits() -> None:
    assert_no_ink_is_lost(digits(800, seed=9))


def test_affnist_loses_no_ink_of_real_digits(real_mnist: Path) -> None:
    data = load_data("mnist", split="test", root=real_mnist)
    assert_no_ink_is_lost(data.images[:800])
    for split in ("train", "test"):
        box = ink_box(load_data("mnist", split=split, root=real_mnist).images)
        # what the next test takes for granted.
        assert int((box.bottom - box.top + 1).max()) == 20
        assert int((box.right - box.left + 1).max()) == 20


def test_the_largest_digit_fits_under_the_largest_map(monkeypatch: pytest.MonkeyPatch) -> None:
    image = torch.zeros(16, 1, 28, 28, dtype=torch.uint8)
    image[..., 8:, :20] = 255
    ends = torch.tensor([[(k >> bit) & 1 for k in range(16)] for bit in range(4)], dtype=torch.float64)
    monkeypatch.setattr(Draws, "uniform", lambda self, purpose, count=1: ends[:count])
    assert sorted(set(AFFNIST.parameters(many(16))[0].tolist())) == [-20, 20]
    roomy = replace(AFFNIST, canvas=80, position="keep", double=True)(image, many(16))
    placed = replace(AFFNIST, double=True)(image, many(16))
    assert torch.equal(placed.long().sum(dim=(1, 2, 3)), roomy.long().sum(dim=(1, 2, 3)))
    box = ink_box(roomy)
    assert 30 < int((box.bottom - box.top + 1).max()) <= 40
    assert 30 < int((box.right - box.left + 1).max()) <= 40


def test_the_literal_reading_moves_by_up_to_8_pixels() -> None:
    count = 4_000
    squared = (torch.arange(28) - 13.5) ** 2
    image = (255 * torch.exp(-(squared[:, None] + squared) / 4)).round().to(torch.uint8)[None, None]
    found = AFFNIST_LITERAL(image.expand(count, 1, 28, 28), many(count)).double()[:, 0]
    # a map about the middle of a round spot leaves it there.
    weight = found.sum(dim=(1, 2))
    y = (found.sum(dim=2) * torch.arange(40)).sum(dim=1) / weight - 19.5
    x = (found.sum(dim=1) * torch.arange(40)).sum(dim=1) / weight - 19.5
    drawn = (2 * many(count).uniform("affine shift", 2) - 1) * 8
    for moved, expected in zip((x, y), drawn, strict=True):
        torch.testing.assert_close(moved, expected, rtol=0, atol=0.06)
        assert_uniform(expected, -8, 8)
    assert_unrelated(x, y)


def test_an_empty_image_stays_empty() -> None:
    for reading in READINGS.values():
        assert not reading(torch.zeros(3, 1, 28, 28, dtype=torch.uint8), many(3)).any()


# mnist40


def places_of(images: Tensor, originals: Tensor) -> tuple[Tensor, Tensor]:
    """Return where a batch's images were put, and check that they are there."""
    placed, plain = ink_box(images), ink_box(originals)
    top, left = placed.top - plain.top, placed.left - plain.left
    for image, original, y, x in list(zip(images, originals, top.tolist(), left.tolist(), strict=True))[:20]:
        expected = np.zeros((images.shape[2], images.shape[3]), np.uint8)
        expected[y : y + 28, x : x + 28] = original[0].numpy()
        np.testing.assert_array_equal(image[0].numpy(), expected)
    return top, left


@pytest.mark.parametrize("moving", ["epoch", "seed"])
@pytest.mark.parametrize("split", ["train", "fit"])
def test_mnist40_places_evenly_and_anew_in_training(split: str, moving: str, made: Path) -> None:
    data, plain = (load_data(name, split=split, root=made) for name in ("mnist40", "mnist"))
    drawn = [places_of(as_bytes(data.batch(slice(None), **{moving: k}).images), plain.images) for k in range(12)]
    tops, lefts = (torch.stack(list(values)) for values in zip(*drawn, strict=True))
    assert_even(tops.reshape(-1), 0, 12)
    assert_even(lefts.reshape(-1), 0, 12)
    assert_even((tops * 13 + lefts).reshape(-1), 0, 168)
    assert_unrelated(tops.reshape(-1), lefts.reshape(-1))
    assert_unrelated(tops[:-1].reshape(-1), tops[1:].reshape(-1), lefts[1:].reshape(-1))
    # every image moves: none keeps its place in all of them.
    assert bool(((tops != tops[0]) | (lefts != lefts[0])).any(dim=0).all())


@pytest.mark.parametrize("split", ["val", "test"])
def test_mnist40_is_one_fixed_draw_in_evaluation(split: str, made: Path) -> None:
    data, plain = (load_data(name, split=split, root=made) for name in ("mnist40", "mnist"))
    first = data.batch(slice(None)).images
    for epoch, seed in [(1, 0), (0, 1), (17, 12)]:
        assert torch.equal(data.batch(slice(None), epoch=epoch, seed=seed).images, first)
    top, left = places_of(as_bytes(first), plain.images)
    assert len(set(zip(top.tolist(), left.tolist(), strict=True))) > 30
    assert torch.equal(data.images, as_bytes(first))


def test_mnist40_draws_differ_between_splits(made: Path) -> None:
    data, plain = (load_data(name, root=made) for name in ("mnist40", "mnist"))
    # the same images as if they were in another split, in training and in evaluation.
    others = [data, *(replace(data, split=split, training=False, _made={}) for split in ("val", "test"))]
    places = [places_of(other.images, plain.images) for other in others]
    assert_unrelated(*(part for pair in places for part in pair))


def test_the_images_of_mnist40_are_the_draw_of_epoch_0_and_seed_0(made: Path) -> None:
    data = load_data("mnist40", root=made)
    assert data.images.shape == (TRAIN, 1, 40, 40)
    assert data.images.dtype == torch.uint8
    assert torch.equal(data.images, as_bytes(data.batch(slice(None)).images))
    assert not torch.equal(data.images, as_bytes(data.batch(slice(None), epoch=1).images))


@pytest.mark.parametrize(("canvas", "last"), [(28, 0), (29, 1), (33, 5)])
def test_mnist40_takes_another_canvas(canvas: int, last: int, made: Path) -> None:
    data, plain = (load_data(name, root=made, **options) for name, options in (("mnist40", {"canvas": canvas}), ("mnist", {})))
    assert data.image_shape == (1, canvas, canvas)
    drawn = [places_of(as_bytes(data.batch(slice(None), epoch=k).images), plain.images) for k in range(4)]
    assert_even(torch.cat([top for top, _ in drawn]), 0, last)
    assert_even(torch.cat([left for _, left in drawn]), 0, last)
    with pytest.raises(ValueError, match="canvas=27 is too small"):
        load_data("mnist40", root=made, canvas=27)


# affnist


def refuse(*_: Any) -> Iterator[Tensor]:
    raise AssertionError("the set was made again")


def cached(folder: Path) -> list[Path]:
    return sorted((folder / "capsella" / "generated").iterdir())


@pytest.mark.parametrize("name", READINGS)
def test_a_set_made_twice_is_the_same(name: str, made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for cache in ("first", "second"):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / cache))
        found.append(load_data(name, split="test", root=made, versions=2))
    first, second = found
    assert first.digest == second.digest
    assert torch.equal(first.images, second.images)
    assert first.images.shape == (2 * TEST, 1, 40, 40)
    names = [[(path.name, path.read_bytes()) for path in cached(tmp_path / cache)] for cache in ("first", "second")]
    assert names[0] == names[1]
    assert [name.rpartition(".")[2] for name, _ in names[0]] == ["json", "u8"]
    assert dict(names[0])[names[0][1][0]] == first.images.numpy().tobytes()


def test_the_second_load_reads_the_cache(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    first = load_data("affnist", split="test", root=made)
    before = [(path, path.stat().st_mtime_ns) for path in cached(tmp_path)]
    monkeypatch.setattr(affnist, "transformed", refuse)
    second = load_data("affnist", split="test", root=made)
    assert torch.equal(first.images, second.images)
    assert torch.equal(first.labels, second.labels)
    assert first.digest == second.digest
    assert [(path, path.stat().st_mtime_ns) for path in cached(tmp_path)] == before
    # another split, reading or number of versions is another file.
    for name, options in [("affnist", {"split": "val"}), ("affnist", {"versions": 2}), ("affnist_literal", {})]:
        with pytest.raises(AssertionError, match="made again"):
            load_data(name, root=made, **{"split": "test", **options})


def flip_a_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


SPOILS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "a flipped byte": ("u8", flip_a_byte),
    "a byte less": ("u8", lambda path: path.write_bytes(path.read_bytes()[:-1])),
    "a byte more": ("u8", lambda path: path.write_bytes(path.read_bytes() + b"\0")),
    "no content": ("u8", lambda path: path.write_bytes(b"")),
    "no images": ("u8", Path.unlink),
    "no note": ("json", Path.unlink),
    "an empty note": ("json", lambda path: path.write_text("")),
    "half a note": ("json", lambda path: path.write_text(path.read_text()[:20])),
    "a note that is no text": ("json", lambda path: path.write_bytes(b"\xff\xfe\xfd")),
    "a note that is a list": ("json", lambda path: path.write_text("[1, 2]")),
    "a note that is a number": ("json", lambda path: path.write_text("7")),
    "a note without a checksum": ("json", lambda path: path.write_text("{}")),
    "a note of another set": ("json", lambda path: path.write_text('{"shape": [1], "sha256": "00"}')),
}


@pytest.mark.parametrize("spoil", SPOILS)
def test_a_spoilt_cache_is_noticed_and_made_again(
    spoil: str, made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    first = load_data("affnist", split="test", root=made)
    whole = [path.read_bytes() for path in cached(tmp_path)]
    ending, act = SPOILS[spoil]
    act(next(path for path in cached(tmp_path) if path.name.endswith(ending)))
    again = load_data("affnist", split="test", root=made)
    assert torch.equal(first.images, again.images)
    assert first.digest == again.digest
    assert [path.read_bytes() for path in cached(tmp_path)] == whole
    monkeypatch.setattr(affnist, "transformed", refuse)
    assert torch.equal(load_data("affnist", split="test", root=made).images, first.images)


def test_without_a_cache_to_write_to_the_set_is_made_each_time(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    first = load_data("affnist", split="test", root=made)
    nowhere = tmp_path / "file"
    nowhere.write_text("not a folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(nowhere))
    with caplog.at_level(logging.WARNING, "capsella"):
        second = load_data("affnist", split="test", root=made)
    assert torch.equal(first.images, second.images)
    assert first.digest == second.digest
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "cannot be kept" in caplog.text
    assert nowhere.read_text() == "not a folder"


@pytest.mark.parametrize("name", READINGS)
def test_more_versions_begin_with_the_first(name: str, made: Path) -> None:
    one, three = (load_data(name, split="test", root=made, versions=versions) for versions in (1, 3))
    plain = load_data("mnist", split="test", root=made)
    assert len(three) == 3 * len(one) == 3 * TEST
    assert torch.equal(three.images[:TEST], one.images)
    assert three.labels.tolist() == plain.labels.tolist() * 3
    assert one.digest != three.digest
    for first, second in ((0, 1), (0, 2), (1, 2)):
        same = (three.images[first * TEST :][:TEST] == three.images[second * TEST :][:TEST]).flatten(1).all(dim=1)
        assert not same.any()


def test_a_version_has_the_parameters_of_its_number(made: Path) -> None:
    data, plain = (load_data(name, split="test", root=made, **options) for name, options in SETS)
    exact = replace(AFFNIST, double=True)
    for version in range(3):
        for k in (0, 1, TEST - 1):
            alone = exact(plain.images[k : k + 1], Draws(torch.tensor([k]), seed="affnist test", epoch=version))
            assert torch.equal(data.images[version * TEST + k], alone[0])


SETS: tuple[tuple[str, dict[str, int]], ...] = (("affnist", {"versions": 3}), ("mnist", {}))


def test_blocks_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    exact, originals = replace(AFFNIST, double=True), digits(50)
    whole = torch.cat(list(transformed(exact, originals, torch.arange(len(originals)), "test", 0)))
    monkeypatch.setattr(affnist, "_BLOCK", 7)
    blocks = list(transformed(exact, originals, torch.arange(len(originals)), "test", 0))
    assert [len(block) for block in blocks] == [7] * 7 + [1]
    assert torch.equal(torch.cat(blocks), whole)
    assert torch.equal(torch.cat(list(transformed(exact, originals, torch.arange(20), "test", 0))), whole[:20])


def test_every_split_has_draws_of_its_own(made: Path) -> None:
    exact, originals = replace(AFFNIST, double=True), digits(40)
    made_for = [
        torch.cat(list(transformed(exact, originals, torch.arange(len(originals)), split, 0))) for split in ("train", "test")
    ]
    for k, first in enumerate(made_for):
        for second in made_for[k + 1 :]:
            assert not (first == second).flatten(1).all(dim=1).any()
    found = {split: load_data("affnist", split=split, root=made) for split in ("train", "fit", "val", "test")}
    assert {split: len(data) for split, data in found.items()} == {"train": 400, "fit": 300, "val": 100, "test": 60}
    assert len({data.digest for data in found.values()}) == 4
    plain = load_data("mnist", root=made)
    for split in ("fit", "val"):
        assert torch.equal(found[split].labels, plain.labels[members(split, TRAIN)])


def test_the_note_says_what_was_written(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    data = load_data("affnist_literal", split="test", root=made)
    note, content = cached(tmp_path)
    assert json.loads(note.read_text()) == {"shape": [TEST, 1, 40, 40], "sha256": digest(data.images)}
    assert content.name.startswith("affnist_literal-test-1-")


# what may never change


FIRST_HUNDRED = {
    "affnist": "11e062f87dbfe703d6827e27fb683e2376d0a9df65d9788c9f23f381f6910afd",
    "affnist_mitterreiter": "793deb69472ead8d09e7a180bfb4454226095d6d3ddb38918f9f4e0e3e276cd3",
    "affnist_literal": "e185eeb01b3540db4218cef781d9a684e8a3ab5e4cdb0b20aad5d03268cb5b15",
    "mnist40": "a730b358a76497d0b28ef7d24ca9a7197e50c175cc8d3e8c3b49afa20ea7b838",
    "multimnist": "f7323ffaec9a9c766b46d86b491eb2b5a583f67592a7073c2698cc105b8ff04e",
}


@pytest.mark.parametrize("name", FIRST_HUNDRED)
def test_the_first_hundred_real_images_never_change(name: str, real_mnist: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if name in READINGS:
        whole = affnist.load_idx

        def some(*given: Any) -> tuple[Tensor, Tensor, dict[str, str]]:
            images, labels, facts = whole(*given)
            return images[:100], labels[:100], facts

        monkeypatch.setattr(affnist, "load_idx", some)
    data = load_data(name, split="test", root=real_mnist)
    assert digest(data.images[:100]) == FIRST_HUNDRED[name]


# multimnist


@pytest.fixture
def pairs(made: Path) -> ImageData:
    return load_data("multimnist", root=made, partners=40)


def test_images_are_the_sum_of_two_digits_of_different_classes(pairs: ImageData, made: Path) -> None:
    plain = load_data("mnist", root=made)
    assert len(pairs) == 40 * TRAIN
    chosen = torch.arange(0, len(pairs), 11)
    batch = pairs.batch(chosen)
    parts, classes = pairs.parts(chosen), pairs.part_labels(chosen)
    assert (parts.dtype, parts.shape[1:]) == (torch.uint8, (2, 1, 36, 36))
    assert not (classes[:, 0] == classes[:, 1]).any()
    summed = np.minimum(parts.numpy().astype(int).sum(axis=1), 255)
    assert bool((parts.long().sum(dim=1) > 255).any())
    np.testing.assert_array_equal(pairs.images[chosen].numpy(), summed)
    np.testing.assert_array_equal(as_bytes(batch.images).numpy(), summed)
    np.testing.assert_allclose(batch.images.numpy(), summed / 255, rtol=0, atol=1e-7)
    np.testing.assert_allclose(batch.parts.numpy(), parts.numpy() / 255, rtol=0, atol=1e-7)
    assert torch.equal(batch.part_labels, classes)
    rows = torch.zeros(len(chosen), 10, dtype=torch.int64)
    for row, pair in zip(rows, classes.tolist(), strict=True):
        row[pair] = 1
    assert torch.equal(batch.labels, rows)
    assert torch.equal(pairs.labels[chosen], rows)
    assert torch.equal(classes[:, 0], plain.labels[chosen // 40])
    # the parts are digits of the split, moved.
    base, partner = pairs.samples.pair(chosen)
    assert torch.equal(base, chosen // 40)
    assert torch.equal(plain.labels[partner], classes[:, 1])
    for k, which in ((0, base), (1, partner)):
        for part, original in zip(parts[:200, k, 0].numpy(), plain.images[which[:200], 0].numpy(), strict=True):
            np.testing.assert_array_equal(ink(part), ink(original))


@pytest.mark.parametrize("split", ["fit", "val", "test"])
def test_both_digits_are_of_the_same_split(split: str, made: Path) -> None:
    data, plain = load_data("multimnist", split=split, root=made, partners=3), load_data("mnist", split=split, root=made)
    known = {ink(image).tobytes() for image in plain.images[:, 0].numpy()}
    for pair in data.parts(slice(None)).numpy():
        assert {ink(part[0]).tobytes() for part in pair} <= known


def test_a_base_keeps_its_place_and_partners_have_their_own(pairs: ImageData) -> None:
    parts = pairs.parts(slice(0, 40 * 50)).reshape(50, 40, 2, 36, 36)
    assert torch.equal(parts[:, :, 0], parts[:, :1, 0].expand(50, 40, 36, 36))
    bases = ink_box(parts[:, 0, :1])
    assert len(set(zip(bases.top.tolist(), bases.left.tolist(), strict=True))) > 20
    assert all(len({part.numpy().tobytes() for part in row[:, 1]}) > 35 for row in parts)


def test_partners_are_drawn_evenly_from_all_digits_of_other_classes() -> None:
    # classes of very different sizes, in no order.
    classes = torch.tensor([0] * 30 + [1] * 5 + [2] + [7] * 14)[torch.from_numpy(np.random.default_rng(0).permutation(50))]
    samples = Pairs(torch.zeros(50, 1, 28, 28, dtype=torch.uint8), classes, partners=2_000, shift=4, seed="x")
    base, partner = samples.pair(torch.arange(len(samples)))
    assert torch.equal(base, torch.arange(50).repeat_interleave(2_000))
    assert not (classes[base] == classes[partner]).any()
    for digit in (0, 1, 2, 7):
        mine = classes[base] == digit
        counts = torch.bincount(partner[mine], minlength=50)
        assert not counts[classes == digit].any()
        assert 1e-4 < stats.chisquare(counts[classes != digit].numpy()).pvalue < 1 - 1e-4


def shifts_of(samples: Pairs, indices: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Return by how many rows and columns base and partner were moved, for samples of ``where``."""
    parts, _ = samples.parts(indices)
    found = [origin(parts[:, k], 18) for k in (0, 1)]
    return [(18 - PADDING - row, 18 - PADDING - column) for row, column in found]


@pytest.mark.parametrize("shift", [0, 1, 4, 6])
def test_shifts_of_both_digits_cover_their_range_evenly(shift: int) -> None:
    count = SOME
    samples = Pairs(where(28, 28, count=count), torch.arange(count) % 10, partners=2, shift=shift, seed="x")
    (base_y, base_x), (y, x) = shifts_of(samples, torch.arange(0, 2 * count, 2))
    for moved in (base_y, base_x, y, x):
        assert_even(moved, -shift, shift)
    if shift:
        assert_unrelated(base_y, base_x, y, x)
        side = 2 * shift + 1
        assert_even((y + shift) * side + x + shift, 0, side**2 - 1)
    (again_y, again_x), (other_y, _) = shifts_of(samples, torch.arange(1, 2 * count, 2))
    assert torch.equal(base_y, again_y)
    assert torch.equal(base_x, again_x)
    assert shift == 0 or not torch.equal(y, other_y)


def test_an_original_with_one_partner_does_not_move_with_it() -> None:
    samples = Pairs(where(28, 28), torch.arange(SOME) % 10, partners=1, shift=4, seed="x")
    (base_y, base_x), (y, x) = shifts_of(samples, torch.arange(SOME))
    assert_unrelated(base_y, base_x, y, x, samples.pair(torch.arange(SOME))[1])


def test_a_digit_moved_by_6_is_cut_off_at_the_border_only() -> None:
    samples = Pairs(where(28, 28, count=600), torch.arange(600) % 10, partners=1, shift=6, seed="x")
    parts, _ = samples.parts(torch.arange(600))
    moved = shifts_of(samples, torch.arange(600))
    assert int(moved[0][0].max()) == 6
    for k, (down, right) in enumerate(moved):
        for part, y, x in zip(parts[:, k].numpy(), down.tolist(), right.tolist(), strict=True):
            wide = np.zeros((2, 60, 60), np.uint8)
            wide[:, 16 + y : 44 + y, 16 + x : 44 + x] = where(28, 28, count=1)[0].numpy()
            np.testing.assert_array_equal(part, wide[:, 12:48, 12:48])


def test_boxes_of_20_pixels_overlap_by_73_per_cent() -> None:
    count = SOME
    samples = Pairs(where(28, 28, count=count), torch.arange(count) % 10, partners=2, shift=4, seed="multimnist train")
    (base_y, base_x), (y, x) = shifts_of(samples, torch.arange(2 * count))
    overlap = ((20 - (base_y - y).abs()) * (20 - (base_x - x).abs())).double() / 400
    # both axes are independent, and d is the difference of two whole numbers from −4 to 4.
    differences = [first - second for first in range(-4, 5) for second in range(-4, 5)]
    expected = (sum(20 - abs(d) for d in differences) / 20 / 81) ** 2
    assert 0.72 < expected < 0.74
    assert 0.72 < float(overlap.mean()) < 0.74
    assert float(overlap.mean()) == pytest.approx(expected, abs=0.005)
    assert float(overlap.min()) == (12 / 20) ** 2
    assert float(overlap.max()) == 1


def test_sixty_million_images_are_addressed_without_storing_them(made: Path) -> None:
    data = load_data("multimnist", root=made, partners=60_000_000 // TRAIN)
    assert len(data) == len(data.images) == len(data.labels) == 60_000_000
    assert data.images.shape == (60_000_000, 1, 36, 36)
    last = data.batch([59_999_999, 0, -1])
    assert torch.equal(last.images[0], last.images[2])
    assert torch.equal(as_bytes(last.images[0]), data.images[-1])
    assert torch.equal(data.labels[59_999_999], last.labels[0])
    assert last.labels[0].sum() == 2
    image, label = data[59_999_999]
    assert torch.equal(image, last.images[0])
    assert torch.equal(label, last.labels[0])
    assert int(last.part_labels[0, 0]) == int(load_data("mnist", root=made).labels[-1])
    for index in (60_000_000, -60_000_001):
        with pytest.raises(IndexError, match="expected numbers from 0 to 59999999"):
            data.batch([index])
        with pytest.raises(IndexError):
            data.images[index]


def test_more_images_than_can_be_counted_are_refused(made: Path) -> None:
    most = (2**31 - 1) // TRAIN
    assert len(load_data("multimnist", root=made, partners=most)) == most * TRAIN
    with pytest.raises(ValueError, match=f"partners={most + 1} is too large; expected at most {most}"):
        load_data("multimnist", root=made, partners=most + 1)
    with pytest.raises(ValueError, match="shift=7 is too large"):
        load_data("multimnist", root=made, shift=7)
    with pytest.raises(ValueError, match="partners=0 is too small"):
        load_data("multimnist", root=made, partners=0)


def test_pairs_do_not_depend_on_the_epoch_or_the_seed(pairs: ImageData) -> None:
    first = pairs.batch(range(50))
    other = pairs.batch(range(50), epoch=3, seed=4)
    assert torch.equal(first.images, other.images)
    assert torch.equal(first.parts, other.parts)


def test_test_images_may_have_fewer_partners_than_those_to_learn_from(made: Path) -> None:
    few, many = (load_data("multimnist", split="test", root=made, partners=9, test_partners=n) for n in (2, None))
    assert (len(few), len(many)) == (2 * TEST, 9 * TEST)
    alone = load_data("multimnist", split="test", root=made, partners=2)
    assert torch.equal(few.batch(range(2 * TEST)).images, alone.batch(range(2 * TEST)).images)
    for split in ("train", "fit", "val"):
        given = {"split": split, "root": made, "partners": 3}
        assert len(load_data("multimnist", test_partners=1, **given)) == len(load_data("multimnist", **given))


def test_the_same_originals_with_other_partners(made: Path) -> None:
    few, many = (load_data("multimnist", split="test", root=made, partners=n) for n in (1, 5))
    assert isinstance(few.samples, Pairs)
    more = few.samples.with_partners(5)
    some = torch.arange(0, len(many), 7)
    assert len(more) == len(many)
    assert torch.equal(more.parts(some)[0], many.samples.parts(some)[0])
    with pytest.raises(ValueError, match=r"^partners=0 is too small"):
        few.samples.with_partners(0)


def test_multimnist_differs_between_splits_and_options(made: Path) -> None:
    options: list[dict[str, Any]] = [{}, {"split": "fit"}, {"split": "val"}, {"split": "test"}, {"shift": 6}, {"partners": 2}]
    sets = [load_data("multimnist", root=made, **each) for each in options]
    assert len({data.digest for data in sets}) == len(options)
    assert [data.samples.seed for data in sets[:4]] == [f"multimnist {split}" for split in ("train", "fit", "val", "test")]
    images = torch.zeros(500, 1, 28, 28, dtype=torch.uint8)
    found = [Pairs(images, torch.arange(500) % 10, partners=1, shift=4, seed=f"multimnist {s}") for s in ("train", "test")]
    first, second = (samples.pair(torch.arange(500))[1] for samples in found)
    assert int((first == second).sum()) < 12


KEYS: list[Any] = [
    0,
    7,
    -1,
    -120,
    slice(None),
    slice(3, 9),
    slice(-5, None),
    slice(1, 100, 7),
    slice(None, None, 2),
    slice(50, 10),
    slice(100, 500),
    [5],
    [3, 1, 1, -2],
    range(4, 8),
    torch.tensor([0, 119, 4]),
    torch.tensor([2], dtype=torch.int32),
    torch.tensor(3),
    np.int64(-2),
    np.array([1, 2, 3]),
    (3, 0),
    (slice(2, 5), 0),
    ([1, 2], slice(None)),
    (-1, ...),
    (torch.tensor([4, 5]), slice(None, None, 3)),
]


@pytest.mark.parametrize("key", KEYS, ids=str)
@pytest.mark.parametrize("kind", ["images", "labels"])
def test_a_view_is_cut_as_a_tensor_is(kind: str, key: Any, made: Path) -> None:
    data = load_data("multimnist", split="test", root=made, partners=2)
    view = data.images if kind == "images" else data.labels
    whole = torch.stack([data.images[k] if kind == "images" else data.labels[k] for k in range(len(data))])
    assert (view.shape, view.dtype, view.ndim, len(view)) == (whole.shape, whole.dtype, whole.ndim, len(whole))
    found = view[key]
    assert found.shape == whole[key].shape
    assert torch.equal(found, whole[key])


def test_a_views_images_can_be_cut_further(made: Path) -> None:
    view = load_data("multimnist", split="test", root=made, partners=2).images
    whole = view[:]
    for key in [(4, 0, 3), (slice(2, 5), 0, slice(3, 9), -1), (-1, ..., 5), ([1, 2], 0, 4, 4)]:
        assert torch.equal(view[key], whole[key])
    assert torch.equal(torch.stack(list(view)), whole)
    for wrong in (120, -121, [0, 120]):
        with pytest.raises(IndexError):
            view[wrong]
    with pytest.raises(TypeError):
        view[[0.5]]
