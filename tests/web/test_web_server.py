"""The server: where it listens, what it says there, and that it ends when it is told to."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
import threading
import time
import webbrowser
from typing import Any
from urllib.parse import urlsplit

import pytest
from explored import net, of_test

from capsella.web import server as module
from capsella.web.explorer import Explorer
from capsella.web.server import Place, has_screen, place, serve, server, serving


@pytest.fixture(scope="module")
def url() -> Any:
    with Explorer([net()]) as explorer, serving(explorer) as found:
        yield found


def call(url: str, method: str = "GET", path: str = "/api/about", body: bytes | None = None, **headers: str) -> Any:
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=20)
    connection.request(method, path, body, headers)
    response = connection.getresponse()
    content = response.read()
    connection.close()
    return response, content


def test_questions_are_answered_over_a_socket(url: str) -> None:
    response, content = call(url)
    assert response.status == 200
    assert [run["key"] for run in json.loads(content)["runs"]] == ["small"]
    assert response.headers["server"] is None
    body = json.dumps({"scene": {"picture": of_test(0)}}).encode()
    response, content = call(url, "POST", "/api/runs/small/see", body, **{"content-type": "application/json"})
    assert response.status == 200
    assert json.loads(content)["label"] == 0


def test_another_name_is_refused_over_a_socket(url: str) -> None:
    response, _ = call(url, host="evil.example")
    assert response.status == 403


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"nonsense\r\n\r\n",
        b"GET /\x00 HTTP/1.1\r\nhost: localhost\r\n\r\n",
        b"GET / HTTP/9.9\r\nhost: localhost\r\n\r\n",
        b"POST /api/runs/small/see HTTP/1.1\r\nhost: localhost\r\ncontent-length: -1\r\n\r\n",
        b"POST /api/runs/small/see HTTP/1.1\r\nhost: localhost\r\ncontent-length: 99999999999\r\n\r\n",
        b"POST /api/runs/small/see HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nhost: localhost\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n",
        b"GET ../../etc/passwd HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n",
    ],
)
def test_bytes_that_are_no_request_are_refused_and_stop_nothing(url: str, sent: bytes) -> None:
    where = urlsplit(url)
    with socket.create_connection((str(where.hostname), int(where.port or 0)), timeout=20) as connection:
        connection.sendall(sent)
        connection.shutdown(socket.SHUT_WR)
        answer = b""
        # a connection that is closed without a word is an answer as well.
        with contextlib.suppress(ConnectionResetError):
            while part := connection.recv(65536):
                answer += part
    assert not answer or 200 <= int(answer.split()[1]) < 500
    assert call(url)[0].status == 200


def test_what_a_request_says_of_its_address_counts_for_nothing() -> None:
    with Explorer([net()]) as explorer:
        running = server(explorer, where := place(port=0))
        assert not running.config.proxy_headers
        where.socket.close()


def test_another_address_has_a_token_and_loopback_none() -> None:
    here, everywhere = place(port=0), place("0.0.0.0", 0)
    try:
        assert (here.token, here.url) == (None, f"http://127.0.0.1:{here.port}/")
        assert here.hosts == {"localhost", "127.0.0.1", "[::1]"}
        assert everywhere.token is not None
        assert len(everywhere.token) == 32
        assert everywhere.hosts is None
        assert everywhere.url == f"http://{socket.gethostname()}:{everywhere.port}/?token={everywhere.token}"
        again = place("0.0.0.0", 0)
        again.socket.close()
        assert again.token != everywhere.token
    finally:
        here.socket.close()
        everywhere.socket.close()


@pytest.mark.parametrize(
    ("own", "shown"), [("192.168.1.5", ["my-laptop", "192.168.1.5"]), ("127.0.0.1", ["my-laptop"]), (None, ["my-laptop"])]
)
def test_who_listens_everywhere_says_a_number_besides_a_name(
    own: str | None, shown: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    class Outward:
        def __init__(self, family: int, kind: int) -> None:
            assert (family, kind) == (socket.AF_INET, socket.SOCK_DGRAM)

        def __enter__(self) -> Outward:
            return self

        def __exit__(self, *error: object) -> None:
            pass

        def connect(self, where: Any) -> None:
            asked.append(where)
            if own is None:
                raise OSError("network is unreachable")

        def getsockname(self) -> Any:
            return own, 40000

    everywhere, here = place("0.0.0.0", 0), place(port=0)
    try:
        monkeypatch.setattr(module.socket, "gethostname", lambda: "my-laptop")
        monkeypatch.setattr(module.socket, "socket", Outward)
        assert everywhere.urls == [f"http://{host}:{everywhere.port}/?token={everywhere.token}" for host in shown]
        assert here.urls == [f"http://127.0.0.1:{here.port}/"]
        # of documentation: nobody is there.
        assert asked == [("192.0.2.1", 9)]
    finally:
        everywhere.socket.close()
        here.socket.close()


def test_whoever_has_the_token_is_answered_and_nobody_else() -> None:
    with Explorer([net()]) as explorer:
        where = place("0.0.0.0", 0)
        running = server(explorer, where)
        thread = threading.Thread(target=running.run, kwargs={"sockets": [where.socket]})
        thread.start()
        try:
            url = f"http://127.0.0.1:{where.port}/"
            assert call(url)[0].status == 401
            assert call(url, authorization=f"Bearer {where.token}")[0].status == 200
            response, _ = call(url, path=f"/?token={where.token}")
            assert (response.status, response.headers["location"]) == (303, "/")
            cookie = response.headers["set-cookie"].partition(";")[0]
            assert call(url, cookie=cookie)[0].status == 200
        finally:
            running.should_exit = True
            thread.join()


def test_an_address_of_version_six_is_written_in_brackets() -> None:
    try:
        found = place("::1", 0)
    except ValueError:
        pytest.skip("no IPv6 here")
    assert found.url == f"http://[::1]:{found.port}/"
    assert found.token is None
    assert "[::1]" in (found.hosts or ())
    found.socket.close()


def test_a_port_that_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(
            ValueError, match=rf"^port={port} cannot be had at 127.0.0.1 \(address already in use\); expected an"
        ):
            place(port=port)


def test_the_usual_port_is_taken_and_another_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        monkeypatch.setattr(module, "PORT", taken.getsockname()[1])
        found = place()
        assert found.port != module.PORT
        found.socket.close()
    found = place()
    assert found.port == module.PORT
    found.socket.close()


@pytest.mark.parametrize(
    ("host", "port", "says"),
    [
        ("127.0.0.1", -1, "port=-1 is none; expected 0 to 65,535"),
        ("127.0.0.1", 65536, "port=65536 is none"),
        ("192.0.2.1", None, "host='192.0.2.1' is no address of this machine"),
        ("192.0.2.1", 0, "host='192.0.2.1' is no address of this machine"),
        ("no such host", None, "host='no such host' is no address of this machine"),
        ("a" * 70 + ".example", None, "is no address of this machine"),
    ],
)
def test_an_address_that_cannot_be_listened_at(host: str, port: int | None, says: str) -> None:
    with pytest.raises(ValueError, match=says) as caught:
        place(host, port)
    assert "\n" not in str(caught.value)


def test_a_browser_is_opened_where_there_is_a_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    running: list[Any] = []

    def run(self: Any, sockets: Any) -> None:
        running.append(self)
        raise KeyboardInterrupt

    monkeypatch.setattr("uvicorn.Server.run", run)
    for wanted, screen, expected in ((True, ":0", 1), (True, "", 0), (False, ":0", 0)):
        opened.clear()
        monkeypatch.setenv("DISPLAY", screen)
        for name in ("WAYLAND_DISPLAY", "BROWSER"):
            monkeypatch.delenv(name, raising=False)
        assert has_screen() == bool(screen)
        where = place(port=0)
        url = where.url
        # Ctrl-C is how it ends, and no error.
        serve(Explorer([net()]), where, open_browser=wanted)
        deadline = time.monotonic() + 5
        while len(opened) < expected and time.monotonic() < deadline:
            time.sleep(0.01)
        assert opened == [url] * expected
        assert where.socket.fileno() == -1
    assert len(running) == 3


def test_a_place_is_what_it_says() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        assert Place(listening, "Localhost", None).url == f"http://localhost:{listening.getsockname()[1]}/"
        assert os.get_inheritable(listening.fileno()) is False
