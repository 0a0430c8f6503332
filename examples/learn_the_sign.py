"""Teach a capsule network the sign of a number, with and without a bias (peer2022, table 1).

Routing by agreement maps −x to capsules of the same lengths as x. A network without a bias therefore gives both the same
scores, whatever it has learned; one bias per capsule cures it. Run: ``make run``, or ``python examples/learn_the_sign.py``.
"""

from __future__ import annotations

import argparse

import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from torch import Tensor

import capsella
from capsella.functional import margin_loss

PROBES = (-1.0, -0.5, -0.01, 0.01, 0.5, 1.0)


def accuracy(model: capsella.Model, images: Tensor, labels: Tensor) -> float:
    """Return the share of numbers whose longest capsule is the right one; a tie counts as wrong."""
    with torch.no_grad():
        scores = model(images).scores
    right = scores.gather(1, labels[:, None])
    others = scores.scatter(1, labels[:, None], -1.0)
    return float((right > others.max(dim=1, keepdim=True).values).float().mean())


def train(*, bias: bool, epochs: int, seed: int, progress: Progress) -> capsella.Model:
    """Train the sign net as the paper's code does: Adam 5e-3, batches of 256, margin loss with equal weights."""
    torch.manual_seed(seed)
    model = capsella.create_model("sign_capsnet", bias=bias)
    optimiser = torch.optim.Adam(model.parameters(), lr=5e-3)
    data = capsella.load_data("sign")
    task = progress.add_task(f"{'with' if bias else 'without'} bias", total=epochs)
    for epoch in range(epochs):
        for images, labels in data.batches(256, epoch=epoch, seed=seed):
            optimiser.zero_grad()
            margin_loss(model(images).scores, labels, down_weight=1.0).backward()
            optimiser.step()
        progress.advance(task)
    return model


def main() -> None:
    """Train both networks and print what they learned."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=10, help="passes over the 20,002 numbers; the paper has 50 (default 10)")
    parser.add_argument("--seed", type=int, default=0, help="of weights and batches (default 0)")
    arguments = parser.parse_args()
    if arguments.epochs < 1:
        parser.error(f"--epochs={arguments.epochs} is too small; expected at least 1")
    console = Console(highlight=False)
    with Progress(console=console, transient=True) as progress:
        nets = {
            name: train(bias=bias, epochs=arguments.epochs, seed=arguments.seed, progress=progress)
            for name, bias in (("without bias", False), ("with bias", True))
        }
    images, labels = capsella.load_data("sign").batch(slice(None))
    title = "Is x positive? Length of the capsule “yes” for x ="
    table = Table("network", "accuracy", *(f"{x:g}" for x in PROBES), title=title)
    gaps = {}
    for name, net in nets.items():
        with torch.no_grad():
            yes = net(torch.tensor(PROBES)[:, None, None, None]).scores[:, 1]
            gaps[name] = float((net(images).scores - net(-images).scores).abs().max())
        share = f"{accuracy(net, images, labels):.1%}"
        table.add_row(name, share, *(f"{value:.3f}" for value in yes.tolist()))
    console.print(table)
    for name, gap in gaps.items():
        console.print(f"{name}: the scores of x and −x differ by at most {gap:.2g}")


if __name__ == "__main__":
    main()
