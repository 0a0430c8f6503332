"""The helpers that other tests trust: a parity check that cannot fail would prove nothing."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from capsella import routing
from capsella.testing import (
    FLOOR,
    PAPERS,
    SMALL,
    Case,
    ParityError,
    assert_parity,
    check_parity,
    generator,
    make_options,
    make_votes_input,
)

DTYPES = [torch.float32, torch.bfloat16, torch.float64]
TRUTH = torch.randn(40, 7, generator=generator(0), dtype=torch.float64)


def perturb(tensor: Tensor, relative: float) -> Tensor:
    """Move one element by so much of the largest value."""
    moved = tensor.clone()
    moved[17, 3] += relative * TRUTH.abs().max().item()
    return moved


def test_processes_that_share_a_folder_run_each_test_once(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    for name in ("conftest.py", "claims.py"):
        shutil.copy(Path(__file__).with_name(name), tmp_path / "tests")
    (tmp_path / "tests" / "test_many.py").write_text(
        "import pytest\n"
        "@pytest.fixture(scope='module')\n"
        "def kept():\n"
        "    yield\n"
        "@pytest.mark.parametrize('number', range(20))\n"
        "def test_one(number, kept):\n"
        "    open(f'ran-{number}', 'x').close()\n"
    )
    (tmp_path / "tests" / "test_more.py").write_text((tmp_path / "tests" / "test_many.py").read_text().replace("ran-", "more-"))
    given = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--claims", "claims", "tests"]
    # each has temporary files of its own: where two clear away what earlier sessions left, one finds a folder gone and warns.
    own = [["--basetemp", str(tmp_path / f"temporary-{k}")] for k in range(3)]
    processes = [
        subprocess.Popen([sys.executable, *given, *options], cwd=tmp_path, stdout=subprocess.PIPE, text=True)
        for options in own[:2]
    ]
    said = [process.communicate(timeout=60)[0] for process in processes]
    assert len(list(tmp_path.glob("ran-*"))) == len(list(tmp_path.glob("more-*"))) == 20
    counts = [int(found) for text in said for found in re.findall(r"(\d+) passed", text)]
    assert sum(counts) == 40, said
    assert not any("failed" in text or "error" in text for text in said), said
    # all are taken.
    late = subprocess.run([sys.executable, *given, *own[2]], cwd=tmp_path, stdout=subprocess.PIPE, text=True, timeout=60)
    assert "0 of 40 tests were claimed here" in late.stdout
    assert late.returncode == pytest.ExitCode.NO_TESTS_COLLECTED


def test_the_environment_has_no_torchvision() -> None:
    assert importlib.util.find_spec("torchvision") is None


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_yardstick_itself_passes(dtype: torch.dtype) -> None:
    assert_parity(TRUTH.to(dtype), TRUTH, TRUTH.to(dtype))


@pytest.mark.parametrize(("dtype", "relative"), [(torch.float32, 1e-5), (torch.bfloat16, 3e-2), (torch.float64, 1e-11)])
def test_one_perturbed_element_fails(dtype: torch.dtype, relative: float) -> None:
    yardstick = TRUTH.to(dtype)
    with pytest.raises(ParityError, match=r"^weights: largest error .* exceeds .*; worst element at \(17, 3\)$"):
        assert_parity(perturb(yardstick, relative), TRUTH, yardstick, name="weights")


def test_the_bound_on_one_element_is_factor_times_the_yardstick_s_error_plus_the_floor() -> None:
    yardstick = perturb(TRUTH, 1e-6)
    floor = FLOOR[torch.float64] / 1e-6
    for factor in (2.0, 3.0):
        # just inside and just outside; the margin is the rounding of the comparison itself.
        assert_parity(perturb(TRUTH, 1e-6 * (factor + floor) * (1 - 1e-9)), TRUTH, yardstick, factor=factor)
        with pytest.raises(ParityError, match="largest error"):
            assert_parity(perturb(TRUTH, 1e-6 * (factor + floor) * (1 + 1e-9)), TRUTH, yardstick, factor=factor)


def test_many_small_errors_fail_by_their_root_mean_square() -> None:
    # no element is worse than the yardstick's worst, but all are as bad as it.
    yardstick = perturb(TRUTH, 1e-6)
    with pytest.raises(ParityError, match="RMS error ratio"):
        assert_parity(TRUTH + 1e-6 * TRUTH.abs().max(), TRUTH, yardstick)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_one_element_that_is_not_finite_fails(value: float) -> None:
    candidate = TRUTH.clone()
    candidate[0, 0] = value
    with pytest.raises(ParityError, match=r"^result: 1 of 280 elements are not finite$"):
        assert_parity(candidate, TRUTH, TRUTH)


def test_a_yardstick_with_nan_does_not_let_anything_pass() -> None:
    with pytest.raises(ParityError):
        assert_parity(TRUTH + 1, TRUTH, TRUTH * float("nan"))


@pytest.mark.parametrize("change", [lambda t: t[:1], lambda t: t[None], lambda t: t.mT, lambda t: t[..., 0]])
def test_a_wrong_shape_fails_even_if_it_broadcasts(change: Callable[[Tensor], Tensor]) -> None:
    with pytest.raises(ParityError, match=r"shape and dtype are .*; expected \[40, 7\], torch.float64$"):
        assert_parity(change(TRUTH), TRUTH, TRUTH)


def test_a_wrong_dtype_fails() -> None:
    with pytest.raises(ParityError, match=r"shape and dtype are \[40, 7\], torch.float64; expected \[40, 7\], torch.float32$"):
        assert_parity(TRUTH, TRUTH, TRUTH.float())
    with pytest.raises(TypeError, match=r"^truth has dtype torch.float32; expected torch.float64$"):
        assert_parity(TRUTH.float(), TRUTH.float(), TRUTH.float())


def test_a_truth_of_zeros_still_has_a_floor() -> None:
    zero = torch.zeros(3, dtype=torch.float64)
    assert_parity(zero.float(), zero, zero.float())
    with pytest.raises(ParityError):
        assert_parity(zero.float() + 1e-5, zero, zero.float())


def reference(votes: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    result = routing.agreement(votes, bias=bias)
    return result.poses, result.activations


class WrongGradient(torch.autograd.Function):
    """The identity, with a gradient that is one percent off."""

    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: object, gradient: Tensor) -> Tensor:  # type: ignore[override]
        return gradient * 1.01


CANDIDATES: dict[str, tuple[Callable[..., tuple[Tensor, ...]], str]] = {
    "perturbed": (lambda votes, bias: reference(votes * 1.05, bias), r"^output 0: "),
    "second output": (lambda votes, bias: (reference(votes, bias)[0], reference(votes, bias)[1] * 1.05), r"^output 1: "),
    "nan": (
        lambda votes, bias: (reference(votes, bias)[0] * float("nan"), reference(votes, bias)[1]),
        r"^output 0: .*not finite$",
    ),
    "wrong shape": (lambda votes, bias: (reference(votes, bias)[0][:1], reference(votes, bias)[1]), r"^output 0: shape"),
    "wrong dtype": (lambda votes, bias: (reference(votes, bias)[0].half(), reference(votes, bias)[1]), r"^output 0: .*dtype"),
    "missing output": (lambda votes, bias: reference(votes, bias)[:1], r"^candidate returns .*; expected .*'output 1'"),
    "wrong gradient": (lambda votes, bias: reference(WrongGradient.apply(votes), bias), r"^gradient of votes: "),
    "wrong gradient of another": (lambda votes, bias: reference(votes, WrongGradient.apply(bias)), r"^gradient of bias: "),
    "no gradient": (lambda votes, bias: reference(votes, bias.detach()), r"^gradient of bias: "),
}


def inputs() -> dict[str, Tensor]:
    return {"votes": make_votes_input(SMALL[0]), "bias": make_options("agreement", SMALL[0], optional=True)["bias"]}


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_reference_is_at_parity_with_itself(dtype: torch.dtype) -> None:
    check_parity(reference, reference, inputs(), dtype=dtype)


def test_one_output_need_not_be_a_tuple() -> None:
    check_parity(torch.sin, torch.sin, {"input": TRUTH}, dtype=torch.float32)
    with pytest.raises(ParityError, match=r"^output 0: "):
        check_parity(torch.tanh, torch.sin, {"input": TRUTH}, dtype=torch.float32)


@pytest.mark.parametrize("mistake", CANDIDATES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_wrong_candidate_fails_and_is_named(mistake: str, dtype: torch.dtype) -> None:
    candidate, message = CANDIDATES[mistake]
    with pytest.raises(ParityError, match=message):
        check_parity(candidate, reference, inputs(), dtype=dtype)


def test_parity_leaves_its_inputs_alone() -> None:
    given = inputs()
    copies = {key: value.clone() for key, value in given.items()}
    check_parity(reference, reference, given, dtype=torch.float32)
    for key, value in given.items():
        assert torch.equal(value, copies[key])
        assert not value.requires_grad


@pytest.mark.parametrize("name", routing.names())
def test_inputs_are_seeded_and_complete(name: str) -> None:
    case = SMALL[1]
    assert make_votes_input(case).shape == (case.B, case.I, case.J, case.D)
    assert torch.equal(make_votes_input(case, scale=3.0), 3 * make_votes_input(case))
    assert not torch.equal(make_votes_input(case), make_votes_input(case, seed=1))
    bare, full = make_options(name, case), make_options(name, case, dtype=torch.float32, optional=True)
    assert set(bare) < set(full)
    assert all(torch.equal(bare[key], make_options(name, case)[key]) for key in bare)
    assert {value.dtype for value in full.values()} == {torch.float32}
    getattr(routing, name)(make_votes_input(case), **bare)


def test_cases_have_names_of_their_own_and_reach_the_corners() -> None:
    cases: tuple[Case, ...] = (*SMALL, *PAPERS)
    assert len({case.name for case in cases}) == len(cases)
    for letter in "BIJD":
        assert any(getattr(case, letter) == 1 for case in SMALL)
