"""Shapes that tests and benchmarks share: the papers' sizes, primes, single capsules, sizes that fill no tile."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Case:
    """One routing problem: B samples, I lower capsules of P values, J upper capsules of D values."""

    name: str
    B: int
    I: int
    J: int
    D: int
    P: int


SMALL = (
    Case("plain", B=3, I=6, J=4, D=5, P=7),
    Case("primes", B=2, I=13, J=7, D=11, P=3),
    Case("one-lower", B=2, I=1, J=3, D=4, P=2),
    Case("one-upper", B=2, I=5, J=1, D=4, P=3),
    Case("one-value", B=2, I=5, J=3, D=1, P=1),
    Case("one-sample", B=1, I=9, J=2, D=3, P=4),
)
"""Cheap enough for every test."""

PAPERS = (
    Case("capsnet-28", B=128, I=1152, J=10, D=16, P=8),
    Case("capsnet-40", B=128, I=4608, J=10, D=16, P=8),
    Case("deep-hidden", B=256, I=1152, J=16, D=12, P=8),
    Case("parse-hidden", B=128, I=16, J=16, D=8, P=8),
    Case("wide", B=32, I=4096, J=32, D=16, P=16),
)
"""The sizes that a training step meets; for benchmarks."""
