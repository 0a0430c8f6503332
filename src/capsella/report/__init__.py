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
from capsella.report.page import render, write_page
from capsella.report.plots import Series, bars, curves, heat_uri, image_uri
from capsella.report.quickstart import Dimensions, Examples, QuickstartStory, TrainedNetwork, quickstart_page
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
    "grid_extent",
    "heat_uri",
    "image_uri",
    "mean_and_spread",
    "quickstart_page",
    "render",
    "verdict",
    "verdicts",
    "write_page",
]
