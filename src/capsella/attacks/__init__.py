"""Attacks on any network: images near the given ones on which it errs, and whether its gradients can be followed at all.

Each attack takes ``(model, images, targets, *, eps, …)`` and returns images.

Example:
    >>> import torch, capsella
    >>> from capsella import attacks
    >>> model = capsella.create_model("capsnet_small")
    >>> images, targets = torch.rand(4, 1, 28, 28), torch.tensor([7, 2, 1, 0])
    >>> attacked = attacks.pgd(model, images, targets, eps=8 / 255, steps=3)
    >>> attacks.zero_gradients(model, images, targets).images
    0.0
"""

from capsella.attacks.base import LOSSES, Prepared, difference, own_loss
from capsella.attacks.fgsm import fgsm
from capsella.attacks.masking import ZeroGradients, zero_gradients
from capsella.attacks.pgd import pgd
from capsella.attacks.robustness import ATTACKS, Attacked, attack_data, in_grey_levels
from capsella.attacks.transfer import transfer
from capsella.attacks.universal import PerturbationGenerator, Universal, add, find_universal, universal

__all__ = [
    "ATTACKS",
    "LOSSES",
    "Attacked",
    "PerturbationGenerator",
    "Prepared",
    "Universal",
    "ZeroGradients",
    "add",
    "attack_data",
    "difference",
    "fgsm",
    "find_universal",
    "in_grey_levels",
    "own_loss",
    "pgd",
    "transfer",
    "universal",
    "zero_gradients",
]
