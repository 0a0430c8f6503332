"""Correlation of capsules over changed views, against numpy and all pairings; the views, against a sampler of loops."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from analysis_nets import draw, uneven
from torch import Tensor

from capsella.analysis import VIEWS, ViewpointCorrelation, chance_correlation, seen_from, viewpoint_correlation

Array = npt.NDArray[np.float64]


def lengths(*size: int, seed: int = 1) -> Tensor:
    return draw(*size, seed=seed).abs()


def cosines(a: Array, b: Array) -> list[float]:
    return [float(a[:, m] @ b[:, m] / (np.linalg.norm(a[:, m]) * np.linalg.norm(b[:, m]))) for m in range(a.shape[1])]


def test_three_images_by_hand() -> None:
    # (3·4 + 4·3) / (5·5), and of vectors at right angles 0.
    a = torch.tensor([[3.0, 1.0], [4.0, 0.0], [0.0, 0.0]])
    b = torch.tensor([[4.0, 0.0], [3.0, 2.0], [0.0, 0.0]])
    assert viewpoint_correlation(a, b).tolist() == pytest.approx([24 / 25, 0])
    # at chance: the product of the sums, over three images, in the same unit.
    assert chance_correlation(a, b).tolist() == pytest.approx([49 / 75, 1 / 3])


def test_correlations_agree_with_numpy() -> None:
    a, b = lengths(11, 5), lengths(11, 5, seed=2)
    assert viewpoint_correlation(a, b).tolist() == pytest.approx(cosines(a.numpy(), b.numpy()), rel=1e-12)


@pytest.mark.parametrize("images", [1, 2, 5])
def test_chance_is_the_mean_over_all_pairings(images: int) -> None:
    a, b = lengths(images, 3), lengths(images, 3, seed=2)
    pairings = [cosines(a.numpy(), b[list(order)].numpy()) for order in itertools.permutations(range(images))]
    assert chance_correlation(a, b).tolist() == pytest.approx(np.mean(pairings, axis=0).tolist(), rel=1e-12)


def test_an_unchanged_view_correlates_fully() -> None:
    a = lengths(11, 5)
    assert viewpoint_correlation(a, a).tolist() == pytest.approx([1] * 5, rel=1e-14)
    assert (chance_correlation(a, a) < 0.99).all()


def test_lengths_that_fade_alike_correlate_fully() -> None:
    a = lengths(11, 5)
    assert viewpoint_correlation(a, a / 100).tolist() == pytest.approx([1] * 5, rel=1e-14)


def test_a_capsule_of_constant_length_correlates_fully_but_no_more_than_by_chance() -> None:
    a, b = torch.full((6, 1), 0.3), torch.full((6, 1), 0.7)
    assert viewpoint_correlation(a, b).item() == pytest.approx(1, rel=1e-14)
    assert chance_correlation(a, b).item() == pytest.approx(1, rel=1e-14)


@pytest.mark.parametrize("metric", [viewpoint_correlation, chance_correlation])
def test_a_capsule_that_is_always_zero_has_no_correlation(metric: Any) -> None:
    a, b = lengths(6, 3), lengths(6, 3, seed=2)
    a[:, 0] = b[:, 1] = 0
    assert metric(a, b).isnan().tolist() == [True, True, False]


def test_one_image_correlates_fully() -> None:
    a, b = lengths(1, 3), lengths(1, 3, seed=2)
    assert viewpoint_correlation(a, b).tolist() == pytest.approx([1] * 3, rel=1e-14)
    assert chance_correlation(a, b).tolist() == pytest.approx([1] * 3, rel=1e-14)


@pytest.mark.parametrize("offset", [0.0, 1e4])
def test_streamed_correlations_are_those_of_all_images_at_once(offset: float) -> None:
    a, b = offset + lengths(11, 5), offset + lengths(11, 5, seed=2)
    streamed = ViewpointCorrelation()
    for batch in zip(uneven(a), uneven(b), strict=True):
        streamed.update(*batch)
    torch.testing.assert_close(streamed.compute(), viewpoint_correlation(a, b), rtol=1e-13, atol=0)
    torch.testing.assert_close(streamed.chance(), chance_correlation(a, b), rtol=1e-13, atol=0)
    assert streamed.compute().tolist() == pytest.approx(cosines(a.numpy(), b.numpy()), rel=1e-13)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_only_results_are_rounded_to_the_lengths_dtype(dtype: torch.dtype) -> None:
    a, b = lengths(11, 5).to(dtype), lengths(11, 5, seed=2).to(dtype)
    assert torch.equal(viewpoint_correlation(a, b), viewpoint_correlation(a.double(), b.double()).to(dtype))
    assert torch.equal(chance_correlation(a, b), chance_correlation(a.double(), b.double()).to(dtype))


@pytest.mark.parametrize("metric", [viewpoint_correlation, chance_correlation])
@pytest.mark.parametrize(
    ("a", "b", "error", "name"),
    [
        (torch.rand(3), torch.rand(3), ValueError, "norms_a"),
        (torch.rand(3, 2, 4), torch.rand(3, 2), ValueError, "norms_a"),
        (torch.rand(0, 2), torch.rand(0, 2), ValueError, "norms_a"),
        (torch.rand(3, 2), torch.rand(4, 2), ValueError, "norms_b"),
        (torch.rand(3, 2), torch.rand(3, 1), ValueError, "norms_b"),
        (torch.ones(3, 2, dtype=torch.int), torch.rand(3, 2), TypeError, "norms_a"),
        (torch.rand(3, 2), np.ones((3, 2)), TypeError, "norms_b"),
    ],
)
def test_lengths_that_do_not_fit_are_named(metric: Any, a: Any, b: Any, error: type[Exception], name: str) -> None:
    with pytest.raises(error, match=rf"^{name} has"):
        metric(a, b)


def test_without_a_batch_there_is_nothing_to_compute() -> None:
    with pytest.raises(ValueError, match="nothing has been seen yet"):
        ViewpointCorrelation().compute()
    with pytest.raises(ValueError, match="nothing has been seen yet"):
        ViewpointCorrelation().chance()


UNCHANGED = {"rotation": 0, "translation": 0, "shear": 0, "scale": 1}


def pixels(H: int, W: int) -> Tensor:
    return torch.rand(2, 3, H, W, dtype=torch.float64)


def sample(image: Array, x: float, y: float) -> float:
    """Interpolate between the four pixels around a point; there is nothing outside the image."""
    left, top, value = math.floor(x), math.floor(y), 0.0
    for row, column in itertools.product((top, top + 1), (left, left + 1)):
        if 0 <= row < image.shape[0] and 0 <= column < image.shape[1]:
            value += (1 - abs(x - column)) * (1 - abs(y - row)) * image[row, column]
    return value


def where_from(view: str, amount: float, x: float, y: float) -> tuple[float, float]:
    """Say where a point (right of and below the middle) of the changed view was before."""
    angle = math.radians(amount)
    if view == "rotation":  # back, so anticlockwise.
        return x * math.cos(angle) + y * math.sin(angle), y * math.cos(angle) - x * math.sin(angle)
    if view == "translation":
        return x - amount, y
    return (x - math.tan(angle) * y, y) if view == "shear" else (x / amount, y / amount)


@pytest.mark.parametrize("view", VIEWS)
def test_every_view_agrees_with_sampling_point_by_point(view: str) -> None:
    images = pixels(7, 10)
    for amount in (*VIEWS[view], UNCHANGED[view]):
        found = seen_from(images, view, amount)
        for row, column in itertools.product(range(7), range(10)):
            x, y = where_from(view, amount, column - 4.5, row - 3)
            expected = sample(images[1, 2].numpy(), x + 4.5, y + 3)
            assert found[1, 2, row, column].item() == pytest.approx(expected, abs=1e-9), (amount, row, column)


@pytest.mark.parametrize("view", VIEWS)
def test_a_view_that_does_not_change_is_the_image(view: str) -> None:
    # exact where the sampler's unit, two over the side, is a power of two.
    images = pixels(8, 16).float()
    assert torch.equal(seen_from(images, view, UNCHANGED[view]), images)
    images = pixels(28, 40).float()
    torch.testing.assert_close(seen_from(images, view, UNCHANGED[view]), images, rtol=0, atol=1e-5)


@pytest.mark.parametrize("amount", [1, 3, 16, -2])
def test_a_translation_moves_whole_pixels_to_the_right(amount: int) -> None:
    images = pixels(8, 16).float()
    expected = torch.zeros_like(images)
    for column in range(16):
        if 0 <= column - amount < 16:
            expected[..., column] = images[..., column - amount]
    assert torch.equal(seen_from(images, "translation", amount), expected)


@pytest.mark.parametrize("side", [8, 9, 28])
def test_a_quarter_turn_is_clockwise(side: int) -> None:
    images = pixels(side, side)
    for quarters in (1, 2, 3):
        expected = torch.rot90(images, -quarters, dims=(2, 3))
        torch.testing.assert_close(seen_from(images, "rotation", 90 * quarters), expected, rtol=0, atol=1e-12)
        single = seen_from(images.float(), "rotation", 90 * quarters)
        torch.testing.assert_close(single, expected.float(), rtol=0, atol=1e-5)


def test_an_anticlockwise_turn_undoes_a_clockwise_one() -> None:
    images = pixels(8, 8)
    torch.testing.assert_close(seen_from(seen_from(images, "rotation", 90), "rotation", -90), images, rtol=0, atol=1e-12)


def test_shear_moves_what_is_below_the_middle_to_the_right() -> None:
    image = torch.zeros(1, 1, 5, 5)
    image[0, 0, :, 2] = 1
    # tan 45° = 1: one column for each row.
    assert torch.allclose(seen_from(image, "shear", 45)[0, 0], torch.eye(5), atol=1e-5)


def test_a_larger_scale_shows_the_middle_larger() -> None:
    image = torch.zeros(1, 1, 9, 9)
    image[0, 0, 3:6, 3:6] = 1
    assert seen_from(image, "scale", 1.5).sum() > image.sum() > seen_from(image, "scale", 0.75).sum() > 0


def test_an_empty_batch_has_empty_views() -> None:
    assert seen_from(torch.rand(0, 1, 8, 8), "rotation", 10).shape == (0, 1, 8, 8)


@pytest.mark.parametrize("view", VIEWS)
def test_bfloat16_images_are_seen_as_others_are(view: str) -> None:
    images = pixels(28, 28).bfloat16()
    found = seen_from(images, view, VIEWS[view][0])
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.float(), seen_from(images.float(), view, VIEWS[view][0]), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize(
    ("images", "view", "amount", "error", "name"),
    [
        (torch.rand(8, 8), "rotation", 1, ValueError, "images"),
        (torch.zeros(1, 1, 8, 8, dtype=torch.uint8), "rotation", 1, TypeError, "images"),
        (torch.rand(1, 1, 8, 8), "rotatoin", 1, ValueError, "view='rotatoin' is unknown; did you mean 'rotation'"),
        (torch.rand(1, 1, 8, 8), "rotation", "1", TypeError, "amount"),
        (torch.rand(1, 1, 8, 8), "rotation", True, TypeError, "amount"),
    ],
)
def test_arguments_that_do_not_fit_are_named(images: Any, view: Any, amount: Any, error: type[Exception], name: str) -> None:
    with pytest.raises(error, match=rf"^{name}"):
        seen_from(images, view, amount)
