"""The door for fused implementations: who runs, who refuses and why, what they are told."""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from capsella import routing
from capsella.functional import make_votes
from capsella.routing import Call, Implementation, Routed, UnsupportedCall, register_implementation
from capsella.routing.base import IMPLEMENTATIONS
from capsella.routing.dispatch import choices, choose
from capsella.testing import SMALL, Case, generator, make_options, make_votes_input

pytestmark = pytest.mark.usefixtures("registry", "_references_alone")

CASE = SMALL[0]
VOTES = make_votes_input(CASE, dtype=torch.float32)
POSES = torch.randn(CASE.B, CASE.I, CASE.P, generator=generator(1))
WEIGHT = torch.randn(CASE.I, CASE.J, CASE.P, CASE.D, generator=generator(2))
RESULT = Routed(torch.full((CASE.B, CASE.J, CASE.D), 7.0), torch.full((CASE.B, CASE.J), 7.0))
everything = pytest.mark.parametrize("name", routing.names())


@pytest.fixture
def _references_alone(registry: None) -> None:
    """Take out the implementations that the package adds: these tests bring their own."""
    IMPLEMENTATIONS[:] = [entry for entry in IMPLEMENTATIONS if entry.name == "reference"]


class Fake:
    """An implementation that remembers what it was told and what it was run with."""

    def __init__(
        self,
        name: str = "fused",
        *,
        op: str = "route",
        rank: int = 10,
        reasons: tuple[str, ...] = (),
        slower: tuple[str, ...] = (),
    ) -> None:
        self.calls: list[Call] = []
        self.runs: list[tuple[tuple[Tensor, ...], dict[str, Any]]] = []
        self.reasons = list(reasons)
        entry = Implementation("agreement", op, name, self.run, self.refuse, rank, slower=lambda call: list(slower))
        register_implementation(entry)

    def refuse(self, call: Call) -> list[str]:
        self.calls.append(call)
        return self.reasons

    def run(self, *tensors: Tensor, **options: Any) -> Routed:
        assert not torch.is_autocast_enabled("cpu")
        self.runs.append((tensors, options))
        return RESULT


def poses_of(**options: Any) -> Tensor:
    return routing.agreement(VOTES, **options).poses


def test_auto_picks_the_lowest_rank_that_does_not_refuse() -> None:
    slow, fast, fastest = Fake("slow", rank=30), Fake("fast", rank=20), Fake("fastest", rank=10, reasons=("too new",))
    assert routing.agreement(VOTES) is RESULT
    assert [len(fake.runs) for fake in (slow, fast, fastest)] == [0, 1, 0]
    assert [len(fake.calls) for fake in (slow, fast, fastest)] == [0, 1, 1]


def test_a_refusal_falls_through_to_the_reference() -> None:
    reference = poses_of(impl="reference")
    fake = Fake(reasons=("no GPU",))
    assert torch.equal(poses_of(), reference)
    assert not fake.runs


def test_what_is_slower_runs_where_it_is_named_and_nowhere_else() -> None:
    fake = Fake(slower=("J is 4; the reference is faster below 8",))
    assert torch.equal(poses_of(), poses_of(impl="reference"))
    assert not fake.calls  # to say whether it can run may take building it
    assert routing.explain("agreement", VOTES).splitlines()[1:] == [
        "  fused        route           slower: J is 4; the reference is faster below 8",
        "  reference    route           runs",
    ]
    assert routing.agreement(VOTES, impl="fused") is RESULT
    with routing.prefer("fused"):
        assert routing.agreement(VOTES) is RESULT
        assert "fused        route           runs" in routing.explain("agreement", VOTES)


def test_the_reference_can_be_asked_for_by_name() -> None:
    fake = Fake()
    assert torch.equal(poses_of(impl="reference"), routing.get("agreement").reference(VOTES).poses)
    assert not fake.runs


def test_a_named_implementation_that_refuses_raises_with_all_reasons() -> None:
    Fake(reasons=("no GPU", "J is 4; expected at least 8"))
    with pytest.raises(UnsupportedCall, match=r"^impl='fused' .*agreement.*no GPU.*J is 4; expected at least 8.*$") as error:
        poses_of(impl="fused")
    assert isinstance(error.value, ValueError)


