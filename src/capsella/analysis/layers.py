"""What happens in the routing layers of any network while it runs: seen, or changed, at the one call that all of them make."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from einops import rearrange
from torch import Tensor, nn

from capsella.errors import check_choice, unknown_name
from capsella.functional import length
from capsella.models import evaluating
from capsella.nn import RoutingLayer
from capsella.routing import Routed
from capsella.routing.base import NORMALISATIONS
from capsella.shapes import dims

T = TypeVar("T")


@dataclass(frozen=True)
class Seen:
    """One routing layer at work on B images.

    Attributes:
        name: of the layer in its network.
        lower: poses of the lower capsules [B, I, P].
        lower_activations: [B, I].
        poses: of the upper capsules [B, J, D].
        activations: [B, J].
        couplings: [B, I, J], or None where they are not known.
        trace: the couplings of every iteration, or None.
        windows: L; a convolution's windows lie side by side, so that I and the upper capsules count each as often as it
            appears. Couplings stay within a window: they are [B, L·I, J], with the J of one window.
        normalise: ``"targets"`` where lower capsules divide themselves among upper ones, ``"sources"`` where upper ones take
            means of the votes, so that couplings sum to one over I.
    """

    name: str
    lower: Tensor
    lower_activations: Tensor
    poses: Tensor
    activations: Tensor
    couplings: Tensor | None = None
    trace: tuple[Tensor, ...] | None = None
    windows: int = 1
    normalise: str = "targets"

    def by_chooser(self, couplings: Tensor) -> Tensor:
        """Turn couplings [B, L·I, J] so that a row has the shares of who chooses: as they are, or for sources [B, L·J, I]."""
        return couplings if self.normalise == "targets" else rearrange(couplings, "b (l i) j -> b (l j) i", l=self.windows)


Route = Callable[[Tensor, Tensor | None], Routed]
"""Routes poses [B·L, I, P] with their activations, L windows an image, as the layer would; couplings and trace included."""

Tap = Callable[[str, RoutingLayer, Tensor, Tensor | None, Route], Routed]
"""Is called in the place of a layer's routing: name, layer, poses, activations, and what the layer would do."""


@contextlib.contextmanager
def tapped(model: nn.Module, tap: Tap, *, trace: bool = False) -> Iterator[None]:
    """Put ``tap`` in the place of every routing of ``model``.

    Args:
        model: any network with capsella's routing layers.
        tap: see ``Tap``; what it returns goes on through the network.
        trace: keep the couplings of every iteration.
    """
    layers = routing_layers(model)

    def wrap(name: str, layer: RoutingLayer) -> Callable[..., Routed]:
        original = layer._route

        def route(poses: Tensor, activations: Tensor | None, *, trace: bool, need_couplings: bool, **overrides: Any) -> Routed:
            def go(poses: Tensor, activations: Tensor | None) -> Routed:
                return original(poses, activations, trace=trace or wanted, need_couplings=True, **overrides)

            return tap(name, layer, poses, activations, go)

        return route

    wanted = trace
    wrapped = {name: wrap(name, layer) for name, layer in layers.items()}
    # a tap within a tap wraps it, and leaves it where it was.
    before = {name: layer.__dict__.get("_route") for name, layer in layers.items()}
    try:
        for name, layer in layers.items():
            # in the object's own dict, before the method of its class.
            object.__setattr__(layer, "_route", wrapped[name])
        yield
    finally:
        for name, layer in layers.items():
            layer.__dict__.pop("_route", None)
            if before[name] is not None:
                object.__setattr__(layer, "_route", before[name])


def routing_layers(model: nn.Module) -> dict[str, RoutingLayer]:
    """Return the routing layers by name, in the order in which they were put into the network."""
    return {name: layer for name, layer in model.named_modules() if isinstance(layer, RoutingLayer)}


class Adapter(Protocol):
    """Tells what the capsule layers of a network see: capsella's own, or those of a foreign one."""

    @contextlib.contextmanager
    def watching(self, model: nn.Module, seen: list[Seen], *, trace: bool) -> Iterator[None]:
        """While it lasts, add one ``Seen`` for every capsule layer that runs, lowest first."""
        yield


class OwnLayers:
    """Watches capsella's routing layers."""

    @contextlib.contextmanager
    def watching(self, model: nn.Module, seen: list[Seen], *, trace: bool) -> Iterator[None]:
        """As ``Adapter`` says."""

        def tap(name: str, layer: RoutingLayer, poses: Tensor, activations: Tensor | None, route: Route) -> Routed:
            result = route(poses, activations)
            below = length(poses) if activations is None else activations
            seen.append(Seen(name, poses, below, *_parts(result), normalise=layer.options.get("normalise", "targets")))
            return result

        with tapped(model, tap, trace=trace):
            yield


Reader = Callable[[nn.Module, tuple[Any, ...], Any], Seen]
"""Takes a foreign layer, what it was called with and what it returned, and tells what happened (its name is filled in)."""


