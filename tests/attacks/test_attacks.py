"""Attacks: bounds hold exactly, nothing else moves, and what they do on nets whose answer is known is what it must be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as some
from torch import Tensor, nn

from capsella import attacks, create_model
from capsella.attacks.base import within, within_ball
from capsella.data.augment import Normalisation
from capsella.models import Prediction

EPS = 8 / 255


class Linear(nn.Module):
    """Logits that are a product with the pixels: the gradient is known, and the same everywhere."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight)

    def forward(self, images: Tensor) -> Tensor:
        return images.flatten(1) @ self.weight.T.to(images.dtype)


def linear(classes: int = 3, side: int = 4, seed: int = 0) -> Linear:
    return Linear(torch.randn(classes, side * side, generator=torch.Generator().manual_seed(seed)))


def images(count: int = 6, side: int = 4, seed: int = 1) -> Tensor:
    return torch.rand(count, 1, side, side, generator=torch.Generator().manual_seed(seed))


def classes(count: int = 6, of: int = 3) -> Tensor:
    return torch.arange(count) % of


def accuracy(model: nn.Module, given: Tensor, targets: Tensor) -> float:
    with torch.no_grad():
        output = model(given)
    scores = output.scores if isinstance(output, Prediction) else output
    return float((scores.argmax(dim=1) == targets).double().mean())


ALL: dict[str, Callable[..., Tensor]] = {
    "fgsm": attacks.fgsm,
    "pgd": lambda *args, **options: attacks.pgd(*args, steps=4, **options),
    "pgd without a random start": lambda *args, **options: attacks.pgd(*args, steps=4, random_start=False, **options),
    "pgd l2": lambda *args, **options: attacks.pgd(*args, steps=4, norm="l2", **options),
    "transfer": lambda *args, **options: attacks.transfer(*args, substitute=create_model("convnet_small"), **options),
    "universal": lambda *args, **options: attacks.universal(*args, iterations=3, **options),
}
each = pytest.mark.parametrize("name", ALL)


@each
def test_an_epsilon_of_zero_is_the_identity(name: str) -> None:
    given_images, targets = torch.rand(3, 1, 28, 28), torch.tensor([1, 2, 3])
    assert torch.equal(ALL[name](create_model("capsnet_small"), given_images, targets, eps=0.0), given_images)


@each
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_no_image_leaves_its_bounds_by_a_bit(name: str, dtype: torch.dtype) -> None:
    model = create_model("capsnet_small").to(dtype)
    other = create_model("convnet_small").to(dtype)
    # values at both ends and next to them.
    before = torch.rand(4, 1, 28, 28, dtype=dtype)
    before[0, 0, :2], before[0, 0, 2:4], before[1] = 0.0, 1.0, 1e-9
    targets = torch.tensor([0, 1, 2, 3])
    run = (lambda *a, **o: attacks.transfer(*a, substitute=other, **o)) if name == "transfer" else ALL[name]
    for eps in (EPS, 0.1, 0.3, 1e-7, 1.0):
        after = run(model, before, targets, eps=eps)
        apart = after.double() - before.double()
        reach = apart.flatten(1).norm(dim=1) if name == "pgd l2" else apart.abs()
        assert float(reach.max()) <= eps
        assert float(after.min()) >= 0
        assert float(after.max()) <= 1
        assert after.dtype == dtype
        assert eps < 1e-6 or not torch.equal(after, before)


@each
def test_the_network_is_left_as_it_was(name: str) -> None:
    model = create_model("capsnet_small").train()
    model.layers.eval()
    modes = [module.training for module in model.modules()]
    before = {key: value.clone() for key, value in model.state_dict().items()}
    state = torch.get_rng_state()
    ALL[name](model, torch.rand(3, 1, 28, 28, generator=torch.Generator().manual_seed(0)), torch.tensor([1, 2, 3]), eps=EPS)
    if name != "transfer":  # which builds a network here.
        assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert [module.training for module in model.modules()] == modes


@pytest.mark.parametrize("name", ["fgsm", "pgd without a random start", "pgd l2"])
def test_an_image_does_not_depend_on_those_beside_it(name: str) -> None:
    torch.manual_seed(0)
    model = create_model("capsnet_small").double()
    given_images, targets = torch.rand(5, 1, 28, 28, dtype=torch.float64), torch.arange(5)
    options: dict[str, Any] = {"random_start": False} if name == "pgd l2" else {}
    together = ALL[name](model, given_images, targets, eps=0.1, **options)
    alone = [ALL[name](model, given_images[k : k + 1], targets[k : k + 1], eps=0.1, **options) for k in range(5)]
    torch.testing.assert_close(together, torch.cat(alone), rtol=0, atol=1e-12)


