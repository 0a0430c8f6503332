"""Routing alone: every implementation of every algorithm, forward and with its backward pass, beside floor and reference."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from capsella import routing
from capsella.bench.clock import MEMORY_SAYS, peak_memory, time_all, time_as_it_runs
from capsella.bench.gate import failure, red, sized
from capsella.bench.problems import OP, REFERENCE, Inputs, Least, Problem, Run, least
from capsella.bench.timing import bandwidth, product_rate
from capsella.errors import check_choice
from capsella.routing.base import Call
from capsella.routing.dispatch import candidates, choose
from capsella.testing import PAPERS, SMALL, Case
from capsella.train.memory import is_out_of_memory

FORWARD, BOTH = "forward", "forward + backward"

# the compiler takes 10 to 20 seconds for each, so it is asked only where a bar compares with it.
COMPILED = (("agreement", "capsnet-28"),)

# where a bf16 training step's own precision is timed too: what the bars are about.
IN_A_STEP = tuple((algorithm, case) for algorithm in ("agreement", "em") for case in ("capsnet-28", "capsnet-40"))

# a CPU takes a share of the papers' batches.
_CPU_SHARE = 4
# a GPU's second cache is passed this many times before an input set comes round again.
_CACHES, _MOST_SETS = 2, 8


@dataclass(frozen=True)
class RoutingReading:
    """One implementation on one problem.

    Attributes:
        algorithm: registry name.
        case: name of the sizes.
        sizes: by letter.
        precision: of poses and weight.
        implementation: registered name.
        compiled: whether torch.compile was put around it.
        mode: ``FORWARD`` or ``BOTH``.
        chosen: whether the dispatcher takes it by itself.
        median: seconds.
        low: smallest reading.
        high: largest reading.
        repeats: how many readings.
        how: what the clock was.
        memory: bytes, the most that it asks for beside its inputs and the results' gradients.
        least_memory: bytes of inputs and outputs, and of their gradients with a backward pass.
        floor: seconds that the least bytes or operations take on this device, whichever are more.
        floor_says: how the floor comes about.
        over_floor: median over floor.
        speedup: time of the eager reference over this one's; 0 where that was not timed. On a GPU the reference counts as it
            is called, launches and all.
        device_speedup: the same for the time of the device alone, the reference replayed as a CUDA graph.
        called: seconds of a call from Python on a GPU, launches and all; 0 elsewhere, where the median is that, and for what
            torch.compile was put around.
        problem: why there is no time: what it refuses, or what is wrong with its values.
    """

    algorithm: str
    case: str
    sizes: dict[str, int]
    precision: str
    implementation: str
    compiled: bool
    mode: str
    chosen: bool = False
    median: float = 0.0
    low: float = 0.0
    high: float = 0.0
    repeats: int = 0
    how: str = ""
    memory: int = 0
    least_memory: int = 0
    floor: float = 0.0
    floor_says: str = ""
    over_floor: float = 0.0
    speedup: float = 0.0
    device_speedup: float = 0.0
    called: float = 0.0
    problem: str = ""

    @property
    def is_red(self) -> bool:
        """Whether it did not pass the gate; a refusal is none of that."""
        return self.problem.startswith(("wrong", "fails"))


class _Way(NamedTuple):
    """An implementation, with or without torch.compile around it."""

    name: str
    compiled: bool


_EAGER = _Way(REFERENCE, False)


@dataclass(frozen=True)
class Speeds:
    """What a device can do at most: bytes per second of a copy, operations per second of a product by precision."""

    copy: float
    products: dict[str, float]

    @classmethod
    def of(cls, device: torch.device, precisions: Sequence[str]) -> Speeds:
        """Measure them."""
        dtypes = {name: torch.float32 if name == "float32" else torch.bfloat16 for name in precisions}
        rates = {dtype: product_rate(device, dtype) for dtype in dict.fromkeys(dtypes.values())}
        return cls(bandwidth(device), {name: rates[dtype] for name, dtype in dtypes.items()})

    def floor(self, cost: Least, precision: str) -> tuple[float, str]:
        """Return the least seconds, and which of the two limits sets them."""
        memory, products = cost.moved / self.copy, cost.operations / self.products[precision]
        if memory >= products:
            return memory, f"{cost.moved:,} bytes at {self.copy / 1e9:,.0f} GB/s"
        return products, f"{cost.operations:,} operations at {self.products[precision] / 1e12:,.3g} T/s"


def cases(device: torch.device, *, quick: bool = False) -> tuple[Case, ...]:
    """Return the sizes to time: the papers', on a CPU with a quarter of their batches; or the tests' small ones."""
    if quick:
        return SMALL
    return PAPERS if device.type == "cuda" else tuple(replace(case, B=max(1, case.B // _CPU_SHARE)) for case in PAPERS)


def problems(
    device: torch.device,
    *,
    quick: bool = False,
    only: Sequence[str] = (),
    algorithms: Sequence[str] = (),
    precisions: Sequence[str] = (),
) -> list[Problem]:
    """List what to time.

    Args:
        device: decides about batches, and by default about precisions: float32, on a GPU bfloat16 too, and mixed where a
            training step is like it.
        quick: the tests' small sizes.
        only: names of cases; all if empty.
        algorithms: registry names; all if empty.
        precisions: of ``PRECISIONS``.
    """
    found = {case.name: case for case in cases(device, quick=quick)}
    for name in only:
        check_choice("case", name, found)
    for name in algorithms:
        routing.get(name)

    def wanted(algorithm: str, case: str) -> tuple[str, ...]:
        if precisions or device.type != "cuda":
            return tuple(precisions) or ("float32",)
        return ("float32", "bfloat16", *(["mixed"] if (algorithm, case) in IN_A_STEP else []))

    return [
        Problem(algorithm, case, precision)
        for case in found.values()
        if not only or case.name in only
        for algorithm in algorithms or routing.names()
        for precision in wanted(algorithm, case.name)
    ]


def measure(
    todo: Sequence[Problem],
    device: torch.device,
    *,
    budget: float = 0.3,
    compiled: Sequence[tuple[str, str]] = COMPILED,
    modes: Sequence[str] = (FORWARD, BOTH),
    speeds: Speeds | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> Iterator[RoutingReading]:
    """Put every implementation through the gate, then time it.

    Args:
        todo: what to route.
        device: where.
        budget: seconds of each timing.
        compiled: algorithms and cases that torch.compile is put around too, in the first precision of each.
        modes: ``FORWARD``, ``BOTH``.
        speeds: of the device; measured if None.
        say: is told what goes on.
    """
    speeds = speeds or Speeds.of(device, list(dict.fromkeys(problem.precision for problem in todo)))
    seen = set()
    for problem in todo:
        start = time.perf_counter()
        key = (problem.algorithm, problem.case.name)
        readings = _time(problem, device, speeds, budget, modes, compile_too=key in compiled and key not in seen)
        seen.add(key)
        timed = sum(not reading.problem for reading in readings)
        wrong = sum(reading.is_red for reading in readings)
        gate = f"gate RED for {wrong} of {len(readings)}" if wrong else "gate green"
        say(f"{problem.name}: {gate}, {timed} timed in {time.perf_counter() - start:.1f} s")
        yield from readings
        if device.type == "cuda":
            torch.cuda.empty_cache()


def facts(device: torch.device, speeds: Speeds) -> dict[str, Any]:
    """Return what a record says beside its readings."""
    compiled = "; ".join(f"{algorithm} on {case}" for algorithm, case in COMPILED)
    return {
        "bandwidth": speeds.copy,
        "products": speeds.products,
        "memory_says": MEMORY_SAYS[device.type],
        "compiled_says": f"torch.compile is put around {compiled} with its backward pass, in the first precision alone: "
        "each takes 10 to 20 seconds",
    }


def _time(
    problem: Problem, device: torch.device, speeds: Speeds, budget: float, modes: Sequence[str], *, compile_too: bool
) -> list[RoutingReading]:
    usable, refused, chosen = _sort(problem, problem.cast(problem.draw(device)), device)
    # the reference first: its result is what the others' speed is relative to.
    usable.sort(key=lambda name: name != REFERENCE)
    ways = [_Way(name, compiled) for name in usable for compiled in ((False, True) if compile_too else (False,))]
    contenders = {way: problem.run_with(way.name, compiled=way.compiled) for way in ways}
    trouble = red(sized(problem, device), {way: run for way, run in contenders.items() if way != _EAGER}, device)
    runs = {way: run for way, run in contenders.items() if way not in trouble}
    readings = []
    for mode in modes:
        base = RoutingReading(problem.algorithm, problem.case.name, _sizes(problem.case), problem.precision, "", False, mode)
        # a forward pass alone would be compiled once more, and no bar asks for it.
        timed = {way: run for way, run in runs.items() if mode == BOTH or not way.compiled}
        for way, reading in _timed(problem, timed, device, speeds, budget, base).items():
            took = way == _Way(chosen, False)
            readings.append(replace(reading, implementation=way.name, compiled=way.compiled, chosen=took))
        for way, why in trouble.items():
            readings.append(replace(base, implementation=way.name, compiled=way.compiled, problem=why))
        for name, why in refused.items():
            readings.append(replace(base, implementation=name, problem=f"refuses: {why}"))
    if compile_too:
        torch.compiler.reset()
    return readings


def _sort(problem: Problem, inputs: Inputs, device: torch.device) -> tuple[list[str], dict[str, str], str]:
    """Return what can run the problem with gradients, why the others refuse, and which one the dispatcher takes."""
    options = {name: value for name, value in inputs.items() if name not in ("poses", "weight")}
    call = Call(
        algorithm=problem.algorithm,
        op=OP,
        device=device.type,
        dtype=problem.dtype,
        sizes=_sizes(problem.case),
        shared=False,
        rows=1,
        needs_grad=True,
        need_couplings=False,
        trace=False,
        options={**options, "need_couplings": False},
    )
    reasons: dict[str, list[str]] = {}
    for entry in candidates(problem.algorithm, OP):
        against = entry.refuse(call)
        # one name may stand for two ways, one of them enough.
        reasons[entry.name] = [] if reasons.get(entry.name) == [] else against
    usable = [name for name, against in reasons.items() if not against]
    refused = {name: "; ".join(against) for name, against in reasons.items() if against}
    return usable, refused, choose(call).name


def _timed(
    problem: Problem,
    runs: Mapping[_Way, Run],
    device: torch.device,
    speeds: Speeds,
    budget: float,
    base: RoutingReading,
) -> dict[_Way, RoutingReading]:
    mode = base.mode
    first = problem.cast(problem.draw(device))
    with torch.no_grad():
        outputs = problem.run_with(REFERENCE)(**first)
    cost = least(problem, first, outputs, backward=mode == BOTH)
    sets = _sets(cost, device)
    inputs = [first, *(problem.cast(problem.draw(device, seed)) for seed in range(1, sets))]
    pulls = (torch.randn_like(outputs[0]), torch.randn_like(outputs[1]))
    acts = {way: functools.partial(_act, run, inputs, pulls, mode) for way, run in runs.items()}
    memory: dict[_Way, int] = {}
    failed: dict[_Way, RoutingReading] = {}
    for way, act in acts.items():
        try:
            memory[way] = peak_memory(functools.partial(act, 0), device)
        # what passed the gate on fewer samples may not have room for all of them.
        except (RuntimeError, MemoryError) as error:
            failed[way] = replace(base, problem="out of memory" if is_out_of_memory(error) else failure(error))
    times = time_all({way: acts[way] for way in memory}, device, sets=sets, budget=budget)
    called: dict[_Way, float] = {}
    if device.type == "cuda":
        plain = [way for way in times if not way.compiled]
        called = {way: time_as_it_runs(functools.partial(acts[way], 0), device, budget=budget).median for way in plain}
    alone = times[_EAGER].median if _EAGER in times else 0.0
    eager = called.get(_EAGER, alone)
    floor, says = speeds.floor(cost, problem.precision)
    return {
        way: replace(
            base,
            median=found.median,
            low=min(found.seconds),
            high=max(found.seconds),
            repeats=len(found.seconds),
            how=found.how if sets == 1 else f"{found.how} of {sets} calls",
            memory=memory[way],
            least_memory=cost.moved,
            floor=floor,
            floor_says=says,
            over_floor=found.median / floor,
            speedup=eager / found.median,
            device_speedup=alone / found.median,
            called=called.get(way, 0.0),
        )
        for way, found in times.items()
    } | failed


def _act(run: Run, inputs: Sequence[Inputs], pulls: tuple[Tensor, Tensor], mode: str, k: int) -> object:
    if mode == FORWARD:
        with torch.no_grad():
            return run(**inputs[k])
    wanted = [leaf for leaf in inputs[k].values() if leaf.requires_grad]
    return torch.autograd.grad(run(**inputs[k]), wanted, pulls)


def _sets(cost: Least, device: torch.device) -> int:
    if device.type != "cuda":
        return 1
    cache = torch.cuda.get_device_properties(device).L2_cache_size
    return max(1, min(_MOST_SETS, math.ceil(_CACHES * cache / cost.moved)))


def _sizes(case: Case) -> dict[str, int]:
    return {"B": case.B, "I": case.I, "J": case.J, "D": case.D, "P": case.P}
