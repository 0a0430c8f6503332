"""Primary capsules: a capsule's values are channels at one position."""

from __future__ import annotations

import pytest
import torch
from einops import rearrange
from nn_by_hand import draw, randomised
from torch import Tensor
from torch.nn.functional import conv2d

from capsella import create_model, routing
from capsella.functional import squash
from capsella.nn import MatrixPrimaryCapsules, PrimaryCapsules

B, C, H, W, N, P = 2, 3, 9, 8, 4, 5


def capsules_by_loop(layer: PrimaryCapsules, features: Tensor) -> Tensor:
    """Collect channel n·P + p at (y, x) as value p of capsule (y, x, n)."""
    maps = conv2d(features, layer.conv.weight, layer.conv.bias, layer.conv.stride)
    _, _, height, width = maps.shape
    grid = torch.empty(len(maps), height, width, N, P, dtype=maps.dtype)
    for y in range(height):
        for x in range(width):
            for n in range(N):
                for p in range(P):
                    grid[:, y, x, n, p] = maps[:, n * P + p, y, x]
    return grid


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("kind", ["sabour", "exp", "none"])
def test_a_capsule_is_made_of_neighbouring_channels_at_one_position(kind: str, relu: bool) -> None:
    features = draw(B, C, H, W)
    layer = randomised(PrimaryCapsules(C, N, P, kernel_size=3, stride=2, squash=kind, relu=relu, flat=False))
    grid = capsules_by_loop(layer, features)
    expected = squash(grid.clamp(min=0) if relu else grid, kind=kind)
    torch.testing.assert_close(layer(features), expected, rtol=1e-12, atol=1e-13)


def test_divided_sums_are_those_of_one_capsule_routed_to_all_types_in_one_iteration() -> None:
    """As in Sabour's released code: the maps are one lower capsule, a position's types are the upper ones."""
    features = draw(B, C, H, W)
    layer = randomised(PrimaryCapsules(C, N, P, kernel_size=3, stride=2, divided=True, flat=False))
    maps = conv2d(features, layer.conv.weight, None, layer.conv.stride)
    votes = rearrange(maps, "b (n p) h w -> (b h w) 1 n p", p=P)
    bias = rearrange(layer.conv.bias, "(n p) -> n p", p=P)
    expected = routing.agreement(votes, num_iters=1, bias=bias).poses
    torch.testing.assert_close(rearrange(layer(features), "b h w n p -> (b h w) n p"), expected, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize(("algorithm", "least"), [("agreement", 0.7), ("quadratic", 0.95)])
def test_sabour_s_start_is_made_for_divided_sums(algorithm: str, least: float) -> None:
    lengths = {}
    for divided in (True, False):
        torch.manual_seed(0)
        options = {"routing": algorithm, "bias": True, "init": "yang2021", "primary_divided": divided}
        net = create_model("capsnet", reconstruction="none", **options)
        with torch.no_grad():
            lengths[divided] = float(net(torch.rand(4, 1, 28, 28)).scores.mean())
    assert lengths[False] > least
    assert lengths[True] < lengths[False] - 0.15


def test_a_flat_row_is_ordered_by_row_column_and_type() -> None:
    features = draw(B, C, H, W)
    grid_layer = randomised(PrimaryCapsules(C, N, P, kernel_size=3, flat=False))
    row_layer = PrimaryCapsules(C, N, P, kernel_size=3).double()
    row_layer.load_state_dict(grid_layer.state_dict())
    grid, row = grid_layer(features), row_layer(features)
    _, height, width, _, _ = grid.shape
    assert row.shape == (B, height * width * N, P)
    for y in range(height):
        for x in range(width):
            for n in range(N):
                there = row[:, (y * width + x) * N + n]
                torch.testing.assert_close(there, grid[:, y, x, n], rtol=1e-14, atol=0)


@pytest.mark.parametrize(("row", "column"), [(0, 0), (4, 3), (8, 7), (3, 6)])
def test_one_pixel_moves_exactly_the_capsules_whose_field_covers_it(row: int, column: int) -> None:
    kernel, stride = 3, 2
    layer = randomised(PrimaryCapsules(C, N, P, kernel_size=kernel, stride=stride, flat=False))
    features = draw(B, C, H, W)
    changed = features.clone()
    changed[:, 1, row, column] += 1.0
    moved = (layer(features) != layer(changed)).any(dim=-1)  # [B, H', W', N]
    for y in range(moved.shape[1]):
        for x in range(moved.shape[2]):
            covers = y * stride <= row < y * stride + kernel and x * stride <= column < x * stride + kernel
            assert bool((moved[:, y, x] == covers).all()), (y, x)


def test_a_depthwise_convolution_keeps_channels_apart() -> None:
    layer = randomised(PrimaryCapsules(6, 3, 2, kernel_size=(9, 8), groups=6, squash="none"))
    features = draw(B, 6, H, W)
    changed = features.clone()
    changed[:, 3] += 1.0
    moved = layer(features) != layer(changed)
    assert layer(features).shape == (B, 3, 2)
    assert moved.nonzero()[:, 1:].unique(dim=0).tolist() == [[1, 1]]  # channel 3 is value 1 of capsule 1


def test_matrix_capsules_have_a_free_pose_and_an_activation_at_one_position() -> None:
    features = draw(B, C, H, W)
    layer = randomised(MatrixPrimaryCapsules(C, N, P))
    routed = layer(features)
    assert routed.poses.shape == (B, H, W, N, P)
    assert routed.activations.shape == (B, H, W, N)
    pose_weight, activation_weight = layer.pose.weight[:, :, 0, 0], layer.activation.weight[:, :, 0, 0]
    for y, x, n in [(0, 0, 0), (2, 5, 3), (8, 7, 1)]:
        there = features[:, :, y, x]
        pose = there @ pose_weight[n * P : (n + 1) * P].T + layer.pose.bias[n * P : (n + 1) * P]
        odds = there @ activation_weight[n] + layer.activation.bias[n]
        torch.testing.assert_close(routed.poses[:, y, x, n], pose, rtol=1e-12, atol=1e-13)
        torch.testing.assert_close(routed.activations[:, y, x, n], 1 / (1 + (-odds).exp()), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"types": 0}, ValueError, "types=0 is too small; expected an int of at least 1"),
        ({"dim": 2.0}, TypeError, "dim=2.0 has type float; expected an int of at least 1"),
        ({"squash": "sabor"}, ValueError, "squash='sabor' is unknown; did you mean 'sabour'?"),
    ],
)
def test_wrong_options_are_named(options: dict[str, object], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind) as caught:
        PrimaryCapsules(**{"in_channels": C, "types": N, "dim": P, "kernel_size": 3, **options})
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind_of_layer", ["vector", "matrix"])
@pytest.mark.parametrize(
    ("features", "kind"),
    [
        (torch.zeros(C, H, W), ValueError),
        (torch.zeros(B, C + 1, H, W), ValueError),
        (torch.zeros(B, C, H, W, dtype=torch.uint8), TypeError),
    ],
    ids=["wrong rank", "wrong channels", "bytes"],
)
def test_wrong_features_are_named_in_one_line(kind_of_layer: str, features: Tensor, kind: type[Exception]) -> None:
    layer = PrimaryCapsules(C, N, P, kernel_size=3) if kind_of_layer == "vector" else MatrixPrimaryCapsules(C, N, P)
    with pytest.raises(kind, match=r"^features .*expected.*") as caught:
        layer(features)
    assert "\n" not in str(caught.value)
