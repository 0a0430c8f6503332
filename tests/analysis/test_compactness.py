"""The compactness score, against its formula in numpy and its limits."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from analysis_nets import draw, uneven

from capsella.analysis import Compactness, compactness

CONVENTIONS = [
    {"direction": direction, "reduction": reduction, "log_base": base}
    for direction, reduction, base in itertools.product(("forward", "reverse"), ("sum", "mean"), (math.e, 2, 10.0))
]


def by_hand(vectors: npt.NDArray[np.float64], *, direction: str, reduction: str, log_base: float) -> float:
    """Compute one divergence [steps, D] term by term."""
    steps, D = vectors.shape
    variance = [sum((x - sum(column) / steps) ** 2 for x in column) / steps for column in vectors.T.tolist()]
    p, q = [v / sum(variance) for v in variance], [1 / D] * D
    if direction == "reverse":
        p, q = q, p
    total = sum(a * math.log(a / b, log_base) for a, b in zip(p, q, strict=True))
    return total if reduction == "sum" else total / D


def test_two_values_by_hand() -> None:
    # variances ¾ and ¼ of the whole: ¾ log 1½ + ¼ log ½.
    vectors = torch.tensor([[0.0, 0.0], [math.sqrt(3), 1.0]], dtype=torch.float64)
    assert compactness(vectors).item() == pytest.approx(0.75 * math.log(1.5) + 0.25 * math.log(0.5), rel=1e-12)
    assert compactness(vectors, direction="reverse").item() == pytest.approx(-0.5 * math.log(1.5 * 0.5), rel=1e-12)


@pytest.mark.parametrize("convention", CONVENTIONS, ids=lambda c: "-".join(map(str, c.values())))
def test_every_convention_agrees_with_its_formula(convention: dict[str, Any]) -> None:
    vectors = draw(3, 2, 7, 5) * torch.tensor([3.0, 1.0, 0.5, 0.1, 1.0])
    found = compactness(vectors, **convention)
    assert found.shape == (3, 2)
    for n, m in itertools.product(range(3), range(2)):
        assert found[n, m].item() == pytest.approx(by_hand(vectors[n, m].numpy(), **convention), rel=1e-10)


@pytest.mark.parametrize("values", [2, 16])
def test_one_value_that_varies_alone_is_most_compact(values: int) -> None:
    vectors = torch.full((5, values), 0.1, dtype=torch.float64)
    vectors[:, 1] = torch.arange(5.0)
    assert compactness(vectors).item() == pytest.approx(math.log(values), rel=1e-12)
    assert compactness(vectors, log_base=values).item() == pytest.approx(1, rel=1e-12)
    assert compactness(vectors, reduction="mean").item() == pytest.approx(math.log(values) / values, rel=1e-12)
    assert compactness(vectors, direction="reverse").item() == math.inf


@pytest.mark.parametrize("convention", CONVENTIONS, ids=lambda c: "-".join(map(str, c.values())))
def test_values_that_vary_alike_are_not_compact(convention: dict[str, Any]) -> None:
    vectors = torch.arange(5.0)[:, None] * torch.tensor([1.0, -1.0, 1.0])
    assert compactness(vectors, **convention).item() == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("convention", CONVENTIONS, ids=lambda c: "-".join(map(str, c.values())))
@pytest.mark.parametrize("steps", [1, 3, 31])
def test_without_any_variance_the_score_is_zero(steps: int, convention: dict[str, Any]) -> None:
    # 0.1 has no exact mean: rounding must not be taken for variance.
    assert compactness(torch.full((2, steps, 4), 0.1, dtype=torch.float64), **convention).tolist() == [0, 0]


def test_a_factor_that_one_image_shows_does_not_touch_another() -> None:
    vectors = torch.zeros(2, 4, 3)
    vectors[1, :, 0] = torch.arange(4.0)
    assert compactness(vectors).tolist() == pytest.approx([0, math.log(3)])


def test_neither_unit_nor_offset_matter() -> None:
    vectors = draw(3, 7, 5)
    torch.testing.assert_close(compactness(1e4 + 1e-3 * vectors), compactness(vectors), rtol=1e-6, atol=0)


def test_one_value_alone_cannot_be_more_compact_than_itself() -> None:
    assert compactness(draw(3, 7, 1)).tolist() == pytest.approx([0, 0, 0], abs=1e-15)


@pytest.mark.parametrize("convention", CONVENTIONS[::5], ids=lambda c: "-".join(map(str, c.values())))
def test_streamed_scores_are_those_of_all_images_at_once(convention: dict[str, Any]) -> None:
    vectors = draw(11, 2, 7, 5)
    streamed = Compactness(**convention)
    for batch in uneven(vectors):
        streamed.update(batch)
    assert torch.equal(streamed.compute(), compactness(vectors, **convention))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_only_scores_are_rounded_to_the_vectors_dtype(dtype: torch.dtype) -> None:
    vectors = draw(3, 7, 5).to(dtype)
    assert torch.equal(compactness(vectors), compactness(vectors.double()).to(dtype))


@pytest.mark.filterwarnings("ignore:var")
def test_an_empty_batch_has_no_scores() -> None:
    assert compactness(torch.rand(0, 7, 5)).shape == (0,)


def test_without_a_batch_there_is_nothing_to_compute() -> None:
    with pytest.raises(ValueError, match="nothing has been seen yet"):
        Compactness().compute()


@pytest.mark.parametrize("metric", [compactness, Compactness().update])
@pytest.mark.parametrize("shape", [(5,), (0, 5), (7, 0), (2, 7, 0)])
def test_vectors_of_a_wrong_shape_are_named(metric: Any, shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"^vectors has shape .*expected \[..., steps, D\]"):
        metric(torch.rand(shape))


@pytest.mark.parametrize("vectors", [torch.ones(7, 5, dtype=torch.long), np.ones((7, 5)), None])
def test_vectors_of_a_wrong_type_are_named(vectors: Any) -> None:
    with pytest.raises(TypeError, match=r"^vectors has"):
        compactness(vectors)


@pytest.mark.parametrize(
    ("option", "error"),
    [
        ({"direction": "backward"}, ValueError),
        ({"reduction": "max"}, ValueError),
        ({"log_base": 1}, ValueError),
        ({"log_base": -2}, ValueError),
        ({"log_base": "e"}, TypeError),
    ],
    ids=str,
)
def test_options_that_are_none_are_named(option: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error, match=rf"^{next(iter(option))}="):
        compactness(torch.rand(7, 5), **option)
