"""How well a network stands up to an attack, on images of a data set, in grey levels whatever the network was trained on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from capsella.attacks.base import Loss, Prepared, answers, pieces
from capsella.attacks.fgsm import fgsm
from capsella.attacks.masking import zero_gradients
from capsella.attacks.pgd import pgd
from capsella.attacks.transfer import transfer
from capsella.attacks.universal import universal
from capsella.data import ImageData
from capsella.data.augment import Normalisation
from capsella.errors import check_choice, check_count
from capsella.models import evaluating
from capsella.train.objectives import right

ATTACKS: dict[str, Callable[..., Tensor]] = {"fgsm": fgsm, "pgd": pgd, "universal": universal, "transfer": transfer}
"""All attacks by name."""

_LEVELS = 255


@dataclass(frozen=True, eq=False)
class Attacked:
    """What an attack did to some images.

    Attributes:
        attack: its name.
        eps: ε, in shares of the range from black to white.
        images: how many.
        clean: accuracy without the attack.
        accuracy: with it.
        zero_images: share of the images whose gradient is zero everywhere; None for an attack that follows another network's.
        zero_pixels: share of values whose derivative is zero; None likewise.
        largest: largest change of a value.
        before: a few images [n, C, H, W].
        after: the same, attacked.
        classes: of these [n] or multi-hot [n, J].
        seen: what the network says of them before and after, [2, n].
    """

    attack: str
    eps: float
    images: int
    clean: float
    accuracy: float
    zero_images: float | None
    zero_pixels: float | None
    largest: float
    before: Tensor
    after: Tensor
    classes: Tensor
    seen: Tensor

    def as_dict(self) -> dict[str, Any]:
        """Return the figures, as JSON can hold them."""
        names = ("attack", "eps", "images", "clean", "accuracy", "zero_images", "zero_pixels", "largest")
        return {name: getattr(self, name) for name in names}


def in_grey_levels(model: nn.Module, normalise: Normalisation) -> nn.Module:
    """Return a network that takes images from 0 to 1, whatever the normalisation of those that it was trained on."""
    if normalise.kind == "unit":
        return model
    return Prepared(model, lambda images: normalise(images * _LEVELS))


def attack_data(
    model: nn.Module,
    data: ImageData,
    *,
    attack: str,
    eps: float,
    images: int = 1000,
    batch_size: int = 128,
    device: torch.device | str | None = None,
    loss: Loss | None = None,
    substitute: nn.Module | None = None,
    show: int = 10,
    **options: Any,
) -> Attacked:
    """Attack a network on images of a split, drawn evenly from all over it.

    Args:
        model: any network; it is left as it was.
        data: a split, with the normalisation that the network was trained with.
        attack: one of ``ATTACKS``.
        eps: ε, in shares of the range from black to white.
        images: how many; all if there are fewer.
        batch_size: of them at once; a universal perturbation is found on all of them.
        device: where the network is.
        loss: that is climbed; the network's usual one if None.
        substitute: whose gradients a transfer follows; it takes images of the same normalisation.
        show: how many to give back.
        **options: of the attack.
    """
    check_choice("attack", attack, ATTACKS)
    check_count("images", images)
    check_count("batch_size", batch_size)
    if (attack == "transfer") != (substitute is not None):
        raise ValueError(
            "attack='transfer' needs a substitute; expected a network whose gradients are followed"
            if substitute is None
            else f"attack={attack!r} takes no substitute; expected attack='transfer' with it"
        )
    chosen = torch.linspace(0, len(data) - 1, min(images, len(data))).round().long()
    batch = replace(data, normalise=Normalisation("unit")).batch(chosen, device=device)
    given, targets = batch.images, batch.labels
    attacked = in_grey_levels(model, data.normalise)
    how: dict[str, Any] = {"eps": eps, "loss": loss, **options}
    if substitute is not None:
        how["substitute"] = in_grey_levels(substitute, data.normalise)
    size = len(given) if attack == "universal" else batch_size
    found, zeros = [], []
    for some, classes in pieces(size, given, targets):
        found.append(ATTACKS[attack](attacked, some, classes, **how))
    after = torch.cat(found)
    if attack != "transfer":
        for some, classes in pieces(batch_size, given, targets):
            zero = zero_gradients(attacked, some, classes, loss=loss)
            zeros.append((zero.images * len(some), zero.pixels * len(some)))
    clean, seen_before = _looked_at(attacked, given, targets, batch_size)
    accuracy, seen_after = _looked_at(attacked, after, targets, batch_size)
    return Attacked(
        attack,
        eps,
        len(given),
        clean,
        accuracy,
        sum(pair[0] for pair in zeros) / len(given) if zeros else None,
        sum(pair[1] for pair in zeros) / len(given) if zeros else None,
        float((after.double() - given.double()).abs().max()),
        given[:show].cpu(),
        after[:show].cpu(),
        targets[:show].cpu(),
        torch.stack([seen_before[:show], seen_after[:show]]).cpu(),
    )


def _looked_at(model: nn.Module, images: Tensor, targets: Tensor, batch_size: int) -> tuple[float, Tensor]:
    """Return the accuracy, and the class that is seen in each image."""
    hits, seen = 0, []
    with evaluating(model):
        for some, classes in pieces(batch_size, images, targets):
            scores = answers(model, some).scores
            hits += int(right(scores, _as_indices(classes)).sum())
            seen.append(scores.argmax(dim=1))
    return hits / len(images), torch.cat(seen)


def _as_indices(targets: Tensor) -> Tensor:
    """Return classes [B], or [B, n] of multi-hot rows that have n each."""
    if targets.ndim == 1:
        return targets
    return targets.bool().nonzero()[:, 1].reshape(len(targets), -1)
