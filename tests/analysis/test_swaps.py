"""Couplings that are given: a layer's own give its own result, others decide where couplings decide, and only there."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from analysis_nets import Stack, draw, randomised
from torch import Tensor, nn

from capsella import create_model
from capsella import routing as R
from capsella.analysis import RoutingMatters, RoutingSwaps, route_with, routing_matters, tapped
from capsella.nn import CapsuleConv2d, CapsuleLinear, RoutingLayer
from capsella.routing import Routed

OPTIONS: dict[str, list[dict[str, Any]]] = {
    "agreement": [
        {},
        {"normalise": "sources"},
        {"num_iters": 1},
        {"prior": True, "squash": "exp"},
        {"squash": "none", "num_iters": 2},
    ],
    "uniform": [{}, {"normalise": "sources"}, {"relu": "before"}, {"relu": "after", "squash": "exp"}],
    # temperatures at which activations differ visibly.
    "em": [{"inverse_temperature": 0.3}, {**R.peer2022_options(), "inverse_temperature": 0.3}, {"num_iters": 1}],
    "trainable": [{}, {"relu": "before"}, {"relu": "after"}, {"squash": "none", "relu": "after"}],
    "quadratic": [{}, {"relu": "before"}, {"squash": "none"}],
}
KINDS = [(routing, options) for routing in R.names() for options in OPTIONS.get(routing, [{}])]
named = pytest.mark.parametrize(("routing", "options"), KINDS, ids=str)


def assert_same(found: Routed, expected: Routed) -> None:
    for part in ("poses", "activations", "couplings"):
        torch.testing.assert_close(getattr(found, part), getattr(expected, part), rtol=1e-8, atol=1e-10, msg=part)


@named
@pytest.mark.parametrize("layout", [{}, {"bias": False}, {"rows": 2}, {"shared": True}], ids=str)
def test_a_layer_s_own_couplings_give_its_own_result(routing: str, options: dict[str, Any], layout: dict[str, Any]) -> None:
    layer, poses = randomised(CapsuleLinear(6, 4, 3, 4, routing=routing, **options, **layout)), draw(5, 6, 4)
    result = layer(poses)
    assert_same(route_with(layer, poses, None, result.couplings), result)


@named
@pytest.mark.parametrize("layout", [{}, {"rows": 2, "bias": False}, {"padding": 1, "stride": 2}], ids=str)
def test_windows_with_their_own_couplings_give_their_own_result(
    routing: str, options: dict[str, Any], layout: dict[str, Any]
) -> None:
    options = {key: value for key, value in options.items() if key != "prior"}
    layer = randomised(CapsuleConv2d(2, 4, 3, 4, kernel_size=2, grid_size=4, routing=routing, **options, **layout))
    checked = []

    def tap(name: str, layer: RoutingLayer, poses: Tensor, activations: Tensor | None, route: Any) -> Routed:
        result = route(poses, activations)
        assert result.couplings is not None
        assert_same(route_with(layer, poses, activations, result.couplings), result)
        checked.append(name)
        return Routed(result.poses, result.activations, result.couplings)

    with tapped(layer, tap):
        layer(draw(5, 4, 4, 2, 4))
        layer(draw(5, 4, 4, 2, 4), draw(5, 4, 4, 2).sigmoid())
    assert len(checked) == 2


def test_em_reads_the_activations_that_are_given() -> None:
    layer, poses, below = randomised(CapsuleLinear(6, 4, 3, 4, routing="em")), draw(5, 6, 4), draw(5, 6, seed=2).sigmoid()
    result = layer(poses, below)
    assert_same(route_with(layer, poses, below, result.couplings), result)
    assert (route_with(layer, poses, None, result.couplings).poses - result.poses).abs().max() > 1e-3


def test_bfloat16_layers_take_their_own_couplings_to_their_rounding() -> None:
    layer, poses = CapsuleLinear(6, 4, 3, 4).bfloat16(), torch.rand(5, 6, 4).bfloat16()
    result = layer(poses)
    found = route_with(layer, poses, None, result.couplings)
    assert found.poses.dtype == torch.bfloat16
    torch.testing.assert_close(found.poses.float(), result.poses.float(), rtol=2e-2, atol=2e-2)


def test_other_couplings_by_loops() -> None:
    layer, poses, couplings = randomised(CapsuleLinear(6, 4, 3, 2, squash="exp")), draw(5, 6, 4), draw(5, 6, 3, seed=9)
    W, bias, u, c = layer.weight.detach().numpy(), layer.bias, poses.numpy(), couplings.numpy()
    assert bias is not None
    found = route_with(layer, poses, None, couplings).poses
    for b in range(5):
        for j in range(3):
            s = sum(c[b, i, j] * (u[b, i] @ W[i, j]) for i in range(6)) + bias[j].detach().numpy()
            n = float(np.linalg.norm(s))
            assert found[b, j].tolist() == pytest.approx(((1 - math.exp(-n)) * s / n).tolist(), rel=1e-10)


def test_other_couplings_of_em_by_loops() -> None:
    layer = randomised(CapsuleLinear(6, 4, 3, 2, routing="em", bias=False, inverse_temperature=0.3, eps=1e-2))
    poses, couplings = draw(5, 6, 4), draw(5, 6, 3, seed=9).softmax(dim=-1)
    W, u, c = layer.weight.detach().numpy(), poses.numpy(), couplings.numpy()
    beta_a, beta_u = (layer.get_parameter(name).tolist() for name in ("beta_a", "beta_u"))
    found = route_with(layer, poses, None, couplings)
    for b in range(5):
        for j in range(3):
            votes = np.stack([u[b, i] @ W[i, j] for i in range(6)])
            r = np.array([c[b, i, j] * np.linalg.norm(u[b, i]) for i in range(6)])
            mean = (r[:, None] * votes).sum(axis=0) / r.sum()
            variance = (r[:, None] * (votes - mean) ** 2).sum(axis=0) / r.sum() + 1e-2
            cost = sum((beta_u[j] + math.log(math.sqrt(v))) * r.sum() for v in variance)
            assert found.poses[b, j].tolist() == pytest.approx(mean.tolist(), rel=1e-9)
            assert found.activations[b, j].item() == pytest.approx(1 / (1 + math.exp(-0.3 * (beta_a[j] - cost))), rel=1e-9)


def test_couplings_that_do_not_fit_are_named() -> None:
    for routing in ("agreement", "em"):
        layer = CapsuleLinear(6, 4, 3, 4, routing=routing)
        with pytest.raises(ValueError, match=r"^couplings has shape"):
            route_with(layer, torch.rand(5, 6, 4), None, torch.rand(5, 3, 6))


def decided_by_couplings() -> tuple[Stack, Tensor, Tensor]:
    """Build a net whose couplings decide: two lower capsules that know the class, and vote for right and wrong.

    The right class gets 5 and −1, the wrong one 2.3 and 2.3. Uniform couplings add up to 2 against 2.3; agreement sends the
    first capsule to the right class and the second to the other, 5 against 2.3; another image's couplings leave −1.
    """
    layer = CapsuleLinear(2, 2, 2, 1, bias=False)
    same, different = torch.tensor([[5.0], [-1.0]]), 2.3
    with torch.no_grad():
        for j in range(2):
            for k in range(2):
                layer.weight[:, j, k] = same if j == k else different
    targets = torch.tensor([0, 1] * 5)
    return Stack(layer), torch.eye(2)[targets][:, None].expand(10, 2, 2), targets


def test_routing_matters_where_couplings_decide_everything() -> None:
    model, images, targets = decided_by_couplings()
    assert routing_matters(model, images, targets) == RoutingMatters(own=1.0, uniform=0.0, other=0.0, images=10)


def test_another_image_s_couplings_do_no_harm_within_a_class() -> None:
    model, images, targets = decided_by_couplings()
    found = routing_matters(model, images[::2], targets[::2])
    assert (found.own, found.other) == (1, 1)


@pytest.mark.parametrize(
    "options",
    [
        {"routing": "uniform"},
        {"routing": "uniform", "normalise": "sources"},
        {"num_iters": 1},
        {"num_iters": 1, "normalise": "sources"},
    ],
)
def test_routing_does_not_matter_where_couplings_are_uniform(options: dict[str, Any]) -> None:
    model = randomised(
        Stack(CapsuleLinear(6, 4, 5, 4, bias=False, **options), CapsuleLinear(5, 4, 3, 4, bias=False, **options))
    )
    images = draw(20, 6, 4)
    targets = model(images).argmax(dim=1)
    assert len(targets.unique()) > 1
    assert routing_matters(model, images, targets) == RoutingMatters(1.0, 1.0, 1.0, 20)


def test_learned_couplings_are_those_of_any_image() -> None:
    model = randomised(Stack(CapsuleLinear(6, 4, 3, 4, routing="trainable")))
    images = draw(20, 6, 4)
    found = routing_matters(model, images, model(images).argmax(dim=1))
    assert (found.own, found.other) == (1, 1)
    assert found.uniform < 1


def test_uniform_couplings_keep_the_scale_of_learned_ones() -> None:
    # couplings 3 and 1 have mean 2: 2·(1 + 1) against 2·(2.5 − 1.5), where 1/J would be another length but the same answer.
    layer = CapsuleLinear(2, 1, 2, 1, routing="trainable", bias=False, squash="none")
    seen: list[Tensor] = []

    class Note(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, x: Tensor) -> Tensor:
            scores: Tensor = self.layer(x).activations
            seen.append(scores)
            return scores

    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[1.0, 2.5], [1.0, -1.5]])[..., None, None])
        layer.get_parameter("couplings").copy_(torch.tensor([[3.0, 3.0], [1.0, 1.0]]))
    routing_matters(Note(), torch.ones(2, 2, 1), torch.tensor([0, 0]))
    own, uniform, other = (scores[0].tolist() for scores in seen)
    assert own == pytest.approx([4, 6])
    assert uniform == pytest.approx([4, 2])
    assert other == pytest.approx([4, 6])


@pytest.mark.parametrize("sizes", [(2, 6, 2), (6, 2, 2), (2,) * 5], ids=str)
def test_streamed_accuracies_are_those_of_all_images_at_once(sizes: tuple[int, ...]) -> None:
    # half of each batch is an odd number, so that the image half a batch away is of the other class in all of them.
    model, images, targets = decided_by_couplings()
    targets = targets.clone()
    targets[1] = 0  # a wrong one, so that shares are not all alike.
    streamed = RoutingSwaps(model)
    for batch in zip(images.split(sizes), targets.split(sizes), strict=True):
        streamed.update(*batch)
    found, expected = streamed.compute(), routing_matters(model, images, targets)
    assert found == expected
    assert (found.own, found.uniform, found.images) == (0.9, 0.1, 10)


@pytest.mark.parametrize("name", ["capsnet_small", "em_capsnet", "gcapsnet_conv"])
def test_nets_are_left_as_they_were(name: str) -> None:
    model = create_model(name, reconstruction="none").train()
    model.trunk.eval()
    images = torch.rand(2, 1, 28, 28)
    with torch.no_grad():
        before = model(images).scores
    found = routing_matters(model, images, before.argmax(dim=1))
    assert found.own == 1
    with torch.no_grad():
        assert torch.equal(model(images).scores, before)
    assert (model.training, model.trunk.training) == (True, False)
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all("_route" not in module.__dict__ for module in model.modules())


def test_windows_of_an_image_stay_together() -> None:
    # equal images: couplings of another are one's own only if whole images are moved.
    model = randomised(Stack(CapsuleConv2d(2, 4, 3, 4, kernel_size=2)))
    images = draw(1, 3, 3, 2, 4).expand(4, 3, 3, 2, 4)
    targets = model(images).argmax(dim=1)
    assert routing_matters(model, images, targets).other == 1


def test_one_image_has_no_other() -> None:
    model, images, targets = decided_by_couplings()
    for number in (0, 1):
        with pytest.raises(ValueError, match=rf"^images has {number}; expected at least 2"):
            routing_matters(model, images[:number], targets[:number])


@pytest.mark.parametrize("targets", [torch.zeros(10, 2), torch.zeros(9), torch.zeros(())], ids=lambda t: str(list(t.shape)))
def test_targets_that_are_no_classes_are_named(targets: Tensor) -> None:
    model, images, _ = decided_by_couplings()
    with pytest.raises(ValueError, match=r"^targets has shape .*expected classes \[B=10\]"):
        routing_matters(model, images, targets)


def test_without_a_batch_there_is_nothing_to_compute() -> None:
    with pytest.raises(ValueError, match="nothing has been seen yet"):
        RoutingSwaps(nn.Identity()).compute()


def test_a_net_in_training_is_asked_as_it_would_answer() -> None:
    # with batch norms of its own, which count no batch that is only looked at.
    model = create_model("parse_capsnet", image_size=40, capsules=(4, 10), reconstruction="none")
    images = torch.rand(4, 1, 40, 40)
    with torch.no_grad():
        targets = model.eval()(images).scores.argmax(dim=1)
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    assert routing_matters(model.train(), images, targets).own == 1
    assert all(torch.equal(buffer, before[name]) for name, buffer in model.named_buffers())
