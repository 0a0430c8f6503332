"""Gradients that reach capsules and weights, against formulas in numpy and autograd's own retained gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from analysis_nets import Stack, draw, randomised, uneven
from torch import Tensor, nn

from capsella import create_model
from capsella.analysis import GradientNorms, LayerGradients, Revivals, gradient_norms
from capsella.functional import margin_loss
from capsella.models import CapsuleNet, Prediction
from capsella.nn import CapsuleConv2d, CapsuleLinear

B, I, P, J, D = 3, 4, 2, 3, 2
PARTS = ("lower", "upper", "weights")


def total_length(prediction: Prediction, targets: Tensor) -> Tensor:
    return prediction.scores.sum(dim=1).mean()


def small(**options: Any) -> Stack:
    return randomised(Stack(CapsuleLinear(6, 4, 5, 4, **options), CapsuleLinear(5, 4, 3, 4, **options)))


def assert_same(found: list[LayerGradients], expected: list[LayerGradients], rtol: float = 1e-5) -> None:
    assert [layer.name for layer in found] == [layer.name for layer in expected]
    for layer, other in zip(found, expected, strict=True):
        for part in PARTS:
            torch.testing.assert_close(getattr(layer, part), getattr(other, part), rtol=rtol, atol=1e-9, msg=part)


def test_a_layer_by_its_formulas() -> None:
    # v_j = Σ_i u_i W_ij / J with score ‖v_j‖: ∂/∂v_j is v_j's direction, ∂/∂u_i goes through W_ij, and ∂/∂W_ij is the outer
    # product of u_i and what reaches the vote (the paper's Theorem 2).
    model = randomised(Stack(CapsuleLinear(I, P, J, D, routing="uniform", squash="none", bias=False)))
    u, targets = draw(B, I, P), torch.zeros(B, dtype=torch.long)
    (found,) = gradient_norms(model, u.clone(), targets, loss=total_length)

    x, W = u.numpy(), model.layers[0].weight.detach().numpy()
    direction = np.zeros((B, J, D))
    for b in range(B):
        for j in range(J):
            v = sum(x[b, i] @ W[i, j] for i in range(I)) / J
            direction[b, j] = v / np.linalg.norm(v)
    lower = [
        np.mean([np.linalg.norm(sum(W[i, j] @ direction[b, j] for j in range(J)) / J) for b in range(B)]) for i in range(I)
    ]
    weights = [
        [np.linalg.norm(sum(np.outer(x[b, i], direction[b, j]) for b in range(B)) / J / B) for j in range(J)] for i in range(I)
    ]
    assert found.name == "layers.0"
    assert found.upper.tolist() == pytest.approx([1] * J, rel=1e-6)
    assert found.lower.tolist() == pytest.approx(lower, rel=1e-6)
    np.testing.assert_allclose(found.weights.numpy(), weights, rtol=1e-6)


@pytest.mark.parametrize("routing", ["agreement", "uniform", "trainable", "quadratic"])
def test_two_layers_agree_with_retained_gradients(routing: str) -> None:
    model, targets = small(routing=routing), torch.tensor([0, 2, 1, 2])
    primary = draw(4, 6, 4)
    found = gradient_norms(model, primary.clone(), targets)

    lowest = primary.clone().requires_grad_()
    middle = model.layers[0](lowest).poses
    top = model.layers[1](middle).poses
    for poses in (middle, top):
        poses.retain_grad()
    margin_loss(top.square().sum(dim=-1).sqrt(), targets).backward()
    for layer, below, above, module in zip(found, (lowest, middle), (middle, top), model.layers, strict=True):
        for reached, poses in ((layer.lower, below), (layer.upper, above)):
            assert poses.grad is not None
            # the loss is a mean over four images: four times its gradient is that of one image's loss.
            lengths = [[np.linalg.norm(4 * capsule) for capsule in image] for image in poses.grad.numpy()]
            assert reached.tolist() == pytest.approx(np.mean(lengths, axis=0).tolist(), rel=1e-5)
        expected = [[np.linalg.norm(block) for block in row] for row in module.weight.grad.numpy()]
        np.testing.assert_allclose(layer.weights.numpy(), expected, rtol=1e-5)
        assert layer.lower.min() > 0
        assert layer.weights.min() > 0


def test_what_reaches_a_layer_from_above_is_what_reaches_the_next_from_below() -> None:
    lower, upper = gradient_norms(small(), draw(4, 6, 4), torch.tensor([0, 2, 1, 2]))
    torch.testing.assert_close(lower.upper, upper.lower)


def test_scores_from_activations_alone_reach_no_pose_of_the_last_em_layer() -> None:
    first, last = gradient_norms(small(routing="em", inverse_temperature=0.5), draw(4, 6, 4), torch.tensor([0, 2, 1, 2]))
    assert last.upper.abs().max() < 1e-9
    assert last.lower.min() > 1e-6
    assert first.upper.min() > 1e-6


@pytest.mark.parametrize("routing", ["agreement", "em"])
def test_a_batch_twice_gives_the_same_figures(routing: str) -> None:
    model, primary, targets = small(routing=routing), draw(4, 6, 4), torch.tensor([0, 2, 1, 2])
    once = gradient_norms(model, primary.clone(), targets)
    twice = gradient_norms(model, torch.cat([primary, primary]), torch.cat([targets, targets]))
    assert_same(twice, once)


def test_figures_of_capsules_are_means_over_single_images() -> None:
    model, primary, targets = small(), draw(4, 6, 4), torch.tensor([0, 2, 1, 2])
    together = gradient_norms(model, primary.clone(), targets)
    alone = [gradient_norms(model, primary[k : k + 1].clone(), targets[k : k + 1]) for k in range(4)]
    for k, layer in enumerate(together):
        for part in ("lower", "upper"):
            mean = torch.stack([getattr(one[k], part) for one in alone]).mean(dim=0)
            torch.testing.assert_close(getattr(layer, part), mean, rtol=1e-5, atol=1e-9)


def test_gradients_that_are_there_are_left_as_they_were() -> None:
    model = create_model("capsnet_small")
    parameters = list(model.parameters())
    kept: list[Tensor | None] = [torch.rand_like(p) if k % 2 else None for k, p in enumerate(parameters)]
    for parameter, gradient in zip(parameters, kept, strict=True):
        parameter.grad = None if gradient is None else gradient.clone()
    before = [parameter.grad for parameter in parameters]
    gradient_norms(model, torch.rand(2, 1, 28, 28), torch.tensor([1, 2]))
    for parameter, gradient, value in zip(parameters, before, kept, strict=True):
        assert parameter.grad is gradient
        assert gradient is None or (value is not None and torch.equal(gradient, value))
    assert all("_route" not in module.__dict__ for module in model.modules())


def test_gradients_are_found_where_they_are_switched_off() -> None:
    model, primary, targets = small(), draw(4, 6, 4), torch.tensor([0, 2, 1, 2])
    with torch.no_grad():
        found = gradient_norms(model, primary.clone(), targets)
        assert not torch.is_grad_enabled()
    assert_same(found, gradient_norms(model, primary.clone(), targets))


def test_classes_may_be_multi_hot() -> None:
    model, primary, targets = small(), draw(4, 6, 4), torch.tensor([0, 2, 1, 2])
    assert_same(gradient_norms(model, primary.clone(), torch.eye(3)[targets]), gradient_norms(model, primary.clone(), targets))


def test_a_shared_weight_has_one_row() -> None:
    model = randomised(Stack(CapsuleLinear(6, 4, 3, 4, shared=True)))
    (found,) = gradient_norms(model, draw(4, 6, 4), torch.tensor([0, 2, 1, 2]))
    assert (found.lower.shape, found.upper.shape, found.weights.shape) == ((6,), (3,), (1, 3))


def test_windows_of_a_convolution_are_capsules_side_by_side() -> None:
    # 4×4 positions of 2 types under 2×2 windows of step 2: four windows of 8 capsules each.
    model = randomised(Stack(CapsuleConv2d(2, 4, 3, 4, kernel_size=2, stride=2, rows=2)))
    grid, targets = draw(2, 4, 4, 2, 4), torch.tensor([5, 0])
    (found,) = gradient_norms(model, grid.clone(), targets, loss=total_length)
    assert (found.lower.shape, found.upper.shape, found.weights.shape) == ((32,), (12,), (8, 3))
    # windows do not overlap, so that every capsule of the grid is in one of them.
    grid.requires_grad_()
    model(grid).sum(dim=1).mean().backward()
    assert grid.grad is not None
    expected = (2 * grid.grad).norm(dim=-1).mean(dim=0)
    torch.testing.assert_close(found.lower.sort().values, expected.flatten().sort().values, rtol=1e-5, atol=1e-9)


def test_a_whole_net_agrees_with_its_own_backward() -> None:
    model = create_model("em_capsnet")
    images, targets = torch.rand(2, 1, 28, 28), torch.tensor([1, 2])
    found = gradient_norms(model, images, targets)
    margin_loss(model(images).scores, targets).backward()
    for layer, module in zip(found, model.layers, strict=True):
        expected = module.weight.grad.double().flatten(2).square().sum(dim=-1).sqrt()
        torch.testing.assert_close(layer.weights, expected, rtol=1e-4, atol=1e-8)


def test_a_capsule_that_is_zero_moves_no_weight_of_its_own() -> None:
    primary = draw(4, 6, 4)
    primary[:, 2] = 0
    first, _ = gradient_norms(small(bias=False), primary, torch.tensor([0, 2, 1, 2]))
    assert first.weights[2].tolist() == [0] * 5
    assert first.weights[3].min() > 0


def test_weights_that_are_zero_pass_nothing_down() -> None:
    model = small(bias=False)
    with torch.no_grad():
        model.layers[0].weight[2] = 0
    first, _ = gradient_norms(model, draw(4, 6, 4), torch.tensor([0, 2, 1, 2]))
    assert first.lower[2] == 0
    assert first.lower[3] > 0


def test_images_are_left_as_they_were() -> None:
    primary = draw(4, 6, 4)
    gradient_norms(small(), primary, torch.tensor([0, 2, 1, 2]))
    assert not primary.requires_grad


def test_a_frozen_net_has_gradients_too() -> None:
    model, primary, targets = small(), draw(4, 6, 4), torch.tensor([0, 2, 1, 2])
    expected = gradient_norms(model, primary.clone(), targets)
    assert_same(gradient_norms(model.requires_grad_(False), primary.clone(), targets), expected)


def test_gradients_reach_the_upper_capsules_of_a_bfloat16_net() -> None:
    (found,) = gradient_norms(Stack(CapsuleLinear(6, 4, 3, 4)).bfloat16(), draw(4, 6, 4).bfloat16(), torch.tensor([0, 2, 1, 2]))
    assert found.upper.min() > 0


def test_a_net_in_training_keeps_its_running_means() -> None:
    model = create_model("parse_capsnet", image_size=40, capsules=(4, 10), reconstruction="none").train()
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    gradient_norms(model, torch.rand(2, 1, 40, 40), torch.tensor([1, 2]))
    assert all(torch.equal(buffer, before[name]) for name, buffer in model.named_buffers())


def test_a_net_without_capsules_is_named() -> None:
    with pytest.raises(ValueError, match="model"):
        gradient_norms(nn.Linear(4, 3), torch.rand(2, 4), torch.tensor([0, 1]))


def test_a_net_s_decoder_does_not_matter() -> None:
    model = create_model("capsnet_small")
    assert isinstance(model, CapsuleNet)
    images, targets = torch.rand(2, 1, 28, 28), torch.tensor([1, 2])
    with_decoder = gradient_norms(model, images, targets)
    model.decoder = None
    assert_same(gradient_norms(model, images, targets), with_decoder)


@pytest.mark.parametrize("routing", ["agreement", "em"])
def test_streamed_gradients_are_those_of_all_images_at_once(routing: str) -> None:
    model, primary, targets = small(routing=routing), draw(11, 6, 4), torch.arange(11) % 3
    streamed = GradientNorms(model)
    for batch in zip(uneven(primary), uneven(targets), strict=True):
        streamed.update(*batch)
    found, expected = streamed.compute(), gradient_norms(model, primary.clone(), targets)
    assert_same(found, expected)
    # of weights it is the length of the mean gradient, not the mean of lengths.
    parts = [gradient_norms(model, *batch)[0].weights for batch in zip(uneven(primary), uneven(targets), strict=True)]
    mean = sum(size * part for size, part in zip((1, 5, 2, 3), parts, strict=True)) / 11
    assert (mean > 1.05 * found[0].weights).any()


def test_streamed_gradients_take_the_loss_that_is_given() -> None:
    model, primary, targets = small(), draw(4, 6, 4), torch.tensor([0, 2, 1, 2])
    streamed = GradientNorms(model, loss=total_length)
    streamed.update(primary, targets)
    assert_same(streamed.compute(), gradient_norms(model, primary, targets, loss=total_length))


def test_without_an_image_there_is_no_gradient() -> None:
    with pytest.raises(ValueError, match="nothing has been seen yet"):
        GradientNorms(small()).compute()


def test_lives_by_hand() -> None:
    readings = [
        # always alive, always dead, dies, comes back, dies again and stays so
        [False, True, False, True, False],
        [False, True, False, False, True],
        [False, True, True, False, False],
        [False, True, True, False, True],
        [False, True, True, False, True],
    ]
    revivals = Revivals()
    for reading in readings:
        revivals.update(torch.tensor(reading))
    found = revivals.compute()
    assert found.deaths.tolist() == [0, 1, 1, 1, 2]
    assert found.revivals.tolist() == [0, 0, 0, 1, 1]
    assert found.dead.tolist() == readings[-1]


def test_lives_agree_with_loops() -> None:
    readings = draw(30, 8) > 0
    revivals = Revivals()
    deaths, back, before = [0] * 8, [0] * 8, [False] * 8
    for reading in readings:
        revivals.update(reading)
        for m, dead in enumerate(reading.tolist()):
            deaths[m] += dead and not before[m]
            back[m] += before[m] and not dead
            before[m] = dead
        found = revivals.compute()
        assert (found.deaths.tolist(), found.revivals.tolist(), found.dead.tolist()) == (deaths, back, before)


def test_counting_goes_on_after_a_look() -> None:
    revivals = Revivals()
    revivals.update(torch.tensor([True]))
    looked = revivals.compute()
    revivals.update(torch.tensor([False]))
    revivals.update(torch.tensor([True]))
    assert (looked.deaths.tolist(), looked.revivals.tolist()) == ([1], [0])
    assert (revivals.compute().deaths.tolist(), revivals.compute().revivals.tolist()) == ([2], [1])


def test_a_reading_may_be_overwritten_with_the_next() -> None:
    revivals, dead = Revivals(), torch.tensor([False])
    revivals.update(dead)
    dead[0] = True
    revivals.update(dead)
    assert revivals.compute().deaths.tolist() == [1]


@pytest.mark.parametrize("dead", [torch.zeros(3), torch.zeros(1, 3, dtype=torch.bool), torch.zeros(4, dtype=torch.bool)])
def test_a_reading_that_does_not_fit_is_named(dead: Tensor) -> None:
    revivals = Revivals()
    revivals.update(torch.zeros(3, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"^dead is .*expected torch.bool \[3\]"):
        revivals.update(dead)


def test_a_first_reading_that_does_not_fit_is_named() -> None:
    with pytest.raises(ValueError, match=r"^dead is torch.float32 \[3\]; expected torch.bool \[M\]"):
        Revivals().update(torch.zeros(3))


def test_without_a_reading_there_is_nothing_to_compute() -> None:
    with pytest.raises(ValueError, match="nothing has been seen yet"):
        Revivals().compute()
