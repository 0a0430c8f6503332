"""Two processes take the steps that one takes with the same batches; one of them writes and speaks."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from capsella.data.places import cache_folder

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "cli"))
sys.path.insert(0, str(Path(__file__).resolve().parent))
import process_cases
from process_cases import CASES
from run_harness import assert_same_run, assert_same_tensors, metrics, newest, until
from running import SOURCE

# Both add the same float32 numbers, in another order: an image's loss and gradient are rounded (2⁻²⁴ ≈ 6e-8) as part of a
# batch of another size, and the sum over processes once more. A dozen steps carry that on; seen were up to 3e-7.
ROUNDING = 3e-6
# A step of Adam is the rate times a quotient of two means of gradients, so where these are near zero it turns by more.
RATE = 1e-3

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
CAPSELLA = [sys.executable, "-m", "capsella"]
SIGN = ["train", "sign_capsnet", "--data", "sign", "--device", "cpu", "--lr", "0.005"]


@dataclass
class Ended:
    """How a program ended."""

    code: int
    out: str
    err: str


@contextlib.contextmanager
def started(cache: Path, *command: str) -> Iterator[subprocess.Popen[str]]:
    """Start a program in a session of its own; none of its processes may outlive this."""
    plain = {"PYTHONPATH": str(SOURCE), "NO_COLOR": "1", "OMP_NUM_THREADS": "1", "XDG_CACHE_HOME": str(cache)}
    # what another launcher in this process may have left behind.
    clean = {key: value for key, value in os.environ.items() if key not in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_PORT")}
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**clean, **plain}, start_new_session=True
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def ended(process: subprocess.Popen[str], seconds: float = 120) -> Ended:
    """Wait for the end of a program and of everything that it started."""
    out, err = process.communicate(timeout=seconds)
    until(lambda: not living(process.pid), 10)
    return Ended(process.returncode, out, err)


def living(session: int) -> list[str]:
    """List the processes of a session that have not ended."""
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            name, _, rest = status.read_text().rpartition(")")
            fields = rest.split()
            if int(fields[3]) == session and fields[0] != "Z":
                found.append(name)
    return found


def ran(cache: Path, *command: str) -> Ended:
    with started(cache, *command) as process:
        return ended(process)


def assert_close(found: Path, expected: Path) -> None:
    """Compare a run with that of one process: the same events, and losses and weights up to the order of sums."""
    one, other = metrics(found), metrics(expected)
    assert len(one) == len(other) > 2
    for line, wanted in zip(one, other, strict=True):
        for key in ("event", "step", "epoch", "images", "lr", "accuracy", "validation"):
            assert line.get(key) == wanted.get(key), (key, line)
        assert line["loss"] == pytest.approx(wanted["loss"], rel=ROUNDING), line
    weights = newest(expected).weights
    steps = newest(expected).facts["position"]["step"]
    settings = json.loads((expected / "config.json").read_text())["train"]
    # Adam moves a weight whose gradient is all rounding by its rate, either way; SGD moves it by the rounding.
    most = 0.1 * RATE * steps if settings["optimiser"] == "adam" else 1e-6
    for name, tensor in newest(found).weights.items():
        assert torch.allclose(tensor, weights[name], rtol=ROUNDING, atol=most), name


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with what two processes did; one start for all, since that is what takes the time."""
    folder = tmp_path_factory.mktemp("two")
    # of all that a cache holds, the library that routing builds is shared, or each process would build it.
    libraries = cache_folder() / "libraries"
    libraries.mkdir(parents=True, exist_ok=True)
    (folder / "cache" / "capsella").mkdir(parents=True)
    (folder / "cache" / "capsella" / "libraries").symlink_to(libraries)
    done = ran(folder / "cache", *TORCHRUN, process_cases.__file__, str(folder))
    assert done.code == 0, done.err
    return folder


@pytest.mark.parametrize("case", CASES)
def test_two_processes_train_as_one_does(case: str, two: Path, tmp_path: Path) -> None:
    process_cases.run_case(case, tmp_path)
    assert_close(two / case, tmp_path / case)
    records = [json.loads((folder / case / "record.json").read_text()) for folder in (two, tmp_path)]
    assert [record["config"]["environment"]["processes"] for record in records] == [2, 1]
    if case == "even":
        # one test image: a process had none.
        assert records[0]["test"]["confusion"] == records[1]["test"]["confusion"]
        assert records[0]["test"]["images"] == 1
    if case.startswith("quadratic"):
        start = CASES[case]["make"]().state_dict()["layers.0.couplings"]
        found, expected = (newest(folder / case).weights["layers.0.couplings"] for folder in (two, tmp_path))
        # they have moved, and further than the two differ.
        assert (expected - start).abs().max() > 100 * (found - expected).abs().max()


def test_the_comparison_would_see_one_image_more(two: Path, tmp_path: Path) -> None:
    process_cases.run_case("uneven", tmp_path)
    with pytest.raises(AssertionError):
        assert_close(two / "even", tmp_path / "uneven")


def test_one_process_writes(two: Path) -> None:
    written = [(two / f"written by {rank}").read_text().splitlines() for rank in (0, 1)]
    assert any("metrics.jsonl" in line for line in written[0])
    assert any("step-" in line for line in written[0])
    assert written[1] == []


def test_a_signal_to_one_process_stops_both_and_the_run_goes_on_bit_for_bit(two: Path) -> None:
    first, second = ((two / f"said by {rank}").read_text().splitlines() for rank in (0, 1))
    # they ask each other every ten steps.
    assert first[0] == f"Interrupted: stopped after step 10: go on from {two / 'stopped'} with --resume"
    assert second[0] == "SystemExit: 0"
    assert first[1] == second[1] == "nothing"
    # dropout is drawn by each process: both have got their own random state back.
    assert_same_run(two / "stopped", two / "whole")
    random = newest(two / "whole").tensors
    assert not torch.equal(random["random.cpu.0"], random["random.cpu.1"])


