"""Everything beside the weights that the next step depends on, as named tensors."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from capsella.train.couplings import Couplings
from capsella.train.step import Stepper


def take_state(fabric: Any, stepper: Stepper, couplings: Couplings) -> dict[str, Tensor]:
    """Return optimisers, running sums and the random state of every process; all processes must call it."""
    tensors = optimiser_tensors(stepper.optimiser, "optimiser")
    if couplings.optimiser is not None:
        tensors |= optimiser_tensors(couplings.optimiser, "couplings")
    tensors["sums"] = fabric.all_reduce(stepper.sums.clone(), reduce_op="sum")
    generators = {"cpu": torch.get_rng_state()}
    if stepper.device.type == "cuda":
        generators["cuda"] = torch.cuda.get_rng_state(stepper.device)
    for kind, state in generators.items():
        with warnings.catch_warnings():
            # Fabric gathers by a way that newer releases of torch would rather have replaced.
            warnings.simplefilter("ignore")
            everyone = fabric.all_gather(state.to(stepper.device)).reshape(fabric.world_size, -1).cpu()
        tensors |= {f"random.{kind}.{rank}": own.clone() for rank, own in enumerate(everyone)}
    return tensors


def put_state(tensors: Mapping[str, Tensor], fabric: Any, stepper: Stepper, couplings: Couplings) -> None:
    """Put everything back that ``take_state`` returned."""
    restore_optimiser(stepper.optimiser, tensors, "optimiser")
    if couplings.optimiser is not None:
        restore_optimiser(couplings.optimiser, tensors, "couplings")
    # the sums are those of all processes: one of them goes on with them.
    stepper.sums.copy_(tensors["sums"] if fabric.is_global_zero else torch.zeros(3))
    stepper.bad.zero_()
    rank = fabric.global_rank
    # a run that goes on with more processes than it had gives the new ones a state of their own.
    if f"random.cpu.{rank}" in tensors:
        torch.set_rng_state(tensors[f"random.cpu.{rank}"])
    if stepper.device.type == "cuda" and f"random.cuda.{rank}" in tensors:
        torch.cuda.set_rng_state(tensors[f"random.cuda.{rank}"], stepper.device)


def optimiser_tensors(optimiser: torch.optim.Optimizer, prefix: str) -> dict[str, Tensor]:
    """Return the tensors of an optimiser's state by name."""
    state = optimiser.state_dict()["state"]
    return {
        f"{prefix}.{index}.{key}": value
        for index, entry in state.items()
        for key, value in entry.items()
        if isinstance(value, Tensor)
    }


def restore_optimiser(optimiser: torch.optim.Optimizer, tensors: Mapping[str, Tensor], prefix: str) -> None:
    """Put tensors that ``optimiser_tensors`` returned back; rates are set anew at every step."""
    weights = [parameter for group in optimiser.param_groups for parameter in group["params"]]
    state: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        if name.startswith(f"{prefix}."):
            number, key = name.removeprefix(f"{prefix}.").split(".", 1)
            # in the order in which the weights lie in memory, which a fused step takes for granted.
            laid_out = tensor if key == "step" else torch.empty_like(weights[int(number)]).copy_(tensor)
            state.setdefault(int(number), {})[key] = laid_out
    rates = [group["lr"] for group in optimiser.param_groups]
    optimiser.load_state_dict({"state": state, "param_groups": optimiser.state_dict()["param_groups"]})
    for group, rate in zip(optimiser.param_groups, rates, strict=True):
        group["lr"] = rate
