"""``capsella doctor`` on tiny runs: what is printed and written, when it fails, and users' mistakes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from running import in_process

from capsella import create_model, load_data
from capsella.analysis import gradient_norms
from capsella.data import from_tensors
from capsella.train import Plan, fit, run_plan
from capsella.train.run import loss_of


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two nets that learn the sign of a number, without a bias and with one, and one without capsules."""
    folder = tmp_path_factory.mktemp("runs")
    data = load_data("sign")
    for name, model in (
        ("blind", create_model("sign_capsnet", bias=False)),
        ("seeing", create_model("sign_capsnet", bias=True)),
    ):
        fit(model, data, steps=30, batch_size=256, lr=5e-3, folder=folder / name, progress=False, device="cpu", watch=10)
    return {name: folder / name for name in ("blind", "seeing")}


def doctor(run: Path, *arguments: str) -> tuple[int, str, str]:
    return in_process("doctor", str(run), "--sample", "64", *arguments)


def test_the_diagnosis_is_printed_layer_by_layer_and_in_words(runs: dict[str, Path]) -> None:
    code, stdout, err = doctor(runs["blind"])
    assert (code, err) == (0, "")
    assert stdout.startswith("Layers")
    assert "│ 1     │    1 × 1 │" in stdout
    assert "this net cannot tell x from −x" in stdout
    assert "  try: a bias on every routing layer (bias=True)\n  see: docs/doctor.md#negation\n" in stdout
    code, stdout, _ = doctor(runs["seeing"])
    assert code == 0
    assert "cannot tell x from −x" not in stdout


def test_record_and_page_are_written(runs: dict[str, Path], tmp_path: Path) -> None:
    page, record = tmp_path / "deep" / "page.html", tmp_path / "record.json"
    page.parent.mkdir()
    code, _, err = doctor(runs["blind"], "--html", str(page), "--json", str(record), "--sweep")
    assert (code, err) == (0, f"{page} has the trees and plots\n")
    found = json.loads(record.read_text())
    assert (found["data"], found["split"], found["model"]["name"]) == ("sign", "test", "sign_capsnet")
    assert found["negation_gap"] == 0
    assert "blind" in [symptom["key"] for symptom in found["symptoms"]]
    assert len(found["layers"]) == 3
    text = page.read_text()
    assert "sign_capsnet on sign/test" in text
    assert "cannot tell x from −x" in text
    assert text.count('data-part="tree"') >= 4


def test_a_page_made_from_a_record_is_the_page_made_with_the_run(runs: dict[str, Path], tmp_path: Path) -> None:
    first, record, again, copy = (tmp_path / name for name in ("first.html", "record.json", "again.html", "copy.json"))
    code, printed, _ = doctor(runs["blind"], "--html", str(first), "--json", str(record), "--sweep", "--compactness")
    assert code == 0
    assert record.stat().st_size < 100_000
    # nothing is measured: neither the run nor its data are looked for.
    code, printed_again, err = in_process("doctor", str(record), "--html", str(again), "--json", str(copy))
    assert (code, err) == (0, f"{again} has the trees and plots\n")
    assert again.read_text() == first.read_text()
    assert printed_again == printed
    assert copy.read_text() == record.read_text()


def test_symptoms_of_a_record_are_found_anew(runs: dict[str, Path], tmp_path: Path) -> None:
    record = tmp_path / "record.json"
    doctor(runs["seeing"], "--json", str(record))
    found = json.loads(record.read_text())
    found["negation_share"], found["symptoms"] = 0.0, []
    record.write_text(json.dumps(found))
    code, printed, _ = in_process("doctor", str(record), "--json", str(record))
    assert code == 0
    assert "this net cannot tell x from −x" in printed
    assert "blind" in [symptom["key"] for symptom in json.loads(record.read_text())["symptoms"]]


def test_conditions_hold_for_records_too(runs: dict[str, Path], tmp_path: Path) -> None:
    record = tmp_path / "record.json"
    doctor(runs["blind"], "--json", str(record))
    code, _, err = in_process("doctor", str(record), "--fail-on", "negation_gap<1e-6")
    assert (code, err) == (1, "capsella: negation_gap<1e-06: negation_gap is 0\n")


