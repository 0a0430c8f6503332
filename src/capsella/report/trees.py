"""Fuzzy parse trees as SVG text (mitterreiter2023, figures 2, 3 and 5): layers are columns, capsules circles, couplings lines.

All are pure functions of the plain dicts that ``capsella.analysis`` writes (``as_dict()``), so that a record on disk is enough
for a picture; a record may have some capsules of a large layer only (``numbers``, of ``sizes`` in all). Ink is
``currentColor`` and the ground is transparent. Nothing is told by colour alone: a line is wider and more
opaque the stronger its coupling, a negative one is dashed; the area of a disc is its capsule's activation.
"""

from __future__ import annotations

import html
import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import numpy as np

from capsella.errors import check_choice, check_count, whole_number
from capsella.report.plots import PALETTE
from capsella.report.values import Array, Values, array, count

VISIBLE = 0.01
"""Couplings below this share of the full line are not drawn."""

LARGEST_STD = 0.5
"""Of values from 0 to 1, no standard deviation is larger: half of them 0, half of them 1."""

# sizes in pixels; a single tree of five layers with its image is about as wide as a column of text.
_RADIUS, _RING, _MARGIN = 6.0, 9.5, 12.0
_LEAST_ROW, _ROW, _LARGEST_ROW, _TALL = 14.5, 18.0, 27.0, 464.0
_IMAGE, _BESIDE_IMAGE = 84.0, 26.0
_TEXT, _LINE, _LONGEST_NAME = 11.0, 14.0, 24
_LETTER = 0.56  # mean width of a letter, in font sizes
_WIDEST = 992.0  # of a page of capsella; two trees of five layers with their images just fit
_SMALL_IMAGE, _SMALL_ROW = 64.0, 16.0
_BESIDE_TREE, _BELOW_TREE = 12.0, 20.0

_LINES, _NEGATIVE = PALETTE[0], PALETTE[1]
# a little of the page's ink makes a colour darker on a light page and lighter on a dark one; a program that cannot mix colours
# takes the attribute, which stands out from both.
_LINE_LOOK = f'fill="none" stroke="{_LINES}" style="stroke: color-mix(in srgb, {_LINES} 72%, currentColor)"'

Record: TypeAlias = Mapping[str, Any]
Flags: TypeAlias = Sequence[Sequence[bool]]


@dataclass(frozen=True, eq=False)
class _Tree:
    """A checked tree.

    Attributes:
        layers: [M] each, of the capsules that the record has.
        edges: [I, J] between them.
        numbers: of these capsules in their layers.
        sizes: of the layers, with those that the record does not have.
        dead: of whole layers, or None.
        answer: place of the answer among those of the last layer that there are.
        quantity: what ``layers`` are.
    """

    layers: tuple[Array, ...]
    edges: tuple[Array, ...]
    numbers: tuple[tuple[int, ...], ...]
    sizes: tuple[int, ...]
    dead: tuple[Array, ...] | None = None
    answer: int | None = None
    quantity: str = "activation"


@dataclass(frozen=True, eq=False)
class _Frame:
    """What trees have in common that are compared.

    Attributes:
        kept: the capsules that are shown of each layer, in their order, as places among those that the record has.
        discs: of each layer, the activation whose disc fills its circle.
        lines: of each gap, the coupling with the full line.
        class_names: of all classes.
        is_small: whether there must be room for another one beside it.
    """

    kept: tuple[tuple[int, ...], ...]
    discs: tuple[float, ...]
    lines: tuple[float, ...]
    class_names: tuple[str, ...]
    is_small: bool = False

    @property
    def gap(self) -> float:
        """Between layers; few layers stand farther apart, so that lines are not too steep."""
        least, width = (72.0, 288.0) if self.is_small else (96.0, 384.0)
        return min(max(least, width / len(self.lines)), 2 * least)

    @property
    def height(self) -> float:
        """Of the columns, without captions; an image beside them fits."""
        most = max(map(len, self.kept))
        return max(self.image, most * min(max(_LEAST_ROW, _TALL / most), _SMALL_ROW if self.is_small else _ROW))

    @property
    def image(self) -> float:
        """Height and width of the input."""
        return _SMALL_IMAGE if self.is_small else _IMAGE

    def ys(self, layer: int) -> list[float]:
        """Return the heights at which the capsules of a layer stand, centred; layers of few capsules are less dense."""
        number = len(self.kept[layer])
        step = min(self.height / number, _LARGEST_ROW)
        return [self.height / 2 + (k - (number - 1) / 2) * step for k in range(number)]


