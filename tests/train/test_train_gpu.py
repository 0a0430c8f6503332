"""Training on a GPU: its losses are the CPU's, nobody waits inside an epoch, and what goes wrong is said."""

from __future__ import annotations

import gc
import itertools
from pathlib import Path
from typing import Any

import pytest
import torch

import capsella
from capsella.data import ImageData
from capsella.train import NonFiniteLoss, OutOfMemory, TrainConfig, fit
from capsella.train.loop import Trainer
from capsella.train.processes import make_fabric

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


def losses(name: str = "capsnet_small", data: ImageData | None = None, **settings: Any) -> list[float]:
    settings = {"epochs": 3, "batch_size": 64, "log_every": 1, "progress": False, **settings}
    run = fit(a_model(name), some_data() if data is None else data, **settings)
    return [event["loss"] for event in run.events if event["event"] == "log"]


def test_the_fast_step_is_refused_until_it_is_right() -> None:
    with pytest.raises(ValueError, match="fast=True is not ready for GPUs"):
        losses(fast=True)


def test_gpu_and_cpu_take_the_same_first_steps() -> None:
    on_gpu, on_cpu = losses(device="cuda"), losses(device="cpu")
    assert on_gpu[:6] == pytest.approx(on_cpu[:6], rel=1e-3)


@pytest.mark.parametrize("precision", ["tf32", "bf16"])
def test_lower_precision_stays_near_float32(precision: str) -> None:
    assert losses(precision=precision)[:4] == pytest.approx(losses()[:4], rel=3e-2)


@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_no_step_inside_an_epoch_waits_for_the_device(precision: str) -> None:
    config = TrainConfig(batch_size=64, precision=precision, log_every=10_000, epochs=100)
    fabric = make_fabric(config)
    data = some_data(64 * 40)
    trainer = Trainer(fabric, a_model(), data, None, config, loss="margin")
    batches = iter(trainer._batches())
    for batch in itertools.islice(batches, 8):
        trainer._step(batch)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for batch in itertools.islice(batches, 20):
            trainer._step(batch)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert trainer.at.step == 28


def test_a_resumed_run_goes_on_where_it_was(tmp_path: Path) -> None:
    whole = losses()
    settings = {"batch_size": 64, "log_every": 1, "progress": False}
    fit(a_model(), some_data(), folder=tmp_path / "run", epochs=3, steps=7, **settings)
    run = fit(a_model(), some_data(), folder=tmp_path / "run", epochs=3, resume=True, **settings)
    parts = [event["loss"] for event in capsella.Run.load(tmp_path / "run").events if event["event"] == "log"]
    assert run.record is not None
    assert run.record["steps"] == 12
    # sums on a GPU may be taken in another order each time.
    assert parts == pytest.approx(whole, rel=2e-2)


def test_a_loss_that_goes_bad_is_traced_to_its_step_and_layer(tmp_path: Path) -> None:
    data = some_data(128)
    model = a_model()
    settings = {"epochs": 40, "batch_size": 64, "log_every": 5, "progress": False, "lr": 1e30}
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


@pytest.mark.parametrize("name", ["capsnet", "convnet_avg", "em_capsnet"])
def test_the_memory_estimate_is_near_what_a_step_takes(name: str) -> None:
    gc.collect()
    torch.cuda.empty_cache()
    run = fit(a_model(name), some_data(512), epochs=1, batch_size=256, progress=False)
    assert run.record is not None
    ratio = run.record["memory_estimate"] / run.record["peak_memory"]
    assert 0.5 < ratio < 2
