"""What happens to a batch on its way to a network: augmentations and normalisations, by name or as objects.

An augmentation is called with the images as they lie in the set and with the random numbers of these samples, or with None
when a network is evaluated: then it must not move anything, only give images of the size that training gives.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from capsella.data.draws import Draws
from capsella.data.transforms import (
    affine_matrix,
    brightness,
    centre,
    contrast,
    flip,
    ink_box,
    standardise,
    to_bytes,
    unit,
    warp,
    window,
)
from capsella.errors import check_choice, check_count, check_number


@runtime_checkable
class Augmentation(Protocol):
    """A random change of images."""

    def __call__(self, images: Tensor, draws: Draws | None) -> Tensor:
        """Change a batch; without ``draws``, as evaluation needs it."""
        ...

    def size(self, size: tuple[int, int]) -> tuple[int, int]:
        """Return height and width after the change."""
        ...


@dataclass(frozen=True)
class Shift:
    """Move each image by whole pixels, −``pixels`` to ``pixels`` in both directions; zeros come in (Sabour et al. 2017: 2)."""

    pixels: int = 2

    def __post_init__(self) -> None:
        check_count("pixels", self.pixels, least=0)

    def __call__(self, images: Tensor, draws: Draws | None) -> Tensor:
        """Shift a batch."""
        if draws is None:
            return images
        count = 2 * self.pixels + 1
        top, left = draws.integers("shift", count, count)
        return window(images, top - self.pixels, left - self.pixels, (images.shape[2], images.shape[3]))

    def size(self, size: tuple[int, int]) -> tuple[int, int]:
        """Return ``size``."""
        return size


@dataclass(frozen=True)
class MirrorShift:
    """Mirror each image or not, by chance, and move it by up to ``pixels``: padded, and cropped to its size again.

    Usual for CIFAR-10; mitterreiter2023's notebook has it.
    """

    pixels: int = 4

    def __post_init__(self) -> None:
        check_count("pixels", self.pixels, least=0)

    def __call__(self, images: Tensor, draws: Draws | None) -> Tensor:
        """Mirror and move a batch."""
        if draws is None:
            return images
        count = 2 * self.pixels + 1
        top, left, mirrored = draws.integers("mirror and shift", count, count, 2)
        size = (images.shape[2], images.shape[3])
        return flip(window(images, top - self.pixels, left - self.pixels, size), mirrored == 1)

    def size(self, size: tuple[int, int]) -> tuple[int, int]:
        """Return ``size``."""
        return size


@dataclass(frozen=True)
class Place:
    """Put each image at a random place on a larger, empty canvas.

    Attributes:
        canvas: its side.
        purpose: of the random numbers; two placements one after the other need different ones.
    """

    canvas: int = 40
    purpose: str = "place as augmentation"

    def __post_init__(self) -> None:
        check_count("canvas", self.canvas)

    def __call__(self, images: Tensor, draws: Draws | None) -> Tensor:
        """Place a batch; in the middle, without ``draws``."""
        size = (self.canvas, self.canvas)
        if draws is None:
            return centre(images, size)
        top, left = draws.integers(self.purpose, self.canvas - images.shape[2] + 1, self.canvas - images.shape[3] + 1)
        return window(images, -top, -left, size)

    def size(self, size: tuple[int, int]) -> tuple[int, int]:
        """Return the canvas."""
        if max(size) > self.canvas:
            raise ValueError(
                f"canvas={self.canvas} is too small; expected at least {max(size)} for images of {size[0]}×{size[1]}"
            )
        return (self.canvas, self.canvas)


@dataclass(frozen=True)
class Affine:
    """Rotate, shear and scale each image at random, and put it on a canvas.

    Attributes:
        rotation: largest angle in degrees, either way.
        shear: largest shear factor, either way; in degrees where ``shear_degrees`` says so (45° is a factor of 1).
        shear_degrees: draw an angle and shear by its tangent.
        scale: smallest and largest scale.
        one_scale: scale both axes alike.
        canvas: side of the result; that of the image if None.
        position: ``"fit"``: the transformed ink is moved to a place drawn from all those where it fits on the canvas, which it
            must be large enough for (MNIST's 20×20 boxes fit on 40×40 whatever is drawn for ``affnist``);
            ``"shift"``: it is moved by up to ``shift`` pixels; ``"keep"``: it stays.
        shift: see ``position``.
        about: ``"ink"``: the fixed point is the middle of the ink, which goes to the middle of the canvas; ``"centre"``: the
            image's middle does.
        mode: ``"bilinear"`` or ``"nearest"``.
        double: compute in float64, so that rounding to grey levels gives the same on any machine.
    """

    rotation: float
    shear: float
    scale: tuple[float, float]
    shear_degrees: bool = False
    one_scale: bool = False
    canvas: int | None = None
    position: str = "keep"
    shift: float = 0.0
    about: str = "centre"
    mode: str = "bilinear"
    double: bool = False

    def __post_init__(self) -> None:
        check_choice("position", self.position, ("fit", "shift", "keep"))
        check_choice("about", self.about, ("ink", "centre"))
        check_choice("mode", self.mode, ("bilinear", "nearest"))
        for name in ("rotation", "shear", "shift"):
            check_number(name, getattr(self, name), least=0)
        if self.canvas is not None:
            check_count("canvas", self.canvas)
        if not isinstance(self.scale, tuple) or len(self.scale) != 2 or not 0 < self.scale[0] <= self.scale[1]:
            raise ValueError(f"scale={self.scale!r} is no range; expected (smallest, largest), both above 0")

    def __call__(self, images: Tensor, draws: Draws | None) -> Tensor:
        """Transform a batch; only put it on the canvas, without ``draws``."""
        size = self.size((images.shape[2], images.shape[3]))
        if draws is None:
            return centre(images, size)
        turn, lean, wide, high = self.parameters(draws)
        source = target = None
        if self.about == "ink":
            box = ink_box(images)
            source = torch.stack([box.left + box.right, box.top + box.bottom], dim=-1) / 2  # [B, 2] as (x, y)
        if self.position == "shift":
            x, y = (draws.uniform("affine shift", 2) * 2 - 1) * self.shift
            target = torch.stack([x + (size[1] - 1) / 2, y + (size[0] - 1) / 2], dim=-1)
        exact = images.to(torch.float64 if self.double else torch.float32)
        matrix = affine_matrix(turn, lean, wide, high)
        moved = warp(exact, matrix, size=size, source=source, target=target, mode=self.mode)
        # grey levels stay grey levels; values of another kind are not rounded to them.
        moved = moved.to(images.dtype) if images.is_floating_point() else to_bytes(moved)
        return _anywhere_it_fits(moved, draws) if self.position == "fit" else moved

    def parameters(self, draws: Draws) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Draw rotation in degrees, shear factor, horizontal and vertical scale, float64 [B] each."""
        turn, lean, wide, high = draws.uniform("affine", 4)
        low, top = self.scale
        shear = (2 * lean - 1) * self.shear
        horizontal = low + wide * (top - low)
        return (
            (2 * turn - 1) * self.rotation,
            (shear * (torch.pi / 180)).tan() if self.shear_degrees else shear,
            horizontal,
            horizontal if self.one_scale else low + high * (top - low),
        )

    def size(self, size: tuple[int, int]) -> tuple[int, int]:
        """Return the canvas, or ``size`` where there is none."""
        return size if self.canvas is None else (self.canvas, self.canvas)


def _anywhere_it_fits(images: Tensor, draws: Draws) -> Tensor:
    """Move each image's ink to a place drawn evenly from all those where none of it is lost."""
    H, W = images.shape[2:]
    box = ink_box(images)
    # the ink's first row may be any from 0 to H − height, where height is bottom − top + 1, and so for columns.
    top, left = draws.integers("affine place", H - (box.bottom - box.top), W - (box.right - box.left))
    return window(images, box.top - top, box.left - left, (H, W))


@dataclass(frozen=True)
class SabourCifar:
    """Sabour's distortions of CIFAR-10: random crop, mirror, brightness ±63, contrast 0.2 to 1.8; a centre crop in evaluation.

    Values leave as float32 on the scale 0 to 255, unclipped. Standardisation, which follows there, undoes the brightness
    altogether and the contrast but for the differences between channels.
    """

    crop: int = 24

    def __post_init__(self) -> None:
        check_count("crop", self.crop)

    def __call__(self, images: Tensor, draws: Draws | None) -> Tensor:
        """Distort a batch; only crop it, without ``draws``."""
        size = (self.crop, self.crop)
        if draws is None:
            return centre(images, size)
        top, left, mirrored = draws.integers("crop", images.shape[2] - self.crop + 1, images.shape[3] - self.crop + 1, 2)
        cut = flip(window(images, top, left, size), mirrored == 1).float()
        light, stretch = draws.uniform("light", 2)
        return contrast(brightness(cut, (2 * light - 1) * 63), 0.2 + 1.6 * stretch)

    def size(self, size: tuple[int, int]) -> tuple[int, int]:
        """Return the crop."""
        if min(size) < self.crop:
            raise ValueError(f"crop={self.crop} is too large for images of {size[0]}×{size[1]}; expected at most {min(size)}")
        return (self.crop, self.crop)


# SPEC's three readings of affNIST; see docs/data.md for what each is known to reproduce.
AFFNIST = Affine(rotation=20, shear=0.2, scale=(0.8, 1.2), canvas=40, position="fit", about="ink")
AFFNIST_MITTERREITER = Affine(
    rotation=20, shear=40, shear_degrees=True, scale=(0.8, 1.2), one_scale=True, canvas=40, position="fit", mode="nearest"
)
AFFNIST_LITERAL = Affine(rotation=20, shear=45, shear_degrees=True, scale=(0.8, 1.2), canvas=40, position="shift", shift=8)

AUGMENTATIONS: dict[str, Augmentation | None] = {
    "none": None,
    "shift": Shift(2),
    "mirror_shift": MirrorShift(4),
    "affine": Affine(rotation=8, shear=15, shear_degrees=True, scale=(0.9, 1.1), mode="nearest"),
    "affnist": AFFNIST,
    "sabour_cifar": SabourCifar(24),
}


def augmentation(value: object) -> Augmentation | None:
    """Look an augmentation up by name; an object passes through."""
    if isinstance(value, str):
        check_choice("augment", value, AUGMENTATIONS)
        return AUGMENTATIONS[value]
    if value is None or (isinstance(value, Augmentation) and not isinstance(value, type)):
        return value
    known = ", ".join(map(repr, AUGMENTATIONS))
    raise TypeError(f"augment={value!r} has type {type(value).__name__}; expected one of {known} or an Augmentation")


@dataclass(frozen=True)
class Normalisation:
    """How grey levels become a network's input.

    Attributes:
        kind: ``"none"``: as they are; ``"unit"``: divided by 255; ``"centred"``: from −0.5 to 0.5; ``"standardise"``: mean 0
            and deviation 1 per image; ``"peer2022"``: divided by 255, then as ``whole`` says.
        whole: mean and deviation of a whole set, used for every image in place of its own: the fault in peer2022's code, whose
            test images lack a channel axis and are therefore standardised as one array.
    """

    kind: str
    whole: tuple[float, float] | None = None

    def __call__(self, images: Tensor) -> Tensor:
        """Return float32 values."""
        if self.kind == "unit":
            return unit(images)
        if self.kind == "centred":
            return unit(images) - 0.5
        if self.kind == "standardise":
            return standardise(images)
        if self.kind == "peer2022":
            return standardise(images, levels=255) if self.whole is None else (unit(images) - self.whole[0]) / self.whole[1]
        return images.to(torch.float32)


NORMALISATIONS = ("none", "unit", "centred", "standardise", "peer2022")
