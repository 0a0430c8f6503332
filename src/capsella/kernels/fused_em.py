"""The fused EM routing as operators of torch: launchers, ``torch.library`` registration, gradients.

The operators stop at the last fit: means and log odds. What makes poses and activations of them is plain torch outside.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from capsella.kernels.fused_agreement import TYPES, Tiles, add_splits, on_device_of, power
from capsella.kernels.plain_tiles import refuse_twice
from capsella.kernels.triton_em import gradients_kernel, levels_kernel, sums_kernel
from capsella.kernels.triton_em_small import finish_kernel, turn_kernel


class Plan(NamedTuple):
    """Tiles of the kernels."""

    levels: Tiles
    sums: Tiles
    gradients: Tiles


def plan(B: int, BP: int, BD: int, width: int = 2) -> Plan:
    """Choose tiles for factors of ``width`` bytes; measured on an H200 (``capsella bench routing``)."""
    BB, most = (64, 128) if BD == 16 else (32, 32) if BD == 32 else (16, 16)
    if BP * width > 32:
        most = min(most, 64)  # or its tiles do not fit into shared memory
    BB, most = min(BB, power(B, 16)), min(most, power(B, 16))
    ahead = BP * BD * width <= 1 << 9
    return Plan(
        levels=Tiles(BB, 4, num_stages=3 if ahead else 1, maxnreg=255),
        sums=Tiles(BB, 4, num_stages=4 if ahead else 1, maxnreg=255, resident=2),
        gradients=Tiles(
            most,
            4,
            num_warps=8 if most == 128 else 4,
            num_stages=2 if ahead else 1,
            maxnreg=255,
            resident=1 if most == 128 else 2,
        ),
    )


class Fit(NamedTuple):
    """Two rows and a number of every upper capsule: a fit μ, 1/σ² with its constant, or a pull A, C with its α."""

    rows: Tensor
    scalar: Tensor


class _Job:
    """What all launches of one call share."""

    def __init__(self, poses: Tensor, weight: Tensor, active: Tensor, rows: int) -> None:
        self.poses, self.weight, self.active = poses.contiguous(), weight.contiguous(), active.contiguous()
        self.B, self.I, self.P = poses.shape
        self.J, self.D, self.rows = weight.shape[1], weight.shape[3] * rows, rows
        self.shared = weight.shape[0] == 1
        self.step = 0 if self.shared else self.J * weight.shape[2] * weight.shape[3]
        self.device = poses.device
        BP, BD = power(self.P, 4), power(self.D, 16)
        self.tiles = plan(self.B, BP, BD, poses.element_size())
        self.BD = BD
        self.const = {
            "J": self.J,
            "P": self.P,
            "D": self.D,
            "R": rows,
            "BP": BP,
            "BD": BD,
            # EM multiplies what votes are off by: float32 votes are made in float32, without the matrix units.
            "PRECISION": "ieee",
        }

    @property
    def upper(self) -> int:
        """How many upper capsules there are in a batch."""
        return self.B * self.J

    def wide(self, *size: int) -> Tensor:
        return torch.empty(size, dtype=torch.float32, device=self.device)

    def sums(
        self,
        kind: str,
        fit: Fit,
        after: Fit,
        *,
        pull: Fit | None = None,
        log: Tensor | None = None,
        level: Tensor | None = None,
        mean: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return the sums of each program, [chunks, 3, B·J, D], and what those of "step" were divided by, [chunks, B·J]."""
        of = self.tiles.sums
        blocks, all_tiles = -(-self.B // of.BB), -(-self.I // of.BI)
        records = (fit.rows, fit.scalar, after.rows, *(fit if pull is None else pull), fit.scalar if log is None else log)
        others = (fit.scalar if level is None else level, fit.scalar if mean is None else mean)
        if kind in ("step", "pull"):
            self._levels(records, others, pull=kind == "pull")
        chunks, tiles = of.split(all_tiles, blocks * self.J, self.device)
        parts, tops = self.wide(chunks, 3, self.upper, self.D), self.wide(chunks, self.upper)
        sums_kernel[(blocks, chunks, self.J)](
            self.poses,
            self.weight,
            self.active,
            *records,
            *others,
            parts,
            tops,
            self.B,
            self.I,
            self.step,
            tiles,
            KIND=kind,
            **self.const,
            **of.launch,
        )
        return parts, tops

    def _levels(self, records: tuple[Tensor, ...], others: tuple[Tensor, Tensor], *, pull: bool) -> None:
        """Fill the levels, or with a pull the means."""
        of = self.tiles.levels
        levels_kernel[(-(-self.I // of.BI), -(-self.B // of.BB))](
            self.poses,
            self.weight,
            self.active,
            *records,
            *others,
            self.B,
            self.I,
            self.step,
            PULL=pull,
            **self.const,
            **of.launch,
        )

    def over_rows(self, chunks: int) -> tuple[tuple[int], dict[str, int]]:
        """Grid and tile sizes of the kernels that go over [B·J, D]."""
        BR = max(1, 64 // self.BD)
        return (-(-self.upper // BR),), {"J": self.J, "D": self.D, "BR": BR, "BC": min(64, power(chunks, 1)), "BD": self.BD}


@torch.library.custom_op("capsella::em", mutates_args=())
def em_op(
    poses: Tensor,
    weight: Tensor,
    active: Tensor,
    scale: Tensor,
    beta_a: Tensor,
    beta_u: Tensor,
    temperatures: Sequence[float],
    eps: float,
    half: bool,
    gaussian: bool,
    rows: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Fit Gaussians to the votes of [B, I, P]; means [B, J, D] and log odds [B, J] of the last, and what the way back needs.

    Args:
        poses: lower poses.
        weight: [I, J, P/R, D/R] or [1, J, P/R, D/R].
        active: activations of the lower capsules, [B, I], positive, divided by ``scale``.
        scale: [B], the largest of each sample: what is left of them can be added up in float32 however small they are. No
            gradient: the result does not depend on it.
        beta_a: [J].
        beta_u: [J].
        temperatures: λ of every iteration.
        eps: added to every variance.
        half: whether the cost takes the logarithm of σ and not of σ².
        gaussian: whether the density has its normaliser.
        rows: R of a matrix pose.

    Returns:
        means, log odds, then of all iterations: variances [T, B·J, D], log Σ r, log odds and constants [3, T, B·J], fits
        [T, B·J, 2, ·], denominators [T−1, B, I], and the weight as a factor (empty if it is one).
    """
    with on_device_of(poses):
        return _forward(poses, weight, active, scale, beta_a, beta_u, temperatures, eps, half, gaussian, rows)


def _forward(
    poses: Tensor,
    weight: Tensor,
    active: Tensor,
    scale: Tensor,
    beta_a: Tensor,
    beta_u: Tensor,
    temperatures: Sequence[float],
    eps: float,
    half: bool,
    gaussian: bool,
    rows: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    factor = weight.to(poses.dtype, memory_format=torch.contiguous_format)
    job = _Job(poses, factor, active, rows)
    T, D, upper = len(temperatures), job.D, job.upper
    variances, scalars = job.wide(T, upper, D), job.wide(3, T, upper)
    fits, levels = job.wide(T, upper, 2, job.BD), job.wide(T - 1, job.B, job.I)
    means = job.wide(job.B, job.J, D)
    beta_a, beta_u, scale = (x.float().contiguous() for x in (beta_a, beta_u, scale))

    def finish(t: int, sums: tuple[Tensor, Tensor], about: Fit, *, mean_only: bool = False) -> None:
        parts, tops = sums
        grid, const = job.over_rows(len(parts))
        finish_kernel[grid](
            parts,
            tops,
            scale,
            about.rows,
            beta_a,
            beta_u,
            scalars[0, t],
            means,
            variances[t],
            scalars[1, t],
            fits[t],
            scalars[2, t],
            upper,
            len(parts),
            eps,
            temperatures[t],
            MEAN_ONLY=mean_only,
            TOPS=mean_only and t > 0,
            HALF=half,
            GAUSSIAN=gaussian,
            **const,
        )

    before = Fit(torch.zeros_like(fits[0]), scalars[2, 0])
    for t in range(T):
        # the mean first, then the squares around it.
        fit = Fit(fits[t], scalars[2, t])
        if t == 0:
            finish(t, job.sums("first", before, before), before, mean_only=True)
            sums = job.sums("first", before, fit)
        else:
            finish(t, job.sums("step", before, before, level=levels[t - 1]), before, mean_only=True)
            sums = job.sums("spread", before, fit, log=scalars[0, t], level=levels[t - 1])
        finish(t, sums, fit)
        before = fit
    odds = scalars[1, -1].reshape(job.B, job.J).clone()
    return means, odds, variances, scalars, fits, levels, factor if weight.dtype != poses.dtype else poses.new_empty(0)


@em_op.register_fake
def _(
    poses: Tensor,
    weight: Tensor,
    active: Tensor,
    scale: Tensor,
    beta_a: Tensor,
    beta_u: Tensor,
    temperatures: Sequence[float],
    eps: float,
    half: bool,
    gaussian: bool,
    rows: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    B, I, _ = poses.shape
    J, D, T = weight.shape[1], weight.shape[3] * rows, len(temperatures)
    wide = poses.new_empty(0, dtype=torch.float32)
    return (
        wide.new_empty(B, J, D),
        wide.new_empty(B, J),
        wide.new_empty(T, B * J, D),
        wide.new_empty(3, T, B * J),
        wide.new_empty(T, B * J, 2, power(D, 16)),
        wide.new_empty(T - 1, B, I),
        weight.new_empty(weight.shape if weight.dtype != poses.dtype else (0,), dtype=poses.dtype),
    )


@torch.library.custom_op("capsella::em_backward", mutates_args=())
def em_backward_op(
    d_means: Tensor,
    d_odds: Tensor,
    poses: Tensor,
    weight: Tensor,
    active: Tensor,
    scale: Tensor,
    beta_u: Tensor,
    variances: Tensor,
    scalars: Tensor,
    fits: Tensor,
    levels: Tensor,
    temperatures: Sequence[float],
    eps: float,
    half: bool,
    gaussian: bool,
    rows: int,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of poses, weight (in ``dtype``), activations and both betas."""
    with on_device_of(poses):
        return _gradients(
            d_means,
            d_odds,
            poses,
            weight,
            active,
            scale,
            beta_u,
            variances,
            scalars,
            fits,
            levels,
            temperatures,
            eps,
            half,
            gaussian,
            rows,
            dtype,
        )


def _gradients(
    d_means: Tensor,
    d_odds: Tensor,
    poses: Tensor,
    weight: Tensor,
    active: Tensor,
    scale: Tensor,
    beta_u: Tensor,
    variances: Tensor,
    scalars: Tensor,
    fits: Tensor,
    levels: Tensor,
    temperatures: Sequence[float],
    eps: float,
    half: bool,
    gaussian: bool,
    rows: int,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    job = _Job(poses, weight, active, rows)
    T, B, I, J, P, D, upper = len(temperatures), job.B, job.I, job.J, job.P, job.D, job.upper
    pulls, alphas, means = job.wide(T, upper, 2, job.BD), job.wide(T, upper), job.wide(T - 1, B, I)
    d_betas = job.wide(2, T, upper)
    d_means, d_odds, beta_u = d_means.contiguous(), d_odds.contiguous(), beta_u.float().contiguous()
    parts = d_means[None]
    for t in reversed(range(T)):
        if t + 1 < T:
            fit, after = (Fit(fits[k], scalars[2, k]) for k in (t, t + 1))
            pull, log = Fit(pulls[t + 1], alphas[t + 1]), scalars[0, t + 1]
            parts, _ = job.sums("pull", fit, after, pull=pull, log=log, level=levels[t], mean=means[t])
        grid, const = job.over_rows(len(parts))
        turn_kernel[grid](
            parts,
            d_means,
            d_odds,
            beta_u,
            scale,
            scalars[0, t],
            variances[t],
            scalars[1, t],
            pulls[t],
            alphas[t],
            d_betas[0, t],
            d_betas[1, t],
            upper,
            len(parts),
            eps,
            temperatures[t],
            LAST=t + 1 == T,
            HALF=half,
            GAUSSIAN=gaussian,
            **const,
        )
    del parts
    of = job.tiles.gradients
    all_tiles, all_blocks = -(-I // of.BI), -(-B // of.BB)
    if job.shared:
        (chunks, tiles), (splits, blocks) = of.split(all_tiles, 1, job.device), (1, all_blocks)
    else:
        (splits, blocks), (chunks, tiles) = of.split(all_blocks, all_tiles, job.device), (all_tiles, 1)
    d_poses, d_active = torch.empty_like(job.poses), job.wide(B, I)
    d_weight = job.wide(splits, chunks * of.BI if job.shared else I, J, rows, P // rows, D // rows)
    gradients_kernel[(chunks, splits)](
        job.poses,
        job.weight,
        job.active,
        fits,
        scalars[2],
        pulls,
        alphas,
        scalars[0],
        levels,
        means,
        d_poses,
        d_weight,
        d_active,
        B,
        I,
        job.step,
        tiles,
        blocks,
        T=T,
        SHARED=job.shared,
        TYPE=TYPES[poses.dtype],
        **job.const,
        **of.launch,
    )
    d_beta = d_betas.reshape(2, T * B, J).sum(1)
    return d_poses, add_splits(d_weight, dtype, shared=job.shared), d_active, d_beta[0].clone(), d_beta[1].clone()


@em_backward_op.register_fake
def _(
    d_means: Tensor,
    d_odds: Tensor,
    poses: Tensor,
    weight: Tensor,
    active: Tensor,
    scale: Tensor,
    beta_u: Tensor,
    variances: Tensor,
    scalars: Tensor,
    fits: Tensor,
    levels: Tensor,
    temperatures: Sequence[float],
    eps: float,
    half: bool,
    gaussian: bool,
    rows: int,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    J = weight.shape[1]
    return (
        torch.empty_like(poses, memory_format=torch.contiguous_format),
        variances.new_empty(weight.shape, dtype=dtype),
        variances.new_empty(active.shape),
        variances.new_empty(J),
        variances.new_empty(J),
    )


def _setup(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    poses, weight, active, scale, beta_a, beta_u, *ctx.rest = inputs
    _, _, variances, scalars, fits, levels, factor = output
    # of the other outputs nobody asks for a gradient; zeros in their place would be made for nothing.
    ctx.set_materialize_grads(False)
    ctx.sizes = (poses.shape[0], weight.shape[1], weight.shape[3] * inputs[-1])
    ctx.dtype, ctx.dtypes = weight.dtype, (active.dtype, beta_a.dtype, beta_u.dtype)
    ctx.save_for_backward(poses, factor if factor.numel() else weight, active, scale, beta_u, variances, scalars, fits, levels)


def _backward(ctx, d_means, d_odds, *unused):  # type: ignore[no-untyped-def]
    if d_means is None and d_odds is None:
        return (None,) * 11
    B, J, D = ctx.sizes
    d_means = d_odds.new_zeros(B, J, D) if d_means is None else d_means
    d_odds = d_means.new_zeros(B, J) if d_odds is None else d_odds
    d_poses, d_weight, *others = em_backward_op(d_means, d_odds, *ctx.saved_tensors, *ctx.rest, ctx.dtype)
    d_active, *d_betas = (d.to(dtype) for d, dtype in zip(others, ctx.dtypes, strict=True))
    return d_poses, d_weight, d_active, None, *d_betas, None, None, None, None, None


em_op.register_autograd(_backward, setup_context=_setup)
em_backward_op.register_autograd(refuse_twice)
