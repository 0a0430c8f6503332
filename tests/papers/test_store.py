"""Results on disk: whole, found again, packed and unpacked; what is no result is refused before anything is written."""

from __future__ import annotations

import io
import json
import sys
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from capsella.errors import DataError
from capsella.papers.results import Result, from_json, to_json
from capsella.papers.store import Store

sys.path.insert(0, str(Path(__file__).resolve().parent))
from paper_harness import job, result

RECORDED = Path(__file__).resolve().parents[2] / "results/papers"


def current(each: Result) -> bool:
    return each.fingerprint == result().fingerprint


def test_a_result_comes_back_as_it_was() -> None:
    made = result(measured={"a": {"b": [1.5, None]}}, test={"accuracy": 0.9, "images": 10})
    assert from_json(to_json(made), where="here") == made
    # readable: a line for each part.
    assert '\n  "accuracy": [0.5]' in to_json(made)
    assert max(len(line) for line in to_json(made).splitlines()) < 2000


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda c: "no JSON", "here is no JSON"),
        (lambda c: [1], "here is no result of capsella reproduce"),
        (lambda c: {**c, "format": 7}, "expected one of format 1"),
        (lambda c: {key: value for key, value in c.items() if key != "history"}, "history is wrong or missing"),
        (lambda c: {**c, "strange": 1}, "strange is wrong or missing"),
        (lambda c: {**c, "recipe": "peer2022/../etc"}, "expected <paper>/<table>/<row>"),
        (lambda c: {**c, "recipe": "/etc/passwd/x"}, "expected <paper>/<table>/<row>"),
        (lambda c: {**c, "recipe": "a/b"}, "expected <paper>/<table>/<row>"),
        (lambda c: {**c, "recipe": "a/b/c d"}, "expected <paper>/<table>/<row>"),
        (lambda c: {**c, "recipe": "a/./c"}, "expected <paper>/<table>/<row>"),
        (lambda c: {**c, "recipe": 3}, "expected <paper>/<table>/<row>"),
        (lambda c: {**c, "seed": -1}, "and a seed"),
        (lambda c: {**c, "seed": True}, "and a seed"),
        (lambda c: {**c, "recipe": f"a/b/{'c' * 300}"}, "expected <paper>/<table>/<row>"),
        (lambda c: {**c, "seed": 10**400}, "and a seed"),
        (lambda c: {**c, "a\nb": 1}, "'a\\nb' is wrong or missing"),
        (lambda c: "[" * 100_000, "here is no JSON"),
        (lambda c: {**c, "fingerprint": 3}, "fingerprint=3; expected a text"),
        (lambda c: {**c, "quick": 1}, "quick=1; expected true or false"),
        (lambda c: {**c, "status": None}, "status=None; expected a text"),
        (lambda c: {**c, "steps": 1.5}, "steps=1.5; expected a whole number of at least 0"),
        (lambda c: {**c, "steps": True}, "steps=True; expected a whole number"),
        (lambda c: {**c, "parameters": -1}, "parameters=-1; expected a whole number"),
        (lambda c: {**c, "seconds": float("nan")}, "seconds=nan; expected a number of at least 0"),
        (lambda c: {**c, "device_seconds": "abc"}, "device_seconds='abc'; expected a number of at least 0"),
        (lambda c: {**c, "device_seconds": 10**400}, "expected a number of at least 0"),
        (lambda c: {**c, "peak_memory": "much"}, "peak_memory='much'; expected a whole number of at least 0, or null"),
        (lambda c: {**c, "measured": [1]}, "measured=[1]; expected parts by name"),
        (lambda c: {**c, "implementations": "abc"}, "implementations='abc'; expected a list of texts"),
        (lambda c: {**c, "plan": "abc"}, "plan='abc'; expected parts by name"),
        (lambda c: {**c, "plan": {**c["plan"], "train": None}}, "plan.train=None; expected parts by name"),
        (lambda c: {**c, "test": 0.9}, "test=0.9; expected parts by name, or null"),
        (lambda c: {**c, "test": {"accuracy": 0.9}}, "test.images is missing; expected a whole number"),
        (lambda c: {**c, "data": None}, "data=None; expected train, validation and test"),
        (lambda c: {**c, "data": {"other": None}}, "expected train, validation and test"),
        (lambda c: {**c, "data": {"train": 3}}, "data.train=3; expected parts by name, or null"),
        (lambda c: {**c, "data": {"train": {**c["data"]["train"], "images": "many"}}}, "data.train.images='many'"),
        (lambda c: {**c, "environment": {}}, "environment.numerics is missing"),
        (lambda c: {**c, "environment": None}, "environment=None; expected parts by name"),
        (lambda c: {**c, "environment": {**c["environment"], "device": None}}, "environment.device=None; expected a text"),
        (lambda c: {**c, "environment": {**c["environment"], "torch": []}}, "environment.torch=[]; expected a text, or null"),
        (lambda c: {**c, "history": None}, "history=None; expected parts by name"),
        (lambda c: {**c, "measured": {"a": [1]}}, "measured={'a': [1]}; expected parts by name, each with parts by name"),
        (lambda c: {**c, "history": {**c["history"], "loss": None}}, "history.loss=None; expected a list"),
        (
            lambda c: {**c, "history": {**c["history"], "loss": ["a"]}},
            "history.loss=['a']; expected a list, each entry a number",
        ),
        (
            lambda c: {**c, "history": {**c["history"], "step": [0.5]}},
            "history.step=[0.5]; expected a list, each entry a whole",
        ),
        (lambda c: {**c, "history": {**c["history"], "step": [1, 2]}}, "the columns of history are of different lengths"),
        (lambda c: {**c, "curve": {"step": [], "loss": []}}, "curve.accuracy is missing"),
        (lambda c: {**c, "curve": {"step": [1], "loss": [1.0], "accuracy": []}}, "(step 1, loss 1, accuracy 0)"),
    ],
)
def test_what_is_no_result_is_refused_in_one_line(change: Any, says: str) -> None:
    content = change(json.loads(to_json(result())))
    text = content if isinstance(content, str) else json.dumps(content)
    with pytest.raises(DataError) as refusal:
        from_json(text, where="here")
    assert says in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_what_a_run_may_come_to_is_sound() -> None:
    made = result(validation=(None,), status="non-finite")
    lost = {**made.history, "epoch": [0.5], "loss": [float("inf")]}
    assert from_json(to_json(replace(made, history=lost)), where="here").history == lost
    none = {"step": [], "loss": [], "accuracy": []}
    assert from_json(to_json(replace(made, curve=none)), where="here").curve == none
    assert len(list(Store(RECORDED).all())) == len(list(RECORDED.glob("*/*/*/*seed-*.json")))


