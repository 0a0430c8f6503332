"""The fused EM routing as operators of torch: launchers, ``torch.library`` registration, gradients.

Inside, the samples lie in N blocks of S, the tile that all kernels of a call have: every tensor is [.., N, .., S], the last
block filled up. The operators stop at the last fit, means and log odds; what makes poses and activations of them is plain torch
outside.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from capsella.kernels.fused_agreement import TYPES, Tiles, add_splits, on_device_of, power
from capsella.kernels.plain_tiles import refuse_twice
from capsella.kernels.triton_em import gradients_kernel, levels_kernel, sums_kernel
from capsella.kernels.triton_em_small import activate_kernel, finish_kernel, turn_kernel, turn_over_kernel

_SAMPLES = 32
_SMALL = 16
_INT32 = (1 << 31) - 1
# how many times as large as a variance the squares may be that it is the difference of: as many digits are lost as this has.
_LOST = {torch.float32: 2.0, torch.bfloat16: 256.0, torch.float16: 256.0}


# programs that share a weight have gradients of it each: at most so many numbers in all.
_OWN = 1 << 24


def too_large(sizes: Mapping[str, int], num_iters: int) -> list[str]:
    """Say which sizes the kernels cannot count in 32 bits, or CUDA in its grid."""
    B, J, D, P = sizes["B"] + -sizes["B"] % _SAMPLES, sizes["J"], sizes["D"], sizes["P"]
    counts = {
        "B": (B, 65535 * _SAMPLES),
        "2(T + 1)·J·D·B": (2 * (num_iters + 1) * J * D * B, _INT32),
        "3T·J·B": (3 * num_iters * J * B, _INT32),
        "J·P·D": (J * P * D, _OWN),
    }
    return [f"{name} is {count}, above {most}" for name, (count, most) in counts.items() if count > most]


class Plan(NamedTuple):
    """Tiles of the kernels."""

    levels: Tiles
    sums: Tiles
    pulled_sums: Tiles
    gradients: Tiles


def _blocks(samples: int, D: int) -> tuple[int, int]:
    """Return how many blocks of how many samples there are: 64 of poses up to 16 values if that fills no more room, else 32."""
    least = -(-samples // _SAMPLES)
    # no branch, for sizes that torch.compile leaves open.
    by = 1 + (least + 1) % 2 if D <= _SMALL else 1
    return least // by, by * _SAMPLES


def plan(BB: int, D: int) -> Plan:
    """Choose tiles for blocks of poses of D values; measured on an H200 (``capsella bench routing``)."""
    small = D <= _SMALL
    return Plan(
        levels=_tiles(BB, 2 if small else 1, warps=1),
        sums=_tiles(BB, ahead=2, registers=128, resident=8) if small else _tiles(BB, ahead=2, resident=6),
        pulled_sums=_tiles(BB, ahead=2, resident=4),
        gradients=_tiles(BB, resident=18),
    )


def _tiles(BB: int, BI: int = 1, *, warps: int = 0, ahead: int = 1, registers: int = 255, resident: int = 1) -> Tiles:
    """A thread for every sample, unless it is said how many warps there are."""
    return Tiles(BB, BI, num_warps=warps or BB // 32, num_stages=ahead, maxnreg=registers, resident=resident)


def _launch(tiles: Tiles) -> dict[str, int]:
    """The options of a kernel that takes one lower capsule after the other."""
    return {key: value for key, value in tiles.launch.items() if key != "BI"}


class Fit(NamedTuple):
    """2·D rows and a number of every upper capsule: a fit μ, 1/σ² with its constant, or a pull A, C with its α."""

    rows: Tensor
    scalar: Tensor


class _Job:
    """What all launches of one call share."""

    def __init__(self, lower: Tensor, weight: Tensor, active: Tensor, rows: int) -> None:
        self.lower, self.active, self.device = lower, active, lower.device
        self.weight = weight.to(lower.dtype).contiguous()
        self.N, self.I, self.P, self.S = lower.shape
        self.J, self.D = weight.shape[1], weight.shape[3] * rows
        self.shared = weight.shape[0] == 1
        self.step = 0 if self.shared else self.J * weight.shape[2] * weight.shape[3]
        self.tiles = plan(self.S, self.D)
        # the least that the matrix units take.
        BP, BD = power(self.P // rows, 16), power(weight.shape[3], 16)
        self.const = {"J": self.J, "P": self.P, "D": self.D, "R": rows, "BP": BP, "BD": BD}

    def wide(self, *size: int) -> Tensor:
        return torch.empty(size, dtype=torch.float32, device=self.device)

    def sums(
        self,
        kind: str,
        fit: Fit,
        after: Fit,
        *,
        pull: Fit | None = None,
        total: Tensor | None = None,
        level: Tensor | None = None,
        mean: Tensor | None = None,
        again: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return the sums of each program, [chunks, N, J, 1 + 2·D, S], and what those of "step" were divided by.

        Args:
            kind: as in the kernel.
            fit: that the couplings come from.
            after: the fit that comes after it.
            pull: of the fit after it.
            total: Σ r of the M-step after it, [N, J, 3, S].
            level: [N, I, S]; "step" fills it.
            mean: [N, I, S]; "pull" fills it.
            again: [N, J, S], where sums are asked for at all; everywhere if None.
        """
        of = self.tiles.pulled_sums if kind == "pull" else self.tiles.sums
        records = (fit.rows, fit.scalar, after.rows, *(fit if pull is None else pull), fit.scalar if total is None else total)
        others = (fit.scalar if level is None else level, fit.scalar if mean is None else mean)
        if kind in ("step", "pull"):
            self._levels(records, others, pull=kind == "pull")
        # what a program leaves is as much as two votes and a number: with three lower capsules each it is less than their votes
        # are, with four where a vote is one number.
        least = 3 if self.D > 1 else 4
        chunks, each = of.split(self.I, self.N * self.J, self.device, least=least)
        parts, tops = (self.wide(chunks, self.N, self.J, *size) for size in ((1 + 2 * self.D, self.S), (self.S,)))
        sums_kernel[(self.N, chunks, self.J)](
            self.lower,
            self.weight,
            self.active,
            *records,
            *others,
            fit.scalar if again is None else again,
            parts,
            tops,
            self.I,
            self.step,
            each,
            KIND=kind,
            AGAIN=again is not None,
            **self.const,
            **_launch(of),
        )
        return parts, tops

    def _levels(self, records: tuple[Tensor, ...], others: tuple[Tensor, Tensor], *, pull: bool) -> None:
        """Fill the levels, or with a pull the means."""
        of = self.tiles.levels
        levels_kernel[(-(-self.I // of.BI), self.N)](
            self.lower,
            self.weight,
            self.active,
            *records,
            *others,
            self.I,
            self.step,
            PULL=pull,
            **self.const,
            **of.launch,
        )

    def over_rows(self, chunks: int) -> tuple[tuple[int], dict[str, int]]:
        """Grid and tile sizes of the kernels that go over [N, J, S]."""
        BR, BC, BD = 8, min(64, power(chunks, 1)), power(self.D, 1)
        return (self.N * self.J * self.S // BR,), {"J": self.J, "D": self.D, "S": self.S, "BR": BR, "BC": BC, "BD": BD}


def _turn_over(x: Tensor, other: Tensor, *, back: bool = False) -> None:
    """Fill [N, I, P, S] from poses [samples, I, P], or these from it."""
    samples, columns, (N, *_, S) = x.shape[0], x.shape[1] * x.shape[2], other.shape
    turn_over_kernel[(-(-columns // 64), N)](x, other, samples, columns, BACK=back, S=S, BC=64)


def _activate(activations: Tensor, active: Tensor, scale: Tensor, out: Tensor | None = None) -> None:
    """Fill active [N, I, S] and scale [N, S] from activations [samples, I], or the gradient of these from that of active."""
    (samples, I), (N, S), given = activations.shape, scale.shape, activations if out is None else out
    least, back = torch.finfo(torch.float32).tiny, out is not None
    grid = (samples if back else N * S,)
    activate_kernel[grid](activations, active, scale, given, samples, I, least, BACK=back, S=S, BI=1024)


def _first_samples(x: Tensor, samples: int) -> Tensor:
    """Copy [N, .., S] to [samples, ..]."""
    return x.movedim(-1, 1).clone(memory_format=torch.contiguous_format).flatten(0, 1)[:samples]


def _in_blocks(x: Tensor, N: int, S: int) -> Tensor:
    """Copy [samples, ..] to [N, .., S], with zeros at the end."""
    room = x.new_zeros(N * S - len(x), *x.shape[1:])
    return torch.cat((x, room)).view(N, S, *x.shape[1:]).movedim(1, -1).contiguous()


@torch.library.custom_op("capsella::em", mutates_args=())
def em_op(
    poses: Tensor,
    weight: Tensor,
    activations: Tensor,
    beta_a: Tensor,
    beta_u: Tensor,
    temperatures: Sequence[float],
    eps: float,
    half: bool,
    gaussian: bool,
    rows: int,
) -> list[Tensor]:
    """Fit Gaussians to the votes of [B, I, P]; means [B, J, D] and log odds [B, J] of the last, and what the way back needs.

    Args:
        poses: lower poses.
        weight: [I, J, P/R, D/R] or [1, J, P/R, D/R].
        activations: of the lower capsules, [B, I].
        beta_a: [J].
        beta_u: [J].
        temperatures: λ of every iteration.
        eps: added to every variance.
        half: whether the cost takes the logarithm of σ and not of σ².
        gaussian: whether the density has its normaliser.
        rows: R of a matrix pose.

    Returns:
        means and log odds, then in blocks: poses [N, I, P, S], activations [N, I, S] over the largest of their sample [N, S];
        variances [T, N, J, D, S], Σ r [T, N, J, 3, S] and log odds [T, N, J, S] of all M-steps; fits [T + 1, N, J, 2, D, S] and
        constants [T + 1, N, J, S] before and after them; denominators [T − 1, N, I, S].
    """
    with on_device_of(poses):
        samples, T = len(poses), len(temperatures)
        kept = _empty(poses, weight, T, rows)
        lower, active, scale, variances, totals, all_odds, fits, constants, levels = kept
        poses, activations, beta_a, beta_u = (x.contiguous() for x in (poses, activations, beta_a, beta_u))
        _turn_over(poses, lower)
        _activate(activations, active, scale)
        job = _Job(lower, weight, active, rows)
        # a flat fit before the first: every lower capsule goes to all upper ones alike.
        fits[0].zero_()
        constants[0].fill_(-math.log(job.J))
        again = torch.empty_like(all_odds[0], dtype=torch.int32)

        def finish(t: int, sums: tuple[Tensor, Tensor], about: Fit, *, once_more: bool) -> None:
            parts, tops = sums
            grid, const = job.over_rows(len(parts))
            finish_kernel[grid](
                parts,
                tops,
                scale,
                about.rows,
                beta_a,
                beta_u,
                totals[t],
                variances[t],
                all_odds[t],
                fits[t + 1],
                constants[t + 1],
                again,
                again.numel(),
                len(parts),
                eps,
                temperatures[t],
                _LOST[poses.dtype],
                AGAIN=once_more,
                TOPS=t > 0 and not once_more,
                HALF=half,
                GAUSSIAN=gaussian,
                **const,
            )

        for t in range(T):
            before, fit = (Fit(fits[k], constants[k]) for k in (t, t + 1))
            level = levels[t - 1] if t else active
            finish(t, job.sums("step" if t else "first", before, before, level=level), before, once_more=False)
            # where the mean has moved far, the squares are summed once more, around it.
            # no name holds the sums: memory has room for those of one pass, not of two.
            kind = "spread" if t else "first"
            finish(t, job.sums(kind, before, fit, total=totals[t], level=level, again=again), fit, once_more=True)
        return [_first_samples(fits[-1, :, :, 0], samples), _first_samples(all_odds[-1], samples), *kept]


def _empty(poses: Tensor, weight: Tensor, T: int, rows: int) -> list[Tensor]:
    """Make room for what the way back needs."""
    (samples, I, P), J, D = poses.shape, weight.shape[1], weight.shape[3] * rows
    N, S = _blocks(samples, D)
    sizes = [(N, I, S), (N, S), (T, N, J, D, S), (T, N, J, 3, S), (T, N, J, S)]
    sizes += [(T + 1, N, J, 2, D, S), (T + 1, N, J, S), (T - 1, N, I, S)]
    return [poses.new_empty(N, I, P, S), *(poses.new_empty(size, dtype=torch.float32) for size in sizes)]


@em_op.register_fake
def _(
    poses: Tensor,
    weight: Tensor,
    activations: Tensor,
    beta_a: Tensor,
    beta_u: Tensor,
    temperatures: Sequence[float],
    eps: float,
    half: bool,
    gaussian: bool,
    rows: int,
) -> list[Tensor]:
    sizes = [(len(poses), weight.shape[1], weight.shape[3] * rows), (len(poses), weight.shape[1])]
    results = [poses.new_empty(size, dtype=torch.float32) for size in sizes]
    return [*results, *_empty(poses, weight, len(temperatures), rows)]


@torch.library.custom_op("capsella::em_backward", mutates_args=())
def em_backward_op(
    d_means: Tensor,
    d_odds: Tensor,
    weight: Tensor,
    activations: Tensor,
    beta_u: Tensor,
    lower: Tensor,
    active: Tensor,
    scale: Tensor,
    variances: Tensor,
    totals: Tensor,
    all_odds: Tensor,
    fits: Tensor,
    constants: Tensor,
    levels: Tensor,
    temperatures: Sequence[float],
    eps: float,
    half: bool,
    gaussian: bool,
    rows: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of poses, weight, activations and both betas."""
    with on_device_of(lower):
        job = _Job(lower, weight, active, rows)
        T, I, samples = len(temperatures), job.I, len(d_means)
        pulls, alphas, means = (torch.empty_like(x) for x in (fits[1:], all_odds, levels))
        d_betas = job.wide(2, *alphas.shape)
        # of a sample that is there only to fill the room nothing is asked.
        d_means, d_odds = (_in_blocks(x, job.N, job.S) for x in (d_means, d_odds))
        activations, beta_u = activations.contiguous(), beta_u.contiguous()
        parts = d_means[None]
        for t in reversed(range(T)):
            if t + 1 < T:
                fit, after = (Fit(fits[k], constants[k]) for k in (t + 1, t + 2))
                pull = Fit(pulls[t + 1], alphas[t + 1])
                del parts  # before there are others
                parts, _ = job.sums("pull", fit, after, pull=pull, total=totals[t + 1], level=levels[t], mean=means[t])
            grid, const = job.over_rows(len(parts))
            turn_kernel[grid](
                parts,
                d_means,
                d_odds,
                beta_u,
                scale,
                totals[t],
                variances[t],
                all_odds[t],
                pulls[t],
                alphas[t],
                d_betas[0, t],
                d_betas[1, t],
                alphas[t].numel(),
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
        splits, blocks = 1, job.N
        chunks, each = of.split(I, 1, job.device) if job.shared else (I, 1)
        if job.shared:
            each = max(each, -(-I // max(1, _OWN // weight.numel())))
            chunks = -(-I // each)
        if not job.shared and weight.dtype == torch.float32:
            # more programs, each with gradients of the weight of its own: where they are float32 anyway there is room for that.
            splits, blocks = of.split(job.N, I, job.device)
        d_lower, d_active = torch.empty_like(lower), torch.empty_like(active)
        d_weight = job.wide(splits, chunks, job.J, 1, *weight.shape[2:])
        gradients_kernel[(chunks, splits)](
            job.lower,
            job.weight,
            job.active,
            fits,
            constants,
            pulls,
            alphas,
            totals,
            levels,
            means,
            d_lower,
            d_weight,
            d_active,
            job.N,
            I,
            job.step,
            each,
            blocks,
            T=T,
            SHARED=job.shared,
            TYPE=TYPES[lower.dtype],
            **job.const,
            **_launch(of),
        )
        del means, pulls
        d_weight = add_splits(d_weight, weight.dtype, shared=job.shared)
        d_poses, d_activations = lower.new_empty(samples, I, job.P), torch.empty_like(activations)
        _turn_over(d_poses, d_lower, back=True)
        _activate(activations, d_active, scale, d_activations)
        d_beta = d_betas.sum((1, 2, 4))
        return d_poses, d_weight, d_activations, d_beta[0].clone(), d_beta[1].clone()


@em_backward_op.register_fake
def _(
    d_means: Tensor, d_odds: Tensor, weight: Tensor, activations: Tensor, beta_u: Tensor, lower: Tensor, *others: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    d_weight, d_activations = (torch.empty_like(x, memory_format=torch.contiguous_format) for x in (weight, activations))
    d_beta_a, d_beta_u = (beta_u.new_empty(len(beta_u), dtype=torch.float32) for _ in range(2))
    return lower.new_empty(len(d_means), *lower.shape[1:3]), d_weight, d_activations, d_beta_a, d_beta_u


def _setup(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    _, weight, activations, beta_a, beta_u, *ctx.rest = inputs
    means, odds, *others = output
    # of the other outputs nobody asks for a gradient; zeros in their place would be made for nothing.
    ctx.set_materialize_grads(False)
    ctx.sizes, ctx.dtypes = (means.shape, odds.shape), (beta_a.dtype, beta_u.dtype)
    ctx.save_for_backward(weight, activations, beta_u, *others)


def _backward(ctx, grads):  # type: ignore[no-untyped-def]
    given = [d for d in grads[:2] if d is not None]
    if not given:
        return (None,) * 10
    d_means, d_odds = (given[0].new_zeros(size) if d is None else d for d, size in zip(grads, ctx.sizes, strict=False))
    d_poses, d_weight, d_active, *d_betas = em_backward_op(d_means, d_odds, *ctx.saved_tensors, *ctx.rest)
    d_betas = [d.to(dtype) for d, dtype in zip(d_betas, ctx.dtypes, strict=True)]
    return d_poses, d_weight, d_active, *d_betas, None, None, None, None, None


em_op.register_autograd(_backward, setup_context=_setup)
em_backward_op.register_autograd(refuse_twice)
