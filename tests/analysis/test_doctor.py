"""Nets with a known disease are diagnosed right, and a healthy one is not called sick."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import capsella
from capsella.analysis import SYMPTOMS, Diagnosis, ForeignLayers, Seen, diagnose, gradient_norms, routing_dynamics, seen_layer
from capsella.analysis.doctor import FIGURES
from capsella.analysis.symptoms import condition, find_symptoms
from capsella.models import Prediction
from capsella.nn import CapsuleLinear
from capsella.report import doctor_page
from capsella.train import fit


class Net(nn.Module):
    """Reads images [B, 1, I, P] as I capsules of P values, and routes them."""

    scores_are = "lengths"

    def __init__(self, *layers: CapsuleLinear) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, images: Tensor) -> Prediction:
        below: Any = images[:, 0]
        for layer in self.layers:
            below = layer(below)
        return Prediction(below.activations, below.poses)


def some_images(number: int = 40, *, capsules: int = 6, dim: int = 4) -> Tensor:
    return torch.randn(number, 1, capsules, dim, generator=torch.Generator().manual_seed(0))


def keys(found: Diagnosis) -> set[tuple[str, int | None]]:
    return {(symptom.key, symptom.layer) for symptom in found.symptoms if not symptom.is_note}


def healthy() -> tuple[Net, Tensor, Tensor]:
    """A net whose couplings choose: without them the wrong capsule would be the longest.

    Three capsules vote by numbers. Of an image of class 0 the first two vote 10 and 10 for capsule 0 and the third −12, and the
    first votes 9 for capsule 1: the sums are 8 and 9. Routing sends the first two to capsule 0 and the third away.
    """
    layer = CapsuleLinear(3, 2, 2, 1, routing="agreement", bias=True)
    right, wrong = torch.tensor([10.0, 10.0, -12.0]), torch.tensor([9.0, 0.0, 0.0])
    with torch.no_grad():
        layer.weight[:, :, 0, 0] = torch.stack([right, wrong], dim=1)
        layer.weight[:, :, 1, 0] = torch.stack([wrong, right], dim=1)
        layer.bias.fill_(1.0)
    targets = torch.arange(40) % 2
    images = torch.zeros(40, 1, 3, 2)
    images[torch.arange(40), 0, :, targets] = 1.0
    return Net(layer), images, targets


def test_a_healthy_net_is_not_called_sick() -> None:
    net, images, targets = healthy()
    found = diagnose(net, images, targets, views={})
    assert keys(found) == set()
    assert found.is_healthy
    assert "no symptom was found" in found.text()
    assert found.record["accuracy"] == 1.0
    assert found.record["routing_matters"]["uniform"] == 0.0
    assert 0.9 < found.record["layers"][0]["dyr"] <= 1


class Pooled(Net):
    """Reads the sums over two channels, which hardly change with the view."""

    def forward(self, images: Tensor) -> Prediction:
        sums = images.sum(dim=(2, 3)) / 29  # pixels of a disc
        return super().forward(sums[:, None, None].expand(-1, 1, 3, 2))


def discs(targets: Tensor) -> Tensor:
    """Draw a disc in the middle of the channel of each image's class."""
    place = torch.arange(17) - 8
    disc = (place[:, None] ** 2 + place**2 <= 9).float()
    images = torch.zeros(len(targets), 2, 17, 17)
    images[torch.arange(len(targets)), targets] = disc
    return images


def test_a_healthy_net_is_not_called_sick_from_any_view_either() -> None:
    net, _, targets = healthy()
    with torch.no_grad():
        # the wrong capsule is short, so that something can be lost.
        net.layers[0].bias.fill_(0.1)
    found = diagnose(Pooled(*net.layers), discs(targets), targets)
    assert keys(found) == set()
    assert found.record["views_skipped"] is None
    for layer in found.record["layers"]:
        assert set(layer["viewpoint"]) == {"rotation", "translation", "shear", "scale"}
    upper = found.record["layers"][-1]["viewpoint"]
    assert min(row["correlation"] for rows in upper.values() for row in rows if row["is_mild"]) > 0.95
    # and that says something: by chance it would be less.
    assert max(row["chance"] for rows in upper.values() for row in rows if row["is_mild"]) < 0.9


