"""Shapes that gu2021's claims have: one net is better than another, or as good; a squash is needed to learn at all."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from capsella.papers.deciding import all_of
from capsella.papers.gu2021.deciding import higher
from capsella.papers.verdicts import Claim, Evidence

Row = tuple[str, str, str]
"""A name, the key that should be higher, and the other."""


def higher_claim(key: str, text: str, source: str, pairs: Sequence[Row], *, reading: str = "affnist", luck: str = "") -> Claim:
    """A figure of the first of each pair is higher than of the second."""

    def decide(evidence: Evidence) -> tuple[bool | None, str]:
        found = {name: higher(evidence, one, other, reading, luck) for name, one, other in pairs}
        says = ", ".join(f"{name} {difference}" for name, difference in found.items())
        return all_of([each.is_higher for each in found.values()]), f"points of accuracy beside the other: {says}"

    rows = tuple(dict.fromkeys(row for _, *two in pairs for row in two))
    return Claim(f"gu2021/{key}", text, source, rows, decide)


def same_claim(key: str, text: str, source: str, one: str, other: str, bound: float, reading: str) -> Claim:
    """A figure of two recipes differs by no more than ``bound``, noise included."""

    def decide(evidence: Evidence) -> tuple[bool | None, str]:
        luck = "pairs" if reading == "final" else ""
        off = higher(evidence, one, other, reading, luck)
        return off.within(bound), f"points of accuracy beside the other: {off}"

    return Claim(f"gu2021/{key}", text, source, (one, other), decide)


def squash_claim(
    key: str, one: str, other: str, where: str, source: str, *, training: str = "training", luck: str = ""
) -> Claim:
    """A net is better on training and test images than the other, which has no squash; ``training`` is a reading."""
    both = {"training images": training, "test images": "final"}

    def decide(evidence: Evidence) -> tuple[bool | None, str]:
        found = {name: higher(evidence, one, other, reading, luck) for name, reading in both.items()}
        says = ", ".join(f"{name} {difference}" for name, difference in found.items())
        return all_of([each.is_higher for each in found.values()]), f"points of accuracy with a squash beside none: {says}"

    text = f"Without a squash a CapsNet does worse {where}, on training and on test images."
    return Claim(f"gu2021/{key}", text, source, (one, other), decide)


def only_whole(claims: Iterable[Claim]) -> tuple[Claim, ...]:
    """Return claims that short versions cannot decide."""
    return tuple(replace(claim, is_long=True) for claim in claims)
