"""From figures to words: which figures are a symptom, what the papers had, and what to try."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from capsella.analysis.records import completed
from capsella.errors import unknown_name
from capsella.nn.init import LENGTH_PRESERVING

GUIDE = "docs/doctor.md"


@dataclass(frozen=True)
class Symptom:
    """One thing that is wrong.

    Attributes:
        key: what it is, one of ``SYMPTOMS``.
        layer: number of the layer, primary capsules being 1; None for the whole network.
        figure: that it rests on.
        says: the verdict in words.
        papers: what the papers had, in a sick net and in a healthy one.
        tries: what to try, most promising first.
        link: to the section that explains it.
        is_note: whether it is worth knowing rather than a disease.
        means: what that section says, in a sentence.
    """

    key: str
    layer: int | None
    figure: float
    says: str
    papers: str
    tries: tuple[str, ...]
    link: str
    is_note: bool = False
    means: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return everything, as JSON can hold it."""
        return {**vars(self), "tries": list(self.tries)}


@dataclass(frozen=True)
class Kind:
    """A kind of symptom, and what is said of it wherever it is found.

    Attributes:
        title: in a few words.
        papers: what the papers had.
        tries: what to try.
        section: of the guide.
        means: what the section says, in a sentence.
        is_note: whether it is worth knowing rather than a disease.
    """

    title: str
    papers: str
    tries: tuple[str, ...]
    section: str
    means: str
    is_note: bool = False

    def found(self, key: str, layer: int | None, figure: float, says: str) -> Symptom:
        """Return the symptom for one layer."""
        link = f"{GUIDE}#{self.section}"
        return Symptom(key, layer, figure, says, self.papers, self.tries, link, self.is_note, self.means)


_BIAS = "a bias on every routing layer (bias=True)"
_START = "a length-preserving start (init.length_preserving_)"
_TRAINABLE = "trainable couplings (routing='trainable')"
_FEWER = "fewer capsule layers"
_UNIFORM = "uniform routing, trained anew (routing='uniform'): cheaper, and as good where it trains"
_CHOICES = "couplings that depend on the image (routing='agreement', routing='em'), if a parse tree is wanted"

SYMPTOMS: dict[str, Kind] = {
    "broken": Kind(
        "activations that are no numbers",
        "none reports such a net; lengths lie between 0 and 1 (mitterreiter2023, section 3)",
        ("a smaller learning rate (--lr)", "a checkpoint from before", "float32 (--precision float32)"),
        "broken",
        "Infinite or undefined activations spread to whatever is measured, so that no other figure can be trusted.",
    ),
    "guessing": Kind(
        "answers no better than guessing",
        "peer2022, Tables 2 and 3: deep nets without a bias stay near 10 % of ten classes, those of up to 9 with one train",
        (_START, _BIAS, _FEWER),
        "guessing",
        "Of what lies between always naming the most frequent class and no mistake at all, less than a twentieth is gained.",
    ),
    "dead": Kind(
        "dead capsules",
        "mitterreiter2023, Table 2: 0, 7, 56, 63 and 0 % of the capsules in layers 1 to 5; a healthy net has none",
        (_START, _BIAS, _FEWER, _TRAINABLE),
        "dead-capsules",
        "A dead capsule is as good as zero for every image: it says nothing, and the votes that it gets are lost.",
    ),
    "static": Kind(
        "static routing",
        "mitterreiter2023, Table 1: 1.7 and 1.8 live targets, dyr 0.25 and 0.30, in its static layers; perfect routing: dyr 1",
        (_UNIFORM, "more routing iterations (num_iters)", "longer votes: " + _START),
        "static-routing",
        "Couplings that hardly differ between images choose nothing; a capsule that chooses needs at least two targets.",
    ),
    "uniform": Kind(
        "couplings that are all alike",
        "mitterreiter2023: nets with uniform couplings classify better than routed ones; a parse tree needs choices",
        ("longer votes: " + _START, "more routing iterations (num_iters)", _UNIFORM),
        "uniform-couplings",
        "All targets get the same share of every capsule, as they do where votes are too short to agree or disagree.",
    ),
    "blind": Kind(
        "x and −x are one",
        "peer2022, Table 1: signs of numbers 49.6 and 49.4 % right without a bias, 99.7 and 99.8 % with one (agreement, EM)",
        (_BIAS,),
        "negation",
        "Without a bias agreement and EM give a capsule and its negative the same activations, whatever was learned.",
    ),
    "moved": Kind(
        "no viewpoint invariance",
        "mitterreiter2023, Figure 4: correlations fall with growing transformations in all layers; invariant capsules keep 1",
        ("training on transformed images (--set data.augment=affnist)", "another backbone, as the paper suggests"),
        "viewpoint",
        "Of the correlation that lies above chance, more than half is lost under a change that a person would not mind.",
    ),
    "starved": Kind(
        "capsules that the loss does not reach",
        "mitterreiter2023, Theorem 2: small capsules and small weights keep each other small; once dead, never active again",
        (_START, _BIAS, _FEWER),
        "starvation",
        "These capsules get less than a hundredth of their layer's mean gradient, so that training hardly moves them.",
    ),
    "fading": Kind(
        "gradients that fade on their way down",
        "peer2022, Table 2: 15.8 and 9.6 % right with 4 and 5 layers without a bias, 99.0 and 98.7 % with one (MNIST)",
        (_START, _BIAS, _FEWER),
        "fading-gradients",
        "A layer that gets less than a hundredth of the gradient that the classes get stays nearly as it was drawn.",
    ),
    "idle": Kind(
        "routing that does not matter",
        "gu2021, mitterreiter2023: uniform couplings do as well as routed ones; a net with a parse tree loses without its own",
        (_UNIFORM, _TRAINABLE),
        "does-routing-matter",
        "The same coupling everywhere, in the place of the net's own and without training again, loses less than one point.",
    ),
    "always": Kind(
        "primary capsules that are always active",
        "mitterreiter2023, Table 2: all 16 primary capsules active in every image, so that they say nothing of what is in it",
        ("another backbone, as the paper suggests",),
        "always-active",
        "A capsule that is active in every image says nothing by being there, which is what a node of a tree should do.",
        is_note=True,
    ),
}
"""Every kind of symptom, by key."""

