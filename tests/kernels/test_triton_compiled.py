"""The fused kernels compile for compute capability 9.0 without a GPU, exactly as they would be launched there.

The launchers run on the CPU with kernels that compile and do nothing, so sizes, dtypes, tiles and specialisations are theirs.
"""

from __future__ import annotations

import math
import os
import re
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

triton = pytest.importorskip("triton", reason="triton is not installed")
if os.environ.get("TRITON_INTERPRET", "0") != "0":
    pytest.skip("TRITON_INTERPRET is set; nothing is compiled", allow_module_level=True)

from kernel_cases import ALGORITHMS, MATRICES, TWICE, Problem  # noqa: E402
from triton.backends.compiler import GPUTarget  # noqa: E402

from capsella.bench.clock import peak_memory  # noqa: E402
from capsella.kernels import fused, fused_agreement, fused_convolution, fused_em  # noqa: E402
from capsella.routing import Call  # noqa: E402
from capsella.testing import PAPERS, Case  # noqa: E402

SHARED_MEMORY = 227 * 1024  # of a program at compute capability 9.0
MULTIPROCESSORS = 132
# more lower capsules than CapsNet has change no kernel.
CAPSNET, _, _, PARSE, _ = papers = [replace(case, I=min(case.I, 1152)) for case in PAPERS]


@dataclass(frozen=True)
class Launch:
    """One launch: which kernel, how many programs, and the compiled kernel."""

    kernel: str
    grid: tuple[int, ...]
    compiled: Any

    def __str__(self) -> str:
        return f"{self.kernel}{self.grid}"

    @property
    def multiplies(self) -> bool:
        """Whether it multiplies matrices."""
        return "tt.dot" in self.compiled.asm["ttir"]


class Driver:
    """As much of a GPU's driver as compiling needs."""

    def get_current_device(self) -> int:
        return 9000  # no real device: its compiled kernels must not be taken for these

    def get_current_stream(self, device: int | None = None) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)


Launcher = Callable[[Problem], list[Launch]]


def inputs_of(problem: Problem) -> dict[str, torch.Tensor]:
    """Draw a problem's inputs; where it is mixed, the weight alone stays float32."""
    given = {key: value.to(problem.dtype).requires_grad_() for key, value in problem.inputs().items()}
    if problem.mixed:
        given["weight"] = given["weight"].detach().float().requires_grad_()
    return given


def watched(monkeypatch: pytest.MonkeyPatch, build: Callable[..., Any]) -> list[Launch]:
    """Build kernels instead of launching them, and return the list to which each launch is added."""
    launches: list[Launch] = []

    class Kernel:
        def __init__(self, fn: Any) -> None:
            self.fn = fn

        def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
            def launch(*arguments: Any, **options: Any) -> None:
                launches.append(Launch(self.fn.__name__, grid, build(self.fn, *arguments, grid=grid, **options)))

            return launch

    for module in (fused_agreement, fused_em, fused_convolution):
        for name, value in list(vars(module).items()):
            if isinstance(value, triton.runtime.JITFunction):
                monkeypatch.setattr(module, name, Kernel(value))
    for module in (fused_agreement, fused_convolution):
        monkeypatch.setattr(module, "multiprocessors", lambda device: MULTIPROCESSORS)
    return launches


