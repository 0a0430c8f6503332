"""What the bench of the explorer draws, asks and checks before it looks at the clock."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from explored import net

import capsella
from capsella.web import strokes as module
from capsella.web.explorer import Explorer
from capsella.web.server import serving
from capsella.web.strokes import MUST, connected, drawing, noise


def test_every_stroke_changes_the_drawing() -> None:
    images = drawing(net(), 60)
    assert len(images) == 60
    assert all(image.shape == (1, 28, 28) and image.dtype == torch.uint8 for image in images)
    assert all(not torch.equal(a, b) for a, b in itertools.pairwise(images))
    assert all(image.max() == 255 for image in images)


def test_noise_is_of_the_model_s_size() -> None:
    data = noise(capsella.create_model("capsnet_small", image_size=36, in_channels=3, num_classes=4), 6)
    assert (data.image_shape, len(data), data.num_classes) == ((3, 36, 36), 6, 4)


def test_answers_are_checked_against_the_network() -> None:
    first = net("first")
    with Explorer([first]) as explorer, serving(explorer) as url, connected(url) as ask:
        assert module.wrong(first, ask) == ""

        def other(path: str, body: Any) -> Any:
            return {"scores": [score + 0.2 for score in ask(path, body)["scores"]]}

        assert module.wrong(first, other) == "wrong: scores are 0.2 away from the network's own"
        with pytest.raises(RuntimeError, match=r"/api/runs/none/see answers with 404: .*unknown"):
            ask("/api/runs/none/see", {"scene": {"picture": {"kind": "test", "run": "first", "index": 0}}})


def test_a_stroke_must_be_answered_within_a_tenth_of_a_second() -> None:
    assert MUST == 0.1
