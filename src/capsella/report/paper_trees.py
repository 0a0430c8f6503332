"""Parse trees of a paper's results, drawn from a record (mitterreiter2023, Figures 2, 3 and 5)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, cast

from capsella.papers.images import unpack
from capsella.report.plots import image_uri
from capsella.report.trees import pair_svg, statistics_svg, tree_svg


def trees_svg(record: Mapping[str, Any], part: str, *, label: str) -> str:
    """Draw one part of a record's trees.

    Args:
        record: what ``analysis.pictures.pictures_of`` made, with its images packed.
        part: as ``papers.paper.Trees`` has it.
        label: what the picture shows.

    Returns:
        An ``<svg>`` element; nothing where the record does not have the part.
    """
    statistics, names = record["statistics"], record["class_names"]
    if part in ("mean", "std"):
        of = cast(Literal["mean", "std"], part)
        return "" if statistics is None else statistics_svg(statistics, label=label, of=of, class_names=names)
    images = [image_uri(unpack(sheet)) for sheet in record["images"]]
    dead = None if statistics is None else statistics["dead"]
    one, view = record["trees"][0], record["view"]
    if part == "image":
        return tree_svg(one, label=label, image=images[0], dead=dead, class_names=names)
    if view is None:
        return ""
    # the turned image is the last one.
    shown = (images[0], images[-1])
    return pair_svg(one, view, label=label, captions=("as it is", "turned"), images=shown, dead=dead, class_names=names)
