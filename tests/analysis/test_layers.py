"""Layers seen at work: what they took and gave, without a trace of having been watched."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from analysis_nets import Stack, draw, randomised
from torch import Tensor, nn

from capsella import create_model
from capsella.analysis import ForeignLayers, Seen, observe, seen_layer, tapped
from capsella.models import CapsuleNet
from capsella.nn import CapsuleConv2d, CapsuleLinear, RoutingLayer
from capsella.routing import Routed

NETS: dict[str, tuple[int, list[tuple[int, ...]]]] = {
    # side of an image; I in all, P, upper capsules in all, D, J of one window and windows of each layer.
    "capsnet_small": (28, [(72, 8, 10, 8, 10, 1)]),
    "em_capsnet": (28, [(25 * 72, 16, 25 * 16, 16, 16, 25), (9 * 144, 16, 9 * 16, 16, 16, 9), (144, 16, 10, 16, 10, 1)]),
    "parse_capsnet": (40, [(16, 8, 16, 8, 16, 1)] * 3 + [(16, 8, 10, 8, 10, 1)]),
    "gcapsnet_conv": (28, [(1152, 8, 10, 8, 10, 1)]),
}


def net(name: str) -> tuple[CapsuleNet, Tensor]:
    side = NETS[name][0]
    model = create_model(name, image_size=side, reconstruction="none").eval()
    assert isinstance(model, CapsuleNet)
    return model, torch.rand(2, 1, side, side)


def untouched(model: nn.Module) -> bool:
    return all("_route" not in module.__dict__ and not module._forward_hooks for module in model.modules())


@pytest.mark.parametrize("name", NETS)
@torch.no_grad()
def test_every_layer_of_a_net_is_seen_as_it_routed(name: str) -> None:
    model, images = net(name)
    before = model(images)
    output, seen = observe(model, images, trace=True)
    assert torch.equal(output.scores, before.scores)
    assert torch.equal(output.capsules, before.capsules)
    assert untouched(model)
    assert [each.name for each in seen] == [f"layers.{k}" for k in range(len(seen))]

    results = model.routed(images, trace=True)
    for each, result, (I, P, above, D, J, windows) in zip(seen, results, NETS[name][1], strict=True):
        assert each.windows == windows
        assert (each.lower.shape, each.lower_activations.shape) == ((2, I, P), (2, I))
        assert (each.poses.shape, each.activations.shape) == ((2, above, D), (2, above))
        assert each.couplings is not None
        assert each.trace is not None
        assert result.couplings is not None
        assert result.trace is not None
        assert each.couplings.shape == (2, I, J)
        # windows lie side by side: an image's rows, in the order in which they were folded into the batch.
        close: dict[str, float] = {"rtol": 1e-5, "atol": 1e-6}
        torch.testing.assert_close(each.couplings, result.couplings.reshape(2, I, J), **close)
        torch.testing.assert_close(each.poses, result.poses.reshape(2, above, D), **close)
        torch.testing.assert_close(each.activations, result.activations.reshape(2, above), **close)
        assert len(each.trace) == len(result.trace)
        for found, expected in zip(each.trace, result.trace, strict=True):
            torch.testing.assert_close(found, expected.reshape(2, I, J), **close)
        assert torch.equal(each.trace[-1], each.couplings)


@torch.no_grad()
def test_lower_capsules_are_the_primary_ones_and_then_those_of_the_layer_below() -> None:
    model, images = net("parse_capsnet")
    _, seen = observe(model, images)
    capsules = model.capsules(images)
    for each, below, above in zip(seen, capsules[:-1], capsules[1:], strict=True):
        torch.testing.assert_close(each.lower, below, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(each.lower_activations, below.square().sum(dim=-1).sqrt(), rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(each.poses, above, rtol=1e-5, atol=1e-6)


@torch.no_grad()
def test_activations_of_matrix_capsules_are_their_own() -> None:
    model, images = net("em_capsnet")
    _, (_, _, last) = observe(model, images)
    below = model.routed(images)[1].activations
    torch.testing.assert_close(last.lower_activations, below.reshape(2, 144), rtol=1e-5, atol=1e-6)


def test_no_trace_is_kept_unless_it_is_asked_for() -> None:
    _, (seen,) = observe(randomised(Stack(CapsuleLinear(6, 4, 3, 4))), draw(2, 6, 4))
    assert seen.trace is None
    assert seen.couplings is not None


def test_windows_of_one_image_are_told_from_a_batch() -> None:
    layer = randomised(CapsuleConv2d(2, 4, 3, 4, kernel_size=2))
    grid = draw(1, 3, 3, 2, 4)
    _, (seen,) = observe(Stack(layer), grid)
    assert seen.windows == 4
    result = layer(grid)
    torch.testing.assert_close(seen.poses, result.poses.reshape(1, 12, 4), rtol=1e-12, atol=0)
    torch.testing.assert_close(seen.couplings, result.couplings.reshape(1, 32, 3), rtol=1e-12, atol=0)


def test_an_empty_batch_is_seen_empty() -> None:
    _, (seen,) = observe(Stack(CapsuleLinear(6, 4, 3, 4)), torch.rand(0, 6, 4))
    assert seen.couplings is not None
    assert (seen.poses.shape, seen.couplings.shape) == ((0, 3, 4), (0, 6, 3))


def test_bfloat16_nets_are_seen_in_bfloat16() -> None:
    _, (seen,) = observe(Stack(CapsuleLinear(6, 4, 3, 4)).bfloat16(), torch.rand(2, 6, 4).bfloat16())
    assert seen.couplings is not None
    assert seen.couplings.dtype == seen.poses.dtype == torch.bfloat16


def test_layers_are_left_as_they_were_after_an_error_in_the_net() -> None:
    model, _ = net("capsnet_small")
    with pytest.raises(ValueError, match="images has shape"):
        observe(model, torch.rand(2, 1, 5, 5))
    assert untouched(model)


def test_couplings_over_the_sources_are_turned_to_who_chooses_in_every_window() -> None:
    linear = randomised(Stack(CapsuleLinear(6, 4, 3, 4, normalise="sources"), CapsuleLinear(3, 4, 2, 4)))
    _, (first, second) = observe(linear, draw(2, 6, 4), trace=True)
    assert (first.normalise, second.normalise) == ("sources", "targets")
    assert first.couplings is not None
    assert second.couplings is not None
    assert torch.equal(first.by_chooser(first.couplings), first.couplings.transpose(1, 2))
    assert second.by_chooser(second.couplings) is second.couplings

    conv = randomised(CapsuleConv2d(2, 4, 3, 4, kernel_size=2, normalise="sources"))
    _, (seen,) = observe(conv, draw(2, 3, 4, 2, 4))
    assert seen.couplings is not None
    turned = seen.by_chooser(seen.couplings)
    assert (seen.windows, tuple(seen.couplings.shape), tuple(turned.shape)) == (6, (2, 6 * 8, 3), (2, 6 * 3, 8))
    torch.testing.assert_close(turned.sum(dim=-1), torch.ones(2, 18, dtype=torch.float64))
    for window, i, j in ((0, 0, 0), (2, 7, 1), (5, 3, 2)):
        assert torch.equal(turned[:, 3 * window + j, i], seen.couplings[:, 8 * window + i, j])


def test_layers_are_left_as_they_were_after_an_error_in_a_tap() -> None:
    model = randomised(Stack(CapsuleLinear(6, 4, 5, 4), CapsuleLinear(5, 4, 3, 4)))
    expected = model(draw(2, 6, 4))

    def fail(name: str, layer: RoutingLayer, poses: Tensor, activations: Tensor | None, route: Any) -> Routed:
        raise RuntimeError(f"from {name}")

    with pytest.raises(RuntimeError, match=r"from layers\.0"), tapped(model, fail):
        model(draw(2, 6, 4))
    assert untouched(model)
    assert torch.equal(model(draw(2, 6, 4)), expected)


def test_what_a_tap_returns_goes_on_through_the_net() -> None:
    model = randomised(Stack(CapsuleLinear(6, 4, 5, 4), CapsuleLinear(5, 4, 3, 4)))
    x, called = draw(2, 6, 4), []

    def mute(name: str, layer: RoutingLayer, poses: Tensor, activations: Tensor | None, route: Any) -> Routed:
        called.append((name, layer))
        result = route(poses, activations)
        return Routed(torch.zeros_like(result.poses), result.activations) if name == "layers.0" else result

    with tapped(model, mute):
        found = model(x)
    assert called == [("layers.0", model.layers[0]), ("layers.1", model.layers[1])]
    torch.testing.assert_close(found, model.layers[1](torch.zeros(2, 5, 4).double()).activations, rtol=1e-12, atol=0)


def test_a_tap_within_a_tap_leaves_the_outer_one() -> None:
    model, called = randomised(Stack(CapsuleLinear(6, 4, 3, 4))), []

    def note(name: str, layer: RoutingLayer, poses: Tensor, activations: Tensor | None, route: Any) -> Routed:
        called.append(name)
        result: Routed = route(poses, activations)
        return result

    with tapped(model, note):
        observe(model, draw(2, 6, 4))
        model(draw(2, 6, 4))
    assert len(called) == 2
    assert untouched(model)


def test_a_net_without_capsule_layers_is_named() -> None:
    with pytest.raises(ValueError, match=r"^model has no capsule layer that ran"):
        observe(nn.Linear(3, 2), torch.rand(1, 3))


class Foreign(nn.Module):
    """Somebody else's capsules: the votes for a target are added up by softmax couplings of their sums."""

    def __init__(self, above: int) -> None:
        super().__init__()
        self.above, self.couplings = above, torch.empty(0)

    def forward(self, u: Tensor) -> Tensor:
        self.couplings = (u.sum(dim=-1, keepdim=True) * torch.arange(self.above)).softmax(dim=-1)
        return torch.einsum("bij,bip->bjp", self.couplings, u)


