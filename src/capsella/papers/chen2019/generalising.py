"""What chen2019 says of images that AC-GAN draws (section 4.2), decided by the nets of one seed on the same images."""

from __future__ import annotations

import itertools
import statistics

from capsella.papers.chen2019.deciding import any_of, claim, listed, mean_of, paired, within
from capsella.papers.chen2019.nets import MODELS
from capsella.papers.chen2019.robustness import NETS
from capsella.papers.deciding import all_of, span_of
from capsella.papers.verdicts import Evidence

# of the error on generated images: what "no significant difference" is, and what single runs may differ by, 12 of 4,000.
_CONVERGED, _ONE_LATE = 0.005, 0.003
# after the first epoch errors are the largest of all, and the paper's own FC net has more than the CNN; after the fourth there
# are hardly any.
_FIRST, _EARLY, _LATE = 1, (2, 3), (4, 5)

_DRAWN = tuple(NETS.values())


def _generated(evidence: Evidence) -> tuple[bool | None, str]:
    answers, words = [], []
    for name, each in list(NETS.items())[1:]:
        found = {epoch: paired(evidence, each, _DRAWN[0], f"generated{epoch}") for epoch in (_FIRST, *_EARLY)}
        answers.append(any_of([found[epoch].is_lower for epoch in _EARLY]))
        words.append(f"{MODELS[name]} {', '.join(map(str, found.values()))}")
    means = listed({MODELS[name]: evidence.mean(each, f"generated{_FIRST}") for name, each in NETS.items()})
    return all_of(answers), (
        f"points beside the CNN on the same images, after epochs 1 to 3: {'; '.join(words)}; after the first, which does not "
        f"decide, errors are {means}"
    )


def _converged(evidence: Evidence) -> tuple[bool | None, str]:
    parts, answers = [], []
    for epoch in _LATE:
        reading = f"generated{epoch}"
        found = [paired(evidence, one, two, reading, _ONE_LATE) for one, two in itertools.combinations(_DRAWN, 2)]
        answers += [within(each, _CONVERGED) for each in found]
        errors = [evidence.mean(each, reading) for each in _DRAWN]
        parts.append(f"epoch {epoch} {span_of(errors, '.2%')}, apart by {', '.join(map(str, found))} points")
    return all_of(answers), f"errors on generated images: {'; '.join(parts)}"


def _same_images(evidence: Evidence) -> tuple[bool | None, str]:
    words, answers = [], []
    for name, each in NETS.items():
        own = evidence.values(each, "error")
        generated = {epoch: evidence.values(each, f"generated{epoch}") for epoch in _LATE}
        for errors in generated.values():
            gains = [mine - drawn for mine, drawn in zip(own, errors, strict=True)]
            answers.append(within(mean_of(gains, _ONE_LATE), _CONVERGED))
        means = span_of(list(map(statistics.fmean, generated.values())), ".2%")
        words.append(f"{MODELS[name]} {means} ({statistics.fmean(own):.2%} on test images)")
    return all_of(answers), f"errors on images of epochs 4 and 5: {', '.join(words)}"


GENERALISING = (
    claim(
        "generated",
        "On images that AC-GAN draws early on both G-CapsNets have lower errors than the CNN (here: after its second or third "
        "epoch, and higher ones after neither).",
        "section 4.2, Table 3",
        _DRAWN,
        _generated,
        is_long=True,
    ),
    claim(
        "converged",
        f"After more than three epochs the nets do not differ on AC-GAN's images (here: by {100 * _CONVERGED:.1f} points).",
        "section 4.2, Table 3",
        _DRAWN,
        _converged,
        is_long=True,
    ),
    claim(
        "as-test-images",
        f"By then they are as MNIST's images: errors are as on the test images (here: within {100 * _CONVERGED:.1f} points; "
        "those printed are next to none, and lie further below).",
        "section 4.2",
        _DRAWN,
        _same_images,
        is_long=True,
    ),
)
