"""Images on their way in and out: bytes of a request to grey levels, and what is done with them before a network sees them.

Grey levels are [C, H, W] from 0 to 255: bytes as they lie in a data set, floats once they were moved.
"""

from __future__ import annotations

import base64
import binascii
import io
import re

import numpy as np
import torch
from einops import rearrange
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from capsella.data.folder import as_pixels, with_channels
from capsella.data.samples import overlay
from capsella.data.transforms import affine_matrix, centre, to_bytes, warp, window
from capsella.web.schemas import DrawnPicture, Move, Pixels
from capsella.web.trouble import TooMuch, Trouble

FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF")
"""Of uploads; each decoder that is left out is one less to trust."""

# what a person sees of red, green and blue (ITU-R 601), as Pillow's own conversion has it.
_LUMA = (0.299, 0.587, 0.114)

Shape = tuple[int, int, int]


def packed(levels: Tensor) -> Pixels:
    """Return grey levels as they go over the wire."""
    pixels = rearrange(to_bytes(levels), "c h w -> h w c").contiguous()
    height, width, channels = pixels.shape
    data = base64.b64encode(pixels.cpu().numpy().tobytes()).decode()
    return Pixels(height=height, width=width, channels=channels, data=data)


def unpacked(picture: DrawnPicture) -> Tensor:
    """Return the grey levels of a drawing, uint8 [C, H, W]."""
    expected = picture.height * picture.width * picture.channels
    try:
        content = base64.b64decode(picture.data, validate=True)
    except (binascii.Error, ValueError) as error:
        raise Trouble(f"data is no base64 ({error}); expected {expected} bytes in base64") from error
    if len(content) != expected:
        sizes = f"height {picture.height} × width {picture.width} × channels {picture.channels}"
        raise Trouble(f"data has {len(content)} bytes; expected {expected}, {sizes}")
    values = torch.frombuffer(bytearray(content), dtype=torch.uint8)
    return rearrange(values, "(h w c) -> c h w", h=picture.height, w=picture.width).contiguous()


def decoded(content: bytes, shape: Shape, *, most_pixels: int, invert: bool = False) -> Tensor:
    """Read an image file that somebody sent; nothing is decoded before its size is known.

    Args:
        content: of the file.
        shape: (C, H, W) that it is scaled to.
        most_pixels: of the file.
        invert: turn dark into light.
    """
    channels, height, width = shape
    try:
        with Image.open(io.BytesIO(content), formats=FORMATS) as image:
            if image.width * image.height > most_pixels:
                raise TooMuch(f"the image has {image.width} × {image.height} pixels; expected at most {most_pixels:,} in all")
            pixels = as_pixels(image, (height, width))
    except Trouble:
        raise
    except Exception as error:
        # whatever a decoder stumbles over, it is these bytes: for files that are made to be wrong it has no error of its own.
        reason = re.sub(r"<_io\.BytesIO object at \w+>", "it", " ".join(str(error).split())) or type(error).__name__
        raise Trouble(f"the file is no image that can be read ({reason[:200]}); expected {', '.join(FORMATS)}") from error
    levels = torch.from_numpy(np.array(with_channels(pixels, channels == 3)))
    return 255 - levels if invert else levels


def fitted(levels: Tensor, shape: Shape) -> Tensor:
    """Bring grey levels to a network's size: a smaller image is put in the middle, a larger one shrunk as a whole.

    Args:
        levels: [C, H, W].
        shape: (C, H, W) that the network takes.

    Example:
        >>> fitted(torch.full((1, 1, 1), 9, dtype=torch.uint8), (3, 1, 3))[0].tolist()
        [[0, 9, 0]]
    """
    channels, *size = shape
    levels = _with_channels(levels, channels)
    height, width = levels.shape[1:]
    shrink = min(size[0] / height, size[1] / width)
    if shrink < 1:
        small = (max(1, round(height * shrink)), max(1, round(width * shrink)))
        resized = F.interpolate(levels[None].float(), size=small, mode="bilinear", antialias=True, align_corners=False)
        levels = to_bytes(resized[0])
    return centre(levels[None], (size[0], size[1]))[0]


def _with_channels(levels: Tensor, channels: int) -> Tensor:
    if len(levels) == channels:
        return levels
    if len(levels) == 3:
        grey = sum(share * part.float() for share, part in zip(_LUMA, levels, strict=True))
        levels = to_bytes(torch.as_tensor(grey))[None]
    return levels[:1].repeat(channels, 1, 1)


def on_top(below: Tensor, above: Tensor, x: int, y: int) -> Tensor:
    """Add a second image of the same shape, ``x`` pixels to the right and ``y`` down, as MultiMNIST adds its digits."""
    size = (above.shape[1], above.shape[2])
    moved = window(above[None], torch.tensor([-y]), torch.tensor([-x]), size)
    return overlay(torch.stack([below, moved[0]])[None])[0]


def moved(levels: Tensor, move: Move) -> Tensor:
    """Turn, lean, scale and shift an image about its middle; where nothing changes, the very same bytes come back.

    Args:
        levels: [C, H, W].
        move: how.
    """
    return moved_by(levels, [move])[0]


def moved_by(levels: Tensor, moves: list[Move]) -> list[Tensor]:
    """Return one image under several changes, as ``moved`` makes each."""
    still = Move()
    changed = [move for move in moves if move != still]
    if not changed:
        return [levels] * len(moves)
    turn, lean, scale, x, y = (
        torch.tensor([getattr(move, name) for move in changed], dtype=torch.float32)
        for name in ("rotation", "shear", "scale", "x", "y")
    )
    _, H, W = levels.shape
    target = torch.stack([x + (W - 1) / 2, y + (H - 1) / 2], dim=-1)
    matrix = affine_matrix(turn, lean.deg2rad().tan(), scale, scale)
    images = levels.float().expand(len(changed), -1, -1, -1)
    found = iter(warp(images, matrix, size=(H, W), target=target))
    return [levels if move == still else next(found) for move in moves]


def png(levels: Tensor) -> bytes:
    """Return grey levels as a PNG file of their own size."""
    pixels = rearrange(to_bytes(levels), "c h w -> h w c").cpu().numpy()
    file = io.BytesIO()
    Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels).save(file, "PNG")
    return file.getvalue()
