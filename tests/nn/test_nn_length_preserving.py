"""The data-dependent start: reached lengths are measured again by a forward pass of the test's own."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from capsella.models import create_model
from capsella.nn import CapsuleConv2d, CapsuleLinear, RoutingLayer
from capsella.nn.init import length_preserving_
from capsella.routing import Routed

WITHIN = 0.01


def stack(depth: int, *, seed: int = 0, **options: Any) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(*(CapsuleLinear(8, 6, 8, 6, **options) for _ in range(depth)))


def capsules(*size: int) -> Tensor:
    return torch.randn(*size, generator=torch.Generator().manual_seed(5))


def measured_lengths(model: nn.Module, images: Tensor) -> dict[str, float]:
    """Run the model once and take the mean length of every routing layer's poses."""
    found: dict[str, float] = {}

    def keep(name: str) -> Any:
        def hook(module: nn.Module, args: Any, result: Routed) -> None:
            assert result.poses.isfinite().all(), name
            found[name] = float(result.poses.double().square().sum(dim=-1).sqrt().mean())

        return hook

    hooks = [m.register_forward_hook(keep(name)) for name, m in model.named_modules() if isinstance(m, RoutingLayer)]
    with torch.no_grad():
        model(images)
    for hook in hooks:
        hook.remove()
    return found


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(
    "options",
    [*({"routing": name} for name in ("agreement", "uniform", "trainable", "quadratic")), {"normalise": "sources"}],
    ids=str,
)
def test_every_layer_of_a_twelve_layer_net_reaches_one_half(options: dict[str, Any], bias: bool) -> None:
    net, images = stack(12, **options, bias=bias), capsules(16, 8, 6)
    before = [layer.weight.detach().clone() for layer in net]
    others = {k: v.clone() for k, v in net.state_dict().items() if not k.endswith("weight")}
    report = length_preserving_(net, images)
    lengths = measured_lengths(net, images)
    assert [entry.layer for entry in report] == list(lengths) == [str(k) for k in range(12)]
    for entry, weight, layer in zip(report, before, net, strict=True):
        assert lengths[entry.layer] == pytest.approx(0.5, rel=WITHIN)
        assert entry.after == pytest.approx(lengths[entry.layer], rel=1e-4)
        assert not entry.note
        torch.testing.assert_close(layer.weight.detach(), weight * entry.scale, rtol=1e-6, atol=0)
    for key, value in others.items():
        assert torch.equal(net.state_dict()[key], value), key


