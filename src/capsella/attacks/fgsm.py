r"""The fast gradient sign method (Goodfellow, Shlens & Szegedy 2015): one step of size ε along the gradient's sign.

    x' = x + ε · sign ∂L(x, y)/∂x

Departures: none. Where the gradient is zero the image stays as it is; ``zero_gradients`` counts how often that is.
"""

from __future__ import annotations

from torch import Tensor, nn

from capsella.attacks.base import UNIT, Bounds, Loss, check_attack, gradient, within


def fgsm(
    model: nn.Module,
    images: Tensor,
    targets: Tensor,
    *,
    eps: float,
    bounds: Bounds = UNIT,
    loss: Loss | None = None,
    targeted: bool = False,
) -> Tensor:
    """Return images on which the network errs more, none of whose values is further away than ``eps``.

    Args:
        model: any network; it is left as it was.
        images: [B, C, H, W], as the network takes them.
        targets: their classes [B] or multi-hot [B, J]; with ``targeted`` those that are to be seen.
        eps: ε, the largest change of a value; 0 gives the images back.
        bounds: that values are kept within; None does not.
        loss: that is climbed; the network's usual one if None.
        targeted: descend the loss instead.

    Example:
        >>> import torch, capsella
        >>> model = capsella.create_model("capsnet_small")
        >>> images, targets = torch.rand(2, 1, 28, 28), torch.tensor([3, 1])
        >>> found = fgsm(model, images, targets, eps=8 / 255)
        >>> bool((found - images).abs().max() <= 8 / 255)
        True
    """
    check_attack(images, targets, eps, bounds)
    step = gradient(model, images, targets, loss).sign() * (-eps if targeted else eps)
    return within(images + step, images, eps, bounds)
