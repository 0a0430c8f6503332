"""Which calls plain PyTorch without votes takes, and what the dispatcher and the compiler make of it."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import Tensor

from capsella import routing
from capsella.kernels import compiled_agreement
from capsella.kernels.compiler import find_compiler
from capsella.routing import Call, UnsupportedCall, dispatch
from capsella.routing.base import IMPLEMENTATIONS, Implementation
from capsella.routing.dispatch import candidates, choices, choose
from capsella.testing import Case, generator, make_options

NAMES = {"agreement": "tiled", "em": "tiled", "uniform": "matmul", "trainable": "matmul", "quadratic": "matmul"}
LARGE = Case("large", B=16, I=240, J=10, D=16, P=8)
everything = pytest.mark.parametrize("name", sorted(NAMES))


@pytest.fixture(autouse=True)
def _no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out what a C++ compiler builds, so that plain PyTorch is the choice on every machine."""
    monkeypatch.setattr(compiled_agreement, "_trouble", lambda: "no C++ compiler is looked for in this test")


def arguments(name: str, case: Case, *, shared: bool = False, **options: Any) -> tuple[tuple[Tensor, Tensor], dict[str, Any]]:
    rng = generator(0)
    poses = torch.randn(case.B, case.I, options.get("rows", 1) * case.P, generator=rng)
    weight = torch.randn(1 if shared else case.I, case.J, case.P, case.D, generator=rng) * 0.1
    return (poses, weight), make_options(name, case, dtype=torch.float32) | options


def chosen(name: str, case: Case, **options: Any) -> str:
    tensors, options = arguments(name, case, **options)
    with choices() as made:
        routing.vote_and_route(name, *tensors, **options)
    return made[0][1].name


@everything
def test_many_votes_are_not_made(name: str) -> None:
    assert chosen(name, LARGE) == NAMES[name]
    assert chosen(name, LARGE, shared=True) == NAMES[name]


