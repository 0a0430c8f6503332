"""What the verbs that write pages have in common."""

from __future__ import annotations

import os
import shutil
import sys
from typing import Any


def facts(config: dict[str, Any]) -> dict[str, str]:
    """Return what a page says about how its runs were made, from the config of one of them."""
    environment, train = config["environment"], config["train"]
    sizes = {
        part: f"{config['data'][part]['images']:,} images, digest {config['data'][part]['digest'][:16]}"
        for part in ("train", "test")
    }
    return {
        "capsella": f"{environment['capsella']} (commit {(environment['commit'] or 'unknown')[:12]})",
        "torch": environment["torch"],
        "device": environment["device"],
        "training": f"{train['optimiser']}, rate {train['lr']:g}, {train['schedule']}, batches of {train['batch_size']}",
        "training data": sizes["train"],
        "test data": sizes["test"],
    }


def curve(run: Any) -> tuple[tuple[float, float, float], ...]:
    """Return images seen, loss and accuracy at every reading of a run."""
    return tuple((event["images"], event["loss"], event["accuracy"]) for event in run.events if event["event"] == "log")


def program() -> str:
    """Return how this program is called from here: by its name, or by its path where the name would not be found."""
    return "capsella" if shutil.which("capsella") or not sys.argv[0].endswith("capsella") else os.path.relpath(sys.argv[0])
