"""Parameter counts on the meta device: our own arithmetic at 28, 36 and 40 pixels, and the literal numbers of the papers."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch

from capsella.models import create_model, list_models


def count(name: str, **options: Any) -> int:
    with torch.device("meta"):
        model = create_model(name, **options)
    return sum(parameter.numel() for parameter in model.parameters())


def conv(below: int, above: int, kernel: int, bias: bool = True) -> int:
    return below * above * kernel**2 + bias * above


def dense(*sizes: int) -> int:
    return sum(below * above + above for below, above in itertools.pairwise(sizes))


def left(side: int, kernel: int, stride: int = 1) -> int:
    return (side - kernel) // stride + 1


def decoder(values: int, side: int) -> int:
    return dense(values, 512, 1024, side**2)


def capsule_map(side: int) -> int:
    """Side of the map after CapsNet's two 9×9 convolutions."""
    return left(left(side, 9), 9, 2)


TRUNK = conv(1, 256, 9) + conv(256, 256, 9)


def capsnet(side: int) -> int:
    return TRUNK + 32 * capsule_map(side) ** 2 * 8 * 160 + decoder(160, side)


def aff_capsnet(side: int) -> int:
    return TRUNK + 8 * 160 + decoder(160, side)


def gcapsnet_fc(side: int) -> int:
    return capsnet(side) + 32 * capsule_map(side) ** 2 * 10


def gcapsnet_conv(side: int) -> int:
    below = 32 * capsule_map(side) ** 2
    return TRUNK + below * 10 * (4 * 4) + below * 10 + decoder(80, side)


def gcapsnet_multi(side: int, channels: int = 1) -> int:
    first = left(left(side, 7), 7, 2)
    second = left(first, 4)
    third = left(second, 3, 2)
    total = channels * 64 * 49 + 64 * 128 * 49
    total += 4 * 4 * 16 * 8 * (8 * 8) + second**2 * (4 * 4 * 16) * 8
    total += 3 * 3 * 8 * 16 * (2 * 2) + third**2 * (3 * 3 * 8) * 16
    return total + third**2 * 16 * (8 * 80 + 10)


def deep_capsnet(side: int, depth: int = 5, bias: bool = True, em: bool = False) -> int:
    layers = [(32 * capsule_map(side) ** 2, 8), *[(16, 10 if em else 12)] * (depth - 2), (10, 16)]
    total = TRUNK + decoder(160, side)
    for (n, p), (m, d) in itertools.pairwise(layers):
        total += n * m * p * d + bias * m * d + em * 2 * m
    return total


def parse_capsnet(side: int, capsules: tuple[int, ...] = (16, 16, 16, 16, 10)) -> int:
    channels = capsules[0] * 8
    plan = [(1, 32, 5), (32, 64, 3), (64, 128, 3), (128, channels, 3)]
    total = sum(conv(*row) + 2 * row[1] for row in plan)  # each with batch normalisation
    total += channels * left(side - 8, 3, 2) ** 2 + channels  # the depthwise kernel covers what 4 + 2 + 2 pixels leave
    total += sum(n * m * (8 * 8) + n * m for n, m in itertools.pairwise(capsules))
    return total + decoder(80, side)


def em_capsnet(side: int) -> int:
    last = left(left(left(side, 5, 2), 3, 2), 3)
    total = conv(1, 64, 5) + conv(64, 8 * 16, 1) + conv(64, 8, 1)
    for below, above in ((9 * 8, 16), (9 * 16, 16), (last**2 * 16, 10)):
        total += below * above * (4 * 4) + 2 * above
    return total + 16 * 16 + 16 * 16  # no bias in the last layer: its activations would not see it


def small_map(side: int) -> int:
    return left(left(side, 7, 2), 7, 2)


def capsnet_small(side: int) -> int:
    below = 8 * small_map(side) ** 2
    return conv(1, 32, 7) + conv(32, 64, 7) + below * 8 * 80 + 80 + dense(80, 64, 128, side**2)


def convnet_fc(side: int, kernel: int = 5, hidden: tuple[int, int] = (328, 192)) -> int:
    features = (side - 3 * (kernel - 1)) ** 2 * 128
    return conv(1, 256, kernel) + conv(256, 256, kernel) + conv(256, 128, kernel) + dense(features, *hidden, 10)


