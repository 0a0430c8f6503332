"""The bars: from readings that are made up here to verdicts."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
import torch

from capsella.bench.bars import NOT_RUN, BarReading, cpu_bars, judge, judge_records, routing_bars, step_bars
from capsella.bench.routing import BOTH, FORWARD, RoutingReading
from capsella.bench.step import EPOCH, STEP, StepReading
from capsella.bench.timing import record
from capsella.errors import DataError

GIB = 1 << 30


def routed(algorithm: str = "agreement", case: str = "capsnet-28", **more: object) -> RoutingReading:
    base = RoutingReading(
        algorithm, case, {"B": 2, "I": 3}, "mixed", "fused", False, BOTH, chosen=True, median=2e-4, least_memory=100
    )
    return dataclasses.replace(base, **more)  # type: ignore[arg-type]


def stepped(model: str = "capsnet", size: int = 28, **more: Any) -> StepReading:
    return dataclasses.replace(StepReading(STEP, model, size, 128, "bf16", True), **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("measured", "higher", "verdict"),
    [
        (None, False, "not measured"),
        (0.5, False, "aim met"),
        (1.0, False, "aim met"),
        (2.0, False, "bar met"),
        (3.0, False, "MISSED by 1.5×"),
        (4.0, True, "bar met"),
        (1.0, True, "MISSED by 2×"),
    ],
)
def test_verdicts_say_what_is_missed_and_by_how_much(measured: float | None, higher: bool, verdict: str) -> None:
    assert BarReading("a", "ms", must=2, aim=5 if higher else 1, measured=measured, higher=higher).verdict == verdict


def test_a_bar_without_an_aim_is_met_at_best() -> None:
    assert BarReading("a", "×", must=2, aim=0, measured=0.1).verdict == "bar met"
    assert BarReading("a", "×", must=2, aim=0, measured=9.0, higher=True).verdict == "bar met"


def test_routing_is_judged_by_what_the_dispatcher_takes() -> None:
    readings = [
        routed(median=1e-5, chosen=False, implementation="faster"),
        routed(median=1e-5, mode=FORWARD),
        routed(memory=150),
        routed(precision="bfloat16", median=3e-4, memory=250),
        routed(precision="float32", median=9e-4, memory=900),
        routed("em", speedup=10.0, memory=10),
    ]
    bars = {bar.what: bar for bar in routing_bars(readings)}
    mixed = bars["agreement, B2 I3, mixed (as the fast step calls it)"]
    assert (mixed.measured, mixed.must, mixed.aim, mixed.verdict) == (pytest.approx(0.2), 0.25, 0.10, "bar met")
    assert bars["agreement, B2 I3, bfloat16"].verdict == "MISSED by 1.2×"
    assert bars["agreement, capsnet-40, bfloat16"].verdict == "not measured"
    assert not any("float32" in what for what in bars)  # the bars are about a step with a bf16 trunk
    assert bars["EM over its eager reference, B2 I3, mixed (as the fast step calls it)"].measured == 10
    memory = bars["agreement: extra peak memory over inputs, outputs and gradients, capsnet-28 and capsnet-40"]
    assert (memory.measured, memory.verdict) == (2.5, "MISSED by 1.25×")
    assert "capsnet-28, bfloat16" in memory.says


def test_what_did_not_pass_the_gate_is_not_measured() -> None:
    bars = routing_bars([routed(problem="wrong: poses")])
    assert {bar.verdict for bar in bars} == {"not measured"}
    # what is wrong is told apart from what nobody ran.
    assert [bar.says for bar in bars[:2]] == ["fused: wrong: poses", NOT_RUN]
    assert [bar.says for bar in step_bars([stepped(problem="wrong: losses")])[:2]] == ["auto: wrong: losses", NOT_RUN]
    assert cpu_bars([routed(problem="wrong: poses")])[0].says == "fused: wrong: poses"


@pytest.mark.parametrize("differs", [{"batch_size": 8}, {"options": {"reconstruction": "none"}}, {"fast": False}], ids=str)
def test_other_steps_are_not_taken_for_those_of_the_bars(differs: dict[str, Any]) -> None:
    assert step_bars([stepped(median=1e-3, **differs)])[0].says == NOT_RUN


def test_records_of_another_release_are_one_line() -> None:
    strange = {"kind": "step", "device": "a chip", "readings": [{"what": "step", "colour": "red"}]}
    with pytest.raises(DataError, match=r"^the record of step on a chip is not one of this release \(.*\); run capsella bench"):
        judge_records({"step": strange}, gpu=True)


def test_steps_are_judged_with_their_difference_to_the_trunk() -> None:
    without_decoder: dict[str, Any] = {"batch_size": 64, "options": {"reconstruction": "none"}}
    readings = [
        stepped(median=1.5e-3),
        stepped("convnet_avg", median=1.0e-3),
        stepped(size=40, median=1e-3, precision="float32"),
        stepped(size=224, memory=25 * GIB, reserved=28 * GIB, routed_by="fused", **without_decoder),
        stepped(size=224, implementation="reference", fast=False, problem="out of memory", **without_decoder),
        StepReading(EPOCH, "capsnet", 28, 128, "bf16", True, median=1.3, accuracy=0.99),
    ]
    bars = {bar.what: bar for bar in step_bars(readings)}
    assert bars["CapsNet step, 28 px"].verdict == "bar met"
    assert bars["CapsNet step, 40 px"].verdict == "not measured"
    assert bars["CapsNet step − ConvNet-Avg step, 28 px"].measured == pytest.approx(0.5)
    assert bars["CapsNet step − ConvNet-Avg step, 28 px"].verdict == "MISSED by 1.25×"
    large = bars["CapsNet on 224×224, I = 346,112, batch 64: memory of training"]
    assert (large.measured, large.verdict) == (25, "bar met")
    assert "28 reserved" in large.says
    assert "reference: out of memory" in large.says
    assert bars["MNIST epoch with evaluation, 28 px"].verdict == "MISSED by 1.08×"


def test_a_cpu_is_judged_against_its_own_reference() -> None:
    eager = routed(implementation="reference", chosen=False, memory=900, speedup=1.0)
    plain = routed(implementation="tiled", chosen=False, memory=300, speedup=2.4)
    built = routed(implementation="compiled", memory=90, speedup=6.5)
    bars = cpu_bars([eager, plain, built])
    assert [bar.verdict for bar in bars] == ["MISSED by 1.04×", "bar met", "bar met", "bar met"]
    assert [bar.measured for bar in bars] == pytest.approx([2.4, 1 / 3, 6.5, 0.1])
    # without the library there is nothing with a compiler.
    assert [bar.verdict for bar in cpu_bars([eager, plain])][2:] == ["not measured"] * 2


def test_with_a_compiler_the_faster_of_the_library_and_torch_compile_counts() -> None:
    eager = routed(implementation="reference", chosen=False, memory=900, speedup=1.0)
    built = routed(implementation="compiled", memory=90, speedup=6.5)
    for speedup, expected in ((5.0, 6.5), (8.0, 8.0)):
        wrapped = routed(implementation="tiled", chosen=False, compiled=True, memory=90, speedup=speedup)
        assert cpu_bars([eager, built, wrapped])[2].measured == expected


def test_parts_that_were_not_run_have_no_bars() -> None:
    assert len(judge([], [], gpu=True)) == len(judge([], None, gpu=True)) + len(judge(None, [], gpu=True))
    assert judge(None, [], gpu=False) == []
    assert len(judge([], None, gpu=False)) == 4


@pytest.mark.parametrize(("kind", "readings"), [("routing", [routed(median=1e-3)]), ("step", [stepped(median=2e-3)])])
def test_bars_are_judged_from_records_of_other_days_too(kind: str, readings: list[Any]) -> None:
    assert judge_records({}, gpu=True) == []
    written = json.loads(json.dumps(record(kind, torch.device("cpu"), readings)))
    routed_then, stepped_then = (readings if kind == which else None for which in ("routing", "step"))
    found = judge_records({kind: written}, gpu=True)
    assert found == judge(routed_then, stepped_then, gpu=True)
    assert any(bar.measured for bar in found)
