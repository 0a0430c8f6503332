"""What is written down about a run: its config, the events on the way, and the record at the end."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import platform
import subprocess
from collections.abc import Callable, Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from capsella import __numerics__, __version__
from capsella.data import ImageData
from capsella.data.places import whole_or_nothing
from capsella.errors import RunError

Event = dict[str, Any]
Listener = Callable[[Event], None]

CONFIG, METRICS, RECORD, CHECKPOINTS = "config.json", "metrics.jsonl", "record.json", "checkpoints"
_PACKAGES = ("numpy", "einops", "lightning", "lightning-fabric", "safetensors", "triton")


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write JSON whole or not at all."""
    with _said(path), whole_or_nothing(path) as file:
        file.write((json.dumps(content, indent=1, ensure_ascii=False, default=plain) + "\n").encode())


@contextlib.contextmanager
def _said(path: Path) -> Iterator[None]:
    """Say in one line that a file could not be written; checkpoints are no part of it."""
    try:
        yield
    except OSError as error:
        raise RunError(f"{path} could not be written ({error.strerror or error}); checkpoints are as they were") from error


def plain(value: Any) -> Any:
    """Return what JSON can hold for what it cannot: dataclasses by their fields, others by their text."""
    return {"kind": type(value).__name__, **vars(value)} if hasattr(value, "__dataclass_fields__") else str(value)


def as_json(content: Any) -> Any:
    """Return content as it comes back from a JSON file, so that what was written compares equal with what is meant."""
    return json.loads(json.dumps(content, default=plain))


def describe_data(data: ImageData | None) -> dict[str, Any] | None:
    """Return what identifies a split: name, options, size and digest."""
    if data is None:
        return None
    facts = {"name": data.name, "split": data.split, "options": data.options, "images": len(data), "digest": data.digest}
    return facts | {"image_shape": data.image_shape, "class_names": data.class_names}


def environment(device: torch.device, world_size: int) -> dict[str, Any]:
    """Return versions, commit and device."""
    on_gpu = device.type == "cuda"
    return {
        "capsella": __version__,
        "numerics": __numerics__,
        "commit": commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda if on_gpu else None,
        "packages": dict(_installed()),
        "device": torch.cuda.get_device_name(device)
        if on_gpu
        else f"{platform.machine()} CPU, {torch.get_num_threads()} threads",
        "device_type": device.type,
        "processes": world_size,
    }


@functools.cache
def _installed() -> tuple[tuple[str, str], ...]:
    """Return the versions of packages, which stay what they are while a program runs."""
    found = []
    for name in _PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found.append((name, metadata.version(name)))
    return tuple(found)


def commit() -> str | None:
    """Return the commit of the checkout this code runs from, with ``+`` where files differ from it.

    ``$CAPSELLA_COMMIT`` stands in where the code was copied without its history: as it would be found there, with its ``+`` if
    files differed. None where nothing is known.
    """
    given = os.environ.get("CAPSELLA_COMMIT")
    if given:
        return given
    package = Path(__file__).resolve().parents[1]
    try:
        top = _git(package, "rev-parse", "--show-toplevel")
        # an installed copy inside another project's checkout is no part of that project.
        if Path(top).resolve() / "src" / "capsella" != package:
            return None
        return _git(package, "rev-parse", "HEAD") + ("+" if _git(package, "status", "--porcelain", "--", ".") else "")
    except (OSError, subprocess.SubprocessError):
        return None


def _git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=True, timeout=10)
    return done.stdout.strip()


class MetricsFile:
    """Appends events to ``metrics.jsonl``, one line each, flushed at once.

    Args:
        path: of the file.
        after: keep what is there up to this step, so that a resumed run writes what an uninterrupted one would have.
        summed: whether the run was measured at that step, on its way; if it had only ended there, its last sum goes.
    """

    def __init__(self, path: Path, *, after: int = 0, summed: bool = False) -> None:
        self.path = path
        self._keep_up_to(after, summed)

    def _keep_up_to(self, step: int, summed: bool) -> None:
        events = [event for event in read_events(self.path) if event["step"] <= step]
        kept = [event for event in events if summed or event["step"] < step or not _is_partial(event)]
        with _said(self.path), whole_or_nothing(self.path) as file:
            file.write(b"".join(_line(event) for event in kept))

    def __call__(self, event: Event) -> None:
        """Write an event that belongs to a step; one that goes back takes back what came after."""
        if event["event"] == "rewind":
            self._keep_up_to(event["step"], True)
        elif "step" in event:
            with _said(self.path), self.path.open("ab") as file:
                file.write(_line(event))


def _is_partial(event: Event) -> bool:
    """Tell whether an event sums up a part of an epoch."""
    return bool(event["event"] == "epoch" and event["epoch"] % 1)


def _line(event: Event) -> bytes:
    return (json.dumps(event, ensure_ascii=False) + "\n").encode()


def read_events(path: Path) -> list[Event]:
    """Return the events of a metrics file; a last line that a killed process left unfinished does not count."""
    if not path.exists():
        return []
    events = []
    for line in path.read_bytes().split(b"\n"):
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if isinstance(event, dict) and "step" in event and "event" in event:
            events.append(event)
    return events
