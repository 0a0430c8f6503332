"""The API: what each route answers is what the network does, and what is wrong with a question is said in one line."""

from __future__ import annotations

import io
import math
import time
from typing import Any

import pytest
import torch
from explored import ask, asked, drawn, net, of_test, one_line, pixels, rectangles, small
from fastapi.testclient import TestClient
from PIL import Image

import capsella
from capsella.web.explorer import Explorer
from capsella.web.guard import Caps
from capsella.web.net import Net
from capsella.web.schemas import SeeRequest

SCENE = {"picture": of_test(3)}


@pytest.fixture(scope="module")
def client() -> Any:
    """Two capsule nets, with a bias and without, and a ConvNet."""
    plain = capsella.create_model("convnet_small")
    with asked(net(), net("blind", small(bias=False)), net("plain", plain)) as found:
        yield found


def images(count: int = 12) -> torch.Tensor:
    return rectangles(count).images[:]


def prediction(model: Any, levels: torch.Tensor) -> Any:
    with torch.no_grad():
        return model.eval()(levels.float()[None] / 255)


def test_about_says_which_runs_there_are(client: TestClient) -> None:
    about = client.get("/api/about").json()
    assert about["version"] == capsella.__version__
    assert [run["key"] for run in about["runs"]] == ["small", "blind", "plain"]
    first, _, plain = about["runs"]
    assert (first["channels"], first["height"], first["width"], first["images"]) == (1, 28, 28, 12)
    assert (first["data"], first["split"], first["model"]) == ("rectangles", "test", "capsnet_small")
    assert first["parameters"] == sum(each.numel() for each in small().parameters())
    assert [(layer["capsules"], layer["dim"], layer["routing"], layer["iterations"]) for layer in first["layers"]] == [
        (72, 8, None, None),
        (10, 8, "agreement", 3),
    ]
    assert (first["decoder"], first["knobs"], first["negates"], first["no_tree"]) == (True, True, True, None)
    assert (plain["layers"], plain["knobs"], plain["negates"]) == ([], False, False)
    assert plain["no_tree"] == "it has no layer of capsules that routes"
    assert about["limits"]["upload_bytes"] == Caps().upload_bytes


def test_what_is_seen_is_what_the_network_makes_of_the_image(client: TestClient) -> None:
    sight = ask(client, "see", {"scene": SCENE, "most": 256, "draw": 1})
    expected = prediction(small(), images()[3])
    assert sight["scores"] == pytest.approx(expected.scores[0].tolist(), abs=1e-4)
    assert sight["answer"] == int(expected.scores.argmax())
    assert sight["certainties"] == sight["scores"]
    assert sight["confidence"] == max(sight["scores"])
    assert sight["label"] == 3
    assert torch.equal(pixels(sight["image"]), images()[3])
    (reconstruction,) = sight["reconstructions"]
    assert reconstruction["class"] == sight["answer"]
    difference = pixels(reconstruction["image"]).float() - 255 * expected.reconstruction[0]
    assert difference.abs().max() <= 0.51
    torch.testing.assert_close(torch.tensor(sight["capsules"]), expected.capsules[0], atol=1e-4, rtol=0)


def test_the_tree_is_the_networks_routing_iteration_by_iteration(client: TestClient) -> None:
    sight = ask(client, "see", {"scene": SCENE, "most": 256})
    model: Any = small().eval()
    with torch.no_grad():
        (routed,) = model.routed(images()[3].float()[None] / 255)
        lower = model.capsules(images()[3].float()[None] / 255)[0][0]
    assert [layer["capsules"] for layer in sight["layers"]] == [72, 10]
    assert [layer["shown"] for layer in sight["layers"]] == [list(range(72)), list(range(10))]
    torch.testing.assert_close(torch.tensor(sight["layers"][0]["activations"]), lower.norm(dim=-1), atol=1e-4, rtol=0)
    torch.testing.assert_close(torch.tensor(sight["layers"][1]["activations"]), routed.activations[0], atol=1e-4, rtol=0)
    (gap,) = sight["couplings"]
    first, _, last = torch.tensor(gap)
    torch.testing.assert_close(first, torch.full((72, 10), 0.1))
    torch.testing.assert_close(last, routed.couplings[0], atol=1e-4, rtol=0)
    assert (last - first).abs().max() > 0.01