class ForeignLayers:
    """Watches the capsule layers of a network that is not made of capsella's.

    Args:
        readers: one for each capsule layer, by the name of the module in its network, lowest first.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> class Caps(nn.Module):  # somebody else's: uniform routing of 6 capsules to 3
        ...     def forward(self, u):
        ...         self.c = torch.full((len(u), 6, 3), 1 / 3)
        ...         return torch.einsum("bij,bip->bjp", self.c, u)
        >>> def read(layer, inputs, output):
        ...     return seen_layer(inputs[0], output, couplings=layer.c)
        >>> adapter = ForeignLayers({"0": read})
        >>> seen = []
        >>> with adapter.watching(model := nn.Sequential(Caps()), seen, trace=False):
        ...     _ = model(torch.randn(2, 6, 4))
        >>> seen[0].name, seen[0].couplings.shape
        ('0', torch.Size([2, 6, 3]))
    """

    def __init__(self, readers: Mapping[str, Reader]) -> None:
        self.readers = dict(readers)

    @contextlib.contextmanager
    def watching(self, model: nn.Module, seen: list[Seen], *, trace: bool) -> Iterator[None]:
        """As ``Adapter`` says."""
        modules = dict(model.named_modules())
        unknown = [name for name in self.readers if name not in modules]
        if unknown:
            raise ValueError(f"readers: {unknown_name('module', unknown[0], filter(None, modules))}")

        def hook(name: str) -> Callable[[nn.Module, tuple[Any, ...], Any], None]:
            def read(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
                found: Any = self.readers[name](module, inputs, output)
                if not isinstance(found, Seen):
                    kind = type(found).__name__
                    raise TypeError(f"readers[{name!r}] returned a {kind}; expected what seen_layer returns")
                seen.append(Seen(**{**vars(found), "name": name}))

            return read

        with contextlib.ExitStack() as stack:
            for name in self.readers:
                stack.callback(modules[name].register_forward_hook(hook(name)).remove)
            yield


def seen_layer(
    lower: Tensor,
    poses: Tensor,
    *,
    couplings: Tensor | None = None,
    trace: tuple[Tensor, ...] | None = None,
    activations: Tensor | None = None,
    lower_activations: Tensor | None = None,
    normalise: str = "targets",
) -> Seen:
    """Tell what a layer did; activations are pose lengths where they are not given.

    Args:
        lower: poses of the lower capsules [B, I, P].
        poses: of the upper capsules [B, J, D].
        couplings: [B, I, J].
        trace: of every iteration.
        activations: [B, J].
        lower_activations: [B, I].
        normalise: whether couplings are shares of a lower capsule, ``"targets"``, or of an upper one, ``"sources"``.
    """
    check_choice("normalise", normalise, NORMALISATIONS)
    B, I, _ = dims(lower, "B I P", name="lower")
    _, J, _ = dims(poses, "B J D", name="poses", B=B)
    if couplings is not None:
        dims(couplings, "B I J", name="couplings", B=B, I=I, J=J)
    for name, given, size in (("activations", activations, J), ("lower_activations", lower_activations, I)):
        if given is not None:
            dims(given, "B M", name=name, B=B, M=size)
    for each in trace or ():
        dims(each, "B I J", name="trace", B=B, I=I, J=J)
    below = length(lower) if lower_activations is None else lower_activations
    above = length(poses) if activations is None else activations
    return Seen("", lower, below, poses, above, couplings, trace, normalise=normalise)


def observe(model: nn.Module, images: Tensor, *, adapter: Adapter | None = None, trace: bool = False) -> tuple[Any, list[Seen]]:
    """Run ``model`` on images, in evaluation mode; return what it returned and what its capsule layers did, lowest first.

    Args:
        model: with capsella's layers, or any that ``adapter`` knows.
        images: [B, …].
        adapter: for layers that are not capsella's.
        trace: keep the couplings of every iteration.

    Example:
        >>> import torch, capsella
        >>> _, layers = observe(capsella.create_model("capsnet_small"), torch.rand(2, 1, 28, 28))
        >>> [tuple(layer.couplings.shape) for layer in layers]
        [(2, 72, 10)]
    """
    return observe_in(lambda: model(images), model, len(images), adapter=adapter, trace=trace)


def observe_in(
    act: Callable[[], T], model: nn.Module, images: int, *, adapter: Adapter | None = None, trace: bool = False
) -> tuple[T, list[Seen]]:
    """Do something that runs ``model`` once, in evaluation mode; return what came of it and what its capsule layers did.

    Args:
        act: such as ``gradient_norms``, for which a second run would be wasted.
        model: as for ``observe``.
        images: on how many it is run.
        adapter: as for ``observe``.
        trace: as for ``observe``.
    """
    seen: list[Seen] = []
    with evaluating(model), (adapter or OwnLayers()).watching(model, seen, trace=trace):
        output = act()
    if not seen:
        raise ValueError("model has no capsule layer that ran; expected capsella's layers, or an adapter (ForeignLayers)")
    return output, [_unfolded(each, images) for each in seen]


def _parts(result: Routed) -> tuple[Tensor, Tensor, Tensor | None, tuple[Tensor, ...] | None]:
    return result.poses, result.activations, result.couplings, result.trace


def _unfolded(seen: Seen, images: int) -> Seen:
    """Put the windows of a convolution, which were folded into the batch, side by side."""
    if len(seen.poses) == images:
        return seen

    def side_by_side(tensor: Tensor) -> Tensor:
        return rearrange(tensor, "(b l) m ... -> b (l m) ...", b=images)

    return Seen(
        seen.name,
        side_by_side(seen.lower),
        side_by_side(seen.lower_activations),
        side_by_side(seen.poses),
        side_by_side(seen.activations),
        None if seen.couplings is None else side_by_side(seen.couplings),
        None if seen.trace is None else tuple(side_by_side(each) for each in seen.trace),
        len(seen.poses) // images,
        seen.normalise,
    )
