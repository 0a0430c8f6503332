"""Signed couplings raised towards discriminative power (yang2021).

    v_j = squash(Σ_i b_ij û_ij + bias_j)
    F_j = Σ_k δ_jk ‖v_jk‖² − λ‖b_j‖

with v_jk = Σ_i b_ij û_kij before the squash and δ_jk = +1 if sample k shows class j, else −1.

b belongs to the layer, is the same for all samples, and climbs Σ_j F_j by its own steps while everything else descends the
loss; at test time nothing is routed.

Departures: the printed L1 step uses 2λ sign(b) where the gradient has λ sign(b): ``l1_factor=2`` gives the printed one.
"""

from __future__ import annotations

import torch
from torch import Tensor

from capsella.errors import check_choice
from capsella.functional import multi_hot
from capsella.functional import squash as apply_squash
from capsella.functional.losses import check_targets
from capsella.functional.precision import wide_dtype
from capsella.routing.base import Routed, route_fixed
from capsella.routing.dispatch import register
from capsella.shapes import Votes, dims

NORMS = ("l1", "l2")


def init(in_capsules: int, out_capsules: int, out_dim: int) -> dict[str, Tensor]:
    """Start every coupling at one, as all branches of the authors' code do."""
    return {"couplings": torch.ones(in_capsules, out_capsules)}


@register("quadratic", paper="yang2021", init=init, own_step=True)
def quadratic(
    votes: Votes,
    *,
    couplings: Tensor,
    bias: Tensor | None = None,
    squash: str = "sabour",
    trace: bool = False,
    need_couplings: bool = True,
) -> Routed:
    """Add up the votes with given signed couplings.

    Args:
        votes: [B, I, J, D].
        couplings: [I, J], or broadcastable to [B, I, J].
        bias: [J, D], added before the squash.
        squash: kind of squash.
        trace: keep the couplings of the only iteration.
        need_couplings: return the couplings, expanded over the batch.
    """
    return route_fixed(votes, couplings, bias=bias, squash=squash, trace=trace, need_couplings=need_couplings)


def _prepare(votes: Votes, couplings: Tensor, targets: Tensor, norm: str) -> tuple[Tensor, Tensor, Tensor]:
    """Check the arguments; return votes and couplings in one dtype, and the signs δ [B, J]."""
    B, I, J, _ = dims(votes, "B I J D", name="votes")
    check_choice("norm", norm, NORMS)
    dims(couplings, "I J", name="couplings", I=I, J=J)
    check_targets(targets, B)
    dtype = torch.promote_types(wide_dtype(votes.dtype), wide_dtype(couplings.dtype))
    return votes.to(dtype), couplings.to(dtype), class_signs(targets, J, dtype=dtype)


def quadratic_objective(
    votes: Votes, couplings: Tensor, targets: Tensor, *, penalty: float, norm: str = "l2", on: str = "raw"
) -> Tensor:
    """Compute F_j, the regularised discriminative power of each class capsule.

    Args:
        votes: [B, I, J, D].
        couplings: b, [I, J].
        targets: class indices [B] or multi-hot rows [B, J].
        penalty: λ.
        norm: ``"l2"``, the squared 2-norm of b_j, or ``"l1"``.
        on: ``"raw"`` capsules, or ``"squashed"`` ones, which bound the objective.

    Returns:
        [J]; a sum over the batch, not a mean.

    Example:
        >>> votes = torch.tensor([[[[3.0]]], [[[1.0]]]])  # one capsule pair, two samples
        >>> quadratic_objective(votes, torch.ones(1, 1), torch.tensor([[1], [0]]), penalty=0.5)  # 9 − 1 − ½
        tensor([7.5000])
    """
    wide, b, signs = _prepare(votes, couplings, targets, norm)
    check_choice("on", on, ("raw", "squashed"))
    raw = torch.einsum("ij,bijd->bjd", b, wide)  # [B, J, D]
    capsules = raw if on == "raw" else apply_squash(raw)
    return (discriminative_power(capsules, signs) - penalty * coupling_size(b, norm)).to(votes.dtype)


def class_signs(targets: Tensor, num_classes: int, *, dtype: torch.dtype) -> Tensor:
    """Return δ [B, J]: +1 for the classes that a sample shows, −1 for the others.

    Example:
        >>> class_signs(torch.tensor([1]), 3, dtype=torch.float32)
        tensor([[-1.,  1., -1.]])
    """
    return 2 * multi_hot(targets, num_classes, dtype=dtype) - 1


def discriminative_power(capsules: Tensor, signs: Tensor) -> Tensor:
    """Return Σ_k δ_jk ‖v_jk‖² as [J], for class capsules [B, J, D] and signs [B, J]."""
    return torch.einsum("bj,bjd->j", signs, capsules.square())


def coupling_size(couplings: Tensor, norm: str) -> Tensor:
    """Return what the penalty is on: the squared 2-norm or the 1-norm of each b_j, as [J]."""
    return couplings.square().sum(dim=0) if norm == "l2" else couplings.abs().sum(dim=0)


@torch.no_grad()
def quadratic_step(
    votes: Votes,
    couplings: Tensor,
    targets: Tensor,
    *,
    rate: float,
    penalty: float,
    norm: str = "l2",
    l1_factor: float = 1,
) -> Tensor:
    """Return b + rate · ∂(Σ_j F_j)/∂b on raw capsules; exact, and nothing is recorded for autograd.

    Args:
        votes: [B, I, J, D].
        couplings: b, [I, J].
        targets: class indices [B] or multi-hot rows [B, J].
        rate: γ.
        penalty: λ.
        norm: ``"l2"`` or ``"l1"``; sign(0) = 0.
        l1_factor: 1 is the gradient, 2 the step as printed.

    Example:
        >>> quadratic_step(torch.ones(1, 1, 1, 1), torch.ones(1, 1), torch.tensor([0]), rate=0.1, penalty=0.0)
        tensor([[1.2000]])
    """
    wide, b, signs = _prepare(votes, couplings, targets, norm)
    raw = torch.einsum("ij,bijd->bjd", b, wide)  # [B, J, D]
    climb = 2 * torch.einsum("bj,bijd,bjd->ij", signs, wide, raw)
    shrink = 2 * b if norm == "l2" else l1_factor * b.sign()
    return (b + rate * (climb - penalty * shrink)).to(couplings.dtype)