def test_couplings_that_can_be_left_out_are_found() -> None:
    net, images, targets = healthy()
    with torch.no_grad():
        # all three agree: whichever way they are routed, the sum is right.
        net.layers[0].weight[:] = torch.tensor([[[10.0], [0.0]], [[0.0], [10.0]]])
    found = diagnose(net, images, targets, views={})
    (idle,) = [symptom for symptom in found.symptoms if symptom.key == "idle"]
    assert idle.says == (
        "its couplings can be left out: 100.0% right with them, 100.0% with uniform ones (100.0% with those of other images)"
    )
    assert (idle.figure, idle.is_note, idle.layer) == (0.0, False, None)
    # it is said once.
    assert found.text().count("with those of other images") == 1


def test_what_other_couplings_do_is_said_where_they_matter_too() -> None:
    net, images, targets = healthy()
    found = diagnose(net, images, targets, views={})
    assert "idle" not in {symptom.key for symptom in found.symptoms}
    swaps = found.record["routing_matters"]
    expected = f"couplings: 100.0% of 40 images right with its own, 0.0% with uniform ones, {swaps['other']:.1%} with those of"
    assert expected in found.text()
    assert "couplings:" not in diagnose(net, images, views={}).text()


@pytest.mark.parametrize(("silent", "is_found"), [(0.0, True), (0.02, False)])
def test_primary_capsules_that_are_always_active_are_noted(silent: float, is_found: bool) -> None:
    images = some_images(100)
    images = images / images.norm(dim=-1, keepdim=True)
    # one of the six is away in some of the images.
    images[: round(600 * silent), 0, 0] = 0
    found = diagnose(Net(CapsuleLinear(6, 4, 5, 4)), images, views={})
    notes = [symptom for symptom in found.symptoms if symptom.key == "always"]
    assert len(notes) == is_found
    assert all(note.is_note and note.layer == 1 for note in notes)
    assert ("100% of the primary capsules are active in an image" in found.text()) == is_found


def test_perfect_routing_has_a_rate_of_one() -> None:
    # each class has a value of its own, and each upper capsule reads one of them: couplings are 0 and 1.
    layer = CapsuleLinear(2, 2, 2, 1, routing="agreement", bias=True)
    with torch.no_grad():
        layer.weight[:] = 100 * torch.eye(2)[None, :, :, None]
        layer.bias.fill_(1.0)
    images = torch.eye(2)[torch.arange(40) % 2][:, None, None].expand(40, 1, 2, 2)
    found = diagnose(Net(layer), images.contiguous(), torch.arange(40) % 2, views={}).record["layers"][0]
    assert (found["dyr"], found["dys"]) == (pytest.approx(1), pytest.approx(2))


def test_a_dead_capsule_is_found() -> None:
    net = Net(CapsuleLinear(6, 4, 5, 4, routing="uniform", bias=False), CapsuleLinear(5, 4, 3, 4, bias=True))
    with torch.no_grad():
        net.layers[0].weight.mul_(3)[:, 2] = 0
    found = diagnose(net, some_images(), views={})
    (dead,) = [symptom for symptom in found.symptoms if symptom.key == "dead"]
    assert (dead.layer, dead.figure) == (2, 0.2)
    assert dead.says == "layer 2: 1 of 5 capsules is dead"
    assert "bias=True" in " ".join(dead.tries)
    assert dead.link == "docs/doctor.md#dead-capsules"
    assert found.record["layers"][1]["dead"] == [False, False, True, False, False]
    assert found.record["layers"][0]["live_targets"] == 4
    assert found.summary()["dead"] == 0.2


def test_couplings_that_never_change_are_static() -> None:
    layer = CapsuleLinear(6, 4, 5, 4, prior=True)
    with torch.no_grad():
        # what was learned before decides, whatever the votes are.
        layer.prior[torch.arange(6), torch.arange(6) % 5] = 50.0
    found = diagnose(Net(layer), some_images(), views={})
    (static,) = [symptom for symptom in found.symptoms if symptom.key == "static"]
    assert not static.is_note
    assert static.figure == pytest.approx(0, abs=1e-6)
    assert static.says == "layer 1: routing is static (0.00 of 5 live targets)"


