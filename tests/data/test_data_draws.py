"""Random numbers for samples: SplitMix64 in whole numbers, and whether what comes out is even and independent."""

from __future__ import annotations

import hashlib
import itertools
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from capsella.data import draws as module
from capsella.data.draws import Draws, Order

WORD = 2**64
MANY = 20_000


def splitmix(state: int, n: int) -> int:
    """Return output n of SplitMix64 from ``state``, in Python's whole numbers."""
    z = (state + (n + 1) * 0x9E3779B97F4A7C15) % WORD
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % WORD
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB % WORD
    return z ^ (z >> 31)


def words_by_hand(index: int, seed: int | str, epoch: int, purpose: str, count: int) -> list[int]:
    text = f"{seed!r}/{epoch}/{purpose}/{count}"
    state = int(hashlib.sha256(text.encode()).hexdigest()[:16], 16)
    return [splitmix(state, index * count + slot) for slot in range(count)]


def unsigned(words: Tensor) -> list[int]:
    return [word % WORD for word in words.tolist()]


def many(seed: int | str = 0, epoch: int = 0, count: int = MANY) -> Draws:
    return Draws(torch.arange(count), seed=seed, epoch=epoch)


def assert_even(values: Tensor, below: int) -> None:
    """Chi-square over all values from 0 to ``below`` less one; neither too uneven nor too even to be random."""
    counts = torch.bincount(values, minlength=below)
    assert len(counts) == below
    assert 1e-4 < stats.chisquare(counts.numpy()).pvalue < 1 - 1e-4


def assert_unrelated(first: Tensor, second: Tensor) -> None:
    """Chi-square over the joint distribution of two numbers in [0, 1) in 16 × 16 cells, and their correlation."""
    cells = (first * 16).long() * 16 + (second * 16).long()
    assert_even(cells, 256)
    assert abs(np.corrcoef(first, second)[0, 1]) < 4.5 / len(first) ** 0.5


