"""Runs that are recorded once and for all: nothing is run twice, nothing is lost, whenever the runner is killed."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from capsella.errors import RunError
from capsella.papers import cost, executors, measuring, runner
from capsella.papers.cost import estimate
from capsella.papers.executors import Done, Place, default_executor, executor_by_name, here
from capsella.papers.measuring import MEASURED
from capsella.papers.paper import jobs_of
from capsella.papers.recipe import Job
from capsella.papers.results import Result
from capsella.papers.runner import Deadline, TimeIsUp, reproduce
from capsella.papers.shares import SHARE, Shares
from capsella.papers.store import Store
from capsella.train import children, together
from capsella.train.folder import RunFolder
from capsella.train.plan import Plan
from capsella.train.together import Standing

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "train"))
from paper_harness import CPU, job, recipe, result
from run_harness import Child, until
from together_harness import forking, new_interpreters

ROWS = [
    recipe("a", seeds=(0, 1)),
    recipe("b", seeds=(0, 1), measures=("peer2022.inside",)),
    recipe("c", seeds=(0,)),
]
TIMELESS = ("seconds", "device_seconds")


def jobs(rows: Sequence[Any] = ROWS) -> list[Job]:
    return jobs_of(rows, settings=CPU)


def run(folder: Path, todo: Sequence[Job] | None = None, executor: Any = here, **options: Any) -> list[Done]:
    place = Place(folder / "work", **options.pop("place", {}))
    return list(reproduce(jobs() if todo is None else todo, Store(folder / "results"), executor, place, **options))


def content(folder: Path) -> dict[str, Any]:
    """Return what was recorded, without what a clock decided."""
    found = {}
    for each in Store(folder / "results").all():
        fields = {key: value for key, value in vars(each).items() if key not in TIMELESS}
        history = {key: value for key, value in each.history.items() if key != "seconds"}
        found[each.name] = {**fields, "history": history}
    return found


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What an uninterrupted call records."""
    folder = tmp_path_factory.mktemp("whole")
    run(folder)
    return content(folder)


def test_every_run_is_recorded_and_its_folder_taken_away(tmp_path: Path, whole: dict[str, Any]) -> None:
    ended = run(tmp_path)
    assert [each.job.name for each in ended] == [each.name for each in jobs()]
    assert content(tmp_path) == whole
    assert sorted(whole) == sorted(each.name for each in jobs())
    assert [path.name for path in (tmp_path / "work").iterdir()] == [".lock"]
    first = ended[0].result
    assert first is not None
    assert first.steps == 6
    assert first.curve["step"] == [1, 2, 3, 4, 5, 6]
    assert first.device_seconds > 0
    assert first.history["validation"] == [None]
    assert "start" in whole["peer2022/table1/b/seed-0"]["measured"]["peer2022.inside"]


def test_what_is_recorded_is_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(tmp_path, jobs()[:2])
    before = {path: path.read_bytes() for path in (tmp_path / "results").rglob("*.json")}
    ended = run(tmp_path)
    assert [each.job.name for each in ended] == [each.name for each in jobs()[2:]]
    monkeypatch.setattr(executors, "finished_run", lambda *_, **__: pytest.fail("ran again"))
    assert run(tmp_path) == []
    assert all(path.read_bytes() == text for path, text in before.items())


def test_weights_stay_where_they_are_asked_for(tmp_path: Path) -> None:
    (done,) = run(tmp_path, jobs()[:1], keep=True)
    folder = tmp_path / "work" / done.job.name
    assert list(folder.glob("checkpoints/step-*"))
    # and go once they are not.
    run(tmp_path, jobs()[:1])
    assert not folder.exists()


def test_a_run_that_fails_is_said_and_the_others_go_on(tmp_path: Path) -> None:
    broken = recipe("broken", seeds=(0,), measures=("peer2022.nothing",))
    wrong = jobs([broken])[0]
    ended = {each.job.recipe.key: each for each in run(tmp_path, [jobs()[0], wrong, jobs()[2]])}
    assert ended["peer2022/table1/a"].result is not None
    assert ended["peer2022/table1/c"].result is not None
    assert ended["peer2022/table1/broken"].result is None
    assert "nothing" in ended["peer2022/table1/broken"].problem
    assert "Traceback" in ended["peer2022/table1/broken"].details
    # what was trained is not lost with what could not be measured.
    assert (tmp_path / "work/peer2022/table1/broken/seed-0/record.json").is_file()


