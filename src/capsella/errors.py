"""One voice for users' mistakes: a single line that names the argument, its value and what would work."""

from __future__ import annotations

import difflib
import operator
from collections.abc import Collection, Iterable, Sequence
from numbers import Real
from typing import Any


class UnsupportedCall(ValueError):
    """A named implementation was asked for a call that it refuses; the message lists its reasons."""


class DataError(ValueError):
    """Data that is missing, unreachable or not what it should be; one line that says which file and what to do."""


class RunError(RuntimeError):
    """A run that cannot go on, or a part of it that cannot be read; one line that says what happened and what is left."""


def unknown_name(argument: str, value: object, known: Iterable[str]) -> str:
    """Say that ``value`` is not one of ``known``, nearest matches first.

    Example:
        >>> unknown_name("routing", "agrement", ["em", "agreement"])
        "routing='agrement' is unknown; did you mean 'agreement'? Known: 'agreement', 'em'"
    """
    names = sorted(known)
    near = difflib.get_close_matches(str(value), names, n=3, cutoff=0.6)
    hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else "."
    return f"{argument}={value!r} is unknown{hint} Known: {', '.join(map(repr, names)) or 'none'}"


def check_choice(argument: str, value: str, known: Collection[str]) -> None:
    """Raise ``ValueError`` unless ``value`` is one of ``known``."""
    # a tuple, because the value may be anything, also what no dict can look up.
    if value not in tuple(known):
        raise ValueError(unknown_name(argument, value, known))


def check_options(owner: str, options: Iterable[str], known: Collection[str]) -> None:
    """Raise ``TypeError`` for the first option that ``owner`` does not take."""
    for key in options:
        if key not in known:
            raise TypeError(f"{owner}: {unknown_name('option', key, known)}")


def check_flag(argument: str, value: Any) -> None:
    """Raise ``TypeError`` unless ``value`` is True or False; ``"False"`` is a true string."""
    if not isinstance(value, bool):
        raise TypeError(f"{argument}={value!r} has type {type(value).__name__}; expected True or False")


def check_number(argument: str, value: Any, *, above: float | None = None, least: float | None = None) -> None:
    """Raise unless ``value`` is a real number, larger than ``above`` or at least ``least`` where these are given."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{argument}={value!r} has type {type(value).__name__}; expected a number")
    if above is not None and not float(value) > above:
        raise ValueError(f"{argument}={value!r} is too small; expected a number above {above:g}")
    if least is not None and not float(value) >= least:
        raise ValueError(f"{argument}={value!r} is too small; expected a number of at least {least:g}")


def whole_number(argument: str, value: Any) -> int:
    """Return ``value`` as an int, numpy's and torch's included; ``TypeError`` for anything that only looks like one."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{argument}={value!r} has type {type(value).__name__}; expected a whole number")
    return operator.index(value)


def check_counts(argument: str, value: Any, *, number: int | None = None) -> None:
    """Raise unless ``value`` is a sequence of counts, ``number`` of them where that is given."""
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise TypeError(f"{argument}={value!r} has type {type(value).__name__}; expected a tuple of ints")
    if number is not None and len(value) != number:
        raise ValueError(f"{argument}={value!r} has {len(value)} values; expected {number}")
    for entry in value:
        check_count(argument, entry)


def check_count(argument: str, value: Any, *, least: int = 1) -> None:
    """Raise unless ``value`` is a whole number of at least ``least``."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{argument}={value!r} has type {type(value).__name__}; expected an int of at least {least}")
    if value < least:
        raise ValueError(f"{argument}={value!r} is too small; expected an int of at least {least}")
