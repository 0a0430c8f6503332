"""What an attack did, as a picture: images before and after it, and between them what was changed."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from einops import rearrange
from PIL import Image, ImageDraw
from torch import Tensor

from capsella.attacks import Attacked

_CELL, _GAP, _CAPTION = 84, 8, 16
_INK, _PAPER, _WRONG = (30, 30, 30), (250, 250, 246), (176, 32, 32)


def attack_sheet(found: Attacked, class_names: Sequence[str]) -> Image.Image:
    """Draw a few attacked images: as they were, the change from −ε (black) to ε (white), and as they are.

    Args:
        found: what ``attack_data`` gave back.
        class_names: of the data.
    """
    count = len(found.before)
    if not count:
        raise ValueError("found shows no image; expected one at least")
    reach = found.eps if found.eps > 0 else 1.0
    changes = ((found.after - found.before) / (2 * reach) + 0.5).clamp(0, 1)
    rows = (("before", found.before, found.seen[0]), ("change", changes, None), ("after", found.after, found.seen[1]))
    left = 56
    width = left + count * (_CELL + _GAP) + _GAP
    sheet = Image.new("RGB", (width, len(rows) * (_CELL + _CAPTION + _GAP) + _GAP), _PAPER)
    pen = ImageDraw.Draw(sheet)
    for row, (title, images, seen) in enumerate(rows):
        top = _GAP + row * (_CELL + _CAPTION + _GAP)
        pen.text((_GAP, top + _CELL // 2), title, fill=_INK)
        for column, image in enumerate(images):
            place = left + column * (_CELL + _GAP)
            sheet.paste(_cell(image), (place, top))
            if seen is not None:
                number = int(seen[column])
                right = bool(_is_right(found.classes[column], number))
                name = class_names[number] if number < len(class_names) else str(number)
                pen.text((place, top + _CELL + 2), str(name)[:12], fill=_INK if right else _WRONG)
    return sheet


def _cell(image: Tensor) -> Image.Image:
    values = (image.clamp(0, 1) * 255).round().to(torch.uint8)
    colours = values.expand(3, -1, -1) if len(values) == 1 else values[:3]
    picture = Image.fromarray(rearrange(colours, "c h w -> h w c").contiguous().numpy())
    # whole pixels, so that single ones are seen.
    return picture.resize((_CELL, _CELL), Image.Resampling.NEAREST)


def _is_right(classes: Tensor, seen: int) -> bool:
    return int(classes) == seen if classes.ndim == 0 else bool(classes[seen])