@everything
def test_a_compiler_meets_the_same_choice(name: str) -> None:
    (poses, weight), options = arguments(name, LARGE, need_couplings=False)
    sizes: list[int] = []

    def backend(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> torch.fx.GraphModule:
        made = [node.meta.get("example_value") for node in graph.graph.nodes]
        sizes.extend(value.numel() for value in made if isinstance(value, Tensor))
        return graph

    fast = torch.compile(lambda p, w: routing.vote_and_route(name, p, w, **options).poses, fullgraph=True, backend=backend)
    assert torch.equal(fast(poses, weight), routing.vote_and_route(name, poses, weight, **options).poses)
    # the reference would make the votes.
    assert 0 < max(sizes) < LARGE.B * LARGE.I * LARGE.J * LARGE.D


@everything
def test_votes_that_are_given_are_routed_by_the_reference(name: str) -> None:
    votes = torch.randn(LARGE.B, LARGE.I, LARGE.J, LARGE.D)
    with choices() as made:
        getattr(routing, name)(votes, **make_options(name, LARGE, dtype=torch.float32))
    assert made[0][1].name == "reference"


@everything
@pytest.mark.parametrize("shared", [False, True])
def test_an_empty_batch_is_routed(name: str, shared: bool) -> None:
    case = Case("empty", B=0, I=100, J=10, D=16, P=8)
    (poses, weight), options = arguments(name, case, shared=shared)
    weight.requires_grad_()
    result = routing.vote_and_route(name, poses, weight, **options)
    assert result.poses.shape == (0, 10, 16)
    (gradient,) = torch.autograd.grad(result.poses.sum(), weight)
    assert not gradient.any()


SLOWER = [
    ("agreement", Case("few", B=8, I=16, J=4, D=8, P=8), {}, r"B·I·J·D is 4096; expected at least 65536"),
    ("em", Case("few", B=8, I=16, J=4, D=8, P=8), {}, r"B·I·J·D is 4096; expected at least 524288"),
    ("em", Case("few", B=8, I=16, J=4, D=8, P=8), {"shared": True}, r"B·I·J·D is 4096; expected at least 524288"),
    ("agreement", Case("five", B=5, I=1000, J=10, D=16, P=8), {}, r"B is 5; expected at least 8"),
    ("agreement", Case("seven", B=7, I=1000, J=10, D=16, P=16), {}, r"B is 7; expected at least 8"),
    ("agreement", Case("long", B=16, I=1000, J=10, D=16, P=17), {}, r"B is 16; expected at least 17"),
    ("em", Case("seven", B=7, I=1000, J=10, D=16, P=16), {}, r"B is 7; expected at least 8"),
    ("em", Case("rows", B=24, I=240, J=10, D=8, P=4), {"rows": 2}, r"B·I·J·D is 921600; expected at least 2097152"),
]


@pytest.mark.parametrize(("name", "case", "options", "reason"), SLOWER)
def test_what_the_reference_does_faster_is_left_to_it_unless_another_is_named(
    name: str, case: Case, options: dict[str, Any], reason: str
) -> None:
    assert chosen(name, case, **options) == "reference"
    tensors, given = arguments(name, case, **options)
    assert re.search(rf"{NAMES[name]} +vote_and_route +slower: .*{reason}", routing.explain(name, *tensors, **given))
    result, expected = (routing.vote_and_route(name, *tensors, impl=impl, **given) for impl in (NAMES[name], "reference"))
    torch.testing.assert_close(result.poses, expected.poses)


@pytest.mark.parametrize(("name", "B"), [("agreement", 8), ("em", 8)])
def test_eight_samples_are_enough_where_poses_do_not_shrink(name: str, B: int) -> None:
    assert chosen(name, Case("enough", B=B, I=1000, J=10, D=16, P=16)) == "tiled"


def test_sums_of_few_samples_are_left_to_the_reference_which_is_more_exact() -> None:
    tensors, given = arguments("agreement", Case("few", B=3, I=1000, J=10, D=16, P=8))
    with pytest.raises(UnsupportedCall, match=r"tiled: B is 3; with fewer than 4 samples its float32 sums lose more digits"):
        routing.vote_and_route("agreement", *tensors, impl="tiled", **given)
    # one step is a product over all samples, and one weight for all needs none of so many terms.
    assert chosen("agreement", Case("few", B=3, I=1000, J=10, D=16, P=8), num_iters=1) == "tiled"
    assert chosen("agreement", Case("few", B=3, I=1000, J=10, D=16, P=8), shared=True) == "tiled"


def test_few_samples_with_couplings_are_the_reference_s() -> None:
    one = Case("one", B=1, I=1000, J=10, D=16, P=8)
    assert chosen("trainable", one) == "reference"
    tensors, given = arguments("trainable", one)
    with pytest.raises(UnsupportedCall, match=r"matmul: B is 1; expected at least 8"):
        routing.vote_and_route("trainable", *tensors, impl="matmul", **given)


def test_couplings_of_each_sample_are_refused() -> None:
    tensors, given = arguments("quadratic", Case("per sample", B=16, I=10, J=10, D=16, P=8), couplings=torch.ones(16, 10, 10))
    with pytest.raises(UnsupportedCall, match=r"matmul: couplings has a batch axis; expected \[I, J\]"):
        routing.vote_and_route("quadratic", *tensors, impl="matmul", **given)


@pytest.mark.parametrize(
    ("name", "dtype", "refused", "slower"),
    [
        ("agreement", torch.float32, "its float32 sums lose more digits", "chunks are faster"),
        ("agreement", torch.bfloat16, "", "chunks are faster"),
        ("em", torch.float32, "", "chunks are faster"),
        ("em", torch.bfloat16, "", "chunks are faster"),
        ("uniform", torch.float32, "", ""),
    ],
)
def test_what_is_slower_or_less_exact_on_a_gpu_is_not_taken_there(
    name: str, dtype: torch.dtype, refused: str, slower: str
) -> None:
    sizes = {"B": 128, "I": 1152, "J": 10, "D": 16, "P": 8}
    call = Call(name, "vote_and_route", "cuda", dtype, sizes, False, 1, True, False, False, {})
    plain = next(entry for entry in candidates(name, "vote_and_route") if entry.name == NAMES[name])
    for found, reason in ((plain.refuse(call), refused), (plain.slower(call), slower)):
        assert bool(found) == bool(reason)
        assert reason in " ".join(found)


@pytest.mark.parametrize(
    ("algorithm", "B", "name"),
    [("agreement", 256, "reference"), ("agreement", 512, "chunked"), ("em", 128, "reference"), ("em", 256, "chunked")],
)
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_a_gpu_without_triton_takes_chunks_for_many_votes(
    algorithm: str, dtype: torch.dtype, shared: bool, B: int, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatch, "IMPLEMENTATIONS", [entry for entry in IMPLEMENTATIONS if entry.name != "fused"])
    sizes = {"B": B, "I": 1152, "J": 10, "D": 16, "P": 8}
    for couplings in (False, True):
        call = Call(algorithm, "vote_and_route", "cuda", dtype, sizes, shared, 1, True, couplings, False, {})
        assert choose(call).name == name


@pytest.mark.parametrize("name", ["agreement", "em"])
def test_chunks_compile_to_one_graph_forward_and_backward(name: str) -> None:
    (poses, weight), options = arguments(name, LARGE)
    inputs = [poses.requires_grad_(), weight.requires_grad_()]

    # past the dispatcher, which would refuse a CPU.
    entry = next(entry for entry in candidates(name, "vote_and_route") if entry.name == "chunked")

    def run(poses: Tensor, weight: Tensor) -> Tensor:
        poses = entry.run(poses, weight, **options).poses
        return poses

    found = []
    for act in (run, torch.compile(run, fullgraph=True, backend="aot_eager")):
        result = act(poses, weight)
        found.append((result, *torch.autograd.grad(result.square().sum(), inputs)))
    torch.testing.assert_close(*found)


FAST = [entry for entry in candidates("agreement", "vote_and_route") if entry.name in ("chunked", "tiled", "compiled")]


@pytest.mark.parametrize("entry", FAST, ids=lambda entry: entry.name)
def test_a_softmax_over_the_lower_capsules_is_left_to_the_reference(
    entry: Implementation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatch, "IMPLEMENTATIONS", [other for other in IMPLEMENTATIONS if other.name != "fused"])
    device = "cuda" if entry.name == "chunked" else "cpu"
    sizes = {"B": 128, "I": 1152, "J": 10, "D": 16, "P": 8}
    for num_iters in (1, 3):
        options = {"num_iters": num_iters, "normalise": "sources"}
        call = Call("agreement", "vote_and_route", device, torch.float32, sizes, False, 1, True, True, False, options)
        told = entry.refuse(call)
        assert "normalise='sources'; it needs 'targets', a softmax over the upper capsules" in told
        assert choose(call).name == "reference"
    assert chosen("agreement", LARGE, normalise="sources") == "reference"
    assert chosen("agreement", LARGE, normalise="targets") == "tiled"
    tensors, given = arguments("agreement", LARGE, normalise="sources")
    with pytest.raises(UnsupportedCall, match=rf"{entry.name}: .*normalise='sources'; it needs 'targets'"):
        routing.vote_and_route("agreement", *tensors, impl=entry.name, **given)
    with pytest.raises(ValueError, match=r"^normalise='source' is unknown; did you mean 'sources'\?"):
        routing.vote_and_route("agreement", *tensors, normalise="source")


@pytest.mark.parametrize("entry", FAST, ids=lambda entry: entry.name)
def test_the_usual_axis_may_be_named(entry: Implementation) -> None:
    if entry.name == "compiled" and not find_compiler():
        pytest.skip("there is no C++ compiler")
    tensors, given = arguments("agreement", LARGE)
    # past the dispatcher, which would refuse a CPU.
    assert torch.equal(entry.run(*tensors, normalise="targets", **given).poses, entry.run(*tensors, **given).poses)


def test_one_iteration_of_agreement_is_a_product_at_any_size() -> None:
    few = Case("few", B=1, I=3, J=2, D=2, P=2)
    assert chosen("agreement", few) == "reference"
    assert chosen("agreement", few, num_iters=1) == "tiled"


def test_couplings_with_a_batch_axis_of_one_are_the_same_for_all_samples() -> None:
    assert chosen("trainable", LARGE, couplings=torch.ones(1, LARGE.I, LARGE.J)) == "matmul"


@everything
@pytest.mark.parametrize("shared", [False, True])
def test_it_compiles_to_one_graph_forward_and_backward(name: str, shared: bool) -> None:
    (poses, weight), options = arguments(name, LARGE, shared=shared)
    inputs = [poses.requires_grad_(), weight.requires_grad_()]

    def run(poses: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        result = routing.vote_and_route(name, poses, weight, **options)
        assert result.couplings is not None
        return result.poses, result.couplings

    torch._dynamo.reset()
    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    results = [function(*inputs) for function in (compiled, run)]
    for got, expected in zip(*results, strict=True):
        torch.testing.assert_close(got, expected)
    gradients = [torch.autograd.grad(sum(tensor.square().sum() for tensor in result), inputs) for result in results]
    torch.testing.assert_close(*gradients)


@everything
def test_under_autocast_poses_keep_their_dtype_and_sums_are_wide(name: str) -> None:
    (poses, weight), options = arguments(name, LARGE)
    exact = routing.vote_and_route(name, poses.bfloat16().float(), weight, **options)
    with torch.autocast("cpu", torch.bfloat16), choices() as made:
        result = routing.vote_and_route(name, poses.bfloat16(), weight, **options)
    assert made[0][1].name == NAMES[name]
    assert torch.equal(result.poses, exact.poses.bfloat16())


@everything
def test_an_exported_program_is_for_every_batch(name: str) -> None:
    (poses, weight), options = arguments(name, LARGE)
    given = options.pop("activations", None)

    class Layer(torch.nn.Module):
        def forward(self, poses: Tensor) -> Tensor:
            extra = {} if given is None else {"activations": poses.square().mean(dim=-1).sigmoid()}
            return routing.vote_and_route(name, poses, weight, **options, **extra).poses

    program = torch.export.export(Layer(), (poses,), dynamic_shapes={"poses": {0: torch.export.Dim("batch")}})
    for count in (1, LARGE.B):
        torch.testing.assert_close(program.module()(poses[:count]), Layer()(poses[:count]))