@dataclass(frozen=True)
class _Part:
    """A piece of a picture: SVG text, drawn from its own top left corner."""

    text: str
    width: float
    height: float


def tree_svg(
    tree: Record,
    *,
    label: str,
    image: str | None = None,
    dead: Flags | None = None,
    class_names: Sequence[str] | None = None,
    most: int = 32,
) -> str:
    """Draw what a network made of one image (figure 2).

    Args:
        tree: ``ParseTree.as_dict()``.
        label: what the picture shows, for those who do not see it.
        image: the input as a data URI, as ``image_uri`` makes it.
        dead: the dead capsules of each whole layer, which are crossed.
        class_names: one per capsule of the whole last layer; numbers if None.
        most: of layers with more capsules than this, so many with the largest activations are shown.

    Returns:
        An ``<svg>`` element.

    Example:
        >>> tree = {"layers": [[0.9, 0.2], [1.0]], "edges": [[[1.0], [1.0]]], "answer": 0}
        >>> svg = tree_svg(tree, label="two parts, one whole")
        >>> svg[:16], svg.count("<path"), "2 capsules" in svg
        ('<svg xmlns="http', 5, True)
    """
    found = _read_tree("tree", tree, dead)
    frame = _frame([found], class_names, most)
    notes = _scale_notes(frame) + _cut_notes([found], frame)
    return _svg([_panel(found, frame, image, "image")], _key([found], frame), notes, label)


def statistics_svg(
    statistics: Record,
    *,
    label: str,
    of: Literal["mean", "std"] = "mean",
    class_names: Sequence[str] | None = None,
    most: int = 32,
) -> str:
    """Draw the mean or the standard deviation of many trees, dead capsules crossed (figure 3).

    Both pictures of the same statistics show the same capsules, those of the largest mean activations. Standard deviations
    are drawn relative to the largest possible one, 0.5.

    Args:
        statistics: ``TreeStatistics.as_dict()``.
        label: what the picture shows, for those who do not see it.
        of: ``"mean"`` or ``"std"``.
        class_names: one per capsule of the last layer; numbers if None.
        most: of layers with more capsules than this, so many are shown.

    Returns:
        An ``<svg>`` element.
    """
    check_choice("of", of, ("mean", "std"))
    means = _read_tree("statistics", statistics, _entry("statistics", statistics, "dead"))
    frame = _frame([means], class_names, most)
    images = whole_number("statistics['images']", _entry("statistics", statistics, "images"))
    check_count("statistics['images']", images)
    over = f"over {count(images)} image{'' if images == 1 else 's'}"
    if of == "mean":
        found, notes = means, [f"Mean {over}."]
    else:
        found = _read_tree("statistics", statistics, None, layers="layer_stds", edges="edge_stds")
        _check_spreads(means, found)
        found = replace(found, dead=means.dead)
        frame = replace(frame, discs=_tops(found.layers, LARGEST_STD), lines=_tops(found.edges, LARGEST_STD))
        notes = [f"Standard deviation {over}: the full line and the full disc are {LARGEST_STD}, the largest possible."]
    unit = LARGEST_STD if of == "std" else 1.0
    notes += _scale_notes(frame, unit) + _cut_notes([found], frame, unit)
    return _svg([_panel(found, frame)], _key([found], frame, unit), notes, label)