def test_one_step_goes_along_the_sign_of_the_gradient() -> None:
    # cross entropy's gradient by the logits is softmax − one-hot.
    model, before, targets = linear(), images() * 0.5 + 0.25, classes()
    logits = model(before)
    slope = (logits.softmax(dim=1) - nn.functional.one_hot(targets, 3)) @ model.weight
    expected = before + EPS * slope.sign().reshape_as(before)
    torch.testing.assert_close(attacks.fgsm(model, before, targets, eps=EPS), expected, rtol=0, atol=1e-7)
    towards = attacks.fgsm(model, before, targets, eps=EPS, targeted=True)
    torch.testing.assert_close(towards, 2 * before - expected, rtol=0, atol=1e-7)


def test_many_steps_reach_the_farthest_corner_of_a_linear_net() -> None:
    # of two classes the difference has one gradient everywhere: the largest loss within ε is at a corner, or at ε along it.
    model, before, targets = linear(classes=2), images() * 0.2 + 0.4, classes(of=2)
    way = (model.weight[1] - model.weight[0]) * torch.where(targets == 0, 1, -1)[:, None]
    corner = before + 0.1 * way.sign().reshape_as(before)
    found = attacks.pgd(model, before, targets, eps=0.1, loss=attacks.difference)
    torch.testing.assert_close(found, corner, rtol=0, atol=1e-6)
    along = before + 0.1 * (way / way.norm(dim=1, keepdim=True)).reshape_as(before)
    found = attacks.pgd(model, before, targets, eps=0.1, norm="l2", loss=attacks.difference, random_start=False)
    torch.testing.assert_close(found, along, rtol=0, atol=1e-6)


def test_steps_of_a_given_size_add_up() -> None:
    model, before, targets = linear(classes=2), images() * 0.2 + 0.4, classes(of=2)
    way = ((model.weight[1] - model.weight[0]) * torch.where(targets == 0, 1, -1)[:, None]).reshape_as(before)
    found = attacks.pgd(model, before, targets, eps=0.1, steps=3, step_size=0.01, random_start=False, loss=attacks.difference)
    torch.testing.assert_close(found, before + 0.03 * way.sign(), rtol=0, atol=1e-6)


def test_a_random_start_is_the_seed_s_and_lies_within() -> None:
    model, before, targets = linear(), images() * 0.2 + 0.4, classes()

    def start(seed: int, norm: str = "linf") -> Tensor:
        # steps too small to be seen.
        return attacks.pgd(model, before, targets, eps=0.1, steps=1, step_size=1e-12, seed=seed, norm=norm) - before

    assert torch.equal(start(0), start(0))
    assert not torch.equal(start(0), start(1))
    assert 0.02 < float(start(0).abs().mean()) < 0.08
    lengths = start(0, "l2").flatten(1).norm(dim=1)
    # in 16 dimensions most of a ball lies near its surface.
    assert 0.05 < float(lengths.mean()) < 0.1


def test_images_that_were_attacked_are_taken_for_others() -> None:
    torch.manual_seed(0)
    model, before = linear(side=8), images(60, side=8)
    targets = model(before).argmax(dim=1)
    assert accuracy(model, before, targets) == 1
    right = [accuracy(model, attacks.fgsm(model, before, targets, eps=eps), targets) for eps in (0.01, 0.05, 0.2)]
    assert right[0] > right[1] > right[2]
    assert accuracy(model, attacks.pgd(model, before, targets, eps=0.2), targets) <= right[2]
    wanted = (targets + 1) % 3
    seen = attacks.pgd(model, before, wanted, eps=0.2, targeted=True)
    assert accuracy(model, seen, wanted) > accuracy(model, before, wanted) + 0.5


def test_the_difference_by_hand() -> None:
    scores = Prediction(torch.tensor([[0.9, 0.2, 0.5], [0.1, 0.7, 0.3]]))
    assert float(attacks.difference(scores, torch.tensor([0, 2]))) == pytest.approx((-0.4 + 0.4) / 2)
    # of several classes the weakest counts.
    several = torch.tensor([[1, 0, 1], [0, 1, 1]])
    assert float(attacks.difference(scores, several)) == pytest.approx(((0.2 - 0.5) + (0.1 - 0.3)) / 2)


class Lengths(nn.Module):
    """Capsules whose lengths are the images' first values, as they are."""

    scores_are = "lengths"

    def forward(self, given_images: Tensor) -> Prediction:
        return Prediction(given_images.flatten(1)[:, :3])


def test_lengths_that_keep_their_margins_have_no_gradient_and_are_counted() -> None:
    before = torch.full((4, 1, 2, 2), 0.05)
    # the first two are right by more than the margins ask for, the others are not.
    before[:2, 0, 0, 0], before[2:, 0, 0, 0] = 0.95, 0.5
    targets = torch.zeros(4, dtype=torch.long)
    found = attacks.zero_gradients(Lengths(), before, targets)
    assert found.images == 0.5
    # of the last two only the first value has one.
    assert found.pixels == (8 + 6) / 16
    after = attacks.fgsm(Lengths(), before, targets, eps=0.1)
    assert torch.equal(after[:2], before[:2])
    assert not torch.equal(after[2:], before[2:])
    seen = attacks.zero_gradients(Lengths(), before, targets, loss=attacks.difference)
    assert seen.images == 0
    assert not torch.equal(attacks.fgsm(Lengths(), before, targets, eps=0.1, loss=attacks.difference)[:2], before[:2])


