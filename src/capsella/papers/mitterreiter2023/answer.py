"""What the cures come to, in sentences that their verdicts give."""

from __future__ import annotations

from capsella.papers.deciding import fewest_runs
from capsella.papers.mitterreiter2023.cure_claims import CURE_CLAIMS, asked, awaited, gains, mean_gain, reaches, stuck_with_bias
from capsella.papers.mitterreiter2023.cures import CURES, DEEPEST
from capsella.papers.mitterreiter2023.deciding import LUCK
from capsella.papers.mitterreiter2023.living import nets_of
from capsella.papers.verdicts import FAILS, HOLDS, UNDECIDED, Evidence


def answer(evidence: Evidence) -> str:
    """Say which cure keeps deep capsules alive, whether depth then helps and a parse tree appears.

    Nothing is said where the first is open, and nothing of short versions.
    """
    if evidence.is_quick:
        return ""
    found = {claim.key.removeprefix("mitterreiter2023/cure-"): claim.find(evidence).verdict for claim in CURE_CLAIMS}
    if found["exists"] == UNDECIDED:
        return ""
    parts = (_alive, _deepest, _published, _bias, _depth, _tree, _routing, _scope)
    return " ".join(sentence for part in parts if (sentence := part(evidence, found)))


def _alive(evidence: Evidence, found: dict[str, str]) -> str:
    """Name the cures by how deep their nets live."""
    least, most = min(asked(evidence)), max(asked(evidence))
    by_reach: dict[int, list[str]] = {}
    for name, depth in reaches(evidence).items():
        by_reach.setdefault(depth, []).append(CURES[name].label)
    said = []
    for depth in sorted(by_reach, reverse=True):
        named = "; ".join(by_reach[depth])
        if depth == most:
            said.append(f"Nets of {least} to {most} capsule layers live with: {named}.")
        elif depth:
            said.append(f"Nets live no deeper than with {depth} layers with: {named}.")
        else:
            said.append(f"Not even {least} layers live with: {named}.")
    if found["exists"] == FAILS:
        said.insert(0, "No cure keeps capsules alive at every depth.")
    return " ".join(said)


def _deepest(evidence: Evidence, found: dict[str, str]) -> str:
    """Say what came of the deepest nets, of those that have run."""
    nets = [net for name in CURES if (net := nets_of(evidence, name, (DEEPEST,)).get(DEEPEST)) is not None]
    if not nets:
        return ""
    alive = "; ".join(net.label for net in nets if net.lives) or "none"
    return f"Of {len(nets)} that were tried with {DEEPEST} layers, these live: {alive}."


def _published(evidence: Evidence, found: dict[str, str]) -> str:
    if found["needed"] != HOLDS:
        return ""
    if found["start"] == HOLDS:
        return "As published no deep net lives, and nothing but its start has to be changed for it."
    return "As published no deep net lives."


def _bias(evidence: Evidence, found: dict[str, str]) -> str:
    if found["bias"] != FAILS or found["still"] != HOLDS:
        return ""
    # dead capsules count as still: that they are long has to be so of most.
    if all((net.still or 0) - net.dead > net.dead for net in stuck_with_bias(evidence)):
        return "A bias alone makes capsules long and not alive: they are the same in every image."
    return "A bias alone does not make capsules live: they are dead, or as long in every image."


_ENDS = "from its shallowest to its deepest living net a cure"


def _depth(evidence: Evidence, found: dict[str, str]) -> str:
    if awaited(evidence):
        return "Whether depth then helps is open."
    gained, mean = gains(evidence), mean_gain(evidence)
    if mean is None:
        return ""
    # the verdict is on all pairs of nets, the number on their ends alone.
    if found["depth-helps"] == HOLDS and mean <= 0:
        return f"Deeper nets of one cure are mostly better, but {_ENDS} gains nothing in the mean."
    if found["depth-helps"] == FAILS and mean >= 0:
        return f"Deeper nets of one cure are mostly worse, but {_ENDS} loses nothing in the mean."
    by = f"{100 * mean:+.1f} points of accuracy from the shallowest to the deepest living net, mean of {len(gained)} cures"
    by = by.replace("-", "−")
    best = max(gained, key=lambda name: gained[name])
    sentence = {
        HOLDS: f"Depth then helps: {by}.",
        FAILS: f"Depth then does not help, it costs: {by}.",
        UNDECIDED: f"That depth then helps is not seen: {by}.",
    }[found["depth-helps"]]
    if found["depth-helps"] != HOLDS and gained[best] > LUCK:
        sentence += (
            f" Most is gained with {CURES[best].label}, {100 * gained[best]:.1f} points; it is the best of several single runs."
        )
    return sentence


def _tree(evidence: Evidence, found: dict[str, str]) -> str:
    if found["tree"] == HOLDS:
        return "A parse tree appears: routing that is dynamic, matters, and follows small changes of view."
    if found["tree"] == UNDECIDED:
        return "Whether a parse tree appears is open."
    says = {
        "dynamic": {HOLDS: "routing is dynamic", FAILS: "routing is almost static"},
        "matters": {HOLDS: "images need their own couplings", FAILS: "another image's couplings do as well"},
        "invariant": {HOLDS: "capsules follow small changes of view", FAILS: "capsules do not follow small changes of view"},
    }
    parts = [words[found[name]] for name, words in says.items() if found[name] in words]
    return f"No parse tree appears{': ' if parts else ''}{', '.join(parts)}."


def _routing(evidence: Evidence, found: dict[str, str]) -> str:
    return {
        HOLDS: "Where both live, uniform couplings are better than agreement.",
        FAILS: "Uniform couplings are not better than agreement at every depth at which both live.",
        UNDECIDED: "",
    }[found["uniform"]]


def _scope(evidence: Evidence, found: dict[str, str]) -> str:
    """Say what it rests on."""
    runs = fewest_runs(evidence, CURE_CLAIMS)
    return f"All of it on MNIST at random places and its affine digits, with {runs} of each net."
