"""Routing by agreement on GPUs that never stores votes or logits (docs/routing.md, "Routing without votes").

With S the sum of the upper poses so far and X any tensor [B, J, D], one tile of samples and lower capsules needs

    Z_j = X_j W_jᵀ      <û_ij, X_j> = Σ_p u_ip Z_ijp      Σ_i c_ij û_ij = (c_j∘u) W_j

so every product runs on the matrix units and a vote is never made. ``sums_kernel`` does one iteration, or one step of
the way back; ``finish_kernel`` adds what the programs left and squashes, ``turn_kernel`` takes gradients back through the
squash; ``gradients_kernel`` makes the gradients of poses, weight and couplings. Programs write their own sums, which are added
in a fixed order: no two add to the same number, and results are the same every time.

Where lower capsules and samples are too few to fill a device, the upper capsules are divided among programs as well: EACH of
them a program. What a softmax takes over all of them, its denominator and the mean on the way back, is then a pass of its own
(PASS "all", of which every program leaves a part), and the sums come after it (PASS "sums").
"""

from __future__ import annotations

import triton
import triton.language as tl

from capsella.kernels._blocks import (
    SIZES,
    add,
    lower,
    over_pose,
    product,
    squash_scales,
    to_pose,
    upper_mask,
    value,
    weight_mask,
    weight_places,
)


