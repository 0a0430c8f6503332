"""Options of a library call, given on the command line as KEY=VALUE."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any


def key_values(given: Iterable[str]) -> dict[str, Any]:
    """Read KEY=VALUE pairs: numbers, true, false, null and JSON as such, anything else as text.

    Example:
        >>> key_values(["versions=32", "source=official"])
        {'versions': 32, 'source': 'official'}
    """
    options: dict[str, Any] = {}
    for pair in given:
        key, mark, value = pair.partition("=")
        if not mark or not key:
            raise ValueError(f"option {pair!r} has no value; expected KEY=VALUE")
        try:
            options[key] = json.loads(value)
        except json.JSONDecodeError:
            options[key] = value
    return options
