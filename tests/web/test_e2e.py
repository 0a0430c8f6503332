"""The page in a browser: somebody draws, picks, turns, moves, compares, drops, saves and shares, and nothing goes wrong."""

from __future__ import annotations

import io
import os
import re
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import browser as in_browser
import pytest
import torch
from browser import DESK, PHONE, Window, check_sound, levels, opened, quiet
from explored import net, rectangles
from PIL import Image

import capsella
from capsella.web.away import without_images
from capsella.web.explorer import Explorer
from capsella.web.server import serving

VIEWS = ("tree", "knobs", "move", "compare", "overlap", "training")
LONG = "a_class_with_quite_a_long_name_without_a_blank_in_it"
STRANGE = ("<b>&", LONG, "$x$", "_", "four", "5", "6", "7", "8", "9")
EVENTS = [{"event": "log", "step": k, "images": 64 * k, "loss": 1 / k, "accuracy": 1 - 0.5 / k} for k in range(1, 9)]


AWAY = {
    "data": {
        "train": {
            "name": "folder",
            "options": {"normalise": "unit"},
            "image_shape": [1, 28, 28],
            "class_names": [str(k) for k in range(10)],
        }
    }
}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with in_browser.chromium() as running:
        yield running


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    torch.manual_seed(0)
    deep = capsella.create_model("parse_capsnet", image_size=28)
    with torch.no_grad():
        # one that is dead.
        deep.layers[1].weight[:, 3] = 0
    # so many that a capsule may be called dead.
    data = rectangles(100)
    nets = [
        net(data=data, events=EVENTS),
        net("conv", capsella.create_model("convnet_small"), data),
        net("deep", deep, data, class_names=STRANGE, title=LONG),
        net("colour", capsella.create_model("capsnet_small", in_channels=3), rectangles(shape=(3, 28, 28))),
        net("away", data=without_images(AWAY, "test"), away="--root is missing"),
        net("matrix", capsella.create_model("em_capsnet", types=(4, 4, 4)), rectangles(4)),
    ]
    with Explorer(nets) as explorer, serving(explorer) as found:
        while not all(each.survey.is_complete for each in nets):
            time.sleep(0.01)
        yield found


@pytest.fixture(scope="module")
def kept(browser: Any, url: str) -> Iterator[Window]:
    # motion is for people; and a page that is loaded once is loaded quickly.
    with opened(browser, url, reduced_motion="reduce", permissions=["clipboard-read", "clipboard-write"]) as found:
        yield found


@pytest.fixture
def window(kept: Window) -> Iterator[Window]:
    kept.page.set_viewport_size({"width": DESK[0], "height": DESK[1]})
    yield kept
    kept.check()


@pytest.fixture
def shots(tmp_path: Path) -> Path:
    """Return where pictures of the page go: what a person should look at is kept in the folder CAPSELLA_SHOTS."""
    folder = Path(os.environ.get("CAPSELLA_SHOTS") or tmp_path)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def answer(page: Any) -> str:
    return str(page.locator(".says .bars").inner_text())


def address(page: Any) -> str:
    """Return the address once it has been written, which is a moment after the last change."""
    page.wait_for_timeout(350)
    return str(page.url)


def stroke(page: Any, selector: str, *points: tuple[float, float]) -> None:
    """Draw a line with the mouse; points in shares of the canvas."""
    box = page.locator(selector).first.bounding_box()
    places = [(box["x"] + x * box["width"], box["y"] + y * box["height"]) for x, y in points]
    page.mouse.move(*places[0])
    page.mouse.down()
    for place in places[1:]:
        page.mouse.move(*place, steps=4)
    page.mouse.up()
    quiet(page)


# one of each by default: a browser takes a second for each view.
@pytest.mark.parametrize(
    ("run", "size"),
    [
        ("small", DESK),
        ("deep", PHONE),
        *(pytest.param(run, size, marks=pytest.mark.slow) for run, size in [("small", PHONE), ("deep", DESK)]),
        *(pytest.param("conv", size, marks=pytest.mark.slow) for size in (DESK, PHONE)),
    ],
)
def test_every_view_is_sound_in_both_schemes(run: str, size: tuple[int, int], window: Window, shots: Path) -> None:
    page = window.show(f"run={run}&capsule=1.3&rotation=30&ox=5")
    page.set_viewport_size({"width": size[0], "height": size[1]})
    walk(page, run, size[0], shots)
    pictures = [shots / f"{run}-{view}-{size[0]}-{scheme}.png" for view in VIEWS for scheme in ("light", "dark")]
    for light, dark in zip(pictures[::2], pictures[1::2], strict=True):
        with Image.open(light) as one, Image.open(dark) as other:
            assert one.width == other.width == size[0]
            assert one.convert("L").getpixel((1, 1)) > 200
            assert other.convert("L").getpixel((1, 1)) < 50


