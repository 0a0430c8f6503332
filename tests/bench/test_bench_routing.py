"""Routing on the bench: what is timed, what is only listed, and the floors, counted by hand."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from capsella import routing
from capsella.bench import routing as bench
from capsella.bench.problems import Problem, least
from capsella.routing import Implementation, Routed
from capsella.routing.dispatch import register_implementation
from capsella.testing import PAPERS, SMALL, Case

pytestmark = pytest.mark.usefixtures("own_litter")

CPU = torch.device("cpu")
SPEEDS = bench.Speeds(copy=1e9, products={"float32": 1e12, "bfloat16": 1e12, "mixed": 1e12})
PLAIN = Problem("uniform", SMALL[0], "float32")


def add(name: str, *, off: float = 0.0, reasons: list[str] | None = None, rank: int = 999) -> None:
    """Register a way to route uniformly that is off by so much."""

    def run(*tensors: torch.Tensor, rows: int, **options: object) -> Routed:
        found = routing.vote_and_route("uniform", *tensors, rows=rows, impl="reference", **options)
        return dataclasses.replace(found, poses=found.poses + off)

    register_implementation(Implementation("uniform", "vote_and_route", name, run, lambda call: reasons or [], rank))


def measured(problem: Problem = PLAIN, **options: object) -> list[bench.RoutingReading]:
    return list(bench.measure([problem], CPU, budget=0.0, speeds=SPEEDS, **options))  # type: ignore[arg-type]


@pytest.mark.usefixtures("registry")
def test_right_ones_are_timed_and_wrong_ones_are_not() -> None:
    add("right", rank=-2)
    add("wrong", off=0.1)
    add("picky", reasons=["needs an even number of capsules"], rank=-3)
    said: list[str] = []
    readings = [reading for reading in measured(modes=(bench.BOTH,), say=said.append) if reading.implementation in RULES]
    found = {reading.implementation: reading for reading in readings}
    assert found.keys() == RULES
    for name in ("reference", "right"):
        assert 0 < found[name].low <= found[name].median <= found[name].high
        assert found[name].over_floor == found[name].median / found[name].floor
        assert found[name].memory > 0
        assert not found[name].is_red
        # on a CPU that is the median.
        assert found[name].called == 0
    assert found["reference"].speedup == 1
    assert found["right"].speedup == found["reference"].median / found["right"].median
    assert [name for name in RULES if found[name].chosen] == ["right"]
    assert found["wrong"].problem.startswith("wrong: poses: largest error")
    assert found["wrong"].is_red
    assert found["picky"].problem == "refuses: needs an even number of capsules"
    assert not found["picky"].is_red
    assert all(found[name].median == 0 for name in ("wrong", "picky"))
    assert said[0].startswith("uniform, plain, float32: gate RED for 1 of ")


RULES = {"reference", "right", "wrong", "picky"}


def test_both_passes_are_timed_and_the_compiled_ones_where_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = []
    monkeypatch.setattr(torch, "compile", lambda run, **_: compiled.append(run.__name__) or run)
    readings = measured(compiled=[("uniform", "plain")])
    plain = {(r.implementation, r.mode) for r in readings if not r.compiled}
    assert {(r.implementation, r.mode) for r in readings if r.compiled} == {(name, bench.BOTH) for name in _timed(readings)}
    assert {mode for _, mode in plain} == {bench.FORWARD, bench.BOTH}
    assert compiled
    assert not [reading for reading in readings if reading.compiled and reading.chosen]


def _timed(readings: list[bench.RoutingReading]) -> set[str]:
    return {reading.implementation for reading in readings if not reading.problem}


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "mixed"])
def test_the_least_cost_is_counted(precision: str) -> None:
    B, I, J, D, P = 2, 3, 4, 5, 6
    problem = Problem("em", Case("tiny", B=B, I=I, J=J, D=D, P=P), precision)
    inputs = problem.cast(problem.draw(CPU))
    outputs = problem.run_with("reference")(**inputs)
    low, weight_size = (4, 4) if precision == "float32" else (2, 2 if precision == "bfloat16" else 4)
    given = low * (B * I * P + B * I) + weight_size * I * J * P * D + 4 * 2 * J
    results = low * (B * J * D + B * J)
    forward = least(problem, inputs, outputs, backward=False)
    assert (forward.read, forward.written) == (given, results)
    # votes, and eleven passes over them in three iterations; a multiplication and an addition each.
    assert forward.operations == 2 * B * I * J * D * (P + 11)
    both = least(problem, inputs, outputs, backward=True)
    assert (both.read, both.written) == (given + results, results + given)
    assert both.operations == 3 * forward.operations


def test_couplings_with_a_step_of_their_own_get_no_gradient() -> None:
    inputs = Problem("quadratic", SMALL[0], "bfloat16")
    leaves = inputs.cast(inputs.draw(CPU))
    assert {name: leaf.requires_grad for name, leaf in leaves.items()} == {"poses": True, "weight": True, "couplings": False}
    assert leaves["couplings"].dtype == torch.float32


def test_the_larger_of_two_floors_counts() -> None:
    slow_products = bench.Speeds(copy=1e9, products={"float32": 1.0})
    cost = least(PLAIN, PLAIN.cast(PLAIN.draw(CPU)), (), backward=False)
    assert SPEEDS.floor(cost, "float32") == (cost.moved / 1e9, f"{cost.moved:,} bytes at 1 GB/s")
    assert slow_products.floor(cost, "float32")[0] == cost.operations


def test_a_cpu_takes_a_quarter_of_the_papers_batches() -> None:
    assert [case.B for case in bench.cases(CPU)] == [case.B // 4 for case in PAPERS]
    assert bench.cases(torch.device("cuda")) == PAPERS
    assert bench.cases(CPU, quick=True) == SMALL


def test_a_gpu_times_the_precision_of_a_training_step_where_the_bars_are() -> None:
    found = bench.problems(torch.device("cuda"))
    mixed = {(problem.algorithm, problem.case.name) for problem in found if problem.precision == "mixed"}
    assert mixed == {(algorithm, case) for algorithm in ("agreement", "em") for case in ("capsnet-28", "capsnet-40")}
    assert {problem.precision for problem in bench.problems(CPU)} == {"float32"}
    assert {problem.algorithm for problem in found} == set(routing.names())


def test_an_unknown_case_is_named() -> None:
    with pytest.raises(ValueError, match=r"^case='capsnet-29' is unknown; did you mean 'capsnet-28'"):
        bench.problems(CPU, only=["capsnet-29"])


def test_one_without_room_is_listed_and_the_others_are_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    errors = iter([torch.OutOfMemoryError("CUDA out of memory"), RuntimeError("misaligned address\nin a kernel")])

    def fails(run: object, device: torch.device) -> int:
        raise next(errors, RuntimeError("another"))

    monkeypatch.setattr(bench, "peak_memory", fails)
    readings = measured(modes=(bench.FORWARD,))
    assert readings[0].problem == "out of memory"
    assert not readings[0].is_red
    assert [reading.problem for reading in readings[1:2]] in ([], ["fails: RuntimeError: misaligned address"])
    assert {reading.median for reading in readings} == {0.0}
