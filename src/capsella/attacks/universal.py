r"""One perturbation for all images, made by a generator that learns to be mistaken for other classes (chen2019, section V).

    δ = ε · tanh G(z),   z ~ U(0, 1)¹⁰⁰,   G descends L(x + δ, ỹ) with a wrong class ỹ drawn for every image

The network is known and does not change. The paper gives no sizes, bound or optimiser: G is a dense layer to 128 channels on an
eighth of the image's side and three transposed convolutions to 64, 32 and C channels, with batch normalisation between them;
it learns by Adam.

Departures: a new z for every step, as generators are trained; the perturbation that is kept is that of one z.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from capsella.attacks.base import UNIT, Bounds, Loss, answers, check_attack, own_loss, pieces, within
from capsella.errors import check_count, check_number
from capsella.models import evaluating
from capsella.train.objectives import right

NOISE = 100


@dataclass(frozen=True, eq=False)
class Universal:
    """What ``find_universal`` found.

    Attributes:
        perturbation: δ [C, H, W].
        iterations: after how many steps accuracy was measured, 0 first.
        accuracies: with δ added, at each of them.
    """

    perturbation: Tensor
    iterations: tuple[int, ...]
    accuracies: tuple[float, ...]


class PerturbationGenerator(nn.Module):
    """From noise to one image-sized perturbation of values up to ε.

    Args:
        image_shape: (C, H, W).
        eps: ε.
    """

    def __init__(self, image_shape: tuple[int, int, int], eps: float) -> None:
        super().__init__()
        channels, self.height, self.width = image_shape
        self.eps, self.sides = eps, (-(-self.height // 8), -(-self.width // 8))
        if self.sides == (1, 1):
            # a batch of one value a channel has no variance.
            raise ValueError(f"images of {self.height}×{self.width} are too small for a generator; expected more than 8 pixels")
        self.dense = nn.Linear(NOISE, 128 * self.sides[0] * self.sides[1])
        self.grow = nn.Sequential(
            nn.BatchNorm2d(128),
            nn.ReLU(),
            nn.ConvTranspose2d(128, 64, 4, stride=2, padding=1),
            nn.BatchNorm2d(64),
            nn.ReLU(),
            nn.ConvTranspose2d(64, 32, 4, stride=2, padding=1),
            nn.BatchNorm2d(32),
            nn.ReLU(),
            nn.ConvTranspose2d(32, channels, 4, stride=2, padding=1),
        )

    def forward(self, noise: Tensor) -> Tensor:
        """Return δ [C, H, W] of noise [1, 100]."""
        grown = self.grow(self.dense(noise).unflatten(1, (128, *self.sides)))
        found: Tensor = self.eps * torch.tanh(grown[0, :, : self.height, : self.width])
        return found


def find_universal(
    model: nn.Module,
    images: Tensor,
    targets: Tensor,
    *,
    eps: float,
    iterations: int = 100,
    batch_size: int = 128,
    lr: float = 1e-3,
    every: int = 10,
    seed: int = 0,
    bounds: Bounds = UNIT,
    loss: Loss | None = None,
    test: tuple[Tensor, Tensor] | None = None,
) -> Universal:
    """Train a generator against a network, and return its perturbation.

    Args:
        model: any network; it is left as it was.
        images: [N, C, H, W] to learn from, as the network takes them.
        targets: their classes [N].
        eps: ε, the largest change of a value.
        iterations: steps of the generator, a batch each.
        batch_size: images of a batch.
        lr: of Adam.
        every: steps between two measurements of accuracy.
        seed: of weights, noise, batches and wrong classes.
        bounds: that attacked images are kept within.
        loss: that is descended towards the wrong classes; the network's usual one if None.
        test: images and classes to measure accuracy on; those to learn from if None.
    """
    check_attack(images, targets, eps, bounds)
    if targets.ndim != 1:
        raise ValueError(f"targets has shape {list(targets.shape)}; expected [N], one class an image")
    for name, value in (("iterations", iterations), ("batch_size", batch_size), ("every", every)):
        check_count(name, value)
    check_number("lr", lr, above=0)
    if not len(images):
        raise ValueError("images is empty; expected at least one image")
    looks = tuple(sorted({*range(0, iterations + 1, every), iterations}))
    draw = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[images.device] if images.is_cuda else []):
        torch.manual_seed(seed)
        C, H, W = images.shape[1:]
        generator = PerturbationGenerator((C, H, W), eps).to(images)
    noise = torch.rand(1, NOISE, generator=draw).to(images)
    accuracies = []
    with evaluating(model), torch.enable_grad():
        steps = _steps(generator, model, images, targets, draw, bounds, loss, batch_size, lr)
        for number in range(iterations + 1):
            if number in looks:
                delta = _perturbation(generator, noise)
                accuracies.append(_accuracy(model, *(test or (images, targets)), delta, eps, bounds, batch_size))
            if number < iterations:
                next(steps)
    return Universal(_perturbation(generator, noise), looks, tuple(accuracies))


def _steps(
    generator: PerturbationGenerator,
    model: nn.Module,
    images: Tensor,
    targets: Tensor,
    draw: torch.Generator,
    bounds: Bounds,
    loss: Loss | None,
    batch_size: int,
    lr: float,
) -> Iterator[None]:
    """Take a step of the generator each time that one is asked for."""
    learned = list(generator.parameters())
    descent = torch.optim.Adam(learned, lr=lr)
    descended = loss or own_loss(model)
    classes = answers(model, images[:1]).scores.shape[1]
    for chosen in _batches(len(images), batch_size, draw):
        some, own = images[chosen.to(images.device)], targets[chosen.to(targets.device)]
        # another class than its own, each as likely.
        wrong = (own + torch.randint(1, classes, (len(chosen),), generator=draw).to(own.device)) % classes
        attacked = some + generator(torch.rand(1, NOISE, generator=draw).to(images))
        if bounds is not None:
            attacked = attacked.clamp(*bounds)
        # not backward(), which would leave gradients in the network that is attacked.
        slopes = torch.autograd.grad(descended(answers(model, attacked), wrong), learned)
        for parameter, slope in zip(learned, slopes, strict=True):
            parameter.grad = slope
        descent.step()
        yield


def universal(
    model: nn.Module, images: Tensor, targets: Tensor, *, eps: float, bounds: Bounds = UNIT, **options: object
) -> Tensor:
    """Return images with one perturbation for all of them added, found on them; options as for ``find_universal``."""
    found = find_universal(model, images, targets, eps=eps, bounds=bounds, **options)  # type: ignore[arg-type]
    return add(images, found.perturbation, eps=eps, bounds=bounds)


def add(images: Tensor, perturbation: Tensor, *, eps: float, bounds: Bounds = UNIT) -> Tensor:
    """Return images with a perturbation [C, H, W] added, within ``eps`` and ``bounds``."""
    return within(images + perturbation, images, eps, bounds)


def _perturbation(generator: PerturbationGenerator, noise: Tensor) -> Tensor:
    with torch.no_grad():
        found = generator(noise)
    return within(found, torch.zeros_like(found), generator.eps, None)


def _batches(count: int, batch_size: int, draw: torch.Generator) -> Iterator[Tensor]:
    while True:
        for (chosen,) in pieces(batch_size, torch.randperm(count, generator=draw)):
            yield chosen


def _accuracy(
    model: nn.Module, images: Tensor, targets: Tensor, delta: Tensor, eps: float, bounds: Bounds, batch_size: int
) -> float:
    found = 0
    with torch.no_grad():
        for some, classes in pieces(batch_size, images, targets):
            found += int(right(answers(model, add(some, delta, eps=eps, bounds=bounds)).scores, classes).sum())
    return found / len(images)
