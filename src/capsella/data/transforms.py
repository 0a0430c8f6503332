"""Batched changes of images, on the device where they are; random numbers come in as arguments.

Images are [B, C, H, W]. A pixel's coordinates are those of its centre: (0, 0) is the centre of the upper left pixel.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from einops import rearrange
from torch import Tensor
from torch.nn import functional as F

from capsella.errors import check_choice


class Box(NamedTuple):
    """The smallest rectangle that holds an image's ink; the last row and column belong to it. Each int64 [B]."""

    top: Tensor
    bottom: Tensor
    left: Tensor
    right: Tensor


def window(images: Tensor, top: Tensor, left: Tensor, size: tuple[int, int]) -> Tensor:
    """Cut one window out of each image; what lies outside the image is zero.

    With a window of the image's size this shifts, with a smaller one it crops, with a larger one it places the image on a
    canvas: ``top = −3`` leaves three empty rows above it.

    Args:
        images: [B, C, H, W], any dtype.
        top: int64 [B], the image's row that becomes row 0.
        left: int64 [B], the image's column that becomes column 0.
        size: height and width of the window.

    Example:
        >>> image = torch.tensor([[[[1, 2], [3, 4]]]])
        >>> window(image, torch.tensor([-1]), torch.tensor([1]), (2, 3)).tolist()
        [[[[0, 0, 0], [2, 0, 0]]]]
    """
    B, C, H, W = images.shape
    rows = top[:, None] + torch.arange(1, size[0] + 1, device=images.device)  # [B, H']
    columns = left[:, None] + torch.arange(1, size[1] + 1, device=images.device)  # [B, W']
    # a frame of zeros stands for everything outside.
    framed = rearrange(F.pad(images, (1, 1, 1, 1)), "b c h w -> b c (h w)")
    places = rows.clamp(0, H + 1)[:, :, None] * (W + 2) + columns.clamp(0, W + 1)[:, None, :]
    flat = rearrange(places, "b h w -> b 1 (h w)").expand(B, C, -1)
    return rearrange(framed.gather(2, flat), "b c (h w) -> b c h w", h=size[0])


def centre(images: Tensor, size: tuple[int, int]) -> Tensor:
    """Cut the middle out of each image, or put each in the middle of an empty canvas; an odd pixel goes below and right."""
    tall, wide = size[0] - images.shape[2], size[1] - images.shape[3]
    # a negative amount of padding cuts; truncation keeps the upper left corner where window() has it.
    top, left = int(tall / 2), int(wide / 2)
    return images if tall == wide == 0 else F.pad(images, (left, wide - left, top, tall - top))


def ink_box(images: Tensor) -> Box:
    """Find the box of all pixels that are not zero in any channel; of an empty image, the whole image."""
    ink = (images != 0).any(dim=1)  # [B, H, W]
    rows, columns = ink.any(dim=2).int(), ink.any(dim=1).int()  # [B, H], [B, W]
    H, W = ink.shape[1:]
    return Box(
        rows.argmax(dim=1), H - 1 - rows.flip(1).argmax(dim=1), columns.argmax(dim=1), W - 1 - columns.flip(1).argmax(dim=1)
    )


def affine_matrix(rotation: Tensor, shear: Tensor, scale_x: Tensor, scale_y: Tensor) -> Tensor:
    """Return R(rotation) · [[1, shear], [0, 1]] · diag(scale_x, scale_y), [B, 2, 2], for columns (x, y).

    Args:
        rotation: [B], degrees; clockwise as one sees it, since y points down.
        shear: [B], how many columns a point moves for each row that it lies below the centre.
        scale_x: [B], growth along rows.
        scale_y: [B], growth along columns.
    """
    angle = rotation * (torch.pi / 180)
    cosine, sine = angle.cos(), angle.sin()
    first = torch.stack([cosine * scale_x, (cosine * shear - sine) * scale_y], dim=-1)
    second = torch.stack([sine * scale_x, (sine * shear + cosine) * scale_y], dim=-1)
    return torch.stack([first, second], dim=-2)


