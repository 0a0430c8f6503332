"""Where data lies: folders and their order, files that appear whole or not at all, the progress bar."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from made_files import (
    a_terminal,
    read_only,
    tree,
    use_as_mnist,
    without_checksums,
    write_mnist,
)

import capsella
from capsella.data.affnist import cached_sets
from capsella.data.places import Places, cache_folder, is_writable, whole_or_nothing
from capsella.data.progress import progress_bar


@pytest.fixture(autouse=True)
def _plain_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take away what the user has told programs about terminals."""
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)


def test_a_read_only_data_directory_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_as_mnist(monkeypatch, write_mnist(tmp_path / "data", train=40))
    for folder in (tmp_path / "data" / "mnist", tmp_path / "data"):
        read_only(folder)
    before = tree(tmp_path)
    assert len(capsella.load_data("mnist", root=tmp_path / "data")) == 40
    assert tree(tmp_path) == before


def test_the_mode_decides_what_is_writable_for_the_superuser_too(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    assert is_writable(folder)
    folder.mkdir()
    assert is_writable(folder)
    assert is_writable(folder / "a" / "b")
    (folder / "file").write_bytes(b"")
    assert not is_writable(folder / "file")
    assert not is_writable(folder / "file" / "a")
    read_only(folder)
    assert not is_writable(folder)
    assert not is_writable(folder / "a" / "b")
    folder.chmod(0o755)


def test_root_comes_before_the_variable_and_that_before_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    cache = tmp_path / "xdg" / "capsella"
    assert cache_folder() == cache
    assert Places.find() == Places(cache / "data", cache, given=False)
    monkeypatch.setenv("CAPSELLA_DATA", "")
    assert Places.find() == Places(cache / "data", cache, given=False)
    monkeypatch.setenv("CAPSELLA_DATA", str(tmp_path / "variable"))
    assert Places.find() == Places(tmp_path / "variable", cache, given=False)
    assert Places.find(tmp_path / "argument") == Places(tmp_path / "argument", cache, given=True)
    assert Places.find(str(tmp_path / "argument")) == Places(tmp_path / "argument", cache, given=True)
    assert tree(tmp_path) == {}


def test_load_data_reads_from_root_from_the_variable_and_from_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    use_as_mnist(monkeypatch, without_checksums(write_mnist(tmp_path / "argument", train=30)))
    write_mnist(tmp_path / "variable", train=20)
    write_mnist(tmp_path / "xdg" / "capsella" / "data", train=10)
    assert len(capsella.load_data("mnist")) == 10
    monkeypatch.setenv("CAPSELLA_DATA", str(tmp_path / "variable"))
    assert len(capsella.load_data("mnist")) == 20
    assert len(capsella.load_data("mnist", root=tmp_path / "argument")) == 30
    # what the data directory lacks may lie in the cache.
    assert len(capsella.load_data("mnist", root=tmp_path / "empty")) == 10


def test_the_cache_folder_follows_the_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.delenv("LOCALAPPDATA", raising=False)
    found = {}
    for system in ("linux", "darwin", "win32"):
        with monkeypatch.context() as patch:
            patch.setattr(sys, "platform", system)
            found[system] = cache_folder()
    assert found == {
        "linux": tmp_path / ".cache" / "capsella",
        "darwin": tmp_path / "Library" / "Caches" / "capsella",
        "win32": tmp_path / "AppData" / "Local" / "capsella",
    }


def test_a_tilde_is_the_users_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    assert Places.find("~/data").root == tmp_path / "data"


def test_a_root_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"content")
    with pytest.raises(ValueError, match=r"is a file; expected the folder that holds the data sets' folders$") as caught:
        capsella.load_data("mnist", root=tmp_path / "file")
    assert str(caught.value).startswith(f"root={str(tmp_path / 'file')!r} ")
    assert tree(tmp_path) == {tmp_path / "file": b"content"}


