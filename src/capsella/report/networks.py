"""What every page says of trained networks: their kinds and how they learned."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeAlias

from capsella.report.plots import Series, curves
from capsella.report.values import mean_and_spread

KINDS = ("capsule net", "ConvNet")
"""The two kinds that are compared."""

Curve: TypeAlias = tuple[tuple[float, float, float], ...]
"""Points (images seen, training loss, accuracy in training), in the order of training."""


def mean_curve(runs: Sequence[Curve], column: int, *, label: str) -> Series:
    """Return the mean and the spread of several runs at the numbers of images that all of them have.

    Args:
        runs: one curve per seed.
        column: 1 for the loss, 2 for the accuracy.
        label: of the result.
    """
    # a point that is not finite belongs to a run that broke off: nothing can be drawn there.
    points = [{point[0]: point[column] for point in run if math.isfinite(point[column])} for run in runs]
    shared = sorted(set.intersection(*map(set, points)))
    if not shared:
        raise ValueError(f"the curves of {label!r} have no number of images in common; expected points at the same numbers")
    found = [mean_and_spread([run[place] for run in points]) for place in shared]
    spread = tuple(spread for _, spread in found if spread is not None)
    return Series(label, tuple(shared), tuple(mean for mean, _ in found), spread or None)


def learning_plots(networks: Sequence[tuple[str, Sequence[Curve]]]) -> list[str]:
    """Draw accuracy and loss against images seen, one line per network, as SVG; nothing where no network has a curve.

    Args:
        networks: name, and one curve per seed.
    """
    drawn = [(name, [run for run in runs if run]) for name, runs in networks]
    drawn = [(name, runs) for name, runs in drawn if runs]
    if not drawn:
        return []
    names = ", ".join(name for name, _ in drawn)
    accuracies = [mean_curve(runs, 2, label=name) for name, runs in drawn]
    losses = [mean_curve(runs, 1, label=name) for name, runs in drawn]
    return [
        curves(
            accuracies,
            label=f"Accuracy in training against images seen: {names}",
            x_label="images seen",
            y_label="accuracy in training",
            is_share=True,
        ),
        curves(
            losses,
            label=f"Training loss against images seen: {names}",
            x_label="images seen",
            y_label="training loss",
            is_log=True,
        ),
    ]
