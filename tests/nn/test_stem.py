"""The convolution on images: the same values, gradients and weights whichever way it is computed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as tnf
from torch.utils._python_dispatch import TorchDispatchMode

from capsella.models import create_model, list_models
from capsella.nn import stem
from capsella.nn.stem import ImageConv2d, conv_as_product, product_pays
from capsella.testing import GRADIENT_FACTOR, assert_parity, check_parity, generator

# in_channels, out_channels, (K, L), stride, padding, bias; the image has 11 rows and 13 columns.
CASES = {
    "plain": (1, 8, (3, 3), (1, 1), (0, 0), True),
    "columns fill up without a bias": (1, 8, (4, 4), (1, 1), (0, 0), False),
    "the bias alone is in the last eight columns": (1, 8, (4, 4), (1, 1), (0, 0), True),
    "stride leaves a rest": (3, 5, (5, 4), (2, 3), (0, 0), True),
    "padding differs by side": (2, 8, (3, 5), (2, 1), (2, 1), False),
    "kernel as large as the image": (2, 3, (11, 13), (1, 1), (0, 0), True),
}
each_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def draw(case: tuple[Any, ...], batch: int = 3) -> dict[str, Tensor]:
    channels, outputs, kernel, _, _, bias = case
    rng = generator(0)
    inputs = {
        "images": torch.randn(batch, channels, 11, 13, generator=rng, dtype=torch.float64),
        "weight": torch.randn(outputs, channels, *kernel, generator=rng, dtype=torch.float64),
    }
    return inputs | ({"bias": torch.randn(outputs, generator=rng, dtype=torch.float64)} if bias else {})


def both_ways(case: tuple[Any, ...]) -> tuple[Callable[..., Tensor], Callable[..., Tensor]]:
    *_, stride, padding, _ = case

    def product(images: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        return conv_as_product(images, weight, bias, stride=stride, padding=padding)

    def reference(images: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        return tnf.conv2d(images, weight, bias, stride=stride, padding=padding)

    return product, reference


@pytest.fixture
def products(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[torch.dtype]]:
    """Collect the dtype of every product that is taken."""
    taken: list[torch.dtype] = []

    def watched(*args: Any, **options: Any) -> Tensor:
        taken.append(options["dtype"])
        return conv_as_product(*args, **options)

    monkeypatch.setattr(stem, "conv_as_product", watched)
    return taken


class Operators(TorchDispatchMode):
    """Collects the names of what runs, and the sizes of products."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []
        self.products: list[list[torch.Size]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func.overloadpacket.__name__)
        if self.names[-1] == "mm":
            self.products.append([tensor.shape for tensor in args])
        return func(*args, **(kwargs or {}))


@each_case
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_values_and_all_gradients_are_those_of_conv2d_up_to_rounding(case: tuple[Any, ...], dtype: torch.dtype) -> None:
    product, reference = both_ways(case)
    check_parity(product, reference, draw(case), dtype=dtype)


def test_sums_over_many_patches_are_as_good_as_conv2ds_in_half_precision() -> None:
    """A pixel of CapsNet's images is in 81 patches, a weight in 8 · 400 of them."""
    rng = generator(1)
    inputs = {
        "images": torch.rand(8, 1, 28, 28, generator=rng, dtype=torch.float64),
        "weight": torch.randn(32, 1, 9, 9, generator=rng, dtype=torch.float64) / 9,
        "bias": torch.randn(32, generator=rng, dtype=torch.float64),
    }
    product, reference = both_ways(CASES["plain"])
    check_parity(product, reference, inputs, dtype=torch.bfloat16)


