"""Losses: values by hand, plain-Python formulas, gradients, refusals."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck

from capsella import functional as F

LOSSES: dict[str, Callable[..., Tensor]] = {
    "margin": F.margin_loss,
    "spread": partial(F.spread_loss, margin=0.4),
    "cross_entropy": F.length_cross_entropy,
    "binary_cross_entropy": F.length_binary_cross_entropy,
}
INDICES = torch.tensor([2, 0, 1])
ROWS = torch.tensor([[0, 1, 1, 0], [0, 0, 0, 0], [1, 1, 1, 1]])


def plain(name: str, lengths: list[float], present: list[int]) -> float:
    """Compute one sample's loss from the formula as printed."""
    pairs = list(zip(lengths, present, strict=True))
    if name == "margin":
        return sum(t * max(0.0, 0.9 - n) ** 2 + 0.5 * (1 - t) * max(0.0, n - 0.1) ** 2 for n, t in pairs)
    if name == "spread":
        target = next(n for n, t in pairs if t)
        return sum(max(0.0, 0.4 - (target - n)) ** 2 for n, t in pairs if not t)
    if name == "cross_entropy":
        return -sum(t * math.log(n / sum(lengths)) for n, t in pairs)
    return -sum(t * math.log(n) + (1 - t) * math.log(1 - n) for n, t in pairs)


def draw_lengths(B: int = 3, J: int = 4) -> Tensor:
    return torch.rand(B, J, dtype=torch.float64) * 0.9 + 0.05


def one_hot(targets: Tensor, J: int = 4) -> Tensor:
    return torch.eye(J)[targets]


@pytest.mark.parametrize(
    ("loss", "lengths", "target", "expected"),
    [
        (F.margin_loss, [0.8, 0.3, 0.05], 0, 0.1**2 + 0.5 * 0.2**2),
        (F.margin_loss, [0.95, 0.1, 0.0], 0, 0.0),
        (partial(F.margin_loss, m_pos=1.0, m_neg=0.0, down_weight=2.0), [0.5, 0.5, 0.0], 1, 2 * 0.25 + 0.25),
        (partial(F.spread_loss, margin=0.2), [0.6, 0.5, 0.0], 0, 0.1**2),
        (partial(F.spread_loss, margin=0.9), [0.6, 0.5, 0.0], 0, 0.8**2 + 0.3**2),
        (F.length_cross_entropy, [0.2, 0.2, 0.6], 1, math.log(5)),
        (F.length_binary_cross_entropy, [0.5, 0.25, 0.5], 0, 2 * math.log(2) + math.log(4 / 3)),
    ],
)
def test_values_by_hand(loss: Callable[..., Tensor], lengths: list[float], target: int, expected: float) -> None:
    result = loss(torch.tensor([lengths], dtype=torch.float64), torch.tensor([target]))
    assert result.item() == pytest.approx(expected, rel=1e-14, abs=1e-16)


@pytest.mark.parametrize("name", LOSSES)
def test_class_indices_give_the_mean_over_the_batch_of_the_printed_formula(name: str) -> None:
    lengths = draw_lengths()
    rows = one_hot(INDICES).int().tolist()
    expected = sum(plain(name, n, t) for n, t in zip(lengths.tolist(), rows, strict=True)) / 3
    assert LOSSES[name](lengths, INDICES).item() == pytest.approx(expected, rel=1e-13)


@pytest.mark.parametrize("name", ["margin", "cross_entropy", "binary_cross_entropy"])
@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.float32])
def test_multi_hot_rows_count_every_present_class(name: str, dtype: torch.dtype) -> None:
    lengths = draw_lengths()
    expected = sum(plain(name, n, t) for n, t in zip(lengths.tolist(), ROWS.tolist(), strict=True)) / 3
    assert LOSSES[name](lengths, ROWS.to(dtype)).item() == pytest.approx(expected, rel=1e-13)


@pytest.mark.parametrize("name", LOSSES)
def test_losses_pass_gradcheck(name: str) -> None:
    # away from the corners of max(0, ·), where a finite difference sees both sides.
    lengths = torch.tensor([[0.2, 0.7, 0.55], [0.85, 0.3, 0.05]], dtype=torch.float64, requires_grad=True)
    assert gradcheck(lambda n: LOSSES[name](n, torch.tensor([1, 2])), lengths, atol=1e-8)
    if name != "spread":
        rows = torch.tensor([[1, 1, 0], [0, 0, 0]])
        assert gradcheck(lambda n: LOSSES[name](n, rows), lengths, atol=1e-8)


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("value", [0.0, 1e-20, 1.0, 1e4])
def test_values_and_gradients_are_finite_at_the_ends(name: str, dtype: torch.dtype, value: float) -> None:
    lengths = torch.full((2, 3), value, dtype=dtype, requires_grad=True)
    loss = LOSSES[name](lengths, torch.tensor([0, 2]))
    (gradient,) = torch.autograd.grad(loss, lengths)
    assert loss.dtype == gradient.dtype == dtype
    assert loss.isfinite()
    assert gradient.isfinite().all()