DEAD, STATIC, UNIFORM, BLIND, MOVED, STARVED, IDLE, ALWAYS, GUESSING = 0.05, 2.0, 0.999, 1e-4, 0.5, 0.1, 0.01, 0.99, 0.05
FADING = 0.01
"""From where on a figure is a symptom; docs/doctor.md says why."""

_SAME = 0.95
FEW = 10
"""Of fewer images nothing is said that needs them to differ."""

# times what guessing gives.
_LEARNED = 1.5
# couplings that are the same for every image by design.
_FIXED = ("uniform", "trainable", "quadratic")


def find_symptoms(record: Mapping[str, Any]) -> list[Symptom]:
    """Return every symptom that a diagnosis' figures show, by layer and then for the whole network.

    One comes before all others: a network that has learned nothing has to train first.

    Args:
        record: of a ``Diagnosis``, or of a file, of this version or of one before.
    """
    record = completed(record)
    if record["non_finite"]:
        broken = round(record["non_finite"] * record["images"])
        says = f"activations are no numbers in {broken:,} of {record['images']:,} images; no other figure means anything"
        return [SYMPTOMS["broken"].found("broken", None, record["non_finite"], says)]
    found: list[Symptom] = []
    layers: Sequence[Mapping[str, Any]] = record["layers"]
    for number, layer in enumerate(layers, 1):
        found += _of_layer(number, layer, routes=number < len(layers), varied=record["images"] >= FEW)
    found = sorted([*found, *_of_network(record)], key=lambda symptom: symptom.key != "guessing")
    # uniform couplings would have to be learned with, where the answers rest on these.
    found = [_with_last(symptom, _UNIFORM) for symptom in found] if rests_on_couplings(record) else found
    # what every layer has already need not be tried, nor how the run began.
    had = [advice for advice, is_there in ((_BIAS, record["bias"]), (_START, _starts_preserving(record))) if is_there]
    return [_without(symptom, had) for symptom in found]


def _starts_preserving(record: Mapping[str, Any]) -> bool:
    """Tell whether a network is known to have begun with a length-preserving start."""
    return bool((record["model"] or {}).get("init") == LENGTH_PRESERVING)


