"""What a stream holds: as much after a hundred batches as after two."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from analysis_nets import Stack, draw, randomised
from torch import Tensor, nn

from capsella import analysis as A
from capsella import create_model
from capsella.analysis.examination import Examination
from capsella.nn import CapsuleLinear


def elements(thing: Any) -> int:
    """Count the numbers that an object holds, in tensors and in containers of its own; networks are not its own."""
    if isinstance(thing, Tensor):
        return thing.numel()
    if isinstance(thing, bool | int | float):
        return 1
    if isinstance(thing, dict):
        return sum(map(elements, thing.values()))
    if isinstance(thing, list | tuple | set):
        return sum(map(elements, thing))
    if isinstance(thing, nn.Module | str) or callable(thing) or not hasattr(thing, "__dict__"):
        return 0
    return elements(vars(thing))


NET = randomised(Stack(CapsuleLinear(6, 4, 5, 4), CapsuleLinear(5, 4, 3, 4)))
IMAGES = create_model("capsnet_small").double()


def shares(k: int) -> Tensor:
    return draw(4, 6, 5, seed=k).softmax(dim=-1)


def classes(k: int) -> Tensor:
    return (torch.arange(4) + k) % 3


def pictures(k: int) -> Tensor:
    return draw(4, 1, 28, 28, seed=k).abs()


STREAMS: dict[str, tuple[Callable[[], Any], Callable[[int], tuple[Any, ...]]]] = {
    "Moments": (A.Moments, lambda k: (draw(4, 6, seed=k),)),
    "Activity": (A.Activity, lambda k: (draw(4, 6, 2, seed=k),)),
    "ActivitySweep": (A.ActivitySweep, lambda k: (draw(4, 6, 2, seed=k),)),
    "RoutingDynamics": (A.RoutingDynamics, lambda k: (shares(k),)),
    "CouplingEntropy": (A.CouplingEntropy, lambda k: (shares(k),)),
    "CouplingChange": (A.CouplingChange, lambda k: ([shares(k), shares(k + 1)],)),
    "ViewpointCorrelation": (A.ViewpointCorrelation, lambda k: (draw(4, 6, seed=k).abs(), draw(4, 6, seed=k + 1).abs())),
    "NegationGap": (lambda: A.NegationGap(NET), lambda k: (draw(4, 6, 4, seed=k),)),
    "GradientNorms": (lambda: A.GradientNorms(NET), lambda k: (draw(4, 6, 4, seed=k), classes(k))),
    "RoutingSwaps": (lambda: A.RoutingSwaps(NET), lambda k: (draw(4, 6, 4, seed=k), classes(k))),
    "TreeStatisticsOf": (A.TreeStatisticsOf, lambda k: (A.observe(NET, draw(4, 6, 4, seed=k))[1],)),
    "Revivals": (A.Revivals, lambda k: (draw(6, seed=k) > 0,)),
    "FactorCompactness": (
        lambda: A.FactorCompactness(IMAGES, factors={"rotation": (-5.0, 0.0, 5.0)}),
        lambda k: (pictures(k), classes(k)),
    ),
    "Examination": (lambda: Examination(NET, None, sweep=True), lambda k: (draw(4, 6, 4, seed=k), classes(k))),
}


@pytest.mark.parametrize("name", STREAMS)
def test_a_stream_holds_no_more_for_more_images(name: str) -> None:
    make, batch = STREAMS[name]
    stream, sizes = make(), []
    for k in range(20):
        stream.update(*batch(k))
        sizes.append(elements(stream))
    assert sizes[1] > 0
    assert sizes[-1] == sizes[1]


def test_the_count_sees_what_would_grow() -> None:
    scores = A.Compactness()
    sizes = []
    for k in range(3):
        # one score an image is its result, and so what it holds.
        scores.update(draw(4, 7, 5, seed=k))
        sizes.append(elements(scores))
    assert sizes[2] - sizes[1] == sizes[1] - sizes[0] == 4
    assert elements({"a": [1, (2.0, torch.zeros(3))]}) == 5


def test_a_diagnosis_holds_no_more_tensors_for_more_images() -> None:
    held: list[int] = []

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        for k in range(12):
            if k in (3, 11):
                gc.collect()
                held.append(sum(each.numel() for each in gc.get_objects() if issubclass(type(each), Tensor)))
            yield draw(4, 6, 4, seed=k), classes(k)

    found = A.diagnose(NET, batches(), views={}, sample=4)
    assert found.record["images"] == 48
    assert held[1] == held[0]
