"""The convolution between feature maps: whose it is, what it refuses, and that nothing else changes."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from capsella.models import create_model, list_models
from capsella.nn import features
from capsella.nn.features import FeatureConv2d
from capsella.testing import check_parity, generator

needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")


def hopper(monkeypatch: pytest.MonkeyPatch, able: bool = True) -> Any:
    fused = features._fused
    monkeypatch.setattr(fused, "_able", lambda: able)
    return fused


CALL: dict[str, Any] = {
    **{"device_type": "cuda", "dtype": torch.bfloat16, "images": 128, "in_channels": 256, "out_channels": 256},
    **{"kernel": (9, 9), "size": (20, 20), "stride": (2, 2)},
}


@needs_triton
def test_capsnet_s_second_convolution_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    fused = hopper(monkeypatch)
    assert fused.refuse(**CALL) == []
    # a batch of 100, of which the last tile's rows are mostly full, too.
    assert fused.refuse(**CALL | {"images": 100, "stride": (1, 2)}) == []


@needs_triton
@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"device_type": "cpu"}, "device is cpu; it needs cuda"),
        ({"dtype": torch.float32}, "dtype is float32; it needs bfloat16 or float16"),
        ({"stride": (1, 1)}, "stride is 1, which is left to cuDNN"),
        ({"in_channels": 96}, "C=96 is no multiple of 64"),
        ({"out_channels": 20}, "O=20 is no multiple of 64"),
        ({"images": 32}, "B=32 leaves 96 of 128 rows empty"),
        ({"images": 0}, "there is no image"),
        ({"size": (8, 20)}, "the maps are smaller than the kernel"),
        ({"size": (4096, 4096)}, "an image's maps have 2^31 values or more"),
    ],
)
def test_what_is_refused_says_why(change: dict[str, Any], says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert hopper(monkeypatch).refuse(**CALL | change) == [says]


@needs_triton
def test_another_gpu_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert hopper(monkeypatch, able=False).refuse(**CALL) == ["the GPU is not NVIDIA's of compute capability 9.x"]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_on_a_cpu_it_is_conv2d(dtype: torch.dtype) -> None:
    layer = FeatureConv2d(64, 64, 3, 2)
    rng = generator(0)
    given = {
        "maps": torch.randn(2, 64, 7, 7, generator=rng, dtype=torch.float64),
        **{name: value.detach().double() for name, value in layer.named_parameters()},
    }

    def by(make: type[nn.Conv2d]) -> Any:
        def run(maps: Tensor, **parameters: Tensor) -> Tensor:
            return torch.func.functional_call(make(64, 64, 3, 2).to(maps), parameters, maps)  # type: ignore[no-any-return]

        return run

    check_parity(by(FeatureConv2d), by(nn.Conv2d), given, dtype=dtype)


def test_its_weights_are_conv2d_s() -> None:
    layer, other = FeatureConv2d(64, 128, (3, 5), 2, bias=False), nn.Conv2d(64, 128, (3, 5), 2, bias=False)
    other.load_state_dict(layer.state_dict())
    maps = torch.randn(2, 64, 9, 9)
    assert torch.equal(layer(maps), other(maps))


@needs_triton
def test_tiles_that_cannot_be_are_an_error_of_one_line() -> None:
    says = r"^tiled=True does not go here: device is cpu; it needs cuda; expected None, which takes what there is$"
    with pytest.raises(ValueError, match=says):
        FeatureConv2d(64, 64, 3, 2, tiled=True)(torch.randn(2, 64, 7, 7))


def test_without_triton_tiles_are_refused_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(features, "_fused", None)
    with pytest.raises(ValueError, match=r"^tiled=True does not go here: there is no Triton; expected None"):
        FeatureConv2d(64, 64, 3, 2, tiled=True)(torch.randn(2, 64, 7, 7))
    FeatureConv2d(64, 64, 3, 2)(torch.randn(2, 64, 7, 7))


@pytest.mark.parametrize("tiled", [True, None])
@pytest.mark.parametrize(("maps", "says"), [((2, 32, 7, 7), "32 channels"), ((2, 64, 7), "64")])
def test_wrong_maps_are_conv2d_s_to_refuse(maps: tuple[int, ...], says: str, tiled: bool | None) -> None:
    with pytest.raises(RuntimeError, match=says):
        FeatureConv2d(64, 64, 3, 2, tiled=tiled)(torch.randn(maps))


@pytest.mark.parametrize("options", [{"padding": 1}, {"dilation": 2}, {"groups": 2}, {"padding": "same"}])
def test_tiles_do_not_go_with_what_they_have_not(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"^tiled=True does not go with padding=.*; expected 0, 1 and 1$"):
        FeatureConv2d(64, 64, 3, tiled=True, **options)
    FeatureConv2d(64, 64, 3, **options)(torch.randn(1, 64, 7, 7))


def test_tiled_is_a_flag() -> None:
    with pytest.raises((TypeError, ValueError), match="tiled"):
        FeatureConv2d(64, 64, 3, tiled="yes")  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["capsnet", "convnet_avg", "convnet_fc", "deep_capsnet", "gcapsnet_fc"])
def test_models_have_it_behind_their_first_convolution(name: str) -> None:
    assert name in list_models()
    found = [module for module in create_model(name).modules() if isinstance(module, nn.Conv2d)]
    assert len(found) > 1
    assert all(isinstance(module, FeatureConv2d) for module in found[1:])


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
# rows and columns that no window sees, of both kinds: beyond the last one, and between two.
@pytest.mark.parametrize(("size", "kernel", "stride"), [((12, 11), 5, 2), ((12, 10), 5, 2), ((7, 8), 2, 3)])
def test_tiles_give_cudnn_s_numbers(dtype: torch.dtype, size: tuple[int, int], kernel: int, stride: int) -> None:
    rng = generator(0)
    given = {
        "maps": torch.randn(250, 64, *size, generator=rng, dtype=torch.float64),
        "weight": torch.randn(128, 64, kernel, kernel, generator=rng, dtype=torch.float64) / (8 * kernel),
        "bias": torch.randn(128, generator=rng, dtype=torch.float64),
    }

    def by(tiled: bool) -> Any:
        def run(maps: Tensor, **parameters: Tensor) -> Tensor:
            layer = FeatureConv2d(64, 128, kernel, stride, tiled=tiled and maps.is_cuda, device="meta")
            return torch.func.functional_call(layer, parameters, maps)  # type: ignore[no-any-return]

        return run

    check_parity(by(True), by(False), given, dtype=dtype, device="cuda")


@pytest.mark.gpu
def test_a_compiled_step_takes_tiles_and_gives_the_same_again() -> None:
    torch.manual_seed(0)
    layer = FeatureConv2d(64, 128, 5, 2, tiled=True, device="cuda")
    maps = torch.randn(128, 64, 12, 12, device="cuda")

    def step() -> list[Tensor]:
        with torch.autocast("cuda", torch.bfloat16):
            total = layer(maps).float().square().sum()
        return [total, *torch.autograd.grad(total, list(layer.parameters()))]

    plain, compiled = step(), torch.compile(step, fullgraph=False)
    for one, other in zip(compiled(), compiled(), strict=True):
        assert torch.equal(one, other)
    for one, other in zip(compiled(), plain, strict=True):
        assert torch.allclose(one, other, rtol=0.02, atol=0.02 * float(other.abs().max()))


@pytest.mark.gpu
def test_a_whole_model_in_half_precision_agrees_with_cudnn() -> None:
    torch.manual_seed(0)
    model = create_model("convnet_avg").to("cuda")
    images = torch.rand(128, 1, 28, 28, device="cuda")
    layer = next(module for module in model.modules() if isinstance(module, FeatureConv2d))
    scores = {}
    for tiled in (True, False):
        layer.tiled = tiled
        with torch.autocast("cuda", torch.bfloat16), torch.no_grad():
            scores[tiled] = model(images).scores.float()
    assert torch.allclose(scores[True], scores[False], rtol=0.02, atol=0.02 * float(scores[False].abs().max()))
