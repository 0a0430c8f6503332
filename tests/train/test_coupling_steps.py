"""yang2021's alternation: weights descend the loss, then couplings climb their objective on the same batch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tiny_runs import CLASSES, capsnet, differing, made_data, made_pairs, one_line, short_run, weights
from torch import Tensor, nn

from capsella.data import from_tensors
from capsella.functional import margin_loss
from capsella.models import Model, create_model
from capsella.nn import CapsuleLinear
from capsella.routing import quadratic_objective, quadratic_step
from capsella.train import TrainConfig
from capsella.train.couplings import Couplings
from capsella.train.step import Stepper

BATCH = 8
B_NAME = "layers.0.couplings"


def quadratic(norm: str = "l2") -> Model:
    return capsnet("quadratic_capsnet", norm=norm, reconstruction="none")


def votes_of(model: Model, images: Tensor) -> Tensor:
    """Return û_ij = u_i W_ij by hand, [B, I, J, D]."""
    with torch.no_grad():
        return torch.einsum("bip,ijpd->bijd", model.capsules(images)[0], model.layers[0].weight)


def alternate(
    model: Model, climb: Any, *, steps: int = 5, lr: float = 1e-3, weight_steps: int = 1, weight_decay: float = 0.0
) -> None:
    """Train by hand: Adam on everything but b, then ``climb(b, votes, labels)`` on the batch that the weights just saw."""
    b = model.layers[0].couplings.requires_grad_(False)
    optimiser = torch.optim.Adam(model.main_parameters(), lr=lr, weight_decay=weight_decay)
    batches = [batch for epoch in range(3) for batch in made_data().batches(BATCH, epoch=epoch, seed=0)]
    for step, (images, labels) in enumerate(batches[:steps]):
        optimiser.zero_grad()
        margin_loss(model(images).scores, labels).backward()
        optimiser.step()
        if (step + 1) % weight_steps == 0:
            with torch.no_grad():
                climb(b, votes_of(model, images), labels)


def assert_same(run: Any, model: Model) -> None:
    found = weights(run)
    for name, value in model.state_dict().items():
        torch.testing.assert_close(found[name], value, rtol=2e-5, atol=2e-6, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize(("norm", "l1_factor"), [("l2", 1), ("l1", 1), ("l1", 2)])
def test_ascent_is_the_papers_step_on_the_mean_over_the_batch(norm: str, l1_factor: float) -> None:
    rate, penalty = 0.5, 0.3

    def climb(b: Tensor, votes: Tensor, labels: Tensor) -> None:
        options = {"penalty": penalty, "norm": norm, "l1_factor": l1_factor}
        b.copy_(quadratic_step(votes, b, labels, rate=rate / len(votes), **options).clamp(-10, 10))

    model = quadratic(norm)
    alternate(model, climb)
    settings = {"coupling_optimiser": "ascent", "coupling_objective": "raw", "coupling_lr": rate, "coupling_penalty": penalty}
    run = short_run(quadratic(norm), coupling_l1_factor=l1_factor, **settings)
    assert_same(run, model)
    moved = (weights(run)[B_NAME] - 1).abs()
    assert float(moved.min()) > 1e-3  # every coupling left its start


def test_the_step_worked_out_by_hand_for_one_coupling() -> None:
    """One vote of 3 for the right class and one of 2 for a wrong one: b + γ/B · Σ_k δ_k · 2 b û² − 2 λ γ/B · b."""

    class One(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = CapsuleLinear(1, 1, 2, 1, routing="quadratic", bias=False)
            with torch.no_grad():
                self.layer.weight[0, :, 0, 0] = torch.tensor([3.0, 2.0])

        def forward(self, images: Tensor) -> Tensor:
            return self.layer(images.flatten(1)[:, None]).activations

    model = One()
    couplings = Couplings(
        model,
        TrainConfig(coupling_optimiser="ascent", coupling_objective="raw", coupling_lr=0.01, coupling_penalty=0.5, lr=0.01),
        num_classes=2,
    )
    images = torch.ones(4, 1, 1, 1)
    couplings.climb(images, torch.zeros(4, dtype=torch.int64), rate=0.01, batch_size=4, fabric=_Alone())
    # class 0: 2·9 per image, class 1: −2·4; the penalty's 2·0.5 is divided by the four images of the batch too.
    expected = torch.tensor([[1 + 0.01 * (18 - 0.25), 1 + 0.01 * (-8 - 0.25)]])
    torch.testing.assert_close(model.layer.couplings.detach(), expected)


class _Alone:
    """A fabric of one process."""

    world_size = 1

    def all_reduce(self, tensor: Tensor, reduce_op: str) -> Tensor:
        return tensor

    def autocast(self) -> Any:
        import contextlib

        return contextlib.nullcontext()


@pytest.mark.parametrize("norm", ["l2", "l1"])
@pytest.mark.parametrize("objective", ["raw", "squashed"])
def test_adam_is_torchs_on_the_objective(objective: str, norm: str) -> None:
    """As the authors' code: Adam on −F with a rate of its own, and no bound."""
    model = quadratic(norm)
    b = model.layers[0].couplings.requires_grad_(False)
    optimiser = torch.optim.Adam([b], lr=0.02, maximize=True)

    def climb(b: Tensor, votes: Tensor, labels: Tensor) -> None:
        with torch.enable_grad():
            leaf = b.clone().requires_grad_()
            quadratic_objective(votes, leaf, labels, penalty=0.1, norm=norm, on=objective).sum().backward()
        b.grad = leaf.grad
        optimiser.step()

    alternate(model, climb)
    run = short_run(quadratic(norm), coupling_objective=objective, coupling_lr=0.02, coupling_penalty=0.1)
    assert_same(run, model)
    assert float((weights(run)[B_NAME] - 1).abs().max()) > 0.05


