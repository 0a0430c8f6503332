"""How much memory a step takes, and what happens for real where it is not there."""

from __future__ import annotations

import contextlib
import json
import os
import re
import resource
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_runs import CLASSES, SIDE, capsnet, differing, losses, made_data, one_line, plain_net, short_run
from torch import Tensor, nn
from torch.nn import functional as tnf

from capsella.data import from_tensors
from capsella.train import OutOfMemory
from capsella.train import memory as memory_of
from capsella.train.memory import MemoryEstimate, available, estimate, in_words, is_out_of_memory, largest_that_fits
from capsella.train.progress import Progress

PIXELS = SIDE * SIDE
WEIGHTS = PIXELS * 6 + 6 + 6 * CLASSES + CLASSES
MARGIN = 1.25


def estimated(model: nn.Module, optimiser: str = "adam") -> MemoryEstimate:
    data = made_data(20)

    def loss_of(size: int) -> Tensor:
        images, labels = data.batch(torch.arange(size))
        return tnf.cross_entropy(model(images), labels)

    return estimate(model, loss_of, optimiser, 8)


def test_what_grows_with_the_batch_is_counted_by_hand() -> None:
    """Kept for the backward pass: the pixels, six values after the ReLU, three log-probabilities, a label of eight bytes."""
    assert estimated(plain_net()).per_image == MARGIN * (4 * (PIXELS + 6 + CLASSES) + 8)


def test_a_frozen_layer_keeps_nothing_of_its_input() -> None:
    model = plain_net()
    model[1].requires_grad_(False)
    assert estimated(model).per_image == MARGIN * (4 * (6 + CLASSES) + 8)


@pytest.mark.parametrize(("optimiser", "kept"), [("adam", 2), ("sgd", 1)])
def test_weights_gradients_and_the_optimisers_share_are_counted_by_hand(optimiser: str, kept: int) -> None:
    assert estimated(plain_net(), optimiser).fixed == 4 * WEIGHTS * (1 + 1 + kept)


def test_frozen_weights_have_neither_gradient_nor_state() -> None:
    model = plain_net()
    model[1].requires_grad_(False)
    frozen = PIXELS * 6 + 6
    assert estimated(model).fixed == 4 * (WEIGHTS + 3 * (WEIGHTS - frozen))


def test_the_whole_grows_linearly() -> None:
    found = MemoryEstimate(fixed=1000, per_image=50)
    assert [found.total(size) for size in (0, 1, 10)] == [1000, 1050, 1500]


def test_estimating_leaves_buffers_gradients_and_random_numbers_alone() -> None:
    torch.manual_seed(1)
    model = nn.Sequential(nn.BatchNorm2d(1), nn.Dropout(0.5), *plain_net())
    before = {name: value.clone() for name, value in model.state_dict().items()}
    torch.manual_seed(3)
    expected = torch.rand(3)
    torch.manual_seed(3)
    estimated(model)
    assert torch.equal(torch.rand(3), expected)
    assert not differing(model.state_dict(), before)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_run_estimates_before_its_first_step() -> None:
    events: list[dict[str, Any]] = []
    short_run(plain_net(), listeners=[events.append])
    assert [event["event"] for event in events[:2]] == ["start", "log"]
    expected = 4 * WEIGHTS * 4 + int(8 * MARGIN * (4 * (PIXELS + 6 + CLASSES) + 8))
    assert events[0]["memory"] == expected
    assert events[0]["available"] > 2**20


def test_a_fast_run_says_first_that_it_compiles(capsys: pytest.CaptureFixture[str]) -> None:
    class EnoughError(Exception):
        pass

    def listen(event: dict[str, Any]) -> None:
        Progress()(event)
        raise EnoughError(event["event"])

    with pytest.raises(EnoughError, match="prepare"):
        short_run(plain_net(), fast=True, listeners=[listen])
    assert capsys.readouterr().err == "what this machine has not compiled before is compiled first, which may take minutes\n"


