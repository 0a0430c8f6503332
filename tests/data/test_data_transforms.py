"""Changes of images against plain loops, NumPy's formulas and SciPy's interpolation."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import ndimage
from torch import Tensor

from capsella.data.augment import Affine, Normalisation, Place, SabourCifar, Shift
from capsella.data.draws import Draws
from capsella.data.transforms import (
    affine_matrix,
    brightness,
    centre,
    contrast,
    flip,
    ink_box,
    standardise,
    to_bytes,
    unit,
    warp,
    window,
)

DTYPES = [
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.bool,
]
SIZES = st.tuples(st.integers(1, 7), st.integers(1, 7))
OFFSETS = st.one_of(st.integers(-9, 9), st.sampled_from([-1_000, 1_000]))


def images_of(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    """Return grey levels from 1 to 255, so that no pixel looks like what comes in from outside."""
    return torch.randint(1, 256, shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def window_by_hand(images: Tensor, top: list[int], left: list[int], size: tuple[int, int]) -> Tensor:
    B, C, H, W = images.shape
    found = torch.zeros(B, C, *size, dtype=images.dtype)
    for b in range(B):
        for y in range(size[0]):
            for x in range(size[1]):
                row, column = top[b] + y, left[b] + x
                if 0 <= row < H and 0 <= column < W:
                    found[b, :, y, x] = images[b, :, row, column]
    return found


def matrices(*rows: list[list[float]]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


# window and centre


@given(shape=SIZES, size=SIZES, offsets=st.lists(st.tuples(OFFSETS, OFFSETS), min_size=1, max_size=3))
def test_a_window_is_what_a_loop_over_pixels_cuts(
    shape: tuple[int, int], size: tuple[int, int], offsets: list[tuple[int, int]]
) -> None:
    images = images_of(len(offsets), 2, *shape)
    top, left = (list(values) for values in zip(*offsets, strict=True))
    found = window(images, torch.tensor(top), torch.tensor(left), size)
    assert torch.equal(found, window_by_hand(images, top, left, size))


@pytest.mark.parametrize("size", [(5, 7), (3, 2), (9, 10), (4, 11)], ids=["shift", "crop", "place", "both"])
def test_all_offsets_at_once(size: tuple[int, int]) -> None:
    pairs = [(top, left) for top in range(-10, 7) for left in range(-12, 9)]
    top, left = (list(values) for values in zip(*pairs, strict=True))
    images = images_of(len(pairs), 1, 5, 7)
    assert torch.equal(window(images, torch.tensor(top), torch.tensor(left), size), window_by_hand(images, top, left, size))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_window_keeps_every_dtype(dtype: torch.dtype) -> None:
    images = images_of(3, 2, 4, 6).to(dtype)
    top, left = [-1, 2, 40], [1, -3, 0]
    found = window(images, torch.tensor(top), torch.tensor(left), (5, 4))
    assert found.dtype == dtype
    assert torch.equal(found, window_by_hand(images, top, left, (5, 4)))
    assert not found[2].any()


@pytest.mark.parametrize(("top", "left"), [(5, 0), (-3, 0), (0, 7), (0, -4), (5, 7), (-3, -4), (99, -99)])
def test_a_window_outside_is_empty_and_one_pixel_nearer_is_not(top: int, left: int) -> None:
    image = images_of(1, 1, 5, 7)
    assert not window(image, torch.tensor([top]), torch.tensor([left]), (3, 4)).any()
    nearer = window(image, torch.tensor([min(max(top, -2), 4)]), torch.tensor([min(max(left, -3), 6)]), (3, 4))
    assert nearer.any()


def test_a_window_leaves_the_image_as_it_was() -> None:
    image = images_of(2, 1, 4, 4)
    before = image.clone()
    found = window(image, torch.zeros(2).long(), torch.zeros(2).long(), (4, 4))
    assert torch.equal(found, image)
    found.zero_()
    assert torch.equal(image, before)


@pytest.mark.parametrize("shape", [(1, 1), (4, 5), (5, 4), (6, 6)])
def test_the_centre_is_the_window_with_the_middle_offset(shape: tuple[int, int]) -> None:
    image = images_of(1, 2, *shape)
    for height in range(1, 10):
        for width in range(1, 10):
            # an odd pixel goes below and right, whether it is added or cut off.
            top = (shape[0] - height) // 2 if height <= shape[0] else -((height - shape[0]) // 2)
            left = (shape[1] - width) // 2 if width <= shape[1] else -((width - shape[1]) // 2)
            expected = window(image, torch.tensor([top]), torch.tensor([left]), (height, width))
            assert torch.equal(centre(image, (height, width)), expected), (height, width)


def test_the_centre_by_hand() -> None:
    row = torch.tensor([[[[1, 2, 3, 4]]]], dtype=torch.uint8)
    assert centre(row, (1, 1)).tolist() == [[[[2]]]]
    assert centre(row, (1, 2)).tolist() == [[[[2, 3]]]]
    assert centre(row, (2, 7)).tolist() == [[[[0, 1, 2, 3, 4, 0, 0], [0] * 7]]]


# ink


def test_the_ink_box_by_hand() -> None:
    images = torch.zeros(3, 1, 5, 8, dtype=torch.uint8)
    images[0, 0, 1, 3] = 1
    images[1, 0, 0, 7] = images[1, 0, 4, 2] = 255
    images[2, 0, 3, 0:8] = 9
    assert [part.tolist() for part in ink_box(images)] == [[1, 0, 3], [1, 4, 3], [3, 2, 0], [3, 7, 7]]


def test_the_ink_of_all_channels_counts() -> None:
    images = torch.zeros(1, 3, 6, 6)
    images[0, 0, 2, 4], images[0, 1, 1, 3], images[0, 2, 5, 1] = 1e-30, -1, 2
    assert [part.tolist() for part in ink_box(images)] == [[1], [5], [1], [4]]


def test_the_box_of_an_empty_image_is_the_whole_image() -> None:
    assert [part.tolist() for part in ink_box(torch.zeros(2, 1, 5, 8))] == [[0, 0], [4, 4], [0, 0], [7, 7]]


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.bool], ids=str)
def test_the_ink_box_is_where_numpy_finds_ink(dtype: torch.dtype) -> None:
    random = np.random.default_rng(3)
    images = torch.from_numpy(random.random((200, 2, 9, 6)) < 0.02).to(dtype)
    box = ink_box(images)
    for b, image in enumerate(images.numpy()):
        places = np.argwhere(image.any(axis=0))
        low, high = (places.min(0), places.max(0)) if len(places) else ((0, 0), (8, 5))
        assert (int(box.top[b]), int(box.left[b])) == tuple(low)
        assert (int(box.bottom[b]), int(box.right[b])) == tuple(high)


# maps


@pytest.mark.parametrize(
    ("rotation", "shear", "scale_x", "scale_y", "expected"),
    [
        (0, 0, 1, 1, [[1, 0], [0, 1]]),
        (90, 0, 1, 1, [[0, -1], [1, 0]]),
        (180, 0, 2, 3, [[-2, 0], [0, -3]]),
        (0, 0.5, 1, 1, [[1, 0.5], [0, 1]]),
        (0, 0, 2, 3, [[2, 0], [0, 3]]),
        # the scale comes first: the shear takes the scaled y along.
        (0, 0.5, 2, 3, [[2, 1.5], [0, 3]]),
        # the rotation comes last: it turns what was sheared.
        (90, 0.5, 1, 1, [[0, -1], [1, 0.5]]),
        (90, 0.5, 2, 3, [[0, -3], [2, 1.5]]),
        (-90, 0.5, 2, 3, [[0, 3], [-2, -1.5]]),
        (45, 0, math.sqrt(2), math.sqrt(2), [[1, -1], [1, 1]]),
        (30, 0, 2, 2, [[math.sqrt(3), -1], [1, math.sqrt(3)]]),
    ],
)
def test_the_matrix_by_hand(rotation: float, shear: float, scale_x: float, scale_y: float, expected: list[list[float]]) -> None:
    matrix = affine_matrix(*(torch.tensor([value], dtype=torch.float64) for value in (rotation, shear, scale_x, scale_y)))
    torch.testing.assert_close(matrix, matrices(expected), rtol=0, atol=1e-15)


def test_the_matrix_is_the_product_of_its_factors() -> None:
    random = np.random.default_rng(0)
    values = random.uniform(-2, 2, (4, 50)) * [[90], [1], [1], [1]]
    found = affine_matrix(*torch.from_numpy(values))
    for k, (angle, shear, scale_x, scale_y) in enumerate(values.T):
        turn = math.radians(angle)
        rotation = np.array([[math.cos(turn), -math.sin(turn)], [math.sin(turn), math.cos(turn)]])
        expected = rotation @ np.array([[1, shear], [0, 1]]) @ np.diag([scale_x, scale_y])
        np.testing.assert_allclose(found[k], expected, rtol=0, atol=1e-14)


def coordinates_by_hand(
    matrix: np.ndarray, source: np.ndarray, target: np.ndarray, size: tuple[int, int]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return SciPy's matrix and offset for (row, column), and where each pixel of the result comes from, [2, H', W']."""
    swap = np.array([[0, 1], [1, 0]])
    inverse = swap @ np.linalg.inv(matrix) @ swap
    offset = source[::-1] - inverse @ target[::-1]
    places = np.einsum("ij,jhw->ihw", inverse, np.indices(size).astype(float)) + offset[:, None, None]
    return inverse, offset, places


