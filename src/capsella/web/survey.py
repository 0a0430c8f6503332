"""What a network did on its test images, looked at a few at a time while nobody asks for anything else."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from capsella.analysis.activity import ACTIVE, DEAD_MEAN, DEAD_STD
from capsella.analysis.moments import Moments
from capsella.web.look import Look
from capsella.web.schemas import Gallery, History, Surveyed, TestImage

ENOUGH = 100
"""Images after which a capsule may be called dead."""

BINS = 20
STRONGEST = 8

# a stroke waits for what has begun, so that a part of the survey should take no longer than this.
_SECONDS = 0.03
_FIRST, _MOST = 1, 256


@dataclass(frozen=True, eq=False)
class Batch:
    """Test images that were looked at.

    Attributes:
        looks: one for each.
        hits: whether each answer was right, [B]; None where that cannot be said.
        confidence: [B].
    """

    looks: list[Look]
    hits: Tensor | None
    confidence: Tensor


class Survey:
    """Answers and activations of the first ``size`` test images, growing by ``go_on``.

    Args:
        size: how many will be looked at.
        labels: their classes [size], or None where an image shows several.
        layers: capsules of each layer of the tree.
        examine: looks at the test images from one index to before another.
        names: of the classes of the data; their numbers if None.
        judges: whether the network knows these classes, so that its answers can be right or wrong.
    """

    def __init__(
        self,
        size: int,
        labels: Tensor | None,
        layers: list[int],
        examine: Callable[[int, int], Batch],
        *,
        names: Sequence[str] | None = None,
        judges: bool = True,
    ) -> None:
        self.size, self.labels, self.done = size, labels, 0
        self.names, self.judges = names, judges
        self._examine, self._step = examine, _FIRST
        self._is_given_up = False
        self.answers = torch.zeros(size, dtype=torch.int64)
        self.confidence = torch.zeros(size)
        self.hits = torch.zeros(size, dtype=torch.bool)
        self._activations = [torch.zeros(size, capsules) for capsules in layers]
        self._moments = [Moments() for _ in layers]
        self._directions = [torch.zeros(capsules, dtype=torch.float64) for capsules in layers]

    @property
    def is_complete(self) -> bool:
        """Whether there is nothing left to look at, or nothing that can be."""
        return self._is_given_up or self.done >= self.size

    def give_up(self) -> None:
        """Look at no more."""
        self._is_given_up = True

    def go_on(self) -> None:
        """Look at a few more images."""
        start, stop = self.done, min(self.size, self.done + self._step)
        begun = time.perf_counter()
        batch = self._examine(start, stop)
        seconds = time.perf_counter() - begun
        place = slice(start, stop)
        self.answers[place] = torch.stack([each.scores.argmax() for each in batch.looks])
        self.confidence[place] = batch.confidence.cpu()
        if batch.hits is not None:
            self.hits[place] = batch.hits.cpu()
        for layer, kept in enumerate(self._activations):
            rows = torch.stack([each.activations[layer] for each in batch.looks]).cpu().float()
            kept[place] = rows
            self._moments[layer].update(rows)
            self._directions[layer] += _unit(rows.double()).sum(dim=0)
        self.done = stop
        wanted = int((stop - start) * _SECONDS / max(seconds, 1e-6))
        self._step = max(1, min(_MOST, 2 * self._step, wanted))

    def state(self) -> Surveyed:
        """Return how far it has come."""
        return Surveyed(done=self.done, of=self.size)

    def dead(self, layer: int) -> Tensor | None:
        """Tell which capsules of a layer are dead, [M]; None while too few images were looked at to say so."""
        if not self.done or self.done < min(ENOUGH, self.size):
            return None
        moments = self._moments[layer]
        return (moments.mean <= DEAD_MEAN) & (moments.std <= DEAD_STD)

    def chance(self, layer: int, activations: Tensor) -> float | None:
        """Return the mean correlation of one image's activations with those of the images that were looked at."""
        if not self.done:
            return None
        row = activations.double().cpu()
        return float(_unit(row[None])[0] @ self._directions[layer]) / self.done if float(row.norm()) > 0 else None

    def history(self, layer: int, capsule: int) -> History | None:
        """Return what one capsule did; None while nothing is known of it."""
        column = self._activations[layer][: self.done, capsule]
        known = column.isfinite()  # in a network that has diverged not all are
        if not known.any():
            return None
        indices = known.nonzero().flatten()
        column = column[indices]
        edges = torch.linspace(0, max(1.0, float(column.max())), BINS + 1)
        places = torch.bucketize(column, edges[1:-1], right=True)
        std = float(column.double().std(unbiased=False))
        return History(
            images=len(column),
            mean=float(column.double().mean()),
            std=std,
            active=float((column >= ACTIVE).double().mean()),
            dead=float(column.double().mean()) <= DEAD_MEAN and std <= DEAD_STD,
            edges=edges.tolist(),
            counts=torch.bincount(places, minlength=BINS).tolist(),
            by_class=self._by_class(column, indices),
            strongest=indices[column.topk(min(STRONGEST, len(column))).indices].tolist(),
        )

    def _by_class(self, column: Tensor, indices: Tensor) -> list[float | None]:
        if self.labels is None:
            return []
        labels = self.labels[indices]
        classes = int(self.labels.max()) + 1
        counts = torch.bincount(labels, minlength=classes)
        sums = torch.zeros(classes, dtype=torch.float64).index_add(0, labels, column.double())
        return [total / count if count else None for total, count in zip(sums.tolist(), counts.tolist(), strict=True)]

    def pick(
        self, *, label: int | None, answer: int | None, mistakes: bool | None, order: str, offset: int, limit: int
    ) -> Gallery:
        """Return test images; those that were not looked at yet are left out where what is asked for is not known of them.

        Args:
            label: their true class, as the data counts classes.
            answer: what the network says of them.
            mistakes: whether it is wrong about them; both if None. Of a network that knows other classes nothing fits.
            order: ``"index"``, ``"sure"`` or ``"unsure"``: the most or the least confident first.
            offset: how many to pass over.
            limit: how many to return.
        """
        needs_answers = answer is not None or mistakes is not None or order != "index"
        fits = torch.ones(self.size, dtype=torch.bool)
        if needs_answers:
            fits[self.done :] = False
        if label is not None:
            fits &= torch.zeros_like(fits) if self.labels is None else torch.eq(self.labels, label)
        if answer is not None:
            fits &= torch.eq(self.answers, answer)
        if mistakes is not None:
            fits &= torch.ne(self.hits, mistakes) if self.judges else torch.zeros_like(fits)
        found = fits.nonzero().flatten()
        if order != "index":
            found = found[self.confidence[found].argsort(descending=order == "sure", stable=True)]
        page = [self._image(index) for index in found[offset : offset + limit].tolist()]
        return Gallery(total=len(found), images=page, surveyed=self.state())

    def _image(self, index: int) -> TestImage:
        known = index < self.done
        confidence = float(self.confidence[index])
        label = None if self.labels is None else int(self.labels[index])
        return TestImage(
            index=index,
            label=label if self.judges else None,
            label_name=None if label is None else str(label) if self.names is None else self.names[label],
            answer=int(self.answers[index]) if known else None,
            confidence=round(confidence, 4) if known and math.isfinite(confidence) else None,
        )


def _unit(rows: Tensor) -> Tensor:
    """Return rows [N, M] of length 1; rows of zeros stay so."""
    lengths: Tensor = rows.norm(dim=1, keepdim=True)
    return rows / lengths.clamp(min=1e-300)