def test_a_file_is_written_whole_with_new_folders(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "file.bin"
    with whole_or_nothing(path) as file:
        file.write(b"con")
        assert not path.exists()
        file.write(b"tent")
    assert tree(tmp_path) == {tmp_path / "a": None, path.parent: None, path: b"content"}
    with whole_or_nothing(path) as file:
        file.write(b"new")
        assert path.read_bytes() == b"content"
    assert tree(tmp_path) == {tmp_path / "a": None, path.parent: None, path: b"new"}


def break_off(path: Path, error: BaseException, meanwhile: Callable[[], object] = lambda: None) -> None:
    """Begin to write a file and fail."""
    with whole_or_nothing(path) as file:
        file.write(b"half of it")
        meanwhile()
        raise error


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError, SystemExit, ZeroDivisionError])
def test_an_exception_takes_away_the_file_and_the_new_folders_only(tmp_path: Path, error: type[BaseException]) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "file").write_bytes(b"old")
    (tmp_path / "empty").mkdir()
    before = tree(tmp_path)
    for name in ("old/new/newer/file", "old/file", "old/other", "empty/new/file", "empty/file"):
        path = tmp_path / name
        with pytest.raises(error):
            break_off(path, error())
        assert tree(tmp_path) == before


def test_a_new_folder_that_somebody_else_used_meanwhile_is_left(tmp_path: Path) -> None:
    path = tmp_path / "new" / "newer" / "file"
    with pytest.raises(ValueError, match=r"^stop$"):
        break_off(path, ValueError("stop"), lambda: (tmp_path / "new" / "other").write_bytes(b"kept"))
    assert tree(tmp_path) == {tmp_path / "new": None, tmp_path / "new" / "other": b"kept"}


def test_two_writers_at_once_leave_one_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with whole_or_nothing(path) as one:
        one.write(b"one")
        with whole_or_nothing(path) as two:
            two.write(b"the other")
        assert path.read_bytes() == b"the other"
    assert tree(tmp_path) == {path: b"one"}


@pytest.mark.parametrize("total", [4, None])
@pytest.mark.parametrize("unit", ["", "bytes"])
def test_there_is_silence_without_a_terminal(capfd: pytest.CaptureFixture[str], total: int | None, unit: str) -> None:
    with progress_bar("work", total, unit=unit) as advance:
        for _ in range(4):
            advance(1)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(("total", "unit", "shown"), [(4, "", "100%"), (4_000_000, "bytes", "4.0/4.0 MB"), (None, "", "work")])
def test_a_terminal_shows_what_is_done_on_stderr(
    capsys: pytest.CaptureFixture[str], total: int | None, unit: str, shown: str
) -> None:
    with a_terminal() as screen, progress_bar("work", total, unit=unit) as advance:
        for _ in range(4):
            advance((total or 4) // 4)
    assert "work" in screen.getvalue()
    assert shown in screen.getvalue()
    assert capsys.readouterr().out == ""


def test_the_cursor_is_back_after_an_exception() -> None:
    with a_terminal() as screen, pytest.raises(KeyboardInterrupt), progress_bar("work", 10):
        raise KeyboardInterrupt
    hidden, shown = screen.getvalue().rfind("\x1b[?25l"), screen.getvalue().rfind("\x1b[?25h")
    assert shown > hidden >= 0


@pytest.mark.parametrize("fails", ["file", "folder"])
def test_new_folders_go_where_the_file_cannot_be_begun(tmp_path: Path, fails: str) -> None:
    long = "x" * 300
    with (
        pytest.raises(OSError, match="too long"),
        whole_or_nothing(tmp_path / "a" / "b" / ("x" * 250 if fails == "file" else f"{long}/c")),
    ):
        pass
    assert tree(tmp_path) == {}


@pytest.mark.parametrize("root", ["~nosuchuser_at_all/data", "x" * 5000])
def test_a_root_that_cannot_be_is_a_value_error(root: str) -> None:
    with pytest.raises(ValueError, match="root="):
        Places.find(root)


@pytest.mark.parametrize("note", ["{", "{}", "[]", ""])
def test_a_broken_note_of_a_generated_set_is_not_sound(tmp_path: Path, note: str) -> None:
    places = Places(tmp_path, tmp_path)
    places.generated.mkdir()
    (places.generated / "a.json").write_text(note)
    assert cached_sets(places) == [(places.generated / "a.u8", False)]