def test_the_gradient_of_a_pixel_in_many_patches_is_summed_wide() -> None:
    """The middle one is in 300 patches; a sum of ones in bfloat16 stops at 256."""
    images = torch.ones(1, 1, 1, 600, dtype=torch.bfloat16, requires_grad=True)
    conv_as_product(images, torch.ones(8, 1, 1, 300, dtype=torch.bfloat16), None)[:, 0].sum().backward()
    assert images.grad is not None
    assert images.grad.max() == 300


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kernel", [1, 3, 4, 5, 9])
def test_rows_are_filled_up_to_multiples_of_eight_values(kernel: int, bias: bool) -> None:
    layer = ImageConv2d(1, 8, kernel, bias=bias, as_product=True)
    with Operators() as ran:
        layer(torch.randn(2, 1, 9, 9))
    ((patches, columns),) = ran.products
    assert patches[1] == columns[0] == -(-(kernel * kernel + bias) // 8) * 8


@each_case
def test_gradients_of_gradients_are_right(case: tuple[Any, ...]) -> None:
    product, reference = both_ways(case)
    leaves = [tensor.requires_grad_() for tensor in draw(case, batch=1).values()]

    def penalty(fn: Callable[..., Tensor]) -> tuple[Tensor, ...]:
        first = torch.autograd.grad(fn(*leaves).sin().sum(), leaves, create_graph=True)
        return torch.autograd.grad(sum((g.square().sum() for g in first), torch.zeros(())), leaves)

    for got, expected in zip(penalty(product), penalty(reference), strict=True):
        torch.testing.assert_close(got, expected)


def test_the_result_has_channels_last_in_memory() -> None:
    result = conv_as_product(torch.randn(2, 3, 9, 8), torch.randn(4, 3, 3, 3), None)
    assert result.is_contiguous(memory_format=torch.channels_last)
    assert not result.is_contiguous()


def test_the_backward_pass_is_products_alone_where_images_need_no_gradient() -> None:
    layer = ImageConv2d(1, 8, 3, as_product=True)
    loss = layer(torch.randn(2, 1, 6, 6)).square().sum()
    with Operators() as ran:
        loss.backward()
    assert len(ran.products) == 1
    assert not [name for name in ran.names if "unfold" in name or "scatter" in name or "index" in name or "conv" in name]


@pytest.mark.parametrize(
    ("device", "dtype", "taps", "outputs", "pays"),
    [
        ("cuda", torch.bfloat16, 81, 256, True),
        ("cuda", torch.float16, 243, 64, True),
        ("cuda", torch.float32, 81, 256, False),
        ("cuda", torch.float64, 81, 256, False),
        ("cuda", torch.bfloat16, 256 * 9, 256, False),
        ("cuda", torch.bfloat16, 25, 20, False),
        ("cpu", torch.bfloat16, 81, 256, False),
        ("cpu", torch.float32, 81, 256, False),
    ],
)
def test_the_product_is_for_few_channels_in_half_precision_on_gpus(
    device: str, dtype: torch.dtype, taps: int, outputs: int, pays: bool
) -> None:
    assert product_pays(device, dtype, taps, outputs) == pays


@pytest.mark.parametrize("autocast", [None, torch.bfloat16, torch.float16], ids=str)
def test_the_rule_is_asked_about_the_call_with_autocast_counted_in(
    autocast: torch.dtype | None, monkeypatch: pytest.MonkeyPatch, products: list[torch.dtype]
) -> None:
    asked: list[tuple[Any, ...]] = []

    def says_yes(*question: Any) -> bool:
        asked.append(question)
        return True

    monkeypatch.setattr(stem, "product_pays", says_yes)
    with torch.autocast("cpu", dtype=autocast, enabled=autocast is not None):
        result = ImageConv2d(3, 16, (5, 4))(torch.randn(2, 3, 8, 8))
    dtype = autocast or torch.float32
    assert asked == [("cpu", dtype, 60, 16)]
    assert products == [dtype]
    assert result.dtype == dtype


@pytest.mark.parametrize("images_need_gradients", [True, False])
def test_under_autocast_it_rounds_as_conv2d_does_and_gradients_are_wide(images_need_gradients: bool) -> None:
    truth, plain = nn.Conv2d(1, 16, 5).double(), nn.Conv2d(1, 16, 5)
    plain.load_state_dict(truth.state_dict())
    layer = ImageConv2d(1, 16, 5, as_product=True)
    layer.load_state_dict(plain.state_dict())
    truth.load_state_dict(plain.state_dict())
    images = torch.randn(4, 1, 12, 12)
    results = []
    for module, dtype in ((truth, torch.float64), (plain, torch.float32), (layer, torch.float32)):
        seen = images.to(dtype, copy=True).requires_grad_(images_need_gradients)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == torch.float32):
            output = module(seen)
        (output.double() * torch.linspace(0.5, 1.5, output.numel()).reshape_as(output)).sum().backward()
        results.append([output, module.weight.grad, module.bias.grad, *([seen.grad] if images_need_gradients else [])])
    for exact, yardstick, got in zip(*results, strict=True):
        assert_parity(got, exact, yardstick, factor=GRADIENT_FACTOR)
    assert results[2][0].dtype == torch.bfloat16
    assert {gradient.dtype for gradient in results[2][1:]} == {torch.float32}


