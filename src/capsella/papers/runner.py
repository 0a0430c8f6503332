"""Runs recipes: what is recorded is not run again, what was interrupted goes on, a result is on disk once it is there."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import shutil
import time
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path

from capsella import __numerics__
from capsella.errors import DataError
from capsella.papers.executors import Done, Executor, Place
from capsella.papers.paper import recorded
from capsella.papers.recipe import Job
from capsella.papers.store import Store
from capsella.train.folder import RunFolder
from capsella.train.plan import Plan
from capsella.train.together import Standing

_log = logging.getLogger(__name__)

# seconds for which a run of a call that was killed is waited for.
_REST = 90.0
# a run is only begun where so many times as long as it should take is left.
_MARGIN = 1.1


class TimeIsUp(Exception):
    """The time that was given is over; raised where runs are looked at, so that they stop in good order."""


class Deadline:
    """When to stop, and what is still begun before.

    Args:
        minutes: from now on; None for no end.
        seconds: that each job should take, by its name.
        at_once: runs at a time, which each take so many times their share of the device.
        goes_on: whether runs that are stopped keep a checkpoint: those that are longer than this begin once nothing else does.
    """

    def __init__(
        self, minutes: float | None, seconds: dict[str, float] | None = None, at_once: int = 1, *, goes_on: bool = False
    ) -> None:
        self.length = float("inf") if minutes is None else 60 * minutes
        self.end = time.monotonic() + self.length
        self.seconds, self.at_once, self.goes_on = seconds or {}, at_once, goes_on
        self.left_out: list[Job] = []
        self._let_in: set[str] = set()

    def admit(self, job: Job) -> bool:
        """Tell whether a job should be over in time; those that should not are noted."""
        needs = 0.0 if job.name in self._let_in else self._needs(job)
        fits = time.monotonic() + needs < self.end
        if not fits:
            self.left_out.append(job)
        return fits

    def let_in(self) -> list[Job]:
        """Return those that were left out and would be every time, and admit them from now on: they end in a later call."""
        found = [job for job in self.left_out if self.goes_on and self._needs(job) >= self.length]
        self._let_in |= {job.name for job in found}
        self.left_out = [job for job in self.left_out if job.name not in self._let_in]
        return found

    def _needs(self, job: Job) -> float:
        at_once = 1 if job.recipe.alone else self.at_once
        return _MARGIN * at_once * self.seconds.get(job.name, 0.0)

    def check(self) -> None:
        """Raise ``TimeIsUp`` once it is."""
        if time.monotonic() >= self.end:
            raise TimeIsUp


def reproduce(
    jobs: Sequence[Job],
    store: Store,
    executor: Executor,
    place: Place,
    *,
    deadline: Deadline | None = None,
    export: Path | None = None,
    keep: bool = False,
) -> Iterator[Done]:
    """Carry out what is not recorded, and yield what came of each run once its result is on disk.

    Killed at any moment and called again, it goes on: a result is whole or not there, a run that was under way has its last
    checkpoint, one that had ended is only read. What is in a run's own folder is taken away after its result is written.

    Args:
        jobs: in the order in which they are begun.
        store: where results go.
        executor: who carries them out.
        place: where and how.
        deadline: when to stop; runs that are under way then keep a checkpoint.
        export: an archive of all results of the store, written anew after every run.
        keep: leave the runs' folders, with their weights, where they are.
    """
    limit = deadline or Deadline(None)
    with _held(place.work):
        done = recorded(jobs, store)
        for job in jobs:
            # a process that was killed between the two.
            if job.name in done and not keep:
                _clear(place, job)
        todo = [job for job in jobs if job.name not in done]
        for job in todo:
            _make_way(place.folder(job), job)

        def watch(standings: Sequence[Standing]) -> None:
            place.watch(standings)
            limit.check()

        def admit(job: Job) -> bool:
            return place.admit(job) and limit.admit(job)

        outcomes = _in_time(executor, todo, dataclasses.replace(place, watch=watch, admit=admit), limit)
        try:
            for each in outcomes:
                if each.result is not None:
                    store.write(each.result)
                    if export is not None:
                        store.export(export)
                    if not keep:
                        _clear(place, each.job)
                yield each
        except TimeIsUp:
            return
        finally:
            outcomes.close()


def _in_time(executor: Executor, jobs: Sequence[Job], place: Place, limit: Deadline) -> Generator[Done, None, None]:
    """Carry jobs out, and begin those that are too long for any call in the time that the others leave."""
    yield from _carried_out(executor, jobs, place)
    yield from _carried_out(executor, limit.let_in(), place)


def _carried_out(executor: Executor, jobs: Sequence[Job], place: Place) -> Generator[Done, None, None]:
    """Carry jobs out; those that are to be alone last, one at a time."""
    for alone, at_once in ((False, place.at_once), (True, 1)):
        some = [job for job in jobs if job.recipe.alone == alone]
        if some:
            yield from executor(some, dataclasses.replace(place, at_once=at_once))


@contextlib.contextmanager
def _held(work: Path) -> Iterator[None]:
    """Keep a second call from the same runs, from its first moment to its last."""
    with RunFolder(work).held():
        yield


def _make_way(folder: Path, job: Job) -> None:
    """Let a run of an earlier call come to rest, and take it away if it is not the same run: it cannot be gone on with."""
    place = RunFolder(folder)
    if not folder.is_dir():
        return
    # a process whose parent was killed has its step and its checkpoint to finish.
    end = time.monotonic() + _REST
    while True:
        try:
            with place.held():
                break
        except ValueError:
            if time.monotonic() > end:
                raise
            time.sleep(0.1)
    if place.holds_a_run and not _is_same(place, job):
        _log.warning("%s was begun with other settings, or another version of the arithmetic; it begins anew", job.name)
        shutil.rmtree(folder)


def _is_same(place: RunFolder, job: Job) -> bool:
    try:
        config = place.read_config()
        return Plan.of(config["plan"]) == job.plan and config["environment"]["numerics"] == __numerics__
    except (DataError, ValueError, TypeError, KeyError):
        return False


def _clear(place: Place, job: Job) -> None:
    """Take a run's own folder away, and those above it that it leaves empty."""
    folder = place.folder(job)
    shutil.rmtree(folder, ignore_errors=True)
    for above in folder.parents:
        if above == place.work:
            break
        with contextlib.suppress(OSError):
            above.rmdir()