def warp_by_scipy(
    image: np.ndarray,
    matrix: np.ndarray,
    *,
    size: tuple[int, int],
    source: np.ndarray | None = None,
    target: np.ndarray | None = None,
    order: int = 1,
) -> tuple[np.ndarray, np.ndarray]:
    """Map one channel; also say which pixels lie away from a tie between two neighbours."""
    H, W = image.shape
    source = np.array([(W - 1) / 2, (H - 1) / 2]) if source is None else source
    target = np.array([(size[1] - 1) / 2, (size[0] - 1) / 2]) if target is None else target
    inverse, offset, places = coordinates_by_hand(matrix, source, target, size)
    mapped = ndimage.affine_transform(image, inverse, offset, output_shape=size, order=order, mode="grid-constant")
    return mapped, (abs(places - np.floor(places) - 0.5) > 1e-6).all(axis=0)


SHAPES = [((28, 28), (40, 40)), ((9, 14), (12, 7)), ((8, 8), (8, 8)), ((1, 6), (5, 3)), ((40, 40), (28, 31))]


@pytest.mark.parametrize(("shape", "size"), SHAPES)
@pytest.mark.parametrize("points", ["none", "source", "target", "both"])
def test_a_map_is_what_scipy_makes_of_it(shape: tuple[int, int], size: tuple[int, int], points: str) -> None:
    random = np.random.default_rng(1)
    B = 12
    images = images_of(B, 2, *shape)
    parameters = random.uniform([-180, -1.2, 0.5, 0.5], [180, 1.2, 2, 2], (B, 4))
    parameters[::5, 2] *= -1
    matrix = affine_matrix(*torch.from_numpy(parameters.T))
    source = torch.from_numpy(random.uniform(-2, 12, (B, 2))) if points in ("source", "both") else None
    target = torch.from_numpy(random.uniform(-2, 12, (B, 2))) if points in ("target", "both") else None
    smooth = warp(images, matrix, size=size, source=source, target=target)
    nearest = warp(images, matrix, size=size, source=source, target=target, mode="nearest")
    assert smooth.shape == nearest.shape == (B, 2, *size)
    for b in range(B):
        given = {
            "size": size,
            "source": None if source is None else source[b].numpy(),
            "target": None if target is None else target[b].numpy(),
        }
        for c in range(2):
            expected, _ = warp_by_scipy(images[b, c].numpy(), matrix[b].numpy(), **given)
            np.testing.assert_allclose(smooth[b, c], expected, rtol=0, atol=1e-9)
            expected, clear = warp_by_scipy(images[b, c].numpy(), matrix[b].numpy(), order=0, **given)
            assert (~clear).sum() <= 1
            np.testing.assert_array_equal(nearest[b, c].numpy()[clear], expected[clear])


