"""Does a class capsule give each factor of variation a value of its own (gu2021, section 3.3, Table 5)?

The vectors that ``compactness`` looks at, made with a network: images change in small steps along one factor at a time, and the
capsule of each image's true class is followed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from einops import rearrange
from torch import Tensor, nn

from capsella.analysis.compactness import compactness
from capsella.analysis.moments import Moments
from capsella.analysis.viewpoint import seen_from
from capsella.errors import check_choice
from capsella.models import Model, as_prediction, evaluating
from capsella.shapes import dims

_STEPS = range(-5, 6)
FACTORS: dict[str, tuple[float, ...]] = {
    "rotation": tuple(2.0 * k for k in _STEPS),
    "shift_x": tuple(float(k) for k in _STEPS),
    "shift_y": tuple(float(k) for k in _STEPS),
    "scale": tuple(round(1 + 0.05 * k, 2) for k in _STEPS),
    "shear_x": tuple(2.0 * k for k in _STEPS),
    "shear_y": tuple(2.0 * k for k in _STEPS),
}
"""gu2021's factors: degrees, pixels, factor, degrees. It prints no ranges; these are those of mitterreiter2023's authors, who
computed the score again: ±10° in steps of 2°, ±5 pixels, 0.75 to 1.25 in steps of 0.05, ±10° of shear."""

# which view a factor is, and whether rows and columns change places for it.
_VIEWS = {
    "rotation": ("rotation", False),
    "shift_x": ("translation", False),
    "shift_y": ("translation", True),
    "scale": ("scale", False),
    "shear_x": ("shear", False),
    "shear_y": ("shear", True),
}


@dataclass(frozen=True)
class FactorScore:
    """How compactly one factor is represented.

    Attributes:
        mean: of the scores, over images.
        std: their population standard deviation.
        images: how many.
        values: D, of the vectors that were looked at; forward a score is log D at most.
    """

    mean: float
    std: float
    images: int
    values: int


class FactorCompactness:
    """Streams ``factor_compactness``: ``update(images, targets)`` with each batch; two numbers are kept of each factor.

    Args:
        model: as there.
        factors: as there.
        direction: as there.
        reduction: as there.
        log_base: as there.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        factors: Mapping[str, Sequence[float]] = FACTORS,
        direction: str = "forward",
        reduction: str = "sum",
        log_base: float = math.e,
    ) -> None:
        # options are looked at now, not with the first batch.
        compactness(torch.zeros(1, 1), direction=direction, reduction=reduction, log_base=log_base)
        _check_factors(factors)
        self._model, self._factors = model, dict(factors)
        self._direction, self._reduction, self._log_base = direction, reduction, log_base
        self._scores = {factor: Moments() for factor in factors}
        self._values = 0

    def update(self, images: Tensor, targets: Tensor) -> None:
        """Add a batch: images [B, C, H, W] and their classes [B]."""
        for factor, vectors in _vectors(self._model, images, targets, self._factors):
            scores = compactness(vectors, direction=self._direction, reduction=self._reduction, log_base=self._log_base)
            self._scores[factor].update(scores.double())
            self._values = vectors.shape[-1]

    def compute(self) -> dict[str, FactorScore]:
        """Return what ``factor_compactness`` gives for all batches at once."""
        return {
            factor: FactorScore(float(scores.mean), float(scores.std), scores.count, self._values)
            for factor, scores in self._scores.items()
        }


