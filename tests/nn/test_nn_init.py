"""The papers' initialisations: spread, bounds and constants, with bounds that follow from the number of draws."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from capsella.nn import CapsuleConv2d, CapsuleLinear, init

I, P, J, D = 50, 8, 10, 16

# variance of a normal that is cut at ±2σ, in σ²: 1 − 2·2φ(2)/(2Φ(2) − 1).
_CUT = 1 - 4 * math.exp(-2) / math.sqrt(2 * math.pi) / math.erf(math.sqrt(2))


def largest(values: Tensor) -> float:
    return float(values.detach().abs().max())


def assert_uniform(values: Tensor, bound: float) -> None:
    """All within ±bound, nearly reaching it, mean and variance within five standard errors."""
    n = values.numel()
    assert largest(values) <= bound * (1 + 1e-6)
    assert largest(values) >= bound * (1 - 20 / n)  # missed with probability e^-20
    assert_moments(values, std=bound / math.sqrt(3), kurtosis=1.8)


def assert_normal(values: Tensor, std: float) -> None:
    assert_moments(values, std=std, kurtosis=3.0)
    # of n normal draws, the largest is past 2σ but for a chance of 0.954^n.
    assert largest(values) > 2 * std


def assert_truncated(values: Tensor, std: float) -> None:
    assert largest(values) <= 2 * std * (1 + 1e-6)
    assert_moments(values, std=std * math.sqrt(_CUT), kurtosis=3.0)


def assert_moments(values: Tensor, *, std: float, kurtosis: float) -> None:
    wide, n = values.detach().double(), values.numel()
    assert n >= 300
    assert abs(float(wide.mean())) <= 5 * std / math.sqrt(n)
    assert abs(float(wide.square().mean()) / std**2 - 1) <= 5 * math.sqrt((kurtosis - 1) / n)


class Net(nn.Module):
    """Two convolutions, batch normalisation, a dense layer and capsules, all large enough for statistics."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 20, 5), nn.Conv2d(20, 24, 3)
        self.norm, self.dense = nn.BatchNorm2d(24), nn.Linear(30, 40)
        self.capsules = CapsuleLinear(I, P, J, D, **options)


def assert_torch_defaults(net: Net) -> None:
    for module, fan_in in ((net.first, 3 * 25), (net.second, 20 * 9), (net.dense, 30)):
        assert_uniform(module.weight, fan_in**-0.5)
        assert largest(module.bias) <= fan_in**-0.5
        assert float(module.bias.detach().std()) > 0


def started(name: str, **options: Any) -> Net:
    torch.manual_seed(7)
    net = Net(**options)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.fill_(9.0)  # anything that is left alone shows
    assert init.initialise_(net, name) is net
    return net


def test_every_scheme_is_tested() -> None:
    expected = ["chen2019", "gu2021", "hinton2018", "mitterreiter2023", "peer2022", "peer2022_sign", "peer2022_wide"]
    assert init.names() == [*expected, "peer2022_wider", "peer2022_zero_bias", "sabour", "yang2021"]


@pytest.mark.parametrize("name", ["sabour", "yang2021"])
def test_sabour_draws_truncated_normals_and_biases_of_a_tenth(name: str) -> None:
    net = started(name)
    assert_truncated(net.first.weight, 0.05)
    for weight in (net.second.weight, net.dense.weight, net.capsules.weight):
        assert_truncated(weight, 0.1)
    for bias in (net.first.bias, net.second.bias, net.dense.bias, net.capsules.bias):
        assert bool((bias == 0.1).all())


@pytest.mark.parametrize(
    ("name", "std", "bias"),
    [
        ("peer2022", 0.1, 0.1),
        ("peer2022_zero_bias", 0.1, 0.0),
        ("peer2022_wide", 0.2, 0.1),
        ("peer2022_wider", 2.0, 0.1),
        ("peer2022_sign", 0.5, 0.5),
    ],
)
def test_peer2022_draws_normal_capsules_and_glorot_convolutions(name: str, std: float, bias: float) -> None:
    net = started(name)
    assert_normal(net.capsules.weight, std)
    assert bool((net.capsules.bias == bias).all())
    for module, fans in ((net.first, (3 + 20) * 25), (net.second, (20 + 24) * 9), (net.dense, 30 + 40)):
        assert_uniform(module.weight, math.sqrt(6 / fans))
        assert bool((module.bias == 0).all())


