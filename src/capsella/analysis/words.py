"""A diagnosis in words: what is wrong, and what was measured beside it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from capsella.analysis.records import completed
from capsella.analysis.symptoms import Symptom
from capsella.analysis.training import lives_in_words


def in_words(record: Mapping[str, Any], symptoms: Iterable[Symptom]) -> str:
    """Return a diagnosis as plain text: one paragraph for each symptom, then what was measured beside them."""
    record, symptoms = completed(record), list(symptoms)
    sizes = "/".join(str(layer["capsules"]) for layer in record["layers"])
    right = "" if record["accuracy"] is None else f", {record['accuracy']:.2%} right"
    lines = [f"{sizes} capsules, {record['images']:,} images{right}", ""]
    diseases = [symptom for symptom in symptoms if not symptom.is_note]
    if not diseases:
        lines += ["no symptom was found", ""]
    # what several layers have in common is explained once.
    for key in dict.fromkeys(symptom.key for symptom in (*diseases, *symptoms)):
        alike = [symptom for symptom in symptoms if symptom.key == key]
        lines += [f"{'note: ' if symptom.is_note else ''}{symptom.says}" for symptom in alike]
        lines.append(f"  papers: {alike[0].papers}")
        if alike[0].tries:
            lines.append(f"  try: {'; '.join(alike[0].tries)}")
        lines += [f"  see: {alike[0].link}", ""]
    return "\n".join([*lines, *beside(record, symptoms)]).rstrip() + "\n"


def beside(record: Mapping[str, Any], symptoms: Iterable[Symptom]) -> list[str]:
    """Return a sentence for everything that was measured, or left out, and that no symptom says."""
    record = completed(record)
    # figures of what is no number mean nothing; how it came to that may.
    found = [] if record["non_finite"] else [*swaps_in_words(record, symptoms), *_views(record), *_compactness(record)]
    return found + (lives_in_words(record["training"]) if record["training"] else [])


def swaps_in_words(record: Mapping[str, Any], symptoms: Iterable[Symptom]) -> list[str]:
    """Return what other couplings do to the accuracy, unless a symptom says it."""
    swaps = record["routing_matters"]
    if swaps is None or any(symptom.key == "idle" for symptom in symptoms):
        return []
    of = f" of {swaps['images']:,} images" if "images" in swaps else ""
    return [
        f"couplings: {swaps['own']:.1%}{of} right with its own, {swaps['uniform']:.1%} with uniform ones, "
        f"{swaps['other']:.1%} with those of other images"
    ]


def _views(record: Mapping[str, Any]) -> list[str]:
    return [f"views: not looked at, {record['views_skipped']}"] if record["views_skipped"] else []


def _compactness(record: Mapping[str, Any]) -> list[str]:
    found = record["compactness"]
    if found is None:
        return []
    scores = ", ".join(f"{factor} {number(row['mean'])}" for factor, row in found["factors"].items())
    return [f"compactness of {found['images']:,} images, {math.log(found['values']):.2f} at most: {scores}"]


def number(value: float | None, form: str = ".3f") -> str:
    """Write a figure, or nothing where there is none."""
    return "" if value is None else f"{value:{form}}"
