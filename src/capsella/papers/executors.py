"""Who carries the runs of recipes out: this process, workers, processes side by side on a device, or a Ray cluster.

Each takes jobs and yields what came of them in the order in which they end. Work folders hold what is needed to go on with a
run that was interrupted; a run on a cluster has none, since its machine may be another one next time.
"""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import signal
import tempfile
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from capsella.data import ImageData
from capsella.errors import RunError
from capsella.papers.measuring import Afterwards, measure
from capsella.papers.recipe import Job
from capsella.papers.results import Result, from_json, result_of, to_json
from capsella.papers.shares import Shares
from capsella.train.children import LOOK, interrupts_held_back, leave_the_terminal, standing
from capsella.train.compare import finished_run
from capsella.train.plan import Plan
from capsella.train.run import Run
from capsella.train.signals import Interrupted
from capsella.train.together import Standing, cores, run_together

# seconds in which a worker that is left alone may come to an orderly end.
_GRACE = 10.0
HERE, WORKERS, PROCESSES, RAY = "here", "workers", "processes", "ray"
EXECUTORS = (HERE, WORKERS, PROCESSES, RAY)


@dataclass(frozen=True)
class Done:
    """What came of a job.

    Attributes:
        job: which.
        result: None where it failed.
        problem: why, in one line.
        details: the traceback, where there is one.
    """

    job: Job
    result: Result | None
    problem: str = ""
    details: str = ""


@dataclass(frozen=True)
class Place:
    """Where and how jobs are carried out.

    Attributes:
        work: folder of the runs' own folders.
        root: the data directory.
        at_once: runs at a time; what is usual if None.
        program: let runs on a GPU take turns in one process.
        mps: share a GPU under NVIDIA's MPS.
        admit: asked before a job starts; where it says no, that one is left out.
        watch: called now and then with how far the runs have come.
    """

    work: Path
    root: str | None = None
    at_once: int | None = None
    program: bool = False
    mps: bool | None = None
    admit: Callable[[Job], bool] = lambda job: True
    watch: Callable[[Sequence[Standing]], None] = lambda standings: None

    def folder(self, job: Job) -> Path:
        """Return the folder of a job's run."""
        return self.work / job.name


Executor = Callable[[Sequence[Job], Place], Iterator[Done]]


def executor_by_name(name: str) -> Executor:
    """Return what carries jobs out; one of ``EXECUTORS``."""
    return {HERE: here, WORKERS: in_workers, PROCESSES: in_processes, RAY: on_ray}[name]


def finish(job: Job, folder: Path, root: str | None, device_seconds: float | None = None) -> Result:
    """Measure a run that has ended, and keep of it what reports need."""
    run = Run.load(folder)
    return result_of(
        recipe=job.recipe.key,
        seed=job.seed,
        fingerprint=job.fingerprint,
        quick=job.quick,
        record=run.record or {},
        events=run.events,
        measured=measure(folder, job.recipe.measures, root) if job.recipe.measures else {},
        device_seconds=device_seconds,
    )


def here(jobs: Sequence[Job], place: Place) -> Iterator[Done]:
    """Carry jobs out one after the other in this process."""
    shares = Shares()
    for job in jobs:
        if not place.admit(job):
            continue
        start = time.monotonic()
        place.watch([_standing(job, place)])
        try:
            try:
                finished_run(place.folder(job), job.plan, _loaded(job.plan, place.root), progress=False)
            finally:
                shares.add(place.folder(job), time.monotonic() - start)
                shares.keep(place.folder(job))
            done = Done(job, finish(job, place.folder(job), place.root, shares.of(place.folder(job))))
        except Interrupted:
            raise
        # whatever it is, the others go on.
        except Exception as error:
            done = _failed(job, error)
        yield done


def _failed(job: Job, error: Exception) -> Done:
    """Return what is said of a job in one line; of what nobody expected, also its kind."""
    known = isinstance(error, RunError | ValueError | TypeError) and str(error)
    kind = "" if known else f"{type(error).__name__}: "
    return Done(job, None, kind + str(error).strip().partition("\n")[0], traceback.format_exc())


def _loaded(plan: Plan, root: str | None) -> dict[str, ImageData | None]:
    """Return a plan's data; runs that follow each other mostly have the same."""
    facts = (plan.data, repr(sorted(plan.data_options.items())), plan.split, plan.validate, plan.test, root)
    if facts not in _KEPT:
        while len(_KEPT) >= 2:
            del _KEPT[next(iter(_KEPT))]
        _KEPT[facts] = plan.load(root)
    return _KEPT[facts]


_KEPT: dict[tuple[Any, ...], dict[str, ImageData | None]] = {}


