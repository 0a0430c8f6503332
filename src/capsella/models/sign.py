"""peer2022's smallest net: the sign of a scalar, 1 -> 20 -> 2 capsules of one value each."""

from __future__ import annotations

from torch import Tensor, nn

from capsella.errors import check_choice
from capsella.models.base import CapsuleNet
from capsella.models.capsnet import routing_options
from capsella.models.deep import capsule_stack
from capsella.models.registry import register_model
from capsella.models.trunk import Size

TRUNKS = ("none", "linear", "relu")
# primary capsules where there is a trunk: as many as the published net has in its hidden layer.
_FEATURES = 20


class _AsCapsules(nn.Module):
    """Read each value, the one pixel of an image or the features of a trunk, as a capsule; not squashed."""

    def forward(self, features: Tensor) -> Tensor:
        return features.flatten(1)[..., None]  # [B, I, 1]


@register_model("sign_capsnet", paper="peer2022", init="peer2022_sign", image_size=1, num_classes=2)
def sign_capsnet(
    image_size: Size,
    in_channels: int,
    num_classes: int,
    *,
    routing: str = "agreement",
    bias: bool | str = True,
    num_iters: int | None = None,
    hidden: int = 20,
    squash: str = "sabour",
    em_as: str = "peer2022",
    trunk: str = "none",
) -> CapsuleNet:
    """Build the sign net; a class's score is |v_j|.

    Args:
        image_size: must be 1.
        in_channels: must be 1.
        num_classes: 2 for the sign.
        routing: of both layers.
        bias: of both layers, or ``"last"``: of the class layer alone, where EM's moves no score; without it the net cannot
            tell x from −x, whatever it learns, unless a ReLU came before.
        num_iters: of a routing that iterates; its default, 3, if None.
        hidden: capsules of the hidden layer.
        squash: of both layers, where the routing has one.
        em_as: EM as in their code, ``"peer2022"``, or as ``"defined"`` by its function.
        trunk: ``"none"`` as published; ``"linear"``: a dense layer without bias makes 20 primary capsules of one value of x,
            which −x negates; ``"relu"``: with a ReLU, which leaves x and −x different ones.
    """
    if image_size != (1, 1) or in_channels != 1:
        raise ValueError(
            f"image_size={image_size}, in_channels={in_channels} do not fit sign_capsnet; expected one scalar: 1 and 1"
        )
    check_choice("trunk", trunk, TRUNKS)
    options = routing_options(routing, squash=squash, em_as=em_as, num_iters=num_iters)
    return CapsuleNet(
        (1, 1, 1),
        num_classes,
        trunk=_trunk(trunk),
        primary=_AsCapsules(),
        layers=capsule_stack(
            [1 if trunk == "none" else _FEATURES, hidden, num_classes], [1, 1, 1], routing=routing, bias=bias, **options
        ),
    )


def _trunk(name: str) -> nn.Module:
    """Return what comes before the capsules."""
    if name == "none":
        return nn.Identity()
    # without a bias, so that only the ReLU can tell x from −x.
    dense = nn.Linear(1, _FEATURES, bias=False)
    return nn.Sequential(nn.Flatten(), dense, nn.ReLU()) if name == "relu" else nn.Sequential(nn.Flatten(), dense)
