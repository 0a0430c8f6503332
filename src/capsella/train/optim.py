"""Optimisers and learning-rate schedules of the five papers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from capsella.train.config import TrainConfig


def learning_rate(config: TrainConfig, step: int) -> float:
    """Return the rate of a step, counted from 0: a pure function, so that a resumed run needs no schedule state.

    Example:
        >>> config = TrainConfig(lr=0.1, schedule="multistep", milestones=(10,), decay=0.5)
        >>> learning_rate(config, 9), learning_rate(config, 10)
        (0.1, 0.05)
    """
    if config.schedule == "exponential":
        return max(float(config.lr * config.decay ** (step / config.decay_steps)), min(config.lr_floor, config.lr))
    if config.schedule == "inverse":
        return float(config.lr * (1 + config.inverse_gamma * step) ** -config.inverse_power)
    if config.schedule == "multistep":
        return float(config.lr * config.decay ** sum(step >= milestone for milestone in config.milestones))
    return config.lr


def parameter_groups(parameters: Iterable[tuple[str, nn.Parameter]], bias_rate: float) -> list[dict[str, Any]]:
    """Put named parameters into one group, or biases into a second one where they learn at another rate.

    Every group has a ``factor`` by which its rate differs from the schedule's.
    """
    named = [(name, parameter) for name, parameter in parameters if parameter.requires_grad]
    if bias_rate == 1:
        return [{"params": [parameter for _, parameter in named], "factor": 1.0}]
    biases = [parameter for name, parameter in named if name.rpartition(".")[2] == "bias"]
    apart = {id(parameter) for parameter in biases}
    others = [parameter for _, parameter in named if id(parameter) not in apart]
    groups = [{"params": others, "factor": 1.0}, {"params": biases, "factor": bias_rate}]
    return [group for group in groups if group["params"]]


def make_optimiser(config: TrainConfig, groups: list[dict[str, Any]], *, on_device: bool = False) -> torch.optim.Optimizer:
    """Build the optimiser of the weights.

    Args:
        config: names it.
        groups: as ``parameter_groups`` makes them.
        on_device: keep the rate in a tensor beside the parameters, so that a CUDA graph can hold the whole step.
    """
    # fused: one pass over the weights instead of ten; a seventh of a small net's step on a CPU.
    options: dict[str, Any] = {"lr": config.lr, "weight_decay": config.weight_decay, "fused": True}
    if on_device:
        device = groups[0]["params"][0].device
        for group in groups:
            group["lr"] = torch.tensor(config.lr * group["factor"], device=device)
    if config.optimiser == "sgd":
        return torch.optim.SGD(groups, momentum=config.momentum, **options)
    if on_device:
        options |= {"capturable": True}
    return torch.optim.Adam(groups, betas=config.betas, **options)


def set_rate(optimiser: torch.optim.Optimizer, rate: float) -> None:
    """Set the rate of every group, without waiting for the device."""
    for group in optimiser.param_groups:
        value = rate * group.get("factor", 1.0)
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(value)
        else:
            group["lr"] = value
