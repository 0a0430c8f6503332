"""EM routing on GPUs that never stores votes (docs/routing.md, "Routing without votes").

EM squares the votes, so a tile of them has to be made: the poses of BI lower capsules, [BB, BI·BP], times their weights along
the diagonal of a matrix [BI·BP, BI·BD], on the matrix units. The tile [BB, BI·BD] lives in registers and is made again for
every iteration. A mean is found before the squares around it are summed: a Gaussian may close in on few votes, and a variance
from sums around any other point would lose its digits there.

``levels_kernel`` sums over upper capsules, ``sums_kernel`` over lower ones, on the way there and back; ``finish_kernel`` and
``turn_kernel`` (``triton_em_small``) do what is left for every upper capsule, ``gradients_kernel`` makes the gradients.
Programs write their own sums, which are added in a fixed order: results are the same every time.
"""

from __future__ import annotations

import triton
import triton.language as tl

from capsella.kernels._blocks import SIZES, add, product


@triton.jit
def weight_diagonal(m, n, step, P: tl.constexpr, D: tl.constexpr, R: tl.constexpr, BP: tl.constexpr, BD: tl.constexpr):
    """Where the weights of a tile's lower capsules lie that stand along the diagonal of [BI·BP, BI·BD]."""
    p, d = m[:, None] % BP, n[None, :] % BD
    return m[:, None] // BP * step + p % (P // R) * (D // R) + d % (D // R)