@pytest.mark.parametrize(("free", "ending"), [(2**30, "2 MiB of memory a step, 1.0 GiB free"), (2**20, ": this may not fit")])
def test_a_step_that_will_not_fit_is_said_at_the_start(free: int, ending: str, capsys: pytest.CaptureFixture[str]) -> None:
    config = {
        "model": {"name": "capsnet"},
        "parameters": 1234,
        "train": {"epochs": 2},
        "data": {"train": {"name": "mnist", "split": "fit", "images": 55_000}},
        "environment": {"device": "a CPU"},
    }
    Progress()({"event": "start", "config": config, "steps": 9, "from_step": 0, "memory": 2**21, "available": free})
    first, second = capsys.readouterr().err.splitlines()
    assert first == "capsnet (1,234 parameters) on mnist/fit (55,000 images)"
    assert second.startswith("a CPU; about 2 MiB of memory a step")
    assert second.endswith(ending)


@pytest.mark.parametrize(
    ("count", "words"),
    [
        (0, "0 bytes"),
        (1023, "1023 bytes"),
        (1024, "1 KiB"),
        (5 * 2**20, "5 MiB"),
        (3 * 2**29, "1.5 GiB"),
        (2**42, "4096.0 GiB"),
    ],
)
def test_bytes_are_said_as_a_person_reads_them(count: int, words: str) -> None:
    assert in_words(count) == words


def test_the_free_memory_of_the_machine_is_known_on_linux() -> None:
    free = available(torch.device("cpu"))
    assert free is None or 2**20 < free < 2**50


def test_no_memory_file_means_that_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise FileNotFoundError

    monkeypatch.setattr(memory_of, "open", refuse, raising=False)
    assert available(torch.device("cpu")) is None