def test_a_tree_shows_the_strongest_capsules(client: TestClient) -> None:
    everything = ask(client, "see", {"scene": SCENE, "most": 256})
    few = ask(client, "see", {"scene": SCENE, "most": 4})
    for whole, part in zip(everything["layers"], few["layers"], strict=True):
        weakest = sorted(whole["activations"])[-4]
        assert len(part["shown"]) == 4
        assert part["shown"] == sorted(part["shown"])
        assert min(part["activations"]) == weakest
        assert part["activations"] == [whole["activations"][number] for number in part["shown"]]
        assert part["active"] == whole["active"]
    lower, upper = (layer["shown"] for layer in few["layers"])
    assert few["couplings"][0][2] == [[everything["couplings"][0][2][i][j] for j in upper] for i in lower]


def test_a_drawing_is_seen_as_the_image_it_is(client: TestClient) -> None:
    there, here = (ask(client, "see", {"scene": {"picture": picture}}) for picture in (of_test(5), drawn(images()[5])))
    assert here["label"] is None
    for name in ("scores", "layers", "couplings", "image", "reconstructions"):
        assert here[name] == there[name]
    # smaller drawings are put into the middle, in colour they are seen in grey.
    sight = ask(client, "see", {"scene": {"picture": drawn(torch.full((3, 20, 20), 200, dtype=torch.uint8))}})
    middle = torch.zeros(1, 28, 28, dtype=torch.uint8)
    middle[:, 4:24, 4:24] = 200
    assert torch.equal(pixels(sight["image"]), middle)


def test_a_picture_of_another_run_can_be_seen(client: TestClient) -> None:
    own, others = (ask(client, "see", {"scene": {"picture": of_test(2, run)}}) for run in ("small", "plain"))
    assert own["scores"] == others["scores"]
    plain = ask(client, "see", {"scene": {"picture": of_test(2)}}, run="plain")
    assert (plain["layers"], plain["couplings"], plain["capsules"], plain["reconstructions"]) == ([], [], None, [])
    # logits are no shares: certainties are.
    assert sum(plain["certainties"]) == pytest.approx(1, abs=1e-3)
    assert plain["confidence"] == max(plain["certainties"])
    assert plain["certainties"] == pytest.approx(torch.tensor(plain["scores"]).softmax(dim=0).tolist(), abs=1e-3)


def test_two_pictures_lie_over_each_other_and_both_are_drawn(client: TestClient) -> None:
    over = {"picture": of_test(1), "x": 3, "y": -2}
    sight = ask(client, "see", {"scene": {"picture": of_test(0), "over": over}, "draw": 2})
    first, second = images()[0].int(), images()[1].int()
    shifted = torch.zeros_like(second)
    shifted[:, :-2, 3:] = second[:, 2:, :-3]
    both = (first + shifted).clamp(max=255)
    assert torch.equal(pixels(sight["image"]).int(), both)
    assert sight["label"] is None
    model: Any = small()
    expected = prediction(model, both)
    likeliest = expected.scores[0].argsort(descending=True)[:2]
    assert [each["class"] for each in sight["reconstructions"]] == likeliest.tolist()
    with torch.no_grad():
        images_of_both = model.reconstruct(expected.capsules.expand(2, -1, -1), likeliest)
    for each, image in zip(sight["reconstructions"], images_of_both, strict=True):
        assert (pixels(each["image"]).float() - 255 * image).abs().max() <= 0.51


def test_an_image_that_is_not_moved_has_the_same_tree(client: TestClient) -> None:
    moved = ask(client, "move", {"scene": SCENE})
    assert {**moved["before"], "milliseconds": 0} == {**moved["after"], "milliseconds": 0}
    assert [layer["correlation"] for layer in moved["layers"]] == [1, 1]


