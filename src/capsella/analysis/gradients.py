"""Which capsules and weights the loss still reaches, and whether a dead capsule ever comes back (mitterreiter2023, 4.3)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from capsella import functional as F
from capsella.analysis.layers import Route, routing_layers, tapped
from capsella.functional import length
from capsella.models import Prediction, as_prediction, evaluating
from capsella.nn import RoutingLayer
from capsella.routing import Routed

HARDLY = 0.01
"""Of what the capsules of a layer get on average: those that get less are starved."""

Loss = Callable[[Prediction, Tensor], Tensor]
"""Takes what a network says and the classes; a loss with the mean over the batch."""


@dataclass(frozen=True)
class LayerGradients:
    """What reaches one routing layer.

    Attributes:
        name: of the layer.
        lower: [I], length of ∂L/∂u of each lower capsule, mean over images.
        upper: [J], the same of each upper capsule.
        weights: [I, J], length of ∂L/∂W of each pair's block; [1, J] where one weight serves all.
    """

    name: str
    lower: Tensor
    upper: Tensor
    weights: Tensor


def margin(prediction: Prediction, targets: Tensor) -> Tensor:
    """Return the margin loss of a prediction's scores, which are lengths."""
    return F.margin_loss(prediction.scores, targets)


@dataclass(frozen=True)
class _Gradients:
    """Of a batch of B images, for each routing layer that ran: its name, and ∂L/∂u of lower and upper poses, and ∂L/∂W."""

    names: list[str]
    lower: list[Tensor]
    upper: list[Tensor]
    weights: list[Tensor]


class GradientNorms:
    """Streams ``gradient_norms``: ``update(images, targets)`` with each batch.

    What is held is one number for each capsule and one tensor of the size of each layer's weights, whose lengths can be taken
    only when all images are in it.

    Args:
        model: as there.
        loss: as there.
    """

    def __init__(self, model: nn.Module, *, loss: Loss = margin) -> None:
        self._model, self._loss = model, loss
        self._names: list[str] = []
        self._sums: list[tuple[Tensor, Tensor, Tensor]] = []
        self._images = 0

    def update(self, images: Tensor, targets: Tensor) -> None:
        """Add a batch; ``targets`` are classes [B] or multi-hot [B, J]."""
        B = len(images)
        found = _gradients(self._model, images, targets, self._loss)
        parts = zip(found.lower, found.upper, found.weights, strict=True)
        # sums over images: the mean over the batch is taken out of the loss, and put back over all images at the end.
        sums = [(_reach(lower, B), _reach(upper, B), B * weight.double()) for lower, upper, weight in parts]
        if not self._images:
            self._names, self._sums = found.names, sums
        elif found.names != self._names:
            raise ValueError(f"the layers that ran are {found.names}; expected {self._names}, as before")
        else:
            self._sums = [(a + x, b + y, c + z) for (a, b, c), (x, y, z) in zip(self._sums, sums, strict=True)]
        self._images += B

    def compute(self) -> list[LayerGradients]:
        """Return what ``gradient_norms`` gives for all batches at once."""
        n = self._images
        if not n:
            raise ValueError("nothing has been seen yet; call update() with at least one image first")
        return [
            LayerGradients(name, lower / n, upper / n, (weight / n).flatten(2).norm(dim=-1))
            for name, (lower, upper, weight) in zip(self._names, self._sums, strict=True)
        ]


def starved_share(gradients: Tensor) -> float:
    """Return the share of a layer's capsules that get less than ``HARDLY`` of what they get on average.

    Args:
        gradients: that reach each capsule [M].

    Example:
        >>> starved_share(torch.tensor([1.0, 1.0, 1.0, 0.001]))
        0.25
    """
    return float((gradients < HARDLY * gradients.mean()).double().mean())


def gradient_norms(model: nn.Module, images: Tensor, targets: Tensor, *, loss: Loss = margin) -> list[LayerGradients]:
    """Measure the gradients of a batch, layer by layer; the model's own gradients are left as they were.

    For the loss L_b of each of B images, lower capsules u_i, upper capsules v_j and the weights W_ij of a pair::

        lower(i) = (1/B) Σ_b ‖∂L_b/∂u_i‖     upper(j) = (1/B) Σ_b ‖∂L_b/∂v_j‖     weights(i, j) = ‖(1/B) Σ_b ∂L_b/∂W_ij‖

    mitterreiter2023's Theorem 2 says why they starve together: ∂L/∂W_ij is the outer product of u_i and the vote's gradient,
    and ∂L/∂u_i passes through W_ij. A capsule that is near zero moves its weights little, and weights near zero move it
    little. The vote's gradient includes the path through the couplings: nothing is detached.

    Args:
        model: any network with capsella's routing layers.
        images: [B, …].
        targets: classes [B] or multi-hot [B, J].
        loss: of the network's answers, with the mean over the batch.

    Example:
        >>> import capsella
        >>> model = capsella.create_model("capsnet_small")
        >>> (found,) = gradient_norms(model, torch.rand(2, 1, 28, 28), torch.tensor([3, 7]))
        >>> tuple(found.lower.shape), tuple(found.weights.shape)
        ((72,), (72, 10))
    """
    found = GradientNorms(model, loss=loss)
    found.update(images, targets)
    return found.compute()


