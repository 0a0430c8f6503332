"""What gu2021 measures on trained nets, each in a file of its own: affine images, and how capsules represent what changes."""

from __future__ import annotations

from capsella.papers.gu2021.affine import affine, seen

__all__ = ["affine", "seen"]
