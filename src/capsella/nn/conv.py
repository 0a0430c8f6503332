"""Convolutional capsules: local receptive fields, folded into the batch before routing."""

from __future__ import annotations

from typing import Any

from einops import rearrange, repeat
from torch import Tensor

from capsella import routing as R
from capsella.errors import check_count
from capsella.functional import conv_size, gather_patches
from capsella.functional.patches import as_pair
from capsella.nn.base import RoutingLayer, unpack
from capsella.routing import Routed
from capsella.shapes import dims


class CapsuleConv2d(RoutingLayer):
    """Route the capsules under a sliding window to the capsules at its position (Hinton et al. 2018; chen2019).

        û_ij = u_i W_ij   for the I = K·K·N lower capsules of a window;  (v_j, a_j) = routing(û)

    Weights are shared over positions. Trainable and quadratic couplings are not: they have one set per position, so these
    two must know the size of the grid.

    Args:
        in_types: N, capsule types below.
        in_dim: P, their pose size.
        out_types: J, capsule types above.
        out_dim: D, their pose size.
        kernel_size: K, or (rows, columns).
        stride: step between windows.
        padding: rings of zero capsules around the grid.
        grid_size: side of the grid below, or (rows, columns); needed for learned couplings.
        routing: registry name.
        bias: learn a bias per value of the upper types.
        rows: for poses that are matrices of so many rows.
        squash: kind of squash; the algorithm's own if None.
        relu: ``"none"``, ``"before"`` or ``"after"`` the squash; only for routing without iterations.
        impl: implementation of the routing.
        **options: further options of the algorithm.

    Shapes:
        below [B, H, W, N, P], or the ``Routed`` of the layer below
        -> ``Routed`` with poses [B, H', W', J, D], activations [B, H', W', J], couplings [B, H', W', I, J].

    Example:
        >>> import torch
        >>> layer = CapsuleConv2d(8, 16, 4, 16, kernel_size=3, stride=2, rows=4, routing="em")
        >>> layer(torch.randn(2, 7, 7, 8, 16)).poses.shape
        torch.Size([2, 3, 3, 4, 16])
    """

    def __init__(
        self,
        in_types: int,
        in_dim: int,
        out_types: int,
        out_dim: int,
        *,
        kernel_size: int | tuple[int, int],
        stride: int = 1,
        padding: int = 0,
        grid_size: int | tuple[int, int] | None = None,
        routing: str = "agreement",
        bias: bool = True,
        rows: int = 1,
        squash: str | None = None,
        relu: str = "none",
        impl: str = "auto",
        **options: Any,
    ) -> None:
        kernel = as_pair("kernel_size", kernel_size)
        check_count("in_types", in_types)
        check_count("stride", stride)
        check_count("padding", padding, least=0)
        super().__init__(
            kernel[0] * kernel[1] * in_types,
            in_dim,
            out_types,
            out_dim,
            routing=routing,
            bias=bias,
            prior=False,
            shared=False,
            rows=rows,
            squash=squash,
            relu=relu,
            impl=impl,
            positions=_positions(routing, kernel, stride, padding, grid_size),
            options=options,
        )
        self.in_types, self.kernel_size, self.stride, self.padding = in_types, kernel, stride, padding

    def forward(
        self,
        below: Tensor | Routed,
        activations: Tensor | None = None,
        *,
        trace: bool = False,
        need_couplings: bool = True,
    ) -> Routed:
        """Route the capsules under every window; arguments as for ``CapsuleLinear``."""
        below, activations = unpack(below, activations)
        B, H, W, N, _ = dims(below, "B H W N P", name="poses", N=self.in_types, P=self.in_dim)
        patches = self._gather(below)  # [B, H', W', I, P]
        height, width = patches.shape[1:3]
        if activations is not None:
            dims(activations, "B H W N", name="activations", B=B, H=H, W=W, N=N)
            activations = rearrange(self._gather(activations[..., None]), "b h w i 1 -> (b h w) i")
        result = self._route(
            rearrange(patches, "b h w i p -> (b h w) i p"),
            activations,
            trace=trace,
            need_couplings=need_couplings,
            **self._per_position(B, (height, width)),
        )

        def unfold(tensor: Tensor) -> Tensor:
            return rearrange(tensor, "(b h w) ... -> b h w ...", h=height, w=width)

        return result.map(unfold)

    def _gather(self, grid: Tensor) -> Tensor:
        return gather_patches(grid, kernel_size=self.kernel_size, stride=self.stride, padding=self.padding)

    def _per_position(self, B: int, positions: tuple[int, int]) -> dict[str, Tensor]:
        if self.positions is None:
            return {}
        if positions != self.positions:
            raise ValueError(f"poses has {positions} windows; expected {self.positions}, from grid_size at construction")
        return {"couplings": repeat(self.get_parameter("couplings"), "l i j -> (b l) i j", b=B)}


def _positions(
    routing: str, kernel: tuple[int, int], stride: int, padding: int, grid_size: int | tuple[int, int] | None
) -> tuple[int, int] | None:
    if "couplings" not in R.get(routing).required:
        if grid_size is not None:
            as_pair("grid_size", grid_size)
        return None
    if grid_size is None:
        raise ValueError(f"grid_size=None does not go with routing={routing!r}: couplings are learned per position")
    grid = as_pair("grid_size", grid_size)
    height, width = (conv_size(grid[k], kernel[k], stride, padding) for k in (0, 1))
    if min(height, width) < 1:
        raise ValueError(f"grid_size={grid_size!r} is too small; expected at least kernel_size={kernel} less the padding")
    return height, width
