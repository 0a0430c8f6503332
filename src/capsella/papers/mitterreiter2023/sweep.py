"""The sweep that stands for the paper's 121 unpublished architectures: its nets, and the order in which they are trained."""

from __future__ import annotations

from dataclasses import dataclass

from capsella.papers.mitterreiter2023.nets import ROUTINGS, placed_plan
from capsella.train.plan import Plan

SWEEP_DEPTHS = (2, 3, 4, 5, 6, 7, 8)
SWEEP_WIDTHS = (8, 16, 32)
SWEEP_DIMS = (4, 8, 16)
SWEEP_BATCH = 512
"""As in the notebooks that train many nets."""

# seven depths from 2 on by steps of three, which any few of them span.
_STRIDE = 3


@dataclass(frozen=True)
class Cell:
    """A net of the sweep.

    Attributes:
        routing: of ``ROUTINGS``.
        depth: capsule layers.
        width: capsules of every layer but the last.
        dim: of every capsule.
    """

    routing: str
    depth: int
    width: int
    dim: int

    @property
    def key(self) -> str:
        """Of its recipe."""
        return f"mitterreiter2023/sweep/{self.routing}-depth{self.depth}-n{self.width}-d{self.dim}"

    @property
    def plan(self) -> Plan:
        """Its training."""
        plan = placed_plan(self.routing, self.depth, width=self.width, dim=self.dim)
        return plan.changed({"batch_size": SWEEP_BATCH, "watch": 0})


def balanced_order() -> tuple[Cell, ...]:
    """Return all nets of the sweep, those of agreement and uniform couplings in turn, any first few of them balanced.

    The k-th pair has depth k mod 7, and width and dimension k mod 9, of which width is k mod 3: 7 and 9 have no common divisor,
    so that 63 pairs are all there are. Of any first pairs as many, give or take one, are of each depth, of each width, of each
    dimension, of each width with each dimension, and of each depth with each width.

    Example:
        >>> [(cell.depth, cell.width, cell.dim) for cell in balanced_order() if cell.routing == "uniform"][:4]
        [(2, 8, 4), (5, 16, 8), (8, 32, 16), (4, 8, 8)]
    """
    pairs = []
    for k in range(len(SWEEP_DEPTHS) * len(SWEEP_WIDTHS) * len(SWEEP_DIMS)):
        depth = SWEEP_DEPTHS[_STRIDE * k % len(SWEEP_DEPTHS)]
        width = SWEEP_WIDTHS[k % 3]
        # each round of three moves on by one, so that nine have every width with every dimension.
        dim = SWEEP_DIMS[(k + k // 3) % 3]
        pairs.append((depth, width, dim))
    return tuple(Cell(routing, *pair) for pair in pairs for routing in ROUTINGS)


SWEEP = balanced_order()

# for a CPU: three depths of the four smallest sizes, enough to see a trend.
_QUICK_SIZES = ((8, 4), (8, 8), (16, 4), (16, 8))
_QUICK_DEPTHS = (3, 5, 8)


def is_quick(cell: Cell) -> bool:
    """Tell whether a net of the sweep has a short version."""
    return cell.depth in _QUICK_DEPTHS and (cell.width, cell.dim) in _QUICK_SIZES
