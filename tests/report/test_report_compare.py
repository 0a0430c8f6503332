"""The comparison: a table of means and spreads, and a verdict by a rule that anyone can check."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from report_stories import CLASSES, Reader, comparison_row, comparison_story, draw

from capsella.report import (
    AffineExamples,
    ComparisonStory,
    comparison_page,
    comparison_table,
    image_uri,
    verdict,
    verdicts,
)
from capsella.report.compare import HEADER


def read(story: ComparisonStory) -> Reader:
    page = Reader(comparison_page(story))
    assert page.open == []
    return page


def test_the_table_has_means_and_spreads() -> None:
    (row,) = comparison_table([comparison_row()])
    assert dict(zip(HEADER, row, strict=True)) == {
        "model": "capsnet_small",
        "kind": "capsule net",
        "parameters": "248,736",
        "seeds": "3",
        "accuracy": "99.00 ± 1.00\xa0%",
        "affine accuracy": "72.00 ± 2.00\xa0%",
        "images/s": "1,000 ± 100",
        "memory a step": "3.0 MiB",
    }


def test_what_was_not_measured_is_a_dash() -> None:
    one = {"seeds": (5,), "accuracies": (0.5,), "affine_accuracies": (), "images_per_second": (7.0,), "curves": ()}
    (row,) = comparison_table([comparison_row(**one, memory=None)])
    assert row[3:] == ("1", "50.00\xa0%", "–", "7", "–")


FIRST, BETTER, NEAR = (0.90, 0.91, 0.92), (0.94, 0.95, 0.96), (0.91, 0.92, 0.93)


def test_a_difference_beyond_the_spreads_is_clear_in_both_orders() -> None:
    for found in (verdict("a", FIRST, "b", BETTER), verdict("b", BETTER, "a", FIRST)):
        assert found.clear
        assert found.headline == "b is clearly ahead of a."
        assert found.reason.endswith("the difference of the means, 4.00 points, exceeds the sum of the spreads, 2.00.")


def test_a_difference_within_the_spreads_is_not() -> None:
    found = verdict("a", FIRST, "b", NEAR)
    assert not found.clear
    assert found.headline == "a and b are not distinguishable with these runs."
    assert found.reason == (
        "91.00 ± 1.00\xa0% against 92.00 ± 1.00\xa0%; "
        "the difference of the means, 1.00 points, does not exceed the sum of the spreads, 2.00."
    )


def test_a_difference_equal_to_the_spreads_is_not_clear() -> None:
    # numbers that binary fractions hold exactly.
    assert not verdict("a", (0.25, 0.5, 0.75), "b", (0.75, 0.75, 0.75)).clear
    assert verdict("a", (0.25, 0.5, 0.75), "b", (0.78, 0.78, 0.78)).clear
    assert not verdict("a", (0.5, 0.5, 0.5), "b", (0.5, 0.5, 0.5)).clear


@pytest.mark.parametrize("seeds", [1, 2])
def test_few_seeds_are_never_clear(seeds: int) -> None:
    for found in (verdict("a", (0.1,) * seeds, "b", BETTER), verdict("a", (0.1, 0.1, 0.1), "b", (0.9,) * seeds)):
        assert not found.clear
        assert found.headline == "a and b are not distinguishable with these runs."
        assert found.reason.endswith("with fewer than 3 seeds each, no difference is called clear.")


def test_capsule_nets_are_compared_with_convnets_and_named_first() -> None:
    rows = [comparison_row("x", "ConvNet"), comparison_row("c"), comparison_row("y", "ConvNet")]
    assert [found.headline.split(" are ")[0] for found in verdicts(rows)] == ["c and x", "c and y"]
    assert [found.headline.split(" are ")[0] for found in verdicts(rows[::2])] == ["x and y"]
    assert verdicts(rows[:1]) == []


def test_transformed_images_have_verdicts_of_their_own() -> None:
    rows = [comparison_row("c"), comparison_row("x", "ConvNet", affine_accuracies=(0.9, 0.9, 0.9))]
    assert not verdicts(rows)[0].clear
    assert verdicts(rows, affine=True)[0].headline == "x is clearly ahead of c."
    assert verdicts([rows[0], comparison_row("y", "ConvNet", affine_accuracies=())], affine=True) == []


def test_the_page_shows_table_verdict_and_rule() -> None:
    page = read(comparison_story())
    for row in comparison_table(comparison_story().rows):
        for value in row:
            assert " ".join(value.split()) in page.text, value
    assert "capsnet_small is clearly ahead of convnet_small." in page.text
    assert "exceeds the sum of the spreads (sample standard deviations over the seeds)" in page.text
    assert "at least 3 seeds" in page.text
    assert "Every run saw 120,000 training images." in page.text
    assert "0, 1, 2" in page.text
    assert len(page.every("svg")) == 3
    assert [attributes.get("scope") for attributes in page.every("th")].count("col") == len(HEADER)


def test_examples_are_shown_beside_their_transformed_versions() -> None:
    images, moved = draw(2, 3, 6, 6, seed=1), draw(2, 3, 8, 8, seed=2)
    page = read(comparison_story(examples=AffineExamples(images, moved, torch.tensor([4, 2]))))
    expected = [image_uri(each) for pair in zip(images, moved, strict=True) for each in pair]
    assert [attributes["src"] for attributes in page.every("img")] == expected


def test_without_affine_figures_the_section_is_left_out() -> None:
    page = read(comparison_story(rows=(comparison_row(affine_accuracies=()),), examples=None))
    assert "Moved, turned" not in page.text
    assert len(page.every("svg")) == 2
    assert "There is one network, so nothing to compare it with." in page.text


def test_the_band_is_spoken_of_only_where_there_is_one() -> None:
    one = {"seeds": (5,), "accuracies": (0.5,), "affine_accuracies": (0.4,), "images_per_second": (7.0,), "curves": ((),)}
    assert "the band one spread" in read(comparison_story()).text
    assert "the band one spread" not in read(comparison_story(rows=(comparison_row(**one),))).text


def test_the_page_asks_for_nothing_and_runs_nothing() -> None:
    page = read(comparison_story(rows=(comparison_row("<script>x</script>"),), data="<script>", class_names=("<b>",) * 10))
    assert page.every("script") == []
    assert page.every("b") == []
    assert "Do capsules help on <script>?" in page.text
    for _, attributes in page.tags:
        for key in ("src", "href", "xlink:href"):
            assert attributes.get(key, "#").startswith(("data:", "#")), attributes


def test_the_same_story_gives_the_same_page() -> None:
    assert comparison_page(comparison_story()) == comparison_page(comparison_story())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kind": "net"}, "kind='net' is unknown"),
        ({"seeds": ()}, "seeds=() of 'capsnet_small' names no run; expected at least one seed"),
        ({"accuracies": (0.5,)}, "accuracies of 'capsnet_small' has 1 values; expected 3, one per seed"),
        ({"images_per_second": ()}, "images_per_second of 'capsnet_small' has 0 values; expected 3, one per seed"),
        ({"affine_accuracies": (0.5,)}, "affine_accuracies of 'capsnet_small' has 1 values; expected 3, one per seed, or none"),
        ({"curves": ((),)}, "curves of 'capsnet_small' has 1 values; expected 3, one per seed, or none"),
    ],
)
def test_a_row_that_does_not_fit_its_seeds_is_named_in_one_line(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=r"expected|unknown") as caught:
        comparison_row(**changes)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_a_story_that_does_not_fit_together_is_named_in_one_line() -> None:
    with pytest.raises(ValueError, match=r"^rows=\(\) has nothing to compare; expected at least one network$"):
        comparison_page(comparison_story(rows=()))
    examples = AffineExamples(draw(2, 1, 4, 4), draw(3, 1, 4, 4), torch.arange(2))
    with pytest.raises(ValueError, match=r"^examples\.transformed has shape \[3, 1, 4, 4\]; expected \[n=2, C, H, W\]$"):
        comparison_page(comparison_story(examples=examples))
    examples = AffineExamples(draw(2, 1, 4, 4), draw(2, 1, 4, 4), torch.tensor([0, len(CLASSES)]))
    with pytest.raises(ValueError, match=r"^examples\.labels has class 10; expected whole numbers from 0 to 9$"):
        comparison_page(comparison_story(examples=examples))
