"""What EM does around its sums: data laid out in blocks of S samples; fits and activations, and the way back through them.

The kernels that go over ``rows`` have one for every upper capsule and sample, [N, J, S] for N blocks; a pair is a block and an
upper capsule.
"""

from __future__ import annotations

import triton
import triton.language as tl

# sizes that change from call to call.
SIZES = ("samples", "columns", "I", "rows", "chunks")


@triton.jit
def _log_sigmoid(x):
    return tl.minimum(x, 0.0) - tl.log(1.0 + tl.exp(-tl.abs(x)))


@triton.jit
def _sigmoid(x):
    small = tl.exp(-tl.abs(x))
    return tl.where(x >= 0, 1.0, small) / (1.0 + small)


@triton.jit(do_not_specialize=SIZES)
def turn_over_kernel(
    p_in,  # [samples, columns]
    p_out,  # [N, columns, S]
    samples,
    columns,
    BACK: tl.constexpr,  # the other way round
    S: tl.constexpr,
    BC: tl.constexpr,
):
    """Put the samples last, in blocks; there may be more places than samples, which the last one fills."""
    block, s = tl.program_id(1).to(tl.int64), tl.arange(0, S)
    b = block * S + s
    c = tl.program_id(0).to(tl.int64) * BC + tl.arange(0, BC)
    at_in = tl.minimum(b, samples - 1)[:, None] * columns + c[None, :]
    at_out = (block * columns + c[:, None]) * S + s[None, :]
    if BACK:
        x = tl.load(p_out + at_out, mask=c[:, None] < columns)
        tl.store(p_in + at_in, tl.trans(x), mask=(c[None, :] < columns) & (b[:, None] < samples))
    else:
        x = tl.load(p_in + at_in, mask=c[None, :] < columns)
        tl.store(p_out + at_out, tl.trans(x), mask=c[:, None] < columns)


