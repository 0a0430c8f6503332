"""Training on a GPU: the fast step is the plain one, nobody waits inside an epoch, and what goes wrong is said."""

from __future__ import annotations

import gc
import itertools
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_runs import made_pairs
from torch import Tensor, nn

import capsella
from capsella.data import ImageData
from capsella.errors import RunError
from capsella.report.inside import couplings, one_of_each, see
from capsella.train import NonFiniteLoss, OutOfMemory, TrainConfig, fit, turns
from capsella.train.loop import Trainer
from capsella.train.processes import make_fabric
from capsella.train.step import Stepper

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


def some_data(count: int = 256, **options: Any) -> ImageData:
    made = torch.Generator().manual_seed(0)
    labels = torch.arange(count) % 10
    images = torch.rand(count, 1, 28, 28, generator=made) * 0.3
    for k in range(count):
        images[k, 0, 2 * int(labels[k]) + 2] += 0.7
    return capsella.data.from_tensors((images * 255).to(torch.uint8), labels, **options)


def a_model(name: str = "capsnet_small", **options: Any) -> capsella.Model:
    torch.manual_seed(0)
    return capsella.create_model(name, **options)


def losses(model: nn.Module | None = None, data: ImageData | None = None, **settings: Any) -> list[float]:
    settings = {"epochs": 3, "batch_size": 64, "log_every": 1, "progress": False, **settings}
    run = fit(model or a_model(), some_data() if data is None else data, **settings)
    return [event["loss"] for event in run.events if event["event"] == "log"]


@pytest.mark.parametrize("name", ["capsnet_small", "convnet_small", "gcapsnet_multi", "quadratic_capsnet", "parse_capsnet"])
def test_the_fast_step_gives_the_losses_of_the_plain_one(name: str) -> None:
    side = 40 if name == "parse_capsnet" else 28
    data = some_data() if side == 28 else some_data(augment=capsella.data.Place(40))
    plain, fast = (losses(a_model(name, image_size=side), data, fast=fast) for fast in (False, True))
    assert len(plain) == len(fast) == 12
    # one order of sums is not another's; after some steps of Adam the difference has grown.
    assert fast[:4] == pytest.approx(plain[:4], rel=2e-5)
    assert fast == pytest.approx(plain, rel=5e-3)
    assert fast[-1] < fast[0]


def test_convolutions_in_tiles_are_part_of_the_fast_step() -> None:
    data = some_data()
    found = {}
    for tiled in (True, False):
        model = a_model("capsnet", channels=64, types=8, kernel_size=5)
        model.primary.conv.tiled = tiled  # True is an error where there are none
        found[tiled] = losses(model, data, fast=True, precision="bf16", batch_size=128)
    # two ways to round in half precision drift apart with every step of Adam.
    assert found[True][:3] == pytest.approx(found[False][:3], rel=2e-2)
    assert found[True][-1] < found[True][0]


def climbed(*, fast: bool, **settings: Any) -> tuple[list[float], list[Tensor]]:
    """Return the losses of a net whose couplings climb, and the couplings that it ends with."""
    model = a_model("quadratic_capsnet", reconstruction="none", init="yang2021")
    found = losses(model, fast=fast, **settings)
    return found, [parameter.detach().cpu().clone() for parameter in model.coupling_parameters()]


@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_couplings_that_climb_as_a_graph_climb_as_they_do_plainly(precision: str) -> None:
    # 256 images in batches of 60: the last one of an epoch is smaller, and is taken plainly.
    settings: dict[str, Any] = {"batch_size": 60, "schedule": "exponential", "decay": 0.5, "decay_steps": 5}
    (plain, one), (fast, other) = (climbed(fast=fast, precision=precision, **settings) for fast in (False, True))
    assert fast == pytest.approx(plain, rel=1e-3 if precision == "float32" else 3e-2)
    for a, b in zip(one, other, strict=True):
        moved = (a - 1).abs().max()
        assert moved > 1e-3
        # Adam's first steps are of full length whatever the slope: a sign that rounding turns is two of them.
        assert ((a - b).abs().mean() / moved) < 0.05


