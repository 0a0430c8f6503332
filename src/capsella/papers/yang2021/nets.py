"""yang2021's nets and trainings as plans, and the names of their recipes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from capsella.models import CapsuleNet, create_model
from capsella.train.config import TrainConfig
from capsella.train.plan import Plan

METHODS = {"dr": "DR", "l2": "L2", "l1": "L1"}
"""Dynamic routing, and couplings that climb with a penalty on their squares or on their sizes."""

SETS = {"mnist": "MNIST", "fashion": "Fashion-MNIST", "cifar10": "CIFAR-10"}
SHAPES = {"mnist": (1, 28, 28), "fashion_mnist": (1, 28, 28), "cifar10": (3, 24, 24), "multimnist": (1, 36, 36)}
"""Of the images that a net sees, by data set."""

_DATA: dict[str, tuple[str, dict[str, Any]]] = {
    "mnist": ("mnist", {"augment": "shift"}),
    "fashion": ("fashion_mnist", {"augment": "shift"}),
    "cifar10": ("cifar10", {"augment": "sabour_cifar", "normalise": "standardise"}),
    # all 60 million to learn from; the 10,000 on the way are a thousandth of the test images.
    "multimnist": ("multimnist", {"partners": 1000, "test_partners": 1}),
}
_EPOCHS = 10**6  # the steps decide.
_COMMON = TrainConfig(epochs=_EPOCHS, lr=1e-3, schedule="exponential", lr_floor=1e-6, batch_size=128, log_every=50)


def _train(**changes: Any) -> TrainConfig:
    return TrainConfig.of({**_COMMON.as_dict(), **changes})


TRAINS = {
    "mnist": _train(steps=30_000, decay=0.5, decay_steps=1000),
    "fashion": _train(steps=30_000, decay=0.96, decay_steps=1000),
    "cifar10": _train(steps=60_000, decay=0.96, decay_steps=2000, log_every=100),
    "multimnist": _train(
        steps=200_000, decay=0.96, decay_steps=20_000, coupling_penalty=1e-3, validate_every=1000, log_every=500
    ),
}
"""As the paper says where it does, by data set: learning rate, decay and penalty; the steps of all but MultiMNIST are ours."""

SMALL_BATCH = 32
"""Of MNIST without a decoder, where the margin loss drops fast."""

_CIFAR = {"types": 64, "padding": "same", "activation_fn": "leaky_relu"}


def routed_by(method: str) -> dict[str, Any]:
    """Return the options of a net that a method routes."""
    return {"routing": "agreement"} if method == "dr" else {"routing": "quadratic", "norm": method}


def plan_of(data: str, method: str, *, decoder: bool) -> Plan:
    """Return the training of one cell of Table II, or of MultiMNIST.

    Args:
        data: of ``SETS``, or ``multimnist``.
        method: of ``METHODS``.
        decoder: whether the net has one; the paper's CIFAR-10 nets have none.
    """
    name, options = _DATA[data]
    own = _CIFAR if data == "cifar10" else {}
    train = TRAINS[data]
    if data == "mnist" and not decoder:
        train = TrainConfig.of({**train.as_dict(), "batch_size": SMALL_BATCH})
    reconstruction = "conditional" if decoder else "none"
    return _plan("capsnet", name, options, {**routed_by(method), "reconstruction": reconstruction, **own}, train)


def deep_plan(method: str, depth: int) -> Plan:
    """Return the training of a net of more than two capsule layers on MNIST: peer2022's stack with yang2021's settings.

    Args:
        method: ``dr`` or ``l2``.
        depth: capsule layers, primary and class capsules counted.
    """
    routing = {"routing": routed_by(method)["routing"]}
    options = {**routing, "reconstruction": "conditional", "depth": depth}
    return _plan("deep_capsnet", *_DATA["mnist"], options, TRAINS["mnist"])


def undivided_plan(data: str, method: str) -> Plan:
    """Return the training of a cell of Table II whose primary capsules' sums are not divided among their types.

    Class capsules are then long at the start, for every image.

    Args:
        data: ``mnist`` or ``fashion``.
        method: of ``METHODS``.
    """
    return plan_of(data, method, decoder=True).changed({"model.primary_divided": False})


def _plan(model: str, data: str, data_options: Mapping[str, Any], options: Mapping[str, Any], train: TrainConfig) -> Plan:
    return Plan(
        model,
        data,
        model_options={"bias": True, "init": "yang2021", "primary_divided": True, **options},
        data_options=dict(data_options),
        split="train",
        # what the paper reports is measured on the test images on the way; nothing is chosen by it.
        validate="test",
        test=False,
        train=train,
    )


def build(plan: Plan) -> CapsuleNet:
    """Build the net of a plan without weights, to see its sizes."""
    channels, height, width = SHAPES[plan.data]
    sizes = {"image_size": (height, width), "in_channels": channels, "num_classes": 10}
    with torch.device("meta"):
        net = create_model(plan.model, **{**sizes, **plan.model_options})
    if not isinstance(net, CapsuleNet):
        raise TypeError(f"model={plan.model!r} is {type(net).__name__}; expected one with capsules")
    return net


def cell(data: str, method: str, *, decoder: bool = True) -> str:
    """Return the key of a cell of Table II; CIFAR-10's DR is printed in the column of those with a decoder, and has none."""
    plain = decoder or (data, method) == ("cifar10", "dr")
    return f"yang2021/table2/{data}-{method}{'' if plain else '-no-fc'}"


def pairs(method: str) -> str:
    """Return the key of a row of MultiMNIST."""
    return f"yang2021/multimnist/{method}"


def timed(data: str, method: str, *, decoder: bool = True) -> str:
    """Return the key of a timing of Figure 4."""
    return f"yang2021/figure4/{data}-{method}{'' if decoder else '-no-fc'}"


def undivided(data: str, method: str) -> str:
    """Return the key of a cell of Table II whose primary capsules' sums are not divided."""
    return f"yang2021/divided/not-{data}-{method}"


def deep(method: str, depth: int) -> str:
    """Return the key of a net by depth; that of two layers is in Table II."""
    return cell("mnist", method) if depth == 2 else f"yang2021/depth/{method}-depth{depth}"