def warp(
    images: Tensor,
    matrix: Tensor,
    *,
    size: tuple[int, int],
    source: Tensor | None = None,
    target: Tensor | None = None,
    mode: str = "bilinear",
) -> Tensor:
    """Map images by x ↦ matrix · (x − source) + target; what comes from outside the image is zero.

    Args:
        images: floating [B, C, H, W].
        matrix: [B, 2, 2], for columns (x, y); invertible.
        size: height and width of the result.
        source: [B, 2] points (x, y) of the images; their centres if None.
        target: [B, 2] where those points go; the centre of the result if None.
        mode: ``"bilinear"`` or ``"nearest"``.

    Example:
        >>> image = torch.tensor([[[[1.0, 2.0], [3.0, 4.0]]]])
        >>> quarter_turn = torch.tensor([[[0.0, -1.0], [1.0, 0.0]]])
        >>> warp(image, quarter_turn, size=(2, 2), mode="nearest").tolist()
        [[[[3.0, 1.0], [4.0, 2.0]]]]
    """
    check_choice("mode", mode, ("bilinear", "nearest"))
    H, W = images.shape[-2:]
    # plain numbers where nothing is given: a tensor would have to travel to the device.
    source_x, source_y = ((W - 1) / 2, (H - 1) / 2) if source is None else source.unbind(-1)
    target_x, target_y = ((size[1] - 1) / 2, (size[0] - 1) / 2) if target is None else target.unbind(-1)
    # the sampler asks where a pixel of the result comes from: the inverse, in closed form.
    (a, b), (c, d) = matrix[:, 0].unbind(-1), matrix[:, 1].unbind(-1)
    determinant = a * d - b * c
    grid = torch.stack(
        [
            _coordinates(d / determinant, -b / determinant, source_x, target_x, target_y, images, size, length=W),
            _coordinates(-c / determinant, a / determinant, source_y, target_x, target_y, images, size, length=H),
        ],
        dim=-1,
    )  # [B, H', W', 2]
    return F.grid_sample(images, grid, mode=mode, padding_mode="zeros", align_corners=False)


def _coordinates(
    of_x: Tensor,
    of_y: Tensor,
    source: Tensor | float,
    target_x: Tensor | float,
    target_y: Tensor | float,
    images: Tensor,
    size: tuple[int, int],
    *,
    length: int,
) -> Tensor:
    """Return of_x·(x − target_x) + of_y·(y − target_y) + source for every pixel, in the sampler's units, [B, H', W']."""
    offset = source - of_x * target_x - of_y * target_y
    # grid_sample counts from −1 at the first pixel's outer edge to 1 at the last one's.
    scale = 2 / length
    parts = [rearrange((value * scale).to(images.dtype), "b -> b 1 1") for value in (of_x, of_y, offset + 0.5)]
    x = torch.arange(size[1], dtype=images.dtype, device=images.device)
    y = torch.arange(size[0], dtype=images.dtype, device=images.device)
    return torch.addcmul(torch.addcmul(parts[2] - 1, parts[1], y[:, None]), parts[0], x)


def to_bytes(images: Tensor) -> Tensor:
    """Round to whole grey levels from 0 to 255."""
    return images.round().clamp(0, 255).to(torch.uint8)


def unit(images: Tensor) -> Tensor:
    """Divide grey levels by 255: float32 from 0 to 1."""
    values = images.to(torch.float32)
    # by a tensor, because a GPU multiplies by the rounded reciprocal of a plain number, and then differs from the CPU.
    return values / values.new_full((), 255)


def flip(images: Tensor, chosen: Tensor) -> Tensor:
    """Mirror the images of the boolean mask ``chosen`` [B] left to right."""
    return torch.where(rearrange(chosen, "b -> b 1 1 1"), images.flip(-1), images)


def brightness(images: Tensor, delta: Tensor) -> Tensor:
    """Add ``delta`` [B] to every value; nothing is clipped."""
    return images + rearrange(delta.to(images.dtype), "b -> b 1 1 1")


def contrast(images: Tensor, factor: Tensor) -> Tensor:
    """Stretch each channel about its own mean by ``factor`` [B]; nothing is clipped."""
    # a GPU adds up in an order that depends on the size of the batch; in float64 that cannot be seen afterwards.
    mean = images.double().mean(dim=(-2, -1), keepdim=True)
    return ((images - mean) * rearrange(factor, "b -> b 1 1 1") + mean).to(images.dtype)


def standardise(images: Tensor, *, levels: float = 1) -> Tensor:
    """Give every image mean 0 and standard deviation 1; bytes become float32.

    An image with little contrast is divided by ``levels``/√(C·H·W), as TensorFlow does with values that were first divided by
    ``levels``.
    """
    dtype = images.dtype if images.is_floating_point() else torch.float32
    if not len(images):
        return images.to(dtype)
    values = images.double()
    # sums of grey levels and of their squares are exact in float64, whatever the order in which a device adds.
    mean, square = (each.mean(dim=(1, 2, 3), keepdim=True) for each in (values, values.square()))
    deviation = (square - mean.square()).clamp(min=0).sqrt()
    return ((values - mean) / deviation.clamp(min=levels * images[0].numel() ** -0.5)).to(dtype)
