"""How long a stroke takes: from a page's question to the whole of its answer, over a socket, in every view."""

from __future__ import annotations

import contextlib
import http.client
import json
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import torch
from torch import Tensor, nn

from capsella.data import ImageData, from_tensors
from capsella.models import create_model
from capsella.web.explorer import Explorer
from capsella.web.net import Net
from capsella.web.pictures import packed
from capsella.web.server import serving

MUST = 0.1
"""Seconds that a stroke may take, on two processors."""

STROKES = 200
_WARM_UP = 5
_IMAGES = 10_000
# pixels that a pen is wide, and strokes of one drawing.
_PEN, _ROUND = 3, 40

Ask = Callable[[str, Any], Any]
Record = dict[str, Any]


@dataclass(frozen=True)
class StrokeReading:
    """The strokes of one view.

    Attributes:
        name: what was shown.
        model: by name.
        median: seconds of the middle one.
        p95: seconds that one in twenty takes longer than.
        high: seconds of the slowest.
        repeats: how many.
        must: seconds that they may take.
        problem: why there are no values.
    """

    name: str
    model: str
    median: float
    p95: float
    high: float
    repeats: int
    must: float = MUST
    problem: str = ""


@dataclass(frozen=True)
class View:
    """What a page asks for after a stroke.

    Attributes:
        name: what is shown.
        ask: asks for a picture, and for whatever else the view shows; returns the first answer.
        surveys: whether there are test images to be looked at, which waits until nobody has asked for a moment.
    """

    name: str
    ask: Callable[[Ask, Record], Any]
    surveys: bool = False


def readings(
    model: str,
    device: torch.device,
    *,
    strokes: int = STROKES,
    images: int = _IMAGES,
    say: Callable[[str], None] = lambda line: None,
) -> Iterator[StrokeReading]:
    """Check that what comes over the socket is what the network says, then time every view.

    Args:
        model: by name; weights are as they were drawn, which makes nothing faster.
        device: where it runs.
        strokes: of each view.
        images: of the test set that is still to be looked at.
        say: tells what goes on.
    """
    torch.manual_seed(0)
    data = noise(create_model(model), images)
    for view in VIEWS:
        # each with an explorer of its own: what was looked at is not looked at again.
        nets = [_net(key, create_model(model).to(device), data, surveys=view.surveys) for key in ("first", "second")]
        with Explorer(nets) as explorer, serving(explorer) as url, connected(url) as ask:
            problem = wrong(nets[0], ask)
            if problem or (view.name == _KNOBS and not nets[0].has_knobs) or (view.name == _CAPSULE and not nets[0].layers):
                yield StrokeReading(view.name, model, 0.0, 0.0, 0.0, 0, problem=problem or "the network has none")
                continue
            reading = _timed(view, model, ask, drawing(nets[0], strokes + _WARM_UP))
        say(f"explore, {view.name}: {1e3 * reading.median:.1f} ms")
        yield reading


def noise(model: nn.Module, count: int) -> ImageData:
    """Return test images of no meaning that a registered model takes."""
    config: dict[str, Any] = getattr(model, "config", {})
    size, channels = config.get("image_size", 28), config.get("in_channels", 1)
    height, width = size if isinstance(size, tuple | list) else (size, size)
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (count, channels, height, width), dtype=torch.uint8, generator=generator)
    return from_tensors(images, torch.arange(count) % int(config.get("num_classes", 10)), split="test")


def drawing(net: Net, strokes: int) -> list[Tensor]:
    """Return an image after each stroke of a pen that goes line by line [C, H, W]; a few lines down it begins anew."""
    levels = torch.zeros(net.shape, dtype=torch.uint8)
    found = []
    for k in range(strokes):
        if k % _ROUND == 0:
            levels = torch.zeros_like(levels)
        # wherever it has not been.
        row, column = divmod(k % _ROUND, (net.shape[2] - _PEN) // _PEN)
        levels[:, _PEN * row : _PEN * (row + 1), _PEN * (column + 1) : _PEN * (column + 2)] = 255
        found.append(levels.clone())
    return found


@contextlib.contextmanager
def connected(url: str) -> Iterator[Ask]:
    """Yield what asks a server over one connection, as a page does."""
    with contextlib.closing(http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)) as connection:

        def ask(path: str, body: Any) -> Any:
            connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
            response = connection.getresponse()
            content = response.read()
            if response.status != 200:
                raise RuntimeError(f"{path} answers with {response.status}: {content[:200].decode(errors='replace')}")
            return json.loads(content)

        yield ask


def _net(key: str, model: nn.Module, data: ImageData, *, surveys: bool) -> Net:
    return Net(key, model, data, images=len(data) if surveys else 1)


def _timed(view: View, model: str, ask: Ask, images: Sequence[Tensor]) -> StrokeReading:
    seconds = []
    for levels in images:
        picture = {"kind": "drawn", **packed(levels).model_dump()}
        begun = time.perf_counter()
        view.ask(ask, picture)
        seconds.append(time.perf_counter() - begun)
    kept = sorted(seconds[_WARM_UP:])
    return StrokeReading(view.name, model, statistics.median(kept), kept[int(0.95 * len(kept))], kept[-1], len(kept))


def wrong(net: Net, ask: Ask) -> str:
    """Say what is wrong with an answer, if anything is: nothing is timed that is not right."""
    (levels,) = drawing(net, 1)
    found = ask("/api/runs/first/see", {"scene": {"picture": {"kind": "drawn", **packed(levels).model_dump()}}})
    with torch.no_grad():
        output = net.model(net.normalised([levels]))
    expected = getattr(output, "scores", output)[0].tolist()
    apart = max(abs(a - b) for a, b in zip(found["scores"], expected, strict=True))
    return "" if apart < 1e-3 else f"wrong: scores are {apart:.2g} away from the network's own"


def _see(ask: Ask, picture: Record) -> Any:
    return ask("/api/runs/first/see", {"scene": {"picture": picture}})


def _compare(ask: Ask, picture: Record) -> Any:
    return [ask(f"/api/runs/{key}/see", {"scene": {"picture": picture}}) for key in ("first", "second")]


def _move(ask: Ask, picture: Record) -> Any:
    return ask("/api/runs/first/move", {"scene": {"picture": picture, "move": {"rotation": 30, "scale": 0.9}}})


def _overlap(ask: Ask, picture: Record) -> Any:
    over = {"picture": {"kind": "test", "run": "first", "index": 0}, "x": 3, "y": 2}
    return ask("/api/runs/first/see", {"scene": {"picture": picture, "over": over}, "draw": 2})


def _knobs(ask: Ask, picture: Record) -> Any:
    sight = _see(ask, picture)
    return ask("/api/runs/first/reconstruct", {"capsules": sight["capsules"], "class": sight["answer"]})


def _capsule(ask: Ask, picture: Record) -> Any:
    _see(ask, picture)
    return ask("/api/runs/first/capsule", {"scene": {"picture": picture}, "layer": 0, "capsule": 0})


_KNOBS, _CAPSULE = "tree, and a turned knob", "tree, and one capsule"

VIEWS = (
    View("tree", _see),
    View("tree, with a test set still to be looked at", _see, surveys=True),
    View("trees of two runs", _compare),
    View("tree of the image moved, and not", _move),
    View("two images over each other", _overlap),
    View(_KNOBS, _knobs),
    View(_CAPSULE, _capsule),
)
