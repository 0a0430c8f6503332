"""What every routing algorithm takes, returns and declares, and the two registries: algorithms and implementations."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from capsella.errors import check_choice
from capsella.functional import length, widen
from capsella.functional import squash as apply_squash
from capsella.functional.squash import KINDS
from capsella.shapes import Activations, Couplings, Poses, Votes, dims


@dataclass(frozen=True)
class Routed:
    """The result of routing.

    Attributes:
        poses: [B, J, D].
        activations: [B, J]; pose lengths, except for EM.
        couplings: [B, I, J] of the last iteration, or None where they were not asked for.
        trace: one couplings tensor per iteration, or None where it was not asked for.
    """

    poses: Poses
    activations: Activations
    couplings: Couplings | None = None
    trace: tuple[Tensor, ...] | None = None

    def map(self, fn: Callable[[Tensor], Tensor]) -> Routed:
        """Apply ``fn`` to every tensor that is there."""
        return Routed(
            fn(self.poses),
            fn(self.activations),
            None if self.couplings is None else fn(self.couplings),
            None if self.trace is None else tuple(fn(couplings) for couplings in self.trace),
        )


# lets torch.export and the pytree utilities see through it.
torch.export.register_dataclass(Routed, serialized_type_name="capsella.Routed")

NORMALISATIONS = ("targets", "sources")
"""Over what couplings sum to one: J, a lower capsule divides itself; or I, an upper one takes a mean of the votes."""

RoutingFn = Callable[..., Routed]
InitFn = Callable[[int, int, int], dict[str, Tensor]]


def no_learned_tensors(in_capsules: int, out_capsules: int, out_dim: int) -> dict[str, Tensor]:
    """Say that an algorithm owns nothing that is learned."""
    return {}


@dataclass(frozen=True)
class Algorithm:
    """A registered algorithm: its reference and what a layer must know to use it.

    Attributes:
        name: registry name.
        reference: the plain PyTorch function that is the truth.
        paper: where it comes from.
        init: (I, J, D) -> starting values of its learned tensors.
        normalised: whether couplings sum to one: over J, or over I where ``normalise="sources"`` is an option and is given.
        own_step: whether its learned tensors are moved by its own rule and not by the main optimiser.
        positional: what it takes after the votes without a name.
        options: everything it takes after the votes.
        required: learned tensors that it cannot run without.
        optional: learned tensors that default to None.
    """

    name: str
    reference: RoutingFn
    paper: str
    init: InitFn = no_learned_tensors
    normalised: bool = False
    own_step: bool = False
    positional: tuple[str, ...] = field(init=False)
    options: tuple[str, ...] = field(init=False)
    required: tuple[str, ...] = field(init=False)
    optional: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        """Read the options from the reference's signature, so that they are stated once."""
        parameters = list(inspect.signature(self.reference).parameters.values())[1:]
        # on the meta device nothing is drawn: importing an algorithm must not move anybody's random numbers.
        with torch.device("meta"):
            learned = self.init(1, 1, 1)
        without_default = {p.name for p in parameters if p.default is inspect.Parameter.empty}
        positional = [p.name for p in parameters if p.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
        object.__setattr__(self, "positional", tuple(positional))
        object.__setattr__(self, "options", tuple(p.name for p in parameters))
        object.__setattr__(self, "required", tuple(name for name in learned if name in without_default))
        object.__setattr__(self, "optional", tuple(name for name in learned if name not in without_default))

    def default(self, option: str) -> Any:
        """Return the default of one of its options."""
        return inspect.signature(self.reference).parameters[option].default

    @property
    def needs_activations(self) -> bool:
        """Whether it reads the activations of the lower capsules."""
        return "activations" in self.options

    @property
    def is_iterative(self) -> bool:
        """Whether it has iterations to count."""
        return "num_iters" in self.options


@dataclass(frozen=True)
class Call:
    """What an implementation is told before it says whether it can run.

    Attributes:
        algorithm: registry name.
        op: ``"route"`` (votes given) or ``"vote_and_route"`` (poses and weight given).
        device: device type.
        dtype: of the votes or poses.
        sizes: by letter, B I J D and for ``vote_and_route`` P; D and P are whole poses, whatever their rows.
        shared: whether one weight serves all lower capsules.
        rows: rows of a matrix pose.
        needs_grad: whether autograd records.
        need_couplings: whether couplings are asked for.
        trace: whether couplings of every iteration are asked for.
        options: the algorithm's other options as passed; tensors among them too.
    """

    algorithm: str
    op: str
    device: str
    dtype: torch.dtype
    sizes: Mapping[str, int]
    shared: bool
    rows: int
    needs_grad: bool
    need_couplings: bool
    trace: bool
    options: Mapping[str, Any]


def nowhere(call: Call) -> list[str]:
    """Give no reason, whatever the call is."""
    return []


@dataclass(frozen=True)
class Implementation:
    """One way to run an algorithm.

    Attributes:
        algorithm: registry name.
        op: which of the two operations ``run`` performs.
        name: such as ``"reference"`` or ``"fused"``.
        run: takes what the public function takes.
        refuse: reasons why it cannot run a call; an empty list means that it can.
        rank: lower is tried first.
        slower: reasons why a call that it could run is left to others, which were measured faster. Whoever names it gets it.
    """

    algorithm: str
    op: str
    name: str
    run: RoutingFn
    refuse: Callable[[Call], list[str]]
    rank: int
    slower: Callable[[Call], list[str]] = nowhere


ALGORITHMS: dict[str, Algorithm] = {}
IMPLEMENTATIONS: list[Implementation] = []


def names() -> list[str]:
    """List the registered algorithms."""
    return sorted(ALGORITHMS)


def get(name: str) -> Algorithm:
    """Return a registered algorithm, or raise ``ValueError`` with the near matches."""
    check_choice("routing", name, ALGORITHMS)
    return ALGORITHMS[name]


def weighted_sum(votes: Votes, couplings: Tensor, bias: Tensor | None, squash: str) -> Poses:
    """Compute v_j = squash(Σ_i c_ij û_ij + bias_j), the step that all but EM share."""
    check_choice("squash", squash, KINDS)
    total = torch.einsum("bij,bijd->bjd", couplings, votes)  # [B, J, D]
    return apply_squash(total if bias is None else total + bias, kind=squash)


def check_bias(bias: Tensor | None, J: int, D: int) -> Tensor | None:
    """Check the shape of a bias [J, D] and widen it."""
    if bias is None:
        return None
    dims(bias, "J D", name="bias", J=J, D=D)
    return widen(bias)


def as_couplings(couplings: Tensor, B: int, I: int, J: int, dtype: torch.dtype) -> Couplings:
    """Check couplings [I, J], or anything broadcastable, and expand them to [B, I, J] in ``dtype``."""
    if not isinstance(couplings, Tensor) or not couplings.is_floating_point():
        kind = couplings.dtype if isinstance(couplings, Tensor) else type(couplings).__name__
        raise TypeError(f"couplings is {kind}; expected a floating-point tensor [I={I}, J={J}]")
    sizes = (1,) * (3 - couplings.ndim) + tuple(couplings.shape)
    if len(sizes) != 3 or any(s not in (1, n) for s, n in zip(sizes, (B, I, J), strict=True)):
        expected = f"[I={I}, J={J}], or broadcastable to [B={B}, I, J]"
        raise ValueError(f"couplings has shape {list(couplings.shape)}; expected {expected}")
    return couplings.to(dtype).expand(B, I, J)


def routed(
    poses: Poses,
    activations: Activations,
    history: list[Couplings],
    *,
    dtype: torch.dtype,
    trace: bool,
    need_couplings: bool,
) -> Routed:
    """Assemble a result in the input's dtype; the last entry of ``history`` is the couplings."""
    return Routed(
        poses.to(dtype),
        activations.to(dtype),
        history[-1].to(dtype) if need_couplings else None,
        tuple(c.to(dtype) for c in history) if trace else None,
    )


def route_fixed(
    votes: Votes,
    couplings: Tensor,
    *,
    bias: Tensor | None,
    squash: str,
    trace: bool,
    need_couplings: bool,
) -> Routed:
    """Route in one step with couplings that do not depend on the votes: what all algorithms without iterations do."""
    B, I, J, D = dims(votes, "B I J D", name="votes")
    bias = check_bias(bias, J, D)
    wide = widen(votes)
    spread = as_couplings(couplings, B, I, J, wide.dtype)
    poses = weighted_sum(wide, spread, bias, squash)
    return routed(poses, length(poses), [spread], dtype=votes.dtype, trace=trace, need_couplings=need_couplings)
