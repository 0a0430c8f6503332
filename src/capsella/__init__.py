"""capsella: capsule networks in PyTorch.

Importing it loads no torch: a name is resolved when it is first used.

Example:
    >>> import capsella
    >>> model = capsella.create_model("capsnet_small")
    >>> len(capsella.list_models()) > 15
    True
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__numerics__ = 2
"""Raised by hand, with a CHANGELOG heading, when the same call gives other values: results of another number do not count."""

if TYPE_CHECKING:
    from capsella import analysis, attacks, data, functional, models, nn, routing, testing, train
    from capsella.analysis import Diagnosis, diagnose
    from capsella.data import Batch, ImageData, list_data, load_data, register_data
    from capsella.errors import DataError, UnsupportedCall
    from capsella.models import CapsuleNet, Model, Prediction, create_model, list_models, register_model
    from capsella.routing import Routed, vote_and_route
    from capsella.train import Evaluation, Run, TrainConfig, evaluate, fit

_MODULES = ("analysis", "attacks", "data", "functional", "models", "nn", "routing", "testing", "train")
_HOMES = {
    "Diagnosis": "analysis",
    "diagnose": "analysis",
    "Batch": "data",
    "ImageData": "data",
    "list_data": "data",
    "load_data": "data",
    "register_data": "data",
    "CapsuleNet": "models",
    "Model": "models",
    "Prediction": "models",
    "create_model": "models",
    "list_models": "models",
    "register_model": "models",
    "Routed": "routing",
    "vote_and_route": "routing",
    "Evaluation": "train",
    "Run": "train",
    "TrainConfig": "train",
    "evaluate": "train",
    "fit": "train",
    "DataError": "errors",
    "UnsupportedCall": "errors",
}

__all__ = [
    "Batch",
    "CapsuleNet",
    "DataError",
    "Diagnosis",
    "Evaluation",
    "ImageData",
    "Model",
    "Prediction",
    "Routed",
    "Run",
    "TrainConfig",
    "UnsupportedCall",
    "__numerics__",
    "__version__",
    "analysis",
    "attacks",
    "create_model",
    "data",
    "diagnose",
    "evaluate",
    "fit",
    "functional",
    "list_data",
    "list_models",
    "load_data",
    "models",
    "nn",
    "register_data",
    "register_model",
    "routing",
    "testing",
    "train",
    "vote_and_route",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"capsella.{name}")
    if name in _HOMES:
        return getattr(importlib.import_module(f"capsella.{_HOMES[name]}"), name)
    from capsella.errors import unknown_name

    raise AttributeError(f"capsella has no such name: {unknown_name('name', name, __all__)}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
