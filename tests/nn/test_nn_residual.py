"""Residual capsules: squash(u + v), its values, its gradients, and where it does not go."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from nn_by_hand import OPTIONS, draw, randomised, route_by_hand
from torch import nn

from capsella.analysis import observe, route_with
from capsella.functional import squash
from capsella.models import create_model
from capsella.nn import CapsuleLinear
from capsella.nn.init import length_preserving_

B, I, P = 3, 5, 4


def residual(routing: str = "agreement", **options: Any) -> CapsuleLinear:
    return randomised(CapsuleLinear(I, P, I, P, routing=routing, residual=True, **OPTIONS[routing], **options))


@pytest.mark.parametrize("kind", ["sabour", "exp", "none"])
@pytest.mark.parametrize("routing", ["agreement", "uniform", "trainable"])
def test_the_lower_capsules_are_added_and_the_sum_is_squashed(routing: str, kind: str) -> None:
    layer, poses = residual(routing, squash=kind), draw(B, I, P)
    routed = route_by_hand(layer, poses, squash=kind)
    result = layer(poses)
    expected = squash(poses + routed.poses, kind=kind)
    torch.testing.assert_close(result.poses, expected, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(result.activations, expected.norm(dim=-1), rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(result.couplings, routed.couplings, rtol=1e-12, atol=1e-14)


def test_one_capsule_by_hand() -> None:
    layer = CapsuleLinear(1, 1, 1, 1, routing="uniform", squash="exp", bias=False, residual=True).double()
    with torch.no_grad():
        layer.weight.fill_(2.0)
    found = layer(torch.tensor([[[0.5]]], dtype=torch.float64)).poses
    # v = 1 − e^−1, and of the sum again 1 − e^−(0.5 + v).
    v = 1 - torch.tensor(-1.0, dtype=torch.float64).exp()
    torch.testing.assert_close(found.squeeze(), 1 - (-(0.5 + v)).exp())


@pytest.mark.parametrize("routing", ["agreement", "uniform"])
def test_gradients_are_those_of_finite_differences(routing: str) -> None:
    layer, poses = residual(routing, squash="exp"), draw(2, I, P).requires_grad_()

    def route(poses: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        poses_above: torch.Tensor = torch.func.functional_call(layer, {"weight": weight}, (poses,)).poses
        return poses_above

    assert torch.autograd.gradcheck(route, (poses, layer.weight.detach().clone().requires_grad_()))


def test_a_gradient_passes_where_the_routing_is_dead() -> None:
    plain = CapsuleLinear(I, P, I, P, squash="exp", bias=False)
    with_residual = CapsuleLinear(I, P, I, P, squash="exp", bias=False, residual=True)
    norms = []
    for layer in (plain, with_residual):
        with torch.no_grad():
            layer.weight.zero_()
        poses = draw(B, I, P).float().requires_grad_()
        layer(poses).activations.sum().backward()
        norms.append(float(poses.grad.norm()))
    assert norms[0] == 0
    assert norms[1] > 0.1


@pytest.mark.parametrize(
    ("sizes", "options", "says"),
    [
        ((5, 4, 6, 4), {}, "residual=True does not go with 5×4 -> 6×4; expected as many capsules of the same size"),
        ((5, 4, 5, 3), {}, "residual=True does not go with 5×4 -> 5×3"),
        ((5, 4, 5, 4), {"routing": "em"}, "residual=True does not go with routing='em'"),
        ((5, 4, 5, 4), {"routing": "quadratic"}, "residual=True does not go with routing='quadratic'"),
        ((5, 4, 5, 4), {"routing": "uniform", "relu": "after"}, "relu='after'; expected a routing that squashes, and no ReLU"),
    ],
)
def test_what_it_does_not_go_with_is_said(sizes: tuple[int, int, int, int], options: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        CapsuleLinear(*sizes, residual=True, **options)


def test_of_a_stack_the_layers_of_equal_sizes_are_residual() -> None:
    options = {"image_size": 40, "backbone": "small", "reconstruction": "none"}
    net = create_model("parse_capsnet", capsules=(4, 4, 6, 6, 10), residual=True, **options)
    assert [layer.residual for layer in net.layers] == [True, False, True, False]
    assert "residual=True" in repr(net.layers[0])
    plain = create_model("parse_capsnet", capsules=(4, 4, 6, 6, 10), **options)
    assert not any(layer.residual for layer in plain.layers)
    # it has no parameters of its own.
    assert [tuple(p.shape) for p in net.parameters()] == [tuple(p.shape) for p in plain.parameters()]


def test_the_doctor_sees_what_goes_on_and_can_swap_its_couplings() -> None:
    torch.manual_seed(0)
    options = {"image_size": 40, "backbone": "small", "reconstruction": "none"}
    net = create_model("parse_capsnet", capsules=(4, 4, 10), residual=True, **options).eval()
    images = torch.rand(6, 1, 40, 40)
    _, seen = observe(net, images)
    torch.testing.assert_close(seen[0].activations, seen[1].lower_activations)
    # with its own couplings given again, a layer does as before.
    layer = net.layers[0]
    again = route_with(layer, seen[0].lower, None, seen[0].couplings)
    torch.testing.assert_close(again.poses, seen[0].poses)


def test_a_length_preserving_start_is_of_what_is_routed() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(*(CapsuleLinear(I, P, I, P, squash="exp", bias=False, residual=True) for _ in range(3)))
    found = length_preserving_(net, torch.randn(16, I, P))
    assert [round(layer.after, 2) for layer in found] == [0.5, 0.5, 0.5]
    assert all(layer.residual for layer in net)
