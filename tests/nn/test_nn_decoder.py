"""The decoder: a mask that keeps exactly the chosen class."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from nn_by_hand import draw, randomised
from torch import Tensor

from capsella.nn import Decoder, as_classes

B, J, D = 3, 4, 5
SHAPE = (2, 3, 4)
CLASSES = torch.tensor([2, 0, 3])


def make(**options: Any) -> Decoder:
    return randomised(Decoder(J, D, SHAPE, hidden=(7, 6), **options))


def draw_by_hand(decoder: Decoder, capsules: Tensor, classes: Tensor | None) -> Tensor:
    """Write the kept capsules into zeros, multiply through, reshape channel by channel and row by row."""
    kept = capsules
    if classes is not None:
        kept = torch.zeros_like(capsules)
        for b, c in enumerate(classes.tolist()):
            kept[b, c] = capsules[b, c]
    values = kept.flatten(1)
    for linear in [layer for layer in decoder.layers if isinstance(layer, torch.nn.Linear)][:-1]:
        values = (values @ linear.weight.T + linear.bias).clamp(min=0)
    last = decoder.layers[-2]
    values = 1 / (1 + (-(values @ last.weight.T + last.bias)).exp())
    return values.reshape(-1, *SHAPE)


@pytest.mark.parametrize("mask", ["conditional", "normal", None])
def test_decoder_is_the_stated_perceptron(mask: str | None) -> None:
    decoder, capsules = make(mask=mask), draw(B, J, D)
    expected = draw_by_hand(decoder, capsules, CLASSES if mask == "conditional" else None)
    torch.testing.assert_close(decoder(capsules, CLASSES), expected, rtol=1e-12, atol=1e-14)


def test_the_default_sizes_are_512_and_1024() -> None:
    linears = [layer for layer in Decoder(10, 16, (1, 28, 28)).layers if isinstance(layer, torch.nn.Linear)]
    assert [(layer.in_features, layer.out_features) for layer in linears] == [(160, 512), (512, 1024), (1024, 784)]


@pytest.mark.parametrize("moved", range(J))
def test_only_the_chosen_class_is_drawn(moved: int) -> None:
    decoder, capsules = make(), draw(B, J, D)
    changed = capsules.clone()
    changed[:, moved] += 1.0
    before, after = decoder(capsules, CLASSES), decoder(changed, CLASSES)
    for b, chosen in enumerate(CLASSES.tolist()):
        assert torch.equal(before[b], after[b]) == (chosen != moved), (b, chosen)


@pytest.mark.parametrize("moved", range(J))
def test_only_the_chosen_class_gets_a_gradient(moved: int) -> None:
    capsules = draw(B, J, D).requires_grad_()
    make()(capsules, torch.full((B,), moved)).sum().backward()
    reached = (capsules.grad != 0).any(dim=-1)
    assert reached.tolist() == [[j == moved for j in range(J)]] * B


def test_several_classes_give_one_image_each() -> None:
    decoder, capsules = make(), draw(B, J, D)
    pairs = torch.tensor([[2, 0], [0, 0], [3, 1]])
    drawn = decoder(capsules, pairs)
    assert drawn.shape == (B, 2, *SHAPE)
    for k in (0, 1):
        torch.testing.assert_close(drawn[:, k], decoder(capsules, pairs[:, k]), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("mask", ["normal", None])
def test_without_a_mask_all_capsules_are_drawn_and_classes_do_not_matter(mask: str | None) -> None:
    decoder, capsules = make(mask=mask), draw(B, J, D)
    plain = decoder(capsules)
    assert plain.shape == (B, *SHAPE)
    for classes in (CLASSES, torch.tensor([[0, 1], [1, 2], [2, 3]])):
        assert torch.equal(decoder(capsules, classes), plain)
    for moved in range(J):
        changed = capsules.clone()
        changed[:, moved] += 1.0
        assert not torch.equal(decoder(changed), plain)


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.float32])
def test_multi_hot_rows_become_the_classes_they_name(dtype: torch.dtype) -> None:
    rows = torch.tensor([[0, 1, 0, 1], [1, 1, 0, 0], [0, 0, 1, 1]]).to(dtype)
    assert as_classes(rows, J).tolist() == [[1, 3], [0, 1], [2, 3]]


@pytest.mark.parametrize("classes", [CLASSES, torch.tensor([[2, 1], [0, 3], [1, 1]])])
def test_class_indices_stay_as_they_are(classes: Tensor) -> None:
    assert torch.equal(as_classes(classes, J), classes)


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        (torch.tensor([0.5, 1.0]), "targets has shape [2] and dtype torch.float32; expected class indices [B] or [B, n]"),
        (torch.zeros(2, J + 1, dtype=torch.long), "targets has shape [2, 5] and dtype torch.int64; expected"),
        (torch.tensor([[1, 0, 0, 1], [1, 0, 0, 0]]), "targets names 1 to 2 classes a row; expected the same number"),
        (torch.zeros(2, J), "targets names 0 to 0 classes a row; expected the same number, at least one"),
    ],
)
def test_targets_that_name_no_classes_are_refused(targets: Tensor, message: str) -> None:
    with pytest.raises(ValueError, match="targets") as caught:
        as_classes(targets, J)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("classes", "kind", "message"),
    [
        (None, ValueError, "classes=None does not go with mask='conditional'"),
        (torch.tensor([0, 1]), ValueError, "classes has shape [2]; expected [B=3] or [B=3, n]"),
        (torch.zeros(B, 1, 1, dtype=torch.long), ValueError, "classes has shape [3, 1, 1]; expected [B=3] or [B=3, n]"),
        (torch.tensor([0, 1, J]), ValueError, "has class 4; expected classes from 0 to 3"),
        (torch.tensor([0, 1, -1]), ValueError, "has class -1; expected classes from 0 to 3"),
        (torch.tensor([0.0, 1.0, 2.0]), TypeError, "has dtype torch.float32; expected integer class indices"),
    ],
)
def test_wrong_classes_are_named_in_one_line(classes: Tensor | None, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind) as caught:
        make()(draw(B, J, D), classes)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_wrong_capsules_and_masks_are_named_in_one_line() -> None:
    with pytest.raises(ValueError, match=r"^capsules has shape \[3, 5, 5\]; expected \[B, J=4, D=5\]$"):
        make()(draw(B, J + 1, D), CLASSES)
    with pytest.raises(ValueError, match=r"^mask='conditonal' is unknown; did you mean 'conditional'\?"):
        make(mask="conditonal")