def launcher(monkeypatch: pytest.MonkeyPatch, build: Callable[..., Any]) -> Launcher:
    """Return a function that runs a problem forward and backward and lists what was launched."""
    launches = watched(monkeypatch, build)

    def run(problem: Problem) -> list[Launch]:
        launches.clear()
        results = replace(problem, mixed=False).tested()(**inputs_of(problem))
        torch.autograd.backward([result.sum() for result in results])
        return list(launches)

    return run


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Any]:
    """Return what compiles a kernel for its arguments."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))  # nothing from earlier runs
    monkeypatch.setattr(triton.runtime.driver, "_active", Driver())
    return lambda fn, *arguments, **options: fn.warmup(*arguments, **options)


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch, compiler: Callable[..., Any]) -> Launcher:
    """Compile what is launched."""
    return launcher(monkeypatch, compiler)


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> Launcher:
    """Compile nothing; only grids are looked at."""
    return launcher(monkeypatch, lambda *arguments, **options: None)


def check(problem: Problem, launches: list[Launch]) -> None:
    """Check that compiled kernels fit a multiprocessor, use its matrix units, and add in a fixed order."""
    assert {"sums_kernel", "finish_kernel", "turn_kernel", "gradients_kernel"} <= {launch.kernel for launch in launches}
    for launch in launches:
        assert launch.compiled.metadata.shared <= SHARED_MEMORY, f"{launch} takes {launch.compiled.metadata.shared} bytes"
        if launch.multiplies:
            instructions = re.findall(r"\b(?:wgmma\.mma_async|mma\.sync)\S*", launch.compiled.asm["ptx"])
            kinds = {"bf16", "f16", "tf32"} & {part for text in instructions for part in text.split(".")}
            if problem.dtype == torch.float32:
                # exact products may do without.
                assert kinds <= {"tf32"}, f"{launch} multiplies {kinds}"
            else:
                expected = {"bf16" if problem.dtype == torch.bfloat16 else "f16"}
                assert kinds == expected, f"{launch} multiplies {kinds or 'without matrix units'}"
        # what a program adds to must have been written by the same thread, or the two could change places.
        stored = set(re.findall(r"tt\.store (%\w+),", launch.compiled.asm["ttgir"]))
        for place in added_to(launch):
            assert place in stored, f"{launch} adds to {place}, which it writes elsewhere"


def added_to(launch: Launch) -> list[str]:
    """List what a kernel adds to, by the compiler's names."""
    return re.findall(r"tt\.atomic_rmw fadd, relaxed, gpu, (%\w+),", launch.compiled.asm["ttgir"])


def of_kernel(launches: list[Launch], name: str) -> list[Launch]:
    return [launch for launch in launches if launch.kernel == name]


@pytest.mark.parametrize(
    "problem",
    [
        Problem("agreement", CAPSNET, TWICE, dtype=torch.bfloat16, mixed=True, optional=False),
        # half as many values are half the code.
        Problem("em", replace(CAPSNET, D=8), TWICE, dtype=torch.bfloat16, mixed=True, optional=False),
        # an argument of one becomes a constant, which compiles differently.
        Problem("agreement", Case("ones", B=1, I=1, J=1, D=1, P=1), TWICE, dtype=torch.bfloat16),
        Problem("em", Case("ones", B=1, I=1, J=1, D=1, P=1), TWICE, dtype=torch.bfloat16),
    ],
    ids=str,
)
def test_kernels_compile_fit_and_use_the_matrix_units(problem: Problem, compiled: Launcher) -> None:
    launches = compiled(problem)
    check(problem, launches)
    assert any(map(added_to, launches))  # or nothing was looked at


@pytest.mark.parametrize("dtype", [torch.bfloat16, pytest.param(torch.float32, marks=pytest.mark.slow)], ids=str)
def test_kernels_of_few_lower_capsules_compile_and_add_over_a_pose_in_one_order(dtype: torch.dtype, compiled: Launcher) -> None:
    # so few that the upper ones are divided among programs.
    problem = Problem("agreement", PARSE, TWICE, dtype=dtype, optional=False)
    launches = compiled(problem)
    check(problem, launches)
    # warps that share the columns of a product add over a pose in another order than one that has them all. Where an upper
    # capsule takes all, what one kernel rounds must cancel with what another does.
    kernels = [launch.compiled.asm["ttgir"] for launch in launches if '"tt.reduce"' in launch.compiled.asm["ttgir"]]
    columns = [re.findall(r"nvidia_mma<.*warpsPerCTA = \[\d+, (\d+)\]", text) for text in kernels]
    assert sum(map(len, columns)) >= 5  # two passes forward, two on the way back, and the gradients
    assert {each for found in columns for each in found} == {"1"}


def every_problem() -> Iterator[Problem]:
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        for algorithm in ALGORITHMS:
            for case in papers:
                yield Problem(algorithm, case, dtype=dtype)
            yield Problem(algorithm, CAPSNET, dtype=dtype, shared=True, optional=False)
            yield Problem(algorithm, replace(MATRICES, B=64), dtype=dtype, rows=4, shared=True)
            yield Problem(algorithm, replace(CAPSNET, B=1, D=5, P=3), dtype=dtype)


@pytest.mark.slow
@pytest.mark.parametrize("problem", list(every_problem()), ids=str)
def test_every_kernel_compiles_at_the_papers_sizes(problem: Problem, compiled: Launcher) -> None:
    check(problem, compiled(problem))


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize(("P", "D"), [(64, 64), (32, 64), (64, 32), (16, 64), (64, 16), (32, 32)])
@pytest.mark.parametrize("algorithm", ["agreement", "em"])
def test_what_is_not_refused_fits(
    algorithm: str, P: int, D: int, dtype: torch.dtype, compiled: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fused, "_able", lambda: True)
    sizes = {"B": 128, "I": 128, "J": 2, "D": D, "P": P}
    call = Call(algorithm, "vote_and_route", "cuda", dtype, sizes, False, 1, True, False, False, {})
    if not fused.refuse(call):
        problem = Problem(algorithm, Case("large", **sizes), dtype=dtype)
        check(problem, compiled(problem))


