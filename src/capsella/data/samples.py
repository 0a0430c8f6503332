"""What is in a data set: images and labels by index, held or made when they are asked for."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from capsella.data.augment import Augmentation
from capsella.data.draws import Draws

Indices = int | slice | Sequence[int] | np.ndarray | Tensor


class View:
    """Images or labels that are made when they are asked for: indexed and sliced along the first axis like a tensor.

    Args:
        shape: of the whole.
        dtype: of the values.
        make: from int64 indices [B] to the values [B, …].
    """

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype, make: Callable[[Tensor], Tensor]) -> None:
        self.shape = torch.Size(shape)
        self.dtype = dtype
        self._make = make

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, key: Indices | tuple[Any, ...]) -> Tensor:
        first, *rest = key if isinstance(key, tuple) else (key,)
        made = self._make(as_indices(first, len(self)))
        # one number takes the axis away, a slice or a list of one keeps it.
        if not isinstance(first, slice) and np.ndim(first) == 0:
            return made[0][tuple(rest)] if rest else made[0]
        # two lists name pairs, as they do with a tensor; a slice and a list do not.
        pairs = not isinstance(first, slice) and any(not isinstance(each, slice) and np.ndim(each) > 0 for each in rest)
        return made[(torch.arange(len(made)) if pairs else slice(None), *rest)] if rest else made

    def __iter__(self) -> Iterator[Tensor]:
        return (self[k] for k in range(len(self)))

    def __repr__(self) -> str:
        return f"View(shape={tuple(self.shape)}, dtype={self.dtype})"


class Samples(ABC):
    """What is in a set: images and labels by index, on one device."""

    shape: tuple[int, int, int]
    """Channels, height and width of an image."""

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of samples."""

    @abstractmethod
    def draw(self, indices: Tensor, draws: Draws) -> Tensor:
        """Return images [B, C, H, W] as they lie in the set; where a set is redrawn, with the numbers of ``draws``."""

    @abstractmethod
    def labels(self, indices: Tensor) -> Tensor:
        """Return labels [B] or [B, J]."""

    @abstractmethod
    def to(self, device: torch.device) -> Samples:
        """Return the same samples on another device."""

    @property
    @abstractmethod
    def device(self) -> torch.device:
        """Where the samples lie."""

    @abstractmethod
    def all_images(self, draws: Callable[[Tensor], Draws]) -> Tensor | View:
        """Return all images as they lie in the set."""

    @abstractmethod
    def all_labels(self) -> Tensor | View:
        """Return all labels."""

    def parts(self, indices: Tensor) -> tuple[Tensor, Tensor] | None:
        """Return the objects that images are composed of, [B, n, C, H, W], and their classes [B, n], where there are such."""
        return None


class Stored(Samples):
    """Images that are held, and maybe put on a canvas anew each time they are drawn.

    Args:
        images: [N, C, H, W], uint8 (or float where values are no grey levels).
        classes: int64 [N].
        place: puts drawn images at random places.
    """

    def __init__(self, images: Tensor, classes: Tensor, *, place: Augmentation | None = None) -> None:
        self._images = images
        self._classes = classes
        self._place = place
        size = (images.shape[2], images.shape[3])
        self.shape = (images.shape[1], *(size if place is None else place.size(size)))

    def __len__(self) -> int:
        return len(self._images)

    def draw(self, indices: Tensor, draws: Draws) -> Tensor:
        """Take images, and place them."""
        images = self._images[indices]
        return images if self._place is None else self._place(images, draws)

    def labels(self, indices: Tensor) -> Tensor:
        """Return classes [B]."""
        return self._classes[indices]

    def to(self, device: torch.device) -> Stored:
        """Copy images and labels."""
        return Stored(self._images.to(device), self._classes.to(device), place=self._place)

    @property
    def device(self) -> torch.device:
        """Where the images lie."""
        return self._images.device

    @property
    def originals(self) -> Tensor:
        """The images [N, C, H, W] that are held, before any is placed."""
        return self._images

    def all_images(self, draws: Callable[[Tensor], Draws]) -> Tensor:
        """Return the tensor itself, or one draw of every placed image."""
        if self._place is None:
            return self._images
        blocks = torch.split(torch.arange(len(self), device=self.device), 4096)
        return torch.cat([self.draw(block, draws(block)) for block in blocks])

    def all_labels(self) -> Tensor:
        """Return the tensor itself."""
        return self._classes


def as_indices(value: Indices, count: int, device: torch.device | None = None) -> Tensor:
    """Turn an index, a slice, a list or a tensor into int64 [B] on ``device``; out of range is an ``IndexError``."""
    if isinstance(value, slice):
        chosen = range(count)[value]
        return torch.arange(chosen.start, chosen.stop, chosen.step, device=device) if chosen else torch.arange(0, device=device)
    found = value if isinstance(value, Tensor) else _from_array(value)
    whole = not (found.is_floating_point() or found.is_complex() or found.dtype == torch.bool)
    if found.numel() and (found.ndim > 1 or not whole):
        raise TypeError(f"indices has dtype {found.dtype} and shape {list(found.shape)}; expected whole numbers [B]")
    found = found.long().reshape(-1)
    # looked at only where that is free: a GPU would have to be waited for.
    if found.device.type == "cpu" and len(found):
        low, high = int(found.min()), int(found.max())
        if low < -count or high >= count:
            raise IndexError(f"indices has {low if low < -count else high}; expected numbers from 0 to {count - 1}")
        found = torch.where(found < 0, found + count, found) if low < 0 else found
    elif found.device.type != "cpu":
        found = torch.where(found < 0, found + count, found)
    return found if device is None else found.to(device, non_blocking=True)


def _from_array(value: object) -> Tensor:
    """Copy what numpy can read as an array of numbers; a torch tensor cannot share reversed or read-only memory."""
    try:
        array = np.asarray(value)
    except ValueError:  # a list of lists of different lengths
        array = np.asarray(None)
    if array.dtype.kind not in "iufcb":
        kind = type(value).__name__
        raise TypeError(f"indices has type {kind}; expected whole numbers: an int, a slice, a list, an array or a tensor")
    return torch.from_numpy(np.array(array))


def overlay(parts: Tensor) -> Tensor:
    """Add the grey levels of parts [B, n, C, H, W], cut off at 255: [B, C, H, W]."""
    return parts.sum(dim=1, dtype=torch.int16).clamp(max=255).to(torch.uint8)
