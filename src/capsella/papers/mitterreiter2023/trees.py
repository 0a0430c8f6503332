"""Parse trees of the first run (Figures 2, 3 and 5), as a record can hold them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from capsella.analysis import diagnose
from capsella.data import ImageData
from capsella.papers.images import pack
from capsella.train.run import Run

FIRST = 0
"""The seed whose trees are kept: those of others would make records large."""

IMAGES = 1024


def trees_of_run(run: Run, splits: Mapping[str, ImageData | None], device: torch.device) -> dict[str, Any]:
    """Return trees of two test images, of the first one turned, and their statistics; nothing of later seeds."""
    data = splits.get("affnist_mitterreiter")
    if run.config["train"]["seed"] != FIRST or data is None:
        return {}
    parts = torch.linspace(0, len(data) - 1, min(IMAGES, len(data))).round().long()
    batches = [data.batch(part).images for part in torch.split(parts, 256)]
    found = diagnose(run.model, batches, views={"rotation": (20,)}).as_dict()["pictures"]
    if found is None:
        return {}
    images = torch.tensor(found.pop("images"))[:, 0] / 255
    return {**_short(found), "images": [pack(image[None], columns=1) for image in images]}


def _short(value: Any) -> Any:
    """Round to what a line shows."""
    if isinstance(value, dict):
        return {key: _short(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_short(each) for each in value]
    return round(value, 3) if isinstance(value, float) else value
