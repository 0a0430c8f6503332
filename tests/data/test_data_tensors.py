"""Data from tensors, digests that have seen the samples, and what goes to other processes."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from made_files import use_as_mnist, write_mnist

from capsella.data import Affine, ImageData, Order, Place, Shift, from_tensors, load_data, splits


def bytes_of(count: int = 20, channels: int = 3) -> torch.Tensor:
    return torch.randint(0, 256, (count, channels, 6, 5), dtype=torch.uint8)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    use_as_mnist(monkeypatch, write_mnist(tmp_path))
    return tmp_path


def test_bytes_become_values_from_zero_to_one() -> None:
    images, labels = bytes_of(), torch.arange(20) % 4
    data = from_tensors(images, labels, name="mine")
    assert (len(data), data.name, data.image_shape, data.num_classes) == (20, "mine", (3, 6, 5), 4)
    assert data.class_names == ("0", "1", "2", "3")
    batch = data.batch([3, 1])
    assert torch.equal(batch.images, images[[3, 1]].float() / 255)
    assert batch.labels.tolist() == [3, 1]


def test_floating_values_stay_as_they_are() -> None:
    images = torch.randn(4, 1, 2, 2)
    assert torch.equal(from_tensors(images, torch.tensor([0, 1, 1, 0])).batch(range(4)).images, images)


def test_values_that_are_no_grey_levels_are_not_rounded_to_them_by_a_map() -> None:
    images, labels = torch.rand(8, 1, 9, 9), torch.arange(8) % 2
    moved = from_tensors(images, labels, augment="affine").batch(range(8)).images
    assert moved.dtype == torch.float32
    assert ((moved > 0) & (moved < 1)).float().mean() > 0.5  # bytes would be 0 and 1 alone
    assert set(moved.flatten().tolist()) <= {*images.flatten().tolist(), 0.0}  # nearest neighbour: values of the image itself


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_any_floating_values_are_taken(dtype: torch.dtype) -> None:
    images = torch.randn(4, 1, 2, 2).to(dtype).requires_grad_()
    batch = from_tensors(images, torch.tensor([0, 1, 1, 0])).batch(range(4))
    assert torch.equal(batch.images, images.detach().float())
    assert not batch.images.requires_grad


def test_training_tensors_are_augmented_and_others_not() -> None:
    images, labels = bytes_of(), torch.zeros(20, dtype=torch.int32)
    fit, test = (from_tensors(images, labels, split=split, augment=Shift(2)) for split in ("fit", "test"))
    assert not torch.equal(fit.batch(range(20)).images, images.float() / 255)
    assert torch.equal(test.batch(range(20)).images, images.float() / 255)


def test_digests_of_tensors_follow_their_values() -> None:
    images, labels = bytes_of(1_000), torch.arange(1_000) % 2
    digest = from_tensors(images, labels).digest
    assert from_tensors(images.clone(), labels.int()).digest == digest
    changed = images.clone()
    changed[501, 0, 0, 0] ^= 1
    assert from_tensors(changed, labels).digest != digest
    assert from_tensors(images, labels.flip(0)).digest != digest
    assert from_tensors(images, labels, split="test").digest != digest


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"images": [1]}, TypeError, "images has type list; expected a tensor"),
        ({"images": torch.zeros(4, 2)}, ValueError, "images has shape [4, 2]; expected 4 axes, none of them empty"),
        (
            {"images": torch.zeros(4, 1, 2, 2).int()},
            TypeError,
            "images has dtype torch.int32; expected uint8 or floating values",
        ),
        ({"labels": torch.zeros(4)}, TypeError, "labels has dtype torch.float32; expected whole numbers"),
        ({"labels": torch.zeros(3).long()}, ValueError, "labels has 3 entries; expected one for each of 4 images"),
        ({"labels": torch.tensor([0, 1, -1, 0])}, ValueError, "labels has class -1; expected classes from 0"),
        ({"class_names": ("one",)}, ValueError, "class_names has 1 names; expected at least 2"),
        ({"split": "all"}, ValueError, "split='all' is unknown"),
        (
            {"normalise": "unit", "images": torch.zeros(4, 1, 2, 2)},
            ValueError,
            "normalise='unit' is for grey levels, which tensors",
        ),
    ],
)
def test_mistaken_tensors_are_one_line(change: dict[str, Any], error: type[Exception], message: str) -> None:
    good: dict[str, Any] = {"images": torch.zeros(4, 1, 2, 2, dtype=torch.uint8), "labels": torch.tensor([0, 1, 1, 0])}
    with pytest.raises(error) as caught:
        from_tensors(**(good | change))
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["mnist", "mnist40", "multimnist", "sign"])
def test_a_digest_notices_another_split_or_draw(name: str, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digest = load_data(name, split="val", root=root).digest
    assert load_data(name, split="val", root=root).digest == digest
    monkeypatch.setattr(splits, "Order", lambda count, *, seed: Order(count, seed="another"))
    assert load_data(name, split="val", root=root).digest != digest


@pytest.mark.parametrize("name", ["affnist", "affnist_mitterreiter", "affnist_literal"])
def test_fit_and_val_of_affnist_are_parts_of_train(name: str, root: Path) -> None:
    train = load_data(name, root=root, versions=2)
    for split in ("fit", "val"):
        part, chosen = load_data(name, split=split, root=root, versions=2), splits.members(split, 200)
        assert chosen is not None
        assert torch.equal(part.images[:], train.images[:][torch.cat([chosen, chosen + 200])])
        assert torch.equal(part.labels[:], train.labels[:][torch.cat([chosen, chosen + 200])])


@pytest.mark.parametrize("normalise", ["unit", "standardise", "peer2022"])
def test_sign_is_not_normalised(normalise: str) -> None:
    with pytest.raises(ValueError, match=f"^normalise='{normalise}' is for grey levels, which sign has not; expected 'none'$"):
        load_data("sign", normalise=normalise)


def test_two_placements_are_independent(root: Path) -> None:
    data = load_data("mnist40", root=root, augment=Place(60))
    images = data.batch(range(200)).images
    rows = (images.sum(dim=(1, 3)) > 0).int().argmax(dim=1).float()
    first = (data.images[:].sum(dim=(1, 3)) > 0).int().argmax(dim=1).float()
    assert abs(float(torch.corrcoef(torch.stack([first, rows - first]))[0, 1])) < 0.25


@pytest.mark.parametrize("name", ["mnist", "multimnist"])
def test_data_can_be_sent_to_another_process(name: str, root: Path) -> None:
    data = load_data(name, root=root)
    assert len(data.images[:3]) == 3  # made before it is sent
    copy: ImageData = pickle.loads(pickle.dumps(data))
    assert torch.equal(copy.batch([5, 6]).images, data.batch([5, 6]).images)
    assert torch.equal(copy.images[2:4], data.images[2:4])


def test_two_lists_in_a_view_name_pairs_as_with_a_tensor(root: Path) -> None:
    view = load_data("multimnist", root=root).labels
    whole = view[:]
    for key in (([0, 1], [1, 2]), (torch.tensor([3, 1, 2]), torch.tensor([0, 0, 9])), (slice(0, 3), [1, 2]), ([4, 5], 3)):
        assert torch.equal(view[key], whole[key])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"position": "x"}, "position='x' is unknown"),
        ({"about": "y"}, "about='y' is unknown"),
        ({"mode": "cubic"}, "mode='cubic' is unknown"),
        ({"scale": (0, 0)}, r"scale=\(0, 0\) is no range"),
        ({"scale": 1.0}, "scale=1.0 is no range"),
        ({"canvas": 0}, "canvas=0 is too small"),
        ({"rotation": -1}, "rotation=-1 is too small"),
    ],
)
def test_an_affine_map_is_checked_when_it_is_made(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        Affine(**({"rotation": 1, "shear": 0, "scale": (0.9, 1.1)} | change))


def test_a_device_that_is_not_there_is_one_line() -> None:
    with pytest.raises(ValueError, match=r"^device='gpu' cannot be used .*; expected 'cpu', or 'cuda' on a GPU$"):
        load_data("sign").batch([0], device="gpu")
