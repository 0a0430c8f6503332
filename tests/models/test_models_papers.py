"""What the other papers say of their nets: yang2021, chen2019, peer2022 and mitterreiter2023."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import conv2d

from capsella.functional import squash
from capsella.models import create_model
from capsella.routing import Routed, peer2022_options

EXACT = {"rtol": 1e-11, "atol": 1e-14}
CIFAR10 = {"in_channels": 3, "types": 64, "padding": "same", "activation_fn": "leaky_relu", "reconstruction": "none"}


def draw(*size: int, seed: int = 1) -> Tensor:
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def pad_as_tensorflow(features: Tensor, kernel: int, stride: int) -> Tensor:
    """Put zeros around: out = ceil(n/s), total = max((out − 1)s + k − n, 0), half of it before, the larger half after."""
    B, C, H, W = features.shape
    totals = [max((-(-n // stride) - 1) * stride + kernel - n, 0) for n in (H, W)]
    padded = torch.zeros(B, C, H + totals[0], W + totals[1], dtype=features.dtype)
    top, left = totals[0] // 2, totals[1] // 2
    padded[:, :, top : top + H, left : left + W] = features
    return padded


def test_yang2021_s_cifar10_net_is_one_call() -> None:
    with torch.device("meta"):
        model = create_model("quadratic_capsnet", image_size=24, **CIFAR10)
    (layer,) = model.layers
    assert layer.algorithm.name == "quadratic"
    assert (layer.in_capsules, layer.in_dim) == (12 * 12 * 64, 8)
    assert layer.bias.shape == (10, 16)
    assert model.decoder is None
    assert model.config["norm"] == "l2"
    assert [p.shape for p in model.coupling_parameters()] == [(12 * 12 * 64, 10)]


@pytest.mark.parametrize("size", [(24, 24), (23, 26)])
@pytest.mark.parametrize(("stride", "trunk_stride"), [(2, 1), (3, 2)])
def test_same_padding_is_tensorflow_s(size: tuple[int, int], stride: int, trunk_stride: int) -> None:
    torch.manual_seed(0)
    options = CIFAR10 | {"types": 3, "channels": 5, "stride": stride, "trunk_stride": trunk_stride}
    model = create_model("quadratic_capsnet", image_size=size, **options).double()
    batch = draw(2, 3, *size)
    first, second = model.trunk[1], model.primary.conv
    raw = conv2d(pad_as_tensorflow(batch, 9, trunk_stride), first.weight, first.bias, trunk_stride)
    assert (raw < 0).any()
    features = torch.where(raw > 0, raw, 0.2 * raw)
    maps = conv2d(pad_as_tensorflow(features, 9, stride) / 3, second.weight, second.bias, stride)
    expected = torch.stack(
        [maps[:, n * 8 : n * 8 + 8, y, x] for y in range(maps.shape[2]) for x in range(maps.shape[3]) for n in range(3)], dim=1
    )
    torch.testing.assert_close(model.capsules(batch)[0], squash(expected), **EXACT)


def test_yang2021_adds_the_votes_with_its_couplings_and_squashes_as_sabour() -> None:
    torch.manual_seed(0)
    model = create_model("quadratic_capsnet", image_size=17, channels=4, types=2, reconstruction="none").double()
    layer, batch = model.layers[0], draw(2, 1, 17, 17)
    assert bool((layer.couplings == 1).all())
    with torch.no_grad():
        layer.couplings.copy_(draw(*layer.couplings.shape, seed=3))
    primary = model.capsules(batch)[0]
    total = torch.einsum("ij,bip,ijpd->bjd", layer.couplings, primary, layer.weight) + layer.bias
    torch.testing.assert_close(model(batch).capsules, squash(total), **EXACT)


def first_conv(model: torch.nn.Module) -> tuple[Tensor, Tensor]:
    conv = next(module for module in model.trunk if isinstance(module, torch.nn.Conv2d))
    return conv.weight, conv.bias


def test_primary_capsules_can_be_left_without_a_squash_and_have_a_relu_of_their_own() -> None:
    """chen2019's nets of dynamic routing: ReLU on the second convolution, no squash before the votes."""
    options: dict[str, Any] = {"image_size": 15, "kernel_size": 5, "channels": 4, "types": 2, "num_iters": 4}
    model = create_model("capsnet", primary_squash="none", relu="primary", **options)
    images = torch.rand(3, 1, 15, 15)
    primary = model.primary(model.trunk(images))
    maps = conv2d(model.trunk(images), model.primary.conv.weight, model.primary.conv.bias, stride=2).relu()
    assert torch.equal(primary, maps.unflatten(1, (2, 8)).permute(0, 3, 4, 1, 2).reshape(3, -1, 8))
    assert (model.layers[0].relu, model.layers[0].squash) == ("none", "sabour")
    with pytest.raises(ValueError, match="relu='after' is unknown"):
        create_model("capsnet", relu="after", **options)


