"""What is to be seen inside a trained capsule net: gathered from the network and test images, ready for a page."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from einops import rearrange, repeat
from torch import Tensor

from capsella.data import ImageData
from capsella.functional import length
from capsella.models import CapsuleNet, evaluating
from capsella.report.couplings import CouplingView, grid_extent
from capsella.report.quickstart import Dimensions, Examples

OFFSETS = tuple(round(-0.25 + 0.05 * k, 2) for k in range(11))
"""What is added to a capsule's values, as Sabour, Frosst & Hinton 2017 did."""

_MISTAKES = 12


def _place(model: CapsuleNet) -> torch.device:
    return next(model.parameters()).device


def one_of_each(data: ImageData) -> Tensor:
    """Return the index of the first image of every class."""
    labels = torch.cat([batch.labels for batch in data.batches(1000, shuffle=False)])
    return torch.stack([torch.eq(labels, number).int().argmax() for number in range(data.num_classes)])


def see(model: CapsuleNet, data: ImageData, indices: Tensor | Sequence[int]) -> Examples:
    """Return images with what the network says of them and draws again."""
    batch = data.batch(indices, device=_place(model))
    with evaluating(model):
        prediction = model(batch.images)
    if prediction.reconstruction is None:
        raise ValueError("model has no decoder; expected one with reconstruction='conditional'")
    return Examples(batch.images, batch.labels, prediction.scores.argmax(dim=1), prediction.reconstruction.clamp(0, 1))


def mistakes(model: CapsuleNet, data: ImageData, *, most: int = _MISTAKES) -> Examples:
    """Return the first images that the network gets wrong, at most ``most``."""
    wrong: list[int] = []
    start = 0
    with evaluating(model):
        for images, labels in data.batches(500, device=_place(model)):
            missed = (model(images).scores.argmax(dim=1) != labels).nonzero().flatten() + start
            wrong += missed.tolist()
            start += len(labels)
            if len(wrong) >= most:
                break
    return see(model, data, wrong[:most])


def dimensions(model: CapsuleNet, data: ImageData, index: int, *, offsets: tuple[float, ...] = OFFSETS) -> Dimensions:
    """Return what each value of an image's class capsule does to the drawing."""
    batch = data.batch([index], device=_place(model))
    label = int(batch.labels[0])
    with evaluating(model):
        capsules = model(batch.images).capsules  # [1, J, D]
        D = capsules.shape[2]
        steps = torch.tensor(offsets, device=capsules.device)
        moved = repeat(capsules[0], "j d -> dim step j d", dim=D, step=len(offsets)).clone()
        for dim in range(D):
            moved[dim, :, label, dim] += steps
        classes = torch.full((D * len(offsets),), label, device=capsules.device)
        drawn = model.reconstruct(rearrange(moved, "dim step j d -> (dim step) j d"), classes)
    frames = rearrange(drawn.clamp(0, 1), "(dim step) c h w -> dim step c h w", dim=D)
    return Dimensions(label, batch.images[0], offsets, frames)


def couplings(model: CapsuleNet, data: ImageData, index: int) -> CouplingView:
    """Return how one image's primary capsules are coupled to the classes."""
    batch = data.batch([index], device=_place(model))
    with evaluating(model):
        routed = model.routed(batch.images)[-1]
        primary = model.capsules(batch.images)[-2]  # [1, I, P]
    if routed.couplings is None:
        raise ValueError("model returned no couplings; expected a net that routes")
    types = int(model.config["types"])
    side = math.isqrt(primary.shape[1] // types)
    grid = (side, side, types)
    if math.prod(grid) != primary.shape[1]:
        raise ValueError(f"image_size={model.config['image_size']} is not square; expected square images")
    kernel = int(model.config["kernel_size"])
    windows = [(kernel, int(model.config["trunk_stride"])), (kernel, int(model.config["stride"]))]
    return CouplingView(
        image=batch.images[0],
        label=int(batch.labels[0]),
        scores=routed.activations[0],
        couplings=routed.couplings[0],
        lengths=length(primary[0]),
        grid=grid,
        extent=grid_extent(windows, (side, side)),
    )
