"""The structure of every model: images to scores or primary capsules by hand, routing settings, decoders and starts by table.

A path is read from left to right with the model's own tensors, which come in the order in which an image meets them.
``conv 256 9 2`` has 256 channels, a 9×9 kernel and stride 2; ``row 8`` and ``grid 8`` read channels as capsules of 8 values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from einops import rearrange
from torch import Tensor, nn
from torch.nn.functional import conv2d, dropout, max_pool2d

from capsella.models import CapsuleNet, Model, create_model, entry, list_models
from capsella.nn import CapsuleConv2d, RoutingLayer
from capsella.nn.init import initialise_
from capsella.routing import Routed, agreement

EXACT = {"rtol": 1e-11, "atol": 1e-13}
# oblong, so that rows and columns cannot be exchanged; larger where a trunk needs it.
SIZES = {"convnet_fc_lk": (25, 27), "gcapsnet_multi": (23, 25), "sign_capsnet": (1, 1)}

TWO_CONVS = "conv 256 9 1, relu, conv 256 9 2"
CAPSNET = f"{TWO_CONVS}, row 8, sabour"
GROUPED = f"{TWO_CONVS}, relu, row 8, flatten, dense 160"
LIKE_CAPSNET = ("aff_capsnet", "aff_capsnet_dr", "capsnet", "capsnet_nor", "deep_capsnet")
PATHS = dict.fromkeys(LIKE_CAPSNET, CAPSNET) | {
    "capsnet_small": "conv 32 7 2, relu, conv 64 7 2, row 8, sabour",
    "convnet_avg": f"{TWO_CONVS}, relu, mean, dense 10",
    "convnet_cr": f"{GROUPED}, groups 16, sum, sigmoid",
    "convnet_cr_sf": f"{CAPSNET}, flatten, dense 160, groups 16, sabour, length",
    "convnet_fc": "conv 256 5 1, relu, conv 256 5 1, relu, conv 128 5 1, relu, flatten, "
    "dense 328, relu, dense 192, relu, dense 10",
    "convnet_fc512": "conv 64 9 1, relu, conv 256 9 2, relu, flatten, dense 512, relu, dropout, dense 10",
    "convnet_fc_lk": "conv 256 9 1, relu, conv 256 9 1, relu, conv 128 9 1, relu, flatten, "
    "dense 160, relu, dense 96, relu, dense 10",
    "convnet_r": f"{GROUPED}, dense 10",
    "convnet_small": "conv 32 7 2, relu, conv 64 7 2, relu, flatten, dense 80, relu, dense 10",
    "em_capsnet": "conv 64 5 2, relu, matrices 8 16",
    "gcapsnet_conv": f"{TWO_CONVS}, relu, grid 8, exp",
    "gcapsnet_fc": f"{TWO_CONVS}, relu, row 8, exp",
    "gcapsnet_multi": "unbiased 64 7 1, relu, unbiased 128 7 2, relu, grid 8, exp",
    "quadratic_capsnet": "conv 256 9 1, relu, divide 32, conv 256 9 2, row 8, sabour",
    "lenet": "conv 20 5 1, max, conv 50 5 1, max, flatten, dense 500, relu, dense 10",
    "parse_capsnet": "conv 32 5 1, relu, norm, conv 64 3 1, relu, norm, conv 128 3 1, relu, norm, conv 128 3 2, relu, norm, "
    "depthwise, row 8, exp",
    "sign_capsnet": "row 1",
}


@dataclass(frozen=True)
class Layer:
    """What a routing layer is set to; ``window`` is kernel, stride and padding of a convolutional one."""

    sizes: tuple[int, int, int, int]
    routing: str
    squash: str | None
    options: dict[str, Any] = field(default_factory=dict)
    learned: tuple[str, ...] = ()
    bias: bool = False
    relu: str = "none"
    shared: bool = False
    rows: int = 1
    window: tuple[tuple[int, int], int, int] | None = None


def em(inverse_temperature: Any, **others: Any) -> dict[str, Any]:
    defined = {"num_iters": 3, "eps": 1e-8, "cost_log": "std", "normaliser": "gaussian", "output": "mean"}
    return defined | {"inverse_temperature": pytest.approx(inverse_temperature, rel=1e-12)} | others


def trainable(*sizes: int, relu: str, rows: int = 1, window: Any = None) -> Layer:
    return Layer(sizes, "trainable", "exp", learned=("couplings",), relu=relu, rows=rows, window=window)


FULL = (1152, 8, 10, 16)  # Conv9, Conv9/2 on 28×28: 6·6·32 capsules of 8
THRICE, BETAS = {"num_iters": 3, "normalise": "targets"}, ("beta_a", "beta_u")
DEEP = ((1152, 8, 16, 12), (16, 12, 16, 12), (16, 12, 16, 12), (16, 12, 10, 16))
# at the paper's size, 28×28 but for these two.
PAPER_SIZES = {"gcapsnet_multi": {"image_size": 32, "in_channels": 3}, "parse_capsnet": {"image_size": 40}}
LAYERS = {
    "aff_capsnet": [Layer(FULL, "uniform", "sabour", {"normalise": "sources"}, shared=True)],
    "aff_capsnet_dr": [Layer(FULL, "agreement", "sabour", THRICE, shared=True)],
    "capsnet": [Layer(FULL, "agreement", "sabour", THRICE)],
    "capsnet_nor": [Layer(FULL, "uniform", "sabour", {"normalise": "targets"})],
    "capsnet_small": [Layer((72, 8, 10, 8), "agreement", "sabour", THRICE, bias=True)],
    "deep_capsnet": [Layer(sizes, "agreement", "sabour", THRICE, bias=True) for sizes in DEEP],
    "em_capsnet": [
        Layer((I, 16, J, 16), "em", None, em(0.05 * J / I), BETAS, bias=bias, rows=4, window=((3, 3), stride, 0))
        for I, J, bias, stride in ((72, 16, True, 2), (144, 16, True, 1), (144, 10, False, 1))
    ],
    "gcapsnet_conv": [trainable(1152, 8, 10, 8, relu="before", rows=2, window=((6, 6), 1, 0))],
    "gcapsnet_fc": [trainable(*FULL, relu="before")],
    "gcapsnet_multi": [
        trainable(256, 8, 8, 8, relu="after", window=((4, 4), 1, 0)),
        trainable(72, 8, 16, 8, relu="after", rows=4, window=((3, 3), 2, 0)),
        trainable(144, 8, 10, 8, relu="after"),
    ],
    "parse_capsnet": [Layer((16, 8, J, 8), "agreement", "exp", THRICE, ("prior",)) for J in (16, 16, 16, 10)],
    "quadratic_capsnet": [Layer(FULL, "quadratic", "sabour", learned=("couplings",), bias=True)],
    "sign_capsnet": [Layer(sizes, "agreement", "sabour", THRICE, bias=True) for sizes in ((1, 1, 20, 1), (20, 1, 2, 1))],
}
PLAIN = ("convnet_avg", "convnet_fc", "convnet_fc512", "convnet_fc_lk", "convnet_small", "lenet")
LAYERS |= {name: [] for name in (*PLAIN, "convnet_cr", "convnet_cr_sf", "convnet_r")}

WITHOUT_DECODER = (*PLAIN, "em_capsnet", "gcapsnet_multi", "sign_capsnet")
DECODERS = dict.fromkeys(PATHS, (160, 512, 1024, 784)) | dict.fromkeys(WITHOUT_DECODER)
DECODERS |= {"capsnet_small": (80, 64, 128, 784), "gcapsnet_conv": (80, 512, 1024, 784), "parse_capsnet": (80, 512, 1024, 1600)}
UNMASKED = ("convnet_r", "deep_capsnet")

GU2021 = ("aff_capsnet", "aff_capsnet_dr", "capsnet", "capsnet_nor", "capsnet_small", "convnet_avg", "convnet_cr")
GU2021 += ("convnet_cr_sf", "convnet_fc", "convnet_fc_lk", "convnet_r", "convnet_small")
CHEN2019 = ("convnet_fc512", "gcapsnet_conv", "gcapsnet_fc", "gcapsnet_multi", "lenet")
STARTS = {"deep_capsnet": "peer2022", "em_capsnet": "hinton2018", "parse_capsnet": "mitterreiter2023"}
STARTS |= {"quadratic_capsnet": "yang2021", "sign_capsnet": "peer2022_sign"}
STARTS |= dict.fromkeys(GU2021, "gu2021") | dict.fromkeys(CHEN2019, "chen2019")

READINGS = {"row": "b (n p) h w -> b (h w n) p", "grid": "b (n p) h w -> b h w n p", "groups": "b (j p) -> b j p"}
STEPS: dict[str, Callable[[Tensor], Tensor]] = {
    "flatten": lambda x: x.flatten(1),
    "length": lambda x: x.square().sum(dim=-1).sqrt(),
    "max": lambda x: max_pool2d(x, 2),
    "mean": lambda x: x.mean(dim=(2, 3)),
    "sigmoid": lambda x: 1 / (1 + (-x).exp()),
    "sum": lambda x: x.sum(dim=-1),
}


def by_hand(path: str, x: Tensor, tensors: Iterator[Tensor], *, training: bool) -> Tensor:
    """Walk a path; every ReLU must have something to cut and something to leave."""
    for step in path.split(", "):
        kind, *numbers = step.split()
        sizes = [int(number) for number in numbers]
        weight = next(tensors) if kind in ("conv", "unbiased", "depthwise", "dense", "linear") else None
        if kind in ("conv", "unbiased"):
            assert weight.shape == (sizes[0], x.shape[1], sizes[1], sizes[1])
            x = conv2d(x, weight, next(tensors) if kind == "conv" else None, sizes[2])
        elif kind == "depthwise":
            assert weight.shape == (x.shape[1], 1, *x.shape[2:])
            x = (torch.einsum("bchw,cihw->bc", x, weight) + next(tensors))[..., None, None]
        elif kind in ("dense", "linear"):
            assert weight.shape == (sizes[0], x.shape[1])
            x = x @ weight.T + (next(tensors) if kind == "dense" else 0)
        elif kind == "norm":
            scale, shift, mean, variance, _ = (next(tensors) for _ in range(5))
            if training:
                mean, variance = x.mean(dim=(0, 2, 3)), x.var(dim=(0, 2, 3), correction=0)
            x = torch.einsum("bchw,c->bchw", x - mean[:, None, None], scale / (variance + 1e-5).sqrt()) + shift[:, None, None]
        elif kind == "matrices":
            poses = by_hand(f"conv {sizes[0] * sizes[1]} 1 1, grid {sizes[1]}", x, tensors, training=training)
            activations = by_hand(f"conv {sizes[0]} 1 1, grid 1, sigmoid", x, tensors, training=training)
            x = torch.cat([poses, activations], dim=-1)
        elif kind == "divide":
            x = x / sizes[0]
        elif kind == "relu":
            assert bool((x < 0).any() and (x > 0).any())
            x = x.clamp(min=0)
        elif kind in ("sabour", "exp"):
            n = x.square().sum(dim=-1, keepdim=True).sqrt()
            x = x * (n / (1 + n**2) if kind == "sabour" else (1 - (-n).exp()) / n.clamp(min=1e-300))
        elif kind in READINGS:
            x = rearrange(x, READINGS[kind], p=sizes[0])
        else:
            x = dropout(x, 0.5, training) if kind == "dropout" else STEPS[kind](x)
    return x


def shaken(model: Model) -> Model:
    """Draw every tensor anew, in float64: biases and statistics that start at 0 and 1 would hide the order of layers."""
    model = model.double()
    for name, tensor in model.state_dict().items():
        if name.endswith("running_var"):
            tensor.uniform_(0.5, 2)
        elif tensor.is_floating_point():
            tensor.normal_(std=tensor[0].numel() ** -0.5 if tensor.ndim > 1 else 0.5)
    return model


def small(name: str) -> Model:
    return create_model(name, image_size=SIZES.get(name, (19, 21)))


def test_every_model_is_in_every_table() -> None:
    assert list_models() == sorted(PATHS) == sorted(LAYERS) == sorted(STARTS)


def assert_path(model: Model, path: str) -> None:
    """Compare with what enters the first routing layer of a capsule net, with the scores of another."""
    images = torch.randn(2, *model.image_shape, dtype=torch.float64)
    left = iter({key: value.clone() for key, value in model.state_dict().items()}.items())  # training moves statistics
    is_capsule_net, entering = isinstance(model, CapsuleNet), []
    watched = model.layers[0] if is_capsule_net else model
    hook = watched.register_forward_pre_hook(lambda _, args: entering.append(args[0]))
    with torch.no_grad():
        torch.manual_seed(1)  # of the dropout
        expected = by_hand(path, images, (tensor for _, tensor in left), training=model.training)
        torch.manual_seed(1)
        scores = model(images).scores
    hook.remove()
    result = entering[0] if is_capsule_net else scores
    if isinstance(result, Routed):
        result = torch.cat([result.poses, result.activations[..., None]], dim=-1)
    torch.testing.assert_close(result, expected, **EXACT)
    assert all(key.startswith(("layers.", "decoder.") if is_capsule_net else "decoder.") for key, _ in left)


@pytest.fixture(scope="module", params=list_models())
def named(request: pytest.FixtureRequest) -> tuple[str, Model]:
    """Return a name and its model, drawn once for both modes."""
    torch.manual_seed(0)
    return request.param, shaken(small(request.param))


@pytest.mark.parametrize("training", [False, True])
def test_images_become_scores_or_primary_capsules_as_written(named: tuple[str, Model], training: bool) -> None:
    name, model = named
    assert_path(model.train(training), PATHS[name])


def test_mitterreiter2023_s_cifar10_backbone_normalises_before_its_relu() -> None:
    block = "conv 128 3 2, norm, relu"
    assert_path(shaken(create_model("parse_capsnet", backbone="cifar10")).eval(), f"{block}, {block}, depthwise, row 8, exp")


@pytest.mark.parametrize(
    ("name", "options", "path"),
    [
        ("deep_capsnet", {"channels": 5, "types": 3}, "conv 5 9 1, relu, conv 24 9 2, row 8, sabour"),
        ("deep_capsnet", {"channels": 5, "types": 3, "trunk_stride": 2}, "conv 5 9 2, relu, conv 24 9 2, row 8, sabour"),
        ("sign_capsnet", {"trunk": "linear"}, "flatten, linear 20, groups 1"),
        ("sign_capsnet", {"trunk": "relu"}, "flatten, linear 20, relu, groups 1"),
    ],
)
def test_other_trunks_of_peer2022_s_nets_are_as_written(name: str, options: dict[str, Any], path: str) -> None:
    torch.manual_seed(0)
    assert_path(shaken(create_model(name, image_size=SIZES.get(name, (25, 29)), **options)), path)


SMALLER: dict[str, dict[str, Any]] = {
    "deep_capsnet": {"depth": 3, "channels": 8, "types": 2, "reconstruction": "none"},
    "parse_capsnet": {"capsules": (5, 4, 10), "backbone": "small", "reconstruction": "none"},
}


def settings(layer: RoutingLayer) -> Layer:
    algorithm, tuned = layer.algorithm, {"normalise", *em(1e-3)}
    assert tuned >= layer.options.keys()
    return Layer(
        (layer.in_capsules, layer.in_dim, layer.out_capsules, layer.out_dim),
        algorithm.name,
        layer.squash,
        {key: layer.options.get(key, algorithm.default(key)) for key in tuned if key in algorithm.options},
        tuple(layer.learned),
        layer.bias is not None,
        layer.relu,
        layer.weight.shape[0] == 1 < layer.in_capsules,
        layer.rows,
        (layer.kernel_size, layer.stride, layer.padding) if isinstance(layer, CapsuleConv2d) else None,
    )


@pytest.mark.parametrize("name", list_models())
def test_routing_layers_and_decoders_are_set_as_written(name: str) -> None:
    with torch.device("meta"):
        model = create_model(name, **PAPER_SIZES.get(name, {}))
    assert [settings(layer) for layer in model.modules() if isinstance(layer, RoutingLayer)] == LAYERS[name]
    if model.decoder is None or DECODERS[name] is None:
        assert model.decoder is DECODERS[name]
        return
    dense = [module for module in model.decoder.modules() if isinstance(module, nn.Linear)]
    assert (dense[0].in_features, *(layer.out_features for layer in dense)) == DECODERS[name]
    assert model.decoder.mask == ("normal" if name in UNMASKED else "conditional")


@pytest.mark.parametrize("name", ["deep_capsnet", "sign_capsnet"])
def test_peer2022_s_nets_by_em_run_it_as_coded(name: str) -> None:
    with torch.device("meta"):
        model = create_model(name, routing="em")
    as_coded = em((5e-4, 9.75e-4, 1.42625e-3), eps=1e-4, cost_log="variance", normaliser="constant", output="scaled")
    hidden = {12: 10}  # hidden capsules are smaller
    sizes = [(I, hidden.get(P, P), J, hidden.get(D, D)) for I, P, J, D in (layer.sizes for layer in LAYERS[name])]
    expected = [Layer(size, "em", None, as_coded, BETAS, bias=True) for size in sizes]
    assert [settings(layer) for layer in model.layers] == expected


@pytest.mark.parametrize("routing", ["agreement", "uniform"])
@pytest.mark.parametrize("name", ["capsnet", "aff_capsnet", "deep_capsnet", "parse_capsnet"])
def test_nets_hand_on_over_what_couplings_sum_to_one(name: str, routing: str) -> None:
    for normalise in ("targets", "sources"):
        with torch.device("meta"):
            model = create_model(name, **PAPER_SIZES.get(name, {}), routing=routing, normalise=normalise)
        assert {settings(layer).options["normalise"] for layer in model.layers} == {normalise}
        assert model.config["normalise"] == normalise


def test_over_what_couplings_sum_to_one_is_no_question_to_other_routings() -> None:
    for name in ("deep_capsnet", "parse_capsnet"):
        with pytest.raises(TypeError, match=r"routing='trainable': option='normalise' is unknown"):
            create_model(name, routing="trainable", normalise="sources")
        with pytest.raises(ValueError, match=r"^normalise='source' is unknown; did you mean 'sources'\?"):
            create_model(name, **SMALLER[name], normalise="source").eval()(torch.rand(1, 1, 28, 28))


def test_a_parse_tree_net_over_the_sources_is_routing_over_the_sources() -> None:
    torch.manual_seed(0)
    model = create_model("parse_capsnet", **SMALLER["parse_capsnet"], normalise="sources").double().eval()
    with torch.no_grad():
        for layer in model.layers:
            layer.prior.normal_()
    images = torch.rand(2, 1, 28, 28, dtype=torch.float64)
    below, *above = model.capsules(images)
    for layer, expected in zip(model.layers, above, strict=True):
        votes = torch.einsum("bip,ijpd->bijd", below, layer.weight)
        below = agreement(votes, normalise="sources", prior=layer.prior, squash="exp").poses
        torch.testing.assert_close(below, expected, rtol=1e-10, atol=1e-12)
    loss = model(images, torch.tensor([1, 0])).scores.sum()
    for layer, gradient in zip(model.layers, torch.autograd.grad(loss, [each.prior for each in model.layers]), strict=True):
        assert gradient.abs().max() > 0, layer


@pytest.mark.parametrize("name", list_models())
def test_models_start_as_their_paper_does(name: str) -> None:
    torch.manual_seed(5)
    model = small(name)
    assert entry(name).init == model.config["init"] == STARTS[name]
    torch.manual_seed(5)
    twin = entry(name).build(**{key: value for key, value in model.config.items() if key not in ("name", "init")})
    initialise_(twin, STARTS[name])
    for (key, value), expected in zip(model.named_parameters(), twin.parameters(), strict=True):
        assert torch.equal(value, expected), key
