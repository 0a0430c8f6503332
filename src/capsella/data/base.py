"""A split of a data set, and how batches of its samples are drawn on a device."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from capsella.data.augment import Augmentation, Normalisation
from capsella.data.draws import Draws, Order
from capsella.data.samples import Indices, Samples, View, as_indices, overlay
from capsella.data.transforms import unit
from capsella.errors import check_count, check_flag, whole_number

# how much a block of batches may take on a GPU, where launching costs more than drawing, and on a CPU, where caches are small.
_BLOCK_BYTES = {"cpu": 1 << 21}
_DEVICE_BLOCK_BYTES = 1 << 26
# how many samples are put in order at once.
_STRETCH = 1 << 17


@dataclass(frozen=True)
class Batch:
    """Samples ready for a network; ``images, labels = batch`` works too.

    Attributes:
        images: float32 [B, C, H, W].
        labels: int64 [B], or multi-hot int64 [B, J].
        parts: float32 [B, n, C, H, W], the single objects of composed images, else None.
        part_labels: int64 [B, n], their classes, else None.
    """

    images: Tensor
    labels: Tensor
    parts: Tensor | None = None
    part_labels: Tensor | None = None

    def __iter__(self) -> Iterator[Tensor]:
        return iter((self.images, self.labels))

    def __len__(self) -> int:
        return len(self.images)

    def split(self, sizes: int | list[int]) -> Iterator[Batch]:
        """Yield consecutive parts of this size, or of these sizes, without a copy."""
        pieces = (torch.split(value, sizes) if value is not None else itertools.repeat(None) for value in vars(self).values())
        return itertools.starmap(Batch, zip(*pieces, strict=False))


@dataclass(frozen=True)
class ImageData:
    """One split of a data set, ready to be trained or evaluated on.

    Attributes:
        samples: what is in it.
        name: registry name.
        split: ``"train"``, ``"fit"``, ``"val"`` or ``"test"``.
        digest: SHA-256 of what defines the samples: split, the set's own options, checksums of the files, and some of the
            samples themselves; it identifies the data of a run.
        class_names: one per class.
        options: as resolved by ``load_data``.
        augment: random change of training images.
        normalise: how grey levels become inputs.
        training: whether samples are augmented and redrawn, as in ``"train"`` and ``"fit"``.
    """

    samples: Samples = field(repr=False)
    name: str
    split: str
    digest: str
    class_names: tuple[str, ...] = field(repr=False)
    options: dict[str, Any]
    augment: Augmentation | None
    normalise: Normalisation
    training: bool
    _elsewhere: dict[torch.device, Samples] = field(default_factory=dict, repr=False, compare=False)
    _made: dict[str, Tensor | View] = field(default_factory=dict, repr=False, compare=False)

    @property
    def images(self) -> Tensor | View:
        """All images as they lie in the set, uint8 [N, C, H, W]; of a set that is redrawn, the draw of epoch 0 and seed 0."""
        if "images" not in self._made:
            self._made["images"] = self.samples.all_images(lambda indices: self._draws(indices, 0, 0))
        return self._made["images"]

    @property
    def labels(self) -> Tensor | View:
        """All labels: int64 [N], or multi-hot int64 [N, J]."""
        return self.samples.all_labels()

    @property
    def device(self) -> torch.device:
        """Where the samples lie."""
        return self.samples.device

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return len(self.class_names)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Channels, height and width of a batch's images."""
        channels, *size = self.samples.shape
        height, width = (size[0], size[1]) if self.augment is None else self.augment.size((size[0], size[1]))
        return (channels, height, width)

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        """Return one image and its label in the draw of epoch 0 and seed 0, as a map-style data set does.

        Batches are far faster, and differ between epochs.
        """
        batch = self.batch([whole_number("index", index)])
        return batch.images[0], batch.labels[0]

    def to(self, device: torch.device | str) -> ImageData:
        """Return the same data with its samples on another device."""
        return ImageData(**{**vars(self), "samples": self._at(device), "_elsewhere": {}, "_made": {}})

    def _at(self, device: torch.device | str | None) -> Samples:
        # a tensor's device has a number; "cuda" alone has none, and would not equal it.
        try:
            wanted = self.samples.device if device is None else torch.empty(0, device=device).device
        except (RuntimeError, AssertionError) as error:
            reason = str(error).splitlines()[0]
            raise ValueError(f"device={str(device)!r} cannot be used ({reason}); expected 'cpu', or 'cuda' on a GPU") from error
        if wanted == self.samples.device:
            return self.samples
        if wanted not in self._elsewhere:
            self._elsewhere[wanted] = self.samples.to(wanted)
        return self._elsewhere[wanted]

    def _draws(self, indices: Tensor, epoch: int, seed: int) -> Draws:
        # what is evaluated on is drawn once and for all.
        return Draws(indices, seed=seed, epoch=epoch) if self.training else Draws(indices, seed=self.split)

    def batch(self, indices: Indices, *, epoch: int = 0, seed: int = 0, device: torch.device | str | None = None) -> Batch:
        """Draw samples: a pure function of seed, epoch and each index.

        Args:
            indices: whole numbers [B], on any device.
            epoch: pass over the data; augmentations and placements differ between epochs.
            seed: of the run.
            device: where the batch is made; the set is copied there once. Where the samples lie if None.

        Returns:
            Images float32 [B, C, H, W] and labels; the parts too where images are composed.
        """
        samples = self._at(device)
        chosen = as_indices(indices, len(self), samples.device)
        return self._draw(samples, chosen, whole_number("epoch", epoch), whole_number("seed", seed))

    def _draw(self, samples: Samples, chosen: Tensor, epoch: int, seed: int) -> Batch:
        draws = self._draws(chosen, epoch, seed)
        parts = samples.parts(chosen)
        # a composed image is cheaper to make from its parts than twice from the start.
        images = samples.draw(chosen, draws) if parts is None else overlay(parts[0])
        if self.augment is not None:
            images = self.augment(images, draws if self.training else None)
        labels = samples.labels(chosen)
        if parts is None:
            return Batch(self.normalise(images), labels)
        return Batch(self.normalise(images), labels, unit(parts[0]), parts[1])

    def parts(self, indices: Indices) -> Tensor:
        """Return the single objects that composed images are made of, uint8 [B, n, C, H, W]."""
        return self._parts(indices)[0]

    def part_labels(self, indices: Indices) -> Tensor:
        """Return the classes of those objects, int64 [B, n]."""
        return self._parts(indices)[1]

    def _parts(self, indices: Indices) -> tuple[Tensor, Tensor]:
        found = self.samples.parts(as_indices(indices, len(self), self.samples.device))
        if found is None:
            raise ValueError(f"name={self.name!r} has images of one object each; parts are those of multimnist")
        return found

    def batches(
        self,
        batch_size: int,
        *,
        epoch: int = 0,
        seed: int = 0,
        device: torch.device | str | None = None,
        shuffle: bool | None = None,
        drop_last: bool = False,
        start: int = 0,
        share: tuple[int, int] = (0, 1),
    ) -> Batches:
        """Go through the whole set once.

        Args:
            batch_size: images of one step, over all processes.
            epoch: pass over the data.
            seed: of the run.
            device: where batches are made.
            shuffle: in an order drawn from seed and epoch; by default in training only.
            drop_last: leave out the last batch where it is smaller; by default every sample is served.
            start: first batch to serve, to go on where a run was interrupted.
            share: this process and their number; each gets its part of every batch. The last batch may have fewer images than
                there are processes, so that some get none: use ``drop_last`` where each needs one.

        Returns:
            An iterable of ``Batch`` with a length.
        """
        check_count("batch_size", batch_size)
        check_count("start", start, least=0)
        check_flag("drop_last", drop_last)
        if shuffle is not None:
            check_flag("shuffle", shuffle)
        if not isinstance(share, Sequence) or len(share) != 2:
            raise TypeError(f"share={share!r} has type {type(share).__name__}; expected a pair (rank, number)")
        rank, world = (whole_number("share", value) for value in share)
        if not 0 <= rank < world:
            raise ValueError(f"share={share!r} names no process; expected (rank, number) with 0 ≤ rank < number")
        mixed = self.training if shuffle is None else shuffle
        when = (whole_number("epoch", epoch), whole_number("seed", seed))
        return Batches(self, batch_size, *when, self._at(device), mixed, drop_last, start, (rank, world))


