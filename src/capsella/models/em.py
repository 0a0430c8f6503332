"""Matrix capsules with EM routing (Hinton, Sabour & Frosst 2018), at sizes of our own.

    Conv 5/2, ReLU -> pose and activation 1×1 -> CapsuleConv2d 3/2 -> CapsuleConv2d 3 -> CapsuleConv2d over the map

Departures: the class layer has weights of its own at every position instead of shared ones with coordinate addition, and
every layer has peer2022's vote bias.
"""

from __future__ import annotations

import math

from torch import nn

from capsella.models.base import CapsuleNet
from capsella.models.capsnet import make_decoder
from capsella.models.registry import register_model
from capsella.models.trunk import Size, Window, output_size
from capsella.nn import CapsuleConv2d, MatrixPrimaryCapsules
from capsella.nn.stem import ImageConv2d


@register_model("em_capsnet", paper="Hinton, Sabour & Frosst 2018", init="hinton2018")
def em_capsnet(
    image_size: Size,
    in_channels: int,
    num_classes: int,
    *,
    channels: int = 64,
    types: tuple[int, int, int] = (8, 16, 16),
    bias: bool = True,
    num_iters: int = 3,
    inverse_temperature: float = 0.05,
    reconstruction: str = "none",
) -> CapsuleNet:
    """Build a matrix-capsule net with 4×4 poses.

    Args:
        image_size: (height, width).
        in_channels: of the images.
        num_classes: J.
        channels: of the first convolution.
        types: capsule types of the primary and the two convolutional layers.
        bias: of the votes, in every layer; in the last one only with a decoder: EM's activations do not see a bias that
            all votes for a capsule share, its poses do.
        num_iters: EM iterations.
        inverse_temperature: λ·I/J of every layer: the cost grows with the number of votes, I/J for each upper capsule, and
            would saturate the activations of large layers.
        reconstruction: ``"conditional"``, ``"normal"`` or ``"none"``.
    """
    if len(types) != 3:
        raise ValueError(f"types={types!r} has {len(types)} values; expected 3, of the primary and two convolutional layers")
    windows = [Window(5, 2), Window(3, 2), Window(3)]
    grid = output_size(image_size, windows)
    image_shape = (in_channels, *image_size)
    plan = [
        (types[0], types[1], (3, 3), 2, bias),
        (types[1], types[2], (3, 3), 1, bias),
        (types[2], num_classes, grid, 1, bias and reconstruction != "none"),
    ]
    layers = [
        CapsuleConv2d(
            below,
            16,
            above,
            16,
            kernel_size=kernel,
            stride=stride,
            routing="em",
            bias=has_bias,
            rows=4,
            num_iters=num_iters,
            inverse_temperature=inverse_temperature * above / (below * math.prod(kernel)),
        )
        for below, above, kernel, stride, has_bias in plan
    ]
    return CapsuleNet(
        image_shape,
        num_classes,
        trunk=nn.Sequential(ImageConv2d(in_channels, channels, 5, 2), nn.ReLU()),
        primary=MatrixPrimaryCapsules(channels, types[0], 16),
        layers=[*layers],
        decoder=make_decoder(reconstruction, num_classes, 16, image_shape),
    )
