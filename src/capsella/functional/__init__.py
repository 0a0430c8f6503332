"""Pure functions on tensors: no state, no modules."""

from capsella.functional.losses import (
    length_binary_cross_entropy,
    length_cross_entropy,
    margin_loss,
    multi_hot,
    reconstruction_loss,
    spread_loss,
)
from capsella.functional.patches import conv_size, gather_patches
from capsella.functional.precision import widen
from capsella.functional.squash import direction, length, squash
from capsella.functional.votes import make_votes

__all__ = [
    "squash",
    "length",
    "direction",
    "widen",
    "make_votes",
    "gather_patches",
    "conv_size",
    "margin_loss",
    "spread_loss",
    "length_cross_entropy",
    "length_binary_cross_entropy",
    "reconstruction_loss",
    "multi_hot",
]
