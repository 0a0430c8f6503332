"""The config of a training: every field counts, goes through JSON, and says in one line what is wrong with it."""

from __future__ import annotations

import dataclasses
import functools
import json
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from tiny_runs import capsnet, differing, made_data, one_line, short_run, told, weights

from capsella.data import list_data
from capsella.models import create_model, list_models
from capsella.train import Plan, Run, TrainConfig, fit
from capsella.train.config import COUPLING_OPTIMISERS, LOSSES, OPTIMISERS, PRECISIONS, SCHEDULES
from capsella.train.optim import learning_rate
from capsella.train.processes import accelerator, layout

FIELDS = [each.name for each in dataclasses.fields(TrainConfig)]


@dataclass(frozen=True)
class Case:
    """Another value of a field, the settings under which it matters, and where that is seen."""

    value: Any
    given: dict[str, Any] = field(default_factory=dict)
    net: str = "capsnet_small"
    seen: str = "weights"


_ASCENT = {"coupling_optimiser": "ascent", "coupling_objective": "raw", "coupling_lr": 0.1}
_SGD = {"optimiser": "sgd", "lr": 0.1}
CASES = {
    "epochs": Case(2, {"steps": None}),
    "steps": Case(4),
    "batch_size": Case(5),
    "seed": Case(3),
    "optimiser": Case("sgd"),
    "lr": Case(2e-3),
    "betas": Case((0.5, 0.999)),
    "momentum": Case(0.0, _SGD),
    "weight_decay": Case(0.1),
    "bias_rate": Case(2.0),
    "clip": Case(1e-3, _SGD),
    "schedule": Case("exponential", {"decay_steps": 1}),
    "decay": Case(0.5, {"schedule": "exponential", "decay_steps": 1}),
    "decay_steps": Case(1.0, {"schedule": "exponential"}),
    "lr_floor": Case(5e-4, {"schedule": "exponential", "decay_steps": 1, "decay": 0.1}),
    "inverse_gamma": Case(0.1, {"schedule": "inverse"}),
    "inverse_power": Case(1.0, {"schedule": "inverse", "inverse_gamma": 1.0}),
    "milestones": Case((2, 4), {"schedule": "multistep", "milestones": (4,)}),
    "loss": Case("length_cross_entropy"),
    "margins": Case((0.8, 0.2)),
    "down_weight": Case(1.0, {"margins": (0.9, 0.0)}),
    "spread": Case((0.5, 0.9), {"loss": "spread"}),
    "reconstruction": Case(0.0),
    "reconstruction_reduction": Case("mean"),
    "weight_steps": Case(2, net="quadratic_capsnet"),
    "coupling_steps": Case(2, net="quadratic_capsnet"),
    "coupling_optimiser": Case("ascent", net="quadratic_capsnet"),
    "coupling_lr": Case(1e-2, net="quadratic_capsnet"),
    "coupling_penalty": Case(0.5, net="quadratic_capsnet"),
    "coupling_objective": Case("raw", {"coupling_optimiser": "ascent", "coupling_lr": 0.1}, net="quadratic_capsnet"),
    "coupling_l1_factor": Case(2.0, {**_ASCENT, "coupling_penalty": 0.1}, net="quadratic_l1"),
    "coupling_bound": Case(1.001, {**_ASCENT, "coupling_lr": 100.0}, net="quadratic_capsnet"),
    "target_accuracy": Case(0.01, {"steps": None, "epochs": 3}),
    "validate_every": Case(2, seen="events"),
    "precision": Case("bf16"),
    "fast": Case(True, seen="compiled"),
    "device": Case("cpu", {"device": "auto"}, seen="where"),
    "devices": Case(2, seen="where"),
    "nodes": Case(2, seen="where"),
    "log_every": Case(2, seen="events"),
    "watch": Case(2, seen="events"),
    "checkpoint_seconds": Case(0.0, seen="checkpoints"),
}


def _net(name: str) -> torch.nn.Module:
    return capsnet("quadratic_capsnet", norm="l1") if name == "quadratic_l1" else capsnet(name)


@functools.cache
def _run(net: str, settings: str) -> Run:
    return short_run(_net(net), validation=made_data(12, split="val", seed=5), **json.loads(settings))


def _trained(case: Case, **more: Any) -> Run:
    return _run(case.net, json.dumps({**case.given, **more}, sort_keys=True))


