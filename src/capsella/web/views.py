"""What is asked of one run, several questions in one pass of its network, and what is answered."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import torch
from einops import rearrange
from torch import Tensor

from capsella.analysis.activity import ACTIVE
from capsella.analysis.receptive import sensitivity
from capsella.train.evaluation import certainties
from capsella.train.objectives import scores_are
from capsella.web import schemas as S
from capsella.web.look import Look, draw, look, negating
from capsella.web.net import Net
from capsella.web.pictures import moved_by, packed
from capsella.web.trouble import Trouble, check_below

AMOUNTS = 25
"""Of a change that is followed, an odd number: one of them is none."""

MOST_TILES, MOST_DRAWN_VALUES = 1024, 1 << 23
"""Drawings of a sheet, and values of all of them together."""

_DIGITS = 4
_TURN, _LEAN, _GROWTH, _SHARE = 180.0, 60.0, 2.0, 3

Q = TypeVar("Q")
A = TypeVar("A")


class Views:
    """Answers questions about one run; each method takes several at once, and an answer may be an exception.

    Args:
        net: the run.
    """

    def __init__(self, net: Net) -> None:
        self.net = net

    def see(self, questions: Sequence[S.SeeRequest]) -> list[S.Sight | Exception]:
        """Say what the network makes of scenes, in one pass."""
        begun = time.perf_counter()
        scenes = _each(lambda asked: self.net.levels(asked.scene), questions)
        looks = self._looks(scenes, [asked.negate for asked in questions])

        def sight(k: int) -> S.Sight:
            asked = questions[k]
            return self._sight(_sound(scenes[k]), _sound(looks[k]), asked.scene, draws=asked.draw, most=asked.most, begun=begun)

        return _each(sight, range(len(questions)))

    def moved(self, questions: Sequence[S.MoveRequest]) -> list[S.Moved | Exception]:
        """Show scenes as they are and moved, with the same capsules in both trees."""
        begun = time.perf_counter()
        # one after the other: as it is, and moved.
        pairs = [scene for asked in questions for scene in self._both(asked.scene)]
        looks = self._looks(pairs, [False] * len(pairs))

        def both(k: int) -> S.Moved:
            asked, (before, after) = questions[k], (_sound(looks[2 * k]), _sound(looks[2 * k + 1]))
            shown = [
                _strongest(torch.maximum(a, b), asked.most) for a, b in zip(before.activations, after.activations, strict=True)
            ]
            sights = [
                self._sight(_sound(pairs[2 * k + side]), one, asked.scene, draws=1, shown=shown, begun=begun)
                for side, one in enumerate((before, after))
            ]
            kinships = [
                S.Kinship(correlation=_number(_cosine(a, b)), chance=_number(self.net.survey.chance(layer, a)))
                for layer, (a, b) in enumerate(zip(before.activations, after.activations, strict=True))
            ]
            return S.Moved(before=sights[0], after=sights[1], layers=kinships)

        return _each(both, range(len(questions)))

    def follow(self, questions: Sequence[S.FollowRequest]) -> list[S.Followed | Exception]:
        """Correlate activations with those of the unmoved image over growing changes."""
        return _each(self._followed, questions)

    def capsule(self, questions: Sequence[S.CapsuleRequest]) -> list[S.CapsuleAnswer | Exception]:
        """Say everything about capsules."""
        return _each(self._capsule, questions)

    def reconstruct(self, questions: Sequence[S.ReconstructRequest]) -> list[S.Drawn | Exception]:
        """Draw classes from capsules that somebody has turned."""

        def drawn(asked: S.ReconstructRequest) -> S.Drawn:
            capsules = self._given(asked)
            (levels,) = draw(self.net.model, capsules, [asked.drawn_class])
            return S.Drawn(drawn_class=asked.drawn_class, image=packed(_levels(levels)))

        return _each(drawn, questions)

    def sheet(self, questions: Sequence[S.SheetRequest]) -> list[S.Sheet | Exception]:
        """Draw what each value of a class capsule does."""
        return _each(self._sheet, questions)

    # --- how ----------------------------------------------------------------------------------------------------------

    def _looks(self, scenes: Sequence[Tensor | Exception], negate: Sequence[bool]) -> list[Look | Exception]:
        """Look at all scenes that there are in one pass; in the place of the others stays what was wrong with them."""
        sound = [k for k, scene in enumerate(scenes) if isinstance(scene, Tensor)]
        found: list[Look | Exception] = [each if isinstance(each, Exception) else Trouble("nothing to see") for each in scenes]
        if sound:
            levels = [_sound(scenes[k]) for k in sound]
            chosen = [negate[k] and self.net.negates for k in sound]
            for k, one in zip(sound, self._pass(levels, chosen), strict=True):
                found[k] = one
        return found

    def _pass(self, levels: Sequence[Tensor], negate: Sequence[bool] = ()) -> list[Look]:
        return look(self.net.model, self.net.normalised(levels), has_tree=bool(self.net.layers), negate=negate)

    def _both(self, scene: S.Scene) -> list[Tensor | Exception]:
        """Return a scene as it is and moved."""
        return [_try(partial(self.net.still, scene)), _try(partial(self.net.levels, scene))]

    def _certainties(self, scores: Tensor) -> Tensor:
        return certainties(scores, scores_are(self.net.model))

    def _sight(
        self,
        levels: Tensor,
        one: Look,
        scene: S.Scene,
        *,
        draws: int,
        begun: float,
        most: int = 0,
        shown: list[Tensor] | None = None,
    ) -> S.Sight:
        if shown is None:
            shown = [_strongest(layer, most) for layer in one.activations]
        answer, certainties = int(one.scores.argmax()), self._certainties(one.scores[None])[0]
        label, label_name = self.net.truth(scene)
        return S.Sight(
            image=packed(levels),
            label=label,
            label_name=label_name,
            scores=_numbers(one.scores),
            certainties=_numbers(certainties),
            confidence=_number(float(certainties[answer])),
            answer=answer,
            layers=[self._layer(k, layer, shown[k]) for k, layer in enumerate(one.activations)],
            couplings=[
                [_numbers(step[shown[gap]][:, shown[gap + 1]]) for step in trace] for gap, trace in enumerate(one.couplings)
            ],
            capsules=None if one.capsules is None or one.capsules.numel() > S.MOST_VALUES else _numbers(one.capsules),
            reconstructions=self._drawings(one, draws),
            milliseconds=round((time.perf_counter() - begun) * 1000, 2),
        )

    def _layer(self, number: int, activations: Tensor, shown: Tensor) -> S.Layer:
        dead = self.net.survey.dead(number)
        return S.Layer(
            capsules=len(activations),
            shown=shown.tolist(),
            activations=_numbers(activations[shown]),
            dead=[None] * len(shown) if dead is None else dead[shown.cpu()].tolist(),
            active=round(float((activations >= ACTIVE).double().mean()), _DIGITS),
        )

    def _drawings(self, one: Look, count: int) -> list[S.Drawn]:
        if not count or one.drawing is None or one.capsules is None:
            return []
        # the network has drawn its answer itself; without one part for each class there is nothing else to draw.
        if count == 1 or not self.net.has_knobs:
            return [S.Drawn(drawn_class=int(one.scores.argmax()), image=packed(_levels(one.drawing)))]
        classes = one.scores.argsort(descending=True)[:count].tolist()
        images = draw(self.net.model, one.capsules, classes)
        return [
            S.Drawn(drawn_class=number, image=packed(_levels(image))) for number, image in zip(classes, images, strict=True)
        ]

    def _followed(self, asked: S.FollowRequest) -> S.Followed:
        still, move = self.net.still(asked.scene), asked.scene.move or S.Move()
        amounts = _amounts(asked.view, self.net.shape)
        levels = moved_by(still, [move.model_copy(update={asked.view: amount}) for amount in amounts])
        base, *looks = self._pass([still, *levels])
        answer = int(base.scores.argmax())
        return S.Followed(
            view=asked.view,
            amounts=amounts,
            layers=[[_number(_cosine(layer, one.activations[k])) for one in looks] for k, layer in enumerate(base.activations)],
            chance=[_number(self.net.survey.chance(k, layer)) for k, layer in enumerate(base.activations)],
            scores=_numbers(self._certainties(torch.stack([one.scores for one in looks]))[:, answer]),
            answers=[int(one.scores.argmax()) for one in looks],
        )

    def _capsule(self, asked: S.CapsuleRequest) -> S.CapsuleAnswer:
        net = self.net
        if not net.layers:
            raise Trouble(f"run {net.key!r} has no tree: {net.no_tree}")
        check_below("layer", asked.layer, len(net.layers))
        check_below("capsule", asked.capsule, net.layers[asked.layer].capsules)
        levels = net.levels(asked.scene)
        images, negate = net.normalised([levels]), [asked.negate]
        (one,) = look(net.model, images, negate=negate)
        with negating(net.model, negate) if asked.negate else contextlib.nullcontext():
            minds = sensitivity(net.model, images[0], asked.layer, asked.capsule)
        peak = float(minds.max())
        shown = minds.nan_to_num(0, 0, 0) * (255 / peak) if math.isfinite(peak) and peak > 0 else torch.zeros_like(minds)
        box = net.fields.box(asked.capsule if asked.layer == 0 else None)
        return S.CapsuleAnswer(
            layer=asked.layer,
            capsule=asked.capsule,
            activation=_number(float(one.activations[asked.layer][asked.capsule])),
            pose=_numbers(one.poses[asked.layer][asked.capsule]),
            box=None if box is None else S.Box(**vars(box)),
            sensitivity=packed(shown[None]),
            peak=float(f"{peak:.{_DIGITS}g}") if math.isfinite(peak) else None,
            history=net.survey.history(asked.layer, asked.capsule),
            surveyed=net.survey.state(),
        )

    def _given(self, asked: S.ReconstructRequest) -> Tensor:
        """Return class capsules that were sent [J, D]."""
        net = self.net
        if not net.has_knobs or net.capsules_are is None:
            raise Trouble(f"run {net.key!r} draws nothing from class capsules; expected one that the page has knobs for")
        J, D = net.capsules_are
        check_below("class", asked.drawn_class, J)
        sizes = {len(row) for row in asked.capsules}
        if len(asked.capsules) != J or sizes != {D}:
            found = f"{len(asked.capsules)} rows of {' or '.join(map(str, sorted(sizes))) or 'no'} values"
            raise Trouble(f"capsules has {found}; expected {J} rows of {D}")
        place = next(net.model.parameters())
        return torch.tensor(asked.capsules, dtype=place.dtype, device=place.device)

    def _sheet(self, asked: S.SheetRequest) -> S.Sheet:
        capsules, count = self._given(asked), len(asked.offsets)
        D = capsules.shape[1]
        most = min(MOST_TILES, MOST_DRAWN_VALUES // math.prod(self.net.shape)) // D
        if count > most:
            raise Trouble(f"offsets has {count} values for each of {D}; expected at most {most}")
        turned = capsules.repeat(D, count, 1, 1)  # [D, offset, J, D]
        steps = torch.tensor(asked.offsets, dtype=capsules.dtype, device=capsules.device)
        for dim in range(D):
            turned[dim, :, asked.drawn_class, dim] += steps
        classes = torch.full((D * count,), asked.drawn_class, device=capsules.device)
        with torch.no_grad():
            drawn = self.net.model.reconstruct(rearrange(turned, "d n j v -> (d n) j v"), classes)  # type: ignore[operator]
        image = rearrange(drawn, "(d n) c h w -> c (d h) (n w)", d=D)
        return S.Sheet(rows=D, offsets=asked.offsets, image=packed(_levels(image)))


def _amounts(view: str, shape: tuple[int, int, int]) -> list[float]:
    """Return how far a change is followed, smallest first."""
    _, height, width = shape
    steps = [2 * k / (AMOUNTS - 1) - 1 for k in range(AMOUNTS)]  # from −1 to 1
    if view == "scale":
        return [round(_GROWTH**step, 3) for step in steps]
    largest = {"rotation": _TURN, "shear": _LEAN, "x": width / _SHARE, "y": height / _SHARE}[view]
    return [round(largest * step, 2) for step in steps]


def _strongest(activations: Tensor, most: int) -> Tensor:
    """Return the numbers of the strongest capsules, ascending; one whose activation is no number comes last."""
    values = activations.nan_to_num(nan=-math.inf)
    return values.topk(min(most, len(values))).indices.sort().values


def _cosine(a: Tensor, b: Tensor) -> float | None:
    scale = float(a.double().norm() * b.double().norm())
    return float(a.double() @ b.double()) / scale if scale > 0 else None


def _levels(drawing: Tensor) -> Tensor:
    """Return what a decoder drew, from 0 to 1, as grey levels."""
    return drawing.nan_to_num(0, 1, 0) * 255


def _number(value: float | None) -> float | None:
    return round(value, _DIGITS) if value is not None and math.isfinite(value) else None


def _numbers(values: Tensor) -> Any:
    """Return numbers as nested lists, with as many digits as a page shows; None for what is none."""
    rounded = torch.round(values.detach().double(), decimals=_DIGITS)
    return rounded.tolist() if bool(rounded.isfinite().all()) else _without_nan(rounded.tolist())


def _without_nan(values: Any) -> Any:
    return [_without_nan(each) for each in values] if isinstance(values, list) else _number(values)


def _each(answer: Callable[[Q], A], questions: Sequence[Q]) -> list[A | Exception]:
    """Answer each question on its own: what is wrong with one is nothing to the others."""
    return [_try(partial(answer, asked)) for asked in questions]


def _try(act: Callable[[], A]) -> A | Exception:
    try:
        return act()
    except Exception as error:
        return error


def _sound(value: A | Exception) -> A:
    if isinstance(value, Exception):
        raise value
    return value