def test_on_the_cpu_it_is_nn_conv2d_bit_by_bit(products: list[torch.dtype]) -> None:
    torch.manual_seed(3)
    plain = nn.Conv2d(1, 16, 5, 2, 1)
    torch.manual_seed(3)
    layer = ImageConv2d(1, 16, 5, 2, 1)
    images = torch.randn(2, 1, 12, 12)
    assert torch.equal(layer(images), plain(images))
    assert products == []


@pytest.mark.parametrize("options", [{}, {"bias": False}, {"stride": 2, "padding": 1}])
def test_weights_names_and_description_are_those_of_nn_conv2d(options: dict[str, Any]) -> None:
    torch.manual_seed(5)
    plain = nn.Conv2d(3, 8, 5, **options)
    torch.manual_seed(5)
    layer = ImageConv2d(3, 8, 5, **options)
    assert list(layer.state_dict()) == list(plain.state_dict())
    assert all(torch.equal(layer.state_dict()[name], tensor) for name, tensor in plain.state_dict().items())
    assert repr(layer) == f"Image{plain!r}"
    nn.Conv2d(3, 8, 5, **options).load_state_dict(layer.state_dict(), strict=True)


@pytest.mark.parametrize("options", [{"groups": 2}, {"dilation": 2}, {"padding": "same"}, {"padding_mode": "reflect"}], ids=str)
def test_what_has_no_product_is_a_convolution_and_cannot_be_forced(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch, products: list[torch.dtype]
) -> None:
    monkeypatch.setattr(stem, "product_pays", lambda *_: True)
    assert ImageConv2d(2, 8, 3, **options)(torch.randn(1, 2, 9, 9)).shape[1] == 8
    assert products == []
    with pytest.raises(ValueError, match="as_product=True does not go with") as caught:
        ImageConv2d(2, 8, 3, as_product=True, **options)
    assert "\n" not in str(caught.value)
    assert all(f"{value!r}" in str(caught.value) for value in options.values())


def test_a_word_is_no_way_to_compute() -> None:
    with pytest.raises(TypeError, match="as_product='yes' has type str; expected True or False"):
        ImageConv2d(1, 8, 3, as_product="yes")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "images",
    [torch.zeros(2, 1, 4, 9), torch.zeros(2, 3, 9, 9), torch.zeros(2, 1, 9, 9, dtype=torch.uint8), torch.zeros(9, 9)],
    ids=["too small", "other channels", "integers", "no channels"],
)
@pytest.mark.parametrize("autocast", [True, False])
def test_what_conv2d_refuses_is_refused_with_the_same_words(images: Tensor, autocast: bool) -> None:
    messages = []
    for layer in (nn.Conv2d(1, 8, 5), ImageConv2d(1, 8, 5, as_product=True)):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast), pytest.raises(RuntimeError) as caught:
            layer(images)
        messages.append(str(caught.value))
    assert messages[0] == messages[1]


def test_weights_of_another_dtype_are_refused_as_by_conv2d() -> None:
    with pytest.raises(RuntimeError, match="should be the same"):
        ImageConv2d(1, 8, 3, as_product=True).double()(torch.zeros(2, 1, 9, 9))


@pytest.mark.parametrize("shape", [(0, 3, 7, 7), (3, 7, 7)], ids=["no images", "one image without a batch"])
def test_odd_batches_are_taken_as_by_conv2d(shape: tuple[int, ...]) -> None:
    layer = ImageConv2d(3, 8, 5, as_product=True)
    images = torch.randn(*shape)
    assert layer(images).shape == tnf.conv2d(images, layer.weight, layer.bias).shape


