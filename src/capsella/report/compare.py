"""The page that answers "do capsules help on my data": several networks, several seeds, one table and a rule."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from capsella.errors import check_choice
from capsella.report.networks import KINDS, Curve, learning_plots
from capsella.report.page import render
from capsella.report.plots import Series, bars, image_uri
from capsella.report.values import Values, class_indices, count, mean_and_spread, percent, unit_array
from capsella.report.values import memory as in_bytes

LEAST_SEEDS = 3
"""With fewer seeds no difference is called clear."""

HEADER = ("model", "kind", "parameters", "seeds", "accuracy", "affine accuracy", "images/s", "memory a step")


@dataclass(frozen=True)
class ComparisonRow:
    """One network, trained once per seed.

    Attributes:
        model: registry name.
        kind: ``"capsule net"`` or ``"ConvNet"``.
        parameters: number of them.
        seeds: of the runs.
        accuracies: on the test images, one per seed.
        affine_accuracies: on transformed test images, one per seed, or none.
        images_per_second: in training, one per seed.
        memory: bytes of a training step, or None where they are not known.
        curves: one per seed, or none.
    """

    model: str
    kind: str
    parameters: int
    seeds: tuple[int, ...]
    accuracies: tuple[float, ...]
    affine_accuracies: tuple[float, ...]
    images_per_second: tuple[float, ...]
    memory: int | None
    curves: tuple[Curve, ...] = ()

    def __post_init__(self) -> None:
        check_choice("kind", self.kind, KINDS)
        if not self.seeds:
            raise ValueError(f"seeds=() of {self.model!r} names no run; expected at least one seed")
        for name in ("accuracies", "affine_accuracies", "images_per_second", "curves"):
            number, may_miss = len(getattr(self, name)), name in ("affine_accuracies", "curves")
            if number != len(self.seeds) and not (may_miss and number == 0):
                wanted = f"{len(self.seeds)}, one per seed{', or none' if may_miss else ''}"
                raise ValueError(f"{name} of {self.model!r} has {number} values; expected {wanted}")


@dataclass(frozen=True, eq=False)
class AffineExamples:
    """Test images beside their transformed versions.

    Attributes:
        images: [n, C, H, W] from 0 to 1.
        transformed: [n, C, H', W'] from 0 to 1.
        labels: [n].
    """

    images: Values
    transformed: Values
    labels: Values


@dataclass(frozen=True, eq=False)
class ComparisonStory:
    """Everything that the page shows.

    Attributes:
        data: name of the data set.
        rows: one per network.
        epochs: passes over the training images, the same for all.
        images_seen: in the training of one network, the same for all.
        class_names: one per class.
        facts: versions, device, digests, commit.
        examples: of the affine test, or None.
        commands: what to try next, and what it does.
    """

    data: str
    rows: tuple[ComparisonRow, ...]
    epochs: int
    images_seen: int
    class_names: tuple[str, ...]
    facts: dict[str, str]
    examples: AffineExamples | None = None
    commands: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Verdict:
    """What the rule says of two networks.

    Attributes:
        clear: whether one is called better.
        headline: the verdict.
        reason: the figures that it rests on.
    """

    clear: bool
    headline: str
    reason: str


def verdict(first: str, firsts: Sequence[float], second: str, seconds: Sequence[float]) -> Verdict:
    """Compare the accuracies of two networks.

    A difference of the means is called clear if it exceeds the sum of the two sample standard deviations and each network
    has at least ``LEAST_SEEDS`` runs.

    Args:
        first: name of one network.
        firsts: its accuracies, one per seed.
        second: name of the other.
        seconds: its accuracies.

    Example:
        >>> found = verdict("capsnet", [0.90, 0.91, 0.92], "convnet", [0.95, 0.95, 0.95])
        >>> found.clear, found.headline
        (True, 'convnet is clearly ahead of capsnet.')
    """
    (mean_a, spread_a), (mean_b, spread_b) = mean_and_spread(firsts), mean_and_spread(seconds)
    figures = f"{percent(*firsts)} against {percent(*seconds)}"
    same = f"{first} and {second} are not distinguishable with these runs."
    if spread_a is None or spread_b is None or min(len(firsts), len(seconds)) < LEAST_SEEDS:
        return Verdict(False, same, f"{figures}; with fewer than {LEAST_SEEDS} seeds each, no difference is called clear.")
    gap, noise = abs(mean_a - mean_b), spread_a + spread_b
    points = f"the difference of the means, {100 * gap:.2f} points,"
    if not gap > noise:
        return Verdict(False, same, f"{figures}; {points} does not exceed the sum of the spreads, {100 * noise:.2f}.")
    ahead, behind = (first, second) if mean_a > mean_b else (second, first)
    reason = f"{figures}; {points} exceeds the sum of the spreads, {100 * noise:.2f}."
    return Verdict(True, f"{ahead} is clearly ahead of {behind}.", reason)


def verdicts(rows: Sequence[ComparisonRow], *, affine: bool = False) -> list[Verdict]:
    """Compare every capsule net with every ConvNet, or all pairs where there is one kind only.

    Args:
        rows: one per network.
        affine: by the accuracy on transformed images, of the networks that have one.
    """
    results = [(row, row.affine_accuracies if affine else row.accuracies) for row in rows]
    found = [(row, values) for row, values in results if values]
    pairs = [pair for pair in itertools.combinations(found, 2) if pair[0][0].kind != pair[1][0].kind]
    pairs = pairs or list(itertools.combinations(found, 2))
    # the capsule net first, whatever the order of the rows.
    ordered = [sorted(pair, key=lambda one: KINDS.index(one[0].kind)) for pair in pairs]
    return [verdict(a.model, firsts, b.model, seconds) for (a, firsts), (b, seconds) in ordered]


def comparison_table(rows: Sequence[ComparisonRow]) -> list[tuple[str, ...]]:
    """Return a row of text per network, under the names of ``HEADER``."""
    return [
        (
            row.model,
            row.kind,
            count(row.parameters),
            str(len(row.seeds)),
            percent(*row.accuracies),
            percent(*row.affine_accuracies),
            count(*row.images_per_second),
            in_bytes(row.memory),
        )
        for row in rows
    ]


def comparison_page(story: ComparisonStory) -> str:
    """Return the page as one HTML text that asks for no other file."""
    if not story.rows:
        raise ValueError("rows=() has nothing to compare; expected at least one network")
    return render(
        "compare.html",
        data=story.data,
        header=HEADER,
        rows=comparison_table(story.rows),
        verdicts=verdicts(story.rows),
        affine_verdicts=verdicts(story.rows, affine=True),
        least_seeds=LEAST_SEEDS,
        plots=learning_plots([(row.model, row.curves) for row in story.rows]),
        has_spread=any(len(row.seeds) > 1 for row in story.rows),
        affine_plot=_affine_plot(story.rows),
        examples=[] if story.examples is None else _examples(story.examples, story.class_names),
        epochs=story.epochs,
        images_seen=count(story.images_seen),
        seeds=[(row.model, ", ".join(map(str, row.seeds))) for row in story.rows],
        classes=len(story.class_names),
        facts=story.facts,
        commands=story.commands,
    )


def _affine_plot(rows: Sequence[ComparisonRow]) -> str | None:
    measured = [row for row in rows if row.affine_accuracies]
    if not measured:
        return None
    names = [row.model for row in measured]
    series = [
        _bars("test images", [row.accuracies for row in measured]),
        _bars("transformed test images", [row.affine_accuracies for row in measured]),
    ]
    label = f"Accuracy on test images as they are and transformed: {', '.join(names)}"
    return bars(names, series, label=label, x_label="accuracy")


def _bars(label: str, values: Sequence[Sequence[float]]) -> Series:
    found = [mean_and_spread(each) for each in values]
    has_spread = any(spread is not None for _, spread in found)
    return Series(
        label, (), tuple(mean for mean, _ in found), tuple(spread or 0.0 for _, spread in found) if has_spread else None
    )


def _examples(examples: AffineExamples, class_names: Sequence[str]) -> list[dict[str, Any]]:
    images = unit_array(examples.images, "n C H W", name="examples.images")
    n = len(images)
    transformed = unit_array(examples.transformed, "n C H W", name="examples.transformed", n=n)
    labels = class_indices(examples.labels, name="examples.labels", classes=len(class_names), n=n)
    return [
        {"seen": image_uri(images[k]), "transformed": image_uri(transformed[k]), "label": class_names[labels[k]]}
        for k in range(n)
    ]
