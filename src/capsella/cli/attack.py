"""``capsella attack``: how well a trained network stands up to images that were made to fool it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from capsella.cli.bench_records import console
from capsella.cli.evaluate import load_for
from capsella.cli.mistakes import users_mistakes
from capsella.cli.options import key_values

if TYPE_CHECKING:
    from capsella.attacks import Attacked

# from this share of images without a gradient on, an attack that follows it says little.
_MASKED = 0.01


def attack(
    run: Annotated[Path, typer.Argument(help="Folder of a run.")],
    eps: Annotated[
        list[str] | None, typer.Option(help="Largest change, of the range from black to white, such as 8/255 or 0.1; repeat.")
    ] = None,
    attack: Annotated[
        list[str] | None, typer.Option(help="fgsm, pgd or universal; repeat (fgsm and pgd; transfer with --substitute).")
    ] = None,
    substitute: Annotated[Path | None, typer.Option(help="A run whose gradients are followed instead.")] = None,
    by: Annotated[str, typer.Option(help="What the substitute is attacked with: fgsm or pgd.")] = "fgsm",
    loss: Annotated[str, typer.Option(help="That is climbed: own, the run's; or difference, which does not saturate.")] = "own",
    steps: Annotated[int, typer.Option(help="Of pgd.")] = 40,
    norm: Annotated[str, typer.Option(help="Of pgd: linf or l2.")] = "linf",
    iterations: Annotated[int, typer.Option(help="Of the universal perturbation's generator.")] = 100,
    images: Annotated[int, typer.Option(help="How many, from all over the split.")] = 1000,
    data: Annotated[str | None, typer.Option(help="A data set; the run's own if none is named.")] = None,
    split: Annotated[str, typer.Option(help="train, fit, val or test.")] = "test",
    option: Annotated[list[str] | None, typer.Option("--option", "-o", help="KEY=VALUE, an option of the set.")] = None,
    pictures: Annotated[Path | None, typer.Option(help="Folder of the pictures (RUN/attacks).")] = None,
    as_json: Annotated[Path | None, typer.Option("--json", help="Write the figures to this file; - prints them.")] = None,
    batch_size: Annotated[int, typer.Option(help="Images at once.")] = 128,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    root: Annotated[Path | None, typer.Option(help="The data directory.")] = None,
) -> None:
    """Attack a run's network, print how many images it still gets right, and draw some of them."""
    with users_mistakes():
        from capsella.attacks import LOSSES, attack_data
        from capsella.errors import check_choice
        from capsella.train import Run
        from capsella.train.run import loss_of, moved_to

        sizes = [size(text) for text in eps or ["8/255"]]
        check_choice("--loss", loss, LOSSES)
        names = _names(attack, substitute)
        options: dict[str, dict[str, Any]] = {
            "fgsm": {},
            "pgd": {"steps": steps, "norm": norm},
            "universal": {"iterations": iterations},
            "transfer": {"by": by},
        }
        loaded = Run.load(run)
        other = None if substitute is None else Run.load(substitute)
        examined = load_for(loaded.config, data, split, key_values(option or []), root)
        found: list[Attacked] = []
        with moved_to(loaded.model, device), moved_to((other or loaded).model, device):
            for name in names:
                followed = other if name == "transfer" else None
                for each in sizes:
                    found.append(
                        attack_data(
                            loaded.model,
                            examined,
                            attack=name,
                            eps=each,
                            images=images,
                            batch_size=batch_size,
                            device=device,
                            # of the network whose gradients are followed.
                            loss=LOSSES[loss] or loss_of(followed or loaded),
                            substitute=None if followed is None else followed.model,
                            **options[name],
                        )
                    )
        record = {"run": run.name, "data": examined.name, "split": split, "loss": loss, "attacks": [f.as_dict() for f in found]}
        folder = pictures or run / "attacks"
        written = _draw(found, folder, [str(name) for name in examined.class_names])
        if as_json is not None and str(as_json) != "-":
            _write(as_json, record)
    if as_json is not None and str(as_json) == "-":
        typer.echo(json.dumps(record, indent=1))
    else:
        _show(console(), found)
    typer.echo(f"{folder} has {written} picture{'' if written == 1 else 's'}", err=True)


def size(text: str) -> float:
    """Read a number or a fraction.

    Example:
        >>> size("51/255"), size("0.1")
        (0.2, 0.1)
    """
    above, mark, below = text.partition("/")
    try:
        found = float(above) / float(below) if mark else float(above)
    except (ValueError, ZeroDivisionError):
        raise ValueError(f"--eps={text!r} is no number; expected one such as 8/255 or 0.1") from None
    if not 0 <= found <= 1:
        raise ValueError(f"--eps={text!r} is no share; expected 0 to 1, of the range from black to white")
    return found


def _names(asked: list[str] | None, substitute: Path | None) -> list[str]:
    from capsella.attacks import ATTACKS
    from capsella.errors import check_choice

    names = asked or (["fgsm", "pgd"] if substitute is None else ["fgsm", "pgd", "transfer"])
    for name in names:
        check_choice("--attack", name, ATTACKS)
    if ("transfer" in names) != (substitute is not None):
        raise ValueError(
            "--attack=transfer follows another network's gradients; expected --substitute RUN with it"
            if substitute is None
            else "--substitute is for --attack=transfer; expected both"
        )
    return names


def _draw(found: list[Attacked], folder: Path, names: list[str]) -> int:
    from capsella.report.attacks import attack_sheet

    try:
        folder.mkdir(parents=True, exist_ok=True)
        for each in found:
            attack_sheet(each, names).save(folder / f"{each.attack}-{each.eps:.4f}.png")
    except OSError as error:
        raise ValueError(f"--pictures={folder} cannot be written to ({error.strerror}); expected a folder of yours") from error
    return len(found)


def _write(path: Path, record: dict[str, Any]) -> None:
    from capsella.data.places import whole_or_nothing

    with whole_or_nothing(path) as file:
        file.write((json.dumps(record, indent=1) + "\n").encode())


def _show(terminal: Console, found: list[Attacked]) -> None:
    table = Table(title=f"{found[0].images:,} images, {found[0].clean:.2%} right as they are", title_justify="left")
    for number, heading in enumerate(("attack", "ε", "right", "largest change", "images without a gradient", "zero gradients")):
        table.add_column(heading, justify="left" if number == 0 else "right")
    for each in found:
        table.add_row(
            each.attack,
            f"{each.eps:.4f}",
            f"{each.accuracy:.2%}",
            f"{each.largest:.4f}",
            *("" if share is None else f"{share:.1%}" for share in (each.zero_images, each.zero_pixels)),
        )
    terminal.print(table)
    masked = max((each.zero_images for each in found if each.zero_images is not None), default=0.0)
    if masked > _MASKED:
        typer.echo(
            f"the gradient of {masked:.1%} of the images is zero: attacks that follow it stand still there, which is no "
            "robustness; --loss difference does not saturate"
        )
