"""What the speed must be and should be, beside what was measured."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from capsella.bench.epoch import everything
from capsella.bench.problems import REFERENCE
from capsella.bench.routing import BOTH, RoutingReading, problems
from capsella.bench.routing import measure as measure_routing
from capsella.bench.step import EPOCH, STEP, Job, StepReading, jobs, large_jobs
from capsella.errors import DataError

R = TypeVar("R")

MS, GIB = 1e-3, float(1 << 30)

PART_OF_STEP = "mixed"
"""The precision in which a bf16 training step calls routing."""

_JUDGED = (PART_OF_STEP, "bfloat16")
"""What the bars of routing are about: poses in bf16, the weight in float32 or bf16."""

ROUTING_CASES = ("capsnet-28", "capsnet-40")

NOT_RUN = "not run"
"""What a bar says that nothing in the records is about."""

BY_COMPILER = "compiled"
"""The implementation that a C++ compiler builds at its first use."""


@dataclass(frozen=True)
class BarReading:
    """One bar.

    Attributes:
        what: is measured.
        unit: of the three numbers.
        must: the bar; 0 where the line only informs.
        aim: what would be better; 0 if none is set.
        measured: by us; None where it could not be measured.
        higher: whether more is better.
        says: how it was measured, or why it was not.
    """

    what: str
    unit: str
    must: float
    aim: float
    measured: float | None
    higher: bool = False
    says: str = ""

    @property
    def verdict(self) -> str:
        """The aim met, the bar met, or missed and by how much.

        Example:
            >>> BarReading("a", "ms", must=2.0, aim=1.0, measured=1.5).verdict
            'bar met'
            >>> BarReading("a", "×", must=2.0, aim=3.0, measured=1.0, higher=True).verdict
            'MISSED by 2×'
        """
        if self.measured is None:
            return "not measured"
        short = self.must / max(self.measured, 1e-12) if self.higher else self.measured / self.must
        if short > 1:
            return f"MISSED by {short:.3g}×"
        reached = self.measured >= self.aim if self.higher else self.measured <= self.aim
        return "aim met" if self.aim and reached else "bar met"


def measure(
    device: torch.device,
    *,
    part: str = "all",
    root: str | os.PathLike[str] | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> list[BarReading]:
    """Measure what the bars of this device need, and judge it.

    Args:
        device: a GPU, or a CPU with bars of its own.
        part: ``"routing"``, ``"step"`` or ``"all"``; a CPU has bars of routing alone.
        root: the data directory.
        say: is told what goes on.
    """
    routed: list[RoutingReading] = []
    steps: list[StepReading] = []
    if device.type != "cuda":
        todo = problems(device, only=("capsnet-28",), algorithms=("agreement",))
        routed += measure_routing(todo, device, budget=2.0, modes=(BOTH,), say=say)
    elif part != "step":
        todo = problems(device, only=ROUTING_CASES, algorithms=("agreement", "em"), precisions=_JUDGED)
        routed += measure_routing(todo, device, compiled=(), modes=(BOTH,), say=say)
    if device.type == "cuda" and part != "routing":
        wanted = jobs(device, models=("capsnet", "convnet_avg"), precisions=("bf16",)) + large_jobs()
        steps += everything(wanted, device, budget=0.5, epoch=True, root=root, say=say)
    gpu = device.type == "cuda"
    return judge(routed if part != "step" else None, steps if part != "routing" else None, gpu=gpu)


def judge_records(records: Mapping[str, Mapping[str, Any]], *, gpu: bool) -> list[BarReading]:
    """Judge one device's records by kind, whenever they were measured; a kind without a record has no bars."""
    routed = _readings(records["routing"], RoutingReading) if "routing" in records else None
    steps = _readings(records["step"], StepReading) if "step" in records else None
    return judge(routed, steps, gpu=gpu)


def _readings(record: Mapping[str, Any], kind: type[R]) -> list[R]:
    try:
        return [kind(**values) for values in record["readings"]]
    except (KeyError, TypeError) as error:
        what = f"{record.get('kind')} on {record.get('device')}"
        raise DataError(f"the record of {what} is not one of this release ({error}); run capsella bench again") from error


