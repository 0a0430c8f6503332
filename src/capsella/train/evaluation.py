"""How good a network is on a split: accuracy, confusion matrix, calibration."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from capsella.data import ImageData
from capsella.models import as_prediction, evaluating
from capsella.train.objectives import right, scores_are

BINS = 15


@dataclass(frozen=True)
class Evaluation:
    """What ``evaluate`` found.

    Attributes:
        accuracy: share of images whose class, or all whose classes, have the highest scores.
        images: how many.
        confusion: counts [J, J], true class by predicted class, J the classes of the data or the network's where it has more;
            None where images show several classes.
        calibration_error: expected calibration error: mean distance of confidence and accuracy over 15 bins, weighted by
            their images. Confidence is the winning capsule's length (at most 1), the softmax of logits, or the probability.
            NaN where images show several classes.
        calibration: per bin (mean confidence, accuracy, images); empty bins are left out.
    """

    accuracy: float
    images: int
    confusion: Tensor | None
    calibration_error: float
    calibration: tuple[tuple[float, float, int], ...]

    def as_dict(self) -> dict[str, Any]:
        """Return everything, as JSON can hold it."""
        confusion = None if self.confusion is None else self.confusion.tolist()
        error = None if self.confusion is None else self.calibration_error
        return {
            **vars(self),
            "confusion": confusion,
            "calibration_error": error,
            "calibration": [list(x) for x in self.calibration],
        }


def evaluate(
    model: nn.Module,
    data: ImageData,
    *,
    batch_size: int = 256,
    device: torch.device | str | None = None,
    share: tuple[int, int] = (0, 1),
    reduce: Callable[[Tensor], Tensor] = lambda tensor: tensor,
    context: Callable[[], Any] = contextlib.nullcontext,
) -> Evaluation:
    """Measure a network on a whole split.

    Args:
        model: takes images and gives a ``Prediction`` or logits.
        data: the split.
        batch_size: images at once; the result does not depend on it.
        device: where to run; where the model's parameters are if None.
        share: this process and their number.
        reduce: adds a tensor up over the processes.
        context: entered around every forward pass, for autocast.

    Example:
        >>> import capsella
        >>> data = capsella.data.from_tensors(torch.rand(8, 1, 28, 28), torch.arange(8), split="test")
        >>> evaluate(capsella.create_model("convnet_small"), data).images
        8
    """
    place = next(model.parameters()).device if device is None else torch.device(device)
    with evaluating(model):
        looks = [_look(model, batch, context) for batch in data.batches(batch_size, device=place, share=share) if len(batch)]
    # a network may know more classes than the data show, and answer with one of them.
    J = max([data.num_classes, getattr(model, "num_classes", 0), *(scores.shape[1] for scores, _ in looks)])
    sums = torch.zeros(2, dtype=torch.float64, device=place)
    confusion = torch.zeros(J, J, dtype=torch.float64, device=place)
    bins = torch.zeros(BINS, 3, dtype=torch.float64, device=place)
    several = data.batch([0]).part_labels is not None
    # one process of several may have no image of a small split.
    if looks:
        # all at once: what is counted is small, and a GPU would wait for every batch of it.
        scores, classes = (torch.cat(parts) for parts in zip(*looks, strict=True))
        hits = right(scores, classes)
        sums += torch.stack((hits.sum(), torch.tensor(len(hits), device=place)))
        if not several:
            cells = classes * J + scores.argmax(dim=1)
            confusion += torch.bincount(cells, minlength=J * J).reshape(J, J)
            bins += _binned(confidence(scores, scores_are(model)), hits)
    sums, confusion, bins = reduce(sums), reduce(confusion), reduce(bins)
    total, count = sums.tolist()
    rows = tuple((c / n, h / n, int(n)) for c, h, n in bins.tolist() if n)
    error = sum(abs(c - h) * n for c, h, n in rows) / count if rows else float("nan")
    return Evaluation(total / count, int(count), None if several else confusion.long().cpu(), error, rows)


def _look(model: nn.Module, batch: Any, context: Callable[[], Any]) -> tuple[Tensor, Tensor]:
    with context():
        scores = as_prediction(model(batch.images)).scores
    return scores, batch.labels if batch.part_labels is None else batch.part_labels


def confidence(scores: Tensor, kind: str) -> Tensor:
    """Return how sure each answer is, [B] from 0 to 1; arguments as for ``certainties``."""
    return certainties(scores, kind).amax(dim=1)


def certainties(scores: Tensor, kind: str) -> Tensor:
    """Return how sure a network is of each class, [B, J] up to 1: lengths and probabilities as they are, logits by softmax.

    Args:
        scores: [B, J].
        kind: ``"lengths"``, ``"logits"`` or ``"probabilities"``, as ``scores_are`` tells.
    """
    return scores.softmax(dim=1) if kind == "logits" else scores.clamp(max=1)


def _binned(confidence: Tensor, hits: Tensor) -> Tensor:
    """Return per bin the sums of confidence, of right answers, and the number of images."""
    which = (confidence * BINS).long().clamp(0, BINS - 1)
    ones = torch.ones_like(confidence, dtype=torch.float64)
    columns = (confidence.double(), hits.double(), ones)
    return torch.stack(
        [torch.zeros(BINS, dtype=torch.float64, device=which.device).index_add(0, which, c) for c in columns], dim=1
    )
