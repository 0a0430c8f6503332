"""Printed numbers of yang2021 that are no figure of one recipe, and what to know of others."""

from __future__ import annotations

import statistics
from collections.abc import Callable

from torch import nn

from capsella.models import CapsuleNet
from capsella.nn import PrimaryCapsules
from capsella.papers.targets import read_targets
from capsella.papers.verdicts import Evidence, Fact
from capsella.papers.yang2021.claims import savings
from capsella.papers.yang2021.nets import METHODS, SETS, build, cell, pairs
from capsella.train.plan import Plan


def _decoder(net: CapsuleNet, number: int) -> int | None:
    if net.decoder is None:
        return None
    return [layer.out_features for layer in net.decoder.layers if isinstance(layer, nn.Linear)][number]


def _first_convolution(net: CapsuleNet) -> int:
    return next(layer.out_channels for layer in net.trunk.modules() if isinstance(layer, nn.Conv2d))


def _types(net: CapsuleNet) -> int | None:
    return net.primary.types if isinstance(net.primary, PrimaryCapsules) else None


_SIZES: dict[str, Callable[[CapsuleNet], int | None]] = {
    "conv1": _first_convolution,
    "cap1": _types,
    "cap2": lambda net: net.num_classes,
    "fc1": lambda net: _decoder(net, 0),
    "fc2": lambda net: _decoder(net, 1),
    "fc3": lambda net: _decoder(net, 2),
}


def _size(data: str, layer: str) -> Fact:
    """Return what looks a layer's size up in the net that was trained."""

    def find(evidence: Evidence) -> float | None:
        return _SIZES[layer](build(Plan.of(evidence.results(cell(data, "dr"))[0].plan)))

    return find


def _average(method: str, *, decoder: bool) -> Fact:
    """Return what averages the errors on the three benchmarks, seed by seed, of the seeds that all of them have."""

    def find(evidence: Evidence) -> list[float]:
        rows = [cell(data, method, decoder=decoder or data == "cifar10") for data in SETS]
        if method != "dr":
            rows = [cell(data, method, decoder=False) for data in SETS]
        return [statistics.fmean(errors) for errors in zip(*(evidence.values(row, "error") for row in rows), strict=False)]

    return find


def _of_all_on_mnist(evidence: Evidence) -> list[float]:
    rows = [cell("mnist", method, decoder=decoder) for decoder in (True, False) for method in METHODS]
    printed = [row for row in rows if row != cell("mnist", "dr", decoder=False)]
    return [max(errors) for errors in zip(*(evidence.values(row, "error") for row in printed), strict=False)]


def _proposed(evidence: Evidence) -> list[float]:
    """Return the errors on MultiMNIST of L1 or L2, whichever has the lower mean."""
    return min((evidence.values(pairs(method), "pairs_error") for method in ("l2", "l1")), key=statistics.fmean)


def _saved(evidence: Evidence) -> float:
    nets = (("mnist", True), ("mnist", False), ("cifar10", False), ("multimnist", True))
    return min(savings(evidence, nets, "seconds"))


FACTS: dict[str, Fact] = {
    **{
        key: _size(*key.removeprefix("table1/").split("-"))
        for key, target in read_targets("yang2021").items()
        if key.startswith("table1/") and target.value is not None
    },
    "table2/average-dr": _average("dr", decoder=True),
    "table2/average-l2-no-fc": _average("l2", decoder=False),
    "table2/average-l1-no-fc": _average("l1", decoder=False),
    "text/multimnist-proposed": _proposed,
    "text/runtime-saved": _saved,
    "text/mnist-error-of-all": _of_all_on_mnist,
}

_NO_DECODER = "CIFAR-10's nets have no decoder, in the paper and here"

_ONE_SEED = "of the first seed, the only one of CIFAR-10"

REMARKS = {
    "table2/cifar10-l2": _NO_DECODER,
    "table2/cifar10-l1": _NO_DECODER,
    "table2/average-l2": "there is none without CIFAR-10's",
    "table2/average-l1": "there is none without CIFAR-10's",
    "table2/average-dr": f"MNIST and Fashion-MNIST with a decoder, CIFAR-10 without, as printed; {_ONE_SEED}",
    "table2/average-l2-no-fc": _ONE_SEED,
    "table2/average-l1-no-fc": _ONE_SEED,
    "text/multimnist-proposed": "which of L1 and L2 it is is not said; ours is the one with the lower mean",
    "text/runtime-saved": "printed as a lower bound; ours is the least that a net saves, as trained",
    "text/mnist-error-of-all": "printed as an upper bound, which Table II contradicts: 0.44% for L1 without a decoder; ours is "
    "the highest of the five printed models, seed by seed",
}
