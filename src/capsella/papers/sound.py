"""What a record must be before anything is read of it: every field of its type, every column as long as its neighbours."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from capsella.errors import DataError

# what every JSON reader can hold.
_MOST = 2**53
# of a part of a recipe's key, which becomes a file's name.
_LONGEST = 100
_OF_DATA = {"train", "validation", "test"}


@dataclass(frozen=True)
class _Kind:
    """Which values a field may have, and how to say so."""

    says: str
    holds: Callable[[Any], bool]


def _is_number(value: Any) -> bool:
    # nan and infinity too: a run may come to them.
    return isinstance(value, float) or (isinstance(value, int) and not isinstance(value, bool) and abs(value) < _MOST)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_list_of(holds: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(map(holds, value))


def _or_null(kind: _Kind) -> _Kind:
    return _Kind(f"{kind.says}, or null", lambda value: value is None or kind.holds(value))


def _column(kind: _Kind) -> _Kind:
    return _Kind(f"a list, each entry {kind.says}", _is_list_of(kind.holds))


_COUNT = _Kind("a whole number of at least 0", lambda value: isinstance(value, int) and _is_number(value) and value >= 0)
_AMOUNT = _Kind("a number of at least 0", lambda value: _is_number(value) and 0 <= value < _MOST)
_NUMBER = _Kind("a number", _is_number)
_FLAG = _Kind("true or false", lambda value: isinstance(value, bool))
_TEXT = _Kind("a text", _is_text)
# the field's own default is a tuple.
_TEXTS = _Kind("a list of texts", lambda value: isinstance(value, list | tuple) and all(map(_is_text, value)))
_PARTS = _Kind("parts by name", lambda value: isinstance(value, dict))
_MEASURED = _Kind(
    "parts by name, each with parts by name", lambda value: _PARTS.holds(value) and all(map(_PARTS.holds, value.values()))
)
_SPLITS = _Kind("train, validation and test", lambda value: isinstance(value, dict) and value.keys() <= _OF_DATA)

_FIELDS = {
    "fingerprint": _TEXT,
    "quick": _FLAG,
    "status": _TEXT,
    "steps": _COUNT,
    "seconds": _AMOUNT,
    "device_seconds": _AMOUNT,
    "parameters": _COUNT,
    "history": _PARTS,
    "curve": _PARTS,
    "plan": _PARTS,
    "data": _SPLITS,
    "environment": _PARTS,
    "implementations": _TEXTS,
    "test": _or_null(_PARTS),
    "measured": _MEASURED,
    "peak_memory": _or_null(_COUNT),
}
_PLAN = {"model": _TEXT, "data": _TEXT, "model_options": _PARTS, "train": _PARTS}
_ENVIRONMENT = {"numerics": _COUNT, "device": _TEXT}
# of records that tell it.
_MORE = dict.fromkeys(("capsella", "commit", "torch", "device_type"), _or_null(_TEXT))
_TEST = {"accuracy": _NUMBER, "images": _COUNT}
_SPLIT = {"name": _TEXT, "split": _TEXT, "options": _PARTS, "images": _COUNT, "digest": _TEXT}
_CURVE = {"step": _column(_COUNT), "loss": _column(_NUMBER), "accuracy": _column(_NUMBER)}
_HISTORY = {**_CURVE, "epoch": _column(_NUMBER), "validation": _column(_or_null(_NUMBER)), "seconds": _column(_AMOUNT)}


def check_sound(content: Mapping[str, Any], *, where: str) -> None:
    """Raise ``DataError`` for the first field that is not what it should be; the line names the place and the field.

    Args:
        content: fields of a result, by name.
        where: it lies, for the error.
    """
    _check_name(content["recipe"], content["seed"], where)
    _check(content, _FIELDS, where, "")
    _check(content["plan"], _PLAN, where, "plan.")
    told = {name: kind for name, kind in _MORE.items() if name in content["environment"]}
    _check(content["environment"], _ENVIRONMENT | told, where, "environment.")
    if content["test"] is not None:
        _check(content["test"], _TEST, where, "test.")
    _check(content["data"], dict.fromkeys(content["data"], _or_null(_PARTS)), where, "data.")
    for part, facts in content["data"].items():
        if facts is not None:
            _check(facts, _SPLIT, where, f"data.{part}.")
    for name, columns in (("history", _HISTORY), ("curve", _CURVE)):
        _check(content[name], columns, where, f"{name}.")
        lengths = {column: len(content[name][column]) for column in columns}
        if len(set(lengths.values())) > 1:
            says = ", ".join(f"{column} {length}" for column, length in lengths.items())
            raise DataError(f"{where} is damaged: the columns of {name} are of different lengths ({says})")


def _check_name(recipe: Any, seed: Any, where: str) -> None:
    parts = recipe.split("/") if isinstance(recipe, str) else []
    # a name becomes a path.
    if len(parts) != 3 or not all(map(_is_name, parts)) or not _COUNT.holds(seed):
        raise DataError(
            f"{where} names recipe {reprlib.repr(recipe)}, seed {reprlib.repr(seed)}; expected <paper>/<table>/<row> and a seed"
        )


def _is_name(part: str) -> bool:
    letters = part.replace("-", "").replace("_", "").replace(".", "")
    return part.isascii() and len(part) <= _LONGEST and not part.startswith(".") and letters.isalnum()


def _check(content: Mapping[str, Any], kinds: Mapping[str, _Kind], where: str, prefix: str) -> None:
    for name, kind in kinds.items():
        if name not in content:
            raise DataError(f"{where} is damaged: {prefix}{name} is missing; expected {kind.says}")
        if not kind.holds(content[name]):
            found = reprlib.repr(content[name])
            raise DataError(f"{where} is damaged: {prefix}{name}={found}; expected {kind.says}")
