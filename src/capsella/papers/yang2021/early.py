r"""Assumption 2 at work: how often the longest capsule is wrong in the first epochs, and what agreement does then.

The first three epochs of a run with dynamic routing are trained once more, with a look every now and then at 2,000 test images:

- *first*: the share whose longest capsule is wrong after one iteration, where every coupling is 1/J; *last*: after all of them.
- of those that are wrong at first: *kept*, the same capsule is still the longest in the end; *mended*, the right one is;
  *widened*, its lead over the right one has grown; and the mean coupling *to_wrong* and *to_right*, which starts at 1/J.
- of those that are right at first: *spoilt*, another is the longest in the end.

Beside it the same net is trained with one iteration, which couples every capsule to all classes alike: what agreement with
capsules that are wrong costs, or gains, is the difference of their errors.
"""

from __future__ import annotations

import contextlib
import dataclasses
import statistics
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from capsella import routing
from capsella.data import ImageData
from capsella.functional import length
from capsella.models import CapsuleNet, evaluating
from capsella.train.fitting import fit
from capsella.train.health import NonFiniteLoss
from capsella.train.plan import Plan
from capsella.train.record import Event
from capsella.train.run import Run

EPOCHS = 3
LOOKS = (10, 20, 50, 100, 150, 200, 300, 400, 600, 800)
IMAGES, AT_ONCE = 2000, 250
EVERY = 10
ONE, ALL = "one", "all"


def early(run: Run, splits: Mapping[str, ImageData | None], device: torch.device) -> dict[str, Any]:
    """Train the first epochs again, with all iterations and with one, and look at both nets on their way."""
    train, test = splits["train"], splits["validation"]
    if train is None or test is None:
        raise ValueError("the run has no data to train on, or was measured on no test images")
    plan = Plan.of(run.config["plan"])
    per_epoch = -(-len(train) // plan.train.batch_size)
    last = min(EPOCHS * per_epoch, plan.train.steps or EPOCHS * per_epoch)
    batch = test.batch(torch.linspace(0, len(test) - 1, min(IMAGES, len(test))).round().long(), device=device)
    found: dict[str, Any] = {"steps_an_epoch": per_epoch, "images": len(batch.labels)}
    for name, options in ((ALL, {}), (ONE, {"model.num_iters": 1})):
        # no graph, whose capture would take longer than these steps.
        short = plan.changed({**options, "steps": last, "fast": False, "validate_every": 0, "log_every": EVERY})
        found[name] = _watched(short, train, last, lambda net: look(net, batch.images, batch.labels), device)
    return found


def _watched(
    plan: Plan, train: ImageData, last: int, see: Callable[[CapsuleNet], dict[str, Any]], device: torch.device
) -> list[dict[str, Any]]:
    """Train, and return what is seen before the first step, at ``LOOKS`` and at the end."""
    net = plan.build(train).to(device)
    if not isinstance(net, CapsuleNet):
        raise TypeError(f"the run's network is {type(net).__name__}; expected one with capsules")
    seen = [{"step": 0, **see(net)}]

    def listen(event: Event) -> None:
        if event["event"] == "log" and event["step"] in (*LOOKS, last - last % EVERY):
            seen.append({"step": event["step"], **see(net)})

    # a net that breaks has been seen up to there.
    with contextlib.suppress(NonFiniteLoss), routing.prefer("auto"):
        fit(net, train, progress=False, listeners=[listen], **dataclasses.asdict(plan.train))
    return seen


def look(net: CapsuleNet, images: Tensor, labels: Tensor) -> dict[str, float | None]:
    """Return what the routing of the class capsules does with the capsule that is longest at first.

    Args:
        net: whose class capsules are routed by agreement.
        images: [B, C, H, W].
        labels: [B].
    """
    parts = [_followed(net, images[k : k + AT_ONCE]) for k in range(0, len(images), AT_ONCE)]
    before, after, couplings = (torch.cat(tensors) for tensors in zip(*parts, strict=True))  # all [B, J]
    return compared(before, after, couplings, labels)


def _followed(net: CapsuleNet, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return lengths after the first and after the last iteration, and the mean coupling to each class, each [B, J]."""
    layer: Any = net.layers[-1]
    with evaluating(net), routing.prefer("reference"):
        below = net.capsules(images)[-2]
        given = {"bias": layer.bias, "squash": layer.squash}
        first = routing.vote_and_route("agreement", below, layer.weight, num_iters=1, **given)
        last = routing.vote_and_route("agreement", below, layer.weight, **given, **layer.options)
    if last.couplings is None:
        raise ValueError("the routing gave no couplings")
    return length(first.poses), length(last.poses), last.couplings.mean(dim=1)


def compared(before: Tensor, after: Tensor, couplings: Tensor, labels: Tensor) -> dict[str, float | None]:
    """Return the shares that are listed above; None of nothing.

    Args:
        before: lengths after the first iteration [B, J].
        after: lengths after the last one [B, J].
        couplings: mean coupling to each class in the last one [B, J].
        labels: [B].
    """
    longest, final = before.argmax(dim=1), after.argmax(dim=1)
    wrong = longest != labels

    def of(tensor: Tensor, classes: Tensor) -> Tensor:
        return tensor.gather(1, classes[:, None])[:, 0]

    lead = of(after, longest) - of(after, labels) - (of(before, longest) - of(before, labels))
    return {
        "first": _mean(wrong),
        "last": _mean(final != labels),
        "kept": _mean((final == longest)[wrong]),
        "mended": _mean((final == labels)[wrong]),
        "spoilt": _mean((final != labels)[~wrong]),
        "widened": _mean((lead > 0)[wrong]),
        "to_wrong": _mean(of(couplings, longest)[wrong]),
        "to_right": _mean(of(couplings, labels)[wrong]),
    }


def _mean(values: Tensor) -> float | None:
    return float(values.double().mean()) if len(values) else None


def early_error(seen: list[Mapping[str, Any]], steps: int) -> float:
    """Return the mean error of the looks after the first step, up to so many."""
    return statistics.fmean(each["last"] for each in seen if 0 < each["step"] <= steps)
