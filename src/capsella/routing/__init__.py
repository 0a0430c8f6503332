"""Routing algorithms: pure functions from votes [B, I, J, D] to ``Routed``, one file each."""

import importlib

from capsella.errors import UnsupportedCall
from capsella.routing.agreement import agreement
from capsella.routing.base import Algorithm, Call, Implementation, Routed, get, names
from capsella.routing.dispatch import (
    explain,
    prefer,
    register,
    register_implementation,
    vote_and_route,
)
from capsella.routing.em import em, peer2022_options
from capsella.routing.quadratic import quadratic, quadratic_objective, quadratic_step
from capsella.routing.trainable import trainable
from capsella.routing.uniform import uniform

__all__ = [
    "agreement",
    "uniform",
    "em",
    "peer2022_options",
    "trainable",
    "quadratic",
    "quadratic_objective",
    "quadratic_step",
    "vote_and_route",
    "explain",
    "prefer",
    "names",
    "get",
    "register",
    "register_implementation",
    "Algorithm",
    "Call",
    "Implementation",
    "Routed",
    "UnsupportedCall",
]

# by name and not by an import statement, because kernels comes after routing: every way to import routing then has all
# implementations, and a compiler that traces a call never meets an import.
importlib.import_module("capsella.kernels")
