"""What can be wrong with a question: one line for whoever asked, and the status that HTTP has for it."""

from __future__ import annotations


class Trouble(ValueError):
    """A question that cannot be answered as it was asked."""

    status = 422


class NotThere(Trouble):
    """Something that is asked for by its name or number, and that there is none of."""

    status = 404


class TooMuch(Trouble):
    """More than is taken at once."""

    status = 413


class WrongKind(Trouble):
    """Something of a kind that is not taken."""

    status = 415


def check_below(name: str, value: int, most: int, *, trouble: type[Trouble] = Trouble) -> None:
    """Raise ``trouble`` unless ``value`` is one of 0 to ``most`` − 1.

    Example:
        >>> check_below("class", 3, 10)
    """
    if not 0 <= value < most:
        raise trouble(f"{name}={value} is not there; expected {f'0 to {most - 1:,}' if most else 'nothing: there are none'}")
