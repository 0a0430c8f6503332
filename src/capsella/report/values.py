"""Values on their way to a page: tensors and arrays become checked numpy arrays, numbers become text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[np.float64]
# a tensor on any device, an array or nested lists; no torch is needed to read one.
Values: TypeAlias = Any

# how far a picture's values may lie outside 0..1 before they are taken for something else.
_ROUNDING = 1e-2


def array(values: Values, axes: str, *, name: str, **sizes: int) -> Array:
    """Return ``values`` as a float64 array, checking its rank, the axes whose size is given, and that it is finite.

    Args:
        values: a tensor, an array or nested lists.
        axes: one name per axis, separated by blanks, such as ``"n C H W"``.
        name: what the caller's user calls these values.
        **sizes: the expected size of any of the axes.

    Example:
        >>> array([[1, 2], [3, 4]], "I J", name="couplings", I=2).tolist()
        [[1.0, 2.0], [3.0, 4.0]]
        >>> array([1, 2], "I J", name="couplings", I=2)
        Traceback (most recent call last):
        ...
        ValueError: couplings has shape [2]; expected [I=2, J]
    """
    # numpy reads no tensor that is on a GPU, in bfloat16 or part of a graph.
    plain = values.detach().double().cpu() if hasattr(values, "detach") else values
    found = np.asarray(plain, dtype=np.float64)
    letters = axes.split()
    if found.ndim != len(letters) or any(found.shape[k] != sizes[a] for k, a in enumerate(letters) if a in sizes):
        wanted = ", ".join(f"{a}={sizes[a]}" if a in sizes else a for a in letters)
        raise ValueError(f"{name} has shape {list(found.shape)}; expected [{wanted}]")
    if not np.isfinite(found).all():
        raise ValueError(f"{name} has values that are not finite; expected numbers")
    return found


def unit_array(values: Values, axes: str, *, name: str, **sizes: int) -> Array:
    """Return values from 0 to 1 as an array; others are an error, such as images that were normalised for a network."""
    found = array(values, axes, name=name, **sizes)
    if found.size and (found.min() < -_ROUNDING or found.max() > 1 + _ROUNDING):
        raise ValueError(f"{name} has values from {found.min():.3g} to {found.max():.3g}; expected values from 0 to 1")
    return found.clip(0, 1)


def class_indices(values: Values, *, name: str, classes: int, **sizes: int) -> list[int]:
    """Return class indices [n] as ints, each of them below ``classes``."""
    found = array(values, "n", name=name, **sizes)
    for value in found.tolist():
        if value != int(value) or not 0 <= value < classes:
            raise ValueError(f"{name} has class {value:g}; expected whole numbers from 0 to {classes - 1}")
    return [int(value) for value in found.tolist()]


def mean_and_spread(values: Sequence[float]) -> tuple[float, float | None]:
    """Return the mean and the sample standard deviation, which one value does not have.

    Example:
        >>> mean_and_spread([1.0, 2.0, 3.0])
        (2.0, 1.0)
        >>> mean_and_spread([0.5])
        (0.5, None)
    """
    if not values:
        raise ValueError("values=() has no mean; expected at least one number")
    mean = math.fsum(values) / len(values)
    if len(values) == 1:
        return mean, None
    return mean, math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))


def percent(*values: float) -> str:
    r"""Write shares as a percentage, several as their mean and spread.

    Example:
        >>> percent(0.9912), percent(0.5, 0.51, 0.52), percent()
        ('99.12\xa0%', '51.00 ± 1.00\xa0%', '–')
    """
    return _with_spread(tuple(100 * value for value in values), ".2f", "\xa0%")


def count(*values: float) -> str:
    """Write large numbers with separators, several as their mean and spread.

    Example:
        >>> count(262816), count(900.4, 1100.4), count()
        ('262,816', '1,000 ± 141', '–')
    """
    return _with_spread(values, ",.0f", "")


def _with_spread(values: Sequence[float], form: str, unit: str) -> str:
    if not values:
        return "–"
    mean, spread = mean_and_spread(values)
    return f"{mean:{form}}{unit}" if spread is None else f"{mean:{form}} ± {spread:{form}}{unit}"


def duration(seconds: float) -> str:
    """Write a time.

    Example:
        >>> duration(8.31), duration(84.2), duration(4000)
        ('8.3 s', '1 min 24 s', '1 h 7 min')
    """
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60} min"


def memory(size: int | None) -> str:
    """Write a number of bytes.

    Example:
        >>> memory(1536), memory(3 << 30), memory(None)
        ('1.5 KiB', '3.0 GiB', '–')
    """
    if size is None:
        return "–"
    for unit, step in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= step:
            return f"{size / step:.1f} {unit}"
    return f"{size} B"


def signed(value: float) -> str:
    """Write a number with its sign, a real minus, and no sign for zero.

    Example:
        >>> signed(-0.25), signed(0.1), signed(0.0)
        ('−0.25', '+0.10', '0')
    """
    return "0" if f"{value:+.2f}"[1:] == "0.00" else f"{value:+.2f}".replace("-", "−")
