"""The guard: who may ask, how much, how often, and what every answer says to the browser."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from typing import Any

import pytest
from explored import HOST, asked, net, one_line
from fastapi.testclient import TestClient

from capsella.web import guard as module
from capsella.web.app import application, files, routes
from capsella.web.explorer import Explorer
from capsella.web.guard import PAGE_POLICY, Caps, Guard
from capsella.web.signing_in import POLICY

TOKEN = "aGVsbG8gd29ybGQ"


@pytest.fixture(scope="module")
def client() -> Any:
    with asked(survey=False) as found:
        yield found


@pytest.fixture
def locked() -> Any:
    with asked(token=TOKEN, survey=False) as found:
        yield found


@pytest.mark.parametrize("path", ["/", "/static/api.js", "/api/about", "/api/nothing", "/api/runs/small/see", "/favicon.ico"])
def test_every_answer_says_what_a_browser_may_do_with_it(client: TestClient, path: str) -> None:
    headers = client.get(path).headers
    assert headers["content-security-policy"] == PAGE_POLICY
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cross-origin-resource-policy"] == "same-origin"
    assert headers["referrer-policy"] == "no-referrer"
    assert "access-control-allow-origin" not in headers


def test_the_policy_lets_no_script_in_but_the_pages_own() -> None:
    rules = dict(rule.strip().split(" ", 1) for rule in PAGE_POLICY.split(";"))
    assert rules["default-src"] == "'none'"
    assert rules["script-src"] == rules["style-src"] == rules["connect-src"] == "'self'"
    assert rules["frame-ancestors"] == rules["base-uri"] == rules["form-action"] == "'none'"
    assert "unsafe" not in PAGE_POLICY
    assert "http" not in PAGE_POLICY


@pytest.mark.parametrize("host", ["127.0.0.1:8474", "127.0.0.1", "localhost:1", "LOCALHOST:8474"])
def test_a_browser_may_ask_under_the_servers_names(client: TestClient, host: str) -> None:
    assert client.get("/api/about", headers={"host": host}).status_code == 200


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8474", "127.0.0.1.evil.example", "", "x" * 500])
def test_a_browser_may_not_ask_under_a_name_that_somebody_pointed_here(client: TestClient, host: str) -> None:
    response = client.get("/api/about", headers={"host": host})
    assert response.status_code == 403
    assert "expected 127.0.0.1, localhost" in one_line(response)
    assert len(response.content) < 300


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"origin": f"http://{HOST}"}, 200),
        ({"origin": f"http://{HOST}", "sec-fetch-site": "same-origin"}, 200),
        ({"sec-fetch-site": "none", "sec-fetch-mode": "navigate"}, 200),
        ({"origin": "https://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "http://["}, 403),
        ({"origin": "http://127.0.0.1:9999"}, 403),
        ({"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"}, 403),
    ],
)
def test_another_page_may_not_ask(client: TestClient, headers: dict[str, str], status: int) -> None:
    assert client.get("/api/about", headers=headers).status_code == status
    body = {"scene": {"picture": {"kind": "test", "run": "small", "index": 0}}}
    assert client.post("/api/runs/small/see", json=body, headers=headers).status_code == status


def test_another_page_may_link_here_and_do_nothing_else(client: TestClient) -> None:
    link = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
    assert client.get("/api/about", headers=link).status_code == 200
    assert client.post("/api/runs/small/doctor", headers=link).status_code == 403


def test_without_a_token_nothing_is_told(locked: TestClient) -> None:
    for path in ("/", "/static/api.js", "/api/about", "/api/openapi.json", "/api/nothing", "/runs/small/doctor"):
        response = locked.get(path)
        assert response.status_code == 401
        assert "a token is needed" in one_line(response)
    for headers in ({"authorization": "Bearer wrong"}, {"authorization": f"Basic {TOKEN}"}, {"authorization": "Bearer "}):
        assert locked.get("/api/about", headers=headers).status_code == 401
    for query in ("token=", "token=wrong", "token=%C3%A4%ff", f"Token={TOKEN}"):
        assert locked.get(f"/api/about?{query}").status_code == 401
    for cookie in ("capsella_token_8474=wrong", 'capsella_token_8474="', "=;=", f"other={TOKEN}"):
        assert locked.get("/api/about", headers={"cookie": cookie}).status_code == 401
    assert locked.post(f"/api/runs/small/doctor?token={TOKEN}").status_code == 401


def test_a_token_in_the_address_becomes_a_cookie_that_no_script_reads(locked: TestClient) -> None:
    response = locked.get(f"/?token={TOKEN}&view=tree")
    assert (response.status_code, response.headers["location"]) == (303, "/?view=tree")
    cookie = response.headers["set-cookie"]
    assert "HttpOnly" in cookie
    # a link that stands elsewhere opens the page.
    assert "SameSite=Lax" in cookie
    # browsers keep the cookies of all ports together: each has a name of its own.
    assert cookie.startswith(f"capsella_token_8474={TOKEN};")
    assert locked.get("/api/about").status_code == 200


def test_a_token_may_be_sent_as_bearer_and_any_name_asked_for(locked: TestClient) -> None:
    headers = {"authorization": f"bearer {TOKEN}", "host": "my-laptop:8474"}
    assert locked.get("/api/about", headers=headers).status_code == 200
    assert locked.get("/api/about", headers={**headers, "origin": "http://my-laptop:8474"}).status_code == 200
    assert locked.get("/api/about", headers={**headers, "origin": "http://other:8474"}).status_code == 403


def test_a_token_leads_to_no_other_server(locked: TestClient) -> None:
    for path in ("//evil.example/", "/%2F%2Fevil.example", "/%5Cevil.example"):
        response = locked.get(f"http://{HOST}{path}?token={TOKEN}")
        assert response.status_code == 303
        assert response.headers["location"][:2] not in ("//", "/\\")
        assert response.headers["location"].startswith("/")


BROWSER = {"accept": "text/html,application/xhtml+xml,*/*;q=0.8", "sec-fetch-mode": "navigate"}


def test_a_browser_without_a_token_is_given_a_form_for_it(locked: TestClient) -> None:
    response = locked.get("/", headers=BROWSER)
    assert (response.status_code, response.headers["content-type"]) == (401, "text/html; charset=utf-8")
    assert "a token is needed: fill in the one that the terminal shows" in response.text
    assert '<form method="post">' in response.text
    # a program is told so in JSON, and a browser, too, wherever there is no page.
    for path, headers in (("/", {"accept": "*/*"}), ("/api/about", BROWSER)):
        assert "a token is needed" in one_line(locked.get(path, headers=headers))


def test_the_form_runs_nothing_and_goes_to_this_server_alone(locked: TestClient) -> None:
    response = locked.get("/", headers=BROWSER)
    assert response.headers["content-security-policy"] == POLICY
    rules = dict(rule.strip().split(" ", 1) for rule in POLICY.split(";"))
    assert rules["default-src"] == rules["base-uri"] == rules["frame-ancestors"] == "'none'"
    assert rules["form-action"] == "'self'"
    assert "unsafe" not in POLICY
    assert "script" not in POLICY + response.text
    assert re.findall(r'(?:href|src|action)="(.*?)"', response.text) == ["data:,"]
    # with none at all a browser would not say where the form comes from, and could not be told from another page.
    assert response.headers["referrer-policy"] == "same-origin"
    assert response.headers["cache-control"] == "no-store"


def test_a_token_that_is_filled_in_becomes_a_cookie(locked: TestClient) -> None:
    own = {"origin": f"http://{HOST}", "sec-fetch-site": "same-origin", **BROWSER}
    for wrong in ("wrong", "", TOKEN[:-1], f"{TOKEN}x", "ä", "<script>"):
        response = locked.post("/", data={"token": wrong}, headers=own)
        assert response.status_code == 401
        assert "that is not the token" in response.text
        assert "set-cookie" not in response.headers
        assert "<script>" not in response.text
    assert one_line(locked.post("/", data={"other": TOKEN})).startswith("that is not the token")
    # what was copied with it counts for nothing.
    response = locked.post("/?token=wrong&view=tree", data={"token": f" {TOKEN}\n"}, headers=own)
    assert (response.status_code, response.headers["location"], response.content) == (303, "/?view=tree", b"")
    assert response.headers["set-cookie"] == f"capsella_token_8474={TOKEN}; Path=/; HttpOnly; SameSite=Lax"
    assert locked.get("/", headers=BROWSER).status_code == 200


@pytest.mark.parametrize("foreign", ['prefs={"a": 1}', "x", "name=é", 'a="b', "=;="])
def test_cookies_of_other_programs_on_the_host_do_not_hide_ours(locked: TestClient, foreign: str) -> None:
    cookie = f"{foreign}; capsella_token_8474={TOKEN}; z=1".encode()
    assert locked.get("/api/about", headers={"cookie": cookie}).status_code == 200


def test_of_an_address_that_is_filled_in_the_token_is_taken_alone(locked: TestClient) -> None:
    for address in (f"http://{HOST}/?token={TOKEN}#run=small", f"http://{HOST}/?token={TOKEN}&view=tree"):
        assert locked.post("/", data={"token": address}).status_code == 303


def test_whoever_shows_a_token_sends_no_form(locked: TestClient) -> None:
    assert locked.post("/", headers={"authorization": f"Bearer {TOKEN}"}).status_code == 405


def test_a_frame_in_another_page_is_no_link(client: TestClient) -> None:
    link = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
    assert client.get("/", headers={**link, "sec-fetch-dest": "document"}).status_code == 200
    assert client.get("/", headers={**link, "sec-fetch-dest": "iframe"}).status_code == 403


def test_no_other_page_fills_the_form_in(locked: TestClient) -> None:
    for headers in ({"origin": "https://evil.example"}, {"origin": "null"}, {"sec-fetch-site": "cross-site", **BROWSER}):
        response = locked.post("/", data={"token": TOKEN}, headers=headers)
        assert response.status_code == 403
        assert "set-cookie" not in response.headers
    assert locked.post("/", data={"token": "x" * 5000}).status_code == 413


def test_a_token_is_compared_in_constant_time_however_it_is_shown(locked: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[bytes] = []

    def never(shown: bytes, expected: bytes) -> bool:
        assert expected == TOKEN.encode()
        compared.append(shown)
        return False

    monkeypatch.setattr(module.hmac, "compare_digest", never)
    # where nothing else compares, the right one is refused as well.
    assert locked.get(f"/?token={TOKEN}").status_code == 401
    assert locked.get("/api/about", headers={"authorization": f"Bearer {TOKEN}"}).status_code == 401
    assert locked.get("/api/about", headers={"cookie": f"capsella_token_8474={TOKEN}"}).status_code == 401
    assert locked.post("/", data={"token": TOKEN}).status_code == 401
    assert compared.count(TOKEN.encode()) == 4


def test_a_link_from_elsewhere_changes_nothing() -> None:
    link = {**BROWSER, "sec-fetch-site": "cross-site", "cookie": f"capsella_token_8474={TOKEN}"}
    with Explorer([net()]) as explorer:
        app = application(explorer, hosts=None, token=TOKEN)
        client = TestClient(app, base_url=f"http://{HOST}", follow_redirects=False)
        gets = [path for path, kinds in routes(explorer).openapi()["paths"].items() if "get" in kinds]
        assert len(gets) >= 7
        for path in ("/", *gets):
            response = client.get(path.format(key="small", index=0), headers=link)
            assert response.status_code in (200, 404)
            assert "set-cookie" not in response.headers
        # no report has begun, and no network was asked.
        assert explorer.examination("small").state().state == "none"
        assert explorer.worker.batches == 0
        assert client.post("/api/runs/small/doctor", headers=link).status_code == 403


def test_the_page_knows_whether_a_token_is_needed(client: TestClient, locked: TestClient) -> None:
    assert client.get("/api/about").json()["needs_token"] is False
    assert locked.get("/api/about", headers={"authorization": f"Bearer {TOKEN}"}).json()["needs_token"] is True


def test_whoever_listens_to_all_needs_a_token() -> None:
    with Explorer([net()]) as explorer, pytest.raises(ValueError, match="hosts=None lets anyone ask; expected a token"):
        application(explorer, hosts=None)


@pytest.mark.parametrize(
    "path",
    [
        "/static/../app.py",
        "/static/..%2fapp.py",
        "/static/%2e%2e/app.py",
        "/static/%2e%2e%2fapp.py",
        "/static/..%5capp.py",
        "/static//etc/passwd",
        "/static/%2Fetc%2Fpasswd",
        "/static/app.py",
        "/static/__init__.py",
        "/static/.",
        "/static/",
        "/static/api.js%00.png",
        "/static/file:///etc/passwd",
        "/api/runs/..%2f..%2fetc/survey",
        "/api/runs/%2Fetc%2Fpasswd/survey",
        "/runs/../../etc/passwd",
        "/../../../../etc/passwd",
        "/%2e%2e/%2e%2e/etc/passwd",
    ],
)
def test_no_path_reaches_the_file_system(client: TestClient, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr("builtins.open", lambda name, *_, **__: opened.append(str(name)))
    monkeypatch.setattr("io.open", lambda name, *_, **__: opened.append(str(name)))
    monkeypatch.setattr("os.open", lambda name, *_, **__: opened.append(str(name)))
    response = client.get(path)
    monkeypatch.undo()
    assert response.status_code == 404
    assert opened == []


def test_files_of_the_page_come_from_a_list() -> None:
    with asked(survey=False) as client:
        found = files()
        assert {"api.js", "state.js"} <= found.keys()
        for name, content in found.items():
            response = client.get(f"/static/{name}")
            assert (response.status_code, response.content) == (200, content)
        assert client.get("/static/api.js").headers["content-type"] == "text/javascript; charset=utf-8"


def test_every_file_that_the_page_names_is_there_and_none_besides() -> None:
    found = files()
    texts = {name: content.decode() for name, content in found.items() if name.endswith((".html", ".js", ".css"))}
    named = {name for text in texts.values() for name in re.findall(r"""["'(](?:\./|/static/)([\w.-]+)["')]""", text)}
    assert named - found.keys() == set()
    assert found.keys() - named == {"index.html"}
    outside = {url for text in texts.values() for url in re.findall(r"(?:https?:)?//[\w.-]+\.[a-z]{2,}[\w./-]*", text)}
    assert {url for url in outside if not url.startswith("http://www.w3.org/")} == set()


def test_the_page_has_no_script_or_style_of_its_own() -> None:
    page = files()["index.html"].decode()
    assert not re.search(r"<style|\sstyle=|\son\w+=|<script(?![^>]*\ssrc=)|javascript:", page)


async def _called(caps: Caps, messages: Sequence[Any], *, path: str = "/api/x", headers: Any = ()) -> tuple[int, bytes | None]:
    """Ask a guarded application that returns the length of its body; return the status and that body."""
    sent: list[Any] = []
    waiting = list(messages)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        body = (await receive())["body"]
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": str(len(body)).encode()})

    async def receive() -> Any:
        if not waiting:
            await asyncio.sleep(60)
        return waiting.pop(0)

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": "POST",
        "path": path,
        "query_string": b"",
        "headers": [(b"host", HOST.encode()), *headers],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 8474),
    }
    await Guard(app, hosts={"127.0.0.1"}, token=None, caps=caps)(scope, receive, send)
    return (sent[0]["status"], sent[1]["body"]) if sent else (0, None)


