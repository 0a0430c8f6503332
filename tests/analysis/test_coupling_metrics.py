"""Dynamics, entropy and change of couplings, against loops over numpy's floats."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from analysis_nets import draw, uneven
from torch import Tensor

from capsella.analysis import (
    CouplingChange,
    CouplingEntropy,
    RoutingDynamics,
    coupling_change,
    coupling_entropy,
    routing_dynamics,
)
from capsella.routing import agreement, trainable

Array = npt.NDArray[np.float64]


def shares(*size: int, seed: int = 1) -> Tensor:
    return draw(*size, seed=seed).softmax(dim=-1)


def rates_by_hand(couplings: Array, live: list[int]) -> list[float]:
    """Compare the spread of each coupling with that of perfect routing, which is built and not taken from a formula."""
    perfect = np.std(np.eye(len(live))[0])
    rates = []
    for i in range(couplings.shape[1]):
        spreads = [math.sqrt(np.mean((couplings[:, i, j] - np.mean(couplings[:, i, j])) ** 2)) for j in live]
        rates.append(sum(spreads) / len(live) / float(perfect))
    return rates


def test_two_images_by_hand() -> None:
    # both couplings move by 0.1 about their mean; perfect routing would move them by 0.5.
    found = routing_dynamics(torch.tensor([[[0.6, 0.4]], [[0.4, 0.6]]], dtype=torch.float64))
    assert found.dyr.tolist() == pytest.approx([0.2])
    assert found.dys.tolist() == pytest.approx([0.4])
    assert (found.dyr_mean, found.dys_mean, found.targets) == (pytest.approx(0.2), pytest.approx(0.4), 2)


@pytest.mark.parametrize("targets", [2, 3, 7])
def test_perfect_routing_has_rate_one_and_chooses_between_all_targets(targets: int) -> None:
    # one source; each target for one image.
    found = routing_dynamics(torch.eye(targets, dtype=torch.float64)[:, None])
    assert found.dyr.item() == pytest.approx(1, rel=1e-14)
    assert found.dys.item() == pytest.approx(targets, rel=1e-14)


def test_perfect_routing_among_the_living_has_rate_one_only_without_the_dead() -> None:
    alive = torch.tensor([True, False, True, True, False])
    couplings = torch.eye(5, dtype=torch.float64)[alive][:, None]
    found = routing_dynamics(couplings, alive=alive)
    assert found.targets == 3
    assert found.dyr.item() == pytest.approx(1, rel=1e-14)
    assert found.dys.item() == pytest.approx(3, rel=1e-14)
    # the literal reading: three spreads of √(2/9) among five, of which perfect routing would have √(4/25).
    assert routing_dynamics(couplings).dyr.item() == pytest.approx(3 / 5 * math.sqrt(2 / 9) / math.sqrt(4 / 25), rel=1e-14)


def test_static_routing_has_rate_zero() -> None:
    found = routing_dynamics(shares(1, 4, 3).expand(9, 4, 3))
    assert found.dyr.tolist() == pytest.approx([0] * 4, abs=1e-15)
    assert found.dys_mean == pytest.approx(0, abs=1e-15)


@pytest.mark.parametrize("live", [range(6), (0, 5), (1, 2, 4)], ids=str)
def test_rates_agree_with_loops(live: Any) -> None:
    couplings, live = shares(11, 4, 6), list(live)
    alive = torch.zeros(6, dtype=torch.bool)
    alive[live] = True
    sources = torch.tensor([True, False, True, True])
    found, expected = routing_dynamics(couplings, alive=alive, alive_sources=sources), rates_by_hand(couplings.numpy(), live)
    assert found.dyr.tolist() == pytest.approx(expected, rel=1e-12)
    assert found.dys.tolist() == pytest.approx([len(live) * rate for rate in expected], rel=1e-12)
    assert found.dyr_mean == pytest.approx(np.mean([expected[i] for i in (0, 2, 3)]), rel=1e-12)
    # what the paper's Table 1 shows: the sum over the rate is the number alive above.
    assert found.dys_mean / found.dyr_mean == pytest.approx(len(live), rel=1e-12)


def test_signed_couplings_have_dynamics_too() -> None:
    couplings = 10 * draw(11, 4, 6)
    assert routing_dynamics(couplings).dyr.tolist() == pytest.approx(
        rates_by_hand(couplings.numpy(), list(range(6))), rel=1e-12
    )


@pytest.mark.parametrize("live", [0, 1])
def test_with_fewer_than_two_live_targets_there_is_no_rate(live: int) -> None:
    found = routing_dynamics(shares(5, 3, 4), alive=torch.arange(4) < live)
    assert found.targets == live
    assert found.dyr.isnan().all()
    assert found.dys.isnan().all()
    assert math.isnan(found.dyr_mean)
    assert math.isnan(found.dys_mean)


def test_one_target_in_all_is_no_choice() -> None:
    assert routing_dynamics(torch.rand(5, 3, 1)).dyr.isnan().all()


def test_without_live_sources_only_the_means_are_missing() -> None:
    couplings = shares(5, 3, 4)
    found = routing_dynamics(couplings, alive_sources=torch.zeros(3, dtype=torch.bool))
    assert torch.equal(found.dyr, routing_dynamics(couplings).dyr)
    assert math.isnan(found.dyr_mean)
    assert math.isnan(found.dys_mean)


def test_one_image_shows_no_dynamics() -> None:
    assert routing_dynamics(shares(1, 3, 4)).dyr.tolist() == [0, 0, 0]


def test_streamed_dynamics_are_those_of_all_images_at_once() -> None:
    couplings, alive = 1e4 + 1e-3 * shares(11, 4, 6), torch.tensor([True, True, False, True, True, True])
    streamed = RoutingDynamics()
    for batch in uneven(couplings):
        streamed.update(batch)
    found, expected = streamed.compute(alive=alive), routing_dynamics(couplings, alive=alive)
    torch.testing.assert_close(found.dyr, expected.dyr, rtol=1e-6, atol=0)
    assert found.dys_mean == pytest.approx(expected.dys_mean, rel=1e-6)
    assert found.targets == expected.targets == 5


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_only_results_are_rounded_to_the_couplings_dtype(dtype: torch.dtype) -> None:
    couplings, later = shares(11, 4, 6).to(dtype), shares(11, 4, 6, seed=2).to(dtype)
    found, expected = routing_dynamics(couplings), routing_dynamics(couplings.double())
    assert torch.equal(found.dyr, expected.dyr.to(dtype))
    assert torch.equal(found.dys, expected.dys.to(dtype))
    assert found.dyr_mean == expected.dyr_mean
    assert torch.equal(coupling_entropy(couplings).entropy, coupling_entropy(couplings.double()).entropy.to(dtype))
    change = coupling_change([couplings.double(), later.double()])
    assert torch.equal(coupling_change([couplings, later]), change.to(dtype))


def test_what_is_alive_may_be_said_first_or_last() -> None:
    couplings, alive, sources = shares(11, 3, 4), torch.arange(4) < 3, torch.arange(3) > 0
    first = RoutingDynamics(alive=alive, alive_sources=sources)
    first.update(couplings)
    expected = routing_dynamics(couplings, alive=alive, alive_sources=sources)
    assert first.compute().dys_mean == expected.dys_mean
    assert first.compute().targets == 3
    # what is said last counts.
    assert first.compute(alive=torch.arange(4) < 2).targets == 2


@pytest.mark.parametrize("name", ["alive", "alive_sources"])
@pytest.mark.parametrize(
    "mask", [torch.ones(3), torch.ones(2, dtype=torch.bool), torch.ones(1, 3, dtype=torch.bool), [True, True, True]], ids=str
)
def test_a_mask_that_is_none_is_named(name: str, mask: Any) -> None:
    with pytest.raises(ValueError, match=rf"^{name} .*expected torch.bool \[3\]"):
        routing_dynamics(torch.rand(5, 3, 3), **{name: mask})


@pytest.mark.parametrize("metric", [routing_dynamics, coupling_entropy, RoutingDynamics().update, CouplingEntropy().update])
@pytest.mark.parametrize("couplings", [torch.rand(3, 4), torch.rand(2, 3, 4, 5), torch.rand(0, 3, 4), torch.rand(2, 3, 0)])
def test_couplings_of_a_wrong_shape_are_named(metric: Any, couplings: Tensor) -> None:
    with pytest.raises(ValueError, match=r"^couplings has shape"):
        metric(couplings)


@pytest.mark.parametrize("metric", [routing_dynamics, coupling_entropy])
@pytest.mark.parametrize("couplings", [torch.ones(2, 3, 4, dtype=torch.long), np.ones((2, 3, 4)), None])
def test_couplings_of_a_wrong_type_are_named(metric: Any, couplings: Any) -> None:
    with pytest.raises(TypeError, match=r"^couplings has "):
        metric(couplings)


def test_a_batch_with_other_capsules_is_refused() -> None:
    streamed = RoutingDynamics()
    streamed.update(shares(2, 3, 4))
    with pytest.raises(ValueError, match=r"\[3, 5\]; expected \[3, 4\]"):
        streamed.update(shares(2, 3, 5))


@pytest.mark.parametrize("streamed", [RoutingDynamics(), CouplingEntropy(), CouplingChange()], ids=lambda s: type(s).__name__)
def test_without_a_batch_there_is_nothing_to_compute(streamed: Any) -> None:
    with pytest.raises(ValueError, match="nothing has been seen yet"):
        streamed.compute()


def test_entropy_by_hand() -> None:
    # ½ log 2 + 2 · ¼ log 4 = 1½ bits of log2 3; a target without a share adds nothing.
    found = coupling_entropy(torch.tensor([[[0.5, 0.25, 0.25], [0.5, 0.5, 0.0]]], dtype=torch.float64))
    assert found.entropy.tolist() == pytest.approx([1.5 / math.log2(3), 1 / math.log2(3)], rel=1e-14)
    assert found.mean == pytest.approx(1.25 / math.log2(3), rel=1e-14)


@pytest.mark.parametrize("targets", [2, 3, 10])
def test_uniform_couplings_have_entropy_one_and_decided_ones_zero(targets: int) -> None:
    couplings = torch.stack([torch.full((targets,), 1 / targets), torch.eye(targets)[0]])[None]
    assert coupling_entropy(couplings).entropy.tolist() == pytest.approx([1, 0], abs=1e-7)


def test_entropy_agrees_with_loops() -> None:
    couplings = shares(11, 4, 6)
    expected = [
        np.mean([-sum(c * math.log(c) for c in couplings[n, i].tolist()) / math.log(6) for n in range(11)]) for i in range(4)
    ]
    found = coupling_entropy(couplings)
    assert found.entropy.tolist() == pytest.approx(expected, rel=1e-12)
    assert found.mean == pytest.approx(np.mean(expected), rel=1e-12)
    streamed = CouplingEntropy()
    for batch in uneven(couplings):
        streamed.update(batch)
    torch.testing.assert_close(streamed.compute().entropy, found.entropy, rtol=1e-12, atol=0)
    assert streamed.compute().mean == pytest.approx(found.mean, rel=1e-12)


def test_entropy_of_one_target_is_not_defined() -> None:
    found = coupling_entropy(torch.ones(5, 3, 1))
    assert found.entropy.isnan().all()
    assert math.isnan(found.mean)


@pytest.mark.parametrize("wrong", [[1.5, -0.5], [0.0, 0.0]], ids=["signed", "zero"])
def test_entropy_of_what_are_no_shares_is_not_defined(wrong: list[float]) -> None:
    couplings = torch.full((3, 2, 2), 0.5)
    couplings[1, 0] = torch.tensor(wrong)
    found = coupling_entropy(couplings)
    assert found.entropy[0].isnan()
    # the other capsule has shares in every image.
    assert found.entropy[1] == 1
    assert math.isnan(found.mean)


def test_couplings_of_another_sum_are_shares_of_it() -> None:
    couplings = shares(4, 5, 3)
    torch.testing.assert_close(coupling_entropy(couplings / 7).entropy, coupling_entropy(couplings).entropy)


def test_couplings_of_both_signs_have_no_entropy() -> None:
    routed = trainable(draw(4, 5, 3, 2), couplings=draw(5, 3).abs() * torch.tensor([1.0, -1.0, 1.0]))
    assert routed.couplings is not None
    assert coupling_entropy(routed.couplings).entropy.isnan().all()


@pytest.mark.parametrize("targets", [2, 10, 500])
def test_couplings_rounded_to_bfloat16_are_still_shares(targets: int) -> None:
    couplings = shares(20, 5, targets)
    found = coupling_entropy(couplings.bfloat16())
    torch.testing.assert_close(found.entropy.double(), coupling_entropy(couplings).entropy, rtol=1e-2, atol=0)


def test_change_by_hand() -> None:
    # a quarter moves; then everything goes over to the other target.
    steps = [[0.5, 0.5], [0.75, 0.25], [1.0, 0.0], [0.0, 1.0]]
    assert coupling_change([torch.tensor([[step]]) for step in steps]).tolist() == [0.25, 0.25, 1.0]


def test_change_agrees_with_loops_over_a_trace() -> None:
    trace = agreement(3 * draw(11, 5, 4, 3), num_iters=4, trace=True).trace
    assert trace is not None
    expected = []
    for before, after in itertools.pairwise(step.numpy() for step in trace):
        moved = [0.5 * sum(abs(after[n, i, j] - before[n, i, j]) for j in range(4)) for n in range(11) for i in range(5)]
        expected.append(float(np.mean(moved)))
    assert min(expected) > 1e-3
    assert coupling_change(trace).tolist() == pytest.approx(expected, rel=1e-12)
    streamed = CouplingChange()
    for batch in zip(*(uneven(step) for step in trace), strict=True):
        streamed.update(batch)
    assert streamed.compute().tolist() == pytest.approx(expected, rel=1e-12)


def test_uniform_couplings_never_change() -> None:
    assert coupling_change([torch.full((2, 3, 4), 0.25)] * 3).tolist() == [0, 0]


def test_one_iteration_changes_nothing() -> None:
    assert coupling_change([shares(2, 3, 4)]).shape == (0,)
    streamed = CouplingChange()
    streamed.update([shares(2, 3, 4)])
    streamed.update([shares(5, 3, 4)])
    assert streamed.compute().shape == (0,)


@pytest.mark.parametrize(
    ("trace", "error"), [([torch.rand(3, 4)], ValueError), ([torch.ones(2, 3, 4, dtype=torch.int)], TypeError)]
)
def test_a_trace_of_something_else_is_named(trace: list[Tensor], error: type[Exception]) -> None:
    with pytest.raises(error, match=r"^trace has"):
        coupling_change(trace)


@pytest.mark.parametrize("trace", [[], [torch.rand(2, 3, 4), torch.rand(2, 3, 5)], [torch.rand(2, 3, 4), torch.rand(1, 3, 4)]])
def test_a_trace_that_is_none_is_named(trace: list[Tensor]) -> None:
    with pytest.raises(ValueError, match="trace"):
        coupling_change(trace)