def read(layer: nn.Module, inputs: tuple[Any, ...], output: Any) -> Seen:
    assert isinstance(layer, Foreign)
    return seen_layer(inputs[0], output, couplings=layer.couplings)


def test_foreign_layers_are_seen_through_a_reader() -> None:
    model, u = nn.Sequential(Foreign(5), nn.Identity(), Foreign(3)), draw(2, 6, 4)
    output, (first, second) = observe(model, u, adapter=ForeignLayers({"0": read, "2": read}))
    assert torch.equal(output, model(u))
    assert (first.name, second.name) == ("0", "2")
    assert first.couplings is not None
    assert second.couplings is not None
    assert (first.couplings.shape, second.couplings.shape) == ((2, 6, 5), (2, 5, 3))
    assert torch.equal(first.lower, u)
    assert torch.equal(first.poses, second.lower)
    assert torch.equal(second.poses, output)
    torch.testing.assert_close(second.activations, output.square().sum(dim=-1).sqrt(), rtol=1e-12, atol=0)
    assert first.windows == 1
    assert untouched(model)


def test_foreign_layers_are_left_as_they_were_after_an_error() -> None:
    def fail(layer: nn.Module, inputs: tuple[Any, ...], output: Any) -> Seen:
        raise RuntimeError("from the reader")

    model = nn.Sequential(Foreign(3))
    with pytest.raises(RuntimeError, match="from the reader"):
        observe(model, draw(2, 6, 4), adapter=ForeignLayers({"0": fail}))
    assert untouched(model)


