"""``capsella quickstart``: train a capsule net and its ConvNet twin on MNIST, and show what the capsules hold."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from capsella.cli.mistakes import users_mistakes
from capsella.cli.pages import curve, facts, program

_BATCH = 64
_TWINS = ("capsnet_small", "convnet_small")
_NEXT = (
    ("train capsnet --data mnist", "train the full CapsNet, best on a GPU with --precision bf16 --fast"),
    ("compare mnist", "the same contest with three seeds each, and with LeNet"),
    ("compare FOLDER", "… on your own images, one folder per class"),
    ("evaluate {run}", "confusion matrix and calibration"),
    ("doctor {run} --html page.html", "what is wrong with its capsules, with parse trees"),
    ("predict {run} IMAGE", "classify image files (--invert for ink on paper)"),
)


def quickstart(
    out: Annotated[
        Path, typer.Option(help="Where runs and page go; what an earlier quickstart trained there is used again.")
    ] = Path("runs/quickstart"),
    epochs: Annotated[int, typer.Option(help="Passes over MNIST.")] = 4,
    seed: Annotated[int, typer.Option(help="Of weights and samples.")] = 0,
    root: Annotated[Path | None, typer.Option(help="The data directory.")] = None,
) -> None:
    """Train a small capsule net and its ConvNet twin on MNIST and write a page that shows what they learned."""
    console = Console(highlight=False)
    with users_mistakes():
        from capsella.report import QuickstartStory, inside, quickstart_page, write_page
        from capsella.train.compare import finished_run, under_affine_maps
        from capsella.train.plan import Plan
        from capsella.train.record import write_json

        plans = {name: _plan(Plan, name, epochs, seed) for name in _TWINS}
        splits = plans[_TWINS[0]].load(root)
        data: Any = splits["train"]
        test: Any = splits["test"]
        console.print(f"MNIST: {len(data):,} images to learn from, {len(test):,} to be tested on")
        runs = {name: finished_run(out / name, plan, splits) for name, plan in plans.items()}
        moved: Any = under_affine_maps(test)
        affine = {name: run.evaluate(moved).accuracy for name, run in runs.items()}
        model: Any = runs[_TWINS[0]].model
        chosen = inside.one_of_each(test)
        seen = inside.see(model, test, chosen)
        right = [
            int(index) for index, hit in zip(chosen, seen.predictions == seen.labels, strict=True) if hit
        ] or chosen.tolist()
        story = QuickstartStory(
            networks=tuple(_network(name, run, affine[name]) for name, run in runs.items()),
            examples=seen,
            dimensions=inside.dimensions(model, test, right[len(right) // 2]),
            couplings=inside.couplings(model, test, right[-1]),
            mistakes=inside.mistakes(model, test),
            class_names=tuple(test.class_names),
            facts={**facts(runs[_TWINS[0]].config), "seed": str(seed)},
            commands=tuple((f"{program()} {each.format(run=out / _TWINS[0])}", what) for each, what in _NEXT),
        )
        page = out / "report.html"
        write_page(page, quickstart_page(story))
        figures = [{key: value for key, value in vars(each).items() if key != "curve"} for each in story.networks]
        write_json(out / "quickstart.json", {"networks": figures, "facts": story.facts})
    _tell(console, story, page)


def _plan(plan: Any, name: str, epochs: int, seed: int) -> Any:
    """Return the recipe, found on held-out training images: a rate that falls to a hundredth over the whole run.

    Reconstructions weigh ten times what the papers have: the decoder is small, and a person is to read what it draws.
    """
    steps = epochs * -(-60_000 // _BATCH)
    settings = {"epochs": epochs, "seed": seed, "batch_size": _BATCH, "lr": 4e-3, "schedule": "exponential"}
    settings |= {"decay": 0.01, "decay_steps": steps, "reconstruction": 0.005, "data.augment": "shift"}
    return plan(name, "mnist", split="train", validate=None).changed(settings)


def _network(name: str, run: Any, affine: float) -> Any:
    from capsella.models import CapsuleNet
    from capsella.report import TrainedNetwork

    record = run.record
    return TrainedNetwork(
        name=name,
        kind="capsule net" if isinstance(run.model, CapsuleNet) else "ConvNet",
        parameters=record["config"]["parameters"],
        epochs=record["epochs"],
        accuracy=record["test"]["accuracy"],
        accuracy_affine=affine,
        seconds=record["seconds"],
        images_per_second=record["images_per_second"],
        curve=curve(run),
    )


def _tell(console: Console, story: Any, page: Path) -> None:
    table = Table(
        "network", "parameters", "test accuracy", "under affine maps", "training", title="MNIST", title_justify="left"
    )
    for network in story.networks:
        figures = f"{network.accuracy:.2%}", f"{network.accuracy_affine:.2%}", f"{network.seconds:.0f} s"
        table.add_row(network.name, f"{network.parameters:,}", *figures)
    console.print(table)
    console.print(f"reconstructions, capsule dimensions and couplings: open {page.resolve().as_uri()}", soft_wrap=True)
    console.print("what to try next:")
    width = max(len(command) for command, _ in story.commands)
    for command, what in story.commands:
        console.print(f"  {command:<{width}}  {what}", markup=False, soft_wrap=True)
