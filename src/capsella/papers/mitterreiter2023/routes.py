"""What mitterreiter2023 says of routing: that it stands still, that uniform couplings do better, that it costs much."""

from __future__ import annotations

import statistics

from capsella.papers.deciding import all_of, span_of
from capsella.papers.mitterreiter2023.deciding import (
    LEARNED,
    LUCK,
    SHORT_LUCK,
    STATIC,
    has_learned,
    is_more,
    mean_dynamics,
    mean_of_layer,
)
from capsella.papers.mitterreiter2023.nets import DEPTHS, GROWTH, net, photographs
from capsella.papers.readings import dig
from capsella.papers.verdicts import Claim, Evidence, Missing

_NET = net()
# rates of dynamics of single runs may differ by so much.
_LUCK_OF_RATES = 0.02
_QUADRATIC, _GENTLE = 1.8, 0.2


def _static(evidence: Evidence) -> tuple[bool | None, str]:
    found = [mean_of_layer(evidence, _NET, number, "dys") for number in (2, 3)]
    return max(found) < STATIC, f"dynamics in live targets: layer 2 {found[0]:.2f}, layer 3 {found[1]:.2f}"


def _last_most(evidence: Evidence) -> tuple[bool | None, str]:
    rates = [mean_of_layer(evidence, _NET, number, "dyr") for number in (1, 2, 3, 4)]
    return rates[3] > max(rates[:3]), f"rates of dynamics of layers 1 to 4: {', '.join(f'{rate:.2f}' for rate in rates)}"


def _photographs_worse(evidence: Evidence) -> tuple[bool | None, str]:
    digits, photos = mean_dynamics(evidence, _NET), mean_dynamics(evidence, photographs())
    says = f"mean rate of dynamics: {statistics.fmean(photos):.3f} on CIFAR-10, {statistics.fmean(digits):.3f} on affine digits"
    return is_more(digits, photos, _LUCK_OF_RATES), says


def _uniform_better(evidence: Evidence) -> tuple[bool | None, str]:
    answers, parts = [], []
    for depth in DEPTHS:
        uniform, agreement = (evidence.values(net(routing, depth), "affine") for routing in ("uniform", "agreement"))
        answers.append(is_more(uniform, agreement, SHORT_LUCK if evidence.is_quick else LUCK))
        parts.append(f"{statistics.fmean(uniform):.1%} against {statistics.fmean(agreement):.1%} with {depth} layers")
    stuck = [
        f"{routing} with {d}"
        for routing in ("uniform", "agreement")
        for d in DEPTHS
        if not has_learned(evidence, net(routing, d))
    ]
    says = f"; not learned: {', '.join(stuck)} layers" if stuck else ""
    return all_of(answers), f"accuracy on affine digits: {', '.join(parts)}{says}"


def _uniform_where_both_learn(evidence: Evidence) -> tuple[bool | None, str]:
    """Compare at the depths where every run has learned, which uniform couplings prevent in deep nets."""
    answers, parts = [], []
    for depth in DEPTHS:
        rows = [net(routing, depth) for routing in ("uniform", "agreement")]
        if min(min(evidence.values(row)) for row in rows) < LEARNED:
            continue
        uniform, agreement = (evidence.values(row, "affine") for row in rows)
        answers.append(is_more(uniform, agreement, SHORT_LUCK if evidence.is_quick else LUCK))
        parts.append(f"{statistics.fmean(uniform):.1%} against {statistics.fmean(agreement):.1%} with {depth} layers")
    return all_of(answers) if answers else None, f"accuracy on affine digits: {', '.join(parts) or 'at no depth'}"


def _photographs_uniform(evidence: Evidence) -> tuple[bool | None, str]:
    uniform, agreement = (evidence.values(photographs(routing)) for routing in ("uniform", "agreement"))
    says = f"accuracy on CIFAR-10: {statistics.fmean(uniform):.1%} against {statistics.fmean(agreement):.1%}"
    return is_more(uniform, agreement, LUCK), says


def _costs(evidence: Evidence) -> tuple[bool | None, str]:
    found = dig(evidence.results(GROWTH)[0].measured, "mitterreiter2023.growth")
    if not found:
        raise Missing(GROWTH)
    rba, mhsa = ([found[axis]["exponents"][f"{which}_parameters"] for axis in ("n", "d")] for which in ("rba", "mhsa"))
    times = [found["n"]["exponents"][f"{which}_seconds"] for which in ("rba", "mhsa")]
    last = found["n"]["rba_seconds"][-1] / found["n"]["mhsa_seconds"][-1]
    says = (
        f"parameters grow as n to the power {rba[0]:.2f} and d to {rba[1]:.2f}, attention's {mhsa[0]:.2f} and {mhsa[1]:.2f}; "
        f"times as n to {times[0]:.2f} and {times[1]:.2f}; at n = {found['n']['sizes'][-1]} routing takes {last:.1f}× the time"
    )
    return rba[0] > _QUADRATIC and mhsa[0] < _GENTLE and last > 1, says


def _matters(evidence: Evidence) -> tuple[bool | None, str]:
    found = [dig(each.measured, "mitterreiter2023.dynamics", "routing_matters") for each in evidence.results(_NET)]
    if not all(found):
        raise Missing(_NET)
    lost = [each["own"] - each["other"] for each in found]
    says = f"points lost with the couplings of other images: {span_of([100 * each for each in lost], '.1f')}"
    return statistics.fmean(lost) < LUCK, says


_ALL_DEPTHS = tuple(net(routing, depth) for routing in ("uniform", "agreement") for depth in DEPTHS)

ROUTES = (
    Claim(
        "mitterreiter2023/static",
        f"Routing out of layers 2 and 3 is almost static (here: fewer than {STATIC:.0f} live targets).",
        "section 4.1, Table 1",
        (_NET,),
        _static,
        is_long=True,
    ),
    Claim(
        "mitterreiter2023/last-most",
        "The last routing layer is the most dynamic one.",
        "section 4.1, Table 1",
        (_NET,),
        _last_most,
        is_long=True,
    ),
    Claim(
        "mitterreiter2023/photographs-worse",
        "Routing is less dynamic on CIFAR-10 than on affine digits.",
        "section 4.1",
        (_NET, photographs()),
        _photographs_worse,
    ),
    Claim(
        "mitterreiter2023/uniform-better",
        "Nets with uniform couplings classify affine digits better than those with agreement "
        f"({DEPTHS[0]} to {DEPTHS[-1]} layers).",
        "section 4.3",
        _ALL_DEPTHS,
        _uniform_better,
    ),
    Claim(
        "mitterreiter2023/uniform-photographs",
        "A net with uniform couplings classifies CIFAR-10 better than one with agreement.",
        "section 4.3",
        (photographs("uniform"), photographs()),
        _photographs_uniform,
    ),
    Claim(
        "mitterreiter2023/costs",
        "Agreement costs far more than self-attention: its size grows as n², attention's not at all, and it takes more time.",
        "section 5, Table 3",
        (GROWTH,),
        _costs,
    ),
)
ROUTE_QUESTIONS = (
    Claim(
        "mitterreiter2023/uniform-learned",
        "Nets with uniform couplings classify affine digits better at the depths where nets of both routings learn at all.",
        "ours",
        _ALL_DEPTHS,
        _uniform_where_both_learn,
        is_long=True,
    ),
    Claim(
        "mitterreiter2023/matters",
        "Routing that is almost static could as well be another image's: no accuracy is lost with its couplings.",
        "ours",
        (_NET,),
        _matters,
    ),
)