def pair_svg(
    one: Record,
    other: Record,
    *,
    label: str,
    captions: tuple[str, str],
    images: tuple[str, str] | None = None,
    dead: Flags | None = None,
    class_names: Sequence[str] | None = None,
    most: int = 32,
) -> str:
    """Draw two trees of one network at the same scale and of the same capsules (figure 5).

    They stand side by side, or one above the other where that would be wider than a page.

    Args:
        one: ``ParseTree.as_dict()``.
        other: the same, of another image.
        label: what the picture shows, for those who do not see it.
        captions: a title for each.
        images: the inputs as data URIs, as ``image_uri`` makes them.
        dead: the dead capsules of each layer, which are crossed.
        class_names: one per capsule of the last layer; numbers if None.
        most: of layers with more capsules than this, so many with the largest activations in either tree are shown.

    Returns:
        An ``<svg>`` element.
    """
    trees = [_read_tree("one", one, dead), _read_tree("other", other, dead)]
    if trees[0].sizes != trees[1].sizes:
        raise ValueError(f"other has layers of {list(trees[1].sizes)} capsules; expected those of one, {list(trees[0].sizes)}")
    if trees[0].numbers != trees[1].numbers:
        raise ValueError("other has other capsules of its layers than one; expected the same numbers")
    for name, given in (("captions", captions), ("images", images)):
        if given is not None and (isinstance(given, str) or len(given) != 2):
            raise ValueError(f"{name} has {len(given)} entries; expected one for each of two trees")
    frame = replace(_frame(trees, class_names, most), is_small=True)
    panels = [
        _panel(tree, frame, None if images is None else images[k], f"images[{k}]", captions[k]) for k, tree in enumerate(trees)
    ]
    notes = _scale_notes(frame) + _cut_notes(trees, frame)
    return _svg(panels, _key(trees, frame), notes, label)


def _read_tree(name: str, record: Record, dead: Any, *, layers: str = "layers", edges: str = "edges") -> _Tree:
    """Check that a record is a tree: layers of capsules, and matrices between them of their sizes."""
    found = tuple(_array(values, "M", name=f"{name}[{layers!r}][{k}]") for k, values in enumerate(_entry(name, record, layers)))
    if len(found) < 2:
        raise ValueError(f"{name}[{layers!r}] has {len(found)} layers; expected at least two")
    for k, layer in enumerate(found):
        if not len(layer):
            raise ValueError(f"{name}[{layers!r}][{k}] has no capsules; expected at least one")
        if layer.min() < 0:
            raise ValueError(f"{name}[{layers!r}][{k}] has a value of {layer.min():g}; expected none below 0")
    matrices = _entry(name, record, edges)
    if len(matrices) != len(found) - 1:
        raise ValueError(f"{name}[{edges!r}] has {len(matrices)} matrices; expected {len(found) - 1}, one between two layers")
    couplings = tuple(
        _array(values, "I J", name=f"{name}[{edges!r}][{k}]", I=len(found[k]), J=len(found[k + 1]))
        for k, values in enumerate(matrices)
    )
    numbers, sizes = _read_numbers(name, record, found)
    quantity = "activation" if layers == "layers" else "standard deviation"
    return _Tree(found, couplings, numbers, sizes, _read_dead(dead, sizes), _read_answer(name, record, numbers[-1]), quantity)


def _read_numbers(name: str, record: Record, layers: Sequence[Array]) -> tuple[tuple[tuple[int, ...], ...], tuple[int, ...]]:
    """Return which capsules of its layers a record has, and how many there are: all, unless it says so."""
    own = [len(layer) for layer in layers]
    if record.get("numbers") is None:
        return tuple(tuple(range(size)) for size in own), tuple(own)
    numbers = tuple(tuple(whole_number(f"{name}['numbers']", i) for i in each) for each in record["numbers"])
    sizes = tuple(whole_number(f"{name}['sizes']", size) for size in _entry(name, record, "sizes"))
    if [len(each) for each in numbers] != own or len(sizes) != len(own):
        raise ValueError(f"{name}['numbers'] are {[len(each) for each in numbers]} of {len(sizes)} layers; expected {own}")
    for k, (each, size) in enumerate(zip(numbers, sizes, strict=True)):
        if list(each) != sorted(set(each)) or each[0] < 0 or each[-1] >= size:
            raise ValueError(f"{name}['numbers'][{k}] are no capsules of {size}; expected ascending numbers below that")
    return numbers, sizes


def _entry(name: str, record: Record, key: str) -> Any:
    if not isinstance(record, Mapping):
        raise TypeError(f"{name} has type {type(record).__name__}; expected a dict, as as_dict() returns it")
    if key not in record:
        raise ValueError(f"{name} has no {key!r}; expected a dict, as as_dict() returns it")
    return record[key]


