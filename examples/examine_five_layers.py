"""What is wrong with five capsule layers, and does another routing, a bias or another start help (mitterreiter2023)?

The paper's net (16, 16, 16, 16 and 10 capsules of 8 values) learns MNIST placed at random on 40×40 until 99.2 % of the placed
test images are right, or 60 epochs have passed; like the paper, it is stopped by the test images. Five times: with agreement as
published, with uniform couplings, with a bias, from a length-preserving start, and with uniform couplings from such a start.
Then ``capsella doctor`` examines each on affine test images.

Best on a GPU: ``python examples/examine_five_layers.py --device cuda``. What is finished is not done again.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from capsella.train import Plan, Run, TrainConfig, run_together

VARIANTS = {
    "agreement": {},
    "uniform": {"model.routing": "uniform"},
    "bias": {"model.bias": True},
    "length-preserving": {"model.init": "length_preserving"},
    "uniform-length-preserving": {"model.routing": "uniform", "model.init": "length_preserving"},
}


def plans(epochs: int, device: str, seed: int) -> dict[str, Plan]:
    """Return the plan of each variant: Adam 1e-3, weight decay 1e-5, batches of 128, as in the paper's code."""
    train = TrainConfig(
        epochs=epochs,
        target_accuracy=0.992,
        weight_decay=1e-5,
        reconstruction=0.005,
        reconstruction_reduction="mean",
        seed=seed,
        device=device,
        fast=device == "cuda",
        watch=469,  # once an epoch
    )
    base = Plan("parse_capsnet", "mnist40", split="train", validate="test", train=train)
    return {name: base.changed(changes) for name, changes in VARIANTS.items()}


def main() -> None:
    """Train all of them, examine them, and print what happened."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/five_layers"), help="where runs, records and pages go")
    parser.add_argument("--epochs", type=int, default=60, help="at most (default 60)")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--root", type=Path, help="the data directory")
    arguments = parser.parse_args()
    todo = {
        name: (plan, arguments.out / name) for name, plan in plans(arguments.epochs, arguments.device, arguments.seed).items()
    }
    console = Console(highlight=False)
    for outcome in run_together(todo.values(), at_once=len(todo) if arguments.device == "cuda" else 1, root=arguments.root):
        console.print(f"{outcome.folder}: {outcome.problem or 'trained'}")
    table = Table("variant", "status", "epochs", "placed test images")
    for name, (_, folder) in todo.items():
        run = Run.load(folder)
        if run.record is None:
            continue
        table.add_row(name, run.status, str(run.record["epochs"]), f"{run.record['history'][-1]['validation']:.2%}")
        files = ["--html", str(arguments.out / f"{name}.html"), "--json", str(arguments.out / f"{name}.json")]
        place = [] if arguments.root is None else ["--root", str(arguments.root)]
        examine = [
            "doctor",
            str(folder),
            "--data",
            "affnist_mitterreiter",
            "--device",
            arguments.device,
            "--sweep",
            *files,
            *place,
        ]
        text = subprocess.run([sys.executable, "-m", "capsella", *examine], check=True, capture_output=True, text=True).stdout
        (arguments.out / f"{name}.txt").write_text(text, encoding="utf-8")
        print(f"\n{name}\n{text}")
    console.print(table)


if __name__ == "__main__":
    main()
