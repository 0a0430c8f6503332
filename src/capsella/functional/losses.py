"""Losses on capsule lengths and reconstructions; each takes the mean over the batch and says what it does within one sample.

    margin   Σ_k T_k max(0, m⁺ − ‖v_k‖)² + λ (1 − T_k) max(0, ‖v_k‖ − m⁻)²      (Sabour et al. 2017, eq. 4)
    spread   Σ_{k≠t} max(0, m − (a_t − a_k))²                                   (Hinton et al. 2018, eq. 3)
    cross entropy on lengths          −Σ_k T_k log(‖v_k‖ / Σ_l ‖v_l‖)           (gu2021, tables 2 and 4)
    binary cross entropy on lengths   −Σ_k T_k log‖v_k‖ + (1 − T_k) log(1 − ‖v_k‖)

Departures: logarithms of lengths are taken above the dtype's smallest useful value, so a capsule of length zero costs much
but not infinitely much.
"""

from __future__ import annotations

import torch
from torch import Tensor

from capsella.errors import check_choice
from capsella.functional.precision import widen
from capsella.shapes import check_floating, dims


def check_targets(targets: Tensor, samples: int) -> None:
    """Raise unless ``targets`` is a tensor with one entry or row for each sample."""
    if not isinstance(targets, Tensor):
        raise TypeError(f"targets has type {type(targets).__name__}; expected a tensor of class indices [B] or rows [B, J]")
    if targets.ndim == 0 or targets.shape[0] != samples:
        raise ValueError(f"targets has shape {list(targets.shape)}; expected one entry or row for each of B={samples} samples")


def _check_classes(targets: Tensor, num_classes: int) -> None:
    # only where looking at values is free: a GPU would have to be waited for, a compiler cannot look at all.
    if torch.compiler.is_compiling() or targets.device.type != "cpu" or targets.numel() == 0:
        return
    try:
        low, high = int(targets.min()), int(targets.max())
    except RuntimeError:  # inside vmap there are no values to look at either
        return
    if low < 0 or high >= num_classes:
        wrong = low if low < 0 else high
        raise ValueError(f"targets has class {wrong}; expected classes from 0 to {num_classes - 1}")


def multi_hot(targets: Tensor, num_classes: int, *, dtype: torch.dtype = torch.float32) -> Tensor:
    """Turn class indices [B] into 0/1 rows [B, J]; rows that are already multi-hot pass through.

    A class that is out of range is an error, except in compiled code, where its row is zero.

    Example:
        >>> multi_hot(torch.tensor([2, 0]), 3)
        tensor([[0., 0., 1.],
                [1., 0., 0.]])
    """
    if not isinstance(targets, Tensor):
        raise TypeError(f"targets has type {type(targets).__name__}; expected a tensor of class indices [B] or rows [B, J]")
    if targets.ndim == 1:
        if targets.is_floating_point() or targets.dtype == torch.bool:
            raise TypeError(f"targets has dtype {targets.dtype}; expected integer class indices [B] or rows [B, J]")
        _check_classes(targets, num_classes)
        if torch.compiler.is_compiling():
            # a compiler may read a scatter of ones as integers: torch 2.11 then cuts gradients down to whole numbers.
            return (targets.long()[:, None] == torch.arange(num_classes, device=targets.device)).to(dtype)
        # a scatter, because a GPU then refuses a class that is out of range, and vmap can follow it.
        rows = torch.zeros(targets.shape[0], num_classes, dtype=dtype, device=targets.device)
        return rows.scatter(1, targets.long()[:, None], 1)
    if targets.ndim != 2 or targets.shape[1] != num_classes:
        expected = f"class indices [B] or multi-hot rows [B, J={num_classes}]"
        raise ValueError(f"targets has shape {list(targets.shape)}; expected {expected}")
    return targets.to(dtype)


def _lengths_and_rows(lengths: Tensor, targets: Tensor, name: str) -> tuple[Tensor, Tensor]:
    B, J = dims(lengths, "B J", name=name)
    check_targets(targets, B)
    wide = widen(lengths)
    return wide, multi_hot(targets, J, dtype=wide.dtype)