def test_the_tree_of_a_moved_image_stands_beside_the_first(client: TestClient) -> None:
    move = {"rotation": 40, "x": 2.5, "scale": 1.2}
    moved = ask(client, "move", {"scene": {**SCENE, "move": move}, "most": 6})
    assert [layer["shown"] for layer in moved["before"]["layers"]] == [layer["shown"] for layer in moved["after"]["layers"]]
    assert moved["before"]["image"] != moved["after"]["image"]
    before, after = (ask(client, "see", {"scene": scene, "most": 256}) for scene in (SCENE, {**SCENE, "move": move}))
    for number, layer in enumerate(moved["layers"]):
        a, b = (torch.tensor(sight["layers"][number]["activations"], dtype=torch.float64) for sight in (before, after))
        assert layer["correlation"] == pytest.approx(float(a @ b / a.norm() / b.norm()), abs=2e-4)
        assert layer["correlation"] < 1
        assert 0 < layer["chance"] <= 1


def test_chance_is_the_mean_correlation_with_the_test_images(client: TestClient) -> None:
    model: Any = small().eval()
    with torch.no_grad():
        rows = model.capsules(images().float() / 255)[0].norm(dim=-1).double()
    units = rows / rows.norm(dim=1, keepdim=True)
    found = ask(client, "move", {"scene": SCENE})["layers"][0]["chance"]
    assert found == pytest.approx(float((units @ units[3]).mean()), abs=1e-4)


