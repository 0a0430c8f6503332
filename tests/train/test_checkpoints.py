"""A checkpoint is whole or not there: damage, full disks, signals and second writers, each for real."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import pickle
import pickletools
import re
import resource
import shutil
import signal
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from capsella.cli.main import main
from capsella.errors import RunError
from capsella.train import CheckpointError, Run
from capsella.train.checkpoint import FORMAT, read_checkpoint, read_newest, write_checkpoint

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "cli"))
sys.path.insert(0, str(Path(__file__).resolve().parent))
from run_harness import Child, assert_same_run, assert_same_tensors, interrupted, metrics, newest, train, until

FILES = ("model.safetensors", "state.safetensors", "state.json")


def write(folder: Path, step: int) -> Path:
    """Write a small checkpoint whose tensors say the step."""
    weights = {"weight": torch.full((4, 3), float(step))}
    facts = {"position": {"step": step, "loss": 0.1 + step}}
    return write_checkpoint(folder, step, weights, {"sums": torch.arange(3.0)}, facts)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def flip(path: Path) -> None:
    """Flip one bit in the last third, where tensors hold values and JSON holds facts."""
    content = bytearray(path.read_bytes())
    content[len(content) * 3 // 4] ^= 1
    path.write_bytes(content)


def remove(path: Path) -> None:
    path.unlink()


DAMAGES: dict[str, Callable[[Path], None]] = {"truncated": truncate, "empty": empty, "flipped": flip, "missing": remove}


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return a run that stopped after step 4 with checkpoints of steps 3 and 4, and the same run whole."""
    folder = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        interrupted(patch, 4, folder / "parts", checkpoint_seconds=0)
    train(folder / "whole", checkpoint_seconds=0)
    assert [path.name for path in sorted((folder / "parts" / "checkpoints").iterdir())] == ["step-000000003", "step-000000004"]
    return folder / "parts", folder / "whole"


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_passed_over_with_a_warning(
    name: str, damage: str, stopped: tuple[Path, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    parts, whole = stopped
    run = shutil.copytree(parts, tmp_path / "run")
    last = run / "checkpoints" / "step-000000004"
    DAMAGES[damage](last / name)
    with pytest.raises(CheckpointError, match="step-000000004 is damaged"):
        read_checkpoint(last)
    train(run, resume=True, checkpoint_seconds=0)
    warning = next(record.getMessage() for record in caplog.records if record.levelname == "WARNING")
    assert warning.startswith(f"{last} is damaged (")
    assert warning.endswith("; going back to step-000000003")
    assert name in warning
    assert_same_run(run, whole)


def test_every_flipped_bit_is_noticed(tmp_path: Path) -> None:
    sound = write(tmp_path, 1)
    contents = {name: (sound / name).read_bytes() for name in FILES}
    expected = read_checkpoint(sound)
    for name, content in contents.items():
        for place in range(0, len(content), max(1, len(content) // 120)):
            for bit in (0, 4):
                changed = bytearray(content)
                changed[place] ^= 1 << bit
                (sound / name).write_bytes(changed)
                with pytest.raises(CheckpointError):
                    read_checkpoint(sound)
        (sound / name).write_bytes(content)
    assert_same_tensors(read_checkpoint(sound).weights, expected.weights)


@pytest.mark.parametrize("content", [b"5", b"[]", b"null", b'"x"', b"{}", b"\xff\xfe", b'{"format": 1, "sha256": 3}'], ids=repr)
def test_facts_that_are_something_else_are_damage(content: bytes, tmp_path: Path) -> None:
    (write(tmp_path, 1) / "state.json").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"is damaged \(.*state.json"):
        read_newest(tmp_path)


def test_a_checkpoint_of_another_format_is_passed_over(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(tmp_path, 1)
    facts = write(tmp_path, 2) / "state.json"
    content = json.loads(facts.read_text())
    facts.write_text(json.dumps({**content, "format": FORMAT + 1}))
    assert read_newest(tmp_path).path.name == "step-000000001"
    assert f"has format {FORMAT + 1}; this version of capsella reads {FORMAT}; going back to step-000000001" in caplog.text


@pytest.mark.parametrize("names", [("state.json", "model.safetensors"), ("state.safetensors", "state.json")], ids=str)
def test_where_all_are_damaged_one_line_says_so(names: tuple[str, str], stopped: tuple[Path, Path], tmp_path: Path) -> None:
    run = shutil.copytree(stopped[0], tmp_path / "run")
    for step, name in zip((3, 4), names, strict=True):
        flip(run / "checkpoints" / f"step-00000000{step}" / name)
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    with pytest.raises(CheckpointError) as refusal:
        train(run, resume=True, checkpoint_seconds=0)
    last = run / "checkpoints" / "step-000000004"
    assert str(refusal.value).startswith(f"{last} is damaged (")
    assert str(refusal.value).endswith(f"; no sound checkpoint is left in {run / 'checkpoints'}")
    assert "\n" not in str(refusal.value)
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before
    with pytest.raises(CheckpointError, match="is damaged"):
        _ = Run.load(run).model


def test_a_run_without_any_checkpoint_says_so_in_one_line(stopped: tuple[Path, Path], tmp_path: Path) -> None:
    run = shutil.copytree(stopped[0], tmp_path / "run")
    kept = run / "metrics.jsonl"
    lines = kept.read_bytes()
    for prepare in (lambda: [shutil.rmtree(path) for path in (run / "checkpoints").iterdir()], (run / "checkpoints").rmdir):
        prepare()
        with pytest.raises(CheckpointError, match=r"holds no checkpoint, the run did not come to its first one; begin it"):
            train(run, resume=True, checkpoint_seconds=0)
        assert kept.read_bytes() == lines


def test_an_empty_folder_counts_as_damaged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(tmp_path, 1)
    (tmp_path / "step-000000002").mkdir()
    assert read_newest(tmp_path).path.name == "step-000000001"
    assert "step-000000002 is damaged (No such file or directory: state.json); going back to step-000000001" in caplog.text


def test_two_checkpoints_are_kept_and_the_one_before_last_is_sound(tmp_path: Path) -> None:
    for step in range(5):
        write(tmp_path, step)
        kept = [f"step-{k:09d}" for k in (step - 1, step) if k >= 0]
        assert [path.name for path in sorted(tmp_path.iterdir())] == kept
    assert float(read_checkpoint(tmp_path / "step-000000003").weights["weight"][0, 0]) == 3


def test_a_damaged_checkpoint_does_not_stand_for_the_one_before(tmp_path: Path) -> None:
    write(tmp_path, 3)
    flip(write(tmp_path, 9) / "state.json")
    # the run went back to step 3, and came to 5 and 7.
    for step in (5, 7):
        write(tmp_path, step)
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["step-000000005", "step-000000007"]
    for path in tmp_path.iterdir():
        read_checkpoint(path)


def test_what_a_killed_process_left_is_harmless_and_goes(stopped: tuple[Path, Path], tmp_path: Path) -> None:
    parts, whole = stopped
    run = shutil.copytree(parts, tmp_path / "run")
    # as kill -9 leaves them: half a checkpoint, half a line, half a file that was to be renamed.
    for name in (".step-000000005.part", ".step-000000042.part"):
        (run / "checkpoints" / name).mkdir()
        (run / "checkpoints" / name / "model.safetensors").write_bytes(b"\x08\0\0")
    (run / ".config.json.abc.part").write_bytes(b'{"mod')
    with (run / "metrics.jsonl").open("ab") as file:
        file.write(b'{"event": "log", "step": 5, "lo')
    train(run, resume=True, checkpoint_seconds=0)
    assert_same_run(run, whole)
    assert [path.name for path in sorted((run / "checkpoints").iterdir())] == ["step-000000005", "step-000000006"]


def test_a_run_is_written_without_pickle(stopped: tuple[Path, Path]) -> None:
    _, run = stopped
    files = [path for path in run.rglob("*") if path.is_file()]
    assert {path.suffix for path in files} == {".json", ".jsonl", ".safetensors", ""}
    assert [path.name for path in files if path.suffix == ""] == [".lock"]
    for path in files:
        content = path.read_bytes()
        assert not zipfile.is_zipfile(path), path
        with pytest.raises(Exception):  # noqa: B017, PT011 - whatever it says, it must not load
            pickle.loads(content)
        with pytest.raises(Exception):  # noqa: B017, PT011
            list(pickletools.genops(content))
    for path in files:
        if path.suffix == ".safetensors":
            header = int.from_bytes(path.read_bytes()[:8], "little")
            described = json.loads(path.read_bytes()[8 : 8 + header])
            end = max(entry["data_offsets"][1] for entry in described.values())
            assert path.stat().st_size == 8 + header + end, "nothing but tensors"
        elif path.suffix:
            for line in path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]:
                json.loads(line)


# full disks ------------------------------------------------------------------------------------------------------------------


def test_a_disk_that_takes_no_more_leaves_the_last_checkpoint_whole(tmp_path: Path) -> None:
    run = tmp_path / "run"

    def fill(event: dict[str, Any]) -> None:
        if event["event"] == "log" and event["step"] == 4:
            # files may no longer grow beyond so many bytes: the system refuses to write, as a full disk does.
            resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, resource.RLIM_INFINITY))

    def act() -> None:
        try:
            train(run, checkpoint_seconds=0, listeners=[fill])
        except CheckpointError as error:
            sys.stderr.write(str(error))

    child = Child(act)
    assert child.wait() == 0, child.said
    assert re.fullmatch(
        rf"{run}/checkpoints/step-000000004 could not be written \(File too large\); "
        rf"the last one, {run}/checkpoints/step-000000003, is whole",
        child.said,
    )
    assert [path.name for path in sorted((run / "checkpoints").iterdir())] == ["step-000000002", "step-000000003"]
    assert newest(run).facts["position"]["step"] == 3
    train(run, resume=True, checkpoint_seconds=0)
    train(tmp_path / "whole", checkpoint_seconds=0)
    assert_same_run(run, tmp_path / "whole")


@pytest.mark.parametrize("name", ["config.json", "metrics.jsonl", "record.json"])
def test_a_disk_that_takes_not_even_a_line_is_said_in_one(name: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    full_at = {"config.json": "import", "metrics.jsonl": "log", "record.json": "end"}[name]

    def fill(event: dict[str, Any]) -> None:
        if event["event"] == full_at:
            resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))

    def act() -> None:
        fill({"event": "import"})
        try:
            train(run, listeners=[fill])
        except RunError as error:
            sys.stderr.write(str(error))

    child = Child(act)
    assert child.wait() == 0, child.said
    assert child.said == f"{run / name} could not be written (File too large); checkpoints are as they were"
    assert not list(tmp_path.rglob("*.part"))
    if name != "config.json":
        train(run, resume=True)
        train(tmp_path / "whole")
        assert_same_run(run, tmp_path / "whole")


