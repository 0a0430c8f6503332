"""What chen2019 says of attacks, decided by what was measured on the nets; and what its printed numbers may be."""

from __future__ import annotations

from capsella.papers.chen2019.attacking import FAULTS, ITERATIONS
from capsella.papers.chen2019.deciding import apart, beyond, listed, mean_of, mean_seen, negated, seen
from capsella.papers.chen2019.nets import MODELS, WITHOUT, cell, row
from capsella.papers.deciding import all_of, span_of
from capsella.papers.verdicts import Claim, Evidence

# of the accuracy: what must be left for a net to stand, of what an attack that is "sharp" takes.
_SHARP = 0.5
# of accuracies under attack: what is as vulnerable.
_AS = 0.05
# of figures under attack of single runs: what two of one net may differ by, in whole runs and in short ones.
_LUCK, _SHORT_LUCK = 0.02, 0.05
# of the answers: from where on a net says one thing; of accuracies: how near the share of a class.
_ONE, _NEAR = 0.99, 0.005

NETS = {name: cell("mnist", name) for name in ("cnn", f"fc-gcapsnet{WITHOUT}", f"conv-gcapsnet{WITHOUT}")}
"""The three that the paper attacks, in the sizes of its Table 3."""
ROUTED = {"capsnet": cell("mnist", "capsnet"), "em": row("controls", "mnist-em")}
"""Nets that find couplings for every image."""
NAMES = {**{name: MODELS[name] for name in NETS}, "capsnet": MODELS["capsnet"], "em": "EM CapsNet"}

BLACK, WHITE = "chen2019.blackbox", "chen2019.whitebox"
_Answer = tuple[bool | None, str]


def black(evidence: Evidence, row: str, part: str = "main", figure: str = "accuracy") -> float:
    """Return a mean figure under the black-box attack."""
    return mean_seen(evidence, row, BLACK, part, figure)


def white(evidence: Evidence, row: str, part: str = "universal-main") -> float:
    """Return the mean accuracy under a generator's perturbation, after all iterations."""
    return mean_seen(evidence, row, WHITE, part, "accuracies", -1)


_Part = tuple[str | int, ...]
_BLACK_ACCURACY: _Part = (BLACK, "main", "accuracy")


def _white_accuracy(part: str = "universal-main") -> _Part:
    return (WHITE, part, "accuracies", -1)


def _luck(evidence: Evidence) -> float:
    return _SHORT_LUCK if evidence.is_quick else _LUCK


def _over(evidence: Evidence, one: str, other: str, part: _Part, bound: float = 0.0) -> bool | None:
    """Return whether a figure of a row is higher than another row's, by more than a bound."""
    values, others = (seen(evidence, each, *part) for each in (one, other))
    return beyond(apart(others, values, _luck(evidence)), bound)


def _own_over(evidence: Evidence, row: str, part: _Part, other: _Part, bound: float = 0.0, share: float = 1.0) -> bool | None:
    """Return whether a share of one figure is higher than another of the same runs, by more than a bound."""
    pairs = zip(seen(evidence, row, *part), seen(evidence, row, *other), strict=True)
    return beyond(mean_of([share * first - second for first, second in pairs], _luck(evidence)), bound)


def _of_all(figures: dict[str, float]) -> str:
    return listed({NAMES[name]: value for name, value in figures.items()})


def _black_box(evidence: Evidence) -> _Answer:
    after = {name: black(evidence, row) for name, row in NETS.items()}
    clean: _Part = (BLACK, "main", "clean")
    taken = [_own_over(evidence, row, clean, _BLACK_ACCURACY, share=_SHARP) for row in NETS.values()]
    lenet = [value for row in NETS.values() for value in seen(evidence, row, BLACK, "substitute", "attacked")]
    says = f"accuracy under FGSM from LeNet, 8 of 255: {_of_all(after)}; LeNet's own {span_of(lenet)}"
    return all_of(taken), says


def _as_the_cnn(evidence: Evidence, part: _Part) -> bool | None:
    return all_of([negated(_over(evidence, row, NETS["cnn"], part, _AS)) for name, row in NETS.items() if name != "cnn"])