def walk(page: Any, run: str, width: int, shots: Path) -> None:
    """Look at every view of a run as its reader does, and keep pictures of each."""
    for k, view in enumerate(VIEWS):
        page.get_by_role("navigation", name="Views").locator("a").nth(k).click()
        quiet(page, 320)
        check_sound(page, f"{run} {view} {width}", shots=shots)


def test_a_drawing_is_answered_while_it_is_drawn(window: Window) -> None:
    page = window.show()
    before = answer(page)
    page.get_by_role("button", name="Clear").click()
    quiet(page)
    empty = answer(page)
    assert empty != before
    assert max(levels(page, ".board")) == 0
    seen: list[str] = []
    page.on("request", lambda asked: seen.append(asked.url) if asked.url.endswith("/see") else None)
    stroke(page, ".board", (0.3, 0.2), (0.7, 0.2), (0.4, 0.9))
    # more than once: not only when the pen is lifted.
    assert len(seen) >= 2
    assert max(levels(page, ".board")) > 200
    assert answer(page) != empty
    assert "pic=d.28.28.1." in address(page)
    page.get_by_role("button", name="Undo").click()
    quiet(page)
    assert answer(page) == empty
    assert max(levels(page, ".board")) == 0


def test_a_drawing_needs_no_mouse(browser: Any, url: str) -> None:
    with opened(browser, url, size=PHONE, has_touch=True) as phone:
        page = phone.page
        page.get_by_role("button", name="Clear").click()
        board = page.get_by_role("application", name="Drawing board")
        board.focus()
        for key in (" ", *["ArrowRight"] * 4, " ", "ArrowDown", "ArrowDown"):
            page.keyboard.press(key)
        assert page.locator(".board-box [role=status]").inner_text() == "column 19, row 17, brush up"
        quiet(page)
        drawn = levels(page, ".board")
        assert drawn[14 * 28 + 14] > 200
        assert drawn[14 * 28 + 18] > 200
        assert drawn[16 * 28 + 24] == 0
        box = board.bounding_box()
        page.keyboard.press("e")
        assert page.get_by_role("button", name="Eraser").get_attribute("aria-pressed") == "true"
        page.keyboard.press("e")
        page.touchscreen.tap(box["x"] + 0.2 * box["width"], box["y"] + 0.8 * box["height"])
        quiet(page)
        assert levels(page, ".board")[22 * 28 + 5] > 200