def test_couplings_that_climb_as_a_graph_go_on_after_a_checkpoint(tmp_path: Path) -> None:
    def run(folder: Path, **settings: Any) -> Any:
        given: dict[str, Any] = {"batch_size": 64, "epochs": 3, "fast": True, "progress": False, "folder": folder, **settings}
        return fit(a_model("quadratic_capsnet", reconstruction="none"), some_data(), **given)

    def halt(event: dict[str, Any]) -> None:
        if event["event"] == "log" and event["step"] == 6:
            raise KeyError("halted")

    whole = run(tmp_path / "whole", log_every=1)
    with pytest.raises(KeyError, match="halted"):
        run(tmp_path / "halved", listeners=[halt], log_every=1, checkpoint_seconds=0)
    again = run(tmp_path / "halved", resume=True, log_every=1, checkpoint_seconds=0)
    for a, b in zip(whole.model.coupling_parameters(), again.model.coupling_parameters(), strict=True):
        assert torch.allclose(a, b, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("routing", ["agreement", "em"])
def test_capsules_of_one_value_take_the_fast_step(routing: str) -> None:
    data = capsella.load_data("sign")
    given: dict[str, Any] = {"steps": 12, "batch_size": 256, "lr": 5e-3}
    plain, fast = (losses(a_model("sign_capsnet", routing=routing), data, fast=fast, **given) for fast in (False, True))
    assert fast == pytest.approx(plain, rel=1e-3)


@pytest.mark.parametrize(
    "settings",
    [
        {"schedule": "exponential", "decay": 0.1, "decay_steps": 4},
        {"optimiser": "sgd", "lr": 0.1, "momentum": 0.9, "weight_decay": 1e-3, "clip": 0.1, "bias_rate": 2.0},
        {"loss": "spread", "spread": (0.2, 0.9)},
    ],
    ids=["schedule", "sgd", "spread"],
)
def test_what_changes_from_step_to_step_changes_in_the_fast_step_too(settings: dict[str, Any]) -> None:
    plain, fast = (losses(fast=fast, **settings) for fast in (False, True))
    still = losses(**{**settings, "schedule": "constant", "spread": (0.2, 0.2)})
    assert fast == pytest.approx(plain, rel=1e-3)
    if settings.get("optimiser") != "sgd":
        assert fast != pytest.approx(still, rel=1e-2)


def test_a_fast_run_is_measured_between_its_epochs() -> None:
    runs = [
        fit(a_model(), some_data(), validation=some_data(100, split="val"), epochs=3, batch_size=64, progress=False, fast=fast)
        for fast in (False, True)
    ]
    plain, fast = ([event["validation"] for event in run.events if event["event"] == "epoch"] for run in runs)
    assert fast == pytest.approx(plain, abs=0.021)  # two of the hundred images


@pytest.mark.parametrize("precision", ["tf32", "bf16"])
def test_the_fast_step_is_the_plain_one_in_lower_precision_too(precision: str) -> None:
    assert losses(fast=True, precision=precision) == pytest.approx(losses(precision=precision), rel=3e-2)


def own_net(last: nn.Module) -> nn.Sequential:
    torch.manual_seed(0)
    # no bias before a normalisation: its gradient is nothing but rounding, which Adam would blow up.
    first = nn.Conv2d(1, 8, 5, stride=2, bias=False)
    return nn.Sequential(first, nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(1152, 10), last)


def test_a_module_of_ones_own_keeps_its_statistics_in_the_fast_step() -> None:
    nets = [own_net(nn.Identity()) for _ in range(2)]
    for net, fast in zip(nets, (False, True), strict=True):
        fit(net, some_data(), epochs=3, batch_size=64, progress=False, fast=fast)
    plain, fast_one = (net[1] for net in nets)
    assert isinstance(plain, nn.BatchNorm2d)
    assert isinstance(fast_one, nn.BatchNorm2d)
    torch.testing.assert_close(fast_one.running_mean, plain.running_mean, rtol=1e-3, atol=1e-5)
    assert int(fast_one.num_batches_tracked) == int(plain.num_batches_tracked) == 12  # type: ignore[arg-type]


def test_dropout_falls_elsewhere_at_every_fast_step() -> None:
    still = TrainConfig(batch_size=64, fast=True, lr=1e-30, log_every=1, epochs=100)
    trainer = Trainer(make_fabric(still), own_net(nn.Dropout(0.5)), some_data(64), None, still, loss="cross_entropy")
    found = []
    for _ in range(8):
        trainer._step(some_data(64).batch(range(64), device=trainer.stepper.device))
        trainer.at.batch = 0
        found.append(trainer._read()[0])
    assert len(set(found)) == 8


class Waits(nn.Module):
    """Looks at a value on the device, which no graph can hold."""

    def forward(self, x: Tensor) -> Tensor:
        """Wait."""
        return x * (1.0 if x.sum().item() == 0 else 2.0)


def test_a_network_that_no_graph_can_hold_is_refused_in_one_line() -> None:
    with pytest.raises(RunError, match=r"fast=True .* its step waits for the GPU; leave it out") as error:
        fit(own_net(Waits()), some_data(), epochs=3, batch_size=64, progress=False, fast=True)
    assert "\n" not in str(error.value)
    assert torch.cuda.get_sync_debug_mode() == 0
    assert fit(own_net(Waits()), some_data(), epochs=1, batch_size=64, progress=False).status == "finished"


def test_images_with_two_classes_take_the_same_fast_steps() -> None:
    plain, fast = (losses(data=made_pairs(256), model=a_model(image_size=36), fast=fast) for fast in (False, True))
    assert fast[:4] == pytest.approx(plain[:4], rel=2e-5)
    assert fast == pytest.approx(plain, rel=5e-3)


def test_a_fast_run_leaves_no_memory_behind() -> None:
    def left() -> int:
        losses(fast=True)
        gc.collect()
        return torch.cuda.memory_allocated()

    first = left()  # libraries keep a workspace for each stream
    assert left() - first < 2**20


def test_the_last_small_batch_of_an_epoch_is_not_lost_in_the_fast_step() -> None:
    data = some_data(200)
    plain, fast = (losses(data=data, fast=fast) for fast in (False, True))
    assert len(fast) == 12
    assert fast == pytest.approx(plain, rel=2e-2)


def test_gpu_and_cpu_take_the_same_first_steps() -> None:
    on_gpu, on_cpu = losses(device="cuda"), losses(device="cpu")
    assert on_gpu[:6] == pytest.approx(on_cpu[:6], rel=1e-3)


@pytest.mark.parametrize("precision", ["tf32", "bf16"])
def test_lower_precision_stays_near_float32(precision: str) -> None:
    assert losses(precision=precision)[:4] == pytest.approx(losses()[:4], rel=3e-2)


@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_no_step_inside_an_epoch_waits_for_the_device(fast: bool, precision: str) -> None:
    config = TrainConfig(batch_size=64, fast=fast, precision=precision, log_every=10_000, epochs=100)
    fabric = make_fabric(config)
    data = some_data(64 * 40)
    trainer = Trainer(fabric, a_model(), data, None, config, loss="margin")
    batches = iter(trainer._batches())
    for batch in itertools.islice(batches, 8):  # compiles, captures
        trainer._step(batch)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for batch in itertools.islice(batches, 20):
            trainer._step(batch)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert trainer.at.step == 28


@pytest.mark.parametrize("fast", [False, True])
def test_a_resumed_run_goes_on_where_it_was(tmp_path: Path, fast: bool) -> None:
    whole = losses(fast=fast)
    settings = {"batch_size": 64, "log_every": 1, "progress": False, "fast": fast}
    fit(a_model(), some_data(), folder=tmp_path / "run", epochs=3, steps=7, **settings)
    run = fit(a_model(), some_data(), folder=tmp_path / "run", epochs=3, resume=True, **settings)
    parts = [event["loss"] for event in capsella.Run.load(tmp_path / "run").events if event["event"] == "log"]
    assert run.record is not None
    assert run.record["steps"] == 12
    # sums on a GPU may be taken in another order each time.
    assert parts == pytest.approx(whole, rel=2e-2)


@pytest.mark.parametrize("fast", [False, True])
def test_a_loss_that_goes_bad_is_traced_to_its_step_and_layer(tmp_path: Path, fast: bool) -> None:
    data = some_data(128)
    model = a_model()
    settings = {"epochs": 40, "batch_size": 64, "log_every": 5, "progress": False, "fast": fast, "lr": 1e30}
    with pytest.raises(NonFiniteLoss) as error:
        fit(model, data, folder=tmp_path / "run", **settings)
    message = str(error.value)
    assert "step" in message
    assert "layer" in message or "weight" in message
    assert "last good checkpoint" in message
    kept = capsella.Run.load(tmp_path / "run")
    assert all(bool(value.isfinite().all()) for value in kept.model.state_dict().values())
    assert kept.status == "non-finite"


def test_out_of_memory_names_a_batch_size_that_fits() -> None:
    gc.collect()
    torch.cuda.empty_cache()
    total = torch.cuda.mem_get_info()[1]
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + 2**31) / total)
    try:
        data = some_data(4096)
        with pytest.raises(OutOfMemory, match=r"batch_size=4096 does not fit .* batch_size=\d+ fits") as error:
            fit(a_model("capsnet"), data, epochs=1, batch_size=4096, progress=False)
        size = int(str(error.value).rpartition("batch_size=")[2].split()[0])
        del error
        gc.collect()
        torch.cuda.empty_cache()
        assert size >= 64
        assert fit(a_model("capsnet"), data, epochs=1, steps=2, batch_size=size, progress=False).status == "finished"
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
        torch.cuda.empty_cache()


