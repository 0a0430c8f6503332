"""The tables of gu2021's page, the paper's and our own."""

from __future__ import annotations

from capsella.papers.gu2021.nets import (
    CONVNETS,
    FACTORS,
    GROUPS,
    KERNEL_NETS,
    KERNELS,
    PAIRS_NETS,
    PARTNERS,
    SETS,
    TABLE1,
    TABLE2,
    TABLE4,
    TABLE5,
    ablated,
    averaged,
    compact,
    convnet,
    grouped,
    kernel,
    overlapping,
    pairs_kernel,
    partnered,
    robust,
)
from capsella.papers.paper import Table

_TABLE1 = tuple(map(robust, TABLE1))
_TABLE2 = tuple(map(ablated, TABLE2))
_TABLE3 = tuple(kernel(net, size) for net in KERNEL_NETS for size in KERNELS)
_TABLE4 = tuple(map(overlapping, TABLE4))
_NAMES = tuple(net.label for net, _ in KERNEL_NETS.values())
_SIZES = tuple(f"{size}×{size}" for size in KERNELS)


def _kernels(key: str, title: str, reading: str) -> Table:
    return Table(
        key,
        "Table 3",
        title,
        _TABLE3,
        reading=reading,
        rows=_NAMES,
        columns=_SIZES,
        note=(
            "Of ConvNet-FC with kernels of 9 and 11 the paper prints the sizes alone. Nothing is concluded from a net that has "
            "not come to 99.22% of the placed test images in 100 epochs."
        ),
    )


def _of_factor(factor: str, printed: str) -> Table:
    return Table(
        f"table5-{factor}",
        "Table 5",
        f"Compactness: {printed.capitalize()}",
        tuple(compact(data, row) for row in TABLE5 for data in SETS),
        reading=f"compact_{factor}",
        rows=tuple(net.label for net in TABLE5.values()),
        columns=tuple(name for name, _ in SETS.values()),
        note="Sizes hang on conventions that the paper does not state; its order of the four nets is what can be compared.",
    )


TABLES = (
    Table(
        "table1",
        "Table 1",
        "Accuracy on AffNIST of nets that learned from moved digits alone",
        _TABLE1,
        reading="affnist",
        note=(
            "A net stops when 99.22% of the placed test images are right, so that what is left is robustness, or after 100 "
            "epochs; nothing is concluded from one that has not come so far. All printed rows but ConvNet-Avg's are quoted "
            "from other papers. The last row is ours: matrix capsules at sizes of our own."
        ),
    ),
    Table(
        "table1-mnist",
        "Table 1",
        "Accuracy on MNIST's test images at random places, by which training stops",
        _TABLE1,
        note="It ends above the bar, since it is looked at after every epoch.",
    ),
    Table("stopped", "", "Table 1: how long a net takes to that accuracy", _TABLE1, reading="stopped"),
    Table(
        "mitterreiter",
        "",
        "Table 1 on AffNIST as mitterreiter2023's code makes it",
        _TABLE1,
        reading="affnist_mitterreiter",
        note="Shear of up to 40°, one scale for both axes, nearest neighbour, wherever the digit fits. The same nets.",
    ),
    Table(
        "literal",
        "",
        "Table 1 on AffNIST by the paper's own words",
        _TABLE1,
        reading="affnist_literal",
        note="Shear of up to 45°, shifts of up to 8 pixels. The same nets.",
    ),
    Table(
        "table2",
        "Table 2",
        "Components of Aff-CapsNet: accuracy on AffNIST",
        _TABLE2,
        reading="affnist",
        note="Dynamic routing, and a matrix for every capsule without it, sum votes in place of a mean, and start smaller.",
    ),
    Table("table2-mnist", "Table 2", "Components of Aff-CapsNet: accuracy on MNIST's test images at random places", _TABLE2),
    Table("table2-train", "Table 2", "Components of Aff-CapsNet: accuracy on the training images", _TABLE2, reading="training"),
    _kernels("table3", "Kernels: accuracy on AffNIST", "affnist"),
    _kernels("table3-mnist", "Kernels: accuracy on MNIST's test images at random places", "final"),
    Table(
        "groups",
        "",
        "Groups of Aff-CapsNet: accuracy on AffNIST",
        tuple(map(grouped, GROUPS)),
        reading="affnist",
        note="For supplement A, which is not to be had. Types of primary capsules share 256 channels and one matrix.",
    ),
    Table(
        "averages",
        "",
        "What no routing means: accuracy on AffNIST",
        (ablated("baseline"), averaged("shared-tenth"), ablated("not-shared"), averaged("not-shared-mean")),
        reading="affnist",
        rows=("TransM shared", "TransM not shared"),
        columns=("as in Table 2", "the other way"),
        note=(
            "As in Table 2 is the mean of the votes where the matrix is shared, and a tenth of every vote where it is not. "
            "The start differs too."
        ),
    ),
    Table(
        "table4",
        "Table 4",
        "Components of CapsNet: accuracy on overlapping digits",
        _TABLE4,
        note="An image is right if its two digits have the two highest scores.",
    ),
    Table(
        "table4-train",
        "Table 4",
        "Components of CapsNet: accuracy on overlapping training images",
        _TABLE4,
        reading="training_late",
        note="Of the last 2,500 steps: one epoch is the whole training, and its mean counts the start in.",
    ),
    Table(
        "multimnist",
        "Section 3.2",
        "ConvNets on overlapping digits",
        (overlapping("baseline"), *map(convnet, CONVNETS)),
        note="The last four say what the margin loss and the decoder do to a ConvNet of CapsNet's convolutions.",
    ),
    Table(
        "figure3",
        "Figure 3",
        "Accuracy on overlapping digits, by partners of an original",
        tuple(partnered(net, count) for net in PAIRS_NETS for count in PARTNERS),
        rows=tuple(net.label for net in PAIRS_NETS.values()),
        columns=tuple(f"{count:,}" for count in PARTNERS),
        note=(
            "All train for as many steps, so that a net with one partner has seen every image a hundred times. The paper's "
            "thousand partners need ten times as many."
        ),
    ),
    Table(
        "kernels",
        "",
        "Kernels: accuracy on overlapping digits",
        tuple(pairs_kernel(net, size) for net in PAIRS_NETS for size in KERNELS),
        rows=tuple(net.label for net in PAIRS_NETS.values()),
        columns=_SIZES,
        note="For supplement B, which is not to be had.",
    ),
    *(_of_factor(factor, printed) for factor, printed in FACTORS.items()),
)