def test_a_change_is_followed_from_one_end_to_the_other(client: TestClient) -> None:
    for view, middle, ends in (("rotation", 0, (-180, 180)), ("scale", 1, (0.5, 2)), ("x", 0, (-9.33, 9.33))):
        followed = ask(client, "follow", {"scene": SCENE, "view": view})
        amounts = followed["amounts"]
        assert (amounts[0], amounts[len(amounts) // 2], amounts[-1]) == (ends[0], middle, ends[1])
        assert amounts == sorted(amounts)
        still = amounts.index(middle)
        for layer in followed["layers"]:
            assert layer[still] == 1
            assert len(layer) == len(amounts)
            assert min(layer) < 1
        sight = ask(client, "see", {"scene": SCENE})
        assert followed["answers"][still] == sight["answer"]
        assert followed["scores"][still] == pytest.approx(sight["confidence"], abs=1e-4)


def test_a_net_without_bias_does_not_notice_that_its_capsules_are_negated(client: TestClient) -> None:
    for run, notices in (("blind", False), ("small", True)):
        plain, negated = (
            ask(client, "see", {"scene": SCENE, "most": 256, "negate": negate}, run=run) for negate in (False, True)
        )
        assert (plain["scores"] != negated["scores"]) == notices
        assert plain["layers"][0] == negated["layers"][0]
        signs = torch.tensor(plain["capsules"]) + torch.tensor(negated["capsules"])
        assert bool(signs.abs().max() < 1e-3) == (not notices)


def test_a_capsule_tells_pose_field_and_history(client: TestClient) -> None:
    found = ask(client, "capsule", {"scene": SCENE, "layer": 0, "capsule": 5})
    model: Any = small().eval()
    with torch.no_grad():
        poses = model.capsules(images().float() / 255)[0]
    assert found["pose"] == pytest.approx(poses[3, 5].tolist(), abs=1e-4)
    assert found["activation"] == pytest.approx(float(poses[3, 5].norm()), abs=1e-4)
    box = found["box"]
    assert box == {"left": 0, "top": 0, "right": 18, "bottom": 18}
    field = pixels(found["sensitivity"])[0]
    assert field.max() == 255
    outside = field.clone()
    outside[box["top"] : box["bottom"] + 1, box["left"] : box["right"] + 1] = 0
    assert outside.max() == 0
    lengths = poses[:, 5].norm(dim=-1)
    history = found["history"]
    assert history["images"] == 12
    assert sum(history["counts"]) == 12
    assert history["mean"] == pytest.approx(float(lengths.mean()), abs=1e-5)
    assert history["std"] == pytest.approx(float(lengths.std(unbiased=False)), abs=1e-5)
    assert history["strongest"][0] == int(lengths.argmax())
    assert history["by_class"][2] == pytest.approx(float(lengths[[2]].mean()), abs=1e-5)
    assert history["by_class"][1] == pytest.approx(float(lengths[[1, 11]].mean()), abs=1e-5)
    assert found["surveyed"] == {"done": 12, "of": 12}


def test_a_class_capsule_sees_the_whole_image(client: TestClient) -> None:
    found = ask(client, "capsule", {"scene": SCENE, "layer": 1, "capsule": 0})
    assert found["box"] == {"left": 0, "top": 0, "right": 26, "bottom": 26}
    negated = ask(client, "capsule", {"scene": SCENE, "layer": 1, "capsule": 0, "negate": True})
    assert negated["pose"] != found["pose"]
    assert negated["sensitivity"] != found["sensitivity"]


@pytest.mark.parametrize(
    ("body", "run", "says"),
    [
        ({"layer": 2, "capsule": 0}, "small", "layer=2 is not there; expected 0 to 1"),
        ({"layer": 1, "capsule": 10}, "small", "capsule=10 is not there; expected 0 to 9"),
        ({"layer": 0, "capsule": 0}, "plain", "run 'plain' has no tree: it has no layer of capsules that routes"),
    ],
)
def test_a_capsule_that_is_not_there(client: TestClient, body: dict[str, int], run: str, says: str) -> None:
    assert ask(client, "capsule", {"scene": SCENE, **body}, run=run, status=422)["detail"] == says


def test_turned_knobs_change_the_drawing(client: TestClient) -> None:
    sight = ask(client, "see", {"scene": SCENE})
    capsules, answer = sight["capsules"], sight["answer"]
    same = ask(client, "reconstruct", {"capsules": capsules, "class": answer})
    assert same["class"] == answer
    (own,) = sight["reconstructions"]
    assert (pixels(same["image"]).int() - pixels(own["image"]).int()).abs().max() <= 1
    turned = [list(row) for row in capsules]
    turned[answer][2] += 0.5
    other = ask(client, "reconstruct", {"capsules": turned, "class": answer})
    assert other["image"] != same["image"]
    expected = small()
    with torch.no_grad():
        image = expected.reconstruct(torch.tensor([turned]), torch.tensor([answer]))[0]  # type: ignore[operator]
    assert (pixels(other["image"]).float() - 255 * image).abs().max() <= 0.51
    sheet = ask(client, "sheet", {"capsules": capsules, "class": answer, "offsets": [-0.5, 0, 0.5]})
    tiles = pixels(sheet["image"]).reshape(1, 8, 28, 3, 28)
    assert (sheet["rows"], sheet["offsets"]) == (8, [-0.5, 0, 0.5])
    assert torch.equal(tiles[:, 2, :, 2], pixels(other["image"]))
    assert all(torch.equal(tiles[:, row, :, 1], pixels(same["image"])) for row in range(8))


@pytest.mark.parametrize(
    ("capsules", "drawn_class", "run", "says"),
    [
        ([[0.0] * 8] * 10, 10, "small", "class=10 is not there; expected 0 to 9"),
        ([[0.0] * 8] * 9, 0, "small", "capsules has 9 rows of 8 values; expected 10 rows of 8"),
        ([[0.0] * 8] * 9 + [[0.0]], 0, "small", "capsules has 10 rows of 1 or 8 values; expected 10 rows of 8"),
        ([], 0, "small", "capsules has 0 rows of no values; expected 10 rows of 8"),
        (
            [[0.0] * 8] * 10,
            0,
            "plain",
            "run 'plain' draws nothing from class capsules",
        ),
    ],
)
def test_capsules_that_cannot_be_drawn(client: TestClient, capsules: Any, drawn_class: int, run: str, says: str) -> None:
    body = {"capsules": capsules, "class": drawn_class}
    for what in ("reconstruct", "sheet"):
        assert ask(client, what, body, run=run, status=422)["detail"].startswith(says)


def test_images_are_picked_by_class_confidence_and_mistake(client: TestClient) -> None:
    model: Any = small()
    scores = torch.cat([prediction(model, image).scores for image in images()])
    answers, labels = scores.argmax(dim=1).tolist(), [k % 10 for k in range(12)]
    everything = ask(client, "images", limit=12)
    assert everything["total"] == 12
    assert [image["index"] for image in everything["images"]] == list(range(12))
    assert [image["answer"] for image in everything["images"]] == answers
    assert [image["label"] for image in everything["images"]] == labels
    sure = ask(client, "images", order="sure", limit=12)["images"]
    assert [image["confidence"] for image in sure] == sorted((image["confidence"] for image in sure), reverse=True)
    unsure = ask(client, "images", order="unsure", limit=3)["images"]
    assert [image["confidence"] for image in unsure] == sorted(image["confidence"] for image in sure)[:3]
    assert [image["index"] for image in ask(client, "images", label=1)["images"]] == [1, 11]
    wrong = [k for k in range(12) if answers[k] != labels[k]]
    assert [image["index"] for image in ask(client, "images", mistakes=True)["images"]] == wrong
    assert ask(client, "images", mistakes=False)["total"] == 12 - len(wrong)
    assert ask(client, "images", answer=answers[0])["total"] == answers.count(answers[0])
    page = ask(client, "images", offset=10, limit=5)
    assert (page["total"], [image["index"] for image in page["images"]]) == (12, [10, 11])
    assert ask(client, "images", label=99)["images"] == []


def test_a_test_image_is_a_file_of_its_own_size(client: TestClient) -> None:
    response = client.get("/api/runs/small/images/4")
    assert (response.status_code, response.headers["content-type"]) == (200, "image/png")
    with Image.open(io.BytesIO(response.content)) as image:
        assert (image.format, image.size) == ("PNG", (28, 28))
        levels = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8).reshape(1, 28, 28)
    assert torch.equal(levels, images()[4])
    assert "index=12 is not there; expected 0 to 11" in ask(client, "images/12", status=404)["detail"]


def test_before_the_survey_nothing_is_known_of_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Explorer, "_look_on", lambda self: False)
    with asked(survey=False) as client:
        assert ask(client, "survey") == {"done": 0, "of": 12}
        first = ask(client, "images", limit=1)["images"][0]
        assert (first["label"], first["answer"], first["confidence"]) == (0, None, None)
        assert ask(client, "images", order="sure")["total"] == 0
        capsule = ask(client, "capsule", {"scene": SCENE, "layer": 0, "capsule": 0})
        assert capsule["history"] is None
        moved = ask(client, "move", {"scene": SCENE})
        assert [layer["chance"] for layer in moved["layers"]] == [None, None]
        assert set(moved["before"]["layers"][0]["dead"]) == {None}