def _black_alike(evidence: Evidence) -> _Answer:
    after = {name: black(evidence, row) for name, row in NETS.items()}
    return _as_the_cnn(evidence, _BLACK_ACCURACY), f"accuracy under FGSM from LeNet, 8 of 255: {_of_all(after)}"


def _constant(evidence: Evidence) -> _Answer:
    parts, explains = [], []
    for fault in FAULTS:
        answers, words = [], []
        for name, each in NETS.items():
            share, accuracy, of_class = (
                black(evidence, each, fault, figure) for figure in ("answer_share", "accuracy", "class_share")
            )
            answers.append(share >= _ONE and abs(accuracy - of_class) <= _NEAR)
            digits = sorted({int(value) for value in seen(evidence, each, BLACK, fault, "answer")})
            words.append(f"{NAMES[name]} says {' or '.join(map(str, digits))} to {share:.1%}, right on {accuracy:.2%}")
        explains.append(all(answers))
        parts.append(f"{fault}: {', '.join(words)}")
    return any(explains), "; ".join(parts)


def _white_box(evidence: Evidence, part: str) -> _Answer:
    after = {name: white(evidence, row, part) for name, row in NETS.items()}
    before = {name: mean_seen(evidence, row, WHITE, part, "accuracies", 0) for name, row in NETS.items()}
    clean: _Part = (WHITE, "own", "clean")
    eps = mean_seen(evidence, NETS["cnn"], WHITE, part, "eps")
    says = (
        f"accuracy under one perturbation of {eps:.3g} after {ITERATIONS} iterations: {_of_all(after)}; "
        f"before the first {_of_all(before)}"
    )
    taken = [_own_over(evidence, row, clean, _white_accuracy(part), share=_SHARP) for row in NETS.values()]
    return all_of(taken), says


def _white_alike(evidence: Evidence) -> _Answer:
    parts, answers = [], []
    for part in ("universal-main", "universal-0.1", "universal-0.3"):
        after = {name: white(evidence, row, part) for name, row in NETS.items()}
        answers.append(_as_the_cnn(evidence, _white_accuracy(part)))
        parts.append(f"{mean_seen(evidence, NETS['cnn'], WHITE, part, 'eps'):.3g}: {_of_all(after)}")
    return all_of(answers), f"accuracy under one perturbation of {'; of '.join(parts)}"


def _fgsm_is_weak(evidence: Evidence) -> _Answer:
    one_step = {name: mean_seen(evidence, row, WHITE, "own", "accuracy") for name, row in NETS.items()}
    universal = {name: white(evidence, row) for name, row in NETS.items()}
    says = f"accuracy at 8 of 255: FGSM {_of_all(one_step)}; the generator {_of_all(universal)}"
    weaker = [_own_over(evidence, row, (WHITE, "own", "accuracy"), _white_accuracy()) for row in NETS.values()]
    return all_of(weaker), says


def _zeros(evidence: Evidence) -> _Answer:
    pixels, own, images = (
        {name: mean_seen(evidence, row, WHITE, part, figure) for name, row in {**NETS, **ROUTED}.items()}
        for part, figure in (("difference", "zero_pixels"), ("own", "zero_pixels"), ("own", "zero_images"))
    )
    says = (
        f"values of the gradient that are zero, of the difference of scores {_of_all(pixels)}; of the net's own loss "
        f"{_of_all(own)}, images without any {_of_all(images)}"
    )
    counted: _Part = (WHITE, "difference", "zero_pixels")
    others = [row for name, row in {**NETS, **ROUTED}.items() if name != "cnn"]
    return all_of([_over(evidence, NETS["cnn"], row, counted) for row in others]), says


