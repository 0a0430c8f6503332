"""Sizes, options and users' mistakes: what is built, and one line for what is not."""

from __future__ import annotations

import copy
import inspect
import re
from typing import Any

import pytest
import torch
from torch import Tensor

from capsella.functional import margin_loss, reconstruction_loss
from capsella.models import create_model, entry, list_models, register_model, register_preset
from capsella.models.trunk import Window, output_size, same_padding
from capsella.routing import names as routing_names
from capsella.testing import assert_parity

IMAGE_MODELS = [name for name in list_models() if name != "sign_capsnet"]


def one_line(caught: pytest.ExceptionInfo[Exception]) -> str:
    text = str(caught.value)
    assert text
    assert "\n" not in text
    return text


@pytest.mark.parametrize("name", IMAGE_MODELS)
def test_oblong_colour_images_and_five_classes_work(name: str) -> None:
    torch.manual_seed(0)
    model = create_model(name, image_size=(25, 28), in_channels=3, num_classes=5).eval()
    prediction = model(torch.rand(2, 3, 25, 28), torch.tensor([4, 0]))
    assert prediction.scores.shape == (2, 5)
    assert prediction.scores.isfinite().all()
    if model.decoder is not None:
        assert prediction.reconstruction.shape == (2, 3, 25, 28)
    with pytest.raises(ValueError, match="expects"):
        model(torch.rand(2, 3, 28, 25))


@pytest.mark.parametrize("name", IMAGE_MODELS)
def test_an_image_too_small_names_the_least_size_which_then_works(name: str) -> None:
    with pytest.raises(ValueError, match=r"^image_size=\(1, 1\) is too small") as caught:
        create_model(name, image_size=1)
    least = int(re.search(r"expected at least (\d+) pixels", one_line(caught))[1])
    with pytest.raises(ValueError, match=rf"^image_size=\({least - 1}, {least - 1}\) is too small.*at least {least} pixels"):
        create_model(name, image_size=least - 1)
    with pytest.raises(ValueError, match=rf"^image_size=\({least + 5}, {least - 1}\) is too small.*at least {least} pixels"):
        create_model(name, image_size=(least + 5, least - 1))
    model = create_model(name, image_size=least).eval()
    assert model(torch.rand(2, 1, least, least)).scores.isfinite().all()


@pytest.mark.parametrize("routing", routing_names())
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("capsnet_small", {"reconstruction": "normal"}),
        ("deep_capsnet", {"image_size": 17, "depth": 3, "reconstruction": "none"}),
        ("parse_capsnet", {"image_size": 11, "capsules": (4, 3, 10), "reconstruction": "none"}),
        ("sign_capsnet", {}),
    ],
)
def test_any_routing_goes_into_any_net_of_vectors(name: str, options: dict[str, Any], routing: str) -> None:
    torch.manual_seed(0)
    model = create_model(name, routing=routing, **options).eval()
    prediction = model(torch.rand(2, *model.image_shape))
    assert {layer.algorithm.name for layer in model.layers} == {routing}
    assert prediction.scores.isfinite().all()
    assert prediction.capsules.isfinite().all()


@pytest.mark.parametrize("name", ["capsnet", "convnet_fc"])
def test_a_larger_kernel_needs_a_larger_image(name: str) -> None:
    with pytest.raises(ValueError, match=r"^image_size=\(28, 28\) is too small.*at least \d+ pixels") as caught:
        create_model(name, image_size=28, kernel_size=15)
    least = int(re.search(r"at least (\d+) pixels", one_line(caught))[1])
    with torch.device("meta"):
        create_model(name, image_size=least, kernel_size=15)


def test_sign_capsnet_takes_one_scalar_only() -> None:
    for sizes in ({"image_size": 2}, {"in_channels": 3}, {"image_size": (1, 2)}):
        with pytest.raises(ValueError, match=r"^image_size=.*in_channels=.*expected one scalar: 1 and 1$"):
            create_model("sign_capsnet", **sizes)


@pytest.mark.parametrize("name", list_models())
@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        (lambda x: x.repeat(1, 2, 1, 1), ValueError, r"^images has shape \[2, 2, \d+, \d+\]; NAME expects \[B, C=1, "),
        (lambda x: x[0], ValueError, r"^images has shape \[1, \d+, \d+\]; NAME expects \[B, C=1, "),
        (lambda x: x.repeat(1, 1, 1, 2), ValueError, r"^images has shape \[2, 1, \d+, \d+\]; NAME expects \[B, C=1, "),
        (lambda x: x.byte(), TypeError, r"^images is torch\.uint8; expected floating point \[B, C=1, .*divide bytes by 255"),
        (lambda x: x.numpy(), TypeError, r"^images is ndarray; expected floating point"),
    ],
    ids=["channels", "rank", "width", "bytes", "array"],
)
def test_wrong_images_are_named_in_one_line(name: str, change: Any, kind: type[Exception], message: str) -> None:
    with torch.device("meta"):
        model = create_model(name)
    with pytest.raises(kind, match=message.replace("NAME", name)) as caught:
        model(change(torch.zeros(2, *model.image_shape)))
    one_line(caught)