@pytest.mark.parametrize(
    "arguments", [["--data", "mnist"], ["--split", "test"], ["--sample", "64"], ["--sweep"], ["--compactness"], ["-o", "a=b"]]
)
def test_what_would_have_to_be_measured_is_refused_of_a_record(
    arguments: list[str], runs: dict[str, Path], tmp_path: Path
) -> None:
    record = tmp_path / "record.json"
    doctor(runs["blind"], "--json", str(record))
    code, printed, err = in_process("doctor", str(record), *arguments)
    assert (code, printed) == (2, "")
    assert err.endswith(f" is for a run; {record} is a record, of which nothing is measured\n")


@pytest.mark.parametrize(("field", "value"), [("viewpoint", "x"), ("cdr", "x"), ("gradients", [{}])])
def test_a_damaged_record_is_one_line(field: str, value: Any, runs: dict[str, Path], tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    doctor(runs["blind"], "--json", str(path))
    record = json.loads(path.read_text())
    record["layers"][0][field] = value
    path.write_text(json.dumps(record))
    code, printed, err = in_process("doctor", str(path), "--html", str(tmp_path / "page.html"))
    assert (code, printed) == (2, "")
    assert err.startswith(f"capsella: {path} is a damaged record (")
    assert len(err.splitlines()) == 1
    assert not (tmp_path / "page.html").exists()


def test_another_file_is_no_record(runs: dict[str, Path]) -> None:
    path = runs["blind"] / "record.json"
    code, printed, err = in_process("doctor", str(path))
    assert (code, printed) == (2, "")
    assert err == f"capsella: {path} is no record of a diagnosis; expected what capsella doctor --json wrote\n"


def test_what_became_of_the_capsules_is_read_from_the_run(runs: dict[str, Path], tmp_path: Path) -> None:
    code, printed, _ = doctor(runs["blind"], "--json", str(tmp_path / "record.json"), "--html", str(tmp_path / "page.html"))
    assert code == 0
    assert "over the training (3 looks from step 10 to 30):" in printed
    training = json.loads((tmp_path / "record.json").read_text())["training"]
    lines = [json.loads(line) for line in (runs["blind"] / "metrics.jsonl").read_text().splitlines()]
    looks = [line for line in lines if line["event"] == "watch"]
    assert training["steps"] == [look["step"] for look in looks] == [10, 20, 30]
    assert training["layers"][1]["gradient"] == pytest.approx([look["layer2/gradient"] for look in looks], rel=5e-3)
    assert "Over the training" in (tmp_path / "page.html").read_text()


def test_what_is_asked_for_is_a_table(runs: dict[str, Path]) -> None:
    code, printed, _ = doctor(runs["seeing"], "--sweep", "--compactness")
    assert code == 0
    assert "Active capsules, by length" in printed
    assert "│ from 0.01 │ from 0.05 │" in printed.replace("┃", "│")
    assert "Compactness in nats" in printed
    assert "│ shear_y  │    −10 to 10 │" in printed
    assert "Compactness" not in doctor(runs["seeing"])[1]


def test_what_each_iteration_changes_is_a_column(runs: dict[str, Path]) -> None:
    code, printed, _ = doctor(runs["seeing"], "--json", "-")
    change = json.loads(printed)["layers"][0]["change"]
    assert (code, len(change)) == (0, 2)
    printed = doctor(runs["seeing"])[1]
    assert "change ┃" in printed
    assert f"│ {change[0]:.3f}, {change[1]:.3f} │" in printed


def test_a_dash_prints_the_record_alone(runs: dict[str, Path]) -> None:
    code, stdout, err = doctor(runs["blind"], "--json", "-")
    assert (code, err) == (0, "")
    assert json.loads(stdout)["images"] > 64


def test_gradients_are_those_of_the_loss_that_the_run_was_trained_with(runs: dict[str, Path], tmp_path: Path) -> None:
    found = {}
    for loss in ("margin", "length_cross_entropy"):
        data, model = load_data("sign"), create_model("sign_capsnet", bias=True)
        run = fit(model, data, steps=1, loss=loss, folder=tmp_path / loss, progress=False, device="cpu")
        sample = data.batch(torch.linspace(0, len(data) - 1, 64).round().long())
        expected = gradient_norms(run.model, sample.images, sample.labels, loss=loss_of(run))[-1]
        record = json.loads(doctor(tmp_path / loss, "--split", "train", "--json", "-")[1])
        found[loss] = record["layers"][-1]["weight_gradient"]
        assert found[loss] == pytest.approx(float(expected.weights.mean()), rel=1e-4)
    assert found["margin"] != pytest.approx(found["length_cross_entropy"], rel=0.01)


def test_a_condition_that_holds_is_a_failure(runs: dict[str, Path]) -> None:
    code, stdout, err = doctor(runs["blind"], "--fail-on", "negation_gap<1e-6", "--fail-on", "dead>1")
    assert (code, err) == (1, "capsella: negation_gap<1e-06: negation_gap is 0\n")
    assert "Layers" in stdout
    assert doctor(runs["seeing"], "--fail-on", "negation_gap<1e-6")[0] == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--fail-on", "dead"], "fail-on='dead' is no condition; expected one such as 'dead>0.2'"),
        (["--fail-on", "deaf>1"], "fail-on='deaf' is unknown; did you mean 'dead'?"),
        (["--html", "FOLDER"], "cannot be written to; expected a file in a folder of yours"),
        (["--sample", "1"], "sample=1 is too small"),
        (["--split", "tset"], "split='tset' is unknown"),
        (["--device", "tpu"], "device='tpu' cannot be used; expected 'cpu', or 'cuda' on a GPU"),
    ],
)
def test_a_mistake_is_one_line(arguments: list[str], message: str, runs: dict[str, Path], tmp_path: Path) -> None:
    given = [str(tmp_path) if argument == "FOLDER" else argument for argument in arguments]
    code, stdout, err = in_process("doctor", str(runs["blind"]), *given)
    assert (code, stdout) == (2, "")
    assert message in err
    assert len(err.splitlines()) == 1