@pytest.mark.parametrize(
    ("name", "std"), [("peer2022", 0.1), ("peer2022_zero_bias", 0.1), ("peer2022_wide", 0.1), ("peer2022_sign", 0.5)]
)
def test_peer2022_draws_normal_betas(name: str, std: float) -> None:
    torch.manual_seed(3)
    layer = init.initialise_(CapsuleLinear(2, 2, 500, 2, routing="em"), name)
    assert_normal(layer.beta_a, std)
    assert_normal(layer.beta_u, std)
    assert not torch.equal(layer.beta_a, layer.beta_u)


@pytest.mark.parametrize("name", ["sabour", "yang2021", "mitterreiter2023", "gu2021", "hinton2018", "chen2019"])
def test_the_others_start_betas_at_zero(name: str) -> None:
    layer = started(name, routing="em").capsules
    assert bool((layer.beta_a == 0).all())
    assert bool((layer.beta_u == 0).all())


@pytest.mark.parametrize("name", ["mitterreiter2023", "gu2021"])
@pytest.mark.parametrize(
    ("options", "bound"),
    [
        ({}, I**-0.5),
        ({"shared": True}, I**-0.5),
        ({"routing": "uniform"}, I**-0.5),
        ({"normalise": "sources"}, P**-0.5),
        ({"routing": "uniform", "normalise": "sources"}, P**-0.5),
        ({"routing": "uniform", "normalise": "sources", "shared": True}, P**-0.5),
    ],
)
def test_capsule_weights_allow_for_the_number_of_votes(name: str, options: dict[str, Any], bound: float) -> None:
    net = started(name, **options)
    assert_uniform(net.capsules.weight, bound)
    assert bool((net.capsules.bias == 0.1).all())
    assert_torch_defaults(net)


def test_hinton2018_draws_standard_normal_capsules() -> None:
    net = started("hinton2018")
    assert_normal(net.capsules.weight, 1.0)
    assert bool((net.capsules.bias == 0).all())
    assert_torch_defaults(net)


def test_chen2019_divides_by_the_fan_in_of_caffe() -> None:
    net = started("chen2019")
    assert_uniform(net.capsules.weight, math.sqrt(3 / (J * P * D)))
    assert bool((net.capsules.bias == 0).all())
    for module, fan_in in ((net.first, 3 * 25), (net.second, 20 * 9), (net.dense, 30)):
        assert_uniform(module.weight, math.sqrt(3 / fan_in))
        assert bool((module.bias == 0).all())


def test_chen2019_gives_the_bounds_of_the_released_mnist_net() -> None:
    torch.manual_seed(0)
    layer = init.initialise_(CapsuleLinear(1152, 8, 10, 16, routing="trainable"), "chen2019")
    assert largest(layer.weight) == pytest.approx(0.0484, abs=5e-5)
    assert largest(layer.couplings) == pytest.approx(0.0510, abs=5e-5)


@pytest.mark.parametrize("name", init.names())
def test_learned_couplings_and_priors_start_as_their_algorithm_says(name: str) -> None:
    assert_uniform(started(name, routing="trainable").capsules.couplings, math.sqrt(3 / I))
    assert bool((started(name, routing="quadratic").capsules.couplings == 1).all())
    assert bool((started(name, prior=True).capsules.prior == 0).all())


def test_couplings_of_different_positions_are_drawn_apart() -> None:
    torch.manual_seed(1)
    layer = CapsuleConv2d(2, 4, 3, 4, kernel_size=2, grid_size=8, routing="trainable")
    init.initialise_(layer, "chen2019")
    assert layer.couplings.shape[0] == 49
    assert layer.couplings.flatten(1).unique(dim=0).shape[0] == 49
    assert_uniform(layer.couplings, math.sqrt(3 / 8))


@pytest.mark.parametrize("name", init.names())
def test_batch_normalisation_is_left_alone(name: str) -> None:
    net = started(name)
    assert bool((net.norm.weight == 9).all())
    assert bool((net.norm.bias == 9).all())
    assert bool((net.norm.running_var == 1).all())


@pytest.mark.parametrize("name", init.names())
def test_layers_without_a_bias_are_no_obstacle(name: str) -> None:
    net = nn.Sequential(nn.Conv2d(1, 2, 3, bias=False), nn.Linear(2, 2, bias=False), CapsuleLinear(3, 2, 2, 2, bias=False))
    init.initialise_(net, name)
    assert [key for key, _ in net.named_parameters()] == ["0.weight", "1.weight", "2.weight"]


def test_an_unknown_scheme_lists_near_matches() -> None:
    with pytest.raises(ValueError, match=r"^init='peer2021' is unknown; did you mean .*'peer2022'.*Known: 'chen2019'"):
        init.initialise_(nn.Linear(2, 2), "peer2021")
