"""The health of capsule layers during training: right figures at the right steps, and a run that does not notice."""

from __future__ import annotations

import functools
import io
import json
import math
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from run_harness import assert_same_run, assert_same_tensors, interrupted, metrics, newest, timeless, tiny_model, train
from tiny_runs import CLASSES, SIDE, capsnet, differing, losses, made_data, one_line, plain_net, short_run, told, weights
from torch import Tensor, nn

import capsella
from capsella.analysis import (
    ForeignLayers,
    Revivals,
    Seen,
    activity,
    coupling_entropy,
    gradient_norms,
    observe,
    routing_dynamics,
    seen_layer,
)
from capsella.data import from_tensors
from capsella.models import evaluating
from capsella.nn import CapsuleLinear
from capsella.train import Run, children, watch
from capsella.train.board import Board
from capsella.train.progress import Progress
from capsella.train.watch import PROBE, figures_of, look, probe_of

CPU = torch.device("cpu")


class Restless(nn.Module):
    """A capsule net with whatever an onlooker could disturb: dropout, running statistics, numbers drawn at every call."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.below = nn.Sequential(nn.Conv2d(1, 8, 5, 4), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(0.3))
        self.above = CapsuleLinear(8, 4, CLASSES, 4)

    def forward(self, images: Tensor) -> Tensor:
        seen = self.below(images).flatten(2)
        return self.above(seen + 0.1 * torch.randn_like(seen)).activations  # type: ignore[no-any-return]


def watched(run: Run) -> list[dict[str, Any]]:
    return [event for event in run.events if event["event"] == "watch"]


def unwatched(run: Run) -> list[dict[str, Any]]:
    return [event for event in told(run) if event["event"] != "watch"]


def by_hand(model: nn.Module, images: Tensor, targets: Tensor) -> dict[str, float]:
    """Return the figures of a net whose layers are fully connected, numbered as the doctor does."""
    with evaluating(model):
        _, seen = observe(model, images)
    layers = [activity(poses) for poses in (seen[0].lower, *(each.poses for each in seen))]
    found: dict[str, float] = {}
    for number, layer in enumerate(layers, 1):
        found |= {
            f"layer{number}/capsules": len(layer.dead),
            f"layer{number}/dead": layer.cdr,
            f"layer{number}/length": layer.cnm,
            f"layer{number}/active": layer.car,
            f"layer{number}/revivals": 0,
            f"layer{number}/reactivated": 0,
        }
    for number, (below, above, each) in enumerate(zip(layers, layers[1:], seen, strict=False), 1):
        assert each.couplings is not None
        rate = routing_dynamics(each.couplings, alive=~above.dead, alive_sources=~below.dead).dyr_mean
        found |= {f"layer{number}/dyr": rate, f"layer{number}/entropy": coupling_entropy(each.couplings).mean}
    reached = gradient_norms(model, images, targets)
    found["layer1/gradient"] = float(reached[0].lower.mean())
    for number, each in enumerate([reached[0].lower, *(layer.upper for layer in reached[:-1])], 1):
        found[f"layer{number}/starved"] = float((each < each.mean() / 100).double().mean())
    for number, each in enumerate(reached, 2):
        found[f"layer{number}/gradient"] = float(each.upper.mean())
        found[f"layer{number}/weight_gradient"] = float(each.weights.mean())
    return found


def test_every_so_many_steps_the_figures_are_those_of_the_analysis() -> None:
    model, val = capsnet(), made_data(12, split="val", seed=5)
    kept: dict[int, dict[str, Tensor]] = {}

    def keep(event: dict[str, Any]) -> None:
        if event["event"] == "watch":
            kept[event["step"]] = {name: value.clone() for name, value in model.state_dict().items()}

    run = short_run(model, validation=val, steps=7, watch=2, listeners=[keep])
    events = watched(run)
    # three steps an epoch, of eight, eight and four images.
    assert [(e["step"], e["epoch"], e["images"]) for e in events] == [(2, 2 / 3, 16), (4, 4 / 3, 28), (6, 2.0, 40)]
    for event in events:
        then = capsnet()
        then.load_state_dict(kept[event["step"]])
        expected = by_hand(then, val.batch(range(12)).images, val.batch(range(12)).labels)
        assert set(event) == {"event", "step", "epoch", "images", *expected}
        assert {name: event[name] for name in expected} == pytest.approx(expected, rel=1e-6)
    assert events[0]["layer2/length"] != events[1]["layer2/length"]


def test_the_last_step_of_an_epoch_is_watched_before_the_epoch_is_summed_up() -> None:
    run = short_run(capsnet(), steps=None, epochs=1, watch=3)
    assert [event["event"] for event in run.events] == ["log", "log", "log", "watch", "epoch"]


def test_without_being_asked_for_nothing_is_watched() -> None:
    assert watched(short_run(capsnet())) == []


@pytest.mark.parametrize("routing", ["em", "uniform", "trainable", "quadratic", "convolutions"])
def test_every_routing_can_be_watched(routing: str) -> None:
    make = (
        functools.partial(tiny_model, "em_capsnet")
        if routing == "convolutions"
        else functools.partial(tiny_model, routing=routing)
    )
    (event,) = watched(train(make=make, steps=1, watch=1))
    assert {"layer1/dead", "layer1/dyr", "layer2/dead", "layer2/length", "layer2/active", "layer2/revivals"} <= set(event)
    assert ("layer4/dead" in event) == (routing == "convolutions")
    # the last layer is routed nowhere.
    assert "layer4/dyr" not in event
    assert all(isinstance(value, int | float) and math.isfinite(value) for key, value in event.items() if key != "event")


# the probe


def test_the_probe_is_of_the_validation_data_and_spread_over_them() -> None:
    data, val = made_data(20), made_data(1000, split="val", seed=5)
    found = probe_of(data, val, CPU).images
    assert len(found) == PROBE
    assert torch.equal(found, val.batch([k * 1000 // PROBE for k in range(PROBE)]).images)
    assert torch.equal(probe_of(data, made_data(3, split="val"), CPU).images, made_data(3, split="val").batch(range(3)).images)


def test_without_validation_data_it_is_of_the_training_images_as_they_are() -> None:
    images = torch.randint(0, 255, (10, 1, 8, 8), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    placed = from_tensors(images, torch.arange(10) % 2, split="train", augment=capsella.data.Place(12))
    still = from_tensors(images, torch.arange(10) % 2, split="test", augment=capsella.data.Place(12))
    assert not torch.equal(placed.batch(range(10)).images, still.batch(range(10)).images)
    assert torch.equal(probe_of(placed, None, CPU).images, still.batch(range(10)).images)


# the figures


def layer(lengths: Sequence[Sequence[float]], couplings: Tensor | None = None) -> Seen:
    """Return what would be seen of a layer of two lower capsules whose upper ones have these lengths, one row an image."""
    above = torch.tensor(lengths, dtype=torch.float32)[..., None]
    return seen_layer(torch.ones(len(above), 2, 1), above, couplings=couplings)


def test_revivals_are_counted_as_the_analysis_counts_them() -> None:
    draws = torch.rand(12, 5, generator=torch.Generator().manual_seed(0)) < 0.5
    expected, kept = Revivals(), []
    for dead in draws:
        expected.update(dead)
        found, kept = figures_of([layer([(~dead).float().tolist()] * 3)], kept)
        # as a checkpoint would keep it.
        kept = json.loads(json.dumps(kept))
        assert found["layer2/revivals"] == int(expected.compute().revivals.sum())
        assert found["layer2/dead"] == pytest.approx(dead.double().mean().item())
        assert found["layer1/revivals"] == 0
    assert found["layer2/revivals"] > 3


def test_who_comes_back_to_use_is_told_from_who_crosses_the_threshold_of_the_dead() -> None:
    # a capsule of each kind: dead at first; dies for good; flickers about the threshold; dies and is active in an image again.
    lengths = [
        [0.0, 0.5, 0.5, 0.5],
        [0.5, 0.0, 0.0, 0.0],
        [0.5, 0.0, 0.02, 0.0],
        [0.5, 0.0, 0.0, 0.5],
        [0.5, 0.0, 0.02, 0.0],
    ]
    kept: list[Any] = []
    seen = []
    for row in lengths:
        # the last one is active in one image of three alone.
        images = [row, row, [*row[:3], 0.0]]
        found, kept = figures_of([layer(images)], json.loads(json.dumps(kept)))
        seen.append((found["layer2/revivals"], found["layer2/reactivated"]))
    assert seen == [(0, 0), (1, 0), (2, 0), (3, 1), (4, 1)]
    assert kept[1]["active"] == [3]


def test_primary_capsules_come_back_too() -> None:
    kept: list[Any] = []
    for length in (1.0, 0.0, 1.0, 1.0):
        seen = seen_layer(torch.tensor([[[length], [1.0]]]).expand(3, 2, 1), torch.ones(3, 2, 1))
        found, kept = figures_of([seen], kept)
    assert (found["layer1/revivals"], found["layer2/revivals"]) == (1, 0)


def test_what_a_checkpoint_of_before_kept_belongs_to_the_layers_above_the_primary_capsules() -> None:
    found, kept = figures_of([layer([[1, 1]] * 3)], [{"dead": [1], "revivals": 4}])
    assert (found["layer1/revivals"], found["layer2/revivals"]) == (0, 5)
    assert found["layer2/reactivated"] == 0
    assert [len(life["dead"]) for life in kept] == [0, 0]
    # who was not dead then was alive.
    gone, kept = figures_of([layer([[0, 1]] * 3)], [{"dead": [1], "revivals": 0}])
    again, _ = figures_of([layer([[1, 1]] * 3)], kept)
    assert (gone["layer2/reactivated"], again["layer2/reactivated"]) == (0, 1)


def test_dynamics_are_those_of_live_sources_as_the_doctor_takes_them() -> None:
    # the second source is dead, and its couplings move most.
    couplings = torch.tensor([[[0.6, 0.4], [1.0, 0.0]], [[0.4, 0.6], [0.0, 1.0]]])
    lower = torch.tensor([[[1.0], [0.0]]]).expand(2, 2, 1)
    seen = seen_layer(lower, torch.ones(2, 2, 1), couplings=couplings)
    found, _ = figures_of([seen])
    assert found["layer1/dyr"] == pytest.approx(0.2)

    class Fixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.caps = nn.Identity()

        def forward(self, images: Tensor) -> Tensor:
            return self.caps(images).norm(dim=-1)  # type: ignore[no-any-return]

    adapter = ForeignLayers({"caps": lambda module, inputs, output: seen})
    record = capsella.diagnose(Fixed(), lower, adapter=adapter, views={}).record
    assert record["layers"][0]["dyr"] == pytest.approx(found["layer1/dyr"])


def test_over_the_sources_dynamics_are_of_live_targets_that_choose_among_live_sources() -> None:
    # the second target and the third source are dead, and their couplings move most.
    first = torch.tensor([[0.5, 1.0], [0.3, 0.0], [0.2, 0.0]])
    second = torch.tensor([[0.3, 0.0], [0.5, 0.0], [0.2, 1.0]])
    lower = torch.tensor([[[1.0], [1.0], [0.0]]]).expand(2, 3, 1)
    upper = torch.tensor([[[1.0], [0.0]]]).expand(2, 2, 1)
    seen = seen_layer(lower, upper, couplings=torch.stack([first, second]), normalise="sources")
    found, _ = figures_of([seen])
    # both live couplings move by 0.1 about their mean; perfect routing among two would move them by 0.5.
    assert found["layer1/dyr"] == pytest.approx(0.2)
    shares = torch.tensor([0.5, 0.3, 0.2])
    assert found["layer1/entropy"] == pytest.approx(float(torch.special.entr(shares).sum()) / math.log(3) / 2)


def test_what_is_no_number_is_left_out() -> None:
    uniform = torch.full((3, 2, 2), 0.5)
    assert {"layer1/dyr", "layer1/entropy"} <= set(figures_of([layer([[1, 1]] * 3, uniform)])[0])
    one_alive, _ = figures_of([layer([[1, 0]] * 3, uniform)])
    assert "layer1/dyr" not in one_alive
    assert one_alive["layer1/entropy"] == pytest.approx(1)
    no_shares, _ = figures_of([layer([[1, 1]] * 3, -uniform)])
    assert "layer1/entropy" not in no_shares
    assert no_shares["layer1/dyr"] == 0
    unknown, _ = figures_of([layer([[1, 1]] * 3)])
    assert not {"layer1/dyr", "layer1/entropy"} & set(unknown)
    broken, _ = figures_of([layer([[1, math.nan]] * 3, uniform * math.nan)])
    json.dumps([one_alive, no_shares, unknown, broken], allow_nan=False)


def test_a_target_of_a_convolution_is_alive_if_it_is_so_in_any_window() -> None:
    draw = torch.Generator().manual_seed(0)
    couplings = torch.rand(8, 6, 3, generator=draw).softmax(dim=-1)  # two windows of three lower capsules each
    lengths = torch.rand(8, 6, 1, generator=draw) + 0.5
    lengths[:, 4] = 0  # the second target, in the second window
    seen = replace(seen_layer(torch.ones(8, 6, 1), lengths), couplings=couplings, windows=2)
    found, _ = figures_of([seen])
    assert found["layer1/dyr"] == pytest.approx(routing_dynamics(couplings).dyr_mean)
    assert found["layer2/capsules"] == 6
    lengths[:, 1] = 0  # and in the first
    found, _ = figures_of([replace(seen, activations=lengths[..., 0])])
    alive = torch.tensor([True, False, True])
    assert found["layer1/dyr"] == pytest.approx(routing_dynamics(couplings, alive=alive).dyr_mean)


# the run does not notice


def test_a_network_is_left_as_it_was() -> None:
    model = Restless().train()
    model.below[3].eval()
    model(torch.rand(4, 1, SIDE, SIDE)).sum().backward()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    gradients = [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
    modes, drawn = [module.training for module in model.modules()], torch.get_rng_state()
    look(model, torch.rand(4, 1, SIDE, SIDE, generator=torch.Generator().manual_seed(0)))
    assert differing(before, model.state_dict()) == []
    assert all(torch.equal(a, b.grad) for a, b in zip(gradients, model.parameters(), strict=True) if b.grad is not None)
    assert [module.training for module in model.modules()] == modes
    assert torch.equal(torch.get_rng_state(), drawn)
    assert "_route" not in vars(model.above)


@pytest.mark.parametrize("make", [Restless, capsnet, functools.partial(capsnet, "quadratic_capsnet")])
def test_a_watched_run_is_the_unwatched_one_bit_for_bit(make: Any, tmp_path: Path) -> None:
    common = {"validation": made_data(9, split="val", seed=5), "test": made_data(6, split="test"), "steps": 7}
    plain = short_run(make(), folder=tmp_path / "plain", **common)
    seen = short_run(make(), folder=tmp_path / "seen", watch=2, **common)
    assert len(watched(seen)) == 3
    assert unwatched(seen) == unwatched(plain)
    assert timeless(seen.record["test"]) == timeless(plain.record["test"])
    one, other = newest(tmp_path / "seen"), newest(tmp_path / "plain")
    assert_same_tensors(one.weights, other.weights)
    assert_same_tensors(one.tensors, other.tensors)
    assert one.facts["position"]["watched"]
    assert timeless({**one.facts["position"], "watched": []}) == timeless(other.facts["position"])


def counting(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Let the compiler trace and guard as ever, but run what it traced as it is; return where it counts its graphs."""
    graphs: list[int] = []
    real = torch.compile

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(1)
        return graph.forward

    monkeypatch.setattr(torch, "compile", lambda run, **_: real(run, backend=backend, dynamic=False))
    return graphs


