"""Printed numbers of gu2021 that are no figure of one recipe, and what to know of others."""

from __future__ import annotations

from capsella.papers.gu2021.nets import KERNEL_NETS, KERNELS, PARTNERS, TABLE1, TABLE2, ablated, kernel, partnered, robust
from capsella.papers.readings import dig
from capsella.papers.targets import read_targets
from capsella.papers.verdicts import Evidence, Fact, Missing


def _size(key: str) -> Fact:
    """Return what looks up how many millions of parameters a net had that was trained."""

    def find(evidence: Evidence) -> float | None:
        return evidence.results(key)[0].parameters / 1e6

    return find


def _runs(evidence: Evidence) -> float | None:
    """Return the fewest runs of a row of Tables 1 and 2 that the paper has; none while one of them has not run."""
    rows = (*(robust(row) for row in TABLE1 if row != "em-capsnet"), *map(ablated, TABLE2))
    return float(min(len(evidence.results(row)) for row in rows))


def _weight(evidence: Evidence) -> float | None:
    found = dig(evidence.results(robust("capsnet"))[0].plan, "train", "reconstruction")
    return None if found is None else float(found)


def _best(net: str) -> Fact:
    """Return what looks up the highest accuracy that a net came to on overlapping digits, whatever the partners."""

    def find(evidence: Evidence) -> float:
        keys = [key for key in (partnered(net, count) for count in PARTNERS) if evidence.has(key)]
        if not keys:
            raise Missing(partnered(net, 100))
        return max(value for key in keys for value in evidence.values(key, "best"))

    return find


_SIZES = {
    **{f"table1/{row}-parameters": robust(row) for row in TABLE1},
    **{f"table3/{net}-k{size}-parameters": kernel(net, size) for net in KERNEL_NETS for size in KERNELS},
}

FACTS: dict[str, Fact] = {
    **{target: _size(key) for target, key in _SIZES.items() if target in read_targets("gu2021")},
    "text/convnet-fc-lk-multimnist-best": _best("convnet-fc-lk"),
    "text/capsnet-multimnist-best": _best("capsnet"),
    "text/runs": _runs,
    "text/reconstruction-weight": _weight,
}

_TRUNCATED = "7,578,688: printed cut off, not rounded"
_AVERAGED = "5,332,234: Table 1 prints 5.3M"

_HIGHEST = (
    "ours is the highest of any run and look, with 1 to 100 partners; the paper does not say with how many, perhaps 1,000, "
    "which need ten times the steps"
)

_NATS = "the paper states neither the logarithm's base nor how values are summed; the order of the nets can be compared"

REMARKS = {
    **{key: _NATS for key in read_targets("gu2021") if key.startswith("table5/")},
    "text/convnet-fc-lk-multimnist-best": _HIGHEST,
    "text/capsnet-multimnist-best": _HIGHEST,
    "table1/aff-capsnet-dr-parameters": _TRUNCATED,
    "table1/aff-capsnet-parameters": _TRUNCATED,
    "table3/convnet-avg-k9-parameters": _AVERAGED,
    "table3/convnet-avg-k3-parameters": "595,210: printed cut off, not rounded",
    "table1/em-capsnet-mnist": "the authors' net; ours has other sizes and stands in Table 1 beside it",
    "table1/em-capsnet-affnist": "the authors' net; ours has other sizes and stands in Table 1 beside it",
    "text/runs": "the fewest runs of a row of Tables 1 and 2; of other tables there are three of each",
}