def test_couplings_climb() -> None:
    """The objective of a batch is higher after their turn than before."""
    model = quadratic()
    images, labels = made_data().batch(range(20))
    before = quadratic_objective(votes_of(model, images), torch.ones_like(model.layers[0].couplings), labels, penalty=0.0)
    config = TrainConfig(coupling_objective="raw", coupling_lr=0.01, coupling_penalty=0.0)
    couplings = Couplings(model, config, CLASSES)
    couplings.climb(images, labels, rate=1e-3, batch_size=20, fabric=_Alone())
    after = quadratic_objective(votes_of(model, images), model.layers[0].couplings, labels, penalty=0.0)
    assert float(after.sum()) > float(before.sum())


def test_the_order_matters_to_this_test() -> None:
    """Couplings that climb with the weights from before the step end elsewhere: the equalities above can fail."""
    settings = {"coupling_optimiser": "ascent", "coupling_objective": "raw", "coupling_lr": 0.5, "lr": 0.05}
    run = short_run(quadratic(), coupling_penalty=0.0, **settings)
    model = quadratic()
    stale: list[Tensor] = []

    def climb(b: Tensor, votes: Tensor, labels: Tensor) -> None:
        stale.append(quadratic_step(votes, b, labels, rate=0.5 / len(votes), penalty=0.0))
        b.copy_(stale[-1])

    alternate(model, climb, lr=0.05)
    assert_same(run, model)
    early = quadratic()
    images, labels = next(iter(made_data().batches(BATCH, seed=0)))
    first = short_run(quadratic(), coupling_penalty=0.0, steps=1, **settings)
    before_the_step = quadratic_step(votes_of(early, images), torch.ones_like(stale[0]), labels, rate=0.5 / BATCH, penalty=0.0)
    torch.testing.assert_close(weights(first)[B_NAME], stale[0], rtol=1e-5, atol=1e-6)
    assert not torch.allclose(weights(first)[B_NAME], before_the_step, rtol=1e-3)


