"""Moments that come in batches, against numpy, which has all samples at once."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from analysis_nets import draw
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from capsella.analysis import Moments


def of(*batches: Tensor) -> Moments:
    moments = Moments()
    for batch in batches:
        moments.update(batch)
    return moments


def test_three_numbers_by_hand() -> None:
    # mean 3, squared distances 4 + 1 + 9.
    moments = of(torch.tensor([1.0, 2.0]), torch.tensor([6.0]))
    assert moments.count == 3
    assert moments.mean.item() == 3.0
    assert moments.std.item() == pytest.approx(math.sqrt(14 / 3), rel=1e-14)
    assert moments.mean_square.item() == pytest.approx(41 / 3, rel=1e-14)


@given(sizes=st.lists(st.integers(0, 5), min_size=1, max_size=6).filter(any), seed=st.integers(0, 1000))
def test_any_batches_give_what_numpy_gives_at_once(sizes: list[int], seed: int) -> None:
    samples = draw(sum(sizes), 2, 3, seed=seed)
    moments, values = of(*samples.split(sizes)), samples.numpy()
    assert moments.count == len(values)
    np.testing.assert_allclose(moments.mean.numpy(), values.mean(axis=0), rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(moments.std.numpy(), values.std(axis=0), rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(moments.mean_square.numpy(), (values**2).mean(axis=0), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(("offset", "noise"), [(1e4, 1e-3), (1e8, 1e-2)])
def test_a_large_offset_takes_nothing_from_the_spread(offset: float, noise: float) -> None:
    values = (offset + noise * draw(103, 4)).numpy()
    moments = of(*torch.from_numpy(values).split([1, 40, 2, 60]))
    np.testing.assert_allclose(moments.std.numpy(), values.std(axis=0), rtol=1e-6)
    np.testing.assert_allclose(moments.mean.numpy(), values.mean(axis=0), rtol=1e-15)


def test_float32_samples_are_summed_in_float64() -> None:
    samples = (1e4 + draw(1000)).float()
    moments, values = of(*samples.split([999, 1])), samples.double().numpy()
    assert moments.mean.dtype == torch.float64
    assert moments.mean.item() == pytest.approx(values.mean(), rel=1e-14)
    assert moments.std.item() == pytest.approx(values.std(), rel=1e-10)


def test_bfloat16_samples_count_as_the_numbers_they_are() -> None:
    samples = draw(50, 3).bfloat16()
    moments, values = of(samples[:7], samples[7:]), samples.double().numpy()
    np.testing.assert_allclose(moments.mean.numpy(), values.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(moments.std.numpy(), values.std(axis=0), rtol=1e-12)


def test_one_sample_has_no_spread() -> None:
    moments = of(torch.tensor([[0.1, -7.0]]))
    assert moments.std.tolist() == [0.0, 0.0]
    assert moments.mean.tolist() == pytest.approx([0.1, -7.0])


def test_equal_samples_have_no_spread_at_all() -> None:
    moments = of(*[torch.full((n,), 0.1) for n in (3, 1, 7)])
    assert moments.std.item() == 0.0


def test_an_empty_batch_adds_nothing() -> None:
    moments = of(torch.empty(0, 2), torch.ones(3, 2), torch.empty(0, 2))
    assert moments.count == 3
    assert moments.mean.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("batches", [(), (torch.empty(0, 2),)], ids=["none", "empty"])
@pytest.mark.parametrize("part", ["mean", "std", "mean_square"])
def test_nothing_seen_is_an_error(part: str, batches: tuple[Tensor, ...]) -> None:
    moments = of(*batches)
    with pytest.raises(ValueError, match=r"nothing has been seen yet; call update\(\)"):
        getattr(moments, part)


def test_samples_of_another_shape_are_refused_and_change_nothing() -> None:
    moments = of(torch.ones(3, 2))
    with pytest.raises(ValueError, match=r"shape \[5\]; expected \[2\]"):
        moments.update(torch.ones(3, 5))
    assert moments.count == 3
    assert moments.mean.tolist() == [1.0, 1.0]


def test_no_graph_is_kept() -> None:
    moments = of(torch.ones(3, 2, requires_grad=True))
    assert not moments.mean.requires_grad
    assert not moments.std.requires_grad


def test_what_was_added_may_be_overwritten() -> None:
    samples = torch.tensor([[1.0, 2.0]], dtype=torch.float64)
    moments = of(samples)
    samples.zero_()
    assert moments.mean.tolist() == [1.0, 2.0]
