"""What of an image a capsule sees: the pixels that can reach it, and those that it minds."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from capsella.analysis.layers import Seen, observe_in
from capsella.analysis.parse_tree import chained
from capsella.errors import whole_number


@dataclass(frozen=True)
class Box:
    """A rectangle of pixels; the last row and column belong to it."""

    left: int
    top: int
    right: int
    bottom: int


class ReceptiveFields:
    """Finds the pixels that can reach each capsule at the foot of a network's parse tree.

    In a copy of the network whose weights are all positive nothing cancels, so that the pixels whose gradient is not zero are
    those on a path to the capsule: whatever the network is made of, its paddings and strides need not be told.

    Args:
        model: any network with capsella's routing layers; it is not changed.
        image_shape: (C, H, W).

    Example:
        >>> import capsella
        >>> fields = ReceptiveFields(capsella.create_model("capsnet_small"), (1, 28, 28))
        >>> fields.box(0)
        Box(left=0, top=0, right=18, bottom=18)
    """

    def __init__(self, model: nn.Module, image_shape: tuple[int, int, int]) -> None:
        self._shape = image_shape
        self._model = copy.deepcopy(model).double().eval()
        with torch.no_grad():
            for parameter in self._model.parameters():
                # small, so that no squash is saturated.
                parameter.fill_(1 / max(1, parameter[0].numel() if parameter.ndim > 1 else 1))
            for name, buffer in self._model.named_buffers():
                if buffer.is_floating_point():
                    buffer.fill_(1.0 if name.endswith("running_var") else 0.0)
        self._found: dict[int | None, Box | None] = {}

    def box(self, capsule: int | None) -> Box | None:
        """Return the pixels that reach a capsule of the lowest layer, of any of its capsules if None; None if none does."""
        if capsule not in self._found:
            self._found[capsule] = self._box(capsule)
        return self._found[capsule]

    def _box(self, capsule: int | None) -> Box | None:
        place = next(self._model.parameters()).device
        images = torch.ones(1, *self._shape, dtype=torch.float64, device=place, requires_grad=True)
        poses = _seen_with_gradient(self._model, images)[0].lower[0]  # [I, P]
        if capsule is not None:
            _check("capsule", capsule, len(poses))
            poses = poses[capsule]
        (gradient,) = torch.autograd.grad(poses.sum(), images)
        reached = (gradient[0] != 0).any(dim=0).nonzero()
        if not len(reached):
            return None
        (top, left), (bottom, right) = reached.amin(dim=0).tolist(), reached.amax(dim=0).tolist()
        return Box(left, top, right, bottom)


def sensitivity(model: nn.Module, image: Tensor, layer: int, capsule: int) -> Tensor:
    """Return how much a capsule's activation changes with each pixel, |∂a/∂x| summed over channels: [H, W].

    Args:
        model: a network with a parse tree.
        image: [C, H, W], as the network takes it.
        layer: of the tree, 0 the lowest.
        capsule: of that layer.

    Example:
        >>> import capsella
        >>> model = capsella.create_model("capsnet_small")
        >>> found = sensitivity(model, torch.rand(1, 28, 28), 0, 0)
        >>> found.shape, bool(found[:19, :19].sum() > 0), float(found[19:].sum())
        (torch.Size([28, 28]), True, 0.0)
    """
    images = image[None].detach().clone().requires_grad_()
    chain = _seen_with_gradient(model, images)
    activations = [chain[0].lower_activations, *(each.activations for each in chain)]
    _check("layer", layer, len(activations))
    row = activations[layer][0]
    _check("capsule", capsule, len(row))
    if not row.requires_grad:
        return torch.zeros(image.shape[1:], device=image.device)
    (gradient,) = torch.autograd.grad(row[capsule], images, allow_unused=True, materialize_grads=True)
    return gradient[0].abs().sum(dim=0)


def _check(name: str, value: int, most: int) -> None:
    if not 0 <= whole_number(name, value) < most:
        raise ValueError(f"{name}={value} is not there; expected 0 to {most - 1}")


def _seen_with_gradient(model: nn.Module, images: Tensor) -> list[Seen]:
    def act() -> None:
        with torch.enable_grad():
            model(images)

    _, seen = observe_in(act, model, len(images))
    return chained(seen)