def test_a_compiled_step_is_compiled_once_and_takes_the_same_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    graphs = counting(monkeypatch)
    plain = short_run(capsnet(), fast=True, steps=8)
    alone = len(graphs)
    assert alone
    seen = short_run(capsnet(), fast=True, steps=8, watch=1)
    assert len(graphs) == 2 * alone
    assert losses(seen) == losses(plain)
    assert differing(weights(seen), weights(plain)) == []
    assert [event["step"] for event in watched(seen)] == [1, 2, 3, 4, 5, 6, 7, 8]


def test_a_network_that_its_owner_compiled_is_watched_as_it_was_written(monkeypatch: pytest.MonkeyPatch) -> None:
    graphs = counting(monkeypatch)
    model: Any = torch.compile(capsnet())
    images = torch.rand(4, 1, SIDE, SIDE, generator=torch.Generator().manual_seed(0))
    model(images)
    before = len(graphs)
    assert before
    found = [look(model, images)[0] for _ in range(3)]
    assert found == [look(capsnet(), images)[0]] * 3
    model(images)
    assert len(graphs) == before


@pytest.mark.slow
def test_a_fast_run_has_the_losses_of_the_unwatched_one() -> None:
    plain, seen = (short_run(capsnet(), fast=True, steps=8, watch=every) for every in (0, 2))
    assert losses(seen) == losses(plain)
    assert differing(weights(seen), weights(plain)) == []


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("fast", [False, True])
def test_a_gpu_takes_the_steps_of_the_unwatched_run(fast: bool) -> None:
    def run(every: int) -> Run:
        return short_run(capsnet(), made_data(64), device="cuda", fast=fast, steps=16, watch=every)

    plain, seen = run(0), run(2)
    assert [event["step"] for event in watched(seen)] == [2, 4, 6, 8, 10, 12, 14, 16]
    # cuDNN chooses its algorithms by time, and some add up in any order.
    assert losses(seen) == pytest.approx(losses(plain), rel=1e-4)
    probe = probe_of(made_data(64), None, torch.device("cuda"))
    expected = by_hand(seen.model, probe.images, probe.labels)["layer2/length"]
    assert watched(seen)[-1]["layer2/length"] == pytest.approx(expected, rel=1e-4)


