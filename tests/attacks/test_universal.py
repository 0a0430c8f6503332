"""One perturbation for all images: the same for each, within its bound, the seed's, and it fools what can be fooled."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from capsella import attacks


def net(classes: int = 3, side: int = 12) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(side * side, classes))


def some_images(count: int = 48, side: int = 12) -> Tensor:
    return torch.rand(count, 1, side, side, generator=torch.Generator().manual_seed(1)) * 0.5 + 0.25


def found(**options: Any) -> tuple[nn.Module, Tensor, Tensor, attacks.Universal]:
    model, images = net(), some_images()
    targets = model(images).argmax(dim=1)
    return model, images, targets, attacks.find_universal(model, images, targets, **{"eps": 0.2, "batch_size": 16, **options})


def test_one_perturbation_fools_a_net_more_with_every_step() -> None:
    model, images, targets, universal = found(iterations=60, every=20, lr=1e-2)
    assert universal.perturbation.shape == (1, 12, 12)
    assert float(universal.perturbation.abs().max()) <= 0.2
    assert universal.iterations == (0, 20, 40, 60)
    assert universal.accuracies[-1] < universal.accuracies[0] - 0.3
    attacked = attacks.add(images, universal.perturbation, eps=0.2)
    assert float((model(attacked).argmax(dim=1) == targets).double().mean()) == pytest.approx(universal.accuracies[-1])
    # no image comes near its bounds, so that all are changed alike.
    torch.testing.assert_close(attacked - images, universal.perturbation.expand_as(images), rtol=0, atol=1e-6)


def test_the_seed_decides() -> None:
    first, again, other = (found(iterations=3, seed=seed)[3].perturbation for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_the_last_step_is_measured_whatever_lies_between() -> None:
    assert found(iterations=7, every=3)[3].iterations == (0, 3, 6, 7)


def test_other_images_can_be_what_is_measured() -> None:
    model, images = net(), some_images()
    targets = model(images).argmax(dim=1)
    wrong = (targets + 1) % 3
    universal = attacks.find_universal(model, images, targets, eps=1e-6, iterations=1, test=(images, wrong))
    assert universal.accuracies == (0.0, 0.0)


def test_wrong_classes_are_drawn_that_are_never_the_right_one() -> None:
    drawn: list[tuple[Tensor, Tensor]] = []

    def noted(prediction: Any, targets: Tensor) -> Tensor:
        drawn.append((prediction.scores.detach().argmax(dim=1), targets))
        return nn.functional.cross_entropy(prediction.scores, targets)

    # so little is changed that the net still sees what it saw.
    found(eps=1e-6, iterations=9, loss=noted)
    own, wrong = (torch.cat(each) for each in zip(*drawn, strict=True))
    assert not bool((own == wrong).any())
    assert set(((wrong - own) % 3).tolist()) == {1, 2}


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32), (1, 36, 36), (1, 9, 20)])
def test_a_generator_fits_any_image(shape: tuple[int, int, int]) -> None:
    generator = attacks.PerturbationGenerator(shape, 0.1)
    assert generator(torch.rand(1, 100)).shape == shape


def test_a_generator_for_mnist_has_the_sizes_that_are_said() -> None:
    generator = attacks.PerturbationGenerator((1, 28, 28), 0.1)
    dense, convolutions = (100 + 1) * 128 * 4 * 4, (128 * 64 * 16 + 64) + (64 * 32 * 16 + 32) + (32 * 16 + 1)
    norms = 2 * (128 + 64 + 32)
    assert sum(parameter.numel() for parameter in generator.parameters()) == dense + convolutions + norms


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"iterations": 0}, "iterations=0 is too small"),
        ({"every": 0}, "every=0 is too small"),
        ({"lr": 0.0}, "lr=0.0 is too small"),
    ],
)
def test_mistakes_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        found(**options)


def test_images_that_are_too_small_or_show_several_classes_are_refused() -> None:
    with pytest.raises(ValueError, match="images of 1×1 are too small for a generator"):
        attacks.find_universal(net(side=1), torch.rand(4, 1, 1, 1), torch.tensor([0, 1, 2, 0]), eps=0.1)
    with pytest.raises(ValueError, match=r"targets has shape \[4, 3\]; expected \[N\], one class an image"):
        attacks.find_universal(net(), some_images(4), torch.ones(4, 3), eps=0.1)
