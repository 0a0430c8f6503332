"""Everything that decides how a network is trained, as one frozen record."""

from __future__ import annotations

import dataclasses
import functools
import math
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from capsella.errors import check_choice, check_count, check_counts, check_flag, check_number, check_options

OPTIMISERS = ("adam", "sgd")
SCHEDULES = ("constant", "exponential", "inverse", "multistep")
LOSSES = (
    "auto",
    "margin",
    "spread",
    "cross_entropy",
    "binary_cross_entropy",
    "length_cross_entropy",
    "length_binary_cross_entropy",
)
PRECISIONS = ("float32", "tf32", "bf16")
COUPLING_OPTIMISERS = ("adam", "ascent")

# what may differ when a run is resumed: when it stops and how it is watched, not what it computes.
END = ("epochs", "steps")
FREE_ON_RESUME = (
    *("target_accuracy", "validate_every", "log_every", "watch", "checkpoint_seconds"),
    *("device", "devices", "nodes"),
)


@dataclass(frozen=True)
class TrainConfig:
    """How to train; every field is an option of ``capsella train`` and ``capsella.fit``.

    Attributes:
        epochs: passes over the training data, at most.
        steps: optimiser steps, at most; None leaves the epochs to decide.
        batch_size: images of one step, over all processes.
        seed: of the order of samples, augmentations and dropout; ``capsella train`` draws the weights from it too.
        optimiser: ``"adam"`` or ``"sgd"``.
        lr: learning rate at the first step.
        betas: of Adam.
        momentum: of SGD.
        weight_decay: added to the gradient as in the papers' code (L2), on all parameters.
        bias_rate: biases learn so many times as fast (2 in chen2019's Caffe nets).
        clip: largest norm of the gradient; None does not clip.
        schedule: ``"constant"``; ``"exponential"``: lr · decay^(step / decay_steps), never below ``lr_floor``; ``"inverse"``:
            lr · (1 + inverse_gamma · step)^−inverse_power; ``"multistep"``: lr · decay at each milestone.
        decay: factor of exponential and multistep.
        decay_steps: steps after which exponential has multiplied by ``decay`` once.
        lr_floor: of exponential.
        inverse_gamma: of inverse.
        inverse_power: of inverse.
        milestones: steps at which multistep multiplies by ``decay``.
        loss: ``"auto"`` takes margin for capsules and cross entropy for logits (binary where images show several classes).
        margins: (m⁺, m⁻) of the margin loss.
        down_weight: λ of the margin loss.
        spread: margin of the spread loss at the first and at the last step, linear in between (Hinton et al. 2018).
        reconstruction: weight of the squared error of reconstructions, where the net has a decoder.
        reconstruction_reduction: ``"sum"`` or ``"mean"`` over the values of an image.
        weight_steps: steps of the weights before each turn of the couplings (yang2021's n_b).
        coupling_steps: steps of quadratic couplings in their turn, on the same batch (n_r).
        coupling_optimiser: ``"adam"`` on −F, as the authors' code, or plain ``"ascent"`` with the mean over the batch.
        coupling_lr: of the couplings, scheduled with the weights' rate; a fifth of it if None.
        coupling_penalty: λ of their objective.
        coupling_objective: on ``"raw"`` or ``"squashed"`` class capsules.
        coupling_l1_factor: 2 takes yang2021's L1 step as printed (only for ascent on raw capsules).
        coupling_bound: couplings stay within ± this after a step of ascent.
        target_accuracy: stop at the end of the first epoch with this accuracy on the validation data; None goes on.
        validate_every: measure the validation data every so many steps, beside the end of each epoch; 0: then alone.
        precision: ``"float32"``, ``"tf32"`` (matrix products and convolutions on a GPU) or ``"bf16"`` (mixed).
        fast: compiled step with channels last; on one GPU also one CUDA graph a step.
        device: ``"auto"``, ``"cpu"`` or ``"cuda"``.
        devices: processes on this machine, one device each.
        nodes: machines; more than one is started by torchrun.
        log_every: steps between readings of loss and accuracy.
        watch: steps between looks at the health of the capsule layers on a fixed probe; 0 never looks.
        checkpoint_seconds: a checkpoint is written when the last one is older than this, and at the end.
    """

    epochs: int = 10
    steps: int | None = None
    batch_size: int = 128
    seed: int = 0
    optimiser: str = "adam"
    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    momentum: float = 0.9
    weight_decay: float = 0.0
    bias_rate: float = 1.0
    clip: float | None = None
    schedule: str = "constant"
    decay: float = 0.96
    decay_steps: float = 2000
    lr_floor: float = 1e-6
    inverse_gamma: float = 1e-4
    inverse_power: float = 0.75
    milestones: tuple[int, ...] = ()
    loss: str = "auto"
    margins: tuple[float, float] = (0.9, 0.1)
    down_weight: float = 0.5
    spread: tuple[float, float] = (0.2, 0.9)
    reconstruction: float = 0.0005
    reconstruction_reduction: str = "sum"
    weight_steps: int = 1
    coupling_steps: int = 1
    coupling_optimiser: str = "adam"
    coupling_lr: float | None = None
    coupling_penalty: float = 1e-5
    coupling_objective: str = "squashed"
    coupling_l1_factor: float = 1
    coupling_bound: float = 10.0
    target_accuracy: float | None = None
    validate_every: int = 0
    precision: str = "float32"
    fast: bool = False
    device: str = "auto"
    devices: int = 1
    nodes: int = 1
    log_every: int = 50
    watch: int = 0
    checkpoint_seconds: float = 60.0

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "weight_steps", "devices", "nodes", "log_every"):
            check_count(name, getattr(self, name))
        for name in ("coupling_steps", "seed", "validate_every", "watch"):
            check_count(name, getattr(self, name), least=0)
        if self.seed >= _SEEDS:
            raise ValueError(f"seed={self.seed!r} is too large; expected an int below 2**53, which every JSON reader can hold")
        if self.steps is not None:
            check_count("steps", self.steps)
        for name in ("lr", "decay", "decay_steps", "bias_rate", "coupling_bound"):
            check_number(name, getattr(self, name), above=0)
        for name in _AT_LEAST_ZERO:
            check_number(name, getattr(self, name), least=0)
        for name in ("clip", "coupling_lr"):
            if getattr(self, name) is not None:
                check_number(name, getattr(self, name), above=0)
        for name, choices in _CHOICES.items():
            check_choice(name, getattr(self, name), choices)
        for name in ("betas", "margins", "spread"):
            _check_pair(name, getattr(self, name))
        for name in fields():
            _check_finite(name, getattr(self, name))
        check_flag("fast", self.fast)
        for beta in self.betas:
            if not beta < 1:
                raise ValueError(f"betas={self.betas!r} has {beta!r}; expected numbers below 1")
        check_counts("milestones", self.milestones)
        if self.schedule == "multistep" and not self.milestones:
            raise ValueError("milestones=() goes with no multistep schedule; expected the steps at which the rate falls")
        if self.target_accuracy is not None:
            check_number("target_accuracy", self.target_accuracy, above=0)
            if self.target_accuracy > 1:
                raise ValueError(f"target_accuracy={self.target_accuracy!r} is above 1; expected a share such as 0.9922")

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> TrainConfig:
        """Make a config of options that may come from JSON; an unknown one is a ``TypeError`` that names the near match."""
        check_options("training", options, fields())
        return cls(**{key: _as_declared(key, value) for key, value in options.items()})

    def as_dict(self) -> dict[str, Any]:
        """Return every field, as JSON can hold it."""
        return {key: list(value) if isinstance(value, tuple) else value for key, value in dataclasses.asdict(self).items()}


