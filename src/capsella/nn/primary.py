"""Primary capsules: a convolution whose channels are grouped into capsules.

A capsule's values are neighbouring channels at ONE position: channel n·P + p at (y, x) is value p of the capsule of type n
there. (Reshaping the convolution's output without naming its axes mixes positions and channels, and still trains.)
"""

from __future__ import annotations

from einops import rearrange
from torch import Tensor, nn

from capsella.errors import check_choice, check_count, check_flag
from capsella.functional import squash as apply_squash
from capsella.functional.patches import as_pair
from capsella.functional.squash import KINDS
from capsella.nn.depthwise import CoveringConv2d
from capsella.nn.features import FeatureConv2d
from capsella.routing import Routed
from capsella.shapes import dims


class PrimaryCapsules(nn.Module):
    """Turn feature maps into squashed capsules (Sabour et al. 2017, section 4).

    Args:
        in_channels: channels of the feature maps.
        types: N, capsule types at each position.
        dim: P, values of a capsule.
        kernel_size: K, or (rows, columns).
        stride: of the convolution.
        groups: of the convolution; ``in_channels`` makes it depthwise.
        squash: kind of squash.
        relu: apply a ReLU before the squash (chen2019's released nets).
        divided: divide the convolution's sums, before its bias, by the number of types, as Sabour's released code does: there
            the maps are one capsule whose votes are routed to the types in one iteration, of which each has its share.
        flat: return capsules in one row, else as a grid.
        bias: of the convolution.

    Shapes:
        features [B, C, H, W] -> [B, H'·W'·N, P], ordered by row, column and type; [B, H', W', N, P] with ``flat=False``.

    Example:
        >>> import torch
        >>> PrimaryCapsules(256, 32, 8, kernel_size=9, stride=2)(torch.zeros(1, 256, 20, 20)).shape
        torch.Size([1, 1152, 8])
    """

    def __init__(
        self,
        in_channels: int,
        types: int,
        dim: int,
        *,
        kernel_size: int | tuple[int, int],
        stride: int = 1,
        groups: int = 1,
        squash: str = "sabour",
        relu: bool = False,
        divided: bool = False,
        flat: bool = True,
        bias: bool = True,
    ) -> None:
        super().__init__()
        check_count("types", types)
        check_count("dim", dim)
        check_count("in_channels", in_channels)
        check_count("stride", stride)
        check_choice("squash", squash, KINDS)
        for name, flag in (("relu", relu), ("divided", divided), ("flat", flat), ("bias", bias)):
            check_flag(name, flag)
        self.types, self.dim, self.squash, self.relu, self.divided, self.flat = types, dim, squash, relu, divided, flat
        convolution = FeatureConv2d if groups == 1 else CoveringConv2d
        self.conv = convolution(in_channels, types * dim, as_pair("kernel_size", kernel_size), stride, groups=groups, bias=bias)

    def forward(self, features: Tensor) -> Tensor:
        """Return the capsules of a batch of feature maps."""
        _, _, H, W = dims(features, "B C H W", name="features", C=self.conv.in_channels)
        rows, columns = self.conv.kernel_size
        if min(H - rows, W - columns) < 0:
            raise ValueError(f"features has {H}×{W} positions; expected at least kernel_size={rows}×{columns}")
        # dividing what is summed leaves the bias whole, and goes into the operation before it where that is compiled.
        maps = self.conv(features / self.types if self.divided else features)  # [B, N·P, H', W']
        if self.relu:
            maps = maps.relu()
        pattern = "b (n p) h w -> b (h w n) p" if self.flat else "b (n p) h w -> b h w n p"
        return apply_squash(rearrange(maps, pattern, p=self.dim), kind=self.squash)

    def extra_repr(self) -> str:
        """Show what the convolution does not."""
        options = f"squash={self.squash!r}, relu={self.relu}, divided={self.divided}, flat={self.flat}"
        return f"types={self.types}, dim={self.dim}, {options}"


class MatrixPrimaryCapsules(nn.Module):
    """Turn feature maps into capsules with a free pose and a separate activation (Hinton et al. 2018, section 4).

    Args:
        in_channels: channels of the feature maps.
        types: N, capsule types at each position.
        dim: P, values of a pose.

    Shapes:
        features [B, C, H, W] -> ``Routed`` with poses [B, H, W, N, P] and activations [B, H, W, N] in (0, 1).
    """

    def __init__(self, in_channels: int, types: int, dim: int) -> None:
        super().__init__()
        check_count("types", types)
        check_count("dim", dim)
        self.types, self.dim = types, dim
        self.pose = nn.Conv2d(in_channels, types * dim, 1)
        self.activation = nn.Conv2d(in_channels, types, 1)

    def forward(self, features: Tensor) -> Routed:
        """Return poses and activations of a batch of feature maps."""
        dims(features, "B C H W", name="features", C=self.pose.in_channels)
        poses = rearrange(self.pose(features), "b (n p) h w -> b h w n p", p=self.dim)
        return Routed(poses, rearrange(self.activation(features).sigmoid(), "b n h w -> b h w n"))
