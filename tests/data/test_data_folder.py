"""A user's own images: formats, channels, sizes, splits, and what is wrong with a folder."""

from __future__ import annotations

import hashlib
import io
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from capsella import DataError, ImageData, load_data
from capsella.data.splits import members

SPLITS = ("train", "fit", "val", "test")


def save(path: Path, pixels: np.ndarray | Image.Image, **options: Any) -> Path:
    """Write a picture of the array's type, making the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    (pixels if isinstance(pixels, Image.Image) else Image.fromarray(pixels)).save(path, **options)
    return path


def noise(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def flat(level: int | tuple[int, int, int], size: tuple[int, int] = (6, 6)) -> np.ndarray:
    return np.full((*size, 3) if isinstance(level, tuple) else size, level, np.uint8)


def one_of_each(root: Path, path: Path | str, pixels: np.ndarray | Image.Image, **options: Any) -> Path:
    """Make a set whose training part is this picture of class a and a black one of class b."""
    for name in ("train/b/black.png", "test/a/black.png", "test/b/black.png"):
        save(root / name, flat(0))
    return save(root / "train" / "a" / path, pixels, **options)


def first(root: Path, **options: Any) -> torch.Tensor:
    """Return the picture of class a as it was read."""
    data = load_data("folder", root=root, **options)
    assert data.labels.tolist() == [0, 1]
    return data.images[0]


def numbered(root: Path, **counts: int) -> None:
    """Write counts of grey pictures per class, whose level is their number."""
    for name, count in counts.items():
        for k in range(count):
            save(root / name / f"{k}.png", flat(k))


def levels(data: ImageData, kind: str) -> list[int]:
    """Return the numbers of the pictures of one class, in order."""
    of_kind = data.labels == data.class_names.index(kind)
    return data.images[of_kind][:, 0, 0, 0].tolist()


def snapshot(root: Path) -> dict[str, tuple[str, int]]:
    """Return every path below ``root``, its content and the time of its last change."""
    return {
        str(path.relative_to(root)): (
            hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "",
            path.stat().st_mtime_ns,
        )
        for path in sorted(root.rglob("*"))
    }


# formats and channels


@pytest.mark.parametrize("name", ["x.png", "x.bmp", "x.gif", "x.tif", "x.tiff", "x.pgm", "X.PNG", "x.y.Png"])
def test_grey_pictures_are_read_as_they_are_and_stay_one_channel(tmp_path: Path, name: str) -> None:
    pixels = noise(9, 7)
    one_of_each(tmp_path, name, pixels)
    image = first(tmp_path, image_size=(9, 7))
    assert image.dtype == torch.uint8
    assert np.array_equal(image.numpy(), pixels[None])


@pytest.mark.parametrize("name", ["x.png", "x.bmp", "x.ppm", "x.tif", "x.webp"])
def test_colour_pictures_are_read_as_they_are(tmp_path: Path, name: str) -> None:
    pixels = noise(9, 7, 3)
    one_of_each(tmp_path, name, pixels, **({"lossless": True} if name == "x.webp" else {}))
    image = first(tmp_path, image_size=(9, 7))
    assert np.array_equal(image.numpy(), pixels.transpose(2, 0, 1))


@pytest.mark.parametrize("name", ["x.jpg", "x.jpeg", "x.webp", "X.JPG"])
def test_lossy_pictures_are_read_nearly_as_they_were(tmp_path: Path, name: str) -> None:
    pixels = np.kron(np.array([[40, 200], [90, 240]], np.uint8), np.ones((16, 16), np.uint8))
    one_of_each(tmp_path / "grey", name, pixels, quality=95)
    image = first(tmp_path / "grey", image_size=32)
    assert image.shape == (1, 32, 32)
    np.testing.assert_allclose(image[0].numpy(), pixels, atol=6)
    one_of_each(tmp_path / "colour", name, flat((200, 30, 90), (32, 32)), quality=95)
    image = first(tmp_path / "colour", image_size=32)
    assert image.shape == (3, 32, 32)
    np.testing.assert_allclose(image[:, 8, 8].numpy(), [200, 30, 90], atol=6)


def test_one_colour_picture_makes_the_set_rgb(tmp_path: Path) -> None:
    numbered(tmp_path / "train", ant=3, bee=3)
    save(tmp_path / "train/bee/9.png", flat((10, 20, 30)))
    numbered(tmp_path / "test", ant=1, bee=1)
    data = load_data("folder", root=tmp_path, image_size=4)
    assert data.image_shape == (3, 4, 4)
    assert data.images[:, :, 0, 0].tolist() == [[0] * 3, [1] * 3, [2] * 3, [0] * 3, [1] * 3, [2] * 3, [10, 20, 30]]


def test_a_colour_set_has_a_digest_and_batches(tmp_path: Path) -> None:
    for k in range(5):
        save(tmp_path / "ant" / f"{k}.png", noise(8, 8, 3, seed=k))
        save(tmp_path / "bee" / f"{k}.png", noise(8, 8, 3, seed=k + 10))
    for split in SPLITS:
        data = load_data("folder", root=tmp_path, split=split)
        assert data.images.shape[1:] == (3, 32, 32)
        assert data.images.is_contiguous()
        assert re.fullmatch("[0-9a-f]{64}", data.digest)
        assert torch.equal(data.batch(slice(None)).images, data.images.float() / 255)


def test_grey_true_makes_one_channel_of_colours(tmp_path: Path) -> None:
    stripes = np.zeros((3, 3, 3), np.uint8)
    stripes[0, :, 0] = stripes[1, :, 1] = stripes[2, :, 2] = 255
    one_of_each(tmp_path, "x.png", stripes)
    image = first(tmp_path, image_size=3, grey=True)
    assert image.shape == (1, 3, 3)
    # 0.299 red, 0.587 green, 0.114 blue.
    np.testing.assert_allclose(image[0].numpy(), np.repeat([[76.2], [149.7], [29.1]], 3, axis=1), atol=1)


def test_grey_false_makes_three_channels_of_grey(tmp_path: Path) -> None:
    pixels = noise(5, 5)
    one_of_each(tmp_path, "x.png", pixels)
    assert np.array_equal(first(tmp_path, image_size=5, grey=False).numpy(), np.stack([pixels] * 3))


def test_a_picture_stored_in_colour_without_any_is_grey(tmp_path: Path) -> None:
    pixels = noise(5, 5)
    one_of_each(tmp_path, "x.png", np.stack([pixels] * 3, axis=-1))
    assert np.array_equal(first(tmp_path, image_size=5).numpy(), pixels[None])


def test_palettes_are_looked_up(tmp_path: Path) -> None:
    colours = np.array([[255, 0, 0], [0, 130, 255], [7, 8, 9]], np.uint8)
    picture = Image.fromarray(np.array([[0, 1, 2], [2, 1, 0]], np.uint8), "P")
    picture.putpalette(colours.tobytes())
    for name in ("x.png", "x.gif"):
        root = tmp_path / name
        one_of_each(root, name, picture)
        expected = colours[[[0, 1, 2], [2, 1, 0]]].transpose(2, 0, 1)
        assert np.array_equal(first(root, image_size=(2, 3)).numpy(), expected), name


def test_a_palette_of_greys_is_grey(tmp_path: Path) -> None:
    picture = Image.fromarray(np.array([[0, 1], [1, 0]], np.uint8), "P")
    picture.putpalette(bytes([5, 5, 5, 250, 250, 250]))
    one_of_each(tmp_path, "x.png", picture)
    assert first(tmp_path, image_size=2).tolist() == [[[5, 250], [250, 5]]]


def test_black_and_white_pictures_are_0_and_255(tmp_path: Path) -> None:
    one_of_each(tmp_path, "x.png", Image.fromarray(np.array([[0, 255], [255, 0]], np.uint8)).convert("1"))
    assert first(tmp_path, image_size=2).tolist() == [[[0, 255], [255, 0]]]


def test_cmyk_becomes_rgb(tmp_path: Path) -> None:
    one_of_each(tmp_path, "x.tif", Image.new("CMYK", (4, 4), (255, 0, 0, 0)))
    assert first(tmp_path, image_size=4)[:, 0, 0].tolist() == [0, 255, 255]


def test_16_bits_of_grey_keep_their_upper_8(tmp_path: Path) -> None:
    one_of_each(tmp_path, "x.png", np.array([[0, 255, 256], [0x8040, 0xFEFF, 0xFFFF]], np.uint16))
    assert first(tmp_path, image_size=(2, 3)).tolist() == [[[0, 0, 1], [128, 254, 255]]]


def test_transparency_is_laid_over_white(tmp_path: Path) -> None:
    pixels = np.array([[[10, 20, 30, 255], [10, 20, 30, 0], [0, 0, 0, 128]]], np.uint8)
    for name in ("x.png", "x.webp", "x.tif"):
        root = tmp_path / name
        one_of_each(root, name, pixels, **({"lossless": True, "exact": True} if name == "x.webp" else {}))
        found = first(root, image_size=(1, 3)).permute(1, 2, 0)[0].tolist()
        assert found[:2] == [[10, 20, 30], [255, 255, 255]], name
        assert found[2] == pytest.approx([127] * 3, abs=1), name


def test_transparent_grey_stays_grey(tmp_path: Path) -> None:
    pixels = np.array([[[10, 255], [10, 0]]], np.uint8)
    one_of_each(tmp_path, "x.png", Image.fromarray(pixels, "LA"))
    assert first(tmp_path, image_size=(1, 2)).tolist() == [[[10, 255]]]


def test_a_transparent_colour_of_a_palette_is_white(tmp_path: Path) -> None:
    picture = Image.fromarray(np.array([[0, 1]], np.uint8), "P")
    picture.putpalette(bytes([255, 0, 0, 0, 0, 255]))
    for name in ("x.png", "x.gif"):
        root = tmp_path / name
        one_of_each(root, name, picture, transparency=1)
        assert first(root, image_size=(1, 2)).permute(1, 2, 0)[0].tolist() == [[255, 0, 0], [255, 255, 255]], name


@pytest.mark.parametrize(("orientation", "turns"), [(1, 0), (3, 2), (6, -1), (8, 1)])
def test_pictures_are_turned_upright(tmp_path: Path, orientation: int, turns: int) -> None:
    stored = noise(4, 6)
    note = Image.Exif()
    note[0x0112] = orientation
    one_of_each(tmp_path, "x.png", Image.fromarray(stored), exif=note)
    upright = np.rot90(stored, turns)
    assert np.array_equal(first(tmp_path, image_size=upright.shape).numpy()[0], upright)


def test_a_camera_held_on_its_side_is_turned_upright(tmp_path: Path) -> None:
    stored = np.kron(np.array([[20, 120, 220]], np.uint8), np.ones((16, 16), np.uint8))  # dark left, bright right
    note = Image.Exif()
    note[0x0112] = 6
    one_of_each(tmp_path, "x.jpg", Image.fromarray(stored), exif=note, quality=95)
    image = first(tmp_path, image_size=(48, 16))[0]
    np.testing.assert_allclose(image[[8, 24, 40], 8].numpy(), [20, 120, 220], atol=4)  # dark top, bright bottom


def test_the_first_frame_of_a_moving_picture_counts(tmp_path: Path) -> None:
    frames = [Image.fromarray(flat(level)) for level in (30, 200)]
    one_of_each(tmp_path, "x.gif", frames[0], save_all=True, append_images=frames[1:])
    assert first(tmp_path, image_size=6).unique().tolist() == [30]


# sizes


def test_pictures_of_any_size_become_32_by_32(tmp_path: Path) -> None:
    for k, size in enumerate([(1, 1), (3, 100), (200, 17), (32, 32), (64, 1)]):
        save(tmp_path / "train/ant" / f"{k}.png", flat(50 + k, size))
        save(tmp_path / "train/bee" / f"{k}.png", flat(90 + k, size))
    numbered(tmp_path / "test", ant=1, bee=1)
    data = load_data("folder", root=tmp_path)
    assert data.images.shape == (10, 1, 32, 32)
    for k, level in enumerate([50, 51, 52, 53, 54, 90, 91, 92, 93, 94]):
        assert data.images[k].unique().tolist() == [level]


@pytest.mark.parametrize("given", [(6, 4), [6, 4]])
def test_a_size_that_is_no_square_is_height_and_width(tmp_path: Path, given: Any) -> None:
    pixels = np.zeros((60, 8), np.uint8)
    pixels[:30], pixels[30:] = 200, 50
    one_of_each(tmp_path, "x.png", pixels)
    image = first(tmp_path, image_size=given)
    assert image.shape == (1, 6, 4)
    assert load_data("folder", root=tmp_path, image_size=given).image_shape == (1, 6, 4)
    assert image[0, 0].tolist() == [200] * 4
    assert image[0, -1].tolist() == [50] * 4


def test_pictures_are_stretched_and_not_cut(tmp_path: Path) -> None:
    pixels = np.zeros((10, 80), np.uint8)
    pixels[:, :20] = 255
    one_of_each(tmp_path, "x.png", pixels)
    image = first(tmp_path, image_size=8)[0]
    assert image[:, 0].tolist() == [255] * 8
    assert image[:, -1].tolist() == [0] * 8
    assert image.float().mean() == pytest.approx(255 / 4, abs=2)


def test_shrinking_averages_over_all_pixels(tmp_path: Path) -> None:
    chequers = np.indices((64, 64)).sum(axis=0) % 2 * 255
    one_of_each(tmp_path, "x.png", chequers.astype(np.uint8))
    np.testing.assert_allclose(first(tmp_path, image_size=8).numpy(), 127.5, atol=3)


@pytest.mark.parametrize(
    ("given", "kind", "message"),
    [
        ({"image_size": 0}, ValueError, "image_size=0 is too small; expected an int of at least 1"),
        ({"image_size": (8, -1)}, ValueError, "image_size=-1 is too small; expected an int of at least 1"),
        ({"image_size": (8,)}, ValueError, "image_size=(8,) has 1 values; expected an int or (rows, columns)"),
        ({"image_size": "8"}, TypeError, "image_size='8' has type str; expected an int of at least 1"),
        ({"image_size": 8.0}, TypeError, "image_size=8.0 has type float; expected an int of at least 1"),
        ({"image_size": None}, TypeError, "image_size=None has type NoneType; expected an int of at least 1"),
        ({"grey": "yes"}, TypeError, "grey='yes' has type str; expected True or False"),
        ({"grey": 1}, TypeError, "grey=1 has type int; expected True or False"),
    ],
)
def test_a_mistaken_option_is_one_clear_line(
    tmp_path: Path, given: dict[str, Any], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind) as error:
        load_data("folder", root=tmp_path, **given)
    assert str(error.value) == message


# splits


def test_train_and_test_folders_are_the_splits(tmp_path: Path) -> None:
    numbered(tmp_path / "train", bee=5, ant=3)
    numbered(tmp_path / "test", bee=2, ant=4)
    train, test = (load_data("folder", root=tmp_path, split=split) for split in ("train", "test"))
    assert train.class_names == test.class_names == ("ant", "bee")
    assert (levels(train, "ant"), levels(train, "bee")) == ([0, 1, 2], [0, 1, 2, 3, 4])
    assert (levels(test, "ant"), levels(test, "bee")) == ([0, 1, 2, 3], [0, 1])


def test_a_class_that_is_not_tested_keeps_its_number(tmp_path: Path) -> None:
    numbered(tmp_path / "train", ant=2, bee=2, cat=2)
    numbered(tmp_path / "test", ant=1, cat=1)
    test = load_data("folder", root=tmp_path, split="test")
    assert test.class_names == ("ant", "bee", "cat")
    assert test.labels.tolist() == [0, 2]


@pytest.mark.parametrize(("count", "tested"), [(2, 1), (3, 1), (5, 1), (6, 2), (10, 2), (11, 3)])
def test_a_fifth_of_each_class_is_the_test_set(tmp_path: Path, count: int, tested: int) -> None:
    numbered(tmp_path, ant=count, bee=20)
    train, test = (load_data("folder", root=tmp_path, split=split) for split in ("train", "test"))
    assert len(levels(test, "ant")) == tested
    assert len(levels(test, "bee")) == 4
    for kind, total in (("ant", count), ("bee", 20)):
        assert not set(levels(train, kind)) & set(levels(test, kind))
        assert sorted(levels(train, kind) + levels(test, kind)) == list(range(total))


def test_the_test_set_is_chosen_by_names_and_stays_the_same(tmp_path: Path) -> None:
    numbered(tmp_path, ant=10, bee=10)
    before = load_data("folder", root=tmp_path, split="test")
    # the two names of each class whose SHA-256, with the class before it, is smallest.
    for kind in ("ant", "bee"):
        order = sorted(range(10), key=lambda k: hashlib.sha256(f"{kind}/{k}.png".encode()).hexdigest())
        assert levels(before, kind) == sorted(order[:2])
    numbered(tmp_path, aardvark=7, cat=9)
    for path in (tmp_path / "bee").iterdir():
        path.unlink()
    numbered(tmp_path, bee=5)
    after = load_data("folder", root=tmp_path, split="test")
    assert after.class_names == ("aardvark", "ant", "bee", "cat")
    assert levels(after, "ant") == levels(before, "ant")


def test_fit_and_val_partition_the_training_part(tmp_path: Path) -> None:
    numbered(tmp_path, ant=20, bee=20)
    train, fit, val = (load_data("folder", root=tmp_path, split=split) for split in ("train", "fit", "val"))
    assert (len(train), len(fit), len(val)) == (32, 24, 8)
    assert torch.equal(fit.images, train.images[members("fit", 32)])
    assert torch.equal(val.images, train.images[members("val", 32)])
    assert torch.equal(val.labels, train.labels[members("val", 32)])


@pytest.mark.timeout(20)
def test_any_number_of_pictures_can_be_split() -> None:
    for count in [*range(4, 100), 343, 353, 1057]:
        assert torch.equal(torch.cat([members("fit", count), members("val", count)]).sort().values, torch.arange(count)), count


def test_pictures_in_subfolders_belong_to_the_class_above(tmp_path: Path) -> None:
    numbered(tmp_path / "train", ant=2, bee=2)
    save(tmp_path / "train/ant/more/and more/9.png", flat(9))
    save(tmp_path / "train/ant/looks like.png/8.png", flat(8))
    numbered(tmp_path / "test", ant=1, bee=1)
    data = load_data("folder", root=tmp_path)
    assert data.class_names == ("ant", "bee")
    assert sorted(levels(data, "ant")) == [0, 1, 8, 9]


def test_hidden_and_other_files_are_left_alone(tmp_path: Path) -> None:
    numbered(tmp_path / "train", ant=2, bee=2)
    numbered(tmp_path / "test", ant=1, bee=1)
    plain = load_data("folder", root=tmp_path)
    (tmp_path / "notes.txt").write_text("about these pictures")
    (tmp_path / "train/labels.csv").write_text("a,b")
    (tmp_path / "train/ant/Thumbs.db").write_bytes(b"\0\1")
    (tmp_path / "train/ant/no suffix").write_bytes(b"\0\1")
    (tmp_path / "train/ant/._0.png").write_bytes(b"\0\1")
    (tmp_path / "train/ant/.hidden.png").write_bytes(b"\0\1")
    (tmp_path / "train/.cache").mkdir()
    data = load_data("folder", root=tmp_path)
    assert data.digest == plain.digest
    assert data.class_names == ("ant", "bee")


def test_hidden_folders_within_a_class_are_left_alone(tmp_path: Path) -> None:
    numbered(tmp_path / "train", ant=2, bee=2)
    numbered(tmp_path / "test", ant=1, bee=1)
    save(tmp_path / "train/ant/.ipynb_checkpoints/0-checkpoint.png", flat(0))
    assert levels(load_data("folder", root=tmp_path), "ant") == [0, 1]


def test_names_may_be_in_any_script(tmp_path: Path) -> None:
    root = tmp_path / "Bilder für [dim]später"
    numbered(root / "train", **{"Käfer": 2, "蜂": 3, "two words": 1})
    numbered(root / "test", **{"Käfer": 1, "蜂": 1, "two words": 1})
    save(root / "train/蜂/ß ñ 🐝.png", flat(77))
    data = load_data("folder", root=root)
    assert data.class_names == ("Käfer", "two words", "蜂")
    assert levels(data, "蜂") == [0, 1, 2, 77]


def test_links_to_class_folders_and_pictures_are_followed(tmp_path: Path) -> None:
    numbered(tmp_path / "elsewhere", ant=3)
    numbered(tmp_path / "set/train", bee=2)
    numbered(tmp_path / "set/test", bee=1)
    for part in ("train", "test"):
        (tmp_path / "set" / part / "ant").symlink_to(tmp_path / "elsewhere/ant")
    (tmp_path / "set/train/bee/link.png").symlink_to(tmp_path / "elsewhere/ant/2.png")
    data = load_data("folder", root=tmp_path / "set")
    assert (levels(data, "ant"), levels(data, "bee")) == ([0, 1, 2], [0, 1, 2])


def test_the_root_may_be_relative_and_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    numbered(tmp_path / "pictures", ant=5, bee=5)
    monkeypatch.chdir(tmp_path)
    data = load_data("folder", root="pictures")
    assert len(data) == 8
    assert load_data("folder", root=tmp_path / "pictures").digest == data.digest


# digests


def test_the_digest_is_of_the_pictures_of_the_split_and_their_classes(tmp_path: Path) -> None:
    numbered(tmp_path / "train", ant=4, bee=4)
    numbered(tmp_path / "test", ant=2, bee=2)

    def found() -> list[str]:
        return [load_data("folder", root=tmp_path, split=split).digest for split in SPLITS]

    before = found()
    assert len(set(before)) == 4
    pixels = flat(3)
    pixels[0, 0] = 200
    save(tmp_path / "train/ant/3.png", pixels)
    changed = found()
    assert [a == b for a, b in zip(before, changed, strict=True)] == [False, False, False, True]
    save(tmp_path / "train/ant/3.png", flat(3))
    assert found() == before
    # the same pictures in the same order, one of them in another class.
    (tmp_path / "train/ant/3.png").rename(tmp_path / "train/bee/!.png")
    assert found()[0] != before[0]
    (tmp_path / "train/bee/!.png").rename(tmp_path / "train/ant/3.png")
    for part in ("train", "test"):
        (tmp_path / part / "ant").rename(tmp_path / part / "ape")
    assert not set(found()) & set(before)


def test_the_digest_depends_on_size_and_channels(tmp_path: Path) -> None:
    numbered(tmp_path, ant=5, bee=5)
    given: list[dict[str, Any]] = [{}, {"image_size": 16}, {"image_size": (16, 32)}, {"image_size": (32, 16)}, {"grey": False}]
    assert len({load_data("folder", root=tmp_path, **options).digest for options in given}) == len(given)


# what is wrong with a folder


def refused(root: Path | None, *, split: str = "train", kind: type[Exception] = DataError) -> str:
    """Return the message; the disk stays as it was."""
    before = snapshot(root) if root is not None and root.is_dir() else None
    with pytest.raises(ValueError) as error:  # noqa: PT011
        load_data("folder", root=root, split=split)
    assert type(error.value) is kind
    assert before is None or snapshot(root) == before
    text = str(error.value)
    assert "\n" not in text
    return text


def test_no_root_is_a_mistake() -> None:
    assert refused(None, kind=ValueError) == "root=None names no images; expected the folder that holds one folder per class"


def test_a_root_that_is_not_there_is_named(tmp_path: Path) -> None:
    missing = tmp_path / "nowhere"
    assert refused(missing) == f"root={str(missing)!r} is no folder; expected one that holds one folder per class"
    assert not missing.exists()


def test_a_root_that_is_a_file_is_named(tmp_path: Path) -> None:
    path = save(tmp_path / "x.png", flat(0))
    assert refused(path, kind=ValueError).startswith(f"root={str(path)!r} is a file; expected ")


def test_an_empty_folder_is_named(tmp_path: Path) -> None:
    assert refused(tmp_path) == f"{tmp_path} has no folders; expected at least two, one per class"


def test_pictures_without_class_folders_are_not_enough(tmp_path: Path) -> None:
    save(tmp_path / "0.png", flat(0))
    (tmp_path / ".hidden").mkdir()
    assert refused(tmp_path) == f"{tmp_path} has no folders; expected at least two, one per class"


def test_one_class_is_not_enough(tmp_path: Path) -> None:
    numbered(tmp_path, ant=5)
    assert refused(tmp_path) == f"{tmp_path} has the folder ant; expected at least two, one per class"
    numbered(tmp_path / "both/train", ant=5)
    numbered(tmp_path / "both/test", ant=5)
    assert refused(tmp_path / "both").startswith(f"{tmp_path / 'both/train'} has the folder ant; expected at least two")


def test_a_class_without_images_is_named(tmp_path: Path) -> None:
    numbered(tmp_path, ant=5, bee=5)
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat/notes.txt").write_text("none yet")
    for split in SPLITS:
        assert refused(tmp_path, split=split).startswith(f"{tmp_path / 'cat'} has no images; expected files that end in .png, ")


def test_a_class_with_one_image_is_named(tmp_path: Path) -> None:
    numbered(tmp_path, ant=5, bee=1)
    expected = f"{tmp_path / 'bee'} has 1 image; expected at least 2, one to learn from and one to test on"
    for split in SPLITS:
        assert refused(tmp_path, split=split) == expected


def test_a_tested_class_that_was_not_trained_is_named(tmp_path: Path) -> None:
    numbered(tmp_path / "train", ant=2, bee=2)
    numbered(tmp_path / "test", ant=2, bee=2, dog=2, cat=2)
    for split in SPLITS:
        text = refused(tmp_path, split=split)
        assert (
            text
            == f"{tmp_path / 'test'} has the classes cat, dog, which {tmp_path / 'train'} has not; expected the same folders"
        )


def encoded(kind: str) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(noise(40, 40, 3)).save(buffer, kind)
    return buffer.getvalue()


BROKEN = {
    "half.png": encoded("PNG")[:1500],
    "header only.png": encoded("PNG")[:40],
    "text.png": b"this is no picture\n",
    "empty.png": b"",
    "half.jpg": encoded("JPEG")[:900],
    "page.jpg": b"<html>404</html>",
    "half.bmp": encoded("BMP")[:700],
    "half.gif": encoded("GIF")[:900],
    "half.webp": encoded("WEBP")[:300],
    "half.tif": encoded("TIFF")[:600],
    "half.ppm": encoded("PPM")[:600],
    "flipped.png": encoded("PNG")[:600] + bytes([encoded("PNG")[600] ^ 255]) + encoded("PNG")[601:],
}


@pytest.mark.parametrize("name", sorted(BROKEN))
def test_a_broken_picture_is_named(tmp_path: Path, name: str) -> None:
    numbered(tmp_path / "train", ant=2, bee=2)
    numbered(tmp_path / "test", ant=1, bee=1)
    path = tmp_path / "train/bee" / name
    path.write_bytes(BROKEN[name])
    text = refused(tmp_path)
    assert text.startswith(f"{path} is no image that can be read (")
    assert text.endswith("); remove or replace it")
    # said once.
    assert text.count(name) == 1
    # the other split can still be read.
    assert len(load_data("folder", root=tmp_path, split="test")) == 2


@pytest.mark.parametrize("tag", [0x0100, 0x011A, 0x0154])
def test_a_picture_with_a_senseless_note_is_read_all_the_same(tmp_path: Path, tag: int) -> None:
    # a camera's text where width, resolution or a sample's value should be; what matters is beside it.
    buffer = io.BytesIO()
    note = Image.Exif()
    note[0x0112], note[0x010E] = 6, "hello"
    Image.fromarray(flat(90, (16, 8))).save(buffer, "JPEG", exif=note)
    path = one_of_each(tmp_path, "x.jpg", flat(0))
    path.write_bytes(buffer.getvalue().replace(b"\x01\x0e\x00\x02", tag.to_bytes(2, "big") + b"\x00\x02"))
    np.testing.assert_allclose(first(tmp_path, image_size=(8, 16)).numpy(), 90, atol=2)


def test_a_link_that_leads_nowhere_is_named(tmp_path: Path) -> None:
    numbered(tmp_path / "train", ant=2, bee=2)
    numbered(tmp_path / "test", ant=1, bee=1)
    (tmp_path / "train/ant/gone.png").symlink_to(tmp_path / "gone.png")
    with pytest.raises(DataError, match=re.escape(f"{tmp_path / 'train/ant/gone.png'} is no image that can be read (")):
        load_data("folder", root=tmp_path)


def test_a_picture_that_may_not_be_read_is_named(tmp_path: Path) -> None:
    numbered(tmp_path / "train", ant=2, bee=2)
    numbered(tmp_path / "test", ant=1, bee=1)
    path = tmp_path / "train/ant/1.png"
    path.chmod(0)
    if os.access(path, os.R_OK):
        pytest.skip("this user may read everything")
    with pytest.raises(DataError, match=re.escape(f"{path} is no image that can be read (")):
        load_data("folder", root=tmp_path)


def test_nothing_on_disk_changes_and_nothing_is_printed(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    numbered(tmp_path, ant=6, bee=6)
    before = snapshot(tmp_path)
    for split in SPLITS:
        load_data("folder", root=tmp_path, split=split).batch([0])
    assert snapshot(tmp_path) == before
    assert not Path(os.environ["XDG_CACHE_HOME"], "capsella").exists()
    assert capfd.readouterr() == ("", "")


def test_a_folder_that_may_not_be_written_to_is_enough(tmp_path: Path) -> None:
    numbered(tmp_path, ant=6, bee=6)
    folders = [tmp_path, tmp_path / "ant", tmp_path / "bee"]
    for folder in folders:
        folder.chmod(0o555)
    try:
        assert len(load_data("folder", root=tmp_path)) == 8
    finally:
        for folder in folders:
            folder.chmod(0o755)


@pytest.mark.parametrize("call", ["iterdir", "is_dir"])
def test_what_the_system_refuses_to_show_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    numbered(tmp_path / "train", ant=2, bee=2)
    numbered(tmp_path / "test", ant=2, bee=2)
    real = getattr(Path, call)

    def refuse(path: Path) -> object:
        if path == tmp_path / "train":
            raise PermissionError(13, "Permission denied", str(path))
        return real(path)

    monkeypatch.setattr(Path, call, refuse)
    with pytest.raises(DataError) as caught:
        load_data("folder", root=tmp_path)
    assert str(caught.value) == f"{tmp_path / 'train'} cannot be read: Permission denied; check the permissions"
