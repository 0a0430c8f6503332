"""``capsella reproduce`` as a user calls it, with a paper of three rows that are run in a moment."""

from __future__ import annotations

import errno
import io
import json
import os
import shutil
import sys
import tarfile
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

import pytest

from capsella.cli import reproduce_progress
from capsella.papers import paper, store
from capsella.papers.executors import Done
from capsella.papers.paper import Paper, Table
from capsella.papers.recipe import Recipe
from capsella.papers.results import Result, to_json
from capsella.papers.store import Store
from capsella.papers.verdicts import Claim
from capsella.train.plan import Plan
from capsella.train.together import Standing

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "papers"))
from paper_harness import job, result
from running import capsella, in_process

PLAN = Plan("sign_capsnet", "sign", split="train", validate=None, test=False).changed(
    {"steps": 4, "batch_size": 64, "log_every": 1, "lr": 5e-3}
)
ROWS = tuple(
    Recipe(
        f"peer2022/table1/{row}",
        row,
        PLAN.changed({"model.bias": bias}),
        reads={f"table1/{row}": "training"},
        seeds=(0, 1),
        departures=("it is short",),
        quick={"steps": 2},
    )
    for row, bias in (("rba-no-bias", False), ("rba-bias", True))
)
MADE = Paper(
    "peer2022",
    "A made paper",
    recipes=ROWS,
    tables=(Table("table1", "Table 1", "Signs", tuple(each.key for each in ROWS), reading="training"),),
    claims=(Claim("peer2022/x", "Something holds.", "ours", tuple(each.key for each in ROWS), lambda _: (True, "so it is")),),
)


@pytest.fixture(autouse=True)
def _made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    real = paper.get_paper
    monkeypatch.setattr(paper, "get_paper", lambda name: MADE if name == "peer2022" else real(name))
    monkeypatch.chdir(tmp_path)


def reproduce(*arguments: str) -> tuple[int, str, str]:
    return in_process("reproduce", *arguments, "--device", "cpu", "--executor", "here")


def test_a_paper_is_run_and_laid_beside_its_numbers() -> None:
    code, out, err = reproduce("peer2022")
    assert code == 0, err
    assert err.splitlines()[0].startswith("about ")
    assert "for 4 runs (4 roughly, by the device's rate alone)" in err
    # every row once before any twice.
    rows = [line.split()[3] for line in err.splitlines()[1:]]
    assert rows == [f"table1/{row}/seed-{seed}:" for seed in (0, 1) for row in ("rba-no-bias", "rba-bias")]
    assert "table1/rba-bias" in out
    assert "99.70" in out
    assert "so it is" in out
    assert "results/papers/peer2022/page.html has all of it" in out
    records = sorted(Path("results/papers/peer2022").glob("table1/*/seed-*.json"))
    assert len(records) == 4
    assert "Something holds." in Path("results/papers/peer2022/README.md").read_text()
    assert "Something holds." in Path("results/papers/peer2022/page.html").read_text()
    # nothing of the runs is left.
    assert not list(Path("runs/reproduce").glob("*/*"))
    code, out, err = reproduce("peer2022")
    assert (code, err) == (0, "")
    assert "all 4 runs are recorded in results/papers" in out


def test_seeds_rows_and_tables_are_picked() -> None:
    assert reproduce("peer2022/table1/rba-bias", "--seeds", "1")[0] == 0
    assert [path.parent.name for path in Path("results/papers").rglob("seed-*.json")] == ["rba-bias"]
    code, _out, err = reproduce("peer2022", "--seeds", "3")
    assert code == 0
    assert "for 5 runs" in err
    assert "; 1 more are recorded" in err
    assert len(list(Path("results/papers").rglob("seed-*.json"))) == 6