def test_a_store_finds_what_was_written(tmp_path: Path) -> None:
    store = Store(tmp_path / "results")
    assert list(store.all()) == []
    first, second = result(), result("peer2022/table2/other", 3)
    assert store.write(first) == tmp_path / "results/peer2022/table1/row/seed-0.json"
    store.write(second)
    assert list(store.all()) == [first, second]
    assert list(store.all("peer2022/table2/")) == [second]
    assert store.read("peer2022/table1/row/seed-1") is None


def test_only_a_result_of_the_same_recipe_and_numerics_counts(tmp_path: Path) -> None:
    store, asked = Store(tmp_path), job()
    assert store.of(asked) is None
    own = replace(result(), fingerprint=asked.fingerprint)
    store.write(own)
    assert store.of(asked) == own
    assert store.of(job(seed=1)) is None
    # other settings under the same name.
    changed = replace(asked.recipe, plan=asked.recipe.plan.changed({"lr": 0.1})).job(0)
    assert store.of(changed) is None
    # the same settings, another version of the arithmetic.
    store.write(replace(own, fingerprint="of another version"))
    assert store.of(asked) is None
    store.write(replace(own, quick=True))
    assert store.of(asked) is None
    store.write(own)
    assert store.of(asked) == own


def test_a_result_in_another_s_place_is_said(tmp_path: Path) -> None:
    store = Store(tmp_path)
    path = store.write(result())
    other = path.with_name("seed-1.json")
    path.rename(other)
    with pytest.raises(DataError, match=r"seed-1.json holds the result of peer2022/table1/row/seed-0"):
        list(store.all())


def test_a_field_that_is_left_out_has_its_default() -> None:
    content = json.loads(to_json(result()))
    del content["implementations"]
    assert from_json(json.dumps(content), where="here").implementations == ()


def test_a_damaged_result_is_said_by_its_file_and_field(tmp_path: Path) -> None:
    store = Store(tmp_path)
    path = store.write(result())
    path.write_text(path.read_text().replace('"device_seconds": 10.0', '"device_seconds": "abc"'))
    with pytest.raises(DataError) as refusal:
        list(store.all())
    assert str(refusal.value) == (
        f"{path} is damaged: device_seconds='abc'; expected a number of at least 0; take it away, and the run is made again"
    )


