"""Images in a record: sixteen levels of grey that come back as they were."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from capsella.errors import DataError
from capsella.papers.images import LEVELS, pack, unpack


def test_images_come_back_in_rows_to_half_a_level() -> None:
    images = torch.rand(6, 3, 5, generator=torch.Generator().manual_seed(0))
    sheet = json.loads(json.dumps(pack(images, columns=3)))
    found = unpack(sheet)
    assert found.shape == (6, 15)
    for k, image in enumerate(images):
        row, column = divmod(k, 3)
        part = found[3 * row : 3 * row + 3, 5 * column : 5 * column + 5]
        assert np.abs(part - image.numpy()).max() <= 0.5 / (LEVELS - 1) + 1e-6


def test_values_beyond_the_ends_are_black_and_white() -> None:
    assert unpack(pack(torch.tensor([[[-1.0, 2.0]]]), columns=1)).tolist() == [[0.0, 1.0]]


def test_a_row_that_is_not_full_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"^images has 5 of them; expected rows of 3$"):
        pack(torch.zeros(5, 2, 2), columns=3)


@pytest.mark.parametrize(
    "sheet", [{}, {"height": 2, "width": 2, "grey": "?"}, {"height": 2, "width": 2, "grey": "AAAA"}, {"height": "x"}]
)
def test_what_is_no_sheet_is_said(sheet: dict[str, object]) -> None:
    with pytest.raises(DataError, match=r"^a sheet of images cannot be read \(.*expected what papers.images.pack made$"):
        unpack(sheet)


def test_a_sheet_of_another_size_is_said() -> None:
    sheet = pack(torch.zeros(1, 2, 2), columns=1)
    with pytest.raises(DataError, match="cannot be read"):
        unpack({**sheet, "width": 3})
