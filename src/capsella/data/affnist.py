"""affNIST, three readings of it: MNIST under random affine maps on 40×40, each original several times.

``affnist`` is Tieleman's set as gu2021 seems to have used it: rotation ±20°, shear factor ±0.2, scale 0.8 to 1.2 on either
axis, at any place where no ink is lost. ``affnist_mitterreiter`` is what mitterreiter2023's notebook makes: shear ±40°, one
scale for both axes, nearest neighbour, at any place where the ink fits. ``affnist_literal`` takes gu2021's words as they are:
shear ±45°, moved by up to 8 pixels; ink may leave the canvas.

Departures: the official files are read with ``source="official"``; without them the sets are made anew, by a generator that
gives the same bytes every time.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import torch
from einops import rearrange
from torch import Tensor

from capsella.data.augment import AFFNIST, AFFNIST_LITERAL, AFFNIST_MITTERREITER, Affine
from capsella.data.digits import DIGITS, MNIST, load_idx
from capsella.data.draws import Draws
from capsella.data.formats import as_tensors
from capsella.data.matfile import read_mat
from capsella.data.places import Places, whole_or_nothing
from capsella.data.progress import progress_bar
from capsella.data.registry import Content, register_data
from capsella.data.samples import Stored
from capsella.data.sources import first_file, read_file
from capsella.data.splits import fingerprint, members, published, take
from capsella.errors import DataError, check_choice, check_count

GENERATOR = 1
"""Raised by hand when the generator gives other images."""

SIDE = 40
_BLOCK = 2_000
_OFFICIAL = {"train": "training_and_validation_batches", "test": "test_batches"}
_log = logging.getLogger(__name__)


@register_data(
    "affnist", summary="affine MNIST on 40×40 as gu2021 tests on it; versions=32 gives 320,000 test images", files=MNIST
)
def affnist(split: str, places: Places, *, source: str = "synthetic", versions: int = 1) -> Content:
    """Make affNIST, or read its published files."""
    check_choice("source", source, ("synthetic", "official"))
    check_count("versions", versions)
    return (
        official(split, places, versions) if source == "official" else _synthetic("affnist", AFFNIST, split, places, versions)
    )


@register_data("affnist_mitterreiter", summary="affine MNIST as mitterreiter2023's notebook makes it", files=MNIST)
def affnist_mitterreiter(split: str, places: Places, *, versions: int = 1) -> Content:
    """Make mitterreiter2023's test set."""
    check_count("versions", versions)
    return _synthetic("affnist_mitterreiter", AFFNIST_MITTERREITER, split, places, versions)


@register_data("affnist_literal", summary="affine MNIST by gu2021's words: shear ±45°, shift ±8 pixels", files=MNIST)
def affnist_literal(split: str, places: Places, *, versions: int = 1) -> Content:
    """Make the set that gu2021's text describes."""
    check_count("versions", versions)
    return _synthetic("affnist_literal", AFFNIST_LITERAL, split, places, versions)


def _synthetic(name: str, reading: Affine, split: str, places: Places, versions: int) -> Content:
    part = published(split)
    originals, labels, facts = load_idx(MNIST, part, places)
    # a digit is transformed alike in whatever split it is: fit and val are parts of train here too.
    chosen = members(split, len(originals))
    chosen = torch.arange(len(originals)) if chosen is None else chosen
    exact = replace(reading, double=True)
    recipe = {**facts, **asdict(exact), "split": split, "versions": versions, "generator": GENERATOR}
    path = places.generated / f"{name}-{split}-{versions}-{fingerprint(**recipe)[:16]}.u8"
    shape = (versions * len(chosen), 1, SIDE, SIDE)
    blocks = (block for version in range(versions) for block in transformed(exact, originals, chosen, part, version))
    images, checksum = _from_cache(path, shape) or _generate(path, shape, blocks)
    return Content(Stored(images, labels[chosen].repeat(versions)), DIGITS, {**facts, "content": checksum})


def transformed(reading: Affine, originals: Tensor, chosen: Tensor, part: str, version: int) -> Iterator[Tensor]:
    """Yield one version of the chosen originals, uint8 [b, 1, 40, 40], in blocks; no image depends on the others."""
    for block in torch.split(chosen, _BLOCK):
        yield reading(originals[block], Draws(block, seed=f"affnist {part}", epoch=version))


