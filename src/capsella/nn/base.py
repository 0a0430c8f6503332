"""What fully connected and convolutional capsule layers share: weights, learned routing tensors, one call into routing."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from capsella import routing as R
from capsella.errors import check_choice, check_count, check_flag, check_options
from capsella.functional import length
from capsella.functional import squash as apply_squash
from capsella.functional.squash import KINDS
from capsella.routing import Algorithm, Routed
from capsella.shapes import check_floating

# what the layer itself decides; everything else an algorithm takes may be given to the constructor.
_FROM_LAYER = ("activations", "bias", "squash", "trace", "need_couplings")


class RoutingLayer(nn.Module):
    """Weights [I, J, P/R, D/R], the routing algorithm's learned tensors, an optional bias [J, D].

    Args:
        in_capsules: I, lower capsules that vote for one set of upper ones.
        in_dim: P, their pose size.
        out_capsules: J.
        out_dim: D.
        routing: registry name of the algorithm.
        bias: learn a bias per value of the upper capsules; without one agreement and EM cannot tell x from −x (peer2022).
        prior: learn the logits that agreement starts from.
        shared: one weight for all lower capsules.
        rows: R, for poses that are matrices of R rows.
        squash: kind of squash; the algorithm's own if None.
        relu: ``"none"``, ``"before"`` or ``"after"`` the squash (chen2019); only for routing without iterations.
        residual: add the lower capsules to the routed ones, as many and as long, and squash the sum.
        impl: implementation of the routing.
        positions: (rows, columns) of a convolution's windows, where each learns couplings of its own.
        options: further options of the algorithm.
    """

    def __init__(
        self,
        in_capsules: int,
        in_dim: int,
        out_capsules: int,
        out_dim: int,
        *,
        routing: str,
        bias: bool,
        prior: bool,
        shared: bool,
        rows: int,
        squash: str | None,
        relu: str,
        impl: str,
        positions: tuple[int, int] | None,
        options: dict[str, Any],
        residual: bool = False,
    ) -> None:
        super().__init__()
        sizes = {"in_capsules": in_capsules, "in_dim": in_dim, "out_capsules": out_capsules, "out_dim": out_dim}
        for name, value in sizes.items():
            check_count(name, value)
        for name, flag in (("bias", bias), ("prior", prior), ("shared", shared), ("residual", residual)):
            check_flag(name, flag)
        check_count("rows", rows)
        for name in ("in_dim", "out_dim"):
            if sizes[name] % rows:
                raise ValueError(f"{name}={sizes[name]} is no multiple of rows={rows}; a pose is a matrix of that many rows")
        self.routing = R.get(routing).name
        self.in_capsules, self.in_dim = in_capsules, in_dim
        self.out_capsules, self.out_dim = out_capsules, out_dim
        self.rows, self.impl, self.relu, self.shared, self.options = rows, impl, relu, shared, dict(options)
        learned = (*self.algorithm.required, *self.algorithm.optional)
        known = [name for name in self.algorithm.options if name not in (*_FROM_LAYER, *learned)]
        check_options(f"{type(self).__name__} with routing={routing!r}", options, known)
        if "num_iters" in options:
            check_count("num_iters", options["num_iters"])
        self._check_relu()
        self.squash = self._check_squash(squash)
        self.residual = residual
        self._check_residual()

        self.weight = nn.Parameter(torch.empty(1 if shared else in_capsules, out_capsules, in_dim // rows, out_dim // rows))
        self.bias = nn.Parameter(torch.empty(out_capsules, out_dim)) if bias else None
        if prior and "prior" not in self.algorithm.optional:
            raise ValueError(f"prior=True does not go with routing={routing!r}; only 'agreement' starts from a prior")
        self.learned = [*self.algorithm.required, *(["prior"] if prior else [])]
        self.positions = positions
        with torch.device("meta"):
            shapes = {name: start.shape for name, start in self._starts().items()}
        for name, shape in shapes.items():
            self.register_parameter(name, nn.Parameter(torch.empty(shape)))
        self.reset_parameters()

    @property
    def algorithm(self) -> Algorithm:
        """The registered algorithm; looked up by name, so that a layer can be pickled and copied."""
        return R.get(self.routing)

    def reset_parameters(self) -> None:
        """Draw weights uniformly in ±1/√I, set the bias to 0.1 and learned routing tensors to their start."""
        bound = self.in_capsules**-0.5
        with torch.no_grad():
            self.weight.uniform_(-bound, bound)
            if self.bias is not None:
                self.bias.fill_(0.1)
            for name, start in self._starts().items():
                self.get_parameter(name).copy_(start)

    def coupling_parameters(self) -> Iterator[nn.Parameter]:
        """Yield the tensors that the algorithm moves by its own steps: the couplings of ``quadratic``."""
        if self.algorithm.own_step:
            yield from (self.get_parameter(name) for name in self.learned)

    def extra_repr(self) -> str:
        """Show sizes and routing."""
        shown: dict[str, Any] = {"routing": self.routing, "bias": self.bias is not None, "squash": self.squash}
        # what is seldom asked for is only shown where it is.
        rare = {
            "prior": "prior" in self.learned,
            "shared": self.shared,
            "rows": self.rows,
            "relu": self.relu,
            "residual": self.residual,
        }
        usual = {"prior": False, "shared": False, "rows": 1, "relu": "none", "residual": False}
        shown |= {key: value for key, value in rare.items() if value != usual[key]} | self.options
        sizes = f"{self.in_capsules}×{self.in_dim} -> {self.out_capsules}×{self.out_dim}"
        return ", ".join([sizes, *(f"{key}={value!r}" for key, value in shown.items())])

    def _starts(self) -> dict[str, Tensor]:
        def draw(name: str) -> Tensor:
            return self.algorithm.init(self.in_capsules, self.out_capsules, self.out_dim)[name]

        windows = math.prod(self.positions) if self.positions else 0
        # only couplings are per position: betas and priors are as shared as the weights.
        return {
            name: torch.stack([draw(name) for _ in range(windows)]) if windows and name == "couplings" else draw(name)
            for name in self.learned
        }

    def with_residual(self, poses: Tensor, result: Routed) -> Routed:
        """Add the lower capsules [B, I, P] to what was routed from them, and squash the sum."""
        above = apply_squash(poses + result.poses, kind=self.squash or "none")
        return replace(result, poses=above, activations=length(above))

    def _check_relu(self) -> None:
        check_choice("relu", self.relu, ("none", "before", "after"))
        if self.relu != "none" and self.algorithm.is_iterative:
            raise ValueError(
                f"relu={self.relu!r} does not go with routing={self.algorithm.name!r}, which squashes in every iteration"
            )

    def _check_residual(self) -> None:
        if not self.residual:
            return
        if (self.in_capsules, self.in_dim) != (self.out_capsules, self.out_dim):
            sizes = f"{self.in_capsules}×{self.in_dim} -> {self.out_capsules}×{self.out_dim}"
            raise ValueError(f"residual=True does not go with {sizes}; expected as many capsules of the same size")
        if self.squash is None or self.algorithm.own_step or self.relu != "none":
            what = f"routing={self.algorithm.name!r}, relu={self.relu!r}"
            raise ValueError(f"residual=True does not go with {what}; expected a routing that squashes, and no ReLU")

    def _check_squash(self, squash: str | None) -> str | None:
        """Return the kind of squash, the algorithm's default spelled out; None for EM, which has none."""
        if "squash" not in self.algorithm.options:
            if squash not in (None, "none"):
                raise ValueError(f"squash={squash!r} does not go with routing={self.algorithm.name!r}, which has none")
            return None
        kind = squash or str(self.algorithm.default("squash"))
        check_choice("squash", kind, KINDS)
        return kind

    def _route(
        self, poses: Tensor, activations: Tensor | None, *, trace: bool, need_couplings: bool, **overrides: Tensor
    ) -> Routed:
        """Route capsules [B, I, P]; ``overrides`` replace learned tensors (couplings repeated over positions)."""
        options: dict[str, Any] = {name: self.get_parameter(name) for name in self.learned} | overrides
        if self.algorithm.own_step:
            options = {name: value.detach() for name, value in options.items()}
        options |= self.options | {"trace": trace, "need_couplings": need_couplings, "bias": self.bias}
        if self.algorithm.needs_activations:
            options["activations"] = length(poses) if activations is None else activations
        if self.squash is not None:
            options["squash"] = "none" if self.relu == "before" else self.squash
        result = R.vote_and_route(self.algorithm.name, poses, self.weight, rows=self.rows, impl=self.impl, **options)
        if self.residual:
            return self.with_residual(poses, result)
        if self.relu == "none":
            return result
        above = result.poses.relu()
        if self.relu == "before":
            above = apply_squash(above, kind=self.squash or "none")
        return replace(result, poses=above, activations=length(above))


def unpack(below: Tensor | Routed, activations: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Return poses and activations, taking the latter from a ``Routed`` where they are not given."""
    if isinstance(below, Routed):
        return below.poses, below.activations if activations is None else activations
    check_floating(below, name="poses")
    return below, activations


def coupling_parameters(module: nn.Module) -> Iterator[nn.Parameter]:
    """Yield every parameter in ``module`` that a routing algorithm moves by its own steps."""
    for layer in module.modules():
        if isinstance(layer, RoutingLayer):
            yield from layer.coupling_parameters()
