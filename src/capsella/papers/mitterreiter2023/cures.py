"""What may keep deep capsules alive: one thing at a time done otherwise than in the paper's net, at several depths."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from capsella.nn.init import LENGTH_PRESERVING
from capsella.papers.mitterreiter2023.nets import placed_plan
from capsella.train.plan import Plan

CURE_DEPTHS = (3, 5, 8, 12, 20)
DEEPEST = 50
"""Capsule layers of the nets that are only worth it for what lives at 20."""

CURE_EPOCHS = 30
"""At the most: nets that do not learn would take all of Table 1's 60."""

RESIDUAL_RATE = 3e-3
"""The larger learning rate: three times the paper's, and no others were compared with it. A layer that adds to what is below it
should bear larger steps than one of a stack of products."""

STARTS, COUPLINGS = "starts", "couplings"
"""Kinds of cure, each a picture's worth."""


@dataclass(frozen=True)
class Cure:
    """A net that differs from the paper's.

    Attributes:
        label: in words.
        changes: as ``Plan.changed`` takes them.
        kind: ``"starts"`` or ``"couplings"``.
        note: what to know of it, for the departures; may be empty.
    """

    label: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    kind: str = STARTS
    note: str = ""


_KEPT = {"model.init": LENGTH_PRESERVING}
_LENGTHS = (
    "the length-preserving start rescales the weights of every layer until its capsules have a mean length of 0.5 on one batch"
)
_RESIDUAL = "squash(u + v) in the place of v, where the layer below has as many capsules"

CURES: dict[str, Cure] = {
    "published": Cure("as published"),
    "bias": Cure("bias", {"model.bias": True}, note="the bias starts at 0.1"),
    "lengths": Cure("length-preserving start", _KEPT, note=_LENGTHS),
    "lengths-bias": Cure("length-preserving start and bias", {**_KEPT, "model.bias": True}, note=_LENGTHS),
    # the paper's squash is the exponential one: this is what it has to be compared with.
    "lengths-sabour": Cure(
        "length-preserving start, Sabour's squash", {**_KEPT, "model.squash": "sabour"}, note="Sabour's squash"
    ),
    "residual": Cure(
        "length-preserving start and residuals", {**_KEPT, "model.residual": True}, note=f"{_LENGTHS}; {_RESIDUAL}"
    ),
    "residual-fast": Cure(
        f"the same at a learning rate of {RESIDUAL_RATE:g}",
        {**_KEPT, "model.residual": True, "lr": RESIDUAL_RATE},
        note=f"{_RESIDUAL}, at a learning rate of {RESIDUAL_RATE:g}, with which no others were compared",
    ),
    "trainable": Cure(
        "trainable couplings", {"model.routing": "trainable"}, COUPLINGS, "couplings are learned and start as chen2019's"
    ),
    "trainable-lengths": Cure(
        "trainable couplings, length-preserving start", {**_KEPT, "model.routing": "trainable"}, COUPLINGS, _LENGTHS
    ),
    # peer2022's settings, which learned fastest of those tried in short runs of three layers.
    "em": Cure(
        "EM",
        {"model.routing": "em", "model.em_as": "peer2022", "model.init": "peer2022", "model.bias": True},
        COUPLINGS,
        "EM with the options, the start and the bias of peer2022's code, chosen among several by short runs of three layers; "
        "its activations are no lengths and start around one half, so that the paper's measure hardly finds a dead one",
    ),
    "sources": Cure(
        "softmax over the lower capsules",
        {"model.normalise": "sources"},
        COUPLINGS,
        "each upper capsule takes a weighted mean of its votes, as in attention; weights start in ±1/√8 instead of ±1/√16, as "
        "for all means of votes; its dynamics are of the upper capsules, which choose",
    ),
    "sources-lengths": Cure(
        "softmax over the lower capsules, length-preserving start",
        {**_KEPT, "model.normalise": "sources"},
        COUPLINGS,
        f"{_LENGTHS}; its dynamics are of the upper capsules, which choose",
    ),
    "uniform": Cure("uniform", {"model.routing": "uniform"}, COUPLINGS),
    "uniform-lengths": Cure("uniform, length-preserving start", {**_KEPT, "model.routing": "uniform"}, COUPLINGS, _LENGTHS),
}
"""By name; what differs from the paper's net, and nothing else does."""


def cure_plan(name: str, depth: int) -> Plan:
    """Return the training of a net of ``CURES``."""
    plan = placed_plan("agreement", depth).changed({"epochs": CURE_EPOCHS, "watch": 0})
    return plan.changed(CURES[name].changes)


def cure(name: str, depth: int) -> str:
    """Return the key of a cure's recipe; those of the deepest nets are a table of their own, which is asked for by row."""
    return f"mitterreiter2023/cures{DEEPEST if depth == DEEPEST else ''}/{name}-depth{depth}"


WITHOUT_DEEPEST = ("published", "uniform", "trainable", "sources")
"""At the start of 50 layers their lengths are zero in float32, or nearly so: nothing could come of them."""

QUICK_CURES, QUICK_DEPTHS = ("published", "bias", "lengths", "residual", "uniform-lengths"), (3, 12)
"""Of the short versions."""
