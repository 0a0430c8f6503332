"""What ``chunked_*`` share: the votes of a chunk of samples, and the products that make and read them.

    V [I, b, J·D]                            votes of all I lower capsules for a chunk of b samples
    weigh    Σ_i f_bji V_ibj                 [b, J, D]
    along    ⟨V_ibj, x_bj⟩                   [b, J, I]
    combine  Σ_k f_kbji x_kbj                [I, b, J·D], in place of votes
    backward du_i = dV_i W_iᵀ, dW_i = u_iᵀ dV_i

Samples do not meet in routing, so a chunk of them goes through all iterations while its votes exist; the next chunk's take
their place. The lower capsule is the outermost axis: the votes of a sample, and those of one of its upper capsules, are
matrices of I long rows that products take as they lie. Nothing is copied into another order, as it is for the reference.

A product per upper capsule is as thin as a vector, and a GPU's libraries are slow at it. So G upper capsules are taken at once,
with vectors on the diagonal of a block matrix [G, G·D] and zeros elsewhere: G times the operations, which matrix units have to
spare, and one pass over long rows. What is said to be faster was measured on an H200 (docs/routing.md).
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from capsella.functional import widen
from capsella.functional.precision import wide_dtype
from capsella.kernels.plain_tiles import few_votes, is_open, over_sources
from capsella.routing.base import Call

# votes that exist at a time, and for EM as many squares, by sweep: fewer cost more launches, and more are no faster.
CHUNK = 1 << 27
# votes from which on a GPU takes longer for the reference's passes over them than Python for our launches.
LEAST = {"agreement": 1 << 26, "em": 1 << 25}
# upper capsules of one product.
_MOST = 16
# lower capsules from which on float32 sums over them are faster one upper capsule at a time.
_LONG = 512


def chunks(B: int, votes: int) -> Iterator[slice]:
    """Cut B samples, each with so many votes, into chunks of about equal size.

    Example:
        >>> list(chunks(256, 4608 * 10 * 16))
        [slice(0, 128, None), slice(128, 256, None)]
    """
    most = max(1, CHUNK // max(1, votes))
    step = max(1, -(-B // max(1, -(-B // most))))
    return (slice(start, min(start + step, B)) for start in range(0, B, step))


def group(J: int) -> int:
    """Return how many of J upper capsules go into one product: its largest divisor that is not above 16.

    Example:
        >>> [group(J) for J in (1, 10, 16, 32, 37)]
        [1, 10, 16, 16, 1]
    """
    return max(each for each in range(1, _MOST + 1) if J % each == 0)


def _is_half(tensor: Tensor) -> bool:
    """Whether matrix units multiply it."""
    return tensor.dtype != wide_dtype(tensor.dtype)


def product(x: Tensor, y: Tensor) -> Tensor:
    """Multiply [n, ·, K] by [n, K, ·] and sum in float32, or float64 for factors of that dtype."""
    if not _is_half(x):
        return torch.bmm(x, y)
    return torch.bmm(x, y, out_dtype=torch.float32) if x.is_cuda else torch.bmm(widen(x), widen(y))


def make(u: Tensor, w: Tensor) -> Tensor:
    """Make the votes [I, b, J·D] of poses u [I, b, P] by the weight w [I or 1, P, J·D]."""
    return torch.matmul(u, w[0]) if len(w) == 1 else torch.bmm(u, w)


def weigh(factors: Tensor, votes: Tensor) -> Tensor:
    """Compute Σ_i f_bji V_ibj as [b, J, D] for factors [b, J, I]."""
    b, J, I = factors.shape
    G = group(J) if _is_half(votes) or I < _LONG else 1
    rows = votes.view(I, b * J // G, -1).transpose(0, 1)  # [n, I, G·D]
    found = product(factors.reshape(-1, G, I).to(votes.dtype), rows).view(len(rows), G, G, -1)
    return found.diagonal(dim1=1, dim2=2).mT.reshape(b, J, -1)


def along(votes: Tensor, vectors: Tensor) -> Tensor:
    """Compute ⟨V_ibj, x_bj⟩ as [b, J, I] for vectors [b, J, D]."""
    b, J, D = vectors.shape
    G, I = group(J), len(votes)
    rows = votes.view(I, b * J // G, G * D).permute(1, 2, 0)  # [n, G·D, I]
    return product(_on_diagonal(vectors.reshape(-1, 1, G, D).to(votes.dtype)), rows).view(b, J, I)


class Terms:
    """K terms f_k x_k whose sum is as large as the votes: factors [b, J, I] and vectors [b, J, D], in the votes' dtype.

    Args:
        count: K.
        J: upper capsules.
        votes: [I, b, J·D].
        sums: how many sums have the same factors, each with vectors of its own.
    """

    def __init__(self, count: int, J: int, votes: Tensor, *, sums: int = 1) -> None:
        I, b, values = votes.shape
        # one upper capsule at a time where there are no matrix units to multiply the zeros.
        G = group(J) if _is_half(votes) else 1
        self.factors = votes.new_empty(b * J // G, count, G, I)
        self.vectors = votes.new_empty(sums, b * J // G, count, G, values // J)

    def put(self, k: int, factor: Tensor, *vectors: Tensor) -> None:
        """Set term k of every sum."""
        for terms, value in zip((self.factors, *self.vectors), (factor, *vectors), strict=True):
            terms[:, k] = value.reshape(len(terms), terms.shape[2], -1)

    def combine(self, into: Tensor, *, which: int = 0, add: bool = False) -> Tensor:
        """Write a sum into [I, b, J·D], or add it."""
        n, _, _, I = self.factors.shape
        rows = into.view(I, n, -1).transpose(0, 1)  # [n, I, G·D]
        vectors = _on_diagonal(self.vectors[which])
        torch.baddbmm(rows, self.factors.flatten(1, 2).mT, vectors, beta=float(add), out=rows)
        return into


def backward(d_votes: Tensor, u: Tensor, w: Tensor, d_u: Tensor, d_w: Tensor) -> None:
    """Write the gradient of a chunk's poses and add that of the weight, which is wide."""
    if len(w) == 1:
        d_u.copy_(torch.matmul(d_votes, w[0].mT))
        d_w += product(u.flatten(0, 1).mT[None], d_votes.flatten(0, 1)[None])
    else:
        d_u.copy_(torch.bmm(d_votes, w.mT))
        d_w += product(u.mT, d_votes)


def refuse(call: Call) -> list[str]:
    """Refuse CPUs, whose caches tiles are for, and a softmax over the lower capsules."""
    return ([] if call.device == "cuda" else [f"device is {call.device}; it needs cuda"]) + over_sources(call)


def slower(call: Call) -> list[str]:
    """Leave few votes to the reference, which has fewer launches."""
    if is_open(call.sizes["B"]):
        return ["B is not fixed; expected a number"]
    least = LEAST[call.algorithm]
    return few_votes(call, least=least, least_shared=least)


def _on_diagonal(vectors: Tensor) -> Tensor:
    """Lay [n, K, G, D] out as [n, K·G, G·D], each vector in the columns of its own upper capsule and zeros elsewhere."""
    n, K, G, D = vectors.shape
    if G == 1:
        return vectors.view(n, K, D)
    places = torch.eye(G, dtype=vectors.dtype, device=vectors.device)[:, :, None]  # [G, G, 1]
    return (vectors[:, :, :, None] * places).view(n, K * G, G * D)
