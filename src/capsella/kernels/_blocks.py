"""Device functions that the Triton kernels share: how tiles are loaded, reduced over a pose, and squashed.

A tile's K axis holds BI lower capsules of BP values each, (i, p) in one axis of K = BI·BP columns. ``lower`` and ``value``
say which capsule and which value a column is. The order is chosen for the matrix units: a thread holds two neighbouring
columns of every eight, so the low bit and the bits above the third are values of one capsule, and the sum over a pose
(``over_pose``) needs no exchange between threads.
"""

from __future__ import annotations

import triton
import triton.language as tl

# sizes that may be one: Triton would make a constant of that, which has no methods.
SIZES = ("B", "I", "rows", "chunks")


@triton.jit
def lower(k, BP: tl.constexpr):
    """Which lower capsule of the tile a column belongs to."""
    return k // (4 * BP) * 4 + k // 2 % 4


@triton.jit
def value(k, BP: tl.constexpr):
    """Which value of its pose a column is."""
    return k // 8 % (BP // 2) * 2 + k % 2


@triton.jit
def over_pose(x, BB: tl.constexpr, BI: tl.constexpr, BP: tl.constexpr):
    """Sum [BB, BI·BP] over the values of each pose, to [BB, BI]."""
    x = tl.reshape(x, [BB, BI // 4, BP // 2, 4, 2])
    return tl.reshape(tl.sum(tl.sum(x, 4), 2), [BB, BI])


@triton.jit
def to_pose(x, BB: tl.constexpr, BI: tl.constexpr, BP: tl.constexpr):
    """Repeat [BB, BI] for every value of a pose, to [BB, BI·BP]."""
    x = tl.reshape(x, [BB, BI // 4, 1, 4, 1])
    return tl.reshape(tl.broadcast_to(x, [BB, BI // 4, BP // 2, 4, 2]), [BB, BI * BP])


@triton.jit
def weight_places(k, d, step, P: tl.constexpr, D: tl.constexpr, R: tl.constexpr, BP: tl.constexpr):
    """Where in the weights of one upper capsule a tile [K, BD] lies; a matrix pose's appear R times along the diagonal."""
    p = value(k, BP)[:, None] % (P // R)
    return lower(k, BP)[:, None] * step + p * (D // R) + d[None, :] % (D // R)


@triton.jit
def weight_mask(k, d, left, P: tl.constexpr, D: tl.constexpr, R: tl.constexpr, BP: tl.constexpr, BD: tl.constexpr):
    """Which of them there are, if ``left`` lower capsules are left."""
    # comparisons that cannot fail are left out: they would keep loads from being wide.
    inside = lower(k, BP)[:, None] < left
    p = value(k, BP)[:, None]
    if P != BP:
        inside = inside & (p < P)
    if D != BD:
        inside = inside & (d[None, :] < D)
    if R > 1:
        inside = inside & (p // (P // R) == d[None, :] // (D // R))
    return inside


@triton.jit
def upper_mask(there, d, D: tl.constexpr, BD: tl.constexpr):
    """Which places of a tile [rows, BD] of [·, J, D] there are."""
    inside = there[:, None]
    if D != BD:
        inside = inside & (d[None, :] < D)
    return inside


@triton.jit
def add(p_out, x, inside, first):
    """Write what this program alone writes to, or add to it; one writer in a fixed order, so always the same sum."""
    # masks and no branch: loops with a branch are not pipelined.
    tl.store(p_out, x, mask=inside & first)
    tl.atomic_add(p_out, x, mask=inside & (first == 0), sem="relaxed")


@triton.jit
def product(x, y, PRECISION: tl.constexpr):
    """Multiply two tiles and sum in float32."""
    return tl.dot(x, y, input_precision=PRECISION)


@triton.jit
def squash_scales(n, SQUASH: tl.constexpr):
    """Return g(n) with v = g(n)·s, and the Jacobian of the squash along s, for lengths n."""
    if SQUASH == "sabour":
        g = n / (1.0 + n * n)
        along = 2.0 * n / ((1.0 + n * n) * (1.0 + n * n))
    elif SQUASH == "exp":
        along = tl.exp(-n)
        # the difference 1 − e^−n loses its digits for short capsules; the series does not.
        series = 1.0 - n * (0.5 - n * (1.0 / 6 - n * (1.0 / 24 - n * (1.0 / 120 - n * (1.0 / 720 - n / 5040)))))
        g = tl.where(n < 0.3, series, (1.0 - along) / tl.where(n < 0.3, 1.0, n))
    else:
        g = n * 0.0 + 1.0
        along = g
    return g, along