def mount_small(disk: Path) -> None:
    """Mount 8 MiB of memory as a file system that this process alone sees."""
    own_mounts, own_users, private_below = 0x20000, 0x10000000, 0x4000 | 0x40000
    user, group = os.geteuid(), os.getegid()
    system = ctypes.CDLL(None, use_errno=True)

    def call(name: str, *arguments: object) -> None:
        if getattr(system, name)(*arguments):
            raise OSError(ctypes.get_errno(), f"{name} is refused")

    call("unshare", own_mounts if user == 0 else own_mounts | own_users)
    if user:
        # who is root among users of its own may mount.
        for name, words in (("setgroups", "deny"), ("uid_map", f"0 {user} 1"), ("gid_map", f"0 {group} 1")):
            Path(f"/proc/self/{name}").write_text(words)
    call("mount", b"none", b"/", None, ctypes.c_ulong(private_below), None)
    call("mount", b"none", os.fsencode(disk), b"tmpfs", ctypes.c_ulong(0), b"size=8m")


def test_a_full_disk_is_one_line_and_the_run_goes_on_when_there_is_room(tmp_path: Path) -> None:
    disk, whole, told = tmp_path / "disk", tmp_path / "whole", tmp_path / "told"
    disk.mkdir()
    ballast = disk / "ballast"

    def fill(event: dict[str, Any]) -> None:
        if event["event"] == "log" and event["step"] == 4:
            with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
                while True:
                    file.write(bytes(65536))

    def act() -> None:
        mount_small(disk)
        lines = []
        try:
            train(disk / "run", checkpoint_seconds=0, listeners=[fill])
        except RunError as error:
            lines.append(f"{type(error).__name__} {error}")
        lines.append(str(sorted(path.name for path in (disk / "run" / "checkpoints").iterdir())))
        ballast.unlink()
        lines.append(train(disk / "run", resume=True, checkpoint_seconds=0).status)
        train(whole, checkpoint_seconds=0)
        assert_same_run(disk / "run", whole)
        told.write_text("\n".join([*lines, "the same"]))

    if Child(lambda: mount_small(disk)).wait():
        pytest.skip("NO FULL DISK WAS TRIED: nothing may be mounted here")
    child = Child(act)
    assert child.wait() == 0, child.said
    lines = told.read_text().splitlines()
    # whichever file needs the room first says so.
    assert re.fullmatch(r"(CheckpointError|RunError) \S+ could not be written \(No space left on device\); .*", lines[0])
    assert lines[1] == "['step-000000002', 'step-000000003']"
    assert lines[2:] == ["finished", "the same"]
    # nobody else has seen any of it.
    assert list(disk.iterdir()) == []