@pytest.mark.parametrize("algorithm", ["agreement", "em"])
def test_grids_stay_within_cuda_s_limits_at_224_pixels(algorithm: str, planned: Launcher) -> None:
    # the lower capsules of 224×224 images; one weight for all, which changes no grid, keeps the test small.
    problem = Problem(algorithm, Case("224", B=1, I=346_112, J=2, D=4, P=2), TWICE, shared=True, optional=False)
    launches = planned(problem)
    assert of_kernel(launches, "gradients_kernel")
    for launch in launches:
        for size, most in zip(launch.grid, (2**31 - 1, 65_535, 65_535), strict=False):
            assert 0 < size <= most, f"{launch} is more than {most} programs along an axis"


@pytest.mark.parametrize("algorithm", ["agreement", "em"])
def test_sums_are_split_over_all_multiprocessors(algorithm: str, planned: Launcher) -> None:
    launches = planned(Problem(algorithm, replace(CAPSNET, J=2), TWICE, optional=False))
    for launch in (*of_kernel(launches, "sums_kernel"), *of_kernel(launches, "gradients_kernel")):
        assert math.prod(launch.grid) >= MULTIPROCESSORS, launch


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_upper_capsules_are_divided_where_lower_ones_are_few(dtype: torch.dtype, planned: Launcher) -> None:
    few = planned(Problem("agreement", PARSE, TWICE, dtype=dtype, optional=False))
    many = planned(Problem("agreement", CAPSNET, TWICE, dtype=dtype, optional=False))
    # a softmax over upper capsules of several programs takes two passes, forward and on the way back.
    assert [len(of_kernel(launches, "sums_kernel")) for launches in (few, many)] == [5, 3]
    for launch in (*of_kernel(few, "sums_kernel"), *of_kernel(few, "gradients_kernel")):
        # two upper capsules each, or what they leave would be as much as all couplings.
        assert math.prod(launch.grid) >= MULTIPROCESSORS - 4, launch
        assert launch.grid[2] > 1, launch


