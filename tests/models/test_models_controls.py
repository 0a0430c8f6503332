"""What peer2022's control experiments change: where the bias is and how it starts, the trunk, a ReLU before the capsules."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from capsella.cli.info import info
from capsella.data import from_tensors
from capsella.functional import squash
from capsella.models import CapsuleNet, create_model
from capsella.models.deep import capsule_stack
from capsella.train.plan import Plan

TINY = {"image_size": 17, "channels": 4, "types": 3, "reconstruction": "none"}
SCALARS = torch.tensor([-1.0, -0.3, -1e-4, 1e-4, 0.3, 1.0])[:, None, None, None]
ROUTINGS = [{"routing": "agreement"}, {"routing": "em", "em_as": "peer2022"}, {"routing": "em", "em_as": "defined"}]


def drawn(name: str, **options: Any) -> CapsuleNet:
    """Build a net, the same weights every time."""
    torch.manual_seed(4)
    return create_model(name, **options)


def biases(model: CapsuleNet) -> list[bool]:
    return [layer.bias is not None for layer in model.layers]


@pytest.mark.parametrize(
    ("name", "options", "layers"),
    [
        ("deep_capsnet", {"depth": 2}, 1),
        ("deep_capsnet", {"depth": 5}, 4),
        ("deep_capsnet", {"depth": 4, "routing": "em"}, 3),
        ("parse_capsnet", {}, 4),
        ("sign_capsnet", {}, 2),
    ],
)
def test_a_bias_is_on_every_layer_on_none_or_on_the_last(name: str, options: dict[str, Any], layers: int) -> None:
    with torch.device("meta"):
        by_bias = {bias: biases(create_model(name, bias=bias, **options)) for bias in (True, False, "last")}
    assert by_bias == {True: [True] * layers, False: [False] * layers, "last": [False] * (layers - 1) + [True]}


def test_a_stack_has_layers_between_neighbouring_sizes() -> None:
    layers = capsule_stack([5, 4, 3], [2, 6, 7], routing="agreement", bias="last", num_iters=2)
    sizes = [(layer.in_capsules, layer.in_dim, layer.out_capsules, layer.out_dim) for layer in layers]
    assert sizes == [(5, 2, 4, 6), (4, 6, 3, 7)]
    assert [layer.bias is not None for layer in layers] == [False, True]
    assert [layer.options for layer in layers] == [{"num_iters": 2}] * 2


@pytest.mark.parametrize("bias", ["first", "False", "", 1, 0, None, 1.0, ["last"]])
@pytest.mark.parametrize("name", ["deep_capsnet", "parse_capsnet", "sign_capsnet"])
def test_any_other_bias_is_refused_in_one_line(name: str, bias: Any) -> None:
    with pytest.raises(ValueError, match="bias=") as caught, torch.device("meta"):
        create_model(name, bias=bias)
    assert str(caught.value) == f"bias={bias!r} is unknown; expected True, False or 'last', a bias of the class layer alone"


def below_the_class_layer(model: CapsuleNet, primary: Tensor) -> Tensor:
    below: Any = primary
    for layer in list(model.layers)[:-1]:
        below = layer(below)
    return below.poses


@pytest.mark.parametrize("routing", ROUTINGS)
def test_a_bias_of_the_class_layer_alone_tells_capsules_from_their_negatives_by_agreement_only(routing: dict[str, Any]) -> None:
    # weights of hinton2018, with which so few capsules do not vanish.
    model = drawn("deep_capsnet", depth=5, bias="last", init="hinton2018", **routing, **TINY).double()
    with torch.no_grad():
        model.layers[-1].bias.fill_(0.1)
    primary = squash(torch.randn(3, 3, 8, dtype=torch.float64))
    assert torch.equal(below_the_class_layer(model, primary), -below_the_class_layer(model, -primary))
    ours, negated = model.from_primary(primary), model.from_primary(-primary)
    gap = float((ours.scores - negated.scores).detach().abs().max())
    assert bool((ours.capsules + negated.capsules).abs().max() > 1e-3)
    if routing["routing"] == "agreement":
        assert gap > 1e-4  # float64 rounds at 1e-16
    else:
        # all votes of a class are moved alike: so is their mean, and no distance to it changes.
        assert gap < 1e-12


def test_nets_that_differ_in_their_bias_alone_start_with_the_same_weights() -> None:
    nets = {bias: drawn("deep_capsnet", depth=4, bias=bias, **TINY) for bias in (True, False, "last")}
    nets["zero"] = drawn("deep_capsnet", depth=4, init="peer2022_zero_bias", **TINY)
    wide = drawn("deep_capsnet", depth=4, init="peer2022_wide", **TINY)
    for name, weight in nets[True].named_parameters():
        if name.startswith("layers.") and name.endswith("bias"):
            assert bool((weight == 0.1).all()), name
            assert bool((nets["zero"].get_parameter(name) == 0).all()), name
            assert torch.equal(wide.get_parameter(name), weight), name
            continue
        assert all(torch.equal(net.get_parameter(name), weight) for net in nets.values()), name
        assert torch.equal(wide.get_parameter(name), 2 * weight if name.startswith("layers.") else weight), name


def test_the_size_of_the_trunk_and_of_the_primary_capsules_can_be_set() -> None:
    with torch.device("meta"):
        usual = create_model("deep_capsnet")
        small = create_model("deep_capsnet", channels=12, types=5, depth=3)
        quick = create_model("deep_capsnet", channels=12, types=5, depth=3, trunk_stride=2)
    assert usual.trunk[0].weight.shape == (256, 1, 9, 9)
    assert usual.primary.conv.weight.shape == (256, 256, 9, 9)
    assert usual.trunk[0].stride == (1, 1)
    for model, stride, side in ((small, 1, 6), (quick, 2, 1)):
        assert model.trunk[0].weight.shape == (12, 1, 9, 9)
        assert model.trunk[0].stride == (stride, stride)
        assert model.primary.conv.weight.shape == (40, 12, 9, 9)
        assert model.primary.conv.stride == (2, 2)
        assert [(layer.in_capsules, layer.in_dim) for layer in model.layers] == [(side * side * 5, 8), (16, 12)]


def test_a_larger_stride_needs_a_larger_image() -> None:
    with pytest.raises(ValueError, match=r"^image_size=\(24, 24\) is too small for the trunk; expected at least 25 pixels"):
        create_model("deep_capsnet", image_size=24, trunk_stride=2)
    with torch.device("meta"):
        create_model("deep_capsnet", image_size=25, trunk_stride=2)


def sign_net(trunk: str, dtype: torch.dtype, seed: int, **options: Any) -> CapsuleNet:
    torch.manual_seed(seed)
    return create_model("sign_capsnet", trunk=trunk, **options).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("routing", ROUTINGS)
@pytest.mark.parametrize("trunk", ["none", "linear"])
def test_without_a_bias_and_a_relu_the_scores_of_x_are_those_of_its_negative(
    trunk: str, routing: dict[str, Any], dtype: torch.dtype
) -> None:
    scalars = SCALARS.to(dtype)
    for seed in range(3):
        model = sign_net(trunk, dtype, seed, bias=False, **routing)
        ours, negated = model(scalars), model(-scalars)
        assert torch.equal(ours.scores, negated.scores)
        assert torch.equal(ours.capsules, -negated.capsules)
        assert len(ours.scores.unique(dim=0)) > 1  # of |x| they do say something


@pytest.mark.parametrize("routing", ROUTINGS)
def test_a_relu_before_the_capsules_lets_a_net_without_bias_tell_x_from_its_negative(routing: dict[str, Any]) -> None:
    for seed in range(3):
        model = sign_net("relu", torch.float64, seed, bias=False, **routing)
        ours, negated = model(SCALARS.double()).scores, model(-SCALARS.double()).scores
        gap = (ours - negated).abs().amax(dim=1)
        # far beyond rounding where x is not itself tiny.
        assert bool((gap[[0, 1, 4, 5]] > 1e-9).all())


def test_the_trunk_of_the_sign_net_makes_twenty_capsules_of_one_value() -> None:
    for trunk in ("linear", "relu"):
        model = sign_net(trunk, torch.float64, 0)
        weight = model.trunk[1].weight
        assert weight.shape == (20, 1)
        assert model.trunk[1].bias is None
        by_hand = SCALARS.double().flatten()[:, None, None] * weight
        assert bool((by_hand < 0).any())
        expected = by_hand.clamp(min=0) if trunk == "relu" else by_hand
        primary = model.capsules(SCALARS.double())[0]
        assert primary.shape == (len(SCALARS), 20, 1)
        assert torch.equal(primary, expected)
        assert [(layer.in_capsules, layer.out_capsules) for layer in model.layers] == [(20, 20), (20, 2)]


@pytest.mark.parametrize("routing", ROUTINGS)
def test_gradients_through_a_relu_that_silences_capsules_are_finite_and_reach_the_trunk(routing: dict[str, Any]) -> None:
    model = sign_net("relu", torch.float64, 0, bias=False, **routing)
    scores: Tensor = model(SCALARS.double()).scores
    (scores * torch.rand_like(scores)).sum().backward()
    gradient = model.trunk[1].weight.grad
    assert all(bool(parameter.grad.isfinite().all()) for parameter in model.parameters())
    assert float(gradient.abs().max()) > 0


def test_an_unknown_trunk_lists_what_there_is() -> None:
    with pytest.raises(ValueError, match=r"^trunk='relo' is unknown; did you mean 'relu'\? Known: 'linear', 'none', 'relu'$"):
        create_model("sign_capsnet", trunk="relo")


def test_plans_take_the_options_of_the_control_experiments() -> None:
    plan = Plan("deep_capsnet", "mnist").changed(
        {"model.bias": "last", "model.init": "peer2022_wide", "model.channels": 16, "model.types": 2, "model.trunk_stride": 2}
    )
    again = Plan.of(plan.as_dict())
    assert again == plan
    data = from_tensors(torch.zeros(4, 1, 28, 28, dtype=torch.uint8), torch.tensor([0, 1, 8, 9]))
    model = again.build(data)
    assert biases(model) == [False, False, False, True]
    assert model.trunk[0].weight.shape[0] == 16
    assert model.layers[0].in_capsules == 2
    assert float(model.layers[1].weight.detach().std()) == pytest.approx(0.2, rel=0.03)  # of 36,864 draws
    assert model.config["init"] == "peer2022_wide"


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("deep_capsnet", {"bias": "True", "trunk_stride": "1", "channels": "256", "types": "32"}),
        ("sign_capsnet", {"trunk": "none"}),
    ],
)
def test_info_shows_the_options(name: str, options: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    info(name)
    rows = [line.replace("│", " ").split() for line in capsys.readouterr().out.splitlines()]
    assert all([key, value] in rows for key, value in options.items())