def test_dead_capsules_are_marked() -> None:
    model: Any = small(bias=False)
    with torch.no_grad():
        model.layers[-1].weight[:, 4] = 0
    with asked(net(model=model)) as client:
        dead = ask(client, "see", {"scene": SCENE})["layers"][1]["dead"]
        assert dead == [number == 4 for number in range(10)]
        capsule = ask(client, "capsule", {"scene": SCENE, "layer": 1, "capsule": 4})
        assert capsule["history"]["dead"]
        assert capsule["peak"] == 0
        assert pixels(capsule["sensitivity"]).max() == 0


def file_of(levels: torch.Tensor, kind: str = "PNG") -> bytes:
    file = io.BytesIO()
    Image.fromarray(levels.movedim(0, -1).squeeze(-1).numpy()).save(file, kind)
    return file.getvalue()


def upload(client: TestClient, content: bytes, *, kind: str = "image/png", **query: Any) -> Any:
    return client.post("/api/runs/small/upload", content=content, headers={"content-type": kind}, params=query)


def test_an_uploaded_file_becomes_grey_levels(client: TestClient) -> None:
    levels = images()[6]
    assert torch.equal(pixels(upload(client, file_of(levels)).json()), levels)
    assert torch.equal(pixels(upload(client, file_of(levels), invert=True).json()), 255 - levels)
    large = levels.repeat_interleave(3, dim=1).repeat_interleave(3, dim=2)
    scaled = pixels(upload(client, file_of(large.repeat(3, 1, 1), "BMP"), kind="application/octet-stream").json())
    assert scaled.shape == (1, 28, 28)
    assert (scaled.int() - levels.int()).abs().float().mean() < 8


@pytest.mark.parametrize(
    ("content", "kind", "status", "says"),
    [
        (b"", "image/png", 422, "the file is no image that can be read"),
        (b"\x89PNG\r\n\x1a\n" + b"\0" * 40, "image/png", 422, "expected PNG, JPEG, WEBP, BMP, GIF"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "image/svg+xml", 422, "no image that can be read"),
        (b"x", "text/plain", 415, "content-type='text/plain' is no image file's"),
        (b"x", "multipart/form-data; boundary=x", 415, "expected image/…"),
    ],
)
def test_what_is_no_image_is_refused(client: TestClient, content: bytes, kind: str, status: int, says: str) -> None:
    response = upload(client, content, kind=kind)
    assert response.status_code == status
    assert says in one_line(response)


