"""``kill -9`` at any moment costs the steps since the last checkpoint and nothing else."""

from __future__ import annotations

import random
import signal
import sys
import time
from pathlib import Path

import pytest

from capsella.train.checkpoint import read_newest

sys.path.insert(0, str(Path(__file__).resolve().parent))
from run_harness import Child, assert_same_run, tiny_data, train, until

STEPS = 60


def go_on(run: Path) -> None:
    """Begin the run, or go on with it; every step is kept, so that most moments fall into the writing of a checkpoint."""
    begun = (run / "config.json").exists()
    train(run, resume=begun, steps=STEPS, epochs=99, checkpoint_seconds=0, validation=tiny_data(4, seed=2, split="val"))


def killed_and_resumed(folder: Path, kills: int, seed: int) -> list[int]:
    """Kill a run so often at random moments and let it finish; return the steps that were reached at each kill that struck."""
    moments = random.Random(seed)
    run, reached = folder / "run", []
    go_on(folder / "whole")
    for turn in range(kills):
        before = names(run)
        child = Child(lambda run=run: go_on(run))
        # mostly after it has written something, sometimes before.
        if turn == 0 or moments.random() < 0.8:
            until(lambda run=run, child=child, before=before: names(run) != before or child.ended)
        time.sleep(moments.uniform(0, 0.06))
        child.kill()
        assert child.wait() in (-signal.SIGKILL, 0), child.said
        kept = names(run)
        # whatever the moment: once there is a checkpoint, there is a sound one.
        step = read_newest(run / "checkpoints").facts["position"]["step"] if kept else 0
        reached += [step] if child.code else []
        if child.code == 0:
            # it came to its end before it could be killed.
            assert_same_run(run, folder / "whole")
            run = folder / f"run {turn}"
    last = Child(lambda: go_on(run))
    assert last.wait() == 0, last.said
    assert_same_run(run, folder / "whole")
    assert not list(run.rglob(".step-*.part"))
    return reached


def names(run: Path) -> list[str]:
    return sorted(path.name for path in (run / "checkpoints").glob("step-*"))


def test_a_killed_run_goes_on_to_the_same_weights(tmp_path: Path) -> None:
    reached = killed_and_resumed(tmp_path, kills=4, seed=0)
    assert max(reached) > 0


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", range(4))
def test_a_run_that_is_killed_a_hundred_times_goes_on_to_the_same_weights(seed: int, tmp_path: Path) -> None:
    reached = killed_and_resumed(tmp_path, kills=25, seed=seed + 1)
    # some turns end before they can be killed; most do not.
    assert len(reached) > 12
    assert max(reached) > 0
