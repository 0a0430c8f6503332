"""The same attacks by foolbox, an implementation that shares nothing with ours."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from capsella import attacks, create_model

foolbox = pytest.importorskip("foolbox", reason="foolbox is a tool for development")


class Scores(nn.Module):
    """A model that returns its scores alone."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        scores: Tensor = self.model(images).scores
        return scores


@pytest.fixture(params=["convnet_small", "capsnet_small"])
def subject(request: pytest.FixtureRequest) -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(0)
    model = Scores(create_model(request.param)).eval()
    return model, torch.rand(6, 1, 28, 28), torch.tensor([0, 1, 2, 3, 4, 5])


def by_foolbox(attack: Any, subject: tuple[nn.Module, Tensor, Tensor], eps: float) -> Tensor:
    model, images, targets = subject
    net = foolbox.PyTorchModel(model, bounds=(0, 1), device="cpu")
    # all of them: what is fooled already is not left out.
    found: Tensor = attack.run(net, images, foolbox.criteria.Misclassification(targets), epsilon=eps)
    return found


@pytest.mark.parametrize("eps", [0.0, 8 / 255, 0.3])
def test_fast_gradient_sign(subject: tuple[nn.Module, Tensor, Tensor], eps: float) -> None:
    expected = by_foolbox(foolbox.attacks.FGSM(random_start=False), subject, eps)
    torch.testing.assert_close(attacks.fgsm(*subject, eps=eps), expected, rtol=0, atol=1e-6)


def test_projected_gradients_in_a_cube(subject: tuple[nn.Module, Tensor, Tensor]) -> None:
    eps, steps = 0.1, 5
    there = foolbox.attacks.LinfPGD(steps=steps, abs_stepsize=0.03, random_start=False)
    ours = attacks.pgd(*subject, eps=eps, steps=steps, step_size=0.03, random_start=False)
    torch.testing.assert_close(ours, by_foolbox(there, subject, eps), rtol=0, atol=1e-6)


def test_projected_gradients_in_a_ball(subject: tuple[nn.Module, Tensor, Tensor]) -> None:
    eps, steps = 1.0, 5
    there = foolbox.attacks.L2PGD(steps=steps, abs_stepsize=0.4, random_start=False)
    ours = attacks.pgd(*subject, eps=eps, steps=steps, step_size=0.4, norm="l2", random_start=False)
    torch.testing.assert_close(ours, by_foolbox(there, subject, eps), rtol=0, atol=1e-5)
