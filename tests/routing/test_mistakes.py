"""Users' mistakes, for every registered algorithm: one line that names the argument, its value and what would work."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import Tensor

from capsella import routing
from capsella.testing import SMALL, make_options, make_votes_input

CASE = SMALL[0]
TENSORS = ("bias", "prior", "couplings", "beta_a", "beta_u", "activations")
everything = pytest.mark.parametrize("name", routing.names())
with_tensors = pytest.mark.parametrize(
    ("name", "option"),
    [(name, option) for name in routing.names() for option in TENSORS if option in routing.get(name).options],
)
iterative = pytest.mark.parametrize("name", [name for name in routing.names() if routing.get(name).is_iterative])


def call(name: str, votes: Any = None, **changes: Any) -> object:
    votes = make_votes_input(CASE, dtype=torch.float32) if votes is None else votes
    options = make_options(name, CASE, dtype=torch.float32, optional=True)
    return getattr(routing, name)(votes, **(options | changes))


@everything
@pytest.mark.parametrize(
    ("votes", "error", "message"),
    [
        (torch.zeros(6, 4, 5), ValueError, "votes has shape [6, 4, 5]; expected [B, I, J, D]"),
        (torch.zeros(3, 6, 4, 5, 1), ValueError, "votes has shape [3, 6, 4, 5, 1]; expected [B, I, J, D]"),
        (torch.zeros(3, 6, 4, 5).long(), TypeError, "votes has dtype torch.int64; expected a floating-point tensor"),
        ([[[[1.0]]]], TypeError, "votes has type list; expected a tensor"),
    ],
)
def test_wrong_votes(name: str, votes: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"^{re.escape(message)}$"):
        call(name, votes)


@everything
def test_an_unknown_option_names_the_near_match(name: str) -> None:
    for wrong, right in (("biass", "bias"), ("need_coupling", "need_couplings"), ("tracee", "trace")):
        message = rf"^{name}: option='{wrong}' is unknown; did you mean '{right}'.*Known: .*'{right}'.*$"
        with pytest.raises(TypeError, match=message):
            call(name, **{wrong: None})
        with pytest.raises(TypeError, match=message):
            routing.vote_and_route(name, torch.ones(1, 2, 3), torch.ones(2, 4, 3, 5), **{wrong: None})
        with pytest.raises(TypeError, match=message):
            routing.explain(name, torch.ones(1, 2, 3, 4), **{wrong: None})


@with_tensors
def test_a_tensor_option_of_the_wrong_shape(name: str, option: str) -> None:
    right: Tensor = make_options(name, CASE, dtype=torch.float32, optional=True)[option]
    for wrong in (torch.zeros(*right.shape[:-1], right.shape[-1] + 1), torch.zeros(2, 2, *right.shape), torch.zeros(2, 2)):
        message = rf"^{option} has shape {re.escape(str(list(wrong.shape)))}; expected \[.*\]$"
        with pytest.raises(ValueError, match=message):
            call(name, **{option: wrong})


@with_tensors
def test_a_tensor_option_of_integers_or_numbers(name: str, option: str) -> None:
    right: Tensor = make_options(name, CASE, dtype=torch.float32, optional=True)[option]
    with pytest.raises(TypeError, match=rf"^{option} (has dtype|is) torch.int64; expected a floating-point tensor.*$"):
        call(name, **{option: right.long()})
    with pytest.raises(TypeError, match=rf"^{option} (has type|is) float; expected a .*tensor.*$"):
        call(name, **{option: 0.5})


@with_tensors
def test_a_tensor_option_wider_than_the_votes_is_named(name: str, option: str) -> None:
    right: Tensor = make_options(name, CASE, dtype=torch.float32, optional=True)[option]
    with pytest.raises(
        TypeError, match=rf"^{option} has dtype torch.float64; expected torch.float32 or narrower, as the votes$"
    ):
        call(name, **{option: right.double()})


@with_tensors
def test_a_tensor_option_narrower_than_the_votes_is_widened(name: str, option: str) -> None:
    votes, options = make_votes_input(CASE), make_options(name, CASE, optional=True)
    narrow = options[option].float()
    result = getattr(routing, name)(votes, **(options | {option: narrow}))
    exact = getattr(routing, name)(votes, **(options | {option: narrow.double()}))
    assert torch.equal(result.poses, exact.poses)
    assert result.poses.dtype == torch.float64


@with_tensors
def test_a_required_tensor_that_is_missing_is_named(name: str, option: str) -> None:
    entry = routing.get(name)
    if option not in (*entry.required, "activations"):
        assert entry.default(option) is None
        return
    options = make_options(name, CASE, dtype=torch.float32)
    del options[option]
    with pytest.raises(TypeError, match=rf"^[^\n]*{option}[^\n]*$"):
        getattr(routing, name)(make_votes_input(CASE, dtype=torch.float32), **options)


@iterative
@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        (0, ValueError, "num_iters=0 is too small; expected an int of at least 1"),
        (-2, ValueError, "num_iters=-2 is too small; expected an int of at least 1"),
        (2.5, TypeError, "num_iters=2.5 has type float; expected an int of at least 1"),
        (True, TypeError, "num_iters=True has type bool; expected an int of at least 1"),
    ],
)
def test_a_number_of_iterations_that_is_no_count(name: str, value: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"^{message}$"):
        call(name, num_iters=value)


@pytest.mark.parametrize(
    ("name", "option", "value", "near"),
    [
        *((name, "squash", "sabor", "sabour") for name in ("agreement", "uniform", "trainable", "quadratic")),
        ("uniform", "normalise", "target", "targets"),
        ("agreement", "normalise", "source", "sources"),
        ("em", "cost_log", "varianc", "variance"),
        ("em", "normaliser", "gausian", "gaussian"),
        ("em", "output", "scale", "scaled"),
        *((name, "impl", "referense", "reference") for name in routing.names()),
    ],
)
def test_an_unknown_choice_names_the_near_match(name: str, option: str, value: str, near: str) -> None:
    with pytest.raises(ValueError, match=rf"^{option}='{value}' is unknown; did you mean '{near}'\? Known: .*'{near}'.*$"):
        call(name, **{option: value})


def test_temperatures_must_be_one_or_one_per_iteration() -> None:
    with pytest.raises(ValueError, match=r"^inverse_temperature has 2 values; expected 1 or num_iters=3$"):
        call("em", num_iters=3, inverse_temperature=(0.1, 0.2))


@pytest.mark.parametrize(
    ("option", "value", "error", "message"),
    [
        ("inverse_temperature", None, TypeError, "inverse_temperature=None has type NoneType; expected a number"),
        ("inverse_temperature", ("a", 0.1, 0.1), TypeError, "inverse_temperature='a' has type str; expected a number"),
        ("eps", None, TypeError, "eps=None has type NoneType; expected a number"),
        ("eps", -1.0, ValueError, "eps=-1.0 is too small; expected a number of at least 0"),
    ],
)
def test_numbers_of_em_must_be_numbers(option: str, value: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"^{message}$"):
        call("em", **{option: value})


@everything
@pytest.mark.parametrize("empty", [1, 2, 3])
def test_only_the_batch_may_be_empty(name: str, empty: int) -> None:
    sizes = [CASE.B, CASE.I, CASE.J, CASE.D]
    sizes[empty] = 0
    with pytest.raises(ValueError, match=r"^votes has shape \[.*0.*\]; expected no empty axis in \[B, I, J, D\] but B$"):
        call(name, torch.zeros(*sizes))


@everything
def test_an_empty_batch_gives_empty_results(name: str) -> None:
    options = make_options(name, CASE, dtype=torch.float32)
    if "activations" in options:
        options["activations"] = options["activations"][:0]
    result = getattr(routing, name)(make_votes_input(CASE, dtype=torch.float32)[:0], **options)
    assert result.poses.shape == (0, CASE.J, CASE.D)
    assert result.couplings.shape == (0, CASE.I, CASE.J)


def test_an_unknown_algorithm_names_the_near_match() -> None:
    for function in (
        lambda: routing.get("agrement"),
        lambda: routing.vote_and_route("agrement", torch.ones(1, 2, 3), torch.ones(2, 4, 3, 5)),
        lambda: routing.explain("agrement", torch.ones(1, 2, 3, 4)),
    ):
        with pytest.raises(ValueError, match=r"^routing='agrement' is unknown; did you mean 'agreement'\? Known: .*'em'.*$"):
            function()


def test_too_many_positions_and_the_same_argument_twice() -> None:
    votes, activations = torch.zeros(1, 2, 3, 4), torch.ones(1, 2)
    with pytest.raises(TypeError, match=r"^agreement takes votes by position, the rest by name; got 2 positions$"):
        routing.agreement(votes, 3)
    with pytest.raises(TypeError, match=r"^em got activations twice.*$"):
        routing.em(votes, activations, activations=activations, beta_a=torch.zeros(3), beta_u=torch.zeros(3))


@pytest.mark.parametrize(
    ("poses", "weight", "message"),
    [
        (torch.ones(2, 3), torch.ones(3, 4, 5, 6), r"^poses has shape \[2, 3\]; expected \[B, I, P\]$"),
        (torch.ones(1, 2, 3), torch.ones(4, 3, 5), r"^weight has shape \[4, 3, 5\]; expected \[I, J, P, D\]$"),
        (torch.ones(1, 2, 3), torch.ones(2, 4, 5, 6), r"^poses has pose size 3; expected 5 .*$"),
        (torch.ones(1, 2, 3), torch.ones(3, 4, 3, 6), r"^weight has 3 lower capsules; expected I=2 .*$"),
    ],
)
def test_poses_and_weight_that_do_not_fit(poses: Tensor, weight: Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        routing.vote_and_route("agreement", poses, weight)
