"""Made-up stories for the pages: seeded tensors of small sizes, and a reader of the pages' HTML."""

from __future__ import annotations

from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import torch
from torch import Tensor

from capsella.report import (
    AffineExamples,
    ComparisonRow,
    ComparisonStory,
    CouplingView,
    Dimensions,
    Examples,
    QuickstartStory,
    TrainedNetwork,
    grid_extent,
)

CLASSES = tuple("0123456789")
CURVE = ((1000, 0.5, 0.6), (2000, 0.2, 0.9), (3000, 0.1, 0.95))
GRID = (4, 4, 2)


def draw(*shape: int, seed: int = 0) -> Tensor:
    """Return numbers from 0 to 1."""
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed))


def make_examples(n: int, *, classes: int = 10, channels: int = 1, right: bool = True) -> Examples:
    labels = torch.arange(n) % classes
    shape = (n, channels, 12, 12)
    return Examples(draw(*shape, seed=1), labels, labels if right else (labels + 1) % classes, draw(*shape, seed=2))


def make_couplings(*, classes: int = 10, channels: int = 1) -> CouplingView:
    I = GRID[0] * GRID[1] * GRID[2]
    scores = torch.linspace(0.1, 0.9, classes)
    couplings = draw(I, classes, seed=3).softmax(dim=-1)
    image = draw(channels, 12, 12, seed=4)
    return CouplingView(image, 1 % classes, scores, couplings, draw(I, seed=5), GRID, grid_extent([(3, 1), (3, 2)], (4, 4)))


def make_dimensions(*, classes: int = 10, channels: int = 1) -> Dimensions:
    offsets = (-0.25, -0.1, 0.0, 0.1, 0.25)
    return Dimensions(3 % classes, draw(channels, 12, 12, seed=6), offsets, draw(4, len(offsets), channels, 12, 12, seed=7))


def quickstart_story(*, class_names: tuple[str, ...] = CLASSES, channels: int = 1, **changes: Any) -> QuickstartStory:
    sizes = {"classes": len(class_names), "channels": channels}
    story = QuickstartStory(
        networks=(
            TrainedNetwork("capsnet_small", "capsule net", 248736, 2, 0.9912, 0.701, 84.2, 1425.3, CURVE),
            TrainedNetwork("convnet_small", "ConvNet", 134906, 2, 0.9834, 0.683, 15.0, 8000.0, CURVE),
        ),
        examples=make_examples(6, **sizes),
        dimensions=make_dimensions(**sizes),
        couplings=make_couplings(**sizes),
        mistakes=make_examples(3, **sizes, right=False),
        class_names=class_names,
        facts={"torch": "2.13", "data": "0123456789abcdef" * 4},
        commands=(("capsella compare --data mnist", "repeat it with several seeds"),),
    )
    return replace(story, **changes)


def comparison_row(model: str = "capsnet_small", kind: str = "capsule net", **changes: Any) -> ComparisonRow:
    row = ComparisonRow(
        model=model,
        kind=kind,
        parameters=248736,
        seeds=(0, 1, 2),
        accuracies=(0.98, 0.99, 1.0),
        affine_accuracies=(0.70, 0.72, 0.74),
        images_per_second=(900.0, 1000.0, 1100.0),
        memory=3 << 20,
        curves=(CURVE, CURVE, tuple((x, 2 * loss, accuracy) for x, loss, accuracy in CURVE)),
    )
    return replace(row, **changes)


def comparison_story(**changes: Any) -> ComparisonStory:
    story = ComparisonStory(
        data="mnist",
        rows=(comparison_row(), comparison_row("convnet_small", "ConvNet", accuracies=(0.90, 0.91, 0.92))),
        epochs=2,
        images_seen=120000,
        class_names=CLASSES,
        facts={"torch": "2.13"},
        examples=AffineExamples(draw(4, 1, 12, 12, seed=8), draw(4, 1, 16, 16, seed=9), torch.arange(4)),
        commands=(("make run", "start over"),),
    )
    return replace(story, **changes)


class Reader(HTMLParser):
    """Collects a page's tags with their attributes, its text, and which tags are left open."""

    VOID = frozenset({"meta", "link", "img", "input", "br"})

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.words: list[str] = []
        self.open: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {key: value or "" for key, value in attrs}))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {key: value or "" for key, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            raise AssertionError(f"</{tag}> closes what is not open")

    def handle_data(self, data: str) -> None:
        if not {"style", "script"} & set(self.open[-1:]):
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    def every(self, tag: str) -> list[dict[str, str]]:
        return [attributes for name, attributes in self.tags if name == tag]
