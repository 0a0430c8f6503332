"""Schedules against numbers worked out by hand, steps against torch's optimisers in a loop of one's own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tiny_runs import differing, losses, made_data, plain_net, short_run, weights
from torch import Tensor, nn
from torch.nn import functional as tnf

from capsella.train import TrainConfig
from capsella.train.optim import learning_rate, make_optimiser, parameter_groups, set_rate

STEPS, BATCH = 5, 8


@pytest.mark.parametrize(
    ("step", "rate"),
    [
        (0, 1e-3),
        (1000, 9.797958971132712e-4),  # √0.96
        (2000, 9.6e-4),
        (4000, 9.216e-4),
        (20_000, 6.648326359915008e-4),  # 0.96¹⁰
        (338_433, 1.000000e-6),  # 0.96^(n / 2000) = 1/1000 for n = 338,432.6
        (10_000_000, 1e-6),
    ],
)
def test_sabours_rate_falls_by_4_percent_every_2000_steps_down_to_a_floor(step: int, rate: float) -> None:
    config = TrainConfig(schedule="exponential")
    assert (config.lr, config.decay, config.decay_steps, config.lr_floor) == (1e-3, 0.96, 2000, 1e-6)
    assert learning_rate(config, step) == pytest.approx(rate, rel=1e-9)


def test_the_floor_is_not_reached_too_early() -> None:
    config = TrainConfig(schedule="exponential")
    assert learning_rate(config, 338_000) == pytest.approx(1.00887e-6, rel=1e-5)
    assert learning_rate(config, 338_400) > 1e-6


def test_a_floor_above_the_rate_does_not_raise_it() -> None:
    config = TrainConfig(schedule="exponential", lr=1e-7)
    assert [learning_rate(config, step) for step in (0, 2000, 10**6)] == [1e-7] * 3


@pytest.mark.parametrize(
    ("step", "rate"),
    [
        (0, 1e-3),
        (1000, 9.310124e-4),  # 1.1^−0.75
        (5000, 7.377879e-4),  # 1.5^−0.75
        (10_000, 5.946036e-4),  # 2^−0.75: chen2019's rate at the end
        (150_000, 1.25e-4),  # 16^−0.75 = 1/8
    ],
)
def test_caffes_inverse_rate_with_chen2019s_numbers(step: int, rate: float) -> None:
    config = TrainConfig(schedule="inverse", lr=1e-3, inverse_gamma=1e-4, inverse_power=0.75)
    assert learning_rate(config, step) == pytest.approx(rate, rel=1e-6)


@pytest.mark.parametrize("milestones", [(10, 20, 20), (20, 10, 20)])
def test_multistep_falls_at_each_milestone(milestones: tuple[int, ...]) -> None:
    config = TrainConfig(schedule="multistep", lr=0.1, decay=0.5, milestones=milestones)
    rates = [learning_rate(config, step) for step in (0, 9, 10, 19, 20, 1000)]
    assert rates == pytest.approx([0.1, 0.1, 0.05, 0.05, 0.0125, 0.0125], rel=1e-12)


def test_constant_stays_whatever_the_other_fields_say() -> None:
    config = TrainConfig(lr=0.3, decay=0.1, milestones=(1,), inverse_gamma=5, decay_steps=1)
    assert {learning_rate(config, step) for step in (0, 1, 10**9)} == {0.3}


def by_hand(optimiser: Any, net: nn.Sequential, *, clip: float | None = None, rates: list[float] | None = None) -> list[float]:
    """Train with an optimiser of torch's, as a person would write it; return the losses."""
    data, seen = made_data(), []
    torch.manual_seed(0)
    step, epoch = 0, 0
    while step < STEPS:
        for images, labels in data.batches(BATCH, epoch=epoch, seed=0):
            if step == STEPS:
                break
            for group in optimiser.param_groups:
                group["lr"] = group.get("times", 1.0) * (rates[step] if rates else group["lr"])
            optimiser.zero_grad()
            loss = tnf.cross_entropy(net(images), labels)
            loss.backward()
            if clip is not None:
                norm = torch.cat([p.grad.flatten() for p in net.parameters() if p.grad is not None]).norm()
                for p in net.parameters():
                    p.grad *= min(1.0, clip / (float(norm) + 1e-6))
            optimiser.step()
            seen.append(loss.item())
            step += 1
        epoch += 1
    return seen