_SEEDS = 2**53
_CHOICES = {
    "optimiser": OPTIMISERS,
    "schedule": SCHEDULES,
    "loss": LOSSES,
    "reconstruction_reduction": ("sum", "mean"),
    "coupling_optimiser": COUPLING_OPTIMISERS,
    "coupling_objective": ("raw", "squashed"),
    "precision": PRECISIONS,
    "device": ("auto", "cpu", "cuda"),
}
_AT_LEAST_ZERO = (
    "momentum",
    "weight_decay",
    "lr_floor",
    "inverse_gamma",
    "inverse_power",
    "down_weight",
    "reconstruction",
    "coupling_penalty",
    "coupling_l1_factor",
    "checkpoint_seconds",
)


def fields() -> list[str]:
    """List the names of all fields."""
    return [field.name for field in dataclasses.fields(TrainConfig)]


def differences(old: Mapping[str, Any], new: Mapping[str, Any], *, free: Sequence[str] = ()) -> list[str]:
    """List the fields that differ and may not when a run goes on, as ``name: old -> new``.

    Args:
        old: of the run.
        new: of what is asked for.
        free: fields that may differ beside those that always may.
    """
    keys = [key for key in {**old, **new} if key not in (*FREE_ON_RESUME, *free)]
    return [f"{key}: {old.get(key)!r} -> {new.get(key)!r}" for key in keys if old.get(key) != new.get(key)]


@functools.cache
def _declared() -> dict[str, Any]:
    """Return the type of every field; every annotation is compiled for it, so once."""
    return typing.get_type_hints(TrainConfig)


def _as_declared(name: str, value: Any) -> Any:
    """Turn JSON's lists into tuples and whole numbers into floats where the field is one."""
    kind = _declared()[name]
    kinds = typing.get_args(kind) if isinstance(kind, types.UnionType) else (kind,)
    if isinstance(value, list) and any(typing.get_origin(each) is tuple for each in kinds):
        return tuple(value)
    if isinstance(value, int) and not isinstance(value, bool) and float in kinds:
        return float(value)
    return value


def _check_pair(name: str, value: Any) -> None:
    if not isinstance(value, tuple) or len(value) != 2:
        raise TypeError(f"{name}={value!r} is no pair; expected two numbers")
    for number in value:
        check_number(name, number, least=0)


def _check_finite(name: str, value: Any) -> None:
    # JSON has no infinity, and no field means anything by it.
    if any(isinstance(number, float) and math.isinf(number) for number in (value if isinstance(value, tuple) else (value,))):
        raise ValueError(f"{name}={value!r} is infinite; expected a finite number")