def lenet(side: int) -> int:
    return conv(1, 20, 5) + conv(20, 50, 5) + dense(50 * (((side - 4) // 2 - 4) // 2) ** 2, 500, 10)


def grouped(side: int) -> int:
    return TRUNK + dense(256 * capsule_map(side) ** 2, 160) + decoder(160, side)


BY_HAND: dict[str, Callable[[int], int]] = {
    "aff_capsnet": aff_capsnet,
    "aff_capsnet_dr": aff_capsnet,
    "capsnet": capsnet,
    "capsnet_nor": capsnet,
    "capsnet_small": capsnet_small,
    "convnet_avg": lambda side: TRUNK + dense(256, 10),
    "convnet_cr": grouped,
    "convnet_cr_sf": grouped,
    "convnet_fc": convnet_fc,
    "convnet_fc512": lambda side: conv(1, 64, 9) + conv(64, 256, 9) + dense(256 * capsule_map(side) ** 2, 512, 10),
    "convnet_fc_lk": lambda side: convnet_fc(side, 9, (160, 96)),
    "convnet_r": lambda side: grouped(side) + dense(160, 10),
    "convnet_small": lambda side: conv(1, 32, 7) + conv(32, 64, 7) + dense(64 * small_map(side) ** 2, 80, 10),
    "deep_capsnet": deep_capsnet,
    "em_capsnet": em_capsnet,
    "gcapsnet_conv": gcapsnet_conv,
    "gcapsnet_fc": gcapsnet_fc,
    "gcapsnet_multi": gcapsnet_multi,
    "lenet": lenet,
    "parse_capsnet": parse_capsnet,
    "quadratic_capsnet": lambda side: gcapsnet_fc(side) + 160,
    "sign_capsnet": lambda side: 20 + 20 + 40 + 2,
}


def test_every_model_is_counted() -> None:
    assert sorted(BY_HAND) == list_models()


@pytest.mark.parametrize("side", [28, 36, 40])
@pytest.mark.parametrize("name", list_models())
def test_parameters_equal_our_own_arithmetic(name: str, side: int) -> None:
    sizes = {} if name == "sign_capsnet" else {"image_size": side}
    assert count(name, **sizes) == BY_HAND[name](side)


CIFAR = {"image_size": 32, "in_channels": 3}
YANG = {"in_channels": 3, "types": 64, "activation_fn": "leaky_relu", "reconstruction": "none"}
LITERAL: list[tuple[str, dict[str, Any], int]] = [
    ("capsnet", {}, 8_215_568),
    ("capsnet", {"reconstruction": "none"}, 6_804_224),
    ("capsnet", {"bias": True}, 8_215_728),
    ("capsnet", {"image_size": 36}, 11_361_808),
    ("capsnet", {"image_size": 40}, 13_475_648),
    ("aff_capsnet", {"image_size": 40}, 7_578_688),
    ("convnet_fc", {"image_size": 40}, 35_445_522),
    ("convnet_fc", {}, 13_277_970),
    ("convnet_avg", {"image_size": 40}, 5_332_234),
    ("convnet_avg", {"image_size": 40, "kernel_size": 5}, 1_647_882),
    ("convnet_r", {}, 8_217_338),
    ("convnet_cr", {}, 8_215_728),
    ("convnet_cr_sf", {}, 8_215_728),
    ("convnet_fc512", CIFAR, 9_737_226),
    ("deep_capsnet", {"depth": 2}, 8_215_728),
    ("deep_capsnet", {"depth": 3}, 8_541_552),
    ("deep_capsnet", {"depth": 4}, 8_578_608),
    ("deep_capsnet", {"depth": 5}, 8_615_664),
    ("deep_capsnet", {"depth": 2, "bias": False}, 8_215_728 - 160),
    ("deep_capsnet", {"depth": 3, "bias": False}, 8_541_552 - 352),
    ("deep_capsnet", {"depth": 4, "bias": False}, 8_578_608 - 544),
    ("deep_capsnet", {"depth": 5, "bias": False}, 8_615_664 - 736),
    ("deep_capsnet", {"depth": 2, "bias": "last"}, 8_215_728),
    ("deep_capsnet", {"depth": 5, "bias": "last"}, 8_615_664 - 3 * 16 * 12),
    ("deep_capsnet", {"depth": 5, "bias": "last", "routing": "em"}, 8_293_124 - 3 * 16 * 10),
    # 82·16 + (16·81 + 1)·32 in the convolutions; 36·4 capsules, or 4 with a stride of 2; biases of 16·12 and 10·16.
    (
        "deep_capsnet",
        {"depth": 3, "channels": 16, "types": 4, "reconstruction": "none"},
        1_312 + 41_504 + 144 * 16 * 96 + 16 * 10 * 192 + 352,
    ),
    (
        "deep_capsnet",
        {"depth": 3, "channels": 16, "types": 4, "trunk_stride": 2, "reconstruction": "none"},
        1_312 + 41_504 + 4 * 16 * 96 + 16 * 10 * 192 + 352,
    ),
    ("deep_capsnet", {"depth": 5, "routing": "em"}, 8_293_124),
    ("deep_capsnet", {"depth": 6, "routing": "em"}, 8_318_916),
    ("deep_capsnet", {"depth": 7, "routing": "em"}, 8_344_708),
    ("deep_capsnet", {"depth": 8, "routing": "em"}, 8_370_500),
    ("deep_capsnet", {"depth": 9, "routing": "em"}, 8_396_292),
    ("parse_capsnet", {"image_size": 40}, 2_537_504),
    ("parse_capsnet", {"image_size": 40, "bias": "last"}, 2_537_504 + 10 * 8),
    ("parse_capsnet", {"image_size": 40, "capsules": (16, 16, 10)}, 2_504_224),
    ("gcapsnet_fc", {}, 8_227_088),
    ("gcapsnet_fc", {"reconstruction": "none"}, 6_815_744),
    ("gcapsnet_fc", {**CIFAR, "channels": 64, "class_dim": 8, "reconstruction": "none"}, 2_674_176),
    ("gcapsnet_conv", {}, 6_895_888),
    ("gcapsnet_conv", {"reconstruction": "none"}, 5_525_504),
    ("gcapsnet_conv", {**CIFAR, "channels": 64, "rows": 1, "reconstruction": "none"}, 2_674_176),
    ("gcapsnet_multi", CIFAR, 750_816),
    ("quadratic_capsnet", {}, 8_227_248),
    ("quadratic_capsnet", {"reconstruction": "none"}, 6_815_904),
    ("quadratic_capsnet", {"image_size": 36}, 11_393_968),
    ("quadratic_capsnet", {**YANG, "image_size": 24, "padding": "same"}, 22_568_608),
    ("quadratic_capsnet", {**YANG, "image_size": 24}, 12_000_928),
    ("quadratic_capsnet", {**YANG, "image_size": 32}, 15_963_808),
    ("lenet", {}, 431_080),
    ("sign_capsnet", {}, 82),
    ("sign_capsnet", {"bias": False}, 60),
    ("sign_capsnet", {"bias": "last"}, 62),
    ("sign_capsnet", {"routing": "em"}, 126),
    ("sign_capsnet", {"trunk": "linear"}, 20 + 20 * 20 + 20 + 20 * 2 + 2),
    ("sign_capsnet", {"trunk": "relu", "bias": False}, 20 + 20 * 20 + 20 * 2),
]


@pytest.mark.parametrize(("name", "options", "expected"), LITERAL)
def test_parameters_equal_the_stated_numbers(name: str, options: dict[str, Any], expected: int) -> None:
    assert count(name, **options) == expected


@pytest.mark.parametrize(
    ("name", "by_kernel"),
    [
        ("capsnet", {3: 16.11, 5: 14.38, 7: 13.50, 9: 13.48, 11: 14.31}),
        ("convnet_fc", {3: 49.49, 5: 35.45, 7: 25.22, 9: 18.80, 11: 16.19}),
        ("convnet_avg", {3: 0.595, 5: 1.648, 7: 3.227, 9: 5.332, 11: 7.964}),
    ],
)
def test_the_kernel_study_of_gu2021_has_its_sizes(name: str, by_kernel: dict[int, float]) -> None:
    digits = 3 if name == "convnet_avg" else 2
    for kernel, millions in by_kernel.items():
        assert round(count(name, image_size=40, kernel_size=kernel) / 1e6, digits) == millions, kernel


def test_backbone_of_mitterreiter2023_has_the_notebook_s_size() -> None:
    with torch.device("meta"):
        model = create_model("parse_capsnet", image_size=40)
    assert sum(p.numel() for part in (model.trunk, model.primary) for p in part.parameters()) == 270_400
    assert sum(p.numel() for p in model.layers.parameters()) == 60_320


def test_em_capsnet_has_a_bias_in_its_last_layer_where_a_decoder_sees_it() -> None:
    assert count("em_capsnet", reconstruction="normal") == em_capsnet(28) + 10 * 16 + decoder(160, 28)
    assert count("em_capsnet", bias=False) == em_capsnet(28) - 2 * 16 * 16


def test_the_small_models_are_small() -> None:
    assert count("capsnet_small") <= 300_000
    assert count("convnet_small") <= 300_000
    assert count("convnet_fc_lk", image_size=36) < count("capsnet", image_size=36)