def test_a_module_that_is_not_there_is_named() -> None:
    model = nn.Sequential()
    model.add_module("capsules", Foreign(3))
    adapter = ForeignLayers({"capsules": read, "capsule": read})
    with pytest.raises(ValueError, match=r"^readers: module='capsule' is unknown; did you mean 'capsules'\?"):
        observe(model, draw(2, 6, 4), adapter=adapter)
    assert untouched(model)


def test_what_a_foreign_layer_says_of_itself_is_kept() -> None:
    lower, poses, own, below = draw(2, 6, 4), draw(2, 3, 5), draw(2, 3), draw(2, 6)
    trace = (draw(2, 6, 3), draw(2, 6, 3))
    seen = seen_layer(lower, poses, activations=own, lower_activations=below, trace=trace)
    assert seen.activations is own
    assert seen.lower_activations is below
    assert seen.trace is trace
    assert seen.couplings is None


@pytest.mark.parametrize(
    ("parts", "error", "name"),
    [
        ({"lower": torch.rand(6, 4)}, ValueError, "lower"),
        ({"lower": torch.ones(2, 6, 4, dtype=torch.int)}, TypeError, "lower"),
        ({"poses": torch.rand(3, 3, 4)}, ValueError, "poses"),
        ({"poses": None}, TypeError, "poses"),
        ({"couplings": torch.rand(2, 3, 6)}, ValueError, "couplings"),
        ({"couplings": torch.rand(6, 3)}, ValueError, "couplings"),
    ],
)
def test_parts_of_a_foreign_layer_that_do_not_fit_are_named(parts: dict[str, Any], error: type[Exception], name: str) -> None:
    given: dict[str, Any] = {"lower": torch.rand(2, 6, 4), "poses": torch.rand(2, 3, 4), **parts}
    with pytest.raises(error, match=rf"^{name} has"):
        seen_layer(given.pop("lower"), given.pop("poses"), **given)
