"""The sign of a number (peer2022, table 1): what routing without a bias cannot learn."""

from __future__ import annotations

import torch

from capsella.data.places import Places
from capsella.data.registry import Content, register_data
from capsella.data.samples import Stored
from capsella.data.splits import published, take


@register_data(
    "sign",
    summary="numbers from −1 to 1, positive or not: 20,002 of peer2022, tested half-way between them",
    normalise="none",
    augments=False,
)
def sign(split: str, places: Places) -> Content:
    """Make peer2022's data: x = 0, 1e-4, …, 1 in class 1 and their negatives in class 0, zero in both.

    The paper has no test numbers; ``test`` takes those half-way between the training numbers.
    """
    steps = torch.arange(10_001, dtype=torch.float64) if published(split) == "train" else torch.arange(10_000) + 0.5
    positive = (steps / 10_000).float()
    images = torch.cat([positive, -positive])[:, None, None, None]  # [N, 1, 1, 1]
    labels = torch.cat([torch.ones(len(positive)), torch.zeros(len(positive))]).long()
    return Content(Stored(*take(split, images, labels)), ("negative", "positive"))
