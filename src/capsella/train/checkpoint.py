"""Checkpoints that are whole or not there: safetensors and JSON in a folder that is renamed into place.

    RUN/checkpoints/step-000001234/model.safetensors    weights and buffers
                                   state.safetensors    optimiser, random state, running sums
                                   state.json           where the run was, and the checksums of both files

A folder under its final name has been flushed to disk with everything in it. The one before stays until then, and one
longer, so that a damaged file costs a few steps and no run.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from capsella.errors import RunError

_log = logging.getLogger(__name__)

FORMAT = 1
KEPT = 2
_MODEL, _STATE, _FACTS = "model.safetensors", "state.safetensors", "state.json"


class CheckpointError(RunError):
    """A checkpoint that cannot be written, read or used; one line that says which and what is left."""


@dataclass(frozen=True)
class Checkpoint:
    """What a checkpoint holds.

    Attributes:
        path: its folder.
        weights: the model's state dict.
        tensors: everything else that is a tensor, by name.
        facts: everything else.
    """

    path: Path
    weights: dict[str, Tensor]
    tensors: dict[str, Tensor]
    facts: dict[str, Any]


def write_checkpoint(
    folder: Path, step: int, weights: Mapping[str, Tensor], tensors: Mapping[str, Tensor], facts: Mapping[str, Any]
) -> Path:
    """Write a checkpoint and remove those that are no longer needed.

    Args:
        folder: of all checkpoints of a run.
        step: steps done.
        weights: the model's state dict.
        tensors: other tensors by name.
        facts: the rest, as JSON can hold it.

    Raises:
        CheckpointError: it could not be written, for want of space or rights; earlier ones are untouched.
    """
    final = folder / f"step-{step:09d}"
    temporary = folder / f".{final.name}.part"
    try:
        # what a killed process left is of no use to anyone.
        for left_over in folder.glob(".step-*.part"):
            shutil.rmtree(left_over, ignore_errors=True)
        temporary.mkdir(parents=True)
        sums = {name: _write(temporary / name, pack(part)) for name, part in ((_MODEL, weights), (_STATE, tensors))}
        content = {"format": FORMAT, "step": step, "sha256": sums, **facts}
        _write(temporary / _FACTS, json.dumps({**content, "own_sha256": _digest(content)}, indent=1).encode())
        _flush_folder(temporary)
        if final.exists():
            # the same step again, after a resume: what lies there may be what was found damaged.
            shutil.rmtree(final)
        temporary.rename(final)
        _flush_folder(folder)
    except OSError as error:
        shutil.rmtree(temporary, ignore_errors=True)
        kept = _listed(folder)
        left = f"the last one, {kept[-1]}, is whole" if kept else "there is none yet"
        raise CheckpointError(f"{final} could not be written ({error.strerror or error}); {left}") from error
    kept = _listed(folder)
    here = kept.index(final)
    # a later one than this was passed over as damaged, and would stand where a sound one should.
    for other in (*kept[: max(0, here + 1 - KEPT)], *kept[here + 1 :]):
        shutil.rmtree(other, ignore_errors=True)
    return final


def read_newest(folder: Path) -> Checkpoint:
    """Return the newest sound checkpoint; a damaged one is passed over with a warning.

    Raises:
        CheckpointError: there is none.
    """
    damaged: list[str] = []
    for path in reversed(_listed(folder)):
        try:
            found = read_checkpoint(path)
        except CheckpointError as error:
            damaged.append(str(error))
            continue
        for each in damaged:
            _log.warning("%s; going back to %s", each, path.name)
        return found
    if damaged:
        raise CheckpointError(f"{damaged[0]}; no sound checkpoint is left in {folder}")
    raise CheckpointError(f"{folder} holds no checkpoint, the run did not come to its first one; begin it in another folder")


def read_checkpoint(path: Path) -> Checkpoint:
    """Read one checkpoint; raise ``CheckpointError`` unless every byte is as it was written."""
    from safetensors.torch import load

    try:
        facts = json.loads((path / _FACTS).read_bytes())
        contents = {name: (path / name).read_bytes() for name in (_MODEL, _STATE)}
        sums, own = facts["sha256"], facts.pop("own_sha256", None)
        fits = facts["format"] == FORMAT
        wrong = [name for name, content in contents.items() if hashlib.sha256(content).hexdigest() != sums[name]]
        wrong += [_FACTS] if _digest(facts) != own else []
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        reason = f"{error.strerror}: {_name(error)}" if isinstance(error, OSError) else f"{type(error).__name__} in {_FACTS}"
        raise CheckpointError(f"{path} is damaged ({reason})") from error
    if not fits:
        raise CheckpointError(f"{path} has format {facts['format']!r}; this version of capsella reads {FORMAT}")
    if wrong:
        raise CheckpointError(f"{path} is damaged ({wrong[-1]} is not what was written)")
    return Checkpoint(path, load(contents[_MODEL]), load(contents[_STATE]), facts)


def restore_weights(model: nn.Module, weights: Mapping[str, Tensor], *, where: str) -> None:
    """Put weights into a model; one line where they are another model's.

    Args:
        model: receives them.
        weights: a state dict.
        where: what the message calls them.
    """
    own = model.state_dict()
    for name in [*own, *weights]:
        if name not in weights or name not in own:
            missing = "the checkpoint has no" if name not in weights else "the model has no"
            raise CheckpointError(f"{where} is of another model than this {_called(model)}: {missing} {name!r}")
        if own[name].shape != weights[name].shape:
            shapes = f"{list(weights[name].shape)}, the model's {list(own[name].shape)}"
            raise CheckpointError(f"{where} is of another model than this {_called(model)}: its {name!r} has shape {shapes}")
    model.load_state_dict(dict(weights))


def _called(model: nn.Module) -> str:
    config = getattr(model, "config", None)
    name = config.get("name") if isinstance(config, dict) else None
    return str(name or type(model).__name__)


def _digest(content: Mapping[str, Any]) -> str:
    """Return what tells whether the facts are as they were written: a flipped bit may leave them sound JSON."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _name(error: OSError) -> str:
    return Path(str(error.filename)).name


def pack(tensors: Mapping[str, Tensor]) -> bytes:
    """Return tensors in safetensors' format."""
    from safetensors.torch import save

    # copies: weights that two layers share are one memory, which safetensors refuses to guess about.
    return save({name: tensor.detach().cpu().clone().contiguous() for name, tensor in tensors.items()})


def _write(path: Path, content: bytes) -> str:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    return hashlib.sha256(content).hexdigest()


def _flush_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _listed(folder: Path) -> list[Path]:
    return sorted(folder.glob("step-*"))