def _array(values: Values, axes: str, *, name: str, **sizes: int) -> Array:
    try:
        return array(values, axes, name=name, **sizes)
    except (TypeError, ValueError) as error:
        # numpy does not know the name of what it cannot read, such as rows of unequal lengths.
        if str(error).startswith(name):
            raise
        raise ValueError(f"{name} is no array of numbers; expected [{', '.join(axes.split())}]") from error


def _read_dead(dead: Any, sizes: Sequence[int]) -> tuple[Array, ...] | None:
    if dead is None:
        return None
    if len(dead) != len(sizes):
        raise ValueError(f"dead has {len(dead)} layers; expected {len(sizes)}")
    found = tuple(_array(flags, "M", name=f"dead[{k}]", M=sizes[k]) for k, flags in enumerate(dead))
    for k, flags in enumerate(found):
        if not np.isin(flags, (0, 1)).all():
            raise ValueError(f"dead[{k}] has values other than True and False; expected one of them for each capsule")
    return found


def _read_answer(name: str, record: Record, classes: Sequence[int]) -> int | None:
    if record.get("answer") is None:
        return None  # statistics are of many images
    answer = whole_number(f"{name}['answer']", record["answer"])
    if answer not in classes:
        known = f"one of {list(classes)}" if record.get("numbers") else f"a number from 0 to {len(classes) - 1}"
        raise ValueError(f"{name}['answer']={answer} is no capsule of the last layer; expected {known}")
    return classes.index(answer)


def _check_spreads(means: _Tree, spreads: _Tree) -> None:
    sizes, wanted = ([len(layer) for layer in tree.layers] for tree in (spreads, means))
    if sizes != wanted:
        raise ValueError(f"statistics['layer_stds'] has layers of {sizes} capsules; expected those of 'layers', {wanted}")
    for k, edges in enumerate(spreads.edges):
        if edges.min() < 0:
            raise ValueError(f"statistics['edge_stds'][{k}] has a value of {edges.min():g}; expected none below 0")


def _frame(trees: Sequence[_Tree], class_names: Sequence[str] | None, most: int) -> _Frame:
    check_count("most", most)
    classes = trees[0].sizes[-1]
    if class_names is not None and (isinstance(class_names, str) or len(class_names) != classes):
        raise ValueError(f"class_names has {len(class_names)} entries; expected {classes}, one per capsule of the last layer")
    names = tuple(map(str, range(classes) if class_names is None else class_names))
    kept = []
    for k in range(len(trees[0].layers)):
        importance = np.max([tree.layers[k] for tree in trees], axis=0)
        if k == len(trees[0].layers) - 1:
            # what a network answers is shown, whichever capsule is the longest.
            importance[[tree.answer for tree in trees if tree.answer is not None]] = math.inf
        # of equal ones the first: the order must not depend on how a sort was written.
        kept.append(tuple(sorted(np.argsort(-importance, kind="stable")[:most].tolist())))
    layers = [np.concatenate(same) for same in zip(*(tree.layers for tree in trees), strict=True)]
    edges = [np.concatenate(same) for same in zip(*(tree.edges for tree in trees), strict=True)]
    return _Frame(tuple(kept), _tops(layers), _tops(edges), names)


def _tops(values: Sequence[Array], unit: float = 1.0) -> tuple[float, ...]:
    """Return what is drawn in full: ``unit``, or the largest size of a layer that has one above it."""
    # records are rounded to four digits, and 1.0001 is 1.
    largest = [float(np.abs(each).max()) for each in values]
    return tuple(top if top > unit + 1e-3 else unit for top in largest)


