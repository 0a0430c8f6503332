"""Several small runs at once on one device: as processes, as processes under NVIDIA's MPS, or stacked in one program.

All runs of a reading are the same run, so that their losses must agree; they draw batches of made images as the trainer does.
The steady rate counts the steps of all of them in a window in which all are running. Runs per minute are worked out from it:

    runs per minute = 60 · K / (start-up + steps · K / rate)

for K runs that begin together and end together.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from capsella.bench.cohort import Cohort, NoAnswer
from capsella.bench.runner import Task, Track, rates, runs_per_minute
from capsella.bench.step import BOUND
from capsella.train.mps import NoMps, mps
from capsella.train.together import cores

PROCESSES, MPS, PROGRAM = "processes", "mps", "program"
WAYS = {
    PROCESSES: "processes",
    MPS: "processes under MPS",
    PROGRAM: "one program",
}
"""The ways to run several at once, and what tables call them."""

# all processes have been told by then when to begin.
_LEAD = 0.05
# one look at the clock covers about so many seconds of a run that is alone.
_CHUNK, _MOST = 0.02, 50
# a window that a late process missed is measured again, each time twice as long.
_TRIES = 6

APART = f"not timed: the runs did not overlap in {_TRIES} windows; choose more seconds"
"""The problem of a reading whose runs were not under way at the same time."""

SAYS = (
    "Steps per second of all runs together, in a window in which all are running, batches drawn as the trainer draws them. "
    "Runs per minute: 60 · K / (start-up + steps · K / rate), worked out for K runs that begin and end together. A start-up is "
    "imports, the device's context, compilation with a warm cache and capture, measured with as many processes at once as the "
    "largest K; in one program runs are compiled one after the other. Memory: what torch's allocators hold and the device's "
    "contexts; on a CPU the largest resident size of the processes"
)


@dataclass(frozen=True)
class TogetherReading:
    """So many runs at once.

    Attributes:
        way: a key of ``WAYS``.
        model: registry name.
        at_once: K.
        batch_size: images of a step.
        precision: of the training.
        fast: as ``--fast``.
        steps: of a run, for which runs per minute are worked out.
        median: steps per second of all runs together.
        low: smallest of the slices of the window.
        high: largest.
        repeats: slices.
        ratio: of the median to that of one process alone; 0 where there is none.
        start_up: seconds until the last of the runs is ready.
        first_start: seconds of the first run of this net in the whole measurement, which may have compiled it anew.
        runs_per_minute: see above.
        memory: bytes of all together.
        difference: largest relative difference of the runs' first losses to those of the first run.
        problem: why there is no rate.
    """

    way: str
    model: str
    at_once: int
    batch_size: int
    precision: str
    fast: bool
    steps: int
    median: float = 0.0
    low: float = 0.0
    high: float = 0.0
    repeats: int = 0
    ratio: float = 0.0
    start_up: float = 0.0
    first_start: float = 0.0
    runs_per_minute: float = 0.0
    memory: int = 0
    difference: float = 0.0
    problem: str = ""


def counts(device: torch.device, *, quick: bool = False) -> tuple[int, ...]:
    """Return how many at once are tried where nobody says."""
    return (1, 2) if quick or device.type != "cuda" else (1, 4, 8)


def ways(device: torch.device) -> tuple[str, ...]:
    """Return the ways that a device has."""
    return tuple(WAYS) if device.type == "cuda" else (PROCESSES, PROGRAM)


def tasks(
    device: torch.device,
    *,
    models: Sequence[str] = (),
    precision: str | None = None,
    batch_size: int | None = None,
    quick: bool = False,
) -> list[Task]:
    """List the runs: small and large nets of the papers; on a CPU small ones without a compiler."""
    gpu = device.type == "cuda"
    nets = ("sign_capsnet", "parse_capsnet", "capsnet") if gpu else ("sign_capsnet", "capsnet_small")
    size = batch_size or (8 if quick else 128 if gpu else 32)
    precision = precision or ("bf16" if gpu else "float32")
    batches = 128 if gpu else 4
    return [Task(model, size, precision, gpu, device.type, batches) for model in models or nets[: 1 if quick else None]]


def measure(
    todo: Sequence[Task],
    device: torch.device,
    *,
    at_once: Sequence[int] = (1, 4, 8),
    ways: Sequence[str] = tuple(WAYS),
    steps: int = 5000,
    seconds: float = 1.0,
    say: Callable[[str], None] = lambda line: None,
) -> Generator[TogetherReading, None, None]:
    """Let runs go on side by side and count their steps.

    Args:
        todo: nets.
        device: where.
        at_once: how many at a time; one alone is always measured first.
        ways: keys of ``WAYS``.
        steps: of a run, for which runs per minute are worked out.
        seconds: of each window; longer where a process missed it.
        say: is told what goes on.
    """
    counts = sorted({1, *at_once})
    alone: dict[str, float] = {}
    first: dict[str, float] = {}
    for way in ways:
        made = _Measurement(way, device, counts, steps, seconds, cores(), alone, first, say)
        yield from made.readings(todo)


@dataclass
class _Measurement:
    """One way, for all nets."""

    way: str
    device: torch.device
    counts: list[int]
    steps: int
    seconds: float
    cores: int
    alone: dict[str, float]
    first: dict[str, float]
    say: Callable[[str], None]

    def readings(self, todo: Sequence[Task]) -> Iterator[TogetherReading]:
        size = 1 if self.way == PROGRAM else self.counts[-1]
        done: set[str] = set()
        try:
            if self.way == MPS and self.device.type != "cuda":
                raise NoMps("MPS is for GPUs")
            with contextlib.ExitStack() as stack:
                cohort = self._start(stack, size)
                self.say(f"{WAYS[self.way]}: {size} ready in {max(cohort.starts):.1f} s")
                self._warm_up(cohort, todo)
                for task in todo:
                    yield from self._of(cohort, task)
                    done.add(task.model)
        except (NoMps, NoAnswer) as error:
            problem = f"not here: {error}" if isinstance(error, NoMps) else str(error)
            self.say(f"{WAYS[self.way]}: {problem}")
            for task in todo:
                if task.model not in done:
                    yield replace(self._base(task, self.counts[-1]), problem=problem)

    def _start(self, stack: contextlib.ExitStack, size: int) -> Cohort:
        environment = stack.enter_context(mps()) if self.way == MPS else {}
        try:
            return stack.enter_context(Cohort(size, self.device, cores=self.cores, environment=environment))
        except NoAnswer as error:
            if self.way == MPS:
                raise NoMps(f"processes do not start under it ({str(error).removeprefix('fails: ')})") from error
            raise

    def _warm_up(self, cohort: Cohort, todo: Sequence[Task]) -> None:
        """Compile every net once, as many at a time as there are processes: all others then find it in the compiler's cache."""
        new = [task for task in todo if task.model not in self.first]
        for at in range(0, len(new), cohort.count):
            part = new[at : at + cohort.count]
            try:
                found = cohort.ask([("build", {"task": task, "count": 1}) for task in part])
            except NoAnswer as error:
                if error.lost:
                    raise
                # which net it was is said when its turn comes.
                found = []
            cohort.ask([("drop", {})] * len(part))
            for task, built in zip(part, found, strict=False):
                self.first[task.model] = built[0]
                self.say(f"{task.model}: first start {built[0]:.1f} s")

    def _of(self, cohort: Cohort, task: Task) -> Iterator[TogetherReading]:
        try:
            built = cohort.ask([("build", {"task": task, "count": 1})] * cohort.count)
            builds = [each[0] for each in built]
            chunk = self._chunk(cohort, task)
            reference: list[float] = []
            for count in self.counts:
                reading = self._reading(cohort, task, count, builds, chunk, reference)
                rate = f"{reading.median:,.0f} steps/s, {reading.runs_per_minute:.3g} runs a minute"
                self.say(f"{WAYS[self.way]}, {task.model}, {count} at once: {reading.problem or rate}")
                yield reading
        except NoAnswer as error:
            if error.lost:
                raise
            self.say(f"{WAYS[self.way]}, {task.model}: {error}")
            yield replace(self._base(task, self.counts[-1]), problem=str(error))
        cohort.ask([("drop", {})] * cohort.count)

    def _chunk(self, cohort: Cohort, task: Task) -> int:
        """Return how many steps to take between two looks at the clock, the same for every reading."""
        track = self._tracks(cohort, task, 1, 1, 0.0)[0]
        each = (track.stamps[-1] - track.stamps[1]) / (len(track.stamps) - 2)
        return int(min(_MOST, max(1, round(_CHUNK / each))))

    def _tracks(self, cohort: Cohort, task: Task, count: int, chunk: int, seconds: float) -> list[Track]:
        members, runs = (1, count) if self.way == PROGRAM else (count, 1)
        begin = time.monotonic() + _LEAD
        call = {"task": task, "count": runs, "begin": begin, "seconds": seconds, "chunk": chunk}
        return cohort.ask([("run", {**call, "threads": max(1, self.cores // members)})] * members)

    def _overlapping(self, cohort: Cohort, task: Task, count: int, chunk: int) -> tuple[list[Track], list[float]]:
        """Return what the runs did in the first window in which all were under way at once, and their rates in it."""
        tracks, found = [], []
        for again in range(_TRIES):
            tracks = self._tracks(cohort, task, count, chunk, self.seconds * 2**again)
            found = rates(tracks)
            if found:
                break
        return tracks, found

    def _reading(
        self, cohort: Cohort, task: Task, count: int, builds: list[float], chunk: int, reference: list[float]
    ) -> TogetherReading:
        if self.way == PROGRAM:
            builds += cohort.ask([("build", {"task": task, "count": count})])[0]
        tracks, found = self._overlapping(cohort, task, count, chunk)
        losses = [loss for track in tracks for loss in track.losses]
        reference[:] = reference or losses[:1]
        differences = [abs(loss - reference[0]) / abs(reference[0]) for loss in losses]
        base = self._base(task, count)
        # what is no number is not within the bound either.
        if not all(each <= BOUND[task.precision] for each in differences):
            return replace(base, problem=f"wrong: first losses {losses} differ from {reference[0]}")
        if not found:
            return replace(base, problem=APART)
        rate = statistics.median(found)
        if count == 1:
            self.alone.setdefault(task.model, rate)
        building = sum(builds[:count]) if self.way == PROGRAM else max(builds[:count])
        start_up = max(cohort.starts[:count]) + building
        return replace(
            base,
            median=rate,
            low=min(found),
            high=max(found),
            repeats=len(found),
            ratio=rate / self.alone[task.model],
            start_up=start_up,
            runs_per_minute=runs_per_minute(count, start_up, self.steps, rate),
            memory=sum(track.memory for track in tracks) + cohort.context_bytes * len(tracks),
            difference=max(differences),
        )

    def _base(self, task: Task, count: int) -> TogetherReading:
        return TogetherReading(
            self.way,
            task.model,
            count,
            task.batch_size,
            task.precision,
            task.fast,
            self.steps,
            first_start=self.first.get(task.model, 0.0),
        )


def winners(readings: Sequence[TogetherReading]) -> list[dict[str, Any]]:
    """Return for each net the way and the number that make the most runs a minute."""
    timed = [reading for reading in readings if not reading.problem]
    found = []
    for model in dict.fromkeys(reading.model for reading in timed):
        here = [reading for reading in timed if reading.model == model]
        best = max(here, key=lambda reading: reading.runs_per_minute)
        single = next((each for each in here if (each.way, each.at_once) == (PROCESSES, 1)), None)
        gain = best.runs_per_minute / single.runs_per_minute if single is not None else 0.0
        numbers = {"at_once": best.at_once, "runs_per_minute": best.runs_per_minute, "gain": gain}
        found.append({"model": model, "way": best.way, "steps": best.steps, **numbers})
    return found


def facts(readings: Sequence[TogetherReading]) -> dict[str, Any]:
    """Return what a record says beside its readings."""
    return {"says": SAYS, "ways": WAYS, "cores": cores(), "bound": BOUND, "winners": winners(readings)}
