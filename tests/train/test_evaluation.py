"""Accuracy, confusion matrix and calibration against numbers worked out by hand; what is measured is left as it was."""

from __future__ import annotations

import json
import math
from types import SimpleNamespace

import pytest
import torch
from tiny_runs import CLASSES, SIDE, capsnet, differing, made_data, made_pairs, plain_net, short_run
from torch import Tensor, nn

from capsella.data import ImageData, from_tensors
from capsella.models import Prediction, create_model
from capsella.train import Evaluation, evaluate, loop
from capsella.train.memory import is_out_of_memory

# scores of six images and their classes: 0, 1, 2 right, 3 and 4 wrong, 5 right.
SCORES = torch.tensor(
    [[0.9, 0.1, 0.0], [0.2, 0.9, 0.3], [0.1, 0.2, 0.5], [0.7, 0.6, 0.1], [0.4, 0.1, 0.5], [0.95, 0.2, 0.1]], dtype=torch.float32
)
LABELS = torch.tensor([0, 1, 2, 1, 0, 0])


class Says(nn.Module):
    """Answers image k, which is filled with k, with row k of given scores."""

    def __init__(self, scores: Tensor, kind: str) -> None:
        super().__init__()
        self.scores, self.scores_are = nn.Parameter(scores), kind

    def forward(self, images: Tensor) -> Prediction:
        return Prediction(self.scores[images[:, 0, 0, 0].long()])


def numbered(labels: Tensor, split: str = "test") -> ImageData:
    images = torch.arange(len(labels), dtype=torch.float32)[:, None, None, None].expand(-1, 1, 2, 2)
    return from_tensors(images.contiguous(), labels, split=split)


def of_lengths(batch_size: int = 256) -> Evaluation:
    return evaluate(Says(SCORES, "lengths"), numbered(LABELS), batch_size=batch_size)


def test_accuracy_is_the_share_of_right_answers() -> None:
    found = of_lengths()
    assert found.images == 6
    assert found.accuracy == pytest.approx(4 / 6, rel=1e-12)


def test_the_confusion_matrix_counts_true_by_predicted_class() -> None:
    confusion = of_lengths().confusion
    assert confusion is not None
    assert confusion.tolist() == [[2, 0, 1], [1, 1, 0], [0, 0, 1]]
    assert confusion.dtype == torch.int64


def test_calibration_is_worked_out_per_fifteenth() -> None:
    """Confidences 0.9, 0.9 (bin 13), 0.5, 0.5 (bin 7), 0.7 (bin 10), 0.95 (bin 14)."""
    found = of_lengths()
    expected = [(0.5, 0.5, 2), (0.7, 0.0, 1), (0.9, 1.0, 2), (0.95, 1.0, 1)]
    assert [count for *_, count in found.calibration] == [2, 1, 2, 1]
    for one, other in zip(found.calibration, expected, strict=True):
        assert one == pytest.approx(other, rel=1e-6)
    assert found.calibration_error == pytest.approx((0 * 2 + 0.7 * 1 + 0.1 * 2 + 0.05 * 1) / 6, rel=1e-6)


def test_the_confidence_of_logits_is_their_softmax() -> None:
    logits = torch.tensor([[2.0, 0.0, 0.0], [0.0, math.log(3.0), 0.0]])
    found = evaluate(Says(logits, "logits"), numbered(torch.tensor([0, 2])))
    first = math.exp(2) / (math.exp(2) + 2)
    assert found.calibration == (pytest.approx((0.6, 0.0, 1)), pytest.approx((first, 1.0, 1)))
    assert found.calibration_error == pytest.approx((0.6 + 1 - first) / 2, rel=1e-6)


def test_the_confidence_of_probabilities_and_lengths_is_the_score_at_most_one() -> None:
    scores = torch.tensor([[1.7, 0.3], [0.25, 0.1]])
    for kind in ("probabilities", "lengths"):
        found = evaluate(Says(scores, kind), numbered(torch.tensor([0, 1])))
        assert found.calibration == (pytest.approx((0.25, 0.0, 1)), pytest.approx((1.0, 1.0, 1)))


def test_a_perfectly_calibrated_network_has_no_error() -> None:
    scores = torch.tensor([[0.75, 0.1]]).repeat(8, 1)
    found = evaluate(Says(scores, "lengths"), numbered(torch.tensor([0, 0, 0, 1] * 2)))
    assert found.calibration_error == pytest.approx(0, abs=1e-7)
    assert found.accuracy == 0.75


