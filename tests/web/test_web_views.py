"""Views of every kind of net: stacks, matrix capsules, convolutions, none at all; and what a run on disk brings along."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch
from explored import ask, asked, drawn, net, of_test, rectangles, small
from torch import Tensor, nn

import capsella
from capsella.data import ImageData, from_tensors
from capsella.nn import CapsuleConv2d, CapsuleLinear, PrimaryCapsules
from capsella.train import Run, fit
from capsella.web import examining
from capsella.web.away import without_images
from capsella.web.explorer import Explorer, keys_of
from capsella.web.look import look, negating
from capsella.web.net import Net
from capsella.web.schemas import SeeRequest
from capsella.web.views import Views

SCENE = {"picture": of_test(1)}

NETS = {
    "capsnet_small": ({}, 2),
    "deep_capsnet": ({"depth": 3}, 3),
    "parse_capsnet": ({}, 5),
    "em_capsnet": ({}, 2),
    "gcapsnet_conv": ({}, 2),
    "aff_capsnet": ({}, 2),
    "gcapsnet_fc": ({}, 2),
    "quadratic_capsnet": ({}, 2),
    "convnet_small": ({}, 0),
    "lenet": ({}, 0),
}


@pytest.mark.parametrize("name", NETS)
def test_every_kind_of_net_can_be_asked_everything(name: str) -> None:
    options, layers = NETS[name]
    torch.manual_seed(0)
    model = capsella.create_model(name, **options)
    with asked(net(name, model, rectangles(3)), survey=False) as client:
        (run,) = client.get("/api/about").json()["runs"]
        assert len(run["layers"]) == layers
        assert (run["no_tree"] is None) == (layers > 0)
        scene = {"picture": of_test(1, name)}
        plain = ask(client, "see", {"scene": scene, "draw": 2, "most": 8}, run=name)
        assert len(plain["layers"]) == layers
        assert len(plain["couplings"]) == max(0, layers - 1)
        assert len(plain["reconstructions"]) == (2 if run["knobs"] else int(run["decoder"]))
        negated = ask(client, "see", {"scene": scene, "negate": True}, run=name)
        assert negated["scores"] == plain["scores"] or run["negates"]
        moved = ask(client, "move", {"scene": {**scene, "move": {"shear": 20}}}, run=name)
        assert len(moved["layers"]) == layers
        followed = ask(client, "follow", {"scene": scene, "view": "shear"}, run=name)
        assert len(followed["layers"]) == layers
        for layer in range(layers):
            found = ask(client, "capsule", {"scene": scene, "layer": layer, "capsule": 0}, run=name)
            assert len(found["pose"]) == run["layers"][layer]["dim"]
        if run["knobs"]:
            ask(client, "sheet", {"capsules": plain["capsules"], "class": 0, "offsets": [0]}, run=name)


class Windows(nn.Module):
    """Class capsules in four places, whose lengths are summed."""

    def __init__(self, *, bias: bool) -> None:
        super().__init__()
        self.trunk = nn.Conv2d(1, 8, 9, stride=4)
        self.primary = PrimaryCapsules(8, types=2, dim=4, kernel_size=2, flat=False)
        self.classes = CapsuleConv2d(2, 4, 10, 4, kernel_size=3, bias=bias)

    def forward(self, images: Tensor) -> Tensor:
        return self.classes(self.primary(self.trunk(images))).activations.flatten(1).unflatten(1, (-1, 10)).sum(dim=1)


def test_a_net_whose_couplings_stay_within_windows_has_no_tree_and_can_be_negated() -> None:
    torch.manual_seed(0)
    with asked(net(model=Windows(bias=False)), net("biased", Windows(bias=True))) as client:
        run, _ = client.get("/api/about").json()["runs"]
        assert (run["layers"], run["negates"]) == ([], True)
        assert "a convolution" in run["no_tree"]
        plain, negated = (ask(client, "see", {"scene": SCENE, "negate": negate}) for negate in (False, True))
        assert plain["layers"] == []
        assert negated["scores"] == pytest.approx(plain["scores"], abs=2e-4)
        one, other = (ask(client, "see", {"scene": SCENE, "negate": negate}, run="biased") for negate in (False, True))
        assert one["scores"] != pytest.approx(other["scores"], abs=2e-3)
        says = ask(client, "capsule", {"scene": SCENE, "layer": 0, "capsule": 0}, status=422)["detail"]
        assert says.startswith("run 'small' has no tree: its last capsule layer is a convolution")


def test_layers_are_named_by_what_made_them() -> None:
    names = [[layer.name for layer in net(model=capsella.create_model(name)).layers] for name in ("deep_capsnet", "em_capsnet")]
    assert names == [["primary", "layers.0", "layers.1", "layers.2", "layers.3"], ["layers.1", "layers.2"]]


class OneBelow(Windows):
    """Such capsules under a layer that is coupled with all of them."""

    def __init__(self) -> None:
        super().__init__(bias=False)
        self.top = CapsuleLinear(4 * 10, 4, 10, 4)

    def forward(self, images: Tensor) -> Tensor:
        found = self.classes(self.primary(self.trunk(images)))
        return self.top(found.poses.flatten(1, -2), found.activations.flatten(1)).activations


def test_layers_below_a_tree_are_counted_and_not_drawn() -> None:
    models = [*map(capsella.create_model, ("deep_capsnet", "em_capsnet", "convnet_small")), Windows(bias=False), OneBelow()]
    assert [net(model=model).info().below for model in models] == [
        None,
        "2 convolutional capsule layers below are not drawn: their couplings stay within windows",
        None,
        None,
        "1 convolutional capsule layer below is not drawn: its couplings stay within windows",
    ]


def test_questions_asked_together_are_answered_as_alone() -> None:
    views = Views(net())
    questions = [
        SeeRequest.model_validate({"scene": {"picture": of_test(index), "move": move}, "negate": negate})
        for index, move, negate in ((0, None, False), (1, {"x": 2}, True), (99, None, False), (2, None, False))
    ]
    together = views.see(questions)
    assert isinstance(together[2], ValueError)
    for question, answer in zip(questions, together, strict=True):
        (alone,) = views.see([question])
        if isinstance(answer, Exception) or isinstance(alone, Exception):
            assert str(answer) == str(alone)
            continue
        assert answer.answer == alone.answer
        assert answer.scores == pytest.approx(alone.scores, abs=2e-4)
        assert [layer.shown for layer in answer.layers] == [layer.shown for layer in alone.layers]


def test_those_images_are_negated_that_are_to_be() -> None:
    model: Any = small()
    images = rectangles().images[:3].float() / 255
    plain, mixed = look(model, images), look(model, images, negate=[False, True, False])
    for k in (0, 2):
        torch.testing.assert_close(mixed[k].scores, plain[k].scores)
    torch.testing.assert_close(mixed[1].poses[0], -plain[1].poses[0])
    assert (mixed[1].scores - plain[1].scores).abs().max() > 1e-3
    # of a convolution all windows of an image are.
    matrix: Any = capsella.create_model("em_capsnet").eval()
    both = look(matrix, images, has_tree=False, negate=[False, True, False])
    alone = look(matrix, images[1:2], has_tree=False, negate=[True])
    torch.testing.assert_close(both[1].scores, alone[0].scores, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(both[0].scores, look(matrix, images[:1], has_tree=False)[0].scores, rtol=1e-4, atol=1e-5)


def test_nothing_of_negation_stays_in_the_net() -> None:
    model: Any = small()
    images = rectangles().images[:2].float() / 255
    before = look(model, images)[0].scores
    with pytest.raises(ZeroDivisionError), negating(model, [True]):
        1 / 0  # noqa: B018
    torch.testing.assert_close(look(model, images)[0].scores, before, rtol=0, atol=0)


def test_only_images_can_be_explored() -> None:
    with pytest.raises(ValueError, match="'numbers' was trained on 'sign', whose values are no grey levels; expected images"):
        Net("numbers", capsella.create_model("sign_capsnet"), capsella.load_data("sign", split="test"))


BEASTS = ("ant", "bee", "cat", "dog", "elk", "fox", "gnu", "hen", "ibex", "jay")


def named(names: tuple[str, ...]) -> ImageData:
    data = rectangles()
    return from_tensors(data.images[:], data.labels[:], name="beasts", split="test", class_names=names)


def test_an_image_of_another_set_is_worded_by_its_own_classes() -> None:
    with asked(net(), net("beasts", data=named(BEASTS))) as client:
        digits, beasts = client.get("/api/about").json()["runs"]
        assert (digits["data_classes"], digits["judges"]) == ([str(k) for k in range(10)], True)
        assert (beasts["data_classes"], beasts["judges"]) == (list(BEASTS), True)

        def truth(run: str, of: str) -> tuple[int | None, str | None]:
            sight = ask(client, "see", {"scene": {"picture": of_test(3, of)}}, run=run)
            moved = ask(client, "move", {"scene": {"picture": of_test(3, of), "move": {"x": 1}}}, run=run)
            assert (moved["after"]["label"], moved["after"]["label_name"]) == (sight["label"], sight["label_name"])
            return sight["label"], sight["label_name"]

        assert (truth("small", "small"), truth("beasts", "beasts")) == ((3, "3"), (3, "dog"))
        # classes that have the same number are no more than that.
        assert (truth("small", "beasts"), truth("beasts", "small")) == ((None, "dog"), (None, "3"))
        over = {"picture": of_test(3), "over": {"picture": of_test(1)}}
        for picture in (over, {"picture": drawn(rectangles().images[0])}):
            sight = ask(client, "see", {"scene": picture})
            assert (sight["label"], sight["label_name"]) == (None, None)


def test_a_run_that_is_shown_another_set_is_neither_right_nor_wrong() -> None:
    with asked(net(class_names=BEASTS)) as client:
        (run,) = client.get("/api/about").json()["runs"]
        assert (run["class_names"], run["data_classes"], run["judges"]) == (list(BEASTS), [str(k) for k in range(10)], False)
        found = ask(client, "images", label=3)
        assert [(each["index"], each["label"], each["label_name"]) for each in found["images"]] == [(3, None, "3")]
        assert found["images"][0]["answer"] is not None
        for mistakes in ("true", "false"):
            assert ask(client, "images", mistakes=mistakes)["total"] == 0
        # means by class are those of the data's classes.
        history = ask(client, "capsule", {"scene": SCENE, "layer": 0, "capsule": 5})["history"]
        own = net().survey
        while not own.is_complete:
            own.go_on()
        expected = own.history(0, 5)
        assert expected is not None
        assert history["by_class"] == pytest.approx(expected.by_class)


def test_a_set_of_fewer_or_more_classes_of_the_same_names_is_judged() -> None:
    for names in (BEASTS[:4], (*BEASTS, "kiwi")):
        images = rectangles(4).images[:]
        data = from_tensors(images, torch.arange(4) + len(names) - 4, name="beasts", split="test", class_names=names)
        found = net(class_names=BEASTS, data=data)
        assert found.judges
        assert [found.truth(SeeRequest.model_validate({"scene": {"picture": of_test(k)}}).scene) for k in (0, 3)] == [
            (len(names) - 4, names[-4]),
            (len(names) - 1, names[-1]),
        ]


def test_the_doctor_measures_no_accuracy_by_classes_that_a_run_does_not_know(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Any] = []

    def diagnose(model: Any, images: Tensor, labels: Any, **options: Any) -> Any:
        given.append(labels)
        raise ValueError("enough")

    monkeypatch.setattr(examining, "diagnose", diagnose)
    for data in (named(BEASTS), rectangles()):
        with pytest.raises(ValueError, match="enough"):
            examining.examined(Net.of("run", Run.load(folder), data))
    assert given[0] is None
    assert given[1].tolist() == rectangles().labels.tolist()


def test_an_explorer_needs_runs_of_different_keys() -> None:
    with pytest.raises(ValueError, match="nets is empty"):
        Explorer([])
    with pytest.raises(ValueError, match="expected each once"):
        Explorer([net(), net()])


def test_folders_of_any_names_have_keys_of_their_own(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("a", "b/a", "c/a", "c/a", "Größe 1!", "%2e%2e", "c-a-2")]
    keys = keys_of(folders)
    assert len(set(keys)) == len(keys)
    assert keys[1:4] == ["b-a", "c-a", "c-a-2"]
    assert keys[4:] == ["gr-e-1", "2e-2e", "c-a-2-2"]
    assert all(key.isascii() and "/" not in key for key in keys)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short run on disk."""
    place = tmp_path_factory.mktemp("runs") / "run"
    data = from_tensors(rectangles(40).images[:], torch.arange(40) % 10, name="rectangles")
    fit(small(), data, steps=4, batch_size=8, watch=2, log_every=1, folder=place, progress=False, device="cpu")
    return place


