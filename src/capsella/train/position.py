"""Where a run is: with the weights and the optimiser, all that decides the next step."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class Position:
    """Where a run is.

    Attributes:
        epoch: passes that are over.
        batch: batches of the present pass that are over.
        step: steps that are over.
        images: images seen.
        seconds: time in training so far, validation and checkpoints included.
        watch_seconds: of these, time in looks at the health of the capsule layers.
        history: one entry per finished epoch.
        epoch_sums: of the present pass: loss · images, right answers, images.
        watched: of every capsule layer, what the last look at its health left to be compared with the next.
    """

    epoch: int = 0
    batch: int = 0
    step: int = 0
    images: int = 0
    seconds: float = 0.0
    watch_seconds: float = 0.0
    history: list[dict[str, Any]] = field(default_factory=list)
    epoch_sums: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0])
    watched: list[dict[str, Any]] = field(default_factory=list)

    @property
    def is_summed(self) -> bool:
        """Whether the books were closed after the last step."""
        return bool(self.history) and self.history[-1]["step"] == self.step
