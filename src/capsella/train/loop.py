"""The training loop: epochs of batches, one step each; logs, checkpoints and early stopping between them.

Everything that a step depends on is a function of the config, the weights and three numbers (epoch, position, step), beside
the optimiser's and the random generators' state. A checkpoint holds just that, so a resumed run takes the steps that an
uninterrupted one would have taken.
"""

from __future__ import annotations

import functools
import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from capsella.data import Batch, ImageData
from capsella.models import Prediction
from capsella.train import turns
from capsella.train.checkpoint import Checkpoint, CheckpointError, read_newest, restore_weights, write_checkpoint
from capsella.train.config import TrainConfig
from capsella.train.couplings import Couplings
from capsella.train.evaluation import Evaluation, evaluate
from capsella.train.graphs import gpu_for_graphs
from capsella.train.health import non_finite
from capsella.train.memory import is_out_of_memory, out_of_memory
from capsella.train.optim import learning_rate
from capsella.train.position import Position
from capsella.train.record import Event, Listener
from capsella.train.signals import Interrupted, StopWish
from capsella.train.state import put_state, take_state
from capsella.train.step import BadStep, Stepper
from capsella.train.watch import look, probe_of

_log = logging.getLogger(__name__)

T = TypeVar("T")

# several processes ask each other so often whether to stop or to write a checkpoint.
_AGREE_EVERY = 10
_NEVER = 2**62


class _WentBad(Exception):
    """A loss was found not to be finite after the weights had moved."""


