"""The first page: its figures come from the story, its sentences hold for any of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from report_stories import GRID, Reader, make_couplings, make_dimensions, make_examples, quickstart_story

from capsella.report import QuickstartStory, TrainedNetwork, grid_extent, heat_uri, image_uri, quickstart_page
from capsella.report.couplings import coupling_maps
from capsella.report.quickstart import accuracy_sentences


def network(name: str, accuracy: float, affine: float | None = None) -> TrainedNetwork:
    return TrainedNetwork(name, "ConvNet", 10, 1, accuracy, affine, 1.0, 1.0)


def read(story: QuickstartStory) -> Reader:
    page = Reader(quickstart_page(story))
    assert page.open == []
    return page


def test_the_figures_are_those_of_the_story() -> None:
    text = read(quickstart_story()).text
    for shown in ("99.12 %", "98.34 %", "70.10 %", "248,736", "134,906", "2 epochs in 1 min 24 s", "1,425", "8,000"):
        assert shown in text, shown
    assert "read as" in text
    assert "capsella compare --data mnist" in text
    assert "0123456789abcdef" * 4 in text


def test_every_picture_of_the_story_is_there_once_or_more() -> None:
    story = quickstart_story()
    shown = {attributes["src"] for attributes in read(story).every("img")}
    expected = [*story.examples.images, *story.examples.reconstructions, *story.mistakes.images]
    expected += [*story.dimensions.frames.flatten(0, 1), story.dimensions.image, story.couplings.image]
    assert {image_uri(image) for image in expected} <= shown


def test_the_page_asks_for_nothing_from_outside() -> None:
    page = read(quickstart_story())
    for _, attributes in page.tags:
        for key in ("src", "href", "xlink:href", "action", "data"):
            assert attributes.get(key, "#").startswith(("data:", "#")), attributes
    assert not [attributes for attributes in page.every("script") if "src" in attributes]
    assert all("alt" in attributes for attributes in page.every("img"))
    assert all(attributes.get("scope") for attributes in page.every("th"))


def test_the_same_story_gives_the_same_page() -> None:
    assert quickstart_page(quickstart_story()) == quickstart_page(quickstart_story())


def test_names_are_shown_and_never_obeyed() -> None:
    names = ("<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "a & b")
    story = quickstart_story(class_names=names, mistakes=make_examples(3, classes=3, right=False))
    plain, strange = read(quickstart_story()), read(replace(story, facts={"<i>": "</td><script>"}, commands=(("<b>", "<u>"),)))
    assert len(strange.every("script")) == len(plain.every("script")) == 1
    assert not [attributes for attributes in strange.every("img") if "onerror" in attributes]
    for name in (*names, "</td><script>", "<b>", "<u>"):
        assert name in strange.text


def test_without_mistakes_a_sentence_takes_their_place() -> None:
    assert "none of the test images that were looked at was read wrongly" not in read(quickstart_story()).text
    text = read(quickstart_story(mistakes=make_examples(0))).text
    assert "none of the test images that were looked at was read wrongly" in text


def test_colour_images_and_a_single_class_make_a_page() -> None:
    story = quickstart_story(class_names=("only",), channels=3, mistakes=make_examples(0, channels=3))
    page = read(story)
    assert "so with 1 class 1 is the indifferent value" in page.text
    assert image_uri(story.examples.images[0]) in {attributes["src"] for attributes in page.every("img")}


def test_curves_facts_and_commands_may_be_missing() -> None:
    networks = tuple(replace(each, curve=()) for each in quickstart_story().networks)
    page = read(quickstart_story(networks=networks, facts={}, commands=()))
    assert page.every("svg") == []
    for heading in ("How they learned", "What to try next", "How this was made"):
        assert heading not in page.text


@pytest.mark.parametrize(("classes", "shown"), [(10, "with 10 classes 0.1 is the"), (4, "with 4 classes 0.25 is the")])
def test_the_indifferent_coupling_follows_the_number_of_classes(classes: int, shown: str) -> None:
    names = tuple(str(k) for k in range(classes))
    story = quickstart_story(class_names=names, mistakes=make_examples(0, classes=classes))
    assert shown in read(story).text


def test_the_class_of_the_longest_capsule_is_the_answer() -> None:
    scores = torch.zeros(10)
    scores[6] = 0.875
    page = Reader(quickstart_page(quickstart_story(couplings=replace(make_couplings(), scores=scores))))
    marked = [tag for tag, attributes in page.tags if attributes.get("class") == "is-answer"]
    assert marked == ["tr", "li"]
    assert "1 , read as 6" in page.text
    assert "6 0.88" in page.text
    assert "width: 87.5%" in [attributes.get("style") for attributes in page.every("span")]


def test_maps_add_up_coupling_times_length_over_types() -> None:
    height, width, types = GRID
    I, J = height * width * types, 3
    couplings, lengths = np.zeros((I, J)), np.zeros(I)
    couplings[:, 2] = 1.0
    # row 1, column 3: both types; row 2, column 0: the second type.
    for row, column, kind, value in ((1, 3, 0, 0.5), (1, 3, 1, 0.25), (2, 0, 1, 0.125)):
        lengths[(row * width + column) * types + kind] = value
    maps, shares = coupling_maps(couplings, lengths, GRID)
    expected = np.zeros((J, height, width))
    expected[2, 1, 3], expected[2, 2, 0] = 0.75, 0.125
    assert np.array_equal(maps, expected)
    assert shares.tolist() == [0.0, 0.0, 1.0]


def test_a_map_is_drawn_beside_what_indifferent_couplings_would_give() -> None:
    I, J = GRID[0] * GRID[1] * GRID[2], 10
    couplings = torch.full((I, J), 0.1)
    # both types at row 0, column 1 lean to class 7.
    couplings[2:4] = 0.05
    couplings[2:4, 7] = 0.55
    view = replace(make_couplings(), couplings=couplings, lengths=torch.full((I,), 0.5))
    page = Reader(quickstart_page(quickstart_story(couplings=view)))
    found = [
        attributes["src"] for attributes in page.every("img") if attributes["alt"].startswith("where the capsules that vote")
    ]
    leaning = np.zeros((J, *GRID[:2]))
    leaning[:, 0, 1], leaning[7, 0, 1] = -0.05, 0.45
    assert found == [heat_uri(each, top=0.45) for each in leaning]
    assert "share 0.097" in page.text
    assert "share 0.128" in page.text


def test_shares_weigh_couplings_by_length() -> None:
    couplings = np.array([[0.9, 0.1], [0.3, 0.7]])
    assert coupling_maps(couplings, np.array([0.2, 0.6]), (1, 2, 1))[1] == pytest.approx([0.45, 0.55])
    assert coupling_maps(couplings, np.zeros(2), (1, 2, 1))[1] == pytest.approx([0.6, 0.4])


@pytest.mark.parametrize(
    ("height", "width", "windows"), [(28, 28, [(9, 1), (9, 2)]), (20, 28, [(5, 2), (5, 2)]), (9, 9, [(3, 3)])]
)
def test_cells_of_a_grid_are_centred_on_what_their_capsules_see(
    height: int, width: int, windows: list[tuple[int, int]]
) -> None:
    image = torch.zeros(1, 1, height, width, requires_grad=True)
    found = image
    for kernel, stride in windows:
        found = torch.nn.functional.conv2d(found, torch.ones(1, 1, kernel, kernel), stride=stride)
    rows, columns = found.shape[2:]
    top, left, bottom, right = grid_extent(windows, (rows, columns))
    for row in range(rows):
        for column in range(columns):
            (seen,) = torch.autograd.grad(found[0, 0, row, column], image, retain_graph=True)
            places = seen[0, 0].nonzero().double() + 0.5
            middle = (places.amin(dim=0) + places.amax(dim=0)) / 2
            cell = (top + (row + 0.5) * (bottom - top) / rows, left + (column + 0.5) * (right - left) / columns)
            assert middle.tolist() == pytest.approx(cell)


def test_the_grid_lies_where_its_extent_says() -> None:
    couplings = replace(make_couplings(), extent=(3.0, 6.0, 9.0, 12.0))
    styles = {
        attributes.get("style") for attributes in Reader(quickstart_page(quickstart_story(couplings=couplings))).every("img")
    }
    assert "top: 25.00%; left: 50.00%; height: 50.00%; width: 50.00%" in styles
    page = Reader(quickstart_page(quickstart_story(couplings=replace(couplings, extent=None))))
    assert "top: 0.00%; left: 0.00%; height: 100.00%; width: 100.00%" in {each.get("style") for each in page.every("img")}
    assert "The grid is stretched over the image." in page.text


def test_sentences_name_the_better_network_whichever_it_is() -> None:
    first, second = network("a", 0.99), network("b", 0.985)
    ahead = "Of the test images, a got 99.00\xa0% right and b 98.50\xa0%: 0.50 percentage points apart."
    assert accuracy_sentences([first, second])[0] == ahead
    assert accuracy_sentences([second, first])[0] == ahead


def test_sentences_for_equal_single_and_many_networks() -> None:
    same = accuracy_sentences([network("a", 0.99), network("b", 0.990001)])
    assert same[0] == "Of the test images, a and b got the same share right: 99.00\xa0%."
    assert accuracy_sentences([network("a", 0.5)]) == ["Of the test images, a got 50.00\xa0% right."]
    many = accuracy_sentences([network("a", 0.5), network("b", 0.7), network("c", 0.6)])
    assert many[0].endswith("b got 70.00\xa0% right and c 60.00\xa0%, a 50.00\xa0%: 20.00 percentage points between b and a.")


def test_transformed_images_are_spoken_of_where_all_networks_saw_them() -> None:
    assert len(accuracy_sentences([network("a", 0.9, 0.6), network("b", 0.8)])) == 2
    found = accuracy_sentences([network("a", 0.9, 0.6), network("b", 0.8, 0.7)])
    assert found[1].startswith(
        "Of test images that were moved, turned, scaled or sheared, b got 70.00\xa0% right and a 60.00\xa0%"
    )
    assert found[2].startswith("That is one run of each network")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"networks": ()}, "networks=() has nothing to show; expected at least one trained network"),
        ({"networks": (TrainedNetwork("a", "capsnet", 1, 1, 1.0, None, 1.0, 1.0),)}, "kind='capsnet' is unknown"),
        (
            {"examples": replace(make_examples(3), labels=torch.tensor([0, 1, 10]))},
            "examples.labels has class 10; expected whole",
        ),
        (
            {"mistakes": replace(make_examples(3), predictions=torch.zeros(2))},
            "mistakes.predictions has shape [2]; expected [n=3]",
        ),
        (
            {"examples": replace(make_examples(3), images=torch.zeros(3, 12, 12))},
            "examples.images has shape [3, 12, 12]; expected",
        ),
        (
            {"dimensions": replace(make_dimensions(), offsets=(0.1, 0.0, 0.2, 0.3, 0.4))},
            "offsets=(0.1, 0.0, 0.2, 0.3, 0.4) is not",
        ),
        (
            {"dimensions": replace(make_dimensions(), offsets=(0.0,))},
            "frames has shape [4, 5, 1, 12, 12]; expected [D, offsets=1",
        ),
        ({"couplings": replace(make_couplings(), couplings=torch.full((32, 10), 0.2))}, "couplings does not sum to 1 over the"),
        ({"couplings": replace(make_couplings(), grid=(4, 4, 3))}, "couplings has shape [32, 10]; expected [I=48, J=10]"),
        (
            {"couplings": replace(make_couplings(), label=-1)},
            "couplings.label has class -1; expected whole numbers from 0 to 9",
        ),
    ],
)
def test_a_story_that_does_not_fit_together_is_named_in_one_line(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=r"expected|unknown") as caught:
        quickstart_page(quickstart_story(**changes))
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)
