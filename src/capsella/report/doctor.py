"""The doctor's page: symptoms, figures of every layer, plots and parse trees, from one record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from capsella.report.page import render
from capsella.report.plots import Series, curves, image_uri
from capsella.report.trees import pair_svg, statistics_svg, tree_svg
from capsella.report.values import Values

Record = Mapping[str, Any]

HEADER = (
    "layer",
    "capsules",
    "dead",
    "active",
    "mean length",
    "dyr",
    "dys",
    "entropy",
    "x against −x",
    "gradient",
    "time, memory ÷ attention's",
)
_UNITS = {"rotation": "degrees", "translation": "pixels", "shear": "degrees", "scale": "factor"}


def doctor_page(
    record: Record,
    *,
    title: str,
    trees: Sequence[Record] = (),
    view: Record | None = None,
    statistics: Record | None = None,
    images: Sequence[Values] = (),
    class_names: Sequence[str] | None = None,
) -> str:
    """Return a diagnosis as one HTML file.

    Args:
        record: ``Diagnosis.as_dict()``.
        title: of what.
        trees: parse trees of some images.
        view: that of the first image, turned.
        statistics: of all images.
        images: of ``trees`` and then of ``view``, [C, H, W] from 0 to 1.
        class_names: of the last layer's capsules.
    """
    symptoms = record["symptoms"]
    diseases = [each for each in symptoms if not each["is_note"]]
    return render(
        "doctor.html",
        title=title,
        lead=_lead(record, len(diseases)),
        symptoms=_grouped([*diseases, *(each for each in symptoms if each["is_note"])]),
        header=HEADER,
        rows=[_row(number, layer) for number, layer in enumerate(record["layers"], 1)],
        swaps=record["routing_matters"] and {key: f"{value:.2%}" for key, value in record["routing_matters"].items()},
        plots=_plots(record["layers"]),
        views=_views(record["layers"]),
        **_drawn(trees, view, statistics, [image_uri(image) for image in images], class_names, record["layers"]),
    )


def _lead(record: Record, diseases: int) -> str:
    sizes = "/".join(f"{layer['capsules']:,}" for layer in record["layers"])
    right = "" if record["accuracy"] is None else f", {record['accuracy']:.2%} of them right"
    found = "No symptom was found." if not diseases else f"{diseases} symptom{'' if diseases == 1 else 's'} found."
    return f"{sizes} capsules, seen on {record['images']:,} images{right}. {found}"


def _grouped(symptoms: Sequence[Record]) -> list[dict[str, Any]]:
    """Put what several layers have in common together: it is explained once."""
    groups: dict[str, dict[str, Any]] = {}
    for each in symptoms:
        groups.setdefault(each["key"], {**each, "all": []})["all"].append(each["says"])
    return list(groups.values())


def _row(number: int, layer: Record) -> list[str]:
    cost = layer["cost"]
    return [
        f"{number}, {layer['name']}",
        f"{layer['capsules']:,} × {layer['dim']}",
        f"{layer['cds']:,} ({layer['cdr']:.0%})",
        f"{layer['car']:.0%}",
        f"{layer['cnm']:.3f}",
        _number(layer["dyr"]),
        "" if layer["dys"] is None else f"{layer['dys']:.2f} of {layer['live_targets']:,}",
        _number(layer["entropy"]),
        "" if layer["negation_gap"] is None else f"{layer['negation_gap']:.2g}",
        "" if layer["gradient"] is None else f"{layer['gradient']:.1e}",
        "" if cost is None else _beside_attention(cost),
    ]


def _beside_attention(cost: Record) -> str:
    time, memory = cost["seconds"] / cost["attention_seconds"], cost["memory"] / max(1, cost["attention_memory"])
    return f"{time:.2g}, {memory:.2g}"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def _plots(layers: Sequence[Record]) -> list[str]:
    """Draw dead and active capsules, dynamics and gradients against depth; what was not measured is left out."""
    numbers = tuple(float(k) for k in range(1, len(layers) + 1))
    activity = [
        Series("dead", numbers, tuple(layer["cdr"] for layer in layers)),
        Series("active in an image", numbers, tuple(layer["car"] for layer in layers)),
    ]
    found = [
        curves(
            activity,
            label="Share of dead and of active capsules in each layer",
            x_label="layer",
            is_counted=True,
            y_label="capsules",
            is_share=True,
        )
    ]
    routed = [(number, layer) for number, layer in zip(numbers, layers, strict=True) if layer["dyr"] is not None]
    if routed:
        places = tuple(number for number, _ in routed)
        series = [Series("dyr, live targets", places, tuple(layer["dyr"] for _, layer in routed))]
        if all(layer["entropy"] is not None for _, layer in routed):
            series.append(Series("entropy of couplings", places, tuple(layer["entropy"] for _, layer in routed)))
        found.append(
            curves(
                series,
                label="Dynamics and entropy of the couplings above each layer",
                x_label="layer",
                is_counted=True,
                y_label="of perfect routing, of uniform",
            )
        )
    graded = [(number, layer["gradient"]) for number, layer in zip(numbers, layers, strict=True) if layer["gradient"]]
    if graded:
        line = Series("gradient of a capsule", tuple(k for k, _ in graded), tuple(value for _, value in graded))
        found.append(
            curves(
                [line],
                label="Mean length of the gradient that reaches a capsule of each layer",
                x_label="layer",
                is_counted=True,
                y_label="length",
                is_log=True,
            )
        )
    return found


def _views(layers: Sequence[Record]) -> list[str]:
    """Draw the correlation of each layer against the change of view, and what chance gives for the last one."""
    found = []
    for view in layers[0]["viewpoint"]:
        series = []
        for number, layer in enumerate(layers, 1):
            rows = [row for row in layer["viewpoint"][view] if row["correlation"] is not None]
            if rows:
                series.append(Series(f"layer {number}", *_line(rows, "correlation")))
        rows = [row for row in layers[-1]["viewpoint"][view] if row["chance"] is not None]
        if rows:
            series.append(Series(f"layer {len(layers)}, by chance", *_line(rows, "chance")))
        if series:
            label = f"Correlation of the capsules' activations under {view}"
            found.append(curves(series, label=label, x_label=f"{view}, {_UNITS.get(view, '')}", y_label="correlation"))
    return found


def _line(rows: Sequence[Record], key: str) -> tuple[tuple[float, ...], tuple[float, ...]]:
    return tuple(float(row["amount"]) for row in rows), tuple(row[key] for row in rows)


def _drawn(
    trees: Sequence[Record],
    view: Record | None,
    statistics: Record | None,
    images: Sequence[str],
    class_names: Sequence[str] | None,
    layers: Sequence[Record],
) -> dict[str, Any]:
    """Return the pictures of trees."""
    # a row of layers at the top of the network; those below it are no part of its trees.
    dead = [layer["dead"] for layer in layers[-len(trees[0]["layers"]) :]] if trees else None
    names = class_names if trees and class_names is not None and len(class_names) == len(trees[0]["layers"][-1]) else None
    drawn = [
        tree_svg(tree, label=f"Parse tree of image {k + 1}", image=images[k], dead=dead, class_names=names)
        for k, tree in enumerate(trees)
    ]
    pair = None
    if view is not None and trees:
        both = (images[0], images[len(trees)])
        pair = pair_svg(
            trees[0],
            view,
            label="Parse trees of an image and of the same image turned",
            images=both,
            captions=("as it is", "turned by 20°"),
        )
    return {
        "trees": drawn,
        "pair": pair,
        "mean": None if statistics is None else statistics_svg(statistics, label="Mean parse tree of all images"),
        "std": None if statistics is None else statistics_svg(statistics, label="Standard deviation over the images", of="std"),
    }