def test_a_name_that_two_operations_share_is_one_choice() -> None:
    whole, half = Fake(op="vote_and_route", rank=1, reasons=("matrix poses",)), Fake(op="route", rank=2)
    assert routing.vote_and_route("agreement", POSES, WEIGHT, impl="fused") is RESULT
    assert (len(whole.runs), len(half.runs)) == (0, 1)
    half.reasons = ["too large"]
    with pytest.raises(UnsupportedCall, match=r"^.*matrix poses.*too large.*$"):
        routing.vote_and_route("agreement", POSES, WEIGHT, impl="fused")


def test_an_unknown_implementation_lists_the_near_matches() -> None:
    Fake()
    with pytest.raises(ValueError, match=r"^impl='fusd' is unknown; did you mean 'fused'\?.*'auto', 'fused', 'reference'$"):
        poses_of(impl="fusd")


def test_explain_shows_who_runs_and_who_refuses_with_reasons() -> None:
    Fake("picky", rank=1, reasons=("no GPU", "float32 only"))
    Fake("fused", rank=2)
    Fake("whole", op="vote_and_route", rank=3)
    assert routing.explain("agreement", VOTES, num_iters=2).splitlines() == [
        "agreement (route) on cpu, float32, B=3 I=6 J=4 D=5",
        "  picky        route           refuses: no GPU; float32 only",
        "  fused        route           runs",
        "  reference    route           can run",
    ]
    assert routing.explain("agreement", POSES, WEIGHT).splitlines() == [
        "agreement (vote_and_route) on cpu, float32, B=3 I=6 J=4 D=5 P=7",
        "  picky        route           refuses: no GPU; float32 only",
        "  fused        route           runs",
        "  whole        vote_and_route  can run",
        "  reference    route           can run",
    ]


def test_explain_and_choice_agree_on_what_is_preferred() -> None:
    fake = Fake("fused", rank=1)
    with routing.prefer("reference"):
        assert routing.explain("agreement", VOTES).splitlines()[1:] == [
            "  fused        route           can run",
            "  reference    route           runs",
        ]
        poses_of()
    assert not fake.runs
    assert "reference    route           runs" in routing.explain("agreement", VOTES, impl="reference")
    with routing.prefer("fused"):
        assert routing.explain("uniform", VOTES).splitlines()[-1] == (
            "  nothing runs: impl='fused' is unknown. Known: 'auto', 'reference' (from prefer() or CAPSELLA_IMPL)"
        )


def test_an_exception_inside_refuse_propagates() -> None:
    def broken(call: Call) -> list[str]:
        raise ZeroDivisionError("a bug in refuse")

    register_implementation(Implementation("agreement", "route", "broken", lambda votes: RESULT, broken, 1))
    for attempt in (poses_of, lambda: poses_of(impl="broken"), lambda: routing.explain("agreement", VOTES)):
        with pytest.raises(ZeroDivisionError, match="a bug in refuse"):
            attempt()


def test_vote_and_route_hands_poses_weight_and_rows_to_who_takes_them() -> None:
    fake = Fake(op="vote_and_route")
    poses, weight = torch.ones(2, 3, 8), torch.ones(3, 4, 4, 5)
    assert routing.vote_and_route("agreement", poses, weight, rows=2, num_iters=2) is RESULT
    ((tensors, options),) = fake.runs
    assert tensors[0] is poses
    assert tensors[1] is weight
    assert options == {"rows": 2, "num_iters": 2}
    assert torch.equal(poses_of(), poses_of(impl="reference"))  # votes alone are not for it
    assert len(fake.calls) == 1


def test_vote_and_route_hands_votes_to_who_only_routes() -> None:
    fake = Fake()
    poses, weight = torch.randn(2, 3, 8), torch.randn(3, 4, 4, 5)
    assert routing.vote_and_route("agreement", poses, weight, rows=2, squash="exp") is RESULT
    ((tensors, options),) = fake.runs
    assert len(tensors) == 1
    assert torch.equal(tensors[0], make_votes(poses, weight, rows=2))
    assert options == {"squash": "exp"}


