"""A depthwise convolution that covers its map: the sum is the convolution, and whatever else is asked goes to that."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as tnf

from capsella.models import create_model
from capsella.nn import PrimaryCapsules, depthwise
from capsella.nn.depthwise import CoveringConv2d, covering_sum
from capsella.testing import GRADIENT_FACTOR, assert_parity, check_parity, generator

C, H, W = 6, 5, 7


def draw(batch: int = 3, *, bias: bool = True) -> dict[str, Tensor]:
    rng = generator(0)
    inputs = {
        "maps": torch.randn(batch, C, H, W, generator=rng, dtype=torch.float64),
        "weight": torch.randn(C, 1, H, W, generator=rng, dtype=torch.float64),
    }
    return inputs | ({"bias": torch.randn(C, generator=rng, dtype=torch.float64)} if bias else {})


def reference(maps: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return tnf.conv2d(maps, weight, bias, groups=C)


def by_sum(maps: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return covering_sum(maps, weight, bias)


@pytest.fixture
def sums(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[torch.Size]]:
    """Collect the maps of every sum that is taken."""
    taken: list[torch.Size] = []

    def watched(maps: Tensor, *args: Any) -> Tensor:
        taken.append(maps.shape)
        return covering_sum(maps, *args)

    monkeypatch.setattr(depthwise, "covering_sum", watched)
    return taken


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
def test_the_sum_is_the_convolution_and_has_its_gradients(bias: bool) -> None:
    check_parity(by_sum, reference, draw(bias=bias), dtype=torch.float32)


def test_the_sum_passes_gradcheck() -> None:
    inputs = [tensor.requires_grad_() for tensor in draw(2).values()]
    assert torch.autograd.gradcheck(covering_sum, inputs)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=["rows", "channels last"])
def test_a_covered_map_is_summed_in_either_order_of_memory(layout: torch.memory_format, sums: list[torch.Size]) -> None:
    inputs = draw()
    conv = CoveringConv2d(C, C, (H, W), groups=C).double()
    conv.load_state_dict({"weight": inputs["weight"], "bias": inputs["bias"]})
    maps = inputs["maps"].to(memory_format=layout)
    torch.testing.assert_close(conv(maps), reference(**inputs), rtol=1e-12, atol=1e-12)
    assert sums == [(3, C, H, W)]


@pytest.mark.parametrize(
    ("options", "shape"),
    [
        ({"groups": 1}, (2, C, H, W)),
        ({"groups": 2}, (2, C, H, W)),
        ({"groups": C}, (2, C, H + 1, W)),
        ({"groups": C, "padding": 1}, (2, C, H, W)),
        ({"groups": C, "out_channels": 2 * C}, (2, C, H, W)),
        ({"groups": C}, (C, H, W)),
    ],
    ids=["full", "grouped", "larger map", "padded", "two outputs each", "no batch"],
)
def test_everything_else_is_left_to_conv2d(options: dict[str, Any], shape: tuple[int, ...], sums: list[torch.Size]) -> None:
    conv = CoveringConv2d(C, options.pop("out_channels", C), (H, W), **options)
    plain = nn.Conv2d(C, conv.out_channels, (H, W), **options)
    plain.load_state_dict(conv.state_dict())
    maps = torch.randn(shape, generator=generator(1))
    torch.testing.assert_close(conv(maps), plain(maps), rtol=0, atol=0)
    assert sums == []


def test_maps_of_another_dtype_are_refused_as_conv2d_does() -> None:
    with pytest.raises(RuntimeError, match="type"):
        CoveringConv2d(C, C, (H, W), groups=C)(draw()["maps"])


def test_under_autocast_the_result_is_in_half_precision_and_no_worse_than_the_convolutions() -> None:
    inputs = draw()
    conv = CoveringConv2d(C, C, (H, W), groups=C)
    conv.load_state_dict({"weight": inputs["weight"], "bias": inputs["bias"]})
    maps = inputs["maps"].bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        result, plain = conv(maps), nn.Conv2d.forward(conv, maps)
    assert result.dtype == plain.dtype == torch.bfloat16
    assert_parity(result, reference(**inputs), plain, factor=GRADIENT_FACTOR)


def test_primary_capsules_that_cover_their_map_are_summed_and_those_on_a_grid_are_not(sums: list[torch.Size]) -> None:
    features = torch.randn(2, 8, 5, 5, generator=generator(2))
    PrimaryCapsules(8, 2, 4, kernel_size=3, groups=8)(features)
    assert sums == []
    PrimaryCapsules(8, 2, 4, kernel_size=5, groups=8)(features)
    assert sums == [features.shape]


def test_the_backbone_of_parse_capsnet_ends_in_a_sum(sums: list[torch.Size]) -> None:
    create_model("parse_capsnet", image_size=40).eval()(torch.rand(1, 1, 40, 40, generator=generator(3)))
    assert sums == [(1, 128, 15, 15)]


def test_the_sum_compiles_without_a_break() -> None:
    conv = CoveringConv2d(C, C, (H, W), groups=C)
    maps = torch.randn(2, C, H, W, generator=generator(4))
    compiled = torch.compile(conv, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(maps), conv(maps), rtol=0, atol=0)
