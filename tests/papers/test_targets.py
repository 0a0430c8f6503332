"""The printed numbers: all of them are there, each under its own key, and string and number say the same."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from capsella.errors import DataError
from capsella.papers.targets import PAPERS, ROLES, Target, parse_targets, read_targets

SOURCE = Path(__file__).resolve().parents[2] / "src"
ALL = [target for paper in PAPERS for target in read_targets(paper).values()]
COUNTS = {
    "peer2022": {"result": 40, "claim": 2, "setting": 2},
    "mitterreiter2023": {"result": 43, "analytic": 4, "claim": 3, "setting": 1},
    "gu2021": {"result": 109, "size": 21, "setting": 2},
    "chen2019": {"result": 29, "size": 20, "qualitative": 8},
    "yang2021": {"result": 22, "setting": 18, "claim": 2},
}
ROWS_OF_OTHERS = (
    *("ge-capsnet", "sparsecaps", "scae", "em-capsnet"),
    *("convnet-fc", "capsnet", "capsnet-nor", "aff-capsnet-dr", "aff-capsnet"),
)


def a_target(printed: str, value: float | None, unit: str = "%", **more: Any) -> Target:
    return Target("peer2022", "table1/a", "Table 1", "accuracy", printed, unit, "result", value, **more)


def test_all_326_are_there() -> None:
    found = {paper: dict(Counter(target.role for target in read_targets(paper).values())) for paper in PAPERS}
    assert found == COUNTS
    assert len(ALL) == 326
    assert set().union(*COUNTS.values()) == set(ROLES)


def test_names_are_unique_and_can_be_paths() -> None:
    names = [target.name for target in ALL]
    assert len(set(names)) == 326
    word = "[a-z0-9]+(-[a-z0-9]+)*"
    assert [name for name in names if not re.fullmatch(f"[a-z]+20[0-9]{{2}}/{word}/{word}", name)] == []
    assert {target.paper for target in read_targets("gu2021").values()} == {"gu2021"}


@pytest.mark.parametrize("paper", PAPERS)
def test_a_key_begins_with_its_table(paper: str) -> None:
    slugs = {"Table I": "table1", "Table II": "table2", "text 4.3": "text", "Supplement Table 1": "supplement-table1"}
    for target in read_targets(paper).values():
        assert target.key.split("/")[0] == slugs.get(target.table, target.table.lower().replace(" ", ""))


@pytest.mark.parametrize(
    ("name", "value", "std"),
    [
        ("peer2022/table1/rba-no-bias", 49.61, None),
        ("peer2022/table1/em-bias", 99.81, None),
        ("peer2022/table2/mnist-no-bias-depth4", 15.8, None),
        ("peer2022/table2/fashion-bias-depth5", 81.2, None),
        ("peer2022/table3/mnist-no-bias-depth8", 10.11, None),
        ("peer2022/table3/fashion-bias-depth7", 84.7, None),
        ("peer2022/text/implementations-without-bias", 76, None),
        ("peer2022/text/sign-examples", 20000, None),
        ("peer2022/text/batch-size", 256, None),
        ("peer2022/text/steps-before-learning", 1000, None),
        ("mitterreiter2023/table1/layer2-alive", 14.9, 0.7),
        ("mitterreiter2023/table1/layer4-dys", 3.78, 0.38),
        ("mitterreiter2023/table1/output-alive", 10.0, 0.0),
        ("mitterreiter2023/table2/layer3-cdr", 0.56, 0.04),
        ("mitterreiter2023/table2/layer5-cas", 3.05, 0.0),
        ("mitterreiter2023/table3/rba-time", None, None),
        ("mitterreiter2023/text/architectures", 121, None),
        ("gu2021/table1/capsnet-affnist", 79.0, None),
        ("gu2021/table1/convnet-avg-affnist", 94.11, None),
        ("gu2021/table2/dr-affnist", 90.07, 0.98),
        ("gu2021/table2/no-squash-mnist-train", 99.75, None),
        ("gu2021/table3/convnet-fc-k11-parameters", 16.19, None),
        ("gu2021/table3/capsnet-k11-affnist", 86.79, None),
        ("gu2021/table4/shared-multimnist", 86.44, 0.37),
        ("gu2021/table5/convnet-cr-sf-trans-y", 0.3192, None),
        ("gu2021/text/convnet-fc-lk-multimnist-best", 97.11, None),
        ("chen2019/table1/gcapsnet-times-of-routing", None, None),
        ("chen2019/table2/mnist-conv-gcapsnet-no-reconstruction-error", 0.86, 0.1317),
        ("chen2019/table2/cifar10-capsnet-error", 40.88, 0.67),
        ("chen2019/table2/cifar10-multi-gcapsnet-parameters", 0.716, None),
        ("chen2019/table3/conv-gcapsnet-epoch1", 19.725, None),
        ("chen2019/text/fgsm-fc-gcapsnet", 8.92, None),
        ("chen2019/supplement-table1/conv-caps-routing1", 56.4, None),
        ("yang2021/table1/cifar10-cap1", 64, None),
        ("yang2021/table1/cifar10-fc1", None, None),
        ("yang2021/table2/mnist-l2", 0.35, None),
        ("yang2021/table2/fashion-l2-no-fc", 6.75, None),
        ("yang2021/table2/average-l1-no-fc", 7.08, None),
        ("yang2021/text/multimnist-proposed", 7.54, None),
    ],
)
def test_what_the_papers_print(name: str, value: float | None, std: float | None) -> None:
    paper, _, key = name.partition("/")
    target = read_targets(paper)[key]
    assert (target.name, target.value, target.std) == (name, value, std)
    assert type(target.value) is type(value)


def test_a_key_says_what_its_config_says() -> None:
    found = read_targets("peer2022")
    for table, routing, depths in (("table2", "RBA", range(2, 6)), ("table3", "EM", range(5, 10))):
        for data, name in (("MNIST", "mnist"), ("Fashion-MNIST", "fashion")):
            for bias in (False, True):
                for depth in depths:
                    config = found[f"{table}/{name}-{'bias' if bias else 'no-bias'}-depth{depth}"].config
                    assert config == {"dataset": data, "routing": routing, "bias": bias, "capsule_layers": depth}
    assert read_targets("gu2021")["table2/no-reconstruction-mnist"].config["reconstruction"] == "none"


def test_string_and_number_agree() -> None:
    plain = [target for target in ALL if target.value is not None and re.fullmatch(r"[\d.]+", target.printed)]
    assert len(plain) == 179
    assert [target.name for target in plain if float(target.printed) != target.value] == ["yang2021/table2/mnist-l2"]
    # with units and spreads: what cannot be told is what is not a cell of a table, and the point that was lost.
    told = [target.name for target in ALL if target.value is not None and target.rounding is None]
    assert told == [
        *("peer2022/text/batch-size", "peer2022/text/steps-before-learning", "gu2021/text/runs"),
        *("yang2021/table2/mnist-l2", "yang2021/text/runtime-saved"),
    ]


def test_a_printed_spread_is_the_std() -> None:
    spreads = {target: re.findall(r"(?:±|\\pm) ([\d.]+)", target.printed) for target in ALL}
    printed = {target: float(found[0]) for target, found in spreads.items() if found}
    assert len(printed) == 68
    assert [target.name for target, std in printed.items() if std != target.std] == []
    # the other seven are those of gu2021's Table 4, whose strings are without.
    rest = {target.table for target in ALL if target.std is not None and target not in printed}
    assert rest == {"Table 4"}


def test_only_what_has_no_number_has_no_value() -> None:
    without = [target for target in ALL if target.value is None]
    assert Counter((target.paper, target.role) for target in without) == {
        ("mitterreiter2023", "analytic"): 4,
        ("gu2021", "result"): 2,
        ("chen2019", "qualitative"): 8,
        ("yang2021", "setting"): 3,
        ("yang2021", "result"): 4,
    }
    assert {target.printed for target in without if target.role in ("result", "setting")} == {"-"}


def test_only_gu2021_quotes_others() -> None:
    cited = [target.name for target in ALL if target.cited]
    assert cited == [f"gu2021/table1/{row}-{data}" for row in ROWS_OF_OTHERS for data in ("mnist", "affnist")]


@pytest.mark.parametrize(
    ("printed", "value", "unit", "decimals", "rounding"),
    [
        ("99.0", 99.0, "%", 1, 0.05),
        ("10.11", 10.11, "%", 2, 0.005),
        ("100", 100.0, "%", 0, 0.5),
        ("76%", 76, "%", 0, 0.5),
        ("76%", 0.76, "ratio", 0, 0.005),
        ("0.0003", 0.0003, "nats", 4, 0.00005),
        ("16.00 ± 0.00", 16.0, "count", 2, 0.005),
        ("90.07 (± 0.98)", 90.07, "%", 2, 0.005),
        ("99.29(± 0.13)", 99.29, "%", 2, 0.005),
        (r"0.86_{\pm 0.1317}", 0.86, "%", 2, 0.005),
        ("35.4M", 35.4, "M", 1, 0.05),
        ("35.4M", 35_400_000, "count", 1, 50_000),
        ("716K", 716, "K", 0, 0.5),
        ("716K", 0.716, "M", 0, 0.0005),
        ("20k", 20_000, "count", 0, 500),
        ("1k steps", 1000, "steps", None, None),
        ("batch size of 256", 256, "count", None, None),
        ("any number", None, "", None, None),
        ("1", None, "", None, None),
        ("-", None, "%", None, None),
        ("035", 0.35, "%", None, None),
        ("35.4M", 35.4, "count", None, None),
    ],
)
def test_how_far_a_number_is_rounded(
    printed: str, value: float | None, unit: str, decimals: int | None, rounding: float | None
) -> None:
    target = a_target(printed, value, unit)
    assert (target.decimals, target.rounding) == (decimals, rounding)


def test_a_target_can_be_in_a_set() -> None:
    target = a_target("99.0", 99.0, config={"capsules": [16, 10]})
    assert {target, a_target("99.0", 99.0, config={"capsules": [16, 10]})} == {target}


def test_reading_again_gives_a_new_dict_of_the_same_targets() -> None:
    first = read_targets("peer2022")
    first.clear()
    again = read_targets("peer2022")
    assert len(again) == 44
    assert again["table1/rba-bias"] is read_targets("peer2022")["table1/rba-bias"]


def test_an_unknown_paper_is_one_clear_line() -> None:
    with pytest.raises(
        ValueError, match=r"^paper='peer2020' is unknown; did you mean 'peer2022'.*\? Known: 'chen2019', "
    ) as caught:
        read_targets("peer2020")
    assert "\n" not in str(caught.value)


SOUND = '[[target]]\nkey = "table1/a"\ntable = "Table 1"\nmetric = "accuracy"\nprinted = "1.0"\nunit = "%"\nrole = "result"\n'


def test_a_sound_file_is_read() -> None:
    (target,) = parse_targets("peer2022", SOUND + "value = 1.0\nconfig = { bias = true }\n").values()
    assert target == a_target("1.0", 1.0, config={"bias": True})
    assert (target.std, target.cited, target.note) == (None, False, "")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (SOUND + "vlaue = 1.0\n", "table1/a: field='vlaue' is unknown; did you mean 'value'? Known: 'cited', "),
        (SOUND + 'paper = "gu2021"\n', "table1/a: field='paper' is unknown"),
        (SOUND.replace('"result"', '"reslut"'), "table1/a: role='reslut' is unknown; did you mean 'result'?"),
        (SOUND.replace('unit = "%"\n', "").replace('metric = "accuracy"\n', ""), "table1/a lacks metric, unit"),
        (SOUND.replace('key = "table1/a"\n', ""), "entry 1 lacks key"),
        (SOUND + SOUND, "table1/a is there twice"),
        (SOUND.replace("[[target]]", "[[targets]]"), "has targets; expected [[target]] tables"),
        ("", "has nothing; expected [[target]] tables"),
        ("key = ", "is no TOML (Invalid value"),
    ],
)
def test_a_file_that_does_not_fit_is_one_line_that_names_the_entry(text: str, message: str) -> None:
    with pytest.raises(DataError, match=f"^peer2022/targets.toml,? {re.escape(message)}") as caught:
        parse_targets("peer2022", text)
    assert "\n" not in str(caught.value)


def test_reading_targets_needs_no_torch() -> None:
    program = (
        "import sys; from capsella.papers.targets import read_targets; read_targets('gu2021'); print('torch' in sys.modules)"
    )
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    done = subprocess.run([sys.executable, "-c", program], timeout=60, env=environment, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("False\n", "")