def split_groups(net: nn.Module, **biases: Any) -> list[dict[str, Any]]:
    named = dict(net.named_parameters())
    return [
        {"params": [p for name, p in named.items() if name.endswith("weight")]},
        {"params": [p for name, p in named.items() if name.endswith("bias")], **biases},
    ]


@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize(
    ("settings", "options"),
    [
        ({}, {}),
        ({"lr": 0.01, "betas": (0.5, 0.9)}, {"lr": 0.01, "betas": (0.5, 0.9)}),
        ({"weight_decay": 0.1}, {"weight_decay": 0.1}),
    ],
)
def test_adams_steps_are_torchs_bit_for_bit(settings: dict[str, Any], options: dict[str, Any], dropout: float) -> None:
    net = plain_net(dropout=dropout)
    expected = by_hand(torch.optim.Adam(net.parameters(), fused=True, **{"lr": 1e-3, **options}), net)
    run = short_run(plain_net(dropout=dropout), **settings)
    assert not differing(weights(run), net.state_dict())
    assert losses(run) == expected


@pytest.mark.parametrize(
    ("settings", "options"),
    [
        ({}, {"momentum": 0.9}),
        ({"momentum": 0.0}, {}),
        ({"weight_decay": 5e-4}, {"momentum": 0.9, "weight_decay": 5e-4}),
    ],
)
def test_sgds_steps_are_torchs_bit_for_bit(settings: dict[str, Any], options: dict[str, Any]) -> None:
    net = plain_net()
    expected = by_hand(torch.optim.SGD(net.parameters(), lr=0.1, fused=True, **options), net)
    run = short_run(plain_net(), optimiser="sgd", lr=0.1, **settings)
    assert not differing(weights(run), net.state_dict())
    assert losses(run) == expected


@pytest.mark.parametrize("name", ["adam", "sgd"])
def test_one_pass_over_the_weights_is_the_step_of_many(name: str) -> None:
    net = plain_net()
    make: Any = torch.optim.Adam if name == "adam" else torch.optim.SGD
    options: dict[str, Any] = {"lr": 0.01, "weight_decay": 0.01} | ({} if name == "adam" else {"momentum": 0.9})
    expected = by_hand(make(net.parameters(), fused=False, foreach=False, **options), net)
    run = short_run(plain_net(), optimiser=name, lr=0.01, weight_decay=0.01)
    assert losses(run) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("name", ["adam", "sgd"])
def test_biases_learn_at_their_own_rate_bit_for_bit(name: str) -> None:
    net = plain_net()
    make: Any = torch.optim.Adam if name == "adam" else torch.optim.SGD
    options = {"weight_decay": 0.01} | ({} if name == "adam" else {"momentum": 0.9})
    expected = by_hand(make(split_groups(net, lr=0.04), lr=0.02, fused=True, **options), net)
    run = short_run(plain_net(), optimiser=name, lr=0.02, bias_rate=2.0, weight_decay=0.01)
    assert not differing(weights(run), net.state_dict())
    assert losses(run) == expected
    assert losses(run) != losses(short_run(plain_net(), optimiser=name, lr=0.02, weight_decay=0.01))


def test_the_biases_rate_follows_the_schedule() -> None:
    net, rates = plain_net(), [0.1, 0.05, 0.025, 0.0125, 0.00625]
    optimiser = torch.optim.SGD(split_groups(net, times=3.0), lr=0.1)
    expected = by_hand(optimiser, net, rates=rates)
    settings = {"schedule": "exponential", "decay": 0.5, "decay_steps": 1, "momentum": 0.0, "bias_rate": 3.0}
    run = short_run(plain_net(), optimiser="sgd", lr=0.1, **settings)
    for name, value in net.state_dict().items():
        torch.testing.assert_close(weights(run)[name], value, rtol=1e-6, atol=1e-8)
    assert losses(run) == pytest.approx(expected, rel=1e-6)