def judge(routed: Sequence[RoutingReading] | None, steps: Sequence[StepReading] | None, *, gpu: bool) -> list[BarReading]:
    """Judge readings by the bars of their device, a GPU or a CPU; None leaves a part out."""
    if not gpu:
        return cpu_bars(routed) if routed is not None else []
    return (routing_bars(routed) if routed is not None else []) + (step_bars(steps) if steps is not None else [])


def routing_bars(readings: Sequence[RoutingReading]) -> list[BarReading]:
    """Judge routing on a GPU: what the dispatcher chooses, forward and backward, with poses in bf16."""
    found = []
    for case, must, aim in (("capsnet-28", 0.25, 0.10), ("capsnet-40", 0.60, 0.30)):
        for precision in _JUDGED:
            one, why = _chosen(readings, "agreement", case, precision)
            what = f"agreement, {_sizes(one, case)}, {_words(precision)}"
            found.append(BarReading(what, "ms", must, aim, one.median / MS if one else None, says=why or _how(one)))
    for case in ROUTING_CASES:
        for precision in _JUDGED:
            one, why = _chosen(readings, "em", case, precision)
            what = f"EM over its eager reference, {_sizes(one, case)}, {_words(precision)}"
            found.append(BarReading(what, "×", 8, 20, one.speedup if one else None, higher=True, says=why or _over(one)))
    for algorithm in ("agreement", "em"):
        all_of_it = [_chosen(readings, algorithm, case, precision) for case in ROUTING_CASES for precision in _JUDGED]
        ratios = [(one.memory / one.least_memory, one) for one, _ in all_of_it if one is not None]
        worst, most = max(ratios, key=lambda pair: pair[0]) if ratios else (None, None)
        says = f"{_how(most)}, worst: {most.case}, {most.precision}" if most else all_of_it[0][1]
        what = f"{algorithm}: extra peak memory over inputs, outputs and gradients, {' and '.join(ROUTING_CASES)}"
        found.append(BarReading(what, "×", 2, 0, worst, says=says))
    return found


def step_bars(readings: Sequence[StepReading]) -> list[BarReading]:
    """Judge the training step, an epoch and large images on a GPU."""
    found = []
    for size, must, aim in ((28, 1.9, 1.0), (40, 3.3, 2.0)):
        one, why = _step(readings, Job("capsnet", size, 128, "bf16"))
        measured = one.median / MS if one else None
        found.append(BarReading(f"CapsNet step, {size} px", "ms", must, aim, measured, says=why or _stepped(one)))
    for size, must, aim in ((28, 0.40, 0.20), (40, 0.75, 0.40)):
        (one, why), (other, and_why) = (_step(readings, Job(model, size, 128, "bf16")) for model in ("capsnet", "convnet_avg"))
        gap = (one.median - other.median) / MS if one and other else None
        says = f"{one.median / MS:.3f} − {other.median / MS:.3f}" if one and other else why or and_why
        found.append(BarReading(f"CapsNet step − ConvNet-Avg step, {size} px", "ms", must, aim, gap, says=says))
    large = large_jobs()
    one, why = _step(readings, large[0])
    says = "; ".join(_room(reading) for reading in readings if _job(reading) in large) or why
    what = "CapsNet on 224×224, I = 346,112, batch 64: memory of training"
    found.append(BarReading(what, "GiB", 30, 20, one.memory / GIB if one else None, says=says))
    epoch, why = _step(readings, Job("capsnet", 28, 128, "bf16"), what=EPOCH)
    says = f"{epoch.accuracy:.2%} right on the test set, {_spread(epoch)}, the first epoch left out" if epoch else why
    found.append(BarReading("MNIST epoch with evaluation, 28 px", "s", 1.2, 0.5, epoch.median if epoch else None, says=says))
    return found


