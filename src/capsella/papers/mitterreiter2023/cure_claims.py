"""Which cure keeps deep capsules alive, does depth then help, and does a parse tree appear? Questions of our own.

Nothing is decided that a net that has not run yet could change: one counterexample refutes what is said of all nets, one net
shows what is said to be there, and everything else is open until all have run.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

from capsella.papers.deciding import all_of, any_of
from capsella.papers.mitterreiter2023.cures import CURE_DEPTHS, CURES, QUICK_CURES, QUICK_DEPTHS, cure
from capsella.papers.mitterreiter2023.deciding import ALIVE, LEARNED, LUCK, SHORT_LUCK, STATIC, is_more
from capsella.papers.mitterreiter2023.living import KEPT, ROUTED, Net, deepest_alive, nets_of, share_of, weakest_gradient
from capsella.papers.mitterreiter2023.nets import WIDTH
from capsella.papers.mitterreiter2023.ranks import trend
from capsella.papers.verdicts import Claim, Evidence

# Adam's: a gradient below it moves nothing.
_EPSILON = 1e-8
_DEEP = 8
"""Capsule layers from which on a net is deep: the deepest of the paper's text has five."""


def asked(evidence: Evidence) -> tuple[int, ...]:
    """Return the depths at which every cure is to be tried."""
    return QUICK_DEPTHS if evidence.is_quick else CURE_DEPTHS


def tried(evidence: Evidence) -> tuple[str, ...]:
    """Return the cures that are to be tried."""
    return QUICK_CURES if evidence.is_quick else tuple(CURES)


def awaited(evidence: Evidence, *names: str) -> list[None]:
    """Return an answer that nobody knows for each net of some cures, or of all, that has not run."""
    rows = [cure(name, depth) for name in names or tried(evidence) for depth in asked(evidence)]
    return [None for row in rows if not evidence.has(row)]


def reach(evidence: Evidence, name: str) -> int | None:
    """Return the depth down to which every net of a cure lives, 0 where the first does not; None where one has not run.

    What comes after the first net that does not live changes nothing.
    """
    nets, found = nets_of(evidence, name), 0
    for depth in asked(evidence):
        if depth not in nets:
            return None
        if not nets[depth].lives:
            return found
        found = depth
    return found


def reaches(evidence: Evidence) -> dict[str, int]:
    """Return the depth down to which nets live, by cure, of those of which it is known."""
    found = {name: reach(evidence, name) for name in CURES}
    return {name: depth for name, depth in found.items() if depth is not None}


def _listed(names: Sequence[str]) -> str:
    # labels have commas of their own.
    return "; ".join(CURES[name].label for name in names) or "none"


def _needed(evidence: Evidence) -> tuple[bool | None, str]:
    nets = nets_of(evidence, "published")
    deep = [net for depth, net in nets.items() if depth >= _DEEP]
    says = ", ".join(
        f"{share_of(net.dead)} with {net.depth} layers{'' if net.learned else ' (not learned)'}" for net in nets.values()
    )
    return all_of([*(not net.lives for net in deep), *awaited(evidence, "published")]), f"dead hidden capsules: {says}"


def _exists(evidence: Evidence) -> tuple[bool | None, str]:
    deepest, found = max(asked(evidence)), reaches(evidence)
    good = [name for name, depth in found.items() if depth == deepest]
    says = f"alive at every depth from {min(asked(evidence))} to {deepest} layers: {_listed(good)}"
    return any_of([found[name] == deepest if name in found else None for name in tried(evidence)]), says


def _alone(name: str) -> Callable[[Evidence], tuple[bool | None, str]]:
    """Return what asks whether one cure does it at every depth."""

    def decide(evidence: Evidence) -> tuple[bool | None, str]:
        depth, nets = reach(evidence, name), nets_of(evidence, name)
        parts = [f"{net.depth} layers {share_of(net.accuracy)} right, {share_of(net.dead)} dead" for net in nets.values()]
        return None if depth is None else depth == max(asked(evidence)), "; ".join(parts)

    return decide


def stuck_with_bias(evidence: Evidence) -> list[Net]:
    """Return the deep nets with a bias alone that do not learn, of those of which it is known what is still in them."""
    nets = nets_of(evidence, "bias").values()
    return [net for net in nets if net.depth >= _DEEP and not net.learned and net.still is not None]


