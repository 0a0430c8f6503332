"""Every data set by name, made from small files in its published layout: contract, content, splits, digests."""

from __future__ import annotations

import gzip
import hashlib
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from made_files import checked, idx_bytes, made_digits, norb_bytes, use_as_mnist, without_checksums, write_mnist
from PIL import Image
from scipy.io import savemat

from capsella import ImageData, list_data, load_data
from capsella.data import cifar, digits, smallnorb, svhn
from capsella.data.samples import View
from capsella.data.sources import Files
from capsella.data.splits import members
from capsella.errors import DataError

SPLITS = ("train", "fit", "val", "test")
# as published: below, made files take their place.
MNIST, FASHION_MNIST, CIFAR10, SMALLNORB, SVHN = (
    digits.MNIST,
    digits.FASHION_MNIST,
    cifar.CIFAR10,
    smallnorb.SMALLNORB,
    svhn.SVHN,
)
NORB = {"train": "smallnorb-5x46789x9x18x6x2x96x96-training", "test": "smallnorb-5x01235x9x18x6x2x96x96-testing"}


def write_cifar10(root: Path) -> Files:
    """Write five batches of 12 images and a test batch of 16, with pixels that tell batch and place."""
    home = root / "cifar10"
    home.mkdir(parents=True)
    files = []
    for k, published in enumerate(CIFAR10.files, start=1):
        images, labels = cifar_batch(k)
        content = np.concatenate([labels[:, None], images.reshape(len(images), -1)], axis=1).astype(np.uint8).tobytes()
        (home / published.name).write_bytes(content)
        files.append(replace(checked(published.name, content), aliases=published.aliases))
    return Files("cifar10", tuple(files))


def cifar_batch(k: int) -> tuple[np.ndarray, np.ndarray]:
    """Return uint8 [N, 3, 32, 32] and labels [N] of batch k; the sixth is the test batch."""
    count = 16 if k == 6 else 12
    images = np.random.default_rng(k).integers(0, 256, (count, 3, 32, 32), dtype=np.uint8)
    return images, (np.arange(count) + k) % 10


def norb_pictures(split: str) -> tuple[np.ndarray, np.ndarray]:
    """Return uint8 [N, 2, 96, 96] and labels [N]."""
    count = 20 if split == "train" else 10
    images = np.random.default_rng(count).integers(0, 256, (count, 2, 96, 96), dtype=np.uint8)
    return images, np.arange(count, dtype=np.int32) % 5


def write_smallnorb(root: Path) -> Files:
    """Write the matrices of 20 and 10 stereo pairs; the images compressed, the labels not."""
    home = root / "smallnorb"
    home.mkdir(parents=True)
    files = []
    for split, stem in NORB.items():
        images, labels = norb_pictures(split)
        for kind, values in (("dat", images), ("cat", labels)):
            content = norb_bytes(values)
            path = home / f"{stem}-{kind}.mat{'.gz' if kind == 'dat' else ''}"
            path.write_bytes(gzip.compress(content, 1) if kind == "dat" else content)
            files.append(checked(f"{stem}-{kind}.mat", content))
    return Files("smallnorb", tuple(files))


def svhn_pictures(split: str) -> tuple[np.ndarray, np.ndarray]:
    """Return uint8 [N, 3, 32, 32] and labels [N] as SVHN writes them, 1 to 10."""
    count = 24 if split == "train" else 11
    images = np.random.default_rng(count).integers(0, 256, (count, 3, 32, 32), dtype=np.uint8)
    return images, np.arange(count, dtype=np.uint8) % 10 + 1


def write_svhn(root: Path) -> Files:
    """Write two MATLAB files, one compressed and one not."""
    home = root / "svhn"
    home.mkdir(parents=True)
    files = []
    for split in ("train", "test"):
        images, labels = svhn_pictures(split)
        path = home / f"{split}_32x32.mat"
        variables = {"X": images.transpose(2, 3, 1, 0), "y": labels[:, None]}
        savemat(path, variables, do_compression=split == "train")
        files.append(checked(path.name, path.read_bytes()))
    return Files("svhn", tuple(files))


