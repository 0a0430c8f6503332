"""What is minimised and what is counted: losses by name, the choice of one, several digits, reconstructions per digit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tiny_runs import CLASSES, SIDE, capsnet, losses, made_data, made_pairs, one_line, plain_net, short_run
from torch import Tensor, nn
from torch.nn import functional as tnf

from capsella import functional as F
from capsella.models import Model, Prediction, as_prediction, create_model, list_models
from capsella.train import TrainConfig, objectives
from capsella.train.config import LOSSES
from capsella.train.objectives import AsTensors, Measure, choose_loss, right, shows_several, tensors_of

B, J = 4, 3
SCORES = torch.tensor([[0.9, 0.3, 0.1], [0.2, 0.05, 0.8], [0.5, 0.6, 0.4], [0.0, 1.0, 0.3]])
LABELS = torch.tensor([0, 1, 1, 2])
ROWS = torch.eye(J, dtype=torch.int64)[LABELS]

# what every registered model is trained with if nothing is said, for one class an image and for several.
AUTO = dict.fromkeys(list_models(), ("margin", "margin")) | {
    **dict.fromkeys(
        ("convnet_small", "convnet_fc", "convnet_fc_lk", "convnet_fc512", "convnet_avg", "convnet_r", "lenet"),
        ("cross_entropy", "binary_cross_entropy"),
    ),
    "convnet_cr": ("binary_cross_entropy", "binary_cross_entropy"),
}


def measured(scores: Tensor, labels: Tensor, config: TrainConfig, *, progress: float = 0.0, **more: Any) -> tuple[float, int]:
    """Return loss and right answers of given scores."""
    model: nn.Module = more.pop("model", nn.Identity())
    found = more.pop("prediction", (scores, None, None))
    measure = Measure(lambda images, classes: found, model, config, config.loss)
    tensors = (
        more.pop("images", torch.zeros(len(scores), 1, 2, 2)),
        labels,
        more.pop("parts", None),
        more.pop("classes", None),
    )
    loss, hits = measure(tensors, torch.tensor(progress))
    return float(loss), int(hits)


EXPECTED = {
    "margin": lambda: F.margin_loss(SCORES, LABELS, m_pos=0.8, m_neg=0.2, down_weight=0.7),
    "spread": lambda: F.spread_loss(SCORES, LABELS, margin=0.25 + 0.5 * 0.4),
    "length_cross_entropy": lambda: F.length_cross_entropy(SCORES, LABELS),
    "length_binary_cross_entropy": lambda: F.length_binary_cross_entropy(SCORES, LABELS),
    "cross_entropy": lambda: -SCORES.log_softmax(dim=1)[range(B), LABELS].mean(),
    "binary_cross_entropy": lambda: torch.where(ROWS == 1, tnf.softplus(-SCORES), tnf.softplus(SCORES)).sum() / B,
}


def test_every_loss_has_an_expectation_here() -> None:
    assert set(EXPECTED) == set(LOSSES) - {"auto"}


@pytest.mark.parametrize("name", EXPECTED)
def test_every_loss_is_what_its_name_says(name: str) -> None:
    config = TrainConfig(loss=name, margins=(0.8, 0.2), down_weight=0.7, spread=(0.25, 0.65))
    loss, hits = measured(SCORES, LABELS, config, progress=0.5)
    assert loss == pytest.approx(float(EXPECTED[name]()), rel=1e-6)
    assert hits == 2  # images 0 and 2


def test_no_two_losses_agree_on_these_scores() -> None:
    assert len({round(float(expected()), 4) for expected in EXPECTED.values()}) == len(EXPECTED)


def test_every_registered_model_has_an_expected_loss_here() -> None:
    assert set(AUTO) == set(list_models())


@pytest.mark.parametrize("name", list_models())
def test_the_loss_is_chosen_by_what_the_scores_are(name: str) -> None:
    with torch.device("meta"):
        model = create_model(name)
    assert tuple(choose_loss(TrainConfig(), model, several=several) for several in (False, True)) == AUTO[name]
    scores = {"margin": "lengths", "cross_entropy": "logits"}.get(AUTO[name][0], "probabilities")
    assert model.scores_are == scores


@pytest.mark.parametrize("name", list_models())
def test_losses_on_lengths_and_on_logits_are_not_mixed_up(name: str) -> None:
    with torch.device("meta"):
        model = create_model(name)
    on_lengths = ("margin", "spread", "length_cross_entropy", "length_binary_cross_entropy")
    on_logits = ("cross_entropy", "binary_cross_entropy")
    refused = {"lengths": on_logits, "logits": on_lengths, "probabilities": ()}[model.scores_are]
    for loss in (*on_lengths, *on_logits):
        config = TrainConfig(loss=loss)
        if loss not in refused:
            assert choose_loss(config, model, several=False) == loss
            continue
        with pytest.raises(ValueError, match=f"^loss='{loss}' needs ") as caught:
            choose_loss(config, model, several=False)
        usable = on_lengths if refused == on_logits else on_logits
        message = one_line(caught.value)
        assert all(repr(each) in message.partition("expected one of ")[2] for each in usable), message


@pytest.mark.parametrize("loss", ["spread", "cross_entropy"])
def test_a_loss_for_one_class_is_refused_where_images_show_several(loss: str) -> None:
    model = plain_net() if loss == "cross_entropy" else capsnet()
    with pytest.raises(ValueError, match=f"^loss='{loss}' is for one class an image; expected 'margin'") as caught:
        choose_loss(TrainConfig(loss=loss), model, several=True)
    one_line(caught.value)


def test_fit_refuses_a_loss_that_does_not_fit_before_anything_is_written(tmp_path: Any) -> None:
    with pytest.raises(ValueError, match=r"^loss='cross_entropy' needs logits, and the scores are lengths"):
        short_run(capsnet(), loss="cross_entropy", folder=tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


def test_a_module_of_ones_own_is_taken_to_give_logits() -> None:
    run = short_run(plain_net())
    assert run.config["train"]["loss"] == "cross_entropy"


def test_a_module_of_ones_own_may_say_that_it_gives_lengths() -> None:
    class Lengths(nn.Module):
        scores_are = "lengths"

        def __init__(self) -> None:
            super().__init__()
            self.net = plain_net()

        def forward(self, images: Tensor) -> Prediction:
            return Prediction(self.net(images).sigmoid())

    assert short_run(Lengths()).config["train"]["loss"] == "margin"


def test_a_network_that_returns_something_else_is_one_line() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = plain_net()

        def forward(self, images: Tensor) -> dict[str, Tensor]:
            return {"scores": self.net(images)}

    with pytest.raises(TypeError, match=r"^the network returned dict; expected a Prediction or a tensor of logits") as caught:
        short_run(Odd())
    one_line(caught.value)


def test_half_precision_scores_are_widened() -> None:
    assert as_prediction(torch.zeros(2, 3, dtype=torch.bfloat16)).scores.dtype == torch.float32
    assert as_prediction(Prediction(torch.zeros(2, 3, dtype=torch.bfloat16))).scores.dtype == torch.float32


def small_convnet_cr() -> Model:
    torch.manual_seed(1)
    return create_model("convnet_cr", image_size=17, num_classes=J, reconstruction="none")


def test_convnet_cr_learns_from_the_sums_behind_its_probabilities() -> None:
    model = small_convnet_cr()
    images = torch.rand(B, 1, 17, 17)
    prediction = model(images)
    sums = prediction.capsules.sum(dim=-1)
    torch.testing.assert_close(prediction.scores, sums.sigmoid())
    measure = Measure(AsTensors(model), model, TrainConfig(), choose_loss(TrainConfig(), model, several=False))
    loss, _ = measure((images, LABELS, None, None), torch.tensor(0.0))
    expected = tnf.binary_cross_entropy_with_logits(sums, ROWS.float(), reduction="sum") / B
    torch.testing.assert_close(loss, expected)


def test_convnet_cr_learns_where_its_probabilities_are_saturated() -> None:
    model = small_convnet_cr()
    with torch.no_grad():
        model.dense.bias[: model.dim] = -50.0  # class 0 is ruled out, and it is the answer
    images, labels = torch.rand(B, 1, 17, 17), torch.zeros(B, dtype=torch.int64)
    assert (model(images).scores[:, 0] == 0).all()
    measure = Measure(AsTensors(model), model, TrainConfig(), "binary_cross_entropy")
    loss, hits = measure((images, labels, None, None), torch.tensor(0.0))
    loss.backward()
    assert loss.item() == pytest.approx(800, rel=0.01)  # 16 · 50
    torch.testing.assert_close(model.dense.bias.grad[: model.dim], torch.full((model.dim,), -1.0))
    assert int(hits) == 0


@pytest.mark.parametrize(
    ("scores", "classes", "expected"),
    [
        ([0.9, 0.8, 0.1], [0, 1], True),
        ([0.9, 0.8, 0.1], [1, 0], True),  # in either order
        ([0.9, 0.8, 0.1], [0, 2], False),  # one of two is not enough
        ([0.9, 0.8, 0.1], [2, 0], False),
        ([0.1, 0.2, 0.3], [0, 1], False),
        ([0.1, 0.2, 0.3], [1, 2], True),
        ([0.1, 0.2, 0.3], [0, 1, 2], True),
    ],
)
def test_an_image_of_several_digits_is_right_if_all_of_them_are_found(
    scores: list[float], classes: list[int], expected: bool
) -> None:
    assert right(torch.tensor([scores]), torch.tensor([classes])).tolist() == [expected]


def test_both_digits_count_in_a_measure() -> None:
    classes = torch.tensor([[0, 1], [2, 1], [1, 2], [1, 2]])
    rows = torch.zeros(B, J, dtype=torch.int64).scatter(1, classes, 1)
    config = TrainConfig(loss="margin")
    loss, hits = measured(SCORES, rows, config, classes=classes)
    assert hits == 2  # by the two highest scores: {0, 1}, {0, 2}, {0, 1}, {1, 2}
    assert loss == pytest.approx(float(F.margin_loss(SCORES, rows)), rel=1e-6)


def test_images_of_several_digits_are_recognised() -> None:
    assert shows_several(made_pairs())
    assert not shows_several(made_data())


def test_reconstructions_are_compared_with_each_digit_alone() -> None:
    """A decoder that draws the digits perfectly costs nothing, one that draws them in the other order does."""
    batch = made_pairs().batch(range(B))
    images, rows, parts, classes = tensors_of(batch)
    assert parts is not None
    scores = rows.float()
    config = TrainConfig(loss="margin", reconstruction=0.25)
    for drawn, expected in (
        (parts, 0.0),
        (parts.flip(1), float((parts.flip(1) - parts).square().sum()) / B),
        (parts + 0.5, 0.25 * parts[0].numel()),
        (images[:, None].expand_as(parts), float((images[:, None] - parts).square().sum()) / B),
    ):
        loss, hits = measured(
            scores, rows, config, prediction=(scores, None, drawn), images=images, parts=parts, classes=classes
        )
        assert loss == pytest.approx(0.25 * expected, rel=1e-5, abs=1e-7)
        assert hits == B
    assert float((parts.flip(1) - parts).square().sum()) > 1


def test_a_decoder_without_a_mask_draws_the_whole_image() -> None:
    batch = made_pairs().batch(range(B))
    images, rows, parts, classes = tensors_of(batch)
    scores, config = rows.float(), TrainConfig(loss="margin", reconstruction=1.0)
    loss, _ = measured(
        scores, rows, config, prediction=(scores, None, images + 0.1), images=images, parts=parts, classes=classes
    )
    assert loss == pytest.approx(0.01 * images[0].numel(), rel=1e-4)


@pytest.mark.parametrize(("reduction", "expected"), [("sum", 0.25 * SIDE * SIDE), ("mean", 0.25)])
def test_reconstruction_is_weighed_and_reduced_as_asked_for(reduction: str, expected: float) -> None:
    images = torch.rand(B, 1, SIDE, SIDE)
    bare, _ = measured(SCORES, LABELS, TrainConfig(loss="margin"))
    config = TrainConfig(loss="margin", reconstruction=0.3, reconstruction_reduction=reduction)
    loss, _ = measured(SCORES, LABELS, config, prediction=(SCORES, None, images + 0.5), images=images)
    assert loss - bare == pytest.approx(0.3 * expected, rel=1e-5)


def test_the_decoder_is_told_the_true_classes_in_training() -> None:
    model = capsnet()
    images, labels = made_data().batch(range(6))
    _, _, drawn = AsTensors(model)(images, labels)
    torch.testing.assert_close(drawn, model(images, labels).reconstruction)
    other = model(images, (labels + 1) % CLASSES).reconstruction
    assert not torch.allclose(drawn, other)


def test_a_net_trains_on_two_digits_at_once() -> None:
    torch.manual_seed(1)
    data = made_pairs()
    sizes = {"kernel_size": 7, "trunk_stride": 2, "channels": 4, "types": 2, "class_dim": 4, "decoder_hidden": (8,)}
    model = create_model("capsnet_small", image_size=36, **sizes)
    start = F.margin_loss(model(data.batch(range(12)).images).scores, data.batch(range(12)).labels).item()
    run = short_run(model, data, validation=made_pairs(split="val"), steps=None, epochs=2, batch_size=12, reconstruction=1e-9)
    assert losses(run)[0] == pytest.approx(start, rel=1e-4)
    assert run.config["train"]["loss"] == "margin"
    assert run.record["history"][-1]["validation"] is not None


@pytest.mark.parametrize("steps", [1, 5])
def test_the_margin_of_the_spread_loss_grows_linearly_from_the_first_step_to_the_last(
    steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    margins: list[float] = []
    spread_loss = F.spread_loss

    def note(scores: Tensor, labels: Tensor, *, margin: Any) -> Tensor:
        if len(scores) == 8:  # the estimate of memory runs smaller batches
            margins.append(float(margin))
        return spread_loss(scores, labels, margin=margin)

    monkeypatch.setattr(objectives.F, "spread_loss", note)
    short_run(capsnet(), made_data(24), loss="spread", spread=(0.2, 0.9), steps=steps)
    assert margins == pytest.approx([0.2, 0.375, 0.55, 0.725, 0.9][:steps], rel=1e-6)
