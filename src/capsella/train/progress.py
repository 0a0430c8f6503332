"""How far a run has come: a bar with loss, accuracy, speed and time left in a terminal, plain lines elsewhere."""

from __future__ import annotations

import math
import sys
import time
from typing import Any

from capsella.train.memory import in_words
from capsella.train.record import Event

# without a terminal, an epoch that takes long says a word so often, in seconds.
_WORD_EVERY = 30
# of a run's time, what looks at the capsule layers should take at most.
_WATCH_SHARE = 0.03


class Progress:
    """Listens to a run and shows it on stderr."""

    def __init__(self) -> None:
        self._bar: Any = None
        self._task: Any = None
        self._epochs = self._steps = 1
        self._said_at = 0.0
        self._dead: dict[str, int] = {}

    def __call__(self, event: Event) -> None:
        """Show an event."""
        kind = event["event"]
        if kind == "prepare":
            self._say("what this machine has not compiled before is compiled first, which may take minutes")
        elif kind == "start":
            self._start(event)
        elif kind == "log":
            self._log(event)
        elif kind == "epoch":
            self._epoch(event)
        elif kind == "watch":
            self._watch(event)
        elif kind == "end":
            self.close()
            self._end(event["record"])

    def close(self) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _start(self, event: Event) -> None:
        config = event["config"]
        self._epochs, self._steps = config["train"]["epochs"], event["steps"]
        model = config["model"].get("name", config["model"].get("class"))
        memory = f"about {in_words(event['memory'])} of memory a step"
        if event["available"] is not None:
            memory += f", {in_words(event['available'])} free"
            if event["memory"] > event["available"]:
                memory += ": this may not fit"
        train = config["data"]["train"]
        self._say(
            f"{model} ({config['parameters']:,} parameters) on {train['name']}/{train['split']} ({train['images']:,} images)"
        )
        self._say(f"{config['environment']['device']}; {memory}")
        if event["from_step"]:
            self._say(f"going on after step {event['from_step']:,}")
        if sys.stderr.isatty():
            self._open(event)

    def _open(self, event: Event) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar

        columns = [
            TextColumn("epoch {task.fields[epoch]}"),
            BarColumn(),
            TextColumn("{task.percentage:3.0f}%"),
            TextColumn("{task.fields[reading]}"),
            TimeRemainingColumn(),
        ]
        self._bar = Bar(*columns, console=Console(stderr=True), transient=True)
        epoch = f"1/{self._epochs}"
        self._task = self._bar.add_task("", total=event["steps"], completed=event["from_step"], epoch=epoch, reading="")
        self._bar.start()

    def _log(self, event: Event) -> None:
        reading = f"loss {event['loss']:.4f}, accuracy {event['accuracy']:.2%}, {event['images_per_second']:,.0f} images/s"
        if self._bar is not None:
            epoch = f"{min(self._epochs, int(event['epoch']) + 1)}/{self._epochs}"
            self._bar.update(self._task, completed=event["step"], epoch=epoch, reading=reading)
        elif time.monotonic() - self._said_at >= _WORD_EVERY:
            self._say(f"step {event['step']:,}/{self._steps:,}: {reading}")

    def _epoch(self, event: Event) -> None:
        checked = f", validation {event['validation']:.2%}" if event["validation"] is not None else ""
        self._say(
            f"epoch {event['epoch']:.4g}/{self._epochs}: loss {event['loss']:.4f}, accuracy {event['accuracy']:.2%}{checked}, "
            f"{event['seconds']:.0f} s"
        )

    def _watch(self, event: Event) -> None:
        """Say where more capsules are dead than at the look before."""
        news = []
        for name in [key.removesuffix("/dead") for key in event if key.endswith("/dead")]:
            capsules = event[f"{name}/capsules"]
            dead = round(event[f"{name}/dead"] * capsules)
            if dead > self._dead.get(name, 0):
                news.append(f"{name.replace('layer', 'layer ')}: {dead:,} of {capsules:,}")
            self._dead[name] = dead
        if news:
            self._say(f"step {event['step']:,}: {', '.join(news)} capsules are dead")

    def _end(self, record: dict[str, Any]) -> None:
        """Say what the looks cost where it is more than they should."""
        looks, seconds, every = record["watch_seconds"], record["seconds"], record["config"]["train"]["watch"]
        share = looks / max(1e-9, seconds)
        if share > _WATCH_SHARE:
            # of the steps' own time.
            enough = math.ceil(every * looks / (_WATCH_SHARE * max(1e-9, seconds - looks)))
            self._say(f"watching took {share:.0%} of the time; --watch {enough:,} would take about {_WATCH_SHARE:.0%}")

    def _say(self, line: str) -> None:
        self._said_at = time.monotonic()
        if self._bar is not None:
            self._bar.console.print(line, highlight=False, markup=False)
        else:
            sys.stderr.write(f"{line}\n")
            sys.stderr.flush()
