"""The page's pure functions, called in a browser by their module: there is no other JavaScript here to run them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from browser import chromium, opened
from explored import net

from capsella.web.explorer import Explorer
from capsella.web.server import serving

Call = Callable[..., Any]


@pytest.fixture(scope="module")
def call() -> Iterator[Call]:
    with (
        chromium() as running,
        Explorer([net(), net("other")]) as explorer,
        serving(explorer) as url,
        opened(running, url) as window,
    ):

        def found(module: str, expression: str, **given: Any) -> Any:
            """Evaluate an expression, or the body of a function, of a module ``m`` and what is given."""
            return window.page.evaluate(
                f"async (given) => {{ const m = await import('/static/{module}.js');"
                f" const {{ {', '.join(given)} }} = given; return (() => {expression})(); }}",
                given,
            )

        yield found


ABOUT = {
    "runs": [{"key": key, "images": 12} for key in ("small", "other")],
    "limits": {"most_shown": 256},
}

STATES: list[dict[str, Any]] = [
    {},
    {"view": "move", "move": {"rotation": -30, "x": 2.5, "y": 0, "shear": 10, "scale": 1.25}, "follow": "scale"},
    {"run": "other", "other": "small", "view": "compare", "iteration": 2, "weak": 0.35, "most": 256},
    {"view": "knobs", "drawnClass": 3, "offsets": [0, 0.125, -0.5, 0]},
    {"view": "overlap", "second": {"kind": "test", "run": "other", "index": 11}, "x": -4, "y": 14},
    {"capsule": [1, 7], "negate": True},
    {"gallery": {"label": 0, "answer": 9, "mistakes": True, "order": "unsure", "offset": 40}},
    {"picture": {"kind": "drawn", "height": 2, "width": 3, "channels": 1, "data": "AAAA/wEA"}},
]


@pytest.mark.parametrize("patch", STATES, ids=lambda patch: "-".join(patch) or "initial")
def test_an_address_says_all_that_is_shown(patch: dict[str, Any], call: Call) -> None:
    states = call(
        "state",
        "{ const state = {...m.initial(patch.run ?? 'small'), ...patch};"
        " return [state, m.fromFragment(m.toFragment(state), about)]; }",
        patch=patch,
        about=ABOUT,
    )
    assert states[0] == states[1]


def test_what_is_as_usual_is_not_in_the_address(call: Call) -> None:
    assert call("state", "m.toFragment(m.initial('small'))") == "#run=small&view=tree&pic=t.0.small"


@pytest.mark.parametrize(
    "fragment", ["#pic=t.12.small", "#pic=t.1.none", "#pic=d.2.3.2.AAAA", "#pic=d.2.3.1.!!", "#pic=d.2.3.1.AAc", "#pic=%00"]
)
def test_a_picture_that_is_none_is_the_first_test_image(fragment: str, call: Call) -> None:
    state = call("state", "m.fromFragment(fragment, about)", fragment=fragment, about=ABOUT)
    assert state["picture"] == {"kind": "test", "run": "small", "index": 0}


def test_runs_of_black_are_short_in_an_address(call: Call) -> None:
    levels = [0] * 700 + [5, 0, 0, 255, 0]
    packed = call("pixels", "m.pack(Uint8Array.from(levels))", levels=levels)
    assert len(packed) < 20
    assert call("pixels", "[...m.unpack(packed, 705)]", packed=packed) == levels
    assert call("pixels", "m.unpack(packed, 704)", packed=packed) is None


def test_a_stroke_that_crosses_itself_is_no_brighter_there(call: Call) -> None:
    once, twice = (
        call(
            "brush",
            "{ const s = new m.Stroke({height: 28, width: 28, channels: 1}, m.blank(28, 28, 1), [200]);"
            " for (let k = 0; k < times; k += 1) s.segment([4.5, 14.5], [24.5, 14.5]); return [...s.after]; }",
            times=times,
        )
        for times in (1, 3)
    )
    assert once == twice
    assert once[14 * 28 + 10] == 200
    assert 0 < once[13 * 28 + 10] < 200
    assert once[10 * 28 + 10] == 0


def test_a_drawing_is_centred_by_its_mass(call: Call) -> None:
    levels = [0] * 49
    levels[0] = 255
    moved = call("brush", "[...m.centred(Uint8Array.from(levels), {height: 7, width: 7, channels: 1})]", levels=levels)
    assert moved.index(255) == 3 * 7 + 3
    assert call("brush", "[...m.centred(new Uint8Array(4), {height: 2, width: 2, channels: 1})]") == [0] * 4


LAYERS = [
    {"shown": [2, 5, 9], "activations": [1.0, 0.25, None], "dead": [False, None, True]},
    {"shown": [0, 1], "activations": [0.5, 3.0], "dead": [False, False]},
]
GAP = [[[0.5, 0.5], [0.9, 0.1], [None, -1.0]]]


def test_capsules_stand_within_the_picture_and_discs_are_as_large_as_activations(call: Call) -> None:
    placed = call("tree_layout", "m.place(layers, 300, 60)", layers=LAYERS)
    nodes = [node for layer in placed["nodes"] for node in layer]
    assert all(0 < node["x"] < 240 and 0 < node["y"] < placed["height"] for node in nodes)
    # an area is a square: half the radius is a quarter of the activation; above 1, the strongest is the scale.
    assert [node["share"] for node in nodes] == pytest.approx([1, 0.5, 0, (0.5 / 3) ** 0.5, 1])
    assert [node["isDead"] for node in nodes] == [False, False, True, False, False]


def test_a_layer_of_many_capsules_has_several_columns(call: Call) -> None:
    many = {"shown": list(range(256)), "activations": [0.5] * 256, "dead": [False] * 256}
    nodes = call("tree_layout", "m.place(layers, 900, 80).nodes[0]", layers=[many, LAYERS[1]])
    assert len({node["x"] for node in nodes}) == 8
    assert len({(node["x"], node["y"]) for node in nodes}) == 256


def test_lines_are_graded_and_the_weakest_left_out(call: Call) -> None:
    found = call("tree_layout", "m.edges(gaps, m.fullLines({couplings: gaps.map((gap) => [gap])}), 0.2)", gaps=GAP)
    assert [len(grade) for grade in found["grades"]] == [0, 0, 0, 0, 0, 2, 0, 0, 0, 1]
    assert [(edge["i"], edge["j"]) for edge in found["negative"][9]] == [(2, 1)]
    assert (found["drawn"], found["left"]) == (4, 2)
    few = call("tree_layout", "m.edges([...gaps, ...gaps], [1, 1], 0, 4)", gaps=GAP)
    assert (few["drawn"], few["left"]) == (4, 8)


def test_couplings_that_are_all_alike_are_not_all_strong(call: Call) -> None:
    alike, apart = [[0.1] * 10] * 4, [[0.9] + [0.1 / 9] * 9] * 4
    found = call("tree_layout", "m.fullLines({couplings: [[alike], [alike, apart], []]})", alike=alike, apart=apart)
    assert found == pytest.approx([0.2, 0.9, 1e-9])


def test_arrow_keys_lead_along_layers_and_across_them(call: Call) -> None:
    ends = call(
        "tree_layout",
        "{ const {nodes} = m.place(layers, 300, 60); const at = (from, key) => { const to = m.towards(nodes, from, key);"
        " return [to.layer, to.number]; }; const first = nodes[0][0];"
        " return ['ArrowDown', 'ArrowUp', 'End', 'ArrowRight', 'ArrowLeft'].map((key) => at(first, key)); }",
        layers=LAYERS,
    )
    assert ends == [[0, 5], [0, 2], [0, 9], [1, 0], [0, 2]]


@pytest.mark.parametrize(
    ("low", "high", "wanted"),
    [(0, 1, [0, 0.2, 0.4, 0.6, 0.8, 1]), (-180, 180, [-100, 0, 100]), (0.3, 0.3, [0.3]), (2, 9.9, [2, 4, 6, 8])],
)
def test_axes_have_round_numbers(low: float, high: float, wanted: list[float], call: Call) -> None:
    assert call("charts", "m.ticks(low, high)", low=low, high=high) == wanted


@pytest.mark.parametrize(
    ("high", "signed", "wanted"),
    [(0.634, False, ["0", "0.63"]), (1234, False, ["0", "1200"]), (0.05, True, ["0", "0.05", "−0.05"]), (0, False, ["0"])],
)
def test_the_longest_bar_is_told_at_the_axis(high: float, signed: bool, wanted: list[str], call: Call) -> None:
    found = call("charts", "m.columnScale(high, signed)", high=high, signed=signed)
    assert [each["text"] for each in found] == wanted
    assert [each["share"] for each in found] == [0, 1, -1][: len(wanted)]


def test_drawings_take_the_ink_of_the_image_that_they_are_of(call: Call) -> None:
    first, second = [255, 0, 0, 0], [0, 0, 0, 255]
    assert call("overlap", "m.inOrder([first, second], [first, second])", first=first, second=second) is True
    assert call("overlap", "m.inOrder([second, first], [first, second])", first=first, second=second) is False
    data = call("overlap", "[...m.inked(first, second, {height: 2, width: 2}).data]", first=first, second=second)
    assert data[:6] == [64, 214, 196, 0, 0, 0]
    assert data[9:] == [255, 140, 80]


def test_parts_of_a_figure_do_not_overlap(call: Call) -> None:
    sizes = [
        {"width": 400, "height": 100},
        {"width": 400, "height": 300},
        {"width": 400, "height": 50},
        {"width": 10, "height": 5, "isFirst": True},
    ]
    found = call("figure", "m.arrange(sizes, 900)", sizes=sizes)
    places = [(place["x"], place["y"]) for place in found["places"]]
    assert places[0][1] == places[1][1] < places[2][1] < places[3][1]
    assert places[2][0] == places[3][0] == 0
    assert places[2][1] >= places[0][1] + 300
    assert found["height"] >= places[3][1] + 5
