"""Pictures as text: right values, the page's colours, the same text for the same input."""

from __future__ import annotations

import base64
import hashlib
import io
import math
import os
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import numpy.typing as npt
import pytest
import torch
from PIL import Image

from capsella.report import Series, bars, curves, heat_uri, image_uri
from capsella.report.networks import learning_plots, mean_curve
from capsella.report.plots import COLD, FILE_INK, HOT, PALETTE, as_file, panels

SVG = "{http://www.w3.org/2000/svg}"
LINE = Series("a", (0.0, 1.0, 3.0), (0.0, 0.5, 1.5))


def draw(*series: Series, **options: bool) -> str:
    return curves(series, label="two lines", x_label="images seen", y_label="loss", **options)


def path_of(svg: str, colour: str) -> npt.NDArray[np.float64]:
    """Return the points of the longest line of a colour, in pixels from the bottom left."""
    paths = [
        [float(number) for number in re.findall(r"-?[\d.]+", path.get("d", ""))]
        for path in ElementTree.fromstring(svg).iter(f"{SVG}path")
        if f"stroke: {colour}" in path.get("style", "")
    ]
    return np.array(max(paths, key=len)).reshape(-1, 2) * [1, -1]


def texts(svg: str) -> list[str]:
    return [element.text or "" for element in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def pixels(uri: str) -> npt.NDArray[np.uint8]:
    kind, _, data = uri.partition(",")
    assert kind == "data:image/png;base64"
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(data))))


def test_a_line_goes_through_its_points() -> None:
    found = path_of(draw(LINE), PALETTE[0])
    assert found.shape == (3, 2)
    (x0, y0), (x1, y1), (x2, y2) = found
    assert x2 - x0 == pytest.approx(3 * (x1 - x0), rel=1e-4)
    assert y2 - y0 == pytest.approx(3 * (y1 - y0), rel=1e-4)
    assert x1 > x0
    assert y1 > y0


def test_a_logarithmic_axis_shows_factors_as_distances() -> None:
    svg = draw(Series("a", (0, 1, 2), (0.01, 0.1, 1.0)), is_log=True)
    steps = np.diff(path_of(svg, PALETTE[0])[:, 1])
    assert steps[0] == pytest.approx(steps[1], rel=1e-4)
    assert {"0.01", "0.1", "1"} <= set(texts(svg))


def test_a_loss_of_zero_is_drawn_on_a_plain_axis() -> None:
    steps = np.diff(path_of(draw(Series("a", (0, 1, 2), (0.0, 0.1, 0.3)), is_log=True), PALETTE[0])[:, 1])
    assert steps[1] == pytest.approx(2 * steps[0], rel=1e-4)


def test_a_line_is_broken_where_a_value_is_no_number() -> None:
    whole, broken = (draw(Series("a", (0, 1, 2, 3, 4), (0.1, 0.2, y, 0.2, 0.1)), is_log=True) for y in (0.3, math.nan))
    starts = [
        path.get("d", "").count("M")
        for svg in (whole, broken)
        for path in ElementTree.fromstring(svg).iter(f"{SVG}path")
        if f"stroke: {PALETTE[0]}" in path.get("style", "") and path.get("d", "").count("L") > 1
    ]
    assert sorted(starts)[-1] == 2
    assert "0.1" in texts(broken)
    with pytest.raises(ValueError, match="y has values that are not finite"):
        draw(Series("a", (0, 1), (0.1, math.inf)))


def test_a_spread_is_a_band_and_no_spread_none() -> None:
    band = f"fill: {PALETTE[0]}; fill-opacity"
    assert band not in draw(LINE)
    assert band in draw(Series(LINE.label, LINE.x, LINE.y, (0.1, 0.1, 0.1)))


def test_shares_are_written_as_percentages_and_thousands_short() -> None:
    found = texts(draw(Series("a", (0, 60000, 120000), (0.5, 0.75, 1.0)), is_share=True))
    assert {"50 %", "100 %", "100 k"} <= set(found)
    assert {"images seen", "loss", "a"} <= set(found)


def height(svg: str) -> float:
    return float(ElementTree.fromstring(svg).get("viewBox", "").split()[3])


def test_a_faint_line_has_the_colour_of_the_one_before_it_and_one_entry_in_the_legend() -> None:
    other = Series("b", (0.0, 1.0, 3.0), (1.5, 0.5, 0.0))
    beside = [Series("printed", (0.0, 1.0, 3.0), (0.25, 0.75, 1.25), is_faint=True) for _ in range(2)]
    svg = draw(LINE, beside[0], other, beside[1], is_counted=True)
    assert texts(svg)[-3:] == ["a", "b", "printed"]
    dotted = re.findall(r"stroke-dasharray: 1\.1,1\.98;[^\"]*stroke: ([^;\"]*)", svg)
    assert dotted == [PALETTE[0], PALETTE[1], "currentColor"]
    # rings, which leave the marks of ours to be seen.
    assert svg.count("fill: none; stroke") > draw(LINE, other, is_counted=True).count("fill: none; stroke")