def write_pictures(root: Path, *, colour: bool = False) -> None:
    """Write ten pictures of each of three kinds, each of one grey level or colour of its own."""
    for kind, name in enumerate(("ant", "bee", "cat")):
        (root / name).mkdir(parents=True)
        for k in range(10):
            level = 80 * kind + 7 * k + 1
            Image.new("RGB" if colour else "L", (9, 7), (level, 0, 255 - level) if colour else level).save(
                root / name / f"{k}.png"
            )


def write_all(root: Path, patch: pytest.MonkeyPatch) -> None:
    """Write every set below ``root`` and let its module take the made files for the published ones."""
    use_as_mnist(patch, write_mnist(root, train=120, test=40))
    clothes = write_mnist(root, train=100, test=30, folder="fashion-mnist")
    patch.setattr(digits, "FASHION_MNIST", replace(clothes, name="fashion_mnist"))
    patch.setattr(cifar, "CIFAR10", write_cifar10(root))
    patch.setattr(smallnorb, "SMALLNORB", write_smallnorb(root))
    patch.setattr(svhn, "SVHN", write_svhn(root))
    write_pictures(root / "pictures")


@dataclass(frozen=True)
class Made:
    """What a set made from these files has."""

    train: int
    test: int
    shape: tuple[int, int, int]
    names: tuple[str, ...]

    def count(self, split: str) -> int:
        return {"train": self.train, "test": self.test, "val": self.train // 4, "fit": self.train - self.train // 4}[split]


DIGITS = ("0", "1", "2", "3", "4", "5", "6", "7", "8", "9")
CLOTHES = ("T-shirt", "trousers", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")
OBJECTS = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
SETS = {
    "affnist": Made(120, 40, (1, 40, 40), DIGITS),
    "affnist_literal": Made(120, 40, (1, 40, 40), DIGITS),
    "affnist_mitterreiter": Made(120, 40, (1, 40, 40), DIGITS),
    "cifar10": Made(60, 16, (3, 32, 32), OBJECTS),
    "fashion_mnist": Made(100, 30, (1, 28, 28), CLOTHES),
    "folder": Made(24, 6, (1, 32, 32), ("ant", "bee", "cat")),
    "mnist": Made(120, 40, (1, 28, 28), DIGITS),
    "mnist40": Made(120, 40, (1, 40, 40), DIGITS),
    "multimnist": Made(120, 40, (1, 36, 36), DIGITS),
    "sign": Made(20_002, 20_000, (1, 1, 1), ("negative", "positive")),
    "smallnorb": Made(20, 10, (2, 96, 96), ("animal", "human", "airplane", "truck", "car")),
    "svhn": Made(24, 11, (3, 32, 32), DIGITS),
}
# val of sign has 5,000: it is the only one here with 20,000 samples or more.
COUNTS = {("sign", "val"): 5_000, ("sign", "fit"): 15_002}

Load = Callable[..., ImageData]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    root = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patch:
        write_all(root, patch)
        yield root


def home(name: str, root: Path) -> Path:
    """Return the root to name: for ``folder``, the folder itself."""
    return root / "pictures" if name == "folder" else root


@pytest.fixture
def load(made: Path) -> Load:
    return lambda name, **options: load_data(name, root=home(name, made), **options)


def whole(values: torch.Tensor | View) -> torch.Tensor:
    return values[:]


def test_the_sets_are_these_and_each_is_under_contract() -> None:
    assert list_data() == sorted(SETS)


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("name", sorted(SETS))
class TestContract:
    """What holds for every set and split."""

    def test_images_and_labels_have_the_stated_shapes_and_types(self, load: Load, name: str, split: str) -> None:
        data, expected = load(name, split=split), SETS[name]
        count = COUNTS.get((name, split), expected.count(split))
        assert isinstance(data, ImageData)
        assert (data.name, data.split) == (name, split)
        assert len(data) == len(data.images) == len(data.labels) == count
        assert tuple(data.images.shape) == (count, *expected.shape)
        assert data.images.dtype == (torch.float32 if name == "sign" else torch.uint8)
        assert data.labels.dtype == torch.int64
        assert tuple(data.labels.shape) == ((count, 10) if name == "multimnist" else (count,))
        assert data.training == (split in ("train", "fit"))

    def test_labels_are_within_the_named_classes(self, load: Load, name: str, split: str) -> None:
        data = load(name, split=split)
        assert data.class_names == SETS[name].names
        assert data.num_classes == len(SETS[name].names)
        labels = whole(data.labels)
        if name == "multimnist":
            assert set(labels.unique().tolist()) == {0, 1}
            assert (labels.sum(dim=1) == 2).all()
        else:
            assert 0 <= labels.min() < labels.max() < data.num_classes

    def test_a_batch_is_the_images_between_0_and_1_and_their_labels(self, load: Load, name: str, split: str) -> None:
        data = load(name, split=split)
        chosen = [len(data) - 1, 0, 3, 0]
        batch = data.batch(chosen)
        images, labels = batch
        assert images.dtype == torch.float32
        assert tuple(images.shape) == (4, *data.image_shape)
        assert data.image_shape == SETS[name].shape
        stored = whole(data.images)[chosen]
        assert torch.equal(images, stored if name == "sign" else stored.float() / 255)
        assert torch.equal(labels, whole(data.labels)[chosen])
        if name != "sign":
            assert images.min() >= 0
            assert 0 < images.max() <= 1

    def test_one_sample_is_that_of_a_batch(self, load: Load, name: str, split: str) -> None:
        data = load(name, split=split)
        image, label = data[2]
        assert torch.equal(image, data.batch([2]).images[0])
        assert torch.equal(label, data.batch([2]).labels[0])
        assert tuple(image.shape) == data.image_shape

    def test_the_digest_is_64_hex_digits_and_the_same_when_loaded_again(self, load: Load, name: str, split: str) -> None:
        data, again = load(name, split=split), load(name, split=split)
        assert re.fullmatch("[0-9a-f]{64}", data.digest)
        assert again.digest == data.digest
        assert torch.equal(whole(again.images), whole(data.images))

    def test_no_two_images_are_alike(self, load: Load, name: str, split: str) -> None:
        images = whole(load(name, split=split).images).flatten(1)
        # a wrong offset would repeat images; sign has −0 beside 0, and affnist_literal pushes small ink off the canvas.
        few = {"sign": 1, "affnist_literal": 3}.get(name, 0)
        assert len(images.unique(dim=0)) >= len(images) - few


@pytest.mark.parametrize("name", sorted(SETS))
def test_fit_and_val_partition_train(load: Load, name: str) -> None:
    train, fit, val = (load(name, split=split) for split in ("train", "fit", "val"))
    inside = {split: members(split, len(train)).tolist() for split in ("fit", "val")}
    assert sorted(inside["fit"] + inside["val"]) == list(range(len(train)))
    assert len(val) == min(5_000, len(train) // 4)
    for split, data in (("fit", fit), ("val", val)):
        if name in ("multimnist", "mnist40") or name.startswith("affnist"):
            continue  # drawn or paired anew from the originals of the split, see below.
        assert torch.equal(data.images, train.images[inside[split]]), split
        assert torch.equal(data.labels, train.labels[inside[split]]), split


@pytest.mark.parametrize("name", ["affnist", "affnist_literal", "affnist_mitterreiter", "mnist40"])
def test_fit_and_val_of_a_drawn_set_have_the_labels_of_their_originals(load: Load, name: str) -> None:
    train = load("mnist")
    for split in ("fit", "val"):
        assert torch.equal(load(name, split=split).labels, train.labels[members(split, len(train))]), split


def test_multimnist_pairs_digits_of_its_own_split_only(load: Load) -> None:
    for split in SPLITS:
        originals = {image.numpy().tobytes() for image in load("mnist", split=split).images}
        parts = load("multimnist", split=split, shift=0).parts(range(30))  # [30, 2, 1, 36, 36], in the middle
        assert all(part[0, 4:-4, 4:-4].contiguous().numpy().tobytes() in originals for pair in parts for part in pair), split


def test_affnist_goes_through_the_originals_once_for_every_version(load: Load) -> None:
    once, twice = load("affnist", split="val"), load("affnist", split="val", versions=2)
    assert len(twice) == 2 * len(once)
    assert torch.equal(twice.labels, once.labels.repeat(2))
    assert torch.equal(twice.images[: len(once)], once.images)
    assert not torch.equal(twice.images[len(once) :], once.images)


def test_multimnist_has_partners_images_of_every_original(load: Load) -> None:
    data = load("multimnist", partners=3)
    assert len(data) == 360
    assert len(data.images) == len(data.labels) == 360
    base = data.part_labels(range(360))[:, 0]
    assert torch.equal(base, load("mnist").labels.repeat_interleave(3))


# content


def test_mnist_is_the_files_in_their_order(load: Load) -> None:
    for split, count, seed in (("train", 120, 5), ("test", 40, 4)):
        images, labels = made_digits(count, seed=seed)
        data = load("mnist", split=split)
        assert np.array_equal(data.images.numpy(), images[:, None])
        assert np.array_equal(data.labels.numpy(), labels)


def test_mnist_is_found_unpacked_and_under_its_other_spelling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = write_mnist(tmp_path, train=20, test=10, packed=False)
    other = tuple(replace(file, aliases=(file.name.replace("-idx", ".idx"),)) for file in files.files)
    for file in other:
        (tmp_path / "mnist" / file.name).rename(tmp_path / "mnist" / file.aliases[0])
    use_as_mnist(monkeypatch, replace(files, files=other))
    assert np.array_equal(load_data("mnist", root=tmp_path).images.numpy()[:, 0], made_digits(20, seed=5)[0])


def test_the_published_spelling_with_a_dot_is_known() -> None:
    assert MNIST["train-images-idx3-ubyte"].aliases == ("train-images.idx3-ubyte",)
    assert MNIST["t10k-labels-idx1-ubyte"].aliases == ("t10k-labels.idx1-ubyte",)


@pytest.mark.parametrize("folder", ["fashion_mnist", "fashion-mnist"])
def test_fashion_mnist_is_found_with_either_dash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str) -> None:
    files = write_mnist(tmp_path, train=12, test=10, folder=folder)
    monkeypatch.setattr(digits, "FASHION_MNIST", replace(files, name="fashion_mnist"))
    data = load_data("fashion_mnist", root=tmp_path)
    assert np.array_equal(data.images.numpy()[:, 0], made_digits(12, seed=5)[0])


def test_cifar10_is_its_five_batches_one_after_the_other(load: Load) -> None:
    batches = [cifar_batch(k) for k in range(1, 6)]
    data = load("cifar10")
    assert np.array_equal(data.images.numpy(), np.concatenate([images for images, _ in batches]))
    assert np.array_equal(data.labels.numpy(), np.concatenate([labels for _, labels in batches]))
    test = load("cifar10", split="test")
    assert np.array_equal(test.images.numpy(), cifar_batch(6)[0])
    assert np.array_equal(test.labels.numpy(), cifar_batch(6)[1])


def test_cifar10_is_found_in_the_folder_that_its_archive_unpacks_to(made: Path, tmp_path: Path) -> None:
    shutil.copytree(made / "cifar10", tmp_path / "cifar10" / "cifar-10-batches-bin")
    data = load_data("cifar10", root=tmp_path)
    assert np.array_equal(data.images.numpy()[:12], cifar_batch(1)[0])


def test_the_two_cameras_of_smallnorb_are_two_channels(load: Load) -> None:
    for split in ("train", "test"):
        images, labels = norb_pictures(split)
        data = load("smallnorb", split=split)
        assert np.array_equal(data.images.numpy(), images)
        assert np.array_equal(data.labels.numpy(), labels)


def test_the_10_of_svhn_is_a_0_and_columns_are_columns(load: Load) -> None:
    for split in ("train", "test"):
        images, labels = svhn_pictures(split)
        data = load("svhn", split=split)
        assert np.array_equal(data.images.numpy(), images)
        assert data.labels.tolist() == [0 if label == 10 else label for label in labels.tolist()]
        assert 0 in data.labels


def test_images_own_memory_that_can_be_written_to(load: Load) -> None:
    for name in ("mnist", "cifar10", "smallnorb", "svhn", "folder"):
        data = load(name, split="test")
        assert data.images.is_contiguous(), name
        data.images[0] = 7
        assert (data.images[0] == 7).all()
        assert not (load(name, split="test").images[0] == 7).all(), name


def test_mnist40_is_drawn_once_for_test_and_anew_in_training(load: Load) -> None:
    train, test = load("mnist40"), load("mnist40", split="test")
    chosen = range(40)
    assert torch.equal(test.batch(chosen).images, test.batch(chosen, epoch=3, seed=9).images)
    assert not torch.equal(train.batch(chosen).images, train.batch(chosen, epoch=1).images)
    assert not torch.equal(train.batch(chosen).images, train.batch(chosen, seed=1).images)
    assert torch.equal(train.batch(chosen, epoch=1, seed=2).images, train.batch(chosen, epoch=1, seed=2).images)


def test_mnist40_keeps_all_ink_of_each_digit(load: Load) -> None:
    for split in SPLITS:
        plain, placed = load("mnist", split=split).images, load("mnist40", split=split).images
        assert torch.equal(plain.sum(dim=(1, 2, 3)), placed.sum(dim=(1, 2, 3)))
        # somewhere among the 13 × 13 windows of 28 × 28 lies the digit itself.
        for digit, image in zip(plain[:10], placed[:10], strict=True):
            windows = image.unfold(1, 28, 1).unfold(2, 28, 1)[0].reshape(-1, 28, 28)
            assert (windows == digit).all(dim=(1, 2)).any()


def test_mnist40_takes_another_canvas(load: Load) -> None:
    data = load("mnist40", canvas=30, split="val")
    assert data.image_shape == (1, 30, 30)
    assert tuple(data.images.shape) == (30, 1, 30, 30)
    assert torch.equal(load("mnist40", canvas=28).images, load("mnist").images)


# sign: SPEC 0.3


def test_sign_has_the_numbers_of_peer2022() -> None:
    data = load_data("sign")
    steps = np.arange(10_001) / 10_000
    assert np.array_equal(data.images.numpy().ravel(), np.concatenate([steps, -steps]).astype(np.float32))
    assert data.labels.tolist() == [1] * 10_001 + [0] * 10_001


def test_sign_has_zero_in_both_classes() -> None:
    data = load_data("sign")
    zeros = (data.images.flatten() == 0).nonzero().flatten()
    assert zeros.tolist() == [0, 10_001]
    assert data.labels[zeros].tolist() == [1, 0]
    assert np.signbit(data.images.numpy().ravel()[zeros.numpy()]).tolist() == [False, True]


def test_sign_is_tested_half_way_between_the_training_numbers() -> None:
    train, test = load_data("sign"), load_data("sign", split="test")
    between = (np.arange(10_000) + 0.5) / 10_000
    np.testing.assert_allclose(test.images.numpy().ravel(), np.concatenate([between, -between]), rtol=1e-7)
    assert test.labels.tolist() == [1] * 10_000 + [0] * 10_000
    assert not set(test.images.flatten().tolist()) & set(train.images.flatten().tolist())


def test_sign_is_not_scaled() -> None:
    data = load_data("sign")
    assert data.normalise.kind == "none"
    assert data.batch([10_000, 20_001]).images.flatten().tolist() == [1.0, -1.0]


# splits


FIRST_OF_VAL = [4, 13, 30, 49, 50, 58, 73, 87]
VAL_SUM = "44e8a552dab19bb3143e5bca0b6b3989806d4be7191268ed9ef7cb657a52f983"
FIT_SUM = "ea2596bbeb282e5b629a5363da8d93add4e5b66ba6e377b882cd579645959ea3"


def test_the_permutation_behind_fit_and_val_is_fixed() -> None:
    val, fit = members("val", 60_000), members("fit", 60_000)
    assert val[:8].tolist() == FIRST_OF_VAL
    assert hashlib.sha256(val.numpy().astype("<i8").tobytes()).hexdigest() == VAL_SUM
    assert hashlib.sha256(fit.numpy().astype("<i8").tobytes()).hexdigest() == FIT_SUM


@pytest.mark.parametrize(
    ("count", "held_out"),
    [(60_000, 5_000), (50_000, 5_000), (24_300, 5_000), (20_002, 5_000), (20_000, 5_000), (19_999, 4_999), (400, 100), (7, 1)],
)
def test_val_has_5000_samples_or_a_quarter(count: int, held_out: int) -> None:
    val, fit = members("val", count), members("fit", count)
    assert val.dtype == fit.dtype == torch.int64
    assert len(val) == held_out
    assert torch.equal(torch.cat([val, fit]).sort().values, torch.arange(count))
    # in rising order.
    assert (val.diff() > 0).all()
    assert (fit.diff() > 0).all()


def test_train_and_test_are_whole() -> None:
    assert members("train", 60_000) is None
    assert members("test", 10_000) is None


def test_val_is_spread_over_the_whole_set() -> None:
    tenths = torch.bincount(members("val", 60_000) // 6_000)
    # binomial: 500 expected in each, a deviation of 21.
    assert tenths.min() > 400
    assert tenths.max() < 600


# digests


def variants() -> list[tuple[str, dict[str, Any]]]:
    options: dict[str, list[dict[str, Any]]] = {
        "affnist": [{"versions": 2}, {"versions": 3}],
        "affnist_literal": [{"versions": 2}],
        "affnist_mitterreiter": [{"versions": 2}],
        "multimnist": [{"partners": 2}, {"shift": 6}, {"partners": 2, "shift": 6}],
        "mnist40": [{"canvas": 36}],
        "folder": [{"image_size": 16}, {"image_size": (16, 8)}, {"grey": False}],
    }
    return [(name, given) for name in sorted(SETS) for given in [{}, *options.get(name, [])]]


def digests(root: Path) -> dict[str, str]:
    return {
        f"{name} {split} {given}": load_data(name, root=home(name, root), split=split, **given).digest
        for name, given in variants()
        for split in SPLITS
    }


def test_digests_differ_between_sets_splits_and_options_and_not_between_places(made: Path, tmp_path: Path) -> None:
    here = digests(made)
    assert len(here) == 4 * (12 + 11)
    assert len(set(here.values())) == len(here)
    shutil.copytree(made, tmp_path / "elsewhere")
    assert digests(tmp_path / "elsewhere") == here


def test_a_default_given_in_words_has_the_same_digest(load: Load) -> None:
    assert load("multimnist", partners=1, shift=4).digest == load("multimnist").digest
    assert load("affnist", source="synthetic", versions=1).digest == load("affnist").digest
    assert load("mnist40", canvas=40).digest == load("mnist40").digest


def test_the_digest_does_not_depend_on_augmentation_and_normalisation(load: Load) -> None:
    plain = load("cifar10")
    for given in (
        {"augment": "shift"},
        {"augment": "sabour_cifar", "normalise": "standardise"},
        {"normalise": "none"},
        {"normalise": "peer2022"},
    ):
        assert load("cifar10", **given).digest == plain.digest, given
    assert load("cifar10", split="test", normalise="peer2022").digest == load("cifar10", split="test").digest


def test_the_digest_depends_on_the_content_of_the_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for level in (10, 11):
        images, labels = made_digits(20)
        images[7, 0, 0] = level
        contents = {"train-images-idx3-ubyte": idx_bytes(images), "train-labels-idx1-ubyte": idx_bytes(labels)}
        root = tmp_path / str(level)
        (root / "mnist").mkdir(parents=True)
        for name, content in contents.items():
            (root / "mnist" / name).write_bytes(content)
        use_as_mnist(monkeypatch, Files("mnist", tuple(checked(name, content) for name, content in contents.items())))
        found += [[load_data(name, root=root).digest for name in ("mnist", "mnist40", "affnist", "multimnist")]]
    assert not set(found[0]) & set(found[1])


def test_the_digest_of_sign_is_known() -> None:
    # the same on every machine and in every release: run records are compared by it.
    assert load_data("sign").digest == "1bd976f50450b4c781d5fda672bd30dd661d2dd808a266998d13fe4bc50ff8ea"


# files that do not fit together; checksums off, or they would be refused for these


def mnist_with(root: Path, patch: pytest.MonkeyPatch, name: str, content: bytes) -> None:
    files = write_mnist(root, train=20, test=10, packed=False)
    (root / "mnist" / name).write_bytes(content)
    use_as_mnist(patch, without_checksums(files))


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (np.arange(19) % 10, "mnist train has 20 images and labels of shape [19]; expected one label each"),
        (np.arange(20) % 11, "mnist train has labels from 0 to 10; expected 0 to 9"),
        (np.zeros((20, 1)), "mnist train has 20 images and labels of shape [20, 1]; expected one label each"),
    ],
)
def test_labels_that_do_not_fit_the_images_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, labels: np.ndarray, message: str
) -> None:
    mnist_with(tmp_path, monkeypatch, "train-labels-idx1-ubyte", idx_bytes(labels))
    with pytest.raises(DataError) as error:
        load_data("mnist", root=tmp_path)
    assert str(error.value).replace("whole numbers from ", "") == message


