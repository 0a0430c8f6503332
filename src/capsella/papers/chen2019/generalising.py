"""What chen2019 says of images that AC-GAN draws (section 4.2), decided by the nets of one seed on the same images."""

from __future__ import annotations

from capsella.papers.chen2019.deciding import claim, listed, paired
from capsella.papers.chen2019.nets import MODELS
from capsella.papers.chen2019.robustness import NETS
from capsella.papers.verdicts import Evidence
from capsella.papers.yang2021.deciding import all_of, span_of

# of the error on generated images: what "no significant difference" is.
_CONVERGED = 0.005

_DRAWN = tuple(NETS.values())


def _generated(evidence: Evidence) -> tuple[bool | None, str]:
    found = {name: paired(evidence, each, _DRAWN[0], "generated_early") for name, each in list(NETS.items())[1:]}
    means = listed({MODELS[name]: evidence.mean(each, "generated_early") for name, each in NETS.items()})
    says = ", ".join(f"{MODELS[name]} {difference}" for name, difference in found.items())
    answer = all_of([each.is_lower for each in found.values()])
    return answer, f"mean error on images of epochs 1 to 3: {means}; points beside the CNN on the same images: {says}"


def _converged(evidence: Evidence) -> tuple[bool | None, str]:
    parts, apart = [], []
    for epoch in (4, 5):
        errors = [evidence.mean(each, f"generated{epoch}") for each in _DRAWN]
        apart.append(max(errors) - min(errors))
        parts.append(f"epoch {epoch} {span_of(errors, '.2%')}")
    return max(apart) <= _CONVERGED, f"errors on generated images: {', '.join(parts)}"


def _same_images(evidence: Evidence) -> tuple[bool | None, str]:
    found, apart = [], []
    for name, each in NETS.items():
        own = evidence.mean(each, "error")
        generated = [evidence.mean(each, f"generated{epoch}") for epoch in (4, 5)]
        apart += [abs(error - own) for error in generated]
        found.append(f"{MODELS[name]} {span_of(generated, '.2%')} ({own:.2%} on test images)")
    return max(apart) <= _CONVERGED, f"errors on images of epochs 4 and 5: {', '.join(found)}"


GENERALISING = (
    claim(
        "generated",
        "On images that AC-GAN draws early on both G-CapsNets have lower errors than the CNN.",
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
        f"By then they are as MNIST's images: errors are as on the test images (here: within {100 * _CONVERGED:.1f} points).",
        "section 4.2",
        _DRAWN,
        _same_images,
        is_long=True,
    ),
)