def part(content: bytes, *, more: bool = True) -> Any:
    return {"type": "http.request", "body": content, "more_body": more}


def test_a_body_is_read_no_further_than_it_is_taken() -> None:
    caps = Caps(json_bytes=10, upload_bytes=20)
    run = asyncio.run
    assert run(_called(caps, [part(b"12345"), part(b"67890", more=False)])) == (200, b"10")
    # the rest of it never comes: what is too much is refused without it.
    assert run(_called(caps, [part(b"123456"), part(b"78901")]))[0] == 413
    assert run(_called(caps, [part(b"1" * 20, more=False)], path="/api/runs/a/upload")) == (200, b"20")
    assert run(_called(caps, [part(b"1" * 21)], path="/api/runs/a/upload"))[0] == 413
    assert run(_called(caps, [], headers=[(b"content-length", b"11")]))[0] == 413
    assert run(_called(caps, [], headers=[(b"content-length", b"9" * 40)]))[0] == 413


def test_a_body_that_is_too_large_is_said_to_be_so_in_numbers(client: TestClient) -> None:
    for said, shown in (("5000000", "5,000,000 bytes"), ("9" * 40, "far more bytes")):
        response = client.post("/api/runs/small/see", content=b"", headers={"content-length": said})
        assert response.status_code == 413
        assert one_line(response) == f"the body has {shown}; expected at most 3,145,728"


def test_a_body_that_does_not_come_is_waited_for_a_while() -> None:
    assert asyncio.run(_called(Caps(body_seconds=0.01), [part(b"1")]))[0] == 408


def test_whoever_leaves_in_the_middle_of_a_body_asks_nothing() -> None:
    assert asyncio.run(_called(Caps(), [part(b"1"), {"type": "http.disconnect"}])) == (0, None)


def test_nothing_but_http_is_answered() -> None:
    async def act() -> None:
        await Guard(None, hosts=None, token="t", caps=Caps())({"type": "websocket"}, None, None)  # type: ignore[arg-type]

    asyncio.run(act())
