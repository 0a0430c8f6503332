"""Fifty clients for a minute at a server in a process of its own: every stroke is answered, and how soon is printed."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from explored import drawn, rectangles

import capsella
from capsella.data import from_tensors
from capsella.train import fit

CLIENTS, SECONDS = 50, 60
SOURCE = Path(capsella.__file__).resolve().parents[1]


async def strokes(host: str, port: int, body: bytes, until: float) -> tuple[list[float], list[int]]:
    """Ask the same over one connection until it is time; return seconds and statuses."""
    head = f"POST /api/runs/run/see HTTP/1.1\r\nhost: {host}:{port}\r\ncontent-type: application/json\r\n"
    request = f"{head}content-length: {len(body)}\r\n\r\n".encode() + body
    reader, writer = await asyncio.open_connection(host, port)
    seconds, statuses = [], []
    while time.monotonic() < until:
        begun = time.perf_counter()
        writer.write(request)
        answer = await reader.readuntil(b"\r\n\r\n")
        (size,) = re.findall(rb"content-length: (\d+)", answer)
        content = await reader.readexactly(int(size))
        seconds.append(time.perf_counter() - begun)
        statuses.append(int(answer.split()[1]))
        assert content.endswith(b"}")
    writer.close()
    return seconds, statuses


async def all_at_once(host: str, port: int, bodies: list[bytes]) -> tuple[list[float], list[int]]:
    until = time.monotonic() + SECONDS
    found = await asyncio.gather(*(strokes(host, port, body, until) for body in bodies))
    return [each for seconds, _ in found for each in seconds], [each for _, statuses in found for each in statuses]


@pytest.mark.slow
@pytest.mark.timeout(SECONDS + 120)
def test_fifty_clients_draw_for_a_minute(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from PIL import Image

    data = rectangles(50)
    fit(
        capsella.create_model("capsnet_small"),
        from_tensors(data.images[:], data.labels),
        steps=1,
        folder=tmp_path / "run",
        progress=False,
        device="cpu",
    )
    for index, image in enumerate(data.images[:]):
        folder = tmp_path / "images" / str(int(data.labels[index]))
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image[0].numpy()).save(folder / f"{index}.png")
    options = ["--data", "folder", "--root", str(tmp_path / "images"), "-o", "image_size=28", "--port", "0", "--no-open"]
    server = subprocess.Popen(
        [sys.executable, "-m", "capsella", "explore", str(tmp_path / "run"), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(SOURCE), "PYTHONUNBUFFERED": "1"},
    )
    assert server.stdout is not None
    assert server.stderr is not None
    try:
        where = re.search(r"http://(\S+):(\d+)/", server.stdout.readline())
        assert where, server.stderr.read()
        # a stroke each: what a page sends while somebody draws.
        generator = torch.Generator().manual_seed(0)
        bodies = []
        for image in data.images[:CLIENTS]:
            noise = torch.randint(0, 30, image.shape, generator=generator, dtype=torch.uint8)
            bodies.append(json.dumps({"scene": {"picture": drawn(image // 2 + noise)}}).encode())
        seconds, statuses = asyncio.run(all_at_once(where[1], int(where[2]), bodies))
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(timeout=30)
    assert set(statuses) == {200}
    assert server.stderr.read() == ""
    assert len(statuses) > CLIENTS
    seconds.sort()
    p50, p95 = (f"{1000 * seconds[int(share * len(seconds))]:.0f} ms" for share in (0.5, 0.95))
    with capsys.disabled():
        sys.stdout.write(f"\n{CLIENTS} clients, {SECONDS} s: {len(seconds):,} strokes, none refused; p50 {p50}, p95 {p95}\n")
