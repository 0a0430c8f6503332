"""Printed beside found: each verdict, each bound, and what is said where something is missing."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from capsella.papers.deciding import fewest_runs
from capsella.papers.readings import READINGS, dig
from capsella.papers.targets import Target
from capsella.papers.verdicts import Claim, Evidence, Verdict, judge, judge_all

sys.path.insert(0, str(Path(__file__).resolve().parent))
from paper_harness import result


def target(value: float | None = 99.0, printed: str = "99.0", **changes: Any) -> Target:
    usual: dict[str, Any] = {"std": None, "unit": "%", "role": "result", "config": {}, "cited": False, "note": ""}
    usual |= {"paper": "peer2022", "key": "table2/x", "table": "Table 2", "metric": "test accuracy"}
    return Target(**{**usual, "value": value, "printed": printed, **changes})


@pytest.mark.parametrize(
    ("ours", "std", "says"),
    [
        # one run or two have no spread of their own: the same when rounded as printed, or not.
        ((99.04,), None, "within"),
        ((99.06,), None, "above"),
        ((98.94,), None, "below"),
        ((98.9, 99.1), None, "within"),
        ((98.0, 99.8), None, "below"),
        # the paper's own spread, whatever the number of runs.
        ((98.6,), 0.4, "within"),
        ((98.5,), 0.4, "below"),
        ((99.44,), 0.4, "within"),
        # three runs or more: two standard errors of ours.
        ((98.0, 99.0, 100.0), None, "within"),
        # mean 100, standard error 1/√3: 2 · 0.577 + 0.05 = 1.2.
        ((99.0, 100.0, 101.0), None, "within"),
        ((99.3, 100.3, 101.3), None, "above"),
        ((99.2, 99.2, 99.2), None, "above"),
        ((97.9, 97.9, 97.9, 97.9), 1.06, "within"),
        ((), None, "not run"),
    ],
)
def test_a_number_is_within_above_or_below(ours: Sequence[float], std: float | None, says: str) -> None:
    verdict = judge(target(std=std), list(ours))
    assert verdict.says == says
    assert verdict.values == tuple(ours)


def test_the_bound_is_said() -> None:
    verdict = judge(target(), [99.0, 100.0, 101.0])
    assert verdict.bound == pytest.approx(2 / math.sqrt(3) + 0.05)
    assert verdict.mean == 100.0
    assert verdict.spread == 1.0
    assert judge(target(), [99.0]).spread is None


def test_what_a_paper_only_cites_is_not_judged() -> None:
    assert judge(target(cited=True), [99.0]).says == "cited only"


def test_a_run_that_came_to_no_number_is_counted() -> None:
    verdict = judge(target(), [None, 99.0, None])
    assert (verdict.says, verdict.values, verdict.failed) == ("within", (99.0,), 2)
    assert judge(target(), [None]) == Verdict(target(), "not run", (), None, 1)


def test_a_number_that_never_came_is_above_any() -> None:
    assert judge(target(1000, "1k steps", unit="steps"), [math.inf]).says == "above"
    verdict = judge(target(1000, "1k steps", unit="steps"), [900.0, 1000.0, math.inf])
    assert (verdict.says, verdict.mean, verdict.spread) == ("above", math.inf, None)


def test_shares_are_compared_in_percent_and_steps_as_they_are() -> None:
    targets = {
        "a": target(key="a"),
        "b": target(256, "256", key="b", unit="count", role="setting"),
        "c": target(key="c"),
        "d": target(key="d"),
    }
    evidence = Evidence([result("peer2022/table1/a", validation=(0.5, 0.99))])

    def missing(evidence: Evidence) -> float | None:
        return evidence.mean("peer2022/table1/nowhere")

    reads = {"a": ("peer2022/table1/a", "final"), "c": ("peer2022/table1/nowhere", "final")}
    found = judge_all(targets, reads, {"b": lambda evidence: 256.0, "d": missing}, evidence)
    assert [(each.says, each.values) for each in found] == [
        ("within", (99.0,)),
        ("within", (256.0,)),
        ("not run", ()),
        ("not run", ()),
    ]


def test_a_fact_may_have_a_number_for_every_seed() -> None:
    (found,) = judge_all({"a": target(key="a")}, {}, {"a": lambda evidence: [0.98, 0.99, 1.0]}, Evidence([]))
    assert found.values == (98.0, 99.0, 100.0)
    assert found.bound == pytest.approx(2 / math.sqrt(3) + (found.target.rounding or 0.0))
    assert found.says == "within"
    (none,) = judge_all({"a": target(key="a")}, {}, {"a": lambda evidence: []}, Evidence([]))
    assert none.says == "not run"


def test_errors_are_what_accuracies_leave() -> None:
    made = result(validation=(0.2, 0.9, 0.75))
    assert (READINGS["error"](made), READINGS["best_error"](made)) == (0.25, pytest.approx(0.1))
    assert READINGS["error"](result(validation=(0.9,), status="non-finite")) is None
    assert READINGS["error"](result(validation=(None,))) is READINGS["best_error"](result(validation=(None,))) is None
    for name, reading in READINGS.items():
        assert reading.best in ("", *READINGS), name


def test_the_figures_of_a_result_by_name() -> None:
    made = result(validation=(0.2, 0.9, 0.8), training=(0.3, 0.6, 0.7))
    assert (READINGS["final"](made), READINGS["best"](made), READINGS["training"](made)) == (0.8, 0.9, 0.7)
    tested = result(validation=(0.2,), test={"accuracy": 0.5, "images": 10})
    assert READINGS["final"](tested) == 0.5
    unmeasured = result(validation=(None,))
    assert READINGS["final"](unmeasured) is None
    assert READINGS["best"](unmeasured) is None
    measured = result(measured={"peer2022.clean": {"accuracy": 0.25}})
    assert READINGS["clean"](measured) == 0.25
    assert READINGS["clean"](made) is None
    empty = result(validation=(), training=())
    assert all(READINGS[name](empty) is None for name in ("final", "best", "training", "clean"))
    broken = result(validation=(0.9,), status="non-finite", measured={"peer2022.clean": {"accuracy": 0.25}})
    assert READINGS["final"](broken) is None
    assert READINGS["clean"](broken) is None


@pytest.mark.parametrize(
    ("accuracies", "start"),
    [
        ((0.1, 0.1, 0.3, 0.9, 0.9, 0.9, 0.9), 75),
        # a lucky reading is no start, and a bad one later no end.
        ((0.25, 0.1, 0.1, 0.3, 0.3, 0.3, 0.3), 100),
        ((0.2, 0.2, 0.3, 0.9, 0.1, 0.9, 0.9), 25),
        ((0.1,) * 7, math.inf),
        # the last ones are too few to tell.
        ((0.1, 0.1, 0.1, 0.1, 0.5, 0.5, 0.5), math.inf),
    ],
)
def test_learning_starts_where_the_accuracy_stays_up(accuracies: Sequence[float], start: float) -> None:
    curve = {"step": [25, 50, 75, 100, 125, 150, 175], "loss": [1.0] * 7, "accuracy": list(accuracies)}
    assert READINGS["starts"](result(curve=curve)) == start


def test_nothing_was_read_of_a_run_that_ended_before() -> None:
    assert READINGS["starts"](result(curve={"step": [], "loss": [], "accuracy": []})) is None


def test_evidence_is_by_recipe_and_seed() -> None:
    evidence = Evidence([result("a/b/c", 1, validation=(0.2,)), result("a/b/c", 0, validation=(0.1,))])
    assert evidence.values("a/b/c") == [0.1, 0.2]
    assert evidence.mean("a/b/c") == pytest.approx(0.15)
    assert not evidence.has("a/b/d")
    with pytest.raises(LookupError):
        evidence.values("a/b/d")
    with pytest.raises(LookupError):
        Evidence([result("a/b/c", validation=(None,))]).values("a/b/c")


@pytest.mark.parametrize(("holds", "verdict"), [(True, "holds"), (False, "does not hold"), (None, "undecided")])
def test_a_claim_is_decided_by_its_statistic(holds: bool | None, verdict: str) -> None:
    claim = Claim("a/x", "text", "ours", ("a/b/c", "a/b/d"), lambda evidence: (holds, "because"))
    evidence = Evidence([result("a/b/c", 0), result("a/b/c", 1), result("a/b/d", 0)])
    found = claim.find(evidence)
    assert (found.verdict, found.statistic, found.seeds) == (verdict, "because", 1)


def test_a_claim_without_all_its_runs_is_undecided() -> None:
    recipes = tuple(f"a/b/{letter}" for letter in "cdefg")
    claim = Claim("a/x", "text", "ours", recipes, lambda evidence: (True, "because"))
    found = claim.find(Evidence([result("a/b/c")]))
    assert (found.verdict, found.statistic) == ("undecided", "not run: b/d, b/e, b/f and 1 more")
    unread = Claim("a/x", "text", "ours", ("a/b/c",), lambda evidence: (evidence.mean("a/b/c") > 0, ""))
    assert unread.find(Evidence([result("a/b/c", validation=(None,))])).verdict == "undecided"


def test_some_claims_are_decided_by_what_has_run() -> None:
    recipes = ("a/b/c", "a/b/d", "a/b/e")
    claim = Claim("a/x", "text", "ours", recipes, lambda evidence: (True, "because"), is_partial=True)
    found = claim.find(Evidence([result("a/b/c", 0), result("a/b/d", 0), result("a/b/d", 1)]))
    # it says of how many.
    assert (found.verdict, found.statistic, found.seeds) == ("holds", "because; 2 of 3 nets have run", 1)
    whole = claim.find(Evidence([result(key) for key in recipes]))
    assert (whole.verdict, whole.statistic) == ("holds", "because")
    nothing = claim.find(Evidence([result("a/b/z")]))
    assert (nothing.verdict, nothing.statistic, nothing.seeds) == ("undecided", "not run: b/c, b/d, b/e", 0)


def test_what_claims_rest_on_is_counted_in_runs() -> None:
    claims = [Claim("a/x", "text", "ours", (row, "a/b/e"), lambda evidence: (True, "")) for row in ("a/b/c", "a/b/d")]
    twice = [result("a/b/c", 0), result("a/b/c", 1), result("a/b/d", 0), result("a/b/d", 1)]
    assert fewest_runs(Evidence(twice), claims) == "at least 2 runs"
    assert fewest_runs(Evidence(twice[1:]), claims) == "one run"


def test_parts_that_are_not_there_are_none() -> None:
    assert dig(None, "a") is None
    assert dig({"a": [1]}, "a", -1) == 1