def test_a_run_brings_its_curves_and_facts_along(folder: Path) -> None:
    run = Run.load(folder)
    found = Net.of("run", run, rectangles(), title="my run")
    info = found.info()
    assert (info.title, info.model, info.key) == ("my run", "capsnet_small", "run")
    facts = dict(info.facts)
    assert facts["trained on"] == "rectangles/train, 40 images"
    assert facts["how it ended"] == "finished"
    with Explorer([found]) as explorer:
        plots = {plot.title: plot for plot in explorer.curves("run").plots}
        assert {"Accuracy", "Loss", "Dead capsules", "Mean activation"} <= plots.keys()
        assert [curve.name for curve in plots["Dead capsules"].curves] == ["layer 1", "layer 2"]
        assert plots["Loss"].curves[0].x == [8.0, 16.0, 24.0, 32.0]


def test_a_run_whose_images_are_away_answers_drawings(folder: Path) -> None:
    run = Run.load(folder)
    found, there = (Net.of("run", run, data) for data in (no_images(run.config), rectangles()))
    picture = drawn(rectangles().images[3])
    with asked(found) as client, asked(there) as other:
        (about,) = client.get("/api/about").json()["runs"]
        assert (about["images"], about["data"], about["split"], about["judges"]) == (0, "rectangles", "test", True)
        assert ask(client, "images", run="run") == {"total": 0, "images": [], "surveyed": {"done": 0, "of": 0}}
        scene = {"picture": picture}
        here = ask(client, "see", {"scene": scene}, run="run")
        assert here["scores"] == ask(other, "see", {"scene": scene}, run="run")["scores"]
        assert {dead for layer in here["layers"] for dead in layer["dead"]} == {None}
        assert ask(client, "move", {"scene": scene}, run="run")["layers"][0]["chance"] is None
        assert ask(client, "follow", {"scene": scene, "view": "x"}, run="run")["chance"] == [None, None]
        assert ask(client, "capsule", {"scene": scene, "layer": 0, "capsule": 0}, run="run")["history"] is None
        says = ask(client, "see", {"scene": {"picture": of_test(0, "run")}}, run="run", status=422)["detail"]
        assert says == "index=0 is not there; expected nothing: there are none"
    with pytest.raises(ValueError, match="run 'run' has no images to be examined with: gone"):
        examining.examined(Net.of("run", run, no_images(run.config), away="gone"))