def test_a_set_without_images_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mnist_with(tmp_path, monkeypatch, "train-labels-idx1-ubyte", idx_bytes(np.zeros(0)))
    (tmp_path / "mnist/train-images-idx3-ubyte").write_bytes(idx_bytes(np.zeros((0, 28, 28))))
    with pytest.raises(DataError, match=r"^mnist train has no images$"):
        load_data("mnist", root=tmp_path)


def test_images_of_another_dimension_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mnist_with(tmp_path, monkeypatch, "train-images-idx3-ubyte", idx_bytes(np.zeros((20, 784))))
    with pytest.raises(DataError, match=r"^mnist train has images of shape \[20, 1, 784\]; expected \[N, C, H, W\]$"):
        load_data("mnist", root=tmp_path)


def test_smallnorb_labels_beyond_five_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = write_smallnorb(tmp_path)
    (tmp_path / "smallnorb" / f"{NORB['test']}-cat.mat").write_bytes(norb_bytes(np.arange(10, dtype=np.int32) % 6))
    monkeypatch.setattr(smallnorb, "SMALLNORB", without_checksums(files))
    with pytest.raises(DataError, match=r"^smallnorb test has labels from 0 to 5; expected .*0 to 4$"):
        load_data("smallnorb", root=tmp_path, split="test")
    assert len(load_data("smallnorb", root=tmp_path)) == 20