class Trainer:
    """Trains a network.

    Args:
        fabric: device, precision and processes.
        model: the network.
        data: to learn from.
        validation: to measure accuracy on after every epoch, or None.
        config: how.
        loss: resolved name.
        checkpoints: folder of the checkpoints; None keeps none.
        listeners: called with every event by the first process.
    """

    def __init__(
        self,
        fabric: Any,
        model: nn.Module,
        data: ImageData,
        validation: ImageData | None,
        config: TrainConfig,
        *,
        loss: str,
        checkpoints: Path | None = None,
        listeners: Sequence[Listener] = (),
    ) -> None:
        self.fabric, self.model, self.data, self.validation, self.config = fabric, model, data, validation, config
        self.checkpoints, self.listeners = checkpoints, listeners
        # first: couplings take no part in the steps of the weights.
        compiles = config.fast and fabric.world_size == 1
        self.couplings = Couplings(model, config, data.num_classes, gpu=gpu_for_graphs(fabric, config), compiles=compiles)
        model.train()
        self.stepper = Stepper(fabric, model, config, loss)
        self.probe = probe_of(data, validation, self.stepper.device) if config.watch else None
        self.share = (fabric.global_rank, fabric.world_size)
        self.at = Position()
        self.per_epoch = len(data.batches(config.batch_size))
        self.last_step = min(config.epochs * self.per_epoch, config.steps or config.epochs * self.per_epoch)
        # one generator state per process, so that dropout differs between them.
        torch.manual_seed(config.seed * fabric.world_size + fabric.global_rank)
        self._started = time.monotonic()
        self._window_from = (0, self._started)
        self._saved_at = -math.inf
        self._saved_step = -1

    def train(self) -> str:
        """Train to the end; return ``"finished"``, ``"reached"`` or ``"not reached"``.

        Raises:
            Interrupted: SIGINT or SIGTERM came; a checkpoint was written.
            NonFiniteLoss: with the step, the layer and the last good checkpoint.
            OutOfMemory: with a batch size that fits.
            CheckpointError: a checkpoint could not be written.
        """
        with StopWish() as wish:
            while True:
                try:
                    return self._train(wish)
                except _WentBad as error:
                    self._retrace(error)

    def _train(self, wish: StopWish) -> str:
        self._started = time.monotonic() - self.at.seconds
        self._restart_window()
        self._keep()
        while not self._over():
            for batch in self._batches():
                self._step(batch)
                if self.at.step % self.config.log_every == 0:
                    self._log()
                if self.probe is not None and self.at.step % self.config.watch == 0:
                    self._watch(self.probe)
                # before a checkpoint, so that what one holds and what metrics.jsonl says up to its step are the same.
                if self.at.batch == self.per_epoch:
                    self._end_epoch()
                elif self.config.validate_every and self.at.step % self.config.validate_every == 0:
                    self._summarise(self.at.epoch + self.at.batch / self.per_epoch)
                self._between_steps(wish)
                if self._over():
                    break
                turns.hand_on()
        self._keep()
        # after it: a run that goes on from here with more steps has no such summary.
        if self.at.batch and not self.at.is_summed:
            self._summarise(self.at.epoch + self.at.batch / self.per_epoch)
        if self.config.target_accuracy is None:
            return "finished"
        return "reached" if self._reached() else "not reached"

    def _over(self) -> bool:
        return self.at.step >= self.last_step or self._reached()

    def _reached(self) -> bool:
        target = self.config.target_accuracy
        # a part of an epoch, at which the steps ended a run, is no epoch's end.
        ends = [entry for entry in self.at.history if isinstance(entry["epoch"], int)]
        last = ends[-1]["validation"] if ends else None
        return target is not None and last is not None and last >= target

    def _batches(self) -> Iterator[Batch]:
        batches = iter(
            self.data.batches(
                self.config.batch_size,
                epoch=self.at.epoch,
                seed=self.config.seed,
                device=self.stepper.device,
                start=self.at.batch,
                share=self.share,
            )
        )
        while (batch := self.with_room(lambda: next(batches, None))) is not None:
            yield batch

    def _step(self, batch: Batch) -> None:
        first = self.at.batch * self.config.batch_size
        of = min(self.config.batch_size, len(self.data) - first)
        try:
            self.with_room(lambda: self._move(batch, of))
        except BadStep as error:
            raise non_finite(f"the loss of step {self.at.step + 1} is {error}", self.checkpoints) from error
        self.at.step, self.at.batch, self.at.images = self.at.step + 1, self.at.batch + 1, self.at.images + of

    def _move(self, batch: Batch, of: int) -> None:
        """Move the weights, and the couplings where it is their turn."""
        rate = learning_rate(self.config, self.at.step)
        # every process must take part in a step: one that has no image of a small last batch runs an empty turn.
        mine = batch if len(batch) else self.data.batch([0], device=self.stepper.device)
        progress = self.at.step / max(1, self.last_step - 1)
        self.stepper(mine, rate=rate, progress=progress, of=of, counts=bool(len(batch)))
        if self.couplings.due(self.at.step):
            self.couplings.climb(batch.images, batch.labels, rate=rate, batch_size=of, fabric=self.fabric)

    def _end_epoch(self) -> None:
        self._summarise(self.at.epoch + 1)
        self.at.epoch, self.at.batch, self.at.epoch_sums = self.at.epoch + 1, 0, [0.0, 0.0, 0.0]

    def _summarise(self, epoch: float) -> None:
        """Close the books of an epoch, or of its part up to here: a run of so many steps ends, or is measured on its way."""
        self._add_up(self._read())
        loss, right, images = self.at.epoch_sums
        validation = self.validation
        found = self.with_room(lambda: self.evaluate(validation)).accuracy if validation is not None else None
        summary = {
            "step": self.at.step,
            "epoch": epoch,
            "images": self.at.images,
            "loss": loss / images,
            "accuracy": right / images,
            "validation": found,
            "seconds": self.clock(),
        }
        self.at.history.append(summary)
        self.say({"event": "epoch", **summary})
        self._restart_window()

    def _add_up(self, sums: list[float]) -> None:
        self.at.epoch_sums = [a + b for a, b in zip(self.at.epoch_sums, sums, strict=True)]

    def evaluate(self, data: ImageData) -> Evaluation:
        """Measure the network on a split, each process its share."""
        measure = functools.partial(
            evaluate,
            self.model,
            data,
            device=self.stepper.device,
            share=self.share,
            reduce=lambda tensor: self.fabric.all_reduce(tensor, reduce_op="sum"),
            context=self.fabric.autocast,
        )
        batch_size = max(256, self.config.batch_size)
        if self.stepper.device.type == "cuda":
            # most of the time goes into launches, of which larger batches have fewer; where they do not fit, smaller ones do.
            try:
                return measure(batch_size=4 * batch_size)
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
            torch.cuda.empty_cache()
        return measure(batch_size=batch_size)

    def _read(self) -> list[float]:
        """Return and clear the sums since the last reading; the one place of an epoch that waits for the device."""
        sums = self.fabric.all_reduce(self.stepper.sums.clone(), reduce_op="sum").tolist()
        self._check_losses()
        self.stepper.sums.zero_()
        return [float(value) for value in sums]

    def _log(self) -> None:
        loss, right, images = sums = self._read()
        self._add_up(sums)
        seen, since = self._window_from
        self.say(
            {
                "event": "log",
                "step": self.at.step,
                "epoch": self.at.epoch + self.at.batch / self.per_epoch,
                "images": self.at.images,
                "loss": loss / images,
                "accuracy": right / images,
                "lr": learning_rate(self.config, self.at.step - 1),
                "images_per_second": (self.at.images - seen) / max(1e-9, time.monotonic() - since),
                "seconds": self.clock(),
            }
        )
        self._restart_window()

    def _watch(self, probe: Batch) -> None:
        """Look at the capsule layers; all processes do, since none would be on its way before the first one is."""

        def loss(prediction: Prediction, targets: Tensor) -> Tensor:
            return self.stepper.measure.classification(prediction, targets, self.stepper.progress)

        if self.stepper.device.type == "cuda":
            # steps that are still under way are no part of the look.
            torch.cuda.synchronize(self.stepper.device)
        start = time.monotonic()
        given: dict[str, Any] = {"targets": probe.labels, "loss": loss, "context": self.fabric.autocast}
        found, self.at.watched = self.with_room(lambda: look(self.model, probe.images, self.at.watched, **given))
        self.at.watch_seconds += time.monotonic() - start
        epoch = self.at.epoch + self.at.batch / self.per_epoch
        self.say({"event": "watch", "step": self.at.step, "epoch": epoch, "images": self.at.images, **found})

    def say(self, event: Event) -> None:
        """Tell the listeners, if this is the first process."""
        if self.fabric.is_global_zero:
            for listener in self.listeners:
                listener(event)

    def _restart_window(self) -> None:
        self._window_from = (self.at.images, time.monotonic())

    def clock(self) -> float:
        """Return the seconds that the run has taken, over all its sittings."""
        return time.monotonic() - self._started

    def _between_steps(self, wish: StopWish) -> None:
        """Write a checkpoint where one is due; stop where that is wished for."""
        if self.fabric.world_size > 1 and self.at.step % _AGREE_EVERY:
            return
        due = time.monotonic() - self._saved_at >= self.config.checkpoint_seconds
        stop, due = self._agree(wish.received or 0, due)
        if due or stop:
            self._keep()
        if stop:
            where = (
                f"go on from {self.checkpoints.parent} with --resume"
                if self.checkpoints
                else "no folder was given, so it is lost"
            )
            raise Interrupted(f"stopped after step {self.at.step}: {where}", stop)

    def _agree(self, stop: int, due: bool) -> tuple[int, bool]:
        if self.fabric.world_size == 1:
            return stop, due
        # the first process's clock counts; anyone's signal does.
        wishes = torch.tensor([stop, int(due and self.fabric.is_global_zero)], device=self.stepper.device)
        agreed = self.fabric.all_reduce(wishes, reduce_op="max").tolist()
        return int(agreed[0]), bool(agreed[1])

    def _keep(self) -> None:
        """Write a checkpoint, unless this step has one or there is nowhere to; what it would hold is looked at in any case."""
        if self._saved_step == self.at.step:
            return
        self._check_health()
        if self.checkpoints is not None:
            self._write(self.checkpoints)
        self._saved_at, self._saved_step = time.monotonic(), self.at.step

    def _write(self, folder: Path) -> None:
        self.at.seconds = self.clock()
        tensors = take_state(self.fabric, self.stepper, self.couplings)
        failed = None
        if self.fabric.is_global_zero:
            try:
                write_checkpoint(folder, self.at.step, self.model.state_dict(), tensors, {"position": asdict(self.at)})
            except CheckpointError as error:
                failed = error
        if int(self.fabric.all_reduce(torch.tensor(int(failed is not None), device=self.stepper.device), reduce_op="max")):
            raise failed or CheckpointError("the first process could not write a checkpoint")

    def restore(self, found: Checkpoint) -> None:
        """Go back, or forward, to a checkpoint."""
        restore_weights(self.model, found.weights, where=str(found.path))
        put_state(found.tensors, self.fabric, self.stepper, self.couplings)
        self.at = Position(**found.facts["position"])
        self.stepper.clock.fill_(self.at.step)
        self._saved_at, self._saved_step = time.monotonic(), self.at.step

    def _check_health(self) -> None:
        """A checkpoint that is kept must be one to go on from."""
        spoilt = [name for name, parameter in self.model.named_parameters() if not bool(parameter.isfinite().all())]
        if spoilt:
            when = f"after step {self.at.step}, its gradient was not" if self.at.step else "before the first step"
            raise _WentBad(f"{spoilt[0]!r} is not finite {when}")
        self._check_losses()

    def _check_losses(self) -> None:
        bad = self.stepper.bad
        # a process whose losses are all finite has no say in which step was the first.
        first = int(self.fabric.all_reduce(torch.where(bad > 0, bad, _NEVER), reduce_op="min"))
        if first < _NEVER:
            raise _WentBad(f"the loss of step {first} is not finite")

    def _retrace(self, bad: _WentBad) -> None:
        """Go back to the last checkpoint and look at every loss from there: the run is the same, so it fails again there."""
        if self.stepper.careful or self.checkpoints is None or self._saved_step < 0:
            raise non_finite(str(bad), self.checkpoints) from bad
        found = read_newest(self.checkpoints)
        _log.warning("%s; going back to %s to see where it begins", bad, found.path.name)
        self.release()
        self.restore(found)
        self.stepper.careful = True
        self.say({"event": "rewind", "step": self.at.step})

    def release(self) -> None:
        """Let go of gradients and graphs, so that there is room again."""
        self.couplings.release()
        self.stepper.release()

    def leave(self) -> None:
        """Leave the network as it came."""
        self.couplings.release()
        self.stepper.leave()

    def with_room(self, act: Callable[[], T]) -> T:
        """Act, or say which batch size would fit."""
        try:
            return act()
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
        # outside the except clause, whose frames hold the tensors that did not fit.
        self.release()
        # only one process can try without the others.
        alone = self.fabric.world_size == 1
        raise out_of_memory(self.config.batch_size, self.stepper.device, self._attempt if alone else None)

    def _attempt(self, size: int) -> None:
        images = torch.arange(size) % len(self.data)
        self.stepper.attempt(self.data.batch(images, device=self.stepper.device))
