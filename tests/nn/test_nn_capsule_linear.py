"""Fully connected capsules: every routing, every kind of weight, against votes by explicit loops."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch
from nn_by_hand import OPTIONS, assert_same, draw, randomised, route_by_hand
from torch import nn

from capsella import routing as R
from capsella.functional import squash
from capsella.models import Model
from capsella.nn import CapsuleLinear, coupling_parameters
from capsella.routing import Routed
from capsella.testing import assert_parity

B, I, P, J, D = 2, 6, 4, 3, 8
STRUCTURES: dict[str, dict[str, Any]] = {
    "per-pair": {},
    "shared": {"shared": True},
    "rows": {"rows": 2},
    "shared-rows": {"shared": True, "rows": 4},
}
LEARNED = {
    "agreement": {},
    "uniform": {},
    "em": {"beta_a": (J,), "beta_u": (J,)},
    "trainable": {"couplings": (I, J)},
    "quadratic": {"couplings": (I, J)},
}


def make(routing: str, **options: Any) -> CapsuleLinear:
    return randomised(CapsuleLinear(I, P, J, D, routing=routing, **OPTIONS[routing], **options))


def test_every_registered_algorithm_is_covered() -> None:
    assert sorted(OPTIONS) == sorted(LEARNED) == R.names()


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("routing", R.names())
def test_layer_equals_votes_and_routing_by_hand(routing: str, structure: str) -> None:
    layer = make(routing, **STRUCTURES[structure])
    poses = draw(B, I, P)
    assert_same(layer(poses), route_by_hand(layer, poses))


def test_a_learned_prior_is_where_agreement_starts() -> None:
    layer = make("agreement", prior=True)
    poses = draw(B, I, P)
    assert layer.prior.shape == (I, J)
    assert_same(layer(poses), route_by_hand(layer, poses, prior=layer.prior))
    first = layer(poses, trace=True).trace[0]
    # over the sources, by OPTIONS.
    torch.testing.assert_close(first, layer.prior.softmax(dim=0).expand(B, I, J), rtol=1e-12, atol=0)


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("routing", R.names())
def test_parameters_are_the_stated_ones(routing: str, structure: str) -> None:
    options = STRUCTURES[structure]
    layer = make(routing, **options)
    rows, sources = options.get("rows", 1), 1 if options.get("shared") else I
    expected = {"weight": (sources, J, P // rows, D // rows), "bias": (J, D), **LEARNED[routing]}
    assert {name: tuple(p.shape) for name, p in layer.named_parameters()} == expected


@pytest.mark.parametrize("routing", R.names())
def test_without_a_bias_there_is_none(routing: str) -> None:
    layer = make(routing, bias=False)
    poses = draw(B, I, P)
    assert layer.bias is None
    assert "bias" not in layer.state_dict()
    assert_same(layer(poses), route_by_hand(layer, poses))


@pytest.mark.parametrize("routing", R.names())
def test_a_grid_is_read_row_by_row(routing: str) -> None:
    layer = make(routing)
    grid, activations = draw(B, 1, 3, 2, P), draw(B, 1, 3, 2, seed=2).sigmoid()
    row = torch.stack([grid[:, 0, x, n] for x in range(3) for n in range(2)], dim=1)
    alive = torch.stack([activations[:, 0, x, n] for x in range(3) for n in range(2)], dim=1)
    assert_same(layer(grid), layer(row))
    assert_same(layer(grid, activations), layer(row, alive))
    assert_same(layer(Routed(grid, activations)), layer(row, alive))


def test_em_takes_activations_from_what_is_below() -> None:
    layer = make("em")
    poses, low, other = draw(B, I, P), draw(B, I, seed=2).sigmoid(), draw(B, I, seed=3).sigmoid()
    below = Routed(poses, low)
    assert_same(layer(below), route_by_hand(layer, poses, low))
    assert_same(layer(below, other), route_by_hand(layer, poses, other))
    assert not torch.equal(layer(below).poses, layer(poses).poses)


@pytest.mark.parametrize("routing", R.names())
def test_layers_can_be_chained(routing: str) -> None:
    stack = nn.Sequential(make(routing), randomised(CapsuleLinear(J, D, 2, 5, routing=routing, **OPTIONS[routing]), seed=3))
    poses = draw(B, I, P)
    lower = stack[0](poses)
    expected = route_by_hand(stack[1], lower.poses, lower.activations)
    assert_same(stack(poses), expected)
    assert expected.poses.shape == (B, 2, 5)


@pytest.mark.parametrize("kind", ["sabour", "exp", "none"])
@pytest.mark.parametrize("routing", ["uniform", "trainable", "quadratic"])
def test_relu_stands_before_or_after_the_squash(routing: str, kind: str) -> None:
    poses = draw(B, I, P)
    plain = make(routing, squash=kind)
    raw = route_by_hand(plain, poses, squash="none").poses
    assert (raw < 0).any()
    expected = {
        "none": squash(raw, kind=kind),
        "before": squash(raw.clamp(min=0), kind=kind),
        "after": squash(raw, kind=kind).clamp(min=0),
    }
    for relu, above in expected.items():
        result = make(routing, squash=kind, relu=relu)(poses)
        torch.testing.assert_close(result.poses, above, rtol=1e-12, atol=1e-14, msg=relu)
        torch.testing.assert_close(result.activations, above.square().sum(dim=-1).sqrt(), rtol=1e-12, atol=1e-14, msg=relu)


@pytest.mark.parametrize(
    ("routing", "kind"), [("agreement", "sabour"), ("uniform", "sabour"), ("trainable", "exp"), ("quadratic", "sabour")]
)
def test_each_algorithm_keeps_its_own_squash_unless_told(routing: str, kind: str) -> None:
    poses = draw(B, I, P)
    assert_same(make(routing)(poses), make(routing, squash=kind)(poses))
    for other in {"sabour", "exp", "none"} - {kind}:
        layer = make(routing, squash=other)
        assert_same(layer(poses), route_by_hand(layer, poses, squash=other))
        assert not torch.equal(layer(poses).poses, make(routing)(poses).poses)


def test_trace_and_couplings_come_on_request() -> None:
    layer = randomised(CapsuleLinear(I, P, J, D, num_iters=4))
    poses = draw(B, I, P)
    result = layer(poses, trace=True)
    assert len(result.trace) == 4
    assert torch.equal(result.trace[-1], result.couplings)
    assert layer(poses).trace is None
    assert layer(poses, need_couplings=False).couplings is None


@pytest.mark.parametrize("routing", R.names())
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_results_have_the_dtype_of_the_layer(routing: str, dtype: torch.dtype) -> None:
    layer = make(routing).to(dtype)
    result = layer(draw(B, I, P).to(dtype))
    assert {result.poses.dtype, result.activations.dtype, result.couplings.dtype} == {dtype}
    assert result.poses.isfinite().all()


@pytest.mark.parametrize("routing", R.names())
def test_half_precision_comes_with_autocast(routing: str) -> None:
    layer = make(routing).float()
    with torch.autocast("cpu", torch.bfloat16):
        result = layer(draw(B, I, P).float())
    assert result.poses.dtype == torch.bfloat16
    exact = make(routing)(draw(B, I, P)).poses
    yardstick = make(routing).bfloat16()(draw(B, I, P).bfloat16()).poses
    assert_parity(result.poses, exact, yardstick)


@pytest.mark.parametrize("routing", R.names())
def test_a_layer_can_be_pickled(routing: str) -> None:
    layer, poses = make(routing), draw(B, I, P)
    assert torch.equal(pickle.loads(pickle.dumps(layer))(poses).poses, layer(poses).poses)


def test_quadratic_couplings_are_detached_and_listed_apart() -> None:
    layer = make("quadratic")
    layer(draw(B, I, P)).poses.sum().backward()
    assert layer.couplings.grad is None
    assert layer.weight.grad is not None
    assert layer.bias.grad is not None
    assert [id(p) for p in layer.coupling_parameters()] == [id(layer.couplings)]


@pytest.mark.parametrize("routing", ["agreement", "uniform", "em", "trainable"])
def test_other_learned_tensors_belong_to_the_main_optimiser(routing: str) -> None:
    layer = make(routing)
    result = layer(draw(B, I, P))
    (result.poses.sum() + result.activations.sum()).backward()
    assert list(layer.coupling_parameters()) == []
    for name, parameter in layer.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().max() > 0, name


def test_coupling_parameters_are_found_anywhere_in_a_model() -> None:
    class Net(Model):
        def __init__(self) -> None:
            super().__init__((1, 1, 1), J)
            self.layers = nn.Sequential(CapsuleLinear(I, P, 4, P), CapsuleLinear(4, P, J, D, routing="quadratic"))

    net = Net()
    apart = {id(net.layers[1].couplings)}
    assert {id(p) for p in coupling_parameters(net)} == {id(p) for p in net.coupling_parameters()} == apart
    assert {id(p) for p in net.main_parameters()} == {id(p) for p in net.parameters()} - apart


def test_a_fresh_layer_starts_as_documented() -> None:
    torch.manual_seed(0)
    layer = CapsuleLinear(400, P, J, D, prior=True)
    bound = 400**-0.5
    assert layer.weight.abs().max() <= bound
    assert layer.weight.abs().max() > bound * (1 - 20 / layer.weight.numel())
    assert bool((layer.bias == 0.1).all())
    assert bool((layer.prior == 0).all())


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"routing": "agrement"}, ValueError, "routing='agrement' is unknown; did you mean 'agreement'?"),
        ({"num_iter": 3}, TypeError, "option='num_iter' is unknown; did you mean 'num_iters'?"),
        ({"routing": "uniform", "num_iters": 3}, TypeError, "option='num_iters' is unknown"),
        ({"num_iters": 0}, ValueError, "num_iters=0 is too small; expected an int of at least 1"),
        ({"num_iters": 2.0}, TypeError, "num_iters=2.0 has type float"),
        ({"routing": "uniform", "normalise": "source"}, ValueError, "normalise='source' is unknown; did you mean 'sources'?"),
        ({"normalise": "source"}, ValueError, "normalise='source' is unknown; did you mean 'sources'?"),
        ({"squash": "sabor"}, ValueError, "squash='sabor' is unknown; did you mean 'sabour'?"),
        ({"routing": "em", "squash": "exp"}, ValueError, "squash='exp' does not go with routing='em'"),
        ({"relu": "befor", "routing": "uniform"}, ValueError, "relu='befor' is unknown; did you mean 'before'?"),
        ({"relu": "before"}, ValueError, "relu='before' does not go with routing='agreement'"),
        ({"prior": True, "routing": "uniform"}, ValueError, "prior=True does not go with routing='uniform'"),
        ({"prior": True, "routing": "em"}, ValueError, "prior=True does not go with routing='em'"),
        ({"in_capsules": 0}, ValueError, "in_capsules=0 is too small"),
        ({"out_dim": True}, TypeError, "out_dim=True has type bool"),
        ({"rows": 3}, ValueError, "in_dim=4 is no multiple of rows=3"),
        ({"rows": 4, "out_dim": 6}, ValueError, "out_dim=6 is no multiple of rows=4"),
        ({"impl": "fussed"}, ValueError, "impl='fussed' is unknown"),
    ],
)
def test_wrong_options_are_named_in_one_line(options: dict[str, Any], kind: type[Exception], message: str) -> None:
    sizes = {"in_capsules": I, "in_dim": P, "out_capsules": J, "out_dim": D}
    with pytest.raises(kind) as caught:
        CapsuleLinear(**(sizes | options))(torch.zeros(B, I, P))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("shape", "dtype", "kind", "message"),
    [
        ((B, I, P + 1), torch.float32, ValueError, "poses has shape [2, 6, 5]; expected [B, I=6, P=4]"),
        ((B, I + 1, P), torch.float32, ValueError, "poses has shape [2, 7, 4]; expected [B, I=6, P=4]"),
        ((I, P), torch.float32, ValueError, "poses has shape [6, 4]; expected [B, I=6, P=4]"),
        ((B, 1, 2, 2, P), torch.float32, ValueError, "poses has shape [2, 4, 4]; expected [B, I=6, P=4]"),
        ((B, I, P), torch.int64, TypeError, "poses has dtype torch.int64; expected a floating-point tensor"),
        ((B, I, P), torch.float64, TypeError, "weight has dtype torch.float32; expected torch.float64 as poses"),
    ],
)
def test_wrong_capsules_are_named_in_one_line(
    shape: tuple[int, ...], dtype: torch.dtype, kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind) as caught:
        CapsuleLinear(I, P, J, D)(torch.zeros(shape, dtype=dtype))
    assert str(caught.value) == message


def test_activations_of_the_wrong_shape_are_named() -> None:
    with pytest.raises(ValueError, match=r"^activations has shape \[2, 5\]; expected \[B=2, I=6\]$"):
        CapsuleLinear(I, P, J, D, routing="em")(torch.zeros(B, I, P), torch.zeros(B, 5))


def test_the_printed_layer_names_sizes_and_routing() -> None:
    text = repr(CapsuleLinear(I, P, J, D, num_iters=5, shared=True))
    assert text == "CapsuleLinear(6×4 -> 3×8, routing='agreement', bias=True, squash='sabour', shared=True, num_iters=5)"
