"""What became of a run while it was trained, as plots for the page."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from capsella.analysis.training import over_training
from capsella.train.record import Event
from capsella.web.schemas import Curve, Plot

MOST_POINTS = 500
"""Of a line: more are no wider than a screen."""

# figures of a watched layer, with the name of their axis, whether they are shares, and whether they fall by powers of ten.
_WATCHED = (
    ("dead", "Dead capsules", "share of the layer", True, False),
    ("length", "Mean activation", "activation", False, False),
    ("dyr", "Dynamics of the couplings", "dyr", True, False),
    ("gradient", "Gradient at the capsules", "norm", False, True),
    ("weight_gradient", "Gradient at the weights", "norm", False, True),
)


def plots(events: Sequence[Event]) -> list[Plot]:
    """Return the plots of a run's events; none where nothing was written down.

    Example:
        >>> found = plots([{"event": "log", "step": k, "images": 64 * k, "loss": 1 / k, "accuracy": 0.5} for k in (1, 2)])
        >>> [(plot.title, plot.curves[0].x) for plot in found]
        [('Accuracy', [64.0, 128.0]), ('Loss', [64.0, 128.0])]
    """
    logs = [event for event in events if event.get("event") == "log"]
    epochs = [event for event in events if event.get("event") == "epoch" and isinstance(event.get("validation"), dict)]
    accuracy = [_curve("in training", ((event.get("images"), event.get("accuracy")) for event in logs))]
    accuracy += [_curve("held-out images", ((event.get("images"), event["validation"].get("accuracy")) for event in epochs))]
    loss = [_curve("in training", ((event.get("images"), event.get("loss")) for event in logs))]
    found = [
        _plot("Accuracy", "images seen", "share right", accuracy, is_share=True),
        _plot("Loss", "images seen", "loss", loss),
        *_watched(events),
    ]
    return [plot for plot in found if plot.curves]


def _watched(events: Iterable[Event]) -> list[Plot]:
    seen = over_training(events)
    if seen is None:
        return []
    steps, layers = seen["steps"], list(enumerate(seen["layers"], 1))
    return [
        _plot(
            title,
            "step",
            label,
            [_curve(f"layer {number}", zip(steps, layer[key], strict=True)) for number, layer in layers if key in layer],
            is_share=is_share,
            is_log=is_log,
        )
        for key, title, label, is_share, is_log in _WATCHED
    ]


def _plot(title: str, x: str, y: str, lines: list[Curve], *, is_share: bool = False, is_log: bool = False) -> Plot:
    drawn = [curve for curve in lines if curve.x]
    return Plot(title=title, x_label=x, y_label=y, is_share=is_share, is_log=is_log, curves=drawn)


def _curve(name: str, points: Iterable[tuple[float | None, float | None]]) -> Curve:
    kept = [(float(x), float(y)) for x, y in points if _is_number(x) and _is_number(y)]  # type: ignore[arg-type]
    if len(kept) > MOST_POINTS:
        # the first and the last among them.
        kept = [kept[round(k * (len(kept) - 1) / (MOST_POINTS - 1))] for k in range(MOST_POINTS)]
    return Curve(name=name, x=[x for x, _ in kept], y=[y for _, y in kept])


def _is_number(value: float | None) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)