def test_several_are_picked_at_once_and_run_in_that_order(monkeypatch: pytest.MonkeyPatch) -> None:
    other = tuple(replace(row, key=row.key.replace("peer2022", "gu2021"), reads={}) for row in ROWS)
    papers = {"peer2022": MADE, "gu2021": Paper("gu2021", "Another", recipes=other)}
    monkeypatch.setattr(paper, "get_paper", papers.__getitem__)
    asked = ("gu2021/table1/rba-bias", "peer2022", "gu2021/table1/rba-bias")
    code, out, err = reproduce(*asked, "--seeds", "2")
    assert code == 0, err
    assert "for 6 runs" in err
    rows = [line.split()[3] for line in err.splitlines()[1:]]
    once = ["rba-bias", "rba-no-bias", "rba-bias"]
    assert rows == [f"table1/{row}/seed-{seed}:" for seed in (0, 1) for row in once]
    assert len(list(Store().all("gu2021/"))) == 2
    assert "results/papers/gu2021/page.html has all of it" in out
    assert "results/papers/peer2022/page.html has all of it" in out
    code, out, err = in_process("reproduce", "gu2021", "peer2022", "--status")
    assert (code, err) == (0, "")
    assert out.index("gu2021: Another") < out.index("peer2022: A made paper")
    assert in_process("reproduce", "peer2022", "gu2021/table9")[0] == 2


def test_the_short_version_goes_elsewhere() -> None:
    code, out, _ = in_process("reproduce", "peer2022", "--quick", "--executor", "here")
    assert code == 0
    assert not Path("results").exists()
    (first, _second) = sorted(Path("runs/reproduce-quick/peer2022/table1").glob("*/quick-seed-0.json"))
    content = json.loads(first.read_text())
    assert (content["quick"], content["steps"], content["environment"]["device_type"]) == (True, 2, "cpu")
    assert "which are no reproduction" in out
    assert "short versions" in Path("runs/reproduce-quick/peer2022/README.md").read_text()


def test_status_runs_nothing() -> None:
    code, out, err = in_process("reproduce", "peer2022", "--status")
    assert (code, err) == (0, "")
    assert "not run" in out
    assert not Path("results").exists()
    assert not Path("runs").exists()
    reproduce("peer2022/table1/rba-bias", "--seeds", "1")
    code, out, _ = in_process("reproduce", "peer2022", "--status")
    row = next(line for line in out.splitlines() if "peer2022/table1" in line)
    assert [cell.strip() for cell in row.split("│")[3:7]] == ["2", "1", "1", "4"]
    # of one row, only that one is counted.
    code, out, _ = in_process("reproduce", "peer2022/table1/rba-no-bias", "--status")
    row = next(line for line in out.splitlines() if "peer2022/table1" in line)
    assert [cell.strip() for cell in row.split("│")[3:8]] == ["1", "0", "0", "2", "0.0"]
    code, out, _ = in_process("reproduce")
    row = next(line for line in out.splitlines() if "peer2022" in line)
    assert [cell.strip() for cell in row.split("│")[3:7]] == ["44", "2", "1", "1"]


def test_results_move_in_an_archive(tmp_path: Path) -> None:
    code, out, err = reproduce("peer2022", "--export", "all.tar.gz", "--out", "there")
    assert code == 0
    assert "all.tar.gz has 4 results" in err
    code, out, err = in_process("reproduce", "--import", "all.tar.gz")
    assert code == 0
    assert "4 new results, 0 replaced, 0 here already" in out
    assert len(list(Store().all())) == 4
    # its page is made of them.
    assert Path("results/papers/peer2022/page.html").is_file()
    code, out, err = in_process("reproduce", "--export", "again.tar.gz")
    assert (code, err) == (0, "again.tar.gz has 4 results\n")
    assert Path("again.tar.gz").read_bytes() == Path("all.tar.gz").read_bytes()
    assert in_process("reproduce", "--import", "all.tar.gz")[1] == "all.tar.gz: 0 new results, 0 replaced, 4 here already\n"


def test_time_that_is_up_leaves_the_rest_for_the_same_command() -> None:
    code, _out, err = reproduce("peer2022", "--max-minutes", "0.00001")
    assert code == 0
    assert "none of 4 runs fits into --max-minutes=1e-05; the shortest should take about 0." in err
    assert reproduce("peer2022")[0] == 0
    assert len(list(Store().all())) == 4


