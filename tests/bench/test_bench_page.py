"""docs/speed.md is what the committed records say, and the page says what is in a record."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from capsella.errors import DataError
from capsella.report.speed import KINDS, read_records, speed_page
from capsella.report.speed_plots import Panel, log_log

ROOT = Path(__file__).resolve().parents[2]
RESULTS, DOCS = ROOT / "results" / "bench", ROOT / "docs"


HAVE_RECORDS = any(path.name.partition("-")[0] in KINDS for path in RESULTS.glob("*.json"))


def test_the_committed_page_is_made_from_the_committed_records() -> None:
    if not HAVE_RECORDS:
        # a page of figures without their records would be typed in.
        assert not (DOCS / "speed.md").exists()
        return
    files = speed_page(read_records(RESULTS))
    assert (DOCS / "speed.md").read_text(encoding="utf-8") == files["speed.md"], "run: capsella bench page"
    # the pictures' text depends on matplotlib's release; that each is there, and none besides, does not.
    pictures = {f"speed/{path.name}" for path in (DOCS / "speed").glob("*")}
    assert pictures == files.keys() - {"speed.md"}


@pytest.mark.skipif(not HAVE_RECORDS, reason="no records are committed")
def test_every_picture_of_the_page_is_there() -> None:
    page = (DOCS / "speed.md").read_text(encoding="utf-8")
    named = re.findall(r"!\[[^]]*\]\(([^)]+)\)", page)
    assert named
    for name in named:
        ElementTree.fromstring((DOCS / name).read_text(encoding="utf-8"))


def test_records_are_named_after_kind_device_and_torch() -> None:
    for path in RESULTS.glob("*.json"):
        record = json.loads(path.read_text(encoding="utf-8"))
        assert path.name.startswith(f"{record['kind']}-")
        assert path.name.endswith(f"-torch{record['torch'].partition('+')[0]}.json")


def write(folder: Path, kind: str, readings: list[dict[str, object]], **facts: object) -> None:
    content = {"kind": kind, "device": "a chip", "torch": "2.99", "readings": readings, **facts}
    (folder / f"{kind}-a-chip-torch2.99.json").write_text(json.dumps(content))


def routing_reading(**more: object) -> dict[str, object]:
    base = {
        "algorithm": "agreement",
        "case": "tiny",
        "sizes": {"B": 2, "I": 3},
        "precision": "float32",
        "implementation": "one|two",
        "compiled": False,
        "mode": "forward + backward",
        "chosen": True,
        **{"median": 1.5e-3, "low": 1.25e-3, "high": 2e-3, "floor": 5e-4, "over_floor": 3.0, "speedup": 4.0},
        "memory": 3 << 20,
        "problem": "",
    }
    return {**base, **more}


def test_the_page_says_what_the_records_say(tmp_path: Path) -> None:
    forward = routing_reading(mode="forward", median=5e-4, low=4e-4, high=6e-4)
    red = routing_reading(implementation="bad", chosen=False, problem="wrong: poses")
    says = {"bandwidth": 2e12, "memory_says": "bytes", "compiled_says": "nothing is compiled"}
    write(tmp_path, "routing", [forward, routing_reading(), red], **says, load_before=0.3)
    page = speed_page(read_records(tmp_path))["speed.md"]
    assert "## a chip, torch 2.99\n" in page
    assert "other programs kept busy when a measurement began: 0.3 (routing)." in page
    assert "What must be reached" not in page  # no size that a bar is about
    times = "0.5 (0.4 to 0.6) | 1.5 (1.25 to 2) | 0.5 | 3 | 4 | 3.0"
    assert f"| agreement | float32 | one\\|two * | {times} |" in page
    assert "| agreement | float32 | bad | wrong: poses |" in page
    assert "Copies run at 2,000 GB/s" in page
    assert "as called" not in page
    assert "Stopped before" not in page
    write(tmp_path, "routing", [forward, routing_reading()], **says, complete=False)
    assert "Stopped before the last reading: routing.\n" in speed_page(read_records(tmp_path))["speed.md"]
    # a GPU's records say what a call from Python takes, too.
    write(tmp_path, "routing", [forward, routing_reading(called=2.5e-3), {**red, "called": 0.0}], **says)
    page = speed_page(read_records(tmp_path))["speed.md"]
    assert "| × faster | MiB | f + b as called, ms |" in page
    assert f"| agreement | float32 | one\\|two * | {times} | 2.5 |" in page
    assert "| agreement | float32 | bad | wrong: poses |  |  |  |  |  |  |" in page


def test_the_page_judges_the_records_by_the_bars(tmp_path: Path) -> None:
    judged = routing_reading(case="capsnet-28", precision="mixed", implementation="fused", median=3e-4, repeats=7, how="graph")
    says = {"bandwidth": 2e12, "memory_says": "bytes", "compiled_says": "nothing is compiled"}
    write(tmp_path, "routing", [{**judged, "least_memory": 1 << 20}], **says)
    page = speed_page(read_records(tmp_path))["speed.md"]
    how = "fused, graph, 1.25 to 2 ms in 7"
    assert f"mixed (as the fast step calls it) | ≤ 0.25 ms | ≤ 0.1 ms | 0.3 ms | MISSED by 1.2× | {how} |" in page
    assert "capsnet-40, bfloat16 | ≤ 0.6 ms | ≤ 0.3 ms |  | not measured |" in page


def test_growth_is_drawn_with_a_line_for_each_implementation(tmp_path: Path) -> None:
    readings = [
        {
            "axis": "I",
            "size": size,
            "algorithm": "em",
            "implementation": name,
            "precision": "float32",
            "median": size * 1e-3,
            "memory": size << 20,
            "problem": "",
        }
        for name in ("one", "two")
        for size in (2, 4, 8)
    ]
    powers = [{"algorithm": "em", "precision": "float32", "implementation": "one", "axis": "I", "time": 1.0, "memory": 1.25}]
    write(tmp_path, "growth", readings, exponents=powers)
    files = speed_page(read_records(tmp_path))
    assert "| em | float32 | one | 1.00 / 1.25 |" in files["speed.md"]
    picture = files["speed/growth-em-a-chip-torch2.99.svg"]
    words = " ".join(ElementTree.fromstring(picture).itertext())
    assert all(word in words for word in ("one", "two", "I", "ms", "MiB", "8"))
    # what a stylesheet of the page would colour cannot be reached from a picture in a file.
    assert "currentColor" not in picture


def test_the_page_says_where_the_dispatcher_does_not_take_the_fastest(tmp_path: Path) -> None:
    def point(name: str, size: int, median: float, chosen: bool) -> dict[str, Any]:
        times = {"median": median, "low": 0.9 * median, "high": 1.1 * median}
        same = {"axis": "D", "algorithm": "em", "precision": "float32", "memory": 1 << 20, "problem": ""}
        return {**same, **times, "implementation": name, "size": size, "chosen": chosen}

    readings = [point("one", 8, 1e-3, True), point("two", 8, 2e-3, False)]
    write(tmp_path, "growth", readings, exponents=[])
    says = "takes the fastest, or one that cannot be told from it, at 1 of 1 points.\n"
    assert says in speed_page(read_records(tmp_path))["speed.md"]
    # one that is a little slower cannot be told from the fastest, one that is much slower can.
    readings += [point("one", 16, 1.1e-3, True), point("two", 16, 1e-3, False)]
    readings += [point("one", 32, 4e-3, True), point("two", 32, 2e-3, False)]
    write(tmp_path, "growth", readings, exponents=[])
    says = "at 2 of 3 points; not at em, D = 32 (one 4 ms and two 2 ms).\n"
    assert says in speed_page(read_records(tmp_path))["speed.md"]


def test_pictures_are_the_same_for_the_same_records() -> None:
    panel = Panel("n", "ms", {"a": [(1, 2.0), (2, 3.0)]})
    assert log_log([[panel]], label="one") == log_log([[panel]], label="one")
    with pytest.raises(ValueError, match="nothing to draw"):
        log_log([[Panel("n", "ms", {})]], label="none")


def test_a_folder_without_records_is_said(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"has no records of capsella bench; expected files such as routing-"):
        read_records(tmp_path)
    (tmp_path / "routing-x.json").write_text("{")
    with pytest.raises(DataError, match=r"routing-x.json is no JSON"):
        read_records(tmp_path)


def test_what_the_dispatcher_takes_is_the_fastest_in_the_committed_records() -> None:
    paths = sorted(RESULTS.glob("routing-*.json"))
    assert paths, "the dispatcher's rules have no record behind them"
    groups: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for path in paths:
        for reading in json.loads(path.read_text(encoding="utf-8"))["readings"]:
            if not reading["problem"] and not reading["compiled"]:
                key = tuple(reading[name] for name in ("case", "algorithm", "precision", "mode"))
                groups.setdefault((path.stem, *key), []).append(reading)
    for key, readings in groups.items():
        (taken,) = (reading for reading in readings if reading["chosen"])
        best = min(readings, key=lambda reading: reading["median"])
        # or it cannot be told from the fastest.
        assert taken["low"] <= best["high"], f"{key}: {taken['implementation']} was taken, {best['implementation']} is faster"