def rests_on_couplings(record: Mapping[str, Any]) -> bool:
    """Tell whether a network is known to answer worse with uniform couplings in the place of its own."""
    swaps = record["routing_matters"]
    return swaps is not None and bool(swaps["own"] - swaps["uniform"] >= IDLE)


def _with_last(symptom: Symptom, advice: str) -> Symptom:
    return replace(symptom, tries=tuple(sorted(symptom.tries, key=lambda each: each == advice)))


def _without(symptom: Symptom, had: Sequence[str]) -> Symptom:
    return replace(symptom, tries=tuple(each for each in symptom.tries if not any(advice in each for advice in had)))


def _of_layer(number: int, layer: Mapping[str, Any], *, routes: bool, varied: bool) -> list[Symptom]:
    found = []

    def add(key: str, figure: float, says: str, *, by_design: bool = False) -> None:
        symptom = SYMPTOMS[key].found(key, number, figure, f"layer {number}: {says}")
        # what a layer has already need not be tried, nor what makes up for a fault that is none.
        tries = (_CHOICES,) if by_design else tuple(t for t in symptom.tries if f"routing='{layer['routing']}'" not in t)
        found.append(replace(symptom, tries=tries, is_note=by_design or symptom.is_note))

    if layer["cdr"] > DEAD:
        add("dead", layer["cdr"], f"{layer['cds']} of {layer['capsules']} capsules {'is' if layer['cds'] == 1 else 'are'} dead")
    starved = layer["starved"]
    if starved is not None and starved > STARVED and starved > layer["cdr"]:
        count = round(starved * layer["capsules"])
        add("starved", starved, f"the loss hardly reaches {count} of {layer['capsules']} capsules")
    if number == 1 and layer["car"] > ALWAYS:
        add("always", layer["car"], f"{layer['car']:.0%} of the primary capsules are active in an image")
    if routes and varied:
        _of_couplings(layer, add)
    if not varied:
        return found
    views = layer["viewpoint"]
    worst = min((row for rows in views.values() for row in rows if row["is_mild"]), key=_kept, default=None)
    if worst is not None and _kept(worst) < MOVED:
        add(
            "moved",
            _kept(worst),
            f"activations do not survive a {worst['says']} "
            f"({max(0.0, _kept(worst)):.0%} of the correlation above chance is left: {worst['correlation']:.3f}, "
            f"{worst['chance']:.3f} by chance)",
        )
    return found


def _of_couplings(layer: Mapping[str, Any], add: Callable[..., None]) -> None:
    dys, live = layer["dys"], layer["live_targets"]
    by_design, among = layer["routing"] in _FIXED, chosen_among(layer)
    if layer["entropy"] is not None and layer["entropy"] > UNIFORM:
        which = "every capsule" if among == "targets" else "every capsule above"
        says = f"{which} is coupled alike to all {layer['targets']} {among}; nothing is routed"
        add("uniform", layer["entropy"], says + (", by design" if by_design else ""), by_design=by_design)
    elif dys is not None and dys < min(STATIC, live / 2):
        # two targets and more are needed for a choice; among two, half of what perfect routing has.
        degree = "static, by design" if by_design else "static" if layer["dyr"] < 0.02 else "nearly static"
        add("static", layer["dyr"], f"routing is {degree} ({dys:.2f} of {live} live {among})", by_design=by_design)


def chosen_among(layer: Mapping[str, Any]) -> str:
    """Return what the couplings above a layer choose among, ``"targets"`` or ``"sources"``; dynamics are counted in them."""
    return "sources" if layer["normalise"] == "sources" else "targets"


def _kept(row: Mapping[str, Any]) -> float:
    """Return how much of what is above chance is kept: 1 for an invariant layer, 0 for one of chance."""
    correlation, chance = row["correlation"], row["chance"]
    if correlation is None or chance is None:
        return 1.0
    # of activations that are the same for all images nothing can be lost.
    return 1.0 if chance > _SAME else (correlation - chance) / (1 - chance)


