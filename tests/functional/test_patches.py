"""Receptive fields against explicit loops."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck
from torch.fx.experimental.proxy_tensor import make_fx

from capsella.functional import conv_size, gather_patches

CASES = [
    {"kernel_size": 1},
    {"kernel_size": 3},
    {"kernel_size": 3, "stride": 2},
    {"kernel_size": 2, "stride": 3},
    {"kernel_size": 3, "padding": 1},
    {"kernel_size": 3, "stride": 2, "padding": 2},
    {"kernel_size": (2, 4)},
    {"kernel_size": (4, 1), "stride": 2, "padding": 1},
]


@pytest.mark.parametrize("options", CASES, ids=str)
def test_patches_equal_explicit_loops(options: dict[str, Any]) -> None:
    B, H, W, N, P = 2, 5, 6, 3, 2
    grid = torch.randn(B, H, W, N, P)
    kernel, stride, padding = options["kernel_size"], options.get("stride", 1), options.get("padding", 0)
    rows, columns = (kernel, kernel) if isinstance(kernel, int) else kernel
    height, width = (H + 2 * padding - rows) // stride + 1, (W + 2 * padding - columns) // stride + 1
    patches = gather_patches(grid, **options)
    assert patches.shape == (B, height, width, rows * columns * N, P)
    for y in range(height):
        for x in range(width):
            for k in range(rows):
                for l in range(columns):
                    for n in range(N):
                        r, c = y * stride + k - padding, x * stride + l - padding
                        inside = 0 <= r < H and 0 <= c < W
                        expected = grid[:, r, c, n] if inside else torch.zeros(B, P)
                        assert torch.equal(patches[:, y, x, (k * columns + l) * N + n], expected)


def test_a_grid_by_hand() -> None:
    grid = torch.arange(9.0).reshape(1, 3, 3, 1, 1)
    assert gather_patches(grid, kernel_size=2).flatten(3).tolist() == [
        [[[0, 1, 3, 4], [1, 2, 4, 5]], [[3, 4, 6, 7], [4, 5, 7, 8]]]
    ]


@pytest.mark.parametrize("size", [1, 5, 6, 28])
@pytest.mark.parametrize("kernel", [1, 3, 4])
@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("padding", [0, 1, 2])
def test_conv_size_counts_the_places_where_a_window_fits(size: int, kernel: int, stride: int, padding: int) -> None:
    places = [start for start in range(0, size + 2 * padding, stride) if start + kernel <= size + 2 * padding]
    assert max(conv_size(size, kernel, stride, padding), 0) == len(places)


def test_patches_pass_gradcheck() -> None:
    grid = torch.randn(1, 3, 4, 2, 1, dtype=torch.float64, requires_grad=True)
    assert gradcheck(lambda g: gather_patches(g, kernel_size=2, stride=2, padding=1), grid)


@pytest.mark.parametrize(
    ("shape", "options", "error", "message"),
    [
        ((2, 3, 4, 5), {"kernel_size": 2}, ValueError, r"^grid has shape \[2, 3, 4, 5\]; expected \[B, H, W, N, P\]$"),
        ((1, 2, 3, 1, 1), {"kernel_size": 3}, ValueError, r"^grid has 2×3 positions; expected .*kernel_size=3×3 .*$"),
        ((1, 3, 3, 1, 1), {"kernel_size": 0}, ValueError, r"^kernel_size=0 is too small; expected .* at least 1$"),
        ((1, 3, 3, 1, 1), {"kernel_size": (2, 0)}, ValueError, r"^kernel_size=0 is too small; expected .* at least 1$"),
        ((1, 3, 3, 1, 1), {"kernel_size": 2.0}, TypeError, r"^kernel_size=2.0 .*expected an int.*$"),
        ((1, 3, 3, 1, 1), {"kernel_size": (1, 2, 3)}, ValueError, r"^kernel_size=\(1, 2, 3\) .*expected .*$"),
        ((1, 3, 3, 1, 1), {"kernel_size": 2, "stride": 0}, ValueError, r"^stride=0 is too small; expected .* at least 1$"),
        ((1, 3, 3, 1, 1), {"kernel_size": 2, "padding": -1}, ValueError, r"^padding=-1 is too small; expected .* at least 0$"),
    ],
)
def test_wrong_arguments_are_named_in_one_line(
    shape: tuple[int, ...], options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        gather_patches(torch.zeros(shape), **options)


@pytest.mark.parametrize("options", [{"kernel_size": 3}, {"kernel_size": (2, 3), "stride": 2, "padding": 1}], ids=str)
def test_gradients_are_sums_of_slices_and_nothing_is_scattered(options: dict[str, Any]) -> None:
    def gradient(grid: Tensor) -> Tensor:
        return torch.autograd.grad(gather_patches(grid, **options).square().sum(), grid)[0]

    grid = torch.randn(2, 6, 7, 2, 3, requires_grad=True)
    names = {str(node.target) for node in make_fx(gradient)(grid).graph.nodes}
    assert any("slice_backward" in name for name in names)
    assert not any(word in name for name in names for word in ("unfold", "index", "scatter"))
