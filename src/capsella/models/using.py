"""How any network is used: what it returns, and how it is looked at without being changed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from capsella.models.base import Prediction


def as_prediction(output: Any) -> Prediction:
    """Take what a network returns: a ``Prediction``, or a tensor of logits."""
    if isinstance(output, Prediction):
        return replace(output, scores=output.scores.float())
    if isinstance(output, Tensor):
        return Prediction(output.float())
    raise TypeError(f"the network returned {type(output).__name__}; expected a Prediction or a tensor of logits [B, J]")


@contextlib.contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put a model into evaluation mode, without gradients, and every part of it back into the mode it was in."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, was_training in modes:
            module.training = was_training
