"""The worker: one thread, questions that wait answered together, each mistake back where it came from."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError
from typing import Any

import pytest

from capsella.web import worker as module
from capsella.web.worker import BusyError, Worker


class Held:
    """A task that waits until it is let go, and notes what it was asked together."""

    def __init__(self) -> None:
        self.begun, self.go = threading.Event(), threading.Event()
        self.batches: list[list[Any]] = []

    def __call__(self, questions: Sequence[Any]) -> list[Any]:
        self.batches.append(list(questions))
        self.begun.set()
        assert self.go.wait(10)
        return [question * 10 for question in questions]


@pytest.fixture
def held() -> Iterator[tuple[Worker, Held]]:
    worker, task = Worker(), Held()
    yield worker, task
    task.go.set()
    worker.close()


def test_questions_that_wait_for_the_same_are_answered_together(held: tuple[Worker, Held]) -> None:
    worker, task = held
    first = worker.submit(task, 1)
    assert task.begun.wait(10)
    others = [worker.submit(task, number) for number in (2, 3, 4)]
    task.go.set()
    assert [future.result(10) for future in (first, *others)] == [10, 20, 30, 40]
    assert task.batches == [[1], [2, 3, 4]]
    assert worker.batches == 2


def test_questions_for_something_else_wait_for_their_turn(held: tuple[Worker, Held]) -> None:
    worker, task = held
    order: list[Any] = []

    def other(questions: Sequence[Any]) -> list[Any]:
        order.append(("other", list(questions)))
        return list(questions)

    def same(questions: Sequence[Any]) -> list[Any]:
        order.append(("same", list(questions)))
        return list(questions)

    worker.submit(task, 0)
    assert task.begun.wait(10)
    futures = [worker.submit(*each) for each in ((same, 1), (other, 2), (same, 3), (other, 4))]
    task.go.set()
    assert [future.result(10) for future in futures] == [1, 2, 3, 4]
    assert order == [("same", [1, 3]), ("other", [2, 4])]


def test_no_more_are_answered_together_than_fit(held: tuple[Worker, Held], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_TOGETHER", 2)
    worker, task = held
    worker.submit(task, 0)
    assert task.begun.wait(10)
    futures = [worker.submit(task, number) for number in range(1, 6)]
    task.go.set()
    assert [future.result(10) for future in futures] == [10, 20, 30, 40, 50]
    assert task.batches == [[0], [1, 2], [3, 4], [5]]


def test_a_mistake_goes_back_where_it_came_from(held: tuple[Worker, Held]) -> None:
    def task(questions: Sequence[int]) -> list[Any]:
        return [ValueError(f"{question} is odd") if question % 2 else question for question in questions]

    def broken(questions: Sequence[int]) -> list[int]:
        raise ArithmeticError("all of them")

    worker, blocker = held
    worker.submit(blocker, 0)
    assert blocker.begun.wait(10)
    two, three = worker.submit(task, 2), worker.submit(task, 3)
    lost = [worker.submit(broken, number) for number in (1, 2)]
    blocker.go.set()
    assert two.result(10) == 2
    with pytest.raises(ValueError, match="3 is odd"):
        three.result(10)
    for future in lost:
        with pytest.raises(ArithmeticError, match="all of them"):
            future.result(10)
    # and it goes on.
    assert worker.submit(task, 4).result(10) == 4


def test_what_nobody_wants_any_more_is_not_answered(held: tuple[Worker, Held]) -> None:
    worker, task = held
    worker.submit(task, 1)
    assert task.begun.wait(10)
    gone, wanted = worker.submit(task, 2), worker.submit(task, 3)
    assert gone.cancel()
    task.go.set()
    assert wanted.result(10) == 30
    assert task.batches == [[1], [3]]


def test_so_many_wait_and_no_more(held: tuple[Worker, Held], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_WAITING", 2)
    worker, task = held
    worker.submit(task, 1)
    assert task.begun.wait(10)
    for number in (2, 3):
        worker.submit(task, number)
    with pytest.raises(BusyError, match="too many questions wait"):
        worker.submit(task, 4)


def test_what_still_waits_at_the_end_is_cancelled() -> None:
    worker, task = Worker(), Held()
    first = worker.submit(task, 1)
    assert task.begun.wait(10)
    late = worker.submit(task, 2)
    closing = threading.Thread(target=worker.close)
    closing.start()
    task.go.set()
    closing.join(10)
    assert first.result(10) == 10
    with pytest.raises(CancelledError):
        late.result(10)
    with pytest.raises(BusyError):
        worker.submit(task, 3)


def spare(steps: int, done: threading.Event) -> tuple[Callable[[], bool], list[int]]:
    taken: list[int] = []

    def step() -> bool:
        taken.append(len(taken))
        if len(taken) == steps:
            done.set()
        return len(taken) < steps

    return step, taken


def test_when_nobody_asks_it_tidies_up_until_all_is_done() -> None:
    done = threading.Event()
    step, taken = spare(5, done)
    worker = Worker(step)
    assert done.wait(10)
    assert worker.submit(list, 1).result(10) == 1
    assert taken == [0, 1, 2, 3, 4]
    worker.close()


def test_while_somebody_asks_nothing_else_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PAUSE", 1e6)
    first, done = threading.Event(), threading.Event()
    taken: list[int] = []

    def step() -> bool:
        # once before anything is asked.
        taken.append(1)
        first.set()
        return True

    worker = Worker(lambda: step() if not first.is_set() else (done.wait(0.01), step())[1])
    assert first.wait(10)
    assert worker.submit(list, 1).result(10) == 1
    so_far = len(taken)
    for number in range(5):
        assert worker.submit(list, number).result(10) == number
    assert len(taken) == so_far
    worker.close()


def test_tidying_up_that_fails_ends_and_is_written_down(caplog: pytest.LogCaptureFixture) -> None:
    begun = threading.Event()

    def step() -> bool:
        begun.set()
        raise OSError("the disk is gone")

    worker = Worker(step)
    assert begun.wait(10)
    assert worker.submit(list, 1).result(10) == 1
    worker.close()
    assert [str(record.exc_info[1]) for record in caplog.records if record.exc_info] == ["the disk is gone"]
