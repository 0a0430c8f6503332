"""Figures of a result, by name: what stands beside a printed number."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from capsella.papers.results import Result

LEARNS = 2.0
"""A net has begun to learn once it is right so many times as often as guessing would be."""
LAYER_FIGURES = {
    "alive": ("Capsules alive", "count"),
    "dyr": ("Rate of routing dynamics, among the living", "ratio"),
    "dys": ("Routing dynamics in live targets", "count"),
    "dyr_literal": ("Rate of routing dynamics, among all", "ratio"),
    "dys_literal": ("Routing dynamics in targets, dead or not", "count"),
    "cnm": ("Mean length of a capsule", "ratio"),
    "cns": ("Sum of the capsules' lengths", "count"),
    "car": ("Share of the capsules that are active", "ratio"),
    "cas": ("Capsules that are active", "count"),
    "cdr": ("Share of the capsules that are dead", "ratio"),
    "cds": ("Capsules that are dead", "count"),
}
"""Figures of a capsule layer (mitterreiter2023), and their units."""

# measures that examine a net layer by layer, a recipe has one of them.
_EXAMINATIONS = ("mitterreiter2023.dynamics", "mitterreiter2023.look", "mitterreiter2023.cured")
# readings in a row: a lucky one is no start.
_ROW = 4
# of a training, and steps at the most: what counts as early.
_EARLY, _EARLY_STEPS = 1 / 3, 20_000
# readings at the end of a curve: what counts as late.
_LATE = 5


def final(result: Result) -> float | None:
    """Return the accuracy on the test images at the end; None of a run that came to none."""
    if result.status == "non-finite":
        return None
    if result.test is not None:
        return float(result.test["accuracy"])
    found = result.history["validation"]
    return None if not found or found[-1] is None else float(found[-1])


def best(result: Result) -> float | None:
    """Return the highest accuracy on the test images after any epoch; it is chosen by these images."""
    found = [value for value in result.history["validation"] if value is not None]
    return float(max(found)) if found else None


def training(result: Result) -> float | None:
    """Return the accuracy on the training batches of the last epoch."""
    found = result.history["accuracy"]
    return float(found[-1]) if found else None


def training_late(result: Result) -> float | None:
    """Return the accuracy on the training batches over the last readings of the curve, each since the one before.

    Where an epoch is the whole training, the accuracy of the last epoch counts the start in, too.
    """
    found = result.curve["accuracy"][-_LATE:]
    return statistics.fmean(found) if found and result.status != "non-finite" else None


def error(result: Result) -> float | None:
    """Return the share of the test images that is wrong at the end; None of a run that came to none."""
    found = final(result)
    return None if found is None else 1 - found


def best_error(result: Result) -> float | None:
    """Return the lowest error on the test images after any epoch; it is chosen by these images."""
    found = best(result)
    return None if found is None else 1 - found


def early_error(result: Result) -> float | None:
    """Return the mean error on the test images over the first third of the steps, at most the first 20,000."""
    last = min(_EARLY * result.steps, _EARLY_STEPS)
    pairs = zip(result.history["step"], result.history["validation"], strict=True)
    found = [1 - accuracy for step, accuracy in pairs if step <= last and accuracy is not None]
    return statistics.fmean(found) if found else None


def wrong_early(result: Result) -> float | None:
    """Return the mean share of images whose longest capsule is wrong, over the looks of the first epoch (yang2021)."""
    seen, epoch = dig(result.measured, "yang2021.early", "all"), dig(result.measured, "yang2021.early", "steps_an_epoch")
    found = [look["last"] for look in seen or [] if 0 < look["step"] <= (epoch or 0)]
    return statistics.fmean(found) if found else None


def clamping_costs(result: Result) -> float | None:
    """Return what a net loses where its negative couplings are set to zero (yang2021)."""
    before, after = (measured("yang2021.couplings", part)(result) for part in ("accuracy", "clamped"))
    return None if before is None or after is None else before - after


def pairs_error(result: Result) -> float | None:
    """Return the error on the many test pairs of MultiMNIST (yang2021)."""
    found = measured("yang2021.pairs", "accuracy")(result)
    return None if found is None or result.status == "non-finite" else 1 - found


def measured(*keys: str | int) -> Callable[[Result], float | None]:
    """Return what reads a figure of a measure, None where it was not measured.

    Args:
        *keys: of the measure, and of the parts of what it found.
    """

    def read(result: Result) -> float | None:
        found = dig(result.measured, *keys)
        return None if found is None else float(found)

    return read


def examined(result: Result) -> dict[str, Any] | None:
    """Return what was found of a net by whichever examination its recipe has (mitterreiter2023).

    None where it has none, and of a net that answers with what is no number: nothing that is counted of it means anything.
    """
    found = next((dict(result.measured[name]) for name in _EXAMINATIONS if result.measured.get(name)), None)
    return None if found is None or found.get("non_finite") else found


def of_layer(number: int, figure: str) -> Callable[[Result], float | None]:
    """Return what reads a figure of a capsule layer, counted from 1 (mitterreiter2023); ``alive``: not dead."""

    def read(result: Result) -> float | None:
        layer = dig(examined(result), "layers", number - 1)
        if layer is None:
            return None
        found = layer["capsules"] - layer["cds"] if figure == "alive" else layer.get(figure)
        return None if found is None else float(found)

    return read


def dead_hidden(result: Result) -> float | None:
    """Return the share of dead capsules among those between the primary and the class capsules (mitterreiter2023)."""
    hidden = (dig(examined(result), "layers") or [])[1:-1]
    return sum(layer["cds"] for layer in hidden) / sum(layer["capsules"] for layer in hidden) if hidden else None


def affine_accuracy(result: Result) -> float | None:
    """Return the accuracy on the images that a net was examined on (mitterreiter2023)."""
    found = dig(examined(result), "accuracy")
    return None if found is None else float(found)


def dynamics(result: Result) -> float | None:
    """Return the mean rate of routing dynamics over the layers that have one (mitterreiter2023)."""
    rates = [layer["dyr"] for layer in dig(examined(result), "layers") or [] if layer["dyr"] is not None]
    return statistics.fmean(rates) if rates else None


def generated_early(result: Result) -> float | None:
    """Return the mean error on what AC-GAN draws after its first three epochs (chen2019)."""
    found = [READINGS[f"generated{epoch}"](result) for epoch in (1, 2, 3)]
    known = [value for value in found if value is not None]
    return statistics.fmean(known) if len(known) == len(found) else None


def clean(result: Result) -> float | None:
    """Return the accuracy on test images that were standardised as the training images were (peer2022)."""
    found = dig(result.measured, "peer2022.clean", "accuracy")
    return None if found is None or result.status == "non-finite" else float(found)


def affine(name: str) -> Callable[[Result], float | None]:
    """Return what reads the accuracy on a reading of AffNIST's test images, on all versions or on a few (gu2021)."""

    def read(result: Result) -> float | None:
        found = [dig(result.measured, f"gu2021.{measure}", name, "accuracy") for measure in ("affine", "affine_few")]
        known = [] if result.status == "non-finite" else [float(value) for value in found if value is not None]
        return known[0] if known else None

    return read