def _of_network(record: Mapping[str, Any]) -> list[Symptom]:
    found = []
    guesses = _is_guessing(record)
    if guesses:
        says = (
            f"it has learned nothing: {record['accuracy']:.2%} right, "
            f"and always naming the most frequent class gives {record['guess']:.2%}"
        )
        found.append(SYMPTOMS["guessing"].found("guessing", None, record["accuracy"], says))
    found += _fading(record)
    gap = record["negation_share"]
    if gap is not None and gap < BLIND:
        what = "scores" if record["negation_by"] == "scores" else "last activations"
        says = f"this net cannot tell x from −x: its {what} are the same for primary capsules and their negative"
        found.append(SYMPTOMS["blind"].found("blind", None, gap, says))
    swaps = record["routing_matters"]
    layers = record["layers"]
    routed = any(layer["routing"] != "uniform" for layer in layers[:-1])
    # of a net that has learned nothing, nothing can be lost; a few images are guessed right by luck.
    learned = swaps is not None and not guesses and swaps["own"] > _LEARNED / layers[-1]["capsules"]
    if swaps is not None and routed and learned and record["images"] >= FEW and not rests_on_couplings(record):
        says = (
            f"its couplings can be left out: {swaps['own']:.1%} right with them, {swaps['uniform']:.1%} with uniform ones "
            f"({swaps['other']:.1%} with those of other images)"
        )
        found.append(SYMPTOMS["idle"].found("idle", None, swaps["own"] - swaps["uniform"], says))
    return found


def _fading(record: Mapping[str, Any]) -> list[Symptom]:
    """Return what is said where the loss reaches a layer as a whole, of whatever size, hardly at all."""
    reached = [_whole(layer["gradients"]) for layer in record["layers"]]
    known = [value for value in reached if value is not None]
    if len(known) < len(reached) or len(known) < 2:
        return []
    least = min(known)
    if not any(known) and record["accuracy"] is not None and record["accuracy"] < 1:
        # where all is right there need not be one.
        says = f"no gradient reaches any layer, and {1 - record['accuracy']:.1%} of the answers are wrong"
        return [SYMPTOMS["fading"].found("fading", None, 0.0, says)]
    if known[-1] == 0 or least >= FADING * known[-1]:
        return []
    where = f"{least:.1e} in layer {known.index(least) + 1}, {known[-1]:.1e} in layer {len(known)}"
    says = f"the gradient fades on its way down: {where}"
    return [SYMPTOMS["fading"].found("fading", None, least / known[-1], says)]


def _whole(gradients: Sequence[float | None] | None) -> float | None:
    """Return the length of the gradient of a whole layer, of those of its capsules."""
    return None if not gradients or None in gradients else math.hypot(*(each for each in gradients if each is not None))


def _is_guessing(record: Mapping[str, Any]) -> bool:
    """Tell whether little is gained over naming one class for all; not to be told of few images, or of one class."""
    accuracy, guess = record["accuracy"], record["guess"]
    if accuracy is None or record["images"] < FEW or guess == 1:
        return False
    return bool((accuracy - guess) / (1 - guess) < GUESSING)


@dataclass(frozen=True)
class Condition:
    """A bound on a figure of the whole network, such as ``dead>0.2``.

    Attributes:
        key: one of the summary's figures.
        sign: ``<``, ``<=``, ``>`` or ``>=``.
        bound: number.
    """

    key: str
    sign: str
    bound: float
    holds: Callable[[float], bool] = field(compare=False, repr=False)

    def __str__(self) -> str:
        return f"{self.key}{self.sign}{self.bound:g}"


_SIGNS: dict[str, Callable[[float, float], bool]] = {
    "<=": lambda a, b: a <= b,
    ">=": lambda a, b: a >= b,
    "<": lambda a, b: a < b,
    ">": lambda a, b: a > b,
}


def condition(text: str, known: Sequence[str]) -> Condition:
    """Read a condition.

    Example:
        >>> condition("dead > 0.2", ["dead"]).holds(0.5)
        True
    """
    match = re.fullmatch(r"\s*(\w+)\s*(<=|>=|<|>)\s*([-+.\deE]+)\s*", text)
    try:
        bound = float(match[3]) if match else math.nan
    except ValueError:
        bound = math.nan
    if match is None or not math.isfinite(bound):
        raise ValueError(f"fail-on={text!r} is no condition; expected one such as 'dead>0.2'")
    if match[1] not in known:
        raise ValueError(unknown_name("fail-on", match[1], known))
    compare = _SIGNS[match[2]]
    return Condition(match[1], match[2], bound, lambda value: compare(value, bound))
