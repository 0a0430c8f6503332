"""Growth with sizes, and attention beside routing: exponents of known powers, counts of parameters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import nn

from capsella.bench import attention, growth
from capsella.bench.problems import Problem
from capsella.bench.routing import BOTH, RoutingReading, Speeds

pytestmark = pytest.mark.usefixtures("own_litter")

CPU = torch.device("cpu")


def pretend(todo: Sequence[Problem], device: torch.device, **_: Any) -> Iterator[RoutingReading]:
    """Take a time that grows as B·I·J²·√D, and memory that does not grow at all."""
    for problem in todo:
        case = problem.case
        sizes = {"B": case.B, "I": case.I, "J": case.J, "D": case.D, "P": case.P}
        seconds = case.B * case.I * case.J**2 * case.D**0.5
        base = (problem.algorithm, case.name, sizes, problem.precision)
        yield RoutingReading(*base, "one", False, BOTH, median=seconds, memory=64)
        yield RoutingReading(*base, "other", False, BOTH, problem="refuses: all of it")


@pytest.fixture
def pretended(monkeypatch: pytest.MonkeyPatch) -> list[Problem]:
    asked: list[Problem] = []

    def note(todo: Sequence[Problem], device: torch.device, **options: Any) -> Iterator[RoutingReading]:
        asked.extend(todo)
        return pretend(todo, device, **options)

    for module in (growth, attention):
        monkeypatch.setattr(module, "measure_routing", note)
        monkeypatch.setattr(module, "Speeds", Speeds)
    monkeypatch.setattr(Speeds, "of", lambda device, precisions: Speeds(1.0, {}))
    return asked


def test_exponents_of_known_powers_are_found(pretended: list[Problem]) -> None:
    readings = list(growth.measure(CPU, algorithms=["agreement"]))
    found = {each.axis: each for each in growth.exponents(readings)}
    assert {axis: each.time for axis, each in found.items()} == pytest.approx({"B": 1, "I": 1, "J": 2, "D": 0.5})
    assert [each.memory for each in found.values()] == pytest.approx([0, 0, 0, 0])
    assert {each.implementation for each in found.values()} == {"one"}
    assert growth.facts(readings)["exponents"][0]["algorithm"] == "agreement"
    # the base lies on all four axes and is timed once.
    points = sum(len(values) for values in growth.CPU.values.values())
    assert len(pretended) == len(set(pretended)) == points - 3
    assert len(readings) == 2 * points


@pytest.mark.parametrize("grid", [growth.CPU, growth.GPU], ids=["cpu", "gpu"])
def test_the_base_lies_on_every_axis(grid: growth.Grid) -> None:
    assert all(getattr(grid.base, axis) in values for axis, values in grid.values.items())


def test_attention_stands_beside_routing_at_equal_sizes(pretended: list[Problem]) -> None:
    readings = list(attention.measure(CPU, quick=True, budget=0.0))
    sizes = {(problem.case.I, problem.case.J, problem.case.P, problem.case.D) for problem in pretended}
    assert sizes == {(4, 4, 4, 4), (8, 8, 4, 4), (4, 4, 8, 8)}
    for reading in readings:
        if reading.mechanism == attention.MHSA:
            module = nn.MultiheadAttention(reading.d, 1)
            assert reading.parameters == sum(p.numel() for p in module.parameters()) == 4 * reading.d**2 + 4 * reading.d
            assert reading.median > 0
            assert reading.memory > 0
        else:
            assert reading.parameters == reading.space == reading.n**2 * reading.d**2
    found = {(each["mechanism"], each["along"]): each for each in attention.exponents(readings)}
    assert found["RBA", "n"]["formula"] == pytest.approx(2)
    assert found["RBA", "d"]["parameters"] == pytest.approx(2)
    assert found["MHSA", "n"]["parameters"] == 0
    assert 1 < found["MHSA", "n"]["formula"] < 2


def test_formulas_are_those_of_table_3() -> None:
    n, d = 7, 3
    assert attention.space("MHSA", n, d) == 9
    assert attention.operations("MHSA", n, d) == 49 * 3 + 7 * 9
    assert attention.space("RBA", n, d) == attention.operations("RBA", n, d) == 49 * 9
