"""``capsella predict``: what a trained network sees in image files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from capsella.cli.mistakes import users_mistakes

_SHOWN = 3


def predict(
    run: Annotated[Path, typer.Argument(help="Folder of a run.")],
    images: Annotated[list[Path], typer.Argument(help="Image files.")],
    invert: Annotated[
        bool, typer.Option("--invert", help="Turn dark into light, for ink on paper and a net of MNIST.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print scores of all classes as JSON.")] = False,
) -> None:
    """Classify image files; they are scaled to the size that the network was trained on."""
    with users_mistakes():
        from capsella.train import Run

        loaded = Run.load(run)
        pixels = _read(loaded.config, images, invert=invert)
        scores = loaded.predict(pixels).scores
    names = loaded.config["data"]["train"]["class_names"]
    if as_json:
        named = [*names, *map(str, range(len(names), scores.shape[1]))]
        rows = [
            {"image": str(path), "scores": dict(zip(named, row, strict=True))}
            for path, row in zip(images, scores.tolist(), strict=True)
        ]
        typer.echo(json.dumps(rows, indent=1))
        return
    table = Table("image", "class", "score", "then")
    for path, row in zip(images, scores, strict=True):
        values, order = row.topk(min(_SHOWN, len(row)))
        ranked = [
            (names[index] if index < len(names) else str(index), value)
            for value, index in zip(values.tolist(), order.tolist(), strict=True)
        ]
        then = ", ".join(f"{name} {value:.3f}" for name, value in ranked[1:])
        table.add_row(escape(str(path)), escape(str(ranked[0][0])), f"{ranked[0][1]:.3f}", escape(then))
    Console(highlight=False).print(table)


def _read(config: dict[str, Any], paths: list[Path], *, invert: bool) -> Any:
    """Return the files as the network's input."""
    import torch

    from capsella.data.augment import NORMALISATIONS, Normalisation
    from capsella.data.folder import read_images

    data = config["data"]["train"]
    channels, height, width = data["image_shape"]
    scheme = data["options"].get("normalise", "unit")
    if scheme not in NORMALISATIONS or scheme == "none":
        raise ValueError(f"run was trained on {data['name']!r}, whose values are no grey levels; expected a net of images")
    for path in paths:
        if not path.is_file():
            raise ValueError(f"image={str(path)!r} is no file")
    pixels = torch.from_numpy(read_images(paths, (height, width), channels == 1))
    return Normalisation(scheme)(255 - pixels if invert else pixels)