def test_what_is_to_be_alone_comes_last_and_one_at_a_time(tmp_path: Path) -> None:
    todo = jobs([recipe("timed", seeds=(0, 1), alone=True), *ROWS])
    calls = []

    def watched(some: Sequence[Job], place: Place) -> Iterator[Done]:
        calls.append(([each.recipe.key.split("/")[2] for each in some], place.at_once))
        return here(some, place)

    ended = run(tmp_path, todo, executor=watched, place={"at_once": 7})
    assert calls == [(["a", "b", "c", "a", "b"], 7), (["timed", "timed"], 1)]
    assert all(each.result is not None for each in ended)
    assert len(ended) == len(todo)


def test_the_archive_is_whole_after_every_run(tmp_path: Path) -> None:
    archive = tmp_path / "all.tar.gz"
    counts = []
    for _ in reproduce(jobs(), Store(tmp_path / "results"), here, Place(tmp_path / "work"), export=archive):
        other = Store(tmp_path / f"other {len(counts)}")
        counts.append(len(other.take(archive, lambda _: True).new))
    assert counts == [1, 2, 3, 4, 5]


def test_two_at_the_same_runs_are_one_too_many(tmp_path: Path) -> None:
    runs = reproduce(jobs(), Store(tmp_path / "results"), here, Place(tmp_path / "work"))
    next(iter(runs))
    with pytest.raises(ValueError, match="is being written by another process"):
        run(tmp_path)
    runs.close()  # type: ignore[attr-defined]
    assert len(run(tmp_path)) == 4


def go_on(folder: Path) -> None:
    run(folder)


def killed(folder: Path, kills: int, seed: int) -> int:
    """Kill a call so often at random moments; return how many were struck before their end."""
    moments, struck = random.Random(seed), 0
    for _ in range(kills):
        before = names(folder)
        child = Child(lambda: go_on(folder))
        if moments.random() < 0.7:
            until(lambda child=child, before=before: names(folder) != before or child.ended)
        time.sleep(moments.uniform(0, 0.05))
        child.kill()
        code = child.wait()
        assert code in (-signal.SIGKILL, 0), child.said
        struck += code != 0
        # whatever the moment: every file that is there can be read.
        list(Store(folder / "results").all())
    return struck


def names(folder: Path) -> set[str]:
    """Return all files; folders may go while they are looked through, which ``os.walk`` takes as it comes."""
    return {f"{place}/{name}" for part in ("results", "work") for place, _, found in os.walk(folder / part) for name in found}


def test_a_killed_runner_goes_on_and_records_the_same(tmp_path: Path, whole: dict[str, Any]) -> None:
    assert killed(tmp_path, kills=5, seed=1) > 0
    last = Child(lambda: go_on(tmp_path))
    assert last.wait() == 0, last.said
    assert content(tmp_path) == whole
    assert [path.name for path in (tmp_path / "work").iterdir()] == [".lock"]


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", range(4))
def test_a_runner_that_is_killed_a_hundred_times_records_the_same(seed: int, tmp_path: Path, whole: dict[str, Any]) -> None:
    struck = 0
    for turn in range(5):
        folder = tmp_path / str(turn)
        struck += killed(folder, kills=5, seed=10 * seed + turn)
        last = Child(lambda folder=folder: go_on(folder))
        assert last.wait() == 0, last.said
        assert content(folder) == whole
    assert struck > 10


class Killed(BaseException):
    """What a test raises where a process would end."""


