"""Named splits: ``train`` as published, ``fit`` and ``val`` that partition it, ``test`` that no selection may touch."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import torch
from torch import Tensor

from capsella.data.draws import Order
from capsella.errors import DataError

SPLITS = ("train", "fit", "val", "test")
VALIDATION = 5_000


def published(split: str) -> str:
    """Return the published part that a split is taken from."""
    return "test" if split == "test" else "train"


def is_training(split: str) -> bool:
    """Tell whether samples of a split are augmented and redrawn."""
    return split in ("train", "fit")


def members(split: str, count: int) -> Tensor | None:
    """Return which of ``count`` published samples are in a split, in rising order; None for all of them.

    ``val`` has 5,000 samples, or a quarter where there are fewer than 20,000; a fixed permutation decides which.

    Example:
        >>> fit, val = members("fit", 60_000), members("val", 60_000)
        >>> len(fit), len(val), sorted(fit.tolist() + val.tolist()) == list(range(60_000))
        (55000, 5000, True)
    """
    if split not in ("fit", "val"):
        return None
    held_out = min(VALIDATION, count // 4)
    if held_out == 0 and split == "val":
        raise DataError(f"split='val' would have no images: there are {count} to train on; expected at least 4")
    order = Order(count, seed="capsella fit and val")
    return torch.sort(order[:held_out] if split == "val" else order[held_out:]).values


def take(split: str, *tensors: Tensor) -> tuple[Tensor, ...]:
    """Return the samples of a split, given those of the published part that it is taken from."""
    chosen = members(split, len(tensors[0]))
    return tensors if chosen is None else tuple(tensor[chosen] for tensor in tensors)


def fingerprint(**facts: Any) -> str:
    """Return the SHA-256 of facts that JSON can say: what identifies the data of a run."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()
