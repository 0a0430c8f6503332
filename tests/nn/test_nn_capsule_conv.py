"""Convolutional capsules: every routing against an explicit loop over windows."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from nn_by_hand import OPTIONS, assert_same, draw, randomised, route_by_hand
from torch import Tensor

from capsella import routing as R
from capsella.nn import CapsuleConv2d, CapsuleLinear
from capsella.routing import Routed

B, H, W, N, P, J, D = 2, 4, 5, 2, 4, 3, 4
WINDOWS: dict[str, dict[str, Any]] = {
    "plain": {"kernel_size": 2},
    "strided-padded-rows": {"kernel_size": 3, "stride": 2, "padding": 1, "rows": 2},
    "oblong-kernel": {"kernel_size": (3, 2), "stride": 2},
}


def make(routing: str, **options: Any) -> CapsuleConv2d:
    learned = {"grid_size": (H, W)} if routing in ("trainable", "quadratic") else {}
    return randomised(CapsuleConv2d(N, P, J, D, routing=routing, **OPTIONS[routing], **learned, **options))


def window(grid: Tensor, layer: CapsuleConv2d, y: int, x: int) -> Tensor:
    """Collect the capsules of one window, ordered by row, column and type; outside the grid they are zero."""
    height, width = grid.shape[1:3]
    found = []
    top, left = y * layer.stride - layer.padding, x * layer.stride - layer.padding
    for row in range(top, top + layer.kernel_size[0]):
        for column in range(left, left + layer.kernel_size[1]):
            inside = 0 <= row < height and 0 <= column < width
            found += [grid[:, row, column, n] if inside else torch.zeros_like(grid[:, 0, 0, 0]) for n in range(N)]
    return torch.stack(found, dim=1)


def conv_by_hand(layer: CapsuleConv2d, grid: Tensor, activations: Tensor | None = None) -> Routed:
    """Route window by window with that position's couplings."""
    height, width = (
        (side + 2 * layer.padding - k) // layer.stride + 1 for side, k in zip((H, W), layer.kernel_size, strict=True)
    )
    results: list[list[Routed]] = []
    for y in range(height):
        results.append([])
        for x in range(width):
            own = {"couplings": layer.couplings[y * width + x]} if "couplings" in layer.learned else {}
            alive = None if activations is None else window(activations, layer, y, x)
            results[-1].append(route_by_hand(layer, window(grid, layer, y, x), alive, **own))

    def gather(part: str) -> Tensor:
        return torch.stack([torch.stack([getattr(r, part) for r in row], dim=1) for row in results], dim=1)

    return Routed(gather("poses"), gather("activations"), gather("couplings"))


@pytest.mark.parametrize("windows", WINDOWS)
@pytest.mark.parametrize("routing", R.names())
def test_layer_equals_an_explicit_loop_over_positions(routing: str, windows: str) -> None:
    layer = make(routing, **WINDOWS[windows])
    grid = draw(B, H, W, N, P)
    assert_same(layer(grid), conv_by_hand(layer, grid))


@pytest.mark.parametrize("windows", WINDOWS)
def test_em_reads_the_activations_under_each_window(windows: str) -> None:
    layer = make("em", **WINDOWS[windows])
    grid, activations = draw(B, H, W, N, P), draw(B, H, W, N, seed=2).sigmoid()
    expected = conv_by_hand(layer, grid, activations)
    assert_same(layer(grid, activations), expected)
    assert_same(layer(Routed(grid, activations)), expected)


@pytest.mark.parametrize("routing", ["trainable", "quadratic"])
def test_couplings_are_learned_per_position(routing: str) -> None:
    layer = make(routing, kernel_size=2)
    assert layer.couplings.shape == (3 * 4, 2 * 2 * N, J)
    grid = draw(B, H, W, N, P)
    before = layer(grid).poses
    with torch.no_grad():
        layer.couplings[1 * 4 + 2] += 1.0
    moved = (layer(grid).poses != before).any(dim=-1).any(dim=-1).any(dim=0)  # [H', W']
    assert moved.nonzero().tolist() == [[1, 2]]


