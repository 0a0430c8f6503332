"""Curves: what was written down while a run was trained, as plots that a page can draw."""

from __future__ import annotations

import math
from typing import Any

from capsella.web.curves import MOST_POINTS, plots


def log(step: int, **figures: Any) -> dict[str, Any]:
    return {"event": "log", "step": step, "images": 10 * step, **figures}


def test_training_and_held_out_images_stand_in_one_plot() -> None:
    events = [
        log(1, loss=2.0, accuracy=0.1),
        log(2, loss=1.0, accuracy=0.4),
        {"event": "epoch", "images": 20, "validation": {"accuracy": 0.35, "loss": 1.5}},
    ]
    accuracy, loss = plots(events)
    assert [(curve.name, curve.x, curve.y) for curve in accuracy.curves] == [
        ("in training", [10, 20], [0.1, 0.4]),
        ("held-out images", [20], [0.35]),
    ]
    assert (accuracy.is_share, accuracy.x_label) == (True, "images seen")
    assert loss.curves[0].y == [2, 1]


def test_nothing_written_down_is_no_plot() -> None:
    assert plots([]) == []
    assert plots([{"event": "epoch", "images": 3}, {"event": "other"}, log(1)]) == []


def test_what_is_no_number_is_left_out() -> None:
    events = [log(1, loss=math.nan, accuracy=0.1), log(2, loss=None, accuracy=0.2), log(3, loss=3.0, accuracy=math.inf)]
    accuracy, loss = plots(events)
    assert accuracy.curves[0].x == [10, 20]
    assert loss.curves[0].x == [30]


def test_a_long_line_keeps_its_ends() -> None:
    accuracy, _ = plots([log(k, loss=1.0, accuracy=k / 3000) for k in range(1, 3001)])
    (line,) = accuracy.curves
    assert len(line.x) == MOST_POINTS
    assert (line.x[0], line.x[-1]) == (10, 30_000)
    assert line.x == sorted(set(line.x))


def test_watched_layers_are_lines() -> None:
    looks = [
        {
            "event": "watch",
            "step": step,
            "layer1/capsules": 8,
            "layer1/dead": 0.25 * step,
            "layer2/capsules": 4,
            "layer2/dead": 0.0,
        }
        for step in (1, 2, 3)
    ]
    (dead,) = plots(looks)
    assert dead.title == "Dead capsules"
    assert [(curve.name, curve.x, curve.y) for curve in dead.curves] == [
        ("layer 1", [1, 2, 3], [0.25, 0.5, 0.75]),
        ("layer 2", [1, 2, 3], [0, 0, 0]),
    ]