@pytest.mark.parametrize(
    ("targets", "kind", "message"),
    [
        (torch.tensor([0, 10]), ValueError, "targets has class 10; expected classes from 0 to 9"),
        (torch.tensor([0, 1, 2]), ValueError, r"has shape \[3\]; expected"),
        (torch.tensor([0.5, 1.0]), (TypeError, ValueError), r"targets has .*dtype torch\.float32; expected"),
        (torch.zeros(2, 11, dtype=torch.long), ValueError, r"targets has shape \[2, 11\]"),
    ],
)
def test_wrong_targets_are_named_in_one_line(targets: torch.Tensor, kind: Any, message: str) -> None:
    model = create_model("capsnet_small")
    with pytest.raises(kind, match=message) as caught:
        model(torch.rand(2, 1, 28, 28), targets)
    one_line(caught)


def test_an_unknown_model_lists_near_matches_and_all_names() -> None:
    with pytest.raises(ValueError, match=r"^name='capsnt' is unknown; did you mean 'capsnet'") as caught:
        create_model("capsnt")
    assert all(repr(name) in one_line(caught) for name in list_models())


@pytest.mark.parametrize(
    ("name", "options", "kind", "message"),
    [
        ("capsnet", {"rooting": "em"}, TypeError, "capsnet: option='rooting' is unknown; did you mean 'routing'?"),
        ("capsnet", {"image_sise": 28}, TypeError, "capsnet: option='image_sise' is unknown"),
        ("capsnet", {"routing": "agrement"}, ValueError, "routing='agrement' is unknown; did you mean 'agreement'?"),
        ("capsnet", {"squash": "sabor"}, ValueError, "squash='sabor' is unknown; did you mean 'sabour'?"),
        ("capsnet", {"reconstruction": "conditonal"}, ValueError, "reconstruction='conditonal' is unknown; did you mean"),
        ("capsnet", {"padding": "sam"}, ValueError, "padding='sam' is unknown; did you mean 'same'?"),
        ("capsnet", {"activation_fn": "rely"}, ValueError, "activation_fn='rely' is unknown; did you mean"),
        ("capsnet", {"num_iters": 0}, ValueError, "num_iters=0 is too small"),
        ("capsnet", {"kernel_size": 0}, ValueError, "kernel_size=0 is too small"),
        ("capsnet", {"init": "sabur"}, ValueError, "init='sabur' is unknown; did you mean 'sabour'?"),
        ("capsnet", {"norm": "l2"}, ValueError, "norm='l2' does not go with routing='agreement'"),
        ("quadratic_capsnet", {"norm": "l3"}, ValueError, "norm='l3' is unknown"),
        ("convnet_r", {"reconstruction": "conditional"}, ValueError, "reconstruction='conditional' is unknown"),
        ("deep_capsnet", {"depth": 1}, ValueError, "depth=1 is too small; expected an int of at least 2"),
        ("deep_capsnet", {"em_as": "peer"}, ValueError, "em_as='peer' is unknown"),
        ("parse_capsnet", {"em_as": "peer"}, ValueError, "em_as='peer' is unknown"),
        ("deep_capsnet", {"hidden_dim": 0}, ValueError, "hidden_dim=0"),
        ("deep_capsnet", {"channels": 0}, ValueError, "channels=0 is too small"),
        ("deep_capsnet", {"types": 0}, ValueError, "types=0 is too small"),
        ("deep_capsnet", {"trunk_stride": 0}, ValueError, "trunk_stride=0 is too small"),
        ("deep_capsnet", {"init": "peer2022_wid"}, ValueError, "init='peer2022_wid' is unknown; did you mean 'peer2022_wide'"),
        (
            "parse_capsnet",
            {"capsules": (16, 16, 9)},
            ValueError,
            "capsules=(16, 16, 9) is no stack that ends in num_classes=10",
        ),
        ("parse_capsnet", {"dim": (8, 8)}, ValueError, "dim=(8, 8) has 2 values; expected one for each of 5 layers"),
        ("parse_capsnet", {"backbone": "cifar"}, ValueError, "backbone='cifar' is unknown; did you mean 'cifar10'?"),
        ("em_capsnet", {"types": (8, 16)}, ValueError, "types=(8, 16)"),
        ("em_capsnet", {"channels": 0}, ValueError, "channels=0 is too small"),
        ("convnet_small", {"hidden": 0}, ValueError, "hidden=0 is too small"),
        ("lenet", {"num_classes": 0}, ValueError, "num_classes=0 is too small"),
        ("lenet", {"in_channels": 1.0}, TypeError, "in_channels=1.0 has type float"),
        (
            "lenet",
            {"image_size": 28.0},
            TypeError,
            "image_size=28.0",
        ),
        ("lenet", {"image_size": (28,)}, (TypeError, ValueError), "image_size=(28,)"),
        ("lenet", {"image_size": "28"}, TypeError, "image_size='28'"),
        ("lenet", {"image_size": -3}, ValueError, "image_size=-3 is too small"),
    ],
)
def test_wrong_options_are_named_in_one_line(name: str, options: dict[str, Any], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind) as caught, torch.device("meta"):
        create_model(name, **options)
    assert message in one_line(caught)


