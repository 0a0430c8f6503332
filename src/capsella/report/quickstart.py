"""The page a newcomer sees first: two small networks, and a look inside the one with capsules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from capsella.errors import check_choice
from capsella.report.couplings import CouplingView, coupling_context
from capsella.report.networks import KINDS, Curve, learning_plots
from capsella.report.page import render
from capsella.report.plots import image_uri
from capsella.report.values import Values, class_indices, count, duration, percent, signed, unit_array


@dataclass(frozen=True)
class TrainedNetwork:
    """One network and what came of its training.

    Attributes:
        name: registry name of the model.
        kind: ``"capsule net"`` or ``"ConvNet"``.
        parameters: number of them.
        epochs: passes over the training images.
        accuracy: share of the test images that it got right.
        accuracy_affine: the same on test images that were moved, turned, scaled or sheared; None if not measured.
        seconds: that training took.
        images_per_second: in training.
        curve: how it learned; may be empty.
    """

    name: str
    kind: str
    parameters: int
    epochs: int
    accuracy: float
    accuracy_affine: float | None
    seconds: float
    images_per_second: float
    curve: Curve = ()


@dataclass(frozen=True, eq=False)
class Examples:
    """Test images and what the capsule net made of them.

    Attributes:
        images: [n, C, H, W] from 0 to 1.
        labels: [n].
        predictions: [n], the class of the longest capsule.
        reconstructions: [n, C, H, W], drawn from that capsule alone.
    """

    images: Values
    labels: Values
    predictions: Values
    reconstructions: Values


@dataclass(frozen=True, eq=False)
class Dimensions:
    """What each value of a class capsule does to the drawing.

    Attributes:
        label: class of the capsule.
        image: [C, H, W] from 0 to 1, the image that it saw.
        offsets: what is added to a value, from the least to the largest.
        frames: [D, len(offsets), C, H, W], the drawing with one value changed by one offset.
    """

    label: int
    image: Values
    offsets: tuple[float, ...]
    frames: Values


@dataclass(frozen=True, eq=False)
class QuickstartStory:
    """Everything that the page shows.

    Attributes:
        networks: at least one.
        examples: what the capsule net sees and what it draws again.
        dimensions: what the values of a class capsule do.
        couplings: of one image.
        mistakes: test images that it got wrong; may be empty.
        class_names: one per class.
        facts: versions, device, seed, digest of the data, commit.
        commands: what to try next, and what it does.
        data: name of the data set.
    """

    networks: tuple[TrainedNetwork, ...]
    examples: Examples
    dimensions: Dimensions
    couplings: CouplingView
    mistakes: Examples
    class_names: tuple[str, ...]
    facts: dict[str, str]
    commands: tuple[tuple[str, str], ...]
    data: str = "MNIST"


def quickstart_page(story: QuickstartStory) -> str:
    """Return the page as one HTML text that asks for no other file."""
    if not story.networks:
        raise ValueError("networks=() has nothing to show; expected at least one trained network")
    for network in story.networks:
        check_choice("kind", network.kind, KINDS)
    return render(
        "quickstart.html",
        data=story.data,
        networks=[_card(network) for network in story.networks],
        sentences=accuracy_sentences(story.networks),
        examples=_pictures(story.examples, story.class_names, name="examples"),
        dimensions=_dimensions(story.dimensions, story.class_names),
        couplings=coupling_context(story.couplings, story.class_names),
        mistakes=_pictures(story.mistakes, story.class_names, name="mistakes"),
        plots=learning_plots([(network.name, [network.curve]) for network in story.networks]),
        classes=len(story.class_names),
        facts=story.facts,
        commands=story.commands,
    )


def accuracy_sentences(networks: Sequence[TrainedNetwork]) -> list[str]:
    """Say in words how the networks compare, on the test images and, where all were tried, on transformed ones."""
    found = [_compare("the test images", [(network.name, network.accuracy) for network in networks])]
    affine = [(each.name, each.accuracy_affine) for each in networks if each.accuracy_affine is not None]
    if len(affine) == len(networks):
        found.append(_compare("test images that were moved, turned, scaled or sheared", affine))
    if len(networks) > 1:
        found.append("That is one run of each network: other seeds give other figures, and a small difference may turn round.")
    return found


def _compare(images: str, results: Sequence[tuple[str, float]]) -> str:
    ranked = sorted(results, key=lambda result: -result[1])
    (best, highest), (last, lowest) = ranked[0], ranked[-1]
    if len(ranked) == 1:
        return f"Of {images}, {best} got {percent(highest)} right."
    if percent(highest) == percent(lowest):
        return f"Of {images}, {' and '.join(name for name, _ in results)} got the same share right: {percent(highest)}."
    others = ", ".join(f"{name} {percent(accuracy)}" for name, accuracy in ranked[1:])
    gap = f"{100 * (highest - lowest):.2f} percentage points"
    between = "apart" if len(ranked) == 2 else f"between {best} and {last}"
    return f"Of {images}, {best} got {percent(highest)} right and {others}: {gap} {between}."


def _card(network: TrainedNetwork) -> dict[str, Any]:
    epochs = f"{network.epochs} epoch{'' if network.epochs == 1 else 's'} in {duration(network.seconds)}"
    rows = [("parameters", count(network.parameters)), ("trained for", epochs)]
    rows.append(("images per second", count(network.images_per_second)))
    if network.accuracy_affine is not None:
        rows.append(("of transformed images", percent(network.accuracy_affine)))
    return {"name": network.name, "kind": network.kind, "accuracy": percent(network.accuracy), "rows": rows}


def _pictures(examples: Examples, class_names: Sequence[str], *, name: str) -> list[dict[str, Any]]:
    images = unit_array(examples.images, "n C H W", name=f"{name}.images")
    n, J = len(images), len(class_names)
    drawn = unit_array(examples.reconstructions, "n C H W", name=f"{name}.reconstructions", n=n)
    labels = class_indices(examples.labels, name=f"{name}.labels", classes=J, n=n)
    predictions = class_indices(examples.predictions, name=f"{name}.predictions", classes=J, n=n)
    return [
        {
            "seen": image_uri(images[k]),
            "drawn": image_uri(drawn[k]),
            "label": class_names[labels[k]],
            "prediction": class_names[predictions[k]],
            "is_right": labels[k] == predictions[k],
        }
        for k in range(n)
    ]


def _dimensions(dimensions: Dimensions, class_names: Sequence[str]) -> dict[str, Any]:
    offsets = dimensions.offsets
    if not offsets or list(offsets) != sorted(set(offsets)):
        raise ValueError(f"offsets={offsets!r} is not in order; expected at least one number, each above the one before")
    frames = unit_array(dimensions.frames, "D offsets C H W", name="frames", offsets=len(offsets))
    (label,) = class_indices([dimensions.label], name="dimensions.label", classes=len(class_names))
    rest = int(np.argmin(np.abs(offsets)))
    return {
        "label": class_names[label],
        "image": image_uri(unit_array(dimensions.image, "C H W", name="dimensions.image")),
        "offsets": [signed(offset) for offset in offsets],
        "rest": rest,
        # these keep their column heads on a narrow screen.
        "heads": {0, rest, len(offsets) - 1},
        "frames": [[image_uri(frame) for frame in row] for row in frames],
    }
