r"""What peer2022 reasons about and does not measure: opposite inputs, cancelling gradients, and lengths that vanish.

All of it on 256 images that are spread evenly over the test images (the training numbers, where there are none), for the net as
it started and as it ended.

- *Opposites*: the paper assumes that deeper layers meet inputs and their negatives. Of all pairs of images of different
  classes, the cosine of what a layer is given: the lowest, and the share below −0.9.
- *Cancelling*: it supposes that gradients of an input and of its negative, of another class, cancel. With g(u, y) the gradient
  of one image's loss by all routing weights and y' another class: ``left`` = ‖g(u, y) + g(−u, y')‖ / (‖g(u, y)‖ + ‖g(−u, y')‖),
  0 where they cancel and 1 where they agree; and ``same`` = ‖g(−u, y') − g(u, y')‖ / ‖g(u, y')‖, 0 where the negative of an
  input is, to the net, the input itself. Means over 32 images: of a batch, gradients would cancel among themselves.
- *Lengths* of the capsules, and the gradients of the weights, layer by layer: what a bias may also prop up.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from capsella import functional as F
from capsella.analysis import gradient_norms, negation_gap
from capsella.data import ImageData
from capsella.data.augment import Normalisation
from capsella.functional import length
from capsella.models import CapsuleNet, Prediction, evaluating
from capsella.papers.peer2022.deciding import OPPOSITE
from capsella.train.config import TrainConfig
from capsella.train.evaluation import evaluate
from capsella.train.plan import Plan
from capsella.train.run import Run

IMAGES, SINGLE = 256, 32


def inside(run: Run, splits: Mapping[str, ImageData | None], device: torch.device) -> dict[str, Any]:
    """Look into the net as it started and as it ended."""
    plan = Plan.of(run.config["plan"])
    data = splits["validation"] or splits["test"] or splits["train"]
    train = splits["train"]
    if data is None or train is None:
        raise ValueError("the run has no data to measure it on")
    batch = data.batch(torch.linspace(0, len(data) - 1, IMAGES).round().long(), device=device)
    config = TrainConfig.of(run.config["train"])
    started = plan.build(train).to(device)
    found: dict[str, Any] = {}
    for when, model in (("start", started), ("end", run.model)):
        if not isinstance(model, CapsuleNet):
            raise TypeError(f"the run's network is {type(model).__name__}; expected one with capsules")
        found[when] = look(model, batch.images, batch.labels, config)
    return found


def clean(run: Run, splits: Mapping[str, ImageData | None], device: torch.device) -> dict[str, Any]:
    """Measure the net without the authors' fault: on test images that are standardised one by one, as training images are."""
    data = splits["validation"]
    if data is None:
        raise ValueError("the run was measured on no test images")
    found = evaluate(run.model, replace(data, normalise=Normalisation("standardise")), batch_size=512, device=device)
    return {"accuracy": found.accuracy, "images": found.images}


def look(model: CapsuleNet, images: Tensor, labels: Tensor, config: TrainConfig) -> dict[str, Any]:
    """Return lengths, gradients, opposites and cancellation of one net.

    Args:
        model: the net.
        images: [B, C, H, W].
        labels: [B].
        config: of its training, whose margins the loss has.
    """

    def loss(prediction: Prediction, targets: Tensor) -> Tensor:
        m_pos, m_neg = config.margins
        return F.margin_loss(prediction.scores, targets, m_pos=m_pos, m_neg=m_neg, down_weight=config.down_weight)

    with evaluating(model):
        capsules = [layer.detach() for layer in model.capsules(images)]
    primary = capsules[0]
    gradients = gradient_norms(model, images, labels, loss=loss)
    some = slice(None, None, max(1, len(images) // SINGLE))
    return {
        "lengths": [float(length(layer).mean()) for layer in capsules],
        "gradients": [float(layer.weights.mean()) for layer in gradients],
        "negative_share": float((primary < 0).double().mean()),
        "negation_gap": negation_gap(model.from_primary, primary),
        "opposites": [opposites(layer.flatten(1), labels) for layer in capsules[:-1]],
        "cancelling": cancelling(model, primary[some], labels[some], loss),
    }


def opposites(given: Tensor, labels: Tensor) -> dict[str, float | None]:
    """Return the lowest cosine of two inputs of different classes, the share of pairs below −0.9, and that of zero inputs.

    Args:
        given: [B, n], what a layer is given for each image.
        labels: [B].
    """
    # by the largest value first: squares of vanishing ones would be zero in any precision.
    wide = given.double()
    largest = wide.abs().amax(dim=1, keepdim=True)
    some = largest.flatten() > 0
    scaled = wide[some] / largest[some]
    rows, kept = scaled / scaled.norm(dim=1, keepdim=True), labels[some]
    zero = float((~some).double().mean())
    cosines = (rows @ rows.T)[torch.triu(kept[:, None] != kept[None, :], diagonal=1)]
    if not len(cosines):
        return {"lowest": None, "share": None, "zero": zero}
    return {"lowest": float(cosines.min()), "share": float((cosines < OPPOSITE).double().mean()), "zero": zero}


def cancelling(model: CapsuleNet, primary: Tensor, labels: Tensor, loss: Any) -> dict[str, float | None]:
    """Return what is left of the gradients of inputs and their negatives, and whether negatives are told from inputs.

    Args:
        model: the net.
        primary: its primary capsules [B, I, P].
        labels: [B]; the negative of an image is given the next class.
        loss: of a prediction.

    Returns:
        Means over the images; those without a gradient are left out, and None is said where none has one.
    """
    weights = [parameter for parameter in model.layers.parameters() if parameter.requires_grad]
    others = (labels + 1) % model.num_classes

    def gradient(poses: Tensor, targets: Tensor) -> Tensor:
        with evaluating(model), torch.enable_grad():
            value = loss(model.from_primary(poses), targets)
        found = torch.autograd.grad(value, weights, allow_unused=True)
        parts = [torch.zeros_like(w) if g is None else g for w, g in zip(weights, found, strict=True)]
        return torch.cat([part.double().flatten() for part in parts])

    left, same = [], []
    for k in range(len(primary)):
        pose, label, other = primary[k : k + 1], labels[k : k + 1], others[k : k + 1]
        own, negative, wrong = gradient(pose, label), gradient(-pose, other), gradient(pose, other)
        left += _ratio((own + negative).norm(), own.norm() + negative.norm())
        same += _ratio((negative - wrong).norm(), wrong.norm())
    return {"left": statistics.fmean(left) if left else None, "same": statistics.fmean(same) if same else None}


def _ratio(part: Tensor, whole: Tensor) -> list[float]:
    return [float(part / whole)] if float(whole) > 0 else []