# signals and other writers ---------------------------------------------------------------------------------------------------


SETTINGS = ("--epochs", "1", "--batch-size", "64", "--lr", "0.005", "--device", "cpu", "-s", "log_every=10")
NEW = ("train", "sign_capsnet", "--data", "sign", *SETTINGS, "--out")


@pytest.fixture(scope="module")
def never_stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a run of the program that no signal reached."""
    folder = tmp_path_factory.mktemp("program")

    def act() -> None:
        os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
        main([*NEW, str(folder / "whole")])

    child = Child(act)
    assert child.wait() == 0, child.said
    return folder / "whole"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_a_checkpoint_one_line_and_an_exit_code(
    number: signal.Signals, never_stopped: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    run = tmp_path / "run"
    child = Child(lambda: main([*NEW, str(run)]))
    until(lambda: (run / "metrics.jsonl").exists() and len((run / "metrics.jsonl").read_bytes().splitlines()) >= 3)
    child.kill(number)
    assert child.wait() == 128 + number, child.said
    step = newest(run).facts["position"]["step"]
    assert 30 <= step < 313
    assert child.said.splitlines()[-1] == f"capsella: stopped after step {step}: go on from {run} with --resume"
    assert "Traceback" not in child.said
    assert not (run / "record.json").exists()
    again = Child(lambda: main(["train", "--resume", str(run)]))
    assert again.wait() == 0, again.said
    assert f"going on after step {step}" in again.said
    assert_same_run(run, never_stopped)


def test_a_second_signal_is_not_held_back(tmp_path: Path) -> None:
    def slow(event: dict[str, Any]) -> None:
        if event["event"] == "log":
            listening = signal.getsignal(signal.SIGTERM)
            (tmp_path / "here").touch()
            until(lambda: signal.getsignal(signal.SIGTERM) != listening)
            (tmp_path / "noted").touch()
            time.sleep(60)

    child = Child(lambda: train(tmp_path / "run", listeners=[slow]))
    until((tmp_path / "here").exists)
    child.kill(signal.SIGTERM)
    until((tmp_path / "noted").exists)
    child.kill(signal.SIGTERM)
    assert child.wait() == -signal.SIGTERM


def test_handlers_are_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    train()
    interrupted(monkeypatch, 1)
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_a_second_process_on_the_same_folder_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tmp_path / "run"
    interrupted(monkeypatch, 2, run)

    def wait(event: dict[str, Any]) -> None:
        if event["event"] == "start":
            (tmp_path / "inside").touch()
            until((tmp_path / "go").exists)

    child = Child(lambda: train(run, resume=True, listeners=[wait]))
    until((tmp_path / "inside").exists)
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    with pytest.raises(ValueError, match=r"^folder=.* is being written by another process; wait for it, or choose another$"):
        train(run, resume=True)
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before
    (tmp_path / "go").touch()
    assert child.wait() == 0, child.said
    # the lock went with the process.
    assert train(run, resume=True).status == "finished"
    assert [line["step"] for line in metrics(run) if line["event"] == "epoch"] == [3, 6]