def pictures(folder: Path) -> Path:
    for split in ("train", "test"):
        for name in ("one", "two"):
            (folder / "pictures" / split / name).mkdir(parents=True)
            for number in range(6):
                noise = torch.randint(0, 256, (28, 28), dtype=torch.uint8)
                Image.fromarray(noise.numpy()).save(folder / "pictures" / split / name / f"{number}.png")
    return folder / "pictures"


def test_a_net_without_capsules_has_no_diagnosis(tmp_path: Path) -> None:
    data = from_tensors(torch.zeros(8, 1, 28, 28, dtype=torch.uint8), torch.zeros(8).long())
    fit(create_model("lenet"), data, steps=1, folder=tmp_path / "run", progress=False, device="cpu")
    code, _, err = in_process(
        "doctor", str(tmp_path / "run"), "--data", "folder", "--root", str(pictures(tmp_path)), "-o", "image_size=28"
    )
    assert code == 2
    assert err.startswith("capsella: model has no capsule layer that ran")


def test_a_run_that_is_not_there_is_said() -> None:
    code, _, err = in_process("doctor", "nowhere")
    assert (code, len(err.splitlines())) == (2, 1)


def test_the_record_says_how_the_run_began(tmp_path: Path) -> None:
    place = pictures(tmp_path)
    for init in ("length_preserving", None):
        options = {} if init is None else {"init": init}
        plan = Plan("capsnet_small", "folder", model_options=options, data_options={"image_size": 28}, split="train")
        plan = plan.changed({"steps": 1, "batch_size": 4, "device": "cpu"})
        run = run_plan(replace(plan, validate=None, test=False), tmp_path / str(init), root=place, progress=False)
        own = create_model("capsnet_small").config["init"]
        # what the network is built from does not say it.
        assert run.config["model"]["init"] == own
        code, printed, _ = doctor(tmp_path / str(init), "--json", "-", "--root", str(place))
        assert code == 0
        record = json.loads(printed)
        assert record["model"]["init"] == (init or own)
        advice = {advice for symptom in record["symptoms"] for advice in symptom["tries"]}
        assert any("length-preserving" in each for each in advice) == (init is None)
