"""The whole training step, as ``capsella train`` takes it: forward, loss, decoder, backward, Adam; and an epoch of MNIST."""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from capsella.bench.clock import peak_memory, time_as_it_runs
from capsella.bench.gate import failure
from capsella.bench.parts import by_part, kernel_seconds
from capsella.bench.problems import REFERENCE, Least
from capsella.bench.routing import Speeds
from capsella.bench.timing import WrongValues
from capsella.data import Batch
from capsella.data.tensors import from_tensors
from capsella.errors import RunError
from capsella.models import Model, create_model
from capsella.routing.dispatch import choices, prefer
from capsella.train.config import TrainConfig
from capsella.train.memory import is_out_of_memory
from capsella.train.objectives import choose_loss
from capsella.train.processes import make_fabric, products_in, trying_algorithms
from capsella.train.step import Stepper

BOUND = {"float32": 5e-3, "bf16": 3e-2}
"""How far the fast step's first losses may be from the plain step's, relative to them.

Steps on noise swing: CapsNet's first losses at 40 pixels are 0.87, 2.91, 2.59, 0.86 and 2.10, and by the fourth bf16 itself is
1.3 % away from float32 (both plain, on a CPU). Two ways to round are then up to twice that apart.
"""

TRUNKS = {
    "capsnet": "convnet_avg",
    "aff_capsnet": "convnet_avg",
    "gcapsnet_fc": "convnet_avg",
    "capsnet_small": "convnet_small",
}
"""Capsule nets, and the ConvNets that have the same convolutions."""

NETS = ("capsnet", "aff_capsnet", "em_capsnet", "gcapsnet_fc", "convnet_avg")
SMALL_NETS = ("capsnet_small", "convnet_small")

# of the gate: warm-up, capture and a replay of the fast step are all among them.
_COMPARED = 5
_CLASSES = 10

_MEMORY_SAYS = {
    "cuda": "everything allocated, weights and optimiser included (torch.cuda.max_memory_allocated)",
    "cpu": "what a step asks for beside weights and optimiser, from the allocations that torch.profiler notes",
}

STEP, EPOCH = "step", "epoch with evaluation"


@dataclass(frozen=True)
class Job:
    """A training step to time.

    Attributes:
        model: registry name.
        size: pixels a side, one channel.
        batch_size: images.
        precision: of the training.
        options: of the model.
        implementation: what ``impl="auto"`` means.
        fast: as ``--fast``.
    """

    model: str
    size: int
    batch_size: int
    precision: str
    options: dict[str, Any] = field(default_factory=dict)
    implementation: str = "auto"
    fast: bool = True

    @property
    def name(self) -> str:
        """Model, size and precision in words."""
        by = "" if self.implementation == "auto" else f", {self.implementation}"
        return f"{self.model}, {self.size} px, {self.precision}{'' if self.fast else ', plain'}{by}"


@dataclass(frozen=True)
class StepReading:
    """One training step, or one epoch.

    Attributes:
        what: ``STEP`` or ``EPOCH``.
        model: registry name.
        size: pixels a side.
        batch_size: images of a step.
        precision: of the training.
        fast: as ``--fast``.
        implementation: what ``impl="auto"`` meant.
        routed_by: implementations that the dispatcher chose, in the order of the layers.
        options: of the model.
        parameters: how many.
        median: seconds.
        low: smallest reading.
        high: largest reading.
        repeats: how many readings.
        how: what the clock was.
        memory: bytes; on a GPU everything, weights and optimiser included, elsewhere what a step asks for beside them.
        reserved: bytes that the allocator held of a GPU's memory, room between tensors and a graph's own included.
        floor: seconds that the step's least operations or bytes take on this device, whichever are more; 0 where none is known.
        floor_says: how the floor comes about.
        over_floor: median over floor.
        difference: largest relative difference of the first losses to the plain step's.
        accuracy: on the test set after the last epoch.
        parts: seconds by what a GPU does in them (``parts.PARTS``), as the profiler sees it.
        problem: why there is no time.
    """

    what: str
    model: str
    size: int
    batch_size: int
    precision: str
    fast: bool
    implementation: str = "auto"
    routed_by: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    parameters: int = 0
    median: float = 0.0
    low: float = 0.0
    high: float = 0.0
    repeats: int = 0
    how: str = ""
    memory: int = 0
    reserved: int = 0
    floor: float = 0.0
    floor_says: str = ""
    over_floor: float = 0.0
    difference: float = 0.0
    accuracy: float = 0.0
    parts: dict[str, float] = field(default_factory=dict)
    problem: str = ""

    @property
    def is_red(self) -> bool:
        """Whether it did not pass the gate; that memory ran out is none of that."""
        return self.problem.startswith(("wrong", "fails"))


