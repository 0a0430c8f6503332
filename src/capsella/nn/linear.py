"""Fully connected capsules."""

from __future__ import annotations

from typing import Any

from einops import rearrange
from torch import Tensor

from capsella.nn.base import RoutingLayer, unpack
from capsella.routing import Routed
from capsella.shapes import dims


class CapsuleLinear(RoutingLayer):
    r"""Route every lower capsule to every upper one (Sabour et al. 2017; every paper here uses it).

        û_ij = u_i W_ij,    (v_j, a_j) = routing(û) with bias_j

    Args:
        in_capsules: I.
        in_dim: P, their pose size.
        out_capsules: J.
        out_dim: D, their pose size.
        routing: registry name, see ``capsella.routing.names()``.
        bias: learn a bias per value of the upper capsules; without one agreement and EM cannot tell x from −x (peer2022).
        prior: learn the logits that agreement starts from (mitterreiter2023).
        shared: one weight for all lower capsules (gu2021's Aff-CapsNet).
        rows: for poses that are matrices of so many rows, multiplied from the right.
        squash: kind of squash; the algorithm's own if None.
        relu: ``"none"``, ``"before"`` or ``"after"`` the squash (chen2019); only for routing without iterations.
        residual: add the lower capsules to the routed ones, as many and as long, and squash the sum.
        impl: implementation of the routing, ``"auto"`` lets the dispatcher choose.
        **options: further options of the algorithm, such as ``num_iters``.

    Shapes:
        below [B, I, P], or a grid [B, H, W, N, P] with H·W·N = I, or the ``Routed`` of the layer below
        -> ``Routed`` with poses [B, J, D], activations [B, J], couplings [B, I, J].

    Example:
        >>> import torch
        >>> layer = CapsuleLinear(1152, 8, 10, 16, num_iters=3)
        >>> layer(torch.randn(2, 1152, 8)).poses.shape
        torch.Size([2, 10, 16])
    """

    def __init__(
        self,
        in_capsules: int,
        in_dim: int,
        out_capsules: int,
        out_dim: int,
        *,
        routing: str = "agreement",
        bias: bool = True,
        prior: bool = False,
        shared: bool = False,
        rows: int = 1,
        squash: str | None = None,
        relu: str = "none",
        residual: bool = False,
        impl: str = "auto",
        **options: Any,
    ) -> None:
        super().__init__(
            in_capsules,
            in_dim,
            out_capsules,
            out_dim,
            routing=routing,
            bias=bias,
            prior=prior,
            shared=shared,
            rows=rows,
            squash=squash,
            relu=relu,
            residual=residual,
            impl=impl,
            positions=None,
            options=options,
        )

    def forward(
        self,
        below: Tensor | Routed,
        activations: Tensor | None = None,
        *,
        trace: bool = False,
        need_couplings: bool = True,
    ) -> Routed:
        """Route the capsules below.

        Args:
            below: lower poses, or the ``Routed`` that holds them and their activations.
            activations: of the lower capsules, for EM; pose lengths if None.
            trace: keep the couplings of every iteration.
            need_couplings: return the last couplings; False lets a fused implementation leave them out.
        """
        below, activations = unpack(below, activations)
        if below.ndim == 5:
            below = rearrange(below, "b h w n p -> b (h w n) p")
            if activations is not None and activations.ndim == 4:
                activations = rearrange(activations, "b h w n -> b (h w n)")
        dims(below, "B I P", name="poses", I=self.in_capsules, P=self.in_dim)
        return self._route(below, activations, trace=trace, need_couplings=need_couplings)
