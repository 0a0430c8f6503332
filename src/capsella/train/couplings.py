"""yang2021's alternation: quadratic couplings climb their own objective while everything else descends the loss.

    after every n_b steps of the weights, n_r times on the same batch:  b ← b + step(∂ Σ_j F_j / ∂b)

F_j is about class j. Where several layers have such couplings, those below climb the same F by the chain rule, each layer less
its own λ‖b‖. The gradient is a sum over the batch, so it is added up over processes, each with its share of the penalty.

Departures: the papers' γ is not known; ``adam`` is the authors' code, ``ascent`` takes the mean over the batch.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import Any

import torch
from einops import rearrange
from torch import Tensor, nn

from capsella import routing as R
from capsella.models import CapsuleNet, Model
from capsella.nn import RoutingLayer
from capsella.nn.base import unpack
from capsella.routing import Routed
from capsella.routing.quadratic import class_signs, coupling_size, discriminative_power
from capsella.train.compiling import compiled
from capsella.train.config import TrainConfig
from capsella.train.graphs import Replayed
from capsella.train.optim import set_rate


class Couplings:
    """The couplings of a network and the optimiser that is theirs alone.

    Args:
        model: a network whose last layers are quadratic.
        config: of the training.
        num_classes: J of the last layer: F_j is about class j.
        gpu: on which a turn is played as a graph; None where it is taken as it comes.
        compiles: whether what a whole batch takes is compiled.
    """

    def __init__(
        self,
        model: nn.Module,
        config: TrainConfig,
        num_classes: int,
        *,
        gpu: torch.device | None = None,
        compiles: bool = False,
    ) -> None:
        self.model, self.config = model, config
        routing = [layer for layer in model.modules() if isinstance(layer, RoutingLayer)]
        self.layers = [layer for layer in routing if layer.algorithm.own_step]
        self._check(routing, num_classes)
        self.parameters = [layer.get_parameter("couplings") for layer in self.layers]
        options = getattr(model, "config", None)
        # a module of one's own may keep something else under that name.
        self.norm = str((options.get("norm") if isinstance(options, dict) else None) or "l2")
        # they take no part in the main optimiser's graph.
        for parameter in self.parameters:
            parameter.requires_grad_(False)
        has_optimiser = bool(self.parameters) and config.coupling_optimiser == "adam"
        # a turn is many small kernels: as a graph it takes as long as they do, else as long as their launches.
        self.replayed = Replayed(gpu) if gpu is not None and has_optimiser else None
        self.optimiser = self._make_optimiser(gpu) if has_optimiser else None
        # itself and no other kind of it, which may do anything: its layers follow each other, and the last need not be asked.
        ours = type(model) is CapsuleNet and list(model.layers)[len(model.layers) - len(self.layers) :] == self.layers
        self._entering = self._below if ours else self._seen
        compiles = compiles and bool(self.parameters)
        # hooks are not for a compiler.
        self._parts = (
            compiled(self._entering) if compiles and ours else self._entering,
            compiled(self._power) if compiles else self._power,
        )

    def _make_optimiser(self, gpu: torch.device | None) -> torch.optim.Optimizer:
        if gpu is None:
            return torch.optim.Adam(self.parameters, lr=self.config.lr, maximize=True)
        # a graph holds the whole step: the rate is in a tensor beside the couplings.
        rate = torch.tensor(self.config.lr, device=gpu)
        return torch.optim.Adam(self.parameters, lr=rate, maximize=True, capturable=True)

    def _check(self, routing: Sequence[RoutingLayer], num_classes: int) -> None:
        """Raise ``ValueError`` unless every quadratic layer reaches the classes through quadratic layers alone."""
        last = routing[len(routing) - len(self.layers) :]
        chained = [(below, above) for below, above in itertools.pairwise(last) if above.in_capsules != below.out_capsules]
        for number, layer in enumerate(self.layers, 1):
            is_class = number == len(self.layers)
            fits = not is_class or layer.out_capsules == num_classes
            # below the classes what a capsule gives on counts, and a ReLU is none of the routing's.
            plain = layer.positions is None and (is_class or layer.relu == "none")
            if layer not in last or chained or not fits or not plain:
                raise ValueError(
                    f"routing={layer.routing!r} has {layer.out_capsules} upper capsules in {type(layer).__name__}; its "
                    f"couplings learn from classes: expected it in the last layers alone, the very last with {num_classes} "
                    "capsules"
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
        scale = self.config.coupling_lr / self.config.lr if self.config.coupling_lr is not None else 0.2
        rate *= scale
        if self.config.schedule == "exponential":
            rate = max(rate, min(self.config.lr_floor, self.config.lr * scale))
        if self.optimiser is not None:
            set_rate(self.optimiser, rate)
        whole = batch_size == self.config.batch_size
        take = functools.partial(self._take, fabric=fabric, rate=rate / batch_size, whole=whole)
        if self.replayed is None or not whole:
            take(images, labels)
        else:
            self.replayed(take, (images, labels))

    def _take(self, images: Tensor, labels: Tensor, *, fabric: Any, rate: float, whole: bool) -> None:
        """Take the steps of one turn; ``rate`` is that of plain ascent for one image, an optimiser has its own."""
        entering, power = self._parts if whole else (self._entering, self._power)
        with torch.no_grad(), fabric.autocast():
            poses = entering(images)
        signs = class_signs(labels, self.layers[-1].out_capsules, dtype=poses.dtype)
        for _ in range(self.config.coupling_steps):
            couplings = [parameter.detach().clone().requires_grad_() for parameter in self.parameters]
            with torch.enable_grad():
                slopes = torch.autograd.grad(power(poses, signs, fabric.world_size, *couplings), couplings)
            for parameter, slope in zip(self.parameters, slopes, strict=True):
                parameter.grad = fabric.all_reduce(slope, reduce_op="sum")
            self._move(rate)

    def release(self) -> None:
        """Let go of the graph, so that there is room again; what it read may have been replaced."""
        if self.replayed is not None:
            self.replayed.release()

    def _below(self, images: Tensor) -> Tensor:
        """Return the poses that reach the lowest quadratic layer, with the weights as they are."""
        net: Any = self.model
        poses, _ = unpack(net.entering(len(net.layers) - len(self.layers), images), None)
        return self._rows(poses)

    def _rows(self, poses: Tensor) -> Tensor:
        """Return capsules in one row, in the weights' dtype."""
        poses = rearrange(poses, "b h w n p -> b (h w n) p") if poses.ndim == 5 else poses
        return poses.to(self.layers[0].weight.dtype)

    def _seen(self, images: Tensor) -> Tensor:
        """Return the same for a network of which nothing is known but what its quadratic layers are given."""
        given: list[Tensor] = []
        order: list[tuple[RoutingLayer, bool]] = []
        above: list[Tensor] = []

        def keep(layer: Any, args: tuple[Any, ...]) -> None:
            below, _ = unpack(args[0], None)
            order.append((layer, not above or below is above[-1]))
            given.append(below)

        def note(layer: Any, args: tuple[Any, ...], result: Routed) -> None:
            above.append(result.poses)

        hooks = [layer.register_forward_pre_hook(keep) for layer in self.layers]
        hooks += [layer.register_forward_hook(note) for layer in self.layers]
        # nothing is drawn for them.
        run = self.model.classify if isinstance(self.model, Model) else self.model
        try:
            run(images)
        finally:
            for hook in hooks:
                hook.remove()
        if [layer for layer, _ in order] != self.layers or not all(follows for _, follows in order):
            raise ValueError(
                "quadratic layers must each take what the one below gives, once and unchanged; this "
                f"{type(self.model).__name__} does otherwise: expected one of them, in the last layer"
            )
        return self._rows(given[0])

    def _power(self, poses: Tensor, signs: Tensor, world: int, *couplings: Tensor) -> Tensor:
        """Return Σ_j F_j for the samples of this process, less its share of the penalty."""
        penalty = self.config.coupling_penalty / world
        if self.norm == "l1" and self.config.coupling_optimiser == "ascent":
            penalty *= self.config.coupling_l1_factor
        for layer, b in zip(self.layers[:-1], couplings[:-1], strict=True):
            poses = _route(layer, poses, b, bias=layer.bias, squash=layer.squash)
        # as the paper defines v_j: without the bias.
        squash = "sabour" if self.config.coupling_objective == "squashed" else "none"
        capsules = _route(self.layers[-1], poses, couplings[-1], bias=None, squash=squash)
        size = torch.stack([coupling_size(b, self.norm).sum() for b in couplings]).sum()
        return discriminative_power(capsules, signs).sum() - penalty * size

    @torch.no_grad()
    def _move(self, rate: float) -> None:
        if self.optimiser is not None:
            self.optimiser.step()
        else:
            for parameter in self.parameters:
                if parameter.grad is not None:
                    parameter.add_(parameter.grad, alpha=rate)
                    parameter.clamp_(-self.config.coupling_bound, self.config.coupling_bound)
        for parameter in self.parameters:
            parameter.grad = None


def _route(layer: RoutingLayer, poses: Tensor, couplings: Tensor, *, bias: Tensor | None, squash: str | None) -> Tensor:
    """Return a layer's capsules as a function of its couplings; in one pass where an implementation can, without votes."""
    options = {"bias": None if bias is None else bias.detach(), "squash": squash, "need_couplings": False}
    weight = layer.weight.detach()
    found = R.vote_and_route(
        layer.routing, poses, weight, rows=layer.rows, impl=layer.impl, couplings=couplings, **layer.options, **options
    )
    return found.poses
