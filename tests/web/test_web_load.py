"""Many who draw at once, at a server in a process of its own: every stroke is answered, and how soon is measured."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
import torch

from capsella.cli.bench_tables import milliseconds
from capsella.web import load as module
from capsella.web.load import CLIENTS, SECONDS, LoadReading, readings

CPU = torch.device("cpu")


def check(reading: LoadReading, clients: int, seconds: float) -> None:
    assert (reading.clients, reading.seconds, reading.problem, reading.refused) == (clients, seconds, "", 0)
    # everyone waits for each stroke, and half of them take at least as long as the middle one.
    assert reading.strokes >= clients
    assert 0 < reading.median <= reading.p95 <= reading.high
    assert reading.strokes * reading.median <= 2 * clients * (seconds + reading.high)


@pytest.mark.slow
@pytest.mark.timeout(int(SECONDS) + 240)
def test_fifty_clients_draw_for_a_minute(capfd: pytest.CaptureFixture[str]) -> None:
    (reading,) = readings("capsnet_small", CPU)
    check(reading, CLIENTS, SECONDS)
    # the server's process has nothing to complain of.
    assert capfd.readouterr().err == ""
    times = ", ".join(milliseconds(each) for each in (reading.median, reading.p95, reading.high))
    with capfd.disabled():
        print(f"\n{CLIENTS} clients, {SECONDS:g} s: {reading.strokes:,} strokes; p50, p95 and slowest ms: {times}")  # noqa: T201


def test_three_clients_draw_for_a_moment() -> None:
    lines: list[str] = []
    (reading,) = readings("capsnet_small", CPU, clients=3, seconds=0.5, say=lines.append)
    check(reading, 3, 0.5)
    assert lines == ["explore, 3 at once: 0.5 s"]


def test_strokes_are_sorted_and_those_that_were_refused_have_no_time() -> None:
    taken = [(0.001 * k, 200) for k in range(1, 101)] + [(9.0, 503)] * 3
    found = module._read("m", 5, 2.0, taken)
    assert (found.strokes, found.refused) == (100, 3)
    assert (found.median, found.p95, found.high) == pytest.approx((0.0505, 0.096, 0.1))
    assert module._read("m", 5, 2.0, [(1.0, 503)]).problem == "fails: no stroke was answered"
    assert module._read("m", 5, 2.0, [(1.0, 200), (1.0, 500)]).problem == "fails: the server answers with 500"


@pytest.fixture
def counting() -> Iterator[tuple[str, list[bytes]]]:
    """Yield a server that refuses every third stroke, and what it was sent."""
    sent: list[bytes] = []
    numbers = itertools.count()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            sent.append(self.rfile.read(int(self.headers["content-length"])))
            self.send_response(503 if next(numbers) % 3 == 2 else 200)
            self.send_header("content-length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *_: Any) -> None:
            pass

        def send_header(self, name: str, value: str) -> None:
            super().send_header(name.lower(), value)

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/", sent
        server.shutdown()
        thread.join()


def test_everyone_sends_the_next_stroke_of_the_drawing(counting: tuple[str, list[bytes]]) -> None:
    url, sent = counting
    taken = module.asyncio.run(module._one(url, [b"a", b"bb", b"ccc"], 0.0, least=7))
    assert sent == [b"a", b"bb", b"ccc", b"a", b"bb", b"ccc", b"a"]
    assert [status for _, status in taken] == [200, 200, 503, 200, 200, 503, 200]
    sent.clear()
    taken = module.asyncio.run(module._everyone(url, [b"a", b"bb", b"ccc"], 2, 0.0))
    # five each that do not count, and one that does; the second begins further on in the drawing.
    assert len(taken) == 2
    assert sorted(sent) == sorted([b"a", b"bb", b"ccc", b"a", b"bb", b"a", b"bb", b"ccc", b"a", b"bb", b"ccc", b"bb"])


def test_a_server_that_goes_away_is_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    async def gone(*_: Any, **__: Any) -> None:
        raise ConnectionResetError("connection reset by peer")

    monkeypatch.setattr(module, "_one", gone)
    (reading,) = readings("convnet_small", CPU, clients=2, seconds=0.1)
    assert reading.problem == "fails: the server does not answer (connection reset by peer)"


def test_nothing_is_measured_where_answers_are_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "wrong", lambda net, ask: "wrong: scores are 0.5 away from the network's own")
    monkeypatch.setattr(module, "_everyone", None)
    (reading,) = readings("convnet_small", CPU, clients=2, seconds=0.1)
    assert reading.problem.startswith("wrong: scores")
    assert reading.strokes == 0