def _blind(evidence: Evidence) -> _Answer:
    rows = {name: row for name, row in NETS.items() if name != "cnn"}
    own, seeing = (
        {name: mean_seen(evidence, row, WHITE, part, "accuracy") for name, row in rows.items()}
        for part in ("own", "difference")
    )
    flat = {name: mean_seen(evidence, row, WHITE, "own", "zero_images") for name, row in rows.items()}
    says = (
        f"accuracy under FGSM on the margin loss {_of_all(own)}, on the difference of scores {_of_all(seeing)}; images without "
        f"a gradient of the margin loss {_of_all(flat)}"
    )
    parts: tuple[_Part, _Part] = ((WHITE, "own", "accuracy"), (WHITE, "difference", "accuracy"))
    return all_of([_own_over(evidence, row, *parts, _AS) for row in rows.values()]), says


def _routing(evidence: Evidence) -> _Answer:
    fixed = {name: row for name, row in NETS.items() if name != "cnn"}
    parts, answers = [], []
    for says, part in (("FGSM from LeNet", _BLACK_ACCURACY), ("the generator", _white_accuracy())):
        answers += [_over(evidence, one, other, part, _AS) for one in ROUTED.values() for other in fixed.values()]
        figures = {name: mean_seen(evidence, row, *part) for name, row in {**ROUTED, **fixed}.items()}
        parts.append(f"{says} {_of_all(figures)}")
    return all_of(answers), f"accuracy at 8 of 255 under {'; under '.join(parts)}"


_THREE, _FIVE = tuple(NETS.values()), (*NETS.values(), *ROUTED.values())

ROBUSTNESS = (
    Claim(
        "chen2019/black-box",
        f"FGSM from LeNet with 8 of 255 takes most of the accuracy of all three nets (here: over {_SHARP:.0%} of it).",
        "section 4.3",
        _THREE,
        _black_box,
    ),
    Claim(
        "chen2019/black-alike",
        f"G-CapsNets are as vulnerable to the black box as the CNN (here: at most {100 * _AS:.0f} points better).",
        "section 4.3",
        _THREE,
        _black_alike,
    ),
    Claim(
        "chen2019/white-box",
        f"A perturbation for all images, learned in {ITERATIONS} iterations, takes most of the accuracy, at 8 of 255.",
        "section 4.4, supplement's Figure 1",
        _THREE,
        lambda evidence: _white_box(evidence, "universal-main"),
    ),
    Claim(
        "chen2019/white-box-0.3",
        f"The same at 0.3, with {ITERATIONS} iterations: the paper does not say its bound.",
        "section 4.4, supplement's Figure 1",
        _THREE,
        lambda evidence: _white_box(evidence, "universal-0.3"),
    ),
    Claim(
        "chen2019/white-alike",
        f"G-CapsNets are as vulnerable to it as the CNN (here: at most {100 * _AS:.0f} points better, at any bound).",
        "section 4.4",
        _THREE,
        _white_alike,
    ),
    Claim(
        "chen2019/fgsm-weak",
        "White-box FGSM is the weaker attack: at 8 of 255 it takes less than the generator.",
        "section 4.4",
        _THREE,
        _fgsm_is_weak,
    ),
    Claim(
        "chen2019/zeros",
        "Fewer values of the gradient by the image are zero in capsule nets than in the CNN (here: of the difference of "
        "scores, because the margin loss of an image that keeps its margins has no gradient at all).",
        "section 4.4",
        _FIVE,
        _zeros,
    ),
    Claim(
        "chen2019/routing",
        "Robustness comes from routing: nets that route every image, by agreement or EM, stand up to both attacks better "
        f"(here: by {100 * _AS:.0f} points).",
        "section 1",
        _FIVE,
        _routing,
    ),
    Claim(
        "chen2019/constant",
        "The printed accuracies are those of one answer to everything, which a fault in the scale of the images gives: ±8 on "
        "images from 0 to 1 (unscaled), the same brought back to 0 to 1 (clipped), grey levels up to 255 (grey), or a second "
        "division by 255 (twice).",
        "ours",
        _THREE,
        _constant,
    ),
    Claim(
        "chen2019/blind",
        "FGSM on the margin loss is blind: on the difference of scores it takes more "
        f"(here: {100 * _AS:.0f} points, of both G-CapsNets).",
        "ours",
        _THREE[1:],
        _blind,
    ),
)