def test_a_transfer_is_the_attack_on_the_substitute() -> None:
    model, substitute, before, targets = linear(seed=3), linear(), images(), classes()
    assert torch.equal(
        attacks.transfer(model, before, targets, eps=0.1, substitute=substitute),
        attacks.fgsm(substitute, before, targets, eps=0.1),
    )
    assert torch.equal(
        attacks.transfer(model, before, targets, eps=0.1, substitute=substitute, by="pgd", steps=3),
        attacks.pgd(substitute, before, targets, eps=0.1, steps=3),
    )


def test_images_with_several_classes_are_attacked_too() -> None:
    torch.manual_seed(0)
    model, before = create_model("capsnet_small"), torch.rand(3, 1, 28, 28)
    targets = nn.functional.one_hot(torch.tensor([[0, 3], [1, 2], [5, 9]]), 10).sum(dim=1)
    after = attacks.fgsm(model, before, targets, eps=0.1)
    assert not torch.equal(after, before)


@pytest.mark.parametrize("kind", ["none", "standardise", "peer2022"])
def test_a_net_that_takes_other_values_is_attacked_in_grey_levels(kind: str) -> None:
    torch.manual_seed(0)
    inner = nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
    normalise = Normalisation(kind)
    model = attacks.in_grey_levels(inner, normalise)
    before, targets = images(4, side=8), classes(4)
    leaf = before.clone().requires_grad_()
    values = normalise(leaf * 255)
    nn.functional.cross_entropy(inner(values), targets).backward()
    assert leaf.grad is not None
    torch.testing.assert_close(model(before).scores, inner(values))
    moved = attacks.fgsm(model, before, targets, eps=EPS, bounds=None) - before
    clear = leaf.grad.abs() > leaf.grad.abs().max() * 1e-4
    assert torch.equal(moved.sign()[clear], leaf.grad.sign()[clear])


def test_a_net_that_takes_the_images_as_they_are_stays_itself() -> None:
    model = linear()
    assert attacks.in_grey_levels(model, Normalisation("unit")) is model


numbers = some.floats(0, 1, width=32)


@given(numbers, some.floats(-2, 3, width=32), some.floats(0, 2))
def test_what_is_brought_back_is_within_to_the_last_bit(image: float, found: float, eps: float) -> None:
    before, wish = torch.tensor([[[[image]]]]), torch.tensor([[[[found]]]])
    for bring in (within, within_ball):
        for bounds in ((0.0, 1.0), None):
            kept = bring(wish, before, eps, bounds)
            assert abs(float(kept) - float(before)) <= eps
            assert bounds is None or 0 <= float(kept) <= 1
            # what was within stays.
            if abs(found - image) <= eps * 0.999 and (bounds is None or 0 <= found <= 1):
                assert float(kept) == float(wish)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"eps": -0.1}, "eps=-0.1 is too small; expected a number of at least 0"),
        ({"images": torch.rand(2, 4, 4)}, "images has shape"),
        ({"images": torch.rand(2, 1, 4, 4) * 3}, r"images has values from .* expected them within bounds=\(0.0, 1.0\)"),
        (
            {"images": torch.zeros(2, 1, 4, 4, dtype=torch.uint8)},
            "images has dtype torch.uint8; expected a floating-point tensor",
        ),
        ({"targets": torch.tensor([1])}, "targets has 1 entries; expected 2, one for each image"),
        ({"bounds": (1.0, 0.0)}, r"bounds=\(1.0, 0.0\) is no range"),
    ],
)
@pytest.mark.parametrize("attack", [attacks.fgsm, attacks.pgd, attacks.universal])
def test_mistakes_are_named_in_one_line(attack: Callable[..., Tensor], changes: dict[str, Any], message: str) -> None:
    given_all = {"images": torch.rand(2, 1, 4, 4), "targets": torch.tensor([1, 0]), "eps": 0.1, **changes}
    with pytest.raises((ValueError, TypeError), match=message):
        attack(linear(), given_all.pop("images"), given_all.pop("targets"), **given_all)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"norm": "l1"}, "norm='l1' is unknown"),
        ({"steps": 0}, "steps=0 is too small"),
        ({"step_size": 0.0}, "step_size=0.0 is too small"),
    ],
)
def test_options_of_many_steps_are_checked(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        attacks.pgd(linear(), images(), classes(), eps=0.1, **options)


def test_a_substitute_must_know_the_classes() -> None:
    with pytest.raises(ValueError, match="substitute knows 2 classes; expected 3, those of the network that is attacked"):
        attacks.transfer(linear(), images(), classes(), eps=0.1, substitute=linear(classes=2))
    with pytest.raises(ValueError, match="by='cw' is unknown"):
        attacks.transfer(linear(), images(), classes(), eps=0.1, substitute=linear(), by="cw")
