"""yang2021's alternation: quadratic couplings climb their own objective while everything else descends the loss.

    after every n_b steps of the weights, n_r times on the same batch:  b ← b + step(∂ Σ_j F_j / ∂b)

The gradient is a sum over the batch, so it is added up over processes, each with its share of the penalty.

Departures: the papers' γ is not known; ``adam`` is the authors' code, ``ascent`` takes the mean over the batch.
"""

from __future__ import annotations

from typing import Any

import torch
from einops import rearrange
from torch import Tensor, nn

from capsella.functional import make_votes
from capsella.nn import RoutingLayer
from capsella.nn.base import unpack
from capsella.routing import quadratic_objective
from capsella.train.config import TrainConfig


class Couplings:
    """The couplings of a network and the optimiser that is theirs alone.

    Args:
        model: a network with a quadratic class layer.
        config: of the training.
        num_classes: J that every quadratic layer must have: F_j is about class j.
    """

    def __init__(self, model: nn.Module, config: TrainConfig, num_classes: int) -> None:
        self.model, self.config = model, config
        routing = [layer for layer in model.modules() if isinstance(layer, RoutingLayer)]
        self.layers = [layer for layer in routing if layer.algorithm.own_step]
        for layer in self.layers:
            if layer is not routing[-1] or layer.out_capsules != num_classes or layer.positions is not None:
                raise ValueError(
                    f"routing={layer.routing!r} has {layer.out_capsules} upper capsules in {type(layer).__name__}; "
                    f"its couplings learn from classes: expected it in the last layer alone, with {num_classes} capsules"
                )
        self.parameters = [layer.get_parameter("couplings") for layer in self.layers]
        options = getattr(model, "config", None)
        # a module of one's own may keep something else under that name.
        norm = str((options.get("norm") if isinstance(options, dict) else None) or "l2")
        self.objective: dict[str, Any] = {"norm": norm, "on": config.coupling_objective}
        # they take no part in the main optimiser's graph.
        for parameter in self.parameters:
            parameter.requires_grad_(False)
        self.optimiser = (
            torch.optim.Adam(self.parameters, lr=config.lr, maximize=True)
            if self.parameters and config.coupling_optimiser == "adam"
            else None
        )

    def __bool__(self) -> bool:
        return bool(self.parameters) and self.config.coupling_steps > 0

    def due(self, step: int) -> bool:
        """Tell whether it is the couplings' turn after the weights' step ``step``, counted from 0."""
        return bool(self) and (step + 1) % self.config.weight_steps == 0

    def climb(self, images: Tensor, labels: Tensor, *, rate: float, batch_size: int, fabric: Any) -> None:
        """Take the couplings' steps of one turn.

        Args:
            images: this process's part of the batch.
            labels: [B] or multi-hot [B, J].
            rate: the weights' learning rate.
            batch_size: images over all processes.
            fabric: adds up the gradients.
        """
        votes = self._votes(images, fabric)
        scale = self.config.coupling_lr / self.config.lr if self.config.coupling_lr is not None else 0.2
        rate *= scale
        if self.config.schedule == "exponential":
            rate = max(rate, min(self.config.lr_floor, self.config.lr * scale))
        for _ in range(self.config.coupling_steps):
            for parameter, each in zip(self.parameters, votes, strict=True):
                parameter.grad = fabric.all_reduce(self._slope(parameter, each, labels, fabric.world_size), reduce_op="sum")
            self._move(rate, batch_size)

    def _votes(self, images: Tensor, fabric: Any) -> list[Tensor]:
        """Return the votes that reach each quadratic layer, with the weights as they are."""
        poses: dict[int, Tensor] = {}

        def keep(layer: nn.Module, args: tuple[Any, ...]) -> None:
            below, _ = unpack(args[0], None)
            poses[id(layer)] = rearrange(below, "b h w n p -> b (h w n) p") if below.ndim == 5 else below

        hooks = [layer.register_forward_pre_hook(keep) for layer in self.layers]
        try:
            with torch.no_grad(), fabric.autocast():
                self.model(images)
        finally:
            for hook in hooks:
                hook.remove()
        with torch.no_grad():
            return [make_votes(poses[id(layer)].float(), layer.weight, rows=layer.rows) for layer in self.layers]

    def _slope(self, parameter: Tensor, votes: Tensor, labels: Tensor, world: int) -> Tensor:
        penalty = self.config.coupling_penalty / world
        if self.objective["norm"] == "l1" and self.config.coupling_optimiser == "ascent":
            penalty *= self.config.coupling_l1_factor
        b = parameter.detach().clone().requires_grad_()
        with torch.enable_grad():
            total = quadratic_objective(votes, b, labels, penalty=penalty, **self.objective).sum()
            (slope,) = torch.autograd.grad(total, b)
        return slope

    @torch.no_grad()
    def _move(self, rate: float, batch_size: int) -> None:
        if self.optimiser is not None:
            for group in self.optimiser.param_groups:
                group["lr"] = rate
            self.optimiser.step()
        else:
            for parameter in self.parameters:
                if parameter.grad is not None:
                    parameter.add_(parameter.grad, alpha=rate / batch_size)
                    parameter.clamp_(-self.config.coupling_bound, self.config.coupling_bound)
        for parameter in self.parameters:
            parameter.grad = None
