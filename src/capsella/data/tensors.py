"""Data from tensors that are at hand: no name to register, no file to find."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor

from capsella.data.augment import NORMALISATIONS, Augmentation
from capsella.data.base import ImageData
from capsella.data.registry import Content, assemble
from capsella.data.samples import Stored
from capsella.data.splits import SPLITS
from capsella.errors import check_choice


def from_tensors(
    images: Tensor,
    labels: Tensor,
    *,
    name: str = "tensors",
    split: str = "train",
    class_names: Sequence[str] | None = None,
    augment: str | Augmentation | None = None,
    normalise: str | None = None,
) -> ImageData:
    """Make data of images that are at hand.

    Args:
        images: [N, C, H, W], bytes from 0 to 255, or floating where values are inputs as they are.
        labels: whole numbers [N].
        name: what records call it.
        split: ``"train"`` and ``"fit"`` are augmented and shuffled, ``"val"`` and ``"test"`` are not.
        class_names: one per class; numbers if None.
        augment: as in ``load_data``.
        normalise: as in ``load_data``; ``"unit"`` for bytes and ``"none"`` for others if None.

    Example:
        >>> data = from_tensors(torch.zeros(6, 1, 8, 8, dtype=torch.uint8), torch.arange(6) % 3)
        >>> data.num_classes, [len(batch) for batch in data.batches(4)]
        (3, [4, 2])
    """
    check_choice("split", split, SPLITS)
    _check(images, labels)
    count = int(labels.max()) + 1
    names = tuple(map(str, range(count))) if class_names is None else tuple(class_names)
    if len(names) < count:
        raise ValueError(f"class_names has {len(names)} names; expected at least {count}")
    scheme = ("none" if images.is_floating_point() else "unit") if normalise is None else normalise
    check_choice("normalise", scheme, NORMALISATIONS)
    # what is no byte is drawn as float32 in the end.
    values = (images.float() if images.is_floating_point() else images).detach()
    classes = labels.long()
    facts = {"images": _hash(values), "labels": _hash(classes)}
    return assemble(Content(Stored(values, classes), names, facts), name, split, {}, augment, scheme)


def _check(images: Tensor, labels: Tensor) -> None:
    for argument, tensor, axes in (("images", images, 4), ("labels", labels, 1)):
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{argument} has type {type(tensor).__name__}; expected a tensor")
        if tensor.ndim != axes or len(tensor) == 0:
            raise ValueError(f"{argument} has shape {list(tensor.shape)}; expected {axes} axes, none of them empty")
    if images.dtype != torch.uint8 and not images.is_floating_point():
        raise TypeError(f"images has dtype {images.dtype}; expected uint8 or floating values")
    if labels.is_floating_point() or labels.dtype == torch.bool:
        raise TypeError(f"labels has dtype {labels.dtype}; expected whole numbers")
    if len(labels) != len(images):
        raise ValueError(f"labels has {len(labels)} entries; expected one for each of {len(images)} images")
    if int(labels.min()) < 0:
        raise ValueError(f"labels has class {int(labels.min())}; expected classes from 0")


def _hash(tensor: Tensor) -> str:
    return hashlib.sha256(tensor.cpu().contiguous().numpy().data).hexdigest()
