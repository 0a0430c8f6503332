"""What claims of any paper are decided and told with: several answers as one, and several values in a few words."""

from __future__ import annotations

from collections.abc import Sequence


def all_of(answers: Sequence[bool | None]) -> bool | None:
    """Return whether all hold: no as soon as one does not, and nobody knows where one is open.

    Example:
        >>> all_of([True, True]), all_of([True, None]), all_of([None, False])
        (True, None, False)
    """
    return False if False in answers else None if None in answers else True


def span_of(values: Sequence[float], form: str = ".1%") -> str:
    """Write the lowest and the highest of some values, once where they are the same.

    Example:
        >>> span_of([0.5, 0.75]), span_of([0.5]), span_of([-3, 3], ".0f")
        ('50.0% to 75.0%', '50.0%', '−3 to 3')
    """
    low, high = format(min(values), form), format(max(values), form)
    return (low if low == high else f"{low} to {high}").replace("-", "−")
