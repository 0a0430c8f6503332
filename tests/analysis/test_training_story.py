"""What became of capsules over a training, from the lines that --watch wrote."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

import capsella
from capsella.analysis import Revivals, diagnose, over_training
from capsella.analysis.training import LOOKS, lives_in_words
from capsella.data import from_tensors
from capsella.train import fit


def looks(dead: list[tuple[int, ...]], revivals: list[tuple[int, ...]], *, capsules: int = 8) -> list[dict[str, Any]]:
    """Make the lines of looks at steps 10, 20 and so on: a number for each layer."""
    return [
        {"event": "watch", "step": 10 * (k + 1), "epoch": 0.1, "images": 5}
        | {f"layer{n}/capsules": capsules for n in range(1, len(now) + 1)}
        | {f"layer{n}/dead": number / capsules for n, number in enumerate(now, 1)}
        | {f"layer{n}/revivals": number for n, number in enumerate(back, 1)}
        | {f"layer{n}/gradient": 0.123456 / (k + 1) for n in range(1, len(now) + 1)}
        for k, (now, back) in enumerate(zip(dead, revivals, strict=True))
    ]


def test_without_looks_there_is_nothing_to_tell() -> None:
    assert over_training([]) is None
    assert over_training([{"event": "log", "step": 3, "loss": 1.0}]) is None


def test_deaths_by_hand() -> None:
    # layer 1 is well; of layer 2 two die, then one; layer 3 begins dead, comes to life, and one dies again.
    events = looks(
        [(0, 0, 8), (0, 2, 1), (0, 2, 0), (0, 3, 1), (0, 3, 1)], [(0, 0, 0), (0, 0, 7), (0, 0, 8), (0, 0, 8), (0, 0, 8)]
    )
    found = over_training([{"event": "log", "step": 1}, *reversed(events)])
    assert found is not None
    assert (found["looks"], found["steps"]) == (5, [10, 20, 30, 40, 50])
    well, dying, late = found["layers"]
    assert (well["deaths"], well["between"], well["revivals"]) == (0, None, 0)
    assert (dying["deaths"], dying["between"], dying["revivals"], dying["last_dead"]) == (3, [10, 40], 0, 3)
    assert (late["first_dead"], late["deaths"], late["between"], late["revivals"]) == (8, 1, [30, 40], 8)
    assert dying["dead"] == [0, 0.25, 0.25, 0.375, 0.375]
    assert dying["gradient"] == [0.123, 0.0617, 0.0412, 0.0309, 0.0247]
    assert lives_in_words(found) == [
        "over the training (5 looks from step 10 to 50):",
        "layer 2: 3 capsules died between step 10 and 40, none came back",
        "layer 3: 8 capsules were dead at step 10, 1 death between step 30 and 40, 8 revivals, 1 of 8 dead at the end",
    ]


def test_who_is_active_again_after_dying_is_told_where_it_was_counted() -> None:
    events = looks([(0,), (3,), (1,)], [(0,), (0,), (2,)])
    found = over_training(events)
    assert found is not None
    assert found["layers"][0]["reactivated"] is None
    again = over_training([event | {"layer1/reactivated": max(0, k - 1)} for k, event in enumerate(events)])
    assert again is not None
    assert again["layers"][0]["reactivated"] == 1
    assert lives_in_words(again)[1] == (
        "layer 1: 3 deaths between step 10 and 20, 2 revivals, 1 active again after dying, 1 of 8 dead at the end"
    )
    # a record of before has no word of it.
    del again["layers"][0]["reactivated"]
    assert lives_in_words(again)[1] == "layer 1: 3 deaths between step 10 and 20, 2 revivals, 1 of 8 dead at the end"


def test_deaths_and_revivals_agree_with_those_of_single_capsules() -> None:
    readings = torch.rand(40, 8, generator=torch.Generator().manual_seed(0)) < 0.4
    counted, dead, back = Revivals(), [], []
    for reading in readings:
        counted.update(reading)
        dead.append((int(reading.sum()),))
        back.append((int(counted.compute().revivals.sum()),))
    found = over_training(looks(dead, back))
    assert found is not None
    life = counted.compute()
    # what is dead at the first look has not died between two of them.
    assert found["layers"][0]["deaths"] == int(life.deaths.sum()) - int(readings[0].sum())
    assert found["layers"][0]["revivals"] == int(life.revivals.sum())


@pytest.mark.parametrize(
    ("dead", "says"),
    [
        ([0, 0], ["over the training (2 looks from step 10 to 20): no capsule was dead"]),
        ([1, 1], ["over the training (2 looks from step 10 to 20):", "layer 1: 1 capsule was dead at step 10, none came back"]),
        (
            [0, 1],
            [
                "over the training (2 looks from step 10 to 20):",
                "layer 1: 1 capsule died between step 10 and 20, none came back",
            ],
        ),
        ([0], ["over the training (one look at step 10): no capsule was dead"]),
    ],
)
def test_lives_in_words(dead: list[int], says: list[str]) -> None:
    found = over_training(looks([(number,) for number in dead], [(0,)] * len(dead)))
    assert found is not None
    assert lives_in_words(found) == says


def test_thousands_of_looks_make_a_small_record_and_none_is_lost() -> None:
    deaths = [(0, 0)] * 1234 + [(0, 5)] * 3766
    found = over_training(looks(deaths, [(0, 0)] * 5000))
    assert found is not None
    assert found["looks"] == 5000
    assert len(found["steps"]) == LOOKS == len(found["layers"][1]["dead"])
    assert (found["steps"][0], found["steps"][-1]) == (10, 50_000)
    assert found["layers"][1]["between"] == [12_340, 12_350]
    assert len(json.dumps(found)) < 10_000


def test_lines_of_before_are_read_with_the_numbers_of_now() -> None:
    old = {"event": "watch", "step": 10, "primary/capsules": 6, "primary/dead": 0.5, "primary/gradient": 0.1}
    old |= {"layer1/capsules": 4, "layer1/dead": 0.25, "layer1/revivals": 2, "layer1/dyr": 0.7}
    new = {"event": "watch", "step": 20, "layer1/capsules": 6, "layer1/dead": 0.5, "layer1/dyr": 0.8, "layer1/revivals": 0}
    new |= {"layer2/capsules": 4, "layer2/dead": 0.75, "layer2/revivals": 3}
    found = over_training([old, new])
    assert found is not None
    primary, above = found["layers"]
    assert (primary["capsules"], primary["dead"], primary["dyr"]) == (6, [0.5, 0.5], [0.7, 0.8])
    # of the primary capsules nobody counted at first who came back.
    assert primary["revivals"] is None
    assert (above["capsules"], above["deaths"], above["revivals"]) == (4, 3, 3)
    assert "dyr" not in above
    assert lives_in_words(found)[1] == "layer 1: 3 capsules were dead at step 10"


def test_a_diagnosis_tells_it_where_it_is_given_the_events_of_a_run() -> None:
    data = from_tensors(torch.randint(0, 256, (32, 1, 28, 28), dtype=torch.uint8), torch.arange(32) % 10)
    run = fit(capsella.create_model("capsnet_small"), data, steps=4, batch_size=16, watch=2, progress=False, device="cpu")
    found = diagnose(run.model, data, views={}, events=run.events)
    assert found.record["training"]["steps"] == [2, 4]
    assert [layer["capsules"] for layer in found.record["training"]["layers"]] == [72, 10]
    assert "over the training (2 looks from step 2 to 4):" in found.text()
    assert diagnose(run.model, data, views={}).record["training"] is None
    assert "over the training" not in diagnose(run.model, data, views={}).text()
