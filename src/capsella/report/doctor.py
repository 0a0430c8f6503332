"""The doctor's page: symptoms, figures of every layer, plots and parse trees, from one record and nothing else."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from capsella.report.page import render
from capsella.report.plots import Series, curves, image_uri
from capsella.report.trees import pair_svg, statistics_svg, tree_svg

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
_CHANCE = "the same by chance"


def doctor_page(record: Record, *, title: str | None = None) -> str:
    """Return a diagnosis as one HTML file; symptoms are found anew from the figures.

    Args:
        record: ``Diagnosis.as_dict()``, or what ``read_record`` returns; one of before, which has no pictures, makes a page
            without trees.
        title: of what; model, data and split if None, as far as the record has them.
    """
    # here, because they load torch, which the rest of this folder does without.
    from capsella.analysis.records import completed
    from capsella.analysis.symptoms import find_symptoms
    from capsella.analysis.training import lives_in_words
    from capsella.analysis.words import left_out, no_symptom

    record = completed(record)
    symptoms = [symptom.as_dict() for symptom in find_symptoms(record)]
    diseases = [each for each in symptoms if not each["is_note"]]
    layers, training, nothing = record["layers"], record["training"], no_symptom(record)
    return render(
        "doctor.html",
        title=title if title is not None else title_of(record),
        lead=_lead(record, len(diseases), nothing),
        symptoms=_grouped([*diseases, *(each for each in symptoms if each["is_note"])]),
        header=HEADER,
        rows=[_row(number, layer) for number, layer in enumerate(layers, 1)],
        sweep=_sweep(layers),
        swaps=_swaps(record["routing_matters"]),
        left_out=[] if record["non_finite"] else left_out(record),
        nothing=nothing,
        plots=_plots(layers),
        lives=lives_in_words(training) if training else [],
        training=_training(training) if training else [],
        views=_views(layers),
        compactness=_compactness(record["compactness"]),
        **_drawn(record["pictures"], layers),
    )


def title_of(record: Record) -> str:
    """Return what a record is of, in a few words."""
    name = str((record.get("model") or {}).get("name", "network"))
    return f"{name} on {record['data']}/{record['split']}" if "data" in record and "split" in record else name


def _lead(record: Record, diseases: int, nothing: str) -> str:
    sizes = "/".join(f"{layer['capsules']:,}" for layer in record["layers"])
    right = "" if record["accuracy"] is None else f", {record['accuracy']:.2%} of them right"
    found = f"{diseases} symptom{_s(diseases)} found" if diseases else f"{nothing[0].upper()}{nothing[1:]}"
    return f"{sizes} capsules, seen on {record['images']:,} image{_s(record['images'])}{right}. {found}."


def _s(count: int) -> str:
    return "" if count == 1 else "s"


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
        _number(layer["cnm"]),
        _number(layer["dyr"]),
        choices(layer),
        _number(layer["entropy"]),
        _number(layer["negation_gap"], ".2g"),
        _number(layer["gradient"], ".1e"),
        "" if cost is None else _beside_attention(cost),
    ]


def choices(layer: Record) -> str:
    """Write dys beside what there was to choose among: targets, unless it says sources."""
    if layer["dys"] is None:
        return ""
    return f"{layer['dys']:.2f} of {layer['live_targets']:,}" + (" sources" if layer["normalise"] == "sources" else "")


def _beside_attention(cost: Record) -> str:
    time, memory = cost["seconds"] / cost["attention_seconds"], cost["memory"] / max(1, cost["attention_memory"])
    return f"{time:.2g}, {memory:.2g}"


def _number(value: float | None, form: str = ".3f") -> str:
    return "" if value is None else f"{value:{form}}"


def _swaps(found: Record | None) -> dict[str, str] | None:
    return None if found is None else {key: f"{found[key]:.2%}" for key in ("own", "uniform", "other")}


def _sweep(layers: Sequence[Record]) -> dict[str, Any] | None:
    """Return the share of active capsules at several thresholds, as a table."""
    if any(layer["sweep"] is None for layer in layers):
        return None
    header = ["layer", *(f"from {row['active']:g}" for row in layers[0]["sweep"])]
    rows = [[f"{number}", *(f"{row['car']:.1%}" for row in layer["sweep"])] for number, layer in enumerate(layers, 1)]
    return {"header": header, "rows": rows}


def _compactness(found: Record | None) -> dict[str, Any] | None:
    """Return gu2021's score of each factor, as a table."""
    if found is None:
        return None
    rows = [
        [factor.replace("_", " along "), _range(row), _number(row["mean"]), _number(row["std"])]
        for factor, row in found["factors"].items()
    ]
    header = ["factor", "steps from, to", "score", "spread over images"]
    return {"header": header, "rows": rows, "images": f"{found['images']:,}", "most": f"{math.log(found['values']):.2f}"}