def test_a_run_that_was_trained_on_the_gpu_predicts_and_is_looked_into(tmp_path: Path) -> None:
    data = some_data()
    run = fit(a_model(), data, folder=tmp_path / "run", epochs=2, batch_size=64, progress=False)
    batch = data.batch(range(8))
    here = capsella.Run.load(tmp_path / "run").model.cpu().eval()
    with torch.no_grad():
        wanted = here(batch.images).scores
    torch.testing.assert_close(run.predict(batch.images).scores.cpu(), wanted, rtol=1e-3, atol=1e-5)
    assert isinstance(run.model, capsella.models.CapsuleNet)
    seen = see(run.model, data, one_of_each(data))
    assert seen.reconstructions.shape == seen.images.shape == (10, 1, 28, 28)
    assert couplings(run.model, data, 0)


@pytest.mark.parametrize("fast", [False, True])
def test_runs_that_take_turns_in_one_program_are_as_alone(fast: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "_LEAST", 0.0)
    # two of one net, whose graphs and workspaces must not meet; without graphs one that draws random numbers.
    names = ("capsnet_small", "capsnet_small", "convnet_small" if fast else "convnet_fc512")
    data, found, order = some_data(1024), {}, []
    step = Stepper.__call__

    def noted(self: Stepper, *args: Any, **kwargs: Any) -> None:
        order.append(self.config.seed)
        step(self, *args, **kwargs)

    def act(seed: int, name: str) -> None:
        if turns.is_shared():
            turns.take_a_stream("cuda")
        # nobody waits for the device within an epoch, so that kernels of several runs are under way at a time.
        run = fit(a_model(name), data, seed=seed, fast=fast, batch_size=64, epochs=3, log_every=10_000, progress=False)
        found[turns.is_shared(), seed] = [entry["loss"] for entry in (run.record or {})["history"]]

    monkeypatch.setattr(Stepper, "__call__", noted)
    acts = [partial(act, seed, name) for seed, name in enumerate(names)]
    for alone in acts:
        alone()
    order.clear()
    turns.in_turns(acts)
    assert order[-12:] == [0, 1, 2] * 4
    for seed in range(3):
        expected = found[False, seed]
        assert len(expected) == 3
        assert found[True, seed][0] == pytest.approx(expected[0], rel=1e-4)
        assert found[True, seed] == pytest.approx(expected, rel=5e-3)


def test_dropout_in_a_graph_does_not_go_with_other_runs_in_one_program() -> None:
    raised: list[str] = []

    def act() -> None:
        try:
            fit(a_model("convnet_fc512"), some_data(), fast=True, batch_size=64, epochs=1, progress=False)
        except RunError as error:
            raised.append(str(error))

    turns.in_turns([act])
    assert raised == ["fast=True with dropout does not go with other runs in one program; leave one of them out"]


# EM's kernels are compiled for two kinds of layers, forward and back, before the first step.
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", ["capsnet", "convnet_avg", "em_capsnet"])
def test_the_memory_estimate_is_near_what_a_step_takes(name: str) -> None:
    gc.collect()
    torch.cuda.empty_cache()
    # what earlier tests left behind, such as workspaces of libraries.
    before = torch.cuda.memory_allocated()
    run = fit(a_model(name), some_data(512), epochs=1, batch_size=256, progress=False)
    assert run.record is not None
    ratio = run.record["memory_estimate"] / (run.record["peak_memory"] - before)
    assert 0.5 < ratio < 2