def _panel(tree: _Tree, frame: _Frame, image: str | None = None, name: str = "", caption: str = "") -> _Part:
    """Draw one tree: its image, its columns, class names and captions."""
    text = []
    columns = range(len(tree.layers))
    captions = [_layer_caption(tree, frame, k) for k in columns]
    left, top = _MARGIN + max(map(_width, captions[0])) / 2, _MARGIN
    if caption:
        text.append(_text(_MARGIN, _TEXT + 5, caption, 'font-weight="600" font-size="12"'))
        top += _LINE + 6
    if image is not None:
        if not isinstance(image, str) or not image.startswith("data:image/"):
            raise ValueError(f"{name}={str(image)[:24]!r} is no image; expected a data URI, as image_uri makes it")
        y = top + (frame.height - frame.image) / 2
        box = f'x="{_MARGIN:g}" y="{_number(y)}" width="{frame.image:g}" height="{frame.image:g}"'
        text += [
            f'<image {box} href="{html.escape(image)}" style="image-rendering: pixelated"/>',
            # on a dark page, a dark image would have no edge.
            f'<rect {box} fill="none" stroke="currentColor" stroke-opacity="0.35"/>',
        ]
        left = _MARGIN + frame.image + _BESIDE_IMAGE + _RADIUS
    xs = [left + k * frame.gap for k in columns]
    text += [_edges(tree, frame, k, xs[k], xs[k + 1], top) for k in range(len(tree.edges))]
    text += [_nodes(tree, frame, k, xs[k], top) for k in columns]
    names, beside = _names(tree, frame, xs[-1], top)
    below = top + frame.height + _LINE + 2
    for x, lines in zip(xs, captions, strict=True):
        text += [
            _text(x, below + n * _LINE, line, 'text-anchor="middle"' + (' font-weight="600"' if n == 0 else ""))
            for n, line in enumerate(lines)
        ]
    bottom = below + _LINE * (max(map(len, captions)) - 1) + 4
    width = max(xs[-1] + max(beside, _width(max(captions[-1], key=len)) / 2), _MARGIN + 1.1 * _width(caption)) + _MARGIN
    return _Part("".join([*text, names]), width, bottom)


def _edges(tree: _Tree, frame: _Frame, k: int, left: float, right: float, top: float) -> str:
    lower, upper = frame.kept[k], frame.kept[k + 1]
    shares = tree.edges[k][np.ix_(lower, upper)] / frame.lines[k]
    pairs = [(float(shares[i, j]), i, j) for i in range(len(lower)) for j in range(len(upper)) if abs(shares[i, j]) >= VISIBLE]
    starts, ends = frame.ys(k), frame.ys(k + 1)
    is_last = k == len(tree.edges) - 1
    lines = []
    # weak ones first, so that no haze lies upon a strong one.
    for share, i, j in sorted(pairs, key=lambda pair: (abs(pair[0]), pair[1:])):
        # from rim to rim: circles are transparent.
        end = right - (_RING if is_last and upper[j] == tree.answer else _RADIUS)
        path = f"M{_number(left + _RADIUS)} {_number(top + starts[i])} {_number(end)} {_number(top + ends[j])}"
        lines.append(f'<path d="{path}"{_stroke(share)}/>')
    return f'<g data-part="edges" {_LINE_LOOK}>{"".join(lines)}</g>'


def _stroke(share: float) -> str:
    size = min(abs(share), 1.0)
    dashes = f' stroke="{_NEGATIVE}" stroke-dasharray="4 2"' if share < 0 else ""
    # hundreds of equal couplings are a haze, through which a single strong one must be seen: less than linear in opacity, so
    # that 1/16 shows at all, and more than linear in both together.
    return f' stroke-width="{_number(0.5 + 2.7 * size)}" stroke-opacity="{_number(0.1 + 0.9 * size**0.7)}"{dashes}'


def _nodes(tree: _Tree, frame: _Frame, k: int, x: float, top: float) -> str:
    is_last = k == len(tree.layers) - 1
    nodes = []
    for capsule, y in zip(frame.kept[k], frame.ys(k), strict=True):
        value = float(tree.layers[k][capsule])
        number = tree.numbers[k][capsule]
        is_dead = tree.dead is not None and tree.dead[k][number] > 0
        is_answer = is_last and capsule == tree.answer
        what = f"class {frame.class_names[number]}" if is_last else f"capsule {number}"
        state = ", dead" if is_dead else ", the answer" if is_answer else ""
        title = html.escape(f"layer {k + 1}, {what}: {tree.quantity} {value:.2f}{state}")
        nodes.append(f"<g><title>{title}</title>{_node(x, top + y, value / frame.discs[k], is_dead, is_answer)}</g>")
    # circles answer to the pointer inside of them too, where nothing is painted.
    return f'<g data-part="nodes" pointer-events="all">{"".join(nodes)}</g>'


