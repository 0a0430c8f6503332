"""Reconstruction from class capsules."""

from __future__ import annotations

import itertools
import math

import torch
from einops import rearrange, repeat
from torch import Tensor, nn

from capsella.errors import check_choice, check_count, check_counts
from capsella.functional import multi_hot
from capsella.shapes import dims

MASKS = ("conditional", "normal")


def as_classes(targets: Tensor, num_classes: int) -> Tensor:
    """Turn targets into class indices: [B] stays, multi-hot rows [B, J] become [B, n], indices [B, n] stay.

    Rows have to be looked at to know n, which a compiler cannot and a GPU must be waited for: in a compiled model pass [B, n].

    Args:
        targets: indices [B] or [B, n] with n < J, or multi-hot rows [B, J] that all name the same number n of classes.
        num_classes: J.

    Example:
        >>> as_classes(torch.tensor([[0, 1, 1], [1, 0, 1]]), 3)
        tensor([[1, 2],
                [0, 2]])
    """
    if not isinstance(targets, Tensor):
        raise TypeError(f"targets has type {type(targets).__name__}; expected a tensor of class indices [B] or [B, n]")
    if targets.ndim == 1 and not targets.is_floating_point() and targets.dtype != torch.bool:
        return targets
    if targets.ndim != 2 or targets.shape[1] > num_classes:
        expected = f"class indices [B] or [B, n], or multi-hot rows [B, J={num_classes}]"
        raise ValueError(f"targets has shape {list(targets.shape)} and dtype {targets.dtype}; expected {expected}")
    if targets.shape[1] < num_classes:
        return targets
    if targets.shape[0] == 0:
        return targets.new_zeros(0, 1, dtype=torch.long)
    counts = (targets > 0).sum(dim=1)
    n = int(counts.max())
    if n == 0 or bool((counts != n).any()):
        raise ValueError(f"targets names {int(counts.min())} to {n} classes a row; expected the same number, at least one")
    return (targets > 0).nonzero()[:, 1].reshape(-1, n)  # nonzero goes row by row


class Decoder(nn.Module):
    """Draw an image from class capsules: two hidden layers with ReLU, then a sigmoid (Sabour et al. 2017, section 4.1).

    Args:
        capsules: J.
        dim: D.
        image_shape: (C, H, W).
        hidden: sizes of the hidden layers.
        mask: ``"conditional"`` sets all capsules but the chosen class's to zero; ``"normal"`` or None decodes them all.

    Shapes:
        capsules [B, J, D], classes [B] -> [B, C, H, W]; classes [B, n] -> [B, n, C, H, W], one image per class, the same
        weights for each. Without a mask classes do not matter and the result is [B, C, H, W].

    Example:
        >>> decoder = Decoder(10, 16, (1, 28, 28))
        >>> decoder(torch.randn(2, 10, 16), torch.tensor([3, 7])).shape
        torch.Size([2, 1, 28, 28])
    """

    def __init__(
        self,
        capsules: int,
        dim: int,
        image_shape: tuple[int, int, int],
        *,
        hidden: tuple[int, ...] = (512, 1024),
        mask: str | None = "conditional",
    ) -> None:
        super().__init__()
        check_choice("mask", mask or "normal", MASKS)
        check_count("capsules", capsules)
        check_count("dim", dim)
        check_counts("hidden", hidden)
        check_counts("image_shape", image_shape, number=3)
        self.capsules, self.dim, self.image_shape, self.mask = capsules, dim, image_shape, mask or "normal"
        sizes = [capsules * dim, *hidden, math.prod(image_shape)]
        layers: list[nn.Module] = []
        for below, above in itertools.pairwise(sizes):
            layers += [nn.Linear(below, above), nn.ReLU()]
        self.layers = nn.Sequential(*layers[:-1], nn.Sigmoid())

    def forward(self, capsules: Tensor, classes: Tensor | None = None) -> Tensor:
        """Draw the chosen classes."""
        B, J, _ = dims(capsules, "B J D", name="capsules", J=self.capsules, D=self.dim)
        if self.mask == "normal":
            return self._draw(capsules)
        if classes is None:
            raise ValueError("classes=None does not go with mask='conditional'; expected class indices [B] or [B, n]")
        if not isinstance(classes, Tensor):
            raise TypeError(f"classes has type {type(classes).__name__}; expected a tensor of class indices [B] or [B, n]")
        if classes.ndim not in (1, 2) or classes.shape[0] != B:
            raise ValueError(f"classes has shape {list(classes.shape)}; expected [B={B}] or [B={B}, n]")
        if classes.ndim == 1:
            return self._draw(capsules * multi_hot(classes, J, dtype=capsules.dtype)[..., None])
        n = classes.shape[1]
        keep = multi_hot(classes.flatten(), J, dtype=capsules.dtype)  # [B·n, J]
        drawn = self._draw(repeat(capsules, "b j d -> (b n) j d", n=n) * keep[..., None])
        return rearrange(drawn, "(b n) c h w -> b n c h w", n=n)

    def _draw(self, capsules: Tensor) -> Tensor:
        C, H, W = self.image_shape
        pixels: Tensor = self.layers(rearrange(capsules, "b j d -> b (j d)"))
        return rearrange(pixels, "b (c h w) -> b c h w", c=C, h=H, w=W)

    def extra_repr(self) -> str:
        """Show sizes and mask."""
        return f"{self.capsules}×{self.dim} -> {self.image_shape}, mask={self.mask!r}"
