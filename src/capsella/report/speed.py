"""The page about speed: records of ``capsella bench`` in, Markdown and pictures out."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from capsella.bench.bars import NOT_RUN, judge_records
from capsella.errors import DataError
from capsella.report.speed_plots import Panel, log_log

Record = Mapping[str, Any]

KINDS = ("routing", "step", "together", "growth", "attention", "data")
PICTURES = "speed"
"""The folder of the pictures, beside the page."""

_INTRODUCTION = """# Speed

Made by `capsella bench page` from the records in [results/bench](../results/bench), which `capsella bench all` and, for several
runs at once, `capsella bench together` write. What is timed has passed the gate before: values and gradients against float64 by
the [parity rule](decisions/0003-parity-rule.md), the first losses of a fast step against those of a plain one. Times are
medians with the lowest and the highest reading. A floor is the least time that the bytes which must be read and written take at
the bandwidth of a large copy, or the operations at the rate of a large matrix product, whichever is more.

*mixed* is what a fast step calls: poses in bf16 and weights in float32. *× faster* is the time of the reference as it is called
from Python over that of f + b; on a GPU the latter is without launches (a CUDA graph). Where launches are what the reference
waits for, bars also say how many times its kernels alone take, and both as they are called.
"""


def read_records(folder: Path) -> dict[str, dict[str, Record]]:
    """Return the records of a folder by device and kind; a name is ``<kind>-<device>.json``."""
    found: dict[str, dict[str, Record]] = {}
    for path in sorted(folder.glob("*.json")):
        kind, _, device = path.stem.partition("-")
        if kind not in KINDS:
            continue
        try:
            found.setdefault(device, {})[kind] = json.loads(path.read_text(encoding="utf-8"))
        except json.JSONDecodeError as error:
            raise DataError(f"{path} is no JSON ({error}); run capsella bench again") from error
    if not found:
        raise DataError(
            f"{folder} has no records of capsella bench; expected files such as routing-cpu-2-cores-torch2.13.0.json"
        )
    return found


def speed_page(records: Mapping[str, Mapping[str, Record]]) -> dict[str, str]:
    """Return the page and its pictures as texts, by their path below the folder of the page."""
    files: dict[str, str] = {}
    parts = [_INTRODUCTION]
    for device, kinds in records.items():
        first = next(iter(kinds.values()))
        parts.append(f"## {first['device']}, torch {first['torch']}\n")
        loads = [
            f"{kinds[kind]['load_before']:.1f} ({kind})" for kind in KINDS if kinds.get(kind, {}).get("load_before") is not None
        ]
        if loads:
            parts.append(f"Processors that other programs kept busy when a measurement began: {', '.join(loads)}.\n")
        cut = [kind for kind in KINDS if not kinds.get(kind, {}).get("complete", True)]
        if cut:
            parts.append(f"Stopped before the last reading: {', '.join(cut)}.\n")
        parts += _bars(device, kinds)
        for kind in KINDS:
            if kind in kinds:
                text, pictures = _SECTIONS[kind](device, kinds[kind])
                parts.append(text)
                files |= pictures
    return {"speed.md": "\n".join(parts), **files}


def _bars(device: str, kinds: Mapping[str, Record]) -> list[str]:
    bars = judge_records(kinds, gpu=not device.startswith("cpu-"))
    # records of other sizes say nothing about them; red readings do.
    if all(bar.says == NOT_RUN for bar in bars):
        return []
    rows = []
    for bar in bars:
        sign = "≥" if bar.higher else "≤"
        must, aim = (f"{sign} {_number(value)} {bar.unit}" if value else "" for value in (bar.must, bar.aim))
        measured = "" if bar.measured is None else f"{_number(bar.measured)} {bar.unit}"
        rows.append([bar.what, must, aim, measured, bar.verdict, bar.says])
    table = _table(["what", "must", "aim", "measured", "verdict", "how"], rows, right=(1, 2, 3))
    return [f"### What must be reached\n\nBars are set for an NVIDIA H200 and for a CPU of two cores.\n\n{table}"]


def _routing(device: str, record: Record) -> tuple[str, dict[str, str]]:
    parts = [
        "### Routing\n",
        f"Forward, and forward + backward (f + b), without couplings; * is what the dispatcher takes. Copies run at "
        f"{record['bandwidth'] / 1e9:,.0f} GB/s. Memory: {record['memory_says']}. {record['compiled_says']}.\n",
    ]
    readings = record["readings"]
    for case in dict.fromkeys(reading["case"] for reading in readings):
        here = [reading for reading in readings if reading["case"] == case]
        sizes = " ".join(f"{letter}{size}" for letter, size in here[0]["sizes"].items())
        # on a CPU, and in older records, nothing was timed as it is called beside.
        called = any(reading.get("called") for reading in here)
        grouped = _grouped(here, "algorithm", "precision", "implementation", "compiled")
        rows = [_routing_row(group, called=called) for group in grouped]
        head = ["algorithm", "precision", "implementation", "forward, ms", "f + b, ms", "floor", "× floor", "× faster", "MiB"]
        head += ["f + b as called, ms"] if called else []
        parts.append(f"**{case}** ({sizes})\n\n{_table(head, rows, right=range(3, len(head)))}")
    return "\n".join(parts), {}


def _routing_row(group: Sequence[Mapping[str, Any]], *, called: bool) -> list[str]:
    by_mode = {reading["mode"]: reading for reading in group}
    both = by_mode.get("forward + backward", group[0])
    name = both["implementation"] + (", compiled" if both["compiled"] else "") + (" *" if both["chosen"] else "")
    start = [both["algorithm"], both["precision"], name]
    if both["problem"]:
        return [*start, both["problem"], *[""] * (6 if called else 5)]
    forward = _spread(by_mode["forward"]) if "forward" in by_mode else ""
    numbers = [_milliseconds(both["floor"]), _number(both["over_floor"]), _number(both["speedup"]), _mebibytes(both["memory"])]
    from_python = [_milliseconds(both["called"]) if both.get("called") else ""] if called else []
    return [*start, forward, _spread(both), *numbers, *from_python]


def _step(device: str, record: Record) -> tuple[str, dict[str, str]]:
    rows = []
    for reading in record["readings"]:
        kind = reading["what"] if reading["what"] != "step" else "fast step" if reading["fast"] else "plain step"
        start = [reading["model"], f"{reading['size']}", f"{reading['batch_size']}", reading["precision"], kind]
        routed = reading["routed_by"] or ("" if reading["implementation"] == "auto" else reading["implementation"])
        if reading["problem"]:
            rows.append([*start, reading["problem"], *[""] * 5, routed])
            continue
        # an epoch has no floor, nor have steps that were measured before there was one.
        floors = [_milliseconds(reading["floor"]), _number(reading["over_floor"])] if reading.get("floor") else ["", ""]
        numbers = [_mebibytes(reading["memory"]), f"{reading['parameters']:,}", _number(reading["difference"])]
        rows.append([*start, _spread(reading), *floors, *numbers, routed])
    head = [
        "model",
        "pixels",
        "batch",
        "precision",
        "what",
        "ms",
        "floor",
        "× floor",
        "MiB",
        "parameters",
        "losses",
        "routed by",
    ]
    says = (
        f"The fast step's first {record['compared']} losses are within "
        + ", ".join(f"{bound:g} ({precision})" for precision, bound in record["bound"].items())
        + " of the plain step's; the column losses has the largest difference. A floor is what convolutions and products, or "
        "weights with Adam's averages, take at least. "
        f"Memory: {record['memory_says']}.\n"
    )
    text = f"### Training\n\n{says}\n{_table(head, rows, right=(1, 2, *range(5, 11)))}"
    if record["differences"]:
        gaps = [
            [f"{each['model']} − {each['trunk']}", str(each["size"]), each["precision"], _milliseconds(each["seconds"])]
            for each in record["differences"]
        ]
        text += "\nWhat capsules and decoder add to the step of the ConvNet with the same convolutions:\n\n"
        text += _table(["steps", "pixels", "precision", "ms"], gaps, right=(1, 3))
    # a step that was measured before there were parts has none.
    divided = [reading for reading in record["readings"] if reading.get("parts")]
    if divided:
        names = list(dict.fromkeys(name for reading in divided for name in reading["parts"]))
        rows = [
            [
                f"{reading['model']}{'' if reading['fast'] else ', plain'}",
                str(reading["size"]),
                reading["precision"],
                *(_milliseconds(reading["parts"][name]) if name in reading["parts"] else "" for name in names),
            ]
            for reading in divided
        ]
        text += "\nWhat the GPU does in a step, in ms, by the names of its kernels; waiting is the rest of the step's time:\n\n"
        text += _table(["model", "pixels", "precision", *names], rows, right=(1, *range(3, 3 + len(names))))
    return text, {}


def _together(device: str, record: Record) -> tuple[str, dict[str, str]]:
    ways = record["ways"]
    won = {(each["model"], each["way"], each["at_once"]) for each in record["winners"]}
    rows, problems = [], []
    for reading in record["readings"]:
        if reading["problem"]:
            problems.append(
                f"{reading['model']}, {ways[reading['way']]}, {reading['at_once']} at once: {reading['problem']}.\n"
            )
            continue
        rate = f"{_number(reading['median'])} ({_number(reading['low'])} to {_number(reading['high'])})"
        numbers = [_number(reading[key]) for key in ("ratio", "start_up", "runs_per_minute")]
        numbers[-1] += " *" if (reading["model"], reading["way"], reading["at_once"]) in won else ""
        start = [reading["model"], ways[reading["way"]], str(reading["at_once"]), reading["precision"]]
        rows.append([*start, rate, *numbers, _mebibytes(reading["memory"])])
    best = [
        f"- {each['model']}: {each['at_once']} at once, {ways[each['way']]}, {_number(each['runs_per_minute'])} a minute"
        + (f", {_number(each['gain'])} times those of one process after the other" if each["gain"] else "")
        + ".\n"
        for each in record["winners"]
    ]
    head = ["model", "way", "at once", "precision", "steps/s", "× one alone", "start-up, s", "runs/minute", "MiB"]
    steps = f"{record['readings'][0]['steps']:,}" if record["readings"] else "0"
    return (
        f"### Several runs at once\n\n{record['says']}. {record['cores']} cores, runs of {steps} steps, batches of "
        f"{record['readings'][0]['batch_size'] if record['readings'] else 0}.\n\n"
        f"{_table(head, rows, right=(2, *range(4, 9)))}\n{''.join(problems)}\nMost runs a minute (*):\n\n{''.join(best)}"
        + (f"\nNot measured: {'; '.join(missing)}.\n" if (missing := unmeasured(record)) else "")
    ), {}


def unmeasured(record: Record) -> list[str]:
    """Say which of its nets have no reading in some of its ways or numbers, as where it was stopped: nothing is known of those.

    Example:
        >>> base = {"model": "lenet", "way": "a", "at_once": 1, "problem": ""}
        >>> readings = [base, {**base, "at_once": 4}, {**base, "way": "b"}, {**base, "model": "capsnet"}]
        >>> unmeasured({"ways": {"a": "processes", "b": "one program"}, "readings": readings})
        ['lenet, one program, 4 at once', 'capsnet, processes, 4 at once', 'capsnet, one program']
    """
    models, ways, counts = (dict.fromkeys(each[key] for each in record["readings"]) for key in ("model", "way", "at_once"))
    found = []
    for model in models:
        for way in ways:
            here = [each for each in record["readings"] if (each["model"], each["way"]) == (model, way)]
            missing = counts.keys() - {each["at_once"] for each in here}
            # a problem is said by itself, once for all numbers.
            if missing and not any(each["problem"] for each in here):
                numbers = f", {', '.join(map(str, sorted(missing)))} at once" if here else ""
                found.append(f"{model}, {record['ways'][way]}{numbers}")
    return found


def _growth(device: str, record: Record) -> tuple[str, dict[str, str]]:
    parts, pictures = ["### Growth\n"], {}
    parts.append("Powers of each size that time and memory grow with, by least squares on logarithms over all its points.\n")
    groups = _grouped(record["exponents"], "algorithm", "precision", "implementation")
    axes = list(dict.fromkeys(reading["axis"] for reading in record["readings"]))
    rows = []
    for group in groups:
        by_axis = {each["axis"]: each for each in group}
        powers = [f"{by_axis[axis]['time']:.2f} / {by_axis[axis]['memory']:.2f}" if axis in by_axis else "" for axis in axes]
        rows.append([group[0]["algorithm"], group[0]["precision"], group[0]["implementation"], *powers])
    heads = ["algorithm", "precision", "implementation", *(f"{axis}: time / memory" for axis in axes)]
    parts.append(_table(heads, rows, right=range(3, 3 + len(axes))))
    timed = [reading for reading in record["readings"] if not reading["problem"]]
    parts.append(_choices(timed, "algorithm", "axis", "size"))
    for algorithm in dict.fromkeys(reading["algorithm"] for reading in timed):
        here = [reading for reading in timed if reading["algorithm"] == algorithm]
        rows_of_panels = [
            [_panel(here, axis, key, unit, scale) for axis in axes]
            for key, unit, scale in (("median", "ms", 1e3), ("memory", "MiB", 2**-20))
        ]
        label = f"{algorithm}: time and memory against each size, {record['device']}"
        path = f"{PICTURES}/growth-{algorithm}-{device}.svg"
        pictures[path] = log_log(rows_of_panels, label=label)
        parts.append(f"![{label}]({path})\n")
    return "\n".join(parts), pictures


def _choices(timed: Sequence[Mapping[str, Any]], *keys: str) -> str:
    """Say at how many points the dispatcher takes the fastest, or one that cannot be told from it, and where it does not."""
    # a point that two axes share is timed once and stands twice.
    points = [group for group in _grouped(timed, *keys) if any(reading.get("chosen") for reading in group)]
    others = []
    for group in points:
        (taken, *_) = (reading for reading in group if reading["chosen"])
        best = min(group, key=lambda reading: reading["median"])
        if taken["low"] > best["high"]:
            where = _where(taken, keys)
            times = " and ".join(f"{each['implementation']} {_milliseconds(each['median'])} ms" for each in (taken, best))
            others.append(f"{where} ({times})")
    if not points:
        return ""
    count = f"{len(points) - len(others)} of {len(points)} points"
    but = f"; not at {', '.join(others)}" if others else ""
    return f"The dispatcher takes the fastest, or one that cannot be told from it, at {count}{but}.\n"


def _where(taken: Mapping[str, Any], keys: Sequence[str]) -> str:
    if "axis" in keys:
        return f"{taken['algorithm']}, {taken['axis']} = {taken['size']}"
    return ", ".join(f"{key} = {taken[key]}" for key in keys)


def _panel(readings: Sequence[Mapping[str, Any]], axis: str, key: str, unit: str, scale: float) -> Panel:
    lines: dict[str, list[tuple[float, float]]] = {}
    for reading in readings:
        if reading["axis"] == axis:
            lines.setdefault(reading["implementation"], []).append((reading["size"], reading[key] * scale))
    return Panel(axis, unit, lines)


def _attention(device: str, record: Record) -> tuple[str, dict[str, str]]:
    rows = []
    for reading in record["readings"]:
        start = [reading["mechanism"], reading["implementation"] + (" *" if reading["chosen"] else "")]
        counts = [str(reading["n"]), str(reading["d"]), f"{reading['parameters']:,}", f"{reading['space']:,}"]
        if reading["problem"]:
            rows.append([*start, *counts, reading["problem"], "", ""])
            continue
        rows.append([*start, *counts, _spread(reading), f"{reading['operations']:,}", _mebibytes(reading["memory"])])
    head = ["mechanism", "implementation", "n", "d", "parameters", "formula", "f + b, ms", "formula", "MiB"]
    powers = [
        [each["mechanism"], each["implementation"], each["along"]]
        + [f"{each[key]:.2f}" for key in ("time", "formula", "memory", "parameters")]
        for each in record["exponents"]
    ]
    text = (
        "### Routing by agreement and self-attention\n\n"
        "n vectors of d values in and out, float32, forward + backward, beside mitterreiter2023's Table 3: space d² and time\n"
        "n²·d + n·d² for multi-head self-attention (MHSA), n²·d² for both of routing by agreement (RBA), up to constants.\n"
        f"Batches of {record['readings'][0]['batch_size']}.\n\n"
        f"{_table(head, rows, right=range(2, 9))}\nPowers that they grow with:\n\n"
        + _table(["mechanism", "implementation", "of", "time", "formula", "memory", "parameters"], powers, right=range(3, 7))
    )
    timed = [reading for reading in record["readings"] if not reading["problem"]]
    text += "\n" + _choices([reading for reading in timed if reading["mechanism"] != "MHSA"], "n", "d")
    panels = []
    for along in dict.fromkeys(reading["along"] for reading in timed):
        lines: dict[str, list[tuple[float, float]]] = {}
        for reading in timed:
            if reading["along"] == along:
                name = "MHSA" if reading["mechanism"] == "MHSA" else f"RBA, {reading['implementation']}"
                lines.setdefault(name, []).append((reading[along], reading["median"] * 1e3))
        panels.append(Panel(along, "ms", lines))
    label = f"routing by agreement and self-attention: time against n and d, {record['device']}"
    path = f"{PICTURES}/attention-{device}.svg"
    return f"{text}\n![{label}]({path})\n", {path: log_log([panels], label=label)}


def _data(device: str, record: Record) -> tuple[str, dict[str, str]]:
    rows = []
    for reading in record["readings"]:
        what = f"{reading['name']}, {reading['unit']}"
        if reading.get("problem"):
            rows.append([what, reading["problem"], "", "", ""])
            continue
        whole = reading["unit"] != "s"
        median, low, high, floor = (
            f"{reading[key]:,.0f}" if whole else _number(reading[key]) for key in ("median", "low", "high", "floor")
        )
        # of a rate the floor is the most.
        over = reading["floor"] / reading["median"] if whole else reading["median"] / reading["floor"]
        rows.append([what, f"{median} ({low} to {high})", floor, _number(over), reading["floor_says"]])
    says = (
        f"Images a second in batches of {record['batch_size']}, after a check that the device draws what the CPU draws: "
        "`batches()` goes through a whole set, `batch()` draws what it is asked for. A floor is what memory allows where each "
        "byte of the originals is read and each value written once."
    )
    table = _table(["what", "median", "floor", "× floor", "the floor is"], rows, right=(1, 2, 3))
    return f"### Drawing batches\n\n{says}\n\n{table}", {}


_SECTIONS: dict[str, Callable[[str, Record], tuple[str, dict[str, str]]]] = {
    "routing": _routing,
    "step": _step,
    "together": _together,
    "growth": _growth,
    "attention": _attention,
    "data": _data,
}


def _grouped(entries: Sequence[Mapping[str, Any]], *keys: str) -> list[list[Mapping[str, Any]]]:
    groups: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for entry in entries:
        groups.setdefault(tuple(entry[key] for key in keys), []).append(entry)
    return list(groups.values())


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[int] = ()) -> str:
    lines = [head, ["--:" if k in right else "---" for k in range(len(head))], *rows]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)


def _spread(reading: Mapping[str, Any]) -> str:
    median, low, high = (_milliseconds(reading[key]) for key in ("median", "low", "high"))
    return f"{median} ({low} to {high})"


def _milliseconds(seconds: float) -> str:
    return _number(seconds * 1e3)


def _mebibytes(count: float) -> str:
    return f"{count / 2**20:,.1f}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