def test_results_travel_in_one_archive(tmp_path: Path) -> None:
    one, other = Store(tmp_path / "one"), Store(tmp_path / "other")
    for seed in range(3):
        one.write(result(seed=seed))
    assert one.export(tmp_path / "all.tar.gz") == 3
    assert one.export(tmp_path / "again.tar.gz") == 3
    assert (tmp_path / "all.tar.gz").read_bytes() == (tmp_path / "again.tar.gz").read_bytes()
    other.write(result(seed=1, validation=(0.75,)))
    found = other.take(tmp_path / "all.tar.gz", current)
    assert found.new == ("peer2022/table1/row/seed-0", "peer2022/table1/row/seed-2")
    assert found.kept == ("peer2022/table1/row/seed-1",)
    # what was there stays, and nothing is doubled.
    kept = other.read("peer2022/table1/row/seed-1")
    assert kept is not None
    assert kept.history["validation"] == [0.75]
    assert len(list(other.all())) == 3
    assert other.take(tmp_path / "all.tar.gz", current).new == ()


OLD = {"fingerprint": "f" * 16}


@pytest.mark.parametrize(
    ("here", "comes", "kind"), [(OLD, {}, "replaced"), ({}, OLD, "kept"), (OLD, OLD, "kept"), ({}, {}, "kept")]
)
def test_only_what_is_current_takes_the_place_of_what_is_not(here: Any, comes: Any, kind: str, tmp_path: Path) -> None:
    source, target = Store(tmp_path / "source"), Store(tmp_path / "target")
    source.write(result(**comes, seconds=1.0))
    target.write(result(**here, seconds=2.0))
    source.export(tmp_path / "a.tar.gz")
    assert getattr(target.take(tmp_path / "a.tar.gz", current), kind) == ("peer2022/table1/row/seed-0",)
    (left,) = target.all()
    assert left.seconds == (1.0 if kind == "replaced" else 2.0)


def test_a_short_version_lies_beside_the_whole_run(tmp_path: Path) -> None:
    source, target = Store(tmp_path / "source"), Store(tmp_path / "target")
    source.write(result(quick=True))
    target.write(result())
    source.export(tmp_path / "a.tar.gz")
    assert target.take(tmp_path / "a.tar.gz", current).new == ("peer2022/table1/row/quick-seed-0",)
    assert sorted(each.quick for each in target.all()) == [False, True]


def test_an_archive_that_cannot_be_written_is_said_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(
        ValueError, match=r"export='.*/file/a.tar.gz' cannot be written \(.*\); expected a file in a folder of yours"
    ):
        Store(tmp_path).export(tmp_path / "file" / "a.tar.gz")


def archive(path: Path, files: dict[str, bytes], kind: bytes = tarfile.REGTYPE) -> Path:
    with tarfile.open(path, "w:gz") as packed:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.type, entry.linkname = len(content), kind, "/etc/passwd"
            packed.addfile(entry, io.BytesIO(content))
    return path


def test_an_archive_that_is_not_all_results_changes_nothing(tmp_path: Path) -> None:
    good = to_json(result()).encode()
    evil = {"../../outside.json": good}
    store = Store(tmp_path / "store")
    # a name in an archive decides nothing: the result goes where it belongs.
    store.take(archive(tmp_path / "evil.tar.gz", evil), current)
    assert [path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.json")] == [
        "store/peer2022/table1/row/seed-0.json"
    ]
    empty = Store(tmp_path / "empty")
    damaged = json.dumps({**json.loads(good), "seed": 1, "history": None}).encode()
    for name, made in {
        "half": archive(tmp_path / "half.tar.gz", {"a.json": good, "b.json": b"{"}),
        "damaged": archive(tmp_path / "damaged.tar.gz", {"a.json": good, "b.json": damaged}),
        "twice": archive(tmp_path / "twice.tar.gz", {"a.json": good, "b.json": good}),
        "link": archive(tmp_path / "link.tar.gz", {"a.json": b""}, tarfile.SYMTYPE),
        "folder": archive(tmp_path / "folder.tar.gz", {"a": b""}, tarfile.DIRTYPE),
    }.items():
        with pytest.raises(DataError) as refusal:
            empty.take(made, current)
        assert "\n" not in str(refusal.value), name
    (tmp_path / "no.tar.gz").write_bytes(b"nothing of the kind")
    with pytest.raises(DataError, match="expected what --export wrote"):
        empty.take(tmp_path / "no.tar.gz", current)
    # a mistake, and nothing that is broken.
    for wrong in (tmp_path / "nowhere.tar.gz", tmp_path):
        with pytest.raises(ValueError, match=r"^import='.*' cannot be read \(.*\); expected what --export wrote$") as mistake:
            empty.take(wrong, current)
        assert not isinstance(mistake.value, DataError)
    cut = tmp_path / "cut.tar.gz"
    cut.write_bytes((tmp_path / "evil.tar.gz").read_bytes()[:-20])
    with pytest.raises(DataError):
        empty.take(cut, current)
    assert not empty.folder.exists()
