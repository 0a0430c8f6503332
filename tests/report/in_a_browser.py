"""A page as a reader meets it: opened in Debian's chromium, at two widths, in the light and in the dark."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

WIDTHS = (400, 1280)
SCHEMES = ("light", "dark")
INSTALL = "install it: apt-get install chromium, and pip install playwright (no browser of its own is needed)"


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    """Start the browser; where there is none, fail under CI=true and skip elsewhere, saying how to install it."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        _missing("the Python package playwright is")
    program = shutil.which("chromium")
    if program is None:
        _missing("the program chromium is")
    # a home of its own: nothing is written to the user's.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as home, sync_playwright() as playwright:
        places = dict.fromkeys(("HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME"), home)
        browser = playwright.chromium.launch(
            executable_path=program, args=["--no-sandbox"], env={**os.environ, **places}, timeout=60_000
        )
        with contextlib.closing(browser):
            yield browser


def _missing(what: str) -> NoReturn:
    message = f"PAGES NOT CHECKED: {what} not here; {INSTALL}"
    if os.environ.get("CI") == "true":
        pytest.fail(message)
    pytest.skip(message)


@contextlib.contextmanager
def opened(browser: Browser, path: Path, *, width: int = 1280, scheme: str = "light", script: bool = True) -> Iterator[Page]:
    """Open a page and, at the end, check that nothing went wrong in it and that it asked for no other file."""
    colour: Any = scheme
    context = browser.new_context(
        viewport={"width": width, "height": 900}, color_scheme=colour, java_script_enabled=script, offline=True
    )
    with contextlib.closing(context):
        page = context.new_page()
        errors: list[str] = []
        requests: list[str] = []
        page.on("console", lambda message: errors.append(message.text) if message.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("request", lambda request: requests.append(request.url))
        page.goto(path.resolve().as_uri(), wait_until="load")
        yield page
        outside = [url for url in requests if not url.startswith("data:") and url != path.resolve().as_uri()]
        assert outside == [], f"{path.name}: asks for {outside}"
        assert errors == [], f"{path.name}: {errors}"


def check_page(path: Path, *, browser: Browser | None = None, pictures: bool = True) -> None:
    """Check that a page looks sound at every width and in both colour schemes.

    Nothing is wrong in the console, nothing is asked for but the page itself, every picture has a size and a text in its
    place, no id is there twice, nothing reaches past the right edge, and all text stands out from its ground.

    Args:
        path: the HTML file.
        browser: one that runs already.
        pictures: whether it must have some.
    """
    with contextlib.nullcontext(browser) if browser is not None else chromium() as running:
        for scheme in SCHEMES:
            with opened(running, path, scheme=scheme) as page:
                for width in WIDTHS:
                    page.set_viewport_size({"width": width, "height": 900})
                    where = f"{path.name} at {width} pixels, {scheme}"
                    found: dict[str, Any] = page.evaluate(LOOK)
                    assert found["overflow"] <= 0, f"{where}: the page is {found['overflow']} pixels too wide"
                    assert found["pictures"] > 0 or not pictures, f"{where}: no picture"
                    for what in ("empty", "nameless", "twice", "faint"):
                        assert found[what] == [], f"{where}: {what}: {found[what]}"


# text of 4.5 to 1 is what WCAG 2 asks of small letters.
LOOK = r"""
() => {
  const name = (e) => `<${e.tagName.toLowerCase()} id="${e.id}" class="${e.getAttribute("class") || ""}">`;
  const pictures = [...document.querySelectorAll("img, svg")];
  const ids = [...document.querySelectorAll("[id]")].map((e) => e.id);
  const light = (rgb) => {
    const [r, g, b] = rgb.slice(0, 3).map((v) => v / 255).map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const rgba = (text) => {
    const parts = (text.match(/[\d.]+/g) || []).map(Number);
    return parts.length === 3 ? [...parts, 1] : parts;
  };
  const ground = (e) => {
    for (let at = e; at; at = at.parentElement) {
      const colour = rgba(getComputedStyle(at).backgroundColor);
      if (colour.length === 4 && colour[3] > 0) return colour;
    }
    return [255, 255, 255, 1];
  };
  const faint = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const e = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || ["SCRIPT", "STYLE", "NOSCRIPT", "title"].includes(e.tagName)) continue;
    const style = getComputedStyle(e);
    const ink = rgba(e.closest("svg") ? style.fill : style.color);
    const [a, b] = [light(ink), light(ground(e))].sort((x, y) => y - x);
    const ratio = (a + 0.05) / (b + 0.05);
    if (!(ratio >= 4.5)) faint.push(`${walker.currentNode.data.trim()}: ${ratio.toFixed(2)}`);
  }
  return {
    overflow: document.documentElement.scrollWidth - innerWidth,
    pictures: pictures.length,
    empty: pictures.filter((e) => {
      const box = e.getBoundingClientRect();
      return !(box.width > 0 && box.height > 0) || (e.tagName === "IMG" && !(e.complete && e.naturalWidth > 0));
    }).map(name),
    nameless: pictures.filter((e) => !(e.hasAttribute("alt") || e.getAttribute("aria-label"))).map(name),
    twice: ids.filter((id, k) => ids.indexOf(id) !== k),
    faint,
  };
}
"""