@pytest.mark.parametrize("scheme", ["unit", "centred", "standardise", "peer2022"])
def test_inputs_are_made_without_images_only_as_they_are_made_with_them(scheme: str) -> None:
    images = rectangles().images[:]
    data = from_tensors(images, torch.arange(12) % 10, split="test", normalise=scheme)
    trained = {
        "name": "r",
        "options": data.options,
        "image_shape": list(data.image_shape),
        "class_names": list(data.class_names),
    }
    away = without_images({"data": {"train": trained}}, "test")
    if scheme == "peer2022":
        assert away is None
        return
    assert away is not None
    assert (len(away), away.image_shape, away.class_names) == (0, data.image_shape, data.class_names)
    torch.testing.assert_close(away.normalise(images), data.normalise(images), rtol=0, atol=0)


def no_images(config: dict[str, Any]) -> ImageData:
    found = without_images(config, "test")
    assert found is not None
    return found


def test_the_doctor_examines_a_run_while_questions_are_answered(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examining, "SAMPLE", 8)
    before = {key: value.clone() for key, value in Run.load(folder).model.state_dict().items()}
    found = Net.of("run", Run.load(folder), rectangles())
    with asked(found) as client:
        assert client.post("/api/runs/run/doctor").json()["state"] in ("working", "ready")
        answers = [ask(client, "see", {"scene": {"picture": of_test(0, "run")}}, run="run")["scores"] for _ in range(5)]
        deadline = time.monotonic() + 60
        while (state := ask(client, "doctor", run="run"))["state"] == "working":
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert state == {"state": "ready", "page": "/runs/run/doctor", "problem": None}
        page = client.get("/runs/run/doctor").text
        assert "capsnet_small on rectangles/test" in page
        assert 'data-part="tree"' in page
    assert answers == [answers[0]] * 5
    assert all(torch.equal(value, before[key]) for key, value in found.model.state_dict().items())


def test_a_net_that_lies_nowhere_cannot_be_examined() -> None:
    with asked() as client:
        client.post("/api/runs/small/doctor")
        deadline = time.monotonic() + 10
        while (state := ask(client, "doctor"))["state"] == "working":
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert state["state"] == "failed"
        assert state["problem"] == "run 'small' lies in no folder; expected one that was written to disk"


def test_a_net_of_ones_own_can_be_explored() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 10))
    with asked(net(model=model)) as client:
        sight = ask(client, "see", {"scene": SCENE})
        with torch.no_grad():
            expected = model(rectangles().images[1].float()[None] / 255)[0]
        assert sight["scores"] == pytest.approx(expected.tolist(), abs=1e-4)
        assert ask(client, "images", order="sure")["total"] == 12