def _long_and_still(evidence: Evidence) -> tuple[bool | None, str]:
    """Ask whether capsules of nets with a bias alone that do not learn are dead, or long and the same in every image."""
    known = stuck_with_bias(evidence)
    if not known:
        return None, "there is no such net"
    says = ", ".join(
        f"{net.depth} layers: {net.dead:.0%} dead, {(net.still or 0) - net.dead:.0%} long and the same in every image"
        for net in known
    )
    return all_of([*((net.still or 0) >= 1 - ALIVE for net in known), *awaited(evidence, "bias")]), says


def living(evidence: Evidence) -> dict[str, list[Net]]:
    """Return the nets that live, by cure, shallow ones first; cures without any are left out."""
    found = {name: [net for net in nets_of(evidence, name).values() if net.lives] for name in CURES}
    return {name: nets for name, nets in found.items() if nets}


def _all_ran(evidence: Evidence) -> dict[str, list[Net]]:
    """Return ``living`` of the cures whose nets have all run: shallow ones alone say nothing of what depth does."""
    return {name: nets for name, nets in living(evidence).items() if not awaited(evidence, name)}


def gains(evidence: Evidence) -> dict[str, float]:
    """Return what the deepest living net of a cure has more than its shallowest, in accuracy, of cures with several."""
    return {name: nets[-1].accuracy - nets[0].accuracy for name, nets in _all_ran(evidence).items() if len(nets) > 1}


def _depth_helps(evidence: Evidence) -> tuple[bool | None, str]:
    """Ask whether accuracy rises with depth among living nets of one cure, over all cures; it is tested once, at the end."""
    found = trend([[(net.depth, net.accuracy) for net in nets] for nets in _all_ran(evidence).values()])
    gained, luck = gains(evidence), SHORT_LUCK if evidence.is_quick else LUCK
    better, worse = sum(gain > luck for gain in gained.values()), sum(gain < -luck for gain in gained.values())
    says = (
        f"accuracy on affine digits against depth, within one cure: {found}; from its shallowest to its deepest living net it "
        f"gains more than {100 * luck:.0f} points in {better} of {len(gained)} cures and loses as much in {worse}"
    )
    return None if awaited(evidence) else found.rises, says


def deep_and_routed(evidence: Evidence) -> list[Net]:
    """Return the deepest living net of every cure whose couplings depend on the image, where that is a deep one."""
    found = [deepest_alive(evidence, name) for name in ROUTED]
    return [net for net in found if net is not None and net.depth >= _DEEP]


def _sign(sign: str, says: Callable[[Net], str]) -> Callable[[Evidence], tuple[bool | None, str]]:
    """Return what asks whether the deep nets that live have a sign of parse trees: all or none of them, else it is open."""

    def decide(evidence: Evidence) -> tuple[bool | None, str]:
        nets = [net for net in deep_and_routed(evidence) if net.signs[sign] is not None]
        answers = {net.signs[sign] for net in nets}
        parts = "; ".join(f"{net.label} ({net.depth} layers) {says(net)}" for net in nets)
        is_one = len(answers) == 1 and not awaited(evidence, *ROUTED)
        return answers.pop() if is_one else None, parts or "no deep net with such routing lives"

    return decide


def _tree(evidence: Evidence) -> tuple[bool | None, str]:
    nets = [net for name, nets in living(evidence).items() if name in ROUTED for net in nets if net.depth >= _DEEP]
    if not nets:
        return None, "no deep net with such routing lives"
    answers = [all_of(list(net.signs.values())) for net in nets]
    good = [f"{net.label} ({net.depth} layers)" for net, answer in zip(nets, answers, strict=True) if answer]
    says = f"all three in {len(good)} of {len(nets)} deep living nets{': ' if good else ''}{', '.join(good)}"
    return any_of([*answers, *awaited(evidence, *ROUTED)]), says


def _reached(evidence: Evidence) -> tuple[bool | None, str]:
    """Ask whether nets learn just where every layer's gradient is one that the optimiser feels; it takes some of both kinds."""
    nets = [net for name in CURES for net in nets_of(evidence, name).values()]
    known = [(net, least) for net in nets if (least := weakest_gradient(evidence, net)) is not None]
    felt, unfelt = ([net for net, least in known if (least >= _EPSILON) == which] for which in (True, False))
    good, bad = (sum(net.learned for net in some) for some in (felt, unfelt))
    stuck = [f"{net.label} ({net.depth} layers)" for net in felt if not net.learned]
    says = f"of {len(unfelt)} nets with such a layer {bad} learn, of {len(felt)} others {good}"
    says += f"; not {'; '.join(stuck)}" if stuck else ""
    verdict = all_of([*(net.learned == (least >= _EPSILON) for net, least in known), *awaited(evidence)])
    return verdict if felt and unfelt else None, says


