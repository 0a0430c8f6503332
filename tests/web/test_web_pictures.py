"""Pictures: grey levels in and out, put over each other, moved, and brought to a network's size."""

from __future__ import annotations

import base64
import io
from typing import Any

import pytest
import torch
from explored import drawn, rectangles
from PIL import Image
from torch import Tensor

from capsella.web.pictures import decoded, fitted, moved, moved_by, on_top, packed, png, unpacked
from capsella.web.schemas import DrawnPicture, Move
from capsella.web.trouble import TooMuch, Trouble

BYTES = torch.arange(2 * 3 * 3, dtype=torch.uint8).reshape(3, 2, 3) * 14


def image(shape: tuple[int, int, int] = (1, 28, 28)) -> Tensor:
    return rectangles(1, shape).images[0]


def file_of(levels: Tensor, kind: str = "PNG", **options: Any) -> bytes:
    file = io.BytesIO()
    Image.fromarray(levels.movedim(0, -1).squeeze(-1).numpy()).save(file, kind, **options)
    return file.getvalue()


def test_grey_levels_come_back_as_they_went() -> None:
    for levels in (BYTES, BYTES[:1]):
        assert torch.equal(unpacked(DrawnPicture.model_validate(drawn(levels))), levels)
        wire = packed(levels)
        assert (wire.height, wire.width, wire.channels) == (2, 3, len(levels))
        assert list(base64.b64decode(wire.data)) == levels.movedim(0, -1).flatten().tolist()
    # what was moved is no byte any more.
    assert list(base64.b64decode(packed(torch.tensor([[[-3.0, 0.4, 254.6, 300.0]]])).data)) == [0, 0, 255, 255]


@pytest.mark.parametrize(
    ("data", "says"),
    [("AAAA", "has 3 bytes; expected 4, height 2 × width 2 × channels 1"), ("A", "no base64"), ("é", "no base64")],
)
def test_grey_levels_that_are_not_as_many_as_they_say(data: str, says: str) -> None:
    with pytest.raises(Trouble, match=says):
        unpacked(DrawnPicture(kind="drawn", height=2, width=2, data=data))


def test_a_png_holds_the_very_levels() -> None:
    for levels in (BYTES, BYTES[:1]):
        with Image.open(io.BytesIO(png(levels))) as found:
            assert found.size == (3, 2)
            assert list(found.tobytes()) == levels.movedim(0, -1).flatten().tolist()


def test_a_file_is_read_as_a_data_set_reads_it() -> None:
    levels = image()
    assert torch.equal(decoded(file_of(levels), (1, 28, 28), most_pixels=1000), levels)
    assert torch.equal(decoded(file_of(levels), (3, 28, 28), most_pixels=1000), levels.repeat(3, 1, 1))
    assert torch.equal(decoded(file_of(levels), (1, 28, 28), most_pixels=1000, invert=True), 255 - levels)
    colour = torch.zeros(3, 28, 28, dtype=torch.uint8)
    colour[1] = 100
    (value,) = decoded(file_of(colour), (1, 28, 28), most_pixels=1000).unique().tolist()
    assert value == round(100 * 0.587)


def test_a_file_over_nothing_is_over_white_and_upright() -> None:
    file = io.BytesIO()
    Image.new("RGBA", (4, 4), (0, 0, 0, 0)).save(file, "PNG")
    assert decoded(file.getvalue(), (1, 4, 4), most_pixels=16).unique().tolist() == [255]
    levels = torch.zeros(1, 4, 4, dtype=torch.uint8)
    levels[:, 0] = 255
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned clockwise
    turned = decoded(file_of(levels, exif=exif), (1, 4, 4), most_pixels=16)
    assert turned[0, :, 3].tolist() == [255] * 4
    assert turned.sum() == 4 * 255


def test_no_pixel_is_decoded_of_a_file_that_has_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    content = file_of(torch.zeros(1, 40, 40, dtype=torch.uint8))
    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", lambda self: pytest.fail("it was decoded"))
    with pytest.raises(TooMuch, match="40 × 40 pixels; expected at most 1,599 in all"):
        decoded(content, (1, 28, 28), most_pixels=1599)


