"""What a step minimises and what it counts: the loss by name, reconstruction, and how many images were right."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as tnf

from capsella import functional as F
from capsella.data import Batch, ImageData
from capsella.models import Model, Prediction, as_prediction
from capsella.train.config import TrainConfig

Tensors = tuple[Tensor, Tensor, Tensor | None, Tensor | None]

# for each loss, what the scores must be.
_NEEDS = {
    "margin": "lengths",
    "spread": "lengths",
    "length_cross_entropy": "lengths",
    "length_binary_cross_entropy": "lengths",
    "cross_entropy": "logits",
    "binary_cross_entropy": "logits",
}


class AsTensors(nn.Module):
    """A network that returns scores, class capsules and reconstruction as a tuple, which Fabric can carry between processes.

    Args:
        model: a ``Model``, which is told the classes to reconstruct, or any module that takes images.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor, classes: Tensor) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Run the network."""
        output = self.model(images, classes) if isinstance(self.model, Model) else self.model(images)
        prediction = as_prediction(output)
        return prediction.scores, prediction.capsules, prediction.reconstruction


def scores_are(model: nn.Module) -> str:
    """Return ``"lengths"``, ``"logits"`` or ``"probabilities"``; a module that does not say so is taken to give logits."""
    return str(getattr(model, "scores_are", "logits"))


def choose_loss(config: TrainConfig, model: nn.Module, *, several: bool) -> str:
    """Return the name of the loss, ``"auto"`` resolved; raise where the scores do not go with it.

    Args:
        config: names it.
        model: gives the scores.
        several: whether images show several classes.
    """
    kind = scores_are(model)
    if config.loss == "auto":
        if kind == "lengths":
            return "margin"
        return "binary_cross_entropy" if several or kind == "probabilities" else "cross_entropy"
    wrong = {"lengths": "logits", "logits": "lengths"}.get(kind)
    # only a registered model is known to mean what it says.
    if isinstance(model, Model) and _NEEDS[config.loss] == wrong:
        usable = ", ".join(repr(name) for name, need in _NEEDS.items() if need == kind)
        raise ValueError(f"loss={config.loss!r} needs {wrong}, and the scores are {kind}; expected one of {usable}")
    if several and config.loss in ("spread", "cross_entropy"):
        raise ValueError(f"loss={config.loss!r} is for one class an image; expected 'margin' or a binary cross entropy")
    return config.loss


@dataclass(frozen=True)
class Measure:
    """One forward pass: loss and number of right answers; called with tensors only, so that it can be compiled.

    Attributes:
        network: ``AsTensors`` of the model, perhaps inside Fabric's wrapper.
        model: the module behind ``network``; knows its logits.
        config: of the training.
        loss: resolved name.
    """

    network: Callable[..., Any]
    model: nn.Module
    config: TrainConfig
    loss: str

    def __call__(self, tensors: Tensors, progress: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mean loss and the number of images whose classes were all found.

        Args:
            tensors: of a batch, as ``tensors_of`` gives them.
            progress: share of the training that is over, a scalar.
        """
        images, labels, parts, part_labels = tensors
        classes = labels if part_labels is None else part_labels
        prediction = Prediction(*self.network(images, classes))
        loss = self.classification(prediction, labels, progress)
        if prediction.reconstruction is not None and self.config.reconstruction:
            drawn = prediction.reconstruction.float()
            # a decoder without a mask draws the whole image, whatever it is composed of.
            wanted = images if parts is None or drawn.ndim == images.ndim else parts
            error = F.reconstruction_loss(drawn, wanted, reduction=self.config.reconstruction_reduction)
            loss = loss + self.config.reconstruction * error
        return loss, right(prediction.scores.detach(), classes).sum()

    def classification(self, prediction: Prediction, labels: Tensor, progress: Tensor) -> Tensor:
        """Return the loss of the scores alone, without reconstructions."""
        scores = prediction.scores
        if self.loss == "margin":
            m_pos, m_neg = self.config.margins
            return F.margin_loss(scores, labels, m_pos=m_pos, m_neg=m_neg, down_weight=self.config.down_weight)
        if self.loss == "spread":
            first, last = self.config.spread
            # a tensor, so that a compiled step needs no other code when the margin has grown.
            return F.spread_loss(scores, labels, margin=first + (last - first) * progress)  # type: ignore[arg-type]
        if self.loss == "length_cross_entropy":
            return F.length_cross_entropy(scores, labels)
        if self.loss == "length_binary_cross_entropy":
            return F.length_binary_cross_entropy(scores, labels)
        logits = self.model.logits(prediction) if isinstance(self.model, Model) else scores
        if self.loss == "cross_entropy":
            return tnf.cross_entropy(logits, labels)
        rows = F.multi_hot(labels, logits.shape[1], dtype=logits.dtype)
        return tnf.binary_cross_entropy_with_logits(logits, rows, reduction="none").sum(dim=1).mean()


def right(scores: Tensor, classes: Tensor) -> Tensor:
    """Tell for each image whether its class, or all its n classes, have the highest scores.

    Args:
        scores: [B, J].
        classes: [B], or [B, n] distinct classes.

    Returns:
        Boolean [B].

    Example:
        >>> import torch
        >>> right(torch.tensor([[0.9, 0.1, 0.8], [0.9, 0.1, 0.8]]), torch.tensor([[2, 0], [0, 1]]))
        tensor([ True, False])
    """
    if classes.ndim == 1:
        return scores.argmax(dim=1) == classes
    highest = scores.topk(classes.shape[1], dim=1).indices
    return (highest.sort(dim=1).values == classes.sort(dim=1).values).all(dim=1)


def shows_several(data: ImageData) -> bool:
    """Tell whether images of the set show several classes at once."""
    return data.batch([0]).part_labels is not None


def tensors_of(batch: Batch) -> Tensors:
    """Return images, labels, and the parts with their labels where images are composed."""
    return batch.images, batch.labels, batch.parts, batch.part_labels
