"""What gu2021 measures on trained nets, each in a file of its own."""

from __future__ import annotations

from capsella.papers.gu2021.affine import affine, affine_few, seen
from capsella.papers.gu2021.compact import compactness
from capsella.papers.gu2021.features import mapped, perturbed
from capsella.papers.gu2021.overlap import overlapping

__all__ = ["affine", "affine_few", "compactness", "mapped", "overlapping", "perturbed", "seen"]
