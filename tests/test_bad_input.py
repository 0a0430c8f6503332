"""Users' mistakes outside routing: one line that names the argument, the value and what would work."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from capsella import create_model, routing
from capsella.functional import margin_loss, multi_hot, spread_loss
from capsella.nn import CapsuleConv2d, CapsuleLinear, Decoder, PrimaryCapsules, init
from capsella.routing import quadratic_objective, quadratic_step

LENGTHS = torch.rand(2, 3)
VOTES, COUPLINGS = torch.rand(2, 4, 3, 5), torch.rand(4, 3)
IMAGES = torch.rand(2, 1, 28, 28)


def small(**options: Any) -> nn.Module:
    return create_model("capsnet_small", **options)


MISTAKES: list[tuple[Callable[[], object], type[Exception], str]] = [
    (lambda: margin_loss(LENGTHS, [0, 1]), TypeError, "targets has type list; expected a tensor of class indices"),  # type: ignore[arg-type]
    (lambda: margin_loss(LENGTHS, torch.tensor(0)), ValueError, "targets has shape []; expected one entry or row for each"),
    (lambda: margin_loss(LENGTHS, torch.tensor([0, 3])), ValueError, "targets has class 3; expected classes from 0 to 2"),
    (lambda: spread_loss(LENGTHS, None, margin=0.2), TypeError, "targets has type NoneType"),  # type: ignore[arg-type]
    (lambda: multi_hot([0], 3), TypeError, "targets has type list"),  # type: ignore[arg-type]
    (lambda: quadratic_objective(VOTES, COUPLINGS, [0, 1], penalty=0.1), TypeError, "targets has type list"),  # type: ignore[arg-type]
    (lambda: quadratic_step(VOTES, COUPLINGS, torch.tensor([0]), rate=0.1, penalty=0.1), ValueError, "targets has shape [1]"),
    (lambda: small()(IMAGES, [0, 1]), TypeError, "targets has type list"),
    (lambda: small()(IMAGES.double()), TypeError, "images has dtype torch.float64; expected torch.float32 as the weights"),
    (lambda: small().reconstruct(torch.rand(2, 10, 8), [0, 1]), TypeError, "targets has type list"),
    (lambda: Decoder(3, 2, (1, 4, 4))(torch.rand(2, 3, 2), [0, 1]), TypeError, "classes has type list"),
    (lambda: Decoder(0, 2, (1, 4, 4)), ValueError, "capsules=0 is too small"),
    (lambda: Decoder(3, 2, (4, 4)), ValueError, "image_shape=(4, 4) has 2 values; expected 3"),  # type: ignore[arg-type]
    (lambda: Decoder(3, 2, (1, 4, 4), hidden=64), TypeError, "hidden=64 has type int; expected a tuple of ints"),  # type: ignore[arg-type]
    (lambda: CapsuleLinear(4, 2, 3, 2)([1.0]), TypeError, "poses has type list; expected a tensor"),
    (lambda: CapsuleLinear(4, 2, 3, 2, bias="False"), TypeError, "bias='False' has type str; expected True or False"),  # type: ignore[arg-type]
    (lambda: CapsuleConv2d(4, 2, 3, 2, kernel_size=2, grid_size="a"), TypeError, "grid_size='a' has type str"),  # type: ignore[arg-type]
    (lambda: PrimaryCapsules(0, 2, 2, kernel_size=3), ValueError, "in_channels=0 is too small"),
    (lambda: PrimaryCapsules(1, 2, 2, kernel_size=0), ValueError, "kernel_size=0 is too small"),
    (lambda: PrimaryCapsules(1, 2, 2, kernel_size=(3, 3, 3)), ValueError, "kernel_size=(3, 3, 3) has 3 values"),  # type: ignore[arg-type]
    (lambda: PrimaryCapsules(1, 2, 2, kernel_size=3, stride=0), ValueError, "stride=0 is too small"),
    (lambda: PrimaryCapsules(1, 2, 2, kernel_size=3, relu="none"), TypeError, "relu='none' has type str"),  # type: ignore[arg-type]
    (lambda: PrimaryCapsules(1, 2, 2, kernel_size=3)(torch.rand(1, 1, 2, 9)), ValueError, "features has 2×9 positions"),
    (lambda: routing.get(["em"]), ValueError, "routing=['em'] is unknown"),  # type: ignore[arg-type]
    (lambda: create_model(["capsnet"]), ValueError, "name=['capsnet'] is unknown"),  # type: ignore[arg-type]
    (lambda: small(init=["a"]), ValueError, "init=['a'] is unknown"),
    (lambda: small(bias="False"), TypeError, "bias='False' has type str; expected True or False"),
    (lambda: small(routing=3), TypeError, "routing=3 has type int; expected a string"),
    (lambda: small(num_iters=0), ValueError, "num_iters=0 is too small"),
    (lambda: small(decoder_hidden=64), TypeError, "decoder_hidden=64 has type int; expected a tuple of ints"),
    (lambda: small(decoder_hidden=(0,)), ValueError, "decoder_hidden=0 is too small"),
    (lambda: create_model("convnet_fc", hidden=328), TypeError, "hidden=328 has type int; expected a tuple of ints"),
    (lambda: create_model("convnet_fc512", dropout="a"), TypeError, "dropout='a' has type str; expected a number"),
    (lambda: create_model("parse_capsnet", capsules=5), TypeError, "capsules=5 has type int; expected a tuple of ints"),
    (lambda: create_model("parse_capsnet", dim="8"), TypeError, "dim='8' has type str"),
    (lambda: create_model("em_capsnet", types=8), TypeError, "types=8 has type int; expected a tuple of ints"),
    (lambda: create_model("em_capsnet", inverse_temperature="a"), TypeError, "inverse_temperature='a' has type str"),
    (lambda: init.length_preserving_(CapsuleLinear(4, 2, 3, 2), torch.rand(2, 4, 2), "0.5"), TypeError, "length='0.5'"),  # type: ignore[arg-type]
    (lambda: init.length_preserving_(CapsuleLinear(4, 2, 3, 2), torch.full((2, 4, 2), torch.nan)), ValueError, "images gives"),
    (lambda: init.length_preserving_(CapsuleLinear(4, 2, 3, 2), torch.rand(0, 4, 2)), ValueError, "images gives"),
]


@pytest.mark.parametrize(("mistake", "kind", "message"), MISTAKES, ids=[message[:40] for *_, message in MISTAKES])
def test_a_mistake_is_one_line_that_names_the_argument(
    mistake: Callable[[], object], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind) as caught:
        mistake()
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_an_empty_batch_is_no_mistake() -> None:
    model = small()
    for targets in (None, torch.zeros(0, dtype=torch.long), torch.zeros(0, 10)):
        prediction = model(IMAGES[:0], targets)
        assert prediction.scores.shape == (0, 10)
        assert prediction.reconstruction.shape[0] == 0


def test_a_failed_start_leaves_the_model_as_it_was_whatever_is_raised() -> None:
    class Fails(nn.Module):
        """Breaks above its first layer, which has been rescaled by then."""

        def __init__(self) -> None:
            super().__init__()
            self.first, self.scaled = CapsuleLinear(4, 2, 4, 2), torch.empty(0)

        def forward(self, images: torch.Tensor) -> routing.Routed:
            self.first(images)
            self.scaled = self.first.weight.detach().clone()
            raise RuntimeError("broken")

    model = Fails()
    before = model.first.weight.detach().clone()
    with pytest.raises(RuntimeError, match="broken"):
        init.length_preserving_(model, torch.rand(8, 4, 2))
    assert not torch.equal(model.scaled, before)
    assert torch.equal(model.first.weight, before)


def test_a_failed_start_leaves_a_shared_weight_as_it_was() -> None:
    class Fails(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = CapsuleLinear(4, 2, 4, 2), CapsuleLinear(4, 2, 4, 2)
            self.second.weight = self.first.weight

        def forward(self, images: torch.Tensor) -> routing.Routed:
            self.second(self.first(images))
            raise RuntimeError("broken")

    model = Fails()
    before = model.first.weight.detach().clone()
    with pytest.raises(RuntimeError, match="broken"):
        init.length_preserving_(model, torch.rand(8, 4, 2))
    assert torch.equal(model.first.weight, before)