@pytest.mark.parametrize("batch_size", [1, 2, 4, 5, 6, 1000])
def test_the_result_does_not_depend_on_the_batch_size(batch_size: int) -> None:
    found, whole = of_lengths(batch_size), of_lengths()
    assert (found.accuracy, found.images, found.calibration) == (whole.accuracy, whole.images, whole.calibration)
    assert torch.equal(found.confusion, whole.confusion)
    model, data = capsnet(), made_data(17, split="val")
    parts, once = (evaluate(model, data, batch_size=size) for size in (batch_size, 256))
    assert parts.accuracy == once.accuracy
    assert parts.calibration_error == pytest.approx(once.calibration_error, rel=1e-5)


def test_a_share_of_two_processes_adds_up_to_the_whole() -> None:
    whole = of_lengths()
    sums: list[list[Tensor]] = []
    for rank in (0, 1):
        kept: list[Tensor] = []
        evaluate(
            Says(SCORES, "lengths"),
            numbered(LABELS),
            batch_size=4,
            share=(rank, 2),
            reduce=lambda t, kept=kept: kept.append(t) or t,
        )
        sums.append(kept)
    (right, confusion, bins) = (one + other for one, other in zip(*sums, strict=True))
    assert right.tolist() == [4, 6]
    assert torch.equal(confusion.long(), whole.confusion)
    assert bins.sum(dim=0)[2] == 6


