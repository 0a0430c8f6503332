"""Attacks by transfer (Papernot et al. 2016): a network is attacked with images that were made to fool another one.

A black box has no gradients to follow; those of a substitute that was trained on the same classes often do.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from capsella.attacks.base import answers
from capsella.attacks.fgsm import fgsm
from capsella.attacks.pgd import pgd
from capsella.errors import check_choice
from capsella.models import evaluating

BY = {"fgsm": fgsm, "pgd": pgd}


def transfer(
    model: nn.Module,
    images: Tensor,
    targets: Tensor,
    *,
    eps: float,
    substitute: nn.Module,
    by: str = "fgsm",
    **options: Any,
) -> Tensor:
    """Return images that were made with the gradients of ``substitute`` alone.

    Args:
        model: that is attacked; it is only asked how many classes it knows.
        images: [B, C, H, W], as both networks take them.
        targets: their classes [B] or multi-hot [B, J].
        eps: ε, as for the attack.
        substitute: whose gradients are followed.
        by: ``"fgsm"`` or ``"pgd"``.
        **options: of that attack.
    """
    check_choice("by", by, BY)
    if len(images):
        with evaluating(model), evaluating(substitute):
            own, other = (answers(each, images[:1]).scores.shape[1] for each in (model, substitute))
        if own != other:
            raise ValueError(f"substitute knows {other} classes; expected {own}, those of the network that is attacked")
    return BY[by](substitute, images, targets, eps=eps, **options)
