"""The same runs on a Ray cluster, which is started here; Ray is an extra, and takes its time to start."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from capsella.papers.executors import Place, here, on_ray
from capsella.papers.paper import jobs_of
from capsella.papers.runner import reproduce
from capsella.papers.store import Store

sys.path.insert(0, str(Path(__file__).resolve().parent))
from paper_harness import CPU, recipe


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_cluster_records_what_this_process_does(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    broken = recipe("broken", seeds=(0,), measures=("peer2022.nothing",))
    jobs = jobs_of([recipe("a"), recipe("b", seeds=(0,), measures=("peer2022.inside",)), broken], settings=CPU)
    found = {}
    for name, executor in (("ray", on_ray), ("here", here)):
        store = Store(tmp_path / name)
        ended = list(reproduce(jobs, store, executor, Place(tmp_path / "work" / name)))
        assert sorted(each.job.name for each in ended) == sorted(job.name for job in jobs)
        (failed,) = [each for each in ended if each.result is None]
        assert "nothing" in failed.problem
        assert "\n" not in failed.problem
        found[name] = {
            each.name: (each.steps, each.fingerprint, each.curve["step"], sorted(each.measured)) for each in store.all()
        }
    assert found["ray"] == found["here"]
    assert len(found["ray"]) == 3


def test_without_ray_it_is_said_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ValueError, match=r"--executor=ray needs Ray; install it with: pip install 'capsella\[ray\]'"):
        list(on_ray([recipe().job(0, settings=CPU)], Place(tmp_path)))