def test_only_a_want_of_memory_counts_as_one() -> None:
    assert is_out_of_memory(MemoryError())
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory"))
    assert is_out_of_memory(
        RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory: you tried")
    )
    assert not is_out_of_memory(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
    assert not is_out_of_memory(ValueError("can't allocate memory"))


@pytest.mark.parametrize(
    ("room", "below", "expected"), [(100, 128, 64), (63, 128, 32), (1, 128, 1), (0, 128, 0), (500, 2, 1), (9, 1, 0)]
)
def test_a_size_that_was_seen_to_fit_is_found_by_halving(room: int, below: int, expected: int) -> None:
    tried: list[int] = []

    def attempt(size: int) -> None:
        tried.append(size)
        if size > room:
            raise torch.OutOfMemoryError

    assert largest_that_fits(attempt, below) == expected
    assert all(size < below for size in tried)


@pytest.mark.parametrize(("room", "below", "expected"), [(100, 128, 32), (63, 128, 16), (3, 128, 1), (1, 128, 1), (0, 128, 0)])
def test_where_memory_is_to_spare_twice_as_many_images_were_seen_to_fit(room: int, below: int, expected: int) -> None:
    def attempt(size: int) -> None:
        if size > room:
            raise torch.OutOfMemoryError

    assert largest_that_fits(attempt, below, spare=2) == expected


def test_another_error_while_trying_is_not_taken_for_a_want_of_memory() -> None:
    def attempt(size: int) -> None:
        raise RuntimeError("shapes cannot be multiplied")

    with pytest.raises(RuntimeError, match="shapes"):
        largest_that_fits(attempt, 8)


_TAKEN: list[Tensor] = []


def in_a_child(act: Callable[[], Any], folder: Path) -> Any:
    """Run ``act`` in a process of its own, whose limits end with it; return what it returned, by way of JSON."""
    answer = folder / "answer.json"
    child = os.fork()
    if child == 0:  # no test of pytest's may go on here
        try:
            torch.set_num_threads(1)
            answer.write_text(json.dumps(act()))
        except BaseException:
            answer.write_text(json.dumps({"error": traceback.format_exc()}))
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    return json.loads(answer.read_text())


def leave_room(count: int) -> None:
    """Let this process have so many more bytes than it has."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    size = pages * resource.getpagesize()
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    # what earlier tests have left free within the process is taken first: it would come on top of the room.
    resource.setrlimit(resource.RLIMIT_AS, (size, hard))
    for block in (1 << 24, 1 << 20, 1 << 16):
        with contextlib.suppress(RuntimeError):
            while True:
                _TAKEN.append(torch.empty(block, dtype=torch.uint8))
    resource.setrlimit(resource.RLIMIT_AS, (size + count, hard))


def wide_net() -> nn.Module:
    """Build a net that keeps 32 KiB an image between forward and backward."""
    torch.manual_seed(1)
    return nn.Sequential(nn.Flatten(), nn.Linear(PIXELS, 8192), nn.ReLU(), nn.Linear(8192, CLASSES))


needs_limits = pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="limits of a process are Linux's")


def train_in_little_room(size: int, steps: int) -> dict[str, Any]:
    """Train with a batch size where 160 MiB are left; return the losses, or what is said if it does not fit."""
    many = from_tensors(torch.zeros(8192, 1, SIDE, SIDE, dtype=torch.uint8), torch.arange(8192) % CLASSES)
    leave_room(160 << 20)
    try:
        return {"losses": losses(short_run(wide_net(), many, batch_size=size, steps=steps))}
    except OutOfMemory as error:
        return {"message": one_line(error)}


def train_again_as_told(folder: Path) -> dict[str, Any]:
    """Train with a batch that does not fit, then with the one that is named; return what became of both."""
    torch.set_num_threads(1)
    short_run(wide_net(), made_data(40), steps=1)  # whatever is loaded at the first step is loaded
    first = in_a_child(lambda: train_in_little_room(8192, 2), folder)
    sizes = re.findall(r"batch_size=(\d+) fits$", first.get("message", ""))
    return {"first": first, "second": in_a_child(lambda: train_in_little_room(int(sizes[0]), 3), folder) if sizes else {}}


@needs_limits
def test_out_of_memory_for_real_names_a_batch_size_that_then_trains(tmp_path: Path) -> None:
    # as a user does it: in two processes, of an interpreter where no other tests have left anything in the allocator.
    call = f"import pathlib, test_memory; print(json.dumps(test_memory.train_again_as_told(pathlib.Path({str(tmp_path)!r}))))"
    code = f"import json, sys; sys.path[:] = {sys.path!r}; {call}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    first, second = json.loads(done.stdout.splitlines()[-1]).values()
    message = first.get("message", "8192 images of 32 KiB fitted into 160 MiB")
    assert message.startswith("batch_size=8192 does not fit into the memory of cpu"), first
    size = int(re.findall(r"batch_size=(\d+) fits$", message)[0])
    assert size in (256, 512, 1024)  # of 32 KiB, three times over at the most
    assert "losses" in second, second
    assert len(second["losses"]) == 3


@needs_limits
def test_weights_are_as_they_were_before_the_step_that_did_not_fit(tmp_path: Path) -> None:
    many = from_tensors(torch.zeros(8192, 1, SIDE, SIDE, dtype=torch.uint8), torch.arange(8192) % CLASSES)

    def act() -> dict[str, Any]:
        short_run(wide_net(), made_data(40), steps=1)
        leave_room(160 << 20)
        model = wide_net()
        before = {name: value.clone() for name, value in model.state_dict().items()}
        with pytest.raises(OutOfMemory):
            short_run(model, many, batch_size=8192, steps=2)
        return {"moved": differing(model.state_dict(), before), "grads": [p.grad is None for p in model.parameters()]}

    assert in_a_child(act, tmp_path) == {"moved": [], "grads": [True] * 4}


@needs_limits
def test_out_of_memory_while_a_batch_is_drawn_is_one_line_too(tmp_path: Path) -> None:
    many = from_tensors(torch.zeros(1 << 16, 1, SIDE, SIDE, dtype=torch.uint8), torch.arange(1 << 16) % CLASSES)

    def act() -> dict[str, Any]:
        short_run(plain_net(), made_data(40), steps=1)
        leave_room(30 << 20)
        try:
            short_run(plain_net(), many, batch_size=1 << 16, steps=2)
        except OutOfMemory as error:
            return {"message": one_line(error)}
        return {"error": "it fitted"}

    assert "batch_size=65536 does not fit" in in_a_child(act, tmp_path).get("message", "")


def test_a_net_of_capsules_keeps_more_an_image_the_more_it_iterates() -> None:
    def of(iterations: int) -> int:
        model, data = capsnet(num_iters=iterations), made_data(20)

        def loss_of(size: int) -> Tensor:
            return model(data.batch(torch.arange(size)).images).scores.sum()

        return estimate(model, loss_of, "adam", 8).per_image

    sizes = [of(iterations) for iterations in (1, 2, 3)]
    assert sizes == sorted(set(sizes))
