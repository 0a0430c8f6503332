"""``capsella info``: what is installed, what would run, which models there are."""

from __future__ import annotations

import platform
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from capsella import __version__
from capsella.cli.mistakes import users_mistakes


def info(
    model: Annotated[str | None, typer.Argument(help="A model to describe; without one, all are listed.")] = None,
    image_size: Annotated[int | None, typer.Option(help="Side of the images, if not the model's default.")] = None,
    in_channels: Annotated[int | None, typer.Option(help="Channels of the images, if not the default.")] = None,
    num_classes: Annotated[int | None, typer.Option(help="Classes, if not the default.")] = None,
) -> None:
    """Show versions, devices, routing implementations and models, or one model's options and parameters."""
    console = Console(highlight=False)
    sizes = {"image_size": image_size, "in_channels": in_channels, "num_classes": num_classes}
    if model is None:
        given = [f"--{key.replace('_', '-')}" for key, value in sizes.items() if value is not None]
        with users_mistakes():
            if given:
                raise ValueError(f"{', '.join(given)} goes with a model: capsella info MODEL {given[0]} …")
        _environment(console)
        _implementations(console)
        _models(console)
    else:
        _describe(console, model, sizes)


def _environment(console: Console) -> None:
    import torch

    devices = [torch.cuda.get_device_name(k) for k in range(torch.cuda.device_count())] or ["no GPU"]
    console.print(f"capsella {__version__}, torch {torch.__version__}, Python {platform.python_version()}")
    console.print(f"devices: {', '.join(devices)}, {torch.get_num_threads()} CPU threads\n")


def _implementations(console: Console) -> None:
    from capsella import routing
    from capsella.routing.dispatch import candidates

    table = Table("routing", "from", "implementations, first choice first", title="Routing algorithms", title_justify="left")
    for name in routing.names():
        entries = candidates(name, "vote_and_route")
        table.add_row(name, routing.get(name).paper, ", ".join(entry.name for entry in entries))
    console.print(table)


def _models(console: Console) -> None:
    from capsella.models import entry, list_models

    table = Table("model", "from", "image", "classes", title="Models", title_justify="left")
    table.add_column("parameters", justify="right")
    for name in list_models():
        found, model = entry(name), _on_meta(name, {})
        channels, height, width = model.image_shape
        count = sum(parameter.numel() for parameter in model.parameters())
        table.add_row(name, found.paper, f"{channels}×{height}×{width}", str(model.num_classes), f"{count:,}")
    console.print(table)


def _describe(console: Console, name: str, sizes: dict[str, int | None]) -> None:
    with users_mistakes():
        model = _on_meta(name, sizes)
    config = Table("option", "value", title=name, title_justify="left")
    for key, value in model.config.items():
        config.add_row(key, str(value))
    console.print(config)
    parts = Table("part", "shape", title="Parameters", title_justify="left")
    parts.add_column("number", justify="right")
    for key, parameter in model.named_parameters():
        parts.add_row(key, " × ".join(map(str, parameter.shape)), f"{parameter.numel():,}")
    parts.add_section()
    parts.add_row("all", "", f"{sum(parameter.numel() for parameter in model.parameters()):,}")
    console.print(parts)


def _on_meta(name: str, sizes: dict[str, int | None]) -> Any:
    """Build a model without memory for its weights."""
    import torch

    from capsella.models import create_model

    with torch.device("meta"):
        return create_model(name, **sizes)  # type: ignore[arg-type]