def stopped(result: Result) -> float | None:
    """Return the epochs after which enough test images were right; infinity where they never were (gu2021)."""
    if dig(result.plan, "train", "target_accuracy") is None:
        return None
    return float(len(result.history["epoch"])) if result.status == "reached" else float("inf")


def starts(result: Result, classes: int = 10) -> float | None:
    """Return the step at which learning starts; infinity where it does not.

    It is the first of four readings in a row of the training accuracy that lie above ``LEARNS`` times what guessing gives.
    """
    steps, accuracies = result.curve["step"], result.curve["accuracy"]
    if not steps:
        return None
    above = [accuracy >= LEARNS / classes for accuracy in accuracies]
    starts = (step for place, step in enumerate(steps) if len(above[place:]) >= _ROW and all(above[place : place + _ROW]))
    return float(next(starts, float("inf")))


@dataclass(frozen=True)
class Reading:
    """A figure of a result.

    Attributes:
        read: from a result to the figure, None where it has none.
        says: what it is, in words.
        unit: ``"%"`` for shares, which are read as such and written as percentages.
        best: the reading that has the same of the best epoch; empty where there is none.
    """

    read: Callable[[Result], float | None]
    says: str
    unit: str = "%"
    best: str = ""

    def __call__(self, result: Result) -> float | None:
        """Read it."""
        return self.read(result)


