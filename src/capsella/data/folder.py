"""A user's own images: one folder per class, any size, grey or colour, resized to one size.

Where there are folders ``train`` and ``test``, each holding the class folders, they are the splits. Otherwise a fifth of each
class is the test set, chosen by the names of the files, so that it stays the same when other classes change.
"""

from __future__ import annotations

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NoReturn

import numpy as np
import torch
from einops import rearrange
from PIL import Image

from capsella.data.places import Places
from capsella.data.progress import progress_bar
from capsella.data.registry import Content, register_data
from capsella.data.samples import Stored
from capsella.data.splits import published, take
from capsella.errors import DataError, check_count, check_flag
from capsella.functional.patches import as_pair

_PARTS = {"train", "test", "val", "valid", "validation"}
_ORIENTATION = 0x0112
# EXIF's orientations: mirrored first or not, then quarter turns to the left. By hand, because Pillow's own helper writes the
# whole note anew and stumbles over senseless entries.
_TURNS: dict[object, tuple[bool, int]] = {
    2: (True, 0),
    3: (False, 2),
    4: (True, 2),
    5: (True, 1),
    6: (False, 3),
    7: (True, 3),
    8: (False, 1),
}
SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".pgm", ".ppm")


@register_data("folder", summary="your own images: root= a folder with one folder per class, resized to image_size")
def folder(split: str, places: Places, *, image_size: int | tuple[int, int] = 32, grey: bool | None = None) -> Content:
    """Read images, stretched to one size; grey if all of them are, unless ``grey`` says otherwise."""
    size = as_pair("image_size", image_size)
    for side in size:
        check_count("image_size", side)
    if grey is not None:
        check_flag("grey", grey)
    if not places.given:
        raise ValueError("root=None names no images; expected the folder that holds one folder per class")
    if not places.root.is_dir():
        raise DataError(f"root={str(places.root)!r} is no folder; expected one that holds one folder per class")
    try:
        classes, files = _split(places.root, split)
    except OSError as error:
        raise DataError(f"{error.filename} cannot be read: {error.strerror}; check the permissions") from error
    images = read_images([path for path, _ in files], size, grey)
    labels = np.array([label for _, label in files])
    found = hashlib.sha256(images.data).hexdigest()
    pixels, kinds = torch.from_numpy(images), torch.from_numpy(labels)
    return Content(
        Stored(*take(split, pixels, kinds)), tuple(classes), {"content": found, "classes": classes, "labels": labels.tolist()}
    )


