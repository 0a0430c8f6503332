"""What EM does between its sums, one row per upper capsule: the fit and its activation, and the way back through both."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _log_sigmoid(x):
    return tl.minimum(x, 0.0) - tl.log(1.0 + tl.exp(-tl.abs(x)))


@triton.jit
def _sigmoid(x):
    small = tl.exp(-tl.abs(x))
    return tl.where(x >= 0, 1.0, small) / (1.0 + small)


@triton.jit
def _power(p_parts, at, inside, size, chunks, BC: tl.constexpr, BR: tl.constexpr, BD: tl.constexpr):
    """Add up one of the three sums over the chunks."""
    total = tl.zeros([BR, BD], tl.float32)
    c = tl.arange(0, BC)[:, None, None]
    for first in range(0, chunks, BC):
        far = (first + c).to(tl.int64) * (3 * size)
        total += tl.sum(tl.load(p_parts + far + at[None], mask=(first + c < chunks) & inside[None], other=0.0), 0)
    return total


@triton.jit
def finish_kernel(
    p_parts,  # [chunks, 3, rows, D]
    p_about,  # [rows, 2, BD]: its first row is what powers were taken around
    p_beta_a,  # [J]
    p_beta_u,  # [J]
    p_weight_sum,  # [rows]: S0
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
    # the sum of x stands in all D places; they are equal.
    weight = tl.max(tl.where(inside, _power(p_parts, at, inside, size, chunks, BC, BR, BD), 0.0), 1)
    weight = tl.where(real, weight, 1.0)
    moved = _power(p_parts + size, at, inside, size, chunks, BC, BR, BD) / weight[:, None]
    # p_about may be p_fit: every place is read before it is written, by the same program.
    mean = tl.load(p_about + record, mask=inside, other=0.0) + moved
    tl.store(p_fit + record, tl.where(inside, mean, 0.0), mask=real[:, None])
    if not MEAN_ONLY:
        spread = _power(p_parts + 2 * size, at, inside, size, chunks, BC, BR, BD) / weight[:, None]
        variance = tl.maximum(spread - moved * moved, 0.0) + eps
        variance = tl.where(inside, variance, 1.0)
        logs = tl.sum(tl.log(variance), 1)
        beta_a = tl.load(p_beta_a + r % J, mask=real, other=0.0)
        beta_u = tl.load(p_beta_u + r % J, mask=real, other=0.0)
        scale = logs * 0.5 if HALF else logs
        odds = temperature * (beta_a - weight * (D * beta_u + scale))
        constant = _log_sigmoid(odds)
        if GAUSSIAN:
            constant -= 0.5 * (logs + D * 1.8378770664093453)  # log 2π
        tl.store(p_fit + record + BD, tl.where(inside, 1.0 / variance, 0.0), mask=real[:, None])
        tl.store(p_constant + r, constant, mask=real)
        tl.store(p_mean + at, mean, mask=inside)
        tl.store(p_variance + at, variance, mask=inside)
        tl.store(p_weight_sum + r, weight, mask=real)
        tl.store(p_odds + r, odds, mask=real)


@triton.jit
def turn_kernel(
    p_parts,  # [chunks, 3, rows, D]: of ∂z, from the iteration after
    p_d_mean,  # [rows, D]: gradient of the last μ
    p_d_odds,  # [rows]: gradient of the last log odds
    p_beta_u,  # [J]
    p_weight_sum,
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
    weight = tl.load(p_weight_sum + r, mask=real, other=1.0)
    variance = tl.load(p_variance + at, mask=inside, other=1.0)
    odds = tl.load(p_odds + r, mask=real, other=0.0)
    if LAST:
        d_mean = tl.load(p_d_mean + at, mask=inside, other=0.0)
        d_variance = tl.zeros([BR, BD], tl.float32)
        d_odds = tl.load(p_d_odds + r, mask=real, other=0.0)
    else:
        every = _power(p_parts, at, inside, size, chunks, BC, BR, BD)
        constant = tl.sum(tl.where(d[None, :] == 0, every, 0.0), 1)
        d_mean = _power(p_parts + size, at, inside, size, chunks, BC, BR, BD) / variance
        d_variance = 0.5 * _power(p_parts + 2 * size, at, inside, size, chunks, BC, BR, BD) / (variance * variance)
        if GAUSSIAN:
            d_variance -= 0.5 * constant[:, None] / variance
        d_odds = constant * _sigmoid(-odds)
    logs = tl.sum(tl.where(inside, tl.log(variance), 0.0), 1)
    beta_u = tl.load(p_beta_u + r % J, mask=real, other=0.0)
    half = 0.5 if HALF else 1.0
    d_cost = -temperature * d_odds
    tl.store(p_d_beta_a + r, temperature * d_odds, mask=real)
    tl.store(p_d_beta_u + r, d_cost * weight * D, mask=real)
    d_variance += (d_cost * weight * half)[:, None] / variance
    bent = tl.where(inside, d_variance / weight[:, None], 0.0)
    alpha = d_cost * (D * beta_u + logs * half) - tl.sum(bent * (variance - eps), 1)
    tl.store(p_pull + record, tl.where(inside, d_mean / weight[:, None], 0.0), mask=real[:, None])
    tl.store(p_pull + record + BD, bent, mask=real[:, None])
    tl.store(p_alpha + r, alpha, mask=real)
