"""`capsella data`: listing, getting and verifying sets; every mistake and failure is one line on stderr."""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import os
import re
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from running import capsella, in_process

from capsella import list_data, load_data
from capsella.cli.options import key_values
from capsella.data import affnist, digits, multimnist, registry
from capsella.data.sources import File, Files


def run(*arguments: str) -> tuple[int, str, str]:
    return in_process("data", *arguments)


def as_users_do(*arguments: str) -> tuple[int, str, str]:
    done = capsella("data", *arguments)
    return done.returncode, done.stdout, done.stderr


def rows(table: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.split("│")[1:-1]] for line in table.splitlines() if line.startswith("│")]


def row(table: str, first: str) -> list[str]:
    """Return the cells of the row that begins with ``first``."""
    return next(cells for cells in rows(table) if cells[0] == first)


def states(table: str) -> list[str]:
    """Return the first word of each file's state."""
    return sorted(re.split(r"\W", state)[0] for _, state in rows(table))


def mistake(*arguments: str) -> str:
    """Return the one line that a user's mistake gives."""
    return one_line(2, *arguments)


def failure(*arguments: str) -> str:
    """Return the one line that a failure gives."""
    return one_line(1, *arguments)


def one_line(expected: int, *arguments: str) -> str:
    code, out, err = run(*arguments)
    assert (code, out) == (expected, ""), err
    assert len(err.splitlines()) == 1, err
    assert err.startswith("capsella: ")
    return err.removeprefix("capsella: ").rstrip("\n")


def contents() -> dict[str, bytes]:
    """Return four IDX files of 40 and 12 noisy digits."""
    made = {}
    for stem, count in (("train", 40), ("t10k", 12)):
        images = np.random.default_rng(count).integers(0, 256, (count, 28, 28), dtype=np.uint8)
        made[f"{stem}-images-idx3-ubyte"] = struct.pack(">HBB3I", 0, 8, 3, *images.shape) + images.tobytes()
        made[f"{stem}-labels-idx1-ubyte"] = struct.pack(">HBBI", 0, 8, 1, count) + bytes(k % 10 for k in range(count))
    return made


FILES = Files(
    "mnist",
    tuple(File(name, f"sha256:{hashlib.sha256(content).hexdigest()}", len(content)) for name, content in contents().items()),
)
FROM_MNIST = ("mnist", "mnist40", "affnist", "affnist_literal", "affnist_mitterreiter", "multimnist")


def publish(patch: pytest.MonkeyPatch, files: Files) -> None:
    """Let the program take these files for MNIST's."""
    for module in (digits, affnist, multimnist):
        patch.setattr(module, "MNIST", files)
    for name in FROM_MNIST:
        patch.setitem(registry._SETS, name, dataclasses.replace(registry._SETS[name], files=files))


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is to be had from outside; MNIST is the made one."""
    for name, entry in list(registry._SETS.items()):
        if entry.files is not None:
            monkeypatch.setitem(
                registry._SETS, name, dataclasses.replace(entry, files=dataclasses.replace(entry.files, sources=()))
            )
    publish(monkeypatch, FILES)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a data directory with the made MNIST."""
    (tmp_path / "root/mnist").mkdir(parents=True)
    for name, content in contents().items():
        (tmp_path / "root/mnist" / f"{name}.gz").write_bytes(gzip.compress(content, 1))
    return tmp_path / "root"


@pytest.fixture
def cache() -> Path:
    return Path(os.environ["XDG_CACHE_HOME"]) / "capsella"


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else b"" for path in folder.rglob("*")}


@pytest.fixture
def locked(root: Path) -> Iterator[Path]:
    """Return the data directory, read-only; it is as it was after the test."""
    before = snapshot(root)
    for folder in (root / "mnist", root):
        folder.chmod(0o555)
    yield root
    for folder in (root, root / "mnist"):
        folder.chmod(0o755)
    assert snapshot(root) == before


# help


def test_data_alone_shows_its_verbs() -> None:
    code, out, err = run()
    assert (code, err) == (0, "")
    assert "Usage: capsella data" in out
    for verb in ("list", "get", "verify"):
        assert re.search(rf"^│ {verb}\b", out, re.MULTILINE), verb


def test_data_alone_as_users_run_it() -> None:
    code, out, err = as_users_do()
    assert (code, err) == (0, "")
    assert "Usage: capsella data" in out


