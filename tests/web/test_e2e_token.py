"""An explorer that other machines reach, in a browser: its token is shown once, and addresses of what is shown are shared."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import browser as in_browser
import pytest
from browser import PHONE, check_sound, quiet
from explored import net

from capsella.web.explorer import Explorer
from capsella.web.server import Place, place, server

ELSEWHERE = "http://elsewhere.example/"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with in_browser.chromium() as running:
        yield running


@pytest.fixture(scope="module")
def where() -> Iterator[Place]:
    with Explorer([net()]) as explorer:
        found = place("0.0.0.0", 0)
        running = server(explorer, found)
        thread = threading.Thread(target=running.run, kwargs={"sockets": [found.socket]}, daemon=True)
        thread.start()
        yield found
        running.should_exit = True
        thread.join()
        found.socket.close()


@contextlib.contextmanager
def visit(browser: Any, **options: Any) -> Iterator[tuple[Any, list[str]]]:
    """Yield a page of somebody who was never here, and every address and referrer that it sends."""
    with contextlib.closing(browser.new_context(reduced_motion="reduce", **options)) as context:
        context.add_init_script(in_browser._COUNT)
        page = context.new_page()
        page.set_default_timeout(15_000)
        sent: list[str] = []
        page.on("request", lambda asked: sent.append(f"{asked.url} {asked.all_headers().get('referer', '')}"))
        yield page, sent


def test_a_shared_address_opens_for_whoever_has_the_token(browser: Any, where: Place) -> None:
    url = f"http://127.0.0.1:{where.port}/"
    token = str(where.token)
    with visit(browser, permissions=["clipboard-read", "clipboard-write"]) as (page, _):
        page.goto(f"{url}?token={token}#view=knobs&pic=t.4.small&knobs=1_0.2")
        quiet(page)
        assert page.url.startswith(f"{url}#")
        page.get_by_role("button", name="Copy link").click()
        page.get_by_text("is in the clipboard. Whoever opens it needs the token as well.").wait_for()
        shared = page.evaluate("navigator.clipboard.readText()")
        assert shared.startswith(f"{url}#run=small&view=knobs&pic=t.4.small")
        assert token not in shared
        # the owner meets it again in a mail, or in a page of another site.
        page.route(f"{ELSEWHERE}**", lambda route: route.fulfill(content_type="text/html", body=f"<a href='{shared}'>look</a>"))
        page.goto(ELSEWHERE)
        page.get_by_role("link", name="look").click()
        page.get_by_role("heading", name="Turn the knobs").wait_for()
        assert page.url == shared
    with visit(browser, viewport={"width": PHONE[0], "height": PHONE[1]}) as (page, sent):
        assert page.goto(shared).status == 401
        assert "a token is needed" in page.get_by_role("alert").inner_text()
        check_sound(page, "the form")
        field = page.get_by_label("Token")
        assert field.evaluate("(e) => e === document.activeElement")
        field.fill("wrong")
        page.get_by_role("button", name="Open").click()
        page.get_by_text("that is not the token").wait_for()
        page.get_by_label("Token").fill(token)
        page.keyboard.press("Enter")
        page.get_by_role("heading", name="Turn the knobs").wait_for()
        quiet(page)
        # what was shared is shown, and the token went nowhere that is kept.
        assert page.url == shared
        assert page.get_by_label("Value 2", exact=True).input_value() == "0.2"
        assert len(sent) > 10
        assert not any(token in each for each in sent)
        assert token not in page.evaluate("document.referrer + document.cookie")


def test_a_page_elsewhere_cannot_ask_in_the_owners_name(browser: Any, where: Place) -> None:
    url = f"http://127.0.0.1:{where.port}/"
    with visit(browser) as (page, _):
        page.goto(f"{url}?token={where.token}")
        quiet(page)
        form = f"<form method=post action='{url}api/runs/small/doctor'><button>go</button></form>"
        page.route(f"{ELSEWHERE}**", lambda route: route.fulfill(content_type="text/html", body=form))
        page.goto(ELSEWHERE)
        assert page.evaluate("(url) => fetch(url).then(() => 'read', () => 'refused')", f"{url}api/about") == "refused"
        with page.expect_response("**/doctor") as answer:
            page.get_by_role("button", name="go").click()
        # neither its cookie came along, nor would it have been enough.
        assert answer.value.status in (401, 403)
