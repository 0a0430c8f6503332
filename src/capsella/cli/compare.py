"""``capsella compare``: do capsules help on these images?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from capsella.cli.mistakes import users_mistakes
from capsella.cli.options import key_values
from capsella.cli.pages import curve, facts

RUNS = Path("runs")


def compare(
    data: Annotated[str, typer.Argument(help="A data set by name, or a folder with one folder of images per class.")],
    full: Annotated[bool, typer.Option("--full", help="The papers' sizes instead of small twins; wants a GPU.")] = False,
    models: Annotated[str | None, typer.Option(help="Models to compare instead, by commas.")] = None,
    seeds: Annotated[int, typer.Option(help="Runs of each network.")] = 3,
    epochs: Annotated[int, typer.Option(help="Passes over the data, the same for all.")] = 3,
    set_: Annotated[
        list[str] | None, typer.Option("--set", "-s", help="KEY=VALUE: a training field or data.OPTION, the same for all.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of runs and page; go on with one that is there.")] = None,
    root: Annotated[Path | None, typer.Option(help="The data directory, for a set by name.")] = None,
) -> None:
    """Train a capsule net and honest ConvNets alike, and say which does better, also under affine maps."""
    console = Console(highlight=False)
    with users_mistakes():
        from capsella.data import list_data
        from capsella.errors import check_count
        from capsella.train.compare import FULL, SMALL
        from capsella.train.compare import compare as run_all
        from capsella.train.folder import next_free
        from capsella.train.plan import Plan

        check_count("seeds", seeds)
        if any(pair.partition("=")[0].removeprefix("train.") == "seed" for pair in set_ or []):
            raise ValueError("--set seed=… has a place of its own: --seeds N runs every network with the seeds 0 to N−1")
        names = tuple(models.split(",")) if models else FULL if full else SMALL
        given = {"epochs": epochs, "batch_size": 64 if not full else 128, **key_values(set_ or [])}
        name = data
        if data not in list_data() and Path(data).is_dir():
            name, root = "folder", Path(data)
        plans = [Plan(model, name).changed(given) for model in names]
        stem = Path(data).resolve().name if name == "folder" else name
        folder = out if out is not None else next_free(RUNS, f"compare-{stem}")

        def begin(model: str, seed: int) -> None:
            console.print(f"{model}, seed {seed}", markup=False)

        found = run_all(plans[0], names, range(seeds), folder, root=root, begin=begin)
        page, story = _write(found, folder, stem, plans[0], root)
    for each in found:
        for run in each.runs:
            if run.status == "non-finite":
                reason = f"{run.folder}: {(run.record or {}).get('reason')}; measured at its last good checkpoint"
                console.print(reason, markup=False, soft_wrap=True)
    _tell(console, story, page)


def _write(found: list[Any], folder: Path, data: str, plan: Any, root: Path | None) -> tuple[Path, Any]:
    from capsella.report import AffineExamples, ComparisonRow, ComparisonStory, comparison_page, write_page
    from capsella.train.compare import under_affine_maps

    figures = [each.as_dict() for each in found]
    rows = tuple(
        ComparisonRow(
            model=each["model"],
            kind="capsule net" if each["has_capsules"] else "ConvNet",
            parameters=each["parameters"],
            seeds=tuple(each["seeds"]),
            accuracies=tuple(each["accuracies"]),
            affine_accuracies=tuple(each["affine_accuracies"]),
            images_per_second=tuple(each["images_per_second"]),
            memory=each["memory"],
            curves=tuple(curve(run) for run in contestant.runs),
        )
        for each, contestant in zip(figures, found, strict=True)
    )
    test = plan.load(root)["test"]
    moved = under_affine_maps(test)
    shown = list(range(min(10, len(test))))
    examples = None
    if moved is not None and plan.data_options.get("normalise", "unit") == "unit":
        examples = AffineExamples(test.batch(shown).images, moved.batch(shown).images, test.batch(shown).labels)
    story = ComparisonStory(
        data=data,
        rows=rows,
        epochs=figures[0]["epochs"],
        images_seen=figures[0]["images"],
        class_names=tuple(map(str, test.class_names)),
        facts=facts(found[0].runs[0].config),
        examples=examples,
    )
    page = folder / "report.html"
    write_page(page, comparison_page(story))
    return page, story


def _tell(console: Console, story: Any, page: Path) -> None:
    from capsella.report import HEADER, comparison_table, verdicts

    table = Table(title=f"{story.data}: {story.epochs} epochs each", title_justify="left", padding=(0, 0, 0, 1))
    for number, name in enumerate(HEADER):
        # a narrow terminal may break lines, but not the names.
        table.add_column(name, no_wrap=number == 0, overflow="fold")
    for row in comparison_table(story.rows):
        table.add_row(*row)
    console.print(table)
    for affine, where in ((False, "test images"), (True, "transformed test images")):
        for verdict in verdicts(story.rows, affine=affine):
            console.print(f"{where}: {verdict.headline} {verdict.reason}", markup=False, soft_wrap=True)
    console.print(f"curves and pictures: open {page.resolve().as_uri()}", soft_wrap=True)