def test_the_reference_has_the_published_first_outputs_of_state_0() -> None:
    assert [splitmix(0, n) for n in range(3)] == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_from_state_0_come_the_published_outputs(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    nothing = SimpleNamespace(digest=lambda: bytes(32))
    monkeypatch.setattr(module, "hashlib", SimpleNamespace(sha256=lambda text: nothing))
    words = Draws(torch.arange(6 // count), seed=0).words("x", count)
    assert unsigned(words.T.reshape(-1))[:3] == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]


@given(
    indices=st.lists(st.integers(0, 2**31), min_size=1, max_size=8),
    seed=st.one_of(st.integers(-(2**70), 2**70), st.sampled_from(["", "test", "1/2", "it's", "ψ"])),
    epoch=st.integers(0, 10**9),
    purpose=st.sampled_from(["", "shift", "affine place", "a/b", "ψ"]),
    count=st.integers(1, 5),
)
def test_words_are_splitmix64_in_whole_numbers(
    indices: list[int], seed: int | str, epoch: int, purpose: str, count: int
) -> None:
    words = Draws(torch.tensor(indices), seed=seed, epoch=epoch).words(purpose, count)
    assert words.shape == (count, len(indices))
    assert words.dtype == torch.int64
    expected = [words_by_hand(index, seed, epoch, purpose, count) for index in indices]
    assert [unsigned(row) for row in words.T] == expected


def test_a_runs_numbers_never_change() -> None:
    # written down once: other numbers are other data for every seed.
    draws = Draws(torch.tensor([0, 1, 59_999_999]), seed=7, epoch=2)
    assert unsigned(draws.words("shift", 2).reshape(-1)) == [
        0xE0D697C8CD42BA1B,
        0x49BAD8302BB8F5AB,
        0x1FFFF1297C5AF9F2,
        0x93B0C42F99D4C068,
        0x71FACC9AA7D275B9,
        0xBB84FF2773B7F5B8,
    ]
    assert [part.tolist() for part in draws.integers("shift", 5, 5)] == [[4, 1, 0], [2, 2, 3]]
    assert Order(10, seed=7, epoch=2)[:].tolist() == [7, 4, 9, 2, 3, 6, 0, 8, 5, 1]
    assert Order(12, seed="capsella fit and val")[:].tolist() == [0, 9, 7, 4, 10, 11, 2, 8, 6, 5, 1, 3]


def test_the_derived_numbers_follow_from_the_upper_32_bits() -> None:
    draws, bounds = many(count=500), (1, 2, 7, 13, 2**31)
    words = draws.words("x", 5)
    upper = [[word >> 32 for word in unsigned(row)] for row in words]
    assert draws.bits("x", 5).tolist() == upper
    assert draws.uniform("x", 5).tolist() == [[value / 2**32 for value in row] for row in upper]
    for row, bound, drawn in zip(upper, bounds, draws.integers("x", *bounds), strict=True):
        assert drawn.tolist() == [value * bound // 2**32 for value in row]
    assert draws.uniform("x").dtype == torch.float64


def test_bounds_may_differ_between_samples() -> None:
    draws = many(count=3_000)
    bounds = torch.arange(3_000) % 17 + 1
    each, same = draws.integers("x", bounds, 9)
    assert bool((each >= 0).all())
    assert bool((each < bounds).all())
    for bound in range(1, 18):
        mine = draws.integers("x", bound, 9)[0]
        assert torch.equal(each[bounds == bound], mine[bounds == bound])
        assert set(each[bounds == bound].tolist()) == set(range(bound))
    assert torch.equal(same, draws.integers("x", 1, 9)[1])


@pytest.mark.parametrize(("word", "uniform", "whole"), [(0, 0.0, 0), (-1, 1 - 2**-32, 12), (2**63 - 1, 0.5 - 2**-32, 6)])
def test_the_ends_of_the_range(word: int, uniform: float, whole: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Draws, "words", lambda self, purpose, count=1: torch.full((count, len(self.indices)), word))
    draws = many(count=2)
    assert draws.uniform("x", 2).tolist() == [[uniform] * 2] * 2
    assert draws.integers("x", 13, torch.tensor([13, 1]))[0].tolist() == [whole] * 2
    assert draws.integers("x", 13, torch.tensor([13, 1]))[1].tolist() == [whole, 0]
    assert draws.integers("x", 2**31)[0].tolist() == [int(uniform * 2**31)] * 2


@pytest.mark.parametrize("below", [2, 3, 5, 9, 13, 25, 101])
@pytest.mark.parametrize("seed", [0, 1, "test"])
def test_integers_are_even_and_reach_both_ends(below: int, seed: int | str) -> None:
    (values,) = many(seed).integers("x", below)
    assert (int(values.min()), int(values.max())) == (0, below - 1)
    assert_even(values, below)


@pytest.mark.parametrize("seed", [0, 1, 2, "val"])
def test_uniform_numbers_are_uniform(seed: int | str) -> None:
    values = many(seed).uniform("x", 4).reshape(-1)
    assert 0 <= float(values.min()) < 1e-3
    assert 1 - 1e-3 < float(values.max()) < 1
    assert_even((values * 256).long(), 256)
    assert 1e-4 < stats.kstest(values, "uniform").pvalue < 1 - 1e-4


def test_every_bit_is_one_half_of_the_time() -> None:
    words = many().words("x")[0]
    ones = torch.stack([(words >> bit) & 1 for bit in range(64)]).double().mean(dim=1)
    assert float((ones - 0.5).abs().max()) < 4.5 * 0.5 / MANY**0.5


@pytest.mark.parametrize("lag", [1, 2, 3, 10, 28, 128, 1000])
def test_neighbouring_samples_are_unrelated(lag: int) -> None:
    values = many().uniform("x")[0]
    assert_unrelated(values[:-lag], values[lag:])


def test_all_numbers_of_one_sample_are_unrelated() -> None:
    rows = many().uniform("x", 4)
    for first, second in itertools.combinations(rows, 2):
        assert_unrelated(first, second)
    # the last number of a sample and the first of the next lie side by side in the sequence.
    assert_unrelated(rows[3][:-1], rows[0][1:])


@pytest.mark.parametrize(
    "other",
    [
        many(0, 0).uniform("y"),
        many(1, 0).uniform("x"),
        many(0, 1).uniform("x"),
        many("0", 0).uniform("x"),
        many(10, 0).uniform("x"),
        many(-1, 0).uniform("x"),
        many(0, 0).uniform("x", 2),
        many(0, 0).uniform("x", 2)[1:],
    ],
    ids=["purpose", "seed", "epoch", "text", "tenth seed", "negative seed", "first of two", "second of two"],
)
def test_other_purposes_seeds_and_epochs_give_unrelated_numbers(other: Tensor) -> None:
    assert_unrelated(many(0, 0).uniform("x")[0], other[0])


def test_seed_and_epoch_do_not_run_together() -> None:
    combinations = [(1, 11), (11, 1), (111, 0), (1, 1), ("1", 11), ("1/1", 1), ("1", 1)]
    numbers = [tuple(many(seed, epoch, 4).words("x")[0].tolist()) for seed, epoch in combinations]
    assert len(set(numbers)) == len(combinations)


@pytest.mark.parametrize("index", [0, 1, 59_999])
@pytest.mark.parametrize("moving", ["seed", "epoch"])
def test_one_sample_gets_even_numbers_over_seeds_and_over_epochs(index: int, moving: str) -> None:
    drawn = [Draws(torch.tensor([index]), **{"seed": 3, "epoch": 5, moving: value}).uniform("x")[0] for value in range(2_000)]
    values = torch.cat(drawn)
    assert_even((values * 40).long(), 40)
    assert abs(np.corrcoef(values[:-1], values[1:])[0, 1]) < 4.5 / 2_000**0.5


def test_a_samples_numbers_do_not_depend_on_the_others() -> None:
    whole = many(count=300)
    chosen = torch.tensor([299, 0, 7, 7, 150])
    some = Draws(chosen, seed=0)
    assert torch.equal(some.words("x", 3), whole.words("x", 3)[:, chosen])
    assert torch.equal(some.integers("x", 13, 9)[1], whole.integers("x", 13, 9)[1][chosen])
    assert torch.equal(Draws(torch.tensor([7]), seed=0).uniform("x", 2)[:, 0], some.uniform("x", 2)[:, 3])


def test_drawing_consumes_nothing() -> None:
    draws, state = many(count=50), torch.get_rng_state()
    before = draws.words("x", 2)
    draws.words("y")
    draws.words("x")
    assert torch.equal(draws.words("x", 2), before)
    assert torch.equal(torch.get_rng_state(), state)


def test_no_samples_have_no_numbers() -> None:
    nobody = Draws(torch.arange(0), seed=0)
    assert nobody.words("x", 3).shape == (3, 0)
    assert [part.shape for part in nobody.integers("x", 5, torch.arange(0))] == [(0,), (0,)]


@pytest.mark.parametrize("count", [*range(40), 99, 100, 101, 1_000, 60_000, 65_537])
def test_an_order_has_every_sample_once(count: int) -> None:
    order = Order(count, seed=1, epoch=4)
    assert len(order) == count
    whole = order[:]
    assert whole.dtype == torch.int64
    assert torch.equal(whole.sort().values, torch.arange(count))


@pytest.mark.parametrize("count", [3, 5, 7, 10, 13, 17, 31])
def test_places_beyond_the_end_that_lead_to_each_other_do_no_harm(count: int) -> None:
    # some of these seeds have a place beyond the end that leads to itself.
    for seed in range(25):
        assert sorted(Order(count, seed=seed)[:].tolist()) == list(range(count)), seed


@pytest.mark.parametrize("count", [2, 5, 12, 37, 1_000])
def test_any_stretch_of_an_order_is_the_same_alone(count: int) -> None:
    order = Order(count, seed=1, epoch=4)
    whole = order[:]
    for start in {0, 1, count // 2, count - 1}:
        for stop in {start, start + 1, count // 2, count, count + 5}:
            assert torch.equal(Order(count, seed=1, epoch=4)[start:stop], whole[start:stop]), (start, stop)
    assert torch.equal(order[1::3], whole[1::3])
    assert torch.equal(order[-2:], whole[-2:])


def test_sixty_million_samples_need_no_list_of_them() -> None:
    order = Order(60_000_000, seed=0)
    found = torch.cat([order[:1_000], order[29_999_500:30_000_500], order[-1_000:]])
    assert len(found.unique()) == 3_000
    assert 0 <= int(found.min()) < 100_000
    assert 59_900_000 < int(found.max()) < 60_000_000
    assert_even(found // 2_000_000, 30)


def test_orders_differ_by_seed_and_epoch_only() -> None:
    orders = {(seed, epoch): Order(500, seed=seed, epoch=epoch)[:] for seed in (0, 1, "0") for epoch in (0, 1, 2)}
    assert len({tuple(order.tolist()) for order in orders.values()}) == len(orders)
    for order in orders.values():
        # a random order leaves one sample in its place, on average.
        assert int((order == torch.arange(500)).sum()) <= 6
    for first, second in itertools.combinations(orders.values(), 2):
        assert int((first == second).sum()) <= 6
        assert abs(np.corrcoef(first, second)[0, 1]) < 4.5 / 500**0.5
    assert torch.equal(Order(500, seed=1, epoch=2)[:], orders[1, 2])


@pytest.mark.parametrize("count", [2, 3, 4])
def test_all_orders_are_as_frequent(count: int) -> None:
    known = {order: k for k, order in enumerate(itertools.permutations(range(count)))}
    drawn = [known[tuple(Order(count, seed=0, epoch=epoch)[:].tolist())] for epoch in range(300)]
    assert_even(torch.tensor(drawn), len(known))


def test_every_sample_comes_at_every_place_as_often() -> None:
    # one more than a square, so that many places lie beyond the end.
    orders = torch.stack([Order(26, seed=2, epoch=epoch)[:] for epoch in range(300)])
    places = orders.argsort(dim=1)
    for place in (0, 1, 13, 24, 25):
        assert_even(orders[:, place], 26)
        assert_even(places[:, place], 26)


@pytest.mark.parametrize("count", [60_000, 50_000])
def test_what_follows_a_sample_has_nothing_to_do_with_it(count: int) -> None:
    order = Order(count, seed=0)[:]
    places = torch.arange(count)
    for lag in (1, 2, 7, 128, math.isqrt(count), math.isqrt(count) + 1, -(-count // (math.isqrt(count) + 1))):
        assert_unrelated(order[:-lag] / count, order[lag:] / count)
        assert_even((order[lag:] - order[:-lag]) % count * 50 // count, 50)
    assert_unrelated(places / count, order / count)
    # every stretch has its share of every region, as a draw without replacement has: no more even, no less.
    regions = torch.zeros(50, 50, dtype=torch.int64).index_put_(
        (places * 50 // count, order * 50 // count), torch.ones(1, dtype=torch.int64), accumulate=True
    )
    assert 1e-4 < stats.chi2_contingency(regions).pvalue < 1 - 1e-4


def test_an_order_can_be_read_backwards_and_in_steps() -> None:
    order = Order(1_003, seed=4)
    whole = order[:]
    assert torch.equal(order[::-1], whole.flip(0))
    assert torch.equal(order[10:900:7], whole[10:900:7])
    assert order[5:5].tolist() == order[9:2].tolist() == []
