"""The health of capsule layers while they learn: a few figures of a fixed probe, so that dying capsules are seen as they die.

Nothing that the next step depends on is touched: no gradient, no module's mode, no running statistic, no random number. The
network runs as it was written, beside the compiled step and its graph.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from capsella.analysis import (
    ActivityResult,
    LayerGradients,
    RoutingDynamics,
    Seen,
    activity,
    coupling_entropy,
    gradient_norms,
    live_dynamics,
    observe,
)
from capsella.analysis.activity import ACTIVE
from capsella.analysis.gradients import Loss, starved_share
from capsella.analysis.layers import observe_in, routing_layers
from capsella.data import Batch, ImageData
from capsella.models import evaluating

PROBE = 64
"""Images that are looked at; all of a split that has fewer."""

Figures = dict[str, float]
Life = dict[str, Any]
"""What is kept of a layer from one look to the next, as JSON can hold it: ``dead``, which capsules are, ``revivals``, and which
were ever ``alive``, ``died`` after that, and were ``active`` again in some image after that."""


def check_watch(model: nn.Module, every: int) -> None:
    """Raise ``ValueError`` where there is something to watch for and nothing to watch."""
    if every and not routing_layers(model):
        works = "expected watch=0, or a network with capsella's CapsuleLinear or CapsuleConv2d in it"
        raise ValueError(f"watch={every} finds no capsule layer in this {type(model).__name__}; {works}")


def probe_of(data: ImageData, validation: ImageData | None, device: torch.device) -> Batch:
    """Return the images that every look is at: of the validation data, else of the training data without augmentation."""
    chosen = validation if validation is not None else ImageData(**{**vars(data), "training": False, "_made": {}})
    count = min(PROBE, len(chosen))
    # spread over the split: a set that is sorted by class has one class alone at its beginning.
    return chosen.batch(torch.arange(count) * len(chosen) // count, device=device)


def figures_of(seen: Sequence[Seen], before: Sequence[Life] = ()) -> tuple[Figures, list[Life]]:
    """Return the figures of a probe, and what to keep until the next one.

    Args:
        seen: what ``observe`` saw, lowest first.
        before: what was kept of the look before; nothing at the first one.

    Returns:
        ``layer1/…`` for the primary capsules, ``layer2/…`` for those above them and so on, as the doctor counts;
        docs/training.md lists them. What is no number (the dynamics among fewer than two live capsules, the entropy of
        couplings that are no shares) is left out: JSON has no word for it.
    """
    lengths = [seen[0].lower_activations, *(layer.activations for layer in seen)]
    layers = [activity(each[..., None]) for each in lengths]
    # a checkpoint of before knows nothing of the primary capsules: what it has belongs to the layers above them.
    known = [*[None] * (len(layers) - len(before)), *before]
    found: Figures = {}
    lives = []
    for number, (layer, past) in enumerate(zip(layers, known, strict=True), 1):
        life = _lived(layer.dead, (lengths[number - 1] >= ACTIVE).any(dim=0), past)
        own = {"capsules": len(layer.dead), "dead": layer.cdr, "length": layer.cnm, "active": layer.car}
        if number <= len(seen):
            own |= _routing(seen[number - 1], layers[number])
        own |= {"revivals": life["revivals"], "reactivated": len(life["active"])}
        found |= {f"layer{number}/{name}": value for name, value in own.items()}
        lives.append(life)
    return {name: value for name, value in found.items() if math.isfinite(value)}, lives


def _lived(dead: Tensor, active: Tensor, before: Life | None) -> Life:
    now, alive = set(_which(dead)), set(_which(~dead))
    if before is None:
        # capsules that begin dead have not died.
        return {"dead": sorted(now), "revivals": 0, "alive": sorted(alive), "died": [], "active": []}
    # a checkpoint of before says who was dead alone.
    was_alive = set(before["alive"]) if "alive" in before else set(range(len(dead))) - set(before["dead"])
    died, again = set(before.get("died", ())), set(before.get("active", ()))
    return {
        "dead": sorted(now),
        "revivals": before["revivals"] + len(set(before["dead"]) - now),
        "alive": sorted(was_alive | alive),
        "died": sorted(died | (now & was_alive)),
        # what passes to and fro across the threshold of the dead is of no use again.
        "active": sorted(again | (died & set(_which(active)))),
    }


def _which(flags: Tensor) -> list[int]:
    found: list[int] = flags.nonzero().flatten().tolist()
    return found


def _routing(seen: Seen, above: ActivityResult) -> Figures:
    """Return the figures of the couplings from a layer to the next one, as the doctor takes them: among the living."""
    if seen.couplings is None:
        return {}
    dynamics = RoutingDynamics()
    couplings = seen.by_chooser(seen.couplings)
    dynamics.update(couplings)
    below = activity(seen.lower_activations[..., None])
    live = live_dynamics(dynamics, below.dead, above.dead, windows=seen.windows, normalise=seen.normalise)
    return {"dyr": live.dyr_mean, "entropy": coupling_entropy(couplings).mean}


def gradients_of(reached: Sequence[LayerGradients]) -> Figures:
    """Return how strongly the loss reaches a capsule and a pair's weights, in the mean over each layer, and what it starves.

    In the last layer classes that are as they should be have no gradient, which starves nothing.
    """
    found = {"layer1/gradient": float(reached[0].lower.mean())}
    for number, layer in enumerate(reached, 1):
        found[f"layer{number}/starved"] = starved_share(layer.lower if number == 1 else reached[number - 2].upper)
    for number, layer in enumerate(reached, 2):
        found[f"layer{number}/gradient"] = float(layer.upper.mean())
        found[f"layer{number}/weight_gradient"] = float(layer.weights.mean())
    return {name: value for name, value in found.items() if math.isfinite(value)}


def look(
    model: nn.Module,
    images: Tensor,
    before: Sequence[Life] = (),
    *,
    targets: Tensor | None = None,
    loss: Loss | None = None,
    context: Callable[[], Any] = contextlib.nullcontext,
) -> tuple[Figures, list[Life]]:
    """Run a network once on the probe and leave it as it was; see ``figures_of``.

    Args:
        model: with capsella's routing layers.
        images: the probe.
        before: what was kept of the look before.
        targets: classes of the probe.
        loss: of the run; gradients are measured where it is given.
        context: entered around the forward pass, for autocast.
    """
    with _undisturbed(images.device), evaluating(model):
        reached: Sequence[LayerGradients] = ()
        with context():
            if loss is None or targets is None:
                _, seen = observe(model, images)
            else:
                measure = functools.partial(gradient_norms, model, images, targets, loss=loss)
                reached, seen = observe_in(measure, model, len(images))
        found, lives = figures_of(seen, before)
        return found | (gradients_of(reached) if reached else {}), lives


@contextlib.contextmanager
def _undisturbed(device: torch.device) -> Iterator[None]:
    # a network that was compiled by its owner runs plain: what looks on is in the way of its guards, and it would be compiled
    # again at every look. One that draws numbers in evaluation too would change the run by being looked at.
    with (
        torch.compiler.set_stance("force_eager"),
        torch.random.fork_rng([device] if device.type == "cuda" else []),
    ):
        yield
