"""Which implementation runs: refusals are data, the first that does not refuse is taken.

``register`` enrols an algorithm with its reference; ``register_implementation`` adds faster ones. The choice is a pure
function of the call (algorithm, operation, device, dtype, sizes, options). ``impl="auto"`` takes the implementation of
lowest rank that can run the call and is not known to be slower than the next; the reference refuses nothing. A named one runs
whatever it can, and raises ``UnsupportedCall`` with its reasons where it cannot. An exception inside ``refuse`` or ``slower``
is a bug and propagates.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from capsella.errors import UnsupportedCall, check_options, unknown_name
from capsella.functional import make_votes
from capsella.functional.precision import wide_dtype
from capsella.functional.votes import check_votes
from capsella.routing.base import (
    ALGORITHMS,
    IMPLEMENTATIONS,
    Algorithm,
    Call,
    Implementation,
    InitFn,
    Routed,
    RoutingFn,
    get,
    no_learned_tensors,
    nowhere,
)
from capsella.shapes import Poses, Votes, dims

REFERENCE_RANK = 1000

# what impl="auto" means; read from the environment once, changed only by `prefer`.
_default = [os.environ.get("CAPSELLA_IMPL", "auto")]


# lists that note what is chosen, while someone listens.
_noting: list[list[tuple[Call, Implementation]]] = []


@contextmanager
def choices() -> Iterator[list[tuple[Call, Implementation]]]:
    """Note every call and the implementation chosen for it inside a ``with`` block; what a run record says ran.

    Example:
        >>> from capsella import routing
        >>> with choices() as made:
        ...     _ = routing.uniform(torch.zeros(2, 3, 4, 5))
        >>> [(call.algorithm, chosen.name) for call, chosen in made]
        [('uniform', 'reference')]
    """
    made: list[tuple[Call, Implementation]] = []
    _noting.append(made)
    try:
        yield made
    finally:
        # itself, not one that is equal: who listens inside another has noted the same, at first.
        _noting[:] = [each for each in _noting if each is not made]


@contextmanager
def prefer(impl: str) -> Iterator[None]:
    """Make ``impl`` the meaning of ``"auto"`` inside a ``with`` block; for tests and benchmarks.

    Example:
        >>> with prefer("reference"):
        ...     pass
    """
    _default.append(impl)
    try:
        yield
    finally:
        _default.pop()


def register(
    name: str,
    *,
    paper: str,
    init: InitFn = no_learned_tensors,
    normalised: bool = False,
    own_step: bool = False,
) -> Callable[[RoutingFn], RoutingFn]:
    """Enrol the decorated reference; the decorated name becomes the public function, which also takes ``impl``."""

    def wrap(reference: RoutingFn) -> RoutingFn:
        if name in ALGORITHMS:
            raise ValueError(f"name={name!r} is registered already; choose another")
        algorithm = Algorithm(name, reference, paper, init, normalised, own_step)
        ALGORITHMS[name] = algorithm
        register_implementation(Implementation(name, "route", "reference", reference, refuse=nowhere, rank=REFERENCE_RANK))

        @functools.wraps(reference)
        def public(votes: Votes, *args: Any, impl: str = "auto", **options: Any) -> Routed:
            if len(args) > len(algorithm.positional):
                takes = ", ".join(("votes", *algorithm.positional))
                raise TypeError(f"{name} takes {takes} by position, the rest by name; got {1 + len(args)} positions")
            for key, value in zip(algorithm.positional, args, strict=False):
                if key in options:
                    raise TypeError(f"{name} got {key} twice, by position and by name")
                options[key] = value
            return _route(algorithm, impl, votes, options)

        signature = inspect.signature(reference)
        extra = inspect.Parameter("impl", inspect.Parameter.KEYWORD_ONLY, default="auto", annotation="str")
        public.__signature__ = signature.replace(  # type: ignore[attr-defined]
            parameters=[*signature.parameters.values(), extra]
        )
        return public

    return wrap


def register_implementation(implementation: Implementation) -> None:
    """Add a way to run a registered algorithm; names are unique within one algorithm and operation."""
    get(implementation.algorithm)
    if implementation.op not in ("route", "vote_and_route"):
        raise ValueError(unknown_name("op", implementation.op, ("route", "vote_and_route")))
    key = (implementation.algorithm, implementation.op, implementation.name)
    if any(key == (other.algorithm, other.op, other.name) for other in IMPLEMENTATIONS):
        raise ValueError(f"implementation {key} is registered already; choose another name")
    IMPLEMENTATIONS.append(implementation)
    IMPLEMENTATIONS.sort(key=lambda entry: entry.rank)


def candidates(algorithm: str, op: str) -> list[Implementation]:
    """List what could run an operation, best rank first; anything that routes votes can also make them first."""
    return [e for e in IMPLEMENTATIONS if e.algorithm == algorithm and e.op in (op, "route")]


def choose(call: Call, impl: str = "auto") -> Implementation:
    """Pick the implementation for a call, or raise ``UnsupportedCall`` / ``ValueError``."""
    wanted, origin = (impl, "") if impl != "auto" else (_default[-1], " (from prefer() or CAPSELLA_IMPL)")
    if wanted == "auto" and torch.compiler.is_exporting() and not torch.compiler.is_dynamo_compiling():
        # an exported program runs anywhere, for any batch: no operator of ours, no choice by size. (Dynamo says yes to both.)
        wanted = "reference"
    entries = candidates(call.algorithm, call.op)
    if wanted != "auto":
        named = [entry for entry in entries if entry.name == wanted]
        if not named:
            raise ValueError(unknown_name("impl", wanted, {"auto", *(entry.name for entry in entries)}) + origin)
        entries = named
    for entry in entries:
        # what is slower is asked first: to say whether it could run, an implementation may have to be built.
        if not (wanted == "auto" and entry.slower(call)) and not entry.refuse(call):
            for made in _noting:
                made.append((call, entry))
            return entry
    reasons = "; ".join(f"{entry.name}: {reason}" for entry in entries for reason in entry.refuse(call))
    raise UnsupportedCall(f"impl={wanted!r}{origin} cannot run {call.algorithm} here: {reasons}")


def explain_call(call: Call, impl: str = "auto") -> str:
    """Return one line per implementation: runs, can run, is slower or refuses, with its reasons."""
    try:
        chosen, problem = choose(call, impl), ""
    except ValueError as error:
        chosen, problem = None, f"\n  nothing runs: {error}"
    sizes = " ".join(f"{letter}={size}" for letter, size in call.sizes.items())
    lines = [f"{call.algorithm} ({call.op}) on {call.device}, {str(call.dtype).removeprefix('torch.')}, {sizes}"]
    for entry in candidates(call.algorithm, call.op):
        lines.append(f"  {entry.name:<12} {entry.op:<15} {'runs' if entry is chosen else _verdict(entry, call)}")
    return "\n".join(lines) + problem


def _verdict(entry: Implementation, call: Call) -> str:
    if reasons := entry.refuse(call):
        return "refuses: " + "; ".join(reasons)
    reasons = entry.slower(call)
    return "slower: " + "; ".join(reasons) if reasons else "can run"


def explain(
    name: str, poses: Tensor, weight: Tensor | None = None, *, rows: int = 1, impl: str = "auto", **options: Any
) -> str:
    """Say which implementation would run, and why not the others.

    Args:
        name: registry name.
        poses: [B, I, P] with a weight; without one, votes [B, I, J, D].
        weight: [I, J, P, D] or [1, J, P, D].
        rows: rows of a matrix pose.
        impl: as for the algorithm.
        **options: as for the algorithm.

    Example:
        >>> print(explain("uniform", torch.zeros(2, 3, 4, 5)))
        uniform (route) on cpu, float32, B=2 I=3 J=4 D=5
          reference    route           runs
    """
    algorithm = get(name)
    check_options(name, options, algorithm.options)
    if weight is None:
        return explain_call(_route_call(algorithm, poses, options), impl)
    return explain_call(_vote_call(algorithm, poses, weight, rows, options), impl)


def vote_and_route(name: str, poses: Poses, weight: Tensor, *, rows: int = 1, impl: str = "auto", **options: Any) -> Routed:
    """Make votes and route them, in one pass where an implementation can.

    Args:
        name: registry name of the algorithm.
        poses: lower poses [B, I, P].
        weight: [I, J, P, D], or [1, J, P, D] shared by all lower capsules.
        rows: rows of a matrix pose (``functional.make_votes``).
        impl: ``"auto"`` or the name of an implementation.
        **options: as for the algorithm; an unknown one is a ``TypeError``.

    Example:
        >>> result = vote_and_route("agreement", torch.randn(2, 6, 8), torch.randn(6, 3, 8, 16), num_iters=2)
        >>> result.poses.shape, result.couplings.shape
        (torch.Size([2, 3, 16]), torch.Size([2, 6, 3]))
    """
    algorithm = get(name)
    check_options(name, options, algorithm.options)
    kind = poses.device.type if isinstance(poses, Tensor) else "cpu"
    if torch.is_autocast_enabled(kind) and poses.dtype != torch.float64:
        # as the product of poses and weight would be; an implementation takes the weight's factors in the poses' dtype.
        poses = poses.to(torch.get_autocast_dtype(kind))
    call = _vote_call(algorithm, poses, weight, rows, options)
    entry = choose(call, impl)
    if entry.op == "route":
        return _run(entry, call, make_votes(poses, weight, rows=rows), options=options)
    return _run(entry, call, poses, weight, options={**options, "rows": rows})


def _route(algorithm: Algorithm, impl: str, votes: Votes, options: dict[str, Any]) -> Routed:
    check_options(algorithm.name, options, algorithm.options)
    call = _route_call(algorithm, votes, options)
    return _run(choose(call, impl), call, votes, options=options)


def _run(entry: Implementation, call: Call, *tensors: Tensor, options: dict[str, Any]) -> Routed:
    # autocast would take the sums in half precision; the votes may be half, the sums may not.
    if torch.is_autocast_enabled(call.device):
        with torch.autocast(call.device, enabled=False):
            return entry.run(*tensors, **options)
    return entry.run(*tensors, **options)


def _route_call(algorithm: Algorithm, votes: Votes, options: dict[str, Any]) -> Call:
    B, I, J, D = dims(votes, "B I J D", name="votes")
    return _call(algorithm, "route", (votes,), {"B": B, "I": I, "J": J, "D": D}, options)


def _vote_call(algorithm: Algorithm, poses: Poses, weight: Tensor, rows: int, options: dict[str, Any]) -> Call:
    (B, I, P), (sources, J, _, D) = check_votes(poses, weight, rows)
    sizes = {"B": B, "I": I, "J": J, "D": rows * D, "P": P}
    return _call(algorithm, "vote_and_route", (poses, weight), sizes, options, shared=sources == 1 != I, rows=rows)


def _call(
    algorithm: Algorithm,
    op: str,
    tensors: tuple[Tensor, ...],
    sizes: dict[str, int],
    options: dict[str, Any],
    *,
    shared: bool = False,
    rows: int = 1,
) -> Call:
    wide = wide_dtype(tensors[0].dtype)
    for key, value in options.items():
        if isinstance(value, Tensor) and value.is_floating_point() and torch.promote_types(wide, value.dtype) != wide:
            raise TypeError(f"{key} has dtype {value.dtype}; expected {wide} or narrower, as the votes")
    recorded = [*tensors, *(value for value in options.values() if isinstance(value, Tensor))]
    return Call(
        algorithm=algorithm.name,
        op=op,
        device=tensors[0].device.type,
        dtype=tensors[0].dtype,
        sizes=sizes,
        shared=shared,
        rows=rows,
        needs_grad=torch.is_grad_enabled() and any(t.requires_grad for t in recorded),
        need_couplings=bool(options.get("need_couplings", True)),
        trace=bool(options.get("trace", False)),
        options=options,
    )
