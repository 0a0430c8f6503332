"""The explorer's page as somebody meets it: opened in Debian's chromium, with everything that goes wrong in it written down."""

from __future__ import annotations

import contextlib
import itertools
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "report"))

from in_a_browser import LOOK, chromium

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

__all__ = ["DESK", "PHONE", "Window", "check_sound", "chromium", "levels", "opened", "quiet"]

PHONE, DESK = (360, 780), (1280, 1500)

# counts what is asked, so that a test can wait until nothing is.
_COUNT = """
(() => {
  const ask = window.fetch;
  let [open, last] = [0, performance.now()];
  window.fetch = async (...given) => {
    open += 1;
    try {
      return await ask(...given);
    } finally {
      open -= 1;
      last = performance.now();
    }
  };
  window.quiet = (still) => new Promise((resolve) => {
    const look = () => (open === 0 && performance.now() - last > still ? resolve() : setTimeout(look, 20));
    // an answer is shown, and another question asked, in the next frame.
    requestAnimationFrame(() => requestAnimationFrame(() => {
      last = performance.now();
      look();
    }));
  });
})();
"""


_VISITS = itertools.count()


@dataclass
class Window:
    """The page in a window, and what went wrong in it.

    Attributes:
        page: of the browser.
        url: of the explorer.
        errors: everything that the console said.
        outside: everything that was asked of somebody else.
    """

    page: Page
    url: str
    errors: list[str] = field(default_factory=list)
    outside: list[str] = field(default_factory=list)

    def show(self, fragment: str = "") -> Page:
        """Go to an address, which says all that is shown; the page is not loaded anew if it is there already."""
        # what makes no sense is passed over, and makes each of them another.
        self.page.goto(f"{self.url}#{fragment}&visit={next(_VISITS)}")
        quiet(self.page)
        return self.page

    def check(self) -> None:
        """Check that nothing went wrong, and forget it."""
        errors, outside = self.errors[:], self.outside[:]
        self.errors.clear()
        self.outside.clear()
        assert errors == [], f"{self.page.url}: {errors}"
        assert outside == [], f"{self.page.url}: asks for {outside}"


@contextlib.contextmanager
def opened(browser: Browser, url: str, fragment: str = "", *, size: tuple[int, int] = DESK, **options: Any) -> Iterator[Window]:
    """Open the page and, at the end, check that nothing went wrong in it and that it asked nobody else.

    Args:
        browser: that runs.
        url: of the explorer.
        fragment: what is shown, without its #.
        size: of the window, in pixels.
        **options: of the browser's context.
    """
    width, height = size
    with contextlib.closing(browser.new_context(viewport={"width": width, "height": height}, **options)) as context:
        context.add_init_script(_COUNT)
        page = context.new_page()
        page.set_default_timeout(15_000)
        window = Window(page, url)
        page.on("console", lambda said: window.errors.append(said.text) if said.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: window.errors.append(str(error)))
        page.on(
            "request", lambda asked: None if asked.url.startswith((url, "data:", "blob:")) else window.outside.append(asked.url)
        )
        window.show(fragment)
        yield window
        window.check()


def quiet(page: Page, still: int = 50) -> None:
    """Wait until nothing was asked for so many milliseconds; some views wait a little before they ask."""
    page.wait_for_selector("main .view > *")
    page.evaluate(f"quiet({still})")


def levels(page: Page, selector: str) -> list[int]:
    """Return what a canvas shows, as levels of its red."""
    return list(
        page.locator(selector).first.evaluate(
            """(shown) => {
              // a copy, because the browser warns of pages that read what it shows.
              const context = new OffscreenCanvas(shown.width, shown.height).getContext("2d", { willReadFrequently: true });
              context.drawImage(shown, 0, 0);
              return [...context.getImageData(0, 0, shown.width, shown.height).data].filter((_, k) => k % 4 === 0);
            }"""
        )
    )