def test_an_implementation_that_makes_votes_is_never_handed_tensors_that_do_not_fit() -> None:
    fake = Fake(op="vote_and_route")
    for poses, weight, rows in (
        (torch.ones(1, 2, 3), torch.ones(2, 4, 5, 6), 1),
        (torch.ones(1, 2, 3), torch.ones(3, 4, 3, 6), 1),
        (torch.ones(1, 2, 3), torch.ones(2, 4, 3, 6), 0),
    ):
        with pytest.raises(ValueError, match=r"^(poses|weight|rows)\b.*expected.*$"):
            routing.vote_and_route("agreement", poses, weight, rows=rows)
    assert not fake.runs


def test_who_listens_within_another_hears_what_comes_while_he_does() -> None:
    with choices() as outer:
        with choices() as inner:
            routing.uniform(VOTES)
        routing.uniform(VOTES)
    routing.uniform(VOTES)
    assert (len(outer), len(inner)) == (2, 1)


def test_a_call_to_route_says_everything() -> None:
    fake = Fake()
    votes, bias = VOTES.bfloat16().requires_grad_(), torch.zeros(CASE.J, CASE.D)
    routing.agreement(votes, num_iters=2, bias=bias, need_couplings=False, trace=True)
    (call,) = fake.calls
    assert (call.algorithm, call.op, call.device, call.dtype) == ("agreement", "route", "cpu", torch.bfloat16)
    assert dict(call.sizes) == {"B": 3, "I": 6, "J": 4, "D": 5}
    assert (call.shared, call.rows, call.needs_grad, call.need_couplings, call.trace) == (False, 1, True, False, True)
    assert call.options["num_iters"] == 2
    assert call.options["bias"] is bias


@pytest.mark.parametrize(("sources", "shared"), [(3, False), (1, True)])
def test_a_call_to_vote_and_route_says_everything(sources: int, shared: bool) -> None:
    fake = Fake(op="vote_and_route")
    routing.vote_and_route("agreement", torch.ones(2, 3, 8).double(), torch.ones(sources, 4, 4, 5).double(), rows=2)
    (call,) = fake.calls
    assert (call.algorithm, call.op, call.device, call.dtype) == ("agreement", "vote_and_route", "cpu", torch.float64)
    assert dict(call.sizes) == {"B": 2, "I": 3, "J": 4, "D": 10, "P": 8}
    assert (call.shared, call.rows, call.needs_grad, call.need_couplings, call.trace) == (shared, 2, False, True, False)


@pytest.mark.parametrize("leaf", ["votes", "bias", "prior", "none"])
def test_needs_grad_looks_at_every_tensor_and_at_the_mode(leaf: str) -> None:
    fake = Fake()
    tensors = {"votes": VOTES.clone(), **make_options("agreement", CASE, dtype=torch.float32, optional=True)}
    if leaf in tensors:
        tensors[leaf].requires_grad_()
    routing.agreement(**tensors)
    with torch.no_grad():
        routing.agreement(**tensors)
    assert [call.needs_grad for call in fake.calls] == [leaf != "none", False]


def test_prefer_changes_what_auto_means_inside_its_block_only() -> None:
    fake, reference = Fake(rank=2000), routing.get("agreement").reference(VOTES).poses
    assert torch.equal(poses_of(), reference)
    with routing.prefer("fused"):
        assert poses_of() is RESULT.poses
        assert torch.equal(poses_of(impl="reference"), reference)
        with routing.prefer("reference"):
            assert torch.equal(poses_of(), reference)
        assert poses_of() is RESULT.poses
    assert torch.equal(poses_of(), reference)
    with pytest.raises(KeyError), routing.prefer("fused"):
        raise KeyError
    assert torch.equal(poses_of(), reference)
    assert len(fake.runs) == 2


