"""How long a stroke takes where many draw at once: each sends the next as soon as the last is answered.

The server has a process of its own, as it has where people draw. All who draw share another, which does as little as it can: on
a small machine both are on the same processors.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import multiprocessing
import re
import signal
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from urllib.parse import urlsplit

import torch

from capsella.errors import RunError
from capsella.models import create_model
from capsella.web.explorer import Explorer
from capsella.web.net import Net
from capsella.web.pictures import packed
from capsella.web.server import serving
from capsella.web.strokes import connected, drawing, noise, wrong

CLIENTS, SECONDS = 50, 60.0
BUSY = 503
"""The status of a stroke that is refused because too many wait."""

_RUN = "first"
# strokes of one drawing, and those that everyone draws before they count.
_DRAWN, _WARM_UP = 40, 5
# seconds until the server answers, and until it has ended.
_BEGIN, _END = 120, 30


@dataclass(frozen=True)
class LoadReading:
    """The strokes of everyone.

    Attributes:
        name: what was shown.
        model: by name.
        clients: how many drew at once.
        seconds: how long they did.
        strokes: that were answered.
        refused: that were told to come again.
        median: seconds of the middle stroke.
        p95: seconds that one in twenty takes longer than.
        high: seconds of the slowest.
        problem: why there are no values.
    """

    name: str
    model: str
    clients: int
    seconds: float
    strokes: int = 0
    refused: int = 0
    median: float = 0.0
    p95: float = 0.0
    high: float = 0.0
    problem: str = ""


def readings(
    model: str,
    device: torch.device,
    *,
    clients: int = CLIENTS,
    seconds: float = SECONDS,
    say: Callable[[str], None] = lambda line: None,
) -> Iterator[LoadReading]:
    """Check that what comes over the socket is what the network says, then let everyone draw.

    Args:
        model: by name; weights are as they were drawn.
        device: where it runs.
        clients: how many draw at once.
        seconds: how long.
        say: tells what goes on.
    """
    net = _net(model, device)
    with _away(model, str(device)) as url:
        with connected(url) as ask:
            problem = wrong(net, ask)
        if not problem:
            say(f"explore, {clients} at once: {seconds:g} s")
            pictures = [{"kind": "drawn", **packed(levels).model_dump()} for levels in drawing(net, _DRAWN)]
            bodies = [json.dumps({"scene": {"picture": picture}}).encode() for picture in pictures]
            try:
                taken = asyncio.run(_everyone(url, bodies, clients, seconds))
            except (OSError, EOFError) as error:
                problem = f"fails: the server does not answer ({error or type(error).__name__})"
        yield (
            LoadReading("tree", model, clients, seconds, problem=problem) if problem else _read(model, clients, seconds, taken)
        )


def _read(model: str, clients: int, seconds: float, taken: Sequence[tuple[float, int]]) -> LoadReading:
    kept = sorted(each for each, status in taken if status == 200)
    refused = sum(status == BUSY for _, status in taken)
    if others := {status for _, status in taken} - {200, BUSY}:
        return LoadReading("tree", model, clients, seconds, problem=f"fails: the server answers with {min(others)}")
    if not kept:
        return LoadReading("tree", model, clients, seconds, refused=refused, problem="fails: no stroke was answered")
    p95 = kept[int(0.95 * len(kept))]
    return LoadReading("tree", model, clients, seconds, len(kept), refused, statistics.median(kept), p95, kept[-1])


def _net(model: str, device: torch.device) -> Net:
    """Return the same network in every process."""
    torch.manual_seed(0)
    made = create_model(model)
    return Net(_RUN, made.to(device), noise(made, 1), images=1)


async def _everyone(url: str, bodies: list[bytes], clients: int, seconds: float) -> list[tuple[float, int]]:
    """Let everyone draw, after a few strokes that do not count; return seconds and status of each that does."""
    # each is somewhere else in the drawing.
    drawings = [bodies[k % len(bodies) :] + bodies[: k % len(bodies)] for k in range(clients)]
    await asyncio.gather(*(_one(url, each, 0.0, least=_WARM_UP) for each in drawings))
    until = time.monotonic() + seconds
    found = await asyncio.gather(*(_one(url, each, until) for each in drawings))
    return list(itertools.chain.from_iterable(found))


async def _one(url: str, bodies: Sequence[bytes], until: float, *, least: int = 1) -> list[tuple[float, int]]:
    """Draw over one connection until it is time, and so many strokes at least."""
    where = urlsplit(url)
    reader, writer = await asyncio.open_connection(where.hostname, where.port)
    head = f"POST /api/runs/{_RUN}/see HTTP/1.1\r\nhost: {where.netloc}\r\ncontent-type: application/json\r\ncontent-length: "
    found: list[tuple[float, int]] = []
    with contextlib.closing(writer):
        for body in itertools.cycle(bodies):
            if len(found) >= least and time.monotonic() >= until:
                break
            begun = time.perf_counter()
            writer.write(f"{head}{len(body)}\r\n\r\n".encode() + body)
            answer = await reader.readuntil(b"\r\n\r\n")
            (size,) = re.findall(rb"content-length: (\d+)", answer)
            await reader.readexactly(int(size))
            found.append((time.perf_counter() - begun, int(answer.split(maxsplit=2)[1])))
    return found


@contextlib.contextmanager
def _away(model: str, device: str) -> Iterator[str]:
    """Serve in a process of its own meanwhile; yield the address."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(model, device, theirs), daemon=True)
    process.start()
    theirs.close()
    try:
        try:
            url = str(ours.recv()) if ours.poll(_BEGIN) else ""
        except EOFError:
            url = ""
        if not url:
            raise RunError(f"the server's process ended, or said nothing within {_BEGIN} s")
        yield url
    finally:
        # which is what it waits for.
        ours.close()
        process.join(_END)
        if process.is_alive():
            process.terminate()
            process.join()


def _serve(model: str, device: str, wire: Connection) -> None:
    # Ctrl-C is for whoever measures, and ends this by the wire.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with Explorer([_net(model, torch.device(device))]) as explorer, serving(explorer) as url:
        wire.send(url)
        with contextlib.suppress(EOFError):
            wire.recv()