def test_a_bomb_is_refused_by_what_its_header_says() -> None:
    # a bitmap of 100,000 × 100,000 pixels in 58 bytes.
    header = b"BM" + (58).to_bytes(4, "little") + b"\0" * 4 + (54).to_bytes(4, "little") + (40).to_bytes(4, "little")
    header += (100_000).to_bytes(4, "little") * 2 + (1).to_bytes(2, "little") + (24).to_bytes(2, "little") + b"\0" * 28
    with pytest.raises(Trouble):
        decoded(header, (1, 28, 28), most_pixels=16_000_000)


@pytest.mark.parametrize("kind", ["TIFF", "PPM", "ICO", "PDF"])
def test_formats_that_nobody_needs_are_not_decoded(kind: str) -> None:
    with pytest.raises(Trouble, match="expected PNG, JPEG, WEBP, BMP, GIF") as caught:
        decoded(file_of(image(), kind), (1, 28, 28), most_pixels=1000)
    assert "0x" not in str(caught.value)


def test_a_smaller_image_is_put_in_the_middle_and_a_larger_one_shrunk() -> None:
    levels = torch.full((1, 4, 2), 9, dtype=torch.uint8)
    framed = fitted(levels, (1, 6, 6))
    assert torch.equal(framed[:, 1:5, 2:4], levels)
    assert framed.sum() == levels.sum()
    assert torch.equal(fitted(levels, (1, 4, 2)), levels)
    shrunk = fitted(torch.full((1, 40, 20), 9, dtype=torch.uint8), (1, 10, 10))
    assert sorted(shrunk[0, 5].tolist()) == [0] * 5 + [9] * 5
    assert fitted(torch.full((1, 500, 1), 9, dtype=torch.uint8), (1, 10, 10)).shape == (1, 10, 10)
    assert fitted(torch.full((3, 2, 2), 9, dtype=torch.uint8), (1, 2, 2)).unique().tolist() == [9]
    assert fitted(levels, (5, 6, 6)).shape == (5, 6, 6)


def test_a_second_image_is_added_and_cut_off_at_white() -> None:
    below, above = torch.full((1, 3, 3), 200, dtype=torch.uint8), torch.zeros(1, 3, 3, dtype=torch.uint8)
    above[0, 0, 0] = 100
    expected = below.clone()
    expected[0, 1, 2] = 255
    assert torch.equal(on_top(below, above, 2, 1), expected)
    assert torch.equal(on_top(below, above, 3, 0), below)
    assert torch.equal(on_top(below, above, -1, 0), below)


def test_an_image_that_is_not_moved_is_the_very_same() -> None:
    levels = image()
    assert moved(levels, Move()) is levels
    assert moved_by(levels, [Move(), Move(x=1)])[0] is levels


def test_moves_go_the_way_they_say() -> None:
    levels = torch.zeros(1, 9, 9, dtype=torch.uint8)
    levels[0, 4, 6] = 200  # right of the middle

    def place(move: Move) -> tuple[int, int]:
        found = moved(levels, move)[0]
        row, column = divmod(int(found.argmax()), 9)
        return row, column

    assert place(Move(x=2)) == (4, 8)
    assert place(Move(y=-3)) == (1, 6)
    assert place(Move(rotation=90)) == (6, 4)  # clockwise: from the right to below
    assert place(Move(rotation=-90)) == (2, 4)
    assert place(Move(scale=2)) == (4, 8)
    assert place(Move(rotation=180, y=1)) == (5, 2)
    above = torch.zeros(1, 9, 9, dtype=torch.uint8)
    above[0, 1, 4] = 200
    leaning = moved(above, Move(shear=45))[0]
    assert int(leaning.argmax()) % 9 != 4


def test_several_moves_at_once_are_each_alone() -> None:
    levels = image()
    moves = [Move(rotation=20), Move(), Move(x=3.5, scale=0.7), Move(shear=-30)]
    for one, move in zip(moved_by(levels, moves), moves, strict=True):
        torch.testing.assert_close(one, moved(levels, move))
