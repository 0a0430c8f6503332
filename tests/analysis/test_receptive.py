"""What of an image a capsule sees: exact rectangles, and the gradient that autograd gives."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import capsella
from capsella.analysis.receptive import Box, ReceptiveFields, sensitivity


def model(name: str = "capsnet_small", **options: Any) -> Any:
    torch.manual_seed(0)
    return capsella.create_model(name, **options).eval()


def test_sensitivity_is_the_gradient_of_the_activation() -> None:
    net, image = model().double(), torch.rand(1, 28, 28, dtype=torch.float64)
    watched = image.clone().requires_grad_()
    (routed,) = net.routed(watched[None])
    (expected,) = torch.autograd.grad(routed.activations[0, 4], watched)
    torch.testing.assert_close(sensitivity(net, image, 1, 4), expected.abs().sum(dim=0))
    lower = net.capsules(watched[None])[0][0, 7].norm()
    (expected,) = torch.autograd.grad(lower, watched)
    torch.testing.assert_close(sensitivity(net, image, 0, 7), expected.abs().sum(dim=0))
    assert all(parameter.grad is None for parameter in net.parameters())
    assert not image.requires_grad


def test_channels_are_summed() -> None:
    net, image = model(in_channels=3), torch.rand(3, 28, 28)
    assert sensitivity(net, image, 1, 0).shape == (28, 28)


@pytest.mark.parametrize("capsule", [0, 35, 71])
def test_a_field_holds_every_pixel_that_changes_the_capsule_and_no_other(capsule: int) -> None:
    net, fields = model(), ReceptiveFields(model(), (1, 28, 28))
    image, other = torch.rand(2, 1, 28, 28)
    box = fields.box(capsule)
    assert box is not None
    inside = (slice(None), slice(box.top, box.bottom + 1), slice(box.left, box.right + 1))
    other[inside] = image[inside]
    with torch.no_grad():
        first, second = (net.capsules(each[None])[0][0, capsule] for each in (image, other))
    torch.testing.assert_close(first, second)
    minds = sensitivity(net, image, 0, capsule)
    for edge in (minds[box.top], minds[box.bottom], minds[:, box.left], minds[:, box.right]):
        assert edge.max() > 0


def test_fields_lie_side_by_side_and_cover_what_the_trunk_sees() -> None:
    net = model()
    before = {key: value.clone() for key, value in net.state_dict().items()}
    fields = ReceptiveFields(net, (1, 28, 28))
    # eight types at each of nine positions, four pixels apart.
    assert [fields.box(8 * place) for place in (0, 1, 3)] == [Box(0, 0, 18, 18), Box(4, 0, 22, 18), Box(0, 4, 18, 22)]
    assert fields.box(7) == fields.box(0)
    assert fields.box(None) == Box(0, 0, 26, 26)
    assert all(torch.equal(value, before[key]) for key, value in net.state_dict().items())


@pytest.mark.parametrize(
    ("layer", "capsule", "says"),
    [
        (2, 0, "layer=2 is not there; expected 0 to 1"),
        (0, 72, "capsule=72 is not there; expected 0 to 71"),
        (-1, 0, "layer=-1"),
    ],
)
def test_a_capsule_that_is_not_there(layer: int, capsule: int, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        sensitivity(model(), torch.rand(1, 28, 28), layer, capsule)


def test_a_field_of_a_capsule_that_is_not_there() -> None:
    with pytest.raises(ValueError, match="capsule=72 is not there; expected 0 to 71"):
        ReceptiveFields(model(), (1, 28, 28)).box(72)
