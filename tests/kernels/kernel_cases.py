"""Routing problems for the fused kernels, as data: what the interpreter and a GPU are both asked to solve."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from convolution_cases import CONVOLUTIONS
from torch import Tensor

from capsella import routing
from capsella.routing.base import IMPLEMENTATIONS, Implementation, Routed
from capsella.testing import SMALL, Case, generator, make_options

FUSED = {entry.algorithm: entry for entry in IMPLEMENTATIONS if entry.name == "fused"}
IN_PLAIN_PYTORCH = [entry for entry in IMPLEMENTATIONS if entry.name in ("chunked", "tiled", "matmul")]
ALGORITHMS = ("agreement", "em", "quadratic", "trainable", "uniform")


def id_of(entry: Implementation) -> str:
    """Name an implementation for pytest."""
    return f"{entry.algorithm}-{entry.name}"


@dataclass(frozen=True)
class Problem:
    """One call to compare with the reference.

    Attributes:
        algorithm: registry name.
        sizes: D and P are whole poses.
        options: those that are no tensors.
        shared: one weight for all lower capsules.
        rows: of a matrix pose.
        optional: whether a bias and a prior are given.
        dtype: to test in.
        mixed: poses are float16 and the rest ``dtype``, as under autocast.
        scale: of the poses.
        prior: what is put in the first column of the prior; None for what is drawn.
        dead: how many lower capsules have an activation of zero.
        flat: factor of the first upper capsule's weight; near zero, the votes of those that are not dead agree.
        loud: factor of the activations.
        only: which of the results is differentiated, ``"poses"`` or ``"activations"``; both if None.
    """

    algorithm: str
    sizes: Case
    options: dict[str, Any] = field(default_factory=dict)
    shared: bool = False
    rows: int = 1
    optional: bool = True
    dtype: torch.dtype = torch.float32
    mixed: bool = False
    scale: float = 1.0
    prior: float | None = None
    dead: int = 0
    flat: float = 1.0
    loud: float = 1.0
    only: str | None = None

    def __str__(self) -> str:
        usual = Problem(self.algorithm, self.sizes)
        names = ("options", "shared", "rows", "optional", "dtype", "mixed", "scale", "prior", "dead", "flat", "loud", "only")
        differs = [f"{name}={getattr(self, name)}" for name in names if getattr(self, name) != getattr(usual, name)]
        sizes = " ".join(f"{letter}{getattr(self.sizes, letter)}" for letter in "BIJDP")
        return " ".join([self.algorithm, self.sizes.name, sizes, *differs])

    def inputs(self) -> dict[str, Tensor]:
        """Draw everything in float64; the votes come out about as long as in a net."""
        case, R, rng = self.sizes, self.rows, generator(3)
        given = {"poses": self.scale * torch.randn(case.B, case.I, case.P, generator=rng, dtype=torch.float64)}
        size = (1 if self.shared else case.I, case.J, case.P // R, case.D // R)
        given["weight"] = torch.randn(size, generator=rng, dtype=torch.float64) * (case.P * case.D) ** -0.5
        given["weight"][self.dead :, 0] *= self.flat
        given |= make_options(self.algorithm, case, optional=self.optional)
        if self.prior is not None:
            given["prior"][:, 0] = self.prior
        if self.loud != 1:
            given["activations"] *= self.loud
        if self.dead:
            given["activations"][:, : self.dead] = 0
        return given

    def tested(self) -> Callable[..., list[Tensor]]:
        """Return the fused kernels as a function of the inputs, past the dispatcher, which would refuse a CPU."""
        return self._function(lambda *tensors, **options: FUSED[self.algorithm].run(*tensors, **options))

    def reference(self) -> Callable[..., list[Tensor]]:
        """Return the reference as a function of the inputs."""

        def run(poses: Tensor, weight: Tensor, **options: Any) -> Routed:
            weight = weight.to(poses.dtype)
            return routing.vote_and_route(self.algorithm, poses, weight, impl="reference", **options)

        return self._function(run)

    def _function(self, run: Callable[..., Routed]) -> Callable[..., list[Tensor]]:
        def function(poses: Tensor, weight: Tensor, **tensors: Tensor) -> list[Tensor]:
            if self.mixed and poses.dtype != torch.float64:
                poses = poses.half()
            result = run(poses, weight, rows=self.rows, need_couplings=False, **tensors, **self.options)
            if self.only is not None:
                return [getattr(result, self.only)]
            return [result.poses, result.activations]

        return function


def with_sizes(case: Case, **sizes: int) -> Case:
    """Return a case with other sizes under its name."""
    return replace(case, **sizes)  # type: ignore[arg-type]


PLAIN, PRIMES, ONE_LOWER, ONE_UPPER, ONE_VALUE, ONE_SAMPLE = SMALL
# four lower capsules fill a tile of poses of 16 values and more, 64 samples one of samples.
MATRICES = Case("matrices", B=3, I=6, J=3, D=16, P=16)
MANY_UPPER = Case("many-upper", B=2, I=5, J=17, D=4, P=8)
MANY_SAMPLES = Case("many-samples", B=70, I=3, J=2, D=4, P=16)
MANY_LOWER = Case("many-lower", B=2, I=70, J=2, D=3, P=8)
LARGE_POSES = Case("large-poses", B=2, I=5, J=2, D=40, P=33)

HALF = torch.float16

TWICE = {"num_iters": 2}

AGREEMENT = (
    Problem("agreement", PLAIN),
    Problem("agreement", PLAIN, dtype=HALF),
    Problem("agreement", PLAIN, TWICE, mixed=True),
    Problem("agreement", PLAIN, TWICE, only="activations"),
    Problem("agreement", PLAIN, scale=0.0, optional=False),
    Problem("agreement", PLAIN, TWICE, prior=150.0),
    Problem("agreement", PLAIN, TWICE, prior=float("-inf")),
    Problem("agreement", PRIMES, {"num_iters": 2, "squash": "exp"}),
    Problem("agreement", ONE_LOWER, {"num_iters": 1}, optional=False),
    Problem("agreement", ONE_LOWER, {"num_iters": 1}),
    Problem("agreement", ONE_UPPER, {"num_iters": 2, "squash": "none"}),
    Problem("agreement", ONE_VALUE, {"num_iters": 5}),
    Problem("agreement", ONE_SAMPLE, {"num_iters": 4}, optional=False),
    Problem("agreement", MATRICES, TWICE, rows=4),
    Problem("agreement", MATRICES, TWICE, rows=2, shared=True),
    Problem("agreement", MANY_UPPER, TWICE),
    Problem("agreement", MANY_SAMPLES, TWICE, shared=True),
    # registers hold all upper capsules while a program goes through several tiles.
    Problem("agreement", MANY_LOWER, TWICE, dtype=HALF),
    Problem("trainable", PLAIN),
    Problem("trainable", MANY_LOWER, shared=True, optional=False),
    Problem("quadratic", PRIMES, dtype=HALF),
    Problem("quadratic", MANY_SAMPLES, optional=False),
    Problem("uniform", PRIMES, {"normalise": "sources", "squash": "exp"}),
    Problem("uniform", ONE_VALUE, {"normalise": "targets"}, shared=True),
)
"""What the default suite solves in the interpreter: every option, every edge."""

# many more lower capsules than values: a Gaussian on few votes is a singularity, where float32 has no digits to compare.
ENOUGH = Case("enough", B=3, I=11, J=2, D=3, P=5)
COLD: dict[str, Any] = {"inverse_temperature": 0.01}
COLD_TWICE = {**COLD, **TWICE}

EM = (
    Problem("em", ENOUGH, COLD),
    Problem("em", ENOUGH, {**COLD, "num_iters": 1}, optional=False),
    Problem("em", ENOUGH, routing.peer2022_options(2)),
    Problem("em", ENOUGH, {"num_iters": 2, "inverse_temperature": (0.01, 0.02)}, dtype=HALF),
    Problem("em", ENOUGH, COLD_TWICE, dead=3, only="activations"),
    Problem("em", with_sizes(ENOUGH, D=4, P=8), {**COLD_TWICE, "cost_log": "variance"}, rows=2),
    Problem("em", with_sizes(ENOUGH, D=4, P=4), COLD_TWICE, rows=2, shared=True),
    Problem("em", with_sizes(ENOUGH, J=1, D=1, P=1, B=1), {**COLD, "normaliser": "constant"}, optional=False),
    Problem("em", ONE_LOWER, {**COLD_TWICE, "eps": 1e-2}),
    # poses so long that iterations are not written out.
    Problem("em", with_sizes(ENOUGH, B=2, I=12, D=17, P=3), COLD_TWICE, optional=False),
)

FINITE = (
    # the others' shares of every vote are below float32's smallest number.
    Problem("em", with_sizes(ENOUGH, B=2, I=8, D=16, P=4), COLD_TWICE, flat=1e-6),
    # a capsule that is off is all that the others leave to an upper one: its share of that is one over next to nothing.
    Problem("em", with_sizes(ENOUGH, B=2, I=8, D=16, P=4), COLD_TWICE, flat=1e-6, dead=2, loud=30),
    Problem("em", ENOUGH, COLD, dead=ENOUGH.I),
    Problem("em", with_sizes(ENOUGH, I=5), COLD_TWICE, scale=0.0),
)
"""Singular problems, where rounding decides the digits but nothing may be lost."""

SLOW_AGREEMENT = (
    Problem("agreement", PLAIN, {"squash": "exp"}, scale=1e-20, optional=False),
    Problem("agreement", PLAIN, TWICE, only="poses"),
    *(Problem("agreement", case, {"num_iters": T}) for case in SMALL for T in (1, 2, 3, 4, 5)),
    *(Problem("agreement", case, {"squash": kind}) for case in SMALL for kind in ("exp", "none")),
    *(Problem("agreement", case, shared=True, dtype=dtype) for case in SMALL for dtype in (torch.float32, HALF)),
    *(Problem(name, case, dtype=dtype) for name in ALGORITHMS[2:] for case in SMALL for dtype in (torch.float32, HALF)),
    *(Problem("agreement", MATRICES, rows=R, shared=shared) for R in (1, 2, 4, 8, 16) for shared in (False, True)),
    *(Problem("agreement", LARGE_POSES, dtype=dtype) for dtype in (torch.float32, HALF)),
    Problem("agreement", MANY_LOWER),
    Problem("agreement", Case("tiles", B=70, I=70, J=3, D=16, P=8), shared=True),
    Problem("agreement", Case("tiles", B=130, I=40, J=17, D=12, P=8)),
    # more chunks than are added up at once.
    Problem("agreement", Case("chunks", B=2, I=1100, J=2, D=3, P=16), {"num_iters": 2}),
)
SLOW_EM = (
    Problem("em", with_sizes(ENOUGH, B=17, I=9, J=1, D=2, P=2), COLD_TWICE, shared=True, optional=False),
    Problem("em", ENOUGH, COLD_TWICE, only="poses"),
    Problem("em", ENOUGH, COLD_TWICE, mixed=True),
    *(Problem("em", with_sizes(ENOUGH, I=43, J=3, D=5), {**COLD, "num_iters": T}) for T in (1, 2, 4, 5)),
    *(
        Problem("em", ENOUGH, {**COLD, "cost_log": cost, "normaliser": normaliser, "output": output}, shared=shared)
        for cost in ("std", "variance")
        for normaliser in ("gaussian", "constant")
        for output in ("mean", "scaled")
        for shared in (False, True)
    ),
    *(Problem("em", with_sizes(ENOUGH, I=60, D=16, P=16), COLD, rows=R) for R in (1, 2, 4, 8, 16)),
    Problem("em", with_sizes(ENOUGH, B=70, I=60, D=8), COLD),
    Problem("em", with_sizes(ENOUGH, I=170, D=40, P=33, J=2), {**COLD, "num_iters": 2}),
    Problem("em", with_sizes(ENOUGH, I=270, J=1, D=3, P=2), COLD),
)
"""The rest, for the slow suite."""

GROUPS = {
    **{"agreement": AGREEMENT, "em": EM, "convolution": CONVOLUTIONS},
    **{"agreement-slow": SLOW_AGREEMENT, "em-slow": SLOW_EM},
}