@pytest.mark.parametrize("routing", ["agreement", "uniform", "em"])
def test_other_tensors_are_shared_over_positions_and_the_grid_may_have_any_size(routing: str) -> None:
    layer = make(routing, kernel_size=2)
    assert layer.weight.shape == (2 * 2 * N, J, P, D)
    assert layer.bias.shape == (J, D)
    tile = draw(B, 2, 2, N, P)
    wide = torch.cat([tile, tile, tile], dim=2)  # the same window at columns 0, 2 and 4
    result = layer(wide)
    assert result.poses.shape == (B, 1, 5, J, D)
    for column in (2, 4):
        torch.testing.assert_close(result.poses[:, :, column], result.poses[:, :, 0], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("routing", R.names())
def test_a_kernel_over_the_whole_map_is_a_fully_connected_layer(routing: str, rows: int) -> None:
    conv = make(routing, kernel_size=(H, W), rows=rows)
    linear = CapsuleLinear(H * W * N, P, J, D, routing=routing, rows=rows, **OPTIONS[routing]).double()
    state = conv.state_dict()
    if "couplings" in state:
        state["couplings"] = state["couplings"][0]
    linear.load_state_dict(state)
    grid = draw(B, H, W, N, P)
    conv_result, expected = conv(grid), linear(grid)
    assert conv_result.poses.shape == (B, 1, 1, J, D)
    assert_same(Routed(conv_result.poses[:, 0, 0], conv_result.activations[:, 0, 0], conv_result.couplings[:, 0, 0]), expected)


@pytest.mark.parametrize("routing", R.names())
def test_one_capsule_moves_exactly_the_windows_that_cover_it(routing: str) -> None:
    kernel, stride, padding = 3, 2, 1
    layer = make(routing, kernel_size=kernel, stride=stride, padding=padding)
    grid = draw(B, H, W, N, P)
    changed = grid.clone()
    changed[0, 1, 3, 1] += 0.5
    moved = (layer(grid).poses != layer(changed).poses).any(dim=-1).any(dim=-1)  # [B, H', W']
    assert not moved[1].any()
    for y in range(moved.shape[1]):
        for x in range(moved.shape[2]):
            top, left = y * stride - padding, x * stride - padding
            assert bool(moved[0, y, x]) == (top <= 1 < top + kernel and left <= 3 < left + kernel), (y, x)


def test_trace_has_one_grid_of_couplings_per_iteration() -> None:
    layer = make("agreement", kernel_size=2)
    result = layer(draw(B, H, W, N, P), trace=True)
    assert [c.shape for c in result.trace] == [(B, 3, 4, 2 * 2 * N, J)] * 2
    assert torch.equal(result.trace[-1], result.couplings)
    assert layer(draw(B, H, W, N, P), need_couplings=False).couplings is None


def test_convolutions_chain_into_a_fully_connected_layer() -> None:
    first, second = make("em", kernel_size=2), randomised(CapsuleLinear(3 * 4 * J, D, 2, 5, routing="em", **OPTIONS["em"]))
    grid = draw(B, H, W, N, P)
    middle = first(grid)
    assert_same(second(middle), second(middle.poses.flatten(1, 3), middle.activations.flatten(1)))


def test_quadratic_couplings_are_detached_and_listed_apart() -> None:
    layer = make("quadratic", kernel_size=2)
    layer(draw(B, H, W, N, P)).poses.sum().backward()
    assert layer.couplings.grad is None
    assert layer.weight.grad is not None
    assert [id(p) for p in layer.coupling_parameters()] == [id(layer.couplings)]


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"routing": "trainable"}, ValueError, "grid_size=None does not go with routing='trainable'"),
        ({"routing": "quadratic"}, ValueError, "grid_size=None does not go with routing='quadratic'"),
        ({"routing": "trainable", "grid_size": (1, 5)}, ValueError, "grid_size=(1, 5) is too small"),
        ({"kernel_size": 0}, ValueError, "kernel_size=0 is too small"),
        ({"kernel_size": (2, 0)}, ValueError, "kernel_size=0 is too small"),
        ({"kernel_size": 2.0}, TypeError, "kernel_size=2.0"),
        ({"kernel_size": (2,)}, (TypeError, ValueError), "kernel_size=(2,)"),
        ({"kernel_size": (2, 2, 2)}, (TypeError, ValueError), "kernel_size=(2, 2, 2)"),
        ({"stride": 0}, ValueError, "stride=0 is too small"),
        ({"padding": -1}, ValueError, "padding=-1 is too small"),
        ({"in_types": 0}, ValueError, "in_types=0 is too small"),
        ({"num_iter": 3}, TypeError, "option='num_iter' is unknown; did you mean 'num_iters'?"),
        ({"routing": "unifrm"}, ValueError, "routing='unifrm' is unknown; did you mean 'uniform'?"),
    ],
)
def test_wrong_options_are_named_in_one_line(options: dict[str, Any], kind: type[Exception], message: str) -> None:
    sizes = {"in_types": N, "in_dim": P, "out_types": J, "out_dim": D, "kernel_size": 2}
    with pytest.raises(kind) as caught:
        CapsuleConv2d(**(sizes | options))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((B, H, W, N + 1, P), "poses has shape [2, 4, 5, 3, 4]; expected [B, H, W, N=2, P=4]"),
        ((B, H, W, N, P + 1), "poses has shape [2, 4, 5, 2, 5]; expected [B, H, W, N=2, P=4]"),
        ((B, H * W * N, P), "poses has shape [2, 40, 4]; expected [B, H, W, N=2, P=4]"),
        ((B, 1, W, N, P), "grid has 1×5 positions; expected at least kernel_size=2×2 less the padding"),
    ],
)
def test_a_wrong_grid_is_named_in_one_line(shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(ValueError, match="expected") as caught:
        CapsuleConv2d(N, P, J, D, kernel_size=2)(torch.zeros(shape))
    assert str(caught.value) == message


def test_a_grid_of_another_size_than_the_couplings_is_named() -> None:
    layer = CapsuleConv2d(N, P, J, D, kernel_size=2, routing="trainable", grid_size=(H, W))
    with pytest.raises(ValueError, match=r"^poses has \(4, 4\) windows; expected \(3, 4\), from grid_size at construction$"):
        layer(torch.zeros(B, 5, 5, N, P))


def test_a_transposed_grid_is_refused_where_couplings_belong_to_positions() -> None:
    layer = CapsuleConv2d(N, P, J, D, kernel_size=2, routing="trainable", grid_size=(H, W))
    with pytest.raises(ValueError, match=r"expected"):
        layer(torch.zeros(B, W, H, N, P))


def test_activations_of_the_wrong_shape_are_named() -> None:
    layer = CapsuleConv2d(N, P, J, D, kernel_size=2, routing="em")
    with pytest.raises(ValueError, match=r"^activations has shape \[2, 4, 5\]; expected \[B=2, H=4, W=5, N=2\]$"):
        layer(torch.zeros(B, H, W, N, P), torch.zeros(B, H, W))