@pytest.mark.parametrize("shape", [(28, 28), (40, 40), (5, 11), (32, 24), (1, 1)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_the_identity_changes_nothing(shape: tuple[int, int], dtype: torch.dtype) -> None:
    images = images_of(3, 2, *shape, dtype=dtype)
    identity = torch.eye(2, dtype=torch.float64).expand(3, 2, 2)
    assert torch.equal(warp(images, identity, size=shape, mode="nearest"), images)
    smooth = warp(images, identity, size=shape)
    assert smooth.dtype == dtype
    torch.testing.assert_close(smooth, images, rtol=0, atol=2e-3 if dtype == torch.float32 else 1e-11)
    assert torch.equal(to_bytes(smooth), images.to(torch.uint8))


def test_the_identity_is_exact_where_sides_are_powers_of_two() -> None:
    images = images_of(2, 1, 32, 16, dtype=torch.float32)
    assert torch.equal(warp(images, torch.eye(2).expand(2, 2, 2), size=(32, 16)), images)


@pytest.mark.parametrize("mode", ["nearest", "bilinear"])
@pytest.mark.parametrize(("right", "down"), [(3, 0), (0, 3), (-2, 5), (7, -1), (0, 0), (50, 0)])
def test_a_whole_translation_is_a_window(right: int, down: int, mode: str) -> None:
    images = images_of(2, 1, 9, 14)
    identity = torch.eye(2, dtype=torch.float64).expand(2, 2, 2)
    source = torch.tensor([[2.0, 3.0], [0.5, -1.5]], dtype=torch.float64)
    moved = warp(images, identity, size=(11, 12), source=source, target=source + torch.tensor([right, down]), mode=mode)
    expected = window(images, torch.tensor([-down] * 2), torch.tensor([-right] * 2), (11, 12))
    torch.testing.assert_close(moved, expected, rtol=0, atol=1e-11)


@pytest.mark.parametrize("mode", ["nearest", "bilinear"])
@pytest.mark.parametrize("shape", [(6, 6), (5, 5), (4, 7)])
@pytest.mark.parametrize("quarters", [1, 2, 3])
def test_a_quarter_turn_is_exact_and_clockwise(quarters: int, shape: tuple[int, int], mode: str) -> None:
    images = images_of(2, 3, *shape)
    expected = torch.rot90(images, -quarters, (2, 3))
    angle = torch.full((2,), 90.0 * quarters, dtype=torch.float64)
    none, one = torch.zeros_like(angle), torch.ones_like(angle)
    turned = warp(images, affine_matrix(angle, none, one, one), size=tuple(expected.shape[2:]), mode=mode)
    torch.testing.assert_close(turned, expected, rtol=0, atol=0 if mode == "nearest" else 1e-10)


def test_a_shear_moves_lower_rows_to_the_right() -> None:
    image = torch.zeros(1, 1, 5, 9, dtype=torch.float64)
    image[..., 4] = 1
    one, none = torch.ones(1, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
    sheared = warp(image, affine_matrix(none, one, one, one), size=(5, 9), mode="nearest")
    assert sheared[0, 0].argmax(dim=1).tolist() == [2, 3, 4, 5, 6]


def test_scales_belong_to_their_axes() -> None:
    image = torch.zeros(1, 1, 12, 12)
    image[..., 5:7, 5:7] = 1
    none, two, three = torch.zeros(1), torch.tensor([2.0]), torch.tensor([3.0])
    box = ink_box(warp(image, affine_matrix(none, none, three, two), size=(12, 12), mode="nearest"))
    assert [int(part) for part in box] == [4, 7, 3, 8]


def test_each_image_has_its_own_map() -> None:
    images = images_of(4, 1, 7, 9)
    matrix = affine_matrix(
        torch.tensor([0.0, 10, 20, 30]), torch.tensor([0.0, 0.1, 0.2, 0.3]), torch.ones(4), 1 + torch.arange(4) / 10
    ).double()
    together = warp(images, matrix, size=(8, 8))
    for b in range(4):
        assert torch.equal(together[b], warp(images[b : b + 1], matrix[b : b + 1], size=(8, 8))[0])


@pytest.mark.parametrize("mode", ["cubic", "bicubic", "Nearest", None])
def test_another_mode_is_refused(mode: str) -> None:
    with pytest.raises(ValueError, match=r"mode=.* is unknown.*'bilinear', 'nearest'"):
        warp(images_of(1, 1, 3, 3), torch.eye(2)[None], size=(3, 3), mode=mode)


# values


def test_grey_levels_are_rounded_and_cut_off() -> None:
    values = torch.tensor([-3.0, -0.4, 0.49, 0.51, 0.5, 1.5, 2.5, 254.4, 254.6, 255.4, 300.0, 1e9], dtype=torch.float64)
    assert to_bytes(values).tolist() == [0, 0, 0, 1, 0, 2, 2, 254, 255, 255, 255, 255]
    assert to_bytes(values).dtype == torch.uint8
    levels = torch.arange(256, dtype=torch.float32)
    assert torch.equal(to_bytes(levels), torch.arange(256, dtype=torch.uint8))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.float64], ids=str)
def test_grey_levels_are_divided_exactly(dtype: torch.dtype) -> None:
    levels = np.arange(256, dtype=np.float32)
    found = unit(torch.from_numpy(levels).to(dtype))
    assert found.dtype == torch.float32
    np.testing.assert_array_equal(found, levels / np.float32(255))
    assert torch.equal(to_bytes(found * 255), torch.arange(256, dtype=torch.uint8))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32], ids=str)
