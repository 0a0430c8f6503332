r"""Figures 4 and 5: what the decoder draws when one value of a representation is changed, and between representations.

- *Response* (Figure 4): by how much the drawing changes, root mean square over pixels of half the difference of +r and −r, for
  each of 16 values, mean over test images. r is 0.2 (the paper's range for CapsNet), 8 (for ConvNets), and *own*: twice the
  standard deviation that the value itself has over images of one class, so that it means the same for all nets.
- *Map* (Figure 5): drawings on straight lines between the representations of two images, of one class and of two. *Across* is
  the mean size of the cosine between what the decoder sees of images of two classes, *within* of one class; *longest* the
  length of the longest of these vectors.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from einops import rearrange
from torch import Tensor
from torch.nn.functional import normalize

from capsella.data import ImageData
from capsella.functional import multi_hot
from capsella.models import Model, evaluating
from capsella.nn import Decoder
from capsella.papers.gu2021.affine import tested_on
from capsella.papers.images import pack
from capsella.train.run import Run

IMAGES, SHORT = 1000, 200
UNITS, SHOWN_UNITS, STEPS = 16, 4, 9
RANGES = {"0.2": 0.2, "8": 8.0}
OWN = "own"
LINES = 2


def perturbed(run: Run, splits: Mapping[str, ImageData | None], device: torch.device) -> dict[str, Any]:
    """Change single values of a net's representations and draw them."""
    net, decoder, values, labels = _looked_at(run, splits, device)
    units = [_unit(values, labels, k) for k in range(UNITS)]
    spread = torch.stack([_spread(values, labels, *unit) for unit in units])  # [UNITS, B]
    response = {}
    for name in (*RANGES, OWN):
        sizes = 2 * spread if name == OWN else torch.full_like(spread, RANGES[name])
        changes = [_response(decoder, values, labels, unit, size) for unit, size in zip(units, sizes, strict=True)]
        response[name] = [round(change, 6) for change in changes]
    own = "0.2" if net.scores_are == "lengths" else "8"
    most = sorted(range(UNITS), key=lambda k: -response[own][k])[:SHOWN_UNITS]
    sheet = _sheet(decoder, values[:1], labels[:1], [_unit(values[:1], labels[:1], k) for k in sorted(most)], RANGES[own])
    return {"images": len(labels), "range": own, "response": response, "sheet": sheet}


def mapped(run: Run, splits: Mapping[str, ImageData | None], device: torch.device) -> dict[str, Any]:
    """Draw between representations, and say how those of different classes lie to each other."""
    _, decoder, values, labels = _looked_at(run, splits, device)
    inputs = seen_by(decoder, values, labels)
    return {"images": len(labels), **angles(inputs, labels), "sheets": _lines(decoder, inputs, labels)}


def angles(inputs: Tensor, labels: Tensor) -> dict[str, float]:
    """Return mean sizes of cosines between vectors of two classes and of one, and the longest vector.

    Args:
        inputs: [B, F].
        labels: [B].
    """
    unit = normalize(inputs.double(), dim=1)
    cosines = (unit @ unit.T).abs()
    same = labels[:, None] == labels
    alone = torch.eye(len(labels), dtype=torch.bool, device=labels.device)
    return {
        "across": float(cosines[~same].mean()),
        "within": float(cosines[same & ~alone].mean()),
        "longest": float(inputs.norm(dim=1).max()),
    }


def seen_by(decoder: Decoder, values: Tensor, labels: Tensor) -> Tensor:
    """Return what enters the decoder's first layer [B, J·D]: with a mask, the capsules of other classes are zeros."""
    if decoder.mask == "conditional":
        values = values * multi_hot(labels, values.shape[1], dtype=values.dtype)[..., None]
    return rearrange(values, "b j d -> b (j d)")


