"""peer2022's smallest net: the sign of a scalar, 1 -> 20 -> 2 capsules of one value each."""

from __future__ import annotations

from torch import Tensor, nn

from capsella.models.base import CapsuleNet
from capsella.models.capsnet import routing_options
from capsella.models.deep import capsule_stack
from capsella.models.registry import register_model
from capsella.models.trunk import Size


class _AsCapsule(nn.Module):
    """Read an image of one pixel as one capsule of one value, not squashed."""

    def forward(self, images: Tensor) -> Tensor:
        return images.flatten(1)[:, None]  # [B, 1, 1]


@register_model("sign_capsnet", paper="peer2022", init="peer2022_sign", image_size=1, num_classes=2)
def sign_capsnet(
    image_size: Size,
    in_channels: int,
    num_classes: int,
    *,
    routing: str = "agreement",
    bias: bool = True,
    num_iters: int | None = None,
    hidden: int = 20,
    squash: str = "sabour",
    em_as: str = "peer2022",
) -> CapsuleNet:
    """Build the sign net; a class's score is |v_j|.

    Args:
        image_size: must be 1.
        in_channels: must be 1.
        num_classes: 2 for the sign.
        routing: of both layers.
        bias: of both layers; without it the net cannot tell x from −x, whatever it learns.
        num_iters: of a routing that iterates; its default, 3, if None.
        hidden: capsules of the hidden layer.
        squash: of both layers, where the routing has one.
        em_as: EM as in their code, ``"peer2022"``, or as ``"defined"`` by its function.
    """
    if image_size != (1, 1) or in_channels != 1:
        raise ValueError(
            f"image_size={image_size}, in_channels={in_channels} do not fit sign_capsnet; expected one scalar: 1 and 1"
        )
    options = routing_options(routing, squash=squash, em_as=em_as, num_iters=num_iters)
    return CapsuleNet(
        (1, 1, 1),
        num_classes,
        trunk=nn.Identity(),
        primary=_AsCapsule(),
        layers=capsule_stack([1, hidden, num_classes], [1, 1, 1], routing=routing, bias=bias, **options),
    )