@pytest.mark.parametrize("name", LOSSES)
def test_half_precision_is_summed_in_float32(name: str) -> None:
    lengths = torch.rand(64, 10).bfloat16()
    targets = torch.randint(10, (64,))
    assert torch.equal(LOSSES[name](lengths, targets), LOSSES[name](lengths.float(), targets).bfloat16())


@pytest.mark.parametrize("shape", [(3, 2, 4, 5), (3, 2, 2, 4, 5)], ids=["one", "several"])
def test_reconstruction_sums_or_averages_within_a_sample(shape: tuple[int, ...]) -> None:
    a, b = torch.rand(shape, dtype=torch.float64), torch.rand(shape, dtype=torch.float64)
    squares = [(x - y) ** 2 for x, y in zip(a.flatten().tolist(), b.flatten().tolist(), strict=True)]
    assert F.reconstruction_loss(a, b).item() == pytest.approx(sum(squares) / 3, rel=1e-13)
    assert F.reconstruction_loss(a, b, reduction="sum").item() == pytest.approx(sum(squares) / 3, rel=1e-13)
    mean = F.reconstruction_loss(a, b, reduction="mean")
    assert mean.item() == pytest.approx(sum(squares) / len(squares), rel=1e-13)


@pytest.mark.parametrize("reduction", ["sum", "mean"])
@pytest.mark.parametrize("shape", [(2, 1, 2, 3), (2, 2, 1, 2, 3)])
def test_reconstruction_passes_gradcheck(reduction: str, shape: tuple[int, ...]) -> None:
    drawn, images = torch.rand(shape, dtype=torch.float64, requires_grad=True), torch.rand(shape, dtype=torch.float64)
    assert gradcheck(lambda x: F.reconstruction_loss(x, images, reduction=reduction), drawn, atol=1e-8)


def test_multi_hot_turns_indices_into_rows_and_passes_rows_through() -> None:
    assert F.multi_hot(torch.tensor([2, 0]), 3).tolist() == [[0, 0, 1], [1, 0, 0]]
    assert torch.equal(F.multi_hot(ROWS, 4), ROWS.float())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_compiler_sees_no_scatter_of_ones(dtype: torch.dtype) -> None:
    graphs: list[torch.fx.GraphModule] = []

    def keep(graph: torch.fx.GraphModule, _: Any) -> Any:
        graphs.append(graph)
        return graph

    rows = torch.compile(lambda targets: F.multi_hot(targets, 4, dtype=dtype), backend=keep, fullgraph=True)(INDICES)
    assert torch.equal(rows, F.multi_hot(INDICES, 4, dtype=dtype))
    assert rows.dtype == dtype
    # torch 2.11's compiler makes it an integer comparison and computes with integers from there on.
    assert [node for graph in graphs for node in graph.graph.nodes if "scatter" in str(node.target)] == []
    assert graphs


GOOD = torch.rand(2, 3)
PIXELS = torch.zeros(2, 1, 2, 2)


@pytest.mark.parametrize("loss", [*LOSSES.values()], ids=[*LOSSES])
@pytest.mark.parametrize(
    ("lengths", "targets", "error", "message"),
    [
        (torch.rand(3), torch.tensor([0, 1, 2]), ValueError, r"^\w+ has shape \[3\]; expected \[B, J\]$"),
        (torch.ones(2, 3).long(), torch.tensor([0, 1]), TypeError, r"^\w+ has dtype torch.int64; expected a floating.*$"),
        (GOOD, torch.tensor([0, 1, 2]), ValueError, r"^targets has shape \[3\]; expected .*B=2.*$"),
        (GOOD, torch.tensor([0, 3]), ValueError, r"^targets has class 3; expected classes from 0 to 2$"),
        (GOOD, torch.tensor([-1, 1]), ValueError, r"^targets has class -1; expected classes from 0 to 2$"),
        (GOOD, torch.tensor([0.0, 1.0]), TypeError, r"^targets has dtype torch.float32; expected integer class indices.*$"),
        (GOOD, torch.ones(2, 4), ValueError, r"^targets has shape \[2, 4\]; expected .*$"),
    ],
)
def test_wrong_lengths_and_targets_are_named_in_one_line(
    loss: Callable[..., Tensor], lengths: Tensor, targets: Tensor, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        loss(lengths, targets)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: F.spread_loss(GOOD, torch.ones(2, 3), margin=0.2), ValueError, r"^targets has shape.*class indices \[B\]$"),
        (lambda: F.reconstruction_loss(PIXELS, PIXELS[:1]), ValueError, r"^reconstruction has .*expected \[1, 1, 2, 2\].*$"),
        (
            lambda: F.reconstruction_loss(PIXELS, PIXELS, reduction="men"),
            ValueError,
            r"^reduction='men' is unknown; did you mean 'mean'\?.*$",
        ),
        *(
            (partial(F.reconstruction_loss, PIXELS.long(), PIXELS, reduction=r), TypeError, r"^reconstruction has dtype .*$")
            for r in ("sum", "mean")
        ),
    ],
)
def test_other_mistakes_are_named_in_one_line(call: Callable[[], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()
