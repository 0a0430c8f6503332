"""How networks start: the papers' own initialisations by name, and a data-dependent start that keeps lengths alive.

| name | capsule weights | bias | betas | convolutions and dense layers |
|---|---|---|---|---|
| ``sabour``, ``yang2021`` | truncated normal 0.1 | 0.1 | 0 | truncated normal 0.1 (first convolution 0.05), biases 0.1 |
| ``peer2022`` | normal 0.1 | 0.1 | normal 0.1 | Glorot uniform, biases 0 |
| ``peer2022_zero_bias`` | normal 0.1 | 0 | normal 0.1 | Glorot uniform, biases 0 |
| ``peer2022_wide`` | normal 0.2 | 0.1 | normal 0.1 | Glorot uniform, biases 0 |
| ``peer2022_wider`` | normal 2 | 0.1 | normal 0.1 | Glorot uniform, biases 0 |
| ``peer2022_sign`` | normal 0.5 | 0.5 | normal 0.5 | Glorot uniform, biases 0 |
| ``mitterreiter2023``, ``gu2021`` | uniform ±1/√I, for a mean of votes ±1/√P | 0.1 | 0 | PyTorch's |
| ``hinton2018`` | normal 1 | 0 | 0 | PyTorch's |
| ``chen2019`` | uniform ±√(3/(J·P·D)) | 0 | 0 | uniform ±√(3/fan_in), biases 0 |

``peer2022_zero_bias``, ``peer2022_wide`` and ``peer2022_wider`` are our own, to tell two effects of peer2022's bias apart: it
starts at 0.1, which keeps capsules from vanishing, and it tells x from −x.
``sabour`` and ``yang2021`` belong to primary capsules whose sums are divided by the number of types, as in the code that they
are from (``PrimaryCapsules(divided=True)``, ``primary_divided=True`` of models): without it class capsules begin long.
Learned couplings and priors start as their algorithm says (``routing/*.py``, ``init``).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from capsella.errors import check_choice, check_number
from capsella.nn.base import RoutingLayer

_log = logging.getLogger(__name__)

LENGTH_PRESERVING = "length_preserving"
"""The name of the start that needs data, in plans and records: a network's own start, rescaled by ``length_preserving_``."""


@dataclass(frozen=True)
class Scheme:
    """How each kind of parameter starts; ``first`` tells a network's first convolution."""

    capsule_weight: Callable[[RoutingLayer], object]
    capsule_bias: float
    beta_std: float
    dense: Callable[[nn.Conv2d | nn.Linear, bool], object]


def _truncated(weight: Tensor, std: float) -> Tensor:
    return nn.init.trunc_normal_(weight, std=std, a=-2 * std, b=2 * std)


def _sabour_dense(module: nn.Conv2d | nn.Linear, first: bool) -> None:
    _truncated(module.weight, 0.05 if first else 0.1)
    if module.bias is not None:
        nn.init.constant_(module.bias, 0.1)


def _glorot_dense(module: nn.Conv2d | nn.Linear, first: bool) -> None:
    nn.init.xavier_uniform_(module.weight)
    if module.bias is not None:
        nn.init.zeros_(module.bias)


def _caffe_dense(module: nn.Conv2d | nn.Linear, first: bool) -> None:
    bound = math.sqrt(3 / module.weight[0].numel())
    nn.init.uniform_(module.weight, -bound, bound)
    if module.bias is not None:
        nn.init.zeros_(module.bias)


def _torch_dense(module: nn.Conv2d | nn.Linear, first: bool) -> None:
    module.reset_parameters()


def _uniform_by_sources(layer: RoutingLayer) -> None:
    # I even where one weight is shared: at ±1/√P the sum of thousands of votes diverges. A mean of votes does not grow
    # with their number: at ±1/√I it would vanish.
    takes_mean = layer.options.get("normalise") == "sources"
    bound = (layer.in_dim if takes_mean else layer.in_capsules) ** -0.5
    nn.init.uniform_(layer.weight, -bound, bound)


