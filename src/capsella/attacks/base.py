r"""What every attack needs: the loss that it climbs, its gradient by the images, and bounds that hold to the last bit.

An attack looks for images near the given ones, ‖x' − x‖ ≤ ε, on which the loss is larger, or, ``targeted``, that of other
classes smaller. Images are as the network takes them, with values within ``bounds``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from capsella.errors import check_number
from capsella.models import Model, Prediction, as_prediction, evaluating
from capsella.shapes import dims
from capsella.train.config import TrainConfig
from capsella.train.objectives import Measure, choose_loss

Loss = Callable[[Prediction, Tensor], Tensor]
"""Takes what a network says and the classes; the mean over the batch."""

Bounds = tuple[float, float] | None
"""Smallest and largest value of an image; None for values of any size."""

UNIT = (0.0, 1.0)


class Prepared(nn.Module):
    """A network with what its images go through first, so that an attack can be told in grey levels.

    Args:
        model: any network.
        prepare: from images within ``UNIT`` to those that the network takes; gradients must flow through it.
    """

    def __init__(self, model: nn.Module, prepare: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.model, self.prepare = model, prepare

    def forward(self, images: Tensor) -> Prediction:
        """Prepare images and run the network."""
        return answers(self.model, self.prepare(images))


def answers(model: nn.Module, images: Tensor) -> Prediction:
    """Return what a network says of images; nothing is drawn again, which an attack has no use for."""
    if isinstance(model, Model):
        return as_prediction(Prediction(*model.classify(images)))
    return as_prediction(model(images))


def own_loss(model: nn.Module, *, several: bool = False) -> Loss:
    """Return the usual loss of a network: margin for capsules, cross entropy for logits, binary for several classes.

    Args:
        model: any network.
        several: whether images show several classes.
    """
    inner = model.model if isinstance(model, Prepared) else model
    config = TrainConfig()
    measure = Measure(inner, inner, config, choose_loss(config, inner, several=several))
    return lambda prediction, targets: measure.classification(prediction, targets, prediction.scores.new_ones(()))


def difference(prediction: Prediction, targets: Tensor) -> Tensor:
    """Return how far the best wrong class is above the weakest right one, which is never flat where scores are not.

    Lengths that keep their margins have a margin loss of 0 and no gradient; this loss sees through that.

    Example:
        >>> difference(Prediction(torch.tensor([[0.9, 0.2, 0.5]])), torch.tensor([0]))
        tensor(-0.4000)
    """
    scores = prediction.scores
    rows = targets.bool() if targets.ndim == 2 else nn.functional.one_hot(targets, scores.shape[1]).bool()
    wrong = scores.masked_fill(rows, -torch.inf).amax(dim=1)
    return (wrong - scores.masked_fill(~rows, torch.inf).amin(dim=1)).mean()


LOSSES = {"own": None, "difference": difference}
"""Losses by name; None stands for ``own_loss`` of the network."""


def gradient(model: nn.Module, images: Tensor, targets: Tensor, loss: Loss | None) -> Tensor:
    """Return the gradient by the images, each of its own loss; the network's own gradients are left as they were.

    Args:
        model: any network, which is put into evaluation mode for it.
        images: [B, …].
        targets: classes [B] or multi-hot [B, J].
        loss: that is climbed; ``own_loss`` if None.
    """
    climbed = loss or own_loss(model, several=targets.ndim == 2)
    with evaluating(model), torch.enable_grad():
        leaf = images.detach().clone().requires_grad_()
        value = climbed(answers(model, leaf), targets) * len(images)
        (found,) = torch.autograd.grad(value, leaf)
    return found


def check_attack(images: Tensor, targets: Tensor, eps: float, bounds: Bounds) -> None:
    """Raise one line where images, classes, ε and bounds do not go together."""
    dims(images, "B C H W", name="images")
    if len(targets) != len(images):
        raise ValueError(f"targets has {len(targets)} entries; expected {len(images)}, one for each image")
    check_number("eps", eps, least=0)
    if bounds is None or not images.numel():
        return
    low, high = bounds
    if not low < high:
        raise ValueError(f"bounds={bounds!r} is no range; expected (smallest, largest), or None")
    least, most = float(images.min()), float(images.max())
    if least < low or most > high:
        raise ValueError(
            f"images has values from {least:.3g} to {most:.3g}; expected them within bounds={bounds!r}, or bounds=None"
        )


def pieces(size: int, *tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Cut tensors of one length into pieces of ``size``."""
    for start in range(0, len(tensors[0]), size):
        yield tuple(tensor[start : start + size] for tensor in tensors)


def within(found: Tensor, images: Tensor, eps: float, bounds: Bounds) -> Tensor:
    """Return the nearest images with ‖x' − x‖∞ ≤ ``eps`` and values within ``bounds``, exactly.

    Example:
        >>> within(torch.tensor([0.9, 0.4]), torch.tensor([0.5, 0.5]), 0.25, None)
        tensor([0.7500, 0.4000])
    """
    exact = images.double()
    low, high = (exact - eps).to(images.dtype), (exact + eps).to(images.dtype)
    # rounded to the images' dtype an end may lie outside: then the next number within.
    low = torch.where(exact - low.double() > eps, torch.nextafter(low, torch.full_like(low, torch.inf)), low)
    high = torch.where(high.double() - exact > eps, torch.nextafter(high, torch.full_like(high, -torch.inf)), high)
    kept = torch.minimum(torch.maximum(found, low), high)
    # images lie within the bounds, so nothing moves away from its image.
    return kept if bounds is None else kept.clamp(*bounds)


def within_ball(found: Tensor, images: Tensor, eps: float, bounds: Bounds) -> Tensor:
    """Return the nearest images with ‖x' − x‖₂ ≤ ``eps`` for each, then within ``bounds``; the length holds exactly."""
    exact = images.double()
    kept, apart = found, found.double() - exact
    # rounding to the images' dtype may lengthen a change by a little: then the ball is taken a little smaller.
    for slack in (0.0, 1e-6, 1e-4, 1.0):
        length = apart.flatten(1).norm(dim=1)[:, None, None, None]
        apart = torch.where(length > eps, apart * ((1 - slack) * eps / length), apart)
        kept = (exact + apart).to(images.dtype)
        if bounds is not None:
            kept = kept.clamp(*bounds)
        apart = kept.double() - exact
        if bool((apart.flatten(1).norm(dim=1) <= eps).all()):
            break
    return kept
