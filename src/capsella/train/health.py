"""Where a network first went non-finite."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from capsella.errors import RunError
from capsella.routing import Routed
from capsella.train.checkpoint import CheckpointError, read_newest


class NonFiniteLoss(RunError):
    """The loss of a step is infinite or no number; the message says where it began and what is left of the run."""


def non_finite(what: str, checkpoints: Path | None) -> NonFiniteLoss:
    """Return the error that says what happened and which checkpoint to go on from.

    Args:
        what: the step and where it began.
        checkpoints: their folder, None if none are kept.
    """
    last = "no checkpoint was kept: give a folder to have them"
    if checkpoints is not None:
        try:
            last = f"the last good checkpoint is {read_newest(checkpoints).path}"
        except CheckpointError:
            last = "there is no checkpoint yet"
    return NonFiniteLoss(f"{what}; {last}")


def first_non_finite(model: nn.Module, run: Callable[[], object], inputs: Tensor) -> str:
    """Say in a few words where values first went non-finite in a forward pass.

    Args:
        model: whose modules are watched.
        run: calls the network once.
        inputs: the images it is called with.
    """
    if not _finite(inputs):
        return "the images themselves"
    found: list[str] = []

    def look(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            if not found and not all(map(_finite, _tensors(output))):
                found.append(name)

        return hook

    hooks = [module.register_forward_hook(look(name)) for name, module in model.named_modules() if name]
    try:
        with torch.no_grad():
            run()
    finally:
        for hook in hooks:
            hook.remove()
    if not found:
        return "the loss itself: every layer's activations are finite"
    spoilt = [name for name, parameter in model.named_parameters() if not _finite(parameter)]
    weights = f" ({spoilt[0]} was non-finite already: a gradient of the step before was)" if spoilt else ""
    return f"the activations of layer {found[0]!r}{weights}"


def _finite(tensor: Tensor) -> bool:
    return bool(tensor.isfinite().all())


def _tensors(output: Any) -> list[Tensor]:
    if isinstance(output, Tensor):
        return [output]
    if isinstance(output, Routed):
        return [output.poses, output.activations]
    if isinstance(output, tuple | list):
        return [tensor for each in output for tensor in _tensors(each)]
    return []