def _generate(path: Path, shape: tuple[int, ...], blocks: Iterator[Tensor]) -> tuple[Tensor, str]:
    images = torch.empty(shape, dtype=torch.uint8)
    at = 0
    with progress_bar(f"making {path.name.split('.')[0]}", len(images)) as advance:
        for block in blocks:
            images[at : at + len(block)] = block
            at += len(block)
            advance(len(block))
    values = images.numpy().reshape(-1)
    checksum = hashlib.sha256(values.data).hexdigest()
    try:
        with whole_or_nothing(path) as file:
            file.write(values.data)
        with whole_or_nothing(path.with_suffix(".json")) as file:
            file.write(json.dumps({"shape": shape, "sha256": checksum}).encode())
    except OSError as error:
        _log.warning("%s cannot be kept (%s): it will be made again next time", path, error)
    return images, checksum


def _from_cache(path: Path, shape: tuple[int, ...]) -> tuple[Tensor, str] | None:
    """Return a generated set whose bytes are those that were written, else None, so that it is made again."""
    with suppress(OSError, ValueError, LookupError, TypeError):
        expected = json.loads(path.with_suffix(".json").read_text())["sha256"]
        content = np.fromfile(path, np.uint8)
        if len(content) == int(np.prod(shape)) and hashlib.sha256(content.data).hexdigest() == expected:
            return torch.from_numpy(content.reshape(shape)), expected
    return None


def official(split: str, places: Places, versions: int) -> Content:
    """Read Tieleman's files, ``<root>/affnist/test_batches/1.mat`` and so on: one version of every original each."""
    if versions > 32:
        raise ValueError(f"versions={versions} is too large; the official set has 32")
    parts = []
    facts = {}
    for version in range(1, versions + 1):
        path = _official_file(_OFFICIAL[published(split)], version, places)
        content = read_file(path)
        facts[f"{path.parent.name}/{path.name}"] = hashlib.sha256(content).hexdigest()
        parts.append(parse_affnist(content, str(path)))
    count = len(parts[0][1])
    if any(len(labels) != count or (labels != parts[0][1]).any() for _, labels in parts):
        raise DataError(
            f"the files of affnist {split} do not have the same labels; expected one version of every digit in each"
        )
    loaded = [take(split, *as_tensors(images, labels, classes=10, name=f"affnist {split}")) for images, labels in parts]
    images, labels = (torch.cat(tensors) for tensors in zip(*loaded, strict=True))
    return Content(Stored(images, labels), DIGITS, facts)


def _official_file(folder: str, version: int, places: Places) -> Path:
    candidates = [base / folder / f"{version}.mat" for base in places.folders("affnist")]
    found = first_file(candidates)
    if found is None:
        raise DataError(
            f"source='official' needs {folder}/{version}.mat in {candidates[0].parent.parent}; "
            f"unpack {folder}.zip of the affNIST page (32x, transformed) there, or use source='synthetic'"
        )
    return found


def parse_affnist(content: bytes, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return images [N, 1, 40, 40] and labels [N] of a structure affNISTdata with image [1600, N] and label_int [1, N]."""
    data = read_mat(content, name).get("affNISTdata")
    images, labels = (data.get("image"), data.get("label_int")) if isinstance(data, dict) else (None, None)
    if (
        not isinstance(images, np.ndarray)
        or not isinstance(labels, np.ndarray)
        or images.ndim != 2
        or len(images) != SIDE * SIDE
    ):
        raise DataError(f"{name} is not in affNIST's layout; expected affNISTdata with image [1600, N] and label_int [1, N]")
    return rearrange(images, "(h w) n -> n 1 h w", h=SIDE), labels.reshape(-1)


def cached_sets(places: Places) -> list[tuple[Path, bool]]:
    """List the generated sets in the cache, and whether their bytes are those that were written."""
    found = []
    for note in sorted(places.generated.glob("*.json")):
        sound = False
        with suppress(OSError, ValueError, LookupError, TypeError):
            sound = _from_cache(note.with_suffix(".u8"), tuple(json.loads(note.read_text())["shape"])) is not None
        found.append((note.with_suffix(".u8"), sound))
    return found
