r"""Table 3 and Figure 2: trained classifiers on digits that an AC-GAN draws after each of its first epochs.

After each of five epochs of the AC-GAN on the run's own training digits, 400 images are drawn of every digit; the run's
network is measured on them as on the test images, with the digit that was asked for as the right answer. The paper says that
"the generated images vary each time": the AC-GAN has the seed of the run, so that networks of one seed are measured on the same
images and other seeds on others.

``generated`` returns

- ``error_epoch1`` … ``error_epoch5``: the share of the images that the network takes for another digit than was asked for;
- ``confusion``: for each epoch counts [10][10], the digit that was asked for by the network's answer;
- ``images``: how many there are after each epoch; ``epochs``, ``steps`` (of an epoch), ``batch_size``, ``narrowed``, ``seed``;
- ``whole``: whether it is the paper's AC-GAN; a run of fewer steps than its own 3,000 is a trial and gets a small, short one;
- ``digest``: SHA-256 of all images, the same for networks that have seen the same;
- ``gan``: for each epoch what is known of the AC-GAN itself: ``acgan.FIGURES``, means over the epoch's steps; ``own_error``,
  the share of the drawn images that its own discriminator takes for another digit; ``variety``, the mean variance of a pixel
  among images of one digit, divided by that of as many training images: near 0 where every "3" is the same, 1 where they vary
  as MNIST's do;
- ``sheets``, of the run with seed 0 alone, whose picture is the page's: ``epoch1`` … as ``images.pack`` gives them, a column
  for each digit; ``panels`` makes a gallery's panels of them.

The images are made once, by whoever asks first, and kept in the cache folder; others wait. What is kept is whole, or not there.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from einops import rearrange
from torch import Tensor

from capsella.data import ImageData
from capsella.data.places import Places, whole_or_nothing
from capsella.data.samples import Stored
from capsella.data.splits import fingerprint
from capsella.papers.chen2019.acgan import CLASSES, SIDE, AcGan, Settings
from capsella.papers.images import pack
from capsella.papers.paper import Panel
from capsella.train.evaluation import evaluate
from capsella.train.plan import Plan
from capsella.train.run import Run

MAKER = 1
"""Raised by hand when the same settings give other images."""

WHOLE = Settings()
# seconds on a CPU: enough for spots that differ between digits, not for digits; with half the channels they do not even differ.
SHORT = Settings(steps=60, batch_size=16, lr=2e-3, narrowed=4, per_class=40)
# a run of fewer steps than the whole AC-GAN takes on MNIST is over before it.
_WHOLE_STEPS = 3_000
# images of each digit on the page, and whose seed they are of: every record would have the same tens of kilobytes.
ROWS, SHOWN_SEED = 3, 0

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Made:
    """Images of an AC-GAN.

    Attributes:
        images: bytes [epochs, 10 · per_class, 1, 28, 28], digit by digit.
        gan: figures of the AC-GAN after each epoch.
        digest: SHA-256 of the images.
    """

    images: Tensor
    gan: list[dict[str, float]]
    digest: str


def generated(run: Run, splits: Mapping[str, ImageData | None], device: torch.device) -> dict[str, Any]:
    """Measure a network on what the AC-GAN of the run's seed draws; see above for what it returns."""
    train, seen = splits["train"], splits["validation"] or splits["test"]
    if train is None or seen is None:
        raise ValueError("the run has no data to train on, or was measured on no images")
    images = train.images
    if not isinstance(images, Tensor) or images.shape[1:] != (1, SIDE, SIDE) or train.num_classes != CLASSES:
        raise ValueError(f"the run learned from {train.name}; expected ten classes of images of 28×28 grey levels")
    plan = Plan.of(run.config["plan"])
    settings, seed = settings_of(plan, len(train)), plan.train.seed
    made = images_of(images, train.labels[:], settings, seed, device)
    labels = torch.arange(CLASSES).repeat_interleave(settings.per_class)
    found: dict[str, Any] = {
        "images": len(labels),
        **{name: getattr(settings, name) for name in ("epochs", "batch_size", "narrowed")},
        "steps": settings.steps_of(len(train)),
        "seed": seed,
        "whole": settings == WHOLE,
        "digest": made.digest,
        "gan": made.gan,
        "confusion": [],
    }
    for epoch, drawn in enumerate(made.images, start=1):
        result = evaluate(run.model, as_test_images(drawn, labels, like=seen), batch_size=500, device=device)
        found[f"error_epoch{epoch}"] = 1 - result.accuracy
        found["confusion"].append([] if result.confusion is None else result.confusion.tolist())
    if seed == SHOWN_SEED:
        found["sheets"] = {f"epoch{epoch}": sheet(drawn) for epoch, drawn in enumerate(made.images, start=1)}
    return found


def panels(found: Mapping[str, Any]) -> list[Panel]:
    """Return Figure 2 from what ``generated`` returned: a panel for each epoch; none where it has no sheets."""
    sheets = found.get("sheets") or {}
    return [Panel(f"after epoch {epoch}", each) for epoch, each in enumerate(sheets.values(), start=1)]


