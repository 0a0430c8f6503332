"""smallNORB (LeCun, Huang & Bottou 2004): stereo pairs of toys, 96×96, from the authors' matrices."""

from __future__ import annotations

from capsella.data.formats import as_tensors, parse_norb
from capsella.data.places import Places
from capsella.data.registry import Content, register_data
from capsella.data.samples import Stored
from capsella.data.sources import File, Files, Mirror, obtain
from capsella.data.splits import published, take

TOYS = ("animal", "human", "airplane", "truck", "car")
_STEMS = {
    "train": "smallnorb-5x46789x9x18x6x2x96x96-training",
    "test": "smallnorb-5x01235x9x18x6x2x96x96-testing",
}
_IMAGES, _LABELS = 24 + 24_300 * 2 * 96 * 96, 20 + 24_300 * 4
# of the images only MD5 sums are published; the label files hold 0, 1, 2, 3, 4 over and over, which is enough to know theirs.
_LABEL_SUM = "sha256:591ed90c090cb6724593e8de28180bd602095ee8ec82bd1a5ca30b488cd1d06e"
SMALLNORB = Files(
    "smallnorb",
    (
        File(f"{_STEMS['train']}-dat.mat", "md5:8138a0902307b32dfa0025a36dfa45ec", _IMAGES),
        File(f"{_STEMS['train']}-cat.mat", _LABEL_SUM, _LABELS),
        File(f"{_STEMS['test']}-dat.mat", "md5:e9920b7f7b2869a8f1a12e945b2c166c", _IMAGES),
        File(f"{_STEMS['test']}-cat.mat", _LABEL_SUM, _LABELS),
    ),
    (Mirror("https://cs.nyu.edu/~ylclab/data/norb-v1.0-small/"),),
)


@register_data("smallnorb", summary="stereo pairs of toys as two channels, 2×96×96, 24,300 and 24,300", files=SMALLNORB)
def smallnorb(split: str, places: Places) -> Content:
    """Load smallNORB; the two cameras are the two channels."""
    chosen = [file for file in SMALLNORB.files if file.name.startswith(_STEMS[published(split)])]
    contents = obtain(SMALLNORB, places, [file.name for file in chosen])
    pixels, classes = (parse_norb(contents[file.name], file.name) for file in chosen)
    images, labels = as_tensors(pixels, classes, classes=len(TOYS), name=f"smallnorb {split}")
    return Content(Stored(*take(split, images, labels)), TOYS, {file.name: file.checksum for file in chosen})