def test_the_environment_variable_is_what_auto_means() -> None:
    # it is read at import; torch, which takes longest to import, is for both.
    code = """
import os, sys, torch
for impl in sys.argv[1:]:
    if child := os.fork():
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    else:
        os.environ["CAPSELLA_IMPL"] = impl
        from capsella import routing
        routing.uniform(torch.ones(1, 2, 3, 4))
        sys.exit()
"""
    command = [sys.executable, "-c", code, "referense", "reference"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["1", "0"]
    assert done.stderr.count("Traceback") == 1
    assert "impl='referense' is unknown; did you mean 'reference'?" in done.stderr


def test_duplicates_and_strangers_are_refused_at_registration() -> None:
    Fake()
    Fake(op="vote_and_route")  # the same name for another operation is another implementation
    with pytest.raises(ValueError, match=r"^.*'fused'.* is registered already.*$"):
        Fake(rank=99)
    with pytest.raises(ValueError, match=r"^op='rout' is unknown; did you mean 'route'.*$"):
        Fake("other", op="rout")
    with pytest.raises(ValueError, match=r"^routing='agrement' is unknown; did you mean 'agreement'.*$"):
        register_implementation(Implementation("agrement", "route", "x", lambda votes: RESULT, lambda call: [], 1))
    with pytest.raises(ValueError, match=r"^name='agreement' is registered already.*$"):
        routing.register("agreement", paper="again")(lambda votes: RESULT)


def test_when_everything_refuses_the_message_has_the_reasons() -> None:
    Fake(reasons=("no GPU",))
    IMPLEMENTATIONS[:] = [entry for entry in IMPLEMENTATIONS if entry.name == "fused"]
    call = Call("agreement", "route", "cpu", torch.float32, {"B": 1}, False, 1, False, True, False, {})
    with pytest.raises(UnsupportedCall, match=r"cannot run agreement here: fused: no GPU$"):
        choose(call)


@everything
def test_the_public_function_says_what_it_takes(name: str) -> None:
    public: Callable[..., Routed] = getattr(routing, name)
    parameters = inspect.signature(public).parameters
    assert list(parameters) == ["votes", *routing.get(name).options, "impl"]
    assert parameters["impl"].default == "auto"
    assert public.__doc__ == routing.get(name).reference.__doc__


@everything
def test_autocast_may_make_half_votes_but_sums_stay_in_float32(name: str) -> None:
    case = Case("many", B=2, I=200, J=5, D=4, P=3)
    poses, weight = torch.randn(case.B, case.I, case.P), torch.randn(case.I, case.J, case.P, case.D)
    options = make_options(name, case, dtype=torch.float32, optional=True)
    votes = make_votes(poses.bfloat16(), weight.bfloat16())
    with torch.autocast("cpu", torch.bfloat16):
        result = routing.vote_and_route(name, poses, weight, **options)
        single = getattr(routing, name)(votes.float(), **options)
    exact = getattr(routing, name)(votes.float(), **options)
    for key in ("poses", "activations", "couplings"):
        assert getattr(result, key).dtype == torch.bfloat16
        assert torch.equal(getattr(result, key), getattr(exact, key).bfloat16())
        assert torch.equal(getattr(single, key), getattr(exact, key))


@everything
def test_it_compiles_to_one_graph_through_the_dispatcher(name: str) -> None:
    options = make_options(name, CASE, dtype=torch.float32, optional=True)

    def both(votes: Tensor, poses: Tensor, weight: Tensor) -> tuple[Routed, Routed]:
        first = getattr(routing, name)(votes, trace=True, **options)
        return first, routing.vote_and_route(name, poses, weight, **options)

    torch._dynamo.reset()
    inputs = [tensor.clone().requires_grad_() for tensor in (VOTES, POSES, WEIGHT)]
    compiled = torch.compile(both, fullgraph=True, backend="eager")
    for result, expected in zip(compiled(*inputs), both(*inputs), strict=True):
        torch.testing.assert_close(result.poses, expected.poses, rtol=1e-6, atol=1e-7)
        torch.testing.assert_close(result.couplings, expected.couplings, rtol=1e-6, atol=1e-7)
        grads = [torch.autograd.grad(r.poses.sum(), inputs, allow_unused=True) for r in (result, expected)]
        torch.testing.assert_close(*grads, rtol=1e-5, atol=1e-6)


def test_a_fused_implementation_compiles_too() -> None:
    register_implementation(
        Implementation(
            "agreement", "route", "fused", lambda votes, **_: Routed(votes[:, 0] + 1, votes[:, 0, :, 0]), lambda c: [], 1
        )
    )
    torch._dynamo.reset()
    compiled = torch.compile(lambda votes: routing.agreement(votes).poses, fullgraph=True, backend="eager")
    assert torch.equal(compiled(VOTES), VOTES[:, 0] + 1)