@pytest.mark.parametrize(
    "options", [*({"routing": name} for name in ("agreement", "uniform", "trainable")), {"normalise": "sources"}], ids=str
)
def test_a_parse_tree_net_of_twelve_routing_layers_reaches_one_half(options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    net = create_model("parse_capsnet", **options, capsules=(16,) * 12 + (10,), reconstruction="none").train()
    images = torch.rand(8, 1, 28, 28, generator=torch.Generator().manual_seed(1))
    buffers = {key: value.clone() for key, value in net.named_buffers()}
    assert any(key.endswith("running_mean") for key in buffers)
    report = length_preserving_(net, images)
    for key, value in net.named_buffers():
        assert torch.equal(value, buffers[key]), key
    assert net.training
    lengths = measured_lengths(net, images)
    assert len(lengths) == len(report) == 12
    for name, value in lengths.items():
        assert value == pytest.approx(0.5, rel=WITHIN), name
    assert net(images).scores.isfinite().all()


@pytest.mark.parametrize("length", [0.05, 0.3, 0.7])
def test_other_lengths_are_reached_too(length: float) -> None:
    net, images = stack(3, bias=False), capsules(16, 8, 6)
    length_preserving_(net, images, length)
    assert list(measured_lengths(net, images).values()) == [pytest.approx(length, rel=WITHIN)] * 3


def test_lengths_above_one_are_reached_without_a_squash() -> None:
    net, images = stack(3, routing="uniform", squash="none"), capsules(16, 8, 6)
    length_preserving_(net, images, 4.0)
    assert list(measured_lengths(net, images).values()) == [pytest.approx(4.0, rel=WITHIN)] * 3


@pytest.mark.parametrize("routing", ["agreement", "uniform", "trainable", "quadratic"])
def test_convolutional_layers_are_rescaled(routing: str) -> None:
    torch.manual_seed(0)
    options = {"grid_size": 5} if routing in ("trainable", "quadratic") else {}
    net = nn.Sequential(
        CapsuleConv2d(2, 4, 3, 4, kernel_size=3, stride=2, routing=routing, **options),
        CapsuleLinear(2 * 2 * 3, 4, 5, 4, routing=routing),
    )
    images = capsules(8, 5, 5, 2, 4)
    length_preserving_(net, images)
    assert list(measured_lengths(net, images).values()) == [pytest.approx(0.5, rel=WITHIN)] * 2


@pytest.mark.parametrize("name", ["gcapsnet_multi", "gcapsnet_conv", "quadratic_capsnet", "capsnet_small", "deep_capsnet"])
def test_whole_models_are_rescaled(name: str) -> None:
    torch.manual_seed(0)
    net = create_model(name, image_size=25).eval()
    images = torch.rand(8, *net.image_shape, generator=torch.Generator().manual_seed(1))
    length_preserving_(net, images)
    for layer, value in measured_lengths(net, images).items():
        assert value == pytest.approx(0.5, rel=WITHIN), layer


def test_em_layers_are_left_alone_and_it_says_so(caplog: pytest.LogCaptureFixture) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(CapsuleLinear(8, 6, 8, 6), CapsuleLinear(8, 6, 8, 6, routing="em"), CapsuleLinear(8, 6, 4, 6))
    images = capsules(16, 8, 6)
    weight = net[1].weight.detach().clone()
    with caplog.at_level(logging.WARNING, logger="capsella"):
        lowest, middle, highest = length_preserving_(net, images)
    assert torch.equal(net[1].weight, weight)
    assert middle.scale is None
    assert middle.before == middle.after
    assert "1: routing='em'" in middle.note
    assert "left alone" in middle.note
    assert [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING] == [middle.note]
    lengths = measured_lengths(net, images)
    for entry in (lowest, highest):
        assert entry.scale is not None
        assert lengths[entry.layer] == pytest.approx(0.5, rel=WITHIN)


def long_bias(layer: CapsuleLinear) -> None:
    with torch.no_grad():
        layer.bias.fill_(3.0)


@pytest.mark.parametrize(
    ("length", "spoil", "message"),
    [
        (1.5, None, r"length=1\.5 cannot be reached in layer '0', .*saturates$"),
        (0.5, long_bias, r"length=0\.5 cannot be reached in layer '2', .*its bias alone is longer$"),
    ],
    ids=["beyond the squash", "bias too long"],
)
def test_an_unreachable_length_is_an_error_and_changes_nothing(length: float, spoil: Any, message: str) -> None:
    net, images = stack(3), capsules(16, 8, 6)
    if spoil:
        spoil(net[2])
    before = {key: value.clone() for key, value in net.state_dict().items()}
    with pytest.raises(ValueError, match=message) as caught:
        length_preserving_(net, images, length)
    assert "\n" not in str(caught.value)
    for key, value in net.state_dict().items():
        assert torch.equal(value, before[key]), key


def test_a_single_lower_capsule_cannot_make_twenty_upper_ones_long() -> None:
    torch.manual_seed(0)
    net = create_model("sign_capsnet", bias=False)  # agreement gives the whole input to one of the twenty
    before = net.layers[0].weight.detach().clone()
    with pytest.raises(ValueError, match=r"^length=0\.5 cannot be reached in layer 'layers\.0', which stays at 0\.05: "):
        length_preserving_(net, torch.rand(8, 1, 1, 1, generator=torch.Generator().manual_seed(1)))
    assert torch.equal(net.layers[0].weight, before)


def test_zero_inputs_cannot_be_made_long() -> None:
    net = stack(2, bias=False)
    with pytest.raises(ValueError, match=r"cannot be reached in layer '0', which stays at 0: its inputs are zero"):
        length_preserving_(net, torch.zeros(4, 8, 6))


@pytest.mark.parametrize("length", [0.0, -1.0, float("nan")])
def test_a_length_must_be_positive(length: float) -> None:
    with pytest.raises(ValueError, match=r"^length=.* is too small; expected a number above 0$"):
        length_preserving_(stack(1), capsules(2, 8, 6), length)


def test_a_model_without_capsule_layers_is_an_error_and_keeps_its_statistics() -> None:
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2)).train()
    before = {key: value.clone() for key, value in net.state_dict().items()}
    with pytest.raises(ValueError, match="model has no capsule layer that ran on images"):
        length_preserving_(net, torch.rand(4, 1, 5, 5))
    for key, value in net.state_dict().items():
        assert torch.equal(value, before[key]), key


def test_layers_are_rescaled_in_the_order_in_which_they_run() -> None:
    class Backwards(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last, self.first = CapsuleLinear(8, 6, 4, 6), CapsuleLinear(8, 6, 8, 6)

        def forward(self, images: Tensor) -> Routed:
            return self.last(self.first(images))

    torch.manual_seed(0)
    net, images = Backwards(), capsules(16, 8, 6)
    assert [entry.layer for entry in length_preserving_(net, images)] == ["first", "last"]
    assert list(measured_lengths(net, images).values()) == [pytest.approx(0.5, rel=WITHIN)] * 2


def test_layers_may_be_called_by_keyword() -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = CapsuleLinear(8, 6, 4, 6)

        def forward(self, images: Tensor) -> Routed:
            return self.layer(below=images)

    torch.manual_seed(0)
    net, images = Named(), capsules(16, 8, 6)
    length_preserving_(net, images)
    assert measured_lengths(net, images)["layer"] == pytest.approx(0.5, rel=WITHIN)


def test_the_model_runs_once_however_deep_it_is() -> None:
    net, images, runs = stack(12), capsules(16, 8, 6), []
    net.register_forward_pre_hook(lambda module, args: runs.append(len(args)))
    length_preserving_(net, images)
    assert len(runs) == 1
    # nothing is left on the layers.
    assert not any(layer._forward_pre_hooks for layer in net)


def test_a_model_that_was_compiled_and_has_run_is_rescaled() -> None:
    torch.manual_seed(0)
    net, images = stack(3), capsules(16, 8, 6)
    compiled = torch.compile(net, backend="eager")
    for _ in range(2):
        compiled(images)
    found = length_preserving_(compiled, images)
    assert len(found) == 3
    assert list(measured_lengths(net, images).values()) == [pytest.approx(0.5, rel=WITHIN)] * 3
