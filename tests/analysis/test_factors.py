"""gu2021's factors: how images move along them, which capsule is followed, and what scores come of nets made by hand."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from analysis_nets import SIZES
from torch import Tensor, nn

from capsella import create_model
from capsella.analysis import (
    FACTORS,
    FactorCompactness,
    compactness,
    diagnose,
    factor_compactness,
    factor_vectors,
    seen_along,
    seen_from,
)
from capsella.models import Prediction

FEW: dict[str, tuple[float, ...]] = {"rotation": (-10, 0, 10), "shift_y": (-2, 0, 1, 2)}


class Places(nn.Module):
    """Says where the ink of an image is: a class capsule has its mean column, its mean row and a constant, times a scale."""

    def __init__(self, values: int = 3) -> None:
        super().__init__()
        self.values = values
        self.register_buffer("scales", torch.tensor([1.0, 2.0]))

    def forward(self, images: Tensor) -> Prediction:
        ink = images.sum(dim=1)
        total = ink.sum(dim=(1, 2))
        column = (ink.sum(dim=1) * torch.arange(ink.shape[2], dtype=ink.dtype)).sum(dim=1) / total
        row = (ink.sum(dim=2) * torch.arange(ink.shape[1], dtype=ink.dtype)).sum(dim=1) / total
        found = torch.stack([column, row, *[torch.ones_like(row)] * (self.values - 2)], dim=1)  # [B, D]
        capsules = found[:, None] * self.get_buffer("scales")[:, None].to(found)  # [B, 2, D]
        return Prediction(capsules.norm(dim=-1), capsules)


def dots(number: int = 4) -> Tensor:
    """Draw a blot in the middle of images of 21 × 21."""
    images = torch.zeros(number, 1, 21, 21, dtype=torch.float64)
    images[:, :, 9:12, 9:12] = 1
    images[:, :, 10, 10] += torch.arange(number, dtype=torch.float64)[:, None]
    return images


def test_the_ranges_are_those_of_the_specification() -> None:
    steps = {name: [round(b - a, 9) for a, b in itertools.pairwise(amounts)] for name, amounts in FACTORS.items()}
    ends = {name: (amounts[0], amounts[-1]) for name, amounts in FACTORS.items()}
    assert ends == {
        **{"rotation": (-10, 10), "shift_x": (-5, 5), "shift_y": (-5, 5)},
        **{"scale": (0.75, 1.25), "shear_x": (-10, 10), "shear_y": (-10, 10)},
    }
    for name, step in {"rotation": 2, "shift_x": 1, "shift_y": 1, "scale": 0.05, "shear_x": 2, "shear_y": 2}.items():
        assert steps[name] == [step] * 10


@pytest.mark.parametrize(("factor", "view"), [("rotation", "rotation"), ("shift_x", "translation"), ("shear_x", "shear")])
def test_factors_along_rows_are_views(factor: str, view: str) -> None:
    images = torch.rand(2, 3, 8, 11)
    assert torch.equal(seen_along(images, factor, 3), seen_from(images, view, 3))
    assert torch.equal(seen_along(images, "scale", 1.1), seen_from(images, "scale", 1.1))


def test_a_shift_along_columns_moves_rows_down() -> None:
    images = torch.rand(2, 3, 8, 16)
    found = seen_along(images, "shift_y", 3)
    assert torch.equal(found[:, :, 3:], images[:, :, :5])
    assert not found[:, :, :3].any()


def test_a_shear_along_columns_moves_what_is_to_the_right_down() -> None:
    image = torch.zeros(1, 1, 5, 5)
    image[0, 0, 2] = 1
    # tan 45° = 1: one row for each column.
    assert torch.allclose(seen_along(image, "shear_y", 45)[0, 0], torch.eye(5), atol=1e-5)


def test_vectors_are_those_of_the_true_class_at_every_step() -> None:
    images, targets = dots(), torch.tensor([0, 1, 1, 0])
    found = factor_vectors(Places(), images, targets, factors=FEW)
    assert list(found) == ["rotation", "shift_y"]
    assert tuple(found["shift_y"].shape) == (4, 4, 3)
    for b, scale in enumerate((1, 2, 2, 1)):
        expected = [[scale * 10, scale * (10 + amount), scale] for amount in (-2, 0, 1, 2)]
        np.testing.assert_allclose(found["shift_y"][b].numpy(), expected, rtol=1e-9)


def test_scores_by_hand() -> None:
    images, targets = dots(), torch.tensor([0, 1, 1, 0])
    found = factor_compactness(Places(), images, targets)
    # along a shift one of three values moves; under a rotation about the middle the place stays, and rounding is no variance.
    for factor in ("shift_x", "shift_y"):
        assert found[factor].mean == pytest.approx(math.log(3), rel=1e-9)
        assert found[factor].std == pytest.approx(0, abs=1e-9)
        assert (found[factor].images, found[factor].values) == (4, 3)
    assert set(found) == set(FACTORS)


@pytest.mark.parametrize(
    "convention",
    [{}, {"direction": "reverse"}, {"reduction": "mean"}, {"log_base": 2}, {"direction": "reverse", "log_base": 10}],
)
def test_every_convention_is_that_of_compactness(convention: dict[str, Any]) -> None:
    model, images, targets = create_model("capsnet_small").double(), torch.rand(5, 1, 28, 28).double(), torch.arange(5)
    found = factor_compactness(model, images, targets, factors=FEW, **convention)
    for factor, vectors in factor_vectors(model, images, targets, factors=FEW).items():
        scores = compactness(vectors, **convention)
        assert found[factor].mean == pytest.approx(float(scores.mean()), rel=1e-9)
        assert found[factor].std == pytest.approx(float(scores.std(correction=0)), rel=1e-9)


def test_vectors_of_a_net_agree_with_single_calls() -> None:
    model, images, targets = create_model("capsnet_small").eval(), torch.rand(3, 1, 28, 28), torch.tensor([4, 0, 9])
    found = factor_vectors(model, images, targets, factors=FEW)
    for factor, amounts in FEW.items():
        for step, amount in enumerate(amounts):
            capsules = model(seen_along(images, factor, amount)).capsules
            for b, target in enumerate(targets.tolist()):
                torch.testing.assert_close(found[factor][b, step], capsules[b, target], rtol=1e-5, atol=1e-6)


def test_streamed_scores_are_those_of_all_images_at_once() -> None:
    model, images, targets = create_model("capsnet_small").double(), torch.rand(11, 1, 28, 28).double(), torch.arange(11) % 10
    streamed = FactorCompactness(model, factors=FEW)
    for batch in zip(images.split(SIZES), targets.split(SIZES), strict=True):
        streamed.update(*batch)
    whole = factor_compactness(model, images, targets, factors=FEW)
    for factor, score in streamed.compute().items():
        assert score.mean == pytest.approx(whole[factor].mean, rel=1e-9)
        assert score.std == pytest.approx(whole[factor].std, rel=1e-9)
        assert score.images == 11


@pytest.mark.parametrize(
    ("name", "values"), [("em_capsnet", 16), ("convnet_cr", 16), ("convnet_r", 160), ("capsnet_small", None)]
)
def test_any_model_with_class_capsules_has_scores(name: str, values: int | None) -> None:
    model = create_model(name).train()
    found = factor_compactness(model, torch.rand(2, *model.image_shape), torch.tensor([0, 9]), factors={"rotation": (0, 5)})
    assert found["rotation"].mean > 0
    assert values in (None, found["rotation"].values)
    assert model.training


def test_a_net_without_class_capsules_is_named() -> None:
    with pytest.raises(ValueError, match=r"^model has no class capsules \(.*\); expected a Prediction with capsules"):
        factor_compactness(create_model("convnet_small"), torch.rand(2, 1, 28, 28), torch.tensor([0, 9]))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"factors": {"hue": (1, 2)}}, "^factor='hue' is unknown"),
        ({"factors": {"rotation": ()}}, r"^factors\['rotation'\] has no step"),
        ({"targets": torch.eye(10)[:2]}, r"^targets has shape \[2, 10\]; expected classes \[B=2\]"),
        ({"targets": torch.tensor([0, 10])}, "^targets has class 10; the model has 10 class capsules"),
        ({"images": torch.rand(2, 28, 28)}, r"^images has shape \[2, 28, 28\]; expected \[B, C, H, W\]"),
        ({"direction": "up"}, "^direction='up' is unknown"),
    ],
)
def test_what_does_not_fit_is_named(change: dict[str, Any], message: str) -> None:
    given = {"images": torch.rand(2, 1, 28, 28), "targets": torch.tensor([0, 9]), **change}
    with pytest.raises(ValueError, match=message):
        factor_compactness(create_model("capsnet_small"), **given)


def test_the_doctor_measures_it_on_request() -> None:
    model, images, targets = create_model("capsnet_small"), torch.rand(12, 1, 28, 28), torch.arange(12) % 10
    assert diagnose(model, images, targets, views={}).record["compactness"] is None
    found = diagnose(model, images, targets, views={}, sample=4, batch_size=2, compactness=True)
    record = found.record["compactness"]
    chosen = torch.linspace(0, 11, 4).round().long()
    expected = factor_compactness(model, images[chosen], targets[chosen])
    assert (record["images"], record["values"], record["direction"], record["reduction"]) == (4, 8, "forward", "sum")
    for factor, row in record["factors"].items():
        assert row["mean"] == pytest.approx(expected[factor].mean, rel=1e-4)
        assert (row["from"], row["to"]) == (FACTORS[factor][0], FACTORS[factor][-1])
    score = record["factors"]["rotation"]["mean"]
    assert f"compactness of 4 images, {math.log(8):.2f} at most: rotation {score:.3f}, shift_x " in found.text()


@pytest.mark.parametrize("targets", [None, torch.eye(10)])
def test_the_doctor_says_what_it_needs_for_it(targets: Tensor | None) -> None:
    with pytest.raises(ValueError, match=r"^compactness=True needs images \[B, C, H, W\] with one class each"):
        diagnose(create_model("capsnet_small"), torch.rand(10, 1, 28, 28), targets, views={}, compactness=True)