def test_a_faint_line_may_come_first() -> None:
    assert texts(draw(Series("printed", (0, 1), (0, 1), is_faint=True)))[-1] == "printed"


def test_a_long_legend_takes_no_room_from_a_roomy_picture() -> None:
    many = [Series(f"a line with quite a long label {k}", LINE.x, LINE.y) for k in range(7)]
    assert height(draw(*many)) == height(draw(LINE)) == height(draw(LINE, is_roomy=True))
    assert height(draw(*many, is_roomy=True)) == pytest.approx(height(draw(LINE)) + 4 * 0.2 * 72)


def test_values_over_many_decades_have_numbers_beside_them() -> None:
    found = texts(draw(Series("a", (0, 1, 2), (1e-14, 1e-6, 1.0)), is_log=True))
    assert len([text for text in found if re.fullmatch(r"1e-\d\d|1", text)]) >= 3


def test_a_picture_in_a_file_has_an_ink_of_its_own() -> None:
    assert "currentColor" not in as_file(draw(LINE))
    for ground in ("#ffffff", "#0d1117"):
        assert contrast(FILE_INK, ground) >= 4


def test_labels_are_escaped_and_are_no_formulas() -> None:
    labels = ["_hidden", "$x^2$", "<b>&amp;"]
    svg = curves([Series(name, (0, 1), (0, 1)) for name in labels], label='"><script>', x_label="<i>", y_label="$y$")
    assert set(labels) | {"<i>", "$y$"} <= set(texts(svg))
    assert "<script" not in svg
    assert ElementTree.fromstring(svg).get("aria-label") == '"><script>'


def test_bars_are_as_long_as_their_values() -> None:
    svg = bars(["one", "two"], [Series("x", (), (0.25, 0.75), (0.05, 0.0))], label="two bars", x_label="accuracy")
    widths = []
    for path in ElementTree.fromstring(svg).iter(f"{SVG}path"):
        if f"fill: {PALETTE[0]}" in path.get("style", ""):
            edges = np.array([float(number) for number in re.findall(r"-?[\d.]+", path.get("d", ""))]).reshape(-1, 2)
            widths.append(np.ptp(edges[:, 0]))
    # the legend's patch is one more.
    assert widths[1] / widths[0] == pytest.approx(3, rel=1e-3)
    assert {"25.0 %", "75.0 %", "one", "two", "accuracy"} <= set(texts(svg))


def test_ink_is_the_pages_and_ids_are_few() -> None:
    first, second = draw(LINE), curves([LINE], label="another", x_label="x", y_label="y")
    for svg in (first, second):
        assert "currentColor" in svg
        assert "#010203" not in svg
        assert "#000000" not in svg
        assert "<style" not in svg
        assert "DejaVu" not in svg
        assert "http" not in re.sub(r' xmlns(:xlink)?="[^"]*"', "", svg)
    ids = [re.findall(r'\bid="([^"]*)"', svg) for svg in (first, second)]
    assert ids[0]
    assert not set(ids[0]) & set(ids[1])


def contrast(colour: str, ground: str) -> float:
    lights = []
    for text in (colour, ground):
        parts = [int(text[k : k + 2], 16) / 255 for k in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        lights.append(0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2])
    return (max(lights) + 0.05) / (min(lights) + 0.05)


@pytest.mark.parametrize("ground", ["#ffffff", "#181c20"])
def test_series_stand_out_from_both_grounds(ground: str) -> None:
    assert len(set(PALETTE)) == len(PALETTE)
    for colour in PALETTE:
        assert contrast(colour, ground) >= 3, colour


PROGRAM = """
import hashlib, sys
import capsella.report as report
from capsella.report.networks import learning_plots
from capsella.report.page import render
early = [name for name in ("torch", "matplotlib", "jinja2", "PIL") if name in sys.modules]
plots = learning_plots([("a", [((1, 0.5, 0.5), (2, 0.25, 0.75)), ((1, 0.4, 0.6), (2, 0.2, 0.8))])])
late = [name for name in ("torch", "matplotlib.pyplot") if name in sys.modules]
print(early, late, hashlib.sha256("".join(plots).encode()).hexdigest())
"""


def test_another_process_draws_the_same_and_loads_no_more_than_it_needs(tmp_path: Path) -> None:
    # what lies where the user works must not change the picture.
    (tmp_path / "matplotlibrc").write_text("font.size: 30\nxtick.major.size: 12\nsvg.fonttype: path\n")
    source = str(Path(__file__).resolve().parents[2] / "src")
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": source, "PYTHONHASHSEED": "7"},
        timeout=120,
        check=False,
    )
    runs = (((1, 0.5, 0.5), (2, 0.25, 0.75)), ((1, 0.4, 0.6), (2, 0.2, 0.8)))
    here = hashlib.sha256("".join(learning_plots([("a", runs)])).encode()).hexdigest()
    assert result.returncode == 0, result.stderr
    assert result.stdout == f"[] [] {here}\n"


