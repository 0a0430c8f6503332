"""Small explorers to ask: nets of few capsules, images of rectangles, and a client that comes from the same machine."""

from __future__ import annotations

import base64
import contextlib
import time
from collections.abc import Iterator
from typing import Any

import torch
from fastapi.testclient import TestClient
from torch import Tensor, nn

import capsella
from capsella.data import ImageData, from_tensors
from capsella.web.app import application
from capsella.web.explorer import Explorer
from capsella.web.guard import Caps
from capsella.web.net import Net

HOST = "127.0.0.1:8474"


def rectangles(count: int = 12, shape: tuple[int, int, int] = (1, 28, 28), *, classes: int = 10) -> ImageData:
    """Make test images, each with one bright rectangle; classes in turn."""
    generator = torch.Generator().manual_seed(1)
    channels, height, width = shape
    images = torch.zeros(count, channels, height, width, dtype=torch.uint8)
    for image in images:
        top, left = (int(torch.randint(2, side // 2, (), generator=generator)) for side in (height, width))
        image[:, top : top + height // 3, left : left + width // 4] = torch.randint(128, 256, (), generator=generator)
    return from_tensors(images, torch.arange(count) % classes, name="rectangles", split="test")


def small(**options: Any) -> nn.Module:
    """Make a net whose capsules are not short, so that values differ."""
    torch.manual_seed(3)
    model = capsella.create_model("capsnet_small", **options)
    with torch.no_grad():
        for layer in model.layers:
            layer.weight *= 60
            if layer.bias is not None:
                layer.bias += torch.linspace(-0.3, 0.3, layer.bias.numel()).reshape(layer.bias.shape)
    return model


def net(key: str = "small", model: nn.Module | None = None, data: ImageData | None = None, **options: Any) -> Net:
    return Net(key, small() if model is None else model, rectangles() if data is None else data, **options)


@contextlib.contextmanager
def asked(
    *nets: Net, caps: Caps | None = None, token: str | None = None, survey: bool = True, **options: Any
) -> Iterator[TestClient]:
    """Yield a client of an explorer of these nets, whose test images have been looked at."""
    with Explorer(nets or [net()], caps=caps) as explorer:
        hosts = None if token is not None else {"127.0.0.1", "localhost"}
        app = application(explorer, hosts=hosts, token=token)
        with contextlib.closing(TestClient(app, base_url=f"http://{HOST}", follow_redirects=False, **options)) as client:
            while survey and not all(each.survey.is_complete for each in explorer.nets.values()):
                time.sleep(0.005)
            yield client


def ask(client: TestClient, what: str, body: Any = None, *, run: str = "small", status: int = 200, **query: Any) -> Any:
    """Ask about a run: a body is posted; the answer is checked for its status."""
    path = f"/api/runs/{run}/{what}"
    response = client.get(path, params=query) if body is None else client.post(path, json=body, params=query)
    assert response.status_code == status, response.text
    if status >= 400:
        one_line(response)
    return response.json()


def one_line(response: Any) -> str:
    """Return what a refusal says; it is one line in one key."""
    assert list(response.json()) == ["detail"]
    detail = response.json()["detail"]
    assert isinstance(detail, str)
    assert detail
    assert detail == " ".join(detail.split())
    return detail


def of_test(index: int = 0, run: str = "small") -> dict[str, Any]:
    return {"kind": "test", "run": run, "index": index}


def drawn(levels: Tensor) -> dict[str, Any]:
    """Return grey levels [C, H, W] as a picture that a page has drawn."""
    channels, height, width = levels.shape
    data = base64.b64encode(levels.movedim(0, -1).contiguous().numpy().tobytes()).decode()
    return {"kind": "drawn", "height": height, "width": width, "channels": channels, "data": data}


def pixels(answer: dict[str, Any]) -> Tensor:
    """Read grey levels that came as an answer, uint8 [C, H, W]."""
    values = torch.tensor(list(base64.b64decode(answer["data"])), dtype=torch.uint8)
    return values.reshape(answer["height"], answer["width"], answer["channels"]).movedim(-1, 0)