# going on


@pytest.fixture
def lively(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let capsules die and come back from step to step, as the weights decide."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)
    real = watch.observe_in

    def seen(act: Callable[[], Any], model: nn.Module, images: int) -> tuple[Any, list[Seen]]:
        output, layers = real(act, model, images)
        return output, [replace(each, activations=_restless(each.poses)) for each in layers]

    monkeypatch.setattr(watch, "observe_in", seen)


def _restless(poses: Tensor) -> Tensor:
    alive = (poses.mean(dim=(0, 2)) * 1e5).floor() % 2
    return alive.expand(len(poses), -1)


@pytest.mark.parametrize("stops", [(1,), (2, 3), (5,)])
@pytest.mark.usefixtures("lively")
def test_a_run_that_goes_on_is_watched_as_if_it_had_not_been_stopped(
    stops: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(tmp_path / "whole", epochs=3, watch=2)
    revivals = [event["layer2/revivals"] for event in metrics(tmp_path / "whole") if event["event"] == "watch"]
    assert len(revivals) == 4
    assert revivals[-1] > revivals[0]
    done = 0
    for stop in stops:
        interrupted(monkeypatch, stop - done, tmp_path / "parts", resume=done > 0, epochs=3, watch=2)
        done = stop
    train(tmp_path / "parts", resume=True, epochs=3, watch=2)
    assert_same_run(tmp_path / "parts", tmp_path / "whole")


@pytest.mark.usefixtures("lively")
def test_what_came_after_a_checkpoint_is_not_written_twice(tmp_path: Path) -> None:
    train(tmp_path / "whole", watch=1, checkpoint_seconds=0.0)
    train(tmp_path / "run", watch=1, checkpoint_seconds=0.0)
    shutil.rmtree(newest(tmp_path / "run").path)
    train(tmp_path / "run", watch=1, resume=True, checkpoint_seconds=0.0)
    assert [event["step"] for event in metrics(tmp_path / "run") if event["event"] == "watch"] == [1, 2, 3, 4, 5, 6]
    assert_same_run(tmp_path / "run", tmp_path / "whole")


def test_how_often_is_watched_may_change_when_a_run_goes_on(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"folder": tmp_path / "run", "steps": None}
    short_run(capsnet(), epochs=1, **settings)
    short_run(capsnet(), epochs=2, watch=2, resume=True, **settings)
    run = short_run(capsnet(), epochs=3, watch=3, resume=True, **settings)
    assert [event["step"] for event in watched(run)] == [4, 6, 9]


# what is said


def test_a_network_without_capsules_is_one_line_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^watch=5 finds no capsule layer in this Sequential; expected watch=0, ") as caught:
        short_run(plain_net(), folder=tmp_path / "run", watch=5)
    one_line(caught.value)
    assert not (tmp_path / "run").exists()
    assert short_run(plain_net(), watch=0).status == "finished"


def test_progress_says_where_more_capsules_are_dead_than_before(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    monkeypatch.setattr(sys, "stderr", screen)
    shown = Progress()
    below = {"layer2/capsules": 72, "layer2/dead": 0.0}
    for step, first, third in ((100, 0, 0), (200, 0, 3), (300, 0, 3), (400, 2, 9), (500, 1, 9), (1600, 2, 8)):
        above = {"layer1/capsules": 1500, "layer1/dead": first / 1500, "layer3/capsules": 16, "layer3/dead": third / 16}
        shown({"event": "watch", "step": step, "epoch": 1.0, "images": 1, **below, **above})
    assert screen.getvalue().splitlines() == [
        "step 200: layer 3: 3 of 16 capsules are dead",
        "step 400: layer 1: 2 of 1,500, layer 3: 9 of 16 capsules are dead",
        "step 1,600: layer 1: 2 of 1,500 capsules are dead",
    ]


def test_how_far_one_of_several_runs_has_come_is_not_hidden_by_its_layers(tmp_path: Path) -> None:
    short_run(capsnet(), folder=tmp_path / "run", steps=4, log_every=2, watch=1)
    lines = (tmp_path / "run" / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    seen = [line for line in lines if b'"watch"' in line]
    (tmp_path / "metrics.jsonl").write_bytes(b"".join(lines) + 20 * seen[-1])
    event = children._last_event(tmp_path / "metrics.jsonl")
    assert event is not None
    assert event["event"] == "epoch"


def test_the_record_says_how_long_was_looked_and_progress_where_it_was_long(monkeypatch: pytest.MonkeyPatch) -> None:
    record = short_run(capsnet(), steps=4, watch=2).record
    assert record is not None
    assert 0 < record["watch_seconds"] < record["seconds"]
    unseen = short_run(capsnet(), steps=4).record
    assert unseen is not None
    assert unseen["watch_seconds"] == 0
    screen = io.StringIO()
    monkeypatch.setattr(sys, "stderr", screen)
    for looks in (0.0, 2.9, 10.0):
        told = {"seconds": 100.0, "watch_seconds": looks, "config": {"train": {"watch": 50}}}
        Progress()({"event": "end", "status": "finished", "record": told})
    # 90 seconds of steps, of which 3 % are 2.7.
    assert screen.getvalue() == "watching took 10% of the time; --watch 186 would take about 3%\n"


def test_tensorboard_has_a_curve_for_every_figure(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = short_run(capsnet(), folder=tmp_path / "run", steps=4, watch=2, listeners=[Board(tmp_path / "run")])
    board = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    board.Reload()
    seen = watched(run)
    figures = [name for name in seen[0] if name not in ("event", "step")]
    tags = {tag for tag in board.Tags()["scalars"] if tag.startswith("watch/")}
    assert tags == {f"watch/{name}" for name in figures}
    assert {"watch/layer1/dead", "watch/layer1/dyr", "watch/layer2/revivals", "watch/layer2/weight_gradient"} <= tags
    for name in figures:
        shown = [(point.step, pytest.approx(point.value, rel=1e-6)) for point in board.Scalars(f"watch/{name}")]
        assert shown == [(event["step"], event[name]) for event in seen]
