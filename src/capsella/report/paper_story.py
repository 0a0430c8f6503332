"""What a page says of a paper's results: from the paper and its records to plain texts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from capsella.papers.paper import Paper
from capsella.papers.readings import dig
from capsella.papers.recipe import Recipe
from capsella.papers.results import Result
from capsella.papers.verdicts import ENOUGH, FAILS, HOLDS, UNDECIDED, VERDICTS, Claim, Evidence, Finding
from capsella.report.paper_tables import NO_NUMBER, Known, Part, Sheet, many, printed_sheet, says_of, summary_part, table_part

OURS = "ours"
"""The source of a claim that is a question of our own."""

RULE = (
    f"Within: the mean of ours is off the printed number by no more than the paper's own spread or, of {ENOUGH} runs or more, "
    "two standard errors of ours, whichever is more; where there is neither, it is the same when rounded as printed. Half a "
    "unit of the last printed place is added to every bound. Anything else is above or below. What a paper quotes from others "
    "is cited only; a word, a formula or a dash is no number."
)

MINUTES = (
    "Device minutes are shares: of a second in which several runs went on, each has its part. A run that several tables show "
    "counts in each of them, and once in all."
)

_PLURALS = {HOLDS: "hold", FAILS: "do not hold"}


@dataclass(frozen=True)
class Answer:
    """What came of a claim, in words.

    Attributes:
        verdict: one of the three.
        text: what is claimed.
        source: where in the paper; empty for a question of our own.
        statistic: what decides it.
        seeds: that it rests on.
    """

    verdict: str
    text: str
    source: str
    statistic: str
    seeds: str


@dataclass(frozen=True)
class Story:
    """Everything that both pages of a paper say; pictures are drawn beside it.

    Attributes:
        name: of the paper.
        title: of the paper.
        command: that makes the results again.
        warning: what to know before anything else; may be empty.
        lead: the results in one paragraph.
        says: what the paper's recipes tell a reader first.
        claims: of the paper.
        beyond: heading of ``own``.
        answer: what these come to; may be empty.
        own: questions of our own.
        parts: the tables.
        numbers: all printed results.
        others: the other printed numbers.
        rules: how numbers are judged, where they are, and minutes are counted.
        lists: what is done otherwise than in the paper, and in short versions, by its heading.
        facts: of the runs.
    """

    name: str
    title: str
    command: str
    warning: str
    lead: str
    says: tuple[str, ...]
    claims: tuple[Answer, ...]
    beyond: str
    answer: str
    own: tuple[Answer, ...]
    parts: tuple[Part, ...]
    numbers: Sheet
    others: Sheet
    rules: tuple[str, ...]
    lists: dict[str, tuple[str, ...]]
    facts: dict[str, str]


def know(paper: Paper, results: Sequence[Result], *, quick: bool = False) -> Known:
    """Return what pages are made of.

    Args:
        paper: whose.
        results: of its recipes as they are, of any seeds; those of other recipes are left out.
        quick: whether they are the short versions.
    """
    for result in results:
        if result.quick != quick:
            is_short, wanted = ("the short version", "whole runs") if result.quick else ("a whole run", "short versions")
            raise ValueError(f"results has {is_short} of {result.name!r}; expected {wanted}, as quick={quick} says")
    order = {recipe.key: place for place, recipe in enumerate(paper.recipes)}
    chosen = sorted((each for each in results if each.recipe in order), key=lambda each: (order[each.recipe], each.seed))
    evidence = Evidence(chosen)
    return Known(paper, tuple(chosen), evidence, {each.target.key: each for each in paper.verdicts(evidence)}, quick)


def tell(paper: Paper, results: Sequence[Result], *, quick: bool = False) -> Story:
    """Return what the records of a paper say; arguments as of ``know``."""
    known = know(paper, results, quick=quick)
    evidence, findings = known.evidence, paper.findings(known.evidence)
    numbers = [each for each in known.verdicts.values() if each.target.role == "result"]
    others = [each for each in known.verdicts.values() if each.target.role != "result"]
    return Story(
        name=paper.name,
        title=paper.title,
        command=f"capsella reproduce {paper.name}{' --quick' if quick else ''}",
        warning=(
            "These are short versions on a CPU. They show directions and are no reproduction: no number is judged against "
            "the printed one, and a claim is decided for the short versions alone."
            if quick
            else ""
        ),
        lead=lead_of(known, findings),
        says=paper.says,
        claims=tuple(answer_of(claim, found) for claim, found in findings if claim.source != OURS),
        beyond=paper.beyond,
        answer=paper.answer(evidence),
        own=tuple(answer_of(claim, found) for claim, found in findings if claim.source == OURS),
        parts=(
            *(part for part in (summary_part(known, summary) for summary in paper.summaries) if part.sheet.rows),
            *(table_part(known, table) for table in paper.tables),
        ),
        numbers=printed_sheet(known, numbers, "Printed results"),
        others=printed_sheet(known, others, "Other printed numbers", with_role=True),
        rules=(*(() if quick else (RULE,)), *((MINUTES,) if known.results else ())),
        lists=_lists(paper.recipes, quick=quick),
        facts=_facts(known.results),
    )


def lead_of(known: Known, findings: Sequence[tuple[Claim, Finding]]) -> str:
    """Return what came of a paper, in a paragraph."""
    ran, all_of_them = len({result.recipe for result in known.results}), len(known.paper.recipes)
    named, done = sum(len(recipe.seeds) for recipe in known.paper.recipes), len(known.results)
    count = f"{many(done, 'run')} in all" if known.quick else f"{done:,} of their {many(named, 'run')}"
    runs = f"{ran} of {many(all_of_them, 'recipe')} {'has' if ran == 1 else 'have'} run, {count}."
    parts = [runs if all_of_them else "No recipe of it is written yet."]
    counts = Counter(says_of(verdict) for verdict in known.verdicts.values())
    listed = ", ".join(f"{counts[says]} {says}" for says in (*VERDICTS, NO_NUMBER) if counts[says])
    if known.quick:
        beside = sum(bool(verdict.values) for verdict in known.verdicts.values())
        listed = f"{beside} with one of ours beside it, none judged"
    if known.verdicts:
        parts.append(f"{many(len(known.verdicts), 'printed number')}: {listed}.")
    for kind, chosen in (("claim of the paper", False), ("question of our own", True)):
        counts = Counter(found.verdict for claim, found in findings if is_ours(claim) == chosen)
        verdicts = [
            f"{counts[each]} {each if counts[each] == 1 else _PLURALS.get(each, each)}"
            for each in (HOLDS, FAILS, UNDECIDED)
            if counts[each]
        ]
        if verdicts:
            parts.append(f"{many(counts.total(), kind)}: {', '.join(verdicts)}.")
    if known.results:
        minutes = device_minutes(known.results)
        parts.append("; ".join(f"{used:,.1f} device minutes on {device}" for device, used in minutes.items()) + ".")
        facts = _facts(known.results)
        parts.append(f"Numerics version {facts['numerics version']}, {facts['precision']}.")
    return " ".join(parts)


def is_ours(claim: Claim) -> bool:
    """Tell whether a claim is a question of our own; some of these stand beside the paper's."""
    return claim.source.startswith(OURS)