@pytest.mark.parametrize("where", ["finish", "write", "_clear"])
def test_killed_between_two_files_nothing_is_lost_or_doubled(
    where: str, tmp_path: Path, whole: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def end(*_: object, **__: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        if where == "finish":
            patch.setattr(executors, "finish", end)
        elif where == "write":
            patch.setattr(Store, "write", end)
        else:
            patch.setattr(runner, "_clear", end)
        with pytest.raises(Killed):
            run(tmp_path)
    # the run had come to its end: it is read, not trained again.
    trained = []
    real = executors.finished_run
    monkeypatch.setattr(executors, "finished_run", lambda folder, *a, **k: trained.append(folder) or real(folder, *a, **k))
    run(tmp_path)
    assert content(tmp_path) == whole
    if where == "_clear":
        assert tmp_path / "work/peer2022/table1/a/seed-0" not in trained
    assert [path.name for path in (tmp_path / "work").iterdir()] == [".lock"]


def test_a_run_that_ended_unmeasured_is_measured_and_not_trained_again(tmp_path: Path, whole: dict[str, Any]) -> None:
    todo = [each for each in jobs() if each.name == "peer2022/table1/b/seed-0"]
    run(tmp_path, todo, keep=True)
    folder = tmp_path / "work/peer2022/table1/b/seed-0"
    (folder / MEASURED).unlink()
    Store(tmp_path / "results").path(todo[0].name).unlink()
    stamp = (folder / "record.json").stat().st_mtime_ns
    run(tmp_path, todo, keep=True)
    assert (folder / "record.json").stat().st_mtime_ns == stamp
    assert content(tmp_path)[todo[0].name] == whole[todo[0].name]


def test_a_measure_that_fails_keeps_those_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names, asked = ("peer2022.inside", "peer2022.clean"), []
    run(tmp_path, jobs([recipe("broken", seeds=(0,), measures=names)]))
    folder = tmp_path / "work/peer2022/table1/broken/seed-0"
    kept = json.loads((folder / MEASURED).read_text())
    assert list(kept) == ["peer2022.inside"]

    def note(name: str) -> Any:
        asked.append(name)
        return lambda *_: {"answer": 42}

    monkeypatch.setattr(measuring, "measure_by_name", note)
    # and they are not measured again.
    assert measuring.measure(folder, names, None) == {**kept, "peer2022.clean": {"answer": 42}}
    assert asked == ["peer2022.clean"]
    assert json.loads((folder / MEASURED).read_text()) == {**kept, "peer2022.clean": {"answer": 42}}


def test_processes_side_by_side_record_the_same(tmp_path: Path, whole: dict[str, Any]) -> None:
    with pytest.MonkeyPatch.context() as patch, forking(patch, together):
        shown: list[int] = []
        place = {"at_once": 2, "watch": lambda standings: shown.append(len(standings))}
        ended = run(tmp_path, executor=executors.in_processes, place=place)
    assert all(each.result is not None for each in ended), [each.details for each in ended]
    assert content(tmp_path) == whole
    assert max(shown) <= 2


def test_workers_record_the_same(tmp_path: Path, whole: dict[str, Any]) -> None:
    shown: list[int] = []
    with pytest.MonkeyPatch.context() as patch, forking(patch, together):
        place = {"at_once": 2, "watch": lambda standings: shown.append(len(standings))}
        ended = run(tmp_path, executor=executors.in_workers, place=place)
    assert all(each.result is not None for each in ended), [each.details for each in ended]
    assert content(tmp_path) == whole
    assert max(shown) <= 2
    assert all(each.result is not None and each.result.device_seconds > 0 for each in ended)


def test_a_job_that_fails_in_a_worker_fails_alone(tmp_path: Path) -> None:
    todo = [*jobs([recipe("broken", seeds=(0,), measures=("peer2022.nothing",))]), jobs()[0]]
    with pytest.MonkeyPatch.context() as patch, forking(patch, together):
        ended = {each.job.recipe.key: each for each in run(tmp_path, todo, executors.in_workers, place={"at_once": 1})}
    assert ended["peer2022/table1/a"].result is not None
    assert "nothing" in ended["peer2022/table1/broken"].problem
    assert "\n" not in ended["peer2022/table1/broken"].problem


def test_a_killed_worker_ends_the_call_and_nothing_is_lost(tmp_path: Path, whole: dict[str, Any]) -> None:
    real = executors.finished_run

    def die(folder: Path, *others: Any, **options: Any) -> Any:
        if folder.parent.name == "c":
            os.kill(os.getpid(), signal.SIGKILL)
        return real(folder, *others, **options)

    with pytest.MonkeyPatch.context() as patch, forking(patch, together):
        patch.setattr(executors, "finished_run", die)
        with pytest.raises(RunError, match="a worker was killed; the same again goes on with what is left"):
            run(tmp_path, executor=executors.in_workers, place={"at_once": 1})
    assert len(content(tmp_path)) == 2
    run(tmp_path)
    assert content(tmp_path) == whole


def test_workers_end_with_who_started_them(tmp_path: Path) -> None:
    """A call that is killed leaves no process behind that would wait for its queue for ever."""

    def begin() -> None:
        with pytest.MonkeyPatch.context() as patch, forking(patch, together):
            patch.setattr(executors, "_GRACE", 0.5)
            long = [recipe(plan=recipe().plan.changed({"steps": 10**6, "epochs": 10**5})).job(0, settings=CPU)]
            run(tmp_path, long, executors.in_workers, place={"at_once": 1, "watch": lambda _: note()})

    def note() -> None:
        (tmp_path / "workers").write_text(" ".join(str(child.pid) for child in multiprocessing.active_children()))

    child = Child(begin)
    until(lambda: child.ended or list(tmp_path.glob("work/*/*/*/*/metrics.jsonl")))
    until(lambda: (tmp_path / "workers").exists() and (tmp_path / "workers").read_text())
    child.kill()
    child.wait()
    (pid,) = map(int, (tmp_path / "workers").read_text().split())
    until(lambda: not Path(f"/proc/{pid}/stat").exists() or Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z")


def test_a_measure_that_fails_in_its_process_fails_its_run_alone(tmp_path: Path) -> None:
    todo = [jobs()[0], *jobs([recipe("broken", seeds=(0,), measures=("peer2022.nothing",))])]
    with pytest.MonkeyPatch.context() as patch, forking(patch, together):
        ended = {each.job.recipe.key: each for each in run(tmp_path, todo, executors.in_processes, place={"at_once": 2})}
    assert ended["peer2022/table1/a"].result is not None
    assert "nothing" in ended["peer2022/table1/broken"].problem


def test_runs_that_are_not_let_in_are_left_out(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch, forking(patch, together):
        place = {"at_once": 1, "admit": lambda job: job.recipe.key.endswith("c")}
        ended = run(tmp_path, executor=executors.in_processes, place=place)
    assert [each.job.name for each in ended] == ["peer2022/table1/c/seed-0"]
    assert [each.job.name for each in run(tmp_path, place={"admit": lambda job: job.seed == 1})] == [
        "peer2022/table1/a/seed-1",
        "peer2022/table1/b/seed-1",
    ]


def test_nothing_is_begun_that_would_not_be_over_in_time() -> None:
    deadline = Deadline(1, {job("a").name: 50.0, job("b").name: 60.0}, at_once=1)
    assert deadline.admit(job("a"))
    assert not deadline.admit(job("b"))
    assert [each.name for each in deadline.left_out] == [job("b").name]
    # eight at once take eight times as long each.
    assert not Deadline(1, {job("a").name: 50.0}, at_once=8).admit(job("a"))
    assert Deadline(1, {job("a").name: 50.0}, at_once=8).admit(job("a", alone=True))
    assert Deadline(None, {job("a").name: 1e9}).admit(job("a"))


def test_what_is_too_long_for_any_call_begins_where_nothing_else_does(tmp_path: Path) -> None:
    first, last, fits = jobs()[0], jobs()[-1], {each.name: 1.0 for each in jobs()}
    # the first fits into no minute, the last into none that has begun.
    seconds = {**fits, first.name: 1e6, last.name: 60 / 1.1 - 1e-6}
    assert run(tmp_path, deadline=Deadline(1, seconds))[0].job.name == jobs()[1].name
    assert first.name not in content(tmp_path)
    deadline = Deadline(1, seconds, goes_on=True)
    (ended,) = run(tmp_path, deadline=deadline)
    assert ended.job.name == first.name
    assert [each.name for each in deadline.left_out] == [last.name]


def test_what_is_too_long_does_not_begin_once_time_is_up() -> None:
    deadline = Deadline(-1, {job("a").name: 1e6}, goes_on=True)
    assert not deadline.admit(job("a"))
    assert deadline.let_in() == [job("a")]
    assert not deadline.admit(job("a"))
    assert [each.name for each in deadline.left_out] == [job("a").name]


def test_time_that_is_up_stops_the_runs_and_the_same_call_goes_on(tmp_path: Path, whole: dict[str, Any]) -> None:
    class Soon(Deadline):
        looks = 0

        def check(self) -> None:
            self.looks += 1
            if self.looks == 3:
                raise TimeIsUp

    ended = run(tmp_path, deadline=Soon(None))
    assert len(ended) == 2
    run(tmp_path)
    assert content(tmp_path) == whole
    with pytest.raises(TimeIsUp):
        Deadline(-1).check()
    Deadline(1).check()


def test_the_device_is_divided_among_those_that_share_it(tmp_path: Path) -> None:
    shares, a, b = Shares(), tmp_path / "a", tmp_path / "b"
    a.mkdir()
    for folders, now in (([a], 0.0), ([a], 10.0), ([a, b], 14.0), ([b], 15.0), ([], 20.0), ([b], 21.0)):
        shares(folders, now)
    # a: 10, then half of 4; b: half of 4, then 1, then 1.
    assert (shares.of(a), shares.of(b)) == (12.0, 4.0)
    shares.keep(a)
    # another call goes on from what was kept; what has no folder has nothing to keep it in.
    again = Shares()
    again.add(a, 3.0)
    assert (again.of(a), again.of(b)) == (15.0, 0.0)
    (a / SHARE).write_text("{")
    assert Shares().of(a) == 0.0


def test_a_run_that_is_gone_on_with_has_all_it_took(tmp_path: Path) -> None:
    folder = tmp_path / "work/peer2022/table1/a/seed-0"
    folder.mkdir(parents=True)
    before = Shares()
    before.add(folder, 1000.0)
    before.keep(folder)
    (done,) = run(tmp_path, jobs()[:1])
    assert done.result is not None
    assert 1000 < done.result.device_seconds < 1100


def test_a_run_of_other_settings_or_arithmetic_begins_anew(tmp_path: Path, whole: dict[str, Any]) -> None:
    first = jobs()[0]
    folder = tmp_path / "work" / first.name
    run(tmp_path, [replace(first, plan=first.plan.changed({"lr": 0.1}))], keep=True)
    Store(tmp_path / "results").path(first.name).unlink()
    run(tmp_path, [first], keep=True)
    assert content(tmp_path)[first.name] == whole[first.name]
    # the same of another version.
    Store(tmp_path / "results").path(first.name).unlink()
    config = json.loads((folder / "config.json").read_text())
    config["environment"]["numerics"] -= 1
    (folder / "config.json").write_text(json.dumps(config))
    stamp = (folder / "record.json").stat().st_mtime_ns
    run(tmp_path, [first], keep=True)
    assert (folder / "record.json").stat().st_mtime_ns != stamp
    assert content(tmp_path)[first.name] == whole[first.name]
    # and of what cannot be read.
    Store(tmp_path / "results").path(first.name).unlink()
    (folder / "config.json").write_text("{")
    run(tmp_path, [first])
    assert content(tmp_path)[first.name] == whole[first.name]


def test_a_run_that_another_process_is_leaving_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "work" / jobs()[0].name
    child = Child(lambda: hold(folder))
    until(lambda: (folder / "held").exists())
    assert run(tmp_path, jobs()[:1])[0].result is not None
    assert child.wait() == 0
    # not for ever.
    monkeypatch.setattr(runner, "_REST", 0.2)
    with RunFolder(tmp_path / "work" / jobs()[1].name).held(), pytest.raises(ValueError, match="written by another process"):
        run(tmp_path, jobs()[1:2])


def hold(folder: Path) -> None:
    with RunFolder(folder).held():
        (folder / "held").touch()
        time.sleep(1)


@pytest.mark.parametrize("name", ["processes", "workers"])
def test_a_killed_call_of_several_at_once_goes_on(
    name: str, tmp_path: Path, whole: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In new interpreters, as users have it: a forked process would hold the lock of the call that it was forked from."""

    def act() -> None:
        run(tmp_path, executor=executor_by_name(name), place={"at_once": 2})

    monkeypatch.setattr(together, "cores", lambda: 1)
    with new_interpreters("forkserver", monkeypatch):
        _killed_and_gone_on_with(act, tmp_path)
    assert content(tmp_path) == whole
    assert [path.name for path in (tmp_path / "work").iterdir()] == [".lock"]


def _killed_and_gone_on_with(act: Callable[[], None], tmp_path: Path) -> None:
    for moment in (2, 6, 12):
        child = Child(act)
        until(lambda child=child, moment=moment: len(names(tmp_path)) >= moment or child.ended)
        child.kill()
        child.wait()
        list(Store(tmp_path / "results").all())
    last = Child(act)
    assert last.wait() == 0, last.said


def test_who_carries_runs_out_where_nobody_says() -> None:
    assert default_executor(quick=True, on_gpu=False) == "workers"
    assert default_executor(quick=False, on_gpu=False) == "processes"
    assert default_executor(quick=True, on_gpu=True) == "processes"
    assert executor_by_name("ray") is executors.on_ray


def test_a_run_takes_as_long_as_it_took() -> None:
    ran, other = job("a"), recipe("b", plan=recipe().plan.changed({"steps": 12})).job(0, settings=CPU)

    def took(seconds: float, of: Job = ran, device: str = "this", **changes: Any) -> Result:
        environment = {"numerics": 2, "device": device}
        return result(
            fingerprint=of.fingerprint, device_seconds=seconds, plan=of.plan.as_dict(), environment=environment, **changes
        )

    found = estimate([ran, other], [took(10.0), took(20.0, seed=1), took(500.0, seed=2, device="another")], "this")
    assert found.seconds[ran.name] == 15.0
    # twice the steps of what is known, at the median of the rates.
    assert 20.0 <= found.seconds[other.name] <= 40.0
    assert (found.known, found.scaled, found.rough) == (1, 1, 0)
    assert found.total == pytest.approx(sum(found.seconds.values()))
    assert found.describe().startswith("about ")
    assert "1 by their own records, 1 by others' on this device" in found.describe()
    # a tiny net's rate says nothing of a large one's; nor does the number of threads tell devices apart.
    assert estimate([ran], [took(10.0, device="a CPU, 1 threads")], "a CPU, 2 threads").known == 1
    em = recipe("em", plan=recipe().plan.changed({"model.routing": "em"})).job(0, settings=CPU)
    assert estimate([em], [took(10.0)], "this").rough == 1
    backbones = [
        recipe(name, plan=Plan("parse_capsnet", "mnist40", model_options={"backbone": name})).job(0, settings=CPU)
        for name in ("affnist", "small")
    ]
    assert len({cost._kind(each.plan) for each in backbones}) == 2
    # results of settings that are no longer there are passed over: of the network, of the training, the network itself.
    plan = other.plan.as_dict()
    gone = [
        {**plan, "model_options": {"gone": 1}},
        {**plan, "train": {**plan["train"], "gone": 1}},
        {**plan, "model": "gone"},
    ]
    old = [took(10.0, of=other, seed=seed) for seed in range(3)]
    old = [replace(each, plan=plan, fingerprint="old") for each, plan in zip(old, gone, strict=True)]
    assert estimate([other], old, "this").rough == 1
    assert estimate([other], [*old, took(10.0)], "this").scaled == 1
    rough = estimate([ran], [], "this")
    assert (rough.known, rough.scaled, rough.rough) == (0, 0, 1)
    assert rough.total > 0


def test_an_executor_sees_only_what_is_not_recorded(tmp_path: Path) -> None:
    run(tmp_path, jobs()[:3])
    seen: list[str] = []

    def noting(todo: Sequence[Job], place: Place) -> Iterator[Done]:
        seen.extend(each.name for each in todo)
        return iter(())

    run(tmp_path, executor=noting)
    assert seen == [each.name for each in jobs()[3:]]


def test_a_hook_after_a_run_is_called_in_its_process(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch, forking(patch, together):
        plan = jobs()[0].plan
        outcomes = list(together.run_together([(plan, tmp_path / "run")], after=lambda folder: (folder / "after").touch()))
    assert outcomes[0].run is not None
    assert (tmp_path / "run/after").exists()
    assert children.Children(1, None, {}).after is None


def test_standings_are_shown_here_too(tmp_path: Path) -> None:
    shown: list[Sequence[Standing]] = []
    run(tmp_path, jobs()[:1], place={"watch": shown.append})
    assert [each.folder.name for each in shown[0]] == ["seed-0"]
