"""A sample is a function of seed, epoch and its index: not of the batch, the block, the processes or where a run went on.

Run as a program, this file draws the share of one of two processes, for the test that compares them with one process.
"""

from __future__ import annotations

import functools
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from made_files import made_digits, use_as_mnist, write_mnist
from torch import Tensor

from capsella.data import Batch, Batches, ImageData, Order, Stored, base, load_data
from capsella.data.augment import AUGMENTATIONS, NORMALISATIONS, Affine, Normalisation, Place, augmentation
from capsella.data.transforms import centre

COUNT = 130


def stored(*, channels: int = 1, training: bool = True, augment: Any = None, normalise: str = "unit") -> ImageData:
    """Return made digits, or images of noise in colour, as a set."""
    if channels == 1:
        images = torch.from_numpy(made_digits(COUNT)[0])[:, None]
    else:
        images = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (COUNT, channels, 32, 30), dtype=np.uint8))
    return ImageData(
        samples=Stored(images, torch.arange(COUNT)),
        name="stored",
        split="train" if training else "test",
        digest="",
        class_names=tuple(map(str, range(COUNT))),
        options={},
        augment=augmentation(augment),
        normalise=Normalisation(normalise),
        training=training,
    )


@functools.cache
def sets() -> dict[str, ImageData]:
    """Return training and evaluation sets under every augmentation and normalisation."""
    found: dict[str, ImageData] = {}
    for training in (True, False):
        use = "train" if training else "evaluate"
        for name in AUGMENTATIONS:
            found[f"{use} {name}"] = stored(augment=name, training=training)
        for name in NORMALISATIONS:
            found[f"{use} colour {name}"] = stored(channels=3, augment="sabour_cifar", normalise=name, training=training)
        found[f"{use} place"] = stored(augment=Place(40), training=training)
        found[f"{use} double"] = stored(
            augment=Affine(rotation=20, shear=0.2, scale=(0.8, 1.2), position="shift", shift=3, double=True), training=training
        )
    return found


NAMES = list(sets())
TRAINED = [name for name in NAMES if name.startswith("train") and name != "train none"]


def loaded(root: Path) -> Iterator[tuple[str, ImageData]]:
    """Yield the sets that are made from MNIST."""
    for split in ("train", "fit", "val", "test"):
        for name, options in (
            ("mnist", {"augment": "shift", "normalise": "standardise"}),
            ("mnist40", {}),
            ("mnist40", {"augment": "shift", "canvas": 35}),
            ("multimnist", {"partners": 2, "shift": 6}),
            ("affnist", {"versions": 2, "augment": "affine"}),
        ):
            yield f"{name} {split} {len(options)}", load_data(name, split=split, root=root, **options)


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    use_as_mnist(monkeypatch, write_mnist(tmp_path, train=44, test=21))
    return tmp_path


def joined(batches: Batches | list[Batch]) -> list[Tensor]:
    """Return all images, labels and parts of some batches in a row."""
    found = [[value for value in vars(batch).values() if value is not None] for batch in batches]
    return [torch.cat(values) for values in zip(*found, strict=True)]


def assert_same(first: list[Tensor], second: list[Tensor]) -> None:
    assert len(first) == len(second) >= 2
    for one, other in zip(first, second, strict=True):
        assert one.dtype == other.dtype
        assert torch.equal(one, other)


def reference(data: ImageData, **run: int) -> list[Tensor]:
    """Draw every sample alone, in the order of an epoch."""
    order = Order(len(data), seed=run.get("seed", 0), epoch=run.get("epoch", 0))[:].tolist()
    return joined([data.batch([k], **run) for k in (order if data.training else range(len(data)))])


@functools.cache
def known(name: str) -> list[Tensor]:
    return reference(sets()[name], epoch=3, seed=1)


# single batches


@pytest.mark.parametrize("name", NAMES)
def test_a_sample_is_the_same_alone_and_in_any_company(name: str) -> None:
    data = sets()[name]
    run = {"epoch": 3, "seed": 1}
    whole = data.batch(torch.arange(COUNT), **run)
    assert whole.images.dtype == torch.float32
    assert whole.images.shape == (COUNT, *data.image_shape)
    alone = known(name)
    assert_same([value[alone[1].argsort()] for value in alone], joined([whole]))
    for company in ([3, 3, 0, 129], list(range(COUNT))[::-1], [129, *range(7)], [-1, 5]):
        some = data.batch(company, **run)
        assert torch.equal(some.images, whole.images[company])
        assert torch.equal(some.labels, whole.labels[company])
    image, label = data[4]
    assert torch.equal(image, data.batch([4]).images[0])
    assert int(label) == 4


