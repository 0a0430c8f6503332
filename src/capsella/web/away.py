"""A run whose images are not at hand: drawings and files can still be shown to it, and there are none to pick."""

from __future__ import annotations

from typing import Any

import torch

from capsella.data import ImageData
from capsella.data.augment import Normalisation
from capsella.data.samples import Stored


def without_images(config: dict[str, Any], split: str) -> ImageData | None:
    """Return what a run's record says of a split, without an image; None where its inputs cannot be made without the images.

    Args:
        config: of the run.
        split: by name.
    """
    trained = config["data"]["train"]
    kind = trained["options"].get("normalise")
    # peer2022's code divides by what all images of the split have together; of images made by hand nobody knows.
    if kind is None or kind == "peer2022":
        return None
    images = torch.zeros(0, *trained["image_shape"], dtype=torch.uint8)
    return ImageData(
        samples=Stored(images, torch.zeros(0, dtype=torch.int64)),
        name=trained["name"],
        split=split,
        digest="",
        class_names=tuple(trained["class_names"]),
        options={},
        augment=None,
        normalise=Normalisation(kind),
        training=False,
    )
