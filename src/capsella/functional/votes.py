"""Votes: what each lower capsule predicts for each upper one, û_ij = u_i W_ij.

One product serves three cases. Per-pair weights are [I, J, P, D]; shared weights (gu2021's Aff-CapsNet) are [1, J, P, D];
matrix poses (Hinton et al. 2018, chen2019) are R×P matrices multiplied from the right, flattened row by row, so a vector
pose is a matrix of one row.

Departures: none.
"""

from __future__ import annotations

import torch
from einops import rearrange
from torch import Tensor

from capsella.errors import check_count
from capsella.shapes import Votes, dims


def check_votes(poses: Tensor, weight: Tensor, rows: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Check that poses [B, I, R·P] and a weight [I or 1, J, P, D] fit together; return both shapes."""
    check_count("rows", rows)
    _, I, size = dims(poses, "B I P", name="poses")
    sources, _, P, _ = dims(weight, "I J P D", name="weight")
    if sources not in (1, I):
        raise ValueError(f"weight has {sources} lower capsules; expected I={I} as in poses, or 1 to share it")
    if size != rows * P:
        raise ValueError(f"poses has pose size {size}; expected {rows * P} (rows={rows} × P={P} of weight)")
    if weight.dtype != poses.dtype and not torch.is_autocast_enabled(poses.device.type):
        raise TypeError(f"weight has dtype {weight.dtype}; expected {poses.dtype} as poses")
    return tuple(poses.shape), tuple(weight.shape)


def make_votes(poses: Tensor, weight: Tensor, *, rows: int = 1) -> Votes:
    """Multiply every lower pose with its weight for every upper capsule.

    Args:
        poses: [B, I, R·P].
        weight: [I, J, P, D], or [1, J, P, D] shared by all lower capsules.
        rows: R, the rows of a matrix pose; 1 for vector poses.

    Returns:
        Votes [B, I, J, R·D].

    Example:
        >>> poses, weight = torch.ones(2, 3, 4), torch.ones(3, 5, 4, 6)
        >>> make_votes(poses, weight).shape
        torch.Size([2, 3, 5, 6])
        >>> make_votes(torch.ones(2, 3, 16), torch.ones(1, 5, 4, 4), rows=4).shape  # 4×4 matrices, shared
        torch.Size([2, 3, 5, 16])
    """
    _, (sources, *_) = check_votes(poses, weight, rows)
    if rows == 1:
        if sources == 1:
            return torch.einsum("bip,jpd->bijd", poses, weight[0])  # [B, I, J, D]
        return torch.einsum("bip,ijpd->bijd", poses, weight)  # [B, I, J, D]
    matrices = rearrange(poses, "b i (r p) -> b i r p", r=rows)
    if sources == 1:
        votes = torch.einsum("birp,jpd->bijrd", matrices, weight[0])
    else:
        votes = torch.einsum("birp,ijpd->bijrd", matrices, weight)
    return rearrange(votes, "b i j r d -> b i j (r d)")
