"""Many runs, several at a time: each plan in a process of its own, side by side on one device, or several in one program.

A small net leaves most of a GPU idle, so that several runs at once take little longer than one; under NVIDIA's MPS their
kernels share it, and so they do in one program, in which runs take turns. Every run is what it would be alone: a folder, the
same seeds. What is finished already is given back, what was interrupted goes on.
"""

from __future__ import annotations

import contextlib
import json
import os
import warnings
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from pathlib import Path

import torch

from capsella.data import ImageData
from capsella.errors import DataError, check_count
from capsella.train import mps as service
from capsella.train.children import LOOK, Children, Outcome, Standing
from capsella.train.compare import finished_run
from capsella.train.folder import RunFolder
from capsella.train.plan import Plan
from capsella.train.signals import Interrupted, StopWish

__all__ = ["AT_ONCE", "Outcome", "Standing", "cores", "default_at_once", "run_together"]

AT_ONCE = 8
"""Runs at a time on a GPU where nobody says: of 1, 4 and 8 the most runs a minute on an H200, with MPS and without."""


def default_at_once(plans: Sequence[Plan]) -> int:
    """Return how many runs at a time are taken where nobody says.

    Eight on a GPU, one for every two cores on a CPU; no more than there are runs or cores.

    Args:
        plans: the runs.

    Example:
        >>> default_at_once([Plan("sign_capsnet", "sign").changed({"device": "cpu"})])
        1
    """
    return max(1, min(AT_ONCE if _on_gpu(plans) else cores() // 2, len(plans), cores()))


def _on_gpu(plans: Iterable[Plan]) -> bool:
    return torch.cuda.is_available() and any(plan.train.device != "cpu" for plan in plans)


def cores() -> int:
    """Return how many cores of the processor this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run_together(
    jobs: Iterable[tuple[Plan, str | os.PathLike[str]]],
    *,
    at_once: int | None = None,
    threads: int | None = None,
    mps: bool | None = None,
    program: bool = False,
    root: str | os.PathLike[str] | None = None,
    watch: Callable[[Sequence[Standing]], None] | None = None,
    admit: Callable[[Path], bool] | None = None,
    after: Callable[[Path], None] | None = None,
) -> Generator[Outcome, None, None]:
    """Carry many plans out, several at a time, and give each back as it ends.

    A folder that holds the finished run of its plan is read and not run again; one that holds an unfinished run is gone on
    with. A run that fails is given back with its problem, and the others go on. Ctrl-C, SIGTERM and the end of the iteration
    stop every process after its step, with a checkpoint; a second Ctrl-C ends them at once.

    On a CPU the weights are those of ``run_plan`` with as many threads, bit for bit.

    Args:
        jobs: plans, each with the folder of its run.
        at_once: runs at a time; ``default_at_once`` if None.
        threads: of the CPU, for each run; the cores are shared out if None.
        mps: let the runs share a GPU under NVIDIA's MPS, whose daemon is started before the first of them and stopped after the
            last; one that ``CUDA_MPS_PIPE_DIRECTORY`` names and that answers is used and left running. None: where several
            runs go on a GPU at once and MPS is installed; if it does not start, a warning says so and they go on without.
            False: the runs are kept away from any daemon.
        program: put the runs that go at once into one process, in which they take turns, on a GPU with a stream for each.
            It has ``at_once`` runs of one device, precision and ``fast``; the next one starts when all have ended, so that it
            is for runs of about the same length, such as the seeds of one plan. A process that is killed ends all of them; they
            can be gone on with.
        root: the data directory; what has to be fetched is fetched before the first process starts.
        watch: called about five times a second with the runs that are under way.
        admit: asked before a run starts, by its folder; where it says no, that run is left out.
        after: called with the folder of a run that has ended, in its process; it must be a function that can be pickled.

    Raises:
        ValueError: two plans have one folder, ``at_once`` is no count, or ``mps`` is asked for and no run goes on a GPU, or
            together with ``program``; before anything starts.
        NoMps: ``mps`` is asked for and cannot be had; a ``RunError``, before the first process starts.
        Interrupted: SIGINT or SIGTERM came before the last run had ended; the same call goes on from there.

    Example:
        >>> plan = Plan("sign_capsnet", "sign")
        >>> run_together([(plan, "runs/a"), (plan.changed({"seed": 1}), "runs/a")])
        Traceback (most recent call last):
        ValueError: folder='runs/a' is that of two runs; expected a folder for each
    """
    todo = [(plan, Path(folder)) for plan, folder in jobs]
    if at_once is not None:
        check_count("at_once", at_once)
    if threads is not None:
        check_count("threads", threads)
    seen: set[Path] = set()
    for _, folder in todo:
        if folder.resolve() in seen:
            raise ValueError(f"folder={str(folder)!r} is that of two runs; expected a folder for each")
        seen.add(folder.resolve())
    if torch.distributed.is_torchelastic_launched():
        raise ValueError("runs side by side are started from one process, and torchrun started this one; leave it out")
    if mps and not _on_gpu(plan for plan, _ in todo):
        raise ValueError("mps=True is for runs on a GPU, and none of these goes on one; leave it out")
    if mps and program:
        raise ValueError("mps=True is for processes, and program=True puts the runs into one; leave one of them out")
    # one process shares with nobody.
    share = False if program else mps
    place = None if root is None else os.fspath(root)
    return _run(todo, at_once, threads, share, program, place, watch, admit, after)


def _run(
    todo: list[tuple[Plan, Path]],
    at_once: int | None,
    threads: int | None,
    mps: bool | None,
    program: bool,
    root: str | None,
    watch: Callable[[Sequence[Standing]], None] | None,
    admit: Callable[[Path], bool] | None,
    after: Callable[[Path], None] | None,
) -> Generator[Outcome, None, None]:
    ended = 0
    waiting: deque[tuple[Plan, Path]] = deque()
    for found in _sorted_out(todo, root):
        if isinstance(found, Outcome):
            ended += 1
            yield found
        else:
            waiting.append(found)
    if not waiting:
        return
    plans = [plan for plan, _ in waiting]
    number = default_at_once(plans) if at_once is None else at_once
    together = min(number, len(plans))
    with StopWish() as wish, _shared_gpu(mps, together > 1 and _on_gpu(plans)) as environment:
        share = threads if threads is not None else max(1, cores() // (1 if program else together))
        with Children(share, root, environment or _without(mps, plans), after) as children:
            while (waiting or children.running) and not _is_made(wish):
                while waiting and len(children.running) < number and not (program and children.running):
                    if admit is not None and not admit(waiting[0][1]):
                        waiting.popleft()
                        continue
                    children.start(_alike(waiting, number if program else 1, admit))
                for outcome in children.ended(LOOK):
                    # a signal reaches a group of processes: one that died of it has not failed.
                    if outcome.problem and _is_made(wish):
                        continue
                    ended += 1
                    yield outcome
                if watch is not None:
                    watch([child.standing() for child in children.running])
            # a wish that came after the last of them stops nothing.
            if wish.received is None or ended == len(todo):
                return
            for outcome in children.stopped():
                # those that came to their end all the same.
                if not outcome.problem:
                    ended += 1
                    yield outcome
        if ended < len(todo):
            says = f"stopped: {ended} of {len(todo)} runs have ended; the same again goes on from there"
            raise Interrupted(says, wish.received)


def _alike(
    waiting: deque[tuple[Plan, Path]], most: int, admit: Callable[[Path], bool] | None = None
) -> list[tuple[Plan, Path]]:
    """Take the first that waits, and those that can be in one program with it: switches of torch's are a program's."""

    def kind(plan: Plan) -> tuple[str, str, bool]:
        return plan.train.device, plan.train.precision, plan.train.fast

    chosen = [waiting.popleft()]
    for job in list(waiting):
        if len(chosen) < most and kind(job[0]) == kind(chosen[0][0]):
            waiting.remove(job)
            chosen += [job] if admit is None or admit(job[1]) else []
    return chosen


def _is_made(wish: StopWish) -> bool:
    return wish.received is not None


@contextlib.contextmanager
def _shared_gpu(wanted: bool | None, useful: bool) -> Iterator[dict[str, str] | None]:
    """Give the variables of MPS's clients while it runs; None where it is not used."""
    with contextlib.ExitStack() as stack:
        environment = None
        if wanted or (wanted is None and useful and service.is_installed()):
            try:
                environment = stack.enter_context(service.mps())
            except service.NoMps as error:
                if wanted:
                    raise service.NoMps(f"mps=True cannot be had: {error}; leave it out to go on without") from error
                warnings.warn(f"the runs go side by side without MPS: {error}", RuntimeWarning, stacklevel=4)
        yield environment


def _without(mps: bool | None, plans: Iterable[Plan]) -> dict[str, str]:
    """Return what keeps processes away from a daemon that is not wanted, also from one at NVIDIA's default place."""
    return {service.PIPE: os.devnull} if mps is False and _on_gpu(plans) else {}


def _sorted_out(todo: list[tuple[Plan, Path]], root: str | None) -> Iterator[Outcome | tuple[Plan, Path]]:
    """Yield what is over already and what is to be run, in order; every set of data is loaded once, so that it is there."""
    loaded: dict[str, dict[str, ImageData | None] | str] = {}
    for plan, folder in todo:
        key = json.dumps([plan.data, plan.data_options, plan.split, plan.validate, plan.test], default=repr, sort_keys=True)
        if key not in loaded:
            try:
                loaded[key] = plan.load(root)
            except (DataError, ValueError, TypeError) as error:
                loaded[key] = str(error)
        splits = loaded[key]
        if isinstance(splits, str):
            yield Outcome(plan, folder, problem=splits)
            continue
        try:
            _check_alone(plan)
            place = RunFolder(folder)
            is_over = place.holds_a_run and place.read_record() is not None
            yield Outcome(plan, folder, finished_run(folder, plan, splits), was_there=True) if is_over else (plan, folder)
        except (DataError, ValueError) as error:
            yield Outcome(plan, folder, problem=str(error))


def _check_alone(plan: Plan) -> None:
    for name in ("devices", "nodes"):
        if getattr(plan.train, name) > 1:
            raise ValueError(f"{name}={getattr(plan.train, name)} cannot run side by side with others; expected 1")
