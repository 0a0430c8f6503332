"""Values on their way to a page: arrays of any origin, and numbers as text."""

from __future__ import annotations

from statistics import mean, stdev

import numpy as np
import pytest
import torch

from capsella.report import mean_and_spread
from capsella.report.values import array, class_indices, count, duration, memory, percent, signed, unit_array


@pytest.mark.parametrize(
    "values",
    [
        torch.tensor([[1.0, 2.0], [3.0, 4.0]]),
        torch.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True),
        torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=torch.bfloat16),
        torch.tensor([[1, 2], [3, 4]]),
        np.array([[1, 2], [3, 4]], np.float32),
        [[1, 2], [3, 4]],
    ],
    ids=["float32", "in a graph", "bfloat16", "int64", "numpy", "lists"],
)
def test_values_of_any_origin_become_one_kind_of_array(values: object) -> None:
    found = array(values, "I J", name="couplings", J=2)
    assert found.dtype == np.float64
    assert found.tolist() == [[1.0, 2.0], [3.0, 4.0]]


def test_wrong_shapes_and_values_are_named_in_one_line() -> None:
    with pytest.raises(ValueError, match=r"^frames has shape \[2, 3\]; expected \[D, K=4\]$"):
        array(torch.zeros(2, 3), "D K", name="frames", K=4)
    with pytest.raises(ValueError, match=r"^frames has shape \[2\]; expected \[D, K\]$"):
        array(torch.zeros(2), "D K", name="frames")
    with pytest.raises(ValueError, match=r"^scores has values that are not finite; expected numbers$"):
        array(torch.tensor([0.0, float("nan")]), "J", name="scores")
    with pytest.raises(ValueError, match=r"^image has values from -0\.42 to 2\.8; expected values from 0 to 1$"):
        unit_array([[-0.42, 2.8]], "H W", name="image")


def test_roundings_beyond_the_unit_interval_are_cut() -> None:
    assert unit_array([-0.001, 0.5, 1.001], "n", name="x").tolist() == [0.0, 0.5, 1.0]


@pytest.mark.parametrize(("values", "shown"), [([3], "3"), ([-1], "-1"), ([0.5], "0.5")])
def test_what_is_no_class_is_refused(values: list[float], shown: str) -> None:
    assert class_indices(torch.tensor([0, 2]), name="labels", classes=3) == [0, 2]
    with pytest.raises(ValueError, match=rf"^labels has class {shown}; expected whole numbers from 0 to 2$"):
        class_indices(values, name="labels", classes=3)


def test_the_spread_is_the_sample_standard_deviation() -> None:
    values = [0.91, 0.95, 0.90, 0.99]
    found, spread = mean_and_spread(values)
    assert found == pytest.approx(mean(values), abs=1e-15)
    assert spread == pytest.approx(stdev(values), abs=1e-15)


def test_one_value_has_no_spread_and_none_no_mean() -> None:
    assert mean_and_spread([0.25]) == (0.25, None)
    assert mean_and_spread([0.25, 0.25]) == (0.25, 0.0)
    with pytest.raises(ValueError, match=r"^values=\(\) has no mean; expected at least one number$"):
        mean_and_spread([])


def test_numbers_as_text() -> None:
    assert percent(0.99125) == "99.12\xa0%"
    assert percent(0.98, 0.99, 1.0) == "99.00 ± 1.00\xa0%"
    assert (count(1234567), count(1000.0, 3000.0)) == ("1,234,567", "2,000 ± 1,414")
    assert (percent(), count(), memory(None)) == ("–", "–", "–")
    assert [duration(value) for value in (0.04, 9.94, 59.4, 59.6, 3599, 3600, 7260)] == [
        *("0.0 s", "9.9 s", "59 s", "1 min 0 s", "59 min 59 s", "1 h 0 min", "2 h 1 min")
    ]
    assert [memory(value) for value in (0, 1023, 1024, 1 << 20, 5 << 29)] == ["0 B", "1023 B", "1.0 KiB", "1.0 MiB", "2.5 GiB"]
    assert [signed(value) for value in (-0.25, -0.001, 0.0, 0.05)] == ["−0.25", "0", "0", "+0.05"]
