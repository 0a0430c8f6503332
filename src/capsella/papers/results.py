"""What is kept of a run: one small JSON file for each recipe and seed, without weights."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from capsella.errors import DataError
from capsella.papers.recipe import run_name
from capsella.papers.sound import check_sound

FORMAT = 1
_CURVE = ("step", "loss", "accuracy")
_HISTORY = ("epoch", "step", "loss", "accuracy", "validation", "seconds")


@dataclass(frozen=True)
class Result:
    """What came of one run.

    Attributes:
        recipe: its key.
        seed: of the run.
        fingerprint: of what was run; see ``recipe.fingerprint``.
        quick: whether it is the short version.
        status: as the run's record says.
        steps: taken.
        seconds: in training, evaluations included.
        device_seconds: its share of the device: of a second in which n runs went on, an nth.
        parameters: of the network.
        history: columns ``epoch``, ``step``, ``loss``, ``accuracy``, ``validation``, ``seconds``, one value for each epoch.
        curve: columns ``step``, ``loss``, ``accuracy`` of the training batches, one value for each reading.
        test: accuracy and number of images of the test set, where it was measured at the end.
        measured: what the recipe's measures found, by name.
        plan: what was carried out.
        data: name, split, options and digest of what was learned from and measured on.
        environment: versions, commit, device.
        implementations: of routing, as the dispatcher chose them.
        peak_memory: bytes on the device; None where nobody counted.
    """

    recipe: str
    seed: int
    fingerprint: str
    quick: bool
    status: str
    steps: int
    seconds: float
    device_seconds: float
    parameters: int
    history: Mapping[str, Sequence[Any]]
    curve: Mapping[str, Sequence[Any]]
    plan: Mapping[str, Any]
    data: Mapping[str, Any]
    environment: Mapping[str, Any]
    implementations: Sequence[str] = ()
    test: Mapping[str, Any] | None = None
    measured: Mapping[str, Any] = field(default_factory=dict)
    peak_memory: int | None = None

    @property
    def name(self) -> str:
        """Recipe and seed, as a path."""
        return run_name(self.recipe, self.seed, quick=self.quick)

    @property
    def numerics(self) -> int:
        """The numerics version that it was made with."""
        return int(self.environment["numerics"])


def result_of(
    *,
    recipe: str,
    seed: int,
    fingerprint: str,
    quick: bool,
    record: Mapping[str, Any],
    events: Sequence[Mapping[str, Any]],
    measured: Mapping[str, Any],
    device_seconds: float | None = None,
) -> Result:
    """Keep of a run's record and metrics what reports are made of.

    Args:
        recipe: its key.
        seed: of the run.
        fingerprint: of what was run.
        quick: whether it is the short version.
        record: of the run.
        events: of its ``metrics.jsonl``.
        measured: what the recipe's measures found.
        device_seconds: its share of the device; all its seconds if None.
    """
    config = record["config"]
    data = {
        part: None if facts is None else {key: facts[key] for key in ("name", "split", "options", "images", "digest")}
        for part, facts in config["data"].items()
    }
    return Result(
        recipe=recipe,
        seed=seed,
        fingerprint=fingerprint,
        quick=quick,
        status=record["status"],
        steps=record["steps"],
        seconds=round(record["seconds"], 2),
        device_seconds=round(record["seconds"] if device_seconds is None else device_seconds, 2),
        parameters=config["parameters"],
        history=_columns(record["history"], _HISTORY),
        curve=_columns([event for event in events if event["event"] == "log"], _CURVE),
        test=record["test"] and {key: record["test"][key] for key in ("accuracy", "images")},
        measured=dict(measured),
        plan=config["plan"],
        data=data,
        environment=config["environment"],
        implementations=list(dict.fromkeys(config["implementations"])),
        peak_memory=record["peak_memory"],
    )


def _columns(rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> dict[str, list[Any]]:
    return {name: [_short(row[name]) for row in rows] for name in names}


def _short(value: Any) -> Any:
    """Round to six digits, which no figure of a report has."""
    return float(f"{value:.6g}") if isinstance(value, float) else value


def to_json(result: Result) -> str:
    """Return a result as text: a line for each field and, in fields of several parts, for each part."""
    lines = []
    for name, value in {"format": FORMAT, **dataclasses.asdict(result)}.items():
        if isinstance(value, dict) and value:
            parts = [f"  {json.dumps(key)}: {json.dumps(part, ensure_ascii=False)}" for key, part in value.items()]
            text = "{\n" + ",\n".join(parts) + "\n }"
        else:
            text = json.dumps(value, ensure_ascii=False)
        lines.append(f" {json.dumps(name)}: {text}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def from_json(text: str | bytes, *, where: str) -> Result:
    """Read what ``to_json`` wrote; anything else is a ``DataError`` that names the place.

    Args:
        text: of the file.
        where: its name, for errors.
    """
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where} is no JSON ({error})") from error
    if not isinstance(content, dict) or content.pop("format", None) != FORMAT:
        raise DataError(f"{where} is no result of capsella reproduce; expected one of format {FORMAT}")
    known = {each.name: each for each in dataclasses.fields(Result)}
    missing = [
        name
        for name, each in known.items()
        if name not in content and each.default is dataclasses.MISSING and each.default_factory is dataclasses.MISSING
    ]
    # a name from a file may be anything, a line's end too.
    strange = [name if name.isidentifier() else ascii(name) for name in content if name not in known]
    if missing or strange:
        raise DataError(f"{where} is no result of capsella reproduce: {', '.join(missing or strange)} is wrong or missing")
    result = Result(**content)
    check_sound(vars(result), where=where)
    return result