def test_every_field_has_a_case_here() -> None:
    assert set(CASES) == set(FIELDS)


@pytest.mark.parametrize("name", FIELDS)
def test_every_field_changes_the_resolved_config(name: str) -> None:
    case = CASES[name]
    before = TrainConfig.of(case.given).as_dict()
    after = TrainConfig.of({**case.given, name: case.value}).as_dict()
    assert {key for key in before if before[key] != after[key]} == {name}
    assert after[name] == json.loads(json.dumps(case.value))


@pytest.mark.parametrize("name", [name for name in FIELDS if CASES[name].seen in ("weights", "events")])
def test_every_field_changes_what_a_run_does_and_is_in_its_record(name: str) -> None:
    case = CASES[name]
    before, after = _trained(case), _trained(case, **{name: case.value})
    assert after.config["train"][name] == json.loads(json.dumps(case.value))
    assert after.config["train"][name] != before.config["train"][name]
    if case.seen == "weights":
        assert differing(weights(before), weights(after))
    else:
        assert not differing(weights(before), weights(after))
        assert told(before) != told(after)


def test_a_run_is_a_function_of_its_config() -> None:
    """Without this, any two runs would differ and the test above could not fail."""
    one, other = (short_run(capsnet(), validation=made_data(12, split="val", seed=5)) for _ in range(2))
    assert not differing(weights(one), weights(other))
    assert told(one) == told(other)


@pytest.mark.parametrize("name", ["momentum", "decay", "milestones", "spread", "coupling_lr", "inverse_power"])
def test_a_field_changes_nothing_where_it_has_no_part(name: str) -> None:
    """The settings of a case are what makes its field matter."""
    plain = Case(CASES[name].value)
    assert not differing(weights(_trained(plain)), weights(_trained(plain, **{name: plain.value})))


def test_device_devices_and_nodes_decide_where_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert [accelerator(TrainConfig(device=name).device) for name in ("auto", "cpu", "cuda")] == ["cuda", "cpu", "cuda"]
    assert layout(TrainConfig(devices=2)).devices == 2
    with pytest.raises(ValueError, match="nodes=2") as caught:
        layout(TrainConfig(nodes=2))
    assert "torchrun --nnodes 2" in one_line(caught.value)


def test_a_gpu_that_is_not_there_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match=r"^device='cuda'") as caught:
        short_run(capsnet(), device="cuda")
    assert "expected 'cpu'" in one_line(caught.value)


def test_checkpoints_are_written_as_often_as_asked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    from capsella.train import loop

    steps: list[int] = []
    write = loop.write_checkpoint
    monkeypatch.setattr(loop, "write_checkpoint", lambda folder, step, *rest: (steps.append(step), write(folder, step, *rest)))
    short_run(capsnet(), folder=tmp_path / "seldom")
    assert steps == [0, 5]
    steps.clear()
    short_run(capsnet(), folder=tmp_path / "often", checkpoint_seconds=0.0)
    assert steps == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("name", FIELDS)
def test_every_field_goes_through_json(name: str) -> None:
    case = CASES[name]
    config = TrainConfig.of({**case.given, name: case.value})
    again = TrainConfig.of(json.loads(json.dumps(config.as_dict())))
    assert again == config
    assert hash(again) == hash(config)
    assert type(getattr(again, name)) is type(getattr(config, name))


@pytest.mark.parametrize("name", FIELDS)
def test_every_field_can_be_set_by_name_in_a_plan(name: str) -> None:
    case = CASES[name]
    plan = Plan("capsnet_small", "mnist").changed(case.given)
    value = json.loads(json.dumps(case.value))
    for key in (name, f"train.{name}"):
        assert getattr(plan.changed({key: value}).train, name) == case.value
    assert name in plan.keys()  # noqa: SIM118 - a plan is no dict


@pytest.mark.parametrize(
    "plan",
    [
        Plan("capsnet_small", "mnist"),
        Plan(
            "capsnet", "multimnist", {"decoder_hidden": (64, 128), "bias": True}, {"partners": 3}, split="train", validate=None
        ),
        Plan("em_capsnet", "folder", {"types": (2, 3, 4), "init": "length_preserving"}, {"image_size": (32, 40), "grey": None}),
        Plan("quadratic_capsnet", "mnist", train=TrainConfig(milestones=(3, 5), schedule="multistep", clip=0.5), test=False),
    ],
)
def test_a_plan_goes_through_json(plan: Plan) -> None:
    assert Plan.of(json.loads(json.dumps(plan.as_dict()))) == plan


