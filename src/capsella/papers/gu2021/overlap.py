"""Figure 2c: the overlapping digits that nets are trained and tested on, the two of an image beside it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from capsella.data import ImageData
from capsella.papers.gu2021.affine import tested_on
from capsella.papers.images import pack
from capsella.train.run import Run

SHOWN = 10


def overlapping(run: Run, splits: Mapping[str, ImageData | None], device: torch.device) -> dict[str, Any]:
    """Show the first test images, under each its two digits."""
    data = tested_on(splits)
    step = max(1, len(data) // SHOWN)
    batch = data.batch(step * torch.arange(SHOWN))
    if batch.parts is None:
        raise ValueError(f"the run was measured on {data.name}; expected MultiMNIST's pairs")
    rows = [batch.images, batch.parts[:, 0], batch.parts[:, 1]]
    return {"sheet": pack(torch.cat([row[:, 0] for row in rows]), columns=SHOWN)}
