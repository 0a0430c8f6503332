"""Every model of the five papers, by name."""

from capsella.models import capsnet, convnets, deep, em, gcapsnet, sign
from capsella.models.base import CapsuleNet, Model, Prediction
from capsella.models.registry import create_model, entry, list_models, register_model, register_preset

__all__ = [
    "CapsuleNet",
    "Model",
    "Prediction",
    "capsnet",
    "convnets",
    "create_model",
    "deep",
    "em",
    "entry",
    "gcapsnet",
    "list_models",
    "register_model",
    "register_preset",
    "sign",
]
