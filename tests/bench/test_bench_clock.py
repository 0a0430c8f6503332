"""The clock and the count of memory: what they measure is known beforehand."""

from __future__ import annotations

import os

import pytest
import torch

from capsella.bench import timing
from capsella.bench.clock import CLOCK, EVENTS, GRAPH, Times, peak_memory, time_all, time_as_it_runs

pytestmark = pytest.mark.usefixtures("own_litter")

CPU = torch.device("cpu")
MIB = 1 << 20


def test_contenders_take_turns() -> None:
    order = []
    runs = {name: lambda k, name=name: order.append((name, k)) for name in "ab"}
    found = time_all(runs, CPU, budget=1e-6)
    assert {name: times.how for name, times in found.items()} == {"a": CLOCK, "b": CLOCK}
    # warmed up once, then in turns, at least five readings each whatever the budget.
    assert order == [("a", 0), ("b", 0)] * 6
    assert [len(times.seconds) for times in found.values()] == [5, 5]


def test_more_time_gives_more_readings() -> None:
    few, many = (len(time_as_it_runs(lambda: None, CPU, budget=budget).seconds) for budget in (0.0, 10.0))
    assert (few, many) == (5, 200)


def test_the_median_is_the_middle() -> None:
    assert Times((3.0, 1.0, 10.0), CLOCK).median == 3.0


def test_what_other_programs_do_is_counted_in_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter([(100, 1000), (150, 1200)])
    monkeypatch.setattr(timing, "_ticks", lambda: next(ticks))
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    assert timing.load_before.__wrapped__() == 2.0
    monkeypatch.setattr(timing, "_ticks", lambda: None)
    assert timing.load_before.__wrapped__() is None


def test_peak_memory_counts_what_is_held_at_one_time() -> None:
    before = torch.ones(4 * MIB, dtype=torch.uint8)

    def two_at_a_time() -> None:
        first = torch.empty(MIB, dtype=torch.uint8)
        second = torch.empty(2 * MIB, dtype=torch.uint8)
        del first
        third = torch.empty(MIB, dtype=torch.uint8)
        third.zero_()
        second.zero_()

    assert peak_memory(two_at_a_time, CPU) == 3 * MIB
    assert peak_memory(before.zero_, CPU) == 0


def test_the_profiler_keeps_quiet(capfd: pytest.CaptureFixture[str]) -> None:
    peak_memory(lambda: torch.ones(3), CPU)
    assert capfd.readouterr().err == ""


@pytest.mark.gpu
def test_a_graph_is_replayed_where_one_can_be_captured() -> None:
    cuda = torch.device("cuda")
    sets = [torch.randn(256, 256, device=cuda, requires_grad=True) for _ in range(3)]

    def product(k: int) -> object:
        return torch.autograd.grad((sets[k] @ sets[k]).sum(), sets[k])

    def waits(k: int) -> float:
        return float(sets[k].detach().sum())

    found = time_all({"product": product, "waits": waits}, cuda, sets=3, budget=0.05)
    assert (found["product"].how, found["waits"].how) == (GRAPH, EVENTS)
    assert 0 < found["product"].median < 1e-2


@pytest.mark.gpu
def test_peak_memory_on_a_gpu_leaves_out_what_was_there() -> None:
    cuda = torch.device("cuda")
    there = torch.ones(8 * MIB, dtype=torch.uint8, device=cuda)
    assert peak_memory(lambda: there + 1, cuda) == 8 * MIB