@pytest.mark.parametrize(
    "variables",
    [
        {"X": np.zeros((32, 32, 3, 5), np.uint8)},
        {"y": np.ones((5, 1), np.uint8)},
        {"X": np.zeros((5, 3, 32, 32), np.uint8), "y": np.ones((5, 1), np.uint8)},
        {"X": np.zeros((32, 32, 3), np.uint8), "y": np.ones((5, 1), np.uint8)},
        {"images": np.zeros((32, 32, 3, 5), np.uint8)},
    ],
    ids=["no y", "no X", "another order of axes", "one image", "other names"],
)
def test_an_svhn_file_in_another_layout_is_one_clear_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variables: dict[str, np.ndarray]
) -> None:
    files = write_svhn(tmp_path)
    savemat(tmp_path / "svhn/train_32x32.mat", variables)
    monkeypatch.setattr(svhn, "SVHN", without_checksums(files))
    with pytest.raises(DataError) as error:
        load_data("svhn", root=tmp_path)
    names = ", ".join(variables)
    assert str(error.value) == f"train_32x32.mat has the variables {names}; expected X [32, 32, 3, N] and y [N, 1]"


def test_a_file_that_is_not_the_published_one_is_refused_by_name(made: Path, tmp_path: Path) -> None:
    for name, path in (
        ("mnist", "mnist/train-labels-idx1-ubyte.gz"),
        ("cifar10", "cifar10/data_batch_3.bin"),
        ("smallnorb", f"smallnorb/{NORB['train']}-dat.mat.gz"),
        ("svhn", "svhn/train_32x32.mat"),
    ):
        root = tmp_path / name
        shutil.copytree(made / name, root / name)
        content = (root / path).read_bytes()
        if path.endswith(".gz"):
            changed = bytearray(gzip.decompress(content))
            changed[-1] ^= 1
            content = gzip.compress(bytes(changed), 1)
        else:
            content = content[:-1] + bytes([content[-1] ^ 1])
        (root / path).write_bytes(content)
        with pytest.raises(DataError) as error:
            load_data(name, root=root)
        assert str(error.value).startswith(f"{root / path} has content with sha256 ")
        assert "\n" not in str(error.value)
        assert (root / path).read_bytes() == content