def drawn_from(decoder: Decoder, inputs: Tensor) -> Tensor:
    """Draw what a decoder sees, [B, J·D] -> [B, H, W]."""
    channels, height, width = decoder.image_shape
    pixels = decoder.layers(inputs)
    return rearrange(pixels, "b (c h w) -> b c h w", c=channels, h=height, w=width).mean(dim=1)  # type: ignore[no-any-return]


def _looked_at(run: Run, splits: Mapping[str, ImageData | None], device: torch.device) -> tuple[Model, Decoder, Tensor, Tensor]:
    """Return a net, its decoder, and its representations of some test images [B, J, D] with their classes [B]."""
    data, net = tested_on(splits), run.model
    if not isinstance(net, Model) or net.decoder is None:
        raise TypeError(f"the run's network is {type(net).__name__}; expected one with a decoder")
    most = SHORT if run.config["train"]["steps"] is not None else IMAGES
    batch = data.batch(torch.linspace(0, len(data) - 1, min(most, len(data))).round().long(), device=device)
    with evaluating(net):
        values = net.classify(batch.images)[1]
    if values is None:
        raise ValueError("the run's network has nothing to draw from")
    return net, net.decoder, values, batch.labels


def _unit(values: Tensor, labels: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return where value k of each image is: the true class's capsule, or, of one long vector, evenly spread places."""
    B, J, D = values.shape
    where = labels if J > 1 else torch.zeros_like(labels)
    place = k * D // UNITS
    return where, torch.full((B,), place, device=values.device)


def _classes(labels: Tensor) -> list[int]:
    return sorted(set(labels.tolist()))


def _spread(values: Tensor, labels: Tensor, where: Tensor, place: Tensor) -> Tensor:
    """Return for each image the standard deviation [B] that a value has over the images of its class."""
    found = values[torch.arange(len(values), device=values.device), where, place]
    result = torch.zeros_like(found)
    for label in _classes(labels):
        mine = labels == label
        result[mine] = found[mine].std(correction=0)
    return result


def _changed(values: Tensor, unit: tuple[Tensor, Tensor], by: Tensor) -> Tensor:
    changed = values.clone()
    changed[torch.arange(len(values), device=values.device), unit[0], unit[1]] += by
    return changed


@torch.no_grad()
def _response(decoder: Decoder, values: Tensor, labels: Tensor, unit: tuple[Tensor, Tensor], by: Tensor) -> float:
    high, low = (drawn_from(decoder, seen_by(decoder, _changed(values, unit, sign * by), labels)) for sign in (1, -1))
    return float(((high - low) / 2).square().mean(dim=(1, 2)).sqrt().mean())


@torch.no_grad()
def _sheet(
    decoder: Decoder, values: Tensor, labels: Tensor, units: Sequence[tuple[Tensor, Tensor]], most: float
) -> dict[str, Any]:
    """Draw one image, a value a row, changed from −most to most."""
    amounts = torch.linspace(-most, most, STEPS, device=values.device)
    rows = [_changed(values, unit, amount) for unit in units for amount in amounts]
    inputs = seen_by(decoder, torch.cat(rows), labels.expand(len(rows)))
    return pack(drawn_from(decoder, inputs), columns=STEPS)


@torch.no_grad()
def _lines(decoder: Decoder, inputs: Tensor, labels: Tensor) -> dict[str, Any]:
    """Draw straight lines between the representations of two images, of one class and of two."""
    shares = torch.linspace(0, 1, STEPS, device=inputs.device)[:, None]
    classes = _classes(labels)[: LINES + 1]
    found = {}
    for name, pairs in (
        ("within", [(a, a) for a in classes[:LINES]]),
        ("across", list(itertools.pairwise(classes))),
    ):
        rows = []
        for a, b in pairs:
            # the first of one class, and the last of the other, which is another image.
            first, last = inputs[(labels == a).nonzero()[0, 0]], inputs[(labels == b).nonzero()[-1, 0]]
            rows.append(drawn_from(decoder, (1 - shares) * first + shares * last))
        found[name] = pack(torch.cat(rows), columns=STEPS)
    return found