def jobs(
    device: torch.device,
    *,
    models: Sequence[str] = (),
    sizes: Sequence[int] = (),
    precisions: Sequence[str] = (),
    batch_size: int | None = None,
) -> list[Job]:
    """List the steps to time; on a CPU small nets with small batches by default."""
    gpu = device.type == "cuda"
    nets = NETS if gpu else SMALL_NETS
    return [
        Job(model, size, batch_size or (128 if gpu else 32), precision)
        for precision in precisions or (("bf16", "float32") if gpu else ("float32",))
        for size in sizes or ((28, 40) if gpu else (28,))
        for model in models or nets
    ]


def large_jobs() -> list[Job]:
    """List the steps on 224×224 grey images, I = 346,112, without a decoder: as fast as it goes, and by the reference."""
    job = Job("capsnet", 224, 64, "bf16", {"reconstruction": "none"})
    return [job, replace(job, implementation="reference", fast=False)]


def with_plain(todo: Sequence[Job]) -> list[Job]:
    """Return each fast step followed by the plain one."""
    return [each for job in todo for each in (job, replace(job, fast=False))]


def differences(readings: Sequence[StepReading]) -> list[dict[str, Any]]:
    """Return what capsules and decoder add to the step of the ConvNet with the same trunk, where both were timed fast."""
    timed = {
        (reading.model, reading.size, reading.batch_size, reading.precision): reading.median
        for reading in readings
        if reading.what == STEP and reading.fast and reading.implementation == "auto" and not reading.problem
    }
    return [
        {"model": model, "trunk": TRUNKS[model], "size": size, "precision": precision, "seconds": seconds - timed[key]}
        for (model, size, batch_size, precision), seconds in timed.items()
        if (key := (TRUNKS.get(model, ""), size, batch_size, precision)) in timed
    ]


def facts(device: torch.device, readings: Sequence[StepReading]) -> dict[str, Any]:
    """Return what a record says beside its readings."""
    says = {"bound": BOUND, "memory_says": _MEMORY_SAYS[device.type], "compared": _COMPARED}
    return {**says, "differences": differences(readings)}


def least(job: Job) -> Least | None:
    """Count the least that a step costs: nothing is computed; None where a network looks at values.

    Operations are those of convolutions and matrix products, forward and backward, routing by the reference. Bytes are those of
    the images and of the weights: a gradient written, and read by Adam with the weight and two averages, which it writes.
    """
    with FakeTensorMode(), FlopCounterMode(display=False) as counter, prefer(REFERENCE):
        try:
            model = _model(job)
            images, classes = torch.empty(job.batch_size, 1, job.size, job.size), torch.zeros(job.batch_size, dtype=torch.long)
            found = model(images, classes)
            torch.autograd.backward([each.sum() for each in (found.scores, found.reconstruction) if each is not None])
        except DataDependentOutputException:
            return None
        weights = sum(4 * parameter.numel() for parameter in model.parameters())
    return Least(4 * weights + job.batch_size * job.size**2, 4 * weights, counter.get_total_flops())


def _model(job: Job) -> Model:
    image_size = (job.size, job.size)
    return create_model(job.model, image_size=image_size, in_channels=1, num_classes=_CLASSES, **job.options).train()


