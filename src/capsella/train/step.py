"""One step of the weights: plain, or as one CUDA graph; loss and right answers are added up on the device."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from capsella.data import Batch
from capsella.errors import RunError
from capsella.models import Model
from capsella.train import turns
from capsella.train.compiling import compiled
from capsella.train.config import TrainConfig
from capsella.train.graphs import Replayed, gpu_for_graphs
from capsella.train.health import first_non_finite
from capsella.train.memory import optimiser_bytes
from capsella.train.objectives import AsTensors, Measure, Tensors, tensors_of
from capsella.train.optim import make_optimiser, parameter_groups, set_rate


class BadStep(RuntimeError):
    """The loss of a step is not finite; nothing was updated. The message says where it began."""


class Stepper:
    """Moves the weights, batch by batch.

    Args:
        fabric: device, precision and processes.
        model: the network.
        config: of the training.
        loss: resolved name.

    Attributes:
        sums: float64 [3] on the device: loss · images, right answers, images.
        bad: int64 [1] on the device: the first step, counted from 1, whose loss was not finite; 0 if none.
        careful: look at every loss before the weights move; on a GPU that means waiting for it.
    """

    def __init__(self, fabric: Any, model: nn.Module, config: TrainConfig, loss: str) -> None:
        self.fabric, self.model, self.config = fabric, model, config
        self.device: torch.device = fabric.device
        self.careful = self.device.type == "cpu"
        gpu = gpu_for_graphs(fabric, config)
        if gpu is not None and turns.is_shared() and _draws(model):
            # graphs of one generator may read the place from which it goes on while another run's turn writes it.
            raise RunError("fast=True with dropout does not go with other runs in one program; leave one of them out")
        # a module of one's own may count on its layout; the compiler finds one for it.
        self._channels_last = _lay_out_convolutions(model) if config.fast and isinstance(model, Model) else []
        bare = AsTensors(model)
        if config.fast and fabric.world_size > 1:
            bare.compile(dynamic=False)
        self.measure = Measure(fabric.setup_module(bare), model, config, loss)
        self._compiled = compiled(Measure(bare, model, config, loss)) if config.fast and fabric.world_size == 1 else None
        groups = parameter_groups(model.named_parameters(), config.bias_rate)
        self.optimiser = make_optimiser(config, groups, on_device=gpu is not None)
        self.parameters = [parameter for group in groups for parameter in group["params"]]
        self.sums = torch.zeros(3, dtype=torch.float64, device=self.device)
        self.clock = torch.zeros(1, dtype=torch.int64, device=self.device)
        self.bad = torch.zeros(1, dtype=torch.int64, device=self.device)
        self.progress = torch.zeros((), device=self.device)
        self.replayed = None if gpu is None else Replayed(gpu)

    def __call__(self, batch: Batch, *, rate: float, progress: float, of: int, counts: bool = True) -> None:
        """Take a step.

        Args:
            batch: this process's part of it.
            rate: learning rate.
            progress: share of the training that is over.
            of: images of the whole batch, over all processes.
            counts: False for a batch that only stands in for an empty part.
        """
        set_rate(self.optimiser, rate)
        self.progress.fill_(progress)
        tensors = self._laid_out(batch)
        # gradients are averaged over processes, so a part counts by how much more or less than its share it is.
        weight = len(batch) * self.fabric.world_size / of if counts else 0.0
        if self.replayed is None or of != self.config.batch_size or self.careful:
            self._plain(tensors, len(batch), weight)
        else:
            self.replayed(self._whole, tensors, self._without_gradients)

    def _laid_out(self, batch: Batch) -> Tensors:
        images, labels, parts, part_labels = tensors_of(batch)
        if self._channels_last:
            images = images.contiguous(memory_format=torch.channels_last)
        return images, labels, parts, part_labels

    def _measured(self, tensors: Tensors, *, by_compiler: bool) -> tuple[Tensor, Tensor]:
        if not by_compiler or self._compiled is None:
            return self.measure(tensors, self.progress)
        with self.fabric.autocast():
            return self._compiled(tensors, self.progress)  # type: ignore[no-any-return]

    def _plain(self, tensors: Tensors, images: int, weight: float) -> None:
        full = images * self.fabric.world_size == self.config.batch_size
        loss, right = self._measured(tensors, by_compiler=full)
        if self.careful:
            self._look(loss, tensors)
        self._update(loss, right, images, weight)

    def _whole(self, images: Tensor, labels: Tensor, parts: Tensor | None, part_labels: Tensor | None) -> None:
        """Take the step of a whole batch, as a graph holds it."""
        self._update(*self._measured((images, labels, parts, part_labels), by_compiler=True), self.config.batch_size, 1.0)

    def _without_gradients(self) -> None:
        self.optimiser.zero_grad(set_to_none=True)

    def _update(self, loss: Tensor, right: Tensor, images: int, weight: float) -> None:
        self.optimiser.zero_grad()
        self.fabric.backward(loss * weight)
        if self.config.clip is not None:
            nn.utils.clip_grad_norm_(self.parameters, self.config.clip, foreach=True)
        self.optimiser.step()
        self.clock += 1
        worth = loss.detach().double() * images
        count = torch.full_like(worth, images)
        if weight:
            self.sums += torch.stack((worth, right.double(), count))
        self.bad.copy_(torch.where((self.bad == 0) & ~loss.detach().isfinite(), self.clock, self.bad))

    def release(self) -> None:
        """Let go of gradients and graphs, so that there is room again."""
        self._without_gradients()
        if self.replayed is not None:
            self.replayed.release()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def leave(self) -> None:
        """Leave the network as it came: without gradients, its weights laid out as they were."""
        self.release()
        for module in self._channels_last:
            module.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]

    def attempt(self, batch: Batch) -> None:
        """Go forward and backward without moving the weights, to see whether it fits."""
        room = optimiser_bytes(self.optimiser, self.config.optimiser)
        kept_free = torch.empty(room, dtype=torch.uint8, device=self.device)
        try:
            loss, _ = self.measure(self._laid_out(batch), self.progress)
            self.fabric.backward(loss)
        finally:
            del kept_free
            self.release()

    def _look(self, loss: Tensor, tensors: Tensors) -> None:
        """Raise ``BadStep`` in every process where the loss of one is not finite: none may wait for another's gradients."""
        fine = bool(loss.isfinite())
        if self.fabric.world_size == 1:
            if not fine:
                raise BadStep(self._explain(tensors, float(loss.detach())))
            return
        mine = torch.tensor(0 if fine else 1 + int(self.fabric.global_rank), device=self.device)
        worst = int(self.fabric.all_reduce(mine, reduce_op="max"))
        if worst:
            found = self._explain(tensors, float(loss.detach())) if worst == 1 + self.fabric.global_rank else None
            raise BadStep(self.fabric.broadcast(found, src=worst - 1))

    def _explain(self, tensors: Tensors, value: float) -> str:
        # the network without its wrapper, which may want to talk to the other processes.
        bare = Measure(AsTensors(self.model), self.model, self.config, self.measure.loss)

        def run() -> None:
            with self.fabric.autocast():
                bare(tensors, self.progress)

        return f"{value}; the first non-finite values are {first_non_finite(self.model, run, tensors[0])}"


def _draws(model: nn.Module) -> bool:
    """Whether a step draws random numbers."""
    return any(isinstance(module, nn.modules.dropout._DropoutNd) and module.p > 0 for module in model.modules())


def _lay_out_convolutions(model: nn.Module) -> list[nn.Module]:
    """Put channels last in the weights of convolutions alone: those of capsules have four axes too, and no channels.

    Returns:
        The modules that were laid out otherwise.
    """
    found = [module for module in model.modules() if isinstance(module, nn.Conv2d) and module.weight.is_contiguous()]
    for module in found:
        module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return list(found)
