"""Records of ``capsella bench`` as tables on the screen."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rich.console import Console
from rich.table import Table


def number(value: float) -> str:
    """Write a number with three digits, or whole where it is large.

    Example:
        >>> number(12345.6), number(0.012345)
        ('12,346', '0.0123')
    """
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def milliseconds(seconds: float) -> str:
    """Write seconds as milliseconds."""
    return number(seconds * 1e3)


def in_bytes(count: int) -> str:
    """Write bytes in MiB."""
    return f"{count / 2**20:,.1f}"


def _where(found: Mapping[str, Any]) -> str:
    load = found.get("load_before")
    return f"{found['device']}, torch {found['torch']}" + (f", {load:.1f} processors busy before" if load is not None else "")


def print_data(console: Console, found: Mapping[str, Any]) -> None:
    """Show how fast batches are drawn."""
    title = f"{found['kind']} on {_where(found)}, batches of {found['batch_size']}"
    table = Table("what", title=title, title_justify="left")
    for name in ("median", "lowest", "highest", "floor"):
        table.add_column(name, justify="right")
    floors = {}
    for reading in found["readings"]:
        if reading["problem"]:
            table.add_row(reading["name"], reading["problem"], "", "", "")
            continue
        values = (reading["median"], reading["low"], reading["high"], reading["floor"])
        table.add_row(f"{reading['name']}, {reading['unit']}", *map(number, values))
        floors[reading["name"].rsplit(", ", 1)[0]] = reading["floor_says"]
    console.print(table)
    for name, says in floors.items():
        console.print(f"floor of {name}: {says}")


def print_strokes(console: Console, found: Mapping[str, Any]) -> None:
    """Show how long a stroke takes in each view."""
    table = Table("after a stroke", title=f"explorer, {found['model']}, on {_where(found)}", title_justify="left")
    for name in ("median ms", "p95 ms", "slowest ms", "must ms", "strokes"):
        table.add_column(name, justify="right")
    table.add_column("verdict")
    for reading in found["readings"]:
        if reading["problem"]:
            table.add_row(reading["name"], *[""] * 5, reading["problem"])
            continue
        values = (reading["median"], reading["p95"], reading["high"], reading["must"])
        verdict = "met" if reading["p95"] <= reading["must"] else "MISSED"
        table.add_row(reading["name"], *map(milliseconds, values), str(reading["repeats"]), verdict)
    console.print(table)


def print_load(console: Console, found: Mapping[str, Any]) -> None:
    """Show how long a stroke takes where many draw at once."""
    table = Table("clients", title=f"explorer under load, {found['model']}, on {_where(found)}", title_justify="left")
    for name in ("seconds", "strokes", "refused", "median ms", "p95 ms", "slowest ms"):
        table.add_column(name, justify="right")
    for reading in found["readings"]:
        counts = (f"{reading['clients']:,}", f"{reading['seconds']:g}")
        if reading["problem"]:
            table.add_row(*counts, reading["problem"])
            continue
        times = map(milliseconds, (reading["median"], reading["p95"], reading["high"]))
        table.add_row(*counts, f"{reading['strokes']:,}", f"{reading['refused']:,}", *times)
    console.print(table)


def print_routing(console: Console, found: Mapping[str, Any]) -> None:
    """Show one table for each case."""
    console.print(f"routing on {_where(found)}; * the dispatcher's choice", markup=False)
    readings = found["readings"]
    for case in dict.fromkeys(reading["case"] for reading in readings):
        here = [reading for reading in readings if reading["case"] == case]
        sizes = " ".join(f"{letter}{size}" for letter, size in here[0]["sizes"].items())
        table = Table("algorithm", "precision", "implementation", title=f"{case}: {sizes}", title_justify="left")
        for name in ("pass", "ms", "low", "high", "repeats", "MiB extra", "floor ms", "× floor", "× faster"):
            table.add_column(name, justify="right")
        table.add_column("measured by")
        for reading in here:
            table.add_row(*_routing_row(reading))
        console.print(table)
    console.print(f"× faster: than the eager reference. MiB extra: {found['memory_says']}.", markup=False)
    console.print(found["compiled_says"], markup=False)


def _routing_row(reading: Mapping[str, Any]) -> list[str]:
    name = reading["implementation"] + (" compiled" if reading["compiled"] else "") + (" *" if reading["chosen"] else "")
    start = [reading["algorithm"], reading["precision"], name, reading["mode"]]
    if reading["problem"]:
        return [*start, *[""] * 8, reading["problem"]]
    times = [milliseconds(reading[key]) for key in ("median", "low", "high")]
    ratios = [number(reading["over_floor"]), number(reading["speedup"])]
    memory, floor = in_bytes(reading["memory"]), milliseconds(reading["floor"])
    return [*start, *times, str(reading["repeats"]), memory, floor, *ratios, reading["how"]]


def print_step(console: Console, found: Mapping[str, Any]) -> None:
    """Show steps and epochs."""
    title = f"training on {_where(found)}"
    table = Table("what", "model", title=title, title_justify="left")
    for name in ("px", "batch", "precision", "step", "ms", "low", "high", "repeats", "× floor", "MiB", "losses differ by"):
        table.add_column(name, justify="right")
    table.add_column("routed by")
    for reading in found["readings"]:
        kind = "fast" if reading["fast"] else "plain"
        start = [
            reading["what"],
            reading["model"],
            str(reading["size"]),
            str(reading["batch_size"]),
            reading["precision"],
            kind,
        ]
        routed = reading["routed_by"] or reading["implementation"]
        if reading["problem"]:
            table.add_row(*start, *[""] * 7, f"{routed}: {reading['problem']}")
            continue
        times = [milliseconds(reading[key]) for key in ("median", "low", "high")]
        floor = f"{reading['over_floor']:.3g}" if reading["floor"] else ""
        rest = [str(reading["repeats"]), floor, in_bytes(reading["memory"]), f"{reading['difference']:.1g}", routed]
        table.add_row(*start, *times, *rest)
    console.print(table)
    for each in found["differences"]:
        step = f"{each['model']} − {each['trunk']}, {each['size']} px, {each['precision']}"
        console.print(f"{step}: {milliseconds(each['seconds'])} ms", markup=False)
    for each in found["readings"]:
        if each["parts"]:
            parts = ", ".join(f"{name} {milliseconds(seconds)}" for name, seconds in each["parts"].items())
            console.print(f"{each['model']}, {each['size']} px, {each['precision']}, ms of {parts}", markup=False)


def print_growth(console: Console, found: Mapping[str, Any]) -> None:
    """Show the powers, and the times they come from."""
    title = f"growth of routing, forward + backward, on {_where(found)}"
    table = Table("algorithm", "implementation", "size", title=title, title_justify="left")
    for name in ("time grows as", "memory grows as"):
        table.add_column(name, justify="right")
    table.add_column("ms at each size")
    for each in found["exponents"]:
        points = [
            f"{reading['size']}: {milliseconds(reading['median'])}"
            for reading in found["readings"]
            if not reading["problem"] and all(reading[key] == each[key] for key in ("algorithm", "implementation", "axis"))
        ]
        powers = (f"{each['axis']}^{each[key]:.2f}" for key in ("time", "memory"))
        table.add_row(each["algorithm"], each["implementation"], each["axis"], *powers, ", ".join(points))
    console.print(table)


def print_attention(console: Console, found: Mapping[str, Any]) -> None:
    """Show both mechanisms at every size, and the powers they grow with."""
    title = f"routing by agreement (RBA) and self-attention (MHSA) on {_where(found)}"
    table = Table("mechanism", "implementation", title=title, title_justify="left")
    for name in ("n", "d", "batch", "parameters", "formula", "ms", "low", "high", "operations", "MiB extra"):
        table.add_column(name, justify="right")
    for reading in found["readings"]:
        counts = [str(reading[key]) for key in ("n", "d", "batch_size")]
        sizes = [f"{reading[key]:,}" for key in ("parameters", "space")]
        if reading["problem"]:
            table.add_row(
                reading["mechanism"], f"{reading['implementation']}: {reading['problem']}", *counts, *sizes, *[""] * 5
            )
            continue
        times = [milliseconds(reading[key]) for key in ("median", "low", "high")]
        rest = [f"{reading['operations']:,}", in_bytes(reading["memory"])]
        table.add_row(reading["mechanism"], reading["implementation"], *counts, *sizes, *times, *rest)
    console.print(table)
    for each in found["exponents"]:
        powers = ", ".join(f"{name} {each[name]:.2f}" for name in ("time", "formula", "memory", "parameters"))
        console.print(f"{each['mechanism']}, {each['implementation']}, powers of {each['along']}: {powers}", markup=False)


def print_bars(console: Console, found: Mapping[str, Any]) -> None:
    """Show what must be, what should be and what is."""
    title = f"bars on {_where(found)}"
    table = Table("what", title=title, title_justify="left")
    for name in ("must", "aim", "measured"):
        table.add_column(name, justify="right")
    table.add_column("verdict", no_wrap=True)
    table.add_column("how")
    for reading, verdict in zip(found["readings"], found["verdicts"], strict=True):
        sign = "≥" if reading["higher"] else "≤"
        must, aim = (f"{sign} {number(v)} {reading['unit']}" if v else "" for v in (reading["must"], reading["aim"]))
        measured = "" if reading["measured"] is None else f"{number(reading['measured'])} {reading['unit']}"
        table.add_row(reading["what"], must, aim, measured, verdict, reading["says"])
    console.print(table)
    missed = sum(verdict.startswith("MISSED") for verdict in found["verdicts"])
    unknown = found["verdicts"].count("not measured")
    console.print(f"{missed} of {len(found['verdicts'])} bars missed, {unknown} not measured", markup=False)


def print_together(console: Console, found: Mapping[str, Any]) -> None:
    """Show every way and number, and which makes the most runs a minute."""
    from capsella.report.speed import unmeasured

    title = f"several runs at once on {_where(found)}, {found['cores']} cores"
    table = Table(title=title, title_justify="left")
    for name in ("model", "way"):
        table.add_column(name, no_wrap=True)
    for name in ("at once", "steps/s", "low", "high", "× one alone", "start-up s", "runs/minute", "MiB"):
        table.add_column(name, justify="right")
    won = {(each["model"], each["way"], each["at_once"]) for each in found["winners"]}
    for reading in found["readings"]:
        if not reading["problem"]:
            rates = [number(reading[key]) for key in ("median", "low", "high", "ratio", "start_up", "runs_per_minute")]
            rates[-1] += " *" if (reading["model"], reading["way"], reading["at_once"]) in won else ""
            start = [reading["model"], found["ways"][reading["way"]], str(reading["at_once"])]
            table.add_row(*start, *rates, in_bytes(reading["memory"]))
    console.print(table)
    for reading in found["readings"]:
        if reading["problem"]:
            what = f"{reading['model']}, {found['ways'][reading['way']]}, {reading['at_once']} at once"
            console.print(f"{what}: {reading['problem']}", markup=False)
    console.print(f"{found['says']}.", markup=False)
    for each in found["winners"]:
        gain = f", {number(each['gain'])} times those of one process after the other" if each["gain"] else ""
        says = f"{each['at_once']} at once, {found['ways'][each['way']]}: {number(each['runs_per_minute'])} a minute{gain}"
        console.print(f"* most runs of {each['model']}, {each['steps']:,} steps each: {says}", markup=False)
    if missing := unmeasured(found):
        console.print(f"not measured: {'; '.join(missing)}", markup=False)


PRINTERS: dict[str, Callable[[Console, Mapping[str, Any]], None]] = {
    "routing": print_routing,
    "step": print_step,
    "growth": print_growth,
    "attention": print_attention,
    "together": print_together,
    "data": print_data,
}