@pytest.mark.parametrize("name", TRAINED)
def test_training_samples_are_drawn_anew_in_every_epoch_and_under_every_seed(name: str) -> None:
    data = sets()[name]
    runs = [(0, 0), (1, 0), (2, 0), (0, 1), (0, 2), (1, 1)]
    drawn = [data.batch(slice(None), epoch=epoch, seed=seed).images for epoch, seed in runs]
    for k, first in enumerate(drawn):
        for second in drawn[k + 1 :]:
            # a shift has 25 outcomes, so some coincide; most do not.
            assert float((first != second).flatten(1).any(dim=1).float().mean()) > 0.85
    again = data.batch(slice(None), epoch=1, seed=1)
    assert torch.equal(again.images, drawn[-1])


@pytest.mark.parametrize("name", [name for name in NAMES if name not in TRAINED])
def test_what_is_evaluated_on_never_changes(name: str) -> None:
    data = sets()[name]
    first = data.batch(slice(None)).images
    for epoch, seed in [(1, 0), (0, 1), (9, 9)]:
        assert torch.equal(data.batch(slice(None), epoch=epoch, seed=seed).images, first)


@pytest.mark.parametrize(
    ("name", "side"), [("none", 28), ("shift", 28), ("mirror_shift", 28), ("affine", 28), ("affnist", 40), ("sabour_cifar", 24)]
)
def test_what_is_evaluated_on_is_not_augmented(name: str, side: int) -> None:
    data = sets()[f"evaluate {name}"]
    expected = centre(data.images, (side, side))
    assert torch.equal(data.batch(slice(None), epoch=1, seed=1).images, expected / 255)


def test_numbers_of_numpy_and_torch_are_the_numbers_that_they_are() -> None:
    data = sets()["train shift"]
    expected = joined(data.batches(COUNT, epoch=2, seed=3))
    for kind in (np.int64, np.uint8, torch.tensor):
        assert_same(joined(data.batches(COUNT, epoch=kind(2), seed=kind(3))), expected)
        drawn = data.batch(expected[1], epoch=kind(2), seed=kind(3))
        assert torch.equal(drawn.images, expected[0])


@pytest.mark.parametrize("name", ["train shift", "train affnist", "train colour standardise"])
def test_torchs_own_generator_is_neither_used_nor_moved(name: str) -> None:
    data = sets()[name]
    torch.manual_seed(1)
    first, state = joined(data.batches(32)), torch.get_rng_state()
    torch.manual_seed(2)
    assert_same(joined(data.batches(32)), first)
    torch.manual_seed(1)
    assert torch.equal(torch.get_rng_state(), state)


def test_an_epoch_can_be_gone_through_twice() -> None:
    batches = sets()["train shift"].batches(32, epoch=1)
    assert_same(joined(batches), joined(batches))


@pytest.mark.parametrize("name", NAMES)
def test_the_number_of_threads_does_not_show(name: str) -> None:
    data, before = sets()[name], torch.get_num_threads()
    found = []
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            found.append(data.batch(slice(None), epoch=1).images)
    finally:
        torch.set_num_threads(before)
    assert torch.equal(*found)


@pytest.mark.parametrize("indices", [[], torch.arange(0), slice(5, 5)], ids=["list", "tensor", "slice"])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.filterwarnings("error")
def test_no_samples_are_an_empty_batch(name: str, indices: Any) -> None:
    data = sets()[name]
    batch = data.batch(indices)
    assert batch.images.shape == (0, *data.image_shape)
    assert batch.labels.shape == (0,)


# whole epochs


