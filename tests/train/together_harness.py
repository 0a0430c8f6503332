"""What tests of several runs at once share: tiny plans, processes that cost little or nothing, a stand-in for NVIDIA's MPS."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import stat
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from multiprocessing import forkserver
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from capsella.train import Outcome, Plan, Run, children, run_plan, together
from capsella.train.folder import RunFolder

sys.path.insert(0, str(Path(__file__).resolve().parent))
from run_harness import load

# its daemon runs until it is told to quit; what it was told is kept beside the program.
_CONTROL = """#!/bin/sh
D="$CUDA_MPS_PIPE_DIRECTORY"
if [ "$1" = -f ]; then
  echo "$CUDA_VISIBLE_DEVICES" > {folder}/devices
  touch "$D/control" {folder}/runs
  while [ ! -e "$D/over" ]; do sleep 0.02; done
  rm {folder}/runs
else
  read line
  echo "$line" >> {folder}/told
  [ -e "$D/control" ] || {{ echo "Cannot find MPS control daemon process"; exit 1; }}
  case "$line" in quit*) touch "$D/over";; esac
fi
"""


# numbers need no file and no download.
PLAN = Plan("sign_capsnet", "sign", validate=None, test=False).changed(
    {"steps": 6, "batch_size": 64, "log_every": 1, "device": "cpu", "lr": 5e-3}
)
LONG = {"steps": 100_000, "epochs": 10_000}


def seeded(folder: Path, *seeds: int, **settings: Any) -> list[tuple[Plan, Path]]:
    plan = PLAN.changed(settings) if settings else PLAN
    return [(replace(plan, train=replace(plan.train, seed=seed)), folder / f"seed-{seed}") for seed in seeds]


def instead(patch: pytest.MonkeyPatch, acts: Mapping[int, Callable[[], object]]) -> None:
    """Let the runs with these seeds do something before."""
    real = run_plan

    def other(plan: Plan, *arguments: Any, **options: Any) -> Run:
        acts.get(plan.train.seed, lambda: None)()
        return real(plan, *arguments, **options)

    patch.setattr(children, "run_plan", other)


@contextlib.contextmanager
def forking(patch: pytest.MonkeyPatch, *modules: ModuleType) -> Iterator[pytest.MonkeyPatch]:
    """Fork processes instead: they need not load torch again, and see what a test has put in another's place."""
    load()
    fork = multiprocessing.get_context("fork")
    patch.setattr(multiprocessing, "get_context", lambda kind: fork)
    for module in modules:
        # sums of two threads may differ from those of one.
        patch.setattr(module, "cores", lambda: 1)
    # what is there already is no litter of theirs: looking through it would copy every page.
    gc.freeze()
    yield patch
    gc.unfreeze()


@contextlib.contextmanager
def new_interpreters(kind: str, patch: pytest.MonkeyPatch) -> Iterator[None]:
    """Start processes in new interpreters: by ``"spawn"`` as users have it, or by ``"forkserver"``, which loads torch once.

    Both hand over nothing but what is sent, so that a process knows nothing of the test and holds no end of another's pipe.
    """
    context = multiprocessing.get_context(kind)
    if kind == "forkserver":
        context.set_forkserver_preload(["capsella.bench.cohort", "capsella.train.children"])
        forkserver.ensure_running()
        # a forked process uses it too, and cannot ask after it: it is not its child.
        patch.setattr(forkserver._forkserver, "ensure_running", lambda: None)
    asked: list[str] = []

    def given(name: str) -> multiprocessing.context.BaseContext:
        asked.append(name)
        return context

    patch.setattr(multiprocessing, "get_context", given)
    yield
    assert set(asked) <= {"spawn"}


NEW_INTERPRETERS = pytest.mark.parametrize("kind", ["forkserver", pytest.param("spawn", marks=pytest.mark.slow)])


def control_program(folder: Path, patch: pytest.MonkeyPatch, text: str = "") -> None:
    """Put a program of the name of MPS's control program on the PATH; ``text`` instead of the stand-in."""
    path = folder / "nvidia-cuda-mps-control"
    path.write_text(f"#!/bin/sh\n{text}\n" if text else _CONTROL.format(folder=folder))
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    patch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    patch.delenv("CUDA_MPS_PIPE_DIRECTORY", raising=False)


def on_a_gpu(patch: pytest.MonkeyPatch, cores: int = 16) -> None:
    """Let runs believe in a GPU until their processes start."""
    patch.setattr(torch.cuda, "is_available", lambda: True)
    patch.setattr(together, "cores", lambda: cores)


class Pretended:
    """Processes that are over as soon as they are started; notes what they were to be."""

    made: list[Pretended]

    def __init__(self, threads: int, root: str | None, environment: Mapping[str, str], after: object) -> None:
        self.threads, self.environment, self.most = threads, environment, 0
        self.running: list[Any] = []
        self.programs: list[int] = []
        Pretended.made.append(self)

    def __enter__(self) -> Pretended:
        return self

    def __exit__(self, *_: object) -> None:
        self.running.clear()

    def start(self, jobs: Sequence[tuple[Plan, Path]]) -> None:
        self.running += [Outcome(plan, folder, problem="only pretended") for plan, folder in jobs]
        self.most = max(self.most, len(self.running))
        self.programs.append(len(jobs))

    def ended(self, seconds: float) -> Iterator[Outcome]:
        while self.running:
            yield self.running.pop()

    stopped = ended


def pretending(patch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Start no processes."""
    patch.setattr(together, "Children", Pretended)
    patch.setattr(Pretended, "made", [], raising=False)
    return patch


def held_by_nobody(folder: Path) -> bool:
    try:
        with RunFolder(folder).held():
            return True
    except ValueError:
        return False