@triton.jit(do_not_specialize=SIZES)
def activate_kernel(
    p_activations,  # [samples, I]
    p_active,  # [N, I, S]; with BACK its gradient
    p_scale,  # [N, S]
    p_d_activations,  # [samples, I], written with BACK
    samples,
    I,
    least,
    BACK: tl.constexpr,
    S: tl.constexpr,
    BI: tl.constexpr,
):
    """Divide the activations of a sample by the largest: what is left can be added up in float32 however small they are."""
    b = tl.program_id(0)
    row = tl.minimum(b, samples - 1).to(tl.int64) * I
    p_active += (b // S).to(tl.int64) * I * S + b % S
    i = tl.arange(0, BI)
    if BACK:
        scale = tl.load(p_scale + b)
    else:
        most = tl.full([BI], least, tl.float32)
        for first in range(0, I, BI):
            x = tl.load(p_activations + row + first + i, mask=first + i < I, other=0.0)
            most = tl.maximum(most, x.to(tl.float32))
        scale = tl.max(most, 0)
        tl.store(p_scale + b, scale)
    for first in range(0, I, BI):
        inside = first + i < I
        x = tl.load(p_activations + row + first + i, mask=inside, other=0.0).to(tl.float32)
        p_each = p_active + (first + i).to(tl.int64) * S
        if BACK:
            # the scale is a constant: the result does not depend on it.
            d_x = tl.load(p_each, mask=inside, other=0.0) / scale
            tl.store(p_d_activations + row + first + i, tl.where(x >= least, d_x, 0.0), mask=inside)
        else:
            # what is not a number stays so; and one over it stays a number.
            x = tl.maximum(x, least, propagate_nan=tl.PropagateNan.ALL) / scale
            tl.store(p_each, tl.maximum(x, least, propagate_nan=tl.PropagateNan.ALL), mask=inside)


@triton.jit
def _at(r, COUNT: tl.constexpr, S: tl.constexpr):
    """Where in [pairs, COUNT, S] the first of a row's values lies."""
    return r // S * (COUNT * S) + r % S


@triton.jit
def _sums(
    p_parts,
    p_top,
    r,
    d,
    real,
    rows,
    chunks,
    TOPS: tl.constexpr,
    D: tl.constexpr,
    S: tl.constexpr,
    BC: tl.constexpr,
    BR: tl.constexpr,
    BD: tl.constexpr,
):
    """Add up the sums over the chunks, each in units of its own top where there are tops: [BR], twice [BR, BD], and the top."""
    zeroth = tl.zeros([BR], tl.float32)
    first = tl.zeros([BR, BD], tl.float32)
    second = tl.zeros([BR, BD], tl.float32)
    top = tl.full([BR], float("-inf") if TOPS else 0.0, tl.float32)
    c = tl.arange(0, BC)
    for begin in range(0, chunks, BC):
        here = (begin + c).to(tl.int64)
        mask = (begin + c < chunks)[:, None] & real[None, :]
        p_chunk = p_parts + here[:, None] * ((1 + 2 * D) * rows) + _at(r, 1 + 2 * D, S)[None, :]
        p_each = p_chunk[:, :, None] + (1 + d)[None, None, :] * S
        inside = mask[:, :, None] & (d < D)[None, None, :]
        x = tl.load(p_chunk, mask=mask, other=0.0)
        y = tl.load(p_each, mask=inside, other=0.0)
        z = tl.load(p_each + D * S, mask=inside, other=0.0)
        if TOPS:
            own = tl.load(p_top + here[:, None] * rows + r[None, :], mask=mask, other=float("-inf"))
            higher = tl.maximum(top, tl.max(own, 0))
            base = tl.where(higher == float("-inf"), 0.0, higher)
            shrink = tl.exp(top - base)
            unit = tl.exp(own - base[None, :])
            x, y, z = x * unit, y * unit[:, :, None], z * unit[:, :, None]
            zeroth, first, second = zeroth * shrink, first * shrink[:, None], second * shrink[:, None]
            top = higher
        zeroth += tl.sum(x, 0)
        first += tl.sum(y, 0)
        second += tl.sum(z, 0)
    return zeroth, first, second, tl.where(top == float("-inf"), 0.0, top)


@triton.jit(do_not_specialize=SIZES)
def finish_kernel(
    p_parts,  # [chunks, pairs, 1 + 2·D, S]
    p_top,  # [chunks, rows]
    p_scale,  # [N, S]: what the activations of a sample were divided by
    p_about,  # [pairs, 2, D, S]: its μ is what powers were taken around
    p_beta_a,  # [J]
    p_beta_u,  # [J]
    p_total,  # [pairs, 3, S]: S as s, 1/(S e^−s) and S e^−s; read with AGAIN, written without
    p_variance,  # [pairs, D, S]
    p_odds,  # [rows]: log odds of a_j
    p_fit,  # [pairs, 2, D, S]: μ, 1/σ²
    p_constant,  # [rows]
    p_again,  # [rows]: whether the squares have to be summed around μ; with AGAIN, whether they were
    rows,
    chunks,
    eps,
    temperature,
    limit,
    AGAIN: tl.constexpr,
    TOPS: tl.constexpr,  # whether the chunks' sums are in units of their own
    HALF: tl.constexpr,  # the cost takes the logarithm of σ, not of σ²
    GAUSSIAN: tl.constexpr,
    J: tl.constexpr,
    D: tl.constexpr,
    S: tl.constexpr,
    BR: tl.constexpr,
    BC: tl.constexpr,
    BD: tl.constexpr,
):
    """Fit the Gaussians to the sums."""
    r = tl.program_id(0) * BR + tl.arange(0, BR)
    d = tl.arange(0, BD)
    j, b = r // S % J, r // (J * S) * S + r % S
    inside = (d[None, :] < D) & (r[:, None] < rows)
    at = _at(r, D, S)[:, None] + d[None, :] * S
    record = _at(r, 2 * D, S)[:, None] + d[None, :] * S
    written = r < rows
    if AGAIN:
        written = tl.load(p_again + r) > 0
        chunks = tl.where(tl.max(written.to(tl.int32), 0) > 0, chunks, 0)
    weight, moved, spread, top = _sums(p_parts, p_top, r, d, written, rows, chunks, TOPS, D, S, BC, BR, BD)
    moved, spread = moved / weight[:, None], spread / weight[:, None]
    mean = tl.load(p_about + record, mask=inside, other=0.0) + moved
    variance = tl.where(inside, tl.maximum(spread - moved * moved, 0.0, propagate_nan=tl.PropagateNan.ALL) + eps, 1.0)
    p_shift = p_total + _at(r, 3, S)
    if AGAIN:
        shift, total = tl.load(p_shift), tl.load(p_shift + 2 * S)
    else:
        # a sum that float32 holds is kept as it is, for the sake of its digits.
        total = weight * tl.exp(top)
        held = total > 1e-30
        shift, total = tl.where(held, 0.0, top), tl.where(held, total, weight)
        tl.store(p_shift, shift)
        tl.store(p_shift + S, 1.0 / total)
        tl.store(p_shift + 2 * S, total)
        # far from μ squares are large, and their difference has lost its digits.
        tl.store(p_again + r, tl.max(tl.where(inside & (spread > limit * variance), 1, 0), 1))
    logs = tl.sum(tl.log(variance), 1)
    whole = tl.exp(shift) * total * tl.load(p_scale + b)
    cost = tl.load(p_beta_u + j).to(tl.float32) * D + (logs * 0.5 if HALF else logs)
    odds = temperature * (tl.load(p_beta_a + j).to(tl.float32) - whole * cost)
    constant = _log_sigmoid(odds)
    if GAUSSIAN:
        constant -= 0.5 * (logs + D * 1.8378770664093453)  # log 2π
    inside = inside & written[:, None]
    # p_about may be p_fit: every place is read before it is written, by the same program.
    tl.store(p_fit + record, mean, mask=inside)
    tl.store(p_fit + record + D * S, 1.0 / variance, mask=inside)
    tl.store(p_variance + at, variance, mask=inside)
    tl.store(p_odds + r, odds, mask=written)
    tl.store(p_constant + r, constant, mask=written)


@triton.jit(do_not_specialize=SIZES)
def turn_kernel(
    p_parts,  # [chunks, pairs, 1 + 2·D, S]: of ∂z, from the iteration after
    p_d_mean,  # [pairs, D, S]: gradient of the last μ
    p_d_odds,  # [rows]: gradient of the last log odds
    p_beta_u,  # [J]
    p_scale,  # [N, S]
    p_total,  # [pairs, 3, S]
    p_variance,  # [pairs, D, S]
    p_odds,
    p_pull,  # [pairs, 2, D, S]: A, C
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
    S: tl.constexpr,
    BR: tl.constexpr,
    BC: tl.constexpr,
    BD: tl.constexpr,
):
    """Take what is asked of a fit back to the sums it was made from."""
    r = tl.program_id(0) * BR + tl.arange(0, BR)
    d = tl.arange(0, BD)
    j, b = r // S % J, r // (J * S) * S + r % S
    real = r < rows
    inside = (d[None, :] < D) & real[:, None]
    at = _at(r, D, S)[:, None] + d[None, :] * S
    record = _at(r, 2 * D, S)[:, None] + d[None, :] * S
    p_shift = p_total + _at(r, 3, S)
    whole = tl.exp(tl.load(p_shift)) * tl.load(p_shift + 2 * S) * tl.load(p_scale + b)
    variance = tl.load(p_variance + at, mask=inside, other=1.0)
    odds = tl.load(p_odds + r)
    if LAST:
        d_mean = tl.load(p_d_mean + at, mask=inside, other=0.0)
        d_variance = tl.zeros([BR, BD], tl.float32)
        d_odds = tl.load(p_d_odds + r)
    else:
        constant, first, second, _ = _sums(p_parts, p_parts, r, d, real, rows, chunks, False, D, S, BC, BR, BD)
        d_mean = first / variance
        d_variance = 0.5 * second / (variance * variance)
        if GAUSSIAN:
            d_variance -= 0.5 * constant[:, None] / variance
        d_odds = constant * _sigmoid(-odds)
    logs = tl.sum(tl.log(variance), 1)
    half = 0.5 if HALF else 1.0
    tl.store(p_d_beta_a + r, temperature * d_odds)
    # of the cost of S, times S.
    d_cost = -temperature * d_odds * whole
    tl.store(p_d_beta_u + r, d_cost * D)
    d_variance += (d_cost * half)[:, None] / variance
    bent = tl.where(inside, d_variance, 0.0)
    alpha = d_cost * (tl.load(p_beta_u + j).to(tl.float32) * D + logs * half) - tl.sum(bent * (variance - eps), 1)
    tl.store(p_pull + record, d_mean, mask=inside)
    tl.store(p_pull + record + D * S, bent, mask=inside)
    tl.store(p_alpha + r, alpha)