def test_a_run_that_fails_is_said_and_exits_with_one(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = replace(MADE, recipes=(ROWS[0], replace(ROWS[1], measures=("peer2022.nothing",))))
    monkeypatch.setattr(paper, "get_paper", lambda name: broken)
    code, _out, err = reproduce("peer2022", "--seeds", "1")
    assert code == 1
    assert "rba-bias/seed-0: AttributeError" in err
    assert len(list(Store().all())) == 1
    assert Path("results/papers/peer2022/page.html").is_file()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("peer2023",), "paper='peer2023' is unknown; did you mean 'peer2022'"),
        (("peer2022/table2",), "table of peer2022='table2' is unknown; did you mean 'table1'"),
        (("peer2022", "--seeds", "0"), "--seeds=0 is too small; expected an int of at least 1"),
        (("peer2022", "--jobs", "0"), "--jobs=0 is too small; expected an int of at least 1"),
        (("peer2022", "--max-minutes", "0"), "--max-minutes=0.0"),
        (("peer2022", "--executor", "slurm"), "--executor='slurm' is unknown"),
        (("peer2022", "--device", "tpu"), "device='tpu' is unknown"),
        (("peer2022", "--precision", "fp8"), "precision='fp8' is unknown"),
        (("peer2022", "--executor", "workers"), "--executor=workers lets what is under way come to its end"),
        (("peer2022", "--export", "/dev/null/a.tar.gz"), "export='/dev/null/a.tar.gz' cannot be written"),
        (("peer2022", "--seeds", "1001"), "--seeds=1001 is too large; expected an int of at most 1000"),
        (("peer2022", "--status", "--seeds", "100000"), "--seeds=100000 is too large; expected an int of at most 1000"),
        (("--import", "nowhere.tar.gz"), "import='nowhere.tar.gz' cannot be read (No such file or directory); expected what"),
        (("--import", "/dev/null/a.tar.gz"), "import='/dev/null/a.tar.gz' cannot be read (Not a directory); expected what"),
        (("--import", "."), "import='.' cannot be read (Is a directory); expected what --export wrote"),
        (("--status", "--out", "/dev/null"), "--out='/dev/null' is no folder; expected a folder of yours for results"),
        (("peer2022", "--status", "--out", "/dev/null"), "--out='/dev/null' is no folder"),
        (("peer2022", "--out", "/dev/null/a"), "--out='/dev/null/a' is in /dev/null, which is no folder"),
        (("--export", "a.tar.gz", "--out", "/dev/null"), "--out='/dev/null' is no folder"),
    ],
)
def test_a_mistake_is_one_line_and_nothing_is_written(arguments: tuple[str, ...], says: str) -> None:
    code, out, err = in_process("reproduce", *arguments)
    assert (code, out) == (2, "")
    assert says in err
    assert err.count("\n") == 1
    assert not list(Path().iterdir())


def archive_of(*results: Result) -> str:
    """Write an archive of results, without a folder of them."""
    source = Store("source")
    for each in results:
        source.write(each)
    source.export("made.tar.gz")
    shutil.rmtree("source")
    return "made.tar.gz"


def test_a_damaged_result_is_named_in_an_archive_and_in_the_folder() -> None:
    good, text = result("peer2022/table1/rba-bias"), to_json(result("peer2022/table1/rba-bias", seed=1))
    damaged = text.replace('"device_seconds": 10.0', '"device_seconds": "abc"')
    with tarfile.open("bad.tar.gz", "w:gz") as packed:
        for name, content in (("good.json", to_json(good)), ("bad.json", damaged)):
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            packed.addfile(entry, io.BytesIO(content.encode()))
    code, out, err = in_process("reproduce", "--import", "bad.tar.gz")
    says = "is damaged: device_seconds='abc'; expected a number of at least 0"
    assert (code, out, err) == (1, "", f"capsella: bad.tar.gz, 'bad.json' {says}\n")
    assert not Path("results").exists()
    path = Store().write(good)
    path.with_name("seed-1.json").write_text(damaged)
    for arguments in (("peer2022", "--status"), ("peer2022",), ()):
        code, _, err = in_process("reproduce", *arguments)
        assert (code, err.splitlines()[-1]) == (
            1,
            f"capsella: {path.with_name('seed-1.json')} {says}; take it away, and the run is made again",
        )
        assert len(err.splitlines()) == 1


