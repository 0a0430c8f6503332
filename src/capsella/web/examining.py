"""The doctor's report of a run, made when somebody asks for it, in a thread and on a copy of the network of its own."""

from __future__ import annotations

import dataclasses
import logging
import threading
from collections.abc import Callable

import torch

from capsella.analysis import diagnose
from capsella.report.doctor import doctor_page
from capsella.train import Run
from capsella.train.run import loss_of
from capsella.web.net import Net
from capsella.web.schemas import DoctorState
from capsella.web.trouble import Trouble

IMAGES, SAMPLE = 2_000, 256
"""Test images that are examined, and of them those that are also turned, negated, and routed otherwise."""

_log = logging.getLogger(__name__)

# one at a time: an examination takes all that the machine has.
_turn = threading.Lock()


def examined(net: Net) -> str:
    """Return the doctor's page of a run, from images all over its test set."""
    if net.folder is None:
        raise Trouble(f"run {net.key!r} lies in no folder; expected one that was written to disk")
    if not len(net.data):
        raise Trouble(f"run {net.key!r} has no images to be examined with: {net.away}")
    # weights are read anew: what the page shows meanwhile must not be changed under its hands.
    run = Run.load(net.folder)
    facts = {"run": net.title, "data": net.data.name, "split": net.data.split, "model": dict(run.config["model"])}
    chosen = torch.linspace(0, len(net.data) - 1, min(len(net.data), IMAGES)).round().long()
    images, classes = net.data.batch(chosen)
    # classes of another kind than its own say nothing about its answers.
    labels = classes if net.judges else None
    found = diagnose(run.model, images, labels, loss=loss_of(run), events=run.events, facts=facts, sample=SAMPLE)
    return doctor_page(dataclasses.replace(found, class_names=tuple(net.class_names)).as_dict())


class Examination:
    """One run's report: begun once, and then there.

    Args:
        net: the run.
        page: where the page will be.
        examine: makes the page.
    """

    def __init__(self, net: Net, page: str, examine: Callable[[Net], str] = examined) -> None:
        self.net, self.page, self._examine = net, page, examine
        self.html: str | None = None
        self._problem: str | None = None
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def begin(self) -> DoctorState:
        """Begin, unless it has begun or is done; after a failure it begins anew."""
        with self._lock:
            if self.html is None and not self.is_working:
                self._problem = None
                self._thread = threading.Thread(target=self._work, name="capsella-doctor", daemon=True)
                self._thread.start()
        return self.state()

    def state(self) -> DoctorState:
        """Say how far it is."""
        if self.html is not None:
            return DoctorState(state="ready", page=self.page)
        if self._problem is not None:
            return DoctorState(state="failed", page=self.page, problem=self._problem)
        return DoctorState(state="none" if self._thread is None else "working", page=self.page)

    @property
    def is_working(self) -> bool:
        """Whether it is being made."""
        return self._thread is not None and self._thread.is_alive()

    def _work(self) -> None:
        try:
            with _turn:
                self.html = self._examine(self.net)
        except ValueError as error:
            self._problem = " ".join(str(error).split())
        except Exception as error:
            _log.exception("the doctor could not examine %s", self.net.key)
            self._problem = f"the examination failed: {type(error).__name__}; the terminal says more"
