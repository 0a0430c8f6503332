"""chen2019's nets and trainings as plans, and the names of their recipes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from capsella.models import Model, create_model
from capsella.train.config import TrainConfig
from capsella.train.plan import Plan

SETS = {"mnist": "MNIST", "cifar10": "CIFAR-10"}
SHAPES = {"mnist": (1, 28, 28), "cifar10": (3, 32, 32)}

MODELS = {
    "cnn": "CNN",
    "capsnet": "CapsNet",
    "fc-gcapsnet": "FC G-CapsNet",
    "fc-gcapsnet-no-reconstruction": "FC G-CapsNet, no decoder",
    "conv-gcapsnet": "Conv G-CapsNet",
    "conv-gcapsnet-no-reconstruction": "Conv G-CapsNet, no decoder",
    "multi-gcapsnet": "Multi G-CapsNet",
}
"""The rows of Table 2."""

PRINTED = {
    "mnist": tuple(name for name in MODELS if name != "multi-gcapsnet"),
    "cifar10": ("cnn", "capsnet", "fc-gcapsnet", "conv-gcapsnet", "multi-gcapsnet"),
}
"""Those that it has a number for; on CIFAR-10 no net has a decoder."""

WITHOUT = "-no-reconstruction"

_EPOCHS = 10**6  # the steps decide.
_COMMON = TrainConfig(epochs=_EPOCHS, steps=10_000, batch_size=100, bias_rate=2, reconstruction=0.00025, log_every=50)


def _train(**changes: Any) -> TrainConfig:
    return TrainConfig.of({**_COMMON.as_dict(), **changes})


_INVERSE = {"schedule": "inverse", "inverse_gamma": 1e-4, "inverse_power": 0.75}
_SGD = {"optimiser": "sgd", "momentum": 0.9}
_FALLS = {"schedule": "multistep", "decay": 0.6, "milestones": (8000,)}

UNDIVIDED = 100
"""The released margin loss does not divide its gradient by the batch of 100: plain SGD goes so many times as far."""

ROUTED_RATE = 0.1
"""Of dynamic routing: between the prototxts' 0.01 and a hundred times that; README.md says how it was chosen."""

ADAM = {"optimiser": "adam", **_INVERSE}
"""The solver of the G-CapsNets on MNIST, at a rate of 1e-3."""

_TRAINS: dict[tuple[str, str], TrainConfig] = {
    ("mnist", ""): _train(**ADAM, lr=1e-3, margins=(0.7, 0.1)),
    ("mnist", "capsnet"): _train(
        **{**_SGD, "lr": ROUTED_RATE, "schedule": "inverse", "inverse_gamma": 2e-4, "inverse_power": 0.9},
        margins=(0.7, 0.1),
    ),
    ("cifar10", ""): _train(**_SGD, **_FALLS, lr=1e-3 * UNDIVIDED, margins=(0.6, 0.1)),
    ("cifar10", "cnn"): _train(**_SGD, **_FALLS, lr=1e-3, weight_decay=5e-4),
    ("cifar10", "capsnet"): _train(**_SGD, **_INVERSE, lr=ROUTED_RATE, margins=(0.6, 0.1), steps=60_000),
    ("cifar10", "multi-gcapsnet"): _train(**ADAM, lr=2e-3, margins=(0.6, 0.1), steps=20_000),
}
"""As the released prototxts say, by data set and net; where there is none of a net, the set's other nets have one."""

LOOKS = {"mnist": 200, "cifar10": 250}
"""Steps between two looks at the test images where the curve is read; else there is one after each epoch and at the end."""

_CIFAR: dict[str, dict[str, Any]] = {
    "cnn": {},
    "capsnet": {"channels": 64, "class_dim": 8},
    "fc-gcapsnet": {"channels": 64, "class_dim": 8},
    "conv-gcapsnet": {"channels": 64, "rows": 1},
    "multi-gcapsnet": {},
}
_BUILDERS = {
    "capsnet": "capsnet",
    "fc-gcapsnet": "gcapsnet_fc",
    "conv-gcapsnet": "gcapsnet_conv",
    "multi-gcapsnet": "gcapsnet_multi",
}
# in the released nets of dynamic routing the second convolution has a ReLU and no squash.
_AGREES = {"routing": "agreement", "num_iters": 4, "primary_squash": "none", "relu": "primary"}


def plan_of(
    data: str,
    name: str,
    *,
    options: Mapping[str, Any] | None = None,
    train: Mapping[str, Any] | None = None,
    images: Mapping[str, Any] | None = None,
) -> Plan:
    """Return the training of one cell of Table 2, perhaps with something changed.

    Args:
        data: of ``SETS``.
        name: of ``MODELS``.
        options: of the net, in the place of its own.
        train: settings in the place of its own.
        images: options of the data beside its own.
    """
    bare = name.removesuffix(WITHOUT)
    own = _options(data, bare, decoder=data == "mnist" and bare == name)
    config = _TRAINS.get((data, bare), _TRAINS[data, ""])
    return Plan(
        _model(data, bare),
        data,
        model_options={"init": "chen2019", **own, **(options or {})},
        # the CNN alone sees its photographs as they are.
        data_options={**({"normalise": "centred"} if data == "cifar10" and bare != "cnn" else {}), **(images or {})},
        split="train",
        # what the paper reports is measured on the test images on the way; nothing is chosen by it.
        validate="test",
        test=False,
        train=TrainConfig.of({**config.as_dict(), **(train or {})}),
    )


def _model(data: str, name: str) -> str:
    if name == "cnn":
        return "convnet_fc" if data == "mnist" else "convnet_fc512"
    return _BUILDERS[name]


def _options(data: str, name: str, *, decoder: bool) -> dict[str, Any]:
    if name == "cnn":
        return {}
    own = _AGREES if name == "capsnet" else {}
    return {"reconstruction": "conditional" if decoder else "none", **own, **(_CIFAR[name] if data == "cifar10" else {})}


def em_plan() -> Plan:
    """Return the training of a net with EM routing on MNIST, which the paper speaks of and does not train."""
    return Plan(
        "em_capsnet",
        "mnist",
        split="train",
        validate="test",
        test=False,
        train=_train(**ADAM, lr=1e-3, loss="spread", bias_rate=1),
    )


def build(plan: Plan) -> Model:
    """Build the net of a plan without weights, to see its sizes."""
    channels, height, width = SHAPES[plan.data]
    sizes = {"image_size": (height, width), "in_channels": channels, "num_classes": 10}
    with torch.device("meta"):
        return create_model(plan.model, **{**sizes, **plan.model_options})


def cell(data: str, name: str) -> str:
    """Return the key of a cell of Table 2."""
    return f"chen2019/table2/{data}-{name}"


def row(table: str, name: str) -> str:
    """Return the key of a row of a table of our own."""
    return f"chen2019/{table}/{name}"
