"""Faster ways to route, added to the routing registry when this package is imported; ``capsella.routing`` imports it.

``plain_*`` are plain PyTorch, for any device: routing in one step as one matrix product, agreement and EM without the votes.
``chunked_*`` are plain PyTorch for GPUs: agreement and EM with the votes of some samples at a time.
``compiled_*`` is C++ for CPUs, built at first use where there is a compiler.
"""

from __future__ import annotations

import importlib.util

from capsella.kernels import (
    chunked_agreement,
    chunked_em,
    chunks,
    compiled_agreement,
    plain_agreement,
    plain_em,
    plain_products,
)
from capsella.routing.base import Implementation, nowhere
from capsella.routing.dispatch import register_implementation

PLAIN_RANK = 500

_PLAIN = (
    ("agreement", "chunked", chunked_agreement.agreement, chunks.refuse, chunks.slower),
    ("em", "chunked", chunked_em.em, chunks.refuse, chunks.slower),
    ("agreement", "tiled", plain_agreement.agreement, plain_agreement.refuse, plain_agreement.slower),
    ("em", "tiled", plain_em.em, nowhere, plain_em.slower),
    ("uniform", "matmul", plain_products.uniform, plain_products.refuse, nowhere),
    ("trainable", "matmul", plain_products.trainable, plain_products.refuse, nowhere),
    ("quadratic", "matmul", plain_products.quadratic, plain_products.refuse, nowhere),
)
for _algorithm, _name, _run, _refuse, _slower in _PLAIN:
    register_implementation(Implementation(_algorithm, "vote_and_route", _name, _run, _refuse, PLAIN_RANK, _slower))

COMPILED_RANK = 300

register_implementation(
    Implementation(
        "agreement",
        "vote_and_route",
        "compiled",
        compiled_agreement.agreement,
        compiled_agreement.refuse,
        COMPILED_RANK,
        compiled_agreement.slower,
    )
)

FUSED_RANK = 100

# Triton comes with torch for CUDA; without it there is nothing to fuse.
if importlib.util.find_spec("triton") is not None:
    importlib.import_module("capsella.kernels.fused").register(FUSED_RANK)
