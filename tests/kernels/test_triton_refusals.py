"""What the fused kernels refuse, and with which words; the reference runs then, and a request by name is an error."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed")

from kernel_cases import ALGORITHMS, FUSED, PLAIN, Problem

from capsella import routing
from capsella.errors import UnsupportedCall
from capsella.kernels import fused
from capsella.kernels.fused_agreement import precision
from capsella.routing import Call
from capsella.routing.dispatch import candidates, choose, explain_call

SIZES = {"B": 3, "I": 6, "J": 4, "D": 5, "P": 7}
GOOD = Call("agreement", "vote_and_route", "cuda", torch.float32, SIZES, False, 1, True, False, False, {})
COUPLINGS = torch.zeros(3, 6, 4)

REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"device": "cpu"}, "device is cpu; it needs cuda"),
    ({"device": "mps"}, "device is mps; it needs cuda"),
    ({"dtype": torch.float64}, "dtype is float64; it needs float32, bfloat16 or float16"),
    ({"need_couplings": True}, "couplings are asked for"),
    ({"trace": True}, "couplings are asked for"),
    ({"options": {"num_iters": 6}}, "num_iters=6 is above 5"),
    ({"sizes": {**SIZES, "P": 65}}, "P=65 is above 64"),
    ({"sizes": {**SIZES, "D": 65}}, "D=65 is above 64"),
    *(({"sizes": {**SIZES, letter: 0}}, f"{letter} is zero") for letter in SIZES),
    ({"options": {"couplings": COUPLINGS}}, "couplings have shape [3, 6, 4]; it needs [I, J]"),
    ({"options": {"couplings": COUPLINGS[:1]}}, "couplings have shape [1, 6, 4]; it needs [I, J]"),
    ({"options": {"couplings": COUPLINGS[0, :1]}}, "couplings have shape [1, 4]; it needs [I, J]"),
]
ACCEPTED: list[dict[str, Any]] = [
    {},
    {"dtype": torch.bfloat16},
    {"dtype": torch.float16},
    {"needs_grad": False},
    {"shared": True},
    {"rows": 5},
    {"options": {"num_iters": 5}},
    {"options": {"num_iters": 1}},
    {"options": {"couplings": COUPLINGS[0]}},
    {"sizes": dict.fromkeys(SIZES, 1)},
    {"sizes": {**SIZES, "B": 100_000}, "dtype": torch.bfloat16},
]


@pytest.fixture(autouse=True)
def _a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused, "_able", lambda: True)


def test_every_algorithm_has_fused_kernels() -> None:
    assert sorted(FUSED) == sorted(ALGORITHMS) == routing.names()
    assert all(entry.op == "vote_and_route" for entry in FUSED.values())


@pytest.mark.parametrize(("differs", "reason"), REFUSED, ids=lambda value: value if isinstance(value, str) else "")
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_each_reason_is_told_and_the_call_runs_elsewhere(algorithm: str, differs: dict[str, Any], reason: str) -> None:
    call = replace(GOOD, algorithm=algorithm, **differs)
    (told,) = fused.refuse(call)
    assert told.startswith(reason)
    assert "\n" not in told
    assert re.search(rf"fused +vote_and_route +refuses: {re.escape(reason)}", explain_call(call))
    assert choose(call).name != "fused"
    with pytest.raises(UnsupportedCall, match=re.escape(f"fused: {reason}")):
        choose(call, "fused")


@pytest.mark.parametrize("differs", ACCEPTED, ids=str)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_what_is_not_refused_is_preferred(algorithm: str, differs: dict[str, Any]) -> None:
    call = replace(GOOD, algorithm=algorithm, **differs)
    assert fused.refuse(call) == []
    assert choose(call).name == "fused"
    assert re.search(r"fused +vote_and_route +runs", explain_call(call))
    assert candidates(algorithm, "vote_and_route")[0].name == "fused"


@pytest.mark.parametrize("differs", [{}, {"dtype": torch.bfloat16}, {"dtype": torch.float64}], ids=str)
def test_a_compiler_can_follow_the_choice(differs: dict[str, Any]) -> None:
    def chosen(poses: torch.Tensor) -> torch.Tensor:
        sizes = {**SIZES, "B": poses.shape[0], "I": poses.shape[1]}
        options = {"algorithm": "agreement", "op": "vote_and_route", "device": "cuda", "dtype": torch.float32, "options": {}}
        flags = {"shared": False, "rows": 1, "needs_grad": True, "need_couplings": False, "trace": False}
        call = Call(**{**options, **flags, "sizes": sizes, **differs})
        return poses + int(choose(call).name == "fused")

    torch._dynamo.reset()
    poses = torch.zeros(3, 6)
    assert torch.equal(torch.compile(chosen, fullgraph=True, backend="eager")(poses), chosen(poses))


def test_agreement_over_the_lower_capsules_is_refused_and_uniform_routing_is_not() -> None:
    call = replace(GOOD, options={"normalise": "sources"})
    assert fused.refuse(call) == ["normalise='sources'; it needs 'targets', a softmax over the upper capsules"]
    assert choose(call).name == "reference"
    assert fused.refuse(replace(call, algorithm="uniform")) == []
    assert fused.refuse(replace(call, options={"normalise": "targets"})) == []


def test_all_reasons_are_told_together() -> None:
    call = replace(GOOD, dtype=torch.float64, need_couplings=True, sizes={**SIZES, "P": 65, "D": 66})
    assert len(fused.refuse(call)) == 4
    with pytest.raises(UnsupportedCall, match=r"dtype is float64.*couplings are asked for.*P=65.*D=66"):
        choose(call, "fused")


@pytest.mark.parametrize(
    ("sizes", "reason"),
    [
        ({"B": 2_097_121, "D": 1, "P": 1}, "B is 2097152, above 2097120"),
        ({"B": 1_000_000, "J": 40, "D": 9}, "2(T + 1)·J·D·B is 2880000000, above 2147483647"),
        ({"B": 2_000_000, "J": 130, "D": 1, "P": 1}, "3T·J·B is 2340000000, above 2147483647"),
        ({"J": 5000, "D": 64, "P": 64}, "J·P·D is 20480000, above 16777216"),
    ],
)
def test_sizes_that_em_cannot_count_are_refused(sizes: dict[str, int], reason: str) -> None:
    call = replace(GOOD, algorithm="em", dtype=torch.bfloat16, sizes={**SIZES, **sizes})
    told = fused.refuse(call)
    assert any(reason in line for line in told), told
    # agreement counts otherwise.
    assert not any("T" in line for line in fused.refuse(replace(call, algorithm="agreement")))


def test_em_leaves_long_float32_poses_to_the_reference() -> None:
    call = replace(GOOD, algorithm="em", sizes={**SIZES, "D": 33})
    assert fused.refuse(call) == ["D is 33, above 32, where float32 is less exact than the reference"]
    for differs in ({"sizes": {**SIZES, "D": 32}}, {"dtype": torch.bfloat16}, {"algorithm": "agreement"}):
        assert fused.refuse(replace(call, **differs)) == []  # type: ignore[arg-type]


ENOUGH = {"B": 256, "I": 1024, "J": 8, "D": 16, "P": 8}


@pytest.mark.parametrize("algorithm", ["uniform", "trainable", "quadratic"])
def test_float32_in_one_step_is_left_to_a_matrix_product_where_that_is_faster(algorithm: str) -> None:
    call = replace(GOOD, algorithm=algorithm, sizes=ENOUGH)
    assert fused.refuse(call) == []
    assert choose(call, "fused").name == "fused"
    assert fused.slower(call) == [
        "B is 256, 256 or more, and B·I·J·D is 33554432, 33554432 or more, where a float32 matrix product is faster"
    ]
    assert choose(call).name == "matmul"
    for differs in ({"dtype": torch.bfloat16}, {"sizes": {**ENOUGH, "I": 1023}}, {"sizes": {**ENOUGH, "B": 255, "I": 1152}}):
        assert choose(replace(call, **differs)).name == "fused"  # type: ignore[arg-type]
    shared = replace(call, shared=True, sizes={**ENOUGH, "B": 128, "I": 2048})
    assert choose(shared).name == "matmul"
    assert choose(replace(shared, sizes={**ENOUGH, "B": 128})).name == "fused"


@pytest.mark.parametrize("algorithm", ["agreement", "em"])
def test_iterations_are_no_matrix_product(algorithm: str) -> None:
    assert choose(replace(GOOD, algorithm=algorithm, sizes=ENOUGH)).name == "fused"


def test_an_old_gpu_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused, "_able", lambda: False)
    assert fused.refuse(GOOD) == ["the GPU is older than compute capability 8.0"]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_cpu_is_refused_through_the_public_functions(algorithm: str) -> None:
    given: dict[str, Any] = {key: value.float() for key, value in Problem(algorithm, PLAIN).inputs().items()}
    poses, weight = given.pop("poses"), given.pop("weight")
    text = routing.explain(algorithm, poses, weight, need_couplings=False, **given)
    assert re.search("fused +vote_and_route +refuses: device is cpu; it needs cuda$", text, re.MULTILINE)
    with pytest.raises(UnsupportedCall, match="fused: device is cpu"):
        routing.vote_and_route(algorithm, poses, weight, impl="fused", need_couplings=False, **given)


@pytest.mark.parametrize("algorithm", ["agreement", "em"])
def test_mistakes_are_told_as_the_reference_tells_them(algorithm: str) -> None:
    given: dict[str, Any] = {key: value.float() for key, value in Problem(algorithm, PLAIN).inputs().items()}
    poses, weight = given.pop("poses"), given.pop("weight")
    wrong: list[dict[str, Any]] = [{"bias": torch.zeros(2, 3)}, {"num_iters": 0}]
    wrong += (
        [{"squash": "sabor"}, {"prior": torch.zeros(4, 6)}]
        if algorithm == "agreement"
        else [{"eps": -1.0}, {"output": "men"}, {"inverse_temperature": (1.0,)}, {"beta_a": torch.zeros(9)}]
    )
    for options in wrong:
        messages = []
        for run in (
            lambda **o: FUSED[algorithm].run(poses, weight, rows=1, **o),
            lambda **o: routing.vote_and_route(algorithm, poses, weight, impl="reference", **o),
        ):
            with pytest.raises((ValueError, TypeError), match=next(iter(options))) as error:
                run(**{**given, **options})
            messages.append(str(error.value))
        assert messages[0] == messages[1]


@pytest.mark.parametrize("couplings", [torch.zeros(6, 4, dtype=torch.int64), [[0.0] * 4] * 6], ids=["integers", "a list"])
@pytest.mark.parametrize("algorithm", ["quadratic", "trainable"])
def test_couplings_that_are_no_tensor_of_floats_are_refused_or_named(algorithm: str, couplings: Any) -> None:
    call = replace(GOOD, algorithm=algorithm, options={"couplings": couplings})
    if not fused.refuse(call):
        with pytest.raises(TypeError, match=r"^couplings is .*; expected a floating-point tensor"):
            FUSED[algorithm].run(torch.zeros(3, 6, 7), torch.zeros(6, 4, 7, 5), rows=1, couplings=couplings)


@pytest.mark.parametrize(("setting", "expected"), [("tf32", "tf32"), ("ieee", "tf32x3")])
def test_torch_s_newer_precision_settings_are_read(setting: str, expected: str) -> None:
    products = torch.backends.cuda.matmul
    try:
        products.fp32_precision = setting
        assert precision() == expected
    finally:
        products.fp32_precision = "ieee"  # as all tests have it
