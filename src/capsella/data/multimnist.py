"""MultiMNIST (Sabour et al. 2017): two digits of different classes over each other on 36×36.

Image n belongs to the original n // partners. The original is moved by up to ``shift`` pixels, once and for all; each of its
partners is drawn from the digits of other classes in the same split and moved on its own. Grey levels add up to 255 at most.
Nothing is stored: 60 million images are addressed by their index.

Departures: the original's code draws with one generator in sequence; here every image is a function of its index.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from einops import rearrange
from torch import Tensor

from capsella.data.digits import DIGITS, MNIST, load_idx
from capsella.data.draws import Draws
from capsella.data.places import Places
from capsella.data.registry import Content, register_data
from capsella.data.samples import Samples, View, overlay
from capsella.data.transforms import window
from capsella.errors import check_count

PADDING = 4
_MOST = 2**31 - 1


class Pairs(Samples):
    """Pairs of digits, made when they are asked for.

    Args:
        images: uint8 [N, 1, 28, 28], the originals.
        classes: int64 [N].
        partners: images per original.
        shift: how far a digit is moved at most.
        seed: of the draw; one per split.
    """

    def __init__(self, images: Tensor, classes: Tensor, *, partners: int, shift: int, seed: str) -> None:
        self._images, self._classes = images, classes
        self.partners, self.shift, self.seed = partners, shift, seed
        self.shape = (images.shape[1], images.shape[2] + 2 * PADDING, images.shape[3] + 2 * PADDING)
        # originals sorted by class: those of another class are all but one run of them.
        self._sorted = classes.argsort(stable=True)
        counts = torch.bincount(classes, minlength=len(DIGITS))
        self._first, self._count = counts.cumsum(0) - counts, counts

    def __len__(self) -> int:
        return len(self._images) * self.partners

    @property
    def device(self) -> torch.device:
        """Where the originals lie."""
        return self._images.device

    def to(self, device: torch.device) -> Pairs:
        """Copy the originals."""
        images, classes = self._images.to(device), self._classes.to(device)
        return Pairs(images, classes, partners=self.partners, shift=self.shift, seed=self.seed)

    def with_partners(self, partners: int) -> Pairs:
        """Return the same originals with another number of partners: other images."""
        check_count("partners", partners)
        return Pairs(self._images, self._classes, partners=partners, shift=self.shift, seed=self.seed)

    def pair(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Return which originals are in each image, the base and its partner, int64 [B] each."""
        base = indices // self.partners
        own = self._classes[base]
        others = len(self._images) - self._count[own]
        (place,) = Draws(indices, seed=self.seed).integers("partner", others)
        # skip the run of the base's own class.
        place = torch.where(place < self._first[own], place, place + self._count[own])
        return base, self._sorted[place]

    def parts(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Return both digits alone on the canvas, uint8 [B, 2, 1, 36, 36], and their classes [B, 2], the base first."""
        base, partner = self.pair(indices)
        choices = 2 * self.shift + 1
        base_top, base_left = Draws(base, seed=self.seed).integers("base shift", choices, choices)
        top, left = Draws(indices, seed=self.seed).integers("partner shift", choices, choices)
        both = torch.cat([base, partner])
        corner = PADDING + self.shift
        digits = window(
            self._images[both], torch.cat([base_top, top]) - corner, torch.cat([base_left, left]) - corner, self.shape[1:]
        )
        classes = self._classes[both]
        return rearrange(digits, "(n b) c h w -> b n c h w", n=2), rearrange(classes, "(n b) -> b n", n=2)

    def draw(self, indices: Tensor, draws: Draws) -> Tensor:
        """Lay both digits over each other."""
        return overlay(self.parts(indices)[0])

    def labels(self, indices: Tensor) -> Tensor:
        """Return multi-hot rows, int64 [B, 10]."""
        base, partner = self.pair(indices)
        rows = torch.zeros(len(indices), len(DIGITS), dtype=torch.int64, device=indices.device)
        return rows.scatter(1, torch.stack([self._classes[base], self._classes[partner]], dim=1), 1)

    def all_images(self, draws: Callable[[Tensor], Draws]) -> View:
        """Return a view: the whole may have 78 GB."""
        return View((len(self), *self.shape), torch.uint8, self._overlaid)

    def all_labels(self) -> View:
        """Return a view."""
        return View((len(self), len(DIGITS)), torch.int64, self._labelled)

    def _overlaid(self, indices: Tensor) -> Tensor:
        return overlay(self.parts(indices.to(self.device))[0])

    def _labelled(self, indices: Tensor) -> Tensor:
        return self.labels(indices.to(self.device))


@register_data(
    "multimnist",
    summary="two digits over each other on 36×36, partners= images per original, up to 60 million",
    files=MNIST,
    augments=False,
)
def multimnist(split: str, places: Places, *, partners: int = 1, shift: int = 4, test_partners: int | None = None) -> Content:
    """Pair MNIST's digits; ``test_partners`` are those of a test image, where they are not to be as many."""
    check_count("partners", partners)
    if test_partners is not None:
        check_count("test_partners", test_partners)
    check_count("shift", shift, least=0)
    images, labels, facts = load_idx(MNIST, split, places)
    if shift > 6:
        raise ValueError(f"shift={shift} is too large; expected 0 to 6, beyond which digits leave the canvas")
    if split == "test" and test_partners is not None:
        partners = test_partners
    if partners * len(images) > _MOST:
        raise ValueError(
            f"partners={partners} is too large; expected at most {_MOST // len(images)} for {len(images):,} originals"
        )
    samples = Pairs(images, labels, partners=partners, shift=shift, seed=f"multimnist {split}")
    return Content(samples, DIGITS, facts)
