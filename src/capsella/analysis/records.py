"""Diagnoses on disk: one JSON file, from which text and page are made again without the network."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from capsella.errors import DataError

Record = dict[str, Any]

# what later versions added: a record of before was not measured so.
_ABSENT: Record = {
    **dict.fromkeys(("accuracy", "guess", "bias", "negation_gap", "negation_share", "routing_matters", "model")),
    "non_finite": 0.0,
    # activations were compared then.
    "negation_by": "activations",
    **dict.fromkeys(("views_skipped", "compactness", "training", "pictures")),
}
_ABSENT_OF_LAYER: Record = {
    **dict.fromkeys(("routing", "normalise", "sweep", "dyr", "dys", "dyr_literal", "dys_literal")),
    **dict.fromkeys(("targets", "live_targets", "entropy", "change", "negation_gap", "starved", "cost")),
    **dict.fromkeys(("gradient", "gradients", "weight_gradient", "weight_gradients", "outgoing_gradients")),
}
_NEEDED, _NEEDED_OF_LAYER = ("images", "layers"), ("name", "capsules", "dim", "cnm", "car", "cds", "cdr", "dead")

# a list of plain values over several lines; no text has a line break in it, so that none can look like one.
_ITEM = r"(?:-?[\d.]+(?:[eE][-+]?\d+)?|true|false|null)"
_ROW = re.compile(rf"\[\n\s*({_ITEM}(?:,\n\s*{_ITEM})*)\n\s*\]")


def completed(record: Mapping[str, Any]) -> Record:
    """Return a record with every field that there is now; one that was not measured when it was written is None."""
    # fields keep their places: what is written again is the same file.
    layers = [_with(layer, {**_ABSENT_OF_LAYER, "viewpoint": {}}) for layer in record["layers"]]
    return _with({**record, "layers": layers}, _ABSENT)


def _with(given: Mapping[str, Any], absent: Record) -> Record:
    return {**given, **{key: value for key, value in absent.items() if key not in given}}


def read_record(path: str | os.PathLike[str]) -> Record:
    """Return what ``capsella doctor --json`` wrote, of this version or of one before.

    Args:
        path: the file.

    Raises:
        DataError: it cannot be read.
        ValueError: it is no record of the doctor's.
    """
    try:
        found = json.loads(Path(path).read_bytes())
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read ({error}); expected what capsella doctor --json wrote") from error
    if not _is_record(found):
        raise ValueError(f"{path} is no record of a diagnosis; expected what capsella doctor --json wrote")
    return completed(found)


def _is_record(found: Any) -> bool:
    if not isinstance(found, dict) or not set(_NEEDED) <= set(found) or not isinstance(found["layers"], list):
        return False
    layers = found["layers"]
    return bool(layers) and all(isinstance(layer, dict) and set(_NEEDED_OF_LAYER) <= set(layer) for layer in layers)


def as_json(record: Mapping[str, Any]) -> str:
    """Return a record as JSON, rows of numbers on one line each.

    Example:
        >>> print(as_json({"images": 2, "dead": [True, False]}), end="")
        {
         "images": 2,
         "dead": [true, false]
        }
    """
    text = json.dumps(record, indent=1, ensure_ascii=False, allow_nan=False)
    return _ROW.sub(lambda row: "[" + ", ".join(row[1].replace(",", "").split()) + "]", text) + "\n"


def finite(value: Any) -> Any:
    """Return a value for JSON, which knows no infinity and no NaN: None stands in their place."""
    if isinstance(value, Mapping):
        return {key: finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