def test_over_the_sources_upper_capsules_choose_among_lower_ones() -> None:
    # each of three upper capsules reads the lower one that its prior names, of six.
    fixed = CapsuleLinear(6, 4, 3, 4, prior=True, normalise="sources")
    with torch.no_grad():
        fixed.prior[torch.tensor([0, 0, 5]), torch.arange(3)] = 50.0
    found = diagnose(Net(fixed), some_images(), views={})
    row = found.record["layers"][0]
    assert (row["normalise"], row["targets"], row["live_targets"]) == ("sources", 6, 6)
    # over the targets the first lower capsule would be undecided between two.
    assert row["entropy"] == pytest.approx(0, abs=1e-6)
    assert row["change"] == [pytest.approx(0, abs=1e-6)] * 2
    (static,) = [symptom for symptom in found.symptoms if symptom.key == "static"]
    assert static.says == "layer 1: routing is static (0.00 of 6 live sources)"
    assert found.record["layers"][1]["normalise"] is None

    alike = CapsuleLinear(6, 4, 3, 4, normalise="sources")
    with torch.no_grad():
        alike.weight.mul_(1e-3)
    found = diagnose(Net(alike), some_images(), views={})
    assert found.record["layers"][0]["entropy"] == pytest.approx(1, abs=1e-6)
    (uniform,) = [symptom for symptom in found.symptoms if symptom.key == "uniform"]
    assert uniform.says == "layer 1: every capsule above is coupled alike to all 6 sources; nothing is routed"

    single = diagnose(Net(CapsuleLinear(6, 4, 1, 4), CapsuleLinear(1, 4, 3, 4, normalise="sources")), some_images(), views={})
    assert "layer 1: one target, among which there is nothing to choose" in single.text()
    assert "layer 2: one source, among which there is nothing to choose" in single.text()
    assert "of 6 sources" in doctor_page(found.as_dict())