@pytest.mark.parametrize(
    ("weight_steps", "coupling_steps", "expected"),
    [
        (1, 1, "WbWbWbWbWb"),
        (2, 1, "WWbWWbW"),
        (1, 3, "WbbbWbbbWbbbWbbbWbbb"),
        (3, 2, "WWWbbWW"),
        (1, 0, "WWWWW"),
        (9, 1, "WWWWW"),
    ],
)
def test_weights_and_couplings_take_turns(
    weight_steps: int, coupling_steps: int, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[str] = []
    batches: list[Tensor] = []
    step, climb, move = Stepper.__call__, Couplings.climb, Couplings._move

    def note_step(self: Stepper, batch: Any, **options: Any) -> None:
        taken.append("W")
        batches.append(batch.images)
        step(self, batch, **options)

    def note_climb(self: Couplings, images: Tensor, labels: Tensor, **options: Any) -> None:
        assert torch.equal(images, batches[-1])  # the batch that the weights just saw
        climb(self, images, labels, **options)

    monkeypatch.setattr(Stepper, "__call__", note_step)
    monkeypatch.setattr(Couplings, "climb", note_climb)
    monkeypatch.setattr(Couplings, "_move", lambda self, *args: (taken.append("b"), move(self, *args)))
    short_run(quadratic(), weight_steps=weight_steps, coupling_steps=coupling_steps)
    assert "".join(taken) == expected


def test_several_steps_of_a_turn_are_each_worked_out_anew() -> None:
    rate = 0.5

    def climb(b: Tensor, votes: Tensor, labels: Tensor) -> None:
        for _ in range(3):
            b.copy_(quadratic_step(votes, b, labels, rate=rate / len(votes), penalty=0.1))

    model = quadratic()
    alternate(model, climb, weight_steps=2)
    settings = {"coupling_optimiser": "ascent", "coupling_objective": "raw", "coupling_lr": rate, "coupling_penalty": 0.1}
    assert_same(short_run(quadratic(), coupling_steps=3, weight_steps=2, **settings), model)


def test_couplings_are_outside_the_main_optimiser() -> None:
    """Weight decay would shrink them, were they in it."""
    model = quadratic()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    run = short_run(model, coupling_steps=0, weight_decay=0.5, lr=0.1)
    assert B_NAME not in differing(weights(run), before)
    assert set(differing(weights(run), before)) == set(before) - {B_NAME}


def test_weights_get_the_same_step_whether_couplings_move_or_not() -> None:
    moving, resting = (short_run(quadratic(), coupling_steps=n, steps=1, coupling_lr=0.5) for n in (1, 0))
    assert differing(weights(moving), weights(resting)) == [B_NAME]


def test_couplings_can_be_trained_again_after_a_run() -> None:
    model = quadratic()
    short_run(model)
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert all(parameter.grad is None for parameter in model.coupling_parameters())


@pytest.mark.parametrize("bound", [10.0, 1.5])
def test_ascent_stays_within_its_bound(bound: float) -> None:
    settings = {"coupling_optimiser": "ascent", "coupling_objective": "raw", "coupling_lr": 1e9, "coupling_bound": bound}
    b = weights(short_run(quadratic(), steps=1, coupling_penalty=0.0, **settings))[B_NAME]
    assert float(b.abs().max()) == bound
    assert {float(b.min()), float(b.max())} == {-bound, bound}


def test_the_usual_bound_is_10() -> None:
    assert TrainConfig().coupling_bound == 10


def test_a_fifth_of_the_weights_rate_is_the_default() -> None:
    left, given = short_run(quadratic(), lr=0.01), short_run(quadratic(), lr=0.01, coupling_lr=0.002)
    for name, value in weights(left).items():
        torch.testing.assert_close(value, weights(given)[name], rtol=1e-6, atol=1e-8)


def climbed(rate: float, **settings: Any) -> float:
    """Return how far one step of Adam moves a coupling: by its rate, whatever the slope."""
    model = quadratic()
    couplings = Couplings(model, TrainConfig(coupling_penalty=0.0, **settings), CLASSES)
    couplings.climb(*made_data().batch(range(8)), rate=rate, batch_size=8, fabric=_Alone())
    return float((model.layers[0].couplings - 1).abs().max())


def test_the_couplings_rate_follows_the_weights_schedule() -> None:
    assert climbed(1e-3) == pytest.approx(2e-4, rel=1e-2)
    assert climbed(5e-4) == pytest.approx(1e-4, rel=1e-2)
    assert climbed(5e-4, coupling_lr=0.1) == pytest.approx(0.05, rel=1e-2)


def test_the_couplings_rate_has_the_schedules_floor_but_never_rises_above_its_start() -> None:
    assert climbed(1e-3, schedule="exponential", lr_floor=5e-4) == pytest.approx(2e-4, rel=1e-2)
    assert climbed(5e-4, schedule="exponential", lr_floor=1.5e-4) == pytest.approx(1.5e-4, rel=1e-2)
    assert climbed(5e-4, schedule="exponential", lr_floor=1e-5) == pytest.approx(1e-4, rel=1e-2)


def test_two_digits_pull_two_classes_up() -> None:
    torch.manual_seed(1)
    sizes = {"kernel_size": 9, "channels": 2, "types": 1, "dim": 4, "class_dim": 4, "reconstruction": "none"}
    model = create_model("quadratic_capsnet", image_size=36, trunk_stride=2, **sizes)
    batch = made_pairs().batch(range(8))
    expected = quadratic_step(votes_of(model, batch.images), model.layers[0].couplings, batch.labels, rate=0.1 / 8, penalty=0.0)
    settings = {"coupling_optimiser": "ascent", "coupling_objective": "raw", "coupling_penalty": 0.0, "coupling_lr": 0.1}
    couplings = Couplings(model, TrainConfig(**settings), 10)
    couplings.climb(batch.images, batch.labels, rate=1e-3, batch_size=8, fabric=_Alone())
    torch.testing.assert_close(model.layers[0].couplings.detach(), expected.detach(), rtol=1e-5, atol=1e-6)
    assert float((expected - 1).abs().max()) > 1e-5


def stack(*layers: tuple[int, int, str]) -> nn.Module:
    """Build capsules of four values on the pixels: (I, J, routing) for each layer."""
    made = [CapsuleLinear(below, 4, above, 4, routing=routing) for below, above, routing in layers]

    class Stack(nn.Module):
        scores_are = "lengths"

        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(made)

        def forward(self, images: Tensor) -> Tensor:
            below: Any = images.reshape(len(images), -1, 4)
            for layer in self.layers:
                below = layer(below)
            return below.activations

    return Stack()


@pytest.mark.parametrize(
    "layers",
    [
        [(36, 7, "quadratic"), (7, CLASSES, "agreement")],
        [(36, 7, "quadratic"), (7, 7, "agreement"), (7, CLASSES, "quadratic")],
        [(36, CLASSES, "quadratic"), (CLASSES, CLASSES, "agreement")],  # as many as classes, and yet not about them
        [(36, 7, "quadratic")],
        [(36, 6, "quadratic"), (6, 7, "quadratic")],
    ],
)
def test_quadratic_routing_that_does_not_reach_the_classes_is_refused(layers: list[tuple[int, int, str]]) -> None:
    with pytest.raises(ValueError, match=r"^routing='quadratic' has .* expected it in the last layers alone") as caught:
        short_run(stack(*layers))
    assert f"with {CLASSES} capsules" in one_line(caught.value)


def by_hand(model: nn.Module, images: Tensor, labels: Tensor, b: list[Tensor], objective: str, penalty: float) -> Tensor:
    """Return Σ_j F_j of a stack of quadratic layers as a function of all couplings, sum by sum."""
    below = images.reshape(len(images), -1, 4)
    for layer, couplings in zip(model.layers, b, strict=True):
        raw = torch.einsum("ij,bip,ijpd->bjd", couplings, below, layer.weight.detach())
        biased = raw if layer.bias is None else raw + layer.bias.detach()
        below = biased * biased.norm(dim=-1, keepdim=True) / (1 + biased.square().sum(dim=-1, keepdim=True))
    capsules = raw if objective == "raw" else raw * raw.norm(dim=-1, keepdim=True) / (1 + raw.square().sum(-1, keepdim=True))
    signs = torch.full((len(images), CLASSES), -1.0, dtype=images.dtype)
    signs[torch.arange(len(images)), labels] = 1.0
    return (signs * capsules.square().sum(dim=-1)).sum() - penalty * sum(each.square().sum() for each in b)


@pytest.mark.parametrize("objective", ["raw", "squashed"])
def test_couplings_below_climb_the_classes_objective_by_the_chain_rule(objective: str) -> None:
    torch.manual_seed(0)
    model = stack((36, 7, "quadratic"), (7, 5, "quadratic"), (5, CLASSES, "quadratic")).double()
    images, labels = made_data().batch(range(12))
    images = images.double()
    settings = {"coupling_optimiser": "ascent", "coupling_lr": 0.5, "lr": 0.5, "coupling_penalty": 0.3}
    couplings = Couplings(model, TrainConfig(coupling_objective=objective, **settings), CLASSES)
    start = [layer.couplings.detach().clone().requires_grad_() for layer in model.layers]
    slopes = torch.autograd.grad(by_hand(model, images, labels, start, objective, 0.3), start)
    couplings.climb(images, labels, rate=0.5, batch_size=12, fabric=_Alone())
    for layer, slope in zip(model.layers, slopes, strict=True):
        torch.testing.assert_close(layer.couplings.detach(), 1 + 0.5 / 12 * slope, rtol=1e-9, atol=1e-12)
        assert float(slope.abs().max()) > 1e-6
    # nothing else has moved or kept a gradient.
    assert all(parameter.grad is None for parameter in model.parameters())


def test_quadratic_layers_that_do_not_follow_each_other_are_refused() -> None:
    class Skips(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = CapsuleLinear(36, 4, 5, 4, routing="quadratic")
            self.last = CapsuleLinear(5, 4, CLASSES, 4, routing="quadratic")

        def forward(self, images: Tensor) -> Tensor:
            return self.last(2 * self.first(images.reshape(len(images), -1, 4)).poses).activations

    couplings = Couplings(Skips(), TrainConfig(), CLASSES)
    images, labels = torch.rand(4, 1, 12, 12), torch.zeros(4, dtype=torch.int64)
    with pytest.raises(ValueError, match=r"^quadratic layers must each take what the one below gives") as caught:
        couplings.climb(images, labels, rate=0.1, batch_size=4, fabric=_Alone())
    one_line(caught.value)


def test_a_process_without_an_image_of_a_batch_climbs_nothing_but_the_penalty() -> None:
    model = quadratic()
    settings = {"coupling_optimiser": "ascent", "coupling_lr": 0.1, "lr": 0.1, "coupling_penalty": 0.5}
    couplings = Couplings(model, TrainConfig(**settings), CLASSES)
    images, labels = made_data().batch(range(1))
    couplings.climb(images[:0], labels[:0], rate=0.1, batch_size=1, fabric=_Alone())
    torch.testing.assert_close(model.layers[0].couplings.detach(), torch.full_like(model.layers[0].couplings, 0.9))


def test_a_deep_net_of_quadratic_layers_trains() -> None:
    options = {"depth": 4, "routing": "quadratic", "channels": 4, "types": 1, "width": 5, "reconstruction": "none"}
    torch.manual_seed(0)
    model = create_model("deep_capsnet", image_size=28, num_classes=CLASSES, init="yang2021", **options)
    data = from_tensors(torch.rand(8, 1, 28, 28), torch.arange(8) % CLASSES)
    short_run(model, data)
    assert len(model.layers) == 3
    for layer in model.layers:
        assert bool((layer.couplings != 1).any())


def test_quadratic_routing_in_the_last_layer_of_ones_own_net_trains() -> None:
    model = stack((36, 7, "agreement"), (7, CLASSES, "quadratic"))
    before = model.layers[1].couplings.detach().clone()
    short_run(model, coupling_lr=0.1)
    assert not torch.equal(model.layers[1].couplings, before)


def test_a_module_of_ones_own_may_have_a_config_that_is_no_dict() -> None:
    model = stack((36, CLASSES, "quadratic"))
    model.config = TrainConfig()  # type: ignore[assignment]
    short_run(model)


def test_a_net_without_quadratic_routing_has_no_turns() -> None:
    couplings = Couplings(capsnet(), TrainConfig(), CLASSES)
    assert not couplings
    assert not any(couplings.due(step) for step in range(5))


def climbed_once(model: Model, *, compiles: bool) -> list[Tensor]:
    """Return the couplings after two turns of whole batches and one of a smaller batch."""
    settings = {"batch_size": 8, "coupling_optimiser": "ascent", "coupling_lr": 100.0}
    couplings = Couplings(model, TrainConfig(**settings), CLASSES, compiles=compiles)
    rng = torch.Generator().manual_seed(0)
    for count in (8, 8, 3):
        images, labels = torch.rand(count, *model.image_shape, generator=rng), torch.arange(count) % CLASSES
        couplings.climb(images, labels, rate=1e-3, batch_size=count, fabric=_Alone())
    return [parameter.detach().clone() for parameter in couplings.parameters]


@pytest.mark.parametrize("depth", [2, 3])
def test_a_turn_that_is_compiled_is_the_plain_one(depth: int, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    real = torch.compile

    def traced(function: Any, **options: Any) -> Any:
        # traced as a GPU's compiler would, forward and back, and run as it was written.
        made = real(function, backend="aot_eager", fullgraph=True, **options)

        def run(*given: Any) -> Any:
            sizes.append(len(given[0]))
            return made(*given)

        return run

    monkeypatch.setattr(torch, "compile", traced)
    options = {"routing": "quadratic", "channels": 4, "types": 2, "depth": depth, "trunk_stride": 2, "reconstruction": "none"}
    found = []
    for compiles in (False, True):
        torch.manual_seed(0)
        model = create_model("deep_capsnet", image_size=28, num_classes=CLASSES, **options)
        found.append(climbed_once(model, compiles=compiles))
    # both parts of both whole batches, and nothing of the smaller one.
    assert sizes == [8] * 4
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
        assert float((one - 1).abs().max()) > 1e-3
