"""One run as the explorer has it: its network, its test images, and how a scene becomes what the network takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from capsella.analysis.layers import Seen, observe, routing_layers
from capsella.analysis.parse_tree import chained
from capsella.analysis.receptive import ReceptiveFields
from capsella.data import ImageData
from capsella.errors import unknown_name
from capsella.models import Model, as_prediction, evaluating
from capsella.train import Run
from capsella.train.evaluation import confidence
from capsella.train.objectives import right, scores_are
from capsella.train.record import Event
from capsella.web.look import look
from capsella.web.pictures import Shape, fitted, moved, on_top, unpacked
from capsella.web.schemas import LayerInfo, Move, Picture, RunInfo, Scene
from capsella.web.survey import Batch, Survey
from capsella.web.trouble import Trouble, check_below

MOST_IMAGES = 10_000
"""Test images of a run that can be picked, if nothing else is said."""

MOST_ACTIVATIONS = 1 << 28
"""Of a run that are kept, a gigabyte: a network of very many capsules has fewer images to pick from."""


class Net:
    """A network and its test images.

    Args:
        key: names it in addresses.
        model: as it was trained.
        data: test images, whose values are grey levels before they are normalised.
        title: for people; the key if None.
        image_shape: (C, H, W) that the network takes; that of the data if None.
        class_names: one for each score; numbers follow where there are fewer.
        events: what was written down while it was trained.
        facts: how it was trained, for people.
        folder: of the run, None where there is none.
        images: how many test images can be picked, the first ones; ``MOST_ACTIVATIONS`` may leave fewer.
        away: why there are none in ``data``.
    """

    def __init__(
        self,
        key: str,
        model: nn.Module,
        data: ImageData,
        *,
        title: str | None = None,
        image_shape: Shape | None = None,
        class_names: Sequence[str] | None = None,
        events: Sequence[Event] = (),
        facts: Mapping[str, str] | None = None,
        folder: Path | None = None,
        images: int = MOST_IMAGES,
        away: str | None = None,
    ) -> None:
        if data.normalise.kind == "none":
            raise ValueError(f"run {key!r} was trained on {data.name!r}, whose values are no grey levels; expected images")
        self.key, self.title, self.model, self.data, self.folder = key, title or key, model.eval(), data, folder
        self.shape = data.image_shape if image_shape is None else image_shape
        self.events, self.facts, self.away = list(events), dict(facts or {}), away
        self.siblings: Mapping[str, Net] = {key: self}
        """The runs whose test images can be picked, by key."""
        self._probe(list(data.class_names if class_names is None else class_names))
        sizes = [layer.capsules for layer in self.layers]
        size = min(len(data), images, max(1, MOST_ACTIVATIONS // max(1, sum(sizes))))
        self.labels = data.labels[:size] if data.labels.ndim == 1 else None
        self.data_classes = [*map(str, data.class_names)]
        self.judges = alike(self.class_names, self.data_classes)
        """Whether its answers can be right or wrong about its test images: their classes are those that it knows."""
        self.survey = Survey(size, self.labels, sizes, self._examine, names=self.data_classes, judges=self.judges)
        self._fields: ReceptiveFields | None = None

    @classmethod
    def of(cls, key: str, run: Run, data: ImageData, **options: Any) -> Net:
        """Make one of a run that was trained, and of the images it is shown."""
        trained = run.config["data"]["train"]
        channels, height, width = trained["image_shape"]
        return cls(
            key,
            run.model,
            data,
            image_shape=(channels, height, width),
            class_names=trained["class_names"],
            events=run.events,
            facts=_facts(run),
            folder=run.folder,
            **options,
        )

    def _probe(self, names: list[str]) -> None:
        """Find out by one black image what there is to be seen."""
        images = self.normalised([torch.zeros(self.shape, dtype=torch.uint8)])
        layers = routing_layers(self.model)
        seen: list[Seen] = []
        chain: list[Seen] = []
        self.no_tree: str | None = None
        if layers:
            output, seen = observe(self.model, images)
            try:
                chain = chained(seen)
            except ValueError:
                self.no_tree = "its last capsule layer is a convolution, whose couplings stay within windows"
        else:
            with evaluating(self.model):
                output = self.model(images)
            self.no_tree = "it has no layer of capsules that routes"
        prediction = as_prediction(output)
        classes = prediction.scores.shape[1]
        self.class_names = [*map(str, names[:classes]), *map(str, range(len(names), classes))]
        self.negates = bool(layers)
        self.has_decoder = isinstance(self.model, Model) and self.model.decoder is not None
        capsules = prediction.capsules
        self.capsules_are = None if capsules is None else (capsules.shape[1], capsules.shape[2])
        """Number and size of the class capsules."""
        self.has_knobs = self.has_decoder and capsules is not None and capsules.shape[1] == classes
        # what a convolution made stands at the foot of a tree as well.
        below = seen[: len(seen) - len(chain)] if chain else []
        foot = below[-1].name if below else "primary"
        self.layers = [_lowest(chain[0], foot), *(_layer(each, layers[each.name]) for each in chain)] if chain else []
        self.below = _left_out(below)

    def info(self) -> RunInfo:
        """Return what the page is told of it."""
        channels, height, width = self.shape
        return RunInfo(
            key=self.key,
            title=self.title,
            model=str(getattr(self.model, "config", {}).get("name", type(self.model).__name__)),
            data=self.data.name,
            split=self.data.split,
            channels=channels,
            height=height,
            width=width,
            images=self.survey.size,
            away=self.away,
            class_names=self.class_names,
            data_classes=self.data_classes,
            judges=self.judges,
            has_classes=self.labels is not None,
            parameters=sum(parameter.numel() for parameter in self.model.parameters()),
            layers=self.layers,
            no_tree=self.no_tree,
            below=self.below,
            decoder=self.has_decoder,
            knobs=self.has_knobs,
            negates=self.negates,
            facts=list(self.facts.items()),
        )

    @property
    def fields(self) -> ReceptiveFields:
        """Of the capsules at the foot of its tree."""
        if self._fields is None:
            self._fields = ReceptiveFields(self.model, self.shape)
        return self._fields

    def test_image(self, index: int) -> Tensor:
        """Return the grey levels of a test image [C, H, W], as large as its own network takes it."""
        check_below("index", index, self.survey.size)
        levels = self.data.images[index]
        if self.data.augment is not None:
            # which moves nothing where there is nothing to be learned, and may put the image on a canvas.
            levels = self.data.augment(levels[None], None)[0]
        return fitted(levels, self.shape)

    def still(self, scene: Scene) -> Tensor:
        """Return the grey levels of a scene [C, H, W] before it is moved."""
        levels = self._picture(scene.picture)
        if scene.over is None:
            return levels
        return on_top(levels, self._picture(scene.over.picture), scene.over.x, scene.over.y)

    def levels(self, scene: Scene) -> Tensor:
        """Return the grey levels of a scene [C, H, W]."""
        return moved(self.still(scene), scene.move or Move())

    def truth(self, scene: Scene) -> tuple[int | None, str | None]:
        """Return the class of a scene that is a test image alone: its number, if the net knows such classes, and its name."""
        picture = scene.picture
        if scene.over is not None or picture.kind != "test":
            return None, None
        shown = self.siblings[picture.run]
        if shown.labels is None:
            return None, None
        label = int(shown.labels[picture.index])
        return label if alike(self.class_names, shown.data_classes) else None, shown.data_classes[label]

    def normalised(self, levels: Sequence[Tensor]) -> Tensor:
        """Return grey levels [C, H, W] as the network takes them, [B, C, H, W]."""
        place = next(self.model.parameters()).device
        return self.data.normalise(torch.stack([each.float() for each in levels])).to(place)

    def _picture(self, picture: Picture) -> Tensor:
        if picture.kind == "drawn":
            return fitted(unpacked(picture), self.shape)
        other = self.siblings.get(picture.run)
        if other is None:
            raise Trouble(unknown_name("run", picture.run, self.siblings))
        return fitted(other.test_image(picture.index), self.shape)

    def _examine(self, start: int, stop: int) -> Batch:
        levels = [self.test_image(index) for index in range(start, stop)]
        looks = look(self.model, self.normalised(levels), has_tree=bool(self.layers))
        scores = torch.stack([each.scores for each in looks]).cpu()
        return Batch(looks, self._hits(scores, start, stop), confidence(scores, scores_are(self.model)))

    def _hits(self, scores: Tensor, start: int, stop: int) -> Tensor | None:
        if not self.judges:
            return None
        classes = self.data.part_labels(list(range(start, stop))) if self.labels is None else self.labels[start:stop]
        return right(scores, classes.cpu())


def alike(one: Sequence[str], other: Sequence[str]) -> bool:
    """Tell whether a number means the same class in two lists of names, as far as both go.

    Example:
        >>> alike(["cat", "dog"], ["cat", "dog", "2"]), alike(["cat", "dog"], ["0", "1"])
        (True, False)
    """
    return all(a == b for a, b in zip(one, other, strict=False))


def _lowest(seen: Seen, name: str) -> LayerInfo:
    _, capsules, dim = seen.lower.shape
    return LayerInfo(name=name, capsules=capsules, dim=dim, routing=None, iterations=None)


def _layer(seen: Seen, layer: Any) -> LayerInfo:
    iterations = None
    if layer.algorithm.is_iterative:
        iterations = layer.options.get("num_iters") or layer.algorithm.default("num_iters")
    _, capsules, dim = seen.poses.shape
    return LayerInfo(name=seen.name, capsules=capsules, dim=dim, routing=layer.routing, iterations=iterations)


def _left_out(below: Sequence[Seen]) -> str | None:
    """Say which layers stand below a tree, and why they are not drawn."""
    if not below:
        return None
    kind, why = "capsule", "couplings are not between all capsules"
    if all(each.windows > 1 for each in below):
        kind, why = "convolutional capsule", "couplings stay within windows"
    if len(below) == 1:
        return f"1 {kind} layer below is not drawn: its {why}"
    return f"{len(below)} {kind} layers below are not drawn: their {why}"


def _facts(run: Run) -> dict[str, str]:
    train, data, environment = run.config["train"], run.config["data"]["train"], run.config["environment"]
    facts = {
        "trained on": f"{data['name']}/{data['split']}, {data['images']:,} images",
        "training": f"{train['optimiser']}, rate {train['lr']:g}, batches of {train['batch_size']}, seed {train['seed']}",
        "how it ended": run.status,
        "device": str(environment["device"]),
        "capsella": f"{environment['capsella']}, torch {environment['torch']}",
    }
    test = (run.record or {}).get("test")
    if isinstance(test, dict) and isinstance(test.get("accuracy"), float):
        facts["right on its test set"] = f"{test['accuracy']:.2%}"
    return facts
