"""What every model answers: scores, capsules, routing and reconstructions, capsule net or not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from einops import rearrange
from torch import Tensor, nn

from capsella.nn import Decoder, RoutingLayer, as_classes, coupling_parameters
from capsella.routing import Routed


@dataclass(frozen=True)
class Prediction:
    """What a model says of a batch of images.

    Attributes:
        scores: [B, J], higher is likelier: capsule lengths, EM activations, or a ConvNet's logits or probabilities.
        capsules: class capsules [B, J, D], or None for a model that has none.
        reconstruction: [B, C, H, W], [B, n, C, H, W] for n target classes, or None without a decoder.
    """

    scores: Tensor
    capsules: Tensor | None = None
    reconstruction: Tensor | None = None


torch.export.register_dataclass(Prediction, serialized_type_name="capsella.Prediction")


class Model(nn.Module):
    """Base of all models: checks images, chooses what to reconstruct.

    Args:
        image_shape: (C, H, W) that the model takes.
        num_classes: J.

    Attributes:
        decoder: draws images from class capsules, or None; subclasses set it last, so that parameters come in the order in
            which an image meets them.
        config: name, sizes and options, set by ``create_model``; an option that is None was left to the builder.
    """

    decoder: Decoder | None
    # what the scores are decides which losses fit: "lengths" (EM's activations too), "logits" or "probabilities".
    scores_are: str = "lengths"

    def __init__(self, image_shape: tuple[int, int, int], num_classes: int) -> None:
        super().__init__()
        self.image_shape, self.num_classes = image_shape, num_classes
        self.decoder = None
        self.config: dict[str, Any] = {}

    def forward(self, images: Tensor, targets: Tensor | None = None) -> Prediction:
        """Classify images and, with a decoder, draw them again.

        Args:
            images: float [B, C, H, W].
            targets: classes to reconstruct: indices [B] or [B, n], or multi-hot rows [B, J] (not in a compiled model, which
                cannot look at them); the highest score if None.
        """
        scores, capsules = self.classify(images)
        if self.decoder is None or capsules is None:
            return Prediction(scores, capsules)
        classes = scores.argmax(dim=1) if targets is None else as_classes(targets, self.num_classes)
        return Prediction(scores, capsules, self.decoder(capsules, classes))

    def classify(self, images: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return scores and class capsules."""
        raise NotImplementedError

    def logits(self, prediction: Prediction) -> Tensor:
        """Return logits [B, J] of a prediction of this model, for losses that take them."""
        if self.scores_are != "logits":
            raise ValueError(f"{self._name} has no logits, its scores are {self.scores_are}; expected a loss on lengths")
        return prediction.scores

    def capsules(self, images: Tensor) -> list[Tensor]:
        """Return [B, M, dim] for each capsule layer, primary first; empty for a model without capsules."""
        return []

    def routed(self, images: Tensor, *, trace: bool = False) -> list[Routed]:
        """Return the result of each routing layer, lowest first; convolutional ones have their positions folded into B."""
        return []

    def reconstruct(self, capsules: Tensor, classes: Tensor) -> Tensor:
        """Run the decoder alone on class capsules [B, J, D]; ``classes`` as ``targets`` of the model."""
        if self.decoder is None:
            raise ValueError(f"{self._name} has no decoder; expected a model with reconstruction='conditional' or 'normal'")
        return self.decoder(capsules, as_classes(classes, self.num_classes))  # type: ignore[no-any-return]

    def coupling_parameters(self) -> Iterator[nn.Parameter]:
        """Yield the quadratic couplings, which climb their own objective."""
        return coupling_parameters(self)

    def main_parameters(self) -> Iterator[nn.Parameter]:
        """Yield everything the main optimiser should have: all parameters but the quadratic couplings."""
        apart = {id(parameter) for parameter in self.coupling_parameters()}
        return (parameter for parameter in self.parameters() if id(parameter) not in apart)

    @property
    def _name(self) -> str:
        return str(self.config.get("name", type(self).__name__))

    def _check(self, images: Tensor) -> None:
        shape = ", ".join(f"{letter}={size}" for letter, size in zip("CHW", self.image_shape, strict=True))
        if not isinstance(images, Tensor) or not images.is_floating_point():
            kind = images.dtype if isinstance(images, Tensor) else type(images).__name__
            raise TypeError(f"images is {kind}; expected floating point [B, {shape}] (divide bytes by 255)")
        expected = next(self.parameters()).dtype
        if images.dtype != expected and not torch.is_autocast_enabled(images.device.type):
            raise TypeError(f"images has dtype {images.dtype}; expected {expected} as the weights of {self._name}")
        if images.ndim != 4 or tuple(images.shape[1:]) != self.image_shape:
            raise ValueError(f"images has shape {list(images.shape)}; {self._name} expects [B, {shape}]")