class Moody(nn.Module):
    """A net whose parts have modes of their own: a frozen normalisation inside a net that is trained."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.drop, self.net = nn.BatchNorm2d(1), nn.Dropout(0.5), plain_net()

    def forward(self, images: Tensor) -> Tensor:
        assert not torch.is_grad_enabled()
        return self.net(self.drop(self.norm(images)))


def modes(model: nn.Module) -> dict[str, bool]:
    return {name: module.training for name, module in model.named_modules()}


@pytest.mark.parametrize("training", [True, False])
def test_modes_weights_and_buffers_are_left_as_they_were(training: bool) -> None:
    model = Moody().train(training)
    model.norm.train(not training)
    before, state = modes(model), {name: value.clone() for name, value in model.state_dict().items()}
    one, other = (evaluate(model, made_data(9, split="val")) for _ in range(2))
    assert modes(model) == before
    assert len(set(before.values())) == 2
    assert not differing(model.state_dict(), state)
    assert one.calibration == other.calibration  # nothing was dropped at random


def test_modes_are_put_back_after_an_error_too() -> None:
    model = Moody().train()
    with pytest.raises(RuntimeError):
        evaluate(model, from_tensors(torch.zeros(4, 1, 5, 5), torch.arange(4) % 3, split="val"))
    assert all(modes(model).values())


def test_gradients_are_on_again_and_none_are_kept() -> None:
    model = plain_net()
    evaluate(model, made_data(9, split="val"))
    assert torch.is_grad_enabled()
    assert all(parameter.grad is None for parameter in model.parameters())


def test_random_numbers_go_on_as_if_nothing_had_been_measured() -> None:
    model, data = Moody(), made_data(9, split="val")
    torch.manual_seed(3)
    expected = torch.rand(3)
    torch.manual_seed(3)
    evaluate(model, data)
    assert torch.equal(torch.rand(3), expected)


def test_training_goes_on_as_if_nothing_had_been_measured() -> None:
    """Validation after every epoch changes no weight, with dropout and batch normalisation among them."""

    def net() -> nn.Module:
        torch.manual_seed(1)
        return nn.Sequential(nn.BatchNorm2d(1), nn.Dropout(0.3), *plain_net())

    alone = short_run(net(), steps=None, epochs=3)
    watched = short_run(net(), steps=None, epochs=3, validation=made_data(9, split="val"), test=made_data(9, split="test"))
    assert not differing(alone.model.state_dict(), watched.model.state_dict())


def test_several_classes_are_right_together_and_have_no_confusion() -> None:
    data = made_pairs(6, split="test")
    classes = data.part_labels(range(6))
    scores = torch.zeros(6, 10).scatter(1, classes, 0.9)
    scores[0, classes[0, 1]] = 0.0  # one of two digits is missed
    scores[0, (set(range(10)) - set(classes[0].tolist())).pop()] = 0.5

    class Knows(nn.Module):
        scores_are = "lengths"

        def __init__(self) -> None:
            super().__init__()
            self.scores, self.seen = nn.Parameter(scores), 0

        def forward(self, images: Tensor) -> Tensor:
            self.seen += len(images)
            return self.scores[self.seen - len(images) : self.seen]

    found = evaluate(Knows(), data, batch_size=4)
    assert found.accuracy == pytest.approx(5 / 6)
    assert found.confusion is None
    assert math.isnan(found.calibration_error)
    assert found.calibration == ()
    written = json.loads(json.dumps(found.as_dict(), allow_nan=False))
    assert written["confusion"] is None
    assert written["calibration_error"] is None


def test_a_network_may_know_more_classes_than_the_data_show() -> None:
    scores = torch.zeros(3, 5)
    scores[torch.arange(3), torch.tensor([0, 4, 3])] = 1.0
    found = evaluate(Says(scores, "lengths"), numbered(torch.tensor([0, 1, 1])))
    assert found.confusion is not None
    assert found.confusion.shape == (5, 5)
    assert [(t, p) for t, p in found.confusion.nonzero().tolist()] == [(0, 0), (1, 3), (1, 4)]
    assert found.accuracy == pytest.approx(1 / 3)


def test_a_registered_model_with_more_classes_trains_and_is_measured() -> None:
    torch.manual_seed(1)
    model = create_model("convnet_small", image_size=19, num_classes=7)
    images = torch.rand(12, 1, 19, 19)
    data = from_tensors(images, torch.arange(12) % 2)
    run = short_run(model, data, validation=from_tensors(images, torch.arange(12) % 2, split="val"), steps=1)
    assert torch.tensor(run.evaluate(data).as_dict()["confusion"]).shape == (7, 7)


def test_everything_can_be_written_as_json() -> None:
    found = of_lengths()
    written = json.loads(json.dumps(found.as_dict(), allow_nan=False))
    assert written["accuracy"] == found.accuracy
    assert written["images"] == 6
    assert written["confusion"] == [[2, 0, 1], [1, 1, 0], [0, 0, 1]]
    assert written["calibration"] == [list(row) for row in found.calibration]
    assert written["calibration_error"] == found.calibration_error


def test_a_run_is_measured_as_its_model_is() -> None:
    run = short_run(capsnet(), test=made_data(9, split="test", seed=4))
    found = run.evaluate(made_data(9, split="test", seed=4))
    assert run.record["test"] == json.loads(json.dumps(found.as_dict()))
    assert not run.model.training


@pytest.mark.parametrize(("device", "why"), [("nowhere", ""), ("cuda:77", r" \(.*\)")])
def test_a_device_that_is_not_there_is_one_line_and_the_model_stays(device: str, why: str) -> None:
    run = short_run(capsnet())
    with pytest.raises(ValueError, match=rf"^device='{device}' cannot be used{why}; expected 'cpu', or 'cuda' on a GPU$"):
        run.evaluate(made_data(9, split="test"), device=device)
    assert {parameter.device.type for parameter in run.model.parameters()} == {"cpu"}


@pytest.mark.gpu
def test_a_run_comes_back_from_the_device_it_was_measured_on() -> None:
    run, data = short_run(capsnet()), made_data(9, split="test")
    here, there = run.evaluate(data), run.evaluate(data, device="cuda")
    assert here.accuracy == there.accuracy
    assert {parameter.device.type for parameter in run.model.parameters()} == {"cpu"}
    assert run.predict(torch.rand(2, 1, SIDE, SIDE)).scores.shape == (2, CLASSES)


@pytest.mark.parametrize(
    "error", [MemoryError("too large"), torch.OutOfMemoryError("CUDA out of memory"), RuntimeError("broken")]
)
def test_where_a_gpu_has_no_room_for_larger_batches_smaller_ones_are_taken(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[int] = []

    def measured(*_: object, batch_size: int, **__: object) -> str:
        tried.append(batch_size)
        if batch_size > 256:
            raise error
        return "measured"

    monkeypatch.setattr(loop, "evaluate", measured)
    trainer = SimpleNamespace(
        stepper=SimpleNamespace(device=torch.device("cuda")),
        config=SimpleNamespace(batch_size=128),
        model=None,
        share=(0, 1),
        fabric=SimpleNamespace(autocast=None),
    )
    if is_out_of_memory(error):
        assert loop.Trainer.evaluate(trainer, made_data(2)) == "measured"  # type: ignore[arg-type, comparison-overlap]
        assert tried == [1024, 256]
    else:
        with pytest.raises(RuntimeError, match="broken"):
            loop.Trainer.evaluate(trainer, made_data(2))  # type: ignore[arg-type]
        assert tried == [1024]