@pytest.mark.parametrize("size", [1, 7, 128, COUNT, 1_000])
@pytest.mark.parametrize("name", NAMES)
def test_an_epoch_is_the_same_in_batches_of_any_size(name: str, size: int) -> None:
    data = sets()[name]
    batches = data.batches(size, epoch=3, seed=1)
    served = list(batches)
    assert len(served) == len(batches) == math.ceil(COUNT / size)
    # the last one has what is left.
    assert [len(batch) for batch in served] == [size] * (COUNT // size) + [COUNT % size] * (COUNT % size > 0)
    assert_same(joined(served), known(name))


def test_sets_made_from_mnist_are_the_same_in_batches_of_any_size(made: Path) -> None:
    for name, data in loaded(made):
        expected = reference(data, epoch=1, seed=2)
        assert len(expected) == (4 if name.startswith("multimnist") else 2)
        for size in (7, 128):
            assert_same(joined(data.batches(size, epoch=1, seed=2)), expected)


@pytest.mark.parametrize(
    ("limit", "stretch"),
    [(1, 1), (1, 50), (3 * 7 * 4 * 28 * 28, 1), (3 * 7 * 4 * 28 * 28, 50), (1 << 40, 1), (1 << 40, 1 << 40)],
)
@pytest.mark.parametrize("name", ["train shift", "train colour standardise", "evaluate none"])
def test_blocks_and_stretches_do_not_show(name: str, stretch: int, limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    data = sets()[name]
    options = [{}, {"start": 3}, {"drop_last": True}, {"share": (1, 3)}, {"share": (0, 2), "start": 16, "drop_last": True}]
    expected = [[vars(batch) for batch in data.batches(7, epoch=1, **each)] for each in options]
    monkeypatch.setattr(base, "_BLOCK_BYTES", {"cpu": limit})
    monkeypatch.setattr(base, "_STRETCH", stretch)
    for each, before in zip(options, expected, strict=True):
        found = list(data.batches(7, epoch=1, **each))
        assert [len(batch) for batch in found] == [len(batch["images"]) for batch in before]
        for batch, other in zip(found, before, strict=True):
            assert torch.equal(batch.images, other["images"])
            assert torch.equal(batch.labels, other["labels"])


def test_the_order_depends_on_seed_and_epoch_only() -> None:
    def order(data: ImageData, size: int = 16, **options: Any) -> list[int]:
        return joined(data.batches(size, **options))[1].tolist()

    plain = stored()
    first = order(plain, seed=4, epoch=2)
    assert sorted(first) == list(range(COUNT))
    assert first != list(range(COUNT))
    assert first == Order(COUNT, seed=4, epoch=2)[:].tolist()
    for name in ("train none", "train shift", "train colour none", "evaluate none", "evaluate sabour_cifar"):
        assert order(sets()[name], 11, seed=4, epoch=2, shuffle=True) == first
        in_turn = list(range(COUNT))
        assert order(sets()[name], 11, seed=4, epoch=2, shuffle=False) == in_turn
        assert order(sets()[name], 11, seed=4, epoch=2) == (first if name.startswith("train") else in_turn)
    others = [order(plain, seed=seed, epoch=epoch) for seed, epoch in [(4, 0), (4, 1), (0, 2), (5, 2), (2, 4)]]
    assert len({tuple(each) for each in [first, *others]}) == 6


def test_an_unshuffled_epoch_has_the_same_samples_in_their_own_order() -> None:
    data = stored(augment="shift")
    mixed, plain = joined(data.batches(13, epoch=1)), joined(data.batches(13, epoch=1, shuffle=False))
    places = mixed[1].argsort()
    assert torch.equal(mixed[0][places], plain[0])


@pytest.mark.parametrize("size", [1, 4, 7, 128, 130, 131])
@pytest.mark.parametrize("training", [True, False])
def test_the_last_partial_batch_is_served_unless_it_is_dropped(size: int, training: bool) -> None:
    data = stored(training=training)
    whole = joined(data.batches(size))
    assert len(whole[0]) == COUNT
    short = data.batches(size, drop_last=True)
    served = list(short)
    assert len(served) == len(short) == COUNT // size
    assert all(len(batch) == size for batch in served)
    if served:
        assert_same(joined(served), [value[: COUNT // size * size] for value in whole])


@pytest.mark.parametrize("drop_last", [True, False])
@pytest.mark.parametrize("name", ["train sabour_cifar", "evaluate place"])
def test_a_run_goes_on_exactly_where_it_was_interrupted(name: str, drop_last: bool) -> None:
    data = sets()[name]
    whole = list(data.batches(19, epoch=1, seed=3, drop_last=drop_last))
    for start in range(len(whole) + 3):
        rest = data.batches(19, epoch=1, seed=3, drop_last=drop_last, start=start)
        served = list(rest)
        assert len(served) == len(rest) == max(0, len(whole) - start)
        if served:
            assert_same(joined(served), joined(whole[start:]))
            assert [len(batch) for batch in served] == [len(batch) for batch in whole[start:]]


@pytest.mark.parametrize("world", [2, 3, 5])
@pytest.mark.parametrize("size", [1, 7, 32, 200])
@pytest.mark.parametrize("name", ["train shift", "train colour standardise", "evaluate affine"])
@pytest.mark.filterwarnings("error")
def test_processes_share_every_batch_in_order(name: str, size: int, world: int) -> None:
    data = sets()[name]
    whole = list(data.batches(size, epoch=2))
    shares = [list(data.batches(size, epoch=2, share=(rank, world))) for rank in range(world)]
    assert {len(share) for share in shares} == {len(whole)}
    for k, batch in enumerate(whole):
        parts = [share[k] for share in shares]
        assert_same(joined(parts), joined([batch]))
        sizes = [len(part) for part in parts]
        assert max(sizes) - min(sizes) <= 1


def test_two_real_processes_draw_what_one_draws(made: Path, tmp_path: Path) -> None:
    running = []
    for rank in (0, 1):
        # another hash seed and another cache: nothing of it may show.
        own = {"PYTHONHASHSEED": str(rank + 1), "XDG_CACHE_HOME": str(tmp_path / f"home {rank}"), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, __file__, str(made), str(rank), str(tmp_path / f"{rank}.pt")]
        running.append(subprocess.Popen(command, env=os.environ | own, stderr=subprocess.PIPE, text=True))
    for process in running:
        _, errors = process.communicate()
        assert process.returncode == 0, errors
    shares = [torch.load(tmp_path / f"{rank}.pt") for rank in (0, 1)]
    alone = dict(everything(made))
    assert list(shares[0]) == list(shares[1]) == list(alone)
    for name, data in alone.items():
        for k, batch in enumerate(data.batches(16, epoch=3, seed=8)):
            expected = [value for value in vars(batch).values() if value is not None]
            halves = [torch.cat(pair) for pair in zip(shares[0][name][k], shares[1][name][k], strict=True)]
            assert_same(halves, expected)


def everything(root: Path) -> Iterator[tuple[str, ImageData]]:
    yield from sets().items()
    yield from loaded(root)


def draw_share(root: Path, rank: int, path: Path) -> None:
    """Write the batches of one of two processes."""
    with pytest.MonkeyPatch.context() as patch:
        # the same digits anew, in a folder of its own: they have the same checksums.
        use_as_mnist(patch, write_mnist(path.parent / f"digits {rank}", train=44, test=21))
        found = {
            name: [
                [value for value in vars(batch).values() if value is not None]
                for batch in data.batches(16, epoch=3, seed=8, share=(rank, 2))
            ]
            for name, data in everything(root)
        }
    torch.save(found, path)


# refusals


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size=0 is too small"),
        ({"start": -1}, "start=-1 is too small"),
        ({"share": (2, 2)}, r"share=\(2, 2\) names no process"),
        ({"share": (-1, 2)}, r"share=\(-1, 2\) names no process"),
        ({"share": (0, 0)}, r"share=\(0, 0\) names no process"),
    ],
)
def test_impossible_passes_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        stored().batches(**{"batch_size": 4, **options})


@pytest.mark.parametrize("index", [COUNT, -COUNT - 1, [0, COUNT], torch.tensor([COUNT])], ids=str)
def test_samples_that_are_not_there_are_refused(index: Any) -> None:
    with pytest.raises(IndexError, match=f"expected numbers from 0 to {COUNT - 1}"):
        stored().batch(index)


def test_the_kinds_of_indices_mean_the_same() -> None:
    data = stored(augment="shift")
    expected = data.batch([2, 4, 6]).images
    for same in (slice(2, 7, 2), range(2, 7, 2), (2, 4, 6), np.array([2, 4, 6]), torch.tensor([2, 4, 6]), [-128, -126, -124]):
        assert torch.equal(data.batch(same).images, expected)
    assert torch.equal(data.batch(4).images, expected[1:2])
    for wrong in ([0.5], [[1, 2]], torch.tensor([True, False])):
        with pytest.raises(TypeError, match="expected whole numbers"):
            data.batch(wrong)


if __name__ == "__main__":
    draw_share(Path(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
