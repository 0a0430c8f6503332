"""A paper's pages: what is found stands beside what is printed, in Markdown and HTML alike, and nothing is made up."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch
from paper_stories import PAPER, WITH, WITHOUT, claim, recipe, result, three_each
from report_stories import Reader

from capsella.papers.images import pack
from capsella.papers.paper import Gallery, Line, Panel, Paper, Plot, Table, get_paper
from capsella.papers.results import Result
from capsella.papers.targets import PAPERS
from capsella.papers.verdicts import Evidence, Missing
from capsella.report.papers import paper_report, write_report

STRANGE = '<script>alert("x")</script> | `a` _b_ $c$ *d* [e](f)'


def made(*results: Result, paper: Paper = PAPER, quick: bool = False) -> dict[str, str]:
    return paper_report(paper, results, quick=quick)


def words(files: dict[str, str]) -> tuple[str, str]:
    """Return the words of both pages without their markup."""
    plain = re.sub(r"\\(.)", r"\1", files["README.md"]).replace("**", "")
    return plain, Reader(files["page.html"]).text


def sound(files: dict[str, str]) -> None:
    """Check what holds for every report."""
    reader = Reader(files["page.html"])
    assert reader.open == []
    ids = [attributes["id"] for _, attributes in reader.tags if "id" in attributes]
    assert len(set(ids)) == len(ids)
    for text in (*words(files), *files.values()):
        assert not re.search(r"\b(None|nan|inf|NaN|Infinity)\b", text)
    counts: list[int] = []
    for line in [*files["README.md"].splitlines(), ""]:
        if line.startswith("|"):
            counts.append(len(re.findall(r"(?<!\\)\|", line)))
        else:
            assert len(set(counts)) <= 1, counts
            counts = []
    pictures = re.findall(r"\]\((plots/[^)]*)\)", files["README.md"])
    assert sorted(pictures) == sorted(files.keys() - {"README.md", "page.html"})
    for name in pictures:
        assert ElementTree.fromstring(files[name]).tag.endswith("svg")
        assert "currentColor" not in files[name]


def both_say(files: dict[str, str], *texts: str) -> None:
    sound(files)
    for page in words(files):
        for text in texts:
            assert text in page, text


def both_lack(files: dict[str, str], *texts: str) -> None:
    for page in words(files):
        for text in texts:
            assert text not in page, text


def section(files: dict[str, str], title: str) -> str:
    """Return a section of the Markdown."""
    _, _, rest = files["README.md"].partition(f"## {title}\n")
    assert rest, title
    return rest.partition("\n## ")[0]


def row(text: str, start: str) -> list[str]:
    """Return the cells of a row of a Markdown table."""
    found = [line for line in text.splitlines() if line.startswith(f"| {start} |")]
    assert len(found) == 1, (start, found)
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", found[0])[1:-1]]


def test_the_lead_counts_runs_numbers_claims_and_minutes() -> None:
    both_say(
        made(*three_each()),
        "A Made Paper",
        "2 of 2 recipes have run, 6 of their 6 runs.",
        "6 printed numbers: 1 within, 2 below, 1 not run, 1 cited only, 1 no number.",
        "3 claims of the paper: 1 holds, 1 does not hold, 1 undecided.",
        "1 question of our own: 1 holds.",
        "9.0 device minutes on NVIDIA H200.",
        "Numerics version 2, bf16.",
        "What to know first.",
    )


def test_claims_have_verdict_source_statistic_and_seeds() -> None:
    files = made(*three_each(), result(WITH, 3))
    both_say(files, "Claim true.", "Claim false.", "Claim open.", "Figure of open.", "What the paper claims")
    claims = section(files, "What the paper claims")
    assert row(claims, "holds")[1:] == ["Claim true.", "section 3", "Figure of true.", "4"]
    assert row(claims, "does not hold")[1:] == ["Claim false.", "section 3", "Figure of false.", "4"]
    # fewest runs of anything that it rests on.
    assert row(claims, "undecided")[1:] == ["Claim open.", "section 3", "Figure of open.", "3"]
    assert row(section(files, "What else we asked"), "holds")[1:] == ["Claim mine.", "Figure of mine.", "4"]
    assert "Section 3. Seeds: 3." in words(files)[1]


def test_a_claim_without_results_is_undecided() -> None:
    files = made()
    assert row(section(files, "What else we asked"), "undecided")[2:] == ["Not run: table1/with.", "none"]


def test_a_grid_has_ours_printed_and_the_verdict() -> None:
    files = made(*three_each())
    both_say(files, "Table 1: Test accuracy", "Accuracy on the test images at the end, in %.", "9.0 device minutes.")
    assert row(section(files, "Table 1: Test accuracy"), "one net")[1:] == [
        "10.33 ± 0.58 (3)<br>printed 15.8<br>▼ below",
        "99.00 ± 0.10 (3)<br>printed 99.0<br>✓ within",
    ]
    assert "<span>99.00 ± 0.10 (3)</span><span>printed 99.0</span><span>✓ within</span>" in files["page.html"]
    assert '<span class="off">▼ below</span>' in files["page.html"]


def test_what_has_not_run_says_so_and_one_run_has_no_spread() -> None:
    files = made(result(WITH, 4, 0.9951))
    sound(files)
    table = section(files, "Table 1: Test accuracy")
    assert row(table, "one net")[1:] == ["not run<br>printed 15.8", "99.51 (1)<br>printed 99.0<br>▲ above"]
    assert row(table, "no bias")[1:] == ["not run", "", "", "15.8", "not run", "", "", ""]
    assert row(table, "bias")[1:] == ["99.51 (1)", "100.51 (1)", "99.51", "99.0", "▲ above", "4", "12,345", "1.5"]


def test_the_detailed_list_has_the_best_epoch_and_says_how_it_is_chosen() -> None:
    files = made(*three_each())
    table = section(files, "Table 1: Test accuracy")
    both_say(files, "The best epoch is chosen by the test images themselves.", "Each recipe")
    assert row(table, "bias") == [
        *("bias", "99.00 ± 0.10 (3)", "100.00 ± 0.10 (3)", "98.90, 99.00, 99.10"),
        *("99.0", "✓ within", "0 to 2", "12,345", "4.5"),
    ]
    # a table of another reading has none.
    assert "best" not in section(files, "Where learning starts")


def test_a_list_has_one_recipe_a_row_and_a_net_that_never_starts_says_never() -> None:
    files = made(*three_each(), result(WITH, 3, starts=999))
    both_say(files, "Where learning starts", "The step at which learning starts.", "A note of the table.")
    table = section(files, "Where learning starts")
    assert row(table, "no bias")[1:3] == ["never (3)", "never, never, never"]
    assert row(table, "bias")[1:] == [
        *("117 ± 28.9 (3 of 4), never (1 of 4)", "100, 100, 150, never"),
        *("0 to 3", "12,345", "6.0"),
    ]


def test_a_run_that_ended_otherwise_is_named_in_its_tables() -> None:
    broken = result(WITH, 1, None, status="non-finite", curve={"step": [], "loss": [], "accuracy": []})
    files = made(result(WITH, 0), broken, result(WITHOUT, 0, 0.1, status="not reached"), paper=replace(PAPER, plots=()))
    both_say(files, "Runs that ended as “non-finite”: bias, seed 1.", "Runs that ended as “not reached”: no bias, seed 0.")
    for title in ("Table 1: Test accuracy", "Where learning starts"):
        assert "non-finite" in section(files, title)
    assert row(section(files, "Table 1: Test accuracy"), "bias")[1:4] == [
        "99.00 (1 of 2)",
        "100.00 (1 of 2)",
        "99.00, no figure",
    ]
    assert row(section(files, "All printed numbers"), "table1/with")[-1] == "1 run came to no number"
    alone = made(broken, paper=replace(PAPER, plots=()))
    assert row(section(alone, "Table 1: Test accuracy"), "bias")[1] == "no figure (1)"
    sound(alone)


def test_all_printed_numbers_are_listed_with_roles_and_remarks() -> None:
    files = made(*three_each())
    numbers = section(files, "All printed numbers")
    for key in PAPER.targets:
        assert key in words(files)[1]
    assert row(numbers, "table1/without")[1:8] == ["Table 1", "test accuracy, %", "15.8", "10.33", "0.58", "3", "▼ below"]
    assert row(numbers, "table1/cited")[1:] == [
        *("Table 1", "test accuracy, %", "97.1", "", "", "", "cited only", "quoted from others"),
    ]
    # what is worked out is of no run in particular, and no number of the text has a spread: these columns are left out.
    assert row(numbers, "text/batch-size")[1:] == [
        *("text", "setting", "batch size, count", "256", "128", "▼ below", "half of it fits"),
    ]
    assert row(numbers, "text/size")[1:] == ["text", "size", "parameters, M", "8.2M", "", "not run", ""]
    assert row(numbers, "text/order")[1:] == ["text", "analytic", "time", r"\$O(n^2)\$", "", "no number", ""]


def test_it_is_said_how_it_was_done() -> None:
    other = result(WITH, 3, environment={**result().environment, "torch": "2.13.0", "commit": None}, implementations=())
    files = made(*three_each(), other)
    both_say(
        files,
        "Adam, not SGD",
        f"our own departure ({WITH.removeprefix('made2024/')}; 1 of 2 recipes)",
        "two standard errors of ours",
        "of 3 runs or more",
        "A run that several tables show counts in each of them, and once in all.",
        "67d73df1e33c+ (6 runs), unknown (1 run)",
        "2.11.0 (6 runs), 2.13.0 (1 run)",
        "agreement (vote_and_route): fused (6 runs), none (1 run)",
        "60,000 images, digest abcdef012345",
        "compiled",
        "capsella reproduce made2024",
    )
    both_lack(files, "short versions", "Adam, not SGD (")


def test_two_devices_are_told_apart() -> None:
    other = result(WITHOUT, 0, environment={**result().environment, "device": "a CPU", "numerics": 3})
    both_say(
        made(result(), other),
        "1.5 device minutes on a CPU; 1.5 device minutes on NVIDIA H200.",
        "Numerics version 3 (1 run), 2 (1 run), bf16.",
    )


def test_short_versions_are_no_reproduction_and_judge_no_number() -> None:
    files = made(*(replace(each, quick=True) for each in three_each()), quick=True)
    both_say(
        files,
        "These are short versions on a CPU. They show directions and are no reproduction",
        "6 printed numbers: 3 with one of ours beside it, none judged.",
        "1 holds",
        "epochs = 1",
        "capsella reproduce made2024 --quick",
    )
    both_lack(files, "within", "below,", "▼", "▲", "not judged", "standard errors")
    assert row(section(files, "Table 1: Test accuracy"), "one net")[1:] == [
        *("10.33 ± 0.58 (3)<br>printed 15.8", "99.00 ± 0.10 (3)<br>printed 99.0"),
    ]
    assert row(section(files, "All printed numbers"), "text/batch-size")[1:] == [
        *("text", "setting", "batch size, count", "256", "128", "half of it fits"),
    ]
    assert files["README.md"].index("> **These are short") < files["README.md"].index("2 of 2 recipes")
    assert "before anything is shortened" not in made(*three_each())["README.md"]


def test_short_and_whole_runs_are_not_mixed() -> None:
    with pytest.raises(
        ValueError, match=r"^results has the short version of 'made2024/table1/with/quick-seed-0'; expected whole runs"
    ):
        made(result(quick=True))
    with pytest.raises(ValueError, match=r"^results has a whole run of .* expected short versions, as quick=True says$"):
        made(result(), quick=True)


def test_results_of_other_recipes_are_left_out() -> None:
    assert made(*three_each(), result("made2024/gone/x", 0, 0.5)) == made(*three_each())


def test_the_order_of_results_does_not_matter_and_the_same_records_give_the_same_bytes() -> None:
    assert made(*three_each()) == made(*three_each()) == made(*reversed(three_each()))


def test_without_any_result_the_pages_are_sound() -> None:
    files = made()
    both_say(files, "0 of 2 recipes have run, 0 of their 6 runs.", "not run")
    both_lack(files, "device minutes.")
    assert list(files) == ["README.md", "page.html"]


def test_a_grid_that_does_not_fit_is_an_error() -> None:
    wrong = replace(PAPER, tables=(Table("table1", "", "x", (WITH,), rows=("a", "b"), columns=("c",)),))
    with pytest.raises(ValueError, match=r"^table 'table1' has 1 recipes; expected 2 rows of 1$"):
        made(result(), paper=wrong)


def test_strange_names_are_shown_as_they_are() -> None:
    strange = replace(
        PAPER,
        title=STRANGE,
        recipes=(recipe(WITHOUT, STRANGE), recipe(WITH, STRANGE, departures=(f"# {STRANGE}",))),
        tables=(
            Table("table1", STRANGE, STRANGE, (WITHOUT, WITH), rows=(STRANGE,), columns=(STRANGE, "b"), note=f"1. {STRANGE}"),
        ),
        plots=(replace(PAPER.plots[0], title=STRANGE),),
        claims=(replace(claim("x", True), text=STRANGE, source=STRANGE),),
        remarks={"table1/with": STRANGE},
        says=(f"- {STRANGE}",),
        beyond=STRANGE,
    )
    files = made(result(status=STRANGE, environment={**result().environment, "device": STRANGE}), paper=strange)
    sound(files)
    assert "<script" not in files["page.html"]
    assert "<script" not in "".join(files.values())
    text = files["README.md"]
    assert r"&lt;script>alert(" in text
    assert r"\| \`a\` \_b\_ \$c\$ \*d\* \[e\](f)" in text
    assert re.search(r"^1\\\. ", text, re.MULTILINE)
    assert re.search(r"^\\- &lt;script", text, re.MULTILINE)
    assert re.search(r"^- \\# &lt;script", text, re.MULTILINE)
    assert Reader(files["page.html"]).text.count(STRANGE) > 8


def test_plots_stand_with_their_table_and_those_of_none_at_the_end() -> None:
    files = made(*three_each())
    assert {name for name in files if name.startswith("plots/")} == {
        "plots/table1.svg",
        "plots/table1-more.svg",
        "plots/alone.svg",
    }
    assert re.findall(r"!\[.*?\]\((.*?)\)", section(files, "Table 1: Test accuracy")) == [
        "plots/table1.svg",
        "plots/table1-more.svg",
    ]
    assert "![Of no table](plots/alone.svg)" in section(files, "Further pictures")
    assert files["page.html"].count("<svg") == 3
    assert "currentColor" in files["page.html"]


def test_printed_lines_have_one_entry_in_the_legend_and_none_without_ours() -> None:
    svg = made(*three_each())["plots/table1.svg"]
    texts = [element.text for element in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]
    assert texts[-3:] == ["without", "with", "printed"]
    alone = made(result(WITH))["plots/table1.svg"]
    texts = [element.text for element in ElementTree.fromstring(alone).iter("{http://www.w3.org/2000/svg}text")]
    assert texts[-2:] == ["with", "printed"]


def test_a_point_that_is_not_finite_is_not_drawn() -> None:
    def endless(y: tuple[float, ...]) -> Plot:
        return Plot("table1", "x", "x", "y", lambda evidence: [Line("a", (1.0, 2.0), y, (0.1, float("nan")))])

    files = made(result(), paper=replace(PAPER, plots=(endless((0.5, float("inf"))),)))
    sound(files)
    assert "plots/table1.svg" in files
    nothing = made(result(), paper=replace(PAPER, plots=(endless((float("nan"), float("inf"))),)))
    assert "plots/table1.svg" not in nothing


def test_a_plot_for_which_a_figure_is_missing_is_named() -> None:
    def missing(evidence: object) -> list[Line]:
        raise Missing(WITH)

    plots = (replace(PAPER.plots[0], lines=missing), *PAPER.plots[1:])
    both_say(
        made(result(), paper=replace(PAPER, plots=plots)), f"Not drawn, for want of a figure of {WITH}: Accuracy by layer."
    )


def test_images_of_a_record_are_shown_with_their_table() -> None:
    sheet = pack(torch.rand(2, 3, 3, generator=torch.Generator().manual_seed(0)), columns=2)
    results = [replace(each, measured={"sheet": sheet}) for each in three_each()]

    def shown(evidence: Evidence) -> list[Panel]:
        return [Panel(STRANGE, evidence.results(WITH)[0].measured["sheet"])] if evidence.has(WITH) else []

    paper = replace(PAPER, plots=(Gallery("table1-drawn", "What is drawn", shown), *PAPER.plots))
    files = made(*results, paper=paper)
    sound(files)
    assert "![What is drawn](plots/table1-drawn.svg)" in section(files, "Table 1: Test accuracy")
    assert "data:image/png;base64" in files["page.html"]
    assert "<script" not in files["plots/table1-drawn.svg"]
    assert "plots/table1-drawn.svg" not in made(paper=paper)


def test_a_table_of_errors_has_the_lowest_beside_it() -> None:
    paper = replace(PAPER, tables=(Table("errors", "", "Errors", (WITH,), reading="error"),))
    files = made(*three_each(), paper=paper)
    both_say(files, "Error on the test images at the end, in %.", "The best epoch is chosen by the test images themselves.")
    assert row(section(files, "Errors"), "bias")[1:4] == ["1.00 ± 0.10 (3)", "0.00 ± 0.10 (3)", "1.10, 1.00, 0.90"]


def test_two_plots_of_one_title_share_no_id() -> None:
    plots = tuple(replace(plot, title="The same") for plot in PAPER.plots)
    sound(made(*three_each(), paper=replace(PAPER, plots=plots)))


@pytest.mark.parametrize("name", PAPERS)
def test_every_paper_has_pages_before_anything_has_run(name: str) -> None:
    paper = get_paper(name)
    files = paper_report(paper, [])
    sound(files)
    for key in paper.targets:
        assert key in files["README.md"].replace("\\", "")


def test_a_whole_paper_has_sound_pages() -> None:
    paper = get_paper("peer2022")
    results = [
        result(each.key, seed, 0.1 if "no-bias" in each.key else 0.9 + 0.01 * seed, starts=999 if "no-bias" in each.key else 50)
        for each in paper.recipes
        for seed in (0, 1, 2)
    ]
    files = paper_report(paper, results)
    sound(files)
    assert "not run" not in section(files, paper.tables[0].name + ": " + paper.tables[0].title)
    assert [name for name in files if name.startswith("plots/")]


def test_a_report_is_written_and_old_pictures_go(tmp_path: Path) -> None:
    folder = tmp_path / "papers" / "made2024"
    (folder / "plots").mkdir(parents=True)
    (folder / "plots" / "old.svg").write_text("old")
    (folder / "plots" / "mine.txt").write_text("not ours to take away")
    (folder / "table1").mkdir()
    files = made(*three_each())
    write_report(folder, files)
    assert {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()} == {*files, "plots/mine.txt"}
    for name, text in files.items():
        assert (folder / name).read_bytes() == text.encode()
    write_report(folder, made())
    assert not list((folder / "plots").glob("*.svg"))


def test_a_report_that_cannot_be_written_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_report(tmp_path, made(*three_each()))
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_report(tmp_path, made(result()))
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_what_our_own_questions_come_to_stands_above_them() -> None:
    answering = replace(PAPER, answer=lambda evidence: "It is so, as <asked>.")
    files = made(*three_each(), paper=answering)
    asked = section(files, PAPER.beyond)
    assert "It is so, as &lt;asked>." in asked
    assert "It is so, as &lt;asked&gt;." in files["page.html"]
    assert "It is so" not in made(*three_each())["README.md"]
