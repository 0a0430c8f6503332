"""Batches on a GPU: the values of the CPU, and no waiting for the device while an epoch runs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from made_files import use_as_mnist, write_mnist

from capsella.bench.data import PIPELINES, Pipeline, check
from capsella.data import ImageData, load_data
from capsella.data.draws import Draws, Order

pytestmark = pytest.mark.gpu
SETS = [("mnist", {}), ("mnist", {"normalise": "standardise"}), ("affnist", {}), *[(p.set_name, p.options) for p in PIPELINES]]


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    use_as_mnist(monkeypatch, write_mnist(tmp_path, train=600))
    return tmp_path


def test_random_numbers_are_the_same_on_both_devices() -> None:
    indices = torch.arange(10_000)
    here, there = (Draws(indices.to(device), seed=3, epoch=2) for device in ("cpu", "cuda"))
    assert torch.equal(here.words("a", 3), there.words("a", 3).cpu())
    assert torch.equal(here.uniform("a", 3), there.uniform("a", 3).cpu())
    assert torch.equal(Order(9_999, seed=1)[:], Order(9_999, seed=1, device="cuda")[:].cpu())


@pytest.mark.parametrize("pipeline", PIPELINES, ids=lambda pipeline: pipeline.name)
def test_a_gpu_draws_what_the_cpu_draws(pipeline: Pipeline, root: Path) -> None:
    check(pipeline, load_data(pipeline.set_name, root=root, **pipeline.options), torch.device("cuda"))


@pytest.mark.parametrize(("name", "options"), SETS)
@pytest.mark.parametrize("split", ["train", "test"])
def test_an_epoch_never_waits_for_the_device(name: str, options: dict[str, object], split: str, root: Path) -> None:
    data = load_data(name, split=split, root=root, **options).to("cuda")  # type: ignore[arg-type]
    list(data.batches(128))
    torch.cuda.set_sync_debug_mode("error")
    try:
        served = sum(len(batch) for _, batch in zip(range(50), data.batches(128, epoch=1), strict=False))
        indices = torch.arange(8, device="cuda")
        data.batch(indices, epoch=2)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert served == min(len(data), 50 * 128)


def test_the_set_is_copied_to_a_device_once(root: Path) -> None:
    data: ImageData = load_data("mnist", root=root)
    first = data.batch([1, 2], device="cuda")
    assert first.images.device == first.labels.device == torch.device("cuda", 0)
    assert data._at("cuda") is data._at("cuda:0")
    assert torch.equal(first.images.cpu(), data.batch([1, 2]).images)


@pytest.mark.parametrize(
    "options",
    [{}, {"normalise": "standardise"}, {"normalise": "peer2022"}, {"augment": "sabour_cifar", "normalise": "standardise"}],
)
def test_a_sample_on_a_gpu_does_not_depend_on_its_batch(options: dict[str, str], root: Path) -> None:
    data = load_data("mnist", root=root, **options).to("cuda")
    whole = data.batch(range(600), epoch=1).images
    for size in (1, 7, 128):
        parts = [data.batch(range(start, min(start + size, 600)), epoch=1).images for start in range(0, 600, size)]
        assert torch.equal(torch.cat(parts), whole)


def test_negative_indices_on_a_gpu_are_those_of_the_cpu(root: Path) -> None:
    data = load_data("mnist", root=root, augment="shift")
    here = data.batch([-1, -600], epoch=2).images
    there = data.batch(torch.tensor([-1, -600], device="cuda"), epoch=2, device="cuda").images
    assert torch.equal(here, there.cpu())
