"""Data sets by name: a builder gives the samples of one split, and everything else is the same for all."""

from __future__ import annotations

import hashlib
import inspect
import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from capsella.data.augment import NORMALISATIONS, Augmentation, Normalisation, augmentation
from capsella.data.base import ImageData
from capsella.data.places import Places
from capsella.data.samples import Samples
from capsella.data.sources import Files
from capsella.data.splits import SPLITS, fingerprint, is_training
from capsella.errors import check_choice, check_options


@dataclass(frozen=True)
class Content:
    """What a builder hands over.

    Attributes:
        samples: of the split that was asked for.
        class_names: one per class.
        facts: what defines the samples beside name, split and options, in terms that JSON can say; goes into the digest.
    """

    samples: Samples
    class_names: tuple[str, ...]
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Entry:
    """A registered data set.

    Attributes:
        name: registry name.
        build: takes a split, the places to look in, and its own options.
        summary: one line.
        files: the published files it is made from.
        normalise: default normalisation.
        augments: whether images may be changed at random: not single numbers, nor images whose parts would stay behind.
    """

    name: str
    build: Callable[..., Content]
    summary: str
    files: Files | None
    normalise: str
    augments: bool

    @property
    def options(self) -> dict[str, Any]:
        """Options of its own, with their defaults."""
        parameters = list(inspect.signature(self.build).parameters.values())[2:]
        return {p.name: p.default for p in parameters}


_SETS: dict[str, Entry] = {}


def register_data(
    name: str, *, summary: str, files: Files | None = None, normalise: str = "unit", augments: bool = True
) -> Callable[[Callable[..., Content]], Callable[..., Content]]:
    """Enrol the decorated builder under ``name``."""

    def wrap(build: Callable[..., Content]) -> Callable[..., Content]:
        if name in _SETS:
            raise ValueError(f"name={name!r} is registered already; choose another")
        _SETS[name] = Entry(name, build, summary, files, normalise, augments)
        return build

    return wrap


def data_entry(name: str) -> Entry:
    """Return a registered set's entry, or raise ``ValueError`` with the near matches."""
    check_choice("name", name, _SETS)
    return _SETS[name]


def list_data() -> list[str]:
    """List the registered data sets.

    Example:
        >>> "mnist" in list_data()
        True
    """
    return sorted(_SETS)


def load_data(
    name: str,
    *,
    split: str = "train",
    root: str | os.PathLike[str] | None = None,
    augment: str | Augmentation | None = None,
    normalise: str | None = None,
    **options: Any,
) -> ImageData:
    """Load one split of a data set.

    Args:
        name: one of ``list_data()``.
        split: ``"train"``, the published training set; ``"fit"`` and ``"val"``, which partition it; ``"test"``.
        root: the data directory; ``$CAPSELLA_DATA`` if None, else the user's cache folder. For ``folder``, the folder itself.
        augment: random change of images in ``train`` and ``fit``: ``"shift"`` (±2 pixels), ``"affine"``, ``"affnist"``,
            ``"sabour_cifar"``, an ``Augmentation``, or none.
        normalise: ``"unit"`` (0 to 1), ``"centred"`` (−0.5 to 0.5), ``"standardise"`` (per image), ``"peer2022"``, ``"none"``;
            the set's own if None.
        **options: of the set; an unknown one is a ``TypeError``.

    Example:
        >>> data = load_data("sign")
        >>> len(data), data.batch([0, 10_001]).labels.tolist()
        (20002, [1, 0])
    """
    entry = data_entry(name)
    check_choice("split", split, SPLITS)
    check_options(name, options, entry.options)
    if augmentation(augment) is not None and not entry.augments:
        raise ValueError(f"augment={augment!r} cannot be used with {name}; expected None")
    scheme = entry.normalise if normalise is None else normalise
    check_choice("normalise", scheme, NORMALISATIONS)
    content = entry.build(split, Places.find(root), **options)
    return assemble(content, name, split, {**entry.options, **options}, augment, scheme)


def assemble(
    content: Content, name: str, split: str, options: dict[str, Any], augment: str | Augmentation | None, scheme: str
) -> ImageData:
    """Put augmentation and normalisation around the samples, and give the whole its digest."""
    step = augmentation(augment)
    data = ImageData(
        samples=content.samples,
        name=name,
        split=split,
        digest="",
        class_names=content.class_names,
        options={**options, "augment": augment, "normalise": scheme},
        augment=step,
        normalise=Normalisation(scheme),
        training=is_training(split),
    )
    if step is not None:
        step.size((content.samples.shape[1], content.samples.shape[2]))  # says so where images do not fit
    drawn, labels = _probe(data)
    if drawn.is_floating_point() and scheme != "none":
        raise ValueError(f"normalise={scheme!r} is for grey levels, which {name} has not; expected 'none'")
    seen = hashlib.sha256(drawn.numpy().data).hexdigest() + hashlib.sha256(labels.numpy().data).hexdigest()
    digest = fingerprint(name=name, split=split, count=len(data), options=options, facts=content.facts, seen=seen)
    data = replace(data, digest=digest)
    return _as_one_array(data) if scheme == "peer2022" and not data.training else data


def _probe(data: ImageData) -> tuple[Tensor, Tensor]:
    """Return some samples as they lie in the set: a digest that has seen them notices another split or another draw."""
    chosen = torch.linspace(0, len(data) - 1, min(len(data), 64), dtype=torch.float64).long().to(data.device)
    images = data.samples.draw(chosen, data._draws(chosen, 0, 0))
    return images.cpu().contiguous(), data.samples.labels(chosen).cpu().contiguous()


def _as_one_array(data: ImageData) -> ImageData:
    """Standardise with the mean and deviation of the whole set, as peer2022's code does with what it evaluates on."""
    count, total, squares = 0, 0.0, 0.0
    for start in range(0, len(data), 4096):
        values = data.images[start : start + 4096].to(torch.float64)
        count, total, squares = count + values.numel(), total + float(values.sum()), squares + float(values.square().sum())
    mean = total / count
    deviation = max(squares / count - mean**2, 0.0) ** 0.5 or 1.0
    return replace(data, normalise=Normalisation("peer2022", (mean / 255, deviation / 255)))
