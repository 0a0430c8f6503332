"""``capsella.fit``: from a model and data to a run."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from capsella.data import ImageData, load_data
from capsella.errors import RunError
from capsella.models import Model, as_prediction, evaluating
from capsella.routing.dispatch import choices
from capsella.train import turns
from capsella.train.checkpoint import CheckpointError, read_checkpoint, read_newest
from capsella.train.config import END, TrainConfig, differences
from capsella.train.evaluation import Evaluation
from capsella.train.folder import RunFolder
from capsella.train.health import NonFiniteLoss
from capsella.train.loop import Trainer
from capsella.train.memory import MemoryEstimate, available, estimate
from capsella.train.objectives import AsTensors, Measure, choose_loss, shows_several, tensors_of
from capsella.train.processes import layout, make_fabric, products_in, trying_algorithms, without_subnormals
from capsella.train.progress import Progress
from capsella.train.record import Event, Listener, MetricsFile, as_json, describe_data, environment, read_events, write_json
from capsella.train.run import Run, describe_model
from capsella.train.signals import Interrupted
from capsella.train.watch import check_watch


def fit(
    model: nn.Module,
    data: ImageData | str,
    *,
    validation: ImageData | None = None,
    test: ImageData | None = None,
    folder: str | os.PathLike[str] | None = None,
    resume: bool = False,
    progress: bool = True,
    listeners: Sequence[Listener] = (),
    facts: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Run:
    """Train a network.

    Args:
        model: one of ``create_model``, or any module that takes images and returns a ``Prediction`` or logits.
        data: to learn from; a name stands for its ``fit`` split, with ``val`` for validation and ``test`` at the end.
        validation: measured after every epoch; decides about early stopping.
        test: measured once, at the end.
        folder: where the run is written; None keeps it in memory.
        resume: go on with the run in ``folder``, from its newest checkpoint.
        progress: show a bar in a terminal, plain lines elsewhere, on stderr.
        listeners: called with every event, a dict.
        facts: what else ``config.json`` should say.
        **settings: fields of ``TrainConfig``; an unknown one is a ``TypeError``.

    Example:
        >>> import capsella
        >>> data = capsella.load_data("sign")
        >>> run = fit(capsella.create_model("sign_capsnet"), data, epochs=1, lr=5e-3, batch_size=256, progress=False)
        >>> run.status, run.record["steps"]
        ('finished', 79)
    """
    if isinstance(data, str):
        validation = load_data(data, split="val") if validation is None else validation
        test = load_data(data, split="test") if test is None else test
        data = load_data(data, split="fit")
    config = TrainConfig.of(settings)
    _check_fit(model, data, config, validation, test)
    loss = choose_loss(config, model, several=shows_several(data))
    place = RunFolder(folder) if folder is not None else None
    if resume and place is None:
        raise ValueError("resume=True needs folder=…, the run to go on with")
    several = layout(config).devices * layout(config).nodes > 1
    fabric = make_fabric(config, unused_parameters=several and _has_unused(model, data, config, loss))
    with contextlib.ExitStack() as stack:
        stack.enter_context(products_in(config.precision))
        stack.enter_context(without_subnormals())
        if place is not None:
            _together(fabric, lambda: _claim(stack, place, resume))
        splits = {"train": data, "validation": validation, "test": test}
        job = _Job(fabric, model, splits, config, loss, place, dict(facts or {}))
        with _said_once(fabric, CheckpointError, Interrupted, NonFiniteLoss):
            return job.run(resume, [*([Progress()] if progress else []), *listeners])


class _Job:
    """One call of ``fit``, from config.json to record.json."""

    def __init__(
        self,
        fabric: Any,
        model: nn.Module,
        splits: dict[str, ImageData | None],
        config: TrainConfig,
        loss: str,
        place: RunFolder | None,
        facts: dict[str, Any],
    ) -> None:
        self.fabric, self.model, self.splits, self.settings, self.loss = fabric, model, splits, config, loss
        self.place, self.facts = place, facts
        self.events: list[Event] = []
        if fabric.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(fabric.device)

    def run(self, resume: bool, listeners: list[Listener]) -> Run:
        data = self.splits["train"]
        if data is None:
            raise ValueError("there are no data to learn from")
        at_rest = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        everyone: list[Listener] = [self._note, *listeners]
        with _said_once(self.fabric, ValueError):
            trainer = Trainer(
                self.fabric,
                self.model,
                data,
                self.splits["validation"],
                self.settings,
                loss=self.loss,
                checkpoints=None if self.place is None else self.place.checkpoints,
                listeners=everyone,
            )
        try:
            return self._train(trainer, data, resume, everyone)
        finally:
            trainer.leave()
            for parameter in at_rest:
                parameter.requires_grad_(True)
            for listener in everyone:
                if isinstance(listener, Progress):
                    listener.close()

    def _train(self, trainer: Trainer, data: ImageData, resume: bool, everyone: list[Listener]) -> Run:
        if self.settings.fast or trainer.stepper.device.type == "cuda":
            trainer.say({"event": "prepare"})
        self.memory, implementations = trainer.with_room(lambda: self._probe(trainer, data))
        config = as_json(
            {
                "model": describe_model(self.model),
                "data": {name: describe_data(split) for name, split in self.splits.items()},
                "train": {**self.settings.as_dict(), "loss": self.loss},
                "environment": environment(trainer.stepper.device, self.fabric.world_size),
                "implementations": implementations,
                "parameters": sum(parameter.numel() for parameter in self.model.parameters()),
                **self.facts,
            }
        )
        if self.place is not None:
            self._prepare(self.place, trainer, config, resume, everyone)
        trainer.say(
            {
                "event": "start",
                "config": config,
                "steps": trainer.last_step,
                "from_step": trainer.at.step,
                "memory": self._step_memory(),
                "available": available(trainer.stepper.device),
            }
        )
        try:
            # not before: what the memory estimate ran would have counted every try.
            with trying_algorithms(self.settings.fast):
                status = trainer.train()
        except NonFiniteLoss as error:
            self._finish(trainer, config, "non-finite", None, reason=str(error))
            raise
        test = self.splits["test"]
        found = trainer.evaluate(test) if test is not None else None
        record = self._finish(trainer, config, status, found)
        self.model.eval()
        if self.place is not None:
            return Run(config, model=self.model, record=record, folder=self.place.path)
        return Run(config, model=self.model, record=record, events=[event for event in self.events if "step" in event])

    def _step_memory(self) -> int:
        """Return the bytes of a step on one device."""
        return self.memory.total(-(-self.settings.batch_size // self.fabric.world_size))

    def _note(self, event: Event) -> None:
        """Keep an event; a run that goes back to a checkpoint takes back what came after it."""
        if event["event"] == "rewind":
            self.events = [each for each in self.events if each.get("step", 0) <= event["step"]]
        else:
            self.events.append(event)

    def _probe(self, trainer: Trainer, data: ImageData) -> tuple[MemoryEstimate, list[str]]:
        """Run two batches smaller than a step's: what they keep in memory, and which implementations route the larger one."""

        def loss_of(size: int) -> Tensor:
            batch = data.batch(torch.arange(size) % len(data), device=trainer.stepper.device)
            with self.fabric.autocast():
                measure = Measure(AsTensors(self.model), self.model, self.settings, self.loss)
                return measure(tensors_of(batch), trainer.stepper.progress)[0]

        with choices() as made:
            memory = estimate(
                self.model, loss_of, self.settings.optimiser, -(-self.settings.batch_size // self.fabric.world_size)
            )
        larger = made[len(made) // 2 :]
        return memory, [f"{call.algorithm} ({call.op}): {entry.name}" for call, entry in larger]

    def _prepare(
        self, place: RunFolder, trainer: Trainer, config: dict[str, Any], resume: bool, everyone: list[Listener]
    ) -> None:
        """Begin the folder, or find the checkpoint of the run that goes on; nothing is written before that has come back."""
        if resume:
            _together(self.fabric, lambda: self._compare(place, config))
            newest = _together(self.fabric, lambda: _newest(place))
            if newest is not None:
                trainer.restore(read_checkpoint(newest))

        def begin() -> None:
            write_json(place.config, config)
            everyone.insert(0, MetricsFile(place.metrics, after=trainer.at.step, summed=trainer.at.is_summed))
            place.record.unlink(missing_ok=True)

        _together(self.fabric, begin)

    def _compare(self, place: RunFolder, config: dict[str, Any]) -> None:
        """Raise ``ValueError`` where the run in the folder is another one than this."""
        old = place.read_config()
        changed = [f"model.{line}" for line in differences(old["model"], config["model"])]
        # the spread loss's margin grows towards the last step: more steps would be another run.
        free = () if self.loss == "spread" else END
        changed += [f"train.{line}" for line in differences(old["train"], config["train"], free=free)]
        for name, split in config["data"].items():
            before = old["data"].get(name)
            if (before or {}).get("digest") != (split or {}).get("digest"):
                changed.append(f"data.{name}: {before and before['name']} -> {split and split['name']} (other content)")
            elif before and split:
                changed += [f"data.{name}.{line}" for line in differences(before["options"], split["options"])]
        done = read_newest(place.checkpoints).facts["step"] if any(place.checkpoints.glob("step-*")) else 0
        if self.settings.steps is not None and self.settings.steps < done:
            raise ValueError(f"steps={self.settings.steps} are fewer than the {done} that the run has taken already")
        if changed:
            raise ValueError(f"folder={str(place.path)!r} holds another run: {'; '.join(changed)}")

    def _finish(
        self, trainer: Trainer, config: dict[str, Any], status: str, test: Evaluation | None, **more: Any
    ) -> dict[str, Any]:
        at = trainer.at
        record = {
            "status": status,
            "steps": at.step,
            "epochs": at.epoch,
            "images": at.images,
            "seconds": trainer.clock(),
            "watch_seconds": at.watch_seconds,
            "images_per_second": _speed(self.events, at.images, trainer.clock()),
            "memory_estimate": self._step_memory(),
            "peak_memory": _peak_memory(trainer.stepper.device),
            "history": at.history,
            "test": None if test is None else test.as_dict(),
            **more,
            "config": config,
        }
        record = as_json(record)
        trainer.say({"event": "end", "status": status, "record": record})
        if self.place is not None and self.fabric.is_global_zero:
            write_json(self.place.record, record)
        return record  # type: ignore[no-any-return]


def _newest(place: RunFolder) -> Path | None:
    """Return the newest sound checkpoint; None for a run that was stopped before it had taken a step."""
    if not any(place.checkpoints.glob("step-*")) and not read_events(place.metrics):
        return None
    return read_newest(place.checkpoints).path


def _together(fabric: Any, act: Any) -> Any:
    """Let the first process act for all; its mistake ends them all, and it alone says so."""
    result, trouble = None, None
    if fabric.is_global_zero:
        try:
            result = act()
        except (ValueError, OSError, RunError) as error:
            trouble = error
    result, failed = fabric.broadcast((result, trouble is not None))
    if trouble is not None:
        raise trouble
    if failed:
        raise SystemExit(0)
    return result


@contextlib.contextmanager
def _said_once(fabric: Any, *together: type[Exception]) -> Iterator[None]:
    """Let the first process alone raise what all of them run into together.

    The others end in silence and with success: a launcher that sees one of them fail kills the first before it has spoken.
    """
    try:
        yield
    except together:
        if fabric.is_global_zero:
            raise
        raise SystemExit(0) from None


def _claim(stack: contextlib.ExitStack, place: RunFolder, resume: bool) -> None:
    if resume:
        place.read_config()
    else:
        place.check_new()
    stack.enter_context(place.held())


def _check_fit(
    model: nn.Module, data: ImageData, config: TrainConfig, validation: ImageData | None, test: ImageData | None
) -> None:
    if not isinstance(model, nn.Module):
        raise TypeError(f"model has type {type(model).__name__}; expected an nn.Module, such as create_model gives")
    if not isinstance(data, ImageData):
        raise TypeError(f"data has type {type(data).__name__}; expected ImageData, such as load_data gives, or a name")
    if next(model.parameters(), None) is None:
        raise ValueError(f"model {type(model).__name__} has no parameters; there is nothing to train")
    for name, split in (("validation", validation), ("test", test)):
        if split is not None and not isinstance(split, ImageData):
            raise TypeError(f"{name} has type {type(split).__name__}; expected ImageData, such as load_data gives")
        if split is not None and tuple(split.image_shape) != tuple(data.image_shape):
            raise ValueError(f"{name} has images of shape {list(split.image_shape)}; data has {list(data.image_shape)}")
    if isinstance(model, Model):
        if tuple(model.image_shape) != tuple(data.image_shape):
            raise ValueError(f"model takes images of shape {list(model.image_shape)}; {data.name} has {list(data.image_shape)}")
        if model.num_classes < data.num_classes:
            raise ValueError(f"model has num_classes={model.num_classes}; {data.name} has {data.num_classes}")
    else:
        _check_scores(model, data)
    check_watch(model, config.watch)
    if config.target_accuracy is not None and validation is None:
        raise ValueError(f"target_accuracy={config.target_accuracy} needs validation data to be measured on")
    if config.validate_every and validation is None:
        raise ValueError(f"validate_every={config.validate_every} needs validation data to be measured on")


def _check_scores(model: nn.Module, data: ImageData) -> None:
    """Raise unless a module of one's own gives a score for every class."""
    with evaluating(model):
        scores = as_prediction(model(data.batch([0], device=next(model.parameters()).device).images)).scores
    if scores.ndim != 2 or scores.shape[1] < data.num_classes:
        raise ValueError(f"model gives scores of shape {list(scores.shape)}; expected [B, {data.num_classes}] for {data.name}")


def _has_unused(model: nn.Module, data: ImageData, config: TrainConfig, loss: str) -> bool:
    """Tell whether weights take no part in the loss, which several processes must know beforehand."""
    with _left_alone(model):
        batch = data.batch([0, min(1, len(data) - 1)], device=next(model.parameters()).device)
        measure = Measure(AsTensors(model), model, config, loss)
        loss_of_two, _ = measure(tensors_of(batch), torch.zeros((), device=batch.images.device))
        torch.autograd.backward(loss_of_two)
        own = {id(parameter) for parameter in getattr(model, "coupling_parameters", list)()}
        unused = any(p.grad is None for p in model.parameters() if p.requires_grad and id(p) not in own)
        model.zero_grad(set_to_none=True)
    return unused


@contextlib.contextmanager
def _left_alone(model: nn.Module) -> Iterator[None]:
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    with torch.random.fork_rng():
        yield
    for name, buffer in model.named_buffers():
        buffer.copy_(buffers[name])


def _speed(events: list[Event], images: int, seconds: float) -> float:
    """Return images per second: the median of the log intervals, or of the whole where it was shorter than one."""
    ordered = sorted(event["images_per_second"] for event in events if event["event"] == "log")
    return float(ordered[len(ordered) // 2]) if ordered else images / max(seconds, 1e-9)


def _peak_memory(device: torch.device) -> int | None:
    """Return the most bytes that tensors took on a GPU; a CPU does not keep count, nor does anyone for one run of several."""
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" and not turns.is_shared() else None
