"""An attack on a data set is the attack on its images, in grey levels; and its picture."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from capsella import attacks
from capsella.data import ImageData, from_tensors
from capsella.report.attacks import attack_sheet


def some_data(count: int = 30, channels: int = 1, **options: Any) -> ImageData:
    images = torch.randint(0, 256, (count, channels, 12, 12), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    return from_tensors(images, torch.arange(count) % 3, **options)


def net(channels: int = 1) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(channels * 144, 3))


@pytest.mark.parametrize("normalise", ["unit", "standardise"])
def test_batches_are_attacked_as_all_at_once(normalise: str) -> None:
    data, model = some_data(normalise=normalise), net()
    found = attacks.attack_data(model, data, attack="fgsm", eps=0.05, batch_size=7)
    grey = data.images.float() / 255
    wrapped = attacks.in_grey_levels(model, data.normalise)
    after = attacks.fgsm(wrapped, grey, data.labels, eps=0.05)

    def right(images: torch.Tensor) -> float:
        output = wrapped(images)
        scores = output if isinstance(output, torch.Tensor) else output.scores
        return float((scores.argmax(dim=1) == data.labels).double().mean())

    assert (found.images, found.clean, found.accuracy) == (30, right(grey), right(after))
    torch.testing.assert_close(found.after, after[:10])
    torch.testing.assert_close(found.before, grey[:10])
    zero = attacks.zero_gradients(wrapped, grey, data.labels)
    assert (found.zero_images, found.zero_pixels) == pytest.approx((zero.images, zero.pixels))
    assert found.accuracy < found.clean


def test_images_are_taken_from_all_over_the_set() -> None:
    found = attacks.attack_data(net(), some_data(), attack="fgsm", eps=0.1, images=3)
    assert found.images == 3
    assert found.classes.tolist() == [0 % 3, 14 % 3, 29 % 3]  # the first, one in the middle and the last


def test_a_universal_perturbation_is_one_for_all_batches() -> None:
    found = attacks.attack_data(net(), some_data(), attack="universal", eps=1e-3, batch_size=4, iterations=2)
    inside = (found.before > 0.01) & (found.before < 0.99)
    change = torch.where(inside, found.after - found.before, torch.nan)
    # the same wherever no image comes near its bounds.
    spread = change.nan_to_num(-1.0).amax(dim=0) - change.nan_to_num(1.0).amin(dim=0)
    assert float(spread[inside.any(dim=0)].abs().max()) < 1e-6


def test_a_transfer_needs_a_substitute_and_nothing_else_takes_one() -> None:
    with pytest.raises(ValueError, match="attack='transfer' needs a substitute"):
        attacks.attack_data(net(), some_data(), attack="transfer", eps=0.1)
    with pytest.raises(ValueError, match="attack='fgsm' takes no substitute"):
        attacks.attack_data(net(), some_data(), attack="fgsm", eps=0.1, substitute=net())
    found = attacks.attack_data(net(), some_data(), attack="transfer", eps=0.1, substitute=net())
    assert found.zero_images is None
    assert found.accuracy == attacks.attack_data(net(), some_data(), attack="fgsm", eps=0.1).accuracy


@pytest.mark.parametrize(("channels", "eps"), [(1, 0.1), (3, 0.3), (1, 0.0)])
def test_the_sheet_shows_every_image_before_and_after(channels: int, eps: float) -> None:
    found = attacks.attack_data(net(channels), some_data(channels=channels), attack="fgsm", eps=eps, show=4)
    sheet = attack_sheet(found, ["a", "b", "c"])
    assert sheet.mode == "RGB"
    wider = attack_sheet(attacks.attack_data(net(channels), some_data(channels=channels), attack="fgsm", eps=eps), ["a", "b"])
    assert wider.size[0] > sheet.size[0]
    assert wider.size[1] == sheet.size[1]
    # the middle of the first image, enlarged, and below it the change: grey where nothing changed.
    grey = round(float(found.before[0, 0, 6, 6]) * 255)
    assert sheet.getpixel((56 + 45, 8 + 45))[0] == grey
    if eps == 0:
        assert sheet.getpixel((56 + 45, 8 + 108 + 45)) == (128, 128, 128)


def test_an_empty_sheet_is_refused() -> None:
    found = attacks.attack_data(net(), some_data(), attack="fgsm", eps=0.1, show=0)
    with pytest.raises(ValueError, match="found shows no image"):
        attack_sheet(found, ["a", "b", "c"])
