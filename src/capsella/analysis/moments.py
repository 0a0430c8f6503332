"""Mean and spread of what comes in batches, as exact as if it had come at once."""

from __future__ import annotations

import torch
from torch import Tensor


class Moments:
    """Mean and population variance over the first axis, merged batch by batch (Chan, Golub & LeVeque 1979).

    Sums are float64, and no batch is kept: what is held has the shape of one sample.

    Attributes:
        count: samples so far.
        dtype: of the first batch, for results that should have the type of what they were made of.

    Example:
        >>> moments = Moments()
        >>> for batch in (torch.tensor([1.0, 2.0]), torch.tensor([6.0])):
        ...     moments.update(batch)
        >>> moments.count, moments.mean.item(), round(moments.std.item(), 4)
        (3, 3.0, 2.1602)
    """

    def __init__(self) -> None:
        self.count = 0
        self.dtype = torch.float64
        self._mean: Tensor | None = None
        self._squares: Tensor | None = None

    def update(self, values: Tensor) -> None:
        """Add [N, …]."""
        if not self.count:
            self.dtype = values.dtype
        values = values.detach().to(torch.float64)
        new = len(values)
        if not new:
            return
        mean = values.mean(dim=0)
        squares = (values - mean).square().sum(dim=0)
        if self._mean is None or self._squares is None:
            self.count, self._mean, self._squares = new, mean, squares
            return
        if mean.shape != self._mean.shape:
            raise ValueError(f"a sample has shape {list(mean.shape)}; expected {list(self._mean.shape)}, as before")
        total = self.count + new
        apart = mean - self._mean
        self._mean = self._mean + apart * (new / total)
        self._squares = self._squares + squares + apart.square() * (self.count * new / total)
        self.count = total

    @property
    def mean(self) -> Tensor:
        """Mean over everything so far."""
        return self._there(self._mean)

    @property
    def std(self) -> Tensor:
        """Population standard deviation, as the papers print it."""
        return (self._there(self._squares) / self.count).sqrt()

    @property
    def mean_square(self) -> Tensor:
        """Mean of the squares."""
        return self.mean.square() + self._there(self._squares) / self.count

    def _there(self, value: Tensor | None) -> Tensor:
        if value is None:
            raise ValueError("nothing has been seen yet; call update() with at least one sample first")
        return value
