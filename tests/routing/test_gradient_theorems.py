"""mitterreiter2023, theorems 1 and 2: what the margin loss sends back to capsules and weights, against autograd."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from capsella.functional import length, make_votes, margin_loss
from capsella.functional.squash import KINDS
from capsella.routing import agreement, trainable, vote_and_route
from capsella.testing import generator

B, I, J, P, D = 4, 5, 3, 6, 2
TARGETS = torch.tensor([0, 2, 1, 0])
TOLERANCE = {"rtol": 1e-11, "atol": 1e-14}


def draw(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=generator(seed), dtype=torch.float64)


def loss_of(poses: Tensor) -> Tensor:
    return margin_loss(length(poses), TARGETS)


@pytest.mark.parametrize("scale", [0.02, 0.3, 0.6, 3.0])
def test_theorem_1_the_gradient_of_a_top_capsule(scale: float) -> None:
    capsules = (draw(0, B, J, D) * scale).requires_grad_()
    (gradient,) = torch.autograd.grad(loss_of(capsules), capsules)
    for b in range(B):
        for j in range(J):
            u = capsules[b, j].detach()
            n, t = u.norm(), 1.0 if TARGETS[b] == j else 0.0
            factor = -t * max(0.0, 0.9 - n) + 0.5 * (1 - t) * max(0.0, n - 0.1)
            torch.testing.assert_close(gradient[b, j], factor * 2 * u / n / B, **TOLERANCE)


@pytest.mark.parametrize("size", [1e-12, 1e-6, 1e-3])
def test_theorem_1_the_gradient_of_a_present_class_does_not_vanish_with_its_capsule(size: float) -> None:
    u = draw(1, 1, 1, D)
    capsule = (u / u.norm() * size).requires_grad_()
    (gradient,) = torch.autograd.grad(margin_loss(length(capsule), torch.tensor([0])), capsule)
    assert gradient.norm().item() == pytest.approx(2 * (0.9 - size), rel=1e-12)


def through_routing(poses: Tensor, weight: Tensor, squash: str, num_iters: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return dL/du and dL/dW through the whole layer, and dL/dû with the votes as leaves."""
    poses, weight = poses.clone().requires_grad_(), weight.clone().requires_grad_()
    options = {"squash": squash, "num_iters": num_iters}
    loss = loss_of(vote_and_route("agreement", poses, weight, **options).poses)
    by_pose, by_weight = torch.autograd.grad(loss, (poses, weight))
    votes = make_votes(poses, weight).detach().requires_grad_()
    (by_vote,) = torch.autograd.grad(loss_of(agreement(votes, **options).poses), votes)
    return by_pose, by_weight, by_vote


@pytest.mark.parametrize("squash", KINDS)
@pytest.mark.parametrize("num_iters", [1, 3])
def test_theorem_2_gradients_of_lower_capsules_and_weights(squash: str, num_iters: int) -> None:
    poses, weight = draw(2, B, I, P), draw(3, I, J, P, D) * 0.3
    by_pose, by_weight, by_vote = through_routing(poses, weight, squash, num_iters)
    assert by_vote.abs().max() > 1e-3
    for i in range(I):
        for b in range(B):
            expected = sum(weight[i, j] @ by_vote[b, i, j] for j in range(J))
            torch.testing.assert_close(by_pose[b, i], expected, **TOLERANCE)
        for j in range(J):
            outer = sum(torch.outer(poses[b, i], by_vote[b, i, j]) for b in range(B))
            torch.testing.assert_close(by_weight[i, j], outer, **TOLERANCE)


def test_theorem_2_includes_the_path_through_the_couplings() -> None:
    votes = draw(4, B, I, J, D).requires_grad_()
    result = agreement(votes)
    (full,) = torch.autograd.grad(loss_of(result.poses), votes)
    held = trainable(votes, couplings=result.couplings.detach(), squash="sabour")
    torch.testing.assert_close(held.poses, result.poses, **TOLERANCE)
    (without,) = torch.autograd.grad(loss_of(held.poses), votes)
    assert (full - without).abs().max() > 1e-3


@pytest.mark.parametrize("num_iters", [1, 3])
def test_starvation_a_dead_capsule_with_dead_weights_receives_no_gradient(num_iters: int) -> None:
    poses, weight = draw(5, B, I, P), draw(6, I, J, P, D)
    poses[:, 2], weight[2] = 0.0, 0.0
    by_pose, by_weight, by_vote = through_routing(poses, weight, "sabour", num_iters)
    assert by_pose[:, 2].abs().max() == 0
    assert by_weight[2].abs().max() == 0
    # its votes do receive one: it is starved by its own zeros, and the others are not.
    assert by_vote[:, 2].abs().max() > 1e-3
    alive = [i for i in range(I) if i != 2]
    assert by_pose[:, alive].abs().amax(dim=(0, 2)).min() > 1e-3
    assert by_weight[alive].abs().amax(dim=(1, 2, 3)).min() > 1e-3


def test_starvation_gradients_shrink_with_the_capsule_and_with_its_weights() -> None:
    poses, weight = draw(7, B, I, P), draw(8, I, J, P, D)
    sizes = []
    for size in (1e-3, 1e-6):
        poses[:, 2] = poses[:, 2] / poses[:, 2].norm() * size
        weight[2] = weight[2] / weight[2].norm() * size
        by_pose, by_weight, _ = through_routing(poses, weight, "sabour", 3)
        sizes.append((by_pose[:, 2].norm().item(), by_weight[2].norm().item()))
    for large, small in zip(*sizes, strict=True):
        assert small == pytest.approx(large * 1e-3, rel=1e-2)
