"""What EM does between its sums, one row per upper capsule: the fit and its activation, and the way back through both."""

from __future__ import annotations

import triton
import triton.language as tl

from capsella.kernels._blocks import SIZES


@triton.jit
def _log_sigmoid(x):
    return tl.minimum(x, 0.0) - tl.log(1.0 + tl.exp(-tl.abs(x)))


@triton.jit
def _sigmoid(x):
    small = tl.exp(-tl.abs(x))
    return tl.where(x >= 0, 1.0, small) / (1.0 + small)


@triton.jit
def _power(
    p_parts,
    p_top,
    at,
    r,
    inside,
    size,
    rows,
    top,
    chunks,
    TOPS: tl.constexpr,
    BC: tl.constexpr,
    BR: tl.constexpr,
    BD: tl.constexpr,
):
    """Add up one of the three sums over the chunks, each in units of its own top where there are tops."""
    total = tl.zeros([BR, BD], tl.float32)
    c = tl.arange(0, BC)[:, None, None]
    for first in range(0, chunks, BC):
        far = (first + c).to(tl.int64) * (3 * size)
        part = tl.load(p_parts + far + at[None], mask=(first + c < chunks) & inside[None], other=0.0)
        if TOPS:
            row = (first + c).to(tl.int64) * rows + r[None, :, None]
            own = tl.load(p_top + row, mask=(first + c < chunks) & (r < rows)[None, :, None], other=float("-inf"))
            part *= tl.exp(own - top[None, :, None])
        total += tl.sum(part, 0)
    return total


@triton.jit
def _highest(p_top, r, rows, chunks, BC: tl.constexpr, BR: tl.constexpr):
    """The largest of the chunks' tops."""
    top = tl.full([BR], float("-inf"), tl.float32)
    c = tl.arange(0, BC)[:, None]
    for first in range(0, chunks, BC):
        row = (first + c).to(tl.int64) * rows + r[None, :]
        own = tl.load(p_top + row, mask=(first + c < chunks) & (r < rows)[None, :], other=float("-inf"))
        top = tl.maximum(top, tl.max(own, 0))
    return tl.where(top == float("-inf"), 0.0, top)


