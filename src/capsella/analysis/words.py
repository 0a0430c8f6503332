"""A diagnosis in words: what is wrong, and what was measured beside it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from capsella.analysis.records import completed
from capsella.analysis.symptoms import FEW, Symptom, chosen_among, rests_on_couplings
from capsella.analysis.training import lives_in_words


def in_words(record: Mapping[str, Any], symptoms: Iterable[Symptom]) -> str:
    """Return a diagnosis as plain text: one paragraph for each symptom, then what was measured beside them."""
    record, symptoms = completed(record), list(symptoms)
    sizes = "/".join(str(layer["capsules"]) for layer in record["layers"])
    right = "" if record["accuracy"] is None else f", {record['accuracy']:.2%} right"
    lines = [f"{sizes} capsules, {_images(record['images'])}{right}", ""]
    diseases = [symptom for symptom in symptoms if not symptom.is_note]
    if not diseases:
        lines += [no_symptom(record), ""]
    # what several layers have in common is explained once.
    for key in dict.fromkeys(symptom.key for symptom in (*diseases, *symptoms)):
        alike = [symptom for symptom in symptoms if symptom.key == key]
        lines += [f"{'note: ' if symptom.is_note else ''}{symptom.says}" for symptom in alike]
        lines.append(f"  papers: {alike[0].papers}")
        if alike[0].tries:
            lines.append(f"  try: {'; '.join(alike[0].tries)}")
        lines += [f"  see: {alike[0].link}", ""]
    return "\n".join([*lines, *beside(record, symptoms)]).rstrip() + "\n"


def no_symptom(record: Mapping[str, Any]) -> str:
    """Return what is said where nothing was found, and not all was looked for."""
    return "no symptom was found" + (" in what was measured" if left_out(record) else "")


def beside(record: Mapping[str, Any], symptoms: Iterable[Symptom]) -> list[str]:
    """Return a sentence for everything that was measured, or left out, and that no symptom says."""
    record = completed(record)
    # figures of what is no number mean nothing; how it came to that may.
    found = [*swaps_in_words(record, symptoms), *costs(record), *left_out(record), *_compactness(record)]
    return ([] if record["non_finite"] else found) + (lives_in_words(record["training"]) if record["training"] else [])


def swaps_in_words(record: Mapping[str, Any], symptoms: Iterable[Symptom]) -> list[str]:
    """Return what other couplings do to the accuracy, unless a symptom says it."""
    swaps = record["routing_matters"]
    if swaps is None or any(symptom.key == "idle" for symptom in symptoms):
        return []
    of = f" of {swaps['images']:,} images" if "images" in swaps else ""
    is_static = any(symptom.key == "static" and not symptom.is_note for symptom in symptoms)
    rests = "; they move little from image to image, and yet the answers rest on them"
    return [
        f"couplings: {swaps['own']:.1%}{of} right with its own, {swaps['uniform']:.1%} with uniform ones, "
        f"{swaps['other']:.1%} with those of other images{rests if is_static and rests_on_couplings(record) else ''}"
    ]


def costs(record: Mapping[str, Any]) -> list[str]:
    """Return what routing takes beside attention, over the layers in which it was timed."""
    found = [layer["cost"] for layer in record["layers"] if layer["cost"] is not None]
    if not found:
        return []
    times = [cost["seconds"] / cost["attention_seconds"] for cost in found]
    memories = [cost["memory"] / max(1, cost["attention_memory"]) for cost in found]
    return [f"cost of routing beside attention's: {_span(times)} of the time, {_span(memories)} of the memory"]


def _span(values: Sequence[float]) -> str:
    low, high = f"{min(values):.2g}", f"{max(values):.2g}"
    return f"{low}×" if low == high else f"{low} to {high}×"


def left_out(record: Mapping[str, Any]) -> list[str]:
    """Return what was not measured, or cannot be judged by what was: there is no symptom of it either way."""
    layers = record["layers"]
    parts = {
        "couplings": all(layer["targets"] is None for layer in layers),
        "negatives": record["negation_gap"] is None,
        "gradients": all(layer["gradient"] is None for layer in layers),
        "other couplings": record["routing_matters"] is None,
        "views": not record["views_skipped"] and not any(layer["viewpoint"] for layer in layers),
    }
    missing = [name for name, is_missing in parts.items() if is_missing]
    single = [(number, chosen_among(layer)[:-1]) for number, layer in enumerate(layers, 1) if layer["targets"] == 1]
    found = [f"layer {number}: one {which}, among which there is nothing to choose" for number, which in single]
    if record["images"] < FEW:
        found.append(f"too few images to judge couplings, views and accuracy by: {record['images']}, where {FEW} are enough")
    found += [f"views: not looked at, {record['views_skipped']}"] if record["views_skipped"] else []
    return found + ([f"not measured: {', '.join(missing)}"] if missing else [])


def _images(count: int) -> str:
    return f"{count:,} image{'' if count == 1 else 's'}"


def _compactness(record: Mapping[str, Any]) -> list[str]:
    found = record["compactness"]
    if found is None:
        return []
    scores = ", ".join(f"{factor} {number(row['mean'])}" for factor, row in found["factors"].items())
    return [f"compactness of {_images(found['images'])}, {math.log(found['values']):.2f} at most: {scores}"]


def number(value: float | None, form: str = ".3f") -> str:
    """Write a figure, or nothing where there is none."""
    return "" if value is None else f"{value:{form}}"
