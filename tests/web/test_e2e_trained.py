"""Trained runs of yours, looked at in every view: ``CAPSELLA_SHOTS_RUNS=RUN:RUN CAPSELLA_SHOTS=FOLDER pytest -n 0 THIS_FILE``.

The pictures of docs/explorer.md are made here, with the runs that ``PICTURES`` names.
"""

from __future__ import annotations

import io
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import browser as in_browser
import pytest
from browser import DESK, PHONE, opened, quiet
from PIL import Image
from test_e2e import shots, walk

from capsella.cli.explore import explorer_of
from capsella.web.server import serving

__all__ = ["shots"]

RUNS = [Path(each) for each in os.environ.get("CAPSELLA_SHOTS_RUNS", "").split(os.pathsep) if each]

MOST_BYTES = 150_000
"""Of a picture of the docs."""

PICTURES = {
    "explorer-tree": ("run=capsnet_small&view=tree&pic=t.0.capsnet_small&capsule=1.7", (1440, 900), "light"),
    "explorer-knobs": ("run=capsnet_small&view=knobs&pic=t.4.capsnet_small&knobs=0.4_-0.4_0.4_-0.4", (1440, 900), "dark"),
    "explorer-phone": ("run=capsnet_small&view=tree&pic=t.2.capsnet_small", (390, 844), "light"),
}
"""By name: what is shown, the size of the window, the scheme."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with in_browser.chromium() as running:
        yield running


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    if not RUNS:
        pytest.skip("CAPSELLA_SHOTS_RUNS names no runs")
    explorer = explorer_of(RUNS, None, "test", {}, images=1000, device="cpu", root=None)
    with explorer, serving(explorer) as found:
        while not all(each.survey.is_complete for each in explorer.nets.values()):
            time.sleep(0.05)
        yield found


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("size", [DESK, PHONE])
def test_every_view_of_a_trained_run_is_sound(size: tuple[int, int], browser: Any, url: str, shots: Path) -> None:
    with opened(browser, url, size=size, reduced_motion="reduce") as window:
        for key in (
            window.page.locator("header select").first.locator("option").evaluate_all("(all) => all.map((e) => e.value)")
        ):
            # a capsule of the layer below the classes, and an image that is turned and has another on it.
            page = window.show(f"run={key}&pic=t.7.{key}&capsule=0.0&rotation=30&ox=5")
            walk(page, key, size[0], shots)


@pytest.mark.slow
@pytest.mark.parametrize("name", PICTURES)
def test_the_pictures_of_the_docs(name: str, browser: Any, url: str, shots: Path) -> None:
    fragment, size, scheme = PICTURES[name]
    with opened(browser, url, fragment, size=size, color_scheme=scheme, reduced_motion="reduce") as window:
        quiet(window.page, 600)
        if size[0] < 640:
            # what is drawn on is above, and would fill all of it.
            window.page.locator(".says").evaluate("(e) => scrollTo(0, e.getBoundingClientRect().top + scrollY - 10)")
        with Image.open(io.BytesIO(window.page.screenshot())) as image:
            image.save(shots / f"{name}.webp", quality=84, method=6)
    assert (shots / f"{name}.webp").stat().st_size < MOST_BYTES