@triton.jit(do_not_specialize=SIZES)
def sums_kernel(
    p_poses,  # [B, I, P]
    p_weight,  # [I or 1, J, P/R, D/R]
    p_given,  # [I, J]: couplings (KIND "fixed") or prior
    p_upper,  # [B, J, D]: S
    p_pull,  # [B, J, D]: G, for "pull"
    p_level,  # [B, I]: log Σ_j e^b; written by "agree", read by "pull"
    p_mean,  # [B, I]: Σ_j c <û, G>; written by "pull"
    p_shares,  # [slices, B, I]: what each program has of the one that is written, where upper capsules are divided
    p_out,  # [chunks, B, J, D]
    B,
    I,
    step,  # elements between the weights of two lower capsules; 0 if one serves all
    tiles,  # of lower capsules that a program goes through
    KIND: tl.constexpr,  # "fixed", "agree" or "pull"
    PASS: tl.constexpr,  # "both", "all" or "sums"
    EACH: tl.constexpr,  # upper capsules of a program
    GIVEN: tl.constexpr,
    FEW: tl.constexpr,  # whether registers hold something of all upper capsules at once
    J: tl.constexpr,
    P: tl.constexpr,
    D: tl.constexpr,
    R: tl.constexpr,
    BB: tl.constexpr,
    BI: tl.constexpr,
    BP: tl.constexpr,
    BD: tl.constexpr,
    TYPE: tl.constexpr,  # of the factors
    PRECISION: tl.constexpr,
):
    """Sum over a chunk of lower capsules: c û with given c, c û with c = softmax(prior + <û, S>), or ∂b û."""
    # places within a tile are 32-bit numbers on top of a 64-bit one for the whole tile, which saves registers.
    chunk = tl.program_id(1)
    begin = tl.program_id(0) * BB
    b = tl.arange(0, BB)
    d = tl.arange(0, BD)
    k = tl.arange(0, BI * BP)
    there = begin + b < B
    at_weight = weight_places(k, d, step, P, D, R, BP)
    at_u = (b[:, None] * I + lower(k, BP)[None, :]) * P + value(k, BP)[None, :]
    at_each = b[:, None] * I + tl.arange(0, BI)[None, :]
    at_x = b[:, None] * (J * D) + d[None, :]
    x_mask = upper_mask(there, d, D, BD)
    out_mask = there[:, None] & (d[None, :] < D)
    p_x = p_upper + begin.to(tl.int64) * (J * D) + at_x
    p_y = p_pull + begin.to(tl.int64) * (J * D) + at_x
    p_sums = p_out + (chunk * B + begin).to(tl.int64) * (J * D) + at_x
    W: tl.constexpr = (P // R) * (D // R)
    lowers = B.to(tl.int64) * I
    first, last = _slice(EACH, J)
    if FEW:
        uppers = _each(p_x, D, x_mask, J)
        lefts = _each(p_y, D, x_mask, J) if KIND == "pull" else ()
    for tile in range(tiles):
        start = (chunk * tiles + tile) * BI
        left = I - start
        w_mask = weight_mask(k, d, left, P, D, R, BP, BD)
        p_w = p_weight + start.to(tl.int64) * step + at_weight
        u_mask = there[:, None] & (lower(k, BP)[None, :] < left) & (value(k, BP)[None, :] < P)
        tile_at = begin.to(tl.int64) * I + start
        u = tl.load(p_poses + tile_at * P + at_u, mask=u_mask, other=0.0).to(tl.float32)
        each_mask = there[:, None] & (tl.arange(0, BI)[None, :] < left)
        level = tl.full([BB, BI], float("-inf"), tl.float32)
        total = tl.zeros([BB, BI], tl.float32)
        if KIND == "pull":
            # beyond the last sample couplings are zero, whatever the prior is.
            level = tl.load(p_level + tile_at + at_each, mask=each_mask, other=float("inf"))
        if FEW:
            # every weight is loaded once, all at the same time, and every logit made once and held in registers.
            weights = _each(p_w, W, w_mask, J)
            shares = ()
            pulls = ()
            for j in tl.static_range(J):
                w = tl.trans(weights[j])
                share = over_pose(u * product(uppers[j], w, PRECISION), BB, BI, BP)
                share += _given(p_given, start, j, left, BI, J, GIVEN)
                if KIND == "pull":
                    share = tl.exp(share - level)
                    pull = over_pose(u * product(lefts[j], w, PRECISION), BB, BI, BP)
                    total += share * pull
                    pulls = pulls + (pull,)
                else:
                    level = tl.maximum(level, share)
                shares = shares + (share,)
            if KIND == "pull":
                tl.store(p_mean + tile_at + at_each, total, mask=each_mask)
            else:
                level = tl.where(level == float("-inf"), 0.0, level)
                raised = ()
                for j in tl.static_range(J):
                    share = tl.exp(shares[j] - level)
                    total += share
                    raised = raised + (share,)
                shares = raised
                tl.store(p_level + tile_at + at_each, level + tl.log(total), mask=each_mask)
                total = 1.0 / total
            for j in tl.static_range(J):
                c = shares[j] * (pulls[j] - total) if KIND == "pull" else shares[j] * total
                x = (u * to_pose(c, BB, BI, BP)).to(TYPE)
                add(p_sums + j * D, product(x, weights[j], PRECISION), out_mask, tile == 0)
        else:
            if KIND != "fixed" and PASS != "sums":
                for j in range(first, last):
                    w = tl.trans(tl.load(p_w + j * W, mask=w_mask, other=0.0))
                    logit = _along(u, p_x + j * D, x_mask, w, BB, BI, BP, PRECISION) + _given(
                        p_given, start, j, left, BI, J, GIVEN
                    )
                    if KIND == "pull":
                        total += tl.exp(logit - level) * _along(u, p_y + j * D, x_mask, w, BB, BI, BP, PRECISION)
                    else:
                        level, total = _raise(level, total, logit)
                if KIND == "agree":
                    level += tl.log(total)
            if PASS == "all":
                p_share = p_shares + tl.program_id(2) * lowers + tile_at + at_each
                tl.store(p_share, total if KIND == "pull" else level, mask=each_mask)
            else:
                if PASS == "sums":
                    for part in range(-(-J // EACH)):
                        share = tl.load(p_shares + part * lowers + tile_at + at_each, mask=each_mask, other=0.0)
                        if KIND == "pull":
                            total += share
                        else:
                            level, total = _raise(level, total, share)
                    if KIND == "agree":
                        level += tl.log(total)
                # programs of other upper capsules have the same number.
                mine = each_mask & (first == 0) if EACH < J else each_mask
                if KIND == "pull":
                    tl.store(p_mean + tile_at + at_each, total, mask=mine)
                elif KIND == "agree":
                    tl.store(p_level + tile_at + at_each, level, mask=mine)
                # the logits are made again: registers do not hold those of many upper capsules.
                for j in range(first, last):
                    w = tl.load(p_w + j * W, mask=w_mask, other=0.0)
                    if KIND == "fixed":
                        x = u
                        if GIVEN:
                            x *= to_pose(tl.broadcast_to(_given(p_given, start, j, left, BI, J, True), [BB, BI]), BB, BI, BP)
                    else:
                        logit = _along(u, p_x + j * D, x_mask, tl.trans(w), BB, BI, BP, PRECISION)
                        c = tl.exp(logit + _given(p_given, start, j, left, BI, J, GIVEN) - level)
                        if KIND == "pull":
                            c *= _along(u, p_y + j * D, x_mask, tl.trans(w), BB, BI, BP, PRECISION) - total
                        x = u * to_pose(c, BB, BI, BP)
                    add(p_sums + j * D, product(x.to(TYPE), w, PRECISION), out_mask, tile == 0)


@triton.jit
def _slice(EACH: tl.constexpr, J: tl.constexpr):
    """Which upper capsules are this program's: from the first to before the last."""
    # constants where they are all of them.
    if EACH < J:
        first = tl.program_id(2) * EACH
        last = tl.minimum(first + EACH, J)
    else:
        first = 0
        last = J
    return first, last


@triton.jit
def _raise(level, total, logit):
    """Add e^logit to total·e^level, with the higher of both as the new level."""
    higher = tl.maximum(level, logit)
    # a prior may rule out the upper capsules so far.
    base = tl.where(higher == float("-inf"), 0.0, higher)
    return higher, total * tl.exp(level - base) + tl.exp(logit - base)


@triton.jit
def _along(u, p_x, x_mask, w, BB: tl.constexpr, BI: tl.constexpr, BP: tl.constexpr, PRECISION: tl.constexpr):
    """<û_ij, x_j> for a tile of samples and lower capsules, [BB, BI]; ``w`` is turned over."""
    return over_pose(u * product(tl.load(p_x, mask=x_mask, other=0.0), w, PRECISION), BB, BI, BP)


@triton.jit
def _each(p_tile, stride, mask, J: tl.constexpr):
    """Load the tiles of all upper capsules."""
    tiles = ()
    for j in tl.static_range(J):
        tiles = tiles + (tl.load(p_tile + j * stride, mask=mask, other=0.0),)
    return tiles


@triton.jit
def _given(p_given, start, j, left, BI: tl.constexpr, J: tl.constexpr, GIVEN: tl.constexpr):
    """Load a column of [I, J] as [1, BI]; zero where there is none."""
    if GIVEN:
        i = tl.arange(0, BI)
        x = tl.load(p_given + start.to(tl.int64) * J + i * J + j, mask=i < left, other=0.0)[None, :]
    else:
        x = 0.0
    return x


@triton.jit(do_not_specialize=SIZES)
def finish_kernel(
    p_parts,  # [chunks, B·J, D]
    p_bias,  # [J, D]
    p_before,  # [B·J, D], the upper poses summed so far
    p_raw,  # [B·J, D]: s, before the squash
    p_sum,  # [B·J, D]: the upper poses summed
    p_factor,  # [B·J, D]: the same, as a factor of products
    p_poses,  # [B·J, D]
    p_lengths,  # [B·J]
    rows,  # B·J
    chunks,
    scale,
    BIAS: tl.constexpr,
    BEFORE: tl.constexpr,
    LAST: tl.constexpr,
    SQUASH: tl.constexpr,
    J: tl.constexpr,
    D: tl.constexpr,
    BR: tl.constexpr,
    BC: tl.constexpr,
    BD: tl.constexpr,
):
    """Add up the chunks, add the bias and squash."""
    r = tl.program_id(0) * BR + tl.arange(0, BR)
    d = tl.arange(0, BD)
    inside = (r[:, None] < rows) & (d[None, :] < D)
    at = r[:, None].to(tl.int64) * D + d[None, :]
    s = _add_chunks(p_parts, at, inside, rows * D, chunks, BC, BR, BD) * scale
    if BIAS:
        s += tl.load(p_bias + (r % J)[:, None] * D + d[None, :], mask=inside, other=0.0)
    n = tl.sqrt(tl.sum(s * s, 1))
    g, _ = squash_scales(n, SQUASH)
    v = s * g[:, None]
    tl.store(p_raw + at, s, mask=inside)
    if LAST:
        tl.store(p_poses + at, v, mask=inside)
        tl.store(p_lengths + r, n * g, mask=r < rows)
    else:
        if BEFORE:
            v += tl.load(p_before + at, mask=inside, other=0.0)
        tl.store(p_sum + at, v, mask=inside)
        tl.store(p_factor + at, v, mask=inside)


@triton.jit(do_not_specialize=SIZES)
def turn_kernel(
    p_parts,  # [chunks, B·J, D]: what the later iteration asks of this one's poses
    p_d_poses,  # [B·J, D]: gradient of the returned poses
    p_d_lengths,  # [B·J]
    p_raw,  # [B·J, D]: s
    p_asked,  # [B·J, D]: gradient of this iteration's poses; read and written
    p_pull,  # [B·J, D]: G, the gradient of s
    p_factor,  # [B·J, D]: the same, as a factor of products
    rows,
    chunks,
    LAST: tl.constexpr,
    SECOND: tl.constexpr,  # whether nothing was asked before
    D_POSES: tl.constexpr,
    D_LENGTHS: tl.constexpr,
    SQUASH: tl.constexpr,
    D: tl.constexpr,
    BR: tl.constexpr,
    BC: tl.constexpr,
    BD: tl.constexpr,
):
    """Add up what is asked of an iteration's poses and take it back through the squash."""
    r = tl.program_id(0) * BR + tl.arange(0, BR)
    d = tl.arange(0, BD)
    inside = (r[:, None] < rows) & (d[None, :] < D)
    at = r[:, None].to(tl.int64) * D + d[None, :]
    s = tl.load(p_raw + at, mask=inside, other=0.0)
    n = tl.sqrt(tl.sum(s * s, 1))
    unit = s / tl.where(n > 0.0, n, 1.0)[:, None]
    if LAST:
        asked = tl.zeros([BR, BD], tl.float32)
        if D_POSES:
            asked += tl.load(p_d_poses + at, mask=inside, other=0.0).to(tl.float32)
        if D_LENGTHS:
            asked += unit * tl.load(p_d_lengths + r, mask=r < rows, other=0.0).to(tl.float32)[:, None]
    else:
        asked = _add_chunks(p_parts, at, inside, rows * D, chunks, BC, BR, BD)
        if not SECOND:
            asked += tl.load(p_asked + at, mask=inside, other=0.0)
        tl.store(p_asked + at, asked, mask=inside)
    g, along = squash_scales(n, SQUASH)
    across = tl.sum(unit * asked, 1)
    pull = asked * g[:, None] + unit * ((along - g) * across)[:, None]
    tl.store(p_pull + at, pull, mask=inside)
    tl.store(p_factor + at, pull, mask=inside)


@triton.jit
def _add_chunks(p_parts, at, inside, size, chunks, BC: tl.constexpr, BR: tl.constexpr, BD: tl.constexpr):
    total = tl.zeros([BR, BD], tl.float32)
    c = tl.arange(0, BC)[:, None, None]
    for first in range(0, chunks, BC):
        far = (first + c).to(tl.int64) * size
        total += tl.sum(tl.load(p_parts + far + at[None], mask=(first + c < chunks) & inside[None], other=0.0), 0)
    return total


@triton.jit(do_not_specialize=SIZES)
def gradients_kernel(
    p_poses,  # [B, I, P]
    p_weight,  # [I or 1, J, P/R, D/R]
    p_first,  # [I, J]: couplings of the first iteration
    p_prior,  # [I, J]
    p_sums,  # [T−1, B, J, D]: S of the later iterations
    p_pulls,  # [T, B, J, D]: G
    p_levels,  # [T−1, B, I]
    p_means,  # [T−1, B, I]
    p_d_poses,  # [slices, B, I, P]: each program's sum over its upper capsules
    p_d_weight,  # [splits, I, J, P, D/R], or [splits, chunks·BI, J, P, D/R] for one weight
    p_d_first,  # [splits, I, J]
    p_d_prior,  # [splits, I, J]
    B,
    I,
    step,
    tiles,  # of lower capsules that a program goes through
    blocks,  # of samples that a program goes through
    uniform,  # coupling of the first iteration where none are given
    T: tl.constexpr,
    EACH: tl.constexpr,  # upper capsules of a program
    FIRST: tl.constexpr,
    PRIOR: tl.constexpr,
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
    """∂û_ij = Σ_t c^t G^t_j + ∂b^t S^(t−1)_j, turned at once into gradients of poses, weight, first couplings and prior."""
    chunk, split = tl.program_id(0), tl.program_id(1)
    b = tl.arange(0, BB)
    d = tl.arange(0, BD)
    k = tl.arange(0, BI * BP)
    e = tl.arange(0, BI)
    at_weight = weight_places(k, d, step, P, D, R, BP)
    # the gradient has a matrix of its own for every row of a matrix pose, added up later.
    at_d_weight = (lower(k, BP) * (J * P) + value(k, BP))[:, None] * (D // R) + d[None, :] % (D // R)
    at_u = (b[:, None] * I + lower(k, BP)[None, :]) * P + value(k, BP)[None, :]
    at_each = b[:, None] * I + e[None, :]
    at_x = b[:, None] * (J * D) + d[None, :]
    upper, lowers = B.to(tl.int64) * (J * D), B.to(tl.int64) * I
    first, last = _slice(EACH, J)
    for tile in range(tiles):
        start = (chunk * tiles + tile) * BI
        left = I - start
        w_mask = weight_mask(k, d, left, P, D, R, BP, BD)
        p_w = p_weight + start.to(tl.int64) * step + at_weight
        if SHARED:
            place = (split * tl.num_programs(0) + chunk) * BI
            # every place is written once, though a last tile may lack lower capsules.
            d_mask = weight_mask(k, d, tl.where(tile == 0, BI, left), P, D, R, BP, BD)
        else:
            place = split * I + start
            d_mask = w_mask
        p_d_w = p_d_weight + place.to(tl.int64) * (J * P * (D // R)) + at_d_weight
        for block in range(blocks):
            begin = (split * blocks + block) * BB
            there = begin + b < B
            x_mask = upper_mask(there, d, D, BD)
            p_s = p_sums + begin.to(tl.int64) * (J * D) + at_x
            p_g = p_pulls + begin.to(tl.int64) * (J * D) + at_x
            each_mask = there[:, None] & (e[None, :] < left)
            u_mask = there[:, None] & (lower(k, BP)[None, :] < left) & (value(k, BP)[None, :] < P)
            tile_at = begin.to(tl.int64) * I + start
            u = tl.load(p_poses + tile_at * P + at_u, mask=u_mask, other=0.0).to(tl.float32)
            d_u = tl.zeros([BB, BI * BP], tl.float32)
            levels = ()
            means = ()
            for t in tl.static_range(T - 1):
                levels = levels + (tl.load(p_levels + t * lowers + tile_at + at_each, mask=each_mask, other=float("inf")),)
                means = means + (tl.load(p_means + t * lowers + tile_at + at_each, mask=each_mask, other=0.0),)
            for j in range(first, last):
                w = tl.load(p_w + j * ((P // R) * (D // R)), mask=w_mask, other=0.0)
                g = tl.load(p_g + j * D, mask=x_mask, other=0.0)
                z = product(g, tl.trans(w), PRECISION)
                at_c = (split * I + start).to(tl.int64) * J + e * J + j
                if FIRST:
                    c = to_pose(tl.broadcast_to(_given(p_first, start, j, left, BI, J, True), [BB, BI]), BB, BI, BP)
                    add(p_d_first + at_c, tl.sum(over_pose(u * z, BB, BI, BP), 0), e < left, block == 0)
                else:
                    c = uniform
                d_u += z * c
                d_w = product(tl.trans((u * c).to(TYPE)), g, PRECISION)
                d_b = tl.zeros([BI], tl.float32)
                for t in tl.static_range(T - 1):
                    x = tl.load(p_s + t * upper + j * D, mask=x_mask, other=0.0)
                    g = tl.load(p_g + (t + 1) * upper + j * D, mask=x_mask, other=0.0)
                    z = product(x, tl.trans(w), PRECISION)
                    y = product(g, tl.trans(w), PRECISION)
                    logit = over_pose(u * z, BB, BI, BP) + _given(p_prior, start, j, left, BI, J, PRIOR)
                    share = tl.exp(logit - levels[t])
                    asked = share * (over_pose(u * y, BB, BI, BP) - means[t])
                    if PRIOR:
                        d_b += tl.sum(asked, 0)
                    # ∂b goes with S, c with G.
                    asked, share = to_pose(asked, BB, BI, BP), to_pose(share, BB, BI, BP)
                    d_u += z * asked
                    d_u += y * share
                    d_w = tl.dot(tl.trans((u * asked).to(TYPE)), x, d_w, input_precision=PRECISION)
                    d_w = tl.dot(tl.trans((u * share).to(TYPE)), g, d_w, input_precision=PRECISION)
                if PRIOR:
                    add(p_d_prior + at_c, d_b, e < left, block == 0)
                add(p_d_w + j * (P * (D // R)), d_w, d_mask, (block == 0) & ((tile == 0) | (not SHARED)))
            tl.store(p_d_poses + (tl.program_id(2) * lowers + tile_at) * P + at_u, d_u, mask=u_mask)