BAD: dict[str, list[Any]] = {
    "epochs": [0, -1, 2.5, "3", True, None],
    "steps": [0, 1.5, "all"],
    "batch_size": [0, 16.0, None],
    "seed": [-1, 0.5, "zero", None, 2**64],
    "optimiser": ["adamw", None, ["adam"]],
    "lr": [0.0, -1e-3, "fast", float("nan"), float("inf"), None],
    "betas": [0.9, (0.9,), (0.9, 1.0), (-0.1, 0.9), ("a", "b"), None, (float("nan"), 0.9)],
    "momentum": [-0.1, "0.9", None],
    "weight_decay": [-1e-9, None, float("inf")],
    "bias_rate": [0.0, None],
    "clip": [0.0, -1.0, "off", float("inf")],
    "schedule": ["cosine", "expontial", None],
    "decay": [0.0, None],
    "decay_steps": [0, "2000", float("inf")],
    "lr_floor": [-1e-6, None],
    "inverse_gamma": [-1.0, None],
    "inverse_power": [-1.0, None],
    "milestones": [(0,), (1.5,), 5, "10", None, 0],
    "loss": ["marginal", None],
    "margins": [0.9, (0.9, 0.1, 0.5), (0.9, -0.1), None],
    "down_weight": [-0.5, None],
    "spread": [(0.2,), ("a", 0.9), None],
    "reconstruction": [-1.0, None, "yes", float("inf")],
    "reconstruction_reduction": ["total", None],
    "weight_steps": [0, 1.5],
    "coupling_steps": [-1, 0.5],
    "coupling_optimiser": ["sgd", None],
    "coupling_lr": [0.0, "auto"],
    "coupling_penalty": [-1.0, None],
    "coupling_objective": ["squash", None],
    "coupling_l1_factor": [-1, None],
    "coupling_bound": [0.0, None],
    "target_accuracy": [0.0, 1.5, 99.2, "best"],
    "validate_every": [-1, 2.5, None],
    "precision": ["float16", "fp32", None],
    "fast": ["False", 1, None],
    "device": ["gpu", "cuda:0", None],
    "devices": [0, "auto", 1.0],
    "nodes": [0, 1.0],
    "log_every": [0, 2.5],
    "watch": [-1, 2.5, None],
    "checkpoint_seconds": [-1.0, None, float("inf")],
}


def test_every_field_has_bad_values_here() -> None:
    assert set(BAD) == set(FIELDS)


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in BAD.items() for value in values])
def test_a_bad_value_is_one_line_that_names_field_value_and_what_would_work(name: str, value: Any) -> None:
    for make in (lambda: TrainConfig(**{name: value}), lambda: TrainConfig.of({name: value})):
        with pytest.raises((ValueError, TypeError)) as caught:
            make()
        message = one_line(caught.value)
        assert message.startswith(f"{name}="), message
        # a pair may be named by the number that is wrong, a whole number as the float that the field is.
        shown = [value, *(value if isinstance(value, tuple) else ()), *([float(value)] if isinstance(value, int) else [])]
        assert any(message.startswith(f"{name}={each!r} ") for each in shown), message
        assert "expected" in message or "Known: " in message, message


@pytest.mark.parametrize(
    ("name", "choices"),
    [
        ("optimiser", OPTIMISERS),
        ("schedule", SCHEDULES),
        ("loss", LOSSES),
        ("precision", PRECISIONS),
        ("coupling_optimiser", COUPLING_OPTIMISERS),
    ],
)
def test_an_unknown_choice_names_all_that_there_are(name: str, choices: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match=f"^{name}='nix' is unknown") as caught:
        TrainConfig(**{name: "nix"})
    for choice in choices:
        assert repr(choice) in str(caught.value)
        options = {"milestones": (1,)} if choice == "multistep" else {}
        assert getattr(TrainConfig(**{name: choice}, **options), name) == choice


def test_a_multistep_schedule_needs_its_steps() -> None:
    with pytest.raises(ValueError, match=r"^milestones=\(\) .*expected the steps") as caught:
        TrainConfig(schedule="multistep")
    one_line(caught.value)