def test_only_chosen_images_are_mirrored_left_to_right(dtype: torch.dtype) -> None:
    images = images_of(4, 2, 3, 5, dtype=dtype)
    found = flip(images, torch.tensor([True, False, False, True]))
    assert found.dtype == dtype
    for b, chosen in enumerate([True, False, False, True]):
        np.testing.assert_array_equal(found[b].numpy(), images[b].numpy()[:, :, ::-1] if chosen else images[b].numpy())


def test_brightness_adds_and_clips_nothing() -> None:
    images = images_of(3, 2, 4, 5, dtype=torch.float32)
    delta = torch.tensor([-63.0, 0.25, 200.0], dtype=torch.float64)
    found = brightness(images, delta)
    assert found.dtype == torch.float32
    np.testing.assert_allclose(found, images.numpy() + delta.numpy()[:, None, None, None], rtol=1e-6)
    assert float(found.min()) < 0
    assert float(found.max()) > 255


def test_contrast_stretches_each_channel_about_its_own_mean() -> None:
    images = images_of(3, 2, 4, 5)
    images[:, 1] += 100
    factor = torch.tensor([0.2, 1.0, 1.8], dtype=torch.float64)
    mean = images.numpy().mean(axis=(2, 3), keepdims=True)
    expected = (images.numpy() - mean) * factor.numpy()[:, None, None, None] + mean
    np.testing.assert_allclose(contrast(images, factor), expected, rtol=1e-12)
    assert float(contrast(images, factor)[2].min()) < 0
    assert contrast(images.float(), factor).dtype == torch.float32


