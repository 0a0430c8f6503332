"""What tests and benchmarks share: shapes, seeded inputs, the parity rule."""

from capsella.testing.cases import PAPERS, SMALL, Case
from capsella.testing.inputs import generator, make_options, make_votes_input
from capsella.testing.parity import FLOOR, GRADIENT_FACTOR, VALUE_FACTOR, ParityError, assert_parity, check_parity

__all__ = [
    "FLOOR",
    "GRADIENT_FACTOR",
    "PAPERS",
    "SMALL",
    "VALUE_FACTOR",
    "Case",
    "ParityError",
    "assert_parity",
    "check_parity",
    "generator",
    "make_options",
    "make_votes_input",
]
