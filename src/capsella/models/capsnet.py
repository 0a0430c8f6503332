"""The CapsNet of Sabour et al. 2017 and what gu2021 and yang2021 make of it: one builder, five switches.

    Conv K, ReLU -> PrimaryCapsules K/2 -> CapsuleLinear -> Decoder 512-1024

Departures: none; the loss is the training's.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from capsella import routing as R
from capsella.errors import check_choice
from capsella.models.base import CapsuleNet
from capsella.models.registry import register_model, register_preset
from capsella.models.trunk import Size, Window, activation, output_size, same_padding
from capsella.nn import CapsuleLinear, Decoder, PrimaryCapsules
from capsella.nn.stem import ImageConv2d
from capsella.routing.quadratic import NORMS

RECONSTRUCTIONS = ("conditional", "normal", "none")


def make_decoder(
    reconstruction: str, capsules: int, dim: int, image_shape: tuple[int, int, int], **options: Any
) -> Decoder | None:
    """Return the decoder for ``"conditional"`` or ``"normal"`` reconstruction, None for ``"none"``."""
    check_choice("reconstruction", reconstruction, RECONSTRUCTIONS)
    if reconstruction == "none":
        return None
    return Decoder(capsules, dim, image_shape, mask=reconstruction, **options)


def routing_options(routing: str, *, squash: str, em_as: str = "defined", **options: Any) -> dict[str, Any]:
    """Keep the options that are set; a net may be asked for any algorithm, so its squash goes only where there is one.

    Args:
        routing: registry name.
        squash: of the net.
        em_as: options of EM where they are not set: ``"defined"`` by its function, or as ``"peer2022"``'s code has them.
        **options: of the algorithm; None means its default.
    """
    check_choice("em_as", em_as, ("defined", "peer2022"))
    given = {key: value for key, value in options.items() if value is not None}
    if routing == "em" and em_as == "peer2022":
        given = R.peer2022_options(given.get("num_iters", 3)) | given
    return given | ({"squash": squash} if "squash" in R.get(routing).options else {})


@register_model("capsnet", paper="Sabour, Frosst & Hinton 2017; gu2021", init="gu2021")
def capsnet(
    image_size: Size,
    in_channels: int,
    num_classes: int,
    *,
    routing: str = "agreement",
    shared: bool = False,
    squash: str = "sabour",
    reconstruction: str = "conditional",
    bias: bool = False,
    num_iters: int | None = None,
    normalise: str | None = None,
    relu: str = "none",
    kernel_size: int = 9,
    stride: int = 2,
    trunk_stride: int = 1,
    padding: str = "valid",
    activation_fn: str = "relu",
    channels: int = 256,
    types: int = 32,
    dim: int = 8,
    class_dim: int = 16,
    decoder_hidden: tuple[int, ...] = (512, 1024),
    norm: str | None = None,
    primary_squash: str | None = None,
    primary_divided: bool = False,
) -> CapsuleNet:
    """Build a CapsNet.

    Args:
        image_size: (height, width).
        in_channels: of the images.
        num_classes: J.
        routing: registry name of the algorithm.
        shared: one weight for all primary capsules (Aff-CapsNet).
        squash: of primary and class capsules; ``"none"`` removes both.
        reconstruction: ``"conditional"`` (masked), ``"normal"`` (all capsules decoded) or ``"none"``.
        bias: of the class capsules.
        num_iters: of a routing that iterates; its default, 3, if None.
        normalise: of agreement and uniform routing, over what couplings sum to one; if None, ``"targets"``, and for uniform
            routing by a shared weight the mean of the votes, ``"sources"``.
        relu: ``"before"``: on both convolutions and before the class capsules' squash, as chen2019's code; ``"primary"``: on
            both convolutions alone, which goes with any routing.
        kernel_size: of both convolutions.
        stride: of the primary capsules' convolution.
        trunk_stride: of the first convolution.
        padding: ``"valid"`` or TensorFlow's ``"same"``.
        activation_fn: after the first convolution, ``"relu"`` or ``"leaky_relu"`` (slope 0.2).
        channels: of the first convolution.
        types: of primary capsules at a position.
        dim: of a primary capsule.
        class_dim: of a class capsule.
        decoder_hidden: hidden sizes of the decoder.
        norm: the penalty that quadratic routing's steps use; kept in ``model.config`` for the training.
        primary_squash: of the primary capsules, where it is another than ``squash``.
        primary_divided: divide the sums of the primary capsules by the number of types, as Sabour's released code does. The
            starts of that code, ``sabour`` and ``yang2021``, belong to it: without, class capsules begin long.
    """
    check_choice("relu", relu, ("none", "before", "primary"))
    if norm is not None:
        check_choice("norm", norm, NORMS)
        if routing != "quadratic":
            raise ValueError(f"norm={norm!r} does not go with routing={routing!r}; only 'quadratic' has a penalty")
    check_choice("padding", padding, ("valid", "same"))
    windows = [Window(kernel_size, trunk_stride), Window(kernel_size, stride)]
    image_shape = (in_channels, *image_size)
    pads: list[nn.Module] = [nn.Identity(), nn.Identity()]
    if padding == "same":
        middle = (-(-image_size[0] // trunk_stride), -(-image_size[1] // trunk_stride))
        pads = [same_padding(image_size, windows[0]), same_padding(middle, windows[1])]
        height, width = (-(-side // stride) for side in middle)
    else:
        height, width = output_size(image_size, windows)
    if routing == "uniform" and normalise is None:
        normalise = "sources" if shared else "targets"
    trunk = nn.Sequential(
        pads[0], ImageConv2d(in_channels, channels, kernel_size, trunk_stride), activation(activation_fn), pads[1]
    )
    primary = PrimaryCapsules(
        channels,
        types,
        dim,
        kernel_size=kernel_size,
        stride=stride,
        squash=squash if primary_squash is None else primary_squash,
        relu=relu != "none",
        divided=primary_divided,
    )
    classes = CapsuleLinear(
        height * width * types,
        dim,
        num_classes,
        class_dim,
        routing=routing,
        bias=bias,
        shared=shared,
        relu="none" if relu == "primary" else relu,
        **routing_options(routing, squash=squash, num_iters=num_iters, normalise=normalise),
    )
    decoder = make_decoder(reconstruction, num_classes, class_dim, image_shape, hidden=decoder_hidden)
    return CapsuleNet(image_shape, num_classes, trunk=trunk, primary=primary, layers=[classes], decoder=decoder)


register_preset("capsnet_nor", "capsnet", paper="gu2021", routing="uniform")
register_preset("aff_capsnet", "capsnet", paper="gu2021", routing="uniform", shared=True)
register_preset("aff_capsnet_dr", "capsnet", paper="gu2021", shared=True)
register_preset(
    "quadratic_capsnet",
    "capsnet",
    paper="yang2021",
    init="yang2021",
    routing="quadratic",
    bias=True,
    norm="l2",
    primary_divided=True,
)
register_preset("gcapsnet_fc", "capsnet", paper="chen2019", init="chen2019", routing="trainable", squash="exp", relu="before")
register_preset(
    "capsnet_small",
    "capsnet",
    paper="Sabour, Frosst & Hinton 2017, made small",
    bias=True,
    kernel_size=7,
    trunk_stride=2,
    channels=32,
    types=8,
    class_dim=8,
    decoder_hidden=(64, 128),
)