def _caffe_capsules(layer: RoutingLayer) -> None:
    bound = math.sqrt(3 / layer.weight[0].numel())
    nn.init.uniform_(layer.weight, -bound, bound)


def _peer2022(weight_std: float, bias: float, beta_std: float) -> Scheme:
    return Scheme(lambda layer: nn.init.normal_(layer.weight, std=weight_std), bias, beta_std, _glorot_dense)


_SABOUR = Scheme(lambda layer: _truncated(layer.weight, 0.1), 0.1, 0.0, _sabour_dense)
_SOURCES = Scheme(_uniform_by_sources, 0.1, 0.0, _torch_dense)
SCHEMES = {
    "sabour": _SABOUR,
    "yang2021": _SABOUR,
    "peer2022": _peer2022(0.1, 0.1, 0.1),
    "peer2022_zero_bias": _peer2022(0.1, 0.0, 0.1),
    "peer2022_wide": _peer2022(0.2, 0.1, 0.1),
    "peer2022_wider": _peer2022(2.0, 0.1, 0.1),
    "peer2022_sign": _peer2022(0.5, 0.5, 0.5),
    "mitterreiter2023": _SOURCES,
    "gu2021": _SOURCES,
    # votes of about unit variance keep EM's cost small, so that activations start further from saturation than at ±1/√I.
    "hinton2018": Scheme(lambda layer: nn.init.normal_(layer.weight, std=1.0), 0.0, 0.0, _torch_dense),
    "chen2019": Scheme(_caffe_capsules, 0.0, 0.0, _caffe_dense),
}


def names() -> list[str]:
    """List the named initialisations."""
    return sorted(SCHEMES)


@torch.no_grad()
def initialise_(model: nn.Module, name: str) -> nn.Module:
    """Start a network as one of the papers does; batch normalisation is left as it is.

    Args:
        model: any module; its capsule layers, convolutions and dense layers are changed in place.
        name: one of ``init.names()``.

    Example:
        >>> from capsella.nn import CapsuleLinear
        >>> layer = initialise_(CapsuleLinear(4, 2, 3, 2), "peer2022_sign")
        >>> layer.bias[0, 0].item()
        0.5
    """
    check_choice("init", name, SCHEMES)
    scheme = SCHEMES[name]
    first = True
    for module in model.modules():
        if isinstance(module, RoutingLayer):
            module.reset_parameters()
            scheme.capsule_weight(module)
            if module.bias is not None:
                module.bias.fill_(scheme.capsule_bias)
            for beta in ("beta_a", "beta_u"):
                if beta in module.learned and scheme.beta_std:
                    nn.init.normal_(module.get_parameter(beta), std=scheme.beta_std)
        elif isinstance(module, nn.Conv2d | nn.Linear):
            scheme.dense(module, first and isinstance(module, nn.Conv2d))
            first = first and not isinstance(module, nn.Conv2d)
    return model


@dataclass(frozen=True)
class LayerScale:
    """What ``length_preserving_`` did to one layer.

    Attributes:
        layer: its name in the model.
        before: mean length of its capsules, with everything below already rescaled.
        after: mean length now.
        scale: what its weights were multiplied with; None where the layer was left alone.
        note: why it was left alone, else empty.
    """

    layer: str
    before: float
    after: float
    scale: float | None
    note: str = ""