def test_standardisation_by_hand() -> None:
    # mean 1 and population variance 3.
    image = torch.tensor([[[[0.0, 0.0], [0.0, 4.0]]]], dtype=torch.float64)
    root = math.sqrt(3)
    np.testing.assert_allclose(standardise(image)[0, 0], [[-1 / root, -1 / root], [-1 / root, 3 / root]], rtol=1e-14)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("scale", [255.0, 1.0, 0.05, 1e-3, 0.0])
def test_standardisation_is_tensorflows(scale: float, dtype: torch.dtype) -> None:
    images = 7 + scale * torch.rand(5, 3, 6, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    values = images.numpy()
    mean, deviation = (f(values, axis=(1, 2, 3), keepdims=True) for f in (np.mean, np.std))
    # one mean and deviation for all channels, and the deviation at least one over the root of the number of values.
    expected = (values - mean) / np.maximum(deviation, 1 / math.sqrt(3 * 6 * 4))
    found = standardise(images.to(dtype))
    assert found.dtype == dtype
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-11 if dtype == torch.float64 else 5e-5)


def test_standardising_nothing_gives_nothing() -> None:
    assert standardise(torch.zeros(0, 1, 3, 3)).shape == (0, 1, 3, 3)


@pytest.mark.parametrize(
    ("kind", "whole", "formula"),
    [
        ("none", None, lambda v: v),
        ("unit", None, lambda v: v / 255),
        ("standardise", None, lambda v: (v - v.mean((1, 2, 3), keepdims=True)) / v.std((1, 2, 3), keepdims=True)),
        ("peer2022", None, lambda v: (v - v.mean((1, 2, 3), keepdims=True)) / v.std((1, 2, 3), keepdims=True)),
        ("peer2022", (0.25, 0.5), lambda v: (v / 255 - 0.25) / 0.5),
    ],
)
def test_normalisations_by_formula(kind: str, whole: tuple[float, float] | None, formula: object) -> None:
    images = images_of(4, 1, 6, 5, dtype=torch.uint8)
    found = Normalisation(kind, whole)(images)
    assert found.dtype == torch.float32
    np.testing.assert_allclose(found, formula(images.numpy().astype(float)), rtol=0, atol=2e-5 if kind != "unit" else 1e-7)


