"""A training by names: which model, which data, which settings; what ``capsella train`` and the papers' recipes start from."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from capsella.data import ImageData, load_data
from capsella.data.registry import data_entry
from capsella.data.splits import SPLITS
from capsella.errors import check_choice, unknown_name
from capsella.models import Model, create_model
from capsella.models.registry import entry
from capsella.nn import init as initialisation
from capsella.nn.init import LENGTH_PRESERVING
from capsella.train.config import TrainConfig, fields
from capsella.train.fitting import fit
from capsella.train.run import Run

_SHARED_DATA_OPTIONS = ("augment", "normalise")


@dataclass(frozen=True)
class Plan:
    """Everything that decides a run, in plain values.

    Attributes:
        model: registry name.
        data: registry name.
        model_options: of the model, ``init`` among them.
        data_options: of the data, ``augment`` and ``normalise`` among them.
        split: what to learn from.
        validate: the split that is measured after every epoch; None measures none.
        test: whether to measure the test set, once, at the end.
        train: how to train.
    """

    model: str
    data: str
    model_options: dict[str, Any] = field(default_factory=dict)
    data_options: dict[str, Any] = field(default_factory=dict)
    split: str = "fit"
    validate: str | None = "val"
    test: bool = True
    train: TrainConfig = field(default_factory=TrainConfig)

    def __post_init__(self) -> None:
        known = self.keys()
        for key in (*(f"model.{key}" for key in self.model_options), *(f"data.{key}" for key in self.data_options)):
            if key not in known:
                raise ValueError(unknown_name("set", key, known))
        check_choice("split", self.split, SPLITS)
        if self.validate is not None:
            check_choice("validate", self.validate, SPLITS)
        init = self.model_options.get("init")
        if init is not None:
            check_choice("init", init, (*initialisation.names(), LENGTH_PRESERVING))

    def changed(self, settings: Mapping[str, Any]) -> Plan:
        """Return a plan with some values replaced.

        Args:
            settings: ``model.OPTION``, ``data.OPTION``, ``train.FIELD`` or just ``FIELD``; an unknown key is an error that
                names the near match.

        Example:
            >>> plan = Plan("capsnet_small", "mnist").changed({"lr": 0.01, "model.num_iters": 2, "data.augment": "shift"})
            >>> plan.train.lr, plan.model_options, plan.data_options
            (0.01, {'num_iters': 2}, {'augment': 'shift'})
        """
        parts: dict[str, dict[str, Any]] = {"model": {}, "data": {}, "train": {}}
        for key, value in settings.items():
            part, _, name = key.rpartition(".")
            part = part or "train"
            if part not in parts or (part == "train" and name not in fields()):
                raise ValueError(unknown_name("set", key.removeprefix("train."), self.keys()))
            parts[part][name] = _frozen(value)
        train = TrainConfig.of({**self.train.as_dict(), **parts["train"]})
        model_options, data_options = self.model_options | parts["model"], self.data_options | parts["data"]
        return dataclasses.replace(self, train=train, model_options=model_options, data_options=data_options)

    def keys(self) -> list[str]:
        """List everything that ``changed`` takes; a training field may also be written as ``train.FIELD``."""
        own = [f"model.{key}" for key in (*entry(self.model).options, "init", "num_classes")]
        own += [f"data.{key}" for key in (*data_entry(self.data).options, *_SHARED_DATA_OPTIONS)]
        return [*fields(), *own]

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> Plan:
        """Make a plan of what ``as_dict`` returned, perhaps by way of JSON."""
        if not isinstance(content, Mapping) or not {"model", "data", "model_options", "train"} <= content.keys():
            raise ValueError(f"plan={content!r} is no plan; expected what Plan.as_dict returns")
        given = dict(content)
        for part in ("model_options", "data_options"):
            given[part] = {key: _frozen(value) for key, value in given[part].items()}
        return cls(**{**given, "train": TrainConfig.of(given["train"])})

    def load(self, root: str | os.PathLike[str] | None = None) -> dict[str, ImageData | None]:
        """Return the splits by their part in the run: train, validation, test."""
        wanted = {"train": self.split, "validation": self.validate, "test": "test" if self.test else None}
        loaded: dict[str, ImageData] = {}
        for split in wanted.values():
            if split is not None and split not in loaded:
                loaded[split] = load_data(self.data, split=split, root=root, **self.data_options)
        return {part: None if split is None else loaded[split] for part, split in wanted.items()}

    def build(self, data: ImageData) -> Model:
        """Build the model for images of ``data``, its weights drawn from the seed."""
        options: dict[str, Any] = {"num_classes": data.num_classes, **self.model_options}
        rescaled = options.get("init") == LENGTH_PRESERVING
        if rescaled:
            del options["init"]
        channels, height, width = data.image_shape
        torch.manual_seed(self.train.seed)
        model = create_model(self.model, image_size=(height, width), in_channels=channels, **options)
        if rescaled:
            images, _ = next(iter(data.batches(self.train.batch_size, seed=self.train.seed)))
            initialisation.length_preserving_(model, images)
        return model

    def as_dict(self) -> dict[str, Any]:
        """Return every field, as JSON can hold it."""
        return {**vars(self), "train": self.train.as_dict()}


def start_of(config: Mapping[str, Any]) -> str | None:
    """Return how the network of a run began, None where that is not known.

    What a model is built from does not say it where the start needed data: the plan does.

    Args:
        config: of a run.

    Example:
        >>> start_of({"model": {"init": "sabour"}, "plan": {"model_options": {"init": "length_preserving"}}})
        'length_preserving'
    """
    planned = config.get("plan", {}).get("model_options", {}).get("init")
    found: str | None = planned or config["model"].get("init")
    return found


def _frozen(value: Any) -> Any:
    """Turn JSON's lists into the tuples that builders take."""
    return tuple(value) if isinstance(value, list) else value


def run_plan(
    plan: Plan,
    folder: str | os.PathLike[str] | None = None,
    *,
    root: str | os.PathLike[str] | None = None,
    splits: dict[str, ImageData | None] | None = None,
    **options: Any,
) -> Run:
    """Carry a plan out.

    Args:
        plan: what to train.
        folder: where the run is written; None keeps it in memory.
        root: the data directory.
        splits: the data, if they are loaded already.
        **options: further options of ``fit``: ``resume``, ``progress``, ``listeners``.
    """
    loaded = plan.load(root) if splits is None else splits
    data = loaded["train"]
    if data is None:
        raise ValueError("splits has no train; expected what Plan.load returns")
    model = plan.build(data)
    settings = {**options, **dataclasses.asdict(plan.train), "folder": folder, "facts": {"plan": plan.as_dict()}}
    return fit(model, data, validation=loaded["validation"], test=loaded["test"], **settings)
