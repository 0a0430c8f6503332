"""Random numbers for samples: a pure function of seed, epoch, purpose and the sample's index.

Sample i takes its numbers from fixed places in the sequence of a SplitMix64 generator (Steele, Lea & Flood 2014)

    z = state + (n + 1)·γ    z = (z ⊕ z≫30)·m₁    z = (z ⊕ z≫27)·m₂    z ⊕ z≫31          (mod 2⁶⁴)

whose state is a hash of (seed, epoch, purpose). Nothing is consumed: the numbers of a sample do not depend on the batch that it
is drawn in, on the number of processes, on the device, or on what was drawn before.
"""

from __future__ import annotations

import hashlib
import math

import torch
from torch import Tensor

_WORD = 1 << 64


def _signed(value: int) -> int:
    """Read a 64-bit word as torch's int64 does."""
    value %= _WORD
    return value - _WORD if value >= _WORD // 2 else value


_GAMMA = _signed(0x9E3779B97F4A7C15)
_FIRST = _signed(0xBF58476D1CE4E5B9)
_SECOND = _signed(0x94D049BB133111EB)


def _fold(word: Tensor, shift: int) -> Tensor:
    """Return word ⊕ (word ≫ shift); int64 shifts drag the sign along, so it is masked off."""
    return word ^ ((word >> shift) & ((1 << (64 - shift)) - 1))


class Draws:
    """The random numbers of some samples in one epoch under one seed.

    Args:
        indices: int64 [B], the samples; the numbers live on their device.
        seed: of the run; a string for a draw that belongs to a data set and not to a run.
        epoch: the pass over the data.

    Example:
        >>> rows, columns = Draws(torch.arange(6), seed=1, epoch=3).integers("shift", 5, 5)
        >>> row, column = Draws(torch.tensor([4]), seed=1, epoch=3).integers("shift", 5, 5)
        >>> bool(row[0] == rows[4]), bool(column[0] == columns[4])
        (True, True)
    """

    def __init__(self, indices: Tensor, *, seed: int | str, epoch: int = 0) -> None:
        self.indices = indices
        self.seed = seed
        self.epoch = epoch

    def words(self, purpose: str, count: int = 1) -> Tensor:
        """Return ``count`` independent 64-bit words for each sample, int64 [count, B]."""
        text = f"{self.seed!r}/{self.epoch}/{purpose}/{count}"
        state = _signed(int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big"))
        slots = torch.arange(1, count + 1, device=self.indices.device)
        place = self.indices[None, :] * count + slots[:, None]  # [count, B]
        word = _fold(place * _GAMMA + state, 30) * _FIRST
        return _fold(_fold(word, 27) * _SECOND, 31)

    def bits(self, purpose: str, count: int = 1) -> Tensor:
        """Return ``count`` numbers of 32 random bits for each sample, int64 [count, B]."""
        return (self.words(purpose, count) >> 32) & 0xFFFFFFFF

    def integers(self, purpose: str, *below: int | Tensor) -> tuple[Tensor, ...]:
        """Return, for each bound, whole numbers from 0 to it less one, int64 [B]; a bound may differ between samples."""
        # exact in 64 bits for bounds up to 2³¹, where the chances of two values differ by 2⁻³² at most.
        return tuple((bits * bound) >> 32 for bits, bound in zip(self.bits(purpose, len(below)), below, strict=True))

    def uniform(self, purpose: str, count: int = 1) -> Tensor:
        """Return numbers in [0, 1), float64 [count, B], the same on every device."""
        return self.bits(purpose, count).double() / (1 << 32)


_ROUNDS = 8


class Order:
    """A random order of ``count`` samples of which any stretch can be had without the rest.

    Positions are written as (l, r) with l < a = ⌈√count⌉ and r < b = ⌈count/a⌉. Each round of a Feistel network adds a random
    function of one to the other, modulo its range, which can be undone: the whole is a permutation of a·b positions. One that
    leads beyond ``count`` goes on from there until it does not (cycle walking); there are fewer than a such places, and where
    each ends is worked out beforehand.

    Args:
        count: number of samples.
        seed: of the run, or a string.
        epoch: the pass over the data.
        device: where orders are wanted.

    Example:
        >>> order = Order(5, seed=0)
        >>> sorted(order[0:5].tolist())
        [0, 1, 2, 3, 4]
        >>> torch.equal(order[0:5][2:4], order[2:4])
        True
    """

    def __init__(self, count: int, *, seed: int | str, epoch: int = 0, device: torch.device | str = "cpu") -> None:
        self.count, self.seed, self.epoch, self.device = count, seed, epoch, device
        self._left = math.isqrt(max(count - 1, 0)) + 1
        self._right = -(-count // self._left)
        self._ends = self._walk().to(device, non_blocking=True)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, positions: slice) -> Tensor:
        """Return the samples at these positions, int64."""
        if not isinstance(positions, slice):
            raise TypeError(f"positions={positions!r} has type {type(positions).__name__}; expected a slice")
        chosen = range(self.count)[positions]
        if not chosen:
            return torch.arange(0, device=self.device)
        found = self._permute(torch.arange(chosen.start, chosen.stop, chosen.step, device=self.device))
        if not len(self._ends):
            return found
        return torch.where(found < self.count, found, self._ends[(found - self.count).clamp(min=0)])

    def _walk(self) -> Tensor:
        """Return where each place beyond the end leads in the end."""
        ends = self._permute(torch.arange(self.count, self._left * self._right))
        # each round doubles the steps that have been taken. A cycle that lies wholly beyond the end stays there, which does no
        # harm: nothing leads into it.
        for _ in range(len(ends).bit_length()):
            ends = torch.where(ends < self.count, ends, ends[(ends - self.count).clamp(min=0)])
        return ends

    def _permute(self, positions: Tensor) -> Tensor:
        left, right = positions // self._right, positions % self._right
        for k in range(_ROUNDS):
            (step,) = Draws(right, seed=self.seed, epoch=self.epoch).integers(f"order {k}", self._left)
            left = (left + step) % self._left
            (step,) = Draws(left, seed=self.seed, epoch=self.epoch).integers(f"order {k}'", self._right)
            right = (right + step) % self._right
        return left * self._right + right