@pytest.mark.parametrize("name", ["gcapsnet_fc", "gcapsnet_conv"])
def test_chen2019_has_a_relu_before_both_squashes(name: str) -> None:
    torch.manual_seed(0)
    options: dict[str, Any] = {"rows": 1} if name == "gcapsnet_conv" else {}
    model = create_model(name, image_size=19, channels=4, reconstruction="none", **options).double()
    layer, batch = model.layers[0], draw(2, 1, 19, 19)
    features = conv2d(batch, *first_conv(model)).clamp(min=0)
    maps = conv2d(features, model.primary.conv.weight, model.primary.conv.bias, 2)
    assert (maps < 0).any()
    below = torch.stack([maps[:, n * 8 : n * 8 + 8, y, x] for y in range(2) for x in range(2) for n in range(32)], dim=1)
    below = squash(below.clamp(min=0), kind="exp")
    torch.testing.assert_close(model.capsules(batch)[0], below, **EXACT)
    couplings = layer.couplings.reshape(layer.in_capsules, 10)
    total = torch.einsum("ij,bip,ijpd->bjd", couplings, below, layer.weight)
    assert (total < 0).any()
    torch.testing.assert_close(model(batch).capsules, squash(total.clamp(min=0), kind="exp"), **EXACT)
    assert layer.bias is None


def test_chen2019_s_convolutional_net_with_vector_capsules_is_the_fully_connected_one() -> None:
    torch.manual_seed(0)
    options = {"image_size": 19, "channels": 4}
    conv = create_model("gcapsnet_conv", rows=1, **options).double()
    full = create_model("gcapsnet_fc", class_dim=8, **options).double()
    for part in ("primary", "decoder"):
        getattr(full, part).load_state_dict(getattr(conv, part).state_dict())
    with torch.no_grad():
        for ours, theirs in zip(first_conv(full), first_conv(conv), strict=True):
            ours.copy_(theirs)
        full.layers[0].weight.copy_(conv.layers[0].weight)
        full.layers[0].couplings.copy_(conv.layers[0].couplings[0])
    batch, targets = draw(2, 1, 19, 19), torch.tensor([1, 8])
    ours, theirs = full(batch, targets), conv(batch, targets)
    for part in ("scores", "capsules", "reconstruction"):
        torch.testing.assert_close(getattr(ours, part), getattr(theirs, part), **EXACT, msg=part)


def test_chen2019_s_multi_layer_net_has_its_relu_after_the_squash() -> None:
    torch.manual_seed(0)
    model = create_model("gcapsnet_multi", image_size=23)
    assert [layer.relu for layer in model.layers] == ["after"] * 3
    for capsules in model.capsules(torch.rand(2, 1, 23, 23))[1:]:
        assert capsules.min() == 0
        assert capsules.max() > 0


SCALARS = torch.tensor([-1.0, -0.3, -1e-4, 1e-4, 0.3, 1.0], dtype=torch.float64)[:, None, None, None]