def _range(row: Record) -> str:
    return f"{row['from']:g} to {row['to']:g}".replace("-", "−")


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
        among = sorted({layer["normalise"] or "targets" for _, layer in routed}, reverse=True)
        series = [Series(f"dyr, live {' or '.join(among)}", places, tuple(layer["dyr"] for _, layer in routed))]
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
    changed = _changes(layers)
    if changed:
        label = "Share of a capsule's couplings that each iteration moves elsewhere, above each layer"
        found.append(curves(changed, label=label, x_label="layer", is_counted=True, y_label="moved couplings", is_share=True))
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


def _changes(layers: Sequence[Record]) -> list[Series]:
    """Return how much of the couplings each iteration moved, a line for every iteration but the first."""
    series = []
    for t in range(max(len(layer["change"] or []) for layer in layers)):
        points = [(k, layer["change"][t]) for k, layer in enumerate(layers, 1) if len(layer["change"] or []) > t]
        known = [(float(k), value) for k, value in points if value is not None]
        if known:
            series.append(Series(f"iteration {t + 2}", tuple(k for k, _ in known), tuple(value for _, value in known)))
    return series


def _training(training: Record) -> list[str]:
    """Draw dead capsules and gradients of each layer against the steps of the training."""
    found = []
    dead = _over_steps(training, "dead")
    # where none ever was, words are enough.
    if any(value for line in dead for value in line.y):
        label = "Share of dead capsules in each layer over the training"
        found.append(curves(dead, label=label, x_label="step", y_label="dead capsules", is_share=True, is_roomy=True))
    gradients = _over_steps(training, "gradient")
    if gradients:
        label = "Mean length of the gradient that reaches a capsule of each layer over the training"
        found.append(curves(gradients, label=label, x_label="step", y_label="gradient", is_log=True, is_roomy=True))
    return found


def _over_steps(training: Record, key: str) -> list[Series]:
    series = []
    for number, layer in enumerate(training["layers"], 1):
        points = [
            (step, value) for step, value in zip(training["steps"], layer.get(key, ()), strict=False) if value is not None
        ]
        if points:
            steps, values = tuple(float(step) for step, _ in points), tuple(float(value) for _, value in points)
            series.append(Series(f"layer {number}", steps, values))
    return series


def _views(layers: Sequence[Record]) -> list[str]:
    """Draw the correlation of each layer against the change of view, and in the same colour what chance gives for it."""
    found = []
    for view in layers[0]["viewpoint"]:
        series = []
        for number, layer in enumerate(layers, 1):
            rows = [row for row in layer["viewpoint"][view] if row["correlation"] is not None and row["chance"] is not None]
            if rows:
                series.append(Series(f"layer {number}", *_line(rows, "correlation")))
                series.append(Series(_CHANCE, *_line(rows, "chance"), is_faint=True))
        if series:
            label = f"Correlation of the capsules' activations under {view}"
            unit = f"{view}, {_UNITS.get(view, '')}"
            found.append(curves(series, label=label, x_label=unit, y_label="correlation", is_roomy=True))
    return found


def _line(rows: Sequence[Record], key: str) -> tuple[tuple[float, ...], tuple[float, ...]]:
    return tuple(float(row["amount"]) for row in rows), tuple(row[key] for row in rows)


def _drawn(pictures: Record | None, layers: Sequence[Record]) -> dict[str, Any]:
    """Return the pictures of trees."""
    if not pictures:
        return {"trees": [], "pair": None, "mean": None, "std": None}
    trees, view, statistics = pictures["trees"], pictures["view"], pictures["statistics"]
    shown = pictures["images"]
    images = [] if shown is None else [image_uri(_unit(image)) for image in shown]
    # a row of layers at the top of the network; those below it are no part of its trees.
    common = {"dead": [layer["dead"] for layer in layers[-len(trees[0]["layers"]) :]], "class_names": pictures["class_names"]}
    drawn = [
        tree_svg(tree, label=f"Parse tree of image {k + 1}", image=images[k] if images else None, **common)
        for k, tree in enumerate(trees)
    ]
    pair = None
    if view is not None:
        pair = pair_svg(
            trees[0],
            view,
            label="Parse trees of an image and of the same image turned",
            images=(images[0], images[len(trees)]) if images else None,
            captions=("as it is", "turned by 20°"),
            **common,
        )
    means = {}
    if statistics is not None:
        names = {"class_names": pictures["class_names"]}
        means["mean"] = statistics_svg(statistics, label="Mean parse tree of all images", **names)
        means["std"] = statistics_svg(statistics, label="Standard deviation over the images", of="std", **names)
    return {"trees": drawn, "pair": pair, "mean": None, "std": None, **means}


def _unit(image: Sequence[Any]) -> Any:
    """Return grey levels as values from 0 to 1."""
    import numpy as np

    return np.asarray(image, dtype=np.float64) / 255
