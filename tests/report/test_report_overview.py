"""The page of all papers and the table of claims: what the committed ones say is what the records say, and all of it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from urllib.parse import unquote

import pytest
from paper_stories import PAPER, WITH, WITHOUT, claim, result, three_each
from report_stories import Reader

from capsella.cli.reproduce_overview import write_overview
from capsella.papers.paper import current, get_paper
from capsella.papers.store import Store
from capsella.papers.targets import PAPERS, read_targets
from capsella.report.claims import BEGIN, END, claims_block, put_between
from capsella.report.overview import MARK, Chapter, chapter, overview

ROOT = Path(__file__).resolve().parents[2]
AGAIN = "run: capsella reproduce --page docs/results --claims README.md"
STRANGE = '<script>alert("x")</script> | `a` _b_ $c$'


@cache
def committed() -> tuple[Chapter, ...]:
    """Return what the committed records say."""
    store = Store(ROOT / "results" / "papers")
    return tuple(chapter(paper, current(paper, store)) for paper in map(get_paper, PAPERS))


def pages(prefix: str) -> dict[str, str]:
    return {
        name: f"{prefix}results/papers/{name}" for name in PAPERS if (ROOT / "results/papers" / name / "README.md").exists()
    }


def cells(text: str, start: str) -> list[list[str]]:
    """Return the cells of the rows of Markdown that begin so."""
    lines = [line for line in text.splitlines() if line.startswith(f"| {start} |")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


def numbers(text: str) -> list[str]:
    """Return the names of the printed numbers that a page in Markdown lists, paper by paper."""
    found = []
    for part in text.split("\n### Printed numbers of ")[1:]:
        paper, _, rest = part.partition("\n")
        rows = [line.split(" | ")[0].removeprefix("| ") for line in rest.partition("\n## ")[0].splitlines() if line[:2] == "| "]
        found += [f"{paper}/{key}" for key in rows[2:]]
    return found


def made(*chapters: Chapter) -> dict[str, str]:
    return overview(chapters, {"made2024": "../own"})


def test_the_committed_page_is_made_from_the_committed_records() -> None:
    files = overview(committed(), pages("../../"))
    assert {path.name for path in (ROOT / "docs/results").iterdir()} == set(files)
    for name, text in files.items():
        assert (ROOT / "docs/results" / name).read_bytes() == text.encode(), AGAIN


def test_the_readme_has_the_claims_as_the_committed_records_decide_them() -> None:
    text = (ROOT / "README.md").read_bytes().decode()
    assert put_between(text, claims_block(committed(), pages(""), "docs/results"), where="README.md") == text, AGAIN


def test_every_printed_number_and_every_claim_is_there_once() -> None:
    files = overview(committed(), {})
    wanted = [target.name for paper in PAPERS for target in read_targets(paper).values()]
    assert numbers(files["README.md"]) == wanted
    assert len(set(wanted)) == 326
    heads = Counter(Reader(files["index.html"]).text.split())
    for paper in PAPERS:
        for key in read_targets(paper):
            among = sum(key in read_targets(each) for each in PAPERS)
            assert heads[key] == among, key
    claims = [row[0] for each in committed() for row in each.claims.rows]
    assert [text for (text,) in claims] == [
        each.text
        for paper in map(get_paper, PAPERS)
        for each in sorted(paper.claims, key=lambda one: one.source.startswith("ours"))
    ]


def test_the_summary_adds_up() -> None:
    text = overview(committed(), {})["README.md"]
    for number in range(3):
        rows = [cells(text, name)[number][1:] for name in PAPERS]
        total = cells(text, "all")[number][1:]
        for k, of_all in enumerate(total):
            if of_all.replace(".", "").isdigit():
                assert sum(float(row[k]) for row in rows) == pytest.approx(float(of_all), abs=0.3), (number, k)
    (printed, *verdicts), (claims, *_) = (cells(text, "all")[number][1:] for number in (0, 1))
    assert printed == "326" == str(sum(map(int, verdicts[:-1])))
    assert int(claims) + int(cells(text, "all")[1][5]) == sum(len(get_paper(name).claims) for name in PAPERS)


def test_links_of_the_committed_pages_lead_somewhere() -> None:
    for path in (ROOT / "docs/results/README.md", ROOT / "README.md"):
        for link in re.findall(r"\]\(([^)#:]+)\)", path.read_text(encoding="utf-8")):
            assert (path.parent / unquote(link)).exists(), f"{path.name}: {link}"
    for tag in Reader((ROOT / "docs/results/index.html").read_text(encoding="utf-8")).every("a"):
        assert (ROOT / "docs/results" / unquote(tag["href"])).is_file(), tag


def test_a_changed_record_changes_page_and_table() -> None:
    runs = three_each()
    before, after = chapter(PAPER, runs), chapter(PAPER, [*runs[:-1], result(WITHOUT, 2, 0.12)])
    assert made(before)["README.md"] != made(after)["README.md"]
    assert made(before)["index.html"] != made(after)["index.html"]
    without = chapter(replace(PAPER, claims=PAPER.claims[1:]), runs)
    assert claims_block([before], {}) != claims_block([without], {})


def test_a_row_has_printed_ours_runs_verdict_and_remark() -> None:
    text = made(chapter(PAPER, three_each()))["README.md"]
    assert cells(text, "table1/without") == [
        ["table1/without", "Table 1", "test accuracy, %", "15.8", "10.33 ± 0.58", "3", "▼ below", ""]
    ]
    assert cells(text, "table1/cited")[0][4:] == ["", "", "cited only", "quoted from others"]
    # what is worked out is of no run in particular, and what is no result says so.
    assert cells(text, "text/batch-size")[0][2:] == [
        "batch size, count<br>setting",
        "256",
        "128",
        "",
        "▼ below",
        "half of it fits",
    ]
    assert cells(text, "text/size")[0][6] == "not run"
    assert cells(text, "text/order")[0][6] == "no number"
    assert cells(text, "made2024") == [
        ["made2024", "6", "1", "0", "2", "1", "1", "1", "0"],
        ["made2024", "3", "1", "1", "1", "1", "1", "0", "0"],
        ["made2024", "2", "2", "6", "6", "9.0", "NVIDIA H200"],
    ]


def test_what_stands_on_one_run_says_so() -> None:
    alone = chapter(PAPER, [result(WITH, 0), result(WITHOUT, 0, 0.1), result(WITHOUT, 1, 0.1)])
    files = made(alone)
    assert cells(files["README.md"], "table1/with")[0][5:7] == ["1", "✓ within<br>one run"]
    assert cells(files["README.md"], "table1/without")[0][5:7] == ["2", "▼ below"]
    assert cells(files["README.md"], "made2024")[0][-1] == "1"
    assert "<span>one run</span>" in files["index.html"]


def test_a_net_that_never_starts_keeps_mean_and_spread_apart_from_it() -> None:
    starting = replace(PAPER, recipes=(replace(PAPER.recipes[1], reads={"table1/with": "starts"}),), tables=(), plots=())
    runs = [result(WITH, seed, starts=starts) for seed, starts in enumerate((100, 150, 999))]
    text = made(chapter(starting, runs))["README.md"]
    assert re.fullmatch(r"[\d,.]+ ± [\d,.]+, never \(1 of 3\)", cells(text, "table1/with")[0][4])


def test_claims_of_the_paper_come_first_and_say_on_how_many_seeds_they_rest() -> None:
    mixed = replace(
        PAPER, claims=(claim("mine", True, source="ours, beside Table 1"), claim("true", True), claim("open", None))
    )
    text = made(chapter(mixed, three_each()))["README.md"]
    rows = [row for name in ("true", "open", "mine") for row in cells(text, f"Claim {name}.")]
    assert rows == [
        ["Claim true.", "section 3", "holds", "3"],
        ["Claim open.", "section 3", "undecided", "3"],
        ["Claim mine.", "ours, beside Table 1", "holds", "3"],
    ]
    assert text.index("Claim open.") < text.index("Claim mine.")
    assert cells(text, "made2024")[1][1:] == ["2", "1", "0", "1", "1", "1", "0", "0"]


def test_without_any_result_everything_is_there_and_nothing_has_run() -> None:
    nothing = [chapter(paper, []) for paper in map(get_paper, PAPERS)]
    files = overview(nothing, {})
    assert len(numbers(files["README.md"])) == 326
    assert "Its own page" not in "".join(files.values())
    block = claims_block(nothing, {})
    assert "<details>" not in block
    assert cells(block, "gu2021: Capsule Network is Not More Robust than Convolutional Network")[0][1:] == [
        *("0 of 65", "0", "0", "37", "none run")
    ]


def test_strange_names_are_shown_as_they_are() -> None:
    strange = replace(PAPER, title=STRANGE, claims=(replace(claim("x", True), text=STRANGE, source=STRANGE),))
    found = chapter(replace(strange, remarks={"table1/with": STRANGE}), three_each())
    files = made(found)
    for text in (*files.values(), claims_block([found], {})):
        assert "<script" not in text
    reader = Reader(files["index.html"])
    assert reader.open == []
    assert reader.text.count(STRANGE) >= 4
    assert r"\| \`a\` \_b\_ \$c\$" in files["README.md"]


def test_the_same_records_give_the_same_bytes() -> None:
    assert made(chapter(PAPER, three_each())) == made(chapter(PAPER, list(reversed(three_each()))))


@pytest.mark.parametrize(
    "text", ["", BEGIN, END, f"{END} {BEGIN}", f"{BEGIN} {END} {BEGIN} {END}", f"{BEGIN} {BEGIN} {END}", f"{BEGIN} {END} {END}"]
)
def test_a_text_without_its_two_marks_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"^a page has not the marks <!-- claims:begin --> and .* in this order$"):
        put_between(text, "x", where="a page")


def test_what_stands_around_the_marks_stays() -> None:
    text = f"# A\r\n\r\n{BEGIN}\nold\n{END}\r\nend"
    found = put_between(text, "new", where="a page")
    assert found == f"# A\r\n\r\n{BEGIN}\n\nnew\n\n{END}\r\nend"
    assert put_between(found, "new", where="a page") == found


def written(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_page_and_table_are_written_and_point_to_each_other(tmp_path: Path) -> None:
    store = Store(tmp_path / "re sults")
    (store.folder / "gu2021").mkdir(parents=True)
    (store.folder / "gu2021" / "README.md").write_text("its own page")
    (tmp_path / "README.md").write_text(f"{BEGIN}{END}")
    for _ in range(2):
        write_overview(store, tmp_path / "docs" / "results", tmp_path / "README.md")
    found = written(tmp_path)
    assert set(found) == {"README.md", "docs/results/README.md", "docs/results/index.html", "re sults/gu2021/README.md"}
    assert found["docs/results/README.md"].decode().startswith(MARK)
    assert b"(../../re%20sults/gu2021/README.md)" in found["docs/results/README.md"]
    assert b"(docs/results/README.md)" in found["README.md"]


def refused(store: Sequence[str], page: Path | None, claims: Path | None, says: str, folder: Path) -> None:
    before = written(folder)
    with pytest.raises(ValueError, match=says) as error:
        write_overview(Store(folder.joinpath(*store)), page, claims)
    assert "\n" not in str(error.value)
    assert written(folder) == before


def test_nothing_is_written_in_the_place_of_another_page_or_where_one_of_both_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("# mine")
    (tmp_path / "latin").write_bytes(b"\xe9")
    refused([], tmp_path, None, r"has a README.md that --page did not write; expected a folder of its own$", tmp_path)
    refused([], tmp_path / "latin", None, r"latin' is a file; expected a folder", tmp_path)
    refused([], tmp_path / "latin" / "x", None, r"latin/x cannot be written \(Not a directory\)", tmp_path)
    refused([], tmp_path / "new", tmp_path / "README.md", r"has not the marks", tmp_path)
    refused([], tmp_path / "new", tmp_path / "none.md", r"none.md cannot be read \(No such file", tmp_path)
    refused([], tmp_path / "new", tmp_path / "latin", r"latin cannot be read", tmp_path)
    assert not (tmp_path / "new").exists()
