"""Pages: records and tensors in, self-contained HTML out."""

from capsella.report.compare import (
    HEADER,
    AffineExamples,
    ComparisonRow,
    ComparisonStory,
    Verdict,
    comparison_page,
    comparison_table,
    verdict,
    verdicts,
)
from capsella.report.couplings import CouplingView, grid_extent
from capsella.report.doctor import doctor_page
from capsella.report.page import render, write_page
from capsella.report.plots import Series, bars, curves, heat_uri, image_uri
from capsella.report.quickstart import Dimensions, Examples, QuickstartStory, TrainedNetwork, quickstart_page
from capsella.report.trees import pair_svg, statistics_svg, tree_svg
from capsella.report.values import mean_and_spread

__all__ = [
    "HEADER",
    "AffineExamples",
    "ComparisonRow",
    "ComparisonStory",
    "CouplingView",
    "Dimensions",
    "Examples",
    "QuickstartStory",
    "Series",
    "TrainedNetwork",
    "Verdict",
    "bars",
    "comparison_page",
    "comparison_table",
    "curves",
    "doctor_page",
    "grid_extent",
    "heat_uri",
    "image_uri",
    "mean_and_spread",
    "pair_svg",
    "quickstart_page",
    "render",
    "statistics_svg",
    "tree_svg",
    "verdict",
    "verdicts",
    "write_page",
]
