"""Convolutions between feature maps on Hopper GPUs, whose tiles are filled by the images of a batch.

With channels last, one position of all images is a matrix, and the channels of all positions under one row of a window are
neighbouring columns. A program has one output position of BM images and BN channels, and goes through its window:

    out[b, y, x, :] = Σ_r Σ_k maps[b, (y·S + r, x·T) + k] · weight[:, r, k]      k over L positions and C channels at once

Both factors are plain tiles of matrices, [B, H·W·C] and [O, K·L·C]: the copy engine brings them as the matrix units read them,
nothing is gathered, and no stride is special. Where positions are too few, or not a multiple of the multiprocessors, a window
is divided into parts that are added up afterwards, in a fixed order.

The way back to the maps is a sum over the windows that see a position, which are every S·T-th tap. Positions with the same
remainders by S and T are a class with the same taps but at the edges; the class with the most comes first, so that no long
program is left for the end.
"""

from __future__ import annotations

import triton
import triton.language as tl

# sizes that may be one: Triton would make a constant of that, which has no methods.
SIZES = ("B", "places", "OW", "each", "count", "H", "W", "OH", "K", "L")


@triton.jit(do_not_specialize=SIZES)
def conv_forward_kernel(
    maps,  # descriptor of [B, H·W·C], blocks of [BM, BK]
    weight,  # descriptor of [O, K·L·C], blocks of [BN, BK]
    p_bias,  # [O]
    p_out,  # [B, OH·OW·O]; of several parts float32 [parts, B, OH·OW·O]
    B,
    places,  # OH·OW
    OW,
    O,
    across,  # columns of the maps from one output position to the next: T·C
    down,  # and to the one below: S·W·C
    row,  # columns of a window's row: L·C
    skip,  # from its end to where the next one begins: W·C − L·C
    steps,  # of BK columns, of all parts
    each,  # of one part
    PARTS: tl.constexpr,
    BIASED: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Sum over a window, or a part of it, for one output position of BM images and BN channels."""
    program = tl.program_id(0)
    wide = tl.cdiv(O, BN)
    n = program % wide * BN
    program = program // wide
    place = program % places
    program = program // places
    high = tl.cdiv(B, BM)
    m = program % high * BM
    part = program // high
    begin = place // OW * down + place % OW * across
    total = tl.zeros([BM, BN], tl.float32)
    for step in tl.range(part * each, tl.minimum(part * each + each, steps), num_stages=STAGES):
        k = step * BK
        x = maps.load([m, begin + k + k // row * skip])
        w = weight.load([n, k])
        total = tl.dot(x, w.T, total)
    b = m + tl.arange(0, BM)
    o = n + tl.arange(0, BN)
    if BIASED and PARTS == 1:
        total += tl.load(p_bias + o, mask=o < O, other=0.0).to(tl.float32)[None, :]
    columns = places.to(tl.int64) * O
    p = p_out + part * B * columns + b[:, None] * columns + (place * O + o)[None, :]
    tl.store(p, total.to(p_out.dtype.element_ty), mask=(b < B)[:, None] & (o < O)[None, :])


@triton.jit(do_not_specialize=SIZES)
def conv_parts_kernel(
    p_parts,  # float32 [parts, B·OH·OW·O]
    p_bias,  # [O]
    p_out,  # [B·OH·OW·O]
    count,  # B·OH·OW·O
    O,
    PARTS: tl.constexpr,
    BIASED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Add up the parts of a window, always in the same order, and the bias."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    there = at < count
    total = tl.load(p_parts + at, mask=there, other=0.0)
    for part in tl.static_range(1, PARTS):
        total += tl.load(p_parts + part * count.to(tl.int64) + at, mask=there, other=0.0)
    if BIASED:
        total += tl.load(p_bias + at % O, mask=there, other=0.0).to(tl.float32)
    tl.store(p_out + at, total.to(p_out.dtype.element_ty), mask=there)


@triton.jit(do_not_specialize=SIZES)
def conv_backward_kernel(
    grad,  # descriptor of [B, OH·OW·O], blocks of [BM, BK]
    weight,  # descriptor of [O, K·L·C], blocks of [BK, BN]
    p_out,  # [B, H·W·C]
    B,
    H,
    W,
    C,
    OH,
    OW,
    O,
    K,
    L,
    S: tl.constexpr,
    T: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Sum over the windows that see one position, for BM images and BN channels of it."""
    program = tl.program_id(0)
    wide = tl.cdiv(C, BN)
    n = program % wide * BN
    program = program // wide
    columns = tl.cdiv(W, T)
    x = program % columns
    program = program // columns
    rows = tl.cdiv(H, S)
    y = program % rows
    program = program // rows
    high = tl.cdiv(B, BM)
    m = program % high * BM
    kind = program // high
    p = kind // T
    q = kind % T
    # position (y·S + p, x·T + q) is seen through tap (p + S·i, q + T·j) by the window at (y − i, x − j).
    if (y * S + p < H) & (x * T + q < W):
        top = tl.maximum(y - OH + 1, 0)
        left = tl.maximum(x - OW + 1, 0)
        # of a class beyond the kernel there is no tap.
        deep = tl.where(p < K, tl.maximum(tl.minimum(y, (K - 1 - p) // S) - top + 1, 0), 0)
        broad = tl.where(q < L, tl.maximum(tl.minimum(x, (L - 1 - q) // T) - left + 1, 0), 0)
        # the loop's first quotient is taken before it is known whether there is a first step.
        reach = tl.maximum(broad, 1)
        blocks = O // BK
        total = tl.zeros([BM, BN], tl.float32)
        for step in tl.range(0, deep * broad * blocks, num_stages=STAGES):
            tap = step // blocks
            o = step % blocks * BK
            i = top + tap // reach
            j = left + tap % reach
            g = grad.load([m, ((y - i) * OW + x - j) * O + o])
            w = weight.load([o, ((p + S * i) * L + q + T * j) * C + n])
            total = tl.dot(g, w, total)
        b = m + tl.arange(0, BM)
        c = n + tl.arange(0, BN)
        at = b.to(tl.int64)[:, None] * (H * W * C) + (((y * S + p) * W + x * T + q) * C + c)[None, :]
        tl.store(p_out + at, total.to(p_out.dtype.element_ty), mask=(b < B)[:, None] & (c < C)[None, :])
