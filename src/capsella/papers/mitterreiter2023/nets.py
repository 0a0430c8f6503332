"""mitterreiter2023's nets and trainings as plans, and the names of their recipes."""

from __future__ import annotations

from typing import Any

from capsella.train.config import TrainConfig
from capsella.train.plan import Plan

ROUTINGS = {"agreement": "Agreement", "uniform": "Uniform"}
DEPTHS = (3, 5, 8)
"""Capsule layers, primary and class capsules counted; 5 is the net of Tables 1 and 2."""

WIDTH, DIM, CLASSES = 16, 8, 10
TARGET = 0.992
MOST_EPOCHS = 60
LOOK = 235
"""Steps between looks at the capsules: two in an epoch."""
SELDOM = 2345
"""Of nets whose deaths no claim asks about: once in five epochs. A look takes as long as some hundred steps."""

# where the paper is silent, its authors' notebooks.
PLACED = TrainConfig(
    epochs=MOST_EPOCHS,
    lr=1e-3,
    weight_decay=1e-5,
    batch_size=128,
    reconstruction=0.005,
    reconstruction_reduction="mean",
    target_accuracy=TARGET,
    watch=LOOK,
    # tiny capsules are read, which half precision would show; products of TF32 are many times as fast as float32's.
    precision="tf32",
)
PHOTOGRAPHS = TrainConfig.of({**PLACED.as_dict(), "epochs": 51, "batch_size": 512, "target_accuracy": None, "watch": 490})

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "iterations4": ("four iterations of agreement, as the notebook counts three", {"model.num_iters": 4}),
    "augmented": ("learns from rotated, sheared and scaled digits, as in the notebook", {"data.augment": "affine"}),
    "sabour-squash": ("Sabour's squash, as in the notebook", {"model.squash": "sabour"}),
    "iterations4-augmented": (
        "four iterations, and rotated, sheared and scaled digits",
        {"model.num_iters": 4, "data.augment": "affine"},
    ),
    "reconstruction-sum": ("reconstructions by the sum of squares, as the text has it", {"reconstruction_reduction": "sum"}),
}
"""What the paper leaves open: in words, and what is changed."""


def placed_plan(routing: str, depth: int, *, width: int = WIDTH, dim: int = DIM) -> Plan:
    """Return the training of a net on MNIST at random places, until enough of the placed test images are right.

    Args:
        routing: of ``ROUTINGS``.
        depth: capsule layers.
        width: capsules of every layer but the last.
        dim: of every capsule.
    """
    capsules = (*[width] * (depth - 1), CLASSES)
    return _plan("mnist40", {"routing": routing, "capsules": capsules, "dim": dim}, {}, PLACED)


def photographs_plan(routing: str) -> Plan:
    """Return the training of the notebook's net for CIFAR-10."""
    options = {"routing": routing, "capsules": (32, 32, 32, CLASSES), "dim": (8, 16, 16, 16), "backbone": "cifar10"}
    return _plan("cifar10", options, {"augment": "mirror_shift"}, PHOTOGRAPHS)


def variant_plan(name: str) -> Plan:
    """Return the training of the five-layer net with one thing done otherwise, of ``VARIANTS``."""
    return placed_plan("agreement", 5).changed(VARIANTS[name][1])


def _plan(data: str, options: dict[str, Any], data_options: dict[str, Any], train: TrainConfig) -> Plan:
    # like the paper's, nets are stopped by the test images; what is reported is measured on others, the affine ones.
    return Plan("parse_capsnet", data, options, data_options, split="train", validate="test", test=False, train=train)


def net(routing: str = "agreement", depth: int = 5) -> str:
    """Return the key of a net on placed digits; that of Tables 1 and 2 is among them."""
    is_printed = (routing, depth) == ("agreement", 5)
    return "mitterreiter2023/table1/agreement" if is_printed else f"mitterreiter2023/depth/{routing}-depth{depth}"


def photographs(routing: str = "agreement") -> str:
    """Return the key of a net on CIFAR-10."""
    return f"mitterreiter2023/cifar10/{routing}"


def variant(name: str) -> str:
    """Return the key of a variant."""
    return f"mitterreiter2023/variants/{name}"


GROWTH = "mitterreiter2023/table3/growth"
