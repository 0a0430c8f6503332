"""Parse trees as pictures: what is in a record is in the picture, and more of it is more ink."""

from __future__ import annotations

import copy
import hashlib
import itertools
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import in_a_browser
import numpy as np
import pytest
import torch

import capsella
from capsella.analysis import TreeStatisticsOf, parse_trees
from capsella.analysis.layers import observe
from capsella.analysis.pictures import trimmed
from capsella.report.plots import image_uri
from capsella.report.trees import LARGEST_STD, VISIBLE, pair_svg, statistics_svg, tree_svg

SVG = "{http://www.w3.org/2000/svg}"
DEEP = (16, 16, 16, 16, 10)
IMAGE = image_uri(np.linspace(0, 1, 64).reshape(8, 8))


def make_tree(sizes: tuple[int, ...] = (3, 4, 2), seed: int = 0, sharpness: float = 3.0) -> dict[str, Any]:
    """Make up a tree: couplings of each lower capsule sum to 1, as a softmax gives them."""
    draw = np.random.default_rng(seed)
    logits = [sharpness * draw.normal(size=(i, j)) for i, j in itertools.pairwise(sizes)]
    edges = [np.exp(each) / np.exp(each).sum(axis=1, keepdims=True) for each in logits]
    layers = [draw.random(size) for size in sizes]
    return {
        "answer": int(layers[-1].argmax()),
        "names": [f"layers.{k}" for k in range(len(edges))],
        "layers": [layer.round(4).tolist() for layer in layers],
        "edges": [each.round(4).tolist() for each in edges],
    }


def make_statistics(sizes: tuple[int, ...] = (3, 4, 2), images: int = 20) -> dict[str, Any]:
    trees = [make_tree(sizes, seed) for seed in range(images)]
    found: dict[str, Any] = {"images": images, "names": trees[0]["names"], "dead": [[False] * size for size in sizes]}
    found["dead"][1][-1] = True
    for one, many in (("layer", "layers"), ("edge", "edges")):
        stacks = [np.array([tree[many][k] for tree in trees]) for k in range(len(trees[0][many]))]
        found[many] = [stack.mean(axis=0).tolist() for stack in stacks]
        found[f"{one}_stds"] = [stack.std(axis=0).tolist() for stack in stacks]
    return found


def line_between(*couplings: float) -> dict[str, Any]:
    """Return a tree of one lower capsule with these couplings."""
    return {"answer": 0, "layers": [[1.0], [0.5] * len(couplings)], "edges": [[list(couplings)]]}


def parts(svg: str, name: str) -> list[ElementTree.Element]:
    """Return the parts of the trees of this name, without those of the key."""
    trees = [part for part in ElementTree.fromstring(svg).iter() if part.get("data-part") == "tree"]
    return [part for tree in trees for part in tree.iter() if part.get("data-part") == name]


def lines(svg: str) -> list[ElementTree.Element]:
    """Return all lines, layer by layer."""
    return [line for group in parts(svg, "edges") for line in group]


def looks(svg: str) -> list[tuple[float, float]]:
    """Return width and opacity of the lines, from the top."""
    found = sorted(lines(svg), key=lambda line: ends(line)[3])
    return [(float(line.attrib["stroke-width"]), float(line.attrib["stroke-opacity"])) for line in found]


def ends(line: ElementTree.Element) -> tuple[float, ...]:
    return tuple(float(number) for number in re.findall(r"-?[\d.]+", line.attrib["d"]))