def test_the_floor_acts_on_the_scale_that_is_standardised() -> None:
    faint = torch.zeros(1, 1, 28, 28, dtype=torch.uint8)
    faint[0, 0, 0, 0] = 1
    # its deviation is a little below the floor of 1/28, and far below it on the scale 0 to 1.
    assert float(Normalisation("standardise")(faint).max()) == pytest.approx(28 * 783 / 784, rel=1e-5)
    assert float(Normalisation("peer2022")(faint).max()) == pytest.approx(28 * 783 / 784 / 255, rel=1e-5)


# without random numbers nothing moves


@pytest.mark.parametrize(
    ("step", "side", "expected"),
    [
        (Shift(2), 28, 28),
        (Place(40), 28, 40),
        (Affine(rotation=20, shear=0.2, scale=(0.8, 1.2)), 28, 28),
        (Affine(rotation=20, shear=0.2, scale=(0.8, 1.2), canvas=40, position="fit", about="ink"), 28, 40),
        (Affine(rotation=20, shear=0.2, scale=(0.8, 1.2), canvas=40, position="shift", shift=8), 28, 40),
        (SabourCifar(24), 32, 24),
    ],
)
def test_in_evaluation_images_are_only_centred(step: object, side: int, expected: int) -> None:
    images = images_of(3, 2, side, side, dtype=torch.uint8)
    assert step.size((side, side)) == (expected, expected)
    found = step(images, None)
    edge = abs(side - expected) // 2
    if expected >= side:
        assert torch.equal(found[:, :, edge : edge + side, edge : edge + side], images)
        assert found.sum() == images.sum()
    else:
        assert torch.equal(found, images[:, :, edge : edge + expected, edge : edge + expected])
    assert step(images, Draws(torch.arange(3), seed=0)).shape == found.shape