def check_sound(page: Page, where: str, *, shots: Path | None = None) -> None:
    """Check that nothing is too wide, cut or broken, no id is there twice, everything has a name, and all text stands out.

    Args:
        page: as it is.
        where: what it shows, for whoever reads of something wrong, and the name of its pictures.
        shots: a folder for a picture of it in each scheme.
    """
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        found = page.evaluate(LOOK)
        assert found["overflow"] <= 0, f"{where}: {found['overflow']} pixels too wide"
        assert found["twice"] == [], f"{where}: {found['twice']}"
        assert found["faint"] == [], f"{where}, {scheme}: {found['faint']}"
        if shots is not None:
            page.screenshot(path=shots / f"{where.replace(' ', '-')}-{scheme}.png", full_page=True)
    for script in (_NAMELESS, _CUT_OFF, _OVERLAID, _BROKEN, _UNEVEN):
        wrong = page.evaluate(script)
        assert wrong == [], f"{where}: {wrong}"


# what can be worked with must have a name for who does not see it.
_NAMELESS = """
() => {
  const seen = (e) => e.getClientRects().length > 0 && !e.closest("[aria-hidden=true]");
  const said = (e) => e.getAttribute("aria-label") || e.getAttribute("aria-labelledby");
  const named = (e) => said(e) || (!/canvas|svg/i.test(e.tagName) && (e.labels?.length || e.textContent.trim()));
  return [...document.querySelectorAll("button, a, input, select, canvas, svg, summary, [tabindex]")]
    .filter((e) => seen(e) && !named(e))
    .map((e) => e.outerHTML.slice(0, 120));
}
"""

# bars of one list have one scale, which the eye reads from where they begin and end.
_UNEVEN = """
() => [...document.querySelectorAll(".bars")].flatMap((list) => {
  const places = [...list.querySelectorAll(".bar-track")].map((e) => e.getBoundingClientRect());
  const apart = (side) => Math.max(...places.map((e) => e[side])) - Math.min(...places.map((e) => e[side]));
  return places.length && (apart("left") > 0.5 || apart("width") > 0.5) ? [list.textContent.slice(0, 120)] : [];
})
"""

# words of a tree that reach past its edge are lost.
_CUT_OFF = """
() => [...document.querySelectorAll("svg.tree, svg.plot")].flatMap((svg) => {
  const box = svg.getBoundingClientRect();
  if (box.width === 0) return [];
  return [...svg.querySelectorAll("text")].filter((e) => {
    const own = e.getBoundingClientRect();
    return own.width > 0 && (own.left < box.left - 2 || own.right > box.right + 2);
  }).map((e) => `${e.textContent}: ${Math.round(box.width)}`);
})
"""

# names of layers that lie on one another cannot be read.
_OVERLAID = """
() => [...document.querySelectorAll("svg.tree")].flatMap((svg) => {
  const names = [...svg.querySelectorAll(".head-name")].map((e) => [e.textContent, e.getBoundingClientRect()]);
  return names.flatMap(([name, a], k) => names.slice(k + 1)
    .filter(([, b]) => a.width > 0 && a.left < b.right && b.left < a.right && a.top + 2 < b.bottom && b.top + 2 < a.bottom)
    .map(([other]) => `${name} and ${other}`));
})
"""

# a word or a number of a table that goes on in the next line cannot be read.
_BROKEN = r"""
() => [...document.querySelectorAll("td, th")].flatMap((cell) => {
  const found = [];
  const walker = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    for (const match of walker.currentNode.data.matchAll(/[\p{L}\p{N}_.,]+/gu)) {
      const range = document.createRange();
      range.setStart(walker.currentNode, match.index);
      range.setEnd(walker.currentNode, match.index + match[0].length);
      const rows = new Set([...range.getClientRects()].map((box) => Math.round(box.top)));
      if (rows.size > 1) found.push(`${match[0]} of ${cell.textContent}`);
    }
  }
  return found;
})
"""