def _uniform(evidence: Evidence) -> tuple[bool | None, str]:
    """Compare at the depths at which nets of both routings live."""
    names = ("uniform-lengths", "lengths")
    both = [nets_of(evidence, name) for name in names]
    answers, parts = [], []
    for depth in sorted(set(both[0]) & set(both[1])):
        one, other = (nets[depth] for nets in both)
        if one.lives and other.lives:
            answers.append(is_more([one.accuracy], [other.accuracy], SHORT_LUCK if evidence.is_quick else LUCK))
            parts.append(f"{one.accuracy:.1%} against {other.accuracy:.1%} with {depth} layers")
    verdict = all_of([*answers, *awaited(evidence, *names)]) if answers else None
    return verdict, f"accuracy on affine digits: {', '.join(parts) or 'at no depth'}"


def _rows(*names: str) -> tuple[str, ...]:
    return tuple(cure(name, depth) for name in names or CURES for depth in CURE_DEPTHS)


def _claim(
    name: str, text: str, decide: Callable[[Evidence], tuple[bool | None, str]], *cures: str, is_long: bool = False
) -> Claim:
    return Claim(f"mitterreiter2023/cure-{name}", text, "ours", _rows(*cures), decide, is_long=is_long, is_partial=True)


_LIVES = f"{LEARNED:.0%} of the placed test images right, and at most {ALIVE:.0%} of the hidden capsules dead"

CURE_CLAIMS = (
    _claim(
        "needed",
        f"As published, no net of {_DEEP} or more capsule layers lives (here: {_LIVES}).",
        _needed,
        "published",
    ),
    _claim("exists", "There is a cure with which nets of every depth that was tried live.", _exists),
    _claim("start", "A length-preserving start alone is such a cure.", _alone("lengths"), "lengths"),
    _claim("bias", "A bias alone is such a cure.", _alone("bias"), "bias"),
    _claim(
        "squash",
        "With Sabour's squash, the length-preserving start is one as well.",
        _alone("lengths-sabour"),
        "lengths-sabour",
    ),
    _claim(
        "still",
        "Where deep nets with a bias alone do not learn, their hidden capsules are dead or as long in every image.",
        _long_and_still,
        "bias",
    ),
    _claim(
        "gradients",
        "Nets with a layer whose gradient is under Adam's epsilon of 1e-8 at the start do not learn, and all others do.",
        _reached,
    ),
    _claim(
        "depth-helps", "Among living nets of one cure, deeper ones classify affine digits better.", _depth_helps, is_long=True
    ),
    _claim(
        "uniform",
        "From the length-preserving start, uniform couplings classify affine digits better than agreement wherever both live.",
        _uniform,
        "lengths",
        "uniform-lengths",
        is_long=True,
    ),
    _claim(
        "dynamic",
        f"Where deep capsules live, routing between them is dynamic (here: {STATIC:.0f} live targets of {WIDTH}, in the mean).",
        _sign("dynamic", lambda net: f"{net.targets:.2f}"),
        *ROUTED,
        is_long=True,
    ),
    _claim(
        "invariant",
        "Where deep capsules live, they follow their parts (here: "
        f"{KEPT:.0%} of what lies between chance and invariance is left under small changes of view).",
        _sign("invariant", lambda net: f"{net.kept:.0%}"),
        *ROUTED,
        is_long=True,
    ),
    _claim(
        "matters",
        f"Where deep capsules live, an image needs its own couplings (here: another's cost {100 * LUCK:.0f} point).",
        _sign("matters", lambda net: f"{100 * (net.lost or 0):.1f} points".replace("-", "−")),
        *ROUTED,
        is_long=True,
    ),
    _claim(
        "tree", f"A parse tree appears: all three in one living net of {_DEEP} or more layers.", _tree, *ROUTED, is_long=True
    ),
)


def mean_gain(evidence: Evidence) -> float | None:
    """Return the mean of ``gains``."""
    found = gains(evidence)
    return statistics.fmean(found.values()) if found else None
