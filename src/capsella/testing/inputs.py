"""Seeded inputs for any registered algorithm, so that registering one enrols it in every contract test."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from capsella import routing
from capsella.testing.cases import Case


def generator(seed: int) -> torch.Generator:
    """Return a seeded CPU generator."""
    return torch.Generator().manual_seed(seed)


def make_votes_input(case: Case, *, dtype: torch.dtype = torch.float64, scale: float = 1.0, seed: int = 0) -> Tensor:
    """Draw votes [B, I, J, D]."""
    votes = torch.randn(case.B, case.I, case.J, case.D, generator=generator(seed), dtype=torch.float64)
    return (votes * scale).to(dtype)


def make_options(
    algorithm: str, case: Case, *, dtype: torch.dtype = torch.float64, seed: int = 1, optional: bool = False
) -> dict[str, Any]:
    """Draw what an algorithm needs beside the votes.

    Args:
        algorithm: registry name.
        case: sizes.
        dtype: of all tensors.
        seed: of the draw.
        optional: also draw what it can do without: a bias, and learned tensors that default to None.
    """
    entry, rng = routing.get(algorithm), generator(seed)

    def draw(*size: int) -> Tensor:
        return torch.randn(*size, generator=rng, dtype=torch.float64).to(dtype)

    options: dict[str, Any] = {}
    for name in (*entry.required, *(entry.optional if optional else ())):
        options[name] = draw(*entry.init(case.I, case.J, case.D)[name].shape)
    if entry.needs_activations:
        options["activations"] = draw(case.B, case.I).sigmoid()
    if optional:
        options["bias"] = draw(case.J, case.D)
    return options
