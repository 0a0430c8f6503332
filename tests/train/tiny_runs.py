"""What tests of the training share: made images, nets of a few hundred weights, runs of a few steps."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import capsella
from capsella.data import ImageData, from_tensors
from capsella.data.multimnist import Pairs
from capsella.data.registry import Content, assemble
from capsella.train import Run, fit

SIDE, CLASSES = 12, 3
# what a run says about time, which no two runs share.
_TIMES = ("seconds", "images_per_second")


def made_images(count: int, *, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return uint8 [N, 1, 12, 12] with a bright block whose place tells the class, and labels [N]."""
    labels = torch.arange(count) % CLASSES
    images = torch.randint(0, 80, (count, 1, SIDE, SIDE), generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)
    for image, label in zip(images, labels.tolist(), strict=True):
        image[:, 4 * label : 4 * label + 4] += 150
    return images, labels


def made_data(count: int = 20, *, split: str = "train", seed: int = 0) -> ImageData:
    """Return a split of made images; 20 make two batches of eight and one of four."""
    return from_tensors(*made_images(count, seed=seed), split=split)


def made_pairs(count: int = 12, *, split: str = "train") -> ImageData:
    """Return images of two digits over each other, made of blocks instead of MNIST's."""
    digits = torch.zeros(count, 1, 28, 28, dtype=torch.uint8)
    for k, digit in enumerate(digits):
        digit[:, 4 + k % 8 : 12 + k % 8, 8:20] = 40 + 15 * (k % 10)
    samples = Pairs(digits, torch.arange(count) % 10, partners=1, shift=2, seed=f"pairs {split}")
    return assemble(Content(samples, tuple(map(str, range(10)))), "pairs", split, {}, None, "unit")


def capsnet(name: str = "capsnet_small", **options: Any) -> capsella.models.Model:
    """Build a capsule net of about two thousand weights, the same at every call."""
    torch.manual_seed(1)
    sizes = {"kernel_size": 3, "trunk_stride": 2, "channels": 4, "types": 2, "dim": 4, "class_dim": 4, "decoder_hidden": (8,)}
    return capsella.create_model(name, image_size=SIDE, num_classes=CLASSES, **{**sizes, **options})


def plain_net(*, dropout: float = 0.0) -> nn.Sequential:
    """Build a net that has nothing of capsella's: logits, with biases."""
    torch.manual_seed(1)
    return nn.Sequential(nn.Flatten(), nn.Linear(SIDE * SIDE, 6), nn.ReLU(), nn.Dropout(dropout), nn.Linear(6, CLASSES))


def short_run(model: nn.Module, data: ImageData | None = None, **settings: Any) -> Run:
    """Train for a few steps without a word."""
    defaults: dict[str, Any] = {"steps": 5, "batch_size": 8, "log_every": 1, "device": "cpu", "progress": False}
    return fit(model, made_data() if data is None else data, **{**defaults, **settings})


def weights(run: Run) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in run.model.state_dict().items()}


def differing(one: dict[str, Tensor], other: dict[str, Tensor]) -> list[str]:
    """List the weights that differ in any bit."""
    assert one.keys() == other.keys()
    return [name for name in one if not torch.equal(one[name], other[name])]


def told(run: Run) -> list[dict[str, Any]]:
    """Return the events of a run without its times."""
    return [{key: value for key, value in event.items() if key not in _TIMES} for event in run.events]


def losses(run: Run) -> list[float]:
    return [event["loss"] for event in run.events if event["event"] == "log"]


def one_line(error: BaseException) -> str:
    """Return the message of an error, which is one line without a stop at its end."""
    message = str(error)
    assert message == " ".join(message.split()), message
    assert not message.endswith("."), message
    return message