def device_minutes(results: Iterable[Result]) -> dict[str, float]:
    """Return the minutes that runs took of each device, by its name."""
    minutes: dict[str, float] = {}
    for result in results:
        device = str(result.environment.get("device") or "an unknown device")
        minutes[device] = minutes.get(device, 0.0) + result.device_seconds / 60
    return minutes


def answer_of(claim: Claim, found: Finding) -> Answer:
    """Return what came of a claim, in words."""
    source = "" if claim.source == OURS else claim.source
    return Answer(found.verdict, claim.text, source, _sentence(found.statistic), str(found.seeds) if found.seeds else "none")


def _sentence(text: str) -> str:
    """Begin with a capital and end with a full stop.

    Example:
        >>> _sentence("runs that train: 3"), _sentence("")
        ('Runs that train: 3.', '')
    """
    return text[:1].upper() + text[1:] + ("" if not text or text.endswith((".", "!", "?")) else ".")


def _lists(recipes: Sequence[Recipe], *, quick: bool) -> dict[str, tuple[str, ...]]:
    departures = _of_recipes(recipes, [recipe.departures for recipe in recipes])
    changes = _of_recipes(recipes, [_settings(recipe) for recipe in recipes]) if quick else ()
    whole = ", before anything is shortened" if quick else ""
    found = {f"Otherwise than in the paper{whole}:": departures, "The short versions have:": changes}
    return {title: sentences for title, sentences in found.items() if sentences}


