"""docs/explorer.md: its code runs, its routes are there, its views are the page's, its figures are the record's."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from explored import net
from PIL import Image
from test_e2e_trained import MOST_BYTES, PICTURES

from capsella.cli.bench_tables import milliseconds
from capsella.web.app import files, routes
from capsella.web.explorer import Explorer
from capsella.web.guard import Caps
from capsella.web.load import CLIENTS, SECONDS
from capsella.web.server import PORT, serving
from capsella.web.strokes import VIEWS

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "explorer.md").read_text(encoding="utf-8")
DECISION = (ROOT / "docs" / "decisions" / "0015-one-thread-asks-the-networks.md").read_text(encoding="utf-8")
BENCH = ROOT / "results" / "bench"
RECORDS, LOADS = sorted(BENCH.glob("explore-*.json")), sorted(BENCH.glob("load-*.json"))


def test_the_code_runs(capsys: pytest.CaptureFixture[str]) -> None:
    over_http, in_python = re.findall(r"^```python\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)
    assert f"http://127.0.0.1:{PORT}/api" in over_http
    with Explorer([net()]) as explorer, serving(explorer) as url:
        exec(compile(over_http.replace(f"http://127.0.0.1:{PORT}/", url), "docs/explorer.md", "exec"), {})
    assert re.fullmatch(r"\d 0\.\d+ \[[\d.]+, [\d.]+\]\n", capsys.readouterr().out)
    exec(compile(in_python, "docs/explorer.md", "exec"), {})
    assert capsys.readouterr().out == "True\n"


def test_every_route_is_named() -> None:
    with Explorer([net()]) as explorer:
        paths = routes(explorer).openapi()["paths"]
    named = set(re.findall(r"(?<![\w.])/(?:api|runs)/[\w/]*", PAGE))
    written = {path.replace("{key}", "KEY").replace("{index}", "INDEX") for path in paths}
    # the sheet stands beside the drawing.
    assert written - named == {"/api/runs/KEY/sheet"}
    assert "`…/sheet`" in PAGE


def test_the_views_are_those_of_the_page() -> None:
    titles = {
        title
        for name, content in files().items()
        if name.startswith("view_")
        for title in re.findall(r'^  title = "(.*?)";$', content.decode(), flags=re.MULTILINE)
    }
    table = PAGE.partition("| view | what it shows |")[2].partition("\n\n")[0]
    assert set(re.findall(r"^\| ([^|-]+?) \|", table, flags=re.MULTILINE)) == titles


def test_the_caps_are_those_of_the_guard() -> None:
    caps = Caps()
    assert f"{caps.upload_bytes >> 20} MiB and {caps.upload_pixels // 1_000_000} million pixels" in PAGE
    assert f"Questions may have {caps.json_bytes >> 20} MiB and {caps.body_seconds:g} seconds" in PAGE
    assert (caps.uploads, caps.upload_seconds) == (20, 0.5)
    assert "two a second after the first twenty" in PAGE


def test_the_figures_are_those_of_the_record() -> None:
    (path,) = RECORDS
    record = json.loads(path.read_text(encoding="utf-8"))
    assert record["complete"]
    assert [reading["name"] for reading in record["readings"]] == [view.name for view in VIEWS]
    rows = [
        f"| {each['name']} | {milliseconds(each['median'])} | {milliseconds(each['p95'])} | {milliseconds(each['high'])} |"
        for each in record["readings"]
    ]
    head = "| after a stroke | median ms | p95 ms | slowest ms |\n|---|---|---|---|\n"
    assert head + "\n".join(rows) + "\n\n" in PAGE
    assert f"{record['load_before']:.1f} of the processors were busy with other programs" in " ".join(PAGE.split())
    # the bar: a tenth of a second.
    assert all(reading["p95"] < reading["must"] == 0.1 for reading in record["readings"])


def test_the_figures_of_many_who_draw_are_those_of_the_record() -> None:
    (path,) = LOADS
    record = json.loads(path.read_text(encoding="utf-8"))
    (each,) = record["readings"]
    assert record["complete"]
    assert (each["problem"], each["clients"], each["seconds"]) == ("", CLIENTS, SECONDS)
    times = " | ".join(milliseconds(each[key]) for key in ("median", "p95", "high"))
    row = f"| {each['clients']} | {each['seconds']:g} | {each['strokes']:,} | {each['refused']:,} | {times} |"
    busy = f"other programs kept {record['load_before']:.1f} of the processors busy"
    assert row in PAGE.splitlines()
    assert busy in " ".join(PAGE.split())
    assert f"(../results/bench/{path.name}), torch {record['torch'].partition('+')[0]}" in PAGE
    # figures stand in one place.
    measured = DECISION.partition("**Measurement.**")[2]
    assert "explorer.md#speed" in measured
    assert not re.search(r"\d ms\b|\d strokes", measured)


def test_pictures_are_there_and_small() -> None:
    shown = set(re.findall(r"pictures/([\w.-]+)", PAGE))
    assert shown == {f"{name}.webp" for name in PICTURES} == {path.name for path in (ROOT / "docs" / "pictures").iterdir()}
    for name, (_, size, scheme) in PICTURES.items():
        path = ROOT / "docs" / "pictures" / f"{name}.webp"
        assert path.stat().st_size < MOST_BYTES
        with Image.open(path) as image:
            assert image.size == size
            assert (image.convert("L").getpixel((1, 1)) > 128) == (scheme == "light")