def cpu_bars(readings: Sequence[RoutingReading]) -> list[BarReading]:
    """Judge routing on a CPU: agreement at CapsNet's sizes, batch 32, against the eager reference in the same run.

    With a compiler the fastest counts of what needs one: our own library, or torch.compile around any implementation. Without
    one, the fastest of the rest.
    """
    asked = [r for r in readings if (r.algorithm, r.case, r.mode) == ("agreement", "capsnet-28", BOTH)]
    here = [r for r in asked if not r.problem]
    eager = next((r for r in here if r.implementation == REFERENCE and not r.compiled), None)
    built = [r for r in here if r.compiled or r.implementation == BY_COMPILER]
    plain = [r for r in here if r is not eager and r not in built]
    found = []
    for name, those, must in (("without a compiler", plain, 2.5), ("with a compiler", built, 6.0)):
        one = max(those, key=lambda r: r.speedup, default=None)
        what, why = f"agreement over its eager reference, {_sizes(one, 'capsnet-28')}, {name}", _why_not(asked)
        speedup = one.speedup if one else None
        found.append(BarReading(what, "×", must, 0, speedup, higher=True, says=_how(one) if one else why))
        share = one.memory / eager.memory if one and eager else None
        says = f"{one.memory:,} of {eager.memory:,} bytes" if one and eager else why
        found.append(BarReading(f"peak memory over the reference's, {name}", "×", 1 / 3, 0, share, says=says))
    return found


def _chosen(readings: Sequence[RoutingReading], algorithm: str, case: str, precision: str) -> tuple[RoutingReading | None, str]:
    """Return what the dispatcher took, or why there is nothing to judge."""
    wanted = (algorithm, case, precision, BOTH)
    same = [r for r in readings if (r.algorithm, r.case, r.precision, r.mode) == wanted]
    one = next((r for r in same if r.chosen and not r.problem), None)
    return one, "" if one else _why_not(same)


def _step(readings: Sequence[StepReading], job: Job, *, what: str = STEP) -> tuple[StepReading | None, str]:
    """Return the reading of a job, or why there is nothing to judge."""
    same = [reading for reading in readings if (reading.what, _job(reading)) == (what, job)]
    one = next((reading for reading in same if not reading.problem), None)
    return one, "" if one else _why_not(same)


def _job(r: StepReading) -> Job:
    return Job(r.model, r.size, r.batch_size, r.precision, r.options, r.implementation, r.fast)


def _why_not(those: Sequence[RoutingReading] | Sequence[StepReading]) -> str:
    """Say why none of them can be judged."""
    problems = (f"{one.implementation}: {one.problem}" for one in those if one.problem)
    return ("; ".join(problems) or "nothing of it was timed") if those else NOT_RUN


def _sizes(one: RoutingReading | None, case: str) -> str:
    return case if one is None else " ".join(f"{letter}{size}" for letter, size in one.sizes.items())


def _words(precision: str) -> str:
    return f"{precision} (as the fast step calls it)" if precision == PART_OF_STEP else precision


def _how(one: RoutingReading | None) -> str:
    return "" if one is None else f"{one.implementation}{' compiled' if one.compiled else ''}, {one.how}, {_spread(one)}"


def _over(one: RoutingReading | None) -> str:
    if one is None:
        return ""
    # the reference as it is called, over the same of this one.
    called = f", {one.speedup * one.median / one.called:.3g}× as both are called from Python" if one.called else ""
    return f"{_how(one)}; {one.device_speedup:.3g}× its kernels alone, replayed as a graph{called}"


def _stepped(one: StepReading | None) -> str:
    return "" if one is None else f"{one.precision}, routed by {one.routed_by}, {_spread(one)}"


def _spread(one: RoutingReading | StepReading) -> str:
    return f"{one.low / MS:.3g} to {one.high / MS:.3g} ms in {one.repeats}"


def _room(one: StepReading) -> str:
    by = f"{one.implementation if one.implementation != 'auto' else one.routed_by}"
    if one.problem:
        return f"{by}: {one.problem}"
    return f"{by}: {one.memory / GIB:.3g} GiB allocated, {one.reserved / GIB:.3g} reserved, {one.median / MS:.4g} ms a step"