def texts(svg: str) -> list[str]:
    return ["".join(element.itertext()) for element in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def centres(svg: str, name: str = "node") -> list[tuple[float, float]]:
    return [(float(part.attrib["cx"]), float(part.attrib["cy"])) for part in parts(svg, name)]


def test_every_capsule_and_every_coupling_is_there() -> None:
    svg = tree_svg(make_tree(sharpness=0.3), label="a tree")
    assert len(parts(svg, "node")) == len(parts(svg, "disc")) == 3 + 4 + 2
    assert [len(group) for group in parts(svg, "edges")] == [3 * 4, 4 * 2]
    assert parts(svg, "cross") == []
    found = ElementTree.fromstring(svg)
    assert (found.get("role"), found.get("aria-label")) == ("img", "a tree")
    assert {"layer 1", "3 capsules", "layer 2", "4 capsules", "layer 3", "2 classes"} <= set(texts(svg))


def test_layers_go_from_left_to_right_and_lines_from_rim_to_rim() -> None:
    svg = tree_svg(make_tree(sharpness=0.3), label="a tree")
    nodes = centres(svg)
    columns = sorted({x for x, _ in nodes})
    assert [x for x, _ in nodes] == [columns[0]] * 3 + [columns[1]] * 4 + [columns[2]] * 2
    heights = {x: [y for column, y in nodes if column == x] for x in columns}
    assert all(ys == sorted(ys) for ys in heights.values())
    for k, group in enumerate(parts(svg, "edges")):
        for line in group:
            x0, y0, x1, y1 = ends(line)
            assert columns[k] < x0 < x1 < columns[k + 1]
            assert y0 in heights[columns[k]]
            assert y1 in heights[columns[k + 1]]


def test_each_line_is_as_strong_as_its_coupling() -> None:
    tree = make_tree(sharpness=0.3)
    svg = tree_svg(tree, label="a tree")
    for group, couplings in zip(parts(svg, "edges"), tree["edges"], strict=True):
        starts, stops = (sorted({ends(line)[k] for line in group}) for k in (1, 3))
        widths = np.empty((len(starts), len(stops)))
        for line in group:
            widths[starts.index(ends(line)[1]), stops.index(ends(line)[3])] = float(line.attrib["stroke-width"])
        slope, least = np.polyfit(np.ravel(couplings), widths.ravel(), 1)
        assert slope > 0
        assert np.abs(widths - least - slope * np.array(couplings)).max() < 0.01  # two decimals


def test_width_and_opacity_grow_with_the_coupling() -> None:
    found = looks(tree_svg(line_between(0.02, 0.05, 0.1, 0.2, 0.5, 0.8, 1.0), label="a fan"))
    for (width, opacity), (wider, opaquer) in itertools.pairwise(found):
        assert width < wider
        assert opacity < opaquer
    assert found[-1][1] == 1


def test_strong_lines_are_drawn_last() -> None:
    widths = [float(line.attrib["stroke-width"]) for line in lines(tree_svg(line_between(0.5, 0.1, 0.9, 0.3), label="a fan"))]
    assert widths == sorted(widths)


def test_lines_that_nobody_would_see_are_left_out_and_that_is_said() -> None:
    note = f"Lines below {VISIBLE:g} are left out."
    faint = tree_svg(line_between(0.5 * VISIBLE, 2 * VISIBLE, 0.0), label="a fan")
    assert len(lines(faint)) == 1
    assert note in texts(faint)
    # what is zero is not left out.
    assert note not in texts(tree_svg(line_between(0.0, 1.0), label="a fan"))


def test_negative_couplings_are_dashed_and_as_strong_as_positive_ones() -> None:
    svg = tree_svg(line_between(0.4, -0.4, -0.9), label="a fan")
    found = looks(svg)
    assert found[0] == found[1] < found[2]
    dashed = [line.get("stroke-dasharray") is not None for line in sorted(lines(svg), key=lambda line: ends(line)[3])]
    assert dashed == [False, True, True]
    assert "negative" in texts(svg)
    assert "negative" not in texts(tree_svg(line_between(0.4), label="a line"))


def test_couplings_above_one_are_relative_to_the_largest_of_their_layer() -> None:
    tree = line_between(1.0, -4.0)
    plain = looks(tree_svg(line_between(0.25, -1.0), label="a fan"))
    svg = tree_svg(tree, label="a fan")
    assert looks(svg) == plain
    assert "Where couplings exceed 1, the largest is the full line: 4 to layer 2." in " ".join(texts(svg))
    # other layers stay as they are, and what was rounded to just above 1 is 1.
    tree["layers"].append([1.0])
    tree["edges"].append([[0.5], [1.0004]])
    assert looks(tree_svg(tree, label="a fan"))[1:] != plain
    widths = [float(line.attrib["stroke-width"]) for line in parts(tree_svg(tree, label="a fan"), "edges")[1]]
    assert widths == [w for w, _ in looks(tree_svg(line_between(0.5, 1.0), label="a fan"))]


def test_the_area_of_a_disc_is_the_activation() -> None:
    tree = {"layers": [[0.0, 0.25, 0.5, 1.0], [1.0]], "edges": [[[0.25]] * 4]}
    svg = tree_svg(tree, label="discs")
    radii = [float(disc.attrib["r"]) for disc in parts(svg, "disc")]
    full = float(parts(svg, "node")[0].attrib["r"])
    assert [(radius / full) ** 2 for radius in radii] == pytest.approx([0.25, 0.5, 1, 1], abs=2e-3)
    # no disc at all for nothing, and no ring without an answer.
    assert len(parts(svg, "node")) == 5
    assert parts(svg, "ring") == []


def test_activations_above_one_are_relative_to_the_largest_of_their_layer() -> None:
    svg = tree_svg({"layers": [[2.0, 8.0], [1.0]], "edges": [[[1.0], [1.0]]]}, label="discs")
    radii = [float(disc.attrib["r"]) for disc in parts(svg, "disc")]
    assert radii[0] == pytest.approx(radii[1] / 2)
    assert "Where activations exceed 1, the largest is the full disc: 8 in layer 1." in " ".join(texts(svg))


def test_dead_capsules_are_crossed_and_counted() -> None:
    dead = [[False, True, True], [True, False, False, False], [False, False]]
    svg = tree_svg(make_tree(), label="a tree", dead=dead)
    nodes = centres(svg)
    crosses = [ends(cross) for cross in parts(svg, "cross")]
    middles = [((cross[0] + cross[2]) / 2, (cross[1] + cross[3]) / 2) for cross in crosses]
    assert middles == [pytest.approx(nodes[k], abs=0.02) for k in (1, 2, 3)]
    assert {"2 dead", "1 dead", "dead"} <= set(texts(svg))
    assert "dead" not in texts(tree_svg(make_tree(), label="a tree", dead=[[False] * 3, [False] * 4, [False] * 2]))


def test_the_answer_is_ringed_and_named() -> None:
    tree = make_tree() | {"answer": 1}
    svg = tree_svg(tree, label="a tree", class_names=["cat", "dog"])
    assert centres(svg, "ring") == [centres(svg)[-1]]
    assert ["".join(text.itertext()) for text in parts(svg, "classes")[0]] == ["cat", "dog · answer"]
    assert "1 · answer" in texts(tree_svg(tree, label="a tree"))
    # lines end at the ring, not in it.
    ring = float(parts(svg, "ring")[0].attrib["r"])
    to_answer = [line for line in parts(svg, "edges")[1] if ends(line)[3] == centres(svg)[-1][1]]
    assert {ends(line)[2] for line in to_answer} == {centres(svg)[-1][0] - ring}


def test_of_large_layers_the_most_active_are_shown_in_their_order() -> None:
    tree = make_tree((1152, 10), sharpness=0.3)
    svg = tree_svg(tree, label="many")
    assert {"32 of 1,152", "10 classes"} <= set(texts(svg))
    assert "Of large layers, the capsules with the largest activations are shown." in " ".join(texts(svg))
    titles = [element.text or "" for element in ElementTree.fromstring(svg).iter(f"{SVG}title")]
    shown = [int(found[1]) for title in titles if (found := re.match(r"layer 1, capsule (\d+):", title))]
    assert shown == sorted(np.argsort(tree["layers"][0])[-32:].tolist())
    assert len(lines(svg)) == 32 * 10
    assert "5 of 1,152" in texts(tree_svg(tree, label="many", most=5))


def test_a_cut_keeps_the_first_of_equals_and_the_answer() -> None:
    tree = {"layers": [[0.5] * 4, [0.9, 0.8, 0.1]], "edges": [[[0.3, 0.3, 0.4]] * 4], "answer": 2}
    svg = tree_svg(tree, label="cut", most=2)
    titles = [element.text or "" for element in ElementTree.fromstring(svg).iter(f"{SVG}title")]
    assert [title.partition(":")[0] for title in titles] == [
        *("layer 1, capsule 0", "layer 1, capsule 1"),
        *("layer 2, class 0", "layer 2, class 2"),
    ]
    assert {"2 of 4", "2 of 3", "2 · answer"} <= set(texts(svg))


def test_the_image_stands_at_the_left() -> None:
    svg = tree_svg(make_tree(), label="a tree", image=IMAGE)
    (image,) = ElementTree.fromstring(svg).iter(f"{SVG}image")
    assert image.get("href") == IMAGE
    assert float(image.attrib["x"]) + float(image.attrib["width"]) < min(x for x, _ in centres(svg))
    assert float(image.attrib["y"]) >= 0
    assert not list(ElementTree.fromstring(tree_svg(make_tree(), label="a tree")).iter(f"{SVG}image"))


@pytest.mark.parametrize("sizes", [(1, 1), (2, 1), (3, 40, 5), DEEP, (32, 10)])
def test_nothing_reaches_out_of_the_picture(sizes: tuple[int, ...]) -> None:
    svg = tree_svg(make_tree(sizes), label="a tree", image=IMAGE)
    root = ElementTree.fromstring(svg)
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    assert root.attrib["viewBox"] == f"0 0 {width:g} {height:g}"
    for x, y in centres(svg):
        assert 10 <= x <= width - 10
        assert 10 <= y <= height - 10
    for text in root.iter(f"{SVG}text"):
        assert 0 <= float(text.attrib["x"]) <= width
        assert 0 <= float(text.attrib["y"]) <= height
    assert all(float(image.attrib["y"]) >= 0 for image in root.iter(f"{SVG}image"))


def test_means_and_standard_deviations_are_of_the_statistics() -> None:
    found = make_statistics()
    mean, std = (statistics_svg(found, label=of, of=of) for of in ("mean", "std"))
    for svg in (mean, std):
        assert len(parts(svg, "node")) == 9
        assert len(parts(svg, "cross")) == 1
        assert parts(svg, "ring") == []
    assert mean == statistics_svg(found, label="mean")
    assert "Mean over 20 images." in " ".join(texts(mean))
    written = " ".join(texts(std))
    assert "Standard deviation over 20 images: the full line and the full disc are 0.5, the largest possible." in written
    assert {"0.05", "0.25", "0.5"} <= set(texts(std))
    # the record holds all that the pictures of single trees would need.
    as_tree = {"layers": found["layers"], "edges": found["edges"]}
    assert looks(mean) == looks(tree_svg(as_tree, label="the same"))


def test_half_is_the_full_line_of_standard_deviations() -> None:
    found = make_statistics((1, 2)) | {"dead": [[False], [False, False]]}
    found |= {"edge_stds": [[[LARGEST_STD, 0.5 * LARGEST_STD]]], "layer_stds": [[LARGEST_STD], [0.0, 0.125]]}
    svg = statistics_svg(found, label="spread", of="std")
    assert looks(svg) == looks(tree_svg(line_between(1.0, 0.5), label="a fan"))
    assert [float(disc.attrib["r"]) for disc in parts(svg, "disc")] == [6, 3]


def test_both_pictures_of_statistics_show_the_same_capsules() -> None:
    found = make_statistics((50, 4, 3))
    found["dead"] = [[False] * 50, [False] * 4, [False] * 3]
    capsules = []
    for of in ("mean", "std"):
        svg = statistics_svg(found, label="many", of=of, most=8)
        titles = [element.text or "" for element in ElementTree.fromstring(svg).iter(f"{SVG}title")]
        capsules.append([title.partition(":")[0] for title in titles])
        assert "8 of 50" in texts(svg)
    assert capsules[0] == capsules[1]


def test_a_pair_has_one_scale_and_the_same_capsules() -> None:
    one, other = make_tree((40, 6, 3), 1), make_tree((40, 6, 3), 2)
    other["edges"][0][0][0] = 5.0
    svg = pair_svg(one, other, label="two", captions=("as it is", "turned"), images=(IMAGE, IMAGE), most=10)
    trees = [part for part in ElementTree.fromstring(svg).iter() if part.get("data-part") == "tree"]
    titles = [[title.text or "" for title in tree.iter(f"{SVG}title")] for tree in trees]
    names = [[title.partition(":")[0] for title in each] for each in titles]
    assert names[0] == names[1]
    assert {"as it is", "turned", "10 of 40"} <= set(texts(svg))
    # the one tree's couplings, all below 1, are drawn relative to the other's 5; the next layer's are not.
    widest = [max(float(line.attrib["stroke-width"]) for line in group) for group in parts(svg, "edges")]
    alone = [max(float(line.attrib["stroke-width"]) for line in group) for group in parts(tree_svg(one, label="one"), "edges")]
    assert widest[0] < 0.5 * alone[0]
    assert widest[1] == alone[1]
    assert len(list(ElementTree.fromstring(svg).iter(f"{SVG}image"))) == 2


def places(svg: str) -> list[str | None]:
    return [part.get("transform") for part in ElementTree.fromstring(svg).iter() if part.get("data-part") == "tree"]


def test_a_pair_stands_side_by_side_where_there_is_room() -> None:
    deep = [make_tree(DEEP, seed) for seed in (1, 2)]
    beside = pair_svg(*deep, label="two", captions=("one", "other"), images=(IMAGE, IMAGE))
    assert places(beside)[0] is None
    assert re.fullmatch(r"translate\([\d.]+ 0\)", places(beside)[1] or "")
    assert float(ElementTree.fromstring(beside).attrib["width"]) <= 992
    long = ["a class with a long name"] * 10
    above = pair_svg(*deep, label="two", captions=("one", "other"), images=(IMAGE, IMAGE), class_names=long)
    assert re.fullmatch(r"translate\(0 [\d.]+\)", places(above)[1] or "")


def test_text_is_escaped_and_long_names_are_shortened() -> None:
    strange = ["<b>&amp;\"'", "x" * 60]
    hostile = '"><script>alert(1)</script>'
    svg = tree_svg(make_tree() | {"answer": 0}, label=hostile, class_names=strange)
    assert "<script" not in svg
    assert "<b>" not in svg
    assert ElementTree.fromstring(svg).get("aria-label") == hostile
    assert f"{strange[0]} · answer" in texts(svg)
    assert "x" * 23 + "…" in texts(svg)
    pair = pair_svg(make_tree(), make_tree(), label="two", captions=("<i>", "&"), class_names=strange)
    assert {"<i>", "&"} <= set(texts(pair))


def test_ink_is_the_pages_and_there_are_no_ids() -> None:
    for svg in (
        tree_svg(make_tree(), label="a tree", image=IMAGE),
        statistics_svg(make_statistics(), label="many", of="std"),
        pair_svg(make_tree(), make_tree(seed=1), label="two", captions=("a", "b")),
    ):
        assert "currentColor" in svg
        assert " id=" not in svg
        assert "<style" not in svg
        assert "http" not in svg.replace('xmlns="http://www.w3.org/2000/svg"', "")


@pytest.mark.parametrize("sign", [1, -1])
def test_a_picture_is_small(sign: int) -> None:
    tree = make_tree(DEEP, sharpness=0.1)
    tree["edges"] = [(sign * np.array(edges)).tolist() for edges in tree["edges"]]
    svg = tree_svg(tree, label="a tree", image=IMAGE)
    assert len(lines(svg)) == 3 * 16 * 16 + 16 * 10
    assert len(svg.encode()) < (100_000 if sign > 0 else 130_000)  # dashes are said of every line
    assert re.search(r'(?<=[" M])-?\d+\.\d{3}', svg.replace(IMAGE, "")) is None


def test_a_tree_of_a_network_is_drawn_from_its_json() -> None:
    torch.manual_seed(0)
    model = capsella.create_model("parse_capsnet", image_size=40)
    images = torch.rand(2, 1, 40, 40)
    trees = [json.loads(json.dumps(tree.as_dict())) for tree in parse_trees(model, images)]
    svg = tree_svg(trees[0], label="a tree")
    assert len(parts(svg, "node")) == sum(DEEP)
    assert len(lines(svg)) == 3 * 16 * 16 + 16 * 10
    assert len(parts(svg, "ring")) == 1
    assert len(parts(pair_svg(*trees, label="two", captions=("a", "b")), "ring")) == 2
    found = TreeStatisticsOf()
    found.update(observe(model, images)[1])
    svg = statistics_svg(json.loads(json.dumps(found.compute().as_dict())), label="many")
    assert len(parts(svg, "node")) == sum(DEEP)
    assert "Mean over 2 images." in " ".join(texts(svg))


PROGRAM = """
import json, sys
from capsella.report.trees import pair_svg, statistics_svg, tree_svg
tree, statistics = json.load(sys.stdin)
pair = pair_svg(tree, tree, label="p", captions=("a", "b"))
assert "torch" not in sys.modules, "torch"
assert "matplotlib" not in sys.modules, "matplotlib"
sys.stdout.write(tree_svg(tree, label="t") + statistics_svg(statistics, label="s") + pair)
"""


def test_the_same_record_gives_the_same_text_in_every_process() -> None:
    tree, statistics = make_tree(), make_statistics()
    kept = copy.deepcopy((tree, statistics))
    here = (
        tree_svg(tree, label="t") + statistics_svg(statistics, label="s") + pair_svg(tree, tree, label="p", captions=("a", "b"))
    )
    assert (tree, statistics) == kept
    record = json.dumps([tree, statistics])
    done = subprocess.run([sys.executable, "-c", PROGRAM], input=record, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert hashlib.sha256(done.stdout.encode()).digest() == hashlib.sha256(here.encode()).digest()


# records that have some capsules of a layer


def large(seed: int = 0) -> tuple[dict[str, Any], dict[str, Any], list[list[int]]]:
    """Make a tree of 100 and 50 capsules, and the same with those that a picture shows."""
    tree = make_tree((100, 50), seed)
    kept = [sorted(np.argsort(layer)[::-1][:32].tolist()) for layer in tree["layers"]]
    return tree, trimmed(tree, kept), kept


def test_a_tree_with_some_of_its_capsules_is_drawn_as_the_whole_one() -> None:
    tree, some, kept = large()
    dead = [[k == kept[0][3] for k in range(100)], [k in (1, kept[1][0]) for k in range(50)]]
    names = [f"name {k}" for k in range(50)]
    given: dict[str, Any] = {"label": "a tree", "dead": dead, "class_names": names}
    assert tree_svg(some, **given) == tree_svg(tree, **given)
    # of the dead all are counted, and those that are shown are crossed.
    assert {"32 of 100", "32 of 50", "1 dead", "2 dead"} <= set(texts(tree_svg(some, **given)))
    assert len(parts(tree_svg(some, **given), "cross")) == 1 + len({1, kept[1][0]} & set(kept[1]))
    assert f"layer 1, capsule {kept[0][-1]}: activation" in tree_svg(some, **given)


def test_statistics_of_some_capsules_are_drawn_as_those_of_all() -> None:
    found = make_statistics((100, 50))
    kept = [sorted(np.argsort(-np.array(layer), kind="stable")[:32].tolist()) for layer in found["layers"]]
    for of in ("mean", "std"):
        assert statistics_svg(trimmed(found, kept), label="x", of=of) == statistics_svg(found, label="x", of=of)


def test_two_trees_must_have_the_same_capsules() -> None:
    (_, one, _), (_, other, _) = large(0), large(1)
    with pytest.raises(ValueError, match=r"^other has other capsules of its layers than one"):
        pair_svg(one, other, label="x", captions=("a", "b"))


@pytest.mark.parametrize(
    ("numbers", "sizes", "answer", "message"),
    [
        ([[0, 1], [0]], [5, 5], 0, r"^tree\['numbers'\] are \[2, 1\] of 2 layers; expected \[2, 2\]"),
        ([[0, 5], [0, 1]], [5, 5], 0, r"^tree\['numbers'\]\[0\] are no capsules of 5"),
        ([[1, 0], [0, 1]], [5, 5], 0, r"^tree\['numbers'\]\[0\] are no capsules of 5"),
        ([[0, 1], [0, 4]], [5, 5], 2, r"^tree\['answer'\]=2 is no capsule of the last layer; expected one of \[0, 4\]"),
        ([[0, 1], [0, 4]], None, 4, r"^tree has no 'sizes'"),
    ],
)
def test_numbers_that_do_not_fit_are_named(numbers: Any, sizes: Any, answer: int, message: str) -> None:
    tree = {"layers": [[0.5, 0.5], [0.5, 1.0]], "edges": [[[0.5, 0.5], [0.1, 0.9]]], "answer": answer, "numbers": numbers}
    with pytest.raises(ValueError, match=message):
        tree_svg(tree if sizes is None else {**tree, "sizes": sizes}, label="x")


def changed(change: Any) -> dict[str, Any]:
    tree = make_tree()
    change(tree)
    return tree


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda tree: tree.pop("layers"), r"^tree has no 'layers'; expected"),
        (lambda tree: tree.pop("edges"), r"^tree has no 'edges'; expected"),
        (lambda tree: tree["edges"].pop(), r"^tree\['edges'\] has 1 matrices; expected 2"),
        (lambda tree: tree["edges"][0].pop(), r"^tree\['edges'\]\[0\] has shape \[2, 4\]; expected \[I=3, J=4\]$"),
        (lambda tree: tree["edges"][1][0].pop(), r"^tree\['edges'\]\[1\] is no array of numbers; expected \[I, J\]$"),
        (
            lambda tree: tree["edges"][0][0].__setitem__(0, float("nan")),
            r"^tree\['edges'\]\[0\] has values that are not finite",
        ),
        (lambda tree: tree["layers"][1].__setitem__(0, float("nan")), r"^tree\['layers'\]\[1\] has values that are not finite"),
        (lambda tree: tree["layers"][1].__setitem__(0, "much"), r"^tree\['layers'\]\[1\] is no array of numbers"),
        (
            lambda tree: tree["layers"][1].__setitem__(0, -0.5),
            r"^tree\['layers'\]\[1\] has a value of -0.5; expected none below 0$",
        ),
        (lambda tree: tree["layers"].__setitem__(0, []), r"^tree\['layers'\]\[0\] has no capsules; expected"),
        (lambda tree: tree.update(layers=[[1.0]], edges=[]), r"^tree\['layers'\] has 1 layers; expected at least two$"),
        (lambda tree: tree.update(answer=2), r"^tree\['answer'\]=2 is no capsule of the last layer; expected"),
    ],
)
def test_a_record_that_is_no_tree_is_an_error_that_names_the_part(change: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tree_svg(changed(change), label="wrong")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"class_names": ["a"]}, r"^class_names has 1 entries; expected 2"),
        ({"class_names": "ab"}, r"^class_names has 2 entries; expected 2"),
        ({"most": 0}, r"^most=0 is too small"),
        ({"dead": [[False] * 3]}, r"^dead has 1 layers; expected 3$"),
        ({"dead": [[False] * 3, [True], [False] * 2]}, r"^dead\[1\] has shape \[1\]; expected \[M=4\]$"),
        ({"dead": [[False] * 3, [0.5] * 4, [False] * 2]}, r"^dead\[1\] has values other than True and False"),
        ({"image": "https://example.com/a.png"}, r"^image='https://example.com/a.pn' is no image; expected a data URI"),
    ],
)
def test_a_wrong_option_is_an_error_that_names_it(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tree_svg(make_tree(), label="wrong", **options)


def test_what_is_no_dict_is_a_type_error() -> None:
    wrong: Any = [1, 2]
    with pytest.raises(TypeError, match=r"^tree has type list; expected a dict, as as_dict\(\) returns it$"):
        tree_svg(wrong, label="wrong")


@pytest.mark.parametrize(
    ("change", "of", "message"),
    [
        ({}, "median", r"^of='median' is unknown"),
        ({"images": 0}, "mean", r"^statistics\['images'\]=0 is too small"),
        (
            {"layer_stds": [[0.1], [0.1], [0.1]]},
            "std",
            r"^statistics\['edge_stds'\]\[0\] has shape \[3, 4\]; expected \[I=1, J=1\]$",
        ),
        (
            {"edge_stds": [[[0.1] * 4] * 3, [[-0.1] * 2] * 4]},
            "std",
            r"^statistics\['edge_stds'\]\[1\] has a value of -0.1; expected",
        ),
        ({"layer_stds": [[0.1], [0.1]], "edge_stds": [[[0.1]]]}, "std", r"^statistics\['layer_stds'\] has layers of \[1, 1\]"),
    ],
)
def test_wrong_statistics_are_an_error_that_names_the_part(change: dict[str, Any], of: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        statistics_svg(make_statistics() | change, label="wrong", of=of)


def test_statistics_need_all_their_parts() -> None:
    for key in ("layers", "edges", "layer_stds", "edge_stds", "dead", "images"):
        found = make_statistics()
        del found[key]
        with pytest.raises(ValueError, match=f"^statistics has no '{key}'"):
            statistics_svg(found, label="wrong", of="std")


def test_pairs_of_different_networks_are_an_error() -> None:
    with pytest.raises(ValueError, match=r"^other has layers of \[3, 2\] capsules; expected those of one, \[3, 4, 2\]$"):
        pair_svg(make_tree(), make_tree((3, 2)), label="wrong", captions=("a", "b"))
    wrong: Any = ("a",)
    with pytest.raises(ValueError, match=r"^captions has 1 entries; expected one for each of two trees$"):
        pair_svg(make_tree(), make_tree(), label="wrong", captions=wrong)
    with pytest.raises(ValueError, match=r"^images has 1 entries; expected one for each of two trees$"):
        pair_svg(make_tree(), make_tree(), label="wrong", captions=("a", "b"), images=wrong)
    with pytest.raises(ValueError, match=r"^images\[1\]='no' is no image"):
        pair_svg(make_tree(), make_tree(), label="wrong", captions=("a", "b"), images=(IMAGE, "no"))


PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>trees</title>
<style>:root { color-scheme: light dark } body { background: #f8f8f5; color: #1b1f24 }
@media (prefers-color-scheme: dark) { body { background: #111417; color: #e8eaed } }</style>
<body>"""


def test_pictures_are_sound_in_a_browser_in_the_light_and_in_the_dark(tmp_path: Path) -> None:
    pair = pair_svg(make_tree(DEEP), make_tree(DEEP, 1), label="two", captions=("a", "b"), images=(IMAGE, IMAGE))
    pictures = [tree_svg(make_tree(), label="a tree", image=IMAGE), statistics_svg(make_statistics(), label="many"), pair]
    (tmp_path / "trees.html").write_text(PAGE + "".join(pictures))
    in_a_browser.check_page(tmp_path / "trees.html")