def test_a_file_cut_off_anywhere_is_refused_or_read_and_fails_nowhere() -> None:
    with asked(caps=Caps(uploads=10_000)) as client:
        for kind in ("PNG", "JPEG", "GIF", "BMP", "WEBP"):
            content = file_of(images()[6].repeat(3, 1, 1), kind)
            for end in range(0, len(content), max(1, len(content) // 12)):
                assert upload(client, content[:end]).status_code in (200, 422)
            for place in range(0, len(content), max(1, len(content) // 12)):
                broken = content[:place] + bytes([content[place] ^ 0xFF]) + content[place + 1 :]
                assert upload(client, broken).status_code in (200, 413, 422)


def test_uploads_are_capped_in_bytes_pixels_and_rate() -> None:
    with asked(caps=Caps(upload_bytes=2000, upload_pixels=30 * 30, uploads=3, upload_seconds=1000)) as client:
        many = upload(client, file_of(torch.zeros(1, 31, 30, dtype=torch.uint8)))
        assert many.status_code == 413
        assert one_line(many) == "the image has 30 × 31 pixels; expected at most 900 in all"
        heavy = upload(client, b"\0" * 2001)
        assert heavy.status_code == 413
        assert "expected at most 2,000" in one_line(heavy)
        assert upload(client, file_of(images()[0])).status_code == 200
        often = upload(client, file_of(images()[0]))
        assert often.status_code == 429
        assert "too many uploads" in one_line(often)
        assert often.headers["retry-after"] == "1"
        # questions go on being answered.
        ask(client, "see", {"scene": SCENE})


def test_curves_are_those_of_the_run() -> None:
    events = [{"event": "log", "images": 64 * k, "step": k, "loss": 1 / k, "accuracy": k / 10} for k in (1, 2, 3)]
    with asked(net(events=events)) as client:
        accuracy, loss = ask(client, "curves")["plots"]
        assert (accuracy["title"], loss["title"]) == ("Accuracy", "Loss")
        assert accuracy["curves"][0] == {"name": "in training", "x": [64, 128, 192], "y": [0.1, 0.2, 0.3]}


def wait_for_report(client: TestClient, state: str) -> Any:
    for _ in range(2000):
        found = ask(client, "doctor")
        if found["state"] == state:
            return found
        assert found["state"] == "working"
        time.sleep(0.01)
    pytest.fail("the report is not there")


def test_the_doctors_report_is_made_when_somebody_asks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    def examine(net: Net) -> str:
        made.append(net.key)
        if len(made) == 1:
            raise ValueError("not\ntoday")
        return "<!doctype html><title>report</title>"

    explorer_runs = [net(), net("other")]
    with asked(*explorer_runs) as client:
        explorer: Explorer = client.app._app.state.explorer  # type: ignore[attr-defined]
        examination = explorer.examination("small")
        monkeypatch.setattr(examination, "_examine", examine)
        assert ask(client, "doctor") == {"state": "none", "page": "/runs/small/doctor", "problem": None}
        missing = client.get("/runs/small/doctor")
        assert missing.status_code == 404
        assert "POST /api/runs/small/doctor begins it" in one_line(missing)
        ask(client, "doctor", {})
        assert wait_for_report(client, "failed")["problem"] == "not today"
        ask(client, "doctor", {})
        assert wait_for_report(client, "ready")["page"] == "/runs/small/doctor"
        ask(client, "doctor", {})
        assert made == ["small", "small"]
        page = client.get("/runs/small/doctor")
        assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
        assert "default-src 'none'" in page.headers["content-security-policy"]
        assert "'self'" not in page.headers["content-security-policy"]
        assert "title>report" in page.text
        assert ask(client, "doctor", run="other")["state"] == "none"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"scene": {"picture": of_test(12)}}, "index=12 is not there; expected 0 to 11"),
        ({"scene": {"picture": of_test(-1)}}, "scene.picture.test.index=-1: input should be greater than or equal to 0"),
        ({"scene": {"picture": of_test(0, "smal")}}, "run='smal' is unknown; did you mean 'small'?"),
        ({"scene": {"picture": {"kind": "drawn", "height": 2, "width": 2, "data": "AAA="}}}, "data has 2 bytes; expected 4"),
        ({"scene": {"picture": {"kind": "drawn", "height": 2, "width": 2, "data": "!!"}}}, "data is no base64"),
        ({"scene": {"picture": {"kind": "drawn", "height": 2, "width": 2, "data": "äöü"}}}, "data is no base64"),
        ({"scene": {"picture": {"kind": "file", "path": "/etc/passwd"}}}, "'kind' does not match any of the expected tags"),
        ({"scene": {**SCENE, "move": {"scale": 0}}}, "scene.move.scale=0: input should be greater than or equal to 0.1"),
        ({"scene": {**SCENE, "move": {"rotate": 3}}}, "scene.move.rotate=3: extra inputs are not permitted"),
        ({"scene": {"picture": {**of_test(0), "index": False}}}, "index=False: input should be a valid integer"),
        ({"scene": {"picture": {**of_test(0), "index": "1"}}}, "index='1': input should be a valid integer"),
        ({"scene": SCENE, "negate": 1}, "negate=1: input should be a valid boolean"),
        ({"scene": {**SCENE, "move": {"x": True}}}, "scene.move.x=True: input should be a valid number"),
        ({"scene": SCENE, "most": 0}, "most=0: input should be greater than or equal to 1"),
        ({"scene": SCENE, "draw": True}, "draw"),
        ({}, "scene: field required"),
        ([], "the request: input should be"),
    ],
)
def test_a_question_that_makes_no_sense_is_told_why(client: TestClient, change: Any, says: str) -> None:
    if change == {"scene": SCENE, "draw": True}:
        change["draw"] = "two"
    assert says in ask(client, "see", change, status=422)["detail"]


