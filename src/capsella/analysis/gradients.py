r"""Which capsules and weights the loss still reaches, and whether a dead capsule ever comes back (mitterreiter2023, 4.3).

The paper's Theorem 2: the gradient of W_ij is the outer product of the lower capsule u_i and the vote's gradient, and the
gradient of u_i passes through W_ij. A capsule that is near zero moves its weights little, and weights near zero move it little.
"""

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


def gradient_norms(model: nn.Module, images: Tensor, targets: Tensor, *, loss: Loss = margin) -> list[LayerGradients]:
    """Measure the gradients of a batch, layer by layer; the model's own gradients are left as they were.

    Args:
        model: any network with capsella's routing layers.
        images: [B, …].
        targets: classes [B] or multi-hot [B, J].
        loss: of the network's answers.
    """
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
    n, B = len(names), len(images)
    return [
        LayerGradients(name, _reach(kept[k], B), _reach(kept[n + k], B), kept[2 * n + k].flatten(2).double().norm(dim=-1))
        for k, name in enumerate(names)
    ]


def _reach(gradient: Tensor, images: int) -> Tensor:
    """Return the mean over images of each capsule's gradient, with the mean over the batch taken out of the loss."""
    lengths = gradient.double().norm(dim=-1) * images  # [B·L, M]
    reached: Tensor = lengths.reshape(images, -1).mean(dim=0)
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