def in_workers(jobs: Sequence[Job], place: Place) -> Iterator[Done]:
    """Carry short jobs out in as many processes as there are cores, of one thread each, that stay for all of them.

    What a process needs to start is paid once; threads that wait for each other in small sums would cost more than they gain.
    """
    count = place.at_once or cores()
    pool = ProcessPoolExecutor(count, mp_context=multiprocessing.get_context("spawn"), initializer=_begin_work)
    waiting, running, shares = deque(jobs), dict[Future[str], Job](), Shares()
    shares((), time.monotonic())
    try:
        while waiting or running:
            while waiting and len(running) < count:
                job = waiting.popleft()
                if place.admit(job):
                    with interrupts_held_back():
                        running[pool.submit(_work, job, place.folder(job), place.root)] = job
            ended, _ = wait(running, timeout=LOOK, return_when=FIRST_COMPLETED)
            # those that have just ended have had their share of it too.
            shares([place.folder(job) for job in running.values()], time.monotonic())
            for future in ended:
                job = running.pop(future)
                try:
                    result = from_json(future.result(), where=job.name)
                    done = Done(job, dataclasses.replace(result, device_seconds=round(shares.of(place.folder(job)), 2)))
                except BrokenProcessPool as error:
                    raise RunError("a worker was killed; the same again goes on with what is left") from error
                except Exception as error:
                    done = _failed(job, error)
                yield done
            place.watch([_standing(job, place) for job in running.values()])
    finally:
        # a job that is under way is short, and is let come to its end.
        pool.shutdown(cancel_futures=True)


def _begin_work() -> None:
    leave_the_terminal()
    # before torch has any thread but this one.
    torch.set_flush_denormal(True)
    torch.set_num_threads(1)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """Ask this process to stop, in the orderly way, once the one that started it is gone: its queue would keep it waiting."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)
        # a run has heard it, and has so long for its checkpoint; nobody would tell this process what to do next.
        time.sleep(_GRACE)
        os._exit(1)


def _work(job: Job, folder: Path, root: str | None) -> str:
    finished_run(folder, job.plan, _loaded(job.plan, root), progress=False)
    return to_json(finish(job, folder, root))


def _standing(job: Job, place: Place) -> Standing:
    """Return how far a job has come, as its metrics say."""
    return standing(job.plan, place.folder(job))


def in_processes(jobs: Sequence[Job], place: Place) -> Iterator[Done]:
    """Carry jobs out side by side on this machine, each in a process of its own or several in turn in one."""
    by_folder = {place.folder(job): job for job in jobs}
    shares = Shares()

    def watch(standings: Sequence[Standing]) -> None:
        shares([each.folder for each in standings], time.monotonic())
        place.watch(standings)

    outcomes = run_together(
        [(job.plan, folder) for folder, job in by_folder.items()],
        at_once=place.at_once,
        program=place.program,
        mps=place.mps,
        root=place.root,
        watch=watch,
        admit=lambda folder: place.admit(by_folder[folder]),
        after=Afterwards({folder: job.recipe.measures for folder, job in by_folder.items()}, place.root),
    )
    for outcome in outcomes:
        job = by_folder[outcome.folder]
        if outcome.run is None:
            yield Done(job, None, outcome.problem, outcome.details)
            continue
        try:
            done = Done(job, finish(job, outcome.folder, place.root, shares.of(outcome.folder) or None))
        except Exception as error:
            done = _failed(job, error)
        yield done


def on_ray(jobs: Sequence[Job], place: Place) -> Iterator[Done]:
    """Hand jobs to a Ray cluster: the one that ``RAY_ADDRESS`` names, or one that is started here for as long as they run.

    Ray decides where and when each runs. A job's machine needs capsella and the data; its result comes back as text.
    """
    try:
        import ray
    except ImportError as error:
        raise ValueError("--executor=ray needs Ray; install it with: pip install 'capsella[ray]'") from error
    ray.init(ignore_reinit_error=True, log_to_driver=False, include_dashboard=False)
    try:
        remote = ray.remote(_on_a_worker)
        asked = {remote.options(**_needs(job, place)).remote(job, place.root): job for job in jobs if place.admit(job)}
        while asked:
            ready, _ = ray.wait(list(asked), timeout=1.0)
            for reference in ready:
                job = asked.pop(reference)
                try:
                    yield Done(job, from_json(ray.get(reference), where=job.name))
                except ray.exceptions.RayError as error:
                    yield Done(job, None, str(error).strip().splitlines()[-1], str(error))
            place.watch([_standing(job, place) for job in asked.values()])
    finally:
        ray.shutdown()


def _needs(job: Job, place: Place) -> dict[str, Any]:
    """Return what a task asks Ray for: a part of a GPU, or two cores."""
    if job.plan.train.device == "cuda":
        return {"num_cpus": 1, "num_gpus": 1 / (place.at_once or 1)}
    return {"num_cpus": 2}


def _on_a_worker(job: Job, root: str | None) -> str:
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="capsella-") as work:
        folder = Path(work) / "run"
        finished_run(folder, job.plan, job.plan.load(root), progress=False)
        return to_json(finish(job, folder, root, time.monotonic() - start))


def default_executor(*, quick: bool, on_gpu: bool) -> str:
    """Return who carries jobs out where nobody says: short ones workers, others processes side by side."""
    return WORKERS if quick and not on_gpu else PROCESSES