def _gradients(model: nn.Module, images: Tensor, targets: Tensor, loss: Loss) -> _Gradients:
    layers = routing_layers(model)
    # in the order in which they run, and as often.
    names: list[str] = []
    lower: list[Tensor] = []
    upper: list[Tensor] = []

    def tap(name: str, layer: RoutingLayer, poses: Tensor, activations: Tensor | None, route: Route) -> Routed:
        # a leaf of its own where nothing below is learned.
        lower.append(poses if poses.requires_grad else poses.detach().requires_grad_())
        result = route(lower[-1], activations)
        names.append(name)
        upper.append(result.poses)
        # in half precision poses are rounded copies beside the path to the lengths.
        return result if layer.algorithm.needs_activations else replace(result, activations=length(result.poses))

    frozen = [layer.weight for layer in layers.values() if not layer.weight.requires_grad]
    try:
        for weight in frozen:
            weight.requires_grad_(True)
        with evaluating(model), torch.enable_grad(), tapped(model, tap):
            value = loss(as_prediction(model(images)), targets)
        if not names:
            raise ValueError("model has no routing layer that ran; expected a network with capsella's capsule layers")
        asked = [*lower, *upper, *(layers[name].weight for name in names)]
        # scores may come from activations alone, as EM's do: the poses above then have no gradient.
        found = torch.autograd.grad(value, asked, allow_unused=True)
    finally:
        for weight in frozen:
            weight.requires_grad_(False)
    kept = [torch.zeros_like(x) if g is None else g for x, g in zip(asked, found, strict=True)]
    n = len(names)
    return _Gradients(names, kept[:n], kept[n : 2 * n], kept[2 * n :])


def _reach(gradient: Tensor, images: int) -> Tensor:
    """Return the sum over images of each capsule's gradient, with the mean over the batch taken out of the loss."""
    lengths = gradient.double().norm(dim=-1) * images  # [B·L, M]
    reached: Tensor = lengths.reshape(images, -1).sum(dim=0)
    return reached


class Revivals:
    """Counts how often capsules die and come back: ``update(dead)`` with each reading, in the order of training.

    Example:
        >>> revivals = Revivals()
        >>> for dead in ([False, False], [True, False], [False, False], [True, False]):
        ...     revivals.update(torch.tensor(dead))
        >>> found = revivals.compute()
        >>> found.deaths.tolist(), found.revivals.tolist()
        ([2, 0], [1, 0])
    """

    def __init__(self) -> None:
        self._before: Tensor | None = None
        self._deaths: Tensor | None = None
        self._revivals: Tensor | None = None

    def update(self, dead: Tensor) -> None:
        """Add the next reading: boolean [M], which capsules are dead."""
        if not isinstance(dead, Tensor):
            raise TypeError(f"dead has type {type(dead).__name__}; expected a tensor of torch.bool")
        dead = dead.detach().cpu().clone()
        if dead.dtype != torch.bool or dead.ndim != 1 or (self._before is not None and dead.shape != self._before.shape):
            expected = "M" if self._before is None else len(self._before)
            raise ValueError(f"dead is {dead.dtype} {list(dead.shape)}; expected torch.bool [{expected}]")
        if self._before is None or self._deaths is None or self._revivals is None:
            # what is dead from the beginning has died once.
            self._deaths, self._revivals = dead.long(), torch.zeros(len(dead), dtype=torch.long)
        else:
            self._deaths += dead & ~self._before
            self._revivals += ~dead & self._before
        self._before = dead

    def compute(self) -> Life:
        """Return what was counted so far."""
        if self._before is None or self._deaths is None or self._revivals is None:
            raise ValueError("nothing has been seen yet; call update() with at least one reading first")
        return Life(self._deaths.clone(), self._revivals.clone(), self._before.clone())


@dataclass(frozen=True)
class Life:
    """How often each of M capsules died and came back.

    Attributes:
        deaths: [M].
        revivals: [M].
        dead: [M], at the last reading.
    """

    deaths: Tensor
    revivals: Tensor
    dead: Tensor
