"""What a loaded set can do: batches by index and in passes, normalisation, augmentation, sets of one's own."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from made_files import made_digits, use_as_mnist, write_mnist
from test_data_sets import write_cifar10
from torch import Tensor

import capsella
from capsella import Batch, DataError, ImageData, list_data, load_data, register_data
from capsella.data import Augmentation, Content, Draws, Place, Places, SabourCifar, Shift, Stored, View, base, cifar
from capsella.data.registry import _SETS
from capsella.data.splits import members

N, TEST = 90, 30
Load = Callable[..., ImageData]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    root = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patch:
        use_as_mnist(patch, write_mnist(root, train=N, test=TEST))
        patch.setattr(cifar, "CIFAR10", write_cifar10(root))
        yield root


@pytest.fixture
def load(made: Path) -> Load:
    return lambda name, **options: load_data(name, root=made, **options)


@pytest.fixture
def enrol() -> Iterator[Callable[..., None]]:
    """Enrol sets of given images; they are gone after the test."""
    before = dict(_SETS)

    def wrap(name: str, images: Tensor, **options: Any) -> None:
        @register_data(name, summary="made here", **options)
        def build(split: str, places: Places) -> Content:
            return Content(Stored(images, torch.arange(len(images)) % 2), ("even", "odd"))

    yield wrap
    _SETS.clear()
    _SETS.update(before)


def grey(data: ImageData) -> np.ndarray:
    """Return all images as float64."""
    return data.images[:].numpy().astype(np.float64)


# top-level names


def test_the_names_at_the_top_are_those_of_the_data_module() -> None:
    for name in ("load_data", "list_data", "register_data", "ImageData", "Batch"):
        assert getattr(capsella, name) is getattr(capsella.data, name), name
        assert name in capsella.__all__
    assert capsella.DataError is capsella.data.DataError is capsella.errors.DataError
    assert issubclass(DataError, ValueError)


def test_everything_but_the_name_goes_by_keyword(made: Path) -> None:
    with pytest.raises(TypeError, match="positional"):
        load_data("mnist", "test", made)  # type: ignore[misc]


def test_options_are_kept_as_resolved(load: Load) -> None:
    data = load("multimnist", partners=2, augment="none", normalise="standardise")
    assert data.options == {"partners": 2, "shift": 4, "test_partners": None, "augment": "none", "normalise": "standardise"}
    assert load("mnist").options == {"augment": None, "normalise": "unit"}


def test_the_data_directory_may_come_from_the_environment(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CAPSELLA_DATA", str(made))
    assert load_data("mnist").digest == load_data("mnist", root=made).digest == load_data("mnist", root=str(made)).digest


def test_a_named_root_wins_over_the_environment(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CAPSELLA_DATA", str(made))
    with pytest.raises(DataError, match=re.escape(str(tmp_path))):
        load_data("mnist", root=tmp_path)


def test_a_root_that_is_a_file_is_one_clear_line(made: Path) -> None:
    path = made / "mnist/train-labels-idx1-ubyte.gz"
    with pytest.raises(ValueError, match=f"^root={str(path)!r} is a file; expected the folder"):
        load_data("mnist", root=path)


# batches by index


@pytest.mark.parametrize(
    ("indices", "meant"),
    [
        ([3, 1, 2], [3, 1, 2]),
        ((5, 5), [5, 5]),
        (range(2, 9, 3), [2, 5, 8]),
        (np.array([7, 0]), [7, 0]),
        (np.array([7, 0], np.uint8), [7, 0]),
        (np.array(4), [4]),
        (torch.tensor([9, 8]), [9, 8]),
        (torch.tensor([9, 8], dtype=torch.int32), [9, 8]),
        (6, [6]),
        (np.int64(6), [6]),
        ([np.int64(6), torch.tensor(2)], [6, 2]),
        (slice(4), [0, 1, 2, 3]),
        (slice(-2, None), [N - 2, N - 1]),
        (slice(8, 2, -3), [8, 5]),
        (slice(None, None, -30), [89, 59, 29]),
        ([-1, 0, -N], [N - 1, 0, 0]),
        (torch.tensor([-3]), [N - 3]),
    ],
    ids=repr,
)
def test_indices_are_taken_in_many_forms(load: Load, indices: Any, meant: list[int]) -> None:
    data = load("mnist")
    batch = data.batch(indices)
    assert torch.equal(batch.images, data.images[meant].float() / 255)
    assert torch.equal(batch.labels, data.labels[meant])
    assert batch.images.shape == (len(meant), 1, 28, 28)


@pytest.mark.parametrize(
    "nothing", [[], (), range(0), np.zeros(0, np.int64), torch.zeros(0), slice(0, 0), slice(N, None)], ids=repr
)
@pytest.mark.parametrize("name", ["mnist", "mnist40", "multimnist", "cifar10"])
@pytest.mark.parametrize("normalise", ["unit", "centred", "standardise", "peer2022"])
def test_no_indices_give_an_empty_batch(load: Load, name: str, nothing: Any, normalise: str) -> None:
    data = load(name, normalise=normalise, augment=None if name == "multimnist" else "shift")
    batch = data.batch(nothing)
    assert len(batch) == 0
    assert batch.images.shape == (0, *data.image_shape)
    assert batch.images.dtype == torch.float32
    assert batch.labels.dtype == torch.int64


@pytest.mark.parametrize(
    ("index", "named"),
    [([N], N), ([0, 200, 3], 200), ([-N - 1], -N - 1), ([-N - 1, N], -N - 1), (N, N), (torch.tensor([N]), N)],
)
def test_an_index_out_of_range_is_one_clear_line(load: Load, index: Any, named: int) -> None:
    for name in ("mnist", "mnist40", "multimnist"):
        with pytest.raises(IndexError) as error:
            load(name).batch(index)
        assert str(error.value) == f"indices has {named}; expected numbers from 0 to {N - 1}"


@pytest.mark.parametrize(
    ("indices", "dtype", "shape"),
    [
        ([0.0, 1.0], "torch.float64", [2]),
        (np.zeros(3), "torch.float64", [3]),
        ([True, False], "torch.bool", [2]),
        (np.ones(N, bool), "torch.bool", [N]),
        (True, "torch.bool", []),
        ([[0, 1], [2, 3]], "torch.int64", [2, 2]),
        (torch.zeros(1, 1, dtype=torch.int64), "torch.int64", [1, 1]),
    ],
)
def test_what_is_no_list_of_whole_numbers_is_a_type_error(load: Load, indices: Any, dtype: str, shape: list[int]) -> None:
    with pytest.raises(TypeError) as error:
        load("mnist").batch(indices)
    assert str(error.value) == f"indices has dtype {dtype} and shape {shape}; expected whole numbers [B]"


@pytest.mark.parametrize(
    "indices",
    [None, "abc", {1, 2}, [None], [slice(3)], [[1], [1, 2]], iter([1])],
    ids=["None", "text", "set", "list of None", "list of a slice", "ragged", "iterator"],
)
def test_what_is_no_index_at_all_is_a_type_error_that_names_the_argument(load: Load, indices: Any) -> None:
    with pytest.raises(TypeError, match=r"^indices"):
        load("mnist").batch(indices)


def test_a_reversed_array_is_a_list_of_indices_too(load: Load) -> None:
    data = load("mnist")
    assert torch.equal(data.batch(np.arange(5)[::-1]).labels, data.labels[[4, 3, 2, 1, 0]])


def test_an_array_that_may_not_be_written_to_is_taken_without_a_warning(load: Load, recwarn: pytest.WarningsRecorder) -> None:
    chosen = np.arange(3)
    chosen.flags.writeable = False
    assert load("mnist").batch(chosen).labels.tolist() == [0, 1, 2]
    assert [str(warning.message) for warning in recwarn] == []


def test_a_batch_unpacks_counts_and_splits(load: Load) -> None:
    batch = load("multimnist").batch(range(5))
    images, labels = batch
    assert images is batch.images
    assert labels is batch.labels
    assert len(batch) == 5
    for sizes, bounds in ((2, [(0, 2), (2, 4), (4, 5)]), ([1, 0, 4], [(0, 1), (1, 1), (1, 5)])):
        parts = list(batch.split(sizes))
        assert len(parts) == len(bounds)
        for part, (start, stop) in zip(parts, bounds, strict=True):
            assert isinstance(part, Batch)
            assert torch.equal(part.images, images[start:stop])
            assert torch.equal(part.labels, labels[start:stop])
            assert torch.equal(part.parts, batch.parts[start:stop])
            assert torch.equal(part.part_labels, batch.part_labels[start:stop])
    # without a copy.
    assert parts[2].images.data_ptr() == images[1:].data_ptr()


def test_one_sample_is_had_by_any_index_and_a_loop_ends(load: Load) -> None:
    data = load("mnist", split="test")
    for index in (0, 3, -1, np.int64(3), torch.tensor(3)):
        image, label = data[index]
        assert torch.equal(image, data.images[int(index)].float() / 255)
        assert label == data.labels[int(index)]
        assert label.shape == ()
    assert [int(label) for _, label in data] == data.labels.tolist()
    with pytest.raises(IndexError, match=f"^indices has {TEST}; expected numbers from 0 to {TEST - 1}$"):
        data[TEST]


@pytest.mark.parametrize("index", [1.5, [1, 2], "a", slice(0, 3), None], ids=repr)
def test_one_sample_by_anything_else_is_a_type_error(load: Load, index: Any) -> None:
    with pytest.raises(TypeError, match=r"^ind"):
        load("mnist")[index]


def test_torchs_own_loader_takes_a_set(load: Load) -> None:
    data = load("mnist", split="test")
    loader = torch.utils.data.DataLoader(data, batch_size=8)  # type: ignore[arg-type]
    images, labels = zip(*loader, strict=True)
    assert torch.equal(torch.cat(images), data.batch(slice(None)).images)
    assert torch.equal(torch.cat(labels), data.labels)


def test_a_batch_on_the_device_where_the_set_lies(load: Load) -> None:
    data = load("mnist40", augment="shift")
    plain = data.batch([1, 2], epoch=3)
    for device in ("cpu", torch.device("cpu")):
        assert torch.equal(data.batch([1, 2], epoch=3, device=device).images, plain.images)
        moved = data.to(device)
        assert torch.equal(moved.batch([1, 2], epoch=3).images, plain.images)
        assert moved.digest == data.digest
        assert moved.options == data.options
        assert moved.images.device.type == "cpu"


def test_a_set_on_another_device_leaves_the_first_where_it_is(load: Load) -> None:
    data = load("mnist40", augment="shift")
    moved = data.to("meta")
    assert moved.images.device.type == moved.labels.device.type == "meta"
    assert moved.batch([0, 1]).images.device.type == "meta"
    assert moved.batch([0, 1]).images.shape == (2, 1, 40, 40)
    assert data.images.device.type == "cpu"
    assert data.batch([0], device="meta").labels.device.type == "meta"
    assert data.batch([0]).images.device.type == "cpu"


def test_the_set_is_copied_to_a_device_once(load: Load) -> None:
    data = load("mnist")
    data.batch([0], device="meta")
    first = data._at("meta")
    data.batch([1], device="meta")
    assert data._at(torch.device("meta")) is first
    assert data._at("cpu") is data.samples


def test_an_empty_batch_gives_no_warning(load: Load, recwarn: pytest.WarningsRecorder) -> None:
    # a process that has no share in a small batch draws such.
    load("mnist", normalise="standardise").batch([])
    assert [str(warning.message) for warning in recwarn] == []


# parts and views


def test_only_composed_sets_have_parts(load: Load) -> None:
    for name in ("mnist", "mnist40", "cifar10", "affnist"):
        data = load(name)
        for method in (data.parts, data.part_labels):
            with pytest.raises(
                ValueError, match=f"^name='{name}' has images of one object each; parts are those of multimnist$"
            ):
                method([0])
        batch = data.batch([0])
        assert batch.parts is None
        assert batch.part_labels is None


def test_labels_and_images_of_multimnist_are_views(load: Load) -> None:
    data = load("multimnist", partners=2)
    images, labels = data.images, data.labels
    assert isinstance(images, View)
    assert isinstance(labels, View)
    assert tuple(labels.shape) == (2 * N, 10)
    assert (labels.ndim, images.ndim) == (2, 4)
    assert (labels.dtype, images.dtype) == (torch.int64, torch.uint8)
    assert len(labels) == 2 * N
    rows = labels[:]
    assert torch.equal(rows, data.batch(slice(None)).labels)
    assert torch.equal(rows, torch.zeros(2 * N, 10, dtype=torch.int64).scatter(1, data.part_labels(slice(None)), 1))
    for key in (3, -1, slice(2, 5), slice(None, None, 7), [4, 4], np.array([0, 9]), torch.tensor([5]), (3, 1), (slice(3), 2)):
        assert torch.equal(labels[key], rows[key]), key
    assert torch.equal(labels[::-7], rows[list(range(2 * N))[::-7]])
    pixels = images[:]
    for key in ((3, 0), (slice(2, 4), 0, slice(5), 7), (0, 0, 18, 18), ([1, 2], slice(None), 3)):
        assert torch.equal(images[key], pixels[key]), key
    assert [row.tolist() for row in itertools.islice(labels, 3)] == rows[:3].tolist()
    assert repr(labels) == f"View(shape=({2 * N}, 10), dtype=torch.int64)"
    with pytest.raises(IndexError, match=f"^indices has {2 * N}; expected numbers from 0 to {2 * N - 1}$"):
        labels[2 * N]


@pytest.mark.parametrize("index", [np.int64(3), torch.tensor(3)], ids=repr)
def test_a_view_takes_one_number_of_any_kind_as_a_tensor_does(load: Load, index: Any) -> None:
    labels = load("multimnist").labels
    assert torch.equal(labels[index], labels[:][index])


def test_a_batch_of_multimnist_is_the_sum_of_its_parts(load: Load) -> None:
    data = load("multimnist")
    batch = data.batch(range(20))
    parts = data.parts(range(20))
    assert parts.dtype == torch.uint8
    assert parts.shape == (20, 2, 1, 36, 36)
    assert torch.equal(batch.parts, parts.float() / 255)
    assert torch.equal(batch.part_labels, data.part_labels(range(20)))
    assert torch.equal(batch.images, parts.int().sum(dim=1).clamp(max=255).float() / 255)
    assert torch.equal(data.images[0:20], parts.int().sum(dim=1).clamp(max=255).to(torch.uint8))


# passes


@pytest.mark.parametrize(
    ("batch_size", "drop_last", "sizes"),
    [
        (8, False, [8] * 11 + [2]),
        (8, True, [8] * 11),
        (90, False, [90]),
        (91, False, [90]),
        (91, True, []),
        (1, True, [1] * 90),
    ],
)
def test_a_pass_has_as_many_batches_as_it_says(load: Load, batch_size: int, drop_last: bool, sizes: list[int]) -> None:
    batches = load("mnist40").batches(batch_size, drop_last=drop_last)
    assert [len(batch) for batch in batches] == sizes
    assert len(batches) == len(sizes)


def test_the_last_partial_batch_is_served_in_evaluation(load: Load) -> None:
    data = load("mnist", split="test")
    *_, last = data.batches(8)
    assert torch.equal(last.images, data.images[24:].float() / 255)
    assert len(last) == 6


def test_evaluation_goes_in_order_and_training_does_not(load: Load) -> None:
    test, train = load("mnist", split="test"), load("mnist")
    assert torch.equal(torch.cat([labels for _, labels in test.batches(7)]), test.labels)
    shuffled = torch.cat([images for images, _ in train.batches(7)])
    plain = train.batch(slice(None)).images
    assert not torch.equal(shuffled, plain)
    assert torch.equal(torch.cat([images for images, _ in train.batches(7, shuffle=False)]), plain)
    assert not torch.equal(torch.cat([images for images, _ in test.batches(7, shuffle=True)]), test.batch(slice(None)).images)
    # every image once.
    rows = sorted(image.tobytes() for image in shuffled.numpy())
    assert rows == sorted(image.tobytes() for image in plain.numpy())


def same(first: Batch, second: Batch) -> bool:
    pairs = zip(vars(first).values(), vars(second).values(), strict=True)
    return all((a is None and b is None) or torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize("name", ["mnist40", "multimnist", "cifar10"])
def test_going_through_a_pass_twice_gives_the_same(load: Load, name: str) -> None:
    batches = load(name, augment=None if name == "multimnist" else "shift").batches(16, epoch=2, seed=5)
    first, second = list(batches), list(batches)
    assert len(first) == len(second) == len(batches)
    assert all(same(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("name", ["mnist40", "multimnist", "cifar10"])
@pytest.mark.parametrize("block", [1, 100_000, 1 << 30])
@pytest.mark.parametrize("stretch", [1, 40, 1 << 17])
def test_batches_of_a_pass_are_those_of_their_indices(
    load: Load, name: str, block: int, stretch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = load(name, augment=None if name == "multimnist" else "shift")
    shuffled = list(data.batches(11, epoch=1, seed=3))
    # however many are ordered and drawn at once.
    monkeypatch.setitem(base._BLOCK_BYTES, "cpu", block)
    monkeypatch.setattr(base, "_STRETCH", stretch)
    indices = torch.split(torch.arange(len(data)), 11)
    plain = data.batches(11, epoch=1, seed=3, shuffle=False)
    assert all(same(batch, data.batch(some, epoch=1, seed=3)) for batch, some in zip(plain, indices, strict=True))
    assert all(same(a, b) for a, b in zip(data.batches(11, epoch=1, seed=3), shuffled, strict=True))
    halves = zip(*(data.batches(11, epoch=1, seed=3, share=(rank, 2)) for rank in (0, 1)), shuffled, strict=True)
    for first, second, whole in halves:
        assert torch.equal(torch.cat([first.images, second.images]), whole.images)


def test_epochs_and_seeds_give_other_orders(load: Load) -> None:
    data = load("mnist")
    orders = {
        tuple(torch.cat([labels for _, labels in data.batches(32, epoch=e, seed=s)]).tolist()) for e in (0, 1) for s in (0, 1)
    }
    assert len(orders) == 4


def test_the_order_does_not_depend_on_the_batch_size(load: Load) -> None:
    data = load("mnist40")
    images = [torch.cat([images for images, _ in data.batches(size, epoch=1)]) for size in (1, 7, 32, 200)]
    assert all(torch.equal(images[0], other) for other in images[1:])


@pytest.mark.timeout(20)
@pytest.mark.parametrize(("count", "epoch"), [(60, 8), (60, 22), (24, 40), (200, 9), (1, 0), (2, 0), (3, 1)])
def test_every_order_ends(enrol: Callable[..., None], count: int, epoch: int) -> None:
    # under seed 0 these have a cycle of positions beyond the set that never leads back into it.
    enrol("few", torch.arange(count).to(torch.uint8)[:, None, None, None])
    served = torch.cat([images for images, _ in load_data("few", normalise="none").batches(7, epoch=epoch)])
    assert sorted(served.flatten().tolist()) == list(range(count))


@pytest.mark.parametrize("start", [0, 1, 5, 11, 12, 50])
def test_a_pass_goes_on_where_it_was_interrupted(load: Load, start: int) -> None:
    data = load("mnist40")
    whole, rest = list(data.batches(8, epoch=4)), data.batches(8, epoch=4, start=start)
    assert len(rest) == max(0, 12 - start)
    assert all(same(a, b) for a, b in zip(whole[start:], rest, strict=True))


@pytest.mark.parametrize("processes", [2, 3, 8, 20])
def test_processes_share_every_batch(load: Load, processes: int) -> None:
    data = load("mnist40", normalise="standardise")
    whole = list(data.batches(8, epoch=4))
    shares = [list(data.batches(8, epoch=4, share=(rank, processes))) for rank in range(processes)]
    assert {len(share) for share in shares} == {len(whole)}
    for k, batch in enumerate(whole):
        pieces = [share[k] for share in shares]
        assert torch.equal(torch.cat([piece.images for piece in pieces]), batch.images)
        assert torch.equal(torch.cat([piece.labels for piece in pieces]), batch.labels)
        assert max(map(len, pieces)) - min(map(len, pieces)) <= 1


@pytest.mark.parametrize(
    ("given", "kind", "message"),
    [
        ({"batch_size": 0}, ValueError, "batch_size=0 is too small; expected an int of at least 1"),
        ({"batch_size": -3}, ValueError, "batch_size=-3 is too small; expected an int of at least 1"),
        ({"batch_size": 8.0}, TypeError, "batch_size=8.0 has type float; expected an int of at least 1"),
        ({"batch_size": True}, TypeError, "batch_size=True has type bool; expected an int of at least 1"),
        ({"batch_size": "8"}, TypeError, "batch_size='8' has type str; expected an int of at least 1"),
        ({"start": -1}, ValueError, "start=-1 is too small; expected an int of at least 0"),
        ({"start": 0.5}, TypeError, "start=0.5 has type float; expected an int of at least 0"),
        ({"drop_last": "no"}, TypeError, "drop_last='no' has type str; expected True or False"),
        ({"share": (2, 2)}, ValueError, "share=(2, 2) names no process; expected (rank, number) with 0 ≤ rank < number"),
        ({"share": (-1, 2)}, ValueError, "share=(-1, 2) names no process; expected (rank, number) with 0 ≤ rank < number"),
        ({"share": (0, 0)}, ValueError, "share=(0, 0) names no process; expected (rank, number) with 0 ≤ rank < number"),
    ],
)
def test_a_mistaken_pass_is_one_clear_line(load: Load, given: dict[str, Any], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind) as error:
        load("mnist").batches(**{"batch_size": 8, **given})
    assert str(error.value) == message


@pytest.mark.parametrize(
    "given",
    [{"shuffle": "no"}, {"shuffle": 1}, {"share": (0,)}, {"share": 2}, {"share": (0, 1, 2)}, {"share": (0.5, 2)}],
    ids=repr,
)
def test_a_mistaken_shuffle_or_share_names_the_argument(load: Load, given: dict[str, Any]) -> None:
    (argument,) = given
    with pytest.raises((TypeError, ValueError), match=f"^{argument}="):
        load("mnist").batches(8, **given)


def test_a_seed_from_numpy_is_the_same_seed(load: Load) -> None:
    data = load("mnist40")
    assert same(data.batch([0, 1, 2], seed=np.int64(7)), data.batch([0, 1, 2], seed=7))  # type: ignore[arg-type]


# normalisation


def standardised(images: np.ndarray) -> np.ndarray:
    """Give each image mean 0 and deviation 1, the deviation no less than one over the root of its size."""
    out = []
    for image in images:
        deviation = max(np.sqrt(((image - image.mean()) ** 2).mean()), 1 / np.sqrt(image.size))
        out.append((image - image.mean()) / deviation)
    return np.array(out)


def close(found: Tensor, expected: np.ndarray) -> None:
    torch.testing.assert_close(found.double(), torch.from_numpy(expected), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("split", ["train", "fit", "val", "test"])
def test_unit_divides_by_255_and_none_leaves_grey_levels(load: Load, split: str) -> None:
    data = load("mnist", split=split)
    assert data.normalise.kind == "unit"
    every = slice(None)
    assert np.array_equal(data.batch(every).images.numpy(), grey(data).astype(np.float32) / np.float32(255))
    raw = load("mnist", split=split, normalise="none").batch(every).images
    assert raw.dtype == torch.float32
    assert np.array_equal(raw.numpy(), grey(data))
    assert torch.equal(load("mnist", split=split, normalise="unit").batch(every).images, data.batch(every).images)


@pytest.mark.parametrize("split", ["train", "test"])
def test_centred_values_lie_on_both_sides_of_zero(load: Load, split: str) -> None:
    data = load("cifar10", split=split, normalise="centred")
    close(data.batch(slice(None)).images, grey(data) / 255 - 0.5)


@pytest.mark.parametrize("split", ["train", "fit", "val", "test"])
@pytest.mark.parametrize("name", ["mnist", "cifar10"])
def test_standardise_gives_each_image_mean_0_and_deviation_1(load: Load, name: str, split: str) -> None:
    data = load(name, split=split, normalise="standardise")
    images = data.batch(slice(None)).images
    close(images, standardised(grey(data)))
    torch.testing.assert_close(images.mean(dim=(1, 2, 3)), torch.zeros(len(data)), rtol=0, atol=1e-5)


@pytest.mark.parametrize("split", ["train", "fit"])
def test_peer2022_standardises_each_training_image_after_dividing_by_255(load: Load, split: str) -> None:
    data = load("mnist", split=split, normalise="peer2022")
    assert data.normalise.whole is None
    close(data.batch(slice(None)).images, standardised(grey(data) / 255))


@pytest.mark.parametrize("split", ["val", "test"])
@pytest.mark.parametrize("name", ["mnist", "cifar10", "mnist40", "multimnist"])
def test_peer2022_standardises_what_is_evaluated_on_as_one_array(load: Load, name: str, split: str) -> None:
    data = load(name, split=split, normalise="peer2022")
    values = grey(data) / 255
    assert data.normalise.whole == pytest.approx((values.mean(), values.std()), rel=1e-12)
    expected = (values - values.mean()) / values.std()
    close(data.batch(slice(None)).images, expected)
    # one image alone is treated with the numbers of all.
    close(data.batch([3]).images, expected[3:4])


def test_deviations_have_a_floor_of_one_over_the_root_of_the_size(enrol: Callable[..., None]) -> None:
    images = torch.zeros(3, 1, 4, 4, dtype=torch.uint8)
    images[0, 0, 0, 0] = 1  # deviation 0.24 of 255, below the floor of 1/4 on either scale
    images[1] = 90
    images[2, 0, :2] = 255
    enrol("flat", images)
    raw = images.double().numpy()
    for normalise, values in (("standardise", raw), ("peer2022", raw / 255)):
        found = load_data("flat", normalise=normalise).batch(range(3)).images
        close(found, standardised(values))
        assert found[0].max() > 0
        assert (found[1] == 0).all()
        assert found[2].unique().tolist() == pytest.approx([-1, 1], abs=1e-5)
    small = load_data("flat", normalise="peer2022").batch([0]).images
    torch.testing.assert_close(small[0, 0, 0, 0], torch.tensor((1 - 1 / 16) / 255 * 4))


def test_normalisation_is_of_the_augmented_image(load: Load) -> None:
    plain = load("cifar10", augment="sabour_cifar", normalise="none")
    data = load("cifar10", augment="sabour_cifar", normalise="standardise")
    close(data.batch(range(20), epoch=2).images, standardised(plain.batch(range(20), epoch=2).images.double().numpy()))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("standardize", "normalise='standardize' is unknown; did you mean 'standardise'? Known: 'centred', 'none', "),
        ("units", "normalise='units' is unknown; did you mean 'unit'? Known: "),
        (5, "normalise=5 is unknown. Known: "),
        (["unit"], "normalise=['unit'] is unknown; did you mean 'unit'? Known: "),
        (False, "normalise=False is unknown. Known: "),
    ],
)
def test_an_unknown_normalisation_names_the_near_match(load: Load, value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        load("mnist", normalise=value)


# augmentation


def moved(image: np.ndarray, down: int, right: int) -> np.ndarray:
    """Shift [C, H, W] by whole pixels, zeros coming in, pixel by pixel."""
    out = np.zeros_like(image)
    _, height, width = image.shape
    for row in range(height):
        for column in range(width):
            if 0 <= row - down < height and 0 <= column - right < width:
                out[:, row, column] = image[:, row - down, column - right]
    return out


@pytest.mark.parametrize("split", ["train", "fit"])
def test_shift_moves_training_images_by_what_was_drawn_for_them(load: Load, split: str) -> None:
    data = load("mnist", split=split, augment="shift")
    chosen = torch.arange(30)
    found = data.batch(chosen, epoch=2, seed=11).images
    top, left = Draws(chosen, seed=11, epoch=2).integers("shift", 5, 5)
    for k in range(30):
        # row `top` − 2 of the image becomes row 0.
        expected = moved(grey(data)[k] / 255, 2 - int(top[k]), 2 - int(left[k]))
        np.testing.assert_allclose(found[k].numpy(), expected, rtol=1e-6)
    assert set(top.tolist()) == set(left.tolist()) == {0, 1, 2, 3, 4}


@pytest.mark.parametrize("augment", ["shift", "affine"])
@pytest.mark.parametrize("split", ["val", "test"])
def test_what_is_evaluated_on_is_not_moved(load: Load, augment: str, split: str) -> None:
    data, plain = load("mnist", split=split, augment=augment), load("mnist", split=split)
    assert torch.equal(data.batch(slice(None), epoch=3, seed=4).images, plain.batch(slice(None)).images)


@pytest.mark.parametrize("augment", ["shift", "affine", "affnist"])
def test_training_images_are_moved_anew_in_every_epoch_and_under_every_seed(load: Load, augment: str) -> None:
    data = load("mnist", augment=augment)
    first = data.batch(range(20)).images
    assert torch.equal(first, data.batch(range(20)).images)
    assert not torch.equal(first, data.batch(range(20), epoch=1).images)
    assert not torch.equal(first, data.batch(range(20), seed=1).images)
    assert torch.equal(data.images, load("mnist").images)


def test_affnist_as_an_augmentation_makes_40_by_40_and_keeps_the_middle_in_evaluation(load: Load) -> None:
    for split in ("fit", "val"):
        data = load("mnist", split=split, augment="affnist")
        assert data.image_shape == (1, 40, 40)
        assert data.batch(range(5)).images.shape == (5, 1, 40, 40)
    middle = data.batch(slice(None)).images
    assert torch.equal(middle[:, :, 6:-6, 6:-6], data.images.float() / 255)
    assert middle.count_nonzero() == data.images.count_nonzero()


def test_placement_is_by_what_was_drawn(load: Load) -> None:
    chosen = torch.arange(25)
    for split, draws in (("train", Draws(chosen, seed=6, epoch=2)), ("test", Draws(chosen, seed="test"))):
        data, plain = load("mnist40", split=split), load("mnist", split=split)
        found = data.batch(chosen, epoch=2, seed=6).images
        top, left = draws.integers("place", 13, 13)
        expected = torch.zeros(25, 1, 40, 40)
        for k in range(25):
            expected[k, :, top[k] : top[k] + 28, left[k] : left[k] + 28] = plain.images[k].float() / 255
        assert torch.equal(found, expected), split


@pytest.mark.parametrize("split", ["train", "fit"])
def test_sabours_distortions_of_cifar10_by_hand(load: Load, split: str) -> None:
    data = load("cifar10", split=split, augment="sabour_cifar", normalise="none")
    assert data.image_shape == (3, 24, 24)
    chosen = torch.arange(40)
    found = data.batch(chosen, epoch=1, seed=2).images
    assert found.shape == (40, 3, 24, 24)
    draws = Draws(chosen, seed=2, epoch=1)
    top, left, mirrored = (values.tolist() for values in draws.integers("crop", 9, 9, 2))
    light, stretch = draws.uniform("light", 2).numpy()
    for k in range(40):
        image = grey(data)[k][:, top[k] : top[k] + 24, left[k] : left[k] + 24]
        if mirrored[k]:
            image = image[:, :, ::-1]
        image = image + (light[k] * 126 - 63)
        mean = image.mean(axis=(1, 2), keepdims=True)
        expected = (image - mean) * (0.2 + 1.6 * stretch[k]) + mean
        np.testing.assert_allclose(found[k].numpy(), expected, atol=1e-3)
    assert set(mirrored) == {0, 1}
    assert min(len(set(top)), len(set(left))) > 5


def test_sabours_cifar10_is_cut_from_the_middle_in_evaluation(load: Load) -> None:
    for split in ("val", "test"):
        data = load("cifar10", split=split, augment="sabour_cifar")
        assert data.image_shape == (3, 24, 24)
        assert torch.equal(data.batch(slice(None)).images, data.images[:, :, 4:28, 4:28].float() / 255)
        assert tuple(data.images.shape[1:]) == (3, 32, 32)


def test_an_augmentation_may_be_an_object(load: Load) -> None:
    for given, named in ((Shift(2), "shift"), (SabourCifar(24), "sabour_cifar")):
        one, other = load("cifar10", augment=given), load("cifar10", augment=named)
        assert torch.equal(one.batch(range(9), epoch=1).images, other.batch(range(9), epoch=1).images)
        assert one.augment == other.augment
    placed = load("mnist", augment=Place(40, purpose="place"))
    assert torch.equal(placed.batch(range(9), epoch=1).images, load("mnist40").batch(range(9), epoch=1).images)
    assert load("mnist", augment=Place(31), split="test").image_shape == (1, 31, 31)


def test_an_augmentation_may_be_written_by_a_user(load: Load) -> None:
    class Upside:
        def __call__(self, images: Tensor, draws: Draws | None) -> Tensor:
            return images if draws is None else images.flip(2)

        def size(self, size: tuple[int, int]) -> tuple[int, int]:
            return size

    assert isinstance(Upside(), Augmentation)
    for split, expected in (("fit", lambda images: images.flip(2)), ("val", lambda images: images)):
        data = load("mnist", split=split, augment=Upside())
        assert torch.equal(data.batch(slice(None)).images, expected(data.images.float() / 255))


def test_none_by_name_is_no_augmentation(load: Load) -> None:
    data = load("mnist", augment="none")
    assert data.augment is None
    assert torch.equal(data.batch(range(5), epoch=3).images, load("mnist").batch(range(5)).images)


@pytest.mark.parametrize(
    ("value", "kind", "message"),
    [
        ("shfit", ValueError, "augment='shfit' is unknown; did you mean 'shift'? Known: "),
        ("sabour", ValueError, "augment='sabour' is unknown; did you mean 'sabour_cifar'? Known: "),
        ("afnist", ValueError, "augment='afnist' is unknown; did you mean 'affnist'"),
        (2, TypeError, "augment=2 has type int; expected one of 'none', 'shift', "),
        (["shift"], TypeError, "augment=['shift'] has type list; expected one of "),
        (True, TypeError, "augment=True has type bool; expected one of "),
    ],
)
def test_an_unknown_augmentation_names_the_near_match(load: Load, value: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=f"^{re.escape(message)}"):
        load("mnist", augment=value)


def test_a_class_in_place_of_an_augmentation_is_refused_at_once(load: Load) -> None:
    with pytest.raises(TypeError, match=r"^augment=.*expected"):
        load("mnist", augment=Shift)


@pytest.mark.parametrize("augment", ["shift", "affine", "sabour_cifar", Shift(1)])
def test_sign_has_no_pixels_to_move(augment: Any) -> None:
    with pytest.raises(ValueError, match=f"^augment={re.escape(repr(augment))} cannot be used with sign; expected None$"):
        load_data("sign", augment=augment)
    assert load_data("sign", augment="none").augment is None


# mistaken names and options


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("mnits", "name='mnits' is unknown; did you mean 'mnist'"),
        ("fashion-mnist", "name='fashion-mnist' is unknown; did you mean 'fashion_mnist'"),
        ("affnist_miterreiter", "name='affnist_miterreiter' is unknown; did you mean 'affnist_mitterreiter'"),
        ("imagenet", "name='imagenet' is unknown. Known: 'affnist', "),
        (None, "name=None is unknown. Known: "),
        (["mnist"], "name=['mnist'] is unknown; did you mean 'mnist'"),
    ],
)
def test_an_unknown_set_names_the_near_match(name: Any, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}") as error:
        load_data(name)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("split", ["valid", "training", "tests", None, 0, ["val"]])
def test_an_unknown_split_lists_the_four(load: Load, split: Any) -> None:
    with pytest.raises(ValueError, match=f"^split={re.escape(repr(split))} is unknown.* Known: 'fit', 'test', 'train', 'val'$"):
        load("mnist", split=split)


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        ("mnist", {"versions": 2}, "mnist: option='versions' is unknown. Known: none"),
        (
            "affnist",
            {"version": 2},
            "affnist: option='version' is unknown; did you mean 'versions'? Known: 'source', 'versions'",
        ),
        (
            "multimnist",
            {"partner": 2},
            "multimnist: option='partner' is unknown; did you mean 'partners' or 'test_partners'? "
            "Known: 'partners', 'shift', 'test_partners'",
        ),
        ("mnist40", {"size": 2}, "mnist40: option='size' is unknown. Known: 'canvas'"),
        ("folder", {"gray": True}, "folder: option='gray' is unknown; did you mean 'grey'? Known: 'grey', 'image_size'"),
        ("sign", {"count": 5}, "sign: option='count' is unknown. Known: none"),
    ],
)
def test_an_unknown_option_names_the_near_match(load: Load, name: str, given: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError) as error:
        load(name, **given)
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("name", "given", "kind", "message"),
    [
        ("mnist40", {"canvas": 27}, ValueError, "canvas=27 is too small; expected an int of at least 28"),
        ("mnist40", {"canvas": "40"}, TypeError, "canvas='40' has type str; expected an int of at least 28"),
        ("multimnist", {"partners": 0}, ValueError, "partners=0 is too small; expected an int of at least 1"),
        ("multimnist", {"partners": 1.5}, TypeError, "partners=1.5 has type float; expected an int of at least 1"),
        ("multimnist", {"test_partners": 0}, ValueError, "test_partners=0 is too small; expected an int of at least 1"),
        ("multimnist", {"shift": 7}, ValueError, "shift=7 is too large; expected 0 to 6, beyond which digits leave the canvas"),
        ("multimnist", {"shift": -1}, ValueError, "shift=-1 is too small; expected an int of at least 0"),
        ("affnist", {"versions": 0}, ValueError, "versions=0 is too small; expected an int of at least 1"),
        ("affnist_literal", {"versions": True}, TypeError, "versions=True has type bool; expected an int of at least 1"),
        (
            "affnist",
            {"source": "offical"},
            ValueError,
            "source='offical' is unknown; did you mean 'official'? Known: 'official', 'synthetic'",
        ),
    ],
)
def test_a_mistaken_option_is_one_clear_line(
    load: Load, name: str, given: dict[str, Any], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind) as error:
        load(name, **given)
    assert type(error.value) is kind
    assert str(error.value) == message


def test_mistakes_are_told_before_anything_is_read(tmp_path: Path) -> None:
    for given in ({"split": "tset"}, {"augment": "shfit"}, {"normalise": "units"}):
        with pytest.raises(ValueError, match="is unknown"):
            load_data("mnist", root=tmp_path, **given)
    with pytest.raises(TypeError, match="is unknown"):
        load_data("mnist", root=tmp_path, versions=2)
    assert list(tmp_path.iterdir()) == []


# sets of one's own


@pytest.fixture
def stripes() -> Iterator[str]:
    """Enrol a toy set with two options, as a user would."""

    @register_data("stripes", summary="bright rows or columns", normalise="none")
    def build(split: str, places: Places, *, count: int = 8, side: int = 5) -> Content:
        images = torch.zeros(count, 1, side, side, dtype=torch.uint8)
        images[::2, :, 1, :] = 200
        images[1::2, :, :, 1] = 200
        labels = torch.arange(count) % 2
        if split == "test":
            images, labels = images[:4], labels[:4]
        return Content(Stored(images, labels), ("row", "column"), {"release": 1})

    yield "stripes"
    del _SETS["stripes"]


def test_a_set_of_ones_own_works_like_any_other(stripes: str) -> None:
    assert stripes in list_data()
    data = load_data("stripes", side=6)
    assert len(data) == 8
    assert data.image_shape == (1, 6, 6)
    assert data.class_names == ("row", "column")
    assert data.batch([0, 1]).images.max() == 200
    assert data.batch([0, 1]).labels.tolist() == [0, 1]
    assert data.options == {"count": 8, "side": 6, "augment": None, "normalise": "none"}
    assert [len(batch) for batch in data.batches(3)] == [3, 3, 2]
    shifted = load_data("stripes", augment="shift").batch(range(8), epoch=1).images
    assert not torch.equal(shifted, load_data("stripes").batch(range(8)).images)
    digests = {load_data("stripes", **given).digest for given in ({}, {"side": 6}, {"count": 9}, {"split": "test"})}
    assert len(digests) == 4
    assert load_data("stripes", count=8, side=5).digest == load_data("stripes").digest


def test_options_of_ones_own_set_are_checked_by_name(stripes: str) -> None:
    with pytest.raises(TypeError) as error:
        load_data("stripes", sides=6)
    assert str(error.value) == "stripes: option='sides' is unknown; did you mean 'side'? Known: 'count', 'side'"
    with pytest.raises(ValueError, match="did you mean 'stripes'"):
        load_data("stripe")


def test_the_facts_that_a_builder_states_are_in_the_digest() -> None:
    facts = {"release": 1}

    @register_data("facts", summary="made here")
    def build(split: str, places: Places) -> Content:
        return Content(Stored(torch.zeros(4, 1, 2, 2, dtype=torch.uint8), torch.arange(4)), tuple("abcd"), facts)

    try:
        first = load_data("facts").digest
        assert load_data("facts").digest == first
        facts["release"] = 2
        assert load_data("facts").digest != first
    finally:
        del _SETS["facts"]


def test_a_name_is_given_once(stripes: str) -> None:
    entry = _SETS["stripes"]
    for name in ("stripes", "mnist"):
        with pytest.raises(ValueError, match=f"^name='{name}' is registered already; choose another$"):

            @register_data(name, summary="another")
            def build(split: str, places: Places) -> Content:
                raise AssertionError

    assert _SETS["stripes"] is entry
    assert len(load_data("stripes")) == 8


def test_registering_leaves_the_builder_as_it_is() -> None:
    def build(split: str, places: Places) -> Content:
        raise AssertionError

    try:
        assert register_data("left alone", summary="made here")(build) is build
    finally:
        del _SETS["left alone"]


def test_a_set_without_grey_levels_refuses_augmentation(enrol: Callable[..., None]) -> None:
    enrol("numbers", torch.randn(6, 1, 1, 1), normalise="none", augments=False)
    data = load_data("numbers")
    assert torch.equal(data.batch(range(6)).images, data.images)
    with pytest.raises(ValueError, match=r"^augment='shift' cannot be used with numbers; expected None$"):
        load_data("numbers", augment="shift")


def test_made_digits_are_not_all_alike() -> None:
    # what the tests above stand on.
    images, labels = made_digits(N, seed=5)
    assert len(np.unique(images.reshape(N, -1), axis=0)) == N
    assert set(labels.tolist()) == set(range(10))


def test_multimnist_is_not_augmented_because_its_parts_would_stay_behind(load: Load) -> None:
    with pytest.raises(ValueError, match=r"^augment='shift' cannot be used with multimnist; expected None$"):
        load("multimnist", augment="shift")


@pytest.mark.parametrize(
    ("augment", "message"),
    [
        (Place(20), "canvas=20 is too small; expected at least 28 for images of 28×28"),
        (SabourCifar(30), "crop=30 is too large for images of 28×28; expected at most 28"),
    ],
)
def test_an_augmentation_that_does_not_fit_says_so_at_once(load: Load, augment: Place | SabourCifar, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        load("mnist", augment=augment)


def test_sizes_of_augmentations_are_checked() -> None:
    with pytest.raises(ValueError, match=r"^pixels=-1 is too small"):
        Shift(-1)
    with pytest.raises(ValueError, match=r"^canvas=0 is too small"):
        Place(0)
    with pytest.raises(TypeError, match=r"^crop='24' has type str"):
        SabourCifar("24")  # type: ignore[arg-type]


def test_val_needs_four_images_to_train_on() -> None:
    assert members("fit", 3) is not None
    with pytest.raises(DataError, match=r"^split='val' would have no images: there are 3 to train on; expected at least 4$"):
        members("val", 3)