def settings_of(plan: Plan, count: int) -> Settings:
    """Return the paper's settings, or for a run that is shorter than them a trial's.

    Args:
        plan: of the classifier's training.
        count: of its training images.
    """
    steps = plan.train.steps or plan.train.epochs * -(-count // plan.train.batch_size)
    return WHOLE if steps >= _WHOLE_STEPS else SHORT


def as_test_images(images: Tensor, labels: Tensor, *, like: ImageData) -> ImageData:
    """Return images as data that become a network's inputs as those of ``like`` do.

    Args:
        images: bytes [N, 1, 28, 28].
        labels: [N].
        like: what the network was measured on.
    """
    digest = hashlib.sha256(images.numpy().data).hexdigest()
    # copies on other devices, and images that were made, are of what was there before.
    return replace(like, samples=Stored(images, labels), name="acgan", digest=digest, _elsewhere={}, _made={})


def sheet(images: Tensor) -> dict[str, Any]:
    """Pack the first few images of every digit, a column each.

    Args:
        images: bytes [10 · n, 1, 28, 28], digit by digit.
    """
    rows = rearrange(images, "(j n) 1 h w -> n j h w", j=CLASSES)[:ROWS]
    return pack(rearrange(rows, "n j h w -> (n j) h w").float() / 255, columns=CLASSES)


def images_of(
    images: Tensor, labels: Tensor, settings: Settings, seed: int, device: torch.device, folder: Path | None = None
) -> Made:
    """Return what an AC-GAN draws after each epoch, from the cache where somebody has made it.

    Args:
        images: bytes [N, 1, 28, 28] that it learns from, and so what defines the result beside the other arguments.
        labels: [N].
        settings: of the AC-GAN.
        seed: of the AC-GAN.
        device: where it is trained; other devices add in another order, and draw other numbers.
        folder: of what is kept; capsella's own if None.
    """
    digest = hashlib.sha256(images.contiguous().cpu().numpy().data)
    digest.update(labels.contiguous().cpu().numpy().data)
    facts = {**asdict(settings), "seed": seed, "data": digest.hexdigest(), "device": device.type, "maker": MAKER}
    key = fingerprint(**facts, torch=torch.__version__)[:16]
    place = (Places.find().generated if folder is None else folder) / f"acgan-{key}.u8"
    shape = (settings.epochs, CLASSES * settings.per_class, 1, SIDE, SIDE)
    return kept(place, shape, lambda: make(images, labels, settings, seed, device))


def make(
    images: Tensor, labels: Tensor, settings: Settings, seed: int, device: torch.device
) -> tuple[Tensor, list[dict[str, float]]]:
    """Train an AC-GAN; return what it draws after each epoch, and its figures. See ``images_of`` for the arguments."""
    real, classes = images.to(device), labels.to(device)
    gan = AcGan(settings, seed, device)
    scale = spread(real, classes, settings.per_class)
    drawn, figures = [], []
    for _ in range(settings.epochs):
        means = gan.epoch(real, classes)
        some, own_error = gan.draw()
        asked_for = torch.arange(CLASSES, device=device).repeat_interleave(settings.per_class)
        variety = spread(some, asked_for, settings.per_class) / scale if scale else 0.0
        drawn.append(some.cpu())
        figures.append({**means, "own_error": own_error, "variety": variety})
    return torch.stack(drawn), figures


def spread(images: Tensor, labels: Tensor, count: int) -> float:
    """Return the mean variance of a pixel among the first ``count`` images of a class, over all classes that have two."""
    parts = [images[(labels == label).nonzero()[:count, 0]].double() for label in range(CLASSES)]
    variances = [part.var(dim=0, correction=0).mean() for part in parts if len(part) > 1]
    return float(torch.stack(variances).mean()) if variances else 0.0


def kept(path: Path, shape: tuple[int, ...], make: Callable[[], tuple[Tensor, list[dict[str, float]]]]) -> Made:
    """Return what is kept at a place; else make it, alone among all processes that ask for it, and keep it.

    Args:
        path: of the images; a note of the same name with their checksum and the figures lies beside them.
        shape: of the images.
        make: called at most once by all who ask at the same time, if the folder can be written to.
    """
    found = _read(path, shape)
    if found is not None:
        return found
    with _alone(path):
        # whoever was here before has made it meanwhile.
        found = _read(path, shape)
        if found is not None:
            return found
        images, gan = make()
        content = images.numpy().reshape(-1).data
        digest = hashlib.sha256(content).hexdigest()
        try:
            with whole_or_nothing(path) as file:
                file.write(content)
            # last: without it nothing is found.
            with whole_or_nothing(path.with_suffix(".json")) as file:
                file.write(json.dumps({"shape": shape, "sha256": digest, "gan": gan}).encode())
        except OSError as error:
            _log.warning("%s cannot be kept (%s): it will be made again next time", path, error)
        return Made(images, gan, digest)


def _read(path: Path, shape: tuple[int, ...]) -> Made | None:
    """Return images whose bytes are those that were written, else None."""
    with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
        note = json.loads(path.with_suffix(".json").read_text())
        content = np.fromfile(path, np.uint8)
        digest = hashlib.sha256(content.data).hexdigest()
        if len(content) == int(np.prod(shape)) and digest == note["sha256"]:
            return Made(torch.from_numpy(content.reshape(shape)), list(note["gan"]), digest)
    return None


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Wait for other processes that make the same; the system lets go of the lock when one ends, however it does."""
    try:
        import fcntl
    except ImportError:  # a system without such locks: it may be made twice, and is whole all the same
        yield
        return
    with contextlib.ExitStack() as stack:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            lock = stack.enter_context(path.with_name(f".{path.name}.lock").open("ab"))
            fcntl.flock(lock, fcntl.LOCK_EX)
        except OSError as error:
            _log.warning("%s cannot be held (%s): it may be made by several processes at once", path, error)
        yield