def test_clipping_scales_the_whole_gradient_to_the_norm() -> None:
    clip, net = 0.05, plain_net()
    expected = by_hand(torch.optim.SGD(net.parameters(), lr=0.5), net, clip=clip)
    run = short_run(plain_net(), optimiser="sgd", lr=0.5, momentum=0.0, clip=clip)
    for name, value in net.state_dict().items():
        torch.testing.assert_close(weights(run)[name], value, rtol=1e-5, atol=1e-7)
    assert losses(run) == pytest.approx(expected, rel=1e-5)
    assert losses(run) != pytest.approx(losses(short_run(plain_net(), optimiser="sgd", lr=0.5, momentum=0.0)), rel=1e-3)


def test_a_clipped_step_is_as_long_as_the_rate_times_the_norm() -> None:
    before = plain_net().state_dict()
    run = short_run(plain_net(), optimiser="sgd", lr=0.5, momentum=0.0, clip=0.05, steps=1)
    moved = torch.cat([(weights(run)[name] - before[name]).flatten() for name in before]).norm()
    assert float(moved) == pytest.approx(0.5 * 0.05, rel=1e-4)


def test_a_gradient_below_the_norm_is_left_alone() -> None:
    free = short_run(plain_net(), optimiser="sgd", lr=0.1)
    assert not differing(weights(free), weights(short_run(plain_net(), optimiser="sgd", lr=0.1, clip=1e6)))


def test_the_last_smaller_batch_counts_as_the_mean_of_its_own_images() -> None:
    """20 images in batches of 8: the third step has four, and its loss is their mean, not half of it."""
    net, data = plain_net(), made_data()
    run = short_run(plain_net(), lr=1e-9, steps=3)
    batches = list(data.batches(BATCH, epoch=0, seed=0))
    assert [len(batch) for batch in batches] == [8, 8, 4]
    expected = [tnf.cross_entropy(net(images), labels).item() for images, labels in batches]
    assert losses(run) == pytest.approx(expected, rel=1e-5)
    summary = next(event for event in run.events if event["event"] == "epoch")
    assert summary["loss"] == pytest.approx(sum(e * len(b) for e, b in zip(expected, batches, strict=True)) / 20, rel=1e-5)


def test_every_trained_parameter_is_in_one_group() -> None:
    net = plain_net()
    net[1].weight.requires_grad_(False)
    for rate in (1.0, 2.0):
        groups = parameter_groups(net.named_parameters(), rate)
        grouped = [id(p) for group in groups for p in group["params"]]
        assert sorted(grouped) == sorted(id(p) for p in net.parameters() if p.requires_grad)
    assert [group["factor"] for group in groups] == [1.0, 2.0]
    assert {id(p) for p in groups[1]["params"]} == {id(net[1].bias), id(net[4].bias)}


def test_a_net_without_biases_has_one_group() -> None:
    groups = parameter_groups(nn.Linear(2, 2, bias=False).named_parameters(), 2.0)
    assert [(len(group["params"]), group["factor"]) for group in groups] == [(1, 1.0)]


@pytest.mark.parametrize("name", ["adam", "sgd"])
def test_a_rate_can_be_set_in_a_number_or_in_a_tensor(name: str) -> None:
    net = plain_net()
    optimiser = make_optimiser(TrainConfig(optimiser=name), parameter_groups(net.named_parameters(), 2.0))
    set_rate(optimiser, 0.25)
    assert [group["lr"] for group in optimiser.param_groups] == [0.25, 0.5]
    held = [torch.tensor(1.0), torch.tensor(1.0)]
    for group, rate in zip(optimiser.param_groups, held, strict=True):
        group["lr"] = rate
    set_rate(optimiser, 0.5)
    assert [float(rate) for rate in held] == [0.5, 1.0]
    assert all(isinstance(group["lr"], Tensor) for group in optimiser.param_groups)


def test_frozen_weights_stay_and_are_free_again_if_they_were() -> None:
    net = plain_net()
    net[1].weight.requires_grad_(False)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    run = short_run(net, weight_decay=0.1)
    assert "1.weight" not in differing(weights(run), before)
    assert "1.bias" in differing(weights(run), before)
    assert [p.requires_grad for p in net.parameters()] == [False, True, True, True]