@pytest.mark.parametrize("name", list_models())
def test_config_holds_every_resolved_option_and_builds_the_same_model(name: str) -> None:
    with torch.device("meta"):
        model = create_model(name)
        again = create_model(**model.config)
    found = entry(name)
    side = found.sizes["image_size"]
    sizes = {"name": name, "image_size": (side, side), "in_channels": 1, "num_classes": found.sizes["num_classes"]}
    assert model.config == {**sizes, **found.options, "init": found.init}
    assert set(found.options) | {"image_size", "in_channels", "num_classes"} == set(inspect.signature(found.build).parameters)
    assert again.config == model.config
    assert [(k, v.shape) for k, v in again.state_dict().items()] == [(k, v.shape) for k, v in model.state_dict().items()]


def test_config_keeps_what_the_user_chose() -> None:
    model = create_model("aff_capsnet_dr", image_size=(25, 26), in_channels=2, num_classes=3, squash="exp", init="sabour")
    chosen = {"name": "aff_capsnet_dr", "image_size": (25, 26), "in_channels": 2, "num_classes": 3, "init": "sabour"}
    chosen |= {"squash": "exp", "shared": True, "routing": "agreement", "bias": False}
    assert {key: model.config[key] for key in chosen} == chosen


def test_names_are_registered_once() -> None:
    with pytest.raises(ValueError, match=r"^name='lenet' is registered already"):
        register_preset("lenet", "capsnet")
    with pytest.raises(TypeError, match=r"option='rooting' is unknown"):
        register_preset("lenet_2", "capsnet", rooting="em")
    with pytest.raises(ValueError, match=r"^init='nobody' is unknown"):
        register_model("lenet_3", paper="none", init="nobody")(lambda **_: None)
    assert not {"lenet_2", "lenet_3"} & set(list_models())


@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("kernel", [1, 2, 5, 9])
def test_same_padding_leaves_the_size_divided_by_the_stride(kernel: int, stride: int) -> None:
    for height, width in ((24, 24), (25, 7), (9, 10)):
        left, right, top, bottom = same_padding((height, width), Window(kernel, stride)).padding
        padded = (height + top + bottom, width + left + right)
        assert output_size(padded, [Window(kernel, stride)]) == (-(-height // stride), -(-width // stride))
        # as few zeros as do it, the odd one at the bottom right.
        for before, after, side in ((top, bottom, height), (left, right, width)):
            assert 0 <= after - before <= 1
            out = -(-side // stride)
            assert before + after == max((out - 1) * stride + kernel - side, 0)


@pytest.mark.parametrize("name", list_models())
def test_autocast_is_as_exact_as_a_model_of_half_precision(name: str) -> None:
    torch.manual_seed(0)
    model = create_model(name).eval()
    images = torch.rand(2, *model.image_shape)
    with torch.no_grad():
        with torch.autocast("cpu", dtype=torch.bfloat16):
            scores = model(images).scores.bfloat16()
        half = copy.deepcopy(model).bfloat16()(images.bfloat16()).scores
        exact = model.double()(images.double()).scores
    assert_parity(scores, exact, half, name="scores")


def test_gradients_of_single_samples_can_be_taken_by_vmap() -> None:
    model = create_model("capsnet_small")
    parameters = dict(model.named_parameters())

    def loss(parameters: dict[str, Tensor], image: Tensor, target: Tensor) -> Tensor:
        prediction = torch.func.functional_call(model, parameters, (image[None], target[None]))
        drawn = reconstruction_loss(prediction.reconstruction, image[None])
        return margin_loss(prediction.scores, target[None]) + 0.0005 * drawn

    images, targets = torch.rand(3, *model.image_shape), torch.tensor([1, 2, 3])
    each = torch.func.vmap(torch.func.grad(loss), (None, 0, 0))(parameters, images, targets)
    for key, gradient in torch.func.grad(loss)(parameters, images[1], targets[1]).items():
        torch.testing.assert_close(each[key][1], gradient)
