"""CIFAR-10 (Krizhevsky 2009) from its canonical binary batches; the pickled ones are never opened."""

from __future__ import annotations

import numpy as np

from capsella.data.formats import as_tensors, parse_records
from capsella.data.places import Places
from capsella.data.registry import Content, register_data
from capsella.data.samples import Stored
from capsella.data.sources import Archive, File, Files, obtain
from capsella.data.splits import published, take

OBJECTS = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_CHECKSUMS = {
    "data_batch_1.bin": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
    "data_batch_2.bin": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
    "data_batch_3.bin": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
    "data_batch_4.bin": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
    "data_batch_5.bin": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
    "test_batch.bin": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
}
CIFAR10 = Files(
    "cifar10",
    tuple(
        File(name, f"sha256:{checksum}", 10_000 * 3073, (f"cifar-10-batches-bin/{name}",))
        for name, checksum in _CHECKSUMS.items()
    ),
    (Archive("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"),),
)


@register_data("cifar10", summary="small photographs of ten kinds of object, 3×32×32, 50,000 and 10,000", files=CIFAR10)
def cifar10(split: str, places: Places) -> Content:
    """Load CIFAR-10."""
    chosen = [file for file in CIFAR10.files if (file.name == "test_batch.bin") == (published(split) == "test")]
    contents = obtain(CIFAR10, places, [file.name for file in chosen])
    batches = [parse_records(contents[file.name], file.name) for file in chosen]
    pixels, classes = np.concatenate([images for _, images in batches]), np.concatenate([labels for labels, _ in batches])
    images, labels = as_tensors(pixels, classes, classes=10, name=f"cifar10 {split}")
    return Content(Stored(*take(split, images, labels)), OBJECTS, {file.name: file.checksum for file in chosen})
