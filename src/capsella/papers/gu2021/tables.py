"""The tables of gu2021's page, the paper's and our own."""

from __future__ import annotations

from capsella.papers.gu2021.nets import (
    GROUPS,
    KERNEL_NETS,
    KERNELS,
    TABLE1,
    TABLE2,
    ablated,
    averaged,
    grouped,
    kernel,
    robust,
)
from capsella.papers.paper import Table

_TABLE1 = tuple(map(robust, TABLE1))
_TABLE2 = tuple(map(ablated, TABLE2))
_TABLE3 = tuple(kernel(net, size) for net in KERNEL_NETS for size in KERNELS)
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
        note="Of ConvNet-FC with kernels of 9 and 11 the paper prints the sizes alone.",
    )


TABLES = (
    Table(
        "table1",
        "Table 1",
        "Accuracy on AffNIST of nets that learned from moved digits alone",
        _TABLE1,
        reading="affnist",
        note=(
            "Every net stops when 99.22% of the placed test images are right, so that what is left is robustness. All printed "
            "rows but ConvNet-Avg's are quoted from other papers. The last row is ours: matrix capsules at sizes of our own."
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
    Table("table2", "Table 2", "Components of Aff-CapsNet: accuracy on AffNIST", _TABLE2, reading="affnist"),
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
        note="As in Table 2 is the mean of the votes where the matrix is shared, and a tenth of every vote where it is not.",
    ),
)
