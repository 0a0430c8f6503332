"""What claims of any paper are decided and told with: several answers as one, and several values in a few words."""

from __future__ import annotations

from collections.abc import Sequence

from capsella.papers.verdicts import Claim, Evidence


def all_of(answers: Sequence[bool | None]) -> bool | None:
    """Return whether all hold: no as soon as one does not, and nobody knows where one is open.

    Example:
        >>> all_of([True, True]), all_of([True, None]), all_of([None, False])
        (True, None, False)
    """
    return False if False in answers else None if None in answers else True


def any_of(answers: Sequence[bool | None]) -> bool | None:
    """Return whether one holds: yes as soon as one does, and nobody knows where one is open.

    Example:
        >>> any_of([False, False]), any_of([False, None]), any_of([None, True])
        (False, None, True)
    """
    return True if True in answers else None if None in answers else False


def fewest_runs(evidence: Evidence, claims: Sequence[Claim]) -> str:
    """Say how many runs there are at least of each row that claims rest on, of those that have run."""
    few = min(len(evidence.results(row)) for claim in claims for row in claim.recipes if evidence.has(row))
    return "one run" if few == 1 else f"at least {few} runs"


def span_of(values: Sequence[float], form: str = ".1%") -> str:
    """Write the lowest and the highest of some values, once where they are the same.

    Example:
        >>> span_of([0.5, 0.75]), span_of([0.5]), span_of([-3, 3], ".0f")
        ('50.0% to 75.0%', '50.0%', '−3 to 3')
    """
    low, high = format(min(values), form), format(max(values), form)
    return (low if low == high else f"{low} to {high}").replace("-", "−")


def written(value: float, digits: int = 2) -> str:
    """Write a number of any size with so many digits.

    Example:
        >>> written(0.234), written(8.6e-17), written(0.0), written(0.0049, 1)
        ('0.23', '8.6e−17', '0', '5e−3')
    """
    if value == 0 or 1e-2 <= abs(value) < 1e4:
        return f"{value:.{digits}g}".replace("-", "−")
    mantissa, _, exponent = f"{value:.{digits - 1}e}".partition("e")
    return f"{mantissa}e{int(exponent)}".replace("-", "−")