@pytest.mark.parametrize("case", [PARSE, replace(PARSE, D=4, P=16), replace(PARSE, J=3), replace(PARSE, J=64)], ids=str)
def test_upper_capsules_of_several_programs_leave_fewer_numbers_than_votes(
    case: Case, planned: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[tuple[int, ...]] = []
    make = fused_agreement._Job.wide
    monkeypatch.setattr(fused_agreement._Job, "wide", lambda job, *size: sizes.append(size) or make(job, *size))
    planned(Problem("agreement", case, dtype=torch.bfloat16, optional=False))
    assert max(map(math.prod, sizes)) < case.B * case.I * case.J * case.D
    of_couplings = [size for size in sizes if size[1:] == (case.B, case.I)]
    assert len(of_couplings) > 2  # what is kept of forward and backward pass, and what several programs left
    assert max(map(math.prod, of_couplings)) < case.B * case.I * case.J


@pytest.mark.parametrize("case", [PARSE, replace(PARSE, D=1), replace(PARSE, I=32, D=16), replace(PARSE, I=5, J=64)], ids=str)
def test_em_s_programs_leave_fewer_numbers_than_votes(case: Case, planned: Launcher, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    empty = torch.empty
    # everything that the launchers make but the inputs' own copies.
    monkeypatch.setattr(torch, "empty", lambda *a, **k: sizes.append((made := empty(*a, **k)).numel()) or made)
    launches = planned(Problem("em", case, dtype=torch.bfloat16, optional=False))
    assert any(launch.grid[1] > 1 for launch in of_kernel(launches, "sums_kernel"))
    assert 0 < max(sizes) < case.B * case.I * case.J * case.D


@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_little_memory_is_asked_for_beside_inputs_results_and_gradients(algorithm: str, mixed: bool, planned: Launcher) -> None:
    problem = Problem(algorithm, CAPSNET, dtype=torch.bfloat16, mixed=mixed, optional=False)
    given = inputs_of(problem)
    run = replace(problem, mixed=False).tested()
    results = run(**given)
    least = sum(2 * tensor.nbytes for tensor in (*given.values(), *results))

    def act() -> None:
        torch.autograd.grad(run(**given), list(given.values()), [torch.ones_like(result) for result in results])

    assert peak_memory(act, torch.device("cpu")) <= 2 * least


# CapsNet's second convolution on 28 and 40 pixels, yang2021's on photographs, capsnet_small's, and one with sizes of one.
CONVOLUTIONS = {
    "28 px": ((128, 256, 20, 20), (256, 256, 9, 9), (2, 2)),
    "40 px": ((128, 256, 32, 32), (256, 256, 9, 9), (2, 2)),
    "photographs": ((128, 256, 31, 31), (512, 256, 9, 9), (2, 2)),
    "few channels": ((256, 64, 11, 11), (64, 64, 7, 7), (2, 2)),
    "ones": ((1, 64, 1, 1), (64, 64, 1, 1), (1, 2)),
}
each_convolution = pytest.mark.parametrize(("size", "kernel", "stride"), CONVOLUTIONS.values(), ids=CONVOLUTIONS)


def convolve(size: tuple[int, ...], kernel: tuple[int, ...], stride: tuple[int, int]) -> None:
    # laid out as a training has them: nothing is copied.
    laid_out = {"dtype": torch.bfloat16, "memory_format": torch.channels_last}
    maps, weight = torch.empty(size, **laid_out).requires_grad_(), torch.empty(kernel, **laid_out)
    result = fused_convolution.convolution_op(maps, weight, torch.empty(kernel[0]), list(stride))
    torch.autograd.grad(result.sum(), maps)


def stack_of(launch: Launch, folder: Path) -> int:
    """Return the bytes of memory that a thread has beside its registers, as the machine code says."""
    path = folder / "kernel.cubin"
    path.write_bytes(launch.compiled.asm["cubin"])
    program = triton.knobs.nvidia.cuobjdump.path
    done = subprocess.run([program, "--dump-resource-usage", path], capture_output=True, text=True, check=True)
    return int(re.findall(r"\bSTACK:(\d+)", done.stdout)[0])


def test_a_tile_too_large_for_its_threads_is_seen(
    monkeypatch: pytest.MonkeyPatch, compiler: Callable[..., Any], tmp_path: Path
) -> None:
    """The check below can fail: half the threads have to hold twice as much each."""
    launches = watched(monkeypatch, compiler)
    monkeypatch.setattr(fused_convolution.Tiles, "of", lambda channels: fused_convolution.Tiles(128, 256, 64, num_warps=4))
    convolve(*CONVOLUTIONS["28 px"])
    assert [stack_of(launch, tmp_path) > 0 for launch in launches if launch.multiplies] == [True, True]


@each_convolution
def test_convolutions_compile_fit_and_are_fed_by_the_copy_engine(
    size: tuple[int, ...],
    kernel: tuple[int, ...],
    stride: tuple[int, int],
    monkeypatch: pytest.MonkeyPatch,
    compiler: Callable[..., Any],
    tmp_path: Path,
) -> None:
    launches = watched(monkeypatch, compiler)
    convolve(size, kernel, stride)
    names = [launch.kernel for launch in launches]
    assert [name for name in names if name != "conv_parts_kernel"] == ["conv_forward_kernel", "conv_backward_kernel"]
    for launch in launches:
        ptx = launch.compiled.asm["ptx"]
        assert launch.compiled.metadata.shared <= SHARED_MEMORY, f"{launch} takes {launch.compiled.metadata.shared} bytes"
        assert ("wgmma.mma_async" in ptx) == ("cp.async.bulk.tensor" in ptx) == launch.multiplies, launch
        # what does not fit into registers would be written to memory at every step.
        assert stack_of(launch, tmp_path) == 0, launch
        assert not added_to(launch), launch


@pytest.mark.parametrize("name", ["28 px", "40 px", "photographs"])
def test_windows_are_divided_so_that_multiprocessors_are_full(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    launches = watched(monkeypatch, lambda *arguments, **options: None)
    convolve(*CONVOLUTIONS[name])
    (launch,) = of_kernel(launches, "conv_forward_kernel")
    (programs,) = launch.grid
    rounds = -(-programs // MULTIPROCESSORS)
    assert programs >= 0.8 * rounds * MULTIPROCESSORS, f"{launch} leaves many idle in the last of {rounds} rounds"
    # what is divided has to be added up.
    assert of_kernel(launches, "conv_parts_kernel")
