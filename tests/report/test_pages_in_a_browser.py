"""All pages in a browser: nothing asked for, nothing too wide, nothing empty, and a slider that moves the drawing."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import in_a_browser
import pytest
import torch
from in_a_browser import check_page, opened
from paper_stories import PAPER, WITH, WITHOUT, recipe, result, three_each
from report_stories import CURVE, comparison_row, comparison_story, make_examples, quickstart_story

import capsella
from capsella.papers.paper import Table, get_paper
from capsella.papers.targets import PAPERS
from capsella.report import comparison_page, quickstart_page, write_page
from capsella.report.doctor import doctor_page
from capsella.report.overview import chapter, overview
from capsella.report.papers import PAGE, paper_report

LONG = "a_class_with_quite_a_long_name_without_a_blank_in_it"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with in_a_browser.chromium() as running:
        yield running


STRANGE = ("<script>alert(1)</script>", LONG, "$x$", "_")


def strange_quickstart() -> str:
    story = quickstart_story(class_names=STRANGE, channels=3, mistakes=make_examples(0, classes=4, channels=3), data=LONG)
    return quickstart_page(replace(story, facts={LONG: LONG}, commands=((LONG, LONG),)))


def strange_comparison() -> str:
    rows = (comparison_row("<b>&"), comparison_row(f"_{LONG}", "ConvNet"))
    return comparison_page(comparison_story(rows=rows, class_names=STRANGE, data=LONG))


def lonely_comparison() -> str:
    row = comparison_row(seeds=(7,), accuracies=(1.0,), affine_accuracies=(), images_per_second=(5.0,), curves=(CURVE,))
    return comparison_page(comparison_story(rows=(row,), examples=None, class_names=("only",)))


def diagnosis(*, class_names: tuple[str, ...] | None = None, convolutional: bool = False, **options: Any) -> str:
    torch.manual_seed(0)
    model = capsella.create_model("em_capsnet" if convolutional else "capsnet_small")
    with torch.no_grad():
        # one that is dead: neither votes nor its bias hold it up.
        model.layers[-1].weight[:, 3] = 0
        if model.layers[-1].bias is not None:
            model.layers[-1].bias[3] = 0
    pixels = torch.randint(0, 256, (12, 1, 28, 28), dtype=torch.uint8)
    data = capsella.data.from_tensors(pixels, torch.arange(12) % 10, class_names=class_names or tuple(map(str, range(10))))
    found = capsella.diagnose(model, data, **options)
    return doctor_page(found.as_dict(), title=LONG if class_names else None)


LOOKS = [
    {
        "event": "watch",
        "step": 10 * k,
        "layer1/capsules": 72,
        "layer1/dead": 0.0,
        "layer1/gradient": 1 / k,
        "layer1/revivals": 0,
    }
    | {"layer2/capsules": 10, "layer2/dead": 0.1 * min(k, 4), "layer2/gradient": 0.1 / k, "layer2/revivals": 0}
    for k in range(1, 9)
]


def strange_diagnosis() -> str:
    names = tuple(f"{name}{k}" for k in range(5) for name in STRANGE[:2])
    return diagnosis(class_names=names, views={})


def whole_diagnosis() -> str:
    facts = {"data": "made", "split": "test", "model": {"name": "capsnet_small", "init": "gu2021"}}
    return diagnosis(sweep=True, compactness=True, events=LOOKS, facts=facts)


def whole_paper() -> str:
    paper = get_paper("peer2022")
    results = [result(each.key, seed, 0.8 + 0.05 * seed) for each in paper.recipes[:-1] for seed in (0, 1, 2)]
    return paper_report(paper, results)[PAGE]


def short_paper() -> str:
    return paper_report(PAPER, [replace(each, quick=True) for each in three_each()], quick=True)[PAGE]


def strange_paper() -> str:
    paper = replace(
        PAPER,
        title=LONG,
        recipes=(recipe(WITHOUT, LONG), recipe(WITH, STRANGE[0], departures=(LONG,))),
        tables=(Table("table1", LONG, LONG, (WITHOUT, WITH) * 6, rows=(LONG,), columns=STRANGE * 3, note=LONG),),
        remarks={"table1/with": LONG},
        says=(LONG,),
        beyond=LONG,
    )
    return paper_report(paper, [result(status=LONG), result(WITHOUT, 1, 0.1)])[PAGE]


@pytest.mark.parametrize(
    "make",
    [
        diagnosis,
        whole_diagnosis,
        strange_diagnosis,
        lambda: diagnosis(convolutional=True, views={"rotation": (10,)}),
        lambda: quickstart_page(quickstart_story()),
        strange_quickstart,
        lambda: comparison_page(comparison_story()),
        strange_comparison,
        lonely_comparison,
        whole_paper,
        short_paper,
        strange_paper,
    ],
    ids=[
        "diagnosis",
        "whole diagnosis",
        "strange diagnosis",
        "diagnosis of convolutions",
        "quickstart",
        "strange quickstart",
        "comparison",
        "strange comparison",
        "lonely comparison",
        "paper",
        "short versions of a paper",
        "strange paper",
    ],
)
def test_a_page_is_sound_at_both_widths_and_in_both_schemes(make: Callable[[], str], browser: Any, tmp_path: Path) -> None:
    write_page(tmp_path / "page.html", make())
    check_page(tmp_path / "page.html", browser=browser)


def test_the_page_of_all_papers_is_sound_at_both_widths_and_in_both_schemes(browser: Any, tmp_path: Path) -> None:
    strange = replace(
        PAPER, name="other", title=LONG, remarks={"table1/with": LONG}, claims=(replace(PAPER.claims[0], text=LONG),)
    )
    chapters = [chapter(PAPER, three_each()), chapter(strange, []), *(chapter(get_paper(name), []) for name in PAPERS)]
    write_page(tmp_path / "index.html", overview(chapters, {PAPER.name: "own"})["index.html"])
    check_page(tmp_path / "index.html", browser=browser, pictures=False)


def test_a_slider_moves_the_drawing_and_puts_the_others_back(browser: Any, tmp_path: Path) -> None:
    write_page(tmp_path / "page.html", quickstart_page(quickstart_story()))
    with opened(browser, tmp_path / "page.html") as page:
        shown, sliders = page.locator("#moved"), page.locator("#mover input")
        assert sliders.count() == 4
        assert shown.get_attribute("src") == page.locator("#frame-1-2").get_attribute("src")
        sliders.nth(2).press("ArrowRight")
        assert shown.get_attribute("src") == page.locator("#frame-3-3").get_attribute("src")
        assert page.locator("#moved-by").inner_text() == "value 3: +0.10"
        sliders.nth(0).press("Home")
        assert shown.get_attribute("src") == page.locator("#frame-1-0").get_attribute("src")
        assert page.locator("#moved-by").inner_text() == "value 1: −0.25"
        assert [sliders.nth(k).input_value() for k in range(4)] == ["0", "2", "2", "2"]


def test_without_scripts_the_sliders_are_away_and_the_frames_are_there(browser: Any, tmp_path: Path) -> None:
    write_page(tmp_path / "page.html", quickstart_page(quickstart_story()))
    with opened(browser, tmp_path / "page.html", script=False) as page:
        assert not page.locator("#mover").is_visible()
        assert page.locator("#frame-4-4").is_visible()


def test_a_wide_table_scrolls_in_a_box_of_its_own(browser: Any, tmp_path: Path) -> None:
    write_page(tmp_path / "page.html", whole_paper())
    with opened(browser, tmp_path / "page.html", width=400) as page:
        page.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
        assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
        wider = page.evaluate("[...document.querySelectorAll('.scroll')].filter((e) => e.scrollWidth > e.clientWidth).length")
        assert wider > 5
        # the names of the rows stay in sight.
        box = page.locator(".scroll").nth(1)
        box.evaluate("(e) => { e.scrollLeft = 200; }")
        assert box.evaluate("(e) => e.querySelector('tbody th').getBoundingClientRect().left >= e.getBoundingClientRect().left")


SOUND = '<body style="background: #fff"><p style="color: #000">text</p><img alt="dot" src="{dot}" width="9" height="9"></body>'
DOT = "data:image/gif;base64,R0lGODlhAQABAIAAAAAAAP///yH5BAEAAAAALAAAAAABAAEAAAIBRAA7"


def test_the_check_passes_a_sound_page(browser: Any, tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text(SOUND.format(dot=DOT))
    check_page(tmp_path / "page.html", browser=browser)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ("<script>console.error('oh')</script>", "oh"),
        ("<script>nothing()</script>", "nothing is not defined"),
        ("<script>fetch('other.html').catch(() => 0)</script>", "other.html"),
        ('<div style="width: 1300px">wide</div>', r"at 400 pixels, light: the page is 9\d\d pixels too wide"),
        ('<svg width="0" height="9" aria-label="x"></svg>', "empty: .*svg"),
        (f'<img width="9" height="9" src="{DOT}">', "nameless: .*img"),
        ('<i id="a"></i><i id="a"></i>', "twice: .*a"),
        ('<p style="color: #999">grey</p>', "faint: .*grey: 2.8"),
        ('<svg aria-label="x"><text y="20" fill="#eee">pale</text></svg>', "faint: .*pale: 1.1"),
    ],
)
def test_the_check_finds_what_is_wrong(wrong: str, says: str, browser: Any, tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text(SOUND.format(dot=DOT).replace("</body>", f"{wrong}</body>"))
    with pytest.raises(AssertionError, match=says):
        check_page(tmp_path / "page.html", browser=browser)


@pytest.mark.parametrize(("ci", "outcome"), [("true", pytest.fail.Exception), ("", pytest.skip.Exception)])
def test_a_missing_browser_fails_under_ci_and_skips_elsewhere(
    ci: str, outcome: type[BaseException], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CI", ci)
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(outcome, match=r"PAGES NOT CHECKED: .* not here; install it: apt-get install chromium"):
        check_page(tmp_path / "page.html")


@pytest.mark.parametrize(("ci", "outcome"), [("true", pytest.fail.Exception), ("", pytest.skip.Exception)])
def test_a_missing_package_fails_under_ci_and_skips_elsewhere(
    ci: str, outcome: type[BaseException], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CI", ci)
    monkeypatch.setitem(sys.modules, "playwright.sync_api", None)
    with pytest.raises(outcome, match="the Python package playwright is not here"):
        check_page(tmp_path / "page.html")
