"""Printed numbers of chen2019 that are no figure of one recipe, the words of its Table 1, and what to know of others."""

from __future__ import annotations

from collections.abc import Callable

from capsella.models import CapsuleNet
from capsella.nn import PrimaryCapsules, RoutingLayer
from capsella.nn.stem import ImageConv2d
from capsella.papers.chen2019.nets import PRINTED, build, cell
from capsella.papers.verdicts import Evidence, Fact
from capsella.train.plan import Plan

_MULTI = cell("cifar10", "multi-gcapsnet")
_THOUSAND, _MILLION = 1e3, 1e6


def _parameters(row: str) -> Fact:
    """Return what looks up how many millions of parameters were trained."""

    def find(evidence: Evidence) -> float:
        return evidence.results(row)[0].parameters / _MILLION

    return find


def _first(net: CapsuleNet) -> int:
    return next(layer.weight.numel() for layer in net.trunk.modules() if isinstance(layer, ImageConv2d))


def _second(net: CapsuleNet) -> int:
    if not isinstance(net.primary, PrimaryCapsules):
        raise TypeError(f"the run's primary capsules are {type(net.primary).__name__}; expected PrimaryCapsules")
    return net.primary.conv.weight.numel()


def _of_layer(number: int, parameter: str) -> Callable[[CapsuleNet], int]:
    """Return what counts a layer's matrices, ``"weight"``, or its coefficients, ``"couplings"``."""

    def count(net: CapsuleNet) -> int:
        layer = net.layers[number]
        if not isinstance(layer, RoutingLayer):
            raise TypeError(f"the run's layer {number} is {type(layer).__name__}; expected one that routes")
        return layer.get_parameter(parameter).numel()

    return count


_LAYERS: dict[str, Callable[[CapsuleNet], int]] = {
    "conv1": _first,
    "conv2": _second,
    "conv-caps-trans1": _of_layer(0, "weight"),
    "conv-caps-routing1": _of_layer(0, "couplings"),
    "conv-caps-trans2": _of_layer(1, "weight"),
    "conv-caps-routing2": _of_layer(1, "couplings"),
    "fc-caps-trans1": _of_layer(2, "weight"),
    "fc-caps-routing1": _of_layer(2, "couplings"),
    "total": lambda net: sum(parameter.numel() for parameter in net.parameters()),
}


def _layer(name: str) -> Fact:
    """Return what counts thousands of parameters of a layer of the net that was trained."""

    def find(evidence: Evidence) -> float:
        net = build(Plan.of(evidence.results(_MULTI)[0].plan))
        if not isinstance(net, CapsuleNet):
            raise TypeError(f"the run's network is {type(net).__name__}; expected one with capsules")
        return _LAYERS[name](net) / _THOUSAND

    return find


FACTS: dict[str, Fact] = {
    **{f"table2/{data}-{name}-parameters": _parameters(cell(data, name)) for data, names in PRINTED.items() for name in names},
    **{f"supplement-table1/{name}": _layer(name) for name in _LAYERS},
}

# beside the notes that targets have of their own.
REMARKS = {
    "table1/capsnet-optimization": "here: the weights by SGD or Adam, the couplings by agreement in every pass",
    "table1/gcapsnet-optimization": "here: one optimiser for weights and couplings",
    "table1/capsnet-routing-procedure": "here: couplings are found for each image; claims one-pass say how they vary",
    "table1/gcapsnet-routing-procedure": "here: couplings are parameters, the same for every image; see claims one-pass",
    "table1/capsnet-times-of-routing": "here: rows of the table iterations, from 1 to 5",
    "table1/gcapsnet-times-of-routing": "here: the votes are added up once",
    "table1/capsnet-coefficients-sum": "over the classes, for each lower capsule; see claims sums",
    "table1/gcapsnet-coefficients-sum": "the paper writes the sum over the lower capsules; see claims sums, which have both",
    "table2/cifar10-capsnet-parameters": "that of the FC G-CapsNet, whose 20,480 couplings a CapsNet does not train",
    "table2/cifar10-multi-gcapsnet-parameters": "the supplement's total; two of its layers have other sizes in the code",
    **dict.fromkeys(
        ("text/fgsm-baseline", "text/fgsm-fc-gcapsnet", "text/fgsm-conv-gcapsnet"),
        "the share of one digit in the test images: 1 or 5; see the claim constant",
    ),
    "supplement-table1/conv-caps-routing1": "printed for a kernel of 3×3, where the transformation has 4×4",
    "supplement-table1/fc-caps-routing1": "printed for eight coefficients of a capsule, where the layer has one",
    "supplement-table1/total": "the sum of what is printed is 717.0K",
}