def factor_compactness(
    model: nn.Module,
    images: Tensor,
    targets: Tensor,
    *,
    factors: Mapping[str, Sequence[float]] = FACTORS,
    direction: str = "forward",
    reduction: str = "sum",
    log_base: float = math.e,
) -> dict[str, FactorScore]:
    """Return gu2021's compactness score of a network for each factor: the mean over images of ``compactness``.

    For each image and factor the capsule of the true class, v_1 … v_T along the T steps; with Var_d the variance of its value d
    and p = Var / Σ Var::

        score = mean_images KL(p ‖ uniform)

    A network whose ``Prediction`` has one vector for all classes (ConvNet-R) is asked for that one.

    Args:
        model: a ``Model`` with class capsules, or any module that returns a ``Prediction`` with them.
        images: [B, C, H, W], as it takes them.
        targets: classes [B].
        factors: amounts of each step, as ``FACTORS``; some of them, or other ranges.
        direction: as for ``compactness``.
        reduction: as for ``compactness``.
        log_base: as for ``compactness``.

    Example:
        >>> import capsella
        >>> model = capsella.create_model("capsnet_small")
        >>> images, targets = torch.rand(2, 1, 28, 28), torch.tensor([3, 7])
        >>> found = factor_compactness(model, images, targets, factors={"rotation": (-10, 0, 10)})
        >>> 0 < found["rotation"].mean < math.log(found["rotation"].values)
        True
    """
    found = FactorCompactness(model, factors=factors, direction=direction, reduction=reduction, log_base=log_base)
    found.update(images, targets)
    return found.compute()


def factor_vectors(
    model: nn.Module, images: Tensor, targets: Tensor, *, factors: Mapping[str, Sequence[float]] = FACTORS
) -> dict[str, Tensor]:
    """Return the vectors [B, T, D] of each image's class capsule along the steps of each factor, for any convention's score.

    Args:
        model: as for ``factor_compactness``.
        images: [B, C, H, W].
        targets: classes [B].
        factors: amounts of each step.
    """
    return dict(_vectors(model, images, targets, factors))


def _vectors(
    model: nn.Module, images: Tensor, targets: Tensor, factors: Mapping[str, Sequence[float]]
) -> Iterator[tuple[str, Tensor]]:
    """Yield the vectors of one factor after the other, so that no more than those of one are held."""
    B, *_ = dims(images, "B C H W", name="images")
    if targets.ndim != 1 or len(targets) != B:
        raise ValueError(f"targets has shape {list(targets.shape)}; expected classes [B={B}], one for each image")
    _check_factors(factors)
    for factor, amounts in factors.items():
        with evaluating(model):
            steps = [_true_capsules(model, seen_along(images, factor, amount), targets) for amount in amounts]
        yield factor, torch.stack(steps, dim=1)


def _check_factors(factors: Mapping[str, Sequence[float]]) -> None:
    for factor, amounts in factors.items():
        check_choice("factor", factor, tuple(_VIEWS))
        if not len(amounts):
            raise ValueError(f"factors[{factor!r}] has no step; expected amounts such as {FACTORS[factor][:3]}")


def _true_capsules(model: nn.Module, images: Tensor, targets: Tensor) -> Tensor:
    """Return the capsule [B, D] of each image's class."""
    # without the decoder, where the model says how.
    capsules = model.classify(images)[1] if isinstance(model, Model) else as_prediction(model(images)).capsules
    if capsules is None:
        raise ValueError(f"model has no class capsules ({type(model).__name__}); expected a Prediction with capsules [B, J, D]")
    if capsules.shape[1] == 1:
        return capsules[:, 0]
    if int(targets.max()) >= capsules.shape[1]:
        raise ValueError(f"targets has class {int(targets.max())}; the model has {capsules.shape[1]} class capsules")
    return capsules[torch.arange(len(images), device=images.device), targets]


def seen_along(images: Tensor, factor: str, amount: float) -> Tensor:
    """Return images [B, C, H, W] changed along one factor, about their middle, bilinear, with zeros from outside.

    Args:
        images: floating point.
        factor: one of ``FACTORS``: ``seen_from``'s views, ``shift_y`` and ``shear_y`` being those along columns.
        amount: degrees, pixels to the right or down, or a factor.

    Example:
        >>> seen_along(torch.tensor([[[[1.0, 2.0], [3.0, 4.0]]]]), "shift_y", 1).tolist()
        [[[[0.0, 0.0], [1.0, 2.0]]]]
    """
    check_choice("factor", factor, tuple(_VIEWS))
    view, is_swapped = _VIEWS[factor]
    if not is_swapped:
        return seen_from(images, view, amount)
    dims(images, "B C H W", name="images")
    return rearrange(seen_from(rearrange(images, "b c h w -> b c w h"), view, amount), "b c w h -> b c h w")