@pytest.mark.parametrize(
    ("content", "status", "says"),
    [
        (b"{", 400, "the body is no JSON from character 1 on: expecting property name enclosed in double quotes"),
        (b"\xff\xfe", 400, "the body is no JSON from character 0 on"),
        (b"\xc3(", 400, "the body is no text in UTF-8; expected JSON that /api/openapi.json describes"),
        (b"[" * 100_000, 400, "the body is nested too deeply; expected JSON that"),
        (b"1" * 10_000, 400, "the body has a number of too many digits; expected JSON that"),
        (b'{"scene": {"picture": {"kind": "test", "run": "\\ud800", "index": 0}}}', 422, ""),
        (b'{"scene": 1, "\\ud800": 0}', 422, ""),
        (b'{"scene": {"picture": {"kind": "test", "run": "small", "index": 0}, "move": {"rotation": NaN}}}', 422, ""),
        (b'{"scene": {"picture": {"kind": "test", "run": "small", "index": 1e400}}}', 422, ""),
        (b"", 422, ""),
        (b"null", 422, ""),
    ],
)
def test_bytes_that_are_no_question_are_refused(client: TestClient, content: bytes, status: int, says: str) -> None:
    response = client.post("/api/runs/small/see", content=content, headers={"content-type": "application/json"})
    assert response.status_code == status
    assert says in one_line(response)


def test_a_question_must_say_that_it_is_json(client: TestClient) -> None:
    body = b'{"scene": {"picture": {"kind": "test", "run": "small", "index": 0}}}'
    for headers in ({"content-type": "text/plain"}, {"content-type": "application/x-www-form-urlencoded"}, {}):
        response = client.post("/api/runs/small/see", content=body, headers=headers)
        assert response.status_code == 422
        one_line(response)