@pytest.mark.parametrize(
    ("verb", "words"), [("list", ["--root"]), ("get", ["--split", "--option", "-o", "--root"]), ("verify", ["--root"])]
)
def test_every_verb_has_help(verb: str, words: list[str]) -> None:
    code, out, err = run(verb, "--help")
    assert (code, err) == (0, "")
    for word in words:
        assert word in out


# list


def test_list_names_every_set_and_says_which_are_here(root: Path, cache: Path) -> None:
    code, out, err = run("list", "--root", str(root))
    assert (code, err) == (0, "")
    for name in list_data():
        assert row(out, name), name
    assert row(out, "mnist")[2] == "yes"
    assert row(out, "affnist")[2] == "yes"
    assert row(out, "fashion_mnist")[2] == "no"
    assert row(out, "cifar10")[2] == "no"
    assert row(out, "sign")[2] == "nothing to fetch"
    assert f"data directory: {root}\n" in out
    assert f"cache folder:   {cache}\n" in out
    # options with their defaults.
    assert "source='synthetic', versions=1" in out
    assert "partners=1, shift=4" in out


def test_list_counts_files_where_only_some_are_here(root: Path) -> None:
    (root / "mnist/t10k-images-idx3-ubyte.gz").unlink()
    assert row(run("list", "--root", str(root))[1], "mnist")[2] == "3 of 4 files"