@triton.jit
def diagonal_mask(m, n, left, P: tl.constexpr, D: tl.constexpr, R: tl.constexpr, BP: tl.constexpr, BD: tl.constexpr):
    """Which places of [BI·BP, BI·BD] hold a weight, if ``left`` lower capsules are left."""
    i, p, d = m[:, None] // BP, m[:, None] % BP, n[None, :] % BD
    inside = (i == n[None, :] // BD) & (i < left)
    if P != BP:
        inside = inside & (p < P)
    if D != BD:
        inside = inside & (d < D)
    if R > 1:
        inside = inside & (p // (P // R) == d // (D // R))
    return inside


@triton.jit
def _to_votes(x, BB: tl.constexpr, BI: tl.constexpr, BD: tl.constexpr):
    """Repeat [BB, BD] for every lower capsule, to [BB, BI·BD]."""
    return tl.reshape(tl.broadcast_to(tl.reshape(x, [BB, 1, BD]), [BB, BI, BD]), [BB, BI * BD])


@triton.jit
def _to_values(x, BB: tl.constexpr, BI: tl.constexpr, BD: tl.constexpr):
    """Repeat [BB, BI] for every value, to [BB, BI·BD]."""
    return tl.reshape(tl.broadcast_to(tl.reshape(x, [BB, BI, 1]), [BB, BI, BD]), [BB, BI * BD])


@triton.jit
def _over_values(x, BB: tl.constexpr, BI: tl.constexpr, BD: tl.constexpr):
    return tl.sum(tl.reshape(x, [BB, BI, BD]), 2)


@triton.jit
def _over_lower(x, BB: tl.constexpr, BI: tl.constexpr, BD: tl.constexpr):
    return tl.sum(tl.reshape(x, [BB, BI, BD]), 1)


@triton.jit
def _two(record, BB: tl.constexpr, BD: tl.constexpr):
    """Take [BB, 2·BD] apart; to load what belongs together at once is faster than to load it piece by piece."""
    return tl.split(tl.permute(tl.reshape(record, [BB, 2, BD]), (0, 2, 1)))


@triton.jit
def _density(votes, fit, constant, BB: tl.constexpr, BI: tl.constexpr, BD: tl.constexpr):
    """Distance of the votes from the mean, 1/σ², and log a_j N(û; μ, σ²) [BB, BI], from a fit μ, 1/σ² and its constant."""
    mean, inverse = _two(fit, BB, BD)
    far = votes - _to_votes(mean, BB, BI, BD)
    inverse = _to_votes(inverse, BB, BI, BD)
    return far, inverse, constant[:, None] - 0.5 * _over_values(far * far * inverse, BB, BI, BD)


@triton.jit
def _asked(votes, mean, pull, alpha, BB: tl.constexpr, BI: tl.constexpr, BD: tl.constexpr):
    """What an M-step asks of each r [BB, BI] and pulls each vote by [BB, BI·BD], from μ, a pull A, C, and α.

    With w_ij = r_ij/S_j and S_j = Σ_i r_ij:  S_j ∂L/∂r_ij = α_j + (û−μ)·A + (û−μ)²·C   and   ∂L/∂û_ij = w_ij (A + 2C(û−μ)).
    Neither divides by S, which vanishes where another Gaussian explains every vote.
    """
    straight, bent = _two(pull, BB, BD)
    far = votes - _to_votes(mean, BB, BI, BD)
    straight = _to_votes(straight, BB, BI, BD)
    bent = far * _to_votes(bent, BB, BI, BD)
    return alpha[:, None] + _over_values(far * (straight + bent), BB, BI, BD), straight + 2 * bent


@triton.jit(do_not_specialize=SIZES)
def levels_kernel(
    p_poses,  # [B, I, P]
    p_weight,  # [I or 1, J, P/R, D/R]
    p_active,  # [B, I]: activations of the lower capsules
    p_fit,  # [B, J, 2, BD]: μ, 1/σ² of the E-step
    p_constant,  # [B, J]
    p_next,  # [B, J, 2, BD]: the fit after it, for its μ
    p_pull,  # [B, J, 2, BD]: A, C, see _asked
    p_alpha,  # [B, J]
    p_log,  # [B, J]: log S of the M-step that is pulled
    p_level,  # [B, I]: log of the softmax's denominator over a_i; written without PULL, read with it
    p_mean,  # [B, I]: Σ_j R ∂L/∂r; written with PULL
    B,
    I,
    step,
    PULL: tl.constexpr,
    J: tl.constexpr,
    P: tl.constexpr,
    D: tl.constexpr,
    R: tl.constexpr,
    BB: tl.constexpr,
    BI: tl.constexpr,
    BP: tl.constexpr,
    BD: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Sum over upper capsules what the E-step, or the way back through it, needs of all of them."""
    # the axis of a grid that may be long comes first.
    start, begin = tl.program_id(0) * BI, tl.program_id(1) * BB
    b = tl.arange(0, BB)
    e = tl.arange(0, BI)
    m, n = tl.arange(0, BI * BP), tl.arange(0, BI * BD)
    there, left = begin + b < B, I - start
    upper = begin.to(tl.int64) * J + b * J
    at_record = upper[:, None] * (2 * BD) + tl.arange(0, 2 * BD)[None, :]
    at_row = upper[:, None] * (2 * BD) + tl.arange(0, BD)[None, :]
    w_mask = diagonal_mask(m, n, left, P, D, R, BP, BD)
    p_w = p_weight + start.to(tl.int64) * step + weight_diagonal(m, n, step, P, D, R, BP, BD)
    tile_at = begin.to(tl.int64) * I + start
    at_u = (b[:, None] * I + m[None, :] // BP) * P + m[None, :] % BP
    u_mask = there[:, None] & (m[None, :] // BP < left) & (m[None, :] % BP < P)
    u = tl.load(p_poses + tile_at * P + at_u, mask=u_mask, other=0.0)
    at_each = tile_at + b[:, None] * I + e[None, :]
    each_mask = there[:, None] & (e[None, :] < left)
    active = tl.load(p_active + at_each, mask=each_mask, other=1.0)
    if PULL:
        level = tl.load(p_level + at_each, mask=each_mask, other=0.0) + tl.log(active)
    else:
        level = tl.full([BB, BI], float("-inf"), tl.float32)
    total = tl.zeros([BB, BI], tl.float32)
    for j in range(J):
        # loads stand before the product, which they need not wait for.
        fit = tl.load(p_fit + at_record + j * (2 * BD), mask=there[:, None], other=0.0)
        constant = tl.load(p_constant + upper + j, mask=there, other=0.0)
        if PULL:
            mean = tl.load(p_next + at_row + j * (2 * BD), mask=there[:, None], other=0.0)
            pull = tl.load(p_pull + at_record + j * (2 * BD), mask=there[:, None], other=0.0)
            alpha = tl.load(p_alpha + upper + j, mask=there, other=0.0)
            constant -= tl.load(p_log + upper + j, mask=there, other=0.0)
        votes = product(u, tl.load(p_w + j * ((P // R) * (D // R)), mask=w_mask, other=0.0), PRECISION)
        _, _, logit = _density(votes, fit, constant, BB, BI, BD)
        if PULL:
            asked, _ = _asked(votes, mean, pull, alpha, BB, BI, BD)
            total += tl.exp(logit - level) * asked
        else:
            higher = tl.maximum(level, logit)
            total = total * tl.exp(level - higher) + tl.exp(logit - higher)
            level = higher
    if PULL:
        tl.store(p_mean + at_each, total, mask=each_mask)
    else:
        tl.store(p_level + at_each, level + tl.log(total) - tl.log(active), mask=each_mask)


@triton.jit(do_not_specialize=SIZES)
def sums_kernel(
    p_poses,  # [B, I, P]
    p_weight,  # [I or 1, J, P/R, D/R]
    p_active,  # [B, I]
    p_fit,  # [B, J, 2, BD]
    p_constant,  # [B, J]
    p_next,  # [B, J, 2, BD]: the fit after it; its μ is what "first" and "spread" take powers around
    p_pull,  # [B, J, 2, BD]
    p_alpha,  # [B, J]
    p_log,  # [B, J]
    p_level,  # [B, I]
    p_mean,  # [B, I]
    p_out,  # [chunks, 3, B, J, D]
    p_top,  # [chunks, B, J]: log of what the sums of "step" were divided by
    B,
    I,
    step,
    tiles,
    KIND: tl.constexpr,  # "first" (R = 1/J), "step" and "spread" (R from the fit), or "pull"
    J: tl.constexpr,
    P: tl.constexpr,
    D: tl.constexpr,
    R: tl.constexpr,
    BB: tl.constexpr,
    BI: tl.constexpr,
    BP: tl.constexpr,
    BD: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Sum x, x(û−k) and x(û−k)² over a chunk of lower capsules for one upper one.

    x is r ("first"), r over the largest of the chunk ("step"), w ("spread"), or ∂L/∂z = w S ∂L/∂r − r Σ_k R ∂L/∂r ("pull").
    """
    begin = tl.program_id(0) * BB
    chunk, j = tl.program_id(1), tl.program_id(2)
    b = tl.arange(0, BB)
    d = tl.arange(0, BD)
    e = tl.arange(0, BI)
    m, n = tl.arange(0, BI * BP), tl.arange(0, BI * BD)
    there = begin + b < B
    at_u = (b[:, None] * I + m[None, :] // BP) * P + m[None, :] % BP
    at_each = begin.to(tl.int64) * I + b[:, None] * I + e[None, :]
    upper = begin.to(tl.int64) * J + b * J + j
    at_record = upper[:, None] * (2 * BD) + tl.arange(0, 2 * BD)[None, :]
    at_w = j * ((P // R) * (D // R)) + weight_diagonal(m, n, step, P, D, R, BP, BD)
    zeroth = tl.zeros([BB, BI * BD], tl.float32)
    first = tl.zeros([BB, BI * BD], tl.float32)
    second = tl.zeros([BB, BI * BD], tl.float32)
    if KIND != "first":
        fit = tl.load(p_fit + at_record, mask=there[:, None], other=0.0)
        constant = tl.load(p_constant + upper, mask=there, other=0.0)
    if KIND != "step":
        next_mean = tl.load(p_next + upper[:, None] * (2 * BD) + d[None, :], mask=there[:, None], other=0.0)
    if KIND == "pull":
        pull = tl.load(p_pull + at_record, mask=there[:, None], other=0.0)
        alpha = tl.load(p_alpha + upper, mask=there, other=0.0)
    if (KIND == "spread") | (KIND == "pull"):
        log = tl.load(p_log + upper, mask=there, other=0.0)
    top = tl.full([BB], float("-inf"), tl.float32)
    # what a tile needs of its lower capsules is loaded a tile ahead.
    start = chunk * tiles * BI
    p_ahead = p_active if KIND == "first" else p_level
    ahead = tl.load(p_ahead + start + at_each, mask=there[:, None] & (start + e[None, :] < I), other=0.0)
    if KIND == "pull":
        mean_ahead = tl.load(p_mean + start + at_each, mask=there[:, None] & (start + e[None, :] < I), other=0.0)
    for tile in range(tiles):
        start = (chunk * tiles + tile) * BI
        left = I - start
        w_mask = diagonal_mask(m, n, left, P, D, R, BP, BD)
        u_mask = there[:, None] & (m[None, :] // BP < left) & (m[None, :] % BP < P)
        u = tl.load(p_poses + (begin.to(tl.int64) * I + start) * P + at_u, mask=u_mask, other=0.0)
        votes = product(u, tl.load(p_weight + start.to(tl.int64) * step + at_w, mask=w_mask, other=0.0), PRECISION)
        here = ahead
        following = start + BI
        next_mask = there[:, None] & (following + e[None, :] < I)
        ahead = tl.load(p_ahead + following + at_each, mask=next_mask, other=0.0)
        if KIND == "first":
            x = here / J
        else:
            far, _, logit = _density(votes, fit, constant, BB, BI, BD)
            logit -= here
            if KIND == "step":
                # r may vanish for all lower capsules; divided by the largest so far, it does not.
                logit = tl.where(e[None, :] < left, logit, float("-inf"))
                higher = tl.maximum(top, tl.max(logit, 1))
                base = tl.where(higher == float("-inf"), 0.0, higher)
                shrink = tl.exp(top - base)
                zeroth *= shrink[:, None]
                first *= shrink[:, None]
                top = higher
                x = tl.exp(logit - base[:, None])
            else:
                x = tl.exp(logit - log[:, None])
            if KIND == "pull":
                mean = mean_ahead
                mean_ahead = tl.load(p_mean + following + at_each, mask=next_mask, other=0.0)
                asked, _ = _asked(votes, next_mean, pull, alpha, BB, BI, BD)
                x = x * asked - tl.exp(logit) * mean
        x = tl.where(there[:, None] & (e[None, :] < left), x, 0.0)
        if (KIND == "first") | (KIND == "spread"):
            far = votes - _to_votes(next_mean, BB, BI, BD)
        x = _to_values(x, BB, BI, BD)
        zeroth += x
        first += x * far
        if KIND != "step":
            second += x * far * far
    plane = B.to(tl.int64) * (J * D)
    at_out = chunk.to(tl.int64) * (3 * plane) + (begin.to(tl.int64) * J + j) * D + b[:, None] * (J * D) + d[None, :]
    out_mask = there[:, None] & (d[None, :] < D)
    tl.store(p_out + at_out, _over_lower(zeroth, BB, BI, BD), mask=out_mask)
    tl.store(p_out + plane + at_out, _over_lower(first, BB, BI, BD), mask=out_mask)
    if KIND == "step":
        tl.store(p_top + chunk.to(tl.int64) * (B.to(tl.int64) * J) + upper, top, mask=there)
    else:
        tl.store(p_out + 2 * plane + at_out, _over_lower(second, BB, BI, BD), mask=out_mask)


@triton.jit(do_not_specialize=SIZES)
def gradients_kernel(
    p_poses,  # [B, I, P]
    p_weight,  # [I or 1, J, P/R, D/R]
    p_active,  # [B, I]
    p_fits,  # [T, B, J, 2, BD]
    p_constants,  # [T, B, J]
    p_pulls,  # [T, B, J, 2, BD]
    p_alphas,  # [T, B, J]
    p_logs,  # [T, B, J]: log S of the M-steps
    p_levels,  # [T−1, B, I]
    p_means,  # [T−1, B, I]
    p_d_poses,  # [B, I, P]
    p_d_weight,  # as in agreement
    p_d_active,  # [B, I]
    B,
    I,
    step,
    tiles,
    blocks,
    T: tl.constexpr,
    SHARED: tl.constexpr,
    J: tl.constexpr,
    P: tl.constexpr,
    D: tl.constexpr,
    R: tl.constexpr,
    BB: tl.constexpr,
    BI: tl.constexpr,
    BP: tl.constexpr,
    BD: tl.constexpr,
    TYPE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """∂û = Σ_t r^t (A^t + 2C^t(û−μ^t)) − ∂z^t (û−μ^(t−1))/σ²^(t−1), turned at once into the gradients of the inputs."""
    chunk, split = tl.program_id(0), tl.program_id(1)
    b = tl.arange(0, BB)
    e = tl.arange(0, BI)
    m, n = tl.arange(0, BI * BP), tl.arange(0, BI * BD)
    uppers, lowers = B.to(tl.int64) * J, B.to(tl.int64) * I
    at_u = (b[:, None] * I + m[None, :] // BP) * P + m[None, :] % BP
    at_each = b[:, None] * I + e[None, :]
    at_w = weight_diagonal(m, n, step, P, D, R, BP, BD)
    at_d_weight = (m[:, None] // BP * (J * P) + m[:, None] % BP) * (D // R) + n[None, :] % BD % (D // R)
    for tile in range(tiles):
        start = (chunk * tiles + tile) * BI
        left = I - start
        w_mask = diagonal_mask(m, n, left, P, D, R, BP, BD)
        p_w = p_weight + start.to(tl.int64) * step + at_w
        if SHARED:
            place = (split * tl.num_programs(0) + chunk) * BI
            d_mask = diagonal_mask(m, n, tl.where(tile == 0, BI, left), P, D, R, BP, BD)
        else:
            place = split * I + start
            d_mask = w_mask
        p_d_w = p_d_weight + place.to(tl.int64) * (J * P * (D // R)) + at_d_weight
        for block in range(blocks):
            begin = (split * blocks + block) * BB
            there = begin + b < B
            upper = begin.to(tl.int64) * J + b * J
            at_record = upper[:, None] * (2 * BD) + tl.arange(0, 2 * BD)[None, :]
            at_row = upper[:, None] * (2 * BD) + tl.arange(0, BD)[None, :]
            tile_at = begin.to(tl.int64) * I + start
            u_mask = there[:, None] & (m[None, :] // BP < left) & (m[None, :] % BP < P)
            u = tl.load(p_poses + tile_at * P + at_u, mask=u_mask, other=0.0)
            each_mask = there[:, None] & (e[None, :] < left)
            active = tl.load(p_active + tile_at + at_each, mask=each_mask, other=0.0)
            d_u = tl.zeros([BB, BI * BP], tl.float32)
            d_active = tl.zeros([BB, BI], tl.float32)
            levels = ()
            means = ()
            for t in tl.static_range(T - 1):
                at = t * lowers + tile_at + at_each
                levels = levels + (tl.load(p_levels + at, mask=each_mask, other=float("inf")),)
                means = means + (tl.load(p_means + at, mask=each_mask, other=0.0),)
                d_active += means[t]
            for j in range(J):
                mean = tl.load(p_fits + at_row + j * (2 * BD), mask=there[:, None], other=0.0)
                pull = tl.load(p_pulls + at_record + j * (2 * BD), mask=there[:, None], other=0.0)
                alpha = tl.load(p_alphas + upper + j, mask=there, other=0.0)
                w = tl.load(p_w + j * ((P // R) * (D // R)), mask=w_mask, other=0.0)
                votes = product(u, w, PRECISION)
                share = tl.exp(-tl.load(p_logs + upper + j, mask=there, other=0.0)) / J
                asked, d_votes = _asked(votes, mean, pull, alpha, BB, BI, BD)
                d_active += asked * share[:, None]
                d_votes *= _to_values(active * share[:, None], BB, BI, BD)
                for t in tl.static_range(T - 1):
                    here, after = t * uppers, (t + 1) * uppers
                    fit = tl.load(p_fits + here * (2 * BD) + at_record + j * (2 * BD), mask=there[:, None], other=0.0)
                    constant = tl.load(p_constants + here + upper + j, mask=there, other=0.0)
                    mean = tl.load(p_fits + after * (2 * BD) + at_row + j * (2 * BD), mask=there[:, None], other=0.0)
                    pull = tl.load(p_pulls + after * (2 * BD) + at_record + j * (2 * BD), mask=there[:, None], other=0.0)
                    alpha = tl.load(p_alphas + after + upper + j, mask=there, other=0.0)
                    log = tl.load(p_logs + after + upper + j, mask=there, other=0.0)
                    far, inverse, logit = _density(votes, fit, constant, BB, BI, BD)
                    asked, pulled = _asked(votes, mean, pull, alpha, BB, BI, BD)
                    logit -= levels[t]
                    x = tl.exp(logit - log[:, None])
                    d_votes += pulled * _to_values(x, BB, BI, BD)
                    d_votes -= far * inverse * _to_values(x * asked - tl.exp(logit) * means[t], BB, BI, BD)
                narrow = d_votes.to(TYPE)
                d_u = tl.dot(narrow, tl.trans(w), d_u, input_precision=PRECISION)
                d_w = product(tl.trans(u), narrow, PRECISION)
                add(p_d_w + j * (P * (D // R)), d_w, d_mask, (block == 0) & ((tile == 0) | (not SHARED)))
            tl.store(p_d_poses + tile_at * P + at_u, d_u, mask=u_mask)
            tl.store(p_d_active + tile_at + at_each, d_active, mask=each_mask)
