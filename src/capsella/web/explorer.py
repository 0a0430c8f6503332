"""All runs of one explorer: found by key, their networks asked one after the other, their test sets looked at meanwhile."""

from __future__ import annotations

import itertools
import logging
import re
from collections.abc import Sequence
from pathlib import Path

from capsella import __version__
from capsella.errors import unknown_name
from capsella.web.curves import plots
from capsella.web.examining import Examination
from capsella.web.guard import Caps
from capsella.web.net import Net
from capsella.web.schemas import About, Limits, Training
from capsella.web.trouble import NotThere
from capsella.web.views import Views
from capsella.web.worker import Worker

_log = logging.getLogger(__name__)


class Explorer:
    """The runs that were named, and the one thread that asks them.

    Args:
        nets: one for each run, with keys of their own; see ``keys_of``.
        caps: how much a request may bring.

    Example:
        >>> import capsella, torch
        >>> from capsella.data import from_tensors
        >>> images = torch.randint(0, 256, (4, 1, 28, 28), dtype=torch.uint8)
        >>> data = from_tensors(images, torch.arange(4), split="test")
        >>> with Explorer([Net("small", capsella.create_model("capsnet_small"), data)]) as explorer:
        ...     explorer.about().runs[0].layers[0].capsules
        72
    """

    def __init__(self, nets: Sequence[Net], *, caps: Caps | None = None) -> None:
        if not nets:
            raise ValueError("nets is empty; expected at least one run")
        self.caps = caps or Caps()
        self.nets = {net.key: net for net in nets}
        if len(self.nets) < len(nets):
            raise ValueError(f"nets have the keys {[net.key for net in nets]}; expected each once")
        self.views = {key: Views(net) for key, net in self.nets.items()}
        self.examinations = {key: Examination(net, f"/runs/{key}/doctor") for key, net in self.nets.items()}
        for net in nets:
            net.siblings = self.nets
        self.worker = Worker(self._look_on)

    def __enter__(self) -> Explorer:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Ask nothing more."""
        self.worker.close()

    @property
    def is_examining(self) -> bool:
        """Whether a doctor's report is being made, which nothing ends early."""
        return any(examination.is_working for examination in self.examinations.values())

    def net(self, key: str) -> Net:
        """Return a run, or say which there are."""
        return self.nets[self.key(key)]

    def ask(self, key: str) -> Views:
        """Return what answers questions about a run."""
        return self.views[self.key(key)]

    def examination(self, key: str) -> Examination:
        """Return a run's report."""
        return self.examinations[self.key(key)]

    def curves(self, key: str) -> Training:
        """Return what became of a run while it was trained."""
        return Training(plots=plots(self.net(key).events))

    def key(self, key: str) -> str:
        """Return a key that there is, or say which there are."""
        if key not in self.nets:
            raise NotThere(unknown_name("run", key[:100], self.nets))
        return key

    def about(self) -> About:
        """Return what there is to explore."""
        limits = Limits(upload_bytes=self.caps.upload_bytes, upload_pixels=self.caps.upload_pixels)
        return About(version=__version__, runs=[net.info() for net in self.nets.values()], limits=limits)

    def _look_on(self) -> bool:
        """Look at a few test images of the run of which fewest were looked at."""
        left = [net for net in self.nets.values() if not net.survey.is_complete]
        if left:
            net = min(left, key=lambda net: net.survey.done)
            try:
                net.survey.go_on()
            except Exception:
                # nobody waits for it: questions go on being answered, and the other runs looked at.
                net.survey.give_up()
                _log.exception("the test images of %s can be looked at no further", net.key)
        return bool(left)


def keys_of(folders: Sequence[Path]) -> list[str]:
    """Return a short name for each folder, fit for an address; folders of the same name get their parents' too, or a number.

    Example:
        >>> keys_of([Path("runs/a/seed 0"), Path("runs/b/seed 0"), Path("runs/twin")])
        ['a-seed-0', 'b-seed-0', 'twin']
    """
    names = [_slug(folder.resolve().name) for folder in folders]
    names = [
        _slug(f"{folder.resolve().parent.name}-{name}") if names.count(name) > 1 else name
        for folder, name in zip(folders, names, strict=True)
    ]
    keys: list[str] = []
    for name in names:
        numbered = (name if number == 1 else f"{name}-{number}" for number in itertools.count(1))
        keys.append(next(key for key in numbered if key not in keys))
    return keys


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9_]+", "-", text.lower()).strip("-")[:60] or "run"
