r"""Sections 4.3 and 4.4: how nets on MNIST stand up to perturbations, made with LeNet's gradients and with their own.

- *Black box*: one step of size ε along the sign of LeNet's gradient, which is all that the attacker knows. ``main`` reads "8"
  as 8 of 255 grey levels. Four readings are faults of scale that are easily made: ``unscaled`` adds ±8 to images of values from
  0 to 1, ``clipped`` then brings them back to between 0 and 1, ``grey`` shows grey levels up to 255 to nets that know values up
  to 1, and ``twice`` divides by 255 once more. Where a net answers the same for all images, its accuracy is that class's share
  of them: the commonest answer is kept too.
- *White box*: FGSM with the net's own gradient, the share of gradients that are zero, and the perturbation of a generator that
  was trained on training images for 100 iterations, with a wrong class drawn for each. On the way it is measured on 2,000 test
  images, at the end on all.

LeNet is trained where it is needed, always from the same seed on the same images, for 2,000 steps or as many as the run had; a
digest of its weights tells whether two runs met the same one. As many test images are attacked as the run had steps.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from capsella.attacks import Prepared, add, attack_data, difference, fgsm, find_universal, in_grey_levels
from capsella.attacks.base import pieces
from capsella.data import ImageData
from capsella.models import as_prediction, create_model, evaluating
from capsella.train.config import TrainConfig
from capsella.train.evaluation import evaluate
from capsella.train.fitting import fit
from capsella.train.run import Run, loss_of

LEVELS = 255
EPS = 8 / LEVELS
BLACK_BOX: dict[str, tuple[float, tuple[float, float] | None]] = {
    "main": (EPS, (0.0, 1.0)),
    "unscaled": (8.0, None),
    "clipped": (8.0, (0.0, 1.0)),
    "grey": (EPS, (0.0, 1.0)),
    "twice": (EPS, (0.0, 1.0)),
}
"""ε and bounds of each reading, before images are shown in another scale."""

FAULTS = {"unscaled": 1.0, "clipped": 1.0, "grey": float(LEVELS), "twice": 1 / LEVELS}
"""Readings that are faults, and by what the nets see images multiplied."""

WHITE_BOX = {"main": EPS, "0.1": 0.1, "0.3": 0.3}
ITERATIONS = 100
# of a generator, between two looks; of test images, of which the end alone takes all.
_EVERY, _ON_THE_WAY = 25, 2000

LEAST_IMAGES = 500
SUBSTITUTE_STEPS = 2000
_BATCH = 250


def blackbox(run: Run, splits: Mapping[str, ImageData | None], device: torch.device) -> dict[str, Any]:
    """Attack a net with what fools LeNet."""
    train, test = parts(splits)
    count = images_for(run, test)
    images, classes = _in_grey(test, count, device)
    other, facts = substitute(train, test, steps_of(run), device)
    # of readings that differ in what nets are shown alone, the images are the same.
    made = {reading: _fooling(other, images, classes, *reading) for reading in set(BLACK_BOX.values())}
    found = {
        name: _transferred(scaled(run.model, FAULTS.get(name, 1.0)), images, made[reading], classes, reading[0])
        for name, reading in BLACK_BOX.items()
    }
    found["main"]["clean"] = accuracy(run.model, images, classes)
    attacked = accuracy(other, made[BLACK_BOX["main"]], classes)
    return {"images": len(images), "substitute": {**facts, "attacked": attacked}, **found}


def scaled(model: nn.Module, factor: float) -> nn.Module:
    """Return a net that sees its images multiplied."""
    return model if factor == 1 else Prepared(model, lambda images: images * factor)


def substitute(train: ImageData, test: ImageData, steps: int, device: torch.device) -> tuple[nn.Module, dict[str, Any]]:
    """Train LeNet, the same whoever asks for it, and return it with what it is.

    Args:
        train: images to learn from.
        test: images to measure it on.
        steps: of the run that it is for; LeNet has no more.
        device: where to.
    """
    config = TrainConfig(
        epochs=10**6,
        steps=min(steps, SUBSTITUTE_STEPS),
        batch_size=100,
        schedule="inverse",
        log_every=SUBSTITUTE_STEPS,
        device=device.type,
    )
    channels, height, width = train.image_shape
    torch.manual_seed(config.seed)
    model = create_model("lenet", image_size=(height, width), in_channels=channels, num_classes=train.num_classes)
    # on a GPU sums may else be taken in another order each time.
    with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True):
        fit(model, train, progress=False, **dataclasses.asdict(config))
    model.to(device).eval()
    accuracy = evaluate(model, test, batch_size=500, device=device).accuracy
    return model, {"steps": config.steps, "accuracy": accuracy, "digest": digest(model)}


def digest(model: nn.Module) -> str:
    """Return 16 letters that change with any weight."""
    found = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        found.update(name.encode())
        found.update(value.detach().cpu().contiguous().numpy().tobytes())
    return found.hexdigest()[:16]


def _fooling(other: nn.Module, images: Tensor, classes: Tensor, eps: float, bounds: tuple[float, float] | None) -> Tensor:
    """Return images that a step along the gradient of ``other`` has changed."""
    some = pieces(_BATCH, images, classes)
    return torch.cat([fgsm(other, part, own, eps=eps, bounds=bounds) for part, own in some])


def _transferred(model: nn.Module, before: Tensor, after: Tensor, classes: Tensor, eps: float) -> dict[str, Any]:
    said = answered(model, after)
    largest = float((after.double() - before.double()).abs().max())
    return {"eps": eps, "accuracy": _share(said == classes), "largest": largest, **commonest(said.cpu(), classes.cpu())}


def answered(model: nn.Module, images: Tensor) -> Tensor:
    """Return the class that a net sees in each image [n]."""
    with evaluating(model):
        return torch.cat([as_prediction(model(some)).scores.argmax(dim=1) for (some,) in pieces(_BATCH, images)])


def accuracy(model: nn.Module, images: Tensor, classes: Tensor) -> float:
    """Return the share of images of which a net sees the class."""
    return _share(answered(model, images) == classes)


def _share(right: Tensor) -> float:
    return float(right.double().mean())


def commonest(answers: Tensor, classes: Tensor) -> dict[str, Any]:
    """Return the commonest answer, how common it is, and which share of the images is of that class.

    Args:
        answers: a class for each image [n].
        classes: those that are right [n].

    Example:
        >>> commonest(torch.tensor([1, 1, 1, 2]), torch.tensor([1, 0, 2, 2]))
        {'answer': 1, 'answer_share': 0.75, 'class_share': 0.25}
    """
    answer = int(answers.bincount().argmax())
    shares = [float((part == answer).double().mean()) for part in (answers, classes)]
    return {"answer": answer, "answer_share": shares[0], "class_share": shares[1]}


def whitebox(run: Run, splits: Mapping[str, ImageData | None], device: torch.device) -> dict[str, Any]:
    """Attack a net with its own gradients, and with perturbations that a generator learns against it."""
    train, test = parts(splits)
    count = images_for(run, test)
    loss = loss_of(run)
    found: dict[str, Any] = {"images": count}
    for name, climbed in (("own", loss), ("difference", difference)):
        seen = attack_data(
            run.model, test, attack="fgsm", eps=EPS, images=count, batch_size=_BATCH, device=device, loss=climbed
        )
        figures = ("eps", "clean", "accuracy", "zero_images", "zero_pixels")
        found[name] = {figure: getattr(seen, figure) for figure in figures}
    (images, classes), learned = (_in_grey(data, count, device) for data in (test, train))
    few = torch.linspace(0, len(images) - 1, min(_ON_THE_WAY, len(images)), device=device).round().long()
    model = in_grey_levels(run.model, test.normalise)
    for name, eps in WHITE_BOX.items():
        made = find_universal(
            model,
            *learned,
            eps=eps,
            iterations=ITERATIONS,
            seed=int(run.config["train"]["seed"]),
            every=_EVERY,
            loss=loss,
            test=(images[few], classes[few]),
        )
        at_the_end = accuracy(model, add(images, made.perturbation, eps=eps), classes)
        found[f"universal-{name}"] = {
            "eps": eps,
            "iterations": list(made.iterations),
            "accuracies": [*made.accuracies[:-1], at_the_end],
            "on_the_way": len(few),
        }
    return found


def _in_grey(data: ImageData, count: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return images from all over a split with values from 0 to 1, and their classes."""
    chosen = torch.linspace(0, len(data) - 1, min(count, len(data))).round().long()
    batch = data.batch(chosen, device=device)
    images = batch.images
    if data.normalise.kind != "unit":
        raise ValueError(f"the run's images are normalised as {data.normalise.kind!r}; expected 'unit', as MNIST's are")
    return images, batch.labels


def parts(splits: Mapping[str, ImageData | None]) -> tuple[ImageData, ImageData]:
    """Return the images that a run learned from, and those that it was measured on."""
    train, test = splits["train"], splits["validation"]
    if train is None or test is None:
        raise ValueError("the run has no data to train on, or was measured on no test images")
    return train, test


def steps_of(run: Run) -> int:
    """Return how many steps a run took."""
    return int((run.record or {})["steps"])


def images_for(run: Run, data: ImageData) -> int:
    """Return how many test images are looked at: as many as the run had steps, so that short runs are measured shortly."""
    return min(len(data), max(LEAST_IMAGES, steps_of(run)))
