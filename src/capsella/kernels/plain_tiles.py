"""What the paths without votes share: tiles of lower capsules, memory that is used again, two products, squash's gradient.

    ⟨û_ij, x_j⟩ = Σ_p u_ip (x_j W_jᵀ)_ip        inner(...)
    Σ_i c_ij û_ij = (c_j∘u) W_j                  add_weighted(...)

A tile holds lower capsules a…b of all samples. Its poses are laid out as [B, P, n], its weight as [J, P·n, D], so that both
identities are matrix products batched over J, and so that what is left are long rows over n. Poses of R rows fold R into B.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple, NoReturn

import torch
from einops import rearrange
from torch import Tensor

from capsella.routing.base import Call

# elements of one tile's largest intermediate: 3 MiB of float32 on a CPU, by sweep (docs/routing.md); on a GPU, what fills it.
CPU_TILE = 3 << 18
GPU_TILE = 1 << 26
# samples that are enough for tiles to be faster than the reference, by sweep on two cores.
ENOUGH = 8
# products of fewer lower capsules are too thin to be fast; samples are divided instead.
LEAST = 32


class Span(NamedTuple):
    """Lower capsules ``start`` to ``stop``, one tile."""

    start: int
    stop: int

    @property
    def size(self) -> int:
        """Number of lower capsules."""
        return self.stop - self.start


class Scratch:
    """Buffers by name, allocated at first use and cut to size at every later one.

    Fresh memory can cost more than the arithmetic on it: the system hands it out page by page.
    """

    def __init__(self, like: Tensor) -> None:
        self._like = like
        self._buffers: dict[str, Tensor] = {}

    def take(self, name: str, *shape: int) -> Tensor:
        """Return an uninitialised tensor of ``shape``; what ``name`` held before is lost."""
        size = math.prod(shape)
        if name not in self._buffers or self._buffers[name].numel() < size:
            self._buffers[name] = self._like.new_empty(size)
        return self._buffers[name][:size].view(shape)

    def copy(self, name: str, source: Tensor) -> Tensor:
        """Return ``source`` as a contiguous tensor."""
        return self.take(name, *source.shape).copy_(source)


def spans(B: int, I: int, values: int, device: str) -> Iterator[Span]:
    """Cut I lower capsules into equal tiles in which B·n·``values`` fits the caches.

    Example:
        >>> [tuple(span) for span in spans(32, 1152, 160, "cpu")]
        [(0, 144), (144, 288), (288, 432), (432, 576), (576, 720), (720, 864), (864, 1008), (1008, 1152)]
    """
    count = -(-B * I * values // (CPU_TILE if device == "cpu" else GPU_TILE))
    count = max(1, min(count, I))
    step = -(-I // count)
    return (Span(start, min(start + step, I)) for start in range(0, I, step))


def samples(B: int, values: int, device: str) -> int:
    """Return how many of B samples to route at a time, so that a tile holds no fewer than ``LEAST`` lower capsules."""
    if device != "cpu":
        return max(B, 1)
    return max(1, min(B, CPU_TILE // (LEAST * values)))


class Tile(NamedTuple):
    """Poses [B, P, n] and weight [J, P/R·n, D/R] of the lower capsules in ``span``."""

    span: Span
    poses: Tensor
    weight: Tensor


def lay_out(poses: Tensor, weight: Tensor, rows: int) -> list[Tile]:
    """Cut poses [B, I, P] and weight [I, J, P/R, D/R] into tiles, each in the layout that the products read."""
    B, I, P = poses.shape
    _, J, _, D = weight.shape
    return [
        Tile(
            span,
            poses[:, span.start : span.stop].permute(0, 2, 1).contiguous(),
            weight[span.start : span.stop].permute(1, 2, 0, 3).flatten(1, 2),
        )
        for span in spans(B, I, J * max(P, rows * D), poses.device.type)
    ]


def inner(tile: Tile, above: Tensor, rows: int, scratch: Scratch) -> Tensor:
    """Compute ⟨û_ij, x_j⟩ as [J, B, n] for x [J, B, D]."""
    (B, P, n), J = tile.poses.shape, len(tile.weight)
    product = torch.bmm(above.reshape(J, B * rows, -1), tile.weight.mT, out=scratch.take("product", J, B * rows, P // rows * n))
    return product.view(J, B, P, n).mul_(tile.poses).sum(dim=2)


def add_weighted(total: Tensor, tile: Tile, couplings: Tensor, rows: int, scratch: Scratch) -> None:
    """Add Σ_i c_ij û_ij over a tile to ``total`` [J, B, D], for couplings [J, B or 1, n]."""
    (B, P, n), J = tile.poses.shape, len(tile.weight)
    weighted = torch.mul(couplings[:, :, None], tile.poses, out=scratch.take("product", J, B, P, n))
    total.view(J, B * rows, -1).baddbmm_(weighted.view(J, B * rows, P // rows * n), tile.weight)


def of_one_row(weight: Tensor, rows: int) -> Tensor:
    """Return the weight [.., P, D] that does to a whole pose what [.., P/R, D/R] does to each of its R rows.

    More products, but products are cheap; what is done to each vote then runs over D values in a row.
    """
    if rows == 1:
        return weight
    blocks = torch.einsum("rs,ijpd->ijrpsd", torch.eye(rows, dtype=weight.dtype, device=weight.device), weight)
    return rearrange(blocks, "i j r p s d -> i j (r p) (s d)")


def is_open(size: Any) -> bool:
    """Whether a size stands for any number, as in a program that is exported; a comparison would tie it to one side."""
    return isinstance(size, torch.SymInt)


def few_votes(call: Call, *, least: int, least_shared: int) -> list[str]:
    """Give a reason not to run where the votes [B, I, J, D] are so few that the steps around the products take the time."""
    count = call.sizes["B"] * call.sizes["I"] * call.sizes["J"] * call.sizes["D"]
    bound = least_shared if call.shared else least
    if is_open(count) or count >= bound:
        return []  # of a size that is not known `few_samples` speaks
    return [f"B·I·J·D is {count}; expected at least {bound}, below which the reference is faster"]


def few_samples(call: Call, most: int | None = None) -> list[str]:
    """Give a reason not to run where the weight, which every pass reads, is larger than the votes.

    ``most`` is the number of samples that is enough all the same, unless a pose has more values below than above: what lies
    between the products of a tile is then more than the votes.
    """
    B, P, D = (call.sizes[letter] for letter in "BPD")
    least = 1 if call.shared else -(-(P if most is None or P > D else min(P, most)) // call.rows**2)
    if is_open(B):
        return [f"B is not fixed; expected a number of at least {least}"]
    return [] if least <= B else [f"B is {B}; expected at least {least}, below which the reference is faster"]


def over_sources(call: Call) -> list[str]:
    """Give a reason not to run agreement whose softmax goes over the lower capsules, of which a tile holds a part alone."""
    given = call.options.get("normalise", "targets")
    # uniform routing has the same option, and no softmax.
    if call.algorithm != "agreement" or given == "targets":
        return []
    return [f"normalise={given!r}; it needs 'targets', a softmax over the upper capsules"]


def refuse_twice(ctx: Any, *gradients: Tensor) -> NoReturn:
    """Be the gradient of a gradient, of which there is none."""
    raise RuntimeError('this implementation cannot be differentiated twice; expected impl="reference" for that')


def squash_gradient(x: Tensor, gradient: Tensor, kind: str) -> Tensor:
    """Return ∂L/∂x for v = squash(x) along the last axis, given ∂L/∂v.

    With v = g(n) x: g ∂L/∂v + g'(n)/n (x·∂L/∂v) x, where the second term vanishes at zero.
    """
    if kind == "none":
        return gradient
    n: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    safe = torch.where(n > 0, n, 1)
    if kind == "sabour":
        damped = 1 / (1 + n * n)
        scale, slope = n * damped, (1 - n * n) * damped * damped
    else:
        rest = torch.expm1(-safe)  # e^−n − 1
        scale = torch.where(n > 0, -rest / safe, 1)
        slope = (rest + safe * (rest + 1)) / (safe * safe)
    return scale * gradient + slope * ((x * gradient).sum(dim=-1, keepdim=True) / safe) * x
