"""Active and dead capsules, against loops over numpy's floats."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from analysis_nets import draw, uneven
from torch import Tensor

from capsella.analysis import Activity, ActivityResult, ActivitySweep, activity, activity_sweep


def by_hand(capsules: Tensor, active: float, dead_mean: float, dead_std: float) -> dict[str, Any]:
    k, n, _ = capsules.shape
    lengths = [[math.sqrt(sum(x * x for x in capsule)) for capsule in image] for image in capsules.tolist()]
    cns = sum(sum(row) for row in lengths) / k
    cas = sum(sum(1 for value in row if value >= active) for row in lengths) / k
    dead = []
    for j in range(n):
        column = [row[j] for row in lengths]
        dead.append(bool(np.mean(column) <= dead_mean and np.std(column) <= dead_std))
    cds = dead.count(True)
    return {"cns": cns, "cnm": cns / n, "cas": cas, "car": cas / n, "cds": cds, "cdr": cds / n, "dead": dead}


def assert_is(found: ActivityResult, expected: dict[str, Any]) -> None:
    assert found.dead.tolist() == expected.pop("dead")
    assert {name: getattr(found, name) for name in expected} == pytest.approx(expected, rel=1e-12)


def capsules_of_all_kinds() -> Tensor:
    """Draw capsules that are long, short, near zero, always zero, and zero in all images but one."""
    sizes = torch.tensor([1.0, 0.1, 1e-3, 0.0, 0.0])
    capsules = draw(11, 5, 4) * sizes[:, None]
    capsules[3, 4] = 1.0
    return capsules


def test_one_image_by_hand() -> None:
    found = activity(torch.tensor([[[3.0, 4.0], [0.0, 0.0]]]))
    assert (found.cns, found.cnm, found.cas, found.car, found.cds, found.cdr) == (5, 2.5, 1, 0.5, 1, 0.5)
    assert found.dead.tolist() == [False, True]
    assert found.mean.tolist() == [5, 0]
    assert found.std.tolist() == [0, 0]


def test_two_images_by_hand() -> None:
    # lengths 1, 0 and 0.05, 0.05: means ½ and 0.05, of which only the first is ever active.
    found = activity(torch.tensor([[[1.0], [0.05]], [[0.0], [-0.05]]]))
    assert (found.cns, found.cnm, found.cas, found.car) == pytest.approx((0.55, 0.275, 0.5, 0.25))
    assert found.mean.tolist() == pytest.approx([0.5, 0.05])
    assert found.std.tolist() == pytest.approx([0.5, 0])
    assert not found.dead.any()


@pytest.mark.parametrize("active", [0.0, 0.01, 0.1, 1.0])
@pytest.mark.parametrize(("dead_mean", "dead_std"), [(0.01, 0.01), (0.5, 0.01), (0.5, 0.5), (0.0, 0.0)])
def test_figures_agree_with_loops(active: float, dead_mean: float, dead_std: float) -> None:
    capsules, limits = capsules_of_all_kinds(), (active, dead_mean, dead_std)
    found = activity(capsules, active=active, dead_mean=dead_mean, dead_std=dead_std)
    assert found.active == active
    assert_is(found, by_hand(capsules, *limits))
    lengths = np.linalg.norm(capsules.numpy(), axis=-1)
    np.testing.assert_allclose(found.mean.numpy(), lengths.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(found.std.numpy(), lengths.std(axis=0), rtol=1e-12, atol=1e-16)


def test_a_capsule_is_active_from_the_threshold_on() -> None:
    lengths = torch.tensor([[[0.5], [math.nextafter(0.5, 0)]]], dtype=torch.float64)
    assert activity(lengths, active=0.5).cas == 1


def test_a_capsule_is_dead_up_to_both_thresholds() -> None:
    # lengths 0 and ½ have mean ¼ and standard deviation ¼.
    capsules, less = torch.tensor([[[0.0]], [[0.5]]]), math.nextafter(0.25, 0)
    assert activity(capsules, dead_mean=0.25, dead_std=0.25).cds == 1
    assert activity(capsules, dead_mean=less, dead_std=0.25).cds == 0
    assert activity(capsules, dead_mean=0.25, dead_std=less).cds == 0


def test_a_capsule_that_seldom_wakes_is_alive() -> None:
    # its mean is 0.001; its standard deviation is 0.03.
    capsules = torch.zeros(1000, 1, 2)
    capsules[17] = 1 / math.sqrt(2)
    found = activity(capsules)
    assert found.mean.item() == pytest.approx(0.001)
    assert not found.dead.any()


def test_a_capsule_that_is_always_zero_is_dead_even_at_no_tolerance() -> None:
    assert activity(torch.zeros(4, 1, 3), dead_mean=0, dead_std=0).dead.tolist() == [True]


def test_activations_come_as_capsules_of_one_value() -> None:
    found = activity(torch.tensor([[0.9, 0.2, 0.0]])[..., None])
    assert found.cns == pytest.approx(1.1)
    assert found.cas == 2


def test_one_image_has_capsules_without_spread() -> None:
    found = activity(draw(1, 5, 4))
    assert found.std.tolist() == [0] * 5


def test_a_sweep_is_one_result_for_each_threshold() -> None:
    capsules, thresholds = capsules_of_all_kinds(), (0.3, 0.02)
    found = activity_sweep(capsules, active=thresholds, dead_mean=0.5, dead_std=0.4)
    assert [each.active for each in found] == [0.3, 0.02]
    for each in found:
        assert_is(each, by_hand(capsules, each.active, 0.5, 0.4))
    assert [each.active for each in activity_sweep(capsules)] == [0.01, 0.05, 0.1, 0.2]


def test_higher_thresholds_leave_fewer_active() -> None:
    counts = [each.cas for each in activity_sweep(0.1 * draw(11, 30, 3))]
    assert counts == sorted(counts, reverse=True)
    assert counts[0] > counts[-1]


@pytest.mark.parametrize("streamed", [Activity(active=0.2, dead_mean=0.1), ActivitySweep((0.2,), dead_mean=0.1)])
def test_streamed_figures_are_those_of_all_images_at_once(streamed: Activity | ActivitySweep) -> None:
    capsules = capsules_of_all_kinds()
    for batch in uneven(capsules):
        streamed.update(batch)
    computed = streamed.compute()
    found = computed if isinstance(computed, ActivityResult) else computed[0]
    assert_is(found, by_hand(capsules, 0.2, 0.1, 0.01))
    expected = activity(capsules, active=0.2, dead_mean=0.1)
    torch.testing.assert_close(found.mean, expected.mean, rtol=1e-12, atol=0)
    torch.testing.assert_close(found.std, expected.std, rtol=1e-12, atol=1e-16)


def test_a_large_offset_takes_nothing_from_the_spread() -> None:
    capsules = 1e4 + 1e-3 * draw(11, 3, 1)
    streamed = Activity()
    for batch in uneven(capsules):
        streamed.update(batch)
    np.testing.assert_allclose(streamed.compute().std.numpy(), capsules[..., 0].numpy().std(axis=0), rtol=1e-6)


def test_bfloat16_capsules_are_measured_to_their_rounding() -> None:
    capsules = capsules_of_all_kinds()
    found, expected = activity(capsules.bfloat16()), activity(capsules)
    assert found.mean.dtype == found.std.dtype == torch.bfloat16
    torch.testing.assert_close(found.mean.double(), expected.mean, rtol=1e-2, atol=0)
    assert found.cns == pytest.approx(expected.cns, rel=1e-2)
    assert torch.equal(found.dead, expected.dead)


@pytest.mark.parametrize("metric", [activity, activity_sweep, Activity().update, ActivitySweep().update])
@pytest.mark.parametrize("capsules", [torch.rand(3, 4), torch.rand(2, 3, 4, 5), torch.rand(0, 3, 4), torch.rand(2, 3, 0)])
def test_capsules_of_a_wrong_shape_are_named(metric: Any, capsules: Tensor) -> None:
    with pytest.raises(ValueError, match=r"^capsules has shape"):
        metric(capsules)


@pytest.mark.parametrize("capsules", [torch.ones(2, 3, 4, dtype=torch.long), np.ones((2, 3, 4)), None])
def test_capsules_of_a_wrong_type_are_named(capsules: Any) -> None:
    with pytest.raises(TypeError, match=r"^capsules has "):
        activity(capsules)


@pytest.mark.parametrize("name", ["active", "dead_mean", "dead_std"])
@pytest.mark.parametrize(
    ("value", "error"), [(-0.1, ValueError), (math.nan, ValueError), ("0.1", TypeError), (True, TypeError)]
)
def test_a_threshold_that_is_none_is_named(name: str, value: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=rf"^{name}="):
        activity(torch.rand(2, 3, 4), **{name: value})


@pytest.mark.parametrize("streamed", [Activity(), ActivitySweep()], ids=lambda s: type(s).__name__)
def test_without_a_batch_there_is_nothing_to_compute(streamed: Activity | ActivitySweep) -> None:
    with pytest.raises(ValueError, match="nothing has been seen yet"):
        streamed.compute()
