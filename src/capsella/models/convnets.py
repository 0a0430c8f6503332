"""The ConvNets that capsule nets are compared with: gu2021's, chen2019's baselines, Caffe's LeNet and a small twin.

Scores are logits, except for ``convnet_cr`` (probabilities) and ``convnet_cr_sf`` (lengths).

Departures: ReLU follows every convolution and hidden dense layer, but neither FC160 nor an output (a sum of ReLUs would give
probabilities above one half), nor the convolution of ConvNet-CR-SF's primary capsules, which CapsNet's does not have either.
"""

from __future__ import annotations

from collections.abc import Sequence

from einops import rearrange
from torch import Tensor, nn

from capsella.errors import check_choice
from capsella.functional import length
from capsella.functional import squash as apply_squash
from capsella.models.base import Model, Prediction
from capsella.models.capsnet import make_decoder
from capsella.models.registry import register_model, register_preset
from capsella.models.trunk import Size, Window, output_size
from capsella.nn import Decoder, PrimaryCapsules
from capsella.nn.features import FeatureConv2d
from capsella.nn.stem import ImageConv2d


class ConvNet(Model):
    """Features and logits; nothing to reconstruct."""

    scores_are = "logits"

    def __init__(self, image_shape: tuple[int, int, int], num_classes: int, layers: Sequence[nn.Module]) -> None:
        super().__init__(image_shape, num_classes)
        self.layers = nn.Sequential(*layers)

    def classify(self, images: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return logits."""
        self._check(images)
        return self.layers(images), None


def _dense(below: int, hidden: Sequence[int], num_classes: int) -> list[nn.Module]:
    layers: list[nn.Module] = []
    for size in hidden:
        layers += [nn.Linear(below, size), nn.ReLU()]
        below = size
    return [*layers, nn.Linear(below, num_classes)]


def _convolutions(in_channels: int, plan: Sequence[tuple[int, Window]]) -> list[nn.Module]:
    layers: list[nn.Module] = []
    for channels, window in plan:
        make = FeatureConv2d if layers else ImageConv2d
        layers += [make(in_channels, channels, window.kernel, window.stride), nn.ReLU()]
        in_channels = channels
    return layers


def _flat_convnet(
    image_size: Size,
    in_channels: int,
    num_classes: int,
    plan: Sequence[tuple[int, Window]],
    head: Sequence[int],
    dropout: float = 0.0,
) -> ConvNet:
    """Build convolutions, then dense layers on all of the last map."""
    height, width = output_size(image_size, [window for _, window in plan])
    dense = _dense(height * width * plan[-1][0], head, num_classes)
    if dropout:
        dense.insert(-1, nn.Dropout(dropout))
    layers = [*_convolutions(in_channels, plan), nn.Flatten(), *dense]
    return ConvNet((in_channels, *image_size), num_classes, layers)


@register_model("convnet_fc", paper="gu2021; chen2019's MNIST baseline", init="gu2021")
def convnet_fc(
    image_size: Size,
    in_channels: int,
    num_classes: int,
    *,
    kernel_size: int = 5,
    hidden: tuple[int, ...] = (328, 192),
    channels: tuple[int, ...] = (256, 256, 128),
) -> ConvNet:
    """Build convolutions, three in the paper, and dense layers; scores are logits.

    Args:
        image_size: (height, width).
        in_channels: of the images.
        num_classes: of the logits.
        kernel_size: of all convolutions.
        hidden: sizes of the hidden dense layers.
        channels: of the convolutions.
    """
    if not channels:
        raise ValueError("channels=() has no convolution; expected at least one")
    plan = [(count, Window(kernel_size)) for count in channels]
    return _flat_convnet(image_size, in_channels, num_classes, plan, hidden)


register_preset("convnet_fc_lk", "convnet_fc", paper="gu2021", kernel_size=9, hidden=(160, 96))


@register_model("convnet_fc512", paper="chen2019's CIFAR-10 baseline", init="chen2019")
def convnet_fc512(image_size: Size, in_channels: int, num_classes: int, *, dropout: float = 0.5) -> ConvNet:
    """Build the two convolutions of the CIFAR-10 G-CapsNets (64 and 256 channels), FC512 and logits.

    Args:
        image_size: (height, width); the paper's is 32 with three channels.
        in_channels: of the images.
        num_classes: of the logits.
        dropout: before the logits.
    """
    plan = [(64, Window(9)), (256, Window(9, 2))]
    return _flat_convnet(image_size, in_channels, num_classes, plan, (512,), dropout)


@register_model("convnet_small", paper="the twin of capsnet_small", init="gu2021")
def convnet_small(image_size: Size, in_channels: int, num_classes: int, *, hidden: int = 80) -> ConvNet:
    """Build capsnet_small's two convolutions with dense layers in place of capsules; scores are logits.

    Args:
        image_size: (height, width).
        in_channels: of the images.
        num_classes: of the logits.
        hidden: size of the dense layer, as many values as capsnet_small's ten class capsules have.
    """
    plan = [(32, Window(7, 2)), (64, Window(7, 2))]
    return _flat_convnet(image_size, in_channels, num_classes, plan, (hidden,))


@register_model("convnet_avg", paper="gu2021", init="gu2021")
def convnet_avg(
    image_size: Size,
    in_channels: int,
    num_classes: int,
    *,
    kernel_size: int = 9,
    channels: int = 256,
) -> ConvNet:
    """Build CapsNet's two convolutions, global average pooling and logits.

    Args:
        image_size: (height, width).
        in_channels: of the images.
        num_classes: of the logits.
        kernel_size: of both convolutions.
        channels: of both convolutions.
    """
    plan = [(channels, Window(kernel_size)), (channels, Window(kernel_size, 2))]
    output_size(image_size, [window for _, window in plan])
    layers = [*_convolutions(in_channels, plan), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, num_classes)]
    return ConvNet((in_channels, *image_size), num_classes, layers)


@register_model("lenet", paper="Caffe's LeNet, chen2019's substitute", init="chen2019")
def lenet(image_size: Size, in_channels: int, num_classes: int) -> ConvNet:
    """Build Caffe's LeNet: convolutions of 20 and 50 channels without ReLU, each max-pooled, FC500, logits.

    Args:
        image_size: (height, width).
        in_channels: of the images.
        num_classes: of the logits.
    """
    height, width = output_size(image_size, [Window(5), Window(2, 2), Window(5), Window(2, 2)])
    layers = [ImageConv2d(in_channels, 20, 5), nn.MaxPool2d(2), nn.Conv2d(20, 50, 5), nn.MaxPool2d(2), nn.Flatten()]
    return ConvNet((in_channels, *image_size), num_classes, [*layers, *_dense(height * width * 50, [500], num_classes)])


class GroupedConvNet(Model):
    """gu2021's ConvNets with a decoder: CapsNet's convolutions, FC160 and a readout.

    Args:
        image_shape: (C, H, W).
        num_classes: J.
        stem: the first convolution.
        primary: the second convolution, with or without capsules' squash.
        features: values that enter the dense layer.
        dim: values per class.
        readout: ``"dense"`` (ConvNet-R), ``"sum"`` (ConvNet-CR) or ``"length"`` (ConvNet-CR-SF).
        decoder: or None.
    """

    def __init__(
        self,
        image_shape: tuple[int, int, int],
        num_classes: int,
        *,
        stem: ImageConv2d,
        primary: PrimaryCapsules,
        features: int,
        dim: int,
        readout: str,
        decoder: Decoder | None,
    ) -> None:
        super().__init__(image_shape, num_classes)
        check_choice("readout", readout, ("dense", "sum", "length"))
        self.readout, self.dim = readout, dim
        self.scores_are = {"dense": "logits", "sum": "probabilities", "length": "lengths"}[readout]
        self.trunk = nn.Sequential(stem, nn.ReLU())
        self.primary = primary
        self.dense = nn.Linear(features, num_classes * dim)
        self.output = nn.Linear(num_classes * dim, num_classes) if readout == "dense" else None
        self.decoder = decoder

    def classify(self, images: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return scores and the 160 values: as one vector for ConvNet-R, as one per class otherwise."""
        return self._read(self._primary(images))

    def logits(self, prediction: Prediction) -> Tensor:
        """Return the logits; where scores are probabilities, the sums that the sigmoid was taken of."""
        if self.readout == "sum" and prediction.capsules is not None:
            return prediction.capsules.sum(dim=-1)
        return super().logits(prediction)

    def capsules(self, images: Tensor) -> list[Tensor]:
        """Return primary and class capsules where they are squashed ones, else nothing."""
        if self.readout != "length":
            return []
        primary = self._primary(images)
        return [primary, self._read(primary)[1]]

    def _primary(self, images: Tensor) -> Tensor:
        self._check(images)
        return self.primary(self.trunk(images))  # type: ignore[no-any-return]

    def _read(self, primary: Tensor) -> tuple[Tensor, Tensor]:
        values: Tensor = self.dense(primary.flatten(1))  # [B, J·D]
        if self.output is not None:
            return self.output(values), values[:, None]
        groups = rearrange(values, "b (j d) -> b j d", d=self.dim)
        if self.readout == "sum":
            return groups.sum(dim=-1).sigmoid(), groups
        squashed = apply_squash(groups)
        return length(squashed), squashed


def _grouped(
    image_size: Size,
    in_channels: int,
    num_classes: int,
    *,
    readout: str,
    reconstruction: str,
    channels: int,
    types: int,
) -> GroupedConvNet:
    image_shape = (in_channels, *image_size)
    height, width = output_size(image_size, [Window(9), Window(9, 2)])
    squash = "sabour" if readout == "length" else "none"
    whole = (1, num_classes * 16) if readout == "dense" else (num_classes, 16)
    return GroupedConvNet(
        image_shape,
        num_classes,
        stem=ImageConv2d(in_channels, channels, 9),
        primary=PrimaryCapsules(channels, types, 8, kernel_size=9, stride=2, squash=squash, relu=readout != "length"),
        features=height * width * types * 8,
        dim=16,
        readout=readout,
        decoder=make_decoder(reconstruction, *whole, image_shape),
    )


@register_model("convnet_r", paper="gu2021", init="gu2021")
def convnet_r(
    image_size: Size,
    in_channels: int,
    num_classes: int,
    *,
    reconstruction: str = "normal",
    channels: int = 256,
    types: int = 32,
) -> GroupedConvNet:
    """Build ConvNet-R: FC160, logits from it, a decoder that sees all 160 values.

    Args:
        image_size: (height, width).
        in_channels: of the images.
        num_classes: of the logits.
        reconstruction: ``"normal"`` or ``"none"``: there are no classes to mask.
        channels: of the first convolution.
        types: an eighth of the channels of the second convolution.
    """
    check_choice("reconstruction", reconstruction, ("normal", "none"))
    sizes = {"channels": channels, "types": types}
    return _grouped(image_size, in_channels, num_classes, readout="dense", reconstruction=reconstruction, **sizes)


@register_model("convnet_cr", paper="gu2021", init="gu2021")
def convnet_cr(
    image_size: Size,
    in_channels: int,
    num_classes: int,
    *,
    reconstruction: str = "conditional",
    channels: int = 256,
    types: int = 32,
) -> GroupedConvNet:
    """Build ConvNet-CR: FC160 in groups of 16, a class's probability is the sigmoid of its group's sum, masked decoder.

    The logits are ``prediction.capsules.sum(-1)``: a loss on them cannot be starved by a saturated sigmoid.

    Args:
        image_size: (height, width).
        in_channels: of the images.
        num_classes: of the probabilities.
        reconstruction: ``"conditional"``, ``"normal"`` or ``"none"``.
        channels: of the first convolution.
        types: an eighth of the channels of the second convolution.
    """
    sizes = {"channels": channels, "types": types}
    return _grouped(image_size, in_channels, num_classes, readout="sum", reconstruction=reconstruction, **sizes)


@register_model("convnet_cr_sf", paper="gu2021", init="gu2021")
def convnet_cr_sf(
    image_size: Size,
    in_channels: int,
    num_classes: int,
    *,
    reconstruction: str = "conditional",
    channels: int = 256,
    types: int = 32,
) -> GroupedConvNet:
    """Build ConvNet-CR-SF: ConvNet-CR with both squashes, which is CapsNet without routing.

    Args:
        image_size: (height, width).
        in_channels: of the images.
        num_classes: of the lengths.
        reconstruction: ``"conditional"``, ``"normal"`` or ``"none"``.
        channels: of the first convolution.
        types: of primary capsules at a position.
    """
    sizes = {"channels": channels, "types": types}
    return _grouped(image_size, in_channels, num_classes, readout="length", reconstruction=reconstruction, **sizes)