@pytest.mark.parametrize("last", [True, False])
def test_the_layout_of_images_and_weights_does_not_matter(last: bool) -> None:
    layer = ImageConv2d(3, 8, 5, as_product=True)
    images = torch.randn(2, 3, 9, 9)
    expected = tnf.conv2d(images, layer.weight, layer.bias)
    layer.to(memory_format=torch.channels_last)
    if last:
        images = images.contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(layer(images), expected)


@pytest.mark.parametrize("as_product", [None, True])
@pytest.mark.parametrize("autocast", [True, False])
def test_it_compiles_as_one_graph(as_product: bool | None, autocast: bool) -> None:
    layer = ImageConv2d(1, 8, 5, 2, 1, as_product=as_product)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    images = torch.randn(3, 1, 12, 12)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        expected, result = layer(images), compiled(images)
    torch.testing.assert_close(result, expected)
    result.float().square().sum().backward()
    assert layer.weight.grad is not None


@pytest.mark.parametrize("as_product", [None, True])
def test_it_exports_with_any_batch_size_and_as_a_convolution_from_the_cpu(as_product: bool | None) -> None:
    layer = ImageConv2d(1, 8, 5, as_product=as_product)
    batch = torch.export.Dim("batch", min=2, max=64)
    program = torch.export.export(layer, (torch.randn(4, 1, 12, 12),), dynamic_shapes=({0: batch},))
    assert any("conv2d" in str(node.target) for node in program.graph.nodes) == (as_product is None)
    images = torch.randn(7, 1, 12, 12)
    torch.testing.assert_close(program.module()(images), layer(images))


def test_shapes_are_known_without_data() -> None:
    layer = ImageConv2d(1, 8, 5, 2, as_product=True, device="meta")
    assert layer(torch.empty(2, 1, 12, 11, device="meta")).shape == (2, 8, 4, 4)


def test_nets_side_by_side_are_one_call_of_vmap() -> None:
    layer = ImageConv2d(1, 8, 3, as_product=True)
    stacked = {name: torch.randn(3, *tensor.shape) for name, tensor in layer.state_dict().items()}
    images = torch.randn(2, 1, 7, 7)

    def loss(parameters: dict[str, Tensor]) -> Tensor:
        return torch.func.functional_call(layer, parameters, (images,)).sin().sum()

    together = torch.func.vmap(torch.func.grad(loss))(stacked)
    for k in range(3):
        leaves = {name: tensor[k].clone().requires_grad_() for name, tensor in stacked.items()}
        tnf.conv2d(images, leaves["weight"], leaves["bias"]).sin().sum().backward()
        for name, leaf in leaves.items():
            torch.testing.assert_close(together[name][k], leaf.grad)


@pytest.mark.parametrize("name", list_models())
def test_the_first_convolution_of_every_model_and_no_other_is_on_images(name: str) -> None:
    with torch.device("meta"):
        model = create_model(name)
    kinds = [type(module) for module in model.modules() if isinstance(module, nn.Conv2d)]
    assert [kind is ImageConv2d for kind in kinds] == [place == 0 for place in range(len(kinds))]


def test_a_whole_net_gives_the_same_scores_either_way(products: list[torch.dtype]) -> None:
    model = create_model("capsnet_small").double().eval()
    images = torch.rand(2, *model.image_shape, dtype=torch.float64)
    expected = model(images).scores
    next(module for module in model.modules() if isinstance(module, ImageConv2d)).as_product = True
    torch.testing.assert_close(model(images).scores, expected)
    assert products == [torch.float64]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(("dtype", "taken"), [(torch.bfloat16, True), (torch.float16, True), (torch.float32, False)], ids=str)
def test_a_gpu_takes_the_product_in_half_precision_alone_and_loses_nothing(
    dtype: torch.dtype, taken: bool, products: list[torch.dtype]
) -> None:
    layer = ImageConv2d(1, 256, 9, device="cuda")
    inputs = {
        "images": torch.rand(16, 1, 28, 28, generator=generator(0), dtype=torch.float64),
        "weight": layer.weight.detach().cpu().double(),
        "bias": layer.bias.detach().cpu().double(),
    }

    def candidate(images: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return torch.func.functional_call(layer, {"weight": weight, "bias": bias}, (images,))

    _, reference = both_ways(CASES["plain"])
    check_parity(candidate, reference, inputs, dtype=dtype, device="cuda")
    assert bool(products) == taken