def _node(x: float, y: float, share: float, is_dead: bool = False, is_answer: bool = False) -> str:
    at = f'cx="{_number(x)}" cy="{_number(y)}"'
    faint = ' stroke-opacity="0.45"' if is_dead else ""
    shapes = [f'<circle data-part="node" {at} r="{_RADIUS:g}" fill="none" stroke="currentColor" stroke-width="1.1"{faint}/>']
    radius = _number(_RADIUS * math.sqrt(min(share, 1.0)))
    if radius != "0":
        shapes.append(f'<circle data-part="disc" {at} r="{radius}"/>')
    if is_dead:
        reach = _RADIUS * 0.85
        ends = [_number(value) for value in (x - reach, y - reach, x + reach, y + reach)]
        path = f"M{ends[0]} {ends[1]} {ends[2]} {ends[3]}M{ends[0]} {ends[3]} {ends[2]} {ends[1]}"
        shapes.append(f'<path data-part="cross" d="{path}" fill="none" stroke="currentColor" stroke-width="1.6"/>')
    if is_answer:
        shapes.append(f'<circle data-part="ring" {at} r="{_RING:g}" fill="none" stroke="currentColor" stroke-width="1.8"/>')
    return "".join(shapes)


def _names(tree: _Tree, frame: _Frame, x: float, top: float) -> tuple[str, float]:
    """Return the names of the classes beside the last layer, and how far they reach from it."""
    lines, reach = [], 0.0
    for capsule, y in zip(frame.kept[-1], frame.ys(len(frame.kept) - 1), strict=True):
        name = " ".join(frame.class_names[tree.numbers[-1][capsule]].split())
        short = name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…"
        is_answer = capsule == tree.answer
        said = f'<tspan font-weight="700">{html.escape(short)}</tspan> · answer' if is_answer else html.escape(short)
        lines.append(f'<text x="{_number(x + _RING + 6)}" y="{_number(top + y + 4)}">{said}</text>')
        reach = max(reach, _width(short + (" · answer" if is_answer else "")) + _RING + 6)
    return f'<g data-part="classes">{"".join(lines)}</g>', reach


def _layer_caption(tree: _Tree, frame: _Frame, k: int) -> list[str]:
    number, shown = tree.sizes[k], len(frame.kept[k])
    word = "class" if k == len(tree.layers) - 1 else "capsule"
    words = word if number == 1 else "classes" if word == "class" else "capsules"
    dead = 0 if tree.dead is None else int(tree.dead[k].sum())
    return [
        f"layer {k + 1}",
        f"{count(number)} {words}" if shown == number else f"{count(shown)} of {count(number)}",
        *([f"{count(dead)} dead"] if dead else []),
    ]


def _key(trees: Sequence[_Tree], frame: _Frame, unit: float = 1.0) -> _Part:
    """Draw what lines, discs and crosses mean."""
    text: list[str] = []
    x, y = _MARGIN, _TEXT + 0.5  # in the middle of a row of pixels, where a thin line is sharp

    def say(words: str, after: float) -> None:
        nonlocal x
        text.append(_text(x, y + 4, words))
        x += _width(words) + after

    def line(share: float) -> None:
        nonlocal x
        path = f'<path d="M{_number(x)} {y:g} {_number(x + 22)} {y:g}"{_stroke(share)}/>'
        text.append(f"<g {_LINE_LOOK}>{path}</g>")
        x += 27

    def node(share: float, is_dead: bool = False) -> None:
        nonlocal x
        text.append(_node(x + _RADIUS, y, share, is_dead))
        x += 2 * _RADIUS + 5

    say("coupling", 8)
    for share in (0.1, 0.5, 1.0):
        line(share)
        say(f"{unit * share:g}", 8)
    if any((edges < 0).any() for tree in trees for edges in tree.edges):
        line(-0.5)
        say("negative", 8)
    x += 14
    say("activation", 8)
    for share in (0.1, 0.5, 1.0):
        node(share)
        say(f"{unit * share:g}", 8)
    if any(flags.any() for tree in trees if tree.dead is not None for flags in tree.dead):
        x += 14
        node(0, is_dead=True)
        say("dead", 0)
    return _Part(f'<g data-part="key">{"".join(text)}</g>', x + _MARGIN, 2 * _TEXT)