def _of_recipes(recipes: Sequence[Recipe], sentences: Sequence[Iterable[str]]) -> tuple[str, ...]:
    """Return every sentence once, with the recipes it is of if these are not all."""
    found: dict[str, list[str]] = {}
    for recipe, each in zip(recipes, sentences, strict=True):
        for sentence in dict.fromkeys(each):
            found.setdefault(sentence, []).append(recipe.key)
    every = [recipe.key for recipe in recipes]
    return tuple(
        sentence if len(keys) == len(every) else f"{sentence} ({_named(keys, every)})" for sentence, keys in found.items()
    )


def _named(keys: Sequence[str], every: Sequence[str]) -> str:
    """Name recipes by table, and by row where not all of a table's are meant.

    Example:
        >>> _named(["p/a/x", "p/a/y", "p/b/x"], ["p/a/x", "p/a/y", "p/b/x", "p/b/y"])
        'a, b/x; 3 of 4 recipes'
    """
    chosen, whole = _by_table(keys), _by_table(every)
    names = []
    for table, rows in chosen.items():
        names += [table] if len(rows) == len(whole[table]) else [f"{table}/{row}" for row in rows]
    return f"{', '.join(names)}; {len(keys):,} of {len(every):,} recipes"


def _by_table(keys: Sequence[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for key in keys:
        _, table, row = key.split("/")
        found.setdefault(table, []).append(row)
    return found


def _settings(recipe: Recipe) -> tuple[str, ...]:
    if recipe.quick is None:
        return ("no short version",)
    return (", ".join(f"{key} = {value}" for key, value in recipe.quick.items()) or "nothing",)


def _facts(results: Sequence[Result]) -> dict[str, str]:
    """Return what is needed to do it again, as the records say it."""
    if not results:
        return {}
    environments = [result.environment for result in results]
    is_fast = ["compiled" if dig(result.plan, "train", "fast") else "plain" for result in results]
    facts = {
        "device": _counted([[each.get("device")] for each in environments]),
        "torch": _counted([[each.get("torch")] for each in environments]),
        "capsella": _counted([[each.get("capsella")] for each in environments]),
        "numerics version": _counted([[result.numerics] for result in results]),
        "commit": _counted([[_short(each.get("commit"))] for each in environments]),
        "precision": _counted([[dig(result.plan, "train", "precision")] for result in results]),
        "training step": _counted([[each] for each in is_fast]),
        "routing": _counted([result.implementations or ["none"] for result in results]),
    }
    for result in results:
        for split in result.data.values():
            if split is not None:
                key, says = f"{split['name']}/{split['split']}", f"{split['images']:,} images, digest {_short(split['digest'])}"
                found = facts.get(key, "").split("; ") if key in facts else []
                facts[key] = "; ".join(dict.fromkeys([*found, says]))
    return facts


def _short(name: object) -> str | None:
    """Return the first twelve letters of a digest or commit, and the plus of one whose files were changed."""
    return None if name is None else f"{str(name)[:12]}{'+' if str(name)[12:].endswith('+') else ''}"


def _counted(values: Sequence[Sequence[object]]) -> str:
    """Name what runs have, and how many have each where not all do.

    Example:
        >>> _counted([["bf16"], ["bf16"]]), _counted([["bf16"], [None]])
        ('bf16', 'bf16 (1 run), unknown (1 run)')
    """
    counts = Counter("unknown" if value is None else str(value) for each in values for value in dict.fromkeys(each))
    return ", ".join(name if count == len(values) else f"{name} ({many(count, 'run')})" for name, count in counts.items())