def test_a_set_that_is_nowhere_says_where_it_was_looked_for(made: Path, tmp_path: Path) -> None:
    for name in sorted(set(SETS) - {"sign", "folder"}):
        with pytest.raises(DataError) as error:
            load_data(name, root=tmp_path)
        text = str(error.value)
        assert str(tmp_path) in text
        assert "not found" in text
        assert "CAPSELLA_DATA" in text
        assert "\n" not in text
    assert list(tmp_path.iterdir()) == []


# what is published


def test_published_files_have_the_published_names_sizes_and_checksums() -> None:
    for files in (MNIST, FASHION_MNIST):
        assert [(file.name, file.size) for file in files.files] == [
            ("train-images-idx3-ubyte", 47_040_016),
            ("train-labels-idx1-ubyte", 60_008),
            ("t10k-images-idx3-ubyte", 7_840_016),
            ("t10k-labels-idx1-ubyte", 10_008),
        ]
    assert [file.size for file in CIFAR10.files] == [30_730_000] * 6
    assert [file.name for file in SMALLNORB.files] == [
        f"{NORB[split]}-{kind}.mat" for split in ("train", "test") for kind in ("dat", "cat")
    ]
    everything = [MNIST, FASHION_MNIST, CIFAR10, SMALLNORB, SVHN]
    for file in [file for files in everything for file in files.files]:
        assert re.fullmatch("sha256:[0-9a-f]{64}|md5:[0-9a-f]{32}", file.checksum), file
    assert all(files.sources for files in everything)