@pytest.mark.parametrize("em_as", ["peer2022", "defined"])
@pytest.mark.parametrize("routing", ["agreement", "em"])
def test_the_sign_of_a_scalar_needs_a_bias(routing: str, em_as: str) -> None:
    for seed in range(3):
        torch.manual_seed(seed)
        without = create_model("sign_capsnet", routing=routing, em_as=em_as, bias=False).double()
        assert torch.equal(without(SCALARS).scores, without(-SCALARS).scores)
        assert torch.equal(without(SCALARS).capsules, -without(-SCALARS).capsules)
        with_bias = create_model("sign_capsnet", routing=routing, em_as=em_as).double()
        gap = (with_bias(SCALARS).scores - with_bias(-SCALARS).scores).abs().amax(dim=1)
        assert gap[0] > 1e-6
        assert gap[-1] > 1e-6


@pytest.mark.parametrize("em_as", ["peer2022", "defined"])
@pytest.mark.parametrize("routing", ["agreement", "em"])
def test_a_deep_net_without_bias_cannot_tell_primary_capsules_from_their_negatives(routing: str, em_as: str) -> None:
    torch.manual_seed(0)
    options = {"image_size": 17, "depth": 5, "routing": routing, "em_as": em_as, "reconstruction": "none"}
    primary = squash(draw(3, 32, 8))
    without = create_model("deep_capsnet", bias=False, **options).double()
    ours, negated = without.from_primary(primary), without.from_primary(-primary)
    assert torch.equal(ours.scores, negated.scores)
    assert torch.equal(ours.capsules, -negated.capsules)
    with_bias = create_model("deep_capsnet", **options).double()
    gap = (with_bias.from_primary(primary).scores - with_bias.from_primary(-primary).scores).abs().max()
    assert gap > 1e-9  # float64's rounding is 1e-16


def test_from_primary_continues_where_the_primary_capsules_end() -> None:
    torch.manual_seed(0)
    for name in ("capsnet_small", "em_capsnet"):
        model = create_model(name, image_size=25).eval()
        batch = torch.rand(2, 1, 25, 25)
        below = model.primary(model.trunk(batch))
        assert isinstance(below, Routed) == (name == "em_capsnet")
        assert torch.equal(model.from_primary(below).scores, model(batch).scores)
        assert torch.equal(model.from_primary(below).capsules, model(batch).capsules)


def test_peer2022_s_em_runs_with_the_departures_of_its_code() -> None:
    with torch.device("meta"):
        as_coded = create_model("deep_capsnet", routing="em")
        as_defined = create_model("deep_capsnet", routing="em", em_as="defined")
    assert all(layer.options == peer2022_options() for layer in as_coded.layers)
    assert all(layer.options == {} for layer in as_defined.layers)
    assert [layer.out_dim for layer in as_coded.layers] == [10, 10, 10, 16]
    with torch.device("meta"):
        by_agreement = create_model("deep_capsnet")
    assert [layer.out_dim for layer in by_agreement.layers] == [12, 12, 12, 16]
    assert by_agreement.decoder.mask == "normal"
    with torch.device("meta"):
        parsing = [create_model("parse_capsnet", image_size=40, routing="em", **of) for of in ({}, {"em_as": "peer2022"})]
    assert [model.layers[0].options for model in parsing] == [{}, peer2022_options()]


def test_mitterreiter2023_s_net_learns_priors_for_agreement_and_squashes_exponentially() -> None:
    with torch.device("meta"):
        model = create_model("parse_capsnet", image_size=40)
        uniform = create_model("parse_capsnet", image_size=40, routing="uniform")
        cifar10 = create_model(
            "parse_capsnet", image_size=32, in_channels=3, capsules=(32, 32, 32, 10), dim=(8, 16, 16, 16), backbone="cifar10"
        )
    assert [tuple(layer.prior.shape) for layer in model.layers] == [(16, 16)] * 3 + [(16, 10)]
    assert {layer.squash for layer in (*model.layers, model.primary)} == {"exp"}
    assert all(layer.bias is None for layer in model.layers)
    assert not any(name.endswith("prior") for name, _ in uniform.named_parameters())
    assert model.primary.conv.kernel_size == (15, 15)
    assert cifar10.primary.conv.kernel_size == (7, 7)
    assert [(layer.out_capsules, layer.out_dim) for layer in cifar10.layers] == [(32, 16), (32, 16), (10, 16)]
