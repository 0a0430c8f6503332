"""The survey of a test set: what is known after each part of it, and that it goes on by itself."""

from __future__ import annotations

import logging
import math
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from explored import net, rectangles, small
from torch import Tensor

from capsella.analysis.activity import DEAD_MEAN, DEAD_STD
from capsella.data import ImageData, load_data
from capsella.web import net as net_module
from capsella.web import survey as module
from capsella.web.explorer import Explorer
from capsella.web.look import Look
from capsella.web.survey import Batch, Survey

LENGTHS = torch.tensor([[0.9, 0.0, 0.5], [0.7, 0.0, 0.005], [0.8, 0.0, 0.3], [0.6, 0.0, 0.2]])
SCORES = torch.tensor([[0.9, 0.1], [0.4, 0.6], [0.2, 0.3], [0.7, 0.1]])


def survey(lengths: Tensor = LENGTHS, scores: Tensor = SCORES, labels: Tensor | None = None) -> Survey:
    def examine(start: int, stop: int) -> Batch:
        looks = [Look(scores[k], None, None, (), (lengths[k],), (lengths[k][:, None],)) for k in range(start, stop)]
        hits = scores[start:stop].argmax(dim=1) == torch.tensor([0, 1, 0, 0])[start:stop]
        return Batch(looks, hits, scores[start:stop].amax(dim=1))

    return Survey(len(scores), torch.tensor([0, 1, 0, 0]) if labels is None else labels, [lengths.shape[1]], examine)


def complete(found: Survey) -> Survey:
    while not found.is_complete:
        found.go_on()
    return found


def pick(found: Survey, **asked: Any) -> list[int]:
    plain: dict[str, Any] = {"label": None, "answer": None, "mistakes": None, "order": "index", "offset": 0, "limit": 10}
    return [image.index for image in found.pick(**{**plain, **asked}).images]


def test_what_is_known_grows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_FIRST", 1)
    monkeypatch.setattr(module, "_MOST", 1)
    found = survey()
    assert (found.state().done, found.state().of) == (0, 4)
    assert found.history(0, 0) is None
    assert found.chance(0, LENGTHS[0]) is None
    assert found.dead(0) is None
    assert pick(found) == [0, 1, 2, 3]
    assert pick(found, mistakes=False) == []
    found.go_on()
    assert pick(found, mistakes=False) == [0]
    found.go_on()
    assert found.state().done == 2
    history = found.history(0, 0)
    assert history is not None
    assert history.images == 2
    assert history.by_class == pytest.approx([0.9, 0.7])
    complete(found)
    assert found.state().done == 4


def test_images_are_found_by_what_is_asked() -> None:
    found = complete(survey())
    assert pick(found, label=0) == [0, 2, 3]
    assert pick(found, answer=1) == [1, 2]
    assert pick(found, mistakes=True) == [2]
    assert pick(found, mistakes=False, answer=0) == [0, 3]
    assert pick(found, order="sure") == [0, 3, 1, 2]
    assert pick(found, order="unsure", limit=2) == [2, 1]
    assert pick(found, order="sure", offset=3) == [2]
    assert pick(found, offset=9) == []


def test_a_capsules_history_is_told_by_its_activations() -> None:
    found = complete(survey())
    history = found.history(0, 2)
    assert history is not None
    column = LENGTHS[:, 2].double()
    assert history.mean == pytest.approx(float(column.mean()))
    assert history.std == pytest.approx(float(column.std(unbiased=False)))
    assert history.active == 0.75
    assert not history.dead
    assert (len(history.counts), len(history.edges), sum(history.counts)) == (20, 21, 4)
    assert [k for k, count in enumerate(history.counts) if count] == [0, 4, 6, 10]
    assert history.by_class == pytest.approx([(0.5 + 0.3 + 0.2) / 3, 0.005])
    assert history.strongest == [0, 2, 3, 1]


def test_a_capsule_is_dead_when_it_hardly_moves() -> None:
    found = complete(survey())
    dead = found.dead(0)
    assert dead is not None
    assert dead.tolist() == [False, True, False]
    history = found.history(0, 1)
    assert history is not None
    assert history.dead


def test_a_capsule_that_is_rarely_on_is_not_dead() -> None:
    # strongly active in one image of a thousand: a small mean, and a spread that is none of a dead capsule's.
    lengths = torch.zeros(1000, 2)
    lengths[617, 0] = 0.9
    scores = SCORES.repeat(250, 1)

    def examine(start: int, stop: int) -> Batch:
        looks = [Look(scores[k], None, None, (), (lengths[k],), (lengths[k][:, None],)) for k in range(start, stop)]
        return Batch(looks, torch.zeros(stop - start, dtype=torch.bool), scores[start:stop].amax(dim=1))

    found = complete(Survey(1000, None, [2], examine))
    dead, rare, never = found.dead(0), found.history(0, 0), found.history(0, 1)
    assert dead is not None
    assert rare is not None
    assert never is not None
    assert rare.mean <= DEAD_MEAN
    assert rare.std > DEAD_STD
    assert dead.tolist() == [rare.dead, never.dead] == [False, True]