def _scale_notes(frame: _Frame, unit: float = 1.0) -> list[str]:
    """Say what is drawn in full, where that is not ``unit``."""
    lines = [f"{top:.3g} to layer {k + 2}" for k, top in enumerate(frame.lines) if top > unit]
    discs = [f"{top:.3g} in layer {k + 1}" for k, top in enumerate(frame.discs) if top > unit]
    return [
        f"Where {what} exceed {unit:g}, the largest is the full {shape}: {', '.join(tops)}."
        for what, shape, tops in (("couplings", "line", lines), ("activations", "disc", discs))
        if tops
    ]


def _cut_notes(trees: Sequence[_Tree], frame: _Frame, unit: float = 1.0) -> list[str]:
    """Say what is not drawn, where something is not."""
    notes = []
    if any(len(kept) < size for kept, size in zip(frame.kept, trees[0].sizes, strict=True)):
        notes.append("Of large layers, the capsules with the largest activations are shown.")
    weak = [
        (np.abs(edges) < VISIBLE * top) & (edges != 0) for t in trees for edges, top in zip(t.edges, frame.lines, strict=True)
    ]
    if any(each.any() for each in weak):
        whole = max(frame.lines) <= unit
        notes.append(
            f"Lines below {VISIBLE * unit:g} are left out." if whole else "Lines below 1 % of the full one are left out."
        )
    return notes


def _svg(panels: Sequence[_Part], key: _Part, notes: Sequence[str], label: str) -> str:
    """Put panels side by side where they fit, else one above the other; the key and the notes are below them."""
    text: list[str] = []
    is_row = sum(panel.width + _BESIDE_TREE for panel in panels) - _BESIDE_TREE <= _WIDEST
    x = y = 0.0
    for panel in panels:
        place = f' transform="translate({_number(x)} {_number(y)})"' if x or y else ""
        text.append(f'<g data-part="tree"{place}>{panel.text}</g>')
        x, y = (x + panel.width + _BESIDE_TREE, y) if is_row else (x, y + panel.height + _BELOW_TREE)
    width = max(x - _BESIDE_TREE if is_row else max(panel.width for panel in panels), key.width)
    bottom = (max(panel.height for panel in panels) if is_row else y - _BELOW_TREE) + 10
    text.append(f'<g transform="translate(0 {_number(bottom)})">{key.text}</g>')
    bottom += key.height + 4
    letters = int((width - 2 * _MARGIN) / (_TEXT * _LETTER))
    for line in textwrap.wrap(" ".join(notes), letters):
        bottom += _LINE
        text.append(_text(_MARGIN, bottom, line))
    size = f'width="{math.ceil(width)}" height="{math.ceil(bottom + _MARGIN)}"'
    box = f'viewBox="0 0 {math.ceil(width)} {math.ceil(bottom + _MARGIN)}"'
    # as large as drawn, or as wide as there is room: in a file, and on a page without a style for it.
    style = "max-width: 100%; height: auto; font-family: system-ui, sans-serif"
    head = f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{html.escape(label)}" {size} {box}'
    return f'{head} style="{style}" fill="currentColor" font-size="{_TEXT:g}">{"".join(text)}</svg>'


def _text(x: float, y: float, words: str, look: str = "") -> str:
    return f'<text x="{_number(x)}" y="{_number(y)}"{" " + look if look else ""}>{html.escape(words)}</text>'


def _width(words: str) -> float:
    return _TEXT * _LETTER * len(words)


def _number(value: float) -> str:
    """Write a length with two decimals at most.

    Example:
        >>> _number(12.0), _number(0.504), _number(-0.001)
        ('12', '0.5', '0')
    """
    return f"{round(value, 2) + 0.0:.2f}".rstrip("0").rstrip(".")