@pytest.mark.parametrize(
    ("method", "path", "status", "says"),
    [
        ("GET", "/api/runs/smal/survey", 404, "run='smal' is unknown; did you mean 'small'?"),
        ("GET", "/api/runs/%00/survey", 404, "is unknown"),
        ("GET", "/api/nothing", 404, "/api/nothing is not here"),
        ("GET", "/docs", 404, "/docs is not here"),
        ("GET", "/api/runs/small/see", 405, "/api/runs/small/see takes no GET"),
        ("DELETE", "/api/about", 405, "takes no DELETE"),
        ("GET", "/api/runs/small/images?limit=0", 422, "limit='0': input should be greater than or equal to 1"),
        ("GET", "/api/runs/small/images?order=size", 422, "order='size'"),
        ("GET", "/api/runs/small/images/first", 422, "index='first': expected a whole number"),
        ("GET", "/api/runs/small/images/1.0", 422, "index='1.0': expected a whole number"),
        ("GET", "/api/runs/small/images?label=١", 422, "expected a whole number"),
        ("GET", "/api/runs/small/images?label=", 422, "expected a whole number"),
        ("GET", "/api/runs/small/images?mistakes=1", 422, "mistakes='1': expected true or false"),
    ],
)
def test_an_address_that_is_none_is_told_so(client: TestClient, method: str, path: str, status: int, says: str) -> None:
    response = client.request(method, path)
    assert response.status_code == status
    assert says in one_line(response)


def test_a_method_that_is_none_is_told_which_are(client: TestClient) -> None:
    for path, expected in (("doctor", "GET, POST"), ("see", "POST"), ("survey", "GET")):
        response = client.delete(f"/api/runs/small/{path}")
        assert (response.status_code, response.headers["allow"]) == (405, expected)


def test_too_many_questions_at_once_are_told_to_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("capsella.web.worker.MOST_WAITING", 0)
    with asked(survey=False) as client:
        response = client.post("/api/runs/small/see", json={"scene": SCENE})
        assert response.status_code == 503
        assert response.headers["retry-after"] == "1"
        assert "ask again" in one_line(response)


def test_what_fails_in_a_network_is_one_line_and_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    with asked(raise_server_exceptions=False) as client:
        monkeypatch.setattr("capsella.web.views.look", lambda *_, **__: 1 / 0)
        response = client.post("/api/runs/small/see", json={"scene": SCENE})
        assert response.status_code == 500
        assert one_line(response) == "this failed: ZeroDivisionError; the terminal says more"
        assert "content-security-policy" in response.headers


def test_the_api_describes_itself(client: TestClient) -> None:
    spec = client.get("/api/openapi.json").json()
    operations = {
        (method.upper(), path): operation for path, item in spec["paths"].items() for method, operation in item.items()
    }
    assert len(operations) == 15
    assert len({operation["operationId"] for operation in operations.values()}) == 15
    for operation in operations.values():
        assert operation["summary"]
        assert operation["description"].endswith(".")
        responses = operation["responses"]
        assert {"200", "401", "403"} <= responses.keys()
        for status, response in responses.items():
            (content,) = response["content"].items()
            if status == "200":
                assert content[0] in ("application/json", "image/png", "text/html")
                assert content[0] != "application/json" or "$ref" in content[1]["schema"]
            else:
                assert content[1]["schema"] == {"$ref": "#/components/schemas/Problem"}
                assert response["description"]
    for (_, path), operation in operations.items():
        if "{key}" in path:
            assert {"404", "422"} <= operation["responses"].keys()
    see = operations["POST", "/api/runs/{key}/see"]
    assert set(see["responses"]) == {"200", "400", "401", "403", "404", "408", "413", "422", "503"}
    assert {"413", "415", "429"} <= operations["POST", "/api/runs/{key}/upload"]["responses"].keys()
    assert "HTTPValidationError" not in spec["components"]["schemas"]
    assert "description" in spec["components"]["schemas"]["SeeRequest"]
    SeeRequest.model_validate({"scene": SCENE})


def test_a_net_that_has_diverged_can_be_looked_at() -> None:
    model: Any = small()
    with torch.no_grad():
        model.layers[-1].weight[:, 2] = math.nan
    with asked(net(model=model)) as client:
        sight = ask(client, "see", {"scene": SCENE, "draw": 2})
        assert None in sight["scores"]
        assert None in sight["layers"][1]["activations"]
        ask(client, "move", {"scene": {**SCENE, "move": {"rotation": 10}}})
        ask(client, "follow", {"scene": SCENE, "view": "x"})
        capsule = ask(client, "capsule", {"scene": SCENE, "layer": 1, "capsule": 2})
        assert (capsule["activation"], capsule["history"], capsule["peak"]) == (None, None, None)
        assert len(ask(client, "images", order="sure")["images"]) == 12