def test_before_enough_images_no_capsule_is_called_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ENOUGH", 3)
    monkeypatch.setattr(module, "_FIRST", 2)
    found = survey()
    found.go_on()
    assert found.dead(0) is None
    complete(found)
    assert found.dead(0) is not None


def test_chance_is_the_mean_cosine() -> None:
    found = complete(survey())
    rows = LENGTHS.double()
    expected = (rows / rows.norm(dim=1, keepdim=True)) @ (rows[1] / rows[1].norm())
    assert found.chance(0, LENGTHS[1]) == pytest.approx(float(expected.mean()))
    assert found.chance(0, torch.zeros(3)) is None


def test_activations_that_are_no_numbers_are_left_out() -> None:
    lengths = LENGTHS.clone()
    lengths[:, 1], lengths[0, 2] = math.nan, math.inf
    scores = SCORES.clone()
    scores[1] = math.nan
    found = complete(survey(lengths, scores))
    assert found.history(0, 1) is None
    history = found.history(0, 2)
    assert history is not None
    assert (history.images, history.strongest) == (3, [2, 3, 1])
    assert history.by_class == pytest.approx([0.25, 0.005])
    gallery = found.pick(label=None, answer=None, mistakes=None, order="index", offset=0, limit=9)
    assert [image.confidence for image in gallery.images] == [0.9, None, 0.3, 0.7]


def test_images_of_several_classes_have_no_label_and_are_right_where_all_are_found(real_mnist: Path) -> None:
    data = load_data("multimnist", split="test", partners=1, root=real_mnist)
    found = net(model=small(image_size=36), data=data, images=10)
    complete(found.survey)
    assert found.labels is None
    assert not found.info().has_classes
    with torch.no_grad():
        scores = small(image_size=36).eval()(data.batch(range(10)).images).scores
    both = [set(row.topk(2).indices.tolist()) for row in scores]
    expected = [set(pair) for pair in data.part_labels(list(range(10))).tolist()]
    assert found.survey.hits.tolist() == [one == pair for one, pair in zip(both, expected, strict=True)]
    assert found.survey.pick(label=1, answer=None, mistakes=None, order="index", offset=0, limit=9).total == 0
    history = found.survey.history(0, 0)
    assert history is not None
    assert history.by_class == []


def test_a_survey_takes_as_many_at_once_as_take_no_longer_than_a_stroke_may_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(module.time, "perf_counter", lambda: now[0])
    sizes: list[int] = []

    def examine(start: int, stop: int) -> Batch:
        sizes.append(stop - start)
        now[0] += 0.001 * (stop - start)
        looks = [Look(torch.zeros(2), None, None) for _ in range(start, stop)]
        return Batch(looks, torch.zeros(stop - start, dtype=torch.bool), torch.zeros(stop - start))

    complete(Survey(200, None, [], examine))
    assert sizes[:6] == [1, 2, 4, 8, 16, 30]
    assert max(sizes) == 30
    assert sum(sizes) == 200


def test_all_runs_are_looked_at_in_turn_and_one_that_fails_stops_no_other(caplog: pytest.LogCaptureFixture) -> None:
    good, bad = net("good"), net("bad", data=rectangles(40))
    bad.survey._examine = lambda start, stop: 1 / 0  # type: ignore[assignment, return-value]
    with caplog.at_level(logging.ERROR), Explorer([bad, good]) as explorer:
        while not all(each.survey.is_complete for each in explorer.nets.values()):
            time.sleep(0.005)
    assert (good.survey.done, bad.survey.done) == (12, 0)
    assert "the test images of bad can be looked at no further" in caplog.text


def test_a_net_of_very_many_capsules_has_fewer_images_to_pick(monkeypatch: pytest.MonkeyPatch) -> None:
    assert net().survey.size == 12
    assert net(images=5).survey.size == 5
    monkeypatch.setattr(net_module, "MOST_ACTIVATIONS", 82 * 7)
    assert net(model=small()).survey.size == 7
    assert net().info().images == 7


def test_the_survey_of_a_net_is_what_the_net_says() -> None:
    data: ImageData = rectangles()
    found = net(data=data).survey
    complete(found)
    with torch.no_grad():
        scores = small().eval()(data.images[:].float() / 255).scores
    assert found.answers.tolist() == scores.argmax(dim=1).tolist()
    torch.testing.assert_close(found.confidence, scores.amax(dim=1))
    assert found.hits.tolist() == (scores.argmax(dim=1) == data.labels).tolist()