READINGS: dict[str, Reading] = {
    "final": Reading(final, "Accuracy on the test images at the end", best="best"),
    "best": Reading(best, "Highest accuracy on the test images after any epoch"),
    "error": Reading(error, "Error on the test images at the end", best="best_error"),
    "best_error": Reading(best_error, "Lowest error on the test images after any epoch"),
    "training": Reading(training, "Accuracy on the training batches of the last epoch"),
    "training_late": Reading(training_late, "Accuracy on the last training batches"),
    "clean": Reading(clean, "Accuracy on the test images at the end, standardised as the training images are"),
    "starts": Reading(starts, "The step at which learning starts", "steps"),
    "early_error": Reading(early_error, "Mean error on the test images early in the training"),
    "pairs_error": Reading(pairs_error, "Error on 100,000 pairs of test digits at the end"),
    "misread": Reading(measured("yang2021.drawn", "beside", "misread"), "Drawings that are taken for another class"),
    "negative": Reading(measured("yang2021.couplings", "negative"), "Share of the couplings that are negative"),
    "near_zero": Reading(measured("yang2021.couplings", "near_zero"), "Share of the couplings next to nothing"),
    "clamping_costs": Reading(clamping_costs, "Accuracy that is lost without negative couplings"),
    "wrong_early": Reading(wrong_early, "Share of images whose longest capsule is wrong"),
    "affnist": Reading(affine("affnist"), "Accuracy on AffNIST's test images"),
    "affnist_mitterreiter": Reading(affine("affnist_mitterreiter"), "Accuracy on AffNIST as mitterreiter2023 makes it"),
    "affnist_literal": Reading(affine("affnist_literal"), "Accuracy on AffNIST as gu2021's words describe it"),
    "stopped": Reading(stopped, "Epochs until enough test images were right", "epochs"),
    **{
        f"compact_{factor}": Reading(measured("gu2021.compactness", factor, "forward"), "Compactness score", "nats")
        for factor in ("rotation", "shift_x", "shift_y", "scale", "shear_x", "shear_y")
    },
    **{
        f"generated{epoch}": Reading(
            measured("chen2019.generated", f"error_epoch{epoch}"), f"Error on what AC-GAN draws after epoch {epoch}"
        )
        for epoch in (1, 2, 3, 4, 5)
    },
    "generated_early": Reading(generated_early, "Mean error on what AC-GAN draws after epochs 1 to 3"),
    "blackbox": Reading(measured("chen2019.blackbox", "main", "accuracy"), "Accuracy under FGSM from LeNet, 8 of 255"),
    "unscaled": Reading(measured("chen2019.blackbox", "unscaled", "accuracy"), "Accuracy under FGSM from LeNet, ±8 unscaled"),
    "twice": Reading(
        measured("chen2019.blackbox", "twice", "accuracy"), "Accuracy under FGSM from LeNet, divided by 255 twice"
    ),
    "universal": Reading(
        measured("chen2019.whitebox", "universal-main", "accuracies", -1), "Accuracy under a universal perturbation, 8 of 255"
    ),
    "universal3": Reading(
        measured("chen2019.whitebox", "universal-0.3", "accuracies", -1), "Accuracy under a universal perturbation, 0.3"
    ),
    "fgsm": Reading(measured("chen2019.whitebox", "own", "accuracy"), "Accuracy under FGSM from the net itself, 8 of 255"),
    "zero_images": Reading(measured("chen2019.whitebox", "own", "zero_images"), "Share of images whose gradient is zero"),
    "zero_pixels": Reading(measured("chen2019.whitebox", "own", "zero_pixels"), "Share of the gradient's values that are zero"),
    "zero_pixels_seeing": Reading(
        measured("chen2019.whitebox", "difference", "zero_pixels"),
        "Share of the values that are zero, of the gradient of the difference of scores",
    ),
    "coupling_sum": Reading(
        measured("chen2019.couplings", "over_classes", "mean"), "Mean sum of a capsule's couplings over the classes", "ratio"
    ),
    "affine": Reading(affine_accuracy, "Accuracy on the images that the net is diagnosed on"),
    "dynamics": Reading(dynamics, "Rate of routing dynamics, mean over the layers", "ratio"),
    "dead_hidden": Reading(dead_hidden, "Share of the hidden capsules that are dead"),
    "growth_n": Reading(
        measured("mitterreiter2023.growth", "n", "exponents", "rba_seconds"), "Power of n by which the time grows", "ratio"
    ),
    **{
        f"{figure}{number}": Reading(of_layer(number, figure), f"{says}, layer {number}", unit)
        for number in (1, 2, 3, 4, 5)
        for figure, (says, unit) in LAYER_FIGURES.items()
    },
    "seconds": Reading(measured("yang2021.timing", "ours", "seconds"), "Time of 100 steps", "s"),
    "reference_seconds": Reading(measured("yang2021.timing", "reference", "seconds"), "Time of 100 steps", "s"),
}


def dig(content: Any, *keys: str | int) -> Any:
    """Return a part of nested lists and dictionaries; None where it is not there.

    Example:
        >>> dig({"a": [{"b": 1}]}, "a", 0, "b"), dig({"a": []}, "a", 0)
        (1, None)
    """
    for key in keys:
        try:
            content = content[key]
        except (KeyError, IndexError, TypeError):
            return None
    return content