def test_settings_of_matplotlib_are_left_as_they_were() -> None:
    import matplotlib

    before = dict(matplotlib.rcParams)
    draw(LINE)
    assert dict(matplotlib.rcParams) == before


def test_nothing_to_draw_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"^series=\(\) has nothing to draw; expected at least one entry$"):
        curves([], label="x", x_label="x", y_label="y")
    with pytest.raises(ValueError, match=r"^y has shape \[2\]; expected \[n=3\]$"):
        draw(Series("a", (0, 1, 2), (0, 1)))


def test_panels_keep_their_pixels_and_their_order() -> None:
    first, second = np.linspace(0, 1, 12).reshape(3, 4), np.zeros((2, 4))
    svg = panels([("seen & shown", first), ("drawn", second)], label="two sheets")
    assert texts(svg) == ["seen & shown", "drawn"]
    found = [image.get("{http://www.w3.org/1999/xlink}href") or "" for image in ElementTree.fromstring(svg).iter(f"{SVG}image")]
    shown = [pixels(uri.replace("\n", ""))[..., 0] for uri in found]
    assert [each.shape for each in shown] == [(3, 4), (2, 4)]
    assert np.abs(shown[0] / 255 - first).max() < 1e-2
    assert not shown[1].any()
    assert svg == panels([("seen & shown", first), ("drawn", second)], label="two sheets")
    assert svg != panels([("seen & shown", first), ("drawn", second)], label="others")
    with pytest.raises(ValueError, match=r"^images=\(\) has nothing to draw"):
        panels([], label="x")
    with pytest.raises(ValueError, match="expected values from 0 to 1"):
        panels([("a", first * 3)], label="x")


@pytest.mark.parametrize("shape", [(2, 3), (1, 2, 3)])
def test_grey_images_keep_their_values(shape: tuple[int, ...]) -> None:
    image = torch.tensor([0.0, 0.2, 0.4, 0.6, 0.8, 1.0]).reshape(shape)
    assert pixels(image_uri(image)).tolist() == [[0, 51, 102], [153, 204, 255]]


def test_three_channels_are_colours() -> None:
    image = torch.zeros(3, 1, 2)
    image[0, 0, 0] = image[2, 0, 1] = 1.0
    assert pixels(image_uri(image)).tolist() == [[[255, 0, 0], [0, 0, 255]]]


def test_two_channels_lie_side_by_side() -> None:
    assert pixels(image_uri(torch.tensor([[[0.0, 0.2]], [[0.4, 1.0]]]))).tolist() == [[0, 51, 102, 255]]


def test_an_image_of_a_normalised_batch_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^image has values from -2 to 0; expected values from 0 to 1$"):
        image_uri(torch.tensor([[0.0, -2.0]]))


def test_heat_is_the_opacity_of_two_colours() -> None:
    found = pixels(heat_uri([[0.0, 1.0], [-2.0, 4.0]], top=2.0))
    assert found[..., 3].tolist() == [[0, 128], [255, 255]]
    assert tuple(found[0, 1, :3]) == HOT
    assert tuple(found[1, 0, :3]) == COLD
    assert pixels(heat_uri([[0.0]], top=0.0))[..., 3].tolist() == [[0]]


def test_the_mean_curve_is_that_of_the_points_all_runs_have() -> None:
    runs = [((1, 0.6, 0.1), (2, 0.4, 0.3), (3, 0.2, 0.5)), ((1, 0.8, 0.1), (2, 0.4, 0.5), (4, 0.1, 0.9))]
    assert mean_curve(runs, 1, label="a").x == (1, 2)
    assert mean_curve(runs, 1, label="a").y == pytest.approx((0.7, 0.4))
    assert mean_curve(runs, 2, label="a").spread == pytest.approx((0.0, 0.1 * 2**0.5))
    assert mean_curve(runs[:1], 2, label="a") == Series("a", (1, 2, 3), (0.1, 0.3, 0.5), None)


def test_points_that_are_not_finite_are_left_out() -> None:
    run = ((1, 0.6, 0.1), (2, float("nan"), 0.3), (3, float("inf"), 0.4))
    assert mean_curve([run], 1, label="a").x == (1,)
    assert mean_curve([run], 2, label="a").x == (1, 2, 3)


def test_curves_without_a_point_in_common_are_an_error() -> None:
    with pytest.raises(ValueError, match=r"^the curves of 'a' have no number of images in common; expected points"):
        mean_curve([((1, 0.5, 0.5),), ((2, 0.5, 0.5),)], 1, label="a")


def test_networks_without_curves_have_no_plots() -> None:
    assert learning_plots([("a", []), ("b", [()])]) == []
    assert len(learning_plots([("a", [()]), ("b", [((1, 0.5, 0.5),)])])) == 2