@triton.jit(do_not_specialize=SIZES)
def finish_kernel(
    p_parts,  # [chunks, 3, rows, D]
    p_top,  # [chunks, rows]
    p_scale,  # [B]: what the activations of a sample were divided by
    p_about,  # [rows, 2, BD]: its first row is what powers were taken around
    p_beta_a,  # [J]
    p_beta_u,  # [J]
    p_log,  # [rows]: log S; written with MEAN_ONLY, read without
    p_mean,  # [rows, D]: μ
    p_variance,  # [rows, D]
    p_odds,  # [rows]: log odds of a_j
    p_fit,  # [rows, 2, BD]: μ, 1/σ²
    p_constant,  # [rows]
    rows,
    chunks,
    eps,
    temperature,
    MEAN_ONLY: tl.constexpr,
    TOPS: tl.constexpr,  # whether the chunks' sums are in units of their own
    HALF: tl.constexpr,  # the cost takes the logarithm of σ, not of σ²
    GAUSSIAN: tl.constexpr,
    J: tl.constexpr,
    D: tl.constexpr,
    BR: tl.constexpr,
    BC: tl.constexpr,
    BD: tl.constexpr,
):
    """Fit the Gaussians to the sums."""
    r = tl.program_id(0) * BR + tl.arange(0, BR)
    d = tl.arange(0, BD)
    real = r < rows
    inside = real[:, None] & (d[None, :] < D)
    at = r[:, None].to(tl.int64) * D + d[None, :]
    record = r[:, None].to(tl.int64) * (2 * BD) + d[None, :]
    size = rows.to(tl.int64) * D
    top = tl.zeros([BR], tl.float32)
    if TOPS:
        top = _highest(p_top, r, rows, chunks, BC, BR)
    # the sum of x stands in all D places; they are equal.
    weight = _power(p_parts, p_top, at, r, inside, size, rows, top, chunks, TOPS, BC, BR, BD)
    weight = tl.where(real, tl.max(tl.where(inside, weight, 0.0), 1), 1.0)
    moved = _power(p_parts + size, p_top, at, r, inside, size, rows, top, chunks, TOPS, BC, BR, BD) / weight[:, None]
    # p_about may be p_fit: every place is read before it is written, by the same program.
    mean = tl.load(p_about + record, mask=inside, other=0.0) + moved
    tl.store(p_fit + record, tl.where(inside, mean, 0.0), mask=real[:, None])
    if MEAN_ONLY:
        tl.store(p_log + r, tl.log(weight) + top, mask=real)
    else:
        spread = _power(p_parts + 2 * size, p_top, at, r, inside, size, rows, top, chunks, TOPS, BC, BR, BD) / weight[:, None]
        variance = tl.maximum(spread - moved * moved, 0.0) + eps
        variance = tl.where(inside, variance, 1.0)
        logs = tl.sum(tl.log(variance), 1)
        beta_a = tl.load(p_beta_a + r % J, mask=real, other=0.0)
        beta_u = tl.load(p_beta_u + r % J, mask=real, other=0.0)
        scale = logs * 0.5 if HALF else logs
        whole = tl.exp(tl.load(p_log + r, mask=real, other=0.0)) * tl.load(p_scale + r // J, mask=real, other=1.0)
        odds = temperature * (beta_a - whole * (D * beta_u + scale))
        constant = _log_sigmoid(odds)
        if GAUSSIAN:
            constant -= 0.5 * (logs + D * 1.8378770664093453)  # log 2π
        tl.store(p_fit + record + BD, tl.where(inside, 1.0 / variance, 0.0), mask=real[:, None])
        tl.store(p_constant + r, constant, mask=real)
        tl.store(p_mean + at, mean, mask=inside)
        tl.store(p_variance + at, variance, mask=inside)
        tl.store(p_odds + r, odds, mask=real)


@triton.jit(do_not_specialize=SIZES)
def turn_kernel(
    p_parts,  # [chunks, 3, rows, D]: of ∂z, from the iteration after
    p_d_mean,  # [rows, D]: gradient of the last μ
    p_d_odds,  # [rows]: gradient of the last log odds
    p_beta_u,  # [J]
    p_scale,  # [B]
    p_log,
    p_variance,
    p_odds,
    p_pull,  # [rows, 2, BD]: A, C
    p_alpha,  # [rows]
    p_d_beta_a,  # [rows]
    p_d_beta_u,  # [rows]
    rows,
    chunks,
    eps,
    temperature,
    LAST: tl.constexpr,
    HALF: tl.constexpr,
    GAUSSIAN: tl.constexpr,
    J: tl.constexpr,
    D: tl.constexpr,
    BR: tl.constexpr,
    BC: tl.constexpr,
    BD: tl.constexpr,
):
    """Take what is asked of a fit back to the sums it was made from."""
    r = tl.program_id(0) * BR + tl.arange(0, BR)
    d = tl.arange(0, BD)
    real = r < rows
    inside = real[:, None] & (d[None, :] < D)
    at = r[:, None].to(tl.int64) * D + d[None, :]
    record = r[:, None].to(tl.int64) * (2 * BD) + d[None, :]
    size = rows.to(tl.int64) * D
    whole = tl.exp(tl.load(p_log + r, mask=real, other=0.0)) * tl.load(p_scale + r // J, mask=real, other=1.0)
    variance = tl.load(p_variance + at, mask=inside, other=1.0)
    odds = tl.load(p_odds + r, mask=real, other=0.0)
    if LAST:
        d_mean = tl.load(p_d_mean + at, mask=inside, other=0.0)
        d_variance = tl.zeros([BR, BD], tl.float32)
        d_odds = tl.load(p_d_odds + r, mask=real, other=0.0)
    else:
        none = tl.zeros([BR], tl.float32)
        every = _power(p_parts, p_parts, at, r, inside, size, rows, none, chunks, False, BC, BR, BD)
        constant = tl.sum(tl.where(d[None, :] == 0, every, 0.0), 1)
        d_mean = _power(p_parts + size, p_parts, at, r, inside, size, rows, none, chunks, False, BC, BR, BD) / variance
        second = _power(p_parts + 2 * size, p_parts, at, r, inside, size, rows, none, chunks, False, BC, BR, BD)
        d_variance = 0.5 * second / (variance * variance)
        if GAUSSIAN:
            d_variance -= 0.5 * constant[:, None] / variance
        d_odds = constant * _sigmoid(-odds)
    logs = tl.sum(tl.where(inside, tl.log(variance), 0.0), 1)
    beta_u = tl.load(p_beta_u + r % J, mask=real, other=0.0)
    half = 0.5 if HALF else 1.0
    tl.store(p_d_beta_a + r, temperature * d_odds, mask=real)
    # of the cost of S, times S.
    d_cost = -temperature * d_odds * whole
    tl.store(p_d_beta_u + r, d_cost * D, mask=real)
    d_variance += (d_cost * half)[:, None] / variance
    bent = tl.where(inside, d_variance, 0.0)
    alpha = d_cost * (D * beta_u + logs * half) - tl.sum(bent * (variance - eps), 1)
    tl.store(p_pull + record, tl.where(inside, d_mean, 0.0), mask=real[:, None])
    tl.store(p_pull + record + BD, bent, mask=real[:, None])
    tl.store(p_alpha + r, alpha, mask=real)