def test_a_config_cannot_be_changed_behind_ones_back() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        TrainConfig().lr = 1.0  # type: ignore[misc]


@pytest.mark.parametrize(
    ("wrong", "near"), [("lrr", "lr"), ("epoch", "epochs"), ("optimizer", "optimiser"), ("batchsize", "batch_size")]
)
def test_fit_names_the_near_match_of_an_unknown_keyword(wrong: str, near: str) -> None:
    with pytest.raises(TypeError, match=f"'{wrong}' is unknown; did you mean .*'{near}'") as caught:
        fit(capsnet(), made_data(), **{wrong: 1})
    one_line(caught.value)


@pytest.mark.parametrize(
    ("wrong", "near"),
    [
        ("lrr", "lr"),
        ("train.epoch", "epochs"),
        ("model.num_iter", "model.num_iters"),
        ("model.rooting", "model.routing"),
        ("data.augmant", "data.augment"),
        ("data.normalize", "data.normalise"),
        ("modle.bias", "model.bias"),
    ],
)
def test_a_plan_names_the_near_match_of_an_unknown_key(wrong: str, near: str) -> None:
    with pytest.raises(ValueError, match="is unknown; did you mean ") as caught:
        Plan("capsnet_small", "mnist").changed({wrong: 1})
    message = one_line(caught.value)
    assert wrong.removeprefix("train.") in message.partition(" is unknown")[0]
    assert repr(near) in message.partition("?")[0], message


def test_a_plan_refuses_options_that_its_model_or_data_have_not() -> None:
    for parts, key in (({"model_options": {"depth": 3}}, "model.depth"), ({"data_options": {"partners": 3}}, "data.partners")):
        with pytest.raises(ValueError, match=f"^set='{key}' is unknown") as caught:
            Plan("capsnet_small", "mnist", **parts)
        one_line(caught.value)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"model": "capsnt"}, "name='capsnt' is unknown; did you mean 'capsnet'"),
        ({"data": "mist"}, "name='mist' is unknown; did you mean 'mnist'"),
        ({"split": "tests"}, "split='tests' is unknown; did you mean 'test'"),
        ({"validate": "value"}, "validate='value' is unknown; did you mean 'val'"),
        ({"model_options": {"init": "sabor"}}, "init='sabor' is unknown; did you mean 'sabour'"),
    ],
)
def test_a_plan_names_the_near_match_of_an_unknown_name(parts: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match="is unknown") as caught:
        Plan(**{"model": "capsnet_small", "data": "mnist", **parts})
    assert one_line(caught.value).startswith(message)


def test_every_model_and_data_set_can_be_planned_and_its_options_set() -> None:
    for name in list_models():
        plan = Plan(name, "mnist")
        with torch.device("meta"):
            options = create_model(name).config
        keys = [key for key in options if key not in ("name", "image_size", "in_channels")]
        assert set(plan.keys()) >= {f"model.{key}" for key in keys}, name
    for name in list_data():
        assert {"data.augment", "data.normalise"} <= set(Plan("capsnet_small", name).keys()), name


def test_a_change_leaves_the_rest_of_a_plan_alone() -> None:
    plan = Plan("capsnet_small", "mnist", {"bias": False}, {"augment": "shift"}, train=TrainConfig(lr=0.5, seed=7))
    changed = plan.changed({"epochs": 3, "model.num_iters": 2, "model.decoder_hidden": [8, 16]})
    assert changed.model_options == {"bias": False, "num_iters": 2, "decoder_hidden": (8, 16)}
    assert changed.data_options == {"augment": "shift"}
    assert (changed.train.lr, changed.train.seed, changed.train.epochs) == (0.5, 7, 3)
    assert plan.train.epochs == 10
    assert plan.model_options == {"bias": False}


def test_the_rate_in_the_events_is_the_schedules() -> None:
    settings = {"schedule": "multistep", "milestones": (2, 4), "decay": 0.1}
    rates = [event["lr"] for event in short_run(capsnet(), **settings).events if event["event"] == "log"]
    assert rates == [learning_rate(TrainConfig(**settings), step) for step in range(5)]
    assert rates == pytest.approx([1e-3, 1e-3, 1e-4, 1e-4, 1e-5], rel=1e-12)
