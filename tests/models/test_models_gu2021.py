"""gu2021: its two equivalences in float64, and every row of its Tables 2 and 4 as one call."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from einops import rearrange, reduce, repeat
from torch.nn.functional import conv2d

from capsella.functional import length_binary_cross_entropy, length_cross_entropy, margin_loss, reconstruction_loss, squash
from capsella.models import CapsuleNet, create_model
from capsella.nn import CapsuleLinear

EXACT = {"rtol": 1e-11, "atol": 1e-14}


def images(count: int, side: int) -> torch.Tensor:
    return torch.rand(count, 1, side, side, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def test_aff_capsnet_without_routing_is_a_grouped_convolution_and_two_averages() -> None:
    torch.manual_seed(0)
    types, dim, J, D = 4, 8, 10, 16
    model = create_model("aff_capsnet", image_size=15, kernel_size=5, channels=12, types=types).double()
    batch = images(3, 15)
    primary = model.primary(model.trunk(batch))
    side = ((15 - 4) - 5) // 2 + 1
    maps = rearrange(primary, "b (h w n) p -> b (n p) h w", h=side, w=side)
    weight = model.layers[0].weight
    assert weight.shape == (1, J, dim, D)
    kernel = repeat(weight[0], "j p d -> (n j d) p 1 1", n=types)
    convolved = conv2d(maps, kernel, groups=types)
    pooled = reduce(convolved, "b (n j d) h w -> b n j d", "mean", n=types, j=J)  # global average pooling
    averaged = reduce(pooled, "b n j d -> b j d", "mean")

    raw = CapsuleLinear(
        side**2 * types, dim, J, D, routing="uniform", normalise="sources", shared=True, bias=False, squash="none"
    )
    raw.double().load_state_dict(model.layers[0].state_dict())
    torch.testing.assert_close(raw(primary).poses, averaged, **EXACT)
    prediction = model(batch)
    torch.testing.assert_close(prediction.capsules, squash(averaged), **EXACT)
    torch.testing.assert_close(prediction.scores, squash(averaged).square().sum(dim=-1).sqrt(), **EXACT)


def test_a_sum_over_classes_instead_of_the_mean_is_not_that_convolution() -> None:
    torch.manual_seed(0)
    options = {"image_size": 15, "kernel_size": 5, "channels": 12, "types": 4}
    mean = create_model("aff_capsnet", **options).double()
    other = create_model("aff_capsnet", normalise="targets", **options).double()
    other.load_state_dict(mean.state_dict())
    assert not torch.allclose(mean(images(2, 15)).scores, other(images(2, 15)).scores, rtol=1e-3)


def test_convnet_cr_sf_is_capsnet_without_routing() -> None:
    torch.manual_seed(0)
    capsnet = create_model("capsnet_nor", image_size=19, bias=True).double()
    convnet = create_model("convnet_cr_sf", image_size=19).double()
    layer = capsnet.layers[0]
    with torch.no_grad():
        for part in ("trunk", "primary", "decoder"):
            pairs = zip(getattr(convnet, part).parameters(), getattr(capsnet, part).parameters(), strict=True)
            for theirs, ours in pairs:
                theirs.copy_(ours)
        layer.bias.normal_()
        convnet.dense.weight.copy_(rearrange(layer.weight, "i j p d -> (j d) (i p)") / 10)
        convnet.dense.bias.copy_(rearrange(layer.bias, "j d -> (j d)"))
    batch, targets = images(3, 19), torch.tensor([3, 1, 4])
    expected, result = capsnet(batch, targets), convnet(batch, targets)
    for part in ("scores", "capsules", "reconstruction"):
        torch.testing.assert_close(getattr(result, part), getattr(expected, part), **EXACT, msg=part)
    for below, above in zip(convnet.capsules(batch), capsnet.capsules(batch), strict=True):
        torch.testing.assert_close(below, above, **EXACT)


def test_convnet_cr_reads_the_sum_of_each_group_as_log_odds() -> None:
    torch.manual_seed(0)
    model = create_model("convnet_cr", image_size=17).double()
    prediction = model(images(2, 17))
    odds = torch.stack([prediction.capsules[:, j].sum(dim=1) for j in range(10)], dim=1)
    torch.testing.assert_close(prediction.scores, 1 / (1 + (-odds).exp()), **EXACT)


def test_convnet_r_reads_logits_and_images_from_the_same_160_values() -> None:
    torch.manual_seed(0)
    model = create_model("convnet_r", image_size=17).double()
    prediction = model(images(2, 17))
    values = prediction.capsules[:, 0]
    torch.testing.assert_close(prediction.scores, values @ model.output.weight.T + model.output.bias, **EXACT)
    assert torch.equal(model.decoder(prediction.capsules), prediction.reconstruction)


# (preset, its own switches, what the row says: routing, shared matrix, squash, reconstruction, loss)
AFF = ("uniform", True, "sabour", "conditional", margin_loss)
CAPS = ("agreement", False, "sabour", "conditional", margin_loss)
ROWS: dict[str, tuple[str, dict[str, Any], tuple[Any, ...]]] = {
    "2: baseline": ("aff_capsnet", {}, AFF),
    "2: routing DR": ("aff_capsnet", {"routing": "agreement"}, ("agreement", *AFF[1:])),
    "2: TransM not shared": ("aff_capsnet", {"shared": False}, ("uniform", False, *AFF[2:])),
    "2: no squash": ("aff_capsnet", {"squash": "none"}, (*AFF[:2], "none", *AFF[3:])),
    "2: normal reconstruction": ("aff_capsnet", {"reconstruction": "normal"}, (*AFF[:3], "normal", margin_loss)),
    "2: no reconstruction": ("aff_capsnet", {"reconstruction": "none"}, (*AFF[:3], "none", margin_loss)),
    "2: CE loss": ("aff_capsnet", {}, (*AFF[:4], length_cross_entropy)),
    "4: baseline": ("capsnet", {}, CAPS),
    "4: NoR": ("capsnet", {"routing": "uniform"}, ("uniform", *CAPS[1:])),
    "4: shared TransM": ("capsnet", {"shared": True}, ("agreement", True, *CAPS[2:])),
    "4: no squash": ("capsnet", {"squash": "none"}, (*CAPS[:2], "none", *CAPS[3:])),
    "4: normal reconstruction": ("capsnet", {"reconstruction": "normal"}, (*CAPS[:3], "normal", margin_loss)),
    "4: no reconstruction": ("capsnet", {"reconstruction": "none"}, (*CAPS[:3], "none", margin_loss)),
    "4: BCE loss": ("capsnet", {}, (*CAPS[:4], length_binary_cross_entropy)),
}


@pytest.mark.parametrize("row", ROWS)
def test_every_row_of_tables_2_and_4_is_one_call(row: str) -> None:
    name, options, (routing, shared, kind, reconstruction, loss) = ROWS[row]
    side, capsules = (40, 4608) if row.startswith("2") else (36, 3200)
    with torch.device("meta"):
        model = create_model(name, image_size=side, **options)
    assert isinstance(model, CapsuleNet)
    (layer,) = model.layers
    assert layer.algorithm.name == routing
    assert layer.weight.shape == (1 if shared else capsules, 10, 8, 16)
    assert layer.bias is None
    assert model.primary.squash == layer.squash == kind
    assert (model.decoder.mask if model.decoder else "none") == reconstruction

    # the same call at a size that runs here, one step of its loss.
    torch.manual_seed(0)
    small = create_model(name, image_size=15, kernel_size=5, channels=8, types=2, **options)
    batch = torch.rand(3, 1, 15, 15)
    targets = torch.tensor([0, 3, 9])
    prediction = small(batch, targets)
    total = loss(prediction.scores, targets)
    if prediction.reconstruction is not None:
        total = total + 0.0005 * reconstruction_loss(prediction.reconstruction, batch)
    total.backward()
    assert total.isfinite()
    assert small.layers[0].weight.grad.abs().max() > 0


@pytest.mark.parametrize(
    ("preset", "switches"),
    [
        ("capsnet_nor", {"routing": "uniform"}),
        ("aff_capsnet", {"routing": "uniform", "shared": True}),
        ("aff_capsnet_dr", {"shared": True}),
    ],
)
def test_presets_are_capsnet_with_switches(preset: str, switches: dict[str, Any]) -> None:
    size = {"image_size": 15, "kernel_size": 5, "channels": 8, "types": 2}
    torch.manual_seed(0)
    one = create_model(preset, **size)
    torch.manual_seed(0)
    other = create_model("capsnet", **switches, **size)
    batch = torch.rand(2, 1, 15, 15)
    assert torch.equal(one(batch).scores, other(batch).scores)


def test_without_a_squash_lengths_are_raw() -> None:
    torch.manual_seed(0)
    model = create_model("aff_capsnet", squash="none", image_size=15, kernel_size=5, channels=8, types=2).double()
    batch = images(2, 15)
    primary = model.primary(model.trunk(batch))
    maps = conv2d(model.trunk(batch), model.primary.conv.weight, model.primary.conv.bias, stride=2)
    torch.testing.assert_close(primary, rearrange(maps, "b (n p) h w -> b (h w n) p", p=8), **EXACT)
    mean = torch.einsum("bip,jpd->bjd", primary, model.layers[0].weight[0]) / primary.shape[1]
    torch.testing.assert_close(model(batch).scores, mean.square().sum(dim=-1).sqrt(), **EXACT)


@pytest.mark.parametrize(
    ("name", "options", "maps"),
    [
        ("convnet_fc", {"channels": (4, 6)}, [(4, 5), (6, 5)]),
        ("convnet_avg", {"channels": 6}, [(6, 9), (6, 9)]),
        ("convnet_r", {"channels": 4, "types": 2}, [(4, 9), (16, 9)]),
        ("convnet_cr", {"channels": 4, "types": 2}, [(4, 9), (16, 9)]),
        ("convnet_cr_sf", {"channels": 4, "types": 2}, [(4, 9), (16, 9)]),
    ],
)
def test_convnets_can_be_small(name: str, options: dict[str, Any], maps: list[tuple[int, int]]) -> None:
    model = create_model(name, image_size=20, **options)
    found = [module for module in model.modules() if isinstance(module, torch.nn.Conv2d)]
    assert [(module.out_channels, module.kernel_size[0]) for module in found] == maps
    assert model(torch.rand(2, 1, 20, 20)).scores.shape == (2, 10)


def test_a_convnet_without_a_convolution_is_none() -> None:
    with pytest.raises(ValueError, match=r"channels=\(\) has no convolution"):
        create_model("convnet_fc", image_size=20, channels=())