def test_a_mistake_that_the_first_process_finds_ends_both_and_is_said_once(two: Path) -> None:
    first, second = ((two / f"said by {rank}").read_text().splitlines() for rank in (0, 1))
    assert first[2] == f"ValueError: folder={str(two / 'stopped')!r} holds another run: train.lr: 0.001 -> 0.5"
    assert second[2] == "SystemExit: 0"


def test_a_loss_that_is_no_number_in_one_process_ends_both(two: Path) -> None:
    first, second = ((two / f"said by {rank}").read_text().splitlines() for rank in (0, 1))
    assert first[3].startswith("NonFiniteLoss: the loss of step ")
    assert " is nan; the first non-finite values are the images themselves; the last good checkpoint is " in first[3]
    assert second[3] == "SystemExit: 0"
    assert json.loads((two / "spoilt" / "record.json").read_text())["status"] == "non-finite"


def lines_in(path: Path) -> int:
    return len(path.read_bytes().splitlines()) if path.exists() else 0


def stopped_by_hand(run: Path, cache: Path, command: list[str], number: int) -> Ended:
    """Start a training, signal the process that was started once it has begun, and wait."""
    with started(cache, *command) as process:
        until(lambda: lines_in(run / "metrics.jsonl") >= 2 or process.poll() is not None, 60)
        os.kill(process.pid, number)
        return ended(process)


def test_a_stopped_program_with_two_devices_leaves_a_checkpoint_and_no_process(tmp_path: Path) -> None:
    run = tmp_path / "run"
    new = [*CAPSELLA, *SIGN, "--devices", "2", "--epochs", "99", "-s", "log_every=10", "--out", str(run)]
    done = stopped_by_hand(run, tmp_path, new, signal.SIGTERM)
    assert done.code == 128 + signal.SIGTERM, done.err
    step = newest(run).facts["position"]["step"]
    assert step >= 20
    assert done.err.count("capsella:") == 1
    assert done.err.splitlines()[-1] == f"capsella: stopped after step {step}: go on from {run} with --resume"
    assert "Traceback" not in done.err
    # a user's mistake, seen when both processes run: one line, once, and no hang.
    done = ran(tmp_path, *CAPSELLA, "train", "--resume", str(run), "--lr", "0.5")
    assert done.code == 2, done.err
    assert done.err == f"capsella: folder={str(run)!r} holds another run: train.lr: 0.005 -> 0.5\n"
    assert done.out == ""


@pytest.mark.slow
@pytest.mark.parametrize("batch_size", ["1000", "2143"], ids=["2 images are left", "1 image is left"])
@pytest.mark.parametrize("launcher", ["--devices 2", "torchrun"])
def test_the_program_with_two_processes_trains_as_with_one(launcher: str, batch_size: str, tmp_path: Path) -> None:
    training = [*SIGN, "--epochs", "3", "--batch-size", batch_size, "-s", "log_every=1", "--out"]
    several = [*TORCHRUN, "-m", "capsella"] if launcher == "torchrun" else CAPSELLA
    devices = ["--devices", "2"] if launcher == "--devices 2" else []
    done = ran(tmp_path, *several, *training, str(tmp_path / "two"), *devices)
    assert done.code == 0, done.err
    assert done.out.startswith("finished after 3 epochs")
    assert done.out.count("finished") == 1
    assert ran(tmp_path, *CAPSELLA, *training, str(tmp_path / "one")).code == 0
    assert_close(tmp_path / "two", tmp_path / "one")


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("launcher", ["--devices 2", "torchrun"])
def test_a_stopped_program_with_two_processes_goes_on_bit_for_bit(
    launcher: str, number: signal.Signals, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    several = [*TORCHRUN, "-m", "capsella"] if launcher == "torchrun" else CAPSELLA
    devices = ["--devices", "2"] if launcher == "--devices 2" else []
    training = [*several, *SIGN, "--epochs", "4", "-s", "log_every=5", *devices, "--out"]
    done = stopped_by_hand(run, tmp_path, [*training, str(run)], number)
    assert done.code != 0
    assert done.err.count("capsella: stopped after step ") == 1, done.err
    assert 10 <= newest(run).facts["position"]["step"] < 4 * 118
    assert ran(tmp_path, *several, "train", "--resume", str(run)).code == 0
    assert ran(tmp_path, *training, str(tmp_path / "whole")).code == 0
    assert_same_tensors(newest(run).weights, newest(tmp_path / "whole").weights)
    assert_close(run, tmp_path / "whole")
    # the other way round: one process goes on with what two began, up to the order of sums.
    assert ran(tmp_path, *CAPSELLA, "train", "--resume", str(run), "--epochs", "5", "--devices", "1").code == 0
    assert metrics(run)[-1]["epoch"] == 5


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--lr", "-1"], "lr=-1.0 is too small; expected a number above 0"),
        (["-s", "model.routing=quadratic"], "routing='quadratic' has 20 upper capsules in CapsuleLinear; "),
        (["-s", "nodes=2"], "nodes=2 needs torchrun on every machine"),
    ],
    ids=["before the start", "after the start", "about the start"],
)
def test_a_mistake_with_two_devices_is_one_line_once(arguments: list[str], said: str, tmp_path: Path) -> None:
    done = ran(tmp_path, *CAPSELLA, *SIGN, "--devices", "2", *arguments, "--out", str(tmp_path / "run"))
    assert done.code == 2, done.err
    assert done.err.startswith(f"capsella: {said}")
    assert len(done.err.splitlines()) == 1
