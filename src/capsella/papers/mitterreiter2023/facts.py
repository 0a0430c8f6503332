"""Printed numbers of mitterreiter2023 that are no figure of one recipe, and what to know of others."""

from __future__ import annotations

from capsella.papers.mitterreiter2023.nets import DEPTHS, net, photographs
from capsella.papers.mitterreiter2023.sweep import SWEEP
from capsella.papers.readings import dig, examined
from capsella.papers.results import Result
from capsella.papers.verdicts import Evidence, Fact


def layers(result: Result) -> list[dict[str, float]]:
    """Return what was measured of each layer, primary capsules first; nothing where nothing was."""
    return list(dig(examined(result), "layers") or [])


def _target(evidence: Evidence) -> float | None:
    found: float | None = evidence.results(net())[0].plan["train"]["target_accuracy"]
    return found


def _largest(evidence: Evidence) -> float | None:
    """Return the largest share of dead capsules in a layer of any net that agreement routes."""
    swept = [cell.key for cell in SWEEP if cell.routing == "agreement"]
    rows = [*(net("agreement", depth) for depth in DEPTHS), photographs("agreement"), *swept]
    found = [layer["cdr"] for row in rows if evidence.has(row) for result in evidence.results(row) for layer in layers(result)]
    return max(found, default=None)


FACTS: dict[str, Fact] = {
    "text/target-accuracy": _target,
    "text/dead-capsules-layer4": lambda evidence: evidence.values(net(), "cdr4"),
    "text/dead-capsules-largest": _largest,
}

PRINTED_LAYERS = tuple(f"{figure}{number}" for figure in ("alive", "dyr", "dys") for number in (1, 2, 3, 4))


def reads() -> dict[str, str]:
    """Return the readings of Tables 1 and 2, by the printed number's key."""
    dynamics = {f"table1/layer{name[-1]}-{name[:-1]}": name for name in PRINTED_LAYERS}
    activity = {
        f"table2/layer{number}-{figure}": f"{figure}{number}"
        for number in (1, 2, 3, 4, 5)
        for figure in ("cnm", "cns", "car", "cas", "cdr", "cds")
    }
    return {**dynamics, "table1/output-alive": "alive5", **activity}


_GROWTH = "a formula; how both grow here is in the pictures of Table 3 and decides a claim"

REMARKS = {
    "text/architectures": "neither paper nor code says which they were; the sweep has 63, each with both routings",
    "text/dead-capsules-largest": "of another experiment, in an appendix; ours is the largest of any layer of any net here",
    **{f"table3/{name}": _GROWTH for name in ("mhsa-space", "mhsa-time", "rba-space", "rba-time")},
}