@dataclass(frozen=True)
class Batches:
    """One pass over a set; see ``ImageData.batches``.

    Many batches are drawn as one block and handed out as slices: a sample is the same whatever is drawn beside it, and on a
    GPU a block costs about as many launches as one batch.
    """

    data: ImageData
    batch_size: int
    epoch: int
    seed: int
    samples: Samples
    shuffle: bool
    drop_last: bool
    start: int
    share: tuple[int, int]

    def _total(self) -> int:
        count = len(self.data)
        return count // self.batch_size if self.drop_last else -(-count // self.batch_size)

    def __len__(self) -> int:
        return max(0, self._total() - self.start)

    def __iter__(self) -> Iterator[Batch]:
        channels, height, width = self.data.image_shape
        limit = _BLOCK_BYTES.get(self.samples.device.type, _DEVICE_BLOCK_BYTES)
        together = max(1, limit // (4 * channels * height * width * self.batch_size))
        for stretch in self._stretches(together):
            for block in torch.split(stretch, together * self.batch_size):
                mine, sizes = self._mine(block)
                yield from self.data._draw(self.samples, mine, self.epoch, self.seed).split(sizes)

    def _stretches(self, together: int) -> Iterator[Tensor]:
        """Yield samples in their order, as many batches of them at once as are cheap to order."""
        count, device = len(self.data), self.samples.device
        order = Order(count, seed=self.seed, epoch=self.epoch, device=device) if self.shuffle else None
        steps = together * max(1, _STRETCH // (together * self.batch_size))
        for first in range(self.start, self._total(), steps):
            begin = first * self.batch_size
            end = min((first + steps) * self.batch_size, self._total() * self.batch_size, count)
            yield torch.arange(begin, end, device=device) if order is None else order[begin:end]

    def _mine(self, block: Tensor) -> tuple[Tensor, int | list[int]]:
        """Return this process's samples of some batches, and how many it has of each."""
        rank, world = self.share
        if world == 1:
            return block, self.batch_size
        steps = torch.split(block, self.batch_size)
        mine = [step[len(step) * rank // world : len(step) * (rank + 1) // world] for step in steps]
        return torch.cat(mine), [len(part) for part in mine]