def _split(root: Path, split: str) -> tuple[list[str], list[tuple[Path, int]]]:
    """Return the classes, and the published part's files with their labels."""
    part = published(split)
    parts = {name: root / name for name in ("train", "test")}
    if all(path.is_dir() for path in parts.values()):
        for name in sorted(_PARTS - parts.keys()):
            if (root / name).is_dir():
                raise DataError(
                    f"{root / name} lies beside train and test; expected its images in train, which val is cut from"
                )
        trained, tested = _classes(parts["train"]), _classes(parts["test"])
        if set(tested) - set(trained):
            extra = ", ".join(sorted(set(tested) - set(trained)))
            raise DataError(
                f"{parts['test']} has the classes {extra}, which {parts['train']} has not; expected the same folders"
            )
        names = sorted(trained)
        chosen = trained if part == "train" else tested
        return names, [(path, names.index(name)) for name in sorted(chosen) for path in chosen[name]]
    found = _classes(root)
    names = sorted(found)
    if set(names) <= _PARTS:
        raise DataError(f"{root} has the folders {', '.join(names)}; expected train and test, or one folder per class")
    files = []
    for label, name in enumerate(names):
        # by a hash of the name: the order in which files were taken says nothing about the split.
        mixed = sorted(found[name], key=lambda path: hashlib.sha256(f"{name}/{path.name}".encode()).digest())
        tests = -(-len(mixed) // 5)
        if tests == len(mixed):
            raise DataError(f"{root / name} has {len(mixed)} image; expected at least 2, one to learn from and one to test on")
        files += [(path, label) for path in sorted(mixed[:tests] if part == "test" else mixed[tests:])]
    return names, files


def _classes(root: Path) -> dict[str, list[Path]]:
    """Return the images of each class folder."""
    folders = sorted(path for path in root.iterdir() if path.is_dir() and not path.name.startswith("."))
    if len(folders) < 2:
        found = f"the folder {folders[0].name}" if folders else "no folders"
        raise DataError(f"{root} has {found}; expected at least two, one per class")
    classes = {}
    for path in folders:
        inside = (Path(base) / name for base, _, names in os.walk(path, onerror=_raise) for name in names)
        # hidden folders too: editors keep copies of images there.
        shown = (file for file in inside if not any(part.startswith(".") for part in file.relative_to(path).parts))
        classes[path.name] = sorted(file for file in shown if file.suffix.lower() in SUFFIXES)
        if not classes[path.name]:
            raise DataError(f"{path} has no images; expected files that end in {', '.join(SUFFIXES)}")
    return classes


def _raise(error: OSError) -> NoReturn:
    """Stop at what cannot be read, which os.walk would pass over."""
    raise error


def read_images(paths: list[Path], size: tuple[int, int], grey: bool | None) -> np.ndarray:
    """Return image files as uint8 [N, C, H, W].

    Args:
        paths: the files.
        size: (height, width) they are scaled to.
        grey: one channel or three; None takes three where an image has colour.
    """
    with ThreadPoolExecutor() as pool, progress_bar("reading images", len(paths)) as advance:
        pending = [pool.submit(_read, path, size) for path in paths]
        images = []
        try:
            for one in pending:
                images.append(one.result())
                advance(1)
        finally:
            for one in pending:
                one.cancel()
    colour = any(image.ndim == 3 for image in images) if grey is None else not grey
    return np.ascontiguousarray(np.stack([with_channels(image, colour) for image in images]))


def with_channels(image: np.ndarray, colour: bool) -> np.ndarray:
    """Return bytes [H, W] or [H, W, 3] as [3, H, W] in colour, else as [1, H, W] in grey."""
    if not colour:
        flat = image if image.ndim == 2 else np.asarray(Image.fromarray(image).convert("L"))
        return flat[None]
    return rearrange(image if image.ndim == 3 else np.stack([image] * 3, axis=-1), "h w c -> c h w")


def _read(path: Path, size: tuple[int, int]) -> np.ndarray:
    try:
        with Image.open(path) as image:
            return as_pixels(image, size)
    except UNREADABLE as error:
        reason = " ".join(str(error).replace(repr(str(path)), "it").replace(str(path), "it").split())
        raise DataError(f"{path} is no image that can be read ({reason}); remove or replace it") from error


UNREADABLE = (OSError, ValueError, SyntaxError, Image.DecompressionBombError)
"""What Pillow raises for files that are no sound images."""


def as_pixels(image: Image.Image, size: tuple[int, int]) -> np.ndarray:
    """Return an image as bytes [H, W], or [H, W, 3] if it has colour, upright, over white where it is transparent.

    Args:
        image: as Pillow opened it; read here, which may raise what ``UNREADABLE`` lists.
        size: (height, width) it is scaled to.
    """
    mirrored, turns = _TURNS.get(image.getexif().get(_ORIENTATION), (False, 0))
    values = _values(image)
    upright = np.rot90(values[:, ::-1] if mirrored else values, turns)
    small = Image.fromarray(np.ascontiguousarray(upright)).resize((size[1], size[0]), Image.Resampling.BILINEAR)
    values = np.asarray(small)
    # a picture stored in colour whose channels agree has none.
    return values[..., 0] if values.ndim == 3 and (values == values[..., :1]).all() else values


def _values(image: Image.Image) -> np.ndarray:
    """Return the pixels as bytes, [H, W] or [H, W, 3]."""
    if image.mode in ("I", "F"):
        raise ValueError("it has 32 bits a pixel; save it with 8 or 16")
    if image.mode.startswith("I;16"):
        # Pillow would cut off at 255.
        return (np.asarray(image).astype(np.int64) >> 8).astype(np.uint8)
    if image.has_transparency_data:
        over = Image.new("RGBA", image.size, "white")
        over.alpha_composite(image.convert("RGBA"))
        return np.asarray(over.convert("RGB"))
    return np.asarray(image.convert("L" if image.mode in ("1", "L", "LA") else "RGB"))