def test_list_takes_the_directory_of_the_environment(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CAPSELLA_DATA", str(root))
    code, out, _ = run("list")
    assert code == 0
    assert row(out, "mnist")[2] == "yes"
    assert f"data directory: {root}\n" in out


def test_list_writes_nothing(root: Path, cache: Path) -> None:
    before = snapshot(root)
    run("list", "--root", str(root))
    assert snapshot(root) == before
    assert not cache.exists()


def test_list_of_a_root_that_is_not_there_is_no_failure(tmp_path: Path) -> None:
    code, out, err = run("list", "--root", str(tmp_path / "nowhere"))
    assert (code, err) == (0, "")
    assert row(out, "mnist")[2] == "no"
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize("name", ["with [old] in it", "[", "[bold]"])
def test_paths_are_shown_as_they_are(root: Path, name: str) -> None:
    odd = root.rename(root.with_name(name))
    code, out, err = run("list", "--root", str(odd))
    assert (code, err) == (0, "")
    assert f"data directory: {odd}\n" in out
    code, out, err = run("verify", "--root", str(odd))
    assert (code, err) == (0, "")
    assert row(out, f"{odd / 'mnist' / 'train-images-idx3-ubyte.gz'}")[1] == "sound"


# get


def test_get_shows_both_published_splits(root: Path) -> None:
    code, out, err = run("get", "mnist", "--root", str(root))
    assert (code, err) == (0, "")
    for split, count in (("train", "40"), ("test", "12")):
        digest = load_data("mnist", split=split, root=root).digest
        assert row(out, split) == [split, count, "1 × 28 × 28", "10", digest[:16]]
    assert not re.search(r"\b(fit|val)\b", out)


@pytest.mark.parametrize(("split", "count"), [("train", "40"), ("fit", "30"), ("val", "10"), ("test", "12")])
def test_get_takes_one_split(root: Path, split: str, count: str) -> None:
    code, out, err = run("get", "mnist", "--split", split, "--root", str(root))
    assert (code, err) == (0, "")
    assert row(out, split)[:2] == [split, count]
    assert len(rows(out)) == 1


def test_get_takes_options_of_the_set(root: Path) -> None:
    code, out, err = run("get", "affnist", "-o", "versions=2", "--root", str(root))
    assert (code, err) == (0, "")
    assert row(out, "train")[1:3] == ["80", "1 × 40 × 40"]
    assert row(out, "test")[1] == "24"
    code, out, _ = run(
        "get", "multimnist", "--option", "partners=1000", "-o", "shift=6", "--root", str(root), "--split", "test"
    )
    assert code == 0
    assert row(out, "test")[1:3] == ["12,000", "1 × 36 × 36"]


def test_get_takes_a_size_of_two_numbers(tmp_path: Path) -> None:
    for name in ("ant", "bee"):
        (tmp_path / name).mkdir()
        for k in range(5):
            Image.new("L", (6, 6), k).save(tmp_path / name / f"{k}.png")
    code, out, err = run("get", "folder", "--root", str(tmp_path), "-o", "image_size=[12, 9]", "-o", "grey=true")
    assert (code, err) == (0, "")
    assert row(out, "train")[1:4] == ["8", "1 × 12 × 9", "2"]
    assert row(out, "test")[1] == "2"


def test_get_leaves_what_it_made_in_the_cache_and_the_directory_alone(root: Path, cache: Path) -> None:
    before = snapshot(root)
    assert run("get", "affnist", "--root", str(root))[0] == 0
    assert snapshot(root) == before
    made = sorted(path.suffix for path in (cache / "generated").iterdir())
    assert made == [".json", ".json", ".u8", ".u8"]


class Shelf:
    """A source that has the files and counts how often it is asked."""

    def __init__(self) -> None:
        self.asked = 0

    def __str__(self) -> str:
        return "shelf"

    def fetch(self, wanted: Sequence[File], files: Sequence[File]) -> dict[str, bytes]:
        """Hand over what is wanted."""
        self.asked += 1
        return {file.name: contents()[file.name] for file in wanted}


@pytest.fixture
def shelf(monkeypatch: pytest.MonkeyPatch) -> Shelf:
    source = Shelf()
    publish(monkeypatch, dataclasses.replace(FILES, sources=(source,)))
    return source


def test_getting_twice_fetches_once(tmp_path: Path, shelf: Shelf) -> None:
    new = tmp_path / "new"
    first, second = (run("get", "mnist", "--root", str(new)) for _ in range(2))
    assert first == second
    assert first[0] == 0
    assert shelf.asked == 2  # once for train, once for test
    assert {path.name: path.read_bytes() for path in (new / "mnist").iterdir()} == contents()


def test_get_without_a_root_keeps_files_in_the_cache(shelf: Shelf, cache: Path) -> None:
    assert run("get", "mnist", "--split", "test")[0] == 0
    assert sorted(path.name for path in (cache / "data/mnist").iterdir()) == [
        "t10k-images-idx3-ubyte",
        "t10k-labels-idx1-ubyte",
    ]
    assert row(run("list")[1], "mnist")[2] == "2 of 4 files"


def test_a_read_only_directory_works(locked: Path, cache: Path) -> None:
    code, out, err = run("get", "mnist", "--root", str(locked))
    assert (code, err) == (0, "")
    assert row(out, "train")[1] == "40"
    assert run("get", "affnist", "--root", str(locked))[0] == 0
    assert (cache / "generated").is_dir()


def test_what_is_fetched_beside_a_read_only_directory_goes_to_the_cache(tmp_path: Path, shelf: Shelf, cache: Path) -> None:
    shut = tmp_path / "shut"
    shut.mkdir(mode=0o555)
    try:
        for _ in range(2):
            code, out, err = run("get", "mnist", "--root", str(shut))
            assert (code, err) == (0, "")
            assert row(out, "train")[1] == "40"
        assert list(shut.iterdir()) == []
    finally:
        shut.chmod(0o755)
    assert {path.name: path.read_bytes() for path in (cache / "data/mnist").iterdir()} == contents()
    assert shelf.asked == 2


def test_get_as_users_run_it() -> None:
    code, out, err = as_users_do("get", "sign")
    assert (code, err) == (0, "")
    assert row(out, "train") == ["train", "20,002", "1 × 1 × 1", "2", load_data("sign").digest[:16]]
    assert row(out, "test")[1] == "20,000"


# mistakes: exit code 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["get", "mnits"], "name='mnits' is unknown; did you mean 'mnist'"),
        (
            ["get", "mnist", "--split", "tset"],
            "split='tset' is unknown; did you mean 'test'? Known: 'fit', 'test', 'train', 'val'",
        ),
        (["get", "mnist", "--split", ""], "split='' is unknown. Known: "),
        (["get", "affnist", "-o", "version=2"], "affnist: option='version' is unknown; did you mean 'versions'? Known: "),
        (["get", "mnist", "-o", "versions=2"], "mnist: option='versions' is unknown. Known: none"),
        (["get", "affnist", "-o", "versions=0"], "versions=0 is too small; expected an int of at least 1"),
        (["get", "affnist", "-o", "versions=two"], "versions='two' has type str; expected an int of at least 1"),
        (["get", "affnist", "-o", "versions=1.0"], "versions=1.0 has type float; expected an int of at least 1"),
        (["get", "affnist", "-o", "versions=true"], "versions=True has type bool; expected an int of at least 1"),
        (["get", "affnist", "-o", "versions"], "option 'versions' has no value; expected KEY=VALUE"),
        (["get", "affnist", "-o", "=2"], "option '=2' has no value; expected KEY=VALUE"),
        (["get", "affnist", "-o", ""], "option '' has no value; expected KEY=VALUE"),
        (["get", "affnist", "-o", "source=offical"], "source='offical' is unknown; did you mean 'official'? Known: "),
        (["get", "mnist", "-o", "normalise=units"], "normalise='units' is unknown; did you mean 'unit'? Known: "),
        (["get", "folder"], "root=None names no images; expected the folder that holds one folder per class"),
        (["get"], "Missing argument 'NAME'"),
        (["gte", "mnist"], "No such command 'gte'"),
        (["get", "mnist", "mnist40"], "Got unexpected extra argument"),
        (["get", "mnist", "--spilt", "test"], "No such option: --spilt"),
        (["verify", "mnits"], "name='mnits' is unknown; did you mean 'mnist'"),
        (["list", "mnist"], "Got unexpected extra argument"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(arguments: list[str], message: str) -> None:
    assert mistake(*arguments).lower().startswith(message.lower())


@pytest.mark.parametrize("verb", [["list"], ["get", "mnist"], ["get", "folder"], ["verify"]])
def test_a_root_that_is_a_file_is_a_mistake(root: Path, verb: list[str]) -> None:
    path = root / "mnist/train-labels-idx1-ubyte.gz"
    assert mistake(*verb, "--root", str(path)).startswith(f"root={str(path)!r} is a file; expected ")


@pytest.mark.parametrize("verb", [["list"], ["get", "sign"], ["verify"]])
def test_a_home_of_nobody_is_a_mistake(verb: list[str]) -> None:
    assert "~nobody-of-this-name" in mistake(*verb, "--root", "~nobody-of-this-name/data")


@pytest.mark.parametrize("key", ["root", "split", "name"])
def test_an_option_that_has_a_place_of_its_own_is_a_mistake_in_the_users_words(root: Path, key: str) -> None:
    text = mistake("get", "mnist", "-o", f"{key}=test", "--root", str(root))
    assert key in text
    assert "load_data()" not in text


# failures: exit code 1


def test_data_that_is_not_to_be_had_is_a_failure(tmp_path: Path, cache: Path) -> None:
    for name in FROM_MNIST:
        text = failure("get", name, "--root", str(tmp_path))
        assert text.startswith("mnist: train-images-idx3-ubyte, train-labels-idx1-ubyte not found in the folder mnist of ")
        assert str(tmp_path) in text
        assert "CAPSELLA_DATA" in text
    assert list(tmp_path.iterdir()) == []
    assert not cache.exists()


def test_a_half_that_is_missing_shows_no_half_table(root: Path) -> None:
    (root / "mnist/t10k-labels-idx1-ubyte.gz").unlink()
    assert failure("get", "mnist", "--root", str(root)).startswith("mnist: t10k-labels-idx1-ubyte not found in ")


def flipped(path: Path) -> None:
    content = bytearray(gzip.decompress(path.read_bytes()))
    content[-1] ^= 1
    path.write_bytes(gzip.compress(bytes(content), 1))


def test_a_flipped_byte_is_a_failure(root: Path) -> None:
    path = root / "mnist/t10k-images-idx3-ubyte.gz"
    flipped(path)
    before = snapshot(root)
    text = failure("get", "mnist", "--root", str(root))
    assert text.startswith(f"{path} has content with sha256 ")
    assert text.endswith("; replace the file, or remove it so that it is fetched again")
    assert snapshot(root) == before
    # the other split can be had.
    assert run("get", "mnist", "--split", "train", "--root", str(root))[0] == 0


def test_a_truncated_file_is_a_failure(root: Path) -> None:
    path = root / "mnist/train-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:-30])
    assert failure("get", "mnist", "--root", str(root)).startswith(f"{path} is a gzip file that ends too early; ")


def test_official_files_that_are_missing_are_named(root: Path) -> None:
    text = failure("get", "affnist", "-o", "source=official", "--split", "test", "--root", str(root))
    assert text.startswith(f"source='official' needs test_batches/1.mat in {root / 'affnist'}; ")


def test_a_folder_without_classes_is_a_failure(tmp_path: Path) -> None:
    assert (
        failure("get", "folder", "--root", str(tmp_path)) == f"{tmp_path} has no folders; expected at least two, one per class"
    )


def test_a_broken_picture_is_a_failure(tmp_path: Path) -> None:
    for name in ("train/ant", "train/bee", "test/ant", "test/bee"):
        (tmp_path / name).mkdir(parents=True)
        Image.new("L", (4, 4)).save(tmp_path / name / "0.png")
    path = tmp_path / "train/bee/1.png"
    path.write_text("no picture")
    assert failure("get", "folder", "--root", str(tmp_path)).startswith(f"{path} is no image that can be read (")


def test_a_failure_as_users_run_it(tmp_path: Path) -> None:
    (tmp_path / "mnist").mkdir()
    # both of one split, so that nothing has to be fetched.
    for kind in ("images-idx3", "labels-idx1"):
        (tmp_path / f"mnist/t10k-{kind}-ubyte").write_bytes(b"something else")
    code, out, err = as_users_do("get", "mnist", "--split", "test", "--root", str(tmp_path))
    assert (code, out) == (1, "")
    path = tmp_path / "mnist/t10k-images-idx3-ubyte"
    assert err == (
        f"capsella: {path} has 14 bytes of content; expected 7,840,016; "
        "replace the file, or remove it so that it is fetched again\n"
    )


def test_a_directory_that_may_not_be_read_is_a_failure(tmp_path: Path) -> None:
    shut = tmp_path / "shut"
    (shut / "ant").mkdir(parents=True)
    shut.chmod(0)
    try:
        if os.access(shut, os.R_OK):
            pytest.skip("this user may read everything")
        assert str(shut) in failure("get", "folder", "--root", str(shut))
    finally:
        shut.chmod(0o755)


# verify


def test_verify_finds_sound_files_sound(root: Path) -> None:
    for name in ([], ["mnist"], ["multimnist"]):
        code, out, err = run("verify", *name, "--root", str(root))
        assert (code, err) == (0, "")
        for file in FILES.files:
            assert row(out, str(root / "mnist" / f"{file.name}.gz"))[1] == "sound"
        assert states(out) == ["sound"] * 4


def test_verify_finds_a_wrong_file_and_exits_with_1(root: Path) -> None:
    path = root / "mnist/t10k-labels-idx1-ubyte.gz"
    flipped(path)
    before = snapshot(root)
    for name in ([], ["mnist"]):
        code, out, err = run("verify", *name, "--root", str(root))
        assert code == 1
        assert err == f"capsella: 1 of 4 files are not as they should be: {path}\n"
        assert row(out, str(path))[1].startswith("wrong: has content with sha256 ")
        assert states(out) == ["sound"] * 3 + ["wrong"]
    assert snapshot(root) == before


def test_verify_finds_every_wrong_file(root: Path) -> None:
    first, second = root / "mnist/t10k-labels-idx1-ubyte.gz", root / "mnist/train-images-idx3-ubyte.gz"
    first.write_bytes(b"")
    second.write_bytes(second.read_bytes()[:100])
    code, out, err = run("verify", "--root", str(root))
    assert code == 1
    assert err.startswith("capsella: 2 of 4 files are not as they should be: ")
    assert str(first) in err
    assert str(second) in err
    assert row(out, str(second))[1].startswith("wrong: is a gzip file that ends too early")


def test_verify_with_nothing_there(tmp_path: Path, cache: Path) -> None:
    code, out, err = run("verify", "--root", str(tmp_path))
    assert (code, err) == (0, "")
    assert out == f"no files of data sets in {tmp_path} or {cache}\n"
    assert list(tmp_path.iterdir()) == []


def test_verify_of_a_set_says_which_files_are_not_here(root: Path) -> None:
    (root / "mnist/t10k-labels-idx1-ubyte.gz").unlink()
    code, out, err = run("verify", "mnist", "--root", str(root))
    assert (code, err) == (1, "capsella: 1 of 4 files are not as they should be: mnist/t10k-labels-idx1-ubyte\n")
    assert row(out, "mnist/t10k-labels-idx1-ubyte")[1] == "not here"
    assert states(out) == ["not"] + ["sound"] * 3


def test_verify_checks_what_was_generated(root: Path, cache: Path) -> None:
    run("get", "affnist", "--split", "test", "--root", str(root))
    (path,) = (cache / "generated").glob("*.u8")
    code, out, err = run("verify", "--root", str(root))
    assert (code, err) == (0, "")
    assert row(out, str(path))[1] == "sound"
    content = bytearray(path.read_bytes())
    content[5] ^= 1
    path.write_bytes(bytes(content))
    code, out, err = run("verify", "--root", str(root))
    assert code == 1
    assert row(out, str(path))[1].startswith("wrong")
    assert str(path) in err
    # it is made again when it is asked for.
    assert run("get", "affnist", "--split", "test", "--root", str(root))[0] == 0
    assert run("verify", "--root", str(root))[0] == 0


@pytest.mark.parametrize("note", ["", "{", "[]", "null", '{"sha256": "0"}', '{"shape": 3, "sha256": "0"}', '{"shape": ["a"]}'])
def test_verify_finds_a_broken_note_beside_a_generated_set(root: Path, cache: Path, note: str) -> None:
    run("get", "affnist", "--split", "test", "--root", str(root))
    (path,) = (cache / "generated").glob("*.json")
    path.write_text(note)
    code, out, err = run("verify", "--root", str(root))
    assert code == 1
    assert len(err.splitlines()) == 1
    assert row(out, str(path.with_suffix(".u8")))[1].startswith("wrong")


@pytest.mark.parametrize("note", ["", "{", "[]", "null", "{}", '{"sha256": 3}'])
def test_a_generated_set_with_a_broken_note_is_made_again(root: Path, cache: Path, note: str) -> None:
    first = run("get", "affnist", "--split", "test", "--root", str(root))
    (path,) = (cache / "generated").glob("*.json")
    before = path.read_text()
    path.write_text(note)
    assert run("get", "affnist", "--split", "test", "--root", str(root)) == first
    assert path.read_text() == before


def test_verify_reads_a_read_only_directory(locked: Path) -> None:
    code, out, err = run("verify", "--root", str(locked))
    assert (code, err) == (0, "")
    assert states(out) == ["sound"] * 4


# sets of one's own, and KEY=VALUE


def test_a_set_of_ones_own_can_be_listed_and_got() -> None:
    import torch

    from capsella.data import Content, Places, Stored, register_data

    @register_data("dots", summary="one bright pixel")
    def dots(split: str, places: Places, *, side: int = 4) -> Content:
        images = torch.eye(side * side).reshape(-1, 1, side, side).mul(255).to(torch.uint8)
        return Content(Stored(images, torch.arange(len(images)) % 2), ("a", "b"))

    try:
        listed = run("list")[1]
        assert row(listed, "dots") == ["dots", "one bright pixel", "nothing to fetch"]
        assert "side=4" in listed
        code, out, err = run("get", "dots", "-o", "side=3", "--split", "train")
        assert (code, err) == (0, "")
        assert row(out, "train")[1:4] == ["9", "1 × 3 × 3", "2"]
        assert mistake("get", "dots", "-o", "sides=3").startswith("dots: option='sides' is unknown; did you mean 'side'?")
    finally:
        del registry._SETS["dots"]


def test_values_are_json_where_they_can_be() -> None:
    given = ["a=3", "b=-1.5", "c=true", "d=null", "e=[1, 2]", 'f="3"', "g=official", "h=", "i=a=b", "j=True", 'k={"x": 1}']
    assert key_values(given) == {
        "a": 3,
        "b": -1.5,
        "c": True,
        "d": None,
        "e": [1, 2],
        "f": "3",
        "g": "official",
        "h": "",
        "i": "a=b",
        "j": "True",
        "k": {"x": 1},
    }
    assert key_values([]) == {}
    assert key_values(["a=1", "a=2"]) == {"a": 2}


@pytest.mark.parametrize("pair", ["versions", "", "=", "=3"])
def test_a_pair_without_key_or_value_is_refused(pair: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(f'option {pair!r} has no value; expected KEY=VALUE')}$"):
        key_values([pair])
