"""Which component helps which kind of robustness: what a net gains by it, with 95% intervals over runs."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from capsella.papers.gu2021.compact import Convention, score
from capsella.papers.gu2021.deciding import Read, came_to_it, failures, interval, values_of
from capsella.papers.gu2021.nets import FACTORS, STOP, ablated, compact, convnet, kernel, overlapping, pairs_kernel, robust
from capsella.papers.readings import READINGS, dig
from capsella.papers.results import Result
from capsella.papers.verdicts import Evidence, Missing

AFFINE, OVERLAP, COMPACT = "affine maps", "overlapping digits", "compactness"
KINDS = {
    AFFINE: "points of accuracy on AffNIST",
    OVERLAP: "points of accuracy on overlapping digits",
    COMPACT: "mean score of six factors on MNIST, in hundredths of a nat, of sixteen values at a time",
}
HELPS, HARMS, OPEN = "helps", "harms", "open"


@dataclass(frozen=True)
class Pair:
    """Two nets that differ in one component.

    Attributes:
        kind: of ``KINDS``.
        with_it: key of the recipe that has the component.
        without: key of the other.
        where: how the paper calls the place.
    """

    kind: str
    with_it: str
    without: str
    where: str


@dataclass(frozen=True)
class Effect:
    """What a component does.

    Attributes:
        pair: the nets.
        gain: with it less without it, times 100.
        half: half the 95% interval; None of single runs.
        runs: fewest of both.
        failed: runs of both that came to no figure.
        is_level: whether all runs that stop at an accuracy came to it.
    """

    pair: Pair
    gain: float
    half: float | None
    runs: int
    failed: int = 0
    is_level: bool = True

    @property
    def says(self) -> str:
        """Whether it helps, harms or is open: an interval that has zero in it, or none at all, says nothing.

        Nor do nets of which one did not come to the accuracy at which they are compared.
        """
        if not self.is_level or self.half is None or abs(self.gain) <= self.half:
            return OPEN
        return HELPS if self.gain > 0 else HARMS

    def __str__(self) -> str:
        half = "one run" if self.half is None else f"± {self.half:.2f}"
        level = "" if self.is_level else f", not all at {STOP:.2%}"
        return f"{self.gain:+.2f} {half}{level}".replace("-", "−")

    @property
    def counted(self) -> str:
        """Its runs, and those that failed."""
        return f"{self.runs}, {self.failed} failed" if self.failed else str(self.runs)


_AFF = ablated("baseline")
_CAPS = overlapping("baseline")

COMPONENTS: Mapping[str, tuple[Pair, ...]] = {
    "dynamic routing": (
        Pair(AFFINE, ablated("dr"), _AFF, "Table 2; the start differs too, ±1/√M for ±1/√8"),
        Pair(AFFINE, robust("capsnet"), robust("capsnet-nor"), "Table 1, matrices not shared"),
        Pair(OVERLAP, _CAPS, overlapping("nor"), "Table 4"),
        Pair(
            COMPACT,
            compact("mnist", "capsnet"),
            compact("mnist", "convnet-cr-sf"),
            "Table 5; the start, a bias and a factor of 1/10 differ too",
        ),
    ),
    "a matrix for every capsule": (
        Pair(AFFINE, ablated("not-shared"), _AFF, "Table 2; a tenth of each vote for their mean, too, and the start"),
        Pair(OVERLAP, _CAPS, overlapping("shared"), "Table 4"),
    ),
    "squash": (
        Pair(AFFINE, _AFF, ablated("no-squash"), "Table 2"),
        Pair(OVERLAP, _CAPS, overlapping("no-squash"), "Table 4"),
        Pair(
            COMPACT,
            compact("mnist", "convnet-cr-sf"),
            compact("mnist", "convnet-cr"),
            "Table 5; with the margin loss, and no ReLU below",
        ),
    ),
    "margin loss": (
        Pair(AFFINE, _AFF, ablated("cross-entropy"), "Table 2, for cross entropy"),
        Pair(OVERLAP, _CAPS, overlapping("binary-cross-entropy"), "Table 4, for binary cross entropy"),
        Pair(OVERLAP, convnet("margin"), convnet("bce"), "a ConvNet, for binary cross entropy"),
    ),
    "reconstruction": (
        Pair(AFFINE, _AFF, ablated("no-reconstruction"), "Table 2"),
        Pair(OVERLAP, _CAPS, overlapping("no-reconstruction"), "Table 4"),
        Pair(OVERLAP, convnet("bce-reconstruction"), convnet("bce"), "a ConvNet"),
    ),
    "its mask": (
        Pair(AFFINE, _AFF, ablated("normal-reconstruction"), "Table 2"),
        Pair(OVERLAP, _CAPS, overlapping("normal-reconstruction"), "Table 4"),
        Pair(COMPACT, compact("mnist", "convnet-cr"), compact("mnist", "convnet-r"), "Table 5; with another readout and loss"),
    ),
    "kernels of 9 for 5": (
        Pair(AFFINE, kernel("capsnet", 9), kernel("capsnet", 5), "Table 3, CapsNet"),
        Pair(AFFINE, kernel("convnet-fc", 9), kernel("convnet-fc", 5), "Table 3, ConvNet-FC"),
        Pair(OVERLAP, pairs_kernel("capsnet", 9), pairs_kernel("capsnet", 5), "CapsNet"),
    ),
    "an average over the map for dense layers": (
        Pair(AFFINE, kernel("convnet-avg", 9), kernel("convnet-fc", 9), "Table 3, ConvNets with kernels of 9"),
        Pair(OVERLAP, convnet("convnet-avg"), convnet("convnet-fc-lk"), "ConvNets with kernels of 9"),
    ),
}
"""What makes a net more of a CapsNet, and two things that make ConvNets differ."""


def mean_compactness(result: Result) -> float | None:
    """Return the mean score over the six factors, of sixteen values at a time; None where one is missing."""
    parts = [dig(result.measured, "gu2021.compactness", factor) for factor in FACTORS]
    found = [None if part is None else score(part, Convention(vector="sixteens")) for part in parts]
    known = [value for value in found if value is not None]
    return statistics.fmean(known) if len(known) == len(found) else None


_READ: Mapping[str, Read] = {AFFINE: READINGS["affnist"], OVERLAP: READINGS["final"], COMPACT: mean_compactness}


def effect(evidence: Evidence, pair: Pair) -> Effect:
    """Return what the component of two nets does; raise ``Missing`` where one has not run."""
    one, other = (values_of(evidence, key, _READ[pair.kind]) for key in (pair.with_it, pair.without))
    gain, half = interval(one, other)
    two = (pair.with_it, pair.without)
    return Effect(
        pair,
        100 * gain,
        None if half is None else 100 * half,
        min(len(one), len(other)),
        failures(evidence, _READ[pair.kind], *two),
        came_to_it(evidence, *two),
    )


def effects(evidence: Evidence) -> dict[str, list[Effect]]:
    """Return the effects that can be worked out, by component."""
    found: dict[str, list[Effect]] = {}
    for component, pairs in COMPONENTS.items():
        for pair in pairs:
            try:
                each = effect(evidence, pair)
            except Missing:
                continue
            found.setdefault(component, []).append(each)
    return found


def rows(evidence: Evidence) -> list[tuple[str, ...]]:
    """Return the table of effects: component, kind, where, gain with its interval, what it says, runs."""
    return [
        (component, each.pair.kind, each.pair.where, str(each), each.says, each.counted)
        for component, some in effects(evidence).items()
        for each in some
    ]


def answer(evidence: Evidence) -> str:
    """Return which components help and harm which kind of robustness; empty where nothing has run, or of short versions."""
    found = effects(evidence)
    if evidence.is_quick or not found:
        return ""
    parts = []
    for kind in KINDS:
        named = {says: _named(found, kind, says) for says in (HELPS, HARMS, OPEN)}
        if any(named.values()):
            said = [f"{says}: {', '.join(names)}" for says, names in named.items() if names]
            parts.append(f"For {kind}, {'; '.join(said)}")
    return ". ".join(parts) + "."


def _named(found: Mapping[str, Sequence[Effect]], kind: str, says: str) -> list[str]:
    """Name the components of which all effects on a kind say the same; what disagrees is open."""
    named = []
    for component, some in found.items():
        mine = [each for each in some if each.pair.kind == kind]
        answers = {each.says for each in mine}
        if mine and (answers == {says} or (says == OPEN and len(answers) > 1)):
            named.append(f"{component} ({', '.join(str(each) for each in mine)})")
    return named
