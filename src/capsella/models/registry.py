"""Models by name: builders take flat arguments, presets are dicts of numbers."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from capsella.errors import check_choice, check_count, check_counts, check_flag, check_number, check_options
from capsella.functional.patches import as_pair
from capsella.models.base import Model
from capsella.nn import init as initialisation

_SIZES = ("image_size", "in_channels", "num_classes")


@dataclass(frozen=True)
class Entry:
    """A registered model.

    Attributes:
        name: registry name.
        build: takes image_size (height, width), in_channels, num_classes and its own options.
        paper: where it comes from.
        init: the initialisation it starts with.
        sizes: default image_size, in_channels and num_classes.
        presets: options that replace the builder's defaults.
    """

    name: str
    build: Callable[..., Model]
    paper: str
    init: str
    sizes: dict[str, int]
    presets: dict[str, Any] = field(default_factory=dict)

    @property
    def options(self) -> dict[str, Any]:
        """Options beside the sizes, with their defaults."""
        parameters = inspect.signature(self.build).parameters.values()
        return {p.name: p.default for p in parameters if p.name not in _SIZES} | self.presets

    def check(self, option: str, value: Any) -> None:
        """Raise unless ``value`` is of the type that the builder declares: ``"False"`` is no bool, 0 no size."""
        kind = typing.get_type_hints(self.build)[option]
        kinds = set(typing.get_args(kind)) if isinstance(kind, types.UnionType) else {kind}
        if value is None and type(None) in kinds:
            return
        if kinds == {bool, str}:
            return  # which strings there are beside True and False only the builder knows
        if bool in kinds:
            check_flag(option, value)
        elif float in kinds:
            check_number(option, value)
        elif int in kinds and (kinds <= {int, type(None)} or isinstance(value, int)):
            check_count(option, value)
        elif str in kinds and not isinstance(value, str):
            raise TypeError(f"{option}={value!r} has type {type(value).__name__}; expected a string")
        elif str not in kinds:
            check_counts(option, value)


_MODELS: dict[str, Entry] = {}


def register_model(
    name: str, *, paper: str, init: str, image_size: int = 28, in_channels: int = 1, num_classes: int = 10
) -> Callable[[Callable[..., Model]], Callable[..., Model]]:
    """Enrol the decorated builder under ``name``."""

    def wrap(build: Callable[..., Model]) -> Callable[..., Model]:
        sizes = {"image_size": image_size, "in_channels": in_channels, "num_classes": num_classes}
        _add(Entry(name, build, paper, init, sizes))
        return build

    return wrap


def register_preset(name: str, of: str, *, paper: str | None = None, init: str | None = None, **options: Any) -> None:
    """Enrol a registered model under another name with other defaults."""
    base = entry(of)
    check_options(name, options, base.options)
    presets = base.presets | options
    _add(Entry(name, base.build, paper or base.paper, init or base.init, base.sizes, presets))


def _add(new: Entry) -> None:
    if new.name in _MODELS:
        raise ValueError(f"name={new.name!r} is registered already; choose another")
    check_choice("init", new.init, initialisation.names())
    _MODELS[new.name] = new


def entry(name: str) -> Entry:
    """Return a registered model's entry, or raise ``ValueError`` with the near matches."""
    check_choice("name", name, _MODELS)
    return _MODELS[name]


def list_models() -> list[str]:
    """List the registered models.

    Example:
        >>> "capsnet" in list_models()
        True
    """
    return sorted(_MODELS)


def create_model(
    name: str,
    *,
    image_size: int | tuple[int, int] | None = None,
    in_channels: int | None = None,
    num_classes: int | None = None,
    init: str | None = None,
    **options: Any,
) -> Model:
    """Build a model by name.

    Args:
        name: one of ``list_models()``.
        image_size: side of the images, or (height, width); 28 unless the model says otherwise.
        in_channels: 1 unless the model says otherwise.
        num_classes: 10 unless the model says otherwise.
        init: a named initialisation (``nn.init.names()``); the paper's own if None.
        **options: of the model; an unknown one is a ``TypeError``.

    Example:
        >>> import torch
        >>> model = create_model("capsnet_small")
        >>> model(torch.rand(2, 1, 28, 28)).scores.shape
        torch.Size([2, 10])
    """
    found = entry(name)
    check_options(name, options, found.options)
    sizes: dict[str, Any] = dict(found.sizes)
    given = {"image_size": image_size, "in_channels": in_channels, "num_classes": num_classes}
    sizes |= {key: value for key, value in given.items() if value is not None}
    check_count("in_channels", sizes["in_channels"])
    check_count("num_classes", sizes["num_classes"])
    sizes["image_size"] = as_pair("image_size", sizes["image_size"])
    for key, value in options.items():
        found.check(key, value)
    resolved = found.options | options
    model = found.build(**sizes, **resolved)
    scheme = init or found.init
    initialisation.initialise_(model, scheme)
    model.config = {"name": name, **sizes, **resolved, "init": scheme}
    return model