class CapsuleNet(Model):
    """Trunk, primary capsules, one or more routing layers, class capsules last.

    Args:
        image_shape: (C, H, W).
        num_classes: J of the last layer.
        trunk: images -> feature maps.
        primary: feature maps -> capsules.
        layers: routing layers, lowest first.
        decoder: or None.
    """

    def __init__(
        self,
        image_shape: tuple[int, int, int],
        num_classes: int,
        *,
        trunk: nn.Module,
        primary: nn.Module,
        layers: list[RoutingLayer],
        decoder: Decoder | None = None,
    ) -> None:
        super().__init__(image_shape, num_classes)
        self.trunk, self.primary, self.layers = trunk, primary, nn.ModuleList(layers)
        self.decoder = decoder

    def classify(self, images: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return activations and poses of the class capsules."""
        above = self._climb(self._primary(images), need_couplings=False)[-1]
        return _flat(above.activations, 2), _flat(above.poses, 3)

    def capsules(self, images: Tensor) -> list[Tensor]:
        """Return the poses [B, M, dim] of each capsule layer, primary first."""
        primary = self._primary(images)
        poses = [result.poses for result in self._climb(primary, need_couplings=False)]
        return [_flat(layer, 3) for layer in (primary.poses if isinstance(primary, Routed) else primary, *poses)]

    def routed(self, images: Tensor, *, trace: bool = False) -> list[Routed]:
        """Return the result of each routing layer, lowest first; convolutional ones have their positions folded into B."""
        return [_folded(result) for result in self._climb(self._primary(images), trace=trace)]

    def from_primary(self, primary: Tensor | Routed) -> Prediction:
        """Classify given primary capsules instead of an image: what peer2022's negation test asks.

        Args:
            primary: what ``model.primary`` returns: poses, or a ``Routed`` where they have activations of their own.
        """
        above = self._climb(primary, need_couplings=False)[-1]
        return Prediction(_flat(above.activations, 2), _flat(above.poses, 3))

    def entering(self, number: int, images: Tensor) -> Tensor | Routed:
        """Return what reaches a routing layer.

        Args:
            number: of the layer in ``layers``, from 0.
            images: [B, C, H, W].
        """
        below = self._primary(images)
        for layer in self.layers[:number]:
            below = layer(below, need_couplings=False)
        return below

    def _primary(self, images: Tensor) -> Tensor | Routed:
        self._check(images)
        return self.primary(self.trunk(images))  # type: ignore[no-any-return]

    def _climb(self, below: Tensor | Routed, *, trace: bool = False, need_couplings: bool = True) -> list[Routed]:
        """Return every routing layer's result, lowest first."""
        results: list[Routed] = []
        for layer in self.layers:
            results.append(layer(results[-1] if results else below, trace=trace, need_couplings=need_couplings))
        return results


def _flat(tensor: Tensor, rank: int) -> Tensor:
    """Put the capsules of a grid into one row: [B, H, W, N, …] -> [B, H·W·N, …]."""
    return rearrange(tensor, "b h w n ... -> b (h w n) ...") if tensor.ndim == rank + 2 else tensor


def _folded(result: Routed) -> Routed:
    """Fold the positions of a convolutional layer into the batch."""
    if result.poses.ndim == 3:
        return result

    def fold(tensor: Tensor) -> Tensor:
        return rearrange(tensor, "b h w ... -> (b h w) ...")

    return result.map(fold)