def test_the_checksum_of_smallnorbs_labels_is_that_of_five_toys_in_turn() -> None:
    content = norb_bytes(np.arange(24_300, dtype=np.int32) % 5)
    for stem in NORB.values():
        file = SMALLNORB[f"{stem}-cat.mat"]
        assert file.size == len(content)
        assert file.checksum == f"sha256:{hashlib.sha256(content).hexdigest()}"


def test_the_real_mnist(real_mnist: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digits, "MNIST", MNIST)
    train, test = (load_data("mnist", root=real_mnist, split=split) for split in ("train", "test"))
    assert tuple(train.images.shape) == (60_000, 1, 28, 28)
    assert tuple(test.images.shape) == (10_000, 1, 28, 28)
    assert train.labels[:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]
    assert test.labels[:10].tolist() == [7, 2, 1, 0, 4, 1, 4, 9, 5, 9]
    assert torch.bincount(test.labels).tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    values = train.images.double() / 255
    assert abs(float(values.mean()) - 0.13066048) < 1e-8
    assert abs(float(values.std(correction=0)) - 0.3081078) < 1e-7
    fit, val = (load_data("mnist", root=real_mnist, split=split) for split in ("fit", "val"))
    assert (len(fit), len(val)) == (55_000, 5_000)
    assert torch.equal(val.images, train.images[members("val", 60_000)])
