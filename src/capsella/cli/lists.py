"""Lists on the command line, by commas."""

from __future__ import annotations


def by_commas(text: str) -> tuple[str, ...]:
    """Split what is given by commas.

    Example:
        >>> by_commas("capsnet, lenet"), by_commas("")
        (('capsnet', 'lenet'), ())
    """
    return tuple(part.strip() for part in text.split(",")) if text.strip() else ()


def whole_numbers(argument: str, text: str, *, least: int = 0) -> tuple[int, ...]:
    """Read whole numbers by commas, each of them once.

    Example:
        >>> whole_numbers("--seeds", "0, 1,2")
        (0, 1, 2)
    """
    try:
        found = tuple(int(part) for part in by_commas(text))
    except ValueError:
        raise ValueError(f"{argument}={text!r} is no list of whole numbers; expected for example 0,1,2") from None
    if any(number < least for number in found):
        raise ValueError(f"{argument}={text!r} has {min(found)}; expected whole numbers of at least {least}")
    if len(set(found)) < len(found):
        raise ValueError(f"{argument}={text!r} has a number twice; expected each once")
    return found
