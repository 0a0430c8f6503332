"""chen2019's convolutional and multi-layer G-CapsNets (the fully connected one is a preset of ``capsnet``).

Departures: none in structure. The released code's layout and masking bugs are not copied; sizes are those that give the
printed parameter counts, as coded for the multi-layer net.
"""

from __future__ import annotations

from torch import nn

from capsella.models.base import CapsuleNet
from capsella.models.capsnet import make_decoder
from capsella.models.registry import register_model
from capsella.models.trunk import Size, Window, output_size
from capsella.nn import CapsuleConv2d, CapsuleLinear, PrimaryCapsules
from capsella.nn.stem import ImageConv2d


@register_model("gcapsnet_conv", paper="chen2019", init="chen2019")
def gcapsnet_conv(
    image_size: Size,
    in_channels: int,
    num_classes: int,
    *,
    reconstruction: str = "conditional",
    channels: int = 256,
    rows: int = 2,
    squash: str = "exp",
    relu: str = "before",
    types: int = 32,
) -> CapsuleNet:
    """Build the convolutional G-CapsNet: one capsule kernel as large as the map, matrix capsules of 8 values.

    Args:
        image_size: (height, width).
        in_channels: of the images.
        num_classes: J.
        reconstruction: ``"conditional"``, ``"normal"`` or ``"none"``.
        channels: of the first convolution; 64 on CIFAR-10.
        rows: of a capsule's matrix; 2 (2×4 capsules, 4×4 weights) on MNIST, 1 (8×8 weights) on CIFAR-10.
        squash: of primary and class capsules.
        relu: where the released code puts its ReLU.
        types: of primary capsules at a position.
    """
    grid = output_size(image_size, [Window(9), Window(9, 2)])
    image_shape = (in_channels, *image_size)
    classes = CapsuleConv2d(
        types,
        8,
        num_classes,
        8,
        kernel_size=grid,
        grid_size=grid,
        routing="trainable",
        bias=False,
        rows=rows,
        squash=squash,
        relu=relu,
    )
    return CapsuleNet(
        image_shape,
        num_classes,
        trunk=nn.Sequential(ImageConv2d(in_channels, channels, 9), nn.ReLU()),
        primary=PrimaryCapsules(channels, types, 8, kernel_size=9, stride=2, squash=squash, relu=relu == "before", flat=False),
        layers=[classes],
        decoder=make_decoder(reconstruction, num_classes, 8, image_shape),
    )


@register_model("gcapsnet_multi", paper="chen2019", init="chen2019")
def gcapsnet_multi(
    image_size: Size,
    in_channels: int,
    num_classes: int,
    *,
    reconstruction: str = "none",
    squash: str = "exp",
    relu: str = "after",
) -> CapsuleNet:
    """Build the multi-layer G-CapsNet: two convolutional capsule layers and a fully connected one.

    Args:
        image_size: (height, width); the paper's is 32 with three channels.
        in_channels: of the images.
        num_classes: J.
        reconstruction: ``"conditional"``, ``"normal"`` or ``"none"`` as in the paper.
        squash: of every capsule layer.
        relu: where the released code puts its ReLU.
    """
    windows = [Window(7), Window(7, 2), Window(4), Window(3, 2)]
    output_size(image_size, windows)
    grids = [output_size(image_size, windows[:k]) for k in (2, 3, 4)]
    image_shape = (in_channels, *image_size)
    first = CapsuleConv2d(
        16, 8, 8, 8, kernel_size=4, grid_size=grids[0], routing="trainable", bias=False, squash=squash, relu=relu
    )
    # the same eight values are now read as 4×2 matrices.
    second = CapsuleConv2d(
        8,
        8,
        16,
        8,
        kernel_size=3,
        stride=2,
        grid_size=grids[1],
        routing="trainable",
        bias=False,
        rows=4,
        squash=squash,
        relu=relu,
    )
    height, width = grids[2]
    classes = CapsuleLinear(height * width * 16, 8, num_classes, 8, routing="trainable", bias=False, squash=squash, relu=relu)
    trunk = nn.Sequential(ImageConv2d(in_channels, 64, 7, bias=False), nn.ReLU())
    primary = PrimaryCapsules(64, 16, 8, kernel_size=7, stride=2, squash=squash, relu=True, flat=False, bias=False)
    decoder = make_decoder(reconstruction, num_classes, 8, image_shape)
    return CapsuleNet(image_shape, num_classes, trunk=trunk, primary=primary, layers=[first, second, classes], decoder=decoder)