def measure(
    todo: Sequence[Job],
    device: torch.device,
    *,
    budget: float = 0.5,
    speeds: Speeds | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> Iterator[StepReading]:
    """Compare the first losses of the fast step with the plain one's, then time it.

    Args:
        todo: steps to time.
        device: where.
        budget: seconds of each timing.
        speeds: of the device; measured if None.
        say: is told what goes on.
    """
    speeds = speeds or Speeds.of(device, list(dict.fromkeys(job.precision for job in todo)))
    for job in todo:
        start = time.perf_counter()
        reading = _guarded(job, device, budget)
        cost = least(job)
        if cost is not None and not reading.problem:
            floor, says = speeds.floor(cost, job.precision)
            reading = replace(reading, floor=floor, floor_says=says, over_floor=reading.median / floor)
        took = f"in {time.perf_counter() - start:.1f} s"
        say(f"{job.name}: {reading.problem or f'losses agree to {reading.difference:.1g}, timed'} {took}")
        yield reading


def _guarded(job: Job, device: torch.device, budget: float) -> StepReading:
    base = StepReading(
        STEP, job.model, job.size, job.batch_size, job.precision, job.fast, job.implementation, options=job.options
    )
    try:
        return _time(job, device, budget, base)
    except WrongValues as error:
        problem = f"wrong: {error}"
    except RunError as error:
        problem = f"fails: {error}"
    except (RuntimeError, MemoryError) as error:
        problem = "out of memory" if is_out_of_memory(error) else failure(error)
    # outside the except clause, whose frames hold the tensors that did not fit.
    clear(device)
    return replace(base, problem=problem)


def _time(job: Job, device: torch.device, budget: float, base: StepReading) -> StepReading:
    with prefer(job.implementation), products_in(job.precision), trying_algorithms(job.fast):
        plain: list[float] = []
        if job.fast:
            with choices() as made, _stepping(replace(job, fast=False), device) as (stepper, act):
                plain = _losses(stepper, act)
        clear(device)
        with contextlib.ExitStack() as stack:
            # what the compiler traces is chosen once for all steps, and not noted.
            made = made if job.fast else stack.enter_context(choices())
            stepper, act = stack.enter_context(_stepping(job, device))
            losses = _losses(stepper, act)
            difference = max((abs(a - b) / abs(b) for a, b in zip(losses, plain, strict=False)), default=0.0)
            if not difference <= BOUND[job.precision]:
                raise WrongValues(f"losses {losses} differ by {difference:.2g} from the plain step's {plain}")
            routed_by = ", ".join(entry.name for _, entry in made[: len(made) // _COMPARED])
            times = time_as_it_runs(act, device, budget=budget)
            memory = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else peak_memory(act, device)
            reserved = torch.cuda.max_memory_reserved(device) if device.type == "cuda" else 0
            # a CPU's compiled loops are one operation to the profiler.
            parts = by_part(kernel_seconds(act, device), times.median) if device.type == "cuda" else {}
            parameters = sum(parameter.numel() for parameter in stepper.model.parameters())
    del stepper, act
    clear(device)
    return replace(
        base,
        routed_by=routed_by,
        parameters=parameters,
        median=times.median,
        low=min(times.seconds),
        high=max(times.seconds),
        repeats=len(times.seconds),
        how=times.how,
        memory=memory,
        reserved=reserved,
        difference=difference,
        parts=parts,
    )


@contextlib.contextmanager
def _stepping(job: Job, device: torch.device) -> Iterator[tuple[Stepper, Callable[[], None]]]:
    """Give a network's stepper, and a function that takes a step on one and the same batch."""
    config = TrainConfig(batch_size=job.batch_size, precision=job.precision, fast=job.fast, device=device.type)
    torch.manual_seed(0)
    model = _model(job)
    stepper = Stepper(make_fabric(config), model, config, choose_loss(config, model, several=False))
    batch = _batch(job, device)
    try:
        yield stepper, lambda: stepper(batch, rate=config.lr, progress=0.0, of=job.batch_size)
    finally:
        stepper.leave()


def _batch(job: Job, device: torch.device) -> Batch:
    rng = torch.Generator().manual_seed(0)
    images = torch.randint(256, (job.batch_size, 1, job.size, job.size), generator=rng, dtype=torch.uint8)
    # every class is there, also in a small batch.
    data = from_tensors(images, torch.arange(job.batch_size) % _CLASSES)
    return data.batch(torch.arange(job.batch_size), device=device)


def _losses(stepper: Stepper, act: Callable[[], None]) -> list[float]:
    """Take the first steps and return their losses."""
    found = []
    for _ in range(_COMPARED):
        act()
        found.append(float(stepper.sums[0] / stepper.sums[2]))
        stepper.sums.zero_()
    return found


def clear(device: torch.device) -> None:
    """Let go of compiled code and of memory, and count its peak anew."""
    torch.compiler.reset()
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
