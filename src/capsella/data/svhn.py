"""SVHN (Netzer et al. 2011), cropped digits of house numbers, from the authors' MATLAB files."""

from __future__ import annotations

import numpy as np
from einops import rearrange

from capsella.data.digits import DIGITS
from capsella.data.formats import as_tensors
from capsella.data.matfile import read_mat
from capsella.data.places import Places
from capsella.data.registry import Content, register_data
from capsella.data.samples import Stored
from capsella.data.sources import File, Files, Mirror, obtain
from capsella.data.splits import published, take
from capsella.errors import DataError

SVHN = Files(
    "svhn",
    (
        File("train_32x32.mat", "sha256:435e94d69a87fde4fd4d7f3dd208dfc32cb6ae8af2240d066de1df7508d083b8", 182_040_794),
        File("test_32x32.mat", "sha256:cdce80dfb2a2c4c6160906d0bd7c68ec5a99d7ca4831afa54f09182025b6a75b", 64_275_384),
    ),
    (Mirror("http://ufldl.stanford.edu/housenumbers/", suffix=""),),
)


def parse_svhn(content: bytes, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return images [N, 3, 32, 32] and labels [N] of a file with X [32, 32, 3, N] and y [N, 1], where 10 stands for 0."""
    variables = read_mat(content, name)
    pixels, labels = variables.get("X"), variables.get("y")
    if not isinstance(pixels, np.ndarray) or not isinstance(labels, np.ndarray) or pixels.shape[:-1] != (32, 32, 3):
        raise DataError(f"{name} has the variables {', '.join(variables) or 'none'}; expected X [32, 32, 3, N] and y [N, 1]")
    if not ((labels >= 1) & (labels <= 10)).all():
        raise DataError(f"{name} has labels from {labels.min()} to {labels.max()}; expected 1 to 10, where 10 stands for 0")
    return rearrange(pixels, "h w c n -> n c h w"), labels.reshape(-1) % 10


@register_data("svhn", summary="digits of house numbers, 3×32×32, 73,257 and 26,032", files=SVHN)
def svhn(split: str, places: Places) -> Content:
    """Load SVHN's cropped digits."""
    file = SVHN[f"{published(split)}_32x32.mat"]
    pixels, classes = parse_svhn(obtain(SVHN, places, [file.name])[file.name], file.name)
    images, labels = as_tensors(pixels, classes, classes=10, name=f"svhn {split}")
    return Content(Stored(*take(split, images, labels)), DIGITS, {file.name: file.checksum})
