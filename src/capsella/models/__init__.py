"""Every model of the five papers, by name."""

from capsella.models import capsnet, convnets, deep, em, gcapsnet, sign
from capsella.models.base import CapsuleNet, Model, Prediction
from capsella.models.registry import create_model, entry, list_models, register_model, register_preset
from capsella.models.using import as_prediction, evaluating

__all__ = [
    "CapsuleNet",
    "Model",
    "Prediction",
    "as_prediction",
    "capsnet",
    "convnets",
    "create_model",
    "deep",
    "em",
    "entry",
    "evaluating",
    "gcapsnet",
    "list_models",
    "register_model",
    "register_preset",
    "sign",
]