def test_couplings_among_a_few_targets_are_not_static() -> None:
    # each image chooses one of three of ten.
    couplings = torch.eye(10)[torch.arange(60) % 3][:, None].expand(60, 6, 10)

    def read(module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> Seen:
        poses = torch.ones(len(output), 10, 2)
        return seen_layer(inputs[0].transpose(1, 2), poses, couplings=couplings[: len(output)])

    found = diagnose(Foreign(), some_images(60), adapter=ForeignLayers({"caps": read}), views={})
    assert found.record["layers"][0]["dys"] == pytest.approx(10 * 0.3 * (2 / 9) ** 0.5 / 0.3)
    assert ("static", 1) not in keys(found)


@pytest.mark.parametrize("routing", ["trainable", "quadratic", "uniform"])
def test_what_is_fixed_by_design_is_no_disease(routing: str) -> None:
    found = diagnose(
        Net(CapsuleLinear(6, 4, 5, 4, routing=routing, bias=True)), some_images(), torch.zeros(40).long(), views={}
    )
    assert keys(found) & {("static", 1), ("uniform", 1), ("idle", None)} == set()
    (note,) = [symptom for symptom in found.symptoms if symptom.key in ("static", "uniform")]
    assert "by design" in note.says
    # nothing is to be mended; whoever wants choices takes another routing.
    (advice,) = note.tries
    assert "routing='agreement'" in advice
    assert f"routing='{routing}'" not in advice


def test_votes_too_short_to_agree_leave_uniform_couplings() -> None:
    layer = CapsuleLinear(6, 4, 5, 4, bias=True)
    with torch.no_grad():
        layer.weight.mul_(1e-3)
    found = diagnose(Net(layer), some_images(), views={})
    assert ("uniform", 1) in keys(found)
    assert ("static", 1) not in keys(found)
    assert "coupled alike to all 5 targets; nothing is routed" in found.text()


def test_a_net_that_is_no_number_is_said_to_be_broken_and_nothing_else() -> None:
    net = Net(CapsuleLinear(6, 4, 5, 4))
    with torch.no_grad():
        net.layers[0].weight.fill_(float("nan"))
    found = diagnose(net, some_images(), torch.zeros(40).long(), views={})
    assert keys(found) == {("broken", None)}
    # a condition on any other figure fails, since there is none.
    assert found.summary() == {"non_finite": 1.0}
    # JSON has no word for what its figures are.
    record = json.loads(json.dumps(found.as_dict(), allow_nan=False))
    assert record["layers"][1]["cns"] is None
    assert record["pictures"] is None
    assert "couplings:" not in found.text()


def test_layers_are_examined_in_the_order_in_which_they_run_and_as_often() -> None:
    class Backwards(Net):
        def forward(self, images: Tensor) -> Prediction:
            below = self.layers[1](images[:, 0])
            for _ in range(2):
                below = self.layers[0](below)
            return Prediction(below.activations, below.poses)

    net = Backwards(CapsuleLinear(5, 4, 5, 4), CapsuleLinear(6, 4, 5, 4))
    found = diagnose(net, some_images(), torch.zeros(40).long(), views={}).record["layers"]
    assert [layer["name"] for layer in found] == ["primary capsules", "layers.1", "layers.0", "layers.0"]
    assert [layer["capsules"] for layer in found] == [6, 5, 5, 5]
    assert all(layer["gradient"] > 0 for layer in found)


def test_gradients_into_a_capsule_and_out_of_it_are_those_of_its_blocks() -> None:
    net, images, targets = healthy()
    found = diagnose(net, images, targets).record["layers"]
    reached = gradient_norms(net, images, targets)
    assert found[0]["outgoing_gradients"] == pytest.approx(reached[0].weights.mean(dim=1).tolist(), rel=1e-2)
    assert found[1]["weight_gradients"] == pytest.approx(reached[0].weights.mean(dim=0).tolist(), rel=1e-2)
    # nothing leaves the last layer.
    assert found[-1]["outgoing_gradients"] is None


def test_a_network_may_return_what_is_no_score() -> None:
    class Bare(Net):
        def forward(self, images: Tensor) -> Any:
            return self.layers[0](images[:, 0])

    found = diagnose(Bare(CapsuleLinear(6, 4, 5, 4)), some_images(), views={})
    assert len(found.trees) == 2


def test_random_numbers_are_left_alone() -> None:
    net = Net(CapsuleLinear(6, 4, 5, 4))
    before = torch.get_rng_state()
    diagnose(net, some_images(), torch.zeros(40).long(), views={"rotation": (10,)})
    assert torch.equal(torch.get_rng_state(), before)


def test_one_class_is_no_starvation() -> None:
    net, images, _ = healthy()
    found = diagnose(net, images, torch.zeros(40).long(), views={})
    assert found.record["layers"][-1]["starved"] is None


@pytest.mark.parametrize(("bias", "is_blind"), [(False, True), (True, False)])
def test_a_net_that_cannot_tell_x_from_its_negative_is_called_blind(bias: bool, is_blind: bool) -> None:
    found = diagnose(Net(CapsuleLinear(6, 4, 5, 4, bias=bias)), some_images(), views={})
    assert (("blind", None) in keys(found)) is is_blind
    assert ("cannot tell x from −x" in found.text()) is is_blind


class Headed(nn.Module):
    """Capsules without a bias below a dense layer that reads poses, or lengths."""

    def __init__(self, reads: str) -> None:
        super().__init__()
        self.reads, self.caps = reads, CapsuleLinear(6, 4, 5, 4, bias=False)
        self.head = nn.Linear(20 if reads == "poses" else 5, 3)

    def forward(self, images: Tensor) -> Tensor:
        routed = self.caps(images[:, 0])
        return self.head(getattr(routed, self.reads).flatten(1))  # type: ignore[no-any-return]


@pytest.mark.parametrize(("reads", "is_blind"), [("poses", False), ("activations", True)])
def test_blindness_is_judged_by_the_scores_of_the_network(reads: str, is_blind: bool) -> None:
    found = diagnose(Headed(reads), some_images(), views={})
    assert (("blind", None) in keys(found)) == is_blind
    assert found.record["negation_by"] == "scores"
    assert (found.record["negation_gap"] < 1e-6) == is_blind
    # its capsules answer alike in any case.
    assert found.record["layers"][-1]["negation_gap"] == pytest.approx(0, abs=1e-6)
    assert ("its scores are the same" in found.text()) == is_blind


class Other(Net):
    """Returns something else than scores."""

    def __init__(self, wrap: Any) -> None:
        super().__init__(CapsuleLinear(6, 4, 5, 4, bias=False))
        self.wrap = wrap

    def forward(self, images: Tensor) -> Any:
        return self.wrap(self.layers[0](images[:, 0]))


OTHERS = {
    "tuple": lambda routed: (routed.activations, routed.poses),
    "dict": lambda routed: {"scores": routed.activations},
    "Routed": lambda routed: routed,
}


@pytest.mark.parametrize("kind", OTHERS)
def test_a_network_that_returns_something_else_is_one_line_where_there_are_classes(kind: str) -> None:
    with pytest.raises(TypeError, match=rf"^model returned a {kind}; with targets expected a Prediction or a tensor") as caught:
        diagnose(Other(OTHERS[kind]), some_images(), torch.zeros(40).long(), views={})
    assert "\n" not in str(caught.value)
    assert "wrap it in a module that does, or leave targets out" in str(caught.value)
    # without them all is well, and its last activations speak for it.
    found = diagnose(Other(OTHERS[kind]), some_images(), views={})
    assert found.record["negation_by"] == "activations"
    assert "its last activations are the same" in found.text()


def test_scores_of_another_shape_are_one_line() -> None:
    net = Other(lambda routed: routed.poses)
    with pytest.raises(ValueError, match=r"^model returned scores \[40, 5, 4\]; with targets expected \[B=40, J\]: wrap it"):
        diagnose(net, some_images(), torch.zeros(40).long(), views={})


class Rows(Net):
    """Takes capsules [B, I, P] as they are."""

    def forward(self, images: Tensor) -> Prediction:
        return super().forward(images[:, None])


def test_inputs_that_are_no_images_are_examined_without_views() -> None:
    net, images, targets = Rows(CapsuleLinear(6, 4, 5, 4, bias=True)), some_images()[:, 0], torch.arange(40) % 5
    found = diagnose(net, images, targets, sweep=True)
    assert found.record["views_skipped"] == "inputs [B, 6, 4] are no images [B, C, H, W]"
    assert "views: not looked at, inputs [B, 6, 4] are no images [B, C, H, W]" in found.text()
    assert all(layer["viewpoint"] == {} for layer in found.record["layers"])
    expected = diagnose(Net(*net.layers), images[:, None], targets, views={}, sweep=True).record
    for one, other in zip(found.record["layers"], expected["layers"], strict=True):
        assert {**one, "cost": None} == {**other, "cost": None}
    assert found.record["routing_matters"] == expected["routing_matters"]
    pictures = found.as_dict()["pictures"]
    assert len(pictures["trees"]) == 2
    assert pictures["images"] is pictures["view"] is None
    assert diagnose(net, images, views={}).record["views_skipped"] is None
    # who asks for views is told what they need.
    with pytest.raises(ValueError, match=r"^images has shape \[40, 6, 4\]; expected \[B, C, H, W\]"):
        diagnose(net, images, views={"rotation": (5,)})


def test_sources_count_as_the_layer_above_saw_them() -> None:
    # a convolution sees capsules in another order than the layer below has them: the dead one is first, and then last.
    couplings = some_images(20, capsules=4, dim=2)[:, 0].softmax(dim=-1)
    middle = torch.tensor([[[0.0], [1.0], [1.0], [1.0]]]).expand(20, 4, 1)
    layers = {
        "0": seen_layer(torch.ones(20, 2, 1), middle, couplings=torch.full((20, 2, 4), 0.25)),
        "1": seen_layer(middle.flip(1), torch.ones(20, 2, 1), couplings=couplings),
    }
    readers = {name: lambda *_, seen=seen: seen for name, seen in layers.items()}
    net = nn.Sequential(nn.Identity(), nn.Identity())
    found = diagnose(net, some_images(20), adapter=ForeignLayers(readers), views={}).record["layers"][1]
    alive = torch.tensor([True, True, True, False])
    assert found["dyr"] == pytest.approx(routing_dynamics(couplings, alive_sources=alive).dyr_mean)
    assert found["dyr"] != pytest.approx(routing_dynamics(couplings, alive_sources=alive.flip(0)).dyr_mean)


def test_a_net_that_looks_at_one_pixel_does_not_survive_a_shift() -> None:
    class OnePixel(Net):
        def forward(self, images: Tensor) -> Prediction:
            pixels = images[:, :, 4, 2:5]  # [B, 1, 3]
            return super().forward(pixels[..., None])

    layer = CapsuleLinear(3, 1, 2, 1, routing="uniform", bias=False)
    with torch.no_grad():
        layer.weight.fill_(0.0)
        layer.weight[0, 0], layer.weight[2, 1] = 8.0, 8.0
    # dots that are rarely where it looks.
    images = (torch.rand(400, 1, 9, 9, generator=torch.Generator().manual_seed(1)) > 0.9).float()
    found = diagnose(OnePixel(layer), images, views={"translation": (1, 2), "rotation": (0.0,)})
    rows = found.record["layers"][0]["viewpoint"]
    assert rows["rotation"][0]["correlation"] == pytest.approx(1)
    assert rows["translation"][0]["correlation"] == pytest.approx(rows["translation"][0]["chance"], abs=0.15)
    assert ("moved", 1) in keys(found)
    assert "do not survive a shift by" in found.text()


def test_capsules_that_the_loss_does_not_reach_are_starved() -> None:
    net = Net(CapsuleLinear(6, 4, 4, 4, routing="uniform", bias=True), CapsuleLinear(4, 4, 3, 4, bias=True))
    with torch.no_grad():
        # alive by its bias, and nobody above listens.
        net.layers[1].weight[3] = 0
    found = diagnose(net, some_images(), torch.arange(40) % 3, views={})
    assert ("starved", 2) in keys(found)
    assert found.record["layers"][1]["starved"] == 0.25
    assert "the loss hardly reaches 1 of 4 capsules" in found.text()


def test_batches_give_what_all_images_at_once_give() -> None:
    torch.manual_seed(0)
    net, images, targets = Net(CapsuleLinear(6, 4, 5, 4), CapsuleLinear(5, 4, 3, 4)), some_images(41), torch.arange(41) % 3
    whole = diagnose(net, images, targets, views={"rotation": (20,)}, sample=1000, batch_size=41).record
    parts = diagnose(net, images, targets, views={"rotation": (20,)}, sample=1000, batch_size=10).record
    for one, other in zip(whole["layers"], parts["layers"], strict=True):
        for key in ("cns", "cas", "cdr", "dyr", "dys", "dyr_literal", "entropy", "change", "negation_gap"):
            assert other[key] == (one[key] if one[key] is None else pytest.approx(one[key], abs=1e-6)), key
        for a, b in zip(one["viewpoint"]["rotation"], other["viewpoint"]["rotation"], strict=True):
            assert b["correlation"] == pytest.approx(a["correlation"], abs=1e-6)
    assert parts["accuracy"] == whole["accuracy"]


def test_images_come_as_a_tensor_as_a_split_or_in_batches() -> None:
    data = capsella.data.from_tensors(torch.randint(0, 256, (30, 1, 28, 28), dtype=torch.uint8), torch.arange(30) % 10)
    model = capsella.create_model("capsnet_small")
    images, labels = data.batch(torch.arange(30)).images, data.batch(torch.arange(30)).labels
    found = [
        diagnose(model, images, labels, views={}),
        diagnose(model, data, views={}),
        diagnose(model, [(images[:20], labels[:20]), (images[20:], labels[20:])], views={}),
    ]
    assert {each.record["accuracy"] for each in found} == {found[0].record["accuracy"]}
    assert diagnose(model, [images[:20], images[20:]], views={}).record["accuracy"] is None
    with pytest.raises(ValueError, match="images is empty"):
        diagnose(model, images[:0])
    with pytest.raises(ValueError, match="targets has 29 classes"):
        diagnose(model, images, labels[:29])
    with pytest.raises(TypeError, match="targets has type list"):
        diagnose(model, images, labels.tolist())
    with pytest.raises(ValueError, match="targets is given beside a split or batches"):
        diagnose(model, [images], labels)
    with pytest.raises(TypeError, match="images gives a tuple"):
        diagnose(model, [(images,)])


@pytest.mark.parametrize(
    "name", ["em_capsnet", "gcapsnet_conv", "gcapsnet_multi", "quadratic_capsnet", "aff_capsnet", "deep_capsnet"]
)
def test_any_model_can_be_examined_and_is_left_as_it_was(name: str) -> None:
    model = capsella.create_model(name)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    model.train()
    images, targets = torch.rand(4, *model.image_shape), torch.arange(4)
    found = diagnose(model, images, targets, views={"scale": (1.1,)}, sweep=True)
    record = json.loads(json.dumps(found.as_dict(), allow_nan=False))
    assert [layer["capsules"] for layer in record["layers"]][-1] == 10
    assert model.training
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert set(found.summary()) <= set(FIGURES)
    assert [row["active"] for row in record["layers"][0]["sweep"]] == [0.01, 0.05, 0.1, 0.2]


def test_a_trained_run_s_network_is_examined_with_its_trees() -> None:
    data = capsella.data.from_tensors(torch.randint(0, 256, (32, 1, 28, 28), dtype=torch.uint8), torch.arange(32) % 10)
    run = fit(capsella.create_model("capsnet_small"), data, steps=2, batch_size=16, progress=False, device="cpu")
    found = diagnose(run.model, data, views={"rotation": (10,)})
    assert len(found.trees) == 2
    assert found.view is not None
    assert found.images is not None
    assert len(found.images) == 3
    assert found.statistics is not None
    assert found.statistics.images == 32
    assert found.record["layers"][0]["cost"]["seconds"] > 0


class Foreign(nn.Module):
    """Somebody else's capsules: uniform couplings, one dead capsule."""

    def __init__(self) -> None:
        super().__init__()
        self.caps = nn.Linear(6, 3, bias=False)
        with torch.no_grad():
            self.caps.weight[1] = 0

    def forward(self, images: Tensor) -> Tensor:
        return self.caps(images[:, 0].transpose(1, 2)).norm(dim=1)  # type: ignore[no-any-return]


def test_foreign_layers_are_examined_through_an_adapter() -> None:
    def read(module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> Seen:
        lower, poses = inputs[0].transpose(1, 2), output.transpose(1, 2)
        return seen_layer(lower, poses, couplings=torch.full((len(lower), 6, 3), 1 / 3))

    with pytest.raises(ValueError, match="model has no capsule layer that ran"):
        diagnose(Foreign(), some_images())
    found = diagnose(Foreign(), some_images(), torch.zeros(40).long(), adapter=ForeignLayers({"caps": read}), views={})
    assert {("dead", 2), ("uniform", 1)} <= keys(found)
    # what would have to change the routing is not measured.
    assert found.record["negation_gap"] is None
    assert found.record["routing_matters"] is None
    assert found.record["accuracy"] is not None


def test_every_symptom_says_what_the_papers_had_and_what_to_try() -> None:
    for kind in SYMPTOMS.values():
        assert "20" in kind.papers  # a year
        assert kind.tries


@pytest.mark.parametrize(
    ("text", "value", "holds"), [("dead>0.2", 0.3, True), ("dead >= 0.2", 0.2, True), ("dyr<1e-1", 0.2, False)]
)
def test_a_condition_is_read(text: str, value: float, holds: bool) -> None:
    assert condition(text, FIGURES).holds(value) is holds


@pytest.mark.parametrize("text", ["dead", "dead>", "dead>x", ">0.2", "dead=0.2", "dead>nan", "dead>1e999", ""])
def test_what_is_no_condition_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is no condition; expected one such as 'dead>0\.2'"):
        condition(text, FIGURES)


def test_an_unknown_figure_is_named_with_its_neighbours() -> None:
    with pytest.raises(ValueError, match="fail-on='daed' is unknown; did you mean 'dead'"):
        condition("daed>1", FIGURES)


@pytest.mark.parametrize(
    ("accuracy", "guess", "images", "said"),
    [
        (0.1135, 0.1135, 10_000, True),
        (0.15, 0.1135, 10_000, True),
        (0.17, 0.1135, 10_000, False),
        (0.96, 0.95, 10_000, False),
        (0.95, 0.95, 10_000, True),
        (0.0, 0.5, 9, False),
        (1.0, 1.0, 10_000, False),
        (None, None, 10_000, False),
    ],
)
def test_a_net_that_names_one_class_for_all_has_learned_nothing(
    accuracy: float | None, guess: float | None, images: int, said: bool
) -> None:
    found = find_symptoms(
        {
            **{"images": images, "non_finite": 0.0, "accuracy": accuracy, "guess": guess, "bias": False, "layers": []},
            **{"negation_share": None, "routing_matters": None},
        }
    )
    assert [symptom.key for symptom in found] == ["guessing"] * said
    assert all("it has learned nothing: " in symptom.says for symptom in found)


def test_the_most_frequent_class_is_what_guessing_gives() -> None:
    net, images, targets = healthy()
    wrong = torch.where(torch.arange(40) < 10, 1, 0)
    record = diagnose(net, images, wrong, views={}).record
    assert record["guess"] == 0.75
    assert diagnose(net, images, targets, views={}).record["guess"] == 0.5


@pytest.mark.parametrize(("above", "advised"), [(True, False), (False, True)])
def test_what_every_layer_has_is_not_advised(above: bool, advised: bool) -> None:
    net = Net(CapsuleLinear(6, 4, 5, 4, bias=True), CapsuleLinear(5, 4, 3, 4, bias=above))
    with torch.no_grad():
        net.layers[0].weight[:, 2] = 0
        net.layers[0].bias[2] = 0
    found = diagnose(net, some_images(), views={})
    assert found.record["bias"] == above
    (dead,) = [symptom for symptom in found.symptoms if symptom.key == "dead"]
    assert ("bias=True" in " ".join(dead.tries)) == advised
    assert "length-preserving" in " ".join(dead.tries)


@pytest.mark.parametrize("start", ["length_preserving", "mitterreiter2023", None])
def test_a_start_that_was_taken_is_not_advised(start: str | None) -> None:
    net = Net(CapsuleLinear(6, 4, 5, 4, bias=False), CapsuleLinear(5, 4, 3, 4, bias=False))
    with torch.no_grad():
        net.layers[0].weight[:, 2] = 0
        net.layers[1].weight.mul_(1e-3)
    facts = None if start is None else {"model": {"name": "mine", "init": start}}
    found = diagnose(net, some_images(), views={}, facts=facts)
    assert {("dead", 2), ("uniform", 2)} <= keys(found)
    assert ("length-preserving" in found.text()) == (start != "length_preserving")
    if start is not None:
        assert next(iter(found.record)) == "model"
        assert found.as_dict()["model"]["init"] == start


def test_every_symptom_says_what_it_means() -> None:
    for key, kind in SYMPTOMS.items():
        assert kind.means.endswith(".")
        assert kind.means.count(".") == 1, key
        assert kind.found(key, None, 0.0, "").as_dict()["means"] == kind.means


def test_without_advice_there_is_no_line_for_it() -> None:
    net = Net(CapsuleLinear(6, 4, 5, 4, bias=True))
    with torch.no_grad():
        net.layers[0].bias.zero_()
    found = diagnose(net, some_images(), views={})
    (blind,) = [symptom for symptom in found.symptoms if symptom.key == "blind"]
    assert blind.tries == ()
    paragraph = next(part for part in found.text().split("\n\n") if "cannot tell" in part)
    assert "try:" not in paragraph
