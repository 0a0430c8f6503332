"""A run: what was trained, how, and what came of it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from capsella.data import ImageData
from capsella.models import Prediction, as_prediction, create_model, evaluating
from capsella.models.registry import entry
from capsella.train.checkpoint import read_newest, restore_weights
from capsella.train.config import TrainConfig
from capsella.train.evaluation import Evaluation, evaluate
from capsella.train.folder import RunFolder
from capsella.train.objectives import Measure
from capsella.train.record import Event, read_events


class Run:
    """A training run, on disk or in memory.

    Args:
        config: everything that defines it.
        model: the trained network; read from the newest checkpoint when it is first asked for if None.
        record: what came of it; None while it has not ended.
        events: its metrics.
        folder: where it lies, None for a run that was kept in memory only.

    Attributes:
        config: keys ``model``, ``data``, ``train``, ``environment``, ``implementations``.
        record: ``status`` (``"finished"``, ``"reached"``, ``"not reached"`` or ``"non-finite"``), ``history`` per epoch,
            ``test``, times; None while the run has not ended.
    """

    def __init__(
        self,
        config: dict[str, Any],
        *,
        model: nn.Module | None = None,
        record: dict[str, Any] | None = None,
        events: list[Event] | None = None,
        folder: Path | None = None,
    ) -> None:
        self.config, self.record, self.folder = config, record, folder
        self._model, self._events = model, events

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, model: nn.Module | None = None) -> Run:
        """Read a run.

        Args:
            path: its folder.
            model: a module of the same shape that takes the weights, for a run of a network that capsella cannot build.
        """
        folder = RunFolder(path)
        run = cls(folder.read_config(), record=folder.read_record(), folder=folder.path)
        if model is not None:
            run._model = _with_weights(model, folder)
        return run

    @property
    def model(self) -> nn.Module:
        """The network with the weights of the newest sound checkpoint, in evaluation mode."""
        if self._model is None:
            if self.folder is None:
                raise ValueError("this run has neither a model nor a folder to read one from")
            self._model = _with_weights(build_model(self.config["model"]), RunFolder(self.folder))
        return self._model

    @property
    def events(self) -> list[Event]:
        """Every line of ``metrics.jsonl``: ``log`` readings and ``epoch`` summaries."""
        if self._events is None:
            self._events = read_events(RunFolder(self.folder).metrics) if self.folder is not None else []
        return self._events

    @property
    def status(self) -> str:
        """How it ended; ``"unfinished"`` while it has not."""
        return str(self.record["status"]) if self.record else "unfinished"

    def evaluate(self, data: ImageData, *, batch_size: int = 256, device: torch.device | str | None = None) -> Evaluation:
        """Measure the network on a split, on another device than its own if one is named."""
        with moved_to(self.model, device):
            return evaluate(self.model, data, batch_size=batch_size, device=device)

    def predict(self, images: Tensor) -> Prediction:
        """Run the network on images that are normalised as the training data were."""
        with evaluating(self.model):
            return as_prediction(self.model(images.to(next(self.model.parameters()).device)))

    @classmethod
    def from_pretrained(cls, source: str | os.PathLike[str], **options: Any) -> Run:
        """Fetch what ``push_to_hub`` stored, from the hub or from a folder: a run without events, its record the summary."""
        from capsella.train.hub import fetch_pretrained

        model, config = fetch_pretrained(source, **options)
        return cls(config, model=model, record=config.get("results"))

    def push_to_hub(self, repo_id: str, **options: Any) -> str:
        """Upload weights, config and a model card to the Hugging Face hub (extra ``hub``); return the address."""
        from capsella.train.hub import push_to_hub

        return push_to_hub(self, repo_id, **options)

    def __repr__(self) -> str:
        name = self.config["model"].get("name", self.config["model"].get("class"))
        where = f"folder={str(self.folder)!r}" if self.folder is not None else "in memory"
        return f"Run({name} on {self.config['data']['train']['name']}, {self.status}, {where})"


# options that came after the first runs were written, and what nets had before.
_LATER = {"primary_divided": False}


def build_model(config: dict[str, Any]) -> nn.Module:
    """Build a registered model from its config, as JSON holds it; one of before an option is what it was."""
    if "name" not in config:
        raise ValueError(
            f"the run's network is {config.get('class')}, which capsella cannot build; give it: Run.load(path, model=…)"
        )
    options: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in config.items()}
    name = options.pop("name")
    older = {key: value for key, value in _LATER.items() if key in entry(name).options}
    return create_model(name, **older | options)


def describe_model(model: nn.Module) -> dict[str, Any]:
    """Return what a model is built from, or its class for one that capsella did not build."""
    config = getattr(model, "config", None)
    if isinstance(config, dict) and "name" in config:
        return dict(config)
    return {"class": f"{type(model).__module__}.{type(model).__qualname__}"}


def loss_of(run: Run) -> Callable[[Prediction, Tensor], Tensor]:
    """Return the loss that a run was trained with, at its end, without reconstructions."""
    config = TrainConfig.of(run.config["train"])
    measure = Measure(run.model, run.model, config, config.loss)
    return lambda prediction, targets: measure.classification(prediction, targets, prediction.scores.new_ones(()))


@contextlib.contextmanager
def moved_to(model: nn.Module, device: torch.device | str | None) -> Iterator[None]:
    """Put a model on another device for a while; None leaves it where it is."""
    home = next(model.parameters()).device
    try:
        if device is not None:
            put_on(model, device)
        yield
    finally:
        model.to(home)


def put_on(model: nn.Module, device: torch.device | str) -> None:
    """Put a model on a device, or say in one line why it cannot be there."""
    if str(device).partition(":")[0] not in ("cpu", "cuda"):
        raise ValueError(f"device={str(device)!r} cannot be used; expected 'cpu', or 'cuda' on a GPU")
    try:
        model.to(device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"device={str(device)!r} cannot be used ({reason}); expected 'cpu', or 'cuda' on a GPU") from error


def _with_weights(model: nn.Module, folder: RunFolder) -> nn.Module:
    found = read_newest(folder.checkpoints)
    restore_weights(model, found.weights, where=str(found.path))
    return model.eval()