def test_a_line_is_drawn_by_touch_and_the_page_stays_where_it_is(browser: Any, url: str) -> None:
    with opened(browser, url, size=PHONE, has_touch=True, is_mobile=True) as phone:
        page = phone.page
        page.get_by_role("button", name="Clear").tap()
        quiet(page)
        before, box, scrolled = answer(page), page.locator(".board").bounding_box(), page.evaluate("scrollY")
        finger = page.context.new_cdp_session(page)
        places = [(0.5, 0.2 + 0.05 * k) for k in range(13)]
        for k, (x, y) in enumerate(places):
            point = {"x": box["x"] + x * box["width"], "y": box["y"] + y * box["height"]}
            finger.send("Input.dispatchTouchEvent", {"type": "touchMove" if k else "touchStart", "touchPoints": [point]})
        finger.send("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})
        quiet(page)
        drawn = levels(page, ".board")
        assert [row for row in range(28) if drawn[28 * row + 13] > 200] == list(range(5, 23))
        assert all(drawn[28 * row + 4] == 0 for row in range(28))
        assert answer(page) != before
        assert page.evaluate("scrollY") == scrolled
        # one stroke, however many places it went through.
        page.get_by_role("button", name="Undo").click()
        quiet(page)
        assert max(levels(page, ".board")) == 0


def test_test_images_are_picked_by_class_answer_and_mistake(window: Window) -> None:
    page = window.show("run=small")
    gallery = page.locator(".gallery")
    gallery.get_by_label("Class", exact=True).select_option("3")
    quiet(page)
    names = [each.get_attribute("aria-label") for each in gallery.locator(".thumb").all()]
    assert len(names) == 10
    assert all(", class 3" in name for name in names)
    before = answer(page)
    gallery.locator(".thumb").nth(1).click()
    quiet(page)
    assert answer(page) != before
    assert gallery.locator("[aria-current]").get_attribute("aria-label") == names[1]
    assert "pic=t.13.small" in page.url
    gallery.get_by_label("Mistakes only").check()
    gallery.get_by_label("Order").select_option("unsure")
    quiet(page)
    wrong = [each.get_attribute("aria-label") for each in gallery.locator(".thumb").all()]
    assert wrong
    assert all("taken for 3" not in name for name in wrong)
    sure = [float(re.findall(r"sure by ([\d.]+)", name)[0]) for name in wrong]
    assert sure == sorted(sure)
    # the browser's own way back leads to the image before.
    page.go_back()
    quiet(page)
    assert answer(page) == before


def test_what_another_set_calls_its_image_is_neither_right_nor_wrong(window: Window) -> None:
    page = window.show("run=deep&pic=t.3.small&capsule=1.3&mistakes=1")
    truth = page.locator(".answer-truth").first
    assert truth.inner_text() == "The test set says 3, in classes of its own"
    assert "wrong" not in (truth.get_attribute("class") or "").split()
    gallery = page.locator(".gallery")
    gallery.get_by_label("Class", exact=True).select_option("3")
    quiet(page)
    names = [each.get_attribute("aria-label") for each in gallery.locator(".thumb").all()]
    assert len(names) == 10
    assert all(re.match(r"Test image \d*3, class 3, taken for (?!3)", name) for name in names)
    assert gallery.locator(".is-wrong").count() == 0
    assert gallery.get_by_label("Mistakes only").is_hidden()
    assert gallery.get_by_label("Class", exact=True).locator("option").all_inner_texts()[:2] == ["any", "0"]
    assert gallery.get_by_label("Answer").locator("option").all_inner_texts()[:2] == ["any", "<b>&"]
    assert page.get_by_role("region", name="The chosen capsule").get_by_role("img", name=re.compile("^0: ")).count() == 1
    # of its own classes a network is right or wrong.
    page = window.show("run=small&pic=t.3.small")
    assert page.locator(".answer-truth").first.inner_text() in ("as the test set says", "The test set says 3")


def test_a_run_whose_images_are_away_is_drawn_for(window: Window) -> None:
    page = window.show("run=away")
    gallery = page.locator(".gallery")
    assert gallery.inner_text() == (
        "There are none to pick: --root is missing. Drawings and image files can be shown to it all the same."
    )
    assert page.get_by_role("button", name="Random test image").is_hidden()
    assert max(levels(page, ".board")) == 0
    before = answer(page)
    stroke(page, ".board", (0.2, 0.2), (0.8, 0.6))
    assert answer(page) != before
    for name in ("Turn the knobs", "Move the world", "Compare", "Overlap", "Training", "Parse tree"):
        page.get_by_role("link", name=name).click()
        quiet(page, 320)
    page = window.show("run=away&capsule=0.3")
    panel = page.get_by_role("region", name="The chosen capsule")
    assert panel.get_by_role("heading", name="Capsule 3").is_visible()
    assert panel.get_by_text("Over the test set", exact=True).is_hidden()
    # what needs images is not offered, nor spoken of.
    page.get_by_role("link", name="Overlap").click()
    quiet(page)
    assert page.get_by_role("button", name="Another").is_hidden()
    assert "test image" not in page.get_by_role("region", name="Two images").inner_text()
    page.get_by_role("link", name="Move the world").click()
    quiet(page)
    assert "The mark" not in page.get_by_role("region", name="Correlation by layer").inner_text()
    page.get_by_role("link", name="Training").click()
    quiet(page)
    assert page.get_by_role("button", name="Examine it").is_hidden()
    assert "no test images at hand" in page.get_by_role("region", name="The doctor").inner_text()
    # an image of another run can be shown to it, and a run that has some is shown its own.
    page = window.show("run=away&pic=t.3.small")
    assert page.locator(".answer-truth").first.inner_text() in ("as the test set says", "The test set says 3")
    page.get_by_label("Run", exact=True).select_option("small")
    quiet(page)
    assert gallery.locator(".thumb").count() == 20


def test_a_file_is_an_image_too_and_what_is_none_is_told_why(window: Window) -> None:
    file = io.BytesIO()
    Image.new("L", (60, 60), 200).save(file, "PNG")
    page = window.show()
    before = answer(page)
    with page.expect_file_chooser() as chosen:
        page.get_by_role("button", name="Upload").click()
    chosen.value.set_files({"name": "grey.png", "mimeType": "image/png", "buffer": file.getvalue()})
    quiet(page)
    assert answer(page) != before
    assert set(levels(page, ".board")) == {200}
    page.locator("input[type=file]").set_input_files({"name": "no.png", "mimeType": "image/png", "buffer": b"nothing"})
    page.locator(".notice", has_text="the file is no image").wait_for()
    page.get_by_role("button", name="Dismiss").click()
    # the browser says so, too.
    with pytest.raises(AssertionError, match="the server responded with a status of 4"):
        window.check()


def test_the_tree_is_walked_by_mouse_and_keys_and_tells_of_each_capsule(window: Window) -> None:
    page = window.show("run=deep")
    tree = page.get_by_role("listbox", name="Parse tree")
    assert tree.get_by_role("option").count() == 16 * 4 + 10
    assert "dead" in tree.get_by_role("option").nth(16 * 2 + 3).get_attribute("aria-label")
    place = tree.get_by_role("option").nth(16 + 5).locator(".ring").bounding_box()
    page.mouse.move(place["x"] + place["width"] / 2, place["y"] + place["height"] / 2)
    panel = page.get_by_role("region", name="The chosen capsule")
    panel.get_by_role("heading", name="Capsule 5").wait_for()
    assert "capsule=" not in address(page)
    page.mouse.down()
    page.mouse.up()
    page.mouse.move(2, 2)
    quiet(page)
    assert "capsule=1.5" in address(page)
    assert "Layer 1" in panel.inner_text()
    assert "of 100 images" in panel.inner_text()
    assert panel.locator(".field-box").is_visible()
    # bars are told how long they are: the longest one's value stands at the axis.
    values = [float(each.replace("−", "-")) for each in pose_of(panel)]
    scale = panel.get_by_role("img", name="Pose:").locator("text").all_text_contents()
    numbers = [float(each.replace("−", "-")) for each in scale if "." in each]
    # what is said has two digits after the point.
    assert numbers
    assert max(numbers) == pytest.approx(max(map(abs, values)), abs=0.0055)
    assert "0" in scale
    assert tree.locator("[aria-selected=true]").count() == 1
    tree.focus()
    for key in ("ArrowLeft", "Home", "ArrowDown", "Enter"):
        page.keyboard.press(key)
    panel.get_by_role("heading", name="Capsule 1").wait_for()
    assert "Primary" in panel.inner_text()
    assert "capsule=0.1" in address(page)
    page.keyboard.press("Escape")
    panel.get_by_text("Point at a capsule").wait_for()
    page.get_by_text("The tree in words").click()
    rows = page.locator(".words tbody tr")
    rows.nth(6 * 5 - 1).wait_for()
    assert rows.count() == 6 * 5
    assert re.search(r"capsule \d+ \(0\.\d\d\)", rows.first.inner_text())


def pose_of(panel: Any) -> list[str]:
    """Return the values of a pose as they are said."""
    said = panel.get_by_role("img", name="Pose:").get_attribute("aria-label")
    return re.findall(r"[−\d.]+", str(said))


def lines(page: Any) -> str:
    return str(page.locator("svg.tree .lines").first.evaluate("(e) => e.innerHTML"))


def test_iterations_are_stepped_through_and_couplings_move(window: Window) -> None:
    page = window.show()
    player = page.get_by_role("group", name="Iterations of routing")
    last = lines(page)
    player.get_by_role("button", name="One iteration back").click()
    player.get_by_text("2 of 3").wait_for()
    second = lines(page)
    player.get_by_role("slider").fill("1")
    player.get_by_text("1 of 3").wait_for()
    # all are alike at first, so that one kind of line is enough.
    assert page.locator("svg.tree .lines path").count() == 1
    assert len({last, second, lines(page)}) == 3
    assert "step=1" in address(page)
    player.get_by_role("button", name="Play").click()
    player.get_by_text("2 of 3").wait_for()
    player.get_by_text("3 of 3").wait_for()
    player.get_by_role("button", name="Stop").click()
    assert lines(page) == last


def test_few_capsules_are_shown_of_many_and_weak_couplings_are_hidden(window: Window) -> None:
    page = window.show()
    options = page.get_by_role("listbox", name="Parse tree").get_by_role("option")
    assert options.count() == 32 + 10
    page.get_by_label("Capsules of a layer").fill("5")
    quiet(page)
    assert options.count() == 5 + 5
    before = lines(page)
    page.get_by_label("Hide weak couplings").fill("0.9")
    quiet(page)
    assert len(lines(page)) < len(before)
    assert "not drawn" in page.locator(".tree-box .note").inner_text()


def test_negated_primary_capsules_are_compared_with_the_answer(window: Window) -> None:
    page = window.show()
    page.get_by_label("Negate the primary capsules").check()
    finding = page.locator(".tree-card .finding")
    finding.get_by_text("With its primary capsules negated the network").wait_for()
    assert "negate=1" in address(page)
    page.get_by_label("Negate the primary capsules").uncheck()
    finding.wait_for(state="hidden")


def test_a_tree_on_convolutions_says_what_is_below_it(window: Window) -> None:
    page = window.show("run=matrix&capsule=0.3")
    card = page.get_by_role("region", name="The parse tree")
    assert page.locator("svg.tree .head-name").all_text_contents() == ["layers.1", "Classes"]
    assert "2 convolutional capsule layers below are not drawn: their couplings stay within windows" in card.inner_text()
    assert card.get_by_label("Negate the primary capsules, which stand below this tree").is_visible()
    assert "layers.1 · activation" in page.get_by_role("region", name="The chosen capsule").inner_text()
    assert "Primary" not in page.locator("main").inner_text()
    card.get_by_label("Negate the primary capsules").check()
    page.get_by_text(" · primary capsules negated").wait_for()
    card.get_by_label("Negate the primary capsules").uncheck()
    page.get_by_role("link", name="Move the world").click()
    quiet(page, 400)
    assert page.get_by_role("img", name="Correlation of activations. layers.1: 1.00").is_visible()
    page = window.show("run=small")
    assert page.locator("svg.tree .head-name").all_text_contents() == ["Primary", "Classes"]
    assert "not drawn:" not in page.locator("main").inner_text()
    assert card.get_by_label("Negate the primary capsules", exact=True).is_visible()


def test_a_knob_changes_the_drawing_and_not_the_original(window: Window) -> None:
    page = window.show("view=knobs")
    original, plain, turned = (f".trio .still:nth-child({k}) canvas" for k in (1, 2, 3))
    assert levels(page, plain) == levels(page, turned)
    kept = [levels(page, original), levels(page, plain)]
    page.get_by_label("Value 2", exact=True).fill("0.4")
    quiet(page)
    assert [levels(page, original), levels(page, plain)] == kept
    assert levels(page, turned) != kept[1]
    assert "knobs=0_0.4" in address(page)
    page.get_by_role("button", name="Reset Value 2").click()
    quiet(page)
    assert levels(page, turned) == kept[1]
    page.get_by_label("Class capsule").select_option("4")
    quiet(page, 400)
    assert levels(page, plain) != kept[1]
    # a tile of the sheet turns the knob of its row.
    box = page.locator(".sheet").bounding_box()
    page.mouse.click(box["x"] + 0.99 * box["width"], box["y"] + 0.01 * box["height"])
    quiet(page)
    assert page.get_by_label("Value 1", exact=True).input_value() == "0.25"
    assert page.locator(".sheet-mark").is_visible()


def test_a_moved_image_stands_beside_the_original(window: Window) -> None:
    page = window.show("run=deep&view=move")
    before, after = (f".side:nth-child({k}) canvas" for k in (1, 2))
    assert levels(page, before) == levels(page, after)
    page.get_by_role("slider", name="Rotation").fill("60")
    quiet(page, 400)
    assert levels(page, before) != levels(page, after)
    assert page.locator(".finding").inner_text().startswith("With rotation +60°")
    alike = page.get_by_role("img", name="Correlation of activations").get_attribute("aria-label")
    assert alike.count("by chance") == 5
    page.get_by_label("Follow").select_option("scale")
    quiet(page, 400)
    assert page.get_by_role("img", name="Scale. Primary: from").is_visible()
    page.get_by_role("button", name="Put it back").click()
    quiet(page)
    assert levels(page, before) == levels(page, after)
    assert "rotation" not in address(page)


def test_a_capsule_network_stands_beside_a_convnet_on_the_same_drawing(window: Window) -> None:
    page = window.show("view=compare&other=conv")
    first, second = page.get_by_role("region", name="The first run"), page.get_by_role("region", name="The second run")
    assert first.get_by_role("listbox").is_visible()
    assert "No parse tree: it has no layer of capsules that routes." in second.inner_text()
    assert levels(page, ".side:nth-child(1) canvas") == levels(page, ".side:nth-child(2) canvas")
    before = first.locator(".bars").inner_text(), second.locator(".bars").inner_text()
    stroke(page, ".board", (0.1, 0.1), (0.9, 0.9))
    after = first.locator(".bars").inner_text(), second.locator(".bars").inner_text()
    assert before[0] != after[0]
    assert before[1] != after[1]
    assert max(float(each) for each in after[1].split()[1::2]) <= 1
    page.get_by_label("Beside it").select_option("deep")
    quiet(page)
    assert second.get_by_role("listbox").is_visible()
    assert re.search("small (says|is sure)", page.locator(".finding").first.inner_text())
    assert "other=deep" in page.url


def test_a_second_digit_is_dragged_over_the_first_and_both_are_drawn(window: Window) -> None:
    page = window.show("view=overlap")
    before, drawings = levels(page, ".stage"), answer(page)
    stroke(page, ".stage", (0.5, 0.5), (0.75, 0.25))
    assert "ox=7&oy=-7" in address(page)
    assert levels(page, ".stage") != before
    assert answer(page) != drawings
    assert re.match(r"Its two strongest classes are \d \(\d\.\d\d\) and \d", page.locator(".finding").inner_text())
    names = page.locator(".quartet figcaption").all_inner_texts()
    assert names[0] == "what it sees"
    assert len(set(names[1:3])) == 2
    assert all(name.startswith("as class") for name in names[1:3])
    page.get_by_role("application", name="Both images").focus()
    page.keyboard.press("ArrowLeft")
    assert "ox=6&oy=-7" in address(page)
    page.get_by_label("Second image").select_option("4")
    quiet(page)
    assert re.search(r"over=t\.\d*4\.small", address(page))
    thumb, stage = (page.locator(each).nth(7 * ("thumb" in each)).bounding_box() for each in (".gallery .thumb", ".stage"))
    page.mouse.move(thumb["x"] + 20, thumb["y"] + 20)
    page.mouse.down()
    page.mouse.move(thumb["x"] + 40, thumb["y"] + 10, steps=4)
    page.mouse.move(stage["x"] + stage["width"] / 4, stage["y"] + stage["height"] / 4, steps=4)
    page.mouse.up()
    quiet(page)
    assert re.search(r"over=t\.7\.small&ox=-7&oy=-7", address(page))


def test_a_second_image_is_chosen_without_a_mouse(window: Window, browser: Any, url: str) -> None:
    page = window.show("view=overlap&pic=t.3.small&ox=4")
    page.locator(".gallery .thumb").nth(7).focus()
    page.keyboard.press("Enter")
    quiet(page)
    button = page.get_by_role("button", name="Test image 7 as the second")
    button.focus()
    page.keyboard.press("Enter")
    quiet(page)
    # the first is what it was before, and the second stays where it lay.
    assert "pic=t.3.small" in address(page)
    assert "over=t.7.small&ox=4" in page.url
    page.get_by_role("link", name="Parse tree").click()
    assert page.locator(".as-second").is_hidden()
    with opened(browser, url, "view=overlap&pic=t.3.small", size=PHONE, has_touch=True) as phone:
        page = phone.page
        page.get_by_text("Test images", exact=True).tap()
        page.locator(".gallery .thumb").nth(5).tap()
        page.get_by_role("button", name="Test image 5 as the second").tap()
        quiet(page)
        assert "pic=t.3.small" in address(page)
        assert "over=t.5.small" in page.url


def test_two_runs_are_compared_on_a_phone_without_a_broken_number(window: Window) -> None:
    page = window.show("view=compare&run=small&other=colour")
    page.set_viewport_size({"width": PHONE[0], "height": PHONE[1]})
    quiet(page)
    check_sound(page, "compare on a phone")
    table = page.get_by_role("region", name="The runs in a table")
    cells = [cell.bounding_box() for cell in table.locator("tbody tr").first.locator("td").all()]
    assert [round(cell["width"]) > 110 for cell in cells] == [True, True]
    # it is still a table to who does not see it, and all of it is in sight.
    assert table.get_by_role("rowheader", name="parameters").is_visible()
    assert table.get_by_role("cell", name="262,816").first.is_visible()
    assert table.evaluate("(e) => e.scrollWidth - e.clientWidth") <= 0
    # nor does a long name without a blank push the other run out of it.
    page.get_by_label("Beside it").select_option("deep")
    quiet(page)
    assert table.get_by_role("columnheader", name=LONG).is_visible()
    assert table.evaluate("(e) => e.scrollWidth - e.clientWidth") <= 0


def test_a_broken_number_is_found(window: Window) -> None:
    page = window.show("view=compare&run=small&other=colour")
    page.evaluate(
        "() => document.querySelectorAll('.data td').forEach((e) => {"
        " e.style.cssText = 'display: block; width: 2rem; min-width: 0; overflow-wrap: anywhere'; })"
    )
    with pytest.raises(AssertionError, match="262,816"):
        check_sound(page, "a table that is too narrow")
    page.reload()
    quiet(page)


def test_curves_facts_and_the_doctor_are_at_hand(window: Window) -> None:
    page = window.show("view=training")
    assert page.locator("main .plot").count() == 2
    assert page.get_by_role("img", name="Accuracy. in training: from 50 % to 94 %").is_visible()
    assert "262,816" in page.get_by_role("region", name="The run").inner_text()
    # made in memory, this one has no folder that the doctor could read.
    page.get_by_role("button", name="Examine it").click()
    page.get_by_text("lies in no folder").wait_for()


def saved(page: Any, kind: str, folder: Path) -> str:
    """Save what is shown as a file of the name of its kind; return the name that the page gives it."""
    with page.expect_download() as coming:
        page.get_by_role("button", name=f"Save this view as {kind.upper()}").click()
    coming.value.save_as(folder / kind)
    return str(coming.value.suggested_filename)


def words_of(page: Any, folder: Path) -> list[str]:
    """Return the words of a figure that is saved: title, subtitle, captions and what is in its pictures."""
    saved(page, "svg", folder)
    return ["".join(each.itertext()) for each in ET.parse(folder / "svg").getroot().findall(".//{*}text")]


def test_a_saved_tree_says_answer_and_negation(window: Window, tmp_path: Path) -> None:
    page = window.show("run=small&pic=t.3.small")
    name, sure = (page.locator(f".says .answer-{part}").inner_text() for part in ("name", "sure"))
    truth = "" if name == "3" else ", the test set says 3"
    words = words_of(page, tmp_path)
    assert words[:2] == ["Parse tree", f"small · test image 3 of rectangles · says {name} ({sure}){truth}"]
    assert "parse tree after routing iteration 3 of 3" in words
    page.get_by_label("Negate the primary capsules").check()
    quiet(page)
    found = re.search(r"says (\d)(?:: .* before, (.*) now| \((.*?)\))", page.locator(".tree-card .finding").inner_text())
    assert found
    name, sure = found[1], found[2] or found[3]
    truth = "" if name == "3" else ", the test set says 3"
    words = words_of(page, tmp_path)
    assert words[1] == f"small · test image 3 of rectangles · says {name} ({sure}){truth}, its primary capsules negated"
    assert "parse tree after routing iteration 3 of 3, primary capsules negated" in words
    page.get_by_label("Negate the primary capsules").uncheck()
    assert "negated" not in " ".join(words_of(page, tmp_path))


def test_a_saved_pair_says_how_it_was_moved_and_how_sure_both_answers_are(window: Window, tmp_path: Path) -> None:
    for run, title in (("small", "small"), ("conv", "conv")):
        page = window.show(f"run={run}&pic=t.3.small&view=move&rotation=30")
        quiet(page, 400)
        answers = [each.split(" · ") for each in page.locator(".side-answer").all_inner_texts()]
        words = words_of(page, tmp_path)
        assert words[1] == f"{title} · test image 3 of rectangles · rotation +30°"
        wanted = [f"says {name} ({sure}){'' if name == '3' else ', the test set says 3'}" for name, sure in answers]
        assert len(wanted) == 2
        assert [each for each in words if each.startswith("says ")] == wanted


def test_a_saved_comparison_says_which_iteration_it_shows_and_has_bars_for_a_net_without_a_tree(
    window: Window, tmp_path: Path
) -> None:
    page = window.show("run=small&pic=t.3.small&view=compare&other=conv&step=1")
    quiet(page, 320)
    words = words_of(page, tmp_path)
    assert "parse tree after routing iteration 1 of 3" in words
    assert "how sure it is of each class" in words
    rects = ET.parse(tmp_path / "svg").getroot().findall(".//{*}rect")
    # those of a tree's own aside, a track and what is filled of it for each class.
    assert len([rect for rect in rects if rect.get("height") == "10"]) == 2 * 10


def test_what_was_said_of_one_view_is_not_said_in_the_next(window: Window) -> None:
    page = window.show("run=conv&view=knobs")
    page.get_by_role("button", name="Save this view as SVG").click()
    page.locator(".notice", has_text="conv has no knobs").wait_for()
    page.get_by_role("link", name="Compare").click()
    page.locator(".notice").wait_for(state="hidden")


def test_a_network_without_a_tree_has_its_image_and_answer_saved(window: Window, tmp_path: Path) -> None:
    page = window.show("run=conv&pic=t.3.conv")
    words = words_of(page, tmp_path)
    assert words[0] == "Answer"
    assert re.match(r"conv · test image 3 of rectangles · says \d \(\d+ %\)", words[1])
    root = ET.parse(tmp_path / "svg").getroot()
    assert len(root.findall(".//{*}image")) == 1
    bars = answer(page).split()
    assert words[-1 - len(bars) : -1] == bars
    # a track and what is filled of it, on the ground of the page.
    rects = root.findall(".//{*}rect")
    assert len(rects) == 1 + 2 * 10
    filled = [
        float(rect.get("width", "")) / float(track.get("width", ""))
        for track, rect in zip(rects[1::2], rects[2::2], strict=True)
    ]
    assert filled == pytest.approx([float(each) for each in bars[1::2]], abs=0.006)
    assert saved(page, "png", tmp_path) == "capsella-conv-tree.png"


def test_what_can_never_be_saved_is_said_so(window: Window) -> None:
    page = window.show("run=conv&view=knobs")
    page.get_by_role("button", name="Save this view as SVG").click()
    page.locator(".notice", has_text="conv has no knobs, and nothing of them to save: it has no decoder.").wait_for()
    page.get_by_role("button", name="Dismiss").click()
    # of a run that nothing was written down about there will be no curves either.
    page = window.show("run=conv&view=training")
    page.get_by_role("button", name="Save this view as PNG").click()
    page.locator(".notice", has_text="there is no curve to save").wait_for()
    page.get_by_role("button", name="Dismiss").click()


@pytest.mark.parametrize(
    "view", [view if view in ("tree", "overlap") else pytest.param(view, marks=pytest.mark.slow) for view in VIEWS]
)
def test_a_view_is_saved_as_svg_that_needs_nothing_else_and_as_png(view: str, window: Window, tmp_path: Path) -> None:
    page = window.show(f"view={view}&other=deep&rotation=20&ox=4")
    quiet(page, 400)
    for kind in ("svg", "png"):
        assert saved(page, kind, tmp_path) == f"capsella-small-{view}.{kind}"
    text = (tmp_path / "svg").read_text()
    root = ET.fromstring(text)
    # no class, no style, no address: what it shows is in it.
    assert not re.search(r'class=|style=|var\(|<script|href="(?!data:image/png;base64,)', text)
    assert root.findall(".//{*}image") or view == "training"
    assert root.findall(".//{*}path") or view == "knobs"
    with Image.open(tmp_path / "png") as image:
        assert image.size == (2 * int(root.get("width", 0)), 2 * int(root.get("height", 0)))
        assert len(image.convert("L").getcolors() or []) > 20


def test_an_address_shows_the_same_to_somebody_else(window: Window, browser: Any) -> None:
    page = window.show("view=overlap")
    stroke(page, ".board", (0.2, 0.2), (0.8, 0.6))
    stroke(page, ".stage", (0.5, 0.5), (0.6, 0.7))
    page.get_by_role("button", name="Copy link").click()
    page.get_by_text("is in the clipboard").wait_for()
    shared = page.evaluate("navigator.clipboard.readText()")
    shown = [levels(page, ".board"), levels(page, ".stage"), answer(page), page.locator(".finding").inner_text()]
    assert shared.startswith(f"{window.url}#run=small&view=overlap&pic=d.28.28.1.")
    with opened(browser, *shared.split("#")) as other:
        page = other.page
        assert [levels(page, ".board"), levels(page, ".stage"), answer(page), page.locator(".finding").inner_text()] == shown
        # a browser may keep its clipboard from a page that came without encryption.
        page.evaluate("Object.defineProperty(navigator, 'clipboard', { value: undefined })")
        page.get_by_role("button", name="Copy link").click()
        assert page.get_by_label("Address of what is shown").input_value() == shared


def test_nonsense_in_an_address_is_as_if_it_were_not_there(window: Window) -> None:
    nonsense = (
        "run=none&view=what&pic=d.9999.1.1.zz&most=-4&capsule=99.1&rotation=x&knobs=a_b&offset=-3&other=small&over=t.-1.small"
    )
    page = window.show(nonsense)
    assert page.get_by_role("link", name="Parse tree").get_attribute("aria-current") == "page"
    assert "run=small&view=tree&pic=t.0.small&most=1&capsule=99.1&other=small" in address(page)


def test_colours_are_drawn_where_the_network_sees_them(window: Window) -> None:
    page = window.show("run=colour")
    page.get_by_role("button", name="Clear").click()
    page.get_by_label("Ink").fill("#ff0000")
    stroke(page, ".board", (0.2, 14.5 / 28), (0.8, 14.5 / 28))
    middle = page.locator(".board").evaluate("(c) => [...c.getContext('2d').getImageData(14, 14, 1, 1).data]")
    assert middle == [255, 0, 0, 255]
    assert "pic=d.28.28.3." in address(page)


def test_the_scheme_is_chosen_and_kept(browser: Any, url: str) -> None:
    with opened(browser, url, color_scheme="light") as other:
        page = other.page
        ground = "getComputedStyle(document.body).backgroundColor"
        light = page.evaluate(ground)
        page.get_by_label("Colours").select_option("dark")
        dark = page.evaluate(ground)
        assert dark != light
        page.reload()
        quiet(page)
        assert page.evaluate(ground) == dark
        assert page.get_by_label("Colours").input_value() == "dark"


def test_a_server_that_is_away_is_said_once_and_asked_again(window: Window) -> None:
    page = window.show()
    page.route("**/see", lambda route: route.abort())
    before = answer(page)
    page.locator(".gallery .thumb").nth(4).click()
    page.get_by_text("does not answer").wait_for()
    page.unroute("**/see")
    page.get_by_text("The server is back").wait_for()
    assert answer(page) != before
    with pytest.raises(AssertionError, match="ERR_FAILED"):
        window.check()


def test_the_page_reads_in_a_sensible_order(window: Window) -> None:
    page = window.show()
    page.get_by_role("button", name="Skip to the view").focus()
    names = ["Skip to the view"]
    for _ in range(30):
        page.keyboard.press("Tab")
        names.append(
            page.evaluate(
                "(document.activeElement.getAttribute('aria-label') || document.activeElement.labels?.[0]?.textContent"
                " || document.activeElement.textContent).trim()"
            )
        )
    wanted = ["Skip to the view", "Run", "Parse tree", "Copy link", "Colours", "Drawing board", "Clear", "Upload"]
    places = [next((k for k, name in enumerate(names) if name.startswith(each)), -1) for each in wanted]
    assert places == sorted(places)
    page.get_by_role("button", name="Skip to the view").focus()
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "view"
    headings = page.get_by_role("heading", level=1).all_inner_texts()
    assert headings == ["Parse tree"]
