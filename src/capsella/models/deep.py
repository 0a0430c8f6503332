"""Deep stacks of fully connected capsules: peer2022's and mitterreiter2023's."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from torch import nn

from capsella import routing as R
from capsella.errors import check_choice, check_count
from capsella.models.base import CapsuleNet
from capsella.models.capsnet import make_decoder, routing_options
from capsella.models.registry import register_model
from capsella.models.trunk import Size, Window, output_size
from capsella.nn import CapsuleLinear, PrimaryCapsules, RoutingLayer
from capsella.nn.stem import ImageConv2d


def capsule_stack(
    capsules: Sequence[int], dim: Sequence[int], *, routing: str, bias: bool | str, residual: bool = False, **options: Any
) -> list[RoutingLayer]:
    """Return one fully connected layer for each neighbouring pair of sizes.

    Args:
        capsules: of each layer, primary first.
        dim: of a capsule of each layer.
        routing: of every layer.
        bias: True or False for every layer; ``"last"``: of the class layer alone.
        residual: of every layer with as many capsules as the one below, of the same size.
        **options: further options of every layer.
    """
    # by type: 1 equals True, and is no answer to this question.
    if not isinstance(bias, bool) and bias != "last":
        raise ValueError(f"bias={bias!r} is unknown; expected True, False or 'last', a bias of the class layer alone")
    pairs = list(itertools.pairwise(zip(capsules, dim, strict=True)))
    has_bias = [bias is True] * (len(pairs) - 1) + [bias is not False]
    return [
        CapsuleLinear(*below, *above, routing=routing, bias=has, residual=residual and below == above, **options)
        for (below, above), has in zip(pairs, has_bias, strict=True)
    ]


@register_model("deep_capsnet", paper="peer2022", init="peer2022")
def deep_capsnet(
    image_size: Size,
    in_channels: int,
    num_classes: int,
    *,
    depth: int = 5,
    routing: str = "agreement",
    bias: bool | str = True,
    num_iters: int | None = None,
    normalise: str | None = None,
    width: int = 16,
    hidden_dim: int | None = None,
    squash: str = "sabour",
    reconstruction: str = "normal",
    em_as: str = "peer2022",
    trunk_stride: int = 1,
    channels: int = 256,
    types: int = 32,
    primary_divided: bool = False,
) -> CapsuleNet:
    """Build peer2022's deep net: the CapsNet trunk, depth − 2 hidden layers, class capsules of 16 values.

    Args:
        image_size: (height, width).
        in_channels: of the images.
        num_classes: J.
        depth: capsule layers, counting primary and class capsules, as the paper's tables do.
        routing: of every layer.
        bias: of every layer; ``"last"``: of the class layer alone, where EM's moves capsules but no score.
        num_iters: of a routing that iterates; its default, 3, if None.
        normalise: of agreement and uniform routing, over what couplings sum to one; their default, ``"targets"``, if None.
        width: capsules of a hidden layer.
        hidden_dim: of a hidden capsule; 12, and 10 for EM, as in the authors' script.
        squash: of every layer that has one.
        reconstruction: the authors' code masks nothing: ``"normal"``.
        em_as: EM as in their code, ``"peer2022"``, or as ``"defined"`` by its function.
        trunk_stride: of the first convolution; 2 is for quick runs on a CPU.
        channels: of the first convolution.
        types: of primary capsules at a position.
        primary_divided: divide the sums of the primary capsules by the number of types, as Sabour's released code does.
    """
    check_count("depth", depth, least=2)
    height, width_ = output_size(image_size, [Window(9, trunk_stride), Window(9, 2)])
    image_shape = (in_channels, *image_size)
    hidden_dim = (10 if routing == "em" else 12) if hidden_dim is None else hidden_dim
    check_count("hidden_dim", hidden_dim)
    sizes = [height * width_ * types, *[width] * (depth - 2), num_classes]
    layer_dims = [8, *[hidden_dim] * (depth - 2), 16]
    options = routing_options(routing, squash=squash, em_as=em_as, num_iters=num_iters, normalise=normalise)
    return CapsuleNet(
        image_shape,
        num_classes,
        trunk=nn.Sequential(ImageConv2d(in_channels, channels, 9, trunk_stride), nn.ReLU()),
        primary=PrimaryCapsules(channels, types, 8, kernel_size=9, stride=2, squash=squash, divided=primary_divided),
        layers=capsule_stack(sizes, layer_dims, routing=routing, bias=bias, **options),
        decoder=make_decoder(reconstruction, num_classes, 16, image_shape),
    )


@register_model("parse_capsnet", paper="mitterreiter2023", init="mitterreiter2023")
def parse_capsnet(
    image_size: Size,
    in_channels: int,
    num_classes: int,
    *,
    capsules: Sequence[int] | None = None,
    dim: int | Sequence[int] = 8,
    routing: str = "agreement",
    bias: bool | str = False,
    prior: bool | None = None,
    num_iters: int | None = None,
    normalise: str | None = None,
    squash: str = "exp",
    reconstruction: str = "conditional",
    backbone: str = "affnist",
    residual: bool = False,
    em_as: str = "defined",
) -> CapsuleNet:
    """Build mitterreiter2023's net: a backbone whose last, depthwise convolution covers the map, then capsule layers.

    Args:
        image_size: (height, width); the paper's is 40.
        in_channels: of the images.
        num_classes: J.
        capsules: of each layer, primary first; (16, 16, 16, 16, num_classes) if None.
        dim: of every capsule, or one for each layer.
        routing: of every layer.
        bias: of every layer; ``"last"``: of the class layer alone.
        prior: learn the logits that agreement starts from; None: where the routing has them.
        num_iters: of a routing that iterates; its default, 3, if None.
        normalise: of agreement and uniform routing, over what couplings sum to one; their default, ``"targets"``, if None.
        squash: of every layer that has one.
        reconstruction: ``"conditional"``, ``"normal"`` or ``"none"``.
        backbone: ``"affnist"`` or ``"cifar10"``; ``"small"`` is for quick runs on a CPU.
        residual: squash(u + v) in the place of v, where the layer below has as many capsules of the same size.
        em_as: EM as ``"defined"`` by its function, or as in ``"peer2022"``'s code.
    """
    sizes = [16, 16, 16, 16, num_classes] if capsules is None else list(capsules)
    layer_dims = [dim] * len(sizes) if isinstance(dim, int) else list(dim)
    for name, values in (("capsules", sizes), ("dim", layer_dims)):
        for value in values:
            check_count(name, value)
    if len(sizes) < 2 or sizes[-1] != num_classes:
        raise ValueError(f"capsules={tuple(sizes)} is no stack that ends in num_classes={num_classes}; expected (n, …, J)")
    if len(layer_dims) != len(sizes):
        raise ValueError(f"dim={tuple(layer_dims)} has {len(layer_dims)} values; expected one for each of {len(sizes)} layers")
    check_choice("backbone", backbone, tuple(_BACKBONES))
    trunk, channels, left = _BACKBONES[backbone](in_channels, sizes[0] * layer_dims[0], image_size)
    image_shape = (in_channels, *image_size)
    options = routing_options(routing, squash=squash, em_as=em_as, num_iters=num_iters, normalise=normalise)
    if prior or (prior is None and "prior" in R.get(routing).optional):
        options["prior"] = True
    return CapsuleNet(
        image_shape,
        num_classes,
        trunk=trunk,
        primary=PrimaryCapsules(channels, sizes[0], layer_dims[0], kernel_size=left, groups=channels, squash=squash),
        layers=capsule_stack(sizes, layer_dims, routing=routing, bias=bias, residual=residual, **options),
        decoder=make_decoder(reconstruction, num_classes, layer_dims[-1], image_shape),
    )


def _affnist_backbone(in_channels: int, channels: int, image_size: Size) -> tuple[nn.Module, int, Size]:
    """Return the convolutions before the depthwise one, their channels and the map that they leave."""
    plan = [(in_channels, 32, Window(5)), (32, 64, Window(3)), (64, 128, Window(3)), (128, channels, Window(3, 2))]
    return _convolutions(plan, image_size)


def _small_backbone(in_channels: int, channels: int, image_size: Size) -> tuple[nn.Module, int, Size]:
    plan = [(in_channels, 16, Window(5, 2)), (16, 32, Window(3, 2)), (32, channels, Window(3, 2))]
    return _convolutions(plan, image_size)


def _convolutions(plan: Sequence[tuple[int, int, Window]], image_size: Size) -> tuple[nn.Module, int, Size]:
    layers: list[nn.Module] = []
    for below, above, window in plan:
        make = nn.Conv2d if layers else ImageConv2d
        layers += [make(below, above, window.kernel, window.stride), nn.ReLU(), nn.BatchNorm2d(above)]
    return nn.Sequential(*layers), plan[-1][1], output_size(image_size, [w for *_, w in plan])


def _cifar10_backbone(in_channels: int, channels: int, image_size: Size) -> tuple[nn.Module, int, Size]:
    layers: list[nn.Module] = []
    plan = [(in_channels, 128, Window(3, 2)), (128, channels, Window(3, 2))]
    for below, above, window in plan:
        make = nn.Conv2d if layers else ImageConv2d
        layers += [make(below, above, window.kernel, window.stride), nn.BatchNorm2d(above), nn.ReLU()]
    return nn.Sequential(*layers), channels, output_size(image_size, [w for *_, w in plan])


_BACKBONES = {"affnist": _affnist_backbone, "cifar10": _cifar10_backbone, "small": _small_backbone}