def test_a_place_that_results_cannot_go_to_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    file = archive_of(result("peer2022/table1/rba-bias"))
    code, out, err = in_process("reproduce", "--import", file, "--out", file)
    assert (code, out, err) == (2, "", f"capsella: --out='{file}' is no folder; expected a folder of yours for results\n")
    Path("mine").mkdir(mode=0o555)
    for arguments in (("--import", file), ("peer2022", "--device", "cpu")):
        code, out, err = in_process("reproduce", *arguments, "--out", "mine")
        assert (code, out) == (2, "")
        assert err == "capsella: --out='mine' cannot be written to; expected a folder of yours for results\n"
    # to be read it need not be.
    assert in_process("reproduce", "peer2022", "--status", "--out", "mine")[0] == 0

    def full(_handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("capsella.data.places.os.fsync", full)
    code, out, err = in_process("reproduce", "--import", file)
    path = "results/papers/peer2022/table1/rba-bias/seed-0.json"
    says = f"{path} cannot be written (No space left on device); the same command goes on once it can be"
    assert (code, out, err) == (1, "", f"capsella: {says}\n")


def test_a_page_of_a_paper_that_cannot_be_written_is_said() -> None:
    file = archive_of(result("peer2022/table1/rba-bias"))
    Path("results/papers/peer2022/page.html").mkdir(parents=True)
    code, _, err = in_process("reproduce", "--import", file)
    says = "results/papers/peer2022 cannot be written (Is a directory); the same command goes on once it can be"
    assert (code, err) == (1, f"capsella: {says}\n")


def test_a_disc_that_is_full_in_mid_run_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    real = store.whole_or_nothing

    def full(path: Path) -> AbstractContextManager[BinaryIO]:
        if path.name == "seed-1.json":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(path)

    with monkeypatch.context() as patch:
        patch.setattr(store, "whole_or_nothing", full)
        code, _, err = reproduce("peer2022")
    assert code == 1
    assert err.splitlines()[-1] == (
        "capsella: results/papers/peer2022/table1/rba-no-bias/seed-1.json cannot be written (No space left on device); "
        "the same command goes on once it can be"
    )
    assert "Traceback" not in err
    code, _, err = reproduce("peer2022")
    assert code == 0
    assert "; 2 more are recorded" in err


def test_of_no_results_no_archive_is_written() -> None:
    says = "results/papers has no results; a.tar.gz is not written"
    assert in_process("reproduce", "--export", "a.tar.gz") == (1, "", f"capsella: {says}\n")
    assert in_process("reproduce", "peer2022", "--status", "--export", "a.tar.gz")[::2] == (1, f"capsella: {says}\n")
    code, _, err = reproduce("peer2022", "--max-minutes", "0.00001", "--export", "a.tar.gz")
    assert (code, err.splitlines()[-1]) == (0, says)
    assert not Path("a.tar.gz").exists()
    Path("folder").mkdir()
    code, _, err = reproduce("peer2022", "--export", "folder")
    assert (code, err) == (
        2,
        "capsella: export='folder' cannot be written (Is a directory); expected a file in a folder of yours\n",
    )


def test_results_that_do_not_count_are_told() -> None:
    own = result("peer2022/table1/rba-bias", fingerprint=ROWS[1].job(0).fingerprint)
    old = result("peer2022/table1/rba-bias", seed=1)
    unknown = result("peer2022/table1/rba-no-such"), result("nobody2020/table1/row")
    older = "1 of another version of the recipe or of the arithmetic"
    assert "do not count" not in in_process("reproduce", "--import", archive_of(own))[1]
    file = archive_of(own, old, *unknown)
    code, out, _ = in_process("reproduce", "--import", file)
    assert code == 0
    line = f"results that do not count: {older}, 2 of a row that nobody knows"
    assert out.splitlines() == [f"{file}: 3 new results, 0 replaced, 1 here already", line]
    # again: what is here is asked whether it counts, of whatever paper.
    code, out, _ = in_process("reproduce", "--import", file)
    assert (code, out.splitlines()) == (0, [f"{file}: 0 new results, 0 replaced, 4 here already", line])
    assert line in in_process("reproduce")[1].splitlines()
    own_line = f"results that do not count: {older}, 1 of a row that nobody knows"
    assert own_line in in_process("reproduce", "peer2022", "--status")[1].splitlines()
    code, out, _ = in_process("reproduce", "peer2022/table1/rba-no-bias", "--status")
    assert "results that do not count: 1 of a row that nobody knows" in out.splitlines()
    assert "do not count" not in in_process("reproduce", "peer2022", "--status", "--quick", "--out", "results/papers")[1]


def test_without_torch_the_help_is_there() -> None:
    done = capsella("reproduce", "--help")
    assert done.returncode == 0
    assert "PAPER" in done.stdout
    assert "--max-minutes" in done.stdout


def test_the_table_shows_what_is_under_way(tmp_path: Path) -> None:
    table = reproduce_progress.Table(5, 120.0, tmp_path)
    asked = job("a")
    event = {"event": "log", "step": 30, "accuracy": 0.5, "loss": 0.25}
    grid = table._grid([Standing(asked.plan, tmp_path / asked.name, 30, 60, event)], table._start + 60)
    assert grid.title == "0 of 5 runs done, 1.0 of about 2.0 min"
    cells = [list(column.cells) for column in grid.columns]
    assert cells == [["table1/a/seed-0"], ["30"], ["60"], ["50.00%"], ["0.2500"]]


def test_without_a_terminal_a_line_comes_now_and_then(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(reproduce_progress, "_WORD_EVERY", 0)
    asked = job("a")
    with reproduce_progress.Table(5, 120.0, tmp_path) as table:
        table([Standing(asked.plan, tmp_path / asked.name, 3, 6, {"step": 3, "accuracy": 0.5, "loss": 0.25})])
        table.ended(Done(asked, result(validation=(0.75,), status="not reached")))
        table.ended(Done(asked, None, "no room"))
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "0.0 of about 2.0 min: 0 of 5 runs done, 1 under way at step 3 of 6, loss 0.2500, accuracy 50.00%"
    assert lines[1] == (
        "1 of 5  table1/a/seed-0: not reached, 75.00% of the test images right, 50.00% of the training batches, 20 s"
    )
    assert lines[2] == "2 of 5  table1/a/seed-0: no room"


def test_all_papers_on_one_page_and_the_claims_between_their_marks() -> None:
    code, out, err = in_process("reproduce", "--page", "docs/results")
    assert (code, out, err) == (0, "", "docs/results/index.html written\n")
    # nothing of the one paper has run, so that it has no page of its own.
    assert "](../../results" not in Path("docs/results/README.md").read_text()
    Path("README.md").write_text("# Mine\n\n<!-- claims:begin -->\n<!-- claims:end -->\n\nThe end.\n")
    code, out, err = reproduce("peer2022", "--page", "docs/results", "--claims", "README.md")
    assert code == 0, err
    assert err.endswith("docs/results/index.html and README.md written\n")
    page, claims = Path("docs/results/README.md").read_text(), Path("README.md").read_text()
    assert "(../../results/papers/peer2022/README.md)" in page
    assert "| table1/rba-bias | Table 1 |" in page
    assert "| Something holds. | ours | holds | 2 |" in claims
    assert "(docs/results/README.md)" in claims
    assert claims.startswith("# Mine\n\n<!-- claims:begin -->")
    assert claims.endswith("<!-- claims:end -->\n\nThe end.\n")
    code, out, err = reproduce("peer2022", "--status", "--claims", "README.md")
    assert code == 0, err
    assert "(docs/results/README.md)" not in Path("README.md").read_text()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--claims", "none.md"), "none.md cannot be read (No such file or directory); expected a text file"),
        (("--claims", "plain.md"), "claims='plain.md' has not the marks"),
        (("--page", "plain.md"), "page='plain.md' is a file; expected a folder"),
        (("--page", "mine"), "page='mine' has a README.md that --page did not write; expected a folder of its own"),
        (("--page", "new", "--quick"), "--page and --claims are of whole runs; expected them without --quick"),
    ],
)
def test_a_page_that_cannot_be_written_is_one_line_before_anything_is_run(arguments: tuple[str, ...], says: str) -> None:
    Path("plain.md").write_text("# Plain\n")
    Path("mine").mkdir()
    Path("mine/README.md").write_text("# Mine\n")
    before = sorted(Path().rglob("*"))
    code, out, err = reproduce("peer2022", *arguments)
    assert (code, out) == (2, "")
    assert err.startswith(f"capsella: {says}")
    assert len(err.splitlines()) == 1
    assert sorted(Path().rglob("*")) == before
