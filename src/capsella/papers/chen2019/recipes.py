"""chen2019: couplings that are trained like weights, beside dynamic routing and CNNs; attacks, and images of an AC-GAN.

README.md has settings, their sources, and departures.
"""

from __future__ import annotations

from collections.abc import Sequence

from capsella.papers.chen2019.claims import CLAIMS, ITERATIONS, iterated
from capsella.papers.chen2019.facts import FACTS, REMARKS
from capsella.papers.chen2019.nets import cell
from capsella.papers.chen2019.plots import PLOTS
from capsella.papers.chen2019.robustness import NETS, ROUTED
from capsella.papers.chen2019.rows import BASIS, CONTROLS, COUPLINGS, ITERATED, MARGINS, RATED, SQUASHES, TABLE2, TIMES
from capsella.papers.paper import TITLES, Paper, Table
from capsella.papers.recipe import Recipe


def _keys(recipes: Sequence[Recipe]) -> tuple[str, ...]:
    return tuple(recipe.key for recipe in recipes)


_THREE, _FIVE = tuple(NETS.values()), (*NETS.values(), *ROUTED.values())
_COUPLED = tuple(recipe.key for recipe in TABLE2 if COUPLINGS in recipe.measures)


def _attack(key: str, name: str, title: str, reading: str, rows: tuple[str, ...] = _FIVE, note: str = "") -> Table:
    return Table(key, name, title, rows, reading=reading, note=note)


_SHARES = "The printed accuracies are the test images' shares of the digits 1 and 5."
_MARGIN_NOTE = "Rows of Table 2, whose margins are 0.7 on MNIST and 0.6 on CIFAR-10, stand first."

PAPER = Paper(
    "chen2019",
    TITLES["chen2019"],
    recipes=(*TABLE2, *SQUASHES, *CONTROLS, *ITERATED, *MARGINS, *RATED, *TIMES),
    tables=(
        Table("table2", "Table 2", "Error on MNIST and CIFAR-10", _keys(TABLE2), reading="error"),
        Table(
            "table3",
            "Table 3",
            "Mean error on what AC-GAN draws after its epochs 1 to 3",
            _THREE,
            reading="generated_early",
            note="The plot and the list of printed numbers have each epoch; epochs 2 and 3 decide the claim.",
        ),
        _attack(
            "blackbox",
            "Section 4.3",
            "Accuracy on MNIST under FGSM from LeNet, 8 of 255",
            "blackbox",
            note="The CapsNet and the EM CapsNet are ours.",
        ),
        _attack(
            "blackbox-unscaled",
            "Section 4.3",
            "The same, with ±8 added to images of values from 0 to 1",
            "unscaled",
            note=_SHARES,
        ),
        _attack(
            "blackbox-twice",
            "Section 4.3",
            "The same with 8 of 255, and images that are divided by 255 once more before the nets see them",
            "twice",
            note=_SHARES,
        ),
        _attack(
            "whitebox",
            "Section 4.4",
            "Accuracy on MNIST under one perturbation for all images, 8 of 255, 100 iterations",
            "universal",
            note="The paper has a curve and no numbers, nor a bound.",
        ),
        _attack("whitebox-0.3", "Section 4.4", "The same with a bound of 0.3", "universal3"),
        _attack("fgsm", "", "Accuracy on MNIST under FGSM with the net's own gradient, 8 of 255", "fgsm"),
        _attack("zero-images", "", "Images whose gradient is zero everywhere", "zero_images"),
        _attack("zero-pixels", "", "Values of the gradient by the image that are zero", "zero_pixels"),
        _attack(
            "zero-pixels-difference",
            "Section 4.4",
            "The same of the difference of scores, which sees through margins that are kept",
            "zero_pixels_seeing",
        ),
        Table(
            "couplings",
            "Table 1",
            "What the couplings of a capsule add up to over the classes",
            _COUPLED,
            reading="coupling_sum",
            note="Means over the capsules below the classes; claims have the lowest and the highest.",
        ),
        Table(
            "squash",
            "Section 3.2",
            "Mean error over the first third of the steps, by the squash",
            tuple(key for pair in zip((cell(*each) for each in BASIS.items()), _keys(SQUASHES), strict=True) for key in pair),
            reading="early_error",
        ),
        Table(
            "iterations",
            "Section 1",
            "Error of a CapsNet on MNIST by its iterations of routing",
            tuple(map(iterated, ITERATIONS)),
            reading="error",
            note="The released net has four.",
        ),
        Table(
            "margin",
            "",
            "Error with Sabour's margin of 0.9",
            (*(key.replace("/margin/", "/table2/").removesuffix("-0.9") for key in _keys(MARGINS)), *_keys(MARGINS)),
            reading="error",
            note=_MARGIN_NOTE,
        ),
        Table(
            "rate", "", "Error of a CapsNet on MNIST by its rate", (cell("mnist", "capsnet"), *_keys(RATED)), reading="error"
        ),
        Table(
            "controls",
            "",
            "What is gained by training couplings, by the solver, and by shifted images",
            _keys(CONTROLS),
            reading="error",
        ),
        Table("time", "", "Seconds of 100 steps, as they are trained", _keys(TIMES), reading="seconds"),
        Table(
            "time-reference",
            "",
            "Seconds of 100 steps, plain and routed by the reference",
            _keys(TIMES),
            reading="reference_seconds",
        ),
    ),
    plots=PLOTS,
    claims=CLAIMS,
    facts=FACTS,
    remarks=REMARKS,
    beyond="What couplings are worth, and what the attacks say",
)