@torch.no_grad()
def length_preserving_(model: nn.Module, images: Tensor, length: float = 0.5) -> list[LayerScale]:
    """Rescale each routing layer's weights, lowest first, until its capsules have mean length ``length`` on one batch.

    Layers with activations of their own (EM) are left alone, which the report and the log say. In residual layers it is what
    they route that gets the length. The model runs in the mode it is in: a net with batch normalisation that is about to be
    trained should be in training mode.

    Args:
        model: any module that takes ``images`` and contains capsule layers; changed in place.
        images: one batch of real inputs.
        length: the mean length to reach, within 1 %.

    Returns:
        One ``LayerScale`` per routing layer, lowest first.

    Raises:
        ValueError: a layer cannot reach the length. Whatever is raised, the model is then as it was.

    Example:
        >>> from capsella.nn import CapsuleLinear
        >>> net = nn.Sequential(CapsuleLinear(8, 4, 6, 4), CapsuleLinear(6, 4, 3, 4))
        >>> [round(layer.after, 1) for layer in length_preserving_(net, torch.randn(16, 8, 4))]
        [0.5, 0.5]
    """
    check_number("length", length, above=0)
    # running statistics and the like: the batch is looked at, not learned from.
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    weights: list[tuple[RoutingLayer, Tensor]] = []
    found: list[LayerScale] = []

    def rescale(name: str, layer: RoutingLayer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        # the search calls the layer, too.
        if all(each is not layer for each, _ in weights):
            weights.append((layer, layer.weight.clone()))
            found.append(_rescale(name, layer, args, kwargs, length))

    # one pass: a layer is rescaled as it comes up, with everything below it already rescaled, and passes on what it then gives.
    hooks = [
        layer.register_forward_pre_hook(
            lambda layer, args, kwargs, name=name: rescale(name, layer, args, kwargs), with_kwargs=True
        )
        for name, layer in ((name or type(layer).__name__, layer) for name, layer in model.named_modules())
        if isinstance(layer, RoutingLayer)
    ]
    try:
        # a model that was compiled and has run would not see the hooks.
        with torch.compiler.set_stance("force_eager"):
            model(images)
        if not found:
            raise ValueError("model has no capsule layer that ran on images; expected CapsuleLinear or CapsuleConv2d")
        return found
    except BaseException:
        # backwards: of a weight that several layers share, the first copy is how it was.
        for layer, weight in reversed(weights):
            layer.weight.copy_(weight)
        raise
    finally:
        for hook in hooks:
            hook.remove()
        for name, buffer in model.named_buffers():
            buffer.copy_(buffers[name])


def _rescale(name: str, layer: RoutingLayer, args: tuple[Any, ...], kwargs: dict[str, Any], length: float) -> LayerScale:
    weight = layer.weight.clone()

    def mean_length(scale: float) -> float:
        layer.weight.copy_(weight * scale)
        # what is routed has this length, whatever of the lower capsules is added to it.
        has_residual, layer.residual = layer.residual, False
        try:
            return float(layer(*args, **kwargs).activations.double().mean())
        finally:
            layer.residual = has_residual

    before = mean_length(1.0)
    if not math.isfinite(before):
        raise ValueError(f"images gives layer {name!r} capsules of mean length {before}; expected finite images, at least one")
    if layer.algorithm.needs_activations:
        note = f"{name}: routing={layer.algorithm.name!r} has activations of its own; its weights are left alone"
        _log.warning(note)
        return LayerScale(name, before, before, None, note)
    scale = _search(mean_length, before, length, name)
    return LayerScale(name, before, mean_length(scale), scale)


def _search(mean_length: Callable[[float], float], before: float, length: float, name: str) -> float:
    """Find the scale by doubling or halving until the length is passed, then by bisection."""
    tolerance = 0.01 * length / 4  # well inside the promised 1 %
    step = 2.0 if before < length else 0.5
    near = far = 1.0
    best = before
    for _ in range(40):
        far *= step
        best = mean_length(far)
        if (best - length) * (before - length) <= 0:
            break
        near = far
    else:
        why = "its inputs are zero or its routing saturates" if step > 1 else "its bias alone is longer"
        raise ValueError(f"length={length} cannot be reached in layer {name!r}, which stays at {best:.4g}: {why}")
    for _ in range(80):
        middle = math.sqrt(near * far)
        value = mean_length(middle)
        if abs(value - length) <= tolerance:
            return middle
        near, far = (middle, far) if (value - length) * (before - length) > 0 else (near, middle)
    raise ValueError(f"length={length} cannot be reached in layer {name!r}: its mean length jumps past it near {value:.4g}")