def margin_loss(
    lengths: Tensor, targets: Tensor, *, m_pos: float = 0.9, m_neg: float = 0.1, down_weight: float = 0.5
) -> Tensor:
    """Compute the margin loss: sum over classes, mean over the batch.

    Args:
        lengths: capsule lengths [B, J].
        targets: class indices [B] or multi-hot rows [B, J].
        m_pos: a present class costs nothing above this length.
        m_neg: an absent class costs nothing below this length.
        down_weight: λ, the weight of absent classes.

    Example:
        >>> margin_loss(torch.tensor([[0.8, 0.3]]), torch.tensor([0]))  # 0.1² + ½·0.2²
        tensor(0.0300)
    """
    wide, present = _lengths_and_rows(lengths, targets, "lengths")
    pull = present * (m_pos - wide).clamp(min=0).square()
    push = (1 - present) * (wide - m_neg).clamp(min=0).square()
    return (pull + down_weight * push).sum(dim=1).mean().to(lengths.dtype)


def spread_loss(activations: Tensor, targets: Tensor, *, margin: float) -> Tensor:
    """Compute the spread loss: sum over the other classes, mean over the batch.

    Args:
        activations: [B, J].
        targets: class indices [B].
        margin: by how much the target's activation must exceed every other.

    Example:
        >>> spread_loss(torch.tensor([[0.6, 0.5, 0.0]]), torch.tensor([0]), margin=0.2)  # (0.2 − 0.1)²
        tensor(0.0100)
    """
    wide, present = _lengths_and_rows(activations, targets, "activations")
    if targets.ndim != 1:
        raise ValueError(f"targets has shape {list(targets.shape)}; expected class indices [B]")
    of_target = (wide * present).sum(dim=1, keepdim=True)  # [B, 1]
    shortfall = (margin - (of_target - wide)).clamp(min=0).square()
    return ((1 - present) * shortfall).sum(dim=1).mean().to(activations.dtype)


def length_cross_entropy(lengths: Tensor, targets: Tensor) -> Tensor:
    """Compute cross entropy on lengths normalised to sum to one: sum over present classes, mean over the batch.

    Example:
        >>> length_cross_entropy(torch.tensor([[0.5, 0.5]]), torch.tensor([0]))  # log 2
        tensor(0.6931)
    """
    wide, present = _lengths_and_rows(lengths, targets, "lengths")
    logs = wide.clamp(min=torch.finfo(wide.dtype).tiny).log()
    return -(present * (logs - logs.logsumexp(dim=1, keepdim=True))).sum(dim=1).mean().to(lengths.dtype)


def length_binary_cross_entropy(lengths: Tensor, targets: Tensor) -> Tensor:
    """Compute binary cross entropy with lengths as probabilities: sum over classes, mean over the batch.

    Lengths outside (0, 1), which only capsules without a squash have, count as its nearest end.

    Example:
        >>> length_binary_cross_entropy(torch.tensor([[0.5, 0.5]]), torch.tensor([0]))  # 2 log 2
        tensor(1.3863)
    """
    wide, present = _lengths_and_rows(lengths, targets, "lengths")
    eps = torch.finfo(wide.dtype).eps
    p = wide.clamp(min=eps, max=1 - eps)
    cost = -(present * p.log() + (1 - present) * torch.log1p(-p))
    return cost.sum(dim=1).mean().to(lengths.dtype)


def reconstruction_loss(reconstruction: Tensor, images: Tensor, *, reduction: str = "sum") -> Tensor:
    """Compute the squared error of a reconstruction.

    Args:
        reconstruction: [B, C, H, W], or [B, n, C, H, W] with one image for each of n target classes.
        images: what should have been drawn, same shape.
        reduction: ``"sum"``: over everything within a sample (Sabour's code), or ``"mean"``: over its pixels too;
            either way the mean over the batch.

    Example:
        >>> images = torch.zeros(2, 1, 2, 2)
        >>> reconstruction_loss(images + 0.5, images), reconstruction_loss(images + 0.5, images, reduction="mean")
        (tensor(1.), tensor(0.2500))
    """
    check_choice("reduction", reduction, ("sum", "mean"))
    check_floating(reconstruction, name="reconstruction")
    check_floating(images, name="images")
    if reconstruction.shape != images.shape:
        raise ValueError(f"reconstruction has shape {list(reconstruction.shape)}; expected {list(images.shape)} as images")
    error = (widen(reconstruction) - widen(images)).square()
    total = error.mean() if reduction == "mean" else error.flatten(1).sum(dim=1).mean()
    return total.to(reconstruction.dtype)
