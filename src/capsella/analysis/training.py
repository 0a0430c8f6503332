"""What became of the capsules while they learned, from the looks that ``capsella train --watch`` wrote down."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

LOOKS = 100
"""Looks that a record keeps of each layer for a plot; deaths and revivals are counted over all of them."""

_FIGURE = re.compile(r"layer(\d+)/(\w+)")
_KEPT = ("dead", "length", "gradient", "weight_gradient", "starved", "dyr")


def over_training(events: Iterable[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Sum up the ``watch`` events of a run; None where there are none.

    A look says how many capsules are dead and how often one has come back so far, so that between two looks::

        deaths = dead now − dead before + revivals between them

    A capsule that dies and comes back between two looks is not seen. Layers are numbered as the doctor does: primary capsules
    are layer 1.

    Args:
        events: ``Run.events``, or the lines of ``metrics.jsonl``.

    Returns:
        ``looks``, ``steps`` of those that are kept, and for each of ``layers``: ``capsules``, ``first_dead`` and ``last_dead``,
        ``deaths`` after the first look and ``between`` which steps, ``revivals`` and ``reactivated`` (None where they were
        not counted), and lists of figures at ``steps``. A revival is a crossing of the threshold of the dead; reactivated are
        capsules that were alive, died, and were active in an image after that.

    Example:
        >>> looks = [{"event": "watch", "step": step, "layer1/capsules": 4, "layer1/dead": dead, "layer1/revivals": 0}
        ...          for step, dead in ((10, 0.0), (20, 0.25), (30, 0.5), (40, 0.5))]
        >>> found = over_training(looks)["layers"][0]
        >>> found["deaths"], found["between"], found["revivals"]
        (2, [10, 30], 0)
    """
    looks = sorted((event for event in events if event.get("event") == "watch"), key=lambda event: event["step"])
    rows = [_by_layer(look) for look in looks]
    numbers = sorted({number for row in rows for number in row})
    if not numbers:
        return None
    steps = [int(look["step"]) for look in looks]
    kept = _spread(len(looks))
    return {
        "looks": len(looks),
        "steps": [steps[k] for k in kept],
        "layers": [_of_layer([row.get(number, {}) for row in rows], steps, kept) for number in numbers],
    }


def _by_layer(look: Mapping[str, Any]) -> dict[int, dict[str, float]]:
    """Return the figures of a look by layer, as the doctor numbers them."""
    # lines of before counted routing layers from 1 and named the primary capsules; couplings stood with the layer above.
    is_old = "primary/dead" in look
    found: dict[int, dict[str, float]] = {}
    for key, value in look.items():
        named = f"layer0/{key.removeprefix('primary/')}" if key.startswith("primary/") else key
        match = _FIGURE.fullmatch(named)
        if match is None:
            continue
        number, figure = int(match[1]) + is_old, match[2]
        if is_old and figure in ("dyr", "entropy"):
            number -= 1
        found.setdefault(number, {})[figure] = value
    return found


def _spread(count: int) -> list[int]:
    """Choose at most so many looks as a record keeps, the first and the last among them."""
    most = min(count, LOOKS)
    return [0] if most == 1 else [round(k * (count - 1) / (most - 1)) for k in range(most)]


def _of_layer(rows: Sequence[Mapping[str, float]], steps: Sequence[int], kept: Sequence[int]) -> dict[str, Any]:
    seen = [k for k, row in enumerate(rows) if "dead" in row and "capsules" in row]
    dead = [round(rows[k]["dead"] * rows[k]["capsules"]) for k in seen]
    counted = all("revivals" in rows[k] for k in seen)
    again = [rows[k]["reactivated"] for k in seen if "reactivated" in rows[k]]
    back = [int(rows[k].get("revivals", 0)) for k in seen]
    deaths = [dead[n] - dead[n - 1] + back[n] - back[n - 1] for n in range(1, len(seen))]
    died = [n for n, number in enumerate(deaths, 1) if number > 0]
    return {
        "capsules": int(rows[seen[-1]]["capsules"]) if seen else None,
        "first_dead": dead[0] if seen else None,
        "last_dead": dead[-1] if seen else None,
        "deaths": sum(deaths[n - 1] for n in died),
        # alive at the first of these steps, dead at the second.
        "between": [steps[seen[died[0] - 1]], steps[seen[died[-1]]]] if died else None,
        "revivals": back[-1] if seen and counted else None,
        "reactivated": int(again[-1]) if again and len(again) == len(seen) else None,
        **{name: [_digits(rows[k].get(name)) for k in kept] for name in _KEPT if any(name in row for row in rows)},
    }


def _digits(value: float | None) -> float | None:
    """Return a number with as many digits as a plot shows."""
    return None if value is None else float(f"{value:.3g}")


def lives_in_words(training: Mapping[str, Any]) -> list[str]:
    """Return what became of the capsules of each layer, one sentence for each in which one was ever dead.

    Args:
        training: of ``over_training``.
    """
    found = []
    for number, layer in enumerate(training["layers"], 1):
        parts = _life(layer, training["steps"][0])
        if parts:
            found.append(f"layer {number}: {', '.join(parts)}")
    looks, steps = training["looks"], training["steps"]
    over = f"{looks:,} looks from step {steps[0]:,} to {steps[-1]:,}" if looks > 1 else f"one look at step {steps[0]:,}"
    return [f"over the training ({over}):{'' if found else ' no capsule was dead'}", *found]


def _life(layer: Mapping[str, Any], first_step: int) -> list[str]:
    first, deaths, back, last = layer["first_dead"], layer["deaths"], layer["revivals"], layer["last_dead"]
    if not first and not deaths:
        return []
    parts = [f"{_count(first, 'capsule')} {'was' if first == 1 else 'were'} dead at step {first_step:,}"] if first else []
    if deaths:
        # one that came back may have died again, so that deaths are no longer capsules.
        died = _count(deaths, "death") if back else f"{_count(deaths, 'capsule')} died"
        parts.append(f"{died} between step {layer['between'][0]:,} and {layer['between'][1]:,}")
    if back:
        # records of before do not say who was of use again.
        again = layer.get("reactivated")
        parts += [_count(back, "revival"), *([f"{again:,} active again after dying"] if again is not None else [])]
        parts.append(f"{last:,} of {layer['capsules']:,} dead at the end")
    elif back == 0:
        parts.append("none came back")
    return parts


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"
